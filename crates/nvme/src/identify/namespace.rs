//! Identify Namespace, for the NVM command set and for any command set (NVM Command Set 4.1.5, Base
//! 5.1.13.2.8).

use crate::codes::bits;
use crate::wire::{U16, U32, U64, U128, wire};

wire! {
    /// One LBA format: the size of a logical block.
    pub struct LbaFormat [4] {
        /// MS: metadata bytes of each block.
        0 => pub metadata_bytes: U16,
        /// LBADS: a block has 2^this bytes; below 9 the format is not available.
        2 => pub block_exponent: u8,
        /// RP: relative performance, 0 best to 3.
        3 => pub relative_performance: u8,
    }

    /// Identify Namespace of the NVM command set (CNS 00h, NVM Command Set 4.1.5.1).
    pub struct IdentifyNamespace [4096] {
        /// NSZE: size, blocks.
        0 => pub size_blocks: U64,
        /// NCAP: capacity, blocks.
        8 => pub capacity_blocks: U64,
        /// NUSE: blocks in use.
        16 => pub used_blocks: U64,
        /// NSFEAT: see [`NamespaceFeatures`].
        24 => pub features: u8,
        /// NLBAF: formats, 0's based.
        25 => pub formats_0based: u8,
        /// FLBAS: bits 3:0 the format in use (its low 4 bits), 4 metadata in the data, 6:5 the
        /// format's upper bits.
        26 => pub format_in_use: u8,
        /// MC: metadata capabilities.
        27 => pub metadata_capabilities: u8,
        /// DPC: protection capabilities.
        28 => pub protection_capabilities: u8,
        /// DPS: protection in use.
        29 => pub protection: u8,
        /// NMIC: bit 0, may be attached to several controllers.
        30 => pub sharing: u8,
        /// RESCAP: reservations, 0 is none.
        31 => pub reservation_capabilities: u8,
        /// FPI: format progress.
        32 => pub format_progress: u8,
        /// DLFEAT: see [`DeallocateFeatures`].
        33 => pub deallocate_features: u8,
        /// NAWUN: atomic write unit, blocks, 0's based.
        34 => pub atomic_write_0based: U16,
        /// NAWUPF: atomic write unit over power fail, blocks, 0's based.
        36 => pub atomic_write_power_fail_0based: U16,
        /// NACWU: atomic compare and write unit, blocks, 0's based.
        38 => pub atomic_compare_write_0based: U16,
        /// NABSN: atomic boundary, blocks, 0's based.
        40 => pub atomic_boundary_0based: U16,
        /// NABO: offset of the first atomic boundary, blocks.
        42 => pub atomic_boundary_offset: U16,
        /// NABSPF: atomic boundary over power fail, blocks, 0's based.
        44 => pub atomic_boundary_power_fail_0based: U16,
        /// NOIOB: optimal I/O boundary, blocks; 0 is none.
        46 => pub optimal_io_boundary_blocks: U16,
        /// NVMCAP: capacity, bytes.
        48 => pub capacity_bytes: U128,
        /// NPWG: preferred write granularity, blocks, 0's based.
        64 => pub write_granularity_0based: U16,
        /// NPWA: preferred write alignment, blocks, 0's based.
        66 => pub write_alignment_0based: U16,
        /// NPDG: preferred deallocate granularity, blocks, 0's based.
        68 => pub deallocate_granularity_0based: U16,
        /// NPDA: preferred deallocate alignment, blocks, 0's based.
        70 => pub deallocate_alignment_0based: U16,
        /// NOWS: optimal write size, blocks, 0's based.
        72 => pub optimal_write_0based: U16,
        /// MSSRL: longest source range of a copy, blocks.
        74 => pub copy_range_max_blocks: U16,
        /// MCL: longest copy, blocks.
        76 => pub copy_max_blocks: U32,
        /// MSRC: source ranges of a copy, 0's based.
        80 => pub copy_ranges_0based: u8,
        /// KPIOS: key per I/O status.
        81 => pub key_per_io: u8,
        /// NULBAF: unique attribute formats.
        82 => pub unique_formats: u8,
        #[doc(hidden)]
        83 => pub _reserved83: u8,
        /// KPIODAAG: key per I/O data access alignment and granularity.
        84 => pub key_per_io_granularity: U32,
        #[doc(hidden)]
        88 => pub _reserved88: [u8; 4],
        /// ANAGRPID: ANA group; 0 without ANA.
        92 => pub ana_group: U32,
        #[doc(hidden)]
        96 => pub _reserved96: [u8; 3],
        /// NSATTR: bit 0, write protected.
        99 => pub attributes: u8,
        /// NVMSETID: NVM set.
        100 => pub nvm_set: U16,
        /// ENDGID: endurance group.
        102 => pub endurance_group: U16,
        /// NGUID: globally unique identifier, big-endian.
        104 => pub nguid: [u8; 16],
        /// EUI64: extended unique identifier, big-endian.
        120 => pub eui64: [u8; 8],
        /// LBAF: the formats.
        128 => pub formats: [LbaFormat; 64],
        /// Vendor specific.
        384 => pub vendor: [u8; 3712],
    }

    /// I/O Command Set Independent Identify Namespace (CNS 08h, Base 5.1.13.2.8).
    pub struct IndependentNamespace [4096] {
        /// NSFEAT: bit 3, identifiers are never reused; bit 4, rotational media.
        0 => pub features: u8,
        /// NMIC: bit 0, may be attached to several controllers.
        1 => pub sharing: u8,
        /// RESCAP: reservations, 0 is none.
        2 => pub reservation_capabilities: u8,
        /// FPI: format progress.
        3 => pub format_progress: u8,
        /// ANAGRPID: ANA group; 0 without ANA.
        4 => pub ana_group: U32,
        /// NSATTR: bit 0, write protected.
        8 => pub attributes: u8,
        #[doc(hidden)]
        9 => pub _reserved9: u8,
        /// NVMSETID: NVM set.
        10 => pub nvm_set: U16,
        /// ENDGID: endurance group.
        12 => pub endurance_group: U16,
        /// NSTAT: bit 0, ready.
        14 => pub status: u8,
        /// KPIOS: key per I/O status.
        15 => pub key_per_io: u8,
        /// MAXKT: key tags at most.
        16 => pub key_tags_max: U16,
        #[doc(hidden)]
        18 => pub _reserved18: [u8; 2],
        /// RGRPID: reachability group.
        20 => pub reachability_group: U32,
        #[doc(hidden)]
        24 => pub _reserved24: [u8; 4072],
    }

    /// Identify Namespace specific to the NVM command set (CNS 05h, CSI 00h,
    /// NVM Command Set 4.1.5.3).
    pub struct NvmNamespace [4096] {
        /// LBSTM: storage tag mask.
        0 => pub storage_tag_mask: U64,
        /// PIC: protection information capabilities.
        8 => pub protection_capabilities: u8,
        /// PIFA: protection information format attributes.
        9 => pub protection_format: u8,
        #[doc(hidden)]
        10 => pub _reserved10: [u8; 2],
        /// ELBAF: extended formats.
        12 => pub extended_formats: [U32; 64],
        /// NPDGL: preferred deallocate granularity, blocks, 0's based, large.
        268 => pub deallocate_granularity_0based: U32,
        /// NPRG: preferred read granularity, blocks, 0's based.
        272 => pub read_granularity_0based: U32,
        /// NPRA: preferred read alignment, blocks, 0's based.
        276 => pub read_alignment_0based: U32,
        /// NORS: optimal read size, blocks, 0's based.
        280 => pub optimal_read_0based: U32,
        /// NPDAL: preferred deallocate alignment, blocks, 0's based, large.
        284 => pub deallocate_alignment_0based: U32,
        /// LBAPSS: physical storage granularity.
        288 => pub physical_granularity: U32,
        /// TLBAAG: tracked LBA allocation granularity.
        292 => pub allocation_granularity: U32,
        #[doc(hidden)]
        296 => pub _reserved296: [u8; 3800],
    }
}

bits! {
    /// NSFEAT of [`IdentifyNamespace`].
    pub struct NamespaceFeatures(u8) {
        /// Bit 0 THINP: thin provisioned, capacity may be less than size.
        thin, with_thin: 0, 1;
        /// Bit 1 NSABP: the atomic fields of the namespace are valid.
        atomic, with_atomic: 1, 1;
        /// Bit 2 DAE: reads of deallocated blocks can be made to fail.
        deallocated_error, with_deallocated_error: 2, 1;
        /// Bit 3 UIDREUSE: NGUID and EUI64 are never reused.
        unique_ids, with_unique_ids: 3, 1;
        /// Bits 5:4 OPTPERF: the preferred sizes of writes and deallocations are valid; bit 0 of
        /// the field: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
        optimal_sizes, with_optimal_sizes: 4, 2;
        /// Bit 6 MAM: multiple atomicity mode.
        multiple_atomicity, with_multiple_atomicity: 6, 1;
        /// Bit 7 OPTRPERF: the preferred sizes of reads are valid.
        optimal_reads, with_optimal_reads: 7, 1;
    }
}

bits! {
    /// DLFEAT of [`IdentifyNamespace`].
    pub struct DeallocateFeatures(u8) {
        /// Bits 2:0: content of deallocated blocks: 0 not reported, 1 all 00h, 2 all FFh.
        reads_as, with_reads_as: 0, 3;
        /// Bit 3: Write Zeroes can deallocate.
        write_zeroes, with_write_zeroes: 3, 1;
        /// Bit 4: the guard of deallocated blocks is a CRC.
        guard_crc, with_guard_crc: 4, 1;
    }
}

/// DLFEAT bits 2:0: deallocated blocks read as zeroes.
pub const READS_AS_ZEROES: u8 = 1;
/// NMIC bit 0: the namespace may be attached to several controllers.
pub const SHARED: u8 = 1;
/// NSATTR bit 0: the namespace is write protected.
pub const WRITE_PROTECTED: u8 = 1;
/// NSTAT bit 0 of [`IndependentNamespace`]: the namespace is ready.
pub const READY: u8 = 1;

impl LbaFormat {
    /// Blocks of 2^`exponent` bytes without metadata: 9 is 512 bytes, 12 is 4096.
    #[must_use]
    pub const fn new(exponent: u8) -> Self {
        Self { metadata_bytes: U16::ZERO, block_exponent: exponent, relative_performance: 0 }
    }

    /// Bytes of a block; `None` for a format that is not available (below 512), or larger than
    /// 2^31.
    #[must_use]
    pub const fn block_bytes(&self) -> Option<u32> {
        match self.block_exponent {
            exponent @ 9..=31 => Some(1 << exponent),
            _ => None,
        }
    }
}

impl IdentifyNamespace {
    /// The format in use; `None` if FLBAS names a format beyond NLBAF and NULBAF.
    #[must_use]
    pub fn format(&self) -> Option<&LbaFormat> {
        let upper = if self.formats_0based > 15 { self.format_in_use >> 5 & 3 } else { 0 };
        let index = usize::from(upper << 4 | self.format_in_use & 15);
        let count = usize::from(self.formats_0based) + usize::from(self.unique_formats) + 1;
        if index < count { self.formats.get(index) } else { None }
    }

    /// Whether metadata is sent with the data of each block.
    #[must_use]
    pub const fn has_extended_blocks(&self) -> bool {
        self.format_in_use & (1 << 4) != 0
    }

    /// Whether the namespace is active: an inactive one is all zeroes.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.size_blocks.get() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn format_in_use() {
        let mut namespace = IdentifyNamespace::default();
        assert!(!namespace.is_active());
        assert_eq!(namespace.format().unwrap().block_bytes(), None);
        namespace.formats[1] = LbaFormat::new(12);
        namespace.format_in_use = 1;
        assert_eq!(namespace.format(), None);
        namespace.formats_0based = 1;
        assert_eq!(namespace.format().unwrap().block_bytes(), Some(4096));
        namespace.formats[17] = LbaFormat::new(9);
        namespace.formats_0based = 17;
        namespace.format_in_use = 0x21;
        assert_eq!(namespace.format().unwrap().block_bytes(), Some(512));
        assert!(!namespace.has_extended_blocks());
        assert_eq!(LbaFormat::new(32).block_bytes(), None);
        assert_eq!(LbaFormat::new(255).block_bytes(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 4096)) {
            let namespace = IdentifyNamespace::view(&bytes).unwrap();
            if let Some(bytes) = namespace.format().and_then(LbaFormat::block_bytes) {
                prop_assert!(bytes.is_power_of_two() && bytes >= 512);
            }
        }
    }
}
