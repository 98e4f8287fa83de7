//! Replacement of a device of an open pool with redundancy.
//!
//! The update that names the new device calls it missing, and comes before its superblock. After a
//! crash, the new device is either rebuilt, or still missing: the operator repeats the order.

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn;

use super::create::{check_device, wipe};
use super::devices::DeviceOrderError;
use super::pool::Pool;
use super::space::OrderKind;
use crate::error::{PoolError, VolumeError};
use crate::ondisk::legs::{LEGS, LegRecord, LegState};
use crate::pairs::WriteCalls;
use crate::recover::superblocks::read_superblock;
use crate::storage::NamedDevice;

const UNENDED: &str = "earlier writes to it have not ended: try again when they have";

impl Pool {
    /// Closes the device of a missing leg, which `old` names as in [`Pool::check_replacement`]: the
    /// same disk may replace it. A device with writes in progress stays open, and so locked.
    pub fn close_missing(&self, old: &str) {
        if let Some(pairs) = &self.shared().storage.pairs
            && let Some(position) = pairs.position(old)
        {
            pairs.close_missing(position);
        }
    }

    /// Checks a device before it replaces `old`: the name of a device, or the identifier of a
    /// missing one. Writes nothing. Returns the position of the old device.
    ///
    /// # Errors
    /// As [`Pool::replace_device`].
    pub async fn check_replacement(
        &self,
        old: &str,
        new: &NamedDevice,
        overwrite: bool,
    ) -> Result<usize, DeviceOrderError> {
        self.replacement(old, new, overwrite).await.map(|(position, _)| position)
    }

    async fn replacement(
        &self,
        old: &str,
        new: &NamedDevice,
        overwrite: bool,
    ) -> Result<(usize, LegRecord), DeviceOrderError> {
        let shared = self.shared();
        let pool = || shared.name.clone();
        let Some(pairs) = &shared.storage.pairs else {
            return Err(DeviceOrderError::Single { pool: pool() });
        };
        let superblock = pairs.last();
        let unknown = || DeviceOrderError::Unknown { pool: pool(), device: old.to_owned() };
        let position = pairs.position(old).ok_or_else(unknown)?;
        let unsuitable = |reason| {
            let device = new.name.clone();
            Err(PoolError::Unsuitable { device, reason }.into())
        };
        let other = 1 - position % LEGS;
        if !pairs.in_sync(position / LEGS).contains(&other) {
            return Err(DeviceOrderError::OnlyCopy { pool: pool(), device: old.to_owned() });
        }
        if let Ok(found) = read_superblock(new).await
            && found.superblock.pool == superblock.pool
        {
            let id = found.superblock.device_id();
            let own = superblock.pairs.iter().flatten().position(|leg| leg.id == id);
            if own.is_some_and(|own| own != position || pairs.is_used(own)) {
                return unsuitable("it is a device of this pool already, or a copy of one");
            }
            if own.is_some() && pairs.has_writes(position) {
                return unsuitable(UNENDED);
            }
        }
        if WriteCalls::of(&new.device).are_running() {
            return unsuitable(UNENDED);
        }
        let geometry = new.device.geometry();
        if geometry.volatile_cache && !shared.storage.has_volatile_cache() {
            // Attached hosts were told that they need not flush.
            return unsuitable(
                "it has a volatile write cache, and the devices of the pool have none: turn its \
                 cache off",
            );
        }
        let record = check_device(new, superblock.segment_blocks, overwrite).await?;
        if record.segments < superblock.devices[position / LEGS].segments {
            return unsuitable("it is smaller than the device that it is to replace");
        }
        let (id, size_bytes) = (record.id, record.size_bytes);
        let (state, since) = (LegState::Missing, superblock.update);
        Ok((position, LegRecord { id, size_bytes, state, since }))
    }

    /// Replaces a device, or a missing one, and rebuilds it in the background. `overwrite` allows a
    /// device that contains data.
    ///
    /// # Errors
    /// [`DeviceOrderError`] for a device that cannot be used, or whose other copy is not complete,
    /// and errors of the devices.
    pub async fn replace_device(
        &self,
        old: &str,
        new: NamedDevice,
        overwrite: bool,
    ) -> Result<(), DeviceOrderError> {
        let (pool, old) = (self.clone(), old.to_owned());
        let replaced = spawn(async move { pool.replace_now(&old, new, overwrite).await });
        replaced.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable).into()))
    }

    async fn replace_now(
        &self,
        old: &str,
        new: NamedDevice,
        overwrite: bool,
    ) -> Result<(), DeviceOrderError> {
        let _order = self.order(OrderKind::Deletion).await?;
        let shared = self.shared();
        let (position, record) = self.replacement(old, &new, overwrite).await?;
        wipe(&new).await?;
        let pairs = shared.storage.pairs.as_ref().expect("it was found");
        let device = new.name.clone();
        let replaced = pairs.replace(position, record, new).await;
        shared.progress.notify();
        replaced.map_err(|error| PoolError::Device { device, error }.into())
    }
}
