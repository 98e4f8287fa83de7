//! What was measured, judged against the model: as predicted, above or below, what held it, and
//! what would help.
//!
//! What it promises:
//!
//! - **Numbers in, judgement out.** It is a pure function of a configuration and of rates, latencies
//!   and circumstances that somebody measured ([`Measured`]); it knows no measuring program.
//! - **The same model.** What is allowed, and what the queue depth and the CPUs bring, are the limits
//!   of [`crate::prediction`]; reads and writes may have blocks of different sizes, which a
//!   prediction has no words for, and each limit is then judged by what each of them took of it.
//! - **Facts and guesses are apart.** `because` follows from the numbers; `perhaps` is what may
//!   have been the cause, and nothing in the numbers tells.

mod because;
mod changes;
mod measured;
mod used;
mod words;

pub use because::Finding;
pub use changes::{Change, JobChange};
pub use measured::{Measured, Part};
pub use words::{count_text, latency_text};

use serde::Serialize;

use crate::caps::{Cap, QueueFigure};
use crate::catalogue::{Catalogue, Confidence, LimitKind, SourceKeys};
use crate::describe;
use crate::input::{Configuration, PlanError, Workload};
use crate::limits::{CPU_BUSY, JOB_BUSY_PERCENT, QUEUE_FULL};
use crate::mix::Mix;
use crate::predict::rates;
use crate::prediction::{Limit, Rates, SourceUse, Touched};
use crate::remedy::Remedies;
use crate::site::{Demand, Site};
use used::Load;

/// Two parts of limits closer than this are the same.
const SAME: f64 = 1e-6;

/// How a measurement compares with the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Inside of what is predicted, give or take the tolerance.
    AsPredicted,
    /// More than the model says is possible.
    Above,
    /// Less than the model says is sure.
    Below,
}

/// What held the workload where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// A limit that the cloud enforces: the first of `limits`.
    Limit,
    /// All I/Os that were to be in flight were, and each took its time.
    Latency,
    /// CPUs of the machine, or a job that had one to itself and used it up.
    Cpu,
    /// The job kept fewer in flight than it was told to.
    Job,
    /// Neither latency nor depth was measured.
    NotKnown,
}

/// A limit that is enforced, and how much of it was taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsedLimit {
    /// The part, 1 being all of it.
    pub used: f64,
    /// The limit; `workload_iops` is of this mix of reads and writes.
    #[serde(flatten)]
    pub limit: Limit,
}

/// What was measured, in the catalogue's units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Taken {
    /// Reads and writes together.
    pub total: Rates,
    /// Reads.
    pub read: Rates,
    /// Writes.
    pub write: Rates,
    /// Mean latency of all in µs; none if it was not measured.
    pub latency_us: Option<f64>,
    /// I/Os in flight on average: rate by latency (Little's law).
    pub in_flight: Option<f64>,
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// The catalogue's name.
    pub catalogue: String,
    /// The disks and the machine.
    pub configuration: Configuration,
    /// What the prediction is of: blocks of the mean size, the reads rounded to a percent, and the
    /// I/Os in flight of all jobs.
    pub workload: Workload,
    /// Unit of `throughput`.
    pub throughput_unit: &'static str,
    /// The judgement in a word.
    pub verdict: Verdict,
    /// What held it.
    pub bound: Bound,
    /// Measured IOPS by those predicted: by the most that are, if more were measured, by the least,
    /// if fewer were; 1 in between.
    pub ratio: f64,
    /// Measured IOPS by those allowed.
    pub used: f64,
    /// How far from the prediction it may be and still be as predicted: 0.05 is 5 %.
    pub tolerance: f64,
    /// What was measured.
    pub measured: Taken,
    /// The least that is predicted: what the queue depth and the CPUs surely bring, as far as it is
    /// allowed.
    pub predicted_low: Rates,
    /// The most that is predicted: what the queue depth brings at best, as far as it is allowed.
    pub predicted_high: Rates,
    /// What the cloud allows of this mix.
    pub allowed: Rates,
    /// Latency in µs that the rule of the queue depth stands for, at best and surely; none if the
    /// sources have no rule.
    pub rule_latency_us: Option<(f64, f64)>,
    /// What follows from the numbers.
    pub because: Vec<Finding>,
    /// What else may be the cause: the numbers do not tell.
    pub perhaps: Vec<Finding>,
    /// What would help, the most direct first.
    pub remedies: Vec<Change>,
    /// All limits that are enforced and were touched, the most used first.
    pub limits: Vec<UsedLimit>,
    /// What it rests on.
    pub sources: Vec<SourceUse>,
    /// The least of what it rests on.
    pub confidence: Confidence,
    /// Where the sources contradict themselves and it matters here.
    pub inconsistencies: Vec<Touched>,
    /// What the sources do not say and would matter here.
    pub not_known: Vec<String>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
}

/// What the parts of a judgement are made of.
struct Case<'c, 'a> {
    site: &'c Site<'a>,
    demand: &'c Demand,
    measured: &'c Measured,
    workload: &'c Workload,
    mix: &'c Mix,
    hard: &'c [Cap<'a>],
    load: &'c Load,
    /// IOPS measured, reads and writes.
    iops: f64,
    /// The part of what is allowed that was taken.
    used: f64,
    latency_us: Option<f64>,
    in_flight: Option<f64>,
    /// At best and surely.
    rule_us: Option<(f64, f64)>,
}

impl Case<'_, '_> {
    /// IOPS of this mix that are allowed.
    fn allowed(&self) -> f64 {
        self.iops / self.used
    }
}

impl Catalogue {
    /// Judges what was measured on a configuration. `tolerance` is the part by which it may miss the
    /// prediction, 0 to 1.
    ///
    /// # Errors
    /// What was measured or configured is wrong or impossible; or no limit of it is known.
    pub fn judge(
        &self,
        configuration: &Configuration,
        measured: &Measured,
        tolerance: f64,
    ) -> Result<Judgement, PlanError> {
        measured.check(tolerance)?;
        let site = Site::of(self, configuration)?;
        let demand = site.demand(configuration)?;
        let workload = measured.workload()?;
        let load = Load::new(measured, &self.units, site.sharing());
        let mut mix = Mix::new(&workload, &self.units, site.sharing());
        let iops = measured.iops();
        (mix.read, mix.write) = (measured.read.iops / iops, measured.write.iops / iops);
        let write_block =
            if measured.write.iops > 0.0 { measured.write.block_bytes() } else { 0.0 };
        // Only writes have limits by block.
        let mut hard = site.hard_caps(&demand, write_block.round().max(1.0) as u64);
        hard.retain(|cap| load.used_of(cap) > 0.0);
        let used = load.used(&hard);
        if !(used > 0.0 && used.is_finite()) {
            let what = format!("what {} does on {}", site.kind, site.machine.name);
            return Err(PlanError::NotKnown(what));
        }
        let rule_us = site.disk.queue.as_ref().map(|queue| {
            let high = queue.iops_per_io_high.unwrap_or(queue.iops_per_io_low);
            (1e6 / high, 1e6 / queue.iops_per_io_low)
        });
        let case = Case {
            site: &site,
            demand: &demand,
            measured,
            workload: &workload,
            mix: &mix,
            hard: &hard,
            load: &load,
            iops,
            used,
            latency_us: measured.latency_us(),
            in_flight: measured.kept_in_flight(),
            rule_us,
        };
        Ok(case.judgement(self, configuration, tolerance))
    }
}

impl Case<'_, '_> {
    fn judgement(
        &self,
        catalogue: &Catalogue,
        configuration: &Configuration,
        tolerance: f64,
    ) -> Judgement {
        let (low, high) = self.predicted();
        let verdict = match self.iops {
            iops if iops > high * (1.0 + tolerance) => Verdict::Above,
            iops if iops < low * (1.0 - tolerance) => Verdict::Below,
            _ => Verdict::AsPredicted,
        };
        let bound = self.bound(tolerance);
        let ratio = match self.iops {
            iops if iops > high => iops / high,
            iops if iops < low => iops / low,
            _ => 1.0,
        };
        let limits = self.limits();
        let first = &limits[0].limit;
        let mut kinds = vec![first.kind];
        kinds.extend((bound != Bound::Limit).then_some(LimitKind::QueueDepth));
        let (because, perhaps) = self.findings(verdict, bound, first);
        let remedies = self.changes(verdict, bound, &limits);
        let rates = |iops: f64| rates(catalogue, self.workload.block_bytes, iops);
        let part = |part: &Part| Rates {
            iops: part.iops,
            bytes_per_s: part.bytes_per_s,
            throughput: part.bytes_per_s / catalogue.units.throughput_bytes() as f64,
        };
        let (read, write) = (part(&self.measured.read), part(&self.measured.write));
        let total = Rates {
            iops: self.iops,
            bytes_per_s: read.bytes_per_s + write.bytes_per_s,
            throughput: read.throughput + write.throughput,
        };
        let not_known = describe::not_known(self.site, self.mix, self.workload, None);
        Judgement {
            catalogue: catalogue.name.clone(),
            configuration: configuration.clone(),
            workload: self.workload.clone(),
            throughput_unit: catalogue.units.throughput.name(),
            verdict,
            bound,
            ratio,
            used: self.used,
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
            because,
            perhaps,
            remedies,
            sources: catalogue.source_uses(self.uses()),
            confidence: self.confidence(first, bound),
            inconsistencies: self.site.inconsistencies(self.demand, self.workload, &kinds),
            not_known,
            notes: describe::notes(self.site, self.mix, self.workload, first),
            limits,
        }
    }

    /// The least and the most IOPS that are predicted.
    fn predicted(&self) -> (f64, f64) {
        let soft = |figure, cpu: bool| {
            let caps = self.site.soft_caps(self.workload, figure);
            let used = caps.iter().filter(|cap| cpu || cap.kind != LimitKind::Cpu);
            used.map(|cap| self.load.used_of(cap)).fold(self.used, f64::max)
        };
        // That so many CPUs are enough is a rule of sizing: one that does with fewer is no wonder.
        (self.iops / soft(QueueFigure::Low, true), self.iops / soft(QueueFigure::High, false))
    }

    fn bound(&self, tolerance: f64) -> Bound {
        if self.used >= 1.0 - tolerance {
            return Bound::Limit;
        }
        if self.job_is_busy() || self.machine_is_busy() {
            return Bound::Cpu;
        }
        match (self.in_flight, self.measured.in_flight) {
            (Some(kept), Some(told)) if kept < QUEUE_FULL * told as f64 => Bound::Job,
            (None, None) => Bound::NotKnown,
            // Without latency it is not known whether the queue was full.
            (None, Some(_)) if self.measured.paced_by.is_some() => Bound::Job,
            _ => Bound::Latency,
        }
    }

    fn job_is_busy(&self) -> bool {
        self.measured.busiest_percent >= JOB_BUSY_PERCENT
    }

    fn machine_is_busy(&self) -> bool {
        let vcpus = self.site.machine.vcpus;
        vcpus.is_some_and(|vcpus| self.measured.cpus >= CPU_BUSY * f64::from(vcpus))
    }

    /// The limits that are enforced, the most used first; the first ones with what would lift them.
    fn limits(&self) -> Vec<UsedLimit> {
        let (site, demand, workload) = (self.site, self.demand, self.workload);
        let caps = self.hard;
        let remedies = Remedies { site, demand, workload, mix: self.mix, caps };
        let mut used: Vec<(f64, &Cap<'_>)> =
            caps.iter().map(|cap| (self.load.used_of(cap), cap)).collect();
        used.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.kind.cmp(&b.1.kind)));
        let most = used.first().map_or(0.0, |(used, _)| *used);
        let equal = |part: f64| part >= most * (1.0 - SAME);
        // What there is to gain ends at the first limit that is not as low as the lowest.
        let next = used.iter().map(|(part, _)| *part).find(|part| !equal(*part));
        let target = next.map_or(f64::INFINITY, |part| self.iops / part);
        let of = |(part, cap): &(f64, &Cap<'_>)| UsedLimit {
            used: *part,
            limit: Limit {
                kind: cap.kind,
                dimension: cap.dimension,
                read: cap.read.filter(|_| self.mix.read > 0.0),
                write: cap.write.filter(|_| self.mix.write > 0.0),
                workload_iops: self.iops / part,
                because: describe::because(site, demand, workload, cap),
                lifts: if equal(*part) { remedies.of(cap, target) } else { Vec::new() },
                sources: cap.source.clone(),
                confidence: site.catalogue.confidence_of(cap.source, cap.confidence),
            },
        };
        used.iter().map(of).collect()
    }

    fn uses(&self) -> Vec<(&SourceKeys, Option<Confidence>)> {
        let mut uses: Vec<_> = self.hard.iter().map(|cap| (cap.source, cap.confidence)).collect();
        let queue = self.site.disk.queue.as_ref();
        uses.extend(queue.map(|queue| (&queue.source, queue.confidence)));
        let rule = self.site.disk.mixing.as_ref().filter(|_| self.mix.is_mixed());
        uses.extend(rule.map(|rule| (&rule.source, rule.confidence)));
        uses
    }

    fn confidence(&self, first: &Limit, bound: Bound) -> Confidence {
        let catalogue = self.site.catalogue;
        let rule = self.site.disk.mixing.as_ref().filter(|_| self.mix.is_mixed());
        let rule = rule.map(|rule| catalogue.confidence_of(&rule.source, rule.confidence));
        let queue = self.site.disk.queue.as_ref().filter(|_| bound != Bound::Limit);
        let queue = queue.map(|queue| catalogue.confidence_of(&queue.source, queue.confidence));
        let parts = [Some(first.confidence), rule, queue];
        parts.into_iter().flatten().max().unwrap_or(Confidence::C)
    }
}
