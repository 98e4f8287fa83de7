//! Reaping: frees the blocks and map pages of deleted volumes and snapshots.
//!
//! A map is walked in the order of its blocks, pages after everything below them. What belongs to
//! the map alone, and is absent from the only map that continues from it, is freed. Nothing is
//! written: the volume table has the block up to which the walk came.
//!
//! Invariants:
//! - one map is reaped at a time, so its parent and child are whole;
//! - pages that cover blocks beyond the position are whole, so the walk can continue after a crash;
//! - shared subtrees are not read, so the work is proportional to the freed space;
//! - entries below a damaged page of either map stay counted as used: the other map may have them.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::MaintenanceWork;
use crate::limits::REAP_PAGES;
use crate::map::tree::{PageError, read_page};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};
use crate::ondisk::unit::BLOCK_WEIGHT_U64;
use crate::ondisk::volume_table::VolumePresence;

/// A page on the path to the next block of the walk, and its counterpart in the other map.
struct WalkFrame {
    level: u8,
    index: u64,
    entry: MapEntry,
    page: Arc<MapPage>,
    other: Arc<MapPage>,
    next: usize,
}

impl WalkFrame {
    /// A page without entries.
    fn empty(place: PagePlace, entry: MapEntry) -> WalkFrame {
        let PagePlace { level, index, .. } = place;
        WalkFrame { level, index, entry, page: Arc::default(), other: Arc::default(), next: 0 }
    }
}

/// Walk of one map.
struct Walk {
    /// Blocks with a birth up to this sequence belong to the parent.
    floor: u64,
    from: u64,
    frames: Vec<WalkFrame>,
    /// Blocks of the map that do not pass to the map that continues from it.
    gone: u64,
    /// Their weight.
    gone_weight: u64,
}

impl Walk {
    /// Counts blocks that do not pass to the child. Where an entry is lost, that is all of them:
    /// the child may share fewer blocks than counted, but not more.
    fn count_gone(&mut self, own: MapEntry, other: MapEntry, level: u8) {
        let is_own = own.is_stored() && own.birth > self.floor;
        let is_lost = own == MapEntry::LOST || is_own && other == MapEntry::LOST;
        if is_lost {
            self.count_lost(level);
        } else if level == 0 && self.is_freed(own, other) {
            self.gone = self.gone.saturating_add(1);
            self.gone_weight = self.gone_weight.saturating_add(own.weight().into());
        }
    }

    /// Counts all blocks below an entry.
    fn count_lost(&mut self, level: u8) {
        let weight = span(level).saturating_mul(BLOCK_WEIGHT_U64);
        self.gone = self.gone.saturating_add(span(level));
        self.gone_weight = self.gone_weight.saturating_add(weight);
    }

    fn is_freed(&self, own: MapEntry, other: MapEntry) -> bool {
        own.is_stored()
            && own.birth > self.floor
            && own.location != other.location
            && other != MapEntry::LOST
    }
}

impl MaintenanceWork<'_> {
    /// Frees blocks up to the limit of one checkpoint.
    ///
    /// # Errors
    /// Errors of the devices. Damaged pages are none.
    pub(super) async fn reap(&mut self) -> Result<(), IoError> {
        let mut pages = REAP_PAGES;
        while pages > 0 {
            let deleting = |(id, state): (&u32, VolumePresence)| match state {
                VolumePresence::Deleting { reaped } => Some((reaped == 0, *id)),
                VolumePresence::Present => None,
            };
            let volumes = self.volume_table.volumes.iter();
            let Some((_, id)) = volumes.filter_map(|(id, of)| deleting((id, of.state))).min()
            else {
                return Ok(());
            };
            if self.reap_one(id, &mut pages).await? {
                self.volume_table.remove_reaped(id);
                self.trees.remove(&id);
            }
        }
        Ok(())
    }

    /// Continues the walk of one map; returns true at its end.
    async fn reap_one(&mut self, id: u32, pages: &mut usize) -> Result<bool, IoError> {
        let tree = self.trees[&id];
        let child = self.volume_table.children(id).next().map(|child| self.trees[&child.id]);
        let volume = &self.volume_table.volumes[&id];
        let VolumePresence::Deleting { reaped: from } = volume.state else { return Ok(true) };
        let floor = self.volume_table.sequence_of(volume.parent);
        let mut walk = Walk { floor, from, frames: Vec::new(), gone: 0, gone_weight: 0 };
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let other = match &child {
            Some(child) => {
                let lookup = async || child.lookup_page(storage, cache, tree.level, 0).await;
                self.old.read(lookup).await?.unwrap_or(MapEntry::LOST)
            }
            None => MapEntry::HOLE,
        };
        let root = PagePlace { volume: id, level: tree.level, index: 0 };
        walk.count_gone(tree.root, other, tree.level);
        let mut down = Some((root, tree.root, other));
        loop {
            if let Some((place, own, other)) = down.take()
                && walk.is_freed(own, other)
            {
                if *pages == 0 {
                    self.set_reaped(id, place.index * span(place.level));
                    self.subtract_gone(id, &walk);
                    return Ok(false);
                }
                *pages -= 1;
                match self.frame(place, own, other).await? {
                    Some(frame) => walk.frames.push(frame),
                    None => {
                        walk.count_lost(place.level);
                        walk.frames.push(WalkFrame::empty(place, own));
                    }
                }
            }
            let Some(frame) = walk.frames.last_mut() else {
                self.subtract_gone(id, &walk);
                return Ok(true);
            };
            let at = frame.next;
            frame.next += 1;
            if at < FANOUT {
                let (level, index) = (frame.level - 1, frame.index * FANOUT as u64 + at as u64);
                let (own, other) = (frame.page.entries[at], frame.other.entries[at]);
                if (index + 1).saturating_mul(span(level)) <= walk.from {
                    continue;
                }
                walk.count_gone(own, other, level);
                if level > 0 {
                    down = Some((PagePlace { volume: id, level, index }, own, other));
                } else if walk.is_freed(own, other) {
                    self.retire(own)?;
                }
            } else if let Some(done) = walk.frames.pop() {
                self.retire(done.entry)?;
            }
        }
    }

    /// `None` if a page is damaged.
    async fn frame(
        &self,
        place: PagePlace,
        own: MapEntry,
        other: MapEntry,
    ) -> Result<Option<WalkFrame>, IoError> {
        let pages = self.old.read(async || self.pages(place, own, other).await).await?;
        let Some((page, other)) = pages else {
            tracing::error!(pool = self.shared.name, ?place, "map page is lost: not all is freed");
            return Ok(None);
        };
        Ok(Some(WalkFrame { page, other, ..WalkFrame::empty(place, own) }))
    }

    async fn pages(
        &self,
        place: PagePlace,
        own: MapEntry,
        other: MapEntry,
    ) -> Result<(Arc<MapPage>, Arc<MapPage>), PageError> {
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let own = read_page(storage, cache, own, place).await?;
        Ok(match other.is_hole() {
            true => (own, Arc::default()),
            false => (own, read_page(storage, cache, other, place).await?),
        })
    }

    /// Leaves in the count of the map's own blocks those that its child gets, or that the walk has
    /// not reached.
    fn subtract_gone(&mut self, id: u32, walk: &Walk) {
        let subtract =
            |count: u64, gone: u64, shared: u64| count.saturating_sub(gone).max(shared.min(count));
        if let Some(volume) = self.volume_table.volumes.get_mut(&id) {
            volume.mapped = subtract(volume.mapped, walk.gone, volume.shared);
            volume.weight = subtract(volume.weight, walk.gone_weight, volume.shared_weight);
        }
    }

    fn set_reaped(&mut self, id: u32, reaped: u64) {
        if let Some(volume) = self.volume_table.volumes.get_mut(&id) {
            volume.state = VolumePresence::Deleting { reaped };
        }
    }
}
