//! Errors of pools: the reason for a refusal, the device, and the way out.

use flagstone_blockdev::IoError;

use crate::ondisk::FormatError;

/// Why a pool cannot be created or opened. Every message names the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A call of a device failed.
    #[error("{device}: {error}")]
    Device {
        /// Name of the device.
        device: String,
        /// Error of the call.
        error: IoError,
    },
    /// The device has no superblock of a pool.
    #[error("{device} is not a device of a pool")]
    NotAPool {
        /// Name of the device.
        device: String,
    },
    /// The superblock cannot be used.
    #[error("{device}: the superblock of the pool cannot be used: {reason}")]
    Superblock {
        /// Name of the device.
        device: String,
        /// Why.
        reason: FormatError,
    },
    /// Metadata behind the superblock cannot be used.
    #[error(
        "{device}: block {block} of the pool cannot be used: {reason}; its metadata is damaged"
    )]
    Metadata {
        /// Name of the device.
        device: String,
        /// Block of the pool.
        block: u64,
        /// Why.
        reason: FormatError,
    },
    /// Two given devices are copies of one device of the pool.
    #[error(
        "{first} and {second} are copies of the same device of a pool; detach the copy before the \
         pool is opened"
    )]
    Duplicate {
        /// Name of one device.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// Two given devices belong to different pools.
    #[error("{first} belongs to pool {first_pool}, {second} to pool {second_pool}")]
    OtherPool {
        /// Name of one device.
        first: String,
        /// Name and id of its pool.
        first_pool: String,
        /// Name of the other device.
        second: String,
        /// Name and id of its pool.
        second_pool: String,
    },
    /// A device of the table was not given.
    #[error(
        "pool {pool}: the device with id {id} is missing; name all {count} devices of the pool"
    )]
    Missing {
        /// Name of the pool.
        pool: String,
        /// Position in the table, from 0.
        index: usize,
        /// Identifier of the missing device.
        id: crate::id::PoolId,
        /// Number of devices in the table.
        count: usize,
    },
    /// No given device has every write of its pair.
    #[error(
        "pool {pool}: no complete copy of a device is present; attach the one with id {id}, which has \
         every write"
    )]
    NoCopy {
        /// Name of the pool.
        pool: String,
        /// Identifier of a device that has every write.
        id: crate::id::PoolId,
    },
    /// A device of a pool with redundancy is absent, and may have been used without the others.
    #[error(
        "pool {pool}: the device with id {id} is absent or cannot be used, and may have later writes \
         than the others: attach it, or consent to the loss of such writes"
    )]
    AbsentLeg {
        /// Name of the pool.
        pool: String,
        /// Identifier of the device.
        id: crate::id::PoolId,
    },
    /// Two devices of a pool with redundancy were used without each other.
    #[error(
        "pool {pool}: {first} and {second} were used without each other, so each has writes that the \
         other lacks; detach the one whose writes are to be lost"
    )]
    UsedApart {
        /// Name of the pool.
        pool: String,
        /// Name of one device.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// A device is smaller than the pool recorded.
    #[error("{device} has {is_bytes} bytes, the pool recorded {was_bytes}: it was cut or replaced")]
    Cut {
        /// Name of the device.
        device: String,
        /// Present size, in bytes.
        is_bytes: u64,
        /// Size in the device table, in bytes.
        was_bytes: u64,
    },
    /// A device lacks updates that the others have.
    #[error(
        "{device} has update {found} of the pool, the other devices have {newest}: it was absent or \
         is an old copy; attach the current device"
    )]
    Outdated {
        /// Name of the device.
        device: String,
        /// Update of the device.
        found: u64,
        /// The newest update.
        newest: u64,
    },
    /// The devices are another pool than expected.
    #[error("{devices} hold pool {found}, not {expected}")]
    Unexpected {
        /// Names of the devices.
        devices: String,
        /// Pool on the devices.
        found: String,
        /// Expected pool.
        expected: String,
    },
    /// All devices are older than a known state of the pool.
    #[error(
        "{devices}: pool {pool} has update {found} there, but had {seen} already: it is an old copy; \
         attach the current device"
    )]
    OldCopy {
        /// Names of the devices.
        devices: String,
        /// Name of the pool.
        pool: String,
        /// Update on the devices.
        found: u64,
        /// Update that the pool had earlier.
        seen: u64,
    },
    /// Devices with the same update describe different pools.
    #[error("{device} contradicts the other devices of pool {pool} at update {update}")]
    Contradiction {
        /// Name of the device.
        device: String,
        /// Name of the pool.
        pool: String,
        /// The update.
        update: u64,
    },
    /// A chunk that was durable is damaged.
    #[error(
        "{device}: chunk {sequence} of the log is damaged, although chunk {later} after it says that \
         it was durable: flushed data would be lost"
    )]
    LostChunk {
        /// Name of the device.
        device: String,
        /// Sequence of the missing chunk.
        sequence: u64,
        /// Sequence of the chunk that proves the loss.
        later: u64,
    },
    /// The log device is missing, and has changes that the other devices lack.
    #[error(
        "pool {pool}: the log device with id {id} is missing ({device}), and has up to {at_most_bytes} bytes \
         of the newest writes that no other device has; attach it, or give these writes up"
    )]
    LogDeviceMissing {
        /// Name of the pool.
        pool: String,
        /// Identifier of the log device.
        id: crate::id::PoolId,
        /// Description of the device found in its place.
        device: String,
        /// Capacity of the log device, in bytes: the most that may be lost.
        at_most_bytes: u64,
        /// Newest update of the superblock.
        update: u64,
        /// True if the named device is blank: it can become the log device if the former one is
        /// nowhere else.
        is_blank: bool,
    },
    /// The log device lacks changes that it had earlier.
    #[error(
        "{device}: the log ends before chunk {sequence}, but was durable up to chunk {reached}: the \
         log device is damaged or an old copy; attach the current device, or give these writes up"
    )]
    TailMissing {
        /// Name of the log device.
        device: String,
        /// Sequence of the first missing chunk.
        sequence: u64,
        /// Sequence up to which the log was durable.
        reached: u64,
    },
    /// There is no room for a new log and its first checkpoint.
    #[error(
        "pool {pool} has {free} free segments, too few for an opening, which begins a new log and writes \
         a checkpoint: its data and its old log use all others"
    )]
    Full {
        /// Name of the pool.
        pool: String,
        /// Free segments.
        free: usize,
    },
    /// The device contains data.
    #[error("{device} is not empty: its first MiB contains data")]
    NotEmpty {
        /// Name of the device.
        device: String,
    },
    /// The devices cannot form a pool.
    #[error("{device} cannot be used for a pool: {reason}")]
    Unsuitable {
        /// Name of the device.
        device: String,
        /// Reason.
        reason: &'static str,
    },
    /// An option is out of range.
    #[error("a pool cannot have these options: {0}")]
    Options(&'static str),
}

/// Why an order on a volume is refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// No volume of this name.
    #[error("pool {pool} has no volume `{name}`")]
    Unknown {
        /// Name of the pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("pool {pool} has a volume `{name}` already")]
    Exists {
        /// Name of the pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// No snapshot of this name.
    #[error("pool {pool} has no snapshot `{name}`")]
    UnknownSnapshot {
        /// Name of the pool.
        pool: String,
        /// The full name.
        name: String,
    },
    /// The snapshot's name is taken, or a volume was named twice.
    #[error("pool {pool} has a snapshot `{name}` already")]
    SnapshotExists {
        /// Name of the pool.
        pool: String,
        /// The full name.
        name: String,
    },
    /// The volume has snapshots.
    #[error(
        "volume `{name}` has {snapshots} snapshots; delete them first, or promote a clone of the \
         youngest, which takes them over"
    )]
    HasSnapshots {
        /// Name of the volume.
        name: String,
        /// Their number.
        snapshots: usize,
    },
    /// The snapshot is the parent of more than one volume or snapshot.
    #[error("{users} continue from snapshot `{snapshot}`; delete all but one of them first")]
    InUse {
        /// Full name of the snapshot.
        snapshot: String,
        /// Names of its children.
        users: String,
    },
    /// Only clones can be promoted.
    #[error("volume `{name}` is no clone, or owns its snapshots already")]
    NotAClone {
        /// Name of the volume.
        name: String,
    },
    /// Snapshots that the clone would own have names that are in use.
    #[error("two snapshots of `{name}` would have the same name; delete one of them first")]
    PromotedNames {
        /// Name of the volume.
        name: String,
    },
    /// The volume lacks changes that were lost with the log device.
    #[error(
        "volume `{name}` lacks writes that were lost with the log device of its pool; give them up to \
         use the volume as it is"
    )]
    Incomplete {
        /// Name of the volume.
        name: String,
    },
    /// The volume is encrypted, and its key was not given since the opening.
    #[error("volume `{name}` is locked: its key is missing")]
    Locked {
        /// Name of the volume.
        name: String,
    },
    /// The volume is encrypted with another key.
    #[error("the key is not the key of volume `{name}`")]
    WrongKey {
        /// Name of the volume.
        name: String,
    },
    /// The volume has no key.
    #[error(
        "volume `{name}` is not encrypted, and cannot become so: send it to a new volume with a key"
    )]
    NotEncrypted {
        /// Name of the volume.
        name: String,
    },
    /// A field is out of range.
    #[error("a volume or snapshot cannot have this {0}")]
    Field(&'static str),
    /// A volume cannot shrink.
    #[error("the volume has {is_bytes} bytes; volumes grow only")]
    Shrink {
        /// Present size, in bytes.
        is_bytes: u64,
    },
    /// The reservation does not fit.
    #[error("the pool has {free_bytes} bytes free, the volume needs {needed_bytes}")]
    NoSpace {
        /// Free space, in bytes.
        free_bytes: u64,
        /// Needed space, in bytes.
        needed_bytes: u64,
    },
    /// The pool has the most volumes and snapshots.
    #[error(
        "the pool has {} volumes and snapshots, the most it can have",
        crate::limits::VOLUMES_MAX
    )]
    TooMany,
    /// The volume table has its largest size.
    #[error(
        "the settings of all volumes and snapshots need more than the {bytes_max} bytes that a pool \
         of this size has for them; delete some, or use fewer settings"
    )]
    VolumeTableFull {
        /// Largest size, in bytes.
        bytes_max: usize,
    },
    /// No segment is free for the order.
    #[error("pool {pool} is full; delete some volumes or snapshots, or discard data, first")]
    Full {
        /// Name of the pool.
        pool: String,
    },
    /// The devices of the pool failed. The next opening decides whether the order took effect.
    #[error("the pool cannot write: {0}")]
    Io(#[from] IoError),
}
