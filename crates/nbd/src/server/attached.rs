//! Who is attached to which export, for people who ask.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A client in its transmission phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Name of the export.
    pub export: String,
    /// The client's address; `unix` of a Unix socket.
    pub peer: String,
}

/// The clients of a server, on all cores.
#[derive(Debug, Default)]
pub(super) struct Roll(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    attached: BTreeMap<u64, Attached>,
    next: u64,
}

/// A client's entry; it leaves when dropped.
pub(super) struct Entry<'a> {
    roll: &'a Roll,
    number: u64,
}

impl Roll {
    /// Enters a client.
    pub(super) fn enter(&self, attached: Attached) -> Entry<'_> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = entries.next;
        entries.next += 1;
        entries.attached.insert(number, attached);
        Entry { roll: self, number }
    }

    /// All, in the order in which they came.
    pub(super) fn all(&self) -> Vec<Attached> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.attached.values().cloned().collect()
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut entries = self.roll.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.attached.remove(&self.number);
    }
}
