//! The queue of asynchronous mode: what the host was told is written and the target has not
//! acknowledged. A pure core: time is told to it, payloads stay with the tasks of their cores.
//!
//! Promises:
//! - at most [`QueueLimits::high_bytes`] and [`QueueLimits::writes`] are in it, each write counted
//!   with its payload;
//! - writes are sent in the order in which they came, a bounded number unacknowledged at a time;
//! - once it was full it takes no more until it is down to the low mark: a source that is too fast
//!   is slowed down in long breaths, not with every write;
//! - its lag is known at any moment: bytes in it, and the age of the oldest.

use std::collections::VecDeque;
use std::task::Waker;

/// What bounds a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Full with so many bytes. At least as much as the largest write, 32 MiB.
    pub high_bytes: u64,
    /// Takes writes again from here on.
    pub low_bytes: u64,
    /// Full with so many writes.
    pub writes: usize,
    /// Bytes sent and not acknowledged; one write may always be.
    pub window_bytes: u64,
}

/// What to do when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Writes wait: hosts are as slow as the link.
    #[default]
    SlowDown,
    /// Let the target fall behind: only track what it lacks, and bring it up to date later.
    Track,
}

/// A write's place. Places are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

/// Answer to [`Queue::send`].
#[derive(Debug)]
#[must_use]
pub(crate) enum Post {
    /// It goes. Whoever waits behind it and fits beside it is to be woken, and so on: one woken for
    /// each that ended would never have more under way than there were at the fewest.
    Now {
        /// Of the next write.
        next: Option<Waker>,
    },
    /// Not yet.
    Later,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    since_ns: u64,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Ended,
}

/// See the module's promises.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: QueueLimits,
    /// From the oldest that has not ended.
    entries: VecDeque<Entry>,
    /// Place of the first entry.
    first: u64,
    /// Place of the first that was not sent.
    unsent: u64,
    bytes: u64,
    window: u64,
    writes: usize,
    is_full: bool,
    at_door: Vec<Waker>,
}

impl Queue {
    pub(crate) fn new(limits: QueueLimits) -> Queue {
        Queue {
            limits,
            entries: VecDeque::new(),
            first: 0,
            unsent: 0,
            bytes: 0,
            window: 0,
            writes: 0,
            is_full: false,
            at_door: Vec::new(),
        }
    }

    /// Whether a write may be put in; when not, the queue is full until it is low.
    pub(crate) fn has_room(&mut self, bytes: u64) -> bool {
        let over = self.bytes + bytes > self.limits.high_bytes && self.writes > 0;
        self.is_full |= over || self.writes >= self.limits.writes;
        !self.is_full
    }

    /// Puts a write into the queue, if it is not full.
    pub(crate) fn push(&mut self, bytes: u64, now_ns: u64) -> Option<Place> {
        if !self.has_room(bytes) {
            return None;
        }
        let place = Place(self.first + self.entries.len() as u64);
        let state = State::Waiting;
        self.entries.push_back(Entry { bytes, since_ns: now_ns, state, waker: None });
        (self.bytes, self.writes) = (self.bytes + bytes, self.writes + 1);
        Some(place)
    }

    /// Waits at the door: `waker` is woken when the queue takes writes again.
    pub(crate) fn wait_at_door(&mut self, waker: &Waker) {
        if !self.at_door.iter().any(|known| known.will_wake(waker)) {
            self.at_door.push(waker.clone());
        }
    }

    fn entry(&mut self, place: Place) -> Option<&mut Entry> {
        self.entries.get_mut(place.0.checked_sub(self.first)? as usize)
    }

    /// Asks for the write to be sent: [`Post::Now`] counts it as sent. Else `waker` is woken when
    /// it is its turn.
    pub(crate) fn send(&mut self, place: Place, waker: &Waker) -> Post {
        let is_next = self.unsent == place.0;
        let Some(bytes) = self.entry(place).map(|entry| entry.bytes) else {
            return Post::Now { next: None };
        };
        if is_next && self.fits(bytes) {
            self.window += bytes;
            self.unsent += 1;
            if let Some(entry) = self.entry(place) {
                (entry.state, entry.waker) = (State::Sent, None);
            }
            return Post::Now { next: self.next_to_send() };
        }
        if let Some(entry) = self.entry(place) {
            entry.waker = Some(waker.clone());
        }
        Post::Later
    }

    fn fits(&self, bytes: u64) -> bool {
        self.window == 0 || self.window + bytes <= self.limits.window_bytes
    }

    /// The waker of the next to be sent, if it waits and fits.
    pub(crate) fn next_to_send(&mut self) -> Option<Waker> {
        let place = Place(self.unsent);
        let bytes = self.entry(place)?.bytes;
        if self.fits(bytes) { self.entry(place)?.waker.take() } else { None }
    }

    /// The write was acknowledged, or given up with its attachment.
    pub(crate) fn ended(&mut self, place: Place) {
        let unsent = self.unsent;
        let Some(entry) = self.entry(place) else { return };
        let (bytes, state) = (entry.bytes, entry.state);
        if state == State::Ended {
            return;
        }
        (entry.state, entry.waker) = (State::Ended, None);
        if state == State::Sent {
            self.window -= bytes;
        } else if place.0 == unsent {
            self.unsent += 1;
        }
        (self.bytes, self.writes) = (self.bytes - bytes, self.writes - 1);
        while self.entries.front().is_some_and(|entry| entry.state == State::Ended) {
            self.entries.pop_front();
            self.first += 1;
        }
        self.unsent = self.unsent.max(self.first);
        // One that gave up in the midst of those that wait is passed over.
        while self.entry(Place(self.unsent)).is_some_and(|entry| entry.state == State::Ended) {
            self.unsent += 1;
        }
        let low = self.bytes <= self.limits.low_bytes && self.writes <= self.limits.writes / 2;
        self.is_full &= !low;
    }

    /// Those who wait at the door, if it is open.
    pub(crate) fn take_door(&mut self) -> Vec<Waker> {
        if self.is_full { Vec::new() } else { std::mem::take(&mut self.at_door) }
    }

    /// All who wait, to be sent or at the door: the session has ended.
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        let unsent = self.entries.iter_mut().filter_map(|entry| entry.waker.take());
        self.at_door.drain(..).chain(unsent).collect()
    }

    /// Bytes in the queue, and the age of the oldest write in it, in nanoseconds.
    pub(crate) fn lag(&self, now_ns: u64) -> (u64, u64) {
        let oldest = self.entries.front().map_or(now_ns, |entry| entry.since_ns);
        (self.bytes, now_ns.saturating_sub(oldest))
    }

    /// The place of the next write.
    pub(crate) fn end(&self) -> Place {
        Place(self.first + self.entries.len() as u64)
    }

    /// True when all writes before this place have ended.
    pub(crate) fn is_past(&self, place: Place) -> bool {
        self.first >= place.0
    }

    /// Writes in the queue.
    pub(crate) fn writes(&self) -> usize {
        self.writes
    }

    /// True from full to low.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: QueueLimits =
        QueueLimits { high_bytes: 100, low_bytes: 40, writes: 20, window_bytes: 30 };

    fn sends(queue: &mut Queue, place: Place) -> bool {
        matches!(queue.send(place, Waker::noop()), Post::Now { .. })
    }

    /// Whether a task was woken.
    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_fills_to_the_high_mark_and_opens_at_the_low_one() {
        let mut queue = Queue::new(LIMITS);
        let places: Vec<Place> = (0..10).map(|now| queue.push(10, now).unwrap()).collect();
        assert!(queue.push(1, 10).is_none() && queue.is_full());
        assert_eq!(queue.lag(15), (100, 15));
        for place in &places[..5] {
            assert!(sends(&mut queue, *place));
            queue.ended(*place);
            assert!(queue.push(1, 20).is_none(), "full until it is low");
        }
        assert_eq!(queue.lag(20), (50, 15));
        assert!(sends(&mut queue, places[5]));
        queue.ended(places[5]);
        assert!(queue.push(1, 20).is_some());
    }

    #[test]
    fn writes_are_sent_in_order_within_the_window() {
        let mut queue = Queue::new(LIMITS);
        let places: Vec<Place> = (0..4).map(|now| queue.push(15, now).unwrap()).collect();
        assert!(!sends(&mut queue, places[1]), "the first goes first");
        assert!(sends(&mut queue, places[0]) && sends(&mut queue, places[1]));
        assert!(!sends(&mut queue, places[2]), "the window is full");
        queue.ended(places[1]);
        assert_eq!(queue.lag(9), (45, 9), "the oldest is still there");
        assert!(queue.next_to_send().is_some());
        assert!(sends(&mut queue, places[2]));
        queue.ended(places[0]);
        assert_eq!(queue.lag(9), (30, 7));
    }

    /// Those that asked too early are woken by the one before them, not only one by one as writes
    /// end: a window that was once nearly empty fills again.
    #[test]
    fn a_window_that_was_empty_fills_again() {
        let mut queue = Queue::new(LIMITS);
        let places: Vec<Place> = (0..4).map(|now| queue.push(10, now).unwrap()).collect();
        let flags: Vec<Arc<Flag>> = places.iter().map(|_| Arc::default()).collect();
        for (place, flag) in places.iter().zip(&flags).skip(1) {
            assert!(matches!(queue.send(*place, &flag.clone().into()), Post::Later));
        }
        for (at, place) in places.iter().enumerate().take(3) {
            let Post::Now { next } = queue.send(*place, Waker::noop()) else { panic!("its turn") };
            if let Some(next) = next {
                next.wake();
            }
            let woken = flags[at + 1].0.load(Ordering::Relaxed);
            assert_eq!(woken, at < 2, "as long as the window has room, at {at}");
        }
    }

    #[test]
    fn a_write_larger_than_all_marks_passes_alone() {
        let mut queue = Queue::new(LIMITS);
        let huge = queue.push(1000, 0).unwrap();
        assert!(queue.push(1, 0).is_none());
        assert!(sends(&mut queue, huge));
        queue.ended(huge);
        assert!(queue.writes() == 0 && !queue.is_full());
    }

    proptest! {
        /// Whatever is given up and whatever is acknowledged: bounds hold, and the oldest that
        /// waits can always be sent once what was sent has ended.
        #[test]
        fn it_is_bounded_and_never_stuck(steps in prop::collection::vec((0u8..3, any::<usize>()), 0..200)) {
            let mut queue = Queue::new(LIMITS);
            let mut waiting: Vec<(Place, u64)> = Vec::new();
            let mut sent: Vec<(Place, u64)> = Vec::new();
            for (now, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        let bytes = 1 + which as u64 % 20;
                        if let Some(place) = queue.push(bytes, now as u64) {
                            waiting.push((place, bytes));
                        }
                    }
                    1 if !sent.is_empty() => queue.ended(sent.swap_remove(which % sent.len()).0),
                    2 if which % 4 == 0 && !waiting.is_empty() => {
                        queue.ended(waiting.remove(which % waiting.len()).0);
                    }
                    _ => {}
                }
                while let Some((place, bytes)) = waiting.first().copied()
                    && sends(&mut queue, place)
                {
                    sent.push((place, bytes));
                    waiting.remove(0);
                }
                let sum = |list: &[(Place, u64)]| list.iter().map(|entry| entry.1).sum::<u64>();
                let (bytes, window) = (sum(&waiting) + sum(&sent), sum(&sent));
                prop_assert_eq!((queue.bytes, queue.window), (bytes, window));
                prop_assert_eq!(queue.writes(), waiting.len() + sent.len());
                prop_assert!(bytes <= LIMITS.high_bytes && window <= LIMITS.window_bytes.max(20));
                prop_assert!(!sent.is_empty() || waiting.is_empty(), "nothing moves");
            }
        }
    }
}
