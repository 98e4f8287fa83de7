//! Identify Namespace, for the NVM command set and for any command set (NVM Command Set 4.1.5, Base
//! 5.1.13.2.8).

use crate::wire::{U16, U32, U64, U128, wire};

wire! {
    /// One LBA format: the size of a logical block.
    pub struct LbaFormat [4] {
        0 => pub metadata_bytes: U16, "MS: metadata bytes of each block.";
        /// LBADS: a block has 2^this bytes; below 9 the format is not available.
        2 => pub block_exponent: u8;
        3 => pub relative_performance: u8, "RP: relative performance, 0 best to 3.";
    }

    /// Identify Namespace of the NVM command set (CNS 00h, NVM Command Set 4.1.5.1).
    pub struct IdentifyNamespace [4096] {
        0 => pub size_blocks: U64, "NSZE: size, blocks.";
        8 => pub capacity_blocks: U64, "NCAP: capacity, blocks.";
        16 => pub used_blocks: U64, "NUSE: blocks in use.";
        24 => pub features: u8, "NSFEAT: see [`THIN`] and [`OPTIMAL_SIZES`].";
        25 => pub formats_0based: u8, "NLBAF: formats, 0's based.";
        /// FLBAS: bits 3:0 the format in use (its low 4 bits), 4 metadata in the data, 6:5 the
        /// format's upper bits.
        26 => pub format_in_use: u8;
        27 => pub _unused27: [u8; 3];
        30 => pub sharing: u8, "NMIC: bit 0, may be attached to several controllers.";
        31 => pub reservation_capabilities: u8, "RESCAP: see [`reservation_capabilities`].";
        32 => pub _unused32: u8;
        33 => pub deallocate_features: u8, "DLFEAT: see [`READS_AS`] and [`ZEROES_DEALLOCATE`].";
        34 => pub _unused34: [u8; 14];
        48 => pub capacity_bytes: U128, "NVMCAP: capacity, bytes.";
        /// NPWG: preferred write granularity, blocks, 0's based.
        64 => pub write_granularity_0based: U16;
        /// NPWA: preferred write alignment, blocks, 0's based.
        66 => pub write_alignment_0based: U16;
        /// NPDG: preferred deallocate granularity, blocks, 0's based.
        68 => pub deallocate_granularity_0based: U16;
        /// NPDA: preferred deallocate alignment, blocks, 0's based.
        70 => pub deallocate_alignment_0based: U16;
        72 => pub optimal_write_0based: U16, "NOWS: optimal write size, blocks, 0's based.";
        74 => pub copy_range_blocks: U16, "MSSRL: Copy, blocks of one source range at most.";
        76 => pub copy_blocks: U32, "MCL: Copy, blocks in all at most.";
        80 => pub copy_ranges_0based: u8, "MSRC: Copy, source ranges at most, 0's based.";
        81 => pub _unused81: u8;
        82 => pub unique_formats: u8, "NULBAF: unique attribute formats.";
        83 => pub _unused83: [u8; 9];
        92 => pub ana_group: U32, "ANAGRPID: ANA group; 0 without ANA.";
        96 => pub _reserved96: [u8; 3];
        99 => pub attributes: u8, "NSATTR: bit 0, write protected.";
        100 => pub _unused100: [u8; 4];
        104 => pub nguid: [u8; 16], "NGUID: globally unique identifier, big-endian.";
        120 => pub eui64: [u8; 8], "EUI64: extended unique identifier, big-endian.";
        128 => pub formats: [LbaFormat; 64], "LBAF: the formats.";
        /// Vendor specific: [`NamespaceInstance::MAGIC`] if `instance` is valid.
        384 => pub instance_magic: [u8; 16];
        400 => pub instance: [u8; 16], "Vendor specific: see [`NamespaceInstance`].";
        416 => pub _unused416: [u8; 3680];
    }

    /// I/O Command Set Independent Identify Namespace (CNS 08h, Base 5.1.13.2.8).
    pub struct IndependentNamespace [4096] {
        /// NSFEAT: bit 3, identifiers are never reused; bit 4, rotational media; bit 5, see
        /// [`NO_VOLATILE_CACHE`].
        0 => pub features: u8;
        1 => pub sharing: u8, "NMIC: bit 0, may be attached to several controllers.";
        2 => pub _unused2: [u8; 2];
        4 => pub ana_group: U32, "ANAGRPID: ANA group; 0 without ANA.";
        8 => pub attributes: u8, "NSATTR: bit 0, write protected.";
        9 => pub _unused9: [u8; 5];
        14 => pub status: u8, "NSTAT: bit 0, ready.";
        15 => pub _unused15: [u8; 4081];
    }

    /// Identify Namespace specific to the NVM command set (CNS 05h, CSI 00h,
    /// NVM Command Set 4.1.5.3).
    pub struct NvmNamespace [4096] {
        0 => pub _unused0: [u8; 268];
        /// NPDGL: preferred deallocate granularity, blocks, 0's based, large.
        268 => pub deallocate_granularity_0based: U32;
        272 => pub _unused272: [u8; 12];
        /// NPDAL: preferred deallocate alignment, blocks, 0's based, large.
        284 => pub deallocate_alignment_0based: U32;
        288 => pub _unused288: [u8; 3808];
    }
}

/// RESCAP: supported reservations; 0 is none.
pub mod reservation_capabilities {
    /// Bit 0: registrations and the reservation can persist through power loss.
    pub const PERSIST: u8 = 1;
    /// Bits 6:1: every type of reservation. Bit 7: Ignore Existing Key as in Base 1.3 or later.
    pub const ALL_TYPES: u8 = 0xfe;
}

/// NSFEAT bit 0, THINP: the namespace is thin. NUSE may be below NSZE.
pub const THIN: u8 = 1;
/// NSFEAT bit 4, OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
pub const OPTIMAL_SIZES: u8 = 1 << 4;
/// DLFEAT bits 2:0: content of deallocated blocks; 0 not reported, 1 all 00h, 2 all FFh.
pub const READS_AS: u8 = 7;
/// Value of [`READS_AS`]: deallocated blocks read as zeroes.
pub const READS_AS_ZEROES: u8 = 1;
/// DLFEAT bit 3: Write Zeroes can deallocate.
pub const ZEROES_DEALLOCATE: u8 = 1 << 3;
/// NMIC bit 0: the namespace may be attached to several controllers.
pub const SHARED: u8 = 1;
/// NSATTR bit 0: the namespace is write protected.
pub const WRITE_PROTECTED: u8 = 1;
/// NSFEAT bit 5 of [`IndependentNamespace`], VWCNP: the namespace has no volatile write cache,
/// although its controller may have one for others.
pub const NO_VOLATILE_CACHE: u8 = 1 << 5;
/// NSTAT bit 0 of [`IndependentNamespace`]: the namespace is ready.
pub const READY: u8 = 1;

/// Instance of a namespace, from the time its target opened the device until it closes it or ends.
/// The same value over two connections proves that completed writes are still in the device's
/// volatile cache, or durable. Flagstone's targets report it in vendor specific bytes 384 to 415.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInstance(pub [u8; 16]);

impl NamespaceInstance {
    /// Marks a valid instance, because other vendors use the same bytes.
    pub const MAGIC: [u8; 16] = *b"flagstone-inst-1";
}

impl LbaFormat {
    /// Blocks of 2^`exponent` bytes without metadata: 9 is 512 bytes, 12 is 4096.
    pub const fn new(exponent: u8) -> Self {
        Self { metadata_bytes: U16::ZERO, block_exponent: exponent, relative_performance: 0 }
    }

    /// Bytes of a block; `None` for a format that is not available (below 512), or larger than
    /// 2^31.
    pub const fn block_bytes(&self) -> Option<u32> {
        match self.block_exponent {
            exponent @ 9..=31 => Some(1 << exponent),
            _ => None,
        }
    }
}

impl IdentifyNamespace {
    /// The instance of the namespace, if the target reports one.
    pub fn instance(&self) -> Option<NamespaceInstance> {
        let valid = self.instance_magic == NamespaceInstance::MAGIC && self.instance != [0; 16];
        valid.then_some(NamespaceInstance(self.instance))
    }

    /// Reports an instance.
    pub fn set_instance(&mut self, instance: NamespaceInstance) {
        (self.instance_magic, self.instance) = (NamespaceInstance::MAGIC, instance.0);
    }

    /// The format in use; `None` if FLBAS names a format beyond NLBAF and NULBAF.
    pub fn format(&self) -> Option<&LbaFormat> {
        let upper = if self.formats_0based > 15 { self.format_in_use >> 5 & 3 } else { 0 };
        let index = usize::from(upper << 4 | self.format_in_use & 15);
        let count = usize::from(self.formats_0based) + usize::from(self.unique_formats) + 1;
        if index < count { self.formats.get(index) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn instance_needs_its_magic_number() {
        let mut namespace = IdentifyNamespace { instance: [7; 16], ..Default::default() };
        assert_eq!(namespace.instance(), None);
        namespace.set_instance(NamespaceInstance([7; 16]));
        assert_eq!(namespace.instance(), Some(NamespaceInstance([7; 16])));
        assert_eq!(&namespace.bytes()[384..400], b"flagstone-inst-1");
        namespace.set_instance(NamespaceInstance([0; 16]));
        assert_eq!(namespace.instance(), None);
    }

    #[test]
    fn format_in_use() {
        let mut namespace = IdentifyNamespace::default();
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
