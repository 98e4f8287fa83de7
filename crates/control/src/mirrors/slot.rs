//! A mirrored volume as hosts see it, before its replica has been made, and after.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_mirror::Mirror;
use flagstone_runtime::{Buf, BufMut};

/// The place of a mirror: its size is known before it is, and changes when the volume grows. Without one every call fails with
/// [`IoError::Unreachable`], which sends hosts to the other node.
pub(crate) struct Slot {
    /// Except for the size, which is `size_bytes`.
    geometry: Geometry,
    size_bytes: AtomicU64,
    mirror: RwLock<Option<Mirror>>,
}

impl Slot {
    pub(super) fn new(geometry: Geometry) -> Arc<Slot> {
        let size_bytes = AtomicU64::new(geometry.size_bytes);
        Arc::new(Slot { geometry, size_bytes, mirror: RwLock::default() })
    }

    /// The mirror, if there is one.
    pub(super) fn mirror(&self) -> Option<Mirror> {
        self.mirror.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the place to a mirror; the size is that one's from now on.
    pub(super) fn set(&self, mirror: Option<Mirror>) {
        if let Some(mirror) = &mirror {
            self.size_bytes.store(mirror.usable_bytes(), Ordering::Release);
        }
        *self.mirror.write().unwrap_or_else(PoisonError::into_inner) = mirror;
    }

    fn call<T>(&self, make: impl FnOnce(&Mirror) -> IoFuture<T>) -> IoFuture<T> {
        match &*self.mirror.read().unwrap_or_else(PoisonError::into_inner) {
            Some(mirror) => make(mirror),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

impl BlockDevice for Slot {
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
