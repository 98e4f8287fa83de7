//! Random histories of concurrent writers, orders and snapshots, with a power loss after each event of the
//! disks. After each, the pool must open with a prefix of the history that contains everything
//! flushed, and every volume order that was acknowledged. Snapshots never change.
//!
//! Left out: disks that fail calls, and crashes of one disk alone.
#![allow(missing_docs)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use common::{Image, SharedTrace, disks};
use flagstone_blockdev::{BlockDevice, IoError, SharedDevice, ZeroFlags};
use flagstone_pool::manage::devices::{DeviceOrderError, release};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, DeviceSet, NamedDevice, Pool, VolumeError,
    VolumeOptions,
};
use flagstone_runtime::rng::{Rng, mix64};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, spawn, time};

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
    sets: Vec<Recorded>,
    grown: usize,
    removed: usize,
    /// Writers that found the pool full.
    full: usize,
}

type Shared = Rc<RefCell<History>>;

fn fill(block: u64, stamp: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    if stamp != 0 {
        data.chunks_mut(8).zip(0..).for_each(|(word, index)| {
            // Sectors repeat, so the data compresses, and a torn block shows in each of them.
            let index = index % 64;
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

async fn writer(pool: Pool, device: SharedDevice, recorder: Recorder, mut rng: Rng, steps: u64) {
    let base = recorder.actor as u64 * REGION;
    // A full pool ends the writer: the write may have taken effect in part, as one that a crash
    // interrupts.
    let is_done = |written: Result<(), IoError>| {
        let status = pool.status();
        let is_full = 2 * status.used_bytes > status.capacity_bytes;
        assert!(written.is_ok() || written == Err(IoError::NoSpace) && is_full, "{status:?}");
        recorder.history.borrow_mut().full += usize::from(written.is_err());
        written.is_ok()
    };
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
                if !is_done(device.write_zeroes(offset, len, flags).await) {
                    return;
                }
                recorder.end(step);
            }
            1 => {
                let step = recorder.begin(Change::Blocks { first, count, stamp: 0 }, false);
                if !is_done(device.discard(offset, len).await) {
                    return;
                }
                recorder.end(step);
            }
            _ => {
                let stamp = (recorder.actor as u64 + 1) << 16 | number;
                let blocks = (base + first..).take(count as usize);
                let data: Vec<u8> = blocks.flat_map(|block| fill(block, stamp)).collect();
                let step = recorder.begin(Change::Blocks { first, count, stamp }, fua);
                if !is_done(device.write(offset, Buf::copy_of(&data).unwrap(), fua).await) {
                    return;
                }
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
        (0..2, _) if own.snapshots.len() + own.clones.len() < own.plan.snapshots => {
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
        (2, Some((snapshot, blocks)))
            if own.snapshots.len() + own.clones.len() < own.plan.snapshots =>
        {
            let name = format!("c{number}");
            let step = recorder.begin(Change::Create { name: name.clone(), blocks }, true);
            pool.clone_volume(&snapshot, &name, own.plan.properties(rng)).await.unwrap();
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
struct Archive {
    plan: Plan,
    snapshots: Vec<(String, u64)>,
    clones: Vec<(String, u64)>,
    used: Vec<String>,
}

/// The disks as a server records them, from these events on.
#[derive(Clone)]
struct Recorded {
    from: usize,
    set: DeviceSet<usize>,
}

/// Adds and removes disks while hosts write and snapshots are taken.
struct DiskChanger {
    pool: Pool,
    trace: SharedTrace,
    history: Shared,
    rng: Rng,
    /// All disks, by number.
    disks: Vec<NamedDevice>,
    spares: Vec<usize>,
    set: DeviceSet<usize>,
}

impl DiskChanger {
    fn record(&mut self, change: impl FnOnce(&mut DeviceSet<usize>)) {
        change(&mut self.set);
        let from = self.trace.lock().now();
        self.history.borrow_mut().sets.push(Recorded { from, set: self.set.clone() });
    }

    async fn grow(&mut self) {
        let Some(new) = self.spares.pop() else { return };
        self.record(|set| {
            set.devices.push(new);
            set.adding = Some(new);
        });
        // A disk that was in the pool before has a superblock, unless that was removed.
        self.pool.grow(self.disks[new].clone(), true).await.unwrap();
        self.record(|set| set.adding = None);
        self.history.borrow_mut().grown += 1;
    }

    /// Removes a disk. The order may be given up, or its caller be dropped at the end.
    async fn shrink(&mut self) {
        let old = self.set.devices[self.rng.below(self.set.devices.len() as u64) as usize];
        let evacuation = match self.pool.evacuate(&self.disks[old].name).await {
            Ok(evacuation) => evacuation,
            Err(DeviceOrderError::NoRoom { .. } | DeviceOrderError::Last { .. }) => return,
            Err(error) => panic!("disk {old}: {error}"),
        };
        self.record(|set| set.removing = Some(old));
        let (gives_up, grows) = (self.rng.chance(0.2), self.rng.chance(0.3));
        loop {
            match evacuation.step().await {
                Ok(true) => break,
                Ok(false) => {}
                // Hosts filled the other disks meanwhile.
                Err(DeviceOrderError::NoRoom { .. }) => {
                    drop(evacuation);
                    return self.record(|set| set.removing = None);
                }
                Err(error) => panic!("disk {old}: {error}"),
            }
            if gives_up && self.rng.chance(0.3) {
                drop(evacuation);
                return self.record(|set| set.removing = None);
            }
            if grows {
                self.grow().await;
            }
        }
        match self.rng.chance(0.3) {
            true => {
                let patience = Duration::from_micros(1 + self.rng.below(600));
                let _ = time::timeout(patience, evacuation.complete()).await;
                // It goes on by itself.
                while self.pool.status().devices.contains(&self.disks[old].name) {
                    time::sleep(Duration::from_micros(100)).await;
                }
            }
            false => evacuation.complete().await.unwrap(),
        }
        self.record(|set| {
            set.removing = None;
            set.devices.retain(|other| *other != old);
        });
        self.history.borrow_mut().removed += 1;
        if self.rng.chance(0.7) {
            release(&self.disks[old]).await.unwrap();
        }
        self.spares.insert(0, old);
    }

    async fn run(mut self, orders: u64) {
        for _ in 0..orders {
            time::sleep(Duration::from_micros(self.rng.below(2000))).await;
            match self.set.devices.len() < 2 || self.rng.chance(0.5) {
                true => self.grow().await,
                false => self.shrink().await,
            }
        }
    }
}

async fn operator(pool: Pool, recorder: Recorder, mut rng: Rng, plan: Plan) {
    let mut archive = Archive { plan, snapshots: Vec::new(), clones: Vec::new(), used: Vec::new() };
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
                let properties = plan.properties(&mut rng);
                let options = VolumeOptions {
                    size_bytes: size(blocks),
                    properties,
                    ..VolumeOptions::default()
                };
                let volume = pool.create_volume(&name, &options).await.unwrap();
                recorder.end(step);
                let block = Buf::copy_of(&fill(0, number + 1)).unwrap();
                volume.write(0, block, false).await.unwrap();
                names.push((name, blocks));
            }
            2 if plan.compression == Compression::Auto && rng.chance(0.5) => {
                let properties = plan.properties(&mut rng);
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
    /// The disks that were recorded when the power was lost. At the moment of a change either is.
    fn set_at(&self, time: usize, rng: &mut Rng) -> &DeviceSet<usize> {
        let last = self.sets.iter().rposition(|recorded| recorded.from < time).unwrap_or(0);
        let possible: Vec<_> =
            self.sets[last..].iter().take_while(|recorded| recorded.from <= time).collect();
        &possible[rng.below(possible.len() as u64) as usize].set
    }

    /// Checks that `found` is a prefix of what had begun at `time`, and contains what was durable.
    fn check(&self, found: &[Content], time: usize, context: &str) {
        let flushed = self.flushes.iter().filter(|(_, ended)| ended.events <= time);
        let flushed = flushed.map(|(begun, _)| *begun).max();
        // Per actor the numbers of steps after which its content is what was found.
        let mut candidates = Vec::new();
        let mut prefix = Vec::new();
        for (actor, found) in self.actors.iter().zip(found) {
            let begun = actor.steps.iter().filter(|step| step.begun.events <= time).count();
            let durable = |step: &Step| match step.ended {
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
    /// Disks that may be added, beside those that were removed.
    spares: usize,
    compression: Compression,
}

impl Plan {
    /// Each volume has a setting of its own; `auto` stands for any of them.
    fn properties(&self, rng: &mut Rng) -> BTreeMap<String, String> {
        let setting = match self.compression {
            // Other histories stay as they are.
            Compression::Off => return BTreeMap::new(),
            Compression::Auto => Compression::ALL[rng.below(4) as usize],
            other => other,
        };
        BTreeMap::from([(COMPRESSION_PROPERTY.to_owned(), setting.name().to_owned())])
    }
}

#[derive(Default)]
struct Counts {
    grown: usize,
    removed: usize,
    full: usize,
    checkpoints: u64,
    copied: u64,
    crashes: usize,
    second_crashes: usize,
}

async fn run_history(seed: u64, plan: Plan) -> Counts {
    let mut rng = Rng::new(seed);
    let size_bytes = (1 << 20) + plan.segments * u64::from(SEGMENT_BLOCKS) * BLOCK as u64;
    let empty = vec![Image::default(); plan.disks + plan.spares];
    let options = CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
    let (mut devices, trace) = disks(empty, size_bytes, 50);
    let all = devices.clone();
    devices.truncate(plan.disks);
    let pool = Pool::create(devices, &options).await.unwrap();
    let properties = plan.properties(&mut rng);
    let db = VolumeOptions { size_bytes: 1 << 32, properties, ..VolumeOptions::default() };
    let device = pool.create_volume("db", &db).await.unwrap();
    let from = trace.lock().now();
    let history = Shared::default();
    history.borrow_mut().actors.resize_with(plan.writers + 1, Actor::default);
    let recorder = |actor| Recorder { history: history.clone(), actor, trace: trace.clone() };
    let mut tasks = Vec::new();
    for actor in 0..plan.writers {
        let own = Rng::new(rng.next_u64());
        tasks.push(spawn(writer(pool.clone(), device.clone(), recorder(actor), own, plan.steps)));
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
    let History { grown, removed, full, .. } = history;
    let mut counts = Counts { checkpoints, copied, grown, removed, full, ..Counts::default() };
    let last = trace.lock().now();
    let context = format!("seed {seed} before any crash");
    history.check(&content(&pool, &history, &context).await, last, &context);
    drop((pool, device));
    let offset = rng.below(plan.every as u64) as usize;
    let chosen = |time: usize| time >= from && (time + offset).is_multiple_of(plan.every);
    let mut crash_rng = Rng::new(rng.next_u64());
    let mut second = Rng::new(rng.next_u64());
    let trace = std::mem::take(&mut *trace.lock());
    trace
        .at_each_event(chosen, &mut crash_rng, async |time, images| {
            let context = format!("seed {seed}, crash after event {time}");
            counts.crashes += 1;
            let (devices, again) = disks(images, size_bytes, 0);
            let set = history.set_at(time, &mut second);
            let pool = open(devices, set, &context).await;
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
                            let (devices, _) = disks(images, size_bytes, 0);
                            let pool = open(devices, set, &context).await;
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

/// Opens a pool as a server does.
async fn open(disks: Vec<NamedDevice>, set: &DeviceSet<usize>, context: &str) -> Pool {
    let mut refused = String::new();
    for alternative in set.alternatives() {
        let devices = alternative.iter().map(|disk| disks[*disk].clone()).collect();
        match Pool::open(devices).await {
            Ok(pool) => return pool,
            Err(error) => refused += &format!("\n  {alternative:?}: {error}"),
        }
    }
    panic!("{context}: {set:?} is no pool{refused}");
}

/// Number of seeds, which `POOL_HISTORIES` replaces for a longer run.
fn seeds(usual: u64) -> u64 {
    std::env::var("POOL_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
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
        total.grown += counts.grown;
        total.removed += counts.removed;
        total.full += counts.full;
        total.second_crashes += counts.second_crashes;
    }
    let Counts { crashes, second_crashes, checkpoints, copied, grown, removed, full } = total;
    println!(
        "{histories} histories with {checkpoints} checkpoints and {copied} blocks copied by the \
         cleaner, {grown} disks added and {removed} removed, {full} writers in a full pool, {crashes} \
         crashes, {second_crashes} crashes of recovery"
    );
    total
}

const PLAN: Plan = Plan {
    writers: 2,
    steps: 30,
    disks: 1,
    segments: 150,
    snapshots: 20,
    every: 1,
    spares: 0,
    compression: Compression::Off,
};

/// Histories of a few writes.
const SHORT: Plan = Plan { steps: 4, segments: 64, snapshots: 2, ..PLAN };

#[test]
fn crash_at_any_write_leaves_a_flushed_prefix() {
    run(0..6, Plan { writers: 3, ..PLAN });
}

#[test]
fn crash_of_two_disks_leaves_a_flushed_prefix() {
    run(1000..1006, Plan { disks: 2, segments: 80, ..PLAN });
}

#[test]
fn crash_while_cleaning_leaves_a_flushed_prefix() {
    let plan = Plan { writers: 3, steps: 150, segments: 100, snapshots: 4, every: 9, ..PLAN };
    assert!(run(2000..2004, plan).copied > 100);
}

#[test]
fn crash_in_short_histories_leaves_a_flushed_prefix() {
    run(10_000..11_000, SHORT);
}

#[test]
fn crash_in_short_histories_on_two_disks() {
    run(20_000..21_000, Plan { disks: 2, segments: 40, ..SHORT });
}

#[test]
fn crash_while_disks_come_and_go() {
    let plan = Plan { steps: 40, segments: 100, snapshots: 4, every: 3, spares: 2, ..PLAN };
    let total = run(30_000..30_000 + seeds(24), plan);
    assert!(total.grown > 10 && total.removed > 4, "{} {}", total.grown, total.removed);
}

#[test]
fn crash_while_three_disks_come_and_go() {
    let plan = Plan {
        writers: 3,
        steps: 48,
        disks: 3,
        segments: 50,
        snapshots: 6,
        every: 5,
        spares: 2,
        ..PLAN
    };
    let total = run(40_000..40_000 + seeds(12), plan);
    assert!(total.grown > 10 && total.removed > 4, "{} {}", total.grown, total.removed);
}

#[test]
fn crash_with_compression_leaves_a_flushed_prefix() {
    run(60_000..60_003, Plan { writers: 3, compression: Compression::Lz4, ..PLAN });
    let mixed = Compression::Auto;
    run(61_000..61_003, Plan { disks: 2, segments: 80, compression: mixed, ..PLAN });
}

#[test]
fn crash_while_cleaning_compressed_data() {
    let plan = Plan { writers: 3, steps: 250, segments: 80, snapshots: 3, every: 29, ..PLAN };
    for (first, compression) in [(62_000, Compression::Zstd), (63_000, Compression::Auto)] {
        let total = run(first..first + seeds(2), Plan { compression, ..plan });
        assert!(total.copied > 50);
    }
}

#[test]
fn crash_of_a_full_compressed_pool() {
    // What does not compress fills so few segments with four snapshots of it.
    let plan = Plan { writers: 3, steps: 200, segments: 64, snapshots: 4, every: 31, ..PLAN };
    let total = run(43_002..43_002 + seeds(4), Plan { compression: Compression::Auto, ..plan });
    assert!(total.full > 0, "no writer found the pool full");
}

#[test]
fn crash_in_short_compressed_histories() {
    run(50_000..50_100, Plan { compression: Compression::Auto, ..SHORT });
}
