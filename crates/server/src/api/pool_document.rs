//! JSON documents of pools, and of orders on pools and their volumes.

use flagstone_mirror::named;
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
        /// Its volumes are served.
        Open = "open",
        /// It is open, but a write or flush of a device failed: changes fail until it is reopened.
        Failed = "failed",
        /// It could not be opened, and is retried.
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
    /// Why it is failed or closed.
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
    /// Identifier; absent while it is closed, as are all members below but `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Space for volumes and their maps.
    pub capacity_bytes: u64,
    /// Space in use.
    pub used_bytes: u64,
    /// Space reserved for thick volumes beyond what they use.
    pub reserved_bytes: u64,
    /// Used and reserved space, in percent of the capacity, rounded down.
    pub used_percent: u64,
    /// The highest of 80, 90, 95 and 100 percent that it has reached; 0 below them.
    pub threshold_percent: u64,
    /// Volumes that are served, by name.
    pub volumes: Vec<String>,
    /// Volumes that are not served.
    pub unserved: Vec<UnservedDocument>,
    /// Checkpoints since it was opened.
    pub checkpoints: u64,
    /// Segments that the cleaner emptied since then.
    pub cleaned_segments: u64,
    /// Bytes that it copied out of them.
    pub copied_bytes: u64,
    /// The next step for the operator, if one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Log device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolLogDocument {
    /// It is in use. False while it is missing: then the log goes to the other devices.
    pub present: bool,
    /// Its space for the log.
    pub size_bytes: u64,
    /// Part of the log that no other device has.
    pub tail_bytes: u64,
    /// Hosts slow down when the tail comes near this limit.
    pub limit_bytes: u64,
}

/// A volume of a pool that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnservedDocument {
    /// Name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Place of a volume in a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolPlaceDocument {
    /// Name of the pool.
    pub name: String,
    /// Its size is reserved.
    pub thick: bool,
    /// Space in use as of the last checkpoint.
    pub used_bytes: u64,
    /// Its settings: keys of a volume's table in a configuration.
    pub settings: Map<String, Value>,
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
        /// Removes it with its volumes.
        Destroy = "destroy",
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
        /// Deletes it with its data.
        Delete = "delete",
    }
}

/// Result of an order on a pool or on a volume of one.
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
