//! Fencing: after a grant by the arbiter, stops the other machine before this node serves, if there
//! is a command for that.
//!
//! Consistency does not depend on fencing, and neither does the end of the other node's service,
//! with one exception that no lease covers: a hypervisor that pauses a machine together with its
//! clocks. So a failed command is repeated. This node serves no hosts until the command has
//! succeeded, or until the other node answers that it serves none: that node has then learned that
//! it lost, and needs a grant of its own to serve again.
//!
//! The grant must still be valid when the command has ended: it may take minutes, in which the
//! operator may have ordered the other node to serve. Otherwise the arbiter is asked again, and the
//! command is not repeated.
//!
//! While the command runs, the other node cannot attach as the source: it would be stopped while it
//! serves. A run ends early if this node already serves, or the operator decided otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::ArbiterRecord;
use flagstone_arbiter::race::Denial;
use flagstone_runtime::time;

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

/// Grant of the arbiter to this node, which has to fence its peer first.
pub(super) struct Grant {
    record: ArbiterRecord,
    /// Number of attachments of a source before the grant. A later attachment may have replaced the
    /// record.
    attachments: Attachments,
    /// End of its validity without an answer of the arbiter, as [`Inner::boot_ns`].
    until_ns: u64,
    /// The command has succeeded, for this grant or one before it in the same attempt.
    is_fenced: bool,
}

impl Grant {
    fn is_valid(&self) -> bool {
        Inner::boot_ns() < self.until_ns
    }
}

impl Failover {
    pub(super) fn keep_grant(&self, record: &ArbiterRecord, attachments: Attachments) {
        let until_ns = Inner::boot_ns().saturating_add(GRANT_MS * 1_000_000);
        let mut grant = self.grant.lock();
        let is_fenced = grant
            .as_ref()
            .is_some_and(|before| before.is_fenced && before.attachments == attachments);
        *grant = Some(Grant { record: record.clone(), attachments, until_ns, is_fenced });
    }

    /// True if the peer is fenced, and the grant is still valid.
    fn may_use_grant(&self) -> bool {
        let has_succeeded = *self.fencing.lock() == Fencing::Succeeded;
        let mut grant = self.grant.lock();
        grant.as_mut().is_some_and(|grant| {
            grant.is_fenced |= has_succeeded;
            grant.is_valid()
        })
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
        let is_valid = |grant: &&Grant| grant.attachments == *attachments && grant.is_valid();
        let valid = grant.as_ref().filter(is_valid);
        valid.map(|grant| grant.record.clone())
    }
}

impl Inner {
    /// Fences the peer for this step and the kept grant. False if that failed, or another step is
    /// due, or the arbiter has to be asked again. If it `has_answered` in this race, the command
    /// may outlast the grant. Otherwise it ends with the grant, so that it does not stop a node
    /// which serves by the operator's order.
    pub(super) async fn fence_for_grant(self: &Arc<Self>, now: Step, has_answered: bool) -> bool {
        let (is_fenced, until_ns) = self
            .failover
            .grant
            .lock()
            .as_ref()
            .map_or((false, 0), |grant| (grant.is_fenced, grant.until_ns));
        let is_fenced = match has_answered {
            _ if is_fenced => true,
            true => self.fence_peer(now).await,
            false => {
                let left = Duration::from_nanos(until_ns.saturating_sub(Inner::boot_ns()));
                time::timeout(left, self.fence_peer(now)).await.unwrap_or_else(|_| {
                    let silent = "it was ended, because the arbiter does not answer".to_owned();
                    self.failover.set_fencing(Fencing::Failed(FenceError(silent)));
                    false
                })
            }
        };
        if is_fenced && !self.failover.may_use_grant() {
            let replica = self.local.superblock().replica;
            tracing::warn!(%replica, "the grant is too old: asking the arbiter again");
            return false;
        }
        is_fenced
    }

    /// Fences the peer, if there is a command.
    async fn fence_peer(self: &Arc<Self>, now: Step) -> bool {
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
