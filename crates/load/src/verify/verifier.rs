//! Verifier: the expected state of every block, and the check of read data.
//!
//! The writes of a block are numbered from 1, its *generations*. A block has *candidates*: the
//! writes that may be its content now. A write becomes a candidate when it is issued. When it
//! completes, it removes every candidate that had ended before it was issued. A read that returned
//! one candidate hides the candidates that it proves overwritten or never executed.
//!
//! For power losses each block has a *floor*: the oldest generation that flushes and durable writes
//! leave possible. Evidence from reads counts for later reads only, because a read makes nothing
//! durable.
//!
//! Most blocks usually have one candidate, which takes 12 bytes and two bits per block. Blocks with
//! more candidates are in a map meanwhile.

use std::collections::BTreeMap;

use super::stamp::{SECTOR_BYTES, StampReading, Stamper};
use super::version::{BlockVersion, Content, Initial};
use super::violation::{Expected, Violation, ViolationKind};
use crate::limits::VERIFY_BLOCKS_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// Completed, and durable (FUA).
    Durable,
    /// Failed or interrupted: it took effect before this was reported, or never will.
    Unknown,
}

/// Identity and extent of the verified data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifierConfig {
    /// Identifies the run; different from every earlier run on the device.
    pub run_id: u64,
    /// Identifies the writer within the run.
    pub writer: u32,
    /// Offset of block 0 on the device, in bytes.
    pub offset_bytes: u64,
    /// Block size of the device, in bytes: a multiple of 512.
    pub block_bytes: u32,
    /// Number of blocks; at most [`VERIFY_BLOCKS_MAX`].
    pub blocks: u64,
    /// A power failure may lose completed writes until a flush.
    pub volatile_cache: bool,
    /// Content before the run.
    pub initial: Initial,
}

/// A write that may be the content of a block. Times are the verifier's own count of events.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    version: BlockVersion,
    start: u64,
    end: Option<u64>,
    /// The oldest write that may take effect after this one. Once durable, it leaves no older one
    /// possible.
    oldest_peer: BlockVersion,
    /// Reads may return it. Hidden candidates can return only through a power loss.
    visible: bool,
}

/// Content after a power loss: any generation from the floor to `newest`.
#[derive(Clone, Copy, Debug)]
struct Leftover {
    oldest: BlockVersion,
    newest: u32,
    end: u64,
    visible: bool,
}

/// A block with more than one candidate.
#[derive(Clone, Debug, Default)]
struct Open {
    candidates: Vec<Candidate>,
    leftover: Option<Leftover>,
}

#[derive(Debug, PartialEq, Eq)]
#[must_use = "report how the write ended"]
pub struct WriteTicket {
    block: u32,
    version: BlockVersion,
    start: u64,
}

#[derive(Debug)]
#[must_use = "check what the read brought"]
pub struct ReadTicket {
    block: u32,
    start: u64,
    issued: u32,
    floor: BlockVersion,
    seen: Seen,
}

#[derive(Debug)]
enum Seen {
    Settled(BlockVersion),
    Leftover(Leftover),
    Open(Box<Open>),
}

impl Seen {
    /// Start of the first candidate that matches the content; 0 if no longer known.
    fn earliest(&self, found: &StampReading) -> Option<u64> {
        match self {
            Seen::Settled(version) => version.matches(found).then_some(0),
            Seen::Leftover(_) => Some(0),
            Seen::Open(open) if open.leftover.is_some_and(|leftover| leftover.visible) => Some(0),
            Seen::Open(open) => {
                let visible = open.candidates.iter().filter(|candidate| candidate.visible);
                visible.filter(|other| other.version.matches(found)).map(|other| other.start).min()
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
#[must_use = "report how the flush ended"]
pub struct FlushTicket(u64);

impl FlushTicket {
    /// Its number, from 1 in order.
    pub fn id(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn new(bits: usize) -> BitSet {
        BitSet(vec![0; bits.div_ceil(64)])
    }

    fn get(&self, bit: u32) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets the bit and returns its old value.
    fn set(&mut self, bit: u32, value: bool) -> bool {
        let was = self.get(bit);
        let mask = 1 << (bit % 64);
        let word = &mut self.0[bit as usize / 64];
        *word = if value { *word | mask } else { *word & !mask };
        was
    }
}

/// Expected content of a range of blocks.
#[derive(Debug)]
pub struct Verifier {
    config: VerifierConfig,
    stamper: Stamper,
    /// Counts events, to order ends and starts.
    clock: u64,
    /// Time of the last power loss.
    power_lost: u64,
    issued: Vec<u32>,
    /// Version of each block with a single candidate.
    settled: Vec<BlockVersion>,
    floor: Vec<BlockVersion>,
    open: BTreeMap<u32, Open>,
    /// Blocks with content from a power loss that was not read since.
    left_over: BitSet,
    /// Newest generation of zeroes, if any.
    zeroed: BTreeMap<u32, u32>,
    /// Blocks with writes completed since the start of the last flush.
    dirty: Vec<u32>,
    is_dirty: BitSet,
    /// Floors that flushes in flight will raise.
    flushes: BTreeMap<u64, Vec<(u32, BlockVersion)>>,
    flush_count: u64,
}

impl Verifier {
    /// Starts with [`Initial`] content everywhere.
    ///
    /// # Panics
    /// If there are no blocks or more than [`VERIFY_BLOCKS_MAX`], or the block size is not a
    /// multiple of 512 bytes.
    pub fn new(config: VerifierConfig) -> Verifier {
        assert!((1..=VERIFY_BLOCKS_MAX).contains(&config.blocks), "{} blocks", config.blocks);
        let block_bytes = config.block_bytes as usize;
        assert!(block_bytes > 0 && block_bytes.is_multiple_of(SECTOR_BYTES), "{block_bytes} bytes");
        let blocks = config.blocks as usize;
        let initial = BlockVersion::initial(config.initial);
        Verifier {
            stamper: Stamper::new(config.run_id, config.writer),
            config,
            clock: 0,
            power_lost: 0,
            issued: vec![0; blocks],
            settled: vec![initial; blocks],
            floor: vec![initial; blocks],
            open: BTreeMap::new(),
            left_over: BitSet::new(blocks),
            zeroed: BTreeMap::new(),
            dirty: Vec::new(),
            is_dirty: BitSet::new(blocks),
            flushes: BTreeMap::new(),
            flush_count: 0,
        }
    }

    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// Takes over the state of an earlier run: block `block` contains `oldest` or any later
    /// generation of that run. Writes in flight at its end are unknown, so any stamp of that run is
    /// accepted. Blocks taken over cannot be written.
    pub(crate) fn expect_recorded(&mut self, block: u32, oldest: u32) {
        let index = block as usize;
        let initial = BlockVersion::initial(self.config.initial);
        let oldest = if oldest == 0 { initial } else { BlockVersion::new(oldest, Content::Stamps) };
        self.floor[index] = oldest;
        self.issued[index] = BlockVersion::LAST;
        self.left_over.set(block, true);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn block(&self, block: u64) -> u32 {
        assert!(block < self.config.blocks, "block {block} of {}", self.config.blocks);
        block as u32
    }

    fn place(&self, block: u32) -> u64 {
        self.config.offset_bytes + u64::from(block) * u64::from(self.config.block_bytes)
    }

    fn leftover_of(&self, block: u32) -> Option<Leftover> {
        self.left_over.get(block).then(|| Leftover {
            oldest: self.floor[block as usize],
            newest: self.issued[block as usize],
            end: self.clock,
            visible: true,
        })
    }

    /// The candidates of the block, in the map from now on.
    fn open(&mut self, block: u32) -> &mut Open {
        let leftover = self.leftover_of(block);
        let settled = self.settled[block as usize];
        let clock = self.clock;
        self.left_over.set(block, false);
        self.open.entry(block).or_insert_with(|| match leftover {
            Some(leftover) => Open { candidates: Vec::new(), leftover: Some(leftover) },
            None => {
                // Its times are no longer known: `start` and `end` make the weakest claim.
                let end = Some(clock);
                let (version, oldest_peer) = (settled, settled);
                let only = Candidate { version, start: 0, end, oldest_peer, visible: true };
                Open { candidates: vec![only], leftover: None }
            }
        })
    }

    /// True if `block` was written 2 billion times and has no generations left.
    pub fn is_exhausted(&self, block: u64) -> bool {
        self.issued[self.block(block) as usize] >= BlockVersion::LAST
    }

    /// Announces a write of `block` that is about to be issued.
    ///
    /// # Panics
    /// Beyond the last block, and if the block [is exhausted](Verifier::is_exhausted).
    pub fn before_write(&mut self, block: u64, content: Content) -> WriteTicket {
        let block = self.block(block);
        let generation = self.issued[block as usize] + 1;
        assert!(generation <= BlockVersion::LAST, "block {block} has no generations left");
        let version = BlockVersion::new(generation, content);
        self.open(block);
        self.issued[block as usize] = generation;
        let start = self.tick();
        let open = self.open(block);
        let in_flight = open.candidates.iter().filter(|other| other.end.is_none());
        let oldest_peer = in_flight.map(|other| other.version).fold(version, BlockVersion::min);
        open.candidates.push(Candidate { version, start, end: None, oldest_peer, visible: true });
        if content == Content::Zeroes {
            self.zeroed.insert(block, generation);
        }
        WriteTicket { block, version, start }
    }

    /// Fills `bytes`, one block, with the content of the announced write.
    pub fn fill(&self, ticket: &WriteTicket, bytes: &mut [u8]) {
        if ticket.version.is_zeroes() {
            bytes.fill(0);
        } else {
            self.stamper.fill(self.place(ticket.block), ticket.version.generation(), bytes);
        }
    }

    /// Reports the end of an announced write.
    pub fn after_write(&mut self, ticket: WriteTicket, outcome: WriteOutcome) {
        let WriteTicket { block, version, start } = ticket;
        let end = self.tick();
        let Some(open) = self.open.get_mut(&block) else { return };
        let mine = open.candidates.iter_mut().find(|candidate| candidate.version == version);
        let Some(mine) = mine.filter(|mine| mine.end.is_none()) else { return };
        mine.end = Some(end);
        let oldest_peer = mine.oldest_peer;
        if outcome == WriteOutcome::Unknown {
            return;
        }
        open.candidates.retain(|other| other.end.is_none_or(|end| end >= start));
        open.leftover = open.leftover.filter(|leftover| leftover.end >= start);
        if outcome == WriteOutcome::Durable || !self.config.volatile_cache {
            self.raise(block, oldest_peer);
        } else if !self.is_dirty.set(block, true) {
            self.dirty.push(block);
        }
        self.close_if_decided(block);
    }

    /// Removes a block from the map when it has one candidate left.
    fn close_if_decided(&mut self, block: u32) {
        let Some(open) = self.open.get(&block) else { return };
        if let ([only], None) = (&open.candidates[..], open.leftover)
            && only.end.is_some()
        {
            self.settled[block as usize] = only.version;
            self.open.remove(&block);
        }
    }

    /// The oldest version that completed writes leave possible.
    fn oldest(&self, block: u32) -> BlockVersion {
        if let Some(leftover) = self.leftover_of(block) {
            return leftover.oldest;
        }
        let Some(open) = self.open.get(&block) else { return self.settled[block as usize] };
        let candidates = open.candidates.iter().map(|candidate| candidate.version);
        let leftover = open.leftover.map(|leftover| leftover.oldest);
        candidates.chain(leftover).min().expect("an open block has a candidate")
    }

    /// Oldest generation of `block` that completed writes leave possible, as recorded in a journal.
    pub fn oldest_generation(&self, block: u64) -> u32 {
        self.oldest(self.block(block)).generation()
    }

    /// Generation of `block` that no power loss can revert.
    pub fn durable_generation(&self, block: u64) -> u32 {
        self.floor[self.block(block) as usize].generation()
    }

    fn raise(&mut self, block: u32, to: BlockVersion) {
        let floor = &mut self.floor[block as usize];
        *floor = (*floor).max(to);
    }

    /// Announces a flush that is about to be issued.
    pub fn before_flush(&mut self) -> FlushTicket {
        let dirty = std::mem::take(&mut self.dirty);
        let floors = dirty.into_iter().map(|block| {
            self.is_dirty.set(block, false);
            (block, self.oldest(block))
        });
        let floors = floors.collect();
        self.flush_count += 1;
        self.flushes.insert(self.flush_count, floors);
        FlushTicket(self.flush_count)
    }

    /// Reports the end of an announced flush. After a power loss in between it has no effect.
    pub fn after_flush(&mut self, ticket: FlushTicket, completed: bool) {
        let Some(floors) = self.flushes.remove(&ticket.0) else { return };
        for (block, floor) in floors {
            if completed {
                self.raise(block, floor);
            } else if !self.is_dirty.set(block, true) {
                self.dirty.push(block);
            }
        }
    }

    /// Reports a power loss (or the death of the device's process, if writes may live in its
    /// memory): every write above the floor of a block may be present or not. Flushes in flight are
    /// over, and later reports of them are ignored. Writes in flight may still take effect through
    /// a retry, until they end.
    pub fn after_power_loss(&mut self) {
        self.power_lost = self.tick();
        self.flushes.clear();
        self.dirty.clear();
        for block in 0..self.config.blocks as u32 {
            self.is_dirty.set(block, false);
            let (oldest, newest) = (self.floor[block as usize], self.issued[block as usize]);
            if newest <= oldest.generation() {
                continue;
            }
            let mut open = self.open.remove(&block).unwrap_or_default();
            open.candidates.retain(|candidate| candidate.end.is_none());
            if open.candidates.is_empty() {
                self.left_over.set(block, true);
                continue;
            }
            let end = self.power_lost;
            open.leftover = Some(Leftover { oldest, newest, end, visible: true });
            self.open.insert(block, open);
        }
    }

    /// Announces a read of `block` that is about to be issued.
    pub fn before_read(&mut self, block: u64) -> ReadTicket {
        let block = self.block(block);
        let start = self.tick();
        let seen = if let Some(leftover) = self.leftover_of(block) {
            Seen::Leftover(leftover)
        } else if let Some(open) = self.open.get(&block) {
            Seen::Open(Box::new(open.clone()))
        } else {
            Seen::Settled(self.settled[block as usize])
        };
        let (issued, floor) = (self.issued[block as usize], self.floor[block as usize]);
        ReadTicket { block, start, issued, floor, seen }
    }

    /// Checks the result of an announced read, the `bytes` of one block.
    pub fn check_read(&mut self, ticket: ReadTicket, bytes: &[u8]) -> Result<(), Violation> {
        let block = ticket.block;
        let found = self.stamper.read(self.place(block), bytes);
        if self.is_allowed(&ticket, &found) {
            self.learn(&ticket, &found);
            return Ok(());
        }
        let expected = self.expected(&ticket);
        let kind = classify(&found, &expected);
        let offset_bytes = self.place(block);
        Err(Violation { kind, block: u64::from(block), offset_bytes, found, expected })
    }

    fn is_allowed(&self, ticket: &ReadTicket, found: &StampReading) -> bool {
        let since = match found {
            StampReading::Stamp { generation, .. } => {
                (ticket.issued + 1..=self.issued[ticket.block as usize]).contains(generation)
            }
            StampReading::Zeroes => {
                self.zeroed.get(&ticket.block).is_some_and(|newest| *newest > ticket.issued)
            }
            _ => false,
        };
        let index = ticket.block as usize;
        // A read that outlived a power loss, through a retry, may return content left by it.
        let retried = ticket.start < self.power_lost && {
            let (oldest, newest, end) = (ticket.floor, self.issued[index], self.power_lost);
            let leftover = Leftover { oldest, newest, end, visible: true };
            self.leftover_matches(ticket.block, &leftover, found)
        };
        since
            || retried
            || match &ticket.seen {
                Seen::Settled(version) => version.matches(found),
                Seen::Leftover(leftover) => self.leftover_matches(ticket.block, leftover, found),
                Seen::Open(open) => {
                    let mut candidates = open.candidates.iter();
                    candidates
                        .any(|candidate| candidate.visible && candidate.version.matches(found))
                        || open.leftover.is_some_and(|leftover| {
                            leftover.visible
                                && self.leftover_matches(ticket.block, &leftover, found)
                        })
                }
            }
    }

    fn leftover_matches(&self, block: u32, leftover: &Leftover, found: &StampReading) -> bool {
        if leftover.oldest.matches(found) {
            return true;
        }
        let oldest = leftover.oldest.generation();
        match found {
            StampReading::Stamp { generation, .. } => {
                *generation != 0 && (oldest..=leftover.newest).contains(generation)
            }
            StampReading::Zeroes => self.zeroed.get(&block).is_some_and(|newest| *newest >= oldest),
            _ => false,
        }
    }

    /// Hides the candidates that a good read proves impossible.
    fn learn(&mut self, ticket: &ReadTicket, found: &StampReading) {
        let block = ticket.block;
        // A read that started before the power loss proves nothing about the state after it.
        if ticket.start < self.power_lost {
            return;
        }
        if self.left_over.get(block) {
            self.learn_of_leftover(ticket, found);
            return;
        }
        let Some(open) = self.open.get_mut(&block) else { return };
        let matching =
            |candidate: &Candidate| candidate.visible && candidate.version.matches(found);
        // Of several matching candidates, the earliest start proves least.
        let starts = open.candidates.iter().filter(|candidate| matching(candidate));
        let Some(proof) = starts.map(|candidate| candidate.start).min() else { return };
        let proof = proof.min(ticket.seen.earliest(found).unwrap_or(u64::MAX));
        let gone = |end: u64| end < ticket.start || end < proof;
        for candidate in &mut open.candidates {
            if candidate.end.is_some_and(gone) && !matching(candidate) {
                candidate.visible = false;
            }
        }
        if let Some(leftover) = &mut open.leftover
            && gone(leftover.end)
        {
            let (oldest, newest) = (leftover.oldest.generation(), leftover.newest);
            let inside = matches!(found, StampReading::Stamp { generation, .. }
                if (oldest..=newest).contains(generation));
            // The content may be part of the leftover state: then that part stays.
            leftover.visible &= inside || *found == StampReading::Zeroes || !found.is_ours();
        }
    }

    fn learn_of_leftover(&mut self, ticket: &ReadTicket, found: &StampReading) {
        let StampReading::Stamp { generation, .. } = found else { return };
        let version = BlockVersion::new(*generation, Content::Stamps);
        let open = self.open(ticket.block);
        if let Some(leftover) = &mut open.leftover {
            leftover.visible = false;
            let end = Some(leftover.end);
            let oldest_peer = leftover.oldest;
            open.candidates.push(Candidate { version, start: 0, end, oldest_peer, visible: true });
        }
    }

    fn expected(&self, ticket: &ReadTicket) -> Expected {
        let durable = self.floor[ticket.block as usize].generation();
        let newest_now = self.issued[ticket.block as usize];
        let later = (newest_now > ticket.issued).then_some(newest_now);
        let (oldest, newest) = match &ticket.seen {
            Seen::Settled(version) => (version.generation(), version.generation()),
            Seen::Leftover(leftover) => (leftover.oldest.generation(), leftover.newest),
            Seen::Open(open) => {
                let visible = open.candidates.iter().filter(|candidate| candidate.visible);
                let versions = visible.map(|candidate| candidate.version.generation());
                let leftover = open.leftover.filter(|leftover| leftover.visible);
                let ends = leftover.map(|left| [left.oldest.generation(), left.newest]);
                let all: Vec<u32> = versions.chain(ends.into_iter().flatten()).collect();
                let newest = all.iter().max().copied().unwrap_or(ticket.issued);
                (all.iter().min().copied().unwrap_or(ticket.issued), newest)
            }
        };
        Expected { oldest, newest: later.unwrap_or(newest), durable }
    }
}

fn classify(found: &StampReading, expected: &Expected) -> ViolationKind {
    match found {
        StampReading::Stamp { generation, .. } if *generation < expected.durable => {
            ViolationKind::Lost
        }
        StampReading::Stamp { .. } => ViolationKind::Stale,
        StampReading::Zeroes | StampReading::OtherRun { .. } => ViolationKind::Lost,
        StampReading::Misplaced { .. } => ViolationKind::Misplaced,
        StampReading::Torn { before: None, after: None, .. } => ViolationKind::Corrupt,
        StampReading::Torn { .. } => ViolationKind::Torn,
        StampReading::Corrupt { .. } | StampReading::Foreign => ViolationKind::Corrupt,
    }
}

#[cfg(test)]
#[path = "verifier_tests.rs"]
mod tests;
