//! What one peer lacks, bit by bit, in memory. The log on disk names at least the same.
//!
//! Bits are set and cleared from any core. Who clears makes sure that nobody sets meanwhile what
//! is not copied: see [`crate::resync`].

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bitmap of a volume. One bit stands for `bit_bytes` of it.
#[derive(Debug)]
pub(crate) struct Todo {
    words: Box<[AtomicU64]>,
    bits: u64,
    bit_bytes: u64,
    set: AtomicU64,
}

/// The part of word `index` that a range of bits covers.
fn mask(range: &Range<u64>, index: u64) -> u64 {
    let (low, high) = (index * 64, index * 64 + 64);
    let (from, to) = (range.start.max(low) - low, range.end.min(high) - low);
    let ones = |count: u64| if count == 64 { u64::MAX } else { (1 << count) - 1 };
    ones(to) & !ones(from)
}

impl Todo {
    /// All clear.
    pub(crate) fn new(bits: u64, bit_bytes: u32) -> Todo {
        let words = (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Todo { words, bits, bit_bytes: u64::from(bit_bytes), set: AtomicU64::new(0) }
    }

    /// The bits that a range of bytes touches.
    pub(crate) fn bits_of(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.bit_bytes..(offset + len).div_ceil(self.bit_bytes).min(self.bits)
    }

    /// All bits.
    pub(crate) fn all(&self) -> Range<u64> {
        0..self.bits
    }

    /// Sets bits.
    pub(crate) fn set(&self, range: Range<u64>) {
        for index in range.start / 64..range.end.div_ceil(64) {
            self.merge(index, mask(&range, index));
        }
    }

    /// Sets the bits of one word that are set in `word`; those beyond the volume are not.
    pub(crate) fn merge(&self, index: u64, word: u64) {
        let Some(own) = self.words.get(index as usize) else { return };
        let word = word & mask(&self.all(), index);
        let before = own.fetch_or(word, Ordering::AcqRel);
        self.set.fetch_add(u64::from((word & !before).count_ones()), Ordering::AcqRel);
    }

    /// Clears bits.
    pub(crate) fn clear(&self, range: Range<u64>) {
        for index in range.start / 64..range.end.div_ceil(64) {
            let word = mask(&range, index);
            let before = self.words[index as usize].fetch_and(!word, Ordering::AcqRel);
            self.set.fetch_sub(u64::from((word & before).count_ones()), Ordering::AcqRel);
        }
    }

    /// One word.
    pub(crate) fn word(&self, index: u64) -> u64 {
        self.words.get(index as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Number of words.
    pub(crate) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    /// True when some bit of the range is set.
    pub(crate) fn any(&self, range: Range<u64>) -> bool {
        let mut indexes = range.start / 64..range.end.div_ceil(64);
        indexes.any(|index| self.word(index) & mask(&range, index) != 0)
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u64 {
        self.set.load(Ordering::Acquire)
    }

    /// Bytes that the set bits stand for.
    pub(crate) fn bytes(&self) -> u64 {
        self.count() * self.bit_bytes
    }

    /// The first run of set bits from `from` on, at most `most` of them.
    pub(crate) fn next_run(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let start = self.find(from, true)?;
        let end = self.find(start, false).unwrap_or(self.bits);
        Some(start..end.min(start + most.max(1)))
    }

    fn find(&self, from: u64, wanted: bool) -> Option<u64> {
        let mut index = from / 64;
        let mut skip = from % 64;
        while index < self.words() {
            let word = if wanted { self.word(index) } else { !self.word(index) };
            let rest = word >> skip << skip;
            if rest != 0 {
                let bit = index * 64 + u64::from(rest.trailing_zeros());
                return (bit < self.bits).then_some(bit);
            }
            (index, skip) = (index + 1, 0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_bits(
            bits in 1u64..300,
            steps in prop::collection::vec((any::<bool>(), 0u64..300, 0u64..300), 0..30),
            from in 0u64..300,
            most in 1u64..100,
        ) {
            let todo = Todo::new(bits, 4096);
            let mut model = vec![false; bits as usize];
            for (set, a, b) in steps {
                let (start, end) = (a.min(b).min(bits), a.max(b).min(bits));
                if set { todo.set(start..end) } else { todo.clear(start..end) }
                model[start as usize..end as usize].fill(set);
            }
            prop_assert_eq!(todo.count(), model.iter().filter(|bit| **bit).count() as u64);
            let start = (from..bits).find(|bit| model[*bit as usize]);
            let run = start.map(|start| {
                let end = (start..bits).find(|bit| !model[*bit as usize]).unwrap_or(bits);
                start..end.min(start + most)
            });
            prop_assert_eq!(todo.next_run(from, most), run);
            prop_assert_eq!(todo.any(0..bits), todo.count() > 0);
        }
    }

    #[test]
    fn bits_beyond_the_volume_are_not_taken_over() {
        let todo = Todo::new(70, 4096);
        todo.merge(1, u64::MAX);
        todo.merge(2, u64::MAX);
        assert_eq!(todo.count(), 6);
        assert_eq!(todo.bits_of(4095, 2), 0..2);
        assert_eq!(todo.bytes(), 6 * 4096);
    }
}
