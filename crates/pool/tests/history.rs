//! Random histories of concurrent writers, orders and snapshots, with a power loss after each event of the
//! disks. After each, the pool must open with a prefix of the history that contains everything
//! flushed, and every volume order that was acknowledged. Snapshots never change.
//!
//! With a log device, also its loss at any crash: blank, or replaced by an old copy. Then the pool must
//! open with a prefix, and volumes that lack flushed changes must be withheld.
//!
//! Left out: disks that fail calls, and crashes of one disk alone.
#![allow(missing_docs)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use common::{Image, SharedTrace, disks_of};
use flagstone_blockdev::{BlockDevice, SharedDevice, ZeroFlags};
use flagstone_pool::ondisk::superblock::Superblock;
use flagstone_pool::{
    CreateOptions, NamedDevice, OpenOptions, Pool, PoolError, VolumeError, VolumeOptions,
};
use flagstone_runtime::rng::{Rng, mix64};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, spawn};

const BLOCK: usize = 4096;
const SEGMENT_BLOCKS: u32 = 16;
/// Blocks of one writer's region: more than are zeroed block by block.
const REGION: u64 = 96;

/// A moment of a history: the number of events of the disks, then the order in which the tasks
/// noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    events: usize,
    order: u64,
}

/// A step of a history.
#[derive(Clone, Debug)]
struct Step {
    /// Before it began, and after it was acknowledged.
    begun: Moment,
    ended: Option<Moment>,
    /// Acknowledged steps of the same kind are durable.
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

/// What one writer, or the operator, did.
#[derive(Default)]
struct Actor {
    steps: Vec<Step>,
}

/// A flush: begun, and ended.
type Flush = (Moment, Moment);

#[derive(Default)]
struct History {
    /// The writers, then the operator.
    actors: Vec<Actor>,
    flushes: Vec<Flush>,
    moments: u64,
    /// What the writers' regions of snapshots were when they were first read.
    snapshots: BTreeMap<String, Vec<Content>>,
}

type Shared = Rc<RefCell<History>>;

fn fill(block: u64, stamp: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    if stamp != 0 {
        data.chunks_mut(8).zip(0..).for_each(|(word, index)| {
            word.copy_from_slice(&mix64(stamp << 20 ^ block ^ (index << 50)).to_le_bytes());
        });
        data[..8].copy_from_slice(&stamp.to_le_bytes());
    }
    data
}

/// The stamp of a block, if it is whole.
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

/// Snapshots, clones and rollbacks beside the writers.
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
            pool.clone_volume(&snapshot, &name, BTreeMap::new()).await.unwrap();
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

/// Snapshots and clones that exist, by name and blocks, and snapshots that cannot be deleted.
#[derive(Default)]
struct Archive {
    /// Most snapshots and clones.
    most: usize,
    snapshots: Vec<(String, u64)>,
    clones: Vec<(String, u64)>,
    used: Vec<String>,
}

async fn operator(pool: Pool, recorder: Recorder, mut rng: Rng, plan: Plan) {
    let mut archive = Archive { most: plan.snapshots, ..Archive::default() };
    let mut names: Vec<(String, u64)> = Vec::new();
    for number in 0..plan.steps / 2 {
        let size = |blocks: u64| blocks * BLOCK as u64;
        let at = rng.below(names.len().max(1) as u64) as usize;
        match rng.below(12) {
            7.. => archivist(&pool, &recorder, &mut rng, &mut archive, number).await,
            0..2 => {
                let (name, blocks) = (format!("v{number}"), 1 + rng.below(1000));
                let create = Change::Create { name: name.clone(), blocks };
                let step = recorder.begin(create, true);
                let options =
                    VolumeOptions { size_bytes: size(blocks), ..VolumeOptions::default() };
                let volume = pool.create_volume(&name, &options).await.unwrap();
                recorder.end(step);
                let block = Buf::copy_of(&fill(0, number + 1)).unwrap();
                volume.write(0, block, false).await.unwrap();
                names.push((name, blocks));
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
            _ => flagstone_runtime::time::sleep(std::time::Duration::from_micros(300)).await,
        }
    }
}

/// Content of a writer's region, or the volumes by name and size.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Blocks(Vec<u64>),
    Volumes(BTreeMap<String, u64>),
}

/// Steps after which an actor's content is what was found.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    whole: usize,
    /// One more, if a part of a step took effect: only single blocks are atomic.
    started: usize,
}

impl Content {
    /// True if `found` is this content with a part of `change`.
    fn is_partly(&self, change: &Change, found: &Content) -> bool {
        let (Content::Blocks(old), Content::Blocks(found)) = (self, found) else { return false };
        let mut new = self.clone();
        new.apply(change);
        let Content::Blocks(new) = new else { return false };
        let mut blocks = found.iter().zip(old.iter().zip(&new));
        blocks.all(|(found, (old, new))| found == old || found == new)
    }

    fn apply(&mut self, change: &Change) {
        match (self, change.clone()) {
            (Content::Blocks(blocks), Change::Blocks { first, count, stamp }) => {
                blocks[first as usize..(first + count) as usize].fill(stamp);
            }
            (
                Content::Volumes(volumes),
                Change::Create { name, blocks } | Change::Resize { name, blocks },
            ) => {
                volumes.insert(name, blocks);
            }
            (Content::Volumes(volumes), Change::Rename { name, new }) => {
                let renamed = |full: String| match full.split_once('@') {
                    Some((volume, own)) if volume == name => format!("{new}@{own}"),
                    None if full == name => new.clone(),
                    _ => full,
                };
                let old = std::mem::take(volumes).into_iter();
                volumes.extend(old.map(|(full, blocks)| (renamed(full), blocks)));
            }
            (Content::Volumes(volumes), Change::Snapshot { names }) => volumes.extend(names),
            (Content::Volumes(volumes), Change::Delete { name }) => {
                volumes.remove(&name);
            }
            _ => unreachable!("writers change blocks, the operator volumes"),
        }
    }
}

impl History {
    /// Checks that `found` is a prefix of what had begun at `time`, and contains what was durable.
    fn check(&self, found: &[Content], time: usize, context: &str) {
        self.check_of(found, time, self.actors.len(), context);
    }

    /// Same, but only the first actors must find what was durable.
    fn check_of(&self, found: &[Content], time: usize, required: usize, context: &str) {
        let flushed = self.flushes.iter().filter(|(_, ended)| ended.events <= time);
        let flushed = flushed.map(|(begun, _)| *begun).max();
        // Per actor the numbers of steps after which its content is what was found.
        let mut candidates = Vec::new();
        let mut prefix = Vec::new();
        for (number, (actor, found)) in self.actors.iter().zip(found).enumerate() {
            let begun = actor.steps.iter().filter(|step| step.begun.events <= time).count();
            let durable = |step: &Step| match step.ended {
                _ if number >= required => false,
                Some(ended) if ended.events > time => false,
                Some(ended) => step.durable || flushed.is_some_and(|flushed| ended <= flushed),
                None => false,
            };
            let least = actor.steps.iter().rposition(durable).map_or(0, |last| last + 1);
            let mut content = match found {
                Content::Blocks(blocks) => Content::Blocks(vec![0; blocks.len()]),
                Content::Volumes(_) => {
                    Content::Volumes(BTreeMap::from([("db".to_owned(), 1 << 20)]))
                }
            };
            let mut matching = Vec::new();
            for whole in 0..=begun {
                let next = actor.steps.get(whole).filter(|_| whole < begun);
                if content == *found {
                    matching.push(Candidate { whole, started: whole });
                } else if next.is_some_and(|next| content.is_partly(&next.change, found)) {
                    matching.push(Candidate { whole, started: whole + 1 });
                }
                if let Some(next) = next {
                    content.apply(&next.change);
                }
            }
            candidates.push(matching);
            prefix.push(least);
        }
        // The smallest prefixes that agree: a step is preceded by all that ended before it began.
        loop {
            let before = prefix.clone();
            for (actor, matching) in candidates.iter().enumerate() {
                let least = matching.iter().find(|found| found.whole >= prefix[actor]);
                let Some(least) = least else {
                    panic!(
                        "{context}: actor {actor} needs at least {} steps, what was found is the \
                         state after {matching:?} of {}",
                        prefix[actor],
                        self.actors[actor].steps.len()
                    );
                };
                prefix[actor] = least.whole;
                if least.started == 0 {
                    continue;
                }
                let begun = self.actors[actor].steps[least.started - 1].begun;
                for (other, least) in self.actors.iter().zip(&mut prefix) {
                    let ended = |step: &Step| step.ended.is_some_and(|ended| ended < begun);
                    let needed = other.steps.iter().rposition(ended).map_or(0, |last| last + 1);
                    *least = (*least).max(needed);
                }
            }
            if prefix == before {
                return;
            }
        }
    }
}

async fn content(pool: &Pool, history: &History, context: &str) -> Vec<Content> {
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
    /// One of how many crash points is tried.
    every: usize,
    /// Segments of the log device; 0 for none.
    log_slots: u64,
}

impl Plan {
    fn sizes(&self) -> Vec<u64> {
        let size = |segments: u64| (1 << 20) + segments * u64::from(SEGMENT_BLOCKS) * BLOCK as u64;
        let mut sizes = vec![size(self.segments); self.disks];
        if self.log_slots > 0 {
            sizes.push(size(self.log_slots));
        }
        sizes
    }
}

#[derive(Default)]
struct Counts {
    checkpoints: u64,
    copied: u64,
    crashes: usize,
    second_crashes: usize,
    /// Losses of the log device, and those after which volumes were withheld.
    losses: usize,
    withheld: usize,
}

async fn run_history(seed: u64, plan: Plan) -> Counts {
    let mut rng = Rng::new(seed);
    let (sizes, volatile) = (plan.sizes(), plan.log_slots == 0 || seed.is_multiple_of(2));
    let empty = vec![Image::default(); sizes.len()];
    let options = CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
    let (mut devices, trace) = disks_of(empty, &sizes, 50, volatile);
    let log = devices.split_off(plan.disks).pop();
    let pool = Pool::create_with_log(devices, log, &options).await.unwrap();
    let db = VolumeOptions { size_bytes: 1 << 32, ..VolumeOptions::default() };
    let device = pool.create_volume("db", &db).await.unwrap();
    // The loss of the log device must not take the volume itself.
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
    for task in tasks {
        task.await.unwrap();
    }
    if rng.chance(0.5) {
        pool.close().await.unwrap();
    }
    let history = history.take();
    let status = pool.status();
    let (checkpoints, copied) = (status.checkpoints, status.copied_blocks);
    let mut counts = Counts { checkpoints, copied, ..Counts::default() };
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
            if plan.log_slots > 0 && second.chance(0.3) {
                let lost = Loss { images: images.clone(), old: old_log.clone(), time };
                let lost = lost.check(plan, volatile, &history, &mut second, &context).await;
                counts.losses += 1;
                counts.withheld += usize::from(lost);
            }
            if second.chance(0.05) {
                old_log = images.last().unwrap().clone();
            }
            let (devices, again) = disks_of(images, &sizes, 0, volatile);
            let pool = open(devices, &context).await;
            let found = content(&pool, &history, &context).await;
            history.check(&found, time, &context);
            // What was read after recovery is durable: a crash of the recovery shows the same, or
            // a later crash would take back what hosts have seen.
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
                            let pool = open(devices, &context).await;
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

/// A crash with the loss of the log device.
struct Loss {
    images: Vec<Image>,
    /// An earlier state of the log device.
    old: Image,
    time: usize,
}

/// The newest update of the superblock in the first copies of a disk.
fn update_of(image: &Image) -> Option<u64> {
    let copies = (0..4).filter_map(|copy| {
        let mut block = [0; BLOCK];
        image.read(copy as u64 * (256 << 10), &mut block);
        Superblock::decode(&block, copy).ok()
    });
    copies.map(|superblock| superblock.update).max()
}

impl Loss {
    /// Checks an opening without what the log device had, and one after a crash of the first. True
    /// if the writers' volume was withheld.
    async fn check(
        self,
        plan: Plan,
        volatile: bool,
        history: &History,
        rng: &mut Rng,
        context: &str,
    ) -> bool {
        let Loss { mut images, old, time } = self;
        let newest = images[..plan.disks].iter().filter_map(update_of).max();
        // An old copy with the newest update cannot be told from the log device.
        let is_old = update_of(&old).zip(newest).is_some_and(|(old, newest)| old + 1 < newest);
        let is_blank = !is_old || rng.chance(0.5);
        *images.last_mut().unwrap() = if is_blank { Image::default() } else { old };
        let kind = if is_blank { "blank" } else { "old" };
        let context = format!("{context} with a {kind} log device");
        let (devices, trace) = disks_of(images, &plan.sizes(), 0, volatile);
        let mut last = 0;
        let accept = || last = trace.lock().now();
        let withheld = open_prefix(devices, plan, history, time, &context, accept).await;
        let trace = std::mem::take(&mut *trace.lock());
        let point = rng.below(last as u64 + 1) as usize;
        trace
            .at_each_event(
                |time| time == point,
                &mut Rng::new(rng.next_u64()),
                async |_, images| {
                    let context = format!("{context}, then after event {point} of recovery");
                    let (devices, _) = disks_of(images, &plan.sizes(), 0, volatile);
                    open_prefix(devices, plan, history, time, &context, || {}).await;
                },
            )
            .await;
        withheld
    }
}

/// Opens a pool whose log device lost the tail. True if the writers' volume is withheld.
async fn open_prefix(
    mut devices: Vec<NamedDevice>,
    plan: Plan,
    history: &History,
    time: usize,
    context: &str,
    before_acceptance: impl FnOnce(),
) -> bool {
    let log = devices.split_off(plan.disks).pop();
    // Without the device that takes its place: refused, or the same, when the loss is recorded.
    let recorded = match Pool::open(devices.clone()).await {
        Ok(pool) => {
            let is_withheld = pool.open_volume("db").is_err();
            pool.close().await.unwrap();
            Some(is_withheld)
        }
        Err(PoolError::LogDeviceMissing { .. }) => None,
        Err(error) => panic!("{context}: {error}"),
    };
    let options = OpenOptions { log, give_up_tail: false };
    let pool = match Pool::open_with(devices, &options).await {
        Ok(pool) => pool,
        Err(error) => panic!("{context}: {error}"),
    };
    before_acceptance();
    let writers = history.actors.len() - 1;
    let withheld = match pool.open_volume("db") {
        Ok(_) => false,
        Err(VolumeError::Incomplete { .. }) => {
            let accepted = pool.give_up_tail().await.unwrap();
            assert!(accepted.contains(&"db".to_owned()), "{context}");
            true
        }
        Err(error) => panic!("{context}: {error}"),
    };
    assert!(recorded.is_none_or(|recorded| recorded == withheld), "{context}");
    let found = content(&pool, history, context).await;
    history.check_of(&found, time, if withheld { 0 } else { writers }, context);
    pool.close().await.unwrap();
    withheld
}

async fn open(devices: Vec<NamedDevice>, context: &str) -> Pool {
    match Pool::open(devices).await {
        Ok(pool) => pool,
        Err(error) => panic!("{context}: {error}"),
    }
}

fn run(seeds: std::ops::Range<u64>, plan: Plan) -> Counts {
    let histories = seeds.end - seeds.start;
    let mut total = Counts::default();
    for seed in seeds {
        let sim = Simulation::new(seed, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, run_history(seed, plan));
        let counts = sim.block_on(async { done.await.unwrap() });
        total.crashes += counts.crashes;
        total.checkpoints += counts.checkpoints;
        total.copied += counts.copied;
        total.second_crashes += counts.second_crashes;
        total.losses += counts.losses;
        total.withheld += counts.withheld;
    }
    let Counts { crashes, second_crashes, checkpoints, copied, losses, withheld } = total;
    println!(
        "{histories} histories with {checkpoints} checkpoints and {copied} blocks copied by the \
         cleaner, {crashes} crashes, {second_crashes} crashes of recovery, {losses} losses of the \
         log device, {withheld} with the loss of flushed writes"
    );
    total
}

const PLAN: Plan =
    Plan { writers: 2, steps: 4, disks: 1, segments: 64, snapshots: 2, every: 1, log_slots: 0 };

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
