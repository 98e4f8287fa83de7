//! NVMe and NVMe/TCP wire formats: types and codecs, no I/O.
//!
//! What it promises:
//!
//! - **Nothing is allocated or copied to read.** A structure of the wire is a `#[repr(C)]` type of
//!   alignment 1 with little-endian fields, viewed in place with [`Wire::view`] and written with
//!   [`Wire::encode`]. Its byte numbers stand beside its fields and are asserted by the compiler.
//! - **Nothing panics on bytes from outside.** A view checks only the length; a value's meaning is
//!   checked by the method that gives it ([`pdu::Rules::check`], [`pdu::Transfer::accept`],
//!   [`sgl::DataPointer::parse`], [`Nqn::from_field`]), which answers with what the protocol wants
//!   to be told: a fatal transport error with its field, or a status code.
//! - **No policy.** Which command is supported, how large a transfer may be and who may connect is
//!   decided by the target and the host; here is how it is said.
//!
//! Read in this order: [`wire`] (how structures are declared), [`pdu`] (the byte stream),
//! [`command`] and [`status`] (what a capsule carries), [`identify`], [`log`], [`feature`],
//! [`property`] and [`event`] (what a controller says of itself), [`replica`] (commands of our own).
//!
//! Specifications followed: NVM Express Base 2.0 and 2.1, NVM Command Set 1.0 and 1.1,
//! NVMe/TCP Transport 1.0 and 1.1. Section numbers in the documentation are those of Base 2.1,
//! NVM Command Set 1.1 and TCP Transport 1.1 where not said otherwise.

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
