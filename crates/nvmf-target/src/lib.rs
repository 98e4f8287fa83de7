//! NVMe/TCP target: serves block devices as namespaces of subsystems.
//!
//! [`serve`] runs one connection: the PDU loop and the I/O commands. It calls the rest of this
//! crate, which never waits and touches a socket only to close it. All cores share this state.
//! Locks are held for a few instructions. I/O commands read what they need (the namespace,
//! controller readiness) without a lock.
//!
//! Reading order: [`config`] and [`Target`] (configuration), `subsystem` and [`namespace`],
//! `connect`, `controller` (a host's association), `admin` with `identify`, `feature`, `log`,
//! `discovery` and `event` (replies), `reservation` (which hosts may read and write), `connection`
//! (the PDU loop), [`status`] (snapshots for operators).
//!
//! Specifications: NVM Express Base 2.0, NVM Command Set 1.0, NVMe/TCP Transport 1.0; section
//! numbers refer to Base 2.1.

mod admin;
mod concatenation;
pub mod config;
mod connect;
mod connection;
mod controller;
mod copy;
mod discovery;
mod error_log;
mod event;
mod fabrics;
mod feature;
mod generated_psks;
mod handshakes;
mod identify;
mod io;
mod keep_alive;
mod limits;
mod log;
pub mod namespace;
mod queue;
mod reservation;
pub mod status;
mod subsystem;
mod tls;
pub mod vendor;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use flagstone_nvme::Nqn;
use flagstone_nvme::command::fabrics::ConnectField;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::log::AnaState;
use flagstone_nvme::status::Status;
use flagstone_runtime::buf::{self, BufferShares};
use flagstone_runtime::net::Address;
use flagstone_runtime::time;
use flagstone_runtime::tls::{TlsConfigError, TlsServer};
use parking_lot::Mutex;

use crate::limits::{
    DRAIN_PERIOD, GENERATED_PSK_PERIOD, LISTENERS, SUBSYSTEMS, UNPROVEN_PER_SOURCE,
};
use flagstone_transport::{InFlight, PskChooser, RefusalLog};

pub(crate) use admin::admin_data_bytes;
pub use config::{ConfigError, TargetConfig};
use connect::ConnectRefusal;
pub(crate) use connect::{Connected, connect};
pub use connection::{serve, serve_listener};
pub(crate) use controller::Controller;
use handshakes::Handshakes;
pub use handshakes::{AuthenticationTotals, FailureReason};
use namespace::NamespaceAccess;
pub use namespace::{Namespace, NamespaceConfig, NamespaceTable};
pub(crate) use queue::ControllerQueue;
pub use queue::IoTotals;
pub use reservation::{
    RESERVATION_RECORD_MAX_BYTES, ReservationReplication, ReservationState, ReservationStore,
};
pub use subsystem::SubsystemConfig;
use subsystem::{ServedSubsystem, SubsystemKind};
use tls::{HandshakeKeys, TlsKeys};
pub use tls::{HostTls, TlsFailureReason, TlsMode, TlsTotals};
pub use vendor::{
    Charge, CommandReply, DependentCommand, VendorCommands, VendorHandler, VendorHost,
    VendorSession,
};

/// Error of a change to the target's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The name is in use, or is the discovery subsystem's name.
    #[error("subsystem {0} already exists")]
    SubsystemExists(Box<Nqn>),
    /// No subsystem has this name.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Box<Nqn>),
    /// The serial number cannot be reported to hosts.
    #[error("serial number {0:?} must be 1 to 20 printable ASCII characters")]
    Serial(String),
    /// Namespace identifier out of range.
    #[error("namespace identifier {nsid} must be 1 to {max}")]
    NamespaceId {
        /// The identifier.
        nsid: u32,
        /// Largest identifier of this target.
        max: u32,
    },
    /// The identifier is in use.
    #[error("namespace {0} already exists")]
    NamespaceExists(u32),
    /// No namespace has this identifier.
    #[error("there is no namespace {0}")]
    NoNamespace(u32),
    /// A UUID of 0.
    #[error("the UUID of a namespace must not be 0")]
    Uuid,
    /// Hosts reject a subsystem with two namespaces of equal UUID.
    #[error("another namespace of the subsystem has this UUID")]
    UuidTaken,
    /// The device has no blocks, or a block size that NVMe cannot describe.
    #[error("the device is empty, or its blocks are not a power of two from 512 B to 64 KiB")]
    Device,
    /// The stored reservations of a namespace cannot be used.
    #[error(
        "the stored reservations cannot be used: {0}; restore the file, or delete it to release \
         the reservations of the volume's hosts"
    )]
    ReservationRecord(&'static str),
    /// Only TCP addresses are valid in the discovery log.
    #[error("{0} is not a TCP address")]
    NotTcp(String),
    /// A limit of this crate was reached.
    #[error("a limit of this target is reached")]
    Full,
}

/// Subsystems, namespaces and listeners that this process serves over NVMe/TCP.
///
/// All methods may be called from any thread. Methods that disconnect hosts should run on a core of
/// the runtime, which can close sockets. Elsewhere the commands of those hosts fail, but their
/// connections stay open until the next command.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    served: Mutex<Served>,
    discovery: Arc<ServedSubsystem>,
    /// Changes of the discovery log (GENCTR).
    discovery_changes: AtomicU64,
    controllers: AtomicU32,
    draining: AtomicBool,
    missing: Mutex<MissingSubsystems>,
    /// Refused Connects.
    refusals: RefusalLog,
    /// Connections that ended with an error.
    ends: RefusalLog,
    /// Connections whose host has not proven that it may use volumes. One address has at most half
    /// of all connections in this way, so that it leaves room for others.
    unproven: Arc<InFlight>,
    handshakes: Arc<Handshakes>,
    authentication_refusals: RefusalLog,
    tls: Arc<TlsKeys>,
    /// Made for the first handshake.
    tls_server: OnceLock<TlsServer>,
    tls_refusals: RefusalLog,
    shares: OnceLock<Arc<BufferShares>>,
}

/// Subsystems that do not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingSubsystems {
    /// These.
    Named(BTreeSet<Nqn>),
    /// Unknown ones.
    Any,
}

impl Default for MissingSubsystems {
    fn default() -> MissingSubsystems {
        MissingSubsystems::Named(BTreeSet::new())
    }
}

#[derive(Debug, Default)]
struct Served {
    subsystems: BTreeMap<Nqn, Arc<ServedSubsystem>>,
    listeners: Vec<Listener>,
}

/// Address that hosts connect to; a port of every subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) port_id: u16,
    pub(crate) tls: TlsMode,
}

impl Target {
    /// Creates a target without subsystems.
    ///
    /// # Errors
    /// The invalid field of `config`.
    pub fn new(config: TargetConfig) -> Result<Arc<Target>, ConfigError> {
        config.check()?;
        let discovery = SubsystemConfig {
            nqn: Nqn::discovery(),
            serial: "discovery".to_owned(),
            allow_hosts: None,
            keys: BTreeMap::new(),
        };
        let discovery = ServedSubsystem::new(discovery, SubsystemKind::Discovery)
            .map_err(|_| ConfigError { field: "serial", expected: "printable" })?;
        let handshakes = Arc::<Handshakes>::default();
        let tls = Arc::new(TlsKeys::new(handshakes.delays()));
        let connections = config.max_controllers as usize;
        let per_source = UNPROVEN_PER_SOURCE.max(connections / 2);
        let unproven = InFlight::new(usize::MAX, per_source);
        Ok(Arc::new(Target {
            config,
            served: Mutex::default(),
            discovery: Arc::new(discovery),
            discovery_changes: AtomicU64::new(1),
            controllers: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            missing: Mutex::default(),
            refusals: RefusalLog::new("NVMe/TCP Connect"),
            ends: RefusalLog::of_ends("NVMe/TCP connection"),
            unproven,
            handshakes,
            authentication_refusals: RefusalLog::new("NVMe/TCP authentication"),
            tls,
            tls_server: OnceLock::new(),
            tls_refusals: RefusalLog::new("TLS of NVMe/TCP"),
            shares: OnceLock::new(),
        }))
    }

    /// Shares the buffer memory with other servers of this process. Without it, or after the first
    /// connection, the target has shares of its own.
    pub fn share_buffers(&self, shares: Arc<BufferShares>) {
        let _ = self.shares.set(shares);
    }

    pub(crate) fn shares(&self) -> &Arc<BufferShares> {
        let connections = self.config.max_controllers as usize;
        self.shares.get_or_init(|| BufferShares::new(buf::memory_limit(), connections))
    }

    /// Sizes, counts and timeouts.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Adds a subsystem without namespaces.
    ///
    /// # Errors
    /// [`TargetError::SubsystemExists`], [`TargetError::Serial`], [`TargetError::Full`].
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.add(ServedSubsystem::new(config, SubsystemKind::Io)?)
    }

    /// Like [`Target::add_subsystem`], but Connects are refused until [`Target::resume_connects`].
    ///
    /// # Errors
    /// As [`Target::add_subsystem`].
    pub fn add_suspended_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        let subsystem = ServedSubsystem::new(config, SubsystemKind::Io)?;
        subsystem.set_suspended(true);
        self.add(subsystem)
    }

    /// Like [`Target::add_subsystem`], but the subsystem is absent from discovery logs, so hosts
    /// must know its name.
    ///
    /// # Errors
    /// As [`Target::add_subsystem`].
    pub fn add_hidden_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.add(ServedSubsystem::new(config, SubsystemKind::Io)?.hide())
    }

    fn add(&self, subsystem: ServedSubsystem) -> Result<(), TargetError> {
        let (nqn, subsystem) = (subsystem.nqn, Arc::new(subsystem));
        {
            let mut served = self.served.lock();
            let former = served.subsystems.get(&nqn);
            let is_retired = former.is_some_and(|former| former.is_closed());
            if nqn.is_discovery() || former.is_some() && !is_retired {
                return Err(TargetError::SubsystemExists(Box::new(nqn)));
            }
            if !is_retired && served.subsystems.len() >= SUBSYSTEMS {
                return Err(TargetError::Full);
            }
            served.subsystems.insert(nqn, subsystem.clone());
        }
        self.discovery_changed(|host| subsystem.is_discovered_by(host));
        Ok(())
    }

    /// Removes a subsystem and disconnects its hosts.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let removed = self.served.lock().subsystems.remove(nqn);
        let subsystem = removed.ok_or_else(|| no_subsystem(nqn))?;
        subsystem.close("subsystem removed");
        self.discovery_changed(|host| subsystem.is_discovered_by(host));
        Ok(())
    }

    /// Sets the subsystems that are missing, and added later. Connect to one of them is refused
    /// with Connect Controller Busy, which hosts retry, because they give a subsystem up that does
    /// not exist.
    pub fn set_missing(&self, missing: MissingSubsystems) {
        *self.missing.lock() = missing;
    }

    /// True if a subsystem that does not exist may be added later.
    pub fn may_come(&self, nqn: &Nqn) -> bool {
        match &*self.missing.lock() {
            MissingSubsystems::Named(named) => named.contains(nqn),
            MissingSubsystems::Any => true,
        }
    }

    /// Generation of the discovery log (GENCTR).
    pub fn discovery_generation(&self) -> u64 {
        self.discovery_changes.load(Ordering::Acquire)
    }

    /// Refusal of a Connect to an unknown subsystem.
    fn unknown_subsystem(&self, nqn: &Nqn) -> ConnectRefusal {
        match self.may_come(nqn) {
            true => Status::CONNECT_CONTROLLER_BUSY.into(),
            false => ConnectField::SubNqn.into(),
        }
    }

    /// Takes a subsystem out of service until a subsystem of the same name is added. Its hosts are
    /// disconnected without an answer to their commands, so that they repeat them, and Connect is
    /// refused with Connect Controller Busy, so that they try again. It stays in the discovery log.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn retire_subsystem(&self, nqn: &Nqn) -> Result<RetiredSubsystem, TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        subsystem.set_suspended(true);
        subsystem.close("subsystem out of service");
        Ok(RetiredSubsystem(subsystem))
    }

    /// Removes a subsystem that is out of service since [`Target::retire_subsystem`]. False if
    /// there is none, as after another one was added in its place.
    pub fn remove_retired_subsystem(&self, nqn: &Nqn) -> bool {
        let is_retired = self.subsystem_named(nqn).is_ok_and(|subsystem| subsystem.is_closed());
        is_retired && self.remove_subsystem(nqn).is_ok()
    }

    /// Refuses Connect to a subsystem until [`Target::resume_connects`], with Connect Controller
    /// Busy, which hosts retry. Used while no namespace is available. The subsystem stays in the
    /// discovery log.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn suspend_connects(&self, nqn: &Nqn) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_suspended(true);
        Ok(())
    }

    /// Allows Connect after [`Target::suspend_connects`], and notifies hosts of a discovery log
    /// change. No effect on a subsystem that is out of service.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn resume_connects(&self, nqn: &Nqn) -> Result<(), TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        if !subsystem.is_closed() && subsystem.set_suspended(false) {
            self.discovery_changed(|host| subsystem.is_discovered_by(host));
        }
        Ok(())
    }

    /// Sets the hosts that may connect to a subsystem; `None` allows all. Hosts that are no
    /// longer allowed are disconnected.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::Full`].
    pub fn set_allowed_hosts(&self, nqn: &Nqn, hosts: Option<Vec<Nqn>>) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_allowed_hosts(hosts)?;
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Adds a namespace whose device is not open yet: a pending one, see [`namespace`]. Adding the
    /// device with [`Target::add_namespace`] and this identifier completes it.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::NamespaceId`],
    /// [`TargetError::NamespaceExists`].
    pub fn add_pending_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.add_pending_namespace(nsid, self.config.max_namespaces)
    }

    /// Adds a device as a namespace of subsystem `nqn`, notifies connected hosts, and returns its
    /// identifier. If the device has a volatile write cache, hosts that were connected without a
    /// cache are disconnected, so that they identify the controller again.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`] and every namespace error.
    pub fn add_namespace(&self, nqn: &Nqn, config: NamespaceConfig) -> Result<u32, TargetError> {
        let access = NamespaceAccess::Hosts { reservations: None };
        self.subsystem_named(nqn)?.add_namespace(config, access, self.config.max_namespaces)
    }

    /// Like [`Target::add_namespace`], with vendor specific commands. `handler` executes them, and
    /// provides the device for each host's ordinary commands.
    ///
    /// # Errors
    /// As [`Target::add_namespace`].
    pub fn add_vendor_namespace(
        &self,
        nqn: &Nqn,
        config: NamespaceConfig,
        handler: Arc<dyn VendorHandler>,
    ) -> Result<u32, TargetError> {
        let access = NamespaceAccess::Node { vendor: handler };
        self.subsystem_named(nqn)?.add_namespace(config, access, self.config.max_namespaces)
    }

    /// Removes a namespace and notifies connected hosts. Commands in flight complete normally. The
    /// device is released when the last of them has completed, within a second.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::NoNamespace`].
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<Arc<Namespace>, TargetError> {
        self.subsystem_named(nqn)?.remove_namespace(nsid)
    }

    /// Takes over a new device size, and notifies hosts with Namespace Attribute Changed.
    /// Connections and commands in flight are unaffected.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::NoNamespace`]; [`TargetError::Device`] when the
    /// device has no blocks.
    pub fn resize_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.resize_namespace(nsid)
    }

    /// Sets the ANA state of a subsystem's namespaces, and notifies hosts.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn set_ana_state(&self, nqn: &Nqn, state: AnaState) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.set_ana_state(state);
        Ok(())
    }

    /// Waits until every I/O command that the subsystem admitted before this call has completed,
    /// including commands of closed connections. Call it after [`Target::set_ana_state`] with a
    /// state that refuses commands, before another node may write. Later commands are refused and
    /// not waited for. The same holds for a write whose data is still missing: it is refused when
    /// the data arrives. In a state that admits commands, this waits for each queue to be idle
    /// once. There is no timeout: a device that never answers blocks it. Call it on a core of the
    /// runtime.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub async fn drained(&self, nqn: &Nqn) -> Result<(), TargetError> {
        self.subsystem_named(nqn)?.drained().await;
        Ok(())
    }

    /// Adds a listening address to the discovery log. For an unspecified IP address (0.0.0.0 or
    /// ::), each host sees the address that it connected to.
    ///
    /// # Errors
    /// [`TargetError::NotTcp`], [`TargetError::Full`].
    pub fn add_listener(&self, address: &Address) -> Result<(), TargetError> {
        self.add_tls_listener(address, TlsMode::Off)
    }

    /// Same as [`Target::add_listener`], for a listener whose connections are encrypted as `tls`
    /// says.
    ///
    /// # Errors
    /// As [`Target::add_listener`].
    pub fn add_tls_listener(&self, address: &Address, tls: TlsMode) -> Result<(), TargetError> {
        let Address::Tcp(address) = *address else {
            return Err(TargetError::NotTcp(address.to_string()));
        };
        {
            let mut served = self.served.lock();
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
            served.listeners.push(Listener { address, port_id, tls });
        }
        self.discovery_changed(|_| true);
        Ok(())
    }

    /// Adds the address of another node that serves subsystem `nqn` to the discovery log, so that
    /// hosts find its path too. `port_id` identifies the port among the ports of all nodes.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`], [`TargetError::Full`].
    pub fn add_remote_port(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
        port_id: u16,
    ) -> Result<(), TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        if subsystem.add_remote_port(Listener { address, port_id, tls: TlsMode::Off })? {
            self.discovery_changed(|host| subsystem.is_discovered_by(host));
        }
        Ok(())
    }

    /// Removes an address that [`Target::add_remote_port`] added from the discovery log.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn remove_remote_port(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), TargetError> {
        let subsystem = self.subsystem_named(nqn)?;
        if subsystem.remove_remote_port(address) {
            self.discovery_changed(|host| subsystem.is_discovered_by(host));
        }
        Ok(())
    }

    /// Refuses further Connects with Connect Controller Busy, which hosts retry later. Existing
    /// connections continue.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Disconnects all hosts. Their controllers and queues are gone on return; connection tasks end
    /// shortly afterwards.
    pub fn disconnect_all(&self) {
        for subsystem in self.subsystems() {
            subsystem.disconnect("target shutdown");
        }
        self.discovery.disconnect("target shutdown");
    }

    /// Ends the controllers that have a queue with a withdrawn key: the queue's host has proven it
    /// last, or made the queue's TLS channel with it. Call it after keys were replaced. Returns the
    /// number of controllers.
    pub fn end_withdrawn(&self) -> usize {
        let subsystems = self.subsystems().into_iter().chain([self.discovery.clone()]);
        let controllers = subsystems.flat_map(|subsystem| subsystem.controllers());
        controllers.filter(|controller| controller.end_if_withdrawn()).count()
    }

    /// Sets the TLS keys between hosts and the subsystem `nqn`, which may be added later.
    /// Connections that are made afterwards use them.
    pub fn set_tls_keys(&self, nqn: &Nqn, keys: BTreeMap<Nqn, HostTls>) {
        self.tls.set(nqn, keys);
    }

    /// Erases generated PSKs soon after they have become invalid, until it is dropped. Run it once
    /// beside listeners with optional TLS.
    pub async fn erase_generated_psks(&self) {
        loop {
            time::sleep(GENERATED_PSK_PERIOD).await;
            self.tls.generated.erase_invalid(time::now());
        }
    }

    /// Number of generated PSKs in memory.
    pub fn generated_psks(&self) -> usize {
        self.tls.generated.count()
    }

    /// Results of TLS handshakes since the start.
    pub fn tls_totals(&self) -> TlsTotals {
        self.tls.totals()
    }

    /// Results of authentication since the start.
    pub fn authentication_totals(&self) -> AuthenticationTotals {
        self.handshakes.totals()
    }

    /// Number of controllers, including discovery controllers.
    pub fn controllers(&self) -> u32 {
        self.controllers.load(Ordering::Acquire)
    }

    /// Server for a handshake with `keys`.
    fn tls_server(&self, keys: Arc<HandshakeKeys>) -> Result<TlsServer, TlsConfigError> {
        if let Some(server) = self.tls_server.get() {
            return Ok(server.choosing(keys));
        }
        let made = TlsServer::with_psks(Arc::new(PskChooser(self.tls.clone())))?;
        Ok(self.tls_server.get_or_init(|| made).choosing(keys))
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Reserves one of the allowed controllers; false at the limit.
    fn reserve_controller(&self) -> bool {
        let most = self.config.max_controllers;
        let more = |live: u32| (live < most).then_some(live + 1);
        self.controllers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn release_controller(&self) {
        self.controllers.fetch_sub(1, Ordering::AcqRel);
    }

    /// True if `host` has to prove a key for authentication to the subsystem `nqn`.
    fn has_key(&self, nqn: &Nqn, host: &Nqn) -> bool {
        self.subsystem(nqn).is_some_and(|subsystem| subsystem.keys_of(host).is_some())
    }

    /// Finds the subsystem that a host names `nqn`.
    fn subsystem(&self, nqn: &Nqn) -> Option<Arc<ServedSubsystem>> {
        if nqn.is_discovery() {
            return Some(self.discovery.clone());
        }
        self.served.lock().subsystems.get(nqn).cloned()
    }

    fn subsystem_named(&self, nqn: &Nqn) -> Result<Arc<ServedSubsystem>, TargetError> {
        self.served.lock().subsystems.get(nqn).cloned().ok_or_else(|| no_subsystem(nqn))
    }

    fn subsystems(&self) -> Vec<Arc<ServedSubsystem>> {
        self.served.lock().subsystems.values().cloned().collect()
    }

    fn listeners(&self) -> Vec<Listener> {
        self.served.lock().listeners.clone()
    }

    /// Counts a change of the discovery log, and notifies the hosts that can see it.
    fn discovery_changed(&self, visible: impl Fn(&Nqn) -> bool) {
        self.discovery_changes.fetch_add(1, Ordering::AcqRel);
        for controller in self.discovery.controllers() {
            if visible(&controller.host.nqn) {
                controller.events.raise(AsyncEvent::DISCOVERY_CHANGED);
            }
        }
    }
}

/// A subsystem out of service, after [`Target::retire_subsystem`].
#[derive(Debug)]
pub struct RetiredSubsystem(Arc<ServedSubsystem>);

impl RetiredSubsystem {
    /// Waits until every I/O command of its former hosts has completed, and its devices are
    /// released. There is no timeout. Call it on a core of the runtime.
    pub async fn drained(self) {
        self.0.drained().await;
        let removed = self.0.clear();
        // Their connections have the last table of namespaces until they have ended.
        while removed.iter().any(|namespace| namespace.strong_count() > 0) {
            time::sleep(DRAIN_PERIOD).await;
        }
    }
}

fn no_subsystem(nqn: &Nqn) -> TargetError {
    TargetError::NoSubsystem(Box::new(*nqn))
}
