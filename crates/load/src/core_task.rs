//! Part of a job that runs on one core: plain I/Os, stamped I/Os that are read back, or the check
//! of the recorded state of an earlier run.

use std::path::Path;
use std::sync::atomic::Ordering;

use flagstone_blockdev::SharedDevice;
use flagstone_runtime::Buf;
use flagstone_runtime::time::Instant;

use crate::job::{Crash, JobRange, LoadJob, Verify};
use crate::lane::{IoOutcome, Lane, LaneBounds, LaneEnd, LaneWorkload, Links, Next};
use crate::payload::Payload;
use crate::plan::{OpKind, Plan, PlannedIo, part, split};
use crate::results::VerifyResults;
use crate::run::RunError;
use crate::stats::Stats;
use crate::verify::journal::{self, Header, JournalError};
use crate::verify::load::Verified;
use crate::verify::{Initial, Verifier, VerifierConfig, Violation};

pub(crate) struct CoreReport {
    pub(crate) stats: Stats,
    pub(crate) end: LaneEnd,
    pub(crate) verify: Option<VerifyResults>,
}

pub(crate) struct CoreTask {
    pub(crate) device: SharedDevice,
    pub(crate) job: LoadJob,
    pub(crate) range: JobRange,
    pub(crate) core: usize,
    pub(crate) run_id: u64,
    pub(crate) measure_from: Instant,
    pub(crate) links: Links,
}

impl CoreTask {
    pub(crate) async fn run(self) -> Result<CoreReport, RunError> {
        match self.job.verify.clone() {
            None => self.run_plain().await,
            Some(Verify::Written { state }) => self.run_written(state.as_deref()).await,
            Some(Verify::Recorded { state, crash }) => self.run_recorded(&state, crash).await,
        }
    }

    fn part(&self) -> JobRange {
        if self.job.splits_range() {
            part(&self.device.geometry(), self.range, self.core, self.job.cores)
        } else {
            self.range
        }
    }

    fn depth(&self) -> usize {
        split(self.job.depth as u64, self.core, self.job.cores) as usize
    }

    /// Bounds of the job's own I/Os.
    fn bounds(&self) -> LaneBounds {
        let share = |total: u64| split(total, self.core, self.job.cores);
        let job = &self.job;
        let measure_from_ns = self.measure_from.as_nanos();
        let endless = job.time.is_none() && job.ios.is_none() && job.bytes.is_none();
        let bytes = job.bytes.or(endless.then_some(self.range.size_bytes));
        LaneBounds {
            depth: self.depth(),
            io_bytes_max: job.io_bytes_max(),
            fua: job.fua,
            measure_from_ns,
            by_end: job.ios.is_none() && job.bytes.is_none(),
            end_at_ns: job.time.map_or(u64::MAX, |time| (self.measure_from + time).as_nanos()),
            ios: job.ios.map_or(u64::MAX, share),
            bytes: bytes.map_or(u64::MAX, share),
            rate_iops: job.rate_iops.map(share),
            errors_max: job.errors_max,
        }
    }

    fn scan_bounds(&self) -> LaneBounds {
        LaneBounds {
            measure_from_ns: 0,
            end_at_ns: u64::MAX,
            ios: u64::MAX,
            bytes: u64::MAX,
            rate_iops: None,
            ..self.bounds()
        }
    }

    async fn lane<W: LaneWorkload>(
        &self,
        workload: &mut W,
        bounds: LaneBounds,
        kinds: &[OpKind],
    ) -> Result<(LaneEnd, Stats), RunError> {
        let (device, links) = (self.device.clone(), self.links.clone());
        let lane = Lane::new(device, workload, bounds, links, kinds).ok_or(RunError::NoMemory)?;
        Ok(lane.await)
    }

    async fn run_plain(&self) -> Result<CoreReport, RunError> {
        let pattern = self.job.pattern;
        let payload = if pattern.writes() {
            let bytes = crate::job::payload_bytes(&self.job);
            let seed = self.job.seed ^ self.run_id;
            Some(Payload::new(&self.job.data, seed, bytes).ok_or(RunError::NoMemory)?)
        } else {
            None
        };
        let plan = Plan::new(&self.job, self.core, self.part());
        let mut plain = Plain { plan, payload };
        let (end, stats) = self.lane(&mut plain, self.bounds(), &kinds(&self.job)).await?;
        Ok(CoreReport { stats, end, verify: None })
    }

    async fn run_written(&self, state: Option<&Path>) -> Result<CoreReport, RunError> {
        let geometry = self.device.geometry();
        let part = self.part();
        let config = VerifierConfig {
            run_id: self.run_id,
            writer: self.core as u32,
            offset_bytes: part.offset_bytes,
            block_bytes: geometry.block_bytes,
            blocks: part.size_bytes / u64::from(geometry.block_bytes),
            volatile_cache: geometry.volatile_cache,
            initial: Initial::Unknown,
        };
        let journal = match state {
            Some(path) => Some(journal::JournalWriter::create(path, &header(&config)).await?),
            None => None,
        };
        let plan = Plan::new(&self.job, self.core, part);
        let verifier = Verifier::new(config);
        let mut work = Verified::new(plan, verifier, journal, self.job.fua, self.depth());
        let (mut end, mut stats) = self.lane(&mut work, self.bounds(), &kinds(&self.job)).await?;
        let abandoned = self.links.signals.abandon.load(Ordering::Relaxed);
        let read_back = end == LaneEnd::Complete && !abandoned;
        if read_back {
            self.links.gauge.reads_back.store(true, Ordering::Relaxed);
            let ticket = work.flush_begins();
            let flushed = self.device.flush().await;
            if let Err(error) = flushed {
                stats.record_error(OpKind::Flush, error);
            }
            work.flush_ended(ticket, flushed.is_ok());
            work.turn_to(Plan::scan(part, self.job.io_bytes_max()));
            let (scan_end, scan) =
                self.lane(&mut work, self.scan_bounds(), &[OpKind::Read]).await?;
            end = scan_end;
            // Statistics cover the job's own I/Os; of the read-back, only errors and violations
            // count.
            stats.add_trouble(&scan);
        }
        let read_back = read_back && end == LaneEnd::Complete;
        report(work, stats, end, read_back)
    }

    async fn run_recorded(&self, state: &Path, crash: Crash) -> Result<CoreReport, RunError> {
        let recorded = journal::load(state).await?;
        let Header { run_id, offset_bytes, blocks, block_bytes, writer } = recorded.header;
        let geometry = self.device.geometry();
        if block_bytes != geometry.block_bytes {
            return Err(JournalError::OtherDevice("their size is another").into());
        }
        let range = JobRange { offset_bytes, size_bytes: blocks * u64::from(block_bytes) };
        if geometry.check(range.offset_bytes, range.size_bytes).is_err() {
            return Err(JournalError::OtherDevice("they lie beyond its end").into());
        }
        let mut verifier = Verifier::new(VerifierConfig {
            run_id,
            writer,
            offset_bytes,
            block_bytes,
            blocks,
            volatile_cache: true,
            initial: Initial::Unknown,
        });
        let oldest = match crash {
            Crash::ClientOnly => &recorded.completed,
            Crash::Server => &recorded.durable,
        };
        for (block, oldest) in (0..).zip(oldest) {
            verifier.expect_recorded(block, *oldest);
        }
        let plan = Plan::scan(range, self.job.io_bytes_max());
        let mut work = Verified::new(plan, verifier, None, false, self.depth());
        let (end, stats) = self.lane(&mut work, self.scan_bounds(), &[OpKind::Read]).await?;
        report(work, stats, end, end == LaneEnd::Complete)
    }
}

fn header(config: &VerifierConfig) -> Header {
    let VerifierConfig { run_id, writer, offset_bytes, block_bytes, blocks, .. } = *config;
    Header { run_id, offset_bytes, blocks, block_bytes, writer }
}

fn kinds(job: &LoadJob) -> Vec<OpKind> {
    let pattern = job.pattern;
    let has = [
        (pattern.reads(), OpKind::Read),
        (pattern.writes(), OpKind::Write),
        (pattern.trims(), OpKind::Trim),
        (job.flush_every.is_some(), OpKind::Flush),
    ];
    has.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind).collect()
}

fn report(
    work: Verified,
    stats: Stats,
    end: LaneEnd,
    read_back: bool,
) -> Result<CoreReport, RunError> {
    let verify = VerifyResults {
        run_id: work.verifier.config().run_id,
        blocks_written: work.written_blocks,
        blocks_checked: work.checked_blocks,
        violations: work.violations,
        first: work.first.iter().map(|violation: &Violation| violation.into()).collect(),
        read_back,
    };
    // Wrong data takes precedence over a failure of the journal.
    if let Some(journal) = work.journal
        && work.violations == 0
    {
        journal.into_result()?;
    }
    Ok(CoreReport { stats, end, verify: Some(verify) })
}

/// I/Os whose data is not checked.
struct Plain {
    plan: Plan,
    payload: Option<Payload>,
}

impl LaneWorkload for Plain {
    #[inline]
    fn next(&mut self, _slot: usize) -> Next {
        self.plan.next().map_or(Next::End, Next::Io)
    }

    fn payload(&mut self, _slot: usize, op: &PlannedIo) -> Option<Buf> {
        self.payload.as_mut().map(|payload| payload.next(op.len))
    }

    fn ended(&mut self, _slot: usize, _op: &PlannedIo, _outcome: IoOutcome<'_>) {}
}
