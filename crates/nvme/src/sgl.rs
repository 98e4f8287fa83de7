//! Scatter gather list descriptors: the two types of NVMe/TCP (Base 4.3.2, NVMe/TCP 3.3).
//!
//! A command over TCP has one descriptor. A data block with subtype offset (01h) means data in the
//! capsule; a transport data block with the transport's subtype (5Ah) means data in data PDUs. All
//! others are refused.

use crate::command::Sqe;
use crate::limits::COMMON_HEADER_BYTES;
use crate::pdu::Fatal;
use crate::status::Status;
use crate::wire::{U32, U64, wire};

wire! {
    /// SGL descriptor, unkeyed.
    pub struct SglDescriptor [16] {
        /// Address; for an in-capsule descriptor, the offset in the data of the capsule.
        0 => pub address: U64;
        8 => pub data_bytes: U32, "Length of the data, in bytes.";
        12 => pub _reserved12: [u8; 3];
        15 => pub identifier: u8, "SGL identifier: type in bits 7:4, subtype in bits 3:0.";
    }
}

/// Data block whose address is an offset in the capsule.
const IN_CAPSULE: u8 = 0x01;
/// Transport data block with the transport specific subtype Ah.
const TRANSPORT: u8 = 0x5a;

impl SglDescriptor {
    /// Data of `data_bytes` bytes in the capsule, at offset 0, the only offset that TCP permits.
    #[inline]
    pub const fn in_capsule(data_bytes: u32) -> Self {
        Self::of(IN_CAPSULE, data_bytes)
    }

    /// Data of `data_bytes` bytes in data PDUs.
    #[inline]
    pub const fn transport(data_bytes: u32) -> Self {
        Self::of(TRANSPORT, data_bytes)
    }

    const fn of(identifier: u8, data_bytes: u32) -> Self {
        Self {
            address: U64::ZERO,
            data_bytes: U32::new(data_bytes),
            _reserved12: [0; 3],
            identifier,
        }
    }
}

/// Location of the data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// In the capsule, after the header.
    InCapsule {
        /// Length, bytes; equal to the data of the PDU.
        data_bytes: u32,
    },
    /// In data PDUs.
    Transport {
        /// Length, bytes; 0 for a command without data.
        data_bytes: u32,
    },
}

/// Invalid descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SglError {
    /// A type or subtype that NVMe/TCP does not use, such as a keyed descriptor.
    #[error("SGL descriptor type {0:#04x} is not one of NVMe/TCP's")]
    Type(u8),
    /// In-capsule data at an offset other than 0.
    #[error("in-capsule data at an offset other than 0")]
    Offset,
    /// In-capsule data whose length differs from the data of the PDU.
    #[error("the SGL's length is not that of the in-capsule data")]
    Length,
}

impl SglError {
    /// The status that completes the command, if the connection can continue.
    pub const fn status(self) -> Status {
        match self {
            Self::Type(_) => Status::SGL_TYPE_INVALID,
            Self::Offset => Status::SGL_OFFSET_INVALID,
            Self::Length => Status::DATA_SGL_LENGTH_INVALID,
        }
    }

    /// The error that ends the connection, if the data that follows cannot be distinguished from
    /// the next PDU: unsupported parameter with its field in the `CapsuleCmd`, or, for a length
    /// that differs from the PDU, an invalid PDU length.
    pub const fn fatal(self) -> Fatal {
        let descriptor = (COMMON_HEADER_BYTES + core::mem::offset_of!(Sqe, data)) as u32;
        match self {
            Self::Type(_) => Fatal::unsupported(
                descriptor + core::mem::offset_of!(SglDescriptor, identifier) as u32,
            ),
            Self::Offset => Fatal::unsupported(descriptor),
            Self::Length => {
                Fatal::field(core::mem::offset_of!(crate::pdu::CommonHeader, pdu_bytes))
            }
        }
    }
}

impl DataPointer {
    /// Parses the `descriptor` of a `CapsuleCmd` with `in_capsule_bytes` of data.
    ///
    /// A transport descriptor in a capsule with data is a length mismatch, because no command owns
    /// the data.
    ///
    /// # Errors
    /// The reason that the descriptor is invalid.
    #[inline]
    pub fn parse(descriptor: &SglDescriptor, in_capsule_bytes: u32) -> Result<Self, SglError> {
        let data_bytes = descriptor.data_bytes.get();
        match descriptor.identifier {
            TRANSPORT if in_capsule_bytes == 0 => Ok(Self::Transport { data_bytes }),
            IN_CAPSULE if descriptor.address.get() != 0 => Err(SglError::Offset),
            IN_CAPSULE if data_bytes == in_capsule_bytes => Ok(Self::InCapsule { data_bytes }),
            TRANSPORT | IN_CAPSULE => Err(SglError::Length),
            other => Err(SglError::Type(other)),
        }
    }

    /// Length of the data, bytes.
    #[inline]
    pub const fn data_bytes(self) -> u32 {
        match self {
            Self::InCapsule { data_bytes } | Self::Transport { data_bytes } => data_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::FatalStatus;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn every_refusal_has_its_status_and_field() {
        let mut at_offset = SglDescriptor::in_capsule(512);
        at_offset.address = U64::new(4);
        let mut keyed = SglDescriptor::transport(512);
        keyed.identifier = 0x40;
        let mut plain = SglDescriptor::in_capsule(512);
        plain.identifier = 0x00;
        let ok = |pointer| Ok::<_, (SglError, Status, u16, u32)>(pointer);
        for (descriptor, carried, expected) in [
            (SglDescriptor::in_capsule(512), 512, ok(DataPointer::InCapsule { data_bytes: 512 })),
            (SglDescriptor::in_capsule(0), 0, ok(DataPointer::InCapsule { data_bytes: 0 })),
            (SglDescriptor::transport(9), 0, ok(DataPointer::Transport { data_bytes: 9 })),
            (
                SglDescriptor::in_capsule(512),
                511,
                Err((SglError::Length, Status::DATA_SGL_LENGTH_INVALID, 1, 4)),
            ),
            (
                SglDescriptor::in_capsule(512),
                0,
                Err((SglError::Length, Status::DATA_SGL_LENGTH_INVALID, 1, 4)),
            ),
            (
                SglDescriptor::transport(512),
                512,
                Err((SglError::Length, Status::DATA_SGL_LENGTH_INVALID, 1, 4)),
            ),
            (at_offset, 512, Err((SglError::Offset, Status::SGL_OFFSET_INVALID, 6, 32))),
            (keyed, 0, Err((SglError::Type(0x40), Status::SGL_TYPE_INVALID, 6, 47))),
            (plain, 512, Err((SglError::Type(0x00), Status::SGL_TYPE_INVALID, 6, 47))),
        ] {
            let got = DataPointer::parse(&descriptor, carried).map_err(|error| {
                let fatal = error.fatal();
                (error, error.status(), fatal.status.0, fatal.information)
            });
            assert_eq!(got, expected, "{descriptor:?}");
        }
        assert_eq!(FatalStatus::UNSUPPORTED_PARAMETER.0, 6);
    }

    proptest! {
        #[test]
        fn any_sgl_descriptor_parses_or_fails(bytes: [u8; 16], carried: u32) {
            let descriptor = SglDescriptor::view(&bytes).unwrap();
            if let Ok(pointer) = DataPointer::parse(descriptor, carried) {
                prop_assert_eq!(pointer.data_bytes(), descriptor.data_bytes.get());
            }
        }
    }
}
