//! Exports: named devices of a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_blockdev::SharedDevice;
use flagstone_transport::WaitGroup;
use parking_lot::Mutex;

use crate::block_lock::BlockLock;
use crate::limits::{MAX_REQUEST_BYTES, MAX_STRING_BYTES};
use crate::links::LinkTable;
use crate::reach::Reach;
use crate::wire::transmission_flag as flag;

pub struct Export {
    pub name: String,
    pub description: String,
    pub device: SharedDevice,
    /// Refuse changes, even if the device is writable.
    pub read_only: bool,
    /// Clients that may use it: names in their certificates, or identities of their pre-shared
    /// keys. `None` for every client.
    pub access: Option<Vec<String>>,
    /// Serializes read-modify-write with other changes.
    pub(crate) block_lock: BlockLock,
    /// Ended connections with device calls in flight. A client that lost its connection reconnects
    /// and resends unanswered requests. A write of the old connection that is still in flight could
    /// complete after newer writes and undo them. So a new connection starts only after all ended
    /// ones have finished.
    pub(crate) ended_connections: Arc<WaitGroup>,
    /// Client links, of which one connection at a time is active.
    pub(crate) links: LinkTable,
    pub(crate) reach: Reach,
    /// Admits no clients for now.
    suspended: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Names and descriptions are text of at most 4,096 bytes without NUL.
    #[error("the name or description of export `{0}` is longer than 4096 bytes or contains NUL")]
    BadText(String),
    #[error("two exports are named `{0}`")]
    Duplicate(String),
}

impl Export {
    pub fn new(name: impl Into<String>, device: SharedDevice) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            device,
            read_only: false,
            access: None,
            block_lock: BlockLock::default(),
            ended_connections: Arc::default(),
            links: LinkTable::default(),
            reach: Reach::default(),
            suspended: AtomicBool::new(false),
        }
    }

    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Export {
        self.description = description.into();
        self
    }

    /// Sets the clients that may use it, by names that they have to prove with TLS.
    #[must_use]
    pub fn accessible_to(mut self, clients: Option<Vec<String>>) -> Export {
        self.access = clients;
        self
    }

    /// For a device that may be unreachable at first: it is asked before a client is admitted.
    #[must_use]
    pub fn asked_first(mut self) -> Export {
        self.reach = Reach::unknown();
        self
    }

    /// True if a client that has proven `names` may use it.
    pub fn admits(&self, names: &[String]) -> bool {
        self.access.as_ref().is_none_or(|list| list.iter().any(|name| names.contains(name)))
    }

    /// True if it admits no clients for now.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }

    /// Sets whether changes are refused.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Export {
        self.read_only = read_only;
        self
    }

    /// "Transmission flags" of the export.
    ///
    /// All connections share one device, so CAN_MULTI_CONN always applies. DF requires structured
    /// replies. CACHE is accepted and ignored, because there is no cache to fill.
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        let geometry = self.device.geometry();
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        if structured {
            flags |= flag::SEND_DF;
        }
        if self.read_only || geometry.read_only {
            return flags | flag::READ_ONLY;
        }
        if geometry.can_discard {
            flags |= flag::SEND_TRIM;
        }
        flags | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
    }

    /// "Size constraints": minimum, preferred and maximum, in bytes.
    pub fn block_sizes(&self) -> [u32; 3] {
        let geometry = self.device.geometry();
        let minimum = geometry.block_bytes;
        let best = geometry.physical_block_bytes.max(geometry.optimal_io_bytes).max(4096);
        // A stripe width that is not a power of two is rounded up, within the maximum.
        let preferred = best.max(minimum).min(MAX_REQUEST_BYTES / 2).next_power_of_two();
        [minimum, preferred, MAX_REQUEST_BYTES]
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({})", self.name)
    }
}

/// Exports of a server. More may be added while it runs.
#[derive(Debug, Default)]
pub struct Exports {
    by_name: Mutex<BTreeMap<String, Option<Arc<Export>>>>,
}

#[derive(Clone, Debug)]
pub enum ExportLookup {
    Here(Arc<Export>),
    /// Expected or suspended export, see [`Exports::expect`] and [`Exports::suspend`].
    Expected,
    Nothing,
}

impl Exports {
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<Exports, ExportError> {
        let all = Exports::default();
        for export in exports {
            all.add(export)?;
        }
        Ok(all)
    }

    /// Reserves the name of an export that is added later. Clients that request it learn that it is
    /// not available yet.
    pub fn expect(&self, name: &str) -> Result<(), ExportError> {
        check_text(name, name)?;
        let mut by_name = self.by_name.lock();
        if by_name.contains_key(name) {
            return Err(ExportError::Duplicate(name.to_owned()));
        }
        by_name.insert(name.to_owned(), None);
        Ok(())
    }

    /// Adds an export, possibly an expected one.
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        check_text(&export.name, &export.name)?;
        check_text(&export.name, &export.description)?;
        let mut by_name = self.by_name.lock();
        if by_name.get(&export.name).is_some_and(Option::is_some) {
            return Err(ExportError::Duplicate(export.name));
        }
        by_name.insert(export.name.clone(), Some(Arc::new(export)));
        Ok(())
    }

    /// Removes an export. Its connections continue; see [`crate::NbdServer::disconnect`].
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        self.by_name.lock().remove(name).flatten()
    }

    /// Admits no further clients of an export until [`Exports::resume`]: they learn that it is not
    /// available yet. A client that is not in [`crate::NbdServer::attached`] afterwards does not
    /// attach.
    pub fn suspend(&self, name: &str) {
        self.set_suspended(name, true);
    }

    /// Admits clients again. An export that was removed since stays removed.
    pub fn resume(&self, name: &str) {
        self.set_suspended(name, false);
    }

    fn set_suspended(&self, name: &str, suspended: bool) {
        if let Some(Some(export)) = self.by_name.lock().get(name) {
            export.suspended.store(suspended, Ordering::Release);
        }
    }

    /// Finds an export. The empty name requests the default: the export with that name, or the only
    /// one. Several exports have no default, because the wrong disk would be worse than none.
    pub fn find(&self, name: &str) -> ExportLookup {
        let by_name = self.by_name.lock();
        let only = || match name.is_empty() && by_name.len() == 1 {
            true => by_name.values().next(),
            false => None,
        };
        match by_name.get(name).or_else(only) {
            Some(Some(export)) if !export.is_suspended() => ExportLookup::Here(export.clone()),
            Some(_) => ExportLookup::Expected,
            None => ExportLookup::Nothing,
        }
    }

    /// True unless the export was removed, or replaced by another of its name.
    pub(crate) fn is_current(&self, export: &Arc<Export>) -> bool {
        let by_name = self.by_name.lock();
        let current = by_name.get(&export.name).and_then(Option::as_ref);
        current.is_some_and(|current| Arc::ptr_eq(current, export))
    }

    pub fn all(&self) -> Vec<Arc<Export>> {
        self.by_name.lock().values().flatten().cloned().collect()
    }
}

fn check_text(export: &str, text: &str) -> Result<(), ExportError> {
    match text.len() <= MAX_STRING_BYTES && !text.contains('\0') {
        true => Ok(()),
        false => Err(ExportError::BadText(export.to_owned())),
    }
}
