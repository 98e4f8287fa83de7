//! Plots: bars by size, job and number of disks; latency percentiles; IOPS over time and rounds.

use std::collections::BTreeMap;

use flagstone_plot::{
    Axis, BarValue, Figure as Picture, Group, Hue, LineSeries, NumberFormat, Panel, PanelContent,
    Scale,
};
use flagstone_units::format_block_size;

use super::{Plot, Run, slug};
use crate::compare::{ComparedMetric, Comparison, JobRow, RepeatedFigure, median_of};
use crate::limits::report::{PLOT_CHARACTERS, PLOT_GROUPS, PLOT_LINES, REPORT_POINTS};
use crate::measurement::{PERCENTILES, are_enough};
use crate::results::ResultRecord;
use crate::stats::median;

/// Largest ratio of block sizes whose throughputs share a linear axis.
const LINEAR_SPAN: u64 = 16;
/// Requests of this size or more are large: their measure is throughput.
const LARGE_BYTES: u64 = 64 << 10;
/// Points from which on a time series is worth a plot.
const SERIES_LEAST: usize = 5;

/// All plots of a report, the most important first.
pub(super) fn all(runs: &[Run], comparison: &Comparison) -> Vec<Plot> {
    let maker = Maker { comparison, footer: footer(runs) };
    let mut plots = maker.bars();
    plots.extend(maker.by_disks());
    plots.extend(maker.percentiles());
    plots.extend(maker.over_time());
    plots.extend(maker.over_rounds(runs));
    plots.extend(maker.write_amplification());
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

    /// One plot for each question: throughput and latency by block size for jobs that differ only
    /// in it, and by job for the others.
    fn bars(&self) -> Vec<Plot> {
        let families = families(self.comparison.rows(), |family, row| {
            let key = |row: &JobRow| (row.rw, row.depth, row.threads, row.disks);
            key(family[0]) == key(row)
                && family.iter().all(|other| other.block_bytes != row.block_bytes)
        });
        let by_disks = self.disk_families();
        let mut plots = Vec::new();
        let mut classes: BTreeMap<JobClass, Vec<&JobRow>> = BTreeMap::new();
        for family in families {
            let [row, _, ..] = family[..] else {
                let alone = family.into_iter();
                let others =
                    alone.filter(|row| !by_disks.iter().flatten().any(|o| o.job == row.job));
                others.for_each(|row| classes.entry(JobClass::of(row)).or_default().push(row));
                continue;
            };
            let id = format!("by-size-{}-d{}-t{}-x{}", row.rw, row.depth, row.threads, row.disks);
            let what = format!("by size, {}, {} in flight", row.rw, row.in_flight());
            let sizes = || family.iter().map(|row| row.block_bytes);
            let span = sizes().max().unwrap_or(1) / sizes().min().unwrap_or(1).max(1);
            for metric in [ComparedMetric::Throughput, ComparedMetric::Latency] {
                if span > LINEAR_SPAN {
                    plots.push(self.size_lines(&family, metric, &id, &what));
                } else {
                    let names = |row: &JobRow| format_block_size(row.block_bytes).to_uppercase();
                    plots.extend(self.bar_plot(
                        &family,
                        &names,
                        "size of a request",
                        metric,
                        &id,
                        &what,
                    ));
                }
            }
        }
        for (class, rows) in classes {
            let longest = rows.iter().map(|row| row.job.chars().count()).max().unwrap_or(0);
            let room = (PLOT_CHARACTERS / (longest + 2)).clamp(1, PLOT_GROUPS);
            for (at, chunk) in rows.chunks(room).enumerate() {
                let id = format!("by-job-{}-{}", class.id(), at + 1);
                let name = |row: &JobRow| row.job.clone();
                for metric in class.metrics() {
                    plots.extend(self.bar_plot(chunk, &name, "job", *metric, &id, class.words()));
                }
            }
        }
        plots
    }

    /// One metric of several jobs; `None` for a single bar, which is no chart.
    fn bar_plot(
        &self,
        rows: &[&JobRow],
        name: &dyn Fn(&JobRow) -> String,
        label: &str,
        metric: ComparedMetric,
        id: &str,
        what: &str,
    ) -> Option<Plot> {
        let names = self.comparison.names();
        let y = match metric {
            ComparedMetric::Iops => Axis::linear(metric.name()),
            _ => Axis { format: NumberFormat::Plain, ..Axis::linear(metric.name()) },
        };
        let values =
            |row: &JobRow| -> Vec<_> { (0..names.len()).map(|at| bar(row, at, metric)).collect() };
        let group = |row: &&JobRow| Group { name: name(row), values: values(row) };
        let groups: Vec<Group> = rows.iter().map(group).collect();
        let bars = groups.iter().flat_map(|group| group.values.iter().flatten()).count();
        let panels = vec![Panel::bars(label, y, names, groups)];
        let picture = self.picture(format!("{} {what}", title(metric)), subtitle(rows), panels);
        (bars > 1).then(|| Plot { id: slug(&format!("{id}-{}", short(metric))), picture })
    }

    /// One metric by block size on logarithmic axes: 4K and 1M share no linear one.
    fn size_lines(&self, rows: &[&JobRow], metric: ComparedMetric, id: &str, what: &str) -> Plot {
        let line = |(at, name): (usize, &String)| {
            let point = |row: &&JobRow| Some((row.block_bytes as f64, row.median(at, metric)?));
            let mut points: Vec<_> = rows.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            LineSeries {
                name: name.clone(),
                hue: Hue(at),
                pieces: vec![points],
                dots: true,
                ..LineSeries::default()
            }
        };
        let lines = self.comparison.names().iter().enumerate().map(line).collect();
        let x = Axis {
            format: NumberFormat::Block,
            scale: Scale::Log2,
            ..Axis::linear("size of a request")
        };
        let y = Axis { format: NumberFormat::Plain, ..Axis::log(metric.name()) };
        let panel = Panel { x, y, content: PanelContent::Lines(lines), marks: Vec::new() };
        let picture =
            self.picture(format!("{} {what}", title(metric)), subtitle(rows), vec![panel]);
        Plot { id: slug(&format!("{id}-{}", short(metric))), picture }
    }

    /// Jobs that differ only in the number of disks, sorted by it.
    fn disk_families(&self) -> Vec<Vec<&JobRow>> {
        let mut families = families(self.comparison.rows(), |family, row| {
            let key = |row: &JobRow| (row.rw, row.block_bytes, row.depth, row.threads);
            key(family[0]) == key(row)
        });
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
            let what =
                format!("by disks, {} {size}, {} in flight on each", row.rw, row.in_flight());
            let id = format!("by-disks-{}-{size}-d{}-t{}", row.rw, row.depth, row.threads);
            let names = |row: &JobRow| row.disks.to_string();
            for metric in [ComparedMetric::Iops, ComparedMetric::Latency] {
                plots.extend(self.bar_plot(&family, &names, "disks", metric, &id, &what));
            }
        }
        plots
    }

    fn percentiles(&self) -> Vec<Plot> {
        let curve = |row: &JobRow, at: usize| vec![percentile_curve(&row.records[at])];
        let axes = (
            Axis { scale: Scale::Log, format: NumberFormat::Nines, ..Axis::linear("percentile") },
            Axis { format: NumberFormat::Plain, ..Axis::log("latency, µs") },
        );
        self.lines("latency", "Latency percentiles", "medians of repetitions", axes, &curve)
    }

    /// The median of the repetitions over time, and their range: one plot for each job.
    fn over_time(&self) -> Vec<Plot> {
        let lines = self.comparison.rows().len() * self.comparison.names().len();
        let most = (REPORT_POINTS / lines.max(1)).clamp(8, 300);
        let plot = |row: &JobRow| {
            let lines: Vec<LineSeries> = (0..self.comparison.names().len())
                .map(|at| {
                    let (points, band) = typical_series(&row.records[at], most);
                    let name = self.comparison.names()[at].clone();
                    LineSeries { name, hue: Hue(at), pieces: vec![points], band, dots: false }
                })
                .collect();
            let longest = lines.iter().map(|line| line.pieces[0].len()).max().unwrap_or(0);
            let panel = |y: Axis, lines: Vec<LineSeries>| {
                let x = Axis::linear("seconds since the measurement began");
                Panel { x, y, content: PanelContent::Lines(lines), marks: Vec::new() }
            };
            let mut panels = vec![panel(Axis::linear("IOPS"), lines.clone())];
            // With all requests in flight all the time, by Little's law.
            if is_counted(row) {
                let in_flight = f64::from(row.depth) * f64::from(row.threads);
                let lines = lines.into_iter().map(|line| latencies(line, in_flight)).collect();
                let y = Axis { format: NumberFormat::Plain, ..Axis::linear("mean latency, ms") };
                panels.push(panel(y, lines));
            }
            let subtitle = "median of the repetitions, and their range".to_owned();
            let picture = self.picture(format!("IOPS over time: {}", row.job), subtitle, panels);
            let id = slug(&format!("over-time-{}", row.job));
            (longest >= SERIES_LEAST).then_some(Plot { id, picture })
        };
        self.comparison.rows().iter().filter_map(plot).collect()
    }

    /// Bytes that the layer below wrote per byte written, by job, where a command counted them.
    fn write_amplification(&self) -> Option<Plot> {
        let names = self.comparison.names();
        let value = |row: &JobRow, at: usize| {
            let of: Vec<f64> =
                row.records[at].iter().filter_map(ResultRecord::write_amplification).collect();
            median(&of).map(BarValue::from)
        };
        let group = |row: &JobRow| {
            let values: Vec<_> = (0..names.len()).map(|at| value(row, at)).collect();
            let any = values.iter().any(Option::is_some);
            any.then(|| Group { name: row.job.clone(), values })
        };
        let groups: Vec<Group> = self.comparison.rows().iter().filter_map(group).collect();
        let y = "bytes written below per byte written";
        let y = Axis { format: NumberFormat::Plain, ..Axis::linear(y) };
        (!groups.is_empty()).then(|| {
            let panels = vec![Panel::bars("job", y, names, groups)];
            let subtitle = "as the user's command counts them".to_owned();
            let picture = self.picture("Write amplification".to_owned(), subtitle, panels);
            Plot { id: "write-amplification".to_owned(), picture }
        })
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
        maker.lines("rounds", "IOPS by round", "until the last five are steady", axes, &all)
    }

    /// One plot for each job with a line for each target; for a single target, plots of several
    /// jobs.
    fn lines(
        &self,
        id: &str,
        title: &str,
        subtitle: &str,
        (x, y): (Axis, Axis),
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
                .map(|(at, (name, pieces))| LineSeries {
                    name,
                    hue: Hue(at),
                    pieces,
                    dots: true,
                    ..LineSeries::default()
                })
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

/// Groups of rows: a row joins the first group that it fits.
fn families<'a>(
    rows: &'a [JobRow],
    fits: impl Fn(&[&'a JobRow], &JobRow) -> bool,
) -> Vec<Vec<&'a JobRow>> {
    let mut families: Vec<Vec<&JobRow>> = Vec::new();
    for row in rows {
        match families.iter_mut().find(|family| fits(family, row)) {
            Some(family) => family.push(row),
            None => families.push(vec![row]),
        }
    }
    families
}

/// Jobs whose figures are of one order of magnitude, so that they may share a linear axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JobClass {
    SmallDeep,
    LargeDeep,
    SmallAlone,
    LargeAlone,
}

impl JobClass {
    fn of(row: &JobRow) -> JobClass {
        match (row.block_bytes >= LARGE_BYTES, row.in_flight() > 1) {
            (false, true) => JobClass::SmallDeep,
            (true, true) => JobClass::LargeDeep,
            (false, false) => JobClass::SmallAlone,
            (true, false) => JobClass::LargeAlone,
        }
    }

    fn id(self) -> &'static str {
        match self {
            JobClass::SmallDeep => "small",
            JobClass::LargeDeep => "large",
            JobClass::SmallAlone => "small-d1",
            JobClass::LargeAlone => "large-d1",
        }
    }

    fn words(self) -> &'static str {
        match self {
            JobClass::SmallDeep => "of small requests",
            JobClass::LargeDeep => "of large requests",
            JobClass::SmallAlone => "of one small request at a time",
            JobClass::LargeAlone => "of one large request at a time",
        }
    }

    /// One request at a time is a question of latency only.
    fn metrics(self) -> &'static [ComparedMetric] {
        match self {
            JobClass::SmallDeep => &[ComparedMetric::Iops, ComparedMetric::Latency],
            JobClass::LargeDeep => &[ComparedMetric::Throughput, ComparedMetric::Latency],
            JobClass::SmallAlone | JobClass::LargeAlone => &[ComparedMetric::Latency],
        }
    }
}

fn title(metric: ComparedMetric) -> &'static str {
    match metric {
        ComparedMetric::Iops => "IOPS",
        ComparedMetric::Throughput => "Throughput",
        ComparedMetric::Latency => "Latency",
    }
}

fn short(metric: ComparedMetric) -> String {
    title(metric).to_lowercase()
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

/// Whether the bytes that a layer wrote were counted.
fn is_counted(row: &JobRow) -> bool {
    row.records.iter().flatten().any(|record| record.written_bytes.is_some())
}

/// Mean latency in ms over time from IOPS over time.
fn latencies(line: LineSeries, in_flight: f64) -> LineSeries {
    let latency = |(at, iops): (f64, f64)| (at, in_flight / iops * 1e3);
    let piece = |piece: Vec<(f64, f64)>| {
        piece.into_iter().filter(|(_, iops)| *iops > 0.0).map(latency).collect()
    };
    let pieces = line.pieces.into_iter().map(piece).collect();
    LineSeries { pieces, band: Vec::new(), ..line }
}

/// Time in seconds and the median IOPS of the repetitions, averaged to at most `most` points; and
/// their range, from two repetitions on.
#[expect(clippy::type_complexity, reason = "points and band of a line")]
fn typical_series(
    records: &[ResultRecord],
    most: usize,
) -> (Vec<(f64, f64)>, Vec<(f64, f64, f64)>) {
    let all: Vec<Vec<(f64, f64)>> = records.iter().map(|record| series(record, most)).collect();
    let longest = all.iter().max_by_key(|series| series.len()).cloned().unwrap_or_default();
    let (mut points, mut band) = (Vec::new(), Vec::new());
    for (at, (seconds, _)) in longest.into_iter().enumerate() {
        let here: Vec<f64> = all.iter().filter_map(|s| Some(s.get(at)?.1)).collect();
        points.extend(median(&here).map(|iops| (seconds, iops)));
        let fold = |of: fn(f64, f64) -> f64| here.iter().copied().reduce(of);
        if let (true, Some(low), Some(high)) = (all.len() > 1, fold(f64::min), fold(f64::max)) {
            band.push((seconds, low, high));
        }
    }
    (points, band)
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
    use crate::job::BenchJob;
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
        ResultRecord::new("s", &BenchJob::default(), &target, measurement)
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
        let mut other = record.clone();
        other.measurement.series_iops.iter_mut().for_each(|iops| *iops += 2.0);
        let (points, band) = typical_series(&[record.clone(), other], 100);
        assert_eq!((points.len(), points[0], band[0]), (20, (0.1, 2.0), (0.1, 1.0, 3.0)));
        assert!(typical_series(&[record], 100).1.is_empty(), "one repetition has no range");
    }

    /// Plots of jobs: name, block size, requests in flight; on one target.
    fn plots(jobs: &[(&str, u64, u32)]) -> Vec<Plot> {
        let of = |(name, block_bytes, depth): &(&str, u64, u32)| {
            let name = (*name).to_owned();
            let (block_bytes, depth) = (*block_bytes, *depth);
            let job = BenchJob { name, block_bytes, depth, ..BenchJob::default() };
            let measurement = record(1000).measurement;
            ResultRecord::new("s", &job, &"a=/x".parse().unwrap(), measurement)
        };
        all(&[], &Comparison::of_targets(jobs.iter().map(of).collect()))
    }

    #[test]
    fn one_plot_for_each_question() {
        let quick = [("a", 4096, 32), ("b", 4096, 32), ("c", 4096, 1), ("d", 1 << 20, 8)];
        let found = plots(&quick);
        let ids: Vec<&str> = found.iter().map(|plot| plot.id.as_str()).collect();
        let expected = ["by-job-small-1-iops", "by-job-small-1-latency", "latency-1"];
        assert_eq!(ids[..3], expected, "one bar of c and one of d are no chart");
        assert_eq!(ids[3..].iter().filter(|id| id.starts_with("over-time-")).count(), 4);
        for plot in &found {
            assert_eq!(plot.picture.panels.len(), 1, "{}", plot.id);
            if let PanelContent::Lines(lines) = &plot.picture.panels[0].content {
                let drawn: usize = lines.iter().map(|line| line.pieces.len()).sum();
                assert!(drawn <= PLOT_LINES, "{}", plot.id);
            }
        }
        let sweep = plots(&[("a", 4096, 8), ("b", 65_536, 8), ("c", 1 << 20, 8)]);
        let y = &sweep[0].picture.panels[0].y;
        assert!(sweep[0].id.starts_with("by-size-") && y.scale == Scale::Log, "4K and 1M");
        let near = plots(&[("a", 4096, 8), ("b", 65_536, 8)]);
        assert_eq!(near[0].picture.panels[0].y.scale, Scale::Linear);
    }
}
