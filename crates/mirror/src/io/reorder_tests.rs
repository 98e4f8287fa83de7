use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;

fn starts(buffer: &mut ReorderBuffer, order: WriteOrder) -> bool {
    buffer.may_start(order, Waker::noop())
}

fn order(number: u32, concurrent: u128) -> WriteOrder {
    WriteOrder { number, concurrent }
}

#[test]
fn write_waits_only_for_completed_predecessors() {
    let mut source = Numbering::default();
    let (a, b) = (source.begin(1), source.begin(1));
    source.completed(a);
    let c = source.begin(1);
    source.completed(b);
    let d = source.begin(1);
    let [a, b, c, d] = [a, b, c, d].map(|numbers| numbers.first);
    assert_eq!((a, b), (order(1, 0), order(2, 0b1)));
    assert_eq!((c, d), (order(3, 0b01), order(4, 0b001)));
    let mut buffer = ReorderBuffer::default();
    for order in [d, b, c, a] {
        buffer.arrived(order).unwrap();
    }
    assert!(starts(&mut buffer, a) && starts(&mut buffer, b) && !starts(&mut buffer, c));
    buffer.completed(a.number).unwrap();
    assert!(buffer.next_to_wake().is_some() && buffer.next_to_wake().is_none());
    assert!(starts(&mut buffer, c), "b is slow, and c ran concurrently");
    assert!(!starts(&mut buffer, d), "b had completed when d began");
    buffer.completed(c.number).unwrap();
    assert!(buffer.next_to_wake().is_none());
    buffer.completed(b.number).unwrap();
    assert!(buffer.next_to_wake().is_some() && starts(&mut buffer, d));
}

#[test]
fn parts_have_own_numbers_and_complete_together() {
    let mut source = Numbering::default();
    let (long, short) = (source.begin(3), source.begin(1));
    assert_eq!((long.first, short.first), (order(1, 0), order(4, 0b111)));
    source.completed(long);
    assert_eq!(source.begin(1).first, order(5, 0b0001));
    // Longer than can be listed.
    let huge = source.begin(200);
    assert_eq!(source.begin(1).first, order(206, u128::MAX));
    source.completed(huge);
    assert_eq!(source.begin(1).first, order(207, 0b1));
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut source = Numbering { next: u32::MAX, running: 0 };
    let done = CompletedWrites { floor: u64::from(u32::MAX), above: 0 };
    let mut buffer = ReorderBuffer { done, waiting: BTreeMap::new() };
    let (last, first) = (source.begin(1), source.begin(1));
    source.completed(last);
    let second = source.begin(1);
    assert_eq!((first.first, second.first), (order(0, 0b1), order(1, 0b01)));
    for numbers in [second, first, last] {
        buffer.arrived(numbers.first).unwrap();
    }
    assert!(starts(&mut buffer, first.first) && !starts(&mut buffer, second.first));
    buffer.completed(last.first.number).unwrap();
    assert!(starts(&mut buffer, second.first));
}

#[test]
fn invalid_orders_are_refused() {
    let mut buffer = ReorderBuffer::default();
    assert_eq!(buffer.arrived(order(0, 0)), Err(OutOfOrder));
    assert_eq!(buffer.arrived(order(1 + ORDER_WINDOW, 0)), Err(OutOfOrder));
    buffer.arrived(order(2, 0)).unwrap();
    assert_eq!(buffer.arrived(order(2, 1)), Err(OutOfOrder), "the number is already waiting");
    buffer.arrived(order(1, 0)).unwrap();
    buffer.completed(1).unwrap();
    assert_eq!(buffer.arrived(order(1, 0)), Err(OutOfOrder), "it has completed");
    assert_eq!(buffer.completed(1), Err(OutOfOrder));
    // Beyond the window of the oldest: the write waits, whatever it lists.
    let far = order(2 + CONCURRENT_MAX + 1, u128::MAX);
    buffer.arrived(far).unwrap();
    assert!(!starts(&mut buffer, far));
    assert!(starts(&mut buffer, order(2 + CONCURRENT_MAX, u128::MAX)));
}

/// Simulates how long a target takes for a source's writes, with disks that take 0.8 to 1.2 ms per
/// write and 24 writes in flight, each started when another completed. A slow write delays later
/// ones, so the target takes 1.18 times as long. If every write waited for all earlier ones, it
/// would take 1.28 times as long.
#[test]
fn slow_write_delays_only_dependent_writes() {
    let mut seed = 7u64;
    let mut write_us = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        800 + (seed >> 33) % 400
    };
    let mut source = Numbering::default();
    let mut running = BinaryHeap::new();
    let mut all_numbers = Vec::new();
    let mut arrivals = VecDeque::new();
    let (mut now_us, mut source_us) = (0, 0);
    while all_numbers.len() < 20_000 || !running.is_empty() {
        while all_numbers.len() < 20_000 && running.len() < 24 {
            running.push(Reverse((now_us + write_us(), all_numbers.len())));
            arrivals.push_back((now_us, source.begin(1)));
            all_numbers.push(arrivals[arrivals.len() - 1].1);
        }
        if let Some(Reverse((at_us, index))) = running.pop() {
            source.completed(all_numbers[index]);
            (now_us, source_us) = (at_us, at_us);
        }
    }
    let mut buffer = ReorderBuffer::default();
    let mut here: VecDeque<WriteOrder> = VecDeque::new();
    let mut running: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let mut now_us = 0;
    while !arrivals.is_empty() || !here.is_empty() || !running.is_empty() {
        while arrivals.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            let order = arrivals.pop_front().unwrap().1.first;
            buffer.arrived(order).unwrap();
            here.push_back(order);
        }
        while here.front().is_some_and(|order| starts(&mut buffer, *order)) {
            running.push(Reverse((now_us + write_us(), here.pop_front().unwrap().number)));
        }
        let completes_us = running.peek().map(|Reverse((at_us, _))| *at_us);
        let arrives_us = arrivals.front().map(|(at_us, _)| *at_us);
        match (completes_us, arrives_us) {
            (Some(at_us), arrives) if arrives.is_none_or(|arrives| at_us <= arrives) => {
                buffer.completed(running.pop().unwrap().0.1).unwrap();
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
    /// Writes may arrive in any order, be withdrawn while they wait, and complete in any order. A
    /// write that began at the source after another had completed starts at the target after that
    /// one has completed there, and all writes start.
    #[test]
    fn any_arrival_order_preserves_dependencies(
        steps in prop::collection::vec((any::<bool>(), any::<usize>()), 1..60),
        many in 1u32..100,
        shuffle in prop::collection::vec(any::<usize>(), 200),
    ) {
        let mut source = Numbering::default();
        let mut orders: Vec<WriteOrder> = Vec::new();
        let mut running = Vec::new();
        // For each write, the writes that had completed when it began.
        let mut after: Vec<Vec<usize>> = Vec::new();
        let mut done = Vec::new();
        for (begin, which) in steps {
            if begin || running.is_empty() {
                // Its parts are sent as separate writes.
                let parts = if which % 8 == 0 { many } else { 1 + which as u32 % 3 };
                let numbers = source.begin(parts);
                let from = orders.len();
                let WriteOrder { number, concurrent } = numbers.first;
                orders.extend((0..parts).map(|part| {
                    let earlier = concurrent.checked_shl(part).unwrap_or(0);
                    order(number + part, earlier | ones(part))
                }));
                after.extend(std::iter::repeat_n(done.clone(), parts as usize));
                running.push((numbers, from..orders.len()));
            } else {
                let (numbers, write) = running.swap_remove(which % running.len());
                source.completed(numbers);
                done.extend(write);
            }
        }
        let mut buffer = ReorderBuffer::default();
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
                buffer.arrived(orders[write]).unwrap();
                let away = pick % 3 == 0 && !turned_away[write];
                if away && !starts(&mut buffer, orders[write]) {
                    turned_away[write] = true;
                    buffer.withdrawn(orders[write]);
                    on_the_way.push(write);
                    continue;
                }
                here.push(write);
            } else {
                let write: usize = started.swap_remove(pick / 2 % started.len());
                buffer.completed(orders[write].number).unwrap();
                completed[write] = true;
                left -= 1;
            }
            for index in (0..here.len()).rev() {
                let write = here[index];
                if starts(&mut buffer, orders[write]) {
                    prop_assert!(after[write].iter().all(|other| completed[*other]));
                    here.swap_remove(index);
                    started.push(write);
                }
            }
            // If nothing is in transit and nothing is running, nothing may be waiting.
            prop_assert!(!on_the_way.is_empty() || !started.is_empty() || here.is_empty());
        }
        prop_assert_eq!(left, 0);
    }

    /// With any input from a hostile source, the limits hold and woken writes may start.
    #[test]
    fn hostile_orders_stay_within_limits(
        steps in prop::collection::vec((0u32..300, any::<u128>(), any::<bool>()), 0..300),
    ) {
        let mut buffer = ReorderBuffer::default();
        for (number, concurrent, completes) in steps {
            let order = order(number, concurrent);
            match completes {
                true => { let _ = buffer.completed(number); }
                false if buffer.arrived(order).is_ok() => { starts(&mut buffer, order); }
                false => {}
            }
            while buffer.next_to_wake().is_some() {}
            prop_assert!(buffer.waiting.len() <= 300 && buffer.done.floor <= 301);
            prop_assert!(buffer.done.above & 1 == 0);
        }
    }
}
