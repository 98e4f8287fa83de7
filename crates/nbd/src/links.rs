//! Link table: at most one connection of a link executes requests at a time (see
//! [`crate::wire::link`]).
//!
//! A connection that takes over a link signals the previous one to stop, and waits until its
//! requests have completed. The previous connection checks the signal before it starts a request,
//! so none starts later.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

use crate::export::Export;
use crate::server::Drain;
use crate::wire::link::LinkId;

/// Links of one export, on all cores.
#[derive(Debug, Default)]
pub(crate) struct LinkTable(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Stop signals of the connections that own a link.
    holders: BTreeMap<LinkId, Drain>,
    waiting: Vec<Waker>,
}

impl LinkTable {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

/// A connection's ownership of its link, until its requests have completed.
#[derive(Debug)]
pub(crate) struct LinkOwner {
    export: Arc<Export>,
    link: LinkId,
    /// Signaled when another connection takes over.
    pub(crate) stop: Drain,
}

impl LinkOwner {
    /// Takes over a link, and waits for its previous owner to finish.
    pub(crate) async fn take(export: Arc<Export>, link: LinkId) -> LinkOwner {
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
        LinkOwner { export, link, stop }
    }
}

impl Drop for LinkOwner {
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
