//! The flows (connections) that use a limit: what each has had lately, and its lanes.
//!
//! What a flow has had is kept in virtual time, for each domain of meters: `finish` is where its
//! last command ended. A flow that is behind the others' virtual time has no claim from it, so
//! flows that wait for nothing and are behind can be forgotten.

use std::collections::BTreeMap;

use crate::limits::FLOWS_MAX;
use crate::meter::{CLASSES, DOMAINS, Ticks};
use crate::waiting::Lane;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Its last command's end in virtual time.
    pub(crate) finish: [Ticks; DOMAINS],
    pub(crate) lanes: [Lane; CLASSES.len()],
    /// Whether a lane has its entry in the order of turns.
    pub(crate) queued: [bool; CLASSES.len()],
    pub(crate) waiting: u32,
}

impl Flow {
    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.queued == [false; CLASSES.len()]
    }
}

/// The flows by their identifiers.
#[derive(Debug)]
pub(crate) struct Flows {
    index: BTreeMap<u64, u32>,
    slots: Vec<Flow>,
    free: Vec<u32>,
    /// The last one looked up: hosts send many commands at a time.
    latest: Option<(u64, u32)>,
    max: usize,
}

impl Flows {
    pub(crate) fn new() -> Flows {
        Flows::of(FLOWS_MAX)
    }

    fn of(max: usize) -> Flows {
        Flows { index: BTreeMap::new(), slots: Vec::new(), free: Vec::new(), latest: None, max }
    }

    /// The slot of the flow `id`, which begins at the virtual times `now` if it is new.
    pub(crate) fn slot(&mut self, id: u64, now: &[Ticks; DOMAINS]) -> u32 {
        if let Some((latest, slot)) = self.latest
            && latest == id
        {
            return slot;
        }
        let slot = match self.index.get(&id) {
            Some(slot) => *slot,
            None => self.begin(id, now),
        };
        self.latest = Some((id, slot));
        slot
    }

    fn begin(&mut self, id: u64, now: &[Ticks; DOMAINS]) -> u32 {
        if self.index.len() >= self.max {
            self.forget(now);
        }
        if self.index.len() >= self.max {
            // All of them wait: the place of another one is shared.
            return (id % self.slots.len() as u64) as u32;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Flow::default());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Flow { finish: *now, ..Flow::default() };
        self.index.insert(id, slot);
        slot
    }

    /// Forgets flows that wait for nothing: those without a claim, or else all.
    #[cold]
    fn forget(&mut self, now: &[Ticks; DOMAINS]) {
        let behind = |flow: &Flow| flow.finish.iter().zip(now).all(|(finish, now)| finish <= now);
        self.forget_where(|flow| flow.is_idle() && behind(flow));
        if self.index.len() >= self.max {
            self.forget_where(Flow::is_idle);
        }
    }

    fn forget_where(&mut self, gone: impl Fn(&Flow) -> bool) {
        self.latest = None;
        let (slots, free) = (&self.slots, &mut self.free);
        self.index.retain(|_, slot| {
            let gone = gone(&slots[*slot as usize]);
            if gone {
                free.push(*slot);
            }
            !gone
        });
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Flow {
        &mut self.slots[slot as usize]
    }

    /// Number of flows that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.slots.iter().filter(|flow| flow.waiting > 0).count()
    }

    /// Number of slots; each below it can be looked at.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_those_who_wait_are_kept() {
        let mut flows = Flows::of(8);
        let now = [10; DOMAINS];
        let kept = flows.slot(1, &now);
        flows.get_mut(kept).waiting = 1;
        let ahead = flows.slot(2, &now);
        flows.get_mut(ahead).finish = [20; DOMAINS];
        for id in 3..1000 {
            flows.slot(id, &now);
        }
        assert_eq!(flows.slot(1, &now), kept);
        assert_eq!(flows.slot(2, &now), ahead);
        assert_eq!(flows.get_mut(ahead).finish, [20; DOMAINS], "its past is remembered");
        assert!(flows.slots.len() <= 8);
        // When all wait, others share.
        for id in 2000..2008 {
            let slot = flows.slot(id, &now);
            flows.get_mut(slot).waiting = 1;
        }
        let shared = flows.slot(5000, &now);
        assert!(shared < 8 && flows.slots.len() == 8 && flows.index.len() == 8);
        assert_eq!(flows.waiting(), 8);
    }
}
