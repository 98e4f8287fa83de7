//! Data of a report as JSON: plans, environments and all records as in `results.jsonl`, with time
//! series averaged where there are too many points.

use serde::Serialize;

use super::{AdditionalSections, Run};
use crate::campaign::CampaignPlan;
use crate::environment::Environment;
use crate::limits::report::REPORT_DATA_POINTS;
use crate::results::{ResultRecord, SCHEMA_VERSION};

#[derive(Serialize)]
struct Data<'a> {
    schema_version: u32,
    runs: Vec<RunData<'a>>,
}

#[derive(Serialize)]
struct RunData<'a> {
    name: &'a str,
    plan: Option<&'a CampaignPlan>,
    environments: &'a [Environment],
    #[serde(skip_serializing_if = "Option::is_none")]
    additional_sections: Option<&'a AdditionalSections>,
    results: Vec<ResultRecord>,
}

pub(super) fn json<'a>(runs: impl IntoIterator<Item = &'a Run>) -> String {
    let runs: Vec<&Run> = runs.into_iter().collect();
    let records: usize = runs.iter().map(|run| run.rounds.len()).sum();
    let most = (REPORT_DATA_POINTS / records.max(1)).max(10);
    let runs = runs.into_iter().map(|run| of_run(run, most)).collect();
    let data = Data { schema_version: SCHEMA_VERSION, runs };
    serde_json::to_string(&data).expect("it is always JSON")
}

fn of_run(run: &Run, most: usize) -> RunData<'_> {
    let Run { name, rounds, plan, environments, additional_sections, .. } = run;
    let results = rounds.iter().map(|record| small(record.clone(), most)).collect();
    RunData {
        name,
        plan: plan.as_ref(),
        environments,
        additional_sections: additional_sections.as_ref(),
        results,
    }
}

fn small(mut record: ResultRecord, most: usize) -> ResultRecord {
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
            // A thousandth of the unit is below any noise.
            *value = (*value * 1e3).round() / 1e3;
        }
    }
    record
}
