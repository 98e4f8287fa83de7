//! Management of replicas: create, open, resize, transfer, commands and roles.

pub(crate) mod announce;
pub mod command;
pub(crate) mod create;
pub(crate) mod group_order;
pub(crate) mod order;
pub mod replica;
pub(crate) mod resize;
pub(crate) mod resolve;
pub(crate) mod roles;
pub mod roll_back;
pub mod stale;
mod status;
pub(crate) mod transfer;
