//! Calls from one core to another, for servers that must not be used over several connections.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::{Buf, BufMut, CoreHandle, buf};

use crate::client::Inner;

struct Cell<T> {
    value: Option<Result<T, IoError>>,
    /// The other core has dropped the call.
    gone: bool,
    waker: Option<Waker>,
}

/// Gives the outcome to the caller's core, also when the call is dropped half-way.
struct Sender<T>(Arc<Mutex<Cell<T>>>);

impl<T> Sender<T> {
    fn send(self, value: Result<T, IoError>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).value = Some(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut cell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cell.gone = true;
        let waker = cell.waker.take();
        drop(cell);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Runs `make`'s future on the other core and waits for its outcome here.
async fn call<T, F, Fut>(core: &CoreHandle, make: F) -> Result<T, IoError>
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, IoError>> + 'static,
{
    let cell = Arc::new(Mutex::new(Cell { value: None, gone: false, waker: None }));
    let sender = Sender(cell.clone());
    core.spawn(move || async move { sender.send(make().await) });
    poll_fn(|cx| {
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.value.is_none() && !cell.gone {
            cell.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(cell.value.take().unwrap_or(Err(IoError::Unreachable)))
    })
    .await
}

/// A place for the next of `left` bytes. The caller holds as much again on its core, so at the
/// ceiling of memory this does not wait for others who do: pieces of 4 KiB will do, had beyond it,
/// one for each call. (Servers that insist on larger blocks are waited for.)
async fn place(inner: &Inner, left: usize) -> BufMut {
    if let Some(place) = buf::try_alloc(left) {
        return place;
    }
    if inner.geometry.block_bytes as usize <= BUF_MIN_BYTES {
        return buf::alloc_small(left.min(BUF_MIN_BYTES));
    }
    buf::alloc(left).await
}

/// A read on `core`; the data is copied, for buffers stay on their cores.
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

/// A write on `core`.
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

/// A call without data on `core`.
pub(crate) fn command(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    make: impl FnOnce(&Arc<Inner>) -> IoFuture<()> + Send + 'static,
) -> IoFuture<()> {
    let (inner, core) = (inner.clone(), core.clone());
    IoFuture::later(async move { call(&core, move || async move { make(&inner).await }).await })
}
