//! The host: an NVMe/TCP namespace of another machine as a [`BlockDevice`].
//!
//! [`RemoteDevice`] is what stacks use (`device`). Each core that does so has an association of its
//! own with the subsystem (`association`), over one connection after the other: a `link` is a
//! controller with its admin queue and its I/O queues (`queue`), which carry commands (`command`)
//! with as many in flight as their entries allow; the rest wait at a `gate`. Links are made by
//! `initialize` (the connection), `connect` (the controller) and `shape` (whether what it says can
//! be), and made anew by the `supervisor` when they break. [`MultipathDevice`] is several of them
//! that lead to one namespace (`paths`). What the target sends is judged, PDU by
//! PDU, by `reader`. [`RemoteSession`] is one link that is not made anew (`session`).
//!
//! # What is promised when connections break
//!
//! - A command that completed is never sent again, unless it failed without *Do Not Retry*: five times,
//!   as Linux does, and for as long as the loss time-out where the target turned it away for now. A
//!   flush that failed is not. One that did not complete is sent again over the
//!   next connection, so a caller sees a pause, not an error, for up to
//!   [`HostOptions::loss_timeout`]; then [`IoError::Unreachable`], whose outcome is unknown.
//! - All commands that a block device has are idempotent, and calls that overlap in time have no
//!   order, so sending one twice is safe as long as the first copy cannot take effect later than a
//!   call that the caller made after the completion. The target's part of that: it awaits the
//!   commands of a connection that has ended, and the host's next controller is ready only then
//!   (Flagstone's target does; with others the risk is that of every NVMe over Fabrics host). Ours:
//!   a connection that breaks is ended in the sending direction alone, and the next one is made when
//!   the target has ended its side, so that nothing of the old one is unread any more. That is
//!   waited for as long as a target that hears nothing takes to give its host up (the keep alive
//!   time-out, 30 s at most); what remains are targets that are silent for longer, and read on.
//! - A namespace that is another after a reconnect, smaller, or able to do less, is not used: calls
//!   fail, until it is what it was.
//! - A completed write that was not flushed may be lost when the target's machine fails, as with a
//!   local disk that has a volatile cache. The flush that follows says nothing of it: a reconnect
//!   looks the same whether the target restarted or the network paused. Layers above that need to
//!   know compare what they keep (the mirror's generation).

mod association;
mod command;
mod connect;
mod device;
mod discover;
mod error;
mod gate;
mod initialize;
mod link;
mod options;
mod paths;
mod queue;
mod reader;
mod session;
mod shape;
mod supervisor;
mod window;

pub use device::{Compressed, RemoteDevice};
pub use discover::{DiscoveredSubsystem, discover};
pub use error::HostError;
pub use options::HostOptions;
pub use paths::MultipathDevice;
pub use session::{AdminAnswer, AdminData, RemoteSession};

#[cfg(doc)]
use flagstone_blockdev::{BlockDevice, IoError};
