//! Compression of writes, and inflation.
//!
//! Guarantees:
//! - once a core has set up a codec, a write allocates nothing on the heap: contexts and the
//!   scratch buffer are kept, one set per core for all mirrors;
//! - inflation fills exactly the buffer that it is given, or fails: a hostile source cannot make it
//!   write or hold more.

use std::cell::RefCell;

use flagstone_nvme::replica::Codec;
use flagstone_nvme::replica::compressed::COMPRESSED_ALIGN_BYTES;
use flagstone_nvmf_host::Compressed;
use flagstone_runtime::buf;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::limits::{PART_BYTES, SAVED_PART, ZSTD_LEVEL};

/// LZ4 uses a smaller table for shorter data.
const SMALL_BYTES: usize = u16::MAX as usize;

#[derive(Default)]
struct Tools {
    lz4: Option<Lz4>,
    zstd: Option<Compressor<'static>>,
    unzstd: Option<Decompressor<'static>>,
    /// Compressed data, until its length is known.
    scratch: Vec<u8>,
}

/// Tables for short and for long data.
struct Lz4 {
    small: CompressTable,
    large: CompressTable,
}

thread_local! {
    /// Compression and inflation never await, so one set per core is sufficient.
    static TOOLS: RefCell<Tools> = RefCell::default();
}

/// Compresses at most one part of a write (256 KiB), on a core of the runtime. `None` when it is
/// not worthwhile or there is no memory for the result: the data is then sent uncompressed.
pub fn compress(codec: Codec, data: &[u8]) -> Option<Compressed> {
    let room = data.len() - data.len() / SAVED_PART;
    if data.len() as u64 > PART_BYTES {
        return None;
    }
    TOOLS.with_borrow_mut(|tools| {
        let len = match codec {
            Codec::Lz4 => tools.lz4(data),
            Codec::Zstd => tools.zstd(data, room),
        }?;
        let filled = len.next_multiple_of(COMPRESSED_ALIGN_BYTES);
        if len == 0 || filled > room {
            return None;
        }
        let mut buffer = buf::try_alloc(filled)?;
        buffer[..len].copy_from_slice(&tools.scratch[..len]);
        buffer[len..].fill(0);
        Some(Compressed { data: buffer.freeze(), bytes: u32::try_from(len).ok()?, codec })
    })
}

/// Inflates into the whole of `buffer`. Returns false when `data` does not inflate to exactly that
/// size; `buffer` is undefined then.
pub fn inflate(codec: Codec, data: &[u8], buffer: &mut [u8]) -> bool {
    let len = match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(data, buffer).ok(),
        Codec::Zstd => TOOLS.with_borrow_mut(|tools| {
            let made = match tools.unzstd.take() {
                Some(tool) => Some(tool),
                None => Decompressor::new().ok(),
            };
            tools.unzstd = made;
            tools.unzstd.as_mut()?.decompress_to_buffer(data, buffer).ok()
        }),
    };
    len == Some(buffer.len())
}

impl Tools {
    /// Space for the largest possible result.
    fn scratch(&mut self) -> &mut [u8] {
        if self.scratch.is_empty() {
            self.scratch.resize(get_maximum_output_size(PART_BYTES as usize), 0);
        }
        &mut self.scratch
    }

    fn lz4(&mut self, data: &[u8]) -> Option<usize> {
        self.scratch();
        let tables = self.lz4.get_or_insert_with(|| Lz4 {
            small: CompressTable::small(),
            large: CompressTable::large(),
        });
        let table = match data.len() < SMALL_BYTES {
            true => &mut tables.small,
            false => &mut tables.large,
        };
        compress_into_with_table(data, &mut self.scratch, table).ok()
    }

    /// Fails as soon as the result exceeds `room`.
    fn zstd(&mut self, data: &[u8], room: usize) -> Option<usize> {
        self.scratch();
        if self.zstd.is_none() {
            self.zstd = Compressor::new(ZSTD_LEVEL).ok();
        }
        self.zstd.as_mut()?.compress_to_buffer(data, &mut self.scratch[..room]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::block_on;
    use proptest::prelude::*;

    /// Runs on a core of the runtime, because results are pooled buffers.
    fn on_a_core<T>(run: impl FnOnce() -> T) -> T {
        block_on(async { run() }).expect("the runtime starts")
    }

    fn round_trip(codec: Codec, data: &[u8]) -> Option<usize> {
        let compressed = compress(codec, data)?;
        let bytes = compressed.bytes as usize;
        assert_eq!(compressed.data.len(), bytes.next_multiple_of(4));
        assert!(compressed.data[bytes..].iter().all(|byte| *byte == 0));
        let mut buffer = vec![0xee; data.len()];
        assert!(inflate(codec, &compressed.data[..bytes], &mut buffer));
        assert!(buffer == data);
        // A longer or shorter buffer is refused.
        for other in [data.len() - 1, data.len() + 1] {
            assert!(!inflate(codec, &compressed.data[..bytes], &mut vec![0; other]), "{other}");
        }
        assert!(!inflate(codec, &compressed.data[..bytes - 1], &mut buffer), "cut short");
        Some(bytes)
    }

    #[test]
    fn compressible_data_round_trips() {
        on_a_core(|| {
            for codec in Codec::ALL {
                for len in [512, 4096, 65_536, PART_BYTES as usize] {
                    let text: Vec<u8> = (0..len).map(|at| b"flagstone "[at % 10]).collect();
                    let bytes = round_trip(codec, &text).expect("the data shrinks");
                    assert!(bytes < len / 4, "{codec:?} {len}: {bytes}");
                }
            }
        });
    }

    #[test]
    fn incompressible_data_is_sent_plain() {
        on_a_core(|| {
            let noise: Vec<u8> = (0..65_536 / 8)
                .flat_map(|_| flagstone_runtime::random_u64().to_le_bytes())
                .collect();
            for codec in Codec::ALL {
                assert!(compress(codec, &noise).is_none(), "{codec:?}");
                assert!(compress(codec, &vec![0; PART_BYTES as usize + 1]).is_none(), "too long");
            }
        });
    }

    #[test]
    fn decompression_bomb_is_refused() {
        on_a_core(|| {
            for codec in Codec::ALL {
                let bomb = compress(codec, &vec![0; PART_BYTES as usize]).expect("zeroes shrink");
                assert!(bomb.bytes < 2048, "{codec:?}");
                let mut buffer = [7; 4096];
                assert!(!inflate(codec, &bomb.data[..bomb.bytes as usize], &mut buffer));
            }
        });
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_inflate_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            len in 1usize..2000,
            zstd: bool,
        ) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            inflate(codec, &bytes, &mut vec![0; len]);
        }

        /// A frame changed in transit. Digests detect that, but a hostile source can compute its
        /// own.
        #[test]
        fn corrupted_frames_inflate_or_are_refused(at: usize, change in 1u8.., zstd: bool) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            on_a_core(|| {
                let data: Vec<u8> = (0..4096).map(|at| (at / 7) as u8).collect();
                let compressed = compress(codec, &data).expect("the data shrinks");
                let mut bytes = compressed.data[..compressed.bytes as usize].to_vec();
                let at = at % bytes.len();
                bytes[at] ^= change;
                inflate(codec, &bytes, &mut vec![0; 4096]);
            });
        }
    }
}
