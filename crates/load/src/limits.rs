//! Memory and time bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Most I/Os in flight per core. A slot and its waker take about 200 bytes, so 1.6 MiB.
pub const DEPTH_MAX: usize = 8192;

/// Most block sizes in the list of a job.
pub const BLOCK_SIZES_MAX: usize = 64;

/// Immediate I/Os that a core completes before it yields to other tasks: enough that the cost of
/// yielding (about 100 ns) is negligible, and few enough (tens of microseconds on an immediate
/// device) that no task starves.
pub const IOS_PER_POLL: usize = 256;

/// Consecutive I/Os of one slot on an immediate device before the next slot gets its turn.
pub const IOS_PER_SLOT: usize = 32;

/// Random bytes per core from which writes take their data. They repeat after this many, which is
/// visible to a device that deduplicates or compresses across more than this.
pub const PAYLOAD_BYTES: usize = 4 << 20;

/// Longest sample of data to write, in bytes; each core has a copy.
pub const SAMPLE_BYTES_MAX: usize = 32 << 20;

/// Longest distinguished latency, in nanoseconds (100 s); longer ones count as this. With 3
/// significant digits a histogram has 28 × 1,024 counters of 8 bytes: 224 KiB per operation.
pub const LATENCY_MAX_NS: u64 = 100_000_000_000;

/// How far a job with a rate may fall behind and still catch up. More debt is forgiven, so that a
/// burst does not follow a stall.
pub const CATCH_UP: Duration = Duration::from_secs(1);

/// Pause of a core's new I/Os after a failed one, so that a device that fails immediately is not
/// flooded.
pub const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// Time for the I/Os in flight after the end of a job; afterwards they are abandoned and counted as
/// unfinished.
pub const DRAIN: Duration = Duration::from_secs(30);

/// Interval of progress reports and of the samples in the results.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Kept samples: one day, about 6 MiB. Later ones still reach the progress callback.
pub const SAMPLES_MAX: usize = 86_400;

/// Most blocks per verifier: at 12 bytes and one bit each, 393 MiB; 128 GiB of 4 KiB blocks.
pub const VERIFY_BLOCKS_MAX: u64 = 1 << 25;

/// Violations kept with details; all are counted.
pub const VIOLATIONS_KEPT: usize = 16;

/// Bytes of buffered journal records before verified I/O waits for the file.
pub const JOURNAL_PENDING_MAX_BYTES: usize = 1 << 20;

/// Largest single append to a journal, and largest single read of it, in bytes.
pub const JOURNAL_CHUNK_BYTES: usize = 256 << 10;

/// Largest accepted journal, in bytes: 1 billion records of 16 bytes.
pub const JOURNAL_MAX_BYTES: u64 = 16 << 30;
