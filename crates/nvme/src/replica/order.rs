//! Ordered writes: Write and Write Zeroes with a position in the order, in dwords that those
//! commands leave unused.
//!
//! Each write has a number, one more than the write before it, and names the earlier writes that
//! were in flight when it started. The target starts it when all other earlier writes have
//! completed, in any order of arrival. So ordering needs no round trip.

use super::io;
use crate::command::Sqe;
use crate::command::io::{BlockCommand, BlockRange};
use crate::opcode::IoOpcode;
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U32, U64};

/// Position of a write in the order of its attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePosition {
    /// Number, modulo 2^32; the first of an attachment is 1.
    pub number: u32,
    /// Earlier writes that it need not wait for: bit `i` is number `number - 1 - i`.
    pub concurrent: u128,
}

/// Force unit access.
pub(super) const FUA: u32 = 1 << 30;
/// Deallocate.
const DEALLOCATE: u32 = 1 << 25;
pub(super) const INVALID: Status = Status::INVALID_FIELD.dnr();

impl WritePosition {
    pub(super) fn parse(command: &Sqe) -> WritePosition {
        let near = u64::from(command.cdw14.get()) | u64::from(command.cdw15.get()) << 32;
        let concurrent = u128::from(near) | u128::from(command.metadata.get()) << 64;
        WritePosition { number: command.cdw13.get(), concurrent }
    }

    pub(super) fn put(self, command: &mut Sqe) {
        command.cdw13 = U32::new(self.number);
        command.cdw14 = U32::new(self.concurrent as u32);
        command.cdw15 = U32::new((self.concurrent >> 32) as u32);
        command.metadata = U64::new((self.concurrent >> 64) as u64);
    }

    /// Position of the `index`-th command of a write that is split into several: concurrent with
    /// all its earlier parts.
    pub fn part(self, index: u32) -> WritePosition {
        let own = 1u128.checked_shl(index).map_or(u128::MAX, |next| next - 1);
        let earlier = self.concurrent.checked_shl(index).unwrap_or(0);
        WritePosition { number: self.number.wrapping_add(index), concurrent: earlier | own }
    }
}

/// Ordered Write (81h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedWrite {
    /// Blocks.
    pub range: BlockRange,
    /// Complete when the data is on media that survives power loss.
    pub fua: bool,
    /// Its position in the order.
    pub order: WritePosition,
}

impl OrderedWrite {
    /// The command; `data` says whether its data is in the capsule.
    pub fn command(&self, cid: u16, nsid: u32, data: SglDescriptor) -> Sqe {
        let mut command = Sqe::write(cid, nsid, self.range, self.fua, data);
        command.opcode = io::WRITE.0;
        self.order.put(&mut command);
        command
    }

    /// Parses the command.
    ///
    /// # Errors
    /// Invalid Field, with do not retry, for a reserved bit.
    pub fn parse(command: &Sqe) -> Result<OrderedWrite, Status> {
        let reserved = command.cdw12.get() & !(FUA | 0xffff);
        if reserved != 0 || command.cdw2.get() != 0 || command.cdw3.get() != 0 {
            return Err(INVALID);
        }
        let fields = BlockCommand::parse(command);
        Ok(OrderedWrite {
            range: fields.range,
            fua: fields.fua(),
            order: WritePosition::parse(command),
        })
    }
}

/// Ordered Write Zeroes (84h), of any length under one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedZeroes {
    /// First block.
    pub start: u64,
    /// Number of blocks, not 0's based; at least 1.
    pub blocks: u64,
    /// Complete when the zeroes are on media that survives power loss.
    pub fua: bool,
    /// The blocks may be deallocated if they then read as zeroes.
    pub deallocate: bool,
    /// Its position in the order.
    pub order: WritePosition,
}

impl OrderedZeroes {
    /// The command.
    pub fn command(&self, cid: u16, nsid: u32) -> Sqe {
        let opcode: IoOpcode = io::WRITE_ZEROES;
        let mut command = Sqe::new(opcode.0, cid, nsid, SglDescriptor::transport(0));
        command.cdw2 = U32::new(self.blocks as u32);
        command.cdw3 = U32::new((self.blocks >> 32) as u32);
        command.cdw10 = U32::new(self.start as u32);
        command.cdw11 = U32::new((self.start >> 32) as u32);
        let fua = if self.fua { FUA } else { 0 };
        let deallocate = if self.deallocate { DEALLOCATE } else { 0 };
        command.cdw12 = U32::new(fua | deallocate);
        self.order.put(&mut command);
        command
    }

    /// Parses the command.
    ///
    /// # Errors
    /// Invalid Field, with do not retry, for no blocks or a reserved bit.
    pub fn parse(command: &Sqe) -> Result<OrderedZeroes, Status> {
        let options = command.cdw12.get();
        let blocks = u64::from(command.cdw2.get()) | u64::from(command.cdw3.get()) << 32;
        let start = u64::from(command.cdw10.get()) | u64::from(command.cdw11.get()) << 32;
        if options & !(FUA | DEALLOCATE) != 0 || blocks == 0 {
            return Err(INVALID);
        }
        let (fua, deallocate) = (options & FUA != 0, options & DEALLOCATE != 0);
        Ok(OrderedZeroes { start, blocks, fua, deallocate, order: WritePosition::parse(command) })
    }

    /// Checks the range against a namespace of `namespace_blocks` blocks.
    ///
    /// # Errors
    /// LBA Out of Range, with do not retry, also when its end exceeds 64 bits.
    pub const fn check_within(&self, namespace_blocks: u64) -> Result<(), Status> {
        match self.start.checked_add(self.blocks) {
            Some(end) if end <= namespace_blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    fn any_order() -> impl Strategy<Value = WritePosition> {
        (any::<u32>(), any::<u128>())
            .prop_map(|(number, concurrent)| WritePosition { number, concurrent })
    }

    #[test]
    fn bits_match_document() {
        let order = WritePosition { number: 7, concurrent: 0x9_0000_0008_0000_0005_0000_0006 };
        let range = BlockRange::new(0x1_0000_0002, 8).unwrap();
        let write = OrderedWrite { range, fua: true, order };
        let command = write.command(1, 1, SglDescriptor::transport(4096));
        assert_eq!((command.opcode, command.cdw10.get(), command.cdw11.get()), (0x81, 2, 1));
        assert_eq!((command.cdw12.get(), command.cdw13.get()), (0x4000_0007, 7));
        assert_eq!((command.cdw14.get(), command.cdw15.get()), (6, 5));
        assert_eq!(command.metadata.get(), 0x9_0000_0008);
        let zeroes =
            OrderedZeroes { start: 2, blocks: 1 << 32, fua: false, deallocate: true, order };
        let command = zeroes.command(1, 1);
        assert_eq!((command.opcode, command.cdw2.get(), command.cdw3.get()), (0x84, 0, 1));
        assert_eq!(command.cdw12.get(), 0x0200_0000);
        assert!(zeroes.check_within((1 << 32) + 2).is_ok());
        assert!(zeroes.check_within((1 << 32) + 1).is_err());
    }

    #[test]
    fn parts_of_write_may_run_concurrently() {
        let whole = WritePosition { number: u32::MAX, concurrent: 0b10 };
        assert_eq!(whole.part(0), whole);
        assert_eq!(whole.part(1), WritePosition { number: 0, concurrent: 0b101 });
        assert_eq!(whole.part(3), WritePosition { number: 2, concurrent: 0b1_0111 });
        assert_eq!(whole.part(128), WritePosition { number: 127, concurrent: u128::MAX });
        assert_eq!(
            whole.part(127).concurrent,
            u128::MAX >> 1,
            "what it was concurrent is out of sight"
        );
    }

    proptest! {
        #[test]
        fn source_and_target_codecs_agree(
            start in 0..u64::MAX - 65_536,
            blocks in 1u32..=65_536,
            many in 1u64..,
            fua: bool,
            deallocate: bool,
            order in any_order(),
        ) {
            let range = BlockRange::new(start, blocks).unwrap();
            let write = OrderedWrite { range, fua, order };
            let command = write.command(3, 4, SglDescriptor::transport(0));
            prop_assert_eq!(OrderedWrite::parse(&command), Ok(write));
            let zeroes = OrderedZeroes { start, blocks: many, fua, deallocate, order };
            prop_assert_eq!(OrderedZeroes::parse(&zeroes.command(3, 4)), Ok(zeroes));
        }

        #[test]
        fn any_command_parses_or_fails(bytes: [u8; 64], namespace_blocks: u64) {
            let command = Sqe::view(&bytes).unwrap();
            if let Ok(write) = OrderedWrite::parse(command) {
                prop_assert_eq!(command.cdw2.get(), 0);
                prop_assert_eq!(write.order.number, command.cdw13.get());
            }
            if let Ok(zeroes) = OrderedZeroes::parse(command)
                && zeroes.check_within(namespace_blocks).is_ok()
            {
                prop_assert!(zeroes.start + zeroes.blocks <= namespace_blocks);
            }
        }
    }
}
