//! Waiting commands: reusable slots, linked into FIFO lanes, one per class of each flow.

use std::task::Waker;

use crate::meter::Class;

const NONE: u32 = u32::MAX;

/// Slot of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandTicket(u32);

#[cfg(test)]
impl CommandTicket {
    pub(crate) fn index(self) -> u32 {
        self.0
    }
}

/// Properties of a command that matter to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitRequest {
    pub(crate) class: Class,
    /// Payload in bytes, at most 32 MiB.
    pub(crate) bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Waiting,
    Granted,
}

#[derive(Debug)]
struct Slot {
    state: State,
    request: LimitRequest,
    flow: u32,
    /// Position in the order of arrival, over all flows.
    number: u64,
    before: u32,
    /// The next slot of the lane, or the next free slot.
    behind: u32,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandLane {
    first: u32,
    last: u32,
}

impl Default for CommandLane {
    fn default() -> CommandLane {
        CommandLane { first: NONE, last: NONE }
    }
}

/// Waiting commands, and granted ones that have not started yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    slots: Vec<Slot>,
    free: u32,
    count: usize,
    next_number: u64,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { slots: Vec::new(), free: NONE, count: 0, next_number: 0 }
    }

    /// Number of commands that are not granted.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Appends a command to its lane.
    pub(crate) fn push(
        &mut self,
        lane: &mut CommandLane,
        flow: u32,
        request: LimitRequest,
    ) -> CommandTicket {
        let number = self.next_number;
        self.next_number += 1;
        let state = State::Waiting;
        let slot =
            Slot { state, request, flow, number, before: lane.last, behind: NONE, waker: None };
        let index = self.free;
        let index = if index == NONE {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            self.free = self.slots[index as usize].behind;
            self.slots[index as usize] = slot;
            index
        };
        match lane.last {
            NONE => lane.first = index,
            last => self.slots[last as usize].behind = index,
        }
        lane.last = index;
        self.count += 1;
        CommandTicket(index)
    }

    /// The first command of a lane, and its number.
    pub(crate) fn first(&self, lane: &CommandLane) -> Option<(CommandTicket, u64)> {
        let slot = self.slots.get(lane.first as usize)?;
        Some((CommandTicket(lane.first), slot.number))
    }

    /// Removes a command from its lane and grants it.
    pub(crate) fn grant(&mut self, lane: &mut CommandLane, ticket: CommandTicket) {
        self.unlink(lane, ticket);
        self.slots[ticket.0 as usize].state = State::Granted;
    }

    /// Removes a waiting command from its lane and frees its slot.
    pub(crate) fn remove(&mut self, lane: &mut CommandLane, ticket: CommandTicket) {
        self.unlink(lane, ticket);
        self.free(ticket);
    }

    fn unlink(&mut self, lane: &mut CommandLane, ticket: CommandTicket) {
        let Slot { before, behind, state, .. } = self.slots[ticket.0 as usize];
        assert_eq!(state, State::Waiting, "only what waits is in a lane");
        match before {
            NONE => lane.first = behind,
            before => self.slots[before as usize].behind = behind,
        }
        match behind {
            NONE => lane.last = before,
            behind => self.slots[behind as usize].before = before,
        }
        self.count -= 1;
    }

    /// Frees the slot of a command that starts.
    pub(crate) fn free(&mut self, ticket: CommandTicket) {
        let slot = &mut self.slots[ticket.0 as usize];
        slot.state = State::Free;
        slot.waker = None;
        slot.behind = self.free;
        self.free = ticket.0;
    }

    pub(crate) fn is_granted(&self, ticket: CommandTicket) -> bool {
        self.slots[ticket.0 as usize].state == State::Granted
    }

    pub(crate) fn request(&self, ticket: CommandTicket) -> LimitRequest {
        self.slots[ticket.0 as usize].request
    }

    pub(crate) fn flow(&self, ticket: CommandTicket) -> u32 {
        self.slots[ticket.0 as usize].flow
    }

    /// Stores the waker of a command.
    pub(crate) fn wait(&mut self, ticket: CommandTicket, waker: &Waker) {
        match &mut self.slots[ticket.0 as usize].waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    pub(crate) fn take_waker(&mut self, ticket: CommandTicket) -> Option<Waker> {
        self.slots[ticket.0 as usize].waker.take()
    }

    /// Any waiting command that was polled.
    pub(crate) fn any_waker(&mut self) -> Option<Waker> {
        let mut waiting = self.slots.iter_mut().filter(|slot| slot.state == State::Waiting);
        waiting.find_map(|slot| slot.waker.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_keep_order_after_removal() {
        let mut waiting = Waiting::new();
        let (mut one, mut other) = (CommandLane::default(), CommandLane::default());
        let request = LimitRequest { class: Class::Read, bytes: 512 };
        let tickets: Vec<CommandTicket> =
            (0..6).map(|_| waiting.push(&mut one, 0, request)).collect();
        let far = waiting.push(&mut other, 1, request);
        for gone in [2, 0, 5] {
            waiting.remove(&mut one, tickets[gone]);
        }
        assert_eq!(waiting.count(), 4);
        for left in [1, 3, 4] {
            let (first, number) = waiting.first(&one).unwrap();
            assert_eq!((first, number), (tickets[left], left as u64));
            waiting.grant(&mut one, first);
            assert!(waiting.is_granted(first));
            waiting.free(first);
        }
        assert!(waiting.first(&one).is_none());
        assert_eq!(waiting.first(&other).unwrap().0, far);
        // Slots are reused.
        for _ in 0..6 {
            waiting.push(&mut one, 0, request);
        }
        assert_eq!(waiting.slots.len(), 7);
    }
}
