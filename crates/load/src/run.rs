//! Run of a job: its cores, their supervision, and the combination of their results.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{Geometry, SharedDevice};
use flagstone_runtime::sync::{OneReceiver, oneshot};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{buf, cores, random_u64, spawn_detached};
use parking_lot::Mutex;

use crate::core_task::{CoreReport, CoreTask};
use crate::job::{JobError, JobRange, LoadJob};
use crate::lane::{LaneEnd, LaneSignals, Links};
use crate::limits::{DRAIN, SAMPLE_EVERY, SAMPLES_MAX};
use crate::plan::split;
use crate::results::{
    CpuResults, DeviceSummary, ErrorCount, JobSummary, LoadOutcome, LoadResults, SCHEMA_VERSION,
    Sample, VerifyResults, operations,
};
use crate::slots::WokenSlots;
use crate::stats::{Gauge, Reading, Stats};
use crate::usage::{CpuUsage, usage};
use crate::verify::journal::JournalError;

/// Reason that there are no results.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Job(#[from] JobError),
    /// The file of the recorded state failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Other users of this process took the memory that was free at validation.
    #[error("no pooled memory is left for the job's buffers")]
    NoMemory,
    /// A core ended before its part of the job.
    #[error("a core of the runtime ended before its part of the job")]
    CoreLost,
}

/// Ends a job early. Clones refer to the same job; any thread may use them.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Debug, Default)]
struct StopState {
    wanted: AtomicBool,
    watcher: Mutex<Option<Waker>>,
}

impl Stop {
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Requests the end: no more I/Os start, and [`run`] returns results when those in flight have
    /// ended.
    pub fn stop(&self) {
        self.0.wanted.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.0.watcher.lock().take() {
            watcher.wake();
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.wanted.load(Ordering::SeqCst)
    }
}

/// Progress of a job, reported once per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    /// Expected total time of a job with a time limit, warm-up included.
    pub expected: Option<Duration>,
    /// I/Os counted so far.
    pub ios: u64,
    pub bytes: u64,
    pub sample: Sample,
    /// Failed I/Os so far.
    pub errors: u64,
    /// Blocks with wrong content found so far.
    pub violations: u64,
    /// The job's own I/Os are over; the range is being read back.
    pub reads_back: bool,
}

/// Runs `job` against `device` until its end, on the first `job.cores` cores of the runtime (the
/// current core if that is 1), and calls `progress` once per second.
///
/// Dropping the future ends the I/Os of the job soon after.
///
/// # Errors
/// [`RunError`], before any I/O, except for failures of the state file. Failed I/Os are not errors
/// here: the results count them.
pub async fn run(
    device: SharedDevice,
    job: &LoadJob,
    stop: &Stop,
    mut progress: impl FnMut(&LoadProgress),
) -> Result<LoadResults, RunError> {
    let geometry = device.geometry();
    let range = job.validate(&geometry, cores().len(), buf::memory_limit())?;
    let started = time::now();
    let mut team = Team::start(&device, job, range, started);
    let mut watch = Watch::new(job, started);
    loop {
        let until = watch.next_look().since(time::now());
        let ended = time::timeout(until, team.wait(stop, watch.stopped)).await == Ok(Waited::Ended);
        watch.look(&team, stop, &mut progress);
        if ended {
            break;
        }
    }
    let reports = team.take()?;
    Ok(assemble(job, &geometry, range, reports, watch))
}

#[derive(Debug, PartialEq, Eq)]
enum Waited {
    Ended,
    Stopped,
}

/// Report of a core that still works, or its outcome.
enum Report {
    Pending(OneReceiver<Result<CoreReport, RunError>>),
    Ended(Result<CoreReport, RunError>),
}

impl Report {
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Report::Pending(receiver) = self
            && let Poll::Ready(outcome) = Pin::new(receiver).poll(cx)
        {
            *self = Report::Ended(outcome.unwrap_or(Err(RunError::CoreLost)));
        }
        matches!(self, Report::Ended(_))
    }
}

/// The working cores. Dropping it ends them.
struct Team {
    reports: Vec<Report>,
    signals: Arc<LaneSignals>,
    links: Vec<Links>,
}

impl Team {
    fn start(device: &SharedDevice, job: &LoadJob, range: JobRange, started: Instant) -> Team {
        let run_id = random_u64();
        let mut team = Team { reports: Vec::new(), signals: Arc::default(), links: Vec::new() };
        for core in 0..job.cores {
            let links = Links {
                signals: team.signals.clone(),
                gauge: Arc::new(Gauge::default()),
                woken: WokenSlots::new(split(job.depth as u64, core, job.cores) as usize),
            };
            team.links.push(links.clone());
            let (on_this_core, measure_from) = (job.cores == 1, started + job.warm_up);
            let (device, job) = (device.clone(), job.clone());
            let task = CoreTask { device, job, range, core, run_id, measure_from, links };
            // With one core the work stays on the caller's core, which in simulation is the
            // caller's node.
            let receiver = if on_this_core {
                let (sender, receiver) = oneshot();
                spawn_detached(async move { sender.send(task.run().await) });
                receiver
            } else {
                cores()[core].call(move || task.run())
            };
            team.reports.push(Report::Pending(receiver));
        }
        team
    }

    /// Waits until all cores have reported, or (unless already known) until a stop is requested.
    async fn wait(&mut self, stop: &Stop, stop_is_known: bool) -> Waited {
        poll_fn(|cx| {
            *stop.0.watcher.lock() = Some(cx.waker().clone());
            if self.reports.iter_mut().all(|report| report.poll(cx)) {
                return Poll::Ready(Waited::Ended);
            }
            if stop.is_wanted() && !stop_is_known {
                return Poll::Ready(Waited::Stopped);
            }
            Poll::Pending
        })
        .await
    }

    fn reading(&self) -> Reading {
        let readings = self.links.iter().map(|links| links.gauge.read());
        readings.fold(Reading::default(), Reading::plus)
    }

    fn reads_back(&self) -> bool {
        self.links.iter().any(|links| links.gauge.reads_back.load(Ordering::Relaxed))
    }

    fn raise(&self, signal: &AtomicBool) {
        signal.store(true, Ordering::SeqCst);
        for links in &self.links {
            links.woken.notify();
        }
    }

    fn take(&mut self) -> Result<Vec<CoreReport>, RunError> {
        let outcomes = self.reports.drain(..).map(|report| match report {
            Report::Ended(outcome) => outcome,
            Report::Pending(_) => Err(RunError::CoreLost),
        });
        outcomes.collect()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.raise(&self.signals.stop);
        self.raise(&self.signals.abandon);
    }
}

/// Supervision by the caller's task: time, samples, and unresponsive devices.
struct Watch {
    started: Instant,
    measure_from: Instant,
    end_at: Option<Instant>,
    expected: Option<Duration>,
    next_sample: Instant,
    last_sample: (Instant, Reading),
    /// Time of the last change of the counters, and their values.
    last_move: (Instant, Reading),
    stopped: bool,
    usage_before: Option<CpuUsage>,
    measuring: bool,
    samples: Vec<Sample>,
}

impl Watch {
    fn new(job: &LoadJob, started: Instant) -> Watch {
        let timed = job.time.filter(|_| !crate::results::is_recorded(job));
        let expected = timed.map(|time| job.warm_up + time);
        Watch {
            started,
            measure_from: started + job.warm_up,
            end_at: expected.map(|span| started + span),
            expected,
            next_sample: started + SAMPLE_EVERY,
            last_sample: (started, Reading::default()),
            last_move: (started, Reading::default()),
            stopped: false,
            usage_before: if job.warm_up.is_zero() { usage() } else { None },
            measuring: job.warm_up.is_zero(),
            samples: Vec::new(),
        }
    }

    fn next_look(&self) -> Instant {
        let measure_from = (!self.measuring).then_some(self.measure_from);
        let moments = [measure_from, self.end_at].into_iter().flatten();
        moments.fold(self.next_sample, Instant::min)
    }

    fn look(&mut self, team: &Team, stop: &Stop, progress: &mut impl FnMut(&LoadProgress)) {
        let now = time::now();
        if !self.measuring && now >= self.measure_from {
            self.measuring = true;
            self.usage_before = usage();
        }
        if self.end_at.is_some_and(|end_at| now >= end_at) {
            self.end_at = None;
            self.last_move.0 = now;
            team.raise(&team.signals.time_up);
        }
        if stop.is_wanted() && !self.stopped {
            self.stopped = true;
            self.last_move.0 = now;
            team.raise(&team.signals.stop);
        }
        self.look_for_silence(now, team);
        if now >= self.next_sample {
            self.sample(now, team, progress);
        }
    }

    /// Abandons I/Os that do not end long after the job's end.
    fn look_for_silence(&mut self, now: Instant, team: &Team) {
        let reading = team.reading();
        if reading != self.last_move.1 {
            self.last_move = (now, reading);
        }
        let over = self.stopped || team.signals.time_up.load(Ordering::Relaxed);
        if over && now.since(self.last_move.0) >= DRAIN {
            team.raise(&team.signals.stop);
            team.raise(&team.signals.abandon);
        }
    }

    fn sample(&mut self, now: Instant, team: &Team, progress: &mut impl FnMut(&LoadProgress)) {
        let reading = team.reading();
        let (then, earlier) = std::mem::replace(&mut self.last_sample, (now, reading));
        while self.next_sample <= now {
            self.next_sample = self.next_sample + SAMPLE_EVERY;
        }
        let (moved, span_s) = (reading.since(earlier), now.since(then).as_secs_f64());
        let elapsed = now.since(self.started);
        let sample = Sample {
            at_s: elapsed.as_secs_f64(),
            iops: moved.ios as f64 / span_s,
            mb_per_s: moved.bytes as f64 / span_s / 1e6,
            mean_latency_us: moved.latency_sum_ns as f64 / 1e3 / moved.ios.max(1) as f64,
            errors: moved.errors,
        };
        let reads_back = team.reads_back();
        if self.measuring && !reads_back && self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        }
        progress(&LoadProgress {
            elapsed,
            expected: self.expected,
            ios: reading.ios,
            bytes: reading.bytes,
            sample,
            errors: reading.errors,
            violations: reading.violations,
            reads_back,
        });
    }
}

fn assemble(
    job: &LoadJob,
    geometry: &Geometry,
    range: JobRange,
    reports: Vec<CoreReport>,
    watch: Watch,
) -> LoadResults {
    let mut stats = Stats::default();
    let mut verify: Option<VerifyResults> = None;
    let mut ends = Vec::new();
    for report in reports {
        stats.merge(&report.stats);
        ends.push(report.end);
        if let Some(core) = report.verify {
            verify = Some(match verify {
                Some(sum) => sum.plus(core),
                None => core,
            });
        }
    }
    let elapsed_s = stats.last_ns.saturating_sub(watch.measure_from.as_nanos()) as f64 / 1e9;
    let (total, operations) = operations(&stats, elapsed_s);
    let ios = total.as_ref().map_or(0, |total| total.ios);
    let used = usage().zip(watch.usage_before).map(|(now, before)| now.since(before));
    let errors = stats.errors.iter().map(|((operation, error), count)| ErrorCount {
        operation: *operation,
        error: (*error).to_owned(),
        count: *count,
    });
    LoadResults {
        schema_version: SCHEMA_VERSION,
        outcome: outcome(job, &stats, &ends, verify.as_ref()),
        job: JobSummary::new(job, range),
        device: DeviceSummary::new(geometry),
        elapsed_s,
        total,
        operations,
        errors: errors.collect(),
        unfinished_ios: stats.unfinished,
        cpu: used.filter(|_| verify.is_none()).map(|used| CpuResults::new(used, ios, elapsed_s)),
        samples: watch.samples,
        verify,
    }
}

fn outcome(
    job: &LoadJob,
    stats: &Stats,
    ends: &[LaneEnd],
    verify: Option<&VerifyResults>,
) -> LoadOutcome {
    if verify.is_some_and(|verify| verify.violations > 0) {
        LoadOutcome::VerifyFailed
    } else if stats.unfinished > 0 {
        LoadOutcome::Unresponsive
    } else if ends.contains(&LaneEnd::Errors) || stats.failed > job.errors_max {
        LoadOutcome::IoErrors
    } else if ends.contains(&LaneEnd::Stopped) {
        LoadOutcome::Stopped
    } else {
        LoadOutcome::Complete
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
