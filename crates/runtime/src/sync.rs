//! Synchronization of tasks: notification and semaphore on one core, and notification and a
//! one-shot channel between any two tasks or threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// A condition that tasks wait for. Each waiter checks its own state again after a wake-up.
#[derive(Debug, Default)]
pub struct Notify {
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Starts without waiters.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes every waiter.
    pub fn notify(&self) {
        let woken = self.waiting.take();
        for waker in &woken {
            waker.wake_by_ref();
        }
        // Keep the allocation for the next round, unless a new waiter has registered meanwhile.
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            let mut woken = woken;
            woken.clear();
            *waiting = woken;
        }
    }

    /// Waits until `ready` returns a value. It is called now and after each [`Notify::notify`].
    pub async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// Same as [`Notify`], between cores and threads.
#[derive(Debug, Default)]
pub struct SharedNotify {
    waiting: Mutex<Vec<Waker>>,
}

impl SharedNotify {
    /// Wakes every waiter.
    pub fn notify(&self) {
        let mut woken = std::mem::take(&mut *self.waiting.lock());
        for waker in woken.drain(..) {
            waker.wake();
        }
        // Keep the allocation for the next round, unless a new waiter has registered meanwhile.
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            *waiting = woken;
        }
    }

    /// Waits until `ready` returns a value. It is called now and after each
    /// [`SharedNotify::notify`].
    pub async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            let mut waiting = self.waiting.lock();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            drop(waiting);
            // It may have become ready before the waker was stored.
            ready().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Permits for a bounded number of holders, granted in the order of the requests.
#[derive(Debug)]
pub struct Semaphore {
    permits: Cell<usize>,
    queue: RefCell<VecDeque<Rc<Ticket>>>,
}

#[derive(Debug)]
struct Ticket {
    want: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Semaphore {
    /// A semaphore of `permits`.
    pub fn new(permits: usize) -> Rc<Semaphore> {
        Rc::new(Semaphore { permits: Cell::new(permits), queue: RefCell::default() })
    }

    /// Number of free permits.
    pub fn available(&self) -> usize {
        self.permits.get()
    }

    /// Takes `want` permits now, if enough are free and no earlier request waits.
    pub fn try_acquire(self: &Rc<Self>, want: usize) -> Option<Permit> {
        if !self.queue.borrow().is_empty() || self.permits.get() < want {
            return None;
        }
        self.permits.set(self.permits.get() - want);
        Some(Permit { semaphore: self.clone(), count: want })
    }

    /// Waits for `want` permits.
    pub async fn acquire(self: &Rc<Self>, want: usize) -> Permit {
        if let Some(permit) = self.try_acquire(want) {
            return permit;
        }
        let ticket = Rc::new(Ticket { want, granted: Cell::new(false), waker: RefCell::new(None) });
        self.queue.borrow_mut().push_back(ticket.clone());
        Waiting { semaphore: self, ticket: Some(ticket) }.await
    }

    fn grant(&self) {
        loop {
            let mut queue = self.queue.borrow_mut();
            let Some(first) = queue.front() else { return };
            if first.want > self.permits.get() {
                return;
            }
            self.permits.set(self.permits.get() - first.want);
            first.granted.set(true);
            let waker = first.waker.take();
            queue.pop_front();
            drop(queue);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

struct Waiting<'a> {
    semaphore: &'a Rc<Semaphore>,
    ticket: Option<Rc<Ticket>>,
}

impl Future for Waiting<'_> {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let ticket = self.ticket.as_ref().expect("polled after completion");
        if !ticket.granted.get() {
            *ticket.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = ticket.want;
        self.ticket = None;
        Poll::Ready(Permit { semaphore: self.semaphore.clone(), count })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.granted.get() {
            self.semaphore.permits.set(self.semaphore.permits.get() + ticket.want);
        } else {
            self.semaphore.queue.borrow_mut().retain(|other| !Rc::ptr_eq(other, &ticket));
        }
        self.semaphore.grant();
    }
}

/// Held permits; dropping returns them.
#[derive(Debug)]
pub struct Permit {
    semaphore: Rc<Semaphore>,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.permits.set(self.semaphore.permits.get() + self.count);
        self.semaphore.grant();
    }
}

/// Creates a channel for one value, between tasks of any cores or from another thread.
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let cell = Arc::new(Mutex::new(One { value: None, closed: false, waker: None }));
    (OneSender(cell.clone()), OneReceiver(cell))
}

#[derive(Debug)]
struct One<T> {
    value: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// Sending half of a [`oneshot`].
#[derive(Debug)]
pub struct OneSender<T>(Arc<Mutex<One<T>>>);

impl<T> OneSender<T> {
    /// Sends. If the receiver is gone, the value is dropped.
    pub fn send(self, value: T) {
        self.0.lock().value = Some(value);
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        let mut one = self.0.lock();
        one.closed = true;
        let waker = one.waker.take();
        drop(one);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Receiving half of a [`oneshot`]: `None` if the sender was dropped without sending, also by an
/// abort or a panic.
#[derive(Debug)]
pub struct OneReceiver<T>(Arc<Mutex<One<T>>>);

impl<T> Future for OneReceiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut one = self.0.lock();
        if one.closed {
            return Poll::Ready(one.value.take());
        }
        one.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
