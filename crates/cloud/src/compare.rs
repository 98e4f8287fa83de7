//! Types of disk side by side, each with the same capacity on the same machine.
//!
//! A type that cannot be had so is a column all the same, and says why.

use serde::{Serialize, Serializer};

use crate::catalogue::{Catalogue, Confidence};
use crate::input::{Configuration, Machine, PlanError, Workload};
use crate::limits::MAX_DISKS;
use crate::prediction::{Cost, Limit, Rates, SourceUse, Touched};
use crate::price::NoPrice;
use crate::site::Site;

/// What all types are asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    /// What a disk of each type holds; disks of one size are as many as it takes.
    pub capacity_bytes: u64,
    /// The machine.
    pub machine: Machine,
    /// Whether the disks are replicated in two zones.
    pub regional: bool,
    /// What else the machine sends, in Gbit/s.
    pub network_gbit_per_s: f64,
    /// Whether the machine has the dearer networking tier.
    pub tier1: bool,
    /// IOPS bought, of types that sell them.
    pub provisioned_iops: Option<f64>,
    /// Throughput bought, in bytes a second, of types that sell it.
    pub provisioned_bytes_per_s: Option<f64>,
    /// What is done, each by itself.
    pub workloads: Vec<Workload>,
}

/// One type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why it cannot be had so, or nothing is known of it; the rest is empty then.
    #[serde(serialize_with = "in_words")]
    pub cannot: Option<PlanError>,
    /// How many disks.
    pub disks: u32,
    /// Size of each, in the catalogue's unit.
    pub size: f64,
    /// IOPS bought for each, of types that sell or derive them.
    pub iops: Option<f64>,
    /// Throughput bought for each, of types that sell or derive it.
    pub throughput: Option<f64>,
    /// Of each workload, in the order in which they were asked for.
    pub does: Vec<Does>,
    /// What the disks cost; not known if absent.
    pub cost: Option<Cost>,
    /// Whether the provider has to be asked first.
    pub by_request: bool,
    /// The least of what the figures rest on, but for the price, which has its own.
    pub confidence: Option<Confidence>,
    /// What it rests on.
    pub sources: Vec<SourceUse>,
    /// Where the sources contradict themselves and it matters here.
    pub inconsistencies: Vec<Touched>,
    /// What the sources do not say and would matter here.
    pub not_known: Vec<String>,
}

/// What a type does of one workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Does {
    /// Reads and writes together.
    pub total: Rates,
    /// Of it, reads.
    pub read: Rates,
    /// Of it, writes.
    pub write: Rates,
    /// The limit that binds.
    pub binding: Limit,
    /// The limit that binds without it.
    pub next: Option<Limit>,
    /// USD a month for each I/O a second; none if there is no price.
    pub usd_per_iops: Option<f64>,
}

fn in_words<S: Serializer>(error: &Option<PlanError>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(PlanError::to_string).serialize(serializer)
}

impl Catalogue {
    /// A column for each of `kinds`.
    ///
    /// # Errors
    /// A type that the catalogue does not have, or a workload that is none.
    pub fn compare(&self, kinds: &[String], asked: &Asked) -> Result<Vec<Column>, PlanError> {
        for kind in kinds {
            self.disk_type(kind)?;
        }
        for workload in &asked.workloads {
            workload.check()?;
        }
        Ok(kinds.iter().map(|kind| self.column(kind, asked)).collect())
    }

    fn column(&self, kind: &str, asked: &Asked) -> Column {
        let mut column = Column {
            kind: kind.to_owned(),
            cannot: None,
            disks: 0,
            size: 0.0,
            iops: None,
            throughput: None,
            does: Vec::new(),
            cost: None,
            by_request: false,
            confidence: None,
            sources: Vec::new(),
            inconsistencies: Vec::new(),
            not_known: Vec::new(),
        };
        if let Err(error) = self.fill(&mut column, asked) {
            column.does.clear();
            column.cannot = Some(error);
        }
        column
    }

    fn fill(&self, column: &mut Column, asked: &Asked) -> Result<(), PlanError> {
        let configuration = self.configuration(&column.kind, asked)?;
        let site = Site::of(self, &configuration)?;
        let demand = site.demand(&configuration)?;
        column.disks = demand.disks;
        column.size = demand.size;
        column.iops = demand.iops;
        column.throughput = demand.throughput;
        column.by_request = site.by_request;
        let cost = site.cost(&demand);
        for workload in &asked.workloads {
            let prediction = self.predict(&configuration, workload)?;
            let iops = prediction.total.iops;
            let usd = cost.as_ref().ok().map(|cost| cost.usd_per_month);
            column.confidence = column.confidence.max(Some(prediction.confidence));
            merge(&mut column.sources, prediction.sources);
            new_ones(&mut column.inconsistencies, prediction.inconsistencies);
            new_ones(&mut column.not_known, prediction.not_known);
            column.does.push(Does {
                total: prediction.total,
                read: prediction.read,
                write: prediction.write,
                binding: prediction.binding,
                next: prediction.next,
                usd_per_iops: usd.filter(|_| iops > 0.0).map(|usd| usd / iops),
            });
        }
        match cost {
            Ok(cost) => column.cost = Some(cost),
            Err(NoPrice(why)) => new_ones(&mut column.not_known, vec![why]),
        }
        Ok(())
    }

    /// The disks of a type that hold the capacity.
    fn configuration(&self, kind: &str, asked: &Asked) -> Result<Configuration, PlanError> {
        let mut configuration = Configuration {
            kind: kind.to_owned(),
            size_bytes: asked.capacity_bytes,
            disks: 1,
            machine: asked.machine.clone(),
            regional: asked.regional,
            network_gbit_per_s: asked.network_gbit_per_s,
            tier1: asked.tier1,
            provisioned_iops: None,
            provisioned_bytes_per_s: None,
        };
        let site = Site::of(self, &configuration)?;
        if let Some(each) = site.size_each() {
            configuration.size_bytes = 0;
            configuration.disks = self.as_many(&site, each, asked)?;
        }
        // What a type does not sell it is not asked for.
        if let Some(part) = &site.disk.provisioned {
            let size = self.units.size_of(configuration.size_bytes);
            let iops = part.iops_range(size).and(asked.provisioned_iops);
            let sold = part.throughput_range(size, iops.or(part.iops_default)).is_some();
            configuration.provisioned_iops = iops;
            configuration.provisioned_bytes_per_s = asked.provisioned_bytes_per_s.filter(|_| sold);
        }
        Ok(configuration)
    }

    /// The smallest number of disks of one size that holds the capacity and that there is.
    fn as_many(&self, site: &Site<'_>, each: f64, asked: &Asked) -> Result<u32, PlanError> {
        let capacity = self.units.size_of(asked.capacity_bytes);
        let holds = |disks: u32| f64::from(disks) * each >= capacity * (1.0 - 1e-9);
        let machine = &asked.machine.name;
        let unit = self.units.size.name();
        if let Some(fixed) = self.fixed_disks(site.kind, machine) {
            return match holds(fixed) {
                true => Ok(fixed),
                false => {
                    let found = format!("{machine} comes with {fixed} of {each} {unit}");
                    Err(PlanError::input(found, "write a larger machine, or less capacity"))
                }
            };
        }
        let known =
            |disks: &u32| site.volume_limits().is_some() || site.count_row(*disks).is_some();
        let found = (1..=MAX_DISKS).filter(|disks| holds(*disks)).find(known);
        found.ok_or_else(|| {
            let found = format!("{capacity:.0} {unit} of {}", site.kind);
            PlanError::input(found, format!("each is of {each} {unit}, and there are not so many"))
        })
    }
}

fn merge(into: &mut Vec<SourceUse>, more: Vec<SourceUse>) {
    for source in more {
        match into.iter_mut().find(|known| known.key == source.key) {
            Some(known) => known.confidence = known.confidence.max(source.confidence),
            None => into.push(source),
        }
    }
}

fn new_ones<T: PartialEq>(into: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !into.contains(&one) {
            into.push(one);
        }
    }
}
