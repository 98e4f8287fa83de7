//! Replica Snapshot: an order on a snapshot of the replica's device, at its place in the order of
//! writes.
//!
//! Invariant: the name is UTF-8 without NUL, padded with NUL.

use super::SNAPSHOT_NAME_BYTES;
use super::order::WritePosition;
use crate::status::Status;
use crate::wire::wire;

wire! {
    /// Data of Replica Snapshot.
    pub struct Snapshot [144] {
        0 => pub id: [u8; 16], "UUID of the snapshot, on all replicas; not 0.";
        16 => name: [u8; SNAPSHOT_NAME_BYTES], "Its name, padded with NUL.";
    }
}

impl Snapshot {
    /// The data; `None` for a name that is empty, too long, or has a NUL.
    pub fn new(id: [u8; 16], name: &str) -> Option<Snapshot> {
        if !(1..=SNAPSHOT_NAME_BYTES).contains(&name.len()) || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; SNAPSHOT_NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Snapshot { id, name: bytes })
    }

    /// The name; empty if it is invalid, which no parsed request has.
    pub fn name(&self) -> &str {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        std::str::from_utf8(&self.name[..len]).unwrap_or_default()
    }

    pub(super) fn check(&self) -> Result<(), Status> {
        let name = self.name();
        let padded = self.name[name.len()..].iter().all(|byte| *byte == 0);
        let sound = self.id != [0; 16] && !name.is_empty() && padded;
        if sound { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
    }
}

/// What to do with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Check that it could be taken.
    Check = 1,
    /// Take it.
    Take = 2,
    /// Delete it.
    Delete = 3,
}

impl SnapshotAction {
    pub(super) const fn of(code: u32) -> Option<SnapshotAction> {
        match code {
            1 => Some(SnapshotAction::Check),
            2 => Some(SnapshotAction::Take),
            3 => Some(SnapshotAction::Delete),
            _ => None,
        }
    }
}

/// Command dwords 10 to 15 of Replica Snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotCommand {
    /// What to do.
    pub action: SnapshotAction,
    /// Place in the order of writes of an asynchronous session, only to take it.
    pub order: Option<WritePosition>,
}

/// The command has a place in the order of writes.
const ORDERED: u32 = 1 << 8;

impl SnapshotCommand {
    pub(super) fn fields(self) -> [u8; 24] {
        let mut fields = [0; 24];
        let ordered = if self.order.is_some() { ORDERED } else { 0 };
        fields[..4].copy_from_slice(&(self.action as u32 | ordered).to_le_bytes());
        if let Some(WritePosition { number, concurrent }) = self.order {
            fields[4..8].copy_from_slice(&number.to_le_bytes());
            fields[8..].copy_from_slice(&concurrent.to_le_bytes());
        }
        fields
    }

    /// `None` for unknown actions, and for an order of an action that has none.
    pub(super) fn of(fields: &[u8; 24]) -> Option<SnapshotCommand> {
        let [a, b, c, d, n0, n1, n2, n3, list @ ..] = *fields;
        let code = u32::from_le_bytes([a, b, c, d]);
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        let concurrent = u128::from_le_bytes(list);
        let action = SnapshotAction::of(code & !ORDERED)?;
        let order = match (code & ORDERED != 0, action) {
            (true, SnapshotAction::Take) => Some(WritePosition { number, concurrent }),
            (false, _) if number == 0 && concurrent == 0 => None,
            _ => return None,
        };
        Some(SnapshotCommand { action, order })
    }
}
