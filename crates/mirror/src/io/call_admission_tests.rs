//! Every order of the steps of a call and of a change, and calls on real threads.
//!
//! Left out: orders that only weak memory models have. The gate's operations are sequentially
//! consistent.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

type Calls = CallAdmission<u64>;

/// The steps of a call: count itself, set its mark, confirm.
const CALL_STEPS: usize = 3;
/// The steps of a change: invalidate, look for calls, look for marks, publish.
const CHANGE_STEPS: usize = 4;

/// Plays one order of the steps; bit `i` of `order` tells whose step comes next.
fn play(order: u32) {
    let (calls, mark) = (Calls::default(), Cell::new(false));
    let (version, _) = calls.view(|| (calls.version(), 1));
    let (mut admitted, mut saw_call, mut saw_mark) = (None, false, false);
    let (mut call, mut change) = (0..CALL_STEPS, 0..CHANGE_STEPS);
    for step in 0..CALL_STEPS + CHANGE_STEPS {
        if order & (1 << step) == 0 {
            match call.next() {
                Some(0) => calls.begin(Counted::HostCall),
                Some(1) => mark.set(true),
                _ => admitted = Some(calls.confirm(version)),
            }
        } else {
            match change.next() {
                Some(0) => calls.begin_change(),
                Some(1) => saw_call = calls.in_flight(Counted::HostCall) > 0,
                Some(2) => saw_mark = mark.get(),
                _ => calls.end_change(),
            }
        }
    }
    if admitted.expect("all steps were played") {
        assert!(saw_call && saw_mark, "order {order:b}: neither saw the other");
    }
    assert!(!calls.confirm(version), "a view of before the change is out of date");
    let (now, view) = calls.view(|| (calls.version(), 2));
    assert!(*view == 2 && calls.confirm(now), "the next call reads the state again");
}

#[test]
fn change_sees_admitted_call_in_every_order() {
    let all = 0..1u32 << (CALL_STEPS + CHANGE_STEPS);
    let orders: Vec<u32> = all.filter(|order| order.count_ones() == CHANGE_STEPS as u32).collect();
    assert_eq!(orders.len(), 35);
    orders.into_iter().for_each(play);
}

#[test]
fn counts_are_kept_by_kind_and_leg() {
    let calls = Calls::default();
    calls.begin(Counted::Leg(0, Some(1)));
    calls.begin(Counted::Leg(1, None));
    calls.begin(Counted::SourceCall);
    let counts = |all: [Counted; 4]| all.map(|counted| calls.in_flight(counted));
    let all = [
        Counted::Leg(0, None),
        Counted::Leg(0, Some(1)),
        Counted::Leg(0, Some(0)),
        Counted::HostCall,
    ];
    assert_eq!(counts(all), [1, 1, 0, 0]);
    assert!(!calls.end(Counted::Leg(0, Some(1))), "no task waits");
    let awaited = calls.await_calls();
    assert!(calls.end(Counted::Leg(1, None)) && calls.end(Counted::SourceCall));
    drop(awaited);
    assert_eq!(counts(all), [0; 4]);
}

/// Calls on several threads enter while the state is open. Once a change has closed it and no call
/// is in flight, no call is inside.
#[test]
fn no_call_is_inside_after_drain() {
    let (calls, open) = (Calls::default(), Mutex::new(true));
    let (inside, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let calls = || {
        let mut admitted = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let (version, view) = calls.view(|| {
                let open = open.lock();
                (calls.version(), u64::from(*open))
            });
            if *view == 0 {
                thread::yield_now();
                continue;
            }
            calls.begin(Counted::HostCall);
            if calls.confirm(version) {
                // Relaxed: the gate alone has to order it.
                inside.fetch_add(1, Ordering::Relaxed);
                inside.fetch_sub(1, Ordering::Relaxed);
                admitted += 1;
            }
            let _ = calls.end(Counted::HostCall);
        }
        admitted
    };
    let set = |to: bool| {
        let mut open = open.lock();
        calls.begin_change();
        *open = to;
        calls.end_change();
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(calls)).collect();
        for _ in 0..300 {
            set(false);
            while calls.in_flight(Counted::HostCall) > 0 {
                thread::yield_now();
            }
            assert_eq!(inside.load(Ordering::Relaxed), 0, "a call was admitted before the change");
            set(true);
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    });
}
