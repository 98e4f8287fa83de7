//! Mirrored volumes of a server: opens, runs, grows and reopens the mirrors of a configuration.
//!
//! A mirrored volume is open before its replica exists, so that `flagstone mirror create` works on
//! a running server; hosts are rejected until then. The layers below the mirror are its local leg.
//! Besides its namespace, each volume has:
//!
//! - a hidden subsystem, which serves the local leg only to the configured peers;
//! - a connector to each peer: an NVMe/TCP host with this node's name;
//! - a task that makes the namespace's ANA state follow the role.
//!
//! Names derive from the volume's NQN and the nodes' names, so all nodes agree on them.

mod create;
mod failover;
mod fence;
mod granularity;
mod grow;
mod handle;
mod log_resize;
mod move_log;
mod open;
mod overwrite_check;
mod peers;
mod question;
mod remnants;
mod reopen;
mod roll_back;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use flagstone_arbiter::SharedArbiter;
use flagstone_auth::{KeyDemand, KeyPair, TlsRing};
use flagstone_blockdev::{IoError, ReopenableDevice, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::io::queue::QueueLimits;
use flagstone_mirror::manage::replica::{LogMoves, Replica, read_superblock};
use flagstone_mirror::ondisk::layout::layout;
use flagstone_mirror::session::pace::PaceLimits;
use flagstone_mirror::wire::peer::{ReplicaIdentity, SharedConnector, identify};
use flagstone_mirror::{
    ConsistencyGroup, LegSnapshots, LinkVersions, Mirror, PeerOptions, ReservationRecords,
    Undelivered,
};
use flagstone_nvme::Nqn;
use flagstone_nvme::log::AnaState;
use flagstone_nvmf_host::{HostOptions, RemoteTls};
use flagstone_nvmf_target::{HostTls, SubsystemConfig, Target};
use flagstone_replication::{
    Bandwidth, LinkOptions, NvmePeer, PeerAddress, replication_nqn, serve_replica,
};
use flagstone_runtime::net::{Address, lookup};
use flagstone_runtime::spawn;
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::time::{self, Backoff};

use crate::limits::{IDENTIFY_TIMEOUT, OPEN_PAUSE};
use crate::subsystems::namespace_of;
use crate::wake::Wake;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::names::{derived_uuid, serial_of};
use flagstone_config::uri::{HostPort, UriHost};
use flagstone_config::{self as config, Config, Peer, PeerDemand};
use flagstone_stack::{OpenError, keys};

pub(crate) use create::{CreateError, block_size_mismatch};
use granularity::shape;
pub(crate) use handle::MirrorHandle;
pub(crate) use move_log::LogMove;
use open::MirrorFailure;
pub(crate) use open::{connect_log, remote_log};
pub(crate) use peers::PeersChanged;
use question::OpenQuestions;
use reopen::Reopening;

/// Number of shares of controller and port IDs: the nodes of a subsystem must not share IDs.
const NODES: u16 = flagstone_config::limits::MAX_PEERS as u16 + 1;

/// State that the mirrored volumes of a server share.
#[derive(Clone, Default)]
pub(crate) struct MirrorShares {
    /// Bandwidth limits by peer name. All volumes mirrored to a peer share its limit.
    bandwidth: BTreeMap<String, Arc<Bandwidth>>,
    /// Consistency groups by name.
    groups: BTreeMap<String, Arc<ConsistencyGroup>>,
}

pub(crate) fn mirror_shares(config: &Config) -> MirrorShares {
    let cap = |peer: &Peer| Some((peer.name.clone(), Bandwidth::new(peer.max_bytes_per_s?)));
    let mut members: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for volume in &config.volumes {
        if let Some(group) = volume.mirror().and_then(|mirror| mirror.group.as_deref()) {
            members.entry(group).or_default().push(volume.name.clone());
        }
    }
    // The configuration bounds their number.
    let made = |(name, volumes): (&str, Vec<String>)| {
        Some((name.to_owned(), ConsistencyGroup::new(name, volumes).ok()?))
    };
    MirrorShares {
        bandwidth: config.peers.iter().filter_map(cap).collect(),
        groups: members.into_iter().filter_map(made).collect(),
    }
}

/// Opens the local device of a mirrored volume.
pub(crate) type OpenLocalDevice =
    Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<SharedDevice, OpenError>>>>>;

pub(crate) struct MirroredVolume {
    /// Index in [`Config::volumes`].
    pub(crate) volume: usize,
    pub(crate) node: String,
    pub(crate) name: String,
    config: config::MirrorConfig,
    /// All peers of the configuration, of this volume and of others.
    configured: Vec<Peer>,
    /// A fencing command of this volume runs, by the operator's order or before a takeover.
    is_fencing: Arc<AtomicBool>,
    /// Its peers, in the order of the legs of [`Mirror`]: as configured, until they are changed.
    links: RefCell<Vec<Peer>>,
    /// NQNs of the volume's subsystem, of its replica's subsystem, and of this node as a host.
    nqn: Nqn,
    namespace_id: u32,
    replica_nqn: Nqn,
    volume_tag: u64,
    nqn_prefix: String,
    own_host: Nqn,
    /// Keys with the peers in `configured` that have a key file, by name, or why they cannot be
    /// used.
    peer_keys: BTreeMap<String, Result<KeyPair, String>>,
    /// The same of TLS keys.
    peer_tls: BTreeMap<String, Result<TlsRing, String>>,
    leg: SharedDevice,
    /// The same device as `leg`, reopened with `open_local_device` if there is one.
    reopenable: Arc<ReopenableDevice>,
    open_local_device: RefCell<Option<OpenLocalDevice>>,
    /// The device is a volume of a pool.
    is_leg: bool,
    /// Takes snapshots of such a device.
    leg_snapshots: RefCell<Option<Arc<dyn LegSnapshots>>>,
    /// Keeps the reservations of hosts on this node.
    reservation_records: RefCell<Option<Arc<dyn ReservationRecords>>>,
    /// Where the intent log is, if separate: as configured, until it is moved.
    log_spec: RefCell<Option<DeviceSpec>>,
    /// Device of the intent log, if separate and the replica is open.
    log: RefCell<Option<SharedDevice>>,
    /// The same, if it can be reopened. Weak, so that a failed attempt does not keep it open.
    reopenable_log: RefCell<Weak<ReopenableDevice>>,
    /// A remote log device, connected in advance and not used yet.
    connected_log: RefCell<Option<SharedDevice>>,
    handle: Arc<MirrorHandle>,
    /// Traces of a missing replica, from the last attempt to open it.
    missing: RefCell<Option<Rc<str>>>,
    /// The replica exists, but its log device is unusable for the reason in `missing`.
    without_log: Cell<bool>,
    target: RefCell<Option<Arc<Target>>>,
    mirror_shares: RefCell<MirrorShares>,
    arbiter: RefCell<Option<SharedArbiter>>,
    watch: RefCell<Option<AbortOnDrop<()>>>,
    /// The current or last attempt to reopen the replica.
    reopening: RefCell<Option<Reopening>>,
    reopens: Cell<u64>,
    /// Ends the pause before the next attempt to reopen it.
    retry_wake: Wake,
    /// The devices' contents are unverified when they are opened next.
    unverified: Cell<bool>,
    /// The mirror is being replaced or deleted: see [`Changing`](self::grow::Changing).
    growing: Cell<bool>,
    questions: Rc<OpenQuestions>,
    /// The server stops: no mirror of the replica begins any more.
    ending: Cell<bool>,
    /// Announces the paths of a peer that was added.
    announcing: RefCell<Option<AbortOnDrop<()>>>,
    /// Size after the current growth, set from before the new space is zeroed.
    growing_to: Cell<Option<u64>>,
    /// The log is being moved: the volume keeps its size.
    moving_log: Cell<bool>,
    /// The latest moves of the log, maybe of a replica that was closed meanwhile.
    log_moves: RefCell<LogMoves>,
    /// Link versions of this node: all, except in tests of mixed releases.
    versions: Cell<LinkVersions>,
    /// Serializes creating, deleting and reopening the replica.
    create_lock: Rc<Semaphore>,
}

impl MirroredVolume {
    /// Creates the mirrored volume at `index` over its local device, with the size of its replica,
    /// if any. `log` is the result of [`connect_log`]. Writes nothing.
    pub(crate) async fn over(
        config: &Config,
        index: usize,
        leg: SharedDevice,
        log: Option<SharedDevice>,
    ) -> Result<MirroredVolume, OpenError> {
        let volume = &config.volumes[index];
        let failed = |problem: String| OpenError {
            device: format!("the mirror of volume `{}`", volume.name),
            problem,
            may_pass: false,
        };
        let mirror = volume.mirror().ok_or_else(|| failed("it has none".to_owned()))?;
        let namespace = namespace_of(config, index);
        let named = |text: &str| Nqn::new(text).map_err(|error| failed(format!("{text}: {error}")));
        let nqn = named(namespace.map_or("", |(subsystem, _)| &subsystem.nqn))?;
        let too_long = || failed(format!("{nqn} is too long to have `:replica` after it"));
        let replica_nqn = replication_nqn(&nqn).ok_or_else(too_long)?;
        let node = config.server.node.clone().unwrap_or_default();
        let nqn_prefix = config.server.nvme.nqn_prefix.clone();
        let host = |node: &str| named(&host_name(&nqn_prefix, node));
        let links: Vec<Peer> =
            mirror.peers.iter().map(|peer| config.peers[*peer].clone()).collect();
        let keyed = config.peers.iter().filter_map(|peer| Some((peer, peer.key_file.as_deref()?)));
        let peer_keys: BTreeMap<_, _> =
            keyed.map(|(peer, file)| (peer.name.clone(), shared_key(file))).collect();
        let keyed =
            config.peers.iter().filter_map(|peer| Some((peer, peer.tls_key_file.as_deref()?)));
        let peer_tls: BTreeMap<_, _> = keyed
            .map(|(peer, file)| {
                (peer.name.clone(), keys::tls_ring(file).map_err(|error| error.to_string()))
            })
            .collect();
        for peer in &links {
            host(&peer.name)?;
            peer_tls.get(&peer.name).cloned().transpose().map_err(failed)?;
            peer_keys.get(&peer.name).cloned().transpose().map_err(failed)?;
        }
        let geometry = leg.geometry();
        let layout = layout(geometry.size_bytes, &shape(mirror, geometry.size_bytes));
        let layout = layout.ok_or_else(|| {
            failed("its device is too small to have the mirror's own structures beside data".into())
        })?;
        let volume_tag = remnants::volume_tag(&replica_nqn);
        let found = read_superblock(&leg).await.ok();
        let found = found.filter(|found| remnants::is_own(found, volume_tag));
        let size_bytes = found.map_or(layout.usable_bytes, |found| found.geometry.usable_bytes);
        let usable = flagstone_blockdev::Geometry { size_bytes, ..geometry };
        let reopenable = ReopenableDevice::new(leg);
        Ok(MirroredVolume {
            volume: index,
            own_host: host(&node)?,
            nqn_prefix,
            peer_keys,
            peer_tls,
            node,
            name: volume.name.clone(),
            config: mirror.clone(),
            configured: config.peers.clone(),
            is_fencing: Arc::default(),
            links: RefCell::new(links),
            nqn,
            namespace_id: namespace.map_or(1, |(_, id)| id),
            replica_nqn,
            volume_tag,
            leg: reopenable.clone(),
            reopenable,
            open_local_device: RefCell::default(),
            is_leg: volume.backing.leg().is_some(),
            leg_snapshots: RefCell::default(),
            reservation_records: RefCell::default(),
            log_spec: RefCell::new(mirror.intent_log.clone()),
            log: RefCell::default(),
            reopenable_log: RefCell::default(),
            connected_log: RefCell::new(log),
            handle: MirrorHandle::new(usable),
            missing: RefCell::default(),
            without_log: Cell::default(),
            target: RefCell::default(),
            mirror_shares: RefCell::default(),
            arbiter: RefCell::default(),
            watch: RefCell::default(),
            reopening: RefCell::default(),
            reopens: Cell::default(),
            retry_wake: Wake::default(),
            unverified: Cell::default(),
            growing: Cell::default(),
            questions: Rc::default(),
            ending: Cell::default(),
            announcing: RefCell::default(),
            growing_to: Cell::default(),
            moving_log: Cell::default(),
            log_moves: RefCell::default(),
            versions: Cell::new(LinkVersions::SPOKEN),
            create_lock: Semaphore::new(1),
        })
    }
}

/// This node's share of controller and port IDs: its position among the sorted names of all nodes.
pub(crate) fn share(config: &Config) -> Option<u16> {
    let mirrored = config.volumes.iter().any(|volume| volume.mirror().is_some());
    let node = config.server.node.as_ref().filter(|_| mirrored)?;
    Some(share_of(config, node))
}

/// Name of a node as a host.
fn host_name(nqn_prefix: &str, node: &str) -> String {
    format!("{nqn_prefix}:node:{node}")
}

/// The share of the node of this name: its position among the sorted names of all nodes.
fn share_of(config: &Config, name: &str) -> u16 {
    let nodes = config.peers.iter().map(|peer| &peer.name).chain(&config.server.node);
    share_among(nodes.map(String::as_str), name)
}

fn share_among<'a>(nodes: impl Iterator<Item = &'a str>, name: &str) -> u16 {
    nodes.filter(|node| *node < name).count() as u16
}

/// Controller IDs of a share, and its first port ID.
pub(crate) fn identifiers(share: u16) -> (std::ops::RangeInclusive<u16>, u16) {
    let controllers = flagstone_nvme::command::fabrics::CONTROLLER_ID_MAX / NODES;
    let first = share * controllers + 1;
    (first..=first + controllers - 1, share * 64 + 1)
}

/// Announces where hosts reach the peers of each mirrored volume: discovery of one node then finds
/// the paths to all. A name is looked up until it has an address. `open` are the volumes whose
/// replicas may name other peers than the configuration.
pub(crate) async fn announce_peers(
    config: Rc<Config>,
    open: Vec<Rc<MirroredVolume>>,
    target: Arc<Target>,
) {
    announce(peer_ports(&config, &open), target).await;
}

async fn announce(mut unknown: Vec<PeerPort>, target: Arc<Target>) {
    let mut backoff = Backoff::new(*OPEN_PAUSE.start(), *OPEN_PAUSE.end());
    loop {
        let mut failed = Vec::new();
        for port in unknown {
            let Some(address) = resolve(&port.address).await else {
                failed.push(port);
                continue;
            };
            if let Err(error) = target.add_remote_port(&port.nqn, address, port.port_id) {
                tracing::warn!("hosts do not learn of the path over {address}: {error}");
            }
        }
        if failed.is_empty() {
            return;
        }
        unknown = failed;
        time::sleep(backoff.advance()).await;
    }
}

/// A port of a peer for the discovery log.
struct PeerPort {
    nqn: Nqn,
    address: HostPort,
    port_id: u16,
}

/// The first address of a host.
async fn resolve(HostPort { host, port }: &HostPort) -> Option<std::net::SocketAddr> {
    let found = match host {
        UriHost::Ip(ip) => vec![Address::Tcp((*ip, *port).into())],
        UriHost::Name(name) => lookup(name, *port).await.ok()?,
    };
    found.into_iter().find_map(|address| match address {
        Address::Tcp(address) => Some(address),
        Address::Unix(_) => None,
    })
}

fn ports_of(nqn: Nqn, peer: &Peer, share: u16) -> impl Iterator<Item = PeerPort> {
    let (_, first) = identifiers(share);
    let numbered = (first..).zip(peer.reached_by_hosts());
    numbered.map(move |(port_id, address)| PeerPort { nqn, address: address.clone(), port_id })
}

fn peer_ports(config: &Config, open: &[Rc<MirroredVolume>]) -> Vec<PeerPort> {
    let mut ports = Vec::new();
    for (index, volume) in config.volumes.iter().enumerate() {
        let Some(mirror) = volume.mirror() else { continue };
        let subsystem = namespace_of(config, index).map(|(subsystem, _)| &subsystem.nqn);
        let Some(nqn) = subsystem.and_then(|nqn| Nqn::new(nqn).ok()) else { continue };
        let peers = match open.iter().find(|open| open.volume == index) {
            Some(open) => open.links.borrow().clone(),
            None => mirror.peers.iter().map(|peer| config.peers[*peer].clone()).collect(),
        };
        for peer in &peers {
            ports.extend(ports_of(nqn, peer, share_of(config, &peer.name)));
        }
    }
    ports
}

/// Address of a peer. A name is looked up for each connection, so its failure is retried.
fn peer_address(peer: &Peer) -> PeerAddress {
    let HostPort { host, port } = &peer.address;
    match host {
        UriHost::Ip(ip) => Address::Tcp((*ip, *port).into()).into(),
        UriHost::Name(name) => PeerAddress::named(name, *port),
    }
}

impl MirroredVolume {
    pub(crate) fn device(&self) -> SharedDevice {
        self.handle.clone()
    }

    pub(crate) fn mirror(&self) -> Option<Mirror> {
        self.handle.mirror()
    }

    /// Its consistency group; `None` also before [`MirroredVolume::start`].
    pub(crate) fn group(&self) -> Option<Arc<ConsistencyGroup>> {
        self.mirror_shares.borrow().groups.get(self.config.group.as_deref()?).cloned()
    }

    /// Opens the replica, if there is one, and serves hosts if that is safe. `target` rejects hosts
    /// until then. An error leaves nothing behind, so another volume may be started over its
    /// devices.
    pub(crate) async fn start(
        self: &Rc<Self>,
        target: &Arc<Target>,
        mirror_shares: &MirrorShares,
    ) -> Result<(), OpenError> {
        *self.target.borrow_mut() = Some(target.clone());
        *self.mirror_shares.borrow_mut() = mirror_shares.clone();
        self.set_ana_state(false);
        // Its pool may be about to be closed.
        let _create_lock = self.create_lock.acquire(1).await;
        self.open_and_run().await.map_err(|MirrorFailure { problem, may_pass }| {
            let device = format!("the mirror of volume `{}`", self.name);
            OpenError { device, problem, may_pass }
        })
    }

    /// True if the device can be used.
    #[cfg(test)]
    pub(crate) fn has_device(&self) -> bool {
        !self.leg.must_reopen()
    }

    /// Questions to peers whether this node serves hosts.
    pub(crate) fn questions(&self) -> Rc<OpenQuestions> {
        self.questions.clone()
    }

    async fn open_and_run(self: &Rc<Self>) -> Result<(), MirrorFailure> {
        if let Some(replica) = self.open().await? {
            return self.run(replica).await;
        }
        let name = &self.name;
        if let Some(missing) = self.missing() {
            tracing::error!(
                "{missing}. This node does not serve the volume, and nothing was changed on its device"
            );
            if self.is_without_log() {
                self.await_log();
            }
        } else {
            tracing::warn!(
                "volume `{name}` has no replica here yet: run `flagstone mirror create {name} --source` \
                 on the node that has the data, and `--target` on the other"
            );
        }
        Ok(())
    }

    /// Size of the volume that hosts see.
    pub(super) fn reported_bytes(&self) -> u64 {
        use flagstone_blockdev::BlockDevice as _;
        self.handle.geometry().size_bytes
    }

    pub(crate) fn set_reopen(&self, open_local_device: OpenLocalDevice) {
        *self.open_local_device.borrow_mut() = Some(open_local_device);
    }

    pub(crate) fn set_leg_snapshots(&self, snapshots: Arc<dyn LegSnapshots>) {
        *self.leg_snapshots.borrow_mut() = Some(snapshots);
    }

    pub(crate) fn set_reservation_records(&self, records: Arc<dyn ReservationRecords>) {
        *self.reservation_records.borrow_mut() = Some(records);
    }

    pub(crate) fn handle(&self) -> &Arc<MirrorHandle> {
        &self.handle
    }

    /// Runs the mirror on this replica: serves the local leg to peers, and hosts if that is safe,
    /// which excludes unverified data. A mirror that fails to start is closed.
    async fn run(self: &Rc<Self>, replica: Replica) -> Result<(), MirrorFailure> {
        let mirror = self.new_mirror(replica)?;
        self.handle.set(Some(mirror.clone()));
        if mirror.asks_before_it_serves() {
            self.start_after_question(mirror.clone());
        } else if let Err(error) = mirror.start().await {
            self.abandon_mirror().await;
            return Err(error.into());
        }
        let status = mirror.status();
        let (role, served) = (status.role, status.serving);
        tracing::info!(volume = self.name, ?role, served, "the mirror is running");
        self.follow(mirror, false);
        Ok(())
    }

    /// Creates the mirror of a replica, and serves its local leg to peers.
    fn new_mirror(&self, replica: Replica) -> Result<Mirror, String> {
        if let Some(bytes) = self.log_room_bytes(&replica.superblock().geometry) {
            replica.set_log_room(bytes);
        }
        replica.set_intent_log_mode(self.config.intent_log_mode);
        let volume = replica.superblock().volume;
        let links = self.members(&replica.superblock().members)?;
        let (mut allow_hosts, mut keys) = (Vec::new(), BTreeMap::new());
        let mut tls = BTreeMap::new();
        for peer in &links {
            let name = host_name(&self.nqn_prefix, &peer.name);
            let host = Nqn::new(&name).map_err(|error| format!("{name}: {error}"))?;
            allow_hosts.push(host);
            keys.extend(self.keys_of(peer)?.map(|pair| (host, pair)));
            if let Some(ring) = self.tls_of(&peer.name)? {
                tls.insert(
                    host,
                    HostTls { keys: ring, required: peer.tls == PeerDemand::Required },
                );
            }
        }
        let peers: Vec<_> =
            links.iter().map(|peer| self.peer_options(peer)).collect::<Result<_, _>>()?;
        *self.links.borrow_mut() = links;
        let membership = self.group().and_then(|group| group.member(&self.name));
        let failover = self.failover_options();
        if failover.is_some() && peers.len() != 1 {
            return Err(format!(
                "automatic failover with {} peers: `flagstone mirror add-peer` has added one. Write failover \
                 = \"manual\", restart, and remove a peer",
                peers.len()
            ));
        }
        let versions = self.versions.get();
        let mirror = match failover {
            Some(options) => {
                Mirror::with_failover(versions, replica, peers, membership, Some(options))
            }
            None => Mirror::in_group(versions, replica, peers, membership),
        };
        if let Some(snapshots) = &*self.leg_snapshots.borrow() {
            mirror.set_leg_snapshots(snapshots.clone());
        }
        if let Some(records) = &*self.reservation_records.borrow() {
            mirror.set_reservation_records(records.clone());
        }
        let target = self.target()?;
        // Before the replica can be reached.
        target.set_tls_keys(&self.replica_nqn, tls);
        let hidden = SubsystemConfig {
            nqn: self.replica_nqn,
            serial: serial_of(derived_uuid(&[self.replica_nqn.to_string().as_bytes()])),
            allow_hosts: Some(allow_hosts),
            keys,
        };
        let uuid = derived_uuid(&[b"replica", &volume.0, self.node.as_bytes()]);
        if let Err(error) =
            serve_replica(&target, hidden, uuid.into_bytes(), Arc::new(mirror.clone()))
        {
            // Otherwise its links would keep looking for peers.
            mirror.close();
            return Err(error.to_string());
        }
        Ok(mirror)
    }

    /// Keys that this node and a peer prove to each other, if the configuration has any.
    fn keys_of(&self, peer: &Peer) -> Result<Option<KeyPair>, String> {
        let pair = self.peer_keys.get(&peer.name).cloned().transpose()?;
        let demand = match peer.authentication {
            PeerDemand::Required => KeyDemand::Required,
            PeerDemand::Allowed => KeyDemand::Optional,
        };
        Ok(pair.map(|pair| KeyPair { demand, ..pair }))
    }

    /// TLS keys of this node and a peer, if the configuration has any.
    fn tls_of(&self, peer: &str) -> Result<Option<TlsRing>, String> {
        self.peer_tls.get(peer).cloned().transpose()
    }

    /// The target, once the volume was started.
    fn target(&self) -> Result<Arc<Target>, String> {
        self.target.borrow().clone().ok_or_else(|| "the server is not up yet".to_owned())
    }

    /// Keeps the ANA state equal to the mirror's role, and the size to the source's. `active`: the
    /// state that was reported last.
    fn follow(self: &Rc<Self>, mirror: Mirror, mut active: bool) {
        let access = Rc::downgrade(self);
        let size = access.clone();
        let sized = mirror.clone();
        let watch = async move {
            let looks = spawn(reopen::monitor(size.clone(), sized.clone())).abort_on_drop();
            let resizes = spawn(grow::follow_source(size, sized)).abort_on_drop();
            loop {
                active = mirror.serving_changed(active).await;
                let Some(this) = access.upgrade() else { return drop((resizes, looks)) };
                this.set_ana_state(active);
            }
        };
        *self.watch.borrow_mut() = Some(spawn(watch).abort_on_drop());
    }

    /// Sets the ANA state (Base 8.1.1): optimized, or inaccessible so that hosts use the other
    /// node.
    fn set_ana_state(&self, active: bool) {
        let state = if active { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE };
        let Ok(target) = self.target() else { return };
        let known = target.subsystem_status(&self.nqn).is_ok_and(|status| status.ana == state);
        match target.set_ana_state(&self.nqn, state) {
            // Repeated attempts to start a mirror would repeat the message.
            Ok(()) if known => {}
            Ok(()) => tracing::info!(volume = self.name, "ANA state is {state}"),
            Err(error) => tracing::error!(volume = self.name, "cannot set the ANA state: {error}"),
        }
    }

    fn connector(&self, peer: &Peer) -> Result<SharedConnector, String> {
        self.connector_within(peer, peer.timeout)
    }

    /// A connector whose connections and commands may take `timeout` each.
    fn connector_within(&self, peer: &Peer, timeout: Duration) -> Result<SharedConnector, String> {
        let options = HostOptions {
            host_nqn: Some(self.own_host),
            keys: self.keys_of(peer)?,
            tls: self.tls_of(&peer.name)?.map(|keys| RemoteTls {
                allow_plain: peer.tls == PeerDemand::Allowed,
                ..RemoteTls::required(keys)
            }),
            queues: peer.connections,
            keep_alive: timeout,
            command_timeout: timeout,
            connect_timeout: timeout,
            ..HostOptions::default()
        };
        let bandwidth = self.mirror_shares.borrow().bandwidth.get(&peer.name).cloned();
        let link = LinkOptions {
            compression: peer.compression,
            bandwidth,
            added_rtt: self.config.added_rtt,
        };
        let way = NvmePeer::new(peer_address(peer), self.replica_nqn, options);
        Ok(Arc::new(way.with_link(link)))
    }

    /// Asks a peer for the identity of its replica, for an order. No host waits, so the peer has
    /// [`IDENTIFY_TIMEOUT`] even if its session would be given up earlier. The error is the reason
    /// that it does not answer.
    async fn identify_peer(
        &self,
        peer: &Peer,
        own: MirrorId,
        versions: LinkVersions,
    ) -> Result<ReplicaIdentity, String> {
        let connector = self.connector_within(peer, peer.timeout.max(IDENTIFY_TIMEOUT))?;
        // The link reports an unreachable device for a peer that has no replica, too.
        let silent = |error: IoError| match error {
            IoError::Unreachable if connector.link().is_node_refused => format!(
                "it refuses this node, which calls itself {node}: its configuration has no [peer.{node}] for \
                 this volume",
                node = self.node
            ),
            IoError::Unreachable => "no answer, or it has no replica of this volume".to_owned(),
            other => other.to_string(),
        };
        let session = connector.connect().await.map_err(silent)?;
        let identity = identify(&session, own, versions).await;
        session.close();
        identity.map_err(|error| error.to_string())
    }

    fn peer_options(&self, peer: &Peer) -> Result<PeerOptions, String> {
        let config = &self.config;
        let default = PeerOptions::new(self.connector(peer)?);
        Ok(PeerOptions {
            mode: config.mode,
            ack: config.ack,
            on_peer_loss: config.on_peer_loss,
            after_split_brain: config.after_split_brain,
            queue: QueueLimits {
                high_bytes: config.queue_bytes,
                low_bytes: config.queue_bytes / 2,
                ..default.queue
            },
            on_congestion: config.on_congestion,
            pace: PaceLimits {
                max_bytes_per_s: config.resync_max_bytes_per_s,
                adaptive: config.resync_adaptive,
                min_bytes_per_s: config.resync_min_bytes_per_s,
            },
            compare: config.resync_compare,
            timeout: peer.timeout,
            ..default
        })
    }

    /// Stops in order, after hosts are disconnected: host writes are on both legs afterwards. No
    /// mirror of the replica begins after that.
    pub(crate) async fn end(&self) -> MirrorEnd {
        self.ending.set(true);
        let mut ended = MirrorEnd::default();
        if self.mirror().is_none_or(|mirror| mirror.is_closed()) {
            // Stops the attempts to open the replica.
            self.watch.borrow_mut().take();
        }
        // A mirror that stops may have been replaced meanwhile, by one of another size.
        while let Some(mirror) = self.mirror().filter(|mirror| !mirror.is_closed()) {
            let MirrorEnd { undelivered, failure } = self.end_mirror(&mirror).await;
            ended.undelivered.extend(undelivered);
            ended.failure = ended.failure.or(failure);
        }
        ended
    }

    async fn end_mirror(&self, mirror: &Mirror) -> MirrorEnd {
        let (undelivered, failure) = match mirror.stop_with_group().await {
            Ok(undelivered) => (undelivered, None),
            Err(error) => {
                tracing::error!(volume = self.name, "the mirror did not stop cleanly: {error}");
                (Vec::new(), Some(format!("volume `{}`: {error}", self.name)))
            }
        };
        mirror.close();
        let peers = self.peers();
        let lacks = |Undelivered { leg, writes, bytes }: Undelivered| {
            let (volume, peer) = (&self.name, &peers[leg]);
            format!("{peer} lacks {writes} acknowledged writes of volume `{volume}` ({bytes} B)")
        };
        MirrorEnd { undelivered: undelivered.into_iter().map(lacks).collect(), failure }
    }
}

/// Outcome of an orderly stop of a mirrored volume.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MirrorEnd {
    /// What each peer lacks, in words.
    pub(crate) undelivered: Vec<String>,
    /// Why the replica was not flushed and put away.
    pub(crate) failure: Option<String>,
}

/// Both nodes prove the same key to each other.
fn shared_key(file: &Path) -> Result<KeyPair, String> {
    keys::ring(file).map(|ring| KeyPair::shared(&ring)).map_err(|error| error.to_string())
}
