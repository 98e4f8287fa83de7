//! What a disk of a cloud is told by, in a limit and in an emulation alike.

use super::form::{Key, key};
use super::limit::{IOPS, THROUGHPUT};
use super::{Kind, SizeRule};
use crate::limits::LIKE_SIZE_BYTES;

pub(super) const LIKE: Key = key(
    "like",
    Kind::Text("type of disk"),
    "",
    "Take the numbers and the rules of mixing from a catalogue: those of this type of disk, such as `pd-ssd`. [limit.md](limit.md#like-a-cloud-disk) says how.",
);
pub(super) const LIKE_SIZE: Key = key(
    "size",
    Kind::Size {
        min: *LIKE_SIZE_BYTES.start(),
        max: *LIKE_SIZE_BYTES.end(),
        rule: SizeRule::MultipleOf(512),
    },
    "",
    "Size of the disk that it is like, whatever the volume's own. Required with `like`, but for types that have one size.",
);
pub(super) const LIKE_MACHINE: Key = key(
    "machine",
    Kind::Text("machine type"),
    "",
    "Machine that the disk is attached to, such as `n2-standard-8`. Default: the catalogue's own, if it has one.",
);
pub(super) const LIKE_CATALOGUE: Key = key(
    "catalog",
    Kind::Text("catalogue"),
    "",
    "Catalogue of `like`: `gcp-current`, `gcp-2019`, or the path of a file. Default: `gcp-current`.",
);
pub(super) const LIKE_DISKS: Key = key(
    "disks",
    Kind::Count { min: 1, max: flagstone_cloud::limits::MAX_DISKS as u64 },
    "",
    "Such disks, striped. Default: as many as the machine comes with, or 1.",
);
pub(super) const LIKE_REGIONAL: Key =
    key("regional", Kind::Flag, "", "The disk is replicated in two zones. Default: it is not.");
pub(super) const LIKE_IOPS: Key = key(
    "provisioned_iops",
    IOPS,
    "",
    "IOPS bought for each disk, of types that sell them. Default: that of the type.",
);
pub(super) const LIKE_THROUGHPUT: Key = key(
    "provisioned_throughput",
    THROUGHPUT,
    "",
    "Throughput bought for each disk, of types that sell it. Default: that of the type.",
);
pub(super) const LIKE_NETWORK: Key = key(
    "network_gbps",
    Kind::Count { min: 0, max: 10_000 },
    "",
    "What else the machine sends, in Gbit/s. Default: nothing.",
);
pub(super) const LIKE_TIER1: Key =
    key("tier1", Kind::Flag, "", "The machine has the dearer networking. Default: it has not.");
