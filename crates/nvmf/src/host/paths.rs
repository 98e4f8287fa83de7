//! Several ways to one namespace, of which some can be used: what Asymmetric Namespace Access (Base
//! 8.1.1) is to a host.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nvme::Nqn;
use flagstone_runtime::net::Address;
use flagstone_runtime::{Buf, BufMut, buf, spawn_detached, time};

use super::{HostError, HostOptions, RemoteDevice};
use crate::limits::{HOST_PATH_PAUSE, HOST_PATH_PAUSE_MAX, HOST_PATH_RECONNECT};

/// A namespace that several controllers lead to, on one node or on several.
///
/// A call goes by the path that the last one succeeded on. A path that is down, or whose controller
/// says that the namespace cannot be reached there, is left for the next one, and all are tried in
/// turn for [`HostOptions::loss_timeout`]; then the call fails with [`IoError::Unreachable`]. Paths
/// that cannot be had at first are tried again until they can.
///
/// A call that moves to another path may have been carried out on the first, or be carried out there
/// later: whoever serves a namespace on several nodes has to fence the one that is left, as
/// Flagstone's mirror does by its epochs.
pub struct MultipathDevice(Arc<Paths>);

struct Paths {
    geometry: Geometry,
    paths: Vec<Path>,
    current: AtomicUsize,
    patience: Duration,
}

struct Path {
    address: Address,
    device: OnceLock<Arc<RemoteDevice>>,
}

impl MultipathDevice {
    /// Connects to subsystem `subnqn` by all of `addresses` that answer, of which there must be one.
    ///
    /// # Errors
    /// Why the last of them cannot be had.
    pub async fn connect(
        addresses: Vec<Address>,
        subnqn: &Nqn,
        options: HostOptions,
    ) -> Result<Arc<MultipathDevice>, HostError> {
        let patience = options.loss_timeout;
        // A path's own patience is short: there are others.
        let options = HostOptions { loss_timeout: Duration::ZERO, ..options };
        let mut failure = HostError::Options("a namespace has one address at least");
        let mut geometry = None;
        let mut paths = Vec::with_capacity(addresses.len());
        for address in addresses {
            let device = OnceLock::new();
            match RemoteDevice::connect(address.clone(), subnqn, options.clone()).await {
                Ok(found) => {
                    let first = geometry.get_or_insert(found.geometry());
                    if !leads_to(first, &found.geometry()) {
                        return Err(HostError::Options("its paths lead to different namespaces"));
                    }
                    // While it grows one path may know before the other.
                    first.size_bytes = first.size_bytes.min(found.geometry().size_bytes);
                    device.get_or_init(|| found);
                }
                Err(error) => {
                    tracing::warn!(%address, "this path cannot be had yet: {error}");
                    failure = error;
                }
            }
            paths.push(Path { address, device });
        }
        let geometry = geometry.ok_or(failure)?;
        let current = AtomicUsize::new(0);
        let inner = Arc::new(Paths { geometry, paths, current, patience });
        for index in 0..inner.paths.len() {
            if inner.paths[index].device.get().is_none() {
                let (inner, subnqn) = (Arc::downgrade(&inner), *subnqn);
                spawn_detached(reconnect(inner, index, subnqn, options.clone()));
            }
        }
        Ok(Arc::new(MultipathDevice(inner)))
    }
}

/// Whether a path leads to the namespace of this shape, which may have grown since.
fn leads_to(geometry: &Geometry, found: &Geometry) -> bool {
    Geometry { size_bytes: 0, ..*geometry } == Geometry { size_bytes: 0, ..*found }
}

/// Tries a path until it can be had, or nobody wants it any more.
async fn reconnect(inner: Weak<Paths>, index: usize, subnqn: Nqn, options: HostOptions) {
    loop {
        time::sleep(HOST_PATH_RECONNECT).await;
        let Some(address) = inner.upgrade().map(|inner| inner.paths[index].address.clone()) else {
            return;
        };
        let found = RemoteDevice::connect(address.clone(), &subnqn, options.clone()).await;
        let Some(inner) = inner.upgrade() else { return };
        match found {
            Ok(found)
                if leads_to(&inner.geometry, &found.geometry())
                    && found.geometry().size_bytes >= inner.geometry.size_bytes =>
            {
                tracing::info!(%address, "the path is there");
                inner.paths[index].device.get_or_init(|| found);
                return;
            }
            Ok(_) => tracing::warn!(%address, "the path leads to another namespace"),
            Err(error) => tracing::debug!(%address, "no path yet: {error}"),
        }
    }
}

impl Paths {
    /// Makes a call by one path after the other.
    async fn call<T>(
        self: Arc<Self>,
        make: impl AsyncFn(&RemoteDevice) -> Result<T, IoError>,
    ) -> Result<T, IoError> {
        let (mut since, mut pause) = (None, HOST_PATH_PAUSE);
        loop {
            let first = self.current.load(Ordering::Relaxed);
            for step in 0..self.paths.len() {
                let index = (first + step) % self.paths.len();
                let Some(device) = self.paths[index].device.get() else { continue };
                match make(device).await {
                    Err(IoError::Unreachable) => {}
                    done => {
                        if index != first {
                            tracing::info!(address = %self.paths[index].address, "goes by this path");
                            self.current.store(index, Ordering::Relaxed);
                        }
                        return done;
                    }
                }
            }
            if since.get_or_insert_with(time::now).elapsed() > self.patience {
                return Err(IoError::Unreachable);
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(HOST_PATH_PAUSE_MAX);
        }
    }
}

impl BlockDevice for MultipathDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let (paths, len) = (self.0.clone(), buf.len());
        IoFuture::later(async move {
            let first = std::cell::Cell::new(Some(buf));
            let read = async |device: &RemoteDevice| {
                let buf = match first.take() {
                    Some(buf) => buf,
                    // It went with the call that failed.
                    None => buf::acquire(len).await.map_err(|_| IoError::NoMemory)?,
                };
                device.read(offset, buf).await
            };
            paths.call(read).await
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let paths = self.0.clone();
        IoFuture::later(async move {
            paths.call(async |device| device.write(offset, data.clone(), fua).await).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let paths = self.0.clone();
        IoFuture::later(async move { paths.call(async |device| device.flush().await).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let paths = self.0.clone();
        IoFuture::later(async move {
            paths.call(async |device| device.discard(offset, len).await).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let paths = self.0.clone();
        IoFuture::later(async move {
            paths.call(async |device| device.write_zeroes(offset, len, flags).await).await
        })
    }
}
