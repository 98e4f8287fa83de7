//! Flows (connections) of a limit: recent usage and lanes of each.
//!
//! Usage is kept in virtual time, per domain of meters: `finish` is the end of the flow's last
//! command. A flow that is behind the virtual time of the others has no claim, so a flow without
//! waiting commands that is behind can be forgotten.

use std::collections::BTreeMap;

use crate::meter::{CLASSES, DOMAINS, MeterTime};
use crate::waiting::CommandLane;

#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// End of its last command in virtual time.
    pub(crate) finish: [MeterTime; DOMAINS],
    pub(crate) lanes: [CommandLane; CLASSES.len()],
    /// Whether a lane has an entry in the turn queue.
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
    /// Cache of the last lookup, because a host sends many commands at a time.
    latest: Option<(u64, u32)>,
    max: usize,
}

impl Flows {
    /// Remembers at most `max` flows.
    pub(crate) fn new(max: usize) -> Flows {
        Flows { index: BTreeMap::new(), slots: Vec::new(), free: Vec::new(), latest: None, max }
    }

    /// The slot of flow `id`. A new flow starts at the virtual times `now`.
    pub(crate) fn slot(&mut self, id: u64, now: &[MeterTime; DOMAINS]) -> u32 {
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

    fn begin(&mut self, id: u64, now: &[MeterTime; DOMAINS]) -> u32 {
        if self.index.len() >= self.max {
            self.forget(now);
        }
        if self.index.len() >= self.max {
            // All flows have waiting commands: share the slot of another flow.
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

    /// Forgets flows without waiting commands: those without a claim, or otherwise all.
    #[cold]
    fn forget(&mut self, now: &[MeterTime; DOMAINS]) {
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

    pub(crate) fn waiting(&self) -> usize {
        self.slots.iter().filter(|flow| flow.waiting > 0).count()
    }

    /// Number of slots; every lower index is valid.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_table_is_bounded_and_keeps_waiters() {
        let mut flows = Flows::new(8);
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
        // If all flows have waiting commands, new flows share slots.
        for id in 2000..2008 {
            let slot = flows.slot(id, &now);
            flows.get_mut(slot).waiting = 1;
        }
        let shared = flows.slot(5000, &now);
        assert!(shared < 8 && flows.slots.len() == 8 && flows.index.len() == 8);
        assert_eq!(flows.waiting(), 8);
    }
}
