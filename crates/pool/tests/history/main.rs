//! Random histories of concurrent writers, orders and snapshots, with a power loss after each event
//! of the disks. After each loss, the pool must open with a prefix of the history that includes
//! everything flushed, and every acknowledged order. Snapshots never change.
//!
//! With a log device, also its loss at any crash: blank, or replaced by an old copy. The pool must
//! then open with a prefix, and withhold volumes that lack flushed changes.
//!
//! Every third history has compressed volumes, and every second one encrypted volumes.
//!
//! Left out: disks that fail calls, and crashes of one disk alone.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod disks;
mod loss;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use check::Content;
use common::{Image, SharedTrace, disks_of};
use disks::DiskChanger;
use flagstone_blockdev::{BlockDevice, SharedDevice, ZeroFlags};
use flagstone_pool::manage::devices::{DeviceOrderError, release};
use flagstone_pool::ondisk::superblock::Superblock;
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, DeviceSet, NamedDevice, OpenOptions, Pool,
    PoolError, PoolVolume, VolumeEncryption, VolumeError, VolumeOptions, WrappingKey,
};
use flagstone_runtime::rng::{Rng, mix64};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, spawn, time};
use loss::Loss;

const BLOCK: usize = 4096;
/// Blocks of a segment, without and with compression: short chunks have no compressed units.
const SEGMENT_BLOCKS: [u32; 2] = [16, 128];
/// Blocks of one writer's region, more than the limit for zeroing block by block.
const REGION: u64 = 96;

/// A moment of a history: number of disk events, then the order in which tasks recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    events: usize,
    order: u64,
}

/// A step of a history.
#[derive(Clone, Debug)]
struct Step {
    /// Moments before the step began and after it was acknowledged.
    begun: Moment,
    ended: Option<Moment>,
    /// True if acknowledged steps of this kind are durable.
    durable: bool,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    Blocks {
        first: u64,
        count: u64,
        stamp: u64,
    },
    Create {
        name: String,
        blocks: u64,
    },
    Resize {
        name: String,
        blocks: u64,
    },
    Rename {
        name: String,
        new: String,
    },
    Delete {
        name: String,
    },
    /// Snapshots of this name, with their full names and sizes.
    Snapshot {
        names: Vec<(String, u64)>,
    },
}

/// Steps of one writer, or of the operator.
#[derive(Default)]
struct Actor {
    steps: Vec<Step>,
}

/// Begin and end of a flush.
type Flush = (Moment, Moment);

#[derive(Default)]
struct History {
    /// The writers, then the operator.
    actors: Vec<Actor>,
    flushes: Vec<Flush>,
    moments: u64,
    /// Writers' regions in each snapshot when they were first read.
    snapshots: BTreeMap<String, Vec<Content>>,
    sets: Vec<Recorded>,
    grown: usize,
    removed: usize,
}

type Shared = Rc<RefCell<History>>;

fn fill(block: u64, stamp: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    if stamp != 0 {
        // Noise; sectors that repeat, so that each block shrinks; or noise that is the same in all
        // blocks of a write, which shrink together though not alone. A torn block shows in each.
        let (words, base) = match stamp % 4 {
            0 => (512, block),
            1 => (512, 0),
            _ => (64, block),
        };
        data.chunks_mut(8).zip(0..).for_each(|(word, index)| {
            let index = index % words;
            word.copy_from_slice(&mix64(stamp << 20 ^ base ^ (index << 50)).to_le_bytes());
        });
        data[..8].copy_from_slice(&stamp.to_le_bytes());
        data[8..16].copy_from_slice(&block.to_le_bytes());
    }
    data
}

/// Stamp of a block, if the block is whole.
fn stamp_of(block: u64, data: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data == fill(block, stamp), "block {block} is torn or foreign, stamp {stamp}");
    stamp
}

struct Recorder {
    history: Shared,
    actor: usize,
    trace: SharedTrace,
}

impl Recorder {
    fn now(&self) -> Moment {
        let mut history = self.history.borrow_mut();
        history.moments += 1;
        Moment { events: self.trace.lock().now(), order: history.moments }
    }

    fn begin(&self, change: Change, durable: bool) -> usize {
        let step = Step { begun: self.now(), ended: None, durable, change };
        let steps = &mut self.history.borrow_mut().actors[self.actor].steps;
        steps.push(step);
        steps.len() - 1
    }

    fn end(&self, step: usize) {
        let now = self.now();
        self.history.borrow_mut().actors[self.actor].steps[step].ended = Some(now);
    }
}

async fn writer(device: SharedDevice, recorder: Recorder, mut rng: Rng, steps: u64) {
    let base = recorder.actor as u64 * REGION;
    for number in 1..=steps {
        if rng.chance(0.15) {
            let begun = recorder.now();
            device.flush().await.unwrap();
            let ended = recorder.now();
            recorder.history.borrow_mut().flushes.push((begun, ended));
            continue;
        }
        let first = rng.below(REGION);
        let most = if rng.chance(0.2) { REGION } else { 4 };
        let count = 1 + rng.below((REGION - first).min(most));
        let (offset, len) = ((base + first) * BLOCK as u64, count * BLOCK as u64);
        let fua = rng.chance(0.2);
        match rng.below(6) {
            0 => {
                let step = recorder.begin(Change::Blocks { first, count, stamp: 0 }, fua);
                let flags = ZeroFlags { fua, may_deallocate: true, fast_only: false };
                device.write_zeroes(offset, len, flags).await.unwrap();
                recorder.end(step);
            }
            1 => {
                let step = recorder.begin(Change::Blocks { first, count, stamp: 0 }, false);
                device.discard(offset, len).await.unwrap();
                recorder.end(step);
            }
            _ => {
                let stamp = (recorder.actor as u64 + 1) << 16 | number;
                let blocks = (base + first..).take(count as usize);
                let data: Vec<u8> = blocks.flat_map(|block| fill(block, stamp)).collect();
                let step = recorder.begin(Change::Blocks { first, count, stamp }, fua);
                device.write(offset, Buf::copy_of(&data).unwrap(), fua).await.unwrap();
                recorder.end(step);
            }
        }
    }
}

/// Content of the writers' regions.
async fn regions(device: &dyn BlockDevice, writers: u64) -> Vec<Content> {
    let mut found = Vec::new();
    for writer in 0..writers {
        let memory = buf::alloc(REGION as usize * BLOCK).await;
        let read = device.read(writer * REGION * BLOCK as u64, memory).await.unwrap();
        let blocks = read.chunks(BLOCK).zip(writer * REGION..);
        found.push(Content::Blocks(blocks.map(|(data, block)| stamp_of(block, data)).collect()));
    }
    found
}

/// Task that takes snapshots, clones and rolls back beside the writers.
async fn archivist(
    pool: &Pool,
    recorder: &Recorder,
    rng: &mut Rng,
    own: &mut Archive,
    number: u64,
) {
    let at = rng.below(own.snapshots.len().max(1) as u64) as usize;
    match (rng.below(5), own.snapshots.get(at).cloned()) {
        (0..2, _) if own.snapshots.len() + own.clones.len() < own.most => {
            let mut names = vec![("db".to_owned(), 1 << 20)];
            names.extend(own.clones.iter().filter(|_| rng.chance(0.5)).cloned());
            let of = |(name, blocks): &(String, u64)| (format!("{name}@s{number}"), *blocks);
            let snapshots: Vec<(String, u64)> = names.iter().map(of).collect();
            let change = Change::Snapshot { names: snapshots.clone() };
            let step = recorder.begin(change, true);
            let volumes: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
            pool.create_snapshot(&volumes, &format!("s{number}")).await.unwrap();
            recorder.end(step);
            for (name, _) in &snapshots {
                let device = pool.open_snapshot(name).unwrap();
                let content = regions(&*device, recorder.actor as u64).await;
                recorder.history.borrow_mut().snapshots.insert(name.clone(), content);
            }
            own.snapshots.extend(snapshots);
        }
        (2, Some((snapshot, blocks))) if own.snapshots.len() + own.clones.len() < own.most => {
            let name = format!("c{number}");
            let step = recorder.begin(Change::Create { name: name.clone(), blocks }, true);
            pool.clone_volume(&snapshot, &name, properties(own.compressed, rng)).await.unwrap();
            recorder.end(step);
            own.clones.push((name, blocks));
            own.used.push(snapshot);
        }
        (3, Some((snapshot, blocks))) if !own.used.contains(&snapshot) => {
            let step = recorder.begin(Change::Delete { name: snapshot.clone() }, true);
            pool.delete_snapshot(&snapshot).await.unwrap();
            recorder.end(step);
            own.snapshots.retain(|other| *other != (snapshot.clone(), blocks));
        }
        (4, Some((full, _))) if !full.starts_with("db@") => {
            let (name, snapshot) = full.split_once('@').unwrap();
            pool.rollback(name, snapshot).await.unwrap();
            own.used.push(full.clone());
            let device = pool.open_volume(name).unwrap();
            let found = regions(&*device, recorder.actor as u64).await;
            assert_eq!(found, recorder.history.borrow().snapshots[&full]);
            let stamp = (recorder.actor as u64 + 1) << 16 | number;
            device.write(0, Buf::copy_of(&fill(0, stamp)).unwrap(), false).await.unwrap();
        }
        _ => {}
    }
}

/// Existing snapshots and clones, by name and blocks, and snapshots that cannot be deleted.
#[derive(Default)]
struct Archive {
    /// Most snapshots and clones.
    most: usize,
    compressed: bool,
    snapshots: Vec<(String, u64)>,
    clones: Vec<(String, u64)>,
    used: Vec<String>,
}

/// Disks that a server has recorded, from these events on.
#[derive(Clone)]
struct Recorded {
    from: usize,
    set: DeviceSet<usize>,
}

async fn operator(pool: Pool, recorder: Recorder, mut rng: Rng, plan: Plan) {
    let mut archive =
        Archive { most: plan.snapshots, compressed: plan.compressed, ..Archive::default() };
    let mut names: Vec<(String, u64)> = Vec::new();
    for number in 0..plan.steps / 2 {
        let size = |blocks: u64| blocks * BLOCK as u64;
        let at = rng.below(names.len().max(1) as u64) as usize;
        match rng.below(12) {
            7.. => archivist(&pool, &recorder, &mut rng, &mut archive, number).await,
            0..2 => {
                let (name, blocks) = (format!("v{number}"), 1 + rng.below(1000));
                let made = Change::Create { name: name.clone(), blocks };
                let step = recorder.begin(made, true);
                let options = VolumeOptions {
                    size_bytes: size(blocks),
                    properties: properties(plan.compressed, &mut rng),
                    ..VolumeOptions::default()
                };
                let volume = create(&pool, &name, &options, plan.encrypted).await;
                recorder.end(step);
                let block = Buf::copy_of(&fill(0, number + 1)).unwrap();
                volume.write(0, block, false).await.unwrap();
                names.push((name, blocks));
            }
            2 if plan.compressed && rng.chance(0.5) => {
                let properties = properties(true, &mut rng);
                pool.set_volume("db", false, properties).await.unwrap();
            }
            2 => pool.checkpoint().await.unwrap(),
            3 if !names.is_empty() => {
                let (name, blocks) = &mut names[at];
                *blocks *= 2 + rng.below(2);
                let resize = Change::Resize { name: name.clone(), blocks: *blocks };
                let step = recorder.begin(resize, true);
                pool.resize_volume(name, size(*blocks)).await.unwrap();
                recorder.end(step);
            }
            4 if !names.is_empty() => {
                let new = format!("w{number}");
                let rename = Change::Rename { name: names[at].0.clone(), new: new.clone() };
                let step = recorder.begin(rename, true);
                pool.rename_volume(&names[at].0, &new).await.unwrap();
                recorder.end(step);
                names[at].0 = new;
            }
            5 if !names.is_empty() => {
                let (name, _) = names.remove(at);
                let step = recorder.begin(Change::Delete { name: name.clone() }, true);
                pool.delete_volume(&name).await.unwrap();
                recorder.end(step);
                assert!(matches!(pool.open_volume(&name), Err(VolumeError::Unknown { .. })));
            }
            _ => time::sleep(Duration::from_micros(300)).await,
        }
    }
}

async fn content(pool: &Pool, history: &History, context: &str) -> Vec<Content> {
    unlock(pool);
    let writers = history.actors.len() as u64 - 1;
    let mut found = regions(&*pool.open_volume("db").unwrap(), writers).await;
    let volumes = pool.volumes().into_iter().map(|volume| (volume.name, volume.size_bytes));
    let snapshots =
        pool.snapshots().into_iter().map(|snapshot| (snapshot.name, snapshot.size_bytes));
    let all = volumes.chain(snapshots).map(|(name, bytes)| (name, bytes / BLOCK as u64));
    found.push(Content::Volumes(all.collect()));
    for snapshot in pool.snapshots() {
        let device = pool.open_snapshot(&snapshot.name).unwrap();
        let content = regions(&*device, writers).await;
        let expected = history.snapshots.get(&snapshot.name);
        assert!(expected == Some(&content), "{context}: snapshot {} differs", snapshot.name);
    }
    found
}

/// Options of a history.
#[derive(Clone, Copy)]
struct Plan {
    writers: usize,
    steps: u64,
    disks: usize,
    segments: u64,
    /// Most snapshots and clones at a time.
    snapshots: usize,
    /// Tries one crash point of this number.
    every: usize,
    /// Additional disks, besides removed ones.
    spares: usize,
    /// Segments of the log device; 0 for none.
    log_slots: u64,
    /// Volumes are compressed, each with a setting of its own.
    compressed: bool,
    /// Volumes are encrypted.
    encrypted: bool,
}

fn key() -> WrappingKey {
    WrappingKey::parse(&"5c".repeat(32)).unwrap()
}

async fn create(
    pool: &Pool,
    name: &str,
    options: &VolumeOptions,
    encrypted: bool,
) -> Arc<PoolVolume> {
    let created = match encrypted {
        true => pool.create_encrypted_volume(name, options, &key()).await,
        false => pool.create_volume(name, options).await,
    };
    created.unwrap()
}

/// Gives all encrypted volumes their key, as a server does after an opening.
fn unlock(pool: &Pool) {
    let volumes = pool.volumes().into_iter();
    for volume in volumes.filter(|volume| volume.encryption == VolumeEncryption::Locked) {
        pool.unlock_volume(&volume.name, &key()).unwrap();
    }
}

/// Properties of a volume.
fn properties(compressed: bool, rng: &mut Rng) -> BTreeMap<String, String> {
    if !compressed {
        return BTreeMap::new();
    }
    let setting = Compression::ALL[rng.below(4) as usize];
    BTreeMap::from([(COMPRESSION_PROPERTY.to_owned(), setting.name().to_owned())])
}

impl Plan {
    fn segment_blocks(&self) -> u32 {
        SEGMENT_BLOCKS[usize::from(self.compressed)]
    }

    fn sizes(&self) -> Vec<u64> {
        let size =
            |segments: u64| (1 << 20) + segments * u64::from(self.segment_blocks()) * BLOCK as u64;
        let mut sizes = vec![size(self.segments); self.disks + self.spares];
        if self.log_slots > 0 {
            sizes.push(size(self.log_slots));
        }
        sizes
    }
}

#[derive(Default)]
struct Counts {
    grown: usize,
    removed: usize,
    checkpoints: u64,
    copied: u64,
    crashes: usize,
    second_crashes: usize,
    /// Number of lost log devices, and of losses after which volumes were withheld.
    losses: usize,
    withheld: usize,
}

async fn run_history(seed: u64, plan: Plan) -> Counts {
    let mut rng = Rng::new(seed);
    let (sizes, volatile) = (plan.sizes(), plan.log_slots == 0 || seed.is_multiple_of(2));
    let empty = vec![Image::default(); sizes.len()];
    let options =
        CreateOptions { segment_blocks: plan.segment_blocks(), ..CreateOptions::new("fast") };
    let (mut devices, trace) = disks_of(empty, &sizes, 50, volatile);
    let log = devices.split_off(plan.disks + plan.spares).pop();
    let all = devices.clone();
    devices.truncate(plan.disks);
    let pool = Pool::create_with_log(devices, log, &options).await.unwrap();
    let properties = properties(plan.compressed, &mut rng);
    let db = VolumeOptions { size_bytes: 1 << 32, properties, ..VolumeOptions::default() };
    let device = create(&pool, "db", &db, plan.encrypted).await;
    // The loss of the log device must not lose the creation of the volume.
    pool.checkpoint().await.unwrap();
    let from = trace.lock().now();
    let history = Shared::default();
    history.borrow_mut().actors.resize_with(plan.writers + 1, Actor::default);
    let recorder = |actor| Recorder { history: history.clone(), actor, trace: trace.clone() };
    let mut tasks = Vec::new();
    for actor in 0..plan.writers {
        let own = Rng::new(rng.next_u64());
        tasks.push(spawn(writer(device.clone(), recorder(actor), own, plan.steps)));
    }
    let own = Rng::new(rng.next_u64());
    tasks.push(spawn(operator(pool.clone(), recorder(plan.writers), own, plan)));
    let set = DeviceSet::from((0..plan.disks).collect::<Vec<_>>());
    history.borrow_mut().sets.push(Recorded { from: 0, set: set.clone() });
    if plan.spares > 0 {
        let changer = DiskChanger {
            pool: pool.clone(),
            trace: trace.clone(),
            history: history.clone(),
            rng: Rng::new(rng.next_u64()),
            disks: all,
            spares: (plan.disks..plan.disks + plan.spares).collect(),
            set,
        };
        tasks.push(spawn(changer.run(plan.steps / 8)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    if rng.chance(0.5) {
        pool.close().await.unwrap();
    }
    let history = history.take();
    let status = pool.status();
    let (checkpoints, copied) = (status.checkpoints, status.copied_blocks);
    let (grown, removed) = (history.grown, history.removed);
    let mut counts = Counts { checkpoints, copied, grown, removed, ..Counts::default() };
    let last = trace.lock().now();
    let context = format!("seed {seed} before any crash");
    history.check(&content(&pool, &history, &context).await, last, &context);
    drop((pool, device));
    let offset = rng.below(plan.every as u64) as usize;
    let chosen = |time: usize| time >= from && (time + offset).is_multiple_of(plan.every);
    let mut crash_rng = Rng::new(rng.next_u64());
    let mut second = Rng::new(rng.next_u64());
    let trace = std::mem::take(&mut *trace.lock());
    let mut old_log = Image::default();
    trace
        .at_each_event(chosen, &mut crash_rng, async |time, images| {
            let context = format!("seed {seed}, crash after event {time}");
            counts.crashes += 1;
            if plan.log_slots > 0 && plan.spares == 0 && second.chance(0.3) {
                let lost = Loss { images: images.clone(), old: old_log.clone(), time };
                let lost = lost.check(plan, volatile, &history, &mut second, &context).await;
                counts.losses += 1;
                counts.withheld += usize::from(lost);
            }
            if second.chance(0.05) {
                old_log = images.last().unwrap().clone();
            }
            let (devices, again) = disks_of(images, &sizes, 0, volatile);
            let set = history.set_at(time, &mut second);
            let pool = open(devices, plan, set, &context).await;
            let found = content(&pool, &history, &context).await;
            history.check(&found, time, &context);
            // Data read after recovery is durable: after a crash of the recovery, hosts must not
            // see an older state.
            drop(pool);
            if second.chance(0.1) {
                let again = std::mem::take(&mut *again.lock());
                let point = second.below(again.now() as u64 + 1) as usize;
                let mut rng = Rng::new(second.next_u64());
                let count = &mut counts.second_crashes;
                again
                    .at_each_event(
                        |time| time == point,
                        &mut rng,
                        async |_, images| {
                            *count += 1;
                            let context =
                                format!("{context}, then after event {point} of recovery");
                            let (devices, _) = disks_of(images, &sizes, 0, volatile);
                            let pool = open(devices, plan, set, &context).await;
                            let found = content(&pool, &history, &context).await;
                            history.check(&found, time, &context);
                        },
                    )
                    .await;
            }
        })
        .await;
    counts
}

/// Opens a pool like a server.
async fn open(
    mut disks: Vec<NamedDevice>,
    plan: Plan,
    set: &DeviceSet<usize>,
    context: &str,
) -> Pool {
    let log = disks.split_off(plan.disks + plan.spares).pop();
    let options = OpenOptions { log, ..OpenOptions::default() };
    let mut refused = String::new();
    for alternative in set.alternatives() {
        let devices = alternative.iter().map(|disk| disks[*disk].clone()).collect();
        match Pool::open_with(devices, &options).await {
            Ok(pool) => return pool,
            Err(error) => refused += &format!("\n  {alternative:?}: {error}"),
        }
    }
    panic!("{context}: {set:?} is no pool{refused}");
}

/// Number of seeds; `POOL_HISTORIES` sets another number for a longer run.
fn seeds(usual: u64) -> u64 {
    std::env::var("POOL_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

fn run(seeds: std::ops::Range<u64>, plan: Plan) -> Counts {
    let histories = seeds.end - seeds.start;
    let mut total = Counts::default();
    for seed in seeds {
        let segments = plan.segments;
        let plan = match seed % 3 {
            2 => Plan { compressed: true, segments: segments.min(36), ..plan },
            _ => plan,
        };
        let plan = Plan { encrypted: seed % 2 == 1, ..plan };
        let sim = Simulation::new(seed, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, run_history(seed, plan));
        let counts = sim.block_on(async { done.await.unwrap() });
        total.crashes += counts.crashes;
        total.checkpoints += counts.checkpoints;
        total.copied += counts.copied;
        total.grown += counts.grown;
        total.removed += counts.removed;
        total.second_crashes += counts.second_crashes;
        total.losses += counts.losses;
        total.withheld += counts.withheld;
    }
    let Counts { crashes, second_crashes, checkpoints, copied, grown, removed, .. } = total;
    println!(
        "{histories} histories with {checkpoints} checkpoints and {copied} blocks copied by the \
         cleaner, {grown} disks added and {removed} removed, {crashes} crashes, {second_crashes} \
         crashes of recovery, {} losses of the log device, {} with the loss of flushed writes",
        total.losses, total.withheld
    );
    total
}

const PLAN: Plan = Plan {
    writers: 2,
    steps: 4,
    disks: 1,
    segments: 64,
    snapshots: 2,
    every: 1,
    spares: 0,
    log_slots: 0,
    compressed: false,
    encrypted: false,
};

#[test]
fn crash_at_any_write_leaves_a_flushed_prefix() {
    let plan =
        Plan { writers: 3, steps: 30, disks: 1, segments: 150, snapshots: 20, every: 1, ..PLAN };
    run(0..6, plan);
}

#[test]
fn crash_of_two_disks_leaves_a_flushed_prefix() {
    let plan =
        Plan { writers: 2, steps: 30, disks: 2, segments: 80, snapshots: 20, every: 1, ..PLAN };
    run(1000..1006, plan);
}

#[test]
fn crash_while_cleaning_leaves_a_flushed_prefix() {
    let plan =
        Plan { writers: 3, steps: 150, disks: 1, segments: 100, snapshots: 4, every: 9, ..PLAN };
    assert!(run(2000..2004, plan).copied > 100);
}

#[test]
fn crash_in_short_histories_leaves_a_flushed_prefix() {
    let plan =
        Plan { writers: 2, steps: 4, disks: 1, segments: 64, snapshots: 2, every: 1, ..PLAN };
    run(10_000..11_000, plan);
}

#[test]
fn crash_in_short_histories_on_two_disks() {
    let plan =
        Plan { writers: 2, steps: 4, disks: 2, segments: 40, snapshots: 2, every: 1, ..PLAN };
    run(20_000..21_000, plan);
}

#[test]
fn crash_while_disks_come_and_go() {
    let plan = Plan { steps: 40, segments: 100, snapshots: 4, every: 3, spares: 2, ..PLAN };
    let total = run(30_000..30_000 + seeds(24), plan);
    assert!(total.grown > 10 && total.removed > 4, "{} {}", total.grown, total.removed);
}

#[test]
fn crash_while_three_disks_come_and_go() {
    let plan =
        Plan { writers: 3, steps: 48, disks: 3, segments: 50, snapshots: 6, spares: 2, ..PLAN };
    let plan = Plan { every: 5, ..plan };
    let total = run(40_000..40_000 + seeds(12), plan);
    assert!(total.grown > 10 && total.removed > 4, "{} {}", total.grown, total.removed);
}

#[test]
fn crash_while_disks_come_and_go_with_a_log_device() {
    let plan = Plan { steps: 40, segments: 100, snapshots: 4, log_slots: 5, spares: 2, ..PLAN };
    let total = run(50_000..50_000 + seeds(12), Plan { every: 4, ..plan });
    assert!(total.grown > 8 && total.removed > 3, "{} {}", total.grown, total.removed);
}

#[test]
fn crash_with_a_log_device_leaves_a_flushed_prefix() {
    let plan = Plan { writers: 3, steps: 30, segments: 150, snapshots: 20, log_slots: 5, ..PLAN };
    let counts = run(3000..3006, Plan { every: 2, ..plan });
    assert!(counts.losses > 100 && counts.withheld > 10);
}

#[test]
fn crash_of_two_disks_with_a_log_device() {
    let plan = Plan { steps: 30, disks: 2, segments: 80, snapshots: 20, log_slots: 40, ..PLAN };
    run(4000..4006, Plan { every: 2, ..plan });
}

#[test]
fn crash_while_cleaning_with_a_log_device() {
    let plan = Plan { writers: 3, steps: 150, segments: 100, snapshots: 4, log_slots: 4, ..PLAN };
    assert!(run(5000..5004, Plan { every: 19, ..plan }).copied > 100);
}

#[test]
fn crash_in_short_histories_with_a_log_device() {
    run(30_000..30_500, Plan { log_slots: 6, ..PLAN });
}
