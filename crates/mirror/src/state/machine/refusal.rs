//! Refusals of the machine: the reason why an event changes nothing.

use crate::named;

named! {
    /// Why an event is refused.
    pub enum OrderRefusal {
        /// The mirror has ended.
        Closed = "the mirror has ended, or moves to another device",
        /// No such peer.
        NoPeer = "there is no such peer",
        /// The local data is inconsistent.
        Inconsistent = "the local data is inconsistent: a resync to it has not completed",
        /// See [`DiskState::Incomplete`](super::Disk::Incomplete).
        Incomplete = "ranges that the source could not copy hold older data",
        /// The replica holds no data yet.
        Blank = "the replica holds no data yet",
        /// The local leg has failed.
        Failed = "the local leg has failed",
        /// See [`DiskState::Unverified`](super::Disk::Unverified).
        Unverified = "a flush of the local device failed, and no resync has completed since",
        /// See [`DiskState::Removed`](super::Disk::Removed).
        Removed = "the source has removed this replica from the mirror",
        /// A peer serves hosts.
        PeerServes = "a peer serves hosts",
        /// A peer did not answer, so it may serve hosts.
        PeerSilent = "a peer does not answer, and may serve hosts",
        /// A peer has newer data and takes the role as soon as it can.
        PeerLeads = "a peer has newer data",
        /// The peer is not in sync.
        NotInSync = "the mirror is not in sync",
        /// The source serves no hosts.
        Waiting = "this node waits for its peer, and serves no hosts before it reaches the peer",
        /// Only the source can do this.
        NotSource = "this node is not the source",
        /// The operator has to choose the data to keep first.
        SplitBrain = "split brain: first choose the data to keep",
        /// The peer has seen a later epoch.
        Fenced = "this node has seen a later epoch",
        /// This node serves.
        Serving = "this node serves hosts",
        /// A resolution of the split brain runs here.
        Resolving = "the split brain is being resolved: look again when that has ended",
        /// The peer runs a resolution of the split brain in favor of this node.
        PeerDiscards = "the peer is discarding its data for this node's",
        /// Only the operator, or the peer that the role was handed to, can make this node the
        /// source.
        NotEntitled = "this node may not take the role by itself",
        /// See [`PeerConsent::Later`](super::PeerConsent::Later) and
        /// [`MachineState::promised`](super::MachineState::promised).
        Overtaken = "another node takes the role at the same time",
        /// A member has no open replica on this node.
        GroupIncomplete = "not all volumes of the consistency group have an open replica on this node",
        /// See [`Leader`](super::Leader).
        LeaderFirst = "the first volume of the consistency group decides which node serves the group",
        /// See [`PeerConsent::Unknown`](super::PeerConsent::Unknown).
        Unconfirmed = "a peer answers, and has not confirmed that it serves no hosts",
        /// A silent peer may serve by the record at the former store of this node.
        OtherArbiter = "a peer does not answer, and may be granted the role at the arbiter that this node used \
                        before, where the order would not be recorded: name that arbiter again, or power the peer \
                        off, set failover = \"manual\", restart this node and repeat the order",
        /// See [`PeerConsent::TooOld`](super::PeerConsent::TooOld).
        PeerTooOld = "a peer serves hosts, and its release cannot be ordered to stop",
    }
}
