//! Judgment of a measurement: its verdict, bottleneck, causes and recommendations.
//!
//! - A judgment is a pure function of a configuration and of measured rates, latencies and
//!   circumstances ([`MeasuredRun`]). It depends on no measuring program.
//! - It uses the limits of [`crate::prediction`]. Reads and writes may have different block sizes,
//!   which a prediction cannot express; each limit is judged by the utilization of both.
//! - Facts and guesses are separate: `causes` follow from the numbers, `hypotheses` are possible
//!   causes that the numbers cannot confirm.

mod causes;
mod display;
mod fitting;
mod measured;
mod recommendations;
mod spread;
mod together;
mod utilization;

pub use causes::{Cause, RuleLatency};
pub use display::count_text;
pub use measured::{MeasuredRates, MeasuredRun};
pub use spread::{LatencyShape, MeasuredSpread};
pub use together::judge_together;

use serde::Serialize;

use crate::caps::{Cap, QueueFigure};
use crate::catalog::{Catalog, Confidence, Inconsistency, LimitKind, SourceKeys, ThroughputUnit};
use crate::describe;
use crate::input::{DiskConfiguration, PlanError, Workload};
use crate::limits::{CPU_BUSY, JOB_BUSY_PERCENT, QUEUE_FULL, TOLERANCE};
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::prediction::{PredictedLimit, Rates, Recommendation, SourceUse};
use crate::recommendation::Recommender;
use spread::Likely;
use utilization::MeasuredLoad;

/// Relative difference below which two utilizations are equal.
const SAME: f64 = 1e-6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgmentVerdict {
    AsPredicted,
    Above,
    Below,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// An enforced limit: the first of `limits`.
    Limit,
    /// Latency: the queue was full and each I/O took its time, as results at several depths show.
    Latency,
    /// Latency, or a cap that the catalog does not have: undecided by one result at one depth.
    LatencyOrCap,
    /// As before, but the spread of the result, or the rule of the type, makes a latency probable.
    LikelyLatency,
    /// As before, but the spread of the result makes a cap probable.
    LikelyCap,
    /// A cap that the catalog does not have: results at several depths or block sizes show it.
    Cap,
    /// CPUs of the machine, or a job that saturated one.
    Cpu,
    /// The job: fewer I/Os were in flight than requested.
    Job,
    /// Unknown: neither latency nor depth was measured.
    NotKnown,
}

impl Bottleneck {
    /// Returns true if one result at one depth leaves a latency and a cap possible.
    fn is_undecided(self) -> bool {
        matches!(self, Self::LatencyOrCap | Self::LikelyLatency | Self::LikelyCap)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitUtilization {
    /// Utilization; 1 is all of the limit.
    pub utilization: f64,
    /// The limit. `workload_iops` applies to this mix of reads and writes.
    #[serde(flatten)]
    pub limit: PredictedLimit,
}

/// A measurement in the catalog's units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Taken {
    pub total: Rates,
    pub read: Rates,
    pub write: Rates,
    /// Mean latency of all I/Os in µs; `None` if not measured.
    pub latency_us: Option<f64>,
    /// Average I/Os in flight (Little's law).
    pub in_flight: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgment {
    pub catalog: String,
    pub configuration: DiskConfiguration,
    /// The workload of the prediction: the mean block size, the reads rounded to a percent, and the
    /// I/Os in flight of all jobs.
    pub workload: Workload,
    pub throughput_unit: ThroughputUnit,
    pub verdict: JudgmentVerdict,
    pub bottleneck: Bottleneck,
    /// Measured IOPS divided by the predicted maximum if above it, by the predicted minimum if
    /// below it; 1 in between.
    pub ratio: f64,
    /// Measured IOPS divided by the allowed ones.
    pub utilization: f64,
    /// Deviation from the prediction that still counts as predicted: 0.05 is 5 %.
    pub tolerance: f64,
    pub measured: Taken,
    /// Predicted minimum: guaranteed by queue depth and CPUs, within the limits.
    pub predicted_low: Rates,
    /// Predicted maximum: the best case of the queue depth, within the limits.
    pub predicted_high: Rates,
    /// Rate of this mix that the cloud allows.
    pub allowed: Rates,
    /// Latency of the queue depth rule in µs, best case and guarantee; `None` without a rule.
    pub(crate) rule_latency_us: Option<(f64, f64)>,
    pub causes: Vec<Cause>,
    /// Possible causes that the numbers cannot confirm.
    pub hypotheses: Vec<Cause>,
    pub recommendations: Vec<Recommendation>,
    pub limits: Vec<LimitUtilization>,
    pub sources: Vec<SourceUse>,
    pub confidence: Confidence,
    pub inconsistencies: Vec<Inconsistency>,
    pub not_known: Vec<String>,
    pub notes: Vec<String>,
}

struct Case<'c, 'a> {
    given: &'c DiskConfiguration,
    placement: &'c Placement<'a>,
    demand: &'c Demand,
    measured: &'c MeasuredRun,
    workload: &'c Workload,
    mix: &'c WorkloadMix,
    hard: &'c [Cap<'a>],
    load: &'c MeasuredLoad,
    iops: f64,
    utilization: f64,
    latency_us: Option<f64>,
    in_flight: Option<f64>,
    /// Latency rule: best case and guarantee.
    rule_us: Option<(f64, f64)>,
}

impl Case<'_, '_> {
    fn allowed(&self) -> f64 {
        self.iops / self.utilization
    }

    fn recommender(&self) -> Recommender<'_, '_> {
        let Case { placement, demand, workload, mix, hard: caps, .. } = *self;
        Recommender { placement, demand, workload, mix, caps }
    }
}

impl Catalog {
    /// Judges a measurement of a configuration. `tolerance` is the accepted relative deviation from
    /// the prediction, 0 to 1.
    ///
    /// # Errors
    /// Invalid or impossible input, or no known limit.
    pub fn judge(
        &self,
        configuration: &DiskConfiguration,
        measured: &MeasuredRun,
        tolerance: f64,
    ) -> Result<Judgment, PlanError> {
        measured.check(tolerance)?;
        let placement = Placement::of(self, configuration)?;
        let demand = placement.demand(configuration)?;
        let workload = measured.workload()?;
        let load = MeasuredLoad::new(measured, &self.units, placement.sharing());
        let mut mix = WorkloadMix::new(&workload, &self.units, placement.sharing());
        let iops = measured.iops();
        (mix.read, mix.write) = (measured.read.iops / iops, measured.write.iops / iops);
        let write_block =
            if measured.write.iops > 0.0 { measured.write.block_bytes() } else { 0.0 };
        // Only writes have limits by block size.
        let mut hard = placement.hard_caps(&demand, write_block.round().max(1.0) as u64);
        hard.retain(|cap| load.utilization_of(cap) > 0.0);
        let utilization = load.utilization(&hard);
        if !(utilization > 0.0 && utilization.is_finite()) {
            return Err(placement.not_known());
        }
        let rule_us = placement.service_us().map(|(guaranteed, best)| (best, guaranteed));
        let case = Case {
            given: configuration,
            placement: &placement,
            demand: &demand,
            measured,
            workload: &workload,
            mix: &mix,
            hard: &hard,
            load: &load,
            iops,
            utilization,
            latency_us: measured.latency_us(),
            in_flight: measured.kept_in_flight(),
            rule_us,
        };
        Ok(case.judgment(self, configuration, tolerance))
    }
}

impl Case<'_, '_> {
    fn judgment(
        &self,
        catalog: &Catalog,
        configuration: &DiskConfiguration,
        tolerance: f64,
    ) -> Judgment {
        let (low, high) = self.predicted();
        let verdict = match self.iops {
            iops if iops > high * (1.0 + tolerance) => JudgmentVerdict::Above,
            iops if iops < low * (1.0 - tolerance) => JudgmentVerdict::Below,
            _ => JudgmentVerdict::AsPredicted,
        };
        let bottleneck = self.bottleneck(tolerance);
        let ratio = match self.iops {
            iops if iops > high => iops / high,
            iops if iops < low => iops / low,
            _ => 1.0,
        };
        let limits = self.limits();
        let first = &limits[0].limit;
        let mut kinds = vec![first.kind];
        kinds.extend((bottleneck != Bottleneck::Limit).then_some(LimitKind::QueueDepth));
        let (causes, hypotheses) = self.findings(verdict, bottleneck, first);
        let recommendations = self.recommendations(verdict, bottleneck, &limits);
        let rates = |iops: f64| Rates::of_blocks(self.workload.block_bytes, iops);
        let part = |part: &MeasuredRates| Rates::new(part.iops, part.bytes_per_s);
        let (read, write) = (part(&self.measured.read), part(&self.measured.write));
        let total = Rates::new(self.iops, read.bytes_per_s + write.bytes_per_s);
        let not_known = describe::not_known(self.placement, self.mix, self.workload, None);
        Judgment {
            catalog: catalog.name.clone(),
            configuration: configuration.clone(),
            workload: self.workload.clone(),
            throughput_unit: catalog.units.throughput,
            verdict,
            bottleneck,
            ratio,
            utilization: self.utilization,
            tolerance,
            measured: Taken {
                total,
                read,
                write,
                latency_us: self.latency_us,
                in_flight: self.in_flight,
            },
            predicted_low: rates(low),
            predicted_high: rates(high),
            allowed: rates(self.allowed()),
            rule_latency_us: self.rule_us,
            causes,
            hypotheses,
            recommendations,
            sources: catalog.source_uses(self.uses()),
            confidence: self.confidence(first, bottleneck),
            inconsistencies: self.placement.inconsistencies(self.demand, self.workload, &kinds),
            not_known,
            notes: describe::notes(
                self.placement,
                self.mix,
                self.workload,
                first,
                self.demand.disks,
            ),
            limits,
        }
    }

    fn predicted(&self) -> (f64, f64) {
        let soft = |figure, cpu: bool| {
            let caps = self.placement.soft_caps(self.workload, figure);
            let utilization = caps.iter().filter(|cap| cpu || cap.kind != LimitKind::Cpu);
            utilization.map(|cap| self.load.utilization_of(cap)).fold(self.utilization, f64::max)
        };
        // The CPU rule is a sizing rule; needing fewer CPUs is normal.
        (self.iops / soft(QueueFigure::Low, true), self.iops / soft(QueueFigure::High, false))
    }

    fn bottleneck(&self, tolerance: f64) -> Bottleneck {
        if self.utilization >= 1.0 - tolerance {
            return Bottleneck::Limit;
        }
        if self.job_is_busy() || self.machine_is_busy() {
            return Bottleneck::Cpu;
        }
        match (self.in_flight, self.measured.in_flight) {
            (Some(kept), Some(asked)) if kept < QUEUE_FULL * asked as f64 => Bottleneck::Job,
            (None, None) => Bottleneck::NotKnown,
            // Without latency, a full queue cannot be confirmed.
            (None, Some(_)) if self.measured.throttled_by.is_some() => Bottleneck::Job,
            _ => match self.measured.spread.likely(self.in_flight) {
                Some(Likely::Cap) => Bottleneck::LikelyCap,
                Some(Likely::Latency) => Bottleneck::LikelyLatency,
                None if self.latency_is_expected() => Bottleneck::LikelyLatency,
                None => Bottleneck::LatencyOrCap,
            },
        }
    }

    /// Returns true if the job's engine or the rule of the type explains the latency. A cap may
    /// happen to give the same one, and a longer one may be time spent waiting for a cap.
    fn latency_is_expected(&self) -> bool {
        let rule = self.latency_us.zip(self.rule_us);
        self.measured.one_at_a_time.is_some()
            || rule.is_some_and(|(us, (_, guaranteed))| us <= guaranteed * (1.0 + TOLERANCE))
    }

    fn job_is_busy(&self) -> bool {
        self.measured.busiest_percent >= JOB_BUSY_PERCENT
    }

    fn machine_is_busy(&self) -> bool {
        let vcpus = self.placement.machine.vcpus;
        vcpus.is_some_and(|vcpus| self.measured.cpus >= CPU_BUSY * f64::from(vcpus))
    }

    /// Enforced limits by utilization, the highest first; the highest ones with recommendations.
    fn limits(&self) -> Vec<LimitUtilization> {
        let recommender = self.recommender();
        let mut utilization: Vec<(f64, &Cap<'_>)> =
            self.hard.iter().map(|cap| (self.load.utilization_of(cap), cap)).collect();
        utilization.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.kind.cmp(&b.1.kind)));
        let most = utilization.first().map_or(0.0, |(utilization, _)| *utilization);
        let equal = |part: f64| part >= most * (1.0 - SAME);
        // The gain ends at the first limit above the lowest ones.
        let next = utilization.iter().map(|(part, _)| *part).find(|part| !equal(*part));
        let target = next.map_or(f64::INFINITY, |part| self.iops / part);
        let of = |(part, cap): &(f64, &Cap<'_>)| LimitUtilization {
            utilization: *part,
            limit: recommender.limit(cap, self.iops / part, equal(*part).then_some(target)),
        };
        utilization.iter().map(of).collect()
    }

    fn uses(&self) -> Vec<(&SourceKeys, Option<Confidence>)> {
        let mut uses: Vec<_> = self.hard.iter().map(|cap| (cap.source, cap.confidence)).collect();
        let queue = self.placement.disk.queue.as_ref();
        uses.extend(queue.map(|queue| (&queue.source, queue.confidence)));
        let rule = self.placement.mixing_rule(self.mix);
        uses.extend(rule.map(|rule| (&rule.source, rule.confidence)));
        uses
    }

    fn confidence(&self, first: &PredictedLimit, bottleneck: Bottleneck) -> Confidence {
        let catalog = self.placement.catalog;
        let rule = self.placement.mixing_rule(self.mix);
        let rule = rule.map(|rule| catalog.confidence_of(&rule.source, rule.confidence));
        let queue = self.placement.disk.queue.as_ref().filter(|_| bottleneck != Bottleneck::Limit);
        let queue = queue.map(|queue| catalog.confidence_of(&queue.source, queue.confidence));
        let parts = [Some(first.confidence), rule, queue];
        parts.into_iter().flatten().max().unwrap_or(Confidence::C)
    }
}
