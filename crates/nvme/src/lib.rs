//! NVMe and NVMe/TCP wire formats: types and codecs, without I/O.
//!
//! Invariants:
//!
//! - **Reading allocates and copies nothing.** A wire structure is a `#[repr(C)]` type of alignment
//!   1 with little-endian fields, viewed in place with [`Wire::view`] and written with
//!   [`Wire::encode`]. Its byte offsets are declared with its fields, and asserted by the compiler.
//! - **Hostile bytes never cause a panic.** A view checks only the length. The meaning of a value
//!   is checked by the method that returns it ([`pdu::Rules::check`], [`pdu::Transfer::accept`],
//!   [`sgl::DataPointer::parse`], [`Nqn::from_field`]), whose error is what the protocol
//!   requires: a fatal transport error with its field, or a status code.
//! - **No policy.** The target and the host decide which commands are supported, how large a
//!   transfer may be and which hosts may connect. This crate only encodes the decision.
//!
//! Read in this order: [`wire`] (declaration of structures), [`pdu`] (the byte stream), [`command`]
//! and [`status`] (the content of capsules), [`identify`], [`log`], [`feature`], [`property`] and
//! [`event`] (properties of a controller), [`replica`] (vendor specific commands).
//!
//! Specifications: NVM Express Base 2.0 and 2.1, NVM Command Set 1.0 and 1.1, NVMe/TCP Transport
//! 1.0 and 1.1. Section numbers refer to Base 2.1, NVM Command Set 1.1 and TCP Transport 1.1 unless
//! stated otherwise.

mod codes;
pub mod command;
pub mod digest;
pub mod event;
pub mod feature;
pub mod identify;
pub mod limits;
pub mod log;
pub mod nqn;
pub mod opcode;
pub mod pdu;
pub mod property;
pub mod replica;
pub mod sgl;
pub mod status;
pub mod wire;

pub use command::{Cqe, Sqe};
pub use nqn::{Nqn, NqnError};
pub use opcode::{AdminOpcode, FabricsType, IoOpcode};
pub use status::Status;
pub use wire::Wire;
