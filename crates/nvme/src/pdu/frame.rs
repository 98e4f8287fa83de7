//! Frame of a PDU: the location of all its parts, from the common header.

use super::{CommonHeader, Digests, Fatal, PduKind, PduType, PduViolation, flags};
use crate::digest::crc32c;
use crate::limits::{
    CAPSULE_CMD_BYTES, CAPSULE_RESP_BYTES, DATA_HEADER_BYTES, DIGEST_BYTES, INITIALIZE_BYTES,
    TERM_REQ_MAX_BYTES,
};
use core::mem::offset_of;

/// The receiving side, which determines the PDUs that may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A target, to which a host sends.
    Controller,
    /// A host, to which a target sends.
    Host,
}

/// Phase of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before `ICReq` (at a target) or `ICResp` (at a host) was received.
    Initialize,
    /// After it.
    Transfer,
}

/// Rules for received PDUs: created at the start of a connection, and again after the exchange of
/// `ICReq` and `ICResp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    receiver: Receiver,
    phase: Phase,
    header_digest_bytes: u8,
    data_digest_bytes: u8,
    /// Alignment of data, bytes: 4 to 128.
    alignment: u8,
    max_in_capsule_bytes: u32,
    max_data_bytes: u32,
}

/// A PDU whose common header satisfies the [`Rules`]: all lengths are consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of PDU.
    pub kind: PduKind,
    /// Length of the header without its digest, bytes: 24, 72 or 128.
    pub header_bytes: u8,
    /// Length of the header digest, bytes: 0 or 4.
    pub header_digest_bytes: u8,
    /// Offset of the data, bytes from the start of the PDU; the end of header and digest if there
    /// is no data. The bytes between are padding.
    pub data_offset: u8,
    /// Length of the data digest, bytes: 0 or 4; 0 without data.
    pub data_digest_bytes: u8,
    /// Length of the data, bytes.
    pub data_bytes: u32,
}

impl Frame {
    /// Length of header and digest, which must have arrived before the header is parsed.
    #[inline]
    pub const fn header_end(&self) -> usize {
        self.header_bytes as usize + self.header_digest_bytes as usize
    }

    /// Length of the whole PDU, bytes: PLEN.
    #[inline]
    pub const fn pdu_bytes(&self) -> u64 {
        self.data_offset as u64 + self.data_bytes as u64 + self.data_digest_bytes as u64
    }

    /// Checks the header digest of the PDU at the start of `bytes`, if the connection has one.
    ///
    /// # Errors
    /// Header digest error with the received digest. Fewer than [`Frame::header_end`] bytes are an
    /// error too, with a digest of 0.
    #[inline]
    pub fn check_header_digest(&self, bytes: &[u8]) -> Result<(), Fatal> {
        if self.header_digest_bytes == 0 {
            return Ok(());
        }
        let split = bytes.split_at_checked(self.header_bytes.into());
        let Some((header, Some(received))) =
            split.map(|(header, rest)| (header, rest.first_chunk::<DIGEST_BYTES>()))
        else {
            return Err(Fatal::header_digest(0));
        };
        let received = u32::from_le_bytes(*received);
        if crc32c(header) == received { Ok(()) } else { Err(Fatal::header_digest(received)) }
    }

    #[cfg(test)]
    pub(super) const fn for_test(kind: PduKind, data_bytes: u32) -> Self {
        Self {
            kind,
            header_bytes: DATA_HEADER_BYTES as u8,
            header_digest_bytes: 0,
            data_offset: DATA_HEADER_BYTES as u8,
            data_digest_bytes: 0,
            data_bytes,
        }
    }
}

const FIELD_KIND: PduViolation = wrong(offset_of!(CommonHeader, kind));
const FIELD_FLAGS: PduViolation = wrong(offset_of!(CommonHeader, flags));
const FIELD_HEADER_BYTES: PduViolation = wrong(offset_of!(CommonHeader, header_bytes));
const FIELD_DATA_OFFSET: PduViolation = wrong(offset_of!(CommonHeader, data_offset));
const FIELD_PDU_BYTES: PduViolation = wrong(offset_of!(CommonHeader, pdu_bytes));
const SEQUENCE: PduViolation = PduViolation::Terminate(Fatal::SEQUENCE);
const LIMIT_EXCEEDED: PduViolation = PduViolation::Terminate(Fatal::LIMIT_EXCEEDED);

const fn wrong(field: usize) -> PduViolation {
    PduViolation::Terminate(Fatal::field(field))
}

impl Rules {
    /// Rules of a new connection: `ICReq` or `ICResp` comes first.
    pub const fn initial(receiver: Receiver) -> Self {
        Self {
            receiver,
            phase: Phase::Initialize,
            header_digest_bytes: 0,
            data_digest_bytes: 0,
            alignment: 4,
            max_in_capsule_bytes: 0,
            max_data_bytes: 0,
        }
    }

    /// Rules of a target whose `ICResp` had `digests`, CPDA `alignment` (0 to 31) and MAXH2CDATA,
    /// and whose queue accepts `max_in_capsule_bytes` of data in a capsule.
    pub const fn of_controller(
        digests: Digests,
        alignment: u8,
        max_in_capsule_bytes: u32,
        max_h2c_data_bytes: u32,
    ) -> Self {
        let max_data_bytes = max_h2c_data_bytes;
        Self {
            max_in_capsule_bytes,
            max_data_bytes,
            ..Self::agreed(Receiver::Controller, digests, alignment)
        }
    }

    /// Rules of a host that received `ICResp` with `digests`, whose `ICReq` had HPDA `alignment` (0
    /// to 31), and whose commands request at most `max_data_bytes`.
    pub const fn of_host(digests: Digests, alignment: u8, max_data_bytes: u32) -> Self {
        Self { max_data_bytes, ..Self::agreed(Receiver::Host, digests, alignment) }
    }

    const fn agreed(receiver: Receiver, digests: Digests, alignment: u8) -> Self {
        Self {
            phase: Phase::Transfer,
            header_digest_bytes: if digests.header { DIGEST_BYTES as u8 } else { 0 },
            data_digest_bytes: if digests.data { DIGEST_BYTES as u8 } else { 0 },
            // Only the low 5 bits: an alignment over 31 was refused with its ICReq or ICResp.
            alignment: ((alignment & 31) + 1) * 4,
            ..Self::initial(receiver)
        }
    }

    /// The same rules for a queue with `max_in_capsule_bytes` of in-capsule data, which is known
    /// when Connect names the queue.
    pub const fn with_max_in_capsule_bytes(self, max_in_capsule_bytes: u32) -> Self {
        Self { max_in_capsule_bytes, ..self }
    }

    /// Checks the common header of a PDU.
    ///
    /// # Errors
    /// [`PduViolation::Terminate`], in this order:
    ///
    /// - invalid header field, with the first wrong one: an unknown type or a type for the other
    ///   direction; digest flags that differ from the negotiated ones; a wrong header length for
    ///   the type; a data offset inside the header or not aligned; a PDU length that contradicts
    ///   the other fields;
    /// - sequence error: any other PDU before `ICReq` or `ICResp`, or a second one of these;
    /// - limit exceeded: more data than was negotiated.
    ///
    /// [`PduViolation::Close`]: a malformed `TermReq`.
    #[inline]
    pub const fn check(&self, header: &CommonHeader) -> Result<Frame, PduViolation> {
        // The two most frequent PDUs first.
        match (self.receiver, self.phase, PduType(header.kind)) {
            (Receiver::Controller, Phase::Transfer, PduType::CAPSULE_CMD) => {
                self.check_capsule(header)
            }
            (Receiver::Controller, Phase::Transfer, PduType::H2C_DATA)
            | (Receiver::Host, Phase::Transfer, PduType::C2H_DATA) => {
                self.check_with_data(header, PduKind::Data, DATA_HEADER_BYTES, self.max_data_bytes)
            }
            (Receiver::Host, Phase::Transfer, PduType::CAPSULE_RESP) => {
                self.check_header_alone(header, PduKind::CapsuleResp, CAPSULE_RESP_BYTES)
            }
            (Receiver::Host, Phase::Transfer, PduType::R2T) => {
                self.check_header_alone(header, PduKind::R2t, DATA_HEADER_BYTES)
            }
            _ => self.check_rare(header),
        }
    }

    const fn check_rare(&self, header: &CommonHeader) -> Result<Frame, PduViolation> {
        match (self.receiver, self.phase, PduType(header.kind)) {
            (Receiver::Controller, _, PduType::H2C_TERM_REQ)
            | (Receiver::Host, _, PduType::C2H_TERM_REQ) => check_term_req(header),
            (Receiver::Controller, Phase::Initialize, PduType::IC_REQ) => {
                self.check_header_alone(header, PduKind::IcReq, INITIALIZE_BYTES)
            }
            (Receiver::Host, Phase::Initialize, PduType::IC_RESP) => {
                self.check_header_alone(header, PduKind::IcResp, INITIALIZE_BYTES)
            }
            (
                Receiver::Controller,
                _,
                PduType::IC_REQ | PduType::CAPSULE_CMD | PduType::H2C_DATA,
            )
            | (
                Receiver::Host,
                _,
                PduType::IC_RESP | PduType::CAPSULE_RESP | PduType::C2H_DATA | PduType::R2T,
            ) => Err(SEQUENCE),
            _ => Err(FIELD_KIND),
        }
    }

    /// `CapsuleCmd`: with or without data, according to the PDU length.
    #[inline]
    const fn check_capsule(&self, header: &CommonHeader) -> Result<Frame, PduViolation> {
        let header_end = CAPSULE_CMD_BYTES as u32 + self.header_digest_bytes as u32;
        if header.pdu_bytes.get() <= header_end {
            self.check_header_alone(header, PduKind::CapsuleCmd, CAPSULE_CMD_BYTES)
        } else {
            let (kind, max) = (PduKind::CapsuleCmd, self.max_in_capsule_bytes);
            self.check_with_data(header, kind, CAPSULE_CMD_BYTES, max)
        }
    }

    /// A PDU without data: it ends after header and digest; the data offset is reserved.
    #[inline]
    const fn check_header_alone(
        &self,
        header: &CommonHeader,
        kind: PduKind,
        header_bytes: usize,
    ) -> Result<Frame, PduViolation> {
        if !self.digest_flags_are(header, 0) {
            return Err(FIELD_FLAGS);
        }
        if header.header_bytes as usize != header_bytes {
            return Err(FIELD_HEADER_BYTES);
        }
        let header_end = header_bytes as u8 + self.header_digest_bytes;
        if header.pdu_bytes.get() != header_end as u32 {
            return Err(FIELD_PDU_BYTES);
        }
        Ok(Frame {
            kind,
            header_bytes: header_bytes as u8,
            header_digest_bytes: self.header_digest_bytes,
            data_offset: header_end,
            data_digest_bytes: 0,
            data_bytes: 0,
        })
    }

    /// A PDU with data. A data PDU of length 0 can pass here: its header has a length field, which
    /// is then the wrong field.
    #[inline]
    const fn check_with_data(
        &self,
        header: &CommonHeader,
        kind: PduKind,
        header_bytes: usize,
        max_data_bytes: u32,
    ) -> Result<Frame, PduViolation> {
        if !self.digest_flags_are(header, self.data_digest_bytes) {
            return Err(FIELD_FLAGS);
        }
        if header.header_bytes as usize != header_bytes {
            return Err(FIELD_HEADER_BYTES);
        }
        let header_end = header_bytes as u8 + self.header_digest_bytes;
        let data_offset = header.data_offset;
        if data_offset < header_end || !data_offset.is_multiple_of(self.alignment) {
            return Err(FIELD_DATA_OFFSET);
        }
        // At most 255 + 4.
        let overhead = data_offset as u32 + self.data_digest_bytes as u32;
        let Some(data_bytes) = header.pdu_bytes.get().checked_sub(overhead) else {
            return Err(FIELD_PDU_BYTES);
        };
        if data_bytes == 0 && matches!(kind, PduKind::CapsuleCmd) {
            return Err(FIELD_PDU_BYTES);
        }
        if data_bytes > max_data_bytes {
            return Err(LIMIT_EXCEEDED);
        }
        Ok(Frame {
            kind,
            header_bytes: header_bytes as u8,
            header_digest_bytes: self.header_digest_bytes,
            data_offset,
            data_digest_bytes: self.data_digest_bytes,
            data_bytes,
        })
    }

    /// Checks HDGSTF and DDGSTF; the other flags belong to the type or are reserved.
    #[inline]
    const fn digest_flags_are(&self, header: &CommonHeader, data_digest_bytes: u8) -> bool {
        // Digests are 4 bytes or none: 4 >> 2 is bit 0, 4 >> 1 is bit 1.
        let expected = (self.header_digest_bytes >> 2) | (data_digest_bytes >> 1);
        header.flags & (flags::HEADER_DIGEST | flags::DATA_DIGEST) == expected
    }
}

/// `TermReq`: no digests; one of invalid length gets no response.
const fn check_term_req(header: &CommonHeader) -> Result<Frame, PduViolation> {
    let pdu_bytes = header.pdu_bytes.get();
    if header.header_bytes as usize != DATA_HEADER_BYTES
        || pdu_bytes < DATA_HEADER_BYTES as u32
        || pdu_bytes > TERM_REQ_MAX_BYTES as u32
    {
        return Err(PduViolation::Close);
    }
    Ok(Frame {
        kind: PduKind::TermReq,
        header_bytes: DATA_HEADER_BYTES as u8,
        header_digest_bytes: 0,
        data_offset: DATA_HEADER_BYTES as u8,
        data_digest_bytes: 0,
        data_bytes: pdu_bytes - DATA_HEADER_BYTES as u32,
    })
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
