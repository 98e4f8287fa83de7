//! Text of a judgment.

use std::fmt;

use crate::judge::{Bottleneck, Cause, JobRecommendation, JudgmentVerdict, Recommendation};
use crate::recommendation::grouped;

impl fmt::Display for JudgmentVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JudgmentVerdict::AsPredicted => "as predicted",
            JudgmentVerdict::Above => "above the prediction",
            JudgmentVerdict::Below => "below the prediction",
        })
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bottleneck::Limit => "a limit of the cloud",
            Bottleneck::Latency => "latency",
            Bottleneck::Cpu => "CPU",
            Bottleneck::Job => "the job itself",
            Bottleneck::NotKnown => "not known",
        })
    }
}

/// A latency with its unit.
pub fn latency_text(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A number of I/Os in flight or seconds, with decimals for small numbers.
pub fn count_text(count: f64) -> String {
    match count {
        n if n < 1.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => grouped(n),
    }
}

/// A multiple, with decimals for small numbers.
fn times(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { grouped(times) }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = latency_text;
        match self {
            Cause::AtLimit { kind, utilization, explanation } => {
                write!(
                    f,
                    "{:.0} % of the limit of the {kind} is used: {explanation}",
                    utilization * 100.0
                )
            }
            Cause::BeyondLimit { kind, times: n, iops, explanation } => {
                let (n, iops) = (times(*n), grouped(*iops));
                write!(f, "{n} times the {iops} IOPS that the {kind} allows: {explanation}")
            }
            Cause::Latency { in_flight, latency_us, iops, allowed_iops } => write!(
                f,
                "{} in flight at {} each give {} IOPS of {} allowed (Little's law)",
                count_text(*in_flight),
                ms(*latency_us),
                grouped(*iops),
                grouped(*allowed_iops)
            ),
            Cause::MatchesRule { latency_us, best_us, guaranteed_us } => write!(
                f,
                "latency of {} matches the model: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*guaranteed_us)
            ),
            Cause::SlowerThanRule { latency_us, best_us, guaranteed_us } => write!(
                f,
                "latency of {} is above the model: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*guaranteed_us)
            ),
            Cause::FasterThanRule { latency_us, best_us, guaranteed_us } => write!(
                f,
                "latency of {} is below the model: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*guaranteed_us)
            ),
            Cause::NoRule { latency_us } => write!(
                f,
                "latency of {} cannot be judged: no source gives this type's latency",
                ms(*latency_us)
            ),
            _ => self.of_circumstances(f),
        }
    }
}

impl Cause {
    fn of_circumstances(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::QueueNotFull { in_flight, requested } => {
                let kept = count_text(*in_flight);
                write!(f, "{kept} in flight on average, of {requested} requested")
            }
            Cause::Throttled { by } => write!(f, "the job is throttled by {by}"),
            Cause::Flushed => f.write_str("writes wait for flushes"),
            Cause::OneAtATime { engine } => {
                write!(f, "{engine} runs one I/O at a time at any depth")
            }
            Cause::PageCache => f.write_str(
                "the I/O went through the page cache: the result does not show direct=1",
            ),
            Cause::BusyJob { percent } => {
                write!(f, "a job took {percent:.0} % of one CPU and could not submit more")
            }
            Cause::BusyMachine { cpus, vcpus } => {
                write!(f, "the jobs kept {cpus:.1} of {vcpus} vCPUs busy")
            }
            Cause::SameOffsets => f.write_str("several sequential jobs use the same offsets"),
            Cause::Memory { latency_us, best_us } => write!(
                f,
                "latency of {} is that of memory: a disk of this type takes {} or more",
                latency_text(*latency_us),
                latency_text(*best_us)
            ),
            _ => self.of_causes(f),
        }
    }

    fn of_causes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Burst { seconds } => write!(
                f,
                "burst: {} s may not use up the credits; the sustained rate is lower",
                count_text(*seconds)
            ),
            Cause::EasyReads => {
                f.write_str("cache: cached or unwritten blocks may be read without the disk")
            }
            Cause::OtherSize { size, unit } => {
                write!(f, "wrong size: a disk of {} {unit} is allowed this rate", grouped(*size))
            }
            Cause::OtherConfiguration => f.write_str(
                "wrong type, machine or purchase: no size of this type here is allowed this rate",
            ),
            Cause::BeyondEnd { reach_bytes, size_bytes } => write!(
                f,
                "wrong size: the job accessed {:.1} GB, and {:.1} GB were given here (cloud tools write GB for GiB)",
                *reach_bytes as f64 / 1e9,
                *size_bytes as f64 / 1e9
            ),
            Cause::OtherTraffic { gbit_per_s } => {
                write!(f, "egress: {gbit_per_s:.1} Gbit/s of other traffic would leave this rate")
            }
            Cause::SlowPath { extra_us } => write!(
                f,
                "the path adds {} to each I/O: a mirror, a log, a file system or encryption",
                latency_text(*extra_us)
            ),
            _ => f.write_str("other load on the disk or the machine"),
        }
    }
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recommendation::Limit(recommendation) => recommendation.fmt(f),
            Recommendation::Job(change) => change.fmt(f),
        }
    }
}

impl fmt::Display for JobRecommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRecommendation::DeeperQueue { in_flight, iops } => write!(
                f,
                "deeper queue: {} in flight give {} IOPS at the same latency",
                grouped(*in_flight as f64),
                grouped(*iops)
            ),
            JobRecommendation::AsynchronousEngine => {
                f.write_str("an engine that keeps many in flight, such as io_uring or libaio")
            }
            JobRecommendation::MoreJobs { jobs } => {
                write!(f, "more jobs: {jobs}, each on a separate CPU")
            }
            JobRecommendation::StreamsWithOffsets => {
                f.write_str("several streams: more sequential jobs, each with its own offset")
            }
            JobRecommendation::OwnOffsets => {
                f.write_str("a separate offset for each job, such as offset_increment")
            }
            JobRecommendation::DirectIo => f.write_str("direct=1, to bypass the page cache"),
            JobRecommendation::NoThrottle { by } => write!(f, "a run without {by}"),
            JobRecommendation::FewerFlushes => f.write_str("fewer flushes, or more jobs"),
            JobRecommendation::LongerRun { seconds } => {
                write!(f, "check: run for {} s or more, and look at the end", grouped(*seconds))
            }
            JobRecommendation::WriteFirst => {
                f.write_str("check: write the whole range before reading it")
            }
            JobRecommendation::CheckConfiguration => {
                f.write_str("check: look up the type, size and machine, and give them here")
            }
            JobRecommendation::ShorterPath => {
                f.write_str("find the latency in the path: measure the disk directly")
            }
        }
    }
}
