//! Automatic failover: the part of a mirror that asks an arbiter when its nodes lose contact.
//!
//! [`step`] decides the next step, [`task`] takes it, and [`flagstone_arbiter::race`] asks the
//! arbiter. This module has the read lease and the right of a source to serve alone, which the data
//! path consults:
//!
//! - a read or flush of a contested source waits when the lease has ended
//!   ([`Failover::lease_has_ended`]);
//! - no new generation is started before the peer is excluded from the arbiter's record
//!   ([`Inner::may_go_alone`]), so no write that the peer lacks is acknowledged;
//! - the peer never runs degraded for this node. A node whose disk fails stops serving and hands
//!   over: otherwise it could ask for the role with old data after a restart.
//!
//! In a consistency group, the leader asks for all members ([`members`]).
//!
//! Without an arbiter, this module has no effect.

mod device_test;
mod fence;
mod lag;
mod lease;
mod leave;
mod maintenance;
pub(crate) mod members;
mod proof;
pub(crate) mod renew;
pub(crate) mod task;

use fence::Grant;
pub use fence::{Fence, FenceError, FenceFuture, Fencing, SharedFence};
use lag::TargetLag;
pub(crate) use lease::Lease;
pub use leave::LeaveError;
pub use maintenance::MaintenanceError;
pub use proof::StoreProof;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_arbiter::epoch::least_epoch;
use flagstone_arbiter::race::Denial;
use flagstone_arbiter::{RecordStamp, SharedArbiter, StoreId};
use flagstone_blockdev::IoError;
use flagstone_runtime::spawn_detached;
use parking_lot::Mutex;

use crate::group::Membership;
use crate::io::fifo_lock::FifoLock;
use crate::io::new_generation::due;
use crate::manage::command::{CommandError, RoleOffer};
use crate::manage::roles::Promotion;
use crate::mirror::{GenerationBump, Inner, Mirror, State, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight, Superblock};
use crate::state::arbitration::{
    PeerExclusion, ServingRight, Situation, Step, Timing, compared_again_at, step,
};
use crate::state::members::Members;
use crate::state::outlook::{Obstacle, Outlook, obstacle, peer_obstacle};
use crate::state::status::LegPhase;
use crate::wire::peer::{LossPermission, RequestError};

/// Options of automatic failover.
#[derive(Clone)]
pub struct FailoverOptions {
    /// The arbiter.
    pub arbiter: SharedArbiter,
    /// Time after its last answer to the source at which a target asks the arbiter for the role: at
    /// least the timeout of the link, and [`FAILOVER_AFTER_MIN`].
    pub failover_after: Duration,
    /// Of an asynchronous mirror: a target takes over only with proof that it lacks no write
    /// completed earlier than this before the source's last one. `None` in synchronous mode.
    pub max_lag: Option<Duration>,
    /// Stops the peer's machine before this node takes over; `None` without such a command.
    pub fence: Option<SharedFence>,
}

/// Shortest permitted [`FailoverOptions::failover_after`].
pub const FAILOVER_AFTER_MIN: Duration = Duration::from_secs(1);

/// Session whose peer the arbiter's record lists as in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Session of the peer.
    pub(crate) session_id: u64,
    /// The record.
    pub(crate) record: RecordStamp,
    /// Time when the record was last read or written. It is compared again and again, because a
    /// store may be restored from a backup.
    checked_ns: u64,
}

impl Published {
    pub(crate) fn now(session_id: u64, record: RecordStamp) -> Published {
        Published { session_id, record, checked_ns: Inner::boot_ns() }
    }

    /// Marks the record as due for comparison.
    fn outdated(self) -> Published {
        Published { checked_ns: 0, ..self }
    }

    /// Time of the next comparison.
    fn compare_at_ns(self) -> u64 {
        compared_again_at(self.checked_ns)
    }
}

/// Task that runs the races of one mirror.
pub(crate) struct Failover {
    options: Option<FailoverOptions>,
    /// True if reads need the lease.
    needs_lease: AtomicBool,
    /// Of the mirror, or of its consistency group.
    lease: Arc<Lease>,
    /// Name of the consistency group and of its volumes, by which its store differs from that of a
    /// single volume, and of a group of other volumes.
    group: Option<String>,
    /// Denial of the last race.
    denial: Mutex<Option<Denial>>,
    /// Last offer of the source; `None` before it attached.
    offer: Mutex<Option<LossPermission>>,
    /// See [`Situation::watched_ns`].
    watched_ns: AtomicU64,
    /// Last answer of the peer why it would not take over.
    peer_report: Mutex<Option<Obstacle>>,
    /// At a target: proof that source and target use one store.
    proof: Arc<Mutex<StoreProof>>,
    /// Time when the source last reported a new record.
    recorded_ns: AtomicU64,
    target_lag: TargetLag,
    fencing: Mutex<Fencing>,
    grant: Mutex<Option<Grant>>,
    /// Held while a race runs, so that a race that began before an order about maintenance does not
    /// write the former setting over it.
    racing: Arc<FifoLock>,
    /// Error of the last test of the local devices for a race; `None` if it passed.
    device_failure: Mutex<Option<IoError>>,
}

impl Failover {
    pub(crate) fn new(
        options: Option<FailoverOptions>,
        mark: ArbiterMark,
        group: Option<&Membership>,
    ) -> Failover {
        let lease = group.map_or_else(Arc::default, |membership| membership.group().lease());
        lease.learn_source_after(mark.source_after_ms.into());
        let failover = Failover {
            options,
            needs_lease: AtomicBool::new(false),
            lease,
            group: group.map(|membership| membership.group().identity()),
            denial: Mutex::default(),
            offer: Mutex::default(),
            watched_ns: AtomicU64::new(0),
            peer_report: Mutex::default(),
            proof: Arc::default(),
            recorded_ns: AtomicU64::new(0),
            target_lag: TargetLag::default(),
            fencing: Mutex::default(),
            grant: Mutex::default(),
            racing: Arc::default(),
            device_failure: Mutex::default(),
        };
        // A node that starts waits for its peer as long as after an answer.
        failover.answered();
        failover
    }

    pub(crate) fn is_automatic(&self) -> bool {
        self.options.is_some()
    }

    /// The configured store; none without an arbiter.
    fn store(&self) -> StoreId {
        let store = self.options.as_ref().map_or(StoreId::NONE, |own| own.arbiter.store());
        match &self.group {
            Some(group) if store != StoreId::NONE => {
                StoreId::of(&format!("{:016x} {group}", store.0))
            }
            _ => store,
        }
    }

    fn timing(&self) -> Timing {
        let after = self.options.as_ref().map_or(FAILOVER_AFTER_MIN, |own| own.failover_after);
        Timing { failover_after_ns: after.max(FAILOVER_AFTER_MIN).as_nanos() as u64 }
    }

    /// True if a read that begins now may return data older than hosts have seen. Does not read the
    /// clock if reads need no lease.
    #[inline]
    pub(crate) fn lease_has_ended(&self) -> bool {
        self.needs_lease.load(Ordering::Acquire) && Inner::boot_ns() >= self.lease.until_ns()
    }

    /// Counts an answer to the attached source: see [`Timing`].
    pub(crate) fn answered(&self) {
        if self.is_automatic() {
            // The lease of the source may be longer.
            self.lease.answered(Inner::boot_ns(), self.timing().failover_after_ns);
        }
    }

    /// Resets the offer and the proof when a source attaches.
    pub(crate) fn attached(&self) {
        self.watched_ns.store(0, Ordering::Release);
        self.set_fencing(Fencing::Idle);
        *self.offer.lock() = None;
        self.forget_device_failure();
        self.answered();
    }

    fn proof(&self) -> StoreProof {
        *self.proof.lock()
    }

    fn change_proof(&self, change: impl FnOnce(StoreProof) -> StoreProof) -> StoreProof {
        let mut proof = self.proof.lock();
        *proof = change(*proof);
        *proof
    }

    /// Withdraws the proof: the source has recorded nothing that this replica may rely on. Called
    /// before the mark in the superblock changes, so that a race that ends in between does not
    /// restore it.
    pub(crate) fn withdraw_proof(&self) {
        self.change_proof(|_| StoreProof::NotNeeded);
    }

    fn set_fencing(&self, fencing: Fencing) {
        *self.fencing.lock() = fencing;
    }

    /// True while the command runs that stops the peer's machine.
    pub(crate) fn is_fencing(&self) -> bool {
        matches!(*self.fencing.lock(), Fencing::Running { .. })
    }

    fn fencing_has_failed(&self) -> bool {
        self.fencing.lock().failure().is_some()
    }

    /// `failover_after` in milliseconds.
    fn after_ms(&self) -> u32 {
        u32::try_from(self.timing().failover_after_ns / 1_000_000).unwrap_or(u32::MAX)
    }

    /// Right of a node that begins to serve.
    fn serving_right_after(&self, promotion: Promotion, before: &Superblock) -> ServingRight {
        if !self.is_automatic() {
            return ServingRight::Manual;
        }
        let has_met = before.peers.iter().any(|peer| !peer.replica.is_none());
        match promotion {
            Promotion::Granted { .. } => {
                ServingRight::Alone(PeerExclusion::Recorded { checked_ns: Inner::boot_ns() })
            }
            Promotion::Alone | Promotion::Overriding => ServingRight::Alone(PeerExclusion::Ordered),
            _ if !has_met => ServingRight::Alone(PeerExclusion::Unshared),
            // The operator's order remains in effect until it is recorded.
            Promotion::Resumed if before.arbiter.serving_right == RecordedRight::Ordered => {
                ServingRight::Alone(PeerExclusion::Ordered)
            }
            // Also if the record excluded the peer earlier: it may have changed since.
            Promotion::Resumed | Promotion::Agreed | Promotion::HandedOver { .. } => {
                let peer_left = matches!(promotion, Promotion::HandedOver { leaves: true, .. });
                ServingRight::Contested { since_ns: Inner::boot_ns(), peer_left }
            }
        }
    }

    /// Mark in the superblock of a node that begins to serve, from the one before. Applied at the
    /// time of the write, because the leader of a group notes records in the meantime.
    pub(crate) fn mark_after(
        &self,
        promotion: Promotion,
    ) -> impl Fn(ArbiterMark) -> ArbiterMark + Copy + use<> {
        self.withdraw_proof();
        let is_automatic = self.is_automatic();
        move |before| match promotion {
            _ if !is_automatic => ArbiterMark::default(),
            _ => Failover::served_mark(promotion, before),
        }
    }

    fn served_mark(promotion: Promotion, before: ArbiterMark) -> ArbiterMark {
        let served = ArbiterMark { source_asks: false, ..before };
        match promotion {
            Promotion::Granted { revision, .. } => {
                let revision = revision.max(before.revision);
                let serving_right = RecordedRight::Alone;
                ArbiterMark { revision, serving_right, suspended: false, ..served }
            }
            Promotion::Alone | Promotion::Overriding => {
                ArbiterMark { serving_right: RecordedRight::Ordered, ..served }
            }
            // Nothing was granted after the revision that the former source had seen.
            Promotion::HandedOver { revision, .. }
                if revision > 0 && revision >= before.revision =>
            {
                ArbiterMark { revision, serving_right: RecordedRight::Succeeded, ..served }
            }
            Promotion::Resumed => served,
            Promotion::Agreed if before.serving_right.is_of_source() => served,
            Promotion::Agreed | Promotion::HandedOver { .. } => {
                ArbiterMark { serving_right: RecordedRight::Unknown, ..served }
            }
        }
    }

    /// Mark in the superblock of a target when a source attaches, as [`Failover::mark_after`].
    pub(crate) fn mark_attached(
        &self,
        asks: Option<u64>,
    ) -> impl Fn(ArbiterMark) -> ArbiterMark + Copy + use<> {
        self.withdraw_proof();
        self.forget_lag();
        let is_automatic = self.is_automatic();
        move |before| match is_automatic {
            true => ArbiterMark { serving_right: RecordedRight::Unknown, ..before.asked_by(asks) },
            false => ArbiterMark::default(),
        }
    }
}

/// Status of automatic failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverStatus {
    /// Right of this node to serve without its peer.
    pub serving_right: ServingRight,
    /// The superblock's note about the arbiter's record.
    pub mark: ArbiterMark,
    /// True if the record lists the peer as in sync, and the peer knows it.
    pub is_peer_recorded: bool,
    /// Next step of this node.
    pub step: Step,
    /// Reason why this node would not serve, or take over, if it lost its peer now; `None` if it
    /// would.
    pub obstacle: Option<Obstacle>,
    /// In a consistency group: the volume that has this obstacle.
    pub volume: Option<String>,
    /// On a source: reason why the peer would not take over if this node were lost now; `None` if
    /// it would.
    pub peer_obstacle: Option<Obstacle>,
    /// In a consistency group: the volume that has this obstacle on the peer.
    pub peer_volume: Option<String>,
    /// Of an asynchronous mirror: [`FailoverOptions::max_lag`].
    pub max_lag: Option<Duration>,
    /// On the source of an asynchronous mirror that took over: the writes that the former source
    /// completed in at most this span before its last one may be lost.
    pub lag_at_takeover: Option<Duration>,
    /// True if the operator has suspended automatic failover, as far as this node knows.
    pub is_suspended: bool,
    /// Last denial of the arbiter, unless it has granted since.
    pub denial: Option<Denial>,
    /// Fencing of the peer by this node; `None` without a command.
    pub fencing: Option<Fencing>,
}

impl Mirror {
    /// Status of automatic failover; `None` without an arbiter.
    pub fn failover_status(&self) -> Option<FailoverStatus> {
        let inner = self.0.arbitrating();
        let options = inner.failover.options.as_ref()?;
        let situation = inner.situation();
        let serving = inner.lock().serving;
        let denial = inner.failover.denial.lock().clone();
        let (obstacle, volume) = inner.first_obstacle(Inner::failover_obstacle);
        let (peer_obstacle, peer_volume) = inner.first_obstacle(Inner::peer_obstacle);
        Some(FailoverStatus {
            obstacle,
            volume,
            peer_obstacle,
            peer_volume,
            max_lag: options.max_lag,
            lag_at_takeover: inner.failover.lag_at_takeover().filter(|_| serving),
            is_suspended: inner.local.superblock().arbiter.suspended,
            serving_right: situation.serving_right,
            mark: inner.local.superblock().arbiter,
            is_peer_recorded: situation.published_until_ns.is_some(),
            step: step(&situation),
            denial,
            fencing: options.fence.as_ref().map(|_| inner.failover.fencing.lock().clone()),
        })
    }
}

impl Mirror {
    /// True if hosts are served here, and a read that begins now may be answered.
    pub fn may_answer_reads(&self) -> bool {
        self.0.lock().serving && !self.0.failover.lease_has_ended()
    }
}

impl Inner {
    /// See [`FailoverStatus::obstacle`].
    fn failover_obstacle(&self) -> Option<Obstacle> {
        // One after the other: elsewhere, the state is locked before the offer.
        let (situation, is_attached) = {
            let state = self.lock();
            (self.own_situation(&state), state.attached.is_some())
        };
        // Only the leader of a group reads the record.
        let watched_ns = if self.asks_arbiter() { situation.watched_ns } else { u64::MAX };
        let situation = Situation { watched_ns, ..situation };
        let denial = self.failover.denial.lock().clone();
        let offer = *self.failover.offer.lock();
        let is_removed = self.local.superblock().removed;
        // A later race may have ended without a grant.
        let is_unfenced = self.failover.fencing_has_failed() && denial.is_none();
        let is_device_failed = self.failover.device_has_failed();
        let is_behind =
            offer == Some(LossPermission::Behind) || !is_attached && self.failover.is_behind();
        let outlook = Outlook {
            offer,
            denial: denial.as_ref(),
            is_removed,
            is_attached,
            is_unfenced,
            is_device_failed,
            is_behind,
        };
        obstacle(&situation, &outlook)
    }

    /// See [`FailoverStatus::peer_obstacle`].
    fn peer_obstacle(&self) -> Option<Obstacle> {
        let state = self.lock();
        let session_id = state.legs.first().filter(|leg| leg.is_admitted).map(|leg| leg.session_id);
        let offered = session_id.map(|session_id| self.offer(&state, session_id));
        let report = *self.failover.peer_report.lock();
        peer_obstacle(offered.unwrap_or(LossPermission::Unrecorded { asks: None })).or(report)
    }

    fn situation(&self) -> Situation {
        self.situation_in(&self.lock())
    }

    /// The situation of this mirror; of its group, if it is the leader.
    fn situation_in(&self, state: &State) -> Situation {
        self.with_members(self.own_situation(state))
    }

    fn own_situation(&self, state: &State) -> Situation {
        let mark = self.local.superblock().arbiter;
        let session_id = state.legs.first().map(|leg| leg.session_id);
        let now_ns = Inner::boot_ns();
        let mut machine = self.machine_state_in(state);
        for (leg, own) in machine.legs.iter_mut().flatten().zip(&state.legs) {
            leg.phase = own.recorded_phase();
        }
        let published = state.published.filter(|published| {
            Some(published.session_id) == session_id && published.compare_at_ns() > now_ns
        });
        Situation {
            state: machine,
            serving_right: state.serving_right,
            is_admitted: state.legs.first().is_some_and(|leg| leg.is_admitted),
            // A running fencing command is not interrupted by a change of role, unless this node
            // then serves. Attempts of a source to attach are refused meanwhile.
            changes_role: state.changing_role && !self.failover.is_fencing(),
            mark: match mark.serving_right {
                // Whatever the record says, it proves nothing about the lag.
                RecordedRight::InSync if self.failover.is_behind() => RecordedRight::Unknown,
                serving_right => serving_right,
            },
            revision: mark.revision,
            is_other_store: self.is_recorded_elsewhere(),
            published_until_ns: published.map(Published::compare_at_ns),
            write_waits: state.generation_bump.is_running(),
            now_ns,
            lease_until_ns: self.failover.lease.until_ns(),
            ask_not_before_ns: self.failover.lease.ask_not_before_ns(),
            source_asks: mark.source_asks && !self.failover.is_behind(),
            watched_ns: self.failover.watched_ns.load(Ordering::Acquire),
            proof: self.failover.proof(),
            members: Members::Ready,
            timing: self.failover.timing(),
        }
    }

    /// Changes the right to serve, and the lease that reads need. Called under the lock of the
    /// state.
    pub(crate) fn set_serving_right(&self, state: &mut State, serving_right: ServingRight) {
        state.serving_right = serving_right;
        self.failover.needs_lease.store(serving_right.is_contested(), Ordering::Release);
    }

    /// As [`Inner::set_serving_right`], for a node that begins to serve.
    pub(crate) fn begin_serving_right(&self, state: &mut State, promotion: Promotion) {
        let serving_right = self.failover.serving_right_after(promotion, &self.local.superblock());
        self.failover.forget_grant();
        self.failover.forget_device_failure();
        if self.failover.fencing_has_failed() {
            // By the operator's order, without fencing.
            self.failover.set_fencing(Fencing::Idle);
        }
        state.published = None;
        self.set_serving_right(state, serving_right);
    }

    /// Extends the lease after the peer's answer to a renewal that was sent at `sent_ns`.
    pub(crate) fn renewed(&self, sent_ns: u64) {
        let until = sent_ns.saturating_add(self.failover.timing().lease_ns());
        let had_ended = self.failover.lease.extend(until) <= Inner::boot_ns();
        if had_ended {
            // Wakes reads and flushes that wait for the lease.
            self.change_if_contested();
            self.others_of_group().iter().for_each(|member| member.change_if_contested());
        }
    }

    fn change_if_contested(&self) {
        if self.lock().serving_right.is_contested() {
            self.change(|_| {});
        }
    }

    /// Waits until a write that a peer lacks may be acknowledged: from then on, the difference is
    /// being recorded. False if no peer lacks it any more, or a peer may serve before the write has
    /// been copied to it.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when hosts are no longer served here.
    pub(crate) async fn may_go_alone(&self) -> Result<bool, IoError> {
        let decided = |state: &mut StateGuard<'_>| match state.serving_right {
            _ if !state.serving => Some(Err(IoError::Unreachable)),
            ServingRight::Contested { .. } => (!due(state).contains(&true)).then_some(Ok(false)),
            ServingRight::Manual | ServingRight::Alone(_) => {
                state.generation_bump = GenerationBump::Records;
                Some(Ok(true))
            }
        };
        self.wait(decided).await
    }

    /// True if this replica's record is at another store than the configured one. There, the order
    /// of an operator would not be recorded, and a silent peer may win.
    pub(crate) fn is_recorded_elsewhere(&self) -> bool {
        let mark = self.local.superblock().arbiter;
        self.failover.is_automatic() && mark.is_of_other_store(self.failover.store())
    }

    /// Durably changes the note about the arbiter's record.
    async fn store_mark(
        &self,
        change: impl Fn(ArbiterMark) -> ArbiterMark + 'static,
    ) -> Result<(), IoError> {
        let before = self.local.superblock().arbiter;
        if change(before) == before {
            return Ok(());
        }
        // Computed at the time of the write, because another change may come first.
        self.local.update(move |superblock| superblock.arbiter = change(superblock.arbiter)).await
    }

    /// Stops serving after a failure of the local leg, and hands the role to the peer of this
    /// session, which has every acknowledged write, or is sent it first. The peer asks the arbiter
    /// before it acknowledges a write, so this node cannot come back with old data. If the peer
    /// does not answer, it takes over by itself if it may. So it does with all volumes of a group.
    pub(crate) fn leave_service(self: &Arc<Self>, leg: usize, session_id: u64, error: IoError) {
        let left = self.change(|state| {
            let serving = state.serving;
            state.local_device_failed = true;
            if serving {
                state.stop_serving();
                // Keep the session for the hand-over.
                state.legs[leg].handing_over = state.legs[leg].is_current(session_id);
            }
            serving
        });
        if !left {
            return;
        }
        let replica = self.local.superblock().replica;
        if self.group.is_some() {
            tracing::error!(
                %replica,
                "the local leg has failed ({error}): no volume of the group is served here any more"
            );
            return self.stop_group();
        }
        tracing::error!(%replica, "the local leg has failed ({error}): handing over to the peer");
        let inner = self.clone();
        // Without the role lock here: this is a host call, and a change of role may wait for it.
        spawn_detached(async move {
            let _role_change = inner.begin_role_change().await;
            if let Err(error) = inner.hand_over_failed(leg, session_id).await {
                tracing::error!(%replica, "the peer has not confirmed that it serves: {error}");
            }
            inner.end_sessions();
        });
    }

    async fn hand_over_failed(
        self: &Arc<Self>,
        leg: usize,
        session_id: u64,
    ) -> Result<(), CommandError> {
        let session = {
            let state = self.lock();
            let own = &state.legs[leg];
            let ready = own.is_current(session_id)
                && own.phase == LegPhase::InSync
                && state.promised == 0
                && !state.closed;
            own.session.clone().filter(|_| ready).ok_or(CommandError::NotInSync)?
        };
        // The queue of an asynchronous peer is in memory, so nothing of it is lost.
        if !self.catch_up(leg, session_id).await {
            return Err(CommandError::NotInSync);
        }
        session.flush().await.map_err(RequestError::from)?;
        let epoch = least_epoch(self.local.superblock().epoch);
        let offer =
            RoleOffer { leg, session, session_id, local_device_failed: true, epoch, leaves: true };
        let (outcome, promoted) = self.promote_peer(&offer).await;
        self.end_hand_over(&offer, outcome).await?;
        promoted
    }
}
