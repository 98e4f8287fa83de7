//! Mirror state machine: the role of this node and the operator's orders, as one pure function.
//!
//! [`next`] takes a [`State`] and an [`Event`], and returns the following state with the actions
//! that lead to it, in order, or the reason why the event is refused. It has no side effects, so a
//! dry run, the answer of the API and the execution of an order are the same decision.
//!
//! Invariants:
//! - a node that does not serve never begins to serve while a peer that answers serves;
//! - a node that is deposed refuses hosts first, and waits for calls in flight afterwards; an order
//!   that this node consents to waits first, so that no host call fails;
//! - a role is durable before its holder serves, and before this node reports its stop to a peer.
//!
//! `docs/mirror-states.md` is printed from this module by a test.

use crate::agree::plan::Plan;
use crate::limits::PEERS_MAX;
use crate::named;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::{DesiredState, HandshakeOutcome, LegPhase};

/// The part of a mirror's state on which a change of role depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// This node's part.
    pub role: Role,
    /// The local data.
    pub disk: Disk,
    /// One leg per configured peer.
    pub legs: [Option<Leg>; PEERS_MAX],
    /// What the superblock says about peers, in the order in which they were met. A peer that was
    /// replaced or is no longer configured keeps its record, so records do not belong to legs.
    pub records: [Record; PEERS_MAX],
}

/// Role of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The mirror has ended, or moves to another one: every event is refused.
    Closed,
    /// The source: hosts are served.
    Serving {
        /// Role epoch.
        epoch: u64,
    },
    /// The last source. Hosts are not served until a peer or the operator has been asked.
    Waiting {
        /// Role epoch.
        epoch: u64,
        /// A peer was asked to take the role, and its answer is not known.
        handed_over: bool,
    },
    /// A target.
    Target {
        /// The highest role epoch that it has seen.
        epoch: u64,
        /// A source is attached.
        attached: bool,
    },
    /// A former source that another node replaced without its consent. Its data is kept for the
    /// operator.
    Deposed {
        /// Role epoch of that node.
        by: u64,
    },
}

/// State of the local data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Consistent. The peers' records say whether it is current.
    Consistent,
    /// It never held data.
    Blank,
    /// A resync to it has not completed.
    Inconsistent,
    /// A resync to it has copied all but the ranges that a device could not read or write, which
    /// are listed.
    Incomplete,
    /// A flush failed earlier, and no resync has completed since.
    Unverified,
    /// The device has failed. A peer serves the volume, or no node does.
    Failed,
}

/// Leg to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// State that the operator asked for.
    pub desired: DesiredState,
    /// Progress of the connection.
    pub phase: LegPhase,
}

/// What the superblock says about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// No peer has been met.
    Unknown,
    /// It may have all data.
    Current,
    /// It lacks acknowledged writes.
    Outdated,
}

/// Answer of a peer that was asked before this node begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// None within the time limit.
    Silent,
    /// Its identity.
    Known {
        /// It serves hosts.
        serving: bool,
        /// The highest role epoch that it has seen.
        epoch: u64,
        /// The plan that a handshake with it would have.
        plan: Plan,
    },
}

/// Answers by leg. Legs without a peer are `None`.
pub type Answers = [Option<Answer>; PEERS_MAX];

/// An order of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Serve, if every peer was asked and none serves.
    Failover {
        /// Answers of the peers.
        answers: Answers,
    },
    /// Serve, whatever the peers say. A peer that answers is deposed first.
    ForceFailover {
        /// Also serve data that a flush failure made unverified, or that is older in listed ranges.
        unverified: bool,
    },
    /// Hand the role to this peer.
    HandOver(usize),
    /// Ask this peer for the role.
    TakeOver(usize),
    /// Stop serving, and stay the source.
    Stop,
    /// Become a target.
    Demote,
    /// Change the desired state of a leg.
    SetDesired(usize, DesiredState),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The replica was opened.
    Opened,
    /// Answers to [`Action::AskPeers`].
    Asked(Answers),
    /// The operator's order.
    Order(Order),
    /// A peer serves from now on under this epoch, without this node's consent.
    Deposed {
        /// Its role epoch.
        epoch: u64,
    },
    /// A handshake with a peer.
    Met {
        /// What to do about it.
        plan: Plan,
        /// Role epoch of the peer if it serves hosts and its claim is [`later`].
        prevailing: Option<u64>,
    },
}

named! {
    /// Why an event is refused.
    pub enum Refusal {
        /// The mirror has ended.
        Closed = "the mirror has ended, or moves to another device",
        /// No such peer.
        NoPeer = "there is no such peer",
        /// The local data is inconsistent.
        Inconsistent = "the local data is inconsistent: a resync to it has not completed",
        /// See [`Disk::Incomplete`].
        Incomplete = "ranges that the source could not copy hold older data",
        /// The replica holds no data yet.
        Blank = "the replica holds no data yet",
        /// The local leg has failed.
        Failed = "the local leg has failed",
        /// See [`Disk::Unverified`].
        Unverified = "a flush of the local device failed, and no resync has completed since",
        /// A peer serves hosts.
        PeerServes = "a peer serves hosts",
        /// A peer did not answer, so it may serve hosts.
        PeerSilent = "a peer does not answer, and may serve hosts",
        /// A peer has newer data and takes the role as soon as it can.
        PeerLeads = "a peer has newer data",
        /// The peer is not in sync.
        NotInSync = "the mirror is not in sync",
        /// Only the source can do this.
        NotSource = "this node is not the source",
        /// The operator has to choose the data to keep first.
        SplitBrain = "split brain: first choose the data to keep",
        /// The peer has seen a later epoch.
        Fenced = "this node has seen a later epoch",
    }
}

/// Claim under which a node begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The role and epoch that it has. A restart is no promotion: with a new epoch, it would prevail
    /// over a peer that was promoted meanwhile.
    Resumed,
    /// A new epoch. The peers agree, or none is known.
    Agreed,
    /// A new epoch. The peers were not asked, or the order overrides them.
    Forced,
}

/// An action of a transition. Each is complete before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask every peer who serves, within [`crate::limits::ASK_MS`]; then [`Event::Asked`].
    AskPeers,
    /// Refuse host calls from now on. Calls in flight are no longer acknowledged.
    RefuseHosts,
    /// Block host calls and wait for those in flight.
    Drain,
    /// Wait until asynchronous peers have received and flushed the queued writes, within
    /// [`crate::limits::QUEUE_DELIVERY_MS`].
    DeliverQueues,
    /// Wait for calls in flight, which are refused already.
    Settle,
    /// End the sessions to the peers.
    EndSessions,
    /// Durable: the role, also if a crash follows.
    Record(ReplicaRole),
    /// Durable: the role and that the replica is not in use, after a flush.
    PutAway(ReplicaRole),
    /// Order every peer that answers to stop serving.
    DeposePeers,
    /// End the attachment of a source, with its calls.
    EndAttachment,
    /// Durable: source; then serve hosts.
    Serve(Claim),
    /// Durable: the data counts as verified, and older data in listed ranges as accepted.
    TrustData,
    /// Transfer the role to this peer.
    HandOver(usize),
    /// Ask this peer for the role.
    AskForRole(usize),
    /// Durable: every block of a leg counts as out of sync.
    MarkAll(usize),
    /// Durable: the desired state of a leg.
    StoreDesired(usize, DesiredState),
    /// Repeat the handshakes now.
    Reconnect,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::AskPeers => "ask the peers",
            Action::RefuseHosts => "refuse hosts",
            Action::Drain => "block and drain host calls",
            Action::DeliverQueues => "deliver the queues",
            Action::Settle => "wait for calls in flight",
            Action::EndSessions => "end the sessions",
            Action::Record(_) => "**record the role**",
            Action::PutAway(_) => "flush, **record the role and that it is unused**",
            Action::DeposePeers => "depose the peers that answer",
            Action::EndAttachment => "end the source's session",
            Action::Serve(Claim::Resumed) => "**record that it is used**, serve hosts",
            Action::Serve(_) => "**record the role and a new epoch**, serve hosts",
            Action::TrustData => "**record the data as verified**",
            Action::HandOver(_) => "**record the successor**, hand over",
            Action::AskForRole(_) => "ask the peer for the role",
            Action::MarkAll(_) => "**mark everything out of sync**",
            Action::StoreDesired(..) => "**record the desired state**, end an unwanted session",
            Action::Reconnect => "repeat the handshakes",
        })
    }
}

/// At most eight actions, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions([Option<Action>; 8]);

impl Actions {
    fn of(actions: &[Action]) -> Actions {
        let mut list = Actions::default();
        for (place, action) in list.0.iter_mut().zip(actions) {
            *place = Some(*action);
        }
        assert!(actions.len() <= list.0.len(), "a transition has at most eight actions");
        list
    }

    /// The actions, in order.
    pub fn iter(self) -> impl Iterator<Item = Action> + 'static {
        self.0.into_iter().flatten()
    }

    /// Nothing changes.
    pub fn is_empty(self) -> bool {
        self.0[0].is_none()
    }
}

/// The result of [`next`].
pub type Transition = Result<(State, Actions), Refusal>;

/// Which of two nodes that both serve keeps serving: the later role epoch, else the greater UUID.
pub fn later<Id: Ord>(one: (u64, Id), other: (u64, Id)) -> bool {
    one > other
}

/// The transition for an event.
///
/// # Errors
/// See [`Refusal`]. Nothing changes then.
pub fn next(state: &State, event: Event) -> Transition {
    if state.role == Role::Closed {
        return Err(Refusal::Closed);
    }
    match event {
        Event::Opened => Ok(opened(state)),
        Event::Asked(answers) => Ok(asked(state, &answers)),
        Event::Deposed { epoch } => deposed(state, epoch),
        Event::Met { plan, prevailing } => Ok(met(state, plan, prevailing)),
        Event::Order(order) => ordered(state, order),
    }
}

fn unchanged(state: &State) -> (State, Actions) {
    (*state, Actions::default())
}

impl State {
    fn to(self, role: Role, actions: &[Action]) -> (State, Actions) {
        (State { role, ..self }, Actions::of(actions))
    }

    fn leg(&self, leg: usize) -> Result<Leg, Refusal> {
        self.legs.get(leg).copied().flatten().ok_or(Refusal::NoPeer)
    }

    /// Serves again after a start, as the source that it is.
    fn resumes(&self) -> (State, Actions) {
        match self.role.epoch() {
            // It was created as a source and has never served.
            0 => self.to(Role::Serving { epoch: 1 }, &[Action::Serve(Claim::Agreed)]),
            epoch => self.to(Role::Serving { epoch }, &[Action::Serve(Claim::Resumed)]),
        }
    }
}

impl Role {
    /// The highest role epoch seen.
    pub fn epoch(self) -> u64 {
        match self {
            Role::Closed => 0,
            Role::Serving { epoch } | Role::Waiting { epoch, .. } | Role::Target { epoch, .. } => {
                epoch
            }
            Role::Deposed { by } => by,
        }
    }

    /// The same as it is stored in the superblock.
    pub fn stored(self) -> ReplicaRole {
        match self {
            Role::Serving { .. } | Role::Waiting { .. } => ReplicaRole::Source,
            Role::Deposed { .. } => ReplicaRole::Deposed,
            Role::Target { .. } | Role::Closed => ReplicaRole::Target,
        }
    }
}

/// The last source serves again without the operator if each peer is recorded as out of date. A
/// peer may have been promoted since, so it is asked first. All else waits for a handshake.
fn opened(state: &State) -> (State, Actions) {
    let Role::Waiting { handed_over: false, .. } = state.role else { return unchanged(state) };
    if state.disk != Disk::Consistent {
        return unchanged(state);
    }
    let known = || state.records.iter().filter(|record| **record != Record::Unknown);
    if known().next().is_none() {
        return state.resumes();
    }
    match known().all(|record| *record == Record::Outdated) {
        true => (*state, Actions::of(&[Action::AskPeers])),
        false => unchanged(state),
    }
}

/// A peer that does not answer is recorded as out of date, so it serves only by its operator's
/// order. When both meet later, the earlier epoch is deposed.
fn asked(state: &State, answers: &Answers) -> (State, Actions) {
    let stays = |answer: &Answer| match *answer {
        Answer::Silent => false,
        Answer::Known { serving: true, plan, .. } => plan != Plan::Unrelated,
        // The peer was promoted after this node, and has stopped since.
        Answer::Known { plan: Plan::Follow { .. } | Plan::SplitBrain, epoch, .. } => {
            epoch > state.role.epoch()
        }
        Answer::Known { .. } => false,
    };
    // A handshake may have changed the role meanwhile.
    let (again, actions) = opened(state);
    if !actions.iter().any(|action| action == Action::AskPeers) {
        return (again, actions);
    }
    match answers.iter().flatten().any(stays) {
        true => unchanged(state),
        false => state.resumes(),
    }
}

fn deposed(state: &State, epoch: u64) -> Transition {
    match state.role {
        Role::Target { .. } | Role::Deposed { .. } => Ok(unchanged(state)),
        role if role.epoch() >= epoch => Err(Refusal::Fenced),
        role => Ok(depose(state, role, epoch)),
    }
}

/// Steps aside for a node with a later claim. What this node has written alone is kept.
fn depose(state: &State, role: Role, by: u64) -> (State, Actions) {
    let record = Action::Record(ReplicaRole::Deposed);
    let put_away = Action::PutAway(ReplicaRole::Deposed);
    match role {
        Role::Serving { .. } => {
            let actions =
                [Action::RefuseHosts, record, Action::EndSessions, Action::Settle, put_away];
            state.to(Role::Deposed { by }, &actions)
        }
        _ => state.to(Role::Deposed { by }, &[record]),
    }
}

fn met(state: &State, plan: Plan, prevailing: Option<u64>) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    match (plan, prevailing) {
        // The peer has all data of this node: nothing is kept for the operator.
        (Plan::Follow { step_down: true }, _) => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::Settle,
                Action::PutAway(ReplicaRole::Target),
            ];
            state.to(Role::Target { epoch, attached: false }, &actions)
        }
        (Plan::SplitBrain | Plan::Incompatible | Plan::NoSource, Some(by)) => {
            depose(state, state.role, by)
        }
        _ => unchanged(state),
    }
}

fn ordered(state: &State, order: Order) -> Transition {
    match order {
        Order::Failover { answers } => failover(state, &answers),
        Order::ForceFailover { unverified } => force_failover(state, unverified),
        Order::HandOver(leg) => hand_over(state, leg),
        Order::TakeOver(leg) => take_over(state, leg),
        Order::Stop => Ok(stop(state)),
        Order::Demote => Ok(demote(state)),
        Order::SetDesired(leg, desired) => set_desired(state, leg, desired),
    }
}

/// Whether the local data may be served at all.
fn servable(state: &State, unverified: bool) -> Result<(), Refusal> {
    match state.disk {
        Disk::Consistent => Ok(()),
        Disk::Unverified | Disk::Incomplete if unverified => Ok(()),
        Disk::Unverified => Err(Refusal::Unverified),
        Disk::Blank => Err(Refusal::Blank),
        Disk::Inconsistent => Err(Refusal::Inconsistent),
        Disk::Incomplete => Err(Refusal::Incomplete),
        Disk::Failed => Err(Refusal::Failed),
    }
}

fn failover(state: &State, answers: &Answers) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, false)?;
    let legs = state.legs.iter().zip(answers).filter(|(leg, _)| leg.is_some());
    let answers: [Option<Answer>; PEERS_MAX] = {
        let mut found = [None; PEERS_MAX];
        for (place, (_, answer)) in found.iter_mut().zip(legs) {
            *place = Some(answer.unwrap_or(Answer::Silent));
        }
        found
    };
    let has = |test: fn(&Answer) -> bool| answers.iter().flatten().any(test);
    if has(|answer| matches!(answer, Answer::Known { serving: true, .. })) {
        return Err(Refusal::PeerServes);
    }
    if has(|answer| *answer == Answer::Silent) {
        return Err(Refusal::PeerSilent);
    }
    if let Role::Target { attached: true, .. } = state.role {
        return Err(Refusal::PeerServes);
    }
    if has(|answer| matches!(answer, Answer::Known { plan: Plan::Follow { .. }, .. })) {
        return Err(Refusal::PeerLeads);
    }
    let epoch = state.role.epoch().saturating_add(1);
    Ok(state.to(Role::Serving { epoch }, &[Action::EndAttachment, Action::Serve(Claim::Agreed)]))
}

fn force_failover(state: &State, unverified: bool) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, unverified)?;
    let epoch = state.role.epoch().saturating_add(1);
    let (depose, end, serve) =
        (Action::DeposePeers, Action::EndAttachment, Action::Serve(Claim::Forced));
    let (after, actions) = match state.disk {
        Disk::Unverified | Disk::Incomplete => {
            state.to(Role::Serving { epoch }, &[depose, end, Action::TrustData, serve])
        }
        _ => state.to(Role::Serving { epoch }, &[depose, end, serve]),
    };
    Ok((State { disk: Disk::Consistent, ..after }, actions))
}

fn hand_over(state: &State, leg: usize) -> Transition {
    let to = state.leg(leg)?;
    let Role::Serving { epoch } = state.role else { return Err(Refusal::NotSource) };
    match to.phase {
        LegPhase::InSync => {
            let role = Role::Target { epoch, attached: false };
            Ok(state.to(role, &[Action::Drain, Action::HandOver(leg)]))
        }
        LegPhase::Handshake(HandshakeOutcome::SplitBrain) => Err(Refusal::SplitBrain),
        _ => Err(Refusal::NotInSync),
    }
}

fn take_over(state: &State, leg: usize) -> Transition {
    let from = state.leg(leg)?;
    match state.role {
        Role::Serving { .. } => Ok(unchanged(state)),
        _ if matches!(state.disk, Disk::Inconsistent | Disk::Incomplete) => {
            Err(Refusal::Inconsistent)
        }
        _ if from.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain) => {
            Err(Refusal::SplitBrain)
        }
        // The peer decides: this side does not know whether it is in sync.
        _ => Ok((*state, Actions::of(&[Action::AskForRole(leg), Action::Reconnect]))),
    }
}

fn stop(state: &State) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::Drain,
        Action::DeliverQueues,
        Action::EndSessions,
        Action::RefuseHosts,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(Role::Waiting { epoch, handed_over: false }, &actions)
}

fn demote(state: &State) -> (State, Actions) {
    let target = |epoch| Role::Target { epoch, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        Role::Serving { epoch } => {
            let actions = [
                Action::Drain,
                Action::DeliverQueues,
                Action::EndSessions,
                Action::RefuseHosts,
                put_away,
                Action::Reconnect,
            ];
            state.to(target(epoch), &actions)
        }
        Role::Waiting { epoch, .. } | Role::Deposed { by: epoch } => {
            state.to(target(epoch), &[put_away, Action::Reconnect])
        }
        Role::Target { .. } | Role::Closed => unchanged(state),
    }
}

fn set_desired(state: &State, leg: usize, desired: DesiredState) -> Transition {
    let own = state.leg(leg)?;
    let split = own.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain);
    if own.desired == desired {
        return match desired {
            DesiredState::Connected if split => Err(Refusal::SplitBrain),
            _ => Ok(unchanged(state)),
        };
    }
    if desired != DesiredState::Connected && state.role.stored() != ReplicaRole::Source {
        return Err(Refusal::NotSource);
    }
    let mut after = *state;
    after.legs[leg] = Some(Leg { desired, ..own });
    let store = Action::StoreDesired(leg, desired);
    Ok(match desired {
        // Untracked blocks count as different from now on, also after a restart.
        DesiredState::Detached => {
            (after, Actions::of(&[Action::MarkAll(leg), store, Action::Reconnect]))
        }
        _ => (after, Actions::of(&[store, Action::Reconnect])),
    })
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
