//! Pools: volumes that share devices, on one log with a copy-on-write map.
//!
//! `docs/pool-format.md` has the byte maps, the invariants and the recovery argument. Suggested
//! reading order:
//!
//! 1. [`ondisk`]: superblock, chunk, map page and volume table, as pure functions of bytes.
//! 2. [`log`]: the log's position, the chunks in flight, and the writer that gathers the writes of
//!    a core into chunks.
//! 3. [`map`]: recent changes in memory, and the tree on the devices below them.
//! 4. `checkpoint`: merges recent changes into the tree, and frees segments. `cleaner`: copies live
//!    blocks out of old segments.
//! 5. `recover`: builds the state of a pool from its devices. [`manage`]: creation, opening,
//!    volumes and orders. [`verify`]: scrub of an open pool, check of a closed one. [`stream`]:
//!    snapshots sent to another pool.

mod checkpoint;
mod cleaner;
pub mod compress;
pub mod crypt;
mod dedup;
pub mod error;
pub mod id;
pub mod limits;
pub mod log;
pub mod manage;
pub mod map;
pub mod ondisk;
mod pairs;
mod read_retries;
mod recover;
mod storage;
pub mod stream;
pub mod verify;
mod work_slices;

pub use compress::{COMPRESSION_PROPERTY, Compression};
pub use crypt::key::WrappingKey;
pub use dedup::{DEDUP_DOMAIN_PROPERTY, DEDUP_PROPERTY, Dedup, DedupStatus, dedup_domain};
pub use error::{PoolError, VolumeError};
pub use id::PoolId;
pub use manage::create::{CreateOptions, Redundancy};
pub use manage::device_set::DeviceSet;
pub use manage::identity::{ExaminedPool, ExpectedPool, PoolIdentity};
pub use manage::leg::{FormerLeg, StaleLeg};
pub use manage::leg_rollback::{LegRollback, LegRollbackEnd};
pub use manage::log_device::LogDeviceStatus;
pub use manage::open::{AbsentLegs, LostTail, OpenOptions};
pub use manage::pool::{Pool, PoolStatus, RedundancyStatus};
pub use manage::snapshot::{Diff, PreparedSnapshot, SnapshotInfo};
pub use manage::volume::{PoolVolume, VolumeEncryption, VolumeInfo, VolumeOptions};
pub use ondisk::legs::LegState;
pub use ondisk::volume_table::{LEG_PROPERTIES, LEG_PROPERTY};
pub use pairs::LegInfo;
pub use storage::NamedDevice;
