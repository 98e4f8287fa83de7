//! An NVM subsystem, or the discovery subsystem: who may connect, its namespaces, its controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use flagstone_nvme::Nqn;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::log::AnaState;

use super::controller::{Controller, Host};
use super::namespace::{Namespace, NamespaceConfig, NamespaceTable};
use super::queue::{IoTotals, Leftovers, Queue};
use super::vendor::VendorHandler;
use super::{TargetError, lock};
use crate::limits::ALLOWED_HOSTS;

/// What is to be served as a subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name; not that of the discovery subsystem.
    pub nqn: Nqn,
    /// Serial number, 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Hosts that may connect; empty lets any.
    pub allow_hosts: Vec<Nqn>,
}

/// What controllers of a subsystem are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Namespaces.
    Io,
    /// The discovery log.
    Discovery,
}

/// See the module.
pub(crate) struct Subsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: String,
    pub(super) kind: Kind,
    /// In no discovery log.
    hidden: bool,
    /// Nobody may connect for now.
    held: AtomicBool,
    hosts: Mutex<BTreeSet<Nqn>>,
    namespaces: Mutex<Namespaces>,
    /// Of the table in `namespaces`: connections see here whether theirs is out of date.
    generation: AtomicU64,
    ana_changes: AtomicU64,
    controllers: Mutex<Controllers>,
    /// I/O queues whose connections still live, cut or not.
    queues: Mutex<Vec<Weak<Queue>>>,
    /// By host; those of hosts without controllers and connections are gone.
    leftovers: Mutex<BTreeMap<HostKey, Weak<Leftovers>>>,
    /// What went through queues that are gone.
    totals: Mutex<IoTotals>,
}

type HostKey = (Nqn, [u8; 16]);

struct Namespaces {
    table: Arc<NamespaceTable>,
    uuids: BTreeSet<[u8; 16]>,
}

struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    /// The last identifier that was given: the search for a free one goes on from here, so that
    /// one is not used again soon.
    last_id: u16,
    /// The subsystem was removed: nobody may connect.
    closed: bool,
}

impl Subsystem {
    pub(super) fn new(config: SubsystemConfig, kind: Kind) -> Result<Subsystem, TargetError> {
        let SubsystemConfig { nqn, serial, allow_hosts } = config;
        if !(1..=20).contains(&serial.len()) || !serial.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return Err(TargetError::Serial(serial));
        }
        let hosts = host_set(allow_hosts)?;
        let table = Arc::new(NamespaceTable::empty());
        Ok(Subsystem {
            nqn,
            serial,
            kind,
            hidden: false,
            held: AtomicBool::new(false),
            hosts: Mutex::new(hosts),
            namespaces: Mutex::new(Namespaces { table, uuids: BTreeSet::new() }),
            generation: AtomicU64::new(0),
            ana_changes: AtomicU64::new(1),
            controllers: Mutex::new(Controllers {
                live: BTreeMap::new(),
                last_id: 0,
                closed: false,
            }),
            queues: Mutex::default(),
            leftovers: Mutex::default(),
            totals: Mutex::default(),
        })
    }

    /// The same, in no discovery log.
    pub(super) fn hide(self) -> Subsystem {
        Subsystem { hidden: true, ..self }
    }

    /// Whether it is in no discovery log: one that programs connect to by themselves, and often.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Whether `host` finds it in the discovery log.
    pub(super) fn is_discovered_by(&self, host: &Nqn) -> bool {
        !self.hidden && self.allows(host)
    }

    /// Whether `host` may connect.
    pub(super) fn allows(&self, host: &Nqn) -> bool {
        let hosts = lock(&self.hosts);
        hosts.is_empty() || hosts.contains(host)
    }

    /// Sets whether nobody may connect for now; gives whether that was so.
    pub(super) fn set_held(&self, held: bool) -> bool {
        self.held.swap(held, Ordering::AcqRel)
    }

    /// Whether nobody may connect for now.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Hosts on the allow-list; empty lets any.
    pub(super) fn allowed_hosts(&self) -> Vec<Nqn> {
        lock(&self.hosts).iter().copied().collect()
    }

    /// Changes who may connect, and disconnects those that no longer may.
    pub(super) fn set_allowed_hosts(&self, hosts: Vec<Nqn>) -> Result<(), TargetError> {
        *lock(&self.hosts) = host_set(hosts)?;
        for controller in self.controllers() {
            if !self.allows(&controller.host.nqn) {
                controller.destroy("its host is no longer allowed");
            }
        }
        Ok(())
    }

    /// The namespaces as they are now.
    pub(super) fn table(&self) -> Arc<NamespaceTable> {
        self.namespaces().table.clone()
    }

    /// Generation of [`Subsystem::table`].
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Times the ANA log changed, from 1.
    pub(super) fn ana_changes(&self) -> u64 {
        self.ana_changes.load(Ordering::Acquire)
    }

    fn namespaces(&self) -> MutexGuard<'_, Namespaces> {
        lock(&self.namespaces)
    }

    /// Adds a namespace and tells the hosts. Controllers that said that there is no volatile write
    /// cache are disconnected when one comes: their hosts would send no flush to it.
    pub(super) fn add_namespace(
        &self,
        config: NamespaceConfig,
        vendor: Option<Arc<dyn VendorHandler>>,
        max_namespaces: u32,
    ) -> Result<u32, TargetError> {
        if config.uuid == [0; 16] {
            return Err(TargetError::Uuid);
        }
        let mut namespaces = self.namespaces();
        let nsid = match config.nsid {
            Some(nsid) if nsid == 0 || nsid > max_namespaces => {
                return Err(TargetError::NamespaceId { nsid, max: max_namespaces });
            }
            Some(nsid) if namespaces.table.get(nsid).is_some() => {
                return Err(TargetError::NamespaceExists(nsid));
            }
            Some(nsid) => nsid,
            None => namespaces.table.first_free(max_namespaces).ok_or(TargetError::Full)?,
        };
        if namespaces.uuids.contains(&config.uuid) {
            return Err(TargetError::UuidTaken);
        }
        let mut namespace = Namespace::new(nsid, config).ok_or(TargetError::Device)?;
        namespace.vendor = vendor;
        let volatile_cache = namespace.geometry.volatile_cache && !namespace.read_only;
        namespaces.uuids.insert(namespace.uuid);
        Arc::make_mut(&mut namespaces.table).insert(Arc::new(namespace));
        self.publish(namespaces);
        for controller in self.controllers() {
            if volatile_cache && !controller.volatile_cache {
                controller.destroy("a namespace with a volatile write cache was added");
            } else {
                controller.namespace_changed(nsid);
            }
        }
        Ok(nsid)
    }

    /// Takes a namespace away and tells the hosts.
    pub(super) fn remove_namespace(&self, nsid: u32) -> Result<Arc<Namespace>, TargetError> {
        let mut namespaces = self.namespaces();
        let removed = match namespaces.table.get(nsid) {
            Some(namespace) => namespace.clone(),
            None => return Err(TargetError::NoNamespace(nsid)),
        };
        Arc::make_mut(&mut namespaces.table).remove(nsid);
        namespaces.uuids.remove(&removed.uuid);
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.namespace_changed(nsid);
        }
        Ok(removed)
    }

    /// Serves a namespace with the size that its device has now, and tells the hosts of a new one.
    pub(super) fn resize_namespace(&self, nsid: u32) -> Result<(), TargetError> {
        let mut namespaces = self.namespaces();
        let found = namespaces.table.get(nsid).ok_or(TargetError::NoNamespace(nsid))?;
        let resized = found.resized().ok_or(TargetError::Device)?;
        if resized.blocks == found.blocks {
            return Ok(());
        }
        Arc::make_mut(&mut namespaces.table).insert(Arc::new(resized));
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.namespace_changed(nsid);
        }
        Ok(())
    }

    /// Changes how well the namespaces are reached here, and tells the hosts.
    pub(super) fn set_ana_state(&self, state: AnaState) {
        let mut namespaces = self.namespaces();
        if namespaces.table.ana() == state {
            return;
        }
        Arc::make_mut(&mut namespaces.table).set_ana(state);
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.events.raise(AsyncEvent::ANA_CHANGED);
        }
    }

    /// Shows connections and ANA log that the table is a new one.
    fn publish(&self, namespaces: MutexGuard<'_, Namespaces>) {
        self.generation.store(namespaces.table.generation(), Ordering::Release);
        // The group's list of namespaces is in the ANA log too.
        self.ana_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a namespace has a volatile write cache that hosts must flush.
    pub(super) fn volatile_cache(&self) -> bool {
        self.table().iter().any(|ns| ns.geometry.volatile_cache && !ns.read_only)
    }

    /// Makes a controller with an identifier of its own; `None` when all are in use or the
    /// subsystem is closed.
    pub(super) fn add_controller(
        &self,
        ids: &RangeInclusive<u16>,
        make: impl FnOnce(u16) -> Controller,
    ) -> Option<Arc<Controller>> {
        let mut controllers = lock(&self.controllers);
        if controllers.closed {
            return None;
        }
        let last = controllers.last_id.max(ids.start() - 1);
        let (low, high) = (*ids.start()..=last, last + 1..=*ids.end());
        let id = high.chain(low).find(|id| !controllers.live.contains_key(id))?;
        let controller = Arc::new(make(id));
        controllers.live.insert(id, controller.clone());
        controllers.last_id = id;
        Some(controller)
    }

    /// Notes an I/O queue, for [`Subsystem::busy_queues`].
    pub(super) fn add_queue(&self, queue: &Arc<Queue>) {
        let mut queues = lock(&self.queues);
        // Only when there is no room without it: so it costs a constant for each queue.
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
    }

    /// The I/O queues that have something in hand, those that were cut included.
    pub(super) fn busy_queues(&self) -> Vec<Weak<Queue>> {
        let busy = |queue: &Weak<Queue>| queue.upgrade().is_some_and(|queue| !queue.is_idle());
        lock(&self.queues).iter().filter(|queue| busy(queue)).cloned().collect()
    }

    pub(super) fn remove_controller(&self, id: u16) {
        lock(&self.controllers).live.remove(&id);
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers).live.get(&id).cloned()
    }

    /// The live controllers, by ascending identifier.
    pub(super) fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.controllers).live.values().cloned().collect()
    }

    /// Lets nobody connect any more and disconnects everybody.
    pub(super) fn close(&self, why: &'static str) {
        lock(&self.controllers).closed = true;
        self.disconnect(why);
    }

    /// Disconnects everybody.
    pub(super) fn disconnect(&self, why: &'static str) {
        for controller in self.controllers() {
            controller.destroy(why);
        }
    }

    /// What is left of cut queues of `host`, shared by all its controllers.
    pub(super) fn leftovers_of(&self, host: &Host) -> Arc<Leftovers> {
        let mut hosts = lock(&self.leftovers);
        hosts.retain(|_, leftovers| leftovers.strong_count() > 0);
        let known = hosts.entry((host.nqn, host.id)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let leftovers = Arc::default();
            *known = Arc::downgrade(&leftovers);
            leftovers
        })
    }

    pub(super) fn add_totals(&self, more: IoTotals) {
        *lock(&self.totals) += more;
    }

    /// What went through all queues, past and present.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = *lock(&self.totals);
        for controller in self.controllers() {
            totals += controller.queue_totals();
        }
        totals
    }
}

fn host_set(hosts: Vec<Nqn>) -> Result<BTreeSet<Nqn>, TargetError> {
    if hosts.len() > ALLOWED_HOSTS {
        Err(TargetError::Full)
    } else {
        Ok(hosts.into_iter().collect())
    }
}

impl std::fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subsystem").field("nqn", &self.nqn).finish_non_exhaustive()
    }
}
