//! What this crate takes at most, so that a hostile catalogue or command line stays harmless.

/// Largest catalogue file, in bytes. The built-in ones are below 64 KiB.
pub const MAX_CATALOGUE_BYTES: u64 = 1 << 20;

/// Longest piece of a catalogue that is repeated in a message, in characters.
pub const MAX_SHOWN_CHARS: usize = 60;

/// Most disks of one type that a configuration may have. Clouds allow at most 128 a machine.
pub const MAX_DISKS: u32 = 128;

/// Largest block of a workload, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// Smallest block of a workload, in bytes: one sector.
pub const MIN_BLOCK_BYTES: u64 = 512;

/// Most I/Os in flight, of all jobs together.
pub const MAX_DEPTH: u32 = 1 << 20;

/// How far from a prediction a measurement may be and still be as predicted. Sources round to two or
/// three digits, and 1,000 KB and 1,024 KB are 2.4 % apart.
pub const TOLERANCE: f64 = 0.05;

/// A queue of which this part was in flight on average was kept full: what is missing is the time
/// between a completion and the next submission, and the end of a run.
pub const QUEUE_FULL: f64 = 0.8;

/// A job that takes this much of one CPU, in %, has no time left to submit more.
pub const JOB_BUSY_PERCENT: f64 = 95.0;

/// Jobs that take this part of all CPUs leave none.
pub const CPU_BUSY: f64 = 0.9;

/// A run shorter than this, in s, may be all burst. Credits for minutes are usual with disks; no
/// source of the catalogues gives a number.
pub const BURST_SECONDS: f64 = 600.0;

/// An answer in less than this part of what the queue rule takes at best is memory's, not a disk's.
pub const MEMORY_PART: f64 = 0.1;
