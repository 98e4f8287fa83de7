//! Reservation notifications of one controller, for its log page (Base 2.0 5.16.1.15).
//!
//! The number of notifications is bounded. At the bound the oldest is dropped, and the gap in the
//! numbers shows it.

use std::collections::VecDeque;

use flagstone_nvme::log::ReservationNotification;
use flagstone_nvme::log::reservation::NotificationType;
use flagstone_nvme::wire::{U32, U64};

use crate::limits::RESERVATION_NOTIFICATIONS;

/// Notifications that the host has not read.
#[derive(Debug, Default)]
pub(crate) struct NotificationLog {
    unread: VecDeque<Notification>,
    /// Number of the latest notification; 0 if there was none.
    latest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Notification {
    number: u64,
    nsid: u32,
    kind: NotificationType,
}

impl NotificationLog {
    /// Adds a notification.
    pub(crate) fn push(&mut self, nsid: u32, kind: NotificationType) {
        self.latest = self.latest.checked_add(1).unwrap_or(1);
        if self.unread.len() >= RESERVATION_NOTIFICATIONS {
            self.unread.pop_front();
        }
        self.unread.push_back(Notification { number: self.latest, nsid, kind });
    }

    /// Page of the oldest notification; empty if there is none.
    pub(crate) fn first(&self) -> ReservationNotification {
        let Some(first) = self.unread.front() else { return ReservationNotification::default() };
        ReservationNotification {
            count: U64::new(first.number),
            kind: first.kind.0,
            further: u8::try_from(self.unread.len() - 1).unwrap_or(u8::MAX),
            nsid: U32::new(first.nsid),
            ..ReservationNotification::default()
        }
    }

    /// Removes the oldest notification.
    pub(crate) fn pop(&mut self) {
        self.unread.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_notification_is_dropped_at_the_bound() {
        let mut log = NotificationLog::default();
        for nsid in 0..=RESERVATION_NOTIFICATIONS as u32 {
            log.push(nsid, NotificationType::RESERVATION_RELEASED);
        }
        assert_eq!(log.first().count.get(), 2);
        assert_eq!(usize::from(log.first().further), RESERVATION_NOTIFICATIONS - 1);
    }
}
