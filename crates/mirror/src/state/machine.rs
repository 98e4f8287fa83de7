//! Mirror state machine: the role of this node and the operator's orders, as one pure function.
//!
//! [`next`] takes a [`State`] and an [`Event`], and returns the following state with the actions
//! that lead to it, in order, or the reason why the event is refused. It has no side effects, so a
//! dry run, the answer of the API and the execution of an order are the same decision.
//!
//! Invariants:
//! - a node that does not serve never begins to serve while a peer that answers serves;
//! - from the announcement that a peer takes the role until this node has acted on it
//!   ([`State::promised`]), this node does not begin to serve, whatever order or handshake is in
//!   progress;
//! - a node that is deposed refuses hosts first, and waits for calls in flight afterwards; an order
//!   that this node consents to waits first, so that no host call fails;
//! - a role is durable before its holder serves, and before this node reports its stop to a peer;
//! - the role epoch never decreases. With several peers, that includes epochs that were announced.
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
    /// The superblock's records of peers, in the order in which they were met. A peer that was
    /// replaced or is no longer configured keeps its record, so records do not belong to legs.
    pub records: [Record; PEERS_MAX],
    /// Epoch under which a peer takes the role: from its announcement until this node has acted on
    /// it, which may wait for another change of role. 0: no announcement.
    pub promised: u64,
    /// Epoch that this node has announced to its peers, until its order ends. 0: none announced.
    pub announced: u64,
    /// The leader of the consistency group on this node, if this is another member of one.
    pub leader: Option<Leader>,
}

/// State of the first member of a consistency group, which decides where the group is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// It serves hosts.
    Serves,
    /// It is the last source, and does not serve yet.
    Waits,
    /// It is the target of a source, which serves the group.
    Follows,
    /// It is a target without a source, or was deposed: the group is served elsewhere, or nowhere.
    Elsewhere,
    /// It is not open.
    Absent,
}

impl Leader {
    /// From the role of the leader.
    pub fn of(role: Role) -> Leader {
        match role {
            Role::Serving { .. } => Leader::Serves,
            Role::Waiting { .. } => Leader::Waits,
            Role::Target { attached: true, .. } => Leader::Follows,
            Role::Target { .. } | Role::Deposed { .. } => Leader::Elsewhere,
            Role::Closed => Leader::Absent,
        }
    }
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
    /// Consistent as of the time when its source removed it from the mirror.
    Removed,
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

/// The superblock's record of a peer.
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
        /// Its data has another generation than the local data.
        differs: bool,
    },
}

/// Answers by leg. Legs without a peer are `None`.
pub type Answers = [Option<Answer>; PEERS_MAX];

/// How a peer answers the announcement that this node takes the role ([`Action::Announce`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// There is no connection to it.
    Unreachable,
    /// It serves no hosts, and that is durable.
    Yields,
    /// It refuses hosts, and could not make that durable: its device hangs or has failed.
    RefusesHosts,
    /// It serves hosts.
    Serves,
    /// It takes the role itself, or has promised it to a third node, under a later epoch.
    Later,
    /// It answers, but not this: whether it serves is not known.
    Unknown,
    /// Its release does not know the announcement.
    TooOld {
        /// It serves hosts.
        serving: bool,
    },
}

/// An order of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Serve, if every peer was asked, none serves, and all agree.
    Failover {
        /// Answers of the peers.
        answers: Answers,
    },
    /// Serve, although a peer may serve. A peer that answers is deposed first.
    ForceFailover {
        /// Also serve data that a flush failure made unverified, or that is older in listed ranges, or
        /// of a replica that was removed.
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
    /// A peer announces that it takes the role. Decided at once, also during a change of role.
    Announced {
        /// Its role epoch.
        epoch: u64,
        /// Without this node's consent.
        forced: bool,
    },
    /// The peer takes the role by force, after [`Event::Announced`] was accepted.
    Deposed {
        /// Its role epoch.
        epoch: u64,
    },
    /// The peer takes the role if this node serves no hosts, after [`Event::Announced`] was accepted.
    Claimed {
        /// The peer's place in [`State::records`].
        by: usize,
        /// Its role epoch.
        epoch: u64,
    },
    /// The source has removed this replica from the mirror.
    Removed {
        /// Its role epoch.
        epoch: u64,
    },
    /// A peer attaches as the source.
    Attached {
        /// Its role epoch.
        epoch: u64,
    },
    /// The attached source hands its role to this node.
    Promoted,
    /// The peer of a handshake has admitted this node as its source, under a new epoch.
    Admitted(AdmittedBy),
    /// The peer answered [`Action::HandOver`].
    HandedOver(Handover),
    /// The data is discarded for a peer's, by the operator or by policy.
    Discarded,
    /// The replica moves to another mirror of this node.
    Transferred,
    /// The arbiter has excluded the peers from its record: this node may serve without them.
    Granted,
    /// The arbiter's record excludes this node: another one serves, or may.
    Outvoted {
        /// Role epoch of the record.
        epoch: u64,
    },
    /// This source has no contact to its peer, and no answer of the arbiter.
    LeaseEnded,
    /// A handshake with a peer.
    Met {
        /// What to do about it.
        plan: Plan,
        /// Role epoch of the peer if it serves hosts and its claim is [`later`].
        prevailing: Option<u64>,
    },
}

/// The peer of [`Event::Admitted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedBy {
    /// It is the peer that the role was handed to, if it was handed over.
    pub successor: bool,
    /// The highest role epoch that it has seen.
    pub epoch: u64,
    /// That epoch is later than any that this node has seen, and of another node.
    pub overtaken: bool,
    /// It cannot serve its data, which was discarded for this node's, or is unverified.
    pub unusable: bool,
}

/// Outcome of the request to a peer to become the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// It serves.
    Accepted,
    /// It was not asked or refused, and does not serve.
    Declined,
    /// No answer: it may serve.
    Unknown,
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
        /// See [`Disk::Removed`].
        Removed = "the source has removed this replica from the mirror",
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
        /// This node serves.
        Serving = "this node serves hosts",
        /// Only the operator, or the peer that the role was handed to, can make this node the source.
        NotEntitled = "this node may not take the role by itself",
        /// See [`Consent::Later`] and [`State::promised`].
        Overtaken = "another node takes the role at the same time",
        /// A member has no open replica on this node.
        GroupIncomplete = "not all volumes of the consistency group have an open replica on this node",
        /// See [`Leader`].
        LeaderFirst = "the first volume of the consistency group decides which node serves the group",
        /// See [`Consent::Unknown`].
        Unconfirmed = "a peer answers, and has not confirmed that it serves no hosts",
        /// See [`Consent::TooOld`].
        PeerTooOld = "a peer serves hosts, and its release cannot be ordered to stop",
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
    /// The epoch that the arbiter has recorded.
    Granted,
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
    /// Durable, within [`crate::limits::TRANSFER_CHECK_MS`]: the superblock as it is, after a flush. Until
    /// then the transition can be taken back.
    CheckDevices,
    /// Wait until asynchronous peers have received and flushed the queued writes, within
    /// [`crate::limits::QUEUE_DELIVERY_MS`].
    DeliverQueues,
    /// Durable: peers whose queues are not empty, or that have lost queued writes, are out of date.
    LeaveBehind,
    /// Wait for calls in flight, which are refused already.
    Settle,
    /// End the sessions to the peers.
    EndSessions,
    /// Durable: the role, also if a crash follows.
    Record(ReplicaRole),
    /// Durable: the role and that the replica is not in use, after a flush.
    PutAway(ReplicaRole),
    /// Durable: the epoch of a peer that takes the role.
    RecordEpoch(u64),
    /// Durable: the peer with this record may serve, and is met before this node serves.
    RecordSuccessor(usize),
    /// Announce to every peer that answers that this node takes the role. Ends the transition unless
    /// [`consented`].
    Announce {
        /// Peers that serve stop.
        forced: bool,
    },
    /// Accept no more calls of an attached source.
    Detach,
    /// End the attachment of a source, and wait for its calls.
    EndAttachment,
    /// Durable: target of the source that attaches, and its epoch.
    Admit,
    /// The local leg failed and was left behind, so nothing is recorded: the peer is the source.
    LeaveRole,
    /// Serve hosts through the peer, as before: the local leg has failed.
    ServeThroughPeer,
    /// Durable: a new epoch.
    RaiseEpoch,
    /// Durable: the data is discarded, and this node is a target.
    Discard,
    /// Durable: source; then serve hosts.
    Serve(Claim),
    /// Durable: unverified data counts as verified, older data in the listed ranges as accepted, or a
    /// removed replica as a member.
    TrustData(Disk),
    /// Durable: this replica was removed from the mirror.
    RecordRemoved,
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
            Action::CheckDevices => "check that the devices answer",
            Action::DeliverQueues => "deliver the queues",
            Action::LeaveBehind => "**record what peers lack**",
            Action::Settle => "wait for calls in flight",
            Action::EndSessions => "end the sessions",
            Action::Record(_) => "**record the role**",
            Action::PutAway(_) => "flush, **record the role and that it is unused**",
            Action::RecordEpoch(_) => "**record the epoch**",
            Action::RecordSuccessor(_) => "**record the peer as successor**",
            Action::Announce { forced: true } => "depose the peers that answer",
            Action::Announce { forced: false } => "claim the role at every peer",
            Action::Detach => "refuse the source's calls",
            Action::EndAttachment => "end the source's session",
            Action::Admit => "**record the role and the epoch**",
            Action::LeaveRole => "forget the role",
            Action::ServeThroughPeer => "serve hosts through the peer",
            Action::RaiseEpoch => "**record a new epoch**",
            Action::Discard => "**discard the data**",
            Action::Serve(Claim::Resumed) => "**record that it is used**, serve hosts",
            Action::Serve(Claim::Granted) => {
                "**record the role and the arbiter's epoch**, serve hosts"
            }
            Action::Serve(_) => "**record the role and a new epoch**, serve hosts",
            Action::TrustData(Disk::Incomplete) => "**accept older data in the bad ranges**",
            Action::TrustData(Disk::Removed) => "**forget that it was removed**",
            Action::RecordRemoved => "**record that it was removed**",
            Action::TrustData(_) => "**record the data as verified**",
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
        Event::Announced { epoch, forced } => announced(state, epoch, forced),
        Event::Deposed { epoch } => deposed(state, epoch),
        Event::Claimed { by, epoch } => claimed(state, by, epoch),
        Event::Removed { epoch } => removed(state, epoch),
        Event::Attached { epoch } => attached(state, epoch),
        Event::Promoted => promoted(state),
        Event::Admitted(by) => admitted(state, by),
        Event::HandedOver(outcome) => handed_over(state, outcome),
        Event::Discarded => discarded(state),
        Event::Transferred => transferred(state),
        Event::Granted => granted(state),
        Event::Outvoted { epoch } => Ok(outvoted(state, epoch)),
        Event::LeaseEnded => Ok(lease_ended(state)),
        Event::Met { plan, prevailing } => Ok(met(state, plan, prevailing)),
        Event::Order(order) => ordered(state, order),
    }
}

/// The transition for an order to all members of a consistency group.
///
/// # Errors
/// As [`next`]. The order is refused for all members then.
pub fn next_in_group(state: &State, order: Order) -> Transition {
    match (order, state.role) {
        // It was handed over before, or its source is there anyway.
        (Order::HandOver(_), Role::Target { attached: true, .. }) if state.leader.is_some() => {
            Ok(unchanged(state))
        }
        _ => next(state, Event::Order(order)),
    }
}

/// Whether this node may begin to serve after [`Action::Announce`], with these answers. A peer that
/// cannot be reached is the operator's responsibility if `forced`; a reachable peer must have
/// stopped.
///
/// # Errors
/// The first of: another node takes the role, a peer serves, a peer has not confirmed, no answer.
pub fn consented(consents: &[Consent], forced: bool) -> Result<(), Refusal> {
    let refused = |consent: &Consent| match *consent {
        Consent::Later => Some(Refusal::Overtaken),
        Consent::Serves => Some(Refusal::PeerServes),
        Consent::TooOld { serving: true } => Some(Refusal::PeerTooOld),
        Consent::Unknown => Some(Refusal::Unconfirmed),
        // After a restart it could take the role by itself.
        Consent::RefusesHosts if !forced => Some(Refusal::Unconfirmed),
        Consent::Unreachable if !forced => Some(Refusal::PeerSilent),
        _ => None,
    };
    let severity = |refusal: &Refusal| match refusal {
        Refusal::Overtaken => 0,
        Refusal::PeerServes | Refusal::PeerTooOld => 1,
        Refusal::Unconfirmed => 2,
        _ => 3,
    };
    consents.iter().filter_map(refused).min_by_key(severity).map_or(Ok(()), Err)
}

fn unchanged(state: &State) -> (State, Actions) {
    (*state, Actions::default())
}

impl State {
    fn to(self, role: Role, actions: &[Action]) -> (State, Actions) {
        (State { role, ..self }, Actions::of(actions))
    }

    /// [`State::to`], if this node may begin to serve now.
    fn serves(self, claim: Claim, before: &[Action]) -> Transition {
        if self.promised > 0 {
            return Err(Refusal::Overtaken);
        }
        let epoch = self.role.epoch();
        let epoch = if claim == Claim::Resumed { epoch } else { epoch.saturating_add(1) };
        let mut actions = before.to_vec();
        actions.push(Action::Serve(claim));
        Ok(self.to(Role::Serving { epoch }, &actions))
    }

    fn leg(&self, leg: usize) -> Result<Leg, Refusal> {
        self.legs.get(leg).copied().flatten().ok_or(Refusal::NoPeer)
    }

    fn has_several_peers(&self) -> bool {
        self.legs.iter().flatten().count() > 1
    }

    /// A node that is no source follows an announcement. A third node that returns learns of the
    /// epoch from it, also after a restart; of two nodes, the other one has announced it.
    fn steps_back(self, epoch: u64) -> (State, Actions) {
        let seen = |own: u64| if self.has_several_peers() { own.max(epoch) } else { own };
        let (role, mut actions) = match self.role {
            Role::Target { epoch: own, .. } => {
                (Role::Target { epoch: seen(own), attached: false }, vec![Action::EndAttachment])
            }
            Role::Deposed { by } => (Role::Deposed { by: seen(by) }, vec![]),
            role => (role, vec![]),
        };
        if role.epoch() > self.role.epoch() {
            actions.push(Action::RecordEpoch(epoch));
        }
        self.to(role, &actions)
    }

    /// Serves again after a start, as the source that it is.
    fn resumes(&self) -> (State, Actions) {
        // Epoch 0: it was created as a source and has never served.
        let claim = if self.role.epoch() == 0 { Claim::Agreed } else { Claim::Resumed };
        self.serves(claim, &[]).unwrap_or_else(|_| unchanged(self))
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
        // The peer was promoted after this node, and has stopped since; or it has newer data, so
        // the record here is out of date.
        Answer::Known { plan: Plan::Follow { .. }, epoch, differs, .. } => {
            differs || epoch > state.role.epoch()
        }
        Answer::Known { plan: Plan::SplitBrain, epoch, .. } => epoch > state.role.epoch(),
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

fn announced(state: &State, epoch: u64, forced: bool) -> Transition {
    if !forced && matches!(state.role, Role::Serving { .. }) {
        return Err(Refusal::Serving);
    }
    if state.role.epoch() >= epoch || state.promised > epoch || state.announced >= epoch {
        return Err(Refusal::Fenced);
    }
    let promised = State { promised: epoch, ..*state };
    Ok(match state.role {
        Role::Serving { epoch } => {
            let role = Role::Waiting { epoch, handed_over: false };
            promised.to(role, &[Action::RefuseHosts])
        }
        // A request of the source to promote this node may still arrive.
        Role::Target { epoch, .. } => {
            promised.to(Role::Target { epoch, attached: false }, &[Action::Detach])
        }
        role => promised.to(role, &[]),
    })
}

fn deposed(state: &State, epoch: u64) -> Transition {
    let after = State { promised: 0, ..*state };
    Ok(match state.role {
        // It was promoted under a later epoch since.
        Role::Serving { epoch: own } if own >= epoch => return Err(Refusal::Fenced),
        Role::Serving { .. } | Role::Waiting { .. } => depose(&after, epoch),
        _ => after.steps_back(epoch),
    })
}

/// A stopped source stays the source, because its claim to have the best data counts at handshakes.
/// As after a switchover without an answer, it has to meet the peer before it serves again.
fn claimed(state: &State, by: usize, claimed: u64) -> Transition {
    let after = State { promised: 0, ..*state };
    Ok(match state.role {
        Role::Serving { .. } => return Err(Refusal::Serving),
        Role::Waiting { epoch, .. } => {
            let role = Role::Waiting { epoch, handed_over: true };
            after.to(role, &[Action::RecordSuccessor(by)])
        }
        _ => after.steps_back(claimed),
    })
}

/// The source stays away from now on, so the data grows old.
fn removed(state: &State, epoch: u64) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Err(Refusal::Serving);
    }
    if epoch < state.role.epoch().max(state.promised) {
        return Err(Refusal::Fenced);
    }
    let record = [Action::EndAttachment, Action::RecordRemoved];
    Ok(match state.role {
        Role::Target { epoch, .. } => state.to(Role::Target { epoch, attached: false }, &record),
        role => state.to(role, &record[1..]),
    })
}

/// Steps aside for a node with a later claim. What this node has written alone is kept.
fn depose(state: &State, by: u64) -> (State, Actions) {
    let serves = matches!(state.role, Role::Serving { .. });
    // Calls are in flight also if hosts were refused at the announcement.
    let actions = [
        Action::RefuseHosts,
        Action::Record(ReplicaRole::Deposed),
        Action::EndSessions,
        Action::Settle,
        Action::PutAway(ReplicaRole::Deposed),
    ];
    let by = by.max(state.role.epoch());
    state.to(Role::Deposed { by }, if serves { &actions } else { &actions[1..] })
}

fn attached(state: &State, epoch: u64) -> Transition {
    match state.role {
        Role::Serving { .. } => Err(Refusal::Serving),
        _ if state.disk == Disk::Failed => Err(Refusal::Failed),
        // A higher epoch than any seen, or the one already admitted.
        role if epoch < role.epoch() => Err(Refusal::Fenced),
        _ if state.promised > 0 && epoch != state.promised => Err(Refusal::Fenced),
        _ => Ok(state
            .to(Role::Target { epoch, attached: true }, &[Action::EndAttachment, Action::Admit])),
    }
}

fn promoted(state: &State) -> Transition {
    let Role::Target { attached: true, .. } = state.role else { return Err(Refusal::NotEntitled) };
    servable(state, false)?;
    state.serves(Claim::Agreed, &[Action::EndAttachment])
}

/// Whether the handshake with this peer suffices to become the source without the operator. A source
/// that designated a successor has to meet that peer, which may be serving out of sight. With several
/// targets, each would conclude that it has to take over, so the operator decides; also if another
/// node has announced or taken the role since, and may serve out of sight. A deposed source was
/// replaced by an operator's order, and waits for another one, such as to discard the peer's data.
fn admitted(state: &State, by: AdmittedBy) -> Transition {
    let several = state.has_several_peers();
    match state.role {
        Role::Serving { epoch } => {
            let epoch = epoch.max(by.epoch).saturating_add(1);
            return Ok(state.to(Role::Serving { epoch }, &[Action::RaiseEpoch]));
        }
        Role::Target { attached: true, .. } => return Err(Refusal::PeerServes),
        _ if state.leader.is_some_and(|leader| leader != Leader::Serves) => {
            return Err(Refusal::LeaderFirst);
        }
        Role::Waiting { handed_over: true, .. } if !by.successor => {
            return Err(Refusal::NotEntitled);
        }
        Role::Waiting { .. } if several && by.overtaken => return Err(Refusal::NotEntitled),
        Role::Target { .. } if several => return Err(Refusal::NotEntitled),
        Role::Deposed { .. } if several || !by.unusable => return Err(Refusal::NotEntitled),
        _ => {}
    }
    servable(state, false)?;
    state.serves(Claim::Agreed, &[Action::EndAttachment])
}

/// A step with which a member follows the leader of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// The leader was handed over, or follows another source, so this member does or will: it gives up
    /// its claim.
    StepBack,
    /// The leader serves, and this member is served nowhere, unless its peers say otherwise.
    TakeRole,
}

impl Following {
    /// The order that carries it out.
    pub fn order(self) -> Order {
        match self {
            Following::StepBack => Order::Demote,
            Following::TakeRole => Order::Failover { answers: Answers::default() },
        }
    }
}

/// What a member of a group has to do to be where its leader is.
pub fn following(state: &State) -> Option<Following> {
    match (state.leader?, state.role) {
        (Leader::Follows, Role::Waiting { .. })
        | (Leader::Elsewhere, Role::Waiting { handed_over: true, .. }) => Some(Following::StepBack),
        (Leader::Serves, Role::Target { attached: false, .. })
            if servable(state, false).is_ok() && state.promised == 0 =>
        {
            Some(Following::TakeRole)
        }
        _ => None,
    }
}

fn handed_over(state: &State, outcome: Handover) -> Transition {
    let Role::Waiting { epoch, .. } = state.role else { return Err(Refusal::NotSource) };
    let target = Role::Target { epoch, attached: false };
    match (outcome, state.disk) {
        (Handover::Unknown, _) => Ok(unchanged(state)),
        (Handover::Accepted, Disk::Failed) => Ok(state.to(target, &[Action::LeaveRole])),
        (Handover::Accepted, _) => Ok(state.to(target, &[Action::PutAway(ReplicaRole::Target)])),
        (Handover::Declined, _) if state.promised > 0 => Err(Refusal::Overtaken),
        // Only the peer has the data.
        (Handover::Declined, Disk::Failed) => {
            Ok(state.to(Role::Serving { epoch }, &[Action::ServeThroughPeer]))
        }
        (Handover::Declined, _) => {
            servable(state, false)?;
            state.serves(Claim::Agreed, &[])
        }
    }
}

fn discarded(state: &State) -> Transition {
    match state.role {
        Role::Serving { .. } => Err(Refusal::Serving),
        role => {
            let attached = matches!(role, Role::Target { attached: true, .. });
            Ok(state.to(Role::Target { epoch: role.epoch(), attached }, &[Action::Discard]))
        }
    }
}

fn transferred(state: &State) -> Transition {
    let stop = [
        Action::Drain,
        Action::CheckDevices,
        Action::LeaveBehind,
        Action::EndSessions,
        Action::RefuseHosts,
        Action::PutAway(ReplicaRole::Source),
        Action::EndAttachment,
    ];
    match state.role {
        _ if state.disk == Disk::Failed => Err(Refusal::Failed),
        Role::Serving { .. } => Ok(state.to(Role::Closed, &stop)),
        _ => Ok(state.to(Role::Closed, &[Action::CheckDevices, Action::EndAttachment])),
    }
}

/// A source that serves already goes on, once the grant is durable. Whoever is attached to a source
/// does not need the grant, and leaves it to that source.
fn granted(state: &State) -> Transition {
    match state.role {
        Role::Serving { .. } => Ok(unchanged(state)),
        Role::Target { attached: true, .. } => Err(Refusal::PeerServes),
        // It may have served alone: the operator decides about its data.
        Role::Deposed { .. } => Err(Refusal::NotEntitled),
        _ => {
            servable(state, false)?;
            state.serves(Claim::Granted, &[Action::EndAttachment])
        }
    }
}

/// What this node wrote without its peers was never acknowledged, so it becomes a target.
fn outvoted(state: &State, epoch: u64) -> (State, Actions) {
    let seen = state.role.epoch().max(epoch);
    let target = Role::Target { epoch: seen, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        Role::Serving { .. } => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::RecordEpoch(seen),
                Action::Settle,
                put_away,
            ];
            state.to(target, &actions)
        }
        Role::Waiting { .. } => state.to(target, &[Action::RecordEpoch(seen), put_away]),
        _ => unchanged(state),
    }
}

/// Stops serving, and stays the source: the arbiter or the peer decides.
fn lease_ended(state: &State) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::RefuseHosts,
        Action::EndSessions,
        Action::Settle,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(Role::Waiting { epoch, handed_over: false }, &actions)
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
        (Plan::SplitBrain | Plan::Incompatible | Plan::NoSource, Some(by)) => depose(state, by),
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
pub(crate) fn servable(state: &State, unverified: bool) -> Result<(), Refusal> {
    match state.disk {
        Disk::Consistent => Ok(()),
        Disk::Unverified | Disk::Incomplete | Disk::Removed if unverified => Ok(()),
        Disk::Unverified => Err(Refusal::Unverified),
        Disk::Blank => Err(Refusal::Blank),
        Disk::Inconsistent => Err(Refusal::Inconsistent),
        Disk::Incomplete => Err(Refusal::Incomplete),
        Disk::Removed => Err(Refusal::Removed),
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
    state.serves(Claim::Agreed, &[Action::Announce { forced: false }, Action::EndAttachment])
}

fn force_failover(state: &State, unverified: bool) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, unverified)?;
    let actions =
        [Action::Announce { forced: true }, Action::EndAttachment, Action::TrustData(state.disk)];
    let trusts = matches!(state.disk, Disk::Unverified | Disk::Incomplete | Disk::Removed);
    let (after, actions) =
        state.serves(Claim::Forced, if trusts { &actions } else { &actions[..2] })?;
    Ok((State { disk: Disk::Consistent, ..after }, actions))
}

fn hand_over(state: &State, leg: usize) -> Transition {
    let to = state.leg(leg)?;
    let Role::Serving { epoch } = state.role else { return Err(Refusal::NotSource) };
    match to.phase {
        LegPhase::InSync => {
            let role = Role::Target { epoch, attached: false };
            let actions = [Action::Drain, Action::DeliverQueues, Action::HandOver(leg)];
            Ok(state.to(role, &actions))
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
