//! Automatic failover of a consistency group of three volumes on two nodes.
//!
//! The rules of automatic failover are its invariants, for the group as a whole:
//!
//! - at most one node may answer reads of any volume, even while another one is paused;
//! - no acknowledged write is lost and no read is stale, in any volume ([`super::group_history`]):
//!   so after a failover all volumes show one moment;
//! - a node that serves without its peer has noted the arbiter's record at every volume, and the
//!   record lists only this node;
//! - after the end of all faults, all volumes are served by one node and get in sync, without an
//!   operator.
//!
//! Nodes also die within milliseconds of each change of the record, so between the superblocks of
//! two volumes. Not covered: disks that fail, power losses, and the link's wire format (see the
//! scenario `failover`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::ReplicaId;
use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::ondisk::newest;
use flagstone_mirror::ondisk::superblock::{ReplicaRole, Superblock};
use flagstone_mirror::state::arbitration::{PeerExclusion, ServingRight};
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{
    ConsistencyGroup, FailoverOptions, LinkVersions, Mirror, PeerOptions, SharedFence,
};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimLatency, Simulation};
use flagstone_runtime::{buf, time};

use super::group_history::History;
use super::link::NetworkHandle;
use crate::Outcome;
use crate::scenarios::chain::arbiter::{Client, Cut, StoreHandle};

const VOLUMES: usize = 3;
/// The first is the leader.
const NAMES: [&str; VOLUMES] = ["data", "index", "log"];
const DISKS: [&str; VOLUMES] = ["/dev/data", "/dev/index", "/dev/log"];
/// Volume of the arbiter's record: the leader's.
const RECORDED: ReplicaId = ReplicaId([7; 16]);
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;
const DEVICE_BYTES: u64 = BLOCKS * BLOCK + 16 * 4096;
const STEP: Duration = Duration::from_millis(2);
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

type Mirrors = [[Option<Arc<Mirror>>; VOLUMES]; 2];

struct Cluster {
    sim: Simulation,
    nodes: [NodeId; 2],
    network: NetworkHandle,
    store: StoreHandle,
    mirrors: Rc<RefCell<Mirrors>>,
    history: Rc<History>,
    stop: Rc<Cell<bool>>,
    after: Duration,
    /// Probability that a node dies soon after the record has changed.
    dies_after_change: Cell<f64>,
    revision: Cell<u64>,
    /// How often a node died while only some of its superblocks had the role of the source.
    split_superblocks: Cell<u32>,
}

fn open_disk(volume: usize) -> SharedDevice {
    FileDevice::open(DISKS[volume], &FileOptions::default()).expect("a sound disk")
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let sim = Simulation::new(seed, Default::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
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
                let create =
                    CreateReplica { volume: id, with_data: index == 0, zeroes: false, geometry };
                let made = sim.spawn_on(node, async move {
                    Replica::create(open_disk(volume), None, create).await.expect("a sound disk");
                });
                sim.block_on(made).expect("the task is not aborted");
                if sim.chance(0.2) {
                    let slow = SimLatency::between_us(500, sim.random_between(1000, 15_000));
                    sim.set_write_latency(node, disk, slow);
                }
            }
        }
        let cluster = Cluster {
            network: NetworkHandle::new(sim.world()),
            store: StoreHandle::new(&sim),
            nodes,
            mirrors: Default::default(),
            history: Rc::new(History::new(VOLUMES * BLOCKS as usize)),
            stop: Rc::default(),
            after: sim.random_span(Duration::from_millis(1500), Duration::from_secs(3)),
            dies_after_change: Cell::new(if seed.is_multiple_of(3) { 0.3 } else { 0.0 }),
            revision: Cell::new(0),
            split_superblocks: Cell::new(0),
            sim,
        };
        (0..2).for_each(|index| cluster.start(index));
        cluster
    }

    /// Starts a node's process, with its hosts.
    fn start(&self, index: usize) {
        let node = self.nodes[index];
        let group = ConsistencyGroup::new("app", NAMES.map(str::to_owned)).expect("three volumes");
        for (volume, name) in NAMES.into_iter().enumerate() {
            let peer = PeerOptions::new(self.network.peer_of(volume, node, self.nodes[1 - index]));
            let (network, mirrors) = (self.network.clone(), self.mirrors.clone());
            let arbiter = Arc::new(Client { store: self.store.clone(), index });
            let fence: Option<SharedFence> = None;
            let failover_after = self.after;
            let failover = Some(FailoverOptions { arbiter, failover_after, max_lag: None, fence });
            let membership = group.member(name);
            self.sim.spawn_on(node, async move {
                let local = Replica::open(open_disk(volume), None).await.expect("a sound disk");
                let spoken = LinkVersions::SPOKEN;
                let mirror = Mirror::with_failover(spoken, local, vec![peer], membership, failover);
                let mirror = Arc::new(mirror);
                network.network().serve_volume(node, volume, mirror.clone());
                mirrors.borrow_mut()[index][volume] = Some(mirror.clone());
                while mirror.start().await.is_err() {
                    time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
        (0..4).for_each(|_| self.host(index));
    }

    /// A host that reads and writes through this node, while it serves the volume.
    fn host(&self, index: usize) {
        let (mirrors, history, stop) =
            (self.mirrors.clone(), self.history.clone(), self.stop.clone());
        let world = self.sim.world();
        self.sim.spawn_on(self.nodes[index], async move {
            while !stop.get() {
                let pause = world.random_span(Duration::from_millis(1), Duration::from_millis(40));
                time::sleep(pause).await;
                let volume = world.random_between(0, VOLUMES as u64 - 1) as usize;
                let at = world.random_between(0, BLOCKS - 1);
                let block = volume * BLOCKS as usize + at as usize;
                let mirror = mirrors.borrow()[index][volume].clone();
                let Some(mirror) = mirror.filter(|mirror| mirror.is_serving()) else { continue };
                let mut memory = buf::alloc(BLOCK as usize).await;
                if world.chance(0.5) {
                    let begun = history.begin_read(block);
                    let Ok(found) = mirror.read(at * BLOCK, memory).await else { continue };
                    let number = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
                    if let Err(what) = history.end_read(&begun, number) {
                        panic!("node {index} answers a stale read: {what}");
                    }
                } else if let Some(number) = history.begin_write(block, index) {
                    memory.fill(number as u8);
                    memory[..8].copy_from_slice(&number.to_le_bytes());
                    let done = mirror.write(at * BLOCK, memory.freeze(), false).await;
                    history.end_write(block, number, done.is_ok());
                }
            }
        });
    }

    fn mirror(&self, index: usize, volume: usize) -> Option<Arc<Mirror>> {
        self.mirrors.borrow()[index][volume].clone().filter(|_| self.is_up(index))
    }

    fn is_up(&self, index: usize) -> bool {
        self.sim.is_up(self.nodes[index])
    }

    fn end(&self, index: usize) {
        if !self.is_up(index) {
            return;
        }
        let sources = (0..VOLUMES)
            .filter(|volume| self.superblock(index, *volume).role == ReplicaRole::Source)
            .count();
        if sources > 0 && sources < VOLUMES {
            self.split_superblocks.set(self.split_superblocks.get() + 1);
        }
        self.sim.crash(self.nodes[index]);
        self.network.network().stop(self.nodes[index]);
        self.mirrors.borrow_mut()[index] = Default::default();
        self.history.abandon(index);
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

    /// The volumes of a node that may answer reads.
    fn entitled(&self, index: usize) -> [bool; VOLUMES] {
        std::array::from_fn(|volume| {
            let Some(mirror) = self.mirror(index, volume) else { return false };
            self.sim.block_on(async move { mirror.may_answer_reads() })
        })
    }

    /// The node that serves all volumes.
    fn source(&self) -> Option<usize> {
        (0..2).find(|index| self.entitled(*index) == [true; VOLUMES])
    }

    /// Runs for a moment, and checks the rules.
    fn step(&self) {
        self.sim.run_for(STEP);
        self.check();
        let revision = self.store.get().record(RECORDED).map_or(0, |record| record.revision);
        let changed = self.revision.replace(revision) != revision;
        if changed && self.sim.chance(self.dies_after_change.get()) {
            self.sim.run_for(self.sim.random_span(Duration::ZERO, Duration::from_millis(30)));
            self.end(self.sim.random_between(0, 1) as usize);
        }
    }

    fn check(&self) {
        let entitled = [0, 1].map(|index| self.entitled(index));
        if entitled.iter().all(|volumes| volumes.contains(&true)) {
            self.fail(&format!("two nodes may answer reads: {entitled:?}"));
        }
        for index in 0..2 {
            let Some(leader) = self.mirror(index, 0) else { continue };
            let status = self.sim.block_on(async move { leader.failover_status() });
            let right = status.map(|status| status.serving_right);
            let recorded =
                matches!(right, Some(ServingRight::Alone(PeerExclusion::Recorded { .. })));
            if !recorded || !self.entitled(index)[0] {
                continue;
            }
            let found: Vec<Superblock> =
                (0..VOLUMES).map(|volume| self.superblock(index, volume)).collect();
            let [own, members @ ..] = &found[..] else { unreachable!("three volumes") };
            let is_open = |volume: usize| self.mirror(index, volume).is_some();
            for (place, member) in members.iter().enumerate() {
                if is_open(place + 1) && member.arbiter.revision < own.arbiter.revision {
                    self.fail(&format!(
                        "node {index} is alone by a record that {} has not noted",
                        NAMES[place + 1]
                    ));
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

    fn command<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        say: impl FnOnce(Arc<Mirror>) -> F + 'static,
    ) {
        let volume = self.sim.random_between(0, VOLUMES as u64 - 1) as usize;
        if let Some(mirror) = self.mirror(index, volume) {
            self.sim.spawn_on(self.nodes[index], async move { say(mirror).await });
        }
    }

    fn fault(&self) {
        let sim = &self.sim;
        let index = sim.random_between(0, 1) as usize;
        let [own, peer] = [self.nodes[index], self.nodes[1 - index]];
        let (network, store) = (self.network.network(), self.store.get());
        match sim.random_between(0, 27) {
            0..=3 => self.end(index),
            4..=6 => self.restart(index),
            7..=9 => {
                network.cut(own, peer);
                network.cut(peer, own);
            }
            10 => network.cut(own, peer),
            11 => network.cut_volume(sim.random_between(0, VOLUMES as u64 - 1) as usize),
            12..=15 => self.heal(),
            16 => store.down.set(!store.down.get()),
            17 => store.slow.set(sim.random_span(Duration::from_millis(1), Duration::from_secs(1))),
            18 => store.loses.set(sim.random_between(0, 60)),
            19 | 20 => {
                let cut = match sim.random_between(0, 2) {
                    0 => Cut { requests: true, ..Cut::default() },
                    1 => Cut { answers: true, ..Cut::default() },
                    _ => Cut { requests: true, answers: true, written: false },
                };
                store.cuts[index].set(cut);
            }
            21 | 22 => {
                if self.is_up(index) {
                    sim.pause(own);
                    self.run_for(sim.random_span(Duration::ZERO, Duration::from_secs(4)));
                    if self.is_up(index) {
                        sim.resume(own);
                    }
                }
            }
            23 => self.command(index, async |mirror| {
                let _ = mirror.switchover(0).await;
            }),
            24 => self.command(index, async |mirror| {
                let _ = mirror.leave().await;
            }),
            25 => self.command(index, async |mirror| {
                let _ = mirror.resync_all(0);
            }),
            26 => {
                let volume = sim.random_between(0, VOLUMES as u64 - 1) as usize;
                let span = sim.random_span(Duration::ZERO, Duration::from_millis(800));
                sim.stall(own, DISKS[volume], span);
            }
            _ => self.command(index, async |mirror| {
                let _ = mirror.set_desired_state(0, DesiredState::Paused).await;
                time::sleep(Duration::from_millis(700)).await;
                let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
            }),
        }
    }

    fn heal(&self) {
        self.network.network().heal();
        self.store.get().cuts.iter().for_each(|cut| cut.set(Cut::default()));
    }

    fn states(&self, index: usize) -> [Option<MirrorState>; VOLUMES] {
        std::array::from_fn(|volume| self.mirror(index, volume).map(|mirror| mirror.state(0)))
    }

    /// Ends all faults. The group must get in sync without an operator.
    fn settle(&self) {
        self.heal();
        self.store.get().end_faults();
        (0..2).for_each(|index| self.restart(index));
        self.recover();
        self.stop.set(true);
        // The loss of a node that ended just before is noticed, too.
        self.run_for(Duration::from_secs(5));
        self.recover();
        for index in 0..2 {
            if let Err(what) = self.history.check(&self.blocks(index)) {
                self.fail(&format!("node {index}: {what}"));
            }
        }
        assert_eq!(self.blocks(0), self.blocks(1), "the legs differ at rest");
    }

    fn recover(&self) {
        let deadline = self.sim.now() + RECOVERY_LIMIT;
        let whole = |source: usize| self.states(source) == [Some(MirrorState::Mirroring); VOLUMES];
        while !self.source().is_some_and(whole) {
            for index in 0..2 {
                // An operator's pause may have been cut short.
                self.command(index, async |mirror| {
                    let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
                });
            }
            self.run_for(Duration::from_millis(200));
            if self.sim.now() > deadline {
                self.fail("the group does not get in sync by itself");
            }
        }
    }

    /// The write that each block of a node shows.
    fn blocks(&self, index: usize) -> Vec<u64> {
        let number = |block: u64| {
            let (volume, at) = ((block / BLOCKS) as usize, block % BLOCKS * BLOCK);
            let bytes = self.sim.peek(self.nodes[index], DISKS[volume], at, 8);
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        (0..BLOCKS * VOLUMES as u64).map(number).collect()
    }

    fn fail(&self, what: &str) -> ! {
        let mut text = format!("at {:?}: {what}\n{:?}\n", self.sim.now(), {
            self.store.get().record(RECORDED)
        });
        for index in 0..2 {
            text += &format!("node {index}: up {}\n", self.is_up(index));
            for (volume, name) in NAMES.into_iter().enumerate() {
                let found = self.superblock(index, volume);
                let shown = self.mirror(index, volume).map(|mirror| {
                    self.sim.block_on(async move {
                        (mirror.state(0), mirror.machine_state(), mirror.failover_status())
                    })
                });
                text += &format!(
                    "  {name}: {shown:?}\n    {:?} epoch {} {:?} {:?}\n",
                    found.role, found.epoch, found.flags, found.arbiter
                );
            }
        }
        panic!("{text}");
    }

    fn finish(&self) {
        for node in self.nodes.into_iter().filter(|node| self.sim.is_up(*node)) {
            self.sim.crash(node);
        }
        self.mirrors.take();
        self.network.network().clear();
    }
}

pub(super) fn run(seed: u64) -> Outcome {
    let cluster = Cluster::new(seed);
    let faults = drive(&cluster);
    let outcome = Outcome::of(&cluster.sim, cluster.history.checks.get(), faults);
    cluster.finish();
    outcome
}

/// Random faults, and the recovery. Returns their number.
fn drive(cluster: &Cluster) -> u64 {
    let sim = &cluster.sim;
    if sim.chance(0.9) {
        cluster.run_for(sim.random_span(Duration::from_millis(500), Duration::from_secs(3)));
    }
    let faults = sim.random_between(1, 10);
    for _ in 0..faults {
        cluster.fault();
        let longest = if sim.chance(0.4) { 6000 } else { 400 };
        cluster.run_for(sim.random_span(Duration::ZERO, Duration::from_millis(longest)));
    }
    cluster.dies_after_change.set(0.0);
    cluster.settle();
    faults
}

#[cfg(test)]
#[path = "group_failover_tests.rs"]
mod tests;
