//! Copies of a node's write-intent log, taken at any moment, and which of them a node may come back
//! with: those that it is promised to tell from its own.
//!
//! What is promised rests on nothing that the replica says of its log:
//! - a replica that was put away in order tells every copy, and every page of one;
//! - any other tells a copy when its superblock was written after the log had moved on. A superblock
//!   that was being written when the copy was seen to differ may have been made up before that; the
//!   second one after it was not.

use flagstone_mirror::format::superblock::Superblock;

/// Copies of a node's log that are kept, at most.
const KEPT_MAX: usize = 6;

struct LogCopy {
    bytes: Vec<u8>,
    /// Sequence of the superblock when the log was first seen to be another.
    differed_at: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct LogCopies(Vec<LogCopy>);

impl LogCopies {
    /// The log is this now, beside a superblock of this sequence. `keep` is the place in which it is
    /// kept, if it is.
    pub(super) fn see(&mut self, log: &[u8], superblock: u64, keep: Option<usize>) {
        for copy in self.0.iter_mut().filter(|copy| copy.differed_at.is_none()) {
            copy.differed_at = (copy.bytes != log).then_some(superblock);
        }
        let Some(place) = keep else { return };
        let copy = LogCopy { bytes: log.to_vec(), differed_at: None };
        match self.0.get_mut(place % KEPT_MAX) {
            Some(kept) => *kept = copy,
            None => self.0.push(copy),
        }
    }

    /// The copies that a replica with this superblock is promised to tell.
    pub(super) fn told_by(&self, superblock: &Superblock) -> Vec<&[u8]> {
        let put_away = !superblock.flags.in_use;
        let noted = |at: u64| superblock.sequence >= at + 2;
        let told = |copy: &&LogCopy| put_away || copy.differed_at.is_some_and(noted);
        self.0.iter().filter(told).map(|copy| &copy.bytes[..]).collect()
    }

    /// The log is another's from now on.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
