//! Shared state of an open pool, under one lock that is held for a few instructions and never
//! across an await.
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

use super::backing::Claim;
use super::handle::VolumeHandle;
use super::space::{Sizes, chunk_blocks, has_units};
use super::usage::SegmentUsage;
use crate::checkpoint::Frozen;
use crate::checkpoint::relocate::Moving;
use crate::cleaner::gain::Gain;
use crate::cleaner::survey::LockedWeights;
use crate::crypt::VolumeCipher;
use crate::dedup::progress::ScanProgress;
use crate::limits::{DAMAGED_CHECKPOINTS, RECYCLED_MAX};
use crate::log::device::LogDevice;
use crate::log::gather::Gatherer;
use crate::log::position::{ChunkContent, Position};
use crate::log::segments::{ReadGuard, Segments};
use crate::map::cache::PageCache;
use crate::map::orders::{Trees, apply_order};
use crate::map::recent::{Recent, zero_entries};
use crate::map::tree::Tree;
use crate::ondisk::chunk::{ChunkRecord, is_upkeep};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::superblock::{LogStart, Superblock, TailVolumes};
use crate::ondisk::unit::{BLOCK_WEIGHT_U64, Payload};
use crate::ondisk::volume_table::{VolumeKind, VolumePresence, VolumeRecord, VolumeTable};
use crate::storage::Storage;

/// An open pool.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) storage: Storage,
    pub(crate) cache: PageCache,
    pub(crate) sizes: Sizes,
    pub(crate) state: Mutex<State>,
    /// Notified when a chunk takes effect, a checkpoint is committed, work is requested, or the
    /// pool fails.
    pub(crate) progress: SharedNotify,
    pub(crate) gatherers: CoreLocal<Gatherer>,
}

/// Work requested of the maintenance task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) checkpoint: bool,
    pub(crate) cleaning: bool,
    /// Cleaning of the segments in which dead blocks of compressed units hold most.
    pub(crate) packing: bool,
    /// A step of the scan for equal blocks.
    pub(crate) sharing: bool,
    pub(crate) stop: bool,
}

/// Next work of the maintenance task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceWork {
    Stop,
    Checkpoint,
    Clean,
    Share,
}

/// The task that makes checkpoints and cleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceTask {
    /// It has not begun, or has ended: it holds no right to update the superblock.
    Stopped,
    /// It waits for work.
    Waits,
    /// It makes a checkpoint, or cleans.
    Works,
}

impl MaintenanceTask {
    /// True from its begin to its end.
    pub(crate) fn runs(self) -> bool {
        self != MaintenanceTask::Stopped
    }

    /// True while it changes the pool.
    pub(crate) fn works(self) -> bool {
        self == MaintenanceTask::Works
    }
}

/// Right of an order to keep the maintenance task from working.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MaintenancePause {
    #[default]
    None,
    /// The order waits until the maintenance task is idle.
    Waiting,
    /// The order has the right, and changes the ancestry of volumes.
    Held,
}

/// State of the superblock updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// No update is in progress.
    Idle,
    /// A task has the right to update, and has not begun to write.
    Runs,
    /// A task writes an update. If the task is dropped, the update may be on some of the devices.
    Writes,
    /// No further update is allowed: an update failed and may be on some devices, where the next
    /// one with its number would contradict it; or the log device was replaced, or the pool
    /// destroyed.
    Over,
}

impl Update {
    /// Next state when the task ends or is dropped.
    pub(crate) fn ended(self) -> Update {
        match self {
            Update::Idle | Update::Runs => Update::Idle,
            Update::Writes | Update::Over => Update::Over,
        }
    }
}

/// State of the task that writes out the log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOut {
    Runs,
    /// It ends as soon as possible: a device failed, or the pool is destroyed.
    Abandoned,
    /// No write-out task runs.
    Ended,
}

/// Empty lists of applied chunks, reused so that the next chunks allocate nothing.
#[derive(Debug, Default)]
pub(crate) struct RecycledLists {
    pub(crate) records: Vec<Vec<ChunkRecord>>,
    pub(crate) checksums: Vec<Vec<u32>>,
}

impl RecycledLists {
    fn put(&mut self, content: ChunkContent) {
        let ChunkContent { mut records, mut checksums } = content;
        if self.records.len() < RECYCLED_MAX {
            records.clear();
            self.records.push(records);
        }
        if self.checksums.len() < RECYCLED_MAX {
            checksums.clear();
            self.checksums.push(checksums);
        }
    }
}

pub(crate) struct State {
    pub(crate) position: Position,
    pub(crate) segments: Segments,
    pub(crate) active: Recent,
    /// Sealed changes that the next checkpoint merges, or the present one is merging.
    pub(crate) frozen: Option<Arc<Frozen>>,
    /// Sealed changes that a checkpoint has merged.
    pub(crate) merged: Option<Arc<Frozen>>,
    pub(crate) volume_table: VolumeTable,
    /// Maps as of the last checkpoint. Newer snapshots have none.
    pub(crate) trees: Trees,
    pub(crate) handles: BTreeMap<u32, Arc<VolumeHandle>>,
    /// Ciphers of the encrypted volumes whose key was given.
    pub(crate) ciphers: BTreeMap<u32, Arc<VolumeCipher>>,
    /// Usage by the volumes' maps, as of the last checkpoint.
    pub(crate) usage: SegmentUsage,
    /// Usage by the metadata map, as of the last checkpoint.
    pub(crate) meta_usage: SegmentUsage,
    /// Live blocks of `usage` and `meta_usage`, rounded down.
    pub(crate) live: u64,
    /// Blocks that dead blocks of compressed units hold, at most.
    pub(crate) held: u64,
    /// The same without those of locked units in surveyed segments, which the cleaner cannot free.
    pub(crate) packable: u64,
    /// Weight that dead blocks of locked units hold.
    pub(crate) locked: LockedWeights,
    /// VolumeTable as it is on disk.
    pub(crate) volume_table_bytes: Vec<u8>,
    pub(crate) superblock: Superblock,
    pub(crate) update: Update,
    /// Volumes that are marked in the superblock whether or not an update in progress completes.
    /// Chunks that change them may go to the log device.
    pub(crate) marked: TailVolumes,
    /// Volumes that the next update marks.
    pub(crate) to_mark: BTreeSet<u32>,
    /// State of the task that writes out the log device.
    pub(crate) write_out: WriteOut,
    /// Checkpoints since the opening.
    pub(crate) checkpoints: u64,
    /// Passes of the cleaner since the opening.
    pub(crate) passes: u64,
    /// Admitted entries and ranges that have not taken effect.
    pub(crate) admitted: (usize, usize),
    /// Map leaves in ranges of zeroes admitted since changes were sealed.
    pub(crate) zeroed_leaves: u64,
    /// Blocks and pages that the next checkpoint moves for the cleaner.
    pub(crate) moving: Moving,
    /// Closed segments that could not be cleaned, each with the checkpoint after which the cleaner
    /// tries again: the device may have been away only for a while.
    pub(crate) damaged: BTreeMap<u32, u64>,
    /// True if cleaning has gained nothing since the last checkpoint.
    pub(crate) nothing_to_clean: bool,
    /// True if there was no segment to clean since the last checkpoint.
    pub(crate) cleaner_gains_nothing: bool,
    pub(crate) gain: Gain,
    pub(crate) dedup: ScanProgress,
    /// Blocks of chunks with host data or orders since the opening.
    pub(crate) host_blocks: u64,
    /// Reads of hosts since the opening, each of some blocks.
    pub(crate) host_reads: u64,
    /// Segments cleaned and blocks copied since the opening.
    pub(crate) cleaned: (u64, u64),
    pub(crate) wanted: Wanted,
    pub(crate) ordering: bool,
    pub(crate) maintenance: MaintenanceTask,
    /// Work that the maintenance task began last, if any.
    last_work: Option<MaintenanceWork>,
    pub(crate) pause: MaintenancePause,
    /// True if a change waited for free segments since the last pass of the cleaner.
    pub(crate) writes_wait: bool,
    /// Free segments before the last pass, if it was made for waiting writes beside an evacuation.
    pub(crate) free_before: Option<usize>,
    /// Weight reserved for thick volumes that they have not written yet.
    pub(super) reserved: u64,
    /// Reservations that orders in progress are about to make, each with the fewest blocks that it
    /// has claimed since its check.
    pub(super) claims: BTreeMap<u64, (u64, Claim)>,
    /// Weight that they add to `reserved`.
    pub(super) claimed: u64,
    pub(super) next_claim: u64,
    /// Volumes and snapshots being deleted.
    pub(crate) deleting: usize,
    /// Empty table for the next recent changes.
    pub(crate) spare: Option<Recent>,
    /// Sizes for the present devices.
    pub(crate) sizes: Sizes,
    /// Segments of a device that is being evacuated.
    pub(crate) evacuated: Option<Range<u32>>,
    /// True while that device is empty, and the others lack free segments for what is reserved:
    /// writes leave them to the evacuation.
    pub(crate) evacuation_waits: bool,
    pub(crate) recycled: RecycledLists,
    failed: Option<IoError>,
}

/// Lookup of blocks of a volume or snapshot: its tree, and the tables of newer changes.
pub(crate) struct MapView<'a> {
    pub(crate) tree: Tree,
    volume: u32,
    active: Option<&'a Recent>,
    frozen: Option<&'a Frozen>,
}

impl MapView<'_> {
    /// Entry of a block that changed after the checkpoint of the tree.
    pub(crate) fn recent(&self, block: u64) -> Option<MapEntry> {
        let active = self.active.and_then(|active| active.get(self.volume, block));
        active.or_else(|| self.frozen?.recent.get(self.volume, block))
    }

    /// True if no block changed after the checkpoint of the tree.
    pub(crate) fn is_merged(&self) -> bool {
        self.active.is_none_or(Recent::is_empty) && self.frozen.is_none()
    }

    /// True if a block of this volume changed after the checkpoint of the tree.
    pub(crate) fn has_changes(&self) -> bool {
        let frozen = self.frozen.map(|frozen| &frozen.recent);
        self.active.into_iter().chain(frozen).any(|recent| recent.has(self.volume))
    }
}

/// State that recovery or creation provides.
pub(crate) struct Opened {
    pub(crate) position: Position,
    pub(crate) segments: Segments,
    pub(crate) recent: Recent,
    /// Changes replayed before a snapshot that the checkpoint lacks.
    pub(crate) frozen: Option<Frozen>,
    pub(crate) volume_table: VolumeTable,
    pub(crate) trees: Trees,
    pub(crate) usage: SegmentUsage,
    pub(crate) meta_usage: SegmentUsage,
    pub(crate) volume_table_bytes: Vec<u8>,
    pub(crate) superblock: Superblock,
}

/// Weight that a thick volume may still need. Blocks shared with a snapshot need new space when
/// they are overwritten, and what is compressed may be overwritten by data that does not compress.
/// With the weight of the volume's own blocks, this is always the size of the volume.
pub(crate) fn reservation(volume: &VolumeRecord) -> u64 {
    match volume.thick {
        true => (volume.blocks * BLOCK_WEIGHT_U64).saturating_sub(volume.own_weight()),
        false => 0,
    }
}

/// Entries and ranges that a record takes in the table of recent changes.
pub(crate) fn entries_of(record: &ChunkRecord) -> (usize, usize) {
    match record {
        ChunkRecord::Data { count, .. } => (usize::from(*count), 0),
        ChunkRecord::Zero { count, .. } => match zero_entries(*count) {
            0 => (0, 1),
            entries => (entries, 0),
        },
        ChunkRecord::Unit { count, .. } => (usize::from(*count), 0),
        ChunkRecord::Moved { .. } => (1, 0),
        ChunkRecord::MovedUnit { parts, .. } => (moved_parts(parts).count(), 0),
        _ => (0, 0),
    }
}

/// Copies of blocks of volumes, among the parts of a unit.
fn moved_parts(parts: &[ChunkRecord]) -> impl Iterator<Item = &ChunkRecord> {
    parts.iter().filter(|part| matches!(part, ChunkRecord::Moved { .. }))
}

impl State {
    pub(crate) fn new(opened: Opened, sizes: Sizes) -> State {
        let mut state = State {
            position: opened.position,
            segments: opened.segments,
            active: opened.recent,
            frozen: opened.frozen.map(Arc::new),
            merged: None,
            volume_table: opened.volume_table,
            trees: opened.trees,
            handles: BTreeMap::new(),
            ciphers: BTreeMap::new(),
            usage: opened.usage,
            meta_usage: opened.meta_usage,
            live: 0,
            held: 0,
            packable: 0,
            locked: LockedWeights::default(),
            volume_table_bytes: opened.volume_table_bytes,
            update: Update::Idle,
            marked: opened.superblock.tail.clone(),
            to_mark: BTreeSet::new(),
            write_out: WriteOut::Ended,
            superblock: opened.superblock,
            checkpoints: 0,
            passes: 0,
            admitted: (0, 0),
            zeroed_leaves: 0,
            moving: Moving::default(),
            damaged: BTreeMap::new(),
            nothing_to_clean: false,
            cleaner_gains_nothing: false,
            gain: Gain::default(),
            dedup: ScanProgress::default(),
            host_blocks: 0,
            host_reads: 0,
            cleaned: (0, 0),
            wanted: Wanted::default(),
            ordering: false,
            maintenance: MaintenanceTask::Stopped,
            last_work: None,
            pause: MaintenancePause::None,
            writes_wait: false,
            free_before: None,
            reserved: 0,
            claims: BTreeMap::new(),
            claimed: 0,
            next_claim: 0,
            deleting: 0,
            spare: None,
            sizes,
            evacuated: None,
            evacuation_waits: false,
            recycled: RecycledLists::default(),
            failed: None,
        };
        state.count_space();
        state.volume_table_changed();
        state
    }

    /// Updates the counts of space in use after a checkpoint.
    pub(crate) fn count_space(&mut self) {
        // Reservations are rounded up, so that a thick volume counts as its size in all.
        self.live = (self.usage.total() + self.meta_usage.total()) / BLOCK_WEIGHT_U64;
        self.held = self.usage.held(self.superblock.segment_blocks);
        let locked = self.locked.segments().map(|segment| u64::from(self.locked_in(segment)));
        self.packable = self.held.saturating_sub(locked.sum::<u64>() / BLOCK_WEIGHT_U64);
    }

    /// Updates the counts that admission uses, so that writes do not iterate over volumes.
    pub(crate) fn volume_table_changed(&mut self) {
        let thick = self.volume_table.present().filter(|volume| volume.thick);
        self.reserved = thick.map(reservation).fold(0, u64::saturating_add);
        self.count_claims();
        let deleting = self.volume_table.volumes.values();
        self.deleting = deleting.filter(|volume| volume.state != VolumePresence::Present).count();
        // Shared blocks are in units.
        if !has_units(self.superblock.segment_blocks) {
            return;
        }
        if self.dedup.volumes_changed(&self.volume_table) {
            self.count_unscanned();
        }
    }

    /// Updates the count of segments that are to be scanned for equal blocks.
    pub(crate) fn count_unscanned(&mut self) {
        let segments = &self.segments;
        self.dedup.segments_changed(segments.count(), |segment| segments.is_closed(segment));
    }

    /// True after an opening until the checkpoint that begins the new log.
    pub(crate) fn needs_first_checkpoint(&self) -> bool {
        self.checkpoints == 0 || self.superblock.log != self.position.log
    }

    /// Starts the next work of the maintenance task. Checkpoints and passes of the cleaner take
    /// turns: a long discard wants checkpoints all the time, and writes in a nearly full pool want
    /// passes.
    pub(crate) fn next_work(&mut self) -> Option<MaintenanceWork> {
        if self.wanted.stop || self.check().is_err() {
            return Some(MaintenanceWork::Stop);
        }
        let sealed = self.frozen.is_some();
        let work = match self.pause {
            MaintenancePause::Held => None,
            // The order waits until sealed changes are merged.
            MaintenancePause::None | MaintenancePause::Waiting if sealed => {
                Some(MaintenanceWork::Checkpoint)
            }
            MaintenancePause::None => match (self.wanted.checkpoint, self.wanted.cleaning) {
                (true, true) if self.last_work == Some(MaintenanceWork::Checkpoint) => {
                    Some(MaintenanceWork::Clean)
                }
                (true, _) => Some(MaintenanceWork::Checkpoint),
                (false, true) => Some(MaintenanceWork::Clean),
                (false, false) if self.wanted.sharing => Some(MaintenanceWork::Share),
                (false, false) => None,
            },
            MaintenancePause::Waiting => None,
        };
        self.last_work = work.or(self.last_work);
        self.maintenance = match work {
            Some(_) => MaintenanceTask::Works,
            None => MaintenanceTask::Waits,
        };
        work
    }

    /// Refuses changes after a failure.
    ///
    /// # Errors
    /// The failure of a write or flush.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Fails the pool: no chunk takes effect any more, and every change fails with `error`.
    pub(crate) fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }

    pub(crate) fn reserve(&mut self, payload_blocks: usize) -> Result<LogStart, IoError> {
        self.position.reserve(payload_blocks, &mut self.segments)
    }

    /// Releases the admission of records that took effect or were abandoned.
    pub(crate) fn withdraw(&mut self, records: &[ChunkRecord]) {
        for record in records {
            let (entries, ranges) = entries_of(record);
            self.admitted.0 -= entries;
            self.admitted.1 -= ranges;
        }
    }

    /// Applies written chunks, in order.
    pub(crate) fn apply_written(&mut self, log: Option<&LogDevice>) {
        while let Some(chunk) = self.position.pop_written() {
            let content = chunk.content.expect("it is written");
            if let Some(log) = log {
                log.applied(&chunk.start, 1 + content.checksums.len() as u64);
            }
            self.apply(chunk.start.sequence, chunk.start.block + 1, &content);
            self.recycled.put(content);
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
                ChunkRecord::Data { volume, block, count } => {
                    let effect = self.volume_table.takes_effect(*volume, *block, u64::from(*count));
                    for block in (*block..).take(usize::from(*count)) {
                        let entry = payload.block();
                        if effect {
                            self.active.insert(*volume, block, entry);
                        }
                    }
                }
                ChunkRecord::Zero { volume, block, count } => {
                    if self.volume_table.takes_effect(*volume, *block, *count) {
                        self.active.zero(*volume, *block, *count);
                    }
                }
                ChunkRecord::Moved { volume, block, old, birth } => {
                    let entry = MapEntry { birth: *birth, ..payload.block() };
                    if self.volume_table.takes_effect(*volume, *block, 1) {
                        self.move_block(*volume, *block, *old, entry);
                    }
                }
                ChunkRecord::Unit { volume, block, count, stored } => {
                    let effect = self.volume_table.takes_effect(*volume, *block, u64::from(*count));
                    for (block, entry) in (*block..).zip(payload.unit(*count, *stored)) {
                        if effect {
                            self.active.insert(*volume, block, entry);
                        }
                    }
                }
                ChunkRecord::MovedUnit { stored, parts } => {
                    self.apply_moved_unit(parts, payload.unit(parts.len() as u8, *stored));
                }
                ChunkRecord::Page { .. } => drop(payload.block()),
                order => self.apply_order(order, sequence),
            }
        }
    }

    fn apply_moved_unit(&mut self, parts: &[ChunkRecord], entries: impl Iterator<Item = MapEntry>) {
        for (part, entry) in parts.iter().zip(entries) {
            let ChunkRecord::Moved { volume, block, old, birth } = part else { continue };
            if self.volume_table.takes_effect(*volume, *block, 1) {
                self.move_block(*volume, *block, *old, MapEntry { birth: *birth, ..entry });
            }
        }
    }

    fn apply_order(&mut self, order: &ChunkRecord, sequence: u64) {
        if let ChunkRecord::Snapshot(order) = order {
            // The order is alone in its chunk, so the next chunk begins here.
            self.freeze(self.position.start(), Some((**order).clone()));
        }
        if let ChunkRecord::Promote { volume } = order
            && let Some(origin) = self.volume_table.volumes.get(volume)
            && let Some(origin) = self.volume_table.key_volume(origin.parent)
        {
            self.dedup.promoted(origin.id, *volume);
        }
        apply_order(&mut self.volume_table, &mut self.trees, order, sequence)
            .expect("orders are checked before they are written");
        self.volume_table_changed();
        match order {
            ChunkRecord::Delete { volume } => {
                self.ciphers.remove(volume);
                if let Some(handle) = self.handles.remove(volume) {
                    handle.deleted.store(true, Ordering::Release);
                }
            }
            ChunkRecord::Rollback { volume, .. } => {
                self.active.forget(*volume);
                self.blocks_died(*volume);
            }
            // Snapshots get another volume, of which the key may be here.
            ChunkRecord::Promote { .. } if self.has_locked() => self.forget_surveys(),
            _ => {}
        }
        for (id, handle) in &self.handles {
            if let Some(volume) = self.volume_table.volumes.get(id) {
                handle.blocks.store(volume.blocks, Ordering::Release);
                handle.set(volume);
            }
        }
    }

    /// Applies a copy of the cleaner if the block is still at its old place. A recent change
    /// decides; otherwise the tree has the old place, because the cleaner read it there and waits
    /// for its copies before the next checkpoint begins.
    fn move_block(&mut self, volume: u32, block: u64, old: u64, entry: MapEntry) {
        let recent = self.recent(volume, block);
        if recent.is_none_or(|found| found.location == old) {
            self.active.insert_copy(volume, block, entry);
        }
    }

    /// Tree of a volume or snapshot, and the tables of newer changes. A snapshot that no checkpoint
    /// contains has the tree of its volume and the sealed changes.
    pub(crate) fn view(&self, id: u32) -> Result<MapView<'_>, IoError> {
        let volume = self.volume_table.volumes.get(&id).ok_or(IoError::Unreachable)?;
        let source = volume.source();
        let (tree, active, frozen) = match (self.trees.get(&id), volume.kind) {
            (Some(tree), VolumeKind::Snapshot { .. }) => (tree, None, None),
            (None, _) => {
                (self.trees.get(&source).ok_or(IoError::Unreachable)?, None, self.frozen.as_deref())
            }
            (Some(tree), VolumeKind::Volume) => (tree, Some(&self.active), self.frozen.as_deref()),
        };
        Ok(MapView { tree: *tree, volume: source, active, frozen })
    }

    /// Entry of a block that changed since the checkpoint.
    pub(crate) fn recent(&self, volume: u32, block: u64) -> Option<MapEntry> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.recent.get(volume, block));
        self.active.get(volume, block).or_else(frozen)
    }

    /// Weight of the live blocks of a segment, as of the last checkpoint.
    pub(crate) fn weight_of(&self, segment: u32) -> u32 {
        let segment = segment as usize;
        self.usage.weights[segment].saturating_add(self.meta_usage.weights[segment])
    }

    /// Weight that dead blocks of unlocked units hold in a segment, at most.
    pub(crate) fn held_in(&self, segment: u32) -> u32 {
        let held = self.usage.held_in(segment as usize, self.superblock.segment_blocks);
        held - self.locked.of(segment).min(held)
    }

    /// Weight that dead blocks of locked units hold in a segment, as far as it is surveyed.
    pub(crate) fn locked_in(&self, segment: u32) -> u32 {
        let held = self.usage.held_in(segment as usize, self.superblock.segment_blocks);
        self.locked.of(segment).min(held)
    }

    /// The cleaner may gain something again.
    pub(crate) fn expect_gain(&mut self) {
        (self.nothing_to_clean, self.cleaner_gains_nothing) = (false, false);
        self.gain = Gain::default();
    }

    /// Keeps the cleaner from choosing a segment for a while.
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
}

impl Shared {
    /// Most payload blocks of a chunk. Chunks of this size fill segments exactly.
    pub(crate) fn chunk_blocks(&self) -> usize {
        chunk_blocks(self.storage.layout.segment_blocks()) as usize
    }

    /// True if the pool may have compressed units.
    pub(crate) fn has_units(&self) -> bool {
        has_units(self.storage.layout.segment_blocks())
    }

    /// The open chunk of this core.
    pub(crate) fn gatherer(&self) -> std::rc::Rc<Gatherer> {
        self.gatherers.get_or_init(Gatherer::default)
    }

    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// Errors of the devices; later calls fail with [`IoError::Poisoned`].
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
