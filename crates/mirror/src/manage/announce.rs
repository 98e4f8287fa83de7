//! Announcements: a node that takes the role asks its peers and informs them, and a peer answers.
//!
//! Invariants:
//! - from the acceptance of an announcement until this node has acted on it, no change of role ends
//!   with this node serving;
//! - a deposed source refuses hosts at once, and confirms only when that is durable;
//! - while this node's own announcement stands, it refuses announcements with a lower epoch.
//!
//! A peer that does not answer in time counts as silent; its late answer has no effect.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::{spawn, spawn_detached, time};

use crate::agree::plan::plan;
use crate::agree::versions::LinkVersion;
use crate::id::MirrorId;
use crate::limits::{ASK_MS, DEPOSE_MS, PEERS_MAX, REFUSAL_MS, RETRY_MIN_MS};
use crate::manage::command::CommandError;
use crate::manage::order::OrderProgress;
use crate::manage::roles::{RoleChange, RoleError};
use crate::mirror::{Inner, StateGuard};
use crate::ondisk::superblock::ReplicaRole;
use crate::session::connect::{CloseOnDrop, SessionEnd};
use crate::state::machine::{
    self, Action, Answers, Event, NodeRole, OrderRefusal, PeerConsent, RoleAnswer, consented, next,
};
use crate::wire::peer::{
    PeerAnswer, PeerRefusal, PeerReply, PeerRequest, ReplicaIdentity, RequestError, SharedSession,
    execute, identify,
};

/// Epoch and UUID of a replica: a claim to be the source.
fn claim(identity: &ReplicaIdentity) -> (u64, MirrorId) {
    (identity.view.epoch, identity.view.replica)
}

/// Attempts to reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectAttempts {
    /// With a single attempt.
    Once,
    /// Until it answers or the time is up: both nodes may be starting.
    Retry,
}

/// A peer that answered, and its connection.
pub(crate) struct Reached {
    session: CloseOnDrop,
    identity: ReplicaIdentity,
}

/// This node's announcement that it takes the role; ends on drop.
pub(crate) struct Announcement(Arc<Inner>);

impl Drop for Announcement {
    fn drop(&mut self) {
        self.0.change(|state| state.announced = 0);
    }
}

impl Inner {
    /// Asks every peer once.
    pub(crate) async fn ask_all_peers(self: &Arc<Self>) -> Answers {
        self.ask_peers(ConnectAttempts::Once).await.0
    }

    /// Asks all peers at once.
    pub(crate) async fn ask_peers(
        self: &Arc<Self>,
        attempts: ConnectAttempts,
    ) -> (Answers, [Option<Reached>; PEERS_MAX]) {
        let limit = Duration::from_millis(match attempts {
            ConnectAttempts::Once => DEPOSE_MS,
            ConnectAttempts::Retry => ASK_MS,
        });
        let ask = |leg: usize| {
            let inner = self.clone();
            spawn(async move { time::timeout(limit, inner.ask_peer(leg, attempts)).await })
        };
        let asking: Vec<_> = (0..self.legs.len()).map(ask).collect();
        let (mut answers, mut reached) = (Answers::default(), [const { None }; PEERS_MAX]);
        for (leg, answer) in asking.into_iter().enumerate() {
            reached[leg] = answer.await.ok().and_then(Result::ok).flatten();
            answers[leg] =
                Some(reached[leg].as_ref().map_or(RoleAnswer::Silent, |peer: &Reached| {
                    let identity = &peer.identity;
                    let mine = self.identity(identity.view.replica);
                    RoleAnswer::Known {
                        serving: identity.is_serving,
                        epoch: identity.view.epoch,
                        plan: plan(&mine, identity),
                        differs: mine.view.generations.current != identity.view.generations.current,
                    }
                }));
        }
        (answers, reached)
    }

    /// True if a peer other than `leg`'s answers that it serves hosts. Without this check, a
    /// returning node would take the role besides that peer, because its data equals that of
    /// `leg`'s peer.
    pub(crate) async fn is_served_elsewhere(self: &Arc<Self>, leg: usize) -> bool {
        if self.legs.len() < 2 {
            return false;
        }
        let (answers, _) = self.ask_peers(ConnectAttempts::Once).await;
        let mut others = answers.iter().enumerate().filter(|(other, _)| *other != leg);
        others.any(|(_, answer)| matches!(answer, Some(RoleAnswer::Known { serving: true, .. })))
    }

    async fn ask_peer(self: &Arc<Self>, leg: usize, attempts: ConnectAttempts) -> Option<Reached> {
        loop {
            let connector = self.legs[leg].options().connector.clone();
            if let Ok(session) = connector.connect().await {
                let session = CloseOnDrop(session);
                let own = self.local.superblock().replica;
                if let Ok(identity) = identify(&session.0, own, self.versions).await {
                    return Some(Reached { session, identity });
                }
            }
            if attempts == ConnectAttempts::Once || self.lock().closed {
                return None;
            }
            time::sleep(Duration::from_millis(RETRY_MIN_MS)).await;
        }
    }

    /// Announces to every reachable peer that this node takes the role, and waits for the answers.
    /// Until the order ends, this node refuses announcements with a lower epoch.
    pub(crate) async fn announce(
        self: &Arc<Self>,
        forced: bool,
        progress: &mut OrderProgress,
    ) -> Result<(), CommandError> {
        let (_, reached) = self.ask_peers(ConnectAttempts::Once).await;
        let epochs = reached.iter().flatten().map(|peer| peer.identity.view.epoch);
        progress.seen = epochs.max().unwrap_or(0).max(self.epoch_seen());
        let is_silent = reached.iter().take(self.legs.len()).any(Option::is_none);
        if forced && is_silent && self.is_recorded_elsewhere() {
            return Err(OrderRefusal::OtherArbiter.into());
        }
        let epoch = self.epoch_after(progress.seen);
        let overtaken = self.change(|state| {
            let overtaken = state.promised > 0;
            state.announced = if overtaken { 0 } else { epoch };
            overtaken
        });
        if overtaken {
            return Err(OrderRefusal::Overtaken.into());
        }
        progress.announcement = Some(Announcement(self.clone()));
        let was_source =
            |peer: &Reached| peer.identity.is_serving || peer.identity.role == ReplicaRole::Source;
        progress.deposed = forced && reached.iter().flatten().any(was_source);
        let tell = |peer: Option<Reached>| {
            let inner = self.clone();
            spawn(async move { inner.announce_to(peer?, epoch, forced).await })
        };
        let telling: Vec<_> = reached.into_iter().take(self.legs.len()).map(tell).collect();
        let mut consents = Vec::new();
        for consent in telling {
            consents.push(consent.await.ok().flatten().unwrap_or(PeerConsent::Unreachable));
        }
        tracing::info!(
            replica = %self.local.superblock().replica,
            epoch,
            forced,
            "announced to the peers that this node takes the role: {consents:?}"
        );
        Ok(consented(&consents, forced)?)
    }

    async fn announce_to(&self, peer: Reached, epoch: u64, forced: bool) -> Option<PeerConsent> {
        if !self.deposes(&peer.identity) {
            return Some(PeerConsent::TooOld { serving: peer.identity.is_serving });
        }
        let volume = self.local.superblock().volume;
        let request = match forced {
            true => PeerRequest::Depose { volume, epoch },
            false => PeerRequest::Claim { volume, epoch },
        };
        let asked = execute(&peer.session.0, request);
        Some(match time::timeout(Duration::from_millis(DEPOSE_MS), asked).await {
            Ok(Ok(())) => PeerConsent::Yields,
            Ok(Err(RequestError::Refused(refusal))) => match refusal {
                PeerRefusal::Failed => PeerConsent::RefusesHosts,
                PeerRefusal::Serving => PeerConsent::Serves,
                PeerRefusal::Fenced(_) => PeerConsent::Later,
                _ => PeerConsent::Unknown,
            },
            _ => PeerConsent::Unknown,
        })
    }

    /// True if a peer supports [`PeerRequest::Depose`], and must be deposed.
    fn deposes(&self, peers: &ReplicaIdentity) -> bool {
        let common = self.versions.highest_common(peers.versions);
        let related = peers.view.volume == self.local.superblock().volume;
        related && common.is_ok_and(|version| version >= LinkVersion::DEPOSES)
    }

    /// At a handshake, orders a peer that still serves to stop, if this node's claim is later.
    pub(crate) async fn depose_peer(
        &self,
        session: &SharedSession,
        peers: &ReplicaIdentity,
    ) -> Result<(), RequestError> {
        let epoch = self.local.superblock().epoch;
        let prevails = self.lock().serving && peers.is_serving && epoch > peers.view.epoch;
        match prevails && self.deposes(peers) {
            true => {
                let volume = self.local.superblock().volume;
                execute(session, PeerRequest::Depose { volume, epoch }).await
            }
            false => Ok(()),
        }
    }

    /// As [`Inner::depose_peer`], independent of the outcome of the handshake: the peer may never
    /// connect by itself, because its leg is paused or its connections fail.
    pub(crate) async fn depose_if_serving(&self, session: &SharedSession, peers: &ReplicaIdentity) {
        if let Err(error) = self.depose_peer(session, peers).await {
            let peer = peers.view.replica;
            tracing::warn!(%peer, "the peer still serves hosts: {error}");
        }
    }

    /// Refuses announcements of nodes that are no peers of this volume.
    fn check_asker(&self, asker: MirrorId, volume: MirrorId) -> Result<(), PeerRefusal> {
        let superblock = self.local.superblock();
        let state = self.lock();
        // Two targets may never have had a handshake.
        let known = state.role != ReplicaRole::Source
            || state.legs.iter().any(|leg| leg.peer == asker)
            || superblock.peers.iter().any(|peer| peer.replica == asker);
        match known && !asker.is_none() && volume == superblock.volume {
            true => Ok(()),
            false => Err(PeerRefusal::Unrelated),
        }
    }

    /// Answers [`PeerRequest::Remove`].
    pub(crate) async fn follow_removal(
        self: &Arc<Self>,
        asker: MirrorId,
        (volume, epoch): (MirrorId, u64),
    ) -> PeerAnswer {
        self.check_asker(asker, volume)?;
        let _role_change = self.begin_role_change().await;
        let decided = next(&self.machine_state(), Event::Removed { epoch });
        let (after, actions) = decided.map_err(|refusal| self.refusal(refusal))?;
        let done = self.perform(after, actions.iter(), OrderProgress::default()).await;
        tracing::warn!(
            replica = %self.local.superblock().replica,
            peer = %asker,
            "the source has removed this replica from the mirror"
        );
        done.map(|_| PeerReply::Done).map_err(|_| PeerRefusal::Failed)
    }

    /// Answers [`PeerRequest::Depose`] and [`PeerRequest::Claim`]. Runs to its end even if the
    /// asker's connection is lost.
    pub(crate) async fn follow_announcement(
        self: &Arc<Self>,
        asker: MirrorId,
        (volume, epoch): (MirrorId, u64),
        forced: bool,
    ) -> PeerAnswer {
        self.check_asker(asker, volume)?;
        let refuses = self.change(|state| {
            let event = Event::Announced { epoch, forced };
            let (after, actions) = next(&self.machine_state_in(state), event)?;
            state.promised = after.promised;
            let refuses = actions.iter().any(|action| action == Action::RefuseHosts);
            if refuses {
                state.stop_serving();
            }
            Ok(refuses)
        });
        let refuses = refuses.map_err(|refusal: OrderRefusal| self.refusal(refusal))?;
        if refuses {
            tracing::warn!(
                replica = %self.local.superblock().replica,
                peer = %asker,
                epoch,
                "the peer takes the role by its operator's order: hosts are refused here"
            );
        }
        self.detach_source();
        let inner = self.clone();
        let task = spawn(async move {
            let role_change = inner.begin_role_change().await;
            let done = inner.yield_role((asker, epoch), forced, role_change).await;
            inner.change(|state| {
                if state.promised == epoch {
                    state.promised = 0;
                }
            });
            done
        });
        let limit = Duration::from_millis(REFUSAL_MS);
        let ended = time::timeout(limit, task).await.ok().and_then(Result::ok);
        ended.unwrap_or(Err(PeerRefusal::Failed))
    }

    pub(crate) fn refusal(&self, refusal: OrderRefusal) -> PeerRefusal {
        match refusal {
            OrderRefusal::Serving => PeerRefusal::Serving,
            OrderRefusal::Fenced => PeerRefusal::Fenced(self.local.superblock().epoch),
            OrderRefusal::Failed => PeerRefusal::Failed,
            _ => PeerRefusal::NotNow,
        }
    }

    /// Acts on an accepted announcement, up to its durable record. The rest may wait for calls in
    /// flight, and follows afterwards.
    async fn yield_role(
        self: &Arc<Self>,
        (asker, epoch): (MirrorId, u64),
        forced: bool,
        role_change: RoleChange,
    ) -> PeerAnswer {
        // A grant that the arbiter gives or gave for an earlier request counts no more.
        self.change(|state| state.attachments += 1);
        let is_source = self.lock().role == ReplicaRole::Source;
        if !forced && is_source {
            // The slot is about to be that of the successor.
            self.record_peer(asker).await.map_err(|_| PeerRefusal::Failed)?;
        }
        let event = match forced {
            true => Event::Deposed { epoch },
            false => Event::Claimed { by: self.slot_of(asker), epoch },
        };
        let decided = next(&self.machine_state(), event);
        let (after, actions) = decided.map_err(|refusal| self.refusal(refusal))?;
        let durable = |action: &Action| matches!(action, Action::Record(_));
        let first =
            actions.iter().position(|action| durable(&action)).map_or(usize::MAX, |at| at + 1);
        let mut progress = OrderProgress::default();
        let mut done = Ok(PeerReply::Done);
        for action in actions.iter().take(first) {
            if self.act(after.role.epoch(), action, &mut progress).await.is_err() {
                done = Err(PeerRefusal::Failed);
            }
        }
        let rest = actions.iter().skip(first);
        let inner = self.clone();
        spawn_detached(async move {
            let _role_change = role_change;
            if let Err(error) = inner.perform(after, rest, progress).await {
                tracing::error!("a deposed source did not stop cleanly: {error}");
            }
            inner.reconnect_all();
        });
        done
    }

    /// Steps down at a handshake with a peer that replaces this node as source.
    pub(crate) async fn give_way(
        self: &Arc<Self>,
        mine: &ReplicaIdentity,
        peers: &ReplicaIdentity,
    ) -> Result<(), SessionEnd> {
        let later = machine::later(claim(peers), claim(mine));
        let prevailing = (peers.is_serving && later).then_some(peers.view.epoch);
        let event = Event::HandshakeDone { plan: plan(mine, peers), prevailing };
        if next(&self.machine_state(), event).is_ok_and(|(_, actions)| actions.is_empty()) {
            return Ok(());
        }
        let _role_change = self.begin_role_change().await;
        // A write in flight may be the first one without the peer, and start a generation.
        let unchanged = self.wait(|state: &mut StateGuard<'_>| {
            if state.generation_bump.is_running() {
                return None;
            }
            let same = self.local.superblock().current == mine.view.generations.current;
            if same && state.serving {
                state.stop_serving();
            }
            Some(same)
        });
        let (after, actions) =
            next(&self.machine_state(), event).map_err(|_| SessionEnd::Changed)?;
        if !unchanged.await || actions.is_empty() {
            return Err(SessionEnd::Changed);
        }
        let replica = self.local.superblock().replica;
        match after.role {
            NodeRole::Deposed { .. } => tracing::warn!(
                %replica,
                "split brain: the peer serves under a later epoch; hosts are refused here, and the \
                 data written only here is kept"
            ),
            _ => tracing::warn!(
                %replica,
                "peer has been promoted to source; stepping down (no data lost)"
            ),
        }
        self.change(|_| {});
        let done = self.perform(after, actions.iter(), OrderProgress::default()).await;
        done.map(drop).map_err(|error| match error {
            CommandError::Role(RoleError::Io(error)) => SessionEnd::Local(error),
            _ => SessionEnd::Changed,
        })
    }

    /// Highest epoch in the last handshakes.
    fn epoch_seen(&self) -> u64 {
        let state = self.lock();
        let seen = state.legs.iter().filter_map(|leg| leg.last_handshake);
        seen.map(|handshake| handshake.view.epoch).max().unwrap_or(0)
    }
}
