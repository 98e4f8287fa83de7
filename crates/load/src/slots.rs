//! Wake-ups of the slots of a lane: one waker per slot, created once, and a bit set of woken slots.
//! The task of the lane is woken once, however many I/Os complete before it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

/// Woken slots of a lane. Wakers may run on any thread.
#[derive(Debug)]
pub(crate) struct WokenSlots {
    bits: Vec<AtomicU64>,
    /// The task of the lane was woken since its last poll.
    notified: AtomicBool,
    lane: Mutex<Option<Waker>>,
}

impl WokenSlots {
    pub(crate) fn new(slots: usize) -> Arc<WokenSlots> {
        let bits = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(WokenSlots { bits, notified: AtomicBool::new(false), lane: Mutex::new(None) })
    }

    /// Wakes the lane without a slot.
    pub(crate) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            let lane = self.lane.lock();
            if let Some(lane) = &*lane {
                lane.wake_by_ref();
            }
        }
    }

    /// Must be called first at each poll of the lane: later wake-ups wake `lane` again.
    pub(crate) fn listen(&self, lane: &Waker) {
        let mut known = self.lane.lock();
        match &mut *known {
            Some(known) => known.clone_from(lane),
            None => *known = Some(lane.clone()),
        }
        drop(known);
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// Yields the slots woken since the last call.
    pub(crate) fn drain(&self, mut each: impl FnMut(usize)) {
        for (index, word) in self.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

struct SlotWaker {
    slot: usize,
    woken: Arc<WokenSlots>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.bits[self.slot / 64].fetch_or(1 << (self.slot % 64), Ordering::AcqRel);
        self.woken.notify();
    }
}

/// One waker per slot.
pub(crate) fn wakers(woken: &Arc<WokenSlots>, slots: usize) -> Vec<Waker> {
    (0..slots).map(|slot| Waker::from(Arc::new(SlotWaker { slot, woken: woken.clone() }))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn many_slots_wake_lane_once() {
        let count = Arc::new(Count::default());
        let woken = WokenSlots::new(130);
        let wakers = wakers(&woken, 130);
        woken.listen(&Waker::from(count.clone()));
        for slot in [129, 0, 64, 0] {
            wakers[slot].wake_by_ref();
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let mut slots = Vec::new();
        woken.listen(&Waker::from(count.clone()));
        woken.drain(|slot| slots.push(slot));
        assert_eq!(slots, [0, 64, 129]);
        wakers[5].wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn wake_before_first_poll_is_kept() {
        let woken = WokenSlots::new(1);
        wakers(&woken, 1)[0].wake_by_ref();
        woken.listen(Waker::noop());
        let mut slots = Vec::new();
        woken.drain(|slot| slots.push(slot));
        assert_eq!(slots, [0]);
    }
}
