//! Schedule: start time and order of commands. Pure: the time is an argument, and no code here
//! waits.
//!
//! A command may start when every meter that counts it is free. Of the commands that may start, the
//! one of the flow (connection) with the least usage starts first. This is start-time fair queuing
//! over several resources, as in dominant resource fair queuing (Ghodsi and others, SIGCOMM 2012,
//! memoryless form): the claim of a flow is the maximum over the budgets that the command uses.
//! Within a flow, commands of a class keep their order; if reads and writes share a budget, they
//! also keep their order to each other.
//!
//! Reads that wait for a budget of their own do not block writes, and vice versa. If both use one
//! budget, the order of turns lets neither starve.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::flows::Flows;
use crate::limits::{FLOW_WAITING_MAX, FLOWS_MAX, GATHER, LATE_MAX, LATE_SPAN, WAITING_MAX};
use crate::meter::{self, CLASSES, Class, DOMAINS, Domain, Meter, MeterTime, ticks};
use crate::rates::{IoSize, Limit, ONE_IO};
use crate::waiting::{CommandTicket, LimitRequest, Waiting};

/// Result of an arriving command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalResult {
    /// It starts now.
    Go,
    Wait(CommandTicket),
    /// Too many commands wait: retry later.
    Full,
}

/// Turn queue entry of a lane: the virtual start time of its first command, the number of that
/// command, and its flow.
type LaneEntry = Reverse<(MeterTime, u64, u32)>;

/// Meters and waiting commands of one limit.
#[derive(Debug)]
pub(crate) struct Schedule {
    meters: Vec<Meter>,
    sizes: [IoSize; 2],
    /// Latest known time: calls of several cores may arrive out of order.
    now: MeterTime,
    pub(crate) flows: Flows,
    pub(crate) waiting: Waiting,
    waiting_of: [usize; CLASSES.len()],
    /// Since when commands of a class have waited without interruption.
    waiting_since: [MeterTime; CLASSES.len()],
    /// Lateness of a class, and until when it is made up for.
    late: [(MeterTime, MeterTime); CLASSES.len()],
    /// Cost of the latest command of a class on its most expensive meter.
    latest_cost: [MeterTime; CLASSES.len()],
    turns: [BinaryHeap<LaneEntry>; CLASSES.len()],
    /// Per domain: the virtual start of the last started command, and the latest virtual end.
    virtual_now: [MeterTime; DOMAINS],
    furthest: [MeterTime; DOMAINS],
}

impl Schedule {
    pub(crate) fn new(limit: &Limit) -> Schedule {
        Schedule {
            meters: meter::meters(limit),
            sizes: [limit.read_size, limit.write_size],
            now: MeterTime::MIN / 4,
            flows: Flows::new(FLOWS_MAX),
            waiting: Waiting::new(),
            waiting_of: [0; CLASSES.len()],
            waiting_since: [0; CLASSES.len()],
            late: [(0, 0); CLASSES.len()],
            latest_cost: [0; CLASSES.len()],
            turns: Default::default(),
            virtual_now: [0; DOMAINS],
            furthest: [0; DOMAINS],
        }
    }

    /// Adds an arriving command.
    pub(crate) fn enter(
        &mut self,
        now: MeterTime,
        flow: u64,
        request: LimitRequest,
    ) -> ArrivalResult {
        if self.meters.is_empty() && self.waiting.count() == 0 {
            return ArrivalResult::Go;
        }
        self.now = self.now.max(now);
        let flow = self.flows.slot(flow, &self.virtual_now);
        if self.waiting.count() == 0 && self.free_at(request.class) <= self.now {
            // No flow has an older claim, because all demand was met.
            self.virtual_now = self.furthest;
            self.charge(flow, request);
            return ArrivalResult::Go;
        }
        let place = self.flows.get_mut(flow);
        let full = self.waiting.count() >= WAITING_MAX && place.waiting > 0;
        if full || place.waiting >= FLOW_WAITING_MAX {
            return ArrivalResult::Full;
        }
        place.waiting += 1;
        let class = request.class as usize;
        let ticket = self.waiting.push(&mut place.lanes[class], flow, request);
        if self.waiting_of[class] == 0 {
            self.waiting_since[class] = self.now;
        }
        self.waiting_of[class] += 1;
        self.queue(flow, request.class);
        ArrivalResult::Wait(ticket)
    }

    /// Charges and grants the next command whose turn has come.
    pub(crate) fn next(&mut self, now: MeterTime) -> Option<CommandTicket> {
        self.now = self.now.max(now);
        let mut best: Option<(MeterTime, u64, u32, Class)> = None;
        for class in CLASSES {
            if self.waiting_of[class as usize] == 0 || self.free_at(class) > self.now {
                continue;
            }
            if let Some((start, number, flow)) = self.first(class)
                && best.is_none_or(|best| (start, number) < (best.0, best.1))
            {
                best = Some((start, number, flow, class));
            }
        }
        let (_, _, flow, class) = best?;
        self.note_lateness(class);
        self.turns[class as usize].pop();
        let place = self.flows.get_mut(flow);
        place.queued[class as usize] = false;
        place.waiting -= 1;
        let lane = &mut place.lanes[class as usize];
        let (ticket, _) = self.waiting.first(lane).expect("looked at above");
        self.waiting.grant(lane, ticket);
        self.waiting_of[class as usize] -= 1;
        self.charge(flow, self.waiting.request(ticket));
        self.queue(flow, class);
        Some(ticket)
    }

    /// Start time of the next command, if any waits.
    pub(crate) fn due(&self) -> Option<MeterTime> {
        let classes = CLASSES.into_iter().filter(|class| self.waiting_of[*class as usize] > 0);
        classes.map(|class| self.free_at(class)).min()
    }

    /// When to check for commands that may start: at the start of the next one, or of a few, within
    /// [`GATHER`]. The delay is within the tolerance of the meters.
    pub(crate) fn alarm(&self) -> Option<MeterTime> {
        let gather = ticks(GATHER.as_nanos() as u64);
        let classes = CLASSES.into_iter().filter(|class| self.waiting_of[*class as usize] > 0);
        let alarm = |class: Class| {
            let index = class as usize;
            let half = self.latest_cost[index] * (self.waiting_of[index] as MeterTime - 1) / 2;
            let often = self.latest_cost[index] < gather;
            self.free_at(class) + if often { half.min(gather) } else { 0 }
        };
        classes.map(alarm).min()
    }

    /// Frees the place of a command that starts, or that was dropped, whose charge is then
    /// refunded.
    pub(crate) fn leave(&mut self, ticket: CommandTicket, goes: bool) {
        if !self.waiting.is_granted(ticket) {
            let (class, flow) = (self.waiting.request(ticket).class, self.waiting.flow(ticket));
            let place = self.flows.get_mut(flow);
            place.waiting -= 1;
            self.waiting_of[class as usize] -= 1;
            return self.waiting.remove(&mut place.lanes[class as usize], ticket);
        }
        if !goes {
            let request = self.waiting.request(ticket);
            let ios = self.ios(request);
            for meter in self.meters.iter_mut().filter(|meter| meter.counts(request.class)) {
                meter.refund(meter.cost(request.class, ios, request.bytes));
            }
        }
        self.waiting.free(ticket);
    }

    /// Changes the limit. Debt and credit stay; waiting commands keep their order.
    pub(crate) fn set(&mut self, now: MeterTime, limit: &Limit) {
        self.now = self.now.max(now);
        let earlier = std::mem::replace(&mut self.meters, meter::meters(limit));
        meter::inherit(&mut self.meters, self.now, &earlier);
        self.sizes = [limit.read_size, limit.write_size];
        self.late = Default::default();
        // Claims at the old rates are meaningless at the new ones.
        self.virtual_now = self.furthest;
        for class in CLASSES {
            self.turns[class as usize].clear();
        }
        for slot in 0..self.flows.len() {
            let place = self.flows.get_mut(slot);
            place.finish = self.virtual_now;
            place.queued = Default::default();
            for class in CLASSES {
                self.queue(slot, class);
            }
        }
    }

    /// Records the lateness of a command of a class that starts now. It is caused by the machine,
    /// which kept the server from its CPU.
    fn note_lateness(&mut self, class: Class) {
        let due = self.free_at(class).max(self.waiting_since[class as usize]);
        let late = (self.now - due).min(ticks(LATE_MAX.as_nanos() as u64));
        if late > self.late(class) {
            let until = self.now + ticks(LATE_SPAN.as_nanos() as u64);
            self.late[class as usize] = (late, until);
        }
    }

    /// Lateness still to be made up for.
    fn late(&self, class: Class) -> MeterTime {
        let (late, until) = self.late[class as usize];
        if self.now < until { late } else { 0 }
    }

    fn free_at(&self, class: Class) -> MeterTime {
        let meters = self.meters.iter().filter(|meter| meter.counts(class));
        meters.map(Meter::free_at).max().unwrap_or(MeterTime::MIN)
    }

    /// Weight of a command, in millionths of an I/O.
    fn ios(&self, request: LimitRequest) -> u64 {
        match request.class {
            Class::Read => self.sizes[0].millionths(request.bytes),
            Class::Write => self.sizes[1].millionths(request.bytes),
            Class::Control => ONE_IO,
        }
    }

    /// Charges the meters for a command, and records the usage of its flow: per domain, of the
    /// scarcest resource.
    fn charge(&mut self, flow: u32, request: LimitRequest) {
        let (ios, late) = (self.ios(request), self.late(request.class));
        let mut share = [0; DOMAINS];
        let mut behind = true;
        for meter in self.meters.iter_mut().filter(|meter| meter.counts(request.class)) {
            let cost = meter.cost(request.class, ios, request.bytes);
            meter.charge(self.now, late, cost);
            behind &= meter.is_behind(self.now);
            let share = &mut share[meter.domain() as usize];
            *share = cost.max(*share);
        }
        self.latest_cost[request.class as usize] = share.into_iter().max().unwrap_or(0);
        if !behind {
            // The limiting meter has made up for it.
            self.late[request.class as usize] = (0, self.now);
        }
        let finish = &mut self.flows.get_mut(flow).finish;
        for domain in (0..DOMAINS).filter(|domain| share[*domain] > 0) {
            let start = finish[domain].max(self.virtual_now[domain]);
            self.virtual_now[domain] = start;
            finish[domain] = start + share[domain];
            self.furthest[domain] = self.furthest[domain].max(finish[domain]);
        }
    }

    /// Adds a lane to the turn queue, if it is not empty and has no entry.
    fn queue(&mut self, flow: u32, class: Class) {
        let place = self.flows.get_mut(flow);
        if place.queued[class as usize] {
            return;
        }
        if let Some((_, number)) = self.waiting.first(&place.lanes[class as usize]) {
            place.queued[class as usize] = true;
            let now = claim(class, &self.virtual_now);
            let start = claim(class, &place.finish).max(now);
            self.turns[class as usize].push(Reverse((start, number, flow)));
        }
    }

    /// The first turn of a class. Outdated entries are corrected here: lanes whose first command
    /// was dropped, and flows with newer usage.
    fn first(&mut self, class: Class) -> Option<(MeterTime, u64, u32)> {
        loop {
            let Reverse((start, number, flow)) = *self.turns[class as usize].peek()?;
            let place = self.flows.get_mut(flow);
            let first = self.waiting.first(&place.lanes[class as usize]);
            let claim = claim(class, &place.finish).max(start);
            if first.is_some_and(|first| first.1 == number) && claim == start {
                return Some((start, number, flow));
            }
            self.turns[class as usize].pop();
            match first {
                None => place.queued[class as usize] = false,
                Some((_, number)) => {
                    self.turns[class as usize].push(Reverse((claim, number, flow)));
                }
            }
        }
    }
}

/// The virtual time that counts for a class: the maximum over its domains.
fn claim(class: Class, times: &[MeterTime; DOMAINS]) -> MeterTime {
    let own = if class == Class::Read { Domain::Reads } else { Domain::Writes };
    times[Domain::Both as usize].max(times[own as usize])
}

#[cfg(test)]
mod tests;
