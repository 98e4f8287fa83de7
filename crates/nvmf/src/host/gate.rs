//! Where calls wait for a connection, or for a free slot on one.
//!
//! First come, first served: a wake-up is for one waiter and is never lost, even when the waiter
//! that it was for has gone. A call that finds a slot free on arrival does not wait behind others
//! that have been woken and have not run yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
}

impl Gate {
    /// Wakes the one that has waited longest.
    #[inline]
    pub(super) fn wake_one(&self) {
        let first = self.waiting.borrow_mut().pop_front();
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    /// Wakes all.
    pub(super) fn wake_all(&self) {
        for (_, waker) in self.waiting.take() {
            waker.wake();
        }
    }

    /// Waits until `ready` gives a value: it is asked now and after each wake-up.
    pub(super) fn wait<T, F: FnMut() -> Option<T> + Unpin>(&self, ready: F) -> Wait<'_, F> {
        Wait { gate: self, ready, ticket: None }
    }
}

/// See [`Gate::wait`].
pub(super) struct Wait<'a, F> {
    gate: &'a Gate,
    ready: F,
    /// Set while waiting.
    ticket: Option<u64>,
}

impl<F> Wait<'_, F> {
    /// Takes us out of the queue; false when we were not in it, so a wake-up was for us.
    fn leave(&mut self, ticket: u64) -> bool {
        let mut waiting = self.gate.waiting.borrow_mut();
        let place = waiting.iter().position(|(other, _)| *other == ticket);
        place.map(|place| waiting.remove(place)).is_some()
    }
}

impl<T, F: FnMut() -> Option<T> + Unpin> Future for Wait<'_, F> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if let Some(value) = (this.ready)() {
            if let Some(ticket) = this.ticket.take() {
                this.leave(ticket);
            }
            return Poll::Ready(value);
        }
        let mut waiting = this.gate.waiting.borrow_mut();
        match this.ticket {
            None => {
                let ticket = this.gate.tickets.get();
                this.gate.tickets.set(ticket + 1);
                this.ticket = Some(ticket);
                waiting.push_back((ticket, cx.waker().clone()));
            }
            Some(ticket) => match waiting.iter_mut().find(|(other, _)| *other == ticket) {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                // Woken, and someone was faster: the place at the front is kept.
                None => waiting.push_front((ticket, cx.waker().clone())),
            },
        }
        Poll::Pending
    }
}

impl<F> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && !self.leave(ticket)
        {
            self.gate.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiter<'a> {
        wait: Pin<Box<dyn Future<Output = ()> + 'a>>,
        count: Arc<Count>,
    }

    impl<'a> Waiter<'a> {
        fn new(gate: &'a Gate, free: &Rc<Cell<u32>>) -> Waiter<'a> {
            let free = free.clone();
            let take = move || free.get().checked_sub(1).map(|left| free.set(left));
            Waiter { wait: Box::pin(gate.wait(take)), count: Arc::default() }
        }

        fn is_ready(&mut self) -> bool {
            let waker = Waker::from(self.count.clone());
            self.wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        fn wakes(&self) -> u32 {
            self.count.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn one_wake_up_is_for_the_first_who_waits() {
        let (gate, free) = (Gate::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) = (Waiter::new(&gate, &free), Waiter::new(&gate, &free));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        gate.wake_one();
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        assert!(first.is_ready());
        gate.wake_one();
        assert!(!second.is_ready());
        free.set(1);
        gate.wake_one();
        assert_eq!(second.wakes(), 2);
        assert!(second.is_ready());
    }

    #[test]
    fn a_wake_up_for_one_who_left_goes_to_the_next() {
        let (gate, free) = (Gate::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) = (Waiter::new(&gate, &free), Waiter::new(&gate, &free));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        gate.wake_one();
        drop(first);
        assert_eq!(second.wakes(), 1);
        assert!(second.is_ready());
    }

    #[test]
    fn one_who_leaves_unwoken_wakes_nobody() {
        let (gate, free) = (Gate::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) = (Waiter::new(&gate, &free), Waiter::new(&gate, &free));
        assert!(!first.is_ready() && !second.is_ready());
        drop(first);
        assert_eq!(second.wakes(), 0);
        gate.wake_all();
        assert_eq!(second.wakes(), 1);
    }
}
