//! Which calls may touch their bytes now: a pure core without locks, tasks or clocks.
//!
//! Promises:
//! - two changes that overlap are never under way at the same time, and go in the order in which
//!   they came; two that do not overlap never wait for each other (bytes are compared, not chunks);
//! - a read waits for the changes before it that overlap it, and nothing waits for a read;
//! - every call waits for calls before it alone, so the oldest always goes: there is no deadlock and
//!   nobody starves.
//!
//! Each call counts those before it that it has to wait for. One that ends takes itself out of the
//! counts of those behind it. All are kept in one dense list that is looked through from end to
//! end: with a queue of 128 it is 4 KiB, in the nearest cache, and nothing is allocated.

use std::task::Waker;

/// What a call does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Looks at it.
    Read,
    /// Changes it.
    Change,
    /// Copies or compares it, for the mirror's own sake: as a change to all others.
    Copy,
}

/// A call that was let in. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u64);

#[derive(Debug)]
struct Call {
    number: Number,
    start: u64,
    end: u64,
    access: Access,
    /// Calls before it that overlap and have not ended.
    blockers: u32,
    waker: Option<Waker>,
}

impl Call {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// See the module's promises.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    calls: Vec<Call>,
    next: u64,
}

/// What becomes of a call that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It goes; a change is to [`Ranges::leave`] at its end, a read needs not.
    Go(Number),
    /// It waits until [`Ranges::may_go`].
    Wait(Number),
}

impl Ranges {
    /// A call of `start..end` (not empty) asks.
    pub(crate) fn enter(&mut self, start: u64, end: u64, access: Access) -> Entered {
        debug_assert!(start < end, "calls have a range");
        let blocks = |call: &&Call| call.access != Access::Read && call.overlaps(start, end);
        let blockers = self.calls.iter().filter(blocks).count() as u32;
        let number = Number(self.next);
        if blockers == 0 && access == Access::Read {
            return Entered::Go(number);
        }
        self.next += 1;
        self.calls.push(Call { number, start, end, access, blockers, waker: None });
        if blockers == 0 {
            return Entered::Go(number);
        }
        Entered::Wait(number)
    }

    fn find(&mut self, number: Number) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    /// True once the call may go. If not, `waker` is woken when it may.
    pub(crate) fn may_go(&mut self, number: Number, waker: &Waker) -> bool {
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

    /// A call has ended, or gives up waiting. Those that may go now are handed to `wake`.
    pub(crate) fn leave(&mut self, number: Number, mut wake: impl FnMut(Waker)) {
        let Some(index) = self.calls.iter().position(|call| call.number == number) else { return };
        let left = self.calls.swap_remove(index);
        if left.access == Access::Read {
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

    fn of_hosts(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.access != Access::Copy)
    }

    /// Calls of hosts that were let in and have not ended, reads that go excepted.
    pub(crate) fn len(&self) -> usize {
        self.of_hosts().count()
    }

    /// Those of them that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.of_hosts().filter(|call| call.blockers > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn goes(ranges: &mut Ranges, number: Number) -> bool {
        ranges.may_go(number, Waker::noop())
    }

    fn change(ranges: &mut Ranges, start: u64, end: u64) -> (Number, bool) {
        match ranges.enter(start, end, Access::Change) {
            Entered::Go(number) => (number, true),
            Entered::Wait(number) => (number, false),
        }
    }

    #[test]
    fn neighbours_do_not_wait_and_overlapping_ones_go_in_order() {
        let mut ranges = Ranges::default();
        let (first, _) = change(&mut ranges, 0, 8);
        assert!(change(&mut ranges, 8, 16).1, "it touches the first and no more");
        let (second, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        // It does not overlap the first; but the second, which came before it.
        let (third, goes_now) = change(&mut ranges, 10, 11);
        assert!(!goes_now && ranges.waiting() == 2);
        ranges.leave(first, |_| {});
        assert!(!goes(&mut ranges, second), "it waits for 8..16 too");
        ranges.leave(Number(1), |_| {});
        assert!(goes(&mut ranges, second) && !goes(&mut ranges, third));
        ranges.leave(second, |_| {});
        assert!(goes(&mut ranges, third));
        ranges.leave(third, |_| {});
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
    }

    #[test]
    fn one_that_gives_up_lets_those_behind_it_go() {
        let mut ranges = Ranges::default();
        let (first, _) = change(&mut ranges, 0, 8);
        let (second, _) = change(&mut ranges, 0, 16);
        let (third, _) = change(&mut ranges, 12, 16);
        ranges.leave(second, |_| {});
        assert!(goes(&mut ranges, third), "nothing before it overlaps any more");
        ranges.leave(first, |_| {});
        assert_eq!(ranges.len(), 1, "the third");
    }

    #[test]
    fn reads_wait_for_changes_and_nothing_waits_for_reads() {
        let mut ranges = Ranges::default();
        assert!(matches!(ranges.enter(0, 4, Access::Read), Entered::Go(_)));
        let (first, goes_now) = change(&mut ranges, 0, 4);
        assert!(goes_now);
        let Entered::Wait(read) = ranges.enter(2, 3, Access::Read) else { panic!("it overlaps") };
        let (second, _) = change(&mut ranges, 2, 3);
        ranges.leave(first, |_| {});
        assert!(goes(&mut ranges, read) && goes(&mut ranges, second));
        ranges.leave(read, |_| {});
        assert!(goes(&mut ranges, second));
    }

    #[test]
    fn what_the_mirror_copies_holds_others_up_and_is_no_call_of_a_host() {
        let mut ranges = Ranges::default();
        let Entered::Go(copy) = ranges.enter(0, 8, Access::Copy) else { panic!("it is alone") };
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
        let (write, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        let Entered::Wait(read) = ranges.enter(0, 4, Access::Read) else { panic!("it overlaps") };
        assert!(matches!(ranges.enter(8, 9, Access::Copy), Entered::Wait(_)));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 2));
        ranges.leave(copy, |_| {});
        assert!(goes(&mut ranges, write) && goes(&mut ranges, read));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64, u64, bool),
        /// One of those that may go ends, or one that waits gives up.
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
        /// At each moment exactly those may go that overlap no change that came before and is there.
        #[test]
        fn who_may_go_is_exact(steps in prop::collection::vec(any_step(), 0..80)) {
            let mut ranges = Ranges::default();
            let mut model: Vec<(Number, u64, u64, Access)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(start, end, read) => {
                        let access = if read { Access::Read } else { Access::Change };
                        match ranges.enter(start, end, access) {
                            Entered::Go(_) if read => {}
                            Entered::Go(number) | Entered::Wait(number) => {
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
                        *access == Access::Change && from < end && start < to
                    });
                    waiting += usize::from(blocked);
                    prop_assert_eq!(goes(&mut ranges, *number), !blocked);
                }
                prop_assert_eq!((ranges.len(), ranges.waiting()), (model.len(), waiting));
                let oldest = model.first().map(|call| call.0);
                prop_assert!(oldest.is_none_or(|oldest| goes(&mut ranges, oldest)));
            }
        }
    }
}
