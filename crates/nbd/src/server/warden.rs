//! Watches one connection: closes it when the peer stalls, and in good order when the server goes
//! down. It sleeps while there is nothing to watch, so idle connections cost no time.

use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::limits::{DRAIN_TIMEOUT, TICK};
use crate::server::connection::Connection;

/// Runs until it has closed the connection, or is aborted with it. Returns true for a stall.
pub(crate) async fn watch(connection: Rc<Connection>, patience: Duration) -> bool {
    let stalled = connection.drain.unless_begun(peer_stalls(&connection, patience)).await.is_some();
    if !stalled {
        let done = connection.budget.wait_for(|| (connection.in_flight() == 0).then_some(()));
        // Beyond the time-out the device or the peer is given up: the process ends anyway.
        let _ = time::timeout(DRAIN_TIMEOUT, done).await;
    }
    connection.stream.shutdown();
    stalled
}

/// Returns when the peer was waited for, all the time and in vain, for as long as `patience`.
async fn peer_stalls(connection: &Connection, patience: Duration) {
    loop {
        connection.warden_parked.set(true);
        connection.warden.wait_for(|| connection.waits_for_peer().then_some(())).await;
        connection.warden_parked.set(false);
        let mut since = time::now();
        let mut seen = connection.progress.get();
        while connection.waits_for_peer() {
            time::sleep(TICK.min(patience)).await;
            let progress = connection.progress.get();
            if progress != seen {
                (seen, since) = (progress, time::now());
            } else if since.elapsed() >= patience {
                return;
            }
        }
    }
}
