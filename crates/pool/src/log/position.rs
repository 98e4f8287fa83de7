//! Log position: place of the next chunk, and the chunks that have not taken effect.
//!
//! Invariants: sequences are consecutive; chunks take effect in the order of sequences, whatever
//! the order in which devices complete them; no chunk takes effect after a failed one, because a
//! replay would end there.

use std::collections::VecDeque;

use flagstone_blockdev::IoError;

use super::segments::Segments;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::U48_MAX;
use crate::ondisk::superblock::LogStart;

/// Segments that a new log takes.
pub const BEGINNING_SEGMENTS: usize = 2;

/// A chunk in flight.
#[derive(Debug)]
pub struct ChunkInFlight {
    /// Start of a replay that begins with this chunk.
    pub start: LogStart,
    /// Changes of the chunk; `None` until it is written.
    pub content: Option<ChunkContent>,
}

/// Content of a written chunk.
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
    /// Number of slots on the log device, used in turn; 1 without one.
    slots: u32,
    in_flight: VecDeque<ChunkInFlight>,
}

impl Position {
    /// New log that begins in a new segment.
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

    /// The same log, with slots on a log device.
    pub fn on_slots(self, slots: u32) -> Position {
        Position { slots, ..self }
    }

    /// Sequence of the first chunk that has not taken effect.
    pub fn applied(&self) -> u64 {
        self.start().sequence
    }

    /// Number of chunks in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Start of a replay of all chunks that have not taken effect.
    pub fn start(&self) -> LogStart {
        self.in_flight.front().map_or(self.next, |first| first.start)
    }

    /// Most payload blocks of the next chunk in the present segment; 0 if only a header fits.
    pub fn room(&self) -> usize {
        (self.segment_blocks - self.next.block % self.segment_blocks - 1) as usize
    }

    /// Reserves the place of a chunk with this payload: sequence, block of the header, and
    /// following segment.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] if the chunk needs a new segment and none is free, and at the last
    /// sequence.
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
            // The position must always be a block of the pool.
            next = self.following(next, segments)?;
        }
        next.sequence += 1;
        self.next = next;
        self.in_flight.push_back(ChunkInFlight { start, content: None });
        Ok(start)
    }

    /// The position at the start of the following segment.
    fn following(&self, at: LogStart, segments: &mut Segments) -> Result<LogStart, IoError> {
        let following = segments.take().ok_or(IoError::NoSpace)?;
        let slot = (at.slot + 1) % self.slots;
        Ok(LogStart { block: u64::from(at.following) * self.segment_blocks, following, slot, ..at })
    }

    /// Moves the position to the following segment, if a chunk in the present one names the
    /// following: a replay cannot pass a segment without a chunk.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] without a free segment.
    pub fn leave(&mut self, segments: &mut Segments) -> Result<(), IoError> {
        if !self.next.block.is_multiple_of(self.segment_blocks) {
            self.next = self.following(self.next, segments)?;
        }
        Ok(())
    }

    /// Records that a chunk is written.
    pub fn written(&mut self, sequence: u64, content: ChunkContent) {
        let index = sequence - self.applied();
        self.in_flight[index as usize].content = Some(content);
    }

    /// Next chunk to apply, if it is written.
    pub fn pop_written(&mut self) -> Option<ChunkInFlight> {
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
    fn failed_reserve_leaves_log_position_unchanged() {
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
