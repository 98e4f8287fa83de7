//! What bounds this crate's memory and patience, with the arithmetic.

use std::time::Duration;

use flagstone_runtime::net::KeepAlive;

/// Longest read or write, in bytes: the 32 MiB that every NBD peer may expect, and the largest
/// pooled buffer. Longer reads and writes are refused, their payload is read and thrown away.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;

/// Longest name, description or message, in bytes ("Conventions" of the protocol).
pub const MAX_STRING_BYTES: usize = 4096;

/// Longest data of one option, in bytes: a name, and room for dozens of information requests or
/// metadata queries. A longer option closes the connection.
pub const MAX_OPTION_BYTES: u32 = 64 << 10;

/// Options that a client may send before it is closed as one that will never end.
pub const MAX_OPTIONS: u32 = 128;

/// Requests of one connection that are received and not yet answered. At the limit the server
/// stops receiving. A reply's descriptor and a device call's task take under 1 KiB each, so this
/// bounds them to 256 KiB a connection.
pub const MAX_IN_FLIGHT: usize = 256;

/// Payload bytes of one connection in flight, reads and writes together. At the limit the server
/// stops receiving; one request of any admissible length always fits an idle connection.
pub const MAX_IN_FLIGHT_BYTES: usize = MAX_REQUEST_BYTES as usize;

/// First size of a connection's receive block, in bytes: what an idle connection costs.
pub const STAGING_MIN_BYTES: usize = 16 << 10;

/// Largest receive block, in bytes, reached when the peer fills smaller ones.
pub const STAGING_MAX_BYTES: usize = 256 << 10;

/// Receive blocks of one connection that payloads in flight may keep alive, in bytes: four of the
/// largest. Beyond it payloads are copied out, so that a few small writes cannot hold many large
/// blocks …
pub const STAGING_AHEAD_BYTES: usize = 1 << 20;

/// … of blocks of this size, in bytes.
pub const STAGING_PASSING_BYTES: usize = 64 << 10;

/// Receive block at the ceiling of memory, in bytes; had beyond it, one for each connection.
pub const STAGING_LEAST_BYTES: usize = 4 << 10;

/// While a long option or message waits for memory at the ceiling, how often it is asked for.
pub const STAGING_PAUSE: Duration = Duration::from_millis(1);

/// Payloads up to this length are awaited in the receive block and handed on as a part of it;
/// longer ones are received into a buffer of their own, in bytes.
pub const STAGED_PAYLOAD_BYTES: usize = 64 << 10;

/// The same for devices that want aligned memory, where a payload must be copied out of the block,
/// in bytes: below it a copy costs less than a receive.
pub const COPIED_PAYLOAD_BYTES: usize = 16 << 10;

/// How much to receive beyond a long payload in one go, in bytes: the next headers. What is more
/// would only have to be copied into the next payload's buffer.
pub const LOOK_AHEAD_BYTES: usize = 4 << 10;

/// Block that reply headers are carved from, in bytes: 256 simple replies.
pub const HEADER_BLOCK_BYTES: usize = 4096;

/// Most bytes in one send: progress is seen once for each, so this in [`PEER_TIMEOUT`] is the
/// slowest peer that is served (35 KB/s).
pub const SEND_BYTES: usize = 1 << 20;

/// A peer must finish its negotiation in this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A peer that neither takes the replies waiting for it nor completes a request that it began is
/// closed after this time without progress.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// When an idle client is asked whether its machine is there, and given up: NBD has no keep alive of
/// its own, and a client that lost its power would be held for ever. Two minutes in all.
pub const KEEP_ALIVE: KeepAlive = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };

/// How often progress is looked at while a peer is waited for.
pub const TICK: Duration = Duration::from_secs(1);

/// How long a draining connection may take to finish what it has in flight.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a part of a block larger than 4 KiB waits for memory before it fails with ENOMEM.
pub const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that one server serves at a time; more are closed at once. Idle ones cost
/// [`STAGING_MIN_BYTES`] and a few KiB each.
pub const MAX_CONNECTIONS: usize = 1024;

/// Client: requests of one connection that are on the wire; more wait in the order they came.
pub const CLIENT_WINDOW: usize = 128;

/// Client: longest data of one reply to an option, in bytes.
pub const MAX_OPTION_REPLY_BYTES: u32 = 64 << 10;

/// Client: replies to one option; a server that says more never ends.
pub const MAX_OPTION_REPLIES: u32 = 1024;

/// Client: longest message of an error chunk, in bytes, with the chunk's own fields.
pub const MAX_ERROR_CHUNK_BYTES: u32 = 4096 + 16;

/// Client: pieces out of order that a read's reply may come in before the server is given up.
pub const MAX_SCATTERED_CHUNKS: usize = 1024;

/// Client: longest trim or write of zeroes in one request, in bytes; longer ones are cut.
pub const CLIENT_EFFECT_BYTES: u64 = 1 << 30;

/// Client: piece in which zeroes are written to a server that cannot write zeroes, in bytes.
pub const CLIENT_ZERO_PIECE_BYTES: usize = 64 << 10;

/// Client: pause after the first failed attempt to connect again; it doubles up to
/// [`RECONNECT_MAX`].
pub const RECONNECT_MIN: Duration = Duration::from_millis(20);

/// Client: longest pause between attempts to connect again.
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Client: an attempt to connect and negotiate may take this long.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client: a connection on which a request stays unanswered for this long is replaced.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Client: a request that could not be answered on any connection for this long fails.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
