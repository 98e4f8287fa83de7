//! Checked configuration, as the daemon runs it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flagstone_blockdev::{DelayConfig, FaultConfig};
use flagstone_cloud::Confidence;
use flagstone_limit::{DiskModelConfig, Limit};
use flagstone_mirror::{
    Ack, AfterSplitBrain, FailoverMode, IntentLogMode, Mode, OnCongestion, OnPeerLoss,
};
use flagstone_nvme::replica::Codec;
use flagstone_runtime::IoEngine;

use crate::access;
use crate::api_spec::ApiSpec;
use crate::device_spec::{DeviceSpec, HostPort, PoolVolumeSpec};
use crate::listen_spec::ConfiguredListener;
use crate::names::{Uuid, derived_uuid, serial_of};

/// A complete, consistent configuration. Devices and addresses are checked when they are opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub server: ServerSettings,
    /// The volumes, in the order of the file; at least one, unless there may be pools.
    pub volumes: Vec<Volume>,
    pub limits: Vec<LimitConfig>,
    pub peers: Vec<Peer>,
    /// The hosts that have keys, in the order of the file.
    pub hosts: Vec<HostAccess>,
    /// The users of the API over TCP, in the order of the file.
    pub api_users: Vec<ApiUser>,
    /// The arbiter; present if a mirror fails over by itself.
    pub arbiter: Option<ArbiterStore>,
    /// The NVMe subsystems: first the file's, then one for each volume outside of them.
    /// Every volume is a namespace of exactly one.
    pub subsystems: Vec<Subsystem>,
}

/// `[server]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Addresses to serve on; at least one, no two the same.
    pub listen: Vec<ConfiguredListener>,
    /// Executor threads; `None` for one a CPU.
    pub cores: Option<u32>,
    /// Hard limit of pooled I/O buffers, in bytes.
    pub buffer_memory_bytes: u64,
    /// The name of this node for its peers; present if a volume is mirrored.
    pub node: Option<String>,
    /// How I/O reaches the kernel.
    pub io_engine: IoEngine,
    /// Longest busy poll before an executor sleeps; zero turns it off.
    pub busy_poll: Duration,
    pub api: ApiSpec,
    /// The API over TCP.
    pub api_tls: Option<ApiTls>,
    pub metrics: Option<SocketAddr>,
    /// Directory of the server's own state; `None`: no pools.
    pub state: Option<PathBuf>,
    /// Device that resets the machine when the server hangs; only with automatic failover.
    pub watchdog: Option<PathBuf>,
    /// Program and arguments that print a key; empty without one.
    pub key_command: Vec<String>,
    pub nvme: Nvme,
    pub nbd: Nbd,
}

/// `[arbiter]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArbiterStore {
    Etcd(EtcdStore),
    Bucket(BucketStore),
}

/// An etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdStore {
    /// Members; at least one.
    pub etcd: Vec<HostPort>,
    /// How the connections are encrypted, if they are.
    pub tls: Option<ArbiterTls>,
    /// Beginning of the keys.
    pub prefix: String,
    /// User, and file of the password.
    pub user: Option<(String, PathBuf)>,
}

/// A bucket of an object store with conditional writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketStore {
    pub object_store: BucketUrl,
    /// Region of S3.
    pub region: String,
    /// Storage account of Azure; empty for others.
    pub account: String,
    /// `http://` or `https://`, host and port; the cloud's own if `None`.
    pub endpoint: Option<String>,
    /// Authorities that are trusted; the machine's if `None`.
    pub ca_file: Option<PathBuf>,
    /// Credentials; the machine's identity in its cloud if `None`.
    pub credentials_file: Option<PathBuf>,
}

/// `s3://BUCKET/PREFIX`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketUrl {
    pub cloud: Cloud,
    pub bucket: String,
    /// Beginning of the objects' names, without a slash at its ends.
    pub prefix: String,
}

/// Protocol of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3, and servers compatible with it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    pub(crate) const ALL: [Cloud; 3] = [Cloud::S3, Cloud::Google, Cloud::Azure];

    /// Scheme of its URLs.
    pub const fn scheme(self) -> &'static str {
        match self {
            Cloud::S3 => "s3",
            Cloud::Google => "gs",
            Cloud::Azure => "az",
        }
    }
}

impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.cloud.scheme(), self.bucket, self.prefix)
    }
}

/// TLS to the arbiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArbiterTls {
    /// Authorities that are trusted; the machine's if `None`.
    pub ca_file: Option<PathBuf>,
    /// This node's certificate, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// `[server.nvme]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvme {
    /// Prefix of default NQNs: `PREFIX:NAME`.
    pub nqn_prefix: String,
    /// Largest in-capsule data, in bytes: a multiple of 4,096, at most `mdts_bytes`.
    pub in_capsule_bytes: u32,
    /// I/O queues of one controller, 1 to 128.
    pub max_queues: u16,
    /// Entries of one I/O queue, 32 to 1,024.
    pub queue_depth: u16,
    /// Largest transfer of one command, in bytes: a power of two from 8 KiB to 32 MiB.
    pub mdts_bytes: u32,
    pub max_connections: u32,
    /// Grant header digests to hosts that ask for them.
    pub header_digest: bool,
    /// Grant data digests to hosts that ask for them.
    pub data_digest: bool,
    /// From accept to a completed Connect.
    pub handshake_timeout: Duration,
    /// Longest standstill in the middle of a PDU, in either direction.
    pub stall_timeout: Duration,
}

/// `[server.nbd]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nbd {
    pub max_connections: u32,
    /// From accept to the end of negotiation.
    pub handshake_timeout: Duration,
    /// Longest standstill in the middle of a request or reply.
    pub stall_timeout: Duration,
    /// Absolute path of a directory with the certificate of this server.
    pub tls_certificates: Option<PathBuf>,
    /// Clients have to show a certificate.
    pub tls_verify_clients: bool,
    /// Absolute path of a file of pre-shared keys.
    pub tls_psk_file: Option<PathBuf>,
}

/// `[volume.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    /// The layers from the host's side down.
    pub layers: Vec<LayerConfig>,
    /// The storage below the last layer.
    pub backing: Backing,
    /// 512 or 4,096; `None` for the device's own.
    pub block_size_bytes: Option<u32>,
    pub read_only: bool,
    pub uuid: Option<Uuid>,
    pub nbd_export: String,
    /// Clients that may use it over NBD, by names that they prove with TLS; `None` for all.
    pub nbd_clients: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerConfig {
    Delay(DelayConfig),
    Fault(FaultConfig),
    Limit(Box<Provisioned>),
    /// Rate limit layer shared with other volumes: an index into [`Config::limits`].
    SharedLimit(usize),
    DiskModel(DiskModelConfig),
    Mirror(Box<MirrorConfig>),
}

/// `[host.NAME]`: a host that has to authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAccess {
    /// Its name in the file.
    pub name: String,
    /// Its NQN; no two are the same.
    pub nqn: String,
    /// Absolute path of its key for authentication. It has this one, a key for TLS, or both.
    pub key_file: Option<PathBuf>,
    /// Absolute path of the key that the server proves to it.
    pub controller_key_file: Option<PathBuf>,
    /// Absolute path of its key for TLS.
    pub tls_key_file: Option<PathBuf>,
}

/// `[server.api_tls]`: the API over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTls {
    pub listen: SocketAddr,
    /// Absolute path of the server's certificate chain, as PEM.
    pub certificate_file: PathBuf,
    /// Absolute path of its private key, as PEM.
    pub key_file: PathBuf,
    /// Absolute path of the authorities of client certificates, as PEM; `None` for none.
    pub client_ca_file: Option<PathBuf>,
}

/// Rights of a user of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRole {
    /// Reads documents and metrics.
    ReadOnly,
    /// Reads, and gives orders.
    Operator,
}

impl ApiRole {
    pub const ALL: [ApiRole; 2] = [ApiRole::ReadOnly, ApiRole::Operator];

    /// Name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ApiRole::ReadOnly => "read-only",
            ApiRole::Operator => "operator",
        }
    }
}

/// `[api_user.NAME]`: a user of the API over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiUser {
    /// Its name in the file.
    pub name: String,
    pub role: ApiRole,
    /// Absolute path of the hashes of its tokens.
    pub token_file: Option<PathBuf>,
    /// DNS name in its client certificate.
    pub certificate_name: Option<String>,
}

/// Whether a peer that has a key for authentication or TLS can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerDemand {
    /// Connections without are refused.
    Required,
    /// Connections without are accepted, and made if the peer has no key.
    Allowed,
}

impl PeerDemand {
    pub(crate) const ALL: [PeerDemand; 2] = [PeerDemand::Required, PeerDemand::Allowed];

    /// Name in the configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            PeerDemand::Required => "required",
            PeerDemand::Allowed => "allowed",
        }
    }
}

/// `[peer.NAME]`: another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub address: HostPort,
    /// Absolute path of the key that both nodes prove.
    pub key_file: Option<PathBuf>,
    /// Whether connections need that key.
    pub authentication: PeerDemand,
    /// The operator accepts that it proves no key.
    pub insecure: bool,
    /// Absolute path of the key for TLS of both nodes.
    pub tls_key_file: Option<PathBuf>,
    /// Whether connections need the key for TLS.
    pub tls: PeerDemand,
    /// Where hosts reach it, if not at `address`.
    pub host_addresses: Option<Vec<HostPort>>,
    /// Connections to it for each volume and core, 1 to 16.
    pub connections: u16,
    /// Time without an answer after which it counts as lost.
    pub timeout: Duration,
    /// Compression of data sent to it; `None` for no compression.
    pub compression: Option<Codec>,
    /// Highest rate of data sent to it, in bytes a second.
    pub max_bytes_per_s: Option<u64>,
    /// Program by its absolute path, and its arguments, that stops its machine; empty for none.
    pub fence_command: Vec<String>,
    /// How long the command may run.
    pub fence_timeout: Duration,
}

impl Peer {
    /// Returns true if it has to prove a key, for authentication or TLS, on each connection.
    pub fn is_keyed(&self) -> bool {
        let proves =
            |file: &Option<PathBuf>, demand| file.is_some() && demand == PeerDemand::Required;
        proves(&self.key_file, self.authentication) || proves(&self.tls_key_file, self.tls)
    }

    pub fn reached_by_hosts(&self) -> &[HostPort] {
        self.host_addresses.as_deref().unwrap_or(std::slice::from_ref(&self.address))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Indices into [`Config::peers`], one or two.
    pub peers: Vec<usize>,
    pub mode: Mode,
    /// Consistency group.
    pub group: Option<String>,
    pub ack: Ack,
    /// Policy for writes while the peer is lost.
    pub on_peer_loss: OnPeerLoss,
    pub after_split_brain: AfterSplitBrain,
    /// Who decides that the target takes over.
    pub failover: FailoverMode,
    /// How long after its last contact the target asks the arbiter.
    pub failover_after: Duration,
    /// Asynchronous mode: a target takes over only if it lacks no write completed earlier than this
    /// before the source's last one.
    pub failover_max_lag: Option<Duration>,
    /// Device of the write-intent log; `None` for the end of the volume's own device.
    pub intent_log: Option<DeviceSpec>,
    /// Layers over the intent log device, the first on top: for labs and tests.
    pub intent_log_layers: Vec<LayerConfig>,
    /// Records of the log before data is written.
    pub intent_log_mode: IntentLogMode,
    /// Added to the round trip of the link, for labs and tests.
    pub added_rtt: Duration,
    /// Asynchronous mode: size of the queue, in bytes.
    pub queue_bytes: u64,
    /// Asynchronous mode: policy when the queue is full.
    pub on_congestion: OnCongestion,
    pub resync_max_bytes_per_s: Option<u64>,
    /// Lowest rate of an adaptive resync, in bytes a second.
    pub resync_min_bytes_per_s: u64,
    pub resync_adaptive: bool,
    /// A resync compares checksums and copies only blocks that differ.
    pub resync_compare: bool,
    /// Bytes that a bit of the bitmap covers; used when a replica is created.
    pub granularity_bytes: u32,
    /// Size of the activity log in bytes of data; used when a replica is created.
    pub activity_log_bytes: u64,
}

/// `[limit.NAME]`: a limit that several volumes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitConfig {
    pub name: String,
    pub limit: Provisioned,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provisioned {
    pub numbers: Limit,
    /// The disk profile of the numbers; `None` if the file has the numbers.
    pub profile: Option<Box<DiskProfile>>,
}

impl From<Limit> for Provisioned {
    fn from(numbers: Limit) -> Provisioned {
        Provisioned { numbers, profile: None }
    }
}

/// Description of a disk profile, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskProfile {
    /// Such as `500 GiB of pd-ssd on n2-standard-8`.
    pub disk: String,
    pub catalog: String,
    pub date: String,
    /// Confidence in the numbers: the lowest of their sources.
    pub confidence: Confidence,
    /// Gaps and contradictions of the sources, and other remarks.
    pub remarks: Vec<String>,
}

/// Storage of a volume's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    Device(DeviceSpec),
    Stripe {
        /// Consecutive bytes on one device: a multiple of 512.
        chunk_bytes: u64,
        devices: Vec<DeviceSpec>,
    },
    /// A pool that the server opened, by name: of volumes made at run time.
    Pool(String),
}

impl Backing {
    /// The volume of a pool that is the leg of this mirrored volume.
    pub fn leg(&self) -> Option<&PoolVolumeSpec> {
        match self {
            Backing::Device(device) => device.pool_volume(),
            Backing::Stripe { .. } | Backing::Pool(_) => None,
        }
    }

    /// The devices; none of a pool.
    pub fn devices(&self) -> &[DeviceSpec] {
        match self {
            Backing::Pool(_) => &[],
            Backing::Device(device) => std::slice::from_ref(device),
            Backing::Stripe { devices, .. } => devices,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name in the file: the name of its table, or of its only volume.
    pub name: String,
    pub nqn: String,
    /// Its serial number, if given.
    pub serial: Option<String>,
    /// Indices into [`Config::volumes`]; the first is namespace 1.
    pub namespaces: Vec<usize>,
    /// Hosts that may connect; `None` for every host.
    pub allow_hosts: Option<Vec<String>>,
}

impl Config {
    /// The hosts that may connect to a subsystem with their keys; if there are any, no others may.
    pub fn hosts_of(&self, subsystem: &Subsystem) -> impl Iterator<Item = &HostAccess> {
        access::hosts_of(self.hosts.iter(), subsystem)
    }

    /// The UUID of the volume at `index`: the configured one, or one derived from `machine` (the
    /// machine's identity), the subsystem's NQN and the volume's name, so that it is the same at
    /// every start. The UUID of a mirrored volume is the same on all its nodes, as hosts see one
    /// volume by several paths.
    pub fn volume_uuid(&self, index: usize, machine: &[u8]) -> Uuid {
        let volume = &self.volumes[index];
        let machine = if volume.mirror().is_some() { b"mirror" } else { machine };
        let subsystem = self.subsystems.iter().find(|one| one.namespaces.contains(&index));
        let nqn = subsystem.map_or("", |subsystem| &subsystem.nqn);
        let derived = || derived_uuid(&[machine, nqn.as_bytes(), volume.name.as_bytes()]);
        volume.uuid.unwrap_or_else(derived)
    }
}

impl Volume {
    pub fn mirror(&self) -> Option<&MirrorConfig> {
        self.layers.iter().find_map(|layer| match layer {
            LayerConfig::Mirror(mirror) => Some(mirror.as_ref()),
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
        let derived = || serial_of(derived_uuid(&[machine, subsystem.nqn.as_bytes()]));
        subsystem.serial.clone().unwrap_or_else(derived)
    }
}
