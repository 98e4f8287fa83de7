//! Log pages of errors, SMART / health and firmware slots (Base 5.1.12.1).

use crate::status::Status;
use crate::wire::{U16, U32, U64, U128, fill_ascii, wire};

wire! {
    /// One entry of Error Information; the newest is first.
    pub struct ErrorEntry [64] {
        /// Error count: a unique number, starting at 1; 0 is an unused entry.
        0 => pub error_count: U64;
        8 => pub sqid: U16, "Submission queue of the command; FFFFh if none.";
        10 => pub cid: U16, "Identifier of the command; FFFFh if none.";
        12 => pub status_phase: U16, "Status in bits 15:1, as in the completion.";
        /// Location of the error in the command: byte in bits 7:0, bit in 10:8; FFFFh if none.
        14 => pub parameter_location: U16;
        16 => pub block: U64, "First block that had the error.";
        24 => pub nsid: U32, "Namespace.";
        28 => pub _unused28: u8;
        29 => pub transport: u8, "TRTYPE: transport, as in a discovery entry.";
        30 => pub csi: u8, "CSI: command set.";
        31 => pub opcode: u8, "Opcode of the command.";
        32 => pub command_specific: U64, "Command specific information.";
        40 => pub _unused40: [u8; 23];
        63 => pub version: u8, "Version of the entry; 1 if bytes 30 and 31 are valid.";
    }

    /// SMART / Health Information.
    pub struct SmartHealth [512] {
        /// Critical warning: bit 0 spare, 1 temperature, 2 reliability, 3 read only; 0 is none.
        0 => pub critical_warning: u8;
        1 => pub _unused1: [u8; 2];
        3 => pub available_spare: u8, "Available spare, percent.";
        4 => pub spare_threshold: u8, "Threshold of available spare for a warning, percent.";
        5 => pub _unused5: [u8; 27];
        32 => pub data_units_read: U128, "Data units read: thousands of 512 bytes, rounded up.";
        /// Data units written: thousands of 512 bytes, rounded up.
        48 => pub data_units_written: U128;
        64 => pub host_reads: U128, "Read commands.";
        80 => pub host_writes: U128, "Write commands.";
        96 => pub _unused96: [u8; 64];
        160 => pub media_errors: U128, "Media and data integrity errors.";
        176 => pub error_entries: U128, "Total number of entries of the error log.";
        192 => pub _unused192: [u8; 320];
    }

    /// Firmware Slot Information.
    pub struct FirmwareSlots [512] {
        /// AFI: bits 2:0 the slot that runs, bits 6:4 the slot after the next reset.
        0 => pub active: u8;
        1 => pub _reserved1: [u8; 7];
        /// FRS1 to FRS7: revision in each slot, ASCII padded with spaces; 0 when empty.
        8 => pub revisions: [[u8; 8]; 7];
        64 => pub _reserved64: [u8; 448];
    }
}

/// Data unit of [`SmartHealth`]: 1000 x 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;

impl ErrorEntry {
    /// SQID, CID or location of an error without one.
    pub const NONE: u16 = 0xffff;

    /// Its status.
    pub const fn status(&self) -> Status {
        Status::from_cqe(self.status_phase.get())
    }
}

impl SmartHealth {
    /// Data units of `bytes`, rounded up as the specification requires.
    pub const fn data_units(bytes: u128) -> U128 {
        U128::new(bytes.div_ceil(DATA_UNIT_BYTES))
    }
}

impl FirmwareSlots {
    /// One slot, which runs `revision`: at most 8 characters.
    pub fn one(revision: &str) -> Self {
        let mut slots = Self { active: 1, ..Self::default() };
        fill_ascii(&mut slots.revisions[0], revision);
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_units_round_up() {
        for (bytes, units) in [(0, 0), (1, 1), (512_000, 1), (512_001, 2)] {
            assert_eq!(SmartHealth::data_units(bytes).get(), units);
        }
        assert!(SmartHealth::data_units(u128::MAX).get() > 0);
    }

    #[test]
    fn firmware_slot_log_has_one_slot() {
        let slots = FirmwareSlots::one("0.1.0");
        assert_eq!(slots.active, 1);
        assert_eq!(&slots.revisions[0], b"0.1.0   ");
        assert_eq!(slots.revisions[1], [0; 8]);
        let entry = ErrorEntry { status_phase: U16::new(0x8004), ..Default::default() };
        assert_eq!(entry.status(), Status::INVALID_FIELD.dnr());
    }
}
