//! Disks that fail: in parts, at random, or because they are full.
//!
//! Promises: what may be lost with the power since a flush failed, of which no host heard, is no
//! broken promise.

use flagstone_runtime::sim::DiskFaults;

use super::{Cluster, DATA, LOG};

impl Cluster {
    /// Part of a node's data cannot be read any more, or not be written.
    pub(crate) fn damage(&self, index: usize, read: bool) {
        let from = self.sim.random_between(0, self.usable / 4096 - 1) * 4096;
        let to = (from + 4096 * self.sim.random_between(1, 4)).min(self.usable);
        let faults = DiskFaults::default();
        let faults =
            if read { faults.unreadable_at(from..to) } else { faults.unwritable_at(from..to) };
        self.set_faults(index, DATA, faults);
    }

    /// The superblock's slots and the end of the log before them cannot be written any more, or one
    /// slot cannot.
    pub(crate) fn damage_superblock(&self, index: usize) {
        let end = self.sizes.borrow()[index].last().copied().expect("a disk has a size");
        let from = end - 4096 * self.sim.random_between(1, 5);
        let to = from + 4096 * self.sim.random_between(1, 3);
        let faults = DiskFaults::default().unwritable_at(from..to);
        self.set_faults(index, DATA, faults);
    }

    /// A disk of a node fails at random from now on: the one with the data, or the log's.
    pub(crate) fn break_disk(&self, index: usize, log: bool) {
        let sim = &self.sim;
        let rate = |most: f64| match sim.chance(0.5) {
            true => most * sim.random_between(1, 100) as f64 / 100.0,
            false => 0.0,
        };
        let faults = DiskFaults {
            read_errors: rate(0.3),
            write_errors: rate(0.1),
            flush_errors: rate(0.1),
            ..DiskFaults::default()
        };
        self.set_faults(index, if log { LOG } else { DATA }, faults);
    }

    /// A node's disk takes no more blocks than it holds, or a few: it is thin, and what is below it
    /// is full.
    pub(crate) fn fill_disk(&self, index: usize) {
        let held = self.sim.disk_stats(self.nodes[index], DATA).allocated_bytes;
        let left = 4096 * self.sim.random_between(0, 8);
        self.sim.set_space(self.nodes[index], DATA, held + left);
    }

    fn set_faults(&self, index: usize, path: &str, faults: DiskFaults) {
        let failing = faults.flush_errors > 0.0;
        self.sim.set_faults(self.nodes[index], path, faults);
        if failing && path == DATA {
            self.flushes_fail[index].set(true);
        }
        self.doubt_flushes(index);
    }

    /// Flushes of a node's disk have failed, or may have, of which no host heard: what was written
    /// before and is not written again may be lost with the power.
    pub(super) fn doubt_flushes(&self, index: usize) {
        if self.flushes_fail[index].get() {
            self.world.lines.borrow()[index].model.flush_failed();
        }
    }

    /// A node's disks are sound again.
    pub(crate) fn repair(&self, index: usize) {
        self.doubt_flushes(index);
        self.flushes_fail[index].set(false);
        for path in [DATA, LOG] {
            self.sim.set_faults(self.nodes[index], path, DiskFaults::default());
        }
        self.sim.set_space(self.nodes[index], DATA, u64::MAX);
    }
}
