//! Volume of a pool, as a [`BlockDevice`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::limits::EXTENTS_MAX;
use flagstone_blockdev::window::run_all;
use flagstone_blockdev::{BlockDevice, Extent, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, buf};

use super::handle::VolumeHandle;
use super::pool::{Pool, PoolGuard};
use super::shared::{Shared, State};
use super::space::WriteCost;
use crate::checkpoint::leaf_end;
use crate::compress::{compressed_with, decompressed_with};
use crate::crypt::VolumeCipher;
use crate::id::PoolId;
use crate::limits::{
    BLOCK_BYTES, UNIT_BLOCKS, UNITS_PER_SLICE, ZERO_BY_BLOCK, ZERO_RECORD_BLOCKS,
    ZERO_RECORD_LEAVES,
};
use crate::log::gather::{ChunkPayload, GatheredChunk};
use crate::log::segments::ReadGuard;
use crate::map::recent::zero_entries;
use crate::map::tree::{LeafLookup, PathLookup};
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::FANOUT;
use crate::ondisk::unit::{BLOCK_WEIGHT, Codec};
use crate::ondisk::volume_table::VolumeRecord;
use crate::work_slices::WorkSlices;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Most blocks that one step of a read looks up. Their entries take 1.5 KiB of its future, at 24 B
/// each.
const LOOKUP_BLOCKS: usize = 64;

/// Most leaves that a call of [`BlockDevice::allocated`] visits.
const ALLOCATED_LEAVES: usize = 256;

/// Options of a new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Size, in bytes: a positive multiple of 4,096.
    pub size_bytes: u64,
    /// True to reserve the size.
    pub thick: bool,
    /// Text that the layers above store with the volume; 2 KiB in total.
    pub properties: BTreeMap<String, String>,
}

/// A volume, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name.
    pub name: String,
    /// Identifier for hosts.
    pub uuid: PoolId,
    /// Size, in bytes.
    pub size_bytes: u64,
    /// Data as of the last checkpoint, before compression, in bytes.
    pub used_bytes: u64,
    /// Space that it takes, compressed, as of the last checkpoint, in bytes.
    pub stored_bytes: u64,
    /// The size is reserved.
    pub thick: bool,
    /// Newest snapshot of another volume from which it continues.
    pub origin: Option<String>,
    /// True if changes were lost with the log device. The volume cannot be opened until the
    /// operator accepts that ([`crate::Pool::give_up_tail`]).
    pub incomplete: bool,
    /// Whether it is encrypted.
    pub encryption: VolumeEncryption,
    /// Text that the layers above store with the volume.
    pub properties: BTreeMap<String, String>,
}

/// Encryption of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeEncryption {
    /// It is not encrypted.
    #[default]
    None,
    /// It is encrypted, and its key is missing: it can be neither read nor written.
    Locked,
    /// It is encrypted, and can be used.
    Unlocked,
}

impl VolumeInfo {
    pub(crate) fn of(state: &State, record: &VolumeRecord) -> VolumeInfo {
        let volume_table = &state.volume_table;
        VolumeInfo {
            name: record.name.clone(),
            uuid: record.uuid,
            size_bytes: record.blocks * BLOCK,
            used_bytes: record.mapped * BLOCK,
            stored_bytes: record.weight.div_ceil(BLOCK_WEIGHT.into()) * BLOCK,
            thick: record.thick,
            origin: volume_table
                .origin(record.id)
                .and_then(|snapshot| volume_table.snapshot_name(snapshot)),
            incomplete: record.incomplete,
            encryption: match record.encryption {
                None => VolumeEncryption::None,
                Some(_) if state.ciphers.contains_key(&record.id) => VolumeEncryption::Unlocked,
                Some(_) => VolumeEncryption::Locked,
            },
            properties: record.properties.clone(),
        }
    }
}

/// A volume of an open pool. Keeps the pool open.
pub struct PoolVolume {
    guard: Arc<PoolGuard>,
    io: VolumeIo,
}

/// State of a call; cheap to clone into its future.
#[derive(Clone)]
struct VolumeIo {
    shared: Arc<Shared>,
    volume: u32,
    handle: Arc<VolumeHandle>,
}

impl PoolVolume {
    pub(crate) fn new(guard: Arc<PoolGuard>, volume: u32, handle: Arc<VolumeHandle>) -> PoolVolume {
        let io = VolumeIo { shared: guard.0.clone(), volume, handle };
        PoolVolume { guard, io }
    }

    /// Properties and usage of the volume; `None` after its deletion.
    pub fn info(&self) -> Option<VolumeInfo> {
        let state = self.guard.0.state.lock();
        let record = state.volume_table.volumes.get(&self.io.volume);
        let record = record.filter(|record| record.is_present_volume());
        record.map(|record| VolumeInfo::of(&state, record))
    }

    pub(super) fn pool(&self) -> Pool {
        Pool { guard: self.guard.clone() }
    }

    fn check(&self, checked: Result<(), IoError>) -> Result<(), IoError> {
        if self.io.handle.deleted.load(Ordering::Acquire) {
            return Err(IoError::Unreachable);
        }
        checked
    }

    fn zero(&self, offset: u64, len: u64, fua: bool) -> IoFuture<()> {
        let checked = self.check(self.geometry().check_change(offset, len));
        IoFuture::checked(checked, || {
            let io = self.io.clone();
            IoFuture::later(async move {
                io.zero(offset / BLOCK..(offset + len) / BLOCK).await?;
                if fua { io.shared.flush().await } else { Ok(()) }
            })
        })
    }
}

impl BlockDevice for PoolVolume {
    fn geometry(&self) -> Geometry {
        Geometry {
            volatile_cache: self.io.shared.storage.has_volatile_cache(),
            read_only: self.io.handle.read_only,
            ..Geometry::new(
                self.io.handle.blocks.load(Ordering::Acquire) * BLOCK,
                BLOCK_BYTES as u32,
            )
        }
    }

    fn must_reopen(&self) -> bool {
        self.io.shared.state.lock().check() == Err(IoError::Poisoned)
    }

    fn used_bytes(&self) -> Option<u64> {
        let state = self.io.shared.state.lock();
        let record = state.volume_table.volumes.get(&self.io.volume)?;
        // Reserved space counts as used.
        Some(if record.thick { record.blocks } else { record.mapped } * BLOCK)
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let checked = self.check(self.geometry().check(offset, len));
        IoFuture::checked(checked, || {
            let io = self.io.clone();
            let blocks = offset / BLOCK..(offset + len) / BLOCK;
            IoFuture::later(async move { io.allocated(blocks).await })
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.check(self.geometry().check_transfer(offset, buf.len()));
        IoFuture::checked(checked, || self.io.begin_read(offset / BLOCK, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let geometry = self.geometry();
        let checked = geometry.check_change(offset, data.len() as u64);
        let checked = checked.and_then(|()| geometry.check_transfer(offset, data.len()));
        IoFuture::checked(self.check(checked), || self.io.begin_write(offset / BLOCK, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        let io = self.io.clone();
        IoFuture::later(async move { io.shared.flush().await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.zero(offset, len, false)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.zero(offset, len, flags.fua)
    }
}

/// Admission of a write whose data is being compressed: given back if the write is dropped.
struct Admitted<'a> {
    shared: &'a Shared,
    demand: WriteCost,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.admitted.0 -= self.demand.entries;
        drop(state);
        self.shared.progress.notify();
    }
}

/// Chunks with the data of a write, awaited at the end of the write.
#[derive(Default)]
struct Chunks {
    first: Option<Rc<GatheredChunk>>,
    more: Vec<Rc<GatheredChunk>>,
}

impl Chunks {
    fn push(&mut self, chunk: Rc<GatheredChunk>) {
        let last = self.more.last().or(self.first.as_ref());
        if last.is_some_and(|last| Rc::ptr_eq(last, &chunk)) {
            return;
        }
        match self.first {
            None => self.first = Some(chunk),
            Some(_) => self.more.push(chunk),
        }
    }

    async fn outcome(self) -> Result<(), IoError> {
        for chunk in self.first.into_iter().chain(self.more) {
            chunk.outcome().await?;
        }
        Ok(())
    }
}

/// Splits blocks into runs of data and runs of zeroes. Runs of zeroes are at most as long as one
/// record.
fn runs(data: &Buf) -> impl Iterator<Item = (Range<usize>, bool)> {
    let zeroes = buf::zeroes(BLOCK_BYTES);
    let is_zero = move |block: usize| data[block * BLOCK_BYTES..][..BLOCK_BYTES] == zeroes[..];
    let blocks = data.len() / BLOCK_BYTES;
    let mut at = 0;
    std::iter::from_fn(move || {
        let zero = (at < blocks).then(|| is_zero(at))?;
        let start = at;
        at += 1;
        while at < blocks && is_zero(at) == zero && (at - start) < ZERO_BY_BLOCK as usize {
            at += 1;
        }
        Some((start..at, zero))
    })
}

impl VolumeIo {
    /// A write that is admitted at once joins the open chunk in the same turn. Its future then only
    /// waits for the chunk.
    fn begin_write(&self, block: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let codec = self.codec();
        let most = match codec {
            Some(_) => self.shared.chunk_blocks().min(UNITS_PER_SLICE * UNIT_BLOCKS),
            None => self.shared.chunk_blocks(),
        };
        let fits = data.len() <= most * BLOCK_BYTES;
        let admitted = fits.then(|| self.shared.try_admit(&self.demand(&data))).flatten();
        let io = self.clone();
        match admitted {
            Some(Err(error)) => IoFuture::ready(Err(error)),
            Some(Ok(())) => {
                let mut chunks = Chunks::default();
                let compress = |bytes: &[u8]| codec.and_then(|codec| self.compress(codec, bytes));
                self.add(block, &data, &mut chunks, compress);
                IoFuture::later(async move {
                    chunks.outcome().await?;
                    if fua { io.shared.flush().await } else { Ok(()) }
                })
            }
            None => IoFuture::later(async move {
                io.write(block, data).await?;
                if fua { io.shared.flush().await } else { Ok(()) }
            }),
        }
    }

    /// A read of one block whose entry is in memory needs no task of its own.
    fn begin_read(&self, block: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let place = (buf.len() == BLOCK_BYTES).then(|| self.find_now(block)).flatten();
        let Some((entry, guard)) = place else {
            let io = self.clone();
            return IoFuture::later(async move { io.read(block, buf).await });
        };
        if entry.is_hole() {
            buf.fill(0);
            return IoFuture::ready(Ok(buf));
        }
        if entry == MapEntry::LOST {
            return IoFuture::ready(Err(IoError::ReadFault));
        }
        if entry.unit().is_some() {
            let io = self.clone();
            return IoFuture::later(async move {
                let _guard = guard;
                io.read_unit(&[entry], block, buf).await
            });
        }
        match self.shared.storage.read(entry.location, buf).try_now() {
            Ok(read) => IoFuture::ready(read.and_then(|read| self.verified(&entry, block, read))),
            Err(later) => {
                let io = self.clone();
                IoFuture::later(async move {
                    let _guard = guard;
                    let read = io.shared.storage.recheck(entry, later.await).await?;
                    io.verified(&entry, block, read)
                })
            }
        }
    }

    /// Entry of a block, if it is in memory, and a guard that keeps its segment from being reused.
    fn find_now(&self, block: u64) -> Option<(MapEntry, ReadGuard)> {
        let mut state = self.shared.state.lock();
        state.host_reads += 1;
        let view = state.view(self.volume).ok()?;
        let (recent, tree, guard) = (view.recent(block), view.tree, state.guard());
        drop(state);
        let entry = recent.or_else(|| tree.lookup_cached(&self.shared.cache, block))?;
        Some((entry, guard))
    }

    /// The content of a block, if it is what was written.
    fn verified(&self, entry: &MapEntry, block: u64, mut read: BufMut) -> Result<BufMut, IoError> {
        self.open_block(entry, block, &mut read).map(|()| read)
    }

    /// Compares a block with its checksum, and decrypts it.
    ///
    /// # Errors
    /// As [`VolumeIo::check_block`].
    fn open_block(&self, entry: &MapEntry, block: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        self.check_block(entry, block, bytes)?;
        if let Some(cipher) = self.cipher() {
            cipher.decrypt_blocks(block, bytes);
        }
        Ok(())
    }

    fn cipher(&self) -> Option<&Arc<VolumeCipher>> {
        self.handle.cipher.as_ref()
    }

    /// Compares stored blocks with their checksum.
    ///
    /// # Errors
    /// [`IoError::ReadFault`] if they differ.
    fn check_block(&self, entry: &MapEntry, block: u64, bytes: &[u8]) -> Result<(), IoError> {
        match entry.matches(bytes) {
            true => Ok(()),
            false => Err(self.damaged(entry, block, "block is damaged")),
        }
    }

    fn damaged(&self, entry: &MapEntry, block: u64, what: &str) -> IoError {
        let device = &self.shared.storage.device_of(entry.location).name;
        let (location, volume) = (entry.block(), self.volume);
        tracing::error!(device, location, volume, block, "{what}");
        IoError::ReadFault
    }

    /// Reads blocks of one compressed unit, whose entries these are, into `part`. It reads and
    /// decompresses all of the unit.
    async fn read_unit(
        &self,
        entries: &[MapEntry],
        block: u64,
        mut part: BufMut,
    ) -> Result<BufMut, IoError> {
        let first = entries[0];
        let unit = first.unit().expect("the caller looked");
        if !self.shared.storage.layout.holds(&first) {
            return Err(self.damaged(&first, block, "compressed unit crosses a segment"));
        }
        // The command holds memory already.
        let memory = buf::acquire_more(usize::from(unit.stored) * BLOCK_BYTES).await;
        let stored = self.shared.storage.read_entry(first, memory).await?;
        self.check_block(&first, block, &stored)?;
        let (blocks, cipher) = (unit.blocks.into(), self.cipher().map(|cipher| &**cipher));
        let copied = decompressed_with(&stored, blocks, cipher, |data| {
            for (bytes, entry) in part.chunks_mut(BLOCK_BYTES).zip(entries) {
                let index = entry.unit().map_or(0, |unit| usize::from(unit.index));
                bytes.copy_from_slice(&data[index * BLOCK_BYTES..][..BLOCK_BYTES]);
            }
        });
        match copied {
            Some(()) => Ok(part),
            None => Err(self.damaged(&first, block, "compressed unit cannot be decompressed")),
        }
    }

    fn demand(&self, data: &Buf) -> WriteCost {
        let zeroes: usize = runs(data).filter(|(_, zero)| *zero).map(|(run, _)| run.len()).sum();
        let entries = data.len() / BLOCK_BYTES;
        let reserved = self.handle.thick.load(Ordering::Acquire);
        let blocks = (entries - zeroes) as u64;
        WriteCost { entries, ranges: 0, leaves: 0, blocks, reserved }
    }

    async fn write(&self, block: u64, data: Buf) -> Result<(), IoError> {
        let mut chunks = Chunks::default();
        let mut slices = WorkSlices::default();
        let chunk_blocks = self.shared.chunk_blocks();
        let in_units = self.codec().is_some();
        let mut at = 0;
        while at < data.len() {
            let first = block + (at / BLOCK_BYTES) as u64;
            // No piece ends within a unit that may be compressed.
            let end = first + chunk_blocks as u64;
            let cut = if in_units { (end % UNIT_BLOCKS as u64) as usize } else { 0 };
            let piece_bytes = (chunk_blocks - cut) * BLOCK_BYTES;
            let piece = data.slice(at..(at + piece_bytes).min(data.len()));
            self.write_piece(first, piece, &mut slices, &mut chunks).await?;
            at += piece_bytes;
        }
        chunks.outcome().await
    }

    /// Adds data to the log, at most one chunk. Other tasks run while it is compressed; then all of
    /// it joins the open chunk in one turn.
    async fn write_piece(
        &self,
        block: u64,
        data: Buf,
        slices: &mut WorkSlices,
        chunks: &mut Chunks,
    ) -> Result<(), IoError> {
        let demand = self.demand(&data);
        self.shared.admit(demand).await?;
        let admitted = Admitted { shared: &self.shared, demand };
        let mut units = VecDeque::new();
        if let Some(codec) = self.codec() {
            for (run, _) in runs(&data).filter(|(_, zero)| !zero) {
                for unit in units_of(block, run) {
                    units.push_back(self.compress(codec, &data[bytes_of(&unit)]));
                    slices.spend(1).await;
                }
            }
        }
        std::mem::forget(admitted);
        self.add(block, &data, chunks, |_| units.pop_front().flatten());
        Ok(())
    }

    /// Adds admitted data to open chunks. `compress` returns the stored blocks of each unit in
    /// turn, if it shrinks.
    fn add(
        &self,
        block: u64,
        data: &Buf,
        chunks: &mut Chunks,
        mut compress: impl FnMut(&[u8]) -> Option<Buf>,
    ) {
        let gatherer = self.shared.gatherer();
        let volume = self.volume;
        let add_plain = |run: Range<usize>, chunks: &mut Chunks| {
            if !run.is_empty() {
                let block = block + run.start as u64;
                let record = ChunkRecord::Data { volume, block, count: run.len() as u16 };
                let bytes = data.slice(bytes_of(&run));
                let payload = match self.cipher() {
                    None => ChunkPayload::Stored(bytes),
                    Some(cipher) => {
                        ChunkPayload::Encrypted { bytes, block, cipher: cipher.clone() }
                    }
                };
                chunks.push(gatherer.add(&self.shared, record, Some(payload)));
            }
        };
        for (run, zero) in runs(data) {
            if zero {
                let (block, count) = (block + run.start as u64, run.len() as u64);
                let record = ChunkRecord::Zero { volume, block, count };
                chunks.push(gatherer.add(&self.shared, record, None));
                continue;
            }
            // Blocks of the run from here on are not compressed so far.
            let mut plain = run.start;
            for unit in units_of(block, run.clone()) {
                if let Some(payload) = compress(&data[bytes_of(&unit)]) {
                    add_plain(plain..unit.start, chunks);
                    let (block, count) = (block + unit.start as u64, unit.len() as u8);
                    let stored = (payload.len() / BLOCK_BYTES) as u8;
                    let record = ChunkRecord::Unit { volume, block, count, stored };
                    let payload = ChunkPayload::Stored(payload);
                    chunks.push(gatherer.add(&self.shared, record, Some(payload)));
                    plain = unit.end;
                }
            }
            add_plain(plain..run.end, chunks);
        }
    }

    /// Codec of writes.
    fn codec(&self) -> Option<Codec> {
        self.handle.compression().on_write().filter(|_| self.shared.has_units())
    }

    /// The stored blocks of a unit, if it shrinks; without memory it is stored as it is.
    fn compress(&self, codec: Codec, data: &[u8]) -> Option<Buf> {
        if data.len() <= BLOCK_BYTES || !self.handle.give_up.tries() {
            return None;
        }
        let cipher = self.cipher().map(|cipher| &**cipher);
        let stored = compressed_with(codec, data, cipher, |stored| {
            let mut memory = buf::try_alloc(stored.len())?;
            memory.copy_from_slice(stored);
            Some(memory.freeze())
        });
        self.handle.give_up.count(stored.is_some());
        stored.flatten()
    }

    /// Number of blocks that the next record zeroes, and of the map leaves that have some of them:
    /// a checkpoint reads each. Leaves of later changes are not counted: the changes are bounded.
    async fn zeroes_of_record(&self, blocks: Range<u64>) -> Result<(u64, u64), IoError> {
        let end = blocks.end.min(blocks.start + ZERO_RECORD_BLOCKS);
        if zero_entries(end - blocks.start) > 0 {
            return Ok((end - blocks.start, 0));
        }
        let (tree, _guard) = {
            let state = self.shared.state.lock();
            (state.view(self.volume)?.tree, state.guard())
        };
        let (mut at, mut leaves) = (blocks.start, 0);
        while at < end && leaves < ZERO_RECORD_LEAVES {
            let found = tree.find_leaf(&self.shared.storage, &self.shared.cache, at).await;
            at = match found {
                Ok(LeafLookup::Holes(count)) => at.saturating_add(count),
                Ok(LeafLookup::Leaf(..)) => {
                    leaves += 1;
                    leaf_end(at / FANOUT as u64)
                }
                // The checkpoint decides about the page. There may be a leaf in every place.
                Err(_) => {
                    let rest = ZERO_RECORD_LEAVES - leaves;
                    leaves = ZERO_RECORD_LEAVES;
                    leaf_end(at / FANOUT as u64 + rest - 1)
                }
            };
        }
        Ok((at.min(end) - blocks.start, leaves))
    }

    async fn zero(&self, blocks: Range<u64>) -> Result<(), IoError> {
        let mut block = blocks.start;
        while block < blocks.end {
            let (count, leaves) = self.zeroes_of_record(block..blocks.end).await?;
            // A short record counts by its blocks.
            let entries = zero_entries(count);
            let ranges = usize::from(entries == 0);
            let demand = WriteCost { entries, ranges, leaves, blocks: 0, reserved: true };
            self.shared.admit(demand).await?;
            let record = ChunkRecord::Zero { volume: self.volume, block, count };
            self.shared.gatherer().add(&self.shared, record, None).outcome().await?;
            block += count;
        }
        Ok(())
    }

    async fn read(&self, block: u64, buf: BufMut) -> Result<BufMut, IoError> {
        let len = buf.len();
        match self.read_once(block, buf).await {
            Err(IoError::ReadFault) if len > BLOCK_BYTES && self.shared.storage.pairs.is_some() => {
                self.read_blocks(block, len).await
            }
            read => read,
        }
    }

    /// Reads block by block, each from a copy that has it. The memory of the failed read is
    /// released, so this one holds none while it waits for more.
    async fn read_blocks(&self, block: u64, len: usize) -> Result<BufMut, IoError> {
        let mut whole = buf::alloc(len).await;
        for (block, bytes) in (block..).zip(whole.chunks_mut(BLOCK_BYTES)) {
            let read = self.read_part(block, buf::alloc_small(BLOCK_BYTES)).await?;
            bytes.copy_from_slice(&read);
        }
        Ok(whole)
    }

    async fn read_once(&self, block: u64, mut buf: BufMut) -> Result<BufMut, IoError> {
        if buf.len() <= LOOKUP_BLOCKS * BLOCK_BYTES {
            return self.read_part(block, buf).await;
        }
        let mut block = block;
        let mut done = Ok(None);
        while !buf.is_empty() {
            let part = buf.split_to(buf.len().min(LOOKUP_BLOCKS * BLOCK_BYTES));
            let blocks = (part.len() / BLOCK_BYTES) as u64;
            join(&mut done, self.read_part(block, part).await?);
            block += blocks;
        }
        Ok(done?.expect("a read has blocks"))
    }

    /// Reads at most [`LOOKUP_BLOCKS`].
    async fn read_part(&self, block: u64, mut buf: BufMut) -> Result<BufMut, IoError> {
        let count = buf.len() / BLOCK_BYTES;
        let mut entries = [MapEntry::HOLE; LOOKUP_BLOCKS];
        // Bit set of blocks that changed after the checkpoint.
        let mut recent = 0_u64;
        // The guard keeps the segments of all blocks looked up here.
        let (tree, _guard) = {
            let mut state = self.shared.state.lock();
            state.host_reads += 1;
            let view = state.view(self.volume)?;
            for (index, block) in (0..count).zip(block..) {
                if let Some(entry) = view.recent(block) {
                    entries[index] = entry;
                    recent |= 1 << index;
                }
            }
            (view.tree, state.guard())
        };
        let mut leaf: Option<(u64, PathLookup)> = None;
        for (index, block) in (0..count).zip(block..) {
            if recent >> index & 1 == 1 {
                continue;
            }
            let number = block / FANOUT as u64;
            if leaf.as_ref().is_none_or(|(found, _)| *found != number) {
                let (storage, cache) = (&self.shared.storage, &self.shared.cache);
                leaf = Some((number, tree.find(storage, cache, block).await?));
            }
            if let Some((_, PathLookup::Leaf(page))) = &leaf {
                entries[index] = page.entries[block as usize % FANOUT];
            }
        }
        let entries = &entries[..count];
        if entries.contains(&MapEntry::LOST) {
            return Err(IoError::ReadFault);
        }
        let mut at = 0;
        let calls = std::iter::from_fn(|| {
            let run = self.run_of(entries.get(at..).filter(|rest| !rest.is_empty())?);
            let mut part = buf.split_to(run * BLOCK_BYTES);
            let first = entries[at];
            at += run;
            let start = at - run;
            Some(if first.is_hole() {
                part.fill(0);
                IoFuture::ready(Ok(part))
            } else if first.unit().is_some() {
                let (io, block) = (self.clone(), block + start as u64);
                let mut unit = [MapEntry::HOLE; UNIT_BLOCKS];
                unit[..run].copy_from_slice(&entries[start..at]);
                IoFuture::later(async move { io.read_unit(&unit[..run], block, part).await })
            } else if self.shared.storage.pairs.is_some() {
                let (io, entries) = (self.clone(), entries[start..at].to_vec());
                IoFuture::later(async move { io.read_copies(&entries, part).await })
            } else {
                self.shared.storage.read(first.location, part)
            })
        });
        let mut done = Ok(None);
        run_all(calls, |part| join(&mut done, part)).await?;
        let mut done = done?.expect("a read has blocks");
        let blocks = entries.iter().zip(done.chunks_mut(BLOCK_BYTES));
        for ((entry, bytes), block) in blocks.zip(block..) {
            if !entry.is_hole() && entry.unit().is_none() {
                self.open_block(entry, block, bytes)?;
            }
        }
        Ok(done)
    }

    /// Reads consecutive blocks of a pool with redundancy from one leg, or a single one from a leg
    /// that has it.
    ///
    /// # Errors
    /// [`IoError::ReadFault`] if single blocks may be right.
    async fn read_copies(&self, entries: &[MapEntry], part: BufMut) -> Result<BufMut, IoError> {
        let (storage, len) = (&self.shared.storage, part.len());
        let is_right = |read: &BufMut| {
            entries.iter().zip(read.chunks(BLOCK_BYTES)).all(|(entry, bytes)| entry.matches(bytes))
        };
        let read = storage.read(entries[0].location, part).await;
        if let Ok(read) = read
            && is_right(&read)
            && !storage.take_fault(entries[0].location, len)
        {
            return Ok(read);
        }
        if entries.len() > 1 {
            return Err(IoError::ReadFault);
        }
        let mut memory = buf::alloc_small(BLOCK_BYTES);
        memory.copy_from_slice(&storage.read_entry_block(entries[0]).await?);
        Ok(memory)
    }

    /// Number of leading entries that are all holes, blocks of one compressed unit, or consecutive
    /// blocks of one segment.
    fn run_of(&self, entries: &[MapEntry]) -> usize {
        let first = entries[0];
        let layout = &self.shared.storage.layout;
        let continues = |(index, entry): &(u64, &MapEntry)| {
            if first.is_hole() {
                return entry.is_hole();
            }
            if first.unit().is_some() {
                return first.is_with(entry) && *index < UNIT_BLOCKS as u64;
            }
            entry.location == first.location + index
                && layout.segment_of(entry.location) == layout.segment_of(first.location)
        };
        (0..).zip(entries).take_while(continues).count()
    }

    async fn allocated(&self, blocks: Range<u64>) -> Result<Vec<Extent>, IoError> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = blocks.start;
        for _ in 0..ALLOCATED_LEAVES {
            if at >= blocks.end {
                break;
            }
            let leaf_end = ((at / FANOUT as u64 + 1) * FANOUT as u64).min(blocks.end);
            // Recent changes and tree must be read under one lock.
            let (tree, _guard, recent, any_recent) = {
                let state = self.shared.state.lock();
                let view = state.view(self.volume)?;
                let is_hole = |block| Some(view.recent(block)?.is_hole());
                let recent: Vec<Option<bool>> = (at..leaf_end).map(is_hole).collect();
                (view.tree, state.guard(), recent, !view.is_merged())
            };
            let found = tree.find(&self.shared.storage, &self.shared.cache, at).await?;
            let end = match found {
                PathLookup::Holes(count) if !any_recent => blocks.end.min(at.saturating_add(count)),
                _ => leaf_end,
            };
            for (block, recent) in (at..leaf_end).zip(recent) {
                let below = || match &found {
                    PathLookup::Leaf(page) => page.entries[block as usize % FANOUT].is_hole(),
                    PathLookup::Holes(_) => true,
                };
                push_extent(&mut extents, 1, recent.unwrap_or_else(below));
            }
            if end > leaf_end {
                push_extent(&mut extents, end - leaf_end, true);
            }
            at = end;
            if extents.len() > EXTENTS_MAX {
                extents.truncate(EXTENTS_MAX);
                break;
            }
        }
        Ok(extents)
    }
}

/// Parts of a run that may become a unit each, in data that begins at `block`.
fn units_of(block: u64, run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = run.start;
    std::iter::from_fn(move || {
        let unit = at..run.end.min(at + unit_max(block + at as u64));
        at = unit.end;
        Some(unit).filter(|unit| !unit.is_empty())
    })
}

/// Most blocks of a unit from a block on. Units end at multiples of their size, so that writes of
/// the same place replace whole units, and at the end of a leaf, so that the cleaner changes one
/// leaf for each.
fn unit_max(block: u64) -> usize {
    let before = |multiple: usize| multiple - (block % multiple as u64) as usize;
    before(UNIT_BLOCKS).min(before(FANOUT))
}

fn bytes_of(blocks: &Range<usize>) -> Range<usize> {
    blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES
}

fn push_extent(extents: &mut Vec<Extent>, blocks: u64, is_hole: bool) {
    match extents.last_mut() {
        Some(last) if last.is_hole == is_hole => last.len += blocks * BLOCK,
        _ => extents.push(Extent { len: blocks * BLOCK, is_hole }),
    }
}

/// Joins parts of one buffer, in order. A block that was read from another copy is in other memory:
/// then the result is a [`IoError::ReadFault`], and the caller reads each block.
fn join(done: &mut Result<Option<BufMut>, IoError>, part: BufMut) {
    *done = match std::mem::replace(done, Ok(None)) {
        Ok(None) => Ok(Some(part)),
        Ok(Some(mut whole)) => match whole.unsplit(part) {
            Ok(()) => Ok(Some(whole)),
            Err(_) => Err(IoError::ReadFault),
        },
        Err(error) => Err(error),
    };
}
