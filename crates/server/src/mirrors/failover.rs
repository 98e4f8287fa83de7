//! Automatic failover of a mirrored volume: its arbiter and options.

use flagstone_arbiter::SharedArbiter;
use std::sync::Arc;

use flagstone_mirror::{FailoverMode, FailoverOptions, Fence as _, LeaveError, SharedFence};

use super::MirroredVolume;
use super::fence::FenceCommand;
use crate::http::Problem;

impl MirroredVolume {
    /// Sets the arbiter of the daemon. It is asked only if the mirror fails over by itself.
    pub(crate) fn set_arbiter(&self, arbiter: Option<SharedArbiter>) {
        *self.arbiter.borrow_mut() = arbiter;
    }

    /// Hands the volume over to its peer before the server stops, if it fails over by itself. The
    /// reason for a failure is logged, and the server stops nevertheless.
    pub(crate) async fn leave(&self) {
        let Some(mirror) = self.mirror() else { return };
        let volume = &self.name;
        match mirror.leave().await {
            Ok(false) => {}
            Ok(true) => tracing::info!(volume, "the peer serves from now on"),
            Err(reason @ LeaveError::Suspended) => {
                tracing::info!(volume, "not handed over before the stop: {reason}");
            }
            Err(reason) => {
                tracing::warn!(volume, "not handed over before the stop: {reason}");
            }
        }
    }

    pub(super) fn failover_options(&self) -> Option<FailoverOptions> {
        let arbiter = self.arbiter.borrow().clone();
        let arbiter = arbiter.filter(|_| self.config.failover == FailoverMode::Automatic)?;
        let fence = self.fence_command().map(|command| Arc::new(command) as SharedFence);
        let (failover_after, max_lag) = (self.config.failover_after, self.config.failover_max_lag);
        Some(FailoverOptions { arbiter, failover_after, max_lag, fence })
    }

    /// The command that fences the only peer, if there is one.
    pub(crate) fn fence_command(&self) -> Option<FenceCommand> {
        let links = self.links.borrow();
        let here = (self.node.as_str(), self.name.as_str());
        links.first().and_then(|peer| FenceCommand::new(peer, here, &self.is_fencing))
    }

    /// Runs the command that fences the peer, by the operator's order. A dry run only checks it.
    pub(crate) async fn fence(&self, dry_run: bool) -> Result<String, Problem> {
        let peer = self.links.borrow().first().map(|peer| peer.name.clone()).unwrap_or_default();
        let Some(command) = self.fence_command() else {
            return Err(Problem::conflict(format!("[peer.{peer}] has no fence_command")));
        };
        let failed = |reason| Problem::conflict(format!("{peer} cannot be fenced: {reason}"));
        command.check().map_err(failed)?;
        if !dry_run {
            command.fence().await.map_err(|error| failed(error.to_string()))?;
        }
        let (shown, limit_s) = (command.shown(), command.limit().as_secs());
        let is = if dry_run { "would be" } else { "is" };
        Ok(format!("the machine of {peer} {is} stopped, within {limit_s} s, by: {shown}"))
    }
}
