//! Results of fio, as `flagstone plan explain` reads, sums and judges them.
//!
//! Input: one byte that chooses the catalogue, then what fio printed.

use flagstone_bench::fio::output;
use flagstone_bench::fio::phases::{Phase, Rate, phases};
use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::judge::Part;
use flagstone_cloud::limits::TOLERANCE;
use flagstone_cloud::{Configuration, Measured};

/// Sums are finite and not below 0, no job is lost, and what can be judged is judged in numbers.
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
    let catalogue = Catalogue::builtin(["gcp-2019", "gcp-current"][usize::from(choice % 2)]);
    let catalogue = catalogue.expect("it is in the program");
    for phase in phases {
        judge(catalogue, &phase);
    }
}

fn judge(catalogue: &Catalogue, phase: &Phase) {
    for rate in [&phase.read, &phase.write] {
        let latency = rate.latency_us.unwrap_or(0.0);
        for figure in [rate.iops, rate.bytes_per_s, latency, phase.seconds, phase.cpus] {
            assert!(figure.is_finite() && figure >= 0.0);
        }
    }
    let part = |rate: &Rate| Part {
        iops: rate.iops,
        bytes_per_s: rate.bytes_per_s,
        latency_us: rate.latency_us,
    };
    let measured = Measured {
        read: part(&phase.read),
        write: part(&phase.write),
        jobs: phase.jobs,
        in_flight: phase.in_flight,
        seconds: phase.seconds,
        reach_bytes: phase.reach_bytes,
        cpus: phase.cpus,
        busiest_percent: phase.busiest_percent,
        ..Measured::default()
    };
    let size_bytes = 500 << 30;
    let configuration = Configuration::new(catalogue, "pd-ssd", size_bytes, "n2-standard-8");
    let configuration = configuration.expect("both catalogues have it");
    if let Ok(found) = catalogue.judge(&configuration, &measured, TOLERANCE) {
        assert!(found.ratio.is_finite() && found.used.is_finite());
        let words = found.because.iter().chain(&found.perhaps).map(ToString::to_string);
        assert!(words.chain(found.remedies.iter().map(ToString::to_string)).all(|w| !w.is_empty()));
    }
}
