//! Maintenance: the operator suspends automatic failover, and resumes it.
//!
//! The arbiter's record says so, and the source tells its attached peer, which records it durably.
//! So neither a peer that is attached nor one that returns later takes over. The source itself may
//! still run degraded.

use flagstone_arbiter::race::{Ask, Denial, Goal};
use flagstone_runtime::random_u64;

use super::task::{id, run_race};
use crate::mirror::{Inner, Mirror};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight};

/// Why automatic failover is neither suspended nor resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaintenanceError {
    /// The mirror has no arbiter.
    #[error("an operator decides on failovers of this mirror (failover = \"manual\")")]
    Manual,
    /// Only the node that serves hosts may.
    #[error("this node does not serve hosts")]
    NotServing,
    /// The arbiter has not agreed.
    #[error("{0}")]
    Denied(Denial),
    /// The superblock cannot be written.
    #[error("the superblock cannot be written: {0}")]
    Device(flagstone_blockdev::IoError),
}

impl Mirror {
    /// Suspends automatic failover, or resumes it. Takes as long as one race.
    ///
    /// # Errors
    /// See [`MaintenanceError`]. After [`Denial::Silent`] either may be in effect.
    pub async fn suspend_failover(&self, on: bool) -> Result<(), MaintenanceError> {
        self.0.suspend_failover(on).await
    }
}

impl Inner {
    async fn suspend_failover(&self, on: bool) -> Result<(), MaintenanceError> {
        let options = self.failover.options.as_ref().ok_or(MaintenanceError::Manual)?;
        if !self.lock().serving {
            return Err(MaintenanceError::NotServing);
        }
        let superblock = self.local.superblock();
        let ask = Ask {
            volume: id(superblock.volume),
            own: id(superblock.replica),
            seen_revision: superblock.arbiter.revision,
            writer: random_u64(),
            suspended: on,
            succeeds: false,
            goal: Goal::Maintenance { epoch: superblock.epoch, on },
        };
        let raced = run_race(&options.arbiter, ask).await.outcome;
        let record = raced.map_err(MaintenanceError::Denied)?;
        // The source has a record that was lost or restored say so again.
        let mark = move |before: ArbiterMark| ArbiterMark {
            revision: before.revision.max(record.revision),
            suspended: on,
            // The record lists this node.
            serving_right: match before.serving_right {
                RecordedRight::Succeeded => RecordedRight::Unknown,
                serving_right => serving_right,
            },
            ..before
        };
        self.store_mark(mark).await.map_err(MaintenanceError::Device)?;
        let replica = superblock.replica;
        tracing::info!(%replica, revision = record.revision, on, "automatic failover suspended");
        self.change(|state| {
            if let Some(published) = &mut state.published {
                published.revision = published.revision.max(record.revision);
            }
        });
        Ok(())
    }
}
