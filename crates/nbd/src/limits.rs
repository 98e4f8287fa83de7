//! Limits of memory and waiting times, with their arithmetic.

use std::time::Duration;

use flagstone_runtime::net::KeepAlive;

/// Longest read or write, in bytes: the 32 MiB that every NBD peer supports, and the largest pooled
/// buffer. Longer requests are refused and their payload is discarded.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;

/// Longest name, description or message, in bytes ("Conventions" of the protocol).
pub const MAX_STRING_BYTES: usize = 4096;

/// Longest data of one option, in bytes: a name, and dozens of information requests or metadata
/// queries. A longer option closes the connection.
pub const MAX_OPTION_BYTES: u32 = 64 << 10;

/// Options per negotiation, besides [`MAX_OPTIONS_EACH`]; a client that sends more is disconnected.
pub const MAX_OPTIONS: u32 = 128;

/// Further options per export: a client that lists all of them asks a few questions about each.
pub const MAX_OPTIONS_EACH: u32 = 8;

/// Requests of one connection in flight. At the limit the server stops receiving. A reply
/// descriptor and a device call's task take less than 1 KiB each, so this bounds them to 256 KiB
/// per connection.
pub const MAX_IN_FLIGHT: usize = 256;

/// Payload bytes of one connection in flight, reads and writes together, however much memory is
/// free. At the limit, or at its share of the buffer memory, the server stops receiving.
pub const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;

/// Longest part of a read or write that is executed as one, in bytes. Longer requests are read, and
/// received, part by part, as the client reads and sends.
pub const PART_BYTES: usize = 1 << 20;

/// Longest write whose successors' layout is predicted, in bytes: one fits the receive buffers that
/// are laid out at a time.
pub const PREDICTED_PAYLOAD_BYTES: usize = 256 << 10;

/// Largest send, in bytes. Progress is observed once per send, so this in [`PEER_TIMEOUT`] is the
/// slowest peer that is served (35 KB/s).
pub const SEND_BYTES: usize = 1 << 20;

/// Time limit of each step of the negotiation: an option of the client, or the end of an earlier
/// connection. While more than half of all connections negotiate, it limits all steps together.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Negotiations in progress of one address, or half of all connections if those are more.
pub const NEGOTIATIONS_PER_SOURCE: usize = 16;

/// TLS handshakes in flight of all clients. Each holds about 100 KiB.
pub const TLS_HANDSHAKES: usize = 128;

/// TLS handshakes in flight of one address.
pub const TLS_HANDSHAKES_PER_SOURCE: usize = 32;

/// Time limit of all steps together, besides [`NEGOTIATION_TIMEOUT_EACH`].
pub const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(180);

/// Further time per export: five times what libnbd 1.14 takes to list one. It keeps no client out:
/// while many clients negotiate, [`HANDSHAKE_TIMEOUT`] limits all steps together.
pub const NEGOTIATION_TIMEOUT_EACH: Duration = Duration::from_secs(1);

/// A peer is disconnected if, for this long, it neither reads pending replies nor completes a
/// started request.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// TCP keep alive of idle clients. NBD has no keep alive, so a client that lost power would stay
/// connected forever. Two minutes in all.
pub const KEEP_ALIVE: KeepAlive = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };

/// Interval of progress checks while waiting for a peer.
pub const TICK: Duration = Duration::from_secs(1);

/// Time limit for a draining connection's requests in flight.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the last replies of an ending connection may take.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Shortest duration of a connection that ends because the device cannot be reached. It limits the
/// rate at which a client that connects again at once fails.
pub const LOST_CONNECTION_MIN: Duration = Duration::from_secs(1);

/// Answers of a device that contradict the calls that could not reach it, after which such calls
/// fail with an error reply.
pub(crate) const CONTRADICTIONS: u32 = 3;

/// How long they are remembered.
pub(crate) const CONTRADICTIONS_KEPT: Duration = Duration::from_secs(3600);

/// Time limit for the question whether the device of an export can be reached, which a negotiation
/// waits for up to twice. Clients allow 5 s for all of it ([`CONNECT_TIMEOUT`]).
pub const REACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a partial block larger than 4 KiB waits for memory before it fails with ENOMEM.
pub const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent connections of one server; more are closed immediately.
pub const MAX_CONNECTIONS: usize = 1024;

/// Client: requests of one connection in flight; more wait in call order.
pub const CLIENT_WINDOW: usize = 128;

/// Client: longest data of one reply to an option, in bytes.
pub const MAX_OPTION_REPLY_BYTES: u32 = 64 << 10;

/// Client: replies per option; a server that sends more is disconnected.
pub const MAX_OPTION_REPLIES: u32 = 1024;

/// Client: longest message of an error chunk, in bytes, with the chunk's own fields.
pub const MAX_ERROR_CHUNK_BYTES: u32 = 4096 + 16;

/// Client: out-of-order pieces of one reply; a server that sends more is disconnected.
pub const MAX_SCATTERED_CHUNKS: usize = 1024;

/// Client: longest trim or write of zeroes per request, in bytes; longer ones are split.
pub const CLIENT_EFFECT_BYTES: u64 = 1 << 30;

/// Client: longest range of one BLOCK_STATUS, in bytes: 4 GiB less the largest block.
pub const CLIENT_STATUS_BYTES: u64 = (4 << 30) - (64 << 10);

/// Client: write size for zeroes on a server without WRITE_ZEROES, in bytes.
pub const CLIENT_ZERO_PIECE_BYTES: usize = 64 << 10;

/// Client: pause after the first failed attempt to reconnect; it doubles up to [`RECONNECT_MAX`].
pub const RECONNECT_MIN: Duration = Duration::from_millis(20);

/// Client: longest pause between attempts to reconnect.
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Client: time limit for connecting and negotiating.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client: a connection on which a request stays unanswered for this long is replaced.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Client: a request unanswered on every connection for this long fails.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
