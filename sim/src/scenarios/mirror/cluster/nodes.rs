//! The processes of the nodes: they begin, end, and are begun again, each with its mirror and its
//! hosts.
//!
//! Promises:
//! - what is known of the data of a node that ends is asked before and after, so that none of it is
//!   missed;
//! - the hosts of a node load it whenever it serves, until the run ends.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, SharedDevice, Swap};
use flagstone_mirror::replica::Replica;
use flagstone_mirror::state::MirrorState;
use flagstone_mirror::{Mirror, PeerOptions};
use flagstone_runtime::sim::NodeId;
use flagstone_runtime::{spawn_detached, time};

use super::super::{Kind, releases};
use super::{Cluster, DATA, Devices, LOG, World};
use crate::load::{LoadOptions, run as load};

impl Cluster {
    /// Starts a node's mirror and its hosts.
    pub(crate) fn start(&self, index: usize) {
        self.bring_up(index, false);
    }

    /// Does what a node's server does when a device of a replica that serves nobody has failed: closes
    /// it and opens it again. True when it did.
    pub(crate) fn reopen(&self, index: usize) -> bool {
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

    pub(super) fn peer_options(&self, node: NodeId, other: NodeId) -> PeerOptions {
        let mut peer = PeerOptions::new(self.hub.peer(node, other));
        (peer.mode, peer.ack, peer.when_lost) =
            (self.kind.mode, self.kind.ack, self.kind.when_lost);
        peer.compare = self.compare;
        peer
    }

    fn bring_up(&self, index: usize, doubtful: bool) {
        let (node, resizing) = (self.nodes[index], self.resizing(index));
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
    pub(crate) fn end(&self, index: usize, power: bool) {
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

    pub(crate) fn restart(&self, index: usize) {
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
    pub(crate) fn restart_as_it_was(&self, index: usize) {
        if !self.sim.is_up(self.nodes[index]) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    /// Nodes whose releases know nothing of each other cannot become one: a node is upgraded, or put
    /// back, to one that knows the other's.
    pub(crate) fn agree_on_versions(&self) {
        let release = |index: usize| self.releases[index].get();
        if release(0).highest_common(release(1)).is_err() {
            let index = self.sim.random_between(0, 1) as usize;
            self.end(index, false);
            self.releases[index].set(release(1 - index));
        }
    }

    fn is_whole_target(&self, index: usize) -> bool {
        // The source may not have noticed yet that this node serves hosts itself.
        let attached = self.mirror(index).is_some_and(|mirror| mirror.has_source());
        attached
            && self.state(1 - index) == Some(MirrorState::Mirroring)
            && self.kind == Kind { when_lost: self.kind.when_lost, ..Kind::default() }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        (self.mode, self.ack, self.when_lost) == (other.mode, other.ack, other.when_lost)
    }
}

pub(super) async fn devices(separate_log: bool) -> Devices {
    let open = async |path: &str| loop {
        match FileDevice::open(path, &FileOptions::default()) {
            Ok(device) => return Swap::new(device),
            // What it had in hand before it was closed has not ended.
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    };
    let log = if separate_log { Some(open(LOG).await) } else { None };
    (open(DATA).await, log)
}

pub(super) fn shared(log: Option<Arc<Swap>>) -> Option<SharedDevice> {
    log.map(|log| log as SharedDevice)
}

/// Notices each moment at which both are one.
pub(super) async fn follow(world: Rc<World>, index: usize, mirror: Arc<Mirror>) {
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
