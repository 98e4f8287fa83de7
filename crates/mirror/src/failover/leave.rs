//! Planned stop: a source that fails over by itself hands its role to its peer before it stops, so
//! that hosts need not wait until the peer misses it.
//!
//! A hand-over that fails does not keep the node from stopping: the peer then takes over as after a
//! crash. In maintenance nothing moves by itself, so the volume waits for this node.

use std::time::Duration;

use flagstone_runtime::{spawn, time};

use crate::limits::LEAVE_MS;
use crate::manage::command::CommandError;
use crate::manage::order::Progress;
use crate::mirror::Mirror;
use crate::state::machine::{Event, OperatorOrder, next};
use crate::state::outlook::Obstacle;

/// Why a source has not handed over its role before it stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaveError {
    /// The operator has suspended automatic failover.
    #[error("automatic failover is suspended for maintenance")]
    Suspended,
    /// The peer would serve without an arbiter.
    #[error("an operator decides at the peer (failover = \"manual\")")]
    PeerManual,
    /// The hand-over continues, and the stop waits only for the local part of it.
    #[error("the hand-over has not ended within {} s", LEAVE_MS / 1000)]
    Slow,
    /// See [`CommandError`].
    #[error(transparent)]
    Refused(#[from] CommandError),
}

impl Mirror {
    /// Hands the role to the peer before this node stops, within [`LEAVE_MS`], if this node serves
    /// hosts and fails over by itself. True if it has.
    ///
    /// # Errors
    /// See [`LeaveError`]. The node may stop nevertheless.
    pub async fn leave(&self) -> Result<bool, LeaveError> {
        let inner = self.0.clone();
        if !inner.failover.is_automatic() || !inner.lock().serving {
            return Ok(false);
        }
        if inner.local.superblock().arbiter.suspended {
            return Err(LeaveError::Suspended);
        }
        if *inner.failover.peer_report.lock() == Some(Obstacle::Manual) {
            return Err(LeaveError::PeerManual);
        }
        // Not cancelled when the time is up: half a hand-over would leave no node that serves.
        let leaving = spawn(async move {
            let _order = inner.running_order();
            let _role_change = inner.begin_role_change().await;
            let order = Event::Order(OperatorOrder::HandOver(0));
            let (after, actions) = next(&inner.machine_state(), order)?;
            inner.perform(after, actions.iter(), Progress::leaving()).await.map(drop)
        });
        match time::timeout(Duration::from_millis(LEAVE_MS), leaving).await {
            Ok(Ok(done)) => Ok(done.map(|()| true)?),
            Ok(Err(_)) | Err(_) => Err(LeaveError::Slow),
        }
    }
}
