//! Superblock updates of a pool with redundancy.
//!
//! Invariant: the update that calls a leg missing has a number that no superblock of that leg has.
//! Updates are written one after the other, each to all legs that get writes, so a leg has at most
//! the update after the last complete one. A leg that fails has at most the one in which it failed,
//! and the next one calls it missing. A leg that is absent at an opening may have the update that
//! the last crash interrupted, which the present legs lack: the update that calls it missing leaves
//! that number out. So a superblock of a leg from this update on is one of a leg that was used
//! apart.

use std::cell::Cell;
use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::leg::LegDevice;
use super::pair::Pair;
use super::together::{LegCall, together};
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
pub(super) struct UpdateTurn<'a>(&'a Pairs);

impl UpdateTurn<'_> {
    /// Ends the turn: every leg in sync has the update `last`, and none has another one.
    pub(super) fn end(self, last: Superblock) {
        let mut updates = self.0.updates.lock();
        (updates.last, updates.state) = (last, UpdateState::Idle);
    }
}

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

    /// Writes an update with the present states of the legs; returns it. Legs that fail are
    /// recorded as missing by a further update.
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
        let (turn, mut last) = self.update_turn().await?;
        if let Some(mut next) = next(&last) {
            while !self.write_update(&mut next, &mut last, change.as_ref()).await? {}
        }
        turn.end(last.clone());
        Ok(last)
    }

    /// Waits for the right to write an update; returns the last one, too.
    ///
    /// # Errors
    /// After an update that failed or was dropped.
    pub(super) async fn update_turn(&self) -> Result<(UpdateTurn<'_>, Superblock), IoError> {
        let begin = || {
            let mut updates = self.updates.lock();
            match updates.state {
                UpdateState::Idle => updates.state = UpdateState::Runs,
                UpdateState::Runs => return None,
                UpdateState::Over => return Some(Err(IoError::WriteFault)),
            }
            Some(Ok(updates.last.clone()))
        };
        let last = self.changed.wait_for(begin).await?;
        Ok((UpdateTurn(self), last))
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

    /// Gives an update its number, and the records of the legs.
    pub(super) fn prepare(
        &self,
        next: &mut Superblock,
        last: &Superblock,
        change: Option<&LegChange>,
    ) {
        let is_absent = |pair: &Pair| pair.status().contains(&LegStatus::Absent);
        next.skipped = u64::from(self.pairs.iter().any(is_absent));
        next.update = next.update.max(last.update + 1) + next.skipped;
        next.pairs = self.records(last, next.update, change).pairs;
        for (device, pair) in next.devices.iter_mut().zip(&next.pairs) {
            *device = crate::ondisk::legs::device_of(pair, device.segments);
        }
    }

    /// Writes one update; false if a leg failed, which the next one records.
    pub(super) async fn write_update(
        &self,
        next: &mut Superblock,
        last: &mut Superblock,
        change: Option<&LegChange>,
    ) -> Result<bool, IoError> {
        self.prepare(next, last, change);
        self.write_prepared(next, last, self.pairs.len()).await
    }

    /// As [`Pairs::write_update`], of a prepared update. The pairs from `new` on have copies 0 and
    /// 1 of it already.
    pub(super) async fn write_prepared(
        &self,
        next: &Superblock,
        last: &mut Superblock,
        new: usize,
    ) -> Result<bool, IoError> {
        let legs = self.writers();
        for phase in [0..2, 2..COPIES] {
            let copies = |position: usize| match position / LEGS >= new && phase.start == 0 {
                true => (next, Vec::new()),
                false => (next, phase.clone().collect()),
            };
            self.write_copies(&legs, copies).await?;
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
        Ok(!self.pairs.iter().any(|pair| pair.status().contains(&LegStatus::Failed)))
    }

    /// The legs that get superblocks.
    pub(crate) fn writers(&self) -> Vec<CopyWriter> {
        let writer = |position: usize| {
            let device = self.device(position);
            let status = self.pairs[position / LEGS].status_of(position % LEGS, &device)?;
            let is_in_sync = status == LegStatus::InSync;
            let writer = CopyWriter { position, device, is_in_sync, failures: Cell::new(0) };
            status.is_written().then_some(writer)
        };
        (0..LEGS * self.pairs.len()).filter_map(writer).collect()
    }

    /// Writes the `copies` of each position to all legs in sync at the same time, then to the
    /// others. A leg that fails is left out from then on.
    ///
    /// # Errors
    /// Of the last leg in sync of a device.
    pub(crate) async fn write_copies<'a>(
        &self,
        legs: &[CopyWriter],
        copies: impl Fn(usize) -> (&'a Superblock, Vec<usize>),
    ) -> Result<(), IoError> {
        for is_in_sync in [true, false] {
            let is_next = |leg: &&CopyWriter| {
                leg.is_in_sync == is_in_sync
                    && leg.failures.get() < GIVEN_UP
                    && self.is_written(leg.position, &leg.device)
            };
            let part: Vec<&CopyWriter> = legs.iter().filter(is_next).collect();
            let write = async |leg: &CopyWriter| {
                let (superblock, copies) = copies(leg.position);
                leg.write(superblock, &copies).await
            };
            let mut writes: Vec<_> = part.iter().map(|leg| Box::pin(write(leg))).collect();
            let call = |(leg, write): (&&'_ CopyWriter, _)| {
                let (index, own) = (leg.position / LEGS, leg.position % LEGS);
                let pair = &self.pairs[index];
                let device = leg.device.clone();
                let give_up = Box::new(move || {
                    let device = device.clone();
                    Box::pin(async move { pair.give_up(own, &device).await }) as _
                });
                LegCall::new(write, give_up, index, is_in_sync, !is_in_sync)
            };
            let pinned = writes.iter_mut().map(|write| write.as_mut() as _);
            let mut calls: Vec<LegCall<'_>> = part.iter().zip(pinned).map(call).collect();
            let results = together(&mut calls).await;
            for (leg, result) in part.iter().zip(results) {
                if let Err(error) = result {
                    leg.failures.set(GIVEN_UP);
                    self.pairs[leg.position / LEGS].fail(
                        leg.position % LEGS,
                        &leg.device,
                        error,
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// A leg that gets copies of superblocks.
pub(crate) struct CopyWriter {
    position: usize,
    device: Arc<LegDevice>,
    is_in_sync: bool,
    /// Copies that failed.
    failures: Cell<u32>,
}

impl CopyWriter {
    /// Writes copies in this order.
    ///
    /// # Errors
    /// Of the second copy that failed.
    async fn write(&self, superblock: &Superblock, copies: &[usize]) -> Result<(), IoError> {
        let own = Superblock { device: self.position as u16, ..superblock.clone() };
        for copy in copies {
            let data = copy_memory(&own.encode(*copy));
            let written = self.device.write(copy_offset(*copy), data, true).await;
            if let Err(error) = written {
                tracing::warn!(device = self.device.name(), copy, %error, "superblock copy failed");
                self.failures.set(self.failures.get() + 1);
                if error == IoError::Unreachable || self.failures.get() >= GIVEN_UP {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Failed copies of a leg after which it has failed.
const GIVEN_UP: u32 = 2;
