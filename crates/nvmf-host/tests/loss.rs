//! Targets that lose their volatile cache, restart or lose a connection, in simulated time. Hosts
//! use one core: the simulator has no others.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{options, subnqn};
use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultControl, FaultLayer, FileDevice, FileOptions, IoError,
    SharedDevice, ZeroFlags,
};
use flagstone_conformance::crash::{BLOCK_BYTES, BLOCKS, CrashLedger, read, write};
use flagstone_nvmf_host::{HostOptions, MultipathDevice, RemoteDevice};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig, serve};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};
use flagstone_runtime::{spawn, time};

const DISK: &str = "/dev/disk";
/// Seeds of the random tests; each takes milliseconds.
const SEEDS: u64 = 100;

/// Another address of the target at this one.
fn second_of(address: &Address) -> Address {
    match address {
        Address::Tcp(first) => Address::Tcp((first.ip(), 4421).into()),
        Address::Unix(_) => unreachable!("the target has TCP addresses"),
    }
}

async fn listen(target: Arc<Target>, address: Address) {
    let listener = Listener::bind(&address).unwrap();
    while let Ok(stream) = listener.accept().await {
        drop(spawn(serve(target.clone(), stream)));
    }
}

/// Target on one node, and another node for hosts.
struct World {
    sim: Simulation,
    target: NodeId,
    host: NodeId,
    address: Address,
    faults: Rc<RefCell<Option<FaultControl>>>,
    served: Rc<RefCell<Option<Arc<Target>>>>,
}

impl World {
    fn new(seed: u64) -> World {
        let sim = Simulation::new(seed, SimConfig::default());
        let (target, host) = (sim.add_node("target"), sim.add_node("host"));
        sim.add_disk(target, DISK, DiskConfig::block_device(BLOCKS * BLOCK_BYTES));
        let address = Address::Tcp((sim.ip(target), 4420).into());
        let (faults, served) = (Rc::default(), Rc::default());
        let world = World { sim, target, host, address, faults, served };
        world.serve();
        world
    }

    fn serve(&self) {
        let (address, faults) = (self.address.clone(), self.faults.clone());
        let served = self.served.clone();
        drop(self.sim.spawn_on(self.target, async move {
            let options = FileOptions { block_bytes: Some(512), ..FileOptions::default() };
            let file: SharedDevice = FileDevice::open(DISK, &options).unwrap();
            let (device, control) = FaultLayer::new(file, FaultConfig::default()).unwrap();
            *faults.borrow_mut() = Some(control);
            let target = Target::new(TargetConfig::default()).unwrap();
            let subsystem = SubsystemConfig {
                nqn: subnqn(),
                serial: "1".to_owned(),
                allow_hosts: None,
                keys: Default::default(),
            };
            target.add_subsystem(subsystem).unwrap();
            let device: SharedDevice = Arc::new(device);
            let namespace = NamespaceConfig { nsid: None, device, uuid: [7; 16], read_only: false };
            target.add_namespace(&subnqn(), namespace).unwrap();
            *served.borrow_mut() = Some(target.clone());
            drop(spawn(listen(target.clone(), second_of(&address))));
            listen(target, address).await;
        }));
    }

    fn restart(&self) {
        self.sim.restart(self.target);
        self.serve();
    }

    /// Runs a host on its node to its end, concurrently with the target's faults.
    fn host<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Arc<RemoteDevice>) -> T + 'static,
        faults: impl AsyncFnOnce(&World),
    ) -> T {
        let address = self.address.clone();
        let task = self.sim.spawn_on(self.host, async move {
            let options = HostOptions { command_timeout: Duration::from_secs(5), ..options() };
            let device = loop {
                match RemoteDevice::connect(address.clone(), &subnqn(), options.clone()).await {
                    Ok(device) => break device,
                    Err(_) => time::sleep(Duration::from_millis(1)).await,
                }
            };
            work(device).await
        });
        self.sim.block_on(async {
            faults(self).await;
            task.await.unwrap()
        })
    }
}

/// Step that the host or the world has reached, which the other waits for.
#[derive(Clone, Default)]
struct Step(Rc<Cell<u32>>);

impl Step {
    fn set(&self, step: u32) {
        self.0.set(step);
    }

    async fn until(&self, step: u32) {
        while self.0.get() < step {
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Crashes the target repeatedly, half of the time with power loss, until `done`.
async fn crashes(world: &World, done: impl Fn() -> bool) {
    while !done() {
        time::sleep(world.sim.random_span(Duration::ZERO, Duration::from_millis(30))).await;
        if world.sim.chance(0.5) {
            world.sim.crash(world.target);
        } else {
            world.sim.power_off(world.target);
        }
        time::sleep(world.sim.random_span(Duration::ZERO, Duration::from_millis(300))).await;
        world.restart();
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// Regression: the flush after a restart succeeded, although an acknowledged write was gone.
#[test]
fn lost_unflushed_write_poisons_device() {
    for zeroes in [false, true] {
        let world = World::new(1);
        let step = Step::default();
        let steps = step.clone();
        let work = async move |device: Arc<RemoteDevice>| {
            write(&device, 0, 1, false).await.unwrap();
            device.flush().await.unwrap();
            if zeroes {
                let flags = ZeroFlags::default();
                device.write_zeroes(BLOCK_BYTES, BLOCK_BYTES, flags).await.unwrap();
            } else {
                write(&device, 1, 2, false).await.unwrap();
            }
            steps.set(1);
            steps.until(2).await;
            assert_eq!(device.flush().await, Err(IoError::Poisoned));
            assert!(device.must_reopen());
            assert_eq!(device.flush().await, Err(IoError::Poisoned));
            assert_eq!(write(&device, 0, 9, true).await, Err(IoError::Poisoned));
            // A read would show the data from before the acknowledged write.
            assert_eq!(read(&device, 1).await, Err(IoError::Poisoned));
        };
        world.host(work, async |world| {
            step.until(1).await;
            world.sim.power_off(world.target);
            world.restart();
            step.set(2);
        });
        let reopened = async |device: Arc<RemoteDevice>| {
            assert_eq!(read(&device, 0).await, Ok(1));
            write(&device, 1, 3, false).await.unwrap();
            device.flush().await.unwrap();
        };
        world.host(reopened, async |_| {});
    }
}

/// Regression: a device with two addresses of the target did not notice its restart.
#[test]
fn lost_unflushed_write_poisons_multipath_device() {
    for flushes in [false, true] {
        let world = World::new(1);
        let addresses = vec![world.address.clone(), second_of(&world.address)];
        let step = Step::default();
        let steps = step.clone();
        let host = world.sim.spawn_on(world.host, async move {
            let options = HostOptions { loss_timeout: Duration::from_secs(60), ..options() };
            let nqn = subnqn();
            let device = loop {
                let found = MultipathDevice::connect(addresses.clone(), &nqn, options.clone());
                match found.await {
                    Ok(device) => break device,
                    Err(_) => time::sleep(Duration::from_millis(1)).await,
                }
            };
            // The second address may have needed another attempt.
            time::sleep(Duration::from_secs(10)).await;
            write(&device, 0, 1, false).await.unwrap();
            if flushes {
                device.flush().await.unwrap();
            }
            steps.set(1);
            steps.until(2).await;
            if flushes {
                assert_eq!((device.flush().await, read(&device, 0).await), (Ok(()), Ok(1)));
                return;
            }
            assert_eq!(device.flush().await, Err(IoError::Poisoned));
            assert!(device.must_reopen());
            assert_eq!(write(&device, 0, 9, true).await, Err(IoError::Poisoned));
            assert_eq!(read(&device, 0).await, Err(IoError::Poisoned));
        });
        world.sim.block_on(async {
            step.until(1).await;
            world.sim.power_off(world.target);
            world.restart();
            step.set(2);
            host.await.unwrap();
        });
    }
}

#[test]
fn restart_with_flushed_writes_is_transparent() {
    let world = World::new(2);
    let step = Step::default();
    let steps = step.clone();
    let work = async move |device: Arc<RemoteDevice>| {
        write(&device, 0, 1, false).await.unwrap();
        device.flush().await.unwrap();
        write(&device, 1, 2, true).await.unwrap();
        steps.set(1);
        steps.until(2).await;
        device.flush().await.unwrap();
        assert!(!device.must_reopen());
        assert_eq!((read(&device, 0).await, read(&device, 1).await), (Ok(1), Ok(2)));
        write(&device, 0, 3, false).await.unwrap();
        device.flush().await.unwrap();
    };
    world.host(work, async |world| {
        step.until(1).await;
        world.sim.power_off(world.target);
        world.restart();
        step.set(2);
    });
}

/// Regression: a flush that was called while there was no connection counted for nothing, so that
/// the next restart of the target seemed to lose what it had flushed.
#[test]
fn flush_during_reconnect_covers_earlier_writes() {
    let world = World::new(5);
    let step = Step::default();
    let steps = step.clone();
    let work = async move |device: Arc<RemoteDevice>| {
        write(&device, 0, 1, false).await.unwrap();
        steps.set(1);
        steps.until(2).await;
        // The host has noticed the loss, and has not connected again.
        time::sleep(Duration::from_millis(50)).await;
        let flushed = spawn({
            let device = device.clone();
            async move { device.flush().await }
        });
        time::sleep(Duration::from_millis(10)).await;
        steps.set(3);
        assert_eq!(flushed.await, Ok(Ok(())));
        steps.set(4);
        steps.until(5).await;
        assert_eq!(read(&device, 0).await, Ok(1));
        assert!(!device.must_reopen());
    };
    world.host(work, async |world| {
        step.until(1).await;
        world.sim.partition(world.target, world.host);
        world.sim.reset_connections(world.target, world.host);
        step.set(2);
        step.until(3).await;
        world.sim.heal(world.target, world.host);
        step.until(4).await;
        world.sim.power_off(world.target);
        world.restart();
        step.set(5);
    });
}

/// The target did not restart, so its cache still has the write.
#[test]
fn lost_connection_keeps_unflushed_writes() {
    let world = World::new(3);
    let step = Step::default();
    let steps = step.clone();
    let work = async move |device: Arc<RemoteDevice>| {
        write(&device, 0, 1, false).await.unwrap();
        steps.set(1);
        steps.until(2).await;
        device.flush().await.unwrap();
        assert!(!device.must_reopen());
        assert_eq!(read(&device, 0).await, Ok(1));
    };
    world.host(work, async |world| {
        step.until(1).await;
        world.sim.reset_connections(world.target, world.host);
        step.set(2);
    });
}

#[test]
fn failed_flush_poisons_until_reopened() {
    let world = World::new(4);
    let faults = world.faults.clone();
    let work = async move |device: Arc<RemoteDevice>| {
        write(&device, 0, 1, false).await.unwrap();
        let control = faults.borrow().clone().unwrap();
        control.fail_next_flush();
        assert_eq!(device.flush().await, Err(IoError::WriteFault));
        // The remote device was reopened, and its next flush would succeed.
        control.reopen();
        assert!(device.must_reopen());
        assert_eq!(device.flush().await, Err(IoError::Poisoned));
        assert_eq!(write(&device, 0, 9, true).await, Err(IoError::Poisoned));
        assert_eq!(device.discard(0, BLOCK_BYTES).await, Err(IoError::Poisoned));
        let zeroes = device.write_zeroes(0, BLOCK_BYTES, ZeroFlags::default());
        assert_eq!(zeroes.await, Err(IoError::Poisoned));
        assert_eq!(read(&device, 0).await, Ok(1), "reads go on, as on a local disk");
    };
    world.host(work, async |_| {});
    let reopened = async |device: Arc<RemoteDevice>| device.flush().await.unwrap();
    world.host(reopened, async |_| {});
}

#[test]
fn flushed_writes_survive_target_crashes() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let (ledger, failed) = (CrashLedger::default(), Rc::new(Cell::new(false)));
        let (written, flag) = (ledger.clone(), failed.clone());
        let work = async move |device: Arc<RemoteDevice>| {
            written.write_until_poisoned(&device, seed).await;
            flag.set(true);
        };
        world.host(work, async |world| crashes(world, || failed.get()).await);
        let check = async move |device: Arc<RemoteDevice>| ledger.check(&device, seed).await;
        world.host(check, async |_| {});
    }
}

/// Regression: a host without keep alive that vanished kept its controller forever.
#[test]
fn vanished_host_without_keep_alive_is_disconnected() {
    let world = World::new(5);
    let address = world.address.clone();
    drop(world.sim.spawn_on(world.host, async move {
        let options = HostOptions { keep_alive: Duration::ZERO, ..options() };
        let device = RemoteDevice::connect(address, &subnqn(), options).await.unwrap();
        time::sleep(Duration::from_secs(1_000_000)).await;
        drop(device);
    }));
    world.sim.run_for(Duration::from_secs(3600));
    let controllers = || world.served.borrow().as_ref().expect("it serves").controllers();
    assert_eq!(controllers(), 1, "an idle host stays connected");
    world.sim.power_off(world.host);
    world.sim.run_for(Duration::from_secs(150));
    assert_eq!(controllers(), 0);
}
