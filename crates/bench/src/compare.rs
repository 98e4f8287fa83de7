//! Results side by side: medians with confidence, overheads and ratios as the published reports
//! have them, and whether there is a difference at all.

use std::collections::BTreeMap;

use crate::results::Record;
use crate::stats::{
    Interval, mann_whitney, median, median_interval, median_ratio_interval, noise_percent,
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
    fn new(values: Vec<f64>) -> Option<Cell> {
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
    /// It could not be shown, with this chance.
    NotShown(f64),
    /// So few repetitions can show nothing.
    TooFew,
}

impl Verdict {
    /// Compares two sets of repetitions.
    pub fn of(a: &[f64], b: &[f64]) -> Verdict {
        match mann_whitney(a, b) {
            None => Verdict::TooFew,
            Some(found) if found.p_least >= SIGNIFICANT => Verdict::TooFew,
            Some(found) if found.p < SIGNIFICANT => Verdict::Differs(found.p),
            Some(found) => Verdict::NotShown(found.p),
        }
    }

    fn text(self) -> String {
        match self {
            Verdict::Differs(p) if p < 0.001 => "differs (p < 0.001)".to_owned(),
            Verdict::Differs(p) => format!("differs (p = {p:.3})"),
            Verdict::NotShown(p) => format!("no difference shown (p = {p:.2})"),
            Verdict::TooFew => "too few repetitions to tell".to_owned(),
        }
    }
}

/// Things to compare, each with its records: the first is what the others are compared with.
#[derive(Clone, Debug)]
pub struct Comparison {
    names: Vec<String>,
    jobs: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    job: String,
    rw: &'static str,
    block_bytes: u64,
    in_flight: u64,
    records: Vec<Vec<Record>>,
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
        let names = things.iter().map(|(name, _)| name.clone()).collect();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut jobs: Vec<Row> = Vec::new();
        let count = things.len();
        for (at, (_, records)) in things.into_iter().enumerate() {
            for record in records {
                let place = *places.entry(record.job.clone()).or_insert_with(|| {
                    jobs.push(Row {
                        job: record.job.clone(),
                        rw: record.rw.name(),
                        block_bytes: record.block_bytes,
                        in_flight: u64::from(record.depth) * u64::from(record.threads),
                        records: vec![Vec::new(); count],
                    });
                    jobs.len() - 1
                });
                jobs[place].records[at].push(record);
            }
        }
        Comparison { names, jobs }
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

    /// What is compared.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn values(row: &Row, at: usize, figure: Figure) -> Vec<f64> {
        row.records[at].iter().map(|record| figure.of(record)).collect()
    }

    /// Everything of each job on each thing.
    pub fn summary(&self) -> Table {
        let head = [
            "job",
            "on",
            "n",
            "IOPS",
            "MB/s",
            "noise",
            "mean ms",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "p99.99 ms",
            "CPU",
        ];
        let mut table = Table::new("medians of n repetitions", &head);
        for row in &self.jobs {
            for (name, records) in self.names.iter().zip(&row.records) {
                let middle = |pick: &dyn Fn(&Record) -> Option<f64>| {
                    median(&records.iter().filter_map(pick).collect::<Vec<_>>())
                };
                let text = |value: Option<f64>, decimals| {
                    value.map_or_else(|| "-".to_owned(), |value| format_number(value, decimals))
                };
                let ms =
                    |pick: fn(&Record) -> Option<f64>| text(middle(&|r| Some(pick(r)? / 1e3)), 3);
                let iops: Vec<f64> = records.iter().map(|record| record.iops).collect();
                let cpu = middle(&|r| Some(r.measurement.cpu.as_ref()?.busy_percent()));
                let percent = |value: Option<f64>| {
                    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} %"))
                };
                table.rows.push(vec![
                    row.job.clone(),
                    name.clone(),
                    records.len().to_string(),
                    text(median(&iops), 0),
                    text(middle(&|r| Some(r.mb_per_s)), 2),
                    percent(noise_percent(&iops)),
                    ms(|r| Some(r.latency_mean_us)),
                    ms(|r| r.latency_p50_us),
                    ms(|r| r.latency_p99_us),
                    ms(|r| r.latency_p99_9_us),
                    ms(|r| r.latency_p99_99_us),
                    percent(cpu),
                ]);
            }
        }
        table
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
            let first = Self::values(row, 0, figure);
            let base = Cell::new(first.clone());
            let absent = || "-".to_owned();
            let mut cells =
                vec![row.job.clone(), base.as_ref().map_or_else(absent, |c| c.text(figure))];
            for at in 1..self.names.len() {
                let values = Self::values(row, at, figure);
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

    /// The published form of a mirror's cost: throughput and latency by size of the write. The
    /// second thing is the mirror.
    pub fn overhead(&self) -> Option<Table> {
        let [plain, mirror] = &self.names[..] else { return None };
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
        let mut table =
            Table { title: "overhead".to_owned(), head: names.into(), rows: Vec::new() };
        for row in &self.jobs {
            let of = |at, figure| median(&Self::values(row, at, figure));
            let (Some(mirror), Some(plain), Some(mirror_ms), Some(plain_ms)) = (
                of(1, Figure::Throughput),
                of(0, Figure::Throughput),
                of(1, Figure::Latency),
                of(0, Figure::Latency),
            ) else {
                continue;
            };
            let percent = |figure, other, base| {
                let found = overhead_percent(figure, other, base);
                found.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.2} %"))
            };
            let values = |at| Self::values(row, at, Figure::Throughput);
            table.rows.push(vec![
                format!(
                    "{} ({}, {} in flight)",
                    format_size(row.block_bytes).to_uppercase(),
                    row.rw,
                    row.in_flight
                ),
                format_number(mirror, 2),
                format_number(plain, 2),
                percent(Figure::Throughput, mirror, plain),
                format!("{mirror_ms:.3}"),
                format!("{plain_ms:.3}"),
                percent(Figure::Latency, mirror_ms, plain_ms),
                Verdict::of(&values(1), &values(0)).text(),
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
                    let (first, values) =
                        (Self::values(row, 0, figure), Self::values(row, at, figure));
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
            let first = Self::values(row, 0, Figure::Iops);
            (1..self.names.len()).any(|at| {
                Verdict::of(&Self::values(row, at, Figure::Iops), &first) == Verdict::TooFew
            })
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
fn overhead_percent(figure: Figure, other: f64, base: f64) -> Option<f64> {
    let (lost, whole) = match figure {
        Figure::Latency => (other - base, other),
        _ => (base - other, base),
    };
    (whole > 0.0).then(|| 100.0 * lost / whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, Pattern};
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
            Record::new("s", &job, &target, measurement)
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
        let table = published().overhead().unwrap();
        let row = &table.rows[0];
        assert_eq!(row[1..4], ["58.87", "96.80", "39.18 %"]);
        assert_eq!(row[4..7], ["3.183", "1.935", "39.21 %"]);
        assert_eq!(row[7], "differs (p = 0.008)");
        assert!(table.rows[1][7].starts_with("no difference shown"), "{:?}", table.rows[1]);
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
