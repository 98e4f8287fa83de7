//! Limit curves: performance along one dimension, and the limit that binds at each position.
//!
//! Every position is a prediction, equal to the result of [`Catalog::predict`]. Between positions
//! with different binding limits, bisection finds the change down to the smallest step. Impossible
//! positions are absent.

mod sweep;

use serde::Serialize;

pub use sweep::{Over, Sweep};

use crate::caps::QueueFigure;
use crate::catalog::{Catalog, Confidence, Inconsistency, LimitKind};
use crate::input::{DiskConfiguration, PlanError, Workload};
use crate::mix::WorkloadMix;
use crate::placement::Placement;
use crate::predict::{SAME, binding_order};
use crate::prediction::{Dimension, Prediction, Rates, SourceUse};
use crate::provenance::{add_new, merge_sources};

/// One configuration and workload along one dimension.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitCurve {
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes of each I/O; of the first position if the block size varies.
    pub block_bytes: u64,
    pub read_percent: u8,
    pub points: Vec<CurvePoint>,
    pub spans: Vec<CurveSpan>,
    pub sources: Vec<SourceUse>,
    pub confidence: Confidence,
    pub inconsistencies: Vec<Inconsistency>,
    pub not_known: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Position: disk size in the catalog's unit, vCPUs, bytes of a block, or I/Os in flight of a
    /// job.
    pub at: u64,
    pub iops: f64,
    /// Throughput, 10^6 bytes per second.
    pub mb_per_s: f64,
    pub binding: LimitKind,
    pub dimension: Dimension,
    /// Another limit is equal, so lifting only one gains nothing.
    pub tied: bool,
}

/// Neighboring points with the same binding limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurveSpan {
    pub from: CurvePoint,
    pub to: CurvePoint,
}

impl CurveSpan {
    pub fn binding(&self) -> (LimitKind, Dimension) {
        (self.from.binding, self.from.dimension)
    }
}

impl Catalog {
    /// Predicts a configuration and a workload along a dimension. Their own value of it is
    /// ignored.
    ///
    /// # Errors
    /// The reason, if every position is impossible.
    pub fn curve(
        &self,
        configuration: &DiskConfiguration,
        workload: &Workload,
        sweep: &Sweep,
    ) -> Result<LimitCurve, PlanError> {
        let walk = Walk { catalog: self, configuration, workload, over: sweep.over };
        let mut found: Vec<(u64, Result<CurvePoint, PlanError>)> = Vec::new();
        for at in &sweep.places {
            let next = walk.at(*at);
            if let Some((before, point)) = found.last().cloned() {
                walk.between((before, &point), (*at, &next), sweep.step, &mut found);
            }
            found.push((*at, next));
        }
        let points: Vec<CurvePoint> =
            found.iter().filter_map(|(_, point)| point.as_ref().ok()).copied().collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Err(walk.why_none(found));
        };
        let spans = spans(&points);
        let places: Vec<u64> =
            spans.iter().map(|span| span.from.at).chain([first.at, last.at]).collect();
        let mut curve = LimitCurve {
            kind: configuration.kind.clone(),
            block_bytes: walk.asked(first.at)?.1.block_bytes,
            read_percent: workload.read_percent,
            points: points.clone(),
            spans,
            sources: Vec::new(),
            confidence: Confidence::A,
            inconsistencies: Vec::new(),
            not_known: Vec::new(),
        };
        for at in places {
            let (configuration, workload) = walk.asked(at)?;
            curve.gather(self.predict(&configuration, &workload)?);
        }
        Ok(curve)
    }
}

impl LimitCurve {
    /// Adds the sources and gaps of a prediction, except the price's, which a curve does not
    /// show.
    fn gather(&mut self, mut prediction: Prediction) {
        match &prediction.cost {
            Some(cost) => {
                let of_limits = |key: &String| {
                    prediction.limits.iter().any(|limit| limit.sources.contains(key))
                };
                let price = cost.sources.iter().filter(|key| !of_limits(key));
                let price: Vec<String> = price.cloned().collect();
                prediction.sources.retain(|source| !price.contains(&source.key));
            }
            None => prediction.ignore_price(),
        }
        self.confidence = self.confidence.max(prediction.confidence);
        merge_sources(&mut self.sources, prediction.sources);
        add_new(&mut self.inconsistencies, prediction.inconsistencies);
        add_new(&mut self.not_known, prediction.not_known);
    }
}

fn spans(points: &[CurvePoint]) -> Vec<CurveSpan> {
    let mut spans: Vec<CurveSpan> = Vec::new();
    for point in points {
        match spans.last_mut() {
            Some(span) if span.binding() == (point.binding, point.dimension) => span.to = *point,
            _ => spans.push(CurveSpan { from: *point, to: *point }),
        }
    }
    spans
}

struct Walk<'w> {
    catalog: &'w Catalog,
    configuration: &'w DiskConfiguration,
    workload: &'w Workload,
    over: Over,
}

impl Walk<'_> {
    fn asked(&self, at: u64) -> Result<(DiskConfiguration, Workload), PlanError> {
        let (mut configuration, mut workload) = (self.configuration.clone(), self.workload.clone());
        match self.over {
            Over::Size => {
                let bytes = u128::from(at) * u128::from(self.catalog.units.size_bytes);
                configuration.size_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            }
            Over::Vcpus => {
                let name = sweep::with_vcpus(&configuration.machine.name, at);
                configuration.machine = self.catalog.machine(&name.unwrap_or_default())?;
            }
            Over::Block => workload.block_bytes = at,
            Over::Depth => {
                let disk = self.catalog.disk_type(&configuration.kind)?;
                if disk.queue.is_none() {
                    let what = format!("what one I/O in flight brings on {}", configuration.kind);
                    return Err(PlanError::NotKnown(what));
                }
                workload.depth = Some(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
        Ok((configuration, workload))
    }

    /// The error for a curve without points. A valid size's error takes precedence over a range
    /// error.
    fn why_none(&self, found: Vec<(u64, Result<CurvePoint, PlanError>)>) -> PlanError {
        let disk = self.catalog.types.get(&self.configuration.kind);
        let least = disk.and_then(|disk| disk.size_gb_min).map(|size| size.ceil() as u64);
        let of_least = least.filter(|_| self.over == Over::Size).and_then(|at| self.at(at).err());
        let first = found.into_iter().find_map(|(_, point)| point.err());
        let none = || PlanError::input("there is no such place", "write another range");
        of_least.or(first).unwrap_or_else(none)
    }

    fn at(&self, at: u64) -> Result<CurvePoint, PlanError> {
        let (configuration, workload) = self.asked(at)?;
        workload.check()?;
        let placement = Placement::of(self.catalog, &configuration)?;
        let demand = placement.demand(&configuration)?;
        let mix = WorkloadMix::new(&workload, &self.catalog.units, placement.sharing());
        let mut caps = placement.hard_caps(&demand, workload.block_bytes);
        if !mix.iops_under(caps.iter()).is_finite() {
            return Err(placement.not_known());
        }
        caps.extend(placement.soft_caps(&workload, QueueFigure::Low));
        let (binding, without) = binding_order(&mix, &caps, 1)[0];
        let cap = &caps[binding];
        let iops = mix.iops_under(caps.iter());
        Ok(CurvePoint {
            at,
            iops,
            mb_per_s: Rates::of_blocks(workload.block_bytes, iops).mb_per_s,
            binding: cap.kind,
            dimension: cap.dimension,
            tied: without <= iops * (1.0 + SAME),
        })
    }

    /// Adds the points on both sides of each change between two positions.
    fn between(
        &self,
        (from, first): (u64, &Result<CurvePoint, PlanError>),
        (to, last): (u64, &Result<CurvePoint, PlanError>),
        step: u64,
        out: &mut Vec<(u64, Result<CurvePoint, PlanError>)>,
    ) {
        let limit = |point: &Result<CurvePoint, PlanError>| {
            point.as_ref().ok().map(|point| (point.binding, point.dimension))
        };
        let steps = (to - from) / step.max(1);
        if step == 0 || steps < 2 || limit(first) == limit(last) {
            return;
        }
        let at = from + steps / 2 * step;
        let middle = self.at(at);
        self.between((from, first), (at, &middle), step, out);
        out.push((at, middle.clone()));
        self.between((at, &middle), (to, last), step, out);
    }
}
