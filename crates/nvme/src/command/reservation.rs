//! Reservation commands: Register, Acquire, Release and Report, with their data (Base 2.0 7.2 to
//! 7.5).
//!
//! A command is parsed together with its data into an enum that has only meaningful values.
//! Reserved values are refused with Invalid Field.

use super::Sqe;
use crate::opcode::IoOpcode;
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U16, U32, U64, Wire, wire};

/// Refusal of a reserved or unsupported value.
const INVALID: Status = Status::INVALID_FIELD.dnr();
/// IEKEY: Ignore Existing Key.
const IGNORE_KEY: u32 = 1 << 3;
/// EDS of Reservation Report: Extended Data Structure.
const EXTENDED: u32 = 1;

/// Which commands a reservation restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcludedAccess {
    /// Write Exclusive: commands that write.
    Writes,
    /// Exclusive Access: commands that read or write.
    All,
}

/// Which hosts a reservation does not restrict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationScope {
    /// Its holder only.
    Holder,
    /// Registrants Only: its holder and all registrants.
    Registrants,
    /// All Registrants: every registrant is a holder.
    AllRegistrants,
}

/// Type of a reservation, RTYPE (Base 2.0 8.19.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationType {
    /// Commands that it restricts.
    pub exclusion: ExcludedAccess,
    /// Hosts that it does not restrict.
    pub scope: ReservationScope,
}

impl ReservationType {
    /// All types, by ascending code from 1.
    pub const ALL: [Self; 6] = [
        Self { exclusion: ExcludedAccess::Writes, scope: ReservationScope::Holder },
        Self { exclusion: ExcludedAccess::All, scope: ReservationScope::Holder },
        Self { exclusion: ExcludedAccess::Writes, scope: ReservationScope::Registrants },
        Self { exclusion: ExcludedAccess::All, scope: ReservationScope::Registrants },
        Self { exclusion: ExcludedAccess::Writes, scope: ReservationScope::AllRegistrants },
        Self { exclusion: ExcludedAccess::All, scope: ReservationScope::AllRegistrants },
    ];

    /// The type with code `code`, 1 to 6.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Its code, 1 to 6.
    pub fn code(self) -> u8 {
        let index = Self::ALL.iter().position(|&kind| kind == self);
        index.expect("every combination is listed") as u8 + 1
    }
}

/// Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Change of this host's registration.
    pub action: RegisterAction,
    /// Change of the persistence; `None` for no change (CPTPL).
    pub persist: Option<bool>,
}

/// Change of a registration (RREGA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Register a key.
    Register {
        /// NRKEY: the key.
        key: u64,
    },
    /// Remove the registration.
    Unregister {
        /// CRKEY: the registered key; `None` if it need not match.
        current: Option<u64>,
    },
    /// Replace the key.
    Replace {
        /// CRKEY: the registered key; `None` if it need not match.
        current: Option<u64>,
        /// NRKEY: the new key.
        key: u64,
    },
}

wire! {
    /// Data of Reservation Register.
    pub struct RegisterData [16] {
        0 => pub current: U64, "CRKEY: the registered key.";
        8 => pub key: U64, "NRKEY: the new key.";
    }

    /// Data of Reservation Acquire.
    pub struct AcquireData [16] {
        0 => pub current: U64, "CRKEY: the registered key.";
        8 => pub preempted: U64, "PRKEY: key of the registrations to preempt.";
    }
}

impl Register {
    /// Parses `command` and its `data`.
    ///
    /// # Errors
    /// Invalid Field for reserved values; Data SGL Length Invalid for short data.
    pub fn parse(command: &Sqe, data: &[u8]) -> Result<Self, Status> {
        let options = command.cdw10.get();
        let data = RegisterData::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let current = (options & IGNORE_KEY == 0).then_some(data.current.get());
        let action = match options & 7 {
            0 => RegisterAction::Register { key: data.key.get() },
            1 => RegisterAction::Unregister { current },
            2 => RegisterAction::Replace { current, key: data.key.get() },
            _ => return Err(INVALID),
        };
        let persist = match options >> 30 {
            0 => None,
            2 => Some(false),
            3 => Some(true),
            _ => return Err(INVALID),
        };
        Ok(Self { action, persist })
    }
}

/// Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Acquire or preempt.
    pub action: AcquireAction,
    /// RTYPE: type of the new reservation.
    pub kind: ReservationType,
    /// CRKEY: the registered key of this host.
    pub current: u64,
}

/// Kind of an acquisition (RACQA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireAction {
    /// Take a reservation that is free.
    Acquire,
    /// Preempt, or Preempt and Abort. Both here wait for the commands of the preempted hosts.
    Preempt {
        /// PRKEY: key of the registrations to remove.
        key: u64,
    },
}

impl Acquire {
    /// Parses `command` and its `data`.
    ///
    /// # Errors
    /// Invalid Field for reserved values and for Ignore Existing Key; Data SGL Length Invalid for
    /// short data.
    pub fn parse(command: &Sqe, data: &[u8]) -> Result<Self, Status> {
        let options = command.cdw10.get();
        let data = AcquireData::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let kind = ReservationType::from_code((options >> 8) as u8).ok_or(INVALID)?;
        let action = match options & 7 {
            _ if options & IGNORE_KEY != 0 => return Err(INVALID),
            0 => AcquireAction::Acquire,
            1 | 2 => AcquireAction::Preempt { key: data.preempted.get() },
            _ => return Err(INVALID),
        };
        Ok(Self { action, kind, current: data.current.get() })
    }
}

/// Reservation Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Release or clear.
    pub action: ReleaseAction,
    /// CRKEY: the registered key of this host.
    pub current: u64,
}

/// Kind of a release (RRELA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Release the reservation of this type.
    Release(ReservationType),
    /// Release the reservation, and remove all registrations.
    Clear,
}

impl Release {
    /// Length of its data, bytes: CRKEY.
    pub const DATA_BYTES: usize = 8;

    /// Parses `command` and its `data`.
    ///
    /// # Errors
    /// Invalid Field for reserved values and for Ignore Existing Key; Data SGL Length Invalid for
    /// short data.
    pub fn parse(command: &Sqe, data: &[u8]) -> Result<Self, Status> {
        let options = command.cdw10.get();
        let current = <[u8; Self::DATA_BYTES]>::view(data);
        let current = u64::from_le_bytes(*current.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?);
        let action = match options & 7 {
            _ if options & IGNORE_KEY != 0 => return Err(INVALID),
            0 => {
                let kind = ReservationType::from_code((options >> 8) as u8);
                ReleaseAction::Release(kind.ok_or(INVALID)?)
            }
            1 => ReleaseAction::Clear,
            _ => return Err(INVALID),
        };
        Ok(Self { action, current })
    }
}

wire! {
    /// Header of the data of Reservation Report, extended (Base 2.0 7.5).
    pub struct ReportHeader [64] {
        0 => pub generation: U32, "GEN: number of changes of registrations.";
        4 => pub kind: u8, "RTYPE: type of the reservation, 0 without one.";
        /// REGCTL: number of registrants. Unaligned, hence in bytes.
        5 => pub registrants: U16;
        7 => pub _reserved7: [u8; 2];
        9 => pub persists: u8, "PTPLS: 1 if registrations persist through power loss.";
        10 => pub _reserved10: [u8; 54];
    }

    /// Registrant in the data of Reservation Report, extended.
    pub struct ReportRegistrant [64] {
        0 => pub controller: U16, "CNTLID: FFFFh in the dynamic controller model.";
        2 => pub status: u8, "RCSTS: bit 0, holds the reservation.";
        3 => pub _reserved3: [u8; 5];
        8 => pub key: U64, "RKEY: its key.";
        16 => pub host_id: [u8; 16], "HOSTID.";
        32 => pub _reserved32: [u8; 32];
    }
}

/// Reservation Report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// NUMD: bytes that the host asks for, 4 to 16 GiB.
    pub data_bytes: u64,
}

impl ReservationReport {
    /// Parses `command`.
    ///
    /// # Errors
    /// Host Identifier Inconsistent Format without Extended Data Structure: hosts have 128-bit
    /// identifiers over fabrics.
    pub fn parse(command: &Sqe) -> Result<Self, Status> {
        if command.cdw11.get() & EXTENDED == 0 {
            return Err(Status::HOST_ID_INCONSISTENT.dnr());
        }
        Ok(Self { data_bytes: (u64::from(command.cdw10.get()) + 1) * 4 })
    }
}

impl Sqe {
    /// Reservation Register, Acquire or Release of namespace `nsid` with `options` in dword 10 and
    /// its data at `data`.
    pub fn reservation(
        opcode: IoOpcode,
        cid: u16,
        nsid: u32,
        options: u32,
        data: SglDescriptor,
    ) -> Self {
        Self { cdw10: U32::new(options), ..Self::new(opcode.0, cid, nsid, data) }
    }

    /// Reservation Report of `data_bytes` bytes, a multiple of 4, in the extended format.
    pub fn reservation_report(cid: u16, nsid: u32, data_bytes: u32) -> Self {
        let data = SglDescriptor::transport(data_bytes);
        let report = Self::new(IoOpcode::RESERVATION_REPORT.0, cid, nsid, data);
        Self { cdw10: U32::new(data_bytes / 4 - 1), cdw11: U32::new(EXTENDED), ..report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(options: u32) -> Sqe {
        let data = SglDescriptor::in_capsule(16);
        Sqe::reservation(IoOpcode::RESERVATION_REGISTER, 1, 1, options, data)
    }

    fn keys(first: u64, second: u64) -> Vec<u8> {
        [first.to_le_bytes(), second.to_le_bytes()].concat()
    }

    #[test]
    fn reservation_types_match_their_codes() {
        for code in 1..=6 {
            assert_eq!(ReservationType::from_code(code).unwrap().code(), code);
        }
        assert_eq!(ReservationType::from_code(0), None);
        assert_eq!(ReservationType::from_code(7), None);
    }

    #[test]
    fn register_options_are_parsed() {
        let parse = |options| Register::parse(&command(options), &keys(1, 2));
        let (register, replace) = (
            RegisterAction::Register { key: 2 },
            RegisterAction::Replace { current: None, key: 2 },
        );
        assert_eq!(parse(0), Ok(Register { action: register, persist: None }));
        let unregister = RegisterAction::Unregister { current: Some(1) };
        assert_eq!(parse(1 | 3 << 30), Ok(Register { action: unregister, persist: Some(true) }));
        assert_eq!(parse(2 | 8 | 2 << 30), Ok(Register { action: replace, persist: Some(false) }));
        assert_eq!(parse(3), Err(INVALID));
        assert_eq!(parse(1 << 30), Err(INVALID));
        let short = Register::parse(&command(0), &[0; 15]);
        assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    }

    #[test]
    fn acquire_and_release_refuse_ignored_keys() {
        let data = keys(1, 2);
        let acquire = |options| Acquire::parse(&command(options), &data);
        let kind = ReservationType::from_code(3).unwrap();
        let preempt = AcquireAction::Preempt { key: 2 };
        assert_eq!(acquire(2 | 3 << 8), Ok(Acquire { action: preempt, kind, current: 1 }));
        assert_eq!(acquire(1 | 8 | 3 << 8), Err(INVALID));
        assert_eq!(acquire(1), Err(INVALID));
        let release = |options| Release::parse(&command(options), &data);
        assert_eq!(release(1), Ok(Release { action: ReleaseAction::Clear, current: 1 }));
        assert_eq!(release(0), Err(INVALID));
        assert_eq!(release(1 | 8), Err(INVALID));
    }

    #[test]
    fn report_needs_the_extended_format() {
        let mut report = Sqe::reservation_report(1, 1, 128);
        assert_eq!(ReservationReport::parse(&report), Ok(ReservationReport { data_bytes: 128 }));
        report.cdw11 = U32::ZERO;
        assert_eq!(ReservationReport::parse(&report), Err(Status::HOST_ID_INCONSISTENT.dnr()));
    }

    proptest! {
        #[test]
        fn any_reservation_command_parses_or_fails(
            options: u32,
            data in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let command = command(options);
            let _ = Register::parse(&command, &data);
            let _ = Acquire::parse(&command, &data);
            let _ = Release::parse(&command, &data);
            let _ = ReservationReport::parse(&command);
        }
    }
}
