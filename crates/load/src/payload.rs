//! Payload of plain writes: slices of one buffer, filled once.

use std::sync::Arc;

use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, buf};
use serde::{Deserialize, Serialize};

/// Alignment of slices, so that they can go to a disk without a copy.
const ALIGN: usize = 4096;

/// Length of the parts of compressible data, in bytes: one block.
const PART_BYTES: usize = 4096;

/// Content of the written data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteData {
    /// Random bytes, incompressible.
    #[default]
    Random,
    /// Blocks of 4 KiB that end with this percentage of zeroes, from 0 to 99, after random bytes.
    /// Any code shrinks them by about that share.
    Compressible(u8),
    /// Repetitions of a sample, such as a part of a file.
    Sample(Arc<[u8]>),
}

/// Name of a [`WriteData`] in results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteDataKind {
    /// [`WriteData::Random`].
    #[default]
    Random,
    /// [`WriteData::Compressible`], with its percentage.
    Compressible(u8),
    /// [`WriteData::Sample`].
    Sample,
}

impl WriteData {
    /// The kind of data.
    pub fn kind(&self) -> WriteDataKind {
        match self {
            WriteData::Random => WriteDataKind::Random,
            WriteData::Compressible(percent) => WriteDataKind::Compressible(*percent),
            WriteData::Sample(_) => WriteDataKind::Sample,
        }
    }

    /// Fills a buffer.
    fn fill(&self, seed: u64, bytes: &mut [u8]) {
        match self {
            WriteData::Random => Rng::new(seed).fill(bytes),
            WriteData::Compressible(percent) => {
                let mut rng = Rng::new(seed);
                for part in bytes.chunks_mut(PART_BYTES) {
                    let random = part.len() - part.len() * usize::from(*percent) / 100;
                    rng.fill(&mut part[..random]);
                    part[random..].fill(0);
                }
            }
            WriteData::Sample(sample) => {
                for part in bytes.chunks_mut(sample.len()) {
                    part.copy_from_slice(&sample[..part.len()]);
                }
            }
        }
    }
}

/// Data of a core.
pub(crate) struct Payload {
    bytes: Buf,
    next: usize,
}

impl Payload {
    /// `bytes` bytes of data; `None` at the limit of pooled memory.
    pub(crate) fn new(data: &WriteData, seed: u64, bytes: usize) -> Option<Payload> {
        let mut buf = buf::try_alloc(bytes)?;
        data.fill(seed, &mut buf);
        Some(Payload { bytes: buf.freeze(), next: 0 })
    }

    /// The next `len` bytes, at most the total.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> Buf {
        if self.next + len > self.bytes.len() {
            self.next = 0;
        }
        let at = self.next;
        self.next += len.next_multiple_of(ALIGN);
        self.bytes.slice(at..at + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_slices_are_aligned_and_differ() {
        let mut payload = Payload::new(&WriteData::Random, 1, 16384).unwrap();
        let slices: Vec<Buf> = (0..5).map(|_| payload.next(4000)).collect();
        assert!(slices.iter().all(|slice| slice.len() == 4000 && slice.is_aligned(4096)));
        assert_ne!(slices[0][..], slices[1][..]);
        assert_eq!(slices[0][..], slices[4][..]);
        assert_eq!(payload.next(16384).len(), 16384);
    }

    #[test]
    fn compressible_payload_ends_blocks_with_zeroes() {
        let mut payload = Payload::new(&WriteData::Compressible(75), 1, 16384).unwrap();
        for _ in 0..4 {
            let block = payload.next(4096);
            assert!(block[1024..].iter().all(|byte| *byte == 0));
            assert!(block[..1024].iter().filter(|byte| **byte == 0).count() < 100);
        }
    }

    #[test]
    fn sample_repeats_until_payload_is_full() {
        let sample: Arc<[u8]> = (0..6000_u32).map(|at| (at % 251) as u8).collect();
        let mut payload = Payload::new(&WriteData::Sample(sample.clone()), 1, 16384).unwrap();
        let all = payload.next(16384);
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == sample[at % 6000]));
    }
}
