//! Random histories of a pool with a thick volume: neighbors that fill the pool, snapshots, growth,
//! removal of devices, restarts and crashes, one after the other and at the same time. Every write
//! of the thick volume must succeed, and it must have what was written.
//!
//! Every second history has compressed volumes, of which some data compresses.
//!
//! Large pools are full because of the reservation alone, so that they take little memory.
//!
//! Left out: crashes that lose what was not flushed, which `history` has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, DelayConfig, DelayLayer, DelayTime, IoError, MemoryDevice, SharedDevice,
};
use flagstone_pool::manage::devices::{DeviceOrderError, release};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, NamedDevice, Pool, PoolVolume, VolumeError,
    VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, spawn, time};

const BLOCK: u64 = 4096;

/// How often each kind of event was seen.
type Counts = BTreeMap<&'static str, u64>;

/// Stamps of the blocks of the thick volume; others are zeroes.
type Content = BTreeMap<u64, u64>;

struct History {
    rng: Rng,
    segment_blocks: u64,
    devices: Vec<NamedDevice>,
    number: u64,
    pool: Option<Pool>,
    blocks: u64,
    content: Content,
    /// Snapshots of the thick volume that exist, the oldest first.
    snapshots: Vec<(String, u64, Content)>,
    /// Blocks that an overwrite writes at most.
    most: u64,
    stamp: u64,
    compression: Compression,
    counts: Counts,
}

fn size(blocks: u64, thick: bool, compression: Compression) -> VolumeOptions {
    let name = compression.name().to_owned();
    let properties = BTreeMap::from([(COMPRESSION_PROPERTY.to_owned(), name)]);
    VolumeOptions { size_bytes: blocks * BLOCK, thick, properties }
}

async fn write(volume: &PoolVolume, first: u64, count: u64, stamp: u64) -> Result<(), IoError> {
    // Half of the writes do not compress.
    let mut rng = Rng::new(stamp << 40 ^ first);
    let is_noise = rng.chance(0.5);
    let mut data = vec![1; (count * BLOCK) as usize];
    if is_noise {
        let words = data.chunks_mut(8);
        words.for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    }
    for (block, bytes) in (first..).zip(data.chunks_mut(BLOCK as usize)) {
        bytes[..8].copy_from_slice(&(stamp << 40 | block).to_le_bytes());
    }
    volume.write(first * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

/// A device whose calls take random times.
fn device(number: u64, segment_blocks: u64, segments: u64) -> NamedDevice {
    let memory = MemoryDevice::new((1 << 20) + segments * segment_blocks * BLOCK, 512).unwrap();
    let write = DelayTime { jitter: Duration::from_micros(50), ..DelayTime::default() };
    let config = DelayConfig { write, ..DelayConfig::default() };
    let device = Arc::new(DelayLayer::new(Arc::new(memory), config).unwrap()) as SharedDevice;
    NamedDevice { name: format!("/dev/{number}"), device }
}

/// Lets a thin volume take what it can get; returns whether the pool refused a write.
async fn fill(thin: &PoolVolume, rng: &mut Rng, writes: u64) -> bool {
    let (stride, most) = ([1, 8, 252, 5000][rng.below(4) as usize], 1 + rng.below(32));
    let places = 1 + rng.below(4 * writes);
    for _ in 0..writes {
        let first = rng.below(places) * stride;
        match write(thin, first, 1 + rng.below(most), 0).await {
            Ok(()) => {}
            Err(IoError::NoSpace) => return true,
            Err(error) => panic!("{error}"),
        }
        if rng.chance(0.1) {
            thin.discard(first * BLOCK, (1 + rng.below(most)) * BLOCK).await.unwrap();
        }
    }
    false
}

/// Overwrites parts of a volume, in random order; returns the blocks.
async fn overwrite(
    thick: &PoolVolume,
    mut places: Vec<u64>,
    (piece, end, stamp): (u64, u64, u64),
    rng: &mut Rng,
) -> Vec<u64> {
    let mut written = Vec::new();
    while !places.is_empty() {
        let first = places.swap_remove(rng.below(places.len() as u64) as usize);
        let count = piece.min(end - first);
        assert_eq!(write(thick, first, count, stamp).await, Ok(()), "block {first}");
        written.extend(first..first + count);
    }
    written
}

impl History {
    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn open(&self, name: &str) -> Arc<PoolVolume> {
        self.pool().open_volume(name).unwrap()
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    fn count_order(&mut self, order: &'static str, refused: &'static str, done: Option<bool>) {
        match done {
            Some(true) => self.count(order),
            Some(false) => self.count(refused),
            None => {}
        }
    }

    async fn begin(seed: u64, is_large: bool) -> History {
        let mut rng = Rng::new(seed);
        let (segment_blocks, segments) = match is_large {
            // 33 GiB.
            true => (2048, 4224),
            // Short chunks have no compressed units.
            false if seed % 2 == 1 => (128, 36 + rng.below(20)),
            false => (16 << rng.below(3), 48 + rng.below(80)),
        };
        let devices = vec![device(0, segment_blocks, segments)];
        let options =
            CreateOptions { segment_blocks: segment_blocks as u32, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices.clone(), &options).await.unwrap();
        let capacity = pool.status().capacity_bytes / BLOCK;
        let blocks = match is_large {
            true => capacity - 3000,
            false => capacity / 10 + rng.below(capacity / 3),
        };
        let compression = match seed % 2 {
            1 => Compression::ALL[1 + rng.below(3) as usize],
            _ => Compression::Off,
        };
        pool.create_volume("thick", &size(blocks, true, compression)).await.unwrap();
        pool.create_volume("thin", &size(1 << 30, false, compression)).await.unwrap();
        let most = if is_large { 600 } else { blocks };
        History {
            rng,
            segment_blocks,
            devices,
            number: 1,
            pool: Some(pool),
            blocks,
            content: Content::new(),
            snapshots: Vec::new(),
            most,
            stamp: 0,
            compression,
            counts: Counts::new(),
        }
    }

    /// Places of the next overwrite, and its piece, end and stamp.
    fn next_overwrite(&mut self) -> (Vec<u64>, (u64, u64, u64)) {
        self.stamp += 1;
        let piece = 1 + self.rng.below(64);
        let count = self.most.min(self.blocks).div_ceil(piece);
        let all = self.blocks.div_ceil(piece);
        let skip = self.rng.below(all - count + 1);
        let places = (skip..skip + count).map(|place| place * piece).collect();
        (places, (piece, self.blocks, self.stamp))
    }

    async fn overwrite(&mut self) {
        let (places, how) = self.next_overwrite();
        let written = overwrite(&self.open("thick"), places, how, &mut self.rng).await;
        self.content.extend(written.into_iter().map(|block| (block, how.2)));
        self.count("overwrite");
    }

    async fn fill(&mut self) {
        if fill(&self.open("thin"), &mut self.rng, 4000).await {
            self.count("full pool");
        }
    }

    /// Overwrites beside a neighbor that fills the pool and an order that reserves space.
    async fn at_once(&mut self) {
        let (places, how) = self.next_overwrite();
        let (thick, thin, pool) = (self.open("thick"), self.open("thin"), self.pool().clone());
        let (first, second) = (self.rng.next_u64(), self.rng.next_u64());
        let (mut first, mut second) = (Rng::new(first), Rng::new(second));
        let writing = spawn(async move { overwrite(&thick, places, how, &mut first).await });
        let filling = spawn(async move { fill(&thin, &mut second, 2000).await });
        let blocks = 1 + self.rng.below(self.blocks);
        let more =
            pool.create_volume("more", &size(blocks, true, self.compression)).await.map(drop);
        let made = accepted(more);
        if made == Some(true) {
            let more = pool.open_volume("more").unwrap();
            for block in (0..blocks.min(200)).rev() {
                assert_eq!(write(&more, block, 1, 1).await, Ok(()), "of a new volume");
            }
        }
        self.count_order("volume beside writes", "refused volume beside writes", made);
        let written = writing.await.unwrap();
        self.content.extend(written.into_iter().map(|block| (block, how.2)));
        filling.await.unwrap();
        if made == Some(true) {
            pool.delete_volume("more").await.unwrap();
        }
        self.count("writes at once");
    }

    async fn snapshot(&mut self) {
        self.number += 1;
        let name = self.number.to_string();
        let made = accepted(self.pool().create_snapshot(&["thick"], &name).await.map(drop));
        if made == Some(true) {
            self.snapshots.push((name, self.blocks, self.content.clone()));
        }
        self.count_order("snapshot", "refused snapshot", made);
    }

    async fn delete_snapshot(&mut self) {
        let count = self.snapshots.len();
        if count == 0 {
            return;
        }
        let at = if count > 2 { count / 2 } else { self.rng.below(count as u64) as usize };
        let (name, ..) = self.snapshots.remove(at);
        self.pool().delete_snapshot(&format!("thick@{name}")).await.unwrap();
        if at > 0 && at + 1 < count {
            self.count("deletion of a middle snapshot");
        }
    }

    /// To the latest snapshot: others would get a second user.
    async fn rollback(&mut self) {
        let Some((name, blocks, content)) = self.snapshots.last().cloned() else { return };
        let done = accepted(self.pool().rollback("thick", &name).await);
        if done == Some(true) {
            (self.blocks, self.content) = (blocks, content);
        }
        self.count_order("rollback", "refused rollback", done);
    }

    async fn resize(&mut self) {
        let blocks = self.blocks + 1 + self.rng.below(self.most / 2);
        let done = accepted(self.pool().resize_volume("thick", blocks * BLOCK).await);
        if done == Some(true) {
            self.blocks = blocks;
        }
        self.count_order("resize", "refused resize", done);
    }

    async fn discard(&mut self) {
        let first = self.rng.below(self.blocks);
        let count = 1 + self.rng.below(self.blocks - first);
        self.open("thick").discard(first * BLOCK, count * BLOCK).await.unwrap();
        self.content.retain(|block, _| !(first..first + count).contains(block));
        self.count("discard");
    }

    /// The neighbor gives its space back.
    async fn empty(&mut self) {
        self.open("thin").discard(0, BLOCK << 30).await.unwrap();
        self.pool().checkpoint().await.unwrap();
        self.count("emptied neighbor");
    }

    async fn grow(&mut self) {
        if self.devices.len() > 2 {
            return;
        }
        let new = device(self.number, self.segment_blocks, 32 + self.rng.below(64));
        self.number += 1;
        match self.pool().grow(new.clone(), false).await {
            Ok(()) => self.devices.push(new),
            Err(DeviceOrderError::TooMany) => return,
            Err(error) => panic!("{error}"),
        }
        self.count("growth");
    }

    async fn remove(&mut self) {
        let at = self.rng.below(self.devices.len() as u64) as usize;
        let name = self.devices[at].name.clone();
        let is_refused = |error: &DeviceOrderError| {
            matches!(
                error,
                DeviceOrderError::NoRoom { .. }
                    | DeviceOrderError::Unbacked { .. }
                    | DeviceOrderError::Last { .. }
            )
        };
        let evacuated = match self.pool().evacuate(&name).await {
            Ok(evacuation) => loop {
                match evacuation.step().await {
                    Ok(true) => break evacuation.complete().await,
                    Ok(false) => {}
                    Err(error) => break Err(error),
                }
            },
            Err(error) => Err(error),
        };
        match evacuated {
            Ok(removed) => {
                release(&self.devices.remove(at), removed).await.unwrap();
                self.count("removal");
            }
            Err(error) => {
                assert!(is_refused(&error), "{error}");
                self.count("refused removal");
            }
        }
    }

    async fn reopen(&mut self, is_crash: bool) {
        let pool = self.pool.take().unwrap();
        if !is_crash {
            pool.close().await.unwrap();
        }
        let reserved = pool.status().reserved_bytes;
        drop(pool);
        // A checkpoint in progress ends.
        time::sleep(Duration::from_secs(10)).await;
        let pool = Pool::open(self.devices.clone()).await.unwrap();
        if !is_crash {
            assert_eq!(pool.status().reserved_bytes, reserved);
        }
        self.pool = Some(pool);
        self.count(if is_crash { "crash" } else { "restart" });
    }

    async fn step(&mut self) {
        match self.rng.below(18) {
            0..3 => self.overwrite().await,
            3..5 => self.fill().await,
            5 | 6 => self.at_once().await,
            7 | 8 => self.snapshot().await,
            9 => self.delete_snapshot().await,
            10 => self.rollback().await,
            11 => self.resize().await,
            12 => self.discard().await,
            13 => self.grow().await,
            14 => self.remove().await,
            15 | 16 => self.empty().await,
            _ => {
                let is_crash = self.rng.chance(0.5);
                self.reopen(is_crash).await;
            }
        }
    }

    async fn check(&self) {
        let thick = self.open("thick");
        for (block, stamp) in &self.content {
            let read = thick.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await.unwrap();
            assert_eq!(read[..8], (stamp << 40 | block).to_le_bytes(), "block {block}");
        }
    }
}

/// Whether an order took place; none for a pool that is too full for any order.
fn accepted(done: Result<(), VolumeError>) -> Option<bool> {
    match done {
        Ok(()) => Some(true),
        Err(VolumeError::NoSpace { .. }) => Some(false),
        Err(VolumeError::Full { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn run(seed: u64, is_large: bool, steps: u64) -> Counts {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async move {
        let mut history = History::begin(seed, is_large).await;
        if is_large {
            history.fill().await;
        }
        for step in 0..steps {
            println!("seed {seed}, step {step}: {:?}", history.pool().status());
            history.step().await;
        }
        history.grow().await;
        history.reopen(false).await;
        history.reopen(true).await;
        history.fill().await;
        history.overwrite().await;
        history.check().await;
        history.counts
    });
    sim.block_on(async { done.await.unwrap() })
}

fn assert_seen(counts: &Counts, events: &[&str]) {
    for event in events {
        assert!(counts.contains_key(event), "{event} was not seen: {counts:?}");
    }
}

fn histories(seeds: std::ops::Range<u64>, is_large: bool, steps: u64) -> Counts {
    let mut all = Counts::new();
    for seed in seeds {
        for (event, count) in run(seed, is_large, steps) {
            *all.entry(event).or_default() += count;
        }
    }
    all
}

#[test]
fn thick_volume_has_its_space_in_random_histories() {
    let counts = histories(0..8, false, 40);
    println!("{counts:?}");
    let seen = [
        "overwrite",
        "full pool",
        "writes at once",
        "volume beside writes",
        "refused volume beside writes",
        "snapshot",
        "refused snapshot",
        "deletion of a middle snapshot",
        "rollback",
        "resize",
        "refused resize",
        "discard",
        "emptied neighbor",
        "growth",
        "removal",
        "refused removal",
        "restart",
        "crash",
    ];
    assert_seen(&counts, &seen);
}

#[test]
fn thick_volume_has_its_space_in_large_pools() {
    let counts = histories(100..101, true, 12);
    println!("{counts:?}");
    assert_seen(&counts, &["overwrite", "full pool", "growth", "restart", "crash"]);
}
