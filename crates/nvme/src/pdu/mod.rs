//! NVMe/TCP protocol data units: the byte stream of a connection (NVMe/TCP 3.6).
//!
//! Receiving:
//!
//! 1. With 8 bytes, view a [`CommonHeader`] and call [`Rules::check`]. It returns the [`Frame`],
//!    with the location of all parts of the PDU, or the [`PduViolation`] that ends the connection.
//!    From here on every length is consistent and within the negotiated limits.
//! 2. With [`Frame::header_end`] bytes, check the header digest ([`Frame::check_header_digest`]),
//!    view the header by its kind and check it: [`InitializeRequest::check`],
//!    [`InitializeResponse::check`], [`DataHeader::check`], [`R2tHeader::check`].
//! 3. For a data PDU, [`DataTransfer::accept`] checks that it is the next piece of its transfer.
//! 4. The data is [`Frame::data_bytes`] bytes from [`Frame::data_offset`]; the data digest follows.
//!
//! Sending: [`Encoder`] writes a header with its digest and padding into a slice. The end of a
//! connection is a [`Fatal`], sent with [`encode_term_req`].

mod encode;
mod fatal;
mod frame;
mod headers;
mod transfer;

pub use encode::{DataFlags, Encoder, encode_term_req};
pub use fatal::{Fatal, FatalStatus, PduViolation};
pub use frame::{Frame, Phase, Receiver, Rules};
pub use headers::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, InitializeRequest, InitializeResponse,
    R2tHeader, TermReqHeader,
};
pub use transfer::{AcceptedData, DataTransfer};

use crate::codes::codes;

codes! {
    /// PDU type (NVMe/TCP 3.6.1).
    pub struct PduType(u8) {
        IC_REQ = 0x00, "ICReq";
        IC_RESP = 0x01, "ICResp";
        H2C_TERM_REQ = 0x02, "H2CTermReq";
        C2H_TERM_REQ = 0x03, "C2HTermReq";
        CAPSULE_CMD = 0x04, "CapsuleCmd";
        CAPSULE_RESP = 0x05, "CapsuleResp";
        H2C_DATA = 0x06, "H2CData";
        C2H_DATA = 0x07, "C2HData";
        R2T = 0x09, "R2T";
    }
}

/// A kind of PDU accepted by [`Rules::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PduKind {
    /// Initialize connection request, host to controller.
    IcReq,
    /// Initialize connection response, controller to host.
    IcResp,
    /// Terminate connection request, either way.
    TermReq,
    /// Command capsule, host to controller.
    CapsuleCmd,
    /// Response capsule, controller to host.
    CapsuleResp,
    /// Data of a command, either way: `H2CData` to a controller, `C2HData` to a host.
    Data,
    /// Ready to transfer, controller to host.
    R2t,
}

/// Flags of the common header.
pub mod flags {
    /// HDGSTF: a header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// `LAST_PDU` of `H2CData` and `C2HData`: the last PDU of this transfer.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS of `C2HData`: the command succeeded and no `CapsuleResp` follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Digests of a connection: those enabled by both `ICReq` and `ICResp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// After headers.
    pub header: bool,
    /// After data.
    pub data: bool,
}

impl Digests {
    /// Parses DGST of `ICReq` and `ICResp`: bit 0 header, bit 1 data; the reserved bits are
    /// ignored.
    pub const fn from_dgst(dgst: u8) -> Self {
        Self { header: dgst & 1 != 0, data: dgst & 2 != 0 }
    }

    /// The DGST byte.
    pub const fn to_dgst(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    /// Digests that both sides have.
    pub const fn and(self, other: Self) -> Self {
        Self { header: self.header && other.header, data: self.data && other.data }
    }
}
