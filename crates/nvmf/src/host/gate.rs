//! Where calls wait for a connection, or for a free slot on one.
//!
//! First come, first served: a wake-up is for one waiter and is never lost, even when the waiter
//! that it was for has gone. A call that finds a slot free on arrival does not wait behind others
//! that have been woken and have not run yet, but for those that keep an order ([`Line::InOrder`]):
//! of these none is served before one that came earlier. The target keeps a later one waiting for
//! the earlier, so one that overtook it would hold the slot that the earlier needs. For the same
//! reason one that is turned away does not come back here: it keeps its slot
//! (`Association::call_in_order`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Which calls one may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Any that has not run yet.
    Any,
    /// None that keeps the order too.
    InOrder,
}

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    /// By ticket.
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
    /// Tickets of those that keep the order and were not served, woken or not, the oldest first.
    in_order: RefCell<VecDeque<u64>>,
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

    /// Whether a call may be served that has just come.
    #[inline]
    pub(super) fn is_open(&self, line: Line) -> bool {
        line == Line::Any || self.in_order.borrow().is_empty()
    }

    /// Waits until `ready` gives a value: it is asked now and after each wake-up. Who is served and
    /// knows that there is more passes it on with [`Gate::wake_one`].
    pub(super) fn wait<T, F: FnMut() -> Option<T> + Unpin>(
        &self,
        line: Line,
        ready: F,
    ) -> Wait<'_, F> {
        Wait { gate: self, line, ready, ticket: None }
    }
}

/// See [`Gate::wait`].
pub(super) struct Wait<'a, F> {
    gate: &'a Gate,
    line: Line,
    ready: F,
    /// Set while waiting.
    ticket: Option<u64>,
}

impl<F> Wait<'_, F> {
    /// Takes us out of the queue; false when we were not in it, so a wake-up was for us.
    fn leave(&mut self, ticket: u64) -> bool {
        if self.line == Line::InOrder {
            let mut line = self.gate.in_order.borrow_mut();
            if let Ok(place) = line.binary_search(&ticket) {
                line.remove(place);
            }
        }
        let mut waiting = self.gate.waiting.borrow_mut();
        let place = waiting.binary_search_by_key(&ticket, |(other, _)| *other);
        place.map(|place| waiting.remove(place)).is_ok()
    }

    /// Whether it is our turn.
    fn may_try(&self) -> bool {
        match (self.line, self.ticket) {
            (Line::InOrder, Some(ticket)) => self.gate.in_order.borrow().front() == Some(&ticket),
            (line, _) => self.gate.is_open(line),
        }
    }
}

impl<T, F: FnMut() -> Option<T> + Unpin> Future for Wait<'_, F> {
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
            let ticket = this.gate.tickets.get();
            this.gate.tickets.set(ticket + 1);
            if this.line == Line::InOrder {
                this.gate.in_order.borrow_mut().push_back(ticket);
            }
            ticket
        });
        let mut waiting = this.gate.waiting.borrow_mut();
        match waiting.binary_search_by_key(&ticket, |(other, _)| *other) {
            Ok(place) => waiting[place].1.clone_from(cx.waker()),
            // New, or woken when someone was faster: the place is kept.
            Err(place) => waiting.insert(place, (ticket, cx.waker().clone())),
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
        fn new(gate: &'a Gate, free: &Rc<Cell<u32>>) -> Waiter<'a> {
            Waiter::of(Line::Any, gate, free)
        }

        fn of(line: Line, gate: &'a Gate, free: &Rc<Cell<u32>>) -> Waiter<'a> {
            let free = free.clone();
            let take = move || free.get().checked_sub(1).map(|left| free.set(left));
            Waiter { wait: Box::pin(gate.wait(line, take)), count: Arc::default() }
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

    /// A later one, asked before the earlier one that was woken, does not take its place.
    #[test]
    fn those_that_keep_the_order_overtake_none_of_theirs() {
        let (gate, free) = (Gate::default(), Rc::new(Cell::new(0)));
        let of = |line| Waiter::of(line, &gate, &free);
        let (mut first, mut second) = (of(Line::InOrder), of(Line::InOrder));
        assert!(!first.is_ready() && !second.is_ready());
        free.set(1);
        gate.wake_one();
        let mut third = of(Line::InOrder);
        assert!(!gate.is_open(Line::InOrder) && gate.is_open(Line::Any));
        assert!(!second.is_ready() && !third.is_ready(), "the first was woken and has not run");
        assert!(first.is_ready());
        free.set(1);
        let mut other = of(Line::Any);
        assert!(other.is_ready(), "what keeps no order takes what it finds");
        free.set(1);
        drop(second);
        gate.wake_one();
        assert_eq!(third.wakes(), 1);
        assert!(third.is_ready() && gate.is_open(Line::InOrder));
    }

    proptest! {
        /// With few slots, whoever comes, is polled without a wake-up, or gives up: those that keep
        /// the order are served in it, and nobody waits while there is a slot and all who were woken
        /// have run.
        #[test]
        fn nobody_is_left_waiting_and_the_order_is_kept(
            steps in prop::collection::vec((0u8..6, any::<usize>()), 0..200),
        ) {
            let (gate, free) = (Gate::default(), Rc::new(Cell::new(3u32)));
            let mut waiters: Vec<(u32, Line, Waiter<'_>, u32)> = Vec::new();
            let (mut number, mut served) = (0, Vec::new());
            let mut poll = |waiters: &mut Vec<(u32, Line, Waiter<'_>, u32)>, at: usize| {
                let (number, line, waiter, seen) = &mut waiters[at];
                *seen = waiter.wakes();
                if waiter.is_ready() {
                    if *line == Line::InOrder {
                        served.push(*number);
                    }
                    waiters.remove(at);
                    if free.get() > 0 {
                        gate.wake_one();
                    }
                }
            };
            for (what, which) in steps {
                match what {
                    0 | 1 => {
                        let line = if what == 0 { Line::InOrder } else { Line::Any };
                        waiters.push((number, line, Waiter::of(line, &gate, &free), 0));
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
                        gate.wake_one();
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
