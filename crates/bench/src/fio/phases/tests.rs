use proptest::prelude::*;

use super::*;
use crate::fio::output::parse;

fn of(text: &str) -> Vec<FioPhase> {
    phases(&parse(text).expect("it is fio's")).expect("it can be summed")
}

fn one(text: &str) -> FioPhase {
    let mut all = of(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

macro_rules! output {
    ($name:literal) => {
        include_str!(concat!("../../../tests/outputs/", $name))
    };
}

#[test]
fn jobs_of_one_group_are_one_phase() {
    let found = one(output!("mixed-jobs-json-plus.json"));
    assert_eq!(found.names, ["a", "b"]);
    assert_eq!((found.jobs, found.in_flight), (2, Some(12)));
    assert_eq!(found.read.ios + found.write.ios, 152);
    assert_eq!(found.read.bytes_per_s / found.read.iops, 4096.0);
    assert_eq!(found.write.bytes_per_s / found.write.iops, 16384.0);
    assert_eq!((found.pattern.as_deref(), found.random), (Some("randrw"), Some(true)));
    assert_eq!((found.cached, found.reach_bytes), (Some(false), Some(1 << 20)));
    assert!(found.read.latency_us.is_some() && !found.same_places);
}

#[test]
fn numjobs_with_and_without_group_reporting() {
    let grouped = one(output!("grouped.json"));
    assert_eq!((grouped.jobs, grouped.in_flight, grouped.read.ios), (4, Some(64), 400));
    let ungrouped = one(output!("ungrouped.json"));
    assert_eq!((ungrouped.jobs, ungrouped.in_flight, ungrouped.read.ios), (2, Some(32), 200));
    assert_eq!(ungrouped.names, ["un"]);
}

#[test]
fn only_direction_has_its_distribution() {
    let grouped = one(include_str!("../../../../../docs/examples/randwrite-8k.json"));
    let at = |percent: f64| grouped.percentiles.iter().find(|(other, _)| *other == percent);
    assert_eq!(grouped.percentiles.len(), 14);
    assert_eq!((at(50.0), at(99.0)), (Some(&(50.0, 1769.472)), Some(&(99.0, 4440.064))));
    assert!((grouped.iops_deviation.expect("sampled") - 0.03).abs() < 1e-4);
    // Distributions of several jobs, or of reads and writes, cannot be summed.
    for several in [output!("ungrouped.json"), output!("mixed-jobs-json-plus.json")] {
        let found = one(several);
        assert_eq!((found.percentiles.len(), found.iops_deviation), (0, None));
    }
    assert!(one(output!("no-latency.json")).percentiles.is_empty());
}

#[test]
fn wait_for_starts_another_phase() {
    let found = of(output!("phases.json"));
    let names: Vec<_> = found.iter().map(|phase| phase.names.join("+")).collect();
    assert_eq!(names, ["first", "second+third"]);
    assert_eq!((found[0].write.ios, found[1].read.ios), (100, 200));
    assert_eq!((found[0].in_flight, found[1].in_flight), (Some(4), Some(8)));
}

#[test]
fn concurrent_groups_are_one_phase() {
    let found = one(output!("concurrent.json"));
    assert_eq!(found.names, ["x", "y"]);
    assert_eq!(found.paced_by, Some("rate_iops"));
}

#[test]
fn job_start_times_separate_phases() {
    let job = |name: &str, group: u32, start: u64, ms: u64| {
        format!(
            r#"{{"jobname": "{name}", "groupid": {group}, "job_start": {start}, "elapsed": 99,
              "read": {{"io_bytes": 4096, "total_ios": 1, "iops": 1, "runtime": {ms}}}}}"#
        )
    };
    let jobs = [
        job("a", 0, 1000, 10_000),
        job("b", 1, 1010, 20_000),
        job("c", 2, 21_050, 5000),
        job("d", 3, 21_060, 5000),
    ];
    let found = of(&format!(r#"{{"fio version": "fio-3.38", "jobs": [{}]}}"#, jobs.join(",")));
    let names: Vec<_> = found.iter().map(|phase| phase.names.join("+")).collect();
    assert_eq!(names, ["a+b", "c+d"]);
    assert_eq!((found[0].seconds_least, found[0].seconds), (10.0, 20.0));
    assert_eq!((found[0].in_flight, found[0].random), (None, None), "nothing is known of the jobs");
}

#[test]
fn synchronous_engine_has_depth_one() {
    let found = one(output!("text-around.txt"));
    assert_eq!((found.in_flight, found.one_at_a_time.as_deref()), (Some(1), Some("psync")));
    assert_eq!((found.random, found.cached), (Some(false), Some(true)));
}

#[test]
fn unified_rw_reporting_is_split_by_mix() {
    let found = one(output!("unified.json"));
    assert_eq!((found.read.ios, found.write.ios), (50, 150));
    assert!((found.write.iops - 3.0 * found.read.iops).abs() < 1e-6);
    assert_eq!(found.cached, None, "nothing is known of the null engine");
}

#[test]
fn last_status_interval_and_missing_latency() {
    let found = one(output!("status-interval.txt"));
    assert!(found.write.ios > 100, "{}", found.write.ios);
    assert_eq!(one(output!("no-latency.json")).read.latency_us, None);
    assert_eq!(one(output!("paced.json")).paced_by, Some("rate_iops"));
}

#[test]
fn trim_only_phase_is_idle() {
    assert!(one(output!("trim.json")).is_idle());
    assert!(one(output!("failed.txt")).is_idle());
}

#[test]
fn phases_of_published_experiments() {
    let found = of(output!("experiment-a-none.json"));
    let iops: Vec<_> = found.iter().map(|phase| phase.write.iops.round()).collect();
    assert_eq!(iops, [3840.0, 12390.0, 9610.0]);
    assert!(found.iter().all(|phase| phase.in_flight == Some(24) && phase.cached == Some(false)));
    let found = one(output!("experiment-c-200gb.json"));
    assert_eq!((found.read.iops, found.in_flight), (309.0, Some(256)));
    assert_eq!(found.reach_bytes, Some(200 << 30));
}

#[test]
fn sequential_jobs_on_same_range() {
    let job = |more: &str| {
        format!(
            r#"{{"jobname": "a", "job options": {{"filename": "/dev/sdb", "rw": "read"{more}}},
              "read": {{"io_bytes": 4096, "total_ios": 1, "iops": 1, "runtime": 1}}}}"#
        )
    };
    for (jobs, same) in [
        (vec![job("")], false),
        (vec![job(""), job("")], true),
        (vec![job(""), job(r#", "offset": "1g""#)], false),
        (vec![job(r#", "numjobs": "4""#)], true),
        (vec![job(r#", "numjobs": "4", "offset_increment": "1g""#)], false),
    ] {
        let text = format!(r#"{{"fio version": "fio-3.33", "jobs": [{}]}}"#, jobs.join(","));
        assert_eq!(one(&text).same_places, same, "{text}");
    }
}

#[test]
fn unsummable_outputs_are_refused() {
    let old = r#"{"fio version": "fio-2.16", "jobs": [{}]}"#;
    let hosts =
        r#"{"fio version": "fio-3.33", "client_stats": [{"hostname": "a"}, {"hostname": "b"}]}"#;
    for (text, part) in [(old, "fio-2.16: fio 3 is needed"), (hosts, "2 machines")] {
        let error = phases(&parse(text).unwrap()).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
}

proptest! {
    /// Sums are finite and not negative for any numbers, and no job is lost.
    #[test]
    fn phase_sums_match_jobs(
        figures in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), 0f64..1e20, any::<u64>(), 0f64..1e20, -3i64..3, any::<u64>(), any::<u64>()),
            1..8,
        ),
    ) {
        let job = |(bytes, ios, iops, ms, mean, group, start, elapsed): &(u64, u64, f64, u64, f64, i64, u64, u64)| {
            format!(
                r#"{{"jobname": "a", "groupid": {group}, "job_start": {start}, "elapsed": {elapsed},
                  "job options": {{"iodepth": "{bytes}", "numjobs": "{ios}", "ramp_time": "{ms}"}},
                  "read": {{"io_bytes": {bytes}, "total_ios": {ios}, "iops": {iops:?}, "runtime": {ms},
                  "lat_ns": {{"mean": {mean:?}}}}}}}"#
            )
        };
        let jobs: Vec<_> = figures.iter().map(job).collect();
        let text = format!(r#"{{"fio version": "fio-3.33", "jobs": [{}]}}"#, jobs.join(","));
        let found = of(&text);
        prop_assert!(found.iter().map(|phase| phase.jobs).sum::<u32>() >= figures.len() as u32);
        for phase in found {
            let rate = phase.read;
            for figure in [rate.iops, rate.bytes_per_s, rate.latency_us.unwrap_or(0.0), phase.seconds] {
                prop_assert!(figure.is_finite() && figure >= 0.0, "{figure}");
            }
        }
    }
}
