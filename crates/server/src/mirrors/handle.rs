//! Stand-in device for a mirrored volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_mirror::Mirror;
use flagstone_runtime::{Buf, BufMut};
use parking_lot::RwLock;

/// Stand-in device for a mirrored volume: has a size before the replica exists, and follows growth.
/// Without a mirror, calls fail with [`IoError::Unreachable`], so that hosts use the other node.
pub(crate) struct MirrorHandle {
    /// Geometry without the size, which is `size_bytes`.
    geometry: Geometry,
    size_bytes: AtomicU64,
    mirror: RwLock<Option<Mirror>>,
}

impl MirrorHandle {
    pub(super) fn new(geometry: Geometry) -> Arc<MirrorHandle> {
        let size_bytes = AtomicU64::new(geometry.size_bytes);
        Arc::new(MirrorHandle { geometry, size_bytes, mirror: RwLock::default() })
    }

    pub(crate) fn mirror(&self) -> Option<Mirror> {
        self.mirror.read().clone()
    }

    /// Replaces the mirror, and takes its size.
    pub(super) fn set(&self, mirror: Option<Mirror>) {
        if let Some(mirror) = &mirror {
            self.size_bytes.store(mirror.usable_bytes(), Ordering::Release);
        }
        *self.mirror.write() = mirror;
    }

    fn call<T>(&self, make: impl FnOnce(&Mirror) -> IoFuture<T>) -> IoFuture<T> {
        match &*self.mirror.read() {
            Some(mirror) => make(mirror),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

impl BlockDevice for MirrorHandle {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Acquire), ..self.geometry }
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(|mirror| mirror.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(|mirror| mirror.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(Mirror::flush)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.call(|mirror| mirror.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(|mirror| mirror.write_zeroes(offset, len, flags))
    }
}
