//! Outdated peer: a source records that a peer in sync is about to be overwritten, before it sets a
//! mark for a repair or a full resync. Before the operator's order to end its session, only step 1.
//!
//! Such a peer may have decayed, or been restored from a backup, but it looks equal until it is
//! durably inconsistent. If the source crashed before that, the handshake would prefer the peer's
//! data and copy the marked blocks over the only good copy. So each step is durable before the next
//! one:
//!
//! 1. With automatic failover, the arbiter's record excludes the peer. Otherwise the peer could be
//!    granted the role.
//! 2. A new generation begins, with the peer's as a base. From then on only the local data counts,
//!    whatever crashes.
//! 3. The blocks are marked.
//!
//! If a step fails, or the order is stopped, the next handshake brings the peer back: at most with
//! a resync that copies nothing.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::agree::decide::ResyncAmount;
use crate::id::Generation;
use crate::limits::EXCLUDE_MS;
use crate::mirror::{Inner, StateGuard};
use crate::state::arbitration::ServingRight;
use crate::state::status::LegPhase;
use crate::wire::peer::ReplicaIdentity;

/// Why a peer was not recorded as out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOutdated {
    /// The session has ended, or this node no longer serves hosts.
    #[error("the session has ended")]
    Changed,
    #[error("the arbiter has not recorded within {EXCLUDE_MS} ms that the peer is out of date")]
    Arbiter,
    #[error("the local device: {0}")]
    Local(IoError),
}

/// A peer between its last session and the marks for it, or its desired state. On drop, a handshake
/// decides.
pub(crate) struct Outdating {
    inner: Arc<Inner>,
    leg: usize,
    session_id: u64,
}

impl Drop for Outdating {
    fn drop(&mut self) {
        self.inner.reconnect(self.leg, self.session_id);
        self.inner.change(|state| {
            let own = &mut state.legs[self.leg];
            own.awaits_marks.take_if(|ended| *ended == self.session_id);
            own.reconnect_requests += 1;
        });
    }
}

/// A peer that may not take over, and whose session the operator's order ends. Until this is
/// dropped, the arbiter's record does not list it again, whatever its session becomes meanwhile.
pub(crate) struct Exclusion {
    inner: Arc<Inner>,
    leg: usize,
    _outdating: Option<Outdating>,
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        self.inner.change(|state| state.legs[self.leg].is_excluded = false);
    }
}

impl Inner {
    /// Ends a session in sync, and durably marks parts of the volume, given as offset and length in
    /// bytes, to be copied to the peer.
    pub(crate) async fn outdate(
        self: &Arc<Self>,
        leg: usize,
        session_id: u64,
        parts: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), NotOutdated> {
        let before = self.local.superblock().current;
        let _outdating = self.begin_outdating(leg, session_id)?;
        self.await_exclusion(leg, session_id).await?;
        // No session follows before the marks exist: it would be in sync without them.
        self.change(|state| {
            let own = &mut state.legs[leg];
            own.awaits_marks = own.is_current(session_id).then_some(session_id);
            own.awaits_marks.map(drop).ok_or(NotOutdated::Changed)
        })?;
        self.reconnect(leg, session_id);
        self.begin_generation_after(before).await?;
        parts.for_each(|(offset, len)| self.mark(leg, offset, len));
        self.local.persist_marks().await.map_err(NotOutdated::Local)
    }

    /// As [`Inner::outdate`], without the marks, for an attached peer to which no writes are sent
    /// yet. Nothing to do if the handshake would choose this side anyway.
    pub(crate) async fn outdate_attached(
        self: &Arc<Self>,
        leg: usize,
        session_id: u64,
        peers: &ReplicaIdentity,
    ) -> Result<(), NotOutdated> {
        let before = self.local.superblock().current;
        if peers.view.generations.current != before || peers.view.inconsistent {
            return Ok(());
        }
        self.await_exclusion(leg, session_id).await?;
        self.change(|state| state.legs[leg].generation_bumped = false);
        self.begin_generation_after(before).await
    }

    /// With automatic failover, has the arbiter's record exclude a peer whose session the operator
    /// is about to end: otherwise it could be granted the role, and this node would stop serving.
    /// `None` without automatic failover. On drop, a session in sync reconnects if it was not
    /// ended.
    ///
    /// # Errors
    /// [`NotOutdated::Changed`] if no hosts are served here; [`NotOutdated::Arbiter`].
    pub(crate) async fn exclude_peer(
        self: &Arc<Self>,
        leg: usize,
    ) -> Result<Option<Exclusion>, NotOutdated> {
        let excluding = async {
            let mut outdating = None;
            loop {
                // Without a session in sync, the task excludes the peer when it has to.
                let decided = |state: &mut StateGuard<'_>| match state.serving_right {
                    _ if !state.serving => Some(Err(NotOutdated::Changed)),
                    ServingRight::Contested { .. } => {
                        let own = &state.legs[leg];
                        let is_in_sync =
                            own.phase == LegPhase::InSync && own.is_current(own.session_id);
                        is_in_sync.then_some(Ok(Some(own.session_id)))
                    }
                    ServingRight::Manual => Some(Ok(None)),
                    // Under the lock: a resync may be about to end.
                    ServingRight::Alone(_) => {
                        state.legs[leg].is_excluded = true;
                        Some(Ok(None))
                    }
                };
                let Some(session_id) = self.wait(decided).await? else {
                    let is_excluded = self.lock().legs[leg].is_excluded;
                    let inner = self.clone();
                    return Ok(is_excluded.then_some(Exclusion {
                        inner,
                        leg,
                        _outdating: outdating,
                    }));
                };
                let Ok(begun) = self.begin_outdating(leg, session_id) else { continue };
                outdating = Some(begun);
                match self.await_exclusion(leg, session_id).await {
                    Ok(()) => {}
                    // The session was lost.
                    Err(NotOutdated::Changed) => outdating = None,
                    Err(error) => return Err(error),
                }
            }
        };
        let limit = Duration::from_millis(EXCLUDE_MS);
        time::timeout(limit, excluding).await.unwrap_or(Err(NotOutdated::Arbiter))
    }

    /// The peer counts as being brought up to date from now on, so the arbiter's record is changed.
    fn begin_outdating(
        self: &Arc<Self>,
        leg: usize,
        session_id: u64,
    ) -> Result<Outdating, NotOutdated> {
        self.change(|state| {
            let serving = state.serving;
            let own = &mut state.legs[leg];
            if !serving || !own.is_current(session_id) || own.phase != LegPhase::InSync {
                return Err(NotOutdated::Changed);
            }
            own.phase = LegPhase::Resync(ResyncAmount::Partial);
            Ok(Outdating { inner: self.clone(), leg, session_id })
        })
    }

    /// With automatic failover, waits until the arbiter's record excludes the peer, which renews
    /// the lease for reads meanwhile.
    async fn await_exclusion(&self, leg: usize, session_id: u64) -> Result<(), NotOutdated> {
        let excluded = |state: &mut StateGuard<'_>| match state.serving_right {
            _ if !state.serving || !state.legs[leg].is_current(session_id) => {
                Some(Err(NotOutdated::Changed))
            }
            ServingRight::Contested { .. } => None,
            ServingRight::Manual | ServingRight::Alone(_) => Some(Ok(())),
        };
        let limit = Duration::from_millis(EXCLUDE_MS);
        time::timeout(limit, self.wait(excluded)).await.unwrap_or(Err(NotOutdated::Arbiter))
    }

    /// Durably starts a generation after the peer's.
    async fn begin_generation_after(
        self: &Arc<Self>,
        peers: Generation,
    ) -> Result<(), NotOutdated> {
        self.ensure_new_generation().await.map_err(NotOutdated::Local)?;
        // None begins if the local leg has failed.
        (self.local.superblock().current != peers).then_some(()).ok_or(NotOutdated::Changed)
    }
}
