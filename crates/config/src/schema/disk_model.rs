//! Disk model: the latency of a type of disk, for labs and tests.

use std::time::Duration;

use super::form::key;
use super::profile::{
    PROFILE, PROFILE_CATALOGUE, PROFILE_DISKS, PROFILE_IOPS, PROFILE_MACHINE, PROFILE_NETWORK,
    PROFILE_REGIONAL, PROFILE_SIZE, PROFILE_THROUGHPUT, PROFILE_TIER1,
};
use super::{Kind, Section};

/// Range of a modeled latency.
const LATENCY: Kind = Kind::Time { min: Duration::from_micros(1), max: Duration::from_secs(60) };

/// `disk_model = { … }`
pub static DISK_MODEL: Section = Section {
    path: "volume.NAME.disk_model",
    keys: &[
        key("latency", LATENCY, "", "Median of the service latency of all requests."),
        key(
            "p99",
            LATENCY,
            "",
            "99th percentile, 1 to 100 times the median. Default: the same as `latency`, which is then constant.",
        ),
        key("read_latency", LATENCY, "", "Median for reads; replaces `latency`."),
        key(
            "read_p99",
            LATENCY,
            "",
            "99th percentile of reads. Default: the same as `read_latency`.",
        ),
        key(
            "write_latency",
            LATENCY,
            "",
            "Median for writes, flushes, discards and writes of zeroes; replaces `latency`.",
        ),
        key(
            "write_p99",
            LATENCY,
            "",
            "99th percentile of writes. Default: the same as `write_latency`.",
        ),
        key(
            "seed",
            Kind::Count { min: 0, max: i64::MAX as u64 },
            "0",
            "Seed of the latencies, which are drawn in the order of the requests.",
        ),
        PROFILE,
        PROFILE_SIZE,
        PROFILE_MACHINE,
        PROFILE_CATALOGUE,
        PROFILE_DISKS,
        PROFILE_REGIONAL,
        PROFILE_IOPS,
        PROFILE_THROUGHPUT,
        PROFILE_NETWORK,
        PROFILE_TIER1,
    ],
};
