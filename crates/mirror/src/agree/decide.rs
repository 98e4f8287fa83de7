//! Handshake decision: which of two replicas is copied to the other. One pure function, symmetric
//! in its arguments.
//!
//! It changes no state; dirty bits are cleared only by acknowledged copies. Each row of the table
//! in `docs/mirror-handshake.md` has a test below, in the same order. The module `history_tests`
//! checks the invariants over all short histories.

use crate::agree::generation::GenerationHistory;
use crate::id::MirrorId;

/// A replica's report about itself at a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaView {
    /// The volume.
    pub volume: MirrorId,
    /// The replica.
    pub replica: MirrorId,
    /// Size of the volume, in bytes.
    pub usable_bytes: u64,
    /// The largest size that this replica has room for, in bytes; at least `usable_bytes`.
    pub room_bytes: u64,
    /// Bytes covered by one bit of the bitmap.
    pub bit_bytes: u32,
    /// Logical block size of the volume on this node, in bytes; 0 when unknown.
    pub block_bytes: u32,
    /// Generation history of its data.
    pub generations: GenerationHistory,
    /// Highest role epoch that the replica has durably seen.
    pub epoch: u64,
    /// True if hosts use its data: it is the source now, or has served on its own since a crash.
    pub serving: bool,
    /// True if it was the source when it crashed: writes may have reached only one of the two legs.
    pub crashed: bool,
    /// True if a resync to it began and has not completed: its data matches no point in time.
    pub inconsistent: bool,
    /// True if its log names blocks that may differ from the peer.
    pub dirty: bool,
}

impl ReplicaView {
    /// True when the logical block sizes are known and differ. Hosts must not see the block size
    /// change with the role, and a replica with larger blocks cannot take the smaller writes.
    pub fn has_block_mismatch(&self, other: &ReplicaView) -> bool {
        let [own, other] = [self, other].map(|view| view.block_bytes);
        own != other && own != 0 && other != 0
    }
}

/// One of the two replicas at a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaSide {
    /// The first argument of [`decide`].
    Local,
    /// The second argument.
    Peer,
}

impl ReplicaSide {
    /// The other side.
    #[must_use]
    pub fn other(self) -> ReplicaSide {
        match self {
            ReplicaSide::Local => ReplicaSide::Peer,
            ReplicaSide::Peer => ReplicaSide::Local,
        }
    }
}

/// How much a resync copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResyncAmount {
    /// The blocks that either log names: the union of both.
    Partial,
    /// Everything.
    Full,
}

/// Result of [`decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeDecision {
    /// The data is equal. Remaining base generations may be forgotten.
    InSync,
    /// Copy from `source` to the other replica.
    Resync {
        /// The replica whose data is kept.
        source: ReplicaSide,
        /// How much to copy.
        amount: ResyncAmount,
    },
    /// Both were written independently. Nothing is copied until the operator chooses.
    SplitBrain,
    /// Not replicas of one volume, or with no known generation in common.
    Unrelated,
    /// Granularities or logical block sizes differ, or the target has no room for the size.
    Incompatible,
    /// Neither replica has consistent data to copy from.
    NoSource,
}

impl HandshakeDecision {
    /// The same decision from the other side's point of view.
    #[must_use]
    pub fn mirrored(self) -> HandshakeDecision {
        match self {
            HandshakeDecision::Resync { source, amount } => {
                HandshakeDecision::Resync { source: source.other(), amount }
            }
            other => other,
        }
    }
}

/// Decides between two replicas.
pub fn decide(mine: &ReplicaView, peers: &ReplicaView) -> HandshakeDecision {
    if mine.volume != peers.volume || mine.replica == peers.replica {
        return HandshakeDecision::Unrelated;
    }
    if mine.bit_bytes != peers.bit_bytes || mine.has_block_mismatch(peers) {
        return HandshakeDecision::Incompatible;
    }
    let (a, b) = (&mine.generations, &peers.generations);
    match (a.current.is_none(), b.current.is_none()) {
        (true, true) => return HandshakeDecision::NoSource,
        (true, false) => return resync(ReplicaSide::Peer, ResyncAmount::Full, mine, peers),
        (false, true) => return resync(ReplicaSide::Local, ResyncAmount::Full, mine, peers),
        (false, false) => {}
    }
    if a.current == b.current {
        return equal(mine, peers);
    }
    let (covers, covered) = (a.bases.contains(b.current), b.bases.contains(a.current));
    match (covers, covered) {
        (true, false) => return resync(ReplicaSide::Local, ResyncAmount::Partial, mine, peers),
        (false, true) => return resync(ReplicaSide::Peer, ResyncAmount::Partial, mine, peers),
        // Each claims to continue from the other's data. No valid history does: trust neither.
        (true, true) => return HandshakeDecision::SplitBrain,
        (false, false) => {}
    }
    match (a.history.contains(b.current), b.history.contains(a.current)) {
        (true, false) => return resync(ReplicaSide::Local, ResyncAmount::Full, mine, peers),
        (false, true) => return resync(ReplicaSide::Peer, ResyncAmount::Full, mine, peers),
        (true, true) => return HandshakeDecision::SplitBrain,
        (false, false) => {}
    }
    let common = a.bases.iter().chain(a.history.iter()).any(|generation| b.knows(generation));
    if common { HandshakeDecision::SplitBrain } else { HandshakeDecision::Unrelated }
}

fn resync(
    source: ReplicaSide,
    amount: ResyncAmount,
    mine: &ReplicaView,
    peers: &ReplicaView,
) -> HandshakeDecision {
    let (from, to) = if source == ReplicaSide::Local { (mine, peers) } else { (peers, mine) };
    if from.inconsistent {
        return HandshakeDecision::NoSource;
    }
    if from.usable_bytes > to.room_bytes.max(to.usable_bytes) {
        return HandshakeDecision::Incompatible;
    }
    HandshakeDecision::Resync { source, amount }
}

/// Equal generations: the data differs at most where a log says so.
fn equal(mine: &ReplicaView, peers: &ReplicaView) -> HandshakeDecision {
    let same_size = mine.usable_bytes == peers.usable_bytes;
    let source = match (mine.inconsistent, peers.inconsistent) {
        (true, true) => return HandshakeDecision::NoSource,
        (true, false) => ReplicaSide::Peer,
        (false, true) => ReplicaSide::Local,
        (false, false) if !(mine.dirty || peers.dirty) && same_size => {
            return HandshakeDecision::InSync;
        }
        (false, false) => best(mine, peers),
    };
    resync(source, ResyncAmount::Partial, mine, peers)
}

/// Chooses between two consistent replicas of the same generation where they differ. Every
/// acknowledged write is on both, but a crash may have taken unflushed writes from one.
fn best(mine: &ReplicaView, peers: &ReplicaView) -> ReplicaSide {
    let pick = |mine: bool, peers: bool| match (mine, peers) {
        (true, false) => Some(ReplicaSide::Local),
        (false, true) => Some(ReplicaSide::Peer),
        _ => None,
    };
    // Data that hosts have read must not change.
    pick(mine.serving, peers.serving)
        // A crashed source may have lost unflushed writes that its target received.
        .or_else(|| pick(!mine.crashed, !peers.crashed))
        // Hosts may have seen the larger size and must not find a smaller one.
        .or_else(|| {
            pick(mine.usable_bytes > peers.usable_bytes, peers.usable_bytes > mine.usable_bytes)
        })
        .or_else(|| pick(mine.epoch > peers.epoch, peers.epoch > mine.epoch))
        // Only a log that names blocks knows of writes that the other side may have lost.
        .or_else(|| pick(mine.dirty, peers.dirty))
        .unwrap_or(if mine.replica > peers.replica {
            ReplicaSide::Local
        } else {
            ReplicaSide::Peer
        })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "history_tests.rs"]
mod history_tests;
