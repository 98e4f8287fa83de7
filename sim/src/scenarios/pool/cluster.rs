//! Cluster of a pool scenario: a server with a pool, and a host. The server's process opens the
//! pool and serves its volumes, each on a port of its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, IoFuture, SharedDevice};
use flagstone_nbd::{ClientOptions, NbdDevice};
use flagstone_pool::{
    AbsentLegs, CreateOptions, ExpectedPool, LostTail, NamedDevice, OpenOptions, Pool, PoolError,
    PoolIdentity, VolumeError, VolumeOptions,
};
use flagstone_runtime::net::Address;
use flagstone_runtime::sim::{DiskConfig, NodeId, Simulation, World};
use flagstone_runtime::{JoinHandle, spawn_detached, time};

use super::Profile;
use crate::load::{Ended, LoadOptions, run as load};
use crate::model::{Point, Shared};
use crate::scenarios::served::{Front, NBD_FRONT, NVME_FRONT, attached};

const DISKS: [&str; 2] = ["/dev/data0", "/dev/data1"];
pub(super) const LOG: &str = "/dev/log";
const SEGMENT_BYTES: u64 = 16 * 4096;

/// Longer than any order, opening or call takes, hung disks included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(600);

/// Longest wait for a pool that is refused on a damaged disk: some errors are temporary.
const DAMAGED_TIMEOUT: Duration = Duration::from_secs(20);

/// A client does not attach again to a volume whose size changed since the crash. Its requests fail
/// after this time, which is longer than disks hang.
const NBD_TIMEOUT: Duration = Duration::from_secs(12);

const NBD: Front = Front { attach: attach_nbd, ..NBD_FRONT };

fn attach_nbd(address: Address) -> IoFuture<Option<SharedDevice>> {
    IoFuture::later(async move {
        let options = ClientOptions { request_timeout: NBD_TIMEOUT, ..ClientOptions::default() };
        let device = NbdDevice::connect(address, "volume", options).await;
        Ok(device.ok().map(|device| -> SharedDevice { device }))
    })
}

/// State of the log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogDevice {
    None,
    Present,
    /// Not found, but may come back.
    Absent,
    /// Blank.
    Lost,
}

/// State that the server's process and the observer share.
pub(super) struct Node {
    pub(super) pool: RefCell<Option<Pool>>,
    /// Failure of the last attempt to open the pool.
    pub(super) refused: RefCell<Option<PoolError>>,
    pub(super) log: Cell<LogDevice>,
    /// Identity of the pool at its last opening, as a server records it.
    seen: Cell<Option<PoolIdentity>>,
    /// Volumes that were withheld after the loss of the log device, until the operator gave the
    /// tail up.
    pub(super) withheld: RefCell<Vec<String>>,
    disks: Vec<&'static str>,
    /// Volumes that are served, with their addresses.
    served: RefCell<Vec<(String, Address)>>,
    front: &'static Front,
    wrap: fn(SharedDevice) -> SharedDevice,
}

/// A volume, its model, and its load.
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) model: Shared,
    pub(super) size_bytes: u64,
    /// Parent snapshot, for a clone.
    pub(super) origin: Option<String>,
    address: Address,
    stop: Rc<Cell<bool>>,
    loading: Option<JoinHandle<()>>,
}

/// A snapshot that exists.
pub(super) struct Snapshot {
    pub(super) name: String,
    /// Model of its volume, and the beginning of its order.
    pub(super) model: Shared,
    pub(super) point: Point,
    pub(super) size_bytes: u64,
    /// Content, after the first read.
    pub(super) content: Option<Vec<u8>>,
}

/// Answer to an order.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Result<(), VolumeError>),
    /// None: the server died meanwhile.
    Unknown,
}

pub(super) struct Cluster {
    pub(super) sim: World,
    pub(super) profile: Profile,
    pub(super) server: NodeId,
    host: NodeId,
    pub(super) node: Rc<Node>,
    pub(super) volumes: Vec<Volume>,
    pub(super) snapshots: Vec<Snapshot>,
    /// Deleted volumes and snapshots that came back with an earlier state of the pool.
    pub(super) ghosts: Vec<String>,
    /// True if disk faults may have damaged data, or lost it undetected.
    pub(super) damaged: bool,
    pub(super) next_number: u64,
    seed: u64,
    depth: usize,
    /// Share of changes with FUA.
    fua: f64,
    /// Size of the segments of each disk, and of the log device, in bytes.
    pub(super) data_bytes: u64,
    pub(super) log_bytes: u64,
    /// Number of checks of deleted volumes.
    pub(super) checked: u64,
}

impl Cluster {
    pub(super) fn new(sim: &Simulation, seed: u64, profile: Profile) -> Cluster {
        let (server, host) = (sim.add_node("server"), sim.add_node("host"));
        let count = sim.random_between(1, DISKS.len() as u64) as usize;
        let segments = if profile.full { sim.random_between(64, 100) } else { 320 };
        let volatile_cache = sim.chance(0.7);
        let disk =
            |size_bytes: u64| DiskConfig { volatile_cache, ..DiskConfig::block_device(size_bytes) };
        let disks = DISKS[..count].to_vec();
        let data_bytes = segments.div_ceil(count as u64) * SEGMENT_BYTES;
        for path in &disks {
            sim.add_disk(server, path, disk((1 << 20) + data_bytes));
        }
        let log_bytes = (1 << 20) + sim.random_between(6, 24) * SEGMENT_BYTES;
        if profile.log {
            sim.add_disk(server, LOG, disk(log_bytes));
        }
        let log = if profile.log { LogDevice::Present } else { LogDevice::None };
        let front = if sim.chance(0.5) { &NBD } else { &NVME_FRONT };
        let node = Node {
            pool: RefCell::default(),
            refused: RefCell::default(),
            log: Cell::new(log),
            seen: Cell::default(),
            withheld: RefCell::default(),
            disks,
            served: RefCell::default(),
            front,
            wrap: profile.wrap,
        };
        Cluster {
            sim: sim.world(),
            profile,
            server,
            host,
            node: Rc::new(node),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            ghosts: Vec::new(),
            damaged: false,
            next_number: 0,
            seed,
            depth: sim.random_between(1, 4) as usize,
            // One such write makes all earlier ones durable, which hides an ineffective flush.
            fua: if sim.chance(0.5) { 0.0 } else { 0.2 },
            data_bytes,
            log_bytes,
            checked: 0,
        }
    }

    /// Disks of the pool, without the log device.
    pub(super) fn disks(&self) -> Vec<&'static str> {
        self.node.disks.clone()
    }

    pub(super) fn checks(&self) -> u64 {
        self.checked + self.volumes.iter().map(|volume| volume.model.checks()).sum::<u64>()
    }

    /// Creates the pool and its first volumes, and loads them.
    pub(super) async fn start(&mut self) {
        let node = self.node.clone();
        let made = self.sim.spawn_on(self.server, async move {
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let (devices, log) = (devices(&node.disks), log_device(&node));
            let pool = Pool::create_with_log(devices, log, &options).await;
            *node.pool.borrow_mut() = Some(pool.expect("sound disks"));
        });
        made.await.expect("the task is not aborted");
        for number in 0..self.sim.random_between(1, 2) {
            let blocks = match self.profile.full {
                true => self.sim.random_between(256, 512),
                false => self.sim.random_between(8, 128),
            };
            let (name, size_bytes) = (format!("db{number}"), blocks * 4096);
            let created = name.clone();
            let answer = self
                .order_without_crash(async move |pool: Pool| {
                    let options = VolumeOptions { size_bytes, ..VolumeOptions::default() };
                    pool.create_volume(&created, &options).await.map(drop)
                })
                .await;
            assert!(matches!(answer, Answer::Done(Ok(()))), "{answer:?}");
            // A checkpoint, so that the loss of a log device does not lose the volumes.
            let made = async |pool: Pool| Ok(pool.checkpoint().await?);
            let answer = self.order_without_crash(made).await;
            assert!(matches!(answer, Answer::Done(Ok(()))), "{answer:?}");
            let model = Shared::new(self.seed + number, size_bytes);
            self.add_volume(name, model, size_bytes, None);
        }
    }

    /// Serves a volume and begins to load it.
    pub(super) fn add_volume(
        &mut self,
        name: String,
        model: Shared,
        size_bytes: u64,
        origin: Option<String>,
    ) {
        model.expect_late_changes();
        let port = self.node.front.port + self.next_number as u16;
        self.next_number += 1;
        let address = Address::Tcp((self.sim.ip(self.server), port).into());
        self.node.served.borrow_mut().push((name.clone(), address.clone()));
        let (node, own) = (self.node.clone(), (name.clone(), address.clone()));
        if node.pool.borrow().is_some() {
            self.sim.spawn_on(self.server, async move { node.serve(own.0, own.1) });
        }
        let (stop, loading) = (Rc::default(), None);
        let volume = Volume { name, model, size_bytes, origin, address, stop, loading };
        self.volumes.push(volume);
        self.start_load(self.volumes.len() - 1);
    }

    /// Takes a volume out of service, after its load has stopped.
    pub(super) fn remove_volume(&mut self, index: usize) -> Volume {
        let volume = self.volumes.remove(index);
        assert!(volume.loading.is_none(), "it is loaded");
        self.node.served.borrow_mut().retain(|(name, _)| *name != volume.name);
        self.checked += volume.model.checks();
        volume
    }

    pub(super) fn start_load(&mut self, index: usize) {
        let attach = self.node.front.attach;
        let Profile { full, faulty, .. } = self.profile;
        let (depth, fua) = (self.depth, self.fua);
        let volume = &mut self.volumes[index];
        let (model, address) = (volume.model.clone(), volume.address.clone());
        volume.stop = Rc::default();
        let stop = volume.stop.clone();
        let pause = Duration::from_micros(self.sim.random_between(1000, 30_000));
        volume.loading = Some(self.sim.spawn_on(self.host, async move {
            while !stop.get() {
                let device = attached(attach, &address).await;
                let options = LoadOptions {
                    stop: stop.clone(),
                    medium_errors: faulty,
                    late_failures: faulty,
                    may_be_full: full,
                    // Growth is visible before its order is durable.
                    may_shrink: true,
                    pause,
                    fua,
                    ..LoadOptions::new(depth)
                };
                if load(device, model.clone(), options).await == Ended::Stopped {
                    return;
                }
            }
        }));
    }

    /// Stops the load of a volume. The server is up.
    pub(super) async fn stop_load(&mut self, index: usize) {
        let volume = &mut self.volumes[index];
        volume.stop.set(true);
        let Some(loading) = volume.loading.take() else { return };
        match time::timeout(TIMEOUT, loading).await {
            Ok(ended) => ended.expect("the task is not aborted"),
            Err(_) => panic!("the load of {} does not end\n{}", volume.name, self.sim.report()),
        }
        // Requests of abandoned connections are carried out.
        time::sleep(Duration::from_millis(50)).await;
        // Changes that failed with the pool may take effect when it is reopened.
        if !self.needs_reopening() {
            self.volumes[index].model.process_ended();
        }
    }

    pub(super) async fn stop_loads(&mut self) {
        for index in 0..self.volumes.len() {
            self.stop_load(index).await;
        }
    }

    pub(super) fn start_loads(&mut self) {
        (0..self.volumes.len()).for_each(|index| self.start_load(index));
    }

    /// The server's process dies, with or without its power.
    pub(super) fn kill(&mut self, power: bool) {
        match power {
            true => self.sim.power_off(self.server),
            false => self.sim.crash(self.server),
        }
        drop(self.node.pool.take());
        for volume in &self.volumes {
            match power {
                true => volume.model.power_lost(),
                false => volume.model.process_ended(),
            }
            if self.damaged {
                // The end of the log may be lost.
                volume.model.forget();
            }
        }
    }

    /// Starts the server's process after a crash.
    pub(super) fn restart(&self) {
        self.sim.restart(self.server);
        // Like the kernel of the server, which resets unknown connections: hosts need no
        // keep-alives, which take a minute, to notice a power loss.
        self.sim.reset_connections(self.server, self.host);
        self.node.refused.take();
        self.sim.spawn_on(self.server, self.node.clone().run());
    }

    /// Runs a task of the host.
    pub(super) fn on_host<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        self.sim.spawn_on(self.host, work)
    }

    /// Attaches a volume to the host.
    pub(super) fn attach(&self, index: usize) -> JoinHandle<SharedDevice> {
        let (attach, address) = (self.node.front.attach, self.volumes[index].address.clone());
        self.on_host(async move { attached(attach, &address).await })
    }

    /// Waits until the pool is open. `None` if it is refused for long.
    pub(super) async fn opened(&self) -> Option<Pool> {
        let began = time::now();
        while began.elapsed() < TIMEOUT {
            if let Some(pool) = self.node.pool.borrow().clone() {
                return Some(pool);
            }
            let is_refused = self.node.refused.borrow().is_some();
            if self.damaged && is_refused && began.elapsed() > DAMAGED_TIMEOUT {
                return None;
            }
            time::sleep(Duration::from_millis(20)).await;
        }
        None
    }

    /// Gives the pool an order, during which the server may die.
    pub(super) async fn order<F>(&mut self, work: impl FnOnce(Pool) -> F + 'static) -> Answer
    where
        F: Future<Output = Result<(), VolumeError>> + 'static,
    {
        if !self.sim.chance(0.2) {
            return self.order_without_crash(work).await;
        }
        let task = self.begin(work);
        let span = self.sim.random_span(Duration::ZERO, Duration::from_millis(8));
        match time::timeout(span, task).await {
            Ok(done) => done.map_or(Answer::Unknown, Answer::Done),
            Err(_) => {
                let power = self.sim.chance(0.6);
                self.kill(power);
                self.restart();
                Answer::Unknown
            }
        }
    }

    /// Gives the pool an order.
    pub(super) async fn order_without_crash<F>(
        &self,
        work: impl FnOnce(Pool) -> F + 'static,
    ) -> Answer
    where
        F: Future<Output = Result<(), VolumeError>> + 'static,
    {
        match time::timeout(TIMEOUT, self.begin(work)).await {
            Ok(done) => done.map_or(Answer::Unknown, Answer::Done),
            Err(_) => panic!("an order does not end\n{}", self.sim.report()),
        }
    }

    fn begin<F>(
        &self,
        work: impl FnOnce(Pool) -> F + 'static,
    ) -> JoinHandle<Result<(), VolumeError>>
    where
        F: Future<Output = Result<(), VolumeError>> + 'static,
    {
        let pool = self.node.pool.borrow().clone().expect("it is open");
        self.sim.spawn_on(self.server, async move { work(pool).await })
    }
}

impl Node {
    /// Process of the server after a restart.
    async fn run(self: Rc<Self>) {
        let pool = loop {
            match self.open().await {
                Ok(pool) => break pool,
                Err(error) => *self.refused.borrow_mut() = Some(error),
            }
            time::sleep(Duration::from_millis(200)).await;
        };
        self.seen.set(Some(pool.identity()));
        *self.pool.borrow_mut() = Some(pool);
        for (name, address) in self.served.borrow().clone() {
            self.serve(name, address);
        }
    }

    /// Opens the pool like a server.
    async fn open(&self) -> Result<Pool, PoolError> {
        let expected = || ExpectedPool { name: Some("fast".to_owned()), identity: self.seen.get() };
        let options = |tail| OpenOptions {
            log: log_device(self),
            tail,
            expected: expected(),
            mirrored: Vec::new(),
            absent: AbsentLegs::default(),
        };
        let kept = Pool::open_with(devices(&self.disks), &options(LostTail::Keep)).await;
        let is_lost = self.log.get() == LogDevice::Lost;
        let pool = match kept {
            Err(PoolError::LogDeviceMissing { .. }) if is_lost => {
                Pool::open_with(devices(&self.disks), &options(LostTail::Withhold)).await?
            }
            opened => opened?,
        };
        if is_lost {
            let withheld = pool.give_up_tail().await;
            let withheld = withheld.map_err(|_| PoolError::Options("the tail stays"))?;
            self.withheld.borrow_mut().extend(withheld);
        }
        Ok(pool)
    }

    fn serve(&self, name: String, address: Address) {
        let Some(pool) = self.pool.borrow().clone() else { return };
        // A volume whose order was not answered may be missing.
        let Ok(device) = pool.open_volume(&name) else { return };
        let (serve, device) = (self.front.serve, (self.wrap)(device));
        spawn_detached(async move {
            let _ = serve(device, address).await;
        });
    }
}

/// Opens a disk.
pub(super) fn named(path: &str) -> Option<NamedDevice> {
    let device = FileDevice::open(path, &FileOptions::default()).ok()?;
    Some(NamedDevice { name: path.to_owned(), device })
}

/// The disks that can be opened.
fn devices(paths: &[&str]) -> Vec<NamedDevice> {
    paths.iter().filter_map(|path| named(path)).collect()
}

fn log_device(node: &Node) -> Option<NamedDevice> {
    match node.log.get() {
        LogDevice::Present | LogDevice::Lost => named(LOG),
        LogDevice::None | LogDevice::Absent => None,
    }
}
