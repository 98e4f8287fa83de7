//! Bad ranges: parts of the volume that a resync could not copy, because one leg cannot read or
//! write them.
//!
//! Invariants: the list is in ascending order without overlaps, and has at most [`BAD_RANGES_MAX`]
//! entries; each range stays marked as out of sync. Ranges are retried one after the other, and the
//! caller bounds each attempt. A retry copies whole bits, and bypasses the queue of an asynchronous
//! target, so the target gets a list of whole bits ([`BadRanges::in_whole_bits`]).

use std::ops::Range;

use crate::limits::BAD_RANGES_MAX;
use crate::named;

named! {
    /// Reason why a range could not be copied.
    pub enum BadRangeCause {
        /// The source cannot read it.
        SourceUnreadable = "source-unreadable",
        /// The source cannot rewrite it after a crash: its data may not be durable there.
        SourceUnwritable = "source-unwritable",
        /// The target cannot write it.
        TargetUnwritable = "target-unwritable",
        /// This replica is the target and lacks it. The source knows why.
        NotReceived = "not-received",
    }
}

/// A part of the volume that differs and cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// Offset, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Why.
    pub cause: BadRangeCause,
}

impl BadRange {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The bad ranges of one peer.
#[derive(Debug, Default)]
pub(crate) struct BadRanges {
    list: Vec<BadRange>,
    /// Where the next retry begins, in bytes.
    retry_at: u64,
}

/// The list is full: the device has failed rather than some of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyBadRanges;

impl BadRanges {
    pub(crate) fn list(&self) -> &[BadRange] {
        &self.list
    }

    /// The ranges rounded to whole bits of a volume of `usable_bytes`, in ascending order, merged.
    pub(crate) fn in_whole_bits(&self, bit_bytes: u64, usable_bytes: u64) -> Vec<Range<u64>> {
        let mut list: Vec<Range<u64>> = Vec::new();
        for bad in &self.list {
            let start = bad.offset - bad.offset % bit_bytes;
            let end = bad.end().next_multiple_of(bit_bytes).min(usable_bytes);
            match list.last_mut().filter(|last| last.end >= start) {
                Some(last) => last.end = end,
                None => list.push(start..end),
            }
        }
        list
    }

    /// Replaces the bad ranges within a range by `found`, in ascending order.
    pub(crate) fn replace(
        &mut self,
        offset: u64,
        len: u64,
        found: &[BadRange],
    ) -> Result<(), TooManyBadRanges> {
        let end = offset + len;
        let mut list: Vec<BadRange> = Vec::with_capacity(self.list.len() + found.len() + 1);
        let mut put = |bad: BadRange| match list.last_mut() {
            Some(last) if last.end() == bad.offset && last.cause == bad.cause => {
                last.len += bad.len
            }
            _ if bad.len > 0 => list.push(bad),
            _ => {}
        };
        let cut = |bad: &BadRange, from: u64, to: u64| {
            let start = bad.offset.max(from);
            BadRange { offset: start, len: bad.end().min(to).saturating_sub(start), ..*bad }
        };
        self.list.iter().map(|bad| cut(bad, 0, offset)).for_each(&mut put);
        found.iter().copied().for_each(&mut put);
        self.list.iter().map(|bad| cut(bad, end, u64::MAX)).for_each(&mut put);
        let fits = list.len() <= BAD_RANGES_MAX;
        list.truncate(BAD_RANGES_MAX);
        self.list = list;
        if fits { Ok(()) } else { Err(TooManyBadRanges) }
    }

    /// The first bad range that overlaps these bytes.
    pub(crate) fn overlap(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let overlaps = |bad: &&BadRange| bad.offset < bytes.end && bytes.start < bad.end();
        self.list.iter().find(overlaps).map(|bad| bad.offset..bad.end())
    }

    /// The next part to retry, of at most `most` bytes; `None` when there are no bad ranges.
    pub(crate) fn next_retry(&mut self, most: u64) -> Option<Range<u64>> {
        let from = self.retry_at;
        let next = self.list.iter().find(|bad| bad.end() > from);
        let (bad, from) = match next {
            Some(bad) => (bad, from.max(bad.offset)),
            None => (self.list.first()?, self.list.first()?.offset),
        };
        let part = from..bad.end().min(from + most);
        self.retry_at = part.end;
        Some(part)
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAUSE: BadRangeCause = BadRangeCause::SourceUnreadable;

    fn bad(offset: u64, len: u64) -> BadRange {
        BadRange { offset, len, cause: CAUSE }
    }

    proptest! {
        /// Behaves like a vector of booleans, and lists each range once, in order.
        #[test]
        fn bad_ranges_match_vector_of_booleans(
            steps in prop::collection::vec((0u64..40, 1u64..9, any::<u8>()), 0..30),
        ) {
            let (mut ranges, mut model) = (BadRanges::default(), [false; 64]);
            for (offset, len, bits) in steps {
                let is_bad = |at: u64| bits >> (at % 8) & 1 == 1;
                let found: Vec<_> =
                    (offset..offset + len).filter(|at| is_bad(*at)).map(|at| bad(at, 1)).collect();
                prop_assert_eq!(ranges.replace(offset, len, &found), Ok(()));
                (offset..offset + len).for_each(|at| model[at as usize] = is_bad(at));
                for at in 0..64 {
                    prop_assert_eq!(ranges.overlap(&(at..at + 1)).is_some(), model[at as usize]);
                }
                let apart = |pair: &[BadRange]| pair[0].end() < pair[1].offset;
                prop_assert!(ranges.list().windows(2).all(apart));
            }
        }
    }

    #[test]
    fn whole_bits_of_bad_ranges_are_merged() {
        let mut ranges = BadRanges::default();
        ranges.replace(0, 100, &[bad(10, 1), bad(13, 1), bad(17, 2), bad(33, 2)]).expect("room");
        assert_eq!(ranges.in_whole_bits(8, 38), [8..24, 32..38]);
        assert_eq!(ranges.in_whole_bits(4, 40), [8..20, 32..36]);
    }

    #[test]
    fn retries_take_turns_in_bounded_parts() {
        let mut ranges = BadRanges::default();
        assert_eq!(ranges.next_retry(8), None);
        ranges.replace(0, 100, &[bad(10, 20), bad(50, 4)]).expect("room");
        let next: Vec<_> = (0..5).map(|_| ranges.next_retry(8).expect("some")).collect();
        assert_eq!(next, [10..18, 18..26, 26..30, 50..54, 10..18]);
    }

    #[test]
    fn list_of_bad_ranges_is_bounded() {
        let mut ranges = BadRanges::default();
        let many: Vec<_> = (0..BAD_RANGES_MAX as u64).map(|at| bad(at * 2, 1)).collect();
        assert_eq!(ranges.replace(0, 1 << 20, &many), Ok(()));
        assert_eq!(ranges.replace(1 << 20, 9, &[bad(1 << 20, 9)]), Err(TooManyBadRanges));
        assert_eq!(ranges.list().len(), BAD_RANGES_MAX);
    }
}
