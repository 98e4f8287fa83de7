//! JSON documents of pools, and of orders on pools and their volumes.

use flagstone_mirror::named;
use flagstone_pool::verify::{Damage, DamageKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `GET /v1/pools`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolsDocument {
    /// Pools by name.
    pub pools: Vec<PoolDocument>,
}

named! {
    /// State of a pool.
    #[derive(Default)]
    pub enum PoolStateName {
        /// Volumes are served.
        Open = "open",
        /// It is open, but a write or flush of a device failed: changes fail until it is reopened.
        Failed = "failed",
        /// An order closes it and opens it again, which continues when its devices answer.
        Changing = "changing",
        /// The pool could not be opened; the server tries again.
        Closed = "closed",
        _ => Unknown
    }
}

/// `GET /v1/pools/{name}`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolDocument {
    /// Name of the pool.
    pub name: String,
    /// State.
    pub state: PoolStateName,
    /// Reason why the pool is failed or closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Paths of its devices.
    pub devices: Vec<String>,
    /// Path of its log device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_device: Option<String>,
    /// State of the log device; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PoolLogDocument>,
    /// Its copies; absent without redundancy, and while it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<RedundancyDocument>,
    /// Identifier; absent while it is closed, as are all members below but `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Space for volumes and their maps.
    pub capacity_bytes: u64,
    /// Space in use.
    pub used_bytes: u64,
    /// Sizes of its volumes together.
    #[serde(default)]
    pub provisioned_bytes: u64,
    /// Data of its volumes as of the last checkpoint, before compression. Data that volumes share
    /// counts for each.
    pub data_bytes: u64,
    /// Space of this data after compression and deduplication.
    pub stored_bytes: u64,
    /// Space beyond `used_bytes` that overwritten parts of compressed data hold until they are
    /// cleaned, at most.
    pub held_bytes: u64,
    /// Space reserved for thick volumes beyond what they use.
    pub reserved_bytes: u64,
    /// Used, held and reserved space, in percent of the capacity, rounded down.
    pub used_percent: u64,
    /// The highest of 80, 90, 95 and 100 percent that it has reached; 0 below them.
    pub threshold_percent: u64,
    /// Most memory of its map cache.
    pub map_cache_bytes: u64,
    /// Volumes that are served, by name.
    pub volumes: Vec<String>,
    /// Volumes that are legs of mirrored volumes, which hosts use instead.
    pub legs: Vec<LegDocument>,
    /// Volumes that are not served.
    pub unserved: Vec<UnservedDocument>,
    /// Checkpoints since it was opened.
    pub checkpoints: u64,
    /// Segments that the cleaner emptied since then.
    pub cleaned_segments: u64,
    /// Bytes that it copied out of them.
    pub copied_bytes: u64,
    /// Bytes that sharing equal blocks freed since then.
    #[serde(default)]
    pub deduplicated_bytes: u64,
    /// State of deduplication; absent while no volume has it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup: Option<DedupDocument>,
    /// The device that is being removed, or whose removal failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal: Option<RemovalDocument>,
    /// The running scrub, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubDocument>,
    /// The next step for the operator, if one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Deduplication of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DedupDocument {
    /// Volumes whose equal blocks are shared.
    pub volumes: u64,
    /// Space to scan for equal blocks, in whole segments.
    pub unscanned_bytes: u64,
    /// Memory of the index of fingerprints.
    pub index_bytes: u64,
}

named! {
    /// Redundancy of a pool.
    #[derive(Default)]
    pub enum RedundancyName {
        /// One copy: the loss of a device loses the pool.
        None = "none",
        /// Two copies of everything, on pairs of devices.
        Mirror = "mirror",
        _ => Unknown
    }
}

/// Copies of a pool with redundancy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedundancyDocument {
    /// Kind.
    pub kind: RedundancyName,
    /// Its devices: each pair has the same content.
    pub pairs: Vec<PairDocument>,
    /// Devices that are missing or failed.
    pub missing_devices: u64,
    /// Bytes to copy until every device is in sync, free space included.
    pub rebuild_bytes: u64,
    /// Reads since the opening that one device failed and the other answered.
    pub failed_reads: u64,
    /// Bytes since the opening that no rebuild could read: a scrub finds those in use.
    pub left_out_bytes: u64,
    /// Bytes since the opening that were rewritten from the other device.
    pub repaired_bytes: u64,
}

/// Two devices with the same content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairDocument {
    /// The devices.
    pub devices: Vec<PairDeviceDocument>,
}

named! {
    /// State of a device of a pair.
    #[derive(Default)]
    pub enum PairDeviceStateName {
        /// It has every acknowledged write.
        InSync = "in-sync",
        /// It gets all writes, and earlier data is copied to it.
        Rebuilding = "rebuilding",
        /// It was not found when the pool was opened, or cannot be used.
        Missing = "missing",
        /// A call failed, or did not end in time, while the pool was open: it is not used.
        Failed = "failed",
        _ => Unknown
    }
}

/// A device of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairDeviceDocument {
    /// Path; the identifier of a missing device whose path is not known.
    pub device: String,
    /// Identifier.
    pub id: String,
    /// State.
    pub state: PairDeviceStateName,
    /// Reason why it is missing or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds since 1970 when this server found it in this state.
    pub since_seconds: u64,
    /// Part of it that has the data of the other device.
    pub rebuilt_bytes: u64,
    /// Space of the pool on it.
    pub total_bytes: u64,
    /// Rate of the rebuild.
    pub bytes_per_second: u64,
}

named! {
    /// State of the removal of a device.
    #[derive(Default)]
    pub enum RemovalStateName {
        /// Data moves to the other devices.
        Running = "running",
        /// The removal failed; the device is used as before.
        Failed = "failed",
        _ => Unknown
    }
}

/// A device that is being removed from a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovalDocument {
    /// Path of the device.
    pub device: String,
    /// State.
    pub state: RemovalStateName,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes that are still on it, as of the last checkpoint.
    pub left_bytes: u64,
    /// The most that were on it since the removal began.
    pub total_bytes: u64,
}

named! {
    /// State of a scrub.
    #[derive(Default)]
    pub enum ScrubStateName {
        /// Verification is in progress.
        Running = "running",
        /// Paused; an order continues it.
        Paused = "paused",
        /// The pool failed; it continues by order.
        Failed = "failed",
        /// Everything was verified.
        Ended = "ended",
        _ => Unknown
    }
}

/// A scrub of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubDocument {
    /// State.
    pub state: ScrubStateName,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds since 1970 when it began.
    pub started_seconds: u64,
    /// Seconds since 1970 when it ended or failed.
    pub ended_seconds: Option<u64>,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// Live bytes of the pool.
    pub total_bytes: u64,
    /// Bytes that one device of a pair had wrong, and that were rewritten from the other.
    #[serde(default)]
    pub repaired_bytes: u64,
    /// Damages that were found.
    pub damages: u64,
    /// The first 100 of them.
    pub damage: Vec<DamageDocument>,
}

/// Damage that a scrub or check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamageDocument {
    /// The damage, for people.
    pub text: String,
    /// Path of the device.
    pub device: String,
    /// Offset on the device.
    pub device_offset_bytes: u64,
    /// The volume or snapshot, if one is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Offset in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_bytes: Option<u64>,
    /// Length of the damaged range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len_bytes: Option<u64>,
}

impl From<&Damage> for DamageDocument {
    fn from(damage: &Damage) -> DamageDocument {
        let base = DamageDocument {
            text: damage.to_string(),
            device: damage.device.clone(),
            device_offset_bytes: damage.device_offset_bytes,
            ..DamageDocument::default()
        };
        match &damage.kind {
            DamageKind::Data { volume, offset_bytes, len_bytes }
            | DamageKind::Map { volume, offset_bytes, len_bytes } => DamageDocument {
                volume: Some(volume.clone()),
                offset_bytes: Some(*offset_bytes),
                len_bytes: Some(*len_bytes),
                ..base
            },
            _ => base,
        }
    }
}

/// Log device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolLogDocument {
    /// True while in use. False while missing: the log then goes to the other devices.
    pub present: bool,
    /// Space for the log, in bytes.
    pub size_bytes: u64,
    /// Part of the log that no other device has.
    pub tail_bytes: u64,
    /// Hosts slow down when the tail comes near this limit.
    pub limit_bytes: u64,
}

/// A volume of a pool that is the leg of a mirrored volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LegDocument {
    /// Name.
    pub name: String,
    /// Name of the mirrored volume.
    pub mirrored: String,
}

/// A volume of a pool that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnservedDocument {
    /// Name.
    pub name: String,
    /// Why.
    pub reason: String,
    /// Bytes that a volume durably has of its snapshot whose receive has not ended: an offset for
    /// `volume send --resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
}

/// Place of a volume in a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolPlaceDocument {
    /// Name of the pool.
    pub name: String,
    /// True if the size is reserved.
    pub thick: bool,
    /// Data as of the last checkpoint, before compression.
    pub used_bytes: u64,
    /// Space of this data after compression and deduplication. Data that it shares with snapshots
    /// counts too; each of several equal blocks has its part of their space.
    pub stored_bytes: u64,
    /// The snapshot of another volume of which it is a clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Encryption at rest; `null` if it is not encrypted.
    #[serde(default)]
    pub encryption: Option<EncryptionDocument>,
    /// Settings: keys of a volume's table in a configuration, `compression`, `dedup`,
    /// `dedup_domain` and `encryption_key_file`.
    pub settings: Map<String, Value>,
}

/// Encryption of a volume at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EncryptionDocument {
    /// `AES-256-XTS`.
    pub algorithm: String,
    /// Path of the file with the operator's key.
    pub key_file: Option<String>,
    /// Next step while the key is missing; `null` while the volume can be used.
    pub locked: Option<String>,
}

named! {
    /// Order on a pool.
    pub enum PoolAction {
        /// Creates it on devices.
        Create = "create",
        /// Opens an existing pool on devices.
        Import = "import",
        /// Closes it after a failure, and opens it again.
        Reopen = "reopen",
        /// Adds a device while it is used.
        Grow = "grow",
        /// Moves everything from a device to the others and removes it, in the background.
        RemoveDevice = "remove-device",
        /// Replaces a device of a pair, and rebuilds the new one in the background.
        ReplaceDevice = "replace-device",
        /// Verifies every live block, in the background.
        Scrub = "scrub",
        /// Removes it with its volumes.
        Destroy = "destroy",
        /// Changes the memory of its map cache.
        Set = "set",
        /// Gives it another log device, or none.
        SetLog = "set-log",
        /// Gives up writes that only a lost log device had.
        GiveUpTail = "give-up-tail",
    }
}

named! {
    /// Order on a volume of a pool.
    pub enum VolumeAction {
        /// Creates it.
        Create = "create",
        /// Grows it.
        Resize = "resize",
        /// Changes its settings.
        Set = "set",
        /// Gives it another name.
        Rename = "rename",
        /// Creates it as a clone of a snapshot.
        Clone = "clone",
        /// Lets it own the snapshots from which it continues.
        Promote = "promote",
        /// Deletes it with its data.
        Delete = "delete",
    }
}

named! {
    /// Order on a snapshot.
    pub enum SnapshotAction {
        /// Takes it.
        Create = "create",
        /// Gives its volume its content.
        Rollback = "rollback",
        /// Deletes it.
        Delete = "delete",
    }
}

/// `GET /v1/snapshots`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotsDocument {
    /// Snapshots of all open pools, by pool, in the order of their creation.
    pub snapshots: Vec<SnapshotDocument>,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotDocument {
    /// `VOLUME@SNAPSHOT`.
    pub name: String,
    /// Pool that has it.
    pub pool: String,
    /// The same for snapshots that were taken together.
    pub id: String,
    /// UUID of the volume: another one if it is deleted and created anew.
    #[serde(default)]
    pub volume_id: String,
    /// UUID of the pool.
    #[serde(default)]
    pub pool_id: String,
    /// Seconds since 1970 when it was taken.
    pub created_seconds: u64,
    /// Size of the volume then.
    pub size_bytes: u64,
    /// Space of the blocks that it has, most of which others may have too.
    pub referenced_bytes: u64,
    /// Its data is encrypted at rest. The stream of it is not.
    #[serde(default)]
    pub encrypted: bool,
    /// Volumes that are clones of it.
    pub clones: Vec<String>,
    /// Mirrored volume of whose leg it is a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirrored: Option<String>,
    /// At the source of that volume: its peers, and whether they have the snapshot of this `id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<SnapshotPeerDocument>,
}

/// A peer, in a snapshot of a mirrored volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotPeerDocument {
    /// Name of the peer.
    pub name: String,
    /// Whether it has the snapshot.
    pub state: SnapshotPeerState,
}

named! {
    /// Whether a peer has a snapshot of its source.
    #[derive(Default)]
    pub enum SnapshotPeerState {
        /// It has the same content.
        Present = "present",
        /// It takes it when it has the writes queued before it.
        Waiting = "waiting",
        /// It has none.
        Missing = "missing",
        /// It does not answer.
        Silent = "silent",
        _ => Unknown
    }
}

/// `POST /v1/volumes/{name}/receive`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiveDocument {
    /// Name of the volume.
    pub name: String,
    /// Offset up to which it has the snapshot. The next frame begins there or, in a stream that
    /// continues, earlier.
    pub position_bytes: u64,
    /// Size of the volume.
    pub size_bytes: u64,
    /// The snapshot was taken, and the volume is served.
    pub complete: bool,
    /// The effect, for people.
    pub outcome: String,
}

/// `GET /v1/snapshots/{name}/diff/{to}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffDocument {
    /// Ranges that differ, ascending: at most 4,097.
    pub ranges: Vec<RangeDocument>,
    /// Offset from which to ask for the rest; `null` at the end.
    pub next_offset_bytes: Option<u64>,
}

/// A range of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RangeDocument {
    /// First byte.
    pub offset_bytes: u64,
    /// Length, in bytes.
    pub len_bytes: u64,
}

/// Result of an order on a pool, on a volume of one, or on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderDocument {
    /// Name of the pool or volume.
    pub name: String,
    /// Something changed, or would change.
    pub changed: bool,
    /// Nothing was done.
    pub dry_run: bool,
    /// The effect, for people.
    pub outcome: String,
    /// The data that is lost; `null` if none is.
    pub data_loss: Option<String>,
    /// The next step for the operator; `null` without one.
    pub next: Option<String>,
}
