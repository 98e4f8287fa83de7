//! Replicas on volumes of pools.
//!
//! Where the simulator looks at the content of a replica, it opens a copy of the disk, as recovery after
//! a crash would.

use std::sync::Arc;

use flagstone_blockdev::sectors::SectorDevice;
use flagstone_blockdev::{BlockDevice, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::sim::Simulation;
use flagstone_runtime::{Buf, buf};

const NAME: &str = "replica";
const SEGMENT_BLOCKS: u32 = 16;
/// Room for the replica, and for what a small pool reserves.
const SEGMENTS: u64 = 64;

/// Size of the disk of a node.
pub(super) const DISK_BYTES: u64 = (1 << 20) + SEGMENTS * SEGMENT_BLOCKS as u64 * 4096;

fn named(device: SharedDevice) -> Vec<NamedDevice> {
    vec![NamedDevice { name: "/dev/data".to_owned(), device }]
}

/// Creates the pool of a node, with a volume for its replica.
pub(super) async fn create(disk: SharedDevice, size_bytes: u64) {
    let options = CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
    let pool = Pool::create(named(disk), &options).await.expect("a sound disk");
    let options = VolumeOptions { size_bytes, ..VolumeOptions::default() };
    pool.create_volume(NAME, &options).await.expect("there is room");
    pool.close().await.expect("a sound disk");
}

/// The volume with sectors of 512 bytes, which keeps its pool open. None if the disk fails.
pub(super) async fn open(disk: SharedDevice) -> Option<SharedDevice> {
    let pool = Pool::open(named(disk)).await.ok()?;
    let volume = pool.open_volume(NAME).expect("it was created");
    Some(Arc::new(SectorDevice::new(volume)))
}

/// Content of the replica on this copy of a disk.
pub(super) fn content(sim: &Simulation, image: Vec<u8>) -> Vec<u8> {
    sim.block_on(async move {
        let disk = Arc::new(MemoryDevice::new(image.len() as u64, 512).expect("a size"));
        for (piece, at) in image.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            let data = Buf::copy_of(piece).expect("there is memory");
            disk.write(at, data, false).await.expect("memory takes it");
        }
        let volume = open(disk).await.expect("the pool of a node opens at any moment");
        let len = volume.geometry().size_bytes as usize;
        volume.read(0, buf::alloc(len).await).await.expect("nothing is damaged").to_vec()
    })
}
