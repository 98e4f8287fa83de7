//! Measurement: results of one job on one target, independent of the tool.

use std::collections::BTreeMap;

use flagstone_load::results::{LoadResults, OpKind, OperationResults};
use serde::{Deserialize, Serialize};

use crate::cpu::CpuUse;
use crate::fio::output::{FioLatency, Output};
use crate::fio::program::FioRun;
use crate::fio::series::Series;
use crate::limits::SERIES_POINTS;
use crate::server::ServerUse;

/// Percentiles that are stored, with their names.
pub const PERCENTILES: [(&str, f64); 12] = [
    ("1", 1.0),
    ("5", 5.0),
    ("10", 10.0),
    ("25", 25.0),
    ("50", 50.0),
    ("75", 75.0),
    ("90", 90.0),
    ("95", 95.0),
    ("99", 99.0),
    ("99.9", 99.9),
    ("99.99", 99.99),
    ("99.999", 99.999),
];

/// Requests that must lie beyond a percentile for it to be meaningful.
const BEYOND_LEAST: f64 = 5.0;

pub(crate) fn are_enough(ios: f64, percent: f64) -> bool {
    ios * (100.0 - percent) / 100.0 > BEYOND_LEAST * 0.999
}

/// Results of one direction, or of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionResults {
    pub ios: u64,
    pub bytes: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub latency_mean_us: f64,
    pub latency_stddev_us: f64,
    pub latency_min_us: f64,
    pub latency_max_us: f64,
    /// Known percentiles in µs, by their names in [`PERCENTILES`].
    pub percentiles_us: BTreeMap<String, f64>,
}

impl DirectionResults {
    /// 10^6 bytes per second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes_per_s / 1e6
    }

    /// A percentile in µs, by its name in [`PERCENTILES`].
    pub fn percentile_us(&self, name: &str) -> Option<f64> {
        self.percentiles_us.get(name).copied()
    }

    fn of_load(results: &OperationResults) -> DirectionResults {
        let latency = &results.latency_us;
        let percentiles = latency.percentiles();
        DirectionResults {
            ios: results.ios,
            bytes: results.bytes,
            iops: results.iops,
            bytes_per_s: results.mb_per_s * 1e6,
            latency_mean_us: latency.mean,
            latency_stddev_us: latency.stddev,
            latency_min_us: latency.min,
            latency_max_us: latency.max,
            percentiles_us: percentiles.map(|(name, us)| (name.to_owned(), us)).into(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub total: DirectionResults,
    pub read: DirectionResults,
    pub write: DirectionResults,
    /// Interval of [`Measurement::series_iops`], in ms.
    pub series_interval_ms: u64,
    /// IOPS over time, reads and writes together.
    pub series_iops: Vec<f64>,
    /// Mean usage of this machine's CPUs.
    pub cpu: Option<CpuUse>,
    pub cpu_us_per_io: Option<f64>,
    /// CPU time of the serving processes, if they are on this machine.
    #[serde(default)]
    pub server: Option<ServerUse>,
    /// Part of the measured time in which the generator stood still, in seconds: stopped by a
    /// signal, or with the whole machine.
    #[serde(default)]
    pub paused_s: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LatencySum {
    weight: f64,
    /// Mean, range, histogram and percentiles; percentiles without a histogram cannot be added, and
    /// are kept only for a single part.
    all: FioLatency,
    /// Sum of the squared distances from the mean.
    squares_ns: f64,
}

impl LatencySum {
    /// Adds latencies; `ios` replaces a missing count.
    pub(crate) fn add(&mut self, latency: &FioLatency, ios: u64) {
        let weight = if latency.count > 0 { latency.count } else { ios } as f64;
        if weight == 0.0 || latency.max == 0.0 {
            return;
        }
        let all = &mut self.all;
        // Mean and variance of the union (Chan, Golub, LeVeque, 1979).
        let (total, apart) = (self.weight + weight, latency.mean - all.mean);
        self.squares_ns +=
            latency.stddev.powi(2) * weight + apart.powi(2) * self.weight * weight / total;
        all.mean += apart * weight / total;
        let is_first = self.weight == 0.0;
        self.weight = total;
        all.min = if is_first { latency.min } else { all.min.min(latency.min) };
        all.max = all.max.max(latency.max);
        all.bins = all.bins.merged(&latency.bins).unwrap_or_default();
        all.percentile = if is_first { latency.percentile.clone() } else { Vec::new() };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.weight == 0.0
    }

    pub(crate) fn bins(&self) -> usize {
        self.all.bins.bins().len()
    }

    pub(crate) fn mean_us(&self) -> f64 {
        self.all.mean / 1e3
    }

    pub(crate) fn stddev_us(&self) -> f64 {
        let variance = if self.weight > 0.0 { self.squares_ns / self.weight } else { 0.0 };
        variance.sqrt() / 1e3
    }

    pub(crate) fn min_us(&self) -> f64 {
        self.all.min / 1e3
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.all.max / 1e3
    }

    pub(crate) fn percentile_us(&self, percent: f64) -> Option<f64> {
        self.all.percentile_ns(percent).map(|nanos| nanos / 1e3)
    }
}

#[derive(Default)]
struct Sum {
    results: DirectionResults,
    latency: LatencySum,
}

impl Sum {
    fn side(self) -> DirectionResults {
        let percentile = |(name, percent): &(&str, f64)| {
            Some(((*name).to_owned(), self.latency.percentile_us(*percent)?))
        };
        DirectionResults {
            latency_mean_us: self.latency.mean_us(),
            latency_stddev_us: self.latency.stddev_us(),
            latency_min_us: self.latency.min_us(),
            latency_max_us: self.latency.max_us(),
            percentiles_us: PERCENTILES.iter().filter_map(percentile).collect(),
            ..self.results
        }
    }
}

impl Measurement {
    /// Results of a run of fio: the sum of all jobs.
    pub fn of_fio(run: &FioRun) -> Measurement {
        let mut measured = Measurement::of_output(&run.output);
        let mut series = Series::default();
        run.series.iter().for_each(|part| series.add(part));
        let series = series.bounded();
        measured.series_interval_ms = series.interval_ms;
        measured.series_iops = series.total_iops();
        // fio gives the mean of the threads that it reports together.
        let together = f64::from(run.threads) / run.output.jobs.len().max(1) as f64;
        measured.cpu_us_per_io = measured.cpu_us_per_io.map(|us| us * together.max(1.0));
        measured.cpu = (!run.cpus.is_empty()).then(|| CpuUse::mean(&run.cpus));
        measured.paused_s = run.paused_s;
        measured
    }

    /// Results of fio's JSON only, as if each job were one thread.
    pub fn of_output(output: &Output) -> Measurement {
        // Discards are in the total only.
        let [mut read, mut write, mut trim, mut total] = std::array::from_fn(|_| Sum::default());
        let mut cpu_us = 0.0;
        for job in &output.jobs {
            let sides = [(&job.read, &mut read), (&job.write, &mut write), (&job.trim, &mut trim)];
            for (side, sum) in sides {
                for sum in [sum, &mut total] {
                    let results = &mut sum.results;
                    results.ios = results.ios.saturating_add(side.completed());
                    results.bytes = results.bytes.saturating_add(side.io_bytes);
                    results.iops += side.completed_per_s();
                    results.bytes_per_s += bytes_per_s(side);
                    sum.latency.add(side.latency(), side.total_ios);
                }
            }
            let busy = (job.usr_cpu + job.sys_cpu) / 100.0;
            let sides = [&job.read, &job.write, &job.trim];
            let runtime_ms = sides.map(|side| side.runtime).into_iter().max().unwrap_or(0);
            cpu_us += busy * runtime_ms as f64 * 1e3;
        }
        let ios = total.results.ios;
        Measurement {
            cpu_us_per_io: (ios > 0).then(|| cpu_us / ios as f64),
            total: total.side(),
            read: read.side(),
            write: write.side(),
            ..Measurement::default()
        }
    }

    /// Results of our own generator. The caller adds the time in which it stood still.
    pub fn of_load(results: &LoadResults) -> Measurement {
        let of = |kind: OpKind| {
            let found = results.operations.iter().find(|o| o.operation == Some(kind));
            found.map(DirectionResults::of_load).unwrap_or_default()
        };
        let samples: Vec<f64> = results.samples.iter().map(|sample| sample.iops).collect();
        Measurement {
            total: results.total.as_ref().map(DirectionResults::of_load).unwrap_or_default(),
            read: of(OpKind::Read),
            write: of(OpKind::Write),
            series_interval_ms: 1000,
            series_iops: samples.into_iter().take(SERIES_POINTS).collect(),
            cpu_us_per_io: results
                .cpu
                .as_ref()
                .map(|cpu| cpu.user_us_per_io + cpu.system_us_per_io),
            ..Measurement::default()
        }
    }
}

/// Byte rate; fio before 3.3 has none, so it is derived from bytes and time.
fn bytes_per_s(side: &crate::fio::output::FioDirection) -> f64 {
    match (side.bw_bytes, side.runtime) {
        (0.0, 0) => 0.0,
        (0.0, ms) => side.io_bytes as f64 * 1e3 / ms as f64,
        (rate, _) => rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::output::parse;

    fn job(ios: u64, mean: f64, bins: &str) -> String {
        format!(
            r#"{{"jobname": "a", "read": {{"io_bytes": 4096, "total_ios": {ios}, "iops": {ios}, "bw_bytes": 4096,
              "runtime": 1000, "lat_ns": {{"min": 1000, "max": 9000, "mean": {mean}, "stddev": 0, "N": {ios},
              "bins": {{{bins}}}}}}}, "usr_cpu": 10, "sys_cpu": 10}}"#
        )
    }

    /// Output of fio with 256 reads in flight at 140 per second, after a warm-up.
    #[test]
    fn requests_in_flight_at_warm_up_end_count() {
        let text = r#"{"fio version": "fio-3.33", "jobs": [{"jobname": "a", "read": {"io_bytes": 3915776,
            "total_ios": 701, "iops": 102.620407, "bw_bytes": 573236, "runtime": 6831,
            "lat_ns": {"min": 1000, "max": 9000, "mean": 2000, "stddev": 0, "N": 956}}}]}"#;
        let total = Measurement::of_output(&parse(text).unwrap()).total;
        assert_eq!(total.ios, 956);
        assert!((total.iops - total.bytes_per_s / 4096.0).abs() < 0.01, "{total:?}");
    }

    #[test]
    fn discards_are_in_the_total_only() {
        let text = format!(r#"{{"fio version": "fio-3.33", "jobs": [{}]}}"#, job(7, 2000.0, ""));
        let measured = Measurement::of_output(&parse(&text.replace("read", "trim")).unwrap());
        assert_eq!((measured.total.iops, measured.read.iops, measured.write.iops), (7.0, 0.0, 0.0));
        assert!(measured.cpu_us_per_io.is_some_and(|us| us > 0.0));
    }

    #[test]
    fn measurement_sums_threads() {
        let text = format!(
            r#"{{"fio version": "fio-3.33", "jobs": [{}, {}]}}"#,
            job(1, 2000.0, r#""2000": 1"#),
            job(3, 6000.0, r#""6000": 3"#)
        );
        let measured = Measurement::of_output(&parse(&text).unwrap());
        assert_eq!((measured.total.iops, measured.total.bytes_per_s), (4.0, 8192.0));
        assert_eq!(measured.total.latency_mean_us, 5.0);
        assert!((measured.read.latency_stddev_us - 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(measured.read.percentile_us("25"), Some(2.0));
        assert_eq!(measured.total.percentile_us("99.99"), Some(6.0));
        assert_eq!(measured.write, DirectionResults::default());
        assert_eq!(measured.cpu_us_per_io, Some(100_000.0));
    }
}
