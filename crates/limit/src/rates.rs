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
    pub read_unit: IoUnit,
    /// What a write counts as among the I/Os.
    pub write_unit: IoUnit,
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

/// What a large I/O counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoUnit {
    /// One I/O for each so many bytes, begun or whole; 0: any I/O is one.
    pub bytes: u32,
    /// But never more than this; 0: no bound.
    pub most: u32,
}

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
        self.bytes.check()
    }
}

impl IoUnit {
    /// What an I/O of `bytes` counts as: 1 or more.
    pub fn count(&self, bytes: u32) -> u32 {
        if self.bytes == 0 {
            return 1;
        }
        let most = if self.most == 0 { u32::MAX } else { self.most };
        bytes.div_ceil(self.bytes).clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ios_count_as_several_up_to_a_bound() {
        let count = |bytes, most, len| IoUnit { bytes, most }.count(len);
        assert_eq!(count(0, 0, 32 << 20), 1);
        assert_eq!([4096, 262144, 262145].map(|len| count(262144, 0, len)), [1, 1, 2]);
        assert_eq!([8192, 16384, 1 << 20].map(|len| count(8192, 2, len)), [1, 2, 2]);
        assert_eq!(count(4096, 0, 0), 1);
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
