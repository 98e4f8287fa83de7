//! Replicas on simulated disks: power failures at every point of a history, and logs that are
//! missing, damaged or foreign.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultLayer, FileDevice, FileOptions, IoFuture, MemoryDevice,
    ZeroFlags,
};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, NodeId, SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, buf, time};

use super::*;
use crate::limits::ACTIVE_REGIONS_MIN;

const DATA: &str = "/dev/data";
const LOG: &str = "/dev/log";
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 44;
/// Tasks that write, each to blocks of its own.
const WRITERS: u64 = 4;

/// A second disk for the log.
const LOG2: &str = "/dev/log2";

/// A history to run.
#[derive(Clone, Copy)]
struct Course {
    separate: bool,
    mode: IntentLogMode,
    /// The log is moved meanwhile: to the second disk, onto the data disk and back.
    moves: bool,
}

/// State of the world outside the replica's disks.
#[derive(Default)]
struct Known {
    /// Version of each block that the peer has durably.
    peer: RefCell<Vec<u64>>,
    /// An epoch that was promised.
    epoch: Cell<u64>,
    /// It was put in use, and not closed.
    in_use: Cell<bool>,
    done: Cell<bool>,
    /// Writers that wait until all regions are inactive.
    resting: Cell<u64>,
    /// Where the operator last saw the log; the first place if `None`.
    log_at: Cell<Option<&'static str>>,
}

fn devices(separate: bool) -> (SharedDevice, Option<SharedDevice>) {
    let open = |path| -> SharedDevice {
        FileDevice::open(path, &FileOptions::default()).expect("the device opens")
    };
    (open(DATA), separate.then(|| open(LOG)))
}

/// Regions of one block: more than can be active at a time.
fn create() -> CreateReplica {
    let geometry = ReplicaGeometry {
        usable_bytes: BLOCK,
        bit_bytes: 4096,
        region_bytes: 4096,
        active_regions_max: ACTIVE_REGIONS_MIN,
    };
    CreateReplica { volume: MirrorId([7; 16]), with_data: true, zeroes: false, geometry }
}

async fn open(separate: bool) -> Replica {
    let (data, log) = devices(separate);
    Replica::open(data, log).await.expect("the disks work")
}

fn world(seed: u64, separate: bool) -> (Simulation, NodeId) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("node");
    // Superblocks, headers, records, a page, and the blocks.
    let size = (BLOCKS + 7) * BLOCK;
    sim.add_disk(node, DATA, DiskConfig::block_device(size));
    sim.add_disk(node, LOG, DiskConfig::block_device(64 << 10));
    sim.add_disk(node, LOG2, DiskConfig::block_device(64 << 10));
    let made = sim.spawn_on(node, async move {
        let (data, log) = devices(separate);
        Replica::create(data, log, create()).await.expect("the disks work");
    });
    sim.block_on(made).expect("the task completes");
    (sim, node)
}

async fn write_block(replica: &Replica, block: u64, version: u64) {
    let mut memory = buf::alloc(BLOCK as usize).await;
    memory.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
    replica.data().write(block * BLOCK, memory.freeze(), false).await.expect("the disk works");
}

/// The version of a block; `None` when it is torn.
async fn read_block(replica: &Replica, block: u64) -> Option<u64> {
    let memory = buf::alloc(BLOCK as usize).await;
    let read = replica.data().read(block * BLOCK, memory).await.expect("the disk works");
    let words = read.as_chunks::<8>().0;
    words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
}

/// One write as the mirror does it: to both legs, or marked while the peer is absent.
async fn mirror_block(replica: &Replica, known: &Known, block: u64, version: u64) {
    let region_ref = replica.reference(block * BLOCK, BLOCK).await.expect("the log works");
    let lost = flagstone_runtime::random_u64().is_multiple_of(3);
    let late = flagstone_runtime::random_u64().is_multiple_of(2);
    if lost {
        replica.mark(block..block + 1);
    } else if !late {
        known.peer.borrow_mut()[block as usize] = version;
    }
    write_block(replica, block, version).await;
    if !lost && late {
        known.peer.borrow_mut()[block as usize] = version;
    }
    drop(region_ref);
}

/// Copies one marked block, as a resync does. No task writes to it meanwhile.
async fn copy_block(replica: &Replica, known: &Known, block: u64) {
    if !replica.bits().any(block..block + 1) {
        return;
    }
    replica.data().flush().await.expect("the disk works");
    let version = read_block(replica, block).await.expect("the block is not torn");
    known.peer.borrow_mut()[block as usize] = version;
    replica.clear(block..block + 1);
}

async fn writer(replica: Replica, known: Rc<Known>, own: u64) {
    for round in 1..=3 {
        for block in (own..BLOCKS).step_by(WRITERS as usize) {
            mirror_block(&replica, &known, block, round * 1000 + block).await;
        }
        for block in (own..BLOCKS).step_by(2 * WRITERS as usize) {
            copy_block(&replica, &known, block).await;
        }
        let epoch = replica.update(|superblock| {
            superblock.epoch += 1;
            superblock.epoch
        });
        let epoch = epoch.await.expect("the disk works");
        known.epoch.set(known.epoch.get().max(epoch));
        if round == 2 {
            // All regions become inactive.
            known.resting.set(known.resting.get() + 1);
            time::sleep(Duration::from_secs(6)).await;
            known.resting.set(known.resting.get() - 1);
        }
    }
}

/// Opens the log's device at a place, which is on the data disk if it is named.
fn log_device(place: &str) -> Option<SharedDevice> {
    let open = || FileDevice::open(place, &FileOptions::default()).expect("the device opens");
    (place != DATA).then(|| -> SharedDevice { open() })
}

async fn mover(replica: Replica, known: Rc<Known>) {
    for place in [LOG2, DATA, LOG] {
        time::sleep(Duration::from_millis(3)).await;
        replica.move_log(log_device(place), place).await.expect("the disks work");
        known.log_at.set(Some(place));
    }
}

async fn history(course: Course, known: Rc<Known>) {
    let replica = open(course.separate).await;
    replica.set_intent_log_mode(course.mode);
    replica.begin_use(|_| {}).await.expect("the disks work");
    known.in_use.set(true);
    let mut tasks: Vec<_> =
        (0..WRITERS).map(|own| spawn(writer(replica.clone(), known.clone(), own))).collect();
    if course.moves {
        tasks.push(spawn(mover(replica.clone(), known.clone())));
    }
    for task in tasks {
        task.await.expect("the task completes");
    }
    let closing = known.clone();
    replica.end_use(move |_| closing.in_use.set(false)).await.expect("the disks work");
    known.done.set(true);
}

/// After a power failure: every difference is marked, and every promise is kept.
async fn check(course: Course, known: Rc<Known>, cut: u64) {
    let replica = match known.log_at.get() {
        None if !course.moves => open(course.separate).await,
        at => open_moved(at.unwrap_or(LOG)).await,
    };
    assert_eq!(replica.log_lost(), None, "cut at {cut}");
    for block in 0..BLOCKS {
        let here = read_block(&replica, block).await;
        let there = known.peer.borrow()[block as usize];
        let marked = replica.bits().any(block..block + 1);
        assert!(
            marked || here == Some(there),
            "cut at {cut}: block {block} is {here:?} here and {there} there, and not marked"
        );
    }
    let superblock = replica.superblock();
    assert!(superblock.epoch >= known.epoch.get(), "cut at {cut}: an epoch is lost");
    assert!(
        superblock.flags.crashed || !known.in_use.get(),
        "cut at {cut}: the crash was not detected"
    );
}

/// Opens the replica with its log at `place`, or where the superblock says that it was moved.
async fn open_moved(place: &str) -> Replica {
    let data = devices(false).0;
    match Replica::open(data.clone(), log_device(place)).await {
        Err(ReplicaError::LogMoved) => {
            let to = read_superblock(&data).await.expect("a superblock").log_place;
            assert_ne!(to, place);
            Replica::open(data, log_device(&to)).await.expect("the disks work")
        }
        opened => opened.expect("the disks work"),
    }
}

/// Operations that all disks have executed.
fn served(sim: &Simulation, node: NodeId) -> u64 {
    let served = |path| {
        let stats = sim.disk_stats(node, path);
        stats.reads + stats.writes + stats.flushes
    };
    served(DATA) + served(LOG) + served(LOG2)
}

/// Runs a history until `cut` operations are done, and slightly longer so that the next ones are in
/// flight. Then cuts the power and checks. Returns false when the history had ended.
fn cut_at(seed: u64, course: Course, cut: u64) -> bool {
    let (sim, node) = world(seed, course.separate);
    let known = Rc::new(Known::default());
    known.peer.borrow_mut().resize(BLOCKS as usize, 0);
    let began = served(&sim, node);
    sim.spawn_on(node, history(course, known.clone()));
    sim.block_on(async {
        while !known.done.get() && served(&sim, node) - began < cut {
            // Steps as long as an operation on an idle disk; a pause has many of them.
            let span = if known.resting.get() == WRITERS { 200 } else { 10 };
            time::sleep(Duration::from_micros(span)).await;
        }
    });
    let ended = known.done.get();
    sim.run_for(sim.random_span(Duration::ZERO, Duration::from_micros(100)));
    sim.power_off(node);
    sim.restart(node);
    let checked = sim.spawn_on(node, check(course, known.clone(), cut));
    sim.block_on(checked).expect("the task completes");
    !ended
}

/// Cuts after each operation of a history.
fn cut_everywhere(seed: u64, separate: bool, mode: IntentLogMode) {
    cut_course_everywhere(seed, Course { separate, mode, moves: false });
}

fn cut_course_everywhere(seed: u64, course: Course) {
    let mut cut = 0;
    while cut_at(seed, course, cut) {
        cut += 1;
    }
    assert!(cut > 100, "the history is longer than {cut} operations");
}

#[test]
fn power_loss_leaves_differences_marked() {
    cut_everywhere(1, false, IntentLogMode::ActiveRegions);
}

#[test]
fn power_loss_with_separate_log() {
    cut_everywhere(2, true, IntentLogMode::ActiveRegions);
}

#[test]
fn power_loss_with_record_per_write() {
    cut_everywhere(8, true, IntentLogMode::EveryWrite);
}

/// Puts a replica in use and closes it, without faults.
async fn use_once(separate: bool) {
    let replica = open(separate).await;
    replica.begin_use(|_| {}).await.expect("the disks work");
    drop(replica.reference(0, BLOCK).await.expect("the log works"));
    replica.end_use(|_| {}).await.expect("the disks work");
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("the task completes")
}

fn found(sim: &Simulation, node: NodeId) -> (Option<LogLost>, u64) {
    on(sim, node, async {
        let replica = open(true).await;
        (replica.log_lost(), replica.bits().count())
    })
}

#[test]
fn untrusted_log_marks_everything() {
    let (sim, node) = world(3, true);
    on(&sim, node, use_once(true));
    assert_eq!(found(&sim, node), (None, 0));
    let saved = sim.peek(node, LOG, 0, 64 << 10);
    on(&sim, node, use_once(true));
    sim.poke(node, LOG, 0, &saved);
    assert_eq!(found(&sim, node), (Some(LogLost::Stale), BLOCKS));
    // It was replaced with all bits set, and is trusted.
    assert_eq!(found(&sim, node), (None, BLOCKS));
    sim.poke(node, LOG, 0, &saved);
    assert_eq!(found(&sim, node), (Some(LogLost::Foreign), BLOCKS));
    sim.poke(node, LOG, 0, &[0; 64 << 10]);
    assert_eq!(found(&sim, node), (Some(LogLost::Header(FormatError::Absent)), BLOCKS));
}

#[test]
fn damaged_bitmap_page_marks_its_blocks() {
    let (sim, node) = world(4, true);
    let layout = crate::ondisk::layout::log_layout(&create().geometry);
    sim.poke(node, LOG, layout.pages + 100, &[0xAA]);
    assert_eq!(found(&sim, node), (None, BLOCKS), "a damaged page marks everything it covers");
    for record in layout.records {
        sim.poke(node, LOG, record + 20, &[0xAA]);
    }
    let (lost, marked) = found(&sim, node);
    assert!(matches!(lost, Some(LogLost::Record(_))) && marked == BLOCKS, "{lost:?}");
}

#[test]
fn unreadable_record_is_not_trusted() {
    let (sim, node) = world(5, true);
    on(&sim, node, use_once(true));
    let layout = crate::ondisk::layout::log_layout(&create().geometry);
    let record = layout.records[1];
    sim.set_faults(node, LOG, DiskFaults::default().unreadable_at(record..record + 512));
    let (lost, marked) = found(&sim, node);
    assert_eq!((lost, marked), (Some(LogLost::Unreadable(IoError::ReadFault)), BLOCKS));
}

/// The log device is on another machine, which becomes unreachable at each step of opening. The log
/// does not count as lost, so nothing has to be copied needlessly.
#[test]
fn unreachable_log_is_not_lost() {
    flagstone_runtime::block_on(async {
        let memory = |bytes| MemoryDevice::new(bytes, 512).expect("a multiple of the block size");
        let data: SharedDevice = Arc::new(memory((BLOCKS + 7) * BLOCK));
        let kept: SharedDevice = Arc::new(memory(64 << 10));
        Replica::create(data.clone(), Some(kept.clone()), create()).await.expect("the disks work");
        let open = |log: &SharedDevice| Replica::open(data.clone(), Some(log.clone()));
        // Reads of the headers, the records and the page.
        for answered in 0..5 {
            let gone: SharedDevice = Arc::new(GoneAfter(kept.clone(), AtomicU64::new(answered)));
            let opened = open(&gone).await.map(|replica| replica.log_lost());
            assert_eq!(opened, Err(ReplicaError::Io(IoError::Unreachable)), "{answered}");
        }
        let replica = open(&kept).await.expect("the device is reachable again");
        assert_eq!((replica.log_lost(), replica.bits().count()), (None, 0));
        // A read fault counts as damage: the log is replaced.
        let (fault, control) =
            FaultLayer::new(kept.clone(), FaultConfig::default()).expect("no fault rates");
        control.fail_next_reads(1);
        let damaged: SharedDevice = Arc::new(fault);
        let replica = open(&damaged).await.expect("the log is replaced");
        assert_eq!(replica.log_lost(), Some(LogLost::Unreadable(IoError::ReadFault)));
    })
    .expect("the executor runs");
}

/// A device whose machine becomes unreachable after some reads, and returns at the next write.
struct GoneAfter(SharedDevice, AtomicU64);

impl BlockDevice for GoneAfter {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => self.0.read(offset, buf),
            Err(_) => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.0.write(offset, data, fua)
    }

    fn flush(&self) -> IoFuture<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

#[test]
fn failed_log_fails_only_inactive_regions() {
    let (sim, node) = world(6, true);
    let world = sim.world();
    on(&sim, node, async move {
        let replica = open(true).await;
        assert!(matches!(replica.reference(0, BLOCK).await, Err(IoError::Unreachable)));
        replica.begin_use(|_| {}).await.expect("the disks work");
        drop(replica.reference(0, BLOCK).await.expect("the log works"));
        world.set_faults(node, LOG, DiskFaults { write_errors: 1.0, ..DiskFaults::default() });
        let before = world.disk_stats(node, LOG).writes;
        for _ in 0..100 {
            drop(replica.try_reference(0, BLOCK).expect("the region is active"));
        }
        assert_eq!(world.disk_stats(node, LOG).writes, before);
        assert_eq!(replica.statistics().activity_log_hits, 100);
        assert!(matches!(replica.reference(BLOCK, BLOCK).await, Err(IoError::WriteFault)));
        drop(replica.try_reference(0, BLOCK).expect("the region is still active"));
        // Its file is poisoned now: nothing more is promised until it is reopened.
        assert!(replica.end_use(|_| {}).await.is_err());
    });
    // On disk it is still in use, and the failed record may name its region.
    let crashed = on(&sim, node, async { open(true).await.superblock().flags.crashed });
    assert!(crashed);
}

#[test]
fn every_write_mode_writes_record_per_call() {
    let (sim, node) = world(9, true);
    let world = sim.world();
    on(&sim, node, async move {
        let replica = open(true).await;
        replica.set_intent_log_mode(IntentLogMode::EveryWrite);
        assert!(matches!(replica.reference(0, BLOCK).await, Err(IoError::Unreachable)));
        replica.begin_use(|_| {}).await.expect("the disks work");
        // Two records: one activates the region, one is for the call itself.
        let before = replica.statistics().record_writes;
        drop(replica.reference(0, BLOCK).await.expect("the log works"));
        assert_eq!(replica.statistics().record_writes - before, 2);
        assert!(replica.try_reference(0, BLOCK).is_none(), "even for an active region");
        let disk = world.disk_stats(node, LOG).writes;
        let region_refs: Vec<_> = (0..20)
            .map(|_| {
                let replica = replica.clone();
                spawn(async move { replica.reference(0, BLOCK).await.map(drop) })
            })
            .collect();
        // Its record has been started: it is written to the end, and no call remains in the region.
        time::sleep(Duration::ZERO).await;
        region_refs[0].abort();
        region_refs[5].abort();
        for (index, region_ref) in region_refs.into_iter().enumerate() {
            assert_eq!(region_ref.await.is_ok(), index != 0 && index != 5);
        }
        let statistics = replica.statistics();
        assert!(world.disk_stats(node, LOG).writes - disk >= 18);
        assert_eq!((statistics.activity_log_hits, statistics.failures), (0, 0));
        let waiting = replica.clone();
        let late = spawn(async move { waiting.reference(0, BLOCK).await.map(drop) });
        time::sleep(Duration::ZERO).await;
        // Waits for all calls to end: a call that waited while holding a region would hang it.
        replica.end_use(|_| {}).await.expect("the disks work");
        assert!(matches!(late.await, Ok(Ok(()) | Err(IoError::Unreachable))));
    });
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.alive(), (0, 0));
    assert!(!on(&sim, node, async { open(true).await.superblock().flags.crashed }));
}

#[test]
fn waiting_calls_share_records_despite_cancellation() {
    let (sim, node) = world(7, false);
    on(&sim, node, async move {
        let replica = open(false).await;
        replica.begin_use(|_| {}).await.expect("the disks work");
        let before = replica.statistics().record_writes;
        let region_refs: Vec<_> = (0..20)
            .map(|block| {
                let replica = replica.clone();
                spawn(async move { replica.reference(block * BLOCK, BLOCK).await.map(drop) })
            })
            .collect();
        region_refs[5].abort();
        for (index, region_ref) in region_refs.into_iter().enumerate() {
            assert_eq!(region_ref.await.is_ok(), index != 5);
        }
        assert!(replica.statistics().record_writes - before <= 2);
        // Waits for all calls to end: a call left inside would hang it.
        replica.end_use(|_| {}).await.expect("the disks work");
        assert_eq!(replica.statistics().active_regions, 0);
    });
    assert_eq!(sim.alive().0, 1, "only the ticker is left, until its next tick");
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.alive(), (0, 0));
}

#[path = "stale_log_tests.rs"]
mod stale;

#[path = "log_device_tests.rs"]
mod log_device;

#[path = "move_log_tests.rs"]
mod move_log;
