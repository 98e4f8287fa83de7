//! Two mirrored nodes and the link between them over NVMe/TCP, in simulation.

mod attached;
mod reservations;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice as _, FileDevice, FileOptions, IoError, SharedDevice, ZeroFlags,
};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::{LinkStatus, PeerConnector, PeerRequest, SharedSession};
use flagstone_mirror::{LinkVersions, Mirror, Mode, OnPeerLoss, PeerOptions};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, RemoteDevice};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig, serve};
use flagstone_replication::{
    Bandwidth, Codec, LinkOptions, NvmePeer, PeerAddress, replication_nqn, serve_replica,
};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};
use flagstone_runtime::{buf, spawn_detached, time};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use reservations::Record;

const DATA: &str = "/dev/data";
const DEVICE_BYTES: u64 = 1 << 20;
const PORT: u16 = 4420;
/// Timeout for a silent peer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bound for local work.
const MOMENT: Duration = Duration::from_millis(100);
/// Maximum transfer of one command of the link.
const TRANSFER_BYTES: u32 = 8192;

fn subsystem() -> Nqn {
    let volume = Nqn::new("nqn.2026-01.io.flagstone:db").unwrap();
    replication_nqn(&volume).unwrap()
}

fn host(node: usize) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.flagstone:node-{node}")).unwrap()
}

fn open() -> SharedDevice {
    FileDevice::open(DATA, &FileOptions::default()).expect("the device opens")
}

/// Transfers are short, so that long writes have several parts.
fn target_config() -> TargetConfig {
    TargetConfig {
        mdts_bytes: TRANSFER_BYTES,
        in_capsule_bytes: 4096,
        max_namespaces: 16,
        ..TargetConfig::default()
    }
}

fn host_options(index: usize) -> HostOptions {
    HostOptions {
        host_nqn: Some(host(index)),
        queues: 3,
        keep_alive: TIMEOUT,
        command_timeout: 2 * TIMEOUT,
        connect_timeout: TIMEOUT,
        ..HostOptions::default()
    }
}

type Mirrors = Rc<RefCell<[Option<Arc<Mirror>>; 2]>>;

/// Versions of the link that each node speaks.
type Releases = [LinkVersions; 2];

struct World {
    sim: Simulation,
    nodes: [NodeId; 2],
    mirrors: Mirrors,
    mode: Mode,
    link: LinkOptions,
    releases: Cell<Releases>,
    /// Reservations on each node; `None` if it keeps none.
    reservations: RefCell<[Option<Arc<Record>>; 2]>,
    /// Address of the second node, as seen by the first.
    place: Option<PeerAddress>,
    _memory: Memory,
}

/// Pooled memory belongs to the process: worlds share it, except in tests that use all of it.
static MEMORY: RwLock<()> = RwLock::new(());

enum Memory {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Own { _guard: RwLockWriteGuard<'static, ()> },
}

impl Memory {
    fn shared() -> Memory {
        Memory::Shared { _guard: MEMORY.read() }
    }

    fn own() -> Memory {
        Memory::Own { _guard: MEMORY.write() }
    }
}

impl World {
    fn new(seed: u64, mode: Mode) -> World {
        World::with_link(seed, mode, LinkOptions::default())
    }

    fn with_link(seed: u64, mode: Mode, link: LinkOptions) -> World {
        World::with_memory(seed, mode, link, Memory::shared())
    }

    fn with_memory(seed: u64, mode: Mode, link: LinkOptions, memory: Memory) -> World {
        World::of(seed, mode, link, memory, [LinkVersions::SPOKEN; 2])
    }

    fn of(seed: u64, mode: Mode, link: LinkOptions, memory: Memory, releases: Releases) -> World {
        let sim = Simulation::new(seed, SimConfig::default());
        let nodes = [sim.add_node("a"), sim.add_node("b")];
        for (index, node) in nodes.into_iter().enumerate() {
            let disk =
                DiskConfig { volatile_cache: true, ..DiskConfig::block_device(DEVICE_BYTES) };
            sim.add_disk(node, DATA, disk);
            let geometry = ReplicaGeometry {
                usable_bytes: 4096,
                bit_bytes: 4096,
                region_bytes: 8192,
                active_regions_max: 32,
            };
            let create = CreateReplica {
                volume: MirrorId([7; 16]),
                with_data: index == 0,
                zeroes: false,
                geometry,
            };
            let made = sim.spawn_on(node, async move {
                Replica::create(open(), None, create).await.expect("the disk works");
            });
            sim.block_on(made).expect("the task completes");
        }
        let (mirrors, releases) = (Rc::default(), Cell::new(releases));
        let world = World {
            sim,
            nodes,
            mirrors,
            mode,
            link,
            releases,
            reservations: RefCell::new([(); 2].map(|()| Some(Arc::default()))),
            place: None,
            _memory: memory,
        };
        world.start(0);
        world.start(1);
        world
    }

    fn address(&self, index: usize) -> Address {
        Address::Tcp((self.sim.ip(self.nodes[index]), PORT).into())
    }

    /// Connects a node to the other, over several connections.
    fn way(&self, index: usize) -> NvmePeer {
        let named = self.place.clone().filter(|_| index == 0);
        let place = named.unwrap_or_else(|| self.address(1 - index).into());
        NvmePeer::new(place, subsystem(), host_options(index)).with_link(self.link.clone())
    }

    /// A node: its mirror, and its leg served to the other node.
    fn start(&self, index: usize) {
        let mut peer = PeerOptions::new(Arc::new(self.way(index)));
        peer.mode = self.mode;
        let (mirrors, here) = (self.mirrors.clone(), self.address(index));
        let versions = self.releases.get()[index];
        let record = self.reservations.borrow()[index].clone();
        self.sim.spawn_on(self.nodes[index], async move {
            let local = loop {
                match Replica::open(open(), None).await {
                    Ok(local) => break local,
                    Err(_) => time::sleep(Duration::from_millis(100)).await,
                }
            };
            let mirror = Arc::new(Mirror::speaking(versions, local, vec![peer]));
            if let Some(record) = record {
                mirror.set_reservation_records(record);
            }
            let target = Target::new(target_config()).unwrap();
            let (nqn, serial) = (subsystem(), "1".to_owned());
            let config = SubsystemConfig {
                nqn,
                serial,
                allow_hosts: Some(vec![host(1 - index)]),
                keys: Default::default(),
            };
            serve_replica(&target, config, [9; 16], mirror.clone()).unwrap();
            let listener = Listener::bind(&here).expect("the port is free");
            while mirror.start().await.is_err() {
                time::sleep(Duration::from_millis(100)).await;
            }
            mirrors.borrow_mut()[index] = Some(mirror);
            while let Ok(stream) = listener.accept().await {
                spawn_detached(serve(target.clone(), stream));
            }
        });
    }

    fn mirror(&self, index: usize) -> Arc<Mirror> {
        self.mirrors.borrow()[index].clone().expect("the task has started")
    }

    /// A node's connector to the other.
    fn link_status(&self, index: usize) -> LinkStatus {
        self.mirror(index).options(0).expect("the mirror has a peer").connector.link()
    }

    fn stop(&self, index: usize) {
        self.sim.crash(self.nodes[index]);
        self.mirrors.borrow_mut()[index] = None;
    }

    /// Waits until the node reports that both are equal.
    fn until_mirroring(&self, index: usize) {
        for _ in 0..600 {
            self.sim.run_for(Duration::from_millis(100));
            let mirror = self.mirrors.borrow()[index].clone();
            if mirror.is_some_and(|mirror| mirror.state(0) == MirrorState::Mirroring) {
                return;
            }
        }
        panic!("it stays {}", self.mirror(index).state(0));
    }

    fn write(&self, index: usize, offset: u64, byte: u8) {
        self.write_long(index, offset, byte, 4096);
    }

    fn write_long(&self, index: usize, offset: u64, byte: u8, len: usize) {
        let mirror = self.mirror(index);
        let written = self.sim.spawn_on(self.nodes[index], async move {
            let mut data = buf::alloc(len).await;
            data.fill(byte);
            mirror.write(offset, data.freeze(), true).await
        });
        self.sim.block_on(written).expect("the task completes").expect("the mirror works");
    }

    fn read(&self, index: usize, offset: u64) -> u8 {
        let mirror = self.mirror(index);
        let read = self.sim.spawn_on(self.nodes[index], async move {
            mirror.read(offset, buf::alloc_small(4096)).await.map(|data| {
                assert!(data.iter().all(|byte| *byte == data[0]), "a block is whole");
                data[0]
            })
        });
        self.sim.block_on(read).expect("the task completes").expect("the mirror works")
    }

    /// The source dies, and the other node serves.
    fn fail_over_to(&self, index: usize) {
        self.stop(1 - index);
        let mirror = self.mirror(index);
        let failed_over =
            self.sim.spawn_on(self.nodes[index], async move { mirror.failover().await });
        self.sim.block_on(failed_over).expect("the task completes").expect("consistent data");
    }
}

/// A peer's name that is unknown at first, and resolves to another address later, is looked up for
/// each connection.
#[test]
fn peer_name_is_resolved_for_each_connection() {
    let mut world = World::new(7, Mode::Sync);
    let known = Arc::new(parking_lot::Mutex::new(None));
    world.stop(0);
    let answer = known.clone();
    world.place = Some(PeerAddress::resolved_by("b", move || {
        let found: Option<Address> = answer.lock().clone();
        Box::pin(
            async move { found.map(|one| vec![one]).ok_or(std::io::ErrorKind::NotFound.into()) },
        )
    }));
    world.sim.restart(world.nodes[0]);
    world.start(0);
    world.sim.run_for(Duration::from_secs(20));
    assert!(world.link_status(0).is_name_unknown);
    assert_ne!(world.mirror(0).state(0), MirrorState::Mirroring);
    *known.lock() = Some(world.address(1));
    world.until_mirroring(0);
    assert!(!world.link_status(0).is_name_unknown);
}

/// Written data is on the peer, through resync and mirroring, when the source is dead. When the old
/// source returns, it is brought up to date over the same link in the other direction.
fn a_volume_survives_its_node(mode: Mode, compression: Option<Codec>) {
    for seed in 1..=4 {
        let link = LinkOptions { compression, ..LinkOptions::default() };
        let world = World::with_link(seed, mode, link);
        world.until_mirroring(0);
        for block in 0..32u8 {
            world.write(0, u64::from(block) * 4096, block + 1);
        }
        let (mirror, node) = (world.mirror(0), world.nodes[0]);
        let zeroed = world.sim.spawn_on(node, async move {
            mirror.write_zeroes(0, 8192, ZeroFlags::default()).await?;
            mirror.flush().await
        });
        world.sim.block_on(zeroed).unwrap().unwrap();
        // The rest of an asynchronous queue is sent.
        world.sim.run_for(Duration::from_secs(5));
        let link = world.link_status(0);
        assert_eq!(link.compression.name(), compression.map_or("none", Codec::name));
        assert!(!link.is_declined && link.data_bytes >= 32 * 4096, "{link:?}");
        match compression {
            // Each block is filled with one byte.
            Some(_) => assert!(link.sent_bytes < link.data_bytes / 16, "{link:?}"),
            None => assert_eq!(link.sent_bytes, link.data_bytes),
        }
        world.fail_over_to(1);
        for block in 0..32u8 {
            let expected = if block < 2 { 0 } else { block + 1 };
            assert_eq!(world.read(1, u64::from(block) * 4096), expected, "seed {seed}");
        }
        world.write(1, 4096, 99);
        world.sim.restart(world.nodes[0]);
        world.start(0);
        world.until_mirroring(1);
        world.sim.run_for(Duration::from_secs(5));
        world.fail_over_to(0);
        assert_eq!((world.read(0, 4096), world.read(0, 8192)), (99, 3), "seed {seed}");
    }
}

#[test]
fn synchronous_mirror_survives_source_failure() {
    a_volume_survives_its_node(Mode::Sync, None);
}

#[test]
fn asynchronous_mirror_survives_source_failure() {
    a_volume_survives_its_node(Mode::Async, None);
}

#[test]
fn compressed_mirror_survives_source_failure() {
    for codec in Codec::ALL {
        a_volume_survives_its_node(Mode::Sync, Some(codec));
        a_volume_survives_its_node(Mode::Async, Some(codec));
    }
}

#[test]
fn link_recovers_after_partition() {
    let world = World::new(9, Mode::Sync);
    world.until_mirroring(0);
    world.sim.partition(world.nodes[0], world.nodes[1]);
    let cut = world.sim.now();
    world.write(0, 0, 5);
    let held = world.sim.now() - cut;
    assert!(held <= TIMEOUT + MOMENT, "hosts waited for {held:?}");
    assert_ne!(world.mirror(0).state(0), MirrorState::Mirroring);
    world.sim.heal(world.nodes[0], world.nodes[1]);
    world.until_mirroring(0);
    world.fail_over_to(1);
    assert_eq!(world.read(1, 0), 5);
}

/// A write of more than one transfer becomes several commands, each with its own sequence number.
/// Otherwise the link would be lost, or later writes would wait forever.
#[test]
fn multi_part_writes_keep_their_order() {
    long_writes(LinkOptions::default);
}

/// The same with compressed parts and a bandwidth limit.
#[test]
fn compressed_limited_writes_keep_their_order() {
    for codec in [None, Some(Codec::Lz4), Some(Codec::Zstd)] {
        long_writes(|| LinkOptions {
            compression: codec,
            bandwidth: Some(Bandwidth::new(1 << 20)),
            ..LinkOptions::default()
        });
    }
}

fn long_writes(link: impl Fn() -> LinkOptions) {
    for seed in 1..=4 {
        let world = World::with_link(seed, Mode::Async, link());
        world.until_mirroring(0);
        let long = 5 * TRANSFER_BYTES as usize + 4096;
        for round in 0..20u8 {
            world.write_long(0, 4096, 2 * round + 1, long);
            world.write(0, 8192, 2 * round + 2);
        }
        for _ in 0..500 {
            assert_eq!(world.mirror(0).state(0), MirrorState::Mirroring, "seed {seed}");
            world.sim.run_for(Duration::from_millis(10));
        }
        world.fail_over_to(1);
        let found: Vec<u8> = (0..13).map(|block| world.read(1, block * 4096)).collect();
        assert_eq!(found, [0, 39, 40, 39, 39, 39, 39, 39, 39, 39, 39, 39, 0], "seed {seed}");
    }
}

/// Hosts of a synchronous mirror wait for the bandwidth limit, and an asynchronous one has its
/// queue. Neither sends faster, and all data arrives.
#[test]
fn bandwidth_limit_holds() {
    const CAP: u64 = 128 << 10;
    for mode in [Mode::Sync, Mode::Async] {
        let bandwidth = Some(Bandwidth::new(CAP));
        let world = World::with_link(5, mode, LinkOptions { bandwidth, ..LinkOptions::default() });
        world.until_mirroring(0);
        world.sim.run_for(Duration::from_secs(10));
        let sent = |world: &World| world.link_status(0).sent_bytes;
        let (began, before) = (world.sim.now(), sent(&world));
        for block in 0..128u8 {
            world.write(0, u64::from(block) * 4096, block + 1);
        }
        let written = world.sim.now() - began;
        // 512 KiB take four seconds, minus the last write and the compensation of timers.
        let least = Duration::from_millis(3900);
        assert_eq!(written >= least, mode == Mode::Sync, "{mode:?}: {written:?}");
        while sent(&world) < before + 128 * 4096 {
            world.sim.run_for(Duration::from_millis(10));
            assert!(world.sim.now() - began < Duration::from_secs(8), "{mode:?}");
        }
        assert!(world.sim.now() - began >= least, "{mode:?}");
        world.sim.run_for(Duration::from_secs(1));
        assert_eq!(world.mirror(0).state(0), MirrorState::Mirroring);
        world.fail_over_to(1);
        for block in 0..128u8 {
            assert_eq!(world.read(1, u64::from(block) * 4096), block + 1, "{mode:?}");
        }
    }
}

/// Hosts of a synchronous mirror wait for each round trip of a longer link. Hosts of an
/// asynchronous one wait for none, and dependent writes follow each other to the target without
/// waiting.
#[test]
fn only_synchronous_hosts_wait_for_round_trips() {
    const RTT: Duration = Duration::from_millis(50);
    const WRITES: u8 = 32;
    for mode in [Mode::Sync, Mode::Async] {
        let link = LinkOptions { added_rtt: RTT, ..LinkOptions::default() };
        let world = World::with_link(6, mode, link);
        world.until_mirroring(0);
        let began = world.sim.now();
        for block in 0..WRITES {
            world.write(0, u64::from(block) * 4096, block + 1);
        }
        let waited = world.sim.now() - began >= RTT * u32::from(WRITES);
        assert_eq!(waited, mode == Mode::Sync, "{:?}", world.sim.now() - began);
        world.sim.run_for(RTT + Duration::from_millis(200));
        world.fail_over_to(1);
        for block in 0..WRITES {
            assert_eq!(world.read(1, u64::from(block) * 4096), block + 1, "{mode:?}");
        }
    }
}

/// Ways in which a node falls silent without resetting its connections.
const SILENCES: [fn(&World); 3] = [
    |world| world.sim.partition(world.nodes[0], world.nodes[1]),
    |world| world.sim.partition_one_way(world.nodes[0], world.nodes[1]),
    // Like a stopped process (SIGSTOP): data sent to it still arrives.
    |world| world.sim.partition_one_way(world.nodes[1], world.nodes[0]),
];

/// With and without a request in flight.
#[test]
fn silent_peer_is_lost_within_timeout() {
    for (seed, silence) in (1..).zip(SILENCES) {
        for asks in [false, true] {
            let world = World::new(seed, Mode::Sync);
            world.until_mirroring(0);
            let way = world.way(0);
            let connected = world.sim.spawn_on(world.nodes[0], async move { way.connect().await });
            let session: SharedSession = world.sim.block_on(connected).unwrap().unwrap();
            // At a random point between two keep-alives.
            world.sim.run_for(world.sim.random_span(Duration::ZERO, 2 * TIMEOUT));
            silence(&world);
            let cut = world.sim.now();
            let calls = session.clone();
            let lost = world.sim.spawn_on(world.nodes[0], async move {
                if asks {
                    let asker = MirrorId([1; 16]);
                    let asked = calls.ask(PeerRequest::Identify { asker }).await;
                    assert!(matches!(asked, Err(IoError::Unreachable)), "{asked:?}");
                }
                calls.lost().await
            });
            world.sim.block_on(lost).unwrap().unwrap();
            let silent = world.sim.now() - cut;
            assert!(silent <= TIMEOUT + MOMENT, "seed {seed}: lost after {silent:?}");
            let after = world.sim.spawn_on(world.nodes[0], async move { session.flush().await });
            let before = world.sim.now();
            assert_eq!(world.sim.block_on(after).unwrap(), Err(IoError::Unreachable));
            let took = world.sim.now() - before;
            assert!(took < MOMENT / 100, "a later call failed after {took:?}");
        }
    }
}

fn versions(lowest: u16, highest: u16) -> LinkVersions {
    LinkVersions::new(lowest, highest).expect("a range")
}

/// Any two releases with a version in common work together, also after upgrades and in both roles.
#[test]
fn different_releases_mirror_and_upgrade() {
    let (before, this, next) = (versions(2, 2), LinkVersions::SPOKEN, versions(3, 5));
    for (seed, [first, second]) in (1..).zip([
        [[before, before], [this, before]],
        [[before, this], [this, this]],
        [[this, before], [this, this]],
        [[this, this], [before, this]],
        [[next, this], [this, next]],
    ]) {
        let (link, memory) = (LinkOptions::default(), Memory::shared());
        let world = World::of(seed, Mode::Async, link, memory, first);
        world.until_mirroring(0);
        world.write(0, 4096, 1);
        world.sim.run_for(Duration::from_secs(2));
        world.releases.set(second);
        world.fail_over_to(1);
        world.write(1, 8192, 2);
        world.sim.restart(world.nodes[0]);
        world.start(0);
        world.until_mirroring(1);
        world.write(1, 12288, 3);
        world.sim.run_for(Duration::from_secs(2));
        world.fail_over_to(0);
        assert_eq!([4096, 8192, 12288].map(|offset| world.read(0, offset)), [1, 2, 3]);
    }
}

/// From a release without a version in common, only the announced versions are used.
#[test]
fn peer_without_common_version_is_mismatch() {
    let releases = [LinkVersions::SPOKEN, versions(5, u16::MAX)];
    let world = World::of(1, Mode::Sync, LinkOptions::default(), Memory::shared(), releases);
    world.sim.run_for(Duration::from_secs(20));
    for (index, peers) in [(0, releases[1]), (1, releases[0])] {
        assert_eq!(world.mirror(index).state(0), MirrorState::Mismatch, "node {index}");
        let mirror = world.mirror(index);
        let status = world.sim.spawn_on(world.nodes[index], async move { mirror.status() });
        let status = world.sim.block_on(status).expect("the task completes");
        assert_eq!(status.peers[0].versions, Some(peers));
        assert!(has_no_handshake(&world, index), "node {index}");
    }
    world.stop(1);
    world.releases.set([releases[0], versions(3, 7)]);
    world.sim.restart(world.nodes[1]);
    world.start(1);
    world.until_mirroring(0);
}

fn has_no_handshake(world: &World, index: usize) -> bool {
    world.mirror(index).last_handshake(0).is_none() && !world.mirror(index).has_source()
}

/// With `on_peer_loss = "block"`, a blocked write kept the host's queue in its old controller. The
/// new controller never became ready, and the host could not read either.
#[test]
fn host_of_blocked_volume_reconnects_and_reads() {
    let world = World::new(3, Mode::Sync);
    world.until_mirroring(0);
    let mirror = world.mirror(0);
    let options = mirror.options(0).expect("there is a peer");
    let block = PeerOptions { on_peer_loss: OnPeerLoss::Block, ..options };
    mirror.set_options(0, block).expect("the same mode");
    world.write(0, 4096, 7);
    world.stop(1);
    let volume = Nqn::new("nqn.2026-01.io.flagstone:db").unwrap();
    let address = Address::Tcp((world.sim.ip(world.nodes[0]), PORT + 1).into());
    let (listens, device) = (address.clone(), mirror.clone());
    world.sim.spawn_on(world.nodes[0], async move {
        let target = Target::new(TargetConfig::default()).unwrap();
        let serial = "2".to_owned();
        let config =
            SubsystemConfig { nqn: volume, serial, allow_hosts: None, keys: Default::default() };
        target.add_subsystem(config).unwrap();
        let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
        target.add_namespace(&volume, namespace).unwrap();
        let listener = Listener::bind(&listens).expect("the port is free");
        while let Ok(stream) = listener.accept().await {
            spawn_detached(serve(target.clone(), stream));
        }
    });
    let machine = world.sim.add_node("host");
    let written = Rc::new(Cell::new(false));
    let done = written.clone();
    let reads = world.sim.spawn_on(machine, async move {
        let options = HostOptions { loss_timeout: 60 * TIMEOUT, ..host_options(2) };
        let device = RemoteDevice::connect(address, &volume, options).await.expect("it serves");
        let device = Rc::new(device);
        for block in 0..40 {
            let (device, done) = (device.clone(), done.clone());
            spawn_detached(async move {
                let mut data = buf::alloc(4096).await;
                data.fill(9);
                device.write((10 + block) * 4096, data.freeze(), false).await.expect("it waits");
                done.set(true);
            });
        }
        // The writes exceed the command timeout several times, and the host reconnects.
        for _ in 0..20 {
            time::sleep(TIMEOUT).await;
            let place = buf::alloc(4096).await;
            let read = time::timeout(8 * TIMEOUT, device.read(4096, place)).await;
            let data = read.expect("the host reconnects").expect("the volume is served");
            assert_eq!(data[0], 7);
        }
    });
    world.sim.block_on(reads).expect("the task completes");
    assert!(!written.get(), "the peer is away");
    let status = world.sim.spawn_on(world.nodes[0], async move { mirror.status() });
    let blocked = world.sim.block_on(status).expect("the task completes").blocked;
    assert!(blocked <= 40, "writes of ended connections are still blocked: {blocked}");
    world.sim.restart(world.nodes[1]);
    world.start(1);
    world.until_mirroring(0);
    world.sim.run_for(30 * TIMEOUT);
    assert!(written.get());
    assert_eq!(world.read(0, 10 * 4096), 9);
}
