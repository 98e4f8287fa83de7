//! Mirroring: replicas of a volume, and the write-intent log that records where they may differ.
//!
//! Suggested reading order:
//!
//! 1. [`layout`] and [`format`](mod@format): the on-disk layout. `docs/mirror-format.md` has the
//!    byte maps.
//! 2. [`generation`] and [`decide`]: which replica's data is kept.
//! 3. [`bitmap`], `active_regions` and `pages`: the log's contents in memory; `log_area` and
//!    `intent_log`: its storage and its writer; `recover`: reading it back. [`replica`] ties them
//!    together.
//! 4. [`mirror`], and the I/O path that its header names.

mod active_regions;
mod admission;
pub mod bitmap;
mod blocked;
pub mod command;
mod connect;
mod counter;
mod create;
pub mod decide;
mod device;
mod device_prefix;
mod fifo_lock;
mod flush;
pub mod format;
pub mod generation;
pub mod id;
mod intent_log;
pub mod layout;
pub mod limits;
mod locate;
mod log_area;
pub mod log_device;
mod memory;
pub mod mirror;
mod named;
mod new_generation;
mod new_space;
pub mod options;
pub mod pace;
mod pages;
pub mod peer;
pub mod plan;
pub mod queue;
mod range_lock;
mod range_table;
mod recover;
pub mod remnant;
pub mod reorder;
pub mod replica;
mod resize;
mod resync;
mod roles;
mod split_brain;
pub mod state;
pub mod target;
mod transfer;
pub mod verify;
pub mod versions;
mod write;
mod zero_new_space;

pub use command::CommandError;
pub use mirror::Mirror;
pub use options::{
    Ack, AfterSplitBrain, IntentLogMode, Mode, OnCongestion, OnPeerLoss, PeerOptions,
};
pub use roles::RoleError;
pub use transfer::ReplicaTransfer;
pub use versions::{LinkVersion, LinkVersions, NoCommonVersion};
