//! Simulated arbiter: a store on a node of its own, with delays, lost answers, partitions, outages
//! and restored backups. A request is carried out even if its sender abandoned it or died.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::store::MemoryStore;
use flagstone_arbiter::{
    Arbiter, ArbiterFuture, ArbiterRecord, NoAnswer, ReplicaId, StoreId, Stored, Written,
};
use flagstone_mirror::{Fence, FenceError, FenceFuture};
use flagstone_runtime::sim::{NodeId, Simulation, World};
use flagstone_runtime::{CoreLocal, spawn_detached, time};

/// Longer than any caller waits.
const NEVER: Duration = Duration::from_secs(3600);

/// Longest run of a fencing command.
const FENCE_MAX: Duration = Duration::from_secs(2);

/// Loss of messages between a storage node and the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::scenarios) struct Cut {
    pub(in crate::scenarios) requests: bool,
    pub(in crate::scenarios) answers: bool,
    /// Drop only the answers to writes.
    pub(in crate::scenarios) written: bool,
}

pub(in crate::scenarios) struct Store {
    world: World,
    node: NodeId,
    memory: RefCell<MemoryStore>,
    /// Store of node 1, if there are two. Writes to one are copied to the other.
    second: RefCell<MemoryStore>,
    /// Delay of the copies between two stores; `None` for one store.
    copied_after: Cell<Option<Duration>>,
    /// True if the two stores are cut off from each other.
    pub(in crate::scenarios) is_split: Cell<bool>,
    /// Store in the configuration of each node.
    pub(in crate::scenarios) ids: [Cell<StoreId>; 2],
    backup: RefCell<MemoryStore>,
    pub(in crate::scenarios) down: Cell<bool>,
    /// By storage node: true if reads are answered and writes refused, because space is used up, or
    /// the user may only read.
    pub(in crate::scenarios) read_only: [Cell<bool>; 2],
    /// Longest delay of a message.
    pub(in crate::scenarios) slow: Cell<Duration>,
    /// Probability that an answer is lost, in percent.
    pub(in crate::scenarios) loses: Cell<u64>,
    pub(in crate::scenarios) cuts: [Cell<Cut>; 2],
    /// Additional delay of the next read; zero when it has begun.
    pub(in crate::scenarios) delays_read: Cell<Duration>,
    /// Probability that a fencing command fails, in percent; `None` without such commands.
    pub(in crate::scenarios) fence_fails: Cell<Option<u64>>,
    /// Number of successful commands of each node.
    pub(in crate::scenarios) fenced: [Cell<u64>; 2],
    /// Duration of a fencing command; `None` for up to [`FENCE_MAX`].
    pub(in crate::scenarios) fence_takes: Cell<Option<Duration>>,
    /// Number of commands that have not ended, including abandoned ones.
    pub(in crate::scenarios) fencing: Cell<u32>,
    /// True if a fencing command stops this node: see
    /// [`Cluster::stop_fenced`](super::cluster::Cluster).
    pub(in crate::scenarios) stops: [Cell<bool>; 2],
    /// True if a backup was restored, or the record was lost.
    pub(in crate::scenarios) was_restored: Cell<bool>,
}

impl Store {
    pub(in crate::scenarios) fn end_faults(&self) {
        self.down.set(false);
        self.read_only.iter().for_each(|is| is.set(false));
        self.slow.set(Duration::from_millis(2));
        self.loses.set(0);
        self.cuts.iter().for_each(|cut| cut.set(Cut::default()));
    }

    pub(in crate::scenarios) fn back_up(&self) {
        self.backup.replace(self.memory.borrow().clone());
    }

    pub(in crate::scenarios) fn record(&self, volume: ReplicaId) -> Option<ArbiterRecord> {
        let stored = self.memory.borrow().read(volume)?;
        Some(ArbiterRecord::decode(&stored.bytes).expect("written by this release"))
    }

    fn backed_up(&self, volume: ReplicaId) -> Option<ArbiterRecord> {
        let stored = self.backup.borrow().read(volume)?;
        Some(ArbiterRecord::decode(&stored.bytes).expect("written by this release"))
    }

    /// Restores the backup, unless it lists a replica as in sync that has been excluded since and
    /// does not know it. No node could detect that, so the guide forbids such a restore.
    pub(in crate::scenarios) fn restore(
        &self,
        volume: ReplicaId,
        seen: impl Fn(ReplicaId) -> u64,
    ) -> bool {
        let (Some(now), Some(old)) = (self.record(volume), self.backed_up(volume)) else {
            return false;
        };
        let is_noticed =
            |replica: &ReplicaId| now.is_in_sync(*replica) || seen(*replica) > old.revision;
        let may = old.in_sync.iter().all(is_noticed);
        if may {
            self.memory.borrow_mut().restore(&self.backup.borrow());
            self.was_restored.set(true);
        }
        may
    }

    pub(in crate::scenarios) fn lose_record(&self, volume: ReplicaId) {
        self.memory.borrow_mut().remove(volume);
        self.was_restored.set(true);
    }

    /// Gives each node a store of its own, if the copies have a delay; otherwise one store for
    /// both.
    #[cfg(test)]
    pub(in crate::scenarios) fn set_copied_after(&self, delay: Option<Duration>) {
        self.copied_after.set(delay);
        self.second.replace(self.memory.borrow().clone());
    }

    /// The store of a node.
    fn of_node(&self, index: usize) -> &RefCell<MemoryStore> {
        match (self.copied_after.get(), index) {
            (Some(_), 1) => &self.second,
            _ => &self.memory,
        }
    }

    /// Copies the writes of a node to the other store.
    async fn copy_from(&self, index: usize) {
        let Some(delay) = self.copied_after.get() else { return };
        let copied = self.of_node(index).borrow().clone();
        time::sleep(delay).await;
        if !self.is_split.get() && self.copied_after.get().is_some() {
            self.of_node(1 - index).borrow_mut().restore(&copied);
        }
    }

    fn delay(&self) -> Duration {
        self.world.random_span(Duration::from_micros(50), self.slow.get())
    }
}

/// Handle of the store, held by the mirrors.
#[derive(Clone)]
pub(in crate::scenarios) struct StoreHandle(Arc<CoreLocal<Store>>);

impl StoreHandle {
    pub(in crate::scenarios) fn new(sim: &Simulation) -> StoreHandle {
        let local = CoreLocal::new();
        local.get_or_init(|| Store {
            world: sim.world(),
            node: sim.add_node("arbiter"),
            memory: RefCell::default(),
            second: RefCell::default(),
            copied_after: Cell::default(),
            is_split: Cell::default(),
            ids: [Cell::new(StoreId(1)), Cell::new(StoreId(1))],
            backup: RefCell::default(),
            down: Cell::new(false),
            read_only: Default::default(),
            slow: Cell::new(Duration::from_millis(2)),
            loses: Cell::new(0),
            cuts: Default::default(),
            delays_read: Cell::default(),
            fence_fails: Cell::new(None),
            fenced: Default::default(),
            fence_takes: Cell::new(None),
            fencing: Cell::default(),
            stops: Default::default(),
            was_restored: Cell::new(false),
        });
        StoreHandle(Arc::new(local))
    }

    pub(in crate::scenarios) fn get(&self) -> Rc<Store> {
        self.0.get().expect("made on the only core")
    }
}

/// The store as one storage node reaches it.
pub(in crate::scenarios) struct Client {
    pub(in crate::scenarios) store: StoreHandle,
    pub(in crate::scenarios) index: usize,
}

impl Client {
    fn call<T: 'static>(
        &self,
        writes: bool,
        work: impl FnOnce(&mut MemoryStore) -> T + 'static,
    ) -> ArbiterFuture<T> {
        let (store, index) = (self.store.get(), self.index);
        Box::pin(async move {
            if !writes {
                time::sleep(store.delays_read.take()).await;
            }
            let cut = store.cuts[index].get();
            if cut.requests {
                time::sleep(NEVER).await;
            }
            let remote = store.clone();
            let carried_out = store.world.spawn_on(store.node, async move {
                time::sleep(remote.delay()).await;
                if remote.down.get() || (writes && remote.read_only[index].get()) {
                    return None;
                }
                let result = work(&mut remote.of_node(index).borrow_mut());
                if writes {
                    let copies = remote.clone();
                    spawn_detached(async move { copies.copy_from(index).await });
                }
                time::sleep(remote.delay()).await;
                Some(result)
            });
            let result = carried_out.await.ok().flatten();
            let cut = store.cuts[index].get();
            let is_lost = store.world.random_between(1, 100) <= store.loses.get();
            if cut.answers || (writes && cut.written) || is_lost {
                time::sleep(NEVER).await;
            }
            result.ok_or_else(|| NoAnswer("connection refused".to_owned()))
        })
    }
}

impl Arbiter for Client {
    fn store(&self) -> StoreId {
        self.store.get().ids[self.index].get()
    }

    fn read(&self, volume: ReplicaId) -> ArbiterFuture<Option<Stored>> {
        self.call(false, move |memory| memory.read(volume))
    }

    fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> ArbiterFuture<Written> {
        self.call(true, move |memory| memory.write(volume, expected.as_ref(), bytes))
    }

    fn probe_write(&self, _: ReplicaId, _: Vec<u8>) -> ArbiterFuture<()> {
        self.call(true, |_| ())
    }
}

/// Command of a storage node that stops the other one. It continues after it is abandoned, like a
/// request that has reached the cloud's API.
pub(in crate::scenarios) struct Fencer {
    pub(in crate::scenarios) store: StoreHandle,
    pub(in crate::scenarios) index: usize,
}

impl Fence for Fencer {
    fn fence(&self) -> FenceFuture {
        let (store, index) = (self.store.get(), self.index);
        store.fencing.set(store.fencing.get() + 1);
        let command = store.world.spawn_on(store.node, {
            let store = store.clone();
            async move {
                let drawn = store.world.random_span(Duration::from_millis(1), FENCE_MAX);
                time::sleep(store.fence_takes.get().unwrap_or(drawn)).await;
                let fails = store.fence_fails.get().unwrap_or(0);
                if store.world.random_between(1, 100) <= fails {
                    store.fencing.set(store.fencing.get() - 1);
                    return Err(FenceError("it ended with status 1".to_owned()));
                }
                let stops = &store.stops[1 - index];
                stops.set(true);
                while stops.get() {
                    time::sleep(Duration::from_millis(1)).await;
                }
                store.fenced[index].set(store.fenced[index].get() + 1);
                store.fencing.set(store.fencing.get() - 1);
                Ok(())
            }
        });
        Box::pin(async move { command.await.expect("the store's node does not fail") })
    }
}
