//! The mirrored volumes of a server: from what the configuration says to mirrors that run.
//!
//! A mirrored volume is open before its replica has been made, so that `flagstone mirror create`
//! can be told to a running server; hosts are sent away until then. What is below the mirror in the
//! volume's table is its local leg. Each has, besides its namespace:
//!
//! - a hidden subsystem, in which its leg is served to the peers of the configuration alone;
//! - the way to each peer: an NVMe/TCP host that calls itself by this node's name;
//! - a watch that has the namespace's access state follow the role.
//!
//! Names are the same on all nodes, made of the volume's NQN and the nodes' names: so two files with
//! the roles swapped fit each other.

mod earlier;
mod granularity;
mod grow;
mod guard;
mod make;
mod open;
mod reopen;
mod slot;
mod small_log;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use flagstone_blockdev::{SharedDevice, Swap};
use flagstone_mirror::pace::PaceLimits;
use flagstone_mirror::peer::SharedPeer;
use flagstone_mirror::queue::QueueLimits;
use flagstone_mirror::replica::{Replica, read_superblock};
use flagstone_mirror::shape::layout;
use flagstone_mirror::{Mirror, PeerOptions, Versions};
use flagstone_nvme::Nqn;
use flagstone_nvme::log::AnaState;
use flagstone_nvmf::host::HostOptions;
use flagstone_nvmf::target::{SubsystemConfig, Target};
use flagstone_replication::{
    Bandwidth, LinkOptions, NvmePeer, Place, replication_nqn, serve_replica,
};
use flagstone_runtime::net::Address;
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};

use crate::config::{self, Config, Peer};
use crate::names::Uuid;
use crate::remote::Failure;
use crate::stack::OpenError;
use crate::uri::{Host, HostPort};

use granularity::shape;
pub(crate) use make::{CreateError, CreateRole, other_blocks};
pub(crate) use open::{reach_log, remote_log};
pub(crate) use reopen::Reopening;
use slot::Slot;

/// Controllers and ports of the nodes of a subsystem have numbers of their own: each node has one of
/// so many shares.
const NODES: u16 = crate::limits::MAX_PEERS as u16 + 1;

/// The caps on what is sent to peers, by name: all volumes that are mirrored to one share its.
pub(crate) type Caps = BTreeMap<String, Arc<Bandwidth>>;

/// The caps that the configuration asks for.
pub(crate) fn caps(config: &Config) -> Caps {
    let cap = |peer: &Peer| Some((peer.name.clone(), Bandwidth::new(peer.max_bytes_per_s?)));
    config.peers.iter().filter_map(cap).collect()
}

/// Opens what is below a mirror in its volume's table.
pub(crate) type OpenLeg =
    Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<SharedDevice, OpenError>>>>>;

/// A mirrored volume.
pub(crate) struct Mirrored {
    /// Index in [`Config::volumes`].
    pub(crate) volume: usize,
    /// Names of its peers, in the order of the legs of [`Mirror`].
    pub(crate) peers: Vec<String>,
    /// This node's own name.
    pub(crate) node: String,
    name: String,
    config: config::Mirror,
    links: Vec<Peer>,
    /// The volume's subsystem, that of its replica, and the names of the nodes as hosts.
    nqn: Nqn,
    /// Its namespace there.
    namespace_id: u32,
    replica_nqn: Nqn,
    /// What replicas of this volume know it by.
    called: u64,
    own_host: Nqn,
    peer_hosts: Vec<Nqn>,
    leg: SharedDevice,
    /// The same as what holds it, to open it again with `open_leg`, where that can be done.
    swap: Arc<Swap>,
    open_leg: RefCell<Option<OpenLeg>>,
    /// The device of the log, if it has one of its own, while the replica is open.
    log: RefCell<Option<SharedDevice>>,
    /// The same as what holds it, where it can be opened again. It is closed with the last who has it:
    /// one that was opened in vain is not kept from the next attempt.
    log_swap: RefCell<Weak<Swap>>,
    /// The same on another machine, connected to since before anything was begun, until it is used.
    reached_log: RefCell<Option<SharedDevice>>,
    slot: Arc<Slot>,
    /// What tells of a replica that is not found, since it was looked for last.
    missing: RefCell<Option<Rc<str>>>,
    /// The replica is not missing, but its log cannot be used, and `missing` says why.
    without_log: Cell<bool>,
    target: RefCell<Option<Arc<Target>>>,
    caps: RefCell<Caps>,
    watch: RefCell<Option<AbortOnDrop<()>>>,
    /// How the replica was opened again last, or is.
    reopening: RefCell<Option<Reopening>>,
    reopens: Cell<u64>,
    /// What was read of the devices is not to be relied on when they are opened next.
    doubtful: Cell<bool>,
    /// The mirror is being replaced by one of another size.
    growing: Cell<bool>,
    /// The size to which it is to grow, from when what is new is zeroed.
    growing_to: Cell<Option<u64>>,
    /// The versions of the replication link that this node speaks: all that there are, but in tests
    /// of nodes of several releases.
    versions: Cell<Versions>,
    /// One at a time makes the replica, or forgets it.
    making: Rc<Semaphore>,
}

impl Mirrored {
    /// The mirror of the volume at `index` over its leg, as large as the replica that is there: what
    /// the configuration says of granularities is for one that is made. `log` is what [`reach_log`]
    /// gives. Nothing is written.
    pub(crate) async fn over(
        config: &Config,
        index: usize,
        leg: SharedDevice,
        log: Option<SharedDevice>,
    ) -> Result<Mirrored, OpenError> {
        let volume = &config.volumes[index];
        let failed = |problem: String| OpenError {
            device: format!("the mirror of volume `{}`", volume.name),
            problem,
            may_pass: false,
        };
        let mirror = volume.mirror().ok_or_else(|| failed("it has none".to_owned()))?;
        let subsystem = config.subsystems.iter().find(|one| one.namespaces.contains(&index));
        let named = |text: &str| Nqn::new(text).map_err(|error| failed(format!("{text}: {error}")));
        let place = subsystem.and_then(|one| one.namespaces.iter().position(|at| *at == index));
        let nqn = named(subsystem.map_or("", |subsystem| &subsystem.nqn))?;
        let too_long = || failed(format!("{nqn} is too long to have `:replica` after it"));
        let replica_nqn = replication_nqn(&nqn).ok_or_else(too_long)?;
        let node = config.server.node.clone().unwrap_or_default();
        let prefix = &config.server.nvme.nqn_prefix;
        let host = |node: &str| named(&format!("{prefix}:node:{node}"));
        let links: Vec<Peer> =
            mirror.peers.iter().map(|peer| config.peers[*peer].clone()).collect();
        let geometry = leg.geometry();
        let layout = layout(geometry.size_bytes, &shape(mirror, geometry.size_bytes));
        let layout = layout.ok_or_else(|| {
            failed("its device is too small to have the mirror's own structures beside data".into())
        })?;
        let called = earlier::called(&replica_nqn);
        let found = read_superblock(&leg).await.ok();
        let found = found.filter(|found| earlier::is_own(found, called));
        let size_bytes = found.map_or(layout.usable_bytes, |found| found.shape.usable_bytes);
        let usable = flagstone_blockdev::Geometry { size_bytes, ..geometry };
        let swap = Swap::new(leg);
        Ok(Mirrored {
            volume: index,
            peers: links.iter().map(|peer| peer.name.clone()).collect(),
            own_host: host(&node)?,
            peer_hosts: links.iter().map(|peer| host(&peer.name)).collect::<Result<_, _>>()?,
            node,
            name: volume.name.clone(),
            config: mirror.clone(),
            links,
            nqn,
            namespace_id: place.map_or(1, |place| place as u32 + 1),
            replica_nqn,
            called,
            leg: swap.clone(),
            swap,
            open_leg: RefCell::default(),
            log: RefCell::default(),
            log_swap: RefCell::default(),
            reached_log: RefCell::new(log),
            slot: Slot::new(usable),
            missing: RefCell::default(),
            without_log: Cell::default(),
            target: RefCell::default(),
            caps: RefCell::default(),
            watch: RefCell::default(),
            reopening: RefCell::default(),
            reopens: Cell::default(),
            doubtful: Cell::default(),
            growing: Cell::default(),
            growing_to: Cell::default(),
            versions: Cell::new(Versions::SPOKEN),
            making: Semaphore::new(1),
        })
    }
}

/// The share of this node in what nodes of one subsystem must not have in common: its place among
/// the names of all nodes.
pub(crate) fn share(config: &Config) -> Option<u16> {
    let mirrored = config.volumes.iter().any(|volume| volume.mirror().is_some());
    let node = config.server.node.as_ref().filter(|_| mirrored)?;
    Some(config.peers.iter().filter(|peer| peer.name < *node).count() as u16)
}

/// Controller identifiers of a share, and its first port identifier.
pub(crate) fn identifiers(share: u16) -> (std::ops::RangeInclusive<u16>, u16) {
    let controllers = flagstone_nvme::command::fabrics::CONTROLLER_ID_MAX / NODES;
    let first = share * controllers + 1;
    (first..=first + controllers - 1, share * 64 + 1)
}

impl Mirrored {
    /// The device that hosts see.
    pub(crate) fn device(&self) -> SharedDevice {
        self.slot.clone()
    }

    /// The mirror, once its replica has been made and is open.
    pub(crate) fn mirror(&self) -> Option<Mirror> {
        self.slot.mirror()
    }

    /// Opens the replica, if there is one, and begins to serve if that is safe. Hosts of `target` are
    /// sent away until then.
    ///
    /// # Errors
    /// Of the replica's devices, mostly. Nothing is left of what was begun: another [`Mirrored`] may
    /// be started over them.
    pub(crate) async fn start(
        self: &Rc<Self>,
        target: &Arc<Target>,
        caps: &Caps,
    ) -> Result<(), OpenError> {
        *self.target.borrow_mut() = Some(target.clone());
        *self.caps.borrow_mut() = caps.clone();
        self.set_access(false);
        self.open_and_run().await.map_err(|Failure { problem, may_pass }| {
            let device = format!("the mirror of volume `{}`", self.name);
            OpenError { device, problem, may_pass }
        })
    }

    async fn open_and_run(self: &Rc<Self>) -> Result<(), Failure> {
        if let Some(replica) = self.open().await? {
            return self.run(replica).await;
        }
        let name = &self.name;
        if let Some(missing) = self.missing() {
            tracing::error!(
                "{missing}. The volume is not served by this node, and nothing was changed on its \
                 device"
            );
            return Ok(());
        }
        tracing::warn!(
            "volume `{name}` has no replica here yet: make it with `flagstone mirror create {name} \
             --source` on the node that has the data, `--target` on the other"
        );
        Ok(())
    }

    /// Size of the volume as hosts know it since the server began.
    pub(super) fn slot_bytes(&self) -> u64 {
        use flagstone_blockdev::BlockDevice as _;
        self.slot.geometry().size_bytes
    }

    /// Has the leg opened again that way where a flush of it has failed.
    pub(crate) fn reopen_with(&self, open_leg: OpenLeg) {
        *self.open_leg.borrow_mut() = Some(open_leg);
    }

    /// Has the mirror run on this replica: its leg is served to peers, and hosts are served when
    /// that is safe, which it is not where its data is doubtful. One that does not start has ended.
    async fn run(self: &Rc<Self>, replica: Replica) -> Result<(), Failure> {
        let mirror = self.mirror_of(replica)?;
        self.slot.set(Some(mirror.clone()));
        let served = match mirror.start().await {
            Ok(served) => served,
            Err(error) => {
                self.give_mirror_up().await;
                return Err(error.into());
            }
        };
        let role = mirror.status().role;
        tracing::info!(volume = self.name, ?role, served, "the mirror runs");
        self.follow(mirror, false);
        Ok(())
    }

    /// A mirror of this replica, whose leg is served to peers.
    fn mirror_of(&self, replica: Replica) -> Result<Mirror, String> {
        if let Some(bytes) = self.log_room_bytes(&replica.superblock().shape) {
            replica.set_log_room(bytes);
        }
        replica.set_intent(self.config.intent);
        let volume = replica.superblock().volume;
        let peers = (0..self.links.len()).map(|leg| self.peer_options(leg)).collect();
        let mirror = Mirror::speaking(self.versions.get(), replica, peers);
        let target = self.target.borrow().clone().ok_or("the server is not up yet")?;
        let hidden = SubsystemConfig {
            nqn: self.replica_nqn,
            serial: Uuid::derived(&[self.replica_nqn.to_string().as_bytes()]).serial(),
            allow_hosts: self.peer_hosts.clone(),
        };
        let uuid = Uuid::derived(&[b"replica", &volume.0, self.node.as_bytes()]);
        if let Err(error) = serve_replica(&target, hidden, uuid.0, Arc::new(mirror.clone())) {
            // Its links would go on to look for peers.
            mirror.close();
            return Err(error.to_string());
        }
        Ok(mirror)
    }

    /// Has what hosts are told follow the mirror, which they were told is `active`; and its size
    /// that of its source.
    fn follow(self: &Rc<Self>, mirror: Mirror, mut active: bool) {
        let access = Rc::downgrade(self);
        let size = access.clone();
        let sized = mirror.clone();
        let watch = async move {
            let looks = spawn(reopen::look_after(size.clone(), sized.clone())).abort_on_drop();
            let resizes = spawn(grow::follow_source(size, sized)).abort_on_drop();
            loop {
                active = mirror.activity_changed(active).await;
                let Some(this) = access.upgrade() else { return drop((resizes, looks)) };
                this.set_access(active);
            }
        };
        *self.watch.borrow_mut() = Some(spawn(watch).abort_on_drop());
    }

    /// What hosts are told of the way to the volume by this node (Base 8.1.1): it can be used, or
    /// they go to the other node.
    fn set_access(&self, active: bool) {
        let state = if active { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE };
        let Some(target) = self.target.borrow().clone() else { return };
        let known = target.subsystem_status(&self.nqn).is_ok_and(|status| status.ana == state);
        match target.set_ana_state(&self.nqn, state) {
            // A mirror that is tried to be started again and again.
            Ok(()) if known => {}
            Ok(()) => tracing::info!(volume = self.name, "hosts are told: {state}"),
            Err(error) => tracing::error!(volume = self.name, "cannot tell hosts: {error}"),
        }
    }

    /// Gives a source that is attached the time to be found dead: a link that is silent is given up
    /// after its time-out, one that was reset at once.
    pub(crate) async fn wait_for_loss(&self) {
        let Some(mirror) = self.mirror().filter(Mirror::has_source) else { return };
        let timeout = self.links.iter().map(|link| link.timeout).max().unwrap_or_default();
        tracing::info!(volume = self.name, ?timeout, "waiting for the source to be found dead");
        // The target of a link looks for silence in quarters of its time-out.
        let timeout = timeout + timeout / 4 + crate::limits::LOSS_GRACE;
        let lost = time::timeout(timeout, mirror.source_gone()).await.is_ok();
        tracing::info!(volume = self.name, lost, "waited for the source to be found dead");
    }

    fn way(&self, leg: usize) -> SharedPeer {
        let peer = &self.links[leg];
        let options = HostOptions {
            host_nqn: Some(self.own_host),
            queues: peer.connections,
            keep_alive: peer.timeout,
            command_timeout: peer.timeout,
            connect_timeout: peer.timeout,
            ..HostOptions::default()
        };
        let bandwidth = self.caps.borrow().get(&peer.name).cloned();
        let link = LinkOptions {
            compression: peer.compression,
            bandwidth,
            emulate_rtt: self.config.emulate_rtt,
        };
        let way = NvmePeer::new(self.place(leg), self.replica_nqn, options);
        Arc::new(way.with_link(link))
    }

    /// Where a peer is. What it is called is looked up for each connection: a name server that is not
    /// up yet is waited for as the peer is.
    fn place(&self, leg: usize) -> Place {
        let HostPort { host, port } = &self.links[leg].address;
        match host {
            Host::Ip(ip) => Address::Tcp((*ip, *port).into()).into(),
            Host::Name(name) => Place::named(name, *port),
        }
    }

    fn peer_options(&self, leg: usize) -> PeerOptions {
        let config = &self.config;
        let default = PeerOptions::new(self.way(leg));
        PeerOptions {
            mode: config.mode,
            ack: config.ack,
            when_lost: config.when_peer_lost,
            when_split: config.split_brain,
            queue: QueueLimits {
                high_bytes: config.queue_bytes,
                low_bytes: config.queue_bytes / 2,
                ..default.queue
            },
            when_full: config.when_queue_full,
            pace: PaceLimits {
                max_bytes_per_s: config.resync_max_bytes_per_s,
                adaptive: config.resync_adaptive,
                min_bytes_per_s: config.resync_min_bytes_per_s,
            },
            compare: config.resync_compare,
            ..default
        }
    }

    /// Ends in order: what hosts have written is on both legs, and nobody serves. Hosts have gone.
    pub(crate) async fn end(&self) {
        let Some(mirror) = self.mirror() else { return };
        if self.has_ended() {
            // Nobody opens its replica again now.
            self.watch.borrow_mut().take();
            return;
        }
        if let Err(error) = mirror.stop().await {
            tracing::error!(volume = self.name, "the mirror did not end cleanly: {error}");
        }
        mirror.close();
    }
}
