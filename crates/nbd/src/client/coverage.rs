//! Coverage of a read: detects missing and duplicate bytes in its reply chunks.

use crate::limits::MAX_SCATTERED_CHUNKS;

/// Received part of a read. Allocates nothing while chunks arrive in order.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// All bytes before this offset have arrived.
    front: u32,
    /// Disjoint ranges `[start, end)` beyond `front`, ascending.
    scattered: Vec<(u32, u32)>,
}

/// Duplicate byte, or too many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadChunk;

impl Coverage {
    pub(crate) fn clear(&mut self) {
        self.front = 0;
        self.scattered.clear();
    }

    /// True when the first `len` bytes have arrived.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        self.front == len
    }

    /// Adds `[start, start + len)`, which must not overflow.
    pub(crate) fn add(&mut self, start: u32, len: u32) -> Result<(), BadChunk> {
        let end = start + len;
        if start < self.front {
            return Err(BadChunk);
        }
        if start > self.front || !self.scattered.is_empty() {
            return self.add_scattered(start, end);
        }
        self.front = end;
        Ok(())
    }

    fn add_scattered(&mut self, start: u32, end: u32) -> Result<(), BadChunk> {
        let place = self.scattered.partition_point(|range| range.0 < start);
        let before = place.checked_sub(1).and_then(|index| self.scattered.get(index));
        let overlaps = before.is_some_and(|range| range.1 > start)
            || self.scattered.get(place).is_some_and(|range| range.0 < end);
        if overlaps || self.scattered.len() >= MAX_SCATTERED_CHUNKS {
            return Err(BadChunk);
        }
        self.scattered.insert(place, (start, end));
        let mut joined = 0;
        for range in &self.scattered {
            if range.0 != self.front {
                break;
            }
            self.front = range.1;
            joined += 1;
        }
        self.scattered.drain(..joined);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The model marks individual bytes.
        #[test]
        fn coverage_matches_byte_map(chunks: Vec<(u8, u8)>) {
            let mut coverage = Coverage::default();
            let mut bytes = [false; 600];
            for (start, len) in chunks {
                let (start, len) = (u32::from(start), u32::from(len) + 1);
                let range = &mut bytes[start as usize..(start + len) as usize];
                let fresh = range.iter().all(|byte| !byte);
                prop_assert_eq!(coverage.add(start, len).is_ok(), fresh);
                if fresh {
                    range.fill(true);
                }
                let front = bytes.iter().position(|byte| !byte).unwrap() as u32;
                prop_assert!(coverage.is_whole(front));
            }
        }
    }

    #[test]
    fn too_many_reply_pieces_are_refused() {
        let mut coverage = Coverage::default();
        for piece in 0..MAX_SCATTERED_CHUNKS as u32 {
            coverage.add(10 + 2 * piece, 1).unwrap();
        }
        assert_eq!(coverage.add(1_000_000, 1), Err(BadChunk));
    }
}
