//! Fuzz target for fio's output and interval logs.
//!
//! Input: one byte (0: JSON; 1: a log; 2: a line of results; 3: a suite), then the text.

use flagstone_bench::fio::{output, series};
use flagstone_bench::job::BenchJob;
use flagstone_bench::measurement::{DirectionResults, Measurement};
use flagstone_bench::results::ResultRecord;
use flagstone_bench::suite;

/// Parses the text. An accepted one is a measurement whose figures can be compared and printed.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match kind % 4 {
        0 => json(text),
        1 => log(text),
        2 => record(text),
        _ => toml(text),
    }
}

fn json(text: &str) {
    match output::parse(text) {
        Ok(found) => {
            assert!(!found.jobs.is_empty());
            let measured = Measurement::of_output(&found);
            for side in [&measured.total, &measured.read, &measured.write] {
                check(side);
            }
            let target = "t=/x".parse().expect("a target");
            let line = serde_json::to_string(&ResultRecord::new(
                "s",
                &BenchJob::default(),
                &target,
                measured,
            ));
            let back: ResultRecord =
                serde_json::from_str(&line.expect("JSON")).expect("it reads back");
            assert!(back.iops >= 0.0);
        }
        Err(detail) => assert!(!detail.is_empty()),
    }
}

/// Checks that figures are finite and not negative, with percentiles in order.
fn check(side: &DirectionResults) {
    let figures = [
        side.iops,
        side.bytes_per_s,
        side.latency_mean_us,
        side.latency_stddev_us,
        side.latency_min_us,
        side.latency_max_us,
    ];
    assert!(figures.iter().all(|figure| figure.is_finite() && *figure >= 0.0), "{side:?}");
    assert!(side.percentiles_us.values().all(|us| us.is_finite() && *us >= 0.0), "{side:?}");
}

fn log(text: &str) {
    let series = series::parse(text, 500, 10_000);
    assert_eq!(series.read_iops.len(), series.write_iops.len());
    assert!(series.read_iops.len() <= 20);
    let points = series.clone().bounded().total_iops();
    assert!(points.iter().all(|iops| iops.is_finite() && *iops >= 0.0));
}

fn record(text: &str) {
    if let Ok(record) = serde_json::from_str::<ResultRecord>(text) {
        let again = serde_json::to_string(&record).expect("JSON");
        assert!(!again.contains('\n'), "a record is one line");
    }
}

fn toml(text: &str) {
    if let Ok(suite) = suite::parse(text, "fuzz") {
        assert!(!suite.jobs.is_empty() && suite.repetitions > 0);
        for job in &suite.jobs {
            job.check().expect("it was accepted");
        }
    }
}
