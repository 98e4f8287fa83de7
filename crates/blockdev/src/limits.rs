//! What bounds this crate's memory and work, with the arithmetic.

/// Unit in which a memory device takes memory, in bytes. A first write of 4 KiB takes this much; a
/// lock covers this much, so a copy under it lasts some microseconds.
pub const MEMORY_CHUNK_BYTES: u64 = 64 << 10;

/// Chunks a directory page of a memory device describes: 4,096 × 64 KiB = 256 MiB, for 24 B each,
/// 96 KiB a page (0.04 % of what it describes), taken at the first write to it.
pub const MEMORY_CHUNKS_PER_PAGE: u64 = 4096;

/// Largest memory device, in bytes: its directory of 64 TiB / 256 MiB = 262,144 pages, 16 B each,
/// takes 4 MiB before anything is written.
pub const MEMORY_MAX_BYTES: u64 = 64 << 40;

/// Largest size of a device without storage (null), in bytes: offsets fit `off_t`.
pub const DEVICE_MAX_BYTES: u64 = i64::MAX as u64;

/// Unit of the copies that a file device makes of memory that O_DIRECT does not take, in bytes; one
/// a request is in flight.
pub const BOUNCE_BYTES: usize = 256 << 10;

/// How long a request waits for the memory of such a copy before it fails with
/// [`crate::IoError::NoMemory`], in milliseconds. Requests that all hold memory and wait for more
/// must not wait for each other for ever.
pub const BOUNCE_WAIT_MS: u64 = 5_000;

/// Largest range given to one call that deallocates or zeroes a file's space, in bytes: a system
/// call cannot be interrupted, so none may last for minutes.
pub const PUNCH_BYTES: u64 = 1 << 30;

/// Length of the buffers that zeroes are written from where a file cannot zero ranges, in bytes;
/// the pool has one such block a core for all to share.
pub const ZERO_PIECE_BYTES: u64 = 64 << 10;

/// Calls to children that one request has in flight; the rest follow as these complete. 16 × 40 B
/// keep a request's state below 1 KiB.
pub const WINDOW: usize = 16;

/// Most children of a stripe.
pub const STRIPE_MAX_CHILDREN: usize = 256;

/// Largest chunk of a stripe, in bytes.
pub const STRIPE_MAX_CHUNK_BYTES: u64 = 1 << 30;

/// Largest fixed or jittered part of a delay, in seconds.
pub const DELAY_MAX_SECONDS: u64 = 60;

/// Ranges that a fault layer remembers for each kind of call.
pub const FAULT_MAX_RANGES: usize = 1024;
