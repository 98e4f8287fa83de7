//! Asynchronous events: results of Asynchronous Event Requests (Base 5.1.2).

use crate::log::LogId;

/// An event: type, information and the log page with details. Reading that log page without "retain
/// asynchronous event" re-enables events of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type, bits 2:0: 0 error status, 2 notice, 6 I/O command set.
    pub event_type: u8,
    /// Information, specific to the type.
    pub information: u8,
    /// Log page to read.
    pub log: LogId,
}

/// Type of the events that report a change.
const NOTICE: u8 = 2;
/// Type of the events of an I/O command set.
const IO_COMMAND_SET: u8 = 6;

impl AsyncEvent {
    /// Notice: Identify Namespace data, or the list of namespaces, changed.
    pub const NAMESPACE_CHANGED: Self = Self::of(NOTICE, 0x00, LogId::CHANGED_NAMESPACES);
    /// Notice: asymmetric namespace access changed.
    pub const ANA_CHANGED: Self = Self::of(NOTICE, 0x03, LogId::ANA);
    /// Notice: the discovery log page changed.
    pub const DISCOVERY_CHANGED: Self = Self::of(NOTICE, 0xf0, LogId::DISCOVERY);

    /// I/O command set: a Reservation Notification log page is available. Feature 82h masks it.
    pub const RESERVATION: Self = Self::of(IO_COMMAND_SET, 0x00, LogId::RESERVATION);

    const fn of(event_type: u8, information: u8, log: LogId) -> Self {
        Self { event_type, information, log }
    }

    /// Dword 0 of the completion.
    pub const fn to_result(self) -> u32 {
        (self.event_type & 7) as u32 | (self.information as u32) << 8 | (self.log.0 as u32) << 16
    }

    /// Parses dword 0 of the completion; any value is valid.
    pub const fn from_result(dw0: u32) -> Self {
        Self::of(dw0 as u8 & 7, (dw0 >> 8) as u8, LogId((dw0 >> 16) as u8))
    }

    /// The bit of [`EventMask`] that enables it; `None` if it cannot be disabled.
    pub const fn mask(self) -> Option<EventMask> {
        match self {
            Self::NAMESPACE_CHANGED => Some(EventMask::NAMESPACE_ATTRIBUTE),
            Self::ANA_CHANGED => Some(EventMask::ANA),
            Self::DISCOVERY_CHANGED => Some(EventMask::DISCOVERY),
            _ => None,
        }
    }
}

/// Asynchronous Event Configuration, the events enabled by a host (feature 0Bh, Base 5.1.25), and
/// OAES of Identify Controller, the events supported by a controller: the same bits from 8 up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventMask(pub u32);

impl EventMask {
    /// SMART / health critical warnings, as in the log page's byte 0.
    pub const CRITICAL_WARNINGS: Self = Self(0xff);
    /// Namespace attribute notices.
    pub const NAMESPACE_ATTRIBUTE: Self = Self(1 << 8);
    /// Asymmetric namespace access change notices.
    pub const ANA: Self = Self(1 << 11);
    /// Discovery log page change notices.
    pub const DISCOVERY: Self = Self(1 << 31);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union of the bits.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn event_results_match_linux() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_result(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGED.to_result(), 0x000c_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_result(), 0x0070_f002);
        assert_eq!(AsyncEvent::RESERVATION.to_result(), 0x0080_0006);
    }

    #[test]
    fn notice_has_its_enable_bit() {
        for (event, bit) in [
            (AsyncEvent::NAMESPACE_CHANGED, 8),
            (AsyncEvent::ANA_CHANGED, 11),
            (AsyncEvent::DISCOVERY_CHANGED, 31),
        ] {
            let mask = event.mask().unwrap();
            assert_eq!(mask, EventMask(1 << bit));
            assert!(EventMask(u32::MAX).contains(mask));
            assert!(!EventMask(!(1 << bit)).contains(mask));
        }
        // Error status: a persistent internal error.
        assert_eq!(AsyncEvent::from_result(0x0001_0300).mask(), None);
        assert!(EventMask::ANA.union(EventMask::DISCOVERY).contains(EventMask::ANA));
    }

    proptest! {
        #[test]
        fn any_result_round_trips_but_for_reserved_bits(dw0: u32) {
            prop_assert_eq!(AsyncEvent::from_result(dw0).to_result(), dw0 & 0x00ff_ff07);
        }
    }
}
