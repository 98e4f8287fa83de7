//! Disk profile: the keys that name a cloud disk, the same in a limit and in a disk model.

use super::form::keys;
use super::limit::{IOPS, THROUGHPUT};
use super::{Kind, Section, SizeRule};
use crate::limits::PROFILE_SIZE_BYTES;

const SIZE: Kind = Kind::Size(PROFILE_SIZE_BYTES, SizeRule::MultipleOf(512));

/// The keys of a disk profile, in [`LIMIT`](super::LIMIT) and [`DISK_MODEL`](super::DISK_MODEL)
pub static PROFILE: Section = Section {
    path: "profile",
    keys: keys! {
        "profile", Kind::Text("type of disk"), "" =>
            "Type of cloud disk, such as `pd-ssd`. Its limits, and how reads and writes share them, come from a catalog: [limit.md](limit.md#disk-profiles).";
        "size", SIZE, "" =>
            "Size of the profiled disk, independent of the volume's own size. Required with `profile`, except for types that have a single size.";
        "machine", Kind::Text("machine type"), "" =>
            "Machine that the disk is attached to, such as `n2-standard-8`. Default: the catalog's default machine, if it has one.";
        "catalog", Kind::Text("catalog"), "" =>
            "Catalog of `profile`: `gcp-current`, `gcp-2019`, or the path of a file. Default: `gcp-current`.";
        "disks", Kind::Count(1..=flagstone_cloud::limits::MAX_DISKS as u64), "" =>
            "Number of such disks, striped. Default: the number that the machine comes with, or 1.";
        "regional", Kind::Flag, "" => "The disk is replicated in two zones. Default: false.";
        "provisioned_iops", IOPS, "" =>
            "Provisioned IOPS of each disk, for types that sell IOPS. Default: the default of the type.";
        "provisioned_throughput", THROUGHPUT, "" =>
            "Provisioned throughput of each disk, for types that sell throughput. Default: the default of the type.";
        "other_egress_gbps", Kind::Count(0..=10_000), "" =>
            "Other egress traffic of the machine, in Gbit/s. Default: 0.";
        "tier1_networking", Kind::Flag, "" =>
            "The machine has Tier_1 networking (higher egress). Default: false.";
    },
    profile: false,
};
