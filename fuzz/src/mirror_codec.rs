//! Fuzz target for compressed mirror data: hostile input to decompress, and round trips.
//!
//! Input: a byte of parameters (1: Zstandard, otherwise LZ4; 2: the rest is data to compress), a
//! length less 1 (3 bytes, little-endian), then bytes. The length is the claimed length of the
//! decompressed data, or the length to which the bytes are repeated before compression.
//!
//! Decompression writes exactly the claimed length, only from the input, and no byte beyond it; no
//! other length succeeds. Compressed data is shorter and decompresses to the original.

use flagstone_nvme::replica::compressed::{COMPRESSED_ALIGN_BYTES, INFLATED_MAX_BYTES};
use flagstone_replication::Codec;
use flagstone_replication::codec::{compress, inflate};
use flagstone_runtime::sim::{SimConfig, Simulation};

/// Guard bytes before and after the output buffer.
const GUARD_BYTES: usize = 64;
/// Initial content of the guards and the buffer, as if left by an earlier use.
const OLD: u8 = 0xA5;
/// A second initial content.
const OLDER: u8 = 0x3C;
/// More than one part of a write, which is the most that is compressed.
const DATA_MAX_BYTES: usize = 300 << 10;

/// Decompresses, or compresses and decompresses.
pub fn run(input: &[u8]) {
    let [parameters, low, middle, high, bytes @ ..] = input else { return };
    let codec = if parameters & 1 == 0 { Codec::Lz4 } else { Codec::Zstd };
    let len = u32::from_le_bytes([*low, *middle, *high, 0]) as usize + 1;
    match parameters & 2 == 0 {
        true => hostile(codec, bytes, 1 + (len - 1) % INFLATED_MAX_BYTES as usize),
        false => round_trip(codec, bytes, len.min(DATA_MAX_BYTES)),
    }
}

/// Decompresses into a buffer between guards; `None` if that is refused.
fn inflated(codec: Codec, bytes: &[u8], len: usize, old: u8) -> Option<Vec<u8>> {
    let mut memory = vec![old; GUARD_BYTES + len + GUARD_BYTES];
    let done = inflate(codec, bytes, &mut memory[GUARD_BYTES..GUARD_BYTES + len]);
    let behind = memory.split_off(GUARD_BYTES + len);
    let place = memory.split_off(GUARD_BYTES);
    assert!(memory.iter().chain(&behind).all(|byte| *byte == old), "more than requested");
    done.then_some(place)
}

fn hostile(codec: Codec, bytes: &[u8], len: usize) {
    let Some(found) = inflated(codec, bytes, len, OLD) else { return };
    // The result must not depend on the earlier content of the memory.
    assert_eq!(inflated(codec, bytes, len, OLDER), Some(found), "an earlier use's data");
    for other in [len - 1, len + 1] {
        assert_eq!(inflated(codec, bytes, other, OLD), None, "two lengths");
    }
}

fn round_trip(codec: Codec, bytes: &[u8], len: usize) {
    let data: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
    // Its result is a pooled buffer, which needs a core of the runtime.
    let simulation = Simulation::new(0, SimConfig::default());
    simulation.block_on(async move {
        let Some(compressed) = compress(codec, &data) else { return };
        let sent = compressed.bytes as usize;
        assert!(compressed.data.len() < data.len(), "nothing is saved");
        assert_eq!(compressed.data.len(), sent.next_multiple_of(COMPRESSED_ALIGN_BYTES));
        let (sent, filled) = compressed.data.split_at(sent);
        assert!(filled.iter().all(|byte| *byte == 0), "an earlier use's data");
        assert_eq!(inflated(codec, sent, data.len(), OLD).as_deref(), Some(&data[..]));
        hostile(codec, sent, data.len());
    });
}
