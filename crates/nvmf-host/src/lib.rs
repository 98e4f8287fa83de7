//! NVMe/TCP host: a remote namespace as a [`BlockDevice`].
//!
//! [`RemoteDevice`] is the block device (`device`). Each core that uses it has its own
//! `association` with the subsystem, over successive connections. A `link` is one connection's
//! controller with its admin and I/O queues (`queue`), whose entries limit the commands in flight
//! (`command`). Further calls wait for `admission`. `initialize`, `connect` and `shape` set a link
//! up and validate what the target reports. The `supervisor` replaces broken links, and `reader`
//! validates every received PDU. [`MultipathDevice`] combines several paths to one namespace
//! (`paths`). [`RemoteSession`] is a connection that is never re-established (`session`).
//!
//! # Guarantees across reconnects
//!
//! - A completed command is never resent, with two exceptions: a failure without *Do Not Retry* is
//!   retried five times, as Linux does, and a request to retry is obeyed for the loss timeout. A
//!   failed flush is not retried.
//! - A command without a completion is resent over the next connection. The caller sees a pause
//!   instead of an error, for up to [`HostOptions::loss_timeout`], then [`IoError::Unreachable`]
//!   with unknown outcome.
//! - All block device commands are idempotent, and overlapping calls are unordered. Sending a
//!   command twice is therefore safe if the first copy cannot take effect after a call that was
//!   made after the completion. The target awaits the commands of an ended connection before the
//!   host's next controller becomes ready. Flagstone's target does; with other targets this host
//!   has the risk of every NVMe over Fabrics host. This host closes only the sending direction of a
//!   broken connection, and reconnects after the target has closed its side and thus read
//!   everything. It waits for that as long as a target takes to detect a silent host (the keep
//!   alive timeout, 30 s at most). A target that is silent for longer and then continues reading is
//!   not covered.
//! - After a reconnect to a different, smaller or less capable namespace, calls fail until the
//!   original one is back.
//! - A completed write that was not flushed may be lost if the target crashes, as with a local
//!   volatile cache. Then every call fails with [`IoError::Poisoned`] until the device is reopened
//!   (`durability`). A Flagstone target proves after a reconnect that it did not restart; with any
//!   other target, a connection that is lost while such writes exist counts as a crash. Without
//!   unflushed writes, and with a target without volatile cache, a restart is transparent.
//! - After a failed flush, changes and flushes fail until the device is reopened.

mod admission;
mod association;
mod authenticate;
mod command;
mod connect;
mod device;
mod discover;
mod durability;
mod error;
mod identify_data;
mod initialize;
mod limits;
mod link;
mod options;
mod paths;
mod queue;
mod reader;
mod session;
mod supervisor;
mod tls;
mod window;

pub use command::CommandData;
pub use device::{Compressed, RemoteDevice};
pub use discover::{DiscoveredSubsystem, discover};
pub use error::HostError;
pub use options::{HostOptions, IdentityVersion, KeyReload, RemoteTls};
pub use paths::MultipathDevice;
pub use session::{AdminCompletion, RemoteSession};

#[cfg(doc)]
use flagstone_blockdev::{BlockDevice, IoError};
