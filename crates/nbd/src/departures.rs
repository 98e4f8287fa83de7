//! Lets a new connection begin only when connections that have ended are done with the device.
//!
//! A client that lost its connection connects again and sends what was not answered once more. A
//! write of the old connection that the device still carries out could then be done after the new
//! one's, and after writes that came later still, and undo them. So whoever comes waits for those
//! who have left.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::export::Export;

/// The connections of one export that have ended with calls in flight.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    count: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl Departures {
    /// Waits until there is none.
    pub(crate) async fn over(&self) {
        let none = || self.count.load(Ordering::Acquire) == 0;
        poll_fn(|cx| {
            if none() {
                return Poll::Ready(());
            }
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
            // The last may have gone before the waker was in its place.
            if none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A connection that has ended, until its calls have.
#[derive(Debug)]
pub(crate) struct Departure(Arc<Export>);

impl Departure {
    pub(crate) fn begin(export: Arc<Export>) -> Departure {
        export.departures.count.fetch_add(1, Ordering::Relaxed);
        Departure(export)
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let departures = &self.0.departures;
        if departures.count.fetch_sub(1, Ordering::Release) > 1 {
            return;
        }
        let mut waiting = departures.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = std::mem::take(&mut *waiting);
        drop(waiting);
        for waker in woken {
            waker.wake();
        }
    }
}
