//! NBD server and client for block devices.
//!
//! - [`wire`]: message formats, without I/O; [`handshake`] and [`session`]: protocol logic, also
//!   without I/O, so that they are tested and fuzzed as functions of bytes;
//! - [`server`]: [`NbdServer`] offers [`Exports`] over TCP or Unix sockets;
//! - [`client`]: [`NbdDevice`] is an export of an NBD server;
//! - [`limits`]: limits of memory and waiting times.
//!
//! # Block sizes
//! The announced minimum block size is the device's. A client that requests size constraints
//! (`NBD_INFO_BLOCK_SIZE` in `NBD_OPT_GO`: libnbd, QEMU, nbd-client) must honor them; other
//! requests fail with EINVAL. A client that does not request them may read and write any byte, as
//! the protocol requires. Partial blocks are then read, modified and written, which is slow but
//! correct with respect to all other NBD writes of the export. Changes that reach the device other
//! than through NBD are not serialized with these.

#![allow(missing_docs, reason = "the names of most members say it")]

mod block_lock;
pub mod client;
pub mod export;
pub mod handshake;
pub mod limits;
mod links;
#[cfg(test)]
mod random_input_tests;
mod reach;
pub mod server;
pub mod session;
#[cfg(test)]
mod tests;
pub mod wire;

pub use client::{ClientOptions, ConnectError, NbdDevice, NbdTlsClient, NegotiationError};
pub use export::{Export, ExportError, ExportLookup, Exports};
pub use server::{
    AttachedClient, DisconnectReason, Drain, NbdServer, NbdTls, NbdTlsKeys, ServerOptions,
};
