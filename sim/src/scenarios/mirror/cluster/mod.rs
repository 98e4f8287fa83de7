//! Cluster of two nodes built from one seed: their disks, the state shared with their hosts, and
//! the observable state.
//!
//! Operations on the cluster are in [`nodes`] (processes), [`resizing`], [`disks`] and [`logs`]
//! (faults). [`lines`] has the content that hosts may read.
//!
//! Invariant: everything that differs between two runs is drawn from the seed, in call order.
//!
//! The cluster leaves out host protocols and the link's wire format: hosts call the mirror
//! directly, and [`super::link`] replaces the network.

mod disks;
mod lines;
mod log_copies;
mod logs;
mod nodes;
mod resizing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::ReopenableDevice;
use flagstone_mirror::id::{Generation, MirrorId};
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, layout};
use flagstone_mirror::ondisk::newest;
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{LinkVersions, Mirror, Mode};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation};

use self::lines::Line;
use self::log_copies::LogCopies;
use self::nodes::{devices, shared};
use super::link::{Network, NetworkHandle};
use super::{Kind, full_history, releases};
use crate::model::Shared;

pub(super) const DATA: &str = "/dev/data";
pub(super) const LOG: &str = "/dev/log";
const LOG2: &str = "/dev/log2";
const VOLUME: MirrorId = MirrorId([7; 16]);

pub(super) const DESIRED_STATES: [DesiredState; 3] =
    [DesiredState::Connected, DesiredState::Paused, DesiredState::Detached];

/// State shared with the host tasks.
pub(super) struct World {
    pub(super) lines: RefCell<[Line; 2]>,
    /// True if the node lost power since its data was last known to be complete.
    pub(super) lost_power: [Cell<bool>; 2],
    pub(super) mirrors: RefCell<[Option<Arc<Mirror>>; 2]>,
    pub(super) stop: Rc<Cell<bool>>,
    mode: Mode,
    /// Devices of each running node's replica.
    devices: RefCell<[Option<Devices>; 2]>,
    /// The node's hosts have calls in flight, or are about to.
    pub(super) loading: [Cell<bool>; 2],
    /// Generation with which the node was declared in sync but has not yet confirmed.
    adopting: [Cell<Option<Generation>>; 2],
}

impl World {
    /// World in which both nodes share this line and neither runs.
    fn new(model: Shared, mode: Mode) -> World {
        let (a, b) = (Line::new(model.clone(), 0), Line::new(model, 0));
        World {
            lines: RefCell::new([a, b]),
            lost_power: Default::default(),
            mirrors: Default::default(),
            stop: Rc::default(),
            mode,
            devices: Default::default(),
            loading: Default::default(),
            adopting: Default::default(),
        }
    }
}

type Devices = (Arc<ReopenableDevice>, Option<Arc<ReopenableDevice>>);

/// Version of the disk, and the superblock on it.
type FoundSuperblock = (Option<u64>, Option<Rc<Superblock>>);

pub(super) struct Cluster {
    pub(super) sim: Simulation,
    pub(super) kind: Kind,
    pub(super) nodes: [NodeId; 2],
    pub(super) network: NetworkHandle,
    pub(super) world: Rc<World>,
    pub(super) usable: u64,
    /// All sizes that each node's device has had, in bytes.
    sizes: RefCell<[Vec<u64>; 2]>,
    separate_log: bool,
    /// Logs as they were created.
    first_logs: [Vec<u8>; 2],
    /// Superblocks found last, and the versions of the disks at that time.
    superblocks: RefCell<[FoundSuperblock; 2]>,
    /// A bit of the node's log was flipped.
    rotten: [Cell<bool>; 2],
    /// Later copies of the logs.
    log_copies: RefCell<[LogCopies; 2]>,
    volatile: bool,
    depth: usize,
    pause_ms: u64,
    /// Flushes of the node's disk may fail.
    flushes_fail: [Cell<bool>; 2],
    /// Resyncs compare checksums.
    compare: bool,
    /// Link versions that the node's program speaks.
    releases: [Cell<LinkVersions>; 2],
}

impl Cluster {
    pub(super) fn new(seed: u64, kind: &Kind) -> Cluster {
        let sim = Simulation::new(seed, Default::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
        let network = NetworkHandle::new(sim.world());
        // Bitmap granularity 4 KiB, regions of one to a few blocks, at most 32 active: the activity
        // log evicts.
        let region_bytes = 4096 << sim.random_between(0, 2);
        let geometry = ReplicaGeometry {
            usable_bytes: 4096,
            bit_bytes: 4096,
            region_bytes,
            active_regions_max: 32,
        };
        let blocks = sim.random_between(16, 160);
        let device_bytes = (blocks + 16) * 4096;
        let separate_log = sim.chance(0.5);
        let volatile = sim.chance(0.7);
        for node in nodes {
            let config =
                DiskConfig { volatile_cache: volatile, ..DiskConfig::block_device(device_bytes) };
            sim.add_disk(node, DATA, config);
            sim.add_disk(node, LOG, DiskConfig::block_device(device_bytes));
            if kind.moves {
                sim.add_disk(node, LOG2, DiskConfig::block_device(device_bytes));
            }
        }
        make_replicas(&sim, nodes, geometry, separate_log, full_history::is_long(seed));
        let usable = layout(device_bytes, &geometry).expect("room").usable_bytes;
        let (path, at) = if separate_log { (LOG, 0) } else { (DATA, usable) };
        let log_bytes = (device_bytes - 8192 - usable) as usize;
        let first_logs = nodes.map(|node| sim.peek(node, path, at, log_bytes));
        let world = Rc::new(World::new(Shared::new(seed, usable), kind.mode));
        let seen = world.clone();
        network.network().set_watcher(move |node, request, stage| {
            if let PeerRequest::EndResync { generation } = request {
                seen.ends_resync(usize::from(node == nodes[1]), *generation, stage);
            }
        });
        let depth = sim.random_between(1, 12) as usize;
        let pause_ms = sim.random_between(1, 40);
        let releases = nodes.map(|_| match kind.upgrades {
            true => releases::any(&sim),
            false => LinkVersions::SPOKEN,
        });
        Cluster {
            kind: *kind,
            nodes,
            network,
            world,
            usable,
            sizes: RefCell::new([vec![device_bytes], vec![device_bytes]]),
            separate_log,
            first_logs,
            superblocks: Default::default(),
            rotten: Default::default(),
            log_copies: Default::default(),
            volatile,
            depth,
            pause_ms,
            flushes_fail: Default::default(),
            compare: kind.faults && sim.chance(0.5),
            releases: releases.map(Cell::new),
            sim,
        }
    }

    pub(super) fn network(&self) -> Rc<Network> {
        self.network.network()
    }

    pub(super) fn mirror(&self, index: usize) -> Option<Arc<Mirror>> {
        self.world.mirrors.borrow()[index].clone()
    }

    /// State of a serving node; `None` when it does not serve.
    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        self.world.state(index)
    }

    pub(super) fn shown(&self, index: usize) -> Option<MirrorState> {
        Some(self.mirror(index)?.state(0))
    }

    /// Superblock on a node's disk: at the end of the device, or at an earlier end.
    pub(super) fn superblock(&self, index: usize) -> Option<Rc<Superblock>> {
        let version = self.sim.disk_version(self.nodes[index], DATA);
        let (found_in, found) = &mut self.superblocks.borrow_mut()[index];
        if *found_in != Some(version) {
            (*found_in, *found) = (Some(version), self.find_superblock(index).map(Rc::new));
        }
        found.clone()
    }

    fn find_superblock(&self, index: usize) -> Option<Superblock> {
        let read = |at: u64| {
            let bytes = self.sim.peek(self.nodes[index], DATA, at, 4096);
            Superblock::decode(&bytes.try_into().expect("a page"))
        };
        let sizes = &self.sizes.borrow()[index];
        sizes.iter().rev().find_map(|end| {
            let slots = [read(end - 8192), read(end - 4096)];
            let found = newest(slots, |superblock| superblock.sequence).ok()?.1;
            // After growth by one page, one slot is at the former place of the other.
            (found.device_bytes == *end).then_some(found)
        })
    }

    fn usable_bytes(&self, index: usize) -> u64 {
        self.superblock(index).map_or(self.usable, |found| found.geometry.usable_bytes)
    }

    pub(super) fn data(&self, index: usize) -> Vec<u8> {
        self.sim.peek(self.nodes[index], DATA, 0, self.usable_bytes(index) as usize)
    }

    /// Compares both legs directly if the mirror says that they are in sync, except where host
    /// calls are in flight. Returns false when they cannot be compared now.
    ///
    /// # Panics
    /// When the legs differ.
    pub(super) fn legs_compared(&self) -> bool {
        let Some(source) = (0..2).find(|index| {
            let attached = self.mirror(1 - index).is_some_and(|mirror| mirror.has_source());
            attached && self.state(*index) == Some(MirrorState::Mirroring)
        }) else {
            return false;
        };
        let mirror = self.mirror(source).expect("it serves");
        let failed = mirror.has_failed();
        let status = self.sim.block_on(async move { mirror.status() });
        if failed || status.peers[0].lag_writes > 0 {
            return false;
        }
        let model = self.world.lines.borrow()[source].model.clone();
        let sizes = [0, 1].map(|index| self.usable_bytes(index));
        if sizes[0] == sizes[1] && self.sim.first_difference(self.nodes, DATA, sizes[0]).is_none() {
            return true;
        }
        let legs = [0, 1].map(|index| self.data(index));
        let mut bytes = legs[0].iter().zip(&legs[1]).enumerate();
        let differs = bytes.find(|(at, (a, b))| a != b && !model.is_busy_at(*at));
        let differs = differs.map(|(at, _)| at);
        assert!(
            legs[0].len() == legs[1].len() && differs.is_none(),
            "in sync, but the legs differ at byte {differs:?}\n{}",
            self.describe()
        );
        true
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for index in 0..2 {
            text += &format!("node {index}: up {}", self.sim.is_up(self.nodes[index]));
            if let Some(mirror) = self.mirror(index) {
                let status = self.sim.block_on(async move { mirror.status() });
                text += &format!(", {status:?}");
            }
            text += &format!("\n  {:?}\n", self.superblock(index));
        }
        text
    }
}

impl Drop for Cluster {
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
        self.world.devices.take();
        self.network().clear();
    }
}

/// Creates each node's replica, the first with the volume's data.
fn make_replicas(
    sim: &Simulation,
    nodes: [NodeId; 2],
    geometry: ReplicaGeometry,
    separate_log: bool,
    long_past: bool,
) {
    for (index, node) in nodes.into_iter().enumerate() {
        let create =
            CreateReplica { volume: VOLUME, with_data: index == 0, zeroes: false, geometry };
        let made = sim.spawn_on(node, async move {
            let (data, log) = devices(separate_log.then_some(LOG)).await;
            let log = shared(log);
            Replica::create(data.clone(), log.clone(), create).await.expect("sound disks");
            if create.with_data && long_past {
                full_history::lengthen(data, log).await;
            }
        });
        sim.block_on(made).expect("the task is not aborted");
    }
}
