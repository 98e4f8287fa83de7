//! Calls from one core to another, for servers that must not be used over several connections.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{IoError, IoFuture};
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
            let read = inner.read(offset, buf::alloc(len).await).await?;
            Ok(read.to_vec())
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
            let mut copy = buf::alloc(data.len()).await;
            copy.copy_from_slice(&data);
            inner.write(offset, copy.freeze(), fua).await
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
