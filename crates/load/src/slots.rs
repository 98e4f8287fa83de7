//! Wake-ups of a lane's slots: one waker a slot, made once, and a bit set that says which slots
//! woke. However many I/Os complete before the lane runs, the lane's task is woken once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// The slots of a lane that have something to be polled for. Wakers may run on any thread.
#[derive(Debug)]
pub(crate) struct Woken {
    bits: Vec<AtomicU64>,
    /// The lane's task has been woken since it last looked.
    told: AtomicBool,
    lane: Mutex<Option<Waker>>,
}

impl Woken {
    pub(crate) fn new(slots: usize) -> Arc<Woken> {
        let bits = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Woken { bits, told: AtomicBool::new(false), lane: Mutex::new(None) })
    }

    /// Has the lane polled, though no slot woke.
    pub(crate) fn kick(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(lane) = &*lane {
                lane.wake_by_ref();
            }
        }
    }

    /// To be called first at each poll of the lane: later wake-ups wake `lane` again.
    pub(crate) fn listen(&self, lane: &Waker) {
        let mut known = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some(known) => known.clone_from(lane),
            None => *known = Some(lane.clone()),
        }
        drop(known);
        self.told.swap(false, Ordering::AcqRel);
    }

    /// Hands out the slots that woke since the last call.
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
    woken: Arc<Woken>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.bits[self.slot / 64].fetch_or(1 << (self.slot % 64), Ordering::AcqRel);
        self.woken.kick();
    }
}

/// One waker for each slot.
pub(crate) fn wakers(woken: &Arc<Woken>, slots: usize) -> Vec<Waker> {
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
    fn many_slots_wake_the_lane_once() {
        let count = Arc::new(Count::default());
        let woken = Woken::new(130);
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
    fn a_wake_before_the_first_poll_is_kept() {
        let woken = Woken::new(1);
        wakers(&woken, 1)[0].wake_by_ref();
        woken.listen(Waker::noop());
        let mut slots = Vec::new();
        woken.drain(|slot| slots.push(slot));
        assert_eq!(slots, [0]);
    }
}
