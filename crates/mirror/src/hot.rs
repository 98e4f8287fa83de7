//! Which regions may be written now: a state machine without I/O.
//!
//! Each region has one atomic word: how many calls are in it, and flags. A call into regions that
//! are all hot raises their counts and goes: that is the fast path, from any core. Any other leaves
//! a *ticket*, and holds nothing while it waits, so that calls cannot block each other. The log's
//! writer takes tickets in their order: [`HotSet::plan`] says which regions come and which leave,
//! then the writer does its I/O and says [`HotSet::landed`] or [`HotSet::failed`].
//!
//! Promises:
//! - a region is hot only while the latest record, and one that may have been written after it and
//!   failed, name it;
//! - a region that leaves has no call in it from when its place is planned until it is hot again;
//! - never more regions than the bound are named;
//! - the first ticket is served in the end: where all is busy, regions are closed to new calls.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_blockdev::IoError;

use crate::limits::{COOL_TICKS, COOL_TICKS_MAX, LEAVE_SHARE, PIECE_MAX_REGIONS};

/// Calls may enter.
const HOT: u32 = 1 << 31;
/// A call entered since the last look.
const USED: u32 = 1 << 30;
/// No call may enter, and whoever leaves last tells the writer.
const CLOSED: u32 = 1 << 29;
/// It is one of the members.
const MEMBER: u32 = 1 << 28;
/// Calls in it: bounded by the queue depths of all connections, far below 2^28.
const CALLS: u32 = MEMBER - 1;

/// The words of all regions.
#[derive(Debug)]
pub(crate) struct Cells(Box<[AtomicU32]>);

/// Some region is not hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cold {
    /// While it was tried, the writer began to wait for a region that is empty again.
    pub(crate) awaited: bool,
}

impl Cells {
    /// None hot.
    pub(crate) fn new(regions: u64) -> Cells {
        Cells((0..regions).map(|_| AtomicU32::new(0)).collect())
    }

    fn cell(&self, region: u32) -> &AtomicU32 {
        &self.0[region as usize]
    }

    /// Enters all of these regions, if all are hot, or none.
    pub(crate) fn try_enter(&self, regions: Range<u32>) -> Result<(), Cold> {
        let enter = |word: u32| (word & HOT != 0).then_some((word | USED) + 1);
        for region in regions.clone() {
            if self.cell(region).fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_err() {
                return Err(Cold { awaited: self.leave(regions.start..region) });
            }
        }
        Ok(())
    }

    /// Leaves them. What the call did before is seen by whoever finds a region empty. True when the
    /// writer waits for a region that is empty now.
    pub(crate) fn leave(&self, regions: Range<u32>) -> bool {
        let mut awaited = false;
        for region in regions {
            let before = self.cell(region).fetch_sub(1, Ordering::AcqRel);
            debug_assert!(before & CALLS > 0, "region {region} was left more often than entered");
            awaited |= before & CLOSED != 0 && before & CALLS == 1;
        }
        awaited
    }

    fn has(&self, region: u32, flag: u32) -> bool {
        self.cell(region).load(Ordering::Acquire) & flag != 0
    }

    fn set(&self, region: u32, flags: u32) {
        self.cell(region).fetch_or(flags, Ordering::AcqRel);
    }

    fn unset(&self, region: u32, flags: u32) -> u32 {
        self.cell(region).fetch_and(!flags, Ordering::AcqRel)
    }

    /// Takes an empty region out of the members, so that no call can enter any more.
    fn take_out(&self, region: u32) -> bool {
        let out = |word: u32| (word & CALLS == 0).then_some(0);
        self.cell(region).fetch_update(Ordering::AcqRel, Ordering::Acquire, out).is_ok()
    }

    /// No call may enter from now on.
    fn close(&self, region: u32) {
        self.set(region, CLOSED);
        self.unset(region, HOT | USED);
    }
}

/// What becomes of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticket {
    /// Waits for its turn.
    Queued,
    /// It is in the regions, which a record in flight makes hot.
    Admitted,
    /// The same, and nobody waits for it any more.
    Abandoned,
    /// It is in the regions, and they are hot.
    Granted,
    /// The record could not be written.
    Failed(IoError),
}

/// What the writer has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    tickets: Vec<u64>,
    /// Regions to add to the record.
    pub(crate) coming: Vec<u32>,
    /// Regions to leave out of it: first what they cover has to be durable elsewhere.
    pub(crate) leaving: Vec<u32>,
}

impl Plan {
    /// True when there is nothing to write.
    pub(crate) fn needs_no_record(&self) -> bool {
        self.coming.is_empty() && self.leaving.is_empty()
    }

    /// True when there is nothing to do at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty() && self.needs_no_record()
    }
}

/// How far a plan got that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// No record was written: those that were to leave are named still.
    Before,
    /// A record was tried: it may be on the disk, or not.
    Record,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    region: u32,
    /// Looks at it since it was last used.
    idle: u32,
}

/// See the module. Its owner keeps it under a lock; [`Cells`] need none.
#[derive(Debug)]
pub(crate) struct HotSet {
    bound: usize,
    members: Vec<Member>,
    tickets: BTreeMap<u64, (Range<u32>, Ticket)>,
    next_ticket: u64,
}

impl HotSet {
    /// Nothing hot; at most `bound` regions will be.
    pub(crate) fn new(bound: u32) -> HotSet {
        assert!(bound > PIECE_MAX_REGIONS, "a ticket has to fit");
        let members = Vec::with_capacity(bound as usize);
        HotSet { bound: bound as usize, members, tickets: BTreeMap::new(), next_ticket: 0 }
    }

    /// How many regions are hot or about to be.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// True when a ticket waits.
    pub(crate) fn has_queued(&self) -> bool {
        self.tickets.values().any(|(_, ticket)| *ticket == Ticket::Queued)
    }

    /// A call asks for regions. They are at most [`PIECE_MAX_REGIONS`].
    pub(crate) fn ask(&mut self, regions: Range<u32>) -> u64 {
        assert!(regions.len() <= PIECE_MAX_REGIONS as usize, "a call is cut into pieces first");
        let id = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(id, (regions, Ticket::Queued));
        id
    }

    /// What became of a ticket, which ends with an answer other than wait. A granted one is in its
    /// regions from now on.
    pub(crate) fn answer(&mut self, id: u64) -> Option<Result<(), IoError>> {
        let result = match self.tickets.get(&id)?.1 {
            Ticket::Granted => Ok(()),
            Ticket::Failed(error) => Err(error),
            Ticket::Queued | Ticket::Admitted | Ticket::Abandoned => return None,
        };
        self.tickets.remove(&id);
        Some(result)
    }

    /// Nobody waits for a ticket any more. True when the writer should look again.
    pub(crate) fn abandon(&mut self, cells: &Cells, id: u64) -> bool {
        let Some((regions, ticket)) = self.tickets.get_mut(&id) else { return false };
        if *ticket == Ticket::Admitted {
            *ticket = Ticket::Abandoned;
            return false;
        }
        if *ticket == Ticket::Granted {
            cells.leave(regions.clone());
        }
        self.tickets.remove(&id);
        true
    }

    /// Fails every ticket that waits.
    pub(crate) fn refuse_all(&mut self, error: IoError) {
        for (_, ticket) in self.tickets.values_mut().filter(|(_, state)| *state == Ticket::Queued) {
            *ticket = Ticket::Failed(error);
        }
    }

    /// The next thing for the writer to do. Empty while tickets wait: regions were closed, and the
    /// last call to leave one tells.
    pub(crate) fn plan(&mut self, cells: &Cells) -> Plan {
        let mut plan = Plan::default();
        let wanted = self.wanted(cells);
        let room = self.bound - self.members.len();
        if wanted.new > room {
            let many = (wanted.new - room).min(self.bound).max(self.bound / LEAVE_SHARE);
            plan.leaving = self.take_idle(cells, many, &wanted.regions);
        }
        let missing = self.admit(cells, &mut plan);
        if missing > 0 && plan.is_empty() {
            self.close_oldest(cells, missing, &wanted.regions);
            // One may have become empty just before it was closed: nobody would tell.
            plan.leaving = self.take_idle(cells, missing, &wanted.regions);
            self.admit(cells, &mut plan);
        }
        plan
    }

    /// What the first tickets ask for that can be hot together. Those behind them do not count: their
    /// regions may have to leave for the first.
    fn wanted(&self, cells: &Cells) -> Wanted {
        let mut wanted = Wanted::default();
        for (regions, ticket) in self.tickets.values() {
            if *ticket != Ticket::Queued {
                continue;
            }
            if wanted.regions.len() + regions.len() > self.bound {
                break;
            }
            for region in regions.clone().filter(|region| wanted.regions.insert(*region)) {
                wanted.new += usize::from(!cells.has(region, MEMBER));
            }
        }
        wanted
    }

    /// Takes members out in which no call is: first those that are closed, then the longest idle.
    fn take_idle(&mut self, cells: &Cells, many: usize, except: &BTreeSet<u32>) -> Vec<u32> {
        self.members.sort_by_key(|member| {
            std::cmp::Reverse((cells.has(member.region, CLOSED), member.idle))
        });
        let mut out = Vec::new();
        self.members.retain(|member| {
            let goes = out.len() < many
                && !except.contains(&member.region)
                && cells.take_out(member.region);
            if goes {
                out.push(member.region);
            }
            !goes
        });
        out
    }

    /// Closes busy regions, the longest idle first, until so many are closed.
    fn close_oldest(&mut self, cells: &Cells, many: usize, except: &BTreeSet<u32>) {
        // Sorted by `take_idle` a moment ago: closed ones come first.
        let others = self.members.iter().filter(|member| !except.contains(&member.region));
        others.take(many).for_each(|member| cells.close(member.region));
    }

    /// Admits tickets in their order as far as there is room. How many more regions the first that
    /// did not fit needs.
    fn admit(&mut self, cells: &Cells, plan: &mut Plan) -> usize {
        for (id, (regions, ticket)) in &mut self.tickets {
            if *ticket != Ticket::Queued {
                continue;
            }
            let new = regions.clone().filter(|region| !cells.has(*region, MEMBER)).count();
            let room = self.bound - self.members.len();
            if new > room {
                return new - room;
            }
            for region in regions.clone() {
                if !cells.has(region, MEMBER) {
                    self.members.push(Member { region, idle: 0 });
                    plan.coming.push(region);
                }
                // Not hot yet, if it is new: its record is to be written.
                cells.cell(region).fetch_add(1, Ordering::AcqRel);
                cells.set(region, MEMBER | USED);
            }
            *ticket = Ticket::Admitted;
            plan.tickets.push(*id);
        }
        0
    }

    /// The regions of the record to write, ascending.
    pub(crate) fn record(&self) -> Vec<u32> {
        let mut regions: Vec<u32> = self.members.iter().map(|member| member.region).collect();
        regions.sort_unstable();
        regions
    }

    /// The plan's record is durable.
    pub(crate) fn landed(&mut self, cells: &Cells, plan: &Plan) {
        for id in &plan.tickets {
            let Some((regions, ticket)) = self.tickets.get_mut(id) else { continue };
            for region in regions.clone() {
                cells.set(region, HOT);
                cells.unset(region, CLOSED);
            }
            if *ticket == Ticket::Abandoned {
                cells.leave(regions.clone());
                self.tickets.remove(id);
            } else {
                *ticket = Ticket::Granted;
            }
        }
    }

    /// The plan could not be carried out. Its tickets fail; when it brought none (it only made
    /// room), those that waited for the room do.
    pub(crate) fn failed(&mut self, cells: &Cells, plan: &Plan, reached: Reached, error: IoError) {
        for id in &plan.tickets {
            let Some((regions, ticket)) = self.tickets.get_mut(id) else { continue };
            cells.leave(regions.clone());
            if *ticket == Ticket::Abandoned {
                self.tickets.remove(id);
            } else {
                *ticket = Ticket::Failed(error);
            }
        }
        if plan.tickets.is_empty() {
            self.refuse_all(error);
        }
        // They are in one of the two records that may be the latest, at most.
        self.members.retain(|member| !plan.coming.contains(&member.region));
        for region in &plan.coming {
            cells.take_out(*region);
        }
        if reached == Reached::Before {
            for region in &plan.leaving {
                self.members.push(Member { region: *region, idle: 0 });
                cells.set(*region, MEMBER | HOT);
            }
        }
    }

    /// Looks which regions are used. Gives those that leave because they have not been for long.
    pub(crate) fn cool(&mut self, cells: &Cells) -> Plan {
        let (mut cold, mut coldest) = (0, 0);
        for member in &mut self.members {
            let word = cells.unset(member.region, USED);
            let busy = word & (USED | CALLS) != 0;
            member.idle = if busy { 0 } else { member.idle.saturating_add(1) };
            cold += usize::from(member.idle >= COOL_TICKS);
            coldest = coldest.max(member.idle);
        }
        let share = (self.bound / LEAVE_SHARE).max(1);
        if cold < share && coldest < COOL_TICKS_MAX {
            return Plan::default();
        }
        let warm = self.members.iter().filter(|member| member.idle < COOL_TICKS);
        let warm = warm.map(|member| member.region).collect();
        Plan { leaving: self.take_idle(cells, usize::MAX, &warm), ..Plan::default() }
    }

    /// Closes every region, and gives those that are empty.
    pub(crate) fn close_all(&mut self, cells: &Cells) -> Plan {
        self.members.iter().for_each(|member| cells.close(member.region));
        let leaving = self.take_idle(cells, usize::MAX, &BTreeSet::new());
        Plan { leaving, ..Plan::default() }
    }
}

/// What tickets ask for.
#[derive(Default)]
struct Wanted {
    regions: BTreeSet<u32>,
    /// How many of them are no members.
    new: usize,
}

#[cfg(test)]
#[path = "hot_tests.rs"]
mod tests;
