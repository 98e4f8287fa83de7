//! The nodes, their disks and mirrors, the hosts, and what these may read.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, SharedDevice, Swap};
use flagstone_mirror::format::newest;
use flagstone_mirror::format::superblock::{Role, Superblock};
use flagstone_mirror::id::{Generation, Uuid};
use flagstone_mirror::peer::Request;
use flagstone_mirror::replica::{Create, Replica};
use flagstone_mirror::shape::Shape;
use flagstone_mirror::state::{MirrorState, Wish};
use flagstone_mirror::{Mirror, Mode, PeerOptions, Versions};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, NodeId, Simulation};
use flagstone_runtime::{spawn_detached, time};

use super::link::{Hub, HubHandle, Stage};
use super::log_copies::LogCopies;
use super::{Kind, releases};
use crate::load::{LoadOptions, run as load};
use crate::model::Shared;

pub(super) const DATA: &str = "/dev/data";
pub(super) const LOG: &str = "/dev/log";
const VOLUME: Uuid = Uuid([7; 16]);

/// What hosts of one node may read.
pub(super) struct Line {
    pub(super) model: Shared,
    /// The moment, in the model's time, at which it parted from the other's.
    pub(super) base: u64,
    /// Generation on the node's disk when it parted.
    parted_at: Generation,
    /// The node was seen with a generation of its own since.
    minted: bool,
}

impl Line {
    fn new(model: Shared, base: u64) -> Line {
        Line { model, base, parted_at: Generation::NONE, minted: false }
    }

    /// Something that must not be given up silently. An asynchronous source that had not noticed
    /// yet that it was alone had promised no more than its own disk.
    fn has_promised(&self, mode: Mode) -> bool {
        self.model.has_promised_since(self.base) && (mode == Mode::Sync || self.minted)
    }
}

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

type Devices = (Arc<Swap>, Option<Arc<Swap>>);

impl World {
    /// The state that an active node shows; none when it serves nobody.
    fn state(&self, index: usize) -> Option<MirrorState> {
        let mirror = self.mirrors.borrow()[index].clone()?;
        mirror.is_active().then(|| mirror.state(0))
    }

    /// Both lines are one when this node says so, with which the other has caught up.
    fn reconcile(&self, index: usize) {
        let other = self.mirrors.borrow()[1 - index].clone();
        // A source that has not heard of it yet may think so still.
        let attached = other.is_some_and(|mirror| mirror.has_source());
        if !attached || self.state(index) != Some(MirrorState::Mirroring) {
            return;
        }
        self.take_over(1 - index);
    }

    /// The other node ends a resync of this one, which has its data from the moment on at which that
    /// is on its disk: before the other has heard of it, and though both may be apart again before
    /// anybody looks. The generation does not tell it later: where nothing was written without the
    /// other none was minted.
    fn ends_resync(&self, index: usize, generation: Generation, stage: Stage) {
        self.adopting[index].set((stage == Stage::Begins).then_some(generation));
        if stage == Stage::Done {
            self.take_over(index);
        }
    }

    /// The node has the other's data: hosts may read there what they may read here.
    fn take_over(&self, index: usize) {
        self.lossy[index].set(false);
        let mut lines = self.lines.borrow_mut();
        if !lines[index].model.is(&lines[1 - index].model) {
            let lost = lines[index].has_promised(self.mode);
            assert!(!lost, "what the hosts of node {index} were promised is given up");
            let model = lines[1 - index].model.clone();
            let base = model.moment();
            lines[1 - index].base = base;
            lines[index] = Line::new(model, base);
        }
    }
}

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

fn options() -> FileOptions {
    FileOptions::default()
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
        for (index, node) in nodes.into_iter().enumerate() {
            let create = Create { volume: VOLUME, with_data: index == 0, shape };
            let made = sim.spawn_on(node, async move {
                let (data, log) = devices(separate_log).await;
                Replica::create(data, shared(log), create).await.expect("sound disks");
            });
            sim.block_on(made).expect("nobody ends it");
        }
        let usable =
            flagstone_mirror::shape::layout(device_bytes, &shape).expect("room").usable_bytes;
        let (path, at) = if separate_log { (LOG, 0) } else { (DATA, usable) };
        let log_bytes = (device_bytes - 8192 - usable) as usize;
        let first_logs = nodes.map(|node| sim.peek(node, path, at, log_bytes));
        let model = Shared::new(seed, usable);
        let (a, b) = (Line::new(model.clone(), 0), Line::new(model, 0));
        let world = World {
            lines: RefCell::new([a, b]),
            lossy: Default::default(),
            mirrors: Default::default(),
            stop: Rc::default(),
            mode: kind.mode,
            devices: Default::default(),
            loading: Default::default(),
            adopting: Default::default(),
        };
        let world = Rc::new(world);
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

    /// Starts a node's mirror and its hosts.
    pub(super) fn start(&self, index: usize) {
        self.bring_up(index, false);
    }

    /// Does what a node's server does when a device of a replica that serves nobody has failed: closes
    /// it and opens it again. True when it did.
    pub(super) fn reopen(&self, index: usize) -> bool {
        let (Some(mirror), Some((data, log))) =
            (self.mirror(index), self.world.devices.borrow()[index].clone())
        else {
            return false;
        };
        let flush_failed = data.must_reopen() || log.as_ref().is_some_and(|log| log.must_reopen());
        if !(flush_failed || mirror.has_failed()) || !mirror.is_idle_target() {
            return false;
        }
        if self.sim.chance(0.3) {
            // The server ends before it has come to that, and the next one knows of nothing.
            self.end(index, false);
            self.restart_as_it_was(index);
            return true;
        }
        let (node, hub) = (self.nodes[index], self.hub.clone());
        let given_up = self.sim.spawn_on(node, async move {
            let given_up = mirror.give_target_up().await;
            if given_up {
                hub.hub().stop(node);
                data.close();
                log.iter().for_each(|log| log.close());
            }
            given_up
        });
        if !self.sim.block_on(given_up).expect("nobody ends it") {
            return false;
        }
        self.reconcile();
        self.notice_adoption(index);
        self.world.adopting[index].set(None);
        self.doubt_flushes(index);
        self.watch();
        self.world.mirrors.borrow_mut()[index] = None;
        self.world.devices.borrow_mut()[index] = None;
        self.bring_up(index, true);
        true
    }

    fn peer_options(&self, node: NodeId, other: NodeId) -> PeerOptions {
        let mut peer = PeerOptions::new(self.hub.peer(node, other));
        (peer.mode, peer.ack, peer.when_lost) =
            (self.kind.mode, self.kind.ack, self.kind.when_lost);
        peer.compare = self.compare;
        peer
    }

    fn bring_up(&self, index: usize, doubtful: bool) {
        let (node, other) = (self.nodes[index], self.nodes[1 - index]);
        let peer = self.peer_options(node, other);
        let (world, hub) = (self.world.clone(), self.hub.clone());
        let (separate_log, depth) = (self.separate_log, self.depth);
        let (pause_ms, faults) = (self.pause_ms, self.kind.faults);
        let versions = self.releases[index].get();
        self.sim.spawn_on(node, async move {
            let local = loop {
                let (data, log) = devices(separate_log).await;
                world.devices.borrow_mut()[index] = Some((data.clone(), log.clone()));
                let opened = match Replica::open(data, shared(log)).await {
                    Ok(local) if doubtful => local.doubt().await.is_ok().then_some(local),
                    opened => opened.ok(),
                };
                match opened {
                    Some(local) => break local,
                    None => {
                        world.devices.borrow_mut()[index] = None;
                        time::sleep(Duration::from_millis(100)).await;
                    }
                }
            };
            let resizing = Resizing { world: world.clone(), hub: hub.clone(), node, index, peer };
            let replica = local.superblock().replica;
            tracing::info!(node = index, %replica, lost = ?local.lost(), "the node is up");
            let peers = vec![resizing.peer.clone()];
            let mirror = Arc::new(Mirror::speaking(versions, local, peers));
            world.mirrors.borrow_mut()[index] = Some(mirror.clone());
            hub.hub().serve(node, mirror.clone());
            spawn_detached(follow(world.clone(), index, mirror.clone()));
            spawn_detached(resizing.follow_source(mirror.clone()));
            while mirror.start().await.is_err() {
                time::sleep(Duration::from_millis(100)).await;
            }
            let options = LoadOptions {
                stop: world.stop.clone(),
                max_bytes: 32 << 10,
                medium_errors: faults,
                // Time in which nothing happens costs the simulation nothing.
                pause: Duration::from_millis(pause_ms),
                ..LoadOptions::new(depth)
            };
            hosts(world, index, mirror, options).await;
        });
    }

    /// The node's process ends.
    pub(super) fn end(&self, index: usize, power: bool) {
        let node = self.nodes[index];
        if !self.sim.is_up(node) {
            return;
        }
        self.reconcile();
        self.notice_adoption(index);
        self.world.adopting[index].set(None);
        self.doubt_flushes(index);
        if power {
            let whole = self.is_whole_target(index);
            if self.volatile && !whole {
                self.world.lossy[index].set(true);
            }
            self.sim.power_off(node);
        } else {
            self.sim.crash(node);
        }
        self.watch();
        self.hub().stop(node);
        self.world.loading[index].set(false);
        self.world.mirrors.borrow_mut()[index] = None;
        self.world.devices.borrow_mut()[index] = None;
    }

    /// Devices are made larger, by less than the metadata or by more, and the operator has the
    /// volume grow on one node.
    pub(super) fn grow(&self, index: usize) {
        for (node, sizes) in self.sizes.borrow_mut().iter_mut().enumerate() {
            if self.sim.chance(0.7) {
                let more = self.sim.random_between(1, 40) * 4096;
                let size = sizes.last().map_or(more, |size| size + more);
                self.sim.grow_disk(self.nodes[node], DATA, size);
                sizes.push(size);
            }
        }
        let (Some(mirror), Some(other)) = (self.mirror(index), self.mirror(1 - index)) else {
            return;
        };
        self.reconcile();
        let node = self.nodes[index];
        // Else it is as where a node has forgotten what it zeroed.
        let clears = self.sim.chance(0.7);
        let peer = self.peer_options(node, self.nodes[1 - index]);
        let resizing =
            Resizing { world: self.world.clone(), hub: self.hub.clone(), node, index, peer };
        self.sim.spawn_on(node, async move {
            let bytes = mirror.room_bytes().min(other.room_bytes());
            if clears && mirror.clear_room(bytes).await.is_err() {
                return;
            }
            if mirror.is_active() && bytes > mirror.usable_bytes() {
                resizing.resize(&mirror, bytes).await;
            }
        });
    }

    pub(super) fn restart(&self, index: usize) {
        if !self.sim.is_up(self.nodes[index]) {
            if self.kind.upgrades && self.sim.chance(0.5) {
                self.releases[index].set(releases::any(&self.sim));
            }
            if self.copies_logs() && self.sim.chance(0.3) {
                self.put_log_back(index);
            }
            self.restart_as_it_was(index);
        }
    }

    /// The same with the release that the node has.
    pub(super) fn restart_as_it_was(&self, index: usize) {
        if !self.sim.is_up(self.nodes[index]) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    /// Nodes whose releases know nothing of each other cannot become one: a node is upgraded, or put
    /// back, to one that knows the other's.
    pub(super) fn agree_on_versions(&self) {
        let release = |index: usize| self.releases[index].get();
        if release(0).highest_common(release(1)).is_err() {
            let index = self.sim.random_between(0, 1) as usize;
            self.end(index, false);
            self.releases[index].set(release(1 - index));
        }
    }

    /// The state that an active node shows; none when it serves nobody.
    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        self.world.state(index)
    }

    pub(super) fn shown(&self, index: usize) -> Option<MirrorState> {
        Some(self.mirror(index)?.state(0))
    }

    fn is_whole_target(&self, index: usize) -> bool {
        // The source may not have noticed yet that this node serves hosts itself.
        let attached = self.mirror(index).is_some_and(|mirror| mirror.has_source());
        attached
            && self.state(1 - index) == Some(MirrorState::Mirroring)
            && self.kind == Kind { when_lost: self.kind.when_lost, ..Kind::default() }
    }

    /// Lines that have become one are one.
    pub(super) fn reconcile(&self) {
        (0..2).for_each(|index| self.world.reconcile(index));
    }

    /// Who mirrors calls the data of both by one name.
    fn assert_one_name(&self) {
        for index in 0..2 {
            let attached = self.mirror(1 - index).is_some_and(|mirror| mirror.has_source());
            let fails = self.mirror(index).is_some_and(|mirror| mirror.has_failed());
            if !attached || fails || self.state(index) != Some(MirrorState::Mirroring) {
                continue;
            }
            let [source, target] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(source), Some(target)) = (source, target) else { continue };
            // One that is asked to go on alone has a name of its own before its source hears of it.
            let one = source.current == target.current || target.history.contains(source.current);
            assert!(one, "in sync under two names\n{}", self.describe());
        }
    }

    /// The node is about to serve though the other may: from now on their data may differ.
    pub(super) fn part(&self, index: usize) {
        self.reconcile();
        // A target that its source had to go on alone, when the source's disk failed, keeps no log:
        // what it went on from is in its history.
        let before = self.superblock(index).map(|mine| mine.current);
        let outdated = self.superblock(1 - index).is_some_and(|other| {
            other.peers.iter().any(|peer| !peer.bases.is_empty())
                || before.is_some_and(|before| other.history.contains(before))
        });
        // A target that has taken over the source's generation has all of it, though the source
        // may not have heard of that.
        let found = [index, 1 - index].map(|node| self.superblock(node));
        let adopted = matches!(&found, [Some(mine), Some(others)]
            if mine.current == others.current && !mine.flags.inconsistent);
        let mut lines = self.world.lines.borrow_mut();
        if !lines[index].model.is(&lines[1 - index].model) && !adopted {
            return;
        }
        let model = lines[1 - index].model.fork();
        if outdated || self.kind.mode == Mode::Async {
            model.forget();
        }
        lines[1 - index].base = lines[1 - index].model.moment();
        lines[index] = Line::new(model, 0);
        for (node, line) in lines.iter_mut().enumerate() {
            let found = self.superblock(node);
            line.parted_at = found.map_or(Generation::NONE, |found| found.current);
            // What was minted before is of the one line that there was.
            line.minted = false;
        }
    }

    /// Notices a target that has noted that it is whole, and has not answered.
    fn notice_adoption(&self, index: usize) {
        let (asked, found) = (self.world.adopting[index].get(), self.superblock(index));
        let whole = |found: &Superblock| Some(found.current) == asked && !found.flags.inconsistent;
        if asked.is_some() && found.as_ref().is_some_and(whole) {
            self.world.take_over(index);
        }
    }

    /// Notices targets that have taken over the source's generation since the lines parted: with it
    /// they have its data, though the source may never hear of it.
    fn notice_targets(&self) {
        for index in 0..2 {
            let [mine, source] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(mine), Some(source)) = (mine, source) else { continue };
            let has = mine.current == source.current && !mine.flags.inconsistent;
            let roles = (mine.role, source.role) == (Role::Target, Role::Source);
            let active = self.state(index).is_some();
            let parted_at = {
                let lines = self.world.lines.borrow();
                let two = !lines[0].model.is(&lines[1].model);
                two.then_some(lines[index].parted_at)
            };
            if has && roles && !active && parted_at.is_some_and(|parted| parted != mine.current) {
                self.world.take_over(index);
            }
        }
    }

    /// Notices generations that nodes have minted since they parted.
    pub(super) fn watch(&self) {
        self.assert_one_name();
        self.copy_logs();
        (0..2).for_each(|index| self.notice_adoption(index));
        self.notice_targets();
        let found = [0, 1].map(|node| self.superblock(node));
        let names = found.each_ref().map(|found| found.as_ref().map(|found| found.current));
        let mut lines = self.world.lines.borrow_mut();
        for (node, line) in lines.iter_mut().enumerate() {
            // A full resync to it has given it a name that is nobody's data.
            let is_copied_to = found[node].as_ref().is_some_and(|found| found.flags.inconsistent);
            let (mine, others) = (names[node], names[1 - node]);
            line.minted |= !is_copied_to && mine != Some(line.parted_at) && mine != others;
        }
    }

    /// The operator has given up what is on a node.
    pub(super) fn give_up(&self, index: usize) {
        let mut lines = self.world.lines.borrow_mut();
        let (model, base) = (lines[1 - index].model.clone(), lines[1 - index].base);
        lines[index] = Line::new(model, base);
    }

    /// Part of a node's data cannot be read any more, or not be written.
    pub(super) fn damage(&self, index: usize, read: bool) {
        let from = self.sim.random_between(0, self.usable / 4096 - 1) * 4096;
        let to = (from + 4096 * self.sim.random_between(1, 4)).min(self.usable);
        let faults = DiskFaults::default();
        let faults =
            if read { faults.unreadable_at(from..to) } else { faults.unwritable_at(from..to) };
        self.set_faults(index, DATA, faults);
    }

    /// The superblock's slots and the end of the log before them cannot be written any more, or one
    /// slot cannot.
    pub(super) fn damage_superblock(&self, index: usize) {
        let end = self.sizes.borrow()[index].last().copied().expect("a disk has a size");
        let from = end - 4096 * self.sim.random_between(1, 5);
        let to = from + 4096 * self.sim.random_between(1, 3);
        let faults = DiskFaults::default().unwritable_at(from..to);
        self.set_faults(index, DATA, faults);
    }

    /// A disk of a node fails at random from now on: the one with the data, or the log's.
    pub(super) fn break_disk(&self, index: usize, log: bool) {
        let sim = &self.sim;
        let rate = |most: f64| match sim.chance(0.5) {
            true => most * sim.random_between(1, 100) as f64 / 100.0,
            false => 0.0,
        };
        let faults = DiskFaults {
            read_errors: rate(0.3),
            write_errors: rate(0.1),
            flush_errors: rate(0.1),
            ..DiskFaults::default()
        };
        self.set_faults(index, if log { LOG } else { DATA }, faults);
    }

    /// A node's disk takes no more blocks than it holds, or a few: it is thin, and what is below it
    /// is full.
    pub(super) fn fill_disk(&self, index: usize) {
        let held = self.sim.disk_stats(self.nodes[index], DATA).allocated_bytes;
        let left = 4096 * self.sim.random_between(0, 8);
        self.sim.set_space(self.nodes[index], DATA, held + left);
    }

    fn set_faults(&self, index: usize, path: &str, faults: DiskFaults) {
        let failing = faults.flush_errors > 0.0;
        self.sim.set_faults(self.nodes[index], path, faults);
        if failing && path == DATA {
            self.flushes_fail[index].set(true);
        }
        self.doubt_flushes(index);
    }

    /// Flushes of a node's disk have failed, or may have, of which no host heard: what was written
    /// before and is not written again may be lost with the power.
    fn doubt_flushes(&self, index: usize) {
        if self.flushes_fail[index].get() {
            self.world.lines.borrow()[index].model.flush_failed();
        }
    }

    /// A node's disks are sound again.
    pub(super) fn repair(&self, index: usize) {
        self.doubt_flushes(index);
        self.flushes_fail[index].set(false);
        for path in [DATA, LOG] {
            self.sim.set_faults(self.nodes[index], path, DiskFaults::default());
        }
        self.sim.set_space(self.nodes[index], DATA, u64::MAX);
    }

    /// Where a node's log is.
    fn log_at(&self) -> (&'static str, u64) {
        if self.separate_log { (LOG, 0) } else { (DATA, self.usable) }
    }

    /// While a node is down its log is replaced: by the one that it had when it was made, or by
    /// nothing.
    pub(super) fn replace_log(&self, index: usize, old: bool) {
        if self.sim.is_up(self.nodes[index]) {
            return;
        }
        let (path, at) = self.log_at();
        let blank = vec![0; self.first_logs[index].len()];
        let bytes = if old { &self.first_logs[index] } else { &blank };
        self.sim.poke(self.nodes[index], path, at, bytes);
        self.log_copies.borrow_mut()[index].clear();
    }

    /// Where nothing fails to write a log it is known what copies of it are promised to be told.
    fn copies_logs(&self) -> bool {
        self.kind.faults && !self.kind.broken
    }

    /// Keeps copies of the logs as they are now, some of the time.
    fn copy_logs(&self) {
        if !self.copies_logs() {
            return;
        }
        for (index, copies) in self.log_copies.borrow_mut().iter_mut().enumerate() {
            let Some(superblock) = self.superblock(index) else { continue };
            let (path, at) = self.log_at();
            let log = self.sim.peek(self.nodes[index], path, at, self.first_logs[index].len());
            let keep = self.sim.chance(0.5).then(|| self.sim.random_between(0, 5) as usize);
            copies.see(&log, superblock.sequence, keep);
        }
    }

    /// While a node is down its log is put back from a copy that it is promised to tell: all of it, or
    /// some of its pages where it was put away in order.
    fn put_log_back(&self, index: usize) {
        let Some(superblock) = self.superblock(index) else { return };
        let (path, at) = self.log_at();
        let mut copies = self.log_copies.borrow_mut();
        let told = copies[index].told_by(&superblock);
        if told.is_empty() {
            return;
        }
        let mut copy = told[self.sim.random_between(0, told.len() as u64 - 1) as usize].to_vec();
        if !superblock.flags.in_use && self.sim.chance(0.5) {
            let now = self.sim.peek(self.nodes[index], path, at, copy.len());
            for (old, new) in copy.chunks_mut(4096).zip(now.chunks(4096)) {
                if self.sim.chance(0.5) {
                    old.copy_from_slice(new);
                }
            }
        }
        tracing::info!(node = index, superblock.flags.in_use, "the log is one from before");
        self.sim.poke(self.nodes[index], path, at, &copy);
        copies[index].clear();
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

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        (self.mode, self.ack, self.when_lost) == (other.mode, other.ack, other.when_lost)
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

async fn devices(separate_log: bool) -> Devices {
    let open = async |path: &str| loop {
        match FileDevice::open(path, &options()) {
            Ok(device) => return Swap::new(device),
            // What it had in hand before it was closed has not ended.
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    };
    let log = if separate_log { Some(open(LOG).await) } else { None };
    (open(DATA).await, log)
}

fn shared(log: Option<Arc<Swap>>) -> Option<SharedDevice> {
    log.map(|log| log as SharedDevice)
}

/// Gives a node's replica another size, as its daemon does.
#[derive(Clone)]
struct Resizing {
    world: Rc<World>,
    hub: HubHandle,
    node: NodeId,
    index: usize,
    peer: PeerOptions,
}

impl Resizing {
    async fn resize(&self, mirror: &Arc<Mirror>, bytes: u64) {
        let Some((data, log)) = self.world.devices.borrow()[self.index].clone() else { return };
        let Ok(hand_on) = mirror.hand_on().await else { return };
        self.hub.hub().stop(self.node);
        let data: SharedDevice = data;
        let resized = hand_on.resize(&data, shared(log), bytes).await;
        let Ok((replica, _)) = resized else { return };
        let peers = vec![self.peer.clone()];
        let next = Arc::new(Mirror::speaking(mirror.versions(), replica, peers));
        self.world.mirrors.borrow_mut()[self.index] = Some(next.clone());
        self.hub.hub().serve(self.node, next.clone());
        spawn_detached(follow(self.world.clone(), self.index, next.clone()));
        spawn_detached(self.clone().follow_source(next.clone()));
        let _ = hand_on.finish(&next).await;
    }

    fn follow_source(self, mirror: Arc<Mirror>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            loop {
                let bytes = mirror.resize_wanted().await;
                self.resize(&mirror, bytes).await;
            }
        })
    }
}

/// Notices each moment at which both are one.
async fn follow(world: Rc<World>, index: usize, mirror: Arc<Mirror>) {
    let mut state = MirrorState::Disconnected;
    loop {
        state = mirror.state_changed(0, state).await;
        world.reconcile(index);
    }
}

/// The hosts of one node: load it whenever it serves, until the node dies.
async fn hosts(world: Rc<World>, index: usize, mirror: Arc<Mirror>, options: LoadOptions) {
    let mut active = false;
    loop {
        if !active {
            active = mirror.activity_changed(false).await;
            continue;
        }
        let model = world.lines.borrow()[index].model.clone();
        if world.lossy[index].replace(false) {
            model.power_lost();
        }
        let device: SharedDevice = Arc::new((*mirror).clone());
        // What an earlier source left in a volatile cache counts from here on.
        if device.flush().await.is_ok() && !world.stop.get() {
            world.loading[index].set(true);
            load(device, model, options.clone()).await;
            world.loading[index].set(false);
        }
        if world.stop.get() {
            return;
        }
        time::sleep(Duration::from_millis(1)).await;
        active = mirror.is_active();
    }
}

pub(super) const WISHES: [Wish; 3] = [Wish::Mirror, Wish::Pause, Wish::Break];
