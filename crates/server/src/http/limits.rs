//! Bounds of the HTTP server and client on memory and time.
//!
//! A connection holds at most a head (8 KiB), a body (64 KiB), hyper's buffer of 8 KiB for each
//! direction, and its answer. 64 connections hold at most 6 MiB of requests without streams.

use std::time::Duration;

/// Longest request head, in bytes; longer is 431. Browsers and curl send about 500.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// Most header fields of a request or a response; more is 431.
pub const MAX_HEADERS: usize = 64;

/// Longest body of a request, in bytes; longer is 413. Requests that only read have none.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// Media type of streams of snapshots.
pub const STREAM_TYPE: &str = "application/vnd.flagstone.stream";

/// Route that receives them.
pub const STREAM_PATTERN: &str = "/v1/volumes/{name}/receive";

/// Longest body of an operator's request of [`STREAM_TYPE`] to [`STREAM_PATTERN`], in bytes: some
/// frames of up to 1 MiB. 64 connections hold at most 132 MiB of them.
pub const MAX_STREAM_BODY_BYTES: usize = (2 << 20) + (64 << 10);

/// Most segments of a path; more is 400. The longest route has 5.
pub const MAX_SEGMENTS: usize = 16;

/// Most parameters of a query; more is 400.
pub const MAX_PARAMETERS: usize = 16;

/// Connections at a time, for each listener. Another one takes the place of a quiet one; if all
/// have requests in progress, it is answered with 503 and closed.
pub const MAX_CONNECTIONS: usize = 64;

/// The same for each IP address, of [`MAX_CONNECTIONS`].
pub const MAX_PEER_CONNECTIONS: usize = 16;

/// From the first byte of a request to its last; also from the connection to its first byte.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest time between two TLS handshakes. One takes about a millisecond of CPU, so a flood takes
/// a twentieth of a CPU. With [`MAX_CONNECTIONS`] waiting, the last waits for 1.3 s.
pub const HANDSHAKE_PERIOD: Duration = Duration::from_millis(20);

/// Largest file of certificates or keys, in bytes. The authorities of a distribution take 230 KB.
pub const MAX_PEM_BYTES: u64 = 4 << 20;

/// Refusals on their way to the log; more are not logged.
pub const MAX_QUEUED_REFUSALS: usize = 64;

/// Silence between two requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time that a peer may take to accept some bytes of an answer.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// After an answer that ends a connection, the server discards what the peer still sends for at
/// most this long and [`LINGER_BYTES`]. Closing at once would make the peer's kernel drop the
/// answer (RFC 9112, section 9.6).
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes that are discarded, see [`LINGER_TIMEOUT`].
pub const LINGER_BYTES: usize = 256 << 10;

/// Pause after a failed accept, for example when file descriptors have run out.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for the API's thread, whose tasks do not block, when the server stops.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest answer that the client accepts, in bytes: 4,096 volumes of 16 KiB.
pub const MAX_REPLY_BYTES: usize = 64 << 20;

/// Longest wait of the client for an answer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
