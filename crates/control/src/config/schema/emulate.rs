//! The latency of a disk type, for labs.

use std::time::Duration;

use super::form::key;
use super::like::{
    LIKE, LIKE_CATALOGUE, LIKE_DISKS, LIKE_IOPS, LIKE_MACHINE, LIKE_NETWORK, LIKE_REGIONAL,
    LIKE_SIZE, LIKE_THROUGHPUT, LIKE_TIER1,
};
use super::{Kind, Section};

/// Of the distribution of an emulated latency.
const LATENCY: Kind = Kind::Time { min: Duration::from_micros(1), max: Duration::from_secs(60) };

/// `emulate = { … }`
pub static EMULATE: Section = Section {
    path: "volume.NAME.emulate",
    keys: &[
        key("latency", LATENCY, "", "Median of the service latency of all requests."),
        key(
            "p99",
            LATENCY,
            "",
            "99th percentile of it, 1 to 100 medians. Default: the same as `latency`, which is then constant.",
        ),
        key("read_latency", LATENCY, "", "Median of reads, in place of `latency`."),
        key("read_p99", LATENCY, "", "99th percentile of it. Default: the same as `read_latency`."),
        key(
            "write_latency",
            LATENCY,
            "",
            "Median of writes, flushes, discards and writes of zeroes, in place of `latency`.",
        ),
        key(
            "write_p99",
            LATENCY,
            "",
            "99th percentile of it. Default: the same as `write_latency`.",
        ),
        key(
            "seed",
            Kind::Count { min: 0, max: i64::MAX as u64 },
            "0",
            "Determines the latencies, in the order of the requests.",
        ),
        LIKE,
        LIKE_SIZE,
        LIKE_MACHINE,
        LIKE_CATALOGUE,
        LIKE_DISKS,
        LIKE_REGIONAL,
        LIKE_IOPS,
        LIKE_THROUGHPUT,
        LIKE_NETWORK,
        LIKE_TIER1,
    ],
};
