//! Stamps: the content of each sector of a verified block.
//!
//! | bytes | what (little-endian) |
//! | --- | --- |
//! | 0..4 | magic `FSV1` |
//! | 4..8 | CRC32C of bytes 8..512 |
//! | 8..16 | device offset of the sector, in bytes |
//! | 16..24 | run |
//! | 24..28 | generation of the block |
//! | 28..32 | writer |
//! | 32..508 | incompressible fill |
//! | 508..512 | generation again |

use std::fmt;

use flagstone_runtime::rng::{Rng, split_mix64};

use super::{long, word};

/// Unit of stamps, in bytes: the smallest block size of any device.
pub(crate) const SECTOR_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"FSV1";
const FILL_AT: usize = 32;
const TAIL_AT: usize = SECTOR_BYTES - 4;
const FILL_BYTES: usize = TAIL_AT - FILL_AT;
/// Length of the random bytes from which sectors are filled.
const TEMPLATE_BYTES: usize = 16 << 10;

/// Content of a block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampReading {
    Zeroes,
    /// A whole block of this run, at its offset.
    Stamp {
        generation: u32,
        writer: u32,
    },
    /// A whole block of another run, at its offset.
    OtherRun {
        run_id: u64,
        generation: u32,
    },
    /// A sector stamped for another offset.
    Misplaced {
        /// Offset at which it was found, in bytes.
        at: u64,
        /// Offset in its stamp, in bytes.
        belongs_at: u64,
        generation: u32,
        /// Whether this run wrote it.
        ours: bool,
    },
    /// Sectors of different writes; `None` is a sector without a valid stamp.
    Torn {
        /// Offset of the first sector that differs from the earlier ones, in bytes.
        at: u64,
        /// Generation before that sector.
        before: Option<u32>,
        /// Generation from that sector on.
        after: Option<u32>,
        /// Whether this run wrote any part of the block.
        ours: bool,
    },
    /// A stamp with a wrong checksum.
    Corrupt {
        /// Offset of the sector, in bytes.
        at: u64,
        /// Whether this run wrote any part of the block.
        ours: bool,
    },
    /// Bytes without a stamp.
    Foreign,
}

impl StampReading {
    /// Whether this run wrote any part of it.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            StampReading::Stamp { .. } => true,
            StampReading::Misplaced { ours, .. }
            | StampReading::Torn { ours, .. }
            | StampReading::Corrupt { ours, .. } => *ours,
            StampReading::Zeroes | StampReading::OtherRun { .. } | StampReading::Foreign => false,
        }
    }
}

impl fmt::Display for StampReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |generation: &Option<u32>| match generation {
            Some(generation) => format!("generation {generation}"),
            None => "no valid stamp".to_owned(),
        };
        match self {
            StampReading::Zeroes => f.write_str("zeroes"),
            StampReading::Stamp { generation, writer } => {
                write!(f, "generation {generation} of writer {writer}")
            }
            StampReading::OtherRun { run_id, generation } => {
                write!(f, "generation {generation} of another run ({run_id:016x})")
            }
            StampReading::Misplaced { at, belongs_at, generation, ours } => {
                let run = if *ours { "this run" } else { "another run" };
                write!(
                    f,
                    "generation {generation} of {run} at offset {at}, which belongs at {belongs_at}"
                )
            }
            StampReading::Torn { at, before, after, .. } => {
                write!(f, "{} up to offset {at} and {} from there", name(before), name(after))
            }
            StampReading::Corrupt { at, .. } => {
                write!(f, "a stamp at offset {at} whose checksum is wrong")
            }
            StampReading::Foreign => f.write_str("bytes without a stamp"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sector {
    Zeroes,
    Foreign,
    Corrupt,
    /// Head and tail of the sector have different generations.
    TornInside {
        head: u32,
        tail: u32,
    },
    Stamp {
        offset: u64,
        run_id: u64,
        generation: u32,
        writer: u32,
    },
}

/// Writes and reads the stamps of one run and writer.
#[derive(Debug)]
pub(crate) struct Stamper {
    run_id: u64,
    writer: u32,
    template: Box<[u8]>,
}

impl Stamper {
    pub(crate) fn new(run_id: u64, writer: u32) -> Stamper {
        let mut template = vec![0; TEMPLATE_BYTES].into_boxed_slice();
        Rng::new(run_id ^ u64::from(writer)).fill(&mut template);
        Stamper { run_id, writer, template }
    }

    /// Stamps every sector of a block at `offset` bytes.
    pub(crate) fn fill(&self, offset: u64, generation: u32, block: &mut [u8]) {
        for (index, sector) in block.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let at = offset + (index * SECTOR_BYTES) as u64;
            let mut state = at ^ (u64::from(generation) << 32);
            let cut = split_mix64(&mut state) as usize % (TEMPLATE_BYTES - FILL_BYTES);
            sector[..4].copy_from_slice(&MAGIC);
            sector[8..16].copy_from_slice(&at.to_le_bytes());
            sector[16..24].copy_from_slice(&self.run_id.to_le_bytes());
            sector[24..28].copy_from_slice(&generation.to_le_bytes());
            sector[28..32].copy_from_slice(&self.writer.to_le_bytes());
            sector[FILL_AT..TAIL_AT].copy_from_slice(&self.template[cut..cut + FILL_BYTES]);
            sector[TAIL_AT..].copy_from_slice(&generation.to_le_bytes());
            let crc = crc_fast::crc32_iscsi(&sector[8..]);
            sector[4..8].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Classifies a block that was read at `offset` bytes.
    pub(crate) fn read(&self, offset: u64, block: &[u8]) -> StampReading {
        let mut sectors = block.chunks_exact(SECTOR_BYTES).map(read_sector).zip(0_u64..);
        let place = |index: u64| offset + index * SECTOR_BYTES as u64;
        let Some((first, _)) = sectors.next() else { return StampReading::Foreign };
        let odd = sectors.find(|(sector, index)| {
            let placed =
                !matches!(sector, Sector::Stamp { offset, .. } if *offset != place(*index));
            !placed || !same_write(&first, sector)
        });
        let first_placed = !matches!(first, Sector::Stamp { offset: at, .. } if at != offset);
        if (odd.is_some() || !first_placed)
            && let Some(found) = self.misplaced(offset, block)
        {
            return found;
        }
        let ours =
            || block.chunks_exact(SECTOR_BYTES).any(|sector| self.is_ours(&read_sector(sector)));
        if let Some((sector, index)) = odd {
            let (before, after) = (generation_of(&first), generation_of(&sector));
            return StampReading::Torn { at: place(index), before, after, ours: ours() };
        }
        match first {
            Sector::Zeroes => StampReading::Zeroes,
            Sector::Foreign => StampReading::Foreign,
            Sector::Corrupt => StampReading::Corrupt { at: offset, ours: ours() },
            Sector::TornInside { head, tail } => StampReading::Torn {
                at: offset,
                before: Some(head),
                after: Some(tail),
                ours: ours(),
            },
            Sector::Stamp { run_id, generation, writer, .. } if run_id == self.run_id => {
                StampReading::Stamp { generation, writer }
            }
            Sector::Stamp { run_id, generation, .. } => {
                StampReading::OtherRun { run_id, generation }
            }
        }
    }

    fn misplaced(&self, offset: u64, block: &[u8]) -> Option<StampReading> {
        block.chunks_exact(SECTOR_BYTES).enumerate().find_map(|(index, sector)| {
            let at = offset + (index * SECTOR_BYTES) as u64;
            match read_sector(sector) {
                Sector::Stamp { offset: belongs_at, run_id, generation, .. }
                    if belongs_at != at =>
                {
                    let ours = run_id == self.run_id;
                    Some(StampReading::Misplaced { at, belongs_at, generation, ours })
                }
                _ => None,
            }
        })
    }

    fn is_ours(&self, sector: &Sector) -> bool {
        matches!(sector, Sector::Stamp { run_id, .. } if *run_id == self.run_id)
    }
}

/// Whether two sectors of a block may come from one write.
fn same_write(first: &Sector, other: &Sector) -> bool {
    match (first, other) {
        (
            Sector::Stamp { run_id, generation, writer, .. },
            Sector::Stamp { run_id: run_2, generation: generation_2, writer: writer_2, .. },
        ) => (run_id, generation, writer) == (run_2, generation_2, writer_2),
        (first, other) => first == other,
    }
}

fn generation_of(sector: &Sector) -> Option<u32> {
    match sector {
        Sector::Stamp { generation, .. } => Some(*generation),
        _ => None,
    }
}

fn read_sector(sector: &[u8]) -> Sector {
    if sector[..4] != MAGIC {
        let zeroes = sector.iter().all(|byte| *byte == 0);
        return if zeroes { Sector::Zeroes } else { Sector::Foreign };
    }
    if crc_fast::crc32_iscsi(&sector[8..]) == word(sector, 4) {
        let (offset, run_id) = (long(sector, 8), long(sector, 16));
        return Sector::Stamp {
            offset,
            run_id,
            generation: word(sector, 24),
            writer: word(sector, 28),
        };
    }
    let (head, tail) = (word(sector, 24), word(sector, TAIL_AT));
    if head == tail { Sector::Corrupt } else { Sector::TornInside { head, tail } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(offset: u64, generation: u32) -> Vec<u8> {
        let mut block = vec![0; 4096];
        Stamper::new(7, 1).fill(offset, generation, &mut block);
        block
    }

    fn read(offset: u64, block: &[u8]) -> StampReading {
        Stamper::new(7, 1).read(offset, block)
    }

    #[test]
    fn stamped_block_reads_back() {
        let stamp = StampReading::Stamp { generation: 3, writer: 1 };
        assert_eq!(read(8192, &block(8192, 3)), stamp);
        assert_eq!(read(8192, &[0; 4096]), StampReading::Zeroes);
        assert_eq!(read(8192, &[9; 4096]), StampReading::Foreign);
        let other = Stamper::new(8, 1).read(8192, &block(8192, 3));
        assert_eq!(other, StampReading::OtherRun { run_id: 7, generation: 3 });
    }

    #[test]
    fn any_flipped_bit_is_detected() {
        let good = block(0, 5);
        for bit in (0..good.len() * 8).step_by(37) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(read(0, &bad), StampReading::Stamp { .. }), "bit {bit}");
        }
    }

    #[test]
    fn torn_and_misplaced_blocks_are_distinguished() {
        let mut torn = block(0, 5);
        torn[1024..].copy_from_slice(&block(0, 6)[1024..]);
        let expected = StampReading::Torn { at: 1024, before: Some(5), after: Some(6), ours: true };
        assert_eq!(read(0, &torn), expected);
        let mut half = block(0, 5);
        half[2048..].fill(0);
        let expected = StampReading::Torn { at: 2048, before: Some(5), after: None, ours: true };
        assert_eq!(read(0, &half), expected);
        let mut inside = block(0, 5);
        inside[300..512].copy_from_slice(&block(0, 6)[300..512]);
        assert!(matches!(read(0, &inside), StampReading::Torn { .. }));
        let expected =
            StampReading::Misplaced { at: 4096, belongs_at: 0, generation: 5, ours: true };
        assert_eq!(read(4096, &block(0, 5)), expected);
    }
}
