//! Jobs end to end, against devices that are correct, late, unresponsive or faulty.

use std::path::PathBuf;
use std::rc::Rc;

use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{RuntimeConfig, spawn};

use super::*;
use crate::job::{AccessPattern, BlockSize, Crash, Verify};
use crate::results::OpKind;
use crate::tests::device::{Manner, TestDevice};
use crate::verify::ViolationKind;

const BLOCK: u32 = 512;
const SIZE: u64 = 1 << 20;

fn geometry() -> Geometry {
    Geometry { volatile_cache: true, ..Geometry::new(SIZE, BLOCK) }
}

fn job(pattern: AccessPattern, ios: u64) -> LoadJob {
    LoadJob { pattern, ios: Some(ios), time: None, depth: 8, ..LoadJob::default() }
}

fn verified(pattern: AccessPattern, ios: u64) -> LoadJob {
    LoadJob { verify: Some(Verify::Written { state: None }), ..job(pattern, ios) }
}

fn with_state(pattern: AccessPattern, ios: u64, path: &std::path::Path) -> LoadJob {
    let state = Some(path.to_owned());
    LoadJob { verify: Some(Verify::Written { state }), ..job(pattern, ios) }
}

/// Runs on `cores` cores.
fn run_on(cores: usize, device: &Arc<TestDevice>, job: &LoadJob) -> Result<LoadResults, RunError> {
    let config = RuntimeConfig { cores, ..RuntimeConfig::default() };
    let device: SharedDevice = device.clone();
    let stop = Stop::new();
    flagstone_runtime::run(&config, || run(device, job, &stop, |_| {})).unwrap()
}

fn run_job(manner: Manner, job: &LoadJob) -> (LoadResults, Arc<TestDevice>) {
    let device = TestDevice::new(geometry(), manner);
    (run_on(1, &device, job).unwrap(), device)
}

/// Lets tasks run until the condition holds.
async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        flagstone_runtime::task::yield_now().await;
    }
}

/// Waits until this core has no tasks and no operations.
async fn nothing_is_left() {
    until(|| flagstone_runtime::alive() == (0, 0)).await;
}

#[test]
fn io_count_is_exact() {
    for manner in [Manner::Prompt, Manner::Late] {
        for pattern in [
            AccessPattern::RandRead,
            AccessPattern::Write,
            AccessPattern::RandRw,
            AccessPattern::RandTrim,
        ] {
            let (results, device) = run_job(manner, &job(pattern, 5000));
            let total = results.total.as_ref().unwrap();
            assert_eq!((total.ios, total.bytes), (5000, 5000 * 4096), "{manner:?} {pattern}");
            assert_eq!(device.calls.load(Ordering::Relaxed), 5000);
            assert_eq!(results.outcome, LoadOutcome::Complete);
            let latency = total.latency_us;
            assert!(latency.min <= latency.p50 && latency.p50 <= latency.p99_999);
            assert!(latency.p99_999 <= latency.max && latency.mean <= latency.max);
        }
    }
}

#[test]
fn queue_depth_is_kept_and_never_exceeded() {
    let (_, device) = run_job(Manner::Late, &job(AccessPattern::RandRead, 3000));
    assert_eq!(device.most_in_flight.load(Ordering::Relaxed), 8);
    assert_eq!(device.in_flight.load(Ordering::Relaxed), 0);
}

#[test]
fn immediate_device_yields_to_other_tasks() {
    let device: SharedDevice = TestDevice::new(geometry(), Manner::Prompt);
    let seen = flagstone_runtime::block_on(async {
        let turns = Rc::new(std::cell::Cell::new(0));
        let own = turns.clone();
        let other = spawn(async move {
            loop {
                own.set(own.get() + 1);
                flagstone_runtime::task::yield_now().await;
            }
        });
        let job = job(AccessPattern::RandRead, 100 * crate::limits::IOS_PER_POLL as u64);
        run(device, &job, &Stop::new(), |_| {}).await.unwrap();
        other.abort();
        turns.get()
    });
    assert!(seen.unwrap() >= 90);
}

#[test]
fn job_without_end_covers_range_once() {
    let job = LoadJob { ios: None, size_bytes: Some(65536), ..job(AccessPattern::Write, 1) };
    let (results, device) = run_job(Manner::Late, &job);
    assert_eq!(results.total.unwrap().bytes, 65536);
    let bytes = device.bytes.lock();
    assert!(bytes[..65536].chunks(16).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
    assert!(bytes[65536..].iter().all(|byte| *byte == 0));
}

#[test]
fn sizes_and_flushes_are_counted_separately() {
    let job = LoadJob {
        block_sizes: vec![
            BlockSize { bytes: 512, weight: 1 },
            BlockSize { bytes: 8192, weight: 1 },
        ],
        flush_every: Some(10),
        fua: true,
        ..job(AccessPattern::RandRw, 4000)
    };
    let (results, device) = run_job(Manner::Late, &job);
    let of = |kind| results.operations.iter().find(|op| op.operation == Some(kind)).unwrap();
    let (reads, writes) = (of(OpKind::Read), of(OpKind::Write));
    assert_eq!(reads.ios + writes.ios, 4000);
    assert_eq!(of(OpKind::Flush).ios, device.flushes.load(Ordering::Relaxed));
    assert!(of(OpKind::Flush).ios.abs_diff(writes.ios / 10) <= 1);
    assert!(device.fua_only.load(Ordering::Relaxed));
    assert!(reads.bytes > reads.ios * 512 && reads.bytes < reads.ios * 8192);
}

#[test]
fn cores_share_work_and_results_add_up() {
    let device = TestDevice::new(geometry(), Manner::Late);
    let job = LoadJob { cores: 2, ..verified(AccessPattern::RandRw, 3001) };
    let results = run_on(2, &device, &job).unwrap();
    assert_eq!(results.total.as_ref().unwrap().ios, 3001);
    assert_eq!(results.outcome, LoadOutcome::Complete, "{results}");
    let verify = results.verify.unwrap();
    assert!(verify.read_back && verify.blocks_checked >= SIZE / u64::from(BLOCK));
}

#[test]
fn time_ends_a_job_and_stop_ends_it_sooner() {
    let device = TestDevice::new(geometry(), Manner::Prompt);
    let timed = LoadJob {
        time: Some(Duration::from_millis(30)),
        warm_up: Duration::from_millis(10),
        ios: None,
        ..job(AccessPattern::RandRead, 1)
    };
    assert_eq!(run_on(1, &device, &timed).unwrap().outcome, LoadOutcome::Complete);

    let endless = LoadJob { time: Some(Duration::from_secs(86_400)), ..timed };
    let device: SharedDevice = device;
    let results = flagstone_runtime::block_on(async {
        let stop = Stop::new();
        let other = stop.clone();
        let stopper = spawn(async move {
            time::sleep(Duration::from_millis(20)).await;
            other.stop();
        });
        let results = run(device, &endless, &stop, |_| {}).await.unwrap();
        stopper.await.unwrap();
        results
    });
    assert_eq!(results.unwrap().outcome, LoadOutcome::Stopped);
}

#[test]
fn warm_up_is_not_counted() {
    let device = TestDevice::new(geometry(), Manner::Prompt);
    let job = LoadJob { warm_up: Duration::from_secs(86_400), ..job(AccessPattern::RandRead, 1) };
    let shared: SharedDevice = device.clone();
    let results = flagstone_runtime::block_on(async {
        let stop = Stop::new();
        let own = stop.clone();
        let running = spawn(async move { run(shared, &job, &own, |_| {}).await });
        until(|| device.calls.load(Ordering::Relaxed) > 1000).await;
        stop.stop();
        running.await.unwrap().unwrap()
    });
    let results = results.unwrap();
    assert_eq!((results.outcome, results.total), (LoadOutcome::Stopped, None));
}

/// In simulated time: 64 I/Os in flight of 100 ms are 640 per second, for any length of warm-up and
/// measurement.
#[test]
fn rate_of_deep_queue_is_device_rate() {
    for warm_up_ms in [0, 30, 1000] {
        let sim = Simulation::new(1, SimConfig::default());
        let results = sim.block_on(async move {
            let job = LoadJob {
                pattern: AccessPattern::RandRead,
                depth: 64,
                time: Some(Duration::from_millis(250)),
                warm_up: Duration::from_millis(warm_up_ms),
                ..LoadJob::default()
            };
            let device: SharedDevice = TestDevice::new(geometry(), Manner::Steady(100, 64));
            run(device, &job, &Stop::new(), |_| {}).await.unwrap()
        });
        let iops = results.total.expect("they were measured").iops;
        assert!((iops - 640.0).abs() < 6.4, "{warm_up_ms} ms of warm-up: {iops}");
    }
}

#[test]
fn rate_limit_holds_over_all_cores() {
    // 200 I/Os at 10,000 per second take at least 19.9 ms on any machine.
    let job = LoadJob { rate_iops: Some(10_000), ..job(AccessPattern::RandRead, 200) };
    let (results, _) = run_job(Manner::Prompt, &job);
    assert!(results.elapsed_s >= 0.0199, "{}", results.elapsed_s);
}

#[test]
fn errors_are_counted_and_end_job_at_limit() {
    let suffering = LoadJob { errors_max: u64::MAX, ..job(AccessPattern::RandRead, 500) };
    let (results, _) = run_job(Manner::Failing(50), &suffering);
    assert_eq!(results.outcome, LoadOutcome::Complete);
    assert_eq!(results.errors.len(), 1);
    assert_eq!((results.errors[0].error.as_str(), results.errors[0].count), ("read_fault", 10));
    assert_eq!(results.total.unwrap().ios, 490);

    let (results, device) = run_job(Manner::Failing(50), &job(AccessPattern::RandWrite, 500));
    assert_eq!(results.outcome, LoadOutcome::IoErrors);
    assert_eq!(device.calls.load(Ordering::Relaxed), 50);
}

#[test]
fn dropped_run_cancels_its_ios() {
    let device = TestDevice::new(geometry(), Manner::Silent);
    let shared: SharedDevice = device.clone();
    flagstone_runtime::block_on(async {
        let job = job(AccessPattern::RandRead, 100);
        let running = spawn(async move { run(shared, &job, &Stop::new(), |_| {}).await.map(drop) });
        until(|| device.calls.load(Ordering::Relaxed) == 8).await;
        running.abort();
        nothing_is_left().await;
    })
    .unwrap();
    assert_eq!(device.calls.load(Ordering::Relaxed), 8);
}

#[test]
fn correct_device_passes_verification() {
    for manner in [Manner::Prompt, Manner::Late] {
        for pattern in [
            AccessPattern::Write,
            AccessPattern::RandWrite,
            AccessPattern::Rw,
            AccessPattern::RandRw,
        ] {
            let job = LoadJob { flush_every: Some(7), ..verified(pattern, 3000) };
            let (results, _) = run_job(manner, &job);
            assert_eq!(results.outcome, LoadOutcome::Complete, "{pattern} {results}");
            let verify = results.verify.unwrap();
            assert!(verify.read_back && verify.violations == 0 && verify.blocks_written > 0);
        }
    }
}

#[test]
fn failed_writes_cause_no_violation() {
    let job = LoadJob { errors_max: u64::MAX, ..verified(AccessPattern::RandRw, 1000) };
    let (results, _) = run_job(Manner::Failing(20), &job);
    assert!(results.errors.iter().map(|error| error.count).sum::<u64>() >= 50);
    assert_eq!(results.verify.unwrap().violations, 0);
}

#[test]
fn faulty_devices_are_reported() {
    let wrongs = [
        (Manner::Losing(40), [ViolationKind::Lost, ViolationKind::Stale]),
        (Manner::Tearing(40), [ViolationKind::Torn, ViolationKind::Torn]),
        (Manner::Misplacing(40), [ViolationKind::Misplaced, ViolationKind::Stale]),
    ];
    for (manner, kinds) in wrongs {
        // Blocks of 4 KiB: a torn write is a torn block.
        let geometry = Geometry { volatile_cache: true, ..Geometry::new(SIZE, 4096) };
        let device = TestDevice::new(geometry, manner);
        let results = run_on(1, &device, &verified(AccessPattern::RandWrite, 1000)).unwrap();
        assert_eq!(results.outcome, LoadOutcome::VerifyFailed, "{manner:?}");
        let verify = results.verify.as_ref().unwrap();
        assert!(verify.first.iter().any(|first| kinds.contains(&first.kind)), "{results}");
        assert!(results.to_string().contains("expected"), "{results}");
    }
}

fn check_again(device: &Arc<TestDevice>, state: PathBuf, crash: Crash) -> LoadResults {
    let verify = Some(Verify::Recorded { state, crash });
    run_on(1, device, &LoadJob { verify, ..job(AccessPattern::RandRead, 1) }).unwrap()
}

#[test]
fn recorded_state_is_checked_by_later_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let device = TestDevice::new(geometry(), Manner::Late);
    let job =
        LoadJob { flush_every: Some(16), ..with_state(AccessPattern::RandWrite, 2000, &path) };
    assert_eq!(run_on(1, &device, &job).unwrap().outcome, LoadOutcome::Complete);
    device.behave(Manner::Prompt);
    for crash in [Crash::ClientOnly, Crash::Server] {
        let results = check_again(&device, path.clone(), crash);
        assert_eq!(results.outcome, LoadOutcome::Complete, "{results}");
        assert_eq!(results.verify.unwrap().blocks_checked, SIZE / u64::from(BLOCK));
    }
    let written = device.bytes.lock().chunks(512).position(|block| block[0] != 0);
    let lost = written.unwrap() * 512;
    device.bytes.lock()[lost..lost + 512].fill(0);
    let results = check_again(&device, path, Crash::Server);
    assert_eq!(results.outcome, LoadOutcome::VerifyFailed);
    let first = &results.verify.as_ref().unwrap().first[0];
    assert_eq!((first.kind, first.offset_bytes), (ViolationKind::Lost, lost as u64));
}

#[test]
fn killed_writer_leaves_valid_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let device = TestDevice::new(geometry(), Manner::Late);
    let shared: SharedDevice = device.clone();
    let endless = with_state(AccessPattern::RandWrite, u64::MAX, &path);
    flagstone_runtime::block_on(async {
        let running =
            spawn(async move { run(shared, &endless, &Stop::new(), |_| {}).await.map(drop) });
        until(|| std::fs::metadata(&path).is_ok_and(|meta| meta.len() > 4096)).await;
        running.abort();
        nothing_is_left().await;
    })
    .unwrap();
    device.behave(Manner::Prompt);
    for crash in [Crash::ClientOnly, Crash::Server] {
        let results = check_again(&device, path.clone(), crash);
        assert_eq!(results.outcome, LoadOutcome::Complete, "{results}");
    }
    // Writes recorded as completed before the crash must be present.
    device.bytes.lock().fill(0);
    let results = check_again(&device, path.clone(), Crash::ClientOnly);
    assert_eq!(results.outcome, LoadOutcome::VerifyFailed);
    assert_eq!(check_again(&device, path, Crash::Server).outcome, LoadOutcome::Complete);
}

#[test]
fn state_of_other_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let device = TestDevice::new(geometry(), Manner::Prompt);
    run_on(1, &device, &with_state(AccessPattern::Write, 10, &path)).unwrap();
    let verify = Some(Verify::Recorded { state: path, crash: Crash::Server });
    let job = LoadJob { verify, ..job(AccessPattern::RandRead, 1) };
    for other in [Geometry::new(SIZE, 4096), Geometry::new(SIZE / 2, BLOCK)] {
        let error = run_on(1, &TestDevice::new(other, Manner::Prompt), &job).unwrap_err();
        assert!(matches!(error, RunError::Journal(JournalError::OtherDevice(_))), "{error}");
    }
}

#[test]
fn results_json_is_stable() {
    let (results, _) = run_job(Manner::Late, &verified(AccessPattern::RandRw, 500));
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["outcome"], "complete");
    assert_eq!(json["job"]["pattern"], "randrw");
    assert!(json["total"]["latency_us"]["p99_999"].is_number());
    assert!(json["total"].get("operation").is_none());
    assert_eq!(json["operations"][0]["operation"], "read");
    let again: LoadResults = serde_json::from_value(json).unwrap();
    assert_eq!(again.job, results.job);
    let text = results.to_string();
    for word in ["IOPS", "MB/s", "MiB/s", "p99.999", "violations", "depth 8"] {
        assert!(text.contains(word), "{text}");
    }
}
