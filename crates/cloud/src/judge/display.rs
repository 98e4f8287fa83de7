//! Text of a judgment.

use std::fmt;

use flagstone_units::display::{latency, size};
use flagstone_units::grouped;

use crate::judge::causes::RuleLatency;
use crate::judge::{Bottleneck, Cause, JudgmentVerdict, LatencyShape};

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
            Bottleneck::LatencyOrCap => "latency, or a cap that is not in the catalog",
            Bottleneck::LikelyLatency => "probably latency",
            Bottleneck::LikelyCap => "probably a cap that is not in the catalog",
            Bottleneck::Cap => "a cap that is not in the catalog",
            Bottleneck::Cpu => "CPU",
            Bottleneck::Job => "the job itself",
            Bottleneck::NotKnown => "not known",
        })
    }
}

/// A number of I/Os in flight or seconds, with decimals for small numbers.
pub fn count_text(count: f64) -> String {
    match count {
        n if n < 1.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => grouped(n, 0),
    }
}

/// A multiple, with decimals for small numbers.
fn times(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { grouped(times, 0) }
}

impl RuleLatency {
    fn write(&self, comparison: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = [self.latency_us, self.best_us, self.guaranteed_us];
        let [mean, best, guaranteed] = us.map(latency);
        write!(f, "latency of {mean} {comparison} the model: {best} to {guaranteed}")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = latency;
        use Cause::*;
        match self {
            AtLimit { kind, utilization, explanation } => {
                write!(
                    f,
                    "{:.0} % of the limit of the {kind} is used: {explanation}",
                    utilization * 100.0
                )
            }
            BeyondLimit { kind, times: n, iops, explanation } => {
                let (n, iops) = (times(*n), grouped(*iops, 0));
                write!(f, "{n} times the {iops} IOPS that the {kind} allows: {explanation}")
            }
            Latency { in_flight, latency_us, iops, allowed_iops } => write!(
                f,
                "{} in flight at {} each give {} IOPS of {} allowed (Little's law)",
                count_text(*in_flight),
                ms(*latency_us),
                grouped(*iops, 0),
                grouped(*allowed_iops, 0)
            ),
            OneDepth { in_flight } => write!(
                f,
                "one result at one depth ({} in flight) cannot distinguish a latency from a cap",
                count_text(*in_flight)
            ),
            LatencySpread { shape, median_us, p99_us } => {
                let (alike, like) = match shape {
                    LatencyShape::Narrow => ("nearly equal", "as under a throttle"),
                    LatencyShape::Steps => ("in steps", "as under a throttle that refills"),
                    LatencyShape::Wide => ("far apart", "unlike under a throttle"),
                };
                let (median, p99) = (ms(*median_us), ms(*p99_us));
                write!(f, "latencies are {alike} (median {median}, 99 % within {p99}), {like}")
            }
            RateOverTime { deviation } => {
                write!(f, "the IOPS vary by {:.1} % over time", deviation * 100.0)
            }
            SameAtOtherDepth { in_flight } => {
                write!(f, "the same IOPS with {} in flight: a cap", count_text(*in_flight))
            }
            FollowsDepth { in_flight } => write!(
                f,
                "the IOPS follow the depth ({} in flight compared): latency",
                count_text(*in_flight)
            ),
            SameThroughput { block_bytes } => write!(
                f,
                "the same MB/s with blocks of {}: a cap of throughput",
                size(*block_bytes)
            ),
            FittingType { kind, iops } => write!(
                f,
                "cap: a disk of {kind} of this size is allowed {} IOPS",
                grouped(*iops, 0)
            ),
            FittingMachine { machine, iops } => {
                write!(f, "cap: {machine} is allowed {} IOPS", grouped(*iops, 0))
            }
            Observed { source, machine } => {
                write!(f, "cap: the same rate was measured on {machine} by {source}")
            }
            MatchesRule(found) => found.write("matches", f),
            SlowerThanRule(found) => found.write("is above", f),
            FasterThanRule(found) => found.write("is below", f),
            NoRule { latency_us } => write!(
                f,
                "latency of {} cannot be judged: no source gives this type's latency",
                ms(*latency_us)
            ),
            QueueNotFull { in_flight, requested } => {
                let kept = count_text(*in_flight);
                write!(f, "{kept} in flight on average, of {requested} requested")
            }
            Throttled { by } => write!(f, "the job is throttled by {by}"),
            Flushed => f.write_str("writes wait for flushes"),
            OneAtATime { engine } => {
                write!(f, "{engine} runs one I/O at a time at any depth")
            }
            PageCache => f.write_str(
                "the I/O went through the page cache: the result does not show direct=1",
            ),
            BusyJob { percent } => {
                write!(f, "a job took {percent:.0} % of one CPU and could not submit more")
            }
            BusyMachine { cpus, vcpus } => {
                write!(f, "the jobs kept {cpus:.1} of {vcpus} vCPUs busy")
            }
            SameOffsets => f.write_str("several sequential jobs use the same offsets"),
            Memory { latency_us, best_us } => write!(
                f,
                "latency of {} is that of memory: a disk of this type takes {} or more",
                latency(*latency_us),
                latency(*best_us)
            ),
            Burst { seconds } => write!(
                f,
                "burst: {} s may not use up the credits; the sustained rate is lower",
                count_text(*seconds)
            ),
            EasyReads => {
                f.write_str("cache: cached or unwritten blocks may be read without the disk")
            }
            OtherSize { size, unit } => {
                write!(f, "wrong size: a disk of {} {unit} is allowed this rate", grouped(*size, 0))
            }
            OtherConfiguration => f.write_str(
                "wrong type, machine or purchase: no size of this type here is allowed this rate",
            ),
            BeyondEnd { reach_bytes, size_bytes } => write!(
                f,
                "wrong size: the job accessed {:.1} GB, and {:.1} GB were given here (cloud tools write GB for GiB)",
                *reach_bytes as f64 / 1e9,
                *size_bytes as f64 / 1e9
            ),
            OtherTraffic { gbit_per_s } => {
                write!(f, "egress: {gbit_per_s:.1} Gbit/s of other traffic would leave this rate")
            }
            SlowPath { extra_us } => write!(
                f,
                "the path adds {} to each I/O: a mirror, a log, a file system or encryption",
                latency(*extra_us)
            ),
            OtherLoad => f.write_str("other load on the disk or the machine"),
        }
    }
}
