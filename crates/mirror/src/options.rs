//! Options of a mirror, as set by its configuration.

use serde::{Deserialize, Serialize};

use crate::limits::{QUEUE_BYTES, QUEUE_WINDOW_BYTES, QUEUE_WRITES};
use crate::pace::PaceLimits;
use crate::peer::SharedConnector;
use crate::queue::QueueLimits;

/// When a write completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// When both legs have it.
    #[default]
    Sync,
    /// When the local leg has it.
    Async,
}

impl Mode {
    /// All values, the default first.
    pub const ALL: [Mode; 2] = [Mode::Sync, Mode::Async];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::Async => "async",
        }
    }
}

/// When the peer counts as having a write, in synchronous mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ack {
    /// When it is durable there.
    #[default]
    Disk,
    /// When it is in the peer's memory. It becomes durable at the next flush.
    Memory,
}

impl Ack {
    /// All values, the default first.
    pub const ALL: [Ack; 2] = [Ack::Disk, Ack::Memory];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            Ack::Disk => "disk",
            Ack::Memory => "memory",
        }
    }
}

/// What happens to writes when a peer is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnPeerLoss {
    /// Durably record the peer as out of date, and continue.
    #[default]
    Degrade,
    /// Block writes until the peer is back and up to date, or the operator breaks or pauses the
    /// mirror.
    Block,
}

impl OnPeerLoss {
    /// All values, the default first.
    pub const ALL: [OnPeerLoss; 2] = [OnPeerLoss::Degrade, OnPeerLoss::Block];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            OnPeerLoss::Degrade => "degrade",
            OnPeerLoss::Block => "block",
        }
    }
}

/// What happens in a split brain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterSplitBrain {
    /// The operator decides.
    #[default]
    Manual,
    /// Discard the local data if the peer serves hosts and this side does not. The operator decides
    /// in all other cases.
    KeepServing,
}

impl AfterSplitBrain {
    /// All values, the default first.
    pub const ALL: [AfterSplitBrain; 2] = [AfterSplitBrain::Manual, AfterSplitBrain::KeepServing];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            AfterSplitBrain::Manual => "manual",
            AfterSplitBrain::KeepServing => "keep-serving",
        }
    }
}

/// What happens when the queue of an asynchronous peer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCongestion {
    /// Throttle: writes wait, so hosts become as slow as the link.
    #[default]
    Throttle,
    /// Detach the peer: only record what it lacks, and bring it up to date later.
    Detach,
}

impl OnCongestion {
    /// All values, the default first.
    pub const ALL: [OnCongestion; 2] = [OnCongestion::Throttle, OnCongestion::Detach];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            OnCongestion::Throttle => "throttle",
            OnCongestion::Detach => "detach",
        }
    }
}

/// What the write-intent log writes before the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntentLogMode {
    /// A record of all active regions whenever the set changes. Writes to active regions need no
    /// record.
    #[default]
    ActiveRegions,
    /// A separate record for each write, one after the other, as a log without active regions
    /// needs. For measurements only; it is no safer.
    EveryWrite,
}

impl IntentLogMode {
    /// All values, the default first.
    pub const ALL: [IntentLogMode; 2] = [IntentLogMode::ActiveRegions, IntentLogMode::EveryWrite];

    /// Name in the configuration and in status documents.
    pub const fn name(self) -> &'static str {
        match self {
            IntentLogMode::ActiveRegions => "active-regions",
            IntentLogMode::EveryWrite => "every-write",
        }
    }
}

/// Options of one peer.
#[derive(Clone)]
pub struct PeerOptions {
    /// Makes connections to it.
    pub connector: SharedConnector,
    /// When a write completes.
    pub mode: Mode,
    /// When the peer counts as having a write.
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
        }
    }

    /// True if the peer may lack completed writes or lose them in a power failure, so that writes
    /// since its last flush have to be tracked.
    pub(crate) fn tracks_unflushed(&self) -> bool {
        self.mode == Mode::Async || self.ack == Ack::Memory
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
