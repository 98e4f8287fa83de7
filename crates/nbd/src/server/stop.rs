//! Stop of a connection from any core: its key was withdrawn, its export is removed, or its peer
//! stalls.
//!
//! Invariants: once it has begun, no request starts, though the kernel may have received more. A
//! connection in transmission counts among the ended ones of its export from before its client can
//! see the end, until its device calls have ended.

use std::sync::Arc;

use flagstone_runtime::net::Stream;
use flagstone_transport::WaitGroupPart;
use parking_lot::Mutex;

use super::drain::Drain;
use crate::export::Export;

/// Clones stop the same connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionStop(Arc<State>);

#[derive(Debug)]
struct State {
    stream: Stream,
    signal: Drain,
    phase: Mutex<Phase>,
}

#[derive(Debug)]
enum Phase {
    Negotiation,
    Transmission(Arc<Export>),
    Ended {
        _part: WaitGroupPart,
    },
    /// All device calls have ended.
    Released,
}

impl ConnectionStop {
    pub(crate) fn new(stream: Stream) -> ConnectionStop {
        let phase = Mutex::new(Phase::Negotiation);
        ConnectionStop(Arc::new(State { stream, signal: Drain::new(), phase }))
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.0.stream
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.signal.has_begun()
    }

    /// Runs `future`, and drops it if the stop begins first.
    pub(crate) async fn unless_begun<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.0.signal.unless_begun(future).await
    }

    /// The negotiation has ended with `export`.
    pub(crate) fn begin_transmission(&self, export: &Arc<Export>) {
        *self.0.phase.lock() = Phase::Transmission(export.clone());
    }

    /// Counts a connection in transmission among the ended ones of its export, until
    /// [`ConnectionStop::release`].
    pub(crate) fn part_as_ended(&self) {
        let mut phase = self.0.phase.lock();
        if let Phase::Transmission(export) = &*phase {
            let part = export.ended_connections.part();
            *phase = Phase::Ended { _part: part };
        }
    }

    /// All device calls have ended.
    pub(crate) fn release(&self) {
        let phase = std::mem::replace(&mut *self.0.phase.lock(), Phase::Released);
        drop(phase);
    }

    /// No request starts any more. The caller ends the stream.
    pub(crate) fn begin(&self) {
        self.part_as_ended();
        self.0.signal.begin();
    }

    /// Begins the stop, and ends the stream.
    pub(crate) fn shutdown(&self) {
        self.begin();
        self.0.stream.shutdown();
    }
}
