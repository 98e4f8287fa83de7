//! Test of the local devices before a race for the role.
//!
//! A grant excludes a peer that may be whole. It is for data that no power loss takes back, and for
//! all volumes of a group. So a node whose device or intent log takes no writes does not ask. The
//! log of a target is not written otherwise.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use super::Failover;
use crate::io::memory::with_memory;
use crate::limits::LOCAL_IO_MS;
use crate::mirror::Inner;

impl Failover {
    pub(super) fn device_has_failed(&self) -> bool {
        self.device_failure.lock().is_some()
    }

    /// Forgets a failure: the devices are written again, where failures show.
    pub(super) fn forget_device_failure(&self) {
        *self.device_failure.lock() = None;
    }
}

impl Inner {
    /// Flushes the data and writes to the log of each member. Returns when the calls have ended; a
    /// test that takes longer than [`LOCAL_IO_MS`] counts as failed meanwhile.
    pub(super) async fn test_devices(self: &Arc<Self>) -> Result<(), IoError> {
        let members = self.open_of_group();
        let mut test = pin!(async {
            for member in &members {
                with_memory(|| member.local.data().flush()).await?;
                member.local.check_log().await?;
            }
            Ok(())
        });
        let tested = match time::timeout(Duration::from_millis(LOCAL_IO_MS), test.as_mut()).await {
            Ok(tested) => tested,
            Err(_) => {
                self.device_tested(Err(IoError::Unreachable));
                test.await
            }
        };
        self.device_tested(tested);
        tested
    }

    /// Records whether this node can serve with its devices, and logs a change.
    pub(super) fn device_tested(&self, outcome: Result<(), IoError>) {
        let before = std::mem::replace(&mut *self.failover.device_failure.lock(), outcome.err());
        if before == outcome.err() {
            return;
        }
        let replica = self.local.superblock().replica;
        match outcome {
            Ok(()) => {
                tracing::info!(%replica, "the local device and its intent log take writes again")
            }
            Err(error) => tracing::error!(
                %replica,
                "the local device or its intent log has failed ({error}): this node does not ask the arbiter \
                 for the role"
            ),
        }
    }
}
