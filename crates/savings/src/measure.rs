//! Measurement of one run: zero blocks, size in compressed units, fingerprints.

use lz4_flex::block::{compress_into, get_maximum_output_size};
use zstd::bulk::Compressor;

use crate::{BLOCK_BYTES, UNIT_BYTES};

/// zstd level of a pool's cleaner.
const ZSTD_LEVEL: i32 = 3;

/// Counts of one run, in blocks of [`BLOCK_BYTES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFacts {
    /// Number of the run in the source.
    pub run: u64,
    /// Blocks that were read.
    pub blocks: u32,
    pub zeroes: u32,
    /// Blocks that the others take, compressed by unit.
    pub lz4: u32,
    pub zstd: u32,
    /// Fingerprints of the blocks that are not zeroes: the first 8 bytes of BLAKE3.
    pub fingerprints: Vec<u64>,
    /// Byte ranges that could not be read: offset, length, and the reason.
    pub unreadable: Vec<(u64, u64, String)>,
}

/// Measures the blocks of a run. `readable` says of each block whether it was read; a short last
/// block is continued with zeroes by the caller.
pub fn measure(run: u64, data: &[u8], readable: impl Fn(usize) -> bool) -> RunFacts {
    let mut facts = RunFacts { run, ..RunFacts::default() };
    let mut zstd = Compressor::new(ZSTD_LEVEL).ok();
    let mut scratch = vec![0; get_maximum_output_size(UNIT_BYTES).max(2 * UNIT_BYTES)];
    let mut unit = Vec::with_capacity(UNIT_BYTES);
    for (number, blocks) in data.chunks(UNIT_BYTES).enumerate() {
        unit.clear();
        for (at, block) in blocks.chunks(BLOCK_BYTES).enumerate() {
            if !readable(number * UNIT_BYTES / BLOCK_BYTES + at) {
                continue;
            }
            facts.blocks += 1;
            if block.iter().all(|byte| *byte == 0) {
                facts.zeroes += 1;
                continue;
            }
            facts.fingerprints.push(fingerprint(block));
            unit.extend_from_slice(block);
        }
        let lz4 = compress_into(&unit, &mut scratch).ok();
        facts.lz4 += stored(unit.len(), lz4);
        let zstd =
            zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(&unit, &mut scratch[..]).ok());
        facts.zstd += stored(unit.len(), zstd);
    }
    facts
}

fn fingerprint(block: &[u8]) -> u64 {
    let hash = blake3::hash(block);
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"))
}

/// Blocks that a unit takes in a pool: compressed only if that is at most 7/8.
fn stored(bytes: usize, compressed: Option<usize>) -> u32 {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let compressed = compressed.map_or(blocks, |bytes| bytes.div_ceil(BLOCK_BYTES));
    let kept = compressed * 8 <= blocks * 7;
    u32::try_from(if kept { compressed } else { blocks }).expect("a unit is small")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_kept_at_seven_eighths() {
        assert_eq!(stored(8 * BLOCK_BYTES, Some(7 * BLOCK_BYTES)), 7);
        assert_eq!(stored(8 * BLOCK_BYTES, Some(7 * BLOCK_BYTES + 1)), 8);
        assert_eq!(stored(BLOCK_BYTES, Some(10)), 1);
        assert_eq!(stored(0, Some(1)), 0);
    }
}
