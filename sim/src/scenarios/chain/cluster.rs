//! Cluster of a chain scenario: two storage nodes and one to three hosts, drawn from the seed.
//!
//! A storage node runs what a server runs: its replica on the local disk, the mirror, a target with
//! the volume and the hidden replica subsystem, and a task that makes the ANA state follow the
//! role.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_auth::KeyPair;
use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, ReopenableDevice, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, layout};
use flagstone_mirror::ondisk::newest;
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_mirror::state::status::{MirrorState, MirrorStatus};
use flagstone_mirror::{
    Ack, FailoverOptions, LinkVersions, Mirror, Mode, OnPeerLoss, PeerOptions, SharedFence,
};
use flagstone_nvme::Nqn;
use flagstone_nvme::log::AnaState;
use flagstone_nvmf_host::HostOptions;
use flagstone_nvmf_target::{
    NamespaceConfig, SubsystemConfig, Target, TargetConfig, TlsMode, serve_listener,
};
use flagstone_replication::{NvmePeer, replication_nqn, serve_replica};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation};
use flagstone_runtime::{spawn_detached, time};

use super::Profile;
use super::arbiter::{Client, Fencer, Store, StoreHandle};
use super::history::History;
use super::hosts::{self, HostPlan};
use super::link_keys::{self, LinkKeys, LinkStep};
use super::pooled;

pub(super) const DATA: &str = "/dev/data";
const PORT: u16 = 4420;
/// Second port of each node, for hosts.
const SECOND_PORT: u16 = 4421;
/// Time after which the link counts a silent peer as lost.
pub(super) const LINK_TIMEOUT: Duration = Duration::from_secs(1);

/// NQN of the volume's subsystem.
pub(super) fn volume_nqn() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:db").expect("a valid name")
}

pub(super) fn replica_nqn() -> Nqn {
    replication_nqn(&volume_nqn()).expect("a short name")
}

pub(super) fn node_nqn(index: usize) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.flagstone:node:{}", ["a", "b"][index])).expect("valid")
}

/// State that the nodes' tasks and the observer share.
pub(super) struct World {
    pub(super) history: History,
    pub(super) mirrors: RefCell<[Option<Arc<Mirror>>; 2]>,
    pub(super) devices: RefCell<[Option<Arc<ReopenableDevice>>; 2]>,
    /// Targets of the nodes that are up.
    pub(super) targets: RefCell<[Option<Arc<Target>>; 2]>,
    /// Configured TLS of the link at each node.
    pub(super) link_keys: LinkKeys,
    pub(super) link_steps: [Cell<LinkStep>; 2],
    /// Node that served last.
    pub(super) source: Cell<usize>,
    /// Node that the operator promotes while the source is down.
    pub(super) failing_over: Cell<Option<usize>>,
    /// True if that promotion gives up data that only the other node may have.
    pub(super) gives_up: Cell<bool>,
    /// True if the node lost power since its data was last known to be complete.
    pub(super) lost_power: [Cell<bool>; 2],
    /// True if the node's disk must show one moment of this era's past whenever it may be promoted.
    pub(super) is_past: [Cell<bool>; 2],
    pub(super) hold: Cell<bool>,
    /// True if hosts make few calls.
    pub(super) calm: Cell<bool>,
    pub(super) stop: Cell<bool>,
    pub(super) mode: Mode,
    /// True if nodes fail over automatically.
    automatic: bool,
    /// Most that an automatic failover of an asynchronous mirror may lose.
    max_lag: Duration,
    pooled: bool,
    pub(super) ack: Ack,
    sim: flagstone_runtime::sim::World,
    nodes: [NodeId; 2],
    usable: u64,
}

impl World {
    /// Bytes that a node's disk shows.
    fn data(&self, index: usize) -> Vec<u8> {
        assert!(!self.pooled, "a pool is read by the cluster");
        self.sim.peek(self.nodes[index], DATA, 0, self.usable as usize)
    }

    /// Records that a node begins to serve. The history restarts if that gives data up.
    fn promoted(&self, index: usize) {
        let from = self.source.replace(index);
        let ordered = self.failing_over.take() == Some(index);
        // Without an operator, the role moves by a grant or by a switchover, which loses nothing.
        let failover = ordered || (self.automatic && self.mode == Mode::Async && from != index);
        self.history.note(format!("node {index} serves, after node {from}, failover {failover}"));
        let lost_power = self.lost_power[index].replace(false);
        if failover && self.mode == Mode::Async {
            let content = self.data(index);
            if self.is_past[index].get() {
                self.check_loss(index, &content);
            }
            self.history.rebase("the failover of an asynchronous mirror", &content);
        } else if failover && self.gives_up.get() {
            self.history.rebase("the operator gave data up", &self.data(index));
        } else if lost_power {
            self.history.lose_unflushed();
        }
        self.is_past.iter().for_each(|past| past.set(false));
    }
}

impl World {
    /// Checks what a promoted node of an asynchronous mirror shows: one moment of the past, and by
    /// itself a recent one.
    fn check_loss(&self, index: usize, content: &[u8]) {
        let what = match self.history.lost_span(content) {
            Ok(lost) if !self.automatic || lost <= self.max_lag => return,
            Ok(lost) => format!("it lacks the last {lost:?}, more than {:?}", self.max_lag),
            Err(what) => what,
        };
        panic!("node {index} is promoted: {what}\n{}", self.history.events());
    }
}

struct FailoverTiming {
    /// True if the node has no arbiter, so that its operator decides.
    manual: Cell<bool>,
    after_ms: Cell<u64>,
    /// Greatest lag of an asynchronous mirror; `None` in synchronous mode.
    max_lag: Cell<Option<Duration>>,
    /// Rate of the node's clock, in thousandths.
    clock: u64,
}

/// Version of a disk, and the content of its replica in a pool at that version.
type KnownReplica = (u64, Vec<u8>);

pub(super) struct Cluster {
    pub(super) sim: Simulation,
    pub(super) profile: Profile,
    pub(super) nodes: [NodeId; 2],
    pub(super) hosts: Vec<NodeId>,
    pub(super) world: Rc<World>,
    volatile: bool,
    on_peer_loss: OnPeerLoss,
    compare: bool,
    queues: u16,
    host_plan: HostPlan,
    /// Hosts have two paths to each node.
    second_paths: bool,
    /// The arbiter, and the `failover_after` of each node, whose clock runs at this rate in
    /// thousandths.
    arbiter: Option<(StoreHandle, [FailoverTiming; 2])>,
    /// End of each node's device, where its superblock is.
    device_bytes: u64,
    /// Number of looks at the replicas in pools.
    pub(super) pool_looks: Cell<u32>,
    /// Versions of the disks, and the content of their replicas in pools.
    replicas: RefCell<[Option<KnownReplica>; 2]>,
}

impl Cluster {
    pub(super) fn new(seed: u64, profile: Profile) -> Cluster {
        let sim = Simulation::new(seed, Default::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
        let hosts: Vec<NodeId> = (0..sim.random_between(1, 3))
            .map(|host| sim.add_node(&format!("host{host}")))
            .collect();
        let geometry = ReplicaGeometry {
            usable_bytes: 4096,
            bit_bytes: 4096,
            region_bytes: 4096 << sim.random_between(0, 2),
            active_regions_max: 32,
        };
        let device_bytes = (sim.random_between(8, 48) + 16) * 4096;
        let volatile = sim.chance(0.5);
        for (index, node) in nodes.into_iter().enumerate() {
            let size = if profile.pooled { pooled::DISK_BYTES } else { device_bytes };
            let disk = DiskConfig { volatile_cache: volatile, ..DiskConfig::block_device(size) };
            sim.add_disk(node, DATA, disk);
            let create = CreateReplica {
                volume: MirrorId([7; 16]),
                with_data: index == 0,
                zeroes: false,
                geometry,
            };
            let made = sim.spawn_on(node, async move {
                if profile.pooled {
                    pooled::create(disk_of_node().await, device_bytes).await;
                }
                Replica::create(device(profile.pooled).await, None, create)
                    .await
                    .expect("a sound disk");
            });
            sim.block_on(made).expect("the task is not aborted");
        }
        let usable = layout(device_bytes, &geometry).expect("room").usable_bytes;
        let ack = if sim.chance(0.3) { Ack::Memory } else { Ack::Disk };
        let block = sim.chance(0.2) && profile.mode == Mode::Sync;
        let is_lossy = profile.automatic && profile.mode == Mode::Async;
        let max_lag = match is_lossy {
            true => sim.random_span(Duration::from_secs(2), Duration::from_secs(8)),
            false => Duration::ZERO,
        };
        let link_keys = match profile.keys {
            true => LinkKeys::random(&sim),
            false => LinkKeys::Tls,
        };
        let world = World {
            history: History::new(sim.world(), seed, usable),
            mirrors: RefCell::default(),
            devices: RefCell::default(),
            targets: RefCell::default(),
            link_keys,
            link_steps: [LinkStep::Off; 2].map(Cell::new),
            source: Cell::new(0),
            failing_over: Cell::new(None),
            automatic: profile.automatic,
            max_lag,
            pooled: profile.pooled,
            gives_up: Cell::new(false),
            lost_power: Default::default(),
            is_past: Default::default(),
            hold: Cell::new(false),
            calm: Cell::new(false),
            stop: Cell::new(false),
            mode: profile.mode,
            ack,
            sim: sim.world(),
            nodes,
            usable,
        };
        let host_plan = HostPlan::draw(&sim, usable);
        let arbiter = profile.automatic.then(|| {
            let after = sim.random_between(1500, 3000);
            let timing = [(); 2].map(|()| FailoverTiming {
                manual: Cell::new(false),
                after_ms: Cell::new(after),
                max_lag: Cell::new((profile.mode == Mode::Async).then_some(max_lag)),
                clock: sim.random_between(970, 1030),
            });
            (StoreHandle::new(&sim), timing)
        });
        Cluster {
            profile,
            nodes,
            hosts,
            world: Rc::new(world),
            volatile,
            on_peer_loss: if block && !profile.automatic {
                OnPeerLoss::Block
            } else {
                OnPeerLoss::Degrade
            },
            compare: sim.chance(0.3),
            queues: sim.random_between(1, 2) as u16,
            host_plan,
            second_paths: profile.all && sim.chance(0.3),
            arbiter,
            device_bytes,
            pool_looks: Cell::default(),
            replicas: RefCell::default(),
            sim,
        }
    }

    fn address(&self, index: usize) -> Address {
        self.address_at(index, PORT)
    }

    fn address_at(&self, index: usize, port: u16) -> Address {
        Address::Tcp((self.sim.ip(self.nodes[index]), port).into())
    }

    /// Starts the process of a storage node.
    pub(super) fn start(&self, index: usize) {
        self.start_with(index, false);
    }

    fn start_with(&self, index: usize, unverified: bool) {
        let world = self.world.clone();
        let step = world.link_steps[index].get();
        let here = [PORT, SECOND_PORT].map(|port| self.address_at(index, port));
        let options = HostOptions {
            host_nqn: Some(node_nqn(index)),
            queues: self.queues,
            keep_alive: LINK_TIMEOUT,
            command_timeout: LINK_TIMEOUT,
            connect_timeout: LINK_TIMEOUT,
            keys: step.secrets(world.link_keys),
            tls: step.tls(world.link_keys),
            ..HostOptions::default()
        };
        let peer = NvmePeer::new(self.address(1 - index), replica_nqn(), options);
        let mut peer = PeerOptions::new(Arc::new(peer));
        (peer.mode, peer.ack) = (self.world.mode, self.world.ack);
        (peer.on_peer_loss, peer.compare) = (self.on_peer_loss, self.compare);
        if self.profile.automatic && self.world.mode == Mode::Async {
            // Few bytes in flight, so that calls do not fail when the link is narrow.
            peer.queue.window_bytes = 32 << 10;
        }
        let mode = link_keys::listener(self.profile.keys);
        let failover = self.arbiter.as_ref().and_then(|(store, timing)| {
            let FailoverTiming { manual, after_ms, max_lag, clock } = &timing[index];
            let arbiter = Arc::new(Client { store: store.clone(), index });
            let failover_after = Duration::from_micros(after_ms.get() * clock);
            let fence = store
                .get()
                .fence_fails
                .get()
                .map(|_| Arc::new(Fencer { store: store.clone(), index }) as SharedFence);
            let max_lag = max_lag.get();
            (!manual.get()).then_some(FailoverOptions { arbiter, failover_after, max_lag, fence })
        });
        if failover.as_ref().is_some_and(|own| own.max_lag.is_none()) {
            peer.mode = Mode::Sync;
        }
        let process = node(world, index, (here, mode), (peer, failover), unverified);
        self.sim.spawn_on(self.nodes[index], process);
    }

    /// Starts the hosts, which run until the end.
    pub(super) fn start_hosts(&self) {
        let mut paths = vec![self.address(0), self.address(1)];
        if self.second_paths {
            paths.extend([0, 1].map(|index| self.address_at(index, SECOND_PORT)));
        }
        for (index, node) in self.hosts.iter().enumerate() {
            let (world, plan, paths) = (self.world.clone(), self.host_plan, paths.clone());
            self.sim.spawn_on(*node, hosts::run(world, index, plan, paths));
        }
    }

    /// Kills a node's process, or cuts its power.
    pub(super) fn end(&self, index: usize, power: bool) {
        let node = self.nodes[index];
        if !self.sim.is_up(node) {
            return;
        }
        let other_serves = self.serves(1 - index);
        let was_source = self.world.source.get() == index && !other_serves;
        if power {
            self.sim.power_off(node);
            // A source that acknowledges from its target's disk has all data there.
            let relied = was_source || self.world.ack == Ack::Memory;
            if self.volatile && (relied || self.world.mode == Mode::Async) {
                self.world.lost_power[index].set(true);
            }
            // Writes that were acknowledged from memory may be lost in any order until a flush.
            if self.volatile && self.world.mode == Mode::Sync && self.world.ack == Ack::Memory {
                self.world.is_past[index].set(false);
            }
        } else {
            self.sim.crash(node);
        }
        self.world.mirrors.borrow_mut()[index] = None;
        self.world.devices.borrow_mut()[index] = None;
        self.world.targets.borrow_mut()[index] = None;
    }

    /// Ends the nodes that a fencing command stops.
    pub(super) fn stop_fenced(&self) {
        let Some((store, _)) = &self.arbiter else { return };
        for (index, stops) in store.get().stops.iter().enumerate() {
            if stops.get() {
                self.world.history.note(format!("node {index} is fenced"));
                self.end(index, false);
                stops.set(false);
            }
        }
    }

    pub(super) fn restart(&self, index: usize) {
        if !self.sim.is_up(self.nodes[index]) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    /// Restarts a node whose disk failed.
    pub(super) fn restart_unverified(&self, index: usize) {
        self.sim.restart(self.nodes[index]);
        self.start_with(index, true);
    }

    /// True if the node's disk failed, and must be reopened.
    pub(super) fn has_failed(&self, index: usize) -> bool {
        let device = self.world.devices.borrow()[index].clone();
        device.is_some_and(|device| device.must_reopen())
            || self.mirror(index).is_some_and(|mirror| mirror.has_failed())
    }

    /// Changes the `failover_after` of a node, from its next start on.
    pub(super) fn set_failover_after(&self, index: usize, after_ms: u64) {
        let (_, timing) = self.arbiter.as_ref().expect("an automatic cluster");
        timing[index].after_ms.set(after_ms);
    }

    /// Size of each node's disk. The superblocks are at its end.
    #[cfg(test)]
    pub(super) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Lets nodes take over whatever they lack, from their next start on.
    #[cfg(test)]
    pub(super) fn allow_any_lag(&self) {
        let (_, timing) = self.arbiter.as_ref().expect("an automatic cluster");
        timing.iter().for_each(|own| own.max_lag.set(Some(Duration::from_secs(3600))));
    }

    /// Configures a node as that of a synchronous mirror from its next start on.
    #[cfg(test)]
    pub(super) fn set_synchronous(&self, index: usize) {
        let (_, timing) = self.arbiter.as_ref().expect("an automatic cluster");
        timing[index].max_lag.set(None);
    }

    /// Makes a node manual from its next start on: its operator decides.
    #[cfg(test)]
    pub(super) fn set_manual(&self, index: usize) {
        let (_, timing) = self.arbiter.as_ref().expect("an automatic cluster");
        timing[index].manual.set(true);
    }

    /// The arbiter's store.
    pub(super) fn store(&self) -> Rc<Store> {
        self.arbiter.as_ref().expect("an automatic cluster").0.get()
    }

    pub(super) fn mirror(&self, index: usize) -> Option<Arc<Mirror>> {
        self.world.mirrors.borrow()[index].clone()
    }

    pub(super) fn serves(&self, index: usize) -> bool {
        self.mirror(index).is_some_and(|mirror| mirror.is_serving())
    }

    /// The serving node. Two serving nodes fail the run.
    pub(super) fn active(&self) -> Option<usize> {
        if self.arbiter.is_some() {
            return self.active_automatic();
        }
        let serving = [0, 1].map(|index| self.serves(index));
        if serving == [true, true] {
            self.fail("two nodes serve");
        }
        serving.iter().position(|serves| *serves)
    }

    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        Some(self.mirror(index)?.state(0))
    }

    pub(super) fn status(&self, index: usize) -> Option<MirrorStatus> {
        let mirror = self.mirror(index)?;
        Some(self.sim.block_on(async move { mirror.status() }))
    }

    /// Bytes of the volume that a node's disk shows.
    pub(super) fn data(&self, index: usize) -> Vec<u8> {
        self.replica(index).1
    }

    /// Content of replicas in pools, at one moment.
    fn replicas<const N: usize>(&self, indexes: [usize; N]) -> [Vec<u8>; N] {
        let image = |index: usize| {
            let node = self.nodes[index];
            let version = self.sim.disk_version(node, DATA);
            match &self.replicas.borrow()[index] {
                Some((known, content)) if *known == version => Ok(content.clone()),
                _ => Err((version, pooled::image(&self.sim, node, DATA))),
            }
        };
        let images = indexes.map(image);
        let mut contents = [const { Vec::new() }; N];
        for ((image, index), content) in images.into_iter().zip(indexes).zip(&mut contents) {
            *content = match image {
                Ok(content) => content,
                Err((version, image)) => {
                    let content = pooled::content(&self.sim, image);
                    self.replicas.borrow_mut()[index] = Some((version, content.clone()));
                    content
                }
            };
        }
        contents
    }

    /// First byte in which the disks of both nodes differ.
    pub(super) fn first_difference(&self) -> Option<u64> {
        if self.profile.pooled {
            let [one, other] = self.replicas([0, 1]);
            let [one, other] = [&one, &other].map(|bytes| &bytes[..self.world.usable as usize]);
            if one == other {
                return None;
            }
            let at = one.iter().zip(other).position(|(one, other)| one != other);
            return at.map(|at| at as u64);
        }
        self.sim.first_difference(self.nodes, DATA, self.world.usable)
    }

    /// Superblock on a node's disk.
    pub(super) fn superblock(&self, index: usize) -> Option<Superblock> {
        self.replica(index).0
    }

    /// Superblock, and bytes of the volume, that a node's disk shows at one moment.
    pub(super) fn replica(&self, index: usize) -> (Option<Superblock>, Vec<u8>) {
        let mut content = match self.profile.pooled {
            true => {
                let [content] = self.replicas([index]);
                content
            }
            false => self.sim.peek(self.nodes[index], DATA, 0, self.device_bytes as usize),
        };
        let read = |before_end: u64| {
            let at = (self.device_bytes - before_end) as usize;
            Superblock::decode(content[at..][..4096].try_into().expect("a page"))
        };
        let found = newest([read(8192), read(4096)], |superblock| superblock.sequence);
        content.truncate(self.world.usable as usize);
        (found.ok().map(|found| found.1), content)
    }

    /// Runs an operator's command on a node, which may die meanwhile.
    pub(super) fn command<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        name: &'static str,
        say: impl FnOnce(Arc<Mirror>) -> F + 'static,
    ) {
        self.world.history.note(format!("operator at node {index}: {name}"));
        if let Some(mirror) = self.mirror(index) {
            self.sim.spawn_on(self.nodes[index], async move { say(mirror).await });
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for index in 0..2 {
            text += &format!("node {index}: up {}", self.sim.is_up(self.nodes[index]));
            if let Some(status) = self.status(index) {
                text += &format!(", {status:?}");
            }
            text += &format!("\n  {:?}\n", self.superblock(index));
        }
        text
    }

    /// Ends the run with the cluster's state and the latest events.
    pub(super) fn fail(&self, what: &str) -> ! {
        panic!("{what}\n{}{}", self.world.history.events(), self.describe());
    }
}

impl Drop for Cluster {
    /// Breaks the reference cycle of tasks, mirrors and the world.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for node in self.nodes.iter().chain(&self.hosts) {
            if self.sim.is_up(*node) {
                self.sim.crash(*node);
            }
        }
        self.world.mirrors.take();
        self.world.devices.take();
        self.world.targets.take();
    }
}

async fn disk_of_node() -> SharedDevice {
    loop {
        match FileDevice::open(DATA, &FileOptions::default()) {
            Ok(device) => return device,
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// The device of a replica: the disk, or a volume of a pool on it.
async fn device(is_pooled: bool) -> Arc<ReopenableDevice> {
    loop {
        let disk = disk_of_node().await;
        match is_pooled {
            true => match pooled::open(disk).await {
                Some(volume) => return ReopenableDevice::new(volume),
                None => time::sleep(Duration::from_millis(100)).await,
            },
            false => return ReopenableDevice::new(disk),
        }
    }
}

/// Process of a storage node.
async fn node(
    world: Rc<World>,
    index: usize,
    (here, mode): ([Address; 2], TlsMode),
    (peer, failover): (PeerOptions, Option<FailoverOptions>),
    unverified: bool,
) {
    let (device, local) = loop {
        let device = device(world.pooled).await;
        match Replica::open(device.clone(), None).await {
            Ok(local) if !unverified || local.mark_unverified().await.is_ok() => {
                break (device, local);
            }
            Ok(_) => {}
            Err(_) => {}
        }
        time::sleep(Duration::from_millis(100)).await;
    };
    let versions = LinkVersions::SPOKEN;
    let mirror = Arc::new(Mirror::with_failover(versions, local, vec![peer], None, failover));
    world.devices.borrow_mut()[index] = Some(device);
    world.mirrors.borrow_mut()[index] = Some(mirror.clone());
    let (keys, step) = (world.link_keys, world.link_steps[index].get());
    let target = target_of(index, &mirror, step.secrets(keys));
    step.set_tls_keys(keys, &target, index);
    world.targets.borrow_mut()[index] = Some(target.clone());
    for address in here {
        let listener = Listener::bind(&address).expect("the port is free");
        let accepting = target.clone();
        spawn_detached(async move {
            while let Ok(stream) = listener.accept().await {
                spawn_detached(serve_listener(accepting.clone(), stream, mode));
            }
        });
    }
    spawn_detached(follow(world.clone(), index, target, mirror.clone()));
    world.history.note(format!("node {index} is up"));
    while mirror.start().await.is_err() {
        time::sleep(Duration::from_millis(100)).await;
    }
}

/// Makes the ANA state follow the role, as the server does.
async fn follow(world: Rc<World>, index: usize, target: Arc<Target>, mirror: Arc<Mirror>) {
    let mut active = false;
    loop {
        active = mirror.serving_changed(active).await;
        if active {
            world.promoted(index);
        } else {
            world.history.note(format!("node {index} serves no more"));
        }
        let state = if active { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE };
        target.set_ana_state(&volume_nqn(), state).expect("the subsystem exists");
    }
}

/// Target of a node: the volume, inaccessible at first, and the replica for the other node.
fn target_of(index: usize, mirror: &Arc<Mirror>, keys: Option<KeyPair>) -> Arc<Target> {
    const CONTROLLERS: u16 = 1000;
    let first = 1 + index as u16 * CONTROLLERS;
    let config = TargetConfig {
        controller_ids: first..=first + CONTROLLERS - 1,
        max_controllers: u32::from(CONTROLLERS),
        first_port_id: 1 + index as u16 * 64,
        ..TargetConfig::default()
    };
    let target = Target::new(config).expect("a valid configuration");
    let serial = "1".to_owned();
    let volume = SubsystemConfig {
        nqn: volume_nqn(),
        serial: serial.clone(),
        allow_hosts: None,
        keys: Default::default(),
    };
    target.add_subsystem(volume).expect("it is the first");
    target.set_ana_state(&volume_nqn(), AnaState::INACCESSIBLE).expect("it exists");
    let device = Arc::new((**mirror).clone());
    let namespace = NamespaceConfig { nsid: Some(1), device, uuid: [1; 16], read_only: false };
    target.add_namespace(&volume_nqn(), namespace).expect("it is the first");
    let other = node_nqn(1 - index);
    let keys = keys.map(|keys| (other, keys)).into_iter().collect();
    let replica =
        SubsystemConfig { nqn: replica_nqn(), serial, allow_hosts: Some(vec![other]), keys };
    serve_replica(&target, replica, [2 + index as u8; 16], mirror.clone()).expect("it is new");
    target
}
