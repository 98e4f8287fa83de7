//! Progress of a data transfer: of one R2T at a target, of one command at a host.

use super::{DataHeader, Fatal};
use core::mem::offset_of;

/// One transfer, accepted in order and to the exact byte.
///
/// A target has one per R2T that it sent. A host has one per reading command, without a tag
/// ([`DataTransfer::of_command`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    cid: u16,
    /// `None` at a host: the field is reserved in `C2HData`.
    tag: Option<u16>,
    start: u32,
    next: u32,
    end: u32,
    /// `LAST_PDU` may come before `end`, and then moves it.
    may_end_early: bool,
}

/// Location of an accepted data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedData {
    /// Offset in the data of the command, bytes.
    pub offset: u32,
    /// Length, bytes.
    pub data_bytes: u32,
    /// Whether the transfer is now complete.
    pub last: bool,
}

impl DataTransfer {
    /// The transfer requested by an R2T of `data_bytes` bytes from `offset`; `None` if it is empty
    /// or its end exceeds 32 bits.
    pub const fn of_r2t(cid: u16, tag: u16, offset: u32, data_bytes: u32) -> Option<Self> {
        match offset.checked_add(data_bytes) {
            Some(end) if data_bytes > 0 => Some(Self {
                cid,
                tag: Some(tag),
                start: offset,
                next: offset,
                end,
                may_end_early: false,
            }),
            _ => None,
        }
    }

    /// The transfer of all `data_bytes` of a command to the host. With 0 bytes, no PDU is accepted.
    pub const fn of_command(cid: u16, data_bytes: u32) -> Self {
        Self { cid, tag: None, start: 0, next: 0, end: data_bytes, may_end_early: false }
    }

    /// The transfer of at most `data_bytes` of a command to the host, the command's allocation
    /// length: it ends with the piece that has `LAST_PDU`.
    pub const fn of_allocation(cid: u16, data_bytes: u32) -> Self {
        Self { may_end_early: true, ..Self::of_command(cid, data_bytes) }
    }

    /// Remaining bytes.
    #[inline]
    pub const fn remaining_bytes(&self) -> u32 {
        self.end - self.next
    }

    /// Received bytes.
    #[inline]
    pub const fn received_bytes(&self) -> u32 {
        self.next - self.start
    }

    /// Accepts the next piece, whose header passed [`DataHeader::check`]. An error leaves the state
    /// unchanged.
    ///
    /// # Errors
    /// Invalid header field: another command or transfer tag. Out of range: outside the transfer.
    /// Sequence error: not at the end of the last piece, or `LAST_PDU` before the end (of a
    /// transfer with an exact length) or missing at the end. For SUCCESS without `LAST_PDU` toward
    /// a host, invalid header field.
    #[inline]
    pub const fn accept(&mut self, header: &DataHeader) -> Result<AcceptedData, Fatal> {
        if header.cid.get() != self.cid {
            return Err(Fatal::field(offset_of!(DataHeader, cid)));
        }
        if let Some(tag) = self.tag
            && header.transfer_tag.get() != tag
        {
            return Err(Fatal::field(offset_of!(DataHeader, transfer_tag)));
        }
        let flags = header.data_flags();
        if self.tag.is_none() && flags.success && !flags.last {
            return Err(Fatal::field(offset_of!(super::CommonHeader, flags)));
        }
        let (offset, data_bytes) = (header.offset.get(), header.data_bytes.get());
        let end = match offset.checked_add(data_bytes) {
            Some(end) if offset >= self.start && end <= self.end => end,
            _ => return Err(Fatal::OUT_OF_RANGE),
        };
        // An empty piece, which `DataHeader::check` refuses, must not cause an endless loop.
        let last = end == self.end || (flags.last && self.may_end_early);
        if offset != self.next || data_bytes == 0 || flags.last != last {
            return Err(Fatal::SEQUENCE);
        }
        self.next = end;
        if last {
            self.end = end;
        }
        Ok(AcceptedData { offset, data_bytes, last: flags.last })
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags;
    use super::*;
    use crate::wire::{U16, U32};
    use proptest::prelude::*;

    fn piece(cid: u16, tag: u16, offset: u32, data_bytes: u32, flags: u8) -> DataHeader {
        let mut header = DataHeader {
            cid: U16::new(cid),
            transfer_tag: U16::new(tag),
            offset: U32::new(offset),
            data_bytes: U32::new(data_bytes),
            ..Default::default()
        };
        header.common.flags = flags;
        header
    }

    #[test]
    fn every_transfer_refusal() {
        let before = DataTransfer::of_r2t(7, 3, 4096, 8192).unwrap();
        for (header, error) in [
            (piece(8, 3, 4096, 4096, 0), Fatal::field(8)),
            (piece(7, 0, 4096, 4096, 0), Fatal::field(10)),
            (piece(7, 3, 0, 4096, 0), Fatal::OUT_OF_RANGE),
            (piece(7, 3, 4096, 8196, flags::LAST), Fatal::OUT_OF_RANGE),
            (piece(7, 3, 12_288, 4, flags::LAST), Fatal::OUT_OF_RANGE),
            (piece(7, 3, u32::MAX, 4096, 0), Fatal::OUT_OF_RANGE),
            (piece(7, 3, 8192, 4096, flags::LAST), Fatal::SEQUENCE),
            (piece(7, 3, 4096, 4096, flags::LAST), Fatal::SEQUENCE),
            (piece(7, 3, 4096, 8192, 0), Fatal::SEQUENCE),
            (piece(7, 3, 4096, 0, 0), Fatal::SEQUENCE),
        ] {
            let mut transfer = before;
            assert_eq!(transfer.accept(&header), Err(error), "{header:?}");
            assert_eq!(transfer, before);
        }
    }

    #[test]
    fn pieces_in_order_at_any_alignment_complete() {
        let mut transfer = DataTransfer::of_r2t(7, 0, 1, 10).unwrap();
        for (offset, data_bytes, flags) in [(1, 3, 0), (4, 1, 0), (5, 6, flags::LAST)] {
            let taken = transfer.accept(&piece(7, 0, offset, data_bytes, flags)).unwrap();
            assert_eq!(taken, AcceptedData { offset, data_bytes, last: flags != 0 });
        }
        assert_eq!(transfer.remaining_bytes(), 0);
        // No piece may follow the last one.
        assert!(transfer.accept(&piece(7, 0, 11, 1, flags::LAST)).is_err());
        assert!(transfer.accept(&piece(7, 0, 1, 3, 0)).is_err());
    }

    #[test]
    fn host_accepts_data_of_own_command_only() {
        let mut write = DataTransfer::of_command(7, 0);
        assert_eq!(write.accept(&piece(7, 0, 0, 4, flags::LAST)), Err(Fatal::OUT_OF_RANGE));
        let mut read = DataTransfer::of_command(7, 8);
        let early = piece(7, 99, 0, 4, flags::SUCCESS);
        assert_eq!(read.accept(&early), Err(Fatal::field(1)));
        assert!(read.accept(&piece(7, 99, 0, 8, flags::LAST | flags::SUCCESS)).unwrap().last);
    }

    #[test]
    fn last_piece_may_end_an_allocation_early() {
        let mut receive = DataTransfer::of_allocation(7, 64);
        assert!(!receive.accept(&piece(7, 0, 0, 8, 0)).unwrap().last);
        assert_eq!((receive.received_bytes(), receive.remaining_bytes()), (8, 56));
        let ending = piece(7, 0, 8, 4, flags::LAST | flags::SUCCESS);
        assert!(receive.accept(&ending).unwrap().last);
        assert_eq!((receive.received_bytes(), receive.remaining_bytes()), (12, 0));
        for flags in [0, flags::LAST] {
            assert_eq!(receive.accept(&piece(7, 0, 12, 4, flags)), Err(Fatal::OUT_OF_RANGE));
        }
        let mut unmarked = DataTransfer::of_allocation(7, 64);
        assert_eq!(unmarked.accept(&piece(7, 0, 0, 64, 0)), Err(Fatal::SEQUENCE));
    }

    #[test]
    fn transfer_is_nonempty_and_fits_32_bits() {
        assert!(DataTransfer::of_r2t(0, 0, 0, 0).is_none());
        assert!(DataTransfer::of_r2t(0, 0, u32::MAX, 1).is_none());
        assert!(DataTransfer::of_r2t(0, 0, u32::MAX - 1, 1).is_some());
    }

    proptest! {
        #[test]
        fn accepted_pieces_tile_transfer(
            start in 0u32..64,
            length in 1u32..64,
            headers in prop::collection::vec((0u32..128, 0u32..64, any::<bool>()), 0..64),
        ) {
            let mut transfer = DataTransfer::of_r2t(1, 1, start, length).unwrap();
            let mut next = start;
            for (offset, data_bytes, last) in headers {
                let flags = if last { flags::LAST } else { 0 };
                if let Ok(taken) = transfer.accept(&piece(1, 1, offset, data_bytes, flags)) {
                    prop_assert_eq!(taken.offset, next);
                    prop_assert!(taken.data_bytes > 0);
                    next += taken.data_bytes;
                    prop_assert!(next <= start + length);
                    prop_assert_eq!(taken.last, next == start + length);
                }
                prop_assert_eq!(transfer.remaining_bytes(), start + length - next);
            }
        }
    }
}
