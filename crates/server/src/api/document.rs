//! JSON documents of the API, shared by the server and its clients.
//!
//! Members may be added within a version, so readers ignore unknown members.

use flagstone_blockdev::stats::latency::{BUCKETS, Histogram, bucket_of, end_ns};
use flagstone_blockdev::stats::{CallTotals, Totals};
use flagstone_mirror::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mirror_document::MirrorDocument;
use super::pool_document::PoolPlaceDocument;
use crate::http::RouteInfo;

named! {
    /// I/O engine in use.
    #[derive(Default)]
    pub enum IoEngineName {
        /// io_uring.
        IoUring = "io_uring",
        /// poll(2) and worker threads.
        Threads = "threads",
        /// The simulator of the tests.
        Simulation = "simulation",
        _ => Unknown
    }
}

/// `GET /v1/`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerDocument {
    /// `flagstone`
    pub product: String,
    /// Version of Flagstone.
    pub version: String,
    /// Process ID.
    pub process_id: u32,
    /// Seconds since the server started.
    pub uptime_seconds: f64,
    /// Wall-clock time, in seconds since the Unix epoch.
    pub time_seconds: f64,
    /// I/O engine.
    pub io_engine: IoEngineName,
    /// Number of executor threads.
    pub cores: usize,
    /// Number of volumes.
    pub volumes: usize,
    /// Addresses that volumes are served on.
    pub listen: Vec<String>,
    /// Listeners and peers of mirrors that need no key.
    #[serde(default)]
    pub insecure: Vec<InsecureDocument>,
    /// Current NVMe/TCP connections of all volumes.
    pub nvme_connections: usize,
    /// Current NBD connections of all volumes.
    pub nbd_connections: usize,
    /// The I/O buffer pool.
    pub buffer_memory: BufferMemoryDocument,
    /// All resources of the API.
    pub resources: Vec<Resource>,
}

named! {
    /// Kind of access without a key.
    #[derive(Default)]
    pub enum InsecureKind {
        /// An address that volumes are served on.
        Listener = "listener",
        /// A peer of a mirror.
        Peer = "peer",
        /// The address of the metrics, off loopback.
        Metrics = "metrics",
        _ => Unknown
    }
}

/// A listener or peer that needs no key, because the configuration says `insecure = true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InsecureDocument {
    /// A listener, or a peer of a mirror.
    pub kind: InsecureKind,
    /// Address of the listener, or name of the peer.
    pub name: String,
    /// Access that results from it, as text.
    pub consequence: String,
}

/// The I/O buffer pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BufferMemoryDocument {
    /// Limit of the pool, in bytes.
    pub limit_bytes: usize,
    /// Memory held by the pool, in use and idle, in bytes.
    pub held_bytes: usize,
}

/// A resource of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resource {
    /// `GET` or `POST`.
    pub method: String,
    /// Path pattern; `{name}` matches any segment.
    pub path: String,
    /// Purpose, for people.
    pub description: String,
}

impl From<RouteInfo> for Resource {
    fn from(info: RouteInfo) -> Resource {
        Resource {
            method: info.method.as_str().into(),
            path: info.pattern.into(),
            description: info.about.into(),
        }
    }
}

/// `GET /v1/volumes`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumesDocument {
    /// Seconds since the server started. Two samples of the counters give rates.
    pub uptime_seconds: f64,
    /// Volumes, in the order of the configuration, then volumes of pools, then legs.
    pub volumes: Vec<VolumeDocument>,
}

/// `GET /v1/volumes/{name}`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeDocument {
    /// Name of the volume.
    pub name: String,
    /// Size; 0 while the volume is pending.
    pub size_bytes: u64,
    /// Logical block; 0 while the volume is pending.
    pub block_bytes: u32,
    /// Writes are rejected.
    pub read_only: bool,
    /// A flush of its device has failed. Writes are rejected until the server restarts, and
    /// unflushed writes may be lost.
    pub flush_failed: bool,
    /// UUID by which hosts identify the volume.
    pub uuid: String,
    /// Layers, from the host's side down.
    pub layers: Vec<String>,
    /// Devices that store its data, as written in the configuration.
    pub devices: Vec<String>,
    /// Addresses that it is served on.
    pub listeners: Vec<ListenerDocument>,
    /// Attached hosts.
    pub connections: Vec<ConnectionDocument>,
    /// I/O since the server started.
    pub io: IoDocument,
    /// Rate limits, from the host's side down.
    pub limits: Vec<LimitDocument>,
    /// Wait for the device of a pending volume; absent once the volume is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingDocument>,
    /// Mirror; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorDocument>,
    /// Place in a pool; absent for volumes of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolPlaceDocument>,
    /// The mirrored volume of which it is the leg, which hosts use instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg_of: Option<String>,
}

/// An address that a volume is served on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "protocol")]
pub enum ListenerDocument {
    /// NVMe/TCP
    #[serde(rename = "nvme-tcp")]
    NvmeTcp {
        /// `nvme-tcp://ADDRESS:PORT`
        address: String,
        /// NQN of the subsystem.
        nqn: String,
        /// Namespace ID.
        namespace: u32,
    },
    /// NBD
    #[serde(rename = "nbd")]
    Nbd {
        /// `nbd://ADDRESS:PORT` or `nbd+unix:///PATH`
        address: String,
        /// Name of the export.
        export: String,
    },
}

/// An attached host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "protocol")]
pub enum ConnectionDocument {
    /// An NVMe controller: one host with all its connections.
    #[serde(rename = "nvme-tcp")]
    NvmeTcp {
        /// NQN of the host.
        host_nqn: String,
        /// Controller ID.
        controller: u16,
        /// Local address of the connection.
        local: Option<String>,
        /// The host has proven its key, for authentication or TLS.
        authenticated: bool,
        /// The host has enabled the controller.
        ready: bool,
        /// Number of queues, including the admin queue; each is a TCP connection.
        queues: usize,
    },
    /// An NBD connection.
    #[serde(rename = "nbd")]
    Nbd {
        /// Address of the client; `unix` for a Unix socket.
        peer: String,
    },
}

impl ConnectionDocument {
    /// The host's NQN or address.
    pub fn host(&self) -> &str {
        match self {
            ConnectionDocument::NvmeTcp { host_nqn, .. } => host_nqn,
            ConnectionDocument::Nbd { peer } => peer,
        }
    }
}

/// I/O of a volume, by kind of call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IoDocument {
    /// Reads.
    pub read: CallsDocument,
    /// Writes.
    pub write: CallsDocument,
    /// Flushes; their bytes are 0.
    pub flush: CallsDocument,
    /// Discards.
    pub discard: CallsDocument,
    /// Writes of zeroes.
    pub write_zeroes: CallsDocument,
}

impl From<&Totals> for IoDocument {
    fn from(totals: &Totals) -> IoDocument {
        let [read, write, flush, discard, write_zeroes] =
            totals.calls.each_ref().map(CallsDocument::from);
        IoDocument { read, write, flush, discard, write_zeroes }
    }
}

/// Counters of one kind of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallsDocument {
    /// Completed calls, including failed ones.
    pub count: u64,
    /// Failed calls.
    pub errors: u64,
    /// Bytes of successful calls.
    pub bytes: u64,
    /// Calls in progress.
    pub in_flight: u64,
    /// Latency of calls.
    pub latency: LatencyDocument,
}

/// Latency of calls. Immediate answers count as below a microsecond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyDocument {
    /// Mean. All values are 0 without calls.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Sum of all latencies.
    pub sum_us: f64,
    /// Histogram: pairs of the upper bound and the count of each bucket that is not empty. The last
    /// bucket has no upper bound (`null`).
    pub buckets: Vec<(Option<f64>, u64)>,
}

fn us(nanos: f64) -> f64 {
    (nanos.round()) / 1000.0
}

impl From<&CallTotals> for CallsDocument {
    fn from(totals: &CallTotals) -> CallsDocument {
        CallsDocument {
            count: totals.count,
            errors: totals.errors,
            bytes: totals.bytes,
            in_flight: totals.in_flight,
            latency: LatencyDocument::from(&totals.latency),
        }
    }
}

impl From<&Histogram> for LatencyDocument {
    fn from(histogram: &Histogram) -> LatencyDocument {
        let (count, sum) = (histogram.count(), histogram.sum_ns as f64);
        let buckets = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        LatencyDocument {
            mean_us: if count == 0 { 0.0 } else { us(sum / count as f64) },
            p50_us: us(histogram.quantile_ns(0.5)),
            p99_us: us(histogram.quantile_ns(0.99)),
            p999_us: us(histogram.quantile_ns(0.999)),
            sum_us: us(sum),
            buckets: buckets
                .map(|(bucket, count)| (end_ns(bucket).map(|end| us(end as f64)), *count))
                .collect(),
        }
    }
}

impl LatencyDocument {
    /// Restores the histogram.
    pub fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        for (end, count) in &self.buckets {
            let bucket = match end {
                // The bound belongs to the next bucket.
                Some(end) => bucket_of(((end * 1000.0).round() as u64).max(1) - 1),
                None => BUCKETS - 1,
            };
            histogram.counts[bucket] += count;
        }
        histogram.sum_ns = (self.sum_us * 1000.0).round() as u64;
        histogram
    }
}

/// Attempts to open the device of a pending volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PendingDocument {
    /// Failure of the last attempt to open its device.
    pub reason: String,
    /// Number of failed attempts.
    pub attempts: u64,
    /// Seconds since the first of them.
    pub seconds: f64,
    /// Seconds until the next attempt; `null` during an attempt, and when there is none.
    pub next_seconds: Option<f64>,
}

/// A rate limit of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitDocument {
    /// Name of a shared limit; `null` for the volume's own.
    pub name: Option<String>,
    /// Commands waiting now.
    pub waiting: usize,
    /// Connections with waiting commands.
    pub waiting_connections: usize,
    /// Commands that a limit did not delay.
    pub immediate: u64,
    /// Delayed commands.
    pub delayed: u64,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadDocument {
    /// Number of limits changed.
    pub limits_changed: usize,
    /// Hosts that were removed, and whose keys are withdrawn: they are disconnected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn_hosts: Vec<String>,
    /// Other keys of the configuration that changed; they take effect at the next start.
    pub next_start_keys: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_survives_json() {
        let mut histogram = Histogram { sum_ns: 123_456_789, ..Histogram::default() };
        for (bucket, count) in histogram.counts.iter_mut().enumerate() {
            *count = bucket as u64 % 3;
        }
        let text = serde_json::to_string(&LatencyDocument::from(&histogram)).unwrap();
        let document: LatencyDocument = serde_json::from_str(&text).unwrap();
        assert_eq!(document.histogram(), histogram);
    }
}
