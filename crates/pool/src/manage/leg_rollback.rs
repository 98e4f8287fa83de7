//! Rollback of a leg: the part that hosts use gets the content of a snapshot, and the mirror's part
//! behind it stays as it is.
//!
//! A snapshot of a leg also has the mirror's superblock and log of that time. With them, the mirror
//! would forget its role, its generation and what its peers lack. So a second snapshot keeps the
//! present ones, from which they are copied back. The property [`LEG_ROLLBACK_PROPERTY`] has the
//! step, and each step is durable before the next one:
//!
//! 1. [`Pool::begin_leg_rollback`] takes the snapshot that keeps the mirror's part, and then sets
//!    the property. Nobody writes to the leg from before this step until the last one.
//! 2. [`Pool::finish_leg_rollback`] rolls the whole volume back. The same record ends its use as a
//!    leg, so that the step is known after a crash.
//! 3. The mirror's part is copied back and flushed.
//! 4. The volume is a leg again, and the property says that the part was copied, in one record.
//! 5. The second snapshot is deleted, and then the property.
//!
//! After a crash, [`Pool::finish_leg_rollback`] continues before a mirror opens the leg. If the
//! pool refuses step 2, for lack of space, the leg keeps its content. If the volume stops being a
//! leg in between, because something else may have changed it, the property ends with that.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_runtime::buf;

use super::pool::Pool;
use super::volume::{PoolVolume, VolumeInfo};
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::volume_table::{LEG_PROPERTY, LEG_ROLLBACK_PROPERTY, VolumeRecord};

/// Bytes of the mirror's part that are copied at once.
const COPY_BYTES: u64 = 128 << 10;

/// Rollback of a leg that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegRollback {
    /// Identifier of the volume, which copies do not have.
    volume: PoolId,
    /// Identifier of the snapshot.
    pub snapshot: PoolId,
    /// Begin of the mirror's part, in bytes.
    pub kept_from: u64,
    stage: RollbackStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RollbackStage {
    /// The mirror's part is in the second snapshot. The volume is a leg until it is rolled back.
    Begun,
    /// The mirror's part is in the volume.
    Copied,
}

/// End of a rollback of a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LegRollbackEnd {
    /// The leg has the content of the snapshot.
    RolledBack,
    /// The pool refused it: the leg has its former content.
    Canceled(VolumeError),
    /// The mirror's part is lost, so the volume is no leg any more.
    Released,
}

impl fmt::Display for LegRollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            RollbackStage::Begun => "begun",
            RollbackStage::Copied => "copied",
        };
        write!(f, "{} {} {} {stage}", self.volume, self.snapshot, self.kept_from)
    }
}

impl FromStr for LegRollback {
    type Err = ();

    /// Parses the value of the property.
    ///
    /// # Errors
    /// For any other text.
    fn from_str(text: &str) -> Result<LegRollback, ()> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [volume, snapshot, kept_from, stage] = parts[..] else { return Err(()) };
        let stage = match stage {
            "begun" => RollbackStage::Begun,
            "copied" => RollbackStage::Copied,
            _ => return Err(()),
        };
        Ok(LegRollback {
            volume: volume.parse().map_err(|_| ())?,
            snapshot: snapshot.parse().map_err(|_| ())?,
            kept_from: kept_from.parse().map_err(|_| ())?,
            stage,
        })
    }
}

impl VolumeInfo {
    /// The rollback of this leg, if one has not ended: [`Pool::finish_leg_rollback`] comes first.
    pub fn leg_rollback(&self) -> Option<LegRollback> {
        let found: LegRollback = self.properties.get(LEG_ROLLBACK_PROPERTY)?.parse().ok()?;
        (found.volume == self.uuid).then_some(found)
    }
}

/// Name of the snapshot that keeps the mirror's part during a rollback to `snapshot`.
fn kept_name(snapshot: PoolId) -> String {
    format!("rollback-{snapshot}")
}

/// Name of the snapshot with which `snapshot` is compared.
fn compared_name(snapshot: PoolId) -> String {
    format!("compare-{snapshot}")
}

impl Pool {
    /// Checks [`Pool::begin_leg_rollback`] and [`Pool::finish_leg_rollback`] for the snapshot `own`
    /// of the leg `leg`. Nothing is changed or claimed.
    ///
    /// # Errors
    /// As the orders, as far as that is known in advance.
    pub fn check_leg_rollback(&self, leg: &str, own: &str) -> Result<(), VolumeError> {
        self.check_rollback(leg, own)?;
        self.check_snapshot(&[leg], &kept_name(PoolId::random()))
    }

    /// Calls `differs` with the ranges, in bytes, in which the present content of a leg may differ
    /// from its snapshot `own`. Nobody writes to the leg meanwhile.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown leg or snapshot and for lack of space; errors of the devices.
    pub async fn compare_leg(
        &self,
        info: &VolumeInfo,
        own: &str,
        mut differs: impl FnMut(Range<u64>),
    ) -> Result<(), VolumeError> {
        let leg = &info.name;
        let from = format!("{leg}@{own}");
        let present = self.replace_snapshot(leg, &compared_name(self.id_of(&from)?)).await?;
        let mut offset = Some(0);
        while let Some(at) = offset {
            let part = self.diff(&from, &present, at).await?;
            part.ranges.into_iter().for_each(&mut differs);
            offset = part.next;
        }
        self.delete_snapshot(&present).await
    }

    /// Begins a rollback of a leg to its snapshot `own`: see this module. Bytes from `kept_from` on
    /// are the mirror's part.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown leg or snapshot, one of another size, a begin that is no
    /// multiple of a block, for lack of space, and errors of the devices. Nothing was begun.
    pub async fn begin_leg_rollback(
        &self,
        info: &VolumeInfo,
        own: &str,
        kept_from: u64,
    ) -> Result<(), VolumeError> {
        let VolumeInfo { name, uuid, size_bytes, .. } = info;
        let full = format!("{name}@{own}");
        let snapshot = self.id_of(&full)?;
        if self.snapshots().iter().any(|one| one.name == full && one.size_bytes != *size_bytes) {
            return Err(VolumeError::Field("size of the snapshot"));
        }
        if !kept_from.is_multiple_of(BLOCK_BYTES as u64) || kept_from > *size_bytes {
            return Err(VolumeError::Field("begin of the mirror's part"));
        }
        self.replace_snapshot(name, &kept_name(snapshot)).await?;
        let stage = RollbackStage::Begun;
        let rollback = LegRollback { volume: *uuid, snapshot, kept_from, stage };
        self.change_leg(info, |record| rollback.record(record)).await
    }

    /// Continues and ends the rollback of a leg, if one has begun; `None` if none has. Afterwards,
    /// its mirror may open it.
    ///
    /// # Errors
    /// Of the devices, and for lack of space: call it again.
    pub async fn finish_leg_rollback(
        &self,
        volume: PoolId,
    ) -> Result<Option<LegRollbackEnd>, VolumeError> {
        let found = self.volumes().into_iter().find(|info| info.uuid == volume);
        let Some(info) = found else { return Ok(None) };
        let Some(rollback) = info.leg_rollback() else { return Ok(None) };
        let ended = match (rollback.stage, info.is_leg()) {
            (RollbackStage::Begun, true) => match self.roll_back_to(&info, rollback).await {
                Ok(()) => self.copy_back(&info, rollback).await?,
                Err(error @ VolumeError::Io(_)) => return Err(error),
                Err(refused) => LegRollbackEnd::Canceled(refused),
            },
            (RollbackStage::Begun, false) => self.copy_back(&info, rollback).await?,
            (RollbackStage::Copied, _) => LegRollbackEnd::RolledBack,
        };
        if ended == LegRollbackEnd::Released {
            self.change_leg(&info, VolumeRecord::release_leg).await?;
        }
        self.delete_if_present(&info.name, &kept_name(rollback.snapshot)).await?;
        let end = |record: &mut VolumeRecord| drop(record.properties.remove(LEG_ROLLBACK_PROPERTY));
        self.change_leg(&info, end).await?;
        Ok(Some(ended))
    }

    /// Step 2.
    async fn roll_back_to(
        &self,
        info: &VolumeInfo,
        rollback: LegRollback,
    ) -> Result<(), VolumeError> {
        let own = self.own_snapshot(info, |id, _| id == rollback.snapshot);
        let own = own.ok_or_else(|| self.unknown_snapshot(&rollback.snapshot.to_string()))?;
        self.replace_content(&info.name, &own).await
    }

    /// Steps 3 and 4.
    async fn copy_back(
        &self,
        info: &VolumeInfo,
        rollback: LegRollback,
    ) -> Result<LegRollbackEnd, VolumeError> {
        let kept = format!("{}@{}", info.name, kept_name(rollback.snapshot));
        let kept = match self.open_snapshot(&kept) {
            Err(VolumeError::UnknownSnapshot { .. }) => return Ok(LegRollbackEnd::Released),
            opened => opened?,
        };
        let leg = self.open_volume(&info.name)?;
        if kept.geometry().size_bytes != leg.geometry().size_bytes {
            return Ok(LegRollbackEnd::Released);
        }
        copy_from(&kept, &leg, rollback.kept_from).await?;
        let copied = LegRollback { stage: RollbackStage::Copied, ..rollback };
        let is_leg = |record: &mut VolumeRecord| {
            record.properties.insert(LEG_PROPERTY.to_owned(), info.uuid.to_string());
            copied.record(record);
        };
        self.change_leg(info, is_leg).await?;
        Ok(LegRollbackEnd::RolledBack)
    }

    /// Identifier of a snapshot.
    fn id_of(&self, full: &str) -> Result<PoolId, VolumeError> {
        let found = self.snapshots().into_iter().find(|snapshot| snapshot.name == full);
        found.map(|snapshot| snapshot.id).ok_or_else(|| self.unknown_snapshot(full))
    }

    /// Name, without the volume, of the first snapshot of a volume for which `is_meant` holds.
    fn own_snapshot(
        &self,
        info: &VolumeInfo,
        is_meant: impl Fn(PoolId, &str) -> bool,
    ) -> Option<String> {
        self.snapshots().into_iter().find_map(|snapshot| {
            let (owner, own) = snapshot.name.split_once('@')?;
            (owner == info.name && is_meant(snapshot.id, own)).then(|| own.to_owned())
        })
    }

    /// Takes a snapshot, instead of one of an interrupted order. Returns its full name.
    async fn replace_snapshot(&self, leg: &str, own: &str) -> Result<String, VolumeError> {
        self.delete_if_present(leg, own).await?;
        self.create_snapshot(&[leg], own).await?;
        Ok(format!("{leg}@{own}"))
    }

    async fn delete_if_present(&self, leg: &str, own: &str) -> Result<(), VolumeError> {
        match self.delete_snapshot(&format!("{leg}@{own}")).await {
            Err(VolumeError::UnknownSnapshot { .. }) => Ok(()),
            done => done,
        }
    }
}

impl LegRollback {
    fn record(self, record: &mut VolumeRecord) {
        record.properties.insert(LEG_ROLLBACK_PROPERTY.to_owned(), self.to_string());
    }
}

/// Gives a volume the content of another one of its size from an offset on, durably.
async fn copy_from(
    from: &Arc<PoolVolume>,
    to: &Arc<PoolVolume>,
    offset: u64,
) -> Result<(), IoError> {
    let end = to.geometry().size_bytes;
    let mut at = offset;
    if at < end {
        to.discard(at, end - at).await?;
    }
    while at < end {
        let extents = from.allocated(at, end - at).await?;
        let found: u64 = extents.iter().map(|extent| extent.len).sum();
        assert!(found > 0, "a volume reports no extent at byte {at}");
        for extent in extents {
            let extent_end = at + extent.len;
            while at < extent_end {
                let len = match extent.is_hole {
                    true => extent.len,
                    false => COPY_BYTES.min(extent_end - at),
                };
                if !extent.is_hole {
                    let data = from.read(at, buf::alloc(len as usize).await).await?;
                    to.write(at, data.freeze(), false).await?;
                }
                at += len;
            }
        }
    }
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_of_a_leg_survives_as_a_property() {
        let [volume, snapshot] = [1, 2].map(|byte| PoolId([byte; 16]));
        for stage in [RollbackStage::Begun, RollbackStage::Copied] {
            let rollback = LegRollback { volume, snapshot, kept_from: u64::MAX, stage };
            assert_eq!(rollback.to_string().parse(), Ok(rollback));
        }
        let text = LegRollback { volume, snapshot, kept_from: 0, stage: RollbackStage::Begun };
        let text = text.to_string();
        for bad in ["", "begun", &text[1..], &format!("{text} "), &text.replace("begun", "x")] {
            assert!(bad.parse::<LegRollback>().is_err(), "{bad}");
        }
    }
}
