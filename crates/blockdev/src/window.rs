//! Window of concurrent calls: awaited in order, bounded in number, without heap allocation.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::limits::WINDOW;
use crate::{IoError, IoFuture};

enum Slot<T> {
    Empty,
    Running(IoFuture<T>),
    Done(Result<T, IoError>),
}

impl<T> Slot<T> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Slot::Running(future) = self
            && let Poll::Ready(result) = Pin::new(future).poll(cx)
        {
            *self = Slot::Done(result);
        }
    }
}

/// Up to [`WINDOW`] calls in flight; their results are returned in the order in which they were
/// pushed.
pub struct Window<T> {
    /// Ring buffer: the oldest call is at `head`.
    slots: [Slot<T>; WINDOW],
    head: usize,
    len: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Window<T> {
        Window::new()
    }
}

impl<T> Window<T> {
    /// A window without calls.
    pub fn new() -> Window<T> {
        Window { slots: [const { Slot::Empty }; WINDOW], head: 0, len: 0 }
    }

    /// True with [`WINDOW`] calls.
    pub fn is_full(&self) -> bool {
        self.len == WINDOW
    }

    /// True without calls.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a call. It progresses while [`Window::pop`] is awaited.
    ///
    /// # Panics
    /// If the window is full.
    pub fn push(&mut self, call: IoFuture<T>) {
        assert!(!self.is_full(), "the caller pops before it pushes more");
        self.slots[(self.head + self.len) % WINDOW] = match call.try_now() {
            Ok(result) => Slot::Done(result),
            Err(call) => Slot::Running(call),
        };
        self.len += 1;
    }

    /// Drives all calls until the oldest is done, and removes it.
    ///
    /// # Errors
    /// Of that call.
    ///
    /// # Panics
    /// If the window is empty.
    pub async fn pop(&mut self) -> Result<T, IoError> {
        assert!(!self.is_empty(), "there is a call to wait for");
        poll_fn(|cx| {
            for slot in &mut self.slots {
                slot.poll(cx);
            }
            let head = &mut self.slots[self.head];
            match std::mem::replace(head, Slot::Empty) {
                Slot::Done(result) => {
                    self.head = (self.head + 1) % WINDOW;
                    self.len -= 1;
                    Poll::Ready(result)
                }
                running => {
                    *head = running;
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Makes the calls that `calls` yields, several concurrently, and passes each result before the
/// first failure to `done`, in order and without a gap.
///
/// # Errors
/// After a failure it makes no more calls, waits for those in flight, and returns the first failure
/// in the order of the calls.
pub async fn run_all<T>(
    mut calls: impl Iterator<Item = IoFuture<T>>,
    mut done: impl FnMut(T),
) -> Result<(), IoError> {
    let mut window = Window::new();
    let mut failure = None;
    loop {
        while failure.is_none() && !window.is_full() {
            let Some(call) = calls.next() else { break };
            window.push(call);
        }
        if window.is_empty() {
            return failure.map_or(Ok(()), Err);
        }
        match window.pop().await {
            Ok(value) if failure.is_none() => done(value),
            Ok(_) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use flagstone_runtime::{block_on, task};

    use super::*;

    /// Call number `number`, whose duration depends on its number. Records how many calls are in
    /// flight.
    fn call(number: usize, in_flight: &Rc<Cell<(usize, usize)>>, fail: bool) -> IoFuture<usize> {
        let in_flight = in_flight.clone();
        IoFuture::later(async move {
            let (now, most) = in_flight.get();
            in_flight.set((now + 1, most.max(now + 1)));
            for _ in 0..1 + (number * 7) % 13 {
                task::yield_now().await;
            }
            in_flight.set((in_flight.get().0 - 1, in_flight.get().1));
            if fail { Err(IoError::ReadFault) } else { Ok(number) }
        })
    }

    #[test]
    fn window_keeps_order_and_depth() {
        block_on(async {
            let in_flight = Rc::new(Cell::new((0, 0)));
            let mut seen = Vec::new();
            let calls = (0..100).map(|number| call(number, &in_flight, false));
            run_all(calls, |number| seen.push(number)).await.unwrap();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
            assert_eq!(in_flight.get(), (0, WINDOW));
        })
        .unwrap();
    }

    #[test]
    fn window_failure_waits_for_calls_in_flight() {
        block_on(async {
            let in_flight = Rc::new(Cell::new((0, 0)));
            let made = Cell::new(0);
            let calls = (0..100).map(|number| {
                made.set(made.get() + 1);
                let ready = number == 4;
                if ready {
                    IoFuture::ready(Err(IoError::NoSpace))
                } else {
                    call(number, &in_flight, number == 3)
                }
            });
            let mut seen = Vec::new();
            let failed = run_all(calls, |number| seen.push(number)).await;
            assert_eq!(failed, Err(IoError::ReadFault), "the first in order");
            assert_eq!(seen, [0, 1, 2], "results after a failure would leave a gap");
            assert_eq!(in_flight.get().0, 0);
            assert!(made.get() <= WINDOW + 4);
        })
        .unwrap();
    }
}
