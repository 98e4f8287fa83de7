//! "Request message": 28 bytes, followed by the payload of a write.

use super::{REQUEST_MAGIC, u16_at, u32_at, u64_at};

pub mod command {
    /// Read `len` bytes.
    pub const READ: u16 = 0;
    /// Write the `len` bytes of payload.
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    /// The range's data is no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    /// Query metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The read's reply is one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent per context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeroes only if faster than data.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Request identifier of the client, opaque to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

/// Request as sent: any command, flags and range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// A [`command`], or an unknown one.
    pub command: u16,
    pub cookie: Cookie,
    pub offset: u64,
    pub len: u32,
}

/// Invalid magic: the stream is out of sync and cannot be parsed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request begins with 0x{0:08x} instead of 0x25609513")]
pub struct BadRequestMagic(pub u32);

impl NbdRequest {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 28;

    /// Decodes a request from the first [`NbdRequest::BYTES`] of `bytes`; `None` when there are
    /// fewer.
    pub fn decode(bytes: &[u8]) -> Result<Option<NbdRequest>, BadRequestMagic> {
        let Some(bytes) = bytes.first_chunk::<{ NbdRequest::BYTES }>() else { return Ok(None) };
        let magic = u32_at(bytes, 0).unwrap_or(0);
        if magic != REQUEST_MAGIC {
            return Err(BadRequestMagic(magic));
        }
        Ok(NbdRequest::fields(bytes))
    }

    fn fields(bytes: &[u8]) -> Option<NbdRequest> {
        Some(NbdRequest {
            flags: u16_at(bytes, 4)?,
            command: u16_at(bytes, 6)?,
            cookie: Cookie(u64_at(bytes, 8)?),
            offset: u64_at(bytes, 16)?,
            len: u32_at(bytes, 24)?,
        })
    }

    pub fn encode(&self) -> [u8; NbdRequest::BYTES] {
        let mut bytes = [0; NbdRequest::BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Payload bytes after the request.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.len } else { 0 }
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_round_trip(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
            let request = NbdRequest { flags, command, cookie: Cookie(cookie), offset, len };
            prop_assert_eq!(NbdRequest::decode(&request.encode()), Ok(Some(request)));
        }

        #[test]
        fn random_bytes_decode_and_encode(bytes: [u8; 28]) {
            if let Ok(Some(request)) = NbdRequest::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes);
            }
        }
    }

    #[test]
    fn short_input_and_bad_magic() {
        assert_eq!(NbdRequest::decode(&[0; 27]), Ok(None));
        assert_eq!(NbdRequest::decode(&[0xab; 28]), Err(BadRequestMagic(0xabab_abab)));
    }
}
