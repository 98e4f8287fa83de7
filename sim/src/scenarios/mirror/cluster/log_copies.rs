//! Copies of a node's write-intent log, taken at any moment. A node may come back with a copy only
//! if its replica guarantees to detect it as stale.
//!
//! The guarantee does not depend on the replica's own statements about its log:
//! - A replica that was shut down cleanly detects every copy, and every single page of a copy.
//! - After an unclean stop, it detects a copy when its superblock was written after the log had
//!   changed. A superblock write that was in flight when the change was seen may predate the
//!   change; the second write after it does not.

use flagstone_mirror::ondisk::superblock::Superblock;

/// Maximum number of stored copies of a node's log.
const KEPT_MAX: usize = 6;

struct LogCopy {
    bytes: Vec<u8>,
    /// Sequence number of the superblock when the log was first seen to differ from the copy.
    differed_at: Option<u64>,
}

/// Stored copies of one node's log.
#[derive(Default)]
pub(super) struct LogCopies(Vec<LogCopy>);

impl LogCopies {
    /// Records the log's current content and the superblock's sequence number. Stores a copy in
    /// slot `keep`, if given.
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

    /// Copies that a replica with this superblock must detect as stale.
    pub(super) fn detected_by(&self, superblock: &Superblock) -> Vec<&[u8]> {
        let put_away = !superblock.flags.in_use;
        let noted = |at: u64| superblock.sequence >= at + 2;
        let detected = |copy: &&LogCopy| put_away || copy.differed_at.is_some_and(noted);
        self.0.iter().filter(detected).map(|copy| &copy.bytes[..]).collect()
    }

    /// Forgets all copies, because the log was replaced.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
