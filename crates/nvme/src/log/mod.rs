//! Log pages, returned by Get Log Page (Base 5.1.12.1).

pub mod ana;
pub mod discovery;
mod effects;
mod health;
pub mod reservation;

pub use ana::{AnaGroup, AnaHeader, AnaState};
pub use discovery::{DiscoveryEntry, DiscoveryHeader};
pub use effects::{CommandEffects, Effects, SupportedPages};
pub use health::{ErrorEntry, FirmwareSlots, SmartHealth};
pub use reservation::ReservationNotification;

use crate::codes::codes;
use crate::status::Status;

codes! {
    /// LID: log page identifier.
    pub struct LogId(u8) {
        SUPPORTED_PAGES = 0x00, "Supported Log Pages";
        ERROR = 0x01, "Error Information";
        SMART = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Attached Namespace List";
        COMMAND_EFFECTS = 0x05, "Commands Supported and Effects";
        SELF_TEST = 0x06, "Device Self-test";
        ANA = 0x0c, "Asymmetric Namespace Access";
        LBA_STATUS = 0x0e, "LBA Status Information";
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        DISCOVERY = 0x70, "Discovery";
        RESERVATION = 0x80, "Reservation Notification";
        SANITIZE = 0x81, "Sanitize Status";
    }
}

/// First entry of the Changed Namespace List if more than 1,024 namespaces changed: `FFFFFFFFh`,
/// with all other entries 0. The list itself is a [`crate::identify::NamespaceList`].
pub const CHANGED_TOO_MANY: u32 = 0xffff_ffff;

/// Number of bytes of a log page of `log_bytes` bytes that answer a request for `asked_bytes` from
/// `offset`, at most `asked_bytes`. The rest of the request is filled with 0.
///
/// # Errors
/// Invalid Field, with do not retry: an offset that is not a multiple of 4, or beyond the end.
pub const fn window(log_bytes: u64, offset: u64, asked_bytes: u64) -> Result<u64, Status> {
    match log_bytes.checked_sub(offset) {
        Some(left) if offset.is_multiple_of(4) => {
            Ok(if left < asked_bytes { left } else { asked_bytes })
        }
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_beyond_the_log_are_refused() {
        let refused = Err(Status::INVALID_FIELD.dnr());
        assert_eq!(window(1024, 0, 1024), Ok(1024));
        assert_eq!(window(1024, 1020, 1024), Ok(4));
        assert_eq!(window(1024, 1024, 4), Ok(0));
        assert_eq!(window(1024, 1028, 4), refused);
        assert_eq!(window(1024, u64::MAX - 3, 4), refused);
        assert_eq!(window(1024, 2, 4), refused);
    }

    proptest! {
        #[test]
        fn log_window_is_within_log(log: u64, offset: u64, asked: u64) {
            if let Ok(bytes) = window(log, offset, asked) {
                prop_assert!(bytes <= asked);
                prop_assert!(u128::from(offset) + u128::from(bytes) <= u128::from(log));
            }
        }
    }
}
