//! Automatic failover: the part of a mirror that asks an arbiter when its nodes part.
//!
//! [`step`] decides what to do, [`task`] does it, and
//! [`flagstone_arbiter::race`] asks. This module holds the read lease and the right of a source to
//! serve alone, which the data path consults:
//!
//! - a read or flush of a contested source waits when the lease has ended
//!   ([`Failover::lease_has_ended`]);
//! - no new generation is started before the peer is excluded from the arbiter's record
//!   ([`Inner::may_go_alone`]), so no write that the peer lacks is acknowledged;
//! - the peer never runs degraded for this node. A node whose disk fails leaves the service and
//!   hands over: after a restart, it could otherwise ask for the role with old data.
//!
//! Without an arbiter nothing here has an effect.

mod fence;
mod leave;
mod maintenance;
mod proof;
pub(crate) mod renew;
pub(crate) mod task;

use fence::Grant;
pub use fence::{Fence, FenceError, FenceFuture, Fencing, SharedFence};
pub use leave::LeaveError;
pub use maintenance::MaintenanceError;
pub use proof::StoreProof;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flagstone_arbiter::epoch::least_epoch;
use flagstone_arbiter::race::Denial;
use flagstone_arbiter::{SharedArbiter, StoreId};
use flagstone_blockdev::IoError;
use flagstone_runtime::spawn_detached;
use parking_lot::Mutex;

use crate::io::new_generation::due;
use crate::manage::command::{CommandError, RoleOffer};
use crate::manage::roles::Promotion;
use crate::mirror::{Inner, Mirror, State, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight, Superblock};
use crate::state::arbitration::{
    PeerExclusion, ServingRight, Situation, Step, Timing, compared_again_at, step,
};
use crate::state::outlook::{Obstacle, Outlook, obstacle, peer_obstacle};
use crate::state::status::LegPhase;
use crate::wire::peer::{LossPermission, RequestError};

/// Options of automatic failover.
#[derive(Clone)]
pub struct FailoverOptions {
    /// The arbiter.
    pub arbiter: SharedArbiter,
    /// A target asks the arbiter for the role this long after it last answered its source: at least
    /// the timeout of the link, and [`FAILOVER_AFTER_MIN`].
    pub failover_after: Duration,
    /// Stops the peer's machine before this node takes over; `None` without such a command.
    pub fence: Option<SharedFence>,
}

/// Shortest permitted [`FailoverOptions::failover_after`].
pub const FAILOVER_AFTER_MIN: Duration = Duration::from_secs(1);

/// The arbiter's record lists the peer as in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Session of the peer.
    pub(crate) session_id: u64,
    /// Revision of the record.
    pub(crate) revision: u64,
    /// When that was read or written: a store may be restored from a backup at any time.
    checked_ns: u64,
}

impl Published {
    pub(crate) fn now(session_id: u64, revision: u64) -> Published {
        Published { session_id, revision, checked_ns: Inner::boot_ns() }
    }

    /// It has to be compared at once.
    fn outdated(self) -> Published {
        Published { checked_ns: 0, ..self }
    }

    /// When the record is compared again.
    fn compare_at_ns(self) -> u64 {
        compared_again_at(self.checked_ns)
    }
}

/// Task that runs the races of one mirror.
pub(crate) struct Failover {
    options: Option<FailoverOptions>,
    /// Reads that begin before this time are served. The maximum if they need no lease.
    read_until_ns: AtomicU64,
    /// End of the lease that the peer has confirmed.
    renewed_until_ns: AtomicU64,
    /// A node that does not serve asks no earlier.
    ask_not_before_ns: AtomicU64,
    /// Why the last race granted nothing.
    denial: Mutex<Option<Denial>>,
    /// What the source has allowed last; `None` before it attached.
    offer: Mutex<Option<LossPermission>>,
    /// As [`ArbiterMark::source_after_ms`].
    source_after_ms: AtomicU64,
    /// See [`Situation::watched_ns`].
    watched_ns: AtomicU64,
    /// Why the peer does not take over, as it has answered last.
    peer_report: Mutex<Option<Obstacle>>,
    /// Of a target: its source and this node use one store.
    proof: Mutex<StoreProof>,
    /// When the source has said last that it has recorded something new.
    recorded_ns: AtomicU64,
    fencing: Mutex<Fencing>,
    grant: Mutex<Option<Grant>>,
}

impl Failover {
    pub(crate) fn new(options: Option<FailoverOptions>, mark: ArbiterMark) -> Failover {
        let failover = Failover {
            options,
            read_until_ns: AtomicU64::new(u64::MAX),
            renewed_until_ns: AtomicU64::new(0),
            ask_not_before_ns: AtomicU64::new(0),
            denial: Mutex::default(),
            offer: Mutex::default(),
            source_after_ms: AtomicU64::new(mark.source_after_ms.into()),
            watched_ns: AtomicU64::new(0),
            peer_report: Mutex::default(),
            proof: Mutex::default(),
            recorded_ns: AtomicU64::new(0),
            fencing: Mutex::default(),
            grant: Mutex::default(),
        };
        // A node that starts gives its peer the same time to be heard.
        failover.answered();
        failover
    }

    pub(crate) fn is_automatic(&self) -> bool {
        self.options.is_some()
    }

    /// The configured store; none without an arbiter.
    fn store(&self) -> StoreId {
        self.options.as_ref().map_or(StoreId::NONE, |own| own.arbiter.store())
    }

    fn timing(&self) -> Timing {
        let after = self.options.as_ref().map_or(FAILOVER_AFTER_MIN, |own| own.failover_after);
        Timing { failover_after_ns: after.max(FAILOVER_AFTER_MIN).as_nanos() as u64 }
    }

    /// True when a read that begins now may find older data than hosts have seen. Without a lease,
    /// the clock is not read.
    #[inline]
    pub(crate) fn lease_has_ended(&self) -> bool {
        let until_ns = self.read_until_ns.load(Ordering::Acquire);
        until_ns != u64::MAX && Inner::boot_ns() >= until_ns
    }

    /// The source that is attached here has got an answer: see [`Timing`].
    pub(crate) fn answered(&self) {
        if self.is_automatic() {
            // The lease of the source may be longer.
            let source_ns = self.source_after_ms.load(Ordering::Acquire).saturating_mul(1_000_000);
            let wait_ns = self.timing().failover_after_ns.max(source_ns);
            let earliest = Inner::boot_ns().saturating_add(wait_ns);
            self.ask_not_before_ns.fetch_max(earliest, Ordering::AcqRel);
        }
    }

    /// A source has attached.
    pub(crate) fn attached(&self) {
        self.watched_ns.store(0, Ordering::Release);
        self.set_fencing(Fencing::Idle);
        *self.offer.lock() = None;
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

    /// The source has recorded nothing that this replica may rely on. Called before the mark in the
    /// superblock changes, so that a race that ends meanwhile does not change it back.
    pub(crate) fn withdraw_proof(&self) {
        self.change_proof(|_| StoreProof::NotNeeded);
    }

    fn set_fencing(&self, fencing: Fencing) {
        *self.fencing.lock() = fencing;
    }

    /// The command that stops the peer's machine runs.
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
            // The order stands until it is recorded.
            Promotion::Resumed if before.arbiter.serving_right == RecordedRight::Ordered => {
                ServingRight::Alone(PeerExclusion::Ordered)
            }
            // Also if the record excluded the peer once: it may say otherwise by now.
            Promotion::Resumed | Promotion::Agreed | Promotion::HandedOver { .. } => {
                let peer_left = matches!(promotion, Promotion::HandedOver { leaves: true, .. });
                ServingRight::Contested { since_ns: Inner::boot_ns(), peer_left }
            }
        }
    }

    /// The mark of a node that begins to serve.
    pub(crate) fn mark_after(&self, promotion: Promotion, before: ArbiterMark) -> ArbiterMark {
        self.withdraw_proof();
        let served = ArbiterMark { source_asks: false, ..before };
        match promotion {
            _ if !self.is_automatic() => ArbiterMark::default(),
            Promotion::Granted { revision, .. } => {
                let revision = revision.max(before.revision);
                let serving_right = RecordedRight::Alone;
                ArbiterMark { revision, serving_right, suspended: false, ..served }
            }
            Promotion::Alone | Promotion::Overriding => {
                ArbiterMark { serving_right: RecordedRight::Ordered, ..served }
            }
            // Nothing was granted since the former source had seen this revision.
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

    /// The mark of a target that a source attaches to.
    pub(crate) fn mark_attached(&self, before: ArbiterMark, source_asks: bool) -> ArbiterMark {
        self.withdraw_proof();
        match self.is_automatic() {
            true => {
                let before = before.at_store(self.store());
                ArbiterMark { serving_right: RecordedRight::Unknown, source_asks, ..before }
            }
            false => ArbiterMark::default(),
        }
    }
}

/// Status of automatic failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverStatus {
    /// Right of this node to serve without its peer.
    pub serving_right: ServingRight,
    /// What the superblock says about the arbiter's record.
    pub mark: ArbiterMark,
    /// The record lists the peer as in sync, and the peer knows.
    pub is_peer_recorded: bool,
    /// What this node does next.
    pub step: Step,
    /// Why this node does not serve, or take over, when it loses its peer now; `None` if it does.
    pub obstacle: Option<Obstacle>,
    /// On a source: why the peer does not take over when this node is lost now; `None` if it does.
    pub peer_obstacle: Option<Obstacle>,
    /// The operator has suspended automatic failover, as far as this node has seen.
    pub is_suspended: bool,
    /// Why the arbiter granted nothing the last time it was asked, unless it has granted since.
    pub denial: Option<Denial>,
    /// Fencing of the peer by this node; `None` without a command.
    pub fencing: Option<Fencing>,
}

impl Mirror {
    /// Status of automatic failover; `None` without an arbiter.
    pub fn failover_status(&self) -> Option<FailoverStatus> {
        let inner = &self.0;
        let options = inner.failover.options.as_ref()?;
        let situation = inner.situation();
        let denial = inner.failover.denial.lock().clone();
        Some(FailoverStatus {
            obstacle: inner.failover_obstacle(),
            peer_obstacle: inner.peer_obstacle(),
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
    /// Hosts are served here, and a read that begins now may be answered.
    pub fn may_answer_reads(&self) -> bool {
        self.0.lock().serving && !self.0.failover.lease_has_ended()
    }
}

impl Inner {
    /// See [`FailoverStatus::obstacle`].
    fn failover_obstacle(&self) -> Option<Obstacle> {
        // One after the other: the state is locked before the offer elsewhere.
        let (situation, is_attached) = {
            let state = self.lock();
            (self.situation_in(&state), state.attached.is_some())
        };
        let denial = self.failover.denial.lock().clone();
        let offer = *self.failover.offer.lock();
        let is_removed = self.local.superblock().removed;
        let is_unfenced = self.failover.fencing_has_failed();
        let outlook =
            Outlook { offer, denial: denial.as_ref(), is_removed, is_attached, is_unfenced };
        obstacle(&situation, &outlook)
    }

    /// See [`FailoverStatus::peer_obstacle`].
    fn peer_obstacle(&self) -> Option<Obstacle> {
        let state = self.lock();
        let session_id = state.legs.first().filter(|leg| leg.is_admitted).map(|leg| leg.session_id);
        let offered = session_id.map(|session_id| self.offer(&state, session_id));
        let report = *self.failover.peer_report.lock();
        peer_obstacle(offered.unwrap_or(LossPermission::Unrecorded { asks: false })).or(report)
    }

    fn situation(&self) -> Situation {
        self.situation_in(&self.lock())
    }

    fn situation_in(&self, state: &State) -> Situation {
        let mark = self.local.superblock().arbiter;
        let session_id = state.legs.first().map(|leg| leg.session_id);
        let now_ns = Inner::boot_ns();
        let published = state.published.filter(|published| {
            Some(published.session_id) == session_id && published.compare_at_ns() > now_ns
        });
        Situation {
            state: self.machine_state_in(state),
            serving_right: state.serving_right,
            is_admitted: state.legs.first().is_some_and(|leg| leg.is_admitted),
            // Only one that ends in service abandons a run: an attempt to attach is refused
            // meanwhile.
            changes_role: state.changing_role && !self.failover.is_fencing(),
            mark: mark.serving_right,
            revision: mark.revision,
            is_other_store: self.failover.is_automatic()
                && mark.is_of_other_store(self.failover.store()),
            published_until_ns: published.map(Published::compare_at_ns),
            write_waits: state.bumping_generation,
            now_ns,
            lease_until_ns: self.failover.renewed_until_ns.load(Ordering::Acquire),
            ask_not_before_ns: self.failover.ask_not_before_ns.load(Ordering::Acquire),
            source_asks: mark.source_asks,
            watched_ns: self.failover.watched_ns.load(Ordering::Acquire),
            proof: self.failover.proof(),
            timing: self.failover.timing(),
        }
    }

    /// Changes the right to serve, and with it what reads need. Called under the state's lock.
    pub(crate) fn set_serving_right(&self, state: &mut State, serving_right: ServingRight) {
        state.serving_right = serving_right;
        let until = match serving_right.is_contested() {
            true => self.failover.renewed_until_ns.load(Ordering::Acquire),
            false => u64::MAX,
        };
        self.failover.read_until_ns.store(until, Ordering::Release);
    }

    /// As [`Inner::set_serving_right`], for a node that begins to serve.
    pub(crate) fn begin_serving_right(&self, state: &mut State, promotion: Promotion) {
        let serving_right = self.failover.serving_right_after(promotion, &self.local.superblock());
        self.failover.forget_grant();
        if self.failover.fencing_has_failed() {
            // By the operator's order.
            self.failover.set_fencing(Fencing::Idle);
        }
        state.published = None;
        self.set_serving_right(state, serving_right);
    }

    /// The peer has answered a renewal that was sent at `sent_ns`.
    pub(crate) fn renewed(&self, sent_ns: u64) {
        let until = sent_ns.saturating_add(self.failover.timing().lease_ns());
        let had_ended = {
            let state = self.lock();
            let before = self.failover.renewed_until_ns.fetch_max(until, Ordering::AcqRel);
            if !state.serving_right.is_contested() {
                return;
            }
            self.failover.read_until_ns.store(until.max(before), Ordering::Release);
            before <= Inner::boot_ns()
        };
        if had_ended {
            // Reads and flushes wait.
            self.change(|_| {});
        }
    }

    /// Waits until a write that a peer lacks may be acknowledged. False if no peer lacks it any
    /// more, or may serve before it has been copied.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when hosts are no longer served here.
    pub(crate) async fn may_go_alone(&self) -> Result<bool, IoError> {
        let decided = |state: &mut StateGuard<'_>| match state.serving_right {
            _ if !state.serving => Some(Err(IoError::Unreachable)),
            ServingRight::Contested { .. } => (!due(state).contains(&true)).then_some(Ok(false)),
            ServingRight::Manual | ServingRight::Alone(_) => Some(Ok(true)),
        };
        self.wait(decided).await
    }

    /// Durably records what this replica knows of the arbiter's record.
    async fn store_mark(
        &self,
        change: impl Fn(ArbiterMark) -> ArbiterMark + 'static,
    ) -> Result<(), IoError> {
        let before = self.local.superblock().arbiter;
        if change(before) == before {
            return Ok(());
        }
        // Another change may come first.
        self.local.update(move |superblock| superblock.arbiter = change(superblock.arbiter)).await
    }

    /// Leaves the service because the local leg has failed, and hands the role to the peer of this
    /// session, which has every acknowledged write. The peer asks the arbiter before it
    /// acknowledges a write, so this node cannot come back with old data. Without its answer, the
    /// peer takes over by itself if it may.
    pub(crate) fn leave_service(self: &Arc<Self>, leg: usize, session_id: u64, error: IoError) {
        let left = self.change(|state| {
            let serving = state.serving;
            state.local_device_failed = true;
            if serving {
                state.stop_serving();
                // The session is needed for the hand-over.
                state.legs[leg].handing_over = state.legs[leg].is_current(session_id);
            }
            serving
        });
        if !left {
            return;
        }
        let replica = self.local.superblock().replica;
        tracing::error!(%replica, "the local leg has failed ({error}): handing over to the peer");
        let inner = self.clone();
        // Not under the lock of roles here: this is a host call, and a change of role may wait for
        // it.
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
        session.flush().await.map_err(RequestError::from)?;
        let epoch = least_epoch(self.local.superblock().epoch);
        let offer =
            RoleOffer { leg, session, session_id, local_device_failed: true, epoch, leaves: true };
        let (outcome, promoted) = self.promote_peer(&offer).await;
        self.end_hand_over(&offer, outcome).await?;
        promoted
    }
}
