//! Bandwidth limit: who may send to a peer, and when.
//!
//! Guarantees:
//! - never faster than the limit over any interval, except for one write and for the compensation
//!   of late timers;
//! - writes of each class are sent in order of arrival, across all volumes and cores that share the
//!   limit. So an ordered write is never overtaken by a write that waits for it at the target;
//! - host writes have priority over a resync, but a resync gets at least a ninth, so that it
//!   completes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_runtime::time::{self, Sleep};
use parking_lot::Mutex;

use crate::limits::{RESYNC_SHARE, SESSION_CHECK_NS, TIMER_SLACK_NS};

/// Why data is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrafficClass {
    Hosts,
    Resync,
}

/// A limit shared by all volumes that are mirrored to one peer.
#[derive(Debug)]
pub struct Bandwidth {
    bytes_per_s: u64,
    schedule: Mutex<SendSchedule>,
}

impl Bandwidth {
    /// A limit of `bytes_per_s`, at least 1.
    pub fn new(bytes_per_s: u64) -> Arc<Bandwidth> {
        let schedule = Mutex::new(SendSchedule::new(bytes_per_s));
        Arc::new(Bandwidth { bytes_per_s, schedule })
    }

    /// The limit, in bytes per second.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Waits until `bytes` may be sent. Returns false, without charging them, when `gone` reports
    /// that they are not needed any more. The request is queued at the first poll.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        class: TrafficClass,
        bytes: u64,
        gone: impl Fn() -> bool,
    ) -> bool {
        let number = self.schedule.lock().enter(class, bytes, time::now().as_nanos());
        let mut entry = QueuedSend { bandwidth: self.clone(), class, number, waits: true };
        let mut pause: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                if gone() {
                    return Poll::Ready(false);
                }
                let now = time::now().as_nanos();
                match self.schedule.lock().ask(class, number, now, cx.waker()) {
                    SendDecision::Granted => {
                        entry.waits = false;
                        return Poll::Ready(true);
                    }
                    SendDecision::WaitForWaker => return Poll::Pending,
                    SendDecision::RetryAt(then) => {
                        let span = then.saturating_sub(now).min(SESSION_CHECK_NS);
                        let pause = pause.insert(time::sleep(Duration::from_nanos(span)));
                        if Pin::new(pause).poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                    }
                }
            }
        })
        .await
    }
}

/// An entry in the queue, which is removed on drop.
struct QueuedSend {
    bandwidth: Arc<Bandwidth>,
    class: TrafficClass,
    number: u64,
    waits: bool,
}

impl Drop for QueuedSend {
    fn drop(&mut self) {
        let mut schedule = self.bandwidth.schedule.lock();
        if self.waits {
            schedule.leave(self.class, self.number);
        }
        // The new first entry checks when its time comes.
        let next = schedule.wake_heads();
        drop(schedule);
        next.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Result of asking for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendDecision {
    /// Permitted and charged.
    Granted,
    /// Ask again at this time, in ns.
    RetryAt(u64),
    /// Ask again when the waker is woken.
    WaitForWaker,
}

#[derive(Debug)]
struct QueuedWrite {
    number: u64,
    bytes: u64,
    since_ns: u64,
    waker: Option<Waker>,
}

/// The order of sending. Pure: time is an argument.
#[derive(Debug)]
struct SendSchedule {
    bytes_per_s: u64,
    /// The link is idle from this time on.
    idle_at_ns: u64,
    hosts: VecDeque<QueuedWrite>,
    resync: VecDeque<QueuedWrite>,
    /// When a copy of a resync was sent last.
    copied_ns: u64,
    next: u64,
}

impl SendSchedule {
    fn new(bytes_per_s: u64) -> SendSchedule {
        SendSchedule {
            bytes_per_s: bytes_per_s.max(1),
            idle_at_ns: 0,
            hosts: VecDeque::new(),
            resync: VecDeque::new(),
            copied_ns: 0,
            next: 0,
        }
    }

    fn queue_of(&mut self, class: TrafficClass) -> &mut VecDeque<QueuedWrite> {
        match class {
            TrafficClass::Hosts => &mut self.hosts,
            TrafficClass::Resync => &mut self.resync,
        }
    }

    /// Time that the link needs for `bytes`, in ns.
    fn span_ns(&self, bytes: u64) -> u64 {
        let span = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        u64::try_from(span).unwrap_or(u64::MAX)
    }

    fn enter(&mut self, class: TrafficClass, bytes: u64, now: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.queue_of(class).push_back(QueuedWrite { number, bytes, since_ns: now, waker: None });
        number
    }

    fn leave(&mut self, class: TrafficClass, number: u64) {
        self.queue_of(class).retain(|waiting| waiting.number != number);
    }

    fn next_class(&self, now: u64) -> TrafficClass {
        match (self.hosts.front(), self.resync.front()) {
            (None, Some(_)) => TrafficClass::Resync,
            (Some(_), Some(copy)) => {
                let waits_since = copy.since_ns.max(self.copied_ns);
                let patience = self.span_ns(copy.bytes).saturating_mul(RESYNC_SHARE);
                match now >= waits_since.saturating_add(patience) {
                    true => TrafficClass::Resync,
                    false => TrafficClass::Hosts,
                }
            }
            (_, None) => TrafficClass::Hosts,
        }
    }

    fn ask(&mut self, class: TrafficClass, number: u64, now: u64, waker: &Waker) -> SendDecision {
        let idle_at_ns = self.idle_at_ns;
        let mine = now >= idle_at_ns && self.next_class(now) == class;
        let queue = self.queue_of(class);
        let first = queue.front().is_some_and(|waiting| waiting.number == number);
        if !(first && mine) {
            let entry = queue.iter_mut().find(|waiting| waiting.number == number);
            let Some(waiting) = entry else { return SendDecision::Granted };
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            return if first && now < idle_at_ns {
                SendDecision::RetryAt(idle_at_ns)
            } else {
                SendDecision::WaitForWaker
            };
        }
        let Some(QueuedWrite { bytes, since_ns, .. }) = queue.pop_front() else {
            return SendDecision::Granted;
        };
        let began = idle_at_ns.max(since_ns).max(now.saturating_sub(TIMER_SLACK_NS));
        self.idle_at_ns = began.saturating_add(self.span_ns(bytes));
        if class == TrafficClass::Resync {
            self.copied_ns = now;
        }
        SendDecision::Granted
    }

    /// The wakers of the first entry of each class.
    fn wake_heads(&mut self) -> [Option<Waker>; 2] {
        [&mut self.hosts, &mut self.resync].map(|queue| queue.front_mut()?.waker.take())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn is_granted(schedule: &mut SendSchedule, class: TrafficClass, number: u64, now: u64) -> bool {
        schedule.ask(class, number, now, Waker::noop()) == SendDecision::Granted
    }

    /// Serves queued entries from `now` on, each at its time; returns when each was sent.
    fn serve(
        schedule: &mut SendSchedule,
        mut now: u64,
        until: u64,
    ) -> Vec<(u64, TrafficClass, u64)> {
        let mut went = Vec::new();
        loop {
            let class = schedule.next_class(now.max(schedule.idle_at_ns));
            let Some(first) = schedule.queue_of(class).front() else { return went };
            let (number, bytes) = (first.number, first.bytes);
            match schedule.ask(class, number, now, Waker::noop()) {
                SendDecision::Granted => went.push((now, class, bytes)),
                SendDecision::RetryAt(then) if then <= until => now = then,
                _ => return went,
            }
        }
    }

    #[test]
    fn writes_are_paced_and_idle_time_is_not_saved() {
        let mut schedule = SendSchedule::new(10 * MIB);
        for _ in 0..101 {
            schedule.enter(TrafficClass::Hosts, MIB, 0);
        }
        let went = serve(&mut schedule, 0, 100 * SECOND);
        assert_eq!(went.len(), 101);
        assert!(went.windows(2).all(|pair| pair[1].0 - pair[0].0 == SECOND / 10));
        let late = schedule.enter(TrafficClass::Hosts, MIB, 100 * SECOND);
        assert!(is_granted(&mut schedule, TrafficClass::Hosts, late, 100 * SECOND));
        let next = schedule.enter(TrafficClass::Hosts, MIB, 100 * SECOND);
        assert!(!is_granted(&mut schedule, TrafficClass::Hosts, next, 100 * SECOND + SECOND / 11));
        assert!(is_granted(&mut schedule, TrafficClass::Hosts, next, 100 * SECOND + SECOND / 10));
    }

    #[test]
    fn each_class_is_sent_in_order() {
        let mut schedule = SendSchedule::new(MIB);
        let first = schedule.enter(TrafficClass::Hosts, MIB, 0);
        assert!(is_granted(&mut schedule, TrafficClass::Hosts, first, 0));
        let [second, third] = [0, 1].map(|_| schedule.enter(TrafficClass::Hosts, 1, 0));
        assert!(!is_granted(&mut schedule, TrafficClass::Hosts, third, 2 * SECOND));
        // An entry that is abandoned lets the next one go.
        schedule.leave(TrafficClass::Hosts, second);
        assert!(is_granted(&mut schedule, TrafficClass::Hosts, third, 2 * SECOND));
    }

    #[test]
    fn hosts_have_priority_and_resync_gets_a_ninth() {
        let mut schedule = SendSchedule::new(10 * MIB);
        for _ in 0..10 {
            schedule.enter(TrafficClass::Resync, MIB, 0);
        }
        for _ in 0..400 {
            schedule.enter(TrafficClass::Hosts, MIB / 4, 0);
        }
        let went = serve(&mut schedule, 0, 9 * SECOND);
        let bytes = |class: TrafficClass| -> u64 {
            went.iter().filter(|(_, of, _)| *of == class).map(|(.., bytes)| bytes).sum()
        };
        assert_eq!(went[0].1, TrafficClass::Hosts);
        let (hosts, resync) = (bytes(TrafficClass::Hosts), bytes(TrafficClass::Resync));
        assert!(hosts + resync >= 90 * MIB && hosts >= 80 * MIB, "{hosts} {resync}");
        assert!(resync >= 9 * MIB, "{resync}");
        // A resync without host writes gets everything.
        let mut schedule = SendSchedule::new(10 * MIB);
        for _ in 0..20 {
            schedule.enter(TrafficClass::Resync, MIB, 0);
        }
        assert_eq!(serve(&mut schedule, 0, SECOND).len(), 11);
    }

    proptest! {
        /// For any requests and any lateness of timers: between any two sends there is no more data
        /// than the limit allows, except for the last one and the compensation.
        #[test]
        fn limit_holds_over_any_interval(
            asked in prop::collection::vec((0u64..SECOND, 1u64..4 * MIB, any::<bool>(), 0u64..20_000_000), 1..60),
        ) {
            let mut schedule = SendSchedule::new(10 * MIB);
            let mut now = 0;
            let mut went = Vec::new();
            for (pause, bytes, resync, late) in asked {
                now += pause / 16;
                let class = if resync { TrafficClass::Resync } else { TrafficClass::Hosts };
                schedule.enter(class, bytes, now);
                for (at, _, bytes) in serve(&mut schedule, now + late, now + late) {
                    went.push((at, bytes));
                }
                now += late;
            }
            went.extend(serve(&mut schedule, now, u64::MAX).iter().map(|(at, _, bytes)| (*at, *bytes)));
            prop_assert!(schedule.hosts.is_empty() && schedule.resync.is_empty());
            for begin in 0..went.len() {
                let mut sum = 0;
                for end in begin..went.len() {
                    let span = went[end].0 - went[begin].0 + TIMER_SLACK_NS;
                    // Each is rounded down to a nanosecond.
                    let most = u128::from(span + 100) * u128::from(10 * MIB) / u128::from(SECOND);
                    prop_assert!(u128::from(sum) <= most + 1, "{sum} in {span} ns");
                    sum += went[end].1;
                }
            }
        }
    }
}
