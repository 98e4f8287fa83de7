//! Baselines of a comparison of several runs: each target is compared with the same target of the
//! first run, so that a machine's other targets never count as a change.

use crate::results::ResultRecord;

/// Results of one target of one run.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Number of the run, and the target in it.
    run: usize,
    target: String,
    pub(crate) records: Vec<ResultRecord>,
}

/// Baselines of series of several runs, and the series without a counterpart. Two runs of one
/// target each are compared whatever the names of the targets.
pub(crate) fn matched(series: &[Series]) -> (Vec<Option<usize>>, Vec<String>) {
    let of_run = |run: usize| series.iter().filter(move |one| one.run == run);
    let is_same = |one: &Series, other: &Series| {
        one.target == other.target || of_run(one.run).count() == 1 && of_run(other.run).count() == 1
    };
    let base = |one: &Series| {
        series.iter().position(|first| one.run > 0 && first.run == 0 && is_same(one, first))
    };
    let baselines: Vec<_> = series.iter().map(base).collect();
    let runs = series.iter().map(|one| one.run).max().unwrap_or(0);
    let lacks = |first: &Series| (1..=runs).any(|run| !of_run(run).any(|one| is_same(one, first)));
    let alone = series.iter().zip(&baselines).filter(|(one, base)| match one.run {
        0 => lacks(one),
        _ => base.is_none(),
    });
    let unmatched = alone.map(|(one, _)| one.name.clone()).collect();
    (baselines, unmatched)
}

/// The series of named runs, in the order of their first result: by the run's name and, if it has
/// several targets, the target's.
pub(crate) fn series(runs: Vec<(String, Vec<ResultRecord>)>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (run, (run_name, records)) in runs.into_iter().enumerate() {
        let several = records.iter().any(|record| record.target != records[0].target);
        for record in records {
            let name = match several {
                true => format!("{run_name} {}", record.target),
                false => run_name.clone(),
            };
            match all.iter_mut().find(|one| (one.run, &one.target) == (run, &record.target)) {
                Some(one) => one.records.push(record),
                None => {
                    let target = record.target.clone();
                    all.push(Series { name, run, target, records: vec![record] });
                }
            }
        }
    }
    all
}
