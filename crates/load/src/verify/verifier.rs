//! The expected state of every block, and the judgement of what a read brings.
//!
//! A block's writes are numbered from 1, its *generations*. At any time a block has *candidates*:
//! the writes that may be its content now. A write joins when it is issued. It ousts, when it
//! completes, every candidate that had ended before it was issued. A read that brought one
//! candidate hides those that it proves to be overwritten, or never to have happened.
//!
//! For power losses each block has a *floor*: the oldest generation that a flush or a durable write
//! leaves possible. What a read proved counts for reads alone: it made nothing durable.
//!
//! Most blocks have one candidate at most times. That takes 12 bytes and two bits a block; the
//! others are in a map while they have more.

use std::collections::BTreeMap;

use super::stamp::{Found, SECTOR_BYTES, Stamper};
use super::version::{Content, Initial, Version};
use super::violation::{Expected, Violation, ViolationKind};
use crate::limits::VERIFY_BLOCKS_MAX;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Completed.
    Done,
    /// Completed, and durable (FUA).
    Durable,
    /// Failed or cut off: it took effect before this was known, or never will.
    Unknown,
}

/// What to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifierConfig {
    /// Names the run; different from that of any earlier run on the device.
    pub run_id: u64,
    /// Names the writer within the run.
    pub writer: u32,
    /// Place of block 0 on the device, in bytes.
    pub offset_bytes: u64,
    /// The device's block, in bytes: a multiple of 512.
    pub block_bytes: u32,
    /// Number of blocks; at most [`VERIFY_BLOCKS_MAX`].
    pub blocks: u64,
    /// Completed writes may be lost by a power failure until a flush.
    pub volatile_cache: bool,
    /// What is there before.
    pub initial: Initial,
}

/// A write that may be a block's content. Times are the verifier's own count of events.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    version: Version,
    start: u64,
    end: Option<u64>,
    /// The oldest write that may take effect after this one: durable, it leaves none older.
    oldest_peer: Version,
    /// Reads may bring it. Others may only come back by a power loss.
    visible: bool,
}

/// What a power loss left: any generation from the floor to `newest`.
#[derive(Clone, Copy, Debug)]
struct Leftover {
    oldest: Version,
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

/// A write that was announced.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "tell how the write ended"]
pub struct WriteTicket {
    block: u32,
    version: Version,
    start: u64,
}

/// A read that was announced.
#[derive(Debug)]
#[must_use = "check what the read brought"]
pub struct ReadTicket {
    block: u32,
    start: u64,
    issued: u32,
    floor: Version,
    seen: Seen,
}

#[derive(Debug)]
enum Seen {
    Settled(Version),
    Leftover(Leftover),
    Open(Box<Open>),
}

impl Seen {
    /// When the first of the candidates began that match what was found; 0 when that is forgotten.
    fn earliest(&self, found: &Found) -> Option<u64> {
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

/// A flush that was announced.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "tell how the flush ended"]
pub struct FlushTicket(u64);

impl FlushTicket {
    /// Its number, from 1, in order.
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

    /// Sets the bit and says what it was.
    fn set(&mut self, bit: u32, value: bool) -> bool {
        let was = self.get(bit);
        let mask = 1 << (bit % 64);
        let word = &mut self.0[bit as usize / 64];
        *word = if value { *word | mask } else { *word & !mask };
        was
    }
}

/// See the module.
#[derive(Debug)]
pub struct Verifier {
    config: VerifierConfig,
    stamper: Stamper,
    /// Counts events, so that it can be said what ended before what began.
    clock: u64,
    /// When power was lost last.
    power_lost: u64,
    issued: Vec<u32>,
    /// The only candidate of blocks that are neither open nor left over.
    settled: Vec<Version>,
    floor: Vec<Version>,
    open: BTreeMap<u32, Open>,
    /// Blocks that hold what a power loss left, and nobody has looked at since.
    left_over: BitSet,
    /// Newest generation of zeroes, where there is one.
    zeroed: BTreeMap<u32, u32>,
    /// Blocks with writes that completed since the last flush began.
    dirty: Vec<u32>,
    is_dirty: BitSet,
    /// Floors that flushes in flight will raise.
    flushes: BTreeMap<u64, Vec<(u32, Version)>>,
    flush_count: u64,
}

impl Verifier {
    /// Expects [`Initial`] content everywhere.
    ///
    /// # Panics
    /// When there are no blocks or more than [`VERIFY_BLOCKS_MAX`], or a block is no multiple of 512
    /// bytes.
    pub fn new(config: VerifierConfig) -> Verifier {
        assert!((1..=VERIFY_BLOCKS_MAX).contains(&config.blocks), "{} blocks", config.blocks);
        let block_bytes = config.block_bytes as usize;
        assert!(block_bytes > 0 && block_bytes.is_multiple_of(SECTOR_BYTES), "{block_bytes} bytes");
        let blocks = config.blocks as usize;
        let initial = Version::initial(config.initial);
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

    /// What it was made for.
    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// Takes over what is known of an earlier run: block `block` holds `oldest` or any later
    /// generation of that run. What was in flight at its end is not known, so any that it stamped
    /// is right. Blocks taken over cannot be written.
    pub(crate) fn expect_recorded(&mut self, block: u32, oldest: u32) {
        let index = block as usize;
        let initial = Version::initial(self.config.initial);
        let oldest = if oldest == 0 { initial } else { Version::new(oldest, Content::Stamps) };
        self.floor[index] = oldest;
        self.issued[index] = Version::LAST;
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

    /// The block's candidates, in the map from now on.
    fn open(&mut self, block: u32) -> &mut Open {
        let leftover = self.leftover_of(block);
        let settled = self.settled[block as usize];
        let clock = self.clock;
        self.left_over.set(block, false);
        self.open.entry(block).or_insert_with(|| match leftover {
            Some(leftover) => Open { candidates: Vec::new(), leftover: Some(leftover) },
            None => {
                // When it was written is forgotten: `start` and `end` claim the least.
                let end = Some(clock);
                let (version, oldest_peer) = (settled, settled);
                let only = Candidate { version, start: 0, end, oldest_peer, visible: true };
                Open { candidates: vec![only], leftover: None }
            }
        })
    }

    /// True when `block` was written 2 billion times and cannot be once more.
    pub fn is_exhausted(&self, block: u64) -> bool {
        self.issued[self.block(block) as usize] >= Version::LAST
    }

    /// A write of `block` is about to be issued.
    ///
    /// # Panics
    /// Beyond the last block, and when the block [is exhausted](Verifier::is_exhausted).
    pub fn before_write(&mut self, block: u64, content: Content) -> WriteTicket {
        let block = self.block(block);
        let generation = self.issued[block as usize] + 1;
        assert!(generation <= Version::LAST, "block {block} has no generations left");
        let version = Version::new(generation, content);
        self.open(block);
        self.issued[block as usize] = generation;
        let start = self.tick();
        let open = self.open(block);
        let in_flight = open.candidates.iter().filter(|other| other.end.is_none());
        let oldest_peer = in_flight.map(|other| other.version).fold(version, Version::min);
        open.candidates.push(Candidate { version, start, end: None, oldest_peer, visible: true });
        if content == Content::Zeroes {
            self.zeroed.insert(block, generation);
        }
        WriteTicket { block, version, start }
    }

    /// Fills `bytes`, one block, with what the announced write is to put there.
    pub fn fill(&self, ticket: &WriteTicket, bytes: &mut [u8]) {
        if ticket.version.is_zeroes() {
            bytes.fill(0);
        } else {
            self.stamper.fill(self.place(ticket.block), ticket.version.generation(), bytes);
        }
    }

    /// An announced write has ended.
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
        self.settle(block);
    }

    /// Forgets that a block was open, once one candidate is left.
    fn settle(&mut self, block: u32) {
        let Some(open) = self.open.get(&block) else { return };
        if let ([only], None) = (&open.candidates[..], open.leftover)
            && only.end.is_some()
        {
            self.settled[block as usize] = only.version;
            self.open.remove(&block);
        }
    }

    /// The oldest version that may be the content as far as completed writes tell.
    fn oldest(&self, block: u32) -> Version {
        if let Some(leftover) = self.leftover_of(block) {
            return leftover.oldest;
        }
        let Some(open) = self.open.get(&block) else { return self.settled[block as usize] };
        let candidates = open.candidates.iter().map(|candidate| candidate.version);
        let leftover = open.leftover.map(|leftover| leftover.oldest);
        candidates.chain(leftover).min().expect("an open block has a candidate")
    }

    /// Oldest generation of `block` that may be there as far as completed writes tell: what a
    /// journal records.
    pub fn oldest_generation(&self, block: u64) -> u32 {
        self.oldest(self.block(block)).generation()
    }

    /// Generation of `block` that no power loss can take back.
    pub fn durable_generation(&self, block: u64) -> u32 {
        self.floor[self.block(block) as usize].generation()
    }

    fn raise(&mut self, block: u32, to: Version) {
        let floor = &mut self.floor[block as usize];
        *floor = (*floor).max(to);
    }

    /// A flush is about to be issued.
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

    /// An announced flush has ended. After a power loss that came between it tells nothing.
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

    /// The device lost power (or its process died, when writes may live in its memory): every write
    /// since a block's floor may be there or not. Flushes in flight are over: what their tickets tell
    /// later is not believed. Writes in flight may still take effect, by a retry, until they end.
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

    /// A read of `block` is about to be issued.
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

    /// Judges what an announced read brought, `bytes` of one block.
    ///
    /// # Errors
    /// What is wrong with it.
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

    fn is_allowed(&self, ticket: &ReadTicket, found: &Found) -> bool {
        let since = match found {
            Found::Stamp { generation, .. } => {
                (ticket.issued + 1..=self.issued[ticket.block as usize]).contains(generation)
            }
            Found::Zeroes => {
                self.zeroed.get(&ticket.block).is_some_and(|newest| *newest > ticket.issued)
            }
            _ => false,
        };
        let index = ticket.block as usize;
        // A read that outlived a power loss, by a retry, may bring what that left.
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

    fn leftover_matches(&self, block: u32, leftover: &Leftover, found: &Found) -> bool {
        if leftover.oldest.matches(found) {
            return true;
        }
        let oldest = leftover.oldest.generation();
        match found {
            Found::Stamp { generation, .. } => {
                *generation != 0 && (oldest..=leftover.newest).contains(generation)
            }
            Found::Zeroes => self.zeroed.get(&block).is_some_and(|newest| *newest >= oldest),
            _ => false,
        }
    }

    /// Hides the candidates that a good read proves to be gone.
    fn learn(&mut self, ticket: &ReadTicket, found: &Found) {
        let block = ticket.block;
        // A read that began before power was lost knows nothing of what came after.
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
        // Of several that match, the one that began first proves least.
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
            let inside = matches!(found, Found::Stamp { generation, .. }
                if (oldest..=newest).contains(generation));
            // What was read may be a part of the leftover: then that part stays.
            leftover.visible &= inside || *found == Found::Zeroes || !found.is_ours();
        }
    }

    fn learn_of_leftover(&mut self, ticket: &ReadTicket, found: &Found) {
        let Found::Stamp { generation, .. } = found else { return };
        let version = Version::new(*generation, Content::Stamps);
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

fn classify(found: &Found, expected: &Expected) -> ViolationKind {
    match found {
        Found::Stamp { generation, .. } if *generation < expected.durable => ViolationKind::Lost,
        Found::Stamp { .. } => ViolationKind::Stale,
        Found::Zeroes | Found::OtherRun { .. } => ViolationKind::Lost,
        Found::Misplaced { .. } => ViolationKind::Misplaced,
        Found::Torn { before: None, after: None, .. } => ViolationKind::Corrupt,
        Found::Torn { .. } => ViolationKind::Torn,
        Found::Corrupt { .. } | Found::Foreign => ViolationKind::Corrupt,
    }
}

#[cfg(test)]
#[path = "verifier_tests.rs"]
mod tests;
