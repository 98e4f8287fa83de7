//! The target without its bytes: what may connect to what, and what controllers answer.
//!
//! Connections (the PDU loop and I/O commands) call down into this; it never waits and never
//! touches a socket but to end it. All of it is shared by the cores: locks are held for a few
//! instructions, and what an I/O command needs (its namespace, whether the controller is ready) is
//! read without one.
//!
//! Read in this order: [`config`] and [`Target`] (what is served), `subsystem` and [`namespace`],
//! `connect` (the way in), `controller` (a host's view and its life), `admin` with `identify`,
//! `feature`, `log`, `discovery` and `event` (what it answers), [`status`] (what people see).
//!
//! Specifications: NVM Express Base 2.0, NVM Command Set 1.0, NVMe/TCP Transport 1.0; section
//! numbers are those of Base 2.1.

mod admin;
pub mod config;
mod connect;
mod connection;
mod controller;
mod discovery;
mod error_log;
mod event;
mod fabrics;
mod feature;
mod identify;
mod io;
mod keep_alive;
mod log;
pub mod namespace;
mod queue;
pub mod status;
mod subsystem;
pub mod vendor;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_nvme::Nqn;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::log::AnaState;
use flagstone_runtime::net::Address;
use flagstone_runtime::{cores, time};

use crate::countdown::pass_by_all;
use crate::limits::{DRAIN_PERIOD, LISTENERS, SUBSYSTEMS};

pub(crate) use admin::{AdminReply, admin_data_bytes};
pub use config::{ConfigError, TargetConfig};
pub(crate) use connect::{Connected, connect};
pub use connection::serve;
pub(crate) use controller::Controller;
pub(crate) use error_log::NO_LOCATION;
pub use namespace::{Namespace, NamespaceConfig, NamespaceTable};
pub use queue::IoTotals;
pub(crate) use queue::Queue;
pub use subsystem::SubsystemConfig;
use subsystem::{Kind, Subsystem};
pub use vendor::{
    Charge, Parked, VendorCommands, VendorHandler, VendorHost, VendorReply, VendorSession,
};

/// Why something cannot be served, or is not there to be taken away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// A subsystem of this name exists, or the name is that of the discovery subsystem.
    #[error("a subsystem {0} exists already")]
    SubsystemExists(Box<Nqn>),
    /// No subsystem has this name.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Box<Nqn>),
    /// A serial number that hosts cannot be told.
    #[error("serial number {0:?} must be 1 to 20 printable ASCII characters")]
    Serial(String),
    /// An identifier out of range.
    #[error("namespace identifier {nsid} must be 1 to {max}")]
    NamespaceId {
        /// The identifier.
        nsid: u32,
        /// The largest of this target.
        max: u32,
    },
    /// The identifier is in use.
    #[error("namespace {0} exists already")]
    NamespaceExists(u32),
    /// No namespace has this identifier.
    #[error("there is no namespace {0}")]
    NoNamespace(u32),
    /// A UUID of 0.
    #[error("the UUID of a namespace must not be 0")]
    Uuid,
    /// Hosts refuse a subsystem with two namespaces of one UUID.
    #[error("another namespace of the subsystem has this UUID")]
    UuidTaken,
    /// The device has no blocks, or blocks that NVMe cannot describe.
    #[error("the device is empty, or its blocks are not a power of two from 512 B to 64 KiB")]
    Device,
    /// Only TCP addresses can be in the discovery log.
    #[error("{0} is not a TCP address")]
    NotTcp(String),
    /// A limit of this crate is reached.
    #[error("no room for more")]
    Full,
}

/// Everything that is served over NVMe/TCP by this process.
///
/// May be asked and changed from any thread. What disconnects hosts is to be called on a core of
/// the runtime, as sockets are ended there: elsewhere hosts are refused everything, but see it only
/// when they next ask.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    served: Mutex<Served>,
    discovery: Arc<Subsystem>,
    /// Changes of what the discovery log says (GENCTR).
    discovery_changes: AtomicU64,
    controllers: AtomicU32,
    draining: AtomicBool,
}

#[derive(Debug, Default)]
struct Served {
    subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    listeners: Vec<Listener>,
}

/// An address that hosts connect to, as a port of every subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) port_id: u16,
}

impl Target {
    /// A target that serves nothing yet.
    ///
    /// # Errors
    /// What is wrong with `config`.
    pub fn new(config: TargetConfig) -> Result<Arc<Target>, ConfigError> {
        config.check()?;
        let discovery = SubsystemConfig {
            nqn: Nqn::discovery(),
            serial: "discovery".to_owned(),
            allow_hosts: Vec::new(),
        };
        let discovery = Subsystem::new(discovery, Kind::Discovery)
            .map_err(|_| ConfigError { field: "serial", expected: "printable" })?;
        Ok(Arc::new(Target {
            config,
            served: Mutex::default(),
            discovery: Arc::new(discovery),
            discovery_changes: AtomicU64::new(1),
            controllers: AtomicU32::new(0),
            draining: AtomicBool::new(false),
        }))
    }

    /// Its sizes, counts and time-outs.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Serves a subsystem, as yet without namespaces.
    ///
    /// # Errors
    /// [`TargetError::SubsystemExists`], [`TargetError::Serial`], [`TargetError::Full`].
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.add(Subsystem::new(config, Kind::Io)?)
    }

    /// As [`Target::add_subsystem`], of one that is in no discovery log: hosts must know its name.
    ///
    /// # Errors
    /// The same.
    pub fn add_hidden_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.add(Subsystem::new(config, Kind::Io)?.hide())
    }

    fn add(&self, subsystem: Subsystem) -> Result<(), TargetError> {
        let (nqn, subsystem) = (subsystem.nqn, Arc::new(subsystem));
        {
            let mut served = lock(&self.served);
            if nqn.is_discovery() || served.subsystems.contains_key(&nqn) {
                return Err(TargetError::SubsystemExists(Box::new(nqn)));
            }
            if served.subsystems.len() >= SUBSYSTEMS {
                return Err(TargetError::Full);
            }
            served.subsystems.insert(nqn, subsystem.clone());
        }
        self.discovery_changed(|host| subsystem.is_discovered_by(host));
        Ok(())
    }

    /// Stops serving a subsystem: its hosts are disconnected and find it gone.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let removed = lock(&self.served).subsystems.remove(nqn);
        let subsystem = removed.ok_or_else(|| no_subsystem(nqn))?;
        subsystem.close("its subsystem was removed");
        self.discovery_changed(|host| subsystem.is_discovered_by(host));
        Ok(())
    }

    /// Lets no host connect to a subsystem that is not ready, until [`Target::admit`]: Connect is
    /// answered with Connect Controller Busy, which hosts retry. A host that connected and found a
    /// namespace missing would give it up. It is in the discovery log all the same.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn hold(&self, nqn: &Nqn) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_held(true);
        Ok(())
    }

    /// Lets hosts connect to a subsystem that was held; hosts that follow the discovery log are told
    /// that there is something new.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn admit(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        if subsystem.set_held(false) {
            self.discovery_changed(|host| subsystem.is_discovered_by(host));
        }
        Ok(())
    }

    /// Changes which hosts may connect to a subsystem, empty lets any; hosts that no longer may are
    /// disconnected.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::Full`].
    pub fn set_allowed_hosts(&self, nqn: &Nqn, hosts: Vec<Nqn>) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_allowed_hosts(hosts)?;
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Serves a device as a namespace of subsystem `nqn`, and tells the hosts that are connected;
    /// gives its identifier. Hosts that were told that the subsystem has no volatile write cache
    /// are disconnected, to learn better, when this device has one.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`] and all that is about namespaces.
    pub fn add_namespace(&self, nqn: &Nqn, config: NamespaceConfig) -> Result<u32, TargetError> {
        self.subsystem_named(nqn)?.add_namespace(config, None, self.config.max_namespaces)
    }

    /// As [`Target::add_namespace`], with vendor specific commands: `handler` carries them out, and
    /// gives each host the device that its ordinary commands go to.
    ///
    /// # Errors
    /// The same.
    pub fn add_vendor_namespace(
        &self,
        nqn: &Nqn,
        config: NamespaceConfig,
        handler: Arc<dyn VendorHandler>,
    ) -> Result<u32, TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        subsystem.add_namespace(config, Some(handler), self.config.max_namespaces)
    }

    /// Stops serving a namespace and tells the hosts that are connected. Commands that have begun
    /// end as they would have; the device is free when the last of them has, and within a second.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::NoNamespace`].
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<Arc<Namespace>, TargetError> {
        self.subsystem_named(nqn)?.remove_namespace(nsid)
    }

    /// A namespace's device has another size: from now on it is served with that one, and hosts are
    /// told (Namespace Attribute Changed), without a new connection. Commands in hand are not
    /// touched.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::NoNamespace`]; [`TargetError::Device`] when it
    /// has no blocks.
    pub fn resize_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.resize_namespace(nsid)
    }

    /// Says how well the namespaces of a subsystem are reached here (ANA), and tells the hosts.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn set_ana_state(&self, nqn: &Nqn, state: AnaState) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_ana_state(state);
        Ok(())
    }

    /// Waits until every I/O command of a subsystem has ended that was admitted before this call:
    /// what [`Target::set_ana_state`] with a state that refuses commands leaves to be waited for
    /// before another node may write. Commands that come later are refused and not waited for,
    /// however many; neither is a write whose data the host still owes, which will be refused when
    /// the data is there. Commands of connections that were cut are. With a state that admits
    /// commands it waits for a moment of each queue in which there are none. Bounded by nothing: a
    /// device that never answers is waited for. To be awaited on a core of the runtime.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub async fn drained(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        // What cores carry out at this moment under the table before.
        pass_by_all(&cores()).await;
        let mut busy = subsystem.busy_queues();
        while !busy.is_empty() {
            time::sleep(DRAIN_PERIOD).await;
            busy.retain(|queue| queue.upgrade().is_some_and(|queue| !queue.is_idle()));
        }
        Ok(())
    }

    /// Puts an address that connections are accepted on into the discovery log. An unspecified IP
    /// address (0.0.0.0 or ::) is given to each host as the address that it connected to.
    ///
    /// # Errors
    /// [`TargetError::NotTcp`], [`TargetError::Full`].
    pub fn add_listener(&self, address: &Address) -> Result<(), TargetError> {
        let Address::Tcp(address) = *address else {
            return Err(TargetError::NotTcp(address.to_string()));
        };
        {
            let mut served = lock(&self.served);
            if served.listeners.iter().any(|listener| listener.address == address) {
                return Ok(());
            }
            if served.listeners.len() >= LISTENERS {
                return Err(TargetError::Full);
            }
            let used = |id: &u16| served.listeners.iter().any(|listener| listener.port_id == *id);
            let first = self.config.first_port_id;
            let mut ids = first..=first + (LISTENERS as u16 - 1);
            let port_id = ids.find(|id| !used(id)).ok_or(TargetError::Full)?;
            served.listeners.push(Listener { address, port_id });
        }
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Takes an address out of the discovery log; one that is not in it is no error.
    pub fn remove_listener(&self, address: &Address) {
        let Address::Tcp(address) = *address else { return };
        let removed = {
            let mut served = lock(&self.served);
            let before = served.listeners.len();
            served.listeners.retain(|listener| listener.address != address);
            served.listeners.len() < before
        };
        if removed {
            self.discovery_changed(|_| true);
        }
    }

    /// Lets no host connect from now on: Connect is answered with Connect Controller Busy, which
    /// hosts retry later. Those that are connected go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Disconnects all hosts. Their controllers and queues are gone when this returns; the tasks
    /// of the connections end a little later.
    pub fn disconnect_all(&self) {
        for subsystem in self.subsystems() {
            subsystem.disconnect("the target ends");
        }
        self.discovery.disconnect("the target ends");
    }

    /// How many controllers there are, discovery controllers included.
    pub fn controllers(&self) -> u32 {
        self.controllers.load(Ordering::Acquire)
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Takes one of the controllers that may be; false when all are taken.
    fn reserve_controller(&self) -> bool {
        let most = self.config.max_controllers;
        let more = |live: u32| (live < most).then_some(live + 1);
        self.controllers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn release_controller(&self) {
        self.controllers.fetch_sub(1, Ordering::AcqRel);
    }

    /// The subsystem that a host calls `nqn`.
    fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        if nqn.is_discovery() {
            return Some(self.discovery.clone());
        }
        lock(&self.served).subsystems.get(nqn).cloned()
    }

    fn subsystem_named(&self, nqn: &Nqn) -> Result<Arc<Subsystem>, TargetError> {
        lock(&self.served).subsystems.get(nqn).cloned().ok_or_else(|| no_subsystem(nqn))
    }

    fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        lock(&self.served).subsystems.values().cloned().collect()
    }

    fn listeners(&self) -> Vec<Listener> {
        lock(&self.served).listeners.clone()
    }

    /// Counts a change of the discovery log and tells the hosts that see it.
    fn discovery_changed(&self, visible: impl Fn(&Nqn) -> bool) {
        self.discovery_changes.fetch_add(1, Ordering::AcqRel);
        for controller in self.discovery.controllers() {
            if visible(&controller.host.nqn) {
                controller.events.raise(AsyncEvent::DISCOVERY_CHANGED);
            }
        }
    }
}

fn no_subsystem(nqn: &Nqn) -> TargetError {
    TargetError::NoSubsystem(Box::new(*nqn))
}

/// Locks a mutex that is held for a few instructions. A panic in them leaves nothing half done
/// that the next holder could trip over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
