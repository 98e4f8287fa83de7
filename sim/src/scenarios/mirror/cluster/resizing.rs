//! Online growth of volumes, as the servers of the nodes do it.
//!
//! Invariant: the mirror and the replica of a node are replaced by larger ones while its hosts
//! continue, whichever node was asked to grow.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::{Mirror, PeerOptions};
use flagstone_runtime::sim::NodeId;
use flagstone_runtime::spawn_detached;

use super::super::link::NetworkHandle;
use super::nodes::{follow, shared};
use super::{Cluster, DATA, World};

impl Cluster {
    /// Enlarges devices, by less or more than the metadata, and asks one node to grow the volume.
    pub(crate) fn grow(&self, index: usize) {
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
        // Otherwise the node behaves as if it had forgotten the zeroed range.
        let clears = self.sim.chance(0.7);
        let resizing = self.resizing(index);
        self.sim.spawn_on(self.nodes[index], async move {
            let bytes = mirror.room_bytes().min(other.room_bytes());
            if clears && mirror.zero_new_space(bytes).await.is_err() {
                return;
            }
            if mirror.is_serving() && bytes > mirror.usable_bytes() {
                resizing.resize(&mirror, bytes).await;
            }
        });
    }

    /// Enlarges both devices by more than the metadata, without growing the volume.
    pub(crate) fn enlarge(&self) {
        for (node, sizes) in self.sizes.borrow_mut().iter_mut().enumerate() {
            let size = sizes.last().expect("as it was made") + 64 * 4096;
            self.sim.grow_disk(self.nodes[node], DATA, size);
            sizes.push(size);
        }
    }

    /// Task that makes a node follow its source's size.
    pub(super) fn resizing(&self, index: usize) -> Resizing {
        let node = self.nodes[index];
        let peer = self.peer_options(node, self.nodes[1 - index]);
        Resizing { world: self.world.clone(), network: self.network.clone(), node, index, peer }
    }
}

/// Resizes a node's replica, as its server does.
#[derive(Clone)]
pub(super) struct Resizing {
    world: Rc<World>,
    network: NetworkHandle,
    node: NodeId,
    index: usize,
    pub(super) peer: PeerOptions,
}

impl Resizing {
    async fn resize(&self, mirror: &Arc<Mirror>, bytes: u64) {
        let Some((data, log)) = self.world.devices.borrow()[self.index].clone() else { return };
        let Ok(begin_transfer) = mirror.begin_transfer().await else { return };
        self.network.network().stop(self.node);
        let data: SharedDevice = data;
        let resized = begin_transfer.resize(&data, shared(log), bytes).await;
        let Ok((replica, _)) = resized else { return };
        let peers = vec![self.peer.clone()];
        let next = Arc::new(Mirror::speaking(mirror.versions(), replica, peers));
        self.world.mirrors.borrow_mut()[self.index] = Some(next.clone());
        self.network.network().serve(self.node, next.clone());
        spawn_detached(follow(self.world.clone(), self.index, next.clone()));
        spawn_detached(self.clone().follow_source(next.clone()));
        let _ = begin_transfer.finish(&next).await;
    }

    pub(super) fn follow_source(self, mirror: Arc<Mirror>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            loop {
                let bytes = mirror.resize_requested().await;
                self.resize(&mirror, bytes).await;
            }
        })
    }
}
