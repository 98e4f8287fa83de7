//! Consistency group: mirrored volumes whose data is kept at one moment, and whose role moves as
//! one.
//!
//! An application that writes to several volumes relies on the order of its writes across them.
//! After a failover, the volumes of a group show the source at one moment of its past.
//!
//! Rules, each with its reason. `docs/mirror-groups.md` says what the operator sees.
//!
//! 1. *Group session:* the members' sessions to one peer form one group session. None takes host
//!    writes before all members have attached, joined and begun their resyncs: otherwise a member
//!    would be newer than another that still counts as consistent.
//! 2. *Freeze:* when a member's session ends, the sessions of all members end, before a write
//!    without the peer is acknowledged. A later write to another member must not reach the peer. A
//!    session that ends in order, with nothing left to deliver, is an exception: no write follows
//!    it. One that ends because the member moves to another mirror, such as one that is larger, is
//!    not: its successor serves at once.
//! 3. *One order:* the writes of a group session are numbered together, and the target starts each
//!    when all writes that it may depend on are durable there, whichever member they change. They
//!    are sent in that order, and the unacknowledged ones fit one window: a write that waits at the
//!    target for others that have not been sent would exceed the time limit of a command.
//! 4. *End of a resync:* only when the queues of all members at the last copy are empty. A copy may
//!    include a write that depends on a write queued for another member.
//! 5. *Same group on both nodes:* a target refuses a source that names another group. Without a
//!    common order, both would count as consistent.
//! 6. *All or none:* an order is decided for every member before anything is done, and carried out
//!    step by step for all. No node begins to serve a member before all members have done what
//!    precedes it.
//! 7. *Leader:* the role of the first member decides where the group is. Before the role is handed
//!    over, every member has recorded the successor. Then the leader is handed over; if that
//!    succeeds, the others follow, whatever happens.
//! 8. *Followers:* a member takes the role by itself, also after a restart, only after the leader.
//!    A source whose leader has moved, or follows the peer, becomes a target; a target whose leader
//!    serves takes the role by an ordinary failover, which asks the peers. So a crash between two
//!    members ends with all of them on one node.
//!    With automatic failover, it serves only after the leader, for which the arbiter decides
//!    ([`crate::failover::members`]).
//! 9. *Records agree:* when a group session ends, every member that serves starts a new generation,
//!    also without a write, and so does every member at a forced failover. Otherwise some members
//!    would follow one node, and some the other, after a crash or a split brain.
//! 10. *Crashed source:* a member never prefers its target after a crash, because each volume would
//!     decide that for itself.
//!
//! With rules 1 to 5, members that are consistent on one node are so at one moment. A member that
//! is not, refuses the failover of all by rule 6.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_runtime::time::{self, Backoff};
use flagstone_runtime::{random_u64, spawn_detached};
use parking_lot::Mutex;

use crate::failover::Lease;
use crate::failover::members::MemberState;
use crate::io::queue::{QueueLimits, QueueSlot, WriteQueue};
use crate::io::reorder::{Numbering, ReorderBuffer};
use crate::io::write::{Turn, turn};
use crate::limits::{FOLLOW_LEADER_MS, GATHER_MS, GROUP_MEMBERS_MAX, PEERS_MAX};
use crate::mirror::{Inner, LegState, Mirror};
use crate::state::machine::{Following, following};
use crate::state::status::GroupStatus;

/// Numbering of the writes of one session, or of all sessions of a group session.
pub(crate) type SharedNumbering = Arc<Mutex<Numbering>>;

/// A consistency group on this node.
pub struct ConsistencyGroup {
    name: String,
    /// Names of the member volumes, sorted. The first one is the leader.
    names: Vec<String>,
    members: Mutex<Vec<Weak<Inner>>>,
    /// With automatic failover: the latest state of each member. Locked after a member's state.
    states: Mutex<Vec<MemberState>>,
    lease: Arc<Lease>,
    legs: [Mutex<Forming>; PEERS_MAX],
    /// At a target: the latest group session that joined, and its reorder buffer.
    order: Mutex<(u64, Arc<Mutex<ReorderBuffer>>)>,
}

/// Place of a mirror in its group.
#[derive(Clone)]
pub struct Membership {
    pub(crate) group: Arc<ConsistencyGroup>,
    pub(crate) place: usize,
}

/// The next group session to one peer.
#[derive(Default)]
struct Forming {
    /// Bit set of the members that wait for it.
    ready: u64,
    /// The group session for each member, until the member has taken it.
    formed: Vec<Option<Arc<GroupSession>>>,
    current: Option<Arc<GroupSession>>,
    wakers: Vec<Waker>,
}

/// Common session of the members of a group with one peer.
pub(crate) struct GroupSession {
    /// Random number, by which a target distinguishes it from earlier ones.
    pub(crate) number: u64,
    pub(crate) numbering: SharedNumbering,
    /// Queued writes of all members, in the order of their numbers. Locked after the numbering.
    queue: Mutex<WriteQueue>,
    /// Bit set of the members whose targets are in sync or durably inconsistent.
    begun: AtomicU64,
    ended: AtomicBool,
}

impl GroupSession {
    fn new(window_bytes: u64) -> Arc<GroupSession> {
        // The members' own queues have the other limits.
        let (high_bytes, low_bytes, writes) = (u64::MAX, u64::MAX, usize::MAX);
        let limits = QueueLimits { high_bytes, low_bytes, writes, window_bytes };
        Arc::new(GroupSession {
            number: random_u64().max(1),
            numbering: SharedNumbering::default(),
            queue: Mutex::new(WriteQueue::new(limits)),
            begun: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        })
    }

    /// Ends the group session: no member completes a resync in it any more.
    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Queues a write of `bytes`. The caller holds the lock of the numbering.
    pub(crate) fn push(self: &Arc<Self>, bytes: u64) -> Option<GroupSlot> {
        let slot = self.queue.lock().push(bytes, 0)?;
        Some(GroupSlot { session: self.clone(), slot })
    }

    /// Queues a marker. The caller holds the lock of the numbering.
    pub(crate) fn push_marker(self: &Arc<Self>) -> GroupSlot {
        let slot = self.queue.lock().push_marker();
        GroupSlot { session: self.clone(), slot }
    }

    /// Wakes the writes that wait to be sent, after the session of a member has ended.
    pub(crate) fn wake_all(&self) {
        let wakers = self.queue.lock().wake_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Entry of a write in the queue of its group session.
#[derive(Clone)]
pub(crate) struct GroupSlot {
    session: Arc<GroupSession>,
    slot: QueueSlot,
}

impl GroupSlot {
    /// Counts the entry as sent if it may be sent now. Otherwise wakes `waker` when it may.
    pub(crate) fn turn(&self, waker: &Waker) -> Turn {
        let decision = self.session.queue.lock().send(self.slot, waker);
        turn(decision)
    }

    /// Removes a write that was acknowledged or abandoned.
    pub(crate) fn leave(&self) {
        let next = {
            let mut queue = self.session.queue.lock();
            queue.completed(self.slot);
            queue.next_to_send()
        };
        next.into_iter().for_each(Waker::wake);
    }
}

/// Why a group cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a consistency group has 1 to {GROUP_MEMBERS_MAX} volumes")]
pub struct GroupSizeError;

impl ConsistencyGroup {
    /// A group of these volumes, which have the same peers in the same order.
    ///
    /// # Errors
    /// See [`GroupSizeError`].
    pub fn new(
        name: &str,
        volumes: impl IntoIterator<Item = String>,
    ) -> Result<Arc<ConsistencyGroup>, GroupSizeError> {
        let mut names: Vec<String> = volumes.into_iter().collect();
        names.sort();
        names.dedup();
        if names.is_empty() || names.len() > GROUP_MEMBERS_MAX {
            return Err(GroupSizeError);
        }
        let forming = || Forming { formed: vec![None; names.len()], ..Forming::default() };
        Ok(Arc::new(ConsistencyGroup {
            name: name.to_owned(),
            members: Mutex::new(names.iter().map(|_| Weak::new()).collect()),
            states: Mutex::new(vec![MemberState::default(); names.len()]),
            lease: Arc::default(),
            legs: std::array::from_fn(|_| Mutex::new(forming())),
            order: Mutex::default(),
            names,
        }))
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names of its volumes, the leader first.
    pub fn volumes(&self) -> &[String] {
        &self.names
    }

    /// The membership of a volume; `None` if it is no member.
    pub fn member(self: &Arc<Self>, volume: &str) -> Option<Membership> {
        let place = self.names.iter().position(|name| name == volume)?;
        Some(Membership { group: self.clone(), place })
    }

    /// Number derived from the group's name and volumes, by which both nodes compare their groups.
    /// Never 0.
    pub(crate) fn tag(&self) -> u16 {
        let text = [std::slice::from_ref(&self.name), &self.names].concat().join("\n");
        let sum = crate::session::checksums::checksum(text.as_bytes());
        (sum % u64::from(u16::MAX)) as u16 + 1
    }

    /// The group's name and volumes.
    pub(crate) fn identity(&self) -> String {
        format!("group {} of {}", self.name, self.names.join(" "))
    }

    /// The lease of all members, with automatic failover.
    pub(crate) fn lease(&self) -> Arc<Lease> {
        self.lease.clone()
    }

    /// The members and their latest states, in their order.
    pub(crate) fn seen(&self) -> Vec<(Option<Arc<Inner>>, MemberState)> {
        let members = self.members.lock().clone();
        let states = self.states.lock().clone();
        members.iter().map(Weak::upgrade).zip(states).collect()
    }

    /// Mirrors of the members, in their order; `None` for a volume that is not open.
    pub(crate) fn members(&self) -> Vec<Option<Arc<Inner>>> {
        let open = |member: &Weak<Inner>| member.upgrade().filter(|inner| !inner.lock().closed);
        // Copy the list first: a member looks for its leader while its own state is locked.
        let members = self.members.lock().clone();
        members.iter().map(open).collect()
    }

    /// State of the group on this node.
    pub fn status(&self) -> GroupStatus {
        let members = self.members();
        let missing = self.names.iter().zip(&members).filter(|(_, member)| member.is_none());
        let missing: Vec<String> = missing.map(|(name, _)| name.clone()).collect();
        let is_consistent = |member: &Arc<Inner>| {
            let superblock = member.local.superblock();
            !superblock.flags.inconsistent
                && !superblock.current.is_none()
                && !member.lock().unverified
        };
        let consistent = missing.is_empty() && members.iter().flatten().all(is_consistent);
        let is_refused = |member: &Option<Arc<Inner>>| {
            let refuses =
                |member: &Arc<Inner>| member.lock().legs.iter().any(|leg| leg.refused_group);
            member.as_ref().is_some_and(refuses)
        };
        let refused = self.names.iter().zip(&members).filter(|(_, member)| is_refused(member));
        let refused = refused.map(|(name, _)| name.clone()).collect();
        let (name, volumes) = (self.name.clone(), self.names.clone());
        GroupStatus { name, volumes, missing, consistent, refused }
    }

    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.names.len())
    }

    async fn wait<T>(&self, leg: usize, mut ready: impl FnMut(&mut Forming) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut forming = self.legs[leg].lock();
            if let Some(value) = ready(&mut forming) {
                return Poll::Ready(value);
            }
            if !forming.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                forming.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn wake(&self, leg: usize) {
        let wakers = std::mem::take(&mut self.legs[leg].lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends a group session: after the call, no member sends a write in it. Must not be called
    /// under the lock of a member's state.
    pub(crate) fn end(&self, leg: usize, session: &Arc<GroupSession>) {
        session.set_ended();
        {
            let mut forming = self.legs[leg].lock();
            let is_it = |one: &Arc<GroupSession>| Arc::ptr_eq(one, session);
            forming.current.take_if(|current| is_it(current));
            forming.formed.iter_mut().for_each(|one| _ = one.take_if(|one| is_it(one)));
        }
        self.wake(leg);
        // End the sessions again: a task that ended the group session earlier may not have done so
        // yet.
        self.members().iter().flatten().for_each(|member| member.leave_group_session(leg, session));
    }

    /// At a target: the reorder buffer of this group session.
    pub(crate) fn joined(&self, session: u64) -> Arc<Mutex<ReorderBuffer>> {
        let mut order = self.order.lock();
        if order.0 != session {
            *order = (session, Arc::default());
        }
        order.1.clone()
    }
}

/// Withdraws a member that no longer waits.
struct Ready<'a> {
    group: &'a ConsistencyGroup,
    leg: usize,
    bit: u64,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.group.legs[self.leg].lock().ready &= !self.bit;
    }
}

impl Membership {
    pub(crate) fn is_leader(&self) -> bool {
        self.place == 0
    }

    /// The group.
    pub fn group(&self) -> &Arc<ConsistencyGroup> {
        &self.group
    }

    /// Registers the mirror as this member. Its predecessor has left.
    pub(crate) fn take_place(&self, inner: &Arc<Inner>) {
        self.saw(MemberState::of(&inner.lock()));
        self.group.members.lock()[self.place] = Arc::downgrade(inner);
    }

    /// Notes the state of the member, whose lock the caller holds. True if it has changed.
    pub(crate) fn saw(&self, state: MemberState) -> bool {
        let mut states = self.group.states.lock();
        std::mem::replace(&mut states[self.place], state) != state
    }

    /// Wakes the leader, for which this member's state is a part of its own.
    pub(crate) fn wake_leader(&self) {
        if let Some(leader) = self.leader().filter(|_| !self.is_leader()) {
            leader.change(|_| {});
        }
    }

    /// The mirror of the leader, if it is open.
    pub(crate) fn leader(&self) -> Option<Arc<Inner>> {
        self.group.members.lock()[0].upgrade()
    }

    fn bit(&self) -> u64 {
        1 << self.place
    }

    /// Waits until every member has attached to the peer of this leg. An earlier group session
    /// ends. In the new one, at most `window_bytes` are sent and not acknowledged. `None` if a
    /// member is missing for too long.
    pub(crate) async fn gather(&self, leg: usize, window_bytes: u64) -> Option<Arc<GroupSession>> {
        let group = &self.group;
        let before = group.legs[leg].lock().current.take();
        if let Some(before) = before {
            group.end(leg, &before);
        }
        let _ready = {
            let mut forming = group.legs[leg].lock();
            forming.formed[self.place] = None;
            forming.ready |= self.bit();
            if forming.ready == group.all() {
                let session = GroupSession::new(window_bytes);
                forming.ready = 0;
                forming.formed.fill(Some(session.clone()));
                forming.current = Some(session);
            }
            Ready { group, leg, bit: self.bit() }
        };
        group.wake(leg);
        let formed = group.wait(leg, |forming| forming.formed[self.place].take());
        let formed = time::timeout(Duration::from_millis(GATHER_MS), formed).await.ok();
        // The group session may have formed at the last moment, and the other members then count on
        // this one.
        formed.or_else(|| group.legs[leg].lock().formed[self.place].take())
    }

    /// Records that this member's target is in sync or durably inconsistent, and waits for the
    /// other members. False if the group session has ended.
    pub(crate) async fn all_begun(&self, leg: usize, session: &GroupSession) -> bool {
        session.begun.fetch_or(self.bit(), Ordering::SeqCst);
        self.group.wake(leg);
        let all = self.group.all();
        let begun = self.group.wait(leg, |_| {
            let is_all = session.begun.load(Ordering::SeqCst) == all;
            (session.has_ended() || is_all).then(|| !session.has_ended())
        });
        begun.await
    }

    /// Repeats the handshakes of the other members.
    pub(crate) fn wake_others(&self) {
        let others = self.group.members().into_iter().enumerate();
        let others = others.filter(|(place, _)| *place != self.place);
        others.filter_map(|(_, other)| other).for_each(|other| other.reconnect_all());
    }
}

/// Keeps a member on the node of its leader, by rule 8, until its mirror is closed.
pub(crate) async fn follow_leader(member: Weak<Inner>) {
    let pause = Duration::from_millis(FOLLOW_LEADER_MS);
    let mut pauses = Backoff::new(pause, 10 * pause);
    loop {
        time::sleep(pauses.advance()).await;
        let Some(inner) = member.upgrade() else { return };
        if inner.lock().closed {
            return;
        }
        let followed = match following(&inner.machine_state()) {
            Some(step) => inner.follow(step).await,
            None if inner.failover.is_automatic() => inner.follow_automatically().await,
            None => true,
        };
        if followed {
            pauses.reset();
        }
    }
}

impl Mirror {
    /// Ends the group sessions of this mirror, which ends for good. A stop does not end them,
    /// because no write follows it.
    pub fn leave_group_sessions(&self) {
        let Some(membership) = &self.0.group else { return };
        let sessions: Vec<_> = {
            let state = self.0.lock();
            state.legs.iter().map(|leg| leg.group_session.clone()).collect()
        };
        for (leg, session) in sessions.iter().enumerate() {
            session.iter().for_each(|session| membership.group.end(leg, session));
        }
    }
}

impl Inner {
    /// Carries out a step of rule 8. False if it was refused or failed.
    async fn follow(self: &Arc<Self>, step: Following) -> bool {
        let replica = self.local.superblock().replica;
        match self.order_alone(step.order()).await {
            Ok(_) => {
                tracing::info!(%replica, "followed the leader of the group: {step:?}");
                true
            }
            Err(error) => {
                tracing::debug!(%replica, "cannot follow the leader of the group: {error}");
                false
            }
        }
    }

    /// Ends the session of this member, and records the peer as out of date for all later writes,
    /// even before the first one: otherwise the members could decide differently after a crash.
    fn leave_group_session(self: &Arc<Self>, leg: usize, session: &Arc<GroupSession>) {
        let (session_id, opened) = {
            let state = self.lock();
            let Some(own) = state.legs.get(leg) else { return };
            if !own.group_session.as_ref().is_some_and(|own| Arc::ptr_eq(own, session)) {
                return;
            }
            (own.session.is_some().then_some(own.session_id), own.opened_group_session)
        };
        if let Some(session_id) = session_id {
            self.disconnect(leg, session_id);
        }
        if opened {
            let inner = self.clone();
            spawn_detached(async move { inner.record_loss().await });
        }
    }

    /// Ends the other members' sessions to a peer, before a write without the peer is acknowledged.
    pub(crate) fn freeze_group(&self) {
        let Some(membership) = &self.group else { return };
        let ended: Vec<_> = {
            let state = self.lock();
            let legs = state.legs.iter().enumerate().filter(|(_, leg)| !leg.receives_writes);
            legs.filter_map(|(leg, own)| Some((leg, own.group_session.clone()?))).collect()
        };
        ended.iter().for_each(|(leg, session)| membership.group.end(*leg, session));
    }

    /// As [`Inner::catch_up`], for all members of the group.
    pub(crate) async fn catch_up_group(&self, leg: usize, session_id: u64) -> bool {
        if let Some(membership) = &self.group {
            for member in membership.group.members().into_iter().flatten() {
                member.wait_for_queue(leg).await;
            }
        }
        // A write of another member that failed to reach the peer ended the group session before
        // the write left the queue.
        let ended = |own: &LegState| own.group_session.as_ref().is_some_and(|one| one.has_ended());
        self.catch_up(leg, session_id).await && !ended(&self.lock().legs[leg])
    }
}
