//! Features, for Get Features and Set Features (Base 5.1.25).

use crate::codes::{bits, codes, constants};
use crate::status::Status;
use crate::wire::{U16, wire};

codes! {
    /// Feature identifier.
    pub struct FeatureId(u8) {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENTS = 0x0b, "Asynchronous Event Configuration";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
        SANITIZE = 0x17, "Sanitize Config";
        COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
    }
}

constants! {
    /// Result of Get Features with select 3, supported capabilities: dword 0.
    pub mod capability(u32) {
        SAVEABLE = 1 << 0, "The value can be saved.";
        NAMESPACE_SPECIFIC = 1 << 1, "Each namespace has its own value.";
        CHANGEABLE = 1 << 2, "The value can be changed.";
    }
}

/// Number of Queues, feature 07h: I/O queues of each kind, 1 to 65,535.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Submission queues.
    pub submission: u16,
    /// Completion queues.
    pub completion: u16,
}

impl NumberOfQueues {
    /// Parses the request of a host in dword 11, both numbers 0's based.
    ///
    /// # Errors
    /// Invalid Field, with do not retry, for 65,535 (which means 65,536 queues).
    pub const fn from_request(value: u32) -> Result<Self, Status> {
        match ((value as u16).checked_add(1), ((value >> 16) as u16).checked_add(1)) {
            (Some(submission), Some(completion)) => Ok(Self { submission, completion }),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Parses the grant of a controller in dword 0 of the completion. An invalid number becomes the
    /// largest valid one.
    pub const fn from_result(dw0: u32) -> Self {
        Self {
            submission: (dw0 as u16).saturating_add(1),
            completion: ((dw0 >> 16) as u16).saturating_add(1),
        }
    }

    /// Dword 11 of a request and dword 0 of its completion. 0 queues cannot be encoded, and become
    /// 1.
    pub const fn to_dword(self) -> u32 {
        self.submission.saturating_sub(1) as u32 | (self.completion.saturating_sub(1) as u32) << 16
    }
}

/// Power Management, feature 02h: PS, power state.
pub const POWER_STATE: u32 = 0x1f;
/// Error Recovery, feature 05h: DULBE, reads of deallocated blocks fail.
pub const DEALLOCATED_ERROR: u32 = 1 << 16;
/// Volatile Write Cache, feature 06h: WCE, the cache is in use.
pub const WRITE_CACHE_ENABLED: u32 = 1 << 0;
/// Host Identifier, feature 81h, dword 11: EXHID, 128 bits, as always over fabrics; else 64.
pub const EXTENDED_HOST_ID: u32 = 1 << 0;

bits! {
    /// Temperature Threshold, feature 04h.
    pub struct TemperatureThreshold(u32) {
        kelvins, with_kelvins: 0, 16, "TMPTH: kelvins.";
        sensor, with_sensor: 16, 4, "TMPSEL: 0 composite, 1 to 8 a sensor, 15 all (of a set).";
        threshold_type, with_threshold_type: 20, 2, "THSEL: 0 over, 1 under.";
    }
}

wire! {
    /// Host Behavior Support, the data of feature 16h (Base 5.1.25).
    pub struct HostBehavior [512] {
        0 => pub retry_delay: u8, "ACRE: 1 when the host understands command retry delays.";
        1 => pub extended_telemetry: u8, "ETDAS: 1 when the host understands extended telemetry.";
        /// LBAFEE: 1 when the host understands more than 16 block formats.
        2 => pub extended_formats: u8;
        /// HDISNS: 1 when the host understands dispersed namespaces.
        3 => pub dispersed_namespaces: u8;
        4 => pub copy_formats: U16, "CDFE: copy descriptor formats that the host enables.";
        6 => pub _reserved6: [u8; 506];
    }
}

impl HostBehavior {
    /// Checks the fields that are 0 or 1.
    ///
    /// # Errors
    /// Invalid Field if one of them has another value.
    pub const fn check(&self) -> Result<(), Status> {
        let flags = self.retry_delay
            | self.extended_telemetry
            | self.extended_formats
            | self.dispersed_namespaces;
        if flags > 1 { Err(Status::INVALID_FIELD.dnr()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_queues_are_0based_and_65536_is_refused() {
        let one = NumberOfQueues { submission: 1, completion: 1 };
        assert_eq!(NumberOfQueues::from_request(0), Ok(one));
        assert_eq!(NumberOfQueues { submission: 0, completion: 0 }.to_dword(), 0);
        let refused = Err(Status::INVALID_FIELD.dnr());
        assert_eq!(NumberOfQueues::from_request(0x0000_ffff), refused);
        assert_eq!(NumberOfQueues::from_request(0xffff_0000), refused);
        let asked = NumberOfQueues::from_request(0x001f_000f).unwrap();
        assert_eq!(asked, NumberOfQueues { submission: 16, completion: 32 });
        assert_eq!(NumberOfQueues::from_result(u32::MAX).submission, u16::MAX);
    }

    #[test]
    fn behavior_flags_are_0_or_1() {
        assert_eq!(HostBehavior::default().check(), Ok(()));
        let one = HostBehavior { retry_delay: 1, extended_formats: 1, ..Default::default() };
        assert_eq!(one.check(), Ok(()));
        let two = HostBehavior { extended_telemetry: 2, ..one };
        assert_eq!(two.check(), Err(Status::INVALID_FIELD.dnr()));
    }

    proptest! {
        #[test]
        fn number_of_queues_round_trips(submission in 1..=u16::MAX, completion in 1..=u16::MAX) {
            let queues = NumberOfQueues { submission, completion };
            prop_assert_eq!(NumberOfQueues::from_request(queues.to_dword()), Ok(queues));
            prop_assert_eq!(NumberOfQueues::from_result(queues.to_dword()), queues);
        }
    }
}
