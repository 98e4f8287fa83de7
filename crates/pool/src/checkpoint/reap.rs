//! Reaping: frees the blocks and map pages of deleted volumes and snapshots.
//!
//! A map is walked in the order of its blocks, pages after everything below them. What belongs to
//! the map alone, and is absent from the only map that continues from it, is freed. Nothing is
//! written: the volume table has the block up to which the walk came.
//!
//! Invariants: one map is reaped at a time, so those around it are whole; pages that cover blocks
//! beyond the walk are whole, so it can continue after a crash; subtrees that are shared are not
//! read, so the work is proportional to what is freed; what is below a damaged page, of either
//! map, stays counted as used, because the other map may have it.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::Work;
use crate::limits::REAP_PAGES;
use crate::map::tree::{PageError, read_page};
use crate::ondisk::entry::Entry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};
use crate::ondisk::volume_table::VolumeState;

/// A page on the way to the next block of the walk, and its counterpart in the other map.
struct Frame {
    level: u8,
    index: u64,
    entry: Entry,
    page: Arc<MapPage>,
    other: Arc<MapPage>,
    next: usize,
}

/// Walk of one map.
struct Walk {
    /// What is not younger belongs to the parent.
    floor: u64,
    from: u64,
    frames: Vec<Frame>,
}

impl Walk {
    fn is_freed(&self, own: Entry, other: Entry) -> bool {
        own.is_stored()
            && own.birth > self.floor
            && own.location != other.location
            && other != Entry::LOST
    }
}

impl Work<'_> {
    /// Frees as much as one checkpoint may.
    ///
    /// # Errors
    /// Of the devices, except for damaged pages.
    pub(super) async fn reap(&mut self) -> Result<(), IoError> {
        let mut pages = REAP_PAGES;
        while pages > 0 {
            let deleting = |(id, state): (&u32, VolumeState)| match state {
                VolumeState::Deleting { reaped } => Some((reaped == 0, *id)),
                VolumeState::Present => None,
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

    /// Continues the walk of one map; returns whether it came to the end.
    async fn reap_one(&mut self, id: u32, pages: &mut usize) -> Result<bool, IoError> {
        let tree = self.trees[&id];
        let child = self.volume_table.children(id).next().map(|child| self.trees[&child.id]);
        let volume = &self.volume_table.volumes[&id];
        let VolumeState::Deleting { reaped: from } = volume.state else { return Ok(true) };
        let floor = self.volume_table.sequence_of(volume.parent);
        let mut walk = Walk { floor, from, frames: Vec::new() };
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let other = match &child {
            Some(child) => {
                let lookup = async || child.lookup_page(storage, cache, tree.level, 0).await;
                self.old.read(lookup).await?.unwrap_or(Entry::LOST)
            }
            None => Entry::HOLE,
        };
        let root = PagePlace { volume: id, level: tree.level, index: 0 };
        let mut down = Some((root, tree.root, other));
        loop {
            if let Some((place, own, other)) = down.take()
                && walk.is_freed(own, other)
            {
                if *pages == 0 {
                    self.set_reaped(id, place.index * span(place.level));
                    return Ok(false);
                }
                *pages -= 1;
                let frame = self.frame(place, own, other).await?;
                walk.frames.push(frame);
            }
            let Some(frame) = walk.frames.last_mut() else { return Ok(true) };
            let at = frame.next;
            frame.next += 1;
            if at < FANOUT {
                let (level, index) = (frame.level - 1, frame.index * FANOUT as u64 + at as u64);
                let (own, other) = (frame.page.entries[at], frame.other.entries[at]);
                if (index + 1).saturating_mul(span(level)) <= walk.from {
                    continue;
                }
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

    async fn frame(&self, place: PagePlace, own: Entry, other: Entry) -> Result<Frame, IoError> {
        let pages = self.old.read(async || self.pages(place, own, other).await).await?;
        let (page, other) = pages.unwrap_or_else(|| {
            tracing::error!(pool = self.shared.name, ?place, "map page is lost: not all is freed");
            Default::default()
        });
        let PagePlace { level, index, .. } = place;
        Ok(Frame { level, index, entry: own, page, other, next: 0 })
    }

    async fn pages(
        &self,
        place: PagePlace,
        own: Entry,
        other: Entry,
    ) -> Result<(Arc<MapPage>, Arc<MapPage>), PageError> {
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let own = read_page(storage, cache, own, place).await?;
        Ok(match other.is_hole() {
            true => (own, Arc::default()),
            false => (own, read_page(storage, cache, other, place).await?),
        })
    }

    fn set_reaped(&mut self, id: u32, reaped: u64) {
        if let Some(volume) = self.volume_table.volumes.get_mut(&id) {
            volume.state = VolumeState::Deleting { reaped };
        }
    }
}
