//! What bounds this crate's memory, with the arithmetic.

/// Alignment of every pooled buffer, in bytes: the largest memory alignment that O_DIRECT asks for
/// on disks with 4 KiB blocks.
pub const BUF_ALIGN_BYTES: usize = 4096;

/// Smallest pooled block, in bytes.
pub const BUF_MIN_BYTES: usize = 4096;

/// Length of the shared buffer of zeroes, in bytes.
pub const ZEROES_BYTES: usize = 64 << 10;

/// Largest pooled block, in bytes: NBD's largest request (32 MiB). Larger requests are refused.
pub const BUF_MAX_BYTES: usize = 32 << 20;

/// Number of size classes: powers of two from 4 KiB to 32 MiB.
pub const BUF_CLASSES: usize = 14;

/// Default ceiling of pooled memory for one process, in bytes.
pub const DEFAULT_MEMORY_BYTES: usize = 256 << 20;

/// Blocks from this size on are mappings of their own, in bytes; smaller ones are cut from slabs.
pub const BUF_MAPPED_BYTES: usize = 64 << 10;

/// A slab of small blocks, in bytes: 256 of 4 KiB, or 32 of 32 KiB.
pub const BUF_SLAB_BYTES: usize = 1 << 20;

/// A core keeps idle blocks of this part of the ceiling (1/16: 16 MiB of the default ceiling), so
/// that a load of any one block size finds its blocks again…
pub const BUF_IDLE_PART: usize = 16;

/// … and never more than so many bytes of them. Idle blocks are under the ceiling, and go as soon
/// as anyone waits for memory.
pub const BUF_IDLE_BYTES_MAX: usize = 16 << 20;

/// Idle blocks of 4 KiB beyond the ceiling that a core keeps: 256 KiB.
pub const BUF_IDLE_SMALL: usize = 64;

/// What a core has beyond the ceiling for commands that need more memory while they hold some, in
/// bytes: one buffer, from the first time that it is needed on.
pub const BUF_SPARE_BYTES: usize = 1 << 20;

/// A core sets memory for receiving ahead aside in steps of this, in bytes, or of 1/64 of all of
/// it: what cores together set aside and do not use is at most two steps each.
pub const BUF_AHEAD_STEP_BYTES: usize = 256 << 10;

/// Pause before memory is asked for again that the system itself refused, in milliseconds.
pub const BUF_SYSTEM_PAUSE_MS: u64 = 10;

/// Most segments in one vectored send or receive (`UIO_MAXIOV` is 1,024).
pub const MAX_SEGMENTS: usize = 1024;

/// Submission queue entries of a ring. When it is full the loop submits at once, so this bounds
/// batching, not the number of operations in flight.
pub const RING_ENTRIES: u32 = 512;

/// Completion queue entries of a ring; beyond it the kernel keeps completions itself
/// (`IORING_FEAT_NODROP`).
pub const RING_COMPLETIONS: u32 = 4096;

/// Tasks polled between two looks at the driver, so that a busy task cannot starve I/O.
pub const TASKS_PER_TURN: usize = 256;

/// How long an executor that ends waits for operations on files, in nanoseconds: 30 s, the time that
/// Linux gives a SCSI command. Those on sockets are cancelled and end at once.
pub const SHUT_DOWN_NS: u64 = 30_000_000_000;

/// Pause between two looks at them, in nanoseconds: completions end it.
pub const SHUT_DOWN_TURN_NS: u64 = 100_000_000;

/// Worker threads a core that carry file operations for the threaded driver.
pub const FILE_WORKERS: usize = 8;

/// Default bound of the busy-wait before sleeping, in nanoseconds.
pub const DEFAULT_SPIN_NS: u64 = 50_000;

/// Unflushed bytes of one simulated disk; beyond it the oldest go to its medium, as a real cache
/// would write them back.
pub const SIM_CACHE_BYTES: usize = 64 << 20;

/// Unflushed writes of one simulated disk; as above.
pub const SIM_CACHE_WRITES: usize = 1 << 16;

/// Connections that wait to be accepted at a simulated listener; further ones are tried again.
pub const SIM_BACKLOG: usize = 1024;

/// Latest events that a simulation remembers for its reports.
pub const SIM_EVENTS_REMEMBERED: usize = 64;
