//! Growth by a pair of devices.
//!
//! Invariant: both new legs have copies 0 and 1 of the update that adds them before any other leg
//! has the update. After a crash, either a new leg shows the update, and the opening completes it,
//! or the other legs are a pool without the pair.

use flagstone_blockdev::{Geometry, IoError};

use super::leg::{LegDevice, LegStatus};
use super::pair::Pair;
use super::{Pairs, combined};
use crate::limits::BLOCK_BYTES;
use crate::ondisk::legs::{LEGS, LegRecord, LegState, device_of};
use crate::ondisk::superblock::{COPIES_MIN, DeviceRecord, Superblock, copy_offset};
use crate::storage::{NamedDevice, write_block};

/// Devices of a new pair, with their records in the device table.
#[derive(Debug)]
pub(crate) struct AddedPair {
    pub(crate) devices: [NamedDevice; LEGS],
    pub(crate) records: [DeviceRecord; LEGS],
}

impl AddedPair {
    /// Segments of both.
    pub(crate) fn segments(&self) -> u32 {
        self.records[0].segments.min(self.records[1].segments)
    }

    /// Geometry of the pair.
    fn geometry(&self) -> Geometry {
        let [one, other] = &self.devices;
        combined(one.device.geometry(), other.device.geometry())
    }

    /// Adds the pair to the table of an update.
    fn add_to(&self, superblock: &mut Superblock) {
        let (state, since) = (LegState::InSync, superblock.update);
        let pair = [0, 1].map(|leg| {
            let DeviceRecord { id, size_bytes, .. } = self.records[leg];
            LegRecord { id, size_bytes, state, since }
        });
        superblock.devices.push(device_of(&pair, self.segments()));
        superblock.pairs.push(pair);
    }

    /// Writes copies 0 and 1 of the update that adds the pair.
    async fn write_first(&self, first: &Superblock) -> Result<(), AddError> {
        for (leg, named) in self.devices.iter().enumerate() {
            let position = LEGS * (first.pairs.len() - 1) + leg;
            let own = Superblock { device: position as u16, ..first.clone() };
            for copy in 0..COPIES_MIN {
                let block = own.encode(copy);
                let written = write_block(&named.device, copy_offset(copy), &block).await;
                written.map_err(|error| AddError::New { device: named.name.clone(), error })?;
            }
        }
        Ok(())
    }

    /// Removes the copies that were written: a later opening would take them for a newer update.
    async fn remove_first(&self) {
        for named in &self.devices {
            for copy in 0..COPIES_MIN {
                let zeroes = [0; BLOCK_BYTES];
                if let Err(error) = write_block(&named.device, copy_offset(copy), &zeroes).await {
                    let device = &named.name;
                    tracing::warn!(device, copy, %error, "superblock copy is not removed");
                }
            }
        }
    }
}

/// Failure of a growth by a pair.
#[derive(Debug)]
pub(crate) enum AddError {
    /// Of a new device, before any other has the update: the pool stays as it was.
    New {
        /// Name of the device.
        device: String,
        /// Its error.
        error: IoError,
    },
    /// Of another device. No update can follow.
    Pool(IoError),
}

impl Pairs {
    /// Adds a pair to the device table by the update `next`; returns the last update. Blank devices
    /// are in sync: no block of theirs is live.
    ///
    /// # Errors
    /// [`AddError`].
    pub(crate) async fn add(
        &self,
        next: &Superblock,
        added: &AddedPair,
    ) -> Result<Superblock, AddError> {
        let (turn, mut last) = self.update_turn().await.map_err(AddError::Pool)?;
        let (mut first, new) = (next.clone(), self.pairs.len());
        self.prepare(&mut first, &last, None);
        added.add_to(&mut first);
        if let Err(failed) = added.write_first(&first).await {
            added.remove_first().await;
            turn.end(last);
            return Err(failed);
        }
        let legs = added.devices.clone().map(LegDevice::new);
        self.pairs.push(Pair::new([LegStatus::InSync; LEGS], legs, added.geometry()));
        let mut is_complete = self.write_prepared(&first, &mut last, new).await;
        while !is_complete.map_err(AddError::Pool)? {
            is_complete = self.write_update(&mut first, &mut last, None).await;
        }
        turn.end(last.clone());
        Ok(last)
    }
}
