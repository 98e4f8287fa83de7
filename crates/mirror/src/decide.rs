//! What two replicas that meet have to do: one pure function, symmetric in its arguments.
//!
//! It decides, and changes nothing: dirty bits are cleared by acknowledged copies alone. Every row
//! of the table in `docs/mirror-handshake.md` is a test below, in its order; what must hold of any
//! history is checked by enumeration in the module `history_tests`.

use crate::generation::Lineage;
use crate::id::Uuid;

/// What a replica says of itself when it meets its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The volume.
    pub volume: Uuid,
    /// The replica.
    pub replica: Uuid,
    /// Size of the volume, in bytes.
    pub usable_bytes: u64,
    /// The largest size that it could take over, in bytes; no less than it has.
    pub room_bytes: u64,
    /// What a bit stands for, in bytes.
    pub bit_bytes: u32,
    /// A logical block as hosts see the volume by this replica, in bytes; 0 where that is not known.
    pub block_bytes: u32,
    /// Where its data comes from.
    pub lineage: Lineage,
    /// The highest epoch that it has durably seen.
    pub epoch: u64,
    /// Hosts read (and may write) its data: it is the source now, or was brought up alone after a
    /// crash and has answered reads since.
    pub serving: bool,
    /// It was the source when it crashed: writes may have reached one leg of the two.
    pub crashed: bool,
    /// A resync to it began and has not ended: its data is of no moment in time.
    pub inconsistent: bool,
    /// Its log names parts that may differ from the peer.
    pub dirty: bool,
}

impl View {
    /// The logical blocks of the two differ, as far as is known. A replica of larger blocks cannot
    /// carry the volume, for hosts write less at a time; and hosts of the one must not find the other's
    /// blocks in their place, where the role goes over.
    pub fn has_other_blocks(&self, other: &View) -> bool {
        let [own, other] = [self, other].map(|view| view.block_bytes);
        own != other && own != 0 && other != 0
    }
}

/// One of the two that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The first argument of [`decide`].
    Mine,
    /// The second.
    Peers,
}

impl Side {
    /// The other.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Mine => Side::Peers,
            Side::Peers => Side::Mine,
        }
    }
}

/// How much a resync copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// What either log names: the union of both.
    Partial,
    /// Everything.
    Full,
}

/// What to do. See [`decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The data is equal. Leftover bases may be forgotten.
    InSync,
    /// Copy from `source` to the other.
    Resync {
        /// Whose data is kept.
        source: Side,
        /// How much to copy.
        amount: Amount,
    },
    /// Both were written without the other. Nothing is copied until the operator chooses.
    SplitBrain,
    /// Not two replicas of one volume, or so far apart that nothing is known in common.
    Unrelated,
    /// Two replicas of one volume whose granularities or logical blocks differ, or the one that would be
    /// copied to has no room for the other's size.
    Incompatible,
    /// Neither has whole data of the volume to copy from.
    NoSource,
}

impl Decision {
    /// The same as the other side sees it.
    #[must_use]
    pub fn mirrored(self) -> Decision {
        match self {
            Decision::Resync { source, amount } => {
                Decision::Resync { source: source.other(), amount }
            }
            other => other,
        }
    }
}

/// What two replicas have to do that say this of themselves.
pub fn decide(mine: &View, peers: &View) -> Decision {
    if mine.volume != peers.volume || mine.replica == peers.replica {
        return Decision::Unrelated;
    }
    if mine.bit_bytes != peers.bit_bytes || mine.has_other_blocks(peers) {
        return Decision::Incompatible;
    }
    let (a, b) = (&mine.lineage, &peers.lineage);
    match (a.current.is_none(), b.current.is_none()) {
        (true, true) => return Decision::NoSource,
        (true, false) => return resync(Side::Peers, Amount::Full, mine, peers),
        (false, true) => return resync(Side::Mine, Amount::Full, mine, peers),
        (false, false) => {}
    }
    if a.current == b.current {
        return equal(mine, peers);
    }
    let (covers, covered) = (a.bases.contains(b.current), b.bases.contains(a.current));
    match (covers, covered) {
        (true, false) => return resync(Side::Mine, Amount::Partial, mine, peers),
        (false, true) => return resync(Side::Peers, Amount::Partial, mine, peers),
        // Each says that it went on from the other's data: no history does that, so trust neither.
        (true, true) => return Decision::SplitBrain,
        (false, false) => {}
    }
    match (a.history.contains(b.current), b.history.contains(a.current)) {
        (true, false) => return resync(Side::Mine, Amount::Full, mine, peers),
        (false, true) => return resync(Side::Peers, Amount::Full, mine, peers),
        (true, true) => return Decision::SplitBrain,
        (false, false) => {}
    }
    let common = a.bases.iter().chain(a.history.iter()).any(|generation| b.knows(generation));
    if common { Decision::SplitBrain } else { Decision::Unrelated }
}

fn resync(source: Side, amount: Amount, mine: &View, peers: &View) -> Decision {
    let (from, to) = if source == Side::Mine { (mine, peers) } else { (peers, mine) };
    if from.inconsistent {
        return Decision::NoSource;
    }
    if from.usable_bytes > to.room_bytes.max(to.usable_bytes) {
        return Decision::Incompatible;
    }
    Decision::Resync { source, amount }
}

/// Equal generations: they differ where a log says so, and there alone.
fn equal(mine: &View, peers: &View) -> Decision {
    let same_size = mine.usable_bytes == peers.usable_bytes;
    let source = match (mine.inconsistent, peers.inconsistent) {
        (true, true) => return Decision::NoSource,
        (true, false) => Side::Peers,
        (false, true) => Side::Mine,
        (false, false) if !(mine.dirty || peers.dirty) && same_size => return Decision::InSync,
        (false, false) => best(mine, peers),
    };
    resync(source, Amount::Partial, mine, peers)
}

/// Which of two whole replicas of equal generation is kept where they differ. All that was
/// acknowledged is on both, but a crash may have taken unflushed writes from one of them.
fn best(mine: &View, peers: &View) -> Side {
    let pick = |mine: bool, peers: bool| match (mine, peers) {
        (true, false) => Some(Side::Mine),
        (false, true) => Some(Side::Peers),
        _ => None,
    };
    // What hosts have read must not change under them.
    pick(mine.serving, peers.serving)
        // A source that crashed may have lost what it had not flushed; its target was told all.
        .or_else(|| pick(!mine.crashed, !peers.crashed))
        // What grew has been seen by hosts, who must not find it smaller.
        .or_else(|| {
            pick(mine.usable_bytes > peers.usable_bytes, peers.usable_bytes > mine.usable_bytes)
        })
        .or_else(|| pick(mine.epoch > peers.epoch, peers.epoch > mine.epoch))
        .unwrap_or(if mine.replica > peers.replica { Side::Mine } else { Side::Peers })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "history_tests.rs"]
mod history_tests;
