//! Caveats of a comparison: noisy results, results that this machine's CPUs may have limited, and
//! measurements during which the generator stood still.

use crate::compare::{ComparedMetric, Comparison};
use crate::results::ResultRecord;
use crate::stats::{coefficient_of_variation_percent, median};

/// Coefficient of variation that counts as noisy, in %.
const NOISY_PERCENT: f64 = 10.0;
/// CPU usage that may have limited a result, in %.
const BUSY_PERCENT: f64 = 95.0;
/// Upper bound of the names in a list.
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
    if !paused.is_empty() {
        said.push(format!(
            "What measured stood still in the midst, stopped by a signal or asleep with the machine, \
             so these are not of the disk alone and are to be measured again: {}.",
            listed(paused)
        ));
    }
    if !noisy.is_empty() {
        said.push(format!("Noisy, over {NOISY_PERCENT} % between repetitions: {}.", listed(noisy)));
    }
    if !busy.is_empty() {
        said.push(format!(
            "This machine's CPUs were busy to {BUSY_PERCENT} % or more, so these may be limited by \
             them and not by the disk: {}.",
            listed(busy)
        ));
    }
    said
}

fn cpu_percent(records: &[ResultRecord]) -> Option<f64> {
    let busy = records.iter().filter_map(|r| Some(r.measurement.cpu.as_ref()?.busy_percent()));
    median(&busy.collect::<Vec<_>>())
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
    fn only_what_is_doubtful_is_said() {
        assert_eq!(of([100.0, 101.0, 102.0], 50.0), [""; 0]);
        let noisy = of([50.0, 100.0, 150.0], 50.0);
        assert_eq!(noisy, ["Noisy, over 10 % between repetitions: j on a (50 %)."]);
        let busy = of([100.0, 101.0, 102.0], 4.0);
        assert!(busy.len() == 1 && busy[0].ends_with("not by the disk: j on a."), "{busy:?}");
    }

    #[test]
    fn what_stood_still_is_named_with_its_repetition() {
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
    fn long_lists_are_cut() {
        let all = (0..15).map(|n| n.to_string()).collect();
        assert!(listed(all).ends_with("10, 11, and 3 more"));
    }
}
