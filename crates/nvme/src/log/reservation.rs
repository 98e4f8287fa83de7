//! Reservation Notification log page: one change that this host did not make (Base 2.0
//! 5.16.1.15).

use crate::codes::codes;
use crate::wire::{U32, U64, wire};

codes! {
    /// Type of a reservation notification.
    pub struct NotificationType(u8) {
        EMPTY = 0, "Empty Log Page";
        REGISTRATION_PREEMPTED = 1, "Registration Preempted";
        RESERVATION_RELEASED = 2, "Reservation Released";
        RESERVATION_PREEMPTED = 3, "Reservation Preempted";
    }
}

impl NotificationType {
    /// Bit of feature 82h, Reservation Notification Mask, that masks it.
    pub const fn mask(self) -> u32 {
        1 << self.0
    }
}

/// Bits of feature 82h: every type of notification.
pub const MASK_ALL: u32 = 0b1110;

wire! {
    /// One notification. Each read without "retain asynchronous event" returns the next.
    pub struct ReservationNotification [64] {
        /// LPC: number of this notification, from 1; it wraps to 1. 0 in an empty page.
        0 => pub count: U64;
        8 => pub kind: u8, "RNLPT: see [`NotificationType`].";
        9 => pub further: u8, "NALP: further notifications, at most 255.";
        10 => pub _reserved10: [u8; 2];
        12 => pub nsid: U32, "Namespace.";
        16 => pub _reserved16: [u8; 48];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_bit_per_notification_type() {
        let all = [
            NotificationType::REGISTRATION_PREEMPTED,
            NotificationType::RESERVATION_RELEASED,
            NotificationType::RESERVATION_PREEMPTED,
        ];
        assert_eq!(all.map(NotificationType::mask), [2, 4, 8]);
        assert_eq!(all.iter().fold(0, |mask, kind| mask | kind.mask()), MASK_ALL);
    }
}
