//! Memory bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Smallest pooled block, in bytes.
pub const BUF_MIN_BYTES: usize = 4096;

/// Length of the shared buffer of zeroes, in bytes.
pub const ZEROES_BYTES: usize = 64 << 10;

/// Largest pooled block, in bytes: NBD's largest request (32 MiB). Larger requests are refused.
pub const BUF_MAX_BYTES: usize = 32 << 20;

/// Number of size classes: powers of two from 4 KiB to 32 MiB.
pub const BUF_CLASSES: usize = 14;

/// Default limit of pooled memory for one process, in bytes.
pub const DEFAULT_BUFFER_MEMORY_BYTES: usize = 256 << 20;

/// Blocks of at least this size are separate mappings, in bytes; smaller ones are cut from slabs.
pub const BUF_MAPPED_BYTES: usize = 64 << 10;

/// A slab of small blocks, in bytes: 256 of 4 KiB, or 32 of 32 KiB.
pub const BUF_SLAB_BYTES: usize = 1 << 20;

/// A core keeps at most this fraction of the memory limit as idle blocks (1/16: 16 MiB by default),
/// so that a workload with a single block size reuses its blocks.
pub const BUF_IDLE_PART: usize = 16;

/// Upper bound of the idle blocks of a core, in bytes. Idle blocks count against the memory limit,
/// and are freed as soon as a task waits for memory.
pub const BUF_IDLE_BYTES_MAX: usize = 16 << 20;

/// Idle 4 KiB blocks outside the memory limit that a core keeps: 256 KiB.
pub const BUF_IDLE_SMALL: usize = 64;

/// Size of the shared reserve buffer that each core has outside the memory limit, in bytes.
/// Commands that hold memory and need more take turns with it. It is allocated at first use.
pub const BUF_SHARED_RESERVE_BYTES: usize = 1 << 20;

/// Step in which a core reserves memory for receiving ahead, in bytes, or 1/64 of the total if that
/// is larger. The memory that cores reserve without using is at most two steps per core.
pub const BUF_AHEAD_STEP_BYTES: usize = 256 << 10;

/// Pause before retrying after the system refused memory, in milliseconds.
pub const BUF_SYSTEM_PAUSE_MS: u64 = 10;

/// Most segments in one vectored send or receive (`UIO_MAXIOV` is 1,024).
pub const MAX_SEGMENTS: usize = 1024;

/// Submission queue entries of a ring. When it is full, the loop submits at once. So this bounds
/// batching, not the number of operations in flight.
pub const RING_ENTRIES: u32 = 512;

/// Completion queue entries of a ring. Beyond it the kernel queues completions itself
/// (`IORING_FEAT_NODROP`).
pub const RING_COMPLETIONS: u32 = 4096;

/// Tasks polled between two calls of the driver, so that a busy task cannot starve I/O.
pub const TASKS_PER_TURN: usize = 256;

/// How long a stopping executor waits for file operations, in nanoseconds: 30 s, the timeout that
/// Linux gives a SCSI command. Socket operations are cancelled and end at once.
pub const SHUT_DOWN_NS: u64 = 30_000_000_000;

/// Longest pause between two checks of those operations, in nanoseconds; a completion ends it.
pub const SHUT_DOWN_TURN_NS: u64 = 100_000_000;

/// Worker threads per core for file operations with the threads engine.
pub const FILE_WORKERS: usize = 8;

/// Default bound of busy-polling before sleeping, in nanoseconds.
pub const DEFAULT_BUSY_POLL_NS: u64 = 50_000;

/// Unflushed bytes of one simulated disk. Beyond it the oldest writes go to the medium, as a real
/// cache would write them back.
pub const SIM_CACHE_BYTES: usize = 64 << 20;

/// Unflushed writes of one simulated disk, bounded in the same way.
pub const SIM_CACHE_WRITES: usize = 1 << 16;

/// Backlog of a simulated listener: connections that wait to be accepted. Further ones retry.
pub const SIM_BACKLOG: usize = 1024;

/// Most recent events that a simulation keeps for its reports.
pub const SIM_EVENTS_REMEMBERED: usize = 64;

/// Smallest guaranteed share of a connection, in bytes: one block. With the default limit of 256
/// MiB and 1,280 connections the share is 36 KiB: 256 MiB × 3/8 / 2 / 1,280, rounded down to 4 KiB.
/// With 64 MiB it is 8 KiB.
pub const SHARE_BYTES_MIN: usize = BUF_MIN_BYTES;

/// Largest guaranteed share of a connection, in bytes. Few connections have the shared part
/// instead.
pub const SHARE_BYTES_MAX: usize = 64 << 10;

/// Step in which a share grows while memory is not short, in bytes.
pub const SHARE_STEP_BYTES: usize = 256 << 10;

/// Part of the shared part for connections that make progress: a quarter. Of 256 MiB the shared
/// part is 48 MiB and this is 12 MiB; of 64 MiB, 12 and 3 MiB.
pub const RESERVE_PART: usize = 4;

/// Part of the shared part that the connections of one protocol may hold: 3 of 4.
pub const PROTOCOL_PARTS: (usize, usize) = (3, 4);

/// Bytes that a peer has to read and send before its connection gets memory from the reserve: more
/// than the sockets of both sides buffer (Linux: up to 4 MiB sending and 6 MiB receiving).
pub const DRAINED_BYTES: u64 = 16 << 20;

/// A peer without progress for this long is stalled, if others wait for memory: more than twice the
/// shortest retransmission time-out of TCP, 200 ms.
pub const STALL_MIN: Duration = Duration::from_millis(500);

/// Time that connections wait for memory, all of them together, before a stalled one ends.
pub const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// Time after which a waiting connection that holds nothing is no longer overtaken, for each
/// [`SHARE_BYTES_MAX`] of its request: 16 s for 1 MiB.
pub const OVERTAKE_MAX: Duration = Duration::from_secs(1);

/// Interval at which progress is compared while a connection waits for memory.
pub const SHARE_LOOK: Duration = Duration::from_millis(100);

/// Threads for CPU-bound work off the cores.
pub const COMPUTE_THREADS: usize = 2;

/// Longest wait at the end of a TLS connection for a peer that does not read.
pub const TLS_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Data of one TLS record, in bytes (RFC 8446, section 5.1).
pub(crate) const TLS_RECORD_BYTES: usize = 16 << 10;

/// Bytes that a peer may send during a TLS handshake: certificate chains have up to some 10 KiB.
pub const TLS_HANDSHAKE_BYTES: usize = 64 << 10;

/// Receives of a TLS handshake, each of a header or a content, after which its connection stays
/// with the library: a peer could make a receive of every byte. A usual handshake takes at most 20.
pub(crate) const TLS_EXACT_RECEIVES: u32 = 64;

/// Smallest buffer for received records, in bytes: what an idle TLS connection holds, beside 33 KiB
/// in the TLS library.
pub(crate) const TLS_RX_MIN_BYTES: usize = 8 << 10;

/// Largest buffer for received records, in bytes: 8 records.
pub(crate) const TLS_RX_MAX_BYTES: usize = 128 << 10;

/// Buffer for records to send, in bytes: 7 records of 16 KiB.
pub(crate) const TLS_TX_BYTES: usize = 128 << 10;

/// Record buffers of a connection, in bytes: one for each direction.
pub(crate) const TLS_BUDGET_BYTES: usize = TLS_RX_MAX_BYTES + TLS_TX_BYTES;

/// Consecutive receives of less than a quarter of the buffer before it is halved.
pub(crate) const TLS_RX_SHRINK_AFTER: u32 = 64;

/// Names of a client's certificate that are looked at.
pub(crate) const TLS_CERTIFICATE_NAMES: usize = 64;

/// Attempts of a file operation that the system interrupts (EINTR) or postpones (EAGAIN). A signal
/// interrupts once, so that more than a few mean that the file system refuses.
pub(crate) const FILE_ATTEMPTS: u32 = 16;
