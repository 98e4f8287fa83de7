//! [`IoFuture`]: the result of a device call, often ready immediately.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use flagstone_runtime::LocalBox;

use crate::IoError;

/// The outcome of a device call, now or later. It owns its resources, so it may outlive the
/// reference on which the call was made; it stays on its core. Dropping it does not undo the call.
pub struct IoFuture<T>(State<T>);

enum State<T> {
    Ready(Option<Result<T, IoError>>),
    Later(LocalBox<Result<T, IoError>>),
}

impl<T> IoFuture<T> {
    /// An outcome that is already known, at no cost.
    pub fn ready(result: Result<T, IoError>) -> IoFuture<T> {
        IoFuture(State::Ready(Some(result)))
    }

    /// The outcome of `call`, which is made only if the `check` before it succeeded.
    #[inline]
    pub fn checked(check: Result<(), IoError>, call: impl FnOnce() -> IoFuture<T>) -> IoFuture<T> {
        match check {
            Ok(()) => call(),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    /// The outcome of `future`, in pooled memory.
    pub fn later(future: impl Future<Output = Result<T, IoError>> + 'static) -> IoFuture<T> {
        IoFuture(State::Later(LocalBox::new(future)))
    }

    /// The outcome, if it is known without waiting: front ends answer such calls immediately.
    ///
    /// # Errors
    /// Returns the future if it must be awaited.
    pub fn try_now(self) -> Result<Result<T, IoError>, IoFuture<T>> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            state => Err(IoFuture(state)),
        }
    }
}

impl<T> Unpin for IoFuture<T> {}

impl<T> Future for IoFuture<T> {
    type Output = Result<T, IoError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Ready(result) => Poll::Ready(result.take().expect("polled after completion")),
            State::Later(future) => Pin::new(future).poll(cx),
        }
    }
}
