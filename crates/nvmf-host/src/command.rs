//! Command slots of one queue, indexed by command identifier.

use std::task::{Poll, Waker};

use flagstone_nvme::Cqe;
use flagstone_nvme::pdu::DataTransfer;
use flagstone_runtime::{Buf, BufMut};

/// Data of a command.
#[derive(Debug, Default)]
pub enum CommandData {
    /// No data.
    #[default]
    None,
    /// Data to the target.
    Out(Buf),
    /// Buffer for data from the target, which must fill it.
    In(BufMut),
    /// Buffer for at most as many bytes from the target as it has room for. Upon success, it comes
    /// back cut to what was received.
    UpTo(BufMut),
}

impl CommandData {
    /// Length, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u32 {
        match self {
            CommandData::None => 0,
            CommandData::Out(data) => data.len() as u32,
            CommandData::In(place) | CommandData::UpTo(place) => place.len() as u32,
        }
    }

    /// The buffer for data from the target.
    #[inline]
    pub(super) fn place(&mut self) -> Option<&mut BufMut> {
        match self {
            CommandData::In(place) | CommandData::UpTo(place) => Some(place),
            CommandData::None | CommandData::Out(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CommandOutcome {
    /// The target completed it. On success, its data has arrived.
    Completed(Cqe),
    /// The queue broke before the completion: the command may or may not have been executed.
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Sent to the target.
    InFlight,
    /// Ended; the caller has not yet taken the outcome.
    Ended(CommandOutcome),
    /// Ended; the caller keeps the slot to resend the command.
    Kept,
}

pub(super) struct PendingCommand {
    pub(super) data: CommandData,
    /// Progress of data from the target.
    pub(super) transfer: DataTransfer,
    /// Bytes requested by R2Ts.
    pub(super) requested: u32,
    /// The data was in the capsule, so an R2T for it is invalid.
    pub(super) in_capsule: bool,
    /// Queue tick when it was sent; `None` for a command without a timeout, which waits for an
    /// event.
    started: Option<u32>,
    stage: Stage,
    waker: Option<Waker>,
    /// The caller has gone; the completion frees the slot.
    orphaned: bool,
    /// The receiver holds the data buffer, and will return it.
    lent: bool,
    /// The queue broke while the buffer was lent.
    lost: bool,
}

impl PendingCommand {
    fn new(cid: u16, data: CommandData, in_capsule: bool, started: Option<u32>) -> PendingCommand {
        let transfer = match &data {
            CommandData::In(place) => DataTransfer::of_command(cid, place.len() as u32),
            CommandData::UpTo(place) => DataTransfer::of_allocation(cid, place.len() as u32),
            CommandData::None | CommandData::Out(_) => DataTransfer::of_command(cid, 0),
        };
        PendingCommand {
            data,
            transfer,
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

pub(super) struct CommandSlots {
    slots: Vec<Option<PendingCommand>>,
    free: Vec<u16>,
    /// Slot of authentication commands, which come while calls use all others.
    reserve: Reserve,
}

/// The reserved slot, which is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserve {
    None,
    Free,
    Used,
}

impl CommandSlots {
    /// `depth` slots for calls and, if it `reserves`, one for authentication.
    pub(super) fn new(depth: u16, reserves: bool) -> CommandSlots {
        CommandSlots {
            slots: (0..depth + u16::from(reserves)).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            reserve: if reserves { Reserve::Free } else { Reserve::None },
        }
    }

    /// Starts a command and returns its identifier; `None`, with `data` unchanged, when all slots
    /// are in use.
    #[inline]
    pub(super) fn insert(
        &mut self,
        data: &mut CommandData,
        in_capsule: bool,
        started: Option<u32>,
    ) -> Option<u16> {
        let cid = self.free.pop()?;
        self.refill(cid, data, in_capsule, started);
        Some(cid)
    }

    /// Like [`CommandSlots::insert`], in the reserved slot, if there is one.
    pub(super) fn insert_reserved(
        &mut self,
        data: &mut CommandData,
        in_capsule: bool,
        started: Option<u32>,
    ) -> Option<u16> {
        let cid = match self.reserve {
            Reserve::None => return self.insert(data, in_capsule, started),
            Reserve::Used => return None,
            Reserve::Free => self.reserved_cid(),
        };
        self.reserve = Reserve::Used;
        self.refill(cid, data, in_capsule, started);
        Some(cid)
    }

    fn reserved_cid(&self) -> u16 {
        self.slots.len() as u16 - 1
    }

    /// Restarts a command in the slot that its caller kept.
    pub(super) fn refill(
        &mut self,
        cid: u16,
        data: &mut CommandData,
        in_capsule: bool,
        started: Option<u32>,
    ) {
        let data = std::mem::take(data);
        self.slots[usize::from(cid)] = Some(PendingCommand::new(cid, data, in_capsule, started));
    }

    #[inline]
    pub(super) fn get(&mut self, cid: u16) -> Option<&mut PendingCommand> {
        self.slots.get_mut(usize::from(cid))?.as_mut().filter(|pending| pending.is_in_flight())
    }

    /// Ends a command. The slot becomes free when the caller takes the outcome. Returns true if the
    /// caller has gone and the slot is free now.
    #[inline]
    pub(super) fn end(&mut self, cid: u16, outcome: CommandOutcome) -> bool {
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

    /// Takes the outcome and data of an ended command, and frees the slot.
    #[inline]
    pub(super) fn poll(&mut self, cid: u16, waker: &Waker) -> Poll<(CommandOutcome, CommandData)> {
        let ended = self.poll_kept(cid, waker);
        if ended.is_ready() {
            self.release(cid);
        }
        ended
    }

    /// Like [`CommandSlots::poll`], but keeps the slot until [`CommandSlots::release`].
    #[inline]
    pub(super) fn poll_kept(
        &mut self,
        cid: u16,
        waker: &Waker,
    ) -> Poll<(CommandOutcome, CommandData)> {
        let pending = self.slots[usize::from(cid)].as_mut().expect("a caller holds its slot");
        if let Stage::Ended(outcome) = pending.stage {
            pending.stage = Stage::Kept;
            // Without success, the command may be resent with the whole buffer.
            if let (CommandOutcome::Completed(cqe), CommandData::UpTo(place)) =
                (outcome, &mut pending.data)
                && cqe.status().is_success()
            {
                let _unused = place.split_off(pending.transfer.received_bytes() as usize);
            }
            return Poll::Ready((outcome, std::mem::take(&mut pending.data)));
        }
        match &mut pending.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    /// Marks the caller as gone. The slot stays in use until the completion arrives, so that the
    /// identifier is not reused earlier. Returns true if the slot is free now.
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
        if self.reserve == Reserve::Used && cid == self.reserved_cid() {
            self.reserve = Reserve::Free;
        } else {
            self.free.push(cid);
        }
    }

    /// Takes the data buffer of a command, to receive into it without borrowing the slots.
    pub(super) fn lend(&mut self, cid: u16) -> Option<BufMut> {
        let pending = self.get(cid)?;
        match std::mem::take(&mut pending.data) {
            CommandData::In(place) => {
                pending.lent = true;
                Some(place)
            }
            other => {
                pending.data = other;
                None
            }
        }
    }

    /// Returns a lent buffer. False when the queue broke meanwhile; the command has then ended.
    pub(super) fn give_back(&mut self, cid: u16, place: BufMut) -> bool {
        let pending = self.get(cid).expect("a command whose place is lent has not ended");
        pending.data = CommandData::In(place);
        pending.lent = false;
        if pending.lost {
            self.end(cid, CommandOutcome::Lost);
            return false;
        }
        true
    }

    /// Ends every command as lost. Commands with a lent buffer end when it is returned.
    pub(super) fn fail_all(&mut self) {
        for cid in 0..self.slots.len() as u16 {
            match self.get(cid) {
                Some(pending) if pending.lent => pending.lost = true,
                Some(_) => drop(self.end(cid, CommandOutcome::Lost)),
                None => {}
            }
        }
    }

    /// True if a command sent before tick `tick` has not ended.
    pub(super) fn any_started_before(&self, tick: u32) -> bool {
        let mut waiting = self.slots.iter().flatten().filter(|pending| pending.is_in_flight());
        waiting.any(|pending| pending.started.is_some_and(|started| started < tick))
    }

    /// Number of slots in use, except the reserved one.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.slots.len() - usize::from(self.reserve != Reserve::None) - self.free.len()
    }

    /// True if a slot for calls is free.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_nvme::Status;
    use flagstone_nvme::pdu::{DataHeader, flags};
    use flagstone_nvme::wire::{U16, U32};
    use flagstone_runtime::buf;

    fn place() -> CommandData {
        CommandData::In(buf::try_alloc(512).unwrap())
    }

    fn poll(slots: &mut CommandSlots, cid: u16) -> Poll<(CommandOutcome, CommandData)> {
        slots.poll(cid, Waker::noop())
    }

    #[test]
    fn slot_in_use_until_outcome_taken() {
        let mut slots = CommandSlots::new(1, false);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        let mut data = place();
        assert!(slots.insert(&mut data, false, Some(0)).is_none());
        assert_eq!(data.bytes(), 512, "the data of a refused command stays with its caller");
        assert!(poll(&mut slots, cid).is_pending());
        slots.end(cid, CommandOutcome::Completed(Cqe::new(cid, Status::SUCCESS)));
        assert!(!slots.has_room());
        let Poll::Ready((CommandOutcome::Completed(_), CommandData::In(_))) = poll(&mut slots, cid)
        else {
            panic!("the outcome and the place come back");
        };
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn buffer_of_allocation_comes_back_cut() {
        let mut slots = CommandSlots::new(1, false);
        let mut data = CommandData::UpTo(buf::try_alloc(512).unwrap());
        let cid = slots.insert(&mut data, false, Some(0)).unwrap();
        let mut piece =
            DataHeader { cid: U16::new(cid), data_bytes: U32::new(24), ..Default::default() };
        piece.common.flags = flags::LAST | flags::SUCCESS;
        slots.get(cid).unwrap().transfer.accept(&piece).unwrap();
        slots.end(cid, CommandOutcome::Completed(Cqe::new(cid, Status::SUCCESS)));
        let Poll::Ready((_, CommandData::UpTo(place))) = poll(&mut slots, cid) else {
            panic!("the place comes back");
        };
        assert_eq!(place.len(), 24, "nothing follows that was not received");
    }

    #[test]
    fn slot_kept_for_resend_is_not_reused() {
        let mut slots = CommandSlots::new(1, false);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        slots.end(cid, CommandOutcome::Completed(Cqe::new(cid, Status::COMMAND_INTERRUPTED)));
        let Poll::Ready((_, mut data)) = slots.poll_kept(cid, Waker::noop()) else {
            panic!("it has ended");
        };
        assert!(slots.insert(&mut place(), false, Some(0)).is_none(), "the slot is in use");
        assert!(slots.get(cid).is_none(), "the target has no command there to answer");
        assert!(!slots.any_started_before(9), "nor is it late with one");
        slots.fail_all();
        slots.refill(cid, &mut data, false, Some(5));
        assert!(poll(&mut slots, cid).is_pending() && slots.any_started_before(6));
        slots.end(cid, CommandOutcome::Lost);
        let Poll::Ready((CommandOutcome::Lost, CommandData::In(_))) = poll(&mut slots, cid) else {
            panic!("it was sent again, with its place");
        };
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn orphaned_slot_waits_for_completion() {
        let mut slots = CommandSlots::new(1, false);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        assert!(!slots.orphan(cid));
        assert!(!slots.has_room());
        assert!(slots.end(cid, CommandOutcome::Lost), "now it is free");
        assert!(slots.has_room());
    }

    #[test]
    fn lent_buffer_returns_after_queue_breaks() {
        let mut slots = CommandSlots::new(2, false);
        let cid = slots.insert(&mut place(), false, Some(0)).unwrap();
        let lent = slots.lend(cid).unwrap();
        assert!(slots.lend(cid).is_none(), "it is lent once");
        slots.fail_all();
        assert!(poll(&mut slots, cid).is_pending());
        assert!(!slots.give_back(cid, lent));
        let Poll::Ready((CommandOutcome::Lost, CommandData::In(place))) = poll(&mut slots, cid)
        else {
            panic!("lost, with its place");
        };
        assert_eq!(place.len(), 512);
    }

    #[test]
    fn reserved_slot_is_free_while_calls_use_all_others() {
        let mut slots = CommandSlots::new(1, true);
        let call = slots.insert(&mut place(), false, Some(0)).unwrap();
        assert!(slots.insert(&mut place(), false, Some(0)).is_none() && !slots.has_room());
        for _ in 0..2 {
            let cid = slots.insert_reserved(&mut place(), false, None).unwrap();
            assert!(cid != call && slots.insert_reserved(&mut place(), false, None).is_none());
            slots.end(cid, CommandOutcome::Lost);
            assert!(poll(&mut slots, cid).is_ready());
            assert!(!slots.has_room(), "it is not for calls");
        }
        slots.end(call, CommandOutcome::Lost);
        assert!(poll(&mut slots, call).is_ready());
        assert!(slots.has_room() && slots.taken() == 0);
        // An abandoned one is free when its completion arrives.
        let cid = slots.insert_reserved(&mut place(), false, None).unwrap();
        assert!(!slots.orphan(cid) && slots.taken() == 0);
        assert!(slots.end(cid, CommandOutcome::Lost));
        assert!(slots.insert_reserved(&mut place(), false, None).is_some());
        let mut slots = CommandSlots::new(1, false);
        assert!(slots.insert_reserved(&mut place(), false, None).is_some() && !slots.has_room());
    }

    #[test]
    fn event_requests_are_never_overdue() {
        let mut slots = CommandSlots::new(2, false);
        slots.insert(&mut CommandData::None, false, None).unwrap();
        assert!(!slots.any_started_before(9));
        let timed = slots.insert(&mut CommandData::None, false, Some(3)).unwrap();
        assert!(!slots.any_started_before(3));
        assert!(slots.any_started_before(4));
        slots.end(timed, CommandOutcome::Lost);
        assert!(!slots.any_started_before(4));
    }
}
