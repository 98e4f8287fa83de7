//! Requests of one core's connection, from the call to the outcome. A request keeps its slot, and
//! so its buffer, across any number of connections.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use flagstone_blockdev::IoError;
use flagstone_runtime::{Buf, BufMut};

use crate::client::coverage::Coverage;
use crate::wire::Errno;
use crate::wire::request::{Cookie, Request};

/// A request's buffer, while it is under way.
pub(crate) enum Data {
    Nothing,
    Write(Buf),
    Read(BufMut),
}

/// What becomes of a request: a read's buffer, or nothing.
pub(crate) type Done = Result<Option<BufMut>, IoError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Waits to be sent, for the first time or again.
    Queued,
    /// On the wire.
    Sent,
    Done,
}

pub(crate) struct Slot {
    state: State,
    generation: u32,
    /// Order of the calls, kept when requests are sent again.
    serial: u64,
    /// The cookie names slot and generation.
    pub(crate) request: Request,
    pub(crate) data: Data,
    pub(crate) coverage: Coverage,
    /// The first error chunk of the reply.
    pub(crate) error: Option<Errno>,
    outcome: Option<Done>,
    waker: Option<Waker>,
    /// Nobody waits for the outcome any more.
    abandoned: bool,
    /// Clock of the call and of the last sending, in ticks.
    born: u32,
    sent: u32,
}

/// All requests of one connection.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    on_wire: usize,
    next_serial: u64,
}

impl Slots {
    /// Takes a request; its cookie is chosen here. Returns its slot.
    pub(crate) fn insert(&mut self, mut request: Request, data: Data, now: u32) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::empty());
            self.slots.len() as u32 - 1
        });
        self.next_serial += 1;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        request.cookie = Cookie(u64::from(slot.generation) << 32 | u64::from(index));
        slot.state = State::Queued;
        slot.serial = self.next_serial;
        slot.request = request;
        slot.data = data;
        slot.born = now;
        slot.abandoned = false;
        self.queue.push_back(index);
        index
    }

    /// Requests that are not done.
    pub(crate) fn unfinished(&self) -> usize {
        self.queue.len() + self.on_wire
    }

    pub(crate) fn on_wire(&self) -> usize {
        self.on_wire
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next request to send; it counts as sent from now on.
    pub(crate) fn next_to_send(&mut self, now: u32) -> Option<&Slot> {
        let index = self.queue.pop_front()?;
        self.on_wire += 1;
        let slot = &mut self.slots[index as usize];
        slot.state = State::Sent;
        slot.sent = now;
        slot.error = None;
        slot.coverage.clear();
        Some(slot)
    }

    /// The request on the wire that a reply names, if there is one.
    pub(crate) fn find(&mut self, cookie: Cookie) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(cookie.0 as u32 as usize)?;
        (slot.state == State::Sent && slot.request.cookie == cookie).then_some(slot)
    }

    /// Ends the request on the wire that `cookie` names.
    pub(crate) fn finish(&mut self, cookie: Cookie, result: Result<(), IoError>) {
        let Some(slot) = self.find(cookie) else { return };
        slot.end(result);
        let abandoned = slot.abandoned;
        self.on_wire -= 1;
        if abandoned {
            self.release(cookie.0 as u32);
        }
    }

    /// The outcome of a slot's request.
    pub(crate) fn poll(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<Done> {
        let slot = &mut self.slots[index as usize];
        if let Some(outcome) = slot.outcome.take() {
            self.release(index);
            return Poll::Ready(outcome);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Nobody waits for a slot any more; its request goes on.
    pub(crate) fn abandon(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.abandoned = true;
        slot.waker = None;
        if slot.state == State::Done {
            self.release(index);
        }
    }

    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.data = Data::Nothing;
        slot.outcome = None;
        self.free.push(index);
    }

    /// The connection is gone: what was on the wire is to be sent again, before what waits, in the
    /// order of the calls.
    pub(crate) fn requeue(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.state == State::Sent {
                slot.state = State::Queued;
                self.queue.push_back(index as u32);
            }
        }
        self.on_wire = 0;
        let slots = &self.slots;
        self.queue.make_contiguous().sort_unstable_by_key(|index| slots[*index as usize].serial);
    }

    /// Fails the waiting requests that `doomed` picks by their age in ticks.
    pub(crate) fn fail_queued(&mut self, now: u32, doomed: impl Fn(u32) -> bool) {
        let mut kept = VecDeque::with_capacity(self.queue.len());
        for index in std::mem::take(&mut self.queue) {
            let slot = &mut self.slots[index as usize];
            if !doomed(now.wrapping_sub(slot.born)) {
                kept.push_back(index);
                continue;
            }
            slot.end(Err(IoError::Unreachable));
            if slot.abandoned {
                self.release(index);
            }
        }
        self.queue = kept;
    }

    /// Ticks that the longest unanswered request has been on the wire.
    pub(crate) fn longest_wait(&self, now: u32) -> u32 {
        let sent = self.slots.iter().filter(|slot| slot.state == State::Sent);
        sent.map(|slot| now.wrapping_sub(slot.sent)).max().unwrap_or(0)
    }
}

impl Slot {
    fn empty() -> Slot {
        let request = Request { flags: 0, command: 0, cookie: Cookie(0), offset: 0, len: 0 };
        Slot {
            state: State::Free,
            generation: 0,
            serial: 0,
            request,
            data: Data::Nothing,
            coverage: Coverage::default(),
            error: None,
            outcome: None,
            waker: None,
            abandoned: false,
            born: 0,
            sent: 0,
        }
    }

    fn end(&mut self, result: Result<(), IoError>) {
        self.state = State::Done;
        let data = std::mem::replace(&mut self.data, Data::Nothing);
        self.outcome = Some(result.map(|()| match data {
            Data::Read(buf) => Some(buf),
            Data::Nothing | Data::Write(_) => None,
        }));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
