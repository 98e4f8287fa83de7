//! Compressing what is written, and inflating it again.
//!
//! Promises:
//! - nothing is taken from the heap for a write, once a core has the tools of a codec: contexts and
//!   the scratch are kept, one set a core whatever the number of mirrors;
//! - inflating fills exactly the place that it is given, or fails: a hostile source cannot make it
//!   write or hold more, whatever it sends.

use std::cell::RefCell;

use flagstone_nvme::replica::Codec;
use flagstone_nvme::replica::compressed::COMPRESSED_ALIGN_BYTES;
use flagstone_nvmf::host::Compressed;
use flagstone_runtime::buf;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::limits::{PART_BYTES, SAVED_PART, ZSTD_LEVEL};

/// Shorter data has small places in LZ4's table.
const SMALL_BYTES: usize = u16::MAX as usize;

#[derive(Default)]
struct Tools {
    lz4: Option<Lz4>,
    zstd: Option<Compressor<'static>>,
    unzstd: Option<Decompressor<'static>>,
    /// Compressed data, before it is known how long it is.
    scratch: Vec<u8>,
}

/// Tables for short data, and for long.
struct Lz4 {
    small: CompressTable,
    large: CompressTable,
}

thread_local! {
    /// Neither compressing nor inflating awaits anything, so one set a core is enough.
    static TOOLS: RefCell<Tools> = RefCell::default();
}

/// Compresses at most a part of a write (256 KiB), on a core of the runtime. `None` when that is not
/// worth it, or there is no memory for the result: then it goes as it is.
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
        let mut place = buf::try_alloc(filled)?;
        place[..len].copy_from_slice(&tools.scratch[..len]);
        place[len..].fill(0);
        Some(Compressed { data: place.freeze(), bytes: u32::try_from(len).ok()?, codec })
    })
}

/// Inflates into the whole of `place`; false when that is not what `data` inflates to: what `place`
/// has in it then means nothing.
pub fn inflate(codec: Codec, data: &[u8], place: &mut [u8]) -> bool {
    let len = match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(data, place).ok(),
        Codec::Zstd => TOOLS.with_borrow_mut(|tools| {
            let made = match tools.unzstd.take() {
                Some(tool) => Some(tool),
                None => Decompressor::new().ok(),
            };
            tools.unzstd = made;
            tools.unzstd.as_mut()?.decompress_to_buffer(data, place).ok()
        }),
    };
    len == Some(place.len())
}

impl Tools {
    /// Room for whatever a part becomes.
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

    /// Fails as soon as it takes more than `room`.
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

    /// Runs on a core of the runtime: results are pooled buffers.
    fn on_a_core<T>(run: impl FnOnce() -> T) -> T {
        block_on(async { run() }).expect("a runtime")
    }

    fn round_trip(codec: Codec, data: &[u8]) -> Option<usize> {
        let compressed = compress(codec, data)?;
        let bytes = compressed.bytes as usize;
        assert_eq!(compressed.data.len(), bytes.next_multiple_of(4));
        assert!(compressed.data[bytes..].iter().all(|byte| *byte == 0));
        let mut place = vec![0xee; data.len()];
        assert!(inflate(codec, &compressed.data[..bytes], &mut place));
        assert!(place == data);
        // Neither a longer nor a shorter place is filled by it.
        for other in [data.len() - 1, data.len() + 1] {
            assert!(!inflate(codec, &compressed.data[..bytes], &mut vec![0; other]), "{other}");
        }
        assert!(!inflate(codec, &compressed.data[..bytes - 1], &mut place), "cut short");
        Some(bytes)
    }

    #[test]
    fn what_shrinks_comes_back_as_it_was() {
        on_a_core(|| {
            for codec in Codec::ALL {
                for len in [512, 4096, 65_536, PART_BYTES as usize] {
                    let text: Vec<u8> = (0..len).map(|at| b"flagstone "[at % 10]).collect();
                    let bytes = round_trip(codec, &text).expect("it shrinks");
                    assert!(bytes < len / 4, "{codec:?} {len}: {bytes}");
                }
            }
        });
    }

    #[test]
    fn what_does_not_shrink_goes_as_it_is() {
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
    fn a_bomb_fills_its_place_and_no_more() {
        on_a_core(|| {
            for codec in Codec::ALL {
                let bomb = compress(codec, &vec![0; PART_BYTES as usize]).expect("zeroes shrink");
                assert!(bomb.bytes < 2048, "{codec:?}");
                let mut place = [7; 4096];
                assert!(!inflate(codec, &bomb.data[..bomb.bytes as usize], &mut place));
            }
        });
    }

    proptest! {
        #[test]
        fn any_bytes_inflate_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            len in 1usize..2000,
            zstd: bool,
        ) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            inflate(codec, &bytes, &mut vec![0; len]);
        }

        /// A frame that was changed on its way (digests catch that; a hostile source makes its own).
        #[test]
        fn changed_frames_inflate_or_are_refused(at: usize, change in 1u8.., zstd: bool) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            on_a_core(|| {
                let data: Vec<u8> = (0..4096).map(|at| (at / 7) as u8).collect();
                let compressed = compress(codec, &data).expect("it shrinks");
                let mut bytes = compressed.data[..compressed.bytes as usize].to_vec();
                let at = at % bytes.len();
                bytes[at] ^= change;
                inflate(codec, &bytes, &mut vec![0; 4096]);
            });
        }
    }
}
