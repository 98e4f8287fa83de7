//! Orders that resolve a split brain: see [`Resolution`].

use std::sync::Arc;

use crate::agree::plan::{HandshakePlan, plan};
use crate::manage::command::CommandError;
use crate::mirror::{Inner, Mirror};
use crate::session::connect::CloseOnDrop;
use crate::session::split_brain::common;
use crate::state::machine::{Event, OperatorOrder, OrderRefusal, Resolution, next};
use crate::state::status::LegPhase;
use crate::wire::peer::{
    PeerRefusal, PeerRequest, ReplicaIdentity, RequestError, execute, identify,
};

/// A resolution in progress at this node; ends on drop.
pub(crate) struct RunningResolution(Arc<Inner>);

impl Drop for RunningResolution {
    fn drop(&mut self) {
        self.0.change(|state| state.resolution = Resolution::Idle);
    }
}

impl Inner {
    /// Begins a resolution. Until it ends, no other begins here.
    pub(crate) fn begin_resolution(
        self: &Arc<Self>,
        wanted: Resolution,
    ) -> Result<RunningResolution, OrderRefusal> {
        self.change(|state| {
            state.resolution = state.resolution.begin(wanted)?;
            Ok(RunningResolution(self.clone()))
        })
    }

    /// Refuses to discard one volume of a group that hosts use here: the other volumes would stay.
    fn check_group_unserved(&self) -> Result<(), CommandError> {
        let serves = |member: &Arc<Inner>| member.lock().serving;
        let members = self.group.as_ref().map(|membership| membership.group().members());
        match members.is_some_and(|members| members.iter().flatten().any(serves)) {
            true => Err(CommandError::GroupServes),
            false => Ok(()),
        }
    }

    /// Refuses to discard data for which a source counts on this node.
    fn check_own_discard(&self) -> Result<(), CommandError> {
        let (after, _) = next(&self.machine_state(), Event::Order(OperatorOrder::Demote))?;
        next(&after, Event::Discarded)?;
        Ok(())
    }

    /// Identifies a peer and checks that there is a split brain.
    async fn look_at_split(
        &self,
        leg: usize,
    ) -> Result<(ReplicaIdentity, ReplicaIdentity, CloseOnDrop), CommandError> {
        let connector = self.leg(leg)?.options().connector.clone();
        let session = CloseOnDrop(connector.connect().await.map_err(RequestError::from)?);
        let own = self.local.superblock().replica;
        let peers = identify(&session.0, own, self.versions).await?;
        let mine = self.identity(peers.view.replica);
        match plan(&mine, &peers) {
            HandshakePlan::SplitBrain => Ok((mine, peers, session)),
            _ => Err(CommandError::NoSplitBrain),
        }
    }

    /// As [`Inner::look_at_split`], before this node discards its data: the peer must keep its own.
    async fn look_before_discard(
        &self,
        leg: usize,
    ) -> Result<(ReplicaIdentity, ReplicaIdentity), CommandError> {
        let (mine, peers, _) = self.look_at_split(leg).await?;
        match peers.is_discarding {
            true => Err(OrderRefusal::PeerDiscards.into()),
            false => Ok((mine, peers)),
        }
    }
}

impl Mirror {
    /// Resolves a split brain in favor of this side: the peer, unless serving, discards its data.
    ///
    /// # Errors
    /// See [`CommandError`]. Without an answer the peer may still discard its data. While it does,
    /// [`Mirror::resolve_keep_peers`] is refused.
    pub async fn resolve_keep_mine(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        let _resolution = inner.begin_resolution(Resolution::KeepsOwn)?;
        let (mine, peers, session) = inner.look_at_split(leg).await?;
        let (base, expected) = (common(&mine, &peers), peers.view.generations.current);
        let done = execute(&session.0, PeerRequest::Discard { base, expected }).await;
        drop(session);
        if done.is_ok() {
            inner.set_idle_phase(leg, LegPhase::Disconnected);
        }
        inner.reconnect_all();
        Ok(done?)
    }

    /// Resolves a split brain in favor of the peer: this side stops serving and discards the data
    /// that it wrote alone.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn resolve_keep_peers(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        let resolution = inner.begin_resolution(Resolution::Discards)?;
        inner.look_before_discard(leg).await?;
        inner.check_own_discard()?;
        inner.check_group_unserved()?;
        let _order = inner.running_order();
        inner.order_alone(OperatorOrder::Demote).await?;
        // The peer may have begun to discard its data before this node's intention was visible, or
        // may have carried out an order since.
        let (mine, peers) = inner.look_before_discard(leg).await?;
        let (base, expected) = (common(&mine, &peers), mine.view.generations.current);
        let discarded = inner.discard_to_the_end(resolution, base, expected).await;
        discarded.map_err(RequestError::Refused)?;
        inner.set_idle_phase(leg, LegPhase::Disconnected);
        inner.reconnect_all();
        Ok(())
    }

    /// Dry run of [`Mirror::resolve_keep_mine`] or [`Mirror::resolve_keep_peers`]: asks the peer
    /// and changes nothing.
    ///
    /// # Errors
    /// The errors of the command itself, except for failures during its execution.
    pub async fn check_resolve(&self, leg: usize, keep_mine: bool) -> Result<(), CommandError> {
        let inner = &self.0;
        let resolution = inner.lock().resolution;
        if !keep_mine {
            resolution.begin(Resolution::Discards)?;
            inner.look_before_discard(leg).await?;
            inner.check_own_discard()?;
            return inner.check_group_unserved();
        }
        resolution.begin(Resolution::KeepsOwn)?;
        let (_, peers, _) = inner.look_at_split(leg).await?;
        // Same check as in `Inner::discard_data` on the peer.
        match (peers.is_serving, peers.has_source) {
            (true, _) => Err(RequestError::Refused(PeerRefusal::Serving).into()),
            (false, true) => Err(RequestError::Refused(PeerRefusal::NotNow).into()),
            (false, false) => Ok(()),
        }
    }
}
