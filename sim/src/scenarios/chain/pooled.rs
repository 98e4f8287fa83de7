//! Replicas on volumes of pools.
//!
//! Where the simulator looks at the content of a replica, it opens a copy of the disk, as recovery
//! after a crash would.

use std::sync::Arc;

use flagstone_blockdev::sectors::SectorDevice;
use flagstone_blockdev::{BlockDevice, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::sim::{NodeId, Simulation};
use flagstone_runtime::{Buf, buf};

const NAME: &str = "replica";
const SEGMENT_BLOCKS: u32 = 16;
/// Room for the replica, and for what a small pool reserves.
const SEGMENTS: u64 = 48;

/// Unit of copies of a disk.
const PIECE: usize = 64 << 10;

static ZEROES: [u8; PIECE] = [0; PIECE];

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

/// Copy of a disk: offsets and bytes of its parts that have anything but zeroes.
pub(super) struct Image(Vec<(u64, Vec<u8>)>);

/// Copies the disk of a node as it is now.
pub(super) fn image(sim: &Simulation, node: NodeId, path: &str) -> Image {
    let pieces = (0..DISK_BYTES).step_by(PIECE);
    let pieces = pieces.map(|at| (at, sim.peek(node, path, at, PIECE)));
    Image(pieces.filter(|(_, bytes)| bytes[..] != ZEROES).collect())
}

/// Content of the replica on this copy of a disk.
pub(super) fn content(sim: &Simulation, image: Image) -> Vec<u8> {
    sim.block_on(async move {
        let disk = Arc::new(MemoryDevice::new(DISK_BYTES, 512).expect("a size"));
        for (at, bytes) in image.0 {
            let data = Buf::copy_of(&bytes).expect("there is memory");
            disk.write(at, data, false).await.expect("memory takes it");
        }
        let volume = open(disk).await.expect("the pool of a node opens at any moment");
        let len = volume.geometry().size_bytes as usize;
        volume.read(0, buf::alloc(len).await).await.expect("nothing is damaged").to_vec()
    })
}
