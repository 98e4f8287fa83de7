//! Fuzz target for fio results as `flagstone plan explain` parses, sums and evaluates them.
//!
//! Input: one byte that selects the catalog, then fio's output.

use flagstone_bench::fio::output;
use flagstone_bench::fio::phases::{FioPhase, PhaseRate, phases};
use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::judge::MeasuredRates;
use flagstone_cloud::limits::TOLERANCE;
use flagstone_cloud::{DiskConfiguration, MeasuredRun};

/// Checks that sums are finite and not negative, that no job is lost, and that evaluations have
/// numbers.
pub fn run(input: &[u8]) {
    let Some((choice, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let output = match output::parse(text) {
        Ok(output) => output,
        Err(error) => return assert!(!error.is_empty()),
    };
    let phases = match phases(&output) {
        Ok(phases) => phases,
        Err(error) => return assert!(!error.is_empty() && !error.contains('\n')),
    };
    let jobs: u64 = phases.iter().map(|phase| u64::from(phase.jobs)).sum();
    assert!(jobs >= output.jobs.len() as u64);
    let catalog = Catalog::builtin(["gcp-2019", "gcp-current"][usize::from(choice % 2)]);
    let catalog = catalog.expect("it is in the program");
    for phase in phases {
        judge(catalog, &phase);
    }
}

fn judge(catalog: &Catalog, phase: &FioPhase) {
    for rate in [&phase.read, &phase.write] {
        let latency = rate.latency_us.unwrap_or(0.0);
        for figure in [rate.iops, rate.bytes_per_s, latency, phase.seconds, phase.cpus] {
            assert!(figure.is_finite() && figure >= 0.0);
        }
    }
    let part = |rate: &PhaseRate| MeasuredRates {
        iops: rate.iops,
        bytes_per_s: rate.bytes_per_s,
        latency_us: rate.latency_us,
    };
    let measured = MeasuredRun {
        read: part(&phase.read),
        write: part(&phase.write),
        jobs: phase.jobs,
        in_flight: phase.in_flight,
        seconds: phase.seconds,
        reach_bytes: phase.reach_bytes,
        cpus: phase.cpus,
        busiest_percent: phase.busiest_percent,
        ..MeasuredRun::default()
    };
    let size_bytes = 500 << 30;
    let configuration = DiskConfiguration::new(catalog, "pd-ssd", size_bytes, "n2-standard-8");
    let configuration = configuration.expect("both catalogs have it");
    if let Ok(found) = catalog.judge(&configuration, &measured, TOLERANCE) {
        assert!(found.ratio.is_finite() && found.utilization.is_finite());
        let words = found.causes.iter().chain(&found.hypotheses).map(ToString::to_string);
        assert!(
            words
                .chain(found.recommendations.iter().map(ToString::to_string))
                .all(|w| !w.is_empty())
        );
    }
}
