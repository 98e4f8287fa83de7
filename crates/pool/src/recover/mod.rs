//! Recovery: from devices to the state of a pool.
//!
//! [`superblocks`] finds the devices of the pool and refuses what does not belong together.
//! [`metadata`] reads the checkpoint. [`replay`] applies the log after it.

pub(crate) mod metadata;
pub(crate) mod replay;
pub(crate) mod superblocks;
