//! Growth of a pool with redundancy by a pair of devices, while it is open, or closed because it is
//! too full to be opened.
//!
//! A crash leaves the pool with or without the pair. If only one device of the pair has a
//! superblock, the next opening calls the other one missing.

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn;

use super::create::{check_device, wipe_all};
use super::devices::DeviceOrderError;
use super::open::{FoundDevices, LogUse, OpenOptions, find_devices};
use super::pool::Pool;
use super::space::OrderKind;
use crate::error::{PoolError, VolumeError};
use crate::limits::{DEVICES_MAX, SEGMENTS_MAX, SEGMENTS_MIN};
use crate::ondisk::legs::LEGS;
use crate::ondisk::superblock::Superblock;
use crate::pairs::{AddError, AddedPair};
use crate::recover::repair::repair;
use crate::recover::superblocks::read_superblock;
use crate::storage::NamedDevice;

/// Two devices for a new pair.
pub type NewPair = [NamedDevice; LEGS];

/// Checks that a pair can be added to a pool.
async fn check_pair(
    new: &NewPair,
    superblock: &Superblock,
    overwrite: [bool; LEGS],
) -> Result<AddedPair, DeviceOrderError> {
    if !superblock.has_redundancy() {
        return Err(DeviceOrderError::NoPairs { pool: superblock.name.clone() });
    }
    let table = superblock.table();
    if table.len() + LEGS > DEVICES_MAX {
        return Err(DeviceOrderError::TooMany);
    }
    let mut records = Vec::with_capacity(LEGS);
    for (named, overwrite) in new.iter().zip(overwrite) {
        // A second name of a device of the pool is refused, even with `overwrite`.
        if let Ok(found) = read_superblock(named).await
            && found.superblock.pool == superblock.pool
            && table.iter().any(|own| own.id == found.superblock.device_id())
        {
            let device = named.name.clone();
            let reason = "it is a device of this pool already, or a copy of one";
            return Err(PoolError::Unsuitable { device, reason }.into());
        }
        records.push(check_device(named, superblock.segment_blocks, overwrite).await?);
    }
    let added = AddedPair { devices: new.clone(), records: [records[0], records[1]] };
    let own: u64 = superblock.devices.iter().map(|own| u64::from(own.segments)).sum();
    match own + u64::from(added.segments()) > u64::from(SEGMENTS_MAX) {
        true => Err(DeviceOrderError::TooMany),
        false => Ok(added),
    }
}

/// Devices of a closed pool, and the new pair.
async fn check_closed(
    devices: &[NamedDevice],
    options: &OpenOptions,
    new: &NewPair,
    overwrite: [bool; LEGS],
) -> Result<(FoundDevices, AddedPair), DeviceOrderError> {
    let found = find_devices(devices, options, LogUse::Detach).await?;
    let added = check_pair(new, &found.superblock, overwrite).await?;
    if added.segments() < SEGMENTS_MIN {
        let reason = "the first checkpoint of a full pool needs 32 segments, of 8 MiB by default";
        return Err(PoolError::Unsuitable { device: new[0].name.clone(), reason }.into());
    }
    Ok((found, added))
}

/// The error, with the device that failed.
fn failure(pool: &str, error: AddError) -> DeviceOrderError {
    match error {
        AddError::New { device, error } => PoolError::Device { device, error }.into(),
        AddError::Pool(error) => {
            PoolError::Device { device: format!("a device of pool {pool}"), error }.into()
        }
    }
}

impl Pool {
    /// Checks a pair before it is added, and removes superblocks of its devices, which proves that
    /// they answer. Blocks nothing in the pool, and may be dropped.
    ///
    /// # Errors
    /// As [`Pool::grow_by_pair`].
    pub async fn prepare_pair(
        &self,
        new: &NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        let added = self.check_growth_by_pair(new, overwrite).await?;
        Ok(wipe_all(&added.devices, &added.records).await?)
    }

    /// Checks that a pair can be added. Writes nothing.
    ///
    /// # Errors
    /// As [`Pool::grow_by_pair`].
    pub async fn check_pair(
        &self,
        new: &NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        self.check_growth_by_pair(new, overwrite).await.map(drop)
    }

    async fn check_growth_by_pair(
        &self,
        new: &NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<AddedPair, DeviceOrderError> {
        let shared = self.shared();
        let superblock = shared.state.lock().superblock.clone();
        let is_volatile = |named: &&NamedDevice| named.device.geometry().volatile_cache;
        if let Some(named) = new.iter().find(is_volatile)
            && !shared.storage.has_volatile_cache()
        {
            // Attached hosts were told that they need not flush.
            let reason = "it has a volatile write cache, and the devices of the pool have none: turn \
                          its cache off";
            return Err(PoolError::Unsuitable { device: named.name.clone(), reason }.into());
        }
        check_pair(new, &superblock, overwrite).await
    }

    /// Adds a pair to a pool with redundancy. Its space is usable when the call returns.
    /// `overwrite` allows each device to contain data.
    ///
    /// # Errors
    /// [`DeviceOrderError`] for devices that cannot be used, and errors of the devices. After an
    /// error of a device in the pool, reopen the pool, with or without the pair.
    pub async fn grow_by_pair(
        &self,
        new: NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        let pool = self.clone();
        let grown = spawn(async move { pool.grow_by_pair_now(new, overwrite).await });
        grown.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable).into()))
    }

    async fn grow_by_pair_now(
        &self,
        new: NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        let order = self.order(OrderKind::Deletion).await?;
        let shared = self.shared();
        let added = self.check_growth_by_pair(&new, overwrite).await?;
        let turn = self.maintenance_turn().await?;
        wipe_all(&added.devices, &added.records).await?;
        let update = shared.update_turn().await.map_err(VolumeError::Io)?;
        let pairs = shared.storage.pairs.as_ref().expect("it has redundancy");
        let next = shared.next_update(|_| {});
        let written = update.add_pair(pairs, &next, &added).await;
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                if matches!(error, AddError::Pool(_)) {
                    shared.state.lock().fail(IoError::WriteFault);
                    shared.progress.notify();
                }
                return Err(failure(&shared.name, error));
            }
        };
        let index = written.devices.len() - 1;
        let record = written.devices[index];
        shared.storage.layout.push(&record).map_err(|_| DeviceOrderError::TooMany)?;
        shared.storage.devices.push(pairs.pair_device(index));
        shared.state.lock().updated(written);
        self.use_segments(index);
        drop((update, turn, order));
        shared.progress.notify();
        Ok(())
    }

    /// Checks a pair before it is added to a closed pool, and removes superblocks of its devices.
    /// Writes nothing to the pool, and may be dropped.
    ///
    /// # Errors
    /// As [`Pool::grow_closed_by_pair`].
    pub async fn prepare_closed_pair(
        devices: &[NamedDevice],
        options: &OpenOptions,
        new: &NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        let (_, added) = check_closed(devices, options, new, overwrite).await?;
        Ok(wipe_all(&added.devices, &added.records).await?)
    }

    /// Adds a pair to the closed pool on these devices: see [`Pool::grow_closed`]. Devices that are
    /// absent are called missing, as by an opening. The caller must run in a task that is not
    /// dropped.
    ///
    /// # Errors
    /// As [`Pool::open_with`] and [`Pool::grow_by_pair`].
    pub async fn grow_closed_by_pair(
        devices: &[NamedDevice],
        options: &OpenOptions,
        new: NewPair,
        overwrite: [bool; LEGS],
    ) -> Result<(), DeviceOrderError> {
        let (found, added) = check_closed(devices, options, &new, overwrite).await?;
        let FoundDevices { storage, superblock, superblocks, .. } = found;
        repair(&storage, &superblock, &superblocks).await?;
        wipe_all(&added.devices, &added.records).await?;
        let pairs = storage.pairs.as_ref().expect("it has redundancy");
        let next = Superblock { update: superblock.update + 1, ..superblock };
        let written = pairs.add(&next, &added).await;
        written.map(drop).map_err(|error| failure(&next.name, error))
    }
}
