//! Sharing: a step of the scan for equal blocks, which reads one closed segment and packs those of
//! its blocks that have equal ones with them.
//!
//! Invariants:
//! - both blocks are read, verified with the checksums of their maps, and compared byte by byte;
//! - blocks of encrypted volumes, and of volumes in different domains, are not packed together;
//! - as in a cleaning pass, no checkpoint runs and no ancestry changes between the lookup in a tree
//!   and the effect of the copy, and the live blocks of a unit are copied together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use super::content::{
    ContentPiece, clusters, copied_size, is_gain, packed, present_size, shared_blocks,
};
use super::contents::{Contents, FoundBlock, Named};
use super::gather::{Live, ReadPayload, of_snapshots, parts, verified};
use super::owners::{AncestryNode, Owners};
use super::piece::{LivePiece, PieceKey, live_entries};
use super::{Copies, State};
use crate::dedup::Domain;
use crate::dedup::fingerprint::Fingerprints;
use crate::dedup::index::{Hint, Index};
use crate::dedup::progress::ScanPosition;
use crate::limits::{BLOCK_BYTES, DEDUP_BATCH_BLOCKS, MOVING_MAX, UNIT_BLOCKS};
use crate::manage::shared::Shared;
use crate::ondisk::chunk::ChunkHeader;
use crate::ondisk::unit::{UnitPlace, block_of};
use crate::work_slices::WorkSlices;

/// A piece that may be shared, with the blocks that a chunk header names for it.
struct Candidate {
    found: Vec<FoundBlock>,
    live: [Option<Live>; UNIT_BLOCKS],
    content: ContentPiece,
}

/// Pieces with equal blocks, which are packed together.
#[derive(Default)]
struct Batch {
    pieces: Vec<Candidate>,
    /// Numbers of the pieces, by their first stored block.
    numbers: BTreeMap<u64, usize>,
    /// Live blocks of the pieces.
    blocks: usize,
}

/// Why a step ended early.
enum ScanError {
    /// Nothing was changed by it.
    Read(IoError),
    /// A write of copies has failed.
    Write(IoError),
}

impl From<IoError> for ScanError {
    fn from(error: IoError) -> ScanError {
        ScanError::Read(error)
    }
}

/// How far a step came in its segment.
enum StepEnd {
    Scanned,
    /// Other work is due.
    At(ScanPosition),
    Unreadable,
}

/// Where the stored blocks of a piece are read.
enum Source<'a> {
    /// From the payload of a chunk, which is read once.
    Payload(&'a ChunkHeader, &'a mut ReadPayload),
    /// By themselves.
    Device,
}

/// Chunk header that was read last, with its first block.
type LastHeader = Option<(u64, Contents)>;

/// A step of the scan.
struct Scan {
    index: Index,
    fingerprints: Fingerprints,
    copies: Copies,
    batch: Batch,
    /// First stored blocks of the pieces that were copied. Copies that are not written yet are in
    /// no map.
    copied: BTreeSet<u64>,
    /// Chunk of the block that an entry of the index names.
    last: LastHeader,
    slices: WorkSlices,
    /// True if copies were skipped because the pool has no room for them now.
    lacks_segments: bool,
    /// Blocks that the copies save.
    shared_blocks: usize,
}

impl Candidate {
    /// First stored block.
    fn block(&self) -> u64 {
        block_of(self.found[0].location)
    }

    /// Locations of the live blocks, in order.
    fn locations(&self) -> impl Iterator<Item = u64> {
        live_entries(&self.content.piece.parts).map(|entry| entry.location)
    }

    /// The block at a location.
    fn at(&self, location: u64) -> Option<&[u8]> {
        let index = self.locations().position(|own| own == location)?;
        self.content.blocks.chunks(BLOCK_BYTES).nth(index)
    }
}

impl Batch {
    fn add(&mut self, piece: Candidate) {
        let number = self.pieces.len();
        if let Entry::Vacant(free) = self.numbers.entry(piece.block()) {
            free.insert(number);
            self.blocks += piece.content.piece.live();
            self.pieces.push(piece);
        }
    }
}

impl Shared {
    /// Scans one segment for blocks that have equal ones, and makes a checkpoint if it has copied
    /// any.
    ///
    /// # Errors
    /// Errors of the devices. The pool then fails every change.
    pub(crate) async fn share(&self) -> Result<(), IoError> {
        let (crowded, begin) = {
            let mut state = self.state.lock();
            (2 * state.active.len() > state.sizes.recent, state.begin_step())
        };
        if crowded {
            self.checkpoint().await?;
        }
        let Some((segment, scan)) = self.begin_scan() else {
            self.progress.notify();
            return Ok(());
        };
        let mut scan = scan;
        let (end, done) = match self.scan_segment(segment, &mut scan).await {
            Ok(end) => (end, Ok(())),
            Err(ScanError::Read(IoError::ReadFault)) => (StepEnd::Scanned, Ok(())),
            // The cleaner and a scrub report what cannot be read. A path that was lost may be back
            // when the segment is due again.
            Err(ScanError::Read(_)) => (StepEnd::Unreadable, Ok(())),
            Err(ScanError::Write(error)) => (StepEnd::Scanned, Err(error)),
        };
        let written = match done {
            Ok(()) => self.write_copies(&mut scan.copies, true).await,
            failed => failed,
        };
        let Scan { index, fingerprints, copies, lacks_segments, shared_blocks, .. } = scan;
        {
            let segment_blocks = u64::from(self.storage.layout.segment_blocks());
            let mut state = self.state.lock();
            state.dedup.return_index((fingerprints, index));
            // What had no room is scanned again after the checkpoint.
            let is_again = copies.blocks > 0 && copies.skipped;
            match end {
                StepEnd::Scanned if is_again => state.dedup.scan_later(segment, None),
                StepEnd::Scanned | StepEnd::At(_) if lacks_segments => {
                    let until = state.host_blocks + segment_blocks;
                    state.dedup.pause_until(until);
                }
                StepEnd::Scanned => state.dedup.scanned(segment),
                StepEnd::At(at) => state.dedup.scan_later(segment, Some(at).filter(|_| !is_again)),
                StepEnd::Unreadable => {
                    let until = state.host_blocks + segment_blocks;
                    state.dedup.pause_until(until);
                }
            }
        }
        if let Err(error) = written {
            return Err(self.fail_cleaning(error));
        }
        match copies.blocks {
            0 => self.progress.notify(),
            _ => self.checkpoint().await?,
        }
        let mut state = self.state.lock();
        state.dedup.freed((shared_blocks * BLOCK_BYTES) as u64);
        state.end_step(begin);
        Ok(())
    }

    /// The next segment to scan, and limits of its copies. If the pool has no room for copies, asks
    /// for cleaning, or waits for writes of hosts.
    fn begin_scan(&self) -> Option<(u32, Scan)> {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        if !state.can_share() {
            return None;
        }
        let layout = &self.storage.layout;
        let segment_blocks = u64::from(layout.segment_blocks());
        let pool_blocks = u64::from(layout.usable_segments()) * segment_blocks;
        if state.dedup.resize_index(pool_blocks) {
            state.count_unscanned();
        }
        let spare = self.idle_blocks(state);
        if spare < UNIT_BLOCKS as u64 {
            if state.nothing_to_clean {
                state.dedup.pause_until(state.host_blocks + segment_blocks);
            } else {
                state.wanted.cleaning = true;
            }
            return None;
        }
        let (segments, damaged, checkpoints) = (&state.segments, &state.damaged, state.checkpoints);
        let segment = state.dedup.next(|segment| {
            let until = damaged.get(&segment);
            segments.is_closed(segment) && until.is_none_or(|until| checkpoints > *until)
        })?;
        let mut copies = self.no_copies(state);
        copies.blocks_max = (state.sizes.recent / 2).min(spare as usize);
        copies.leaves_max = state.sizes.recent / 2;
        copies.pages_max = state.sizes.moving.max((spare as usize).min(MOVING_MAX));
        let (fingerprints, index) = state.dedup.take_index(pool_blocks);
        let scan = Scan {
            index,
            fingerprints,
            copies,
            batch: Batch::default(),
            copied: BTreeSet::new(),
            last: None,
            slices: WorkSlices::default(),
            lacks_segments: false,
            shared_blocks: 0,
        };
        Some((segment, scan))
    }

    async fn scan_segment(&self, segment: u32, scan: &mut Scan) -> Result<StepEnd, ScanError> {
        let layout = &self.storage.layout;
        let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
        let from = self.state.lock().dedup.position_in(segment);
        let from = from.unwrap_or(ScanPosition { chunk: blocks.start, pieces: 0 });
        let mut at = from.chunk;
        while at < blocks.end {
            let scanned = if at == from.chunk { from.pieces } else { 0 };
            let Some(header) = self.header_at(at).await? else { break };
            let contents = Contents::of(&header);
            let mut payload = None;
            for (number, named) in (1..).zip(&contents.named).skip(scanned) {
                let found = match named {
                    Named::Block(found) => std::slice::from_ref(found),
                    Named::Unit(first) => contents.blocks_of(*first),
                    Named::Page(_) | Named::Metadata(_) => continue,
                };
                let source = Source::Payload(&header, &mut payload);
                if let Some(candidate) = self.candidate(found, source, scan).await? {
                    self.find_equal(candidate, at, scan).await?;
                }
                if scan.batch.blocks >= DEDUP_BATCH_BLOCKS {
                    self.pack_batch(scan).await?;
                }
                if self.state.lock().ends_step() {
                    self.pack_batch(scan).await?;
                    return Ok(StepEnd::At(ScanPosition { chunk: at, pieces: number }));
                }
            }
            at += header.blocks();
        }
        self.pack_batch(scan).await?;
        Ok(StepEnd::Scanned)
    }

    /// The live blocks among these, read and verified, if all of them may be shared.
    async fn candidate(
        &self,
        found: &[FoundBlock],
        source: Source<'_>,
        scan: &mut Scan,
    ) -> Result<Option<Candidate>, IoError> {
        let is_copied = scan.copied.contains(&found[0].block());
        if is_copied || !self.may_share(found, &scan.copies.owners) {
            return Ok(None);
        }
        let live = self.live(found, &scan.copies.owners).await?;
        // The block that an entry of the index names as a header may be data of a host, which may
        // look like a header.
        let is_own = |(found, live): (&FoundBlock, &Option<Live>)| {
            live.is_none_or(|live| live.entry.birth == found.birth)
        };
        if !found.iter().zip(&live).all(is_own) {
            return Ok(None);
        }
        let Some(domain) = self.domain(found, &live) else { return Ok(None) };
        let Some(first) = live.iter().flatten().next() else { return Ok(None) };
        let (at, len) = (first.entry.block(), first.entry.stored_blocks() * BLOCK_BYTES);
        let alone;
        let stored = match source {
            Source::Payload(header, payload) => {
                let bytes = self.payload(header, payload).await?;
                let at = (at - header.block - 1) as usize * BLOCK_BYTES;
                bytes.get(at..at + len).unwrap_or_default()
            }
            Source::Device => {
                alone = self.storage.read(at, buf::acquire_more(len).await).await?;
                &alone[..]
            }
        };
        scan.slices.spend(1).await;
        let Some((stored, codec)) = verified(stored, &live, &PieceKey::Plain) else {
            return Ok(None);
        };
        let piece = LivePiece {
            unit: found[0].unit().map(|unit| UnitPlace { index: 0, ..unit }),
            codec,
            cold: self.cold_codec(first.top.id),
            parts: parts(found, &live),
            stored: stored.to_vec(),
            key: PieceKey::Plain,
        };
        let Some(blocks) = piece.contents(|_, block| block.to_vec()) else { return Ok(None) };
        let content = ContentPiece { piece, domain, blocks: blocks.concat() };
        Ok(Some(Candidate { found: found.to_vec(), live, content }))
    }

    /// False if no volume that could have one of these blocks has deduplication on. This needs no
    /// page of a map.
    fn may_share(&self, found: &[FoundBlock], owners: &Owners) -> bool {
        let state = self.state.lock();
        let has_domain = |top: AncestryNode| {
            let volume = state.volume_table.key_volume(top.id);
            volume.is_some_and(|volume| state.dedup.domain(volume.id).is_some())
        };
        found.iter().any(|found| owners.tops(found.place.volume, found.birth).any(has_domain))
    }

    /// Domain of the live blocks, if they have the same, and none was copied in this step.
    fn domain(&self, found: &[FoundBlock], live: &[Option<Live>; UNIT_BLOCKS]) -> Option<Domain> {
        let state = self.state.lock();
        let mut domain = None;
        for (found, live) in found.iter().zip(live) {
            let Some(live) = live else { continue };
            let volume = state.volume_table.key_volume(live.top.id)?;
            let own = state.dedup.domain(volume.id)?;
            let is_copied = state.moving.blocks.contains_key(&found.location);
            if is_copied || domain.is_some_and(|domain| domain != own) {
                return None;
            }
            domain = Some(own);
        }
        domain
    }

    /// Looks up the blocks of a piece in the index. With an equal block elsewhere, both pieces are
    /// added to the batch; otherwise the block is entered into the index.
    async fn find_equal(
        &self,
        candidate: Candidate,
        header: u64,
        scan: &mut Scan,
    ) -> Result<(), IoError> {
        let domain = candidate.content.domain;
        let mut has_equal = false;
        for location in candidate.locations().collect::<Vec<_>>() {
            let Some(block) = candidate.at(location) else { continue };
            let fingerprint = scan.fingerprints.of(domain, block);
            let distance = (block_of(location) - header) as u8;
            let hint = scan.index.get(fingerprint);
            if let Some(hint) = hint
                && block_of(hint.location) == candidate.block()
                && candidate.at(hint.location) == Some(block)
                && hint.distance == distance
            {
                continue;
            }
            if let Some(hint) = hint
                && block_of(hint.location) != candidate.block()
                && self.is_equal(hint, domain, block, scan).await?
            {
                has_equal = true;
                continue;
            }
            scan.index.put(fingerprint, Hint { location, distance });
        }
        if has_equal {
            scan.batch.add(candidate);
        }
        Ok(())
    }

    /// True if the block that an entry of the index names is equal to this one and may be shared
    /// with it. Its piece is in the batch then.
    async fn is_equal(
        &self,
        hint: Hint,
        domain: Domain,
        block: &[u8],
        scan: &mut Scan,
    ) -> Result<bool, IoError> {
        let equals = |other: &Candidate| {
            other.content.domain == domain && other.at(hint.location) == Some(block)
        };
        if let Some(number) = scan.batch.numbers.get(&block_of(hint.location)) {
            return Ok(equals(&scan.batch.pieces[*number]));
        }
        let other = match self.hinted(hint, scan).await {
            Err(IoError::ReadFault) => None,
            other => other?,
        };
        let other = other.filter(|other| equals(other));
        let is_equal = other.is_some();
        other.into_iter().for_each(|other| scan.batch.add(other));
        Ok(is_equal)
    }

    /// The piece that an entry of the index names, if it is still there.
    async fn hinted(&self, hint: Hint, scan: &mut Scan) -> Result<Option<Candidate>, IoError> {
        let layout = &self.storage.layout;
        let block = block_of(hint.location);
        let header = block.saturating_sub(hint.distance.into());
        let segment = layout.segment_of(hint.location);
        if !self.state.lock().can_clean(segment) || header < layout.first_block(segment) {
            return Ok(None);
        }
        if scan.last.as_ref().is_none_or(|(at, _)| *at != header) {
            let bytes = self.storage.read_one(header).await?;
            let Ok(decoded) = ChunkHeader::decode(&bytes, header, layout) else { return Ok(None) };
            scan.last = Some((header, Contents::of(&decoded)));
        }
        let Some((_, contents)) = &scan.last else { return Ok(None) };
        let found = contents.piece_at(block).map(<[FoundBlock]>::to_vec);
        match found {
            Some(found) => self.candidate(&found, Source::Device, scan).await,
            None => Ok(None),
        }
    }

    /// Packs the pieces of the batch, as far as that saves blocks and has room.
    async fn pack_batch(&self, scan: &mut Scan) -> Result<(), ScanError> {
        let Batch { pieces, .. } = std::mem::take(&mut scan.batch);
        let mut places = Vec::with_capacity(pieces.len());
        let mut contents = Vec::with_capacity(pieces.len());
        for Candidate { found, live, content } in pieces {
            places.push((found, live));
            contents.push(content);
        }
        let copies = &mut scan.copies;
        for cluster in clusters(&contents) {
            let mut copied = Vec::new();
            for group in &cluster.groups {
                copied.extend(packed(&contents, group));
                scan.slices.spend(1).await;
            }
            let (present, taken) = (present_size(&contents, &cluster), copied_size(&copied));
            if !is_gain(present, taken) {
                continue;
            }
            let parts: Vec<_> = copied.iter().flat_map(|copied| &copied.parts).cloned().collect();
            let has_segments = self.has_segments(copies);
            if !copies.has_room(&parts) || !has_segments {
                copies.skipped = true;
                scan.lacks_segments |= !has_segments;
                continue;
            }
            let of = |index: &usize| of_snapshots(&places[*index].0, &places[*index].1);
            let shared: Vec<_> = cluster.pieces.iter().flat_map(of).collect();
            if !self.add_holders(&shared, copies).await? {
                continue;
            }
            copies.count(&parts);
            scan.copied.extend(cluster.pieces.iter().map(|index| places[*index].0[0].block()));
            scan.shared_blocks += shared_blocks(&contents, &cluster, present, taken);
            copied.into_iter().for_each(|copied| copies.packer.put(copied));
            self.write_copies(copies, false).await.map_err(ScanError::Write)?;
        }
        Ok(())
    }

    /// True if the pool has free segments beyond those that the next checkpoint needs after these
    /// copies.
    fn has_segments(&self, copies: &Copies) -> bool {
        let mut state = self.state.lock();
        let (blocks, changes) = copies.packer.unwritten();
        let unwritten = blocks.div_ceil(state.sizes.payload as usize);
        let needed = unwritten + state.checkpoint_segments(changes);
        state.segments.free() > needed.max(self.idle_floor(&mut state) + unwritten)
    }

    /// Free segments that a scan leaves: those that hosts and orders can count on.
    fn idle_floor(&self, state: &mut State) -> usize {
        let supply = state.supply();
        supply.left_free(&state.sizes, 0) + 1
    }

    /// Blocks of copies that a scan may write: half of those above the floor.
    fn idle_blocks(&self, state: &mut State) -> u64 {
        let floor = self.idle_floor(state).max(state.checkpoint_segments(0));
        let spare = state.segments.free().saturating_sub(floor);
        spare as u64 * u64::from(self.storage.layout.segment_blocks()) / 2
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
