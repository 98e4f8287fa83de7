//! Completion status: status code type, status code and flags (Base 4.2.3).
//!
//! The status field of a completion queue entry has 15 bits, in a 16-bit word whose lowest bit is
//! the phase tag. [`Status`] is the 15 bits; [`Status::to_cqe`] and [`Status::from_cqe`] convert
//! them.

use core::fmt;

use crate::codes::constants;

constants! {
    /// Status code types (SCT).
    pub mod sct(u8) {
        GENERIC = 0, "Generic command status.";
        COMMAND_SPECIFIC = 1, "Command specific status.";
        MEDIA = 2, "Media and data integrity errors.";
        PATH = 3, "Path related status.";
        VENDOR = 7, "Vendor specific.";
    }
}

/// The status field of a completion, without the phase tag.
///
/// Bits 7:0 status code, 10:8 status code type, 12:11 command retry delay, 13 more, 14 do not
/// retry. The constants have no delay, more or do not retry; [`Status::dnr`] adds the last.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

const CODE_MASK: u16 = 0x07ff;
const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    /// The status of type `sct` (its low 3 bits) and code `sc`.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct as u16 & 7) << 8) | sc as u16)
    }

    /// The status in the last word of a completion queue entry.
    #[inline]
    pub const fn from_cqe(word: u16) -> Self {
        Self(word >> 1)
    }

    /// The last word of a completion queue entry. Over fabrics the phase tag is always 0.
    #[inline]
    pub const fn to_cqe(self) -> u16 {
        self.0 << 1
    }

    /// Status code type, 0 to 7; see [`sct`].
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Status code.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Type and code only, for comparison with the constants.
    #[inline]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE_MASK)
    }

    /// Whether the command succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// Sets do not retry: the command would fail again.
    pub const fn dnr(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// Whether do not retry is set: the command would fail again.
    pub const fn is_dnr(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Sets more: the error log has details.
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether more is set: the error log has details.
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether it concerns the path rather than the command: another path may succeed.
    pub const fn is_path_error(self) -> bool {
        self.sct() == sct::PATH
    }

    /// The specification's name of type and code; `None` if reserved or vendor specific.
    ///
    /// Command specific codes from 80h belong to the command set; [`Status::fabrics_name`] names
    /// them for fabrics commands.
    pub const fn name(self) -> Option<&'static str> {
        match self.sct() {
            sct::GENERIC => generic_name(self.sc()),
            sct::COMMAND_SPECIFIC => match command_name(self.sc()) {
                None => io_name(self.sc()),
                name => name,
            },
            sct::MEDIA => media_name(self.sc()),
            sct::PATH => path_name(self.sc()),
            _ => None,
        }
    }

    /// The name of the status of a fabrics command.
    pub const fn fabrics_name(self) -> Option<&'static str> {
        if self.sct() == sct::COMMAND_SPECIFIC && self.sc() >= 0x80 {
            fabrics_name(self.sc())
        } else {
            self.name()
        }
    }
}

/// Declares constants of one status code type, and the function from code to name.
macro_rules! statuses {
    ($sct:expr, $name_of:ident { $( $constant:ident = $value:literal, $text:literal; )* }) => {
        impl Status {
            $(
                #[doc = concat!($text, " (", stringify!($value), ").")]
                pub const $constant: Self = Self::new($sct, $value);
            )*
        }

        const fn $name_of(sc: u8) -> Option<&'static str> {
            match sc {
                $( $value => Some($text), )*
                _ => None,
            }
        }
    };
}

statuses! {
    sct::GENERIC, generic_name {
        SUCCESS = 0x00, "Successful Completion";
        INVALID_OPCODE = 0x01, "Invalid Command Opcode";
        INVALID_FIELD = 0x02, "Invalid Field in Command";
        COMMAND_ID_CONFLICT = 0x03, "Command ID Conflict";
        DATA_TRANSFER_ERROR = 0x04, "Data Transfer Error";
        ABORTED_POWER_LOSS = 0x05, "Commands Aborted due to Power Loss Notification";
        INTERNAL_ERROR = 0x06, "Internal Error";
        ABORT_REQUESTED = 0x07, "Command Abort Requested";
        ABORTED_SQ_DELETION = 0x08, "Command Aborted due to SQ Deletion";
        FAILED_FUSED_COMMAND = 0x09, "Command Aborted due to Failed Fused Command";
        MISSING_FUSED_COMMAND = 0x0a, "Command Aborted due to Missing Fused Command";
        INVALID_NAMESPACE = 0x0b, "Invalid Namespace or Format";
        COMMAND_SEQUENCE_ERROR = 0x0c, "Command Sequence Error";
        INVALID_SGL_COUNT = 0x0e, "Invalid Number of SGL Descriptors";
        DATA_SGL_LENGTH_INVALID = 0x0f, "Data SGL Length Invalid";
        METADATA_SGL_LENGTH_INVALID = 0x10, "Metadata SGL Length Invalid";
        SGL_TYPE_INVALID = 0x11, "SGL Descriptor Type Invalid";
        ATOMIC_WRITE_UNIT_EXCEEDED = 0x14, "Atomic Write Unit Exceeded";
        OPERATION_DENIED = 0x15, "Operation Denied";
        SGL_OFFSET_INVALID = 0x16, "SGL Offset Invalid";
        HOST_ID_INCONSISTENT = 0x18, "Host Identifier Inconsistent Format";
        KEEP_ALIVE_EXPIRED = 0x19, "Keep Alive Timer Expired";
        KEEP_ALIVE_INVALID = 0x1a, "Keep Alive Timeout Invalid";
        ABORTED_PREEMPT = 0x1b, "Command Aborted due to Preempt and Abort";
        SANITIZE_FAILED = 0x1c, "Sanitize Failed";
        SANITIZE_IN_PROGRESS = 0x1d, "Sanitize In Progress";
        SGL_GRANULARITY_INVALID = 0x1e, "SGL Data Block Granularity Invalid";
        WRITE_PROTECTED = 0x20, "Namespace is Write Protected";
        COMMAND_INTERRUPTED = 0x21, "Command Interrupted";
        TRANSIENT_TRANSPORT_ERROR = 0x22, "Transient Transport Error";
        PROHIBITED_BY_LOCKDOWN = 0x23, "Command Prohibited by Command and Feature Lockdown";
        ADMIN_MEDIA_NOT_READY = 0x24, "Admin Command Media Not Ready";
        INVALID_KEY_TAG = 0x25, "Invalid Key Tag";
        DISPERSED_NAMESPACE_NOT_ENABLED = 0x26, "Host Dispersed Namespace Support Not Enabled";
        HOST_ID_NOT_INITIALIZED = 0x27, "Host Identifier Not Initialized";
        INCORRECT_KEY = 0x28, "Incorrect Key";
        LBA_OUT_OF_RANGE = 0x80, "LBA Out of Range";
        CAPACITY_EXCEEDED = 0x81, "Capacity Exceeded";
        NAMESPACE_NOT_READY = 0x82, "Namespace Not Ready";
        RESERVATION_CONFLICT = 0x83, "Reservation Conflict";
        FORMAT_IN_PROGRESS = 0x84, "Format In Progress";
    }
}

statuses! {
    sct::COMMAND_SPECIFIC, command_name {
        INVALID_QUEUE_ID = 0x01, "Invalid Queue Identifier";
        INVALID_QUEUE_SIZE = 0x02, "Invalid Queue Size";
        ABORT_LIMIT_EXCEEDED = 0x03, "Abort Command Limit Exceeded";
        ASYNC_EVENT_LIMIT_EXCEEDED = 0x05, "Asynchronous Event Request Limit Exceeded";
        INVALID_LOG_PAGE = 0x09, "Invalid Log Page";
        FEATURE_NOT_SAVEABLE = 0x0d, "Feature Identifier Not Saveable";
        FEATURE_NOT_CHANGEABLE = 0x0e, "Feature Not Changeable";
        FEATURE_NOT_NAMESPACE_SPECIFIC = 0x0f, "Feature Not Namespace Specific";
        OVERLAPPING_RANGE = 0x14, "Overlapping Range";
        NAMESPACE_NOT_ATTACHED = 0x1a, "Namespace Not Attached";
        INVALID_CONTROLLER_ID = 0x1f, "Invalid Controller Identifier";
        INSUFFICIENT_CAPACITY = 0x26, "Insufficient Capacity";
        COMMAND_SET_NOT_SUPPORTED = 0x29, "I/O Command Set Not Supported";
        COMMAND_SET_NOT_ENABLED = 0x2a, "I/O Command Set Not Enabled";
        COMMAND_SET_COMBINATION_REJECTED = 0x2b, "I/O Command Set Combination Rejected";
        INVALID_COMMAND_SET = 0x2c, "Invalid I/O Command Set";
        IDENTIFIER_UNAVAILABLE = 0x2d, "Identifier Unavailable";
        NOT_ENOUGH_RESOURCES = 0x38, "Not Enough Resources";
    }
}

statuses! {
    sct::COMMAND_SPECIFIC, io_name {
        CONFLICTING_ATTRIBUTES = 0x80, "Conflicting Attributes";
        INVALID_PROTECTION_INFORMATION = 0x81, "Invalid Protection Information";
        WRITE_TO_READ_ONLY_RANGE = 0x82, "Attempted Write to Read Only Range";
        COMMAND_SIZE_LIMIT_EXCEEDED = 0x83, "Command Size Limit Exceeded";
    }
}

statuses! {
    sct::COMMAND_SPECIFIC, fabrics_name {
        CONNECT_INCOMPATIBLE_FORMAT = 0x80, "Connect Incompatible Format";
        CONNECT_CONTROLLER_BUSY = 0x81, "Connect Controller Busy";
        CONNECT_INVALID_PARAMETERS = 0x82, "Connect Invalid Parameters";
        CONNECT_RESTART_DISCOVERY = 0x83, "Connect Restart Discovery";
        CONNECT_INVALID_HOST = 0x84, "Connect Invalid Host";
        INVALID_QUEUE_TYPE = 0x85, "Invalid Queue Type";
        DISCOVER_RESTART = 0x90, "Discover Restart";
        AUTHENTICATION_REQUIRED = 0x91, "Authentication Required";
    }
}

statuses! {
    sct::MEDIA, media_name {
        WRITE_FAULT = 0x80, "Write Fault";
        UNRECOVERED_READ_ERROR = 0x81, "Unrecovered Read Error";
        GUARD_CHECK_ERROR = 0x82, "End-to-end Guard Check Error";
        APPLICATION_TAG_CHECK_ERROR = 0x83, "End-to-end Application Tag Check Error";
        REFERENCE_TAG_CHECK_ERROR = 0x84, "End-to-end Reference Tag Check Error";
        COMPARE_FAILURE = 0x85, "Compare Failure";
        ACCESS_DENIED = 0x86, "Access Denied";
        DEALLOCATED_BLOCK = 0x87, "Deallocated or Unwritten Logical Block";
        STORAGE_TAG_CHECK_ERROR = 0x88, "End-to-End Storage Tag Check Error";
    }
}

statuses! {
    sct::PATH, path_name {
        INTERNAL_PATH_ERROR = 0x00, "Internal Path Error";
        ANA_PERSISTENT_LOSS = 0x01, "Asymmetric Access Persistent Loss";
        ANA_INACCESSIBLE = 0x02, "Asymmetric Access Inaccessible";
        ANA_TRANSITION = 0x03, "Asymmetric Access Transition";
        CONTROLLER_PATHING_ERROR = 0x60, "Controller Pathing Error";
        HOST_PATHING_ERROR = 0x70, "Host Pathing Error";
        ABORTED_BY_HOST = 0x71, "Command Aborted By Host";
    }
}

impl fmt::Display for Status {
    /// Name and numbers; both names if a code means one thing for I/O and another for Connect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.fabrics_name()) {
            (Some(name), Some(fabrics)) if name != fabrics => write!(f, "{name} or {fabrics}")?,
            (Some(name), _) | (None, Some(name)) => f.write_str(name)?,
            (None, None) => f.write_str("Unknown Status")?,
        }
        write!(f, " ({:x}h/{:02x}h", self.sct(), self.sc())?;
        f.write_str(if self.is_dnr() { ", do not retry)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn status_bits_match_completion() {
        // As printed by Linux and the specification: DNR is bit 14 of the field, SCT from bit 8.
        assert_eq!(Status::INVALID_FIELD.dnr().to_cqe(), 0x8004);
        assert_eq!(Status::ANA_INACCESSIBLE.to_cqe(), 0x0604);
        assert_eq!(Status::CONNECT_INVALID_PARAMETERS.dnr().to_cqe() >> 1, 0x4182);
        assert_eq!(Status::from_cqe(0x0001), Status::SUCCESS);
        assert!(Status::from_cqe(0x8000).is_success() && Status::from_cqe(0x8000).is_dnr());
        assert!(Status::from_cqe(0x4000).is_more());
        assert!(Status::HOST_PATHING_ERROR.is_path_error());
    }

    #[test]
    fn shared_status_code_prints_both_names() {
        let text = Status::CONNECT_INVALID_PARAMETERS.dnr().to_string();
        let both = "Attempted Write to Read Only Range or Connect Invalid Parameters";
        assert_eq!(text, format!("{both} (1h/82h, do not retry)"));
        assert_eq!(Status::INVALID_OPCODE.to_string(), "Invalid Command Opcode (0h/01h)");
        assert_eq!(Status::new(7, 0xc1).to_string(), "Unknown Status (7h/c1h)");
        assert_eq!(Status::AUTHENTICATION_REQUIRED.to_string(), "Authentication Required (1h/91h)");
    }

    proptest! {
        #[test]
        fn any_status_round_trips_except_phase(word: u16) {
            let status = Status::from_cqe(word);
            prop_assert_eq!(status.to_cqe(), word & !1);
            prop_assert_eq!(Status::new(status.sct(), status.sc()), status.code());
            prop_assert!(!status.to_string().is_empty());
        }
    }
}
