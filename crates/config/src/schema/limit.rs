//! Limits: rates of a volume or of several together, and bursts above them.

use std::time::Duration;

use flagstone_limit::Mix;

use super::form::{DAY_MS, MIB, keys};
use super::{Section, SizeRule, ValueKind};
use crate::limits::{LIMIT_BYTES_PER_SECOND, MAX_LIMIT_IOPS};

pub(super) const IOPS: ValueKind = ValueKind::Count(1..=MAX_LIMIT_IOPS);
pub(super) const THROUGHPUT: ValueKind = ValueKind::Rate(LIMIT_BYTES_PER_SECOND);
const BURST_IOPS: ValueKind = ValueKind::Count(2..=MAX_LIMIT_IOPS);
const BURST_THROUGHPUT: ValueKind =
    ValueKind::Rate(2 * *LIMIT_BYTES_PER_SECOND.start()..=*LIMIT_BYTES_PER_SECOND.end());
const MIX: ValueKind = ValueKind::Choice(&[Mix::Separate.name(), Mix::Shared.name()]);
const IO_SIZE: ValueKind = ValueKind::Size(512..=32 * MIB, SizeRule::MultipleOf(512));

/// `limit = { … }` of a volume, and `[limit.NAME]`
pub static LIMIT: Section = Section {
    path: "limit.NAME",
    keys: keys! {
        "iops", IOPS, "" => "I/Os a second, reads and writes.";
        "read_iops", IOPS, "" => "Reads or writes a second.";
        "write_iops", IOPS, "" =>
            "Reads or writes a second.";
        "iops_mix", MIX, "separate" =>
            "How `read_iops` and `write_iops` [combine](limit.md#reads-and-writes).";
        "throughput", THROUGHPUT, "" => "Bytes a second, reads and writes.";
        "read_throughput", THROUGHPUT, "" => "Bytes read or written a second.";
        "write_throughput", THROUGHPUT, "" => "Bytes read or written a second.";
        "throughput_mix", MIX, "separate" =>
            "The same for `read_throughput` and `write_throughput`.";
        "io_size", IO_SIZE, "" =>
            "Each started unit of this size counts as an I/O. Default: any size is one I/O.";
        "burst", ValueKind::Table(&BURST), "" =>
            "Higher rates for a limited time.";
    },
    profile: true,
};

/// `burst = { … }`
pub static BURST: Section = Section {
    path: "limit.NAME.burst",
    keys: keys! {
        "iops", BURST_IOPS, "" =>
            "Rate while there is credit, more than the limit's.";
        "read_iops", BURST_IOPS, "" => "Rate while there is credit, more than the limit's.";
        "write_iops", BURST_IOPS, "" => "Rate while there is credit, more than the limit's.";
        "throughput", BURST_THROUGHPUT, "" => "Rate while there is credit, more than the limit's.";
        "read_throughput", BURST_THROUGHPUT, "" => "Rate while there is credit, more than the limit's.";
        "write_throughput", BURST_THROUGHPUT, "" => "Rate while there is credit, more than the limit's.";
        "duration", ValueKind::Time(Duration::from_secs(1)..=Duration::from_millis(DAY_MS)), "30s" =>
            "Time that a full bucket lasts at this rate. It starts full; unused rate refills it.";
    },
    profile: false,
};
