//! Figures of a job on a target: medians of its repetitions.

use flagstone_bench::provenance::Provenance;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::stats::{coefficient_of_variation_percent, median};
use flagstone_bench::table::{Table, UNKNOWN};
use flagstone_units::grouped;
use serde::Serialize;

pub(crate) const MIB: f64 = 1_048_576.0;

/// Medians of the repetitions of a job on a target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub provenance: Provenance,
    pub repetitions: usize,
    pub mib_per_s: f64,
    pub iops: f64,
    pub latency_ms: f64,
    pub(crate) latency_p99_ms: Option<f64>,
    /// Coefficient of variation of the throughput, in %; from two repetitions on.
    pub coefficient_of_variation_percent: Option<f64>,
    pub cpu_percent: Option<f64>,
}

impl Figures {
    /// Figures of a job on a target; `None` if it was not measured.
    pub(crate) fn of(records: &[ResultRecord], job: &str, target: &str) -> Option<Figures> {
        let of = matching(records, job, target);
        let middle = |pick: &dyn Fn(&ResultRecord) -> Option<f64>| {
            median(&of.iter().filter_map(|record| pick(record)).collect::<Vec<_>>())
        };
        let throughputs = throughputs(&of);
        Some(Figures {
            provenance: of.iter().map(|record| record.provenance).max()?,
            repetitions: of.len(),
            mib_per_s: median(&throughputs)?,
            iops: middle(&|record| Some(record.iops))?,
            latency_ms: middle(&|record| Some(record.latency_mean_us / 1e3))?,
            latency_p99_ms: middle(&|record| Some(record.latency_p99_us? / 1e3)),
            coefficient_of_variation_percent: coefficient_of_variation_percent(&throughputs),
            cpu_percent: middle(&|record| Some(record.measurement.cpu.as_ref()?.busy_percent())),
        })
    }
}

pub(crate) fn matching<'a>(
    records: &'a [ResultRecord],
    job: &str,
    target: &str,
) -> Vec<&'a ResultRecord> {
    records.iter().filter(|record| record.job == job && record.target == target).collect()
}

pub(crate) fn throughputs(records: &[&ResultRecord]) -> Vec<f64> {
    records.iter().map(|record| record.mb_per_s * 1e6 / MIB).collect()
}

/// An empty table with these column heads, separated by `|`.
pub(crate) fn table(title: impl Into<String>, heads: &str) -> Table {
    Table::new(title, &heads.split('|').collect::<Vec<_>>())
}

pub(crate) fn percent(value: Option<f64>, decimals: usize) -> String {
    or_dash(value, |value| grouped(value, decimals) + " %")
}

pub(crate) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_zero_percent_has_no_sign() {
        assert_eq!(percent(Some(-0.001), 2), "0.00 %");
        assert_eq!(percent(Some(-0.02), 2), "-0.02 %");
        assert_eq!(percent(Some(-0.02), 1), "0.0 %");
        assert_eq!(percent(None, 2), "-");
    }
}
