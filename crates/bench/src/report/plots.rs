//! Plots: bars by size, job and number of disks; latency percentiles; IOPS over time and rounds.

use flagstone_plot::{
    Axis, BarValue, Figure as Picture, Group, Hue, LineSeries, NumberFormat, Panel, PanelContent,
    Scale,
};
use flagstone_units::format_block_size;

use super::{Plot, Run, slug};
use crate::compare::{ComparedMetric, Comparison, JobRow, RepeatedFigure, median_of};
use crate::limits::{PLOT_CHARACTERS, PLOT_GROUPS, PLOT_LINES, REPORT_POINTS};
use crate::measurement::{PERCENTILES, are_enough};
use crate::results::ResultRecord;

/// All plots of a report, the most important first.
pub(super) fn all(runs: &[Run], comparison: &Comparison) -> Vec<Plot> {
    let maker = Maker { comparison, footer: footer(runs) };
    let mut plots = maker.bars();
    plots.extend(maker.by_disks());
    plots.extend(maker.percentiles());
    plots.extend(maker.over_time());
    plots.extend(maker.over_rounds(runs));
    // Jobs may have equal file names after the conversion.
    for at in 1..plots.len() {
        let same = plots[..at].iter().filter(|plot| plot.id == plots[at].id).count();
        if same > 0 {
            plots[at].id = format!("{}-{}", plots[at].id, at + 1);
        }
    }
    plots
}

fn footer(runs: &[Run]) -> String {
    let mut tools: Vec<&str> = Vec::new();
    for record in runs.iter().flat_map(|run| &run.records) {
        if !record.tool.is_empty() && !tools.contains(&record.tool.as_str()) {
            tools.push(&record.tool);
        }
    }
    format!("flagstone bench {}, {}", env!("CARGO_PKG_VERSION"), tools.join(", "))
}

struct Maker<'a> {
    comparison: &'a Comparison,
    footer: String,
}

/// Pieces of a line with gaps between them.
type Pieces = Vec<Vec<(f64, f64)>>;

type Named = (String, Pieces);

impl Maker<'_> {
    fn picture(&self, title: String, subtitle: String, panels: Vec<Panel>) -> Picture {
        Picture { title, subtitle, panels, footer: self.footer.clone() }
    }

    /// Throughput and latency by block size for jobs that differ only in it, by job for the others.
    fn bars(&self) -> Vec<Plot> {
        let rows: Vec<&JobRow> = self.comparison.rows().iter().collect();
        let key = |row: &JobRow| (row.rw, row.depth, row.threads, row.disks);
        let mut families: Vec<Vec<&JobRow>> = Vec::new();
        for row in rows {
            let fits = |family: &&mut Vec<&JobRow>| {
                key(family[0]) == key(row)
                    && family.iter().all(|other| other.block_bytes != row.block_bytes)
            };
            match families.iter_mut().find(fits) {
                Some(family) => family.push(row),
                None => families.push(vec![row]),
            }
        }
        let mut plots = Vec::new();
        let mut alone: Vec<&JobRow> = Vec::new();
        for family in families {
            let [row, _, ..] = family[..] else {
                alone.extend(family);
                continue;
            };
            let what = format!("{}, {} in flight", row.rw, row.in_flight());
            let id =
                slug(&format!("by-size-{}-d{}-t{}-x{}", row.rw, row.depth, row.threads, row.disks));
            let names = |row: &JobRow| format_block_size(row.block_bytes).to_uppercase();
            let title = format!("Throughput and latency by size: {what}");
            let panels = self.panels(
                &family,
                &names,
                "size of a request",
                &[ComparedMetric::Throughput, ComparedMetric::Latency],
            );
            plots.push(Plot { id, picture: self.picture(title, subtitle(&family), panels) });
        }
        let by_disks = self.disk_families();
        let is_there = |row: &&JobRow| by_disks.iter().flatten().any(|other| other.job == row.job);
        alone.retain(|row| !is_there(row));
        let longest = alone.iter().map(|row| row.job.chars().count()).max().unwrap_or(0);
        let room = (PLOT_CHARACTERS / (longest + 2)).clamp(1, PLOT_GROUPS);
        for (at, chunk) in alone.chunks(room).enumerate() {
            let panels =
                self.panels(chunk, &|row: &JobRow| row.job.clone(), "job", &ComparedMetric::ALL);
            let title = "IOPS, throughput and latency by job".to_owned();
            let id = format!("by-job-{}", at + 1);
            plots.push(Plot { id, picture: self.picture(title, subtitle(chunk), panels) });
        }
        plots
    }

    fn panels(
        &self,
        rows: &[&JobRow],
        name: &dyn Fn(&JobRow) -> String,
        label: &str,
        figures: &[ComparedMetric],
    ) -> Vec<Panel> {
        let names = self.comparison.names();
        let panel = |figure: &ComparedMetric| {
            let y = match figure {
                ComparedMetric::Iops => Axis::linear(figure.name()),
                _ => Axis { format: NumberFormat::Plain, ..Axis::linear(figure.name()) },
            };
            let values = |row: &JobRow| (0..names.len()).map(|at| bar(row, at, *figure)).collect();
            let group = |row: &&JobRow| Group { name: name(row), values: values(row) };
            Panel::bars(label, y, names, rows.iter().map(group).collect())
        };
        figures.iter().map(panel).collect()
    }

    /// Jobs that differ only in the number of disks, sorted by it.
    fn disk_families(&self) -> Vec<Vec<&JobRow>> {
        let key = |row: &JobRow| (row.rw, row.block_bytes, row.depth, row.threads);
        let mut families: Vec<Vec<&JobRow>> = Vec::new();
        for row in self.comparison.rows() {
            match families.iter_mut().find(|family| key(family[0]) == key(row)) {
                Some(family) => family.push(row),
                None => families.push(vec![row]),
            }
        }
        for family in &mut families {
            family.sort_by_key(|row| row.disks);
            family.dedup_by_key(|row| row.disks);
        }
        families.retain(|family| family.len() > 1);
        families
    }

    /// IOPS by number of disks, for each pattern, size and depth.
    fn by_disks(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for family in self.disk_families() {
            let row = family[0];
            let size = format_block_size(row.block_bytes);
            let what = format!("{} {size}, {} in flight on each", row.rw, row.in_flight());
            let id = slug(&format!("by-disks-{}-{size}-d{}-t{}", row.rw, row.depth, row.threads));
            let names = |row: &JobRow| row.disks.to_string();
            let panels = self.panels(
                &family,
                &names,
                "disks",
                &[ComparedMetric::Iops, ComparedMetric::Latency],
            );
            let title = format!("IOPS and latency by disks: {what}");
            plots.push(Plot { id, picture: self.picture(title, subtitle(&family), panels) });
        }
        plots
    }

    fn percentiles(&self) -> Vec<Plot> {
        let curve = |row: &JobRow, at: usize| vec![percentile_curve(&row.records[at])];
        let axes = (
            Axis { scale: Scale::Log, format: NumberFormat::Nines, ..Axis::linear("percentile") },
            Axis { format: NumberFormat::Plain, ..Axis::log("latency, µs") },
        );
        self.lines("latency", "Latency percentiles", "medians of repetitions", axes, true, &curve)
    }

    fn over_time(&self) -> Vec<Plot> {
        let records: usize =
            self.comparison.rows().iter().flat_map(|row| &row.records).map(Vec::len).sum();
        let most = (REPORT_POINTS / records.max(1)).clamp(8, 300);
        let series = |row: &JobRow, at: usize| -> Vec<Vec<(f64, f64)>> {
            row.records[at].iter().map(|record| series(record, most)).collect()
        };
        let axes = (Axis::linear("seconds since the measurement began"), Axis::linear("IOPS"));
        self.lines(
            "over-time",
            "IOPS over time",
            "a line for each repetition",
            axes,
            false,
            &series,
        )
    }

    fn over_rounds(&self, runs: &[Run]) -> Vec<Plot> {
        let steady = runs.iter().filter(|run| run.plan.as_ref().is_some_and(|p| p.steady_state));
        let named = steady.map(|run| (run.name.clone(), run.rounds.clone())).collect::<Vec<_>>();
        if named.is_empty() {
            return Vec::new();
        }
        let rounds = Comparison::of_runs(named);
        let all = |row: &JobRow, at: usize| {
            let points = row.records[at].iter();
            vec![points.map(|r| (f64::from(r.repetition) + 1.0, r.iops)).collect()]
        };
        let axes =
            (Axis { format: NumberFormat::Plain, ..Axis::linear("round") }, Axis::linear("IOPS"));
        let maker = Maker { comparison: &rounds, footer: self.footer.clone() };
        maker.lines("rounds", "IOPS by round", "until the last five are steady", axes, true, &all)
    }

    /// One plot for each job with a line for each target; for a single target, plots of several
    /// jobs.
    fn lines(
        &self,
        id: &str,
        title: &str,
        subtitle: &str,
        (x, y): (Axis, Axis),
        dots: bool,
        pieces: &dyn Fn(&JobRow, usize) -> Pieces,
    ) -> Vec<Plot> {
        let (names, rows) = (self.comparison.names(), self.comparison.rows());
        let mut groups: Vec<(String, Vec<Named>)> = Vec::new();
        if let [only] = names {
            for chunk in rows.chunks(PLOT_LINES) {
                let lines = chunk.iter().map(|row| (row.job.clone(), pieces(row, 0))).collect();
                groups.push((only.clone(), lines));
            }
        } else {
            for row in rows {
                let lines: Vec<Named> =
                    names.iter().enumerate().map(|(at, n)| (n.clone(), pieces(row, at))).collect();
                groups
                    .extend(lines.chunks(PLOT_LINES).map(|part| (row.job.clone(), part.to_vec())));
            }
        }
        let mut plots = Vec::new();
        for (at, (of, lines)) in groups.into_iter().enumerate() {
            let has_points = |(_, pieces): &Named| pieces.iter().any(|piece| !piece.is_empty());
            if !lines.iter().any(has_points) {
                continue;
            }
            let named = lines.into_iter().enumerate();
            let lines = named
                .map(|(at, (name, pieces))| LineSeries { name, hue: Hue(at), pieces, dots })
                .collect();
            let content = PanelContent::Lines(lines);
            let panel = Panel { x: x.clone(), y: y.clone(), content, marks: Vec::new() };
            let part = if names.len() == 1 { (at + 1).to_string() } else { of.clone() };
            plots.push(Plot {
                id: slug(&format!("{id}-{part}")),
                picture: self.picture(format!("{title}: {of}"), subtitle.to_owned(), vec![panel]),
            });
        }
        plots
    }
}

fn bar(row: &JobRow, at: usize, figure: ComparedMetric) -> Option<BarValue> {
    let cell = RepeatedFigure::new(row.values(at, figure))?;
    let between = cell.interval.map(|interval| (interval.low, interval.high));
    Some(BarValue { value: cell.median, between })
}

fn subtitle(rows: &[&JobRow]) -> String {
    let counts = || rows.iter().flat_map(|row| row.records.iter().map(Vec::len)).filter(|n| *n > 0);
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let number = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let caveat = if least >= 3 { ", with 95 % confidence of the median" } else { "" };
    match most {
        1 => "one measurement of each".to_owned(),
        _ => format!("median of {number} repetitions{caveat}"),
    }
}

/// Medians over repetitions of each meaningful percentile, by the rarity of slower requests; the
/// first point is the minimum latency.
fn percentile_curve(records: &[ResultRecord]) -> Vec<(f64, f64)> {
    let ios = median_of(records, |record| Some(record.measurement.total.ios as f64)).unwrap_or(0.0);
    let least = median_of(records, |record| Some(record.measurement.total.latency_min_us));
    let mut points: Vec<(f64, f64)> = least.map(|us| (1.0, us)).into_iter().collect();
    for (name, percent) in PERCENTILES {
        let beyond = (100.0 - percent) / 100.0;
        let found = median_of(records, |record| record.measurement.total.percentile_us(name));
        if let Some(us) = found.filter(|_| are_enough(ios, percent)) {
            // Rounded to exactly 10,000 for 99.99 %, where the axis has a tick.
            points.push(((1e6 / beyond).round() / 1e6, us));
        }
    }
    points
}

/// Time in seconds and IOPS, averaged to at most `most` points.
fn series(record: &ResultRecord, most: usize) -> Vec<(f64, f64)> {
    let iops = &record.measurement.series_iops;
    let step = record.measurement.series_interval_ms as f64 / 1e3;
    let together = iops.len().div_ceil(most.max(1)).max(1);
    let mean = |chunk: &[f64]| chunk.iter().sum::<f64>() / chunk.len() as f64;
    let point = |(at, chunk): (usize, &[f64])| {
        ((at * together) as f64 * step + chunk.len() as f64 * step, mean(chunk))
    };
    iops.chunks(together).enumerate().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Measurement;

    fn record(ios: u64) -> ResultRecord {
        let mut measurement = Measurement { series_interval_ms: 100, ..Measurement::default() };
        measurement.total.ios = ios;
        measurement.total.latency_min_us = 1.0;
        measurement.series_iops = (1..=20).map(f64::from).collect();
        for (name, percent) in PERCENTILES {
            measurement.total.percentiles_us.insert(name.to_owned(), percent);
        }
        let target = "a=/x".parse().unwrap();
        ResultRecord::new("s", &crate::job::BenchJob::default(), &target, measurement)
    }

    #[test]
    fn rare_percentiles_are_not_plotted() {
        let last = |ios| percentile_curve(&[record(ios), record(ios)]).last().copied().unwrap();
        assert_eq!(last(1000), (100.0, 99.0));
        assert!((last(5000).0 - 1000.0).abs() < 1e-6 && last(0) == (1.0, 1.0));
        assert!(percentile_curve(&[record(1000)]).is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn long_series_are_averaged() {
        let record = record(1);
        assert_eq!(series(&record, 100)[..2], [(0.1, 1.0), (0.2, 2.0)]);
        let short = series(&record, 5);
        assert_eq!((short.len(), short[0]), (5, (0.4, 2.5)));
    }
}
