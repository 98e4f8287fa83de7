//! Recovery: builds the state of a pool from its devices.
//!
//! [`superblocks`] finds the devices of the pool, and refuses sets that are not one pool.
//! [`repair`] brings their superblocks to the newest update. [`metadata`] reads the checkpoint.
//! [`replay`] applies the log after it.

mod legs;
pub(crate) mod metadata;
pub(crate) mod repair;
pub(crate) mod replay;
#[cfg(test)]
mod replay_tests;
pub(crate) mod superblocks;
