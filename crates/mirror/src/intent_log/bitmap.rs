//! Bitmap in memory with one bit per block of a volume: for the log, and for what each peer lacks.
//!
//! Guarantees: bits can be set, cleared and read from any core without a lock; a word changes
//! atomically; bits beyond the end of the volume are never set; the count is exact when no task
//! changes bits. A bitmap takes 2 MiB per TiB at the default granularity, so a log with two bitmaps
//! and two peers with four each stay within 20 MiB.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_runtime::zeroed_words;

/// A bitmap with an exact count of its set bits.
#[derive(Debug)]
pub struct Bitmap {
    words: Box<[AtomicU64]>,
    bits: u64,
    bit_bytes: u64,
    set: AtomicU64,
}

/// Mask of the bits of word `index` that lie in a range of bits, which overlaps the word.
fn part(range: &Range<u64>, index: u64) -> u64 {
    let first = index * 64;
    let from = range.start.saturating_sub(first).min(64);
    let to = range.end.saturating_sub(first).min(64);
    let below = |count: u64| u64::MAX.checked_shr(64 - count as u32).unwrap_or(0);
    below(to) & !below(from)
}

impl Bitmap {
    /// All bits clear. `bit_bytes` is the number of bytes per bit.
    pub fn new(bits: u64, bit_bytes: u32) -> Bitmap {
        let words = zeroed_words(bits.div_ceil(64) as usize);
        Bitmap { words, bits, bit_bytes: u64::from(bit_bytes), set: AtomicU64::new(0) }
    }

    /// The bits that a range of bytes overlaps, clipped to the bitmap.
    pub fn bits_of(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len).div_ceil(self.bit_bytes).min(self.bits);
        (offset / self.bit_bytes).min(end)..end
    }

    /// All bits.
    pub fn all(&self) -> Range<u64> {
        0..self.bits
    }

    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let range = range.start..range.end.min(self.bits);
        let end = if range.is_empty() { 0 } else { range.end.div_ceil(64) };
        (range.start / 64..end).map(move |index| (index, part(&range, index)))
    }

    /// Sets bits.
    pub fn set(&self, range: Range<u64>) {
        self.parts(range).for_each(|(index, part)| self.merge(index, part));
    }

    /// Sets the bits of word `index` that are set in `word`.
    pub fn merge(&self, index: u64, word: u64) {
        let Some(own) = self.words.get(index as usize) else { return };
        let word = word & part(&self.all(), index);
        if word & !own.load(Ordering::Acquire) == 0 {
            return;
        }
        let before = own.fetch_or(word, Ordering::AcqRel);
        self.set.fetch_add(u64::from((word & !before).count_ones()), Ordering::AcqRel);
    }

    /// Clears bits.
    pub fn clear(&self, range: Range<u64>) {
        for (index, part) in self.parts(range) {
            let before = self.words[index as usize].fetch_and(!part, Ordering::AcqRel);
            self.set.fetch_sub(u64::from((part & before).count_ones()), Ordering::AcqRel);
        }
    }

    /// One word; 0 beyond the last.
    pub fn word(&self, index: u64) -> u64 {
        self.words.get(index as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Number of words.
    pub fn words(&self) -> u64 {
        self.words.len() as u64
    }

    /// True when some bit of the range is set.
    pub fn any(&self, range: Range<u64>) -> bool {
        self.parts(range).any(|(index, part)| self.word(index) & part != 0)
    }

    /// True when all bits of the range are set.
    pub fn has_all(&self, range: Range<u64>) -> bool {
        self.parts(range).all(|(index, part)| self.word(index) & part == part)
    }

    /// How many bits are set.
    pub fn count(&self) -> u64 {
        self.set.load(Ordering::Acquire)
    }

    /// Bytes covered by the set bits. The last bit of the volume counts in full.
    pub fn bytes(&self) -> u64 {
        self.count() * self.bit_bytes
    }

    /// The first run of set bits from `from` on, limited to `most` bits.
    pub fn next_run(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let start = self.find(from, |word| word)?;
        let limit = start.saturating_add(most.max(1)).min(self.bits);
        let end = self.find(start, |word| !word).unwrap_or(self.bits);
        Some(start..end.min(limit))
    }

    fn find(&self, from: u64, look: impl Fn(u64) -> u64) -> Option<u64> {
        let mut above = u64::MAX << (from % 64);
        for index in from / 64..self.words() {
            let word = look(self.word(index)) & above;
            if word != 0 {
                let bit = index * 64 + u64::from(word.trailing_zeros());
                return (bit < self.bits).then_some(bit);
            }
            above = u64::MAX;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Behaves like a vector of booleans, also for ranges beyond its end.
        #[test]
        fn bitmap_matches_vector_of_booleans(
            bits in 1u64..300,
            steps in prop::collection::vec((any::<bool>(), 0u64..320, 0u64..320), 0..30),
            from in 0u64..320,
            most in 0u64..100,
        ) {
            let map = Bitmap::new(bits, 4096);
            let mut model = vec![false; bits as usize];
            for (set, a, b) in steps {
                let (start, end) = (a.min(b), a.max(b));
                if set { map.set(start..end) } else { map.clear(start..end) }
                model[start.min(bits) as usize..end.min(bits) as usize].fill(set);
            }
            let is_set = |bit: u64| model[bit as usize];
            for bit in 0..bits {
                prop_assert_eq!(map.word(bit / 64) >> (bit % 64) & 1 == 1, is_set(bit));
                prop_assert_eq!(map.any(bit..bit + 1), is_set(bit));
            }
            prop_assert_eq!(map.count(), (0..bits).filter(|bit| is_set(*bit)).count() as u64);
            prop_assert_eq!(map.any(0..u64::MAX), map.count() > 0);
            let run = (from..bits).find(|bit| is_set(*bit)).map(|start| {
                let end = (start..bits).find(|bit| !is_set(*bit)).unwrap_or(bits);
                start..end.min(start + most.max(1))
            });
            prop_assert_eq!(map.next_run(from, most), run);
        }
    }

    #[test]
    fn bits_beyond_the_volume_stay_clear() {
        let map = Bitmap::new(70, 4096);
        map.merge(1, u64::MAX);
        map.merge(2, u64::MAX);
        assert_eq!((map.count(), map.bytes()), (6, 6 * 4096));
        assert_eq!(map.bits_of(4095, 2), 0..2);
        assert_eq!(map.bits_of(80 * 4096, u64::MAX), 70..70);
    }

    #[test]
    fn bitmap_of_1_tib_takes_2_mib() {
        let geometry = crate::ondisk::layout::ReplicaGeometry::for_size(1 << 40);
        let map = Bitmap::new(geometry.bits(), geometry.bit_bytes);
        assert_eq!(map.words() * 8, 2 << 20);
    }
}
