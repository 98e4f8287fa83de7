//! Scrub: reads every live block of an open pool, and compares it with its checksum.
//!
//! One step verifies the blocks of one leaf that no parent shares, so shared blocks are read once.
//! The place of the next step is two numbers, so a scrub continues after a pause, a restart, or
//! changes of the pool. Blocks that are written during the scrub may be skipped: their checksums
//! were made from memory.

use std::ops::Range;

use flagstone_blockdev::IoError;
use flagstone_runtime::{BufMut, buf};

use super::{
    CHANGED, Damage, DamageKind, LOST, UNREADABLE, bytes, damage, read_block, read_page,
    verify_stored,
};
use crate::checkpoint::METADATA_LEVEL;
use crate::limits::BLOCK_BYTES;
use crate::log::segments::ReadGuard;
use crate::manage::pool::Pool;
use crate::manage::shared::{Shared, State, Update};
use crate::map::tree::Tree;
use crate::ondisk::checksum;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};
use crate::ondisk::superblock::{COPIES, LOG_INDEX, Superblock, copy_offset};
use crate::ondisk::volume_table::VolumePresence;
use crate::storage;

/// Most blocks of one read.
const READ_BLOCKS: usize = 64;

/// Attempts to read the superblocks between two checkpoints.
const SUPERBLOCK_ATTEMPTS: usize = 8;

/// Place where a scrub continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubPlace {
    /// Identifier of a volume or snapshot; 0 for the metadata, which comes first.
    pub volume: u32,
    /// Block of the volume.
    pub block: u64,
}

/// Result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Bytes that were read.
    pub verified_bytes: u64,
    /// Blocks that one copy had wrong, and that were rewritten from the other.
    pub repaired_blocks: u64,
    /// Damages found.
    pub damage: Vec<Damage>,
    /// Place of the next step; `None` at the end.
    pub next: Option<ScrubPlace>,
}

/// A map, and the part of it to verify.
struct Map {
    id: u32,
    name: String,
    tree: Tree,
    /// Blocks with a birth up to this sequence belong to a snapshot that is verified too.
    floor: u64,
    /// Keeps all segments of the map from being reused.
    _guard: ReadGuard,
}

impl Map {
    fn kind(&self, level: u8, index: u64) -> DamageKind {
        if self.id == 0 {
            return DamageKind::Metadata;
        }
        let volume = self.name.clone();
        let offset_bytes = bytes(index.saturating_mul(span(level)));
        let len_bytes = bytes(span(level));
        match level {
            0 => DamageKind::Data { volume, offset_bytes, len_bytes },
            _ => DamageKind::Map { volume, offset_bytes, len_bytes },
        }
    }

    fn is_own(&self, entry: MapEntry) -> bool {
        entry.is_stored() && entry.birth > self.floor
    }
}

impl State {
    /// First map from a place on.
    fn map_from(&self, volume: u32) -> Option<Map> {
        if volume == 0 {
            let tree = Tree { volume: 0, level: METADATA_LEVEL, root: self.superblock.root };
            return Some(Map { id: 0, name: String::new(), tree, floor: 0, _guard: self.guard() });
        }
        let present = |id: &u32| self.volume_table.volumes[id].state == VolumePresence::Present;
        let mut ids = self.volume_table.volumes.range(volume..).map(|(id, _)| *id).filter(present);
        // Skip snapshots newer than the last checkpoint: their older blocks are also in the map of
        // the volume.
        let (id, tree) = ids.find_map(|id| Some((id, *self.trees.get(&id)?)))?;
        let record = &self.volume_table.volumes[&id];
        let mut above = record.parent;
        while above != 0 && !present(&above) {
            above = self.volume_table.volumes[&above].parent;
        }
        let floor = self.volume_table.sequence_of(above);
        let name = self.volume_table.full_name(record);
        Some(Map { id, name, tree, floor, _guard: self.guard() })
    }
}

impl Pool {
    /// Live bytes that a scrub reads, as of the last checkpoint.
    pub fn live_bytes(&self) -> u64 {
        bytes(self.shared().state.lock().live)
    }

    /// Makes a checkpoint, so that the maps have all earlier writes.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn begin_scrub(&self) -> Result<ScrubPlace, IoError> {
        self.checkpoint().await?;
        Ok(ScrubPlace::default())
    }

    /// Verifies some blocks.
    ///
    /// # Errors
    /// The failure of the pool, and errors of devices except [`IoError::ReadFault`]. The caller may
    /// try the place again.
    pub async fn scrub(&self, place: ScrubPlace) -> Result<ScrubStep, IoError> {
        let shared = self.shared();
        let map = {
            let state = shared.state.lock();
            state.check()?;
            state.map_from(place.volume)
        };
        let Some(map) = map else { return shared.scrub_superblocks().await };
        let mut step = ScrubStep::default();
        let from = if map.id == place.volume { place.block } else { 0 };
        let next = shared.scrub_leaf(&map, from, &mut step).await?;
        step.next = Some(match next {
            Some(block) => ScrubPlace { volume: map.id, block },
            None => ScrubPlace { volume: map.id + 1, block: 0 },
        });
        Ok(step)
    }
}

impl Shared {
    /// Verifies the next leaf from a block on, and the pages above it; returns the next block.
    async fn scrub_leaf(
        &self,
        map: &Map,
        from: u64,
        step: &mut ScrubStep,
    ) -> Result<Option<u64>, IoError> {
        let (mut entry, mut level, mut at) = (map.tree.root, map.tree.level, from);
        let next = |after: u64| Some(after).filter(|after| *after < span(map.tree.level));
        loop {
            let index = at / span(level);
            let after = (index + 1).saturating_mul(span(level));
            if !map.is_own(entry) {
                if entry == MapEntry::LOST {
                    let location = self.state.lock().superblock.root.location;
                    step.damage.push(damage(&self.storage, location, map.kind(level, index), LOST));
                }
                return Ok(next(after));
            }
            let place = PagePlace { volume: map.tree.volume, level, index };
            step.verified_bytes += BLOCK_BYTES as u64;
            step.repaired_blocks += self.verify_copies(&[entry]).await?;
            let page = match read_page(&self.storage, entry, place).await? {
                Ok(page) => page,
                Err(cause) => {
                    let kind = map.kind(level, index);
                    step.damage.push(damage(&self.storage, entry.location, kind, cause));
                    return Ok(next(after));
                }
            };
            if level == 1 {
                self.scrub_blocks(map, &page, index, (at % span(1)) as usize, step).await?;
                return Ok(next(after));
            }
            level -= 1;
            let first = (at / span(level)) as usize % FANOUT;
            let wanted =
                |at: &usize| map.is_own(page.entries[*at]) || page.entries[*at] == MapEntry::LOST;
            let Some(found) = (first..FANOUT).find(wanted) else { return Ok(next(after)) };
            if found > first {
                at = (index * FANOUT as u64 + found as u64) * span(level);
            }
            entry = page.entries[found];
        }
    }

    /// Verifies the blocks of a leaf, from its entry `first` on.
    async fn scrub_blocks(
        &self,
        map: &Map,
        page: &MapPage,
        leaf: u64,
        first: usize,
        step: &mut ScrubStep,
    ) -> Result<(), IoError> {
        let base = leaf * FANOUT as u64;
        let mut at = first;
        while at < FANOUT {
            let run = self.run(map, &page.entries, at);
            if run.is_empty() {
                if page.entries[at] == MapEntry::LOST {
                    let location = self.state.lock().superblock.root.location;
                    let kind = map.kind(0, base + at as u64);
                    step.damage.push(damage(&self.storage, location, kind, LOST));
                }
                at += 1;
                continue;
            }
            at = run.end;
            self.scrub_run(map, page, base, run, step).await?;
        }
        Ok(())
    }

    /// Entries from `at` on that are the map's own, and blocks of one compressed unit or
    /// consecutive blocks of one segment.
    fn run(&self, map: &Map, entries: &[MapEntry], at: usize) -> Range<usize> {
        let first = entries[at];
        if !map.is_own(first) {
            return at..at;
        }
        let layout = &self.storage.layout;
        let segment = layout.segment_of(first.location);
        let continues = |(index, entry): &(u64, &MapEntry)| {
            if first.unit().is_some() {
                return map.is_own(**entry) && entry.is_with(&first);
            }
            map.is_own(**entry)
                && entry.location == first.location + index
                && layout.segment_of(entry.location) == segment
        };
        let count = (0..).zip(&entries[at..]).take(READ_BLOCKS).take_while(continues).count();
        at..at + count
    }

    async fn scrub_run(
        &self,
        map: &Map,
        page: &MapPage,
        base: u64,
        run: Range<usize>,
        step: &mut ScrubStep,
    ) -> Result<(), IoError> {
        let entries = &page.entries[run.clone()];
        let first_of_unit = entries[0].unit().map(|_| 1);
        let verified = &entries[..first_of_unit.unwrap_or(entries.len())];
        step.repaired_blocks += self.verify_copies(verified).await?;
        let blocks = base + run.start as u64..base + run.end as u64;
        if entries[0].unit().is_some() {
            step.verified_bytes += bytes(entries[0].stored_blocks() as u64);
            let found = verify_stored(&self.storage, entries[0]).await?;
            for (entry, block) in entries.iter().zip(blocks) {
                let is_changed = self.state.lock().recent(map.id, block).is_some();
                if let Err(cause) = found
                    && !is_changed
                {
                    let kind = map.kind(0, block);
                    step.damage.push(damage(&self.storage, entry.location, kind, cause));
                }
            }
            return Ok(());
        }
        step.verified_bytes += bytes(entries.len() as u64);
        let memory = buf::acquire_more(entries.len() * BLOCK_BYTES).await;
        let read = match self.storage.read(entries[0].location, memory).await {
            Ok(read) => Some(read),
            Err(IoError::ReadFault) => None,
            Err(error) => return Err(error),
        };
        for (index, (entry, block)) in entries.iter().zip(blocks).enumerate() {
            let cause = match &read {
                Some(read) => {
                    let bytes = &read[index * BLOCK_BYTES..][..BLOCK_BYTES];
                    (checksum(bytes) != entry.checksum).then_some(CHANGED)
                }
                None => read_block(&self.storage, *entry).await?.err(),
            };
            let is_changed = || map.id != 0 && self.state.lock().recent(map.id, block).is_some();
            if let Some(cause) = cause
                && !is_changed()
            {
                let kind = map.kind(0, block);
                step.damage.push(damage(&self.storage, entry.location, kind, cause));
            }
        }
        Ok(())
    }

    /// With redundancy: compares each copy of consecutive blocks, or of one unit, and rewrites
    /// those that are wrong if the other is right. Returns their number.
    async fn verify_copies(&self, entries: &[MapEntry]) -> Result<u64, IoError> {
        let (storage, first) = (&self.storage, entries[0]);
        let Some(pairs) = storage.pairs.as_ref().filter(|_| storage.layout.holds(&first)) else {
            return Ok(0);
        };
        let place = storage.layout.place(first.block());
        let blocks: usize = entries.iter().map(MapEntry::stored_blocks).sum();
        let copies = pairs.read_each(place.device, place.offset, blocks * BLOCK_BYTES).await?;
        let (mut at, mut repaired) = (0, 0);
        for entry in entries {
            let range = at..at + entry.stored_blocks() * BLOCK_BYTES;
            at = range.end;
            let is_right = |copy: &Option<BufMut>| {
                copy.as_ref().is_some_and(|bytes| entry.matches(&bytes[range.clone()]))
            };
            if copies.iter().all(|(_, copy)| is_right(copy)) {
                continue;
            }
            let (entry, len) = (*entry, range.len());
            let right = move |bytes: &[u8]| entry.matches(bytes);
            let done = storage.repair(entry.block(), len, right).await;
            if done.is_some_and(|done| done.is_rewritten) {
                repaired += entry.stored_blocks() as u64;
            }
        }
        Ok(repaired)
    }

    /// The superblock as it is on the devices, and whether no update is in progress.
    fn recorded_superblock(&self) -> (Superblock, bool) {
        match &self.storage.pairs {
            Some(pairs) => {
                let settled = pairs.settled();
                let is_settled = settled.is_some();
                (settled.unwrap_or_else(|| pairs.last()), is_settled)
            }
            None => {
                let state = self.state.lock();
                (state.superblock.clone(), state.update == Update::Idle)
            }
        }
    }

    /// Verifies the copies of the superblock.
    async fn scrub_superblocks(&self) -> Result<ScrubStep, IoError> {
        'attempts: for _ in 0..SUPERBLOCK_ATTEMPTS {
            let removed = self.storage.devices.removed();
            // A removed device is closed, and has an old superblock.
            let has_removed = || self.storage.devices.removed() > removed;
            let (superblock, was_idle) = self.recorded_superblock();
            let mut step = ScrubStep::default();
            let members = self.storage.members();
            for (device, named) in members.iter().filter(|(device, _)| *device != LOG_INDEX) {
                let expected = Superblock { device: *device, ..superblock.clone() };
                for copy in 0..COPIES {
                    step.verified_bytes += BLOCK_BYTES as u64;
                    let read = storage::read_block(&named.device, copy_offset(copy)).await;
                    let cause = match read.map(|block| Superblock::decode(&block, copy)) {
                        Ok(Ok(found)) if found == expected => continue,
                        Ok(_) => CHANGED,
                        Err(IoError::ReadFault) => UNREADABLE,
                        Err(_) if has_removed() => continue 'attempts,
                        Err(error) => return Err(error),
                    };
                    step.damage.push(Damage {
                        device: named.name.clone(),
                        device_offset_bytes: copy_offset(copy),
                        kind: DamageKind::Superblock { copy },
                        cause,
                    });
                }
            }
            // Ignore differences if an update was writing the copies meanwhile.
            let was_quiet = was_idle && !has_removed() && {
                let (now, is_idle) = self.recorded_superblock();
                is_idle && now.update == superblock.update
            };
            if step.damage.is_empty() || was_quiet {
                return Ok(step);
            }
        }
        Ok(ScrubStep::default())
    }
}
