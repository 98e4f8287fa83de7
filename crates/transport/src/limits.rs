//! Limits of a connection's memory and waiting times, with their arithmetic.

use std::time::Duration;

/// Smallest receive buffer, in bytes: the cost of an idle connection.
pub(crate) const RX_MIN_BYTES: usize = 8 << 10;

/// Receive buffer at the memory ceiling, in bytes; allocated beyond it.
pub(crate) const RX_LEAST_BYTES: usize = 4 << 10;

/// Largest receive buffer, in bytes: 64 writes of 4 KiB per receive.
pub(crate) const RX_MAX_BYTES: usize = 256 << 10;

/// Receive buffers that payloads of one connection may keep alive, in bytes. With 128 writes of 4
/// KiB, half of it is headers and gaps. Beyond it payloads are copied out of buffers of
/// [`RX_PASSING_BYTES`].
pub(crate) const RECEIVE_AHEAD_BYTES: usize = 1 << 20;

/// Receive buffer whose payloads are copied out, in bytes: 15 writes of 4 KiB per receive.
pub(crate) const RX_PASSING_BYTES: usize = 64 << 10;

/// Payload bytes laid out for a predicted shape: 64 × 4 KiB.
pub(crate) const RX_EXPECTED_BYTES: usize = 256 << 10;

/// Bytes received beyond a long payload in the same system call: the next headers. More would only
/// have to be copied into the next payload's buffer.
pub(crate) const LOOK_AHEAD_BYTES: usize = 4 << 10;

/// Pause before pooled memory is requested again for a long message at the memory ceiling.
pub(crate) const POOLED_PAUSE: Duration = Duration::from_millis(1);

/// Consecutive payloads of one shape before the next is predicted.
pub(crate) const PREDICT_AFTER: u32 = 4;

/// Consecutive small receives before the receive buffer is halved.
pub(crate) const RX_SHRINK_AFTER: u32 = 64;

/// Block that headers are cut from, in bytes: 170 of 24 B.
pub(crate) const HEADER_BLOCK_BYTES: usize = 4 << 10;

/// Payloads of at least this size are received into their own buffer, in bytes.
pub const DIRECT_BYTES: usize = 16 << 10;

/// Time for a peer to close after a TermReq.
pub const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time within which an equal refusal is not logged again.
pub(crate) const REFUSAL_REPEAT: Duration = Duration::from_secs(600);

/// Refusals logged at once, after a quiet time.
pub(crate) const REFUSALS_BURST: u32 = 10;

/// Interval between logged refusals after the burst: at most 8,640 lines a day.
pub(crate) const REFUSAL_PERIOD: Duration = Duration::from_secs(10);

/// Refusals that are remembered to recognize repetitions: 64 of 16 B.
pub(crate) const REFUSALS_KNOWN: usize = 64;

/// Bytes of a refused name that are logged: an NQN has at most 223.
pub(crate) const REFUSAL_NAME_CHARS: usize = 223;

/// Delay of a handshake after one failure of its source address; it doubles with each further
/// failure.
pub const FAILURE_DELAY: Duration = Duration::from_millis(100);

/// Longest such delay.
pub const FAILURE_DELAY_MAX: Duration = Duration::from_secs(4);

/// Longest delay for handshakes that were not completed: less than the shortest connect timeout.
pub const UNFINISHED_DELAY_MAX: Duration = Duration::from_millis(400);

/// Failures of a source address are forgotten after this time without another.
pub(crate) const FAILURE_MEMORY: Duration = Duration::from_secs(60);

/// Source addresses whose failures are remembered, of about 64 B each; beyond it, the address that
/// failed longest ago is forgotten.
pub(crate) const FAILED_SOURCES: usize = 4096;

/// Time limit of a handshake while more than half of all places are taken. A peer needs two round
/// trips and some milliseconds of computation.
pub const CROWDED_TIMEOUT: Duration = Duration::from_secs(1);
