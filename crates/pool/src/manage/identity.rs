//! Identity of a pool: which pool some devices are, and how recent.

use super::pool::Pool;
use crate::error::PoolError;
use crate::id::PoolId;
use crate::recover::superblocks::{assemble, read_superblock};
use crate::storage::NamedDevice;

/// A pool at one moment. A server that remembers it finds a copy of the devices that is older, also of
/// all devices, and another pool of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Identifier of the pool.
    pub id: PoolId,
    /// Number of updates of its superblock; each opening adds one.
    pub update: u64,
}

impl Pool {
    /// Reads the identity of the pool that these devices are. Writes nothing.
    ///
    /// # Errors
    /// As [`Pool::open`], for devices that are not one complete and current pool.
    pub async fn identify(devices: &[NamedDevice]) -> Result<PoolIdentity, PoolError> {
        let mut found = Vec::with_capacity(devices.len());
        for named in devices {
            found.push((named.clone(), read_superblock(named).await?));
        }
        let (_, superblock) = assemble(&found)?;
        Ok(PoolIdentity { id: superblock.pool, update: superblock.update })
    }

    /// Its identity now. It is durable.
    pub fn identity(&self) -> PoolIdentity {
        let state = self.shared().state.lock();
        PoolIdentity { id: state.superblock.pool, update: state.superblock.update }
    }
}
