//! Limits as numbers, from a configuration or from the prediction of a disk model.

use crate::limits::{CREDIT_MAX_SECONDS, RATE_MAX};

/// Limits of a volume. The default is unlimited.
///
/// A command starts when every budget that it counts against permits it, so the scarcest one
/// decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub ios: Budget,
    /// Bytes per second, of the payload of reads and writes.
    pub bytes: Budget,
    /// How many I/Os a read counts as.
    pub read_size: IoSize,
    /// How many I/Os a write counts as.
    pub write_size: IoSize,
}

/// Rates of one resource. Each given rate holds; none means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Reads and writes together, from one budget (half duplex if `read` and `write` are not
    /// given).
    pub total: Option<Rate>,
    pub read: Option<Rate>,
    pub write: Option<Rate>,
    /// Relation of `read` and `write`.
    pub mix: Mix,
}

/// Relation of the read rate and the write rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// Independent: both are available at the same time (full duplex).
    #[default]
    Separate,
    /// Shares of one budget: reads/read rate + writes/write rate is at most 1. Requires both.
    Shared,
}

impl Mix {
    pub const ALL: [Mix; 2] = [Mix::Separate, Mix::Shared];

    /// Name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Mix::Separate => "separate",
            Mix::Shared => "shared",
        }
    }
}

/// A sustained rate, with an optional burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u64,
    /// Higher rate for a limited time.
    pub burst: Option<Burst>,
}

/// Credit bucket of a burst: full at the start, refilled at the sustained rate while unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Highest rate, above the sustained one, at most [`RATE_MAX`].
    pub per_second: u64,
    /// Size of the bucket beyond the sustained rate, in I/Os or bytes: it lasts for `credit /
    /// (burst rate - sustained rate)` seconds.
    pub credit: u64,
}

/// How many I/Os an I/O counts as, by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoSize {
    /// Every I/O counts as one.
    #[default]
    One,
    /// One I/O per started unit of this many bytes.
    Units { bytes: u32 },
    /// Weights by size: the last step below the size of the I/O applies; below the first step, one.
    /// Example: a disk with 15,000 writes per second of 8 KB and 7,500 of any larger size counts a
    /// write of more than 8 KB as two.
    Steps([IoStep; STEPS_MAX]),
}

/// Weight of I/Os above a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoStep {
    /// In bytes; ascending. [`u32::MAX`] for unused steps.
    pub above_bytes: u32,
    /// Weight in millionths of an I/O, 1 to 1,000 I/Os.
    pub millionths: u32,
}

impl IoStep {
    pub const NONE: IoStep = IoStep { above_bytes: u32::MAX, millionths: ONE_IO as u32 };
}

/// Number of steps in [`IoSize::Steps`].
pub const STEPS_MAX: usize = 4;

/// One I/O, in millionths.
pub(crate) const ONE_IO: u64 = 1_000_000;

/// Invalid numbers of a limit; the text states the accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("a rate of {0} per second is not possible: use 1 to {RATE_MAX}")]
    Rate(u64),
    /// Burst rate not above the sustained rate.
    #[error("a burst rate of {burst} per second must exceed the sustained rate of {sustained}")]
    Burst { burst: u64, sustained: u64 },
    /// Invalid credit of a burst.
    #[error(
        "a burst credit of {0} is not possible: use 1 to the credit earned in {CREDIT_MAX_SECONDS} s"
    )]
    Credit(u64),
    /// A shared budget without both rates.
    #[error("reads and writes that share a budget need a rate each, both with a burst or neither")]
    Shared,
    /// Invalid weights by size.
    #[error("I/Os count as one for each 1 B or more, or in ascending steps as 1 to 1,000")]
    IoSize,
    #[error("a service latency of {0:?} is not possible: use more than 0, to 60 s")]
    Latency(std::time::Duration),
    /// 99th percentile below the median, or too far above it.
    #[error(
        "a 99th percentile of {p99:?} does not go with a median of {median:?}: use 1 to 100 medians"
    )]
    Tail { median: std::time::Duration, p99: std::time::Duration },
}

impl Rate {
    /// A sustained rate without a burst.
    pub fn new(per_second: u64) -> Rate {
        Rate { per_second, burst: None }
    }

    /// Adds a burst of up to `per_second` for `seconds` from a full bucket.
    pub fn bursting(self, per_second: u64, seconds: u64) -> Rate {
        let credit = per_second.saturating_sub(self.per_second).saturating_mul(seconds);
        Rate { burst: Some(Burst { per_second, credit }), ..self }
    }

    fn check(&self) -> Result<(), LimitError> {
        let sustained = self.per_second;
        let peak = self.burst.map_or(sustained, |burst| burst.per_second);
        if let Some(rate) =
            [sustained, peak].into_iter().find(|rate| !(1..=RATE_MAX).contains(rate))
        {
            return Err(LimitError::Rate(rate));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if burst.per_second <= sustained {
            return Err(LimitError::Burst { burst: burst.per_second, sustained });
        }
        if burst.credit == 0 || burst.credit / sustained > CREDIT_MAX_SECONDS {
            return Err(LimitError::Credit(burst.credit));
        }
        Ok(())
    }
}

impl Budget {
    /// One budget of this rate for reads and writes together.
    pub fn total(per_second: u64) -> Budget {
        Budget { total: Some(Rate::new(per_second)), ..Budget::default() }
    }

    pub fn separate(read: u64, write: u64) -> Budget {
        let (read, write) = (Some(Rate::new(read)), Some(Rate::new(write)));
        Budget { read, write, ..Budget::default() }
    }

    pub fn shared(read: u64, write: u64) -> Budget {
        Budget { mix: Mix::Shared, ..Budget::separate(read, write) }
    }

    fn check(&self) -> Result<(), LimitError> {
        for rate in [&self.total, &self.read, &self.write].into_iter().flatten() {
            rate.check()?;
        }
        if self.mix == Mix::Shared {
            let (Some(read), Some(write)) = (self.read, self.write) else {
                return Err(LimitError::Shared);
            };
            if read.burst.is_some() != write.burst.is_some() {
                return Err(LimitError::Shared);
            }
        }
        Ok(())
    }
}

impl Limit {
    /// Checks that the numbers are valid.
    ///
    /// # Errors
    /// Names the invalid number and the accepted values.
    pub fn check(&self) -> Result<(), LimitError> {
        self.ios.check()?;
        self.bytes.check()?;
        self.read_size.check()?;
        self.write_size.check()
    }
}

impl IoSize {
    /// Weights by size, at most [`STEPS_MAX`] steps.
    ///
    /// # Errors
    /// [`LimitError::IoSize`] for too many steps, or the errors of [`Limit::check`].
    pub fn steps(steps: impl IntoIterator<Item = IoStep>) -> Result<IoSize, LimitError> {
        let mut all = [IoStep::NONE; STEPS_MAX];
        for (index, step) in steps.into_iter().enumerate() {
            *all.get_mut(index).ok_or(LimitError::IoSize)? = step;
        }
        let size = IoSize::Steps(all);
        size.check().map(|()| size)
    }

    fn check(&self) -> Result<(), LimitError> {
        let possible = match self {
            IoSize::One => true,
            IoSize::Units { bytes } => *bytes > 0,
            IoSize::Steps(steps) => {
                let range = ONE_IO..=1000 * ONE_IO;
                steps.is_sorted_by_key(|step| step.above_bytes)
                    && steps.iter().all(|step| range.contains(&u64::from(step.millionths)))
            }
        };
        if possible { Ok(()) } else { Err(LimitError::IoSize) }
    }

    /// Weight of an I/O of `bytes`, in millionths of an I/O: at least a million.
    pub fn millionths(&self, bytes: u32) -> u64 {
        match self {
            IoSize::One => ONE_IO,
            IoSize::Units { bytes: unit } => ONE_IO * u64::from(bytes.div_ceil(*unit).max(1)),
            IoSize::Steps(steps) => {
                let below = steps.iter().rfind(|step| step.above_bytes < bytes);
                below.map_or(ONE_IO, |step| step.millionths.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ios_count_as_several() {
        let count = |size: IoSize, bytes| size.millionths(bytes) as f64 / ONE_IO as f64;
        assert_eq!(count(IoSize::One, 32 << 20), 1.0);
        let unit = IoSize::Units { bytes: 262_144 };
        assert_eq!([0, 4096, 262_144, 262_145].map(|len| count(unit, len)), [1.0, 1.0, 1.0, 2.0]);
        let step = |above_bytes, millionths| IoStep { above_bytes, millionths };
        let steps = IoSize::steps([step(8192, 1_200_000), step(16384, 3_333_333)]).unwrap();
        assert_eq!([4096, 8192, 8193, 16384].map(|len| count(steps, len)), [1.0, 1.0, 1.2, 1.2]);
        assert_eq!(count(steps, 32 << 20), 3.333_333);
        assert_eq!(IoSize::steps([step(8192, 999_999)]), Err(LimitError::IoSize));
        assert_eq!(
            IoSize::steps([step(2, 1_000_000), step(1, 1_000_000)]),
            Err(LimitError::IoSize)
        );
        assert_eq!(IoSize::steps([IoStep::NONE; 5]), Err(LimitError::IoSize));
        let read_size = IoSize::Units { bytes: 0 };
        assert_eq!(Limit { read_size, ..Limit::default() }.check(), Err(LimitError::IoSize));
    }

    #[test]
    fn invalid_limits_are_refused_with_range() {
        let refused = |ios: Budget| Limit { ios, ..Limit::default() }.check().unwrap_err();
        assert_eq!(refused(Budget::total(0)), LimitError::Rate(0));
        assert_eq!(refused(Budget::separate(1, RATE_MAX + 1)), LimitError::Rate(RATE_MAX + 1));
        let with = |burst| Budget {
            total: Some(Rate { per_second: 100, burst: Some(burst) }),
            ..Budget::default()
        };
        assert_eq!(
            refused(with(Burst { per_second: 100, credit: 1 })),
            LimitError::Burst { burst: 100, sustained: 100 }
        );
        assert_eq!(refused(with(Burst { per_second: 200, credit: 0 })), LimitError::Credit(0));
        let endless = Burst { per_second: 200, credit: u64::MAX };
        assert_eq!(refused(with(endless)), LimitError::Credit(u64::MAX));
        let half =
            Budget { mix: Mix::Shared, ..Budget { read: Some(Rate::new(5)), ..Budget::default() } };
        assert_eq!(refused(half), LimitError::Shared);
        assert_eq!(Limit::default().check(), Ok(()));
        let all = Limit {
            ios: Budget::shared(3000, 15000),
            bytes: Budget::total(240_000_000),
            ..Limit::default()
        };
        assert_eq!(all.check(), Ok(()));
    }
}
