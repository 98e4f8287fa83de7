//! Two nodes that one seed makes: their disks, what they share with their hosts, and what can be seen
//! of them.
//!
//! What is done to them is in the modules: [`nodes`] (processes), [`resizing`], [`disks`] and [`logs`]
//! (faults). What their hosts may read is in [`lines`].
//!
//! Promises: all that differs between two runs is drawn from the seed, in the order of the calls.

mod disks;
mod lines;
mod log_copies;
mod logs;
mod nodes;
mod resizing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::Swap;
use flagstone_mirror::format::newest;
use flagstone_mirror::format::superblock::Superblock;
use flagstone_mirror::id::{Generation, Uuid};
use flagstone_mirror::peer::Request;
use flagstone_mirror::replica::{Create, Replica};
use flagstone_mirror::shape::{Shape, layout};
use flagstone_mirror::state::{MirrorState, Wish};
use flagstone_mirror::{Mirror, Mode, Versions};
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation};

use self::lines::Line;
use self::log_copies::LogCopies;
use self::nodes::{devices, shared};
use super::link::{Hub, HubHandle};
use super::{Kind, past, releases};
use crate::model::Shared;

pub(super) const DATA: &str = "/dev/data";
pub(super) const LOG: &str = "/dev/log";
const VOLUME: Uuid = Uuid([7; 16]);

pub(super) const WISHES: [Wish; 3] = [Wish::Mirror, Wish::Pause, Wish::Break];

/// What is shared with the tasks of hosts.
pub(super) struct World {
    pub(super) lines: RefCell<[Line; 2]>,
    /// The node lost its power since its data was known to be whole.
    pub(super) lossy: [Cell<bool>; 2],
    pub(super) mirrors: RefCell<[Option<Arc<Mirror>>; 2]>,
    pub(super) stop: Rc<Cell<bool>>,
    mode: Mode,
    /// What the node's replica is on, while it is up.
    devices: RefCell<[Option<Devices>; 2]>,
    /// Hosts of the node have calls in flight, or are about to.
    pub(super) loading: [Cell<bool>; 2],
    /// The node was told that it is whole with this generation, and has not answered yet.
    adopting: [Cell<Option<Generation>>; 2],
}

impl World {
    /// Both nodes have this line, and none is up.
    fn new(model: Shared, mode: Mode) -> World {
        let (a, b) = (Line::new(model.clone(), 0), Line::new(model, 0));
        World {
            lines: RefCell::new([a, b]),
            lossy: Default::default(),
            mirrors: Default::default(),
            stop: Rc::default(),
            mode,
            devices: Default::default(),
            loading: Default::default(),
            adopting: Default::default(),
        }
    }
}

type Devices = (Arc<Swap>, Option<Arc<Swap>>);

pub(super) struct Cluster {
    pub(super) sim: Simulation,
    pub(super) kind: Kind,
    pub(super) nodes: [NodeId; 2],
    pub(super) hub: HubHandle,
    pub(super) world: Rc<World>,
    pub(super) usable: u64,
    /// What the device of a node has had and has, in bytes.
    sizes: RefCell<[Vec<u64>; 2]>,
    separate_log: bool,
    /// The logs as they were made.
    first_logs: [Vec<u8>; 2],
    /// And since.
    log_copies: RefCell<[LogCopies; 2]>,
    volatile: bool,
    depth: usize,
    pause_ms: u64,
    /// Flushes of the node's disk may fail.
    flushes_fail: [Cell<bool>; 2],
    /// Resyncs compare checksums.
    compare: bool,
    /// The versions of the link that the node's program speaks.
    releases: [Cell<Versions>; 2],
}

impl Cluster {
    pub(super) fn new(seed: u64, kind: &Kind) -> Cluster {
        let sim = Simulation::new(seed, Default::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
        let hub = HubHandle::new(sim.world());
        // Bits of 4 KiB, regions of one or a few, and 32 of them hot: eviction happens.
        let region_bytes = 4096 << sim.random_between(0, 2);
        let shape = Shape { usable_bytes: 4096, bit_bytes: 4096, region_bytes, hot_regions: 32 };
        let blocks = sim.random_between(16, 160);
        let device_bytes = (blocks + 16) * 4096;
        let separate_log = sim.chance(0.5);
        let volatile = sim.chance(0.7);
        for node in nodes {
            let config =
                DiskConfig { volatile_cache: volatile, ..DiskConfig::block_device(device_bytes) };
            sim.add_disk(node, DATA, config);
            sim.add_disk(node, LOG, DiskConfig::block_device(device_bytes));
        }
        make_replicas(&sim, nodes, shape, separate_log, past::is_long(seed));
        let usable = layout(device_bytes, &shape).expect("room").usable_bytes;
        let (path, at) = if separate_log { (LOG, 0) } else { (DATA, usable) };
        let log_bytes = (device_bytes - 8192 - usable) as usize;
        let first_logs = nodes.map(|node| sim.peek(node, path, at, log_bytes));
        let world = Rc::new(World::new(Shared::new(seed, usable), kind.mode));
        let seen = world.clone();
        hub.hub().set_watcher(move |node, request, stage| {
            if let Request::EndResync { generation } = request {
                seen.ends_resync(usize::from(node == nodes[1]), *generation, stage);
            }
        });
        let depth = sim.random_between(1, 12) as usize;
        let pause_ms = sim.random_between(1, 40);
        let releases = nodes.map(|_| match kind.upgrades {
            true => releases::any(&sim),
            false => Versions::SPOKEN,
        });
        Cluster {
            kind: *kind,
            nodes,
            hub,
            world,
            usable,
            sizes: RefCell::new([vec![device_bytes], vec![device_bytes]]),
            separate_log,
            first_logs,
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

    pub(super) fn hub(&self) -> Rc<Hub> {
        self.hub.hub()
    }

    pub(super) fn mirror(&self, index: usize) -> Option<Arc<Mirror>> {
        self.world.mirrors.borrow()[index].clone()
    }

    /// The state that an active node shows; none when it serves nobody.
    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        self.world.state(index)
    }

    pub(super) fn shown(&self, index: usize) -> Option<MirrorState> {
        Some(self.mirror(index)?.state(0))
    }

    /// What a node's disk says of its replica: at the end of the device, or at an earlier one.
    pub(super) fn superblock(&self, index: usize) -> Option<Superblock> {
        let read = |at: u64| {
            let bytes = self.sim.peek(self.nodes[index], DATA, at, 4096);
            Superblock::decode(&bytes.try_into().expect("a page"))
        };
        let sizes = &self.sizes.borrow()[index];
        sizes.iter().rev().find_map(|end| {
            let slots = [read(end - 8192), read(end - 4096)];
            let found = newest(slots, |superblock| superblock.sequence).ok()?.1;
            // A device that grew by a page has one slot where the other would be.
            (found.device_bytes == *end).then_some(found)
        })
    }

    pub(super) fn data(&self, index: usize) -> Vec<u8> {
        let usable = self.superblock(index).map_or(self.usable, |found| found.shape.usable_bytes);
        self.sim.peek(self.nodes[index], DATA, 0, usable as usize)
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
    /// Tasks hold mirrors, these the way to each other, and that the world with its tasks.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for node in self.nodes.into_iter().filter(|node| self.sim.is_up(*node)) {
            self.sim.crash(node);
        }
        self.world.mirrors.take();
        self.world.devices.take();
        self.hub().clear();
    }
}

/// Makes the replica of each node, the first with the volume's data.
fn make_replicas(
    sim: &Simulation,
    nodes: [NodeId; 2],
    shape: Shape,
    separate_log: bool,
    long_past: bool,
) {
    for (index, node) in nodes.into_iter().enumerate() {
        let create = Create { volume: VOLUME, with_data: index == 0, shape };
        let made = sim.spawn_on(node, async move {
            let (data, log) = devices(separate_log).await;
            let log = shared(log);
            Replica::create(data.clone(), log.clone(), create).await.expect("sound disks");
            if create.with_data && long_past {
                past::lengthen(data, log).await;
            }
        });
        sim.block_on(made).expect("nobody ends it");
    }
}
