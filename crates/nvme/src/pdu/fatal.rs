//! What ends a connection, and how the peer is told (NVMe/TCP 3.6.2.4, 3.6.2.5).

use crate::codes::codes;

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

/// A fatal error: what a `TermReq` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (information {information:#x})")]
pub struct Fatal {
    /// FES.
    pub status: FatalStatus,
    /// FEI: of status 1 and 6 the byte of the lowest wrong field in the header, of status 3 the
    /// digest as received, else 0.
    pub information: u32,
}

impl Fatal {
    /// PDU sequence error.
    pub const SEQUENCE: Self = Self::plain(FatalStatus::SEQUENCE_ERROR);
    /// Data transfer out of range.
    pub const OUT_OF_RANGE: Self = Self::plain(FatalStatus::OUT_OF_RANGE);
    /// Data transfer or R2T limit exceeded.
    pub const LIMIT_EXCEEDED: Self = Self::plain(FatalStatus::LIMIT_EXCEEDED);

    /// The field at byte `offset` of the header has an invalid value.
    #[must_use]
    pub const fn field(offset: usize) -> Self {
        Self { status: FatalStatus::INVALID_HEADER_FIELD, information: offset as u32 }
    }

    /// The field at byte `offset` of the header asks for what is not supported.
    #[must_use]
    pub const fn unsupported(offset: u32) -> Self {
        Self { status: FatalStatus::UNSUPPORTED_PARAMETER, information: offset }
    }

    /// The header digest `received` is not the header's.
    #[must_use]
    pub const fn header_digest(received: u32) -> Self {
        Self { status: FatalStatus::HEADER_DIGEST_ERROR, information: received }
    }

    const fn plain(status: FatalStatus) -> Self {
        Self { status, information: 0 }
    }
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Send a `TermReq` that says so, then stop processing and close after a bounded wait.
    #[error("{0}")]
    Terminate(#[from] Fatal),
    /// Close without an answer: it is the peer's `TermReq` that is malformed.
    #[error("malformed TermReq")]
    Close,
}
