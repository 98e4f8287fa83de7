//! Calls of hosts that wait at the gate, or on their way back, until something changes.
//!
//! They hold no range, and no region after they were turned back. Some wait for as long as a peer is
//! away and nobody decides ([`WhenPeerLost::Strict`]), and data of theirs is memory that all volumes
//! of this node have together: also those that are mirrored here from the peer, whose link comes back
//! by it. So data that is written already is not kept, and of what is not written so much as
//! [`Parked::hold`] allows. A write beyond that ends after a while as one that cannot be reached now:
//! hosts with several paths send it again until it is taken (INTERNAL PATH ERROR), others as often as
//! they are made to.
//!
//! [`WhenPeerLost::Strict`]: crate::options::WhenPeerLost::Strict

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf::Parked;
use flagstone_runtime::{Buf, time};

use crate::gate::Passage;
use crate::limits::TURNED_AWAY_MS;
use crate::mirror::{Inner, LegState, State};
use crate::state::{Phase, Wish};

/// One that is held no longer.
struct Uncount<'a>(&'a Inner);

impl Drop for Uncount<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Inner {
    /// One more that is held.
    fn count_held(&self) -> Uncount<'_> {
        self.lock().waiting += 1;
        Uncount(self)
    }

    /// Waits until it is worth asking the gate again.
    pub(crate) async fn wait_for_gate(&self, passage: Passage) {
        match passage {
            Passage::Wait(seen) | Passage::Held(seen) => {
                let _count = self.count_held();
                self.wait(|state| (state.changes != seen).then_some(())).await;
            }
            Passage::Full(leg) => self.wait_at_door(leg).await,
            Passage::Behind(leg, serial) => self.leave_behind(leg, serial),
            Passage::Go(_) | Passage::Mint | Passage::Moved(_) | Passage::Refused(_) => {}
        }
    }

    async fn wait_at_door(&self, leg: usize) {
        let mut first = true;
        poll_fn(|cx| {
            let mut queue = self.legs[leg].queue();
            if !std::mem::take(&mut first) || !queue.is_full() {
                return Poll::Ready(());
            }
            queue.wait_at_door(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// A write that is to be held, and has given its data back, since there is no more memory for such.
    /// It ends when it would pass the gate, or in a while, so that its host does not send it again and
    /// again.
    pub(crate) async fn turned_away(&self) -> IoError {
        let _count = self.count_held();
        let passes = |state: &mut State| {
            let held = self.holds_writes(state, |own| own.foreground);
            (!held || !state.active || state.moving).then_some(())
        };
        let _ = time::timeout(Duration::from_millis(TURNED_AWAY_MS), self.wait(passes)).await;
        IoError::Unreachable
    }

    /// A peer that the operator wants kept up to date is not `enough` so, and the policy is to hold.
    fn holds_writes(&self, state: &State, enough: impl Fn(&LegState) -> bool) -> bool {
        let mut legs = state.legs.iter().zip(&self.legs);
        legs.any(|(own, leg)| own.wish == Wish::Mirror && !enough(own) && leg.options().is_strict())
    }

    /// A write that a peer lacks has been recorded: waits until the peer is up to date, or the policy
    /// or the operator says otherwise. `rest` is data that it has still to write.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when hosts are not served here any more, or there is no memory for what
    /// it keeps.
    pub(crate) async fn wait_if_strict(&self, rest: Option<Buf>) -> Result<(), IoError> {
        let goes = |state: &mut State| {
            if let Some(successor) = &state.successor {
                return Some(Ok(Some(successor.clone())));
            }
            if !state.active {
                return (!state.moving).then_some(Err(IoError::Unreachable));
            }
            let held = self.holds_writes(state, |own| own.phase == Phase::InSync);
            (!held).then_some(Ok(None))
        };
        let gone = goes(&mut self.lock());
        let gone = match gone {
            Some(gone) => gone,
            None => {
                let parked = rest.as_ref().map(Parked::hold);
                if matches!(parked, Some(None)) {
                    return Err(IoError::Unreachable);
                }
                // It is held as those at the gate are.
                let _count = self.count_held();
                self.wait(goes).await
            }
        };
        match gone? {
            Some(successor) => Box::pin(successor.0.wait_if_strict(rest)).await,
            None => Ok(()),
        }
    }
}
