//! Replicas of a volume, and the log that says where they may differ.
//!
//! Read in this order: [`shape`] and [`format`](mod@format) (what lies where on disk), [`generation`] and [`decide`]
//! (whose data is kept), then the store: [`bitmap`], `hot` and `pages` (what is marked, in memory),
//! `area` (the log's place), `log` (its writer), `recover`, and [`replica`], which holds all of it.
//! Then the path: [`mirror`], and what it names.

mod area;
pub mod bitmap;
mod clear;
pub mod command;
mod connect;
mod counter;
mod create;
pub mod decide;
mod device;
mod flush;
pub mod format;
mod gate;
pub mod generation;
mod hand_on;
mod hold;
mod hot;
pub mod id;
pub mod limits;
mod locate;
mod log;
mod memory;
mod mint;
pub mod mirror;
pub mod options;
pub mod order;
mod overlap;
pub mod pace;
mod pages;
mod part;
pub mod peer;
pub mod plan;
pub mod queue;
mod ranges;
mod recover;
pub mod replica;
mod resize;
mod resync;
mod roles;
mod room;
pub mod shape;
mod split;
pub mod state;
pub mod target;
pub mod trace;
mod turn;
pub mod vacant;
pub mod verify;
pub mod versions;
mod write;

pub use command::CommandError;
pub use hand_on::HandOn;
pub use mirror::Mirror;
pub use options::{Ack, Intent, Mode, PeerOptions, WhenPeerLost, WhenSplit};
pub use roles::RoleError;
pub use versions::{NoCommonVersion, Version, Versions};
