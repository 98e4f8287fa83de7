//! Replay: applies the chunks after the checkpoint, up to the first missing or damaged one.

use std::ops::Range;

use flagstone_blockdev::IoError;
use flagstone_runtime::{BufMut, buf};

use crate::checkpoint::Frozen;
use crate::error::PoolError;
use crate::limits::{
    BLOCK_BYTES, CHUNK_PAYLOAD_BLOCKS, REPLAYED_MAX, REPLAYED_RANGES_MAX, WRITE_OUT_BLOCKS,
};
use crate::log::device::LogDevice;
use crate::log::tail::TailWrite;
use crate::manage::superblock::changed;
use crate::map::orders::{Trees, apply_order};
use crate::map::recent::Recent;
use crate::map::tree::Tree;
use crate::ondisk::chunk::{ChunkHeader, ChunkRecord, SnapshotOrder};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::legs::LEGS;
use crate::ondisk::superblock::{LogStart, Superblock};
use crate::ondisk::unit::Payload;
use crate::ondisk::volume_table::VolumeTable;
use crate::ondisk::{Block, FormatError, checksum};
use crate::pairs::Pairs;
use crate::read_retries::{FailedRead, ReadFailure, ReadRetries};
use crate::storage::{NamedDevice, Storage};

/// Place from which blocks of the log are read.
enum Place<'a> {
    /// A slot of the log device.
    Slot(&'a LogDevice, u32),
    /// The devices of the table.
    Table(&'a Storage),
    /// A leg of the device of a pool with redundancy.
    Leg(&'a Storage, &'a Pairs, usize),
}

impl Place<'_> {
    /// Reads blocks of one segment.
    async fn read(&self, block: u64, count: usize) -> Result<BufMut, IoError> {
        let memory = buf::alloc(count * BLOCK_BYTES).await;
        match self {
            Place::Slot(log, slot) => log.read(*slot, log.split(block).1, memory).await,
            Place::Table(storage) => storage.read(block, memory).await,
            Place::Leg(storage, pairs, leg) => {
                let place = storage.layout.place(block);
                pairs.read_leg(place.device, *leg, place.offset, memory).await
            }
        }
    }

    /// Device that stores a block.
    fn device(&self, block: u64) -> &NamedDevice {
        match self {
            Place::Slot(log, _) => &log.named,
            Place::Table(storage) | Place::Leg(storage, ..) => {
                &storage.devices[storage.layout.place(block).device]
            }
        }
    }
}

/// Adds blocks to the pieces to write out, and merges adjacent ones.
fn add_piece(pieces: &mut Vec<TailWrite>, segment: u32, slot: u32, first: u32, count: u32) {
    match pieces.last_mut() {
        Some(last)
            if last.segment == segment
                && last.first + last.count == first
                && last.count + count <= WRITE_OUT_BLOCKS =>
        {
            last.count += count;
        }
        _ => pieces.push(TailWrite { segment, slot, first, count }),
    }
}

/// Chunks after a gap that are evidence of lost flushed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossEvidence {
    /// Every chunk that says that the missing one was durable.
    Any,
    /// Only such chunks with host changes. Used when no volume is marked: the log device then had
    /// no host data that the other devices lack, but may have had the only copy of checkpoint
    /// pages.
    OfHosts,
    /// No chunk: the operator accepted the loss of the end of the log.
    Accepted,
}

/// State after a replay.
pub(crate) struct Replay<'a> {
    storage: &'a Storage,
    retries: ReadRetries,
    /// Retries of reads from the log device, where blocks have the same numbers.
    log_retries: ReadRetries,
    log: u64,
    /// True if volumes may be encrypted.
    encryption: bool,
    next: LogStart,
    pub(crate) recent: Recent,
    pub(crate) volume_table: VolumeTable,
    pub(crate) trees: Trees,
    /// Changes replayed before a snapshot.
    pub(crate) frozen: Option<Frozen>,
    /// Segments of the log, in order.
    pub(crate) segments: Vec<u32>,
    /// Chunks found only on the log device, to be written out.
    pub(crate) on_log: Vec<TailWrite>,
    pub(crate) proof: LossEvidence,
    /// Makes both legs of a device equal, for every chunk that is applied.
    pub(crate) equalizes: bool,
}

impl<'a> Replay<'a> {
    /// A replay that has not begun.
    pub(crate) fn new(
        storage: &'a Storage,
        superblock: &Superblock,
        recent: Recent,
        volume_table: VolumeTable,
        trees: Vec<Tree>,
    ) -> Replay<'a> {
        Replay {
            storage,
            retries: ReadRetries::default(),
            log_retries: ReadRetries::default(),
            log: superblock.log,
            encryption: superblock.encryption,
            next: superblock.start,
            recent,
            volume_table,
            trees: trees.into_iter().map(|tree| (tree.volume, tree)).collect(),
            frozen: None,
            segments: vec![storage.layout.segment_of(superblock.start.block)],
            on_log: Vec::new(),
            proof: LossEvidence::Any,
            equalizes: false,
        }
    }

    /// Sequence of the first missing chunk.
    pub(crate) fn sequence(&self) -> u64 {
        self.next.sequence
    }

    /// Applies all chunks.
    ///
    /// # Errors
    /// Errors of the devices; [`PoolError::LostChunk`] if flushed data would be lost.
    pub(crate) async fn run(&mut self) -> Result<(), PoolError> {
        loop {
            if let Some(header) = self.chunk(self.next.block, self.next.slot).await? {
                self.apply(&header)?;
                continue;
            }
            let following = self.storage.layout.first_block(self.next.following);
            let is_new = !self.segments.contains(&self.next.following);
            let slot = self.slot_after(self.next.slot);
            match self.chunk(following, slot).await? {
                Some(header) if is_new => {
                    self.segments.push(self.next.following);
                    self.next.slot = slot;
                    self.apply(&header)?;
                }
                _ => break,
            }
        }
        match self.proof {
            LossEvidence::Any | LossEvidence::OfHosts => self.search_later().await,
            LossEvidence::Accepted => Ok(()),
        }
    }

    fn slot_after(&self, slot: u32) -> u32 {
        (slot + 1) % self.storage.log.as_ref().map_or(1, |log| log.slots)
    }

    /// Next chunk, if it is whole and begins at `block`: from its slot on the log device, otherwise
    /// from its place on the devices of the table.
    async fn chunk(&mut self, block: u64, slot: u32) -> Result<Option<ChunkHeader>, PoolError> {
        if let Some(log) = &self.storage.log {
            let place = Place::Slot(log, slot);
            if let Some(header) = self.chunk_at(block, &place).await? {
                // Do not write blocks out twice: the checkpoint may refer to them, and a torn
                // rewrite would damage it.
                let written_out = self.chunk_at(block, &Place::Table(self.storage)).await?;
                if written_out.as_ref() != Some(&header) {
                    let (segment, first) = log.split(block);
                    add_piece(&mut self.on_log, segment, slot, first, header.blocks() as u32);
                }
                return Ok(Some(header));
            }
        }
        match &self.storage.pairs {
            Some(pairs) => self.chunk_of_legs(block, pairs).await,
            None => self.chunk_at(block, &Place::Table(self.storage)).await,
        }
    }

    /// Next chunk from a leg in sync that has it. A crash may have torn it on the other leg.
    async fn chunk_of_legs(
        &self,
        block: u64,
        pairs: &Pairs,
    ) -> Result<Option<ChunkHeader>, PoolError> {
        let place = self.storage.layout.place(block);
        let (mut failed, mut is_read) = (None, false);
        for leg in pairs.in_sync(place.device) {
            match self.chunk_at(block, &Place::Leg(self.storage, pairs, leg)).await {
                Ok(Some(header)) => {
                    if self.equalizes {
                        let len = header.blocks() as usize * BLOCK_BYTES;
                        let is_right = |chunk: &[u8]| {
                            let (first, payload) = chunk.split_at(BLOCK_BYTES);
                            let sums = payload.chunks(BLOCK_BYTES).map(checksum);
                            self.header(first, block).is_some_and(|own| own == header)
                                && sums.eq(header.checksums.iter().copied())
                        };
                        let equal = pairs.equalize(place.device, leg, place.offset, len, is_right);
                        let equal = equal.await;
                        let device = || self.storage.device_of(block).name.clone();
                        equal.map_err(|error| PoolError::Device { device: device(), error })?;
                    }
                    return Ok(Some(header));
                }
                Ok(None) => is_read = true,
                // The last leg in sync does not fail.
                Err(error) => {
                    let _last = pairs.fail_leg(LEGS * place.device + leg, IoError::Unreachable);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if !is_read => Err(error),
            _ => Ok(None),
        }
    }

    async fn chunk_at(
        &self,
        block: u64,
        place: &Place<'_>,
    ) -> Result<Option<ChunkHeader>, PoolError> {
        let Some(read) = self.read(block, 1, place).await? else { return Ok(None) };
        let Some(header) = self.header(&read, block) else { return Ok(None) };
        if header.sequence != self.next.sequence {
            return Ok(None);
        }
        let payload = header.checksums.len();
        if payload == 0 {
            return Ok(Some(header));
        }
        let Some(read) = self.read(block + 1, payload, place).await? else { return Ok(None) };
        let sums = read.chunks(BLOCK_BYTES).map(checksum);
        Ok(sums.eq(header.checksums.iter().copied()).then_some(header))
    }

    /// Reads blocks, and repeats failed reads. `None` if only these blocks are unreadable, which a
    /// torn write may have caused.
    async fn read(
        &self,
        block: u64,
        count: usize,
        place: &Place<'_>,
    ) -> Result<Option<BufMut>, PoolError> {
        let attempt = async || {
            let read = place.read(block, count).await;
            read.map_err(|error| FailedRead { location: block, error })
        };
        let retries = match place {
            Place::Slot(..) => &self.log_retries,
            Place::Table(_) | Place::Leg(..) => &self.retries,
        };
        match retries.read_of(|location| place.device(location), || false, attempt).await {
            Ok(read) => Ok(Some(read)),
            Err(ReadFailure::Defect) => Ok(None),
            Err(ReadFailure::Device(FailedRead { location, error })) => {
                let device = place.device(location).name.clone();
                Err(PoolError::Device { device, error })
            }
        }
    }

    fn header(&self, bytes: &[u8], block: u64) -> Option<ChunkHeader> {
        let bytes: &Block = bytes.try_into().expect("a block");
        let header = ChunkHeader::decode(bytes, block, &self.storage.layout).ok()?;
        (header.log == self.log).then_some(header)
    }

    fn apply(&mut self, header: &ChunkHeader) -> Result<(), PoolError> {
        let bad = |reason| PoolError::Metadata {
            device: self.storage.device_of(header.block).name.clone(),
            block: header.block,
            reason: FormatError::Field(reason),
        };
        let mut payload = Payload::of(header.block + 1, header.sequence, &header.checksums);
        let mut snapshot = None;
        for record in &header.records {
            match record {
                ChunkRecord::Data { volume, block, count } => {
                    let effect = self.takes_effect(*volume, *block, u64::from(*count));
                    let effect = effect.ok_or_else(|| bad("record"))?;
                    for block in (*block..).take(usize::from(*count)) {
                        let entry = payload.block();
                        if effect {
                            self.recent.insert(*volume, block, entry);
                        }
                    }
                }
                ChunkRecord::Zero { volume, block, count } => {
                    let effect = self.takes_effect(*volume, *block, *count);
                    if effect.ok_or_else(|| bad("record"))? {
                        self.recent.zero(*volume, *block, *count);
                    }
                }
                ChunkRecord::Moved { volume, block, old, birth } => {
                    let entry = MapEntry { birth: *birth, ..payload.block() };
                    self.move_block(*volume, *block, *old, entry).ok_or_else(|| bad("record"))?;
                }
                ChunkRecord::Unit { volume, block, count, stored } => {
                    let effect = self.takes_effect(*volume, *block, u64::from(*count));
                    let effect = effect.ok_or_else(|| bad("record"))?;
                    for (block, entry) in (*block..).zip(payload.unit(*count, *stored)) {
                        if effect {
                            self.recent.insert(*volume, block, entry);
                        }
                    }
                }
                ChunkRecord::MovedUnit { stored, parts } => {
                    let entries = payload.unit(parts.len() as u8, *stored);
                    for (part, entry) in parts.iter().zip(entries) {
                        let ChunkRecord::Moved { volume, block, old, birth } = part else {
                            continue;
                        };
                        let entry = MapEntry { birth: *birth, ..entry };
                        let moved = self.move_block(*volume, *block, *old, entry);
                        moved.ok_or_else(|| bad("record"))?;
                    }
                }
                ChunkRecord::Page { .. } => drop(payload.block()),
                ChunkRecord::Snapshot(order) => snapshot = Some((**order).clone()),
                ChunkRecord::Volume(volume) if volume.encryption.is_some() && !self.encryption => {
                    return Err(bad("encryption"));
                }
                order => {
                    apply_order(&mut self.volume_table, &mut self.trees, order, header.sequence)
                        .map_err(|_| bad("order"))?;
                    if let ChunkRecord::Rollback { volume, .. } = order {
                        self.recent.forget(*volume);
                    }
                }
            }
        }
        let segment_blocks = u64::from(self.storage.layout.segment_blocks());
        let end = header.block + header.blocks();
        self.next = LogStart {
            sequence: header.sequence + 1,
            // At the end of a segment, the next chunk can only be in the following segment.
            block: if end.is_multiple_of(segment_blocks) { header.block } else { end },
            following: header.following,
            slot: self.next.slot,
        };
        if let Some(order) = snapshot {
            self.seal(order, header.sequence).map_err(|_| bad("snapshot"))?;
        }
        // A hostile log could otherwise take all memory, because a header of 4 KiB has thousands of
        // zeroed blocks.
        match self.is_bounded() {
            true => Ok(()),
            false => Err(bad("number of changes")),
        }
    }

    /// True if the log has no more changes than its writer may admit.
    fn is_bounded(&self) -> bool {
        let sealed = self.frozen.as_ref().map(|frozen| &frozen.recent);
        let tables = [Some(&self.recent), sealed];
        let sum = |count: fn(&Recent) -> usize| tables.into_iter().flatten().map(count).sum();
        let (entries, ranges): (usize, usize) = (sum(Recent::len), sum(Recent::ranges_len));
        entries <= REPLAYED_MAX && ranges <= REPLAYED_RANGES_MAX
    }

    /// Seals the replayed changes for a snapshot. At most one snapshot is replayed, because the
    /// next one waits for a checkpoint.
    fn seal(&mut self, order: SnapshotOrder, sequence: u64) -> Result<(), FormatError> {
        if self.frozen.is_some() {
            return Err(FormatError::Field("snapshot"));
        }
        let (volume_table, fresh) =
            (self.volume_table.clone(), Recent::new(self.recent.capacity(), self.log));
        let recent = std::mem::replace(&mut self.recent, fresh);
        self.volume_table.snapshot(&order, sequence)?;
        let (start, log, snapshot) = (self.next, self.log, Some(order));
        self.frozen = Some(Frozen { recent, start, log, volume_table, snapshot });
        Ok(())
    }

    /// The cleaner's copy takes effect if the block is where the cleaner found it: without a recent
    /// change the map has it there. None if it cannot be in the log.
    fn move_block(&mut self, volume: u32, block: u64, old: u64, entry: MapEntry) -> Option<()> {
        let effect = self.takes_effect(volume, block, 1)?;
        let sealed = || self.frozen.as_ref()?.recent.get(volume, block);
        let recent = self.recent.get(volume, block).or_else(sealed);
        if effect && recent.is_none_or(|found| found.location == old) {
            self.recent.insert(volume, block, entry);
        }
        Some(())
    }

    /// Whether a change of blocks takes effect; none if it cannot be in the log: of a snapshot, or
    /// of a volume that never existed.
    fn takes_effect(&self, volume: u32, block: u64, count: u64) -> Option<bool> {
        let is_snapshot = self.volume_table.present_snapshot(volume).is_some();
        let possible = volume < self.volume_table.next_id && !is_snapshot;
        possible.then(|| self.volume_table.takes_effect(volume, block, count))
    }

    /// Searches the rest of the last segment, and the following ones while they have later chunks,
    /// for a chunk that declares the missing one durable.
    async fn search_later(&self) -> Result<(), PoolError> {
        let layout = &self.storage.layout;
        let segment = layout.segment_of(self.next.block);
        let (mut latest, mut slot) = (self.next.sequence, self.next.slot);
        let rest = self.next.block..layout.first_block(segment + 1);
        let mut next = self.search(rest, slot, &mut latest).await?.or(Some(self.next.following));
        while let Some(following) = next {
            let blocks = layout.first_block(following)..layout.first_block(following + 1);
            slot = self.slot_after(slot);
            next = self.search(blocks, slot, &mut latest).await?;
        }
        Ok(())
    }

    /// Searches blocks of a segment; returns the segment that follows the `latest` chunk, if that
    /// chunk is here.
    async fn search(
        &self,
        blocks: Range<u64>,
        slot: u32,
        latest: &mut u64,
    ) -> Result<Option<u32>, PoolError> {
        let mut following = None;
        if let Some(log) = &self.storage.log {
            following = self.search_at(blocks.clone(), &Place::Slot(log, slot), latest).await?;
        }
        let in_table = self.search_at(blocks, &Place::Table(self.storage), latest).await?;
        Ok(in_table.or(following))
    }

    async fn search_at(
        &self,
        blocks: Range<u64>,
        place: &Place<'_>,
        latest: &mut u64,
    ) -> Result<Option<u32>, PoolError> {
        let mut following = None;
        let mut first = blocks.start;
        while first < blocks.end {
            let count = (blocks.end - first).min(CHUNK_PAYLOAD_BLOCKS as u64);
            match place.read(first, count as usize).await {
                Ok(read) => {
                    for (bytes, block) in read.chunks(BLOCK_BYTES).zip(first..) {
                        following = self.later(bytes, block, latest)?.or(following);
                    }
                }
                // An unreadable block is no evidence, but the blocks beside it may be.
                Err(_) => {
                    for block in first..first + count {
                        if let Some(bytes) = self.read(block, 1, place).await? {
                            following = self.later(&bytes, block, latest)?.or(following);
                        }
                    }
                }
            }
            first += count;
        }
        Ok(following)
    }

    /// If the block is the header of a chunk later than `latest`: the segment that follows this
    /// chunk.
    fn later(&self, bytes: &[u8], block: u64, latest: &mut u64) -> Result<Option<u32>, PoolError> {
        let header = self.header(bytes, block);
        let Some(later) = header.filter(|header| header.sequence > *latest) else {
            return Ok(None);
        };
        let proves = match self.proof {
            LossEvidence::Any => true,
            LossEvidence::OfHosts => later.records.iter().any(|record| !changed(record).is_empty()),
            LossEvidence::Accepted => false,
        };
        if proves && later.durable > self.next.sequence {
            return Err(PoolError::LostChunk {
                device: self.storage.device_of(self.next.block).name.clone(),
                sequence: self.next.sequence,
                later: later.sequence,
            });
        }
        *latest = later.sequence;
        Ok(Some(later.following))
    }
}
