//! Segments: their uses, from free over the log since the last checkpoint to closed, and retired
//! until reads in progress have ended.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Guard of a read: segments that retire during the read are not reused until all clones are
/// dropped.
pub type ReadGuard = Arc<()>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Used by the log since the last checkpoint, or next in it.
    Log,
    /// Written before the last checkpoint; free when no map refers to it.
    Closed,
    /// No map refers to it, but reads may be in progress.
    Retired,
    /// Free, and not to be used: on a removed or evacuated device.
    Withheld,
}

/// Use of every segment.
#[derive(Debug)]
pub struct Segments {
    uses: Vec<Use>,
    free: BTreeSet<u32>,
    /// Segments of removed devices.
    withheld: Vec<Range<u32>>,
    /// Segments of an evacuated device: used only if no others are free, so that a checkpoint never
    /// lacks space that the pool has.
    drained: Option<Range<u32>>,
    /// Segments of the log since the last checkpoint, in order, then the following one.
    log: VecDeque<u32>,
    reads: ReadGuard,
    retired: VecDeque<(ReadGuard, Vec<u32>)>,
}

impl Segments {
    /// Segments of a pool: those in `log` are used by the log, other live ones are closed.
    pub fn new(count: u32, log: &[u32], is_live: impl Fn(u32) -> bool) -> Segments {
        let mut uses: Vec<Use> = (0..count)
            .map(|segment| if is_live(segment) { Use::Closed } else { Use::Free })
            .collect();
        for segment in log {
            uses[*segment as usize] = Use::Log;
        }
        let free = (0..count).filter(|segment| uses[*segment as usize] == Use::Free).collect();
        Segments {
            uses,
            free,
            withheld: Vec::new(),
            drained: None,
            log: log.iter().copied().collect(),
            reads: ReadGuard::default(),
            retired: VecDeque::new(),
        }
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        self.uses.len()
    }

    /// Number of free segments, without segments of an evacuated device.
    pub fn free(&mut self) -> usize {
        self.release();
        self.free.len()
    }

    /// True if retired segments wait for the end of reads, and become free then.
    pub fn awaits_reads(&mut self) -> bool {
        self.release();
        !self.retired.is_empty()
    }

    /// Number of segments of the log since the last checkpoint.
    pub fn in_log(&self) -> usize {
        self.log.len()
    }

    /// Appends a free segment to the log: the next one after the last, so that devices write
    /// sequentially.
    pub fn take(&mut self) -> Option<u32> {
        self.release();
        let after = self.log.back().map_or(0, |last| last + 1);
        let next = self.free.range(after..).next().or_else(|| self.free.first()).copied();
        let is_withheld = |segment: &u32| self.uses[*segment as usize] == Use::Withheld;
        let last_resort = || self.drained.clone()?.find(is_withheld);
        let segment = next.or_else(last_resort)?;
        self.free.remove(&segment);
        self.uses[segment as usize] = Use::Log;
        self.log.push_back(segment);
        Some(segment)
    }

    /// Guard for a read that begins now.
    pub fn guard(&self) -> ReadGuard {
        self.reads.clone()
    }

    /// Records a durable checkpoint from which a replay begins in `start`: closes the segments
    /// before it, and retires closed ones without live blocks.
    pub fn commit(&mut self, start: u32, is_live: impl Fn(u32) -> bool) {
        while let Some(first) = self.log.front().copied().filter(|first| *first != start) {
            self.uses[first as usize] = Use::Closed;
            self.log.pop_front();
        }
        assert!(!self.log.is_empty(), "the log begins in one of its segments");
        let mut dead = Vec::new();
        for (segment, used) in (0..).zip(&mut self.uses) {
            if *used == Use::Closed && !is_live(segment) {
                *used = Use::Retired;
                dead.push(segment);
            }
        }
        let reads = std::mem::take(&mut self.reads);
        self.retired.push_back((reads, dead));
        self.release();
    }

    /// Adds free segments after the others.
    pub fn extend(&mut self, count: u32) {
        let first = self.uses.len() as u32;
        self.uses.extend((0..count).map(|_| Use::Free));
        self.free.extend(first..first + count);
    }

    /// Excludes the segments of a range from use.
    pub fn withhold(&mut self, range: Range<u32>) {
        self.retain(&range);
        self.withheld.push(range);
    }

    /// Uses the segments of a removed device, whose place another one has got.
    pub fn restore(&mut self, range: Range<u32>) {
        self.withheld.retain(|withheld| *withheld != range);
        self.end_withholding(range);
    }

    fn end_withholding(&mut self, range: Range<u32>) {
        for segment in range {
            if self.uses[segment as usize] == Use::Withheld {
                self.uses[segment as usize] = Use::Free;
                self.free.insert(segment);
            }
        }
    }

    /// Uses segments of a range only if no others are free.
    pub fn drain(&mut self, range: Range<u32>) {
        assert!(self.drained.is_none(), "one device at a time is evacuated");
        self.retain(&range);
        self.drained = Some(range);
    }

    fn retain(&mut self, range: &Range<u32>) {
        self.release();
        for segment in range.clone() {
            if self.free.remove(&segment) {
                self.uses[segment as usize] = Use::Withheld;
            }
        }
    }

    /// Ends [`Segments::drain`]: the device is used as before, or was removed.
    pub fn end_drain(&mut self, removed: bool) {
        let Some(range) = self.drained.take() else { return };
        match removed {
            true => self.withheld.push(range),
            false => self.end_withholding(range),
        }
    }

    /// Segments of a range that are in use, and how many of them the log uses.
    pub fn in_use(&mut self, range: &Range<u32>) -> (usize, usize) {
        self.release();
        let uses = &self.uses[range.start as usize..range.end as usize];
        let count = |wanted: fn(&Use) -> bool| uses.iter().filter(|used| wanted(used)).count();
        (count(|used| *used != Use::Withheld), count(|used| *used == Use::Log))
    }

    /// True for a segment that nothing refers to.
    pub fn is_free(&self, segment: u32) -> bool {
        self.uses[segment as usize] == Use::Free
    }

    /// True for a segment that the cleaner may choose.
    pub fn is_closed(&self, segment: u32) -> bool {
        self.uses[segment as usize] == Use::Closed
    }

    fn release(&mut self) {
        // In order, because a read that began earlier may refer to segments that were retired
        // later.
        while let Some((_, dead)) =
            self.retired.pop_front_if(|(reads, _)| Arc::strong_count(reads) == 1)
        {
            for segment in dead {
                if self.withheld.iter().chain(&self.drained).any(|range| range.contains(&segment)) {
                    self.uses[segment as usize] = Use::Withheld;
                    continue;
                }
                self.uses[segment as usize] = Use::Free;
                self.free.insert(segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drained_segments_are_the_last_resort() {
        let mut segments = Segments::new(4, &[0, 1], |segment| segment == 2);
        segments.drain(1..3);
        segments.extend(1);
        assert_eq!((segments.free(), segments.in_use(&(1..3))), (2, (2, 1)));
        assert_eq!(segments.take(), Some(3));
        segments.commit(3, |_| false);
        assert_eq!((segments.free(), segments.in_use(&(1..3))), (2, (0, 0)));
        let next = [segments.take(), segments.take(), segments.take()];
        assert_eq!((next, segments.free()), ([Some(4), Some(0), Some(1)], 0));
        assert_eq!(segments.in_use(&(1..3)), (1, 1));
        segments.end_drain(false);
        assert_eq!((segments.free(), segments.take(), segments.take()), (1, Some(2), None));
    }

    #[test]
    fn removed_segments_wait_for_another_device() {
        let mut segments = Segments::new(4, &[0], |_| false);
        segments.withhold(1..2);
        segments.drain(2..3);
        segments.end_drain(true);
        assert_eq!((segments.take(), segments.take()), (Some(3), None));
        segments.restore(2..3);
        assert_eq!((segments.free(), segments.take(), segments.take()), (1, Some(2), None));
    }

    #[test]
    fn segment_is_reused_after_checkpoint_and_reads() {
        let mut segments = Segments::new(4, &[0, 1], |_| false);
        assert_eq!((segments.take(), segments.take(), segments.take()), (Some(2), Some(3), None));
        let early = segments.guard();
        segments.commit(2, |segment| segment == 1);
        assert_eq!(segments.free(), 0, "a read may refer to segment 0");
        let late = segments.guard();
        segments.commit(3, |segment| segment == 1);
        drop(late);
        assert_eq!(segments.free(), 0, "in order");
        drop(early);
        assert_eq!(segments.free(), 2);
        assert!(segments.is_closed(1) && !segments.is_closed(0));
        assert_eq!((segments.take(), segments.take(), segments.take()), (Some(0), Some(2), None));
    }
}
