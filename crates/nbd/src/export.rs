//! What a server offers: named devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_blockdev::{Geometry, SharedDevice};

use crate::departures::Departures;
use crate::gate::Gate;
use crate::limits::{MAX_REQUEST_BYTES, MAX_STRING_BYTES};
use crate::links::Links;
use crate::wire::transmission_flag as flag;

/// One device under a name.
pub struct Export {
    /// What clients ask for.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Where the data is.
    pub device: SharedDevice,
    /// Refuse changes, whatever the device would take.
    pub read_only: bool,
    /// Keeps read-modify-write apart from other changes.
    pub(crate) gate: Gate,
    /// Ended connections that the device still works for.
    pub(crate) departures: Departures,
    /// Connections that replace each other.
    pub(crate) links: Links,
}

/// Why an export cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Names and descriptions are text of at most 4,096 bytes without NUL.
    #[error("the name or description of export `{0}` is longer than 4096 bytes or contains NUL")]
    BadText(String),
    /// Clients could not tell them apart.
    #[error("two exports are named `{0}`")]
    Duplicate(String),
}

impl Export {
    /// A device under a name.
    pub fn new(name: impl Into<String>, device: SharedDevice) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            device,
            read_only: false,
            gate: Gate::default(),
            departures: Departures::default(),
            links: Links::default(),
        }
    }

    /// The same with a description.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Export {
        self.description = description.into();
        self
    }

    /// The same, refusing changes.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Export {
        self.read_only = read_only;
        self
    }

    /// "Transmission flags" of the export.
    ///
    /// All connections share one device, so CAN_MULTI_CONN always holds. DF belongs to structured
    /// replies. CACHE is accepted and does nothing: there is no cache that it could fill.
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
        preferred_sizes(&self.device.geometry())
    }
}

fn preferred_sizes(geometry: &Geometry) -> [u32; 3] {
    let minimum = geometry.block_bytes;
    let best = geometry.physical_block_bytes.max(geometry.optimal_io_bytes).max(4096);
    // A power of two: a stripe's width that is none is rounded up, within the maximum.
    let preferred = best.max(minimum).min(MAX_REQUEST_BYTES / 2).next_power_of_two();
    [minimum, preferred, MAX_REQUEST_BYTES]
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({})", self.name)
    }
}

/// All that a server offers. More can be added while it serves.
#[derive(Debug, Default)]
pub struct Exports {
    by_name: Mutex<BTreeMap<String, Option<Arc<Export>>>>,
}

/// What there is under a name.
#[derive(Clone, Debug)]
pub enum Found {
    /// An export.
    Here(Arc<Export>),
    /// One that is expected, see [`Exports::expect`].
    Expected,
    /// Nothing.
    Nothing,
}

impl Exports {
    /// Offers these.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<Exports, ExportError> {
        let all = Exports::default();
        for export in exports {
            all.add(export)?;
        }
        Ok(all)
    }

    /// Keeps a name for an export that is to be added: clients that ask for it are told that it is
    /// not available yet.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn expect(&self, name: &str) -> Result<(), ExportError> {
        check_text(name, name)?;
        let mut by_name = self.by_name();
        if by_name.contains_key(name) {
            return Err(ExportError::Duplicate(name.to_owned()));
        }
        by_name.insert(name.to_owned(), None);
        Ok(())
    }

    /// Offers one more, also one that was expected.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        check_text(&export.name, &export.name)?;
        check_text(&export.name, &export.description)?;
        let mut by_name = self.by_name();
        if by_name.get(&export.name).is_some_and(Option::is_some) {
            return Err(ExportError::Duplicate(export.name));
        }
        by_name.insert(export.name.clone(), Some(Arc::new(export)));
        Ok(())
    }

    /// What there is of that name. The empty name asks for the default export: the one so named, or
    /// the only one. With several there is no default: the wrong disk would be worse than none.
    pub fn find(&self, name: &str) -> Found {
        let by_name = self.by_name();
        let only = || match name.is_empty() && by_name.len() == 1 {
            true => by_name.values().next(),
            false => None,
        };
        match by_name.get(name).or_else(only) {
            Some(Some(export)) => Found::Here(export.clone()),
            Some(None) => Found::Expected,
            None => Found::Nothing,
        }
    }

    /// All exports that are here, in the order of their names.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.by_name().values().flatten().cloned().collect()
    }

    /// The lock is held for a few instructions; a panic in them leaves nothing half done.
    fn by_name(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<Export>>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_text(export: &str, text: &str) -> Result<(), ExportError> {
    match text.len() <= MAX_STRING_BYTES && !text.contains('\0') {
        true => Ok(()),
        false => Err(ExportError::BadText(export.to_owned())),
    }
}
