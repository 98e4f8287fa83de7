//! Logs that are another's when their node comes back: blank, as they were made, or from a copy.
//!
//! Promises: a copy is put back only where its replica is promised to tell it from its own log.

use super::{Cluster, DATA, LOG};

impl Cluster {
    /// Where a node's log is.
    fn log_at(&self) -> (&'static str, u64) {
        if self.separate_log { (LOG, 0) } else { (DATA, self.usable) }
    }

    /// While a node is down its log is replaced: by the one that it had when it was made, or by
    /// nothing.
    pub(crate) fn replace_log(&self, index: usize, old: bool) {
        if self.sim.is_up(self.nodes[index]) {
            return;
        }
        let (path, at) = self.log_at();
        let blank = vec![0; self.first_logs[index].len()];
        let bytes = if old { &self.first_logs[index] } else { &blank };
        self.sim.poke(self.nodes[index], path, at, bytes);
        self.log_copies.borrow_mut()[index].clear();
    }

    /// Where nothing fails to write a log it is known what copies of it are promised to be told.
    pub(super) fn copies_logs(&self) -> bool {
        self.kind.faults && !self.kind.broken
    }

    /// Keeps copies of the logs as they are now, some of the time.
    pub(super) fn copy_logs(&self) {
        if !self.copies_logs() {
            return;
        }
        for (index, copies) in self.log_copies.borrow_mut().iter_mut().enumerate() {
            let Some(superblock) = self.superblock(index) else { continue };
            let (path, at) = self.log_at();
            let log = self.sim.peek(self.nodes[index], path, at, self.first_logs[index].len());
            let keep = self.sim.chance(0.5).then(|| self.sim.random_between(0, 5) as usize);
            copies.see(&log, superblock.sequence, keep);
        }
    }

    /// While a node is down its log is put back from a copy that it is promised to tell: all of it, or
    /// some of its pages where it was put away in order.
    pub(super) fn put_log_back(&self, index: usize) {
        let Some(superblock) = self.superblock(index) else { return };
        let (path, at) = self.log_at();
        let mut copies = self.log_copies.borrow_mut();
        let told = copies[index].told_by(&superblock);
        if told.is_empty() {
            return;
        }
        let mut copy = told[self.sim.random_between(0, told.len() as u64 - 1) as usize].to_vec();
        if !superblock.flags.in_use && self.sim.chance(0.5) {
            let now = self.sim.peek(self.nodes[index], path, at, copy.len());
            for (old, new) in copy.chunks_mut(4096).zip(now.chunks(4096)) {
                if self.sim.chance(0.5) {
                    old.copy_from_slice(new);
                }
            }
        }
        tracing::info!(node = index, superblock.flags.in_use, "the log is one from before");
        self.sim.poke(self.nodes[index], path, at, &copy);
        copies[index].clear();
    }
}
