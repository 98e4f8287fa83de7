//! Recommendations.

use serde::Serialize;

use crate::judge::{Bottleneck, Case, JudgmentVerdict, LimitUtilization};
use crate::limits::{BURST_SECONDS, MAX_BLOCK_BYTES, MAX_DEPTH};
use crate::prediction::{Dimension, LimitRecommendation};

/// A recommendation: a change of the configuration, or of its use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Recommendation {
    Limit(LimitRecommendation),
    Job(JobRecommendation),
}

/// A change of the job or of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum JobRecommendation {
    /// More I/Os in flight, over all jobs.
    DeeperQueue {
        in_flight: u64,
        /// Resulting IOPS at the measured latency.
        iops: f64,
    },
    /// An I/O engine that keeps several I/Os in flight.
    AsynchronousEngine,
    /// More jobs, each on its own CPU.
    MoreJobs {
        jobs: u64,
    },
    /// Several sequential streams, each at its own offset.
    StreamsWithOffsets,
    /// Separate offsets for the existing streams.
    OwnOffsets,
    DirectIo,
    NoThrottle {
        by: String,
    },
    /// Fewer flushes between writes.
    FewerFlushes,
    LongerRun {
        seconds: f64,
    },
    /// Write the whole range before reading it.
    WriteFirst,
    /// Look up the type, size and machine of the disk.
    CheckConfiguration,
    /// Find and remove the added latency in the path.
    ShorterPath,
}

impl Case<'_, '_> {
    /// Recommendations, the most direct first.
    pub(super) fn recommendations(
        &self,
        verdict: JudgmentVerdict,
        bottleneck: Bottleneck,
        limits: &[LimitUtilization],
    ) -> Vec<Recommendation> {
        let mut out = match (verdict, bottleneck) {
            (JudgmentVerdict::Above, Bottleneck::Limit) => self.to_be_sure(),
            (_, Bottleneck::Limit) => recommendations(limits),
            (_, Bottleneck::Latency) => self.against_latency(verdict),
            (_, Bottleneck::Cpu) => self.against_cpu(),
            (_, Bottleneck::Job) => self.against_idleness(),
            (_, Bottleneck::NotKnown) => Vec::new(),
        };
        let same_offsets = self.measured.same_offsets.then_some(JobRecommendation::OwnOffsets);
        out.extend(same_offsets.map(Recommendation::Job));
        let direct =
            self.measured.cached.then_some(Recommendation::Job(JobRecommendation::DirectIo));
        out.extend(direct.filter(|change| !out.contains(change)));
        out
    }

    /// A measurement above the limits: checks that it is sustained.
    fn to_be_sure(&self) -> Vec<Recommendation> {
        let mut out = Vec::new();
        out.extend(self.measured.cached.then_some(JobRecommendation::DirectIo));
        let short = self.measured.seconds < BURST_SECONDS;
        out.extend(short.then_some(JobRecommendation::LongerRun { seconds: BURST_SECONDS }));
        out.extend((self.mix.read > 0.0).then_some(JobRecommendation::WriteFirst));
        out.push(JobRecommendation::CheckConfiguration);
        out.into_iter().map(Recommendation::Job).collect()
    }

    fn against_latency(&self, verdict: JudgmentVerdict) -> Vec<Recommendation> {
        let mut out = Vec::new();
        let engine = self.measured.one_at_a_time.is_some();
        out.extend(engine.then_some(Recommendation::Job(JobRecommendation::AsynchronousEngine)));
        out.extend(self.deeper_queue().map(Recommendation::Job));
        if self.is_one_stream() {
            out.push(Recommendation::Job(JobRecommendation::StreamsWithOffsets));
        }
        out.extend(self.larger_blocks().map(Recommendation::Limit));
        let slow = verdict == JudgmentVerdict::Below;
        out.extend(slow.then_some(Recommendation::Job(JobRecommendation::ShorterPath)));
        let flushes = self.measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(Recommendation::Job(JobRecommendation::FewerFlushes)));
        out
    }

    /// Queue depth that reaches the allowed rate at the measured latency.
    fn deeper_queue(&self) -> Option<JobRecommendation> {
        let latency_us = self.latency_us?;
        let iops = self.allowed();
        let in_flight = (iops * latency_us / 1e6 * (1.0 - 1e-9)).ceil();
        let can = in_flight >= 1.0 && in_flight <= f64::from(MAX_DEPTH);
        can.then_some(JobRecommendation::DeeperQueue { in_flight: in_flight as u64, iops })
    }

    /// Block size with which the same IOPS use the whole throughput.
    fn larger_blocks(&self) -> Option<LimitRecommendation> {
        let utilization = self.load.utilization_in(Dimension::Throughput, self.hard);
        let bytes = self.workload.block_bytes as f64 / utilization;
        let bytes = (bytes.min(MAX_BLOCK_BYTES as f64) / 512.0).floor() as u64 * 512;
        // Blocks are powers of two, unless only another size fits.
        let whole = 1 << bytes.max(1).ilog2();
        let bytes = if whole > self.workload.block_bytes { whole } else { bytes };
        (utilization > 0.0 && bytes > self.workload.block_bytes)
            .then_some(LimitRecommendation::LargerBlocks { bytes })
    }

    fn against_cpu(&self) -> Vec<Recommendation> {
        let factor = self.allowed() / self.iops;
        let mut out = Vec::new();
        if let Some(vcpus) = self.placement.machine.vcpus.filter(|_| self.machine_is_busy()) {
            let vcpus = (f64::from(vcpus) * factor).ceil() as u32;
            out.push(Recommendation::Limit(LimitRecommendation::MoreCpus { vcpus }));
        } else {
            let jobs = (f64::from(self.measured.jobs) * factor).ceil() as u64;
            out.push(Recommendation::Job(JobRecommendation::MoreJobs { jobs }));
        }
        out.extend(self.larger_blocks().map(Recommendation::Limit));
        out
    }

    fn against_idleness(&self) -> Vec<Recommendation> {
        let measured = self.measured;
        let mut out = Vec::new();
        out.extend(measured.throttled_by.clone().map(|by| JobRecommendation::NoThrottle { by }));
        out.extend(measured.cached.then_some(JobRecommendation::DirectIo));
        let flushes = measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(JobRecommendation::FewerFlushes));
        if out.is_empty() {
            // The cause is unknown, but several jobs are rarely all held back.
            out.push(JobRecommendation::MoreJobs { jobs: 2 * u64::from(measured.jobs) });
        }
        out.into_iter().map(Recommendation::Job).collect()
    }
}

/// Recommendations for the binding limits; each of several equal ones has to be lifted.
fn recommendations(limits: &[LimitUtilization]) -> Vec<Recommendation> {
    let mut out: Vec<Recommendation> = Vec::new();
    for recommendation in limits.iter().flat_map(|limit| &limit.limit.recommendations) {
        let change = Recommendation::Limit(recommendation.clone());
        if !out.contains(&change) {
            out.push(change);
        }
    }
    out
}
