//! Requests to a replica: admin commands, and the data of those with data.

use super::reservations::ReservationPage;
use super::snapshot::{Snapshot, SnapshotAction, SnapshotCommand};
use super::{
    ANCESTORS, ANCESTORS_BYTES, ATTACH_BYTES, BITMAP_BYTES, CHECK_BYTES, CHECK_UNIT_MIN_BYTES,
    DATA_MAX_BYTES, IDENTIFY_BYTES, RESERVATION_PAGE_BYTES, SNAPSHOT_BYTES, admin,
};
use crate::command::Sqe;
use crate::opcode::{AdminOpcode, DataDirection};
use crate::sgl::SglDescriptor;
use crate::status::Status;
use crate::wire::{U16, U32, U64, Wire, wire};

wire! {
    /// Data of Replica Attach.
    pub struct Attach [64] {
        0 => pub volume: [u8; 16], "UUID of the volume.";
        16 => pub source: [u8; 16], "UUID of the source's replica.";
        32 => pub epoch: U64, "The source's epoch.";
        /// Generation of the target's data on which the source based its decision.
        40 => pub expected: U64;
        48 => flags: U32, "Bit 0: both are in sync. Bit 1: the source asks the arbiter.";
        52 => version: U16, "Version of the link protocol chosen by the source; 0 means 2.";
        54 => pub group: U16, "Tag of the consistency group; 0 without one.";
        /// Size of the volume at the source, in bytes; 0 if not reported.
        56 => pub usable_bytes: U64;
    }
}

/// Both are in sync.
const IN_SYNC: u32 = 1;
/// The source runs degraded without the target only if the arbiter's record allows it.
const ASKS: u32 = 1 << 1;
/// Version of a request without a version: targets of that version refuse requests with one.
const IMPLIED_VERSION: u16 = 2;

impl Attach {
    /// An attach request: volume, source, epoch, and expected generation.
    pub fn new(
        volume: [u8; 16],
        source: [u8; 16],
        epoch: u64,
        expected: u64,
        in_sync: bool,
    ) -> Attach {
        Attach {
            volume,
            source,
            epoch: U64::new(epoch),
            expected: U64::new(expected),
            flags: U32::new(if in_sync { IN_SYNC } else { 0 }),
            version: U16::ZERO,
            group: U16::ZERO,
            usable_bytes: U64::ZERO,
        }
    }

    /// Sets the tag of the consistency group.
    #[must_use]
    pub fn of_group(self, group: u16) -> Attach {
        Attach { group: U16::new(group), ..self }
    }

    /// Sets the version of the link protocol.
    pub fn of_version(self, version: u16) -> Attach {
        let version = if version == IMPLIED_VERSION { 0 } else { version };
        Attach { version: U16::new(version), ..self }
    }

    /// Version of the link protocol chosen by the source.
    pub const fn version(&self) -> u16 {
        match self.version.get() {
            0 => IMPLIED_VERSION,
            version => version,
        }
    }

    /// Sets the size of the volume at the source, in bytes.
    pub fn of_size(self, usable_bytes: u64) -> Attach {
        Attach { usable_bytes: U64::new(usable_bytes), ..self }
    }

    /// Sets whether the source needs the permission of the arbiter to run degraded without the
    /// target.
    pub fn asking(self, asks: bool) -> Attach {
        let flags = self.flags.get() & !ASKS | if asks { ASKS } else { 0 };
        Attach { flags: U32::new(flags), ..self }
    }

    /// True if the source needs the permission of the arbiter to run degraded without the target.
    pub const fn asks(&self) -> bool {
        self.flags.get() & ASKS != 0
    }

    /// The source decided that both are in sync.
    pub const fn in_sync(&self) -> bool {
        self.flags.get() & IN_SYNC != 0
    }

    fn check(&self) -> Result<(), Status> {
        let named = self.volume != [0; 16] && self.source != [0; 16];
        let rest = self.flags.get() & !(IN_SYNC | ASKS) == 0;
        if named && rest { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
    }
}

wire! {
    /// Data of Replica Ancestors.
    pub struct Ancestors [128] {
        /// Earlier generations of the source's data, newest first; 0 fills the rest.
        0 => pub generations: [U64; ANCESTORS];
    }
}

impl Ancestors {
    /// Creates the data from these generations.
    pub fn new(generations: [u64; ANCESTORS]) -> Ancestors {
        Ancestors { generations: generations.map(U64::new) }
    }
}

/// State set by Replica Set State.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// A resync begins: the data is inconsistent.
    BeginResync = 1,
    /// The resync has completed: flush, and take over the generation.
    EndResync = 2,
    /// In sync, with a new generation.
    NewGeneration = 3,
}

impl StateChange {
    const fn of(code: u32) -> Option<StateChange> {
        match code {
            1 => Some(StateChange::BeginResync),
            2 => Some(StateChange::EndResync),
            3 => Some(StateChange::NewGeneration),
            _ => None,
        }
    }
}

/// What a source allows its replica in Replica Renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPermission {
    /// Nothing: the arbiter's record does not list the replica as in sync yet.
    Unrecorded {
        /// Highest revision of the record that the source has seen, if it runs degraded without
        /// the replica only if the record allows it.
        asks: Option<u64>,
    },
    /// To ask the arbiter for the role when the source is lost.
    Recorded {
        /// Revision of the record; not 0.
        revision: u64,
        /// Number of its writer.
        writer: u64,
    },
    /// Nothing: the operator has suspended automatic failover.
    Suspended,
    /// Nothing: the replica of an asynchronous mirror is further behind than the source allows.
    Behind,
}

impl LossPermission {
    /// Revision, code, and writer.
    const fn fields(self) -> (u64, u32, u64) {
        match self {
            LossPermission::Unrecorded { asks: None } => (0, 0, 0),
            LossPermission::Unrecorded { asks: Some(revision) } => (revision, 3, 0),
            LossPermission::Recorded { revision, writer } => (revision, 1, writer),
            LossPermission::Suspended => (0, 2, 0),
            LossPermission::Behind => (0, 4, 0),
        }
    }

    const fn of(fields: (u64, u32, u64)) -> Option<LossPermission> {
        match fields {
            (0, 0, 0) => Some(LossPermission::Unrecorded { asks: None }),
            (revision, 3, 0) => Some(LossPermission::Unrecorded { asks: Some(revision) }),
            (1.., 1, writer) => Some(LossPermission::Recorded { revision: fields.0, writer }),
            (0, 2, 0) => Some(LossPermission::Suspended),
            (0, 4, 0) => Some(LossPermission::Behind),
            _ => None,
        }
    }
}

/// A request to a replica. Generations are 64 random bits, 0 for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaRequest {
    /// Requests the state of the replica, for `asker`.
    Identify {
        /// UUID of the requesting replica.
        asker: [u8; 16],
    },
    /// Requests to become the writer.
    Attach {
        /// The data.
        attach: Attach,
        /// Highest revision of the arbiter's record that the source has seen; 0 unless
        /// [`Attach::asks`].
        revision: u64,
    },
    /// Generation history of the source's data.
    Ancestors(Ancestors),
    /// Requests a page of the bitmap.
    Bitmap {
        /// Its number, from 0: its first bit is 32,256 times the number.
        page: u64,
    },
    /// Requests checksums of parts.
    Checksum {
        /// Start, in bytes.
        offset: u64,
        /// Length, in bytes: 4,096 to 1 MiB, a multiple of 4,096.
        len: u32,
        /// Bytes per checksum: at least 4,096, a multiple of it.
        unit_bytes: u32,
    },
    /// Start or end of a resync, or a new generation.
    SetState {
        /// New state.
        state: StateChange,
        /// Generation of the state; may be none only at the start of a resync.
        generation: u64,
    },
    /// Requests that the replica become the source.
    Promote {
        /// Lowest permitted epoch.
        epoch: u64,
        /// The highest revision of the arbiter's record that the sender has seen; 0 for none.
        revision: u64,
        /// The sender's device has failed, or its server stops.
        leaves: bool,
    },
    /// Requests the role of source from the serving replica.
    HandOver,
    /// Announces growth of the volume: zero the new space.
    ZeroNewSpace {
        /// New size, in bytes: not 0, a multiple of 4,096.
        usable_bytes: u64,
    },
    /// Announces that the sender becomes the source although the replica may serve hosts: the
    /// replica stops serving.
    Depose {
        /// UUID of the volume; not none.
        volume: [u8; 16],
        /// Role epoch of the sender.
        epoch: u64,
    },
    /// Announces that the sender becomes the source if the replica serves no hosts.
    Claim {
        /// UUID of the volume; not none.
        volume: [u8; 16],
        /// Role epoch of the sender.
        epoch: u64,
    },
    /// Announces that the sender, a source, removes the replica from the mirror.
    Remove {
        /// UUID of the volume; not none.
        volume: [u8; 16],
        /// Role epoch of the sender.
        epoch: u64,
    },
    /// Orders the writes of this session together with the writes of the group's other members.
    JoinGroup {
        /// Group session; not 0.
        session: u64,
    },
    /// Renews the sender's right to serve reads while the replica is attached to it.
    Renew {
        /// What the replica may do when the source is lost.
        offer: LossPermission,
        /// `failover_after` of the sender, in milliseconds: 1 to [`FAILOVER_AFTER_MAX_MS`].
        failover_after_ms: u32,
        /// Age of the oldest completed write that the replica of an asynchronous mirror lacks, in
        /// milliseconds: 1 to [`LAG_MAX_MS`]; 0 in synchronous mode.
        lag_ms: u32,
    },
    /// Reports one range that a resync could not copy.
    BadRange {
        /// Start, in bytes: a multiple of 4,096.
        offset: u64,
        /// Length, in bytes: not 0, a multiple of 4,096.
        len: u64,
        /// Position in the list of such ranges, from 0; less than `count`.
        index: u16,
        /// Length of the list.
        count: u16,
    },
    /// Requests that the replica run degraded, without the sender's device.
    RunDegraded {
        /// UUID of the lost replica.
        lost: [u8; 16],
        /// The new generation; not none.
        generation: u64,
    },
    /// An order on a snapshot of the replica.
    Snapshot {
        /// Its identifier and name.
        snapshot: Snapshot,
        /// What to do.
        command: SnapshotCommand,
    },
    /// Requests the lowest identifiers above one, of the replica's snapshots.
    Snapshots {
        /// 0 for the first ones.
        after: [u8; 16],
    },
    /// A page of the record of the volume's reservations.
    Reservations(ReservationPage),
    /// Requests that the replica discard its data.
    Discard {
        /// Last common generation, or none.
        base: u64,
        /// Generation of the replica as last seen.
        expected: u64,
    },
}

/// Longest `failover_after`, in milliseconds: an hour.
pub const FAILOVER_AFTER_MAX_MS: u32 = 3_600_000;

/// Longest lag in Replica Renew, in milliseconds, which also stands for longer ones.
pub const LAG_MAX_MS: u32 = (1 << 24) - 1;
/// Length of the answer to Replica Renew, in bytes.
pub const READINESS_BYTES: usize = 8;

/// Volume sizes are multiples of this, in bytes.
const SIZE_UNIT_BYTES: u64 = 4096;

/// Invalid Field in Command; a retry cannot succeed.
const INVALID: Status = Status::INVALID_FIELD.dnr();

impl ReplicaRequest {
    /// The opcode, which gives the direction of data.
    pub const fn opcode(&self) -> AdminOpcode {
        match self {
            ReplicaRequest::Identify { .. } => admin::IDENTIFY,
            ReplicaRequest::Attach { .. } => admin::ATTACH,
            ReplicaRequest::Ancestors(_) => admin::ANCESTORS,
            ReplicaRequest::Bitmap { .. } => admin::BITMAP,
            ReplicaRequest::Checksum { .. } => admin::CHECKSUM,
            ReplicaRequest::SetState { .. } => admin::SET_STATE,
            ReplicaRequest::Promote { .. } => admin::PROMOTE,
            ReplicaRequest::HandOver => admin::HAND_OVER,
            ReplicaRequest::ZeroNewSpace { .. } => admin::ZERO_NEW_SPACE,
            ReplicaRequest::BadRange { .. } => admin::BAD_RANGE,
            ReplicaRequest::RunDegraded { .. } => admin::RUN_DEGRADED,
            ReplicaRequest::Depose { .. } => admin::DEPOSE,
            ReplicaRequest::Claim { .. } => admin::CLAIM,
            ReplicaRequest::Remove { .. } => admin::REMOVE,
            ReplicaRequest::JoinGroup { .. } => admin::JOIN_GROUP,
            ReplicaRequest::Renew { .. } => admin::RENEW,
            ReplicaRequest::Snapshot { .. } => admin::SNAPSHOT,
            ReplicaRequest::Snapshots { .. } => admin::SNAPSHOTS,
            ReplicaRequest::Reservations(_) => admin::RESERVATIONS,
            ReplicaRequest::Discard { .. } => admin::DISCARD,
        }
    }

    /// Length of the returned data, in bytes: at most [`super::DATA_MAX_BYTES`].
    pub const fn reply_bytes(&self) -> usize {
        match *self {
            ReplicaRequest::Identify { .. } => IDENTIFY_BYTES,
            ReplicaRequest::Bitmap { .. } => BITMAP_BYTES,
            ReplicaRequest::Snapshots { .. } => DATA_MAX_BYTES,
            ReplicaRequest::Renew { .. } => READINESS_BYTES,
            ReplicaRequest::Checksum { len, unit_bytes, .. } => {
                len.div_ceil(unit_bytes) as usize * 8
            }
            _ => 0,
        }
    }

    /// Length of the sent data of the command `opcode`, in bytes; `None` for other opcodes.
    pub fn sent_bytes(opcode: AdminOpcode) -> Option<usize> {
        match opcode {
            admin::ATTACH => Some(ATTACH_BYTES),
            admin::ANCESTORS => Some(ANCESTORS_BYTES),
            admin::SNAPSHOT => Some(SNAPSHOT_BYTES),
            admin::RESERVATIONS => Some(RESERVATION_PAGE_BYTES),
            other => admin::ALL.contains(&other).then_some(0),
        }
    }

    /// The data that is sent with the command.
    pub fn data(&self) -> &[u8] {
        match self {
            ReplicaRequest::Attach { attach, .. } => attach.bytes(),
            ReplicaRequest::Ancestors(ancestors) => ancestors.bytes(),
            ReplicaRequest::Snapshot { snapshot, .. } => snapshot.bytes(),
            ReplicaRequest::Reservations(page) => page.data(),
            _ => &[],
        }
    }

    /// The command, to namespace `nsid`.
    pub fn command(&self, cid: u16, nsid: u32) -> Sqe {
        let data_bytes = self.data().len().max(self.reply_bytes()) as u32;
        let opcode = self.opcode().0;
        let mut command = Sqe::new(opcode, cid, nsid, SglDescriptor::transport(data_bytes));
        let mut set = |at: usize, bytes: &[u8]| {
            command.parameters_mut()[at..at + bytes.len()].copy_from_slice(bytes)
        };
        match *self {
            ReplicaRequest::Identify { asker } => set(0, &asker),
            ReplicaRequest::Bitmap { page: number }
            | ReplicaRequest::JoinGroup { session: number }
            | ReplicaRequest::ZeroNewSpace { usable_bytes: number } => {
                set(0, &number.to_le_bytes());
            }
            ReplicaRequest::Promote { epoch, revision, leaves } => {
                set(0, &epoch.to_le_bytes());
                set(8, &revision.to_le_bytes());
                set(16, &u32::from(leaves).to_le_bytes());
            }
            ReplicaRequest::Renew { offer, failover_after_ms, lag_ms } => {
                let (revision, code, writer) = offer.fields();
                let code = code | lag_ms.min(LAG_MAX_MS) << 8;
                set(0, &revision.to_le_bytes());
                set(8, &code.to_le_bytes());
                set(12, &failover_after_ms.to_le_bytes());
                set(16, &writer.to_le_bytes());
            }
            ReplicaRequest::Checksum { offset, len, unit_bytes } => {
                set(0, &offset.to_le_bytes());
                set(8, &len.to_le_bytes());
                set(12, &unit_bytes.to_le_bytes());
            }
            ReplicaRequest::SetState { state, generation } => {
                set(0, &(state as u32).to_le_bytes());
                set(8, &generation.to_le_bytes());
            }
            ReplicaRequest::BadRange { offset, len, index, count } => {
                set(0, &offset.to_le_bytes());
                set(8, &len.to_le_bytes());
                set(16, &index.to_le_bytes());
                set(18, &count.to_le_bytes());
            }
            ReplicaRequest::Snapshot { command: SnapshotCommand { action, wait_ms }, .. } => {
                set(0, &(action as u32).to_le_bytes());
                set(4, &wait_ms.to_le_bytes());
            }
            ReplicaRequest::Snapshots { after } => set(0, &after),
            ReplicaRequest::Reservations(ref page) => {
                set(0, &page.number().to_le_bytes());
                set(4, &page.record_bytes().to_le_bytes());
            }
            ReplicaRequest::Attach { revision, .. } => set(0, &revision.to_le_bytes()),
            ReplicaRequest::Ancestors(_) | ReplicaRequest::HandOver => {}
            ReplicaRequest::RunDegraded { lost: uuid, generation: number }
            | ReplicaRequest::Depose { volume: uuid, epoch: number }
            | ReplicaRequest::Claim { volume: uuid, epoch: number }
            | ReplicaRequest::Remove { volume: uuid, epoch: number } => {
                set(0, &uuid);
                set(16, &number.to_le_bytes());
            }
            ReplicaRequest::Discard { base, expected } => {
                set(0, &base.to_le_bytes());
                set(8, &expected.to_le_bytes());
            }
        }
        command
    }

    /// Parses the command and its data.
    ///
    /// # Errors
    /// With do not retry: Invalid Command Opcode for other opcodes; Data SGL Length Invalid for
    /// data that is too short; Invalid Field for a nonzero reserved field or a value out of range.
    pub fn parse(command: &Sqe, data: &[u8]) -> Result<ReplicaRequest, Status> {
        let fields = Fields(command.parameters());
        if command.cdw2.get() != 0 || command.cdw3.get() != 0 {
            return Err(INVALID);
        }
        let (request, used) = match AdminOpcode(command.opcode) {
            admin::IDENTIFY => (ReplicaRequest::Identify { asker: fields.bytes(0) }, 16),
            admin::ATTACH => {
                let attach = Attach::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
                attach.check()?;
                let revision = fields.u64(0);
                if revision != 0 && !attach.asks() {
                    return Err(INVALID);
                }
                (ReplicaRequest::Attach { attach: *attach, revision }, 8)
            }
            admin::ANCESTORS => {
                let ancestors =
                    Ancestors::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
                (ReplicaRequest::Ancestors(*ancestors), 0)
            }
            admin::SNAPSHOT => {
                let snapshot = Snapshot::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
                let action = SnapshotAction::of(fields.u32(0)).ok_or(INVALID)?;
                snapshot.check(action)?;
                let command = SnapshotCommand { action, wait_ms: fields.u32(4) };
                (ReplicaRequest::Snapshot { snapshot: *snapshot, command }, 8)
            }
            admin::SNAPSHOTS => (ReplicaRequest::Snapshots { after: fields.bytes(0) }, 16),
            admin::RESERVATIONS => {
                let page = ReservationPage::parse(fields.u32(0), fields.u32(4), data)?;
                (ReplicaRequest::Reservations(page), 8)
            }
            admin::BITMAP => (ReplicaRequest::Bitmap { page: fields.u64(0) }, 8),
            admin::CHECKSUM => (fields.checksum()?, 16),
            admin::SET_STATE => (fields.set_state()?, 16),
            admin::PROMOTE => {
                let leaves = match fields.u32(16) {
                    0 => false,
                    1 => true,
                    _ => return Err(INVALID),
                };
                (
                    ReplicaRequest::Promote {
                        epoch: fields.u64(0),
                        revision: fields.u64(8),
                        leaves,
                    },
                    20,
                )
            }
            admin::RENEW => {
                let (code, lag_ms) = (fields.u32(8) & 0xff, fields.u32(8) >> 8);
                let offer = (fields.u64(0), code, fields.u64(16));
                let offer = LossPermission::of(offer).ok_or(INVALID)?;
                let failover_after_ms = fields.u32(12);
                if !(1..=FAILOVER_AFTER_MAX_MS).contains(&failover_after_ms) {
                    return Err(INVALID);
                }
                (ReplicaRequest::Renew { offer, failover_after_ms, lag_ms }, 24)
            }
            admin::HAND_OVER => (ReplicaRequest::HandOver, 0),
            admin::ZERO_NEW_SPACE => (fields.zero_new_space()?, 8),
            admin::JOIN_GROUP => match fields.u64(0) {
                0 => return Err(INVALID),
                session => (ReplicaRequest::JoinGroup { session }, 8),
            },
            admin::BAD_RANGE => (fields.bad_range()?, 20),
            admin::RUN_DEGRADED => {
                let (lost, generation) = (fields.bytes(0), fields.u64(16));
                if lost == [0; 16] || generation == 0 {
                    return Err(INVALID);
                }
                (ReplicaRequest::RunDegraded { lost, generation }, 24)
            }
            opcode @ (admin::DEPOSE | admin::CLAIM | admin::REMOVE) => {
                let (volume, epoch) = (fields.bytes(0), fields.u64(16));
                if volume == [0; 16] {
                    return Err(INVALID);
                }
                match opcode {
                    admin::DEPOSE => (ReplicaRequest::Depose { volume, epoch }, 24),
                    admin::CLAIM => (ReplicaRequest::Claim { volume, epoch }, 24),
                    _ => (ReplicaRequest::Remove { volume, epoch }, 24),
                }
            }
            admin::DISCARD => {
                (ReplicaRequest::Discard { base: fields.u64(0), expected: fields.u64(8) }, 16)
            }
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        };
        if fields.0[used..].iter().any(|&byte| byte != 0) {
            return Err(INVALID);
        }
        debug_assert_eq!(
            DataDirection::of(command.opcode) == DataDirection::ControllerToHost,
            request.reply_bytes() > 0
        );
        Ok(request)
    }
}

/// Command dwords 10 to 15.
struct Fields<'a>(&'a [u8; 24]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    fn checksum(&self) -> Result<ReplicaRequest, Status> {
        let (offset, len, unit_bytes) = (self.u64(0), self.u32(8), self.u32(12));
        let part = |bytes: u32| bytes > 0 && bytes.is_multiple_of(CHECK_UNIT_MIN_BYTES);
        if !part(len) || !part(unit_bytes) || u64::from(len) > CHECK_BYTES {
            return Err(INVALID);
        }
        if offset.checked_add(len.into()).is_none() {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        Ok(ReplicaRequest::Checksum { offset, len, unit_bytes })
    }

    fn zero_new_space(&self) -> Result<ReplicaRequest, Status> {
        let usable_bytes = self.u64(0);
        let whole = usable_bytes > 0 && usable_bytes.is_multiple_of(SIZE_UNIT_BYTES);
        if whole { Ok(ReplicaRequest::ZeroNewSpace { usable_bytes }) } else { Err(INVALID) }
    }

    fn bad_range(&self) -> Result<ReplicaRequest, Status> {
        let (offset, len, position) = (self.u64(0), self.u64(8), self.u32(16));
        let (index, count) = (position as u16, (position >> 16) as u16);
        let whole = offset.is_multiple_of(SIZE_UNIT_BYTES) && len.is_multiple_of(SIZE_UNIT_BYTES);
        if !whole || len == 0 || index >= count {
            return Err(INVALID);
        }
        if offset.checked_add(len).is_none() {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        Ok(ReplicaRequest::BadRange { offset, len, index, count })
    }

    fn set_state(&self) -> Result<ReplicaRequest, Status> {
        let state = StateChange::of(self.u32(0)).ok_or(INVALID)?;
        let generation = self.u64(8);
        if self.u32(4) != 0 || (generation == 0 && state != StateChange::BeginResync) {
            return Err(INVALID);
        }
        Ok(ReplicaRequest::SetState { state, generation })
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
