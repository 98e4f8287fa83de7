//! Replica Reservations: one page of the record of a volume's reservations, which the replica
//! keeps.
//!
//! Invariants of a page:
//! - it begins within the record, or is the first page of an empty one;
//! - bytes after the end of the record are 0.

use super::{RESERVATION_PAGE_BYTES, RESERVATION_RECORD_MAX_BYTES};
use crate::status::Status;

/// Data and command dwords 10 and 11 of Replica Reservations.
#[derive(Clone, PartialEq, Eq)]
pub struct ReservationPage {
    /// Number of the page, from 0.
    number: u32,
    /// Length of the whole record, in bytes: at most [`RESERVATION_RECORD_MAX_BYTES`].
    record_bytes: u32,
    data: Box<[u8; RESERVATION_PAGE_BYTES]>,
}

/// Without the data: messages name requests.
impl std::fmt::Debug for ReservationPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ReservationPage { number, record_bytes, .. } = self;
        write!(f, "ReservationPage {{ number: {number}, record_bytes: {record_bytes} }}")
    }
}

impl ReservationPage {
    /// A page with this part of a record; `None` if it has another length, or is behind the end.
    pub fn new(number: u32, record_bytes: u32, part: &[u8]) -> Option<ReservationPage> {
        let mut data = [0; RESERVATION_PAGE_BYTES];
        data.get_mut(..part.len())?.copy_from_slice(part);
        let page = ReservationPage::parse(number, record_bytes, &data).ok()?;
        (page.len() == part.len()).then_some(page)
    }

    pub(super) fn parse(number: u32, record_bytes: u32, data: &[u8]) -> Result<Self, Status> {
        let length = Status::DATA_SGL_LENGTH_INVALID.dnr();
        let data: [u8; RESERVATION_PAGE_BYTES] = data.try_into().map_err(|_| length)?;
        let page = ReservationPage { number, record_bytes, data: Box::new(data) };
        let begins = number == 0 || page.begin() < u64::from(record_bytes);
        let is_bounded = record_bytes as usize <= RESERVATION_RECORD_MAX_BYTES;
        let is_sound =
            begins && is_bounded && page.data[page.len()..].iter().all(|byte| *byte == 0);
        if is_sound { Ok(page) } else { Err(Status::INVALID_FIELD.dnr()) }
    }

    /// Number of the page, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Length of the whole record, in bytes.
    pub fn record_bytes(&self) -> u32 {
        self.record_bytes
    }

    /// Offset of the page in the record, in bytes.
    fn begin(&self) -> u64 {
        u64::from(self.number) * RESERVATION_PAGE_BYTES as u64
    }

    /// Bytes of the record in this page.
    fn len(&self) -> usize {
        let rest = u64::from(self.record_bytes).saturating_sub(self.begin());
        rest.min(RESERVATION_PAGE_BYTES as u64) as usize
    }

    /// The part of the record in this page.
    pub fn part(&self) -> &[u8] {
        &self.data[..self.len()]
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data[..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsound_pages_are_refused() {
        let zeroes = [0; RESERVATION_PAGE_BYTES];
        let ones = [1; RESERVATION_PAGE_BYTES];
        let most = RESERVATION_RECORD_MAX_BYTES as u32;
        for (number, bytes, data) in [(0, 0, zeroes), (0, most, ones), (7, most, ones)] {
            let page = ReservationPage::parse(number, bytes, &data).unwrap();
            assert_eq!(ReservationPage::new(number, bytes, page.part()), Some(page));
        }
        let unsound = [(0, most + 1, zeroes), (1, 4096, zeroes), (u32::MAX, most, zeroes)];
        for (number, bytes, data) in unsound.into_iter().chain([(0, 4095, ones), (1, 4097, ones)]) {
            let refused = ReservationPage::parse(number, bytes, &data);
            assert_eq!(refused, Err(Status::INVALID_FIELD.dnr()), "{number} {bytes}");
        }
        let short = ReservationPage::parse(0, 1, &[1]);
        assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
        assert_eq!(ReservationPage::new(0, 2, &[1]), None);
    }
}
