//! Fencing: a node to which the arbiter has granted the role stops the other machine before it
//! serves, if it has a command for that.
//!
//! Neither consistency nor the end of the other node's service depends on it, except for what no
//! lease covers: a hypervisor that pauses a machine together with its clocks. So a command that
//! fails is repeated, and this node serves no hosts before it has succeeded, or before the other
//! node answers that it serves none: then it has learned that it lost, and needs a grant of its own
//! to serve again.
//!
//! While the command runs, the other node is not admitted as the source: it would be stopped while
//! it serves. A run that is abandoned, because this node serves or the operator decided otherwise,
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use flagstone_arbiter::ArbiterRecord;
use flagstone_arbiter::race::Denial;

use super::Failover;
use crate::mirror::Inner;
use crate::state::arbitration::{Step, step};
use crate::state::machine::RoleAnswer;

/// Future of a fencing command.
pub type FenceFuture = Pin<Box<dyn Future<Output = Result<(), FenceError>>>>;

/// A command that stops the peer's machine.
pub trait Fence: Send + Sync + 'static {
    /// Runs it. It ends within its own time limit, or when the future is dropped.
    fn fence(&self) -> FenceFuture;
}

/// A command that several cores may share.
pub type SharedFence = Arc<dyn Fence>;

/// Why a fencing command has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FenceError(pub String);

/// Fencing of the peer by this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fencing {
    /// This node has not taken over since it last had a source.
    #[default]
    Idle,
    /// The command runs.
    Running {
        /// Why the run before has failed.
        before: Option<FenceError>,
    },
    /// The command has succeeded.
    Succeeded,
    /// The command had failed, and the peer answers that it serves no hosts.
    NotNeeded,
    /// The command has failed, and is repeated.
    Failed(FenceError),
}

impl Fencing {
    /// Why the last run that has ended has failed.
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

/// What the arbiter has granted to this node, which has yet to fence its peer.
pub(super) struct Grant {
    record: ArbiterRecord,
    /// Attachments of a source before: one that has attached since may have replaced the record.
    attachments: u64,
}

impl Failover {
    pub(super) fn keep_grant(&self, record: &ArbiterRecord, attachments: u64) {
        *self.grant.lock() = Some(Grant { record: record.clone(), attachments });
    }

    pub(super) fn forget_grant(&self) {
        *self.grant.lock() = None;
    }

    /// The record that this node was granted before. Each run of the command is preceded by a race,
    /// so that an operator's order at the other node is noticed; but an arbiter that is silent
    /// takes nothing back. Any other denial does.
    pub(super) fn grant_despite(
        &self,
        now: Step,
        denial: &Denial,
        attachments: u64,
    ) -> Option<ArbiterRecord> {
        let mut grant = self.grant.lock();
        if !now.takes_role() || !matches!(denial, Denial::Silent(_)) {
            *grant = None;
        }
        let valid = grant.as_ref().filter(|grant| grant.attachments == attachments);
        valid.map(|grant| grant.record.clone())
    }
}

impl Inner {
    /// Fences the peer, if there is a command, for this step. False if it has failed, or another
    /// step is due.
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

    /// From now on no source attaches: a change of role either comes first, or finds that the
    /// command runs.
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
