//! Reservations: a thick volume can be overwritten in full, again and again, whatever its neighbors
//! do.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolVolume, VolumeError, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

const BLOCK: u64 = 4096;

async fn create(segment_blocks: u64, segments: u64) -> Pool {
    let size_bytes = (1 << 20) + segments * segment_blocks * BLOCK;
    let device = Arc::new(MemoryDevice::new(size_bytes, 512).unwrap()) as SharedDevice;
    let devices = vec![NamedDevice { name: "memory".to_owned(), device }];
    let segment_blocks = segment_blocks as u32;
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    Pool::create(devices, &options).await.unwrap()
}

fn options(blocks: u64, thick: bool) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, thick, ..VolumeOptions::default() }
}

/// First word of a block.
fn word(block: u64, stamp: u64) -> [u8; 8] {
    (stamp << 32 | block).to_le_bytes()
}

async fn write(volume: &PoolVolume, first: u64, blocks: u64, stamp: u64) -> Result<(), IoError> {
    let mut data = vec![1; (blocks * BLOCK) as usize];
    for (block, bytes) in (first..).zip(data.chunks_mut(BLOCK as usize)) {
        bytes[..8].copy_from_slice(&word(block, stamp));
    }
    volume.write(first * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

/// A pool, a thick volume in it, and a thin neighbor.
struct Neighbors {
    rng: Rng,
    pool: Pool,
    thick: Arc<PoolVolume>,
    thin: Arc<PoolVolume>,
    blocks: u64,
    stamp: u64,
    snapshots: u64,
}

/// How a thin volume fills a pool.
#[derive(Clone, Copy, Debug)]
struct Filling {
    /// Distance of the writes, in blocks.
    stride: u64,
    /// Number of places of writes. They are chosen at random if the pool has more.
    places: u64,
    /// Most blocks of a write.
    most: u64,
    /// Blocks of each write that are not discarded at once.
    kept: u64,
    /// Snapshots are taken meanwhile.
    snapshots: bool,
}

impl Neighbors {
    async fn new(mut rng: Rng, pool: Pool, blocks: u64) -> Neighbors {
        let thick = pool.create_volume("thick", &options(blocks, true)).await.unwrap();
        let thin = pool.create_volume("thin", &options(1 << 30, false)).await.unwrap();
        let stamp = rng.below(1 << 20);
        Neighbors { rng, pool, thick, thin, blocks, stamp, snapshots: 0 }
    }

    /// Lets the thin volume take all it can get; returns the blocks that it wrote.
    async fn fill(&mut self, filling: &Filling) -> u64 {
        let mut written = 0;
        for step in 0..20_000 {
            let place = match filling.places {
                0 => step,
                places => self.rng.below(places),
            };
            let (first, count) = (place * filling.stride, 1 + self.rng.below(filling.most));
            match write(&self.thin, first, count, 0).await {
                Ok(()) => written += count,
                Err(error) => {
                    assert_eq!(error, IoError::NoSpace);
                    break;
                }
            }
            if let Some(dead) = count.checked_sub(filling.kept).filter(|dead| *dead > 0) {
                self.thin.discard((first + filling.kept) * BLOCK, dead * BLOCK).await.unwrap();
            }
            if filling.snapshots && step % 256 == 255 {
                self.snapshot("thin").await;
            }
        }
        written
    }

    /// A full pool may refuse it.
    async fn snapshot(&mut self, volume: &str) {
        self.snapshots += 1;
        match self.pool.create_snapshot(&[volume], &self.snapshots.to_string()).await {
            Ok(_) | Err(VolumeError::Full { .. } | VolumeError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Overwrites the thick volume in full, in pieces of this size in random order, and reads it.
    async fn overwrite(&mut self, piece: u64, what: &str) {
        self.stamp += 1;
        let mut left: Vec<u64> = (0..self.blocks).step_by(piece as usize).collect();
        while !left.is_empty() {
            let first = left.swap_remove(self.rng.below(left.len() as u64) as usize);
            let written = write(&self.thick, first, piece.min(self.blocks - first), self.stamp);
            let written = written.await;
            assert_eq!(written, Ok(()), "{what}, block {first}: {:?}", self.pool.status());
        }
        for block in 0..self.blocks {
            let memory = buf::alloc(BLOCK as usize).await;
            let read = self.thick.read(block * BLOCK, memory).await.unwrap();
            assert_eq!(read[..8], word(block, self.stamp), "{what}, block {block}");
        }
    }
}

/// The cleaner could not make room at the density of a full pool, and gave up: the last blocks of
/// the thick volume did not fit. Dead blocks among those of the neighbor made it worse.
#[test]
fn thick_volume_fits_a_pool_that_others_filled() {
    for (kept, piece) in [(8, 160), (1, 160), (1, 3)] {
        block_on(async move {
            let pool = create(128, 64).await;
            let mut neighbors = Neighbors::new(Rng::new(1), pool, 2000).await;
            let filling = Filling { stride: 8, places: 0, most: 8, kept, snapshots: false };
            let written = neighbors.fill(&filling).await;
            assert!(written > 3000, "{written}: {:?}", neighbors.pool.status());
            for round in 0..3 {
                neighbors.overwrite(piece, &format!("{kept} of 8 kept, round {round}")).await;
            }
        })
        .unwrap();
    }
}

/// Pools of random sizes, filled in random ways before each overwrite.
#[test]
fn thick_volume_can_be_overwritten_in_full_pools() {
    for seed in 0..8 {
        block_on(async move {
            let mut rng = Rng::new(seed);
            let pool = create(16 << rng.below(4), 32 + rng.below(80)).await;
            let capacity = pool.status().capacity_bytes / BLOCK;
            let blocks = 1 + rng.below(capacity * 3 / 4);
            let mut neighbors = Neighbors::new(rng, pool, blocks).await;
            for round in 0..3 {
                let rng = &mut neighbors.rng;
                let filling = Filling {
                    stride: [1, 3, 8, 252, 5000][rng.below(5) as usize],
                    places: 1 + rng.below(2 * capacity),
                    most: 1 + rng.below(32),
                    kept: [1, 2, 32][rng.below(3) as usize],
                    snapshots: rng.chance(0.5),
                };
                let (piece, with_own) = (1 + rng.below(64), rng.chance(0.2));
                neighbors.fill(&filling).await;
                if with_own {
                    neighbors.snapshot("thick").await;
                }
                neighbors
                    .overwrite(piece, &format!("seed {seed}, round {round}, {filling:?}"))
                    .await;
            }
        })
        .unwrap();
    }
}
