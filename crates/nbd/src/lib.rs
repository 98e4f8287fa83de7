//! NBD: a server for block devices, and a client that is one.
//!
//! - [`wire`]: the format, no I/O; [`handshake`] and [`session`]: what it means, no I/O either, so
//!   they are tested and fuzzed as functions of bytes;
//! - [`server`]: [`Server`] offers [`Exports`] over TCP or Unix sockets;
//! - [`client`]: [`NbdDevice`] is an export of some server;
//! - [`fuzz`]: all that reads bytes from outside, as functions of bytes;
//! - [`limits`]: what bounds memory and patience.
//!
//! # Which ranges may a client ask for?
//! The announced minimum block size is the device's. A client that asks for size constraints
//! (`NBD_INFO_BLOCK_SIZE` in `NBD_OPT_GO`: libnbd, QEMU, nbd-client) has promised to honour them:
//! anything else of it is answered EINVAL. A client that does not ask may, as the protocol wants,
//! read and write any byte: parts of blocks are then read, modified and written, correctly beside
//! all other NBD writes of the export, and slowly. Changes that reach the same device by another
//! way than NBD are not kept apart from these.

pub mod client;
mod departures;
pub mod export;
pub mod fuzz;
mod gate;
pub mod handshake;
pub mod limits;
mod links;
pub mod server;
pub mod session;
mod staging;
mod testing;
pub mod wire;

pub use client::{ClientOptions, ConnectError, NbdDevice};
pub use export::{Export, ExportError, Exports, Found};
pub use server::{Attached, Drain, Outcome, Server, ServerOptions};
