//! Maintenance: the operator suspends and resumes automatic failover.
//!
//! The arbiter's record has the suspension, and the source reports it to its attached peer, which
//! records it durably. So neither an attached peer nor one that returns later takes over. The
//! source itself may still run degraded.

use std::sync::Arc;

use flagstone_arbiter::race::{Ask, Denial, Goal};
use flagstone_runtime::random_u64;

use super::task::{id, run_race};
use crate::mirror::{Inner, Mirror};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight, Superblock};

/// Reason why automatic failover was neither suspended nor resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaintenanceError {
    /// The mirror has no arbiter.
    #[error("an operator decides on failovers of this mirror (failover = \"manual\")")]
    Manual,
    /// This node does not serve hosts: only the serving node may do this.
    #[error("this node does not serve hosts")]
    NotServing,
    /// The arbiter denied it.
    #[error("{0}")]
    Denied(Denial),
    /// The superblock cannot be written.
    #[error("the superblock cannot be written: {0}")]
    Device(flagstone_blockdev::IoError),
}

impl Mirror {
    /// Suspends or resumes automatic failover. Takes as long as one race.
    ///
    /// # Errors
    /// See [`MaintenanceError`]. After [`Denial::Silent`] failover may be suspended or not.
    pub async fn suspend_failover(&self, on: bool) -> Result<(), MaintenanceError> {
        self.0.arbitrating().suspend_failover(on).await
    }
}

impl Inner {
    async fn suspend_failover(self: &Arc<Self>, on: bool) -> Result<(), MaintenanceError> {
        let options = self.failover.options.as_ref().ok_or(MaintenanceError::Manual)?;
        // A race that began before would write the former setting over this one.
        let _racing = self.failover.racing.acquire().await;
        if !self.lock().serving {
            return Err(MaintenanceError::NotServing);
        }
        let superblock = self.local.superblock();
        let ask = Ask {
            volume: id(superblock.volume),
            own: id(superblock.replica),
            seen_revision: superblock.arbiter.revision_at(self.failover.store()),
            writer: random_u64(),
            suspended: on,
            succeeds: false,
            goal: Goal::Maintenance { epoch: superblock.epoch, on },
        };
        let raced = run_race(&options.arbiter, ask).await.outcome;
        let record = raced.map_err(MaintenanceError::Denied)?;
        // If the record is lost or restored, the source writes the suspension again.
        let stamp = record.stamp();
        let mark = move |superblock: &Superblock| ArbiterMark {
            revision: superblock.arbiter.revision.max(stamp.revision),
            suspended: on,
            // The record lists this node.
            serving_right: match superblock.arbiter.serving_right {
                RecordedRight::Succeeded => RecordedRight::Unknown,
                serving_right => serving_right,
            },
            ..superblock.arbiter
        };
        let members = self.all_of_group().ok_or(MaintenanceError::NotServing)?;
        let stored = self.store_marks(&members, mark).await;
        stored.map_err(MaintenanceError::Device)?;
        let replica = superblock.replica;
        tracing::info!(%replica, revision = record.revision, on, "automatic failover suspended");
        for member in members {
            member.change(|state| {
                if let Some(published) = &mut state.published
                    && published.record.revision < stamp.revision
                {
                    published.record = stamp;
                }
            });
        }
        Ok(())
    }
}
