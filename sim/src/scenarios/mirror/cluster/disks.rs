//! Disk faults: bad ranges, random errors, full disks.
//!
//! Exception from the guarantees: after a failed flush that no host saw, a power loss may lose the
//! data that the flush covered.

use flagstone_runtime::sim::DiskFaults;

use super::{Cluster, DATA, LOG};

impl Cluster {
    /// Makes part of a node's data unreadable (`read`) or unwritable.
    pub(crate) fn damage(&self, index: usize, read: bool) {
        let from = self.sim.random_between(0, self.usable / 4096 - 1) * 4096;
        let to = (from + 4096 * self.sim.random_between(1, 4)).min(self.usable);
        let faults = DiskFaults::default();
        let faults =
            if read { faults.unreadable_at(from..to) } else { faults.unwritable_at(from..to) };
        self.set_faults(index, DATA, faults);
    }

    /// Makes both superblock slots and the preceding end of the log unwritable, or one slot only.
    pub(crate) fn damage_superblock(&self, index: usize) {
        let end = self.sizes.borrow()[index].last().copied().expect("a disk has a size");
        let from = end - 4096 * self.sim.random_between(1, 5);
        let to = from + 4096 * self.sim.random_between(1, 3);
        let faults = DiskFaults::default().unwritable_at(from..to);
        self.set_faults(index, DATA, faults);
    }

    /// Makes one of a node's disks fail at random: the data disk, or the log disk.
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

    /// Makes a node's thin-provisioned disk full, now or after a few more blocks.
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
        self.record_failed_flushes(index);
    }

    /// Records that flushes of a node's disk may have failed without a host seeing it. A power loss
    /// may lose earlier data until it is written again.
    pub(super) fn record_failed_flushes(&self, index: usize) {
        if self.flushes_fail[index].get() {
            self.world.lines.borrow()[index].model.flush_failed();
        }
    }

    /// Repairs a node's disks.
    pub(crate) fn repair(&self, index: usize) {
        self.record_failed_flushes(index);
        self.flushes_fail[index].set(false);
        for path in [DATA, LOG] {
            self.sim.set_faults(self.nodes[index], path, DiskFaults::default());
        }
        self.sim.set_space(self.nodes[index], DATA, u64::MAX);
    }
}
