//! Limits of the link.

use flagstone_nvme::replica::compressed::INFLATED_MAX_BYTES;
use flagstone_runtime::limits::BUF_SHARED_RESERVE_BYTES;

/// Compressed writes are sent in parts of this size: compressing one occupies its core for about
/// half a millisecond, at 500 MB/s.
pub(crate) const PART_BYTES: u64 = 256 << 10;
const _: () = assert!(PART_BYTES <= INFLATED_MAX_BYTES);
// Inflated data fits into the reserved memory of a core.
const _: () = assert!(INFLATED_MAX_BYTES <= BUF_SHARED_RESERVE_BYTES as u64);

/// The parts of an ordered write are compressed without a pause, because no later write may
/// overtake it. A longer write is sent uncompressed: it would occupy its core for more than 2 ms.
pub(crate) const ORDERED_COMPRESSED_MAX_BYTES: u64 = 1 << 20;

/// Data is sent uncompressed unless it shrinks by at least one part in this many: inflating would
/// cost the target more than the link gains.
pub(crate) const SAVED_PART: usize = 8;

/// Zstandard's level for speed.
pub(crate) const ZSTD_LEVEL: i32 = 1;

/// The next write that waits for bandwidth checks this often whether its session is lost, in ns.
pub(crate) const SESSION_CHECK_NS: u64 = 100_000_000;

/// Writes that were sent late are made up for, up to this many ns, because timers are imprecise.
pub(crate) const TIMER_SLACK_NS: u64 = 10_000_000;

/// Under a bandwidth limit, a resync gets what host writes leave, and at least one part in
/// `RESYNC_SHARE + 1`, so that it completes.
pub(crate) const RESYNC_SHARE: u64 = 8;
