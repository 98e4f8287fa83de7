//! JSON documents of mirrors, shared by the server and its clients.
//!
//! Members may be added within a version, so readers ignore unknown members. A state unknown to the
//! reader becomes [`ReportedState::Unknown`].

pub use flagstone_mirror::manage::replica::IntentLogStatistics as IntentLogDocument;
pub use flagstone_mirror::ondisk::superblock::ReplicaRole;
pub use flagstone_mirror::session::bad_ranges::BadRangeCause;
pub use flagstone_mirror::state::outlook::Obstacle;
pub use flagstone_mirror::state::status::DesiredState;
pub use flagstone_mirror::wire::peer::LinkCompression;
pub use flagstone_mirror::{Ack, AfterSplitBrain, Mode, OnPeerLoss};

use flagstone_mirror::named;
use flagstone_mirror::state::status::MirrorState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named! {
    /// State of a mirror: the states of an open mirror with a peer, and the states of a mirror
    /// without a replica. States of an open mirror come first, the worst first: a mirror with
    /// several peers reports the worst of their states.
    #[derive(Default)]
    pub enum ReportedState {
        /// See [`MirrorState::SplitBrain`].
        SplitBrain = "split-brain",
        /// See [`MirrorState::Mismatch`].
        Mismatch = "mismatch",
        /// See [`MirrorState::NoSource`].
        NoSource = "no-source",
        /// See [`MirrorState::Broken`].
        Broken = "broken",
        /// See [`MirrorState::Paused`].
        Paused = "paused",
        /// See [`MirrorState::ResyncPending`].
        ResyncPending = "resync-pending",
        /// See [`MirrorState::Disconnected`].
        Disconnected = "disconnected",
        /// See [`MirrorState::Resynchronizing`].
        Resynchronizing = "resynchronizing",
        /// See [`MirrorState::Target`].
        Target = "target",
        /// See [`MirrorState::Mirroring`].
        Mirroring = "mirroring",
        /// The replica was not created yet.
        NotCreated = "not-created",
        /// There are traces of a replica, but it cannot be found or opened.
        NotFound = "not-found",
        _ => Unknown
    }
}

impl From<MirrorState> for ReportedState {
    fn from(state: MirrorState) -> ReportedState {
        ReportedState::ALL
            .into_iter()
            .find(|other| other.name() == state.name())
            .unwrap_or_default()
    }
}

named! {
    /// Actions on a mirror: the last part of `POST /v1/volumes/{name}/mirror/{action}`.
    pub enum MirrorAction {
        /// Create this node's replica.
        Create = "create",
        /// Stop sending to a peer, and track what it lacks.
        Pause = "pause",
        /// Resume after pause or break.
        Continue = "continue",
        /// Bring a peer up to date now.
        Resync = "resync",
        /// Stop sending to a peer, and do not track what it lacks.
        Break = "break",
        /// Transfer the source role between connected nodes.
        Switchover = "switchover",
        /// Serve here without asking the source.
        Failover = "failover",
        /// Suspend automatic failover, or resume it.
        Maintenance = "maintenance",
        /// Stop the machine of the peer.
        Fence = "fence",
        /// Compare both replicas by checksums.
        Verify = "verify",
        /// End a split brain by choosing the data to keep.
        Resolve = "resolve",
        /// Stop serving here.
        Demote = "demote",
        /// Grow the volume.
        Grow = "grow",
        /// Move the write-intent log to another device.
        MoveLog = "move-log",
        /// Add a node to the mirror.
        AddPeer = "add-peer",
        /// Remove a node from the mirror.
        RemovePeer = "remove-peer",
        /// Remove the replica's metadata; its data stays.
        Delete = "delete",
    }
}

impl MirrorAction {
    /// True if it concerns all volumes of a consistency group.
    pub fn concerns_group(self) -> bool {
        use MirrorAction::*;
        matches!(self, Pause | Continue | Break | Switchover | Failover | Demote)
    }
}

named! {
    /// Progress of `fence_command`.
    pub enum FencingState {
        /// This node has not taken over since it last had a source.
        Idle = "idle",
        /// The command is running.
        Running = "running",
        /// The command has succeeded.
        Succeeded = "succeeded",
        /// It had failed, and the peer answers that it serves no hosts.
        NotNeeded = "not-needed",
        /// It has failed, and is repeated.
        Failed = "failed",
    }
}

named! {
    /// Side whose data survives a split brain.
    pub enum ResolveKeep {
        /// This node's data; the peer discards its own.
        Mine = "mine",
        /// The peer's data; this node discards its own.
        Peer = "peer",
    }
}

/// `GET /v1/volumes/{name}/mirror`, and member `mirror` of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MirrorDocument {
    /// Name of the volume.
    pub volume: String,
    /// Name of this node.
    pub node: String,
    /// The worst state of its peers; [`ReportedState::NotCreated`] or [`ReportedState::NotFound`]
    /// without a replica.
    pub state: ReportedState,
    /// Advice for the operator; empty when no action is needed.
    pub next: Vec<String>,
    /// Peers, in the order of the configuration.
    pub peers: Vec<PeerDocument>,
    /// Consistency group; `null` without one.
    pub group: Option<GroupDocument>,
    /// This node's replica; `null` without one.
    pub replica: Option<ReplicaDocument>,
    /// Automatic failover; `null` if an operator decides.
    #[serde(default)]
    pub failover: Option<FailoverDocument>,
    /// The running verify, or the last one since the server started.
    pub verify: Option<VerifyDocument>,
    /// Progress of reopening the replica after a device failure; `null` otherwise.
    pub reopening: Option<ReopeningDocument>,
    /// Times that the replica's devices were reopened since the server started.
    pub reopens: u64,
}

/// Consistency group of a mirrored volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDocument {
    /// Name.
    pub name: String,
    /// Volumes. The first one decides which node serves the group.
    pub volumes: Vec<String>,
    /// Volumes without an open replica on this node: orders are refused, and none is mirrored.
    pub missing: Vec<String>,
    /// Volumes that the peer refuses, because they belong to another group there, or to none.
    pub refused: Vec<String>,
    /// Every replica on this node is consistent, so all are at one moment.
    pub consistent: bool,
}

/// Automatic failover of a mirror, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailoverDocument {
    /// This node serves hosts when it loses its peer now, or takes over when it loses its source.
    pub would_win: bool,
    /// Reason why it would not; `null` if it would.
    pub obstacle: Option<Obstacle>,
    /// In a consistency group, whose volumes fail over together: the first volume with an obstacle.
    pub obstacle_volume: Option<String>,
    /// On the source: the peer takes over when this node fails now.
    pub peer_would_win: bool,
    /// On the source: why the peer does not; `null` if it does.
    pub peer_obstacle: Option<Obstacle>,
    /// In a consistency group: the first volume with an obstacle on the peer.
    pub peer_obstacle_volume: Option<String>,
    /// Of an asynchronous mirror: `failover_max_lag`, in milliseconds.
    pub max_lag_ms: Option<u64>,
    /// On the source of an asynchronous mirror that took over by itself since its start: the writes
    /// that the former source completed in at most these milliseconds before its last one may be
    /// lost.
    pub lag_at_takeover_ms: Option<u64>,
    /// The operator has suspended automatic failover, as far as this node has seen.
    pub suspended: bool,
    /// Highest revision of the arbiter's record that this node has seen; 0 for none.
    pub revision: u64,
    /// Why the arbiter granted nothing when it was asked last; `null` if it has granted since.
    pub denial: Option<String>,
    /// Progress of `fence_command`; `null` without one.
    pub fencing: Option<FencingState>,
    /// Why `fence_command` has failed; `null` if it has not.
    pub fencing_failure: Option<String>,
}

/// Progress of reopening a replica whose device failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReopeningDocument {
    /// Failure of the device, or of the last attempt to open it.
    pub reason: String,
    /// Times that it was reopened since its devices last worked for ten minutes.
    pub attempts: u32,
    /// Seconds until the next attempt; `null` during an attempt, and when there is none.
    pub next_seconds: Option<f64>,
    /// True if it failed too often, and stays closed until the server restarts.
    pub abandoned: bool,
}

/// This node's replica. Counters start when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaDocument {
    /// Role of the replica.
    pub role: ReplicaRole,
    /// This node serves hosts.
    pub serving: bool,
    /// A source is attached.
    pub has_source: bool,
    /// Name of the attached source; `null` without one, and until this node's own link to it has
    /// completed a handshake.
    pub source: Option<String>,
    /// A resync to it has not completed, so its data is inconsistent.
    pub inconsistent: bool,
    /// True if the source removed this replica from the mirror: it serves no hosts.
    pub removed: bool,
    /// A flush of its device failed before the device was reopened, and no resync has completed
    /// since. Its contents may not be durable.
    pub unverified: bool,
    /// The local device has failed. The volume is served by a peer.
    pub local_device_failed: bool,
    /// A flush of its device or its log device failed, and the device was not reopened since.
    pub flush_failed: bool,
    /// Highest role epoch seen.
    pub role_epoch: u64,
    /// Generation of the local data, in hexadecimal.
    pub generation: String,
    /// UUID of the volume, common to all replicas.
    pub volume_uuid: String,
    /// UUID of this replica.
    pub replica_uuid: String,
    /// Size that hosts see, in bytes.
    pub size_bytes: u64,
    /// Logical block that hosts see, in bytes.
    pub block_bytes: u32,
    /// Size after the current growth, which waits until the new space is zeroed; `null` when the
    /// volume is not growing.
    pub growing_to_bytes: Option<u64>,
    /// Host writes in progress, and reads that wait for one.
    pub in_flight: u64,
    /// Those waiting for the range lock of an overlapping request.
    pub waiting_for_range_lock: u64,
    /// Writes blocked by a lost peer or a change of role.
    pub blocked: u64,
    /// Host writes.
    pub writes: u64,
    /// Total time of their writes to the local device, in microseconds.
    pub local_us: u64,
    /// Ranges that a resync could not copy from here or, on a target, to here. Everything else was
    /// copied.
    pub bad_ranges: Vec<BadRangeDocument>,
    /// Blocks that one leg could not read, and that were rewritten with the other leg's data.
    pub repairs: u64,
    /// Bytes of those blocks.
    pub repaired_bytes: u64,
    /// The write-intent log.
    pub intent_log: IntentLogDocument,
    /// Device of the write-intent log; `null` if it is on the data device.
    pub intent_log_device: Option<String>,
    /// Why no usable log was found when the replica was opened, so that everything counted as out
    /// of sync; `null` if one was.
    pub intent_log_lost: Option<String>,
}

/// A range that a resync could not copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BadRangeDocument {
    /// Offset, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub bytes: u64,
    /// Reason why it could not be copied.
    pub cause: BadRangeCause,
}

/// A peer of a mirror. Members that need an open replica are `null` or 0 without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerDocument {
    /// Name in the configuration.
    pub name: String,
    /// State of the mirror with it.
    pub state: ReportedState,
    /// State that the operator asked for.
    pub desired_state: Option<DesiredState>,
    /// When a write completes.
    pub mode: Option<Mode>,
    /// When the peer counts as having a write.
    pub ack: Option<Ack>,
    /// Policy for its loss.
    pub on_peer_loss: Option<OnPeerLoss>,
    /// Policy for a split brain.
    pub after_split_brain: Option<AfterSplitBrain>,
    /// A resync compares checksums first, and copies only the differences.
    pub compare: bool,
    /// A full resync is running or due.
    pub full_resync: bool,
    /// The last handshake; `null` before the first.
    pub last_handshake: Option<HandshakeDocument>,
    /// Data that the peer lacks, in bytes, rounded up to the bitmap's granularity.
    pub out_of_sync_bytes: u64,
    /// When it was last in sync, in seconds since the Unix epoch; `null` if not since the replica
    /// was opened.
    pub last_in_sync_seconds: Option<u64>,
    /// Asynchronous mode: bytes not yet acknowledged.
    pub lag_bytes: u64,
    /// Asynchronous mode: writes not yet acknowledged.
    pub lag_writes: u64,
    /// Asynchronous mode: age of the oldest unacknowledged write, in microseconds.
    pub lag_us: u64,
    /// Bytes sent by the current resync, or the last one.
    pub copied_bytes: u64,
    /// Bytes that all resyncs since the replica was opened have copied or found equal.
    pub resynced_bytes: u64,
    /// The current resync; `null` without one.
    pub resync: Option<ResyncDocument>,
    /// Total time that writes waited for the peer after the local write completed, in microseconds.
    pub added_us: u64,
    /// Writes that `added_us` counts.
    pub added_writes: u64,
    /// Unexpected disconnects.
    pub disconnects: u64,
    /// Split brains in which this node discarded its data, as configured by `after_split_brain`.
    pub discards: u64,
    /// Upper bound of the data discarded, in bytes.
    pub discarded_bytes: u64,
    /// The link to it.
    pub link: LinkDocument,
}

/// The replication link to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkDocument {
    /// Configured compression.
    pub compression: LinkCompression,
    /// The peer's version does not know that codec, so data is sent uncompressed.
    pub compression_declined: bool,
    /// Bandwidth limit of all volumes mirrored to the peer together; `null` without one.
    pub max_bytes_per_second: Option<u64>,
    /// Data written to the peer since the replica was opened, in bytes.
    pub data_bytes: u64,
    /// Bytes sent for that data; fewer when it is compressed.
    pub sent_bytes: u64,
    /// Link version in use, the highest that both nodes support; `null` before the first handshake,
    /// and when there is none in common.
    pub version: Option<u16>,
    /// Lowest and highest link version of this node.
    pub node_versions: (u16, u16),
    /// Lowest and highest link version of the peer, from the last handshake; `null` before the
    /// first.
    pub peer_versions: Option<(u16, u16)>,
    /// The peer's name has no known address, so the peer is unreachable.
    pub name_unknown: bool,
    /// The peer refuses this node: no `[peer.NAME]` in its configuration has this node's name.
    pub node_refused: bool,
}

/// A peer's identity at the last handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandshakeDocument {
    /// UUID of its replica.
    pub replica_uuid: String,
    /// Role.
    pub role: ReplicaRole,
    /// True if it served hosts.
    pub serving: bool,
    /// Highest role epoch it had seen.
    pub role_epoch: u64,
    /// Generation of its data, in hexadecimal.
    pub generation: String,
    /// True if its data was inconsistent.
    pub inconsistent: bool,
    /// Logical block size, in bytes; 0 if unknown.
    pub block_bytes: u32,
}

/// Progress of a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResyncDocument {
    /// True if it copies the whole volume, not just the out-of-sync blocks.
    pub full: bool,
    /// Bytes copied or found equal.
    pub done_bytes: u64,
    /// Bytes to process in all.
    pub total_bytes: u64,
    /// Bytes of `done_bytes` with equal checksums, which were not sent.
    pub skipped_bytes: u64,
    /// Current rate.
    pub bytes_per_second: u64,
    /// Remaining time at this rate; `null` when the rate is 0.
    pub remaining_seconds: Option<u64>,
}

/// Progress and result of a verify.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyDocument {
    /// Name of the peer compared with.
    pub peer: String,
    /// True while it runs.
    pub running: bool,
    /// Bytes compared so far.
    pub compared_bytes: u64,
    /// Bytes to compare in all.
    pub total_bytes: u64,
    /// Differences are copied from the source when it ends.
    pub repair: bool,
    /// Requested rate limit; `null` for none.
    pub bytes_per_second: Option<u64>,
    /// Bytes that differ; 0 until it has ended.
    pub differing_bytes: u64,
    /// Differing ranges as offset and length in bytes; only the first of them.
    pub differences: Vec<(u64, u64)>,
    /// Number of differing ranges that are not listed.
    pub unlisted: u64,
    /// Reason for an early end.
    pub error: Option<String>,
    /// Start time, in seconds since the Unix epoch.
    pub started_seconds: u64,
}

/// Response to an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionDocument {
    /// Name of the volume.
    pub volume: String,
    /// The action.
    pub action: MirrorAction,
    /// The action changes the mirror's state.
    pub changed: bool,
    /// Nothing was done: the response shows the action's effect.
    pub dry_run: bool,
    /// Outcome of the action, for people.
    pub outcome: String,
    /// Data lost by the action, for people; `null` for none.
    pub data_loss: Option<String>,
    /// The mirror after the action; its current state in a dry run.
    pub mirror: MirrorDocument,
}

impl ReplicaDocument {
    /// The replica was created and never brought up to date: its generation is zero.
    pub fn holds_nothing(&self) -> bool {
        !self.generation.is_empty() && self.generation.bytes().all(|digit| digit == b'0')
    }
}

impl MirrorDocument {
    /// The peer of this name.
    pub fn peer(&self, name: &str) -> Option<&PeerDocument> {
        self.peers.iter().find(|peer| peer.name == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn json_words_are_the_names() {
        for state in ReportedState::ALL {
            assert_eq!(to_value(state).unwrap(), state.name());
            assert_eq!(from_value::<ReportedState>(state.name().into()).unwrap(), state);
        }
        for action in MirrorAction::ALL {
            assert_eq!(to_value(action).unwrap(), action.name());
        }
        for keep in [ResolveKeep::Mine, ResolveKeep::Peer] {
            assert_eq!(to_value(keep).unwrap(), keep.name());
        }
        for state in [DesiredState::Connected, DesiredState::Paused, DesiredState::Detached] {
            assert_eq!(to_value(state).unwrap(), state.name());
        }
        for role in [ReplicaRole::Source, ReplicaRole::Target] {
            assert_eq!(to_value(role).unwrap(), role.name());
        }
        for mode in [Mode::Sync, Mode::Async] {
            assert_eq!(to_value(mode).unwrap(), mode.name());
        }
        for ack in [Ack::Disk, Ack::Memory] {
            assert_eq!(to_value(ack).unwrap(), ack.name());
        }
        for policy in [OnPeerLoss::Degrade, OnPeerLoss::Block] {
            assert_eq!(to_value(policy).unwrap(), policy.name());
        }
        for policy in [AfterSplitBrain::Manual, AfterSplitBrain::KeepServing] {
            assert_eq!(to_value(policy).unwrap(), policy.name());
        }
        for codec in [LinkCompression::None, LinkCompression::Lz4, LinkCompression::Zstd] {
            assert_eq!(to_value(codec).unwrap(), codec.name());
        }
    }

    #[test]
    fn states_of_open_mirrors_keep_their_names() {
        for state in [
            MirrorState::SplitBrain,
            MirrorState::Mismatch,
            MirrorState::NoSource,
            MirrorState::Broken,
            MirrorState::Paused,
            MirrorState::ResyncPending,
            MirrorState::Disconnected,
            MirrorState::Resynchronizing,
            MirrorState::Target,
            MirrorState::Mirroring,
        ] {
            assert_eq!(ReportedState::from(state).name(), state.name());
            assert!(ReportedState::ALL.contains(&state.into()));
        }
    }

    #[test]
    fn unknown_state_is_accepted() {
        let state: ReportedState = from_value(json!("rebalancing")).unwrap();
        assert_eq!(state, ReportedState::Unknown);
    }
}
