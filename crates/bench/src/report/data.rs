//! The data of a report, so that it can be looked into again: the plans, the environments and every
//! record as in `results.jsonl`, with time series that are averaged where there are too many.

use serde::Serialize;

use super::{Extras, Run};
use crate::campaign::Plan;
use crate::environment::Environment;
use crate::limits::REPORT_DATA_POINTS;
use crate::results::{Record, SCHEMA_VERSION};

#[derive(Serialize)]
struct Data<'a> {
    schema_version: u32,
    runs: Vec<RunData<'a>>,
}

#[derive(Serialize)]
struct RunData<'a> {
    name: &'a str,
    plan: Option<&'a Plan>,
    environments: &'a [Environment],
    #[serde(skip_serializing_if = "Option::is_none")]
    extras: Option<&'a Extras>,
    results: Vec<Record>,
}

/// All of it as JSON.
pub(super) fn json<'a>(runs: impl IntoIterator<Item = &'a Run>) -> String {
    let runs: Vec<&Run> = runs.into_iter().collect();
    let records: usize = runs.iter().map(|run| run.rounds.len()).sum();
    let most = (REPORT_DATA_POINTS / records.max(1)).max(10);
    let runs = runs.into_iter().map(|run| of_run(run, most)).collect();
    let data = Data { schema_version: SCHEMA_VERSION, runs };
    serde_json::to_string(&data).expect("it is always JSON")
}

fn of_run(run: &Run, most: usize) -> RunData<'_> {
    let Run { name, rounds, plan, environments, extras, .. } = run;
    let results = rounds.iter().map(|record| small(record.clone(), most)).collect();
    RunData { name, plan: plan.as_ref(), environments, extras: extras.as_ref(), results }
}

fn small(mut record: Record, most: usize) -> Record {
    let series = &mut record.measurement.series_iops;
    let together = series.len().div_ceil(most).max(1);
    let mean = |chunk: &[f64]| chunk.iter().sum::<f64>() / chunk.len() as f64;
    if together > 1 {
        *series = series.chunks(together).map(|chunk| mean(chunk).round()).collect();
        record.measurement.series_interval_ms *= together as u64;
    }
    let side = &mut record.measurement;
    for side in [&mut side.total, &mut side.read, &mut side.write] {
        for value in [
            &mut side.latency_mean_us,
            &mut side.latency_stddev_us,
            &mut side.iops,
            &mut side.bytes_per_s,
        ] {
            // A thousandth of what is measured is below any noise.
            *value = (*value * 1e3).round() / 1e3;
        }
    }
    record
}
