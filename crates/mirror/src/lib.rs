//! Replicas of a volume, and the log that says where they may differ.

pub mod command;
mod connect;
pub mod decide;
mod device;
pub mod format;
mod gate;
pub mod generation;
pub mod id;
pub mod limits;
pub mod local;
mod mint;
pub mod mirror;
pub mod options;
pub mod order;
mod overlap;
pub mod pace;
pub mod peer;
pub mod plan;
pub mod queue;
mod ranges;
mod resync;
mod roles;
pub mod shape;
pub mod state;
pub mod target;
mod todo;
pub mod verify;
mod write;

pub use command::CommandError;
pub use mirror::Mirror;
pub use options::{Ack, Mode, PeerOptions, WhenPeerLost};
pub use roles::RoleError;
