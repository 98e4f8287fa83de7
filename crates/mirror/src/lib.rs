//! Mirroring: replicas of a volume, and the write-intent log that records where they may differ.
//!
//! Suggested reading order:
//!
//! 1. [`ondisk`]: superblock, log header, bitmap pages, and their layout. `docs/mirror-format.md`
//!    has the byte maps.
//! 2. [`agree`]: generation histories, and the decision after a handshake whose data is kept. Pure.
//! 3. [`intent_log`]: the log's contents in memory, its storage, its writer and its recovery.
//! 4. [`manage`]: creating, opening and resizing replicas; roles and the operator's commands.
//! 5. [`mirror`] and [`io`]: a host's write from admission to completion on both legs.
//! 6. [`group`]: volumes that share one order of writes and change their role together.
//! 7. [`failover`]: the arbiter decides which node serves when the nodes lose contact.
//! 8. [`session`]: connecting to a peer, resync, verify, and the target's side. [`wire`]: requests.
//! 9. [`snapshot`]: snapshots of all legs at one point of the order of writes.

pub mod agree;
pub mod failover;
pub mod group;
pub mod id;
pub mod intent_log;
pub mod io;
pub mod join;
pub mod limits;
pub mod manage;
pub mod mirror;
mod named;
pub mod ondisk;
pub mod options;
pub mod reservations;
pub mod session;
pub mod snapshot;
pub mod state;
pub mod wire;

pub use agree::versions::{LinkVersion, LinkVersions, NoCommonVersion};
pub use failover::{
    FailoverOptions, FailoverStatus, Fence, FenceError, FenceFuture, Fencing, LeaveError,
    MaintenanceError, SharedFence,
};
pub use group::{ConsistencyGroup, Membership};
pub use io::deliver::Undelivered;
pub use manage::command::CommandError;
pub use manage::roles::RoleError;
pub use manage::transfer::{PeerChange, ReplicaTransfer};
pub use mirror::Mirror;
pub use options::{
    Ack, AfterSplitBrain, FailoverMode, IntentLogMode, Mode, OnCongestion, OnPeerLoss, PeerOptions,
};
pub use reservations::{ReservationObstacle, ReservationRecords};
pub use snapshot::{LegSnapshots, SnapshotFuture};
