//! Clients that ask and do not read, or announce data and do not send it, beside a good client, in
//! simulated time.
//!
//! Left out: the kernel's socket buffers beyond a few KiB for each stalled client, the speed of the
//! disk, and clients that share the good client's network.

mod common;

use std::time::Duration;

use common::memory;
use common::peer::{Agreed, Peer, request};
use flagstone_blockdev::BlockDevice;
use flagstone_nbd::wire::request::command;
use flagstone_nbd::{ClientOptions, Drain, Export, Exports, NbdDevice, NbdServer, ServerOptions};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{LinkConfig, NodeId, SimConfig, SimLatency, Simulation};
use flagstone_runtime::{buf, spawn, time};
use parking_lot::Mutex;
use std::sync::Arc;

/// The memory limit is process-wide.
static ALONE: Mutex<()> = Mutex::new(());

const LEN: usize = 64 << 10;
const DEPTH: u64 = 4;
const ROUNDS: u64 = 250;
const MAX_CONNECTIONS: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Stalled {
    /// Asks for 8 × 32 MiB and reads nothing. With structured replies, or without.
    Reader(bool),
    /// Announces 32 MiB and sends 64 KiB.
    Writer,
}

/// Stays connected until the test ends.
async fn stall(address: Address, kind: Stalled) {
    let agreed = Agreed { structured: !matches!(kind, Stalled::Reader(false)), sized: true };
    let peer = Peer::begun(&address, agreed).await;
    let bytes: Vec<u8> = match kind {
        Stalled::Reader(_) => {
            (0..8).flat_map(|n| request(command::READ, 0, n, 0, 32 << 20)).collect()
        }
        Stalled::Writer => {
            let mut bytes = request(command::WRITE, 0, 1, 0, 32 << 20);
            bytes.resize(bytes.len() + LEN, 7);
            bytes
        }
    };
    for part in bytes.chunks(4096) {
        peer.send(part).await;
    }
    time::sleep(Duration::from_secs(3600)).await;
}

/// Latency of reads and writes of 64 KiB, four at a time.
#[derive(Clone, Copy, Debug)]
struct Latency {
    p99: Duration,
    longest: Duration,
}

async fn measure(device: &Arc<NbdDevice>) -> Latency {
    let tasks: Vec<_> = (0..DEPTH)
        .map(|task| {
            let device = device.clone();
            spawn(async move {
                let mut all = Vec::new();
                for round in 0..ROUNDS {
                    let offset = (task * ROUNDS + round) % 512 * LEN as u64;
                    // The client shares the memory of the server in this test.
                    let begun = time::now();
                    let place = buf::alloc(LEN).await;
                    if round % 2 == 0 {
                        drop(device.read(offset, place).await.unwrap());
                    } else {
                        device.write(offset, place.freeze(), false).await.unwrap();
                    }
                    all.push(begun.elapsed());
                }
                all
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    Latency { p99: all[all.len() * 99 / 100], longest: all[all.len() - 1] }
}

struct Cluster {
    sim: Simulation,
    good: NodeId,
    stalled: NodeId,
    address: Address,
}

impl Cluster {
    fn new(buffer_memory: usize) -> Cluster {
        buf::set_memory_limit(buffer_memory);
        let mut config = SimConfig::default();
        config.network.latency = SimLatency::between_us(30, 60);
        let sim = Simulation::new(1, config);
        let (server, good) = (sim.add_node("server"), sim.add_node("good"));
        let stalled = sim.add_node("stalled");
        let small = LinkConfig {
            send_buffer_bytes: 16 << 10,
            receive_buffer_bytes: 16 << 10,
            ..LinkConfig::network()
        };
        sim.set_link(server, stalled, small);
        let address = Address::Tcp((sim.ip(server), 10809).into());
        let listens = address.clone();
        drop(sim.spawn_on(server, async move {
            let exports = [Export::new("disk", memory(64 << 20, 512))];
            let options =
                ServerOptions { max_connections: MAX_CONNECTIONS, ..ServerOptions::default() };
            let exports = Arc::new(Exports::new(exports).unwrap());
            let server = NbdServer::new(exports, options, Drain::new());
            server.run(Listener::bind(&listens).unwrap()).await;
        }));
        Cluster { sim, good, stalled, address }
    }

    fn stall(&self, count: usize, kind: Stalled) {
        // One address may have only half of the connections in negotiation.
        for batch in (0..count).collect::<Vec<_>>().chunks(MAX_CONNECTIONS / 4) {
            for _ in batch {
                drop(self.sim.spawn_on(self.stalled, stall(self.address.clone(), kind)));
            }
            self.sim.run_for(Duration::from_millis(500));
        }
    }

    /// Quiet latency of a good client, and its latency beside stalled clients.
    fn compare(&self, count: usize, kind: Stalled) -> (Latency, Latency) {
        let address = self.address.clone();
        let connect = self.sim.spawn_on(self.good, async move {
            NbdDevice::connect(address, "disk", ClientOptions::default()).await.unwrap()
        });
        let device = self.sim.block_on(connect).unwrap();
        let run = |device: Arc<NbdDevice>| {
            self.sim.block_on(self.sim.spawn_on(self.good, async move { measure(&device).await }))
        };
        let quiet = run(device.clone()).unwrap();
        self.stall(count, kind);
        (quiet, run(device).unwrap())
    }
}

fn good_client_is_served(buffer_memory: usize, count: usize, kind: Stalled) {
    let _alone = ALONE.lock();
    let (quiet, beside) = Cluster::new(buffer_memory).compare(count, kind);
    let fits = beside.p99 <= quiet.p99 * 3 && beside.longest <= quiet.longest * 3;
    assert!(fits, "{kind:?} × {count}, {buffer_memory}: {beside:?} instead of {quiet:?}");
}

fn with_each_count(kind: Stalled) {
    for buffer_memory in [64 << 20, 256 << 20] {
        for count in [2, 9, 100, MAX_CONNECTIONS - 1] {
            good_client_is_served(buffer_memory, count, kind);
        }
    }
}

#[test]
fn unread_replies_do_not_delay_other_clients() {
    with_each_count(Stalled::Reader(true));
}

#[test]
fn unread_simple_replies_do_not_delay_others() {
    with_each_count(Stalled::Reader(false));
}

#[test]
fn unfinished_writes_do_not_delay_other_clients() {
    with_each_count(Stalled::Writer);
}

/// A client that connects when all others have stalled is served within seconds.
#[test]
fn late_client_is_served_beside_stalled_ones() {
    let _alone = ALONE.lock();
    for kind in [Stalled::Reader(true), Stalled::Reader(false), Stalled::Writer] {
        let cluster = Cluster::new(64 << 20);
        cluster.stall(MAX_CONNECTIONS - 1, kind);
        let address = cluster.address.clone();
        let task = cluster.sim.spawn_on(cluster.good, async move {
            let begun = time::now();
            let device =
                NbdDevice::connect(address, "disk", ClientOptions::default()).await.unwrap();
            measure(&device).await;
            begun.elapsed()
        });
        let took = cluster.sim.block_on(task).unwrap();
        assert!(took < Duration::from_secs(5), "{kind:?}: {took:?}");
    }
}

/// No client waits for memory, so a client may take all of the time that the server allows.
#[test]
fn stalled_client_is_kept_without_waiters() {
    let _alone = ALONE.lock();
    let cluster = Cluster::new(64 << 20);
    let address = cluster.address.clone();
    let slow = cluster.sim.spawn_on(cluster.stalled, async move {
        let peer = Peer::begun(&address, Agreed { structured: false, sized: true }).await;
        peer.send(&request(command::READ, 0, 1, 0, 8 << 20)).await;
        time::sleep(Duration::from_secs(25)).await;
        peer.reply(8 << 20).await.unwrap().error
    });
    assert_eq!(cluster.sim.block_on(slow).unwrap(), 0);
}
