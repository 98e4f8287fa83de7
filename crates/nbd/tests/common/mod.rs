//! Fixtures of the server and client tests: drivers, servers and raw peers.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub mod blocking_device;
pub mod peer;

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_nbd::{Drain, Export, Exports, NbdServer, ServerOptions};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{IoEngine, JoinHandle, RuntimeConfig, alive, run, spawn, time};

/// Runs the test on io_uring, on threads, and in two simulated worlds.
pub fn on_each_driver(test: impl AsyncFn()) {
    on_each_real_driver(&test);
    for seed in 1..=2 {
        in_simulation(seed, &test);
    }
}

/// Runs the test on io_uring and on threads, with two cores.
pub fn on_each_real_driver(test: impl AsyncFn()) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let config = RuntimeConfig { cores: 2, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, || test()) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs the test in simulated time, where timeouts are free.
pub fn in_simulation(seed: u64, test: impl AsyncFn()) {
    Simulation::new(seed, sim::SimConfig::default()).block_on(test());
}

pub fn any_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

pub fn memory(size_bytes: u64, block_bytes: u32) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, block_bytes).unwrap())
}

/// Server that runs until it is dropped or drained.
pub struct Running {
    pub server: Arc<NbdServer>,
    pub exports: Arc<Exports>,
    pub address: Address,
    pub drain: Drain,
    pub task: Rc<JoinHandle<()>>,
}

impl Running {
    pub fn start(address: &Address, exports: Vec<Export>, options: ServerOptions) -> Running {
        let drain = Drain::new();
        let exports = Arc::new(Exports::new(exports).unwrap());
        let server = NbdServer::new(exports.clone(), options, drain.clone());
        let listener = Listener::bind(address).unwrap();
        let address = listener.address().clone();
        let task = Rc::new(spawn(server.clone().run(listener)));
        Running { server, exports, address, drain, task }
    }

    /// Serves the device as the export `disk` on a free TCP port.
    pub fn with(device: SharedDevice) -> Running {
        Running::start(&any_port(), vec![Export::new("disk", device)], ServerOptions::default())
    }

    /// Shuts down gracefully.
    pub async fn stop(self) {
        self.drain.begin();
        until(|| self.task.is_finished()).await;
    }

    /// Waits until no client is connected.
    pub async fn quiet(&self) {
        until(|| self.server.connections() == 0).await;
    }
}

/// Waits until the condition holds. A test that hangs fails by the harness's timeout.
pub async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs the test and checks that it leaks no task or operation.
pub async fn leaves_nothing(test: impl AsyncFnOnce()) {
    // Let newly spawned tasks start.
    time::sleep(Duration::from_millis(5)).await;
    let before = alive();
    test().await;
    until(|| alive() == before).await;
}
