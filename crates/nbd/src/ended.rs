//! Ended connections of an export whose device calls are still in flight.
//!
//! A client that lost its connection reconnects and resends unanswered requests. A write of the old
//! connection that is still in flight to the device could complete after newer writes and undo
//! them. Therefore a new connection starts only after all ended connections have finished.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::export::Export;

/// Connections of one export that ended with calls in flight.
#[derive(Debug, Default)]
pub(crate) struct EndedConnections {
    count: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl EndedConnections {
    /// Waits until there is none.
    pub(crate) async fn finished(&self) {
        let none = || self.count.load(Ordering::Acquire) == 0;
        poll_fn(|cx| {
            if none() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(cx.waker().clone());
            // The last one may have finished before the waker was stored.
            if none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Ended connection, until its calls have completed.
#[derive(Debug)]
pub(crate) struct EndedConnection(Arc<Export>);

impl EndedConnection {
    pub(crate) fn begin(export: Arc<Export>) -> EndedConnection {
        export.ended_connections.count.fetch_add(1, Ordering::Relaxed);
        EndedConnection(export)
    }
}

impl Drop for EndedConnection {
    fn drop(&mut self) {
        let ended_connections = &self.0.ended_connections;
        if ended_connections.count.fetch_sub(1, Ordering::Release) > 1 {
            return;
        }
        let mut waiting = ended_connections.waiting.lock();
        let woken = std::mem::take(&mut *waiting);
        drop(waiting);
        for waker in woken {
            waker.wake();
        }
    }
}
