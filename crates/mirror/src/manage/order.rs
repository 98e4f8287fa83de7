//! Orders: carries out the transitions of [`crate::state::machine`].
//!
//! A transition is decided and carried out under the role lock, so that nothing it depends on
//! changes in between. The exception is [`Event::Announced`]: it takes effect before the lock, because
//! a change of role in progress may wait for a disk that hangs. Until this node has acted on it, no
//! change of role ends with this node serving.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::{spawn, spawn_detached, time};

use crate::agree::plan::plan;
use crate::agree::versions::LinkVersion;
use crate::id::MirrorId;
use crate::io::deliver::Undelivered;
use crate::limits::{
    ASK_MS, DEPOSE_MS, LOCAL_IO_MS, PEERS_MAX, QUEUE_DELIVERY_MS, REFUSAL_MS, RETRY_MIN_MS,
};
use crate::manage::command::CommandError;
use crate::manage::roles::{AdmissionBlock, Promotion, RoleChange, RoleError};
use crate::manage::transfer::Transfer;
use crate::mirror::{Inner, Mirror, State, StateGuard};
use crate::ondisk::superblock::{ReplicaRole, Superblock};
use crate::session::connect::{CloseOnDrop, SessionEnd};
use crate::state::machine::{
    self, Action, Answer, Answers, Claim, Consent, Disk, Event, Leader, Leg, Order, Record,
    Refusal, Role, consented, next,
};
use crate::wire::peer::{
    PeerAnswer, PeerRefusal, PeerReply, PeerRequest, ReplicaIdentity, RequestError, SharedSession,
    execute, identify,
};

impl From<Refusal> for RoleError {
    fn from(refusal: Refusal) -> RoleError {
        match refusal {
            Refusal::Inconsistent => RoleError::Inconsistent,
            Refusal::Blank => RoleError::Blank,
            Refusal::Failed => RoleError::LocalFailed,
            Refusal::Unverified => RoleError::Unverified,
            other => RoleError::Refused(other),
        }
    }
}

impl From<Refusal> for CommandError {
    fn from(refusal: Refusal) -> CommandError {
        match refusal {
            Refusal::NoPeer => CommandError::NoPeer,
            Refusal::NotInSync => CommandError::NotInSync,
            other => CommandError::Role(other.into()),
        }
    }
}

/// Epoch and UUID of a replica: a claim to be the source.
fn claim(identity: &ReplicaIdentity) -> (u64, MirrorId) {
    (identity.view.epoch, identity.view.replica)
}

impl Mirror {
    /// The state on which [`next`] decides.
    pub fn machine_state(&self) -> machine::State {
        self.0.machine_state()
    }

    /// True if [`Mirror::start`] asks peers first, which may take [`ASK_MS`].
    pub fn asks_before_it_serves(&self) -> bool {
        let opened = next(&self.machine_state(), Event::Opened);
        opened.is_ok_and(|(_, actions)| actions.iter().any(|action| action == Action::AskPeers))
    }

    /// Asks every peer whether it serves hosts, for [`Order::Failover`]. Changes nothing.
    pub async fn ask_peers(&self) -> Answers {
        self.0.ask_peers(Patience::Once).await.0
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn order(&self, order: Order) -> Result<(), CommandError> {
        self.0.order(order).await.map(drop)
    }
}

/// How a peer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// With a single attempt.
    Once,
    /// Until it answers or the time is up: both nodes may be starting.
    Retry,
}

/// A peer that answered, with the connection on which it did.
struct Reached {
    session: CloseOnDrop,
    identity: ReplicaIdentity,
}

/// An order to change the role, until it is dropped. Meanwhile a call to a local device that hangs
/// fails after a while, so that the order ends.
pub(crate) struct RunningOrder(Arc<Inner>);

impl Drop for RunningOrder {
    fn drop(&mut self) {
        self.0.change(|state| state.orders -= 1);
    }
}

/// The announcement that this node takes the role, until it is dropped.
struct Announcement(Arc<Inner>);

impl Drop for Announcement {
    fn drop(&mut self) {
        self.0.change(|state| state.announced = 0);
    }
}

/// State of [`Inner::perform`] from one action to the next.
#[derive(Default)]
pub(crate) struct Progress {
    /// Blocks host calls from [`Action::Drain`] until the transition ends.
    block: Option<AdmissionBlock>,
    /// The highest epoch that a peer has reported.
    seen: u64,
    /// A source was reached and deposed.
    deposed: bool,
    announcement: Option<Announcement>,
    /// Epoch and revision that the arbiter has recorded.
    granted: Option<(u64, u64)>,
    /// Terms on which the source has handed its role to this node.
    handed_over: Option<Promotion>,
    /// This node stops after it has handed its role over.
    leaves: bool,
    /// Acknowledged writes that peers lack after [`Action::DeliverQueues`].
    pub(crate) undelivered: Vec<Undelivered>,
}

impl Progress {
    /// For a transition that takes an epoch after `seen`.
    pub(crate) fn after(seen: u64) -> Progress {
        Progress { seen, ..Progress::default() }
    }

    /// For a transition of a target to which its source hands over, as [`Progress::after`].
    pub(crate) fn handed_over(seen: u64, revision: u64, leaves: bool) -> Progress {
        let handed_over = Some(Promotion::HandedOver { revision, leaves });
        Progress { handed_over, ..Progress::after(seen) }
    }

    /// For an order to hand the role over, of a node that stops afterwards.
    pub(crate) fn leaving() -> Progress {
        Progress { leaves: true, ..Progress::default() }
    }

    /// For a transition that the arbiter has granted.
    pub(crate) fn granted(epoch: u64, revision: u64) -> Progress {
        Progress { granted: Some((epoch, revision)), ..Progress::default() }
    }
}

impl Inner {
    pub(crate) fn machine_state(&self) -> machine::State {
        self.machine_state_in(&self.lock())
    }

    pub(crate) fn machine_state_in(&self, state: &State) -> machine::State {
        let superblock = self.local.superblock();
        let epoch = superblock.epoch;
        let ended = state.closed || !matches!(state.transfer, Transfer::None);
        let role = match state.role {
            _ if ended => Role::Closed,
            _ if state.serving => Role::Serving { epoch },
            ReplicaRole::Source => {
                Role::Waiting { epoch, handed_over: superblock.designated_successor.is_some() }
            }
            ReplicaRole::Target => Role::Target { epoch, attached: state.attached.is_some() },
            ReplicaRole::Deposed => Role::Deposed { by: epoch },
        };
        let disk = match superblock.flags.inconsistent {
            _ if state.local_device_failed => Disk::Failed,
            true if !superblock.not_received.is_empty() => Disk::Incomplete,
            true => Disk::Inconsistent,
            false if superblock.current.is_none() => Disk::Blank,
            false if state.unverified => Disk::Unverified,
            false if superblock.removed => Disk::Removed,
            false => Disk::Consistent,
        };
        let mut legs = [None; PEERS_MAX];
        for (place, leg) in legs.iter_mut().zip(&state.legs) {
            *place = Some(Leg { desired: leg.desired_state, phase: leg.phase });
        }
        let records = superblock.peers.each_ref().map(|record| match record {
            record if record.replica.is_none() => Record::Unknown,
            record if record.is_outdated() => Record::Outdated,
            _ => Record::Current,
        });
        let State { promised, announced, .. } = *state;
        // The leader's state is locked after another member's, never before it.
        let follows = self.group.as_ref().filter(|membership| !membership.is_leader());
        let leader = follows.map(|membership| match membership.leader() {
            Some(leader) => Leader::of(leader.machine_state().role),
            None => Leader::Absent,
        });
        machine::State { role, disk, legs, records, promised, announced, leader }
    }

    /// Carries out an order, which concerns all members of a group. Returns the writes that it left
    /// undelivered. A stop concerns only this member: no write follows it.
    pub(crate) async fn order(
        self: &Arc<Self>,
        order: Order,
    ) -> Result<Vec<Undelivered>, CommandError> {
        match &self.group {
            Some(membership) if order != Order::Stop => {
                Box::pin(membership.group.order(order)).await
            }
            _ => self.order_alone(order).await,
        }
    }

    /// As [`Inner::order`], for this mirror only.
    pub(crate) async fn order_alone(
        self: &Arc<Self>,
        order: Order,
    ) -> Result<Vec<Undelivered>, CommandError> {
        match order {
            // The peer that hands over its role changes the role here.
            Order::TakeOver(_) => self.transition(Event::Order(order)).await,
            Order::SetDesired(..) => {
                let (inner, limit) = (self.clone(), Duration::from_millis(LOCAL_IO_MS));
                // Independent of the role: a change of role may wait for a disk. The only copy may be
                // behind a disk that hangs, so that is no reason to give it up.
                let task = spawn(async move {
                    let _guard = inner.desired_state_lock.acquire().await;
                    inner.transition(Event::Order(order)).await
                });
                let ended = time::timeout(limit, task).await.ok().and_then(Result::ok);
                ended.unwrap_or(Err(CommandError::DeviceBusy))
            }
            Order::Failover { .. } => {
                let _order = self.running_order();
                let _role_change = self.begin_role_change().await;
                // The answers given with the order are older than the lock.
                let answers = self.ask_all_peers().await;
                self.transition(Event::Order(Order::Failover { answers })).await
            }
            _ => {
                let _order = self.running_order();
                let _role_change = self.begin_role_change().await;
                let done = self.transition(Event::Order(order)).await;
                // A node that was ordered to stop does not take the role back at once.
                self.failover.answered();
                done
            }
        }
    }

    /// Decides an event and carries it out. The caller holds the role lock.
    pub(crate) async fn transition(
        self: &Arc<Self>,
        event: Event,
    ) -> Result<Vec<Undelivered>, CommandError> {
        let (after, actions) = next(&self.machine_state(), event)?;
        self.perform(after, actions.iter(), Progress::default()).await
    }

    /// Asks every peer once.
    pub(crate) async fn ask_all_peers(self: &Arc<Self>) -> Answers {
        self.ask_peers(Patience::Once).await.0
    }

    pub(crate) fn running_order(self: &Arc<Self>) -> RunningOrder {
        self.change(|state| state.orders += 1);
        RunningOrder(self.clone())
    }

    /// Serves after a start, if this node's records and the peers allow it. With `ask` false, the
    /// same process has served until now.
    pub(crate) async fn serve_after_start(self: &Arc<Self>, ask: bool) -> Result<bool, RoleError> {
        let mut answers = Answers::default();
        if ask && Mirror(self.clone()).asks_before_it_serves() {
            answers = self.ask_peers(Patience::Retry).await.0;
        }
        // A source that attaches meanwhile would make this side a target.
        let _role_change = self.begin_role_change().await;
        self.transition(Event::Asked(answers)).await.map_err(|error| match error {
            CommandError::Role(error) => error,
            _ => RoleError::Refused(Refusal::Closed),
        })?;
        Ok(self.lock().serving)
    }

    /// Carries out actions in order. The caller holds the role lock.
    pub(crate) async fn perform(
        self: &Arc<Self>,
        after: machine::State,
        actions: impl Iterator<Item = Action>,
        mut progress: Progress,
    ) -> Result<Vec<Undelivered>, CommandError> {
        for action in actions {
            self.act(after.role.epoch(), action, &mut progress).await?;
        }
        Ok(progress.undelivered)
    }

    pub(crate) async fn act(
        self: &Arc<Self>,
        epoch: u64,
        action: Action,
        progress: &mut Progress,
    ) -> Result<(), CommandError> {
        match action {
            // Carried out before, by `serve_after_start`.
            Action::AskPeers => {}
            Action::RefuseHosts => self.refuse_hosts(),
            Action::Drain => {
                progress.block = Some(self.block_admission());
                self.drain().await;
            }
            Action::CheckDevices => {
                self.local.check_devices().await.map_err(RoleError::Io)?;
                // A call in flight may have failed the local leg: the peer serves the volume now.
                if self.lock().local_device_failed {
                    return Err(RoleError::LocalFailed.into());
                }
            }
            Action::DeliverQueues | Action::LeaveBehind => {
                let delivers = action == Action::DeliverQueues;
                let limit_ms = if delivers { QUEUE_DELIVERY_MS } else { 0 };
                // Nothing new may enter a queue meanwhile.
                let block = progress.block.get_or_insert_with(|| self.block_admission());
                progress.undelivered =
                    self.deliver_queues(block, Duration::from_millis(limit_ms)).await;
                self.leave_behind(&progress.undelivered).await;
            }
            Action::Settle => self.drain().await,
            Action::EndSessions => self.end_sessions(),
            Action::Record(role) => self.record_role(role, epoch).await.map_err(RoleError::Io)?,
            Action::PutAway(role) => self.record_unused(role, None).await.map_err(RoleError::Io)?,
            Action::RecordEpoch(epoch) => {
                let record = move |superblock: &mut Superblock| {
                    superblock.epoch = superblock.epoch.max(epoch);
                };
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::RecordSuccessor(slot) => {
                let record = move |superblock: &mut Superblock| {
                    superblock.designated_successor = Some(slot);
                };
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::Announce { forced } => self.announce(forced, progress).await?,
            Action::Detach => self.detach_source(),
            Action::EndAttachment => self.end_attachment().await,
            Action::RecordRemoved => {
                let record = |superblock: &mut Superblock| superblock.removed = true;
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::TrustData(_) => self.trust_data().await.map_err(RoleError::Io)?,
            Action::LeaveRole => self.change(|state| state.role = ReplicaRole::Target),
            Action::ServeThroughPeer => self.serve_through_peer()?,
            Action::RaiseEpoch => {
                self.raise_epoch(progress.seen).await.map_err(RoleError::Io)?;
            }
            // Carried out by the requests of a peer, which have the details.
            Action::Admit | Action::Discard => {}
            Action::Serve(claim) => {
                let promotion = match (claim, progress.deposed) {
                    (Claim::Granted, _) => {
                        let (epoch, revision) = progress.granted.ok_or(Refusal::NotEntitled)?;
                        Promotion::Granted { epoch, revision }
                    }
                    (Claim::Resumed, _) => Promotion::Resumed,
                    (Claim::Agreed, _) => progress.handed_over.unwrap_or(Promotion::Agreed),
                    (Claim::Forced, false) => Promotion::Alone,
                    (Claim::Forced, true) => Promotion::Overriding,
                };
                self.start_serving_as_source(progress.seen, promotion).await?;
                self.reconnect_all();
            }
            Action::HandOver(leg) => {
                let done = self.hand_over_to(leg, progress.leaves).await;
                // The peer may serve, and has the same time to be heard as a source.
                self.failover.answered();
                done?;
            }
            Action::AskForRole(leg) => self.ask_for_role(leg).await?,
            Action::MarkAll(leg) => {
                self.mark(leg, 0, self.local.superblock().geometry.usable_bytes);
                self.local.persist_marks().await.map_err(RoleError::Io)?;
            }
            Action::StoreDesired(leg, desired) => {
                self.store_desired_state(leg, desired).await.map_err(RoleError::Io)?;
            }
            Action::Reconnect => self.reconnect_all(),
        }
        Ok(())
    }

    async fn trust_data(&self) -> Result<(), IoError> {
        let trust = |superblock: &mut Superblock| {
            (superblock.unverified, superblock.removed) = (false, false);
            let lacks = std::mem::take(&mut superblock.not_received);
            superblock.flags.inconsistent &= lacks.is_empty();
            lacks
        };
        let lacks = self.local.update(trust).await?;
        if !lacks.is_empty() {
            let replica = self.local.superblock().replica;
            tracing::warn!(%replica, "serving older data in the byte ranges {lacks:?}");
        }
        self.change(|state| state.unverified = false);
        Ok(())
    }

    pub(crate) fn refuse_hosts(&self) {
        let refused = self.change(|state| {
            let serving = state.serving;
            if serving {
                state.stop_serving();
            }
            serving
        });
        if refused {
            tracing::info!(replica = %self.local.superblock().replica, "no longer serving hosts");
        }
    }

    /// Durably records the role, and an epoch seen with it. It is in effect before.
    async fn record_role(&self, role: ReplicaRole, epoch: u64) -> Result<(), IoError> {
        self.change(|state| state.role = role);
        self.local
            .update(move |superblock| {
                (superblock.role, superblock.designated_successor) = (role, None);
                superblock.epoch = superblock.epoch.max(epoch);
            })
            .await
    }

    /// The highest epoch of the last handshakes.
    fn epoch_seen(&self) -> u64 {
        let state = self.lock();
        let seen = state.legs.iter().filter_map(|leg| leg.last_handshake);
        seen.map(|handshake| handshake.view.epoch).max().unwrap_or(0)
    }
}

/// Asking peers, and deposing them.
impl Inner {
    /// Asks all peers at once.
    async fn ask_peers(
        self: &Arc<Self>,
        patience: Patience,
    ) -> (Answers, [Option<Reached>; PEERS_MAX]) {
        let limit = Duration::from_millis(match patience {
            Patience::Once => DEPOSE_MS,
            Patience::Retry => ASK_MS,
        });
        let ask = |leg: usize| {
            let inner = self.clone();
            spawn(async move { time::timeout(limit, inner.ask_peer(leg, patience)).await })
        };
        let asking: Vec<_> = (0..self.legs.len()).map(ask).collect();
        let (mut answers, mut reached) = (Answers::default(), [const { None }; PEERS_MAX]);
        for (leg, answer) in asking.into_iter().enumerate() {
            reached[leg] = answer.await.ok().and_then(Result::ok).flatten();
            answers[leg] = Some(reached[leg].as_ref().map_or(Answer::Silent, |peer: &Reached| {
                let identity = &peer.identity;
                let mine = self.identity(identity.view.replica);
                Answer::Known {
                    serving: identity.is_serving,
                    epoch: identity.view.epoch,
                    plan: plan(&mine, identity),
                    differs: mine.view.generations.current != identity.view.generations.current,
                }
            }));
        }
        (answers, reached)
    }

    /// Whether a peer other than `leg`'s answers and serves hosts. A node that returns would
    /// otherwise take the role beside it, because the met peer is equal.
    pub(crate) async fn is_served_elsewhere(self: &Arc<Self>, leg: usize) -> bool {
        if self.legs.len() < 2 {
            return false;
        }
        let (answers, _) = self.ask_peers(Patience::Once).await;
        let mut others = answers.iter().enumerate().filter(|(other, _)| *other != leg);
        others.any(|(_, answer)| matches!(answer, Some(Answer::Known { serving: true, .. })))
    }

    async fn ask_peer(self: &Arc<Self>, leg: usize, patience: Patience) -> Option<Reached> {
        loop {
            let connector = self.legs[leg].options().connector.clone();
            if let Ok(session) = connector.connect().await {
                let session = CloseOnDrop(session);
                let own = self.local.superblock().replica;
                if let Ok(identity) = identify(&session.0, own, self.versions).await {
                    return Some(Reached { session, identity });
                }
            }
            if patience == Patience::Once || self.lock().closed {
                return None;
            }
            time::sleep(Duration::from_millis(RETRY_MIN_MS)).await;
        }
    }

    /// Announces to every peer that can be reached that this node takes the role, and waits for its
    /// answer. From here on until the order ends, peers' announcements with a lower epoch are
    /// refused.
    async fn announce(
        self: &Arc<Self>,
        forced: bool,
        progress: &mut Progress,
    ) -> Result<(), CommandError> {
        let (_, reached) = self.ask_peers(Patience::Once).await;
        let epochs = reached.iter().flatten().map(|peer| peer.identity.view.epoch);
        progress.seen = epochs.max().unwrap_or(0).max(self.epoch_seen());
        let epoch = self.epoch_after(progress.seen);
        let overtaken = self.change(|state| {
            let overtaken = state.promised > 0;
            state.announced = if overtaken { 0 } else { epoch };
            overtaken
        });
        if overtaken {
            return Err(Refusal::Overtaken.into());
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
            consents.push(consent.await.ok().flatten().unwrap_or(Consent::Unreachable));
        }
        tracing::info!(
            replica = %self.local.superblock().replica,
            epoch,
            forced,
            "announced to the peers that this node takes the role: {consents:?}"
        );
        Ok(consented(&consents, forced)?)
    }

    async fn announce_to(&self, peer: Reached, epoch: u64, forced: bool) -> Option<Consent> {
        if !self.deposes(&peer.identity) {
            return Some(Consent::TooOld { serving: peer.identity.is_serving });
        }
        let volume = self.local.superblock().volume;
        let request = match forced {
            true => PeerRequest::Depose { volume, epoch },
            false => PeerRequest::Claim { volume, epoch },
        };
        let asked = execute(&peer.session.0, request);
        Some(match time::timeout(Duration::from_millis(DEPOSE_MS), asked).await {
            Ok(Ok(())) => Consent::Yields,
            Ok(Err(RequestError::Refused(refusal))) => match refusal {
                PeerRefusal::Failed => Consent::RefusesHosts,
                PeerRefusal::Serving => Consent::Serves,
                PeerRefusal::Fenced(_) => Consent::Later,
                _ => Consent::Unknown,
            },
            _ => Consent::Unknown,
        })
    }

    /// Whether a peer understands [`PeerRequest::Depose`], and it concerns the peer.
    fn deposes(&self, peers: &ReplicaIdentity) -> bool {
        let common = self.versions.highest_common(peers.versions);
        let related = peers.view.volume == self.local.superblock().volume;
        related && common.is_ok_and(|version| version >= LinkVersion::DEPOSES)
    }

    /// Orders a peer that still serves at a handshake to stop, if this node's claim is later.
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

    /// As [`Inner::depose_peer`], where the outcome of the handshake does not depend on it: the peer
    /// may never connect by itself, because its leg is paused or its connections fail.
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
        // Two targets need not have met.
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
        let done = self.perform(after, actions.iter(), Progress::default()).await;
        tracing::warn!(
            replica = %self.local.superblock().replica,
            peer = %asker,
            "the source has removed this replica from the mirror"
        );
        done.map(|_| PeerReply::Done).map_err(|_| PeerRefusal::Failed)
    }

    /// Answers [`PeerRequest::Depose`] and [`PeerRequest::Claim`]. Carried out also if the asker's
    /// connection ends meanwhile.
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
        let refuses = refuses.map_err(|refusal: Refusal| self.refusal(refusal))?;
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

    pub(crate) fn refusal(&self, refusal: Refusal) -> PeerRefusal {
        match refusal {
            Refusal::Serving => PeerRefusal::Serving,
            Refusal::Fenced => PeerRefusal::Fenced(self.local.superblock().epoch),
            Refusal::Failed => PeerRefusal::Failed,
            _ => PeerRefusal::NotNow,
        }
    }

    /// Acts on an announcement that was accepted, up to the record that makes it durable. The rest may
    /// wait for calls in flight, so it follows afterwards.
    async fn yield_role(
        self: &Arc<Self>,
        (asker, epoch): (MirrorId, u64),
        forced: bool,
        role_change: RoleChange,
    ) -> PeerAnswer {
        let is_source = self.lock().role == ReplicaRole::Source;
        if !forced && is_source {
            // Its slot is about to be the successor's.
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
        let mut progress = Progress::default();
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

    /// Steps down at a handshake with a peer that takes this node's place.
    pub(crate) async fn give_way(
        self: &Arc<Self>,
        mine: &ReplicaIdentity,
        peers: &ReplicaIdentity,
    ) -> Result<(), SessionEnd> {
        let later = machine::later(claim(peers), claim(mine));
        let prevailing = (peers.is_serving && later).then_some(peers.view.epoch);
        let event = Event::Met { plan: plan(mine, peers), prevailing };
        if next(&self.machine_state(), event).is_ok_and(|(_, actions)| actions.is_empty()) {
            return Ok(());
        }
        let _role_change = self.begin_role_change().await;
        // A write in flight may be the first without the peer, and begin a generation.
        let unchanged = self.wait(|state: &mut StateGuard<'_>| {
            if state.bumping_generation {
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
            Role::Deposed { .. } => tracing::warn!(
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
        let done = self.perform(after, actions.iter(), Progress::default()).await;
        done.map(drop).map_err(|error| match error {
            CommandError::Role(RoleError::Io(error)) => SessionEnd::Local(error),
            _ => SessionEnd::Changed,
        })
    }
}
