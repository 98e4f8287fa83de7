//! Fixtures of the host tests: real drivers, and a real target on a free port.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

pub mod fake;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, RemoteDevice};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig, serve};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{IoEngine, RuntimeConfig, cores, run, spawn, time};

/// Runs the test on each real driver, with `cores` cores.
pub fn on_cores(cores: usize, test: impl AsyncFn()) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let config = RuntimeConfig { cores, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, || async {
            // Turns a hang into a located failure.
            time::timeout(Duration::from_secs(120), test()).await.expect("the test hangs");
        }) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn memory(bytes: u64, block_bytes: u32) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes, block_bytes).unwrap())
}

pub fn any_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

pub fn subnqn() -> Nqn {
    Nqn::new("nqn.2024-01.example:volume").unwrap()
}

/// Namespace whose identifier follows from its UUID, which is `id` repeated.
pub fn namespace(id: u8, device: SharedDevice) -> NamespaceConfig {
    NamespaceConfig { nsid: Some(id.into()), device, uuid: [id; 16], read_only: false }
}

/// Options that detect failures quickly but tolerate a busy machine.
pub fn options() -> HostOptions {
    HostOptions {
        reconnect_delay: Duration::from_millis(1),
        reconnect_delay_max: Duration::from_millis(20),
        ..HostOptions::default()
    }
}

/// Real target with one device.
pub struct Server {
    pub target: Arc<Target>,
    pub address: Address,
    accept: RefCell<Option<AbortOnDrop<()>>>,
}

impl Server {
    pub fn start(device: SharedDevice) -> Server {
        Server::start_with(device, TargetConfig::default(), &any_port())
    }

    pub fn start_with(device: SharedDevice, config: TargetConfig, at: &Address) -> Server {
        let target = Target::new(config).unwrap();
        let subsystem = SubsystemConfig {
            nqn: subnqn(),
            serial: "1".to_owned(),
            allow_hosts: None,
            keys: Default::default(),
        };
        target.add_subsystem(subsystem).unwrap();
        target.add_namespace(&subnqn(), namespace(7, device)).unwrap();
        let mut server = Server { target, address: at.clone(), accept: RefCell::new(None) };
        server.address = server.listen(at);
        server
    }

    /// Starts accepting connections.
    fn listen(&self, at: &Address) -> Address {
        let listener = Listener::bind(at).unwrap();
        let address = listener.address().clone();
        self.target.add_listener(&address).unwrap();
        let target = self.target.clone();
        let accept = spawn(async move {
            let cores = cores();
            let turn = Rc::new(std::cell::Cell::new(0));
            while let Ok(stream) = listener.accept().await {
                let target = target.clone();
                turn.set(turn.get() + 1);
                let core = &cores[turn.get() % cores.len()];
                core.spawn(move || serve(target, stream));
            }
        });
        *self.accept.borrow_mut() = Some(accept.abort_on_drop());
        address
    }

    /// Stops accepting and closes all connections.
    pub fn stop(&self) {
        *self.accept.borrow_mut() = None;
        self.target.disconnect_all();
    }

    /// Accepts again at the same address.
    pub fn resume(&self) {
        self.listen(&self.address);
    }

    /// Waits until the last controller is gone.
    pub async fn until_deserted(&self) {
        while self.target.controllers() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn connect(&self, options: HostOptions) -> Arc<RemoteDevice> {
        RemoteDevice::connect(self.address.clone(), &subnqn(), options).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
