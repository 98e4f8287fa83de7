//! Commands and completions: the content of capsules (Base 4.1, 4.2).
//!
//! [`Sqe`] is any command. Its queue and its opcode determine its command set: [`io`] for I/O
//! queues, [`admin`] for the admin queue, [`fabrics`] for opcode 7Fh on both. Each of these modules
//! has a view of the entry for targets and constructors for hosts.

pub mod admin;
pub mod fabrics;
pub mod io;
pub mod reservation;

use crate::opcode::FabricsType;
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U16, U32, U64, Wire, wire};

wire! {
    /// Submission queue entry, the common format (Base 4.1.1).
    pub struct Sqe [64] {
        0 => pub opcode: u8, "Opcode; bits 1:0 give the direction of data.";
        1 => pub flags: u8, "Bits 1:0 fused operation, bits 7:6 PRP or SGL.";
        2 => pub cid: U16, "Command identifier, chosen by the host.";
        4 => pub nsid: U32, "Namespace identifier; in a fabrics command, byte 4 is its type.";
        8 => pub cdw2: U32, "Command dword 2.";
        12 => pub cdw3: U32, "Command dword 3.";
        16 => pub metadata: U64, "Metadata pointer.";
        24 => pub data: SglDescriptor, "Data pointer: over fabrics, one SGL descriptor.";
        40 => pub cdw10: U32, "Command dword 10.";
        44 => pub cdw11: U32, "Command dword 11.";
        48 => pub cdw12: U32, "Command dword 12.";
        52 => pub cdw13: U32, "Command dword 13.";
        56 => pub cdw14: U32, "Command dword 14.";
        60 => pub cdw15: U32, "Command dword 15.";
    }

    /// Completion queue entry (Base 4.2.1).
    pub struct Cqe [16] {
        0 => pub dw0: U32, "Result of the command, dword 0.";
        4 => pub dw1: U32, "Result of the command, dword 1.";
        8 => pub sqhd: U16, "Head of the submission queue, if flow control is on.";
        10 => pub sqid: U16, "Submission queue; reserved over fabrics.";
        12 => pub cid: U16, "Command identifier of the command.";
        14 => pub status_phase: U16, "Status in bits 15:1, phase tag in bit 0 (0 over fabrics).";
    }
}

/// Flags bits 7:6 = 01b: SGL, a descriptor in the entry; required of every command over fabrics.
pub const FLAGS_SGL: u8 = 0x40;
/// Flags bits 7:6.
const FLAGS_PSDT: u8 = 0xc0;
/// Flags bits 1:0.
const FLAGS_FUSED: u8 = 0x03;

/// Place of a command in a fused operation (FUSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// An ordinary command.
    None,
    /// First command.
    First,
    /// Second command.
    Second,
    /// Reserved value.
    Reserved,
}

impl Sqe {
    /// A command with `opcode`, identifier `cid` and the data that `data` describes; everything
    /// else 0.
    #[inline]
    pub fn new(opcode: u8, cid: u16, nsid: u32, data: SglDescriptor) -> Self {
        Self {
            opcode,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid),
            data,
            ..Self::default()
        }
    }

    /// Checks the requirements of every command over fabrics: not fused, and an SGL descriptor.
    ///
    /// # Errors
    /// Invalid Field. A fabrics command (opcode 7Fh) has no fused bits and its bits 7:6 are 01b
    /// too (Base 6).
    #[inline]
    pub const fn check_flags(&self) -> Result<(), Status> {
        if self.flags & FLAGS_FUSED != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.check_pointer()
    }

    /// The part of [`Sqe::check_flags`] that does not concern fused operations.
    ///
    /// # Errors
    /// Invalid Field.
    #[inline]
    pub const fn check_pointer(&self) -> Result<(), Status> {
        if self.flags & FLAGS_PSDT != FLAGS_SGL {
            return Err(Status::INVALID_FIELD);
        }
        Ok(())
    }

    /// Place in a fused operation (FUSE). A fabrics command has none.
    #[inline]
    pub const fn fuse(&self) -> Fuse {
        match self.flags & FLAGS_FUSED {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Command dwords 10 to 15, as bytes: the parameters of the command.
    pub fn parameters(&self) -> &[u8; 24] {
        self.bytes().last_chunk().expect("an entry has 64 bytes")
    }

    /// Mutable form of [`Sqe::parameters`].
    pub fn parameters_mut(&mut self) -> &mut [u8; 24] {
        zerocopy::IntoBytes::as_mut_bytes(self).last_chunk_mut().expect("an entry has 64 bytes")
    }

    /// Type of a fabrics command; `None` for other commands.
    #[inline]
    pub const fn fabrics_type(&self) -> Option<FabricsType> {
        if self.opcode == FabricsType::OPCODE {
            Some(FabricsType(self.nsid.get() as u8))
        } else {
            None
        }
    }
}

impl FabricsType {
    /// Opcode of all fabrics commands.
    pub const OPCODE: u8 = 0x7f;
}

impl Cqe {
    /// Completion of command `cid` with `status` and no result.
    #[inline]
    pub fn new(cid: u16, status: Status) -> Self {
        Self::with_result(cid, status, 0)
    }

    /// Completion of command `cid` with `status` and `result` (dword 0 in its low half).
    #[inline]
    pub fn with_result(cid: u16, status: Status, result: u64) -> Self {
        Self {
            dw0: U32::new(result as u32),
            dw1: U32::new((result >> 32) as u32),
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status_phase: U16::new(status.to_cqe()),
        }
    }

    /// Its status.
    #[inline]
    pub const fn status(&self) -> Status {
        Status::from_cqe(self.status_phase.get())
    }

    /// Its result, dword 1 in the upper half.
    #[inline]
    pub const fn result(&self) -> u64 {
        self.dw0.get() as u64 | (self.dw1.get() as u64) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn command_layout_matches_specification() {
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        expected[32..36].copy_from_slice(&[0, 0x10, 0, 0]);
        expected[39] = 0x5a;
        let command = Sqe::new(0x02, 0x1234, 1, SglDescriptor::transport(4096));
        assert_eq!(command.bytes(), expected);
    }

    #[test]
    fn unsupported_flags_are_refused() {
        let mut command = Sqe::default();
        for (flags, answer) in [
            (0x40, Ok(())),
            (0x00, Err(Status::INVALID_FIELD)),
            (0x80, Err(Status::INVALID_FIELD)),
            (0xc0, Err(Status::INVALID_FIELD)),
            (0x41, Err(Status::INVALID_FIELD)),
            (0x42, Err(Status::INVALID_FIELD)),
        ] {
            command.flags = flags;
            assert_eq!(command.check_flags(), answer, "{flags:#x}");
        }
    }

    proptest! {
        #[test]
        fn completion_round_trips(cid: u16, word: u16, result: u64) {
            let status = Status::from_cqe(word);
            let sent = Cqe::with_result(cid, status, result);
            let received = Cqe::view(sent.bytes()).unwrap();
            prop_assert_eq!(received.cid.get(), cid);
            prop_assert_eq!(received.status(), status);
            prop_assert_eq!(received.result(), result);
        }
    }
}
