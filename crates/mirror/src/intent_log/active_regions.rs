//! Active regions: which regions may be written now. A state machine without I/O, comparable to
//! DRBD's activity log.
//!
//! Each region has one atomic word with a call count and flags. A call whose regions are all active
//! raises the counts and proceeds: this is the fast path, from any core. Any other call leaves a
//! *ticket* and holds nothing while it waits, so calls cannot block each other. The log's writer
//! takes tickets in order: [`ActiveSet::plan`] names the regions to activate and to evict, and
//! after its I/O the writer reports [`ActiveSet::succeeded`] or [`ActiveSet::failed`].
//!
//! Guarantees:
//! - a region is active only while the latest record names it, and so does any later record whose
//!   write failed but may have reached the disk;
//! - an evicted region has no call in it from the moment its eviction is planned until it is active
//!   again;
//! - the record never names more regions than the bound;
//! - the first ticket is eventually served: when all regions are busy, some are closed to new
//!   calls.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_blockdev::IoError;

use crate::limits::{EVICT_SHARE, EVICT_TICKS, EVICT_TICKS_MAX, PIECE_MAX_REGIONS};

/// Calls may enter.
const ACTIVE: u32 = 1 << 31;
/// A call has entered since the last tick.
const USED: u32 = 1 << 30;
/// No call may enter, and the last one to leave notifies the writer.
const CLOSED: u32 = 1 << 29;
const MEMBER: u32 = 1 << 28;
/// Call count: bounded by the queue depths of all connections, far below 2^28.
const CALLS: u32 = MEMBER - 1;

#[derive(Debug)]
pub(crate) struct RegionTable(Box<[AtomicU32]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inactive {
    /// During the attempt, the writer began to wait for a region that is empty again.
    pub(crate) awaited: bool,
}

impl RegionTable {
    pub(crate) fn new(regions: u64) -> RegionTable {
        RegionTable((0..regions).map(|_| AtomicU32::new(0)).collect())
    }

    fn word(&self, region: u32) -> &AtomicU32 {
        &self.0[region as usize]
    }

    /// Enters all of these regions if all are active, otherwise none.
    pub(crate) fn try_enter(&self, regions: Range<u32>) -> Result<(), Inactive> {
        let enter = |word: u32| (word & ACTIVE != 0).then_some((word | USED) + 1);
        for region in regions.clone() {
            if self.word(region).fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_err() {
                return Err(Inactive { awaited: self.leave(regions.start..region) });
            }
        }
        Ok(())
    }

    /// Leaves the regions. Everything the call did before is visible to a task that finds a region
    /// empty. Returns true when the writer waits for a region that is empty now.
    pub(crate) fn leave(&self, regions: Range<u32>) -> bool {
        let mut awaited = false;
        for region in regions {
            let before = self.word(region).fetch_sub(1, Ordering::AcqRel);
            debug_assert!(before & CALLS > 0, "region {region} was left more often than entered");
            awaited |= before & CLOSED != 0 && before & CALLS == 1;
        }
        awaited
    }

    fn has(&self, region: u32, flag: u32) -> bool {
        self.word(region).load(Ordering::Acquire) & flag != 0
    }

    fn set(&self, region: u32, flags: u32) {
        self.word(region).fetch_or(flags, Ordering::AcqRel);
    }

    fn unset(&self, region: u32, flags: u32) -> u32 {
        self.word(region).fetch_and(!flags, Ordering::AcqRel)
    }

    /// Removes a region from the set if it is empty. No call can enter it afterwards.
    fn deactivate_if_empty(&self, region: u32) -> bool {
        let out = |word: u32| (word & CALLS == 0).then_some(0);
        self.word(region).fetch_update(Ordering::AcqRel, Ordering::Acquire, out).is_ok()
    }

    fn close(&self, region: u32) {
        self.set(region, CLOSED);
        self.unset(region, ACTIVE | USED);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionTicket {
    Queued,
    /// The call counts in its regions, which the record in flight will activate.
    Admitted,
    /// As `Admitted`, but its call has stopped waiting.
    Abandoned,
    /// The call counts in its regions, which are active.
    Granted,
    /// The record could not be written.
    Failed(IoError),
}

/// Work for the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriterWork {
    tickets: Vec<u64>,
    /// Regions to add to the record.
    pub(crate) activated: Vec<u32>,
    /// Regions to drop from the record, after their contents are durable elsewhere.
    pub(crate) evicted: Vec<u32>,
}

impl WriterWork {
    pub(crate) fn needs_no_record(&self) -> bool {
        self.activated.is_empty() && self.evicted.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty() && self.needs_no_record()
    }
}

/// How far a failed plan got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureStage {
    /// No record was written: the regions to evict are still named.
    BeforeRecord,
    /// A record was submitted, and may or may not be on disk.
    Record,
}

#[derive(Clone, Copy, Debug)]
struct ActiveRegion {
    region: u32,
    /// Ticks since the last use.
    idle: u32,
}

/// The set of active regions and the tickets. Its owner locks it; [`RegionTable`] needs no lock.
#[derive(Debug)]
pub(crate) struct ActiveSet {
    bound: usize,
    members: Vec<ActiveRegion>,
    tickets: BTreeMap<u64, (Range<u32>, RegionTicket)>,
    next_ticket: u64,
}

impl ActiveSet {
    pub(crate) fn new(bound: u32) -> ActiveSet {
        assert!(bound > PIECE_MAX_REGIONS, "every ticket has to fit");
        let members = Vec::with_capacity(bound as usize);
        ActiveSet { bound: bound as usize, members, tickets: BTreeMap::new(), next_ticket: 0 }
    }

    /// Number of regions that are active or about to be.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn has_queued(&self) -> bool {
        self.tickets.values().any(|(_, ticket)| *ticket == RegionTicket::Queued)
    }

    /// Queues a ticket for at most [`PIECE_MAX_REGIONS`] regions.
    pub(crate) fn ask(&mut self, regions: Range<u32>) -> u64 {
        assert!(regions.len() <= PIECE_MAX_REGIONS as usize, "a call is split into pieces first");
        let id = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(id, (regions, RegionTicket::Queued));
        id
    }

    /// Takes the result of a ticket; `None` while the ticket waits. After a success, its call
    /// counts.
    pub(crate) fn answer(&mut self, id: u64) -> Option<Result<(), IoError>> {
        let result = match self.tickets.get(&id)?.1 {
            RegionTicket::Granted => Ok(()),
            RegionTicket::Failed(error) => Err(error),
            RegionTicket::Queued | RegionTicket::Admitted | RegionTicket::Abandoned => return None,
        };
        self.tickets.remove(&id);
        Some(result)
    }

    /// Abandons a ticket. Returns true when the writer should check again.
    pub(crate) fn abandon(&mut self, table: &RegionTable, id: u64) -> bool {
        let Some((regions, ticket)) = self.tickets.get_mut(&id) else { return false };
        if *ticket == RegionTicket::Admitted {
            *ticket = RegionTicket::Abandoned;
            return false;
        }
        if *ticket == RegionTicket::Granted {
            table.leave(regions.clone());
        }
        self.tickets.remove(&id);
        true
    }

    pub(crate) fn refuse_all(&mut self, error: IoError) {
        for (_, ticket) in
            self.tickets.values_mut().filter(|(_, state)| *state == RegionTicket::Queued)
        {
            *ticket = RegionTicket::Failed(error);
        }
    }

    /// The writer's next step. Empty while calls must leave closed regions; the last one notifies.
    pub(crate) fn plan(&mut self, table: &RegionTable) -> WriterWork {
        let mut plan = WriterWork::default();
        let wanted = self.wanted(table);
        let free = self.bound - self.members.len();
        if wanted.new > free {
            let many = (wanted.new - free).min(self.bound).max(self.bound / EVICT_SHARE);
            plan.evicted = self.evict(table, many, &wanted.regions);
        }
        let missing = self.admit(table, &mut plan);
        if missing > 0 && plan.is_empty() {
            self.close_oldest(table, missing, &wanted.regions);
            // A region that became empty just before it was closed has no call left to notify.
            plan.evicted = self.evict(table, missing, &wanted.regions);
            self.admit(table, &mut plan);
        }
        plan
    }

    /// Regions wanted by the first queued tickets that can be active together. Later tickets do not
    /// count: their regions may have to be evicted for the first ones.
    fn wanted(&self, table: &RegionTable) -> WantedRegions {
        let mut wanted = WantedRegions::default();
        for (regions, ticket) in self.tickets.values() {
            if *ticket != RegionTicket::Queued {
                continue;
            }
            if wanted.regions.len() + regions.len() > self.bound {
                break;
            }
            for region in regions.clone().filter(|region| wanted.regions.insert(*region)) {
                wanted.new += usize::from(!table.has(region, MEMBER));
            }
        }
        wanted
    }

    /// Evicts members without calls: closed ones first, then those idle for longest.
    fn evict(&mut self, table: &RegionTable, many: usize, except: &BTreeSet<u32>) -> Vec<u32> {
        self.members.sort_by_key(|member| {
            std::cmp::Reverse((table.has(member.region, CLOSED), member.idle))
        });
        let mut out = Vec::new();
        self.members.retain(|member| {
            let goes = out.len() < many
                && !except.contains(&member.region)
                && table.deactivate_if_empty(member.region);
            if goes {
                out.push(member.region);
            }
            !goes
        });
        out
    }

    /// Closes busy regions, those idle for longest first, until `many` are closed.
    fn close_oldest(&mut self, table: &RegionTable, many: usize, except: &BTreeSet<u32>) {
        // `evict` has just sorted the members: closed ones come first.
        let others = self.members.iter().filter(|member| !except.contains(&member.region));
        others.take(many).for_each(|member| table.close(member.region));
    }

    /// Admits tickets in order while they fit. Returns how many regions the first misfit lacks.
    fn admit(&mut self, table: &RegionTable, plan: &mut WriterWork) -> usize {
        for (id, (regions, ticket)) in &mut self.tickets {
            if *ticket != RegionTicket::Queued {
                continue;
            }
            let new = regions.clone().filter(|region| !table.has(*region, MEMBER)).count();
            let free = self.bound - self.members.len();
            if new > free {
                return new - free;
            }
            for region in regions.clone() {
                if !table.has(region, MEMBER) {
                    self.members.push(ActiveRegion { region, idle: 0 });
                    plan.activated.push(region);
                }
                // A new region is not active yet: its record has still to be written.
                table.word(region).fetch_add(1, Ordering::AcqRel);
                table.set(region, MEMBER | USED);
            }
            *ticket = RegionTicket::Admitted;
            plan.tickets.push(*id);
        }
        0
    }

    /// Regions of the record to write, ascending.
    pub(crate) fn record(&self) -> Vec<u32> {
        let mut regions: Vec<u32> = self.members.iter().map(|member| member.region).collect();
        regions.sort_unstable();
        regions
    }

    /// The plan's record is durable.
    pub(crate) fn succeeded(&mut self, table: &RegionTable, plan: &WriterWork) {
        for id in &plan.tickets {
            let Some((regions, ticket)) = self.tickets.get_mut(id) else { continue };
            for region in regions.clone() {
                table.set(region, ACTIVE);
                table.unset(region, CLOSED);
            }
            if *ticket == RegionTicket::Abandoned {
                table.leave(regions.clone());
                self.tickets.remove(id);
            } else {
                *ticket = RegionTicket::Granted;
            }
        }
    }

    /// Fails the tickets of a failed plan, or the tickets that wait for the room that it would have
    /// made.
    pub(crate) fn failed(
        &mut self,
        table: &RegionTable,
        plan: &WriterWork,
        reached: FailureStage,
        error: IoError,
    ) {
        for id in &plan.tickets {
            let Some((regions, ticket)) = self.tickets.get_mut(id) else { continue };
            table.leave(regions.clone());
            if *ticket == RegionTicket::Abandoned {
                self.tickets.remove(id);
            } else {
                *ticket = RegionTicket::Failed(error);
            }
        }
        if plan.tickets.is_empty() {
            self.refuse_all(error);
        }
        // At most one of the two records that may be the latest names them.
        self.members.retain(|member| !plan.activated.contains(&member.region));
        for region in &plan.activated {
            table.deactivate_if_empty(*region);
        }
        if reached == FailureStage::BeforeRecord {
            for region in &plan.evicted {
                self.members.push(ActiveRegion { region: *region, idle: 0 });
                table.set(*region, MEMBER | ACTIVE);
            }
        }
    }

    /// Updates idle times, and evicts regions that have been idle for long.
    pub(crate) fn evict_idle(&mut self, table: &RegionTable) -> WriterWork {
        let (mut cold, mut coldest) = (0, 0);
        for member in &mut self.members {
            let word = table.unset(member.region, USED);
            let busy = word & (USED | CALLS) != 0;
            member.idle = if busy { 0 } else { member.idle.saturating_add(1) };
            cold += usize::from(member.idle >= EVICT_TICKS);
            coldest = coldest.max(member.idle);
        }
        let share = (self.bound / EVICT_SHARE).max(1);
        if cold < share && coldest < EVICT_TICKS_MAX {
            return WriterWork::default();
        }
        let warm = self.members.iter().filter(|member| member.idle < EVICT_TICKS);
        let warm = warm.map(|member| member.region).collect();
        WriterWork { evicted: self.evict(table, usize::MAX, &warm), ..WriterWork::default() }
    }

    /// Closes every region and evicts the empty ones.
    pub(crate) fn close_all(&mut self, table: &RegionTable) -> WriterWork {
        self.members.iter().for_each(|member| table.close(member.region));
        let evicted = self.evict(table, usize::MAX, &BTreeSet::new());
        WriterWork { evicted, ..WriterWork::default() }
    }
}

#[derive(Default)]
struct WantedRegions {
    regions: BTreeSet<u32>,
    /// Number of them that are not members yet.
    new: usize,
}

#[cfg(test)]
#[path = "active_regions_tests.rs"]
mod tests;
