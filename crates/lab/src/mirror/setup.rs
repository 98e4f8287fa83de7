//! Setups of the emulated bed: the volumes of both nodes and their configuration.
//!
//! The disks are memory with the latency of the published report's disks. The target's disk adds
//! the round trip of the link, except for the part that the loopback already takes: one timer for
//! both costs no CPU time and no second wake-up, which matters where nodes and host share the CPUs.
//! An asynchronous mirror has the round trip in the link itself, because in the target's disk
//! dependent writes would wait for it one after the other.

use std::fmt::Write as _;

use flagstone_cloud::{Catalog, DiskConfiguration, Workload};

use crate::node::{NodePair, device};

/// Bytes in use of volumes whose regions may all be active: the published 96 GB, scaled down.
pub(crate) const HOT_BYTES: u64 = 96 << 20;
/// Bytes in use of volumes of which a third may be active, so that two of three writes wait for the
/// intent log.
pub(crate) const COLD_BYTES: u64 = 384 << 20;
/// Bytes of a cold volume that may be active: the minimum.
const SMALL_ACTIVITY_LOG: &str = "128MiB";
/// Bytes of a device beyond those in use, for the mirror's metadata.
const SPARE_BYTES: u64 = 16 << 20;

/// Throughput of the published disk, in bytes per second: its row without a mirror at 64K has
/// 240.02 MiB/s. Google's page has 240 MB/s, which is 2.4 % less.
const DISK_BYTES_PER_S: u64 = 251_679_000;
/// Overhead of filling a volume, in seconds: a process that checks whether it is filled.
const FILL_STARTS_S: f64 = 0.3;
/// IOPS of 500 GB at 30 per GB, and of n2-standard-8.
const DISK_IOPS: u64 = 15_000;
/// Disk type in the catalog, for the limits of a machine type.
pub const TYPE: &str = "pd-ssd";
/// Size of an emulated disk, in bytes.
pub const DISK_BYTES: u64 = 500_000_000_000;
/// Catalog of the report's time.
pub const CATALOG: &str = "gcp-2019";
/// Read latency of the disks, in µs: below the millisecond for which SSD persistent disks are
/// designed. Only the start of a node and resyncs read.
const READ_LATENCY_US: u64 = 800;
/// Latency of a log write on a local SSD, in µs. An assumption: SSDs of this kind take less than
/// 100 µs at low queue depths.
pub(crate) const LOCAL_SSD_LATENCY_US: u64 = 100;

/// Latency of a log write on a persistent disk of its own, in µs. Later sources than the page state
/// it as the design limit of SSD persistent disks.
pub(crate) const PERSISTENT_DISK_LATENCY_US: u64 = 1000;
const NODE: &str = "cores = 1\nbuffer_memory = \"512MiB\"\n";

/// Writes per second that the limits of the published disk, or of a machine type, allow; none for a
/// machine type that the catalog does not have.
pub(crate) fn writes_per_s_most(block_bytes: u64, machine: Option<&str>) -> Option<f64> {
    let Some(machine) = machine else {
        return Some((DISK_BYTES_PER_S as f64 / block_bytes as f64).min(DISK_IOPS as f64));
    };
    let catalog = Catalog::builtin(CATALOG)?;
    let place = DiskConfiguration::new(catalog, TYPE, DISK_BYTES, machine).ok()?;
    let found = catalog.predict(&place, &Workload::random(block_bytes, 0)).ok()?;
    Some(found.allowed.iops)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogPlacement {
    LocalSsd,
    PersistentDisk,
    /// The end of the data disk.
    Superblock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorKind {
    None,
    /// Remote disk, no mirror: the source uses the target's disk over the link. That is the slower
    /// leg of a mirror, so no mirror on this machine is faster except for noise.
    Far,
    /// A completed write is durable on both nodes.
    SyncDisk,
    /// A completed write is in the memory of both nodes.
    SyncMemory,
    /// A completed write is on the source.
    Async,
}

impl MirrorKind {
    pub(crate) fn is_one(self) -> bool {
        !matches!(self, MirrorKind::None | MirrorKind::Far)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MirrorSetup {
    pub name: &'static str,
    pub volume: &'static str,
    pub mirror: MirrorKind,
    pub log: LogPlacement,
    /// Whether the link has the requested round trip, or only the loopback's.
    pub link: bool,
    /// Whether all regions in use may be active.
    pub hot: bool,
    /// Whether each write has its own log record, as in the customer's product.
    pub every_write: bool,
}

pub const PLAIN: &str = "no mirror";
pub const MIRROR: &str = "mirror";
/// The same without the link's delay, except for the loopback's own.
pub(crate) const NO_LINK: &str = "mirror, link without delay";

/// The target's disk over the link, without a mirror.
pub const FAR: &str = "remote disk, no mirror";

pub const ASYNC: &str = "mirror, async";

/// A log with a metadata write before each data write, on a local SSD.
pub(crate) const CUSTOMER_SSD: &str = "customer's log on local SSD";
pub(crate) const CUSTOMER_PD: &str = "customer's log on persistent disk";

/// Volume for measuring the loopback's round trip.
pub(crate) const LOOPBACK: &str = "loopback";

/// Configuration of node B with a volume that completes immediately.
pub(crate) fn loopback_configuration(pair: &NodePair) -> String {
    let gib = HOT_BYTES.div_ceil(1 << 30);
    pair.preamble(1, NODE, "") + &format!("[volume.{LOOPBACK}]\ndevice = \"null:{gib}GiB\"\n")
}

const fn setup(name: &'static str, volume: &'static str, mirror: MirrorKind) -> MirrorSetup {
    MirrorSetup {
        name,
        volume,
        mirror,
        log: LogPlacement::LocalSsd,
        link: true,
        hot: true,
        every_write: false,
    }
}

pub(crate) const SETUPS: [MirrorSetup; 11] = [
    setup(PLAIN, "plain", MirrorKind::None),
    setup(MIRROR, "sync", MirrorKind::SyncDisk),
    setup(FAR, "far", MirrorKind::Far),
    MirrorSetup { link: false, ..setup(NO_LINK, "no-link", MirrorKind::SyncDisk) },
    setup("mirror, ack memory", "ack-memory", MirrorKind::SyncMemory),
    setup(ASYNC, "async", MirrorKind::Async),
    MirrorSetup { every_write: true, ..setup(CUSTOMER_SSD, "customer-ssd", MirrorKind::SyncDisk) },
    MirrorSetup {
        every_write: true,
        log: LogPlacement::PersistentDisk,
        ..setup(CUSTOMER_PD, "customer-pd", MirrorKind::SyncDisk)
    },
    MirrorSetup { hot: false, ..setup("cold, log on local SSD", "cold-ssd", MirrorKind::SyncDisk) },
    MirrorSetup {
        hot: false,
        log: LogPlacement::PersistentDisk,
        ..setup("cold, log on persistent disk", "cold-pd", MirrorKind::SyncDisk)
    },
    MirrorSetup {
        hot: false,
        log: LogPlacement::Superblock,
        ..setup("cold, log in superblock", "cold-own", MirrorKind::SyncDisk)
    },
];

impl MirrorSetup {
    /// Whether it takes part in the jobs of hot or of cold volumes. The setup without a mirror
    /// takes part in both.
    pub(crate) fn is_in(&self, hot: bool) -> bool {
        self.mirror == MirrorKind::None || self.hot == hot
    }

    fn device_bytes(&self) -> u64 {
        // The jobs of all volumes write to the volume without a mirror.
        let written_to = match self.mirror == MirrorKind::None || !self.hot {
            true => COLD_BYTES,
            false => HOT_BYTES,
        };
        written_to + SPARE_BYTES
    }

    pub(crate) fn fill_seconds(&self) -> f64 {
        self.device_bytes() as f64 / DISK_BYTES_PER_S as f64 + FILL_STARTS_S
    }
}

/// Emulated disks and link of one round of measurements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmulatedDisks {
    pub(crate) write_latency_us: u64,
    /// Round trip of the link beyond the loopback's, in µs.
    pub(crate) link_us: u64,
    /// Machine type, such as `c2-standard-8`, whose limits replace the published disk's.
    pub machine: Option<String>,
}

impl EmulatedDisks {
    fn disk_model(&self, setup: &MirrorSetup, index: usize) -> String {
        let in_disk = index == 1 && setup.link && setup.mirror != MirrorKind::Async;
        let link_us = if in_disk { self.link_us } else { 0 };
        let write_us = self.write_latency_us + link_us;
        let latency =
            format!("write_latency = \"{write_us}us\", read_latency = \"{READ_LATENCY_US}us\"");
        // The limit belongs to the disk, below the mirror.
        let order = match setup.mirror {
            MirrorKind::None | MirrorKind::Far => "",
            _ => "layers = [\"mirror\", \"limit\", \"disk_model\"]\n",
        };
        match &self.machine {
            Some(machine) => format!(
                "disk_model = {{ profile = \"{TYPE}\", size = {DISK_BYTES}, machine = {machine:?}, \
                 catalog = \"{CATALOG}\", {latency} }}\n"
            ),
            None => format!(
                "{order}limit = {{ iops = {DISK_IOPS}, throughput = \"{DISK_BYTES_PER_S}B/s\" }}\n\
                 disk_model = {{ {latency} }}\n"
            ),
        }
    }

    fn mirror(&self, setup: &MirrorSetup, peer: &str) -> Option<String> {
        let mode = match setup.mirror {
            MirrorKind::None | MirrorKind::Far => return None,
            MirrorKind::SyncDisk => "mode = \"sync\", ack = \"disk\"",
            MirrorKind::SyncMemory => "mode = \"sync\", ack = \"memory\"",
            MirrorKind::Async => "mode = \"async\"",
        };
        let latency_us = match setup.log {
            LogPlacement::LocalSsd => Some(LOCAL_SSD_LATENCY_US),
            LogPlacement::PersistentDisk => Some(PERSISTENT_DISK_LATENCY_US),
            LogPlacement::Superblock => None,
        };
        let mut text = format!("mirror = {{ peer = \"{peer}\", {mode}");
        if let Some(us) = latency_us {
            let _ = write!(
                text,
                ", intent_log = \"memory:64MiB\", intent_log_disk_model = {{ latency = \"{us}us\" }}"
            );
        }
        if setup.mirror == MirrorKind::Async && setup.link && self.link_us > 0 {
            let _ = write!(text, ", added_rtt = \"{}us\"", self.link_us);
        }
        if setup.every_write {
            text += ", intent_log_mode = \"every-write\"";
        }
        if !setup.hot {
            let _ = write!(text, ", activity_log_size = \"{SMALL_ACTIVITY_LOG}\"");
        }
        Some(text + " }\n")
    }

    /// Configuration of a volume on node A (0) or B (1); empty if the node does not have it.
    pub(crate) fn volume(&self, pair: &NodePair, setup: &MirrorSetup, index: usize) -> String {
        match (setup.mirror, index) {
            (MirrorKind::None, 1) => return String::new(),
            (MirrorKind::Far, 0) => {
                let far = device(&pair.ports[1..], setup.volume);
                return format!("[volume.{}]\ndevice = \"{far}\"\n\n", setup.volume);
            }
            _ => {}
        }
        let mirror = self.mirror(setup, crate::node::NODE_NAMES[1 - index]);
        format!(
            "[volume.{}]\n{}{}device = \"memory:{}MiB\"\n\n",
            setup.volume,
            mirror.unwrap_or_default(),
            self.disk_model(setup, index),
            setup.device_bytes() >> 20,
        )
    }

    /// Configuration of node A (0) or B (1) with these volumes.
    pub(crate) fn configuration(
        &self,
        pair: &NodePair,
        index: usize,
        setups: &[MirrorSetup],
    ) -> String {
        let volumes: String = setups.iter().map(|setup| self.volume(pair, setup, index)).collect();
        pair.preamble(index, NODE, "") + &volumes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_config::{Config, LayerConfig};

    fn parsed(text: &str) -> Config {
        Config::parse("lab.toml", text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
    }

    #[test]
    fn configurations_of_both_nodes_are_valid() {
        let directory = tempfile::tempdir().unwrap();
        let pair = NodePair::new("flagstone".as_ref(), directory.path()).unwrap();
        for machine in [None, Some("c2-standard-8".to_owned())] {
            let disks = EmulatedDisks { write_latency_us: 1935, link_us: 300, machine };
            let a = parsed(&disks.configuration(&pair, 0, &SETUPS));
            let b = parsed(&disks.configuration(&pair, 1, &SETUPS));
            assert_eq!(a.volumes.len(), SETUPS.len());
            assert_eq!(b.volumes.len(), SETUPS.len() - 1);
            for config in [&a, &b] {
                for volume in &config.volumes {
                    let emulated =
                        volume.layers.iter().any(|l| matches!(l, LayerConfig::DiskModel(_)));
                    let is_elsewhere = volume.name == "far" && std::ptr::eq(config, &a);
                    assert_eq!(emulated, !is_elsewhere, "{}", volume.name);
                }
            }
        }
    }

    #[test]
    fn loopback_volume_has_no_layers() {
        let directory = tempfile::tempdir().unwrap();
        let pair = NodePair::new("flagstone".as_ref(), directory.path()).unwrap();
        let config = parsed(&loopback_configuration(&pair));
        assert_eq!((config.volumes.len(), config.volumes[0].name.as_str()), (1, LOOPBACK));
        assert!(config.volumes[0].layers.is_empty());
    }

    #[test]
    fn round_trip_is_emulated_once() {
        let directory = tempfile::tempdir().unwrap();
        let pair = NodePair::new("flagstone".as_ref(), directory.path()).unwrap();
        let disks = EmulatedDisks { write_latency_us: 1000, link_us: 300, machine: None };
        let of = |name: &str, index| {
            let setup = SETUPS.iter().find(|setup| setup.name == name).unwrap();
            disks.volume(&pair, setup, index)
        };
        assert!(of(MIRROR, 0).contains("write_latency = \"1000us\""));
        assert!(of(MIRROR, 1).contains("write_latency = \"1300us\""));
        assert!(of(NO_LINK, 1).contains("write_latency = \"1000us\""));
        assert_eq!(of(PLAIN, 1), "");
        assert!(of(FAR, 1).contains("write_latency = \"1300us\""));
        let port = pair.ports[1];
        assert!(of(FAR, 0).contains(&format!("nvme-tcp://127.0.0.1:{port}/")), "{}", of(FAR, 0));
        assert!(!of("cold, log in superblock", 0).contains("intent_log"));
        let customer = of(CUSTOMER_PD, 0);
        assert!(
            customer.contains("latency = \"1000us\" }, intent_log_mode = \"every-write\""),
            "{customer}"
        );
        assert!(!of(MIRROR, 0).contains("intent_log_mode"));
        let asynchronous = of(ASYNC, 1);
        assert!(asynchronous.contains("write_latency = \"1000us\""), "{asynchronous}");
        assert!(asynchronous.contains("added_rtt = \"300us\""), "{asynchronous}");
        assert!(!of(MIRROR, 1).contains("added_rtt"));
    }

    #[test]
    fn every_job_includes_the_setup_without_mirror() {
        assert_eq!((SETUPS[0].name, SETUPS[0].mirror), (PLAIN, MirrorKind::None));
        for hot in [true, false] {
            let count = SETUPS.iter().filter(|setup| setup.is_in(hot)).count();
            assert!(SETUPS[0].is_in(hot) && count > 1);
        }
    }
}
