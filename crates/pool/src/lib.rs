//! Pools: volumes that share devices, on one log with a copy-on-write map.
//!
//! `docs/pool-format.md` has the byte maps, the invariants and the recovery argument. Suggested
//! reading order:
//!
//! 1. [`ondisk`]: superblock, chunk, map page and catalog, as pure functions of bytes.

pub mod error;
pub mod id;
pub mod limits;
pub mod ondisk;

pub use error::{PoolError, VolumeError};
pub use id::PoolId;
