//! Host facts: hardware and settings, typed, read once and judged by [`crate::checks`].
//!
//! A missing fact is unknown, never assumed. [`HostFacts::unread`] lists facts that should have
//! been readable, with the reason.

mod disk;
mod host;
mod reader;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::inspect::DeviceUse;
use crate::parse::Mount;
use crate::root::Root;

pub use disk::{DiskFacts, Media, Partition};
use reader::FactReader;
pub(crate) use reader::is_name;
pub use reader::{Observed, Unread};

/// Processors and their frequency policies.
#[derive(Debug, Clone, Default)]
pub struct Cpus {
    /// CPUs online.
    pub online: Option<Observed<Vec<u32>>>,
    /// Mean number of runnable tasks in the last minute.
    pub load: Option<Observed<f64>>,
    /// Frequency policies.
    pub policies: Vec<Policy>,
}

/// A frequency policy of one or more CPUs.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The kernel's name, `policy0`.
    pub name: String,
    /// The governor in force.
    pub governor: Observed<String>,
    /// Available governors.
    pub available: Vec<String>,
}

/// One interrupt of a device.
#[derive(Debug, Clone)]
pub struct Irq {
    /// The device's name of the interrupt.
    pub name: String,
    /// Occurrences since boot.
    pub count: u64,
    /// CPUs that receive it.
    pub cpus: Option<Observed<Vec<u32>>>,
}

/// Facts from process names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// irqbalance runs.
    pub irqbalance: bool,
    /// The kernel thread that initializes ext4 tables after mkfs runs.
    pub ext4_lazyinit: bool,
}

/// A controller of a remote NVMe device.
#[derive(Debug, Clone)]
pub struct Fabric {
    /// The kernel's name, `nvme1`.
    pub name: String,
    /// `tcp`, `rdma`, `fc`, `loop`.
    pub transport: Observed<String>,
    /// Queues including the admin queue.
    pub queue_count: Option<Observed<u64>>,
    /// Seconds without connection until I/O fails; `off` for never.
    pub ctrl_loss_tmo: Option<Observed<String>>,
}

/// A network interface with hardware, real or virtual.
#[derive(Debug, Clone)]
pub struct Interface {
    /// The kernel's name, `eth0`.
    pub name: String,
    /// Largest packet, in bytes.
    pub mtu: Option<Observed<u64>>,
    /// Receive queues.
    pub rx_queues: Option<Observed<u64>>,
    /// `ethtool -k`: name, on, fixed.
    pub features: Option<Observed<Vec<(String, bool, bool)>>>,
}

/// Facts of a host.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Version of the kernel.
    pub kernel: Option<Observed<(u32, u32)>>,
    /// `scsi_mod.use_blk_mq`, on kernels that have it.
    pub scsi_blk_mq: Option<Observed<bool>>,
    /// The host has a battery.
    pub battery: Option<bool>,
    /// Processors.
    pub cpus: Cpus,
    /// Interrupts of devices; `None` if unreadable.
    pub irqs: Option<Vec<Irq>>,
    /// Processes; `None` if unreadable.
    pub processes: Option<Processes>,
    /// A timer or cron job runs `fstrim`.
    pub fstrim: Option<Observed<bool>>,
    /// Examined disks.
    pub disks: Vec<DiskFacts>,
    /// Mounts; `None` if unreadable.
    pub mounts: Option<Vec<Mount>>,
    /// Controllers of remote NVMe devices.
    pub fabrics: Vec<Fabric>,
    /// Network interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// Kernel settings by sysctl name.
    pub sysctls: BTreeMap<String, Observed<String>>,
    /// Uses of disks by name, if inspected.
    pub uses: BTreeMap<String, DeviceUse>,
    /// Unreadable facts.
    pub unread: Vec<Unread>,
}

/// Disks to examine.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Selection {
    /// Kernel names; if empty, all except loop, RAM and optical disks.
    pub disks: Vec<String>,
}

impl HostFacts {
    /// Reads a host.
    pub fn read(root: &Root, selection: &Selection) -> HostFacts {
        let mut reader = FactReader::new(root);
        let mut facts = HostFacts {
            kernel: reader.parsed("/proc/sys/kernel/osrelease", crate::parse::kernel_version),
            ..HostFacts::default()
        };
        host::read(&mut reader, &mut facts);
        facts.disks = disk::read(&mut reader, selection, &facts);
        facts.unread = reader.unread;
        facts
    }

    /// Number of CPUs online.
    pub fn cpu_count(&self) -> Option<usize> {
        self.cpus.online.as_ref().map(|cpus| cpus.value.len()).filter(|&count| count > 0)
    }

    /// Idle CPUs in the last minute, if known.
    pub fn cpus_free(&self) -> Option<f64> {
        let load = self.cpus.load.as_ref()?.value;
        Some((self.cpu_count()? as f64 - load).max(0.0))
    }

    /// Mounts of a disk and its partitions.
    pub fn mounts_of<'a>(&'a self, disk: &'a DiskFacts) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().flatten().filter(move |mount| disk.is_mounted_as(mount))
    }
}
