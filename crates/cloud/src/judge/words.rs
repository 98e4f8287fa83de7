//! A judgement in words.

use std::fmt;

use crate::judge::{Bound, Change, Finding, JobChange, Verdict};
use crate::remedy::grouped;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::AsPredicted => "as predicted",
            Verdict::Above => "above the prediction",
            Verdict::Below => "below the prediction",
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Limit => "a limit of the cloud",
            Bound::Latency => "latency",
            Bound::Cpu => "CPU",
            Bound::Job => "the job itself",
            Bound::NotKnown => "not known",
        })
    }
}

/// Microseconds as people read them.
pub fn latency_text(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A number of I/Os in flight, or seconds, with a decimal where it is small.
pub fn count_text(count: f64) -> String {
    match count {
        n if n < 1.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => grouped(n),
    }
}

/// How often, with as many decimals as it deserves.
fn times(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { grouped(times) }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = latency_text;
        match self {
            Finding::AtLimit { kind, used, because } => {
                write!(f, "{:.0} % of the limit of the {kind} is used: {because}", used * 100.0)
            }
            Finding::BeyondLimit { kind, times: n, iops, because } => {
                let (n, iops) = (times(*n), grouped(*iops));
                write!(f, "{n} times the {iops} IOPS that the {kind} allows: {because}")
            }
            Finding::Latency { in_flight, latency_us, iops, allowed_iops } => write!(
                f,
                "{} in flight, each of which took {}, give {} IOPS (Little's law) of {} that are \
                 allowed",
                count_text(*in_flight),
                ms(*latency_us),
                grouped(*iops),
                grouped(*allowed_iops)
            ),
            Finding::AsTheRule { latency_us, best_us, sure_us } => write!(
                f,
                "{} is what the model has: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*sure_us)
            ),
            Finding::SlowerThanTheRule { latency_us, best_us, sure_us } => write!(
                f,
                "{} is longer than the model has: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*sure_us)
            ),
            Finding::FasterThanTheRule { latency_us, best_us, sure_us } => write!(
                f,
                "{} is shorter than the model has: {} to {}",
                ms(*latency_us),
                ms(*best_us),
                ms(*sure_us)
            ),
            Finding::NoRule { latency_us } => write!(
                f,
                "whether {} is as it should be is not known: no source gives this type's latency",
                ms(*latency_us)
            ),
            _ => self.of_circumstances(f),
        }
    }
}

impl Finding {
    fn of_circumstances(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::QueueNotFull { in_flight, told } => {
                let kept = count_text(*in_flight);
                write!(f, "{kept} were in flight on average, of {told} that were to be")
            }
            Finding::Paced { by } => write!(f, "the job is held back by {by}"),
            Finding::Flushed => f.write_str("writes wait for flushes among them"),
            Finding::OneAtATime { engine } => {
                write!(f, "{engine} does one I/O at a time, whatever depth it is told")
            }
            Finding::PageCache => f.write_str(
                "the page cache stands between: nothing in the result says that it was gone around",
            ),
            Finding::BusyJob { percent } => {
                write!(f, "a job took {percent:.0} % of one CPU and could not submit more")
            }
            Finding::BusyMachine { cpus, vcpus } => {
                write!(f, "the jobs kept {cpus:.1} of {vcpus} vCPUs busy")
            }
            Finding::SamePlaces => f.write_str(
                "several sequential jobs read or write the same places, one after another",
            ),
            Finding::Memory { latency_us, best_us } => write!(
                f,
                "{} is the time of memory: a disk of this type takes {} at best",
                latency_text(*latency_us),
                latency_text(*best_us)
            ),
            _ => self.of_causes(f),
        }
    }

    fn of_causes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Burst { seconds } => write!(
                f,
                "burst: in {} s, credits may not have been spent, and it falls to what is sustained",
                count_text(*seconds)
            ),
            Finding::EasyReads => f.write_str(
                "cache: what was read before, or never written, may be answered without the disk",
            ),
            Finding::OtherSize { size, unit } => {
                write!(f, "wrong size: a disk of {} {unit} is allowed this much", grouped(*size))
            }
            Finding::OtherConfiguration => f.write_str(
                "wrong type, machine or purchase: no size of this disk here is allowed this much",
            ),
            Finding::BeyondTheEnd { reach_bytes, size_bytes } => write!(
                f,
                "wrong size: the job was told that the disk reaches {:.1} GB, and {:.1} GB were \
                 given here (cloud tools write GB for GiB)",
                *reach_bytes as f64 / 1e9,
                *size_bytes as f64 / 1e9
            ),
            Finding::OtherTraffic { gbit_per_s } => write!(
                f,
                "egress: {gbit_per_s:.1} Gbit/s of other traffic of the machine would leave this much"
            ),
            Finding::SlowPath { extra_us } => write!(
                f,
                "something in the path adds {} to each: a mirror, a log, a file system, encryption",
                latency_text(*extra_us)
            ),
            _ => f.write_str("other load on the disk or the machine"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Lift(remedy) => remedy.fmt(f),
            Change::Job(change) => change.fmt(f),
        }
    }
}

impl fmt::Display for JobChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobChange::DeeperQueue { in_flight, iops } => write!(
                f,
                "deeper queue: {} in flight give {} IOPS, if the latency stays as it is",
                grouped(*in_flight as f64),
                grouped(*iops)
            ),
            JobChange::AsynchronousEngine => {
                f.write_str("an engine that keeps many in flight, such as io_uring or libaio")
            }
            JobChange::MoreJobs { jobs } => {
                write!(f, "more jobs: {jobs}, each on a CPU of its own")
            }
            JobChange::StreamsWithOffsets => {
                f.write_str("several streams: more sequential jobs, each with its own offset")
            }
            JobChange::OwnOffsets => {
                f.write_str("an offset of its own for each job, such as offset_increment")
            }
            JobChange::DirectIo => {
                f.write_str("direct=1, to measure the disk and not the page cache")
            }
            JobChange::NoPace { by } => write!(f, "a run without {by}"),
            JobChange::FewerFlushes => f.write_str("fewer flushes among the writes, or more jobs"),
            JobChange::LongerRun { seconds } => {
                write!(
                    f,
                    "to be sure: a run of {} s or more, and look at its end",
                    grouped(*seconds)
                )
            }
            JobChange::WriteFirst => {
                f.write_str("to be sure: write the whole range before it is read")
            }
            JobChange::CheckConfiguration => {
                f.write_str("to be sure: look up the type, size and machine, and give them here")
            }
            JobChange::ShorterPath => {
                f.write_str("find what in the path takes the time: measure the disk without it")
            }
        }
    }
}
