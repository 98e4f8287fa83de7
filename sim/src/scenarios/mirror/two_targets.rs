//! Volume with two targets: three nodes, each with a link to both others. Hosts always read one
//! line of data. The role moves by switchover, and by failover to a target that was in sync when
//! the source died. The dead source stays away until both others are in sync, which the operator
//! ensures; otherwise the last source takes the role again.
//!
//! The scenario leaves out disk faults, lost logs and split brain.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, layout};
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{Ack, Mirror, PeerOptions};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation};
use flagstone_runtime::time;

use super::cluster::{DATA, DESIRED_STATES};
use super::full_history;
use super::link::NetworkHandle;
use crate::Outcome;
use crate::load::{LoadOptions, run as load, verify};
use crate::model::Shared;

const NODES: usize = 3;
/// Longer than any undisturbed operation takes.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

struct Trio {
    sim: Simulation,
    nodes: [NodeId; NODES],
    network: NetworkHandle,
    world: Rc<World>,
    ack: Ack,
    volatile: bool,
    usable: u64,
    options: LoadOptions,
}

struct World {
    model: Shared,
    mirrors: RefCell<[Option<Arc<Mirror>>; NODES]>,
    stop: Rc<Cell<bool>>,
    /// True if the source lost power, and hosts have not been served since.
    lost_power: Cell<bool>,
    /// Source that died last, and the targets that were in sync then and have lived since.
    last_dead_source: Cell<Option<(usize, [bool; NODES])>>,
    /// Source that was failed over from, until the others are in sync.
    failed_over_from: Cell<Option<usize>>,
}

pub(super) fn run(seed: u64) -> Outcome {
    let trio = Trio::new(seed);
    (0..NODES).for_each(|index| trio.start(index));
    let sim = &trio.sim;
    if sim.chance(0.8) {
        sim.run_for(Duration::from_millis(sim.random_between(50, 2500)));
    }
    let faults = sim.random_between(1, 10);
    for _ in 0..faults {
        sim.run_for(sim.random_span(Duration::ZERO, Duration::from_millis(80)));
        trio.step();
        if sim.chance(0.3) {
            sim.run_for(sim.random_span(Duration::ZERO, Duration::from_secs(3)));
        }
    }
    trio.settle();
    trio.check_at_rest();
    Outcome::of(sim, trio.world.model.checks(), faults)
}

impl Trio {
    fn new(seed: u64) -> Trio {
        let sim = Simulation::new(seed, Default::default());
        let nodes = ["a", "b", "c"].map(|name| sim.add_node(name));
        let network = NetworkHandle::new(sim.world());
        let region_bytes = 4096 << sim.random_between(0, 2);
        let geometry = ReplicaGeometry {
            usable_bytes: 4096,
            bit_bytes: 4096,
            region_bytes,
            active_regions_max: 32,
        };
        let device_bytes = (sim.random_between(16, 80) + 16) * 4096;
        let volatile = sim.chance(0.7);
        for (index, node) in nodes.into_iter().enumerate() {
            let config =
                DiskConfig { volatile_cache: volatile, ..DiskConfig::block_device(device_bytes) };
            sim.add_disk(node, DATA, config);
            let create = CreateReplica {
                volume: MirrorId([7; 16]),
                with_data: index == 0,
                zeroes: false,
                geometry,
            };
            let made = sim.spawn_on(node, async move {
                Replica::create(device(), None, create).await.expect("sound disks");
                if create.with_data && full_history::is_long(seed) {
                    full_history::lengthen(device(), None).await;
                }
            });
            sim.block_on(made).expect("the task is not aborted");
        }
        let usable = layout(device_bytes, &geometry).expect("room").usable_bytes;
        let ack = if sim.chance(0.3) { Ack::Memory } else { Ack::Disk };
        let world = World {
            model: Shared::new(seed, usable),
            mirrors: RefCell::default(),
            stop: Rc::default(),
            lost_power: Cell::new(false),
            last_dead_source: Cell::new(None),
            failed_over_from: Cell::new(None),
        };
        let options = LoadOptions {
            stop: world.stop.clone(),
            max_bytes: 32 << 10,
            pause: Duration::from_millis(sim.random_between(1, 40)),
            ..LoadOptions::new(sim.random_between(1, 8) as usize)
        };
        Trio { nodes, network, world: Rc::new(world), ack, volatile, usable, options, sim }
    }

    fn start(&self, index: usize) {
        let node = self.nodes[index];
        let others = (0..NODES).filter(|other| *other != index);
        let peers: Vec<PeerOptions> = others
            .map(|other| {
                let mut peer = PeerOptions::new(self.network.peer(node, self.nodes[other]));
                peer.ack = self.ack;
                peer
            })
            .collect();
        let (world, network, options) =
            (self.world.clone(), self.network.clone(), self.options.clone());
        self.sim.spawn_on(node, async move {
            let local = loop {
                match Replica::open(device(), None).await {
                    Ok(local) => break local,
                    Err(_) => time::sleep(Duration::from_millis(100)).await,
                }
            };
            let replica = local.superblock().replica;
            tracing::info!(node = index, %replica, "the node is up");
            let mirror = Arc::new(Mirror::new(local, peers));
            world.mirrors.borrow_mut()[index] = Some(mirror.clone());
            network.network().serve(node, mirror.clone());
            while mirror.start().await.is_err() {
                time::sleep(Duration::from_millis(100)).await;
            }
            hosts(world, mirror, options).await;
        });
    }

    fn mirror(&self, index: usize) -> Option<Arc<Mirror>> {
        self.world.mirrors.borrow()[index].clone()
    }

    /// The serving node. Two serving nodes fail the run.
    fn active(&self) -> Option<usize> {
        let serves = |index: &usize| self.mirror(*index).is_some_and(|mirror| mirror.is_serving());
        let mut active = (0..NODES).filter(serves);
        let first = active.next();
        assert!(active.next().is_none(), "two nodes serve hosts");
        first
    }

    fn end(&self, index: usize, power: bool) {
        if !self.sim.is_up(self.nodes[index]) {
            return;
        }
        let served = self.active() == Some(index);
        if served {
            self.world.last_dead_source.set(Some((index, self.whole_targets(index))));
        } else if let Some((source, mut whole)) = self.world.last_dead_source.get() {
            whole[index] = false;
            self.world.last_dead_source.set(Some((source, whole)));
        }
        if power {
            self.sim.power_off(self.nodes[index]);
            let lost_power = self.world.lost_power.get() || (served && self.volatile);
            self.world.lost_power.set(lost_power || (self.volatile && self.active().is_none()));
        } else {
            self.sim.crash(self.nodes[index]);
        }
        self.network.network().stop(self.nodes[index]);
        self.world.mirrors.borrow_mut()[index] = None;
    }

    /// Index of the leg of `index` that leads to `other`.
    fn leg_to(index: usize, other: usize) -> usize {
        if other < index { other } else { other - 1 }
    }

    fn mirrors(&self, index: usize, other: usize) -> bool {
        let state = |mirror: Arc<Mirror>| mirror.state(Trio::leg_to(index, other));
        let attached = self.mirror(other).is_some_and(|mirror| mirror.has_source());
        attached && self.mirror(index).map(state) == Some(MirrorState::Mirroring)
    }

    fn whole_targets(&self, source: usize) -> [bool; NODES] {
        std::array::from_fn(|other| other != source && self.mirrors(source, other))
    }

    /// Fails over from a dead source to a target that has all of its data: this one, or the next.
    fn fail_over(&self, index: usize) {
        let Some((dead, whole)) = self.world.last_dead_source.get() else { return };
        let up = |node: usize| self.sim.is_up(self.nodes[node]);
        let one_failed_over = self.world.failed_over_from.get().is_some();
        if self.active().is_some() || up(dead) || one_failed_over {
            return;
        }
        let mut next = (index..index + NODES).map(|index| index % NODES);
        let Some(index) = next.find(|index| up(*index) && whole[*index]) else { return };
        self.world.failed_over_from.set(Some(dead));
        self.command(index, async move |mirror| {
            let _ = mirror.failover().await;
        });
        let deadline = self.sim.now() + RECOVERY_LIMIT;
        while self.active() != Some(index) {
            self.sim.run_for(Duration::from_millis(1));
            assert!(self.sim.now() < deadline, "no failover\n{}", self.describe());
        }
    }

    /// True if both others are in sync, so that the former source may return.
    fn may_come_back(&self, dead: usize) -> bool {
        let Some(active) = self.active() else { return false };
        let mut others = (0..NODES).filter(|other| *other != dead && *other != active);
        others.all(|other| self.mirrors(active, other))
    }

    fn restart(&self, index: usize) {
        if self.world.failed_over_from.get() == Some(index) {
            if !self.may_come_back(index) {
                return;
            }
            self.world.failed_over_from.set(None);
        }
        if !self.sim.is_up(self.nodes[index]) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    fn command<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        say: impl FnOnce(Arc<Mirror>) -> F + 'static,
    ) {
        let Some(mirror) = self.mirror(index) else { return };
        self.sim.spawn_on(self.nodes[index], async move { say(mirror).await });
    }

    /// Performs one random fault or command.
    fn step(&self) {
        let sim = &self.sim;
        let pick = || sim.random_between(0, NODES as u64 - 1) as usize;
        let (index, other) = (pick(), pick());
        let (here, there) = (self.nodes[index], self.nodes[other]);
        let leg = sim.random_between(0, 1) as usize;
        let choice = sim.random_between(0, 15);
        tracing::info!(at_us = sim.now().as_nanos() / 1000, index, other, choice);
        match choice {
            0 => {
                self.network.network().cut(here, there);
                self.network.network().cut(there, here);
            }
            1 => self.network.network().cut(here, there),
            2 | 3 => self.network.network().heal(),
            4 | 5 => self.end(index, false),
            6 => self.end(index, true),
            7 | 8 => self.restart(index),
            9 | 10 => self.command(index, async move |mirror| {
                if mirror.is_serving() {
                    let _ = mirror.switchover(leg).await;
                }
            }),
            11 => {
                let desired = DESIRED_STATES[sim.random_between(0, 2) as usize];
                self.command(index, async move |mirror| {
                    let _ = mirror.set_desired_state(leg, desired).await;
                });
            }
            12 | 13 => self.fail_over(index),
            14 => sim.stall(here, DATA, sim.random_span(Duration::ZERO, Duration::from_secs(2))),
            _ => {
                let slow = sim.random_span(Duration::from_micros(100), Duration::from_millis(40));
                self.network.network().set_slow(slow);
            }
        }
    }

    fn is_whole(&self) -> bool {
        let Some(active) = self.active() else { return false };
        let Some(mirror) = self.mirror(active) else { return false };
        (0..2).all(|leg| mirror.state(leg) == MirrorState::Mirroring)
    }

    /// Stops all faults. All three nodes must become in sync by themselves.
    fn settle(&self) {
        self.network.network().heal();
        self.network.network().set_slow(Duration::from_micros(300));
        (0..NODES).for_each(|index| self.restart(index));
        // Pending commands complete first, even on stalled disks.
        self.sim.run_for(Duration::from_secs(3));
        let deadline = self.sim.now() + RECOVERY_LIMIT;
        while !self.is_whole() {
            self.sim.run_for(Duration::from_secs(1));
            for index in 0..NODES {
                self.restart(index);
                for leg in 0..2 {
                    self.command(index, async move |mirror| {
                        let _ = mirror.set_desired_state(leg, DesiredState::Connected).await;
                    });
                }
            }
            assert!(
                self.sim.now() < deadline,
                "the mirror does not get in sync\n{}",
                self.describe()
            );
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for index in 0..NODES {
            if let Some(mirror) = self.mirror(index) {
                let status = self.sim.block_on(async move { mirror.status() });
                text += &format!("node {index}: {status:?}\n");
            }
        }
        text
    }

    fn check_at_rest(&self) {
        self.world.stop.set(true);
        self.sim.run_for(Duration::from_secs(10));
        let active = self.active().unwrap_or_else(|| panic!("no node serves\n{}", self.describe()));
        let mirror = self.mirror(active).expect("it serves");
        assert!(!self.world.model.busy(), "a host call does not end\n{}", self.describe());
        let model = self.world.model.clone();
        let checking = self.sim.spawn_on(self.nodes[active], async move {
            let device: SharedDevice = Arc::new((*mirror).clone());
            device.flush().await.expect("sound disks");
            verify(&device, &model).await.expect("sound disks");
        });
        self.sim.block_on(checking).expect("the task is not aborted");
        let legs = self.nodes.map(|node| self.sim.peek(node, DATA, 0, self.usable as usize));
        for index in 1..NODES {
            let differs = legs[0].iter().zip(&legs[index]).position(|(a, b)| a != b);
            assert!(differs.is_none(), "leg {index} differs at {differs:?}\n{}", self.describe());
        }
    }
}

impl Drop for Trio {
    /// Breaks the reference cycle: tasks hold mirrors, mirrors hold the network, the network holds
    /// the world.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for node in self.nodes.into_iter().filter(|node| self.sim.is_up(*node)) {
            self.sim.crash(node);
        }
        self.world.mirrors.take();
        self.network.network().clear();
    }
}

fn device() -> SharedDevice {
    FileDevice::open(DATA, &FileOptions::default()).expect("the disk is free")
}

/// Hosts follow the source: each node's hosts load it whenever it serves.
async fn hosts(world: Rc<World>, mirror: Arc<Mirror>, options: LoadOptions) {
    let mut active = false;
    loop {
        if !active {
            active = mirror.serving_changed(false).await;
            continue;
        }
        if world.lost_power.replace(false) {
            world.model.power_lost();
        }
        let device: SharedDevice = Arc::new((*mirror).clone());
        if device.flush().await.is_ok() && !world.stop.get() {
            load(device, world.model.clone(), options.clone()).await;
        }
        if world.stop.get() {
            return;
        }
        time::sleep(Duration::from_millis(1)).await;
        active = mirror.is_serving();
    }
}
