//! Emulated cloud disk: limits and latency over a device that stores only blocks other than the
//! [`filler`].
//!
//! Hosts write the filler, so pools of hundreds of gigabytes run with all their metadata in a few
//! gigabytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, IoSize, Limit, Limiter, RateLimitLayer, ServiceTime,
};
use flagstone_runtime::{Buf, BufMut};
use parking_lot::Mutex;

const BLOCK: usize = 4096;

/// Block that hosts write.
pub(crate) fn filler() -> [u8; BLOCK] {
    [0x5a; BLOCK]
}

#[derive(Default)]
struct Content {
    /// Bit set of blocks that are the filler.
    filled: Vec<u64>,
    others: BTreeMap<u64, Box<[u8]>>,
}

/// The device.
struct Sparse {
    size_bytes: u64,
    content: Mutex<Content>,
}

impl Sparse {
    fn new(size_bytes: u64) -> Sparse {
        let words = size_bytes / BLOCK as u64 / 64 + 1;
        let content = Content { filled: vec![0; words as usize], others: BTreeMap::new() };
        Sparse { size_bytes, content: Mutex::new(content) }
    }
}

impl BlockDevice for Sparse {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.size_bytes, BLOCK as u32)
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let content = self.content.lock();
        let filler = filler();
        for (part, block) in buf.chunks_mut(BLOCK).zip(offset / BLOCK as u64..) {
            let is_filled = content.filled[(block / 64) as usize] >> (block % 64) & 1 == 1;
            match content.others.get(&block) {
                _ if is_filled => part.copy_from_slice(&filler),
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
        }
        drop(content);
        IoFuture::ready(Ok(buf))
    }

    fn write(&self, offset: u64, data: Buf, _fua: bool) -> IoFuture<()> {
        let mut content = self.content.lock();
        let filler = filler();
        for (part, block) in data.chunks(BLOCK).zip(offset / BLOCK as u64..) {
            let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
            if *part == filler {
                content.filled[word] |= bit;
                content.others.remove(&block);
            } else {
                content.filled[word] &= !bit;
                content.others.insert(block, part.into());
            }
        }
        IoFuture::ready(Ok(()))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}

/// Limits of a cloud disk of 500 GB.
#[derive(Clone, Copy)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// Reads and writes per second.
    iops: (u64, u64),
    bytes_per_s: u64,
    /// Latency of reads and writes, in µs.
    latency_us: (u64, u64),
}

/// Provider's page of about 2019: 0.75 reads and 1.5 writes per second and GB, 60 MB/s. The latency
/// is an assumption.
pub(crate) const STANDARD: Profile = Profile {
    name: "pd-standard, 500 GB",
    iops: (375, 750),
    bytes_per_s: 60_000_000,
    latency_us: (10_000, 4_000),
};

/// Same page: 30 I/Os per second and GB, 0.48 MB/s per GB. The latency is from SIOS's report.
pub(crate) const SSD: Profile = Profile {
    name: "pd-ssd, 500 GB",
    iops: (15_000, 15_000),
    bytes_per_s: 240_000_000,
    latency_us: (800, 1_935),
};

/// An emulated disk.
pub(crate) struct Disk {
    pub(crate) device: SharedDevice,
    limiter: Arc<Limiter>,
    profile: Profile,
}

impl Disk {
    /// A disk without limits, so that it can be filled quickly.
    pub(crate) fn new(profile: Profile, size_bytes: u64) -> Disk {
        let limiter = Limiter::new(Limit::default()).expect("no limit is valid");
        let time = |us| Some(ServiceTime::constant(Duration::from_micros(us)));
        let (read, write) = (time(profile.latency_us.0), time(profile.latency_us.1));
        let config = DiskModelConfig { read, write, seed: 1 };
        let model = DiskModelLayer::new(Arc::new(Sparse::new(size_bytes)), config);
        let device = RateLimitLayer::new(Arc::new(model.expect("valid")), limiter.clone());
        Disk { device: Arc::new(device), limiter, profile }
    }

    /// Applies the limits of the profile. A large transfer counts as one I/O per 256 KiB.
    pub(crate) fn limit(&self) {
        let Profile { iops: (reads, writes), bytes_per_s, .. } = self.profile;
        let size = IoSize::Units { bytes: 256 << 10 };
        let limit = Limit {
            ios: Budget::shared(reads, writes),
            bytes: Budget::shared(bytes_per_s, bytes_per_s),
            read_size: size,
            write_size: size,
        };
        self.limiter.set(limit).expect("valid");
    }
}
