//! The connections of a server: counted, bounded, and drained at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flagstone_runtime::net::Stream;
use flagstone_runtime::time;

/// How often a drain looks whether all connections have ended.
const DRAIN_PERIOD: Duration = Duration::from_millis(5);

/// All connections of one protocol, on all cores.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    streams: BTreeMap<u64, Stream>,
    next: u64,
}

/// A connection's place; it leaves when dropped.
pub(crate) struct Place {
    id: u64,
    connections: Arc<Connections>,
}

impl Connections {
    /// A place for `stream`, unless there are `max` already.
    pub(crate) fn admit(self: &Arc<Self>, stream: &Stream, max: u32) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.streams.len() >= max as usize {
            return None;
        }
        open.next += 1;
        let id = open.next;
        open.streams.insert(id, stream.clone());
        Some(Place { id, connections: self.clone() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).streams.len()
    }

    fn each(&self, act: impl Fn(&Stream)) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).streams.values().for_each(act);
    }

    /// Receives nothing more, lets requests in progress end and their answers go out, for at most
    /// `patience`; then closes what is left. Gives how many had to be closed.
    pub(crate) async fn drain(&self, patience: Duration) -> usize {
        self.each(Stream::shutdown_receiving);
        let drained = async {
            while self.count() > 0 {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        if time::timeout(patience, drained).await.is_ok() {
            return 0;
        }
        let left = self.count();
        self.each(Stream::shutdown);
        left
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.streams.remove(&self.id);
    }
}
