//! Attached clients per export, for operators.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::stop::ConnectionStop;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedClient {
    pub export: String,
    /// Client address; `unix` for a Unix socket.
    pub peer: String,
}

#[derive(Debug, Default)]
pub(super) struct ClientRegistry(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    attached: BTreeMap<u64, (AttachedClient, ConnectionStop)>,
    next: u64,
}

/// Entry of a client, removed when dropped.
pub(super) struct Entry<'a> {
    registry: &'a ClientRegistry,
    number: u64,
}

impl ClientRegistry {
    pub(super) fn enter(&self, attached: AttachedClient, stop: ConnectionStop) -> Entry<'_> {
        let mut entries = self.0.lock();
        let number = entries.next;
        entries.next += 1;
        entries.attached.insert(number, (attached, stop));
        Entry { registry: self, number }
    }

    pub(super) fn all(&self) -> Vec<AttachedClient> {
        let entries = self.0.lock();
        entries.attached.values().map(|(attached, _)| attached.clone()).collect()
    }

    /// True while a client of an export has ended its connection, which has requests that were not
    /// executed. The connection may not have seen the end.
    pub(super) fn has_ended_client(&self, export: &str) -> bool {
        let entries = self.0.lock();
        let mut of_export = entries.attached.values().filter(|(one, _)| one.export == export);
        of_export.any(|(_, stop)| stop.stream().peer_has_ended())
    }

    /// Closes the connections to an export.
    pub(super) fn disconnect(&self, export: &str) {
        let entries = self.0.lock();
        let of_export = entries.attached.values().filter(|(one, _)| one.export == export);
        of_export.for_each(|(_, stop)| stop.shutdown());
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut entries = self.registry.0.lock();
        entries.attached.remove(&self.number);
    }
}
