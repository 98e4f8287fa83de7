//! Groups of two or more mirroring nodes without random faults, for tests that script each step.
//!
//! Left out of every test that uses them: the hosts' protocols and the link's wire format (calls go
//! to the mirror, and [`super::link`] carries requests), the daemon, random faults, and concurrent
//! hosts unless the test starts them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FileDevice, FileOptions, IoError, ReopenableDevice, SharedDevice,
};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::ondisk::newest;
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_mirror::state::status::{DesiredState, MirrorPeerStatus, MirrorState};
use flagstone_mirror::{LinkVersions, Mirror, PeerChange, PeerOptions};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation};
use flagstone_runtime::{buf, spawn_detached, time};

use super::link::{Network, NetworkHandle};

pub(super) const DATA: &str = "/dev/data";

/// Bytes per bitmap bit, and per block in these tests.
pub(super) const BLOCK: u64 = 64 << 10;
/// Blocks of the volume.
pub(super) const BLOCKS: u64 = 64;
/// Bytes per region: four blocks.
pub(super) const REGION: u64 = 4 * BLOCK;

/// Device range of the metadata, in bytes: superblocks, headers, records and a page.
pub(super) const METADATA: Range<u64> = BLOCKS * BLOCK..BLOCKS * BLOCK + 7 * 4096;
/// Device range of the superblocks, in bytes.
pub(super) const SUPERBLOCKS: Range<u64> = METADATA.end - 2 * 4096..METADATA.end;

const VOLUME: MirrorId = MirrorId([7; 16]);

/// Names of the nodes.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// `N` nodes, each with a link to every other.
pub(super) struct Group<const N: usize> {
    pub(super) sim: Simulation,
    pub(super) nodes: [NodeId; N],
    network: NetworkHandle,
    mirrors: Rc<RefCell<[Option<Arc<Mirror>>; N]>>,
    /// Replica devices of the running nodes.
    devices: Rc<RefCell<[Option<Arc<ReopenableDevice>>; N]>>,
    options: fn(&mut PeerOptions),
    data_bytes: u64,
    device_bytes: u64,
    /// Link versions that the nodes' programs speak.
    releases: RefCell<[LinkVersions; N]>,
    /// Requested logical block size of each node's volume, in bytes; the disk's own if `None`.
    blocks: RefCell<[Option<u32>; N]>,
}

pub(super) type Pair = Group<2>;
/// A source and two targets.
pub(super) type Trio = Group<3>;

impl<const N: usize> Group<N> {
    /// Group in which node 0 has the data and serves, and all nodes are in sync.
    pub(super) fn new(seed: u64, options: fn(&mut PeerOptions)) -> Group<N> {
        Group::of(seed, [LinkVersions::SPOKEN; N], options)
    }

    /// As [`Group::new`], for releases that speak these link versions.
    pub(super) fn of(
        seed: u64,
        releases: [LinkVersions; N],
        options: fn(&mut PeerOptions),
    ) -> Group<N> {
        Group::with_blocks(seed, BLOCK, releases, options)
    }

    /// As [`Group::of`], with other blocks than [`BLOCK`], in bytes. Neither [`Group::write`] nor
    /// [`Group::read`] can be used.
    pub(super) fn with_blocks(
        seed: u64,
        block: u64,
        releases: [LinkVersions; N],
        options: fn(&mut PeerOptions),
    ) -> Group<N> {
        let group = Group::made(seed, block, false, options);
        *group.releases.borrow_mut() = releases;
        (0..N).for_each(|index| group.start(index));
        (1..N).for_each(|other| group.until_toward(0, other, MirrorState::Mirroring));
        group
    }

    /// Group whose devices read as zeroes, and are known to. No node runs.
    #[cfg(test)]
    pub(super) fn of_zeroes(seed: u64, options: fn(&mut PeerOptions)) -> Group<N> {
        Group::made(seed, BLOCK, true, options)
    }

    /// Gives a stopped node a device of zeroes with a new replica, a target.
    #[cfg(test)]
    pub(super) fn replace_by_zeroes(&self, index: usize) {
        self.sim.restart(self.nodes[index]);
        self.sim.poke(self.nodes[index], DATA, 0, &vec![0; self.device_bytes as usize]);
        assert!(self.leg(index).iter().all(|byte| *byte == 0), "a cache hides the zeroes");
        let geometry = self.geometry();
        let create = CreateReplica { volume: VOLUME, with_data: false, zeroes: true, geometry };
        let made = self.sim.spawn_on(self.nodes[index], async move {
            Replica::create(device(), None, create).await.expect("sound disks");
        });
        self.sim.block_on(made).expect("the task is not aborted");
    }

    #[cfg(test)]
    fn geometry(&self) -> ReplicaGeometry {
        geometry_of(self.data_bytes / BLOCKS)
    }

    /// Group whose replicas exist, without a running node.
    fn made(seed: u64, block: u64, zeroes: bool, options: fn(&mut PeerOptions)) -> Group<N> {
        let sim = Simulation::new(seed, Default::default());
        let nodes = std::array::from_fn(|index| sim.add_node(NAMES[index]));
        let network = NetworkHandle::new(sim.world());
        let geometry = geometry_of(block);
        let data_bytes = BLOCKS * block;
        let device_bytes = data_bytes + (METADATA.end - METADATA.start);
        for (index, node) in nodes.into_iter().enumerate() {
            sim.add_disk(node, DATA, DiskConfig::block_device(device_bytes));
            let create = CreateReplica { volume: VOLUME, with_data: index == 0, zeroes, geometry };
            let made = sim.spawn_on(node, async move {
                Replica::create(device(), None, create).await.expect("sound disks");
            });
            sim.block_on(made).expect("the task is not aborted");
        }
        let mirrors = Rc::new(RefCell::new(std::array::from_fn(|_| None)));
        let devices = Rc::new(RefCell::new(std::array::from_fn(|_| None)));
        let releases = RefCell::new([LinkVersions::SPOKEN; N]);
        let blocks = RefCell::new([None; N]);
        Group {
            sim,
            nodes,
            network,
            mirrors,
            devices,
            options,
            data_bytes,
            device_bytes,
            releases,
            blocks,
        }
    }

    pub(super) fn network(&self) -> Rc<Network> {
        self.network.network()
    }

    pub(super) fn mirror(&self, index: usize) -> Arc<Mirror> {
        self.mirrors.borrow()[index].clone().expect("it runs")
    }

    /// Starts a node's process, which serves hosts if it knows that it may.
    pub(super) fn start(&self, index: usize) {
        self.open(index);
        self.on(index, |mirror| async move { mirror.start().await }).expect("sound disks");
    }

    /// Starts a node's process without serving hosts.
    pub(super) fn open(&self, index: usize) {
        let peers = self.named_peers(index);
        let (network, node, mirrors) =
            (self.network.clone(), self.nodes[index], self.mirrors.clone());
        let (devices, versions) = (self.devices.clone(), self.releases.borrow()[index]);
        let block_bytes = self.blocks.borrow()[index];
        let started = self.sim.spawn_on(node, async move {
            let device = ReopenableDevice::new(device_of(block_bytes));
            devices.borrow_mut()[index] = Some(device.clone());
            let local = Replica::open(device, None).await.expect("sound disks");
            let peers = members(peers, &local.superblock());
            let mirror = Arc::new(Mirror::speaking(versions, local, peers));
            network.network().serve(node, mirror.clone());
            mirrors.borrow_mut()[index] = Some(mirror);
        });
        self.sim.block_on(started).expect("the task is not aborted");
    }

    /// Makes a node the source's peer or not, as its server does: ends the session to a peer that
    /// is removed, tells it, and replaces the mirror. Returns a flag that is set at the end.
    pub(super) fn change_peers(
        &self,
        index: usize,
        remove: Option<usize>,
        change: PeerChange,
    ) -> Rc<Cell<bool>> {
        let (mirror, resizing) = (self.mirror(index), self.resizing(index));
        let ended = Rc::new(Cell::new(false));
        let (done, leg) = (ended.clone(), remove.map(|other| Self::leg_to(index, other)));
        self.sim.spawn_on(self.nodes[index], async move {
            let leg = leg.filter(|_| mirror.is_serving());
            let connector = leg.and_then(|leg| mirror.options(leg)).map(|peer| peer.connector);
            if let (Some(leg), Some(connector)) = (leg, connector) {
                mirror.set_desired_state(leg, DesiredState::Paused).await.expect("a sound disk");
                let _ = mirror.report_removal(&connector).await;
            }
            resizing.change(&mirror, Change::Peers(change)).await.expect("a sound disk");
            done.set(true);
        });
        ended
    }

    /// Closes and reopens the node's device whose flush failed, as its server does.
    pub(super) fn reopen(&self, index: usize) {
        let (peers, network, node) = (self.peers(index), self.network.clone(), self.nodes[index]);
        let (mirrors, devices) = (self.mirrors.clone(), self.devices.clone());
        let opened = self.sim.spawn_on(node, async move {
            let mirror = mirrors.borrow()[index].clone().expect("it runs");
            let device = devices.borrow()[index].clone().expect("it runs");
            assert!(device.must_reopen() || mirror.has_failed(), "it is sound");
            assert!(mirror.abandon_target().await, "no node has the data that it may have lost");
            network.network().stop(node);
            device.close();
            let opened = loop {
                match FileDevice::open(DATA, &FileOptions::default()) {
                    Ok(opened) => break opened,
                    // Earlier work is still in flight.
                    Err(_) => time::sleep(Duration::from_millis(1)).await,
                }
            };
            device.set(opened).expect("the same blocks");
            let local = Replica::open(device, None).await.expect("a sound disk");
            local.mark_unverified().await.expect("a sound disk");
            let mirror = Arc::new(Mirror::new(local, peers));
            network.network().serve(node, mirror.clone());
            mirrors.borrow_mut()[index] = Some(mirror);
        });
        self.sim.block_on(opened).expect("the task is not aborted");
    }

    /// Abandons a node's mirror. Another mirror opens the replica on the same device.
    pub(super) fn abandon_mirror(&self, index: usize) {
        let (peers, network, node) = (self.peers(index), self.network.clone(), self.nodes[index]);
        let (mirrors, devices) = (self.mirrors.clone(), self.devices.clone());
        let opened = self.sim.spawn_on(node, async move {
            let mirror = mirrors.borrow()[index].clone().expect("it runs");
            mirror.abandon().await;
            let device = devices.borrow()[index].clone().expect("it runs");
            let local = Replica::open(device, None).await.expect("a sound disk");
            let mirror = Arc::new(Mirror::new(local, peers));
            network.network().serve(node, mirror.clone());
            mirrors.borrow_mut()[index] = Some(mirror);
        });
        self.sim.block_on(opened).expect("the task is not aborted");
    }

    fn peers(&self, index: usize) -> Vec<PeerOptions> {
        self.named_peers(index).into_iter().map(|(_, peer)| peer).collect()
    }

    fn named_peers(&self, index: usize) -> Vec<(&'static str, PeerOptions)> {
        let others = (0..N).filter(|other| *other != index);
        let peer = |other: usize| {
            let mut peer =
                PeerOptions::new(self.network.peer(self.nodes[index], self.nodes[other]));
            (self.options)(&mut peer);
            (NAMES[other], peer)
        };
        others.map(peer).collect()
    }

    /// Resizer of a node's replica, as in its server.
    pub(super) fn resizing(&self, index: usize) -> Resizing<N> {
        Resizing {
            index,
            node: self.nodes[index],
            network: self.network.clone(),
            peers: self.named_peers(index),
            device: self.devices.borrow()[index].clone().expect("it runs"),
            mirrors: self.mirrors.clone(),
        }
    }

    /// Stops a node, with or without a power loss.
    pub(super) fn end(&self, index: usize, power: bool) {
        match power {
            true => self.sim.power_off(self.nodes[index]),
            false => self.sim.crash(self.nodes[index]),
        }
        self.network().stop(self.nodes[index]);
        self.mirrors.borrow_mut()[index] = None;
        self.devices.borrow_mut()[index] = None;
    }

    pub(super) fn restart(&self, index: usize) {
        self.sim.restart(self.nodes[index]);
        self.start(index);
    }

    /// A node's process ends, and one of a release that speaks these versions takes its place.
    pub(super) fn replace(&self, index: usize, versions: LinkVersions) {
        self.end(index, false);
        self.release(index, versions);
        self.restart(index);
    }

    /// The next process of a node is of a release that speaks these versions.
    pub(super) fn release(&self, index: usize, versions: LinkVersions) {
        self.releases.borrow_mut()[index] = versions;
    }

    /// A node's process ends, and begins again with logical blocks of this size in bytes, or its
    /// disk's.
    pub(super) fn restart_with_blocks(&self, index: usize, block_bytes: Option<u32>) {
        self.end(index, false);
        self.blocks.borrow_mut()[index] = block_bytes;
        self.restart(index);
    }

    /// Nothing passes between the nodes.
    pub(super) fn cut(&self) {
        (0..N).for_each(|index| self.isolate(index));
    }

    /// Nothing passes between a node and the others.
    pub(super) fn isolate(&self, index: usize) {
        (0..N).filter(|other| *other != index).for_each(|other| self.part(index, other));
    }

    /// Cuts the link between two nodes.
    pub(super) fn part(&self, index: usize, other: usize) {
        self.network().cut(self.nodes[index], self.nodes[other]);
        self.network().cut(self.nodes[other], self.nodes[index]);
    }

    /// Runs a task on a node.
    pub(super) fn on<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        index: usize,
        work: impl FnOnce(Arc<Mirror>) -> F + 'static,
    ) -> T {
        let mirror = self.mirror(index);
        let done = self.sim.spawn_on(self.nodes[index], async move { work(mirror).await });
        self.sim.block_on(done).expect("the task is not aborted")
    }

    /// Fills a block with a byte.
    pub(super) fn write(&self, index: usize, block: u64, byte: u8) -> Result<(), IoError> {
        self.on(index, move |mirror| async move { fill(&mirror, block, byte).await })
    }

    /// Reads the fill byte of a block as a host of a node.
    pub(super) fn read(&self, index: usize, block: u64) -> u8 {
        self.on(index, move |mirror| async move {
            let memory = buf::alloc(BLOCK as usize).await;
            let found = mirror.read(block * BLOCK, memory).await.expect("it serves");
            assert!(found.iter().all(|byte| *byte == found[0]), "a torn block");
            found[0]
        })
    }

    /// Content of a node's leg.
    pub(super) fn leg(&self, index: usize) -> Vec<u8> {
        self.sim.peek(self.nodes[index], DATA, 0, self.data_bytes as usize)
    }

    /// A node's mirror, if it runs, at each moment.
    pub(super) fn current_mirror(
        &self,
        index: usize,
    ) -> impl Fn() -> Option<Arc<Mirror>> + 'static {
        let mirrors = self.mirrors.clone();
        move || mirrors.borrow()[index].clone()
    }

    /// First byte in which the legs of nodes 0 and 1 differ.
    pub(super) fn first_difference(&self) -> Option<u64> {
        self.sim.first_difference([self.nodes[0], self.nodes[1]], DATA, self.data_bytes)
    }

    /// Index of the leg of `index` that leads to `other`.
    pub(super) fn leg_to(index: usize, other: usize) -> usize {
        if other < index { other } else { other - 1 }
    }

    /// State toward the first of the other nodes.
    pub(super) fn state(&self, index: usize) -> MirrorState {
        self.mirror(index).state(0)
    }

    /// Status of the first of the other nodes.
    pub(super) fn peer_status(&self, index: usize) -> MirrorPeerStatus {
        self.on(index, |mirror| async move { mirror.status().peers[0] })
    }

    /// Status of `other`, as reported by node `index`.
    pub(super) fn status_of(&self, index: usize, other: usize) -> MirrorPeerStatus {
        let leg = Self::leg_to(index, other);
        self.on(index, move |mirror| async move { mirror.status().peers[leg] })
    }

    /// Runs until a node reports a state toward the first of the others, for at most two minutes
    /// of simulated time.
    pub(super) fn until(&self, index: usize, state: MirrorState) {
        self.until_toward(index, usize::from(index == 0), state);
    }

    /// As [`Group::until`], toward any other node.
    pub(super) fn until_toward(&self, index: usize, other: usize, state: MirrorState) {
        let leg = Self::leg_to(index, other);
        let deadline = self.sim.now() + Duration::from_secs(120);
        let shown = || self.mirror(index).state(leg);
        while shown() != state {
            let late = self.sim.now() >= deadline;
            assert!(!late, "node {index} shows {} of {other} and not {state}", shown());
            self.sim.run_for(Duration::from_millis(1));
        }
    }

    /// Waits until `source` is in sync with all others, and checks that all are equal byte for
    /// byte.
    pub(super) fn becomes_in_sync(&self, source: usize) {
        for other in (0..N).filter(|other| *other != source) {
            self.until_toward(source, other, MirrorState::Mirroring);
            assert!(self.leg(source) == self.leg(other), "the legs differ");
        }
    }

    /// Nodes that serve hosts.
    pub(super) fn active(&self) -> Vec<usize> {
        let mirrors = self.mirrors.borrow();
        let serves = |index: &usize| mirrors[*index].as_ref().is_some_and(|one| one.is_serving());
        (0..N).filter(serves).collect()
    }

    /// Ends all nodes and breaks the reference cycle: tasks hold mirrors, mirrors hold the network,
    /// the network holds the world.
    pub(super) fn clear(self) {
        for node in self.nodes.into_iter().filter(|node| self.sim.is_up(*node)) {
            self.sim.crash(node);
        }
        self.mirrors.borrow_mut().fill(None);
        self.devices.borrow_mut().fill(None);
        self.network().clear();
    }

    /// Superblock on a node's disk.
    pub(super) fn superblock(&self, index: usize) -> Superblock {
        let read = |at: u64| {
            let bytes = self.sim.peek(self.nodes[index], DATA, at, 4096);
            Superblock::decode(&bytes.try_into().expect("a page"))
        };
        let slots = [read(self.device_bytes - 8192), read(self.device_bytes - 4096)];
        newest(slots, |superblock| superblock.sequence).expect("a superblock").1
    }
}

/// Resizer made by [`Group::resizing`].
#[derive(Clone)]
pub(super) struct Resizing<const N: usize> {
    index: usize,
    node: NodeId,
    network: NetworkHandle,
    peers: Vec<(&'static str, PeerOptions)>,
    device: SharedDevice,
    mirrors: Rc<RefCell<[Option<Arc<Mirror>>; N]>>,
}

/// Change that a replacement of a mirror makes.
#[derive(Clone)]
pub(super) enum Change {
    Size(u64),
    Peers(PeerChange),
}

impl<const N: usize> Resizing<N> {
    /// Resizes the replica and returns the mirror that replaces `mirror`.
    pub(super) async fn resize(&self, mirror: &Mirror, bytes: u64) -> Arc<Mirror> {
        self.change(mirror, Change::Size(bytes)).await.expect("a sound disk");
        self.mirrors.borrow()[self.index].clone().expect("it runs")
    }

    /// Replaces the mirror.
    pub(super) async fn change(&self, mirror: &Mirror, change: Change) -> Result<(), String> {
        let mut transfer = mirror.begin_transfer().await.map_err(|error| error.to_string())?;
        self.network.network().stop(self.node);
        let (replica, error) = match change {
            Change::Size(bytes) => transfer.resize(&self.device, None, bytes).await,
            Change::Peers(change) => {
                let changed = transfer.change_peers(&self.device, None, change).await;
                changed.map(|replica| (replica, None))
            }
        }
        .map_err(|error| error.to_string())?;
        let next = self.run(mirror.versions(), replica, |next| transfer.begin_replacement(next));
        transfer.finish(&next).await.map_err(|error| error.to_string())?;
        error.map_or(Ok(()), |error| Err(error.to_string()))
    }

    fn run(
        &self,
        versions: LinkVersions,
        replica: Replica,
        prepare: impl FnOnce(&Mirror),
    ) -> Arc<Mirror> {
        let peers = members(self.peers.clone(), &replica.superblock());
        let next = Arc::new(Mirror::speaking(versions, replica, peers));
        prepare(&next);
        self.mirrors.borrow_mut()[self.index] = Some(next.clone());
        self.network.network().serve(self.node, next.clone());
        spawn_detached(self.clone().follow_source(next.clone()));
        next
    }

    /// As [`Resizing::change`]. A mirror that has ended is opened again when its device answers, as
    /// the server does. The result is set before.
    pub(super) async fn change_or_reopen(
        &self,
        mirror: &Mirror,
        change: Change,
        done: &RefCell<Option<Result<(), String>>>,
    ) {
        *done.borrow_mut() = Some(self.change(mirror, change).await);
        let now = self.mirrors.borrow()[self.index].clone().expect("it runs");
        if now.is_closed() {
            self.network.network().stop(self.node);
            now.abandon().await;
            let replica = Replica::open(self.device.clone(), None).await.expect("a sound disk");
            let next = self.run(now.versions(), replica, |_| {});
            next.start().await.expect("a sound disk");
        }
    }

    /// Follows the size of the source whenever the source asks for it.
    pub(super) fn follow_source(self, mirror: Arc<Mirror>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            loop {
                let bytes = mirror.resize_requested().await;
                let done = RefCell::default();
                self.change_or_reopen(&mirror, Change::Size(bytes), &done).await;
            }
        })
    }
}

/// The peers that were not removed.
fn members(peers: Vec<(&'static str, PeerOptions)>, superblock: &Superblock) -> Vec<PeerOptions> {
    let removed = |name| superblock.members.iter().any(|member| member.name == name);
    peers.into_iter().filter(|(name, _)| !removed(*name)).map(|(_, peer)| peer).collect()
}

fn geometry_of(block: u64) -> ReplicaGeometry {
    ReplicaGeometry {
        usable_bytes: block,
        bit_bytes: block as u32,
        region_bytes: (REGION / BLOCK * block) as u32,
        active_regions_max: 32,
    }
}

fn device() -> SharedDevice {
    device_of(None)
}

fn device_of(block_bytes: Option<u32>) -> SharedDevice {
    let options = FileOptions { block_bytes, ..FileOptions::default() };
    FileDevice::open(DATA, &options).expect("the disk is free")
}

pub(super) async fn fill(mirror: &Mirror, block: u64, byte: u8) -> Result<(), IoError> {
    let mut memory = buf::alloc(BLOCK as usize).await;
    memory.fill(byte);
    mirror.write(block * BLOCK, memory.freeze(), false).await
}
