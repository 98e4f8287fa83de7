//! Connection registry of a server: counts and limits connections, and drains them at shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::net::Stream;
use flagstone_runtime::time;
use parking_lot::Mutex;

/// How often a drain checks for the end of all connections.
pub(crate) const DRAIN_PERIOD: Duration = Duration::from_millis(5);

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

/// Registration of a connection, removed on drop.
pub(crate) struct ConnectionGuard {
    id: u64,
    connections: Arc<Connections>,
}

impl Connections {
    /// Registers `stream`; `None` if there are already `max` connections.
    pub(crate) fn admit(self: &Arc<Self>, stream: &Stream, max: u32) -> Option<ConnectionGuard> {
        let mut open = self.open.lock();
        if open.streams.len() >= max as usize {
            return None;
        }
        open.next += 1;
        let id = open.next;
        open.streams.insert(id, stream.clone());
        Some(ConnectionGuard { id, connections: self.clone() })
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().streams.len()
    }

    fn each(&self, act: impl Fn(&Stream)) {
        self.open.lock().streams.values().for_each(act);
    }

    /// Stops receiving, and waits up to `timeout` for requests in progress and their responses;
    /// then closes the remaining connections. Returns their number.
    pub(crate) async fn drain(&self, timeout: Duration) -> usize {
        self.each(Stream::shutdown_receiving);
        let drained = async {
            while self.count() > 0 {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        if time::timeout(timeout, drained).await.is_ok() {
            return 0;
        }
        let left = self.count();
        self.each(Stream::shutdown);
        left
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.streams.remove(&self.id);
    }
}
