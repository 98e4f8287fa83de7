//! Servers that crash, lose power, restart or hang, in simulated time.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::until;
use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, IoError};
use flagstone_conformance::crash::{BLOCK_BYTES, BLOCKS, CrashLedger, read, write};
use flagstone_nbd::{ClientOptions, Drain, Export, Exports, NbdDevice, NbdServer, ServerOptions};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};
use flagstone_runtime::{random_u64, spawn, time};

const DISK: &str = "/dev/disk";
/// Seeds per test; each takes milliseconds.
const SEEDS: u64 = 100;

/// Server on one node, and another node for clients.
struct World {
    sim: Simulation,
    server: NodeId,
    client: NodeId,
    address: Address,
}

impl World {
    fn new(seed: u64) -> World {
        let sim = Simulation::new(seed, SimConfig::default());
        let (server, client) = (sim.add_node("server"), sim.add_node("client"));
        sim.add_disk(server, DISK, DiskConfig::block_device(BLOCKS * BLOCK_BYTES));
        let address = Address::Tcp((sim.ip(server), 10809).into());
        let world = World { sim, server, client, address };
        world.serve();
        world
    }

    fn serve(&self) {
        let address = self.address.clone();
        drop(self.sim.spawn_on(self.server, async move {
            let options = FileOptions { block_bytes: Some(512), ..FileOptions::default() };
            let device = FileDevice::open(DISK, &options).unwrap();
            let exports = Arc::new(Exports::new([Export::new("disk", device)]).unwrap());
            let server = NbdServer::new(exports, ServerOptions::default(), Drain::new());
            server.run(Listener::bind(&address).unwrap()).await;
        }));
    }

    fn restart(&self) {
        self.sim.restart(self.server);
        self.serve();
    }

    /// Runs a client on its node to its end, concurrently with the server's faults.
    fn client<T: 'static>(
        &self,
        options: ClientOptions,
        work: impl AsyncFnOnce(Arc<NbdDevice>) -> T + 'static,
        fate: impl AsyncFnOnce(&World),
    ) -> T {
        let address = self.address.clone();
        let task = self.sim.spawn_on(self.client, async move {
            let device = loop {
                match NbdDevice::connect(address.clone(), "disk", options).await {
                    Ok(device) => break device,
                    Err(_) => time::sleep(Duration::from_millis(1)).await,
                }
            };
            work(device).await
        });
        self.sim.block_on(async {
            fate(self).await;
            task.await.unwrap()
        })
    }
}

/// Crashes the server repeatedly, half of the time with power loss, until `done`.
async fn crashes(world: &World, done: impl Fn() -> bool) {
    while !done() {
        time::sleep(world.sim.random_span(Duration::ZERO, Duration::from_millis(30))).await;
        if world.sim.chance(0.5) {
            world.sim.crash(world.server);
        } else {
            world.sim.power_off(world.server);
        }
        time::sleep(world.sim.random_span(Duration::ZERO, Duration::from_millis(300))).await;
        world.restart();
        time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn calls_survive_server_crashes() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        let work = async move |device: Arc<NbdDevice>| {
            let mut tasks = Vec::new();
            for task in 0..8_u64 {
                let device = device.clone();
                tasks.push(spawn(async move {
                    for step in 0..40_u64 {
                        let block = task * 8 + random_u64() % 8;
                        // Only durable writes: nothing answered can be lost.
                        write(&device, block, step as u8 + 1, true).await.unwrap();
                        assert_eq!(read(&device, block).await, Ok(step as u8 + 1), "seed {seed}");
                        if step % 10 == 0 {
                            device.flush().await.unwrap();
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            flag.set(true);
        };
        world.client(ClientOptions::default(), work, async |world| {
            crashes(world, || done.get()).await;
        });
    }
}

#[test]
fn flushed_writes_survive_crashes() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let (ledger, failed) = (CrashLedger::default(), Rc::new(Cell::new(false)));
        let (written, flag) = (ledger.clone(), failed.clone());
        let work = async move |device: Arc<NbdDevice>| {
            written.write_until_poisoned(&device, seed).await;
            flag.set(true);
        };
        world.client(ClientOptions::default(), work, async |world| {
            crashes(world, || failed.get()).await;
        });
        let check = async move |device: Arc<NbdDevice>| ledger.check(&device, seed).await;
        world.client(ClientOptions::default(), check, async |_| {});
    }
}

#[test]
fn lost_unflushed_writes_poison_device() {
    let world = World::new(1);
    let step = Rc::new(Cell::new(0));
    let steps = step.clone();
    let work = async move |device: Arc<NbdDevice>| {
        write(&device, 0, 1, false).await.unwrap();
        device.flush().await.unwrap();
        write(&device, 1, 2, false).await.unwrap();
        steps.set(1);
        until(|| steps.get() == 2).await;
        // The device continues until a flush is requested.
        assert_eq!(read(&device, 0).await, Ok(1));
        assert_eq!(device.flush().await, Err(IoError::Poisoned));
        assert_eq!(device.flush().await, Err(IoError::Poisoned));
        assert_eq!(read(&device, 0).await, Err(IoError::Poisoned));
        assert_eq!(write(&device, 0, 9, true).await, Err(IoError::Poisoned));
    };
    world.client(ClientOptions::default(), work, async |world| {
        until(|| step.get() == 1).await;
        world.sim.crash(world.server);
        time::sleep(Duration::from_millis(100)).await;
        world.restart();
        step.set(2);
    });
}

#[test]
fn durable_writes_survive_lost_connection() {
    for server_is_durable in [false, true] {
        let world = World::new(2);
        let step = Rc::new(Cell::new(0));
        let steps = step.clone();
        let options = ClientOptions { server_is_durable, ..ClientOptions::default() };
        let work = async move |device: Arc<NbdDevice>| {
            write(&device, 0, 1, false).await.unwrap();
            if !server_is_durable {
                device.flush().await.unwrap();
            }
            write(&device, 1, 2, true).await.unwrap();
            steps.set(1);
            until(|| steps.get() == 2).await;
            device.flush().await.unwrap();
            assert_eq!(read(&device, 1).await, Ok(2));
        };
        world.client(options, work, async |world| {
            until(|| step.get() == 1).await;
            world.sim.crash(world.server);
            world.restart();
            step.set(2);
        });
    }
}

#[test]
fn long_outage_is_unreachable_until_return() {
    let world = World::new(3);
    let step = Rc::new(Cell::new(0));
    let steps = step.clone();
    let options = ClientOptions::default();
    let work = async move |device: Arc<NbdDevice>| {
        assert_eq!(read(&device, 0).await, Ok(0));
        steps.set(1);
        until(|| steps.get() == 2).await;
        let start = time::now();
        assert_eq!(read(&device, 0).await, Err(IoError::Unreachable));
        let waited = start.elapsed();
        assert!(waited >= options.request_timeout, "{waited:?}");
        assert!(waited <= options.request_timeout + Duration::from_secs(10), "{waited:?}");
        steps.set(3);
        until(|| steps.get() == 4).await;
        assert_eq!(read(&device, 0).await, Ok(0));
    };
    world.client(options, work, async |world| {
        until(|| step.get() == 1).await;
        world.sim.crash(world.server);
        step.set(2);
        until(|| step.get() == 3).await;
        world.restart();
        step.set(4);
    });
}

#[test]
fn silent_network_is_detected() {
    let world = World::new(4);
    let step = Rc::new(Cell::new(0));
    let steps = step.clone();
    let work = async move |device: Arc<NbdDevice>| {
        assert_eq!(read(&device, 0).await, Ok(0));
        steps.set(1);
        until(|| steps.get() == 2).await;
        assert_eq!(read(&device, 0).await, Ok(0));
    };
    world.client(ClientOptions::default(), work, async |world| {
        until(|| step.get() == 1).await;
        world.sim.partition(world.server, world.client);
        step.set(2);
        time::sleep(Duration::from_secs(30)).await;
        world.sim.heal_all();
    });
}

#[test]
fn broken_connections_lose_nothing_under_load() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        let work = async move |device: Arc<NbdDevice>| {
            let tasks: Vec<_> = (0..BLOCKS)
                .map(|block| {
                    let device = device.clone();
                    spawn(async move {
                        for step in 1..30 {
                            write(&device, block, step, true).await.unwrap();
                            assert_eq!(read(&device, block).await, Ok(step), "seed {seed}");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            flag.set(true);
        };
        // Disconnects outpace most connection attempts until the end, so a request may wait for
        // hours in some seeds.
        let request_timeout = Duration::from_secs(30 * 24 * 3600);
        let options = ClientOptions { request_timeout, ..ClientOptions::default() };
        world.client(options, work, async |world| {
            while !done.get() {
                let span = world.sim.random_span(Duration::ZERO, Duration::from_millis(20));
                time::sleep(span).await;
                if world.sim.chance(0.1) {
                    // Long enough for the client to give up the connection.
                    world.sim.partition(world.server, world.client);
                    time::sleep(Duration::from_secs(25)).await;
                    world.sim.heal_all();
                } else {
                    world.sim.reset_connections(world.server, world.client);
                }
            }
        });
    }
}

/// Regression: an idle NBD connection never sends, so the server kept it forever.
#[test]
fn dead_idle_client_is_disconnected() {
    for seed in 0..10 {
        let world = World::new(seed);
        let address = world.address.clone();
        drop(world.sim.spawn_on(world.client, async move {
            let options = ClientOptions::default();
            let device = NbdDevice::connect(address, "disk", options).await.unwrap();
            // Attached and idle.
            time::sleep(Duration::from_secs(1_000_000)).await;
            drop(device);
        }));
        world.sim.run_for(Duration::from_secs(3600));
        assert_eq!(world.sim.connections(), 1, "an idle client stays connected");
        world.sim.power_off(world.client);
        world.sim.run_for(Duration::from_secs(150));
        assert_eq!(world.sim.connections(), 0, "seed {seed}");
    }
}
