//! Wire format of PDU headers (NVMe/TCP 3.6.2).

use super::{DataFlags, Digests, Fatal, FatalStatus, Frame, flags};
use crate::command::{Cqe, Sqe};
use crate::limits::{MAXH2CDATA_MIN_BYTES, PDA_MAX};
use crate::wire::{U16, U32, wire};
use core::mem::offset_of;

wire! {
    /// Common header of every PDU.
    pub struct CommonHeader [8] {
        0 => pub kind: u8, "PDU-Type; see [`super::PduType`].";
        1 => pub flags: u8, "FLAGS; see [`super::flags`].";
        2 => pub header_bytes: u8, "HLEN: length of the header without its digest, bytes.";
        3 => pub data_offset: u8, "PDO: where the data starts, bytes from the start of the PDU.";
        4 => pub pdu_bytes: U32, "PLEN: total length, bytes.";
    }

    /// `ICReq`, the first PDU of a connection, from the host.
    pub struct InitializeRequest [128] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub format_version: U16, "PFV: version of the format, 0.";
        /// HPDA: data in PDUs to the host starts at a multiple of (this + 1) x 4 bytes; at most 31.
        10 => pub host_alignment: u8;
        11 => pub digests: u8, "DGST: requested digests.";
        12 => pub max_r2t_0based: U32, "MAXR2T: outstanding R2Ts per command, 0's based.";
        16 => pub _reserved16: [u8; 112];
    }

    /// `ICResp`, the response to `ICReq`.
    pub struct InitializeResponse [128] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub format_version: U16, "PFV: version of the format, 0.";
        /// CPDA: data in PDUs to the controller starts at a multiple of (this + 1) x 4 bytes; at
        /// most 31.
        10 => pub controller_alignment: u8;
        11 => pub digests: u8, "DGST: enabled digests, a subset of the requested ones.";
        /// MAXH2CDATA: most data per `H2CData`, bytes; at least 4096, a multiple of 4.
        12 => pub max_h2c_data_bytes: U32;
        16 => pub _reserved16: [u8; 112];
    }

    /// Header of `H2CTermReq` and `C2HTermReq`; up to 128 bytes of the offending header follow.
    pub struct TermReqHeader [24] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub status: U16, "FES: fatal error status.";
        10 => pub information: U32, "FEI: fatal error information, at an odd half of a dword.";
        14 => pub _reserved14: [u8; 10];
    }

    /// Header of `CapsuleCmd`; in-capsule data may follow.
    pub struct CapsuleCmd [72] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub command: Sqe, "The command.";
    }

    /// `CapsuleResp`.
    pub struct CapsuleResp [24] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub completion: Cqe, "The completion.";
    }

    /// Header of `H2CData` and of `C2HData`.
    pub struct DataHeader [24] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub cid: U16, "CCCID: command of the data.";
        /// TTAG: transfer tag of the R2T that `H2CData` answers; reserved in `C2HData`.
        10 => pub transfer_tag: U16;
        12 => pub offset: U32, "DATAO: offset in the data of the command, bytes.";
        16 => pub data_bytes: U32, "DATAL: length of the data, bytes.";
        20 => pub _reserved20: [u8; 4];
    }

    /// `R2T`: the controller is ready for data of a command.
    pub struct R2tHeader [24] {
        0 => pub common: CommonHeader, "Common header.";
        8 => pub cid: U16, "CCCID: command whose data is requested.";
        10 => pub transfer_tag: U16, "TTAG: tag for `H2CData`.";
        12 => pub offset: U32, "R2TO: offset in the data of the command, bytes.";
        16 => pub data_bytes: U32, "R2TL: length, bytes.";
        20 => pub _reserved20: [u8; 4];
    }
}

impl InitializeRequest {
    /// Performs the checks of a target.
    ///
    /// # Errors
    /// Invalid header field: format version other than 0, alignment over 31.
    pub const fn check(&self) -> Result<(), Fatal> {
        if self.format_version.get() != 0 {
            return Err(Fatal::field(offset_of!(Self, format_version)));
        }
        if self.host_alignment > PDA_MAX {
            return Err(Fatal::field(offset_of!(Self, host_alignment)));
        }
        Ok(())
    }

    /// Digests that the host requests.
    pub const fn digests(&self) -> Digests {
        Digests::from_dgst(self.digests)
    }

    /// Outstanding R2Ts per command, 1 to 2^32.
    pub const fn max_r2t(&self) -> u64 {
        self.max_r2t_0based.get() as u64 + 1
    }
}

impl InitializeResponse {
    /// Performs the checks of a host that `wanted` these digests.
    ///
    /// # Errors
    /// Invalid header field: format version other than 0, alignment over 31, a digest that was not
    /// requested, MAXH2CDATA below 4096 or not a multiple of 4.
    pub const fn check(&self, wanted: Digests) -> Result<(), Fatal> {
        if self.format_version.get() != 0 {
            return Err(Fatal::field(offset_of!(Self, format_version)));
        }
        if self.controller_alignment > PDA_MAX {
            return Err(Fatal::field(offset_of!(Self, controller_alignment)));
        }
        let enabled = self.digests();
        if (enabled.header && !wanted.header) || (enabled.data && !wanted.data) {
            return Err(Fatal::field(offset_of!(Self, digests)));
        }
        let max = self.max_h2c_data_bytes.get();
        if max < MAXH2CDATA_MIN_BYTES || !max.is_multiple_of(4) {
            return Err(Fatal::field(offset_of!(Self, max_h2c_data_bytes)));
        }
        Ok(())
    }

    /// Digests of the connection.
    pub const fn digests(&self) -> Digests {
        Digests::from_dgst(self.digests)
    }
}

impl TermReqHeader {
    /// The reported error; any status, defined or not, is valid.
    pub const fn fatal(&self) -> Fatal {
        Fatal { status: FatalStatus(self.status.get()), information: self.information.get() }
    }
}

impl DataHeader {
    /// Checks it against the [`Frame`] of its PDU, for both directions.
    ///
    /// # Errors
    /// Invalid header field: a length of 0, or a length that contradicts PLEN. Out of range: an end
    /// beyond 32 bits.
    #[inline]
    pub const fn check(&self, frame: &Frame) -> Result<(), Fatal> {
        let data_bytes = self.data_bytes.get();
        if data_bytes == 0 || data_bytes != frame.data_bytes {
            return Err(Fatal::field(offset_of!(Self, data_bytes)));
        }
        if self.offset.get().checked_add(data_bytes).is_none() {
            return Err(Fatal::OUT_OF_RANGE);
        }
        Ok(())
    }

    /// Its flags `LAST_PDU` and SUCCESS.
    #[inline]
    pub const fn data_flags(&self) -> DataFlags {
        DataFlags {
            last: self.common.flags & flags::LAST != 0,
            success: self.common.flags & flags::SUCCESS != 0,
        }
    }
}

impl R2tHeader {
    /// Checks it against a command that sends `command_bytes`, which may be 0.
    ///
    /// # Errors
    /// Invalid header field: a length of 0. Out of range: outside the data of the command.
    pub const fn check(&self, command_bytes: u32) -> Result<(), Fatal> {
        if self.data_bytes.get() == 0 {
            return Err(Fatal::field(offset_of!(Self, data_bytes)));
        }
        match self.offset.get().checked_add(self.data_bytes.get()) {
            Some(end) if end <= command_bytes => Ok(()),
            _ => Err(Fatal::OUT_OF_RANGE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    #[test]
    fn initialize_request_refusals() {
        let good = InitializeRequest { host_alignment: 31, ..Default::default() };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.max_r2t(), 1);
        let version = InitializeRequest { format_version: U16::new(1), host_alignment: 32, ..good };
        assert_eq!(version.check(), Err(Fatal::field(8)));
        let alignment = InitializeRequest { host_alignment: 32, ..good };
        assert_eq!(alignment.check(), Err(Fatal::field(10)));
        let most = InitializeRequest { max_r2t_0based: U32::new(u32::MAX), ..good };
        assert_eq!(most.max_r2t(), 1 << 32);
    }

    #[test]
    fn initialize_response_refusals() {
        let both = Digests { header: true, data: true };
        let good = InitializeResponse {
            controller_alignment: 31,
            digests: 3,
            max_h2c_data_bytes: U32::new(4096),
            ..Default::default()
        };
        assert_eq!(good.check(both), Ok(()));
        let refuse = |response: InitializeResponse, wanted, field| {
            assert_eq!(response.check(wanted), Err(Fatal::field(field)), "{response:?}");
        };
        refuse(InitializeResponse { format_version: U16::new(1), ..good }, both, 8);
        refuse(InitializeResponse { controller_alignment: 32, ..good }, both, 10);
        refuse(good, Digests { header: true, data: false }, 11);
        refuse(good, Digests { header: false, data: true }, 11);
        for max in [0, 4092, 4098, u32::MAX] {
            refuse(InitializeResponse { max_h2c_data_bytes: U32::new(max), ..good }, both, 12);
        }
    }

    #[test]
    fn data_length_follows_pdu_length() {
        let data = |offset, data_bytes| DataHeader {
            offset: U32::new(offset),
            data_bytes: U32::new(data_bytes),
            ..Default::default()
        };
        let frame = |data_bytes| Frame::for_test(super::super::PduKind::Data, data_bytes);
        assert_eq!(data(0, 8).check(&frame(8)), Ok(()));
        assert_eq!(data(u32::MAX - 8, 8).check(&frame(8)), Ok(()));
        assert_eq!(data(0, 0).check(&frame(0)), Err(Fatal::field(16)));
        assert_eq!(data(0, 9).check(&frame(8)), Err(Fatal::field(16)));
        assert_eq!(data(0, 7).check(&frame(8)), Err(Fatal::field(16)));
        assert_eq!(data(u32::MAX - 7, 8).check(&frame(8)), Err(Fatal::OUT_OF_RANGE));
    }

    #[test]
    fn r2t_refusals() {
        let r2t = |offset, data_bytes| R2tHeader {
            offset: U32::new(offset),
            data_bytes: U32::new(data_bytes),
            ..Default::default()
        };
        assert_eq!(r2t(4096, 4096).check(8192), Ok(()));
        assert_eq!(r2t(4096, 4096).check(8191), Err(Fatal::OUT_OF_RANGE));
        assert_eq!(r2t(0, 1).check(0), Err(Fatal::OUT_OF_RANGE));
        assert_eq!(r2t(4096, 0).check(8192), Err(Fatal::field(16)));
        assert_eq!(r2t(u32::MAX, 1).check(u32::MAX), Err(Fatal::OUT_OF_RANGE));
        assert_eq!(r2t(1, u32::MAX).check(u32::MAX), Err(Fatal::OUT_OF_RANGE));
    }

    #[test]
    fn any_term_req_status_is_printed() {
        for status in [0, 1, 6, 7, 0xffff] {
            let mut bytes = [0; 24];
            bytes[8..10].copy_from_slice(&u16::to_le_bytes(status));
            bytes[10..14].copy_from_slice(&[4, 3, 2, 1]);
            let fatal = TermReqHeader::view(&bytes).unwrap().fatal();
            assert_eq!(fatal.status, FatalStatus(status));
            assert_eq!(fatal.information, 0x0102_0304);
            assert!(!fatal.to_string().is_empty());
        }
    }
}
