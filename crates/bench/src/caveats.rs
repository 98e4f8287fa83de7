//! Caveats of a comparison: noisy results, results that this machine's CPUs may have limited, and
//! measurements during which the generator was paused.

use crate::compare::{ComparedMetric, Comparison, median_of};
use crate::results::ResultRecord;
use crate::stats::coefficient_of_variation_percent;

/// Coefficient of variation that counts as noisy, in %.
const NOISY_PERCENT: f64 = 10.0;
/// CPU usage that may have limited a result, in %.
const BUSY_PERCENT: f64 = 95.0;
pub(crate) const LISTED: usize = 12;

/// Caveats as sentences; empty if there are none.
pub fn caveats(comparison: &Comparison) -> Vec<String> {
    let (mut noisy, mut busy, mut paused) = (Vec::new(), Vec::new(), Vec::new());
    for row in comparison.rows() {
        for (at, name) in comparison.names().iter().enumerate() {
            let noise = coefficient_of_variation_percent(&row.values(at, ComparedMetric::Iops))
                .unwrap_or(0.0);
            if noise > NOISY_PERCENT {
                noisy.push(format!("{} on {name} ({noise:.0} %)", row.job));
            }
            if cpu_percent(&row.records[at]).is_some_and(|percent| percent >= BUSY_PERCENT) {
                busy.push(format!("{} on {name}", row.job));
            }
            let stood = row.records[at].iter().filter(|record| record.measurement.paused_s > 0.0);
            paused.extend(stood.map(|record| {
                format!(
                    "{} on {name}, repetition {} ({:.1} s)",
                    row.job,
                    record.repetition + 1,
                    record.measurement.paused_s
                )
            }));
        }
    }
    let mut said = Vec::new();
    let unlike = comparison.unlike_jobs();
    if !unlike.is_empty() {
        said.push(format!(
            "Not compared, because only the names are the same: {}.",
            listed(unlike)
        ));
    }
    if !paused.is_empty() {
        said.push(format!(
            "The generator paused during the measurement, stopped by a signal or by a suspended \
             machine. These results do not show the disk alone; measure them again: {}.",
            listed(paused)
        ));
    }
    if !noisy.is_empty() {
        said.push(format!(
            "Noisy, with a coefficient of variation above {NOISY_PERCENT} %: {}.",
            listed(noisy)
        ));
    }
    if !busy.is_empty() {
        said.push(format!(
            "This machine's CPUs were at least {BUSY_PERCENT} % busy, so these results may be limited \
             by them and not by the disk: {}.",
            listed(busy)
        ));
    }
    said
}

fn cpu_percent(records: &[ResultRecord]) -> Option<f64> {
    median_of(records, |record| Some(record.measurement.cpu.as_ref()?.busy_percent()))
}

/// The first names of a list, and the number of the others.
pub(crate) fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuUse;
    use crate::job::BenchJob;
    use crate::measurement::Measurement;
    use crate::provenance::Provenance;

    fn of(iops: [f64; 3], idle_percent: f64) -> Vec<String> {
        let records = iops.map(|iops| {
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            let kernel_percent = 100.0 - idle_percent;
            measurement.cpu = Some(CpuUse { user_percent: 0.0, kernel_percent, idle_percent });
            let job = BenchJob { name: "j".to_owned(), ..BenchJob::default() };
            let record = ResultRecord::new("s", &job, &"a=/x".parse().unwrap(), measurement);
            ResultRecord { provenance: Provenance::Real, ..record }
        });
        caveats(&Comparison::of_targets(records.into()))
    }

    #[test]
    fn caveats_for_noise_and_busy_cpus() {
        assert_eq!(of([100.0, 101.0, 102.0], 50.0), [""; 0]);
        let noisy = of([50.0, 100.0, 150.0], 50.0);
        assert_eq!(noisy, ["Noisy, with a coefficient of variation above 10 %: j on a (50 %)."]);
        let busy = of([100.0, 101.0, 102.0], 4.0);
        assert!(busy.len() == 1 && busy[0].ends_with("not by the disk: j on a."), "{busy:?}");
    }

    #[test]
    fn caveat_names_paused_repetition() {
        let record = |repetition, paused_s| {
            let measurement = Measurement { paused_s, ..Measurement::default() };
            let job = BenchJob { name: "j".to_owned(), ..BenchJob::default() };
            let record = ResultRecord::new("s", &job, &"a=/x".parse().unwrap(), measurement);
            ResultRecord { provenance: Provenance::Real, repetition, ..record }
        };
        let said = caveats(&Comparison::of_targets(vec![record(0, 0.0), record(1, 5.04)]));
        assert!(
            said.len() == 1 && said[0].ends_with(": j on a, repetition 2 (5.0 s)."),
            "{said:?}"
        );
    }

    #[test]
    fn long_caveat_lists_are_truncated() {
        let all = (0..15).map(|n| n.to_string()).collect();
        assert!(listed(all).ends_with("10, 11, and 3 more"));
    }
}
