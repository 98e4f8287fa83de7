//! Queue of asynchronous mode: writes that were acknowledged to the host and not by the target. A
//! pure core: time is an argument, and payloads stay with the tasks on their cores.
//!
//! Guarantees:
//! - it holds at most [`QueueLimits::high_bytes`] and [`QueueLimits::writes`], counting each write
//!   with its payload. Markers are no writes, and are added even if it is full;
//! - writes are sent in order of arrival, with a bounded amount unacknowledged;
//! - a marker is sent when everything before it has completed, and nothing after it is sent before
//!   it has completed. If it is lost, nothing after it is sent at all;
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
    /// A marker before it was lost.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Write,
    Marker,
}

#[derive(Debug)]
struct QueueEntry {
    kind: EntryKind,
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
    /// Entries before this position are not sent any more.
    lost_before: u64,
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
            lost_before: 0,
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
        if !self.has_space(bytes) {
            return None;
        }
        (self.bytes, self.writes) = (self.bytes + bytes, self.writes + 1);
        Some(self.add(EntryKind::Write, bytes, now_ns))
    }

    /// Adds a marker, also if the queue is full. The caller limits their number.
    pub(crate) fn push_marker(&mut self) -> QueueSlot {
        self.add(EntryKind::Marker, 0, 0)
    }

    fn add(&mut self, kind: EntryKind, bytes: u64, since_ns: u64) -> QueueSlot {
        let (slot, state) = (self.end(), State::Waiting);
        self.entries.push_back(QueueEntry { kind, bytes, since_ns, state, waker: None });
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
        if slot.0 < self.lost_before {
            return SendDecision::Lost;
        }
        let may_go = self.unsent == slot.0 && self.next_may_go();
        let Some(entry) = self.entry(slot) else { return SendDecision::Send { next: None } };
        if !may_go {
            entry.waker = Some(waker.clone());
            return SendDecision::Wait;
        }
        (entry.state, entry.waker) = (State::Sent, None);
        self.window += entry.bytes;
        self.unsent += 1;
        SendDecision::Send { next: self.next_to_send() }
    }

    /// True if the next entry may be sent.
    fn next_may_go(&mut self) -> bool {
        let is_first = self.unsent == self.first;
        let Some(&mut QueueEntry { kind, bytes, .. }) = self.entry(QueueSlot(self.unsent)) else {
            return false;
        };
        match kind {
            EntryKind::Marker => is_first,
            // A marker that was sent is the first entry until it has completed.
            EntryKind::Write => {
                let behind_marker = !is_first
                    && self.entries.front().is_some_and(|entry| entry.kind == EntryKind::Marker);
                let fits = self.window == 0 || self.window + bytes <= self.limits.window_bytes;
                fits && !behind_marker
            }
        }
    }

    /// The waker of the next entry to send, if it waits and may be sent.
    pub(crate) fn next_to_send(&mut self) -> Option<Waker> {
        let may_go = self.next_may_go();
        self.entry(QueueSlot(self.unsent)).filter(|_| may_go)?.waker.take()
    }

    /// The session ended while the result of a marker was unknown: no entry of the session is sent
    /// after it. The caller has ended the session, so no other entry of it follows.
    pub(crate) fn lose_after_marker(&mut self) {
        self.lost_before = self.end().0;
    }

    /// The write was acknowledged, or given up with its attachment.
    pub(crate) fn completed(&mut self, slot: QueueSlot) {
        let unsent = self.unsent;
        let Some(entry) = self.entry(slot) else { return };
        let (kind, bytes, state) = (entry.kind, entry.bytes, entry.state);
        if state == State::Completed {
            return;
        }
        (entry.state, entry.waker) = (State::Completed, None);
        if state == State::Sent {
            self.window -= bytes;
        } else if slot.0 == unsent {
            self.unsent += 1;
        }
        if kind == EntryKind::Write {
            (self.bytes, self.writes) = (self.bytes - bytes, self.writes - 1);
        }
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
        let mut entries = self.entries.iter();
        let oldest = entries
            .find(|entry| entry.kind == EntryKind::Write && entry.state != State::Completed)
            .map_or(now_ns, |entry| entry.since_ns);
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
    fn full_queue_takes_marker() {
        let mut queue = WriteQueue::new(LIMITS);
        let first = queue.push(100, 0).unwrap();
        assert_eq!(queue.push(1, 0), None);
        let marker = queue.push_marker();
        assert_eq!(queue.writes(), 1, "a marker is no write");
        assert!(sends(&mut queue, first) && !queue.has_space(0));
        queue.completed(first);
        assert_eq!(queue.lag(7), (0, 0), "the peer has all writes");
        assert!(sends(&mut queue, marker));
        queue.completed(marker);
        assert!(queue.has_space(100));
    }

    /// A marker that is in flight has an age, which a timeout limits. Behind a backlog it has none.
    #[test]
    fn marker_separates_writes_before_and_after() {
        let mut queue = WriteQueue::new(LIMITS);
        let before = [0, 1].map(|now| queue.push(5, now).unwrap());
        let marker = queue.push_marker();
        let after = queue.push(5, 2).unwrap();
        assert!(before.into_iter().all(|slot| sends(&mut queue, slot)));
        queue.completed(before[1]);
        assert!(!sends(&mut queue, marker), "the first has not completed");
        assert!(queue.next_to_send().is_none());
        queue.completed(before[0]);
        assert!(queue.next_to_send().is_some(), "the marker waits");
        assert!(!sends(&mut queue, after) && sends(&mut queue, marker));
        assert!(!sends(&mut queue, after) && queue.next_to_send().is_none());
        queue.completed(marker);
        assert!(queue.next_to_send().is_some() && sends(&mut queue, after));
    }

    /// The target may take the snapshot late: a write after it would change the content.
    #[test]
    fn nothing_is_sent_after_lost_marker() {
        let mut queue = WriteQueue::new(LIMITS);
        let marker = queue.push_marker();
        let after = queue.push(5, 0).unwrap();
        assert!(sends(&mut queue, marker) && !sends(&mut queue, after));
        queue.lose_after_marker();
        queue.completed(marker);
        assert!(matches!(queue.send(after, Waker::noop()), SendDecision::Lost));
        queue.completed(after);
        let next_session = queue.push(5, 1).unwrap();
        assert!(sends(&mut queue, next_session));
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
        fn queue_is_bounded_and_never_stuck(steps in prop::collection::vec((0u8..4, any::<usize>()), 0..200)) {
            let mut queue = WriteQueue::new(LIMITS);
            // A marker has 0 bytes, and no write has.
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
                    3 if which % 8 == 0 => waiting.push((queue.push_marker(), 0)),
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
                let writes = |list: &[(QueueSlot, u64)]| list.iter().filter(|one| one.1 > 0).count();
                prop_assert_eq!(queue.writes(), writes(&waiting) + writes(&sent));
                let sent_alone = sent.len() == 1 || writes(&sent) == sent.len();
                prop_assert!(sent_alone, "a marker has no other entry beside it");
                prop_assert!(bytes <= LIMITS.high_bytes && window <= LIMITS.window_bytes.max(20));
                prop_assert!(!sent.is_empty() || waiting.is_empty(), "the queue is stuck");
            }
        }
    }
}
