//! Queue of asynchronous mode: writes that were acknowledged to the host and not by the target. A
//! pure core: time is an argument, and payloads stay with the tasks on their cores.
//!
//! Guarantees:
//! - it holds at most [`QueueLimits::high_bytes`] and [`QueueLimits::writes`], counting each write
//!   with its payload. Markers have no payload, and are added even if it is full;
//! - writes are sent in order of arrival, with a bounded amount unacknowledged;
//! - after it was full, it accepts writes again only at the low mark. A source that is too fast is
//!   throttled in long intervals instead of at every write;
//! - its lag is always known: the bytes in it, and the age of the oldest write.

use std::collections::VecDeque;
use std::task::Waker;

/// Limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Full at this many bytes. At least the largest write, 32 MiB.
    pub high_bytes: u64,
    /// Accepts writes again at this many bytes.
    pub low_bytes: u64,
    /// Full at this many writes.
    pub writes: usize,
    /// Bytes sent and not acknowledged. A single write may exceed it.
    pub window_bytes: u64,
}

/// Position of a write in the queue. Positions are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueSlot(u64);

/// Result of [`WriteQueue::send`].
#[derive(Debug)]
#[must_use]
pub(crate) enum SendDecision {
    /// The write may be sent. Also wake the next waiting write if it fits the window: with only one
    /// wake-up per completion, the number in flight could never rise again.
    Send {
        next: Option<Waker>,
    },
    Wait,
}

#[derive(Debug)]
struct QueueEntry {
    bytes: u64,
    since_ns: u64,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Completed,
}

#[derive(Debug)]
pub(crate) struct WriteQueue {
    limits: QueueLimits,
    /// From the oldest write that has not completed.
    entries: VecDeque<QueueEntry>,
    /// Position of the first entry.
    first: u64,
    unsent: u64,
    bytes: u64,
    window: u64,
    writes: usize,
    is_full: bool,
    space_wakers: Vec<Waker>,
    /// Tasks that wait until all writes before a position have completed.
    position_wakers: Vec<(QueueSlot, Waker)>,
}

impl WriteQueue {
    pub(crate) fn new(limits: QueueLimits) -> WriteQueue {
        WriteQueue {
            limits,
            entries: VecDeque::new(),
            first: 0,
            unsent: 0,
            bytes: 0,
            window: 0,
            writes: 0,
            is_full: false,
            space_wakers: Vec::new(),
            position_wakers: Vec::new(),
        }
    }

    /// Whether a write may be added. If not, the queue counts as full until the low mark.
    pub(crate) fn has_space(&mut self, bytes: u64) -> bool {
        let over = self.bytes + bytes > self.limits.high_bytes && self.writes > 0;
        self.is_full |= over || self.writes >= self.limits.writes;
        !self.is_full
    }

    /// Adds a write, if the queue is not full.
    pub(crate) fn push(&mut self, bytes: u64, now_ns: u64) -> Option<QueueSlot> {
        self.has_space(bytes).then(|| self.add(bytes, now_ns))
    }

    /// Adds an entry without payload, also if the queue is full. The caller limits their number.
    pub(crate) fn push_marker(&mut self, now_ns: u64) -> QueueSlot {
        self.add(0, now_ns)
    }

    fn add(&mut self, bytes: u64, now_ns: u64) -> QueueSlot {
        let slot = QueueSlot(self.first + self.entries.len() as u64);
        let state = State::Waiting;
        self.entries.push_back(QueueEntry { bytes, since_ns: now_ns, state, waker: None });
        (self.bytes, self.writes) = (self.bytes + bytes, self.writes + 1);
        slot
    }

    /// `waker` is woken when the queue accepts writes again.
    pub(crate) fn wait_for_space(&mut self, waker: &Waker) {
        if !self.space_wakers.iter().any(|known| known.will_wake(waker)) {
            self.space_wakers.push(waker.clone());
        }
    }

    fn entry(&mut self, slot: QueueSlot) -> Option<&mut QueueEntry> {
        self.entries.get_mut(slot.0.checked_sub(self.first)? as usize)
    }

    /// Counts a write as sent if it may be sent now. Otherwise wakes `waker` when it may.
    pub(crate) fn send(&mut self, slot: QueueSlot, waker: &Waker) -> SendDecision {
        let is_next = self.unsent == slot.0;
        let Some(bytes) = self.entry(slot).map(|entry| entry.bytes) else {
            return SendDecision::Send { next: None };
        };
        if is_next && self.fits(bytes) {
            self.window += bytes;
            self.unsent += 1;
            if let Some(entry) = self.entry(slot) {
                (entry.state, entry.waker) = (State::Sent, None);
            }
            return SendDecision::Send { next: self.next_to_send() };
        }
        if let Some(entry) = self.entry(slot) {
            entry.waker = Some(waker.clone());
        }
        SendDecision::Wait
    }

    fn fits(&self, bytes: u64) -> bool {
        self.window == 0 || self.window + bytes <= self.limits.window_bytes
    }

    /// The waker of the next write to send, if it waits and fits.
    pub(crate) fn next_to_send(&mut self) -> Option<Waker> {
        let slot = QueueSlot(self.unsent);
        let bytes = self.entry(slot)?.bytes;
        if self.fits(bytes) { self.entry(slot)?.waker.take() } else { None }
    }

    /// The write was acknowledged, or given up with its attachment.
    pub(crate) fn completed(&mut self, slot: QueueSlot) {
        let unsent = self.unsent;
        let Some(entry) = self.entry(slot) else { return };
        let (bytes, state) = (entry.bytes, entry.state);
        if state == State::Completed {
            return;
        }
        (entry.state, entry.waker) = (State::Completed, None);
        if state == State::Sent {
            self.window -= bytes;
        } else if slot.0 == unsent {
            self.unsent += 1;
        }
        (self.bytes, self.writes) = (self.bytes - bytes, self.writes - 1);
        while self.entries.front().is_some_and(|entry| entry.state == State::Completed) {
            self.entries.pop_front();
            self.first += 1;
        }
        self.unsent = self.unsent.max(self.first);
        // Skip writes that were given up while they waited.
        while self
            .entry(QueueSlot(self.unsent))
            .is_some_and(|entry| entry.state == State::Completed)
        {
            self.unsent += 1;
        }
        let low = self.bytes <= self.limits.low_bytes && self.writes <= self.limits.writes / 2;
        self.is_full &= !low;
    }

    /// Wakers of the tasks that wait for space, if there is space now.
    pub(crate) fn take_space_wakers(&mut self) -> Vec<Waker> {
        if self.is_full { Vec::new() } else { std::mem::take(&mut self.space_wakers) }
    }

    /// True when all writes before `slot` have completed. If not, `waker` is woken when they have.
    pub(crate) fn is_past(&mut self, slot: QueueSlot, waker: &Waker) -> bool {
        let past = self.first >= slot.0;
        let known = |entry: &(QueueSlot, Waker)| entry.0 == slot && entry.1.will_wake(waker);
        if !past && !self.position_wakers.iter().any(known) {
            self.position_wakers.push((slot, waker.clone()));
        }
        past
    }

    /// Waker of a task whose position the queue has passed. Call until it returns `None`.
    pub(crate) fn next_past(&mut self) -> Option<Waker> {
        let first = self.first;
        let at = self.position_wakers.iter().position(|(slot, _)| first >= slot.0)?;
        Some(self.position_wakers.swap_remove(at).1)
    }

    /// All wakers, at the end of a session.
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        let unsent = self.entries.iter_mut().filter_map(|entry| entry.waker.take());
        self.space_wakers.drain(..).chain(unsent).collect()
    }

    /// Bytes in the queue, and the age of its oldest write in nanoseconds.
    pub(crate) fn lag(&self, now_ns: u64) -> (u64, u64) {
        let oldest = self.entries.front().map_or(now_ns, |entry| entry.since_ns);
        (self.bytes, now_ns.saturating_sub(oldest))
    }

    /// Position of the next write to be added.
    pub(crate) fn end(&self) -> QueueSlot {
        QueueSlot(self.first + self.entries.len() as u64)
    }

    pub(crate) fn writes(&self) -> usize {
        self.writes
    }

    /// True from full until the low mark.
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

    fn sends(queue: &mut WriteQueue, slot: QueueSlot) -> bool {
        matches!(queue.send(slot, Waker::noop()), SendDecision::Send { .. })
    }

    /// Records whether a task was woken.
    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A snapshot of the source's own device exists when its marker is added.
    #[test]
    fn full_queue_takes_markers_in_order() {
        let mut queue = WriteQueue::new(LIMITS);
        let first = queue.push(100, 0).unwrap();
        assert_eq!(queue.push(1, 0), None);
        let marker = queue.push_marker(0);
        assert!(sends(&mut queue, first) && !queue.has_space(0));
        queue.completed(first);
        assert!(sends(&mut queue, marker));
        queue.completed(marker);
        assert!(queue.has_space(100));
    }

    #[test]
    fn queue_is_full_from_high_mark_to_low_mark() {
        let mut queue = WriteQueue::new(LIMITS);
        let slots: Vec<QueueSlot> = (0..10).map(|now| queue.push(10, now).unwrap()).collect();
        assert!(queue.push(1, 10).is_none() && queue.is_full());
        assert_eq!(queue.lag(15), (100, 15));
        for slot in &slots[..5] {
            assert!(sends(&mut queue, *slot));
            queue.completed(*slot);
            assert!(queue.push(1, 20).is_none(), "full until the low mark");
        }
        assert_eq!(queue.lag(20), (50, 15));
        assert!(sends(&mut queue, slots[5]));
        queue.completed(slots[5]);
        assert!(queue.push(1, 20).is_some());
    }

    #[test]
    fn writes_are_sent_in_order_within_window() {
        let mut queue = WriteQueue::new(LIMITS);
        let slots: Vec<QueueSlot> = (0..4).map(|now| queue.push(15, now).unwrap()).collect();
        assert!(!sends(&mut queue, slots[1]), "the first goes first");
        assert!(sends(&mut queue, slots[0]) && sends(&mut queue, slots[1]));
        assert!(!sends(&mut queue, slots[2]), "the window is full");
        queue.completed(slots[1]);
        assert_eq!(queue.lag(9), (45, 9), "the oldest is still there");
        assert!(queue.next_to_send().is_some());
        assert!(sends(&mut queue, slots[2]));
        queue.completed(slots[0]);
        assert_eq!(queue.lag(9), (30, 7));
    }

    /// Writes that asked too early are woken by their predecessor, not only one per completion, so
    /// a window that was nearly empty fills again.
    #[test]
    fn empty_window_fills_again() {
        let mut queue = WriteQueue::new(LIMITS);
        let slots: Vec<QueueSlot> = (0..4).map(|now| queue.push(10, now).unwrap()).collect();
        let flags: Vec<Arc<Flag>> = slots.iter().map(|_| Arc::default()).collect();
        for (slot, flag) in slots.iter().zip(&flags).skip(1) {
            assert!(matches!(queue.send(*slot, &flag.clone().into()), SendDecision::Wait));
        }
        for (at, slot) in slots.iter().enumerate().take(3) {
            let SendDecision::Send { next } = queue.send(*slot, Waker::noop()) else {
                panic!("its turn")
            };
            if let Some(next) = next {
                next.wake();
            }
            let woken = flags[at + 1].0.load(Ordering::Relaxed);
            assert_eq!(woken, at < 2, "as long as the window has room, at {at}");
        }
    }

    #[test]
    fn position_is_past_when_all_earlier_writes_completed() {
        let mut queue = WriteQueue::new(LIMITS);
        let [first, second] = [0, 1].map(|now| queue.push(1, now).unwrap());
        let (end, flag) = (queue.end(), Arc::<Flag>::default());
        queue.push(1, 2).unwrap();
        assert!(queue.is_past(first, Waker::noop()));
        assert!(!queue.is_past(end, &flag.clone().into()));
        queue.completed(second);
        assert!(queue.next_past().is_none(), "the first has not completed");
        queue.completed(first);
        queue.next_past().expect("both have completed").wake();
        assert!(flag.0.load(Ordering::Relaxed) && queue.next_past().is_none());
        assert!(queue.is_past(end, Waker::noop()), "a later write does not matter");
    }

    #[test]
    fn oversized_write_is_admitted_alone() {
        let mut queue = WriteQueue::new(LIMITS);
        let huge = queue.push(1000, 0).unwrap();
        assert!(queue.push(1, 0).is_none());
        assert!(sends(&mut queue, huge));
        queue.completed(huge);
        assert!(queue.writes() == 0 && !queue.is_full());
    }

    proptest! {
        /// Whatever is given up or acknowledged, the limits hold, and the oldest waiting write can
        /// be sent once the sent writes have completed.
        #[test]
        fn queue_is_bounded_and_never_stuck(steps in prop::collection::vec((0u8..3, any::<usize>()), 0..200)) {
            let mut queue = WriteQueue::new(LIMITS);
            let mut waiting: Vec<(QueueSlot, u64)> = Vec::new();
            let mut sent: Vec<(QueueSlot, u64)> = Vec::new();
            for (now, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        let bytes = 1 + which as u64 % 20;
                        if let Some(slot) = queue.push(bytes, now as u64) {
                            waiting.push((slot, bytes));
                        }
                    }
                    1 if !sent.is_empty() => queue.completed(sent.swap_remove(which % sent.len()).0),
                    2 if which % 4 == 0 && !waiting.is_empty() => {
                        queue.completed(waiting.remove(which % waiting.len()).0);
                    }
                    _ => {}
                }
                while let Some((slot, bytes)) = waiting.first().copied()
                    && sends(&mut queue, slot)
                {
                    sent.push((slot, bytes));
                    waiting.remove(0);
                }
                let sum = |list: &[(QueueSlot, u64)]| list.iter().map(|entry| entry.1).sum::<u64>();
                let (bytes, window) = (sum(&waiting) + sum(&sent), sum(&sent));
                prop_assert_eq!((queue.bytes, queue.window), (bytes, window));
                prop_assert_eq!(queue.writes(), waiting.len() + sent.len());
                prop_assert!(bytes <= LIMITS.high_bytes && window <= LIMITS.window_bytes.max(20));
                prop_assert!(!sent.is_empty() || waiting.is_empty(), "the queue is stuck");
            }
        }
    }
}
