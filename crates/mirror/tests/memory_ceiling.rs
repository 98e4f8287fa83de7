//! Mirrors while hosts hold all pooled memory. A process of its own, because the memory limit
//! applies to a process.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultControl, FaultLayer, IoError, IoFuture, MemoryDevice,
    SharedDevice, ZeroFlags,
};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::io::reorder::WriteOrder;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::session::target::TargetSession;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::{PeerAnswer, PeerConnector, PeerRequest, PeerSession};
use flagstone_mirror::{Mirror, OnPeerLoss, PeerOptions};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, JoinHandle, buf, spawn, time};
use parking_lot::Mutex;

const MIB: usize = 1 << 20;
/// The memory limit, in bytes.
const ALL: usize = 16 * MIB;
/// A volume whose log has several pages and whose activity record may have several.
const SHAPE: ReplicaGeometry = ReplicaGeometry {
    usable_bytes: 256 << 20,
    bit_bytes: 4096,
    region_bytes: 16 << 10,
    active_regions_max: 2048,
};

/// One test at a time uses the memory limit.
fn alone(test: impl AsyncFn() + Sync) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    std::thread::scope(|scope| {
        let world = || {
            buf::set_memory_limit(ALL);
            let all = async { time::timeout(Duration::from_secs(300), test()).await };
            let ended = Simulation::new(1, SimConfig::default()).block_on(all);
            assert!(ended.is_ok(), "a call waits forever");
        };
        if let Err(panic) = scope.spawn(world).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Connects to a mirror in the same process; without one, connections fail.
struct Way {
    to: Option<Mirror>,
    cut: AtomicBool,
    /// Writes do not complete before the connection is lost.
    hung: AtomicBool,
    /// Writes that hang.
    hanging: AtomicUsize,
    lines: Mutex<Vec<Weak<Line>>>,
}

impl Way {
    fn to(to: Option<Mirror>) -> Arc<Way> {
        let (cut, hung, hanging) = Default::default();
        Arc::new(Way { to, cut, hung, hanging, lines: Mutex::default() })
    }

    fn cut(&self) {
        self.cut.store(true, SeqCst);
        let lines: Vec<_> = self.lines.lock().drain(..).collect();
        lines.iter().filter_map(Weak::upgrade).for_each(|line| line.disconnect());
    }

    fn heal(&self) {
        self.cut.store(false, SeqCst);
    }
}

struct Link(Arc<Way>);

impl PeerConnector for Link {
    fn connect(&self) -> IoFuture<Arc<dyn PeerSession>> {
        let Some(to) = self.0.to.as_ref().filter(|_| !self.0.cut.load(SeqCst)) else {
            return IoFuture::ready(Err(IoError::Unreachable));
        };
        let target = to.session();
        let (lost, wakers) = Default::default();
        let line = Arc::new(Line { target, way: self.0.clone(), lost, wakers });
        self.0.lines.lock().push(Arc::downgrade(&line));
        IoFuture::ready(Ok(Arc::new(Connected(line))))
    }
}

/// A connection.
struct Line {
    target: Arc<TargetSession>,
    way: Arc<Way>,
    lost: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Line {
    fn disconnect(&self) {
        self.lost.store(true, SeqCst);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

struct Connected(Arc<Line>);

impl Connected {
    fn call<T>(&self, call: impl FnOnce(&Arc<TargetSession>) -> IoFuture<T>) -> IoFuture<T> {
        match self.0.lost.load(SeqCst) {
            true => IoFuture::ready(Err(IoError::Unreachable)),
            false => call(&self.0.target),
        }
    }
}

impl PeerSession for Connected {
    fn ask(&self, request: PeerRequest) -> IoFuture<PeerAnswer> {
        self.call(|target| target.ask(request))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(|target| target.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<WriteOrder>) -> IoFuture<()> {
        if self.0.way.hung.load(SeqCst) {
            self.0.way.hanging.fetch_add(1, SeqCst);
            let lost = self.lost();
            return IoFuture::later(async move {
                let _held = data;
                lost.await.and(Err(IoError::Unreachable))
            });
        }
        self.call(|target| target.write(offset, data, fua, order))
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        self.call(|target| target.write_zeroes(offset, len, flags, order))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(|target| target.flush())
    }

    fn lost(&self) -> IoFuture<()> {
        let line = self.0.clone();
        let lost = poll_fn(move |cx| {
            line.wakers.lock().push(cx.waker().clone());
            if line.lost.load(SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        IoFuture::later(lost)
    }

    fn close(&self) {
        self.0.disconnect();
    }
}

async fn replica(with_data: bool) -> (SharedDevice, Replica) {
    replica_on(Arc::new(MemoryDevice::new(288 << 20, 4096).unwrap()), with_data).await
}

async fn replica_on(device: SharedDevice, with_data: bool) -> (SharedDevice, Replica) {
    let create =
        CreateReplica { volume: MirrorId([7; 16]), with_data, zeroes: false, geometry: SHAPE };
    Replica::create_within(device.clone(), None, create, SHAPE.usable_bytes).await.unwrap();
    (device.clone(), Replica::open(device, None).await.unwrap())
}

/// A source and its target, in sync.
struct Pair {
    source: Mirror,
    target: Mirror,
    connector: Arc<Way>,
    devices: [SharedDevice; 2],
}

impl Pair {
    async fn new(change: impl FnOnce(&mut PeerOptions)) -> Pair {
        Pair::of(replica(true).await, change).await
    }

    /// A pair whose source's device can fail.
    async fn failing() -> (Pair, FaultControl) {
        let device: SharedDevice = Arc::new(MemoryDevice::new(288 << 20, 4096).unwrap());
        let (device, control) = FaultLayer::new(device, FaultConfig::default()).unwrap();
        (Pair::of(replica_on(Arc::new(device), true).await, |_| {}).await, control)
    }

    async fn of(
        (here, source): (SharedDevice, Replica),
        change: impl FnOnce(&mut PeerOptions),
    ) -> Pair {
        let (there, target) = replica(false).await;
        let target = Mirror::new(target, vec![PeerOptions::new(Arc::new(Link(Way::to(None))))]);
        let connector = Way::to(Some(target.clone()));
        let mut options = PeerOptions::new(Arc::new(Link(connector.clone())));
        change(&mut options);
        let source = Mirror::new(source, vec![options]);
        assert!(source.start().await.unwrap());
        let pair = Pair { source, target, connector, devices: [here, there] };
        pair.until(MirrorState::Mirroring).await;
        pair
    }

    async fn until(&self, wanted: MirrorState) {
        let mut state = self.source.state(0);
        while state != wanted {
            state = self.source.state_changed(0, state).await;
        }
    }

    /// Waits until `count` writes are blocked.
    async fn until_held(&self, count: u64) {
        while self.source.status().blocked != count {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Both have the same data.
    async fn check(&self) {
        let mut at = 0;
        while at < SHAPE.usable_bytes {
            let read = async |device: &SharedDevice| {
                device.read(at, buf::try_alloc(MIB).unwrap()).await.unwrap()
            };
            let [here, there] = [read(&self.devices[0]).await, read(&self.devices[1]).await];
            assert!(here[..] == there[..], "they differ in the MiB at {at}");
            at += MIB as u64;
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.source.close();
        self.target.close();
    }
}

/// All memory, in buffers of `bytes`.
fn take_all(len: usize) -> Vec<Buf> {
    let all = std::iter::from_fn(|| buf::try_alloc(len));
    let all = all.enumerate().map(|(number, mut buf)| {
        buf.fill(1 + (number % 251) as u8);
        buf.freeze()
    });
    let all: Vec<Buf> = all.collect();
    assert_eq!(buf::memory_under_limit(), ALL, "in blocks of {len}");
    all
}

/// One host write per buffer, from `offset` in steps of `step` bytes.
fn write_all(
    mirror: &Mirror,
    (offset, step): (u64, usize),
    all: Vec<Buf>,
) -> Vec<JoinHandle<Result<(), IoError>>> {
    let place_metadata = (offset..).step_by(step);
    let write = |(at, data)| {
        let mirror = mirror.clone();
        spawn(async move { mirror.write(at, data, false).await })
    };
    place_metadata.zip(all).map(write).collect()
}

async fn ended(writes: Vec<JoinHandle<Result<(), IoError>>>) -> Vec<Result<(), IoError>> {
    let mut results = Vec::new();
    for write in writes {
        results.push(write.await.unwrap());
    }
    results
}

/// Records, and the pages of evicted regions, are written for hosts that hold all memory. The log
/// stays intact: it is found and trusted, again without memory.
#[test]
fn regions_are_activated_without_free_memory() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        pair.connector.cut();
        // One region each, more than can be active at a time; and some that are split.
        for (round, len) in [(0, 4096), (1, MIB)] {
            let offset = round * (128 << 20) + (8 << 10);
            let step = len.max(SHAPE.region_bytes as usize);
            let writes = write_all(&pair.source, (offset, step), take_all(len));
            assert!(ended(writes).await.iter().all(Result::is_ok));
        }
        let statistics = pair.source.log_statistics();
        assert!(
            statistics.activity_log_misses > u64::from(SHAPE.active_regions_max),
            "{statistics:?}"
        );
        assert!(statistics.page_writes > 0, "{statistics:?}");
        let held = take_all(MIB);
        let found = Replica::open(pair.devices[0].clone(), None).await.unwrap();
        assert_eq!(found.log_lost(), None);
        assert!(found.superblock().flags.crashed && found.bits().any(2..4));
        drop(held);
        pair.connector.heal();
        pair.until(MirrorState::Mirroring).await;
        pair.check().await;
    });
}

/// A peer is lost while writes hold all memory: a new generation is started.
#[test]
fn new_generation_without_free_memory() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
        pair.connector.cut();
        assert!(ended(writes).await.iter().all(Result::is_ok));
        assert_eq!(pair.source.status().peers[0].disconnects, 1);
        assert_eq!(pair.source.state(0), MirrorState::ResyncPending);
        let status = [pair.source.status(), pair.target.status()];
        assert_ne!(status[0].generation, status[1].generation);
    });
}

/// Host writes waiting for a resync may hold all memory. The resync has reserved memory, and so has
/// the comparison on the other side.
#[test]
fn resync_proceeds_without_free_memory() {
    for compare in [false, true] {
        alone(async || {
            let pair = Pair::new(|options| {
                (options.on_peer_loss, options.compare) = (OnPeerLoss::Block, compare);
            })
            .await;
            pair.connector.cut();
            pair.source.set_desired_state(0, DesiredState::Paused).await.unwrap();
            let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
            assert!(ended(writes).await.iter().all(Result::is_ok));
            pair.source.set_desired_state(0, DesiredState::Connected).await.unwrap();
            // One of these is blocked, and the others hold all memory until the end.
            let others = take_all(MIB);
            let one = vec![others[0].clone()];
            let held = write_all(&pair.source, (MIB as u64 / 2, MIB), one);
            pair.until_held(1).await;
            pair.connector.heal();
            assert!(ended(held).await.iter().all(Result::is_ok));
            pair.until(MirrorState::Mirroring).await;
            assert!(pair.source.status().peers[0].resync_done_bytes >= 16 << 20);
            drop(others);
            pair.check().await;
        });
    }
}

/// Writes that wait for the range of a copy hold all memory: the copy acquires its own before the
/// range.
#[test]
fn resync_proceeds_when_range_waiters_hold_memory() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        pair.connector.cut();
        let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
        assert!(ended(writes).await.iter().all(Result::is_ok));
        let all = take_all(MIB);
        pair.connector.heal();
        while pair.source.status().peers[0].resync_total_bytes != 16 << 20 {
            time::sleep(Duration::from_millis(1)).await;
        }
        // All within the first copy.
        let writes = write_all(&pair.source, (4096, 4096), all);
        assert!(ended(writes).await.iter().all(Result::is_ok));
        pair.until(MirrorState::Mirroring).await;
        pair.check().await;
    });
}

/// A repair holds the range that copies and host writes wait for, so it waits for no memory:
/// neither for the hosts', nor for the reserve of the copies.
#[test]
fn repair_proceeds_without_free_memory_and_reserve() {
    alone(async || {
        let ((pair, control), other) = (Pair::failing().await, Pair::new(|_| {}).await);
        other.connector.cut();
        // One copy: others would wait for memory, and take what the host frees below.
        let data = buf::try_alloc(4096).unwrap().freeze();
        other.source.write(0, data, false).await.unwrap();
        let mut held = take_all(MIB);
        // The copy takes the reserve, and keeps it.
        other.connector.hung.store(true, SeqCst);
        other.connector.heal();
        while other.connector.hanging.load(SeqCst) == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        control.fail_reads(4096..8192);
        held.pop();
        let found = pair.source.read(0, buf::try_alloc(512 << 10).unwrap()).await.unwrap();
        held.extend(std::iter::from_fn(|| buf::try_alloc(4096)).map(BufMut::freeze));
        while pair.source.status().repairs == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop((found, held));
        other.connector.hung.store(false, SeqCst);
        other.connector.cut();
        other.connector.heal();
        other.until(MirrorState::Mirroring).await;
    });
}

/// Writes that stay blocked while a peer is absent leave memory for everything else, including the
/// return of the peer. Writes beyond that fail, and their hosts resend them.
#[test]
fn blocked_writes_hold_a_sixteenth_of_memory() {
    alone(async || {
        let pair = Pair::new(|options| options.on_peer_loss = OnPeerLoss::Block).await;
        pair.connector.cut();
        pair.until(MirrorState::Disconnected).await;
        let len = 256 << 10;
        let writes = write_all(&pair.source, (0, len), take_all(len));
        pair.until_held(64).await;
        // Before any of them has failed, as other tasks see it.
        assert!(writes.iter().all(|write| !write.is_finished()));
        let others: Vec<_> = std::iter::from_fn(|| buf::try_alloc(MIB)).collect();
        assert_eq!(others.len(), 15);
        drop(others);
        pair.until_held(4).await;
        pair.connector.heal();
        let results = ended(writes).await;
        let ends_as = |end: Result<(), IoError>| results.iter().filter(|one| **one == end).count();
        assert_eq!((ends_as(Ok(())), ends_as(Err(IoError::Unreachable))), (4, 60));
        pair.until(MirrorState::Mirroring).await;
        // They are resent, and succeed as usual.
        let again = write_all(&pair.source, (0, len), take_all(len));
        assert!(ended(again).await.iter().all(Result::is_ok));
        pair.check().await;
    });
}
