//! The documents of the API, as they are written and as our own client reads them.
//!
//! Members may be added within a version, so readers ignore what they do not know.

use std::collections::BTreeMap;

use flagstone_api::RouteInfo;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::counted::{CallTotals, Totals};
use crate::latency::{BUCKETS, Histogram, end_ns};

/// `GET /v1/`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerDocument {
    /// `flagstone`
    pub product: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub process_id: u32,
    /// Since it began to serve.
    pub uptime_seconds: f64,
    /// Time of day, since the Unix epoch.
    pub time_seconds: f64,
    /// How I/O reaches the kernel: `io_uring` or `threads`.
    pub driver: String,
    /// Executor threads.
    pub cores: usize,
    /// How many volumes it serves.
    pub volumes: usize,
    /// Where it serves them.
    pub listen: Vec<String>,
    /// NVMe/TCP connections, of all volumes.
    pub nvme_connections: usize,
    /// NBD connections, of all volumes.
    pub nbd_connections: usize,
    /// Pooled I/O buffers.
    pub memory: MemoryDocument,
    /// Everything that there is to ask for.
    pub resources: Vec<Resource>,
}

/// Pooled I/O buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDocument {
    /// Their ceiling.
    pub limit_bytes: usize,
    /// What they hold now, in use and idle.
    pub held_bytes: usize,
}

/// Something to ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// `GET` or `POST`.
    pub method: String,
    /// Its path, `{names}` standing for any word.
    pub path: String,
    /// What it does.
    pub about: String,
}

impl From<RouteInfo> for Resource {
    fn from(info: RouteInfo) -> Resource {
        Resource {
            method: info.method.name().into(),
            path: info.pattern.into(),
            about: info.about.into(),
        }
    }
}

/// `GET /v1/volumes`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumesDocument {
    /// Since the server began to serve: what rates are made of.
    pub uptime_seconds: f64,
    /// The volumes, in the order of the configuration.
    pub volumes: Vec<VolumeDocument>,
}

/// `GET /v1/volumes/{name}`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeDocument {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its logical block.
    pub block_bytes: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// A flush of its device has failed: it takes no writes until the server is started again, and what
    /// was not flushed before may be lost.
    #[serde(default)]
    pub flush_failed: bool,
    /// By which hosts know it again.
    pub uuid: String,
    /// Its layers, from the host's side down: `limit`, `shared_limit`, `delay`, `fault`, `emulate`,
    /// `stripe`; more may come.
    pub layers: Vec<String>,
    /// What stores its data, as it is written in the configuration.
    pub devices: Vec<String>,
    /// Where hosts find it.
    pub listeners: Vec<ListenerDocument>,
    /// Who is attached.
    pub connections: Vec<ConnectionDocument>,
    /// What went through it since the server began to serve.
    pub io: IoDocument,
    /// What other parts of the server tell of it, such as `limits`.
    #[serde(flatten)]
    pub parts: BTreeMap<String, Value>,
}

/// Where hosts find a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "protocol")]
pub enum ListenerDocument {
    /// NVMe/TCP
    #[serde(rename = "nvme-tcp")]
    NvmeTcp {
        /// `nvme-tcp://ADDRESS:PORT`
        address: String,
        /// The subsystem.
        nqn: String,
        /// The namespace.
        namespace: u32,
    },
    /// NBD
    #[serde(rename = "nbd")]
    Nbd {
        /// `nbd://ADDRESS:PORT` or `nbd+unix:///PATH`
        address: String,
        /// The export.
        export: String,
    },
}

/// A host that is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "protocol")]
pub enum ConnectionDocument {
    /// An NVMe controller: a host, with all its connections.
    #[serde(rename = "nvme-tcp")]
    NvmeTcp {
        /// Its name.
        host_nqn: String,
        /// The controller's identifier.
        controller: u16,
        /// The address that it connected to.
        local: Option<String>,
        /// Whether the host has enabled it.
        ready: bool,
        /// TCP connections: queues, the admin queue among them.
        queues: usize,
    },
    /// An NBD connection.
    #[serde(rename = "nbd")]
    Nbd {
        /// The client's address; `unix` of a Unix socket.
        peer: String,
    },
}

/// What went through a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IoDocument {
    /// Reads.
    pub read: CallsDocument,
    /// Writes.
    pub write: CallsDocument,
    /// Flushes; they have no bytes.
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

/// What was counted of one kind of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallsDocument {
    /// Calls that ended, well or not.
    pub count: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// Calls in progress.
    pub in_flight: u64,
    /// How long calls took.
    pub latency: LatencyDocument,
}

/// How long calls took. Those that were answered at once count as below a microsecond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyDocument {
    /// Mean; 0 when there are no calls, as are the others.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Sum of all.
    pub sum_us: f64,
    /// The histogram: pairs of where a bucket ends and how many calls are in it, without empty
    /// buckets; the end of the last bucket of all is `null`.
    pub buckets: Vec<(Option<f64>, u64)>,
}

/// Microseconds of nanoseconds.
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
    /// The histogram that the document tells of.
    pub fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        for (end, count) in &self.buckets {
            let bucket = match end {
                // The bucket before the end is the one that ends there.
                Some(end) => crate::latency::bucket_of(((end * 1000.0).round() as u64).max(1) - 1),
                None => BUCKETS - 1,
            };
            histogram.counts[bucket] += count;
        }
        histogram.sum_ns = (self.sum_us * 1000.0).round() as u64;
        histogram
    }
}

/// `waiting` of a volume that is not served yet
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingDocument {
    /// Why the last attempt to open its device failed.
    pub reason: String,
    /// Attempts that failed.
    pub attempts: u64,
    /// Since the first of them.
    pub seconds: f64,
    /// Until the next begins; `null` while one goes on, and when there will be none.
    pub next_seconds: Option<f64>,
}

/// `limits` of a volume
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDocument {
    /// The name of a shared limit; `null` of the volume's own.
    pub name: Option<String>,
    /// Commands that wait now.
    pub waiting: usize,
    /// Connections that they belong to.
    pub waiting_connections: usize,
    /// Commands that went at once.
    pub passed: u64,
    /// Commands that had to wait.
    pub delayed: u64,
}

/// `POST /v1/reload`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadDocument {
    /// Limits whose numbers are others now.
    pub limits_changed: usize,
    /// Something else was changed too, and takes effect at the next start.
    pub restart_needed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_as_it_was_written() {
        let mut histogram = Histogram { sum_ns: 123_456_789, ..Histogram::default() };
        for (bucket, count) in histogram.counts.iter_mut().enumerate() {
            *count = bucket as u64 % 3;
        }
        let text = serde_json::to_string(&LatencyDocument::from(&histogram)).unwrap();
        let document: LatencyDocument = serde_json::from_str(&text).unwrap();
        assert_eq!(document.histogram(), histogram);
    }
}
