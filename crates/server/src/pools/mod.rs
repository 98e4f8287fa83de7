//! Pools: opened at the start from the state directory, with volumes that are created at run time.
//!
//! Invariants:
//! - one order at a time changes a pool and its volumes ([`order_locks`]);
//! - a pool is recorded in the state file before its devices are written, so that a crash loses no
//!   pool. A pool with unwritten devices is closed, and repeating its creation completes the order;
//! - a pool that cannot be opened is retried, and blocks nothing else. Neither does a volume with
//!   unusable settings.

mod absence;
mod dedup;
mod device_orders;
mod disk_search;
#[cfg(test)]
mod encryption_tests;
mod fullness;
mod import;
mod key_files;
mod leg_orders;
mod leg_snapshots;
#[cfg(test)]
mod leg_tests;
pub(crate) mod legs;
mod log_orders;
mod mirror_snapshots;
mod open;
mod opening;
mod order_locks;
#[cfg(test)]
mod order_tests;
mod orders;
mod pair_growth;
mod path_threads;
mod received_from;
mod redundancy;
mod registry;
mod replacement;
mod retire;
mod same_disks;
pub(crate) mod scrub;
pub(crate) mod settings;
mod snapshot_orders;
mod state_directory;
mod stream_orders;
#[cfg(test)]
mod tests;
mod volume_orders;
mod volume_state;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::sectors::{SECTOR_BYTES, SectorDevice};
use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_config::names::Uuid;
use flagstone_config::{LayerConfig, Subsystem, Volume};
use flagstone_host::root::Root;
use flagstone_limit::{Limit, Limiter, RateLimitLayer};
use flagstone_pool::stream::receive::VolumeReceiver;
use flagstone_pool::{DeviceSet, FormerLeg, NamedDevice, Pool, VolumeEncryption, VolumeInfo};
use flagstone_runtime::time::Instant;
use flagstone_runtime::{JoinHandle, spawn, time};
use flagstone_stack::{OpenOptions, check_block_size, open_device, own_limit};
use rustix::fs::{FallocateFlags, fallocate};

pub(crate) use device_orders::{GrowPool, RemoveDevice};
use disk_search::DiskSearch;
pub(crate) use fullness::{Fullness, used_percent};
pub(crate) use import::AcceptedLoss;
pub(crate) use key_files::{KeyCommand, document as encryption};
pub(crate) use log_orders::SetLog;
pub(crate) use mirror_snapshots::{SnapshotPeer, SnapshotPlaces};
use open::{LogDecision, OperatorConsent};
pub(crate) use orders::{DestroyPool, MakePool, Outcome, SetPool};
use registry::Registry;
pub(crate) use replacement::ReplaceDevice;
pub(crate) use settings::Settings;
pub(crate) use snapshot_orders::CloneVolume;
use state_directory::{PoolEntry, StateDirectory};
pub(crate) use stream_orders::ReceivePart;
pub(crate) use volume_orders::{MakeVolume, SetVolume, problem};
use volume_state::VolumeOrder;

use crate::http::Problem;
use crate::limits::{IDENTITY_PERIOD, POOL_PAUSE};
use crate::reservations::KeptReservations;
use crate::serve::{ServeError, Server};
use crate::stack::CountedLayer;
use crate::subsystems::add_subsystem;
use crate::volume::{PoolPlace, ServedVolume, ServedVolumes};

/// Pools of a server.
pub(crate) struct Pools {
    registry: Registry,
    slots: legs::Slots,
    legs: legs::Legs,
    key_command: KeyCommand,
    leg_uses: legs::LegUses,
    scrubs: RefCell<BTreeMap<String, scrub::Scrub>>,
    removals: RefCell<BTreeMap<String, device_orders::Removal>>,
    /// Devices that were removed last, by name of the pool.
    removed: RefCell<BTreeMap<String, String>>,
    /// Devices of pools with redundancy, by name of the pool.
    copies: RefCell<BTreeMap<String, redundancy::Copies>>,
    openings: opening::Openings,
    imports: opening::Openings,
    attempts: opening::OpenAttempts,
    /// Pools that wait for absent devices, with the begin.
    waits: RefCell<BTreeMap<String, Instant>>,
    /// Streams in progress, by name of the volume.
    receivers: RefCell<BTreeMap<String, VolumeReceiver>>,
    search: DiskSearch,
    /// Paths of the log devices that are being opened.
    asked: Rc<RefCell<BTreeSet<String>>>,
    /// Volumes out of service with commands in progress.
    draining: retire::DrainingVolumes,
    /// All volumes of the server.
    volumes: ServedVolumes,
    retired: retire::RetiredSubsystems,
    pub(crate) reservations: KeptReservations,
    locks: order_locks::OrderLocks,
    /// Number for the next volume that is created at run time.
    next_number: Cell<usize>,
}

/// A pool in the state file.
#[derive(Clone)]
pub(crate) struct PoolSlot {
    /// Paths of the devices.
    pub(crate) set: DeviceSet<String>,
    pub(crate) state: PoolState,
    /// Volumes that are not served, with the reasons.
    pub(crate) unserved: BTreeMap<String, String>,
    pub(crate) fullness: Fullness,
}

#[derive(Clone)]
pub(crate) enum PoolState {
    Open(Pool),
    /// An order closes the pool and opens it again.
    Changing {
        /// Running change, for messages.
        what: &'static str,
    },
    Closed {
        /// Failure of the last attempt to open the pool.
        reason: String,
        cause: ClosedCause,
    },
}

/// Cause of a closed pool, as far as the operator's next step depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClosedCause {
    /// The devices are not a pool: its creation did not complete.
    Absent,
    /// The pool is too full to be opened.
    Full {
        /// Paths of the pool's devices.
        devices: Vec<String>,
        /// Use of the log device in the failed attempt.
        log: LogDecision,
    },
    /// Any other cause.
    Refused,
}

impl ClosedCause {
    /// Consent of the operator at the last attempt.
    fn consent(&self) -> OperatorConsent {
        match self {
            ClosedCause::Full { log, .. } => log.consent(),
            ClosedCause::Absent | ClosedCause::Refused => OperatorConsent::default(),
        }
    }
}

impl PoolSlot {
    fn closed(set: DeviceSet<String>, error: OpenPoolError) -> PoolSlot {
        let OpenPoolError { reason, cause } = error;
        let state = PoolState::Closed { reason, cause: cause.unwrap_or(ClosedCause::Refused) };
        PoolSlot { set, state, unserved: BTreeMap::new(), fullness: Fullness::default() }
    }

    fn changing(set: DeviceSet<String>, what: &'static str) -> PoolSlot {
        let (unserved, fullness) = (BTreeMap::new(), Fullness::default());
        PoolSlot { set, state: PoolState::Changing { what }, unserved, fullness }
    }

    fn open(set: DeviceSet<String>, pool: Pool) -> PoolSlot {
        let (unserved, fullness) = (BTreeMap::new(), Fullness::default());
        PoolSlot { set, state: PoolState::Open(pool), unserved, fullness }
    }
}

/// Error of an attempt to open a pool.
struct OpenPoolError {
    reason: String,
    /// `None` if the devices could not be examined: an earlier cause remains.
    cause: Option<ClosedCause>,
}

impl OpenPoolError {
    /// Error of devices of a pool that cannot be opened.
    fn refused(reason: String) -> OpenPoolError {
        OpenPoolError { reason, cause: Some(ClosedCause::Refused) }
    }
}

impl From<String> for OpenPoolError {
    fn from(reason: String) -> OpenPoolError {
        OpenPoolError { reason, cause: None }
    }
}

impl Pools {
    /// Locks and reads the state directory of the configuration, or of the service manager.
    /// `first_number` is the number of the first volume that is created at run time.
    pub(crate) async fn read(configured: Option<PathBuf>, first_number: usize) -> Pools {
        let inherited = || std::env::var_os("STATE_DIRECTORY").filter(|path| !path.is_empty());
        let path = configured.or_else(|| inherited().map(PathBuf::from));
        let registry = Registry::read(path).await;
        let not_yet = || OpenPoolError::from(opening::OPENING.to_owned());
        let slots = registry
            .entries()
            .into_iter()
            .map(|entry| (entry.name.clone(), PoolSlot::closed(entry.set(), not_yet())))
            .collect();
        Pools {
            registry,
            slots: Rc::new(RefCell::new(slots)),
            legs: legs::Legs::default(),
            key_command: KeyCommand::default(),
            leg_uses: Rc::default(),
            scrubs: RefCell::default(),
            removals: RefCell::default(),
            removed: RefCell::default(),
            copies: RefCell::default(),
            openings: opening::Openings::default(),
            imports: opening::Openings::default(),
            attempts: opening::OpenAttempts::default(),
            waits: RefCell::default(),
            receivers: RefCell::default(),
            search: DiskSearch::new(Root::new("/")),
            asked: Rc::default(),
            draining: retire::DrainingVolumes::default(),
            volumes: ServedVolumes::default(),
            retired: retire::RetiredSubsystems::default(),
            reservations: KeptReservations::default(),
            locks: Default::default(),
            next_number: Cell::new(first_number),
        }
    }

    /// The same pools with the command that prints keys.
    pub(crate) fn with_key_command(self, key_command: KeyCommand) -> Pools {
        Pools { key_command, ..self }
    }

    /// The same pools with these legs.
    pub(crate) fn with_legs(self, legs: legs::Legs) -> Pools {
        Pools { legs, ..self }
    }

    /// All volumes of the server, also of its configuration.
    pub(crate) fn volumes(&self) -> ServedVolumes {
        self.volumes.clone()
    }

    /// All pools by name.
    pub(crate) fn slots(&self) -> BTreeMap<String, PoolSlot> {
        self.slots.borrow().clone()
    }

    /// # Errors
    /// 404.
    pub(crate) fn slot(&self, name: &str) -> Result<PoolSlot, Problem> {
        let slots = self.slots.borrow();
        slots.get(name).cloned().ok_or_else(|| {
            let known = slots.keys().map(String::as_str);
            Problem::not_found(format!("there is no pool `{name}`")).accepting(known)
        })
    }

    /// An open pool.
    ///
    /// # Errors
    /// 404, or 409 with the reason if the pool is closed.
    fn open_pool(&self, name: &str) -> Result<Pool, Problem> {
        match self.slot(name)?.state {
            PoolState::Open(pool) => Ok(pool),
            PoolState::Changing { what } => {
                Err(Problem::conflict(format!("pool {name} is not open: {what}")))
            }
            PoolState::Closed { reason, .. } => {
                Err(Problem::conflict(format!("pool {name} is not open: {reason}")))
            }
        }
    }

    /// Path of the state directory, if it is usable.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.registry.path()
    }

    /// State directory for an order that writes to it.
    fn writable(&self) -> Result<&StateDirectory, Problem> {
        self.registry.writable()
    }

    async fn record_devices(&self, name: &str, set: &DeviceSet<String>) -> Result<(), Problem> {
        let change = |entry: &mut Option<PoolEntry>| {
            if let Some(entry) = entry {
                entry.set_devices(set);
            }
        };
        self.registry.change(name, change).await
    }

    /// Records a changed device set of a pool.
    async fn set_devices(&self, name: &str, set: DeviceSet<String>) -> Result<(), Problem> {
        self.record_devices(name, &set).await?;
        if let Some(slot) = self.slots.borrow_mut().get_mut(name) {
            slot.set = set;
        }
        Ok(())
    }

    /// Sets the recorded size of the map cache on an open pool.
    fn apply_map_cache(&self, name: &str, pool: &Pool) {
        let bytes = self.registry.entry(name).and_then(|entry| entry.map_cache_bytes);
        if let Some(Err(error)) = bytes.map(|bytes| pool.set_map_cache(bytes)) {
            tracing::warn!("pool {name} has the default map cache: {error}");
        }
    }

    /// Path of the log device of a pool.
    pub(crate) fn log_path(&self, name: &str) -> Option<String> {
        self.registry.entry(name)?.log
    }

    /// Records the identities of all open pools.
    async fn remember_all(&self) {
        for name in self.slots().into_keys() {
            // An order may have replaced the pool meanwhile.
            let identity = || match self.slot(&name).ok()?.state {
                PoolState::Open(pool) => Some(pool.identity()),
                PoolState::Changing { .. } | PoolState::Closed { .. } => None,
            };
            self.registry.remember(&name, identity).await;
        }
    }

    fn insert(&self, name: &str, slot: PoolSlot) {
        self.slots.borrow_mut().insert(name.to_owned(), slot);
    }

    fn number(&self) -> usize {
        self.next_number.replace(self.next_number.get() + 1)
    }

    /// Drops the receivers of a pool, which hold its devices.
    fn end_receivers(&self, pool: &Pool) {
        self.receivers.borrow_mut().retain(|name, _| pool.volume(name).is_none());
    }

    /// Checkpoints and closes all pools at shutdown, concurrently, because one may hang.
    pub(crate) async fn close(&self) {
        self.openings.borrow_mut().clear();
        self.imports.borrow_mut().clear();
        let mut closing = Vec::new();
        for (name, slot) in self.slots() {
            self.halt_scrub(&name).await;
            self.removals.borrow_mut().remove(&name);
            self.receivers.borrow_mut().clear();
            if let PoolState::Open(pool) = slot.state {
                let handle = pool.clone();
                closing.push((name, pool, spawn(async move { handle.close().await })));
            }
        }
        for (name, pool, closed) in closing {
            match closed.await.unwrap_or(Err(IoError::Unreachable)) {
                Ok(()) => self.registry.remember(&name, || Some(pool.identity())).await,
                Err(error) => tracing::warn!(
                    "pool {name} was not closed in order, and recovers at its next start: {error}"
                ),
            }
        }
    }
}

/// Problem with status 500: a device, the pool or the system failed.
fn failed(why: impl Into<String>) -> Problem {
    Problem::new(500, "failed", "A device or the peer failed", why)
}

/// Opens a file like [`open_device`], but in the thread of its path, because this blocks on a hung
/// file system. False if it does not exist; other errors are left to the opening.
async fn ask_file(path: &str) -> bool {
    let own = path.to_owned();
    let asked = path_threads::in_thread("open", path, move |thread| {
        let path = own;
        let is_file = std::fs::metadata(&path).is_ok_and(|meta| meta.is_file());
        let file = std::fs::File::options().read(true).write(is_file).open(&path)?;
        if is_file {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Punch a hole beyond the end, where there is no data.
            let end = file.metadata()?.len().next_multiple_of(1 << 16);
            thread.begin_change();
            fallocate(&file, mode, end, 1 << 16)?;
        }
        Ok::<_, std::io::Error>(())
    });
    !matches!(asked.await, Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound)
}

async fn open_devices(paths: &[String]) -> Result<Vec<NamedDevice>, String> {
    let mut devices = Vec::with_capacity(paths.len());
    for path in paths {
        if !ask_file(path).await {
            return Err(format!(
                "{path} does not exist: attach its disk, or name its present path"
            ));
        }
        let spec = path.parse().map_err(|error| format!("{path}: {error}"))?;
        let opened = open_device(&spec, &OpenOptions::default()).await;
        let device = opened.map_err(|error| error.to_string())?;
        devices.push(NamedDevice { name: path.clone(), device });
    }
    Ok(devices)
}

impl Server {
    /// Opens a closed pool, and logs a failure with a new reason. The caller has the lock of the
    /// pool.
    async fn try_open(
        self: &Rc<Self>,
        name: &str,
        set: DeviceSet<String>,
        last_reason: &str,
        consent: OperatorConsent,
    ) {
        let opened = self.pools.open_recorded(name, &set, consent).await;
        self.end_open(name, set, last_reason, opened).await;
    }

    async fn end_open(
        self: &Rc<Self>,
        name: &str,
        set: DeviceSet<String>,
        last_reason: &str,
        opened: Result<Pool, OpenPoolError>,
    ) {
        match opened {
            Ok(pool) => {
                let set = self.adjust_devices(name, set, &pool).await;
                let removing = set.removing.clone();
                if let Err(reason) = self.release_old_legs(name, &pool).await {
                    tracing::error!("pool {name} is not open: {reason}");
                    self.pools.insert(name, PoolSlot::closed(set, OpenPoolError::refused(reason)));
                    return self.note_missing_volumes();
                }
                self.pools.registry.remember(name, || Some(pool.identity())).await;
                self.pools.apply_map_cache(name, &pool);
                self.pools.insert(name, PoolSlot::open(set, pool.clone()));
                self.serve_pool(name, &pool);
                self.pools.resume_scrub(name, &pool).await;
                if let Some(device) = removing {
                    self.resume_removal(name, &pool, &device).await;
                }
                // Last, because key files may hang.
                self.serve_locked(name, &pool).await;
                tracing::info!("pool {name} is open");
            }
            Err(mut error) => {
                if let Ok(PoolSlot { state: PoolState::Closed { cause, .. }, .. }) =
                    self.pools.slot(name)
                {
                    error.cause.get_or_insert(cause);
                }
                if error.reason != last_reason {
                    tracing::error!(
                        "pool {name} is not open, and its volumes are not served: {}; see flagstone \
                         pool status {name}",
                        error.reason
                    );
                }
                self.pools.insert(name, PoolSlot::closed(set, error));
            }
        }
        self.note_missing_volumes();
    }

    /// Devices of the opened pool; recorded if they differ from the record.
    async fn adjust_devices(
        &self,
        name: &str,
        before: DeviceSet<String>,
        pool: &Pool,
    ) -> DeviceSet<String> {
        let status = pool.status();
        let own = status.devices;
        if status.redundancy.is_some() {
            self.pools.insert(name, PoolSlot::open(before.clone(), pool.clone()));
            self.record_pairs(name, pool).await;
            return self.pools.slot(name).map_or(before, |slot| slot.set);
        }
        if let Some(device) = before.adding.as_ref().filter(|device| !own.contains(device)) {
            tracing::warn!("{device} was not added to pool {name}: flagstone pool grow adds it");
        }
        let mut set = DeviceSet { adding: None, ..before.clone() };
        set.devices.retain(|device| own.contains(device));
        set.removing = set.removing.filter(|device| own.contains(device));
        if set != before
            && let Err(problem) = self.pools.record_devices(name, &set).await
        {
            tracing::warn!("the devices of pool {name} are not recorded: {}", problem.detail);
        }
        set
    }

    /// Retries closed pools and locked volumes, and watches the fullness of open pools, while the
    /// server runs.
    pub(crate) async fn keep_pools(self: Rc<Self>) {
        let mut recorded = time::now();
        // Recording runs in a task, because the state directory may hang.
        let mut recording: Option<JoinHandle<()>> = None;
        let mut is_due = false;
        loop {
            time::sleep(POOL_PAUSE).await;
            self.begin_openings();
            self.begin_unlocks();
            self.serve_ended();
            self.note_missing_volumes();
            self.pools.watch();
            is_due |= self.pools.watch_devices() || recorded.elapsed() >= IDENTITY_PERIOD;
            let is_recording = recording.as_ref().is_some_and(|task| !task.is_finished());
            if is_due && !is_recording {
                let server = self.clone();
                recording = Some(spawn(async move { server.pools.remember_all().await }));
                (recorded, is_due) = (time::now(), false);
            }
        }
    }

    /// Serves every volume of a pool that is not locked; [`Server::serve_locked`] serves the
    /// others.
    fn serve_pool(&self, name: &str, pool: &Pool) {
        for info in pool.volumes() {
            match info.encryption {
                VolumeEncryption::Locked => self.note_unread(name, &info),
                _ => self.serve_or_note(name, pool, &info),
            }
        }
        self.end_retirements(name, Some(pool));
    }

    fn serve_or_note(&self, name: &str, pool: &Pool, info: &VolumeInfo) {
        if let Err(why) = self.serve_pool_volume(name, pool, info) {
            tracing::error!("volume {} of pool {name} is not served: {why}", info.name);
            let mut slots = self.pools.slots.borrow_mut();
            let slot = slots.get_mut(name).expect("the pool is open");
            slot.unserved.insert(info.name.clone(), why);
        }
    }

    /// Serves a volume according to its settings.
    ///
    /// # Errors
    /// The reason why it cannot be served.
    fn serve_pool_volume(&self, name: &str, pool: &Pool, info: &VolumeInfo) -> Result<(), String> {
        let state = self.pools.state_of(name, info);
        if state.is_leg() {
            // Its mirror serves it.
            if let Some(slot) = self.pools.slots.borrow_mut().get_mut(name) {
                slot.unserved.remove(&info.name);
            }
            self.end_retirement(info.uuid, None);
            self.wake_legs();
            return Ok(());
        }
        state.check(&info.name, VolumeOrder::Serve)?;
        let settings = settings::from_properties(&info.properties)?;
        let checked = settings::volume(&self.config, name, &info.name, &settings);
        let (volume, subsystem) = checked.map_err(|mistakes| settings::text(&mistakes))?;
        self.check_names(&volume, &subsystem, None)?;
        self.check_access(&subsystem)?;
        let device = pool.open_volume(&info.name).map_err(|error| error.to_string())?;
        // It was a leg until the configuration changed, and is one again unless hosts write.
        let device: SharedDevice = match info.is_leg() {
            true => Arc::new(FormerLeg::new(device)),
            false => device,
        };
        let uuid = volume.uuid.unwrap_or_else(|| Uuid::from_bytes(info.uuid.0));
        let place = PoolPlace { pool: name.to_owned(), id: info.uuid, settings };
        let served = self.serve_new(volume, subsystem, uuid, place, device);
        served.map_err(|error| error.to_string())?;
        if let Some(slot) = self.pools.slots.borrow_mut().get_mut(name) {
            slot.unserved.remove(&info.name);
        }
        Ok(())
    }

    /// Checks that hosts need a key, if the configuration requires keys.
    fn check_access(&self, subsystem: &Subsystem) -> Result<(), String> {
        match self.config.forbids_open(subsystem) {
            None => Ok(()),
            Some(listen) => Err(format!(
                "no host that may use volume {} has a key, so anyone who reaches {listen} could use it: \
                 add [host.NAME] with its key to the configuration, or insecure = true to the listener",
                subsystem.name
            )),
        }
    }

    /// Checks that no other volume has this name, NQN, export or UUID; `own` is the volume itself.
    fn check_names(
        &self,
        volume: &Volume,
        subsystem: &Subsystem,
        own: Option<usize>,
    ) -> Result<(), String> {
        for other in self.volumes().iter().filter(|other| Some(other.number) != own) {
            let taken = [
                ("name", other.name() == volume.name),
                ("NQN", other.subsystem.nqn == subsystem.nqn),
                ("NBD export", other.config.nbd_export == volume.nbd_export),
                ("UUID", volume.uuid == Some(other.uuid)),
            ];
            if let Some((what, _)) = taken.iter().find(|(_, taken)| *taken) {
                return Err(format!("volume {} has this {what} already", other.name()));
            }
        }
        Ok(())
    }

    /// Adds subsystem, namespace and export of a volume. An error leaves all as it was.
    fn serve_new(
        &self,
        volume: Volume,
        subsystem: Subsystem,
        uuid: Uuid,
        place: PoolPlace,
        device: SharedDevice,
    ) -> Result<(), ServeError> {
        let id = place.id;
        let (device, layers, limiter) = self.stack_on_pool(&volume, device)?;
        let served = ServedVolume {
            number: self.pools.number(),
            config: volume,
            subsystem,
            nsid: 1,
            uuid,
            device: Default::default(),
            counters: Arc::default(),
            layers: layers.into(),
            limiter: Some(limiter),
            pool: Some(place),
        };
        let name = add_subsystem(&self.target, &self.config, &served.subsystem, &self.machine)?;
        let begun = self.serve_volume(&served, device).and_then(|()| self.admit_hosts(&served));
        if let Err(error) = begun {
            self.end_failed_serving(id, &name, served.nsid);
            return Err(error);
        }
        self.end_retirement(id, Some(&name));
        self.volumes.borrow_mut().push(Rc::new(served));
        Ok(())
    }

    /// Layers of a volume over its device. They always include a rate limit, which can be set
    /// at run time.
    fn stack_on_pool(
        &self,
        volume: &Volume,
        mut device: SharedDevice,
    ) -> Result<(SharedDevice, Vec<CountedLayer>, Arc<Limiter>), ServeError> {
        let own = own_limit(volume)?;
        let has_limit = own.is_some();
        let unlimited = || Limiter::new(Limit::default()).expect("no limit is valid");
        let limiter = own.unwrap_or_else(unlimited);
        if volume.block_size_bytes == Some(SECTOR_BYTES) {
            device = Arc::new(SectorDevice::new(device));
        }
        let mut layers = Vec::new();
        for layer in volume.layers.iter().rev() {
            let layer = CountedLayer::new(layer.clone());
            device = layer.over(volume, device, &self.limits.shared, Some(&limiter))?;
            layers.push(layer);
        }
        if !has_limit {
            device = Arc::new(RateLimitLayer::new(device, limiter.clone()));
        }
        check_block_size(volume, &device)?;
        layers.reverse();
        Ok((device, layers, limiter))
    }

    /// Sets the limit of a volume while it is served.
    fn set_limit(volume: &Volume, limiter: &Limiter) -> Result<(), String> {
        let own = volume.layers.iter().find_map(|layer| match layer {
            LayerConfig::Limit(limit) => Some(limit.numbers),
            _ => None,
        });
        limiter.set(own.unwrap_or_default()).map_err(|error| error.to_string())
    }
}
