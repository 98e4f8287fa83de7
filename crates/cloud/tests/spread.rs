//! Spread of a result: latencies as under a throttle and a wide distribution are judged apart.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::judge::{
    Bottleneck, Cause, LatencyShape, MeasuredRates, MeasuredSpread, judge_together,
};
use flagstone_cloud::limits::TOLERANCE;
use flagstone_cloud::{DiskConfiguration, Judgment, MeasuredRun, Recommendation};

const PERCENTS: [f64; 9] = [1.0, 5.0, 10.0, 30.0, 50.0, 70.0, 90.0, 95.0, 99.0];

/// 140 MB/s of 64 KiB writes with 24 in flight, whose latencies are these parts of the mean.
fn run(in_flight: u64, parts: [f64; 9], iops_deviation: Option<f64>) -> MeasuredRun {
    let iops = 140e6 / 65536.0;
    let mean_us = in_flight as f64 / iops * 1e6;
    let percentiles = PERCENTS.into_iter().zip(parts.map(|part| part * mean_us)).collect();
    MeasuredRun {
        write: MeasuredRates { iops, bytes_per_s: 140e6, latency_us: Some(mean_us) },
        in_flight: Some(in_flight),
        seconds: 60.0,
        spread: MeasuredSpread { percentiles, iops_deviation },
        ..MeasuredRun::default()
    }
}

fn judged(measured: &MeasuredRun) -> Judgment {
    let catalog = Catalog::builtin("gcp-2019").expect("it is in the program");
    let size = 500_000_000_000;
    let disk = DiskConfiguration::new(catalog, "pd-ssd", size, "n2-standard-8").expect("it exists");
    catalog.judge(&disk, measured, TOLERANCE).expect("it can be judged")
}

const NARROW: [f64; 9] = [0.98, 0.99, 1.0, 1.0, 1.0, 1.0, 1.01, 1.01, 1.02];
const STEPS: [f64; 9] = [0.1, 0.1, 0.1, 0.11, 0.11, 2.0, 2.0, 2.1, 2.1];
const WIDE: [f64; 9] = [0.05, 0.07, 0.1, 0.15, 0.2, 0.6, 2.0, 4.0, 8.0];
const BETWEEN: [f64; 9] = [0.5, 0.6, 0.7, 0.9, 1.0, 1.1, 1.3, 1.5, 1.9];

fn shape(found: &Judgment) -> Option<LatencyShape> {
    found.causes.iter().find_map(|cause| match cause {
        Cause::LatencySpread { shape, .. } => Some(*shape),
        _ => None,
    })
}

/// Regression test: the distribution and the variation of the rate were not looked at, so that a
/// perfect throttle and a wide distribution had word for word the same verdict.
#[test]
fn spread_makes_cap_or_latency_probable() {
    use LatencyShape::{Narrow, Steps, Wide};
    for (parts, deviation, wanted, wanted_shape) in [
        (NARROW, Some(0.005), Bottleneck::LikelyCap, Some(Narrow)),
        (STEPS, None, Bottleneck::LikelyCap, Some(Steps)),
        (WIDE, Some(0.2), Bottleneck::LikelyLatency, Some(Wide)),
        // What the result does not support stays undecided.
        (NARROW, None, Bottleneck::LatencyOrCap, Some(Narrow)),
        (NARROW, Some(0.2), Bottleneck::LatencyOrCap, Some(Narrow)),
        (STEPS, Some(0.2), Bottleneck::LatencyOrCap, Some(Steps)),
        (WIDE, Some(0.005), Bottleneck::LatencyOrCap, Some(Wide)),
        (WIDE, None, Bottleneck::LatencyOrCap, Some(Wide)),
        (BETWEEN, Some(0.005), Bottleneck::LatencyOrCap, None),
    ] {
        let found = judged(&run(24, parts, deviation));
        assert_eq!((found.bottleneck, shape(&found)), (wanted, wanted_shape), "{deviation:?}");
        // One result is never certain: the run that decides stays recommended.
        let other = Recommendation::OtherDepth { in_flight: 48 };
        assert!(found.recommendations.contains(&other), "{found:?}");
        assert!(found.causes.iter().any(|cause| matches!(cause, Cause::OneDepth { .. })));
    }
    let none = judged(&MeasuredRun { spread: MeasuredSpread::default(), ..run(24, WIDE, None) });
    assert_eq!((none.bottleneck, shape(&none)), (Bottleneck::LatencyOrCap, None));
    // Without a queue, equal latencies are as probable of a disk.
    let alone = judged(&run(2, NARROW, Some(0.005)));
    assert_ne!(alone.bottleneck, Bottleneck::LikelyCap);
}

#[test]
fn probable_cap_is_not_explained_by_latency() {
    let found = judged(&run(24, NARROW, Some(0.005)));
    let of_latency = |cause: &Cause| {
        matches!(cause, Cause::SlowerThanRule(_) | Cause::NoRule { .. } | Cause::SlowPath { .. })
    };
    assert!(!found.causes.iter().chain(&found.hypotheses).any(of_latency), "{found:?}");
}

/// Regression test: the machine may be given wrongly, so measurements on others are named too.
#[test]
fn observed_cap_of_other_machine_is_named() {
    let found = judged(&run(24, WIDE, None));
    let observed = found.hypotheses.iter().find_map(|cause| match cause {
        Cause::Observed { machine, .. } => Some(machine.as_str()),
        _ => None,
    });
    assert_eq!(observed, Some("c2-standard-8"), "{found:?}");
}

#[test]
fn second_result_overrules_spread() {
    // The same IOPS at twice the depth: a cap, however wide the latencies are.
    let mut all =
        [run(24, WIDE, Some(0.2)), run(48, WIDE, Some(0.2))].map(|measured| judged(&measured));
    assert_eq!(all[0].bottleneck, Bottleneck::LikelyLatency);
    judge_together(all.iter_mut());
    for found in &all {
        assert_eq!((found.bottleneck, shape(found)), (Bottleneck::Cap, None), "{found:?}");
    }
}

#[test]
fn hostile_spread_is_refused_or_ignored() {
    for figure in [f64::NAN, f64::INFINITY, -1.0] {
        let mut measured = run(24, NARROW, Some(figure));
        let catalog = Catalog::builtin("gcp-2019").expect("it is in the program");
        let disk = DiskConfiguration::new(catalog, "pd-ssd", 500_000_000_000, "n2-standard-8");
        let disk = disk.expect("it exists");
        assert!(catalog.judge(&disk, &measured, TOLERANCE).is_err(), "{figure}");
        measured = run(24, NARROW, None);
        measured.spread.percentiles[4].1 = figure;
        assert!(catalog.judge(&disk, &measured, TOLERANCE).is_err(), "{figure}");
    }
    let mut falling = NARROW;
    falling.reverse();
    let zero = [0.0; 9];
    for parts in [falling, zero] {
        assert_eq!(shape(&judged(&run(24, parts, Some(0.0)))), None);
    }
}
