//! JSON document of a comparison, for programs; `docs/results.md` describes it.

use std::path::PathBuf;

use serde::Serialize;

use super::{Run, comparison};
use crate::caveats::caveats;
use crate::compare::{
    ComparedMetric, Comparison, DifferenceVerdict, JobRow, RepeatedFigure, median_of,
};
use crate::job::AccessPattern;
use crate::provenance::Provenance;
use crate::results::{ResultRecord, SCHEMA_VERSION};

/// Results of one or several runs, compared with the first series.
#[derive(Debug, Serialize)]
pub struct ComparisonDocument {
    schema_version: u32,
    /// Directories or files of the results.
    results: Vec<PathBuf>,
    series: Vec<SeriesDocument>,
    jobs: Vec<JobDocument>,
    caveats: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SeriesDocument {
    name: String,
    provenance: Provenance,
}

#[derive(Debug, Serialize)]
struct JobDocument {
    job: String,
    rw: AccessPattern,
    block_bytes: u64,
    depth: u32,
    threads: u32,
    disks: u32,
    /// In the order of the series; `null` for a series without this job.
    results: Vec<Option<JobResults>>,
}

#[derive(Debug, Serialize)]
struct JobResults {
    iops: ComparedFigure,
    /// 10^6 bytes per second.
    mb_per_s: ComparedFigure,
    latency_mean_ms: ComparedFigure,
    latency_p50_us: Option<f64>,
    latency_p99_us: Option<f64>,
    latency_p99_9_us: Option<f64>,
    cpu_percent: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ComparedFigure {
    #[serde(flatten)]
    figure: RepeatedFigure,
    #[serde(flatten)]
    difference: Option<Difference>,
}

#[derive(Debug, Serialize)]
struct Difference {
    ratio: Option<f64>,
    overhead_percent: Option<f64>,
    #[serde(flatten)]
    verdict: DifferenceVerdict,
}

impl ComparisonDocument {
    pub fn new(runs: &[Run], results: &[PathBuf]) -> ComparisonDocument {
        let comparison = comparison(runs);
        let named = comparison.names().iter().zip(comparison.provenances());
        let series = named.map(|(name, provenance)| SeriesDocument {
            name: name.strip_suffix(provenance.suffix()).unwrap_or(name).to_owned(),
            provenance: *provenance,
        });
        ComparisonDocument {
            schema_version: SCHEMA_VERSION,
            results: results.to_vec(),
            series: series.collect(),
            jobs: comparison.rows().iter().map(|row| job(&comparison, row)).collect(),
            caveats: caveats(&comparison),
        }
    }
}

fn job(comparison: &Comparison, row: &JobRow) -> JobDocument {
    JobDocument {
        job: row.job.clone(),
        rw: row.rw,
        block_bytes: row.block_bytes,
        depth: row.depth,
        threads: row.threads,
        disks: row.disks,
        results: (0..comparison.names().len())
            .map(|at| results(row, at, comparison.base_of(row, at)))
            .collect(),
    }
}

fn results(row: &JobRow, at: usize, base: Option<usize>) -> Option<JobResults> {
    let median = |pick: fn(&ResultRecord) -> Option<f64>| median_of(&row.records[at], pick);
    Some(JobResults {
        iops: compared(row, at, base, ComparedMetric::Iops)?,
        mb_per_s: compared(row, at, base, ComparedMetric::Throughput)?,
        latency_mean_ms: compared(row, at, base, ComparedMetric::Latency)?,
        latency_p50_us: median(|record| record.latency_p50_us),
        latency_p99_us: median(|record| record.latency_p99_us),
        latency_p99_9_us: median(|record| record.latency_p99_9_us),
        cpu_percent: median(|record| Some(record.measurement.cpu.as_ref()?.busy_percent())),
    })
}

fn compared(
    row: &JobRow,
    at: usize,
    base: Option<usize>,
    metric: ComparedMetric,
) -> Option<ComparedFigure> {
    let figure = RepeatedFigure::new(row.values(at, metric))?;
    let base = base.and_then(|base| RepeatedFigure::new(row.values(base, metric)));
    let difference = base.map(|base| Difference {
        ratio: (base.median > 0.0).then(|| figure.median / base.median),
        overhead_percent: metric.overhead_percent(figure.median, base.median),
        verdict: DifferenceVerdict::of(&figure.values, &base.values),
    });
    Some(ComparedFigure { figure, difference })
}
