//! Host tuning: use of disks ([`inspect()`]) and the [`guard`] of their data, costly settings, and
//! changes with undo.
//!
//! Three steps, each usable separately: `facts` reads a host, or a recorded tree of one, into
//! typed facts; [`checks`] judges them without side effects; [`apply`] writes the safe changes,
//! with an undo journal. [`doctor`] combines them.

#![allow(missing_docs, reason = "the names of most members say it")]

pub mod apply;
pub mod checks;
pub mod doctor;
mod facts;
pub mod guard;
pub mod inspect;
mod limits;
pub mod local_ssd;
mod parse;
pub mod process;
pub mod report;
pub mod root;

pub use facts::Unread;
pub use inspect::{DeviceUse, inspect};
pub use parse::{Mount, mounts};
