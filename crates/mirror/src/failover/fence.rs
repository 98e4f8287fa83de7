//! Fencing: after a grant by the arbiter, stops the other machine before this node serves, if there
//! is a command for that.
//!
//! Consistency does not depend on fencing, and neither does the end of the other node's service,
//! with one exception that no lease covers: a hypervisor that pauses a machine together with its
//! clocks. So a failed command is repeated. This node serves no hosts until the command has
//! succeeded, or until the other node answers that it serves none: that node has then learned that
//! it lost, and needs a grant of its own to serve again.
//!
//! While the command runs, the other node cannot attach as the source: it would be stopped while it
//! serves. A run ends early if this node already serves, or the operator decided otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use flagstone_arbiter::ArbiterRecord;
use flagstone_arbiter::race::Denial;

use super::Failover;
use super::members::Attachments;
use crate::limits::GRANT_MS;
use crate::mirror::Inner;
use crate::state::arbitration::{Step, step};
use crate::state::machine::RoleAnswer;

/// Future of a fencing command.
pub type FenceFuture = Pin<Box<dyn Future<Output = Result<(), FenceError>>>>;

/// A command that stops the peer's machine.
pub trait Fence: Send + Sync + 'static {
    /// Runs the command. It ends within its own time limit, or when the future is dropped.
    fn fence(&self) -> FenceFuture;
}

/// A command that several cores may share.
pub type SharedFence = Arc<dyn Fence>;

/// Failure of a fencing command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FenceError(pub String);

/// Fencing of the peer by this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fencing {
    /// This node has not taken over since it last had a source.
    #[default]
    Idle,
    /// The command is running.
    Running {
        /// Failure of the previous run.
        before: Option<FenceError>,
    },
    /// The command has succeeded.
    Succeeded,
    /// The command failed, and the peer then answered that it serves no hosts.
    NotNeeded,
    /// The command failed, and will be repeated.
    Failed(FenceError),
}

impl Fencing {
    /// Failure of the last run that has ended.
    pub fn failure(&self) -> Option<&FenceError> {
        match self {
            Fencing::Failed(error) | Fencing::Running { before: Some(error) } => Some(error),
            Fencing::Idle
            | Fencing::Running { before: None }
            | Fencing::Succeeded
            | Fencing::NotNeeded => None,
        }
    }
}

/// Grant of the arbiter to this node, whose peer is not fenced yet.
pub(super) struct Grant {
    record: ArbiterRecord,
    /// Number of attachments of a source before the grant. A later attachment may have replaced the
    /// record.
    attachments: Attachments,
    /// End of its validity without an answer of the arbiter, as [`Inner::boot_ns`].
    until_ns: u64,
}

impl Failover {
    pub(super) fn keep_grant(&self, record: &ArbiterRecord, attachments: Attachments) {
        let until_ns = Inner::boot_ns().saturating_add(GRANT_MS * 1_000_000);
        *self.grant.lock() = Some(Grant { record: record.clone(), attachments, until_ns });
    }

    pub(super) fn forget_grant(&self) {
        *self.grant.lock() = None;
    }

    /// Record of an earlier grant. Each run of the command is preceded by a race, so that an
    /// operator's order at the other node is noticed. A silent arbiter revokes nothing that it
    /// granted less than [`GRANT_MS`] ago; any other denial does.
    pub(super) fn grant_despite(
        &self,
        now: Step,
        denial: &Denial,
        attachments: &Attachments,
    ) -> Option<ArbiterRecord> {
        let mut grant = self.grant.lock();
        if !now.takes_role() || !matches!(denial, Denial::Silent(_)) {
            *grant = None;
        }
        let is_valid =
            |grant: &&Grant| grant.attachments == *attachments && Inner::boot_ns() < grant.until_ns;
        let valid = grant.as_ref().filter(is_valid);
        valid.map(|grant| grant.record.clone())
    }
}

impl Inner {
    /// Fences the peer for this step, if there is a command. False if it failed, or another step is
    /// due.
    pub(super) async fn fence_peer(self: &Arc<Self>, now: Step) -> bool {
        let fence = self.failover.options.as_ref().and_then(|options| options.fence.clone());
        let Some(fence) = fence else { return true };
        let replica = self.local.superblock().replica;
        let before = self.failover.fencing.lock().failure().cloned();
        if before.is_some() && self.peer_is_out_of_service().await {
            tracing::warn!(%replica, "the peer answers that it serves no hosts: it is not fenced");
            self.failover.set_fencing(Fencing::NotNeeded);
            return true;
        }
        if !self.begin_fencing(now, before) {
            return false;
        }
        tracing::warn!(%replica, "fencing the peer before hosts are served");
        match fence.fence().await {
            Ok(()) => {
                tracing::warn!(%replica, "the peer is fenced");
                self.failover.set_fencing(Fencing::Succeeded);
                true
            }
            Err(error) => {
                tracing::error!(
                    %replica,
                    "the peer could not be fenced: {error}; hosts are not served, and the command is \
                     repeated"
                );
                self.failover.set_fencing(Fencing::Failed(error));
                false
            }
        }
    }

    /// Begins fencing, after which no source attaches. A change of role is either complete, or
    /// finds that the command runs.
    fn begin_fencing(&self, now: Step, before: Option<FenceError>) -> bool {
        let state = self.lock();
        let is_due = step(&self.situation_in(&state)) == now;
        if is_due {
            self.failover.set_fencing(Fencing::Running { before });
        }
        is_due
    }

    async fn peer_is_out_of_service(self: &Arc<Self>) -> bool {
        let [answer, ..] = self.ask_all_peers().await;
        matches!(answer, Some(RoleAnswer::Known { serving: false, .. }))
    }
}
