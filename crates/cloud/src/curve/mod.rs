//! What disks do along one dimension, and which limit binds where.
//!
//! Every place is a prediction of its own ([`Catalogue::predict`] gives the same). Between places at
//! which different limits bind the change is searched for, down to the smallest step there is, so
//! that it is where it is said to be. Places that cannot be had are absent.

mod sweep;

use serde::Serialize;

pub use sweep::{Over, Sweep};

use crate::caps::QueueFigure;
use crate::catalogue::{Catalogue, Confidence, LimitKind};
use crate::input::{Configuration, PlanError, Workload};
use crate::mix::Mix;
use crate::predict::{SAME, binding_order, rates};
use crate::prediction::{Dimension, Prediction, SourceUse, Touched};
use crate::site::Site;

/// One configuration and workload along one dimension.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Type of the disks.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes of each I/O; those of the first place where the block is what changes.
    pub block_bytes: u64,
    /// Reads among a hundred I/Os.
    pub read_percent: u8,
    /// In the order of `at`.
    pub points: Vec<Point>,
    /// Which limit binds from where to where.
    pub spans: Vec<Span>,
    /// What it rests on.
    pub sources: Vec<SourceUse>,
    /// The least of it.
    pub confidence: Confidence,
    /// Where the sources contradict themselves and it matters here.
    pub inconsistencies: Vec<Touched>,
    /// What the sources do not say and would matter here.
    pub not_known: Vec<String>,
}

/// A place on a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Size of a disk in the catalogue's unit, vCPUs, bytes of a block, or I/Os in flight of a job.
    pub at: u64,
    /// IOPS, reads and writes together.
    pub iops: f64,
    /// The same in the catalogue's unit of throughput.
    pub throughput: f64,
    /// The limit that binds.
    pub binding: LimitKind,
    /// What it is a limit of.
    pub dimension: Dimension,
    /// Whether there would be no more without it, as another limit is equal.
    pub tied: bool,
}

/// Neighbouring places at which the same limit binds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// The first place.
    pub from: Point,
    /// The last place.
    pub to: Point,
}

impl Span {
    /// The limit that binds.
    pub fn binding(&self) -> (LimitKind, Dimension) {
        (self.from.binding, self.from.dimension)
    }
}

impl Catalogue {
    /// Follows a configuration and a workload along a dimension, in the place of what they say of
    /// it themselves.
    ///
    /// # Errors
    /// Why no place of it can be had.
    pub fn curve(
        &self,
        configuration: &Configuration,
        workload: &Workload,
        sweep: &Sweep,
    ) -> Result<Curve, PlanError> {
        let walk = Walk { catalogue: self, configuration, workload, over: sweep.over };
        let mut found: Vec<(u64, Result<Point, PlanError>)> = Vec::new();
        for at in &sweep.places {
            let next = walk.at(*at);
            if let Some((before, point)) = found.last().cloned() {
                walk.between((before, &point), (*at, &next), sweep.step, &mut found);
            }
            found.push((*at, next));
        }
        let points: Vec<Point> =
            found.iter().filter_map(|(_, point)| point.as_ref().ok()).copied().collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Err(walk.why_none(found));
        };
        let spans = spans(&points);
        let places: Vec<u64> =
            spans.iter().map(|span| span.from.at).chain([first.at, last.at]).collect();
        let mut curve = Curve {
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

impl Curve {
    /// Adds what a prediction rests on, but for its price: there is none on a curve.
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
            // The last of it is why there is no price.
            None => drop(prediction.not_known.pop()),
        }
        self.confidence = self.confidence.max(prediction.confidence);
        for source in prediction.sources {
            match self.sources.iter_mut().find(|known| known.key == source.key) {
                Some(known) => known.confidence = known.confidence.max(source.confidence),
                None => self.sources.push(source),
            }
        }
        for touched in prediction.inconsistencies {
            if !self.inconsistencies.contains(&touched) {
                self.inconsistencies.push(touched);
            }
        }
        for what in prediction.not_known {
            if !self.not_known.contains(&what) {
                self.not_known.push(what);
            }
        }
    }
}

fn spans(points: &[Point]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for point in points {
        match spans.last_mut() {
            Some(span) if span.binding() == (point.binding, point.dimension) => span.to = *point,
            _ => spans.push(Span { from: *point, to: *point }),
        }
    }
    spans
}

/// What is followed.
struct Walk<'w> {
    catalogue: &'w Catalogue,
    configuration: &'w Configuration,
    workload: &'w Workload,
    over: Over,
}

impl Walk<'_> {
    /// What is asked at a place.
    fn asked(&self, at: u64) -> Result<(Configuration, Workload), PlanError> {
        let (mut configuration, mut workload) = (self.configuration.clone(), self.workload.clone());
        match self.over {
            Over::Size => {
                let bytes = u128::from(at) * u128::from(self.catalogue.units.size_bytes);
                configuration.size_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            }
            Over::Vcpus => {
                let name = sweep::with_vcpus(&configuration.machine.name, at);
                configuration.machine = self.catalogue.machine(&name.unwrap_or_default())?;
            }
            Over::Block => workload.block_bytes = at,
            Over::Depth => {
                let disk = self.catalogue.disk_type(&configuration.kind)?;
                if disk.queue.is_none() {
                    let what = format!("what one I/O in flight brings on {}", configuration.kind);
                    return Err(PlanError::NotKnown(what));
                }
                workload.depth = Some(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
        Ok((configuration, workload))
    }

    /// Why there is no place: what a size that there is lacks, before what the range does.
    fn why_none(&self, found: Vec<(u64, Result<Point, PlanError>)>) -> PlanError {
        let disk = self.catalogue.types.get(&self.configuration.kind);
        let least = disk.and_then(|disk| disk.size_gb_min).map(|size| size.ceil() as u64);
        let of_least = least.filter(|_| self.over == Over::Size).and_then(|at| self.at(at).err());
        let first = found.into_iter().find_map(|(_, point)| point.err());
        let none = || PlanError::input("there is no such place", "write another range");
        of_least.or(first).unwrap_or_else(none)
    }

    fn at(&self, at: u64) -> Result<Point, PlanError> {
        let (configuration, workload) = self.asked(at)?;
        workload.check()?;
        let site = Site::of(self.catalogue, &configuration)?;
        let demand = site.demand(&configuration)?;
        let mix = Mix::new(&workload, &self.catalogue.units, site.sharing());
        let mut caps = site.hard_caps(&demand, workload.block_bytes);
        if !mix.iops_under(caps.iter()).is_finite() {
            let what = format!("what {} does on {}", site.kind, site.machine.name);
            return Err(PlanError::NotKnown(what));
        }
        caps.extend(site.soft_caps(&workload, QueueFigure::Low));
        let (binding, without) = binding_order(&mix, &caps, 1)[0];
        let cap = &caps[binding];
        let iops = mix.iops_under(caps.iter());
        let rates = rates(self.catalogue, workload.block_bytes, iops);
        Ok(Point {
            at,
            iops: rates.iops,
            throughput: rates.throughput,
            binding: cap.kind,
            dimension: cap.dimension,
            tied: without <= iops * (1.0 + SAME),
        })
    }

    /// Adds the places on both sides of every change that is found between two places.
    fn between(
        &self,
        (from, first): (u64, &Result<Point, PlanError>),
        (to, last): (u64, &Result<Point, PlanError>),
        step: u64,
        out: &mut Vec<(u64, Result<Point, PlanError>)>,
    ) {
        let limit = |point: &Result<Point, PlanError>| {
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
