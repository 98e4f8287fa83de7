//! Identify Controller for I/O, discovery and administrative controllers (Base 5.1.13.2.1).

use crate::limits::{CAPSULE_UNIT_BYTES, SQE_BYTES};
use crate::nqn::{Nqn, NqnError};
use crate::wire::{U16, U32, U64, U128, fill_ascii, wire};

wire! {
    /// One power state.
    pub struct PowerState [32] {
        /// MP: largest power, units of 10 mW (or 0.1 mW by flag).
        0 => pub max_power: U16,
        #[doc(hidden)]
        2 => pub _reserved2: u8,
        /// Bit 0 the unit of MP, bit 1 non-operational.
        3 => pub flags: u8,
        /// ENLAT: longest entry, microseconds.
        4 => pub entry_us: U32,
        /// EXLAT: longest exit, microseconds.
        8 => pub exit_us: U32,
        /// RRT: relative read throughput.
        12 => pub read_throughput: u8,
        /// RRL: relative read latency.
        13 => pub read_latency: u8,
        /// RWT: relative write throughput.
        14 => pub write_throughput: u8,
        /// RWL: relative write latency.
        15 => pub write_latency: u8,
        /// Idle, active and workload power, and emergency power fail times.
        16 => pub power: [u8; 16],
    }

    /// Identify Controller (CNS 01h). Bytes 1792 to 2047 are defined for fabrics. In a discovery
    /// controller the fields about namespaces are 0.
    pub struct IdentifyController [4096] {
        /// VID: PCI vendor identifier.
        0 => pub vendor_id: U16,
        /// SSVID: PCI subsystem vendor identifier.
        2 => pub subsystem_vendor_id: U16,
        /// SN: serial number, ASCII padded with spaces.
        4 => pub serial_number: [u8; 20],
        /// MN: model number, ASCII padded with spaces.
        24 => pub model_number: [u8; 40],
        /// FR: firmware revision, ASCII padded with spaces.
        64 => pub firmware_revision: [u8; 8],
        /// RAB: recommended arbitration burst, 2^this commands.
        72 => pub arbitration_burst: u8,
        /// IEEE OUI of the vendor, little-endian.
        73 => pub ieee_oui: [u8; 3],
        /// CMIC: see [`multipath`].
        76 => pub multipath: u8,
        /// MDTS: the largest transfer is 2^this memory pages (CAP.MPSMIN); 0 is no limit.
        77 => pub max_transfer_exponent: u8,
        /// CNTLID: controller identifier.
        78 => pub controller_id: U16,
        /// VER: same format as the property VS.
        80 => pub version: U32,
        /// RTD3R: resume latency from D3, microseconds.
        84 => pub resume_us: U32,
        /// RTD3E: entry latency into D3, microseconds.
        88 => pub entry_us: U32,
        /// OAES: optional asynchronous events, as [`crate::event::EventMask`].
        92 => pub events: U32,
        /// CTRATT: controller attributes; see [`attributes`].
        96 => pub attributes: U32,
        /// RRLS: read recovery levels.
        100 => pub read_recovery_levels: U16,
        /// BPCAP: boot partition capabilities.
        102 => pub boot_partitions: u8,
        #[doc(hidden)]
        103 => pub _reserved103: u8,
        /// NSSL: NVM subsystem shutdown latency, microseconds.
        104 => pub shutdown_latency_us: U32,
        #[doc(hidden)]
        108 => pub _reserved108: [u8; 2],
        /// PLSI: power loss signaling.
        110 => pub power_loss_signaling: u8,
        /// CNTRLTYPE: see [`controller_type`].
        111 => pub controller_type: u8,
        /// FGUID: FRU globally unique identifier.
        112 => pub fru_guid: [u8; 16],
        /// CRDT1: command retry delay 1, units of 100 ms.
        128 => pub retry_delay1_100ms: U16,
        /// CRDT2: command retry delay 2, units of 100 ms.
        130 => pub retry_delay2_100ms: U16,
        /// CRDT3: command retry delay 3, units of 100 ms.
        132 => pub retry_delay3_100ms: U16,
        /// CRCAP: reachability capabilities.
        134 => pub reachability: u8,
        #[doc(hidden)]
        135 => pub _reserved135: [u8; 118],
        /// NVMSR: NVM subsystem report.
        253 => pub subsystem_report: u8,
        /// VWCI: VPD write cycle information.
        254 => pub vpd_write_cycles: u8,
        /// MEC: management endpoint capabilities.
        255 => pub management_endpoint: u8,
        /// OACS: optional admin commands; see [`optional_admin`].
        256 => pub optional_admin: U16,
        /// ACL: Abort commands outstanding, 0's based.
        258 => pub abort_limit_0based: u8,
        /// AERL: Asynchronous Event Requests outstanding, 0's based.
        259 => pub event_limit_0based: u8,
        /// FRMW: bit 0 slot 1 is read only, bits 3:1 number of slots, bit 4 activation without reset.
        260 => pub firmware_updates: u8,
        /// LPA: log page attributes; see [`log_attributes`].
        261 => pub log_attributes: u8,
        /// ELPE: entries of the error log, 0's based.
        262 => pub error_entries_0based: u8,
        /// NPSS: power states, 0's based.
        263 => pub power_states_0based: u8,
        /// AVSCC: format of vendor specific admin commands.
        264 => pub admin_vendor_format: u8,
        /// APSTA: autonomous power state transitions.
        265 => pub autonomous_power: u8,
        /// WCTEMP: warning composite temperature threshold, kelvins.
        266 => pub warning_kelvins: U16,
        /// CCTEMP: critical composite temperature threshold, kelvins.
        268 => pub critical_kelvins: U16,
        /// MTFA: longest firmware activation, units of 100 ms.
        270 => pub firmware_activation_100ms: U16,
        /// HMPRE: preferred host memory buffer, units of 4 KiB.
        272 => pub host_buffer_preferred_4k: U32,
        /// HMMIN: smallest host memory buffer, units of 4 KiB.
        276 => pub host_buffer_min_4k: U32,
        /// TNVMCAP: total capacity, bytes.
        280 => pub total_bytes: U128,
        /// UNVMCAP: unallocated capacity, bytes.
        296 => pub unallocated_bytes: U128,
        /// RPMBS: replay protected memory blocks.
        312 => pub replay_protected: U32,
        /// EDSTT: longest extended self-test, minutes.
        316 => pub self_test_minutes: U16,
        /// DSTO: self-test options.
        318 => pub self_test_options: u8,
        /// FWUG: firmware update granularity, units of 4 KiB; FFh is none.
        319 => pub firmware_granularity_4k: u8,
        /// KAS: keep alive granularity, units of 100 ms; 0 is no keep alive.
        320 => pub keep_alive_100ms: U16,
        /// HCTMA: host controlled thermal management.
        322 => pub thermal_management: U16,
        /// MNTMT: lowest thermal management temperature, kelvins.
        324 => pub thermal_min_kelvins: U16,
        /// MXTMT: highest thermal management temperature, kelvins.
        326 => pub thermal_max_kelvins: U16,
        /// SANICAP: sanitize capabilities.
        328 => pub sanitize: U32,
        /// HMMINDS: smallest host memory buffer descriptor, units of 4 KiB.
        332 => pub host_buffer_descriptor_4k: U32,
        /// HMMAXD: host memory buffer descriptors at most.
        336 => pub host_buffer_descriptors: U16,
        /// NSETIDMAX: largest NVM set identifier.
        338 => pub nvm_set_max: U16,
        /// ENDGIDMAX: largest endurance group identifier.
        340 => pub endurance_group_max: U16,
        /// ANATT: longest ANA transition, seconds.
        342 => pub ana_transition_s: u8,
        /// ANACAP: ANA capabilities; see [`ana_capabilities`].
        343 => pub ana_capabilities: u8,
        /// ANAGRPMAX: largest ANA group identifier.
        344 => pub ana_group_max: U32,
        /// NANAGRPID: number of ANA groups.
        348 => pub ana_groups: U32,
        /// PELS: persistent event log, units of 64 KiB.
        352 => pub persistent_log_64k: U32,
        /// DOMAINID: domain of the controller.
        356 => pub domain_id: U16,
        /// KPIOC: key per I/O capabilities.
        358 => pub key_per_io: u8,
        #[doc(hidden)]
        359 => pub _reserved359: u8,
        /// MPTFAWR: longest processing time of a firmware activation without reset, units of 100 ms.
        360 => pub firmware_activation_no_reset_100ms: U16,
        #[doc(hidden)]
        362 => pub _reserved362: [u8; 6],
        /// MEGCAP: largest endurance group, bytes.
        368 => pub endurance_group_bytes: U128,
        /// TMPTHHA: temperature threshold hysteresis.
        384 => pub temperature_hysteresis: u8,
        #[doc(hidden)]
        385 => pub _reserved385: u8,
        /// CQT: longest command quiesce, milliseconds.
        386 => pub quiesce_ms: U16,
        #[doc(hidden)]
        388 => pub _reserved388: [u8; 124],
        /// SQES: submission queue entry: bits 3:0 required, 7:4 largest, 2^this bytes.
        512 => pub sqe_exponents: u8,
        /// CQES: completion queue entry: bits 3:0 required, 7:4 largest, 2^this bytes.
        513 => pub cqe_exponents: u8,
        /// MAXCMD: commands outstanding on a queue at most; not 0 over fabrics.
        514 => pub max_commands: U16,
        /// NN: largest namespace identifier.
        516 => pub namespaces: U32,
        /// ONCS: optional I/O commands; see [`optional_io`].
        520 => pub optional_io: U16,
        /// FUSES: fused operations.
        522 => pub fused: U16,
        /// FNA: Format NVM attributes.
        524 => pub format_attributes: u8,
        /// VWC: see [`write_cache`].
        525 => pub volatile_write_cache: u8,
        /// AWUN: atomic write unit, blocks, 0's based.
        526 => pub atomic_write_0based: U16,
        /// AWUPF: atomic write unit over power fail, blocks, 0's based.
        528 => pub atomic_write_power_fail_0based: U16,
        /// ICSVSCC: format of vendor specific I/O commands.
        530 => pub io_vendor_format: u8,
        /// NWPC: namespace write protection capabilities.
        531 => pub write_protection: u8,
        /// ACWU: atomic compare and write unit, blocks, 0's based.
        532 => pub atomic_compare_write_0based: U16,
        /// OCFS: copy descriptor formats.
        534 => pub copy_formats: U16,
        /// SGLS: SGL support; see [`sgl_support`].
        536 => pub sgl: U32,
        /// MNAN: namespaces allowed at most; 0 means NN.
        540 => pub allowed_namespaces: U32,
        /// MAXDNA: namespace attachments in a domain at most.
        544 => pub domain_attachments: U128,
        /// MAXCNA: namespace attachments to a controller at most.
        560 => pub controller_attachments: U32,
        /// OAQD: optimal aggregated queue depth.
        564 => pub admin_queue_depth: U32,
        /// RHIRI: recommended host-initiated refresh interval.
        568 => pub recommended_refresh: u8,
        /// HIRT: host-initiated refresh time.
        569 => pub refresh_time: u8,
        /// CMMRTD: controller maximum memory range tracking descriptors.
        570 => pub range_descriptors: U16,
        /// NMMRTD: NVM subsystem maximum memory range tracking descriptors.
        572 => pub subsystem_range_descriptors: U16,
        /// MINMRTG: smallest memory range tracking granularity.
        574 => pub range_granularity_min: u8,
        /// MAXMRTG: largest memory range tracking granularity.
        575 => pub range_granularity_max: u8,
        /// TRATTR: tracking attributes.
        576 => pub tracking: u8,
        #[doc(hidden)]
        577 => pub _reserved577: u8,
        /// MCUDMQ: controller user data migration queues at most.
        578 => pub migration_queues: U16,
        /// MNSUDMQ: NVM subsystem user data migration queues at most.
        580 => pub subsystem_migration_queues: U16,
        /// MCMR: CDQ memory ranges of the controller at most.
        582 => pub memory_ranges: U16,
        /// NMCMR: CDQ memory ranges of the NVM subsystem at most.
        584 => pub subsystem_memory_ranges: U16,
        /// MCDQPC: controller data queue PRP count at most.
        586 => pub data_queue_pages: U16,
        #[doc(hidden)]
        588 => pub _reserved588: [u8; 180],
        /// SUBNQN: name of the NVM subsystem, ended by a 0 byte.
        768 => pub subnqn: [u8; 256],
        #[doc(hidden)]
        1024 => pub _reserved1024: [u8; 768],
        /// IOCCSZ: I/O command capsule, entry and in-capsule data, units of 16 bytes; at least 4.
        1792 => pub capsule_cmd_16b: U32,
        /// IORCSZ: I/O response capsule, units of 16 bytes; at least 1.
        1796 => pub capsule_resp_16b: U32,
        /// ICDOFF: where in-capsule data starts after the entry, units of 16 bytes; 0 over TCP.
        1800 => pub in_capsule_offset_16b: U16,
        /// FCATT: bit 0: the static controller model.
        1802 => pub fabrics_attributes: u8,
        /// MSDBD: SGL descriptors in a capsule at most; 1 over TCP.
        1803 => pub max_descriptors: u8,
        /// OFCS: bit 0: Disconnect is supported.
        1804 => pub optional_fabrics: U16,
        /// DCTYPE: of a discovery controller: 0 not said, 1 direct, 2 central.
        1806 => pub discovery_type: u8,
        #[doc(hidden)]
        1807 => pub _reserved1807: [u8; 241],
        /// PSD: power states.
        2048 => pub power_states: [PowerState; 32],
        /// VS: vendor specific.
        3072 => pub vendor: [u8; 1024],
    }

    /// Identify Controller specific to the NVM command set (CNS 06h, CSI 00h,
    /// NVM Command Set 4.1.5.4).
    pub struct NvmController [4096] {
        /// VSL: Verify, as MDTS; 0 is no limit.
        0 => pub verify_exponent: u8,
        /// WZSL: Write Zeroes, as MDTS; 0 is no limit.
        1 => pub write_zeroes_exponent: u8,
        /// WUSL: Write Uncorrectable, as MDTS; 0 is no limit.
        2 => pub write_uncorrectable_exponent: u8,
        /// DMRL: Dataset Management, ranges at most; 0 is no limit.
        3 => pub dsm_ranges: u8,
        /// DMRSL: Dataset Management, blocks of one range at most; 0 is no limit.
        4 => pub dsm_range_blocks: U32,
        /// DMSL: Dataset Management, blocks in all at most; 0 is no limit.
        8 => pub dsm_blocks: U64,
        /// KPIOCAP: key per I/O capabilities.
        16 => pub key_per_io: u8,
        /// WZDSL: Write Zeroes with deallocate, as MDTS; 0 is as WZSL.
        17 => pub write_zeroes_deallocate_exponent: u8,
        /// AOCS: admin optional command support.
        18 => pub optional_admin: U16,
        /// VER: version of the NVM command set.
        20 => pub version: U32,
        /// LBAMQF: LBA migration queue format.
        24 => pub migration_queue_format: u8,
        #[doc(hidden)]
        25 => pub _reserved25: [u8; 4071],
    }
}

/// CMIC, bits.
pub mod multipath {
    /// The NVM subsystem may have several ports.
    pub const PORTS: u8 = 1 << 0;
    /// The NVM subsystem may have several controllers.
    pub const CONTROLLERS: u8 = 1 << 1;
    /// The controller is of an SR-IOV virtual function.
    pub const VIRTUAL_FUNCTION: u8 = 1 << 2;
    /// Asymmetric namespace access is reported.
    pub const ANA: u8 = 1 << 3;
}

/// CNTRLTYPE.
pub mod controller_type {
    /// I/O controller.
    pub const IO: u8 = 1;
    /// Discovery controller.
    pub const DISCOVERY: u8 = 2;
    /// Administrative controller.
    pub const ADMINISTRATIVE: u8 = 3;
}

/// CTRATT, bits.
pub mod attributes {
    /// 128-bit host identifiers.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Traffic based keep alive: any command restarts the timer.
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// Extended LBA formats: more than 16.
    pub const EXTENDED_FORMATS: u32 = 1 << 15;
}

/// OACS, bits.
pub mod optional_admin {
    /// Security Send and Receive.
    pub const SECURITY: u16 = 1 << 0;
    /// Format NVM.
    pub const FORMAT: u16 = 1 << 1;
    /// Firmware Commit and Download.
    pub const FIRMWARE: u16 = 1 << 2;
    /// Namespace Management and Attachment.
    pub const NAMESPACES: u16 = 1 << 3;
    /// Device Self-test.
    pub const SELF_TEST: u16 = 1 << 4;
    /// Get LBA Status.
    pub const LBA_STATUS: u16 = 1 << 9;
}

/// LPA, bits.
pub mod log_attributes {
    /// SMART / health of one namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const COMMAND_EFFECTS: u8 = 1 << 1;
    /// Extended data: 32-bit lengths and offsets of Get Log Page.
    pub const EXTENDED: u8 = 1 << 2;
    /// Telemetry.
    pub const TELEMETRY: u8 = 1 << 3;
    /// Persistent event log.
    pub const PERSISTENT_EVENTS: u8 = 1 << 4;
    /// Supported Log Pages, and the scopes in Commands Supported and Effects.
    pub const SUPPORTED_PAGES: u8 = 1 << 5;
}

/// ANACAP, bits.
pub mod ana_capabilities {
    /// The optimized state is reported.
    pub const OPTIMIZED: u8 = 1 << 0;
    /// The non-optimized state is reported.
    pub const NON_OPTIMIZED: u8 = 1 << 1;
    /// The inaccessible state is reported.
    pub const INACCESSIBLE: u8 = 1 << 2;
    /// The persistent loss state is reported.
    pub const PERSISTENT_LOSS: u8 = 1 << 3;
    /// The change state is reported.
    pub const CHANGE: u8 = 1 << 4;
    /// A namespace's group does not change while it is attached.
    pub const FIXED_GROUPS: u8 = 1 << 6;
}

/// ONCS, bits.
pub mod optional_io {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Features can be saved and selected.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
    /// Write Zeroes with deallocate may be longer (WZDSL).
    pub const WRITE_ZEROES_DEALLOCATE: u16 = 1 << 11;
    /// Write Zeroes of a whole namespace.
    pub const NAMESPACE_ZEROES: u16 = 1 << 12;
}

/// VWC, bits.
pub mod write_cache {
    /// A volatile write cache is present.
    pub const PRESENT: u8 = 1 << 0;
    /// Flush of NSID FFFFFFFFh is refused.
    pub const FLUSH_ALL_REFUSED: u8 = 2 << 1;
    /// Flush of NSID FFFFFFFFh flushes every namespace.
    pub const FLUSH_ALL: u8 = 3 << 1;
}

/// SGLS, bits.
pub mod sgl_support {
    /// SGLs are supported, without alignment.
    pub const SUPPORTED: u32 = 1 << 0;
    /// Keyed SGL data blocks: not over TCP.
    pub const KEYED: u32 = 1 << 2;
    /// The address of a data block may be an offset: in-capsule data.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL data blocks.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// FCATT bit 0: the static controller model.
pub const STATIC_CONTROLLERS: u8 = 1 << 0;
/// OFCS bit 0: Disconnect is supported.
pub const DISCONNECT: u16 = 1 << 0;
/// SQES and CQES of every controller of this project: entries of 2^6 and 2^4 bytes, required and
/// maximum.
pub const SQES: u8 = 0x66;
/// The value of CQES; see [`SQES`].
pub const CQES: u8 = 0x44;

impl IdentifyController {
    /// Sets serial number, model number and firmware revision: at most 20, 40 and 8 characters.
    pub fn set_names(&mut self, serial: &str, model: &str, firmware: &str) {
        fill_ascii(&mut self.serial_number, serial);
        fill_ascii(&mut self.model_number, model);
        fill_ascii(&mut self.firmware_revision, firmware);
    }

    /// Sets the size of an I/O command capsule for `in_capsule_bytes` of data (rounded down to a
    /// multiple of 16), and the other capsule fields to the values that TCP prescribes.
    pub fn set_capsules(&mut self, in_capsule_bytes: u32) {
        let entry = SQE_BYTES as u32 / CAPSULE_UNIT_BYTES;
        self.capsule_cmd_16b = U32::new(entry + in_capsule_bytes / CAPSULE_UNIT_BYTES);
        self.capsule_resp_16b = U32::new(1);
        self.in_capsule_offset_16b = U16::ZERO;
        self.max_descriptors = 1;
    }

    /// In-capsule data of an I/O command, bytes; 0 also for an invalid size.
    #[must_use]
    pub const fn in_capsule_bytes(&self) -> u32 {
        let entry = SQE_BYTES as u32 / CAPSULE_UNIT_BYTES;
        self.capsule_cmd_16b.get().saturating_sub(entry).saturating_mul(CAPSULE_UNIT_BYTES)
    }

    /// The largest transfer, bytes, with memory pages of 2^(12 + `page_exponent`) bytes
    /// (CAP.MPSMIN, 0 to 15); `None` if there is no limit below 2^32.
    #[must_use]
    pub const fn max_transfer_bytes(&self, page_exponent: u32) -> Option<u32> {
        if self.max_transfer_exponent == 0 {
            return None;
        }
        let exponent = 12 + (page_exponent & 15) + self.max_transfer_exponent as u32;
        1u32.checked_shl(exponent)
    }

    /// Name of the NVM subsystem.
    ///
    /// # Errors
    ///
    /// The field is not a valid name.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn capsule_sizes_are_in_16_byte_units() {
        let mut controller = IdentifyController::default();
        assert_eq!(controller.in_capsule_bytes(), 0);
        controller.set_capsules(64 * 1024);
        assert_eq!(controller.capsule_cmd_16b.get(), 4 + 4096);
        assert_eq!(controller.in_capsule_bytes(), 64 * 1024);
        assert_eq!(controller.max_descriptors, 1);
    }

    #[test]
    fn transfer_limit_is_in_pages() {
        let mut controller = IdentifyController::default();
        assert_eq!(controller.max_transfer_bytes(0), None);
        controller.max_transfer_exponent = 8;
        assert_eq!(controller.max_transfer_bytes(0), Some(1 << 20));
        assert_eq!(controller.max_transfer_bytes(4), Some(16 << 20));
        controller.max_transfer_exponent = 20;
        assert_eq!(controller.max_transfer_bytes(0), None);
        controller.max_transfer_exponent = 255;
        assert_eq!(controller.max_transfer_bytes(u32::MAX), None);
    }

    #[test]
    fn names_are_padded() {
        let mut controller = IdentifyController::default();
        controller.set_names("S1", "a model", "1.0");
        assert_eq!(&controller.serial_number, b"S1                  ");
        assert_eq!(&controller.firmware_revision, b"1.0     ");
        assert_eq!(crate::wire::ascii(&controller.model_number), Some("a model"));
        controller.subnqn = Nqn::discovery().to_field();
        assert_eq!(controller.subnqn(), Ok(Nqn::discovery()));
    }

    proptest! {
        #[test]
        fn any_capsule_size_is_in_range(units: u32) {
            let capsule_cmd_16b = U32::new(units);
            let controller = IdentifyController { capsule_cmd_16b, ..Default::default() };
            let exact = (u64::from(units).max(4) - 4) * 16;
            let expected = exact.min(u64::from(u32::MAX));
            prop_assert_eq!(u64::from(controller.in_capsule_bytes()), expected);
        }
    }
}
