//! Limits of the arbiter.

/// Longest record, in bytes. Records that are written have up to about 400.
pub const RECORD_BYTES_MAX: usize = 1024;
/// Replicas of a volume: its source and up to two peers.
pub const REPLICAS_MAX: usize = 3;
/// Longest version of a stored record, in bytes. Entity tags of S3 have up to 40.
pub const VERSION_BYTES_MAX: usize = 256;
/// Time limit of one call to the store, in milliseconds. etcd answers within milliseconds, and
/// elects a new leader within about a second.
pub const CALL_MS: u64 = 1000;
/// Attempts of one race. With the pauses between them, a race without an answer ends after at most
/// `ATTEMPTS_MAX` × 2 × [`CALL_MS`] + 5 s. Its owner then starts another one while it needs one.
pub const ATTEMPTS_MAX: u32 = 8;
/// Pause before the second attempt, in milliseconds. Doubles with each attempt.
pub const PAUSE_MIN_MS: u64 = 20;
/// Longest pause, in milliseconds.
pub const PAUSE_MAX_MS: u64 = 1000;
