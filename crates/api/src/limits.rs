//! What bounds this crate's memory and patience, with the arithmetic.
//!
//! A connection holds at most a head, a body, one block of 4 KiB in flight, and its answer: with
//! 64 connections 5 MiB of requests. Nobody holds any while idle but a descriptor and a task.

use std::time::Duration;

/// Longest request line with its header fields, in bytes; longer is 431. What browsers and curl
/// send takes some 500.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// Most header fields of a request or a response; more is 431.
pub const MAX_HEADERS: usize = 64;

/// Longest body of a request, in bytes; longer is 413.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// Most parts of a path; more is 404, as nothing has a longer one.
pub const MAX_SEGMENTS: usize = 16;

/// Most parameters of a query; more is 400.
pub const MAX_PARAMETERS: usize = 16;

/// Connections served at a time unless configured otherwise; more are answered with 503 and closed.
pub const MAX_CONNECTIONS: usize = 64;

/// From the first byte of a request to its last.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection may be silent between two requests.
pub const IDLE_PATIENCE: Duration = Duration::from_secs(60);

/// How long a peer may take for each 4 KiB of an answer.
pub const SEND_PATIENCE: Duration = Duration::from_secs(10);

/// After an answer that ends a connection, what the peer still sends is thrown away for so long and
/// so many bytes: else its system would drop the answer unread.
pub const LINGER_PATIENCE: Duration = Duration::from_secs(1);
/// See [`LINGER_PATIENCE`].
pub const LINGER_BYTES: usize = 256 << 10;

/// Pause after a failed accept, such as for want of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Largest answer that our client takes, in bytes: 4,096 volumes of 16 KiB.
pub const MAX_REPLY_BYTES: usize = 64 << 20;

/// How long our client waits for an answer.
pub const REPLY_PATIENCE: Duration = Duration::from_secs(30);
