//! Link table: at most one connection of a link executes requests at a time (see
//! [`crate::wire::link`]).
//!
//! A connection that takes over a link signals the previous one to stop, and waits until its
//! requests have completed. The previous connection checks the signal before it starts a request,
//! so none starts later.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_runtime::sync::SharedNotify;
use parking_lot::Mutex;

use crate::export::Export;
use crate::server::Drain;
use crate::wire::link::LinkId;

#[derive(Debug, Default)]
pub(crate) struct LinkTable {
    /// Stop signals of the connections that own a link.
    owners: Mutex<BTreeMap<LinkId, Drain>>,
    released: SharedNotify,
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
        let taken = || {
            let mut owners = export.links.owners.lock();
            let Some(owner) = owners.get(&link).cloned() else {
                owners.insert(link, stop.clone());
                return Some(());
            };
            drop(owners);
            owner.begin();
            None
        };
        export.links.released.wait_for(taken).await;
        LinkOwner { export, link, stop }
    }
}

impl Drop for LinkOwner {
    fn drop(&mut self) {
        self.export.links.owners.lock().remove(&self.link);
        self.export.links.released.notify();
    }
}
