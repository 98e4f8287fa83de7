//! One rate, as the time at which it is next free: the generic cell rate algorithm in its form as a
//! virtual clock (ITU-T I.371, the "virtual scheduling algorithm").
//!
//! Each I/O or byte costs the time in which the rate gives one. A command may go when the clock is
//! not ahead of the time; then the clock moves on by the command's cost. So a command is never held
//! back for what it costs itself, only for what went before. A clock that lies behind is moved up to
//! the time, less the tolerance: what was not used longer ago than that is lost. There are no ticks,
//! and no error adds up: over any span `w` of time the commands that go cost at most `w` + the
//! tolerance + one command.

use crate::limits::CATCH_UP;
use crate::rates::{Budget, Limit, Mix, ONE_IO, Rate};

/// Time in units of 2^-32 ns. Signed: clocks may lie before the runtime's epoch.
pub(crate) type Ticks = i128;

const FRACTION_BITS: u32 = 32;
const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Whole nanoseconds as ticks.
pub(crate) fn ticks(nanos: u64) -> Ticks {
    i128::from(nanos) << FRACTION_BITS
}

/// Ticks as whole nanoseconds, not before them.
pub(crate) fn nanos(ticks: Ticks) -> u64 {
    let whole = (ticks + (1 << FRACTION_BITS) - 1) >> FRACTION_BITS;
    u64::try_from(whole.max(0)).unwrap_or(u64::MAX)
}

/// The time of one at a rate of so many a second, rounded to the nearest tick.
fn cost_of_one(per_second: u64) -> Ticks {
    let rate = i128::from(per_second);
    ((NANOS_PER_SECOND << FRACTION_BITS) + rate / 2) / rate
}

/// What a command counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A read: I/Os and bytes.
    Read,
    /// A write: I/Os and bytes.
    Write,
    /// A flush, discard or write of zeroes: one I/O of the writes, without bytes.
    Control,
}

pub(crate) const CLASSES: [Class; 3] = [Class::Read, Class::Write, Class::Control];

impl Class {
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Ios,
    Bytes,
}

/// Who competes for a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Reads and writes with each other.
    Both,
    /// Reads alone.
    Reads,
    /// Writes alone.
    Writes,
}

pub(crate) const DOMAINS: usize = 3;

/// Which meter of a limit it is: the same through changes of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Role {
    resource: Resource,
    domain: Domain,
    /// Shares of one budget, not the total.
    mixed: bool,
    /// The highest rate of a burst, not the sustained one.
    peak: bool,
}

/// One rate. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    role: Role,
    /// Of one I/O or byte: of a read and of a write; 0 when it does not count here.
    cost: [Ticks; 2],
    tolerance: Ticks,
    bursts: bool,
    /// When it is free: the theoretical arrival time.
    free_at: Ticks,
}

impl Meter {
    fn new(role: Role, cost: [Ticks; 2], tolerance: Option<Ticks>) -> Meter {
        Meter {
            role,
            cost,
            tolerance: tolerance.unwrap_or_else(catch_up),
            bursts: tolerance.is_some(),
            // Full: nothing was used for ever.
            free_at: Ticks::MIN / 2,
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        self.role.domain
    }

    /// Whether commands of a class count here at all.
    pub(crate) fn counts(&self, class: Class) -> bool {
        match class {
            Class::Read => self.cost[0] > 0,
            Class::Write => self.cost[1] > 0,
            Class::Control => self.cost[1] > 0 && self.role.resource == Resource::Ios,
        }
    }

    /// The time that a command of a class that counts here takes: so many millionths of an I/O, or
    /// bytes.
    pub(crate) fn cost(&self, class: Class, io_millionths: u64, bytes: u32) -> Ticks {
        let one = self.cost[usize::from(class != Class::Read)];
        match self.role.resource {
            Resource::Ios => one * i128::from(io_millionths) / i128::from(ONE_IO),
            Resource::Bytes => one * i128::from(bytes),
        }
    }

    /// When it is free.
    pub(crate) fn free_at(&self) -> Ticks {
        self.free_at
    }

    /// Takes a command's cost. `late` is added to the tolerance.
    pub(crate) fn charge(&mut self, now: Ticks, late: Ticks, cost: Ticks) {
        self.free_at = self.free_at.max(now - late - self.tolerance) + cost;
    }

    /// Whether it is further behind the time than what any meter makes up for.
    pub(crate) fn is_behind(&self, now: Ticks) -> bool {
        self.free_at < now - catch_up()
    }

    /// Gives back the cost of a command that did not go.
    pub(crate) fn refund(&mut self, cost: Ticks) {
        self.free_at -= cost;
    }

    /// Takes over what the same meter of an earlier limit has given ahead, or saved: as many I/Os
    /// or bytes, at this one's rate. A bucket that was not there before is full.
    fn inherit(&mut self, now: Ticks, earlier: &Meter) {
        if self.bursts && !earlier.bursts {
            return;
        }
        let level = earlier.free_at.max(now - earlier.tolerance) - now;
        let which = usize::from(self.cost[0] == 0);
        let (new, old) = (self.cost[which], earlier.cost[which].max(1));
        // Costs are below 2^63, so the remainder's part fits; a credit beyond all numbers is cut to
        // what this bucket holds.
        let scaled = (level / old).saturating_mul(new).saturating_add(level % old * new / old);
        self.free_at = now + scaled.clamp(-self.tolerance, Ticks::MAX / 4);
    }
}

fn catch_up() -> Ticks {
    ticks(CATCH_UP.as_nanos() as u64)
}

/// The meters of a limit.
pub(crate) fn meters(limit: &Limit) -> Vec<Meter> {
    let mut meters = Vec::new();
    for (resource, budget) in [(Resource::Ios, &limit.ios), (Resource::Bytes, &limit.bytes)] {
        let role = |domain, mixed| Role { resource, domain, mixed, peak: false };
        let Budget { total, read, write, mix } = *budget;
        add(&mut meters, role(Domain::Both, false), total, total);
        if mix == Mix::Shared {
            add(&mut meters, role(Domain::Both, true), read, write);
        } else {
            add(&mut meters, role(Domain::Reads, false), read, None);
            add(&mut meters, role(Domain::Writes, false), None, write);
        }
    }
    meters
}

/// The meter of a rate, and with a burst a second one for its highest rate: the first one's
/// tolerance is the bucket.
fn add(meters: &mut Vec<Meter>, role: Role, read: Option<Rate>, write: Option<Rate>) {
    let rates = [read, write];
    if rates.iter().all(Option::is_none) {
        return;
    }
    let sustained = rates.map(|rate| rate.map_or(0, |rate| cost_of_one(rate.per_second)));
    let bursts = rates.map(|rate| rate.and_then(|rate| rate.burst));
    let buckets = bursts.iter().zip(sustained).filter_map(|(burst, cost)| {
        // Beyond the credit, which is that of the sustained rate, it catches up as any other.
        burst.map(|burst| cost * i128::from(burst.credit) + catch_up())
    });
    meters.push(Meter::new(role, sustained, buckets.min()));
    if bursts.iter().any(Option::is_some) {
        let peak = bursts.map(|burst| burst.map_or(0, |burst| cost_of_one(burst.per_second)));
        meters.push(Meter::new(Role { peak: true, ..role }, peak, None));
    }
}

/// Carries over what `earlier` meters have given ahead or saved to those of a new limit.
pub(crate) fn inherit(meters: &mut [Meter], now: Ticks, earlier: &[Meter]) {
    for meter in meters {
        if let Some(earlier) = earlier.iter().find(|earlier| earlier.role == meter.role) {
            meter.inherit(now, earlier);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(rate: Rate) -> Meter {
        let ios = Budget { total: Some(rate), ..Budget::default() };
        meters(&Limit { ios, ..Limit::default() }).remove(0)
    }

    /// Commands that go in a span when there is always one more.
    fn run(meter: &mut Meter, from: Ticks, span: Ticks) -> u64 {
        let mut count = 0;
        let mut now = from;
        while now < from + span {
            if meter.free_at() <= now {
                meter.charge(now, 0, meter.cost(Class::Read, ONE_IO, 0));
                count += 1;
            } else {
                now = meter.free_at();
            }
        }
        count
    }

    #[test]
    fn a_rate_is_kept_to_the_last_io_over_hours() {
        for rate in [1, 99, 100, 3000, 999_999, 1_000_000] {
            let mut meter = one(Rate::new(rate));
            let start = ticks(17);
            let first = run(&mut meter, start, ticks(1_000_000_000));
            let ahead = rate / 200 + 1;
            assert!((rate..=rate + ahead).contains(&first), "{rate}: {first}");
            // An hour later, in one step: as a clock has it, no matter how many there were.
            let cost = meter.cost(Class::Read, ONE_IO, 0);
            let before = meter.free_at();
            for _ in 0..1000 {
                meter.charge(before, 0, cost);
            }
            let hour = (meter.free_at() - before) * i128::from(rate) * 3600 / 1000;
            let error = (hour - ticks(3_600_000_000_000)).abs();
            assert!(error < ticks(1_000_000), "{rate}: off by {} ns in an hour", nanos(error));
        }
    }

    #[test]
    fn what_was_not_used_is_made_up_for_within_the_tolerance_alone() {
        let mut meter = one(Rate::new(1000));
        run(&mut meter, 0, ticks(1_000_000_000));
        // Idle for 3 ms, then for a minute: 3 and 5 can be had at once, and the one that is due.
        let at = nanos(meter.free_at());
        assert_eq!(run(&mut meter, ticks(at + 3_000_000), 1), 4);
        assert_eq!(run(&mut meter, ticks(at + 60_000_000_000), 1), 6);
    }

    #[test]
    fn changed_numbers_keep_what_is_owed_and_what_is_saved() {
        let mut slow = one(Rate::new(10));
        for _ in 0..6 {
            slow.charge(0, 0, slow.cost(Class::Read, ONE_IO, 0));
        }
        let mut fast = [one(Rate::new(1000))];
        inherit(&mut fast, 0, &[slow.clone()]);
        // Six were taken, the tolerance gave 0.05: 5.95 at 1 ms each are owed.
        assert_eq!(nanos(fast[0].free_at()), 5_950_000);

        let mut bucket = one(Rate::new(100).bursting(200, 10));
        for _ in 0..400 {
            bucket.charge(0, 0, bucket.cost(Class::Read, ONE_IO, 0));
        }
        let mut larger = [one(Rate::new(200).bursting(400, 10))];
        inherit(&mut larger, 0, &[bucket]);
        // 600.5 are left, worth half the time.
        assert_eq!(nanos(-larger[0].free_at()), 3_002_500_000);
        let mut fresh = [one(Rate::new(10).bursting(20, 10))];
        inherit(&mut fresh, 0, &[slow]);
        assert!(fresh[0].free_at() < ticks(0) - ticks(10_000_000_000), "a new bucket is full");
    }
}
