//! Bandwidth limit: who may send to a peer, and when.
//!
//! Guarantees:
//! - never faster than the limit over any interval, except for one write and for the compensation
//!   of late timers;
//! - writes of each class are sent in order of arrival, across all volumes and cores that share the
//!   limit. So an ordered write is never overtaken by a write that waits for it at the target;
//! - host writes have priority over a resync, but a resync gets at least a ninth, so that it
//!   completes;
//! - while anything waits, exactly one entry is next, which depends only on the queues, not on
//!   the time. Only the next entry arms a timer. Whatever changes the next entry (a grant or a
//!   cancellation) wakes the new one.

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
    /// that they are not needed any more. `gone` is evaluated at least every
    /// [`SESSION_CHECK_NS`] for the next entry, and for all after [`Bandwidth::recheck`]. The
    /// request is queued at the first poll.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        class: TrafficClass,
        bytes: u64,
        gone: impl Fn() -> bool,
    ) -> bool {
        let number = self.schedule.lock().enter(class, bytes, time::now().as_nanos());
        let mut entry = QueuedSend { bandwidth: self.clone(), class, number, waits: true };
        let mut timer: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                if gone() {
                    return Poll::Ready(false);
                }
                let now = time::now().as_nanos();
                let decision = self.schedule.lock().ask(class, number, now, cx.waker());
                match decision {
                    SendDecision::Granted { next } => {
                        entry.waits = false;
                        next.into_iter().for_each(Waker::wake);
                        return Poll::Ready(true);
                    }
                    SendDecision::WaitForTurn => {
                        timer = None;
                        return Poll::Pending;
                    }
                    SendDecision::ArmTimer { at_ns } => {
                        let span = at_ns.saturating_sub(now).min(SESSION_CHECK_NS);
                        let timer = timer.insert(time::sleep(Duration::from_nanos(span)));
                        if Pin::new(timer).poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                    }
                }
            }
        })
        .await
    }

    /// Wakes all entries, so that each checks whether it is still needed. Called when a session has
    /// ended.
    pub(crate) fn recheck(&self) {
        let wakers = self.schedule.lock().all_wakers();
        wakers.into_iter().for_each(Waker::wake);
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
        if self.waits {
            let next = self.bandwidth.schedule.lock().leave(self.class, self.number);
            next.into_iter().for_each(Waker::wake);
        }
    }
}

/// Result of asking for permission.
#[derive(Debug)]
enum SendDecision {
    /// Permitted and charged. Wake the entry that is next now.
    Granted { next: Option<Waker> },
    /// The entry is next: ask again at this time.
    ArmTimer { at_ns: u64 },
    /// Another entry is next. The waker is woken when this one is.
    WaitForTurn,
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
    /// By increasing number, as is `resync`.
    hosts: VecDeque<QueuedWrite>,
    resync: VecDeque<QueuedWrite>,
    /// Bytes of hosts that were sent before the first waiting copy, since it became the first.
    passed_over_bytes: u64,
    next_number: u64,
}

impl SendSchedule {
    fn new(bytes_per_s: u64) -> SendSchedule {
        SendSchedule {
            bytes_per_s: bytes_per_s.max(1),
            idle_at_ns: 0,
            hosts: VecDeque::new(),
            resync: VecDeque::new(),
            passed_over_bytes: 0,
            next_number: 0,
        }
    }

    fn queue(&self, class: TrafficClass) -> &VecDeque<QueuedWrite> {
        match class {
            TrafficClass::Hosts => &self.hosts,
            TrafficClass::Resync => &self.resync,
        }
    }

    fn queue_mut(&mut self, class: TrafficClass) -> &mut VecDeque<QueuedWrite> {
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
        let number = self.next_number;
        self.next_number += 1;
        let entry = QueuedWrite { number, bytes, since_ns: now, waker: None };
        self.queue_mut(class).push_back(entry);
        number
    }

    /// The entry that is sent next.
    fn next(&self) -> Option<(TrafficClass, u64)> {
        let (hosts, resync) = (self.hosts.front(), self.resync.front());
        let share = |copy: &QueuedWrite| copy.bytes.saturating_mul(RESYNC_SHARE);
        let copies = resync.is_some_and(|copy| self.passed_over_bytes >= share(copy));
        let hosts = hosts.map(|write| (TrafficClass::Hosts, write.number));
        let resync = resync.map(|copy| (TrafficClass::Resync, copy.number));
        if copies { resync } else { hosts.or(resync) }
    }

    fn remove(&mut self, class: TrafficClass, number: u64) -> Option<QueuedWrite> {
        let queue = self.queue_mut(class);
        let at = queue.binary_search_by_key(&number, |entry| entry.number).ok()?;
        if class == TrafficClass::Resync && at == 0 {
            self.passed_over_bytes = 0;
        }
        self.queue_mut(class).remove(at)
    }

    /// The waker of the next entry, if another one was next `before`.
    fn waker_of_new_next(&self, before: Option<(TrafficClass, u64)>) -> Option<Waker> {
        let next = self.next().filter(|next| Some(*next) != before);
        next.and_then(|(class, _)| self.queue(class).front()?.waker.clone())
    }

    fn leave(&mut self, class: TrafficClass, number: u64) -> Option<Waker> {
        let before = self.next();
        self.remove(class, number)?;
        self.waker_of_new_next(before)
    }

    fn ask(&mut self, class: TrafficClass, number: u64, now: u64, waker: &Waker) -> SendDecision {
        let is_next = self.next() == Some((class, number));
        if is_next && now >= self.idle_at_ns {
            return SendDecision::Granted { next: self.grant(class, number, now) };
        }
        let queue = self.queue_mut(class);
        if let Ok(at) = queue.binary_search_by_key(&number, |entry| entry.number) {
            match &mut queue[at].waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        match is_next {
            true => SendDecision::ArmTimer { at_ns: self.idle_at_ns },
            false => SendDecision::WaitForTurn,
        }
    }

    /// Charges the next entry. Returns the waker of the one after it.
    fn grant(&mut self, class: TrafficClass, number: u64, now: u64) -> Option<Waker> {
        let entry = self.remove(class, number)?;
        if class == TrafficClass::Hosts && !self.resync.is_empty() {
            self.passed_over_bytes = self.passed_over_bytes.saturating_add(entry.bytes);
        }
        let late = now.saturating_sub(TIMER_SLACK_NS);
        let began = self.idle_at_ns.max(entry.since_ns).max(late);
        self.idle_at_ns = began.saturating_add(self.span_ns(entry.bytes));
        self.waker_of_new_next(Some((class, number)))
    }

    fn all_wakers(&self) -> Vec<Waker> {
        let entries = self.hosts.iter().chain(&self.resync);
        entries.filter_map(|entry| entry.waker.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use flagstone_runtime::sim::{SimConfig, Simulation};
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn is_granted(schedule: &mut SendSchedule, class: TrafficClass, number: u64, now: u64) -> bool {
        matches!(schedule.ask(class, number, now, Waker::noop()), SendDecision::Granted { .. })
    }

    /// Serves queued entries from `now` on, each at its time; returns when each was sent.
    fn serve(
        schedule: &mut SendSchedule,
        mut now: u64,
        until: u64,
    ) -> Vec<(u64, TrafficClass, u64)> {
        let mut went = Vec::new();
        loop {
            let Some((class, number)) = schedule.next() else { return went };
            let bytes = schedule.queue(class)[0].bytes;
            match schedule.ask(class, number, now, Waker::noop()) {
                SendDecision::Granted { .. } => went.push((now, class, bytes)),
                SendDecision::ArmTimer { at_ns } if at_ns <= until => now = at_ns,
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
        // An abandoned entry must not block the next one.
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

    /// A task on a busy core: it is polled some milliseconds after it was woken.
    struct Late<F> {
        work: Pin<Box<F>>,
        delay: Option<Sleep>,
    }

    impl<F: Future> Future for Late<F> {
        type Output = F::Output;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            let late =
                || time::sleep(Duration::from_micros(flagstone_runtime::random_u64() % 5000));
            if Pin::new(self.delay.get_or_insert_with(late)).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.delay = None;
            self.work.as_mut().poll(cx)
        }
    }

    /// Waiters of both classes arrive, are dropped and lose their sessions at random. Each waiter
    /// that stays is sent, no later than the link needs for everything that arrived.
    #[test]
    fn every_waiter_is_sent_despite_cancellation() {
        for seed in 0..200 {
            let sim = Simulation::new(seed, SimConfig::default());
            let node = sim.add_node("a");
            let bandwidth = Bandwidth::new(MIB);
            let (mut waiters, mut bytes_total) = (Vec::new(), 0);
            for _ in 0..sim.random_between(2, 60) {
                sim.run_for(sim.random_span(Duration::ZERO, Duration::from_millis(60)));
                let resync = sim.chance(0.3);
                let class = if resync { TrafficClass::Resync } else { TrafficClass::Hosts };
                let bytes = sim.random_between(1, 128 << 10);
                bytes_total += bytes;
                let (bandwidth, lost) = (bandwidth.clone(), Rc::new(Cell::new(false)));
                let session = lost.clone();
                let work = async move { bandwidth.acquire(class, bytes, || session.get()).await };
                let sent = sim.spawn_on(node, Late { work: Box::pin(work), delay: None });
                waiters.push((sent, lost));
                if sim.chance(0.3) {
                    let which = sim.random_between(0, waiters.len() as u64 - 1) as usize;
                    match sim.chance(0.5) {
                        true => waiters.swap_remove(which).0.abort(),
                        false => waiters[which].1.set(true),
                    }
                }
            }
            sim.run_for(Duration::from_nanos(bytes_total * SECOND / MIB + 2 * SECOND));
            let waiting = waiters.iter().filter(|(sent, _)| !sent.is_finished()).count();
            assert_eq!(waiting, 0, "seed {seed}: the link stands still");
        }
    }

    /// A task of the model below.
    struct Waiter {
        class: TrafficClass,
        number: u64,
        woken: Arc<AtomicBool>,
        timer_ns: Option<u64>,
    }

    impl Waiter {
        fn new(class: TrafficClass, number: u64) -> Waiter {
            Waiter { class, number, woken: Arc::default(), timer_ns: None }
        }
    }

    struct Flag(Arc<AtomicBool>);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Polls one task; true when it was granted.
    fn poll(schedule: &mut SendSchedule, waiter: &mut Waiter, now: u64) -> bool {
        waiter.woken.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::new(Flag(waiter.woken.clone())));
        waiter.timer_ns = None;
        match schedule.ask(waiter.class, waiter.number, now, &waker) {
            SendDecision::Granted { next } => {
                next.into_iter().for_each(Waker::wake);
                return true;
            }
            SendDecision::ArmTimer { at_ns } => waiter.timer_ns = Some(at_ns),
            SendDecision::WaitForTurn => {}
        }
        false
    }

    /// Polls every task that was woken or whose timer is due, starting with the `which`th. Then
    /// exactly one task has a timer, if any task waits.
    fn run_woken(
        schedule: &mut SendSchedule,
        waiters: &mut Vec<Waiter>,
        now: u64,
        which: usize,
    ) -> Result<(), TestCaseError> {
        let due = |waiter: &Waiter| {
            waiter.woken.load(Ordering::Relaxed) || waiter.timer_ns.is_some_and(|at| at <= now)
        };
        loop {
            let woken: Vec<usize> = (0..waiters.len()).filter(|at| due(&waiters[*at])).collect();
            let Some(at) = woken.get(which % woken.len().max(1)) else { break };
            if poll(schedule, &mut waiters[*at], now) {
                waiters.swap_remove(*at);
            }
        }
        let next = schedule.next();
        let armed = |waiter: &&Waiter| Some((waiter.class, waiter.number)) == next;
        let owner = waiters.iter().find(armed);
        prop_assert!(owner.is_none_or(|owner| owner.timer_ns.is_some()), "no timer is armed");
        prop_assert_eq!(owner.is_none(), waiters.is_empty());
        Ok(())
    }

    proptest! {
        /// For any interleaving of arrivals, cancellations and wake-ups, the next entry has an
        /// armed timer, and all entries are granted in the end.
        #[test]
        fn next_entry_always_has_a_timer(
            steps in prop::collection::vec((0u8..5, any::<usize>(), 1u64..4 * MIB), 1..120),
        ) {
            let mut schedule = SendSchedule::new(10 * MIB);
            let mut waiters: Vec<Waiter> = Vec::new();
            let mut now = 0;
            for (what, which, amount) in steps {
                match what {
                    0 | 1 => {
                        let class = [TrafficClass::Hosts, TrafficClass::Resync][usize::from(what)];
                        let number = schedule.enter(class, amount, now);
                        let mut waiter = Waiter::new(class, number);
                        if !poll(&mut schedule, &mut waiter, now) {
                            waiters.push(waiter);
                        }
                    }
                    2 if !waiters.is_empty() => {
                        let gone = waiters.swap_remove(which % waiters.len());
                        let next = schedule.leave(gone.class, gone.number);
                        next.into_iter().for_each(Waker::wake);
                    }
                    3 => now += amount * 100,
                    _ => run_woken(&mut schedule, &mut waiters, now, which)?,
                }
            }
            run_woken(&mut schedule, &mut waiters, now, 0)?;
            while let Some(at) = waiters.iter().filter_map(|waiter| waiter.timer_ns).max() {
                let before = waiters.len();
                now = now.max(at);
                run_woken(&mut schedule, &mut waiters, now, 0)?;
                prop_assert!(waiters.len() < before);
            }
            prop_assert!(waiters.is_empty());
        }

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
