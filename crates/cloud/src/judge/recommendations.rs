//! Recommendations.

use crate::judge::{Bottleneck, Case, JudgmentVerdict, LimitUtilization};
use crate::limits::{BURST_SECONDS, MAX_BLOCK_BYTES, MAX_DEPTH};
use crate::prediction::{DeeperQueue, Dimension, Recommendation};

impl Case<'_, '_> {
    pub(super) fn recommendations(
        &self,
        verdict: JudgmentVerdict,
        bottleneck: Bottleneck,
        limits: &[LimitUtilization],
    ) -> Vec<Recommendation> {
        let mut out = match (verdict, bottleneck) {
            (JudgmentVerdict::Above, Bottleneck::Limit) => self.to_be_sure(),
            (_, Bottleneck::Limit) => self.against_limit(limits),
            (_, Bottleneck::Latency) => self.against_latency(verdict),
            (_, Bottleneck::LikelyLatency) => {
                let mut out = self.runs_that_decide();
                out.extend(self.against_latency(verdict));
                out
            }
            (_, undecided) if undecided.is_undecided() => self.to_tell_latency_from_cap(verdict),
            (_, Bottleneck::Cpu) => self.against_cpu(),
            (_, Bottleneck::Job) => self.against_idleness(),
            _ => Vec::new(),
        };
        out.extend(self.measured.same_offsets.then_some(Recommendation::OwnOffsets));
        let direct = self.measured.cached.then_some(Recommendation::DirectIo);
        out.extend(direct.filter(|change| !out.contains(change)));
        out
    }

    /// A measurement above the limits: checks that it is sustained.
    fn to_be_sure(&self) -> Vec<Recommendation> {
        let mut out = Vec::new();
        out.extend(self.measured.cached.then_some(Recommendation::DirectIo));
        let short = self.measured.seconds < BURST_SECONDS;
        out.extend(short.then_some(Recommendation::LongerRun { seconds: BURST_SECONDS }));
        out.extend((self.mix.read > 0.0).then_some(Recommendation::WriteFirst));
        out.push(Recommendation::CheckConfiguration);
        out
    }

    /// Changes that lift the limits; and a pool, if gathering writes lifts the IOPS limit.
    fn against_limit(&self, limits: &[LimitUtilization]) -> Vec<Recommendation> {
        let mut out = recommendations(limits);
        let binds = &limits[0].limit;
        let pool = (binds.dimension == Dimension::Iops)
            .then(|| {
                let catalog = self.placement.catalog;
                catalog.worthwhile_pool(self.given, self.workload, self.measured.reach_bytes)
            })
            .flatten();
        out.extend(
            pool.map(|(fullness_percent, iops)| Recommendation::Pool { fullness_percent, iops }),
        );
        out
    }

    fn against_latency(&self, verdict: JudgmentVerdict) -> Vec<Recommendation> {
        let mut out = Vec::new();
        let engine = self.measured.one_at_a_time.is_some();
        out.extend(engine.then_some(Recommendation::AsynchronousEngine));
        out.extend(self.deeper_queue());
        if self.is_one_stream() {
            out.push(Recommendation::StreamsWithOffsets);
        }
        out.extend(self.larger_blocks());
        let slow = verdict == JudgmentVerdict::Below;
        out.extend(slow.then_some(Recommendation::ShorterPath));
        let flushes = self.measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(Recommendation::FewerFlushes));
        out
    }

    /// The runs that distinguish a latency from a cap.
    fn runs_that_decide(&self) -> Vec<Recommendation> {
        let mut out = Vec::new();
        let twice = self.workload.in_flight().map(|in_flight| 2 * in_flight);
        let twice = twice.filter(|in_flight| *in_flight <= u64::from(MAX_DEPTH));
        out.extend(twice.map(|in_flight| Recommendation::OtherDepth { in_flight }));
        let bytes = self.workload.block_bytes.saturating_mul(2);
        if bytes <= MAX_BLOCK_BYTES {
            out.push(Recommendation::OtherBlocks { bytes });
        }
        out
    }

    /// The runs that decide, instead of advice for a latency or a cap.
    fn to_tell_latency_from_cap(&self, verdict: JudgmentVerdict) -> Vec<Recommendation> {
        let mut out = self.runs_that_decide();
        out.push(Recommendation::CheckConfiguration);
        let slow = verdict == JudgmentVerdict::Below;
        out.extend(slow.then_some(Recommendation::ShorterPath));
        let flushes = self.measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(Recommendation::FewerFlushes));
        out
    }

    /// Queue depth that reaches the allowed rate at the measured latency.
    fn deeper_queue(&self) -> Option<Recommendation> {
        let latency_us = self.latency_us?;
        let iops = self.allowed();
        let in_flight = (iops * latency_us / 1e6 * (1.0 - 1e-9)).ceil();
        let can = in_flight >= 1.0 && in_flight <= f64::from(MAX_DEPTH);
        can.then_some(Recommendation::DeeperQueue(DeeperQueue {
            in_flight: in_flight as u64,
            iops: Some(iops),
        }))
    }

    /// Block size with which the same IOPS use the whole throughput.
    fn larger_blocks(&self) -> Option<Recommendation> {
        let utilization = self.load.utilization_in(Dimension::Throughput, self.hard);
        let bytes = self.workload.block_bytes as f64 / utilization;
        let bytes = (bytes.min(MAX_BLOCK_BYTES as f64) / 512.0).floor() as u64 * 512;
        // Blocks are powers of two, unless only another size fits.
        let whole = 1 << bytes.max(1).ilog2();
        let bytes = if whole > self.workload.block_bytes { whole } else { bytes };
        (utilization > 0.0 && bytes > self.workload.block_bytes)
            .then_some(Recommendation::LargerBlocks { bytes })
    }

    fn against_cpu(&self) -> Vec<Recommendation> {
        let factor = self.allowed() / self.iops;
        let mut out = Vec::new();
        if let Some(vcpus) = self.placement.machine.vcpus.filter(|_| self.machine_is_busy()) {
            let vcpus = (f64::from(vcpus) * factor).ceil() as u32;
            out.push(Recommendation::MoreCpus { vcpus });
        } else {
            let jobs = (f64::from(self.measured.jobs) * factor).ceil() as u64;
            out.push(Recommendation::MoreJobs { jobs });
        }
        out.extend(self.larger_blocks());
        out
    }

    fn against_idleness(&self) -> Vec<Recommendation> {
        let measured = self.measured;
        let mut out = Vec::new();
        out.extend(measured.throttled_by.clone().map(|by| Recommendation::NoThrottle { by }));
        out.extend(measured.cached.then_some(Recommendation::DirectIo));
        let flushes = measured.flushed && self.mix.write > 0.0;
        out.extend(flushes.then_some(Recommendation::FewerFlushes));
        if out.is_empty() {
            // The cause is unknown, but several jobs are rarely all held back.
            out.push(Recommendation::MoreJobs { jobs: 2 * u64::from(measured.jobs) });
        }
        out
    }
}

/// Recommendations for the binding limits; each of several equal ones has to be lifted.
fn recommendations(limits: &[LimitUtilization]) -> Vec<Recommendation> {
    let mut out: Vec<Recommendation> = Vec::new();
    for recommendation in limits.iter().flat_map(|limit| &limit.limit.recommendations) {
        if !out.contains(recommendation) {
            out.push(recommendation.clone());
        }
    }
    out
}
