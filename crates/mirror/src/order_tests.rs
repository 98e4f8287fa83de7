use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;

fn starts(gate: &mut Gate, order: Order) -> bool {
    gate.may_start(order, Waker::noop())
}

fn order(number: u32, beside: u128) -> Order {
    Order { number, beside }
}

#[test]
fn a_write_waits_for_those_that_had_completed_and_for_no_others() {
    let mut source = Numbering::default();
    let (a, b) = (source.begin(1), source.begin(1));
    source.completed(a);
    let c = source.begin(1);
    source.completed(b);
    let d = source.begin(1);
    let [a, b, c, d] = [a, b, c, d].map(|span| span.first);
    assert_eq!((a, b), (order(1, 0), order(2, 0b1)));
    assert_eq!((c, d), (order(3, 0b01), order(4, 0b001)));
    let mut gate = Gate::default();
    for order in [d, b, c, a] {
        gate.arrived(order).unwrap();
    }
    assert!(starts(&mut gate, a) && starts(&mut gate, b) && !starts(&mut gate, c));
    gate.completed(a.number).unwrap();
    assert!(gate.next_to_wake().is_some() && gate.next_to_wake().is_none());
    assert!(starts(&mut gate, c), "b is slow, and c went beside it");
    assert!(!starts(&mut gate, d), "b had completed when d began");
    gate.completed(c.number).unwrap();
    assert!(gate.next_to_wake().is_none());
    gate.completed(b.number).unwrap();
    assert!(gate.next_to_wake().is_some() && starts(&mut gate, d));
}

#[test]
fn parts_have_numbers_of_their_own_and_complete_together() {
    let mut source = Numbering::default();
    let (long, short) = (source.begin(3), source.begin(1));
    assert_eq!((long.first, short.first), (order(1, 0), order(4, 0b111)));
    source.completed(long);
    assert_eq!(source.begin(1).first, order(5, 0b0001));
    // Longer than what can be named.
    let huge = source.begin(200);
    assert_eq!(source.begin(1).first, order(206, u128::MAX));
    source.completed(huge);
    assert_eq!(source.begin(1).first, order(207, 0b1));
}

#[test]
fn numbers_begin_again_after_the_last() {
    let mut source = Numbering { next: u32::MAX, under_way: 0 };
    let done = Done { floor: u64::from(u32::MAX), above: 0 };
    let mut gate = Gate { done, early: BTreeMap::new() };
    let (last, first) = (source.begin(1), source.begin(1));
    source.completed(last);
    let second = source.begin(1);
    assert_eq!((first.first, second.first), (order(0, 0b1), order(1, 0b01)));
    for span in [second, first, last] {
        gate.arrived(span.first).unwrap();
    }
    assert!(starts(&mut gate, first.first) && !starts(&mut gate, second.first));
    gate.completed(last.first.number).unwrap();
    assert!(starts(&mut gate, second.first));
}

#[test]
fn lies_are_refused() {
    let mut gate = Gate::default();
    assert_eq!(gate.arrived(order(0, 0)), Err(Disorder));
    assert_eq!(gate.arrived(order(1 + ORDER_WINDOW, 0)), Err(Disorder));
    gate.arrived(order(2, 0)).unwrap();
    assert_eq!(gate.arrived(order(2, 1)), Err(Disorder), "it waits already");
    gate.arrived(order(1, 0)).unwrap();
    gate.completed(1).unwrap();
    assert_eq!(gate.arrived(order(1, 0)), Err(Disorder), "it has completed");
    assert_eq!(gate.completed(1), Err(Disorder));
    // Out of sight of the oldest: it waits, whatever it names.
    let far = order(2 + BESIDE + 1, u128::MAX);
    gate.arrived(far).unwrap();
    assert!(!starts(&mut gate, far));
    assert!(starts(&mut gate, order(2 + BESIDE, u128::MAX)));
}

/// How long a target takes for what a source did, both with disks whose writes take from 0.8 to 1.2
/// ms: 24 in flight, each begun as one completed. Whoever is slow holds up what came after it, so it
/// takes 1.18 times as long; were all to wait for all that went before, it would be 1.28.
#[test]
fn a_slow_write_holds_up_no_more_than_it_must() {
    let mut seed = 7u64;
    let mut write_us = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        800 + (seed >> 33) % 400
    };
    let mut source = Numbering::default();
    let mut running = BinaryHeap::new();
    let mut spans = Vec::new();
    let mut arrivals = VecDeque::new();
    let (mut now_us, mut source_us) = (0, 0);
    while spans.len() < 20_000 || !running.is_empty() {
        while spans.len() < 20_000 && running.len() < 24 {
            running.push(Reverse((now_us + write_us(), spans.len())));
            arrivals.push_back((now_us, source.begin(1)));
            spans.push(arrivals[arrivals.len() - 1].1);
        }
        if let Some(Reverse((at_us, index))) = running.pop() {
            source.completed(spans[index]);
            (now_us, source_us) = (at_us, at_us);
        }
    }
    let mut gate = Gate::default();
    let mut here: VecDeque<Order> = VecDeque::new();
    let mut running: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let mut now_us = 0;
    while !arrivals.is_empty() || !here.is_empty() || !running.is_empty() {
        while arrivals.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            let order = arrivals.pop_front().unwrap().1.first;
            gate.arrived(order).unwrap();
            here.push_back(order);
        }
        while here.front().is_some_and(|order| starts(&mut gate, *order)) {
            running.push(Reverse((now_us + write_us(), here.pop_front().unwrap().number)));
        }
        let completes_us = running.peek().map(|Reverse((at_us, _))| *at_us);
        let arrives_us = arrivals.front().map(|(at_us, _)| *at_us);
        match (completes_us, arrives_us) {
            (Some(at_us), arrives) if arrives.is_none_or(|arrives| at_us <= arrives) => {
                gate.completed(running.pop().unwrap().0.1).unwrap();
                now_us = at_us;
            }
            (_, Some(at_us)) => now_us = at_us,
            (_, None) => break,
        }
    }
    let behind = now_us as f64 / source_us as f64;
    assert!(behind < 1.22, "the target takes {behind:.2} times as long");
}

proptest! {
    /// However writes arrive, are turned away while they wait and complete: one that began at the source after another had
    /// completed there starts at the target after that one has completed, and all start.
    #[test]
    fn any_shuffle_keeps_the_order(
        steps in prop::collection::vec((any::<bool>(), any::<usize>()), 1..60),
        many in 1u32..100,
        shuffle in prop::collection::vec(any::<usize>(), 200),
    ) {
        let mut source = Numbering::default();
        let mut orders: Vec<Order> = Vec::new();
        let mut under_way = Vec::new();
        // For each write those that had completed when it began.
        let mut after: Vec<Vec<usize>> = Vec::new();
        let mut done = Vec::new();
        for (begin, which) in steps {
            if begin || under_way.is_empty() {
                // Its parts travel as writes of their own.
                let parts = if which % 8 == 0 { many } else { 1 + which as u32 % 3 };
                let span = source.begin(parts);
                let from = orders.len();
                let Order { number, beside } = span.first;
                orders.extend((0..parts).map(|part| {
                    let earlier = beside.checked_shl(part).unwrap_or(0);
                    order(number + part, earlier | ones(part))
                }));
                after.extend(std::iter::repeat_n(done.clone(), parts as usize));
                under_way.push((span, from..orders.len()));
            } else {
                let (span, write) = under_way.swap_remove(which % under_way.len());
                source.completed(span);
                done.extend(write);
            }
        }
        let mut gate = Gate::default();
        let mut on_the_way: Vec<usize> = (0..orders.len()).collect();
        let (mut here, mut started) = (Vec::new(), Vec::new());
        let mut completed = vec![false; orders.len()];
        let mut turned_away = vec![false; orders.len()];
        let mut left = orders.len();
        let mut chance = shuffle.iter().cycle();
        while left > 0 {
            let pick = *chance.next().unwrap_or(&0);
            if on_the_way.is_empty() && started.is_empty() {
                break;
            }
            if started.is_empty() || (pick % 2 == 0 && !on_the_way.is_empty()) {
                let write = on_the_way.swap_remove(pick / 2 % on_the_way.len());
                gate.arrived(orders[write]).unwrap();
                let away = pick % 3 == 0 && !turned_away[write];
                if away && !starts(&mut gate, orders[write]) {
                    turned_away[write] = true;
                    gate.turned_away(orders[write]);
                    on_the_way.push(write);
                    continue;
                }
                here.push(write);
            } else {
                let write: usize = started.swap_remove(pick / 2 % started.len());
                gate.completed(orders[write].number).unwrap();
                completed[write] = true;
                left -= 1;
            }
            for index in (0..here.len()).rev() {
                let write = here[index];
                if starts(&mut gate, orders[write]) {
                    prop_assert!(after[write].iter().all(|other| completed[*other]));
                    here.swap_remove(index);
                    started.push(write);
                }
            }
            // Nothing on the way, nothing started: then nothing may wait.
            prop_assert!(!on_the_way.is_empty() || !started.is_empty() || here.is_empty());
        }
        prop_assert_eq!(left, 0);
    }

    /// Whatever a hostile source says, bounds hold, and what is woken may start.
    #[test]
    fn any_orders_are_taken_or_refused(
        steps in prop::collection::vec((0u32..300, any::<u128>(), any::<bool>()), 0..300),
    ) {
        let mut gate = Gate::default();
        for (number, beside, completes) in steps {
            let order = order(number, beside);
            match completes {
                true => { let _ = gate.completed(number); }
                false if gate.arrived(order).is_ok() => { starts(&mut gate, order); }
                false => {}
            }
            while gate.next_to_wake().is_some() {}
            prop_assert!(gate.early.len() <= 300 && gate.done.floor <= 301);
            prop_assert!(gate.done.above & 1 == 0);
        }
    }
}
