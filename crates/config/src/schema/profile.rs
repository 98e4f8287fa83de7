//! Disk profile: the keys that name a cloud disk, the same in a limit and in a disk model.

use super::form::keys;
use super::limit::{IOPS, THROUGHPUT};
use super::{Section, SizeRule, ValueKind};
use crate::limits::PROFILE_SIZE_BYTES;

const SIZE: ValueKind = ValueKind::Size(PROFILE_SIZE_BYTES, SizeRule::MultipleOf(512));

/// The keys of a disk profile, in [`LIMIT`](super::LIMIT) and [`DISK_MODEL`](super::DISK_MODEL)
pub static PROFILE: Section = Section {
    path: "profile",
    keys: keys! {
        "profile", ValueKind::Text("type of disk"), "" =>
            "Type of cloud disk, such as `pd-ssd`.";
        "size", SIZE, "" =>
            "Its size, independent of the volume's. Required, except for types of one size.";
        "machine", ValueKind::Text("machine type"), "" =>
            "Its machine, such as `n2-standard-8`. Default: the catalog's.";
        "catalog", ValueKind::Text("catalog"), "" =>
            "`gcp-current`, `gcp-2019`, or the path of a file. Default: `gcp-current`.";
        "disks", ValueKind::Count(1..=flagstone_cloud::limits::MAX_DISKS as u64), "" =>
            "Number of striped disks. Default: the machine's, or 1.";
        "regional", ValueKind::Boolean, "" => "The disk is replicated in two zones. Default: false.";
        "provisioned_iops", IOPS, "" =>
            "IOPS bought for each disk. Default: the type's.";
        "provisioned_throughput", THROUGHPUT, "" =>
            "Throughput bought for each disk. Default: the type's.";
        "other_egress_gbps", ValueKind::Count(0..=10_000), "" =>
            "Other egress of the machine, Gbit/s. Default: 0.";
        "tier1_networking", ValueKind::Boolean, "" =>
            "The machine has Tier_1 networking. Default: false.";
    },
    profile: false,
};
