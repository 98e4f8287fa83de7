//! At most one connection of a link carries out requests at a time (see [`crate::wire::link`]).
//!
//! A connection that takes a link over tells the earlier one to stop, and waits until all that it
//! began is done. The earlier one looks before it begins anything, so nothing comes after.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::export::Export;
use crate::server::Drain;
use crate::wire::link::LinkId;

/// The links of one export, on all cores.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Tells the connection that holds the link to stop.
    holders: BTreeMap<LinkId, Drain>,
    waiting: Vec<Waker>,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's hold of its link, until its requests are done.
#[derive(Debug)]
pub(crate) struct Hold {
    export: Arc<Export>,
    link: LinkId,
    /// Begins when another connection wants the link.
    pub(crate) stop: Drain,
}

impl Hold {
    /// Takes a link over, waiting for the end of the one who holds it.
    pub(crate) async fn take(export: Arc<Export>, link: LinkId) -> Hold {
        let stop = Drain::new();
        poll_fn(|cx| {
            let mut state = export.links.lock();
            let Some(holder) = state.holders.get(&link).cloned() else {
                state.holders.insert(link, stop.clone());
                return Poll::Ready(());
            };
            state.waiting.push(cx.waker().clone());
            drop(state);
            holder.begin();
            Poll::Pending
        })
        .await;
        Hold { export, link, stop }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.export.links.lock();
        state.holders.remove(&self.link);
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in woken {
            waker.wake();
        }
    }
}
