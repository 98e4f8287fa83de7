//! Phases of a fio result: jobs that ran at the same time, with their sum and their access method.
//!
//! fio omits much from its output: options without a value (`stonewall`, `group_reporting`), and
//! the options of all jobs of a group but the first. Fields that cannot be derived without these
//! are `None`.

use crate::fio::options::OfJob;
use crate::fio::output::{FioDirection, FioLatency, JobOutput, Output, shown};
use crate::limits::{DEPTH, THREADS};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FioPhase {
    /// Distinct names, in the order of the output.
    pub names: Vec<String>,
    pub read: PhaseRate,
    pub write: PhaseRate,
    pub jobs: u32,
    /// Requests in flight that the jobs were given; a synchronous engine has one for each job,
    /// whatever depth it was given.
    pub in_flight: Option<u64>,
    /// Run time of the longest job, in s.
    pub seconds: f64,
    /// Run time of the shortest job, in s.
    pub seconds_least: f64,
    /// fio's name of the pattern, if all jobs have the same.
    pub pattern: Option<String>,
    pub random: Option<bool>,
    /// Whether the page cache was used: `direct=1` was not given, and the engine would honor it.
    /// `None` where that is unknown.
    pub cached: Option<bool>,
    /// Name of a synchronous engine that was given a depth above 1.
    pub one_at_a_time: Option<String>,
    /// Option that slows a job down, such as `rate_iops`.
    pub paced_by: Option<&'static str>,
    /// Whether the writes included flushes (`fsync`, `fdatasync`).
    pub flushed: bool,
    /// Whether several sequential jobs accessed the same range of one file.
    pub same_places: bool,
    /// Lower bound of the file's size, in bytes.
    pub reach_bytes: Option<u64>,
    /// CPU time, in CPUs.
    pub cpus: f64,
    /// CPU time of the busiest job, in % of one CPU; of a group, the mean of its jobs.
    pub busiest_percent: f64,
    pub errors: Vec<(String, i64)>,
    /// Percentages and latencies in µs, ascending. Empty if not measured, or of several jobs or of
    /// both directions, whose distributions cannot be summed.
    pub percentiles: Vec<(f64, f64)>,
    /// Standard deviation of the IOPS over time, as a part of their mean; `None` as `percentiles`.
    pub iops_deviation: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseRate {
    pub iops: f64,
    pub bytes_per_s: f64,
    pub ios: u64,
    /// Mean total latency in µs; `None` if fio did not measure it.
    pub latency_us: Option<f64>,
}

impl PhaseRate {
    fn of(side: &FioDirection) -> PhaseRate {
        let ios = side.completed();
        if ios == 0 {
            return PhaseRate::default();
        }
        let (seconds, reported) = (side.runtime as f64 / 1e3, side.completed_per_s());
        let iops = match reported > 0.0 || seconds == 0.0 {
            true => reported,
            false => ios as f64 / seconds,
        };
        let mean = if side.lat.mean > 0.0 { side.lat.mean } else { side.clat.mean };
        PhaseRate {
            iops,
            // fio rounds its byte rate; bytes per request are exact.
            bytes_per_s: iops * (side.io_bytes as f64 / ios as f64),
            ios,
            latency_us: (mean > 0.0).then_some(mean / 1e3),
        }
    }

    fn add(&mut self, other: PhaseRate) {
        if other.ios == 0 {
            return;
        }
        let all = self.iops + other.iops;
        self.latency_us = match (self.latency_us, other.latency_us) {
            _ if self.ios == 0 => other.latency_us,
            (Some(own), Some(more)) if all > 0.0 => {
                Some((own * self.iops + more * other.iops) / all)
            }
            _ => None,
        };
        self.iops = all;
        self.bytes_per_s += other.bytes_per_s;
        self.ios = self.ios.saturating_add(other.ios);
    }

    fn part(self, of: f64) -> PhaseRate {
        let ios = (self.ios as f64 * of).round() as u64;
        PhaseRate { iops: self.iops * of, bytes_per_s: self.bytes_per_s * of, ios, ..self }
    }
}

impl FioPhase {
    pub fn is_idle(&self) -> bool {
        self.read.iops + self.write.iops <= 0.0
    }
}

const ONE_AT_A_TIME: [&str; 7] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice"];
/// Other engines that use the page cache unless `direct=1` is given.
const HEEDS_DIRECT: [&str; 4] = ["libaio", "io_uring", "posixaio", "windowsaio"];
const ENGINE_DEFAULT: &str = "psync";
/// Options that slow a job down.
const PACES: [&str; 4] = ["rate", "rate_iops", "thinktime", "latency_target"];

/// Phases of a result, in the order in which they ran.
///
/// # Errors
/// Results that cannot be summed, as a phrase: of several machines, or of a fio before 3.
pub fn phases(output: &Output) -> Result<Vec<FioPhase>, String> {
    if ["fio-1.", "fio-2."].iter().any(|old| output.version.starts_with(old)) {
        return Err(format!("it is of {}: fio 3 is needed", shown(&output.version)));
    }
    let mut hosts: Vec<_> = output.jobs.iter().filter_map(|job| job.hostname.as_ref()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if hosts.len() > 1 {
        return Err(format!("it is of {} machines: give the result of one", hosts.len()));
    }
    let groups = groups(output);
    let mut phases: Vec<Vec<PhaseJob<'_>>> = Vec::new();
    let mut end = None;
    let apart = one_after_the_other(&groups);
    for group in groups {
        let starts_later = match (start_of(&group), end) {
            (Some(start), Some(end)) => start >= end,
            _ => apart,
        };
        let new = phases.is_empty() || starts_later;
        let ended = start_of(&group).map(|start| start.saturating_add(own_time(&group)));
        end = if new { ended } else { end.zip(ended).map(|(a, b)| a.max(b)) };
        let mut first = new;
        for job in group {
            match phases.last_mut() {
                Some(phase) if !first && job.options.get("wait_for").is_none() => phase.push(job),
                _ => phases.push(vec![job]),
            }
            first = false;
        }
    }
    Ok(phases.iter().map(|jobs| phase(jobs)).collect())
}

struct PhaseJob<'a> {
    output: &'a JobOutput,
    options: OfJob<'a>,
    copies: u32,
}

/// Entries of each group, in the order of the output.
fn groups(output: &Output) -> Vec<Vec<PhaseJob<'_>>> {
    let mut groups: Vec<(i64, Vec<PhaseJob<'_>>)> = Vec::new();
    for job in &output.jobs {
        let options = OfJob { own: &job.options, global: &output.global };
        let entry = PhaseJob { output: job, options, copies: 1 };
        match groups.last_mut() {
            Some((id, entries)) if *id == job.groupid => entries.push(entry),
            _ => groups.push((job.groupid, vec![entry])),
        }
    }
    for (_, entries) in &mut groups {
        // Without group reporting each copy of a job has its own entry.
        if let [only] = entries.as_mut_slice() {
            let copies = only.options.number("numjobs").unwrap_or(1);
            only.copies = copies.clamp(1, u64::from(THREADS)) as u32;
        }
    }
    groups.into_iter().map(|(_, entries)| entries).collect()
}

fn run_ms(job: &JobOutput) -> u64 {
    job.read.runtime.max(job.write.runtime).max(job.mixed.runtime)
}

/// Duration of a group including the warm-up, in ms.
fn own_time(group: &[PhaseJob<'_>]) -> u64 {
    let of = |job: &PhaseJob<'_>| {
        let ramp = job.options.millis("ramp_time").unwrap_or(0);
        run_ms(job.output).saturating_add(ramp)
    };
    // A little less, because the jobs' clocks are read at different times.
    let longest = group.iter().map(of).max().unwrap_or(0);
    longest - longest / 20
}

fn start_of(group: &[PhaseJob<'_>]) -> Option<u64> {
    let starts: Option<Vec<u64>> = group.iter().map(|job| job.output.job_start).collect();
    starts?.into_iter().min().filter(|start| *start > 0)
}

/// Whether groups ran one after the other: then the sum of their durations is fio's run time. Where
/// the run time is unknown, sequential execution is assumed, the usual reason for groups.
fn one_after_the_other(groups: &[Vec<PhaseJob<'_>>]) -> bool {
    let elapsed = groups.iter().flatten().filter_map(|job| job.output.elapsed).max();
    let together = groups.iter().fold(0u64, |sum, group| sum.saturating_add(own_time(group)));
    // fio rounds to seconds.
    elapsed.is_none_or(|seconds| together <= seconds.saturating_add(1).saturating_mul(1000))
}

fn phase(jobs: &[PhaseJob<'_>]) -> FioPhase {
    let mut out = FioPhase { seconds_least: f64::INFINITY, ..FioPhase::default() };
    let mut in_flight = Some(0u64);
    for job in jobs {
        let name = shown(&job.output.name);
        if job.output.error != 0 {
            out.errors.push((name.clone(), job.output.error));
        }
        if !out.names.contains(&name) {
            out.names.push(name);
        }
        let (read, write) = sides(job);
        out.read.add(read);
        out.write.add(write);
        out.jobs = out.jobs.saturating_add(job.copies);
        let seconds = run_ms(job.output) as f64 / 1e3;
        out.seconds = out.seconds.max(seconds);
        out.seconds_least = out.seconds_least.min(seconds);
        let busy = job.output.usr_cpu + job.output.sys_cpu;
        out.cpus += busy / 100.0 * f64::from(job.copies);
        out.busiest_percent = out.busiest_percent.max(busy);
        in_flight = in_flight.zip(depth(job)).map(|(sum, more)| sum.saturating_add(more));
        how(job, &mut out);
    }
    out.in_flight = in_flight.filter(|sum| *sum > 0);
    if let Some(side) = only_side(jobs) {
        out.percentiles = percentiles(side);
        out.iops_deviation = side.iops_deviation();
    }
    let patterns: Vec<_> = jobs.iter().map(|job| pattern(&job.options)).collect();
    let same = patterns.windows(2).all(|two| two[0] == two[1]);
    out.pattern = patterns.first().cloned().flatten().filter(|_| same);
    let known: Option<Vec<String>> = patterns.into_iter().collect();
    out.random = known.map(|all| all.iter().any(|name| name.starts_with("rand")));
    out.same_places = out.random == Some(false) && same_places(jobs);
    out
}

/// The only direction of the only job or group of a phase.
fn only_side<'a>(jobs: &[PhaseJob<'a>]) -> Option<&'a FioDirection> {
    let [only] = jobs else { return None };
    match (only.output.read.completed(), only.output.write.completed()) {
        (1.., 0) => Some(&only.output.read),
        (0, 1..) => Some(&only.output.write),
        _ => None,
    }
}

/// Percentages of fio's own list.
const PERCENTS: [f64; 14] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9];

fn percentiles(side: &FioDirection) -> Vec<(f64, f64)> {
    let of = |latency: &FioLatency| -> Vec<(f64, f64)> {
        let at = |percent: f64| Some((percent, latency.percentile_ns(percent)? / 1e3));
        PERCENTS.into_iter().filter_map(at).collect()
    };
    // Without json+, fio prints percentiles of the completion latency alone.
    let found = of(side.latency());
    if found.is_empty() { of(&side.clat) } else { found }
}

/// Reads and writes. A unified count is split by the configured mix.
fn sides(job: &PhaseJob<'_>) -> (PhaseRate, PhaseRate) {
    let (read, write) = (PhaseRate::of(&job.output.read), PhaseRate::of(&job.output.write));
    if read.ios > 0 || write.ios > 0 {
        return (read, write);
    }
    let all = PhaseRate::of(&job.output.mixed);
    let pattern = pattern(&job.options).unwrap_or_default();
    let percent = match pattern.trim_start_matches("rand") {
        "rw" | "readwrite" => match job.options.number("rwmixwrite") {
            Some(writes) => 100 - writes.min(100),
            None => job.options.number("rwmixread").unwrap_or(50).min(100),
        },
        "write" => 0,
        _ => 100,
    };
    let reads = percent as f64 / 100.0;
    let some = |part: f64| if part > 0.0 { all.part(part) } else { PhaseRate::default() };
    (some(reads), some(1.0 - reads))
}

fn pattern(options: &OfJob<'_>) -> Option<String> {
    if options.is_empty() {
        return None;
    }
    let text = options.get("rw").or_else(|| options.get("readwrite")).unwrap_or("read");
    Some(shown(text.split([':', ',']).next().unwrap_or("").trim()))
}

fn engine<'a>(options: &OfJob<'a>) -> &'a str {
    options.get("ioengine").unwrap_or(ENGINE_DEFAULT)
}

fn depth(job: &PhaseJob<'_>) -> Option<u64> {
    if job.options.is_empty() {
        return None;
    }
    let asked = job.options.number("iodepth").unwrap_or(1).clamp(1, u64::from(DEPTH));
    let kept = if ONE_AT_A_TIME.contains(&engine(&job.options)) { 1 } else { asked };
    Some(kept.saturating_mul(u64::from(job.copies)))
}

/// Adds the access method of an entry to its phase.
fn how(job: &PhaseJob<'_>, out: &mut FioPhase) {
    let options = &job.options;
    if options.is_empty() {
        return;
    }
    let engine = engine(options);
    let one = ONE_AT_A_TIME.contains(&engine);
    if one || HEEDS_DIRECT.contains(&engine) {
        let direct = options.is_on("direct").or(options.is_on("buffered").map(|on| !on));
        let cached = engine == "mmap" || !direct.unwrap_or(false);
        out.cached = Some(out.cached.unwrap_or(false) || cached);
    }
    if one && options.number("iodepth").is_some_and(|depth| depth > 1) {
        out.one_at_a_time = Some(engine.to_owned());
    }
    let pace = PACES.into_iter().find(|name| options.is_above_zero(name));
    out.paced_by = out.paced_by.or(pace);
    out.flushed |= ["fsync", "fdatasync"].iter().any(|name| options.is_above_zero(name));
    let one_file = options.get("filename").is_some_and(|name| !name.contains(':'));
    let reach = options.bytes("filesize").or_else(|| options.bytes("size"));
    if let Some(reach) = reach.filter(|_| one_file) {
        out.reach_bytes = Some(out.reach_bytes.unwrap_or(0).max(reach));
    }
}

/// Whether two jobs start at the same offset of the same file, as far as is known.
fn same_places(jobs: &[PhaseJob<'_>]) -> bool {
    let mut places = Vec::new();
    for job in jobs {
        let options = &job.options;
        let Some(file) = options.get("filename") else { continue };
        // Each copy has its own offset.
        if options.is_above_zero("offset_increment") {
            continue;
        }
        let place = (file, options.get("offset").unwrap_or("0"));
        if job.copies > 1 || places.contains(&place) {
            return true;
        }
        // Bounds memory and time for hostile input.
        if places.len() < 64 {
            places.push(place);
        }
    }
    false
}

#[cfg(test)]
mod tests;
