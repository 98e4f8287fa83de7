//! Host facts: hardware and settings, typed, read once and judged by [`crate::checks`].
//!
//! A missing fact is unknown: [`HostFacts::unread`] lists facts that should be readable.

mod disk;
mod host;
mod reader;

use std::collections::BTreeMap;

use crate::inspect::DeviceUse;
use crate::parse::Mount;
use crate::root::Root;

pub(crate) use disk::{DiskFacts, Media, is_lost_with_machine};
use reader::FactReader;
pub(crate) use reader::Observed;
pub use reader::Unread;
pub(crate) use reader::is_name;

#[derive(Debug, Clone, Default)]
pub(crate) struct Cpus {
    pub(crate) online: Option<Observed<Vec<u32>>>,
    /// Mean number of runnable tasks in the last minute.
    pub(crate) load: Option<Observed<f64>>,
    pub(crate) policies: Vec<Policy>,
}

#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) governor: Observed<String>,
    pub(crate) available: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Irq {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) cpus: Option<Observed<Vec<u32>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) irqbalance: bool,
    /// The kernel thread that initializes ext4 tables after mkfs runs.
    pub(crate) ext4_lazyinit: bool,
}

/// A controller of a remote NVMe device.
#[derive(Debug, Clone)]
pub(crate) struct Fabric {
    pub(crate) name: String,
    /// Queues including the admin queue.
    pub(crate) queue_count: Option<Observed<u64>>,
    /// Seconds without connection until I/O fails; `off` for never.
    pub(crate) ctrl_loss_tmo: Option<Observed<String>>,
}

/// A network interface with hardware, real or virtual.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) mtu: Option<Observed<u64>>,
    pub(crate) rx_queues: Option<Observed<u64>>,
    /// `ethtool -k`: name, on, fixed.
    pub(crate) features: Option<Observed<Vec<(String, bool, bool)>>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct HostFacts {
    pub(crate) kernel: Option<Observed<(u32, u32)>>,
    /// `scsi_mod.use_blk_mq`, on kernels that have it.
    pub(crate) scsi_blk_mq: Option<Observed<bool>>,
    pub(crate) battery: Option<bool>,
    pub(crate) cpus: Cpus,
    /// Interrupts of devices; `None` if unreadable.
    pub(crate) irqs: Option<Vec<Irq>>,
    pub(crate) processes: Option<Processes>,
    /// A timer or cron job runs `fstrim`.
    pub(crate) fstrim: Option<Observed<bool>>,
    pub(crate) disks: Vec<DiskFacts>,
    pub(crate) mounts: Option<Vec<Mount>>,
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) sysctls: BTreeMap<String, Observed<String>>,
    /// Uses of disks by name, if inspected.
    pub uses: BTreeMap<String, DeviceUse>,
    pub(crate) unread: Vec<Unread>,
}

impl HostFacts {
    /// Reads a host. `disks` are kernel names; if empty, all are examined except loop, RAM and
    /// optical disks.
    pub(crate) fn read(root: &Root, disks: &[String]) -> HostFacts {
        let mut reader = FactReader::new(root);
        let mut facts = HostFacts {
            kernel: reader.parsed("/proc/sys/kernel/osrelease", crate::parse::kernel_version),
            ..HostFacts::default()
        };
        host::read(&mut reader, &mut facts);
        facts.disks = disk::read(&mut reader, disks, &facts);
        facts.unread = reader.unread;
        facts
    }

    pub(crate) fn cpu_count(&self) -> Option<usize> {
        self.cpus.online.as_ref().map(|cpus| cpus.value.len()).filter(|&count| count > 0)
    }

    /// Idle CPUs in the last minute, if known.
    pub(crate) fn cpus_free(&self) -> Option<f64> {
        let load = self.cpus.load.as_ref()?.value;
        Some((self.cpu_count()? as f64 - load).max(0.0))
    }

    pub(crate) fn mounts_of<'a>(&'a self, disk: &'a DiskFacts) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().flatten().filter(move |mount| disk.is_mounted_as(mount))
    }
}
