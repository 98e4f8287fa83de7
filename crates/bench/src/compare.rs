//! Comparison of results: medians with confidence intervals, overheads and ratios as in the
//! published reports, and the significance of differences.

use std::collections::BTreeMap;

use flagstone_units::{format_block_size, grouped};
use serde::Serialize;

#[cfg(feature = "report")]
use crate::baseline::{matched, series};
use crate::job::AccessPattern;
use crate::provenance::Provenance;
use crate::results::ResultRecord;
use crate::stats::{
    ConfidenceInterval, coefficient_of_variation_percent, mann_whitney, median, median_interval,
    median_ratio_interval, shown_percent,
};
use crate::table::{Table, UNKNOWN, cell};

/// Significance level: a smaller p-value counts as a difference.
pub(crate) const SIGNIFICANT: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedMetric {
    Throughput,
    Iops,
    /// Mean latency in ms.
    Latency,
}

impl ComparedMetric {
    /// All metrics, in the order of the tables.
    pub const ALL: [ComparedMetric; 3] =
        [ComparedMetric::Throughput, ComparedMetric::Iops, ComparedMetric::Latency];

    pub fn name(self) -> &'static str {
        match self {
            ComparedMetric::Throughput => "MB/s",
            ComparedMetric::Iops => "IOPS",
            ComparedMetric::Latency => "mean latency, ms",
        }
    }

    pub fn of(self, record: &ResultRecord) -> f64 {
        match self {
            ComparedMetric::Throughput => record.mb_per_s,
            ComparedMetric::Iops => record.iops,
            ComparedMetric::Latency => record.latency_mean_us / 1e3,
        }
    }

    /// Overhead against the baseline, in % of the baseline: throughput lost, or latency added.
    /// `None` without a baseline.
    pub fn overhead_percent(self, other: f64, base: f64) -> Option<f64> {
        let worse_by = if self == ComparedMetric::Latency { other - base } else { base - other };
        (base > 0.0).then(|| 100.0 * worse_by / base)
    }

    fn decimals(self) -> usize {
        match self {
            ComparedMetric::Throughput => 2,
            ComparedMetric::Iops => 0,
            ComparedMetric::Latency => 3,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RepeatedFigure {
    pub values: Vec<f64>,
    pub median: f64,
    /// 95 % confidence interval of the median; from three repetitions on.
    pub interval: Option<ConfidenceInterval>,
    /// Coefficient of variation, in %; from two repetitions on.
    pub coefficient_of_variation_percent: Option<f64>,
}

impl RepeatedFigure {
    /// `None` without values.
    pub(crate) fn new(values: Vec<f64>) -> Option<RepeatedFigure> {
        Some(RepeatedFigure {
            median: median(&values)?,
            interval: median_interval(&values),
            coefficient_of_variation_percent: coefficient_of_variation_percent(&values),
            values,
        })
    }

    fn text(&self, figure: ComparedMetric) -> String {
        let number = |value| grouped(value, figure.decimals());
        match self.interval {
            Some(ConfidenceInterval { low, high }) => {
                format!("{} [{}–{}]", number(self.median), number(low), number(high))
            }
            None => format!("{} [n={}]", number(self.median), self.values.len()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum DifferenceVerdict {
    Differs {
        p: f64,
    },
    NotShown {
        p: f64,
        /// Difference, in % of the first, that these repetitions would show with a power of 80 %.
        shown_percent: Option<f64>,
    },
    TooFew,
}

impl DifferenceVerdict {
    /// Compares two sets of repetitions; `b` is the baseline.
    pub(crate) fn of(a: &[f64], b: &[f64]) -> DifferenceVerdict {
        match mann_whitney(a, b) {
            None => DifferenceVerdict::TooFew,
            Some(found) if found.p_least >= SIGNIFICANT => DifferenceVerdict::TooFew,
            Some(found) if found.p < SIGNIFICANT => DifferenceVerdict::Differs { p: found.p },
            Some(found) => {
                DifferenceVerdict::NotShown { p: found.p, shown_percent: shown_percent(b, a) }
            }
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            DifferenceVerdict::Differs { p } if p < 0.001 => "differs (p < 0.001)".to_owned(),
            DifferenceVerdict::Differs { p } => format!("differs (p = {p:.3})"),
            DifferenceVerdict::NotShown { p, shown_percent: Some(percent) } => {
                format!("no difference shown (p = {p:.2}; {percent:.1} % would be)")
            }
            DifferenceVerdict::NotShown { p, .. } => format!("no difference shown (p = {p:.2})"),
            DifferenceVerdict::TooFew => "too few repetitions".to_owned(),
        }
    }
}

/// Targets with their results. Of one run, the first target is the baseline of the others. Of
/// several runs, a target of the first run is the baseline of the same target in the others.
#[derive(Clone, Debug)]
pub struct Comparison {
    names: Vec<String>,
    provenances: Vec<Provenance>,
    baselines: Vec<Option<usize>>,
    /// Targets that the first run or a later one lacks.
    unmatched: Vec<String>,
    jobs: Vec<JobRow>,
}

#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub(crate) job: String,
    pub(crate) rw: AccessPattern,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) threads: u32,
    pub(crate) disks: u32,
    pub(crate) records: Vec<Vec<ResultRecord>>,
}

/// What a job does. Only jobs of one shape are compared, whatever their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JobShape {
    rw: AccessPattern,
    block_bytes: u64,
    depth: u32,
    threads: u32,
    disks: u32,
}

impl JobShape {
    fn of(record: &ResultRecord) -> JobShape {
        let ResultRecord { rw, block_bytes, depth, threads, disks, .. } = *record;
        JobShape { rw, block_bytes, depth, threads, disks }
    }
}

impl std::fmt::Display for JobShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JobShape { rw, block_bytes, depth, threads, disks } = self;
        let block = format_block_size(*block_bytes);
        write!(f, "{rw} of {block}, depth {depth}, threads {threads}, disks {disks}")
    }
}

impl JobRow {
    /// Shapes of the results of both series, if they are not all the same.
    fn unlike(&self, at: usize, base: usize) -> Option<[JobShape; 2]> {
        let first = JobShape::of(self.records[base].first()?);
        let all = self.records[base].iter().chain(&self.records[at]).map(JobShape::of);
        self.records[at].first()?;
        all.into_iter().find(|shape| *shape != first).map(|other| [first, other])
    }

    pub(crate) fn in_flight(&self) -> u64 {
        u64::from(self.depth) * u64::from(self.threads)
    }

    pub(crate) fn values(&self, at: usize, figure: ComparedMetric) -> Vec<f64> {
        self.records[at].iter().map(|record| figure.of(record)).collect()
    }

    pub(crate) fn median(&self, at: usize, figure: ComparedMetric) -> Option<f64> {
        median(&self.values(at, figure))
    }
}

pub(crate) fn median_of(
    records: &[ResultRecord],
    pick: impl Fn(&ResultRecord) -> Option<f64>,
) -> Option<f64> {
    median(&records.iter().filter_map(pick).collect::<Vec<_>>())
}

#[derive(Clone, Debug, PartialEq)]
pub struct Slower {
    pub job: String,
    pub name: String,
    pub figure: ComparedMetric,
    /// [`ComparedMetric::overhead_percent`] of the medians.
    pub percent: f64,
}

impl Comparison {
    /// A comparison of named targets with the first one. Jobs are in the order of their first
    /// result.
    pub fn new(things: Vec<(String, Vec<ResultRecord>)>) -> Comparison {
        let baselines = (0..things.len()).map(|at| (at > 0).then_some(0)).collect();
        Comparison::with(things, baselines, Vec::new())
    }

    fn with(
        things: Vec<(String, Vec<ResultRecord>)>,
        baselines: Vec<Option<usize>>,
        unmatched: Vec<String>,
    ) -> Comparison {
        let provenance = |of: &[ResultRecord]| {
            of.iter().map(|record| record.provenance).max().unwrap_or_default()
        };
        let provenances: Vec<Provenance> =
            things.iter().map(|(_, records)| provenance(records)).collect();
        let named = things.iter().zip(&provenances);
        let names = named.map(|((name, _), of)| format!("{name}{}", of.suffix())).collect();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut jobs: Vec<JobRow> = Vec::new();
        let count = things.len();
        for (at, (_, records)) in things.into_iter().enumerate() {
            for record in records {
                let place = *places.entry(record.job.clone()).or_insert_with(|| {
                    jobs.push(JobRow {
                        job: record.job.clone(),
                        rw: record.rw,
                        block_bytes: record.block_bytes,
                        depth: record.depth,
                        threads: record.threads,
                        disks: record.disks,
                        records: vec![Vec::new(); count],
                    });
                    jobs.len() - 1
                });
                jobs[place].records[at].push(record);
            }
        }
        Comparison { names, provenances, baselines, unmatched, jobs }
    }

    /// The targets of one campaign, in the order of their first result.
    pub fn of_targets(records: Vec<ResultRecord>) -> Comparison {
        Comparison::of_named(records.into_iter().map(|record| (record.target.clone(), record)))
    }

    /// Named runs: the targets of a single run, or else each target of each run, by the run's name
    /// and, if it has several targets, the target's.
    #[cfg(feature = "report")]
    pub(crate) fn of_runs(mut runs: Vec<(String, Vec<ResultRecord>)>) -> Comparison {
        if runs.len() == 1 {
            return Comparison::of_targets(runs.remove(0).1);
        }
        let all = series(runs);
        let (baselines, unmatched) = matched(&all);
        let things = all.into_iter().map(|one| (one.name, one.records)).collect();
        Comparison::with(things, baselines, unmatched)
    }

    fn of_named(named: impl Iterator<Item = (String, ResultRecord)>) -> Comparison {
        let mut things: Vec<(String, Vec<ResultRecord>)> = Vec::new();
        for (name, record) in named {
            match things.iter_mut().find(|(other, _)| *other == name) {
                Some((_, list)) => list.push(record),
                None => things.push((name, vec![record])),
            }
        }
        Comparison::new(things)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn provenances(&self) -> &[Provenance] {
        &self.provenances
    }

    /// The series that `at` is compared with.
    pub(crate) fn base(&self, at: usize) -> Option<usize> {
        *self.baselines.get(at)?
    }

    /// Series with their baselines.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.baselines.iter().enumerate().filter_map(|(at, base)| Some((at, (*base)?)))
    }

    /// The baseline of a job's results, if it was the same job.
    pub(crate) fn base_of(&self, row: &JobRow, at: usize) -> Option<usize> {
        self.base(at).filter(|base| row.unlike(at, *base).is_none())
    }

    /// As [`Comparison::pairs`], of the same job.
    pub(crate) fn pairs_of(&self, row: &JobRow) -> impl Iterator<Item = (usize, usize)> {
        self.pairs().filter(|(at, base)| row.unlike(*at, *base).is_none())
    }

    /// Jobs that are not compared, because they share only their name.
    pub fn unlike_jobs(&self) -> Vec<String> {
        let of = |row: &JobRow, (at, base): (usize, usize)| {
            let [first, other] = row.unlike(at, base)?;
            let (job, name, base) = (&row.job, &self.names[at], &self.names[base]);
            Some(format!("{job} on {name} ({other}) and on {base} ({first})"))
        };
        let rows = self.jobs.iter();
        rows.flat_map(|row| self.pairs().filter_map(move |pair| of(row, pair))).collect()
    }

    /// Whether any two series are compared.
    pub fn has_pairs(&self) -> bool {
        self.pairs().next().is_some()
    }

    /// Targets without a counterpart: of a later run, which the first one lacks, and of the first
    /// run, which a later one lacks.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    pub(crate) fn rows(&self) -> &[JobRow] {
        &self.jobs
    }

    /// Table of one metric: medians, ratio, overhead and significance against the baseline.
    pub fn figure(&self, figure: ComparedMetric) -> Table {
        let mut head = vec!["job".to_owned()];
        let several = self.pairs().any(|(_, base)| Some(base) != self.pairs().next().map(|p| p.1));
        for (at, name) in self.names.iter().enumerate() {
            head.push(name.clone());
            if let Some(base) = self.base(at) {
                let ratio =
                    if several { format!("to {}", self.names[base]) } else { "ratio".into() };
                head.extend([ratio, "overhead".to_owned(), "verdict".to_owned()]);
            }
        }
        let mut rows = Vec::new();
        for row in &self.jobs {
            let absent = || UNKNOWN.to_owned();
            let mut cells = vec![row.job.clone()];
            for at in 0..self.names.len() {
                let values = row.values(at, figure);
                let cell = RepeatedFigure::new(values.clone());
                cells.push(cell.as_ref().map_or_else(absent, |of| of.text(figure)));
                if self.base(at).is_none() {
                    continue;
                }
                let first = self.base_of(row, at).map(|base| row.values(base, figure));
                let first = first.unwrap_or_default();
                match (RepeatedFigure::new(first.clone()), cell) {
                    (Some(base), Some(cell)) => {
                        cells.push(ratio(&cell, &base));
                        cells.push(overhead(figure, cell.median, base.median));
                        cells.push(DifferenceVerdict::of(&values, &first).text());
                    }
                    _ => cells.extend([absent(), absent(), absent()]),
                }
            }
            rows.push(cells);
        }
        Table { title: format!("{} (median, 95 % confidence)", figure.name()), head, rows }
    }

    /// Overhead of the target `other` in the published columns: throughput and latency by write
    /// size. Both overheads are relative to the baseline; SIOS relates latency to the mirror's.
    pub fn overhead(&self, other: usize) -> Option<Table> {
        let base = self.base(other)?;
        let (plain, mirror) = (&self.names[base], self.names.get(other)?);
        let names = [
            "size".to_owned(),
            format!("MB/s, {mirror}"),
            format!("MB/s, {plain}"),
            "overhead".to_owned(),
            format!("average latency ms, {mirror}"),
            format!("ms, {plain}"),
            "overhead".to_owned(),
            "verdict".to_owned(),
        ];
        let title = format!("overhead of {mirror} over {plain}");
        let mut table = Table { title, head: names.into(), rows: Vec::new() };
        for row in &self.jobs {
            if self.base_of(row, other).is_none() {
                continue;
            }
            let of = |at, figure| row.median(at, figure);
            let (Some(mirror), Some(plain), Some(mirror_ms), Some(plain_ms)) = (
                of(other, ComparedMetric::Throughput),
                of(base, ComparedMetric::Throughput),
                of(other, ComparedMetric::Latency),
                of(base, ComparedMetric::Latency),
            ) else {
                continue;
            };
            let values = |at| row.values(at, ComparedMetric::Throughput);
            table.rows.push(vec![
                format!(
                    "{} ({}, {} in flight)",
                    format_block_size(row.block_bytes).to_uppercase(),
                    row.rw,
                    row.in_flight()
                ),
                grouped(mirror, 2),
                grouped(plain, 2),
                overhead(ComparedMetric::Throughput, mirror, plain),
                format!("{mirror_ms:.3}"),
                format!("{plain_ms:.3}"),
                overhead(ComparedMetric::Latency, mirror_ms, plain_ms),
                DifferenceVerdict::of(&values(other), &values(base)).text(),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Significant losses of more than `percent_most` against the baseline: fewer IOPS or a longer
    /// mean latency.
    pub fn slower(&self, percent_most: f64) -> Vec<Slower> {
        let mut out = Vec::new();
        for row in &self.jobs {
            for (at, base) in self.pairs_of(row) {
                for figure in [ComparedMetric::Iops, ComparedMetric::Latency] {
                    let (first, values) = (row.values(base, figure), row.values(at, figure));
                    let (Some(base), Some(other)) = (median(&first), median(&values)) else {
                        continue;
                    };
                    let verdict = DifferenceVerdict::of(&values, &first);
                    let overhead = figure.overhead_percent(other, base);
                    let too_much = overhead.filter(|percent| *percent > percent_most);
                    if let (Some(percent), DifferenceVerdict::Differs { .. }) = (too_much, verdict)
                    {
                        let (job, name) = (row.job.clone(), self.names[at].clone());
                        out.push(Slower { job, name, figure, percent });
                    }
                }
            }
        }
        out
    }

    /// Jobs with too few repetitions for a significance test against the baseline.
    pub fn undecidable(&self) -> Vec<String> {
        let iops = |row: &JobRow, at| row.values(at, ComparedMetric::Iops);
        let few = |row: &&JobRow| {
            self.pairs_of(row).map(|(at, base)| (iops(row, at), iops(row, base))).any(|(a, b)| {
                let is_measured = !a.is_empty() || !b.is_empty();
                is_measured && DifferenceVerdict::of(&a, &b) == DifferenceVerdict::TooFew
            })
        };
        self.jobs.iter().filter(few).map(|row| row.job.clone()).collect()
    }
}

fn ratio(cell: &RepeatedFigure, base: &RepeatedFigure) -> String {
    if base.median <= 0.0 {
        return UNKNOWN.to_owned();
    }
    let text = format!("{:.3}", cell.median / base.median);
    match median_ratio_interval(&cell.values, &base.values) {
        Some(ConfidenceInterval { low, high }) => format!("{text} [{low:.3}–{high:.3}]"),
        None => text,
    }
}

fn overhead(figure: ComparedMetric, other: f64, base: f64) -> String {
    cell(figure.overhead_percent(other, base), |percent| format!("{percent:.2} %"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BenchJob;
    use crate::measurement::Measurement;
    use crate::target::BenchTarget;

    fn records(target: &str, job: &str, mb: &[f64], ms: f64) -> Vec<ResultRecord> {
        let target: BenchTarget = format!("{target}=/x").parse().unwrap();
        let job = BenchJob {
            name: job.to_owned(),
            pattern: AccessPattern::RandWrite,
            ..BenchJob::default()
        };
        let of = |mb: &f64| {
            let mut measurement = Measurement::default();
            measurement.total.bytes_per_s = mb * 1e6;
            measurement.total.iops = mb * 100.0;
            measurement.total.latency_mean_us = ms * 1e3 / mb;
            ResultRecord {
                provenance: Provenance::Real,
                ..ResultRecord::new("s", &job, &target, measurement)
            }
        };
        mb.iter().map(of).collect()
    }

    fn published() -> Comparison {
        let mut all = records("plain", "8k", &[96.78, 96.79, 96.80, 96.81, 96.82], 1.935 * 96.80);
        all.extend(records("mirror", "8k", &[58.85, 58.86, 58.87, 58.88, 58.89], 3.183 * 58.87));
        all.extend(records(
            "plain",
            "64k",
            &[240.01, 240.02, 240.03, 240.0, 240.04],
            6.248 * 240.02,
        ));
        all.extend(records(
            "mirror",
            "64k",
            &[240.02, 240.01, 240.0, 240.03, 240.05],
            6.248 * 240.02,
        ));
        Comparison::of_targets(all)
    }

    #[test]
    fn overheads_are_relative_to_the_baseline() {
        let compared = published();
        let table = compared.overhead(1).unwrap();
        let row = &table.rows[0];
        assert_eq!(row[1..4], ["58.87", "96.80", "39.18 %"]);
        assert_eq!(row[4..7], ["3.183", "1.935", "64.50 %"]);
        let slower = compared.slower(5.0);
        let slower: Vec<_> = slower.iter().map(|s| format!("{:.2} %", s.percent)).collect();
        assert_eq!(slower, ["39.18 %", "64.50 %"], "--fail-if-slower and the table agree");
        let latency = &compared.figure(ComparedMetric::Latency).rows[0];
        assert_eq!(latency[4], "64.50 %");
        assert_eq!(row[7], "differs (p = 0.008)");
        assert!(table.rows[1][7].starts_with("no difference shown"), "{:?}", table.rows[1]);
    }

    #[test]
    fn unreal_targets_are_marked_in_all_tables() {
        let mut all = records("plain", "8k", &[1.0], 1.0);
        for provenance in [Provenance::Emulated, Provenance::Real] {
            let name = format!("{provenance:?}");
            let marked = records(&name, "8k", &[1.0], 1.0).into_iter();
            all.extend(marked.map(|record| ResultRecord { provenance, ..record }));
        }
        let found = Comparison::of_targets(all);
        assert_eq!(found.names(), ["plain", "Emulated [EMULATED]", "Real"]);
        assert!(found.overhead(1).unwrap().head[1].ends_with("[EMULATED]"));
        assert!(found.figure(ComparedMetric::Iops).head.contains(&found.names()[1]));
    }

    #[cfg(feature = "report")]
    #[test]
    fn several_runs_prefix_target_names() {
        let run = |targets: &[&str]| -> Vec<ResultRecord> {
            targets.iter().flat_map(|target| records(target, "8k", &[1.0, 2.0], 1.0)).collect()
        };
        let of = |runs| Comparison::of_runs(runs).names().to_vec();
        assert_eq!(of(vec![("r".to_owned(), run(&["a", "b"]))]), ["a", "b"]);
        let both = vec![("r".to_owned(), run(&["a"])), ("s".to_owned(), run(&["a", "b"]))];
        assert_eq!(of(both), ["r", "s a", "s b"]);
    }

    #[cfg(feature = "report")]
    #[test]
    fn targets_of_runs_compare_by_name() {
        let run = |name: &str, cache: f64| {
            let around = |mb: f64| [0.0, 0.1, 0.2, 0.3, 0.4].map(|more| mb + more);
            let mut all = records("plain", "j", &around(10.0), 1.0);
            all.extend(records("cache", "j", &around(cache), 1.0));
            (name.to_owned(), all)
        };
        let slower = |found: Comparison| -> Vec<_> {
            found.slower(5.0).into_iter().map(|one| (one.name, one.percent.round())).collect()
        };
        let regressed = Comparison::of_runs(vec![run("before", 20.0), run("after", 11.0)]);
        assert_eq!(slower(regressed)[0], ("after cache".to_owned(), 45.0));
        let same = Comparison::of_runs(vec![run("before", 5.0), run("after", 5.0)]);
        assert_eq!(same.unmatched(), [""; 0]);
        let head = same.figure(ComparedMetric::Iops).head;
        assert_eq!(head[1..5], ["before plain", "before cache", "after plain", "to before plain"]);
        assert_eq!(same.undecidable(), [""; 0]);
        assert_eq!(slower(same), []);

        let one = |name: &str, target| (name.to_owned(), records(target, "j", &[1.0], 1.0));
        let lacking = Comparison::of_runs(vec![run("before", 5.0), one("after", "other")]);
        assert_eq!(lacking.unmatched(), ["before plain", "before cache", "after"]);
        assert!(!lacking.has_pairs());
        let renamed = Comparison::of_runs(vec![one("before", "a"), one("after", "b")]);
        assert!(renamed.unmatched().is_empty() && renamed.has_pairs(), "there is no other");
    }

    #[test]
    fn jobs_of_one_name_that_differ() {
        let mut all = records("a", "j", &[10.0, 11.0, 12.0, 13.0], 1.0);
        let slow = records("b", "j", &[1.0, 1.1, 1.2, 1.3], 1.0).into_iter();
        all.extend(slow.map(|record| ResultRecord { block_bytes: 65536, depth: 32, ..record }));
        let found = Comparison::of_targets(all);
        assert!(found.slower(5.0).is_empty() && found.overhead(1).is_none());
        assert_eq!(found.undecidable(), [""; 0]);
        assert_eq!(found.figure(ComparedMetric::Iops).rows[0][3..], ["-", "-", "-"]);
        let unlike = "j on b (randwrite of 64k, depth 32, threads 1, disks 1) and on a (randwrite \
                      of 4k, depth 1, threads 1, disks 1)";
        assert_eq!(found.unlike_jobs(), [unlike]);
        let said = crate::caveats::caveats(&found);
        assert!(said.iter().any(|one| one.contains(unlike)), "{said:?}");
    }

    #[test]
    fn comparison_ratios_and_summary() {
        let found = published();
        let table = found.figure(ComparedMetric::Throughput);
        assert_eq!(table.head[..4], ["job", "plain", "mirror", "ratio"]);
        assert!(table.rows[0][3].starts_with("0.608 [0.608–0.608]"), "{:?}", table.rows[0]);
        assert_eq!(found.summary().rows.len(), 4);
    }

    #[test]
    fn only_significant_losses_count_as_slower() {
        let found = published();
        let slower = found.slower(5.0);
        assert_eq!(slower.len(), 2, "IOPS and latency of 8k: {slower:?}");
        assert!((slower[0].percent - 39.18).abs() < 0.01 && slower[0].job == "8k");
        assert!(found.slower(70.0).is_empty());
        let mut few = records("a", "x", &[100.0, 101.0, 102.0], 1.0);
        few.extend(records("b", "x", &[10.0, 11.0, 12.0], 1.0));
        let few = Comparison::of_targets(few);
        assert!(few.slower(5.0).is_empty());
        assert_eq!(few.undecidable(), ["x"]);
    }
}
