//! Identify data: controller, subsystem and namespaces (Base 5.1.13).

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::event::EventMask;
use flagstone_nvme::identify::controller::{
    COPY_FORMAT_0, CQES, DISCONNECT, PRIVATE_OUI, PRIVATE_VENDOR, SQES, ana_capabilities,
    attributes, controller_type, log_attributes, multipath, optional_io, sgl_support, write_cache,
};
use flagstone_nvme::identify::namespace::{
    NO_VOLATILE_CACHE, OPTIMAL_SIZES, READS_AS_ZEROES, READY, SHARED, THIN, WRITE_PROTECTED,
    ZEROES_DEALLOCATE, reservation_capabilities as rescap,
};
use flagstone_nvme::identify::{
    Cns, CommandSets, ControllerList, DescriptorWriter, IdentifyController, IdentifyNamespace,
    IndependentNamespace, LbaFormat, NamespaceDescriptor, NamespaceList, NvmController,
    NvmNamespace, csi,
};
use flagstone_nvme::limits::{IDENTIFY_BYTES, NAMESPACE_ID_ALL};
use flagstone_nvme::property::Version;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32, U64, U128, Wire};

use super::admin::identify_data;
use super::config::{ANA_GROUPS, TargetConfig};
use super::controller::Controller;
use super::copy::CopyLimits;
use super::namespace::Namespace;
use super::vendor::CommandReply;
use crate::limits::{
    ABORT_REQUESTS, ANA_TRANSITION_S, COPY_RANGES, DSM_RANGE_BLOCKS, ERROR_LOG_ENTRIES,
    EVENT_REQUESTS, KEEP_ALIVE_UNIT_MS, PAGE_BYTES,
};

/// ANA group of all namespaces but the pending ones.
pub(super) const ANA_GROUP: u32 = 1;
/// ANA group of the pending namespaces.
pub(super) const PENDING_ANA_GROUP: u32 = 2;
/// Identifier of the controller that receives the command.
const THIS_CONTROLLER: u16 = 0xffff;
/// DCTYPE: direct discovery controller.
const DIRECT_DISCOVERY: u8 = 1;
/// FRMW: one firmware slot, read-only.
const ONE_READ_ONLY_SLOT: u8 = 1 | 1 << 1;

/// ONCS: implemented optional I/O commands, and Save and Select of features.
const OPTIONAL_IO: u16 = optional_io::COMPARE
    | optional_io::DATASET_MANAGEMENT
    | optional_io::WRITE_ZEROES
    | optional_io::SAVE_SELECT
    | optional_io::VERIFY
    | optional_io::COPY;

/// FUSES: the fused operation Compare and Write.
const COMPARE_AND_WRITE: u16 = 1;

/// Events of I/O controllers (OAES).
pub(super) const IO_EVENTS: EventMask = EventMask::NAMESPACE_ATTRIBUTE.union(EventMask::ANA);
/// Events of discovery controllers (OAES).
pub(super) const DISCOVERY_EVENTS: EventMask = EventMask::DISCOVERY;

impl Controller {
    pub(super) fn identify(&self, command: &Sqe) -> Result<CommandReply, Status> {
        let identify = Identify::parse(command);
        if self.is_discovery() && identify.cns != Cns::CONTROLLER {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match identify.cns {
            Cns::CONTROLLER => identify_data(command, self.identify_controller().bytes()),
            Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
                let structure =
                    self.of_namespace(&identify, |namespace| self.namespace(namespace))?;
                identify_data(command, structure.bytes())
            }
            Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => {
                identify_data(command, self.namespace_list(identify.nsid)?.bytes())
            }
            Cns::COMMAND_SET_ACTIVE_NAMESPACES | Cns::COMMAND_SET_ALLOCATED => {
                nvm_alone(&identify)?;
                identify_data(command, self.namespace_list(identify.nsid)?.bytes())
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                identify_data(command, &self.namespace_descriptors(identify.nsid)?)
            }
            Cns::COMMAND_SET_NAMESPACE => {
                nvm_alone(&identify)?;
                let structure = self.of_namespace(&identify, |_| NvmNamespace::default())?;
                identify_data(command, structure.bytes())
            }
            Cns::COMMAND_SET_CONTROLLER => {
                nvm_alone(&identify)?;
                identify_data(command, self.nvm_controller().bytes())
            }
            Cns::INDEPENDENT_NAMESPACE if self.snapshot().is_pending(identify.nsid) => {
                identify_data(command, pending().bytes())
            }
            Cns::INDEPENDENT_NAMESPACE => {
                let structure = self.of_namespace(&identify, independent)?;
                identify_data(command, structure.bytes())
            }
            Cns::ATTACHED_CONTROLLERS => {
                let table = self.snapshot();
                if table.get(identify.nsid).is_none() && !table.is_pending(identify.nsid) {
                    return Err(Status::INVALID_NAMESPACE.dnr());
                }
                identify_data(command, self.controller_list(identify.controller_id).bytes())
            }
            Cns::CONTROLLERS => {
                identify_data(command, self.controller_list(identify.controller_id).bytes())
            }
            Cns::COMMAND_SETS => {
                let id = identify.controller_id;
                if id != THIS_CONTROLLER && self.subsystem.controller(id).is_none() {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                identify_data(command, CommandSets::nvm_alone().bytes())
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Structure of the namespace in `identify`; all zeroes for an inactive namespace.
    fn of_namespace<T: Wire>(
        &self,
        identify: &Identify,
        make: impl FnOnce(&Namespace) -> T,
    ) -> Result<T, Status> {
        let table = self.snapshot();
        let possible = 1..=self.target.config().max_namespaces;
        match table.get(identify.nsid) {
            Some(namespace) => Ok(make(namespace)),
            None if table.is_pending(identify.nsid) => Err(Status::NAMESPACE_NOT_READY),
            None if possible.contains(&identify.nsid) => Ok(T::zeroed()),
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        }
    }

    fn namespace_list(&self, above: u32) -> Result<NamespaceList, Status> {
        if above >= NAMESPACE_ID_ALL - 1 {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        let table = self.snapshot();
        let mut list = NamespaceList::default();
        list.fill(above, table.active_above(above));
        Ok(list)
    }

    fn namespace_descriptors(&self, nsid: u32) -> Result<[u8; IDENTIFY_BYTES], Status> {
        let table = self.snapshot();
        let namespace = table.find(nsid)?;
        let mut data = [0; IDENTIFY_BYTES];
        let mut list = DescriptorWriter::new(&mut data);
        let names =
            [NamespaceDescriptor::Uuid(namespace.uuid), NamespaceDescriptor::Nguid(namespace.uuid)];
        for name in &names {
            list.push(name).ok_or(Status::INTERNAL_ERROR)?;
        }
        list.push_nvm().ok_or(Status::INTERNAL_ERROR)?;
        Ok(data)
    }

    fn controller_list(&self, from: u16) -> ControllerList {
        let mut list = ControllerList::default();
        list.fill(from, self.subsystem.controllers().iter().map(|controller| controller.id));
        list
    }

    pub(super) fn identify_controller(&self) -> IdentifyController {
        let config = self.target.config();
        let mut structure = IdentifyController {
            vendor: U16::new(PRIVATE_VENDOR),
            subsystem_vendor: U16::new(PRIVATE_VENDOR),
            oui: PRIVATE_OUI,
            controller_id: U16::new(self.id),
            version: U32::new(Version::V2_0.0),
            max_transfer_exponent: max_transfer_exponent(config),
            attributes: U32::new(attributes::HOST_ID_128 | attributes::TRAFFIC_KEEP_ALIVE),
            event_limit_0based: EVENT_REQUESTS as u8 - 1,
            error_entries_0based: ERROR_LOG_ENTRIES as u8 - 1,
            log_attributes: log_attributes::EXTENDED | log_attributes::SUPPORTED_PAGES,
            keep_alive_100ms: U16::new((KEEP_ALIVE_UNIT_MS / 100) as u16),
            max_commands: U16::new(config.max_queue_entries),
            sgl: U32::new(sgl_support::SUPPORTED | sgl_support::OFFSET | sgl_support::TRANSPORT),
            subnqn: self.subsystem.nqn.to_field(),
            ..IdentifyController::default()
        };
        structure.set_names(&self.subsystem.serial, &config.model, &config.firmware);
        structure.set_capsules(config.in_capsule_bytes);
        if self.is_discovery() {
            structure.controller_type = controller_type::DISCOVERY;
            structure.discovery_type = DIRECT_DISCOVERY;
            structure.events = U32::new(DISCOVERY_EVENTS.0);
        } else {
            self.fill_io_controller(&mut structure, config);
        }
        structure
    }

    /// Fields that only I/O controllers report.
    fn fill_io_controller(&self, structure: &mut IdentifyController, config: &TargetConfig) {
        structure.controller_type = controller_type::IO;
        structure.events = U32::new(IO_EVENTS.0);
        structure.multipath = multipath::PORTS | multipath::CONTROLLERS | multipath::ANA;
        structure.abort_limit_0based = ABORT_REQUESTS - 1;
        structure.firmware_updates = ONE_READ_ONLY_SLOT;
        structure.log_attributes |= log_attributes::COMMAND_EFFECTS;
        structure.sqe_exponents = SQES;
        structure.cqe_exponents = CQES;
        let reserves = self.snapshot().iter().any(|namespace| namespace.reservations.is_some());
        let reservations = if reserves { optional_io::RESERVATIONS } else { 0 };
        structure.optional_io = U16::new(OPTIONAL_IO | reservations);
        structure.fused = U16::new(COMPARE_AND_WRITE);
        structure.optional_fabrics = U16::new(DISCONNECT);
        // Linux requires both for ANA, and MNAN not above NN.
        structure.namespaces = U32::new(config.max_namespaces);
        structure.allowed_namespaces = U32::new(config.max_namespaces);
        let present = if self.volatile_cache { write_cache::PRESENT } else { 0 };
        structure.copy_formats = U16::new(COPY_FORMAT_0);
        structure.volatile_write_cache = present | write_cache::FLUSH_ALL;
        structure.ana_transition_s = ANA_TRANSITION_S;
        structure.ana_capabilities = ana_capabilities::OPTIMIZED
            | ana_capabilities::NON_OPTIMIZED
            | ana_capabilities::INACCESSIBLE
            | ana_capabilities::PERSISTENT_LOSS
            | ana_capabilities::CHANGE;
        structure.ana_group_max = U32::new(PENDING_ANA_GROUP);
        structure.ana_groups = U32::new(ANA_GROUPS as u32);
    }

    fn nvm_controller(&self) -> NvmController {
        // Verify, Write Zeroes and deallocation move no data, so they have no size limit: 0. The
        // limit of a range is advice for hosts, whose commands have a timeout: longer ranges are
        // deallocated, too.
        NvmController { dsm_range_blocks: U32::new(DSM_RANGE_BLOCKS), ..NvmController::default() }
    }

    fn namespace(&self, namespace: &Namespace) -> IdentifyNamespace {
        let geometry = &namespace.geometry;
        let blocks = U64::new(namespace.blocks);
        let in_blocks_0based = |bytes: u32| {
            let blocks = (bytes / geometry.block_bytes).max(1) - 1;
            U16::new(u16::try_from(blocks).unwrap_or(u16::MAX))
        };
        let write_granularity = in_blocks_0based(geometry.physical_block_bytes);
        let optimal_bytes = geometry.optimal_io_bytes.max(geometry.physical_block_bytes);
        // The other behavior, zeroes or old data, has no code of its own.
        let reads_as = if geometry.discard_zeroes { READS_AS_ZEROES } else { 0 };
        let deallocate = if geometry.can_discard { ZEROES_DEALLOCATE } else { 0 };
        let used = namespace.device.used_bytes();
        let used_blocks =
            used.map_or(namespace.blocks, |bytes| bytes.div_ceil(geometry.block_bytes.into()));
        let mut structure = IdentifyNamespace {
            size_blocks: blocks,
            capacity_blocks: blocks,
            // NUSE is at most NCAP.
            used_blocks: U64::new(used_blocks.min(namespace.blocks)),
            features: OPTIMAL_SIZES | if used.is_some() { THIN } else { 0 },
            sharing: SHARED,
            deallocate_features: reads_as | deallocate,
            capacity_bytes: U128::new(u128::from(geometry.size_bytes)),
            write_granularity_0based: write_granularity,
            write_alignment_0based: write_granularity,
            deallocate_granularity_0based: write_granularity,
            deallocate_alignment_0based: write_granularity,
            optimal_write_0based: in_blocks_0based(optimal_bytes),
            ana_group: U32::new(ANA_GROUP),
            attributes: if namespace.read_only { WRITE_PROTECTED } else { 0 },
            reservation_capabilities: match &namespace.reservations {
                None => 0,
                Some(of) if of.can_persist() => rescap::ALL_TYPES | rescap::PERSIST,
                Some(_) => rescap::ALL_TYPES,
            },
            nguid: namespace.uuid,
            ..IdentifyNamespace::default()
        };
        let copy = CopyLimits::of(namespace);
        structure.copy_range_blocks = U16::new(copy.range_blocks);
        structure.copy_blocks = U32::new(copy.blocks);
        structure.copy_ranges_0based = COPY_RANGES as u8 - 1;
        structure.formats[0] = LbaFormat::new(namespace.block_shift as u8);
        structure.set_instance(namespace.instance);
        structure
    }
}

fn independent(namespace: &Namespace) -> IndependentNamespace {
    IndependentNamespace {
        features: if namespace.geometry.volatile_cache { 0 } else { NO_VOLATILE_CACHE },
        sharing: SHARED,
        ana_group: U32::new(ANA_GROUP),
        attributes: if namespace.read_only { WRITE_PROTECTED } else { 0 },
        status: READY,
        ..IndependentNamespace::default()
    }
}

/// What is known of a pending namespace. It may have a volatile write cache.
fn pending() -> IndependentNamespace {
    IndependentNamespace {
        sharing: SHARED,
        ana_group: U32::new(PENDING_ANA_GROUP),
        status: 0,
        ..IndependentNamespace::default()
    }
}

/// Refuses command sets other than the NVM command set.
fn nvm_alone(identify: &Identify) -> Result<(), Status> {
    if identify.csi == csi::NVM { Ok(()) } else { Err(Status::INVALID_COMMAND_SET.dnr()) }
}

/// MDTS: a power of two of memory pages.
fn max_transfer_exponent(config: &TargetConfig) -> u8 {
    (config.mdts_bytes / PAGE_BYTES).trailing_zeros() as u8
}
