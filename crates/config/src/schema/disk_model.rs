//! Disk model: the latency of a type of disk, for labs and tests.

use std::time::Duration;

use super::form::keys;
use super::{Section, ValueKind};

const LATENCY: ValueKind = ValueKind::Time(Duration::from_micros(1)..=Duration::from_secs(60));

/// `disk_model = { … }`
pub static DISK_MODEL: Section = Section {
    path: "volume.NAME.disk_model",
    keys: keys! {
        "latency", LATENCY, "" => "Median service latency.";
        "p99", LATENCY, "" =>
            "99th percentile, up to 100 times the median. Default: the median.";
        "read_latency", LATENCY, "" => "Median for reads; replaces `latency`.";
        "read_p99", LATENCY, "" => "99th percentile. Default: the median.";
        "write_latency", LATENCY, "" =>
            "Median for writes, flushes, discards and writes of zeroes; replaces `latency`.";
        "write_p99", LATENCY, "" =>
            "99th percentile. Default: the median.";
        "seed", ValueKind::Count(0..=i64::MAX as u64), "0" =>
            "Seed of the latencies.";
    },
    profile: true,
};
