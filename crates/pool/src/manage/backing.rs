//! Backing: the room of a reservation from its check until it takes effect.
//!
//! Invariant: what an order claims counts as reserved from the check on, so no other write or order
//! takes it meanwhile. In the step in which the reservation takes effect, the claim becomes zero;
//! an order that fails gives it back.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::shared::{Shared, State, reservation};
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::unit::BLOCK_WEIGHT_U64;
use crate::ondisk::volume_table::{VolumeRecord, VolumeTable};

/// A reservation that an order is about to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A new thick volume.
    New { uuid: PoolId, blocks: u64 },
    /// A volume becomes thick, with this size.
    Thick { volume: u32, blocks: u64 },
    /// Snapshots keep what these volumes have.
    Snapshots(Vec<u32>),
    /// Gives a volume the content and size of a snapshot.
    Rollback { volume: u32, snapshot: u32 },
}

impl Claim {
    /// Blocks that are reserved in addition when the order takes effect; 0 afterwards.
    pub(super) fn more(&self, volume_table: &VolumeTable) -> u64 {
        self.more_weight(volume_table).div_ceil(BLOCK_WEIGHT_U64)
    }

    /// Weight that is reserved in addition when the order takes effect; 0 afterwards.
    fn more_weight(&self, volume_table: &VolumeTable) -> u64 {
        let find = |id: &u32| volume_table.volumes.get(id);
        let kept = |thick: &VolumeRecord, blocks: u64| {
            (blocks * BLOCK_WEIGHT_U64).saturating_sub(reservation(thick))
        };
        match self {
            Claim::New { uuid, blocks } => {
                let exists = volume_table.present().any(|volume| volume.uuid == *uuid);
                if exists { 0 } else { blocks.saturating_mul(BLOCK_WEIGHT_U64) }
            }
            Claim::Thick { volume, blocks } => find(volume).map_or(0, |volume| {
                // An order before this one may have let it grow further.
                let blocks = volume.blocks.max(*blocks);
                let thick = VolumeRecord { thick: true, blocks, ..volume.clone() };
                reservation(&thick).saturating_sub(reservation(volume))
            }),
            Claim::Snapshots(volumes) => {
                let thick = volumes.iter().filter_map(find).filter(|volume| volume.thick);
                thick.map(|volume| kept(volume, volume.blocks)).sum()
            }
            Claim::Rollback { volume, snapshot } => match find(volume).zip(find(snapshot)) {
                Some((volume, snapshot)) if volume.thick => kept(volume, snapshot.blocks),
                _ => 0,
            },
        }
    }
}

/// Room for a claim: given back when dropped.
pub(super) struct ClaimedSpace {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for ClaimedSpace {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.claims.remove(&self.id).is_some() {
            state.count_claims();
        }
        drop(state);
        self.shared.progress.notify();
    }
}

impl ClaimedSpace {
    /// Holds room for a claim, in place of an earlier one; false if there is too little. A claim
    /// that is held already is checked again only if it grew, because an order took effect: writes
    /// that were admitted since left room for the rest.
    pub(super) fn hold(&self, state: &mut State, claim: Option<Claim>) -> bool {
        let blocks = claim.as_ref().map_or(0, |claim| claim.more(&state.volume_table));
        if let (Some((checked, held)), Some(claim)) = (state.claims.get(&self.id), &claim)
            && held == claim
            && *checked >= blocks
        {
            return true;
        }
        state.claims.remove(&self.id);
        state.count_claims();
        let Some(claim) = claim else { return true };
        let has_room = state.has_room(blocks);
        if has_room {
            state.claims.insert(self.id, (blocks, claim));
            state.count_claims();
        }
        has_room
    }
}

impl State {
    /// Counts what orders in progress claim.
    pub(super) fn count_claims(&mut self) {
        self.claimed = 0;
        for (checked, claim) in self.claims.values_mut() {
            let weight = claim.more_weight(&self.volume_table);
            *checked = weight.div_ceil(BLOCK_WEIGHT_U64).min(*checked);
            self.claimed = self.claimed.saturating_add(weight);
        }
    }

    /// Error: the pool has no space for `more` reserved blocks.
    pub(super) fn no_space(&mut self, more: u64) -> VolumeError {
        let (sizes, supply) = (self.sizes, self.supply());
        let free = sizes.capacity.saturating_sub(supply.needed()).min(supply.left_backed(&sizes));
        let block = BLOCK_BYTES as u64;
        VolumeError::NoSpace { free_bytes: free * block, needed_bytes: more * block }
    }

    /// True if `more` blocks can be reserved. Admitted writes may still take free segments.
    pub(super) fn has_room(&mut self, more: u64) -> bool {
        let (sizes, supply) = (self.sizes, self.supply());
        let fits = supply.needed().saturating_add(more) <= sizes.capacity;
        let admitted = self.admitted.0 as u64;
        more == 0 || fits && supply.is_backed(&sizes, more.saturating_add(admitted))
    }
}

impl Shared {
    /// Holds room for a claim, as soon as free segments have it or cleaning gains no more. Then the
    /// check of the order, which comes with its turn, finds the reason.
    ///
    /// # Errors
    /// Of the devices.
    pub(super) async fn back(
        self: &Arc<Self>,
        claim: impl Fn(&VolumeTable) -> Option<Claim>,
    ) -> Result<ClaimedSpace, IoError> {
        let id = {
            let mut state = self.state.lock();
            state.next_claim += 1;
            state.next_claim
        };
        let backing = ClaimedSpace { shared: self.clone(), id };
        self.admitted(|state, waited| {
            let claim = claim(&state.volume_table);
            let more = claim.as_ref().map_or(0, |claim| claim.more(&state.volume_table));
            if backing.hold(state, claim) {
                return Some(state.check());
            }
            state.try_back(more, waited)
        })
        .await?;
        Ok(backing)
    }
}

#[cfg(test)]
mod tests {
    use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
    use flagstone_runtime::task::yield_now;
    use flagstone_runtime::{Buf, block_on, spawn};

    use super::*;
    use crate::manage::shared::{MaintenancePause, MaintenanceTask};
    use crate::{CreateOptions, NamedDevice, Pool, VolumeOptions};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    async fn create() -> Pool {
        let device = MemoryDevice::new((1 << 20) + 128 * 64 * BLOCK, 512).unwrap();
        let devices = vec![NamedDevice { name: "/a".to_owned(), device: Arc::new(device) }];
        let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
        Pool::create(devices, &options).await.unwrap()
    }

    fn options(blocks: u64, thick: bool) -> VolumeOptions {
        VolumeOptions { size_bytes: blocks * BLOCK, thick, ..VolumeOptions::default() }
    }

    /// A snapshot waits for the maintenance task after its check. Thin writes took the space that
    /// it had found.
    #[test]
    fn checked_snapshot_keeps_its_space() {
        block_on(async {
            let pool = create().await;
            let capacity = pool.status().capacity_bytes / BLOCK;
            let thick = capacity - 200;
            let thick = pool.create_volume("thick", &options(thick, true)).await.unwrap();
            let thin = pool.create_volume("thin", &options(1 << 20, false)).await.unwrap();
            thick.write(0, Buf::copy_of(&[1; 100 * BLOCK_BYTES]).unwrap(), false).await.unwrap();
            pool.checkpoint().await.unwrap();
            let shared = pool.shared().clone();
            // As if the maintenance task worked.
            shared.state.lock().maintenance = MaintenanceTask::Works;
            let own = pool.clone();
            let snapshot = spawn(async move { own.create_snapshot(&["thick"], "a").await });
            while shared.state.lock().pause != MaintenancePause::Waiting {
                yield_now().await;
            }
            let room = |state: &mut State| state.sizes.capacity - state.supply().used();
            let mut place = 0;
            while room(&mut shared.state.lock()) > 0 {
                let data = Buf::copy_of(&[7; BLOCK_BYTES]).unwrap();
                thin.write(place * BLOCK, data, false).await.unwrap();
                place += 1;
            }
            shared.state.lock().maintenance = MaintenanceTask::Waits;
            shared.progress.notify();
            snapshot.await.unwrap().unwrap();
            let mut state = shared.state.lock();
            let (sizes, supply) = (state.sizes, state.supply());
            assert!(supply.used() <= sizes.capacity, "{supply:?} {sizes:?}");
            assert_eq!((state.claimed, state.claims.len()), (0, 0), "it has taken effect");
            assert_eq!(supply.reserved, capacity - 200);
        })
        .unwrap();
    }

    /// A snapshot that was taken between keeps the blocks that the volume counted as its own.
    #[test]
    fn order_between_lets_a_claim_be_checked_again() {
        block_on(async {
            let pool = create().await;
            let thin = pool.create_volume("thin", &options(100, false)).await.unwrap();
            thin.write(0, Buf::copy_of(&[1; 100 * BLOCK_BYTES]).unwrap(), false).await.unwrap();
            pool.checkpoint().await.unwrap();
            let volume = pool.shared().state.lock().volume_table.by_name("thin").unwrap().id;
            let claim = Some(Claim::Thick { volume, blocks: 100 });
            let backing = pool.shared().back(|_| claim.clone()).await.unwrap();
            assert_eq!(pool.shared().state.lock().claimed, 0);
            pool.create_snapshot(&["thin"], "a").await.unwrap();
            let mut state = pool.shared().state.lock();
            assert_eq!(state.claimed, 100 * BLOCK_WEIGHT_U64);
            state.sizes.capacity = state.supply().used() - 1;
            assert!(!backing.hold(&mut state, claim), "it has no room for as much");
            assert_eq!(state.claimed, 0);
            drop(state);
        })
        .unwrap();
    }

    /// The second check counted writes that were admitted beside the claim once more, and refused
    /// an order that had its room.
    #[test]
    fn claim_that_did_not_grow_keeps_its_room() {
        block_on(async {
            let pool = create().await;
            let claim = Some(Claim::New { uuid: PoolId([1; 16]), blocks: 1000 });
            let backing = pool.shared().back(|_| claim.clone()).await.unwrap();
            {
                let mut state = pool.shared().state.lock();
                // Writes were admitted beside it, as many as free segments back.
                let (sizes, supply) = (state.sizes, state.supply());
                state.admitted.0 = supply.left_backed(&sizes) as usize;
                assert!(supply.is_backed(&sizes, 0) && !state.has_room(1000));
            }
            pool.create_volume("thin", &options(100, false)).await.unwrap();
            let mut state = pool.shared().state.lock();
            assert!(backing.hold(&mut state, claim.clone()), "another order took effect");
            assert_eq!(state.claimed, 1000 * BLOCK_WEIGHT_U64);
            state.admitted.0 = 0;
        })
        .unwrap();
    }

    /// A claim that shrank and grew again has no room for the difference any more.
    #[test]
    fn claim_that_grew_is_checked_again() {
        block_on(async {
            let pool = create().await;
            let thin = pool.create_volume("thin", &options(100, false)).await.unwrap();
            let volume = pool.shared().state.lock().volume_table.by_name("thin").unwrap().id;
            let claim = Some(Claim::Thick { volume, blocks: 100 });
            let backing = pool.shared().back(|_| claim.clone()).await.unwrap();
            assert_eq!(pool.shared().state.lock().claimed, 100 * BLOCK_WEIGHT_U64);
            thin.write(0, Buf::copy_of(&[1; 100 * BLOCK_BYTES]).unwrap(), false).await.unwrap();
            pool.checkpoint().await.unwrap();
            pool.create_volume("other", &options(1, false)).await.unwrap();
            assert_eq!(pool.shared().state.lock().claimed, 0);
            pool.create_snapshot(&["thin"], "a").await.unwrap();
            let mut state = pool.shared().state.lock();
            assert_eq!(state.claimed, 100 * BLOCK_WEIGHT_U64);
            state.sizes.capacity = state.supply().used() - 1;
            assert!(!backing.hold(&mut state, claim), "it has no room for as much");
        })
        .unwrap();
    }

    #[test]
    fn failed_order_gives_its_space_back() {
        block_on(async {
            let pool = create().await;
            pool.create_volume("thick", &options(1000, true)).await.unwrap();
            let again = pool.create_volume("thick", &options(1000, true)).await;
            assert!(again.is_err());
            let mut state = pool.shared().state.lock();
            assert_eq!((state.supply().reserved, state.claims.len()), (1000, 0));
        })
        .unwrap();
    }
}
