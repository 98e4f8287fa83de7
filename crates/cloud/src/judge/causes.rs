//! Causes of a measurement: facts that follow from the numbers, and hypotheses.

use serde::Serialize;

use crate::catalog::LimitKind;
use crate::input::AccessOrder;
use crate::judge::{Bottleneck, Case, JudgmentVerdict, LatencyShape};
use crate::limits::{BURST_SECONDS, MEMORY_PART, TOLERANCE};
use crate::prediction::{Dimension, PredictedLimit, Recommendation};

/// A cause or a hypothesis; `Display` explains each. A `utilization` of 1 is all of the limit,
/// `times` is the measured rate as a multiple of the limit, and `extra_us` is latency above the
/// model. A `deviation` of 1
/// is all of the mean.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Cause {
    AtLimit { kind: LimitKind, utilization: f64, explanation: String },
    BeyondLimit { kind: LimitKind, times: f64, iops: f64, explanation: String },
    Latency { in_flight: f64, latency_us: f64, iops: f64, allowed_iops: f64 },
    OneDepth { in_flight: f64 },
    LatencySpread { shape: LatencyShape, median_us: f64, p99_us: f64 },
    RateOverTime { deviation: f64 },
    SameAtOtherDepth { in_flight: f64 },
    FollowsDepth { in_flight: f64 },
    SameThroughput { block_bytes: u64 },
    MatchesRule(RuleLatency),
    SlowerThanRule(RuleLatency),
    FasterThanRule(RuleLatency),
    NoRule { latency_us: f64 },
    QueueNotFull { in_flight: f64, requested: u64 },
    Throttled { by: String },
    Flushed,
    OneAtATime { engine: String },
    PageCache,
    BusyJob { percent: f64 },
    BusyMachine { cpus: f64, vcpus: u32 },
    SameOffsets,
    Memory { latency_us: f64, best_us: f64 },
    Burst { seconds: f64 },
    EasyReads,
    OtherSize { size: f64, unit: &'static str },
    OtherConfiguration,
    BeyondEnd { reach_bytes: u64, size_bytes: u64 },
    OtherTraffic { gbit_per_s: f64 },
    SlowPath { extra_us: f64 },
    OtherLoad,
    FittingType { kind: String, iops: f64 },
    FittingMachine { machine: String, iops: f64 },
    Observed { source: String, machine: String },
}

/// A latency and the queue depth rule's, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RuleLatency {
    pub latency_us: f64,
    pub(crate) best_us: f64,
    pub(crate) guaranteed_us: f64,
}

impl Case<'_, '_> {
    /// Causes that follow from the numbers, and hypotheses. `first` is the limit with the highest
    /// utilization.
    pub(super) fn findings(
        &self,
        verdict: JudgmentVerdict,
        bottleneck: Bottleneck,
        first: &PredictedLimit,
    ) -> (Vec<Cause>, Vec<Cause>) {
        let mut causes = self.of_bound(bottleneck, verdict, first);
        causes.extend(self.of_rule(bottleneck));
        causes.extend(self.of_job(bottleneck));
        let hypotheses = match verdict {
            JudgmentVerdict::Above => self.why_more(bottleneck, first, &mut causes),
            JudgmentVerdict::Below => self.why_less(bottleneck),
            JudgmentVerdict::AsPredicted if bottleneck.is_undecided() => {
                self.fitting_caps(self.given)
            }
            JudgmentVerdict::AsPredicted => Vec::new(),
        };
        (causes, hypotheses)
    }

    fn of_bound(
        &self,
        bottleneck: Bottleneck,
        verdict: JudgmentVerdict,
        first: &PredictedLimit,
    ) -> Vec<Cause> {
        let (kind, explanation) = (first.kind, first.explanation.clone());
        match bottleneck {
            Bottleneck::Limit if verdict == JudgmentVerdict::Above => {
                let iops = self.allowed();
                vec![Cause::BeyondLimit { kind, times: self.utilization, iops, explanation }]
            }
            Bottleneck::Limit => {
                vec![Cause::AtLimit { kind, utilization: self.utilization, explanation }]
            }
            Bottleneck::Latency => self.of_latency(),
            undecided if undecided.is_undecided() => {
                let mut out = self.of_latency();
                out.extend(self.measured.spread.causes());
                out.extend(self.in_flight.map(|in_flight| Cause::OneDepth { in_flight }));
                out
            }
            Bottleneck::Cpu => {
                let mut out = Vec::new();
                if self.job_is_busy() {
                    out.push(Cause::BusyJob { percent: self.measured.busiest_percent });
                }
                if let Some(vcpus) = self.placement.machine.vcpus.filter(|_| self.machine_is_busy())
                {
                    out.push(Cause::BusyMachine { cpus: self.measured.cpus, vcpus });
                }
                out
            }
            Bottleneck::Job => {
                let kept = self.in_flight.zip(self.measured.in_flight);
                let not_full =
                    |(in_flight, requested)| Cause::QueueNotFull { in_flight, requested };
                kept.map(not_full).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn of_latency(&self) -> Vec<Cause> {
        let (Some(in_flight), Some(latency_us)) = (self.in_flight, self.latency_us) else {
            return Vec::new();
        };
        let (iops, allowed_iops) = (self.iops, self.allowed());
        vec![Cause::Latency { in_flight, latency_us, iops, allowed_iops }]
    }

    /// The latency compared with the rule. At a limit or a cap, waiting for it makes the latency,
    /// which then proves nothing.
    fn of_rule(&self, bottleneck: Bottleneck) -> Option<Cause> {
        let waits = matches!(bottleneck, Bottleneck::Limit | Bottleneck::LikelyCap);
        let latency_us = self.latency_us.filter(|_| !waits)?;
        let Some((best_us, guaranteed_us)) = self.rule_us else {
            return Some(Cause::NoRule { latency_us });
        };
        let found = RuleLatency { latency_us, best_us, guaranteed_us };
        // The tolerance of the judgment itself.
        Some(match latency_us {
            us if us > guaranteed_us * (1.0 + TOLERANCE) => Cause::SlowerThanRule(found),
            us if us < best_us * (1.0 - TOLERANCE) => Cause::FasterThanRule(found),
            _ => Cause::MatchesRule(found),
        })
    }

    fn of_job(&self, bottleneck: Bottleneck) -> Vec<Cause> {
        let measured = self.measured;
        let mut out = Vec::new();
        if bottleneck != Bottleneck::Limit {
            out.extend(measured.throttled_by.clone().map(|by| Cause::Throttled { by }));
            let engine = measured.one_at_a_time.clone();
            out.extend(engine.map(|engine| Cause::OneAtATime { engine }));
            out.extend((measured.flushed && self.mix.write > 0.0).then_some(Cause::Flushed));
        }
        out.extend(measured.cached.then_some(Cause::PageCache));
        out.extend(measured.same_offsets.then_some(Cause::SameOffsets));
        out
    }

    fn why_more(
        &self,
        bottleneck: Bottleneck,
        first: &PredictedLimit,
        causes: &mut Vec<Cause>,
    ) -> Vec<Cause> {
        let measured = self.measured;
        if let (Some(latency_us), Some((best_us, _))) = (self.latency_us, self.rule_us)
            && latency_us < MEMORY_PART * best_us
        {
            causes.push(Cause::Memory { latency_us, best_us });
        }
        let mut out = Vec::new();
        if bottleneck != Bottleneck::Limit {
            return out;
        }
        if measured.seconds > 0.0 && measured.seconds < BURST_SECONDS {
            out.push(Cause::Burst { seconds: measured.seconds });
        }
        out.extend((self.mix.read > 0.0).then_some(Cause::EasyReads));
        out.push(self.other_size(first).unwrap_or(Cause::OtherConfiguration));
        let size_bytes = self.size_bytes();
        out.extend(
            measured
                .reach_bytes
                .filter(|reach| *reach > size_bytes)
                .map(|reach_bytes| Cause::BeyondEnd { reach_bytes, size_bytes }),
        );
        out
    }

    fn size_bytes(&self) -> u64 {
        let unit = self.placement.catalog.units.size_bytes as f64;
        (self.demand.size * unit * f64::from(self.demand.disks)) as u64
    }

    /// The disk size whose limit would allow the measured rate, if there is one.
    fn other_size(&self, first: &PredictedLimit) -> Option<Cause> {
        let cap = self.hard.iter().find(|cap| {
            cap.kind == LimitKind::Volume
                && first.kind == LimitKind::Volume
                && cap.dimension == first.dimension
        })?;
        let recommendations = self.recommender().of(cap, self.iops);
        // A type without more at any size is the wrong type.
        if recommendations.contains(&Recommendation::OtherType) {
            return None;
        }
        recommendations.into_iter().find_map(|recommendation| match recommendation {
            Recommendation::LargerVolume { size, unit } => Some(Cause::OtherSize { size, unit }),
            _ => None,
        })
    }

    fn why_less(&self, bottleneck: Bottleneck) -> Vec<Cause> {
        let mut out = Vec::new();
        match bottleneck {
            Bottleneck::Latency => {}
            undecided if undecided.is_undecided() => out.extend(self.fitting_caps(self.given)),
            _ => return out,
        }
        out.extend(self.other_traffic());
        if let (Some(latency_us), Some((_, guaranteed_us))) = (self.latency_us, self.rule_us)
            && latency_us > guaranteed_us
            && bottleneck != Bottleneck::LikelyCap
        {
            out.push(Cause::SlowPath { extra_us: latency_us - guaranteed_us });
        }
        out.push(Cause::OtherLoad);
        out
    }

    /// Other egress that would leave the measured write rate, if possible: disks keep a share of
    /// the egress under any traffic.
    fn other_traffic(&self) -> Option<Cause> {
        let egress = self.hard.iter().find(|cap| cap.kind == LimitKind::Egress)?;
        let gbit = self.placement.egress_gbit_per_s?;
        let written = egress.write? * self.load.utilization_of(egress);
        let least = self.placement.egress_throughput(gbit, gbit);
        let own = self.placement.other_egress_gbit_per_s;
        let near = 1.0 - TOLERANCE;
        let below = egress.dimension == Dimension::Throughput && written >= least * near;
        let left = gbit * written / self.placement.egress_throughput(gbit, 0.0);
        (below && gbit - left > own).then_some(Cause::OtherTraffic { gbit_per_s: gbit - left })
    }

    pub(super) fn is_one_stream(&self) -> bool {
        self.measured.access == AccessOrder::Sequential && self.measured.jobs == 1
    }
}
