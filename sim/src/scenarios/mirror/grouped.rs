//! Consistency group of three volumes on two nodes: at every millisecond at which the targets'
//! disks permit a failover of the group, they show all volumes at one moment of the past.
//!
//! Hosts write to all volumes, and every write carries its number. The check is that of
//! [`super::history`], with one history for all volumes, so a write to one volume depends on the
//! completed writes to the others. It reads the disks from outside and never asks the mirrors.
//! Links are cut, of all volumes or of one, messages delayed and reordered, one volume is slower
//! than the others, targets and sources crash, targets lose power, the group is paused, resynced,
//! switched over and failed over by force.
//!
//! Left out: host protocols and the link's wire format ([`super::link`] replaces the network), disk
//! faults but for the cases below, a limit on the time of a write to the peer, power losses of a
//! source (unflushed writes may be lost then, also to hosts), groups with two targets, and a
//! failover while the source still serves out of reach.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::ondisk::newest;
use flagstone_mirror::ondisk::superblock::{ReplicaRole, Superblock};
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{ConsistencyGroup, LinkVersions, Mirror, Mode, PeerOptions};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation, World};
use flagstone_runtime::{buf, time};

use super::history::History;
use super::link::NetworkHandle;
use crate::Outcome;

/// The first is the leader.
const VOLUMES: usize = 3;
const NAMES: [&str; VOLUMES] = ["data", "index", "log"];
const DISKS: [&str; VOLUMES] = ["/dev/data", "/dev/index", "/dev/log"];
const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 24;
const ALL_BLOCKS: u64 = BLOCKS * VOLUMES as u64;
/// Blocks of the longest write.
const LONGEST: u64 = 4;
const DEVICE_BYTES: u64 = BLOCKS * BLOCK + 7 * 4096;
const STEP: Duration = Duration::from_millis(1);
const RECOVERY_LIMIT: Duration = Duration::from_secs(240);

type Mirrors = [[Option<Arc<Mirror>>; VOLUMES]; 2];

struct Cluster {
    sim: Simulation,
    nodes: [NodeId; 2],
    network: NetworkHandle,
    mirrors: Rc<RefCell<Mirrors>>,
    options: fn(&mut PeerOptions),
    history: Rc<History>,
    stop: Rc<Cell<bool>>,
    hosts: u64,
    pause: Duration,
    /// None at [`VOLUMES`].
    slow_volume: usize,
    /// Versions of the disks of each node at its last check.
    checked: [Cell<[u64; VOLUMES]>; 2],
    checks: Cell<u64>,
}

fn open_disk(volume: usize) -> SharedDevice {
    FileDevice::open(DISKS[volume], &FileOptions::default()).expect("a sound disk")
}

const OPTIONS: [fn(&mut PeerOptions); 4] = [
    |peer| peer.mode = Mode::Async,
    |peer| (peer.mode, peer.queue.window_bytes) = (Mode::Async, 2 * BLOCK),
    |peer| {
        (peer.mode, peer.queue.window_bytes) = (Mode::Async, 3 * BLOCK);
        peer.pace.max_bytes_per_s = Some(2 << 20);
    },
    |peer| peer.pace.max_bytes_per_s = Some(4 << 20),
];

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let sim = Simulation::new(seed, Default::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
        let network = NetworkHandle::new(sim.world());
        let geometry = ReplicaGeometry {
            usable_bytes: BLOCK,
            bit_bytes: BLOCK as u32,
            region_bytes: 4 * BLOCK as u32,
            active_regions_max: 32,
        };
        for (index, node) in nodes.into_iter().enumerate() {
            for (volume, disk) in DISKS.into_iter().enumerate() {
                sim.add_disk(node, disk, DiskConfig::block_device(DEVICE_BYTES));
                let id = MirrorId([7 + volume as u8; 16]);
                let (with_data, zeroes) = (index == 0, false);
                let create = CreateReplica { volume: id, with_data, zeroes, geometry };
                let made = sim.spawn_on(node, async move {
                    Replica::create(open_disk(volume), None, create).await.expect("a sound disk");
                });
                sim.block_on(made).expect("the task is not aborted");
            }
        }
        let hosts = sim.random_between(1, 5);
        let pause = Duration::from_micros(sim.random_between(300, 20_000));
        let slow_volume = sim.random_between(0, VOLUMES as u64) as usize;
        let cluster = Cluster {
            slow_volume,
            nodes,
            network,
            mirrors: Default::default(),
            options: OPTIONS[(seed % 4) as usize],
            history: Rc::default(),
            stop: Rc::default(),
            hosts,
            pause,
            checked: Default::default(),
            checks: Cell::new(0),
            sim,
        };
        cluster.start(0);
        cluster.start(1);
        cluster
    }

    /// Starts a node's process, with its hosts.
    fn start(&self, index: usize) {
        let node = self.nodes[index];
        let volumes = NAMES.map(str::to_owned);
        let group = ConsistencyGroup::new("app", volumes).expect("three volumes");
        for (volume, name) in NAMES.into_iter().enumerate() {
            let mut peer =
                PeerOptions::new(self.network.peer_of(volume, node, self.nodes[1 - index]));
            // Small: simulations that run at the same time share the pooled memory.
            (peer.queue.high_bytes, peer.queue.low_bytes) = (1 << 20, 512 << 10);
            (self.options)(&mut peer);
            // One volume gets its writes to the peer more slowly than the others.
            if volume == self.slow_volume {
                peer.queue.window_bytes = peer.queue.window_bytes.min(2 * BLOCK);
                peer.pace.max_bytes_per_s = Some(1 << 20);
            }
            let (network, mirrors) = (self.network.clone(), self.mirrors.clone());
            let membership = group.member(name);
            let opened = self.sim.spawn_on(node, async move {
                let local = Replica::open(open_disk(volume), None).await.expect("a sound disk");
                let spoken = LinkVersions::SPOKEN;
                let mirror = Arc::new(Mirror::in_group(spoken, local, vec![peer], membership));
                network.network().serve_volume(node, volume, mirror.clone());
                mirrors.borrow_mut()[index][volume] = Some(mirror);
            });
            self.sim.block_on(opened).expect("the task is not aborted");
        }
        for volume in 0..VOLUMES {
            let mirror = self.mirror(index, volume);
            self.sim.spawn_on(node, async move { mirror.start().await });
        }
        (0..self.hosts).for_each(|_| self.host(index));
    }

    /// A host that writes through this node, to the volumes that it serves.
    fn host(&self, index: usize) {
        let (mirrors, history) = (self.mirrors.clone(), self.history.clone());
        let (world, stop, pause) = (self.sim.world(), self.stop.clone(), self.pause);
        self.sim.spawn_on(self.nodes[index], async move {
            while !stop.get() {
                time::sleep(world.random_span(Duration::from_micros(50), pause)).await;
                let (volume, first, blocks) = range(&world);
                let mirror = mirrors.borrow()[index][volume].clone();
                let Some(mirror) = mirror.filter(|mirror| mirror.is_serving()) else { continue };
                let mut memory = buf::alloc((blocks * BLOCK) as usize).await;
                let number = history.begin(volume as u64 * BLOCKS + first, blocks);
                memory.fill(number as u8);
                for block in memory.chunks_mut(BLOCK as usize) {
                    block[..8].copy_from_slice(&number.to_le_bytes());
                }
                if mirror.write(first * BLOCK, memory.freeze(), false).await.is_ok() {
                    history.complete(number);
                }
            }
        });
    }

    fn mirror(&self, index: usize, volume: usize) -> Arc<Mirror> {
        self.mirrors.borrow()[index][volume].clone().expect("it runs")
    }

    fn is_up(&self, index: usize) -> bool {
        self.sim.is_up(self.nodes[index])
    }

    /// The node that serves all volumes.
    fn source(&self) -> Option<usize> {
        (0..2).find(|index| self.serving(*index) == [true; VOLUMES])
    }

    fn serving(&self, index: usize) -> [bool; VOLUMES] {
        let mirrors = self.mirrors.borrow();
        let serves = |one: &Option<Arc<Mirror>>| one.as_ref().is_some_and(|one| one.is_serving());
        mirrors[index].each_ref().map(serves)
    }

    fn end(&self, index: usize, power: bool) {
        match power {
            true => self.sim.power_off(self.nodes[index]),
            false => self.sim.crash(self.nodes[index]),
        }
        self.network.network().stop(self.nodes[index]);
        self.mirrors.borrow_mut()[index] = Default::default();
    }

    fn restart(&self, index: usize) {
        if !self.is_up(index) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    fn superblock(&self, index: usize, volume: usize) -> Superblock {
        let read = |at: u64| {
            let bytes = self.sim.peek(self.nodes[index], DISKS[volume], at, 4096);
            Superblock::decode(&bytes.try_into().expect("a page"))
        };
        let slots = [read(DEVICE_BYTES - 8192), read(DEVICE_BYTES - 4096)];
        newest(slots, |superblock| superblock.sequence).expect("a superblock").1
    }

    /// The write that each block of a node shows.
    fn blocks(&self, index: usize) -> Vec<u64> {
        let number = |block: u64| {
            let (volume, at) = ((block / BLOCKS) as usize, block % BLOCKS * BLOCK);
            let bytes = self.sim.peek(self.nodes[index], DISKS[volume], at, 8);
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        (0..ALL_BLOCKS).map(number).collect()
    }

    /// Whether the disks of a node permit a failover of the group by force.
    fn is_sound(&self, index: usize) -> bool {
        (0..VOLUMES).all(|volume| {
            let found = self.superblock(index, volume);
            !found.flags.inconsistent && !found.current.is_none() && !found.unverified
        })
    }

    /// As [`Cluster::is_sound`], of targets.
    fn is_promotable(&self, index: usize) -> bool {
        let is_target = |volume| self.superblock(index, volume).role == ReplicaRole::Target;
        self.is_sound(index) && (0..VOLUMES).all(is_target)
    }

    /// Runs for a millisecond, and checks the group.
    fn step(&self) {
        self.sim.run_for(STEP);
        let serving = [0, 1].map(|index| self.serving(index));
        let any = serving.map(|volumes| volumes.contains(&true));
        assert_ne!(any, [true; 2], "the group is served by two nodes: {serving:?}");
        for (index, any) in any.into_iter().enumerate() {
            let disk = |volume: usize| self.sim.disk_version(self.nodes[index], DISKS[volume]);
            let versions = std::array::from_fn(disk);
            if any || self.checked[index].replace(versions) == versions {
                continue;
            }
            if self.is_promotable(index) {
                self.checks.set(self.checks.get() + 1);
                if let Err(difference) = self.history.check(&self.blocks(index)) {
                    let at = self.sim.now();
                    panic!(
                        "at {at:?} node {index} shows no moment of the past: {difference}\n{}",
                        self.describe()
                    );
                }
            }
        }
    }

    fn run_for(&self, span: Duration) {
        let until = self.sim.now() + span;
        while self.sim.now() < until {
            self.step();
        }
    }

    /// Gives an order to the group through one of its volumes.
    fn order<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        order: impl FnOnce(Arc<Mirror>) -> F + 'static,
    ) {
        let mirror = self.mirror(index, self.sim.random_between(0, VOLUMES as u64 - 1) as usize);
        self.sim.spawn_on(self.nodes[index], async move { order(mirror).await });
    }

    fn desire(&self, desired: DesiredState) {
        if let Some(source) = self.source() {
            self.order(source, async move |mirror| {
                let _ = mirror.set_desired_state(0, desired).await;
            });
        }
    }

    /// The source crashes, and the operator decides for the other node, for all volumes or none.
    fn lose_source(&self) {
        let Some(source) = self.source() else { return };
        let target = 1 - source;
        self.end(source, false);
        self.run_for(Duration::from_millis(self.sim.random_between(1, 800)));
        if !self.is_up(target) || self.serving(target).contains(&true) {
            return;
        }
        let sound = self.is_sound(target);
        let mirror = self.mirror(target, self.sim.random_between(0, VOLUMES as u64 - 1) as usize);
        let done = self.sim.spawn_on(self.nodes[target], async move { mirror.failover().await });
        let done = self.sim.block_on(done).expect("the task is not aborted");
        let serving = self.serving(target);
        assert_eq!(done.is_ok(), sound, "{done:?}\n{}", self.describe());
        assert_eq!(serving, [sound; VOLUMES], "all or none");
        if sound {
            self.history.lose(&self.blocks(target));
        }
    }

    fn fault(&self) {
        let sim = &self.sim;
        match sim.random_between(0, 14) {
            0 | 1 => {
                self.network.network().cut(self.nodes[0], self.nodes[1]);
                self.network.network().cut(self.nodes[1], self.nodes[0]);
            }
            2 | 3 => self.heal(),
            4 => self.desire(DesiredState::Paused),
            5 => self.desire(DesiredState::Connected),
            6 | 7 => {
                if let Some(source) = self.source() {
                    let volume = sim.random_between(0, VOLUMES as u64 - 1) as usize;
                    self.mirror(source, volume).resync_all(0).expect("there is a peer");
                }
            }
            8 => {
                if let Some(source) = self.source().filter(|source| self.is_up(1 - source)) {
                    self.end(1 - source, sim.chance(0.5));
                }
            }
            9 | 10 => {
                let index = sim.random_between(0, 1) as usize;
                if self.is_up(index) {
                    self.order(index, async move |mirror| {
                        let _ = mirror.switchover(0).await;
                    });
                    // A node may end at any moment of it.
                    if sim.chance(0.3) {
                        self.run_for(Duration::from_millis(sim.random_between(1, 30)));
                        let index = sim.random_between(0, 1) as usize;
                        if self.is_up(index) {
                            self.end(index, false);
                        }
                    }
                }
            }
            11 => self.lose_source(),
            // Only the connections of one volume are lost.
            12 | 13 => {
                self.network
                    .network()
                    .cut_volume(sim.random_between(0, VOLUMES as u64 - 1) as usize);
            }
            _ => {
                let slow = sim.random_span(Duration::from_micros(100), Duration::from_millis(20));
                self.network.network().set_slow(slow);
            }
        }
    }

    fn heal(&self) {
        self.network.network().heal();
        (0..2).for_each(|index| self.restart(index));
        self.desire(DesiredState::Connected);
    }

    fn states(&self, index: usize) -> [MirrorState; VOLUMES] {
        std::array::from_fn(|volume| self.mirror(index, volume).state(0))
    }

    /// The operator's steps for a group that does not recover by itself.
    fn help(&self) {
        self.desire(DesiredState::Connected);
        for index in 0..2 {
            let states = self.states(index);
            // A former source that is paused does not see the split brain.
            if states.contains(&MirrorState::Paused) {
                self.order(index, async move |mirror| {
                    let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
                });
            }
            let split = states.iter().position(|state| *state == MirrorState::SplitBrain);
            if let Some(volume) = split
                && !self.serving(index).contains(&true)
            {
                let mirror = self.mirror(index, volume);
                self.sim.spawn_on(self.nodes[index], async move {
                    let _ = mirror.resolve_keep_peers(0).await;
                });
                return;
            }
        }
        let served = (0..2).find(|index| self.serving(*index).contains(&true));
        let index = served.unwrap_or_else(|| self.sim.random_between(0, 1) as usize);
        if self.serving(index) != [true; VOLUMES] {
            let mirror = self.mirror(index, 0);
            let done = self.sim.spawn_on(self.nodes[index], async move { mirror.failover().await });
            if self.sim.block_on(done).expect("the task is not aborted").is_ok() && served.is_none()
            {
                self.history.lose(&self.blocks(index));
            }
        }
    }

    fn settle(&self) {
        self.network.network().set_slow(Duration::from_micros(300));
        self.heal();
        let deadline = self.sim.now() + RECOVERY_LIMIT;
        let whole = |source: usize| self.states(source) == [MirrorState::Mirroring; VOLUMES];
        let mut quiet = 0;
        while !self.source().is_some_and(whole) {
            self.run_for(Duration::from_millis(100));
            quiet += 1;
            if quiet % 150 == 0 {
                self.help();
            }
            assert!(self.sim.now() < deadline, "the group stays apart\n{}", self.describe());
        }
        self.run_for(Duration::from_millis(200));
        self.stop.set(true);
        self.run_for(Duration::from_secs(3));
        let lags = |source: usize| {
            (0..VOLUMES).any(|volume| {
                let mirror = self.mirror(source, volume);
                self.sim.block_on(async move { mirror.status() }).peers[0].lag_writes > 0
            })
        };
        while self.source().is_some_and(lags) {
            self.run_for(Duration::from_millis(100));
            assert!(self.sim.now() < deadline + RECOVERY_LIMIT, "a queue stands still");
        }
        let blocks = [0, 1].map(|index| self.blocks(index));
        assert_eq!(blocks[0], blocks[1], "the legs differ at rest");
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for index in 0..2 {
            text += &format!("node {index}: up {}\n", self.is_up(index));
            for (volume, name) in NAMES.into_iter().enumerate() {
                let found = self.superblock(index, volume);
                let open = self.mirrors.borrow()[index][volume].clone();
                let shown = open.map(|mirror| (mirror.state(0), mirror.is_serving()));
                text += &format!(
                    "  {name}: {shown:?} {:?} epoch {} current {} {:?} successor {:?}\n",
                    found.role, found.epoch, found.current, found.flags, found.designated_successor
                );
            }
        }
        text
    }
}

/// A volume, and blocks of it.
fn range(world: &World) -> (usize, u64, u64) {
    let blocks = world.random_between(1, LONGEST);
    let volume = world.random_between(0, VOLUMES as u64 - 1) as usize;
    (volume, world.random_between(0, BLOCKS - blocks), blocks)
}

pub(super) fn run(seed: u64) -> Outcome {
    let cluster = Cluster::new(seed);
    let faults = cluster.sim.random_between(2, 10);
    cluster.run_for(Duration::from_millis(cluster.sim.random_between(1, 1500)));
    for _ in 0..faults {
        cluster.fault();
        cluster.run_for(Duration::from_millis(cluster.sim.random_between(1, 700)));
    }
    cluster.settle();
    let outcome = Outcome::of(&cluster.sim, cluster.checks.get(), faults);
    for node in cluster.nodes.into_iter().filter(|node| cluster.sim.is_up(*node)) {
        cluster.sim.crash(node);
    }
    cluster.mirrors.take();
    cluster.network.network().clear();
    outcome
}

#[cfg(test)]
#[path = "grouped_tests.rs"]
mod tests;
