//! Actions of a transition, in the order of execution.
//!
//! Invariant: an action is complete before the next one begins, so a durable action is durable
//! before the next one has an effect.

use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::DesiredState;

use super::state::DiskState;

/// Claim with which a node begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeClaim {
    /// Its present role and epoch. A restart is no promotion: with a new epoch, it would prevail
    /// over a peer that was promoted meanwhile.
    Resumed,
    /// A new epoch. The peers agree, or there is none.
    Agreed,
    /// The epoch in the arbiter's record.
    Granted,
    /// A new epoch. The peers were not asked, or the order overrides them.
    Forced,
}

/// An action of a transition. Each is complete before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask every peer whether it serves, within [`crate::limits::ASK_MS`]; then
    /// [`Event::Asked`](super::Event::Asked).
    AskPeers,
    /// Refuse host calls from now on. Calls in flight are no longer acknowledged.
    RefuseHosts,
    /// Block host calls and wait for those in flight.
    Drain,
    /// Flush the devices and rewrite the superblock, within [`crate::limits::TRANSFER_CHECK_MS`].
    /// Until then the transition can be reverted.
    CheckDevices,
    /// Wait until asynchronous peers have received and flushed the queued writes, within
    /// [`crate::limits::QUEUE_DELIVERY_MS`].
    DeliverQueues,
    /// Durably record peers as out of date whose queues are not empty, or that have lost queued
    /// writes.
    LeaveBehind,
    /// Wait for calls in flight, which are already refused.
    AwaitCalls,
    /// End the sessions to the peers.
    EndSessions,
    /// Durably record the role, so that a crash keeps it.
    Record(ReplicaRole),
    /// Flush, then durably record the role and that the replica is not in use.
    PutAway(ReplicaRole),
    /// Durably record the epoch of a peer that takes the role.
    RecordEpoch(u64),
    /// Durably record the peer with this record as designated successor: it may serve, and this
    /// node serves only after a handshake with it.
    RecordSuccessor(usize),
    /// Announce to every peer that answers that this node takes the role. Ends the transition
    /// unless [`consented`](super::consented).
    Announce {
        /// True if serving peers must stop.
        forced: bool,
    },
    /// Accept no more calls of an attached source.
    Detach,
    /// End the attachment of a source, and wait for its calls.
    EndAttachment,
    /// Durably record the role of target, and the epoch of the attaching source.
    Admit,
    /// Give up the role without a record, because the local leg failed and was recorded as out of
    /// date: the peer is the source.
    LeaveRole,
    /// Continue to serve hosts through the peer: the local leg has failed.
    ServeThroughPeer,
    /// Durably take a new epoch.
    RaiseEpoch,
    /// Durably discard the data, and become a target.
    Discard,
    /// Durably become the source; then serve hosts.
    Serve(ServeClaim),
    /// Durably accept the data: unverified data as verified, older data in the listed ranges, or a
    /// removed replica as a member.
    TrustData(DiskState),
    /// Durably record that this replica was removed from the mirror.
    RecordRemoved,
    /// Transfer the role to this peer.
    HandOver(usize),
    /// Ask this peer for the role.
    AskForRole(usize),
    /// With automatic failover, wait until the arbiter's record excludes this peer, within
    /// [`crate::limits::EXCLUDE_MS`].
    ExcludePeer(usize),
    /// Durably mark every block of a leg as out of sync.
    MarkAll(usize),
    /// Durably store the desired state of a leg.
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
            Action::AwaitCalls => "wait for calls in flight",
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
            Action::Serve(ServeClaim::Resumed) => "**record that it is used**, serve hosts",
            Action::Serve(ServeClaim::Granted) => {
                "**record the role and the arbiter's epoch**, serve hosts"
            }
            Action::Serve(_) => "**record the role and a new epoch**, serve hosts",
            Action::TrustData(DiskState::Incomplete) => "**accept older data in the bad ranges**",
            Action::TrustData(DiskState::Removed) => "**forget that it was removed**",
            Action::RecordRemoved => "**record that it was removed**",
            Action::TrustData(_) => "**record the data as verified**",
            Action::HandOver(_) => "**record the successor**, hand over",
            Action::AskForRole(_) => "ask the peer for the role",
            Action::ExcludePeer(_) => "**exclude the peer at the arbiter**",
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
    pub(super) fn of(actions: &[Action]) -> Actions {
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

    /// True without actions.
    pub fn is_empty(self) -> bool {
        self.0[0].is_none()
    }
}
