//! Group session of a leg: a member waits here until the sessions of the other members are ready,
//! so that the writes of all members have one order.

use std::sync::Arc;

use crate::group::GroupSession;
use crate::mirror::Inner;
use crate::session::connect::SessionEnd;
use crate::wire::peer::{PeerRequest, SharedSession, execute};

/// A group session, which ends for all members if this one fails before it is open.
pub(super) struct JoinedGroup {
    inner: Arc<Inner>,
    leg: usize,
    session_id: u64,
    session: Arc<GroupSession>,
}

impl Drop for JoinedGroup {
    fn drop(&mut self) {
        let opened = {
            let state = self.inner.lock();
            let own = &state.legs[self.leg];
            own.session_id == self.session_id && own.opened_group_session
        };
        if let (Some(membership), false) = (&self.inner.group, opened) {
            membership.group.end(self.leg, &self.session);
        }
    }
}

impl Inner {
    pub(crate) fn group_tag(&self) -> u16 {
        self.group.as_ref().map_or(0, |membership| membership.group.tag())
    }

    /// Waits for the other members of the group, and orders the writes of this session with theirs.
    pub(super) async fn join_group(
        self: &Arc<Self>,
        leg: usize,
        session: &SharedSession,
        session_id: u64,
    ) -> Result<Option<JoinedGroup>, SessionEnd> {
        let Some(membership) = &self.group else { return Ok(None) };
        let window_bytes = self.legs[leg].options().queue.window_bytes;
        let gathered =
            membership.gather(leg, window_bytes).await.ok_or(SessionEnd::GroupIncomplete)?;
        let number = gathered.number;
        let numbering = gathered.numbering.clone();
        let joined =
            JoinedGroup { inner: self.clone(), leg, session_id, session: gathered.clone() };
        self.change(|state| {
            let own = &mut state.legs[leg];
            if !own.is_current(session_id) {
                return Err(SessionEnd::Lost);
            }
            (own.numbering, own.group_session) = (numbering, Some(gathered));
            Ok(())
        })?;
        execute(session, PeerRequest::JoinGroup { session: number }).await?;
        Ok(Some(joined))
    }

    /// Reports that this member's target is in sync or durably inconsistent, and waits for the
    /// other members.
    pub(super) async fn all_begun(&self, leg: usize) -> Result<(), SessionEnd> {
        let Some(membership) = &self.group else { return Ok(()) };
        let session = self.lock().legs[leg].group_session.clone().ok_or(SessionEnd::Changed)?;
        match membership.all_begun(leg, &session).await {
            true => Ok(()),
            false => Err(SessionEnd::Changed),
        }
    }
}
