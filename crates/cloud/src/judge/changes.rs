//! What would help.

use serde::Serialize;

use crate::judge::{Bound, Case, UsedLimit, Verdict};
use crate::limits::{BURST_SECONDS, MAX_BLOCK_BYTES, MAX_DEPTH};
use crate::prediction::{Dimension, Remedy};

/// One change: of the disks and the machine, or of how they are used.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Change {
    /// What lifts a limit.
    Lift(Remedy),
    /// Of the job.
    Job(JobChange),
}

/// A change of how the disks are used or measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum JobChange {
    /// More I/Os in flight, of all jobs.
    DeeperQueue {
        /// So many.
        in_flight: u64,
        /// Which, at the measured latency, give so many IOPS.
        iops: f64,
    },
    /// An engine that keeps many in flight.
    AsynchronousEngine,
    /// More jobs, each on its own CPU.
    MoreJobs {
        /// In all.
        jobs: u64,
    },
    /// Several sequential streams, each at its own offset.
    StreamsWithOffsets,
    /// Offsets for the streams that there are.
    OwnOffsets,
    /// Around the page cache.
    DirectIo,
    /// Without what holds the job back.
    NoPace {
        /// Its name.
        by: String,
    },
    /// Fewer flushes among the writes.
    FewerFlushes,
    /// A longer run.
    LongerRun {
        /// In s.
        seconds: f64,
    },
    /// Written before it is read, all of it.
    WriteFirst,
    /// What the disk is called, its type, size and machine looked up.
    CheckConfiguration,
    /// What adds latency found and taken out of the path.
    ShorterPath,
}

impl Case<'_, '_> {
    /// What would help, the most direct first.
    pub(super) fn changes(
        &self,
        verdict: Verdict,
        bound: Bound,
        limits: &[UsedLimit],
    ) -> Vec<Change> {
        let mut out = match (verdict, bound) {
            (Verdict::Above, Bound::Limit) => self.to_be_sure(),
            (_, Bound::Limit) => lifts(limits),
            (_, Bound::Latency) => self.against_latency(verdict),
            (_, Bound::Cpu) => self.against_cpu(),
            (_, Bound::Job) => self.against_idleness(),
            (_, Bound::NotKnown) => Vec::new(),
        };
        let same_places = self.measured.same_places.then_some(JobChange::OwnOffsets);
        out.extend(same_places.map(Change::Job));
        let direct = self.measured.cached.then_some(Change::Job(JobChange::DirectIo));
        out.extend(direct.filter(|change| !out.contains(change)));
        out
    }

    /// More than is allowed was measured: whether it stays.
    fn to_be_sure(&self) -> Vec<Change> {
        let mut out = Vec::new();
        out.extend(self.measured.cached.then_some(JobChange::DirectIo));
        let short = self.measured.seconds < BURST_SECONDS;
        out.extend(short.then_some(JobChange::LongerRun { seconds: BURST_SECONDS }));
        out.extend((self.mix.read > 0.0).then_some(JobChange::WriteFirst));
        out.push(JobChange::CheckConfiguration);
        out.into_iter().map(Change::Job).collect()
    }

    fn against_latency(&self, verdict: Verdict) -> Vec<Change> {
        let mut out = Vec::new();
        let engine = self.measured.one_at_a_time.is_some();
        out.extend(engine.then_some(Change::Job(JobChange::AsynchronousEngine)));
        out.extend(self.deeper_queue().map(Change::Job));
        if self.is_one_stream() {
            out.push(Change::Job(JobChange::StreamsWithOffsets));
        }
        out.extend(self.larger_blocks().map(Change::Lift));
        let slow = verdict == Verdict::Below;
        out.extend(slow.then_some(Change::Job(JobChange::ShorterPath)));
        let flushes = self.measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(Change::Job(JobChange::FewerFlushes)));
        out
    }

    /// As many as reach what is allowed, if each goes on taking as long as it did.
    fn deeper_queue(&self) -> Option<JobChange> {
        let latency_us = self.latency_us?;
        let iops = self.allowed();
        let in_flight = (iops * latency_us / 1e6 * (1.0 - 1e-9)).ceil();
        let can = in_flight >= 1.0 && in_flight <= f64::from(MAX_DEPTH);
        can.then_some(JobChange::DeeperQueue { in_flight: in_flight as u64, iops })
    }

    /// The block with which the same IOPS take all of the throughput.
    fn larger_blocks(&self) -> Option<Remedy> {
        let used = self.load.used_in(Dimension::Throughput, self.hard);
        let bytes = self.workload.block_bytes as f64 / used;
        let bytes = (bytes.min(MAX_BLOCK_BYTES as f64) / 512.0).floor() as u64 * 512;
        // Blocks are powers of two, unless only another one fits in between.
        let whole = 1 << bytes.max(1).ilog2();
        let bytes = if whole > self.workload.block_bytes { whole } else { bytes };
        (used > 0.0 && bytes > self.workload.block_bytes).then_some(Remedy::LargerBlocks { bytes })
    }

    fn against_cpu(&self) -> Vec<Change> {
        let factor = self.allowed() / self.iops;
        let mut out = Vec::new();
        if let Some(vcpus) = self.site.machine.vcpus.filter(|_| self.machine_is_busy()) {
            let vcpus = (f64::from(vcpus) * factor).ceil() as u32;
            out.push(Change::Lift(Remedy::MoreCpus { vcpus }));
        } else {
            let jobs = (f64::from(self.measured.jobs) * factor).ceil() as u64;
            out.push(Change::Job(JobChange::MoreJobs { jobs }));
        }
        out.extend(self.larger_blocks().map(Change::Lift));
        out
    }

    fn against_idleness(&self) -> Vec<Change> {
        let measured = self.measured;
        let mut out = Vec::new();
        out.extend(measured.paced_by.clone().map(|by| JobChange::NoPace { by }));
        out.extend(measured.cached.then_some(JobChange::DirectIo));
        let flushes = measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(JobChange::FewerFlushes));
        if out.is_empty() {
            // What holds it back is not known; several jobs seldom are held back at once.
            out.push(JobChange::MoreJobs { jobs: 2 * u64::from(measured.jobs) });
        }
        out.into_iter().map(Change::Job).collect()
    }
}

/// What lifts the limits that bind; each of several equal ones has to be lifted.
fn lifts(limits: &[UsedLimit]) -> Vec<Change> {
    let mut out: Vec<Change> = Vec::new();
    for lift in limits.iter().flat_map(|limit| &limit.limit.lifts) {
        let change = Change::Lift(lift.clone());
        if !out.contains(&change) {
            out.push(change);
        }
    }
    out
}
