//! Automatic failover of a mirrored volume: its arbiter and options.

use flagstone_arbiter::SharedArbiter;
use flagstone_mirror::{FailoverMode, FailoverOptions};

use super::MirroredVolume;

impl MirroredVolume {
    /// Sets the arbiter of the daemon. It is asked only if the mirror fails over by itself.
    pub(crate) fn set_arbiter(&self, arbiter: Option<SharedArbiter>) {
        *self.arbiter.borrow_mut() = arbiter;
    }

    pub(super) fn failover_options(&self) -> Option<FailoverOptions> {
        let arbiter = self.arbiter.borrow().clone();
        let arbiter = arbiter.filter(|_| self.config.failover == FailoverMode::Automatic)?;
        Some(FailoverOptions { arbiter, failover_after: self.config.failover_after })
    }
}
