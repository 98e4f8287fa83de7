//! Identify Controller for I/O, discovery and administrative controllers (Base 5.1.13.2.1).

use crate::codes::constants;
use crate::limits::{CAPSULE_UNIT_BYTES, SQE_BYTES};
use crate::nqn::{Nqn, NqnError};
use crate::wire::{U16, U32, U64, fill_ascii, wire};

wire! {
    /// Identify Controller (CNS 01h). Bytes 1792 to 2047 are defined for fabrics. In a discovery
    /// controller the fields about namespaces are 0.
    pub struct IdentifyController [4096] {
        0 => pub vendor: U16, "VID: PCI vendor identifier; see [`PRIVATE_VENDOR`].";
        2 => pub subsystem_vendor: U16, "SSVID: PCI subsystem vendor identifier.";
        4 => pub serial_number: [u8; 20], "SN: serial number, ASCII padded with spaces.";
        24 => pub model_number: [u8; 40], "MN: model number, ASCII padded with spaces.";
        64 => pub firmware_revision: [u8; 8], "FR: firmware revision, ASCII padded with spaces.";
        72 => pub _unused72: u8;
        73 => pub oui: [u8; 3], "IEEE: OUI of the vendor, least significant byte first.";
        76 => pub multipath: u8, "CMIC: see [`multipath`].";
        /// MDTS: the largest transfer is 2^this memory pages (CAP.MPSMIN); 0 is no limit.
        77 => pub max_transfer_exponent: u8;
        78 => pub controller_id: U16, "CNTLID: controller identifier.";
        80 => pub version: U32, "VER: same format as the property VS.";
        84 => pub _unused84: [u8; 8];
        /// OAES: optional asynchronous events, as [`crate::event::EventMask`].
        92 => pub events: U32;
        96 => pub attributes: U32, "CTRATT: controller attributes; see [`attributes`].";
        100 => pub _unused100: [u8; 11];
        111 => pub controller_type: u8, "CNTRLTYPE: see [`controller_type`].";
        112 => pub _unused112: [u8; 144];
        256 => pub optional_admin: U16, "OACS: optional admin commands.";
        258 => pub abort_limit_0based: u8, "ACL: Abort commands outstanding, 0's based.";
        /// AERL: Asynchronous Event Requests outstanding, 0's based.
        259 => pub event_limit_0based: u8;
        /// FRMW: bit 0 slot 1 is read only, bits 3:1 number of slots, bit 4 activation without
        /// reset.
        260 => pub firmware_updates: u8;
        261 => pub log_attributes: u8, "LPA: log page attributes; see [`log_attributes`].";
        262 => pub error_entries_0based: u8, "ELPE: entries of the error log, 0's based.";
        263 => pub _unused263: [u8; 57];
        /// KAS: keep alive granularity, units of 100 ms; 0 is no keep alive.
        320 => pub keep_alive_100ms: U16;
        322 => pub _unused322: [u8; 20];
        342 => pub ana_transition_s: u8, "ANATT: longest ANA transition, seconds.";
        343 => pub ana_capabilities: u8, "ANACAP: ANA capabilities; see [`ana_capabilities`].";
        344 => pub ana_group_max: U32, "ANAGRPMAX: largest ANA group identifier.";
        348 => pub ana_groups: U32, "NANAGRPID: number of ANA groups.";
        352 => pub _unused352: [u8; 160];
        /// SQES: submission queue entry: bits 3:0 required, 7:4 largest, 2^this bytes.
        512 => pub sqe_exponents: u8;
        /// CQES: completion queue entry: bits 3:0 required, 7:4 largest, 2^this bytes.
        513 => pub cqe_exponents: u8;
        /// MAXCMD: commands outstanding on a queue at most; not 0 over fabrics.
        514 => pub max_commands: U16;
        516 => pub namespaces: U32, "NN: largest namespace identifier.";
        520 => pub optional_io: U16, "ONCS: optional I/O commands; see [`optional_io`].";
        522 => pub fused: U16, "FUSES: bit 0: Compare and Write.";
        524 => pub _unused524: u8;
        525 => pub volatile_write_cache: u8, "VWC: see [`write_cache`].";
        526 => pub _unused526: [u8; 8];
        534 => pub copy_formats: U16, "OCFS: descriptor formats of Copy; bit 0 format 0h.";
        536 => pub sgl: U32, "SGLS: SGL support; see [`sgl_support`].";
        540 => pub allowed_namespaces: U32, "MNAN: namespaces allowed at most; 0 means NN.";
        544 => pub _unused544: [u8; 224];
        768 => pub subnqn: [u8; 256], "SUBNQN: name of the NVM subsystem, ended by a 0 byte.";
        1024 => pub _reserved1024: [u8; 768];
        /// IOCCSZ: I/O command capsule, entry and in-capsule data, units of 16 bytes; at least 4.
        1792 => pub capsule_cmd_16b: U32;
        /// IORCSZ: I/O response capsule, units of 16 bytes; at least 1.
        1796 => pub capsule_resp_16b: U32;
        /// ICDOFF: where in-capsule data starts after the entry, units of 16 bytes; 0 over TCP.
        1800 => pub in_capsule_offset_16b: U16;
        1802 => pub fabrics_attributes: u8, "FCATT: bit 0: the static controller model.";
        1803 => pub max_descriptors: u8, "MSDBD: SGL descriptors in a capsule at most; 1 over TCP.";
        1804 => pub optional_fabrics: U16, "OFCS: bit 0: Disconnect is supported.";
        /// DCTYPE: of a discovery controller: 0 not said, 1 direct, 2 central.
        1806 => pub discovery_type: u8;
        1807 => pub _unused1807: [u8; 2289];
    }

    /// Identify Controller specific to the NVM command set (CNS 06h, CSI 00h,
    /// NVM Command Set 4.1.5.4).
    pub struct NvmController [4096] {
        0 => pub _unused0: u8;
        1 => pub write_zeroes_exponent: u8, "WZSL: Write Zeroes, as MDTS; 0 is no limit.";
        2 => pub _unused2: u8;
        3 => pub dsm_ranges: u8, "DMRL: Dataset Management, ranges at most; 0 is no limit.";
        /// DMRSL: Dataset Management, blocks of one range at most; 0 is no limit.
        4 => pub dsm_range_blocks: U32;
        8 => pub dsm_blocks: U64, "DMSL: Dataset Management, blocks in all at most; 0 is no limit.";
        16 => pub _unused16: [u8; 4080];
    }
}

constants! {
    /// CMIC, bits.
    pub mod multipath(u8) {
        PORTS = 1 << 0, "The NVM subsystem may have several ports.";
        CONTROLLERS = 1 << 1, "The NVM subsystem may have several controllers.";
        ANA = 1 << 3, "Asymmetric namespace access is reported.";
    }

    /// CNTRLTYPE.
    pub mod controller_type(u8) {
        IO = 1, "I/O controller.";
        DISCOVERY = 2, "Discovery controller.";
    }

    /// CTRATT, bits.
    pub mod attributes(u32) {
        HOST_ID_128 = 1 << 0, "128-bit host identifiers.";
        TRAFFIC_KEEP_ALIVE = 1 << 6, "Traffic based keep alive: any command restarts the timer.";
    }

    /// LPA, bits.
    pub mod log_attributes(u8) {
        COMMAND_EFFECTS = 1 << 1, "Commands Supported and Effects.";
        EXTENDED = 1 << 2, "Extended data: 32-bit lengths and offsets of Get Log Page.";
        SUPPORTED_PAGES = 1 << 5, "Supported Log Pages; scopes in Commands Supported and Effects.";
    }

    /// ANACAP, bits.
    pub mod ana_capabilities(u8) {
        OPTIMIZED = 1 << 0, "The optimized state is reported.";
        NON_OPTIMIZED = 1 << 1, "The non-optimized state is reported.";
        INACCESSIBLE = 1 << 2, "The inaccessible state is reported.";
        PERSISTENT_LOSS = 1 << 3, "The persistent loss state is reported.";
        CHANGE = 1 << 4, "The change state is reported.";
        FIXED_GROUPS = 1 << 6, "A namespace's group does not change while it is attached.";
    }

    /// ONCS, bits.
    pub mod optional_io(u16) {
        COMPARE = 1 << 0, "Compare.";
        DATASET_MANAGEMENT = 1 << 2, "Dataset Management.";
        WRITE_ZEROES = 1 << 3, "Write Zeroes.";
        SAVE_SELECT = 1 << 4, "Features can be saved and selected.";
        RESERVATIONS = 1 << 5, "Reservations.";
        VERIFY = 1 << 7, "Verify.";
        COPY = 1 << 8, "Copy.";
    }

    /// VWC, bits.
    pub mod write_cache(u8) {
        PRESENT = 1 << 0, "A volatile write cache is present.";
        FLUSH_ALL = 3 << 1, "Flush of NSID FFFFFFFFh flushes every namespace.";
    }

    /// SGLS, bits.
    pub mod sgl_support(u32) {
        SUPPORTED = 1 << 0, "SGLs are supported, without alignment.";
        OFFSET = 1 << 20, "The address of a data block may be an offset: in-capsule data.";
        TRANSPORT = 1 << 21, "Transport SGL data blocks.";
    }
}

/// VID and SSVID of this project: a private value that no vendor had at the time of writing. It is
/// not assigned by the PCI-SIG.
pub const PRIVATE_VENDOR: u16 = 0xf1a6;
/// OUI of this project: 02-F1-A6, in the locally administered range, which the IEEE never assigns.
pub const PRIVATE_OUI: [u8; 3] = [0xa6, 0xf1, 0x02];
/// OCFS bit 0: Copy with descriptors of format 0h, ranges of the same namespace.
pub const COPY_FORMAT_0: u16 = 1 << 0;
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
    pub const fn in_capsule_bytes(&self) -> u32 {
        let entry = SQE_BYTES as u32 / CAPSULE_UNIT_BYTES;
        self.capsule_cmd_16b.get().saturating_sub(entry).saturating_mul(CAPSULE_UNIT_BYTES)
    }

    /// The largest transfer, bytes, with memory pages of 2^(12 + `page_exponent`) bytes
    /// (CAP.MPSMIN, 0 to 15); `None` if there is no limit below 2^32.
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
