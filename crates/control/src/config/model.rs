//! A configuration that has been checked: what the daemon runs.

use std::net::SocketAddr;
use std::time::Duration;

use flagstone_cloud::Confidence;
use flagstone_limit::{EmulationConfig, Limit};
use flagstone_mirror::queue::WhenFull;
use flagstone_mirror::{Ack, Intent, Mode, WhenPeerLost, WhenSplit};
use flagstone_replication::Codec;

use crate::api_spec::ApiSpec;
use crate::device_spec::{DeviceSpec, HostPort};
use crate::listen_spec::ListenSpec;
use crate::names::Uuid;

/// A whole configuration, valid in itself. Whether its devices exist and its addresses are free
/// is found out when they are opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What holds for the whole process.
    pub server: Server,
    /// The volumes, in the order of the file; at least one.
    pub volumes: Vec<Volume>,
    /// The limits that volumes share, in the order of the file.
    pub limits: Vec<SharedLimit>,
    /// The nodes that mirrors are with, in the order of the file.
    pub peers: Vec<Peer>,
    /// The NVMe subsystems: those of the file, then one for each volume that is in none of them.
    /// Every volume is a namespace of exactly one.
    pub subsystems: Vec<Subsystem>,
}

/// `[server]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Addresses to serve on; at least one, no two the same.
    pub listen: Vec<ListenSpec>,
    /// Executor threads; `None` for one a CPU.
    pub cores: Option<u32>,
    /// Hard ceiling of pooled I/O buffers, in bytes.
    pub memory_bytes: u64,
    /// The name by which its peers know this node; there when a volume is mirrored.
    pub node: Option<String>,
    /// How I/O reaches the kernel.
    pub driver: Driver,
    /// Longest busy wait before an executor sleeps; zero turns it off.
    pub spin: Duration,
    /// Where the control API is served.
    pub api: ApiSpec,
    /// Where metrics are served over TCP, if at all.
    pub metrics: Option<SocketAddr>,
    /// What NVMe/TCP hosts are offered.
    pub nvme: Nvme,
    /// What NBD clients are offered.
    pub nbd: Nbd,
}

/// How I/O reaches the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// io_uring where it is allowed, else threads.
    Auto,
    /// io_uring, or refuse to start.
    IoUring,
    /// Plain system calls on threads.
    Threads,
}

/// `[server.nvme]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvme {
    /// Begins the NQNs that are not given: `PREFIX:NAME`.
    pub nqn_prefix: String,
    /// Largest in-capsule data, in bytes: a multiple of 4,096, at most `mdts_bytes`.
    pub in_capsule_bytes: u32,
    /// I/O queues of one controller, 1 to 128.
    pub max_queues: u16,
    /// Entries of one I/O queue, 32 to 1,024.
    pub queue_depth: u16,
    /// Largest transfer of one command, in bytes: a power of two from 8 KiB to 32 MiB.
    pub mdts_bytes: u32,
    /// Connections of all hosts together.
    pub max_connections: u32,
    /// Whether header digests are given to hosts that ask.
    pub header_digest: bool,
    /// Whether data digests are given to hosts that ask.
    pub data_digest: bool,
    /// From accept to a completed Connect.
    pub handshake_timeout: Duration,
    /// Longest standstill in the middle of a PDU, in either direction.
    pub stall_timeout: Duration,
}

/// `[server.nbd]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nbd {
    /// Connections of all clients together.
    pub max_connections: u32,
    /// From accept to the end of negotiation.
    pub handshake_timeout: Duration,
    /// Longest standstill in the middle of a request or reply.
    pub stall_timeout: Duration,
}

/// `[volume.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The layers from the host's side down, in the order of the file.
    pub layers: Vec<Layer>,
    /// What the last layer stands on.
    pub backing: Backing,
    /// 512 or 4,096; `None` for the device's own.
    pub block_size_bytes: Option<u32>,
    /// Refuse writes.
    pub read_only: bool,
    /// The namespace's UUID, if given.
    pub uuid: Option<Uuid>,
    /// The name of its NBD export.
    pub nbd_export: String,
}

/// A layer of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// Makes requests wait.
    Delay(Delay),
    /// Fails requests.
    Fault(Fault),
    /// Lets so much through and no more.
    Limit(Box<Provisioned>),
    /// The same, together with other volumes: an index into [`Config::limits`].
    SharedLimit(usize),
    /// Answers as late as a disk of some type.
    Emulate(EmulationConfig),
    /// Keeps it identical on other nodes.
    Mirror(Box<Mirror>),
}

/// `[peer.NAME]`: another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name: what it calls itself.
    pub name: String,
    /// Where it serves NVMe/TCP.
    pub address: HostPort,
    /// Connections to it for each volume and core, 1 to 16.
    pub connections: u16,
    /// How long it may be silent before it counts as lost.
    pub timeout: Duration,
    /// How data travels to it; as it is when `None`.
    pub compression: Option<Codec>,
    /// Most that is sent to it, in bytes a second.
    pub max_bytes_per_s: Option<u64>,
}

/// `mirror = { … }`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Indices into [`Config::peers`], one or two.
    pub peers: Vec<usize>,
    /// When a write is complete.
    pub mode: Mode,
    /// What "the peer has it" means.
    pub ack: Ack,
    /// What to do with writes when the peer is lost.
    pub when_peer_lost: WhenPeerLost,
    /// What to do when both were written without the other.
    pub split_brain: WhenSplit,
    /// Where the write-intent log lies; at the end of the volume's own device when `None`.
    pub bitmap: Option<DeviceSpec>,
    /// Layers over that, the first on top: for labs and tests.
    pub bitmap_layers: Vec<Layer>,
    /// What the log writes before the data.
    pub intent: Intent,
    /// What each answer of the peers comes later, as over a longer link: for labs and tests.
    pub emulate_rtt: Duration,
    /// Asynchronous mode: bytes that wait for the peer, at most.
    pub queue_bytes: u64,
    /// Asynchronous mode: what to do with writes when it is full.
    pub when_queue_full: WhenFull,
    /// Most that a resync copies, in bytes a second.
    pub resync_max_bytes_per_s: Option<u64>,
    /// What it copies at least, however busy hosts are.
    pub resync_min_bytes_per_s: u64,
    /// A resync yields to hosts.
    pub resync_adaptive: bool,
    /// A resync compares checksums and copies only what differs.
    pub resync_compare: bool,
    /// What a bit of the bitmap stands for, in bytes; for a replica that is made.
    pub granularity_bytes: u32,
    /// What a crash may leave to be copied, in bytes; for a replica that is made.
    pub crash_resync_bytes: u64,
}

/// `[limit.NAME]`: a limit that several volumes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLimit {
    /// Its name.
    pub name: String,
    /// All of them together.
    pub limit: Provisioned,
}

/// A limit, and where its numbers are from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provisioned {
    /// Its numbers.
    pub numbers: Limit,
    /// The disk that they were taken from; `None` where they were written.
    pub like: Option<Box<Like>>,
}

impl From<Limit> for Provisioned {
    fn from(numbers: Limit) -> Provisioned {
        Provisioned { numbers, like: None }
    }
}

/// A disk of a catalogue, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Like {
    /// Such as `500 GiB of pd-ssd on n2-standard-8`.
    pub disk: String,
    /// Name of the catalogue.
    pub catalogue: String,
    /// Of when it is, as it says.
    pub date: String,
    /// How far the numbers are trusted: the least of what they rest on.
    pub confidence: Confidence,
    /// What the sources do not say, where they contradict themselves, and what else to know.
    pub remarks: Vec<String>,
}

/// `delay = { … }`: what is added to each request; zero adds nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delay {
    /// To each read.
    pub read: Duration,
    /// To each write.
    pub write: Duration,
    /// To each flush.
    pub flush: Duration,
    /// To each discard and write of zeroes.
    pub discard: Duration,
    /// To each of them, evenly spread from zero to this.
    pub jitter: Duration,
}

/// `fault = { … }`: how often requests of a kind fail. Discards fail only after a failed flush, as
/// every change does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Of reads.
    pub read: FaultRate,
    /// Of writes and writes of zeroes.
    pub write: FaultRate,
    /// Of flushes.
    pub flush: FaultRate,
    /// Determines the random ones.
    pub seed: u64,
}

/// How often requests of one kind fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultRate {
    /// None does.
    Never,
    /// Every so many, one does.
    Every(u64),
    /// So many of a million, at random.
    PerMillion(u32),
}

/// What stores a volume's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// One device.
    Device(DeviceSpec),
    /// Several as one.
    Stripe {
        /// Bytes on one device before the next one's turn: a multiple of 512.
        chunk_bytes: u64,
        /// 2 to 64 devices.
        devices: Vec<DeviceSpec>,
    },
}

impl Backing {
    /// The devices, one or more.
    pub fn devices(&self) -> &[DeviceSpec] {
        match self {
            Backing::Device(device) => std::slice::from_ref(device),
            Backing::Stripe { devices, .. } => devices,
        }
    }
}

/// An NVMe subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name in the file: that of its table, or of its only volume.
    pub name: String,
    /// Its NQN; no two are the same.
    pub nqn: String,
    /// Its serial number, if given.
    pub serial: Option<String>,
    /// Indices into [`Config::volumes`]; the first is namespace 1.
    pub namespaces: Vec<usize>,
    /// Hosts that may connect; `None` for every host.
    pub allow_hosts: Option<Vec<String>>,
}

impl Config {
    /// The UUID of the volume at `index`: the one given, or one made of `machine` (what tells
    /// this machine from others, such as the machine id), the subsystem's NQN and the volume's
    /// name, the same at every start. A mirrored volume's is the same on all its nodes, for hosts
    /// see one volume by several paths.
    pub fn volume_uuid(&self, index: usize, machine: &[u8]) -> Uuid {
        let volume = &self.volumes[index];
        let machine = if volume.mirror().is_some() { b"mirror" } else { machine };
        let subsystem = self.subsystems.iter().find(|one| one.namespaces.contains(&index));
        let nqn = subsystem.map_or("", |subsystem| &subsystem.nqn);
        let derived = || Uuid::derived(&[machine, nqn.as_bytes(), volume.name.as_bytes()]);
        volume.uuid.unwrap_or_else(derived)
    }
}

impl Volume {
    /// How it is mirrored, if it is.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.layers.iter().find_map(|layer| match layer {
            Layer::Mirror(mirror) => Some(mirror.as_ref()),
            _ => None,
        })
    }
}

impl Config {
    /// The serial number of a subsystem: the one given, or one made of `machine` and the NQN, the
    /// same at every start; of a mirrored volume the same on all its nodes.
    pub fn serial_number(&self, subsystem: &Subsystem, machine: &[u8]) -> String {
        let mut volumes = subsystem.namespaces.iter().map(|index| &self.volumes[*index]);
        let mirrored = volumes.any(|volume| volume.mirror().is_some());
        let machine = if mirrored { b"mirror" } else { machine };
        let derived = || Uuid::derived(&[machine, subsystem.nqn.as_bytes()]).serial();
        subsystem.serial.clone().unwrap_or_else(derived)
    }
}
