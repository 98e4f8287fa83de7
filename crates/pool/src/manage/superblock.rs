//! Superblock updates of an open pool: for checkpoints, and to mark volumes with changes on the log
//! device. One at a time.
//!
//! Invariants:
//! - a chunk goes to the log device only after the volumes that it changes were durably marked, so
//!   that an opening without the log device knows which volumes lack changes;
//! - no update follows a failed one, or one whose task was dropped (e.g. by a canceled opening): it
//!   may be on some of the devices.

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;

use super::shared::{Shared, State, Update};
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::superblock::{Superblock, TailVolumes};
use crate::pairs::{AddError, AddedPair, Pairs};

/// Right to update the superblock. Released on drop.
pub(crate) struct SuperblockLock<'a>(&'a Shared);

impl Drop for SuperblockLock<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.update = state.update.ended();
        drop(state);
        self.0.progress.notify();
    }
}

impl SuperblockLock<'_> {
    /// Writes an update, and returns it as written. A new device has it in copies 0 and 1 already.
    ///
    /// # Errors
    /// Errors of the devices. No update can follow.
    pub(crate) async fn write(
        &self,
        next: &Superblock,
        new: Option<usize>,
    ) -> Result<Superblock, IoError> {
        self.0.state.lock().update = Update::Writes;
        let written = self.0.storage.write_superblock_after(next, new).await;
        self.ended(written.as_ref().err());
        written
    }

    /// Writes an update that adds a pair to a pool with redundancy, and returns it as written.
    ///
    /// # Errors
    /// [`AddError`].
    pub(crate) async fn add_pair(
        &self,
        pairs: &Pairs,
        next: &Superblock,
        added: &AddedPair,
    ) -> Result<Superblock, AddError> {
        self.0.state.lock().update = Update::Writes;
        let written = pairs.add(next, added).await;
        self.ended(match &written {
            Ok(_) | Err(AddError::New { .. }) => None,
            Err(AddError::Pool(error)) => Some(error),
        });
        written
    }

    fn ended(&self, error: Option<&IoError>) {
        self.0.state.lock().update = match error {
            None => Update::Runs,
            Some(error) => {
                tracing::error!(pool = self.0.name, %error, "superblock was not written");
                Update::Over
            }
        };
    }
}

/// Volumes whose content or existence a record changes.
pub(crate) fn changed(record: &ChunkRecord) -> &[u32] {
    match record {
        ChunkRecord::Data { volume, .. }
        | ChunkRecord::Unit { volume, .. }
        | ChunkRecord::Zero { volume, .. }
        | ChunkRecord::Delete { volume }
        | ChunkRecord::Rollback { volume, .. }
        | ChunkRecord::Promote { volume } => std::slice::from_ref(volume),
        ChunkRecord::Volume(volume) => std::slice::from_ref(&volume.id),
        ChunkRecord::Snapshot(order) => &order.volumes,
        ChunkRecord::Moved { .. } | ChunkRecord::MovedUnit { .. } | ChunkRecord::Page { .. } => &[],
    }
}

impl Shared {
    /// Waits for the right to update the superblock.
    ///
    /// # Errors
    /// As [`Shared::superblock_turn`].
    pub(crate) async fn update_turn(&self) -> Result<SuperblockLock<'_>, IoError> {
        self.superblock_turn(|_| false).await.map(|turn| turn.expect("there is a need"))
    }

    /// Waits for the right to update the superblock; `None` as soon as `done` is true.
    ///
    /// # Errors
    /// After a failure of the pool or of an update.
    pub(super) async fn superblock_turn(
        &self,
        done: impl Fn(&State) -> bool,
    ) -> Result<Option<SuperblockLock<'_>>, IoError> {
        let turn = || {
            let mut state = self.state.lock();
            if let Err(error) = state.check_updates() {
                return Some(Err(error));
            }
            if done(&state) {
                return Some(Ok(None));
            }
            match state.update {
                Update::Idle => {
                    state.update = Update::Runs;
                    Some(Ok(Some(SuperblockLock(self))))
                }
                Update::Runs | Update::Writes => None,
                Update::Over => Some(Err(IoError::WriteFault)),
            }
        };
        self.progress.wait_for(turn).await
    }

    /// Next update, with a change. Until it is written, chunks may change only volumes that are
    /// marked in both this update and the last one.
    pub(crate) fn next_update(&self, change: impl FnOnce(&mut Superblock)) -> Superblock {
        let mut state = self.state.lock();
        let mut next = state.superblock.clone();
        next.update += 1;
        change(&mut next);
        let Some(log) = &self.storage.log else {
            // Without a log device, only the log of an earlier opening may have a tail.
            if next.log == state.position.log {
                (next.tail, next.reached) = (TailVolumes::default(), 0);
            }
            return next;
        };
        let head = log.head();
        let needed = match state.is_closing() && !head.tail.has_applied() {
            // Changes that did not take effect were not acknowledged.
            true => BTreeSet::new(),
            false => &head.tail.volumes() | &state.to_mark,
        };
        drop(head);
        next.tail = match next.log == state.position.log {
            true => TailVolumes::of(needed),
            false => next.tail.union(&needed),
        };
        if next.log == state.position.log {
            next.reached = match log.has_volatile_cache() {
                true => state.position.durable,
                false => state.position.applied(),
            };
        }
        state.marked = state.marked.intersection(&next.tail);
        next
    }

    /// Marks the volumes that these records change, unless the pool stops.
    ///
    /// # Errors
    /// Of the devices.
    pub(crate) async fn mark(&self, records: &[ChunkRecord]) -> Result<(), IoError> {
        let volumes: BTreeSet<u32> = records.iter().flat_map(changed).copied().collect();
        self.state.lock().to_mark.extend(&volumes);
        let done = |state: &State| {
            let is_over = state.check().is_err();
            is_over || volumes.iter().all(|volume| state.marked.has(*volume))
        };
        match self.superblock_turn(done).await? {
            Some(turn) => self.update_marks(turn).await,
            None => Ok(()),
        }
    }

    /// Removes all marks, if the tail is empty.
    ///
    /// # Errors
    /// Of the devices.
    pub(crate) async fn unmark(&self) -> Result<(), IoError> {
        match self.superblock_turn(|state| state.superblock.tail.is_empty()).await? {
            Some(turn) => self.update_marks(turn).await,
            None => Ok(()),
        }
    }

    async fn update_marks(&self, turn: SuperblockLock<'_>) -> Result<(), IoError> {
        let next = self.next_update(|_| {});
        match turn.write(&next, None).await {
            Ok(written) => self.state.lock().updated(written),
            Err(error) => {
                self.state.lock().fail(IoError::WriteFault);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl State {
    /// Records that an update of the superblock is durable.
    pub(crate) fn updated(&mut self, superblock: Superblock) {
        self.marked = superblock.tail.clone();
        self.to_mark.retain(|volume| !superblock.tail.has(*volume));
        self.superblock = superblock;
    }

    /// Refuses updates after a failure of the pool, except in a planned stop.
    ///
    /// # Errors
    /// The failure.
    fn check_updates(&self) -> Result<(), IoError> {
        match self.check() {
            Err(_) if self.is_closing() => Ok(()),
            check => check,
        }
    }

    /// True during a planned stop, which writes out the log device.
    pub(crate) fn is_closing(&self) -> bool {
        self.wanted.stop && self.check() == Err(IoError::Unreachable)
    }

    /// True if a chunk with these records may go to the log device.
    pub(crate) fn is_marked(&self, records: &[ChunkRecord]) -> bool {
        records.iter().flat_map(changed).all(|volume| self.marked.has(*volume))
    }
}
