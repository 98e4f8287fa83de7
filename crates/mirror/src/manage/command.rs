//! Commands: requests of the operator, or of the daemon on the operator's behalf. Every command is
//! idempotent.

use std::sync::Arc;

use flagstone_arbiter::epoch::least_epoch;
use flagstone_blockdev::IoError;

use crate::id::MirrorId;
use crate::io::deliver::Undelivered;
use crate::limits::EXCLUDE_MS;
use crate::manage::order::OrderProgress;
use crate::manage::roles::RoleError;
use crate::mirror::{Inner, Mirror};
use crate::ondisk::superblock::{ReplicaRole, Superblock};
use crate::options::PeerOptions;
use crate::session::connect::{CloseOnDrop, send_ancestors};
use crate::state::machine::{Answers, Event, Handover, OperatorOrder, OrderRefusal, next};
use crate::state::status::{DesiredState, LegPhase};
use crate::wire::peer::{
    PeerAnswer, PeerRefusal, PeerReply, PeerRequest, RequestError, SharedSession, execute, identify,
};

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum CommandError {
    #[error("there is no such peer")]
    NoPeer,
    /// The command needs a peer that is in sync and a source that serves.
    #[error("the mirror is not in sync")]
    NotInSync,
    #[error("there is no split brain")]
    NoSplitBrain,
    #[error("this side serves hosts: stop serving first")]
    Serving,
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error("the peer: {0}")]
    Peer(#[from] RequestError),
    #[error(
        "the peer was lost during the hand-over: this side does not serve until it reaches the peer again"
    )]
    OutcomeUnknown,
    /// See [`LOCAL_IO_MS`](crate::limits::LOCAL_IO_MS).
    #[error("a device of the replica does not answer: the order takes effect when it does")]
    DeviceBusy,
    /// With automatic failover. Only the arbiter's record may have changed.
    #[error(
        "the arbiter has not confirmed within {EXCLUDE_MS} ms that the peer cannot take over, and may yet \
         record it"
    )]
    NotExcluded,
    /// See [`crate::group`]. Nothing has changed.
    #[error("a volume of the consistency group serves hosts here: first `demote` the group")]
    GroupServes,
    /// The leader of a consistency group was handed over, and another member was not.
    #[error(
        "the peer serves the first volume of the consistency group, and not all others: they follow as \
         soon as their replicas there can serve"
    )]
    GroupPartly,
}

/// Converts the error of an order that concerns no peer.
pub(crate) fn role_error<T>(done: Result<T, CommandError>) -> Result<T, RoleError> {
    done.map_err(|error| match error {
        CommandError::Role(error) => error,
        _ => RoleError::Refused(OrderRefusal::Closed),
    })
}

/// A mirror that has ended does not serve.
fn stopped(done: Result<Vec<Undelivered>, CommandError>) -> Result<Vec<Undelivered>, RoleError> {
    match role_error(done) {
        Err(RoleError::Refused(OrderRefusal::Closed)) => Ok(Vec::new()),
        stopped => stopped,
    }
}

impl Mirror {
    /// Starts to serve if this side was the source, and each peer is recorded as out of date or
    /// there is none. Asks the peers first, for at most [`crate::limits::ASK_MS`], because one may
    /// have been promoted since. Does not wait for a silent peer, which could serve only by its
    /// operator's order. Otherwise waits for a handshake or for [`Mirror::failover`]. Returns true
    /// when hosts are served.
    ///
    /// # Errors
    /// See [`RoleError`].
    pub async fn start(&self) -> Result<bool, RoleError> {
        self.0.serve_after_start(true).await
    }

    /// Serves although a peer may serve. A reachable peer is deposed first, and must confirm it.
    /// Hosts lose data that only a peer has. If an unreachable peer is written too, the result is a
    /// split brain.
    ///
    /// # Errors
    /// See [`RoleError`]: inconsistent data is never served; see also
    /// [`consented`](crate::state::machine::consented).
    pub async fn failover(&self) -> Result<(), RoleError> {
        self.force(false).await
    }

    /// As [`Mirror::failover`], but also when the local data is unverified after a flush failure
    /// (see [`Mirror::is_unverified`]) and no source can bring it up to date. Hosts get what the
    /// device returns, part of which a power failure may take. Also when a resync to this replica
    /// has copied everything but [`bad_ranges`](crate::state::status::MirrorStatus::bad_ranges):
    /// hosts get older data there.
    ///
    /// # Errors
    /// See [`RoleError`].
    pub async fn failover_unverified(&self) -> Result<(), RoleError> {
        self.force(true).await
    }

    /// Serves if every peer answers, none serves hosts, and all agree. A silent node may be
    /// serving.
    ///
    /// # Errors
    /// See [`RoleError`], in particular [`OrderRefusal::PeerServes`] and
    /// [`OrderRefusal::PeerSilent`].
    pub async fn failover_if_unserved(&self) -> Result<(), RoleError> {
        role_error(self.order(OperatorOrder::Failover { answers: Answers::default() }).await)
    }

    async fn force(&self, unverified: bool) -> Result<(), RoleError> {
        role_error(self.order(OperatorOrder::ForceFailover { unverified }).await)
    }

    /// Stops serving, for maintenance of the node, after asynchronous peers have received the
    /// queued writes or [`QUEUE_DELIVERY_MS`] have passed. A peer in sync that is not in the result
    /// then has all data, or is durably recorded as out of date. This node remains the source, and
    /// serves again after a handshake: to move the role, use [`Mirror::switchover`], or
    /// [`Mirror::demote`] first.
    ///
    /// # Errors
    /// Errors of the local leg.
    ///
    /// [`QUEUE_DELIVERY_MS`]: crate::limits::QUEUE_DELIVERY_MS
    pub async fn stop(&self) -> Result<Vec<Undelivered>, RoleError> {
        stopped(self.0.order(OperatorOrder::Stop).await)
    }

    /// As [`Mirror::stop`], together with the other members of its consistency group, if it is in
    /// one: each member is stopped like this, and gets its own result. If one cannot deliver its
    /// queue, all record the peer as out of date.
    ///
    /// # Errors
    /// Errors of this member's local leg.
    pub async fn stop_with_group(&self) -> Result<Vec<Undelivered>, RoleError> {
        stopped(self.0.stop_with_group().await)
    }

    /// Gives up the role of the source for good: this side is a target from now on. Queued writes
    /// are delivered as by [`Mirror::stop`].
    ///
    /// # Errors
    /// Of the local leg.
    pub async fn demote(&self) -> Result<(), RoleError> {
        role_error(self.order(OperatorOrder::Demote).await)
    }

    /// Hands the role of the source to a peer that is in sync, or asks the peer to hand it to this
    /// side. No data is lost. Host calls wait meanwhile and then fail here as unreachable, so that
    /// hosts switch to the peer.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn switchover(&self, leg: usize) -> Result<(), CommandError> {
        let serving = self.0.lock().serving;
        self.order(if serving {
            OperatorOrder::HandOver(leg)
        } else {
            OperatorOrder::TakeOver(leg)
        })
        .await
    }

    /// Sets the desired state of a peer. Durable when it returns; the last of several concurrent
    /// calls wins. A session that is no longer wanted has ended, and its peer does not take over by
    /// itself.
    ///
    /// # Errors
    /// No such peer, this node is not the source, [`CommandError::NotExcluded`], or the log or
    /// superblock cannot be written.
    /// Nothing has changed then.
    pub async fn set_desired_state(
        &self,
        leg: usize,
        desired_state: DesiredState,
    ) -> Result<(), CommandError> {
        self.order(OperatorOrder::SetDesired(leg, desired_state)).await
    }

    /// Copies everything to a peer, regardless of the bitmap.
    ///
    /// # Errors
    /// If there is no such peer.
    pub fn resync_all(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        inner.leg(leg)?;
        inner.change(|state| {
            let own = &mut state.legs[leg];
            own.full_resync = true;
            own.reconnect_requests += 1;
        });
        Ok(())
    }

    /// Replaces the options of a peer.
    ///
    /// # Errors
    /// If there is no such peer; [`CommandError::Serving`] if `mode` differs, or if only one of
    /// both tracks unflushed writes. These need a restart of the mirror: a write in mode `sync`
    /// would overtake queued writes.
    pub fn set_options(&self, leg: usize, options: PeerOptions) -> Result<(), CommandError> {
        let own = self.0.leg(leg)?;
        let known = |options: &PeerOptions| (options.mode, options.tracks_unflushed());
        let same = known(&own.options()) == known(&options);
        if same {
            *own.options() = options;
        }
        self.0.change(|state| state.legs[leg].reconnect_requests += 1);
        if same { Ok(()) } else { Err(CommandError::Serving) }
    }

    /// Ends all tasks and sessions. Stop a source first for a clean shutdown.
    pub fn close(&self) {
        let session_ids: Vec<u64> = self.0.change(|state| {
            state.closed = true;
            state.legs.iter().map(|leg| leg.session_id).collect()
        });
        for (leg, session_id) in session_ids.into_iter().enumerate() {
            self.0.disconnect(leg, session_id);
        }
    }

    /// Ends the mirror like a crash. After the call, its replica writes nothing, so another mirror
    /// may open it. Hosts are no longer served: their writes in flight complete first, and reads
    /// that end later return no data.
    pub async fn abandon(&self) {
        let inner = &self.0;
        // First, because a change of role that waits for a peer ends with its session.
        self.close();
        let _order = inner.running_order();
        let role_change = inner.begin_role_change().await;
        inner.end_service().await;
        inner.end_attachment().await;
        // Orders are refused from now on, so they need not wait for a hung disk.
        drop(role_change);
        inner.local.retire().await;
    }

    /// As [`Mirror::abandon`], but only if no hosts rely on data that these devices may have lost:
    /// on a target, a former source or a deposed source. Otherwise false, without effect.
    pub async fn abandon_target(&self) -> bool {
        let inner = &self.0;
        // While this is held, this side cannot start to serve, and no source can attach.
        let role_change = inner.begin_role_change().await;
        if !self.is_idle_target() {
            return false;
        }
        self.close();
        inner.end_attachment().await;
        drop(role_change);
        inner.local.retire().await;
        true
    }
}

/// An offer of the role to a peer, from [`Inner::offer_role`].
pub(crate) struct RoleOffer {
    pub(crate) leg: usize,
    pub(crate) session: SharedSession,
    pub(crate) session_id: u64,
    pub(crate) local_device_failed: bool,
    /// The lowest epoch that the peer may take.
    pub(crate) epoch: u64,
    /// See [`PeerRequest::Promote`].
    pub(crate) leaves: bool,
}

impl Inner {
    pub(crate) fn leg(&self, leg: usize) -> Result<&crate::mirror::Leg, CommandError> {
        self.legs.get(leg).ok_or(CommandError::NoPeer)
    }

    pub(crate) fn reconnect_all(&self) {
        self.change(|state| state.legs.iter_mut().for_each(|leg| leg.reconnect_requests += 1));
    }

    /// Hands the role to the asker. With a single peer, it may lack an identity.
    pub(crate) async fn hand_over(self: &Arc<Self>, asker: MirrorId) -> PeerAnswer {
        let leg = {
            let state = self.lock();
            let only = asker.is_none() && state.legs.len() == 1;
            let found = state.legs.iter().position(|leg| only || leg.peer == asker);
            found.filter(|leg| state.serving && state.legs[*leg].phase == LegPhase::InSync)
        };
        let leg = leg.ok_or(PeerRefusal::NotNow)?;
        self.order(OperatorOrder::HandOver(leg)).await.map_err(|error| {
            tracing::warn!("the role of the source was not handed over: {error}");
            PeerRefusal::NotNow
        })?;
        Ok(PeerReply::Done)
    }

    /// Asks a peer for the role.
    pub(crate) async fn ask_for_role(&self, leg: usize) -> Result<(), CommandError> {
        let connector = self.leg(leg)?.options().connector.clone();
        let session = CloseOnDrop(connector.connect().await.map_err(RequestError::from)?);
        // Identify first: a source with several targets chooses the asker by its identity.
        identify(&session.0, self.local.superblock().replica, self.versions).await?;
        Ok(execute(&session.0, PeerRequest::HandOver).await?)
    }

    /// Makes the desired state of a leg durable, and ends a session that contradicts it.
    pub(crate) async fn store_desired_state(
        &self,
        leg: usize,
        desired_state: DesiredState,
    ) -> Result<(), IoError> {
        let keep =
            move |superblock: &mut Superblock| superblock.desired_states[leg] = desired_state;
        self.local.update(keep).await?;
        let unwanted = self.change(|state| {
            let own = &mut state.legs[leg];
            own.desired_state = desired_state;
            // The session of a hand-over ends with it.
            let ends = desired_state != DesiredState::Connected && !own.handing_over;
            ends.then_some(own.session_id)
        });
        if let Some(session_id) = unwanted {
            self.disconnect(leg, session_id);
        }
        Ok(())
    }

    /// Transfers the role to a peer. The caller holds the role lock, and host calls are drained.
    pub(crate) async fn hand_over_to(
        self: &Arc<Self>,
        leg: usize,
        leaves: bool,
    ) -> Result<(), CommandError> {
        let offer = self.offer_role(leg).await?;
        let offer = RoleOffer { leaves: leaves || offer.leaves, ..offer };
        let (outcome, promoted) = self.promote_peer(&offer).await;
        self.end_hand_over(&offer, outcome).await?;
        promoted
    }

    /// Stops serving, and durably records the peer as the designated successor. From here on,
    /// [`Inner::end_hand_over`] decides which node is the source. The caller holds the role lock,
    /// and host calls are drained.
    pub(crate) async fn offer_role(
        self: &Arc<Self>,
        leg: usize,
    ) -> Result<RoleOffer, CommandError> {
        self.wait_for_queue(leg).await;
        let (session, session_id, mut local_device_failed) = {
            let state = self.lock();
            let own = &state.legs[leg];
            let ready = state.serving && own.phase == LegPhase::InSync;
            let session = own.session.clone().filter(|_| ready);
            (session.ok_or(CommandError::NotInSync)?, own.session_id, state.local_device_failed)
        };
        session.flush().await.map_err(RequestError::from)?;
        // Before this side stops serving: a disk that cannot flush could not record the successor,
        // and no node would serve hosts.
        if !local_device_failed && let Err(error) = self.local.data().flush().await {
            self.run_degraded(Some((leg, session_id)), error).await.map_err(RoleError::Io)?;
            local_device_failed = true;
        }
        // First stop serving, and durably record the role and the designated successor.
        let designated_successor = self.slot_of_leg(leg);
        self.change(|state| {
            state.stop_serving();
            state.legs[leg].handing_over = true;
        });
        // The failed leg was durably recorded as out of date at the peer, and never serves on its
        // own.
        if !local_device_failed
            && let Err(error) =
                self.record_unused(ReplicaRole::Source, Some(designated_successor)).await
        {
            if self.failover.is_automatic() {
                // As in `leave_service`: the peer asks the arbiter before it acknowledges a write.
                tracing::error!("the local leg has failed ({error}): handing over to the peer");
                self.change(|state| state.local_device_failed = true);
            } else if self.run_degraded(Some((leg, session_id)), error).await.is_err() {
                self.disconnect(leg, session_id);
                return Err(RoleError::Io(error).into());
            }
            local_device_failed = true;
        }
        let epoch = least_epoch(self.local.superblock().epoch);
        let leaves = local_device_failed;
        Ok(RoleOffer { leg, session, session_id, local_device_failed, epoch, leaves })
    }

    /// Asks the peer of an offer to become the source.
    pub(crate) async fn promote_peer(
        &self,
        offer: &RoleOffer,
    ) -> (Handover, Result<(), CommandError>) {
        let RoleOffer { session, epoch, leaves, .. } = offer;
        let superblock = self.local.superblock();
        let announced = send_ancestors(session, &superblock).await;
        let (epoch, leaves) = (*epoch, *leaves);
        // Otherwise the target may be of a release that knows only the epoch.
        let promote = match self.failover.is_automatic() {
            true => PeerRequest::Promote { epoch, revision: superblock.arbiter.revision, leaves },
            false => PeerRequest::Promote { epoch, revision: 0, leaves: false },
        };
        let promoted = match announced {
            Ok(()) => execute(session, promote).await,
            Err(error) => Err(error),
        };
        match promoted {
            Ok(()) => (Handover::Accepted, Ok(())),
            Err(error @ RequestError::Refused(_)) => (Handover::Declined, Err(error.into())),
            // The peer was not asked to serve.
            Err(error) if announced.is_err() => (Handover::Declined, Err(error.into())),
            // The peer may already be serving. The next handshake finds out.
            Err(_) => (Handover::Unknown, Err(CommandError::OutcomeUnknown)),
        }
    }

    /// Ends an offer: this node becomes a target, is the source again, or waits for a handshake to
    /// decide.
    pub(crate) async fn end_hand_over(
        self: &Arc<Self>,
        offer: &RoleOffer,
        outcome: Handover,
    ) -> Result<(), CommandError> {
        if self.failover.is_automatic()
            && offer.local_device_failed
            && outcome == Handover::Declined
        {
            // Do not serve through the peer, which may serve by itself as soon as this node is
            // silent.
            self.disconnect(offer.leg, offer.session_id);
            return Ok(());
        }
        // If the peer declined, a source whose leg has failed continues to serve through this
        // session.
        if !(offer.local_device_failed && outcome == Handover::Declined) {
            self.disconnect(offer.leg, offer.session_id);
        }
        let (after, actions) = next(&self.machine_state(), Event::HandedOver(outcome))?;
        let progress = OrderProgress::after(offer.epoch);
        Box::pin(self.perform(after, actions.iter(), progress)).await.map(drop)
    }

    /// Serves hosts through the session of a hand-over that was declined.
    pub(crate) fn serve_through_peer(&self) -> Result<(), OrderRefusal> {
        self.change(|state| {
            state.legs.iter_mut().for_each(|leg| leg.handing_over = false);
            if state.promised > 0 {
                return Err(OrderRefusal::Overtaken);
            }
            state.serving = true;
            Ok(())
        })
    }

    /// Detaches a peer that is too slow for the hosts' writes.
    pub(crate) fn detach_congested(&self, leg: usize, session_id: u64) {
        let now = Inner::now_ns();
        self.change(|state| {
            let own = &mut state.legs[leg];
            if own.is_current(session_id) {
                own.attach_not_before_ns = now + crate::limits::DETACH_PAUSE_MS * 1_000_000;
            }
        });
        self.disconnect(leg, session_id);
    }
}
