//! Volumes with compressed units: content that compresses, and its comparison with a model.

use std::collections::BTreeMap;

use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, Pool, PoolVolume, VolumeOptions,
};
use flagstone_runtime::rng::mix64;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf};

use super::{Image, SharedTrace, disks};

pub const BLOCK: u64 = 4096;
/// Chunks of 15 blocks, so that a unit fits.
pub const SEGMENT_BLOCKS: u32 = 128;

pub fn simulate(future: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, future);
    sim.block_on(async { done.await.unwrap() });
}

pub fn properties(compression: Compression) -> BTreeMap<String, String> {
    BTreeMap::from([(COMPRESSION_PROPERTY.to_owned(), compression.name().to_owned())])
}

pub fn volume(blocks: u64, compression: Compression) -> VolumeOptions {
    let size_bytes = blocks * BLOCK;
    VolumeOptions { size_bytes, properties: properties(compression), ..VolumeOptions::default() }
}

pub async fn pool(segments: u64) -> (Pool, SharedTrace, u64) {
    pool_of(segments, SEGMENT_BLOCKS).await
}

pub async fn pool_of(segments: u64, segment_blocks: u32) -> (Pool, SharedTrace, u64) {
    let size = (1 << 20) + segments * u64::from(segment_blocks) * BLOCK;
    let (devices, trace) = disks(vec![Image::default()], size, 0);
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    (Pool::create(devices, &options).await.unwrap(), trace, size)
}

/// Content of a block: it compresses to about a sixteenth, and differs by block and stamp.
pub fn block(at: u64, stamp: u64) -> Vec<u8> {
    let word = |index: u64| mix64(at ^ stamp << 32 ^ (index % 32) << 56).to_le_bytes();
    (0..BLOCK / 8).flat_map(word).collect()
}

pub fn blocks(at: std::ops::Range<u64>, stamp: u64) -> Vec<u8> {
    at.flat_map(|at| block(at, stamp)).collect()
}

pub async fn write(volume: &PoolVolume, at: std::ops::Range<u64>, stamp: u64) {
    let data = Buf::copy_of(&blocks(at.clone(), stamp)).unwrap();
    volume.write(at.start * BLOCK, data, false).await.unwrap();
}

pub async fn read(volume: &PoolVolume, at: std::ops::Range<u64>) -> Result<Vec<u8>, IoError> {
    let memory = buf::alloc(((at.end - at.start) * BLOCK) as usize).await;
    volume.read(at.start * BLOCK, memory).await.map(|read| read.to_vec())
}

pub async fn expect(volume: &PoolVolume, model: &[u64]) {
    for (at, stamp) in (0..).zip(model) {
        let expected = if *stamp == 0 { vec![0; BLOCK as usize] } else { block(at, *stamp) };
        assert!(read(volume, at..at + 1).await.unwrap() == expected, "block {at}");
    }
    for first in (0..model.len()).step_by(61) {
        let range = first..model.len().min(first + 61);
        let found = read(volume, range.start as u64..range.end as u64).await.unwrap();
        for (at, found) in range.zip(found.chunks(BLOCK as usize)) {
            let stamp = model[at];
            let expected =
                if stamp == 0 { vec![0; BLOCK as usize] } else { block(at as u64, stamp) };
            assert!(found == expected, "block {at} of a run");
        }
    }
}

/// Closes the pool, checks the devices, and opens it again.
pub async fn reopened(pool: Pool, trace: &SharedTrace, size: u64) -> (Pool, SharedTrace) {
    pool.close().await.unwrap();
    drop(pool);
    let image = super::durable(trace);
    let (devices, trace) = disks(image, size, 0);
    let report = Pool::check_devices(devices.clone(), &mut |_, _| ()).await.unwrap();
    assert_eq!((report.damages, &report.damage[..]), (0, &[][..]));
    (Pool::open(devices).await.unwrap(), trace)
}

pub fn stored(volume: &PoolVolume) -> (u64, u64) {
    let info = volume.info().unwrap();
    (info.used_bytes / BLOCK, info.stored_bytes / BLOCK)
}
