//! Automatic failover of a mirrored volume: its arbiter and options.

use flagstone_arbiter::SharedArbiter;
use flagstone_mirror::{FailoverMode, FailoverOptions, LeaveError};

use super::MirroredVolume;

impl MirroredVolume {
    /// Sets the arbiter of the daemon. It is asked only if the mirror fails over by itself.
    pub(crate) fn set_arbiter(&self, arbiter: Option<SharedArbiter>) {
        *self.arbiter.borrow_mut() = arbiter;
    }

    /// Hands the volume over to its peer before the server stops, if it fails over by itself. The reason
    /// for a failure is logged, and the server stops nevertheless.
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
        Some(FailoverOptions { arbiter, failover_after: self.config.failover_after })
    }
}
