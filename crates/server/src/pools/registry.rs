//! Registry: the pools that are recorded in the state directory.
//!
//! Invariants: the table in memory equals the file; changes of all pools are written one at a time.
//! A change that timed out is reverted when the directory answers again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flagstone_pool::PoolIdentity;
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::{spawn, time};

use super::failed;
use super::state_directory::{LastSeen, PoolEntry, StateDirectory};
use crate::http::Problem;
use crate::limits::{OPEN_TIMEOUT, POOLS_MAX};

pub(super) struct Registry {
    /// State directory, or the reason why it is unusable.
    directory: Result<StateDirectory, String>,
    /// A directory is configured.
    is_configured: bool,
    entries: Rc<RefCell<Entries>>,
    turn: Rc<Semaphore>,
}

type Entries = BTreeMap<String, PoolEntry>;

fn list(entries: &Entries) -> Vec<PoolEntry> {
    entries.values().cloned().collect()
}

impl Registry {
    /// Locks the directory and reads it.
    pub(super) async fn read(path: Option<PathBuf>) -> Registry {
        let read = match &path {
            Some(path) => {
                let opened = time::timeout(OPEN_TIMEOUT, StateDirectory::open(path)).await;
                let silent = || {
                    let path = path.display();
                    format!(
                        "the state directory {path} does not answer: restart the server when it does"
                    )
                };
                opened.unwrap_or_else(|_| Err(silent()))
            }
            None => Err("this server has no state directory: start it with --state DIRECTORY, or \
                         write `state` in [server]"
                .to_owned()),
        };
        if let (Err(why), Some(_)) = (&read, &path) {
            tracing::error!("no pools are served: {why}");
        }
        let (directory, entries) = match read {
            Ok((directory, entries)) => (Ok(directory), entries),
            Err(why) => (Err(why), Vec::new()),
        };
        let entries = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Registry {
            directory,
            is_configured: path.is_some(),
            entries: Rc::new(RefCell::new(entries)),
            turn: Semaphore::new(1),
        }
    }

    /// Reason why there may be pools that this server does not know: it could not read the state
    /// directory.
    pub(super) fn unread(&self) -> Option<&str> {
        self.directory.as_ref().err().filter(|_| self.is_configured).map(String::as_str)
    }

    /// Path of the state directory, if it is usable.
    pub(super) fn path(&self) -> Option<&Path> {
        self.directory.as_ref().ok().map(StateDirectory::path)
    }

    /// State directory for an order that writes to it.
    ///
    /// # Errors
    /// 409 if it is unusable.
    pub(super) fn writable(&self) -> Result<&StateDirectory, Problem> {
        self.directory.as_ref().map_err(|why| Problem::conflict(why.clone()))
    }

    pub(super) fn entries(&self) -> Vec<PoolEntry> {
        self.entries.borrow().values().cloned().collect()
    }

    pub(super) fn entry(&self, name: &str) -> Option<PoolEntry> {
        self.entries.borrow().get(name).cloned()
    }

    /// Identity of a pool at its last opening or record.
    pub(super) fn identity(&self, name: &str) -> Option<PoolIdentity> {
        self.entry(name)?.last_seen?.identity()
    }

    /// True if an order began to destroy the pool.
    pub(super) fn is_destroying(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| entry.destroying)
    }

    /// True if the pool may be an older copy than its mirrors used last, as far as is recorded.
    pub(super) fn may_be_older(&self, name: &str) -> bool {
        self.entry(name).is_none_or(|entry| entry.may_be_older())
    }

    /// Adds, changes or removes the entry of a pool, durably.
    ///
    /// # Errors
    /// 409 without a directory or for too many pools. 500 if the directory cannot be written or
    /// does not answer: the entry is unchanged, or will be reverted.
    pub(super) async fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut Option<PoolEntry>),
    ) -> Result<(), Problem> {
        let directory = self.writable()?.clone();
        let silent = |_| {
            let path = directory.path().display();
            failed(format!(
                "the state directory {path} does not answer: repeat the order when it does"
            ))
        };
        let turn = time::timeout(OPEN_TIMEOUT, self.turn.acquire(1)).await.map_err(silent)?;
        let former = self.entries.borrow().clone();
        let mut new = former.clone();
        let mut entry = new.remove(name);
        change(&mut entry);
        new.extend(entry.map(|entry| (name.to_owned(), entry)));
        if new.len() > POOLS_MAX {
            return Err(Problem::conflict(format!("a server has at most {POOLS_MAX} pools")));
        }
        if new == former {
            return Ok(());
        }
        let abandoned = Rc::new(Cell::new(false));
        let (is_abandoned, entries, writer) =
            (abandoned.clone(), self.entries.clone(), directory.clone());
        let written = spawn(async move {
            let _turn = turn;
            writer.write(list(&new)).await?;
            let is_undone = is_abandoned.get() && writer.write(list(&former)).await.is_ok();
            if !is_undone {
                *entries.borrow_mut() = new;
            }
            Ok(())
        });
        match time::timeout(OPEN_TIMEOUT, written).await {
            Ok(written) => {
                written.unwrap_or(Err("the server is stopping".to_owned())).map_err(failed)
            }
            Err(elapsed) => {
                abandoned.set(true);
                Err(silent(elapsed))
            }
        }
    }

    /// Records the identity of a pool. A failure does not keep the pool from being served: the
    /// earlier identity remains valid.
    pub(super) async fn remember(&self, name: &str, identity: impl Fn() -> Option<PoolIdentity>) {
        let change = |entry: &mut Option<PoolEntry>| {
            if let (Some(entry), Some(identity)) = (entry, identity()) {
                entry.last_seen = Some(LastSeen::from(identity));
            }
        };
        if let Err(problem) = self.change(name, change).await {
            tracing::warn!("the identity of pool {name} is not recorded: {}", problem.detail);
        }
    }
}
