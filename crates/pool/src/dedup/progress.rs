//! Progress of the scan for equal blocks: which closed segments were not scanned since they were
//! written. Pure.
//!
//! Invariant: a segment that is written again after its scan is scanned again, because it is not
//! closed in between.

use std::collections::BTreeMap;

use flagstone_runtime::time::Instant;

use super::fingerprint::Fingerprints;
use super::index::Index;
use super::{DedupStatus, Domain, domain_name};
use crate::ondisk::volume_table::VolumeTable;

/// The index, and the hash function of its fingerprints.
pub(crate) type Seen = (Fingerprints, Index);

/// A place in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanPosition {
    /// Header of a chunk.
    pub(crate) chunk: u64,
    /// Pieces of the chunk that were scanned.
    pub(crate) pieces: usize,
}

/// State of deduplication in a pool. Empty without volumes that have it on.
#[derive(Default)]
pub(crate) struct ScanProgress {
    /// The present volumes that are not encrypted, each with its domain and the name of that;
    /// `None` if its blocks are not to be shared.
    domains: BTreeMap<u32, Option<(String, Domain)>>,
    /// Number of volumes with a domain.
    sharing: usize,
    /// Whether each segment was scanned since it closed.
    scanned: Vec<bool>,
    /// Closed segments that were not.
    left: usize,
    /// True if none of them can be scanned before the next checkpoint.
    is_blocked: bool,
    /// Where the search for the next segment begins.
    next: usize,
    /// Segment whose scan was interrupted, and where.
    interrupted: Option<(u32, ScanPosition)>,
    /// When the next step begins, if one is due.
    pub(crate) next_step_at: Option<Instant>,
    /// I/O of hosts until the end of the last step: blocks written, and reads.
    pub(crate) host_io: (u64, u64),
    /// Blocks written for hosts after which the scan goes on, if the pool had no room.
    resume_at: u64,
    index: Option<Seen>,
    /// Index that is no longer needed. Freeing it takes too long under the lock of the pool.
    unused: Option<Seen>,
    /// Memory of the index, in bytes.
    index_bytes: u64,
    /// Bytes that shared blocks freed since the opening.
    freed_bytes: u64,
}

impl ScanProgress {
    /// Takes changed volumes into account. Blocks that may be shared now need another scan. True if
    /// the segments are to be counted with [`ScanProgress::segments_changed`].
    pub(crate) fn volumes_changed(&mut self, volumes: &VolumeTable) -> bool {
        let mut before = std::mem::take(&mut self.domains);
        let mut is_wider = false;
        self.sharing = 0;
        for volume in volumes.present().filter(|volume| volume.encryption.is_none()) {
            let name = domain_name(&volume.properties);
            let known = before.remove(&volume.id);
            let has_name = |known: &Option<(String, Domain)>| {
                known.as_ref().map(|(name, _)| name.as_str()) == name
            };
            let domain = match known {
                Some(known) if has_name(&known) => known,
                known => {
                    // A new volume has no blocks. Those of a new clone belong to the snapshot.
                    let snapshots = || volumes.snapshots().map(|snapshot| snapshot.owner());
                    let has_blocks =
                        || volume.mapped > 0 || snapshots().any(|owner| owner == Some(volume.id));
                    is_wider |= known.is_some() && name.is_some() && has_blocks();
                    name.map(|name| (name.to_owned(), Domain::of(name)))
                }
            };
            self.sharing += usize::from(domain.is_some());
            self.domains.insert(volume.id, domain);
        }
        if !self.is_on() {
            let (freed_bytes, domains) = (self.freed_bytes, std::mem::take(&mut self.domains));
            let unused = self.index.take().or_else(|| self.unused.take());
            *self = ScanProgress { freed_bytes, domains, unused, ..ScanProgress::default() };
        }
        if is_wider {
            self.scan_again();
        }
        self.is_on() && self.scanned.is_empty()
    }

    /// Takes a promotion into account: the blocks of some snapshots belong to a clone now.
    pub(crate) fn promoted(&mut self, origin: u32, clone: u32) {
        let domain = self.domain(clone);
        if domain.is_some() && domain != self.domain(origin) {
            self.scan_again();
        }
    }

    /// Counts no segment as scanned, until the next [`ScanProgress::segments_changed`].
    fn scan_again(&mut self) {
        self.scanned.clear();
        (self.resume_at, self.next, self.interrupted) = (0, 0, None);
    }

    /// Takes a checkpoint into account, after which these segments of `count` are closed.
    pub(crate) fn segments_changed(&mut self, count: usize, is_closed: impl Fn(u32) -> bool) {
        if !self.is_on() {
            return;
        }
        self.scanned.resize(count, false);
        (self.left, self.is_blocked) = (0, false);
        self.interrupted = self.interrupted.filter(|(segment, _)| is_closed(*segment));
        for (segment, scanned) in (0..).zip(&mut self.scanned) {
            let is_closed = is_closed(segment);
            *scanned &= is_closed;
            self.left += usize::from(is_closed && !*scanned);
        }
    }

    /// Domain of a volume; `None` if its blocks are not to be shared.
    pub(crate) fn domain(&self, volume: u32) -> Option<Domain> {
        self.domains.get(&volume)?.as_ref().map(|(_, domain)| *domain)
    }

    /// True if some volume has deduplication on.
    pub(crate) fn is_on(&self) -> bool {
        self.sharing > 0
    }

    /// True if a segment is to be scanned, after this number of blocks was written for hosts.
    pub(crate) fn is_due(&self, host_blocks: u64) -> bool {
        self.left > 0 && !self.is_blocked && host_blocks >= self.resume_at
    }

    /// Stops the scan until hosts have written this number of blocks in all.
    pub(crate) fn pause_until(&mut self, host_blocks: u64) {
        self.resume_at = host_blocks;
    }

    /// Ends such a pause: the pool has more room.
    pub(crate) fn resume(&mut self) {
        self.resume_at = 0;
    }

    /// The next segment to scan, among those for which `can_scan`.
    pub(crate) fn next(&mut self, can_scan: impl Fn(u32) -> bool) -> Option<u32> {
        let count = self.scanned.len();
        let mut order = (self.next..count).chain(0..self.next.min(count));
        let found = order.find(|at| !self.scanned[*at] && can_scan(*at as u32));
        match found {
            Some(found) => self.next = found,
            // What is left cannot be scanned now.
            None => self.is_blocked = true,
        }
        found.map(|found| found as u32)
    }

    /// Counts a segment as scanned.
    pub(crate) fn scanned(&mut self, segment: u32) {
        self.interrupted = self.interrupted.filter(|(own, _)| *own != segment);
        if let Some(scanned) = self.scanned.get_mut(segment as usize)
            && !std::mem::replace(scanned, true)
        {
            self.left = self.left.saturating_sub(1);
        }
    }

    /// Where the scan of a segment goes on; `None` at its beginning.
    pub(crate) fn position_in(&self, segment: u32) -> Option<ScanPosition> {
        self.interrupted.filter(|(own, _)| *own == segment).map(|(_, position)| position)
    }

    /// Lets the scan of a segment go on later, from a position or its beginning.
    pub(crate) fn scan_later(&mut self, segment: u32, position: Option<ScanPosition>) {
        self.interrupted = position.map(|position| (segment, position));
    }

    /// Drops the index of a pool that had another number of blocks. What was scanned for it is to
    /// be scanned again, after the next [`ScanProgress::segments_changed`].
    pub(crate) fn resize_index(&mut self, blocks: u64) -> bool {
        let other = self.index.take_if(|(_, index)| !index.is_for(blocks));
        let is_other = other.is_some();
        if is_other {
            (self.unused, self.index_bytes) = (other, 0);
            self.scan_again();
        }
        is_other
    }

    /// Takes the index for a step, which returns it.
    pub(crate) fn take_index(&mut self, blocks: u64) -> Seen {
        self.index.take().unwrap_or_else(|| (Fingerprints::default(), Index::new(blocks)))
    }

    /// Returns the index.
    pub(crate) fn return_index(&mut self, index: Seen) {
        match self.is_on() {
            true => {
                self.index_bytes = index.1.bytes();
                self.index = Some(index);
            }
            // It was turned off meanwhile.
            false => self.unused = Some(index),
        }
    }

    /// True if an index is to be freed.
    pub(crate) fn has_unused(&self) -> bool {
        self.unused.is_some()
    }

    /// Takes the index that is to be freed.
    pub(crate) fn take_unused(&mut self) -> Option<Seen> {
        self.unused.take()
    }

    /// Counts bytes that shared blocks freed.
    pub(crate) fn freed(&mut self, bytes: u64) {
        self.freed_bytes += bytes;
    }

    /// Bytes that shared blocks freed since the opening.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }

    /// State of deduplication in a pool with segments of this length; `None` if no volume has it
    /// on.
    pub(crate) fn status(&self, segment_bytes: u64) -> Option<DedupStatus> {
        self.is_on().then(|| DedupStatus {
            volumes: self.sharing,
            unscanned_bytes: self.left as u64 * segment_bytes,
            index_bytes: self.index_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::{DEDUP_DOMAIN_PROPERTY, DEDUP_PROPERTY};
    use crate::ondisk::volume_table::VolumeRecord;

    fn volumes(all: &[(u32, u64, &str)]) -> VolumeTable {
        let mut table = VolumeTable::default();
        for (id, mapped, domain) in all {
            let mut volume = VolumeRecord::new(*id, format!("v{id}"), 100);
            volume.mapped = *mapped;
            if !domain.is_empty() {
                volume.properties = [(DEDUP_PROPERTY, "on"), (DEDUP_DOMAIN_PROPERTY, domain)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into();
            }
            table.volumes.insert(*id, volume);
        }
        table
    }

    /// Scans all but the segments that are damaged or not closed.
    fn scan_all(progress: &mut ScanProgress, but: &[u32]) -> Vec<u32> {
        let mut found = Vec::new();
        while progress.is_due(0) {
            let Some(next) = progress.next(|segment| !but.contains(&segment)) else { break };
            progress.scanned(next);
            found.push(next);
        }
        found
    }

    #[test]
    fn each_closed_segment_is_scanned_once() {
        let mut progress = ScanProgress::default();
        progress.segments_changed(6, |_| true);
        assert!(!progress.is_due(0), "no volume has it on");
        progress.volumes_changed(&volumes(&[(1, 9, "a"), (2, 9, "")]));
        progress.segments_changed(6, |segment| segment != 2);
        assert_eq!(scan_all(&mut progress, &[2, 5]), [0, 1, 3, 4]);
        assert!(!progress.is_due(0), "segment 5 cannot be scanned now");
        assert_eq!(progress.status(10).unwrap().unscanned_bytes, 10);
        progress.segments_changed(6, |segment| segment != 3);
        assert_eq!(scan_all(&mut progress, &[3, 5]), [2]);
        progress.segments_changed(6, |_| true);
        assert_eq!(scan_all(&mut progress, &[5]), [3], "it was written again");
        progress.segments_changed(7, |_| true);
        progress.pause_until(9);
        assert!(!progress.is_due(8) && progress.is_due(9));
        progress.resume();
        assert!(progress.is_due(8));
    }

    #[test]
    fn blocks_that_may_be_shared_now_are_scanned_again() {
        let mut progress = ScanProgress::default();
        let mut left = |all: &[(u32, u64, &str)]| {
            progress.volumes_changed(&volumes(all));
            progress.segments_changed(3, |_| true);
            scan_all(&mut progress, &[]).len()
        };
        assert_eq!(left(&[(1, 9, "a")]), 3);
        assert_eq!(left(&[(1, 9, "a"), (2, 0, "a")]), 0, "it is new");
        assert_eq!(left(&[(1, 9, "a"), (2, 9, "a")]), 0);
        assert_eq!(left(&[(1, 9, "a"), (2, 9, "a"), (3, 9, "a")]), 0, "a clone");
        assert_eq!(left(&[(1, 9, "a"), (2, 9, "b")]), 3, "another domain");
        assert_eq!(left(&[(1, 9, "a"), (2, 9, "")]), 0);
        assert_eq!(left(&[(1, 9, ""), (2, 9, "")]), 0);
        assert_eq!(left(&[(1, 9, "a"), (2, 9, "")]), 3);
    }
}
