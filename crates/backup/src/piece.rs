//! Piece of a pack: up to 64 blocks, compressed with Zstandard if that makes them shorter.

use crate::id::Checksum;
use crate::index::PieceRef;
use crate::limits::{BLOCK_BYTES, PIECE_BYTES_MAX};

/// Level of compression: fast enough for the network.
const LEVEL: i32 = 3;

/// Stored form of `content`, and whether it is compressed.
pub(crate) fn store(content: &[u8]) -> (Vec<u8>, bool) {
    debug_assert!(content.len() <= PIECE_BYTES_MAX && !content.is_empty());
    match zstd::bulk::compress(content, LEVEL) {
        Ok(short) if short.len() < content.len() => (short, true),
        _ => (content.to_vec(), false),
    }
}

/// Content of a piece, from its stored form.
///
/// # Errors
/// The contradiction.
pub(crate) fn load(piece: &PieceRef, stored: &[u8]) -> Result<Vec<u8>, &'static str> {
    let len = usize::from(piece.blocks) * BLOCK_BYTES as usize;
    let content = match piece.is_zstd {
        true => {
            zstd::bulk::decompress(stored, len).map_err(|_| "a piece cannot be decompressed")?
        }
        false => stored.to_vec(),
    };
    if content.len() != len {
        return Err("a piece has the wrong length");
    }
    match Checksum::of(&content) == piece.checksum {
        true => Ok(content),
        false => Err("the checksum of a piece is wrong"),
    }
}
