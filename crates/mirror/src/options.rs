//! Options of a mirror, as set by its configuration.

use std::time::Duration;

use crate::io::queue::QueueLimits;
use crate::limits::{PEER_TIMEOUT_MS, QUEUE_BYTES, QUEUE_WINDOW_BYTES, QUEUE_WRITES};
use crate::named;
use crate::session::pace::PaceLimits;
use crate::wire::peer::SharedConnector;

named! {
    /// When a write completes.
    #[derive(Default)]
    pub enum Mode {
        /// When both legs have it.
        #[default]
        Sync = "sync",
        /// When the local leg has it.
        Async = "async",
    }
}

named! {
    /// When the peer counts as having a write, in synchronous mode.
    #[derive(Default)]
    pub enum Ack {
        /// When it is durable there.
        #[default]
        Disk = "disk",
        /// When it is in the peer's memory. It becomes durable at the next flush.
        Memory = "memory",
    }
}

named! {
    /// Effect of a lost peer on writes.
    #[derive(Default)]
    pub enum OnPeerLoss {
        /// Durably record the peer as out of date, and continue.
        #[default]
        Degrade = "degrade",
        /// Block writes until the peer is back and up to date, or the operator breaks or pauses the
        /// mirror. Flushes of writes that the peer may have lost wait until it is back.
        Block = "block",
    }
}

named! {
    /// Policy for a split brain.
    #[derive(Default)]
    pub enum AfterSplitBrain {
        /// The operator decides.
        #[default]
        Manual = "manual",
        /// Discard the local data if the peer serves hosts and this side does not. The operator
        /// decides in all other cases.
        KeepServing = "keep-serving",
    }
}

named! {
    /// Who decides that a target takes over.
    #[derive(Default)]
    pub enum FailoverMode {
        /// The operator.
        #[default]
        Manual = "manual",
        /// The arbiter.
        Automatic = "automatic",
    }
}

named! {
    /// Effect of a full queue of an asynchronous peer.
    #[derive(Default)]
    pub enum OnCongestion {
        /// Throttle: writes wait, so hosts become as slow as the link.
        #[default]
        Throttle = "throttle",
        /// Detach the peer: only record what it lacks, and bring it up to date later.
        Detach = "detach",
    }
}

named! {
    /// Records that the write-intent log writes before the data.
    #[derive(Default)]
    pub enum IntentLogMode {
        /// A record of all active regions whenever the set changes. Writes to active regions need
        /// no record.
        #[default]
        ActiveRegions = "active-regions",
        /// A separate record for each write, one after the other, as a log without active regions
        /// needs. For measurements only; it is no safer.
        EveryWrite = "every-write",
    }
}

/// Options of one peer.
#[derive(Clone)]
pub struct PeerOptions {
    /// Makes connections to the peer.
    pub connector: SharedConnector,
    /// Condition for the completion of a write.
    pub mode: Mode,
    /// Condition for the peer to count as having a write.
    pub ack: Ack,
    /// Policy for a lost peer; always [`OnPeerLoss::Degrade`] in asynchronous mode.
    pub on_peer_loss: OnPeerLoss,
    /// Asynchronous mode: limits of the queue.
    pub queue: QueueLimits,
    /// Asynchronous mode: policy for a full queue.
    pub on_congestion: OnCongestion,
    /// Limits on the rate of a resync.
    pub pace: PaceLimits,
    /// Policy for a split brain; always [`AfterSplitBrain::Manual`] with several peers.
    pub after_split_brain: AfterSplitBrain,
    /// A resync compares checksums first and copies only blocks that differ.
    pub compare: bool,
    /// Age at which a request without an answer ends the connection.
    pub timeout: Duration,
}

impl PeerOptions {
    /// Default options: synchronous.
    pub fn new(connector: SharedConnector) -> PeerOptions {
        PeerOptions {
            connector,
            mode: Mode::Sync,
            ack: Ack::Disk,
            on_peer_loss: OnPeerLoss::Degrade,
            queue: QueueLimits {
                high_bytes: QUEUE_BYTES,
                low_bytes: QUEUE_BYTES / 2,
                writes: QUEUE_WRITES,
                window_bytes: QUEUE_WINDOW_BYTES,
            },
            on_congestion: OnCongestion::Throttle,
            pace: PaceLimits::default(),
            after_split_brain: AfterSplitBrain::Manual,
            compare: false,
            timeout: Duration::from_millis(PEER_TIMEOUT_MS),
        }
    }

    /// True if the peer may lack completed writes or lose them in a power failure, so that writes
    /// since its last flush have to be tracked.
    pub(crate) fn tracks_unflushed(&self) -> bool {
        self.mode == Mode::Async || self.ack == Ack::Memory
    }

    /// True if the peer counts as having a write that it could still lose in a power failure. An
    /// asynchronous peer never does: it shows one moment of the past after a power failure, too,
    /// even when it serves the volume alone.
    pub(crate) fn acks_from_memory(&self) -> bool {
        self.mode == Mode::Sync && self.ack == Ack::Memory
    }

    pub(crate) fn blocks_on_peer_loss(&self) -> bool {
        self.on_peer_loss == OnPeerLoss::Block && self.mode == Mode::Sync
    }
}

impl std::fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerOptions({:?}, {:?}, {:?})", self.mode, self.ack, self.on_peer_loss)
    }
}
