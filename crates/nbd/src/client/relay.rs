//! Forwarding of calls to another core, for servers that allow only one connection.

use std::future::Future;
use std::sync::Arc;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::{Buf, BufMut, CoreHandle, buf};

use crate::client::Inner;

/// Runs the future of `make` on the other core and waits for its outcome here.
async fn call<T, F, Fut>(core: &CoreHandle, make: F) -> Result<T, IoError>
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, IoError>> + 'static,
{
    core.call(make).await.unwrap_or(Err(IoError::Unreachable))
}

/// Buffer for the next of `left` bytes. The caller already holds the same amount on its core. At
/// the memory ceiling this therefore does not wait, and allocates pieces of 4 KiB beyond it, one
/// per call. It does wait if the server requires larger blocks.
async fn place(inner: &Inner, left: usize) -> BufMut {
    if let Some(place) = buf::try_alloc(left) {
        return place;
    }
    if inner.geometry.block_bytes as usize <= BUF_MIN_BYTES {
        return buf::alloc_small(left.min(BUF_MIN_BYTES));
    }
    buf::alloc(left).await
}

/// Reads on `core`; the data is copied, because buffers stay on their cores.
pub(crate) fn read(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    offset: u64,
    mut buf: BufMut,
) -> IoFuture<BufMut> {
    let (inner, core, len) = (inner.clone(), core.clone(), buf.len());
    IoFuture::later(async move {
        let there = move || async move {
            let mut read = Vec::with_capacity(len);
            while read.len() < len {
                let place = place(&inner, len - read.len()).await;
                let part = inner.read(offset + read.len() as u64, place).await?;
                read.extend_from_slice(&part);
            }
            Ok(read)
        };
        buf.copy_from_slice(&call(&core, there).await?);
        Ok(buf)
    })
}

/// Writes on `core`.
pub(crate) fn write(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    offset: u64,
    data: &Buf,
    fua: bool,
) -> IoFuture<()> {
    let (inner, core, data) = (inner.clone(), core.clone(), data.to_vec());
    IoFuture::later(async move {
        let there = move || async move {
            let mut done = 0;
            while done < data.len() {
                let mut copy = place(&inner, data.len() - done).await;
                let len = copy.len();
                copy.copy_from_slice(&data[done..done + len]);
                inner.write(offset + done as u64, copy.freeze(), fua).await?;
                done += len;
            }
            Ok(())
        };
        call(&core, there).await
    })
}

/// Runs a call without data on `core`.
pub(crate) fn command<T: Send + 'static>(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    make: impl FnOnce(&Arc<Inner>) -> IoFuture<T> + Send + 'static,
) -> IoFuture<T> {
    let (inner, core) = (inner.clone(), core.clone());
    IoFuture::later(async move { call(&core, move || async move { make(&inner).await }).await })
}
