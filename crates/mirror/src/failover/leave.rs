//! Planned stop: a source with automatic failover hands its role to its peer before it stops, so
//! that hosts need not wait for the peer's timeout.
//!
//! A failed hand-over does not keep the node from stopping: the peer then takes over as after a
//! crash. During maintenance no role moves by itself, so the volume waits for this node.

use std::time::Duration;

use flagstone_runtime::{spawn, time};

use crate::limits::LEAVE_MS;
use crate::manage::command::CommandError;
use crate::manage::order::OrderProgress;
use crate::mirror::Mirror;
use crate::state::machine::{Event, OperatorOrder, next};
use crate::state::outlook::Obstacle;

/// Reason why a source did not hand over its role before it stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaveError {
    /// The operator has suspended automatic failover.
    #[error("automatic failover is suspended for maintenance")]
    Suspended,
    /// The peer would serve without an arbiter.
    #[error("an operator decides at the peer (failover = \"manual\")")]
    PeerManual,
    /// The hand-over continues. The stop waits only for its local part.
    #[error("the hand-over has not ended within {} s", LEAVE_MS / 1000)]
    Slow,
    /// See [`CommandError`].
    #[error(transparent)]
    Refused(#[from] CommandError),
}

impl Mirror {
    /// Hands the role to the peer before this node stops, within [`LEAVE_MS`], if this node serves
    /// hosts and has automatic failover. True if the role was handed over.
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
        // Not canceled at the time limit: after half a hand-over, neither node would serve.
        let leaving = spawn(async move {
            if let Some(membership) = &inner.group {
                return membership.group().leave().await;
            }
            let _order = inner.running_order();
            let _role_change = inner.begin_role_change().await;
            let order = Event::Order(OperatorOrder::HandOver(0));
            let (after, actions) = next(&inner.machine_state(), order)?;
            inner.perform(after, actions.iter(), OrderProgress::leaving()).await.map(drop)
        });
        match time::timeout(Duration::from_millis(LEAVE_MS), leaving).await {
            Ok(Ok(done)) => Ok(done.map(|()| true)?),
            Ok(Err(_)) | Err(_) => Err(LeaveError::Slow),
        }
    }
}
