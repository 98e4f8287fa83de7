//! Watches one connection: closes it when the peer stalls, and in good order when the server goes
//! down. It sleeps while there is nothing to watch, so idle connections cost no time.

use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::limits::{DRAIN_TIMEOUT, TICK};
use crate::server::connection::Connection;

/// Why a warden closed its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The peer neither took nor sent what was due.
    Stalled,
    /// Another connection of the client is in charge.
    Replaced,
    /// The server goes down.
    Drained,
}

/// Runs until it has closed the connection, or is aborted with it.
pub(crate) async fn watch(connection: Rc<Connection>, patience: Duration) -> Verdict {
    let stalls = async {
        peer_stalls(&connection, patience).await;
        Verdict::Stalled
    };
    let stalls_or_replaced = async {
        let outcome = match &connection.replaced {
            Some(replaced) => replaced.unless_begun(stalls).await,
            None => Some(stalls.await),
        };
        outcome.unwrap_or(Verdict::Replaced)
    };
    let verdict = connection.drain.unless_begun(stalls_or_replaced).await;
    if verdict.is_none() {
        let done = connection.budget.wait_for(|| (connection.in_flight() == 0).then_some(()));
        // Beyond the time-out the device or the peer is given up: the process ends anyway.
        let _ = time::timeout(DRAIN_TIMEOUT, done).await;
    }
    let verdict = verdict.unwrap_or(Verdict::Drained);
    match verdict {
        // What it does not take shall not wait for it in the kernel either.
        Verdict::Stalled => connection.stream.abort(),
        Verdict::Replaced | Verdict::Drained => connection.stream.shutdown(),
    }
    verdict
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
