//! Identity of a pool: its identifier, and the number of its last update.
//!
//! An opening compares the devices with each other. This detects neither an old copy of all devices
//! nor another pool of the same name, so a server records the identity of each pool.

use super::pool::Pool;
use crate::error::PoolError;
use crate::id::PoolId;
use crate::limits::DEVICES_MAX;
use crate::ondisk::superblock::Superblock;
use crate::recover::superblocks::{assemble, read_superblock, read_superblocks};
use crate::storage::NamedDevice;

/// Identity of a pool at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Identifier of the pool.
    pub id: PoolId,
    /// Number of the last superblock update. Each opening makes at least one.
    pub update: u64,
}

/// Checks on the devices before anything is written to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPool {
    /// Expected name of the pool.
    pub name: Option<String>,
    /// Identifier of the expected pool, and the lowest acceptable update.
    pub identity: Option<PoolIdentity>,
}

/// Pool that was found on devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedPool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub identity: PoolIdentity,
    /// Identifiers of the devices, without removed ones, missing ones and the log device.
    pub devices: Vec<PoolId>,
    /// Identifiers of missing devices, which a pool with redundancy can spare.
    pub missing: Vec<PoolId>,
    /// Missing devices that are called in sync: an opening without them calls them missing.
    pub absent: Vec<PoolId>,
    /// Missing devices that may have later writes ([`PoolError::AbsentLeg`]).
    pub unproven: Vec<PoolId>,
}

impl ExpectedPool {
    /// # Errors
    /// [`PoolError::Unexpected`] and [`PoolError::OldCopy`].
    pub(crate) fn check(
        &self,
        found: &Superblock,
        devices: &[NamedDevice],
    ) -> Result<(), PoolError> {
        let names = || {
            let names: Vec<&str> = devices.iter().map(|named| named.name.as_str()).collect();
            names.join(", ")
        };
        if let Some(name) = self.name.as_ref().filter(|name| **name != found.name) {
            let (found, expected) = (found.name.clone(), name.clone());
            return Err(PoolError::Unexpected { devices: names(), found, expected });
        }
        let Some(PoolIdentity { id, update }) = self.identity else { return Ok(()) };
        let pool = found.name.clone();
        if found.pool != id {
            let (found, expected) = (format!("{pool} ({})", found.pool), id.to_string());
            return Err(PoolError::Unexpected { devices: names(), found, expected });
        }
        if found.update < update {
            let (found, seen) = (found.update, update);
            return Err(PoolError::OldCopy { devices: names(), pool, found, seen });
        }
        Ok(())
    }
}

impl Pool {
    /// Devices that can still be added: removed ones keep their places.
    pub fn places_left(&self) -> usize {
        DEVICES_MAX.saturating_sub(self.shared().state.lock().superblock.table().len())
    }

    /// Identifier of the pool to which a device belongs. Writes nothing.
    ///
    /// # Errors
    /// [`PoolError`] if the device has no superblock that can be used.
    pub async fn identify(device: &NamedDevice) -> Result<PoolId, PoolError> {
        Ok(read_superblock(device).await?.superblock.pool)
    }

    /// Identifies the pool on these devices. Writes nothing.
    ///
    /// # Errors
    /// As [`Pool::open`], for devices that are not one complete and current pool.
    pub async fn examine(devices: &[NamedDevice]) -> Result<ExaminedPool, PoolError> {
        let found = read_superblocks(devices).await?;
        let (storage, superblock, _) = assemble(&found)?;
        let table = superblock.table();
        let ids = table.iter().filter(|record| !record.is_removed()).map(|record| record.id);
        let legs = storage.pairs.as_ref().map(|pairs| pairs.legs()).unwrap_or_default();
        let absent = |id: &PoolId| legs.iter().any(|leg| leg.id == *id && !leg.is_attached);
        let (missing, devices) = ids.partition(absent);
        let identity = PoolIdentity { id: superblock.pool, update: superblock.update };
        let absent = storage.pairs.as_ref().map(|pairs| pairs.absent()).unwrap_or_default();
        let unproven = storage.pairs.as_ref().map(|pairs| pairs.unproven()).unwrap_or_default();
        Ok(ExaminedPool { name: superblock.name, identity, devices, missing, absent, unproven })
    }

    /// Present, durable identity of the pool.
    pub fn identity(&self) -> PoolIdentity {
        if let Some(pairs) = &self.shared().storage.pairs {
            let last = pairs.last();
            return PoolIdentity { id: last.pool, update: last.update };
        }
        let state = self.shared().state.lock();
        PoolIdentity { id: state.superblock.pool, update: state.superblock.update }
    }
}
