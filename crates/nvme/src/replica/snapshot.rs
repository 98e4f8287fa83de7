//! Replica Snapshot: an order on a snapshot of the replica's device.
//!
//! Invariant: the name is UTF-8 without NUL, padded with NUL.

use super::SNAPSHOT_NAME_BYTES;
use crate::status::Status;
use crate::wire::wire;

wire! {
    /// Data of Replica Snapshot.
    pub struct Snapshot [144] {
        0 => pub id: [u8; 16], "UUID of the snapshot, on all replicas; 0 for the one of this name.";
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

    pub(super) fn check(&self, action: SnapshotAction) -> Result<(), Status> {
        let name = self.name();
        let padded = self.name[name.len()..].iter().all(|byte| *byte == 0);
        let by_name = matches!(action, SnapshotAction::Find | SnapshotAction::Delete);
        let sound = (by_name || self.id != [0; 16]) && !name.is_empty() && padded;
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
    /// Check that it exists and could be deleted.
    Find = 4,
}

impl SnapshotAction {
    pub(super) const fn of(code: u32) -> Option<SnapshotAction> {
        match code {
            1 => Some(SnapshotAction::Check),
            2 => Some(SnapshotAction::Take),
            3 => Some(SnapshotAction::Delete),
            4 => Some(SnapshotAction::Find),
            _ => None,
        }
    }
}

/// Command dwords 10 and 11 of Replica Snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotCommand {
    /// What to do.
    pub action: SnapshotAction,
    /// Longest wait for the pool, in milliseconds.
    pub wait_ms: u32,
}
