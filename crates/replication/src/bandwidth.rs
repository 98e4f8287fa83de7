//! A cap on what is sent to a peer: who may send, and when.
//!
//! Promises:
//! - never faster than the cap over any stretch of time, but for one write, and for what goes early
//!   to make up for timers that were late;
//! - of each kind in the order of asking, across all volumes and cores that share the cap: so an
//!   ordered write is never passed by one that waits for it at the target;
//! - what hosts wait for goes before what a resync copies; but a resync has a ninth at least, so that
//!   it ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_runtime::time::{self, Sleep};

use crate::limits::{RESYNC_SHARE, TURN_LATE_NS, TURN_LOOK_NS};

/// Why something is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A host wrote it.
    Hosts,
    /// A resync copies it.
    Resync,
}

/// A cap that all volumes share that are mirrored to one peer.
#[derive(Debug)]
pub struct Bandwidth {
    bytes_per_s: u64,
    turns: Mutex<Turns>,
}

impl Bandwidth {
    /// At most so many bytes a second, from 1.
    pub fn new(bytes_per_s: u64) -> Arc<Bandwidth> {
        let turns = Mutex::new(Turns::new(bytes_per_s));
        Arc::new(Bandwidth { bytes_per_s, turns })
    }

    /// The cap, in bytes a second.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` may be sent. False when `gone` says that nobody wants that any more: then
    /// nothing is charged. It is in the queue as soon as this is polled once.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        class: Class,
        bytes: u64,
        gone: impl Fn() -> bool,
    ) -> bool {
        let number = self.lock().enter(class, bytes, time::now().as_nanos());
        let mut place = Place { bandwidth: self.clone(), class, number, waits: true };
        let mut pause: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                if gone() {
                    return Poll::Ready(false);
                }
                let now = time::now().as_nanos();
                match self.lock().ask(class, number, now, cx.waker()) {
                    Answer::Go => {
                        place.waits = false;
                        return Poll::Ready(true);
                    }
                    Answer::Wait => return Poll::Pending,
                    Answer::At(then) => {
                        let span = then.saturating_sub(now).min(TURN_LOOK_NS);
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

/// A place in the queue, given up also when what waits is dropped.
struct Place {
    bandwidth: Arc<Bandwidth>,
    class: Class,
    number: u64,
    waits: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut turns = self.bandwidth.lock();
        if self.waits {
            turns.leave(self.class, self.number);
        }
        // Who is the first now looks when its time comes.
        let next = turns.firsts();
        drop(turns);
        next.into_iter().flatten().for_each(Waker::wake);
    }
}

/// What becomes of one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It goes, and was charged for.
    Go,
    /// Ask again then, in ns.
    At(u64),
    /// Ask again when the waker is woken.
    Wait,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    bytes: u64,
    since_ns: u64,
    waker: Option<Waker>,
}

/// The order of turns. Pure: time is an argument.
#[derive(Debug)]
struct Turns {
    bytes_per_s: u64,
    /// All that went has gone by then.
    free_ns: u64,
    hosts: VecDeque<Waiting>,
    resync: VecDeque<Waiting>,
    /// When a copy went last.
    copied_ns: u64,
    next: u64,
}

impl Turns {
    fn new(bytes_per_s: u64) -> Turns {
        Turns {
            bytes_per_s: bytes_per_s.max(1),
            free_ns: 0,
            hosts: VecDeque::new(),
            resync: VecDeque::new(),
            copied_ns: 0,
            next: 0,
        }
    }

    fn lane(&mut self, class: Class) -> &mut VecDeque<Waiting> {
        match class {
            Class::Hosts => &mut self.hosts,
            Class::Resync => &mut self.resync,
        }
    }

    /// How long the link is busy with so many bytes, in ns.
    fn span_ns(&self, bytes: u64) -> u64 {
        let span = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        u64::try_from(span).unwrap_or(u64::MAX)
    }

    fn enter(&mut self, class: Class, bytes: u64, now: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.lane(class).push_back(Waiting { number, bytes, since_ns: now, waker: None });
        number
    }

    fn leave(&mut self, class: Class, number: u64) {
        self.lane(class).retain(|waiting| waiting.number != number);
    }

    /// Whose turn it is.
    fn whose(&self, now: u64) -> Class {
        match (self.hosts.front(), self.resync.front()) {
            (None, Some(_)) => Class::Resync,
            (Some(_), Some(copy)) => {
                let waits_since = copy.since_ns.max(self.copied_ns);
                let patience = self.span_ns(copy.bytes).saturating_mul(RESYNC_SHARE);
                match now >= waits_since.saturating_add(patience) {
                    true => Class::Resync,
                    false => Class::Hosts,
                }
            }
            (_, None) => Class::Hosts,
        }
    }

    fn ask(&mut self, class: Class, number: u64, now: u64, waker: &Waker) -> Answer {
        let free_ns = self.free_ns;
        let mine = now >= free_ns && self.whose(now) == class;
        let lane = self.lane(class);
        let first = lane.front().is_some_and(|waiting| waiting.number == number);
        if !(first && mine) {
            let place = lane.iter_mut().find(|waiting| waiting.number == number);
            let Some(waiting) = place else { return Answer::Go };
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            return if first && now < free_ns { Answer::At(free_ns) } else { Answer::Wait };
        }
        let Some(Waiting { bytes, since_ns, .. }) = lane.pop_front() else { return Answer::Go };
        let began = free_ns.max(since_ns).max(now.saturating_sub(TURN_LATE_NS));
        self.free_ns = began.saturating_add(self.span_ns(bytes));
        if class == Class::Resync {
            self.copied_ns = now;
        }
        Answer::Go
    }

    /// The wakers of the first of each kind.
    fn firsts(&mut self) -> [Option<Waker>; 2] {
        [&mut self.hosts, &mut self.resync].map(|lane| lane.front_mut()?.waker.take())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn goes(turns: &mut Turns, class: Class, number: u64, now: u64) -> bool {
        turns.ask(class, number, now, Waker::noop()) == Answer::Go
    }

    /// Serves what waits from `now` on, each when its time comes; gives when each went.
    fn serve(turns: &mut Turns, mut now: u64, until: u64) -> Vec<(u64, Class, u64)> {
        let mut went = Vec::new();
        loop {
            let class = turns.whose(now.max(turns.free_ns));
            let Some(first) = turns.lane(class).front() else { return went };
            let (number, bytes) = (first.number, first.bytes);
            match turns.ask(class, number, now, Waker::noop()) {
                Answer::Go => went.push((now, class, bytes)),
                Answer::At(then) if then <= until => now = then,
                _ => return went,
            }
        }
    }

    #[test]
    fn one_after_the_other_at_the_rate_and_idle_time_is_not_saved_up() {
        let mut turns = Turns::new(10 * MIB);
        for _ in 0..101 {
            turns.enter(Class::Hosts, MIB, 0);
        }
        let went = serve(&mut turns, 0, 100 * SECOND);
        assert_eq!(went.len(), 101);
        assert!(went.windows(2).all(|pair| pair[1].0 - pair[0].0 == SECOND / 10));
        let late = turns.enter(Class::Hosts, MIB, 100 * SECOND);
        assert!(goes(&mut turns, Class::Hosts, late, 100 * SECOND));
        let next = turns.enter(Class::Hosts, MIB, 100 * SECOND);
        assert!(!goes(&mut turns, Class::Hosts, next, 100 * SECOND + SECOND / 11));
        assert!(goes(&mut turns, Class::Hosts, next, 100 * SECOND + SECOND / 10));
    }

    #[test]
    fn nobody_passes_another_of_its_kind() {
        let mut turns = Turns::new(MIB);
        let first = turns.enter(Class::Hosts, MIB, 0);
        assert!(goes(&mut turns, Class::Hosts, first, 0));
        let [second, third] = [0, 1].map(|_| turns.enter(Class::Hosts, 1, 0));
        assert!(!goes(&mut turns, Class::Hosts, third, 2 * SECOND));
        // One that gives up lets the next go.
        turns.leave(Class::Hosts, second);
        assert!(goes(&mut turns, Class::Hosts, third, 2 * SECOND));
    }

    #[test]
    fn hosts_go_before_a_resync_which_has_a_ninth() {
        let mut turns = Turns::new(10 * MIB);
        for _ in 0..10 {
            turns.enter(Class::Resync, MIB, 0);
        }
        for _ in 0..400 {
            turns.enter(Class::Hosts, MIB / 4, 0);
        }
        let went = serve(&mut turns, 0, 9 * SECOND);
        let bytes = |class: Class| -> u64 {
            went.iter().filter(|(_, of, _)| *of == class).map(|(.., bytes)| bytes).sum()
        };
        assert_eq!(went[0].1, Class::Hosts);
        let (hosts, resync) = (bytes(Class::Hosts), bytes(Class::Resync));
        assert!(hosts + resync >= 90 * MIB && hosts >= 80 * MIB, "{hosts} {resync}");
        assert!(resync >= 9 * MIB, "{resync}");
        // Alone it has all.
        let mut turns = Turns::new(10 * MIB);
        for _ in 0..20 {
            turns.enter(Class::Resync, MIB, 0);
        }
        assert_eq!(serve(&mut turns, 0, SECOND).len(), 11);
    }

    proptest! {
        /// Whenever and however much is asked for, and however late timers are: between any two that
        /// go there is no more than the rate, but for the last one and what timers made up for.
        #[test]
        fn the_cap_holds_over_any_stretch(
            asked in prop::collection::vec((0u64..SECOND, 1u64..4 * MIB, any::<bool>(), 0u64..20_000_000), 1..60),
        ) {
            let mut turns = Turns::new(10 * MIB);
            let mut now = 0;
            let mut went = Vec::new();
            for (pause, bytes, resync, late) in asked {
                now += pause / 16;
                let class = if resync { Class::Resync } else { Class::Hosts };
                turns.enter(class, bytes, now);
                for (at, _, bytes) in serve(&mut turns, now + late, now + late) {
                    went.push((at, bytes));
                }
                now += late;
            }
            went.extend(serve(&mut turns, now, u64::MAX).iter().map(|(at, _, bytes)| (*at, *bytes)));
            prop_assert!(turns.hosts.is_empty() && turns.resync.is_empty());
            for begin in 0..went.len() {
                let mut sum = 0;
                for end in begin..went.len() {
                    let span = went[end].0 - went[begin].0 + TURN_LATE_NS;
                    // Each is rounded down to a nanosecond.
                    let most = u128::from(span + 100) * u128::from(10 * MIB) / u128::from(SECOND);
                    prop_assert!(u128::from(sum) <= most + 1, "{sum} in {span} ns");
                    sum += went[end].1;
                }
            }
        }
    }
}
