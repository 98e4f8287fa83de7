//! A limit that volumes and cores share, and the timer that serves those who wait for it.
//!
//! Promises:
//! - a command that may go at once takes a lock for some ten instructions, and nothing from the
//!   heap;
//! - while any wait, there is one timer, set to when the next of them may go (or, where many wait
//!   for a high rate, a few of them: see [`crate::limits::GATHER`]): it is a task on the
//!   core of one that waits, and ends with the last of them. If its core ends, another takes over;
//! - the lock is never held across an await, nor while anybody is woken;
//! - a future that is dropped gives back its place, and what it was charged if its turn had come.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use flagstone_runtime::time::{self, Sleep};
use flagstone_runtime::{spawn_detached, task};

use crate::limits::{OUTSIDE_PAUSE, OUTSIDE_PAUSE_MAX, WAKE_BATCH};
use crate::meter::{Class, Ticks, nanos, ticks};
use crate::rates::{ConfigError, Limit};
use crate::schedule::{Entered, Schedule};
use crate::waiting::{Request, Ticket};

/// A limit in force, for any number of volumes, on any number of cores. See the module's promises.
pub struct Limiter {
    state: Mutex<State>,
}

struct State {
    limit: Limit,
    schedule: Schedule,
    timer: Timer,
    passed: u64,
    delayed: u64,
}

/// Who looks after those who wait.
enum Timer {
    /// Nobody: none wait.
    None,
    /// It is about to look.
    Busy,
    /// It sleeps until then.
    Set { at: Ticks, waker: Waker },
}

/// How a limiter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Commands that wait now.
    pub waiting: usize,
    /// Flows (connections) that they belong to.
    pub waiting_flows: usize,
    /// Commands that went at once, since the start.
    pub passed: u64,
    /// Commands that had to wait, since the start.
    pub delayed: u64,
}

impl Limiter {
    /// A limiter with full buckets.
    ///
    /// # Errors
    /// As [`Limit::check`].
    pub fn new(limit: Limit) -> Result<Arc<Limiter>, ConfigError> {
        limit.check()?;
        let schedule = Schedule::new(&limit);
        let state = State { limit, schedule, timer: Timer::None, passed: 0, delayed: 0 };
        Ok(Arc::new(Limiter { state: Mutex::new(state) }))
    }

    /// The numbers in force.
    pub fn limit(&self) -> Limit {
        self.lock().limit
    }

    /// Takes other numbers at once, from a core of the runtime: commands that wait are scheduled
    /// anew. What was used and saved before counts on, at the new rates; a bucket that is new is
    /// full.
    ///
    /// # Errors
    /// As [`Limit::check`]; then nothing has changed.
    pub fn set(&self, limit: Limit) -> Result<(), ConfigError> {
        limit.check()?;
        let now = now();
        let mut state = self.lock();
        state.limit = limit;
        state.schedule.set(now, &limit);
        let timer = state.take_timer();
        drop(state);
        wake(timer);
        Ok(())
    }

    /// How it does.
    pub fn status(&self) -> Status {
        let state = self.lock();
        Status {
            waiting: state.schedule.waiting(),
            waiting_flows: state.schedule.waiting_flows(),
            passed: state.passed,
            delayed: state.delayed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in here leaves a schedule that is whole: its changes are not cut by calls out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a command of the running task's flow go now (`None`), or gives the place where it waits.
    pub(crate) fn enter(self: &Arc<Self>, class: Class, bytes: usize) -> Option<Place> {
        let request = Request { class, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
        let flow = task::flow();
        let ticket = self.ask(flow, request)?;
        Some(Place { limiter: self.clone(), flow, request, ticket })
    }

    /// `None` when the command goes; else its ticket, or none when it is to wait outside.
    fn ask(self: &Arc<Self>, flow: u64, request: Request) -> Option<Option<Ticket>> {
        let now = now();
        let mut state = self.lock();
        let ticket = match state.schedule.enter(now, flow, request) {
            Entered::Go => {
                state.passed += 1;
                return None;
            }
            Entered::Full => return Some(None),
            Entered::Wait(ticket) => ticket,
        };
        let mut woken = Woken::default();
        state.grant(now, &mut woken);
        let goes = state.schedule.is_granted(ticket);
        if goes {
            state.schedule.leave(ticket, true);
            state.passed += 1;
        } else {
            state.delayed += 1;
        }
        let start = state.needs_timer();
        let timer = state.timer_if_early();
        drop(state);
        woken.wake();
        wake(timer);
        if start {
            self.start_timer();
        }
        if goes { None } else { Some(Some(ticket)) }
    }

    fn start_timer(self: &Arc<Self>) {
        let mut duty = Duty { limiter: self.clone(), sleep: None, ended: false };
        spawn_detached(async move { poll_fn(|cx| duty.poll(cx)).await });
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limiter({:?})", self.limit())
    }
}

fn now() -> Ticks {
    ticks(time::now().as_nanos())
}

/// Wakers taken under the lock, to be woken without it.
#[derive(Default)]
struct Woken {
    wakers: [Option<Waker>; WAKE_BATCH],
    count: usize,
}

impl Woken {
    fn wake(&mut self) {
        self.wakers[..self.count].iter_mut().filter_map(Option::take).for_each(Waker::wake);
        self.count = 0;
    }
}

impl State {
    /// Lets commands go whose turn has come, as many as can be woken.
    fn grant(&mut self, now: Ticks, woken: &mut Woken) {
        while woken.count < WAKE_BATCH
            && let Some(ticket) = self.schedule.next(now)
        {
            // One that was not polled yet finds out when it is.
            if let Some(waker) = self.schedule.take_waker(ticket) {
                woken.wakers[woken.count] = Some(waker);
                woken.count += 1;
            }
        }
    }

    /// True when a timer has to be started, which the caller does then.
    fn needs_timer(&mut self) -> bool {
        let needed = self.schedule.waiting() > 0 && matches!(self.timer, Timer::None);
        if needed {
            self.timer = Timer::Busy;
        }
        needed
    }

    /// The timer, if it is to look before its time: someone may go earlier, or nobody waits, and it
    /// is to end.
    fn timer_if_early(&mut self) -> Option<Waker> {
        let due = self.schedule.alarm();
        match &self.timer {
            Timer::Set { at, .. } if due.is_none_or(|due| due < *at) => self.take_timer(),
            _ => None,
        }
    }

    /// The timer, to be woken, if it sleeps.
    fn take_timer(&mut self) -> Option<Waker> {
        if !matches!(self.timer, Timer::Set { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.timer, Timer::Busy) {
            Timer::Set { waker, .. } => Some(waker),
            Timer::None | Timer::Busy => None,
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The task that lets commands go when it is time.
struct Duty {
    limiter: Arc<Limiter>,
    sleep: Option<(Ticks, Sleep)>,
    ended: bool,
}

impl Duty {
    /// Ready when nobody waits any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut woken = Woken::default();
        loop {
            let now = now();
            let mut state = self.limiter.lock();
            state.grant(now, &mut woken);
            let Some(due) = state.schedule.due() else {
                state.timer = Timer::None;
                drop(state);
                self.ended = true;
                woken.wake();
                return Poll::Ready(());
            };
            let more = due <= now;
            let alarm = state.schedule.alarm().unwrap_or(due);
            if !more {
                state.timer = Timer::Set { at: alarm, waker: cx.waker().clone() };
            }
            drop(state);
            woken.wake();
            if more {
                continue;
            }
            if self.sleep.as_ref().is_none_or(|(at, _)| *at != alarm) {
                self.sleep = Some((alarm, time::sleep_until(time::now() + until(alarm))));
            }
            if let Some((_, sleep)) = &mut self.sleep
                && Pin::new(sleep).poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            self.sleep = None;
        }
    }
}

/// The span from now until a time.
fn until(at: Ticks) -> std::time::Duration {
    std::time::Duration::from_nanos(nanos(at).saturating_sub(time::now().as_nanos()))
}

impl Drop for Duty {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Its core ends while others go on: one of those who wait takes over.
        let mut state = self.limiter.lock();
        state.timer = Timer::None;
        let heir = state.schedule.any_waker();
        drop(state);
        wake(heir);
    }
}

/// A command's place among those who wait. Resolves when its turn has come.
pub(crate) struct Place {
    limiter: Arc<Limiter>,
    flow: u64,
    request: Request,
    /// None outside, and once it has gone.
    ticket: Option<Ticket>,
}

impl Place {
    /// Waits for the command's turn.
    pub(crate) async fn turn(mut self) {
        let mut pause = OUTSIDE_PAUSE;
        while self.ticket.is_none() {
            time::sleep(pause).await;
            pause = (pause * 2).min(OUTSIDE_PAUSE_MAX);
            match self.limiter.ask(self.flow, self.request) {
                None => return,
                Some(ticket) => self.ticket = ticket,
            }
        }
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.ticket else { return Poll::Ready(()) };
        let mut state = self.limiter.lock();
        if state.schedule.is_granted(ticket) {
            state.schedule.leave(ticket, true);
            self.ticket = None;
            return Poll::Ready(());
        }
        state.schedule.wait(ticket, cx.waker());
        let start = state.needs_timer();
        drop(state);
        if start {
            self.limiter.start_timer();
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.limiter.lock();
        state.schedule.leave(ticket, false);
        // What was given back may let another go earlier; or nobody is left; or the timer's core has
        // ended, and this was the heir.
        let alone = matches!(state.timer, Timer::None);
        let woken = if alone { state.schedule.any_waker() } else { state.timer_if_early() };
        drop(state);
        wake(woken);
    }
}
