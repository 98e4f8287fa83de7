//! Events of the machine: orders, answers and calls of peers, and decisions of the arbiter.
//!
//! Invariant: an event carries all that its transition needs to know besides the state, so no
//! transition asks a peer or reads a clock.

use crate::agree::plan::HandshakePlan;
use crate::limits::PEERS_MAX;
use crate::state::status::DesiredState;

/// Answer of a peer that was asked before this node begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleAnswer {
    /// None within the time limit.
    Silent,
    /// Its identity.
    Known {
        /// It serves hosts.
        serving: bool,
        /// The highest role epoch that it has seen.
        epoch: u64,
        /// The plan that a handshake with it would have.
        plan: HandshakePlan,
        /// Its data has another generation than the local data.
        differs: bool,
    },
}

/// Answers by leg. Legs without a peer are `None`.
pub type Answers = [Option<RoleAnswer>; PEERS_MAX];

/// How a peer answers the announcement that this node takes the role
/// ([`Action::Announce`](super::Action::Announce)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerConsent {
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
pub enum OperatorOrder {
    /// Serve, if every peer was asked, none serves, and all agree.
    Failover {
        /// Answers of the peers.
        answers: Answers,
    },
    /// Serve, although a peer may serve. A peer that answers is deposed first.
    ForceFailover {
        /// Also serve data that a flush failure made unverified, or that is older in listed ranges,
        /// or of a replica that was removed.
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
    /// Answers to [`Action::AskPeers`](super::Action::AskPeers).
    Asked(Answers),
    /// The operator's order.
    Order(OperatorOrder),
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
    /// The peer takes the role if this node serves no hosts, after [`Event::Announced`] was
    /// accepted.
    Claimed {
        /// The peer's place in [`MachineState::records`](super::MachineState::records).
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
    /// The peer answered [`Action::HandOver`](super::Action::HandOver).
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
    HandshakeDone {
        /// What to do about it.
        plan: HandshakePlan,
        /// Role epoch of the peer if it serves hosts and its claim is [`later`](super::later).
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
