//! Range table: decides which calls may access their bytes now. No locks, tasks or clocks.
//!
//! Guarantees:
//! - two overlapping writes never run at the same time and run in order of arrival. Writes that do
//!   not overlap never wait for each other: bytes are compared, not chunks;
//! - a read waits for earlier overlapping writes, and no call waits for a read;
//! - every call waits only for earlier calls, so the oldest always runs. There is no deadlock and
//!   no starvation.
//!
//! Each call counts the earlier calls that block it, and a call that ends decrements those counts.
//! All calls are kept in one dense list that is scanned from end to end. With a queue depth of 128
//! the list has 4 KiB, fits the nearest cache, and needs no allocation.

use std::task::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAccess {
    Read,
    Write,
    /// Copies or compares it for the mirror itself. Blocks like a write.
    Copy,
}

/// Number of a call in the table. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallNumber(u64);

#[derive(Debug)]
struct RangeCall {
    number: CallNumber,
    start: u64,
    end: u64,
    access: RangeAccess,
    /// Earlier overlapping calls that have not ended.
    blockers: u32,
    waker: Option<Waker>,
}

impl RangeCall {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// Calls in order of arrival, with the ranges that they use.
#[derive(Debug, Default)]
pub(crate) struct RangeTable {
    calls: Vec<RangeCall>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeDecision {
    /// It may run. A write has to [`RangeTable::leave`] at its end; a read need not.
    Granted(CallNumber),
    /// It waits until [`RangeTable::is_granted`].
    Blocked(CallNumber),
}

impl RangeTable {
    /// Enters a call for `start..end`, which is not empty.
    pub(crate) fn enter(&mut self, start: u64, end: u64, access: RangeAccess) -> RangeDecision {
        debug_assert!(start < end, "the range is not empty");
        let blocks =
            |call: &&RangeCall| call.access != RangeAccess::Read && call.overlaps(start, end);
        let blockers = self.calls.iter().filter(blocks).count() as u32;
        let number = CallNumber(self.next);
        if blockers == 0 && access == RangeAccess::Read {
            return RangeDecision::Granted(number);
        }
        self.next += 1;
        self.calls.push(RangeCall { number, start, end, access, blockers, waker: None });
        if blockers == 0 {
            return RangeDecision::Granted(number);
        }
        RangeDecision::Blocked(number)
    }

    fn find(&mut self, number: CallNumber) -> Option<&mut RangeCall> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    /// True once the call may run. Otherwise `waker` is woken when it may.
    pub(crate) fn is_granted(&mut self, number: CallNumber, waker: &Waker) -> bool {
        let Some(call) = self.find(number) else { return true };
        if call.blockers == 0 {
            return true;
        }
        match &mut call.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        false
    }

    /// Removes a call. The wakers of calls that may run now are passed to `wake`.
    pub(crate) fn leave(&mut self, number: CallNumber, mut wake: impl FnMut(Waker)) {
        let Some(index) = self.calls.iter().position(|call| call.number == number) else { return };
        let left = self.calls.swap_remove(index);
        if left.access == RangeAccess::Read {
            return;
        }
        for call in &mut self.calls {
            if call.number > number && call.overlaps(left.start, left.end) {
                call.blockers -= 1;
                if call.blockers == 0
                    && let Some(waker) = call.waker.take()
                {
                    wake(waker);
                }
            }
        }
    }

    fn of_hosts(&self) -> impl Iterator<Item = &RangeCall> {
        self.calls.iter().filter(|call| call.access != RangeAccess::Copy)
    }

    /// Host calls in the table: all except reads that were granted at once.
    pub(crate) fn len(&self) -> usize {
        self.of_hosts().count()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.of_hosts().filter(|call| call.blockers > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_granted_now(ranges: &mut RangeTable, number: CallNumber) -> bool {
        ranges.is_granted(number, Waker::noop())
    }

    fn change(ranges: &mut RangeTable, start: u64, end: u64) -> (CallNumber, bool) {
        match ranges.enter(start, end, RangeAccess::Write) {
            RangeDecision::Granted(number) => (number, true),
            RangeDecision::Blocked(number) => (number, false),
        }
    }

    #[test]
    fn overlapping_writes_are_granted_in_order() {
        let mut ranges = RangeTable::default();
        let (first, _) = change(&mut ranges, 0, 8);
        assert!(change(&mut ranges, 8, 16).1, "adjacent to the first, not overlapping");
        let (second, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        // It overlaps the second call, which came earlier, but not the first.
        let (third, goes_now) = change(&mut ranges, 10, 11);
        assert!(!goes_now && ranges.waiting() == 2);
        ranges.leave(first, |_| {});
        assert!(!is_granted_now(&mut ranges, second), "it waits for 8..16 too");
        ranges.leave(CallNumber(1), |_| {});
        assert!(is_granted_now(&mut ranges, second) && !is_granted_now(&mut ranges, third));
        ranges.leave(second, |_| {});
        assert!(is_granted_now(&mut ranges, third));
        ranges.leave(third, |_| {});
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
    }

    #[test]
    fn abandoned_call_unblocks_later_calls() {
        let mut ranges = RangeTable::default();
        let (first, _) = change(&mut ranges, 0, 8);
        let (second, _) = change(&mut ranges, 0, 16);
        let (third, _) = change(&mut ranges, 12, 16);
        ranges.leave(second, |_| {});
        assert!(is_granted_now(&mut ranges, third), "no earlier call overlaps any more");
        ranges.leave(first, |_| {});
        assert_eq!(ranges.len(), 1, "the third");
    }

    #[test]
    fn reads_wait_for_writes_but_block_nothing() {
        let mut ranges = RangeTable::default();
        assert!(matches!(ranges.enter(0, 4, RangeAccess::Read), RangeDecision::Granted(_)));
        let (first, goes_now) = change(&mut ranges, 0, 4);
        assert!(goes_now);
        let RangeDecision::Blocked(read) = ranges.enter(2, 3, RangeAccess::Read) else {
            panic!("the ranges overlap")
        };
        let (second, _) = change(&mut ranges, 2, 3);
        ranges.leave(first, |_| {});
        assert!(is_granted_now(&mut ranges, read) && is_granted_now(&mut ranges, second));
        ranges.leave(read, |_| {});
        assert!(is_granted_now(&mut ranges, second));
    }

    #[test]
    fn copies_block_calls_but_are_not_counted() {
        let mut ranges = RangeTable::default();
        let RangeDecision::Granted(copy) = ranges.enter(0, 8, RangeAccess::Copy) else {
            panic!("no other call is there")
        };
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
        let (write, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        let RangeDecision::Blocked(read) = ranges.enter(0, 4, RangeAccess::Read) else {
            panic!("the ranges overlap")
        };
        assert!(matches!(ranges.enter(8, 9, RangeAccess::Copy), RangeDecision::Blocked(_)));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 2));
        ranges.leave(copy, |_| {});
        assert!(is_granted_now(&mut ranges, write) && is_granted_now(&mut ranges, read));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64, u64, bool),
        /// A running call ends, or a waiting call is abandoned.
        Leave(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..40, 1u64..12, any::<bool>()).prop_map(|(start, len, read)| Step::Enter(
                start,
                start + len,
                read
            )),
            any::<usize>().prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// At every moment, a call may run exactly when no earlier write in the table overlaps it.
        #[test]
        fn grants_match_model(steps in prop::collection::vec(any_step(), 0..80)) {
            let mut ranges = RangeTable::default();
            let mut model: Vec<(CallNumber, u64, u64, RangeAccess)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(start, end, read) => {
                        let access = if read { RangeAccess::Read } else { RangeAccess::Write };
                        match ranges.enter(start, end, access) {
                            RangeDecision::Granted(_) if read => {}
                            RangeDecision::Granted(number) | RangeDecision::Blocked(number) => {
                                model.push((number, start, end, access));
                            }
                        }
                    }
                    Step::Leave(which) if !model.is_empty() => {
                        let (number, ..) = model.remove(which % model.len());
                        ranges.leave(number, |_| {});
                    }
                    Step::Leave(_) => {}
                }
                let mut waiting = 0;
                for (index, (number, start, end, _)) in model.iter().enumerate() {
                    let blocked = model[..index].iter().any(|(_, from, to, access)| {
                        *access == RangeAccess::Write && from < end && start < to
                    });
                    waiting += usize::from(blocked);
                    prop_assert_eq!(is_granted_now(&mut ranges, *number), !blocked);
                }
                prop_assert_eq!((ranges.len(), ranges.waiting()), (model.len(), waiting));
                let oldest = model.first().map(|call| call.0);
                prop_assert!(oldest.is_none_or(|oldest| is_granted_now(&mut ranges, oldest)));
            }
        }
    }
}
