//! Mirrors while hosts hold all pooled memory, in a process of its own: the ceiling is the process's.
//!
//! Time is simulated: what waits for ever ends with the time-out of the test at once.
#![allow(missing_docs)]

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError, IoFuture, MemoryDevice, SharedDevice, ZeroFlags};
use flagstone_mirror::id::Uuid;
use flagstone_mirror::order::Order;
use flagstone_mirror::peer::{Answer, Peer, Request, Session};
use flagstone_mirror::replica::{Create, Replica};
use flagstone_mirror::shape::Shape;
use flagstone_mirror::state::{MirrorState, Wish};
use flagstone_mirror::target::TargetSession;
use flagstone_mirror::{Mirror, PeerOptions, WhenPeerLost};
use flagstone_runtime::sim::{Config, Simulation};
use flagstone_runtime::{Buf, BufMut, JoinHandle, buf, spawn, time};

const MIB: usize = 1 << 20;
/// The ceiling, in bytes.
const ALL: usize = 16 * MIB;
/// A volume whose log has several pages, and whose hot record may have.
const SHAPE: Shape =
    Shape { usable_bytes: 256 << 20, bit_bytes: 4096, region_bytes: 16 << 10, hot_regions: 2048 };

/// One test at a time has the ceiling.
fn alone(test: impl AsyncFn() + Sync) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let world = || {
            buf::set_memory_limit(ALL);
            let all = async { time::timeout(Duration::from_secs(300), test()).await };
            let ended = Simulation::new(1, Config::default()).block_on(all);
            assert!(ended.is_ok(), "something waits for ever");
        };
        if let Err(panic) = scope.spawn(world).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The way to a mirror in the same process; to none it leads nowhere.
struct Way {
    to: Option<Mirror>,
    cut: AtomicBool,
    lines: Mutex<Vec<Weak<Line>>>,
}

impl Way {
    fn to(to: Option<Mirror>) -> Arc<Way> {
        Arc::new(Way { to, cut: AtomicBool::new(false), lines: Mutex::default() })
    }

    fn cut(&self) {
        self.cut.store(true, SeqCst);
        let lines: Vec<_> = self.lines.lock().unwrap().drain(..).collect();
        lines.iter().filter_map(Weak::upgrade).for_each(|line| line.lose());
    }

    fn heal(&self) {
        self.cut.store(false, SeqCst);
    }
}

struct Link(Arc<Way>);

impl Peer for Link {
    fn connect(&self) -> IoFuture<Arc<dyn Session>> {
        let Some(to) = self.0.to.as_ref().filter(|_| !self.0.cut.load(SeqCst)) else {
            return IoFuture::ready(Err(IoError::Unreachable));
        };
        let target = to.session();
        let line = Line { target, lost: AtomicBool::new(false), wakers: Mutex::default() };
        let line = Arc::new(line);
        self.0.lines.lock().unwrap().push(Arc::downgrade(&line));
        IoFuture::ready(Ok(Arc::new(Connected(line))))
    }
}

/// A connection.
struct Line {
    target: Arc<TargetSession>,
    lost: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Line {
    fn lose(&self) {
        self.lost.store(true, SeqCst);
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap());
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

impl Session for Connected {
    fn ask(&self, request: Request) -> IoFuture<Answer> {
        self.call(|target| target.ask(request))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(|target| target.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<Order>) -> IoFuture<()> {
        self.call(|target| target.write(offset, data, fua, order))
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<Order>,
    ) -> IoFuture<()> {
        self.call(|target| target.write_zeroes(offset, len, flags, order))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(|target| target.flush())
    }

    fn lost(&self) -> IoFuture<()> {
        let line = self.0.clone();
        let lost = poll_fn(move |cx| {
            line.wakers.lock().unwrap().push(cx.waker().clone());
            if line.lost.load(SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        IoFuture::later(lost)
    }

    fn close(&self) {
        self.0.lose();
    }
}

async fn replica(with_data: bool) -> (SharedDevice, Replica) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(288 << 20, 4096).unwrap());
    let create = Create { volume: Uuid([7; 16]), with_data, shape: SHAPE };
    Replica::create_within(device.clone(), None, create, SHAPE.usable_bytes).await.unwrap();
    (device.clone(), Replica::open(device, None).await.unwrap())
}

/// A source and its target, in sync.
struct Pair {
    source: Mirror,
    target: Mirror,
    way: Arc<Way>,
    devices: [SharedDevice; 2],
}

impl Pair {
    async fn new(change: impl FnOnce(&mut PeerOptions)) -> Pair {
        let [(here, source), (there, target)] = [replica(true).await, replica(false).await];
        let target = Mirror::new(target, vec![PeerOptions::new(Arc::new(Link(Way::to(None))))]);
        let way = Way::to(Some(target.clone()));
        let mut options = PeerOptions::new(Arc::new(Link(way.clone())));
        change(&mut options);
        let source = Mirror::new(source, vec![options]);
        assert!(source.start().await.unwrap());
        let pair = Pair { source, target, way, devices: [here, there] };
        pair.until(MirrorState::Mirroring).await;
        pair
    }

    async fn until(&self, wanted: MirrorState) {
        let mut state = self.source.state(0);
        while state != wanted {
            state = self.source.state_changed(0, state).await;
        }
    }

    /// Waits until so many writes are held.
    async fn until_held(&self, count: u64) {
        while self.source.status().held != count {
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

/// All memory there is, in buffers of so many bytes.
fn take_all(len: usize) -> Vec<Buf> {
    let all = std::iter::from_fn(|| buf::try_alloc(len));
    let all = all.enumerate().map(|(number, mut buf)| {
        buf.fill(1 + (number % 251) as u8);
        buf.freeze()
    });
    let all: Vec<Buf> = all.collect();
    assert_eq!(buf::memory_under_ceiling(), ALL, "in blocks of {len}");
    all
}

/// A write of a host each, from `offset` on in steps of `step` bytes.
fn write_all(
    mirror: &Mirror,
    (offset, step): (u64, usize),
    all: Vec<Buf>,
) -> Vec<JoinHandle<Result<(), IoError>>> {
    let places = (offset..).step_by(step);
    let write = |(at, data)| {
        let mirror = mirror.clone();
        spawn(async move { mirror.write(at, data, false).await })
    };
    places.zip(all).map(write).collect()
}

async fn ended(writes: Vec<JoinHandle<Result<(), IoError>>>) -> Vec<Result<(), IoError>> {
    let mut results = Vec::new();
    for write in writes {
        results.push(write.await.unwrap());
    }
    results
}

/// Records, and pages of regions that leave, are written for who has all memory. What they leave is
/// whole: the log is found, and trusted, with as little memory.
#[test]
fn writes_that_hold_all_memory_have_their_regions_made_hot() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        pair.way.cut();
        // A region each, more of them than are hot at a time; and some that are cut into pieces.
        for (round, len) in [(0, 4096), (1, MIB)] {
            let offset = round * (128 << 20) + (8 << 10);
            let step = len.max(SHAPE.region_bytes as usize);
            let writes = write_all(&pair.source, (offset, step), take_all(len));
            assert!(ended(writes).await.iter().all(Result::is_ok));
        }
        let statistics = pair.source.log_statistics();
        assert!(statistics.cold_calls > u64::from(SHAPE.hot_regions), "{statistics:?}");
        assert!(statistics.page_writes > 0, "{statistics:?}");
        let held = take_all(MIB);
        let found = Replica::open(pair.devices[0].clone(), None).await.unwrap();
        assert_eq!(found.lost(), None);
        assert!(found.superblock().flags.crashed && found.bits().any(2..4));
        drop(held);
        pair.way.heal();
        pair.until(MirrorState::Mirroring).await;
        pair.check().await;
    });
}

/// A peer is lost under writes that hold all memory: a generation is minted.
#[test]
fn a_peer_is_recorded_as_out_of_date_for_writes_that_hold_all_memory() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
        pair.way.cut();
        assert!(ended(writes).await.iter().all(Result::is_ok));
        assert_eq!(pair.source.status().peers[0].losses, 1);
        assert_eq!(pair.source.state(0), MirrorState::ResyncPending);
        let status = [pair.source.status(), pair.target.status()];
        assert_ne!(status[0].generation, status[1].generation);
    });
}

/// What waits for a resync may have all memory: the resync has some of its own, and so has the
/// comparison at its other end.
#[test]
fn a_resync_goes_on_while_others_hold_all_memory() {
    for compare in [false, true] {
        alone(async || {
            let pair = Pair::new(|options| {
                (options.when_lost, options.compare) = (WhenPeerLost::Strict, compare);
            })
            .await;
            pair.way.cut();
            pair.source.set_wish(0, Wish::Pause).await.unwrap();
            let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
            assert!(ended(writes).await.iter().all(Result::is_ok));
            pair.source.set_wish(0, Wish::Mirror).await.unwrap();
            // One of these is held, and all of it is kept by others until the end.
            let others = take_all(MIB);
            let one = vec![others[0].clone()];
            let held = write_all(&pair.source, (MIB as u64 / 2, MIB), one);
            pair.until_held(1).await;
            pair.way.heal();
            assert!(ended(held).await.iter().all(Result::is_ok));
            pair.until(MirrorState::Mirroring).await;
            assert!(pair.source.status().peers[0].resync_done_bytes >= 16 << 20);
            drop(others);
            pair.check().await;
        });
    }
}

/// Writes that wait for the range of a copy hold all memory: the copy has its own before the range.
#[test]
fn a_resync_goes_on_while_what_waits_for_its_ranges_holds_all_memory() {
    alone(async || {
        let pair = Pair::new(|_| {}).await;
        pair.way.cut();
        let writes = write_all(&pair.source, (0, MIB), take_all(MIB));
        assert!(ended(writes).await.iter().all(Result::is_ok));
        let all = take_all(MIB);
        pair.way.heal();
        while pair.source.status().peers[0].resync_total_bytes != 16 << 20 {
            time::sleep(Duration::from_millis(1)).await;
        }
        // All where the first copy is.
        let writes = write_all(&pair.source, (4096, 4096), all);
        assert!(ended(writes).await.iter().all(Result::is_ok));
        pair.until(MirrorState::Mirroring).await;
        pair.check().await;
    });
}

/// Writes that are held for as long as a peer is away leave memory to all others, and to what brings
/// the peer back. Those that would take more are their hosts' to send again.
#[test]
fn writes_that_are_held_keep_a_sixteenth_of_all_memory() {
    alone(async || {
        let pair = Pair::new(|options| options.when_lost = WhenPeerLost::Strict).await;
        pair.way.cut();
        pair.until(MirrorState::Disconnected).await;
        let len = 256 << 10;
        let writes = write_all(&pair.source, (0, len), take_all(len));
        pair.until_held(64).await;
        // Before any has ended, as others see it.
        assert!(writes.iter().all(|write| !write.is_finished()));
        let others: Vec<_> = std::iter::from_fn(|| buf::try_alloc(MIB)).collect();
        assert_eq!(others.len(), 15);
        drop(others);
        pair.until_held(4).await;
        pair.way.heal();
        let results = ended(writes).await;
        let ends_as = |end: Result<(), IoError>| results.iter().filter(|one| **one == end).count();
        assert_eq!((ends_as(Ok(())), ends_as(Err(IoError::Unreachable))), (4, 60));
        pair.until(MirrorState::Mirroring).await;
        // They come again, and now it is as it always was.
        let again = write_all(&pair.source, (0, len), take_all(len));
        assert!(ended(again).await.iter().all(Result::is_ok));
        pair.check().await;
    });
}
