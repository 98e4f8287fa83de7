//! Log position: where the next chunk goes, and the chunks that are written but have not taken
//! effect.
//!
//! Invariants: sequences are consecutive; chunks take effect in the order of sequences, whatever
//! the order in which the devices complete them; after a failed chunk none takes effect, because a
//! replay would end there.

use std::collections::VecDeque;

use flagstone_blockdev::IoError;

use super::segments::Segments;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::U48_MAX;
use crate::ondisk::superblock::LogStart;

/// Segments that a log takes when it begins.
pub const BEGINNING_SEGMENTS: usize = 2;

/// A chunk in flight.
#[derive(Debug)]
pub struct InFlight {
    /// Where a replay that begins with it would start.
    pub start: LogStart,
    /// What it changes, once it is written.
    pub content: Option<ChunkContent>,
}

/// Changes of a chunk.
#[derive(Debug, Default)]
pub struct ChunkContent {
    /// Changes, in order.
    pub records: Vec<ChunkRecord>,
    /// Checksums of the payload.
    pub checksums: Vec<u32>,
}

/// Position of the log.
#[derive(Debug)]
pub struct Position {
    /// Number of the log.
    pub log: u64,
    /// Every chunk before this sequence was flushed.
    pub durable: u64,
    next: LogStart,
    segment_blocks: u64,
    /// Places of segments on the log device, used in turn; 1 without one.
    slots: u32,
    in_flight: VecDeque<InFlight>,
}

impl Position {
    /// A log that begins in a new segment.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] without two free segments.
    pub fn begin(
        log: u64,
        sequence: u64,
        segment_blocks: u32,
        segments: &mut Segments,
    ) -> Result<Position, IoError> {
        let segment = segments.take().ok_or(IoError::NoSpace)?;
        let following = segments.take().ok_or(IoError::NoSpace)?;
        let segment_blocks = u64::from(segment_blocks);
        let next =
            LogStart { sequence, block: u64::from(segment) * segment_blocks, following, slot: 0 };
        let in_flight = VecDeque::new();
        Ok(Position { log, durable: sequence, next, segment_blocks, slots: 1, in_flight })
    }

    /// The same log, whose segments have places on a log device.
    pub fn on_slots(self, slots: u32) -> Position {
        Position { slots, ..self }
    }

    /// Sequence of the first chunk that has not taken effect: the chunks before it were applied.
    pub fn applied(&self) -> u64 {
        self.start().sequence
    }

    /// Number of chunks in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Where a replay of everything that has not taken effect would begin.
    pub fn start(&self) -> LogStart {
        self.in_flight.front().map_or(self.next, |first| first.start)
    }

    /// Payload blocks of a chunk that fills the segment of the next one; 0 if only a header fits.
    pub fn room(&self) -> usize {
        (self.segment_blocks - self.next.block % self.segment_blocks - 1) as usize
    }

    /// Reserves the place of a chunk with this payload: its sequence, the block of its header, and
    /// the following segment.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] without a free segment when one is needed, and at the last sequence.
    pub fn reserve(
        &mut self,
        payload_blocks: usize,
        segments: &mut Segments,
    ) -> Result<LogStart, IoError> {
        let blocks = 1 + payload_blocks as u64;
        assert!(blocks <= self.segment_blocks, "a chunk fits a segment");
        if self.next.sequence >= U48_MAX {
            return Err(IoError::NoSpace);
        }
        let left = |next: &LogStart| self.segment_blocks - next.block % self.segment_blocks;
        let (mut start, mut next) = (self.next, self.next);
        if blocks > left(&start) {
            start = self.following(start, segments)?;
            next = start;
        }
        next.block += blocks;
        if blocks == left(&start) {
            // A position is within the pool, so it moves on at once.
            next = self.following(next, segments)?;
        }
        next.sequence += 1;
        self.next = next;
        self.in_flight.push_back(InFlight { start, content: None });
        Ok(start)
    }

    /// The same position at the start of the following segment.
    fn following(&self, at: LogStart, segments: &mut Segments) -> Result<LogStart, IoError> {
        let following = segments.take().ok_or(IoError::NoSpace)?;
        let slot = (at.slot + 1) % self.slots;
        Ok(LogStart { block: u64::from(at.following) * self.segment_blocks, following, slot, ..at })
    }

    /// Moves on to the following segment if the log has a chunk in this one, which names the
    /// following: a replay would not find a chunk after a segment without any.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] without a free segment.
    pub fn leave(&mut self, segments: &mut Segments) -> Result<(), IoError> {
        if !self.next.block.is_multiple_of(self.segment_blocks) {
            self.next = self.following(self.next, segments)?;
        }
        Ok(())
    }

    /// A chunk is on its device.
    pub fn written(&mut self, sequence: u64, content: ChunkContent) {
        let index = sequence - self.applied();
        self.in_flight[index as usize].content = Some(content);
    }

    /// The next chunk that takes effect, if it is written.
    pub fn pop_written(&mut self) -> Option<InFlight> {
        self.in_flight.pop_front_if(|first| first.content.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(position: &mut Position, segments: &mut Segments, payload: usize) -> LogStart {
        position.reserve(payload, segments).unwrap()
    }

    fn content() -> ChunkContent {
        ChunkContent { records: Vec::new(), checksums: Vec::new() }
    }

    #[test]
    fn chunks_fill_segments_and_never_cross_them() {
        let mut segments = Segments::new(9, &[], |_| false);
        let mut position = Position::begin(1, 10, 16, &mut segments).unwrap();
        let at = |sequence, block, following| LogStart { sequence, block, following, slot: 0 };
        assert_eq!(position.room(), 15);
        assert_eq!(chunk(&mut position, &mut segments, 10), at(10, 0, 1));
        assert_eq!(position.room(), 4);
        assert_eq!(chunk(&mut position, &mut segments, 4), at(11, 11, 1));
        assert_eq!(position.start(), at(10, 0, 1));
        assert_eq!(chunk(&mut position, &mut segments, 0), at(12, 16, 2), "segment 0 is full");
        assert_eq!(chunk(&mut position, &mut segments, 15), at(13, 32, 3), "it does not fit");
        assert_eq!(chunk(&mut position, &mut segments, 0), at(14, 48, 4));
    }

    #[test]
    fn segments_use_the_slots_of_the_log_device_in_turn() {
        let mut segments = Segments::new(9, &[], |_| false);
        let position = Position::begin(1, 10, 16, &mut segments).unwrap();
        let mut position = position.on_slots(3);
        let slots = [15, 10, 10, 15, 3].map(|payload| chunk(&mut position, &mut segments, payload));
        assert_eq!(slots.map(|start| start.slot), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn chunks_take_effect_in_order() {
        let mut segments = Segments::new(9, &[], |_| false);
        let mut position = Position::begin(1, 10, 16, &mut segments).unwrap();
        for _ in 0..3 {
            chunk(&mut position, &mut segments, 1);
        }
        position.written(11, content());
        assert!(position.pop_written().is_none());
        position.written(10, content());
        assert!(position.pop_written().is_some() && position.pop_written().is_some());
        assert!(position.pop_written().is_none());
        assert_eq!(position.applied(), 12);
    }

    #[test]
    fn full_pool_keeps_its_position() {
        let mut segments = Segments::new(3, &[], |_| false);
        let mut position = Position::begin(1, 0, 16, &mut segments).unwrap();
        chunk(&mut position, &mut segments, 15);
        let before = position.start();
        let full = position.reserve(15, &mut segments);
        assert_eq!(full, Err(IoError::NoSpace));
        assert_eq!((position.start(), position.in_flight()), (before, 1));
        chunk(&mut position, &mut segments, 14);
    }
}
