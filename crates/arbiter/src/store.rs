//! Store in memory: a twin of the outside store for tests and simulations.
//!
//! It does what an etcd or an object store can do to its clients: lose answers, apply a write long
//! after the client gave it up, and come back from an older backup. Delays and partitions are up to
//! the caller, which has the clock.

use std::collections::BTreeMap;

use crate::record::ReplicaId;
use crate::{Stored, StoredVersion, Written};

/// Storage of one record per mirror, which the arbiter trusts.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    records: BTreeMap<ReplicaId, Stored>,
    revision: u64,
}

impl MemoryStore {
    /// The stored record.
    pub fn read(&self, volume: ReplicaId) -> Option<Stored> {
        self.records.get(&volume).cloned()
    }

    /// A compare-and-set.
    pub fn write(
        &mut self,
        volume: ReplicaId,
        expected: Option<&Stored>,
        bytes: Vec<u8>,
    ) -> Written {
        if self.records.get(&volume) != expected {
            return Written::Conflict;
        }
        self.revision += 1;
        let version = StoredVersion(self.revision.to_string().into());
        self.records.insert(volume, Stored { version, bytes });
        Written::Yes
    }

    /// Restores a backup. Version numbers are counted again from there, as those of etcd.
    pub fn restore(&mut self, backup: &MemoryStore) {
        self.clone_from(backup);
    }

    /// Loses a record.
    pub fn remove(&mut self, volume: ReplicaId) {
        self.records.remove(&volume);
    }
}
