//! Leg: a volume that is the device of a mirror, and whose content only this mirror has changed.
//!
//! The property [`LEG_PROPERTY`] of a leg has the identifier of the volume, which copies do not
//! have. Invariants:
//! - the mirror takes a volume as its leg after it has marked a replica of unknown age as stale
//!   ([`Pool::take_leg`]);
//! - a volume stops being a leg durably before anything else gives it other content: the first
//!   change through a [`FormerLeg`], a rollback, or lost changes that the operator gives up;
//! - a new set of properties keeps it as it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_blockdev::{BlockDevice, Extent, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use super::pool::Pool;
use super::volume::{PoolVolume, VolumeInfo};
use crate::error::VolumeError;
use crate::ondisk::volume_table::{
    LEG_PROPERTIES, LEG_PROPERTY, LEG_ROLLBACK_PROPERTY, VolumeRecord,
};

/// Replaces the properties of a volume.
pub(super) fn set_properties(record: &mut VolumeRecord, new: &BTreeMap<String, String>) {
    let own = LEG_PROPERTIES.map(|key| record.properties.remove_entry(key));
    record.properties = new.clone();
    for key in LEG_PROPERTIES {
        record.properties.remove(key);
    }
    record.properties.extend(own.into_iter().flatten());
}

/// Reason why the content of a volume is not what a mirror wrote last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleLeg {
    /// It lost changes with the log device of its pool.
    LostChanges,
    /// It is a copy, or was changed without its mirror.
    ForeignContent,
}

impl std::fmt::Display for StaleLeg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StaleLeg::LostChanges => "it lost changes with the log device of its pool",
            StaleLeg::ForeignContent => "it is a copy, or was changed without its mirror",
        })
    }
}

impl VolumeInfo {
    /// True if only its mirror has changed the content of the volume since it was taken as a leg.
    pub fn is_leg(&self) -> bool {
        self.properties.get(LEG_PROPERTY).is_some_and(|id| *id == self.uuid.to_string())
    }

    /// Reason why a replica on this volume is stale, if it is. Its mirror may open it when it was
    /// marked as such, and taken ([`Pool::take_leg`]).
    pub fn stale_leg(&self) -> Option<StaleLeg> {
        match (self.incomplete, self.is_leg()) {
            (true, _) => Some(StaleLeg::LostChanges),
            (false, false) => Some(StaleLeg::ForeignContent),
            (false, true) => None,
        }
    }
}

impl Pool {
    /// Takes a volume as the leg of a mirror, and accepts that it lacks changes, in one durable
    /// step.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`] after its deletion, and errors of the devices.
    pub async fn take_leg(&self, info: &VolumeInfo) -> Result<(), VolumeError> {
        let id = info.uuid.to_string();
        self.change_leg(info, |record| {
            record.incomplete = false;
            record.properties.remove(LEG_ROLLBACK_PROPERTY);
            record.properties.insert(LEG_PROPERTY.to_owned(), id.clone());
        })
        .await
    }

    /// Ends the use of a volume as a leg, durably. Nothing happens if it is none.
    ///
    /// # Errors
    /// As [`Pool::take_leg`].
    pub async fn release_leg(&self, info: &VolumeInfo) -> Result<(), VolumeError> {
        self.change_leg(info, VolumeRecord::release_leg).await
    }

    pub(super) async fn change_leg(
        &self,
        info: &VolumeInfo,
        change: impl Fn(&mut VolumeRecord),
    ) -> Result<(), VolumeError> {
        let change = |record: &mut VolumeRecord| {
            change(record);
            Ok(())
        };
        // The volume may be renamed meanwhile.
        self.change_found(&info.name, |table| table.by_uuid(info.uuid), change).await
    }
}

/// A leg whose mirror was removed from the configuration, as a device for hosts. It stays a leg
/// until hosts change its content.
pub struct FormerLeg {
    volume: Arc<PoolVolume>,
    /// Shared with changes that wait for the release.
    is_released: Arc<AtomicBool>,
}

impl FormerLeg {
    /// A volume, or a leg, over its own device.
    pub fn new(volume: Arc<PoolVolume>) -> FormerLeg {
        let is_leg = volume
            .info()
            .is_none_or(|info| LEG_PROPERTIES.iter().any(|key| info.properties.contains_key(*key)));
        FormerLeg { volume, is_released: Arc::new(AtomicBool::new(!is_leg)) }
    }

    /// Runs a change after the release.
    fn change(&self, change: impl FnOnce(&PoolVolume) -> IoFuture<()> + 'static) -> IoFuture<()> {
        if self.is_released.load(Ordering::Acquire) {
            return change(&self.volume);
        }
        let (volume, is_released) = (self.volume.clone(), self.is_released.clone());
        IoFuture::later(async move {
            let info = volume.info().ok_or(IoError::Unreachable)?;
            let released = volume.pool().release_leg(&info).await;
            released.map_err(|error| match error {
                VolumeError::Io(error) => error,
                VolumeError::Full { .. } | VolumeError::NoSpace { .. } => IoError::NoSpace,
                _ => IoError::Unreachable,
            })?;
            is_released.store(true, Ordering::Release);
            change(&volume).await
        })
    }
}

impl BlockDevice for FormerLeg {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn must_reopen(&self) -> bool {
        self.volume.must_reopen()
    }

    fn used_bytes(&self) -> Option<u64> {
        self.volume.used_bytes()
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        self.volume.allocated(offset, len)
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.volume.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.change(move |volume| volume.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.volume.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.change(move |volume| volume.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.change(move |volume| volume.write_zeroes(offset, len, flags))
    }
}
