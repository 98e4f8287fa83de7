//! Bounds of this crate, which keep a hostile catalog or command line harmless.

/// Largest catalog file, in bytes. The built-in ones are below 64 KiB.
pub(crate) const MAX_CATALOG_BYTES: u64 = 1 << 20;

/// Longest quotation in a message, in characters.
pub(crate) const MAX_SHOWN_CHARS: usize = 60;

/// Maximum number of disks of a configuration. Clouds allow at most 128 per machine.
pub const MAX_DISKS: u32 = 128;

/// Largest block of a workload, in bytes.
pub(crate) const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// Smallest block of a workload, in bytes: one sector.
pub const MIN_BLOCK_BYTES: u64 = 512;

/// Maximum I/Os in flight, of all jobs together.
pub(crate) const MAX_DEPTH: u32 = 1 << 20;

/// Default tolerance of a judgment. Sources round to two or three digits, and 1,000 KB and 1,024 KB
/// differ by 2.4 %.
pub const TOLERANCE: f64 = 0.05;

/// Relative difference below which a measured rate equals a cap. Narrower than [`TOLERANCE`], since
/// a cap is looked for among many.
pub const CAP_TOLERANCE: f64 = 0.02;

/// Average fraction of the queue depth from which a queue counts as full. The rest is the time
/// between a completion and the next submission, and the end of a run.
pub(crate) const QUEUE_FULL: f64 = 0.8;

/// CPU use, in % of one CPU, from which a job cannot submit more.
pub(crate) const JOB_BUSY_PERCENT: f64 = 95.0;

/// Fraction of all CPUs from which jobs saturate the machine.
pub(crate) const CPU_BUSY: f64 = 0.9;

/// Run length, in s, below which a run may be a burst. Disks commonly have credits for minutes; no
/// source of the catalogs gives a number.
pub(crate) const BURST_SECONDS: f64 = 600.0;

/// Fraction of the best latency of the queue depth rule below which an answer came from memory.
pub(crate) const MEMORY_PART: f64 = 0.1;
