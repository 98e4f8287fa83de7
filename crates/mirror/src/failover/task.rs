//! Owner of a mirror's arbitration: one task that takes the steps decided by [`step`], one after
//! the other.
//!
//! A race is abandoned as soon as another step is due. Its last write may still take effect at the
//! arbiter, so the node concludes nothing from it: it stays contested, and the next race reads
//! first.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use flagstone_arbiter::epoch::least_epoch;
use flagstone_arbiter::limits::CALL_MS;
use flagstone_arbiter::race::{self, Ask, Decision, Denial, Goal, Occasion};
use flagstone_arbiter::{ArbiterRecord, NoAnswer, ReplicaId, SharedArbiter, StoreId, Stored};
use flagstone_blockdev::IoError;
use flagstone_runtime::{random_u64, spawn_detached, time};

use crate::failover::members::Attachments;
use crate::failover::{Fencing, Published, StoreProof};
use crate::id::MirrorId;
use crate::limits::{ARBITER_CHECK_MS, ARBITER_RETRY_MS, FENCE_RETRY_MS, PROOF_MS};
use crate::manage::command::CommandError;
use crate::manage::order::OrderProgress;
use crate::manage::roles::{RoleChange, RoleError};
use crate::mirror::{Inner, LegState, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight, ReplicaRole, Superblock};
use crate::state::arbitration::{ServingRight, Step, peer_may_have_served, step, stops_serving_at};
use crate::state::machine::{Action, Actions, Event, MachineState, NodeRole, next};
use crate::state::outlook::Obstacle;
use crate::state::status::LegPhase;

pub(super) fn id(replica: MirrorId) -> ReplicaId {
    ReplicaId(replica.0)
}

/// Takes steps until the mirror is closed. In a consistency group, the leader does so for all.
pub(crate) async fn run(inner: Arc<Inner>, arbiter: SharedArbiter) {
    inner.begin_at(inner.failover.store()).await;
    if !inner.asks_arbiter() {
        return;
    }
    // A step whose race was denied, and the earliest time to repeat it.
    let mut paused: Option<((Step, StoreProof), u64)> = None;
    loop {
        let (closed, changes) = {
            let state = inner.lock();
            (state.closed, state.changes)
        };
        if closed {
            return;
        }
        let next_step = step(&inner.situation());
        // A new record of the source is read without this pause.
        let attempt = (next_step, inner.failover.proof());
        if !next_step.takes_role() {
            inner.failover.forget_grant();
        }
        let until = match (next_step, paused) {
            // The superblock of a member may change without a change of state.
            (Step::Wait(None), _) if inner.group.is_some() => Some(inner.tick()),
            (Step::Wait(until), _) => until,
            (_, Some((before, until))) if attempt == before && Inner::boot_ns() < until => {
                Some(until.min(inner.tick()))
            }
            _ => {
                paused = inner.take_step(next_step, &arbiter).await.is_err().then(|| {
                    let pause_ms = match next_step {
                        // Only a lost answer to an earlier grant can make this succeed.
                        Step::Reclaim => ARBITER_CHECK_MS,
                        _ if inner.failover.fencing_has_failed() => FENCE_RETRY_MS,
                        _ if inner.failover.device_has_failed() => FENCE_RETRY_MS,
                        _ => ARBITER_RETRY_MS,
                    };
                    (attempt, Inner::boot_ns().saturating_add(pause_ms * 1_000_000))
                });
                continue;
            }
        };
        let changed = inner.wait(|state| (state.changes != changes).then_some(()));
        match until {
            None => changed.await,
            Some(until) => {
                let left = Duration::from_nanos(until.saturating_sub(Inner::boot_ns()));
                let _ = time::timeout(left, changed).await;
            }
        }
    }
}

/// The race of a step was denied: the step is repeated after a pause.
struct Denied;

/// Another step is due.
struct Abandoned;

/// A member, and a transition of it that was decided.
struct Decided {
    member: Arc<Inner>,
    after: MachineState,
    actions: Actions,
    /// Taken before hosts were refused, so that no source attaches before the calls in flight have
    /// ended; `None` if another change of role was in progress.
    role_change: Option<RoleChange>,
}

impl Inner {
    /// Durably records the store that is asked from now on, before any step. A replica with a
    /// record at another store keeps that one, until it has been recorded here: a source by itself
    /// with its attached peer, and a target by its source. See
    /// [`Situation::is_other_store`](crate::state::arbitration::Situation).
    async fn begin_at(&self, store: StoreId) {
        let superblock = self.local.superblock();
        let replica = superblock.replica;
        match (superblock.arbiter.is_of_other_store(store), superblock.role) {
            (false, _) => {}
            (true, ReplicaRole::Source) => {
                return tracing::error!(
                    %replica,
                    "the configuration names another arbiter than the one that has this source's record: it neither \
                     takes over nor runs degraded before its peer is attached and recorded there; to change the \
                     arbiter, start both nodes with failover = \"manual\" in between"
                );
            }
            (true, ReplicaRole::Target | ReplicaRole::Deposed) => {
                return tracing::warn!(
                    %replica,
                    "the configuration names another arbiter than before: this node does not take over before its \
                     source has recorded it there"
                );
            }
        }
        while self.store_mark(move |before| before.at_first_store(store)).await.is_err() {
            if self.lock().closed {
                return;
            }
            time::sleep(Duration::from_millis(ARBITER_RETRY_MS)).await;
        }
    }

    /// Latest time at which the step must be decided again.
    fn tick(&self) -> u64 {
        Inner::boot_ns().saturating_add(self.failover.timing().margin_ns() / 4)
    }

    async fn take_step(self: &Arc<Self>, now: Step, arbiter: &SharedArbiter) -> Result<(), Denied> {
        let replica = self.local.superblock().replica;
        match now {
            Step::Wait(_) => {}
            Step::Disconnect => {
                tracing::warn!(%replica, "the peer does not answer: asking the arbiter");
                for (member, session_id) in self.sessions() {
                    member.disconnect(0, session_id);
                }
            }
            Step::DetachSource => {
                tracing::warn!(%replica, "the source does not answer: asking the arbiter");
                for member in self.open_of_group() {
                    member.end_attachment().await;
                }
            }
            Step::StopServing => {
                tracing::error!(%replica, "neither the peer nor the arbiter answers: refusing hosts");
                self.step_aside(|_| Event::LeaseEnded).await;
            }
            Step::Publish { .. }
            | Step::RunDegraded
            | Step::StayDegraded
            | Step::Insist
            | Step::Watch
            | Step::Reclaim
            | Step::TakeOver => return self.race(now, arbiter).await,
        }
        Ok(())
    }

    async fn race(self: &Arc<Self>, now: Step, arbiter: &SharedArbiter) -> Result<(), Denied> {
        if now.takes_role() {
            match self.unless_due(now, self.test_devices()).await {
                Ok(tested) => tested.map_err(|_| Denied)?,
                Err(Abandoned) => {
                    self.failover.forget_grant();
                    return Ok(());
                }
            }
        }
        let Ok(racing) = self.unless_due(now, self.failover.racing.acquire()).await else {
            self.failover.forget_grant();
            return Ok(());
        };
        let superblock = self.local.superblock();
        let (attachments, sessions) = (self.attachments(), self.sessions());
        let (peer, published) = {
            let state = self.lock();
            (state.legs[0].peer, state.published)
        };
        let is_present = |(member, session_id): &(Arc<Inner>, u64)| {
            member.lock().published.is_some_and(|known| known.session_id == *session_id)
        };
        let published = published.filter(|_| sessions.iter().all(is_present));
        let epoch = superblock.epoch;
        let goal = match now {
            Step::Publish { in_sync } => {
                if in_sync && !self.contest().await {
                    return Err(Denied);
                }
                let is_unseen = *self.failover.peer_report.lock() == Some(Obstacle::RecordUnusable);
                let occasion = match published {
                    None => Occasion::NewSession,
                    // Also if a later revision was read back: see [`Inner::granted`].
                    Some(known)
                        if is_unseen || known.record.revision < superblock.arbiter.revision =>
                    {
                        Occasion::Unseen
                    }
                    Some(_) => Occasion::Change,
                };
                Goal::Publish { peer: in_sync.then_some(id(peer)), epoch, occasion }
            }
            Step::RunDegraded => Goal::RunDegraded { epoch },
            Step::StayDegraded => Goal::StayDegraded { epoch },
            Step::Insist => Goal::Insist { epoch },
            Step::Watch => Goal::Watch,
            Step::Reclaim => Goal::Reclaim { seen_epoch: epoch, rank: self.rank() },
            _ => Goal::TakeOver { seen_epoch: epoch, rank: self.rank() },
        };
        let ask = Ask {
            volume: id(superblock.volume),
            own: id(superblock.replica),
            seen_revision: match now {
                // The source has reported this revision, whichever store it is at.
                Step::Watch => superblock.arbiter.revision,
                _ => superblock.arbiter.revision_at(self.failover.store()),
            },
            writer: random_u64(),
            suspended: superblock.arbiter.suspended,
            succeeds: superblock.arbiter.serving_right == RecordedRight::Succeeded,
            goal,
        };
        let proof = self.failover.proof();
        let race = run_race(arbiter, ask.clone());
        let Ok(ended) = self.unless_due(now, race).await else {
            self.failover.forget_grant();
            return Ok(());
        };
        drop(racing);
        if let (Step::Watch, Some(read)) = (now, &ended.first_read) {
            self.compared((&ask, proof), read).await.map_err(|_| Denied)?;
        }
        let has_answered = ended.outcome.is_ok();
        let record = match ended.outcome {
            Ok(record) => {
                let replica = superblock.replica;
                let (revision, epoch) = (record.revision, record.epoch);
                if revision != superblock.arbiter.revision {
                    tracing::info!(%replica, revision, epoch, "the arbiter agrees to {}", ask.goal);
                }
                *self.failover.denial.lock() = None;
                record
            }
            Err(denial) => match self.failover.grant_despite(now, &denial, &attachments) {
                Some(record) => record,
                None => {
                    self.denied(now, denial).await;
                    return Err(Denied);
                }
            },
        };
        if now.takes_role() && peer_may_have_served(self.machine_state().role) {
            // One that is used despite silence ends as before.
            if has_answered {
                self.failover.keep_grant(&record, attachments.clone());
            }
            match self.unless_due(now, self.fence_for_grant(now, has_answered)).await {
                Ok(true) => {}
                Ok(false) => return Err(Denied),
                Err(Abandoned) => {
                    self.failover.forget_grant();
                    self.failover.set_fencing(Fencing::Idle);
                    return Ok(());
                }
            }
        }
        self.failover.forget_grant();
        self.granted(now, &record, ended.read_back, (attachments, sessions)).await
    }

    /// Runs a race until another step is due.
    async fn unless_due<T>(
        &self,
        now: Step,
        race: impl Future<Output = T>,
    ) -> Result<T, Abandoned> {
        let mut race = pin!(race);
        let proof = self.failover.proof();
        let mut stop_at = stops_serving_at(&self.situation()).unwrap_or(u64::MAX);
        loop {
            let due = |state: &mut StateGuard<'_>| {
                let is_other = step(&self.situation_in(state)) != now
                    || (now == Step::Watch && self.failover.proof() != proof);
                (state.closed || is_other).then_some(())
            };
            let wake_at = self.tick().min(stop_at);
            let left = Duration::from_nanos(wake_at.saturating_sub(Inner::boot_ns()));
            let mut due = pin!(time::timeout(left, self.wait(due)));
            let ended = poll_fn(|cx| {
                if let Poll::Ready(outcome) = race.as_mut().poll(cx) {
                    return Poll::Ready(Ok(outcome));
                }
                due.as_mut().poll(cx).map(Err)
            });
            match ended.await {
                Ok(outcome) => return Ok(outcome),
                Err(Ok(())) => return Err(Abandoned),
                Err(Err(_)) => stop_at = u64::MAX,
            }
        }
    }

    /// Records durably that the arbiter's record may list the peer as in sync from now on. False if
    /// this failed, or the role has changed, or the peer is no longer in sync or an order excludes
    /// it. The record then excludes it as before, and the next comparison restores the mark.
    async fn contest(self: &Arc<Self>) -> bool {
        let mark = |superblock: &Superblock| ArbiterMark {
            serving_right: match superblock.arbiter.serving_right {
                // This right is valid for one exact revision only.
                RecordedRight::Succeeded => RecordedRight::Succeeded,
                _ => RecordedRight::Unknown,
            },
            ..superblock.arbiter
        };
        let Some(members) = self.all_of_group() else { return false };
        if self.store_marks(&members, mark).await.is_err() {
            return false;
        }
        let contest = |member: &Arc<Inner>| {
            member.change(|state| {
                let is_alone = matches!(state.serving_right, ServingRight::Alone(_));
                if !state.serving || !is_alone {
                    return state.serving;
                }
                let is_in_sync =
                    state.legs.first().map(LegState::recorded_phase) == Some(LegPhase::InSync);
                if is_in_sync {
                    let since_ns = Inner::boot_ns();
                    let contested = ServingRight::Contested { since_ns, peer_left: false };
                    member.set_serving_right(state, contested);
                }
                is_in_sync
            })
        };
        // Every member, also after one without service.
        members.iter().filter(|member| !contest(member)).count() == 0
    }

    async fn granted(
        self: &Arc<Self>,
        now: Step,
        record: &ArbiterRecord,
        read_back: bool,
        (attachments, sessions): (Attachments, Vec<(Arc<Inner>, u64)>),
    ) -> Result<(), Denied> {
        let revision = record.revision.max(self.local.superblock().arbiter.revision);
        let store = self.failover.store();
        let mark = move |serving_right| {
            move |superblock: &Superblock| ArbiterMark {
                revision: revision.max(superblock.arbiter.revision),
                serving_right,
                store,
                ..superblock.arbiter
            }
        };
        match now {
            Step::Publish { in_sync: true } => {
                let members = self.all_of_group().ok_or(Denied)?;
                let stored = self.store_marks(&members, mark(RecordedRight::Unknown)).await;
                stored.map_err(|_| Denied)?;
                if read_back || record.revision < revision {
                    // The record may have been stored seconds ago. It may have been copied to
                    // another store since, where the peer would take it for a proof. So it is
                    // written once more, as is one that another race has replaced.
                    self.change(|state| state.published = state.published.map(Published::outdated));
                    return Err(Denied);
                }
                Inner::publish(&sessions, record.stamp());
            }
            Step::TakeOver | Step::Reclaim => return self.take_over(record, attachments).await,
            Step::Watch => self.watched(),
            _ => {
                // Durable at every volume before a write to any is acknowledged.
                let members = self.open_of_group();
                let alone = move |superblock: &Superblock| match superblock.role {
                    ReplicaRole::Source => mark(RecordedRight::Alone)(superblock),
                    // Not served here yet: see [`Inner::bring_members`].
                    _ => mark(superblock.arbiter.serving_right)(superblock),
                };
                let stored = self.store_marks(&members, alone).await;
                stored.map_err(|_| Denied)?;
                Inner::run_alone(&members);
                if now == Step::RunDegraded {
                    // Also without a write, so that this node needs no arbiter after a restart.
                    let _ = self.ensure_new_generation().await;
                    // Not here: one that has begun to serve since waits for this task.
                    for member in self.others_of_group() {
                        spawn_detached(async move { member.record_loss().await });
                    }
                }
                if !self.bring_members(record).await {
                    return Err(Denied);
                }
            }
        }
        Ok(())
    }

    async fn take_over(
        self: &Arc<Self>,
        record: &ArbiterRecord,
        attachments: Attachments,
    ) -> Result<(), Denied> {
        let members = self.all_of_group().ok_or(Denied)?;
        let _lock = Inner::lock_group(&members).await;
        // A source that has attached since may have replaced the record.
        if self.attachments() != attachments {
            return Ok(());
        }
        let replica = self.local.superblock().replica;
        let was_target = matches!(self.machine_state().role, NodeRole::Target { .. });
        let done = self.serve_granted(&members, record).await;
        if done.is_ok()
            && was_target
            && let Some(lag) = self.failover.take_over_with_lag()
        {
            tracing::warn!(
                %replica,
                lag_ms = lag.as_millis(),
                "took over from an asynchronous source: the writes that it completed last, within this \
                 time, may be lost"
            );
        }
        done.map_err(|error: CommandError| {
            tracing::error!(%replica, "the arbiter agreed, but this node cannot serve: {error}");
            if let CommandError::Role(RoleError::Io(error)) = error {
                self.device_tested(Err(error));
            }
            Denied
        })
    }

    async fn denied(self: &Arc<Self>, now: Step, denial: Denial) {
        let replica = self.local.superblock().replica;
        let before = self.failover.denial.lock().replace(denial.clone());
        if before.as_ref() != Some(&denial) {
            tracing::warn!(%replica, "the arbiter granted nothing: {denial}");
        }
        if now == Step::Watch {
            self.watched();
        }
        let Denial::Lost { epoch, revision, .. } = denial else { return };
        let role = self.machine_state().role;
        if matches!(role, NodeRole::Serving { .. } | NodeRole::Waiting { .. }) {
            let was_alone = self.local.superblock().arbiter.serving_right.is_alone()
                || matches!(self.lock().serving_right, ServingRight::Alone(_));
            self.step_aside(|role| match was_alone {
                // Writes that it acknowledged without its peer are kept for the operator.
                true => Event::Deposed { epoch: epoch.max(least_epoch(role.epoch())) },
                false => Event::Outvoted { epoch },
            })
            .await;
        }
        let mark = move |superblock: &Superblock| ArbiterMark {
            revision: superblock.arbiter.revision.max(revision),
            serving_right: RecordedRight::Unknown,
            ..superblock.arbiter
        };
        let _ = self.store_marks(&self.open_of_group(), mark).await;
    }

    /// Compares this target's read with the source's report: a proof that both use one store, or a
    /// refutation.
    async fn compared(
        self: &Arc<Self>,
        (ask, begun): (&Ask, StoreProof),
        read: &FirstRead,
    ) -> Result<(), IoError> {
        let found = match race::decide(ask, read.stored.as_ref()) {
            Decision::Keep(record) => Ok(record),
            Decision::Deny(denial) => Err(denial),
            Decision::Write(_) => return Ok(()),
        };
        let before = self.failover.proof();
        // A copy may have arrived meanwhile, so the source must write again.
        let since_ns = self.failover.recorded_ns.load(Ordering::Acquire);
        let is_late =
            read.is_repeated || read.at_ns.saturating_sub(since_ns) > PROOF_MS * 1_000_000;
        let after = self
            .failover
            .change_proof(|proof| proof.compared((begun, ask.seen_revision), &found, is_late));
        if before == after {
            return Ok(());
        }
        if let StoreProof::Refuted(record) = after
            && !is_late
        {
            let (replica, revision) = (self.local.superblock().replica, record.revision);
            tracing::error!(
                %replica,
                "the arbiter of this node lacks revision {revision} of the record, which the source has just \
                 stored: unless it was restored from a backup, the nodes use two stores"
            );
        }
        let inner = self.clone();
        let mark = move |superblock: &mut Superblock| {
            let own = &mut superblock.arbiter;
            // The source may have reported another record meanwhile.
            match inner.failover.proof() {
                StoreProof::Given(record) => {
                    own.serving_right = RecordedRight::InSync;
                    own.revision = own.revision.max(record.revision);
                    own.store = inner.failover.store();
                }
                StoreProof::Refuted(_) => own.serving_right = RecordedRight::Unknown,
                StoreProof::NotNeeded | StoreProof::Pending(_) => {}
            }
        };
        self.local.update(mark).await
    }

    /// Records that this target has compared the record.
    fn watched(&self) {
        self.failover.watched_ns.store(Inner::boot_ns(), Ordering::Release);
    }

    /// Stops serving, with all members of the group, by the event for the role of each. Hosts are
    /// refused at once; the other actions wait for a change of role in progress.
    async fn step_aside(self: &Arc<Self>, event: impl Fn(NodeRole) -> Event) {
        let decided = self.refuse_all(event);
        Inner::step_back(decided).await;
    }

    /// Refuses hosts, and decides what follows.
    fn refuse_all(self: &Arc<Self>, event: impl Fn(NodeRole) -> Event) -> Vec<Decided> {
        let (mut decided, mut is_free) = (Vec::new(), true);
        for member in self.open_of_group() {
            let state = member.machine_state();
            let Ok((after, actions)) = next(&state, event(state.role)) else { continue };
            // In the order of the members, and none after one that is not free: an order to the
            // group may hold that one, and wait for those after it.
            let role_change = match is_free {
                true => member.try_begin_role_change(),
                false => None,
            };
            is_free = role_change.is_some();
            if actions.iter().any(|action| action == Action::RefuseHosts) {
                member.refuse_hosts();
            }
            decided.push(Decided { member, after, actions, role_change });
        }
        decided
    }

    async fn step_back(decided: Vec<Decided>) {
        for Decided { member, after, actions, role_change } in decided {
            let _order = member.running_order();
            let _role_change = match role_change {
                Some(role_change) => role_change,
                None => member.begin_role_change().await,
            };
            // Another change of role came first.
            if !matches!(member.machine_state().role, NodeRole::Waiting { .. }) {
                continue;
            }
            let done = member.perform(after, actions.iter(), OrderProgress::default()).await;
            if let Err(error) = done {
                let replica = member.local.superblock().replica;
                tracing::error!(%replica, "did not stop cleanly: {error}");
            }
            member.reconnect_all();
        }
    }

    /// Stops serving all members after the device of this one has failed, and ends their sessions.
    /// The peer, which has every acknowledged write, asks the arbiter for all. This member records
    /// nothing: its intent log has to cover the calls that have failed.
    pub(super) fn stop_group(self: &Arc<Self>) {
        let decided = self.refuse_all(|_| Event::LeaseEnded);
        let inner = self.clone();
        // Not here: this is a host call, and a change of role may wait for it.
        spawn_detached(async move {
            inner.end_sessions();
            Inner::step_back(decided).await;
        });
    }

    /// Stops a member that is served by itself: its leader has stopped, and does not renew the
    /// right of this one.
    pub(crate) async fn follow_automatically(self: &Arc<Self>) -> bool {
        // The leader's state is not locked together with this one, which may be the same.
        let is_led = self.arbitrating().lock().serving;
        let (is_contested, serving, awaits_leader) = {
            let state = self.lock();
            (state.serving_right.is_contested(), state.serving, state.awaits_leader)
        };
        match serving {
            true if is_contested && !is_led => {
                let now = self.own_situation(&self.lock());
                if stops_serving_at(&now).is_some_and(|at| now.now_ns >= at) {
                    self.step_aside_alone(Event::LeaseEnded).await;
                }
                true
            }
            // As after a start: see [`Inner::waits_for_leader`].
            false if awaits_leader && is_led => self.serve_after_start(true).await.is_ok(),
            _ => true,
        }
    }

    async fn step_aside_alone(self: &Arc<Self>, event: Event) {
        let _order = self.running_order();
        let _role_change = self.begin_role_change().await;
        if let Ok((after, actions)) = next(&self.machine_state(), event) {
            let _ = self.perform(after, actions.iter(), OrderProgress::default()).await;
        }
    }
}

/// Result of a race.
pub(super) struct EndedRace {
    pub(super) outcome: Result<ArbiterRecord, Denial>,
    /// True if the record was found when the race read back after a lost answer: it may have been
    /// stored long before.
    read_back: bool,
    /// First answer to a read; `None` if there was none.
    first_read: Option<FirstRead>,
}

/// The first answer to a read of a race.
struct FirstRead {
    stored: Option<Stored>,
    /// Time of its arrival, as [`Inner::boot_ns`].
    at_ns: u64,
    /// True if earlier reads had no answer.
    is_repeated: bool,
}

/// Runs a race to its end. Each call to the arbiter is bounded here, too.
pub(super) async fn run_race(arbiter: &SharedArbiter, ask: Ask) -> EndedRace {
    let limit = Duration::from_millis(CALL_MS);
    let silent = || NoAnswer(format!("no answer within {CALL_MS} ms"));
    let volume = ask.volume;
    let (mut state, first) = race::start(ask);
    let (mut first_read, mut is_repeated, mut was_read) = (None, false, false);
    let mut action = Some(first);
    while let Some(now) = action {
        was_read = now == race::RaceAction::Read;
        let event = match now {
            race::RaceAction::Read => {
                let read = time::timeout(limit, arbiter.read(volume)).await;
                let read = read.unwrap_or_else(|_| Err(silent()));
                if let (Ok(stored), None) = (&read, &first_read) {
                    let (stored, at_ns) = (stored.clone(), Inner::boot_ns());
                    first_read = Some(FirstRead { stored, at_ns, is_repeated });
                }
                is_repeated = true;
                race::RaceEvent::Read(read)
            }
            race::RaceAction::Write { expected, record } => {
                let write = arbiter.write(volume, expected, record.encode());
                let written = time::timeout(limit, write).await;
                race::RaceEvent::Written(written.unwrap_or_else(|_| Err(silent())))
            }
            race::RaceAction::ProbeWrite(record) => {
                let probe = arbiter.probe_write(volume, record.encode());
                let probed = time::timeout(limit, probe).await;
                race::RaceEvent::WriteProbed(probed.unwrap_or_else(|_| Err(silent())))
            }
            race::RaceAction::Pause(ms) => {
                time::sleep(Duration::from_millis(ms)).await;
                race::RaceEvent::Paused
            }
        };
        (state, action) = race::next(state, event);
    }
    let outcome = match state {
        race::RaceState::Ended(outcome) => outcome,
        _ => Err(Denial::Silent(silent())),
    };
    EndedRace { read_back: was_read && outcome.is_ok(), outcome, first_read }
}
