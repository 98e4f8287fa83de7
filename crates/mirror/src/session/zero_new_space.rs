//! Zeroing new space on all replicas before a volume grows: see [`crate::ondisk::new_space`].
//!
//! The source asks its peers and zeroes its own space. A peer starts and answers [not
//! now](PeerRefusal::NotNow) until it has finished, so each request is short however slow the
//! device. A device that hangs fails it after a while ([`crate::ondisk::new_space`]). A peer that
//! is not asked, because it is of an [older version](LinkVersion::ZEROES_NEW_SPACE), or that was
//! reopened since, marks the new space as different when it grows, and it is copied.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::{spawn_detached, time};

use crate::agree::versions::LinkVersion;
use crate::limits::{PAGE_BYTES, ZERO_POLL_MS};
use crate::manage::command::CommandError;
use crate::manage::roles::RoleError;
use crate::mirror::{Inner, Mirror};
use crate::session::connect::CloseOnDrop;
use crate::wire::peer::{
    PeerAnswer, PeerRefusal, PeerReply, PeerRequest, RequestError, SharedSession, execute, identify,
};

impl Mirror {
    /// Zeroes the space that the volume would gain at `usable_bytes`, here and on all capable
    /// peers. The volume itself is unchanged. A later growth then needs no resync, except to peers
    /// of an older version.
    ///
    /// # Errors
    /// Errors of any replica; also without space or a connection; [`CommandError::NotInSync`] if
    /// the session to a peer ends meanwhile, or this node gives up its role. Hosts see no change.
    pub async fn zero_new_space(&self, usable_bytes: u64) -> Result<(), CommandError> {
        let inner = &self.0;
        let mut asked = Vec::new();
        let own = inner.local.superblock().replica;
        for (place, leg) in inner.legs.iter().enumerate() {
            let connector = leg.options().connector.clone();
            let session = CloseOnDrop(connector.connect().await.map_err(RequestError::from)?);
            // Identify again: the peer may have been upgraded or downgraded since.
            let peers = identify(&session.0, own, inner.versions).await?;
            let common = inner.versions.highest_common(peers.versions);
            if common.map_err(RequestError::from)? >= LinkVersion::ZEROES_NEW_SPACE {
                let own = &inner.lock().legs[place];
                asked.push((place, own.session.is_some().then_some(own.session_id), session));
            }
        }
        // All peers work in parallel.
        for (_, _, session) in &asked {
            is_zeroed(&session.0, usable_bytes).await?;
        }
        inner.local.zero_new_space(usable_bytes).await.map_err(RoleError::Io)?;
        // After all have finished, ask every peer again: it may have lost its zeroed space.
        for (leg, session_id, session) in asked.iter().chain(&asked) {
            while !is_zeroed(&session.0, usable_bytes).await? {
                time::sleep(Duration::from_millis(ZERO_POLL_MS)).await;
                let state = inner.lock();
                let lost = session_id.is_some_and(|id| !state.legs[*leg].is_current(id));
                if lost || !state.serving || state.closed {
                    return Err(CommandError::NotInSync);
                }
            }
        }
        match inner.local.room_bytes() {
            room_bytes if room_bytes < usable_bytes => {
                Err(CommandError::Role(RoleError::Io(IoError::OutOfRange)))
            }
            _ => Ok(()),
        }
    }
}

async fn is_zeroed(session: &SharedSession, usable_bytes: u64) -> Result<bool, RequestError> {
    match execute(session, PeerRequest::ZeroNewSpace { usable_bytes }).await {
        Ok(()) => Ok(true),
        Err(RequestError::Refused(PeerRefusal::NotNow)) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Inner {
    /// Answers [`PeerRequest::ZeroNewSpace`].
    pub(crate) fn zero_new_space(self: &Arc<Self>, usable_bytes: u64) -> PeerAnswer {
        {
            let mut state = self.lock();
            if state.serving {
                return Err(PeerRefusal::Serving);
            }
            if state.local_device_failed || std::mem::take(&mut state.zeroing_failed) {
                return Err(PeerRefusal::Failed);
            }
            if state.closed || state.zeroing {
                return Err(PeerRefusal::NotNow);
            }
        }
        // Querying the size of the device may block briefly.
        let whole = usable_bytes.is_multiple_of(PAGE_BYTES as u64);
        if !whole || usable_bytes > self.local.room_bytes() {
            return Err(PeerRefusal::Range);
        }
        if usable_bytes <= self.local.zeroed_bytes() {
            return Ok(PeerReply::Done);
        }
        // Concurrent requests share one run.
        if !std::mem::replace(&mut self.lock().zeroing, true) {
            spawn_detached(zero(self.clone(), usable_bytes));
        }
        Err(PeerRefusal::NotNow)
    }
}

async fn zero(inner: Arc<Inner>, usable_bytes: u64) {
    let replica = inner.local.superblock().replica;
    tracing::info!(%replica, usable_bytes, "zeroing the space that the volume is about to grow into");
    let cleared = inner.local.zero_new_space(usable_bytes).await;
    if let Err(error) = cleared {
        tracing::warn!(%replica, "cannot zero the space that the volume is about to grow into: {error}");
    }
    inner.change(|state| (state.zeroing, state.zeroing_failed) = (false, cleared.is_err()));
}
