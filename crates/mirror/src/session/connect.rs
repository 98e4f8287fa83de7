//! Connection of a leg: one task per peer that connects, performs the handshake and carries out its
//! [`plan`], repeatedly.
//!
//! - in sync, this side leads: attach; from now on writes go to both legs;
//! - out of date, this side leads: attach; fetch the peer's bitmap; flush; mark the peer
//!   inconsistent; send writes; copy; finish the resync;
//! - the peer leads: stop serving if necessary, and wait for the peer;
//! - split brain, or no generation in common: report it and retry later, or resolve it by policy
//!   ([`crate::session::split_brain`]).
//!
//! Each step is durable before the next one, and after a crash between two steps the next handshake
//! decides correctly: `history_tests` enumerates these cases.
//!
//! [`plan`]: crate::agree::plan::plan

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time::{self, Backoff};

use crate::agree::decide::ResyncAmount;
use crate::agree::plan::{HandshakePlan, plan};
use crate::agree::versions::{LinkVersion, LinkVersions, NoCommonVersion};
use crate::group::SharedNumbering;
use crate::id::{Generation, MirrorId};
use crate::io::call_admission::Counted;
use crate::limits::{BAD_RANGE_RETRY_MS, BAD_RANGES_MAX, COPY_BYTES, RETRY_MAX_MS, RETRY_MIN_MS};
use crate::manage::order::OrderProgress;
use crate::mirror::{GenerationBump, Inner, LegState, State, StateGuard};
use crate::ondisk::superblock::Superblock;
use crate::session::outdated::NotOutdated;
use crate::session::resync::PassEnd;
use crate::state::machine::next;
use crate::state::status::{DesiredState, HandshakeOutcome, LegPhase};
use crate::wire::peer::{
    AttachRequest, BadRangeReport, PeerRefusal, PeerRequest, ReplicaIdentity, RequestError,
    SharedSession, execute, identify,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("{0}")]
    Peer(#[from] RequestError),
    /// The local leg or log.
    #[error("the local device: {0}")]
    Local(IoError),
    #[error("a device fails in more than {BAD_RANGES_MAX} ranges")]
    TooManyBadRanges,
    /// The state changed: repeat the handshake.
    #[error("the state changed meanwhile")]
    Changed,
    /// No side leads, or the peer does: retry later.
    #[error("this side does not lead")]
    NothingToDo,
    /// Another volume of the consistency group has no session to the peer.
    #[error("not all volumes of the consistency group have attached to the peer")]
    GroupIncomplete,
    /// The peer's data would be replaced, and the peer could still be preferred after a crash.
    #[error("no full resync: {0}")]
    NotOutdated(#[from] NotOutdated),
    #[error("hosts have reservations, and the peer keeps none")]
    KeepsNoReservations,
    /// The session was lost, or the operator ended it.
    #[error("the session has ended")]
    Lost,
}

/// Runs the connection of one leg until the mirror is closed.
pub(crate) async fn run(inner: Arc<Inner>, leg: usize) {
    // The first attempt had no pause.
    let [min, max] = [RETRY_MIN_MS, RETRY_MAX_MS].map(Duration::from_millis);
    let mut pauses = Backoff::new(min, max).after(1);
    loop {
        let wanted = |state: &mut StateGuard<'_>| {
            if state.closed {
                return Some(false);
            }
            let own = &state.legs[leg];
            let wanted = own.desired_state == DesiredState::Connected && own.awaits_marks.is_none();
            (wanted && !state.local_device_failed).then_some(true)
        };
        if !inner.wait(wanted).await {
            return;
        }
        let (reconnect_requests, not_before) = {
            let state = inner.lock();
            (state.legs[leg].reconnect_requests, state.legs[leg].attach_not_before_ns)
        };
        let early = not_before.saturating_sub(Inner::now_ns());
        time::sleep(Duration::from_nanos(early)).await;
        let ended = match handshake(&inner, leg).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        tracing::debug!(replica = %inner.local.superblock().replica, leg, "{ended}");
        if let SessionEnd::Changed | SessionEnd::Lost = ended {
            pauses.reset();
        }
        // A command, or a request from the peer, cuts the pause short.
        let requested = inner.wait(|state| {
            (state.closed || state.legs[leg].reconnect_requests != reconnect_requests).then_some(())
        });
        // Of whole milliseconds, which recorded seeds of the simulator rely on.
        let half = pauses.advance().as_millis() as u64 / 2;
        let pause = Duration::from_millis(half + flagstone_runtime::random_u64() % half);
        let _ = time::timeout(pause, requested).await;
    }
}

pub(crate) struct CloseOnDrop(pub(crate) SharedSession);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

enum Never {}

/// One connection, from beginning to end.
async fn handshake(inner: &Arc<Inner>, leg: usize) -> Result<Never, SessionEnd> {
    let connector = inner.legs[leg].options().connector.clone();
    let connected = connector.connect().await;
    let session = match connected {
        Ok(session) => session,
        Err(error) => {
            inner.set_idle_phase(leg, LegPhase::Disconnected);
            return Err(SessionEnd::Peer(error.into()));
        }
    };
    let _closing = CloseOnDrop(session.clone());
    let own = inner.local.superblock().replica;
    let peers = match identify(&session, own, inner.versions).await {
        Ok(peers) => peers,
        Err(RequestError::NoCommonVersion(none)) => {
            inner.incompatible_version(leg, none);
            return Err(SessionEnd::Peer(none.into()));
        }
        Err(error) => return Err(error.into()),
    };
    inner.change(|state| {
        let own = &mut state.legs[leg];
        (own.peer, own.last_handshake) = (peers.view.replica, Some(peers));
        own.versions = Some(peers.versions);
    });
    let mine = inner.identity(peers.view.replica);
    let found = plan(&mine, &peers);
    inner.give_way(&mine, &peers).await?;
    let (ours, theirs) = (&mine.view.generations, &peers.view.generations);
    tracing::debug!(replica = %own, peer = %peers.view.replica, ?ours, ?theirs, "found: {found:?}");
    let outcome = match found {
        HandshakePlan::Lead { promote: true, .. }
            if next(&inner.machine_state(), inner.admitted_by(&peers)).is_err()
                || inner.waits_for_members() =>
        {
            HandshakeOutcome::Idle
        }
        HandshakePlan::Lead { .. } if !mine.is_serving && inner.is_served_elsewhere(leg).await => {
            HandshakeOutcome::Idle
        }
        HandshakePlan::Lead { amount, promote } => {
            let ended = lead(inner, leg, session, (mine, peers), amount, promote).await;
            if let Err(SessionEnd::Peer(RequestError::Refused(PeerRefusal::Group))) = ended {
                inner.other_group(leg);
            }
            return ended;
        }
        HandshakePlan::Follow { .. } => HandshakeOutcome::Following,
        HandshakePlan::AwaitStepDown => {
            inner.depose_peer(&session, &peers).await?;
            HandshakeOutcome::AwaitStepDown
        }
        HandshakePlan::Idle => HandshakeOutcome::Idle,
        HandshakePlan::SplitBrain => {
            inner.depose_if_serving(&session, &peers).await;
            if inner.discard_by_policy(leg, &session, &peers).await? {
                // At its next handshake, the peer finds that it leads.
                return Err(SessionEnd::Changed);
            }
            HandshakeOutcome::SplitBrain
        }
        found @ (HandshakePlan::Unrelated | HandshakePlan::Incompatible) => {
            if found == HandshakePlan::Incompatible {
                inner.depose_if_serving(&session, &peers).await;
            }
            inner.warn_of_block_mismatch(leg, &mine, &peers);
            HandshakeOutcome::Mismatch
        }
        HandshakePlan::NoSource => {
            inner.depose_if_serving(&session, &peers).await;
            HandshakeOutcome::NoSource
        }
    };
    inner.set_idle_phase(leg, LegPhase::Handshake(outcome));
    Err(if outcome == HandshakeOutcome::AwaitStepDown {
        SessionEnd::Changed
    } else {
        SessionEnd::NothingToDo
    })
}

impl Inner {
    /// Durably assigns a slot to a peer. Of two new peers that pick the same one, the second
    /// retries.
    pub(crate) async fn record_peer(&self, peer: MirrorId) -> Result<(), IoError> {
        self.update_peer(peer, |_, _| {}).await
    }

    /// As `record_peer`, with a change to the superblock, for which it passes the peer's slot.
    pub(crate) async fn update_peer(
        &self,
        peer: MirrorId,
        change: impl Fn(&mut Superblock, usize) + Copy + 'static,
    ) -> Result<(), IoError> {
        loop {
            let before = self.local.superblock().peers;
            let slot = self.slot_of(peer);
            let keep = move |superblock: &mut Superblock| {
                let place = &mut superblock.peers[slot].replica;
                let unchanged = *place == before[slot].replica;
                if unchanged {
                    *place = peer;
                    superblock.forget_unmet();
                    change(superblock, slot);
                }
                unchanged
            };
            if self.local.update(keep).await? {
                return Ok(());
            }
        }
    }

    /// Records that the peer speaks no version of the link in common.
    fn incompatible_version(&self, leg: usize, none: NoCommonVersion) {
        let before = self.change(|state| state.legs[leg].versions.replace(none.peers));
        // Logged once, not at each attempt.
        if before != Some(none.peers) {
            tracing::warn!(replica = %self.local.superblock().replica, leg, "{none}");
        }
        self.set_idle_phase(leg, LegPhase::Handshake(HandshakeOutcome::NoCommonVersion));
    }

    /// Logs why the peer is incompatible, if its logical block size is the reason.
    fn warn_of_block_mismatch(&self, leg: usize, mine: &ReplicaIdentity, peers: &ReplicaIdentity) {
        let (ours, theirs) = (mine.view.block_bytes, peers.view.block_bytes);
        let warned = self.lock().legs[leg].phase == LegPhase::Handshake(HandshakeOutcome::Mismatch);
        // Logged once, not at each attempt.
        if !warned && mine.view.has_block_mismatch(&peers.view) {
            tracing::warn!(
                replica = %self.local.superblock().replica,
                leg,
                "the peer's logical block size is {theirs} B, and {ours} B on this node: set the same \
                 `block_size` on both nodes"
            );
        }
    }

    /// Records that the peer belongs to another consistency group.
    fn other_group(&self, leg: usize) {
        self.set_idle_phase(leg, LegPhase::Handshake(HandshakeOutcome::OtherGroup));
        let warned =
            self.change(|state| std::mem::replace(&mut state.legs[leg].refused_group, true));
        // Logged once, not at each attempt.
        if !warned {
            let group = self.group.as_ref().map(|membership| membership.group.name().to_owned());
            tracing::warn!(
                replica = %self.local.superblock().replica,
                leg,
                group,
                "the peer has other volumes in this consistency group, or the volume in another group or in \
                 none: name the same `group` for the same volumes on both nodes"
            );
        }
    }

    /// Sets the phase of a leg that has no session.
    pub(crate) fn set_idle_phase(&self, leg: usize, phase: LegPhase) {
        self.change(|state| {
            let own = &mut state.legs[leg];
            if own.session.is_none() {
                own.phase = phase;
            }
        });
    }

    /// Installs a session on a leg, unless the leg no longer wants one. Writes do not go to it yet.
    fn install_session(
        &self,
        leg: usize,
        session: &SharedSession,
        peers: &ReplicaIdentity,
        phase: LegPhase,
    ) -> Result<u64, SessionEnd> {
        self.change(|state| {
            let own = &mut state.legs[leg];
            let wanted = own.desired_state == DesiredState::Connected && own.awaits_marks.is_none();
            if state.closed || !wanted {
                return Err(SessionEnd::Changed);
            }
            own.session_id += 1;
            (own.handing_over, own.inconsistent) = (false, false);
            (own.group_session, own.opened_group_session) = (None, false);
            own.numbering = SharedNumbering::default();
            own.is_admitted = false;
            own.reported_bad_ranges.clear();
            (own.session, own.phase) = (Some(session.clone()), phase);
            own.volatile_cache = peers.volatile_cache;
            Ok(own.session_id)
        })
    }

    /// Opens the session for writes, unless it was lost or `may` refuses.
    fn open_for_writes(
        &self,
        leg: usize,
        session_id: u64,
        may: impl FnOnce(&State) -> bool,
    ) -> Result<(), SessionEnd> {
        let opened = self.change(|state| {
            let group_session = state.legs[leg].group_session.as_ref();
            let joined = self.group.is_none() || group_session.is_some_and(|one| !one.has_ended());
            let current = state.serving && state.legs[leg].is_current(session_id);
            let current = current && joined && may(state);
            if current {
                let own: &mut LegState = &mut state.legs[leg];
                (own.receives_writes, own.has_unflushed) = (true, false);
                own.last_open_session = session_id;
                own.opened_group_session = self.group.is_some();
            }
            current
        });
        if opened { Ok(()) } else { Err(SessionEnd::Changed) }
    }
}

/// Leads the peer as its source.
async fn lead(
    inner: &Arc<Inner>,
    leg: usize,
    session: SharedSession,
    (mine, peers): (ReplicaIdentity, ReplicaIdentity),
    amount: Option<ResyncAmount>,
    promote: bool,
) -> Result<Never, SessionEnd> {
    inner.check_keeps_reservations(leg, &peers)?;
    let full = inner.lock().legs[leg].full_resync;
    let amount = if full { Some(ResyncAmount::Full) } else { amount };
    // Calls left over from earlier sessions are marked before anything is decided.
    inner.wait_for_calls(Counted::Leg(leg, None)).await;
    inner.record_peer(peers.view.replica).await.map_err(SessionEnd::Local)?;
    let superblock = inner.local.superblock();
    let epoch = inner.epoch_after(peers.view.epoch);
    let phase = amount.map_or(LegPhase::Resync(ResyncAmount::Partial), LegPhase::Resync);
    let session_id = inner.install_session(leg, &session, &peers, phase)?;
    let _disconnect = DisconnectOnDrop { inner: inner.clone(), leg, session_id };
    let version = inner.versions.highest_common(peers.versions).map_err(RequestError::from)?;
    let attach = AttachRequest {
        volume: superblock.volume,
        source: superblock.replica,
        epoch: if promote { epoch } else { superblock.epoch },
        expected: peers.view.generations.current,
        in_sync: amount.is_none(),
        usable_bytes: superblock.geometry.usable_bytes,
        version,
        group: inner.group_tag(),
        asks: inner.asks(&inner.lock()).filter(|_| version >= LinkVersion::RENEWS),
    };
    // A target of another size first adopts the source's size, and reconnects a moment later.
    let sent_ns = Inner::boot_ns();
    execute(&session, PeerRequest::Attach(attach)).await?;
    inner.change(|state| state.legs[leg].refused_group = false);
    inner.renewed(sent_ns);
    let _renewing = inner.failover.is_automatic().then(|| {
        inner.change(|state| {
            let own = &mut state.legs[leg];
            own.is_admitted = own.is_current(session_id);
        });
        let renewing =
            crate::failover::renew::keep_renewed(inner.clone(), leg, session.clone(), session_id);
        flagstone_runtime::spawn(renewing).abort_on_drop()
    });
    if promote {
        // After attaching: a peer that began to serve meanwhile has refused. From here on it is a
        // target, and serves only by its operator's order.
        let _role_change = inner.begin_role_change().await;
        let decided = next(&inner.machine_state(), inner.admitted_by(&peers));
        let (after, actions) = decided.map_err(|_| SessionEnd::Changed)?;
        // A change of role since the handshake may be the operator's order not to serve.
        let still = plan(&inner.identity(peers.view.replica), &peers);
        let leads = matches!(still, HandshakePlan::Lead { promote: true, .. });
        if !leads || inner.waits_for_members() || inner.epoch_after(peers.view.epoch) != epoch {
            return Err(SessionEnd::Changed);
        }
        // Not `epoch_seen`: this epoch was announced to the peer.
        let done =
            inner.perform(after, actions.iter(), OrderProgress::after(peers.view.epoch)).await;
        done.map_err(|_| SessionEnd::NothingToDo)?;
    }
    if amount == Some(ResyncAmount::Full) {
        let outdated = inner.outdate_attached(leg, session_id, &peers).await;
        if full && outdated == Err(NotOutdated::Arbiter) {
            // Repeated, it would keep the peer out of sync for as long as the arbiter is silent.
            inner.forget_full_resync(leg);
            let replica = inner.local.superblock().replica;
            tracing::error!(
                %replica,
                leg,
                "the full resync that was ordered does not begin: the arbiter has not recorded that the peer \
                 is out of date. Repeat the order when the arbiter answers"
            );
        }
        outdated?;
    }
    let _group_session = inner.join_group(leg, &session, session_id).await?;
    match amount {
        // Use the generation that was equal at the handshake. The peer does not have a generation
        // that was started since.
        None => {
            confirm_in_sync(inner, leg, &session, session_id, mine.view.generations.current).await?
        }
        Some(amount) => resync(inner, leg, &session, session_id, amount).await?,
    }
    monitor(inner, leg, &session, session_id).await
}

/// Disconnects a session when the task in charge of it ends.
struct DisconnectOnDrop {
    inner: Arc<Inner>,
    leg: usize,
    session_id: u64,
}

impl Drop for DisconnectOnDrop {
    fn drop(&mut self) {
        self.inner.disconnect(self.leg, self.session_id);
    }
}

/// Confirms that both are in sync, if nothing was written since the handshake.
async fn confirm_in_sync(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
    generation: Generation,
) -> Result<(), SessionEnd> {
    send_ancestors(session, &inner.local.superblock()).await?;
    if !inner.settle_generations(leg, generation).await.map_err(SessionEnd::Local)? {
        return Err(SessionEnd::Changed);
    }
    inner.all_begun(leg).await?;
    // A generation that is being recorded or a set bit belongs to a write without the peer. One
    // that waits for the arbiter has recorded nothing, and ends without it once the peer is
    // attached.
    let unchanged = |_: &State| {
        inner.local.superblock().current == generation && inner.legs[leg].out_of_sync.count() == 0
    };
    inner.open_for_writes(leg, session_id, |state| {
        state.generation_bump != GenerationBump::Records && unchanged(state)
    })?;
    inner.send_reservations(leg, session).await?;
    inner.in_sync(leg, session_id)
}

async fn resync(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
    amount: ResyncAmount,
) -> Result<(), SessionEnd> {
    let base = match amount {
        ResyncAmount::Full => {
            let base = inner.mark_all(leg).await?;
            // Not before: the order outlives a session that ends early.
            inner.forget_full_resync(leg);
            base
        }
        ResyncAmount::Partial => Generation::NONE,
    };
    if amount == ResyncAmount::Partial {
        inner.merge_peer_bitmap(leg, session).await?;
    }
    tracing::info!(replica = %inner.local.superblock().replica, leg, ?amount, "resync started");
    // Flush first: only a consistent target could restore blocks that a power failure loses here.
    inner.local.data().flush().await.map_err(SessionEnd::Local)?;
    execute(session, PeerRequest::BeginResync { base }).await?;
    inner.all_begun(leg).await?;
    inner.open_for_writes(leg, session_id, |_| true)?;
    inner.change(|state| state.legs[leg].inconsistent = true);
    inner.send_reservations(leg, session).await?;
    let mut retry = None;
    loop {
        let pass = crate::session::resync::copy(inner, leg, session, session_id, retry.take());
        let pass = pass.await?;
        // Copies include writes that are still queued behind them. Without these, the target would
        // have some later writes and lack earlier ones.
        if !inner.catch_up_group(leg, session_id).await {
            return Err(SessionEnd::Lost);
        }
        match pass {
            PassEnd::Complete if inner.is_copied(leg, session_id)? => {
                return finish_resync(inner, leg, session, session_id).await;
            }
            PassEnd::Complete => {}
            PassEnd::OnlyBadRanges => {
                inner.report_bad_ranges(leg, session).await?;
                let pause = Duration::from_millis(BAD_RANGE_RETRY_MS);
                if let Ok(ended) =
                    time::timeout(pause, monitor(inner, leg, session, session_id)).await
                {
                    return ended.map(|never| match never {});
                }
                retry = inner.legs[leg].bad_ranges().next_retry(COPY_BYTES);
            }
        }
    }
}

/// Finishes a resync: the target durably adopts the generation, then the source drops the bases.
async fn finish_resync(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
) -> Result<(), SessionEnd> {
    let superblock = inner.local.superblock();
    send_ancestors(session, &superblock).await?;
    let mut request = PeerRequest::EndResync { generation: superblock.current };
    loop {
        execute(session, request.clone()).await?;
        let (PeerRequest::EndResync { generation } | PeerRequest::NewGeneration { generation }) =
            request
        else {
            return Err(SessionEnd::Changed);
        };
        if inner.settle_generations(leg, generation).await.map_err(SessionEnd::Local)? {
            return inner.in_sync(leg, session_id);
        }
        // Another peer was lost meanwhile, and a new generation started.
        request = PeerRequest::NewGeneration { generation: inner.local.superblock().current };
    }
}

/// Sends the generation history of the local data to the peer. If the peer becomes the source, it
/// can recognize a third replica that was left behind earlier.
pub(crate) async fn send_ancestors(
    session: &SharedSession,
    superblock: &Superblock,
) -> Result<(), RequestError> {
    let generations = superblock.ancestors();
    execute(session, PeerRequest::Ancestors { generations }).await
}

impl Inner {
    /// Reports the target's bad ranges to it, if they changed: it has everything else. In
    /// asynchronous mode, older queued writes reach the target first.
    async fn report_bad_ranges(
        &self,
        leg: usize,
        session: &SharedSession,
    ) -> Result<(), SessionEnd> {
        let geometry = self.local.superblock().geometry;
        let (bit_bytes, usable_bytes) = (u64::from(geometry.bit_bytes), geometry.usable_bytes);
        let list = self.legs[leg].bad_ranges().in_whole_bits(bit_bytes, usable_bytes);
        let before = {
            let mut state = self.lock();
            let own = &mut state.legs[leg];
            let speaks =
                |versions: LinkVersions| versions.highest() >= LinkVersion::REPORTS_BAD_RANGES;
            if !own.versions.is_some_and(speaks) || own.reported_bad_ranges == list {
                return Ok(());
            }
            // Before the check below: a write that fails from now on ends the session unless the
            // list covers it.
            std::mem::replace(&mut own.reported_bad_ranges, list.clone())
        };
        if self.next_run_outside_bad_ranges(leg, 0, 1).is_some() {
            // A write failed earlier, so the list is not sent: the target still has the
            // previous one.
            self.lock().legs[leg].reported_bad_ranges = before;
            return Ok(());
        }
        let replica = self.local.superblock().replica;
        tracing::warn!(%replica, leg, "the resync cannot copy {} bad ranges", list.len());
        self.wait_for_queue(leg).await;
        let count = list.len() as u16;
        for (index, bad) in (0..count).zip(&list) {
            let (offset, len) = (bad.start, bad.end - bad.start);
            let range = BadRangeReport { offset, len, index, count };
            execute(session, PeerRequest::BadRange(range)).await?;
        }
        Ok(())
    }

    /// Checks that no difference is left. From then on a failed write ends the session, because the
    /// target is about to count as consistent. False when a write has failed since the last copy.
    fn is_copied(&self, leg: usize, session_id: u64) -> Result<bool, SessionEnd> {
        self.change(|state| {
            let own = &mut state.legs[leg];
            if !own.is_current(session_id) {
                return Err(SessionEnd::Lost);
            }
            own.inconsistent = self.legs[leg].out_of_sync.count() > 0;
            Ok(!own.inconsistent)
        })
    }

    fn in_sync(&self, leg: usize, session_id: u64) -> Result<(), SessionEnd> {
        let now = time::wall_clock().as_secs();
        let last = &self.legs[leg].counters.last_in_sync_s;
        last.store(now, Ordering::Relaxed);
        let reached = self.change(|state| {
            let own = &mut state.legs[leg];
            let current = own.is_current(session_id) && own.receives_writes;
            if current {
                own.phase = LegPhase::InSync;
                // Writes of this session can be lost only after its end.
                let counters = &self.legs[leg].counters;
                counters.lost_writes.store(0, Ordering::Relaxed);
                counters.lost_bytes.store(0, Ordering::Relaxed);
            }
            current
        });
        if !reached {
            return Err(SessionEnd::Lost);
        }
        self.legs[leg].bad_ranges().clear();
        tracing::info!(replica = %self.local.superblock().replica, leg, "the peer is in sync");
        Ok(())
    }

    fn forget_full_resync(&self, leg: usize) {
        if self.lock().legs[leg].full_resync {
            self.change(|state| state.legs[leg].full_resync = false);
        }
    }

    /// Marks everything for a full resync. All bits are durable before the target adopts a
    /// generation that depends on them, so the next handshake resumes where this one ended.
    async fn mark_all(&self, leg: usize) -> Result<Generation, SessionEnd> {
        self.mark(leg, 0, self.local.superblock().geometry.usable_bytes);
        self.local.persist_marks().await.map_err(SessionEnd::Local)?;
        let base = Generation::random();
        let slot = self.slot_of_leg(leg);
        let name = move |superblock: &mut Superblock| {
            // In a hand-over, the next source already has all existing names.
            if superblock.flags.in_use {
                let mut generations = superblock.generations(slot);
                generations.expect_name(base);
                superblock.set_generations(slot, &generations);
            }
            superblock.flags.in_use
        };
        if !self.local.update(name).await.map_err(SessionEnd::Local)? {
            return Err(SessionEnd::Changed);
        }
        self.announce_name(leg).await;
        Ok(base)
    }

    async fn announce_name(&self, leg: usize) {
        let superblock = self.local.superblock();
        let sessions: Vec<_> = {
            let state = self.lock();
            let others = state.legs.iter().enumerate().filter(|(other, _)| *other != leg);
            let open = others.filter(|(_, own)| own.receives_writes);
            open.filter_map(|(other, own)| Some((other, own.session_id, own.session.clone()?)))
                .collect()
        };
        for (other, session_id, session) in sessions {
            if send_ancestors(&session, &superblock).await.is_err() {
                self.disconnect(other, session_id);
            }
        }
    }

    /// Adds the blocks named by the peer's log to those to copy.
    async fn merge_peer_bitmap(
        &self,
        leg: usize,
        session: &SharedSession,
    ) -> Result<(), SessionEnd> {
        let words = self.legs[leg].out_of_sync.words();
        let per_page = crate::ondisk::bitmap_page::WORDS as u64;
        for page in 0..words.div_ceil(per_page) {
            let theirs = crate::wire::peer::bitmap_page(session, page).await?;
            for (word, index) in theirs.iter().zip(page * per_page..) {
                self.legs[leg].out_of_sync.merge(index, *word);
            }
        }
        Ok(())
    }
}

/// Monitors an active session. Returns when it is lost or no longer wanted.
async fn monitor(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
) -> Result<Never, SessionEnd> {
    let flushing =
        crate::session::resync::keep_flushed(inner.clone(), leg, session.clone(), session_id);
    let _flushing = flagstone_runtime::spawn(flushing).abort_on_drop();
    let mut lost = session.lost();
    let unwanted = inner.wait(|state| {
        let own = &state.legs[leg];
        let wanted =
            own.desired_state == DesiredState::Connected && state.serving || own.handing_over;
        let stays = own.is_current(session_id) && wanted;
        (!stays || own.full_resync || state.closed).then_some(())
    });
    let mut unwanted = std::pin::pin!(unwanted);
    std::future::poll_fn(|cx| {
        let lost = std::pin::Pin::new(&mut lost).poll(cx).is_ready();
        if lost || unwanted.as_mut().poll(cx).is_ready() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    Err(SessionEnd::Lost)
}
