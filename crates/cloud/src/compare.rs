//! Comparison of disk types with equal capacity on one machine.
//!
//! An impossible type is still a column, with the reason.

use serde::{Serialize, Serializer};

use crate::catalog::{Catalog, Confidence, Inconsistency};
use crate::input::{DiskConfiguration, Machine, PlanError, Workload};
use crate::limits::MAX_DISKS;
use crate::placement::Placement;
use crate::prediction::{Cost, PredictedLimit, Rates, SourceUse};
use crate::price::NoPrice;
use crate::provenance::{add_new, merge_sources};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparisonRequest {
    /// Capacity of each type's disk; disks of one size are as many as needed.
    pub capacity_bytes: u64,
    pub machine: Machine,
    pub regional: bool,
    pub other_egress_gbit_per_s: f64,
    pub tier1_networking: bool,
    /// IOPS bought, for types that sell them.
    pub provisioned_iops: Option<f64>,
    /// Throughput bought in bytes per second, for types that sell it.
    pub provisioned_bytes_per_s: Option<f64>,
    pub workloads: Vec<Workload>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ComparisonColumn {
    #[serde(rename = "type")]
    pub kind: String,
    /// Reason that the type is impossible or unknown; the other members are empty then.
    #[serde(serialize_with = "in_words")]
    pub error: Option<PlanError>,
    pub disks: u32,
    pub size: f64,
    /// IOPS bought for each disk, for types that sell or derive them.
    pub iops: Option<f64>,
    /// Throughput bought for each disk, for types that sell or derive it.
    pub throughput: Option<f64>,
    pub results: Vec<WorkloadResult>,
    pub cost: Option<Cost>,
    /// The provider must approve the combination.
    pub by_request: bool,
    /// Lowest confidence of the figures, except the price, which has its own.
    pub confidence: Option<Confidence>,
    pub sources: Vec<SourceUse>,
    pub inconsistencies: Vec<Inconsistency>,
    pub not_known: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadResult {
    pub total: Rates,
    pub read: Rates,
    pub write: Rates,
    pub binding: PredictedLimit,
    pub next: Option<PredictedLimit>,
    /// USD per month per IOPS; `None` without a price.
    pub usd_per_iops: Option<f64>,
}

fn in_words<S: Serializer>(error: &Option<PlanError>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(PlanError::to_string).serialize(serializer)
}

impl Catalog {
    pub fn compare(
        &self,
        kinds: &[String],
        request: &ComparisonRequest,
    ) -> Result<Vec<ComparisonColumn>, PlanError> {
        for kind in kinds {
            self.disk_type(kind)?;
        }
        for workload in &request.workloads {
            workload.check()?;
        }
        Ok(kinds.iter().map(|kind| self.column(kind, request)).collect())
    }

    fn column(&self, kind: &str, request: &ComparisonRequest) -> ComparisonColumn {
        let mut column = ComparisonColumn { kind: kind.to_owned(), ..Default::default() };
        if let Err(error) = self.fill(&mut column, request) {
            column.results.clear();
            column.error = Some(error);
        }
        column
    }

    fn fill(
        &self,
        column: &mut ComparisonColumn,
        request: &ComparisonRequest,
    ) -> Result<(), PlanError> {
        let configuration = self.configuration(&column.kind, request)?;
        let placement = Placement::of(self, &configuration)?;
        let demand = placement.demand(&configuration)?;
        column.disks = demand.disks;
        column.size = demand.size;
        column.iops = demand.iops;
        column.throughput = demand.throughput;
        column.by_request = placement.by_request;
        let cost = placement.cost(&demand);
        for workload in &request.workloads {
            let prediction = self.predict(&configuration, workload)?;
            let iops = prediction.total.iops;
            let usd = cost.as_ref().ok().map(|cost| cost.usd_per_month);
            column.confidence = column.confidence.max(Some(prediction.confidence));
            merge_sources(&mut column.sources, prediction.sources);
            add_new(&mut column.inconsistencies, prediction.inconsistencies);
            add_new(&mut column.not_known, prediction.not_known);
            column.results.push(WorkloadResult {
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
            Err(NoPrice(why)) => add_new(&mut column.not_known, vec![why]),
        }
        Ok(())
    }

    /// Disks of a type that hold the capacity.
    fn configuration(
        &self,
        kind: &str,
        request: &ComparisonRequest,
    ) -> Result<DiskConfiguration, PlanError> {
        let mut configuration = DiskConfiguration {
            kind: kind.to_owned(),
            size_bytes: request.capacity_bytes,
            disks: 1,
            machine: request.machine.clone(),
            regional: request.regional,
            other_egress_gbit_per_s: request.other_egress_gbit_per_s,
            tier1_networking: request.tier1_networking,
            provisioned_iops: None,
            provisioned_bytes_per_s: None,
        };
        let placement = Placement::of(self, &configuration)?;
        if let Some(each) = placement.size_each() {
            configuration.size_bytes = 0;
            configuration.disks = self.as_many(&placement, each, request)?;
        }
        // Provisioned values apply only to types that sell them.
        if let Some(part) = &placement.disk.provisioned {
            let size = self.units.size_of(configuration.size_bytes);
            let iops = part.iops_range(size).and(request.provisioned_iops);
            let sold = part.throughput_range(size, iops.or(part.iops_default)).is_some();
            configuration.provisioned_iops = iops;
            configuration.provisioned_bytes_per_s =
                request.provisioned_bytes_per_s.filter(|_| sold);
        }
        Ok(configuration)
    }

    /// The smallest available number of fixed-size disks that holds the capacity.
    fn as_many(
        &self,
        placement: &Placement<'_>,
        each: f64,
        request: &ComparisonRequest,
    ) -> Result<u32, PlanError> {
        let capacity = self.units.size_of(request.capacity_bytes);
        let holds = |disks: u32| f64::from(disks) * each >= capacity * (1.0 - 1e-9);
        let machine = &request.machine.name;
        let unit = self.units.size.name();
        if let Some(fixed) = self.fixed_disks(placement.kind, machine) {
            let found = format!("{machine} comes with {fixed} of {each} {unit}");
            let error = PlanError::input(found, "write a larger machine, or less capacity");
            return holds(fixed).then_some(fixed).ok_or(error);
        }
        let known = |disks: &u32| {
            placement.volume_limits().is_some() || placement.count_row(*disks).is_some()
        };
        let found = (1..=MAX_DISKS).filter(|disks| holds(*disks)).find(known);
        found.ok_or_else(|| {
            let found = format!("{capacity:.0} {unit} of {}", placement.kind);
            PlanError::input(found, format!("each is of {each} {unit}, and there are not so many"))
        })
    }
}
