//! Commands in flight on one queue: a slot each, found by the command identifier.

use std::task::{Poll, Waker};

use flagstone_nvme::Cqe;
use flagstone_nvme::pdu::Transfer;
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

impl Data {
    /// Length, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Data::None => 0,
            Data::Out(data) => data.len() as u32,
            Data::In(place) => place.len() as u32,
        }
    }
}

/// How a command ended on this queue. The data comes back with it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// The target answered; data from it has arrived if the status says success.
    Completed(Cqe),
    /// The queue broke before the answer: nobody knows whether it was carried out.
    Lost,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The target has it.
    InFlight,
    /// It has ended; its caller has not seen that yet.
    Ended(Outcome),
    /// Its caller has, and keeps the slot to send it again.
    Kept,
}

/// A command that has a slot.
pub(super) struct Pending {
    pub(super) data: Data,
    /// How far data from the target has arrived.
    pub(super) transfer: Transfer,
    /// Bytes that the target has asked for with R2Ts.
    pub(super) requested: u32,
    /// The data went with the command: the target has no reason to ask for it.
    pub(super) in_capsule: bool,
    /// The queue's tick when it was sent; `None` for one that waits for an event.
    started: Option<u32>,
    stage: Stage,
    waker: Option<Waker>,
    /// The caller has gone; the slot is freed by the answer.
    orphaned: bool,
    /// Its place is with the receiver, which brings it back.
    lent: bool,
    /// The queue broke while it was.
    lost: bool,
}

impl Pending {
    fn new(cid: u16, data: Data, in_capsule: bool, started: Option<u32>) -> Pending {
        let bytes = match &data {
            Data::In(place) => place.len() as u32,
            Data::None | Data::Out(_) => 0,
        };
        Pending {
            data,
            transfer: Transfer::of_command(cid, bytes),
            requested: 0,
            in_capsule,
            started,
            stage: Stage::InFlight,
            waker: None,
            orphaned: false,
            lent: false,
            lost: false,
        }
    }

    fn is_in_flight(&self) -> bool {
        matches!(self.stage, Stage::InFlight)
    }
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

    /// Puts a command in flight and gives its identifier; `None`, with `data` left where it is,
    /// when all slots are taken.
    #[inline]
    pub(super) fn insert(
        &mut self,
        data: &mut Data,
        in_capsule: bool,
        started: Option<u32>,
    ) -> Option<u16> {
        let cid = self.free.pop()?;
        let data = std::mem::take(data);
        self.slots[usize::from(cid)] = Some(Pending::new(cid, data, in_capsule, started));
        Some(cid)
    }

    /// Puts a command in flight again, in the slot that its caller has kept.
    pub(super) fn refill(
        &mut self,
        cid: u16,
        data: &mut Data,
        in_capsule: bool,
        started: Option<u32>,
    ) {
        let data = std::mem::take(data);
        self.slots[usize::from(cid)] = Some(Pending::new(cid, data, in_capsule, started));
    }

    /// A command that has not ended.
    #[inline]
    pub(super) fn get(&mut self, cid: u16) -> Option<&mut Pending> {
        self.slots.get_mut(usize::from(cid))?.as_mut().filter(|pending| pending.is_in_flight())
    }

    /// Ends a command. Its slot is free once the caller has taken the outcome; true when the caller
    /// has gone, so that it is free now.
    #[inline]
    pub(super) fn end(&mut self, cid: u16, outcome: Outcome) -> bool {
        let Some(pending) = self.get(cid) else { return false };
        pending.stage = Stage::Ended(outcome);
        if pending.orphaned {
            self.release(cid);
            return true;
        }
        if let Some(waker) = pending.waker.take() {
            waker.wake();
        }
        false
    }

    /// Takes the outcome of an ended command, and its data; then the slot is free.
    #[inline]
    pub(super) fn poll(&mut self, cid: u16, waker: &Waker) -> Poll<(Outcome, Data)> {
        let ended = self.poll_kept(cid, waker);
        if ended.is_ready() {
            self.release(cid);
        }
        ended
    }

    /// The same, and the slot is the caller's until [`Slots::release`].
    #[inline]
    pub(super) fn poll_kept(&mut self, cid: u16, waker: &Waker) -> Poll<(Outcome, Data)> {
        let pending = self.slots[usize::from(cid)].as_mut().expect("a caller holds its slot");
        if let Stage::Ended(outcome) = pending.stage {
            pending.stage = Stage::Kept;
            return Poll::Ready((outcome, std::mem::take(&mut pending.data)));
        }
        match &mut pending.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    /// The caller is gone: the slot stays until the answer comes, so that the identifier is not
    /// used for another command before. True when the slot is free now.
    pub(super) fn orphan(&mut self, cid: u16) -> bool {
        match &mut self.slots[usize::from(cid)] {
            Some(pending) if pending.is_in_flight() => {
                pending.orphaned = true;
                false
            }
            _ => {
                self.release(cid);
                true
            }
        }
    }

    /// Frees a slot.
    #[inline]
    pub(super) fn release(&mut self, cid: u16) {
        self.slots[usize::from(cid)] = None;
        self.free.push(cid);
    }

    /// Takes the place of a command's data out, to receive into it without holding the slots.
    pub(super) fn lend(&mut self, cid: u16) -> Option<BufMut> {
        let pending = self.get(cid)?;
        match std::mem::take(&mut pending.data) {
            Data::In(place) => {
                pending.lent = true;
                Some(place)
            }
            other => {
                pending.data = other;
                None
            }
        }
    }

    /// Brings a lent place back. False when the queue broke meanwhile: then the command has ended.
    pub(super) fn give_back(&mut self, cid: u16, place: BufMut) -> bool {
        let pending = self.get(cid).expect("a command whose place is lent has not ended");
        pending.data = Data::In(place);
        pending.lent = false;
        if pending.lost {
            self.end(cid, Outcome::Lost);
            return false;
        }
        true
    }

    /// Ends every command as lost; those whose place is lent when it comes back.
    pub(super) fn lose_all(&mut self) {
        for cid in 0..self.slots.len() as u16 {
            match self.get(cid) {
                Some(pending) if pending.lent => pending.lost = true,
                Some(_) => drop(self.end(cid, Outcome::Lost)),
                None => {}
            }
        }
    }

    /// Whether a command was sent before tick `tick` and has not ended.
    pub(super) fn any_started_before(&self, tick: u32) -> bool {
        let mut waiting = self.slots.iter().flatten().filter(|pending| pending.is_in_flight());
        waiting.any(|pending| pending.started.is_some_and(|started| started < tick))
    }

    /// Slots that are taken.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether one is free.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    #[cfg(test)]
    /// Whether every slot is taken.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_nvme::Status;
    use flagstone_runtime::buf;

    fn place() -> Data {
        Data::In(buf::try_alloc(512).unwrap())
    }

    fn poll(slots: &mut Slots, cid: u16) -> Poll<(Outcome, Data)> {
        slots.poll(cid, Waker::noop())
    }

    #[test]
    fn a_slot_is_taken_until_its_outcome_is() {
        let mut slots = Slots::new(1);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        let mut data = place();
        assert!(slots.insert(&mut data, false, Some(0)).is_none());
        assert_eq!(data.bytes(), 512, "the data of a refused command stays with its caller");
        assert!(poll(&mut slots, cid).is_pending());
        slots.end(cid, Outcome::Completed(Cqe::new(cid, Status::SUCCESS)));
        assert!(slots.is_full());
        let Poll::Ready((Outcome::Completed(_), Data::In(_))) = poll(&mut slots, cid) else {
            panic!("the outcome and the place come back");
        };
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn a_slot_that_is_kept_is_neither_free_nor_in_flight() {
        let mut slots = Slots::new(1);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        slots.end(cid, Outcome::Completed(Cqe::new(cid, Status::COMMAND_INTERRUPTED)));
        let Poll::Ready((_, mut data)) = slots.poll_kept(cid, Waker::noop()) else {
            panic!("it has ended");
        };
        assert!(slots.insert(&mut place(), false, Some(0)).is_none(), "nobody else gets it");
        assert!(slots.get(cid).is_none(), "the target has no command there to answer");
        assert!(!slots.any_started_before(9), "nor is it late with one");
        slots.lose_all();
        slots.refill(cid, &mut data, false, Some(5));
        assert!(poll(&mut slots, cid).is_pending() && slots.any_started_before(6));
        slots.end(cid, Outcome::Lost);
        let Poll::Ready((Outcome::Lost, Data::In(_))) = poll(&mut slots, cid) else {
            panic!("it was sent again, with its place");
        };
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn the_slot_of_a_caller_that_left_waits_for_the_answer() {
        let mut slots = Slots::new(1);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        assert!(!slots.orphan(cid));
        assert!(slots.is_full());
        assert!(slots.end(cid, Outcome::Lost), "now it is free");
        assert!(!slots.is_full());
    }

    #[test]
    fn a_place_that_is_lent_when_the_queue_breaks_still_comes_back_to_its_caller() {
        let mut slots = Slots::new(2);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        let lent = slots.lend(cid).unwrap();
        assert!(slots.lend(cid).is_none(), "it is lent once");
        slots.lose_all();
        assert!(poll(&mut slots, cid).is_pending());
        assert!(!slots.give_back(cid, lent));
        let Poll::Ready((Outcome::Lost, Data::In(place))) = poll(&mut slots, cid) else {
            panic!("lost, with its place");
        };
        assert_eq!(place.len(), 512);
    }

    #[test]
    fn commands_that_wait_for_events_are_never_overdue() {
        let mut slots = Slots::new(2);
        slots.insert(&mut Data::None, false, None).unwrap();
        assert!(!slots.any_started_before(9));
        let timed = slots.insert(&mut Data::None, false, Some(3)).unwrap();
        assert!(!slots.any_started_before(3));
        assert!(slots.any_started_before(4));
        slots.end(timed, Outcome::Lost);
        assert!(!slots.any_started_before(4));
    }
}
