//! A mirror has given its replica up to be changed, and the replica could not be opened again: its
//! device failed meanwhile. Or the replica has just been made, and its mirror did not start. Hosts are
//! sent to the other nodes, and it is tried again until it opens, as a restart of the server would.

use std::rc::{Rc, Weak};
use std::time::Duration;

use flagstone_runtime::{spawn, time};

use super::Mirrored;
use crate::remote::Failure;

/// Pause before the first attempt, doubled from one to the next.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

impl Mirrored {
    /// True when the mirror has ended and nothing has taken its place.
    pub(super) fn has_ended(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.is_closed())
    }

    /// Has the replica opened again as soon as that can be done.
    pub(super) fn reopen_soon(self: &Rc<Self>) {
        self.set_access(false);
        *self.watch.borrow_mut() = Some(spawn(try_again(Rc::downgrade(self))).abort_on_drop());
    }

    async fn reopen(self: &Rc<Self>) -> Result<(), Failure> {
        let _making = self.making.acquire(1).await;
        if !self.has_ended() {
            // Somebody has deleted it meanwhile.
            return Ok(());
        }
        let text = |problem: &str| problem.to_owned();
        let target =
            self.target.borrow().clone().ok_or_else(|| text("the server is not up yet"))?;
        // What it has in hand ends before its disks are another's.
        self.give_mirror_up().await;
        let found = self.open().await?;
        self.run(found.ok_or_else(|| text("no replica is found on it any more"))?).await?;
        // The device failed before its size was changed, or after it.
        target
            .resize_namespace(&self.nqn, self.namespace_id)
            .map_err(|error| format!("hosts cannot be told of its size: {error}").into())
    }
}

async fn try_again(this: Weak<Mirrored>) {
    let mut pause = PAUSE_MIN;
    loop {
        time::sleep(pause).await;
        let Some(this) = this.upgrade() else { return };
        match this.reopen().await {
            // Whoever follows the mirror that runs has taken this task's place.
            Ok(()) => return,
            Err(Failure { problem, .. }) => {
                pause = (2 * pause).min(PAUSE_MAX);
                tracing::warn!(
                    volume = this.name,
                    "the replica cannot be opened ({problem}): it is tried again in {pause:?}"
                );
            }
        }
    }
}
