//! Validation of Identify data: impossible sizes are rejected before they enter any computation.

use flagstone_blockdev::Geometry;
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use flagstone_blockdev::limits::DEVICE_MAX_BYTES;
use flagstone_nvme::identify::controller::{optional_io, write_cache};
use flagstone_nvme::identify::namespace::{
    OPTIMAL_SIZES, READS_AS, READS_AS_ZEROES, WRITE_PROTECTED, ZEROES_DEALLOCATE,
};
use flagstone_nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceInstance, NvmController,
};
use flagstone_nvme::limits::{DSM_RANGES, IO_BLOCKS};
use flagstone_nvme::property::Capabilities;

use super::HostError;

/// Supported block sizes as binary logarithms: 512 B to 64 KiB.
const BLOCK_EXPONENTS: std::ops::RangeInclusive<u8> = 9..=16;

/// SGLS bits 1:0: SGLs are supported, with any or with dword alignment.
const SGL_SUPPORT: u32 = 3;

/// Namespace properties that this host uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceShape {
    pub(super) nsid: u32,
    pub(super) geometry: Geometry,
    /// Binary logarithm of the block size.
    pub(super) block_shift: u32,
    /// Largest transfer of one command, in bytes; a multiple of the block size.
    pub(super) transfer_bytes: u32,
    /// Maximum blocks of one Write Zeroes.
    pub(super) zero_blocks: u32,
    /// Write Zeroes supports deallocation.
    pub(super) zero_deallocates: bool,
    /// Supports the deallocate command.
    takes_discards: bool,
    pub(super) discard: DiscardLimits,
    pub(super) identity: NamespaceIdentity,
    /// Instance of the target's device; `None` from targets that report none.
    pub(super) instance: Option<NamespaceInstance>,
}

/// Identifiers of a namespace that are the same over every path; zero or absent if not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceIdentity {
    nguid: [u8; 16],
    eui64: [u8; 8],
    pub(super) uuid: Option<[u8; 16]>,
}

/// Limits of one Dataset Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiscardLimits {
    /// Ranges, 1 to 256.
    pub(super) ranges: usize,
    pub(super) range_blocks: u32,
    pub(super) blocks: u64,
}

/// Controller properties that this host uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControllerLimits {
    /// Binary logarithm of the memory page size that MDTS counts in, minus 12.
    page_exponent: u32,
    /// Maximum entries of an I/O queue.
    entries: u32,
    /// Maximum commands in flight on an I/O queue.
    commands: u32,
    /// Largest in-capsule data, in bytes.
    pub(super) in_capsule_bytes: u32,
    transfer_bytes: u32,
    optional_io: u16,
    volatile_cache: bool,
    pub(super) keeps_alive: bool,
    pub(super) events: u32,
}

impl ControllerLimits {
    /// Validates the controller's Identify data.
    pub(super) fn new(
        capabilities: Capabilities,
        identify: &IdentifyController,
    ) -> Result<ControllerLimits, HostError> {
        let entries = capabilities.max_queue_entries_0based() as u32 + 1;
        if entries < 2 {
            return Err(HostError::InvalidProperties("queues of one entry (CAP.MQES)"));
        }
        if identify.sgl.get() & SGL_SUPPORT == 0 {
            return Err(HostError::InvalidProperties("no SGLs over fabrics (SGLS)"));
        }
        if identify.capsule_cmd_16b.get() < 4 {
            return Err(HostError::InvalidProperties("capsules too small for a command (IOCCSZ)"));
        }
        if identify.in_capsule_offset_16b.get() != 0 {
            return Err(HostError::InvalidProperties("in-capsule data at an offset (ICDOFF)"));
        }
        let page_exponent = capabilities.min_page_exponent() as u32;
        let most = MAX_TRANSFER_BYTES as u32;
        let transfer_bytes = identify.max_transfer_bytes(page_exponent).unwrap_or(most).min(most);
        let commands = match identify.max_commands.get() {
            // Older targets leave it zero.
            0 => u32::from(u16::MAX),
            commands => u32::from(commands),
        };
        Ok(ControllerLimits {
            page_exponent,
            entries,
            commands,
            in_capsule_bytes: identify.in_capsule_bytes(),
            transfer_bytes,
            optional_io: identify.optional_io.get(),
            volatile_cache: identify.volatile_write_cache & write_cache::PRESENT != 0,
            keeps_alive: identify.keep_alive_100ms.get() != 0,
            events: identify.events.get(),
        })
    }

    /// Commands in flight on an I/O queue for a configured `wanted`; at least 1. `reserved`: one of
    /// the controller's is left for authentication; false if it has only one.
    pub(super) fn depth(&self, wanted: u16, reserved: bool) -> (u16, bool) {
        let most = (self.entries - 1).min(self.commands).max(1);
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        let reserved = reserved && most > 1;
        (wanted.min(most - u16::from(reserved)), reserved)
    }

    /// Validates the Identify data of namespace `nsid`. `limits` is zeroed, meaning unlimited, if
    /// the controller reports none.
    pub(super) fn namespace(
        &self,
        nsid: u32,
        identify: &IdentifyNamespace,
        limits: &NvmController,
    ) -> Result<NamespaceShape, HostError> {
        let blocks = identify.size_blocks.get();
        if blocks == 0 {
            return Err(HostError::NoNamespace);
        }
        let format = identify
            .format()
            .ok_or(HostError::InvalidProperties("a block format that does not exist (FLBAS)"))?;
        if format.metadata_bytes.get() != 0 {
            return Err(HostError::Unsupported("blocks with metadata"));
        }
        let exponent = format.block_exponent;
        if !BLOCK_EXPONENTS.contains(&exponent) {
            return Err(HostError::InvalidProperties(
                "blocks that are not 512 B to 64 KiB (LBADS)",
            ));
        }
        let block_bytes = 1_u32 << exponent;
        let size_bytes = blocks
            .checked_mul(u64::from(block_bytes))
            .filter(|bytes| *bytes <= DEVICE_MAX_BYTES)
            .ok_or(HostError::InvalidProperties("a size of 2^63 bytes or more (NSZE)"))?;
        let most = u64::from(IO_BLOCKS) * u64::from(block_bytes);
        let transfer_bytes = u64::from(self.transfer_bytes).min(most) as u32;
        if transfer_bytes < block_bytes {
            return Err(HostError::InvalidProperties("transfers smaller than a block (MDTS)"));
        }
        let geometry = self.geometry(identify, size_bytes, block_bytes);
        let deallocated = identify.deallocate_features;
        let shift = u32::from(exponent);
        Ok(NamespaceShape {
            nsid,
            geometry,
            block_shift: shift,
            transfer_bytes,
            zero_blocks: self.zero_blocks(limits.write_zeroes_exponent, shift),
            zero_deallocates: deallocated & ZEROES_DEALLOCATE != 0
                && deallocated & READS_AS == READS_AS_ZEROES,
            takes_discards: self.optional_io & optional_io::DATASET_MANAGEMENT != 0,
            discard: DiscardLimits::new(limits),
            identity: NamespaceIdentity {
                nguid: identify.nguid,
                eui64: identify.eui64,
                uuid: None,
            },
            instance: identify.instance(),
        })
    }

    fn geometry(
        &self,
        identify: &IdentifyNamespace,
        size_bytes: u64,
        block_bytes: u32,
    ) -> Geometry {
        let reported = identify.features & OPTIMAL_SIZES != 0;
        // 0's based block counts: 65,536 blocks of 64 KiB do not fit 32 bits.
        let bytes = |blocks_0based: u16| {
            let blocks = u32::from(blocks_0based) + 1;
            if reported { blocks.checked_mul(block_bytes) } else { None }
        };
        let deallocated = identify.deallocate_features & READS_AS;
        let does = |ability| self.optional_io & ability != 0;
        Geometry {
            physical_block_bytes: bytes(identify.write_granularity_0based.get())
                .unwrap_or(block_bytes),
            optimal_io_bytes: bytes(identify.optimal_write_0based.get()).unwrap_or(0),
            memory_align_bytes: 1,
            volatile_cache: self.volatile_cache,
            read_only: identify.attributes & WRITE_PROTECTED != 0,
            // `discard` promises zeroes or old data, so deallocated blocks must not read as
            // anything else.
            can_discard: does(optional_io::DATASET_MANAGEMENT) && deallocated == READS_AS_ZEROES,
            // Another path to the same namespace may leave the old data.
            discard_zeroes: false,
            can_write_zeroes: does(optional_io::WRITE_ZEROES),
            ..Geometry::new(size_bytes, block_bytes)
        }
    }

    /// Most blocks of one Write Zeroes: WZSL is in units of MDTS.
    fn zero_blocks(&self, exponent: u8, block_shift: u32) -> u32 {
        if exponent == 0 {
            // No limit is reported. A disk may have to write the zeroes within the time limit of a
            // command, which is meant for the longest write.
            return (self.transfer_bytes >> block_shift).clamp(1, IO_BLOCKS);
        }
        // Pages are at least 4 KiB and blocks at most 64 KiB: a smaller limit is one block.
        let shift = (12 + self.page_exponent + u32::from(exponent)).saturating_sub(block_shift);
        let blocks = 1_u64.checked_shl(shift).unwrap_or(u64::MAX);
        blocks.min(u64::from(IO_BLOCKS)) as u32
    }
}

impl DiscardLimits {
    fn new(limits: &NvmController) -> DiscardLimits {
        let or = |value: u64, none: u64| if value == 0 { none } else { value };
        let blocks = or(limits.dsm_blocks.get(), u64::MAX);
        let range_blocks = or(limits.dsm_range_blocks.get().into(), u32::MAX.into());
        DiscardLimits {
            ranges: or(limits.dsm_ranges.into(), DSM_RANGES as u64) as usize,
            range_blocks: range_blocks.min(blocks) as u32,
            blocks,
        }
    }
}

impl NamespaceShape {
    /// True if `other`, seen over another path, is certainly this namespace.
    pub(super) fn is_also(&self, other: &NamespaceShape) -> bool {
        (self.nsid, self.identity) == (other.nsid, other.identity)
            && self.identity != NamespaceIdentity::default()
    }

    /// Checks that `now`, seen over a new connection, is compatible with this namespace. It may
    /// have grown.
    pub(super) fn check_still(&self, now: &NamespaceShape) -> Result<(), HostError> {
        let (old, new) = (&self.geometry, &now.geometry);
        // On another path, or after an upgrade, a target may guarantee less about reading
        // deallocated blocks. No caller relies on it, and Write Zeroes leaves zeroes in any case.
        let able = (now.takes_discards || !self.takes_discards)
            && (new.can_write_zeroes || !old.can_write_zeroes);
        let fits = now.transfer_bytes >= self.transfer_bytes
            && now.zero_blocks >= self.zero_blocks
            && now.discard.ranges >= self.discard.ranges
            && now.discard.range_blocks >= self.discard.range_blocks
            && now.discard.blocks >= self.discard.blocks;
        for (holds, what) in [
            ((self.nsid, self.identity) == (now.nsid, now.identity), "its identifiers differ"),
            (old.block_bytes == new.block_bytes, "its block size is another"),
            (old.size_bytes <= new.size_bytes, "it has become smaller"),
            (old.volatile_cache || !new.volatile_cache, "it now has a volatile write cache"),
            (able, "it can less"),
            (fits, "its transfer limit is smaller"),
        ] {
            if !holds {
                return Err(HostError::Changed(what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_nvme::identify::LbaFormat;
    use flagstone_nvme::wire::{U16, U32, U64, Wire};
    use proptest::prelude::*;

    fn capabilities() -> Capabilities {
        Capabilities::default().with_max_queue_entries_0based(127)
    }

    fn controller() -> IdentifyController {
        let mut controller = IdentifyController { sgl: U32::new(1), ..Default::default() };
        controller.set_capsules(8192);
        controller.max_transfer_exponent = 8;
        controller.optional_io =
            U16::new(optional_io::DATASET_MANAGEMENT | optional_io::WRITE_ZEROES);
        controller
    }

    fn namespace() -> IdentifyNamespace {
        let mut namespace = IdentifyNamespace { size_blocks: U64::new(1024), ..Default::default() };
        namespace.formats[0] = LbaFormat::new(12);
        namespace.deallocate_features = 0b1001;
        namespace
    }

    fn shape(
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
    ) -> Result<NamespaceShape, HostError> {
        let controller = ControllerLimits::new(capabilities(), controller)?;
        controller.namespace(1, namespace, &NvmController::default())
    }

    #[test]
    fn minimal_namespace() {
        let shape = shape(&controller(), &namespace()).unwrap();
        let geometry = Geometry { discard_zeroes: false, ..Geometry::new(4 << 20, 4096) };
        assert_eq!(shape.geometry, geometry);
        assert_eq!((shape.transfer_bytes, shape.zero_blocks), (1 << 20, 256));
        assert!(shape.zero_deallocates);
        assert_eq!((shape.discard.ranges, shape.discard.range_blocks), (256, u32::MAX));
    }

    #[test]
    fn invalid_controllers_are_refused() {
        let one_entry = Capabilities::default();
        assert!(ControllerLimits::new(one_entry, &controller()).is_err());
        for broken in [
            IdentifyController { sgl: U32::ZERO, ..controller() },
            IdentifyController { capsule_cmd_16b: U32::new(3), ..controller() },
            IdentifyController { in_capsule_offset_16b: U16::new(1), ..controller() },
        ] {
            let refused = ControllerLimits::new(capabilities(), &broken);
            assert!(matches!(refused, Err(HostError::InvalidProperties(_))));
        }
    }

    #[test]
    fn invalid_namespaces_are_refused() {
        for exponent in [0, 8, 17, 31, 63, 255] {
            let mut broken = namespace();
            broken.formats[0].block_exponent = exponent;
            assert!(matches!(shape(&controller(), &broken), Err(HostError::InvalidProperties(_))));
        }
        for blocks in [u64::MAX, 1 << 51] {
            let broken = IdentifyNamespace { size_blocks: U64::new(blocks), ..namespace() };
            assert!(matches!(shape(&controller(), &broken), Err(HostError::InvalidProperties(_))));
        }
        let mut broken = namespace();
        broken.format_in_use = 5;
        assert!(matches!(shape(&controller(), &broken), Err(HostError::InvalidProperties(_))));
        broken = namespace();
        broken.formats[0].metadata_bytes = U16::new(8);
        assert!(matches!(shape(&controller(), &broken), Err(HostError::Unsupported(_))));
        broken = namespace();
        broken.size_blocks = U64::ZERO;
        assert!(matches!(shape(&controller(), &broken), Err(HostError::NoNamespace)));
        // One page of 4 KiB per transfer, and blocks of 64 KiB.
        let small = IdentifyController { max_transfer_exponent: 1, ..controller() };
        broken = namespace();
        broken.formats[0].block_exponent = 16;
        assert!(matches!(shape(&small, &broken), Err(HostError::InvalidProperties(_))));
    }

    #[test]
    fn write_zeroes_limits_in_pages() {
        let controller = ControllerLimits::new(capabilities(), &controller()).unwrap();
        // Without a limit, that of other commands: 1 MiB.
        assert_eq!(controller.zero_blocks(0, 9), 2048);
        assert_eq!(controller.zero_blocks(0, 16), 16);
        assert_eq!(controller.zero_blocks(1, 9), 16);
        assert_eq!(controller.zero_blocks(1, 12), 2);
        assert_eq!(controller.zero_blocks(1, 16), 1);
        assert_eq!(controller.zero_blocks(5, 16), 2);
        assert_eq!(controller.zero_blocks(255, 9), 65_536);
    }

    #[test]
    fn compatible_changes_across_reconnects() {
        let was = shape(&controller(), &namespace()).unwrap();
        let with = |change: fn(&mut IdentifyController, &mut IdentifyNamespace)| {
            let (mut controller, mut namespace) = (controller(), namespace());
            change(&mut controller, &mut namespace);
            was.check_still(&shape(&controller, &namespace).unwrap())
        };
        assert!(with(|_, _| {}).is_ok());
        assert!(with(|_, namespace| namespace.size_blocks = U64::new(1025)).is_ok());
        assert!(with(|_, namespace| namespace.attributes = WRITE_PROTECTED).is_ok());
        assert!(with(|_, namespace| namespace.size_blocks = U64::new(1023)).is_err());
        assert!(with(|_, namespace| namespace.formats[0] = LbaFormat::new(13)).is_err());
        assert!(with(|_, namespace| namespace.nguid = [1; 16]).is_err());
        assert!(with(|controller, _| controller.volatile_write_cache = 1).is_err());
        assert!(with(|controller, _| controller.max_transfer_exponent = 7).is_err());
        assert!(with(|controller, _| controller.optional_io = U16::ZERO).is_err());
        assert!(with(|_, namespace| namespace.deallocate_features = 0).is_ok());
    }

    proptest! {
        #[test]
        fn random_identify_data_is_validated(
            controller_bytes in prop::collection::vec(any::<u8>(), 4096),
            namespace_bytes in prop::collection::vec(any::<u8>(), 4096),
            limit_bytes in prop::collection::vec(any::<u8>(), 4096),
            capabilities: u64,
            exponent in 0_u8..20,
        ) {
            let mut identify = *IdentifyController::view(&controller_bytes).unwrap();
            identify.in_capsule_offset_16b = U16::ZERO;
            let Ok(controller) = ControllerLimits::new(Capabilities(capabilities), &identify) else {
                return Ok(());
            };
            prop_assert!(controller.depth(1023, false).0 >= 1);
            let (depth, reserved) = controller.depth(1023, true);
            prop_assert!(depth >= 1 && depth <= controller.depth(1023, false).0);
            prop_assert!(reserved || depth == 1);
            let mut namespace = *IdentifyNamespace::view(&namespace_bytes).unwrap();
            namespace.formats = [LbaFormat::new(exponent); 64];
            let limits = NvmController::view(&limit_bytes).unwrap();
            if let Ok(shape) = controller.namespace(1, &namespace, limits) {
                let block = shape.geometry.block_bytes;
                prop_assert_eq!(block, 1 << shape.block_shift);
                prop_assert!(shape.transfer_bytes >= block && shape.transfer_bytes % block == 0);
                prop_assert!((1..=IO_BLOCKS).contains(&shape.zero_blocks));
                prop_assert!((1..=DSM_RANGES).contains(&shape.discard.ranges));
                prop_assert!(shape.discard.range_blocks > 0);
                prop_assert!(shape.geometry.physical_block_bytes % block == 0);
                prop_assert!(shape.check_still(&shape).is_ok());
            }
        }
    }
}
