//! Multipath: several paths to one namespace with Asymmetric Namespace Access (Base 8.1.1).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nvme::Nqn;
use flagstone_runtime::net::Address;
use flagstone_runtime::time::Backoff;
use flagstone_runtime::{Buf, BufMut, buf, spawn_detached, time};

use super::durability::{Durability, PathGroup};
use super::identify_data::NamespaceShape;
use super::{HostError, HostOptions, RemoteDevice};
use crate::limits::{PATH_PAUSE, PATH_PAUSE_MAX, PATH_RECONNECT};

/// Namespace with several paths, through controllers on one or more nodes.
///
/// A call uses the path of the last success. If that path is down, or its controller reports the
/// namespace as inaccessible, the next path is tried, in turn, for [`HostOptions::loss_timeout`].
/// Then the call fails with [`IoError::Unreachable`]. Paths that cannot be connected at first are
/// retried until they can.
///
/// A call that moves to another path may already have been executed on the first, or may still be
/// executed there later. Nodes that serve the same namespace must therefore fence the abandoned
/// one, as Flagstone's mirror does with its epochs.
///
/// Paths that all lead to one instance of the namespace lead to one target, whose restart with
/// unflushed writes makes the device fail like a [`RemoteDevice`]. Otherwise, the nodes must know
/// among themselves which completed writes a crashed node has lost, as the mirror does with its
/// out-of-sync bitmap. Not even they know after a crash of all, or of the only one that was served:
/// this host does not fail flushes after that. After a failed flush, changes and flushes over its
/// path fail until the device is reopened.
pub struct MultipathDevice(Arc<Paths>);

struct Paths {
    /// The namespace as the first path reported it; its size is the smallest of all paths.
    shape: NamespaceShape,
    paths: Vec<Path>,
    current: AtomicUsize,
    timeout: Duration,
    group: Arc<PathGroup>,
}

struct Path {
    address: Address,
    device: OnceLock<Arc<RemoteDevice>>,
}

impl MultipathDevice {
    /// Connects to subsystem `subnqn` at all of `addresses`. At least one of them must answer.
    ///
    /// # Errors
    /// The failure of the last address.
    pub async fn connect(
        addresses: Vec<Address>,
        subnqn: &Nqn,
        options: HostOptions,
    ) -> Result<Arc<MultipathDevice>, HostError> {
        let timeout = options.loss_timeout;
        let group = PathGroup::new(addresses.len(), options.target_is_durable);
        // Each path fails immediately, because others remain.
        let options = HostOptions { loss_timeout: Duration::ZERO, ..options };
        let mut failure = HostError::Options("a namespace needs at least one address");
        let mut shape: Option<NamespaceShape> = None;
        let mut paths = Vec::with_capacity(addresses.len());
        for (index, address) in addresses.into_iter().enumerate() {
            let device = OnceLock::new();
            let options = options_of(&options, shape.as_ref());
            let durability = Durability::of(&group, index);
            match RemoteDevice::connect_path(address.clone(), subnqn, options, durability).await {
                Ok(found) => {
                    let first = shape.get_or_insert(*found.shape());
                    if !leads_to(first, found.shape()) {
                        return Err(HostError::Options(
                            "the addresses lead to different namespaces",
                        ));
                    }
                    // While the namespace grows, paths may report different sizes.
                    let size_bytes = &mut first.geometry.size_bytes;
                    *size_bytes = (*size_bytes).min(found.geometry().size_bytes);
                    device.get_or_init(|| found);
                }
                Err(error) => {
                    tracing::warn!(%address, "path not available yet: {error}");
                    failure = error;
                }
            }
            paths.push(Path { address, device });
        }
        let shape = shape.ok_or(failure)?;
        let current = AtomicUsize::new(0);
        let inner = Arc::new(Paths { shape, paths, current, timeout, group });
        for index in 0..inner.paths.len() {
            if inner.paths[index].device.get().is_none() {
                let (inner, subnqn) = (Arc::downgrade(&inner), *subnqn);
                let options = options_of(&options, Some(&shape));
                spawn_detached(reconnect(inner, index, subnqn, options));
            }
        }
        Ok(Arc::new(MultipathDevice(inner)))
    }

    fn call<T: 'static>(
        &self,
        make: impl AsyncFn(&RemoteDevice) -> Result<T, IoError> + 'static,
    ) -> IoFuture<T> {
        let paths = self.0.clone();
        IoFuture::later(async move { paths.call(make).await })
    }
}

/// Options of a further path: the first namespace of another path may be another one.
fn options_of(options: &HostOptions, shape: Option<&NamespaceShape>) -> HostOptions {
    HostOptions { nsid: shape.map(|shape| shape.nsid).or(options.nsid), ..options.clone() }
}

/// True if a path leads to the same namespace, which may have grown.
fn leads_to(shape: &NamespaceShape, found: &NamespaceShape) -> bool {
    let sizeless = |shape: &NamespaceShape| Geometry { size_bytes: 0, ..shape.geometry };
    shape.is_also(found) && sizeless(shape) == sizeless(found)
}

/// Retries a path until it connects or the device is dropped.
async fn reconnect(inner: Weak<Paths>, index: usize, subnqn: Nqn, options: HostOptions) {
    loop {
        time::sleep(PATH_RECONNECT).await;
        let path = inner
            .upgrade()
            .map(|inner| (inner.paths[index].address.clone(), Durability::of(&inner.group, index)));
        let Some((address, durability)) = path else { return };
        let found =
            RemoteDevice::connect_path(address.clone(), &subnqn, options.clone(), durability).await;
        let Some(inner) = inner.upgrade() else { return };
        match found {
            Ok(found)
                if leads_to(&inner.shape, found.shape())
                    && found.geometry().size_bytes >= inner.shape.geometry.size_bytes =>
            {
                tracing::info!(%address, "path connected");
                inner.paths[index].device.get_or_init(|| found);
                return;
            }
            Ok(_) => tracing::warn!(%address, "the path leads to another namespace"),
            Err(error) => tracing::debug!(%address, "path still unavailable: {error}"),
        }
    }
}

impl Paths {
    /// Tries a call on one path after the other.
    async fn call<T>(
        self: Arc<Self>,
        make: impl AsyncFn(&RemoteDevice) -> Result<T, IoError>,
    ) -> Result<T, IoError> {
        let (mut since, mut pause) = (None, Backoff::new(PATH_PAUSE, PATH_PAUSE_MAX));
        loop {
            let first = self.current.load(Ordering::Relaxed);
            for step in 0..self.paths.len() {
                let index = (first + step) % self.paths.len();
                let Some(device) = self.paths[index].device.get() else { continue };
                match make(device).await {
                    Err(IoError::Unreachable) => {}
                    done => {
                        if index != first {
                            tracing::info!(address = %self.paths[index].address, "switched to this path");
                            self.current.store(index, Ordering::Relaxed);
                        }
                        return done;
                    }
                }
            }
            if since.get_or_insert_with(time::now).elapsed() > self.timeout {
                return Err(IoError::Unreachable);
            }
            time::sleep(pause.advance()).await;
        }
    }
}

impl BlockDevice for MultipathDevice {
    fn geometry(&self) -> Geometry {
        self.0.shape.geometry
    }

    fn must_reopen(&self) -> bool {
        self.0.paths.iter().any(|path| path.device.get().is_some_and(|path| path.must_reopen()))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let (len, first) = (buf.len(), Cell::new(Some(buf)));
        self.call(async move |device: &RemoteDevice| {
            let buf = match first.take() {
                Some(buf) => buf,
                // The failed call consumed the buffer.
                None => buf::acquire(len).await.map_err(|_| IoError::NoMemory)?,
            };
            device.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(async move |device| device.write(offset, data.clone(), fua).await)
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(async |device| device.flush().await)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.call(async move |device| device.discard(offset, len).await)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(async move |device| device.write_zeroes(offset, len, flags).await)
    }
}
