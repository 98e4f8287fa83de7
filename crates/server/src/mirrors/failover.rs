//! Automatic failover of a mirrored volume: its options, and the hand-over before a planned stop.

use flagstone_arbiter::SharedArbiter;
use flagstone_mirror::{FailoverMode, FailoverOptions};
use flagstone_runtime::{spawn, time};

use super::MirroredVolume;
use crate::limits::HAND_OVER_PATIENCE;

impl MirroredVolume {
    /// Sets the arbiter of the daemon. It is asked only if the mirror fails over by itself.
    pub(crate) fn set_arbiter(&self, arbiter: Option<SharedArbiter>) {
        *self.arbiter.borrow_mut() = arbiter;
    }

    pub(super) fn failover_options(&self) -> Option<FailoverOptions> {
        let arbiter = self.arbiter.borrow().clone();
        let arbiter = arbiter.filter(|_| self.config.failover == FailoverMode::Automatic)?;
        let (failover_after, max_lag) = (self.config.failover_after, self.config.failover_max_lag);
        Some(FailoverOptions { arbiter, failover_after, max_lag })
    }

    /// Hands the role to the peer before a planned stop, if it would take over anyway: so hosts need
    /// not wait until it has missed this node. Without success, it takes over later.
    pub(crate) async fn hand_over(&self) {
        let Some(mirror) = self.mirror() else { return };
        let serving = mirror.status().serving;
        let willing = mirror.failover_status().is_some_and(|now| now.peer_obstacle.is_none());
        if !serving || !willing {
            return;
        }
        // In a task of its own: a half-finished change of role would leave no node in charge.
        let work = spawn(async move { mirror.switchover(0).await });
        match time::timeout(HAND_OVER_PATIENCE, work).await {
            Ok(Ok(Ok(()))) => tracing::info!(volume = self.name, "handed over to the peer"),
            Ok(Ok(Err(error))) => {
                tracing::warn!(volume = self.name, "not handed over before the stop: {error}");
            }
            _ => tracing::warn!(volume = self.name, "not handed over in time before the stop"),
        }
    }
}
