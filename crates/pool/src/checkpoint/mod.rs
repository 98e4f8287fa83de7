//! Checkpoint: merges recent changes into the trees, writes the metadata, and frees segments.
//!
//! Invariants:
//! - the trees of a checkpoint contain exactly the chunks before its start;
//! - its pages and metadata are flushed before the superblock names them;
//! - hosts continue to write while it runs: their changes go to another table.

pub(crate) mod merge;
mod metadata;

pub(crate) use metadata::{CATALOG_BLOCK, METADATA_LEVEL};

use std::sync::Arc;

use flagstone_blockdev::IoError;

use crate::limits::REAP_LEAVES;
use crate::manage::shared::{Shared, State, Usage};
use crate::map::recent::{Change, Recent};
use crate::map::tree::Tree;
use crate::ondisk::catalog::{Catalog, VolumeState};
use crate::ondisk::entry::Entry;
use crate::ondisk::page::{FANOUT, PagePlace, root_level};
use crate::ondisk::superblock::{LogStart, Superblock};
use merge::{Merge, MergeInput};
use metadata::Metadata;

/// What a checkpoint merges, and where a replay after it begins.
struct Frozen {
    recent: Arc<Recent>,
    start: LogStart,
    catalog: Catalog,
    moving: Vec<PagePlace>,
    superblock: Superblock,
    meta: Metadata,
    usage: Usage,
}

impl Shared {
    /// Makes a checkpoint. Only one runs at a time.
    ///
    /// # Errors
    /// Of the devices, or a damaged map page. The pool then fails every change.
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
        let Frozen { recent, start, mut catalog, moving, mut superblock, mut meta, mut usage } =
            self.freeze()?;
        let changes = recent.sorted();
        let ids: Vec<u32> = catalog.volumes.keys().copied().collect();
        let mut trees = Vec::new();
        for id in ids {
            let tree = self.merge_volume(id, &mut catalog, &changes, &recent, &moving, &mut usage);
            trees.push(tree.await?);
        }
        drop(changes);
        let is_gone = |volume: &crate::ondisk::catalog::VolumeRecord| {
            volume.state == VolumeState::Deleting && volume.root.is_hole()
        };
        let gone: Vec<u32> =
            catalog.volumes.values().filter(|volume| is_gone(volume)).map(|gone| gone.id).collect();
        for id in &gone {
            catalog.volumes.remove(id);
        }
        let root = meta.write(self, &usage, &catalog, &moving).await?;
        // Everything that the checkpoint refers to took effect before, so one flush covers it.
        self.flush().await?;
        superblock.update += 1;
        superblock.root = root;
        superblock.start = start;
        self.storage.write_superblock(&superblock).await?;
        drop(recent);
        self.commit(superblock, &catalog, &trees, &gone, meta, usage);
        Ok(())
    }

    fn freeze(&self) -> Result<Frozen, IoError> {
        let mut state = self.state.lock();
        state.check()?;
        assert!(state.frozen.is_none(), "one checkpoint at a time");
        state.wanted.checkpoint = false;
        let fresh = state.spare.take().unwrap_or_else(|| Recent::new(self.sizes.recent));
        let recent = Arc::new(std::mem::replace(&mut state.active, fresh));
        state.frozen = Some(recent.clone());
        let superblock = Superblock { log: state.position.log, ..state.superblock.clone() };
        Ok(Frozen {
            recent,
            start: state.position.start(),
            catalog: state.catalog.clone(),
            moving: std::mem::take(&mut state.moving),
            meta: Metadata::of(&state),
            superblock,
            usage: state.usage.clone(),
        })
    }

    /// Merges the changes of one volume into its tree, or frees a part of a deleted one.
    async fn merge_volume(
        &self,
        id: u32,
        catalog: &mut Catalog,
        changes: &[Change],
        recent: &Recent,
        moving: &[PagePlace],
        usage: &mut Usage,
    ) -> Result<Tree, IoError> {
        let old = self.state.lock().trees[&id];
        let volume = catalog.volumes.get_mut(&id).expect("the identifiers are its own");
        let mine = |change: &Change| change.volume < id;
        let first = changes.partition_point(mine);
        let last = first + changes[first..].partition_point(|change| change.volume == id);
        let mut input = MergeInput {
            changes: changes[first..last].to_vec(),
            zeroes: recent.ranges(id).map(|range| range.block..range.block + range.count).collect(),
            touched: moving.iter().filter(|place| place.volume == id).copied().collect(),
            leaves_max: u64::MAX,
        };
        if volume.state == VolumeState::Deleting {
            let all = 0..crate::limits::VOLUME_BLOCKS_MAX;
            input = MergeInput {
                changes: Vec::new(),
                zeroes: vec![all],
                touched: Vec::new(),
                leaves_max: REAP_LEAVES,
            };
        }
        let level = root_level(volume.blocks);
        let merged = Merge::new(self, usage, old).run(input, level).await;
        if volume.state == VolumeState::Deleting
            && merged.as_ref().err() == Some(&IoError::ReadFault)
        {
            tracing::error!(volume = volume.name, "map is damaged: not all of its space is freed");
            volume.root = Entry::HOLE;
            return Ok(Tree { volume: id, level, root: Entry::HOLE });
        }
        let merged = merged?;
        // Damage of the map may have hidden what was mapped.
        let mapped = volume.mapped.saturating_add_signed(merged.mapped);
        volume.mapped = mapped.min(volume.blocks);
        volume.root = merged.tree.root;
        Ok(merged.tree)
    }

    fn commit(
        &self,
        superblock: Superblock,
        catalog: &Catalog,
        trees: &[Tree],
        gone: &[u32],
        meta: Metadata,
        usage: Usage,
    ) {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let start = self.storage.layout.segment_of(superblock.start.block);
        state.superblock = superblock;
        for tree in trees {
            state.trees.insert(tree.volume, *tree);
        }
        for (id, merged) in &catalog.volumes {
            let volume =
                state.catalog.volumes.get_mut(id).expect("only checkpoints remove volumes");
            (volume.mapped, volume.root) = (merged.mapped, merged.root);
        }
        for id in gone {
            state.catalog.volumes.remove(id);
            state.trees.remove(id);
        }
        state.usage = usage;
        (state.meta_usage, state.catalog_bytes) = (meta.usage, meta.catalog_bytes);
        state.live = state.usage.total() + state.meta_usage.total();
        let frozen = state.frozen.take().and_then(Arc::into_inner);
        state.spare = frozen.map(|mut spare| {
            spare.clear();
            spare
        });
        let (usage, meta_usage) = (&state.usage.blocks, &state.meta_usage.blocks);
        let is_live = |segment: u32| usage[segment as usize] + meta_usage[segment as usize] > 0;
        state.segments.commit(start, is_live);
        state.checkpoints += 1;
        state.clean = false;
        state.catalog_changed();
        state.wanted.checkpoint |= state.deleting > 0;
    }
}

/// First block after a leaf.
pub(crate) fn leaf_end(index: u64) -> u64 {
    (index + 1) * FANOUT as u64
}
