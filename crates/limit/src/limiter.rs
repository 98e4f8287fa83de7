//! Limiter: a limit that volumes and cores share, and the timer that serves waiting commands.
//!
//! Invariants:
//! - a command that may start at once takes a lock for about ten instructions, and allocates
//!   nothing;
//! - while commands wait, there is one timer, set to the start of the next command (or of a few, if
//!   many wait for a high rate: see [`crate::limits::GATHER`]). It is a task on the core of a
//!   waiting command, and ends with the last of them. If its core ends, another core takes over;
//! - the lock is never held across an await, nor while a waker is called;
//! - dropping a future frees its place, and refunds its charge if it was granted.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use flagstone_runtime::time::{self, Backoff, Sleep};
use flagstone_runtime::{spawn_detached, task};
use parking_lot::Mutex;

use crate::limits::{OUTSIDE_PAUSE, OUTSIDE_PAUSE_MAX, WAKE_BATCH};
use crate::meter::{Class, MeterTime, nanos, ticks};
use crate::rates::{Limit, LimitError};
use crate::schedule::{ArrivalResult, Schedule};
use crate::waiting::{CommandTicket, LimitRequest};

/// A limit in force, for any number of volumes, on any number of cores.
#[derive(Debug)]
pub struct Limiter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: Limit,
    schedule: Schedule,
    timer: Timer,
    immediate: u64,
    delayed: u64,
}

#[derive(Debug)]
enum Timer {
    /// No timer: no commands wait.
    None,
    /// It is about to check the schedule.
    Busy,
    /// It sleeps until `at`.
    Set { at: MeterTime, waker: Waker },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterStatus {
    /// Commands that wait now.
    pub waiting: usize,
    /// Flows (connections) of these commands.
    pub waiting_flows: usize,
    /// Commands that started at once.
    pub immediate: u64,
    /// Commands that had to wait.
    pub delayed: u64,
}

impl Limiter {
    /// A limiter with full buckets.
    pub fn new(limit: Limit) -> Result<Arc<Limiter>, LimitError> {
        limit.check()?;
        let schedule = Schedule::new(&limit);
        let state = State { limit, schedule, timer: Timer::None, immediate: 0, delayed: 0 };
        Ok(Arc::new(Limiter { state: Mutex::new(state) }))
    }

    pub fn limit(&self) -> Limit {
        self.state.lock().limit
    }

    /// Changes the limit at once, on a core of the runtime: waiting commands are rescheduled. Debt
    /// and credit carry over at the new rates; a new bucket is full.
    ///
    /// # Errors
    /// The errors of [`Limit::check`]; the limit is then unchanged.
    pub fn set(&self, limit: Limit) -> Result<(), LimitError> {
        limit.check()?;
        let now = now();
        let mut state = self.state.lock();
        state.limit = limit;
        state.schedule.set(now, &limit);
        let timer = state.take_timer();
        drop(state);
        wake(timer);
        Ok(())
    }

    /// Current statistics.
    pub fn status(&self) -> LimiterStatus {
        let state = self.state.lock();
        LimiterStatus {
            waiting: state.schedule.waiting.count(),
            waiting_flows: state.schedule.flows.waiting(),
            immediate: state.immediate,
            delayed: state.delayed,
        }
    }

    /// Lets a command of the current flow start now (`None`), or returns its place in the queue.
    pub(crate) fn enter(self: &Arc<Self>, class: Class, bytes: usize) -> Option<QueuedCommand> {
        let request = LimitRequest { class, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
        let flow = task::flow();
        let ticket = self.ask(flow, request)?;
        Some(QueuedCommand { limiter: self.clone(), flow, request, ticket })
    }

    /// `None` if the command starts; otherwise its ticket, or none if it must wait outside the
    /// queue.
    fn ask(self: &Arc<Self>, flow: u64, request: LimitRequest) -> Option<Option<CommandTicket>> {
        let now = now();
        let mut state = self.state.lock();
        let ticket = match state.schedule.enter(now, flow, request) {
            ArrivalResult::Go => {
                state.immediate += 1;
                return None;
            }
            ArrivalResult::Full => return Some(None),
            ArrivalResult::Wait(ticket) => ticket,
        };
        let mut woken = Woken::default();
        state.grant(now, &mut woken);
        let goes = state.schedule.waiting.is_granted(ticket);
        if goes {
            state.schedule.leave(ticket, true);
            state.immediate += 1;
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

fn now() -> MeterTime {
    ticks(time::now().as_nanos())
}

/// Wakers taken under the lock, to be woken after its release.
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
    /// Grants commands whose turn has come, as many as can be woken at a time.
    fn grant(&mut self, now: MeterTime, woken: &mut Woken) {
        while woken.count < WAKE_BATCH
            && let Some(ticket) = self.schedule.next(now)
        {
            // A future that was not polled yet sees the grant when it is polled.
            if let Some(waker) = self.schedule.waiting.take_waker(ticket) {
                woken.wakers[woken.count] = Some(waker);
                woken.count += 1;
            }
        }
    }

    /// True if a timer must be started, which the caller then does.
    fn needs_timer(&mut self) -> bool {
        let needed = self.schedule.waiting.count() > 0 && matches!(self.timer, Timer::None);
        if needed {
            self.timer = Timer::Busy;
        }
        needed
    }

    /// The timer, if it must check before its time: a command may start earlier, or no commands
    /// wait and it must end.
    fn timer_if_early(&mut self) -> Option<Waker> {
        let due = self.schedule.alarm();
        match &self.timer {
            Timer::Set { at, .. } if due.is_none_or(|due| due < *at) => self.take_timer(),
            _ => None,
        }
    }

    /// The waker of the timer, if it sleeps.
    fn take_timer(&mut self) -> Option<Waker> {
        match std::mem::replace(&mut self.timer, Timer::Busy) {
            Timer::Set { waker, .. } => Some(waker),
            other => {
                self.timer = other;
                None
            }
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The task that grants commands on time.
struct Duty {
    limiter: Arc<Limiter>,
    sleep: Option<(MeterTime, Sleep)>,
    ended: bool,
}

impl Duty {
    /// Ready when no commands wait any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut woken = Woken::default();
        loop {
            let now = now();
            let mut state = self.limiter.state.lock();
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

/// Duration from now until `at`.
fn until(at: MeterTime) -> std::time::Duration {
    std::time::Duration::from_nanos(nanos(at).saturating_sub(time::now().as_nanos()))
}

impl Drop for Duty {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // This core ends while others continue: a waiting command takes the timer over.
        let mut state = self.limiter.state.lock();
        state.timer = Timer::None;
        let next = state.schedule.waiting.any_waker();
        drop(state);
        wake(next);
    }
}

/// A waiting command. Resolves at its turn.
pub(crate) struct QueuedCommand {
    limiter: Arc<Limiter>,
    flow: u64,
    request: LimitRequest,
    /// None while outside the queue, and after the start.
    ticket: Option<CommandTicket>,
}

impl QueuedCommand {
    /// Waits for the turn of the command.
    pub(crate) async fn turn(mut self) {
        let mut pauses = Backoff::new(OUTSIDE_PAUSE, OUTSIDE_PAUSE_MAX);
        while self.ticket.is_none() {
            time::sleep(pauses.advance()).await;
            match self.limiter.ask(self.flow, self.request) {
                None => return,
                Some(ticket) => self.ticket = ticket,
            }
        }
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.ticket else { return Poll::Ready(()) };
        let mut state = self.limiter.state.lock();
        if state.schedule.waiting.is_granted(ticket) {
            state.schedule.leave(ticket, true);
            self.ticket = None;
            return Poll::Ready(());
        }
        state.schedule.waiting.wait(ticket, cx.waker());
        let start = state.needs_timer();
        drop(state);
        if start {
            self.limiter.start_timer();
        }
        Poll::Pending
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.limiter.state.lock();
        state.schedule.leave(ticket, false);
        // The refund may let another command start earlier; or no command is left; or the core of
        // the timer has ended and this command was to take over.
        let alone = matches!(state.timer, Timer::None);
        let woken = if alone { state.schedule.waiting.any_waker() } else { state.timer_if_early() };
        drop(state);
        wake(woken);
    }
}
