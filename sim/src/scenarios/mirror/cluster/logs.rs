//! Logs that move to another disk, and log replacement: a node restarts with a blank log, its
//! original log, or an earlier copy.
//!
//! Limits: an earlier copy is used only where the replica guarantees to detect it, and a log that
//! moves is not replaced.

use flagstone_blockdev::{FileDevice, FileOptions, ReopenableDevice};

use super::nodes::shared;
use super::{Cluster, DATA, LOG, LOG2};

impl Cluster {
    /// The disk of a node's log, as its superblock says; `None` for the data disk.
    pub(super) fn log_path(&self, index: usize) -> Option<&'static str> {
        let superblock = self.superblock(index);
        match superblock.as_ref().map_or("", |found| &found.log_place) {
            "" => self.separate_log.then_some(LOG),
            place => [LOG, LOG2].into_iter().find(|path| *path == place),
        }
    }

    /// The operator moves the log of a running node to any disk that is free.
    pub(crate) fn move_log(&self, index: usize) {
        let Some(mirror) = self.mirror(index) else { return };
        let to = [None, Some(LOG), Some(LOG2)][self.sim.random_between(0, 2) as usize];
        let world = self.world.clone();
        self.sim.spawn_on(self.nodes[index], async move {
            let opened = to.map(|path| FileDevice::open(path, &FileOptions::default()));
            let Ok(device) = opened.transpose() else { return };
            let device = device.map(|device| ReopenableDevice::new(device));
            let moved = mirror.move_log(shared(device.clone()), to.unwrap_or(DATA)).await;
            tracing::info!(node = index, ?to, ?moved, "the log was to be moved");
            if let (Ok(()), Some((_, log))) = (moved, &mut world.devices.borrow_mut()[index]) {
                *log = device;
            }
        });
    }

    /// Disk and offset of a node's log.
    fn log_at(&self) -> (&'static str, u64) {
        if self.separate_log { (LOG, 0) } else { (DATA, self.usable) }
    }

    /// Replaces the log of a stopped node by its original log (`old`) or by zeroes.
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

    /// Flips a bit in the log of a stopped node, once: the log has two headers, and when both are
    /// damaged its device is refused until the operator has wiped it.
    pub(crate) fn rot_log(&self, index: usize) {
        if self.sim.is_up(self.nodes[index]) || self.rotten[index].replace(true) {
            return;
        }
        let (path, start) = self.log_at();
        let bit = self.sim.random_between(0, self.first_logs[index].len() as u64 * 8 - 1);
        let at = start + bit / 8;
        let byte = self.sim.peek(self.nodes[index], path, at, 1)[0] ^ 1 << (bit % 8);
        self.sim.poke(self.nodes[index], path, at, &[byte]);
        self.log_copies.borrow_mut()[index].clear();
    }

    /// True where no log write fails, so that the detectable copies are known.
    pub(super) fn copies_logs(&self) -> bool {
        self.kind.faults && !self.kind.broken
    }

    /// Stores copies of the current logs, at random.
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

    /// Restores the log of a stopped node from a copy that its replica must detect: the whole log,
    /// or some pages after a clean shutdown.
    pub(super) fn put_log_back(&self, index: usize) {
        let Some(superblock) = self.superblock(index) else { return };
        let (path, at) = self.log_at();
        let mut copies = self.log_copies.borrow_mut();
        let detected = copies[index].detected_by(&superblock);
        if detected.is_empty() {
            return;
        }
        let mut copy =
            detected[self.sim.random_between(0, detected.len() as u64 - 1) as usize].to_vec();
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
