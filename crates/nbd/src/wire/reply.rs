//! "Simple reply message" and "Structured reply chunk message".

use super::request::Cookie;
use super::{Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, u16_at, u32_at, u64_at};

/// "Structured reply types".
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT | 1;
}

/// "Structured reply flags": last chunk of its reply.
pub const FLAG_DONE: u16 = 1;

/// Length of a simple reply, in bytes.
pub const SIMPLE_BYTES: usize = 16;
/// Length of a chunk's header, in bytes.
pub const CHUNK_BYTES: usize = 20;
/// Length of an OFFSET_DATA chunk without its data, in bytes.
pub const DATA_BYTES: usize = CHUNK_BYTES + 8;
/// Longest header that the server writes, including an error message, in bytes.
pub const MAX_HEADER_BYTES: usize = 128;

/// Writes a simple reply; `error` 0 is success. Returns its length.
pub fn put_simple(out: &mut [u8], cookie: Cookie, error: u32) -> usize {
    out[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.0.to_be_bytes());
    SIMPLE_BYTES
}

fn put_chunk(out: &mut [u8], kind: u16, cookie: Cookie, len: u32, last: bool) {
    let flags = if last { FLAG_DONE } else { 0 };
    out[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.0.to_be_bytes());
    out[16..20].copy_from_slice(&len.to_be_bytes());
}

/// Writes the header of a read's chunk; `len` bytes of data follow. `last` ends the reply. Returns
/// its length.
pub fn put_data(out: &mut [u8], cookie: Cookie, offset: u64, len: u32, last: bool) -> usize {
    put_chunk(out, chunk::OFFSET_DATA, cookie, len.saturating_add(8), last);
    out[20..28].copy_from_slice(&offset.to_be_bytes());
    DATA_BYTES
}

/// Longest payload of a BLOCK_STATUS chunk that the server sends, in bytes: a context and 128
/// extents of 8 B.
pub const STATUS_BYTES: usize = 4 + 128 * 8;
/// "Block status" flags of `base:allocation`: a hole, and it reads as zeroes.
const HOLE_AND_ZERO: u32 = 3;

/// Writes the header of a reply with one BLOCK_STATUS chunk; `len` bytes of payload follow. Returns
/// its length.
pub fn put_status(out: &mut [u8], cookie: Cookie, len: u32) -> usize {
    put_chunk(out, chunk::BLOCK_STATUS, cookie, len, true);
    CHUNK_BYTES
}

/// Payload of a BLOCK_STATUS chunk with one extent, in bytes: context, length and flags.
pub const ONE_STATUS_BYTES: u32 = 12;

/// The length of the only extent of a BLOCK_STATUS payload, in bytes, and whether it is a hole that
/// reads as zeroes.
pub fn one_extent(payload: &[u8]) -> Option<(u32, bool)> {
    Some((u32_at(payload, 4)?, u32_at(payload, 8)? & HOLE_AND_ZERO == HOLE_AND_ZERO))
}

/// Writes the payload of a BLOCK_STATUS chunk of context `context`: extents as length and whether
/// they are holes, at most 128. Returns its length.
pub fn put_extents(
    out: &mut [u8],
    context: u32,
    extents: impl Iterator<Item = (u32, bool)>,
) -> usize {
    out[..4].copy_from_slice(&context.to_be_bytes());
    let mut at = 4;
    for (len, is_hole) in extents {
        let flags = if is_hole { HOLE_AND_ZERO } else { 0 };
        out[at..at + 4].copy_from_slice(&len.to_be_bytes());
        out[at + 4..at + 8].copy_from_slice(&flags.to_be_bytes());
        at += 8;
    }
    at
}

/// Writes an error chunk with the error's message. Returns its length.
pub fn put_error(out: &mut [u8], cookie: Cookie, error: Errno) -> usize {
    let message = error.message().as_bytes();
    put_chunk(out, chunk::ERROR, cookie, 6 + message.len() as u32, true);
    out[20..24].copy_from_slice(&error.0.to_be_bytes());
    out[24..26].copy_from_slice(&(message.len() as u16).to_be_bytes());
    out[26..26 + message.len()].copy_from_slice(message);
    26 + message.len()
}

/// Header of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply; a successful read's data follows.
    Simple {
        cookie: Cookie,
        /// 0 for success.
        error: u32,
    },
    /// A chunk; `len` bytes follow.
    Chunk {
        cookie: Cookie,
        /// [`FLAG_DONE`] and unknown bits.
        flags: u16,
        /// A [`chunk`], or an unknown one.
        kind: u16,
        /// Length of the payload, in bytes.
        len: u32,
    },
}

/// Invalid magic: the stream is out of sync and cannot be parsed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reply begins with 0x{0:08x}")]
pub struct BadReplyMagic(pub u32);

impl ReplyHeader {
    /// Decodes a header from the front of `bytes`; `None` when it is incomplete.
    pub fn decode(bytes: &[u8]) -> Result<Option<ReplyHeader>, BadReplyMagic> {
        match u32_at(bytes, 0) {
            None => Ok(None),
            Some(SIMPLE_REPLY_MAGIC) => Ok(ReplyHeader::simple(bytes)),
            Some(STRUCTURED_REPLY_MAGIC) => Ok(ReplyHeader::chunk(bytes)),
            Some(other) => Err(BadReplyMagic(other)),
        }
    }

    fn simple(bytes: &[u8]) -> Option<ReplyHeader> {
        Some(ReplyHeader::Simple { error: u32_at(bytes, 4)?, cookie: Cookie(u64_at(bytes, 8)?) })
    }

    fn chunk(bytes: &[u8]) -> Option<ReplyHeader> {
        Some(ReplyHeader::Chunk {
            flags: u16_at(bytes, 4)?,
            kind: u16_at(bytes, 6)?,
            cookie: Cookie(u64_at(bytes, 8)?),
            len: u32_at(bytes, 16)?,
        })
    }

    /// Length of the header itself, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            ReplyHeader::Simple { .. } => SIMPLE_BYTES,
            ReplyHeader::Chunk { .. } => CHUNK_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn simple_replies_round_trip(cookie: u64, error: u32) {
            let mut out = [0; MAX_HEADER_BYTES];
            let len = put_simple(&mut out, Cookie(cookie), error);
            let header = ReplyHeader::Simple { cookie: Cookie(cookie), error };
            prop_assert_eq!(ReplyHeader::decode(&out[..len]), Ok(Some(header)));
            prop_assert_eq!(ReplyHeader::decode(&out[..len - 1]), Ok(None));
        }

        #[test]
        fn data_chunks_round_trip(cookie: u64, offset: u64, len in 1..=32_u32 << 20) {
            let mut out = [0; MAX_HEADER_BYTES];
            let bytes = put_data(&mut out, Cookie(cookie), offset, len, true);
            prop_assert_eq!(bytes, DATA_BYTES);
            let (flags, kind) = (FLAG_DONE, chunk::OFFSET_DATA);
            let header = ReplyHeader::Chunk { cookie: Cookie(cookie), flags, kind, len: len + 8 };
            prop_assert_eq!(ReplyHeader::decode(&out), Ok(Some(header)));
            prop_assert_eq!(u64_at(&out, CHUNK_BYTES), Some(offset));
        }

        #[test]
        fn random_bytes_decode_without_panic(bytes: Vec<u8>) {
            let _ = ReplyHeader::decode(&bytes);
        }
    }

    #[test]
    fn every_error_fits_longest_header() {
        for value in 0..200 {
            let mut out = [0; MAX_HEADER_BYTES];
            let len = put_error(&mut out, Cookie(1), Errno(value));
            let Ok(Some(ReplyHeader::Chunk { kind, len: payload, .. })) = ReplyHeader::decode(&out)
            else {
                panic!("no chunk");
            };
            assert_eq!((kind, payload as usize + CHUNK_BYTES), (chunk::ERROR, len));
            assert_eq!(usize::from(u16_at(&out, 24).unwrap()), len - 26);
        }
    }
}
