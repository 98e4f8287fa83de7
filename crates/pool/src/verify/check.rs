//! Check: reads everything on the devices of a closed pool, without changing them.
//!
//! Found: damaged copies of superblocks, metadata, map pages and blocks; blocks that two maps own;
//! wrong counts of live blocks; missing chunk headers, without which the cleaner cannot move
//! blocks; a log that lost chunks. Not found: damage of unreferenced blocks, and of the last chunks
//! after the last flush, which may also be torn by a crash.

use std::collections::BTreeMap;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use super::{
    CHANGED, Damage, DamageKind, LOST, bytes, damage, read_block, read_page, verify_stored,
};
use crate::error::PoolError;
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, CACHE_PAGES};
use crate::manage::open::{attach_log, log_missing};
use crate::manage::pool::Pool;
use crate::manage::space::Sizes;
use crate::manage::usage::SegmentUsage;
use crate::map::cache::PageCache;
use crate::map::recent::Recent;
use crate::ondisk::checksum;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::legs::LegState;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, root_level, span};
use crate::ondisk::superblock::{LOG_INDEX, Superblock, copy_offset};
use crate::ondisk::unit::{BLOCK_WEIGHT_U64, UnitPlace};
use crate::ondisk::volume_table::{VolumePresence, VolumeTable};
use crate::recover::metadata::{Checkpoint, read_checkpoint};
use crate::recover::replay::{LossEvidence, Replay};
use crate::recover::superblocks::{FoundSuperblock, assemble, device_error, read_superblocks};
use crate::storage::{NamedDevice, Storage};

/// Most damages that a report lists; the rest is counted.
const DAMAGE_MAX: usize = 1000;

/// Most blocks of one read.
const READ_BLOCKS: usize = 64;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Name of the pool.
    pub name: String,
    /// Its identifier.
    pub id: PoolId,
    /// Update of the superblock.
    pub update: u64,
    /// Volumes, without snapshots.
    pub volumes: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// Number of chunks after the checkpoint, which the next opening replays.
    pub replayed_chunks: u64,
    /// Bytes read and compared with their checksums.
    pub verified_bytes: u64,
    /// Live bytes, as recorded by the pool.
    pub live_bytes: u64,
    /// Damages, up to the limit of a report.
    pub damage: Vec<Damage>,
    /// Number of all damages.
    pub damages: u64,
    /// Identifiers of the devices of pairs whose copy was not checked: they are absent, or lack
    /// writes until they are rebuilt.
    pub unchecked: Vec<PoolId>,
}

impl CheckReport {
    pub(super) fn add(&mut self, damage: Damage) {
        self.damages += 1;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(damage);
        }
    }
}

/// One bit per block of the pool: 32 MiB for 1 TiB.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    fn new(blocks: u64) -> Bits {
        Bits(vec![0; blocks.div_ceil(64) as usize])
    }

    /// Sets a bit; returns the previous value.
    fn set(&mut self, block: u64) -> bool {
        let (word, bit) = (&mut self.0[(block / 64) as usize], 1 << (block % 64));
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.0[(block / 64) as usize] & 1 << (block % 64) != 0
    }
}

pub(super) struct Check<'a> {
    pub(super) storage: &'a Storage,
    pub(super) report: CheckReport,
    /// Blocks to which a map refers.
    pub(super) live: Bits,
    /// Of each block of a compressed unit, the blocks of the unit that a map has; by segment, where
    /// there are units.
    units: BTreeMap<u32, Box<[u8]>>,
    usage: SegmentUsage,
    /// Weight of the dead blocks of units with live ones, by segment.
    held: Vec<u64>,
    /// True after a damaged page: the blocks below it cannot be counted.
    is_partial: bool,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Pool {
    /// Checks the pool on these devices, in any order and including the log device, without
    /// changing them. `progress` gets the verified bytes, and an estimate of all bytes.
    ///
    /// # Errors
    /// As [`Pool::open`], for devices that are not one complete and current pool, or whose metadata
    /// is unusable.
    pub async fn check_devices(
        devices: Vec<NamedDevice>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport, PoolError> {
        let found = read_superblocks(&devices).await?;
        let (mut storage, superblock, is_log_current) = assemble(&found)?;
        let is_log = |own: &Superblock| own.device == LOG_INDEX && !superblock.is_former(own);
        let log = found.iter().find(|(_, found)| is_log(&found.superblock));
        match log.filter(|_| is_log_current) {
            Some((named, _)) => attach_log(&mut storage, &superblock, named),
            None if superblock.tail.is_empty() => {}
            None => return Err(log_missing(&superblock, "it was not given".to_owned(), false)),
        }
        if let Some(pairs) = &storage.pairs {
            pairs.set_read_only();
        }
        let cache = PageCache::new(CACHE_PAGES);
        let checkpoint = read_checkpoint(&storage, &cache, &superblock).await?;
        let mut report = CheckReport {
            name: superblock.name.clone(),
            id: superblock.pool,
            update: superblock.update,
            volumes: checkpoint.volume_table.present().count(),
            snapshots: checkpoint.volume_table.snapshots().count(),
            live_bytes: bytes(checkpoint.usage.total() + checkpoint.meta_usage.total()),
            // The metadata was verified when it was read.
            verified_bytes: bytes(checkpoint.meta_usage.total()),
            ..CheckReport::default()
        };
        for (named, found) in &found {
            check_copies(named, found, &mut report);
        }
        if let Some(pairs) = &storage.pairs {
            let legs = pairs.legs().into_iter();
            let unchecked = legs.filter(|leg| leg.state != LegState::InSync || !leg.is_attached);
            report.unchecked.extend(unchecked.map(|leg| leg.id));
        }
        let recent = Recent::new(Sizes::of(&storage.layout).recent, superblock.log);
        let (volume_table, trees) = (checkpoint.volume_table.clone(), checkpoint.trees.clone());
        let mut replay = Replay::new(&storage, &superblock, recent, volume_table, trees);
        if superblock.log_device.is_some() && storage.log.is_none() {
            replay.proof = LossEvidence::OfHosts;
        }
        match replay.run().await {
            Ok(()) => {}
            Err(PoolError::LostChunk { .. } | PoolError::Metadata { .. }) => {
                let at = superblock.start.block;
                report.add(damage(&storage, at, DamageKind::Log, "flushed chunks are damaged"));
            }
            Err(error) => return Err(error),
        }
        report.replayed_chunks = replay.sequence() - superblock.start.sequence;
        drop(replay);
        let mut check = Check {
            storage: &storage,
            report,
            live: Bits::new(storage.layout.blocks()),
            units: BTreeMap::new(),
            usage: SegmentUsage::new(storage.layout.segments() as usize),
            held: vec![0; storage.layout.segments() as usize],
            is_partial: false,
            progress,
        };
        check.metadata(&checkpoint, superblock.root).await?;
        check.maps(&checkpoint.volume_table).await?;
        check.counts(&checkpoint.usage);
        check.headers(&checkpoint).await?;
        let report = check.report;
        // The rest of the check did not read it.
        match storage.pairs.as_ref().and_then(|pairs| pairs.failed()) {
            Some(device) => Err(PoolError::Device { device, error: IoError::Unreachable }),
            None => Ok(report),
        }
    }
}

fn check_copies(named: &NamedDevice, found: &FoundSuperblock, report: &mut CheckReport) {
    let damaged = found.damaged.iter().map(|copy| (*copy, CHANGED));
    // After a crash, copies may have the previous update.
    let older = found.older.iter().map(|copy| (*copy, "it is older than the others"));
    for (copy, cause) in damaged.chain(older) {
        report.add(Damage {
            device: named.name.clone(),
            device_offset_bytes: copy_offset(copy),
            kind: DamageKind::Superblock { copy },
            cause,
        });
    }
}

impl Check<'_> {
    fn add(&mut self, location: u64, kind: DamageKind, cause: &'static str) {
        self.report.add(damage(self.storage, location, kind, cause));
    }

    fn verified(&mut self, blocks: u64) {
        self.report.verified_bytes += bytes(blocks);
        (self.progress)(self.report.verified_bytes, self.report.live_bytes);
    }

    /// Marks the blocks of the metadata, which was verified when it was read.
    async fn metadata(&mut self, checkpoint: &Checkpoint, root: MapEntry) -> Result<(), PoolError> {
        let mut pages = vec![(crate::checkpoint::METADATA_LEVEL, 0_u64, root)];
        let mut count = 0;
        while let Some((level, index, entry)) = pages.pop() {
            if !entry.is_stored() {
                continue;
            }
            count += 1;
            self.mark(entry);
            self.copies(&[entry], |_| DamageKind::Metadata).await?;
            if level > 0 {
                let place = PagePlace { volume: 0, level, index };
                let page = read_page(self.storage, entry, place).await;
                let page = page.map_err(|error| device_error(self.storage, entry.location, error));
                let Ok(page) = page? else { continue };
                let below = (0..).zip(page.entries);
                pages.extend(
                    below.map(|(at, entry)| (level - 1, index * FANOUT as u64 + at, entry)),
                );
            }
        }
        debug_assert_eq!(count * BLOCK_WEIGHT_U64, checkpoint.meta_usage.total());
        Ok(())
    }

    /// Marks a block as owned by a map.
    fn mark(&mut self, entry: MapEntry) {
        let taken = match entry.unit() {
            None => self.live.set(entry.location),
            Some(unit) => self.mark_unit(entry, unit),
        };
        if taken {
            self.add(entry.location, DamageKind::Count, "two maps have the block for their own");
        }
    }

    /// Marks a block of a unit; true if another block has its place.
    fn mark_unit(&mut self, entry: MapEntry, unit: UnitPlace) -> bool {
        let layout = &self.storage.layout;
        let segment = layout.segment_of(entry.location);
        let masks = self
            .units
            .entry(segment)
            .or_insert_with(|| vec![0; layout.segment_blocks() as usize].into_boxed_slice());
        let mask = &mut masks[(entry.block() - layout.first_block(segment)) as usize];
        let (is_first, bit) = (*mask == 0, 1 << unit.index);
        let mut taken = *mask & bit != 0;
        *mask |= bit;
        let held = &mut self.held[segment as usize];
        if is_first {
            *held += u64::from(unit.stored) * BLOCK_WEIGHT_U64;
        }
        *held = held.saturating_sub(entry.weight().into());
        if is_first {
            for block in (entry.block()..).take(unit.stored.into()) {
                taken |= self.live.set(block);
            }
        }
        taken
    }

    /// Walks the maps of volumes and snapshots, each page and block where it belongs.
    async fn maps(&mut self, volume_table: &VolumeTable) -> Result<(), PoolError> {
        for (id, volume) in &volume_table.volumes {
            let level = root_level(volume.blocks);
            let name = match volume.state {
                VolumePresence::Present => volume_table.full_name(volume),
                VolumePresence::Deleting { .. } => format!("{} (being deleted)", volume.name),
            };
            let mut pages = vec![(level, 0_u64, volume.root, u64::MAX)];
            while let Some((level, index, entry, youngest)) = pages.pop() {
                let walk = Walk { volume_table, id: *id, name: &name, level, index, youngest };
                if let Some(page) = self.page(&walk, entry).await? {
                    let youngest = entry.birth;
                    match level {
                        1 => self.blocks(&Walk { youngest, ..walk }, &page).await?,
                        level => pages.extend((0..).zip(page.entries).map(|(at, entry)| {
                            (level - 1, index * FANOUT as u64 + at, entry, youngest)
                        })),
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a page that the map owns.
    async fn page(
        &mut self,
        walk: &Walk<'_>,
        entry: MapEntry,
    ) -> Result<Option<MapPage>, PoolError> {
        if !self.is_own(walk, walk.level, walk.index, entry) {
            return Ok(None);
        }
        let Walk { id, level, index, .. } = *walk;
        let kind = walk.kind(level, index);
        self.mark(entry);
        self.count(entry);
        self.verified(1);
        let damages = self.copies(&[entry], |_| kind.clone()).await?;
        let read = read_page(self.storage, entry, PagePlace { volume: id, level, index }).await;
        match read.map_err(|error| device_error(self.storage, entry.location, error))? {
            Ok(page) => Ok(Some(page)),
            Err(cause) => {
                self.is_partial = true;
                if damages == 0 {
                    self.add(entry.location, kind, cause);
                }
                Ok(None)
            }
        }
    }

    /// True if the map owns an entry that was not freed; reports impossible entries.
    fn is_own(&mut self, walk: &Walk<'_>, level: u8, index: u64, entry: MapEntry) -> bool {
        if entry == MapEntry::LOST {
            self.is_partial = true;
            let root = walk.volume_table.volumes[&walk.id].root.location;
            self.add(root, walk.kind(level, index), LOST);
        }
        if !entry.is_stored() {
            return false;
        }
        if entry.birth > walk.youngest {
            self.add(
                entry.location,
                walk.kind(level, index),
                "it is younger than the page above it",
            );
        }
        let end = (index + 1).saturating_mul(span(level));
        let freed = match walk.volume_table.volumes[&walk.id].state {
            VolumePresence::Deleting { reaped } => end <= reaped,
            VolumePresence::Present => false,
        };
        !freed && walk.volume_table.ownership(walk.id).is_own(entry.birth, end)
    }

    fn count(&mut self, entry: MapEntry) {
        let segment = self.storage.layout.segment_of(entry.location);
        // Maps that share pages for their own may have any number of references.
        let weight = &mut self.usage.weights[segment as usize];
        *weight = weight.saturating_add(entry.weight());
    }

    /// Reads the blocks of a leaf that the map owns.
    async fn blocks(&mut self, walk: &Walk<'_>, page: &MapPage) -> Result<(), PoolError> {
        let first = walk.index * FANOUT as u64;
        let mut own = Vec::with_capacity(FANOUT);
        for (block, entry) in (first..).zip(page.entries) {
            if self.is_own(walk, 0, block, entry) {
                self.mark(entry);
                self.count(entry);
                own.push((block, entry));
            }
        }
        let layout = &self.storage.layout;
        let same_run = |a: &(u64, MapEntry), b: &(u64, MapEntry)| {
            if a.1.unit().is_some() {
                return b.1.is_with(&a.1);
            }
            b.1.location == a.1.location + 1
                && layout.segment_of(a.1.location) == layout.segment_of(b.1.location)
        };
        for run in own.chunk_by(same_run).flat_map(|run| run.chunks(READ_BLOCKS)) {
            self.run(walk, run).await?;
        }
        Ok(())
    }

    async fn run(&mut self, walk: &Walk<'_>, run: &[(u64, MapEntry)]) -> Result<(), PoolError> {
        let start = run[0].1.location;
        let is_unit = run[0].1.unit().is_some();
        if self.storage.pairs.is_some() && self.storage.layout.holds(&run[0].1) {
            let entries: Vec<MapEntry> = run.iter().map(|(_, entry)| *entry).collect();
            let stored = if is_unit { &entries[..1] } else { &entries[..] };
            let damages = self.copies(stored, |index| walk.kind(0, run[index].0)).await?;
            // A unit that is right may still not decompress.
            if !is_unit || damages > 0 {
                self.verified(stored.iter().map(|entry| entry.stored_blocks() as u64).sum());
                return Ok(());
            }
        }
        if is_unit {
            self.verified(run[0].1.stored_blocks() as u64);
            let found = verify_stored(self.storage, run[0].1).await;
            let found = found.map_err(|error| device_error(self.storage, start, error))?;
            if let Err(cause) = found {
                for (block, entry) in run {
                    self.add(entry.location, walk.kind(0, *block), cause);
                }
            }
            return Ok(());
        }
        self.verified(run.len() as u64);
        let memory = buf::acquire_more(run.len() * BLOCK_BYTES).await;
        let read = match self.storage.read(start, memory).await {
            Ok(read) => Some(read),
            Err(IoError::ReadFault) => None,
            Err(error) => return Err(device_error(self.storage, start, error)),
        };
        for (index, (block, entry)) in run.iter().enumerate() {
            let cause = match &read {
                Some(read) => {
                    let bytes = &read[index * BLOCK_BYTES..][..BLOCK_BYTES];
                    (checksum(bytes) != entry.checksum).then_some(CHANGED)
                }
                None => {
                    let read = read_block(self.storage, *entry).await;
                    read.map_err(|error| device_error(self.storage, entry.location, error))?.err()
                }
            };
            if let Some(cause) = cause {
                self.add(entry.location, walk.kind(0, *block), cause);
            }
        }
        Ok(())
    }

    /// Compares the live blocks of each segment with what the pool recorded.
    fn counts(&mut self, recorded: &SegmentUsage) {
        let found = std::mem::take(&mut self.usage.weights);
        for ((segment, found), recorded) in (0..).zip(&found).zip(&recorded.weights) {
            let is_wrong = match self.is_partial {
                true => found > recorded,
                false => found != recorded,
            };
            if is_wrong {
                let at = self.storage.layout.first_block(segment);
                self.add(at, DamageKind::Count, "the segment has another number of live blocks");
            }
        }
        self.usage.weights = found;
        // A damaged page hides live blocks of units.
        let held = std::mem::take(&mut self.held);
        for ((segment, held), recorded) in (0..).zip(&held).zip(&recorded.held) {
            if *held > u64::from(*recorded) && !self.is_partial {
                let at = self.storage.layout.first_block(segment);
                self.add(at, DamageKind::Count, "dead blocks of units hold more than is counted");
            }
        }
    }

    /// Checks that each live block is in a chunk whose header can be read.
    async fn headers(&mut self, checkpoint: &Checkpoint) -> Result<(), PoolError> {
        let layout = &self.storage.layout;
        let counts = checkpoint.usage.weights.iter().zip(&checkpoint.meta_usage.weights);
        let live: Vec<u32> =
            (0..).zip(counts).filter(|(_, (a, b))| **a > 0 || **b > 0).map(|(at, _)| at).collect();
        for segment in live {
            let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
            let mut at = blocks.start;
            let mut cause = CHANGED;
            while at < blocks.end {
                match self.header(at).await? {
                    Ok(header) => at += header.blocks(),
                    Err(found) => {
                        cause = found;
                        break;
                    }
                }
            }
            if (at..blocks.end).any(|block| self.live.has(block)) {
                self.add(at, DamageKind::Header, cause);
            }
        }
        Ok(())
    }
}

/// Position in the walk of a map.
#[derive(Clone, Copy)]
struct Walk<'a> {
    volume_table: &'a VolumeTable,
    id: u32,
    name: &'a str,
    level: u8,
    index: u64,
    /// Birth of the page above: nothing below it is newer.
    youngest: u64,
}

impl Walk<'_> {
    fn kind(&self, level: u8, index: u64) -> DamageKind {
        let volume = self.name.to_owned();
        let offset_bytes = bytes(index.saturating_mul(span(level)));
        let len_bytes = bytes(span(level));
        match level {
            0 => DamageKind::Data { volume, offset_bytes, len_bytes },
            _ => DamageKind::Map { volume, offset_bytes, len_bytes },
        }
    }
}
