//! Arbiter: the third vote of a mirror that fails over without an operator.
//!
//! An outside store (etcd, an object store) holds one small [`ArbiterRecord`] per volume: the
//! replicas that have every acknowledged write, and the replica that serves. While two nodes see
//! each other, they need no arbiter. A node that wants to run degraded, without its peer, first
//! removes the peer from the record, with one compare-and-set ([`race`]). Two nodes that part do
//! the same, and one of them wins. No lease is held, so a store that is down costs nothing while
//! the nodes see each other.
//!
//! Invariants:
//! - a node that the record does not list as in sync is never granted anything;
//! - a grant follows a successful compare-and-set in the same race. A record with the right content
//!   is not enough, because a delayed write of the peer could still replace it;
//! - the revision of the record grows with each write, and the epoch never decreases;
//! - a missing record, or one older than the node has seen, grants nothing: the store may have been
//!   restored from a backup.
//!
//! This crate performs no I/O. [`Arbiter`] is the interface to the store, and
//! [`store::MemoryStore`] is one for simulations, with lost answers and restored backups.

pub mod epoch;
pub mod limits;
pub mod race;
pub mod record;
pub mod store;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crc_fast::CrcAlgorithm;

pub use record::{ArbiterRecord, RecordStamp, ReplicaId};

/// Version of a stored record in the store's own terms: a revision number, or an entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVersion(Arc<str>);

impl StoredVersion {
    /// Version from the store's text; `None` if that is empty or longer than
    /// [`limits::VERSION_BYTES_MAX`].
    pub fn new(text: &str) -> Option<StoredVersion> {
        let sound = !text.is_empty() && text.len() <= limits::VERSION_BYTES_MAX;
        sound.then(|| StoredVersion(text.into()))
    }

    /// The store's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A stored record, not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Version, for the next compare-and-set.
    pub version: StoredVersion,
    /// Content. Not trusted until [`ArbiterRecord::decode`] has accepted it.
    pub bytes: Vec<u8>,
}

/// Identity of a store, derived from its configuration. Revisions of one store mean nothing at
/// another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreId(pub u64);

impl StoreId {
    /// No store.
    pub const NONE: StoreId = StoreId(0);

    /// CRC-64/NVME of the name of the store: its kind, its address, and the prefix of the keys.
    pub fn of(name: &str) -> StoreId {
        StoreId(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, name.as_bytes()).max(1))
    }
}

/// The store gave no answer. A write may have taken effect, or may take effect later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// Result of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record is stored.
    Yes,
    /// Another record is stored than expected. Nothing was changed.
    Conflict,
}

/// Future of a call to the store.
pub type ArbiterFuture<T> = Pin<Box<dyn Future<Output = Result<T, NoAnswer>>>>;

/// An outside store with compare-and-set. Calls are linearizable. A call that takes longer than
/// [`limits::CALL_MS`] ends with [`NoAnswer`]; the caller enforces the same bound.
pub trait Arbiter: Send + Sync + 'static {
    /// Identity of the store.
    fn store(&self) -> StoreId;

    /// Reads the record of a volume; `None` if there is none.
    fn read(&self, volume: ReplicaId) -> ArbiterFuture<Option<Stored>>;

    /// Stores `bytes` if `expected` is still stored, with the same version and content; `None`
    /// means that there is no record. Comparing only the version would not suffice: a store that
    /// was restored from a backup may reuse version numbers.
    fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> ArbiterFuture<Written>;

    /// Tests whether the store would accept a write of `bytes` by this node, without changing
    /// anything: by a compare-and-set that cannot succeed.
    fn probe_write(&self, volume: ReplicaId, bytes: Vec<u8>) -> ArbiterFuture<()>;
}

/// An arbiter that several mirrors share.
pub type SharedArbiter = Arc<dyn Arbiter>;
