//! Fabrics commands: opcode 7Fh, on any queue (Base 6).

use super::{Cqe, FLAGS_SGL, Sqe};
use crate::limits::CONNECT_DATA_BYTES;
use crate::nqn::{Nqn, NqnError};
use crate::opcode::FabricsType;
use crate::property::{Property, PropertySize};
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U16, U32, U64, wire};
use core::mem::offset_of;

/// Connect: any controller of the subsystem, created for this host (dynamic controller model).
pub const CONTROLLER_ID_DYNAMIC: u16 = 0xffff;
/// The largest identifier of a controller: FFF0h and above are reserved.
pub const CONTROLLER_ID_MAX: u16 = 0xffef;

wire! {
    /// Connect, the command (Base 6.3).
    pub struct ConnectCommand [64] {
        0 => pub opcode: u8, "7Fh.";
        1 => pub flags: u8, "Bits 7:6 01b, the rest reserved.";
        2 => pub cid: U16, "Command identifier.";
        4 => pub fabrics_type: u8, "01h.";
        5 => pub _reserved5: [u8; 19];
        24 => pub data: SglDescriptor, "Location of its data: in the capsule.";
        40 => pub record_format: U16, "RECFMT: record format, 0.";
        42 => pub qid: U16, "QID: queue to create; 0 is the admin queue.";
        44 => pub sqsize_0based: U16, "SQSIZE: entries of the queue, 0's based; 0 is invalid.";
        46 => pub attributes: u8, "CATTR: bit 2 disables flow control of the submission queue.";
        47 => pub _reserved47: u8;
        /// KATO: keep alive timeout, milliseconds; 0 is none. Valid for the admin queue only.
        48 => pub keep_alive_ms: U32;
        52 => pub _reserved52: [u8; 12];
    }

    /// Connect, the data (Base 6.3).
    pub struct ConnectData [1024] {
        0 => pub host_id: [u8; 16], "HOSTID: 128 bits, not 0.";
        16 => pub controller_id: U16, "CNTLID: requested controller.";
        18 => pub _reserved18: [u8; 238];
        256 => pub subnqn: [u8; 256], "SUBNQN: subsystem.";
        512 => pub hostnqn: [u8; 256], "HOSTNQN: host.";
        768 => pub _reserved768: [u8; 256];
    }

    /// Property Get and Property Set (Base 6.5, 6.6).
    pub struct PropertyCommand [64] {
        0 => pub opcode: u8, "7Fh.";
        1 => pub flags: u8, "Bits 7:6 01b, the rest reserved.";
        2 => pub cid: U16, "Command identifier.";
        4 => pub fabrics_type: u8, "04h get, 00h set.";
        5 => pub _reserved5: [u8; 35];
        40 => pub attributes: u8, "ATTRIB: size code in bits 2:0.";
        41 => pub _reserved41: [u8; 3];
        44 => pub offset: U32, "OFST: byte offset of the property.";
        48 => pub value: U64, "VALUE of a set; in its low 4 bytes if the property has 4.";
        56 => pub _reserved56: [u8; 8];
    }

    /// Authentication Send and Authentication Receive (Base 6.1, 6.2).
    pub struct AuthenticationCommand [64] {
        0 => pub opcode: u8, "7Fh.";
        1 => pub flags: u8, "Bits 7:6 01b, the rest reserved.";
        2 => pub cid: U16, "Command identifier.";
        4 => pub fabrics_type: u8, "05h send, 06h receive.";
        5 => pub _reserved5: [u8; 19];
        24 => pub data: SglDescriptor, "Location of the message.";
        40 => pub _reserved40: u8;
        41 => pub spsp0: u8, "SPSP0: 01h.";
        42 => pub spsp1: u8, "SPSP1: 01h.";
        43 => pub security_protocol: u8, "SECP: E9h.";
        44 => pub message_bytes: U32, "TL or AL: bytes of the message, or of the room for it.";
        48 => pub _reserved48: [u8; 16];
    }
}

/// SECP of NVMe over Fabrics authentication.
const SECURITY_PROTOCOL: u8 = 0xe9;
/// SPSP0 and SPSP1 of authentication.
const SECURITY_SPECIFIC: u8 = 1;

/// Connect: CATTR bit 2, no flow control of the submission queue.
const DISABLE_FLOW_CONTROL: u8 = 1 << 2;

/// A field of Connect with an invalid value, for Connect Invalid Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectField {
    /// Queue identifier.
    Qid,
    /// Queue size.
    SqSize,
    /// Attributes.
    Attributes,
    /// Keep alive timeout.
    KeepAlive,
    /// Host identifier.
    HostId,
    /// Controller identifier.
    ControllerId,
    /// Name of the subsystem.
    SubNqn,
    /// Name of the host.
    HostNqn,
}

impl core::fmt::Display for ConnectField {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Qid => "queue identifier",
            Self::SqSize => "queue size",
            Self::Attributes => "attributes",
            Self::KeepAlive => "keep alive timeout",
            Self::HostId => "host identifier",
            Self::ControllerId => "controller identifier",
            Self::SubNqn => "subsystem name",
            Self::HostNqn => "host name",
        })
    }
}

impl ConnectField {
    const ALL: [Self; 8] = [
        Self::Qid,
        Self::SqSize,
        Self::Attributes,
        Self::KeepAlive,
        Self::HostId,
        Self::ControllerId,
        Self::SubNqn,
        Self::HostNqn,
    ];

    /// Result of the completion, dword 0: IPO, the byte offset of the field, in bits 15:0, and
    /// IATTR, whether it is in the data, in bit 16.
    pub const fn result(self) -> u32 {
        const IN_DATA: u32 = 1 << 16;
        match self {
            Self::Qid => offset_of!(ConnectCommand, qid) as u32,
            Self::SqSize => offset_of!(ConnectCommand, sqsize_0based) as u32,
            Self::Attributes => offset_of!(ConnectCommand, attributes) as u32,
            Self::KeepAlive => offset_of!(ConnectCommand, keep_alive_ms) as u32,
            Self::HostId => offset_of!(ConnectData, host_id) as u32 | IN_DATA,
            Self::ControllerId => offset_of!(ConnectData, controller_id) as u32 | IN_DATA,
            Self::SubNqn => offset_of!(ConnectData, subnqn) as u32 | IN_DATA,
            Self::HostNqn => offset_of!(ConnectData, hostnqn) as u32 | IN_DATA,
        }
    }

    /// Parses a result; `None` if it reports no field.
    pub fn from_result(dw0: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.result() == dw0)
    }

    /// The completion of command `cid` that reports the field.
    pub fn completion(self, cid: u16) -> Cqe {
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        Cqe::with_result(cid, status, u64::from(self.result()))
    }
}

impl ConnectCommand {
    /// Views the command as a Connect. The caller checks its opcode and type.
    pub fn of(command: &Sqe) -> &Self {
        zerocopy::transmute_ref!(command)
    }

    /// Connect of queue `qid` with `entries` entries (2 to 65,536), with 1024 bytes of data in the
    /// capsule. Flow control of the submission queue is off unless `flow_control`. `keep_alive_ms`
    /// is for the admin queue, 0 is none. `None` if `entries` is out of range.
    pub fn new(
        cid: u16,
        qid: u16,
        entries: u32,
        keep_alive_ms: u32,
        flow_control: bool,
    ) -> Option<Self> {
        if !(2..=0x1_0000).contains(&entries) {
            return None;
        }
        Some(Self {
            opcode: FabricsType::OPCODE,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            fabrics_type: FabricsType::CONNECT.0,
            data: SglDescriptor::in_capsule(CONNECT_DATA_BYTES as u32),
            qid: U16::new(qid),
            sqsize_0based: U16::new((entries - 1) as u16),
            attributes: if flow_control { 0 } else { DISABLE_FLOW_CONTROL },
            keep_alive_ms: U32::new(keep_alive_ms),
            ..Self::default()
        })
    }

    /// The command in the common format.
    pub fn command(self) -> Sqe {
        zerocopy::transmute!(self)
    }

    /// Whether the host ignores the free entries of the submission queue: SQHD of completions is
    /// then reserved.
    pub const fn disables_flow_control(&self) -> bool {
        self.attributes & DISABLE_FLOW_CONTROL != 0
    }

    /// Checks the fields that do not depend on subsystem or controller: record format and queue
    /// size.
    ///
    /// # Errors
    /// The completion that refuses the command.
    pub fn check(&self) -> Result<(), Cqe> {
        if self.record_format.get() != 0 {
            let status = Status::CONNECT_INCOMPATIBLE_FORMAT.dnr();
            return Err(Cqe::new(self.cid.get(), status));
        }
        if self.sqsize_0based.get() == 0 {
            return Err(ConnectField::SqSize.completion(self.cid.get()));
        }
        Ok(())
    }
}

impl ConnectData {
    /// Data of a Connect of host `hostnqn` with `host_id` to controller `controller_id` of
    /// `subnqn`.
    pub fn new(host_id: [u8; 16], controller_id: u16, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            host_id,
            controller_id: U16::new(controller_id),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::default()
        }
    }

    /// Name of the subsystem.
    ///
    /// # Errors
    /// The field is not a valid name: Connect Invalid Parameters, [`ConnectField::SubNqn`].
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Name of the host.
    ///
    /// # Errors
    /// The field is not a valid name: Connect Invalid Parameters, [`ConnectField::HostNqn`].
    pub fn hostnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.hostnqn)
    }

    /// Checks names and host identifier, and returns the names: subsystem, host. A host may leave
    /// its name empty: `None`.
    ///
    /// # Errors
    /// The first invalid field, in the order of the structure.
    pub fn check(&self) -> Result<(Nqn, Option<Nqn>), ConnectField> {
        if self.host_id == [0; 16] {
            return Err(ConnectField::HostId);
        }
        let subnqn = self.subnqn().map_err(|_| ConnectField::SubNqn)?;
        match self.hostnqn() {
            Ok(hostnqn) => Ok((subnqn, Some(hostnqn))),
            Err(NqnError::Empty) => Ok((subnqn, None)),
            Err(_) => Err(ConnectField::HostNqn),
        }
    }
}

/// Result of a successful Connect (Base 6.3.1), dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller of the queue.
    pub controller_id: u16,
    /// ATR: authentication is required before other commands.
    pub authentication_required: bool,
    /// ASCR: authentication and a secure channel are required.
    pub secure_channel_required: bool,
}

impl ConnectResult {
    /// Dword 0 of the completion.
    pub const fn to_dw0(self) -> u32 {
        self.controller_id as u32
            | (self.authentication_required as u32) << 17
            | (self.secure_channel_required as u32) << 18
    }

    /// Parses dword 0 of the completion.
    pub const fn from_dw0(dw0: u32) -> Self {
        Self {
            controller_id: dw0 as u16,
            authentication_required: dw0 & (1 << 17) != 0,
            secure_channel_required: dw0 & (1 << 18) != 0,
        }
    }
}

impl PropertyCommand {
    /// Views the command as a Property Get or Set. The caller checks its opcode and type.
    pub fn of(command: &Sqe) -> &Self {
        zerocopy::transmute_ref!(command)
    }

    /// Property Get.
    pub fn get(cid: u16, property: Property, size: PropertySize) -> Self {
        Self {
            opcode: FabricsType::OPCODE,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            fabrics_type: FabricsType::PROPERTY_GET.0,
            attributes: size.0 & 7,
            offset: U32::new(property.0),
            ..Self::default()
        }
    }

    /// Property Set.
    pub fn set(cid: u16, property: Property, size: PropertySize, value: u64) -> Self {
        Self {
            fabrics_type: FabricsType::PROPERTY_SET.0,
            value: U64::new(value),
            ..Self::get(cid, property, size)
        }
    }

    /// The command in the common format.
    pub fn command(self) -> Sqe {
        zerocopy::transmute!(self)
    }

    /// Property of the command.
    pub const fn property(&self) -> Property {
        Property(self.offset.get())
    }

    /// Its size code.
    pub const fn size(&self) -> PropertySize {
        PropertySize(self.attributes & 7)
    }

    /// Value of a set, truncated to the size of the command.
    pub const fn set_value(&self) -> u64 {
        match self.size().bytes() {
            Some(4) => self.value.get() & 0xffff_ffff,
            _ => self.value.get(),
        }
    }
}

impl AuthenticationCommand {
    /// Views the command as an authentication command. The caller checks its opcode and type.
    pub fn of(command: &Sqe) -> &Self {
        zerocopy::transmute_ref!(command)
    }

    /// Sends a message of `message_bytes` bytes, which is in the capsule.
    pub fn send(cid: u16, message_bytes: u32) -> Self {
        Self {
            opcode: FabricsType::OPCODE,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            fabrics_type: FabricsType::AUTHENTICATION_SEND.0,
            data: SglDescriptor::in_capsule(message_bytes),
            spsp0: SECURITY_SPECIFIC,
            spsp1: SECURITY_SPECIFIC,
            security_protocol: SECURITY_PROTOCOL,
            message_bytes: U32::new(message_bytes),
            ..Self::default()
        }
    }

    /// Fetches a message of at most `room_bytes` bytes.
    pub fn receive(cid: u16, room_bytes: u32) -> Self {
        Self {
            fabrics_type: FabricsType::AUTHENTICATION_RECEIVE.0,
            data: SglDescriptor::transport(room_bytes),
            ..Self::send(cid, room_bytes)
        }
    }

    /// The command in the common format.
    pub fn command(self) -> Sqe {
        zerocopy::transmute!(self)
    }

    /// Bytes of the message, or of the room for it.
    ///
    /// # Errors
    /// Invalid Field: another security protocol, or a length that is 0 or contradicts the data
    /// pointer.
    pub fn check(&self) -> Result<u32, Status> {
        let bytes = self.message_bytes.get();
        let known = self.security_protocol == SECURITY_PROTOCOL
            && (self.spsp0, self.spsp1) == (SECURITY_SPECIFIC, SECURITY_SPECIFIC);
        match known && bytes > 0 && bytes == self.data.data_bytes.get() {
            true => Ok(bytes),
            false => Err(Status::INVALID_FIELD),
        }
    }
}

impl Sqe {
    /// Disconnect of the I/O queue on which it is sent (Base 6.4).
    pub fn disconnect(cid: u16) -> Self {
        let nsid = u32::from(FabricsType::DISCONNECT.0);
        Self::new(FabricsType::OPCODE, cid, nsid, SglDescriptor::transport(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    fn names() -> (Nqn, Nqn) {
        (Nqn::new("nqn.2024-01.example:volume").unwrap(), Nqn::from_uuid([7; 16]))
    }

    #[test]
    fn connect_layout_matches_specification() {
        let connect = ConnectCommand::new(5, 3, 128, 0, false).unwrap().command();
        assert_eq!(connect.fabrics_type(), Some(FabricsType::CONNECT));
        assert_eq!(connect.check_flags(), Ok(()));
        assert_eq!(connect.bytes()[40..48], [0, 0, 3, 0, 127, 0, 4, 0]);
        assert_eq!(connect.data, SglDescriptor::in_capsule(1024));
        assert!(ConnectCommand::of(&connect).disables_flow_control());
        for entries in [0, 1, 65_537] {
            assert!(ConnectCommand::new(5, 3, entries, 0, false).is_none());
        }
    }

    #[test]
    fn connect_refusals_point_at_their_field() {
        let good = ConnectCommand::new(9, 0, 32, 15_000, true).unwrap();
        assert_eq!(good.check(), Ok(()));
        let mut format = good;
        format.record_format = U16::new(1);
        let refused = format.check().unwrap_err();
        assert_eq!(refused.status(), Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
        let mut size = good;
        size.sqsize_0based = U16::ZERO;
        let refused = size.check().unwrap_err();
        assert_eq!(refused.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
        assert_eq!((refused.dw0.get(), refused.cid.get()), (44, 9));
        assert_eq!(ConnectField::from_result(0), None);
        for (field, dw0) in [
            (ConnectField::Qid, 42),
            (ConnectField::SqSize, 44),
            (ConnectField::Attributes, 46),
            (ConnectField::KeepAlive, 48),
            (ConnectField::HostId, 0x1_0000),
            (ConnectField::ControllerId, 0x1_0010),
            (ConnectField::SubNqn, 0x1_0100),
            (ConnectField::HostNqn, 0x1_0200),
        ] {
            assert_eq!(field.result(), dw0, "{field:?}");
            assert_eq!(ConnectField::from_result(dw0), Some(field));
        }
    }

    #[test]
    fn connect_data_is_checked_field_by_field() {
        let (subnqn, hostnqn) = names();
        let good = ConnectData::new([1; 16], CONTROLLER_ID_DYNAMIC, &subnqn, &hostnqn);
        assert_eq!(good.check(), Ok((subnqn, Some(hostnqn))));
        let mut nameless = good;
        nameless.hostnqn[0] = 0;
        assert_eq!(nameless.check(), Ok((subnqn, None)));
        let mut bad = good;
        bad.host_id = [0; 16];
        assert_eq!(bad.check(), Err(ConnectField::HostId));
        let mut bad = good;
        bad.subnqn = [b'x'; 256];
        assert_eq!(bad.check(), Err(ConnectField::SubNqn));
        let mut bad = good;
        bad.hostnqn[0] = b'x';
        assert_eq!(bad.check(), Err(ConnectField::HostNqn));
    }

    #[test]
    fn authentication_commands_are_checked() {
        let send = AuthenticationCommand::send(3, 72);
        assert_eq!(send.bytes()[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(send.command().fabrics_type(), Some(FabricsType::AUTHENTICATION_SEND));
        assert_eq!(send.command().check_flags(), Ok(()));
        assert_eq!(AuthenticationCommand::of(&send.command()).check(), Ok(72));
        let receive = AuthenticationCommand::receive(3, 4096);
        assert_eq!(receive.command().fabrics_type(), Some(FabricsType::AUTHENTICATION_RECEIVE));
        assert_eq!(receive.check(), Ok(4096));
        let wrong: [fn(&mut AuthenticationCommand); 4] = [
            |command| command.security_protocol = 0,
            |command| command.spsp0 = 0,
            |command| command.spsp1 = 2,
            |command| command.message_bytes = U32::new(73),
        ];
        for change in wrong {
            let mut command = send;
            change(&mut command);
            assert_eq!(command.check(), Err(Status::INVALID_FIELD));
        }
        assert_eq!(AuthenticationCommand::send(3, 0).check(), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn four_byte_property_set_has_four_bytes() {
        let set = PropertyCommand::set(1, Property::CC, PropertySize::FOUR, u64::MAX);
        assert_eq!(PropertyCommand::of(&set.command()).set_value(), 0xffff_ffff);
        assert_eq!(set.command().fabrics_type(), Some(FabricsType::PROPERTY_SET));
        let get = PropertyCommand::get(1, Property::CAP, PropertySize::EIGHT).command();
        assert_eq!(get.fabrics_type(), Some(FabricsType::PROPERTY_GET));
        assert_eq!(PropertyCommand::of(&get).property(), Property::CAP);
        assert_eq!(PropertyCommand::of(&get).size(), PropertySize::EIGHT);
        assert_eq!(Sqe::disconnect(1).fabrics_type(), Some(FabricsType::DISCONNECT));
        assert_eq!(Sqe::flush(1, 1).fabrics_type(), None);
    }

    proptest! {
        #[test]
        fn connect_result_round_trips(controller_id: u16, atr: bool, ascr: bool) {
            let result = ConnectResult {
                controller_id,
                authentication_required: atr,
                secure_channel_required: ascr,
            };
            prop_assert_eq!(ConnectResult::from_dw0(result.to_dw0()), result);
        }

        #[test]
        fn any_bytes_parse_or_fail(command: [u8; 64], data in prop::collection::vec(any::<u8>(), 1024)) {
            let command = Sqe::view(&command).unwrap();
            let _ = ConnectCommand::of(command).check();
            let _ = PropertyCommand::of(command).set_value();
            let _ = ConnectData::view(&data).unwrap().check();
        }
    }
}
