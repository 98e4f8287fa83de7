//! Model test of snapshots and clones: random writes, snapshots, clones, rollbacks, promotions,
//! deletions, cleaning and reopening, compared with a model of the blocks.
//!
//! Not covered: power loss (see `history`), and failing devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice, SharedDevice};
use flagstone_pool::{
    CreateOptions, NamedDevice, Pool, PoolVolume, SnapshotInfo, VolumeError, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, random_u64, spawn};

const BLOCK: u64 = 4096;

type Blocks = BTreeMap<u64, u64>;

fn memory(size_bytes: u64) -> Vec<NamedDevice> {
    let device = Arc::new(MemoryDevice::new(size_bytes, 512).unwrap()) as SharedDevice;
    vec![NamedDevice { name: "memory".to_owned(), device }]
}

async fn create(segment_blocks: u32, segments: u64) -> (Vec<NamedDevice>, Pool) {
    let devices = memory((1 << 20) + segments * u64::from(segment_blocks) * BLOCK);
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices.clone(), &options).await.unwrap();
    (devices, pool)
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

async fn write(device: &PoolVolume, block: u64, stamp: u64) -> Result<(), IoError> {
    let data: Vec<u8> = (0..512_u64).flat_map(|word| (stamp << 9 | word).to_le_bytes()).collect();
    device.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

async fn stamp(device: &PoolVolume, block: u64) -> u64 {
    let read = device.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
    u64::from_le_bytes(read[8..16].try_into().unwrap()) >> 9
}

async fn check_blocks(device: &PoolVolume, blocks: u64, model: &Blocks, context: &str) {
    assert_eq!(device.geometry().size_bytes, blocks * BLOCK, "{context}");
    for first in (0..blocks).step_by(128) {
        let count = 128.min(blocks - first);
        let memory = buf::alloc((count * BLOCK) as usize).await;
        let read = device.read(first * BLOCK, memory).await.unwrap();
        for (data, block) in read.chunks(BLOCK as usize).zip(first..) {
            let expected = model.get(&block).copied().unwrap_or(0);
            let found = u64::from_le_bytes(data[8..16].try_into().unwrap()) >> 9;
            assert_eq!(found, expected, "{context}, block {block}");
        }
    }
}

/// Model of volumes or snapshots, by name: size and blocks.
type Model = BTreeMap<String, (u64, Blocks)>;

struct Run {
    seed: u64,
    devices: Vec<NamedDevice>,
    pool: Option<Pool>,
    rng: Rng,
    volumes: Model,
    /// By full name.
    snapshots: Model,
    step: u64,
}

fn pick(rng: &mut Rng, model: &Model) -> Option<String> {
    let at = rng.below(model.len().max(1) as u64) as usize;
    model.keys().nth(at).cloned()
}

impl Run {
    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    async fn check(&self) {
        let names: Vec<String> = self.pool().volumes().into_iter().map(|info| info.name).collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert!(sorted.iter().eq(self.volumes.keys()), "seed {}: {names:?}", self.seed);
        for (name, (blocks, model)) in &self.volumes {
            let device = self.pool().open_volume(name).unwrap();
            let context = format!("seed {} step {} volume {name}", self.seed, self.step);
            check_blocks(&device, *blocks, model, &context).await;
        }
        assert_eq!(self.pool().snapshots().len(), self.snapshots.len());
        for (name, (blocks, model)) in &self.snapshots {
            let device = self.pool().open_snapshot(name).unwrap();
            let context = format!("seed {} step {} snapshot {name}", self.seed, self.step);
            check_blocks(&device, *blocks, model, &context).await;
            assert!(device.geometry().read_only);
        }
    }

    async fn step(&mut self) {
        self.step += 1;
        let pool = self.pool.clone().unwrap();
        let volume = pick(&mut self.rng, &self.volumes);
        let snapshot = pick(&mut self.rng, &self.snapshots);
        match (self.rng.below(34), volume, snapshot) {
            (0..14, Some(name), _) => self.write_some(&name).await,
            (14..17, Some(name), _) => {
                let device = pool.open_volume(&name).unwrap();
                let (blocks, model) = self.volumes.get_mut(&name).unwrap();
                let first = self.rng.below(*blocks);
                let count = 1 + self.rng.below(*blocks - first);
                device.discard(first * BLOCK, count * BLOCK).await.unwrap();
                model.retain(|block, _| !(first..first + count).contains(block));
            }
            (17..20, Some(name), _) => {
                let mut group: Vec<String> = vec![name];
                let others = self.volumes.keys().filter(|other| **other != group[0]);
                let others: Vec<String> = others.cloned().collect();
                group.extend(others.into_iter().filter(|_| self.rng.chance(0.3)));
                let own = format!("s{}", self.step);
                let names: Vec<&str> = group.iter().map(String::as_str).collect();
                pool.create_snapshot(&names, &own).await.unwrap();
                for name in &group {
                    let full = format!("{name}@{own}");
                    self.snapshots.insert(full, self.volumes[name].clone());
                }
            }
            (20..23, _, Some(snapshot)) if self.volumes.len() < 5 => {
                let name = format!("c{}", self.step);
                pool.clone_volume(&snapshot, &name, BTreeMap::new()).await.unwrap();
                self.volumes.insert(name, self.snapshots[&snapshot].clone());
            }
            (23..25, _, Some(full)) => {
                let (name, snapshot) = full.split_once('@').unwrap();
                pool.rollback(name, snapshot).await.unwrap();
                self.volumes.insert(name.to_owned(), self.snapshots[&full].clone());
            }
            (25..29, _, Some(full)) => match pool.delete_snapshot(&full).await {
                Ok(()) => drop(self.snapshots.remove(&full)),
                Err(error) => assert!(matches!(error, VolumeError::InUse { .. }), "{error}"),
            },
            (29, Some(name), _) if self.volumes.len() > 1 => {
                match pool.delete_volume(&name).await {
                    Ok(()) => drop(self.volumes.remove(&name)),
                    Err(VolumeError::HasSnapshots { snapshots, .. }) => {
                        let prefix = format!("{name}@");
                        let own = self.snapshots.keys().filter(|full| full.starts_with(&prefix));
                        assert_eq!(snapshots, own.count());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            (30, Some(name), _) => {
                let before = pool.snapshots();
                match pool.promote_volume(&name).await {
                    Ok(()) => {
                        let content = |old: &SnapshotInfo| self.snapshots[&old.name].clone();
                        let contents: Vec<_> = before.iter().map(content).collect();
                        let names = pool.snapshots().into_iter().map(|new| new.name);
                        self.snapshots = names.zip(contents).collect();
                    }
                    Err(VolumeError::NotAClone { .. } | VolumeError::PromotedNames { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            (31, Some(name), _) => {
                let (blocks, _) = self.volumes.get_mut(&name).unwrap();
                *blocks = (*blocks + self.rng.below(200)).min(700);
                pool.resize_volume(&name, *blocks * BLOCK).await.unwrap();
            }
            (32, _, _) => pool.checkpoint().await.unwrap(),
            (33, _, _) => {
                if self.rng.chance(0.5) {
                    pool.close().await.unwrap();
                }
                self.pool = None;
                drop(pool);
                self.pool = Some(Pool::open(self.devices.clone()).await.unwrap());
            }
            _ => {}
        }
    }

    async fn write_some(&mut self, name: &str) {
        let device = self.pool().open_volume(name).unwrap();
        let (blocks, model) = self.volumes.get_mut(name).unwrap();
        for _ in 0..1 + self.rng.below(60) {
            let block = self.rng.below(*blocks);
            self.step += 1;
            match write(&device, block, self.step).await {
                Ok(()) => drop(model.insert(block, self.step)),
                Err(error) => {
                    assert_eq!(error, IoError::NoSpace);
                    return;
                }
            }
        }
    }
}

async fn run(seed: u64, segments: u64, steps: u64) -> (u64, u64) {
    let (devices, pool) = create(16, segments).await;
    pool.create_volume("db", &thin(300)).await.unwrap();
    pool.create_volume("log", &thin(100)).await.unwrap();
    let volumes =
        [("db".to_owned(), (300, Blocks::new())), ("log".to_owned(), (100, Blocks::new()))];
    let mut run = Run {
        seed,
        devices,
        pool: Some(pool),
        rng: Rng::new(seed),
        volumes: volumes.into(),
        snapshots: Model::new(),
        step: 0,
    };
    let mut copied = 0;
    for step in 0..steps {
        let before = run.pool().status().copied_blocks;
        run.step().await;
        copied += run.pool().status().copied_blocks.saturating_sub(before);
        if step % 16 == 0 {
            run.check().await;
        }
    }
    run.check().await;
    (copied, run.snapshots.len() as u64)
}

#[test]
fn snapshots_and_clones_match_their_model() {
    let (mut copied, mut snapshots) = (0, 0);
    for seed in 0..40 {
        let segments = [100, 160, 250][seed as usize % 3];
        let counts = block_on(run(seed, segments, 200)).unwrap();
        copied += counts.0;
        snapshots += counts.1;
    }
    assert!(copied > 1000 && snapshots > 50, "{copied} blocks copied, {snapshots} snapshots left");
}

#[test]
fn space_of_snapshots_and_clones_comes_back() {
    block_on(async {
        let (devices, pool) = create(64, 200).await;
        let db = pool.create_volume("db", &thin(4000)).await.unwrap();
        pool.checkpoint().await.unwrap();
        let empty = pool.status().used_bytes;
        for round in 1..6 {
            for block in 0..600 {
                write(&db, block * 3 + round, round).await.unwrap();
            }
            pool.create_snapshot(&["db"], &format!("s{round}")).await.unwrap();
        }
        pool.clone_volume("db@s3", "test", BTreeMap::new()).await.unwrap();
        let refused = pool.delete_snapshot("db@s3").await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "db@s4, test continue from snapshot `db@s3`; delete all but one of them first"
        );
        let refused = pool.delete_volume("db").await.unwrap_err();
        assert!(refused.to_string().contains("has 5 snapshots; delete them first"), "{refused}");
        pool.promote_volume("test").await.unwrap();
        for name in ["db@s5", "db@s4"] {
            pool.delete_snapshot(name).await.unwrap();
        }
        pool.delete_volume("db").await.unwrap();
        for name in ["test@s1", "test@s3", "test@s2"] {
            pool.delete_snapshot(name).await.unwrap();
        }
        let test = pool.open_volume("test").unwrap();
        assert_eq!(stamp(&test, 3).await, 3);
        pool.delete_volume("test").await.unwrap();
        while pool.status().used_bytes > empty + 8 * BLOCK {
            pool.checkpoint().await.unwrap();
            assert!(pool.status().checkpoints < 100, "{:?}", pool.status());
        }
        drop((db, test, pool));
        assert_eq!(Pool::open(devices).await.unwrap().volumes(), []);
    })
    .unwrap();
}

#[test]
fn diff_names_what_was_written_between_snapshots() {
    block_on(async {
        let (_, pool) = create(64, 200).await;
        let db = pool.create_volume("db", &thin(100_000)).await.unwrap();
        for block in [5, 6, 90_000] {
            write(&db, block, 1).await.unwrap();
        }
        pool.create_snapshot(&["db"], "a").await.unwrap();
        for block in [6, 7, 300, 90_000] {
            write(&db, block, 2).await.unwrap();
        }
        db.discard(5 * BLOCK, BLOCK).await.unwrap();
        pool.resize_volume("db", 200_000 * BLOCK).await.unwrap();
        write(&db, 150_000, 3).await.unwrap();
        pool.create_snapshot(&["db"], "b").await.unwrap();
        let ranges = [5..8, 300..301, 90_000..90_001, 150_000..150_001];
        for names in [("db@a", "db@b"), ("db@b", "db@a")] {
            let diff = pool.diff(names.0, names.1, 0).await.unwrap();
            let found = diff.ranges.iter().map(|range| range.start / BLOCK..range.end / BLOCK);
            assert!(found.eq(ranges.clone()), "{diff:?}");
            assert_eq!(diff.next, None);
        }
        let rest = pool.diff("db@a", "db@b", 7 * BLOCK).await.unwrap();
        assert_eq!(rest.ranges[0], 7 * BLOCK..8 * BLOCK);
        assert_eq!(pool.diff("db@a", "db@a", 0).await.unwrap().ranges, []);
        let unknown = pool.diff("db@a", "db@c", 0).await.unwrap_err();
        assert_eq!(unknown.to_string(), "pool fast has no snapshot `db@c`");
    })
    .unwrap();
}

#[test]
fn snapshot_of_a_thick_volume_reserves_what_it_shares() {
    block_on(async {
        let (_, pool) = create(64, 100).await;
        let half = pool.status().capacity_bytes / BLOCK / 2 + 100;
        let thick = VolumeOptions { thick: true, ..thin(half) };
        let db = pool.create_volume("db", &thick).await.unwrap();
        for block in 0..half {
            write(&db, block, 1).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        let refused = pool.create_snapshot(&["db"], "a").await;
        assert!(matches!(refused, Err(VolumeError::NoSpace { .. })), "{refused:?}");
        db.discard(0, half / 2 * BLOCK).await.unwrap();
        pool.checkpoint().await.unwrap();
        pool.create_snapshot(&["db"], "a").await.unwrap();
        for block in 0..half {
            write(&db, block, 2).await.unwrap();
        }
    })
    .unwrap();
}

/// A write beyond the size that a concurrent rollback sets has no effect, at run time and in a
/// replay, like a write to a deleted volume.
#[test]
fn rollback_below_writes_in_flight_keeps_the_pool_whole() {
    for seed in 0..8 {
        let sim = Simulation::new(seed, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, async {
            let size_bytes = (1 << 20) + 400 * 16 * BLOCK;
            let (devices, _) =
                crate::common::disks(vec![crate::common::Image::default()], size_bytes, 300);
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices.clone(), &options).await.unwrap();
            let db = pool.create_volume("db", &thin(200)).await.unwrap();
            write(&db, 7, 1).await.unwrap();
            pool.create_snapshot(&["db"], "a").await.unwrap();
            pool.resize_volume("db", 100_000 * BLOCK).await.unwrap();
            let writer = |db: Arc<PoolVolume>| async move {
                while write(&db, 300 + random_u64() % 99_000, 2).await.is_ok() {}
            };
            let writers: Vec<_> = (0..8).map(|_| spawn(writer(db.clone()))).collect();
            pool.rollback("db", "a").await.unwrap();
            for writer in writers {
                writer.await.unwrap();
            }
            drop((db, pool));
            for _ in 0..2 {
                let pool = Pool::open(devices.clone()).await.unwrap();
                let db = pool.open_volume("db").unwrap();
                check_blocks(&db, 200, &[(7, 1)].into(), "reopened").await;
                pool.resize_volume("db", 100_000 * BLOCK).await.unwrap();
                pool.rollback("db", "a").await.unwrap();
                pool.close().await.unwrap();
            }
        });
        sim.block_on(async { done.await.unwrap() });
    }
}
