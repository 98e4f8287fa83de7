//! Judgments of published measurements, and invariants of judgments.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::judge::{Bottleneck, Cause, JudgmentVerdict, MeasuredRates, judge_together};
use flagstone_cloud::limits::TOLERANCE;
use flagstone_cloud::{
    AccessOrder, DiskConfiguration, Judgment, LimitKind, MeasuredRun, PlanError, Recommendation,
    Workload,
};
use proptest::prelude::*;

fn judged(
    catalog: &str,
    (kind, size_bytes, machine): (&str, u64, &str),
    measured: &MeasuredRun,
) -> Judgment {
    let catalog = Catalog::builtin(catalog).expect("it is in the program");
    let configuration =
        DiskConfiguration::new(catalog, kind, size_bytes, machine).expect("it exists");
    catalog.judge(&configuration, measured, TOLERANCE).expect("it can be judged")
}

fn part(iops: f64, block: f64, latency_ms: f64) -> MeasuredRates {
    MeasuredRates { iops, bytes_per_s: iops * block, latency_us: Some(latency_ms * 1e3) }
}

/// A row of experiment A: MiB/s as printed by diskspd, and ms.
fn mirror_row(kib: f64, mib_per_s: f64, ms: f64) -> MeasuredRun {
    let iops = mib_per_s * 1024.0 / kib;
    let write = part(iops, kib * 1024.0, ms);
    MeasuredRun { write, jobs: 8, in_flight: Some(24), seconds: 10.0, ..MeasuredRun::default() }
}

const A_2019: (&str, u64, &str) = ("pd-ssd", 500_000_000_000, "n2-standard-8");

#[test]
fn experiment_a_without_mirror() {
    // The disk as of the experiment's date; the current formula adds 240 MiB/s.
    let (catalog, place) = ("gcp-2019", A_2019);
    for (mb, ms) in [(240.02, 6.248), (240.01, 6.247)] {
        let found = judged(catalog, place, &mirror_row(64.0, mb, ms));
        assert_eq!(
            (found.verdict, found.bottleneck),
            (JudgmentVerdict::AsPredicted, Bottleneck::Limit)
        );
        assert_eq!(found.limits[0].limit.kind, LimitKind::Volume, "the disk");
        let larger =
            |change: &Recommendation| matches!(change, Recommendation::LargerVolume { .. });
        assert!(found.recommendations.iter().any(larger), "{:?}", found.recommendations);
    }
    for (kib, mb, ms) in [(8.0, 96.80, 1.935), (4.0, 37.54, 2.495)] {
        let found = judged(catalog, place, &mirror_row(kib, mb, ms));
        assert_eq!(
            (found.verdict, found.bottleneck),
            (JudgmentVerdict::AsPredicted, Bottleneck::LikelyLatency)
        );
        assert!(found.causes.iter().any(|cause| matches!(cause, Cause::OneDepth { .. })));
        let decides = |change: &Recommendation| {
            matches!(change, Recommendation::OtherDepth { in_flight: 48 })
        };
        assert!(decides(&found.recommendations[0]), "{:?}", found.recommendations);
        let in_flight = found.measured.in_flight.expect("it was measured");
        assert!((in_flight - 24.0).abs() < 0.1, "Little's law: {in_flight}");
        let deeper = |change: &Recommendation| matches!(change, Recommendation::DeeperQueue(queue) if queue.in_flight > 24);
        assert!(found.recommendations.iter().any(deeper), "{:?}", found.recommendations);
        let larger =
            |change: &Recommendation| matches!(change, Recommendation::LargerBlocks { .. });
        assert!(found.recommendations.iter().any(larger), "{:?}", found.recommendations);
    }
}

#[test]
fn experiment_a_through_mirror() {
    for (kib, mb, ms, ratio) in [(8.0, 58.87, 3.183, 0.78), (4.0, 29.34, 3.194, 0.78)] {
        let found = judged("gcp-2019", A_2019, &mirror_row(kib, mb, ms));
        assert_eq!(
            (found.verdict, found.bottleneck),
            (JudgmentVerdict::Below, Bottleneck::LatencyOrCap)
        );
        assert!((found.ratio - ratio).abs() < 0.01, "{}", found.ratio);
        let slower = |finding: &Cause| matches!(finding, Cause::SlowerThanRule { .. });
        assert!(found.causes.iter().any(slower), "{:?}", found.causes);
        let path = |finding: &Cause| matches!(finding, Cause::SlowPath { .. });
        assert!(found.hypotheses.iter().any(path), "{:?}", found.hypotheses);
    }
}

#[test]
fn experiment_a_on_c2() {
    let place = ("pd-ssd", 500_000_000_000, "c2-standard-8");
    // 24 in flight at 140 MiB/s of 64 KiB.
    let found = judged("gcp-2019", place, &mirror_row(64.0, 140.0, 24.0 / 2.24));
    assert_eq!(
        (found.verdict, found.bottleneck),
        (JudgmentVerdict::Below, Bottleneck::LatencyOrCap)
    );
    assert!((found.utilization - 0.597).abs() < 0.001, "{}", found.utilization);
    let traffic = |finding: &Cause| matches!(finding, Cause::OtherTraffic { .. });
    assert!(!found.hypotheses.iter().any(traffic), "so little is left by no traffic");
    // The catalog has exactly this observation, of the same machine and disk.
    let observed = |finding: &Cause| matches!(finding, Cause::Observed { source, .. } if source.contains("SIOS"));
    assert!(observed(&found.hypotheses[0]), "{:?}", found.hypotheses);
    let current = judged("gcp-current", place, &mirror_row(64.0, 140.0, 24.0 / 2.24));
    assert!(observed(&current.hypotheses[0]), "{:?}", current.hypotheses);
    let deeper = |change: &Recommendation| matches!(change, Recommendation::DeeperQueue(_));
    assert!(!found.recommendations.iter().any(deeper), "nothing proves a latency");
    assert_eq!(found.recommendations[0], Recommendation::OtherDepth { in_flight: 48 });
    assert_eq!(found.recommendations[1], Recommendation::OtherBlocks { bytes: 128 << 10 });
}

#[test]
fn measured_cap_of_another_type_is_named() {
    let place = ("pd-ssd", 500_000_000_000, "n1-standard-8");
    let read = part(375.0, 4096.0, 24e3 / 375.0);
    let run = MeasuredRun { read, in_flight: Some(24), seconds: 60.0, ..MeasuredRun::default() };
    let found = judged("gcp-2019", place, &run);
    assert_eq!(found.bottleneck, Bottleneck::LatencyOrCap);
    let cap = Cause::FittingType { kind: "pd-standard".to_owned(), iops: 375.0 };
    assert!(found.hypotheses.contains(&cap), "{:?}", found.hypotheses);
}

fn judged_together(runs: &[(f64, f64, u64)]) -> Vec<Judgment> {
    let place = ("pd-ssd", 500_000_000_000, "n1-standard-8");
    let mut all: Vec<Judgment> = runs
        .iter()
        .map(|(iops, kib, depth)| {
            let write = part(*iops, kib * 1024.0, *depth as f64 * 1e3 / iops);
            let in_flight = Some(*depth);
            let run = MeasuredRun { write, in_flight, seconds: 60.0, ..MeasuredRun::default() };
            judged("gcp-2019", place, &run)
        })
        .collect();
    judge_together(&mut all);
    all
}

fn together(runs: &[(f64, f64, u64)]) -> Vec<Bottleneck> {
    judged_together(runs).iter().map(|judgment| judgment.bottleneck).collect()
}

#[test]
fn proven_cap_or_latency_ends_other_hypotheses() {
    let is_cap = |cause: &Cause| matches!(cause, Cause::FittingType { .. });
    let is_path = |cause: &Cause| matches!(cause, Cause::SlowPath { .. });
    // pd-standard allows 500 GB 750 writes.
    let both = [(750.0, 4.0, 24), (750.0, 4.0, 48)];
    let alone = judged_together(&both[..1]);
    assert!(alone[0].hypotheses.iter().any(is_cap) && alone[0].hypotheses.iter().any(is_path));
    for capped in judged_together(&both) {
        assert!(capped.hypotheses.iter().any(is_cap), "{:?}", capped.hypotheses);
        assert!(!capped.hypotheses.iter().any(is_path), "waiting for the cap makes the latency");
        assert!(!capped.causes.iter().any(|cause| matches!(cause, Cause::SlowerThanRule(_))));
        assert!(!capped.recommendations.contains(&Recommendation::ShorterPath));
    }
    for slow in judged_together(&[(750.0, 4.0, 24), (1500.0, 4.0, 48)]) {
        assert!(!slow.hypotheses.iter().any(is_cap), "{:?}", slow.hypotheses);
        assert!(slow.hypotheses.iter().any(is_path));
    }
}

#[test]
fn several_results_tell_latency_from_cap() {
    use Bottleneck::{Cap, Latency, LatencyOrCap};
    assert_eq!(together(&[(1000.0, 64.0, 24)]), [LatencyOrCap]);
    // A deeper queue changes nothing, or helps.
    assert_eq!(together(&[(1000.0, 64.0, 24), (1010.0, 64.0, 48)]), [Cap, Cap]);
    assert_eq!(together(&[(1000.0, 64.0, 24), (1950.0, 64.0, 48)]), [Latency, Latency]);
    // Equal MB/s at two block sizes.
    assert_eq!(together(&[(1000.0, 64.0, 24), (2010.0, 32.0, 24)]), [Cap, Cap]);
    // Equal IOPS at two block sizes: a latency or a cap of IOPS.
    assert_eq!(together(&[(1000.0, 64.0, 24), (1000.0, 32.0, 24)]), [LatencyOrCap; 2]);
}

fn walk_through(iops: f64) -> MeasuredRun {
    MeasuredRun {
        read: part(iops, 4096.0, 256e3 / iops),
        in_flight: Some(256),
        seconds: 60.0,
        reach_bytes: Some(200 << 30),
        ..MeasuredRun::default()
    }
}

#[test]
fn experiment_c_is_above_formula() {
    for (gb, iops, allowed, ratio, size) in
        [(200, 309.0, 150.0, 2.06, 412.0), (600, 745.0, 450.0, 1.66, 994.0)]
    {
        let place = ("pd-standard", gb * 1_000_000_000, "n1-standard-8");
        let found = judged("gcp-2019", place, &walk_through(iops));
        assert_eq!((found.verdict, found.bottleneck), (JudgmentVerdict::Above, Bottleneck::Limit));
        assert!((found.allowed.iops - allowed).abs() < 1e-6, "{}", found.allowed.iops);
        assert_eq!(found.predicted_low, found.predicted_high);
        assert!((found.ratio - ratio).abs() < 0.005, "{}", found.ratio);
        assert!(found.causes.iter().any(|finding| matches!(finding,
            Cause::BeyondLimit { kind: LimitKind::Volume, times, .. } if (times - ratio).abs() < 0.005)));
        let other = Cause::OtherSize { size, unit: "GB" };
        assert!(found.hypotheses.contains(&other), "{:?}", found.hypotheses);
        assert!(found.hypotheses.contains(&Cause::Burst { seconds: 60.0 }));
        let reach = |finding: &Cause| matches!(finding, Cause::BeyondEnd { .. });
        // 200 GiB exceed 200 GB.
        assert_eq!(found.hypotheses.iter().any(reach), gb == 200);
        assert!(!found.causes.contains(&Cause::PageCache), "direct=1 was given");
        assert!(found.recommendations.contains(&Recommendation::CheckConfiguration));
        assert!(
            found.inconsistencies.iter().any(|touched| touched.id == "I19"),
            "of this very page"
        );
    }
}

#[test]
fn experiment_b_local_and_over_network() {
    let catalog = Catalog::builtin("gcp-2019").expect("it is in the program");
    let local = DiskConfiguration::new(catalog, "local-ssd-nvme", 0, "n1-highcpu-16");
    let configuration = DiskConfiguration { disks: 4, ..local.expect("it exists") };
    // 4 KiB I/Os without a published latency. The page's 2,650 and 1,400 MB/s are 662,500 and
    // 350,000 of them, below its 680,000 and 360,000 IOPS.
    for (reads, writes, verdict, bottleneck, utilization) in [
        (659e3, 0.0, JudgmentVerdict::AsPredicted, Bottleneck::Limit, 0.995),
        (384e3, 0.0, JudgmentVerdict::Below, Bottleneck::NotKnown, 0.580),
        (0.0, 368e3, JudgmentVerdict::Above, Bottleneck::Limit, 1.051),
        (0.0, 398e3, JudgmentVerdict::Above, Bottleneck::Limit, 1.137),
    ] {
        let of = |iops: f64| MeasuredRates { iops, bytes_per_s: iops * 4096.0, latency_us: None };
        let measured = MeasuredRun { read: of(reads), write: of(writes), ..MeasuredRun::default() };
        let found = catalog.judge(&configuration, &measured, TOLERANCE).expect("it is known");
        assert_eq!((found.verdict, found.bottleneck), (verdict, bottleneck), "{reads} {writes}");
        assert!((found.utilization - utilization).abs() < 0.001, "{}", found.utilization);
    }
}

#[test]
fn job_circumstances_are_causes() {
    let base = MeasuredRun {
        read: part(100.0, 4096.0, 1.5),
        in_flight: Some(32),
        throttled_by: Some("rate_iops".to_owned()),
        ..MeasuredRun::default()
    };
    let found = judged("gcp-2019", A_2019, &base);
    assert_eq!((found.verdict, found.bottleneck), (JudgmentVerdict::Below, Bottleneck::Job));
    assert_eq!(found.recommendations[0], Recommendation::NoThrottle { by: "rate_iops".to_owned() });

    let one = MeasuredRun {
        read: part(600.0, 4096.0, 1.66),
        in_flight: Some(1),
        one_at_a_time: Some("psync".to_owned()),
        access: AccessOrder::Sequential,
        ..MeasuredRun::default()
    };
    let found = judged("gcp-2019", A_2019, &one);
    assert_eq!(
        (found.verdict, found.bottleneck),
        (JudgmentVerdict::AsPredicted, Bottleneck::LikelyLatency)
    );
    assert!(found.recommendations.contains(&Recommendation::AsynchronousEngine));
    assert!(found.recommendations.contains(&Recommendation::StreamsWithOffsets));

    let streams = MeasuredRun { jobs: 4, in_flight: Some(4), same_offsets: true, ..one.clone() };
    let found = judged("gcp-2019", A_2019, &streams);
    assert!(found.recommendations.contains(&Recommendation::OwnOffsets));

    let cached = MeasuredRun { read: part(50_000.0, 4096.0, 0.02), cached: true, ..one };
    let found = judged("gcp-2019", A_2019, &cached);
    assert_eq!((found.verdict, found.bottleneck), (JudgmentVerdict::Above, Bottleneck::Limit));
    assert!(found.causes.contains(&Cause::PageCache));
    assert!(found.causes.iter().any(|finding| matches!(finding, Cause::Memory { .. })));
    assert_eq!(found.recommendations[0], Recommendation::DirectIo);
}

#[test]
fn cpu_and_other_traffic_are_causes() {
    let busy = MeasuredRun {
        read: part(9000.0, 4096.0, 3.0),
        in_flight: Some(32),
        busiest_percent: 99.0,
        cpus: 1.0,
        ..MeasuredRun::default()
    };
    let found = judged("gcp-2019", A_2019, &busy);
    assert_eq!(found.bottleneck, Bottleneck::Cpu);
    assert_eq!(found.recommendations[0], Recommendation::MoreJobs { jobs: 2 });
    let all = MeasuredRun { cpus: 7.9, ..busy };
    let found = judged("gcp-2019", A_2019, &all);
    assert!(
        matches!(found.recommendations[0], Recommendation::MoreCpus { vcpus: 14 }),
        "{found:?}"
    );

    // 2 vCPUs send 4 Gbit/s: 144 MB/s of writes, or 86 under full network use.
    let place = ("pd-ssd", 1_000_000_000_000, "n1-standard-2");
    let measured = MeasuredRun {
        write: part(110.0 * 1000.0 / 64.0, 65536.0, 9.3),
        in_flight: Some(16),
        ..MeasuredRun::default()
    };
    let found = judged("gcp-2019", place, &measured);
    assert_eq!(
        (found.verdict, found.bottleneck),
        (JudgmentVerdict::Below, Bottleneck::LatencyOrCap)
    );
    let traffic = found.hypotheses.iter().find_map(|finding| match finding {
        Cause::OtherTraffic { gbit_per_s } => Some(*gbit_per_s),
        _ => None,
    });
    assert!((traffic.expect("it would explain it") - 0.94).abs() < 0.05, "{traffic:?}");
}

#[test]
fn mixed_block_sizes_are_judged_separately() {
    // 2,000 reads of 4 KiB and 200 MB/s of writes of 1 MiB; pd-ssd has separate throughput for
    // each.
    let measured = MeasuredRun {
        read: part(2000.0, 4096.0, 4.0),
        write: part(240_000.0 / 1024.0, 1_048_576.0, 30.0),
        in_flight: Some(15),
        ..MeasuredRun::default()
    };
    let found = judged("gcp-2019", A_2019, &measured);
    assert_eq!(
        (found.verdict, found.bottleneck),
        (JudgmentVerdict::AsPredicted, Bottleneck::Limit)
    );
    assert!((found.utilization - 1.0).abs() < 1e-9, "{}", found.utilization);
}

#[test]
fn missing_latency_rule_is_reported() {
    let measured = MeasuredRun {
        read: part(4000.0, 4096.0, 2.0),
        in_flight: Some(8),
        ..MeasuredRun::default()
    };
    let found = judged("gcp-current", ("pd-balanced", 1 << 40, "n2-standard-8"), &measured);
    assert_eq!(
        (found.verdict, found.bottleneck),
        (JudgmentVerdict::Below, Bottleneck::LatencyOrCap)
    );
    assert!(found.causes.contains(&Cause::NoRule { latency_us: 2000.0 }));
    assert!(!found.not_known.is_empty());
}

#[test]
fn impossible_measurements_are_refused() {
    let catalog = Catalog::builtin("gcp-2019").expect("it is in the program");
    let (kind, size, machine) = A_2019;
    let configuration = DiskConfiguration::new(catalog, kind, size, machine).expect("it exists");
    let good = mirror_row(8.0, 96.8, 1.935);
    let with = |iops: f64, bytes_per_s: f64, latency_us: f64| MeasuredRun {
        write: MeasuredRates { iops, bytes_per_s, latency_us: Some(latency_us) },
        ..good.clone()
    };
    for bad in [
        with(0.0, 0.0, 0.0),
        with(-1.0, 4096.0, 1.0),
        with(f64::NAN, 4096.0, 1.0),
        with(1.0, f64::INFINITY, 1.0),
        with(1.0, 4096.0, -1.0),
        with(1.0, 1.0, 1.0),
        with(1.0, 1e12, 1.0),
    ] {
        let error = catalog.judge(&configuration, &bad, TOLERANCE).expect_err("it is impossible");
        assert!(matches!(error, PlanError::Input { .. }), "{error}");
    }
    for tolerance in [-0.1, 1.0, f64::NAN] {
        assert!(catalog.judge(&configuration, &good, tolerance).is_err(), "{tolerance}");
    }
}

proptest! {
    /// A measurement equal to the prediction is judged as predicted.
    #[test]
    fn exact_prediction_is_as_predicted(
        kind in 0usize..20, gib in 100u64..4000, block in 12u32..21, percent in 0u8..=100,
        depth in 1u32..300, high in any::<bool>(),
    ) {
        let catalog = Catalog::builtin("gcp-current").expect("it is in the program");
        let kinds: Vec<_> = catalog.types.keys().collect();
        let kind = kinds[kind % kinds.len()];
        let Ok(configuration) = DiskConfiguration::new(catalog, kind, gib << 30, "n2-standard-16") else {
            return Ok(());
        };
        let workload =
            Workload { depth: Some(depth), ..Workload::random(1 << block, percent) };
        let Ok(predicted) = catalog.predict(&configuration, &workload) else { return Ok(()) };
        let total = predicted.at_best.filter(|_| high).unwrap_or(predicted.total).iops;
        let latency_us = Some(f64::from(depth) / total * 1e6);
        let of = |share: f64| {
            let iops = total * share;
            MeasuredRates { iops, bytes_per_s: iops * workload.block_bytes as f64, latency_us: latency_us.filter(|_| iops > 0.0) }
        };
        let read = workload.read_part();
        let measured = MeasuredRun {
            read: of(read), write: of(1.0 - read), in_flight: Some(u64::from(depth)), ..MeasuredRun::default()
        };
        let found = catalog.judge(&configuration, &measured, TOLERANCE).expect("it was predicted");
        prop_assert_eq!(found.verdict, JudgmentVerdict::AsPredicted);
        prop_assert!((found.allowed.iops - predicted.allowed.iops).abs() < 1e-6 * predicted.allowed.iops);
        prop_assert!(found.hypotheses.is_empty());
        // Twice the prediction is above it, a third of it below.
        let times = |factor: f64| {
            let scale = |part: MeasuredRates| MeasuredRates {
                iops: part.iops * factor,
                bytes_per_s: part.bytes_per_s * factor,
                latency_us: part.latency_us.map(|us| us / factor),
            };
            let measured =
                MeasuredRun { read: scale(measured.read), write: scale(measured.write), ..measured.clone() };
            catalog.judge(&configuration, &measured, TOLERANCE).expect("it can be judged").verdict
        };
        prop_assert_eq!(times(1.2 * found.predicted_high.iops / total), JudgmentVerdict::Above);
        prop_assert_eq!(times(0.3 * predicted.total.iops / total), JudgmentVerdict::Below);
    }

    /// Any numbers give a judgment or an error with finite text.
    #[test]
    fn any_measurement_has_finite_text(
        read in (0f64..1e12, 0f64..1e12, proptest::option::of(0f64..1e12)),
        write in (0f64..1e12, 0f64..1e12, proptest::option::of(0f64..1e12)),
        in_flight in proptest::option::of(any::<u64>()), jobs in any::<u32>(),
        cpus in 0f64..1e6, flags in any::<[bool; 5]>(), reach in proptest::option::of(any::<u64>()),
    ) {
        let of = |(iops, block, latency_us): (f64, f64, Option<f64>)| MeasuredRates {
            iops, bytes_per_s: iops * block % 1e29, latency_us,
        };
        let measured = MeasuredRun {
            read: of(read), write: of(write), in_flight, jobs, cpus, busiest_percent: cpus,
            cached: flags[0], flushed: flags[1], same_offsets: flags[2],
            throttled_by: flags[3].then(|| "rate".to_owned()),
            one_at_a_time: flags[4].then(|| "psync".to_owned()),
            reach_bytes: reach, ..MeasuredRun::default()
        };
        for name in ["gcp-2019", "gcp-current"] {
            let catalog = Catalog::builtin(name).expect("it is in the program");
            let (kind, size, machine) = A_2019;
            let configuration = DiskConfiguration::new(catalog, kind, size, machine).expect("it exists");
            if let Ok(found) = catalog.judge(&configuration, &measured, TOLERANCE) {
                prop_assert!(found.ratio.is_finite() && found.utilization.is_finite());
                for line in found.causes.iter().chain(&found.hypotheses).map(ToString::to_string)
                    .chain(found.recommendations.iter().map(ToString::to_string))
                {
                    prop_assert!(!line.contains("NaN") && !line.contains("inf "), "{line}");
                }
            }
        }
    }
}
