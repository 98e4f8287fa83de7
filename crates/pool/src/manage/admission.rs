//! Admission: whether changes and orders may begin, and requests to the maintenance task for space.
//! [`super::space`] has the decisions.

use flagstone_blockdev::IoError;

use super::shared::{Shared, State};
use super::space::{
    OrderKind, Sizes, SpaceDecision, SpaceState, WaitedWork, WriteCost, admit, admit_order,
};
use crate::limits::{CHUNKS_UNAPPLIED, EVACUATION_HOLDS, LOG_SEGMENTS_MAX, PASSES_WAITED};
use crate::map::recent::Recent;
use crate::ondisk::unit::BLOCK_WEIGHT_U64;

impl State {
    pub(crate) fn supply(&mut self) -> SpaceState {
        let new = |recent: &Recent| recent.len() - recent.copied();
        let frozen = self.frozen.as_ref().map_or(0, |frozen| new(&frozen.recent));
        let copied = self.active.copied().min(self.sizes.copies);
        SpaceState {
            live: self.live + frozen as u64,
            reserved: self.reserved.saturating_add(self.claimed).div_ceil(BLOCK_WEIGHT_U64),
            held: self.held,
            entries: self.active.len() - copied + self.admitted.0,
            ranges: self.active.ranges_len() + self.admitted.1,
            leaves: self.zeroed_leaves,
            free: self.segments.free(),
            log: self.segments.in_log(),
            reaping: self.deleting > 0,
            unmerged: !self.active.is_empty()
                || self.frozen.as_ref().is_some_and(|frozen| !frozen.recent.is_empty())
                || self.admitted != (0, 0),
            nothing_to_clean: self.nothing_to_clean,
            cleaner_gains_nothing: self.cleaner_gains_nothing,
        }
    }

    /// Decides whether a change may begin; `None` if it must wait.
    fn try_admit(&mut self, demand: &WriteCost, waited: WaitedWork) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        if self.position.in_flight() >= CHUNKS_UNAPPLIED {
            return None;
        }
        let holds = self.evacuation_waits && !self.nothing_to_clean;
        if holds && demand.blocks > 0 && waited.checkpoints < EVACUATION_HOLDS {
            return self.decide(SpaceDecision::AfterCleaning);
        }
        let supply = self.supply();
        let decided = self.decide(admit(&sizes, &supply, demand, waited))?;
        if decided.is_ok() {
            self.admitted.0 += demand.entries;
            self.admitted.1 += demand.ranges;
            self.zeroed_leaves += demand.leaves;
            self.want_upkeep(&sizes, &supply);
        }
        Some(decided)
    }

    /// Most segments that the next checkpoint takes after a cleaning pass, with `more` changes: a
    /// quarter of the reserve without other changes, half of the reserve with a full table of
    /// recent changes.
    pub(crate) fn checkpoint_segments(&self, more: usize) -> usize {
        let Sizes { reserve, recent, .. } = self.sizes;
        let changed = (self.active.len() + self.admitted.0 + more).min(recent);
        reserve.div_ceil(4) + (reserve * changed).div_ceil(4 * recent)
    }

    /// Decides about more reserved blocks than free segments back: `None` while the cleaner frees
    /// segments.
    pub(super) fn try_back(
        &mut self,
        blocks: u64,
        waited: WaitedWork,
    ) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let is_over = supply.used().saturating_add(blocks) > sizes.capacity;
        if is_over || waited.passes >= PASSES_WAITED {
            return Some(Ok(()));
        }
        let packs = supply.needed().saturating_add(blocks) > sizes.capacity;
        self.decide(match supply.nothing_to_clean {
            false if packs => SpaceDecision::AfterPacking,
            false => SpaceDecision::AfterCleaning,
            true if supply.may_shrink(waited.checkpoints) => SpaceDecision::AfterCheckpoint,
            true => SpaceDecision::Now,
        })
    }

    /// Decides about the removal of a device if the others have room for `blocks`: `None` while
    /// packing may make everything fit.
    pub(super) fn try_fit(
        &mut self,
        blocks: u64,
        waited: WaitedWork,
    ) -> Option<Result<(), IoError>> {
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let is_decided = supply.needed() <= blocks || supply.used() > blocks;
        if is_decided || supply.nothing_to_clean || waited.passes >= PASSES_WAITED {
            return Some(Ok(()));
        }
        self.decide(SpaceDecision::AfterPacking)
    }

    /// Decides whether an order may begin; `None` if it must wait.
    fn try_admit_order(
        &mut self,
        kind: OrderKind,
        waited: WaitedWork,
    ) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let decided = self.decide(admit_order(&sizes, &supply, kind, waited))?;
        self.want_upkeep(&sizes, &supply);
        Some(decided)
    }

    /// Turns an admission into a decision, and requests the work that it waits for.
    fn decide(&mut self, admission: SpaceDecision) -> Option<Result<(), IoError>> {
        match admission {
            SpaceDecision::Now => Some(Ok(())),
            SpaceDecision::Full => Some(Err(IoError::NoSpace)),
            SpaceDecision::AfterCheckpoint => {
                // Wait until the admitted changes take effect, which wakes this admission. Until
                // then, checkpoints would merge nothing.
                let merges =
                    self.admitted == (0, 0) || !self.active.is_empty() || self.deleting > 0;
                self.wanted.checkpoint |= merges;
                None
            }
            SpaceDecision::AfterCleaning => {
                (self.wanted.cleaning, self.writes_wait) = (true, true);
                None
            }
            SpaceDecision::AfterPacking => {
                (self.wanted.cleaning, self.wanted.packing) = (true, true);
                None
            }
        }
    }

    /// Requests work ahead of the limits, so that writes rarely wait for it.
    fn want_upkeep(&mut self, sizes: &Sizes, supply: &SpaceState) {
        let log_max = LOG_SEGMENTS_MAX.min(self.segments.count() / 8).max(4);
        self.wanted.checkpoint |=
            4 * supply.entries > 3 * sizes.recent || self.segments.in_log() > log_max;
        let low = supply.free < supply.left_free(sizes, 0) + sizes.reserve / 4 + 2;
        // Writes stop once what dead blocks of units hold does not fit: packing begins before, by
        // as much as hosts may write until the next checkpoint.
        let margin = sizes.recent as u64;
        let packs = !low
            && self.packable >= margin.min(sizes.payload)
            && supply.needed().saturating_add(margin) > sizes.capacity;
        self.wanted.cleaning |= (low || packs) && !self.gain.is_over();
        self.wanted.packing |= packs && !self.gain.is_over();
    }
}

impl Shared {
    /// Waits until a change may begin.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] in a full pool.
    pub(crate) async fn admit(&self, demand: WriteCost) -> Result<(), IoError> {
        self.admitted(|state, waited| state.try_admit(&demand, waited)).await
    }

    /// Begins a change now; `None` if it must wait.
    ///
    /// # Errors
    /// As [`Shared::admit`].
    pub(crate) fn try_admit(&self, demand: &WriteCost) -> Option<Result<(), IoError>> {
        self.try_admitted(|state| state.try_admit(demand, WaitedWork::default()))
    }

    /// Waits until an order may begin.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] in a full pool, except for deletions.
    pub(crate) async fn admit_order(&self, kind: OrderKind) -> Result<(), IoError> {
        self.admitted(|state, waited| state.try_admit_order(kind, waited)).await
    }

    /// Waits for a decision, which gets the work done since the first attempt. Wakes the
    /// maintenance task if the decision requests work.
    pub(super) async fn admitted(
        &self,
        decide: impl Fn(&mut State, WaitedWork) -> Option<Result<(), IoError>>,
    ) -> Result<(), IoError> {
        let mut first = None;
        let decided = self.progress.wait_for(|| {
            self.try_admitted(|state| {
                let now = WaitedWork { checkpoints: state.checkpoints, passes: state.passes };
                let WaitedWork { checkpoints, passes } = *first.get_or_insert(now);
                let waited = WaitedWork {
                    checkpoints: now.checkpoints - checkpoints,
                    passes: now.passes - passes,
                };
                decide(state, waited)
            })
        });
        decided.await
    }

    fn try_admitted(
        &self,
        decide: impl FnOnce(&mut State) -> Option<Result<(), IoError>>,
    ) -> Option<Result<(), IoError>> {
        let mut state = self.state.lock();
        let before = state.wanted;
        let decided = decide(&mut state);
        let asked = before != state.wanted;
        drop(state);
        if asked {
            self.progress.notify();
        }
        decided
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
    use flagstone_runtime::{Buf, block_on};

    use super::*;
    use crate::limits::{BLOCK_BYTES, FRUITLESS_PASSES, MERGES_WAITED};
    use crate::{CreateOptions, NamedDevice, Pool, VolumeOptions};

    /// Packing was requested only by a write that waited for it.
    #[test]
    fn packing_begins_before_writes_wait_for_it() {
        block_on(async {
            let block = BLOCK_BYTES as u64;
            let device = Arc::new(MemoryDevice::new((1 << 20) + 256 * 64 * block, 512).unwrap());
            let devices = vec![NamedDevice { name: "/a".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let mut state = pool.shared().state.lock();
            let (capacity, margin) = (state.sizes.capacity, state.sizes.recent as u64);
            let write = WriteCost { entries: 1, ranges: 0, leaves: 0, blocks: 1, reserved: false };
            let mut admit = |held: u64| {
                (state.wanted, state.held, state.packable) = (Default::default(), held, held);
                assert_eq!(
                    state.try_admit(&write, WaitedWork::default()),
                    Some(Ok(())),
                    "no write waits"
                );
                state.admitted = (0, 0);
                (state.wanted.cleaning, state.wanted.packing)
            };
            let used = 10;
            assert_eq!(admit(capacity - margin - 2 * used), (false, false));
            assert_eq!(admit(capacity - margin + used), (true, true));
            state.live = capacity - margin + used;
            let mut admit = |held: u64| {
                (state.wanted, state.held, state.packable) = (Default::default(), held, held);
                assert_eq!(state.try_admit(&write, WaitedWork::default()), Some(Ok(())));
                state.admitted = (0, 0);
                (state.wanted.cleaning, state.wanted.packing)
            };
            assert_eq!(admit(0), (false, false), "packing would gain nothing");
        })
        .unwrap();
    }

    /// Such a write waited for 1,024 passes of the cleaner.
    #[test]
    fn hopeless_write_ends_when_cleaning_gains_nothing() {
        block_on(async {
            let block = BLOCK_BYTES as u64;
            let device = Arc::new(MemoryDevice::new((1 << 20) + 64 * 16 * block, 512).unwrap());
            let devices = vec![NamedDevice { name: "/a".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let size = |blocks: u64, thick| VolumeOptions {
                size_bytes: blocks * block,
                thick,
                ..VolumeOptions::default()
            };
            let thick = pool.create_volume("thick", &size(100, true)).await.unwrap();
            let thin = pool.create_volume("thin", &size(1 << 20, false)).await.unwrap();
            let data = Buf::copy_of(&[1; BLOCK_BYTES]).unwrap();
            // Every second block is dead: passes gain something at first.
            for at in 0..400 {
                thin.write(at / 2 * block, data.clone(), false).await.unwrap();
            }
            let shared = pool.shared();
            let before = {
                let mut state = shared.state.lock();
                // As if damage kept most segments from being cleaned.
                state.sizes.reserve = 1000;
                state.checkpoints
            };
            let written = thick.write(0, data, false).await;
            assert_eq!(written, Err(IoError::NoSpace));
            let passes = shared.state.lock().checkpoints - before;
            let gaining = 32;
            assert!(passes <= gaining + u64::from(FRUITLESS_PASSES) + MERGES_WAITED, "{passes}");
        })
        .unwrap();
    }
}
