//! Watchdog: closes a connection whose peer stalls, and shuts it down gracefully with the server.
//! It sleeps while the connection does not wait for its peer, so idle connections cost no CPU time.

use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::limits::{DRAIN_TIMEOUT, TICK};
use crate::server::DisconnectReason;
use crate::server::connection::NbdConnection;

/// Runs until it has closed the connection, or is aborted with it.
pub(crate) async fn watch(connection: Rc<NbdConnection>, timeout: Duration) -> DisconnectReason {
    let stalls = async { peer_stalls_or_ends(&connection, timeout).await };
    let stalls_or_replaced = async {
        let outcome = match &connection.replaced {
            Some(replaced) => replaced.unless_begun(stalls).await,
            None => Some(stalls.await),
        };
        outcome.unwrap_or(DisconnectReason::Replaced)
    };
    let ends = async {
        let outcome = connection.lost.unless_begun(stalls_or_replaced).await;
        outcome.unwrap_or(DisconnectReason::Unreachable)
    };
    let verdict = connection.drain.unless_begun(ends).await;
    let verdict = verdict.unwrap_or(DisconnectReason::Drained);
    match verdict {
        DisconnectReason::Drained => {
            let done = connection.progress.wait_for(|| (connection.in_flight() == 0).then_some(()));
            // Give up the device or the peer after the timeout: the process is exiting.
            if time::timeout(DRAIN_TIMEOUT, done).await.is_ok() {
                connection.finish_sending().await;
            }
        }
        DisconnectReason::Unreachable => {
            connection.pace_end().await;
            // Other calls may take longer than clients wait.
            connection.finish_sending().await;
        }
        _ => {}
    }
    // At its limits, the receiver does not notice that the stream has ended.
    connection.stop.begin();
    connection.end_flow();
    if matches!(verdict, DisconnectReason::TimedOut) {
        // Discard the kernel's unsent data too.
        connection.stream.abort();
    } else {
        connection.stream.shutdown();
    }
    verdict
}

/// Returns after waiting for the peer without progress for `timeout`, or when the peer has ended
/// the connection while its receiver waits for room.
async fn peer_stalls_or_ends(connection: &NbdConnection, timeout: Duration) -> DisconnectReason {
    loop {
        let is_needed = || connection.waits_for_peer() || connection.awaits_room();
        connection.watchdog_sleeps.set(true);
        connection.watchdog.wait_for(|| is_needed().then_some(())).await;
        connection.watchdog_sleeps.set(false);
        let mut since = time::now();
        let mut seen = connection.peer_progress();
        while is_needed() {
            time::sleep(TICK.min(timeout)).await;
            let progress = connection.peer_progress();
            if connection.awaits_room() && connection.stream.peer_has_ended() {
                return DisconnectReason::Disconnected;
            }
            if progress != seen || !connection.waits_for_peer() {
                (seen, since) = (progress, time::now());
            } else if since.elapsed() >= timeout {
                return DisconnectReason::TimedOut;
            }
        }
    }
}
