//! NVM subsystem or discovery subsystem: allowed hosts, namespaces and controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use flagstone_auth::KeyPair;
use flagstone_nvme::Nqn;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::log::AnaState;
use flagstone_runtime::{cores, time};
use flagstone_transport::grace_period;
use parking_lot::{Mutex, MutexGuard};

use super::controller::{Controller, HostIdentity};
use super::namespace::{Namespace, NamespaceAccess, NamespaceConfig, NamespaceTable};
use super::queue::{ControllerQueue, IoTotals, OrphanedQueues};
use super::reservation::{NamespaceReservations, ReservationTurn, Restriction};
use super::{Listener, TargetError};
use crate::limits::{ALLOWED_HOSTS, COUNTED_HOSTS, DRAIN_PERIOD, LISTENERS};

/// Configuration of a subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// NQN; must differ from the discovery subsystem's.
    pub nqn: Nqn,
    /// Serial number, 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Hosts that may connect; `None` allows all.
    pub allow_hosts: Option<Vec<Nqn>>,
    /// Keys by host, also of hosts that may not connect. If a host that may connect has a key, a
    /// host without a key cannot connect, and other hosts have to authenticate (Base 8.3.5), unless
    /// their keys are optional.
    pub keys: BTreeMap<Nqn, KeyPair>,
}

/// Purpose of a subsystem's controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubsystemKind {
    /// I/O to namespaces.
    Io,
    Discovery,
}

/// Subsystem with its namespaces and controllers.
pub(crate) struct ServedSubsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: String,
    pub(super) kind: SubsystemKind,
    /// Absent from discovery logs.
    hidden: bool,
    /// Connects are refused for now.
    held: AtomicBool,
    /// `None` allows all.
    hosts: Mutex<Option<BTreeSet<Nqn>>>,
    keys: BTreeMap<Nqn, KeyPair>,
    /// Ports of other nodes that serve it.
    remote_ports: Mutex<Vec<Listener>>,
    namespaces: Mutex<Namespaces>,
    /// Generation of the table in `namespaces`, which connections compare with the generation of
    /// their snapshot.
    generation: AtomicU64,
    ana_changes: AtomicU64,
    controllers: Mutex<Controllers>,
    /// I/O queues whose connections are alive, closed or not.
    queues: Mutex<Vec<Weak<ControllerQueue>>>,
    pub(super) reservation_turn: ReservationTurn,
    /// By host. Entries expire with the host's controllers and connections.
    orphaned: Mutex<BTreeMap<HostKey, Weak<OrphanedQueues>>>,
    /// I/O totals of ended queues.
    totals: Mutex<TotalsByHost>,
}

type HostKey = (Nqn, [u8; 16]);

/// I/O totals by host; `None` has the hosts beyond [`COUNTED_HOSTS`].
type TotalsByHost = BTreeMap<Option<Nqn>, IoTotals>;

/// Adds totals of `host`.
fn add_to(totals: &mut TotalsByHost, host: &Nqn, more: IoTotals) {
    let is_counted = totals.contains_key(&Some(*host)) || totals.len() < COUNTED_HOSTS;
    *totals.entry(is_counted.then_some(*host)).or_default() += more;
}

struct Namespaces {
    table: Arc<NamespaceTable>,
    uuids: BTreeSet<[u8; 16]>,
}

struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    /// Most recently assigned identifier. The search for a free one continues from here, to avoid
    /// quick reuse.
    last_id: u16,
    /// The subsystem was removed: Connects are refused.
    closed: bool,
}

impl ServedSubsystem {
    pub(super) fn new(
        config: SubsystemConfig,
        kind: SubsystemKind,
    ) -> Result<ServedSubsystem, TargetError> {
        let SubsystemConfig { nqn, serial, allow_hosts, keys } = config;
        if !(1..=20).contains(&serial.len()) || !serial.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return Err(TargetError::Serial(serial));
        }
        let hosts = host_set(allow_hosts)?;
        let table = Arc::new(NamespaceTable::empty());
        Ok(ServedSubsystem {
            nqn,
            serial,
            kind,
            hidden: false,
            held: AtomicBool::new(false),
            hosts: Mutex::new(hosts),
            keys,
            remote_ports: Mutex::default(),
            namespaces: Mutex::new(Namespaces { table, uuids: BTreeSet::new() }),
            generation: AtomicU64::new(0),
            ana_changes: AtomicU64::new(1),
            controllers: Mutex::new(Controllers {
                live: BTreeMap::new(),
                last_id: 0,
                closed: false,
            }),
            queues: Mutex::default(),
            reservation_turn: ReservationTurn::default(),
            orphaned: Mutex::default(),
            totals: Mutex::default(),
        })
    }

    /// The same subsystem, absent from discovery logs.
    pub(super) fn hide(self) -> ServedSubsystem {
        ServedSubsystem { hidden: true, ..self }
    }

    /// True if absent from discovery logs. Such subsystems are used by programs, which connect
    /// often.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// True if `host` finds it in the discovery log.
    pub(super) fn is_discovered_by(&self, host: &Nqn) -> bool {
        !self.hidden && self.allows(host)
    }

    /// True if `host` may connect.
    pub(super) fn allows(&self, host: &Nqn) -> bool {
        is_allowed(&self.hosts.lock(), host)
    }

    /// True if any host may connect, even one without a name.
    pub(super) fn allows_all(&self) -> bool {
        self.hosts.lock().is_none()
    }

    /// True if hosts need keys: a host that may connect has a key.
    pub(super) fn requires_authentication(&self) -> bool {
        let hosts = self.hosts.lock();
        self.keys.keys().any(|host| is_allowed(&hosts, host))
    }

    /// Keys of `host`.
    pub(super) fn keys_of(&self, host: &Nqn) -> Option<&KeyPair> {
        self.keys.get(host)
    }

    /// Ports of other nodes that serve it.
    pub(super) fn remote_ports(&self) -> Vec<Listener> {
        self.remote_ports.lock().clone()
    }

    /// Adds a port of another node. False if it was known.
    ///
    /// # Errors
    /// [`TargetError::Full`].
    pub(super) fn add_remote_port(&self, port: Listener) -> Result<bool, TargetError> {
        let mut ports = self.remote_ports.lock();
        if ports.iter().any(|known| known.address == port.address) {
            return Ok(false);
        }
        if ports.len() >= LISTENERS {
            return Err(TargetError::Full);
        }
        ports.push(port);
        Ok(true)
    }

    /// Removes a port of another node. False if it was not known.
    pub(super) fn remove_remote_port(&self, address: std::net::SocketAddr) -> bool {
        let mut ports = self.remote_ports.lock();
        let before = ports.len();
        ports.retain(|port| port.address != address);
        ports.len() < before
    }

    /// Sets whether Connects are refused for now; returns the previous value.
    pub(super) fn set_suspended(&self, held: bool) -> bool {
        self.held.swap(held, Ordering::AcqRel)
    }

    /// True if Connects are refused for now.
    pub(super) fn is_suspended(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Allow-list; `None` allows all hosts.
    pub(super) fn allowed_hosts(&self) -> Option<Vec<Nqn>> {
        self.hosts.lock().as_ref().map(|hosts| hosts.iter().copied().collect())
    }

    /// Sets the allow-list. Disconnects hosts that are no longer on it, and hosts that have proven
    /// no key, if hosts need keys from now on.
    pub(super) fn set_allowed_hosts(&self, hosts: Option<Vec<Nqn>>) -> Result<(), TargetError> {
        let needed_keys = self.requires_authentication();
        *self.hosts.lock() = host_set(hosts)?;
        let needs_keys = !needed_keys && self.requires_authentication();
        for controller in self.controllers() {
            if !self.allows(&controller.host.nqn) {
                controller.destroy("host no longer allowed");
            } else if needs_keys && !controller.is_authenticated() {
                controller.destroy("hosts need keys now");
            }
        }
        Ok(())
    }

    pub(super) fn table(&self) -> Arc<NamespaceTable> {
        self.namespaces.lock().table.clone()
    }

    /// Generation of [`ServedSubsystem::table`].
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Number of changes of the ANA log, from 1.
    pub(super) fn ana_changes(&self) -> u64 {
        self.ana_changes.load(Ordering::Acquire)
    }

    /// Adds a pending namespace and notifies hosts.
    ///
    /// # Errors
    /// [`TargetError::NamespaceId`], [`TargetError::NamespaceExists`].
    pub(super) fn add_pending_namespace(&self, nsid: u32, max: u32) -> Result<(), TargetError> {
        if !(1..=max).contains(&nsid) {
            return Err(TargetError::NamespaceId { nsid, max });
        }
        let mut namespaces = self.namespaces.lock();
        if namespaces.table.get(nsid).is_some() || namespaces.table.is_pending(nsid) {
            return Err(TargetError::NamespaceExists(nsid));
        }
        Arc::make_mut(&mut namespaces.table).insert_pending(nsid);
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.events.namespace_changed(nsid);
            controller.events.raise(AsyncEvent::ANA_CHANGED);
        }
        Ok(())
    }

    /// Adds a namespace and notifies hosts. If it is the first with a volatile write cache,
    /// controllers that reported none are disconnected, because their hosts would never flush.
    pub(super) fn add_namespace(
        &self,
        config: NamespaceConfig,
        access: NamespaceAccess,
        max_namespaces: u32,
    ) -> Result<u32, TargetError> {
        if config.uuid == [0; 16] {
            return Err(TargetError::Uuid);
        }
        let mut namespaces = self.namespaces.lock();
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
        let namespace = Namespace::new(nsid, config, access).ok_or(TargetError::Device)?;
        let volatile_cache = namespace.geometry.volatile_cache && !namespace.read_only;
        let was_pending = namespaces.table.is_pending(nsid);
        namespaces.uuids.insert(namespace.uuid);
        Arc::make_mut(&mut namespaces.table).insert(Arc::new(namespace));
        self.publish(namespaces);
        for controller in self.controllers() {
            if volatile_cache && !controller.volatile_cache {
                controller.destroy("namespace with a volatile write cache added");
                continue;
            }
            controller.events.namespace_changed(nsid);
            if was_pending {
                controller.events.raise(AsyncEvent::ANA_CHANGED);
            }
        }
        Ok(nsid)
    }

    /// Removes a namespace and notifies hosts.
    pub(super) fn remove_namespace(&self, nsid: u32) -> Result<Arc<Namespace>, TargetError> {
        let mut namespaces = self.namespaces.lock();
        let removed = match namespaces.table.get(nsid) {
            Some(namespace) => namespace.clone(),
            None => return Err(TargetError::NoNamespace(nsid)),
        };
        Arc::make_mut(&mut namespaces.table).remove(nsid);
        namespaces.uuids.remove(&removed.uuid);
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.events.namespace_changed(nsid);
        }
        Ok(removed)
    }

    /// Removes all namespaces. Connections that are ending may still have some of them.
    pub(super) fn clear(&self) -> Vec<Weak<Namespace>> {
        let mut namespaces = self.namespaces.lock();
        let removed: Vec<_> = namespaces.table.iter().map(Arc::downgrade).collect();
        let nsids: Vec<u32> = namespaces.table.iter().map(|namespace| namespace.nsid).collect();
        let table = Arc::make_mut(&mut namespaces.table);
        for nsid in nsids {
            table.remove(nsid);
        }
        namespaces.uuids.clear();
        self.publish(namespaces);
        removed
    }

    /// Waits for the I/O commands that were admitted before: see [`super::Target::drained`].
    pub(super) async fn drained(&self) {
        // Commands that cores are executing now still use the previous table.
        grace_period(&cores()).await;
        let mut busy = self.busy_queues();
        while !busy.is_empty() {
            time::sleep(DRAIN_PERIOD).await;
            busy.retain(|queue| queue.upgrade().is_some_and(|queue| !queue.is_idle()));
        }
    }

    /// Takes over the current size of a namespace's device, and notifies hosts of a new size.
    pub(super) fn resize_namespace(&self, nsid: u32) -> Result<(), TargetError> {
        let mut namespaces = self.namespaces.lock();
        let found = namespaces.table.get(nsid).ok_or(TargetError::NoNamespace(nsid))?;
        let resized = found.resized().ok_or(TargetError::Device)?;
        if resized.blocks == found.blocks {
            return Ok(());
        }
        Arc::make_mut(&mut namespaces.table).insert(Arc::new(resized));
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.events.namespace_changed(nsid);
        }
        Ok(())
    }

    /// Publishes the restriction of a namespace, unless the namespace was removed or replaced.
    pub(super) fn set_restriction(
        &self,
        nsid: u32,
        reservations: &Arc<NamespaceReservations>,
        restriction: Option<Arc<Restriction>>,
    ) {
        let mut namespaces = self.namespaces.lock();
        let Some(found) = namespaces.table.get(nsid) else { return };
        if !found.reservations.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, reservations)) {
            return;
        }
        let restricted = Namespace { restriction, ..(**found).clone() };
        Arc::make_mut(&mut namespaces.table).insert(Arc::new(restricted));
        self.publish(namespaces);
    }

    /// Sets the ANA state and notifies hosts.
    pub(super) fn set_ana_state(&self, state: AnaState) {
        let mut namespaces = self.namespaces.lock();
        if namespaces.table.ana() == state {
            return;
        }
        Arc::make_mut(&mut namespaces.table).set_ana(state);
        self.publish(namespaces);
        for controller in self.controllers() {
            controller.events.raise(AsyncEvent::ANA_CHANGED);
        }
    }

    /// Publishes a new table to connections and to the ANA log.
    fn publish(&self, namespaces: MutexGuard<'_, Namespaces>) {
        self.generation.store(namespaces.table.generation(), Ordering::Release);
        // The ANA log also lists the namespaces of the group.
        self.ana_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// True if a namespace has a volatile write cache that hosts must flush.
    pub(super) fn volatile_cache(&self) -> bool {
        self.table().iter().any(|ns| ns.geometry.volatile_cache && !ns.read_only)
    }

    /// Creates a controller with a unique identifier; `None` when all are in use or the subsystem
    /// is closed.
    pub(super) fn add_controller(
        &self,
        ids: &RangeInclusive<u16>,
        make: impl FnOnce(u16) -> Controller,
    ) -> Option<Arc<Controller>> {
        let mut controllers = self.controllers.lock();
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

    /// Registers an I/O queue for [`ServedSubsystem::busy_queues`].
    pub(super) fn add_queue(&self, queue: &Arc<ControllerQueue>) {
        let mut queues = self.queues.lock();
        // Prune only when full, for an amortized constant cost per queue.
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
    }

    /// I/O queues with commands in flight, including closed ones.
    pub(super) fn busy_queues(&self) -> Vec<Weak<ControllerQueue>> {
        let busy =
            |queue: &Weak<ControllerQueue>| queue.upgrade().is_some_and(|queue| !queue.is_idle());
        self.queues.lock().iter().filter(|queue| busy(queue)).cloned().collect()
    }

    /// I/O queues of other hosts than `host`, including closed ones.
    pub(super) fn queues_of_others(&self, host: &HostIdentity) -> Vec<Arc<ControllerQueue>> {
        let queues = self.queues.lock();
        queues.iter().filter_map(Weak::upgrade).filter(|queue| queue.host != *host).collect()
    }

    pub(super) fn remove_controller(&self, id: u16) {
        self.controllers.lock().live.remove(&id);
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers.lock().live.get(&id).cloned()
    }

    /// Live controllers, by ascending identifier.
    pub(super) fn controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers.lock().live.values().cloned().collect()
    }

    /// True after [`ServedSubsystem::close`].
    pub(super) fn is_closed(&self) -> bool {
        self.controllers.lock().closed
    }

    /// Refuses all Connects from now on, and disconnects all hosts.
    pub(super) fn close(&self, why: &'static str) {
        self.controllers.lock().closed = true;
        self.disconnect(why);
    }

    pub(super) fn disconnect(&self, why: &'static str) {
        for controller in self.controllers() {
            controller.destroy(why);
        }
    }

    /// Closed queues of `host`, shared by all its controllers.
    pub(super) fn orphaned_queues_of(&self, host: &HostIdentity) -> Arc<OrphanedQueues> {
        let mut hosts = self.orphaned.lock();
        hosts.retain(|_, orphaned| orphaned.strong_count() > 0);
        let known = hosts.entry((host.nqn, host.id)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let orphaned = Arc::default();
            *known = Arc::downgrade(&orphaned);
            orphaned
        })
    }

    /// Adds totals of an ended queue of `host`.
    pub(super) fn add_totals(&self, host: &Nqn, more: IoTotals) {
        add_to(&mut self.totals.lock(), host, more);
    }

    /// I/O totals of all queues, past and present, by host. `None` has the hosts beyond
    /// [`COUNTED_HOSTS`].
    pub(super) fn totals_by_host(&self) -> BTreeMap<Option<Nqn>, IoTotals> {
        let mut totals = self.totals.lock().clone();
        for controller in self.controllers() {
            add_to(&mut totals, &controller.host.nqn, controller.queue_totals());
        }
        totals
    }

    /// I/O totals of all queues, past and present.
    pub(super) fn totals(&self) -> IoTotals {
        let mut totals = IoTotals::default();
        self.totals_by_host().into_values().for_each(|more| totals += more);
        totals
    }
}

fn is_allowed(hosts: &Option<BTreeSet<Nqn>>, host: &Nqn) -> bool {
    hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
}

fn host_set(hosts: Option<Vec<Nqn>>) -> Result<Option<BTreeSet<Nqn>>, TargetError> {
    match hosts {
        Some(hosts) if hosts.len() > ALLOWED_HOSTS => Err(TargetError::Full),
        hosts => Ok(hosts.map(BTreeSet::from_iter)),
    }
}

impl std::fmt::Debug for ServedSubsystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subsystem").field("nqn", &self.nqn).finish_non_exhaustive()
    }
}
