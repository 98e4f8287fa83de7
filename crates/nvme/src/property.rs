//! Controller properties, read and written over fabrics with Property Get and Property Set
//! (Base 3.1.4).

use crate::codes::{bits, codes, constants};
use crate::status::Status;

codes! {
    /// Byte offset of a property.
    pub struct Property(u32) {
        CAP = 0x00, "Controller Capabilities";
        VS = 0x08, "Version";
        CC = 0x14, "Controller Configuration";
        CSTS = 0x1c, "Controller Status";
        NSSR = 0x20, "NVM Subsystem Reset";
        CRTO = 0x68, "Controller Ready Timeouts";
    }
}

impl Property {
    /// Its size in bytes, 4 or 8; `None` for a property that a fabrics controller does not have.
    pub const fn size_bytes(self) -> Option<u8> {
        match self {
            Self::CAP => Some(8),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::CRTO => Some(4),
            _ => None,
        }
    }

    /// Whether Property Set is permitted.
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::CC | Self::NSSR)
    }

    /// Checks a Property Get of this property with size code `size` (ATTRIB bits 2:0).
    ///
    /// # Errors
    /// Invalid Field for a property that does not exist, or a wrong size.
    pub const fn check_get(self, size: PropertySize) -> Result<(), Status> {
        match (self.size_bytes(), size.bytes()) {
            (Some(has), Some(asked)) if has == asked => Ok(()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Checks a Property Set of this property with size code `size` (ATTRIB bits 2:0).
    ///
    /// # Errors
    /// Invalid Field as in [`Property::check_get`], and for a read-only property.
    pub const fn check_set(self, size: PropertySize) -> Result<(), Status> {
        if self.is_writable() { self.check_get(size) } else { Err(Status::INVALID_FIELD) }
    }
}

/// Size code of a property command: 0 for 4 bytes, 1 for 8 bytes, others reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySize(pub u8);

impl PropertySize {
    /// 4 bytes.
    pub const FOUR: Self = Self(0);
    /// 8 bytes.
    pub const EIGHT: Self = Self(1);

    /// Size in bytes; `None` if reserved.
    pub const fn bytes(self) -> Option<u8> {
        match self.0 {
            0 => Some(4),
            1 => Some(8),
            _ => None,
        }
    }
}

bits! {
    /// Controller Capabilities (Base 3.1.4.1).
    pub struct Capabilities(u64) {
        /// MQES: entries of the largest queue, 0's based; at least 1.
        max_queue_entries_0based, with_max_queue_entries_0based: 0, 16;
        /// CQR: queues must be contiguous; 1 over fabrics.
        contiguous_queues, with_contiguous_queues: 16, 1;
        /// AMS: arbitration mechanisms in addition to round robin.
        arbitration, with_arbitration: 17, 2;
        /// TO: longest time between enable and ready, in units of 500 ms.
        timeout_500ms, with_timeout_500ms: 24, 8;
        doorbell_stride, with_doorbell_stride: 32, 4, "DSTRD: doorbell stride; 0 over fabrics.";
        subsystem_reset, with_subsystem_reset: 36, 1, "NSSRS: NVM subsystem reset is supported.";
        /// CSS: bit 0 NVM command set, bit 6 several command sets, bit 7 none.
        command_sets, with_command_sets: 37, 8;
        /// MPSMIN: smallest memory page, 2^(12 + this) bytes.
        min_page_exponent, with_min_page_exponent: 48, 4;
        /// MPSMAX: largest memory page, 2^(12 + this) bytes.
        max_page_exponent, with_max_page_exponent: 52, 4;
        /// CRMS: ready modes; bit 0 with media, bit 1 independent of media.
        ready_modes, with_ready_modes: 59, 2;
    }
}

bits! {
    /// Version (Base 3.1.4.2).
    pub struct Version(u32) {
        minor, with_minor: 8, 8, "Minor version number.";
        major, with_major: 16, 16, "Major version number.";
    }
}

impl Version {
    /// NVM Express 1.4.
    pub const V1_4: Self = Self(0x0001_0400);
    /// NVM Express 2.0.
    pub const V2_0: Self = Self(0x0002_0000);
    /// NVM Express 2.1.
    pub const V2_1: Self = Self(0x0002_0100);
}

bits! {
    /// Controller Configuration (Base 3.1.4.5).
    pub struct Configuration(u32) {
        enable, with_enable: 0, 1, "EN: enable.";
        /// CSS: selected command set: 0 NVM, 6 all supported, 7 only admin.
        command_set, with_command_set: 4, 3;
        page_exponent, with_page_exponent: 7, 4, "MPS: memory page, 2^(12 + this) bytes.";
        arbitration, with_arbitration: 11, 3, "AMS: arbitration mechanism; 0 is round robin.";
        shutdown, with_shutdown: 14, 2, "SHN: shutdown notification; see [`shutdown`].";
        /// IOSQES: I/O submission queue entry, 2^this bytes; 6.
        sqe_exponent, with_sqe_exponent: 16, 4;
        /// IOCQES: I/O completion queue entry, 2^this bytes; 4.
        cqe_exponent, with_cqe_exponent: 20, 4;
    }
}

constants! {
    /// Values of CC.SHN, the requested shutdown.
    pub mod shutdown(u32) {
        NONE = 0, "None.";
        NORMAL = 1, "Normal: flush first.";
        ABRUPT = 2, "Abrupt.";
    }

    /// Values of CSTS.SHST, the progress of a shutdown.
    pub mod shutdown_status(u32) {
        NORMAL_OPERATION = 0, "No shutdown was requested.";
        OCCURRING = 1, "In progress.";
        COMPLETE = 2, "Complete: it is safe to remove power.";
    }
}

bits! {
    /// Controller Status (Base 3.1.4.6).
    pub struct ControllerStatus(u32) {
        ready, with_ready: 0, 1, "RDY: ready for commands.";
        fatal, with_fatal: 1, 1, "CFS: controller fatal status.";
        /// SHST: shutdown status; see [`shutdown_status`].
        shutdown_status, with_shutdown_status: 2, 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn property_sizes_are_checked() {
        let invalid = Err(Status::INVALID_FIELD);
        for (property, size, get, set) in [
            (Property::CAP, PropertySize::EIGHT, Ok(()), invalid),
            (Property::CAP, PropertySize::FOUR, invalid, invalid),
            (Property::CC, PropertySize::FOUR, Ok(()), Ok(())),
            (Property::CC, PropertySize::EIGHT, invalid, invalid),
            (Property::CC, PropertySize(2), invalid, invalid),
            (Property::CSTS, PropertySize::FOUR, Ok(()), invalid),
            (Property::VS, PropertySize::FOUR, Ok(()), invalid),
            (Property::NSSR, PropertySize::FOUR, Ok(()), Ok(())),
            (Property(0x04), PropertySize::FOUR, invalid, invalid),
            (Property(0xffff_fffc), PropertySize::FOUR, invalid, invalid),
        ] {
            assert_eq!(property.check_get(size), get, "{property:?} {size:?}");
            assert_eq!(property.check_set(size), set, "{property:?} {size:?}");
        }
    }

    #[test]
    fn values_seen_on_real_wires() {
        // Written by Linux to enable a fabrics controller.
        let configuration = Configuration(0x0046_0001);
        assert_eq!(configuration.enable(), 1);
        assert_eq!(configuration.sqe_exponent(), 6);
        assert_eq!(configuration.cqe_exponent(), 4);
        assert_eq!(configuration.page_exponent(), 0);
        // Written by Linux for a normal shutdown.
        assert_eq!(Configuration(0x0046_4001).shutdown(), shutdown::NORMAL);
        // Offered by SPDK's target: 128 entries, 15 s, NVM command set.
        let capabilities = Capabilities(0x0000_0020_1e01_007f);
        assert_eq!(capabilities.max_queue_entries_0based(), 127);
        assert_eq!(capabilities.contiguous_queues(), 1);
        assert_eq!(capabilities.timeout_500ms(), 30);
        assert_eq!(capabilities.command_sets(), 1);
        assert_eq!(Version::V2_1.major(), 2);
        assert_eq!(Version::V1_4.minor(), 4);
        assert_eq!(ControllerStatus(0x9).shutdown_status(), shutdown_status::COMPLETE);
    }

    proptest! {
        #[test]
        fn property_fields_round_trip_independently(start: u64, value: u64) {
            let before = Capabilities(start);
            let after = before.with_command_sets(value);
            prop_assert_eq!(after.command_sets(), value & 0xff);
            prop_assert_eq!(after.with_command_sets(before.command_sets()), before);
        }
    }
}
