//! Sparse byte store: a disk of any size that uses memory only for written blocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Unit of allocation, in bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;

type Block = Box<[u8; BLOCK_BYTES as usize]>;

static ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// Bytes that are zero until written.
#[derive(Default)]
pub(crate) struct Store {
    blocks: BTreeMap<u64, Block>,
}

/// The parts of `offset..offset + len` in single blocks: (block, range in the block, position in
/// the whole).
fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done;
        let within = at % BLOCK_BYTES;
        let count = (BLOCK_BYTES - within).min(len - done);
        let part = (at / BLOCK_BYTES, within as usize..(within + count) as usize, done as usize);
        done += count;
        Some(part)
    })
}

pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}

impl Store {
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for (block, range, at) in parts(offset, out.len() as u64) {
            let out = &mut out[at..at + range.len()];
            match self.blocks.get(&block) {
                Some(bytes) => out.copy_from_slice(&bytes[range]),
                None => out.fill(0),
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        for (block, range, at) in parts(offset, data.len() as u64) {
            let bytes = self.blocks.entry(block).or_insert_with(|| Box::new([0; 4096]));
            bytes[range.clone()].copy_from_slice(&data[at..at + range.len()]);
        }
    }

    /// Zeroes a range; whole blocks are freed.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let blocks: Vec<u64> = self.allocated(offset, len).collect();
        for block in blocks {
            let start = block * BLOCK_BYTES;
            let from = offset.max(start) - start;
            let to = (offset + len).min(start + BLOCK_BYTES) - start;
            if to - from == BLOCK_BYTES {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                bytes[from as usize..to as usize].fill(0);
            }
        }
    }

    /// The allocated blocks that a range touches.
    pub(crate) fn allocated(&self, offset: u64, len: u64) -> impl Iterator<Item = u64> {
        self.blocks.range(blocks_of(offset, len)).map(|(block, _)| *block)
    }

    /// Bytes that writing a range would allocate.
    pub(crate) fn missing_bytes(&self, offset: u64, len: u64) -> u64 {
        let blocks = blocks_of(offset, len);
        let had = self.blocks.range(blocks.clone()).count() as u64;
        (blocks.end - blocks.start - had) * BLOCK_BYTES
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// First byte of the first `len` that differs from another store.
    pub(crate) fn first_difference(&self, other: &Store, len: u64) -> Option<u64> {
        parts(0, len).find_map(|(block, range, at)| {
            let (a, b) = (self.blocks.get(&block), other.blocks.get(&block));
            let [a, b] = [a, b].map(|bytes| &bytes.map_or(&ZEROES, |bytes| bytes)[range.clone()]);
            if a == b {
                return None;
            }
            let within = a.iter().zip(b).position(|(a, b)| a != b)?;
            Some((at + within) as u64)
        })
    }

    pub(crate) fn copy_block(&mut self, block: u64, from: &Store) {
        match from.blocks.get(&block) {
            Some(bytes) => drop(self.blocks.insert(block, bytes.clone())),
            None => drop(self.blocks.remove(&block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sparse_disk_uses_memory_only_for_written_blocks() {
        let mut store = Store::default();
        store.write(1 << 40, &[7; 10]);
        assert_eq!(store.missing_bytes((1 << 40) - 1, 2), 4096);
        store.zero(0, 1 << 41);
        assert_eq!(store.allocated_bytes(), 0);
    }

    #[test]
    fn first_difference_of_two_stores_is_found() {
        let mut stores = [Store::default(), Store::default()];
        stores[0].write(0, &[0; 5000]);
        assert_eq!(stores[0].first_difference(&stores[1], 10_000), None);
        stores[1].write(9000, &[0, 7]);
        assert_eq!(stores[0].first_difference(&stores[1], 10_000), Some(9001));
        assert_eq!(stores[1].first_difference(&stores[0], 9001), None);
    }

    proptest! {
        /// A store equals a vector after any writes and zeroing.
        #[test]
        fn store_equals_vector_model(steps in prop::collection::vec((0_usize..20_000, 0_usize..9000, 0_u8..4), 1..40)) {
            let mut store = Store::default();
            let mut model = vec![0_u8; 30_000];
            for (offset, len, value) in steps {
                model[offset..offset + len].fill(value);
                if value == 0 {
                    store.zero(offset as u64, len as u64);
                } else {
                    store.write(offset as u64, &vec![value; len]);
                }
                let mut read = vec![9; 30_000];
                store.read(0, &mut read);
                prop_assert!(read == model);
            }
        }
    }
}
