//! Rollback of a source: what its replica records before its device gets the content of a snapshot.
//!
//! The mirror was stopped, so nothing else uses the replica, and the operator's desired state keeps
//! its peers out, at the arbiter too. Each step is durable before the next one:
//!
//! 1. The blocks that are going to differ are marked as out of sync.
//! 2. A new generation begins, with the peers' as a base: from then on only the local data counts,
//!    whatever crashes, and peers take the marked blocks.
//! 3. The replica is closed, and its device gets the content ([`RollbackRecord::record`] has
//!    returned).
//!
//! The replica's own structures keep their content in step 3. If it does not happen, peers copy
//! blocks that are equal.

use std::ops::Range;

use flagstone_blockdev::IoError;

use crate::io::new_generation::NewGeneration;
use crate::manage::replica::Replica;
use crate::mirror::Mirror;
use crate::ondisk::superblock::{ReplicaRole, Superblock};
use crate::state::status::DesiredState;

/// Why a replica cannot be rolled back. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum RollbackRefusal {
    #[error("this node is not the source any more")]
    NotSource,
    /// Another order has changed its desired state.
    #[error("a peer was connected again meanwhile")]
    PeerConnected,
    #[error("the local data is not consistent")]
    Inconsistent,
    #[error("the volume had {0} B then, and has another size now")]
    OtherSize(u64),
    #[error("a resync to this leg had not ended then, so its content is of no point in time")]
    PartialContent,
}

/// True if the content of a replica with this superblock is of one point of the order of writes.
fn is_whole(superblock: &Superblock) -> bool {
    let is_partial = superblock.flags.inconsistent || superblock.unverified;
    !is_partial && !superblock.current.is_none()
}

/// Checks that a snapshot with the superblock `then` has the content of the whole volume, whose
/// superblock is `now`.
///
/// # Errors
/// See [`RollbackRefusal`].
pub fn check_content(now: &Superblock, then: &Superblock) -> Result<(), RollbackRefusal> {
    if then.geometry.usable_bytes != now.geometry.usable_bytes {
        return Err(RollbackRefusal::OtherSize(then.geometry.usable_bytes));
    }
    is_whole(then).then_some(()).ok_or(RollbackRefusal::PartialContent)
}

impl Mirror {
    /// Durably begins a generation after that of the paused peers. From then on a restart of this
    /// node serves hosts again without them.
    ///
    /// # Errors
    /// Of the local device, or of the arbiter; also if no hosts are served here.
    pub async fn outdate_paused_peers(&self) -> Result<(), IoError> {
        self.0.ensure_new_generation().await
    }
}

/// Record of a rollback in a replica that no mirror uses.
pub struct RollbackRecord {
    replica: Replica,
    peers: usize,
}

impl RollbackRecord {
    /// For a replica with `peers` configured peers.
    ///
    /// # Errors
    /// See [`RollbackRefusal`].
    pub fn new(replica: Replica, peers: usize) -> Result<RollbackRecord, RollbackRefusal> {
        let superblock = replica.superblock();
        let mut desired = superblock.desired_states.iter().take(peers);
        if superblock.role != ReplicaRole::Source || superblock.designated_successor.is_some() {
            return Err(RollbackRefusal::NotSource);
        }
        if desired.any(|desired| *desired == DesiredState::Connected) {
            return Err(RollbackRefusal::PeerConnected);
        }
        if !is_whole(&superblock) {
            return Err(RollbackRefusal::Inconsistent);
        }
        Ok(RollbackRecord { replica, peers })
    }

    /// Begin of the replica's own structures, in bytes: they are not rolled back.
    pub fn usable_bytes(&self) -> u64 {
        self.replica.superblock().geometry.usable_bytes
    }

    /// Marks a part of the device that is going to differ, in bytes. Only the volume's part counts.
    pub fn differs(&self, range: Range<u64>) {
        let end = range.end.min(self.usable_bytes());
        if range.start < end {
            let bits = self.replica.bits();
            self.replica.mark(bits.bits_of(range.start, end - range.start));
        }
    }

    /// Makes steps 1 and 2 durable, and closes the replica.
    ///
    /// # Errors
    /// Of a device. The device must keep its content then.
    pub async fn record(self) -> Result<(), IoError> {
        let RollbackRecord { replica, peers } = self;
        let recorded = async {
            replica.persist_marks().await?;
            let new_generation = NewGeneration::without_contact(peers);
            replica.update(move |superblock| new_generation.apply(superblock)).await?;
            replica.check_devices().await
        };
        let recorded = recorded.await;
        replica.retire().await;
        recorded
    }

    /// Closes the replica unchanged, except for marks.
    pub async fn close(self) {
        self.replica.retire().await;
    }
}

#[cfg(test)]
#[path = "roll_back_tests.rs"]
mod tests;
