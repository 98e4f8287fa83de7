//! Admission: whether changes and orders may begin, and what the maintenance task does for them.
//! The decisions are in [`super::space`].

use flagstone_blockdev::IoError;

use super::shared::{Shared, State};
use super::space::{OrderKind, Sizes, SpaceDecision, SpaceState, WriteCost, admit, admit_order};
use crate::limits::{CHUNKS_UNAPPLIED, LOG_SEGMENTS_MAX, PASSES_WAITED};
use crate::map::recent::Recent;

impl State {
    pub(crate) fn supply(&mut self) -> SpaceState {
        let new = |recent: &Recent| recent.len() - recent.copied();
        let frozen = self.frozen.as_ref().map_or(0, |frozen| new(&frozen.recent));
        let copied = self.active.copied().min(self.sizes.copies);
        SpaceState {
            live: self.live + frozen as u64,
            reserved: self.reserved,
            entries: self.active.len() - copied + self.admitted.0,
            ranges: self.active.ranges_len() + self.admitted.1,
            free: self.segments.free(),
            reaping: self.deleting > 0,
            unmerged: !self.active.is_empty()
                || self.frozen.as_ref().is_some_and(|frozen| !frozen.recent.is_empty())
                || self.admitted != (0, 0),
            nothing_to_clean: self.nothing_to_clean,
            cleaner_gains_nothing: self.cleaner_gains_nothing,
        }
    }

    /// Decides whether a change may begin; `None` if it has to wait.
    fn try_admit(&mut self, demand: &WriteCost, waited: u64) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        if self.position.in_flight() >= CHUNKS_UNAPPLIED {
            return None;
        }
        let supply = self.supply();
        let decided = self.decide(admit(&sizes, &supply, demand, waited))?;
        if decided.is_ok() {
            self.admitted.0 += demand.entries;
            self.admitted.1 += demand.ranges;
            self.want_upkeep(&sizes, &supply);
        }
        Some(decided)
    }

    /// Segments that the next checkpoint takes, at most, after a pass of the cleaner: a quarter of
    /// the reserve if nothing else changed, and half of it if as much changed as can.
    pub(crate) fn checkpoint_segments(&self) -> usize {
        let Sizes { reserve, recent, .. } = self.sizes;
        let changed = (self.active.len() + self.admitted.0).min(recent);
        reserve.div_ceil(4) + (reserve * changed).div_ceil(4 * recent)
    }

    /// Decides whether free segments have room for so many more reserved blocks, or will not have
    /// it; `None` while the cleaner makes room.
    fn try_back(&mut self, blocks: u64, waited: u64) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let is_over = supply.used().saturating_add(blocks) > sizes.capacity;
        if supply.is_backed(&sizes, blocks) || is_over || waited >= PASSES_WAITED {
            return Some(Ok(()));
        }
        self.decide(match supply.nothing_to_clean {
            false => SpaceDecision::AfterCleaning,
            true if supply.may_shrink(waited) => SpaceDecision::AfterCheckpoint,
            true => SpaceDecision::Now,
        })
    }

    /// Decides whether an order may begin; `None` if it has to wait.
    fn try_admit_order(&mut self, kind: OrderKind, waited: u64) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let decided = self.decide(admit_order(&sizes, &supply, kind, waited))?;
        self.want_upkeep(&sizes, &supply);
        Some(decided)
    }

    /// Asks for what an admission needs.
    fn decide(&mut self, admission: SpaceDecision) -> Option<Result<(), IoError>> {
        match admission {
            SpaceDecision::Now => Some(Ok(())),
            SpaceDecision::Full => Some(Err(IoError::NoSpace)),
            SpaceDecision::AfterCheckpoint => {
                // Admitted changes can be merged when they have taken effect, which wakes this one:
                // until then, checkpoints would follow each other without any use.
                let merges =
                    self.admitted == (0, 0) || !self.active.is_empty() || self.deleting > 0;
                self.wanted.checkpoint |= merges;
                None
            }
            SpaceDecision::AfterCleaning => {
                self.wanted.cleaning = true;
                None
            }
        }
    }

    /// Asks for work ahead of the limits, so that writes rarely wait for it.
    fn want_upkeep(&mut self, sizes: &Sizes, supply: &SpaceState) {
        let log_max = LOG_SEGMENTS_MAX.min(self.segments.count() / 8).max(4);
        self.wanted.checkpoint |=
            4 * supply.entries > 3 * sizes.recent || self.segments.in_log() > log_max;
        let low = supply.free < supply.left_free(sizes, 0) + sizes.reserve / 4 + 2;
        self.wanted.cleaning |= low && !self.gain.is_over();
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

    /// Begins a change now, or returns `None` if it has to wait.
    ///
    /// # Errors
    /// As [`Shared::admit`].
    pub(crate) fn try_admit(&self, demand: &WriteCost) -> Option<Result<(), IoError>> {
        self.try_admitted(|state| state.try_admit(demand, 0))
    }

    /// Waits until an order may begin.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] in a full pool, except for deletions.
    pub(crate) async fn admit_order(&self, kind: OrderKind) -> Result<(), IoError> {
        self.admitted(|state, waited| state.try_admit_order(kind, waited)).await
    }

    /// Waits until free segments have room for so many more reserved blocks, or cleaning gains no
    /// more.
    ///
    /// # Errors
    /// Of the devices.
    pub(crate) async fn back(&self, blocks: u64) -> Result<(), IoError> {
        if blocks == 0 {
            return Ok(());
        }
        self.admitted(|state, waited| state.try_back(blocks, waited)).await
    }

    /// Waits for a decision, which gets the number of checkpoints since the first attempt, and
    /// tells the maintenance task about work that it asks for.
    async fn admitted(
        &self,
        decide: impl Fn(&mut State, u64) -> Option<Result<(), IoError>>,
    ) -> Result<(), IoError> {
        let mut first = None;
        let decided = self.progress.wait_for(|| {
            self.try_admitted(|state| {
                let waited = state.checkpoints - *first.get_or_insert(state.checkpoints);
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
