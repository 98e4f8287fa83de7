//! Dry runs: errors that an order would end with. Nothing is changed or claimed.
//!
//! Invariant: a check refuses nothing that the order does. The order may wait until the cleaner has
//! freed space, and may be refused then, or after other orders.

use super::backing::Claim;
use super::devices::DeviceOrderError;
use super::pool::{Pool, blocks_of, grow_record};
use super::shared::State;
use super::space::{OrderKind, SpaceDecision, WaitedWork, admit_order};
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::unit::BLOCK_WEIGHT_U64;

impl State {
    /// Checks a claim without the work of the cleaner, for which the order waits.
    fn check_claim(&mut self, claim: &Claim) -> Result<(), VolumeError> {
        let more = claim.more(&self.volume_table);
        let (sizes, supply) = (self.sizes, self.supply());
        let is_over = supply.used().saturating_add(more) > sizes.capacity;
        let may_free = !supply.nothing_to_clean || supply.may_shrink(0);
        match self.has_room(more) || !is_over && may_free {
            true => Ok(()),
            false => Err(self.no_space(more)),
        }
    }
}

impl Pool {
    /// Checks that an order that does not free space may begin.
    ///
    /// # Errors
    /// As [`Pool::order`].
    fn check_order(&self, state: &mut State) -> Result<(), VolumeError> {
        state.check().map_err(VolumeError::Io)?;
        let (sizes, supply) = (state.sizes, state.supply());
        match admit_order(&sizes, &supply, OrderKind::Other, WaitedWork::default()) {
            SpaceDecision::Full => Err(VolumeError::Full { pool: self.shared().name.clone() }),
            _ => Ok(()),
        }
    }

    /// Checks that a new thick volume fits, as [`Pool::create_volume`].
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], and [`VolumeError::Field`] for an impossible size.
    pub fn check_thick_creation(&self, size_bytes: u64) -> Result<(), VolumeError> {
        let claim = Claim::New { uuid: PoolId::random(), blocks: blocks_of(size_bytes)? };
        let mut state = self.shared().state.lock();
        self.check_order(&mut state)?;
        state.check_claim(&claim)
    }

    /// Checks [`Pool::resize_volume`].
    ///
    /// # Errors
    /// As [`Pool::resize_volume`].
    pub fn check_resize(&self, name: &str, size_bytes: u64) -> Result<(), VolumeError> {
        let blocks = blocks_of(size_bytes)?;
        let mut state = self.shared().state.lock();
        let old = state.volume_table.by_name(name).cloned();
        let mut record = old.ok_or_else(|| self.unknown(name))?;
        grow_record(&mut record, blocks)?;
        self.check(&state, &record)?;
        self.check_order(&mut state)?;
        match record.thick {
            true => state.check_claim(&Claim::Thick { volume: record.id, blocks }),
            false => Ok(()),
        }
    }

    /// Checks that a volume can become thick.
    ///
    /// # Errors
    /// As [`Pool::set_volume`].
    pub fn check_thick(&self, name: &str) -> Result<(), VolumeError> {
        let mut state = self.shared().state.lock();
        let found = state.volume_table.by_name(name).ok_or_else(|| self.unknown(name))?;
        let claim = Claim::Thick { volume: found.id, blocks: found.blocks };
        self.check_order(&mut state)?;
        state.check_claim(&claim)
    }

    /// Checks [`Pool::create_snapshot`].
    ///
    /// # Errors
    /// As [`Pool::create_snapshot`].
    pub fn check_snapshot(&self, volumes: &[&str], name: &str) -> Result<(), VolumeError> {
        let mut state = self.shared().state.lock();
        let ids = self.snapshot_volumes(&state, volumes, name)?;
        self.check_order(&mut state)?;
        state.check_claim(&Claim::Snapshots(ids))
    }

    /// Checks [`Pool::rollback`].
    ///
    /// # Errors
    /// As [`Pool::rollback`].
    pub fn check_rollback(&self, volume: &str, snapshot: &str) -> Result<(), VolumeError> {
        let mut state = self.shared().state.lock();
        let full = format!("{volume}@{snapshot}");
        let (volume, snapshot) = self.rollback_ids(&state, volume, &full)?;
        self.check_order(&mut state)?;
        state.check_claim(&Claim::Rollback { volume, snapshot })
    }

    /// Checks [`Pool::promote_volume`].
    ///
    /// # Errors
    /// As [`Pool::promote_volume`].
    pub fn check_promotion(&self, name: &str) -> Result<(), VolumeError> {
        let mut state = self.shared().state.lock();
        self.promotion_of(&state, name)?;
        self.check_order(&mut state)
    }

    /// Checks [`Pool::evacuate`] with what is in use as of the last checkpoint. Returns the bytes
    /// in use on the device.
    ///
    /// # Errors
    /// As [`Pool::evacuate`].
    pub fn check_evacuation(&self, device: &str) -> Result<u64, DeviceOrderError> {
        let mut state = self.shared().state.lock();
        state.check().map_err(VolumeError::Io)?;
        let supply = state.supply();
        let (_, range, _) = self.evacuation_of(&state, device, supply.live + supply.reserved)?;
        let weight: u64 = range.map(|segment| u64::from(state.weight_of(segment))).sum();
        Ok(weight.div_ceil(BLOCK_WEIGHT_U64) * BLOCK_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_blockdev::{IoError, MemoryDevice};
    use flagstone_runtime::block_on;

    use super::*;
    use crate::{CreateOptions, NamedDevice, VolumeOptions};

    /// Regression: dry runs said that orders would succeed that a failed or full pool refuses.
    #[test]
    fn dry_runs_refuse_what_no_order_gets() {
        block_on(async {
            let block = BLOCK_BYTES as u64;
            let device = Arc::new(MemoryDevice::new((1 << 20) + 256 * 64 * block, 512).unwrap());
            let devices = vec![NamedDevice { name: "/a".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let size = VolumeOptions { size_bytes: 100 * block, ..VolumeOptions::default() };
            pool.create_volume("db", &size).await.unwrap();
            pool.create_snapshot(&["db"], "now").await.unwrap();
            pool.clone_volume("db@now", "copy", Default::default()).await.unwrap();
            let check = || {
                [
                    pool.check_thick_creation(block),
                    pool.check_resize("db", 200 * block),
                    pool.check_thick("db"),
                    pool.check_snapshot(&["db"], "later"),
                    pool.check_rollback("db", "now"),
                    pool.check_promotion("copy"),
                ]
            };
            let turn = pool.maintenance_turn().await.unwrap();
            assert!(check().iter().all(Result::is_ok), "{:?}", check());
            let reserve = {
                let mut state = pool.shared().state.lock();
                state.nothing_to_clean = true;
                std::mem::replace(&mut state.sizes.reserve, 1 << 20)
            };
            for checked in check() {
                assert!(matches!(checked, Err(VolumeError::Full { .. })), "{checked:?}");
            }
            pool.shared().state.lock().sizes.reserve = reserve;
            pool.shared().state.lock().fail(IoError::WriteFault);
            for checked in check() {
                assert!(
                    matches!(checked, Err(VolumeError::Io(IoError::WriteFault))),
                    "{checked:?}"
                );
            }
            drop(turn);
        })
        .unwrap();
    }
}
