//! What is set against what: the volumes of the two nodes, and their configuration.
//!
//! The disks are memory that answers as late as the published report's disks did; the link's round
//! trip is in the answer of the target's disk, one timer for both, so that it costs no CPU time and
//! no second wake-up on a machine where two nodes and their host share the CPUs. What the loopback
//! takes by itself is part of that round trip, not added to it.

use std::fmt::Write as _;

use crate::node::Pair;

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
/// IOPS of 500 GB of it, at 30 a GB, and of N2-standard-8.
const DISK_IOPS: u64 = 15_000;
/// What it is called in the catalogue, and how large it is, where a machine's limits are taken.
pub const TYPE: &str = "pd-ssd";
/// See [`TYPE`].
pub const DISK_BYTES: u64 = 500_000_000_000;
/// The catalogue of the time of the report.
pub const CATALOGUE: &str = "gcp-2019";
/// How long its reads take. None is measured, and a node that looks for its replica reads at some
/// thousand places, one after the other.
const READ_LATENCY_US: u64 = 1;
/// How long a write to a local SSD takes: no source says; SSDs of this kind take less than 100 µs
/// at low depths.
const LOCAL_SSD_LATENCY_US: u64 = 100;

/// What a node takes of the machine.
const NODE: &str = "cores = 1\nmemory = \"512MiB\"\n";

/// Where the intent log lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// On a local SSD.
    LocalSsd,
    /// On another persistent disk, as slow as the data's.
    PersistentDisk,
    /// At the end of the data's own disk.
    Superblock,
}

/// Whether there is a mirror, and what kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirror {
    /// None.
    None,
    /// Both sides have it durably when it is complete.
    SyncDisk,
    /// Both sides have it when it is complete.
    SyncMemory,
    /// This side has it when it is complete.
    Async,
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
}

/// What the others are compared with.
pub const PLAIN: &str = "no mirror";
/// The published mirror.
pub const MIRROR: &str = "mirror";
/// The same over a link that takes no time of its own: the loopback's is there still.
pub const NO_LINK: &str = "mirror, link without delay";

/// The volume with which the loopback's own round trip is measured.
pub const LOOPBACK: &str = "loopback";

/// The target's node with nothing behind it: what a write takes there is what lies between two
/// processes.
pub fn loopback_configuration(pair: &Pair) -> String {
    let gib = HOT_BYTES.div_ceil(1 << 30);
    pair.preamble(1, NODE, "") + &format!("[volume.{LOOPBACK}]\ndevice = \"null:{gib}GiB\"\n")
}

const fn setup(name: &'static str, volume: &'static str, mirror: Mirror) -> Setup {
    Setup { name, volume, mirror, log: Log::LocalSsd, link: true, hot: true }
}

/// All of them, what the others are compared with first.
pub const SETUPS: [Setup; 8] = [
    setup(PLAIN, "plain", Mirror::None),
    setup(MIRROR, "sync", Mirror::SyncDisk),
    Setup { link: false, ..setup(NO_LINK, "no-link", Mirror::SyncDisk) },
    setup("mirror, ack memory", "ack-memory", Mirror::SyncMemory),
    setup("mirror, async", "async", Mirror::Async),
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
}

/// The disks and the link of one round of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Disks {
    /// How long a write takes on a disk, in µs.
    pub write_latency_us: u64,
    /// What the target's disk adds for the link's round trip, in µs: what the loopback does not take.
    pub link_us: u64,
    /// A machine type, such as `c2-standard-8`, whose limits hold in place of the published disk's.
    pub machine: Option<String>,
}

impl Disks {
    fn emulate(&self, setup: &Setup, index: usize) -> String {
        let link_us = if index == 1 && setup.link { self.link_us } else { 0 };
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
            Mirror::None => return None,
            Mirror::SyncDisk => "mode = \"sync\", ack = \"disk\"",
            Mirror::SyncMemory => "mode = \"sync\", ack = \"memory\"",
            Mirror::Async => "mode = \"async\"",
        };
        let latency_us = match setup.log {
            Log::LocalSsd => Some(LOCAL_SSD_LATENCY_US),
            Log::PersistentDisk => Some(self.write_latency_us),
            Log::Superblock => None,
        };
        let mut text = format!("mirror = {{ peer = \"{peer}\", {mode}");
        if let Some(us) = latency_us {
            let _ = write!(
                text,
                ", bitmap = \"memory:64MiB\", bitmap_emulate = {{ latency = \"{us}us\" }}"
            );
        }
        if !setup.hot {
            let _ = write!(text, ", crash_resync = \"{COLD_CRASH_RESYNC}\"");
        }
        Some(text + " }\n")
    }

    /// The table of a volume on a node, 0 being the source; empty where it is not.
    pub fn volume(&self, setup: &Setup, index: usize) -> String {
        let mirror = self.mirror(setup, crate::node::NAMES[1 - index]);
        if mirror.is_none() && index == 1 {
            return String::new();
        }
        // What is compared with all of them is written to by the jobs of all.
        let bytes = match setup.mirror == Mirror::None || !setup.hot {
            true => COLD_BYTES,
            false => HOT_BYTES,
        };
        format!(
            "[volume.{}]\n{}{}device = \"memory:{}MiB\"\n\n",
            setup.volume,
            mirror.unwrap_or_default(),
            self.emulate(setup, index),
            (bytes + SPARE_BYTES) >> 20,
        )
    }

    /// The configuration of a node with these volumes, 0 being the source.
    pub fn configuration(&self, pair: &Pair, index: usize, setups: &[Setup]) -> String {
        let volumes: String = setups.iter().map(|setup| self.volume(setup, index)).collect();
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
                    assert!(emulated, "{} is emulated", volume.name);
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
    fn the_link_is_in_the_answer_of_the_targets_disk() {
        let disks = Disks { write_latency_us: 1000, link_us: 300, machine: None };
        let of = |name: &str, index| {
            let setup = SETUPS.iter().find(|setup| setup.name == name).unwrap();
            disks.volume(setup, index)
        };
        assert!(of(MIRROR, 0).contains("write_latency = \"1000us\""));
        assert!(of(MIRROR, 1).contains("write_latency = \"1300us\""));
        assert!(of(NO_LINK, 1).contains("write_latency = \"1000us\""));
        assert_eq!(of(PLAIN, 1), "");
        assert!(!of("cold, log in superblock", 0).contains("bitmap"));
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
