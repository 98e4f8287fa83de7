//! All replicas of a volume zero what it is about to grow over: see [`crate::room`].
//!
//! The source asks its peers and does the same itself. Who is asked begins, and answers [not
//! now](Refusal::NotNow) until it has: a question is short, whatever the device takes. Who is not
//! asked, because it is of an [older version](Version::CLEARS_ROOM), or was opened anew since, marks
//! what is new when it grows, and that is copied.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::{spawn_detached, time};

use crate::command::CommandError;
use crate::connect::Closing;
use crate::limits::{CLEAR_LOOK_MS, PAGE_BYTES};
use crate::mirror::{Inner, Mirror};
use crate::peer::{Answer, AskError, Refusal, Reply, Request, SharedSession, identify, order};
use crate::roles::RoleError;
use crate::versions::Version;

impl Mirror {
    /// Zeroes, here and at all peers that can, what the volume would have more with so many bytes. The
    /// volume stays as it is: it can be asked to grow when this has returned, and then it is whole at
    /// once, but at peers of an older version, to which what is new is copied.
    ///
    /// # Errors
    /// Of any of them, or that one has no room for so much, or cannot be reached. Nothing that hosts
    /// can see has changed.
    pub async fn clear_room(&self, usable_bytes: u64) -> Result<(), CommandError> {
        let inner = &self.0;
        let mut asked = Vec::new();
        let own = inner.local.superblock().replica;
        for leg in &inner.legs {
            let way = leg.options().way.clone();
            let session = Closing(way.connect().await.map_err(AskError::from)?);
            // As it is now: it may have been upgraded, or put back, since the leg's session began.
            let peers = identify(&session.0, own, inner.versions).await?;
            let common = inner.versions.highest_common(peers.versions);
            if common.map_err(AskError::from)? >= Version::CLEARS_ROOM {
                asked.push(session);
            }
        }
        // All are at it at the same time.
        for session in &asked {
            is_cleared(&session.0, usable_bytes).await?;
        }
        inner.local.clear_room(usable_bytes).await.map_err(RoleError::Io)?;
        for session in &asked {
            while !is_cleared(&session.0, usable_bytes).await? {
                time::sleep(Duration::from_millis(CLEAR_LOOK_MS)).await;
            }
        }
        Ok(())
    }
}

async fn is_cleared(session: &SharedSession, usable_bytes: u64) -> Result<bool, AskError> {
    match order(session, Request::ClearRoom { usable_bytes }).await {
        Ok(()) => Ok(true),
        Err(AskError::Refused(Refusal::NotNow)) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Inner {
    /// Answers [`Request::ClearRoom`].
    pub(crate) fn clear_room(self: &Arc<Self>, usable_bytes: u64) -> Answer {
        {
            let mut state = self.lock();
            if state.active {
                return Err(Refusal::Active);
            }
            if state.local_failed || std::mem::take(&mut state.clear_failed) {
                return Err(Refusal::Failed);
            }
            if state.closed || state.clearing {
                return Err(Refusal::NotNow);
            }
        }
        // To ask the device for its size may block for a moment.
        let whole = usable_bytes.is_multiple_of(PAGE_BYTES as u64);
        if !whole || usable_bytes > self.local.room_bytes() {
            return Err(Refusal::Range);
        }
        if usable_bytes <= self.local.cleared_bytes() {
            return Ok(Reply::Done);
        }
        // Two that ask at once are one.
        if !std::mem::replace(&mut self.lock().clearing, true) {
            spawn_detached(clear(self.clone(), usable_bytes));
        }
        Err(Refusal::NotNow)
    }
}

async fn clear(inner: Arc<Inner>, usable_bytes: u64) {
    let replica = inner.local.superblock().replica;
    tracing::info!(%replica, usable_bytes, "what the volume is about to grow over is zeroed");
    let cleared = inner.local.clear_room(usable_bytes).await;
    if let Err(error) = cleared {
        tracing::warn!(%replica, "what the volume is to grow over cannot be zeroed: {error}");
    }
    inner.change(|state| (state.clearing, state.clear_failed) = (false, cleared.is_err()));
}
