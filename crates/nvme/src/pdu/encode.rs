//! Encoder of PDUs: headers with their digests and padding.

use super::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, Digests, Fatal, InitializeRequest,
    InitializeResponse, PduType, R2tHeader, Receiver, TermReqHeader, flags,
};
use crate::command::{Cqe, Sqe};
use crate::digest::wire_digest;
use crate::limits::{
    CAPSULE_CMD_BYTES, CAPSULE_RESP_BYTES, DATA_HEADER_BYTES, DIGEST_BYTES, INITIALIZE_BYTES,
    TERM_REQ_DATA_BYTES,
};
use crate::wire::{U16, U32, Wire};
use core::mem::offset_of;

/// Flags of a data PDU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFlags {
    /// `LAST_PDU`: the last PDU of this transfer.
    pub last: bool,
    /// SUCCESS: no `CapsuleResp` follows; only toward a host and only with `last`.
    pub success: bool,
}

/// Encodes the PDUs of one connection.
///
/// Each method writes the header, its digest and the padding up to the data at the start of `out`,
/// and returns the number of bytes written. The caller then sends the data and the data digest
/// ([`Encoder::data_digest_bytes`]). The result is `None`, with `out` in an unspecified state, if
/// `out` is too short ([`crate::limits::ENCODED_HEADER_MAX_BYTES`] is always enough) or if the PDU
/// would be longer than 2^32 - 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    digests: Digests,
    /// Offset of data in a command capsule and in a data PDU, bytes.
    capsule_data_offset: u8,
    data_offset: u8,
}

impl Encoder {
    /// An encoder for a connection with `digests`, to a peer whose `ICReq` or `ICResp` had HPDA or
    /// CPDA `alignment` (0 to 31).
    pub const fn new(digests: Digests, alignment: u8) -> Self {
        // Only the low 5 bits: an alignment over 31 was refused with its ICReq or ICResp.
        let alignment = ((alignment & 31) as usize + 1) * 4;
        let digest = if digests.header { DIGEST_BYTES } else { 0 };
        let capsule_data_offset = (CAPSULE_CMD_BYTES + digest).next_multiple_of(alignment) as u8;
        let data_offset = (DATA_HEADER_BYTES + digest).next_multiple_of(alignment) as u8;
        Self { digests, capsule_data_offset, data_offset }
    }

    /// The digests of the connection.
    pub const fn digests(&self) -> Digests {
        self.digests
    }

    /// Length of the digest that follows data, bytes: 4 or 0.
    pub const fn data_digest_bytes(&self) -> usize {
        if self.digests.data { DIGEST_BYTES } else { 0 }
    }

    /// `CapsuleCmd` with `command`, followed by `data_bytes` of in-capsule data, which may be 0.
    #[inline]
    #[must_use]
    pub fn capsule_cmd(&self, out: &mut [u8], command: &Sqe, data_bytes: u32) -> Option<usize> {
        let common = if data_bytes == 0 {
            self.common(PduType::CAPSULE_CMD, CAPSULE_CMD_BYTES)
        } else {
            let offset = self.capsule_data_offset;
            self.with_data(PduType::CAPSULE_CMD, CAPSULE_CMD_BYTES, offset, data_bytes, 0)?
        };
        self.write(out, &CapsuleCmd { common, command: *command })
    }

    /// `CapsuleResp` with `completion`.
    #[inline]
    #[must_use]
    pub fn capsule_resp(&self, out: &mut [u8], completion: &Cqe) -> Option<usize> {
        let common = self.common(PduType::CAPSULE_RESP, CAPSULE_RESP_BYTES);
        self.write(out, &CapsuleResp { common, completion: *completion })
    }

    /// `H2CData`: the bytes from `offset` of the data of command `cid`, as requested by the R2T
    /// with `transfer_tag`. `None` without bytes.
    #[inline]
    #[must_use]
    pub fn h2c_data(
        &self,
        out: &mut [u8],
        cid: u16,
        transfer_tag: u16,
        offset: u32,
        data_bytes: u32,
        last: bool,
    ) -> Option<usize> {
        let flags = DataFlags { last, success: false };
        self.data(out, PduType::H2C_DATA, (cid, transfer_tag), (offset, data_bytes), flags)
    }

    /// `C2HData`: the bytes from `offset` of the data of command `cid`. `None` without bytes.
    #[inline]
    #[must_use]
    pub fn c2h_data(
        &self,
        out: &mut [u8],
        cid: u16,
        offset: u32,
        data_bytes: u32,
        flags: DataFlags,
    ) -> Option<usize> {
        self.data(out, PduType::C2H_DATA, (cid, 0), (offset, data_bytes), flags)
    }

    /// `R2T` with `transfer_tag`, for `data_bytes` from `offset` of the data of command `cid`.
    #[must_use]
    pub fn r2t(
        &self,
        out: &mut [u8],
        cid: u16,
        transfer_tag: u16,
        offset: u32,
        data_bytes: u32,
    ) -> Option<usize> {
        let r2t = R2tHeader {
            common: self.common(PduType::R2T, DATA_HEADER_BYTES),
            cid: U16::new(cid),
            transfer_tag: U16::new(transfer_tag),
            offset: U32::new(offset),
            data_bytes: U32::new(data_bytes),
            ..Default::default()
        };
        self.write(out, &r2t)
    }

    #[inline]
    fn data(
        &self,
        out: &mut [u8],
        kind: PduType,
        (cid, transfer_tag): (u16, u16),
        (offset, data_bytes): (u32, u32),
        data_flags: DataFlags,
    ) -> Option<usize> {
        if data_bytes == 0 {
            return None;
        }
        let flags = (u8::from(data_flags.last) * flags::LAST)
            | (u8::from(data_flags.success) * flags::SUCCESS);
        let data_offset = self.data_offset;
        let header = DataHeader {
            common: self.with_data(kind, DATA_HEADER_BYTES, data_offset, data_bytes, flags)?,
            cid: U16::new(cid),
            transfer_tag: U16::new(transfer_tag),
            offset: U32::new(offset),
            data_bytes: U32::new(data_bytes),
            ..Default::default()
        };
        self.write(out, &header)
    }

    /// Common header of a PDU without data.
    #[inline]
    fn common(&self, kind: PduType, header_bytes: usize) -> CommonHeader {
        let digest_bytes = if self.digests.header { DIGEST_BYTES } else { 0 };
        CommonHeader {
            kind: kind.0,
            flags: if self.digests.header { flags::HEADER_DIGEST } else { 0 },
            header_bytes: header_bytes as u8,
            data_offset: 0,
            pdu_bytes: U32::new((header_bytes + digest_bytes) as u32),
        }
    }

    /// Common header of a PDU with data.
    #[inline]
    fn with_data(
        &self,
        kind: PduType,
        header_bytes: usize,
        data_offset: u8,
        data_bytes: u32,
        flags: u8,
    ) -> Option<CommonHeader> {
        // At most 144 + 4.
        let overhead = u32::from(data_offset) + self.data_digest_bytes() as u32;
        Some(CommonHeader {
            kind: kind.0,
            flags: flags | self.digests.to_dgst(),
            header_bytes: header_bytes as u8,
            data_offset,
            pdu_bytes: U32::new(data_bytes.checked_add(overhead)?),
        })
    }

    /// Writes the header, which starts with the common one, its digest, and 0 bytes up to the data
    /// offset.
    #[inline]
    fn write<H: Wire>(&self, out: &mut [u8], header: &H) -> Option<usize> {
        let digest_bytes = if self.digests.header { DIGEST_BYTES } else { 0 };
        let header_end = H::BYTES + digest_bytes;
        let end =
            header_end.max(usize::from(header.bytes()[offset_of!(CommonHeader, data_offset)]));
        let out = out.get_mut(..end)?;
        header.encode(out)?;
        if self.digests.header {
            out[H::BYTES..header_end].copy_from_slice(&wire_digest(header.bytes()));
        }
        out[header_end..].fill(0);
        Some(end)
    }
}

/// Common header of a PDU without digests.
const fn bare(kind: PduType, header_bytes: usize, pdu_bytes: usize) -> CommonHeader {
    let pdu_bytes = U32::new(pdu_bytes as u32);
    CommonHeader {
        kind: kind.0,
        flags: 0,
        header_bytes: header_bytes as u8,
        data_offset: 0,
        pdu_bytes,
    }
}

impl InitializeRequest {
    /// `ICReq` that requests `digests` and data alignment HPDA `alignment` (0 to 31), and permits
    /// `max_r2t` R2Ts per command at a time (0 means 1).
    pub fn new(digests: Digests, alignment: u8, max_r2t: u32) -> Self {
        Self {
            common: bare(PduType::IC_REQ, INITIALIZE_BYTES, INITIALIZE_BYTES),
            host_alignment: alignment,
            digests: digests.to_dgst(),
            max_r2t_0based: U32::new(max_r2t.saturating_sub(1)),
            ..Default::default()
        }
    }
}

impl InitializeResponse {
    /// `ICResp` that enables `digests`, requests data alignment CPDA `alignment` (0 to 31), and
    /// accepts `max_h2c_data_bytes` per `H2CData`.
    pub fn new(digests: Digests, alignment: u8, max_h2c_data_bytes: u32) -> Self {
        Self {
            common: bare(PduType::IC_RESP, INITIALIZE_BYTES, INITIALIZE_BYTES),
            controller_alignment: alignment,
            digests: digests.to_dgst(),
            max_h2c_data_bytes: U32::new(max_h2c_data_bytes),
            ..Default::default()
        }
    }
}

/// Writes the `TermReq` of `sender` and returns its length, 24 to 152 bytes
/// ([`crate::limits::TERM_REQ_MAX_BYTES`]). It returns the first 128 bytes of the `offending` PDU
/// to the peer, and at least its common header, because some peers require data. `None` if `out` is
/// too short.
///
/// `sender` is the side that received the offending PDU: a [`Receiver::Controller`] sends
/// `C2HTermReq`.
#[must_use]
pub fn encode_term_req(
    out: &mut [u8],
    sender: Receiver,
    fatal: Fatal,
    offending: &[u8],
) -> Option<usize> {
    let offending = &offending[..offending.len().min(TERM_REQ_DATA_BYTES)];
    let pdu_bytes = DATA_HEADER_BYTES + offending.len();
    let kind = match sender {
        Receiver::Controller => PduType::C2H_TERM_REQ,
        Receiver::Host => PduType::H2C_TERM_REQ,
    };
    let header = TermReqHeader {
        common: bare(kind, DATA_HEADER_BYTES, pdu_bytes),
        status: U16::new(fatal.status.0),
        information: U32::new(fatal.information),
        ..Default::default()
    };
    let out = out.get_mut(..pdu_bytes)?;
    header.encode(out)?;
    out[DATA_HEADER_BYTES..].copy_from_slice(offending);
    Some(pdu_bytes)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
