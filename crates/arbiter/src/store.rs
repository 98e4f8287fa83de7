//! Store in memory, in place of the outside store in tests and simulations.
//!
//! Like an etcd or an object store, it can lose answers, apply a write long after the client
//! abandoned it, and come back from an older backup. The caller adds delays and partitions, because
//! it has the clock.

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

    /// Restores a backup. Version numbers continue from there, as in etcd.
    pub fn restore(&mut self, backup: &MemoryStore) {
        self.clone_from(backup);
    }

    /// Removes a record, as if it was lost.
    pub fn remove(&mut self, volume: ReplicaId) {
        self.records.remove(&volume);
    }
}
