//! Asynchronous events of one controller (Base 5.1.2): waiting requests, pending events, and events
//! masked until the host reads their log page.
//!
//! An event that the host has not enabled is discarded. A reported event stays masked until the
//! host reads its log page without "retain asynchronous event". Changes in between are part of that
//! log page, so none is lost.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use flagstone_nvme::command::Cqe;
use flagstone_nvme::event::{AsyncEvent, EventMask};
use flagstone_nvme::log::reservation::NotificationType;
use flagstone_nvme::log::{CHANGED_TOO_MANY, LogId, ReservationNotification};
use flagstone_nvme::status::Status;
use parking_lot::Mutex;

use crate::limits::{CHANGED_NAMESPACES, EVENT_REQUESTS};
use crate::reservation::NotificationLog;

/// Events that hosts enable with feature 0Bh.
const MASKED_EVENTS: [AsyncEvent; 3] =
    [AsyncEvent::NAMESPACE_CHANGED, AsyncEvent::ANA_CHANGED, AsyncEvent::DISCOVERY_CHANGED];

#[derive(Debug, Default)]
pub(super) struct Events(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    enabled: EventMask,
    /// Identifiers of waiting Asynchronous Event Requests; together with `done` at most
    /// EVENT_REQUESTS.
    requests: VecDeque<u16>,
    /// Completions that the admin connection has yet to send.
    done: VecDeque<Cqe>,
    /// Raised and unsent events, at most one of each kind.
    pending: VecDeque<AsyncEvent>,
    /// Log pages that are unread since their event was raised. Each kind of event has its own.
    unread: BTreeSet<LogId>,
    reservations: NotificationLog,
    changed: BTreeSet<u32>,
    changed_too_many: bool,
    waiting: Option<Waker>,
}

impl Events {
    pub(super) fn enabled(&self) -> EventMask {
        self.0.lock().enabled
    }

    /// Sets the enabled events. Unsent events of other kinds are dropped.
    pub(super) fn enable(&self, enabled: EventMask) {
        let mut state = self.0.lock();
        state.enabled = enabled;
        state.pending.retain(|event| event.mask().is_none_or(|bit| enabled.contains(bit)));
        let dropped = |event: &AsyncEvent| event.mask().is_some_and(|bit| !enabled.contains(bit));
        for event in MASKED_EVENTS.iter().filter(|event| dropped(event)) {
            state.unread.remove(&event.log);
        }
    }

    /// Parks an Asynchronous Event Request until there is an event.
    ///
    /// # Errors
    /// Asynchronous Event Request Limit Exceeded; Command ID Conflict.
    pub(super) fn wait_for_event(&self, cid: u16) -> Result<(), Status> {
        let mut state = self.0.lock();
        if state.requests.contains(&cid) {
            return Err(Status::COMMAND_ID_CONFLICT.dnr());
        }
        if state.requests.len() + state.done.len() >= EVENT_REQUESTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr());
        }
        state.requests.push_back(cid);
        let waker = state.deliver();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Completes a waiting request with Command Abort Requested. Returns false when it is not
    /// waiting.
    pub(super) fn abort(&self, cid: u16) -> bool {
        let mut state = self.0.lock();
        let Some(at) = state.requests.iter().position(|&requests| requests == cid) else {
            return false;
        };
        state.requests.remove(at);
        state.done.push_back(Cqe::new(cid, Status::ABORT_REQUESTED));
        let waker = state.waiting.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Raises an event, unless the host has disabled it or has not yet read the log page of the
    /// previous one.
    pub(super) fn raise(&self, event: AsyncEvent) {
        let mut state = self.0.lock();
        let waker = state.raise(event);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Adds a reservation notification, which the host did not mask, and raises the event.
    pub(super) fn reservation_changed(&self, nsid: u32, kind: NotificationType) {
        let mut state = self.0.lock();
        state.reservations.push(nsid, kind);
        let waker = state.raise(AsyncEvent::RESERVATION);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The oldest reservation notification, which is removed unless `retain` is set. If there are
    /// further ones, their event is raised then.
    pub(super) fn reservation_notification(&self, retain: bool) -> ReservationNotification {
        let mut state = self.0.lock();
        let page = state.reservations.first();
        if retain {
            return page;
        }
        state.reservations.pop();
        state.unmask(LogId::RESERVATION);
        let waker = match page.further {
            0 => None,
            _ => state.raise(AsyncEvent::RESERVATION),
        };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        page
    }

    /// Records that namespace `nsid` changed, and raises the event.
    pub(super) fn namespace_changed(&self, nsid: u32) {
        {
            let mut state = self.0.lock();
            if state.changed.len() < CHANGED_NAMESPACES {
                state.changed.insert(nsid);
            } else if !state.changed.contains(&nsid) {
                state.changed_too_many = true;
            }
        }
        self.raise(AsyncEvent::NAMESPACE_CHANGED);
    }

    /// Namespaces that changed since the last read, ascending; only `FFFFFFFFh` after an overflow.
    /// Clears the list unless `retain` is set.
    pub(super) fn changed_namespaces(&self, retain: bool) -> Vec<u32> {
        let mut state = self.0.lock();
        let list = if state.changed_too_many {
            vec![CHANGED_TOO_MANY]
        } else {
            state.changed.iter().copied().collect()
        };
        if !retain {
            state.changed.clear();
            state.changed_too_many = false;
            state.unmask(LogId::CHANGED_NAMESPACES);
        }
        list
    }

    /// The host read log page `log` without "retain asynchronous event". This unmasks its event and
    /// drops a pending one, which is out of date.
    pub(super) fn log_read(&self, log: LogId) {
        self.0.lock().unmask(log);
    }

    /// Clears all state for a controller reset.
    pub(super) fn reset(&self) {
        let mut state = self.0.lock();
        *state = State { waiting: state.waiting.take(), ..State::default() };
    }

    /// Waits for the next completion of an Asynchronous Event Request. Only one task may wait at a
    /// time, on any core.
    pub(super) async fn next(&self) -> Cqe {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Cqe> {
        let mut state = self.0.lock();
        if let Some(done) = state.done.pop_front() {
            return Poll::Ready(done);
        }
        if !state.waiting.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waiting = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// [`Events::next`] without waiting.
    #[cfg(test)]
    pub(super) fn try_next(&self) -> Option<Cqe> {
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }
}

impl State {
    /// Queues an event as [`Events::raise`] does, and returns the waiting task to wake.
    fn raise(&mut self, event: AsyncEvent) -> Option<Waker> {
        let enabled = event.mask().is_none_or(|bit| self.enabled.contains(bit));
        if !enabled || !self.unread.insert(event.log) {
            return None;
        }
        self.pending.push_back(event);
        self.deliver()
    }

    /// Pairs events with waiting requests, and returns the waiting task to wake.
    fn deliver(&mut self) -> Option<Waker> {
        while let (Some(event), Some(cid)) = (self.pending.front(), self.requests.front()) {
            let result = u64::from(event.to_result());
            self.done.push_back(Cqe::with_result(*cid, Status::SUCCESS, result));
            self.pending.pop_front();
            self.requests.pop_front();
        }
        if self.done.is_empty() { None } else { self.waiting.take() }
    }

    fn unmask(&mut self, log: LogId) {
        self.unread.remove(&log);
        self.pending.retain(|event| event.log != log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Events {
        let events = Events::default();
        let mask = EventMask::NAMESPACE_ATTRIBUTE.union(EventMask::ANA);
        events.enable(mask.union(EventMask::DISCOVERY));
        events
    }

    #[test]
    fn event_and_request_pair_in_either_order() {
        let events = all();
        events.wait_for_event(7).unwrap();
        assert_eq!(events.try_next(), None);
        events.namespace_changed(3);
        let sent = events.try_next().unwrap();
        assert_eq!((sent.cid.get(), sent.async_event()), (7, AsyncEvent::NAMESPACE_CHANGED));

        events.raise(AsyncEvent::ANA_CHANGED);
        assert_eq!(events.try_next(), None);
        events.wait_for_event(8).unwrap();
        assert_eq!(events.try_next().unwrap().async_event(), AsyncEvent::ANA_CHANGED);
    }

    #[test]
    fn event_masked_until_log_read() {
        let events = all();
        events.wait_for_event(1).unwrap();
        events.wait_for_event(2).unwrap();
        events.namespace_changed(3);
        assert_eq!(events.try_next().unwrap().cid.get(), 1);
        events.namespace_changed(4);
        assert_eq!(events.try_next(), None);
        assert_eq!(events.changed_namespaces(true), [3, 4]);
        events.namespace_changed(5);
        assert_eq!(events.try_next(), None);
        assert_eq!(events.changed_namespaces(false), [3, 4, 5]);
        assert!(events.changed_namespaces(false).is_empty());
        events.namespace_changed(6);
        assert_eq!(events.try_next().unwrap().cid.get(), 2);
    }

    #[test]
    fn log_read_drops_pending_event() {
        let events = all();
        events.raise(AsyncEvent::DISCOVERY_CHANGED);
        events.log_read(LogId::DISCOVERY);
        events.wait_for_event(1).unwrap();
        assert_eq!(events.try_next(), None);
    }

    #[test]
    fn disabled_events_are_dropped() {
        let events = Events::default();
        events.wait_for_event(1).unwrap();
        events.namespace_changed(1);
        assert_eq!(events.try_next(), None);
        assert_eq!(events.changed_namespaces(true), [1]);
        events.enable(EventMask::ANA);
        assert_eq!(events.try_next(), None);
        let events = all();
        events.raise(AsyncEvent::ANA_CHANGED);
        events.enable(EventMask::default());
        events.wait_for_event(1).unwrap();
        assert_eq!(events.try_next(), None);
    }

    #[test]
    fn event_requests_limited_and_abortable() {
        let events = all();
        for cid in 0..EVENT_REQUESTS as u16 {
            events.wait_for_event(cid).unwrap();
        }
        assert_eq!(events.wait_for_event(99), Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr()));
        assert_eq!(events.wait_for_event(0), Err(Status::COMMAND_ID_CONFLICT.dnr()));
        assert!(events.abort(2) && !events.abort(2));
        assert_eq!(events.wait_for_event(99), Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr()));
        let aborted = events.try_next().unwrap();
        assert_eq!((aborted.cid.get(), aborted.status()), (2, Status::ABORT_REQUESTED));
        events.wait_for_event(99).unwrap();
        events.reset();
        assert!(!events.abort(99));
    }

    #[test]
    fn reservation_event_repeats_until_log_is_empty() {
        let events = Events::default();
        for cid in 1..=3 {
            events.wait_for_event(cid).unwrap();
        }
        events.reservation_changed(1, NotificationType::REGISTRATION_PREEMPTED);
        events.reservation_changed(2, NotificationType::RESERVATION_RELEASED);
        assert_eq!(events.try_next().unwrap().async_event(), AsyncEvent::RESERVATION);
        assert_eq!(events.try_next(), None);
        let first = events.reservation_notification(true);
        assert_eq!((first.count.get(), first.nsid.get(), first.further), (1, 1, 1));
        assert_eq!(events.reservation_notification(false), first);
        assert_eq!(events.try_next().unwrap().async_event(), AsyncEvent::RESERVATION);
        let second = events.reservation_notification(false);
        assert_eq!((second.count.get(), second.nsid.get(), second.further), (2, 2, 0));
        assert_eq!(second.kind, NotificationType::RESERVATION_RELEASED.0);
        assert_eq!(events.reservation_notification(false), ReservationNotification::default());
        assert_eq!(events.try_next(), None);
    }

    #[test]
    fn changed_namespace_list_overflows() {
        let events = Events::default();
        for nsid in 1..=CHANGED_NAMESPACES as u32 {
            events.namespace_changed(nsid);
        }
        events.namespace_changed(1);
        assert_eq!(events.changed_namespaces(true).len(), CHANGED_NAMESPACES);
        events.namespace_changed(5000);
        assert_eq!(events.changed_namespaces(false), [CHANGED_TOO_MANY]);
        assert!(events.changed_namespaces(false).is_empty());
    }
}
