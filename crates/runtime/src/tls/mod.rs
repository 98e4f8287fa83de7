//! TLS 1.3 over [`Stream`]s: handshakes and records by s2n-tls, sockets by this runtime's drivers.
//!
//! A [`TlsServer`] or [`TlsClient`] holds keys and certificates. [`TlsServer::accept`] and
//! [`TlsClient::connect`] turn a connected [`Stream`] into a [`TlsStream`], which receives and
//! sends as a `Stream` does.
//!
//! Invariants:
//! - the library does no I/O of its own. It reads records from memory and writes records to memory,
//!   so the same code runs over io_uring, threads and the simulated network;
//! - after a handshake, the kernel encrypts and decrypts if it offers that ([`TlsRecordLayer`]);
//!   otherwise the library continues to;
//! - only TLS 1.3 with AES-GCM is spoken, without session tickets, renegotiation or early data;
//! - a handshake computes off the cores, with the threads of [`crate::compute`], and takes at most
//!   [`HANDSHAKE_BYTES`] from its peer. The caller bounds its time and the number of handshakes;
//! - the records of the library take buffers of the pool within a budget ([`ReceiveBudget`]), and
//!   beyond it blocks of 4 KiB, so they never wait for memory. An idle connection holds one receive
//!   buffer;
//! - a broken record ends the connection: nothing of it, and nothing after it, is delivered. Its
//!   bytes may be in the buffer of the failed receive;
//! - a receive or send whose future is dropped ends the stream in that direction.
//!
//! [`Stream`]: crate::net::Stream
//! [`ReceiveBudget`]: crate::buf::ReceiveBudget
//! [`HANDSHAKE_BYTES`]: crate::limits::TLS_HANDSHAKE_BYTES

mod certificate;
mod config;
mod engine;
mod error;
mod handshake;
mod kernel;
mod library;
mod record_boundary;
#[cfg(test)]
mod record_tests;
mod stream;
#[cfg(test)]
mod tests;
mod traffic;

pub use config::{
    ClientIdentity, PskChoice, PskRefusal, PskServer, ServerTrust, TlsClient, TlsPsk, TlsPskHash,
    TlsServer,
};
pub use error::{TlsConfigError, TlsFailure};
pub use handshake::{CLIENT_HELLO_FIRST_BYTE, PeerIdentity};
pub use stream::{TlsRecordLayer, TlsStream};
