//! What is set against what: the volumes of the two nodes, and their configuration.
//!
//! The disks are memory that answers as late as the published report's disks did; the link's round
//! trip is in the answer of the target's disk, one timer for both, so that it costs no CPU time and
//! no second wake-up on a machine where two nodes and their host share the CPUs. An asynchronous
//! mirror has it in the link itself: nobody waits for that, but writes that follow from each other
//! would wait in the target's disk. What the loopback takes by itself is part of that round trip, not
//! added to it.

use std::fmt::Write as _;

use flagstone_cloud::{Catalogue, Configuration, Workload};

use crate::node::{Pair, device};

/// Bytes that are written to, of volumes whose regions may all be hot: the published 96 GB, in
/// miniature.
pub const HOT_BYTES: u64 = 96 << 20;
/// Bytes that are written to, of volumes of which the log may call a third hot: so that two of
/// three writes have to announce their region.
pub const COLD_BYTES: u64 = 384 << 20;
/// What the log of a cold volume may call hot: the least that there is.
const COLD_CRASH_RESYNC: &str = "128MiB";
/// Of a volume's device beyond what is written to, for the mirror's own structures.
const SPARE_BYTES: u64 = 16 << 20;

/// The published disk's throughput in bytes a second, as its row without a mirror at 64K says:
/// 240.02 MiB/s. Google's page gives 240 of its own MB/s, which are 2.4 % less.
const DISK_BYTES_PER_S: u64 = 251_679_000;
/// What it takes to begin to fill a volume, in seconds: to look whether it is filled, a process.
const FILL_STARTS_S: f64 = 0.3;
/// IOPS of 500 GB of it, at 30 a GB, and of N2-standard-8.
const DISK_IOPS: u64 = 15_000;
/// What it is called in the catalogue, and how large it is, where a machine's limits are taken.
pub const TYPE: &str = "pd-ssd";
/// See [`TYPE`].
pub const DISK_BYTES: u64 = 500_000_000_000;
/// The catalogue of the time of the report.
pub const CATALOGUE: &str = "gcp-2019";
/// How long its reads take: below the millisecond that SSD persistent disks are designed to stay
/// below. None is measured; a node that looks for its replica and a resync read.
const READ_LATENCY_US: u64 = 800;
/// How long a write of the log to a local SSD takes: no source says; SSDs of this kind take less
/// than 100 µs at low depths.
pub const LOCAL_SSD_LATENCY_US: u64 = 100;

/// How long a write of the log to a persistent disk of its own takes, which has nothing else to do:
/// later sources than the page say that SSD persistent disks are designed to stay below this.
pub const PERSISTENT_DISK_LATENCY_US: u64 = 1000;
/// What a node takes of the machine.
const NODE: &str = "cores = 1\nmemory = \"512MiB\"\n";

/// Writes a second of so many bytes that the disk's limits let through: those of the published disk,
/// or of a machine type, none for one that the catalogue does not have.
pub fn writes_per_s_most(block_bytes: u64, machine: Option<&str>) -> Option<f64> {
    let Some(machine) = machine else {
        return Some((DISK_BYTES_PER_S as f64 / block_bytes as f64).min(DISK_IOPS as f64));
    };
    let catalogue = Catalogue::builtin(CATALOGUE)?;
    let place = Configuration::new(catalogue, TYPE, DISK_BYTES, machine).ok()?;
    let found = catalogue.predict(&place, &Workload::random(block_bytes, 0)).ok()?;
    Some(found.allowed.iops)
}

/// Where the intent log lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// On a local SSD.
    LocalSsd,
    /// On a persistent disk of its own.
    PersistentDisk,
    /// At the end of the data's own disk.
    Superblock,
}

/// Whether there is a mirror, and what kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirror {
    /// None.
    None,
    /// None: the disk is at the target, and the source reaches it over the link. What a write there
    /// takes is the longer leg of a mirror: none over this link and these CPUs is faster, but for noise.
    Far,
    /// Both sides have it durably when it is complete.
    SyncDisk,
    /// Both sides have it when it is complete.
    SyncMemory,
    /// This side has it when it is complete.
    Async,
}

impl Mirror {
    /// Whether it is one.
    pub fn is_one(self) -> bool {
        !matches!(self, Mirror::None | Mirror::Far)
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// What tables call it.
    pub name: &'static str,
    /// The volume.
    pub volume: &'static str,
    /// What kind of mirror.
    pub mirror: Mirror,
    /// Where the log is, if there is one.
    pub log: Log,
    /// Whether the link takes the time that is asked for, and not the loopback's alone.
    pub link: bool,
    /// Whether the log may call all that is written hot.
    pub hot: bool,
    /// Whether each write has a record of the log to itself, as the customer's product had it.
    pub every_write: bool,
}

/// What the others are compared with.
pub const PLAIN: &str = "no mirror";
/// The published mirror.
pub const MIRROR: &str = "mirror";
/// The same over a link that takes no time of its own: the loopback's is there still.
pub const NO_LINK: &str = "mirror, link without delay";

/// The target's disk over the link, with no mirror.
pub const FAR: &str = "no mirror, disk at the target";

/// A mirror that hosts do not wait for.
pub const ASYNC: &str = "mirror, async";

/// A log that writes metadata before each data write, on a local SSD.
pub const CUSTOMER_SSD: &str = "customer's log on local SSD";
/// The same on a persistent disk.
pub const CUSTOMER_PD: &str = "customer's log on persistent disk";

/// The volume with which the loopback's own round trip is measured.
pub const LOOPBACK: &str = "loopback";

/// The target's node with nothing behind it: what a write takes there is what lies between two
/// processes.
pub fn loopback_configuration(pair: &Pair) -> String {
    let gib = HOT_BYTES.div_ceil(1 << 30);
    pair.preamble(1, NODE, "") + &format!("[volume.{LOOPBACK}]\ndevice = \"null:{gib}GiB\"\n")
}

const fn setup(name: &'static str, volume: &'static str, mirror: Mirror) -> Setup {
    Setup { name, volume, mirror, log: Log::LocalSsd, link: true, hot: true, every_write: false }
}

/// All of them, what the others are compared with first.
pub const SETUPS: [Setup; 11] = [
    setup(PLAIN, "plain", Mirror::None),
    setup(MIRROR, "sync", Mirror::SyncDisk),
    setup(FAR, "far", Mirror::Far),
    Setup { link: false, ..setup(NO_LINK, "no-link", Mirror::SyncDisk) },
    setup("mirror, ack memory", "ack-memory", Mirror::SyncMemory),
    setup(ASYNC, "async", Mirror::Async),
    Setup { every_write: true, ..setup(CUSTOMER_SSD, "customer-ssd", Mirror::SyncDisk) },
    Setup {
        every_write: true,
        log: Log::PersistentDisk,
        ..setup(CUSTOMER_PD, "customer-pd", Mirror::SyncDisk)
    },
    Setup { hot: false, ..setup("cold, log on local SSD", "cold-ssd", Mirror::SyncDisk) },
    Setup {
        hot: false,
        log: Log::PersistentDisk,
        ..setup("cold, log on persistent disk", "cold-pd", Mirror::SyncDisk)
    },
    Setup {
        hot: false,
        log: Log::Superblock,
        ..setup("cold, log in superblock", "cold-own", Mirror::SyncDisk)
    },
];

impl Setup {
    /// Whether it takes part in the jobs of hot volumes, or of cold ones: what they are all
    /// compared with takes part in both.
    pub fn is_in(&self, hot: bool) -> bool {
        self.mirror == Mirror::None || self.hot == hot
    }

    /// Of each of its devices, in bytes.
    fn device_bytes(&self) -> u64 {
        // What is compared with all of them is written to by the jobs of all.
        let written_to = match self.mirror == Mirror::None || !self.hot {
            true => COLD_BYTES,
            false => HOT_BYTES,
        };
        written_to + SPARE_BYTES
    }

    /// How long it takes to fill, in seconds.
    pub fn fill_seconds(&self) -> f64 {
        self.device_bytes() as f64 / DISK_BYTES_PER_S as f64 + FILL_STARTS_S
    }
}

/// The disks and the link of one round of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Disks {
    /// How long a write takes on a disk, in µs.
    pub write_latency_us: u64,
    /// What is added for the link's round trip, in µs: what the loopback does not take.
    pub link_us: u64,
    /// A machine type, such as `c2-standard-8`, whose limits hold in place of the published disk's.
    pub machine: Option<String>,
}

impl Disks {
    fn emulate(&self, setup: &Setup, index: usize) -> String {
        let in_disk = index == 1 && setup.link && setup.mirror != Mirror::Async;
        let link_us = if in_disk { self.link_us } else { 0 };
        let write_us = self.write_latency_us + link_us;
        let latency =
            format!("write_latency = \"{write_us}us\", read_latency = \"{READ_LATENCY_US}us\"");
        match &self.machine {
            Some(machine) => format!(
                "emulate = {{ like = \"{TYPE}\", size = {DISK_BYTES}, machine = {machine:?}, \
                 catalog = \"{CATALOGUE}\", {latency} }}\n"
            ),
            None => format!(
                "limit = {{ iops = {DISK_IOPS}, throughput = \"{DISK_BYTES_PER_S}B/s\" }}\n\
                 emulate = {{ {latency} }}\n"
            ),
        }
    }

    fn mirror(&self, setup: &Setup, peer: &str) -> Option<String> {
        let mode = match setup.mirror {
            Mirror::None | Mirror::Far => return None,
            Mirror::SyncDisk => "mode = \"sync\", ack = \"disk\"",
            Mirror::SyncMemory => "mode = \"sync\", ack = \"memory\"",
            Mirror::Async => "mode = \"async\"",
        };
        let latency_us = match setup.log {
            Log::LocalSsd => Some(LOCAL_SSD_LATENCY_US),
            Log::PersistentDisk => Some(PERSISTENT_DISK_LATENCY_US),
            Log::Superblock => None,
        };
        let mut text = format!("mirror = {{ peer = \"{peer}\", {mode}");
        if let Some(us) = latency_us {
            let _ = write!(
                text,
                ", bitmap = \"memory:64MiB\", bitmap_emulate = {{ latency = \"{us}us\" }}"
            );
        }
        if setup.mirror == Mirror::Async && setup.link && self.link_us > 0 {
            let _ = write!(text, ", emulate_rtt = \"{}us\"", self.link_us);
        }
        if setup.every_write {
            text += ", intent = \"every-write\"";
        }
        if !setup.hot {
            let _ = write!(text, ", crash_resync = \"{COLD_CRASH_RESYNC}\"");
        }
        Some(text + " }\n")
    }

    /// The table of a volume on a node, 0 being the source; empty where it is not.
    pub fn volume(&self, pair: &Pair, setup: &Setup, index: usize) -> String {
        match (setup.mirror, index) {
            (Mirror::None, 1) => return String::new(),
            (Mirror::Far, 0) => {
                let far = device(&pair.ports[1..], setup.volume);
                return format!("[volume.{}]\ndevice = \"{far}\"\n\n", setup.volume);
            }
            _ => {}
        }
        let mirror = self.mirror(setup, crate::node::NAMES[1 - index]);
        format!(
            "[volume.{}]\n{}{}device = \"memory:{}MiB\"\n\n",
            setup.volume,
            mirror.unwrap_or_default(),
            self.emulate(setup, index),
            setup.device_bytes() >> 20,
        )
    }

    /// The configuration of a node with these volumes, 0 being the source.
    pub fn configuration(&self, pair: &Pair, index: usize, setups: &[Setup]) -> String {
        let volumes: String = setups.iter().map(|setup| self.volume(pair, setup, index)).collect();
        pair.preamble(index, NODE, "") + &volumes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_control::config::{Config, Layer};

    fn parsed(text: &str) -> Config {
        Config::parse("lab.toml", text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
    }

    /// What the nodes are given is what `flagstone serve` takes, and says what it should.
    #[test]
    fn both_nodes_are_configured_rightly() {
        let directory = tempfile::tempdir().unwrap();
        let pair = Pair::new("flagstone".as_ref(), directory.path()).unwrap();
        for machine in [None, Some("c2-standard-8".to_owned())] {
            let disks = Disks { write_latency_us: 1935, link_us: 300, machine };
            let a = parsed(&disks.configuration(&pair, 0, &SETUPS));
            let b = parsed(&disks.configuration(&pair, 1, &SETUPS));
            assert_eq!(a.volumes.len(), SETUPS.len());
            assert_eq!(b.volumes.len(), SETUPS.len() - 1);
            for config in [&a, &b] {
                for volume in &config.volumes {
                    let emulated = volume.layers.iter().any(|l| matches!(l, Layer::Emulate(_)));
                    let is_elsewhere = volume.name == "far" && std::ptr::eq(config, &a);
                    assert_eq!(emulated, !is_elsewhere, "{}", volume.name);
                }
            }
        }
    }

    #[test]
    fn nothing_is_behind_the_loopback() {
        let directory = tempfile::tempdir().unwrap();
        let pair = Pair::new("flagstone".as_ref(), directory.path()).unwrap();
        let config = parsed(&loopback_configuration(&pair));
        assert_eq!((config.volumes.len(), config.volumes[0].name.as_str()), (1, LOOPBACK));
        assert!(config.volumes[0].layers.is_empty());
    }

    #[test]
    fn the_link_is_in_the_answer_of_the_targets_disk_or_in_itself() {
        let directory = tempfile::tempdir().unwrap();
        let pair = Pair::new("flagstone".as_ref(), directory.path()).unwrap();
        let disks = Disks { write_latency_us: 1000, link_us: 300, machine: None };
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
        assert!(!of("cold, log in superblock", 0).contains("bitmap"));
        let customer = of(CUSTOMER_PD, 0);
        assert!(
            customer.contains("latency = \"1000us\" }, intent = \"every-write\""),
            "{customer}"
        );
        assert!(!of(MIRROR, 0).contains("intent"));
        let asynchronous = of(ASYNC, 1);
        assert!(asynchronous.contains("write_latency = \"1000us\""), "{asynchronous}");
        assert!(asynchronous.contains("emulate_rtt = \"300us\""), "{asynchronous}");
        assert!(!of(MIRROR, 1).contains("emulate_rtt"));
    }

    #[test]
    fn all_are_compared_with_what_is_not_mirrored() {
        assert_eq!((SETUPS[0].name, SETUPS[0].mirror), (PLAIN, Mirror::None));
        for hot in [true, false] {
            let count = SETUPS.iter().filter(|setup| setup.is_in(hot)).count();
            assert!(SETUPS[0].is_in(hot) && count > 1);
        }
    }
}
