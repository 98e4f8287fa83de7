//! How a mirror is to behave: what its configuration says.

use crate::limits::{QUEUE_BYTES, QUEUE_WINDOW_BYTES, QUEUE_WRITES};
use crate::pace::PaceLimits;
use crate::peer::SharedPeer;
use crate::queue::{QueueLimits, WhenFull};

/// When a write is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// When both legs have it.
    #[default]
    Sync,
    /// When the local leg has it.
    Async,
}

/// What "the peer has it" means in synchronous mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ack {
    /// Durably.
    #[default]
    Disk,
    /// Durable once a flush has completed.
    Memory,
}

/// What to do with writes when the peer is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenPeerLost {
    /// Record it as out of date, durably, and go on.
    #[default]
    Continue,
    /// Hold them until it is back and up to date, or the operator breaks or pauses the mirror.
    Strict,
}

/// What to do when both were written without the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenSplit {
    /// Leave it to the operator.
    #[default]
    Ask,
    /// If the peer serves hosts and this side does not, give up what was written here. All else is
    /// left to the operator.
    KeepServing,
}

/// What the write-intent log writes before the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Intent {
    /// A record of the regions that may be written, when another one is: what is hot costs nothing.
    #[default]
    HotRegions,
    /// A record for each write, one after the other, shared with no other: what a log without hot
    /// regions costs. For labs alone; nothing is safer by it.
    EveryWrite,
}

/// A peer.
#[derive(Clone)]
pub struct PeerOptions {
    /// The way to it.
    pub way: SharedPeer,
    /// See [`Mode`].
    pub mode: Mode,
    /// See [`Ack`].
    pub ack: Ack,
    /// See [`WhenPeerLost`]; in asynchronous mode it is always [`WhenPeerLost::Continue`].
    pub when_lost: WhenPeerLost,
    /// Asynchronous mode: what bounds the queue.
    pub queue: QueueLimits,
    /// Asynchronous mode: what to do when it is full.
    pub when_full: WhenFull,
    /// How fast a resync may be.
    pub pace: PaceLimits,
    /// See [`WhenSplit`]; of a mirror with several peers it is always [`WhenSplit::Ask`].
    pub when_split: WhenSplit,
    /// Resync compares checksums first and copies only what differs.
    pub compare: bool,
}

impl PeerOptions {
    /// A synchronous peer that is kept up to date, with all defaults.
    pub fn new(way: SharedPeer) -> PeerOptions {
        PeerOptions {
            way,
            mode: Mode::Sync,
            ack: Ack::Disk,
            when_lost: WhenPeerLost::Continue,
            queue: QueueLimits {
                high_bytes: QUEUE_BYTES,
                low_bytes: QUEUE_BYTES / 2,
                writes: QUEUE_WRITES,
                window_bytes: QUEUE_WINDOW_BYTES,
            },
            when_full: WhenFull::SlowDown,
            pace: PaceLimits::default(),
            when_split: WhenSplit::Ask,
            compare: false,
        }
    }

    /// Completed writes may be missing on the peer, or be lost with its power: what it was told
    /// since its last flush has to be remembered.
    pub(crate) fn remembers(&self) -> bool {
        self.mode == Mode::Async || self.ack == Ack::Memory
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.when_lost == WhenPeerLost::Strict && self.mode == Mode::Sync
    }
}

impl std::fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerOptions({:?}, {:?}, {:?})", self.mode, self.ack, self.when_lost)
    }
}
