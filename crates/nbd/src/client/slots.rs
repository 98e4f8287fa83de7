//! Request slots of one core's link. A request keeps its slot and buffer across reconnects.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use flagstone_blockdev::IoError;
use flagstone_runtime::{Buf, BufMut};

use crate::client::coverage::Coverage;
use crate::wire::Errno;
use crate::wire::request::{Cookie, NbdRequest};

/// Buffer of a pending request.
pub(crate) enum RequestData {
    Nothing,
    Write(Buf),
    Read(BufMut),
    /// Length in bytes of the extent that BLOCK_STATUS found, and whether it is a hole.
    Extent(Option<(u32, bool)>),
}

/// Outcome of a request: its data, as far as the server sent it.
pub(crate) type RequestResult = Result<RequestData, IoError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Waiting to be sent or resent.
    Queued,
    Sent,
    Done,
}

pub(crate) struct RequestSlot {
    state: State,
    generation: u32,
    /// Call order, preserved when requests are resent.
    serial: u64,
    /// The cookie encodes slot and generation.
    pub(crate) request: NbdRequest,
    pub(crate) data: RequestData,
    pub(crate) coverage: Coverage,
    /// First error chunk of the reply.
    pub(crate) error: Option<Errno>,
    outcome: Option<RequestResult>,
    waker: Option<Waker>,
    /// No caller waits for the outcome.
    abandoned: bool,
    /// Ticks of the call and of the most recent send.
    born: u32,
    sent: u32,
}

#[derive(Default)]
pub(crate) struct RequestSlots {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    on_wire: usize,
    next_serial: u64,
}

impl RequestSlots {
    /// Adds a request, assigns its cookie, and returns its slot.
    pub(crate) fn insert(&mut self, mut request: NbdRequest, data: RequestData, now: u32) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot::empty());
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

    pub(crate) fn unfinished(&self) -> usize {
        self.queue.len() + self.on_wire
    }

    pub(crate) fn on_wire(&self) -> usize {
        self.on_wire
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Next request to send, which counts as sent from now on.
    pub(crate) fn next_to_send(&mut self, now: u32) -> Option<&RequestSlot> {
        let index = self.queue.pop_front()?;
        self.on_wire += 1;
        let slot = &mut self.slots[index as usize];
        slot.state = State::Sent;
        slot.sent = now;
        slot.error = None;
        slot.coverage.clear();
        if let RequestData::Extent(found) = &mut slot.data {
            *found = None;
        }
        Some(slot)
    }

    /// Sent request with the cookie of a reply.
    pub(crate) fn find(&mut self, cookie: Cookie) -> Option<&mut RequestSlot> {
        let slot = self.slots.get_mut(cookie.0 as u32 as usize)?;
        (slot.state == State::Sent && slot.request.cookie == cookie).then_some(slot)
    }

    /// Ends the sent request with that cookie.
    pub(crate) fn finish(&mut self, cookie: Cookie, result: Result<(), IoError>) {
        let Some(slot) = self.find(cookie) else { return };
        slot.end(result);
        let abandoned = slot.abandoned;
        self.on_wire -= 1;
        if abandoned {
            self.release(cookie.0 as u32);
        }
    }

    /// Polls the outcome of a slot's request.
    pub(crate) fn poll(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<RequestResult> {
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

    /// Abandons a slot: its request continues without a caller.
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
        slot.data = RequestData::Nothing;
        slot.outcome = None;
        self.free.push(index);
    }

    /// Requeues sent requests after a disconnect, before waiting ones, in call order.
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

    /// Fails the waiting requests that `doomed` selects by age in ticks.
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

    /// Ticks since the oldest unanswered request was sent.
    pub(crate) fn longest_wait(&self, now: u32) -> u32 {
        let sent = self.slots.iter().filter(|slot| slot.state == State::Sent);
        sent.map(|slot| now.wrapping_sub(slot.sent)).max().unwrap_or(0)
    }
}

impl RequestSlot {
    fn empty() -> RequestSlot {
        let request = NbdRequest { flags: 0, command: 0, cookie: Cookie(0), offset: 0, len: 0 };
        RequestSlot {
            state: State::Free,
            generation: 0,
            serial: 0,
            request,
            data: RequestData::Nothing,
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
        let data = std::mem::replace(&mut self.data, RequestData::Nothing);
        self.outcome = Some(result.map(|()| data));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
