//! Memory and work bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Allocation unit of a memory device, in bytes. A first write of 4 KiB allocates this much. A lock
/// covers this much, so a copy under it lasts some microseconds.
pub const MEMORY_CHUNK_BYTES: u64 = 64 << 10;

/// Chunks described by a directory page of a memory device: 4,096 × 64 KiB = 256 MiB. At 24 B each,
/// a page takes 96 KiB (0.04 % of the memory it describes), allocated at the first write to it.
pub const MEMORY_CHUNKS_PER_PAGE: u64 = 4096;

/// Largest memory device, in bytes: its directory of 64 TiB / 256 MiB = 262,144 pages, 16 B each,
/// takes 4 MiB while the device is empty.
pub const MEMORY_MAX_BYTES: u64 = 64 << 40;

/// Largest size of a device without storage (null), in bytes: offsets fit `off_t`.
pub const DEVICE_MAX_BYTES: u64 = i64::MAX as u64;

/// Size of the bounce buffers with which a file device copies memory that is not aligned for
/// O_DIRECT, in bytes; one per request is in flight.
pub const BOUNCE_BYTES: usize = 256 << 10;

/// How long a request waits for a bounce buffer before it fails with [`crate::IoError::NoMemory`],
/// in milliseconds. Requests that all hold memory and wait for more must not deadlock.
pub const BOUNCE_WAIT_MS: u64 = 5_000;

/// Interval at which a file device in use compares its size with its file's, in milliseconds:
/// one system call of 0.3 µs per interval.
pub const SIZE_CHECK_MS: u64 = 10;

/// Shortest time between two lines of the log about failed calls of one file or disk.
pub const FAILURE_LOG_PERIOD: Duration = Duration::from_secs(10);

/// Largest range per call that deallocates or zeroes file space, in bytes: a system call cannot be
/// interrupted, so none may last for minutes.
pub const PUNCH_BYTES: u64 = 1 << 30;

/// Length of the zero buffers written if a file cannot zero ranges, in bytes. The pool has one such
/// block per core, which all users share.
pub const ZERO_PIECE_BYTES: u64 = 64 << 10;

/// Calls to children in flight per request; the others follow as these complete. 16 × 40 B
/// keep the state of a request below 1 KiB.
pub const WINDOW: usize = 16;

/// Most children of a stripe.
pub const STRIPE_MAX_CHILDREN: usize = 256;

/// Largest chunk of a stripe, in bytes.
pub const STRIPE_MAX_CHUNK_BYTES: u64 = 1 << 30;

/// Largest fixed or jittered part of a delay, in seconds.
pub const DELAY_MAX_SECONDS: u64 = 60;

/// Ranges that a fault layer keeps per kind of call.
pub const FAULT_MAX_RANGES: usize = 1024;

/// Extents in one answer of [`crate::BlockDevice::allocated`]: 128 of 16 B.
pub const EXTENTS_MAX: usize = 128;

/// Smallest file or disk that is served, in bytes: one block of 4 KiB.
pub(crate) const FILE_BYTES_MIN: u64 = 4096;

/// Interval of checks for the end of changes that began before the first Compare and Write.
pub(crate) const EXCLUSION_POLL: std::time::Duration = std::time::Duration::from_micros(200);

/// Part of a range that Compare and Write reads at the memory ceiling, in bytes, beyond the
/// ceiling.
pub(crate) const COMPARE_LEAST_BYTES: usize = 4 << 10;

/// Largest block of a device below [`SectorDevice`](crate::SectorDevice), in bytes. A core has one
/// such buffer outside the memory limit.
pub const EDGE_BYTES_MAX: usize = 64 << 10;
