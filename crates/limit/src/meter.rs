//! Meter: one rate, as the time at which it is next free. This is the generic cell rate algorithm
//! in its virtual-clock form (ITU-T I.371, "virtual scheduling algorithm").
//!
//! Each I/O or byte costs the interval of the rate. A command may start if the clock is not ahead
//! of the time; then the clock advances by the cost of the command. So a command never waits for
//! its own cost, only for the cost of earlier ones. A clock that lies behind is moved up to the
//! time minus the tolerance: older unused rate is lost. There are no ticks, and errors do not
//! accumulate. Over any interval `w`, the started commands cost at most `w` + the tolerance + one
//! command.

use crate::limits::CATCH_UP;
use crate::rates::{Budget, Limit, Mix, ONE_IO, Rate};

/// Time in units of 2^-32 ns. Signed, because clocks may lie before the epoch of the runtime.
pub(crate) type MeterTime = i128;

const FRACTION_BITS: u32 = 32;
const NANOS_PER_SECOND: i128 = 1_000_000_000;

pub(crate) fn ticks(nanos: u64) -> MeterTime {
    i128::from(nanos) << FRACTION_BITS
}

/// Ticks as nanoseconds, rounded up.
pub(crate) fn nanos(ticks: MeterTime) -> u64 {
    let whole = (ticks + (1 << FRACTION_BITS) - 1) >> FRACTION_BITS;
    u64::try_from(whole.max(0)).unwrap_or(u64::MAX)
}

/// Interval of a rate per second, rounded to the nearest tick.
fn cost_of_one(per_second: u64) -> MeterTime {
    let rate = i128::from(per_second);
    ((NANOS_PER_SECOND << FRACTION_BITS) + rate / 2) / rate
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A read: I/Os and bytes.
    Read,
    /// A write: I/Os and bytes.
    Write,
    /// A flush, discard or write of zeroes: one I/O of the writes, no bytes.
    Control,
}

pub(crate) const CLASSES: [Class; 3] = [Class::Read, Class::Write, Class::Control];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeteredResource {
    Ios,
    Bytes,
}

/// Commands that compete for a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Reads and writes together.
    Both,
    /// Reads only.
    Reads,
    /// Writes only.
    Writes,
}

pub(crate) const DOMAINS: usize = 3;

/// Identity of a meter within a limit, stable across changes of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MeterRole {
    resource: MeteredResource,
    domain: Domain,
    /// Read and write shares of one budget, instead of a total.
    mixed: bool,
    /// Highest rate of a burst, instead of the sustained one.
    peak: bool,
}

/// Clock of one rate.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    role: MeterRole,
    /// Cost of one I/O or byte of a read and of a write; 0 if this meter does not count it.
    cost: [MeterTime; 2],
    tolerance: MeterTime,
    bursts: bool,
    /// Time at which it is free: the theoretical arrival time.
    free_at: MeterTime,
}

impl Meter {
    fn new(role: MeterRole, cost: [MeterTime; 2], tolerance: Option<MeterTime>) -> Meter {
        Meter {
            role,
            cost,
            tolerance: tolerance.unwrap_or_else(catch_up),
            bursts: tolerance.is_some(),
            // Full: never used.
            free_at: MeterTime::MIN / 2,
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        self.role.domain
    }

    /// Whether this meter counts commands of a class.
    pub(crate) fn counts(&self, class: Class) -> bool {
        match class {
            Class::Read => self.cost[0] > 0,
            Class::Write => self.cost[1] > 0,
            Class::Control => self.cost[1] > 0 && self.role.resource == MeteredResource::Ios,
        }
    }

    /// Cost in time of a command of a counted class, from its millionths of an I/O or its bytes.
    pub(crate) fn cost(&self, class: Class, io_millionths: u64, bytes: u32) -> MeterTime {
        let one = self.cost[usize::from(class != Class::Read)];
        match self.role.resource {
            MeteredResource::Ios => one * i128::from(io_millionths) / i128::from(ONE_IO),
            MeteredResource::Bytes => one * i128::from(bytes),
        }
    }

    pub(crate) fn free_at(&self) -> MeterTime {
        self.free_at
    }

    /// Charges the cost of a command. `late` is added to the tolerance.
    pub(crate) fn charge(&mut self, now: MeterTime, late: MeterTime, cost: MeterTime) {
        self.free_at = self.free_at.max(now - late - self.tolerance) + cost;
    }

    /// Whether it is further behind the time than any meter makes up for.
    pub(crate) fn is_behind(&self, now: MeterTime) -> bool {
        self.free_at < now - catch_up()
    }

    /// Refunds the cost of a command that did not start.
    pub(crate) fn refund(&mut self, cost: MeterTime) {
        self.free_at -= cost;
    }

    /// Takes over debt or credit from the same meter of an earlier limit: the same number of I/Os
    /// or bytes, at the new rate. A new bucket starts full.
    fn inherit(&mut self, now: MeterTime, earlier: &Meter) {
        if self.bursts && !earlier.bursts {
            return;
        }
        let level = earlier.free_at.max(now - earlier.tolerance) - now;
        let which = usize::from(self.cost[0] == 0);
        let (new, old) = (self.cost[which], earlier.cost[which].max(1));
        // Costs are below 2^63, so the term of the remainder fits; an overflowing credit is cut to
        // the size of this bucket.
        let scaled = (level / old).saturating_mul(new).saturating_add(level % old * new / old);
        self.free_at = now + scaled.clamp(-self.tolerance, MeterTime::MAX / 4);
    }
}

fn catch_up() -> MeterTime {
    ticks(CATCH_UP.as_nanos() as u64)
}

pub(crate) fn meters(limit: &Limit) -> Vec<Meter> {
    let mut meters = Vec::new();
    for (resource, budget) in
        [(MeteredResource::Ios, &limit.ios), (MeteredResource::Bytes, &limit.bytes)]
    {
        let role = |domain, mixed| MeterRole { resource, domain, mixed, peak: false };
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

/// Adds the meter of a rate, and for a burst a second one for its highest rate. The tolerance of
/// the first is the bucket.
fn add(meters: &mut Vec<Meter>, role: MeterRole, read: Option<Rate>, write: Option<Rate>) {
    let rates = [read, write];
    if rates.iter().all(Option::is_none) {
        return;
    }
    let sustained = rates.map(|rate| rate.map_or(0, |rate| cost_of_one(rate.per_second)));
    let bursts = rates.map(|rate| rate.and_then(|rate| rate.burst));
    let buckets = bursts.iter().zip(sustained).filter_map(|(burst, cost)| {
        // Beyond the credit at the sustained rate, it has the usual tolerance.
        burst.map(|burst| cost * i128::from(burst.credit) + catch_up())
    });
    meters.push(Meter::new(role, sustained, buckets.min()));
    if bursts.iter().any(Option::is_some) {
        let peak = bursts.map(|burst| burst.map_or(0, |burst| cost_of_one(burst.per_second)));
        meters.push(Meter::new(MeterRole { peak: true, ..role }, peak, None));
    }
}

/// Carries debt and credit of the `earlier` meters over to the meters of a new limit.
pub(crate) fn inherit(meters: &mut [Meter], now: MeterTime, earlier: &[Meter]) {
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

    /// Number of commands that start in an interval if there is always another one.
    fn run(meter: &mut Meter, from: MeterTime, span: MeterTime) -> u64 {
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
    fn meter_rate_is_exact_over_hours() {
        for rate in [1, 99, 100, 3000, 999_999, 1_000_000] {
            let mut meter = one(Rate::new(rate));
            let start = ticks(17);
            let first = run(&mut meter, start, ticks(1_000_000_000));
            let ahead = rate / 200 + 1;
            assert!((rate..=rate + ahead).contains(&first), "{rate}: {first}");
            // An hour later, in one step: the clock does not depend on the number of commands.
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
    fn unused_rate_carries_over_within_tolerance_only() {
        let mut meter = one(Rate::new(1000));
        run(&mut meter, 0, ticks(1_000_000_000));
        // After 3 ms of idle time 3 commands start at once, after a minute 5; each time one more is
        // due.
        let at = nanos(meter.free_at());
        assert_eq!(run(&mut meter, ticks(at + 3_000_000), 1), 4);
        assert_eq!(run(&mut meter, ticks(at + 60_000_000_000), 1), 6);
    }

    #[test]
    fn changed_rate_keeps_debt_and_credit() {
        let mut slow = one(Rate::new(10));
        for _ in 0..6 {
            slow.charge(0, 0, slow.cost(Class::Read, ONE_IO, 0));
        }
        let mut fast = [one(Rate::new(1000))];
        inherit(&mut fast, 0, &[slow.clone()]);
        // Six were charged, the tolerance covered 0.05: 5.95 at 1 ms each are owed.
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
