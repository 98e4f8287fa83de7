//! Shared state of an open pool: one lock, held for a few instructions and never across an await.
//!
//! Invariant: the recent changes above the trees are exactly the chunks that took effect since the
//! checkpoint of the trees.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::IoError;
use flagstone_runtime::CoreLocal;
use flagstone_runtime::sync::SharedNotify;
use parking_lot::Mutex;

use super::handle::VolumeHandle;
use super::space::{Admission, Demand, OrderKind, Sizes, Supply, admit, admit_order, chunk_blocks};
use crate::checkpoint::Frozen;
use crate::checkpoint::relocate::Moving;
use crate::cleaner::gain::Gain;
use crate::cleaner::victims::Costs;
use crate::limits::{
    CHUNKS_UNAPPLIED, DAMAGED_CHECKPOINTS, LOG_SEGMENTS_MAX, PASSES_WAITED, SPARES_MAX,
};
use crate::log::device::LogDevice;
use crate::log::gather::Gatherer;
use crate::log::position::{ChunkContent, Position};
use crate::log::segments::{ReadGuard, Segments};
use crate::map::cache::PageCache;
use crate::map::orders::{Trees, apply_order};
use crate::map::recent::{Recent, zero_entries};
use crate::map::tree::Tree;
use crate::ondisk::catalog::{Catalog, VolumeKind, VolumeRecord, VolumeState};
use crate::ondisk::chunk::{Record, is_upkeep};
use crate::ondisk::entry::Entry;
use crate::ondisk::superblock::{LogStart, Superblock, TailVolumes};
use crate::ondisk::unit::{BLOCK_WEIGHT, Payload};
use crate::storage::Storage;

/// An open pool.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) storage: Storage,
    pub(crate) cache: PageCache,
    pub(crate) sizes: Sizes,
    pub(crate) state: Mutex<State>,
    /// A chunk took effect, a checkpoint was committed, work was requested, or the pool failed.
    pub(crate) progress: SharedNotify,
    pub(crate) gatherers: CoreLocal<Gatherer>,
}

/// Work that the keeper has been asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) checkpoint: bool,
    pub(crate) cleaning: bool,
    pub(crate) stop: bool,
}

/// What the keeper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Stop,
    Checkpoint,
    Clean,
}

/// Whether an order keeps the keeper from beginning work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    #[default]
    None,
    /// It waits until the keeper has ended its work.
    Waiting,
    /// It changes the lineage of volumes.
    Held,
}

/// An update of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// None is in progress.
    Idle,
    /// One task has the turn.
    Runs,
    /// It writes. If it is dropped meanwhile, the update may be on some of the devices.
    Writes,
    /// None may follow. One failed, and may be on some of the devices: another update of the same
    /// number would contradict it. Or the devices have another log device, or are no pool.
    Over,
}

impl Update {
    /// What follows when the turn ends, or is dropped.
    pub(crate) fn ended(self) -> Update {
        match self {
            Update::Idle | Update::Runs => Update::Idle,
            Update::Writes | Update::Over => Update::Over,
        }
    }
}

/// The task that writes out the log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOut {
    Runs,
    /// It ends as soon as it can: a device failed, or the pool is destroyed.
    Abandoned,
    /// There is none.
    Ended,
}

/// Live blocks per segment, by weight.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// In parts of a block: [`BLOCK_WEIGHT`] for each block that is stored alone.
    pub(crate) weights: Vec<u32>,
    /// Dead blocks of units that may have live ones: the space that they may hold. Units that die or
    /// move in several steps are counted too high until their segment is free.
    pub(crate) held: Vec<u32>,
    /// Block of the last unit of which a block was added.
    pub(crate) adding: u64,
    /// Block of the last unit of which a block died, and the number of its blocks that did in turn.
    pub(crate) dying: (u64, u8),
}

impl Usage {
    pub(crate) fn new(segments: usize) -> Usage {
        Usage { weights: vec![0; segments], held: vec![0; segments], adding: 0, dying: (0, 0) }
    }

    /// More segments.
    pub(crate) fn extend(&mut self, segments: usize) {
        let count = self.weights.len() + segments;
        self.weights.resize(count, 0);
        self.held.resize(count, 0);
    }

    /// Live blocks of all segments.
    pub(crate) fn total(&self) -> u64 {
        let weights = self.weights.iter().map(|weight| u64::from(*weight));
        weights.sum::<u64>().div_ceil(BLOCK_WEIGHT.into())
    }

    /// Blocks that dead parts of units hold at most, in all segments of so many blocks.
    pub(crate) fn held(&self, segment_blocks: u32) -> u64 {
        let most = segment_blocks * BLOCK_WEIGHT;
        let parts = self.held.iter().zip(&self.weights);
        let held = parts.map(|(held, weight)| u64::from(*held.min(&most.saturating_sub(*weight))));
        held.sum::<u64>().div_ceil(BLOCK_WEIGHT.into())
    }
}

/// Emptied lists of chunks that took effect, so that the next chunks allocate nothing.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    pub(crate) records: Vec<Vec<Record>>,
    pub(crate) checksums: Vec<Vec<u32>>,
}

impl Spares {
    fn put(&mut self, content: ChunkContent) {
        let ChunkContent { mut records, mut checksums } = content;
        if self.records.len() < SPARES_MAX {
            records.clear();
            self.records.push(records);
        }
        if self.checksums.len() < SPARES_MAX {
            checksums.clear();
            self.checksums.push(checksums);
        }
    }
}

pub(crate) struct State {
    pub(crate) position: Position,
    pub(crate) segments: Segments,
    pub(crate) active: Recent,
    /// Changes that a checkpoint is merging, or will merge next.
    pub(crate) frozen: Option<Arc<Frozen>>,
    /// Changes that a checkpoint has merged.
    pub(crate) merged: Option<Arc<Frozen>>,
    pub(crate) catalog: Catalog,
    /// Maps as of the last checkpoint, of everything in the catalog but snapshots that are newer.
    pub(crate) trees: Trees,
    pub(crate) handles: BTreeMap<u32, Arc<VolumeHandle>>,
    /// Of the volumes' maps, as of the last checkpoint.
    pub(crate) usage: Usage,
    /// Of the metadata map, as of the last checkpoint.
    pub(crate) meta_usage: Usage,
    /// Sum of both.
    pub(crate) live: u64,
    /// Catalog as it is on disk.
    pub(crate) catalog_bytes: Vec<u8>,
    pub(crate) superblock: Superblock,
    pub(crate) update: Update,
    /// Volumes that the superblock marks, whatever becomes of an update in progress: chunks that
    /// change them may go to the log device.
    pub(crate) marked: TailVolumes,
    /// Volumes that the next update marks.
    pub(crate) to_mark: BTreeSet<u32>,
    /// The task that writes out the log device.
    pub(crate) write_out: WriteOut,
    /// Number of checkpoints since the opening.
    pub(crate) checkpoints: u64,
    /// Number of looks of the cleaner at segments that ended without a choice.
    pub(crate) rounds: u64,
    /// Entries and ranges that were admitted and have not taken effect.
    pub(crate) admitted: (usize, usize),
    /// What the cleaner wants out of its segments, by the next checkpoint.
    pub(crate) moving: Moving,
    /// Closed segments that could not be cleaned, and the checkpoint after which the cleaner tries
    /// again: the device may only have been away.
    pub(crate) damaged: BTreeMap<u32, u64>,
    /// The cleaner found nothing since the last checkpoint.
    pub(crate) clean: bool,
    pub(crate) gain: Gain,
    /// What cleaning costs, of closed segments with units.
    pub(crate) costs: Costs,
    /// Blocks of chunks with changes of hosts and orders since the opening.
    pub(crate) host_blocks: u64,
    /// Those of them that the last checkpoint contains.
    pub(crate) merged_blocks: u64,
    /// Segments cleaned and blocks copied since the opening.
    pub(crate) cleaned: (u64, u64),
    pub(crate) wanted: Wanted,
    pub(crate) ordering: bool,
    /// The keeper runs.
    pub(crate) kept: bool,
    /// Whether the keeper works.
    pub(crate) keeper_works: bool,
    pub(crate) turn: Turn,
    /// Blocks reserved for thick volumes beyond what they have.
    reserved: u64,
    /// There are thick volumes.
    has_thick: bool,
    /// Blocks by which the data of all maps is counted smaller than it is uncompressed, without that of
    /// thick volumes, whose whole size is counted.
    saved: u64,
    /// Blocks that dead parts of units hold at most.
    pub(crate) held: u64,
    /// Volumes and snapshots being deleted.
    pub(crate) deleting: usize,
    /// Memory for the next table of recent changes.
    pub(crate) spare: Option<Recent>,
    /// As the devices are now.
    pub(crate) sizes: Sizes,
    /// Segments of a device that is being evacuated.
    pub(crate) evacuated: Option<Range<u32>>,
    pub(crate) spares: Spares,
    failed: Option<IoError>,
}

/// Where the blocks of a volume or snapshot are looked up.
pub(crate) struct View<'a> {
    pub(crate) tree: Tree,
    volume: u32,
    active: Option<&'a Recent>,
    frozen: Option<&'a Frozen>,
}

impl View<'_> {
    /// The entry of a block that changed since the checkpoint of the tree.
    pub(crate) fn recent(&self, block: u64) -> Option<Entry> {
        let active = self.active.and_then(|active| active.get(self.volume, block));
        active.or_else(|| self.frozen?.recent.get(self.volume, block))
    }

    /// True if no block changed.
    pub(crate) fn is_merged(&self) -> bool {
        self.active.is_none_or(Recent::is_empty) && self.frozen.is_none()
    }

    /// True if a block of this volume changed since the checkpoint of the tree.
    pub(crate) fn has_changes(&self) -> bool {
        let frozen = self.frozen.map(|frozen| &frozen.recent);
        self.active.into_iter().chain(frozen).any(|recent| recent.has(self.volume))
    }
}

/// For how long something has waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waited {
    /// Checkpoints.
    pub(crate) checkpoints: u64,
    /// Looks of the cleaner at segments that ended without a choice.
    pub(crate) rounds: u64,
}

impl Waited {
    /// Checkpoints, or so many passes that they are too many.
    fn passes(self) -> u64 {
        match self.checkpoints + self.rounds {
            passes if passes >= PASSES_WAITED => passes,
            _ => self.checkpoints,
        }
    }
}

/// Blocks that an order reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) blocks: u64,
    /// Blocks that compressed data saves which a snapshot would keep: so far, the reservation of its
    /// thick volume covers what it takes. What such a volume shares counts uncompressed, so its
    /// reservation may be too high, and `blocks` as much too low: their sum with what is in use is
    /// right, and has to fit even if `blocks` is 0.
    pub(crate) pinned: u64,
}

/// The parts of a state that recovery or creation provides.
pub(crate) struct Opened {
    pub(crate) position: Position,
    pub(crate) segments: Segments,
    pub(crate) recent: Recent,
    /// What was replayed up to a snapshot that the checkpoint lacks.
    pub(crate) frozen: Option<Frozen>,
    pub(crate) catalog: Catalog,
    pub(crate) trees: Trees,
    pub(crate) usage: Usage,
    pub(crate) meta_usage: Usage,
    pub(crate) catalog_bytes: Vec<u8>,
    pub(crate) superblock: Superblock,
}

/// Blocks that a volume may still need, if it is thick. What it shares with a snapshot needs new
/// space when it is overwritten, and so does what is compressed now.
pub(crate) fn reservation(volume: &VolumeRecord) -> u64 {
    let taken = volume.weight / u64::from(BLOCK_WEIGHT);
    match volume.thick {
        true => volume.blocks.saturating_sub(taken.saturating_sub(volume.shared)),
        false => 0,
    }
}

impl State {
    pub(crate) fn new(opened: Opened, sizes: Sizes) -> State {
        let live = opened.usage.total() + opened.meta_usage.total();
        let mut state = State {
            position: opened.position,
            segments: opened.segments,
            active: opened.recent,
            frozen: opened.frozen.map(Arc::new),
            merged: None,
            catalog: opened.catalog,
            trees: opened.trees,
            handles: BTreeMap::new(),
            usage: opened.usage,
            meta_usage: opened.meta_usage,
            live,
            catalog_bytes: opened.catalog_bytes,
            update: Update::Idle,
            marked: opened.superblock.tail.clone(),
            to_mark: BTreeSet::new(),
            write_out: WriteOut::Ended,
            superblock: opened.superblock,
            checkpoints: 0,
            rounds: 0,
            admitted: (0, 0),
            moving: Moving::default(),
            damaged: BTreeMap::new(),
            clean: false,
            gain: Gain::default(),
            costs: Costs::default(),
            host_blocks: 0,
            merged_blocks: 0,
            cleaned: (0, 0),
            wanted: Wanted::default(),
            ordering: false,
            kept: false,
            keeper_works: false,
            turn: Turn::None,
            reserved: 0,
            has_thick: false,
            saved: 0,
            held: 0,
            deleting: 0,
            spare: None,
            sizes,
            evacuated: None,
            spares: Spares::default(),
            failed: None,
        };
        state.held = state.usage.held(state.superblock.segment_blocks);
        state.catalog_changed();
        state
    }

    /// Counts what admission needs of the catalog, so that no write iterates over volumes.
    pub(crate) fn catalog_changed(&mut self) {
        let thick = self.catalog.present().filter(|volume| volume.thick);
        self.reserved = thick.map(reservation).sum();
        self.has_thick = self.catalog.present().any(|volume| volume.thick);
        let is_thick = |volume: &&VolumeRecord| volume.is_present_volume() && volume.thick;
        let thin = self.catalog.volumes.values().filter(|volume| !is_thick(volume));
        self.saved = thin.map(VolumeRecord::saved).fold(0, u64::saturating_add);
        let deleting = self.catalog.volumes.values();
        self.deleting = deleting.filter(|volume| volume.state != VolumeState::Present).count();
    }

    /// Whether the pool was opened and has not made the checkpoint that begins its log.
    pub(crate) fn needs_first_checkpoint(&self) -> bool {
        self.checkpoints == 0 || self.superblock.log != self.position.log
    }

    /// The next work of the keeper, which begins now.
    pub(crate) fn next_work(&mut self) -> Option<Work> {
        if self.wanted.stop || self.check().is_err() {
            return Some(Work::Stop);
        }
        let sealed = self.frozen.is_some();
        let work = match self.turn {
            Turn::Held => None,
            // An order waits for what was sealed to be merged.
            Turn::None | Turn::Waiting if sealed => Some(Work::Checkpoint),
            Turn::None if self.wanted.checkpoint => Some(Work::Checkpoint),
            Turn::None if self.wanted.cleaning => Some(Work::Clean),
            Turn::None | Turn::Waiting => None,
        };
        self.keeper_works = work.is_some();
        work
    }

    /// # Errors
    /// After a failed write or flush.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        self.failed.map_or(Ok(()), Err)
    }

    /// No chunk takes effect any more, and every change fails with `error`.
    pub(crate) fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }

    pub(crate) fn reserve(&mut self, payload_blocks: usize) -> Result<LogStart, IoError> {
        self.position.reserve(payload_blocks, &mut self.segments)
    }

    /// Records that were admitted will not take effect, or did: they no longer count as admitted.
    pub(crate) fn withdraw(&mut self, records: &[Record]) {
        for record in records {
            let (entries, ranges) = match record {
                Record::Data { count, .. } => (usize::from(*count), 0),
                Record::Zero { count, .. } => match zero_entries(*count) {
                    0 => (0, 1),
                    entries => (entries, 0),
                },
                Record::Unit { count, .. } => (usize::from(*count), 0),
                Record::Moved { .. } => (1, 0),
                Record::MovedUnit { parts, .. } => {
                    (parts.iter().filter(|part| matches!(part, Record::Moved { .. })).count(), 0)
                }
                _ => (0, 0),
            };
            self.admitted.0 -= entries;
            self.admitted.1 -= ranges;
        }
    }

    /// Lets written chunks take effect, in order.
    pub(crate) fn apply_written(&mut self, log: Option<&LogDevice>) {
        while let Some(chunk) = self.position.pop_written() {
            let content = chunk.content.expect("it is written");
            if let Some(log) = log {
                log.applied(&chunk.start, 1 + content.checksums.len() as u64);
            }
            self.apply(chunk.start.sequence, chunk.start.block + 1, &content);
            self.spares.put(content);
        }
    }

    fn apply(&mut self, sequence: u64, payload: u64, content: &ChunkContent) {
        self.withdraw(&content.records);
        if !is_upkeep(&content.records) {
            self.host_blocks += 1 + content.checksums.len() as u64;
        }
        let mut payload = Payload::of(payload, sequence, &content.checksums);
        for record in &content.records {
            match record {
                Record::Data { volume, block, count } => {
                    let effect = self.catalog.takes_effect(*volume, *block, u64::from(*count));
                    for block in (*block..).take(usize::from(*count)) {
                        let entry = payload.block();
                        if effect {
                            self.active.insert(*volume, block, entry);
                        }
                    }
                }
                Record::Zero { volume, block, count } => {
                    if self.catalog.takes_effect(*volume, *block, *count) {
                        self.active.zero(*volume, *block, *count);
                    }
                }
                Record::Moved { volume, block, old, birth } => {
                    let entry = Entry { birth: *birth, ..payload.block() };
                    if self.catalog.takes_effect(*volume, *block, 1) {
                        self.move_block(*volume, *block, *old, entry);
                    }
                }
                Record::Unit { volume, block, count, stored } => {
                    let effect = self.catalog.takes_effect(*volume, *block, u64::from(*count));
                    for (block, entry) in (*block..).zip(payload.unit(*count, *stored)) {
                        if effect {
                            self.active.insert(*volume, block, entry);
                        }
                    }
                }
                Record::MovedUnit { stored, parts } => {
                    let entries = payload.unit(parts.len() as u8, *stored);
                    for (part, entry) in parts.iter().zip(entries) {
                        let Record::Moved { volume, block, old, birth } = part else { continue };
                        let entry = Entry { birth: *birth, ..entry };
                        if self.catalog.takes_effect(*volume, *block, 1) {
                            self.move_block(*volume, *block, *old, entry);
                        }
                    }
                }
                Record::Page { .. } => drop(payload.block()),
                order => self.apply_order(order, sequence),
            }
        }
    }

    fn apply_order(&mut self, order: &Record, sequence: u64) {
        if let Record::Snapshot(order) = order {
            // The order is alone in its chunk, so this is where the next one begins.
            self.freeze(self.position.start(), Some((**order).clone()));
        }
        apply_order(&mut self.catalog, &mut self.trees, order, sequence)
            .expect("orders are checked before they are written");
        self.catalog_changed();
        match order {
            Record::Delete { volume } => {
                if let Some(handle) = self.handles.remove(volume) {
                    handle.deleted.store(true, Ordering::Release);
                }
            }
            Record::Rollback { volume, .. } => self.active.forget(*volume),
            _ => {}
        }
        for (id, handle) in &self.handles {
            if let Some(volume) = self.catalog.volumes.get(id) {
                handle.blocks.store(volume.blocks, Ordering::Release);
                handle.set(volume);
            }
        }
    }

    /// The cleaner's copy takes effect if the block is where the cleaner found it. A recent change
    /// decides; without one the tree does, from which the cleaner read it, because the cleaner
    /// waits for its copies before the next checkpoint begins.
    fn move_block(&mut self, volume: u32, block: u64, old: u64, entry: Entry) {
        let recent = self.recent(volume, block);
        if recent.is_none_or(|found| found.location == old) {
            self.active.insert(volume, block, entry);
        }
    }

    /// The tree of a volume or snapshot, and from which tables changes since count. A snapshot that
    /// no checkpoint contains is the tree of its volume with the changes that are sealed.
    pub(crate) fn view(&self, id: u32) -> Result<View<'_>, IoError> {
        let volume = self.catalog.volumes.get(&id).ok_or(IoError::Unreachable)?;
        let source = volume.source();
        let (tree, active, frozen) = match (self.trees.get(&id), volume.kind) {
            (Some(tree), VolumeKind::Snapshot { .. }) => (tree, None, None),
            (None, _) => {
                (self.trees.get(&source).ok_or(IoError::Unreachable)?, None, self.frozen.as_deref())
            }
            (Some(tree), VolumeKind::Volume) => (tree, Some(&self.active), self.frozen.as_deref()),
        };
        Ok(View { tree: *tree, volume: source, active, frozen })
    }

    /// The entry of a block that changed since the checkpoint.
    pub(crate) fn recent(&self, volume: u32, block: u64) -> Option<Entry> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.recent.get(volume, block));
        self.active.get(volume, block).or_else(frozen)
    }

    /// Live blocks of a segment by weight, as of the last checkpoint.
    pub(crate) fn weight_of(&self, segment: u32) -> u32 {
        let segment = segment as usize;
        self.usage.weights[segment] + self.meta_usage.weights[segment]
    }

    /// The same in blocks.
    pub(crate) fn live_in(&self, segment: u32) -> u32 {
        self.weight_of(segment).div_ceil(BLOCK_WEIGHT)
    }

    /// Whether a segment may have compressed units.
    pub(crate) fn has_units(&self) -> bool {
        self.catalog.volumes.values().any(|volume| volume.saved() > 0)
    }

    /// The cleaner leaves a segment alone for a while.
    pub(crate) fn leave_alone(&mut self, segment: u32) {
        self.damaged.insert(segment, self.checkpoints + DAMAGED_CHECKPOINTS);
    }

    /// True for a segment that the cleaner may choose now.
    pub(crate) fn can_clean(&self, segment: u32) -> bool {
        let until = self.damaged.get(&segment);
        self.segments.is_closed(segment) && until.is_none_or(|until| self.checkpoints > *until)
    }

    pub(crate) fn guard(&self) -> ReadGuard {
        self.segments.guard()
    }

    pub(crate) fn supply(&mut self) -> Supply {
        self.supply_with(0)
    }

    /// The supply if so many more blocks were saved by data that is not of thick volumes.
    pub(crate) fn supply_with(&mut self, saved: u64) -> Supply {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.recent.len());
        Supply {
            live: self.live + frozen as u64,
            reserved: self.reserved,
            held: self.held.min(self.saved.saturating_add(saved)),
            has_thick: self.has_thick,
            entries: self.active.len() + self.admitted.0,
            ranges: self.active.ranges_len() + self.admitted.1,
            free: self.segments.free(),
            reaping: self.deleting > 0,
            unmerged: !self.active.is_empty()
                || self.frozen.as_ref().is_some_and(|frozen| !frozen.recent.is_empty())
                || self.admitted != (0, 0),
            logged: self.host_blocks > self.merged_blocks,
            clean: self.clean,
        }
    }

    /// Decides whether a change may begin; `None` if it has to wait.
    fn try_admit(&mut self, demand: &Demand, waited: Waited) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        if self.position.in_flight() >= CHUNKS_UNAPPLIED {
            return None;
        }
        let mut supply = self.supply();
        // What frees space does not wait for a look at all segments.
        supply.clean |= demand.blocks == 0 && waited.rounds > 0;
        let waited = if demand.reserved { waited.checkpoints } else { waited.passes() };
        let decided = self.decide(admit(&sizes, &supply, demand, waited))?;
        if decided.is_ok() {
            self.admitted.0 += demand.entries;
            self.admitted.1 += demand.ranges;
            self.want_upkeep(&sizes, &supply);
        }
        Some(decided)
    }

    /// Decides whether an order may begin; `None` if it has to wait.
    fn try_admit_order(&mut self, kind: OrderKind, waited: Waited) -> Option<Result<(), IoError>> {
        let sizes = self.sizes;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let mut supply = self.supply();
        supply.clean |= kind == OrderKind::Deletion && waited.rounds > 0;
        let decided = self.decide(admit_order(&sizes, &supply, kind, waited.passes()))?;
        self.want_upkeep(&sizes, &supply);
        Some(decided)
    }

    /// Decides whether everything fits so many blocks; `None` while the cleaner may find out that it does.
    pub(crate) fn try_fit(&mut self, blocks: u64, waited: Waited) -> Option<Result<(), IoError>> {
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let supply = self.supply();
        let fits = supply.needed() <= blocks || supply.used() > blocks;
        if fits || supply.clean && !supply.unmerged || waited.passes() >= PASSES_WAITED {
            return Some(Ok(()));
        }
        self.decide(match supply.clean {
            true => Admission::AfterCheckpoint,
            false => Admission::AfterCleaning,
        })
    }

    /// Decides whether so many more blocks may be reserved; `None` while the cleaner may make room.
    pub(crate) fn try_clean_for(
        &mut self,
        more: Reservation,
        waited: Waited,
    ) -> Option<Result<(), IoError>> {
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        let (sizes, supply) = (self.sizes, self.supply_with(more.pinned));
        let more = more.blocks;
        let is_hopeless = supply.used() + more > sizes.capacity;
        let is_over = supply.clean && !supply.unmerged || waited.passes() >= PASSES_WAITED;
        if is_hopeless || is_over || !supply.is_overdrawn(&sizes, more) {
            return Some(Ok(()));
        }
        self.decide(match supply.clean {
            true => Admission::AfterCheckpoint,
            false => Admission::AfterCleaning,
        })
    }

    /// Asks for what an admission needs.
    fn decide(&mut self, admission: Admission) -> Option<Result<(), IoError>> {
        match admission {
            Admission::Now => Some(Ok(())),
            Admission::Full => Some(Err(IoError::NoSpace)),
            Admission::AfterCheckpoint => {
                // Admitted changes can be merged when they have taken effect, which wakes this one:
                // until then, checkpoints would follow each other without any use.
                let merges =
                    self.admitted == (0, 0) || !self.active.is_empty() || self.deleting > 0;
                self.wanted.checkpoint |= merges;
                None
            }
            Admission::AfterCleaning => {
                self.wanted.cleaning = true;
                None
            }
        }
    }

    /// Asks for work ahead of the limits, so that writes rarely wait for it.
    fn want_upkeep(&mut self, sizes: &Sizes, supply: &Supply) {
        let log_max = LOG_SEGMENTS_MAX.min(self.segments.count() / 8).max(4);
        self.wanted.checkpoint |=
            4 * supply.entries > 3 * sizes.recent || self.segments.in_log() > log_max;
        self.wanted.cleaning |= supply.free < sizes.reserve + sizes.reserve / 4 + 2;
    }
}

impl Shared {
    /// Most payload blocks of a chunk. Chunks of that size fill segments without a rest.
    pub(crate) fn chunk_blocks(&self) -> usize {
        chunk_blocks(&self.storage.layout) as usize
    }

    /// The open chunk of this core.
    pub(crate) fn gatherer(&self) -> std::rc::Rc<Gatherer> {
        self.gatherers.get_or_init(Gatherer::default)
    }

    /// Waits until a change may begin.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] in a full pool.
    pub(crate) async fn admit(&self, demand: Demand) -> Result<(), IoError> {
        self.admitted(|state, waited| state.try_admit(&demand, waited)).await
    }

    /// Begins a change now, or returns `None` if it has to wait.
    ///
    /// # Errors
    /// As [`Shared::admit`].
    pub(crate) fn try_admit(&self, demand: &Demand) -> Option<Result<(), IoError>> {
        self.try_admitted(|state| state.try_admit(demand, Waited::default()))
    }

    /// Waits until an order may begin.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] in a full pool, except for deletions.
    pub(crate) async fn admit_order(&self, kind: OrderKind) -> Result<(), IoError> {
        self.admitted(|state, waited| state.try_admit_order(kind, waited)).await
    }

    /// Waits for a decision, which gets how long it has waited since the first attempt, and
    /// tells the keeper about work that it asks for.
    pub(crate) async fn admitted(
        &self,
        decide: impl Fn(&mut State, Waited) -> Option<Result<(), IoError>>,
    ) -> Result<(), IoError> {
        let mut first = None;
        let decided = self.progress.wait_for(|| {
            self.try_admitted(|state| {
                let now = (state.checkpoints, state.rounds);
                let (checkpoints, rounds) = *first.get_or_insert(now);
                let waited = Waited { checkpoints: now.0 - checkpoints, rounds: now.1 - rounds };
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

    /// Makes everything durable that took effect before.
    ///
    /// # Errors
    /// Of the devices; later calls fail with [`IoError::Poisoned`].
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        let applied = {
            let state = self.state.lock();
            state.check()?;
            if state.position.durable >= state.position.applied() {
                return Ok(());
            }
            state.position.applied()
        };
        if let Err(error) = self.storage.flush().await {
            self.state.lock().fail(IoError::Poisoned);
            self.progress.notify();
            return Err(error);
        }
        let mut state = self.state.lock();
        state.position.durable = state.position.durable.max(applied);
        Ok(())
    }
}
