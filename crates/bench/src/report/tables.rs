//! Tables of a report.

use flagstone_units::grouped;

use super::{Named, Run};
use crate::compare::{ComparedMetric, Comparison};
use crate::published::{by_disks, by_size as of_sizes, published};
use crate::stats::steady;
use crate::table::{Table, UNKNOWN, cell};

/// Suite whose results are shown by disk size.
const BY_SIZE: &str = "provisioned-iops";

pub(super) fn all(runs: &[Run], comparison: &Comparison) -> Vec<Named> {
    let mut tables = Vec::new();
    let mut add = |id: String, table: Table| tables.push(Named { id, table });
    add("summary".to_owned(), comparison.summary());
    for (other, _) in comparison.pairs() {
        if let Some(table) = comparison.overhead(other) {
            add(format!("overhead-{other}"), table);
        }
        for (at, table) in by_disks(comparison, other).into_iter().enumerate() {
            add(format!("by-disks-{other}-{}", at + 1), table);
        }
    }
    if let Some(table) = by_size(runs, comparison) {
        add("by-size".to_owned(), table);
    }
    for suite in suites(runs) {
        if let Some(table) = published(&suite) {
            add(format!("published-{suite}"), table);
        }
    }
    if comparison.names().len() > 1 {
        let ids = ["throughput", "iops", "latency"];
        for (id, figure) in ids.into_iter().zip(ComparedMetric::ALL) {
            add(id.to_owned(), comparison.figure(figure));
        }
    }
    if let Some(table) = comparison.cpu() {
        add("cpu".to_owned(), table);
    }
    if let Some(table) = rounds(runs) {
        add("rounds".to_owned(), table);
    }
    tables
}

/// IOPS by disk size, for runs of the suite with known sizes.
pub fn by_size(runs: &[Run], comparison: &Comparison) -> Option<Table> {
    let measured = suites(runs).iter().any(|suite| suite == BY_SIZE);
    measured.then(|| of_sizes(comparison, &sizes(runs, comparison))).flatten()
}

fn suites(runs: &[Run]) -> Vec<String> {
    let mut suites: Vec<String> = Vec::new();
    for record in runs.iter().flat_map(|run| &run.records) {
        if !suites.contains(&record.suite) {
            suites.push(record.suite.clone());
        }
    }
    suites
}

/// Size of each target's disks together, in GB, from the environment of its own run: a path may be
/// another disk in another run.
fn sizes(runs: &[Run], comparison: &Comparison) -> Vec<Option<f64>> {
    let of = |at: usize| {
        let record = comparison.rows().iter().find_map(|row| row.records[at].first())?;
        let run = runs.iter().find(|run| run.records.contains(record))?;
        let disks = record.address.split(',').map(|disk| {
            let environments = run.environments.iter();
            environments.filter_map(|all| all.disks.get(disk)?.size_bytes).next_back()
        });
        disks.sum::<Option<u64>>().map(|bytes| bytes as f64 / 1e9)
    };
    (0..comparison.names().len()).map(of).collect()
}

fn rounds(runs: &[Run]) -> Option<Table> {
    let head = ["job", "on", "round", "IOPS", "range of the last five", "drift", "steady"];
    let title = "rounds until the last five are steady (range at most 20 %, drift at most 10 %)";
    let mut table = Table::new(title, &head);
    for run in runs.iter().filter(|run| run.plan.as_ref().is_some_and(|p| p.steady_state)) {
        let comparison = Comparison::of_targets(run.rounds.clone());
        for row in comparison.rows() {
            for (name, records) in comparison.names().iter().zip(&row.records) {
                let iops: Vec<f64> = records.iter().map(|record| record.iops).collect();
                for (at, record) in records.iter().enumerate() {
                    let found = steady(&iops[..=at]);
                    let percent = |pick: fn(&crate::stats::Steady) -> f64| {
                        cell(found.as_ref().map(pick), |value| format!("{value:.1} %"))
                    };
                    let word = found.map_or(UNKNOWN, |f| if f.is_steady { "yes" } else { "no" });
                    table.rows.push(vec![
                        row.job.clone(),
                        name.clone(),
                        (record.repetition + 1).to_string(),
                        grouped(record.iops, 0),
                        percent(|f| f.range_percent),
                        percent(|f| f.drift_percent),
                        word.to_owned(),
                    ]);
                }
            }
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
