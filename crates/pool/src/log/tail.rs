//! Tail: part of the log that the log device has and the devices of the pool may lack. Pure.
//!
//! Invariants: segments come in the order of the log and use the slots in turn; per segment,
//! *durable* ≤ *applied* ≤ *end*, in blocks; a slot is reused only after its whole segment is
//! durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::limits::WRITE_OUT_BLOCKS;

/// A segment of the log on the log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TailSegment {
    segment: u32,
    slot: u32,
    /// Blocks taken by chunks.
    end: u32,
    /// Blocks of applied chunks, which are on the log device.
    applied: u32,
    /// Blocks that are durable on the devices of the pool.
    durable: u32,
    /// Entries of the blocks that are not durable.
    entries: u64,
}

/// What chunks take: of the log device, and of the table of recent changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailLoad {
    /// Blocks, with the headers.
    pub blocks: u64,
    /// Entries of host changes in the table of recent changes.
    pub entries: u64,
}

/// Blocks that are copied to the devices of the pool in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailWrite {
    /// Segment of the pool.
    pub segment: u32,
    /// Slot of the segment.
    pub slot: u32,
    /// First block within the segment.
    pub first: u32,
    /// Number of blocks, 1 to 256.
    pub count: u32,
}

/// Slot of a segment at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailSlot {
    /// Place of the segment.
    pub slot: u32,
    /// Number of the segment in the log since the opening.
    number: u64,
}

/// The tail.
#[derive(Debug)]
pub struct Tail {
    slots: u32,
    segments: VecDeque<TailSegment>,
    /// Number of segments that left the tail since the opening.
    before: u64,
    /// Number of each segment in the tail, counted since the opening.
    numbers: BTreeMap<u32, u64>,
    /// Blocks taken by chunks since the opening; then those of applied chunks, and durable ones.
    ends: u64,
    applied: u64,
    durable: u64,
    /// Entries of host changes that are not durable: those of a segment leave with its blocks.
    entries: u64,
    /// Number of blocks whose durability a caller waits for.
    wanted: u64,
    /// Per volume, the blocks of the log up to its last change.
    changed: BTreeMap<u32, u64>,
}

impl Tail {
    /// An empty tail.
    pub fn new(slots: u32) -> Tail {
        Tail {
            slots,
            segments: VecDeque::new(),
            before: 0,
            numbers: BTreeMap::new(),
            ends: 0,
            applied: 0,
            durable: 0,
            entries: 0,
            wanted: 0,
            changed: BTreeMap::new(),
        }
    }

    /// True if the next chunk may find no slot.
    pub fn is_full(&self) -> bool {
        self.segments.len() >= self.slots as usize
    }

    /// Adds a chunk after all earlier ones, with the volumes that it changes.
    pub fn reserve(
        &mut self,
        (segment, slot): (u32, u32),
        first: u32,
        load: TailLoad,
        volumes: impl IntoIterator<Item = u32>,
    ) {
        if self.segments.back().is_none_or(|last| last.segment != segment) {
            assert!(!self.is_full(), "the caller waits for a slot");
            self.numbers.insert(segment, self.before + self.segments.len() as u64);
            let fresh = TailSegment { segment, slot, end: 0, applied: 0, durable: 0, entries: 0 };
            self.segments.push_back(fresh);
            self.free_slots();
        }
        let last = self.segments.back_mut().expect("it was pushed");
        assert!(last.slot == slot && last.end == first, "chunks follow each other");
        last.end = first + load.blocks as u32;
        last.entries += load.entries;
        self.entries += load.entries;
        self.ends += load.blocks;
        for volume in volumes {
            self.changed.insert(volume, self.ends);
        }
    }

    /// Records that the next chunk took effect, which has these blocks of a segment.
    pub fn apply(&mut self, segment: u32, first: u32, count: u32) {
        let index = self.numbers[&segment] - self.before;
        let own = &mut self.segments[index as usize];
        assert!(own.applied == first && first + count <= own.end, "in order");
        own.applied += count;
        self.applied += u64::from(count);
    }

    /// Slot of a segment, if the log device has it.
    pub fn held(&self, segment: u32) -> Option<TailSlot> {
        let number = *self.numbers.get(&segment)?;
        let own = &self.segments[(number - self.before) as usize];
        Some(TailSlot { slot: own.slot, number })
    }

    /// Requests that all applied chunks are written out; returns the argument for
    /// [`Tail::is_durable`].
    pub fn want_applied(&mut self) -> u64 {
        self.wanted = self.wanted.max(self.applied);
        self.applied
    }

    /// True if this number of blocks of the log is durable on the devices of the pool.
    pub fn is_durable(&self, blocks: u64) -> bool {
        self.durable >= blocks
    }

    /// Blocks of the tail.
    pub fn blocks(&self) -> u64 {
        self.ends - self.durable
    }

    /// Blocks of the tail, and their entries.
    pub fn load(&self) -> TailLoad {
        TailLoad { blocks: self.blocks(), entries: self.entries }
    }

    /// True if applied blocks are not durable on the devices of the pool.
    pub fn has_applied(&self) -> bool {
        self.applied > self.durable
    }

    /// Next pieces to write out, at most `most`. Without `all`, only complete segments, and blocks
    /// that a caller waits for.
    pub fn pieces(&self, all: bool, most: usize) -> Vec<TailWrite> {
        let last = self.segments.len().saturating_sub(1);
        let all = all || self.wanted > self.durable;
        let mut pieces = Vec::new();
        for (index, own) in self.segments.iter().enumerate() {
            let is_whole = index < last && own.applied == own.end;
            let mut first = own.durable;
            while first < own.applied && (all || is_whole) && pieces.len() < most {
                let count = (own.applied - first).min(WRITE_OUT_BLOCKS);
                pieces.push(TailWrite { segment: own.segment, slot: own.slot, first, count });
                first += count;
            }
            // Later segments wait, to keep the order.
            if own.applied < own.end || pieces.len() == most {
                break;
            }
        }
        pieces
    }

    /// Records that these pieces, the first of the tail, are durable on the devices of the pool.
    /// Frees slots.
    pub fn written_out(&mut self, pieces: &[TailWrite]) {
        for piece in pieces {
            let index = self.numbers[&piece.segment] - self.before;
            let own = &mut self.segments[index as usize];
            assert!(own.durable == piece.first, "in order");
            let left = u64::from(own.end - own.durable);
            let gone = own.entries * u64::from(piece.count) / left;
            own.entries -= gone;
            self.entries -= gone;
            own.durable += piece.count;
            self.durable += u64::from(piece.count);
        }
        self.free_slots();
        let durable = self.durable;
        self.changed.retain(|_, last| *last > durable);
    }

    /// Frees the slots of segments that are durable as a whole. At once, because a segment without
    /// a slot may return to the log.
    fn free_slots(&mut self) {
        while self.segments.len() > 1 && self.segments[0].durable == self.segments[0].end {
            let gone = self.segments.pop_front().expect("there are two");
            self.numbers.remove(&gone.segment);
            self.before += 1;
        }
    }

    /// Volumes with changes in the tail.
    pub fn volumes(&self) -> BTreeSet<u32> {
        self.changed.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(segment: u32, slot: u32, first: u32, count: u32) -> TailWrite {
        TailWrite { segment, slot, first, count }
    }

    fn load(blocks: u64) -> TailLoad {
        TailLoad { blocks, entries: 4 * blocks }
    }

    /// Tail with three chunks in two segments; two chunks took effect.
    fn tail() -> Tail {
        let mut tail = Tail::new(2);
        tail.reserve((7, 0), 0, load(300), [1]);
        tail.reserve((7, 0), 300, load(4), [2]);
        tail.reserve((3, 1), 0, load(5), [1]);
        tail.apply(7, 0, 300);
        tail.apply(7, 300, 4);
        tail
    }

    #[test]
    fn whole_segments_are_written_out_in_order() {
        let mut tail = tail();
        assert!(tail.is_full() && tail.held(7).unwrap().slot == 0 && tail.held(8).is_none());
        assert_eq!(tail.pieces(false, 9), [piece(7, 0, 0, 256), piece(7, 0, 256, 48)]);
        assert_eq!(tail.pieces(false, 1), [piece(7, 0, 0, 256)]);
        tail.written_out(&[piece(7, 0, 0, 256)]);
        assert_eq!((tail.blocks(), tail.is_full()), (53, true));
        tail.written_out(&[piece(7, 0, 256, 48)]);
        assert_eq!((tail.blocks(), tail.is_full(), tail.held(7)), (5, false, None));
        assert_eq!(tail.volumes(), BTreeSet::from([1]));
        assert!(tail.pieces(true, 9).is_empty(), "the last chunk has not taken effect");
    }

    #[test]
    fn part_of_a_segment_is_written_out_for_a_waiter() {
        let mut tail = tail();
        tail.apply(3, 0, 5);
        tail.written_out(&tail.pieces(false, 9));
        assert!(tail.pieces(false, 9).is_empty() && tail.has_applied());
        let wanted = tail.want_applied();
        assert_eq!((wanted, tail.is_durable(wanted)), (309, false));
        assert_eq!(tail.pieces(false, 9), [piece(3, 1, 0, 5)]);
        tail.written_out(&[piece(3, 1, 0, 5)]);
        assert!(tail.is_durable(wanted) && tail.volumes().is_empty());
        assert_eq!(tail.held(3).map(|held| held.slot), Some(1), "its slot is reused later");
        tail.reserve((3, 1), 5, load(3), [4]);
        tail.apply(3, 5, 3);
        assert_eq!(tail.pieces(true, 9), [piece(3, 1, 5, 3)]);
    }

    #[test]
    fn segment_returns_before_the_next_piece() {
        let mut tail = Tail::new(4);
        tail.reserve((7, 0), 0, load(5), []);
        tail.apply(7, 0, 5);
        tail.written_out(&tail.pieces(true, 9));
        // An empty checkpoint frees segment 7, which then follows segment 3.
        tail.reserve((3, 1), 0, load(5), []);
        tail.apply(3, 0, 5);
        tail.reserve((7, 2), 0, load(5), []);
        tail.apply(7, 0, 5);
        assert_eq!(tail.pieces(true, 9), [piece(3, 1, 0, 5), piece(7, 2, 0, 5)]);
        tail.written_out(&tail.pieces(true, 9));
        assert_eq!((tail.blocks(), tail.held(7).unwrap().slot), (0, 2));
    }

    #[test]
    fn reused_slot_does_not_match_old_segment() {
        let mut tail = tail();
        let held = tail.held(7);
        tail.written_out(&tail.pieces(true, 9));
        tail.apply(3, 0, 5);
        tail.reserve((7, 0), 0, load(2), []);
        assert!(tail.held(7).is_some() && tail.held(7) != held);
    }

    #[test]
    fn entries_leave_with_their_blocks() {
        let mut tail = tail();
        assert_eq!(tail.load(), load(309));
        tail.written_out(&[piece(7, 0, 0, 256)]);
        assert_eq!(tail.load(), load(53));
        tail.written_out(&[piece(7, 0, 256, 48)]);
        tail.apply(3, 0, 5);
        tail.reserve((3, 1), 5, TailLoad { blocks: 1, entries: 1 }, []);
        tail.apply(3, 5, 1);
        tail.written_out(&[piece(3, 1, 0, 4)]);
        assert_eq!(tail.load(), TailLoad { blocks: 2, entries: 7 });
        tail.written_out(&[piece(3, 1, 4, 2)]);
        assert_eq!(tail.load(), TailLoad::default());
    }
}
