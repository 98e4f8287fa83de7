//! The order of asynchronous writes, without a round trip for it: a pure core for both ends.
//!
//! Writes that were under way together at the source share an *order epoch*; one that began after
//! another had completed has a later one. Each write tells its epoch and how many writes the epoch
//! before it has; one that the way to the target cuts into parts counts as that many. The target
//! starts writes of an epoch when all of the epochs before have completed, however the network
//! shuffled them. So what is on the target is always what was on the source at some moment, but for
//! writes that nobody had been promised.
//!
//! Order epochs count within one attachment; they are not the epochs of promotions.

use std::collections::VecDeque;
use std::task::Waker;

use crate::limits::ORDER_EPOCHS_MAX;

/// Where a write stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its order epoch; the first of an attachment is 1.
    pub epoch: u64,
    /// Writes of the epoch before it; 0 for the first epoch.
    pub before: u32,
}

/// The source's end: hands out order epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    epoch: u64,
    /// Writes of this epoch, and of the one before: the parts of those that go in parts.
    count: u32,
    before: u32,
}

impl Default for Numbering {
    fn default() -> Numbering {
        Numbering { epoch: 1, count: 0, before: 0 }
    }
}

impl Numbering {
    /// A write begins that goes to the target in so many parts.
    pub(crate) fn begin(&mut self, parts: u32) -> Order {
        self.count += parts;
        Order { epoch: self.epoch, before: self.before }
    }

    /// A write of this order epoch has completed towards its host: what begins from now on may
    /// depend on it.
    pub(crate) fn completed(&mut self, epoch: u64) {
        if epoch == self.epoch {
            (self.epoch, self.before, self.count) = (self.epoch + 1, self.count, 0);
        }
    }
}

/// A write that the order forbids: the source is broken, or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a write out of order")]
pub struct Disorder;

/// An epoch as the target sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    completed: u32,
    /// Told by the writes of the next.
    expected: Option<u32>,
}

/// The target's end: when a write may start.
#[derive(Debug)]
pub(crate) struct Gate {
    /// All epochs before this one have completed.
    floor: u64,
    /// Epochs from the floor on.
    seen: VecDeque<Seen>,
    waiting: Vec<(u64, Waker)>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { floor: 1, seen: VecDeque::new(), waiting: Vec::new() }
    }
}

impl Gate {
    fn at(&mut self, epoch: u64) -> Result<&mut Seen, Disorder> {
        let index = epoch.checked_sub(self.floor).ok_or(Disorder)?;
        if index >= ORDER_EPOCHS_MAX {
            return Err(Disorder);
        }
        let index = index as usize;
        while self.seen.len() <= index {
            self.seen.push_back(Seen::default());
        }
        Ok(&mut self.seen[index])
    }

    /// A write has arrived. It may start when [`Gate::may_start`] says so.
    ///
    /// # Errors
    /// When it belongs to an epoch that has completed, lies too far ahead, or contradicts what
    /// others of its epoch said.
    pub(crate) fn arrived(&mut self, order: Order) -> Result<(), Disorder> {
        self.at(order.epoch)?;
        // What it tells of an epoch that has completed is known already.
        if order.epoch > self.floor {
            let before = self.at(order.epoch - 1)?;
            if before.expected.is_some_and(|known| known != order.before) {
                return Err(Disorder);
            }
            before.expected = Some(order.before);
            self.advance()?;
        }
        Ok(())
    }

    /// Whether a write of this epoch may start; if not, `waker` is woken when it may.
    pub(crate) fn may_start(&mut self, epoch: u64, waker: &Waker) -> bool {
        if epoch <= self.floor {
            return true;
        }
        if !self.waiting.iter().any(|(_, known)| known.will_wake(waker)) {
            self.waiting.push((epoch, waker.clone()));
        }
        false
    }

    /// A write of this epoch has completed.
    ///
    /// # Errors
    /// When its epoch had fewer writes.
    pub(crate) fn completed(&mut self, epoch: u64) -> Result<(), Disorder> {
        self.at(epoch)?.completed += 1;
        self.advance()
    }

    fn advance(&mut self) -> Result<(), Disorder> {
        while let Some(Seen { completed, expected: Some(expected) }) = self.seen.front() {
            if completed > expected {
                return Err(Disorder);
            }
            if completed < expected {
                break;
            }
            self.seen.pop_front();
            self.floor += 1;
        }
        Ok(())
    }

    /// The waker of one that may start now. Ask again until there is none.
    pub(crate) fn next_to_wake(&mut self) -> Option<Waker> {
        let index = self.waiting.iter().position(|(epoch, _)| *epoch <= self.floor)?;
        Some(self.waiting.swap_remove(index).1)
    }

    /// All who wait: the attachment has ended.
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        self.waiting.drain(..).map(|(_, waker)| waker).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    fn starts(gate: &mut Gate, order: Order) -> bool {
        gate.may_start(order.epoch, Waker::noop())
    }

    #[test]
    fn dependent_writes_start_in_order_and_others_together() {
        let mut source = Numbering::default();
        let (a, b) = (source.begin(1), source.begin(1));
        source.completed(a.epoch);
        let c = source.begin(1);
        source.completed(b.epoch);
        let d = source.begin(1);
        assert_eq!((a.epoch, b.epoch, c.epoch, d.epoch), (1, 1, 2, 2));
        assert_eq!((c.before, d.before), (2, 2));
        let mut gate = Gate::default();
        for order in [d, b, c, a] {
            gate.arrived(order).unwrap();
        }
        assert!(starts(&mut gate, a) && starts(&mut gate, b) && !starts(&mut gate, c));
        gate.completed(a.epoch).unwrap();
        assert!(!starts(&mut gate, c));
        gate.completed(b.epoch).unwrap();
        assert!(gate.next_to_wake().is_some());
        assert!(starts(&mut gate, c) && starts(&mut gate, d));
    }

    #[test]
    fn lies_are_refused() {
        let order = |epoch, before| Order { epoch, before };
        let mut gate = Gate::default();
        assert_eq!(gate.arrived(order(0, 0)), Err(Disorder));
        assert_eq!(gate.arrived(order(1 + ORDER_EPOCHS_MAX, 1)), Err(Disorder));
        gate.arrived(order(2, 1)).unwrap();
        assert_eq!(gate.arrived(order(2, 2)), Err(Disorder), "it contradicts the one before");
        gate.arrived(order(1, 0)).unwrap();
        gate.completed(1).unwrap();
        assert_eq!(gate.arrived(order(1, 0)), Err(Disorder), "the epoch has ended");
        assert_eq!(gate.completed(1), Err(Disorder));
    }

    proptest! {
        /// However writes arrive and complete: one that began at the source after another had
        /// completed there starts at the target after that one has completed, and all start.
        #[test]
        fn any_shuffle_keeps_the_order(
            steps in prop::collection::vec((any::<bool>(), any::<usize>()), 1..60),
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
                    let parts = 1 + which % 3;
                    let order = source.begin(parts as u32);
                    under_way.push(orders.len()..orders.len() + parts);
                    orders.extend(std::iter::repeat_n(order, parts));
                    after.extend(std::iter::repeat_n(done.clone(), parts));
                } else {
                    let write: Range<usize> = under_way.swap_remove(which % under_way.len());
                    source.completed(orders[write.start].epoch);
                    done.extend(write);
                }
            }
            let mut gate = Gate::default();
            let mut on_the_way: Vec<usize> = (0..orders.len()).collect();
            let (mut here, mut started, mut completed) = (Vec::new(), Vec::new(), Vec::new());
            let mut chance = shuffle.iter().cycle();
            while completed.len() < orders.len() {
                let pick = *chance.next().unwrap_or(&0);
                match pick % 3 {
                    0 if !on_the_way.is_empty() => {
                        let write = on_the_way.swap_remove(pick / 3 % on_the_way.len());
                        gate.arrived(orders[write]).unwrap();
                        here.push(write);
                    }
                    1 if !started.is_empty() => {
                        let write: usize = started.swap_remove(pick / 3 % started.len());
                        gate.completed(orders[write].epoch).unwrap();
                        completed.push(write);
                    }
                    _ => {}
                }
                let before = here.len() + on_the_way.len() + started.len();
                for index in (0..here.len()).rev() {
                    let write = here[index];
                    if starts(&mut gate, orders[write]) {
                        prop_assert!(after[write].iter().all(|other| completed.contains(other)));
                        here.swap_remove(index);
                        started.push(write);
                    }
                }
                // Nothing on the way, nothing started: then nothing may wait.
                prop_assert!(!on_the_way.is_empty() || !started.is_empty() || here.is_empty());
                prop_assert_eq!(before, here.len() + on_the_way.len() + started.len());
                if on_the_way.is_empty() && started.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(completed.len(), orders.len());
        }
    }
}
