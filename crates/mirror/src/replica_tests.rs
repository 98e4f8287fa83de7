//! Replicas on simulated disks: power losses at every moment of a history, and logs that are gone,
//! old or another's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, Fault, FaultConfig, FileDevice, FileOptions, IoFuture, MemoryDevice, ZeroFlags,
};
use flagstone_runtime::sim::{Config, DiskConfig, DiskFaults, NodeId, Simulation};
use flagstone_runtime::{Buf, BufMut, buf, time};

use super::*;
use crate::limits::HOT_MIN;

const DATA: &str = "/dev/data";
const LOG: &str = "/dev/log";
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 44;
/// Tasks that write; each has blocks of its own.
const WRITERS: u64 = 4;

/// What the test knows of the world beside the replica's disks.
#[derive(Default)]
struct Known {
    /// What the peer holds, durably: a version a block.
    peer: RefCell<Vec<u64>>,
    /// An epoch that was promised.
    epoch: Cell<u64>,
    /// It was opened for use, and not closed.
    in_use: Cell<bool>,
    done: Cell<bool>,
    /// Writers that wait for everything to cool.
    resting: Cell<u64>,
}

fn devices(separate: bool) -> (SharedDevice, Option<SharedDevice>) {
    let open = |path| -> SharedDevice {
        FileDevice::open(path, &FileOptions::default()).expect("the disk is free")
    };
    (open(DATA), separate.then(|| open(LOG)))
}

/// Regions of one block: more than are hot at a time.
fn create() -> Create {
    let shape =
        Shape { usable_bytes: BLOCK, bit_bytes: 4096, region_bytes: 4096, hot_regions: HOT_MIN };
    Create { volume: Uuid([7; 16]), with_data: true, shape }
}

async fn open(separate: bool) -> Replica {
    let (data, log) = devices(separate);
    Replica::open(data, log).await.expect("sound disks")
}

fn world(seed: u64, separate: bool) -> (Simulation, NodeId) {
    let sim = Simulation::new(seed, Config::default());
    let node = sim.add_node("node");
    // Superblocks, headers, records, a page, and the blocks.
    let size = (BLOCKS + 7) * BLOCK;
    sim.add_disk(node, DATA, DiskConfig::block_device(size));
    sim.add_disk(node, LOG, DiskConfig::block_device(64 << 10));
    let made = sim.spawn_on(node, async move {
        let (data, log) = devices(separate);
        Replica::create(data, log, create()).await.expect("sound disks");
    });
    sim.block_on(made).expect("nobody ends it");
    (sim, node)
}

async fn write_block(replica: &Replica, block: u64, version: u64) {
    let mut memory = buf::alloc(BLOCK as usize).await;
    memory.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
    replica.data().write(block * BLOCK, memory.freeze(), false).await.expect("a sound disk");
}

/// The version of a block; none when it is torn.
async fn read_block(replica: &Replica, block: u64) -> Option<u64> {
    let memory = buf::alloc(BLOCK as usize).await;
    let read = replica.data().read(block * BLOCK, memory).await.expect("a sound disk");
    let words = read.as_chunks::<8>().0;
    words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
}

/// One write as the path makes it: both legs at once, or marked where the peer is not there.
async fn mirror_block(replica: &Replica, known: &Known, block: u64, version: u64) {
    let pin = replica.pin(block * BLOCK, BLOCK).await.expect("a sound log");
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
    drop(pin);
}

/// Copies one marked block, as a resync does. Nobody writes to it meanwhile.
async fn copy_block(replica: &Replica, known: &Known, block: u64) {
    if !replica.bits().any(block..block + 1) {
        return;
    }
    replica.data().flush().await.expect("a sound disk");
    let version = read_block(replica, block).await.expect("it was written whole, or never");
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
        let epoch = epoch.await.expect("a sound disk");
        known.epoch.set(known.epoch.get().max(epoch));
        if round == 2 {
            // All of it cools.
            known.resting.set(known.resting.get() + 1);
            time::sleep(Duration::from_secs(6)).await;
            known.resting.set(known.resting.get() - 1);
        }
    }
}

async fn history(separate: bool, intent: Intent, known: Rc<Known>) {
    let replica = open(separate).await;
    replica.set_intent(intent);
    replica.begin_use(|_| {}).await.expect("sound disks");
    known.in_use.set(true);
    let tasks: Vec<_> =
        (0..WRITERS).map(|own| spawn(writer(replica.clone(), known.clone(), own))).collect();
    for task in tasks {
        task.await.expect("nobody ends it");
    }
    let closing = known.clone();
    replica.end_use(move |_| closing.in_use.set(false)).await.expect("sound disks");
    known.done.set(true);
}

/// After a power loss: every difference is marked, and what was promised is there.
async fn check(separate: bool, known: Rc<Known>, cut: u64) {
    let replica = open(separate).await;
    assert_eq!(replica.lost(), None, "cut at {cut}");
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
        "cut at {cut}: a crash goes unnoticed"
    );
}

/// Operations that both disks have served.
fn served(sim: &Simulation, node: NodeId) -> u64 {
    let served = |path| {
        let stats = sim.disk_stats(node, path);
        stats.reads + stats.writes + stats.flushes
    };
    served(DATA) + served(LOG)
}

/// Runs a history until so many operations are done, and a little longer, so that the next are in
/// flight. Takes the power, and looks. False when the history had ended.
fn cut_at(seed: u64, separate: bool, intent: Intent, cut: u64) -> bool {
    let (sim, node) = world(seed, separate);
    let known = Rc::new(Known::default());
    known.peer.borrow_mut().resize(BLOCKS as usize, 0);
    let began = served(&sim, node);
    sim.spawn_on(node, history(separate, intent, known.clone()));
    sim.block_on(async {
        while !known.done.get() && served(&sim, node) - began < cut {
            // Steps as long as an operation at rest: a pause has many of the short ones.
            let span = if known.resting.get() == WRITERS { 200 } else { 10 };
            time::sleep(Duration::from_micros(span)).await;
        }
    });
    let ended = known.done.get();
    sim.run_for(sim.random_span(Duration::ZERO, Duration::from_micros(100)));
    sim.power_off(node);
    sim.restart(node);
    let checked = sim.spawn_on(node, check(separate, known.clone(), cut));
    sim.block_on(checked).expect("nobody ends it");
    !ended
}

/// After each operation of a history, from the first to the last.
fn cut_everywhere(seed: u64, separate: bool, intent: Intent) {
    let mut cut = 0;
    while cut_at(seed, separate, intent, cut) {
        cut += 1;
    }
    assert!(cut > 100, "the history is longer than {cut} operations");
}

#[test]
fn a_power_loss_at_any_moment_leaves_every_difference_marked() {
    cut_everywhere(1, false, Intent::HotRegions);
}

#[test]
fn the_same_with_the_log_on_a_device_of_its_own() {
    cut_everywhere(2, true, Intent::HotRegions);
}

#[test]
fn the_same_with_a_record_for_each_write() {
    cut_everywhere(8, true, Intent::EveryWrite);
}

/// Opens for use and closes, in a world without faults.
async fn use_once(separate: bool) {
    let replica = open(separate).await;
    replica.begin_use(|_| {}).await.expect("sound disks");
    drop(replica.pin(0, BLOCK).await.expect("a sound log"));
    replica.end_use(|_| {}).await.expect("sound disks");
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("nobody ends it")
}

fn found(sim: &Simulation, node: NodeId) -> (Option<Lost>, u64) {
    on(sim, node, async {
        let replica = open(true).await;
        (replica.lost(), replica.bits().count())
    })
}

#[test]
fn a_log_that_is_not_the_latest_own_marks_everything() {
    let (sim, node) = world(3, true);
    on(&sim, node, use_once(true));
    assert_eq!(found(&sim, node), (None, 0));
    let saved = sim.peek(node, LOG, 0, 64 << 10);
    on(&sim, node, use_once(true));
    sim.poke(node, LOG, 0, &saved);
    assert_eq!(found(&sim, node), (Some(Lost::Stale), BLOCKS));
    // It was made anew, all marked, and is trusted.
    assert_eq!(found(&sim, node), (None, BLOCKS));
    sim.poke(node, LOG, 0, &saved);
    assert_eq!(found(&sim, node), (Some(Lost::Foreign), BLOCKS));
    sim.poke(node, LOG, 0, &[0; 64 << 10]);
    assert_eq!(found(&sim, node), (Some(Lost::Header(FormatError::Absent)), BLOCKS));
}

#[test]
fn damage_marks_what_it_may_hide() {
    let (sim, node) = world(4, true);
    let layout = crate::shape::log_layout(&create().shape);
    sim.poke(node, LOG, layout.pages + 100, &[0xAA]);
    assert_eq!(found(&sim, node), (None, BLOCKS), "a page says nothing when it is damaged");
    for record in layout.records {
        sim.poke(node, LOG, record + 20, &[0xAA]);
    }
    let (lost, marked) = found(&sim, node);
    assert!(matches!(lost, Some(Lost::Record(_))) && marked == BLOCKS, "{lost:?}");
}

#[test]
fn what_cannot_be_read_may_be_the_latest() {
    let (sim, node) = world(5, true);
    on(&sim, node, use_once(true));
    let layout = crate::shape::log_layout(&create().shape);
    let record = layout.records[1];
    sim.set_faults(node, LOG, DiskFaults::default().unreadable_at(record..record + 512));
    let (lost, marked) = found(&sim, node);
    assert_eq!((lost, marked), (Some(Lost::Unreadable(IoError::ReadFault)), BLOCKS));
}

/// The log's device is on another machine, which is gone at every moment of the opening: the log is
/// not taken for lost, so nothing is copied that the peers have.
#[test]
fn a_log_that_cannot_be_reached_is_not_lost() {
    flagstone_runtime::block_on(async {
        let memory = |bytes| MemoryDevice::new(bytes, 512).expect("a size of blocks");
        let data: SharedDevice = Arc::new(memory((BLOCKS + 7) * BLOCK));
        let kept: SharedDevice = Arc::new(memory(64 << 10));
        Replica::create(data.clone(), Some(kept.clone()), create()).await.expect("sound disks");
        let open = |log: &SharedDevice| Replica::open(data.clone(), Some(log.clone()));
        // Reads of the headers, the records and the page.
        for answered in 0..5 {
            let gone: SharedDevice = Arc::new(GoneAfter(kept.clone(), AtomicU64::new(answered)));
            let opened = open(&gone).await.map(|replica| replica.lost());
            assert_eq!(opened, Err(ReplicaError::Io(IoError::Unreachable)), "{answered}");
        }
        let replica = open(&kept).await.expect("it is there again");
        assert_eq!((replica.lost(), replica.bits().count()), (None, 0));
        // Damage is another matter.
        let (fault, control) = Fault::new(kept.clone(), FaultConfig::default()).expect("no rates");
        control.fail_next_reads(1);
        let damaged: SharedDevice = Arc::new(fault);
        let replica = open(&damaged).await.expect("the log is made anew");
        assert_eq!(replica.lost(), Some(Lost::Unreadable(IoError::ReadFault)));
    })
    .expect("an executor");
}

/// A device whose machine is gone after so many reads, and back when it is written to.
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
fn hot_calls_write_nothing_and_a_failed_log_fails_cold_ones_alone() {
    let (sim, node) = world(6, true);
    let world = sim.world();
    on(&sim, node, async move {
        let replica = open(true).await;
        assert!(matches!(replica.pin(0, BLOCK).await, Err(IoError::Unreachable)));
        replica.begin_use(|_| {}).await.expect("sound disks");
        drop(replica.pin(0, BLOCK).await.expect("a sound log"));
        world.set_faults(node, LOG, DiskFaults { write_errors: 1.0, ..DiskFaults::default() });
        let before = world.disk_stats(node, LOG).writes;
        for _ in 0..100 {
            drop(replica.try_pin(0, BLOCK).expect("it is hot"));
        }
        assert_eq!(world.disk_stats(node, LOG).writes, before);
        assert_eq!(replica.statistics().hot_calls, 100);
        assert!(matches!(replica.pin(BLOCK, BLOCK).await, Err(IoError::WriteFault)));
        drop(replica.try_pin(0, BLOCK).expect("it is hot still"));
        // Its file is poisoned now: nothing more is promised until it is opened again.
        assert!(replica.end_use(|_| {}).await.is_err());
    });
    // On disk it is in use still, and the record that was tried may name its region.
    let crashed = on(&sim, node, async { open(true).await.superblock().flags.crashed });
    assert!(crashed);
}

#[test]
fn with_every_write_each_call_waits_for_a_record_of_its_own() {
    let (sim, node) = world(9, true);
    let world = sim.world();
    on(&sim, node, async move {
        let replica = open(true).await;
        replica.set_intent(Intent::EveryWrite);
        assert!(matches!(replica.pin(0, BLOCK).await, Err(IoError::Unreachable)));
        replica.begin_use(|_| {}).await.expect("sound disks");
        // Its own, and the one that makes the region hot.
        let before = replica.statistics().record_writes;
        drop(replica.pin(0, BLOCK).await.expect("a sound log"));
        assert_eq!(replica.statistics().record_writes - before, 2);
        assert!(replica.try_pin(0, BLOCK).is_none(), "however hot it is");
        let disk = world.disk_stats(node, LOG).writes;
        let pins: Vec<_> = (0..20)
            .map(|_| {
                let replica = replica.clone();
                spawn(async move { replica.pin(0, BLOCK).await.map(drop) })
            })
            .collect();
        // It has begun: its record is written to the end, and nobody is left in the region.
        time::sleep(Duration::ZERO).await;
        pins[0].abort();
        pins[5].abort();
        for (index, pin) in pins.into_iter().enumerate() {
            assert_eq!(pin.await.is_ok(), index != 0 && index != 5);
        }
        let statistics = replica.statistics();
        assert!(world.disk_stats(node, LOG).writes - disk >= 18);
        assert_eq!((statistics.hot_calls, statistics.failures), (0, 0));
        let waiting = replica.clone();
        let late = spawn(async move { waiting.pin(0, BLOCK).await.map(drop) });
        time::sleep(Duration::ZERO).await;
        // It waits for all calls to end: one that held a region and waited for it would hang it.
        replica.end_use(|_| {}).await.expect("sound disks");
        assert!(matches!(late.await, Ok(Ok(()) | Err(IoError::Unreachable))));
    });
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.alive(), (0, 0));
    assert!(!on(&sim, node, async { open(true).await.superblock().flags.crashed }));
}

#[test]
fn calls_that_wait_share_records_and_one_that_gives_up_leaves_nothing() {
    let (sim, node) = world(7, false);
    on(&sim, node, async move {
        let replica = open(false).await;
        replica.begin_use(|_| {}).await.expect("sound disks");
        let before = replica.statistics().record_writes;
        let pins: Vec<_> = (0..20)
            .map(|block| {
                let replica = replica.clone();
                spawn(async move { replica.pin(block * BLOCK, BLOCK).await.map(drop) })
            })
            .collect();
        pins[5].abort();
        for (index, pin) in pins.into_iter().enumerate() {
            assert_eq!(pin.await.is_ok(), index != 5);
        }
        assert!(replica.statistics().record_writes - before <= 2);
        // It waits for all calls to end: one that was left in would hang it.
        replica.end_use(|_| {}).await.expect("sound disks");
        assert_eq!(replica.statistics().hot_regions, 0);
    });
    assert_eq!(sim.alive().0, 1, "the ticker alone is left, until it looks");
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.alive(), (0, 0));
}

#[path = "stale_tests.rs"]
mod stale;

#[path = "vacant_tests.rs"]
mod vacant;
