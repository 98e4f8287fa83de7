//! What the operator, or the daemon for it, asks of a mirror. Each command is safe to repeat.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::connect::{Closing, tell_ancestors};
use crate::decide::Amount;
use crate::format::superblock::{PeerRecord, Role, Superblock};
use crate::id::Uuid;
use crate::mirror::{Inner, LegState, Mirror, State};
use crate::options::PeerOptions;
use crate::peer::{About, Answer, AskError, Refusal, Reply, Request, identify, order};
use crate::plan::{Plan, plan};
use crate::replica::Statistics;
use crate::roles::{RoleError, least_epoch};
use crate::split::common;
use crate::state::{Facts, MirrorState, PeerStatus, Phase, Status, Wish, derive};

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such peer.
    #[error("there is no such peer")]
    NoPeer,
    /// It needs a peer that is in sync, and an active source.
    #[error("the mirror is not in sync")]
    NotInSync,
    /// It needs a split brain.
    #[error("there is no split brain")]
    NoSplitBrain,
    /// It would end service.
    #[error("this side serves hosts: stop that first")]
    Active,
    /// A change of role.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// The peer.
    #[error("the peer: {0}")]
    Peer(#[from] AskError),
    /// The peer may have taken over or not. Nobody serves from here until it is heard of.
    #[error("the peer was lost while it took over: this side waits until it is heard of")]
    Unknown,
}

impl Mirror {
    /// Begins to serve, if that is safe without asking anybody: it was the source, and each peer is
    /// recorded as out of date, or there is none. Else it waits until a peer was met, or for
    /// [`Mirror::failover`]. True when it serves.
    ///
    /// # Errors
    /// See [`RoleError`].
    pub async fn start(&self) -> Result<bool, RoleError> {
        let inner = &self.0;
        // A source that attaches meanwhile makes a target of us.
        let _changing = inner.changing().await;
        if inner.lock().doubtful {
            return Ok(false);
        }
        let superblock = inner.local.superblock();
        let known = superblock.peers.iter().filter(|peer| !peer.replica.is_none());
        let mut outdated = known.map(PeerRecord::is_outdated);
        let alone = inner.legs.is_empty() || superblock.peers[0].replica.is_none();
        if superblock.role != Role::Source
            || superblock.heir.is_some()
            || !(alone || outdated.all(|outdated| outdated))
        {
            return Ok(inner.lock().active);
        }
        if !inner.lock().active {
            inner.activate(0, false).await?;
        }
        Ok(true)
    }

    /// Serves, whatever the peer may be doing: it cannot be asked. What only the peer has is lost to
    /// hosts, and if it is written to both sides, that is a split brain.
    ///
    /// # Errors
    /// See [`RoleError`]: inconsistent data is never served.
    pub async fn failover(&self) -> Result<(), RoleError> {
        self.fail_over(false).await
    }

    /// The same, also where the data here is in doubt ([`Replica::doubt`]) and nobody can bring it up to
    /// date any more: hosts get what the device shows, of which its power may take a part.
    ///
    /// # Errors
    /// See [`RoleError`].
    ///
    /// [`Replica::doubt`]: crate::replica::Replica::doubt
    pub async fn failover_in_doubt(&self) -> Result<(), RoleError> {
        self.fail_over(true).await
    }

    async fn fail_over(&self, in_doubt: bool) -> Result<(), RoleError> {
        let inner = &self.0;
        let _changing = inner.changing().await;
        if inner.lock().active {
            return Ok(());
        }
        if in_doubt && inner.may_serve() == Err(RoleError::Doubtful) {
            inner.local.update(|superblock| superblock.doubtful = false).await?;
            inner.change(|state| state.doubtful = false);
        }
        let seen = |leg: &crate::mirror::LegState| leg.met.map_or(0, |met| met.view.epoch);
        let seen = inner.lock().legs.iter().map(seen).max().unwrap_or(0);
        inner.activate(seen, true).await?;
        inner.kick_all();
        Ok(())
    }

    /// Stops serving: for maintenance of the node. The peer may then be made the source by
    /// [`Mirror::failover`] there, with nothing lost if it is in sync.
    ///
    /// # Errors
    /// The local leg's.
    pub async fn stop(&self) -> Result<(), RoleError> {
        let inner = &self.0;
        let _changing = inner.changing().await;
        inner.deactivate(Role::Source).await?;
        Ok(())
    }

    /// Gives up the role of the source for good: this side is a target from now on.
    ///
    /// # Errors
    /// The local leg's.
    pub async fn demote(&self) -> Result<(), RoleError> {
        let inner = &self.0;
        let _changing = inner.changing().await;
        inner.deactivate(Role::Target).await?;
        inner.put_away(Role::Target, None).await?;
        inner.kick_all();
        Ok(())
    }

    /// Hands the role of the source to a peer that is in sync; or asks the peer to hand it to us.
    /// Nothing is lost; hosts' calls wait meanwhile, and then fail here with "unreachable", so that
    /// they go to the peer.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn switchover(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        inner.leg(leg)?;
        if inner.lock().active {
            return inner.hand_over_to(leg).await;
        }
        let way = inner.legs[leg].options().way.clone();
        let session = way.connect().await.map_err(AskError::from)?;
        // It may have other targets: it hands over to whom it knows that it speaks with.
        let done = match identify(&session, inner.local.superblock().replica, inner.versions).await
        {
            Ok(_) => order(&session, Request::HandOver).await,
            Err(error) => Err(error),
        };
        session.close();
        inner.kick_all();
        Ok(done?)
    }

    /// Sets what the operator wants of a peer: mirror (continue), pause, or break. Durable when it
    /// returns; of two at a time that counts which was asked last.
    ///
    /// # Errors
    /// For no such peer, or when the log or the superblock cannot be written: nothing has changed
    /// then.
    pub async fn set_wish(&self, leg: usize, wish: Wish) -> Result<(), CommandError> {
        let inner = &self.0;
        inner.leg(leg)?;
        let _turn = inner.wishing.take().await;
        if wish == Wish::Break {
            // What is not tracked counts as different from now on, also after a restart.
            inner.mark(leg, 0, inner.local.superblock().shape.usable_bytes);
            inner.local.persist_marks().await.map_err(RoleError::Io)?;
        }
        let keep = move |superblock: &mut Superblock| superblock.wishes[leg] = wish;
        inner.local.update(keep).await.map_err(RoleError::Io)?;
        inner.change(|state| {
            let own = &mut state.legs[leg];
            own.wish = wish;
            own.kicks += 1;
        });
        Ok(())
    }

    /// Copies everything to a peer, whatever is known of it.
    ///
    /// # Errors
    /// For no such peer.
    pub fn resync_all(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        inner.leg(leg)?;
        inner.change(|state| {
            let own = &mut state.legs[leg];
            own.full = true;
            own.kicks += 1;
        });
        Ok(())
    }

    /// Ends a split brain in favour of this side: the peer's data since both parted is given up.
    /// The peer serves nobody, else it refuses.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn resolve_keep_mine(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        let (mine, peers, session) = inner.look_at_split(leg).await?;
        let (base, expected) = (common(&mine, &peers), peers.view.lineage.current);
        let done = order(&session.0, Request::Surrender { base, expected }).await;
        drop(session);
        inner.kick_all();
        Ok(done?)
    }

    /// Ends a split brain in favour of the peer: the data here since both parted is given up. This
    /// side stops serving.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn resolve_keep_peers(&self, leg: usize) -> Result<(), CommandError> {
        let inner = &self.0;
        let (mine, peers, _) = inner.look_at_split(leg).await?;
        self.demote().await?;
        let (base, expected) = (common(&mine, &peers), mine.view.lineage.current);
        inner.surrender(base, expected).await.map_err(AskError::Refused)?;
        inner.kick_all();
        Ok(())
    }

    /// What [`Mirror::resolve_keep_mine`] or [`Mirror::resolve_keep_peers`] would come to now: the
    /// peer is asked, and nothing is changed.
    ///
    /// # Errors
    /// Those of the command itself, but for what goes wrong while it is carried out.
    pub async fn foresee_resolve(&self, leg: usize, keep_mine: bool) -> Result<(), CommandError> {
        let (_, peers, _) = self.0.look_at_split(leg).await?;
        // As `Inner::surrender` there has it.
        match keep_mine && peers.active {
            true => Err(AskError::Refused(Refusal::Active).into()),
            false => Ok(()),
        }
    }

    /// Takes other options for a peer; its mode takes effect with the next connection.
    ///
    /// # Errors
    /// For no such peer.
    pub fn set_options(&self, leg: usize, options: PeerOptions) -> Result<(), CommandError> {
        let own = self.0.leg(leg)?;
        let known = own.options().remembers();
        let same = known == options.remembers();
        if same {
            *own.options() = options;
        }
        self.0.change(|state| state.legs[leg].kicks += 1);
        if same { Ok(()) } else { Err(CommandError::Active) }
    }

    /// Ends all tasks, and sessions with them. A source that is to come back clean is stopped
    /// first.
    pub fn close(&self) {
        let serials: Vec<u64> = self.0.change(|state| {
            state.closed = true;
            state.legs.iter().map(|leg| leg.serial).collect()
        });
        for (leg, serial) in serials.into_iter().enumerate() {
            self.0.lose(leg, serial);
        }
    }

    /// The same, as a crash would end it, and its replica writes nothing from when this returns:
    /// another may open it. Hosts that were served are so no longer. As at any end of their service
    /// what they write ends before, and what they read is answered with nothing that was found after.
    pub async fn give_up(&self) {
        let inner = &self.0;
        // First: a change of role that asks a peer ends with its session.
        self.close();
        let _changing = inner.changing().await;
        inner.end_service().await;
        inner.end_attachment().await;
        inner.local.retire().await;
    }

    /// The same, if a peer has what this replica's devices may have lost: it is a target, or has
    /// handed the role over, and serves nobody. Else nothing is done. True when it has ended.
    pub async fn give_target_up(&self) -> bool {
        let inner = &self.0;
        // Nobody begins to serve here, or attaches, while this is held.
        let _changing = inner.changing().await;
        if !self.is_idle_target() {
            return false;
        }
        self.close();
        inner.end_attachment().await;
        inner.local.retire().await;
        true
    }

    /// It is a target, or has handed the role over, and serves nobody: what was written to it a peer
    /// has, or did not count on.
    pub fn is_idle_target(&self) -> bool {
        let state = self.0.lock();
        let busy = state.active || state.closed || state.moving || state.successor.is_some();
        state.role == Role::Target && !busy
    }

    /// See [`Replica::doubt`].
    ///
    /// [`Replica::doubt`]: crate::replica::Replica::doubt
    pub fn is_doubtful(&self) -> bool {
        self.0.lock().doubtful
    }

    /// True while hosts are served here.
    pub fn is_active(&self) -> bool {
        let state = self.0.lock();
        state.successor.as_ref().map_or(state.active, Mirror::is_active)
    }

    /// True when the local leg has failed, and a peer carries the volume or nobody does.
    pub fn has_failed(&self) -> bool {
        self.0.lock().local_failed
    }

    /// True while a source is attached to this replica.
    pub fn has_source(&self) -> bool {
        self.0.lock().attached.is_some()
    }

    /// The leg of the source that is attached to this replica; `None` also while that one was not
    /// met by it, and there are others.
    pub fn source(&self) -> Option<usize> {
        let state = self.0.lock();
        state.attached.and_then(|attached| state.leg_of(attached.source))
    }

    /// Waits until no source is attached to this replica.
    pub async fn source_gone(&self) {
        self.0.wait(|state| state.attached.is_none().then_some(())).await;
    }

    /// Waits until the mirror, or the one that has its replica now, begins or stops to serve hosts,
    /// and says which: for ANA states.
    pub async fn activity_changed(&self, was: bool) -> bool {
        let changed = self.0.wait(|state| match &state.successor {
            Some(successor) => Some(Err(successor.clone())),
            // On the way to it hosts wait.
            None => (!state.moving && state.active != was).then_some(Ok(state.active)),
        });
        match changed.await {
            Ok(active) => active,
            Err(successor) => Box::pin(successor.activity_changed(was)).await,
        }
    }

    /// The state towards a peer, as it is shown.
    ///
    /// # Panics
    /// When there is no such peer.
    pub fn state(&self, leg: usize) -> MirrorState {
        self.0.shown(leg)
    }

    /// Waits until another state than `was` is to be shown towards a peer, and says which.
    ///
    /// # Panics
    /// When there is no such peer.
    pub async fn state_changed(&self, leg: usize, was: MirrorState) -> MirrorState {
        let inner = &self.0;
        let changed =
            |state: &mut State| Some(inner.shown_in(state, leg)).filter(|now| *now != was);
        inner.wait(changed).await
    }

    /// What the operator wants of a peer now; of no such peer, nothing special.
    pub fn wish(&self, leg: usize) -> Wish {
        self.0.lock().legs.get(leg).map_or_else(Wish::default, |leg| leg.wish)
    }

    /// The options of a peer, as they were given.
    pub fn options(&self, leg: usize) -> Option<PeerOptions> {
        self.0.legs.get(leg).map(|leg| leg.options().clone())
    }

    /// What a peer said of itself when it was met last.
    pub fn met(&self, leg: usize) -> Option<About> {
        self.0.lock().legs.get(leg)?.met
    }

    /// True while everything is copied to a peer, or is going to be.
    pub fn is_full_resync(&self, leg: usize) -> bool {
        let state = self.0.lock();
        let full = |leg: &LegState| leg.full || leg.phase == Phase::Resync(Amount::Full);
        state.legs.get(leg).is_some_and(full)
    }

    /// What the log has cost and saved.
    pub fn log_statistics(&self) -> Statistics {
        self.0.local.statistics()
    }

    /// All that is to be shown.
    pub fn status(&self) -> Status {
        let inner = &self.0;
        let superblock = inner.local.superblock();
        let peers = (0..inner.legs.len()).map(|leg| inner.peer_status(leg)).collect();
        let (in_flight, waiting) = inner.overlap.counts();
        let state = inner.lock();
        Status {
            volume: superblock.volume,
            replica: superblock.replica,
            versions: inner.versions,
            role: state.role,
            active: state.active,
            local_failed: state.local_failed,
            epoch: superblock.epoch,
            generation: superblock.current,
            inconsistent: superblock.flags.inconsistent,
            peers,
            in_flight: in_flight as u64,
            waiting_for_overlap: waiting as u64,
            writes: inner.counters.writes.load(Ordering::Relaxed),
            local_us: inner.counters.local_ns.load(Ordering::Relaxed) / 1000,
            held: state.waiting as u64,
        }
    }
}

impl Inner {
    fn leg(&self, leg: usize) -> Result<&crate::mirror::Leg, CommandError> {
        self.legs.get(leg).ok_or(CommandError::NoPeer)
    }

    fn kick_all(&self) {
        self.change(|state| state.legs.iter_mut().for_each(|leg| leg.kicks += 1));
    }

    /// Asks a peer with which there is a split brain who it is.
    async fn look_at_split(&self, leg: usize) -> Result<(About, About, Closing), CommandError> {
        let way = self.leg(leg)?.options().way.clone();
        let session = Closing(way.connect().await.map_err(AskError::from)?);
        let own = self.local.superblock().replica;
        let peers = identify(&session.0, own, self.versions).await?;
        let mine = self.about(peers.view.replica);
        match plan(&mine, &peers) {
            Plan::SplitBrain => Ok((mine, peers, session)),
            _ => Err(CommandError::NoSplitBrain),
        }
    }

    /// The asker is to be the source in our place. One that did not say who it is can only be meant
    /// where there is no other.
    pub(crate) async fn hand_over(self: &Arc<Self>, asker: Uuid) -> Answer {
        let leg = {
            let state = self.lock();
            let only = asker.is_none() && state.legs.len() == 1;
            let found = state.legs.iter().position(|leg| only || leg.peer == asker);
            found.filter(|leg| state.active && state.legs[*leg].phase == Phase::InSync)
        };
        let leg = leg.ok_or(Refusal::NotNow)?;
        self.hand_over_to(leg).await.map_err(|error| {
            tracing::warn!("the role of the source is not handed over: {error}");
            Refusal::NotNow
        })?;
        Ok(Reply::Done)
    }

    async fn hand_over_to(self: &Arc<Self>, leg: usize) -> Result<(), CommandError> {
        let _changing = self.changing().await;
        let _hold = self.hold();
        self.drained().await;
        self.wait_for_queue(leg).await;
        let (session, serial, local_failed) = {
            let state = self.lock();
            let own = &state.legs[leg];
            let ready = state.active && own.phase == Phase::InSync;
            let session = own.session.clone().filter(|_| ready);
            (session.ok_or(CommandError::NotInSync)?, own.serial, state.local_failed)
        };
        session.flush().await.map_err(AskError::from)?;
        // First nobody serves, durably; it is still known that we were the source, and who may be.
        let heir = self.slot_of_leg(leg);
        self.change(|state| {
            state.end_term();
            state.legs[leg].handing_over = true;
        });
        // A leg that has failed was left behind durably, at the peer, and never serves by itself.
        if !local_failed && let Err(error) = self.put_away(Role::Source, Some(heir)).await {
            self.lose(leg, serial);
            return Err(RoleError::Io(error).into());
        }
        let superblock = self.local.superblock();
        let epoch = least_epoch(superblock.epoch);
        let told = tell_ancestors(&session, &superblock).await;
        let promoted = match told {
            Ok(()) => order(&session, Request::Promote { epoch }).await,
            Err(error) => Err(error),
        };
        // It was not asked to serve, or said no: it does not.
        let declined = |error| told.is_err() || matches!(error, AskError::Refused(_));
        if let Err(error) = promoted
            && local_failed
            && declined(error)
        {
            // Only the peer has the data: it goes on to carry it.
            self.change(|state| {
                state.active = true;
                state.legs[leg].handing_over = false;
            });
            return Err(CommandError::Peer(error));
        }
        self.lose(leg, serial);
        match promoted {
            Ok(()) if local_failed => {
                self.change(|state| state.role = Role::Target);
                Ok(())
            }
            Ok(()) => Ok(self.put_away(Role::Target, None).await.map_err(RoleError::Io)?),
            Err(error) if declined(error) => {
                self.activate(epoch, false).await?;
                Err(CommandError::Peer(error))
            }
            // It may serve already. The link finds out, and goes on as is right.
            Err(_) => Err(CommandError::Unknown),
        }
    }

    /// The peer is left behind: it is too slow for what hosts write.
    pub(crate) fn leave_behind(&self, leg: usize, serial: u64) {
        let now = Inner::now_ns();
        self.change(|state| {
            let own = &mut state.legs[leg];
            if own.is_current(serial) {
                own.not_before_ns = now + crate::limits::BEHIND_PAUSE_MS * 1_000_000;
            }
        });
        self.lose(leg, serial);
    }

    fn shown(&self, leg: usize) -> MirrorState {
        self.shown_in(&self.lock(), leg)
    }

    fn shown_in(&self, state: &State, leg: usize) -> MirrorState {
        let superblock = self.local.superblock();
        let own = &state.legs[leg];
        let record = superblock.peers.iter().find(|peer| peer.replica == own.peer);
        let behind = record.is_some_and(PeerRecord::is_outdated);
        let outdated = behind || self.legs[leg].todo.count() > 0;
        let attached = state.attached.is_some();
        derive(Facts { role: state.role, wish: own.wish, phase: own.phase, outdated, attached })
    }

    fn peer_status(&self, leg: usize) -> PeerStatus {
        let own = &self.legs[leg];
        let (lag_bytes, lag_ns) = own.queue().lag(Inner::now_ns());
        let lag_writes = own.queue().writes() as u64;
        let peer = self.lock().legs[leg].peer;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &own.counters;
        let link = own.options().way.link();
        PeerStatus {
            replica: peer,
            state: self.shown(leg),
            out_of_date_bytes: own.todo.bytes(),
            last_in_sync_s: read(&counters.last_in_sync_s),
            lag_bytes,
            lag_writes,
            lag_us: lag_ns / 1000,
            resync_done_bytes: read(&counters.copied_bytes) + read(&counters.skipped_bytes),
            resync_total_bytes: read(&counters.total_bytes),
            resync_skipped_bytes: read(&counters.skipped_bytes),
            resync_bytes_per_s: read(&counters.rate),
            added_us: read(&counters.added_ns) / 1000,
            added_writes: read(&counters.added_writes),
            losses: read(&counters.losses),
            given_up: read(&counters.given_up),
            given_up_bytes: read(&counters.given_up_bytes),
            link,
            versions: self.lock().legs[leg].versions,
        }
    }
}
