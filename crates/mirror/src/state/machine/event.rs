//! Events of the machine: orders, answers and calls of peers, and decisions of the arbiter.
//!
//! Invariant: an event has all input of its transition besides the state, so no transition asks a
//! peer or reads a clock.

use crate::agree::plan::HandshakePlan;
use crate::limits::PEERS_MAX;
use crate::state::status::DesiredState;

/// Answer of a peer that was asked before this node begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleAnswer {
    /// No answer within the time limit.
    Silent,
    /// The peer's identity.
    Known {
        /// It serves hosts.
        serving: bool,
        /// Highest role epoch that the peer has seen.
        epoch: u64,
        /// Plan of a handshake with the peer.
        plan: HandshakePlan,
        /// True if the peer's data has another generation than the local data.
        differs: bool,
    },
}

/// Answers by leg. Legs without a peer are `None`.
pub type Answers = [Option<RoleAnswer>; PEERS_MAX];

/// Answer of a peer to the announcement that this node takes the role
/// ([`Action::Announce`](super::Action::Announce)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerConsent {
    /// There is no connection to it.
    Unreachable,
    /// It serves no hosts, and that is durable.
    Yields,
    /// It refuses hosts, but could not make that durable: its device hangs or has failed.
    RefusesHosts,
    /// It serves hosts.
    Serves,
    /// It takes the role itself, or has promised it to a third node, under a later epoch.
    Later,
    /// It answers, but does not say whether it serves.
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
        /// Also serve unverified data after a flush failure, older data in listed ranges, or the
        /// data of a removed replica.
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
        /// Role epoch of the peer.
        epoch: u64,
        /// True if it does not need this node's consent.
        forced: bool,
    },
    /// The peer takes the role by force, after [`Event::Announced`] was accepted.
    Deposed {
        /// Role epoch of the peer.
        epoch: u64,
    },
    /// The peer takes the role if this node serves no hosts, after [`Event::Announced`] was
    /// accepted.
    Claimed {
        /// Index of the peer in [`MachineState::records`](super::MachineState::records).
        by: usize,
        /// Role epoch of the peer.
        epoch: u64,
    },
    /// The source has removed this replica from the mirror.
    Removed {
        /// Role epoch of the source.
        epoch: u64,
    },
    /// A peer attaches as the source.
    Attached {
        /// Role epoch of the source.
        epoch: u64,
    },
    /// The attached source hands its role to this node.
    Promoted,
    /// The peer of a handshake has admitted this node as its source, under a new epoch.
    Admitted(AdmittedBy),
    /// The peer answered [`Action::HandOver`](super::Action::HandOver).
    HandedOver(Handover),
    /// The data is discarded for a peer's, by order or by policy.
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
        /// Plan of the handshake.
        plan: HandshakePlan,
        /// Role epoch of the peer if it serves hosts and its claim is [`later`](super::later).
        prevailing: Option<u64>,
    },
}

/// The peer of [`Event::Admitted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedBy {
    /// True if the peer is the designated successor.
    pub successor: bool,
    /// Highest role epoch that the peer has seen.
    pub epoch: u64,
    /// True if that epoch is later than any that this node has seen, and belongs to another node.
    pub overtaken: bool,
    /// True if the peer cannot serve its data, which is unverified or was discarded for this
    /// node's.
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
