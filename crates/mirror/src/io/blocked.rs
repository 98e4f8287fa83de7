//! Blocked I/O: host calls that wait for admission, or that are recorded and wait to be
//! acknowledged.
//!
//! Blocked calls hold no range lock, and no region reference once they were refused admission. A
//! call may stay blocked for as long as a peer is away ([`OnPeerLoss::Block`]). Its data occupies
//! memory that all volumes of the node share, including volumes that the peer mirrors to this node,
//! whose link needs memory to come back. Therefore written data is released at once, and unwritten
//! data is kept only as far as [`WaitingMemory::hold`] allows. A write beyond that limit fails
//! after a delay as unreachable. Multipath hosts resend it on an internal path error; other hosts
//! retry according to their own settings.
//!
//! A blocked call fails when its connection ends ([`task::unless_flow_ended`]): it has been sent to
//! no leg, or is recorded and only waits to be acknowledged. Otherwise it would keep its connection
//! from ending, and with it the host from reconnecting.
//!
//! [`OnPeerLoss::Block`]: crate::options::OnPeerLoss::Block

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf::WaitingMemory;
use flagstone_runtime::{Buf, task, time};

use crate::io::admission::MirrorAdmission;
use crate::limits::REJECT_DELAY_MS;
use crate::mirror::{Inner, LegState, State, StateGuard};
use crate::state::status::{DesiredState, LegPhase};

struct BlockedCount<'a>(&'a Inner);

impl Drop for BlockedCount<'_> {
    fn drop(&mut self) {
        self.0.lock().blocked -= 1;
    }
}

impl Inner {
    fn count_blocked(&self) -> BlockedCount<'_> {
        self.lock().blocked += 1;
        BlockedCount(self)
    }

    /// Waits until another request for admission may succeed.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when the caller's connection has ended.
    pub(crate) async fn wait_for_admission(
        &self,
        admission: MirrorAdmission,
    ) -> Result<(), IoError> {
        let change = task::unless_flow_ended(self.admission_may_change(admission));
        change.await.ok_or(IoError::Unreachable)
    }

    async fn admission_may_change(&self, admission: MirrorAdmission) {
        match admission {
            MirrorAdmission::Wait(seen) | MirrorAdmission::Blocked(seen) => {
                let _count = self.count_blocked();
                self.wait(|state| (state.changes != seen).then_some(())).await;
            }
            MirrorAdmission::QueueFull(leg) => self.wait_for_queue_space(leg).await,
            MirrorAdmission::Detach(leg, session_id) => self.detach_congested(leg, session_id),
            MirrorAdmission::Admitted(_)
            | MirrorAdmission::NeedsGeneration
            | MirrorAdmission::Moved(_)
            | MirrorAdmission::Refused(_) => {}
        }
    }

    async fn wait_for_queue_space(&self, leg: usize) {
        let mut first = true;
        poll_fn(|cx| {
            let mut queue = self.legs[leg].queue();
            if !std::mem::take(&mut first) || !queue.is_full() {
                return Poll::Ready(());
            }
            queue.wait_for_space(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Fails a write that would be blocked and has no memory to wait in. Waits first, until it
    /// would be admitted or the delay has passed, so that the host does not resend it in a tight
    /// loop.
    pub(crate) async fn reject_after_delay(&self) -> IoError {
        let _count = self.count_blocked();
        let passes = |state: &mut StateGuard<'_>| {
            let blocked = self.blocks_writes(state, |own| own.receives_writes);
            (!blocked || !state.serving || state.is_moving()).then_some(())
        };
        let delay = time::timeout(Duration::from_millis(REJECT_DELAY_MS), self.wait(passes));
        let _ = task::unless_flow_ended(delay).await;
        IoError::Unreachable
    }

    /// True when the policy blocks writes because a peer that should be connected is not `enough`.
    fn blocks_writes(&self, state: &State, enough: impl Fn(&LegState) -> bool) -> bool {
        let mut legs = state.legs.iter().zip(&self.legs);
        legs.any(|(own, leg)| {
            own.desired_state == DesiredState::Connected
                && !enough(own)
                && leg.options().blocks_on_peer_loss()
        })
    }

    /// True when the policy blocks flushes because a lost peer that should be connected may have
    /// lost completed writes. While the local leg has failed, a peer serves the volume.
    pub(crate) fn blocks_flushes(&self, state: &State) -> bool {
        let mut legs = state.legs.iter().zip(&self.legs);
        let blocks = legs.any(|(own, leg)| {
            let options = leg.options();
            let may_lack = !own.receives_writes && own.has_unflushed && options.acks_from_memory();
            own.desired_state == DesiredState::Connected
                && may_lack
                && options.blocks_on_peer_loss()
        });
        blocks && !state.local_device_failed
    }

    /// Called after a write that a peer lacks has been recorded: waits until the peer is up to
    /// date, or the policy or the operator releases the write. `rest` is data still to be written.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when hosts are no longer served here, no memory can keep `rest`, or
    /// the caller's connection has ended.
    pub(crate) async fn wait_while_blocked(&self, rest: Option<Buf>) -> Result<(), IoError> {
        let goes = |state: &mut StateGuard<'_>| {
            if let Some(replacement) = state.replacement() {
                return Some(Ok(Some(replacement.clone())));
            }
            if !state.serving {
                return (!state.holds_calls()).then_some(Err(IoError::Unreachable));
            }
            let blocked = self.blocks_writes(state, |own| own.phase == LegPhase::InSync);
            (!blocked).then_some(Ok(None))
        };
        let gone = goes(&mut self.lock());
        let gone = match gone {
            Some(gone) => gone,
            None => {
                let waiting = rest.as_ref().map(WaitingMemory::hold);
                if matches!(waiting, Some(None)) {
                    return Err(IoError::Unreachable);
                }
                // Counted like a call that waits for admission.
                let _count = self.count_blocked();
                let change = task::unless_flow_ended(self.wait(goes)).await;
                change.unwrap_or(Err(IoError::Unreachable))
            }
        };
        match gone? {
            Some(replacement) => Box::pin(replacement.0.wait_while_blocked(rest)).await,
            None => Ok(()),
        }
    }
}
