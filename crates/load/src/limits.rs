//! What bounds this crate's memory and time, with the arithmetic.

use std::time::Duration;

/// Most I/Os in flight on one core. A slot and its waker take some 200 bytes, so 1.6 MiB.
pub const DEPTH_MAX: usize = 8192;

/// Most block sizes in one job's list.
pub const BLOCK_SIZES_MAX: usize = 64;

/// I/Os that a core completes at once before other tasks of the core get their turn: long enough
/// that the turn (some 100 ns) does not count, short enough (tens of microseconds on a device that
/// answers at once) that nobody starves.
pub const IOS_PER_POLL: usize = 256;

/// I/Os that one slot does in a row on a device that answers at once, before the next slot's turn.
pub const IOS_PER_SLOT: usize = 32;

/// Random bytes that writes take their data from, per core. They repeat after this many: a device
/// that deduplicates or compresses across more than this sees that.
pub const PAYLOAD_BYTES: usize = 4 << 20;

/// Longest latency told apart, in nanoseconds (100 s); longer ones count as this long. With 3
/// significant digits a histogram holds 28 × 1,024 counters of 8 bytes: 224 KiB an operation.
pub const LATENCY_MAX_NS: u64 = 100_000_000_000;

/// How far a job with a rate may fall behind and still catch up; beyond it the debt is forgiven, so
/// that a stall is not followed by a flood.
pub const CATCH_UP: Duration = Duration::from_secs(1);

/// Pause of a core's new I/Os after a failed one: a device that fails at once is not hammered.
pub const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// How long the I/Os in flight may take after a job's end; later they are given up and counted as
/// unfinished.
pub const DRAIN: Duration = Duration::from_secs(30);

/// Interval of progress and of the samples in the results.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Samples kept: a day of them, about 6 MiB. Later ones still reach the progress callback.
pub const SAMPLES_MAX: usize = 86_400;

/// Blocks that one verifier can watch: at 12 bytes and a bit each, 393 MiB; 128 GiB of 4 KiB blocks.
pub const VERIFY_BLOCKS_MAX: u64 = 1 << 25;

/// Violations told in words; all are counted.
pub const VIOLATIONS_KEPT: usize = 16;

/// Journal records buffered before verified I/O waits for the file, in bytes.
pub const JOURNAL_PENDING_MAX_BYTES: usize = 1 << 20;

/// Largest single append to a journal, and largest single read of one, in bytes.
pub const JOURNAL_CHUNK_BYTES: usize = 256 << 10;

/// Largest journal that is read, in bytes: 1 billion records of 16 bytes.
pub const JOURNAL_MAX_BYTES: u64 = 16 << 30;
