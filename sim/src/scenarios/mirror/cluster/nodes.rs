//! Node processes: start, stop and restart, each with its mirror and its hosts.
//!
//! Invariants:
//! - The lines are updated before and after a node stops, so that no change is missed.
//! - The hosts of a node load it whenever it serves, until the run ends.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, ReopenableDevice, SharedDevice};
use flagstone_mirror::manage::replica::Replica;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::{Mirror, PeerOptions};
use flagstone_runtime::sim::NodeId;
use flagstone_runtime::{spawn_detached, time};

use super::super::{Kind, releases};
use super::{Cluster, DATA, Devices, World};
use crate::load::{LoadOptions, run as load};

impl Cluster {
    /// Starts a node's mirror and its hosts.
    pub(crate) fn start(&self, index: usize) {
        self.bring_up(index, false);
    }

    /// Closes and reopens the failed device of a replica that does not serve, as the node's server
    /// does. Returns true when it did.
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
            // The server ends before it reopens the device, and its successor does not know of the
            // failure.
            self.end(index, false);
            self.restart_same_release(index);
            return true;
        }
        let (node, network) = (self.nodes[index], self.network.clone());
        let abandoned = self.sim.spawn_on(node, async move {
            let abandoned = mirror.abandon_target().await;
            if abandoned {
                network.network().stop(node);
                data.close();
                log.iter().for_each(|log| log.close());
            }
            abandoned
        });
        if !self.sim.block_on(abandoned).expect("the task is not aborted") {
            return false;
        }
        self.reconcile();
        self.notice_adoption(index);
        self.world.adopting[index].set(None);
        self.record_failed_flushes(index);
        self.watch();
        self.world.mirrors.borrow_mut()[index] = None;
        self.world.devices.borrow_mut()[index] = None;
        self.bring_up(index, true);
        true
    }

    pub(super) fn peer_options(&self, node: NodeId, other: NodeId) -> PeerOptions {
        let mut peer = PeerOptions::new(self.network.peer(node, other));
        (peer.mode, peer.ack, peer.on_peer_loss) =
            (self.kind.mode, self.kind.ack, self.kind.on_peer_loss);
        peer.compare = self.compare;
        peer
    }

    fn bring_up(&self, index: usize, unverified: bool) {
        let (node, resizing) = (self.nodes[index], self.resizing(index));
        let (world, network) = (self.world.clone(), self.network.clone());
        let (log_path, depth) = (self.log_path(index), self.depth);
        let moves = self.kind.moves;
        let (pause_ms, faults) = (self.pause_ms, self.kind.faults);
        let versions = self.releases[index].get();
        self.sim.spawn_on(node, async move {
            let local = loop {
                let (data, log) = devices(log_path).await;
                world.devices.borrow_mut()[index] = Some((data.clone(), log.clone()));
                let opened = match Replica::open(data, shared(log)).await {
                    Ok(local) if unverified => {
                        local.mark_unverified().await.is_ok().then_some(local)
                    }
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
            assert!(!moves || local.log_lost().is_none(), "a moved log is lost");
            tracing::info!(node = index, %replica, lost = ?local.log_lost(), "the node is up");
            let peers = vec![resizing.peer.clone()];
            let mirror = Arc::new(Mirror::speaking(versions, local, peers));
            world.mirrors.borrow_mut()[index] = Some(mirror.clone());
            network.network().serve(node, mirror.clone());
            spawn_detached(follow(world.clone(), index, mirror.clone()));
            spawn_detached(resizing.follow_source(mirror.clone()));
            while mirror.start().await.is_err() {
                time::sleep(Duration::from_millis(100)).await;
            }
            let options = LoadOptions {
                stop: world.stop.clone(),
                max_bytes: 32 << 10,
                medium_errors: faults,
                // Idle time costs the simulation nothing.
                pause: Duration::from_millis(pause_ms),
                ..LoadOptions::new(depth)
            };
            hosts(world, index, mirror, options).await;
        });
    }

    /// Stops the node's process.
    pub(crate) fn end(&self, index: usize, power: bool) {
        let node = self.nodes[index];
        if !self.sim.is_up(node) {
            return;
        }
        self.reconcile();
        self.notice_adoption(index);
        self.world.adopting[index].set(None);
        self.record_failed_flushes(index);
        if power {
            let whole = self.is_whole_target(index);
            if self.volatile && !whole {
                self.world.lost_power[index].set(true);
            }
            self.sim.power_off(node);
        } else {
            self.sim.crash(node);
        }
        self.watch();
        self.network().stop(node);
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
            self.restart_same_release(index);
        }
    }

    /// Restarts the node with its current release.
    pub(crate) fn restart_same_release(&self, index: usize) {
        if !self.sim.is_up(self.nodes[index]) {
            self.sim.restart(self.nodes[index]);
            self.start(index);
        }
    }

    /// Upgrades or downgrades a node when the two releases have no link version in common.
    /// Otherwise the mirror could not become in sync.
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
            && self.kind == Kind { on_peer_loss: self.kind.on_peer_loss, ..Kind::default() }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        (self.mode, self.ack, self.on_peer_loss) == (other.mode, other.ack, other.on_peer_loss)
    }
}

pub(super) async fn devices(log_path: Option<&str>) -> Devices {
    let open = async |path: &str| loop {
        match FileDevice::open(path, &FileOptions::default()) {
            Ok(device) => return ReopenableDevice::new(device),
            // Work that began before the close is still in flight.
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    };
    let log = match log_path {
        Some(path) => Some(open(path).await),
        None => None,
    };
    (open(DATA).await, log)
}

pub(super) fn shared(log: Option<Arc<ReopenableDevice>>) -> Option<SharedDevice> {
    log.map(|log| log as SharedDevice)
}

/// Records each moment at which the two lines become one.
pub(super) async fn follow(world: Rc<World>, index: usize, mirror: Arc<Mirror>) {
    let mut state = MirrorState::Disconnected;
    loop {
        state = mirror.state_changed(0, state).await;
        world.reconcile(index);
    }
}

/// Hosts of one node: load it whenever it serves, until the node dies.
async fn hosts(world: Rc<World>, index: usize, mirror: Arc<Mirror>, options: LoadOptions) {
    let mut active = false;
    loop {
        if !active {
            active = mirror.serving_changed(false).await;
            continue;
        }
        let model = world.lines.borrow()[index].model.clone();
        if world.lost_power[index].replace(false) {
            model.power_lost();
        }
        let device: SharedDevice = Arc::new((*mirror).clone());
        // From here on, writes that an earlier source left in a volatile cache count.
        if device.flush().await.is_ok() && !world.stop.get() {
            world.loading[index].set(true);
            load(device, model, options.clone()).await;
            world.loading[index].set(false);
        }
        if world.stop.get() {
            return;
        }
        time::sleep(Duration::from_millis(1)).await;
        active = mirror.is_serving();
    }
}
