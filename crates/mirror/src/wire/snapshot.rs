//! Snapshot requests of the link: orders on a snapshot of a replica's device.

use std::fmt;

use uuid::Uuid;

use crate::limits::SNAPSHOT_NAME_BYTES;

/// UUID of a snapshot, which it has on all replicas. A replica has it only if its snapshot was
/// taken at the same point of the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub [u8; 16]);

impl SnapshotId {
    /// No snapshot has it.
    pub const NONE: SnapshotId = SnapshotId([0; 16]);
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

/// Name of a snapshot: 1 to [`SNAPSHOT_NAME_BYTES`] bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SnapshotName {
    bytes: [u8; SNAPSHOT_NAME_BYTES],
    len: usize,
}

impl SnapshotName {
    /// `None` for a name that is empty, too long, or has a NUL.
    pub fn new(name: &str) -> Option<SnapshotName> {
        if !(1..=SNAPSHOT_NAME_BYTES).contains(&name.len()) || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; SNAPSHOT_NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(SnapshotName { bytes, len: name.len() })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Debug for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// What to do with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Check that it could be taken.
    Check,
    /// Take it durably. The source holds all later writes.
    Take,
    /// Check that it exists and could be deleted.
    Find,
    /// Delete it, if it exists.
    Delete,
}

/// Parameters of [`PeerRequest::Snapshot`](crate::wire::peer::PeerRequest::Snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// UUID of the snapshot. [`SnapshotId::NONE`] means the snapshot of this name, to find or to
    /// delete it.
    pub id: SnapshotId,
    /// Name of the snapshot.
    pub name: SnapshotName,
    /// What to do.
    pub action: SnapshotAction,
    /// Longest time for which the request may wait for the pool, in milliseconds. After it the
    /// answer is [`PeerRefusal::NotNow`](crate::wire::peer::PeerRefusal::NotNow).
    pub wait_ms: u32,
}
