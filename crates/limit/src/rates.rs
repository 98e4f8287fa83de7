//! A limit in numbers, wherever they come from: a configuration, or a prediction of a disk model.

use crate::limits::{CREDIT_MAX_SECONDS, RATE_MAX};

/// What a volume may do. The default is no limit at all.
///
/// A command goes when every budget that it counts against allows it, so the scarcest one decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// I/Os a second.
    pub ios: Budget,
    /// Bytes a second, of the payload of reads and writes.
    pub bytes: Budget,
    /// What a read counts as among the I/Os.
    pub read_size: IoSize,
    /// What a write counts as among the I/Os.
    pub write_size: IoSize,
}

/// The rates of one resource. Each that is given holds; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Of reads and writes together: one budget that both take from (half duplex where `read` and
    /// `write` are not given).
    pub total: Option<Rate>,
    /// Of reads.
    pub read: Option<Rate>,
    /// Of writes.
    pub write: Option<Rate>,
    /// How `read` and `write` go together.
    pub mix: Mix,
}

/// How the rates of reads and of writes go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// Independent: both can be had at the same time (full duplex).
    #[default]
    Separate,
    /// Shares of one budget: reads/read rate + writes/write rate is at most 1. Both are given then.
    Shared,
}

/// So many a second, for ever; and more for a while, where there is a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// 1 to [`RATE_MAX`].
    pub per_second: u64,
    /// What goes beyond it, for a while.
    pub burst: Option<Burst>,
}

/// A bucket of credit: full at the start, filled at the sustained rate by what is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The highest rate, more than the sustained one, to [`RATE_MAX`].
    pub per_second: u64,
    /// What a full bucket holds beyond the sustained rate, in I/Os or bytes: it lasts for
    /// `credit / (burst rate - sustained rate)` seconds.
    pub credit: u64,
}

/// What an I/O counts as by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoSize {
    /// Any I/O is one.
    #[default]
    One,
    /// One I/O for each so many bytes, begun or whole.
    Units {
        /// 1 or more.
        bytes: u32,
    },
    /// More from some sizes on: what the last step below an I/O's size says; below the first, one.
    /// Where a disk has 15,000 writes a second of 8 KB and 7,500 of any larger size, a write of
    /// more than 8 KB counts as two.
    Steps([IoStep; STEPS_MAX]),
}

/// An I/O larger than a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoStep {
    /// In bytes; ascending. [`u32::MAX`] for steps that are not used.
    pub above_bytes: u32,
    /// It counts as so many millionths of an I/O, 1 to 1,000 I/Os.
    pub millionths: u32,
}

impl IoStep {
    /// A step that is not used.
    pub const NONE: IoStep = IoStep { above_bytes: u32::MAX, millionths: ONE_IO as u32 };
}

/// Steps of [`IoSize::Steps`].
pub const STEPS_MAX: usize = 4;

/// One I/O, in millionths.
pub(crate) const ONE_IO: u64 = 1_000_000;

/// Numbers that a limit cannot be made of; the text says what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a rate.
    #[error("a rate of {0} a second is not possible: use 1 to {RATE_MAX}")]
    Rate(u64),
    /// A burst that is none.
    #[error("a burst of {burst} a second is not more than the sustained {sustained} a second")]
    Burst {
        /// The burst's rate.
        burst: u64,
        /// The sustained rate.
        sustained: u64,
    },
    /// A credit that lasts for ever, or not at all.
    #[error(
        "a burst credit of {0} is not possible: use 1 to what is earned in {CREDIT_MAX_SECONDS} s"
    )]
    Credit(u64),
    /// A shared budget needs both rates.
    #[error("reads and writes that share a budget need a rate each, both with a burst or neither")]
    Shared,
    /// Not a way to count.
    #[error("I/Os count as one for each 1 B or more, or in ascending steps as 1 to 1,000")]
    IoSize,
    /// Not a latency.
    #[error("a service latency of {0:?} is not possible: use more than 0, to 60 s")]
    Latency(std::time::Duration),
    /// A tail before the middle, or far away.
    #[error(
        "a 99th percentile of {p99:?} does not go with a median of {median:?}: use 1 to 100 medians"
    )]
    Tail {
        /// The median.
        median: std::time::Duration,
        /// The percentile.
        p99: std::time::Duration,
    },
}

impl Rate {
    /// A rate without a burst.
    pub fn new(per_second: u64) -> Rate {
        Rate { per_second, burst: None }
    }

    /// The same, and up to `per_second` for `seconds` from a full bucket.
    pub fn bursting(self, per_second: u64, seconds: u64) -> Rate {
        let credit = per_second.saturating_sub(self.per_second).saturating_mul(seconds);
        Rate { burst: Some(Burst { per_second, credit }), ..self }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let sustained = self.per_second;
        let peak = self.burst.map_or(sustained, |burst| burst.per_second);
        if let Some(rate) =
            [sustained, peak].into_iter().find(|rate| !(1..=RATE_MAX).contains(rate))
        {
            return Err(ConfigError::Rate(rate));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if burst.per_second <= sustained {
            return Err(ConfigError::Burst { burst: burst.per_second, sustained });
        }
        if burst.credit == 0 || burst.credit / sustained > CREDIT_MAX_SECONDS {
            return Err(ConfigError::Credit(burst.credit));
        }
        Ok(())
    }
}

impl Budget {
    /// One budget of so many a second for reads and writes together.
    pub fn total(per_second: u64) -> Budget {
        Budget { total: Some(Rate::new(per_second)), ..Budget::default() }
    }

    /// Independent budgets.
    pub fn separate(read: u64, write: u64) -> Budget {
        let (read, write) = (Some(Rate::new(read)), Some(Rate::new(write)));
        Budget { read, write, ..Budget::default() }
    }

    /// One budget of which reads and writes take shares.
    pub fn shared(read: u64, write: u64) -> Budget {
        Budget { mix: Mix::Shared, ..Budget::separate(read, write) }
    }

    fn check(&self) -> Result<(), ConfigError> {
        for rate in [&self.total, &self.read, &self.write].into_iter().flatten() {
            rate.check()?;
        }
        if self.mix == Mix::Shared {
            let (Some(read), Some(write)) = (self.read, self.write) else {
                return Err(ConfigError::Shared);
            };
            if read.burst.is_some() != write.burst.is_some() {
                return Err(ConfigError::Shared);
            }
        }
        Ok(())
    }
}

impl Limit {
    /// Checks that a limiter can be made of it.
    ///
    /// # Errors
    /// Says which number is not possible, and what is.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.ios.check()?;
        self.bytes.check()?;
        self.read_size.check()?;
        self.write_size.check()
    }
}

impl IoSize {
    /// Steps, at most [`STEPS_MAX`]: I/Os above so many bytes count as so many millionths.
    ///
    /// # Errors
    /// [`ConfigError::IoSize`] for too many, or what [`Limit::check`] refuses.
    pub fn steps(steps: impl IntoIterator<Item = IoStep>) -> Result<IoSize, ConfigError> {
        let mut all = [IoStep::NONE; STEPS_MAX];
        for (index, step) in steps.into_iter().enumerate() {
            *all.get_mut(index).ok_or(ConfigError::IoSize)? = step;
        }
        let size = IoSize::Steps(all);
        size.check().map(|()| size)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let possible = match self {
            IoSize::One => true,
            IoSize::Units { bytes } => *bytes > 0,
            IoSize::Steps(steps) => {
                let range = ONE_IO..=1000 * ONE_IO;
                steps.is_sorted_by_key(|step| step.above_bytes)
                    && steps.iter().all(|step| range.contains(&u64::from(step.millionths)))
            }
        };
        if possible { Ok(()) } else { Err(ConfigError::IoSize) }
    }

    /// What an I/O of `bytes` counts as, in millionths of an I/O: a million or more.
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
        assert_eq!(IoSize::steps([step(8192, 999_999)]), Err(ConfigError::IoSize));
        assert_eq!(
            IoSize::steps([step(2, 1_000_000), step(1, 1_000_000)]),
            Err(ConfigError::IoSize)
        );
        assert_eq!(IoSize::steps([IoStep::NONE; 5]), Err(ConfigError::IoSize));
        let read_size = IoSize::Units { bytes: 0 };
        assert_eq!(Limit { read_size, ..Limit::default() }.check(), Err(ConfigError::IoSize));
    }

    #[test]
    fn impossible_numbers_are_refused_with_what_is_possible() {
        let refused = |ios: Budget| Limit { ios, ..Limit::default() }.check().unwrap_err();
        assert_eq!(refused(Budget::total(0)), ConfigError::Rate(0));
        assert_eq!(refused(Budget::separate(1, RATE_MAX + 1)), ConfigError::Rate(RATE_MAX + 1));
        let with = |burst| Budget {
            total: Some(Rate { per_second: 100, burst: Some(burst) }),
            ..Budget::default()
        };
        assert_eq!(
            refused(with(Burst { per_second: 100, credit: 1 })),
            ConfigError::Burst { burst: 100, sustained: 100 }
        );
        assert_eq!(refused(with(Burst { per_second: 200, credit: 0 })), ConfigError::Credit(0));
        let endless = Burst { per_second: 200, credit: u64::MAX };
        assert_eq!(refused(with(endless)), ConfigError::Credit(u64::MAX));
        let half =
            Budget { mix: Mix::Shared, ..Budget { read: Some(Rate::new(5)), ..Budget::default() } };
        assert_eq!(refused(half), ConfigError::Shared);
        assert_eq!(Limit::default().check(), Ok(()));
        let all = Limit {
            ios: Budget::shared(3000, 15000),
            bytes: Budget::total(240_000_000),
            ..Limit::default()
        };
        assert_eq!(all.check(), Ok(()));
    }
}
