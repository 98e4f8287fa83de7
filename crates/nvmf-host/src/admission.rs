//! Admission queue: calls wait here for a connection or a free command slot.
//!
//! It is first come, first served. A wake-up is meant for one waiter and is never lost, even if
//! that waiter has gone. A new call that finds a free slot need not wait behind waiters that were
//! woken but have not run yet. Ordered calls ([`CallOrder::InOrder`]) are the exception: none is
//! admitted before an earlier one. The target holds a later ordered command until the earlier one
//! arrives, so an overtaking command would occupy the slot that the earlier one needs. For the same
//! reason, an ordered command that must be retried keeps its slot instead of waiting here again
//! (`Association::call_in_order`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOrder {
    /// May overtake waiters that have not run yet.
    Any,
    /// May not overtake earlier ordered calls.
    InOrder,
}

/// First come, first served queue of waiting calls.
#[derive(Default)]
pub(super) struct CommandQueue {
    /// By ticket.
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
    /// Tickets of ordered calls that were not admitted, woken or not, oldest first.
    in_order: RefCell<VecDeque<u64>>,
}

impl CommandQueue {
    /// Wakes the longest waiter.
    #[inline]
    pub(super) fn wake_one(&self) {
        let first = self.waiting.borrow_mut().pop_front();
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    pub(super) fn wake_all(&self) {
        for (_, waker) in self.waiting.take() {
            waker.wake();
        }
    }

    /// True if a new call may be admitted.
    #[inline]
    pub(super) fn is_open(&self, order: CallOrder) -> bool {
        order == CallOrder::Any || self.in_order.borrow().is_empty()
    }

    /// Waits until `ready` returns a value; it is evaluated immediately and after each wake-up. An
    /// admitted call that leaves more capacity passes the wake-up on with
    /// [`CommandQueue::wake_one`].
    pub(super) fn wait<T, F: FnMut() -> Option<T> + Unpin>(
        &self,
        order: CallOrder,
        ready: F,
    ) -> AdmissionWait<'_, F> {
        AdmissionWait { admission: self, order, ready, ticket: None }
    }
}

/// Future of [`CommandQueue::wait`].
pub(super) struct AdmissionWait<'a, F> {
    admission: &'a CommandQueue,
    order: CallOrder,
    ready: F,
    /// Set while waiting.
    ticket: Option<u64>,
}

impl<F> AdmissionWait<'_, F> {
    /// Leaves the queue. Returns false if the ticket was not queued, which means that a wake-up was
    /// consumed.
    fn leave(&mut self, ticket: u64) -> bool {
        if self.order == CallOrder::InOrder {
            let mut tickets = self.admission.in_order.borrow_mut();
            if let Ok(place) = tickets.binary_search(&ticket) {
                tickets.remove(place);
            }
        }
        let mut waiting = self.admission.waiting.borrow_mut();
        let place = waiting.binary_search_by_key(&ticket, |(other, _)| *other);
        place.map(|place| waiting.remove(place)).is_ok()
    }

    /// True if it is this call's turn.
    fn may_try(&self) -> bool {
        match (self.order, self.ticket) {
            (CallOrder::InOrder, Some(ticket)) => {
                self.admission.in_order.borrow().front() == Some(&ticket)
            }
            (order, _) => self.admission.is_open(order),
        }
    }
}

impl<T, F: FnMut() -> Option<T> + Unpin> Future for AdmissionWait<'_, F> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if this.may_try()
            && let Some(value) = (this.ready)()
        {
            if let Some(ticket) = this.ticket.take() {
                this.leave(ticket);
            }
            return Poll::Ready(value);
        }
        let ticket = *this.ticket.get_or_insert_with(|| {
            let ticket = this.admission.tickets.get();
            this.admission.tickets.set(ticket + 1);
            if this.order == CallOrder::InOrder {
                this.admission.in_order.borrow_mut().push_back(ticket);
            }
            ticket
        });
        let mut waiting = this.admission.waiting.borrow_mut();
        match waiting.binary_search_by_key(&ticket, |(other, _)| *other) {
            Ok(place) => waiting[place].1.clone_from(cx.waker()),
            // New, or woken too late: it keeps its position.
            Err(place) => waiting.insert(place, (ticket, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl<F> Drop for AdmissionWait<'_, F> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && !self.leave(ticket)
        {
            self.admission.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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
        fn new(admission: &'a CommandQueue, free: &Rc<Cell<u32>>) -> Waiter<'a> {
            Waiter::of(CallOrder::Any, admission, free)
        }

        fn of(order: CallOrder, admission: &'a CommandQueue, free: &Rc<Cell<u32>>) -> Waiter<'a> {
            let free = free.clone();
            let take = move || free.get().checked_sub(1).map(|left| free.set(left));
            Waiter { wait: Box::pin(admission.wait(order, take)), count: Arc::default() }
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
    fn wake_up_goes_to_first_waiter() {
        let (admission, free) = (CommandQueue::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) =
            (Waiter::new(&admission, &free), Waiter::new(&admission, &free));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        admission.wake_one();
        assert_eq!((first.wakes(), second.wakes()), (1, 0));
        assert!(first.is_ready());
        admission.wake_one();
        assert!(!second.is_ready());
        free.set(1);
        admission.wake_one();
        assert_eq!(second.wakes(), 2);
        assert!(second.is_ready());
    }

    #[test]
    fn wake_up_of_canceled_waiter_passes_on() {
        let (admission, free) = (CommandQueue::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) =
            (Waiter::new(&admission, &free), Waiter::new(&admission, &free));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        admission.wake_one();
        drop(first);
        assert_eq!(second.wakes(), 1);
        assert!(second.is_ready());
    }

    #[test]
    fn unwoken_waiter_leaves_silently() {
        let (admission, free) = (CommandQueue::default(), Rc::new(Cell::new(0)));
        let (mut first, mut second) =
            (Waiter::new(&admission, &free), Waiter::new(&admission, &free));
        assert!(!first.is_ready() && !second.is_ready());
        drop(first);
        assert_eq!(second.wakes(), 0);
        admission.wake_all();
        assert_eq!(second.wakes(), 1);
    }

    /// A later waiter that is polled before an earlier, already woken one must not take its place.
    #[test]
    fn ordered_calls_do_not_overtake() {
        let (admission, free) = (CommandQueue::default(), Rc::new(Cell::new(0)));
        let of = |order| Waiter::of(order, &admission, &free);
        let (mut first, mut second) = (of(CallOrder::InOrder), of(CallOrder::InOrder));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        admission.wake_one();
        let mut third = of(CallOrder::InOrder);
        assert!(!admission.is_open(CallOrder::InOrder) && admission.is_open(CallOrder::Any));
        assert!(!second.is_ready() && !third.is_ready(), "the first was woken and has not run");
        assert!(first.is_ready());
        free.set(1);
        let mut other = of(CallOrder::Any);
        assert!(other.is_ready(), "an unordered call takes a free slot");
        free.set(1);
        drop(second);
        admission.wake_one();
        assert_eq!(third.wakes(), 1);
        assert!(third.is_ready() && admission.is_open(CallOrder::InOrder));
    }

    proptest! {
        /// With few slots, arbitrary arrivals, spurious polls and cancellations: ordered calls are
        /// admitted in order, and no call waits while a slot is free and every woken call has run.
        #[test]
        fn no_lost_wake_ups_and_order_kept(
            steps in prop::collection::vec((0u8..6, any::<usize>()), 0..200),
        ) {
            let (admission, free) = (CommandQueue::default(), Rc::new(Cell::new(3u32)));
            let mut waiters: Vec<(u32, CallOrder, Waiter<'_>, u32)> = Vec::new();
            let (mut number, mut served) = (0, Vec::new());
            let mut poll = |waiters: &mut Vec<(u32, CallOrder, Waiter<'_>, u32)>, at: usize| {
                let (number, order, waiter, seen) = &mut waiters[at];
                *seen = waiter.wakes();
                if waiter.is_ready() {
                    if *order == CallOrder::InOrder {
                        served.push(*number);
                    }
                    waiters.remove(at);
                    if free.get() > 0 {
                        admission.wake_one();
                    }
                }
            };
            for (what, which) in steps {
                match what {
                    0 | 1 => {
                        let order = if what == 0 { CallOrder::InOrder } else { CallOrder::Any };
                        waiters.push((number, order, Waiter::of(order, &admission, &free), 0));
                        number += 1;
                        let last = waiters.len() - 1;
                        poll(&mut waiters, last);
                    }
                    2 if !waiters.is_empty() => {
                        let at = which % waiters.len();
                        poll(&mut waiters, at);
                    }
                    3 if !waiters.is_empty() => drop(waiters.remove(which % waiters.len())),
                    _ if free.get() < 3 => {
                        free.set(free.get() + 1);
                        admission.wake_one();
                    }
                    _ => {}
                }
                if which % 3 == 0 {
                    while let Some(at) = waiters.iter().position(|(.., w, seen)| w.wakes() > *seen) {
                        poll(&mut waiters, at);
                    }
                    prop_assert!(free.get() == 0 || waiters.is_empty());
                }
            }
            prop_assert!(served.is_sorted());
        }
    }
}
