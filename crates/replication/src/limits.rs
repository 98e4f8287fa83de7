//! Limits of the link.

use flagstone_nvme::replica::compressed::INFLATED_MAX_BYTES;
use flagstone_runtime::limits::BUF_SPARE_BYTES;

/// A write that is compressed goes in parts of so many bytes: compressing one keeps its core from all
/// else for about half a millisecond, at 500 MB/s.
pub(crate) const PART_BYTES: u64 = 256 << 10;
const _: () = assert!(PART_BYTES <= INFLATED_MAX_BYTES);
// What is inflated fits what a core has to spare for it.
const _: () = assert!(INFLATED_MAX_BYTES <= BUF_SPARE_BYTES as u64);

/// All parts of an ordered write are compressed in one go, as none that comes later may pass it. One
/// of more bytes goes as it is: it would keep its core from all else for longer than 2 ms.
pub(crate) const ORDERED_COMPRESSED_MAX_BYTES: u64 = 1 << 20;

/// Data that does not shrink by one part in so many goes as it is: to inflate it costs the target more
/// than the link gains.
pub(crate) const SAVED_PART: usize = 8;

/// How hard Zstandard tries: the level that is made for speed.
pub(crate) const ZSTD_LEVEL: i32 = 1;

/// What waits for its turn under a cap looks so often whether its session is lost, in ns.
pub(crate) const TURN_LOOK_NS: u64 = 100_000_000;

/// Turns that come late are made up for, as far as so many ns: timers are not exact.
pub(crate) const TURN_LATE_NS: u64 = 10_000_000;

/// Under a cap a resync has what hosts' writes leave, and one part in one more than so many at least,
/// so that it ends.
pub(crate) const RESYNC_SHARE: u64 = 8;
