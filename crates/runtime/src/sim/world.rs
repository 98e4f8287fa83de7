//! Control of a simulated world by a test: nodes, disks, network, time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::config::{DiskConfig, DiskFaults, LinkConfig, SimConfig, SimLatency, nanos};
use super::connect::ip_of;
use super::disk::DiskStats;
use super::driver::SimDriver;
use super::state::{Node, Power, State};
use crate::executor::{Executor, Shared};
use crate::task::{self, JoinHandle};
use crate::time::Instant;

/// A node of a simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(u32);

/// The node of the observer, the future that [`Simulation::block_on`] runs. It cannot fail.
pub const OBSERVER: NodeId = NodeId(0);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Owner of a simulated world, which it runs. Dropping it drops every task.
///
/// It derefs to [`World`].
pub struct Simulation {
    world: World,
    running: Cell<bool>,
}

impl Simulation {
    /// A world without nodes. Its whole history follows from `seed` and the calls made on it.
    ///
    /// # Panics
    /// If the process has no descriptor left.
    pub fn new(seed: u64, config: SimConfig) -> Simulation {
        // Handles left by a failed simulation of this thread must not reach this one.
        drop(crate::handle::take_dropped());
        let shared = Shared::new().expect("a simulation needs one descriptor");
        let state = Rc::new(RefCell::new(State::new(seed, config)));
        let driver = SimDriver { state: state.clone(), shared: shared.clone() };
        let executor = Executor::new(0, shared, Box::new(driver));
        Simulation { world: World { executor, state }, running: Cell::new(false) }
    }

    /// A handle of the world that tasks may keep.
    pub fn world(&self) -> World {
        self.world.clone()
    }

    /// Runs `main` as the observer until it returns. The tasks of all nodes run concurrently, and
    /// stay for the next call.
    ///
    /// # Panics
    /// If no event can occur and `main` has not returned (deadlock), or at the time limit; the
    /// message lists the operations in flight. Also if a task panics.
    pub fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        assert!(!self.running.replace(true), "block_on within block_on");
        let _entered = self.world.executor.enter();
        let mut quiet_turns = 0;
        let executor = &self.world.executor;
        let result = executor.as_node(0, || {
            crate::runtime::drive_to_end(executor, main, || {
                quiet_turns = if self.world.is_quiet() { quiet_turns + 1 } else { 0 };
                // Two more turns: values dropped in the last one may cause more events.
                assert!(quiet_turns < 3, "deadlock: nothing can happen\n{}", self.world.report());
                let in_time = !self.world.is_late();
                assert!(in_time, "the time limit is reached\n{}", self.world.report());
            })
        });
        self.running.set(false);
        result
    }

    /// Lets the nodes run for a span of simulated time.
    pub fn run_for(&self, span: Duration) {
        self.block_on(async move { crate::time::sleep(span).await });
    }

    /// Lets the nodes run until `done`, which is checked after each `step`.
    pub fn run_until(&self, step: Duration, mut done: impl FnMut() -> bool) {
        self.block_on(async move {
            while !done() {
                crate::time::sleep(step).await;
            }
        });
    }
}

impl Deref for Simulation {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let executor = &self.world.executor;
        let _entered = executor.enter();
        self.world.state.borrow_mut().close_world();
        // A second panic during unwinding would hide the first.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| executor.shut_down()));
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Handle of a simulated world: adds nodes and disks, and injects faults.
#[derive(Clone)]
pub struct World {
    executor: Rc<Executor>,
    state: Rc<RefCell<State>>,
}

/// Nodes.
impl World {
    /// Adds a running node.
    pub fn add_node(&self, name: &str) -> NodeId {
        let mut state = self.state.borrow_mut();
        state.nodes.push(Node { name: name.to_owned(), power: Power::Up });
        NodeId(state.nodes.len() as u32 - 1)
    }

    /// The address of a node: 10.0.0.1 for the first, and so on.
    pub fn ip(&self, node: NodeId) -> IpAddr {
        IpAddr::V4(ip_of(node.0))
    }

    /// Starts a task on a node.
    ///
    /// # Panics
    /// If the node does not run.
    pub fn spawn_on<T: 'static>(
        &self,
        node: NodeId,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        assert!(self.is_up(node), "{node} does not run: restart it first");
        let _entered = self.executor.enter();
        self.executor.as_node(node.0, || task::spawn(future))
    }

    /// True while the process of the node runs.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.state.borrow().nodes[node.0 as usize].power == Power::Up
    }

    /// Kills the process of a node (kill -9). Its tasks are dropped, its sockets end or reset, its
    /// locks are released. Completed writes stay; of writes in flight, any part may be on the disk.
    /// Connections to it are refused. A node that does not run is left as it is.
    ///
    /// # Panics
    /// If a task of that node calls it, or the node is the observer.
    pub fn crash(&self, node: NodeId) {
        self.stop(node, Power::Killed);
    }

    /// Cuts the power of a node. Like [`World::crash`], but each disk keeps any subset of its
    /// unflushed writes, and peers get no notice: their connections hang until they time out, or
    /// are reset after the restart of the node. A killed node may lose its power too.
    ///
    /// # Panics
    /// Like [`World::crash`].
    pub fn power_off(&self, node: NodeId) {
        self.stop(node, Power::Off);
    }

    fn stop(&self, node: NodeId, power: Power) {
        assert!(node != OBSERVER, "the observer does not fail");
        assert!(self.executor.node() != node.0, "a node cannot stop itself: ask the observer");
        let was = {
            let mut state = self.state.borrow_mut();
            let was = std::mem::replace(&mut state.nodes[node.0 as usize].power, power);
            if was == Power::Off || (was == power) {
                state.nodes[node.0 as usize].power = was;
                return;
            }
            let what = if power == Power::Off { "power off" } else { "crash" };
            state.note(node.0, what, [0, 0]);
            was
        };
        self.executor.resume(node.0);
        if was == Power::Up {
            // Requests of the tasks' destructors are refused, because the node does not run.
            let _entered = self.executor.enter();
            // Work that the node sent to its own core becomes tasks first, and is dropped with the
            // others; their destructors may send more.
            loop {
                self.executor.take_remote_work();
                self.executor.abort_node(node.0);
                if !self.executor.shared.has_remote_work() {
                    break;
                }
            }
        }
        let mut state = self.state.borrow_mut();
        let in_flight = state.end_operations_of(node.0);
        state.drop_handles_of(node.0, power == Power::Off);
        state.settle_disks(node.0, in_flight, power == Power::Off);
        state.probe_all();
    }

    /// Pauses the process of a node (SIGSTOP): its tasks do not run. Its kernel continues:
    /// operations in flight complete, connections are accepted, and received data is acknowledged.
    ///
    /// # Panics
    /// If the node is the observer.
    pub fn pause(&self, node: NodeId) {
        assert!(node != OBSERVER, "the observer does not fail");
        if self.is_up(node) {
            self.state.borrow_mut().note(node.0, "pause", [0, 0]);
            self.executor.pause(node.0);
        }
    }

    /// Continues a paused process (SIGCONT). A node that is not paused is left as it is.
    pub fn resume(&self, node: NodeId) {
        if self.executor.resume(node.0) {
            self.state.borrow_mut().note(node.0, "resume", [0, 0]);
        }
    }

    /// Starts a stopped node: its disks keep their content, and it has no tasks.
    ///
    /// # Panics
    /// If it already runs.
    pub fn restart(&self, node: NodeId) {
        let mut state = self.state.borrow_mut();
        let own = &mut state.nodes[node.0 as usize];
        assert!(own.power != Power::Up, "{node} runs");
        own.power = Power::Up;
        state.note(node.0, "restart", [0, 0]);
        state.retry_blocked();
        state.probe_all();
    }
}

/// Disks.
impl World {
    /// Gives a node a disk or file at `path`, empty.
    ///
    /// # Panics
    /// If the node already has one at `path`.
    pub fn add_disk(&self, node: NodeId, path: impl AsRef<Path>, config: DiskConfig) {
        let mut state = self.state.borrow_mut();
        let path = path.as_ref();
        assert!(state.disk_at(node.0, path).is_none(), "{} exists", path.display());
        state.add_disk(node.0, path, config);
    }

    fn with_disk<T>(
        &self,
        node: NodeId,
        path: impl AsRef<Path>,
        work: impl FnOnce(&mut super::disk::Disk) -> T,
    ) -> T {
        let mut state = self.state.borrow_mut();
        let path = path.as_ref();
        let disk = state.disk_at(node.0, path);
        let disk = disk.unwrap_or_else(|| panic!("{node} has no disk {}", path.display()));
        work(&mut state.disks[disk])
    }

    /// Enlarges a disk or file, without passing time: the new part reads as zeroes. It never
    /// shrinks.
    ///
    /// # Panics
    /// If the node has none at `path`.
    pub fn grow_disk(&self, node: NodeId, path: impl AsRef<Path>, size_bytes: u64) {
        self.with_disk(node, path, |disk| disk.grow(size_bytes));
    }

    /// Shrinks a disk to `size_bytes`.
    pub fn shrink_disk(&self, node: NodeId, path: impl AsRef<Path>, size_bytes: u64) {
        self.with_disk(node, path, |disk| disk.shrink(size_bytes));
    }

    /// Sets the faults of a disk from now on.
    pub fn set_faults(&self, node: NodeId, path: impl AsRef<Path>, faults: DiskFaults) {
        self.with_disk(node, path, |disk| disk.faults = faults);
    }

    /// Limits the content of a disk to this many bytes of 4 KiB blocks from now on.
    pub fn set_space(&self, node: NodeId, path: impl AsRef<Path>, space_bytes: u64) {
        self.with_disk(node, path, |disk| disk.config.space_bytes = space_bytes);
    }

    /// Sets the latency of later reads of a disk.
    pub fn set_read_latency(&self, node: NodeId, path: impl AsRef<Path>, latency: SimLatency) {
        self.with_disk(node, path, |disk| disk.config.read_latency = latency);
    }

    /// Sets the latency of later writes to a disk.
    pub fn set_write_latency(&self, node: NodeId, path: impl AsRef<Path>, latency: SimLatency) {
        self.with_disk(node, path, |disk| disk.config.write_latency = latency);
    }

    /// Stalls a disk: no operation on it completes for this long.
    pub fn stall(&self, node: NodeId, path: impl AsRef<Path>, span: Duration) {
        let until = self.now().as_nanos().saturating_add(nanos(span));
        self.with_disk(node, path, |disk| disk.stalled_until = disk.stalled_until.max(until));
    }

    /// The content that reads of a disk would return, without passing time.
    pub fn peek(&self, node: NodeId, path: impl AsRef<Path>, offset: u64, len: usize) -> Vec<u8> {
        self.with_disk(node, path, |disk| {
            let mut bytes = vec![0; len];
            disk.read(offset, &mut bytes);
            bytes
        })
    }

    /// First of the first `len` bytes in which the disks of two nodes at `path` differ.
    ///
    /// # Panics
    /// If a node has no disk at `path`.
    pub fn first_difference(
        &self,
        nodes: [NodeId; 2],
        path: impl AsRef<Path>,
        len: u64,
    ) -> Option<u64> {
        let state = self.state.borrow();
        let disks = nodes.map(|node| {
            let disk = state.disk_at(node.0, path.as_ref());
            &state.disks[disk.unwrap_or_else(|| panic!("{node} has no such disk"))]
        });
        disks[0].first_difference(disks[1], len)
    }

    /// Number that changes with the content of a disk.
    pub fn disk_version(&self, node: NodeId, path: impl AsRef<Path>) -> u64 {
        self.with_disk(node, path, |disk| disk.version())
    }

    /// Changes the medium of a disk, bypassing the node: bit rot, or a disk that returned empty.
    /// Unflushed content becomes durable.
    pub fn poke(&self, node: NodeId, path: impl AsRef<Path>, offset: u64, data: &[u8]) {
        self.with_disk(node, path, |disk| disk.overwrite(offset, data));
    }

    /// Counters of a disk.
    pub fn disk_stats(&self, node: NodeId, path: impl AsRef<Path>) -> DiskStats {
        self.with_disk(node, path, |disk| disk.statistics())
    }
}

/// The network.
impl World {
    /// Changes the link from `from` to `to`, for data sent from now on.
    pub fn set_link(&self, from: NodeId, to: NodeId, link: LinkConfig) {
        self.state.borrow_mut().links.insert((from.0, to.0), link);
    }

    /// Cuts both directions between two nodes. Connections hang, and continue if it heals in time.
    pub fn partition(&self, a: NodeId, b: NodeId) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Cuts the direction from `from` to `to`, including acknowledgements.
    pub fn partition_one_way(&self, from: NodeId, to: NodeId) {
        let mut state = self.state.borrow_mut();
        state.note(from.0, "partition", [u64::from(to.0), 0]);
        state.blocked.insert((from.0, to.0));
        state.probe_all();
    }

    /// Cuts a node off from all others.
    pub fn isolate(&self, node: NodeId) {
        let count = self.state.borrow().nodes.len() as u32;
        (0..count).filter(|other| *other != node.0).for_each(|other| {
            self.partition(node, NodeId(other));
        });
    }

    /// Heals both directions between two nodes.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        let mut state = self.state.borrow_mut();
        state.note(a.0, "heal", [u64::from(b.0), 0]);
        state.blocked.remove(&(a.0, b.0));
        state.blocked.remove(&(b.0, a.0));
        state.retry_blocked();
        state.probe_all();
    }

    /// Heals the whole network.
    pub fn heal_all(&self) {
        let mut state = self.state.borrow_mut();
        state.note(0, "heal all", [0, 0]);
        state.blocked.clear();
        state.retry_blocked();
        state.probe_all();
    }

    /// Resets every connection between two nodes, as a middlebox might.
    pub fn reset_connections(&self, a: NodeId, b: NodeId) {
        let mut state = self.state.borrow_mut();
        state.note(a.0, "reset", [u64::from(b.0), 0]);
        state.reset_between(a.0, b.0);
    }
}

/// Time, chance and history.
impl World {
    /// Simulated time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.state.borrow().now)
    }

    /// Sets the wall clock of all nodes, as a span since the Unix epoch. Timers are not affected.
    pub fn set_wall_clock(&self, since_epoch: Duration) {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        state.note(0, "wall clock", [nanos(since_epoch), 0]);
        state.wall_clock_start = nanos(since_epoch).saturating_sub(now);
    }

    /// A number in `low..=high`, from the seed.
    pub fn random_between(&self, low: u64, high: u64) -> u64 {
        self.state.borrow_mut().rng.between(low, high)
    }

    /// A span in `low..=high`, from the seed.
    pub fn random_span(&self, low: Duration, high: Duration) -> Duration {
        Duration::from_nanos(self.random_between(nanos(low), nanos(high)))
    }

    /// True with this probability, from the seed.
    pub fn chance(&self, probability: f64) -> bool {
        self.state.borrow_mut().rng.chance(probability)
    }

    /// A hash of all events so far: equal for equal histories.
    pub fn history_hash(&self) -> u64 {
        self.state.borrow().trace.hash
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.state.borrow().trace.count
    }

    /// Tasks alive on all nodes, and operations in flight: for leak tests.
    pub fn alive(&self) -> (usize, usize) {
        (self.executor.tasks(), self.executor.ops.borrow().len())
    }

    /// Connections that exist, half-open ones included: for leak tests.
    pub fn connections(&self) -> usize {
        self.state.borrow().conns.len()
    }

    /// Description of the world: time, nodes, operations in flight, and the latest events.
    pub fn report(&self) -> String {
        let state = self.state.borrow();
        let mut text = format!("simulated time {:.6} s\n", state.now as f64 / 1e9);
        for (node, own) in state.nodes.iter().enumerate() {
            let tasks = self.executor.tasks_of(node as u32);
            text += &format!("{} (node {node}): {:?}, {tasks} tasks\n", own.name, own.power);
        }
        text += "connections:\n";
        for line in state.connections_in_words() {
            text += &format!("  {line}\n");
        }
        text += "in flight:\n";
        for line in state.pending_in_words() {
            text += &format!("  {line}\n");
        }
        text + &format!("latest events:\n{}", state.trace)
    }

    fn is_quiet(&self) -> bool {
        self.executor.is_idle()
            && self.executor.next_timer().is_none()
            && !self.executor.shared.has_remote_work()
            && self.state.borrow().is_quiet()
    }

    fn is_late(&self) -> bool {
        let state = self.state.borrow();
        state.now > nanos(state.config.time_limit)
    }
}
