//! Compressed Write: a write with compressed data.
//!
//! Like Write, or like Ordered Write if it has an order. The number of blocks is the uncompressed
//! length. The data pointer gives the transferred length: compressed bytes, padded with zeroes to a
//! multiple of 4. So a target knows the exact length of the result before it decompresses; any
//! other length is an error.

use super::io;
use super::order::{FUA, INVALID, WritePosition};
use crate::command::Sqe;
use crate::command::io::{BlockCommand, BlockRange};
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::U32;

/// Largest uncompressed length of one Compressed Write, in bytes.
pub const INFLATED_MAX_BYTES: u64 = 1 << 20;
/// Flag in the dword of the codec: the command has an order.
const ORDERED: u32 = 1 << 31;
/// Compressed bytes are padded to a multiple of this.
pub const COMPRESSED_ALIGN_BYTES: usize = 4;

/// Compression codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4 block format, without a length prefix (1).
    Lz4 = 1,
    /// A Zstandard frame, RFC 8878 (2).
    Zstd = 2,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    /// Its bit in the data of Replica Identify.
    pub const fn bit(self) -> u8 {
        1 << (self as u8 - 1)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

/// Compressed Write (85h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedWrite {
    /// Blocks to write.
    pub range: BlockRange,
    /// Complete when the data is on media that survives power loss.
    pub fua: bool,
    /// Codec of the data.
    pub codec: Codec,
    /// Length of the compressed data, at least 1, without padding.
    pub compressed_bytes: u32,
    /// Its position in the order, if it has one.
    pub order: Option<WritePosition>,
}

impl CompressedWrite {
    /// Transferred length in bytes, with padding. `None` if it exceeds 32 bits.
    pub const fn sent_bytes(&self) -> Option<u32> {
        self.compressed_bytes.checked_next_multiple_of(COMPRESSED_ALIGN_BYTES as u32)
    }

    /// The command; `data` says whether its data is in the capsule.
    pub fn command(&self, cid: u16, nsid: u32, data: SglDescriptor) -> Sqe {
        let mut command = Sqe::write(cid, nsid, self.range, self.fua, data);
        command.opcode = io::COMPRESSED_WRITE.0;
        let ordered = if self.order.is_some() { ORDERED } else { 0 };
        command.cdw2 = U32::new(self.codec as u32 | ordered);
        command.cdw3 = U32::new(self.compressed_bytes);
        if let Some(order) = self.order {
            order.put(&mut command);
        }
        command
    }

    /// Parses the command.
    ///
    /// # Errors
    /// Invalid Field, with do not retry, for an unknown codec, empty data or a reserved bit.
    pub fn parse(command: &Sqe) -> Result<CompressedWrite, Status> {
        let code = command.cdw2.get() & !ORDERED;
        let codec = Codec::ALL.into_iter().find(|codec| *codec as u32 == code).ok_or(INVALID)?;
        let compressed_bytes = command.cdw3.get();
        if command.cdw12.get() & !(FUA | 0xffff) != 0 || compressed_bytes == 0 {
            return Err(INVALID);
        }
        let order = match command.cdw2.get() & ORDERED != 0 {
            true => Some(WritePosition::parse(command)),
            false
                if WritePosition::parse(command)
                    == (WritePosition { number: 0, concurrent: 0 }) =>
            {
                None
            }
            false => return Err(INVALID),
        };
        let fields = BlockCommand::parse(command);
        Ok(CompressedWrite {
            range: fields.range,
            fua: fields.fua(),
            codec,
            compressed_bytes,
            order,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{U64, Wire};
    use proptest::prelude::*;

    fn any_order() -> impl Strategy<Value = Option<WritePosition>> {
        let any = (any::<u32>(), any::<u128>());
        proptest::option::of(
            any.prop_map(|(number, concurrent)| WritePosition { number, concurrent }),
        )
    }

    #[test]
    fn bits_match_document() {
        let write = CompressedWrite {
            range: BlockRange::new(0x1_0000_0002, 8).unwrap(),
            fua: true,
            codec: Codec::Zstd,
            compressed_bytes: 321,
            order: Some(WritePosition { number: 7, concurrent: 0x8_0000_0005_0000_0006 }),
        };
        assert_eq!(write.sent_bytes(), Some(324));
        let command = write.command(1, 1, SglDescriptor::transport(324));
        assert_eq!((command.opcode, command.cdw3.get()), (0x85, 321));
        assert_eq!(command.cdw2.get(), 0x8000_0002);
        assert_eq!((command.cdw10.get(), command.cdw11.get()), (2, 1));
        assert_eq!((command.cdw12.get(), command.cdw13.get()), (0x4000_0007, 7));
        assert_eq!((command.cdw14.get(), command.cdw15.get()), (6, 5));
        assert_eq!(command.metadata.get(), 8);
    }

    #[test]
    fn invalid_values_are_refused() {
        let range = BlockRange::new(0, 8).unwrap();
        let write = CompressedWrite {
            range,
            fua: false,
            codec: Codec::Lz4,
            compressed_bytes: 9,
            order: None,
        };
        let with = |change: fn(&mut Sqe)| {
            let mut command = write.command(1, 1, SglDescriptor::transport(12));
            change(&mut command);
            CompressedWrite::parse(&command)
        };
        assert_eq!(with(|_| ()), Ok(write));
        for change in [
            (|command: &mut Sqe| command.cdw2 = U32::new(0)) as fn(&mut Sqe),
            |command| command.cdw2 = U32::new(3),
            |command| command.cdw2 = U32::new(0x101),
            |command| command.cdw3 = U32::new(0),
            |command| command.cdw12 = U32::new(1 << 25),
            // An order number in a command without an order.
            |command| command.cdw14 = U32::new(2),
            |command| command.cdw13 = U32::new(1),
            |command| command.metadata = U64::new(1),
        ] {
            assert_eq!(with(change), Err(INVALID));
        }
        assert_eq!(CompressedWrite { compressed_bytes: u32::MAX, ..write }.sent_bytes(), None);
    }

    proptest! {
        #[test]
        fn source_and_target_codecs_agree(
            start in 0..u64::MAX - 65_536,
            blocks in 1u32..=65_536,
            fua: bool,
            zstd: bool,
            compressed_bytes in 1u32..,
            order in any_order(),
        ) {
            let range = BlockRange::new(start, blocks).unwrap();
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            let write = CompressedWrite { range, fua, codec, compressed_bytes, order };
            let command = write.command(3, 4, SglDescriptor::transport(0));
            prop_assert_eq!(CompressedWrite::parse(&command), Ok(write));
        }

        #[test]
        fn any_command_parses_or_fails(bytes: [u8; 64]) {
            let command = Sqe::view(&bytes).unwrap();
            if let Ok(write) = CompressedWrite::parse(command) {
                prop_assert!(write.compressed_bytes > 0 && command.cdw2.get() & !ORDERED <= 2);
            }
        }
    }
}
