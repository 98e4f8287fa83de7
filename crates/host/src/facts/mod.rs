//! What a host is and how it is set, as typed facts: read once, judged by [`crate::checks`].
//!
//! A fact that is absent is unknown, never assumed. What should have been readable and was not
//! is in [`Facts::unread`] with the reason.

mod disk;
mod host;
mod reader;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::inspect::DeviceUse;
use crate::parse::Mount;
use crate::root::Root;

pub use disk::{Disk, Media, Partition};
use reader::Reader;
pub(crate) use reader::is_name;
pub use reader::{Seen, Unread};

/// Processors and how they are run.
#[derive(Debug, Clone, Default)]
pub struct Cpus {
    /// The ones online.
    pub online: Option<Seen<Vec<u32>>>,
    /// Mean number of runnable tasks in the last minute.
    pub load: Option<Seen<f64>>,
    /// Frequency policies.
    pub policies: Vec<Policy>,
}

/// A frequency policy: of one CPU, or of several that change together.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The kernel's name, `policy0`.
    pub name: String,
    /// The governor in force.
    pub governor: Seen<String>,
    /// The governors it may have.
    pub available: Vec<String>,
}

/// One interrupt of a device.
#[derive(Debug, Clone)]
pub struct Irq {
    /// What the device calls it.
    pub name: String,
    /// How often it came since the start.
    pub count: u64,
    /// The CPUs that get it in fact.
    pub cpus: Option<Seen<Vec<u32>>>,
}

/// What was learnt from the names of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// irqbalance runs.
    pub irqbalance: bool,
    /// The kernel's thread that initialises ext4's tables after mkfs runs.
    pub ext4_lazyinit: bool,
}

/// A controller of a remote NVMe device.
#[derive(Debug, Clone)]
pub struct Fabric {
    /// The kernel's name, `nvme1`.
    pub name: String,
    /// `tcp`, `rdma`, `fc`, `loop`.
    pub transport: Seen<String>,
    /// Queues with the admin queue.
    pub queue_count: Option<Seen<u64>>,
    /// Seconds of lost connection until I/O fails; `off` for never.
    pub ctrl_loss_tmo: Option<Seen<String>>,
}

/// A network interface with hardware, or a virtual machine's idea of it.
#[derive(Debug, Clone)]
pub struct Interface {
    /// The kernel's name, `eth0`.
    pub name: String,
    /// Largest packet, in bytes.
    pub mtu: Option<Seen<u64>>,
    /// Receive queues.
    pub rx_queues: Option<Seen<u64>>,
    /// `ethtool -k`: name, on, fixed.
    pub features: Option<Seen<Vec<(String, bool, bool)>>>,
}

/// All that is known of a host.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Version of the kernel.
    pub kernel: Option<Seen<(u32, u32)>>,
    /// `scsi_mod.use_blk_mq`, on kernels that have it.
    pub scsi_blk_mq: Option<Seen<bool>>,
    /// Whether it has a battery.
    pub battery: Option<bool>,
    /// Processors.
    pub cpus: Cpus,
    /// Interrupts of devices; `None` where they cannot be read.
    pub irqs: Option<Vec<Irq>>,
    /// Processes; `None` where they cannot be read.
    pub processes: Option<Processes>,
    /// Whether `fstrim` runs by a timer or cron.
    pub fstrim: Option<Seen<bool>>,
    /// Disks that are looked at.
    pub disks: Vec<Disk>,
    /// Everything that is mounted; `None` where it cannot be read.
    pub mounts: Option<Vec<Mount>>,
    /// Controllers of remote NVMe devices.
    pub fabrics: Vec<Fabric>,
    /// Network interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// Settings of the kernel, by their names for `sysctl`.
    pub sysctls: BTreeMap<String, Seen<String>>,
    /// What disks are used for, by their names, where that was looked at.
    pub uses: BTreeMap<String, DeviceUse>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// Which disks to look at.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Selection {
    /// Kernel names; all but loop, RAM and optical disks if empty.
    pub disks: Vec<String>,
}

impl Facts {
    /// Reads a host.
    pub fn read(root: &Root, selection: &Selection) -> Facts {
        let mut reader = Reader::new(root);
        let mut facts = Facts {
            kernel: reader.parsed("/proc/sys/kernel/osrelease", crate::parse::kernel_version),
            ..Facts::default()
        };
        host::read(&mut reader, &mut facts);
        facts.disks = disk::read(&mut reader, selection, &facts);
        facts.unread = reader.unread;
        facts
    }

    /// How many CPUs are online.
    pub fn cpu_count(&self) -> Option<usize> {
        self.cpus.online.as_ref().map(|cpus| cpus.value.len()).filter(|&count| count > 0)
    }

    /// CPUs that were idle in the last minute, if that is known.
    pub fn cpus_free(&self) -> Option<f64> {
        let load = self.cpus.load.as_ref()?.value;
        Some((self.cpu_count()? as f64 - load).max(0.0))
    }

    /// The mounts of a disk and of its partitions.
    pub fn mounts_of<'a>(&'a self, disk: &'a Disk) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().flatten().filter(move |mount| disk.is_mounted_as(mount))
    }
}
