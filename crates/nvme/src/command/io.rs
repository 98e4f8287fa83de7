//! Commands of the NVM command set (NVM Command Set 3.2).

use super::Sqe;
use crate::limits::{DSM_RANGES, IO_BLOCKS};
use crate::opcode::IoOpcode;
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U16, U32, U64, wire};

/// Range of consecutive logical blocks of one command: 1 to 65,536 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    start: u64,
    blocks: u32,
}

impl BlockRange {
    /// `blocks` logical blocks from block `start`; `None` unless they are 1 to 65,536 and end below
    /// 2^64.
    #[inline]
    pub const fn new(start: u64, blocks: u32) -> Option<Self> {
        if blocks == 0 || blocks > IO_BLOCKS || start.checked_add(blocks as u64).is_none() {
            return None;
        }
        Some(Self { start, blocks })
    }

    /// SLBA: the first block.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Number of blocks, 1 to 65,536.
    #[inline]
    pub const fn blocks(self) -> u32 {
        self.blocks
    }

    /// Checks the range against a namespace of `namespace_blocks` blocks.
    ///
    /// # Errors
    /// LBA Out of Range, with do not retry, also when its end exceeds 64 bits.
    #[inline]
    pub const fn check_within(self, namespace_blocks: u64) -> Result<(), Status> {
        match self.start.checked_add(self.blocks as u64) {
            Some(end) if end <= namespace_blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
        }
    }
}

/// Force unit access.
const FUA: u32 = 1 << 30;
/// Protection information action and checks.
const PROTECTION: u32 = 0xf << 26;
/// Storage tag check.
const STORAGE_TAG_CHECK: u32 = 1 << 24;
/// Write Zeroes: deallocate.
const DEALLOCATE: u32 = 1 << 25;
/// Write Zeroes: the whole namespace.
const NAMESPACE_ZEROES: u32 = 1 << 23;
/// Copy: protection information of the reads.
const COPY_READ_PROTECTION: u32 = 0xf << 12;
/// Copy: storage tag checks of reads and writes.
const COPY_TAG_CHECKS: u32 = 3 << 24;
/// Dataset Management: attribute deallocate.
const DSM_DEALLOCATE: u32 = 1 << 2;

/// Common fields of Read, Write, Compare, Verify and Write Zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// Blocks of the command.
    pub range: BlockRange,
    /// Command dword 12 without the number of blocks.
    options: u32,
}

impl BlockCommand {
    /// Parses the fields of `command`, for any opcode; all bit patterns are valid.
    #[inline]
    pub const fn parse(command: &Sqe) -> Self {
        let start = command.cdw10.get() as u64 | (command.cdw11.get() as u64) << 32;
        let cdw12 = command.cdw12.get();
        // NLB is 0's based.
        let range = BlockRange { start, blocks: (cdw12 & 0xffff) + 1 };
        Self { range, options: cdw12 }
    }

    /// Force unit access: complete when the data is on media that survives power loss; for Read and
    /// Verify, read from that media.
    #[inline]
    pub const fn fua(self) -> bool {
        self.options & FUA != 0
    }

    /// Whether protection information is requested, which is not possible on a namespace without
    /// it.
    #[inline]
    pub const fn wants_protection(self) -> bool {
        self.options & (PROTECTION | STORAGE_TAG_CHECK) != 0
    }

    /// Write Zeroes: the blocks may be deallocated if they then read as zeroes.
    pub const fn deallocate(self) -> bool {
        self.options & DEALLOCATE != 0
    }

    /// Write Zeroes: the whole namespace, if the controller supports that.
    pub const fn namespace_zeroes(self) -> bool {
        self.options & NAMESPACE_ZEROES != 0
    }
}

wire! {
    /// One range of Dataset Management (NVM Command Set 3.2.3).
    pub struct DsmRange [16] {
        0 => pub attributes: U32, "Context attributes, hints.";
        4 => pub blocks: U32, "Number of blocks, not 0's based; 0 is an empty range.";
        8 => pub start: U64, "First block.";
    }
}

impl DsmRange {
    /// A range of `blocks` blocks from block `start`.
    pub const fn new(start: u64, blocks: u32) -> Self {
        Self { attributes: U32::ZERO, blocks: U32::new(blocks), start: U64::new(start) }
    }

    /// Checks the range against a namespace of `namespace_blocks` blocks.
    ///
    /// # Errors
    /// LBA Out of Range, with do not retry, also when its end exceeds 64 bits.
    pub const fn check_within(&self, namespace_blocks: u64) -> Result<(), Status> {
        match self.start.get().checked_add(self.blocks.get() as u64) {
            Some(end) if end <= namespace_blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
        }
    }
}

wire! {
    /// One source range of Copy, descriptor format 0h (NVM Command Set 3.2.2).
    pub struct CopyRange [32] {
        0 => pub _reserved0: [u8; 8];
        8 => pub start: U64, "SLBA: first block.";
        16 => pub blocks_0based: U16, "NLB: number of blocks, 0's based.";
        18 => pub _reserved18: [u8; 6];
        24 => pub protection: [u8; 8], "Protection information; unused here.";
    }
}

impl CopyRange {
    /// A range of `blocks` blocks (1 to 65,536) from block `start`.
    pub const fn new(start: u64, blocks: u32) -> Self {
        Self {
            _reserved0: [0; 8],
            start: U64::new(start),
            blocks_0based: U16::new((blocks - 1) as u16),
            _reserved18: [0; 6],
            protection: [0; 8],
        }
    }

    /// The blocks of the range.
    pub const fn range(&self) -> BlockRange {
        BlockRange { start: self.start.get(), blocks: self.blocks_0based.get() as u32 + 1 }
    }
}

/// Copy: destination, number of source ranges and options (NVM Command Set 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCommand {
    /// SDLBA: first block of the destination.
    pub start: u64,
    /// Source ranges, 1 to 256.
    pub ranges: u16,
    /// Descriptor format of the source ranges.
    pub format: u8,
    /// Force unit access.
    pub fua: bool,
    /// Whether protection information is requested for reads or writes.
    pub wants_protection: bool,
}

impl CopyCommand {
    /// Parses the fields of `command`.
    pub const fn parse(command: &Sqe) -> Self {
        let options = command.cdw12.get();
        Self {
            start: command.cdw10.get() as u64 | (command.cdw11.get() as u64) << 32,
            ranges: (options & 0xff) as u16 + 1,
            format: (options >> 8 & 0xf) as u8,
            fua: options & FUA != 0,
            wants_protection: options & (PROTECTION | COPY_READ_PROTECTION | COPY_TAG_CHECKS) != 0,
        }
    }

    /// Length of its data, bytes: 32 to 8192.
    pub const fn data_bytes(self) -> u32 {
        self.ranges as u32 * size_of::<CopyRange>() as u32
    }
}

/// Dataset Management: number of ranges and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Number of ranges in its data, 1 to 256.
    pub ranges: u16,
    /// Attribute deallocate: the content may be dropped. Without it everything is a hint.
    pub deallocate: bool,
}

impl DatasetManagement {
    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        Self {
            ranges: (command.cdw10.get() & 0xff) as u16 + 1,
            deallocate: command.cdw11.get() & DSM_DEALLOCATE != 0,
        }
    }

    /// Length of its data, bytes: 16 to 4096.
    pub const fn data_bytes(self) -> u32 {
        self.ranges as u32 * size_of::<DsmRange>() as u32
    }
}

/// Options of an I/O command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoOptions {
    /// Force unit access.
    pub fua: bool,
    /// Write Zeroes: allow deallocation.
    pub deallocate: bool,
}

impl Sqe {
    /// A command with a range of blocks: Read, Write, Compare, Verify or Write Zeroes.
    #[inline]
    pub fn block_io(
        opcode: IoOpcode,
        cid: u16,
        nsid: u32,
        range: BlockRange,
        options: IoOptions,
        data: SglDescriptor,
    ) -> Self {
        let mut command = Self::new(opcode.0, cid, nsid, data);
        command.cdw10 = U32::new(range.start as u32);
        command.cdw11 = U32::new((range.start >> 32) as u32);
        let fua = if options.fua { FUA } else { 0 };
        let deallocate = if options.deallocate { DEALLOCATE } else { 0 };
        command.cdw12 = U32::new((range.blocks - 1) | fua | deallocate);
        command
    }

    /// Read, with a transfer of `data_bytes` in data PDUs.
    #[inline]
    pub fn read(cid: u16, nsid: u32, range: BlockRange, data_bytes: u32) -> Self {
        let data = SglDescriptor::transport(data_bytes);
        Self::block_io(IoOpcode::READ, cid, nsid, range, IoOptions::default(), data)
    }

    /// Write; `data` says whether its data is in the capsule.
    #[inline]
    pub fn write(cid: u16, nsid: u32, range: BlockRange, fua: bool, data: SglDescriptor) -> Self {
        let options = IoOptions { fua, deallocate: false };
        Self::block_io(IoOpcode::WRITE, cid, nsid, range, options, data)
    }

    /// Write Zeroes.
    pub fn write_zeroes(cid: u16, nsid: u32, range: BlockRange, options: IoOptions) -> Self {
        let data = SglDescriptor::transport(0);
        Self::block_io(IoOpcode::WRITE_ZEROES, cid, nsid, range, options, data)
    }

    /// Compare; `data` says whether its data is in the capsule.
    pub fn compare(cid: u16, nsid: u32, range: BlockRange, data: SglDescriptor) -> Self {
        Self::block_io(IoOpcode::COMPARE, cid, nsid, range, IoOptions::default(), data)
    }

    /// Verify.
    pub fn verify(cid: u16, nsid: u32, range: BlockRange) -> Self {
        let data = SglDescriptor::transport(0);
        Self::block_io(IoOpcode::VERIFY, cid, nsid, range, IoOptions::default(), data)
    }

    /// Flush of namespace `nsid`, or of all with [`crate::limits::NAMESPACE_ID_ALL`].
    pub fn flush(cid: u16, nsid: u32) -> Self {
        Self::new(IoOpcode::FLUSH.0, cid, nsid, SglDescriptor::transport(0))
    }

    /// Copy of `ranges` ranges, whose list `data` describes, to the blocks from `start`; `None`
    /// unless they are 1 to 256.
    pub fn copy(
        cid: u16,
        nsid: u32,
        start: u64,
        ranges: usize,
        fua: bool,
        data: SglDescriptor,
    ) -> Option<Self> {
        if !(1..=256).contains(&ranges) {
            return None;
        }
        let mut command = Self::new(IoOpcode::COPY.0, cid, nsid, data);
        command.cdw10 = U32::new(start as u32);
        command.cdw11 = U32::new((start >> 32) as u32);
        command.cdw12 = U32::new((ranges as u32 - 1) | if fua { FUA } else { 0 });
        Some(command)
    }

    /// Dataset Management with attribute deallocate of `ranges` ranges, whose list `data`
    /// describes; `None` unless they are 1 to 256.
    pub fn deallocate(cid: u16, nsid: u32, ranges: usize, data: SglDescriptor) -> Option<Self> {
        if ranges == 0 || ranges > DSM_RANGES {
            return None;
        }
        let mut command = Self::new(IoOpcode::DATASET_MANAGEMENT.0, cid, nsid, data);
        command.cdw10 = U32::new(ranges as u32 - 1);
        command.cdw11 = U32::new(DSM_DEALLOCATE);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn ranges_at_the_edges() {
        assert!(BlockRange::new(0, 0).is_none());
        assert!(BlockRange::new(0, 65_537).is_none());
        assert!(BlockRange::new(u64::MAX, 1).is_none());
        let range = BlockRange::new(u64::MAX - 65_536, 65_536).unwrap();
        assert_eq!(range.check_within(u64::MAX), Ok(()));
        let refused = Err(Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(BlockRange::new(7, 2).unwrap().check_within(9), Ok(()));
        assert_eq!(BlockRange::new(8, 2).unwrap().check_within(9), refused);
        let mut wrapping = Sqe::flush(0, 1);
        wrapping.cdw10 = U32::new(u32::MAX);
        wrapping.cdw11 = U32::new(u32::MAX);
        assert_eq!(BlockCommand::parse(&wrapping).range.check_within(u64::MAX), refused);
        assert_eq!(DsmRange::new(u64::MAX, 2).check_within(u64::MAX), refused);
        assert_eq!(DsmRange::new(4, 0).check_within(4), Ok(()));
        assert_eq!(DsmRange::new(4, 1).check_within(4), refused);
    }

    #[test]
    fn command_bits_match_specification() {
        let range = BlockRange::new(0x1_0000_0002, 8).unwrap();
        let write = Sqe::write(1, 1, range, true, SglDescriptor::in_capsule(4096));
        assert_eq!(write.cdw10.get(), 2);
        assert_eq!(write.cdw11.get(), 1);
        assert_eq!(write.cdw12.get(), 0x4000_0007);
        let options = IoOptions { fua: false, deallocate: true };
        assert_eq!(Sqe::write_zeroes(1, 1, range, options).cdw12.get(), 0x0200_0007);
        let mut other = write;
        other.cdw12 = U32::new(0x8480_0000);
        let parsed = BlockCommand::parse(&other);
        assert!(parsed.wants_protection() && parsed.namespace_zeroes());
        assert!(!parsed.fua() && !parsed.deallocate());
    }

    #[test]
    fn deallocate_has_1_to_256_ranges() {
        let data = SglDescriptor::in_capsule(4096);
        assert!(Sqe::deallocate(1, 1, 0, data).is_none());
        assert!(Sqe::deallocate(1, 1, 257, data).is_none());
        let parsed = DatasetManagement::parse(&Sqe::deallocate(1, 1, 256, data).unwrap());
        assert_eq!(parsed, DatasetManagement { ranges: 256, deallocate: true });
        assert_eq!(parsed.data_bytes(), 4096);
    }

    #[test]
    fn copy_layout_matches_specification() {
        let data = SglDescriptor::in_capsule(64);
        assert!(Sqe::copy(1, 1, 0, 0, false, data).is_none());
        assert!(Sqe::copy(1, 1, 0, 257, false, data).is_none());
        let command = Sqe::copy(1, 1, 0x1_0000_0002, 2, true, data).unwrap();
        assert_eq!((command.cdw10.get(), command.cdw11.get()), (2, 1));
        assert_eq!(command.cdw12.get(), 0x4000_0001);
        let parsed = CopyCommand::parse(&command);
        assert_eq!((parsed.start, parsed.ranges, parsed.format), (0x1_0000_0002, 2, 0));
        assert!(parsed.fua && !parsed.wants_protection);
        assert_eq!(parsed.data_bytes(), 64);
        let range = CopyRange::new(7, 65_536);
        assert_eq!(range.bytes()[8..18], [7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!((range.range().start(), range.range().blocks()), (7, 65_536));
        for options in [1 << 12, 1 << 24, 1 << 25, 1 << 26] {
            let mut other = command;
            other.cdw12 = U32::new(options);
            assert!(CopyCommand::parse(&other).wants_protection, "{options:#x}");
        }
    }

    proptest! {
        #[test]
        fn host_and_target_codecs_agree(
            start in 0..u64::MAX - 65_536,
            blocks in 1u32..=65_536,
            fua: bool,
            deallocate: bool,
        ) {
            let range = BlockRange::new(start, blocks).unwrap();
            let options = IoOptions { fua, deallocate };
            let data = SglDescriptor::transport(0);
            let sent = Sqe::block_io(IoOpcode::WRITE_ZEROES, 3, 4, range, options, data);
            let parsed = BlockCommand::parse(Sqe::view(sent.bytes()).unwrap());
            prop_assert_eq!(parsed.range, range);
            prop_assert_eq!(parsed.fua(), fua);
            prop_assert_eq!(parsed.deallocate(), deallocate);
            prop_assert!(!parsed.wants_protection());
        }

        #[test]
        fn any_command_parses(bytes: [u8; 64], namespace_blocks: u64) {
            let command = Sqe::view(&bytes).unwrap();
            let range = BlockCommand::parse(command).range;
            prop_assert!((1..=65_536).contains(&range.blocks()));
            if range.check_within(namespace_blocks).is_ok() {
                let end = u128::from(range.start()) + u128::from(range.blocks());
                prop_assert!(end <= u128::from(namespace_blocks));
            }
            prop_assert!((1..=256).contains(&DatasetManagement::parse(command).ranges));
        }
    }
}
