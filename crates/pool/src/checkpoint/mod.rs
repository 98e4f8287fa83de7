//! Checkpoint: merges recent changes into the trees, writes the metadata, and frees segments.
//!
//! Invariants:
//! - the trees of a checkpoint contain exactly the chunks before its start;
//! - its pages, metadata, and all chunks before them are durable on the devices of the table before
//!   the superblock names them;
//! - hosts continue to write while it runs: their changes go to another table.

#[cfg(test)]
mod discard_tests;
pub(crate) mod merge;
mod metadata;
mod reap;
pub(crate) mod relocate;

pub(crate) use metadata::{HELD_BLOCK, METADATA_LEVEL, VOLUME_TABLE_BLOCK};

use std::sync::Arc;

use flagstone_blockdev::IoError;

use crate::manage::shared::{Shared, State};
use crate::manage::usage::SegmentUsage;
use crate::map::orders::Trees;
use crate::map::recent::{MapChange, Recent};
use crate::map::tree::PageError;
use crate::ondisk::chunk::SnapshotOrder;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, root_level};
use crate::ondisk::superblock::{LogStart, Superblock};
use crate::ondisk::unit::BLOCK_WEIGHT_U64;
use crate::ondisk::volume_table::{VolumePresence, VolumeTable};
use crate::read_retries::{ReadFailure, ReadRetries};
use merge::{Merge, MergeInput};
use metadata::Metadata;
use relocate::Moving;

/// Input of a checkpoint: sealed changes, and the place in the log where a replay after the
/// checkpoint begins.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) recent: Recent,
    /// First chunk after the sealed changes.
    pub(crate) start: LogStart,
    /// Number of the log that has this chunk.
    pub(crate) log: u64,
    /// The volume table without `snapshot`.
    pub(crate) volume_table: VolumeTable,
    /// Snapshots to take of the volumes after exactly these changes.
    pub(crate) snapshot: Option<SnapshotOrder>,
}

/// Reader of the old map pages.
struct OldMaps<'a> {
    shared: &'a Shared,
    retries: ReadRetries,
    /// True for the first checkpoint of an opening, which may give up unreadable pages.
    is_opening: bool,
}

impl OldMaps<'_> {
    /// Reads pages of volumes, and repeats failed reads. `None` for a damaged page, whose entries
    /// are lost. A page that the device fails to read may be intact, so only the first checkpoint
    /// of an opening counts it as damaged: at an opening, an operator sees the failure.
    ///
    /// # Errors
    /// Errors of the devices.
    async fn read<T>(
        &self,
        attempt: impl AsyncFn() -> Result<T, PageError>,
    ) -> Result<Option<T>, IoError> {
        let is_stopped = || {
            let state = self.shared.state.lock();
            state.wanted.stop || state.check().is_err()
        };
        let attempt = async || match attempt().await {
            Ok(page) => Ok(Some(page)),
            Err(PageError::Damaged) => Ok(None),
            Err(PageError::Unread(unread)) => Err(unread),
        };
        match self.retries.read(&self.shared.storage, is_stopped, attempt).await {
            Ok(read) => Ok(read),
            Err(ReadFailure::Defect) if self.is_opening => Ok(None),
            Err(ReadFailure::Defect) => Err(IoError::ReadFault),
            Err(ReadFailure::Device(unread)) => Err(unread.error),
        }
    }
}

/// A checkpoint in progress.
struct MaintenanceWork<'a> {
    shared: &'a Shared,
    old: OldMaps<'a>,
    volume_table: VolumeTable,
    trees: Trees,
    usage: SegmentUsage,
}

impl Shared {
    /// Counts a block or page as no longer used.
    ///
    /// # Errors
    /// [`IoError::ReadFault`] if its segment has too few live blocks.
    fn retire(&self, usage: &mut SegmentUsage, entry: MapEntry) -> Result<(), IoError> {
        let layout = &self.storage.layout;
        if usage.retire(layout, entry) {
            return Ok(());
        }
        let segment = layout.segment_of(entry.location);
        tracing::error!(pool = self.name, segment, "live blocks are miscounted");
        Err(IoError::ReadFault)
    }

    /// Makes a checkpoint. Only one runs at a time.
    ///
    /// # Errors
    /// Errors of the devices, or a damaged map page. The pool then fails every change.
    pub(crate) async fn checkpoint(&self) -> Result<(), IoError> {
        let done = self.try_checkpoint().await;
        if let Err(error) = done {
            tracing::error!(pool = self.name, %error, "checkpoint failed");
            self.state.lock().fail(IoError::WriteFault);
        }
        self.progress.notify();
        done
    }

    async fn try_checkpoint(&self) -> Result<(), IoError> {
        let (frozen, mut work, mut meta, moving) = {
            let mut state = self.state.lock();
            state.check()?;
            // A checkpoint of changes that a snapshot sealed does not cover later requests.
            if state.frozen.is_none() {
                state.wanted.checkpoint = false;
                let start = state.position.start();
                state.freeze(start, None);
            }
            let frozen = state.frozen.clone().expect("it was frozen");
            let work = MaintenanceWork {
                shared: self,
                old: OldMaps {
                    shared: self,
                    retries: ReadRetries::default(),
                    is_opening: state.needs_first_checkpoint(),
                },
                volume_table: frozen.volume_table.clone(),
                trees: state.trees.clone(),
                usage: state.usage.clone(),
            };
            let moving = std::mem::take(&mut state.moving);
            (frozen, work, Metadata::of(&state), moving)
        };
        // Zeroes that wait for the next table.
        self.progress.notify();
        let before = (work.trees.clone(), work.usage.clone());
        match work.relocate(&moving).await {
            // Moving is optional: the old places stay valid.
            Err(IoError::ReadFault) => {
                tracing::error!(pool = self.name, "map cannot be read: its blocks are not moved");
                (work.trees, work.usage) = before;
                work.volume_table = frozen.volume_table.clone();
            }
            done => done?,
        }
        work.reap().await?;
        work.merge(&frozen, &moving).await?;
        if let Some(order) = &frozen.snapshot {
            work.snapshot(order, frozen.start.sequence - 1);
        }
        for (id, volume) in &mut work.volume_table.volumes {
            volume.root = work.trees[id].root;
        }
        let root =
            meta.write(&work.old, &work.usage, &work.volume_table, &moving, frozen.birth()).await?;
        // All blocks that the checkpoint refers to were written before, so one flush covers them.
        self.flush().await?;
        // The devices of the table must have the whole checkpoint, even without the log device.
        self.written_out().await?;
        let turn = self.update_turn().await?;
        let superblock = self.next_update(|superblock| {
            superblock.root = root;
            (superblock.start, superblock.log) = (frozen.start, frozen.log);
        });
        let superblock = turn.write(&superblock, None).await?;
        let MaintenanceWork { volume_table, trees, usage, .. } = work;
        self.commit(superblock, &frozen.volume_table, &volume_table, trees, meta, usage);
        drop(turn);
        drop(frozen);
        // Clearing the table takes too long under the lock.
        let merged = self.state.lock().merged.take();
        if let Some(Frozen { mut recent, .. }) = merged.and_then(Arc::into_inner) {
            recent.clear();
            self.state.lock().spare = Some(recent);
        }
        Ok(())
    }

    fn commit(
        &self,
        superblock: Superblock,
        before: &VolumeTable,
        after: &VolumeTable,
        trees: Trees,
        meta: Metadata,
        usage: SegmentUsage,
    ) {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let start = self.storage.layout.segment_of(superblock.start.block);
        state.updated(superblock);
        for id in before.volumes.keys().filter(|id| !after.volumes.contains_key(id)) {
            state.blocks_died(*id);
            state.volume_table.volumes.remove(id);
            state.trees.remove(id);
            state.dedup.resume();
        }
        for (id, merged) in &after.volumes {
            state.trees.insert(*id, trees[id]);
            let volume =
                state.volume_table.volumes.get_mut(id).expect("only checkpoints remove volumes");
            (volume.mapped, volume.shared, volume.root) =
                (merged.mapped, merged.shared, merged.root);
            (volume.weight, volume.shared_weight) = (merged.weight, merged.shared_weight);
            (volume.parent, volume.adopted) = (merged.parent, merged.adopted);
            // The volume may have been deleted since the changes were sealed.
            if merged.state != VolumePresence::Present {
                volume.state = merged.state;
            }
        }
        state.usage = usage;
        state.usage.settle();
        (state.meta_usage, state.volume_table_bytes) = (meta.usage, meta.volume_table_bytes);
        let (own, meta) = (&state.usage.weights, &state.meta_usage.weights);
        state.locked.retain(|segment| own[segment as usize] > 0 || meta[segment as usize] > 0);
        state.count_space();
        state.merged = state.frozen.take();
        let (usage, meta_usage) = (&state.usage.weights, &state.meta_usage.weights);
        let is_live =
            |segment: u32| usage[segment as usize] > 0 || meta_usage[segment as usize] > 0;
        state.segments.commit(start, is_live);
        state.damaged.retain(|segment, _| state.segments.is_closed(*segment));
        state.checkpoints += 1;
        (state.nothing_to_clean, state.cleaner_gains_nothing) = (false, false);
        state.volume_table_changed();
        state.count_unscanned();
        state.wanted.checkpoint |= state.deleting > 0;
    }
}

impl Frozen {
    /// Birth of the checkpoint's pages: the sequence before its start. No block below them is
    /// newer, and every snapshot that contains them has at least this sequence. The birth is at
    /// least 1, because a page of birth 0 would belong to no volume and never be freed.
    fn birth(&self) -> u64 {
        (self.start.sequence - 1).max(1)
    }
}

impl MaintenanceWork<'_> {
    /// Merges the changes of every volume into its tree.
    async fn merge(&mut self, frozen: &Frozen, moving: &Moving) -> Result<(), IoError> {
        let changes = frozen.recent.sorted();
        let ids: Vec<u32> = self.volume_table.volumes.keys().copied().collect();
        for id in ids {
            let first = changes.partition_point(|change| change.volume < id);
            let last = first + changes[first..].partition_point(|change| change.volume == id);
            self.merge_volume(id, &changes[first..last], frozen, moving).await?;
        }
        Ok(())
    }

    async fn merge_volume(
        &mut self,
        id: u32,
        changes: &[MapChange],
        frozen: &Frozen,
        moving: &Moving,
    ) -> Result<(), IoError> {
        let old = self.trees[&id];
        let volume = &self.volume_table.volumes[&id];
        let mut input = MergeInput::default();
        if volume.is_present_volume() {
            input.changes = changes.to_vec();
            let touched = moving.touched.iter().filter(|place| place.volume == id);
            input.touched = touched.copied().collect();
            let ranges = frozen.recent.ranges(id);
            input.zeroes = ranges.map(|range| range.block..range.block + range.count).collect();
        }
        let level = root_level(volume.blocks);
        if input.is_empty() && level == old.level {
            return Ok(());
        }
        let ownership = self.volume_table.ownership(id);
        let merge = Merge::new(&self.old, &mut self.usage, old, ownership, frozen.birth());
        let merged = merge.run(input, level).await?;
        let volume = self.volume_table.volumes.get_mut(&id).expect("the identifiers are its own");
        // A damaged page may have hidden mapped blocks.
        let mapped = volume.mapped.saturating_add_signed(merged.mapped);
        volume.mapped = mapped.min(volume.blocks);
        let weight = volume.weight.saturating_add_signed(merged.weight);
        volume.weight = weight.min(volume.mapped * BLOCK_WEIGHT_U64);
        volume.shared = volume.shared.saturating_sub(merged.unshared);
        volume.shared_weight = volume.shared_weight.saturating_sub(merged.unshared_weight);
        self.trees.insert(id, merged.tree);
        Ok(())
    }

    /// Adds snapshots of the merged trees.
    fn snapshot(&mut self, order: &SnapshotOrder, sequence: u64) {
        let first = self.volume_table.next_id;
        self.volume_table
            .snapshot(order, sequence)
            .expect("orders are checked before they are written");
        for (id, volume) in (first..).zip(&order.volumes) {
            self.trees.insert(id, crate::map::tree::Tree { volume: id, ..self.trees[volume] });
        }
    }

    /// Counts a block or page as no longer used.
    fn retire(&mut self, entry: MapEntry) -> Result<(), IoError> {
        self.shared.retire(&mut self.usage, entry)
    }

    /// Counts a block or page as used.
    fn add(&mut self, entry: MapEntry) {
        self.usage.add(&self.shared.storage.layout, entry);
    }
}

impl State {
    /// Seals the recent changes for the next checkpoint. Later changes go to another table.
    pub(crate) fn freeze(&mut self, start: LogStart, snapshot: Option<SnapshotOrder>) {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        let capacity = self.active.capacity();
        let fresh = self.spare.take().unwrap_or_else(|| Recent::new(capacity, self.position.log));
        let recent = std::mem::replace(&mut self.active, fresh);
        self.zeroed_leaves = 0;
        let (log, volume_table) = (self.position.log, self.volume_table.clone());
        self.frozen = Some(Arc::new(Frozen { recent, start, log, volume_table, snapshot }));
    }
}

/// First block after a leaf.
pub(crate) fn leaf_end(index: u64) -> u64 {
    (index + 1) * FANOUT as u64
}
