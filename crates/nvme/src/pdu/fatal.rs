//! Fatal errors: the end of a connection, and its notice to the peer (NVMe/TCP 3.5 and 3.6.2,
//! `H2CTermReq` and `C2HTermReq`).

use super::{CapsuleResp, DataHeader};
use crate::codes::codes;
use crate::command::Cqe;
use core::mem::offset_of;

codes! {
    /// Fatal error status (FES) of a `TermReq`.
    pub struct FatalStatus(u16) {
        INVALID_HEADER_FIELD = 0x01, "Invalid PDU Header Field";
        SEQUENCE_ERROR = 0x02, "PDU Sequence Error";
        HEADER_DIGEST_ERROR = 0x03, "Header Digest Error";
        OUT_OF_RANGE = 0x04, "Data Transfer Out of Range";
        LIMIT_EXCEEDED = 0x05, "Data Transfer or R2T Limit Exceeded";
        UNSUPPORTED_PARAMETER = 0x06, "Unsupported Parameter";
    }
}

/// A fatal error: the content of a `TermReq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (information {information:#x})")]
pub struct Fatal {
    /// FES.
    pub status: FatalStatus,
    /// FEI: for status 1 and 6 the byte offset of the first wrong field in the header, for status 3
    /// the received digest, otherwise 0.
    pub information: u32,
}

impl Fatal {
    /// PDU sequence error.
    pub const SEQUENCE: Self = Self::plain(FatalStatus::SEQUENCE_ERROR);
    /// Data transfer out of range.
    pub const OUT_OF_RANGE: Self = Self::plain(FatalStatus::OUT_OF_RANGE);
    /// Data transfer or R2T limit exceeded.
    pub const LIMIT_EXCEEDED: Self = Self::plain(FatalStatus::LIMIT_EXCEEDED);

    /// `H2CData` names a transfer tag without an R2T: unused, of a read, or beyond the queue.
    pub const UNKNOWN_TRANSFER_TAG: Self = Self::field(offset_of!(DataHeader, transfer_tag));
    /// `C2HData` or `R2T` names a command that is not outstanding, or that has no such data.
    pub const UNKNOWN_COMMAND: Self = Self::field(offset_of!(DataHeader, cid));
    /// `CapsuleResp` completes a command that is not outstanding.
    pub const UNKNOWN_COMPLETION: Self =
        Self::field(offset_of!(CapsuleResp, completion) + offset_of!(Cqe, cid));

    /// The field at byte `offset` of the header has an invalid value.
    pub const fn field(offset: usize) -> Self {
        Self { status: FatalStatus::INVALID_HEADER_FIELD, information: offset as u32 }
    }

    /// The field at byte `offset` of the header requests an unsupported feature.
    pub const fn unsupported(offset: u32) -> Self {
        Self { status: FatalStatus::UNSUPPORTED_PARAMETER, information: offset }
    }

    /// The header digest `received` does not match the header.
    pub const fn header_digest(received: u32) -> Self {
        Self { status: FatalStatus::HEADER_DIGEST_ERROR, information: received }
    }

    const fn plain(status: FatalStatus) -> Self {
        Self { status, information: 0 }
    }
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PduViolation {
    /// Send a `TermReq` with this error, then stop processing and close after a bounded wait.
    #[error("{0}")]
    Terminate(#[from] Fatal),
    /// Close without a response, because the peer's `TermReq` itself is malformed.
    #[error("malformed TermReq")]
    Close,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_point_at_their_field() {
        assert_eq!(Fatal::UNKNOWN_TRANSFER_TAG, Fatal::field(10));
        assert_eq!(Fatal::UNKNOWN_COMMAND, Fatal::field(8));
        assert_eq!(Fatal::UNKNOWN_COMPLETION, Fatal::field(20));
        let text = PduViolation::from(Fatal::field(4)).to_string();
        assert_eq!(text, "Invalid PDU Header Field (information 0x4)");
    }
}
