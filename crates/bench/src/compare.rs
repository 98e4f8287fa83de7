//! Results side by side: medians with confidence, overheads and ratios as the published reports
//! have them, and whether there is a difference at all.

use std::collections::BTreeMap;

use crate::job::Pattern;
use crate::nature::Nature;
use crate::results::Record;
use crate::stats::{
    Interval, mann_whitney, median, median_interval, median_ratio_interval, noise_percent,
    shown_percent,
};
use crate::table::Table;
use crate::units::{format_number, format_size};

/// Below this a difference counts as shown.
pub const SIGNIFICANT: f64 = 0.05;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// 10^6 bytes a second.
    Throughput,
    /// Requests a second.
    Iops,
    /// Mean latency.
    Latency,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 3] = [Figure::Throughput, Figure::Iops, Figure::Latency];

    /// With its unit.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Throughput => "MB/s",
            Figure::Iops => "IOPS",
            Figure::Latency => "mean latency, ms",
        }
    }

    /// The figure of a result.
    pub fn of(self, record: &Record) -> f64 {
        match self {
            Figure::Throughput => record.mb_per_s,
            Figure::Iops => record.iops,
            Figure::Latency => record.latency_mean_us / 1e3,
        }
    }

    fn decimals(self) -> usize {
        match self {
            Figure::Throughput => 2,
            Figure::Iops => 0,
            Figure::Latency => 3,
        }
    }
}

/// Repetitions of one job on one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Their figures.
    pub values: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// 95 % confidence of it, of three or more.
    pub interval: Option<Interval>,
    /// Standard deviation over mean, of two or more.
    pub noise_percent: Option<f64>,
}

impl Cell {
    /// Of figures; `None` of none.
    pub(crate) fn new(values: Vec<f64>) -> Option<Cell> {
        Some(Cell {
            median: median(&values)?,
            interval: median_interval(&values),
            noise_percent: noise_percent(&values),
            values,
        })
    }

    fn text(&self, figure: Figure) -> String {
        let number = |value| format_number(value, figure.decimals());
        match self.interval {
            Some(Interval { low, high }) => {
                format!("{} [{}–{}]", number(self.median), number(low), number(high))
            }
            None => format!("{} [n={}]", number(self.median), self.values.len()),
        }
    }
}

/// Whether two things differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// They do, with this chance that it is an accident.
    Differs(f64),
    /// It could not be shown.
    NotShown {
        /// The chance of what was seen between things that do not differ.
        p: f64,
        /// The difference, in % of the first, that such repetitions show 4 times of 5.
        shown_percent: Option<f64>,
    },
    /// So few repetitions can show nothing.
    TooFew,
}

impl Verdict {
    /// Compares two sets of repetitions, the second being what the first is compared with.
    pub fn of(a: &[f64], b: &[f64]) -> Verdict {
        match mann_whitney(a, b) {
            None => Verdict::TooFew,
            Some(found) if found.p_least >= SIGNIFICANT => Verdict::TooFew,
            Some(found) if found.p < SIGNIFICANT => Verdict::Differs(found.p),
            Some(found) => Verdict::NotShown { p: found.p, shown_percent: shown_percent(b, a) },
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Verdict::Differs(p) if p < 0.001 => "differs (p < 0.001)".to_owned(),
            Verdict::Differs(p) => format!("differs (p = {p:.3})"),
            Verdict::NotShown { p, shown_percent: Some(percent) } => {
                format!("no difference shown (p = {p:.2}; {percent:.1} % would be)")
            }
            Verdict::NotShown { p, .. } => format!("no difference shown (p = {p:.2})"),
            Verdict::TooFew => "too few repetitions to tell".to_owned(),
        }
    }
}

/// Things to compare, each with its records: the first is what the others are compared with.
#[derive(Clone, Debug)]
pub struct Comparison {
    names: Vec<String>,
    natures: Vec<Nature>,
    jobs: Vec<Row>,
}

/// A job, and its records on each thing.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) job: String,
    pub(crate) rw: Pattern,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) threads: u32,
    pub(crate) disks: u32,
    pub(crate) records: Vec<Vec<Record>>,
}

impl Row {
    /// Of one disk's threads together.
    pub(crate) fn in_flight(&self) -> u64 {
        u64::from(self.depth) * u64::from(self.threads)
    }

    /// A figure of all repetitions on a thing.
    pub(crate) fn values(&self, at: usize, figure: Figure) -> Vec<f64> {
        self.records[at].iter().map(|record| figure.of(record)).collect()
    }

    /// Its median on a thing.
    pub(crate) fn median(&self, at: usize, figure: Figure) -> Option<f64> {
        median(&self.values(at, figure))
    }
}

/// A job that became slower.
#[derive(Clone, Debug, PartialEq)]
pub struct Slower {
    /// The job.
    pub job: String,
    /// What is slower.
    pub name: String,
    /// Which figure.
    pub figure: Figure,
    /// By how much, in % of the first's median.
    pub percent: f64,
}

impl Comparison {
    /// Of things with names. Jobs stand in the order in which they are first met.
    pub fn new(things: Vec<(String, Vec<Record>)>) -> Comparison {
        let nature =
            |of: &[Record]| of.iter().map(|record| record.nature).max().unwrap_or_default();
        let natures: Vec<Nature> = things.iter().map(|(_, records)| nature(records)).collect();
        let named = things.iter().zip(&natures);
        let names = named.map(|((name, _), of)| format!("{name}{}", of.suffix())).collect();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut jobs: Vec<Row> = Vec::new();
        let count = things.len();
        for (at, (_, records)) in things.into_iter().enumerate() {
            for record in records {
                let place = *places.entry(record.job.clone()).or_insert_with(|| {
                    jobs.push(Row {
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
        Comparison { names, natures, jobs }
    }

    /// The targets of one campaign, in the order in which they are met.
    pub fn of_targets(records: Vec<Record>) -> Comparison {
        let mut things: Vec<(String, Vec<Record>)> = Vec::new();
        for record in records {
            match things.iter_mut().find(|(name, _)| *name == record.target) {
                Some((_, list)) => list.push(record),
                None => things.push((record.target.clone(), vec![record])),
            }
        }
        Comparison::new(things)
    }

    /// Of runs with names: the targets of a single one, or else each target of each run, by the
    /// run's name and, where it has several, its own.
    pub fn of_runs(mut runs: Vec<(String, Vec<Record>)>) -> Comparison {
        if runs.len() == 1 {
            return Comparison::of_targets(runs.remove(0).1);
        }
        let mut things: Vec<(String, Vec<Record>)> = Vec::new();
        for (run, records) in runs {
            let several = records.iter().any(|record| record.target != records[0].target);
            for record in records {
                let name = if several { format!("{run} {}", record.target) } else { run.clone() };
                match things.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, list)) => list.push(record),
                    None => things.push((name, vec![record])),
                }
            }
        }
        Comparison::new(things)
    }

    /// What is compared; what is not known to be a real disk is marked.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether they are real disks, in the order of the names.
    pub fn natures(&self) -> &[Nature] {
        &self.natures
    }

    /// Jobs in order.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.jobs
    }

    /// One figure of everything with the first: medians, ratio, overhead, verdict.
    pub fn figure(&self, figure: Figure) -> Table {
        let mut head = vec!["job".to_owned(), self.names[0].clone()];
        for name in &self.names[1..] {
            head.extend([
                name.clone(),
                "ratio".to_owned(),
                "overhead".to_owned(),
                "verdict".to_owned(),
            ]);
        }
        let mut rows = Vec::new();
        for row in &self.jobs {
            let first = row.values(0, figure);
            let base = Cell::new(first.clone());
            let absent = || "-".to_owned();
            let mut cells =
                vec![row.job.clone(), base.as_ref().map_or_else(absent, |c| c.text(figure))];
            for at in 1..self.names.len() {
                let values = row.values(at, figure);
                let cell = Cell::new(values.clone());
                cells.push(cell.as_ref().map_or_else(absent, |cell| cell.text(figure)));
                match (&base, &cell) {
                    (Some(base), Some(cell)) => {
                        cells.push(ratio(cell, base));
                        let overhead = overhead_percent(figure, cell.median, base.median);
                        cells.push(
                            overhead.map_or_else(absent, |percent| format!("{percent:.2} %")),
                        );
                        cells.push(Verdict::of(&values, &first).text());
                    }
                    _ => cells.extend([absent(), absent(), absent()]),
                }
            }
            rows.push(cells);
        }
        Table { title: format!("{} (median, 95 % confidence)", figure.name()), head, rows }
    }

    /// The published form of a mirror's cost: throughput and latency by size of the write, of one
    /// thing, the mirror, against the first.
    pub fn overhead(&self, other: usize) -> Option<Table> {
        let (plain, mirror) = (&self.names[0], self.names.get(other)?);
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
            let of = |at, figure| row.median(at, figure);
            let (Some(mirror), Some(plain), Some(mirror_ms), Some(plain_ms)) = (
                of(other, Figure::Throughput),
                of(0, Figure::Throughput),
                of(other, Figure::Latency),
                of(0, Figure::Latency),
            ) else {
                continue;
            };
            let percent = |figure, with, base| {
                let found = overhead_percent(figure, with, base);
                found.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.2} %"))
            };
            let values = |at| row.values(at, Figure::Throughput);
            table.rows.push(vec![
                format!(
                    "{} ({}, {} in flight)",
                    format_size(row.block_bytes).to_uppercase(),
                    row.rw,
                    row.in_flight()
                ),
                format_number(mirror, 2),
                format_number(plain, 2),
                percent(Figure::Throughput, mirror, plain),
                format!("{mirror_ms:.3}"),
                format!("{plain_ms:.3}"),
                percent(Figure::Latency, mirror_ms, plain_ms),
                Verdict::of(&values(other), &values(0)).text(),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// What is slower than the first by more than a share, and surely so: fewer IOPS or a longer
    /// mean latency.
    pub fn slower(&self, percent_most: f64) -> Vec<Slower> {
        let mut out = Vec::new();
        for row in &self.jobs {
            for at in 1..self.names.len() {
                for figure in [Figure::Iops, Figure::Latency] {
                    let (first, values) = (row.values(0, figure), row.values(at, figure));
                    let (Some(base), Some(other)) = (median(&first), median(&values)) else {
                        continue;
                    };
                    if base <= 0.0 || !matches!(Verdict::of(&values, &first), Verdict::Differs(_)) {
                        continue;
                    }
                    let change = 100.0 * (other - base) / base;
                    let percent = if figure == Figure::Latency { change } else { -change };
                    if percent > percent_most {
                        let (job, name) = (row.job.clone(), self.names[at].clone());
                        out.push(Slower { job, name, figure, percent });
                    }
                }
            }
        }
        out
    }

    /// Jobs whose repetitions are too few for a verdict against the first.
    pub fn undecidable(&self) -> Vec<String> {
        let few = |row: &&Row| {
            let first = row.values(0, Figure::Iops);
            (1..self.names.len())
                .any(|at| Verdict::of(&row.values(at, Figure::Iops), &first) == Verdict::TooFew)
        };
        self.jobs.iter().filter(few).map(|row| row.job.clone()).collect()
    }
}

fn ratio(cell: &Cell, base: &Cell) -> String {
    if base.median <= 0.0 {
        return "-".to_owned();
    }
    let text = format!("{:.3}", cell.median / base.median);
    match median_ratio_interval(&cell.values, &base.values) {
        Some(Interval { low, high }) => format!("{text} [{low:.3}–{high:.3}]"),
        None => text,
    }
}

/// The published overheads: of throughput, what is lost of the first's; of latency, what is more
/// than the first's, as a share of the longer one.
pub(crate) fn overhead_percent(figure: Figure, other: f64, base: f64) -> Option<f64> {
    let (lost, whole) = match figure {
        Figure::Latency => (other - base, other),
        _ => (base - other, base),
    };
    (whole > 0.0).then(|| 100.0 * lost / whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::measurement::Measurement;
    use crate::target::Target;

    fn records(target: &str, job: &str, mb: &[f64], ms: f64) -> Vec<Record> {
        let target: Target = format!("{target}=/x").parse().unwrap();
        let job = Job { name: job.to_owned(), pattern: Pattern::RandWrite, ..Job::default() };
        let of = |mb: &f64| {
            let mut measurement = Measurement::default();
            measurement.total.bytes_per_s = mb * 1e6;
            measurement.total.iops = mb * 100.0;
            measurement.total.latency_mean_us = ms * 1e3 / mb;
            Record { nature: Nature::Real, ..Record::new("s", &job, &target, measurement) }
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
    fn the_published_table() {
        let table = published().overhead(1).unwrap();
        let row = &table.rows[0];
        assert_eq!(row[1..4], ["58.87", "96.80", "39.18 %"]);
        assert_eq!(row[4..7], ["3.183", "1.935", "39.21 %"]);
        assert_eq!(row[7], "differs (p = 0.008)");
        assert!(table.rows[1][7].starts_with("no difference shown"), "{:?}", table.rows[1]);
    }

    #[test]
    fn what_is_not_known_to_be_real_is_marked_wherever_its_name_stands() {
        let mut all = records("plain", "8k", &[1.0], 1.0);
        for nature in [Nature::Emulated, Nature::Real] {
            let name = format!("{nature:?}");
            let marked = records(&name, "8k", &[1.0], 1.0).into_iter();
            all.extend(marked.map(|record| Record { nature, ..record }));
        }
        let found = Comparison::of_targets(all);
        assert_eq!(found.names(), ["plain", "Emulated [EMULATED]", "Real"]);
        assert!(found.overhead(1).unwrap().head[1].ends_with("[EMULATED]"));
        assert!(found.figure(Figure::Iops).head.contains(&found.names()[1]));
    }

    #[test]
    fn runs_are_named_where_there_are_several() {
        let run = |targets: &[&str]| -> Vec<Record> {
            targets.iter().flat_map(|target| records(target, "8k", &[1.0, 2.0], 1.0)).collect()
        };
        let of = |runs| Comparison::of_runs(runs).names().to_vec();
        assert_eq!(of(vec![("r".to_owned(), run(&["a", "b"]))]), ["a", "b"]);
        let both = vec![("r".to_owned(), run(&["a"])), ("s".to_owned(), run(&["a", "b"]))];
        assert_eq!(of(both), ["r", "s a", "s b"]);
    }

    #[test]
    fn ratios_and_summary() {
        let found = published();
        let table = found.figure(Figure::Throughput);
        assert_eq!(table.head[..4], ["job", "plain", "mirror", "ratio"]);
        assert!(table.rows[0][3].starts_with("0.608 [0.608–0.608]"), "{:?}", table.rows[0]);
        assert_eq!(found.summary().rows.len(), 4);
    }

    #[test]
    fn slower_is_what_is_slower_by_more_and_surely() {
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
