//! Snapshots of a mirrored volume: of the devices below all its replicas, at one point of the order
//! of writes. The devices take them ([`LegSnapshots`]); the mirror decides when.
//!
//! Invariant: if two replicas have a snapshot of one identifier, their content is the same. A
//! snapshot that only one replica has may have any content between the order and its end.
//!
//! The source takes it as follows ([`source`]), for all volumes of an order together:
//!
//! 1. Check that every peer is in sync, could take it, and is not busy. Nothing has changed until
//!    step 3.
//! 2. Hold new writes and flushes, and wait for those in flight. From here on, a synchronous peer
//!    has what this node has; an asynchronous peer has it after its queue.
//! 3. Take the snapshot of this node. If the node stopped serving or the mirror moved meanwhile,
//!    the content may differ, and no peer is asked.
//! 4. Ask the synchronous peers. One that does not answer in time is disconnected before writes
//!    continue: a later session is admitted only after the request has ended there.
//! 5. Put a marker into the queue of each asynchronous peer ([`marker`]). It is sent when the peer
//!    has everything before it, and holds the queue until the target ([`target`]) has answered.
//! 6. Let the writes continue.
//!
//! A crash after step 3 leaves a snapshot on this node only, or on all. A lost answer is resolved
//! by asking the peer for the identifier: the same order then finds both, or one.

pub(crate) mod marker;
pub mod peer;
pub mod source;
pub(crate) mod target;

use flagstone_blockdev::IoFuture;

use crate::wire::peer::PeerRefusal;
use crate::wire::snapshot::{SnapshotId, SnapshotRequest};

/// Answer of a device to a request for snapshots.
pub type SnapshotFuture<T> = IoFuture<Result<T, PeerRefusal>>;

/// Snapshots of the device of a replica. Called from any core.
pub trait LegSnapshots: Send + Sync + 'static {
    /// Carries out an order. A snapshot that exists already is not taken again. The result of an
    /// order is durable; an abandoned order may still be carried out.
    ///
    /// A busy device answers [`PeerRefusal::NotNow`] after the time in the request, because an old
    /// request ends the connection to the source: the snapshot was not taken. A deletion then
    /// continues, and the requests after it wait for it.
    fn order(&self, request: SnapshotRequest) -> SnapshotFuture<()>;

    /// The lowest identifiers above one, in ascending order: at most
    /// [`SNAPSHOTS_PER_PAGE`](crate::limits::SNAPSHOTS_PER_PAGE), fewer if there are no more.
    fn ids(&self, after: SnapshotId) -> SnapshotFuture<Vec<SnapshotId>>;
}
