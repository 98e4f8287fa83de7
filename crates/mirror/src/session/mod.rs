//! Sessions with a peer: handshake, resync, verify, and the target's side.

pub mod bad_ranges;
pub(crate) mod checksums;
pub(crate) mod connect;
mod join_group;
pub(crate) mod outdated;
pub mod pace;
pub(crate) mod resync;
pub(crate) mod split_brain;
pub mod target;
pub mod verify;
pub(crate) mod zero_new_space;
