//! Commands in flight on one queue: a slot each, found by the command identifier.

use std::task::{Poll, Waker};

use flagstone_nvme::pdu::Transfer;
use flagstone_nvme::{Cqe, Sqe};
use flagstone_runtime::time::Instant;
use flagstone_runtime::{Buf, BufMut};

/// What a command carries.
#[derive(Debug, Default)]
pub(super) enum Data {
    /// Nothing.
    #[default]
    None,
    /// To the target.
    Out(Buf),
    /// From the target: what it reads lands here.
    In(BufMut),
}

/// How a command ended on this queue.
pub(super) enum Outcome {
    /// The target answered; data from it has arrived if the status says success.
    Completed(Cqe),
    /// The queue broke before the answer: nobody knows whether it was carried out.
    Lost,
}

/// A command in flight.
pub(super) struct Pending {
    pub(super) data: Data,
    /// How far data from the target has arrived.
    pub(super) transfer: Transfer,
    /// Bytes that the target has asked for with R2Ts.
    pub(super) requested: u32,
    /// After this it has timed out; `None` for one that waits for an event.
    pub(super) deadline: Option<Instant>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// The caller has gone; the slot is freed by the answer.
    orphaned: bool,
}

/// The slots of a queue.
pub(super) struct Slots {
    slots: Vec<Option<Pending>>,
    free: Vec<u16>,
}

impl Slots {
    pub(super) fn new(depth: u16) -> Slots {
        Slots { slots: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    /// Puts a command in flight and gives its identifier; gives its data back when all slots are
    /// taken.
    #[inline]
    pub(super) fn insert(&mut self, data: Data, deadline: Option<Instant>) -> Result<u16, Data> {
        let Some(cid) = self.free.pop() else { return Err(data) };
        let bytes = match &data {
            Data::In(place) => place.len() as u32,
            Data::None | Data::Out(_) => 0,
        };
        let transfer = Transfer::of_command(cid, bytes);
        self.slots[usize::from(cid)] = Some(Pending {
            data,
            transfer,
            requested: 0,
            deadline,
            outcome: None,
            waker: None,
            orphaned: false,
        });
        Ok(cid)
    }

    /// A command that has not ended.
    #[inline]
    pub(super) fn get(&mut self, cid: u16) -> Option<&mut Pending> {
        self.slots.get_mut(usize::from(cid))?.as_mut().filter(|pending| pending.outcome.is_none())
    }

    /// Ends a command. Its slot is free once the caller has taken the outcome.
    #[inline]
    pub(super) fn end(&mut self, cid: u16, outcome: Outcome) {
        let Some(pending) = self.get(cid) else { return };
        pending.outcome = Some(outcome);
        if pending.orphaned {
            self.slots[usize::from(cid)] = None;
            self.free.push(cid);
        } else if let Some(waker) = pending.waker.take() {
            waker.wake();
        }
    }

    /// Takes the outcome of an ended command, and its data.
    #[inline]
    pub(super) fn poll(&mut self, cid: u16, waker: &Waker) -> Poll<(Outcome, Data)> {
        let slot = &mut self.slots[usize::from(cid)];
        let pending = slot.as_mut().expect("a caller holds its slot");
        match pending.outcome.take() {
            Some(outcome) => {
                let data = std::mem::take(&mut pending.data);
                *slot = None;
                self.free.push(cid);
                Poll::Ready((outcome, data))
            }
            None => {
                pending.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// The caller is gone: the slot stays until the answer comes, so that the identifier is not
    /// used for another command before.
    pub(super) fn orphan(&mut self, cid: u16) {
        let slot = &mut self.slots[usize::from(cid)];
        match slot {
            Some(pending) if pending.outcome.is_none() => pending.orphaned = true,
            _ => {
                *slot = None;
                self.free.push(cid);
            }
        }
    }

    /// Ends every command as lost.
    pub(super) fn lose_all(&mut self) {
        for cid in 0..self.slots.len() {
            self.end(cid as u16, Outcome::Lost);
        }
    }

    /// Whether a command has waited beyond its time.
    pub(super) fn overdue(&self, now: Instant) -> bool {
        let mut waiting = self.slots.iter().flatten().filter(|pending| pending.outcome.is_none());
        waiting.any(|pending| pending.deadline.is_some_and(|deadline| now > deadline))
    }

    /// Commands in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A command and what it carries, before it is given an identifier.
pub(super) struct Request {
    /// Its identifier and data pointer are filled in by the queue.
    pub(super) command: Sqe,
    pub(super) data: Data,
}
