//! Superblock updates of a pool with redundancy.
//!
//! Invariant: the update that calls a leg missing has a number that no superblock of that leg has.
//! Updates are written one after the other, each to all legs that get writes, so a leg has at most
//! the update after the last complete one. A leg that fails has at most the one in which it failed,
//! and the next one calls it missing. A leg that is absent at an opening may have the update that
//! the last crash interrupted, which the present legs lack: the update that calls it missing leaves
//! that number out. So a superblock of a leg from this update on is one of a leg that was used apart.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::leg::LegDevice;
use super::pair::Pair;
use super::{LegStatus, Pairs};
use crate::ondisk::legs::{LEGS, LegRecord, LegState};
use crate::ondisk::superblock::{COPIES, Superblock, copy_offset};
use crate::storage::copy_memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateState {
    Idle,
    Runs,
    /// An update failed or was dropped, and may be on some of the legs.
    Over,
}

/// The last update, which is on every leg in sync.
#[derive(Debug)]
pub(super) struct Updates {
    pub(super) last: Superblock,
    state: UpdateState,
}

impl Updates {
    pub(super) fn new(last: Superblock) -> Updates {
        Updates { last, state: UpdateState::Idle }
    }
}

/// Change of one leg by an update.
#[derive(Clone, Debug)]
pub(super) enum LegChange {
    /// It has everything, if it still has this device.
    InSync(usize, Arc<LegDevice>),
    /// It has another device.
    Replaced(usize, LegRecord),
}

/// Right to write an update. Dropped before the update ended: no other follows.
struct UpdateTurn<'a>(&'a Pairs);

impl Drop for UpdateTurn<'_> {
    fn drop(&mut self) {
        let mut updates = self.0.updates.lock();
        if updates.state == UpdateState::Runs {
            updates.state = UpdateState::Over;
        }
        drop(updates);
        self.0.changed.notify();
    }
}

impl Pairs {
    /// The last update.
    pub(crate) fn last(&self) -> Superblock {
        self.updates.lock().last.clone()
    }

    /// Writes an update with the present states of the legs; returns it. Legs that fail are recorded
    /// as missing by a further update.
    ///
    /// # Errors
    /// Of a leg without which its device has none in sync. No update can follow.
    pub(crate) async fn write_superblock(&self, next: &Superblock) -> Result<Superblock, IoError> {
        self.update(|_| Some(next.clone()), None).await
    }

    /// Records the states of the legs, if they differ from the last update; returns the last one.
    ///
    /// # Errors
    /// As [`Pairs::write_superblock`].
    pub(crate) async fn settle(&self) -> Result<Superblock, IoError> {
        let differs = |last: &Superblock| {
            let recorded = last.pairs.iter().flatten().map(|leg| leg.state);
            let present = self.pairs.iter().flat_map(|pair| pair.status());
            let has_failed =
                self.pairs.iter().any(|pair| pair.status().contains(&LegStatus::Failed));
            let same = recorded.eq(present.map(LegStatus::recorded));
            (has_failed || !same).then(|| last.clone())
        };
        self.update(differs, None).await
    }

    /// Records a change of one leg.
    ///
    /// # Errors
    /// As [`Pairs::write_superblock`].
    pub(super) async fn change(&self, change: LegChange) -> Result<Superblock, IoError> {
        self.update(|last| Some(last.clone()), Some(change)).await
    }

    /// Waits for the update in progress, and prevents further ones.
    pub(super) async fn end_updates(&self) {
        let end = || {
            let mut updates = self.updates.lock();
            let is_free = updates.state != UpdateState::Runs;
            is_free.then(|| updates.state = UpdateState::Over)
        };
        self.changed.wait_for(end).await;
    }

    /// The last update, if none is in progress.
    pub(crate) fn settled(&self) -> Option<Superblock> {
        let updates = self.updates.lock();
        (updates.state != UpdateState::Runs).then(|| updates.last.clone())
    }

    async fn update(
        &self,
        next: impl FnOnce(&Superblock) -> Option<Superblock>,
        change: Option<LegChange>,
    ) -> Result<Superblock, IoError> {
        let begin = || {
            let mut updates = self.updates.lock();
            match updates.state {
                UpdateState::Idle => updates.state = UpdateState::Runs,
                UpdateState::Runs => return None,
                UpdateState::Over => return Some(Err(IoError::WriteFault)),
            }
            Some(Ok(updates.last.clone()))
        };
        let mut last = self.changed.wait_for(begin).await?;
        let turn = UpdateTurn(self);
        if let Some(mut next) = next(&last) {
            while !self.write_update(&mut next, &mut last, change.as_ref()).await? {}
        }
        let mut updates = self.updates.lock();
        (updates.last, updates.state) = (last.clone(), UpdateState::Idle);
        drop(updates);
        drop(turn);
        Ok(last)
    }

    /// True if the leg at this position has this device, and gets writes.
    fn is_written(&self, position: usize, device: &Arc<LegDevice>) -> bool {
        let status = self.pairs[position / LEGS].status_of(position % LEGS, device);
        status.is_some_and(LegStatus::is_written)
    }

    /// Records of the legs for an update.
    fn records(&self, last: &Superblock, update: u64, change: Option<&LegChange>) -> Superblock {
        let mut next = last.clone();
        for (position, record) in next.pairs.iter_mut().flatten().enumerate() {
            let status = self.pairs[position / LEGS].status()[position % LEGS];
            let (own, state) = match change {
                Some(LegChange::Replaced(at, own)) if *at == position => (*own, status.recorded()),
                Some(LegChange::InSync(at, device))
                    if *at == position && self.is_written(position, device) =>
                {
                    (*record, LegState::InSync)
                }
                _ => (*record, status.recorded()),
            };
            let is_same = own.id == record.id
                && std::mem::discriminant(&state) == std::mem::discriminant(&record.state);
            let since = if is_same { record.since } else { update };
            *record = LegRecord { state, since, ..own };
        }
        next
    }

    /// Writes one update; false if a leg failed, which the next one records.
    async fn write_update(
        &self,
        next: &mut Superblock,
        last: &mut Superblock,
        change: Option<&LegChange>,
    ) -> Result<bool, IoError> {
        let is_absent = |pair: &Pair| pair.status().contains(&LegStatus::Absent);
        next.skipped = u64::from(self.pairs.iter().any(is_absent));
        next.update = next.update.max(last.update + 1) + next.skipped;
        next.pairs = self.records(last, next.update, change).pairs;
        for (device, pair) in next.devices.iter_mut().zip(&next.pairs) {
            *device = crate::ondisk::legs::device_of(pair, device.segments);
        }
        let mut members = self.members();
        let is_behind = |position: &usize| {
            self.pairs[position / LEGS].status()[position % LEGS] != LegStatus::InSync
        };
        members.sort_by_key(|(position, _)| is_behind(position));
        let mut failures = vec![0; members.len()];
        for phase in [0..2, 2..COPIES] {
            for ((position, _), failures) in members.iter().zip(&mut failures) {
                for copy in phase.clone() {
                    self.write_copy(*position, next, copy, failures).await?;
                }
            }
        }
        *last = next.clone();
        for (position, record) in next.pairs.iter().flatten().enumerate() {
            let mut state = self.pairs[position / LEGS].state.lock();
            let status = &mut state.legs[position % LEGS];
            match (*status, record.state) {
                (LegStatus::Absent | LegStatus::Failed, LegState::Missing) => {
                    *status = LegStatus::Missing;
                }
                (LegStatus::Behind { .. }, LegState::InSync) => *status = LegStatus::InSync,
                _ => {}
            }
        }
        Ok(failures.iter().all(|failures| *failures < GIVEN_UP))
    }

    /// Writes a copy of one leg, which fails with its second copy.
    async fn write_copy(
        &self,
        position: usize,
        superblock: &Superblock,
        copy: usize,
        failures: &mut u32,
    ) -> Result<(), IoError> {
        if *failures >= GIVEN_UP {
            return Ok(());
        }
        let own = Superblock { device: position as u16, ..superblock.clone() };
        let device = self.device(position);
        let data = copy_memory(&own.encode(copy));
        let written = device.write(copy_offset(copy), data, true).await;
        let Err(error) = written else { return Ok(()) };
        *failures = match error {
            IoError::Unreachable => GIVEN_UP,
            _ => *failures + 1,
        };
        match *failures >= GIVEN_UP {
            true => self.pairs[position / LEGS].fail(position % LEGS, &device, error),
            false => Ok(()),
        }
    }
}

/// Failed copies of a leg after which it has failed.
const GIVEN_UP: u32 = 2;
