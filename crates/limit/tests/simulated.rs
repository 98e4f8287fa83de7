//! Both layers in simulated time: whole seconds in milliseconds, with hosts as tasks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, NullDevice, SharedDevice};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, IoSize, Limit, Limiter, Rate, RateLimitLayer,
    ServiceTime,
};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{alive, buf, spawn, task};

const SECOND: Duration = Duration::from_secs(1);

fn null() -> SharedDevice {
    Arc::new(NullDevice::new(1 << 40, 512).unwrap())
}

fn ios(rate: u64) -> Limit {
    Limit { ios: Budget::total(rate), ..Limit::default() }
}

/// Completed commands: time, bytes, and latency.
type Log = Rc<RefCell<Vec<(u64, u64, Duration)>>>;

/// A connection that keeps `depth` commands in flight: `reads` percent are reads. Each of its tasks
/// belongs to its flow.
fn host(device: &SharedDevice, depth: usize, bytes: usize, reads: u64) -> Log {
    let log = Log::default();
    let (device, kept) = (device.clone(), log.clone());
    task::spawn_detached(async move {
        task::begin_flow();
        for lane in 0..depth as u64 {
            let (device, log) = (device.clone(), kept.clone());
            task::spawn_detached(async move {
                for turn in lane * 31.. {
                    let begun = time::now();
                    if turn * reads / 100 != (turn + 1) * reads / 100 {
                        device.read(0, buf::try_alloc(bytes).unwrap()).await.unwrap();
                    } else {
                        let data = buf::try_alloc(bytes).unwrap().freeze();
                        device.write(0, data, false).await.unwrap();
                    }
                    let now = time::now();
                    log.borrow_mut().push((now.as_nanos(), bytes as u64, now - begun));
                }
            });
        }
    });
    log
}

fn simulate(seed: u64, test: impl AsyncFnOnce()) {
    let sim = Simulation::new(seed, sim::SimConfig::default());
    sim.block_on(test());
}

/// Every sliding second of a log is within 1 % of `rate`, or within one I/O if that is more.
fn assert_exact(log: &Log, rate: u64, one: u64, amount: impl Fn(u64) -> u64) {
    let mut log = log.borrow_mut();
    log.sort_unstable();
    let slack = (rate / 100).max(one);
    let second = SECOND.as_nanos() as u64;
    let (mut sum, mut end, mut checked) = (0, 0, 0);
    for begin in 0..log.len() {
        while end < log.len() && log[end].0 < log[begin].0 + second {
            sum += amount(log[end].1);
            end += 1;
        }
        if end == log.len() {
            break;
        }
        let low = sum - amount(log[begin].1) + amount(log[end].1);
        assert!(sum <= rate + slack, "{sum} in a second, of {rate}");
        assert!(low >= rate - slack, "{low} in a second, of {rate}");
        sum -= amount(log[begin].1);
        checked += 1;
    }
    assert!(checked > 0, "the run is longer than a second");
}

fn limited(limit: Limit) -> (SharedDevice, Arc<Limiter>) {
    let limiter = Limiter::new(limit).unwrap();
    (Arc::new(RateLimitLayer::new(null(), limiter.clone())), limiter)
}

#[test]
fn iops_are_exact_from_a_hundred_to_a_million() {
    for (rate, depth, reads) in
        [(100, 1, 100), (100, 64, 50), (3000, 4, 0), (60_000, 32, 70), (1_000_000, 128, 30)]
    {
        simulate(rate, async || {
            let (device, _) = limited(ios(rate));
            let log = host(&device, depth, 512, reads);
            time::sleep(if rate < 1_000_000 { SECOND * 3 } else { SECOND * 6 / 5 }).await;
            assert_exact(&log, rate, 1, |_| 1);
        });
    }
}

#[test]
fn throughput_is_exact_from_1_mb_to_10_gb_per_second() {
    for (rate, depth, bytes) in [
        (1_000_000, 8, 4096),
        (240_000_000, 16, 65536),
        (240_000_000, 1, 1 << 20),
        (10_000_000_000, 16, 256 << 10),
    ] {
        simulate(rate, async || {
            let (device, _) = limited(Limit { bytes: Budget::total(rate), ..Limit::default() });
            let log = host(&device, depth, bytes, 50);
            time::sleep(SECOND * 3).await;
            assert_exact(&log, rate, bytes as u64, |bytes| bytes);
        });
    }
}

#[test]
fn flows_share_fairly_without_starving_reads() {
    simulate(5, async || {
        let (device, limiter) = limited(ios(8000));
        let logs: Vec<Log> = [(1, 100), (4, 0), (64, 100), (200, 0)]
            .map(|(depth, reads)| host(&device, depth, 4096, reads))
            .into();
        time::sleep(SECOND * 3).await;
        let had: Vec<f64> = logs.iter().map(|log| log.borrow().len() as f64).collect();
        let sum: f64 = had.iter().sum();
        let jain = sum * sum / (had.len() as f64 * had.iter().map(|one| one * one).sum::<f64>());
        assert!(jain > 0.999, "{had:?}");
        assert!((sum - 24_000.0).abs() < 300.0, "{had:?}");
        let status = limiter.status();
        assert_eq!(status.waiting_flows, 4, "{status:?}");
    });
}

#[test]
fn shared_and_own_limits_both_hold() {
    simulate(6, async || {
        let machine = Limiter::new(ios(10_000)).unwrap();
        let volume = |own: Limit| -> (SharedDevice, Arc<Limiter>) {
            let shared: SharedDevice = Arc::new(RateLimitLayer::new(null(), machine.clone()));
            let own = Limiter::new(own).unwrap();
            (Arc::new(RateLimitLayer::new(shared, own.clone())), own)
        };
        let (small, large) = (volume(ios(2000)), volume(ios(60_000)));
        let (one, other) = (host(&small.0, 32, 4096, 100), host(&large.0, 32, 4096, 100));
        time::sleep(SECOND * 3).await;
        assert_exact(&one, 2000, 1, |_| 1);
        assert_exact(&other, 8000, 1, |_| 1);
    });
}

#[test]
fn limit_changes_while_commands_wait() {
    simulate(7, async || {
        let (device, limiter) = limited(ios(1));
        let log = host(&device, 16, 4096, 50);
        time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(log.borrow().len(), 3);
        limiter.set(ios(20_000)).unwrap();
        log.borrow_mut().clear();
        time::sleep(SECOND * 2).await;
        assert_exact(&log, 20_000, 1, |_| 1);
        assert!(limiter.set(ios(0)).is_err());
        assert_eq!(limiter.limit(), ios(20_000));
        limiter.set(ios(300)).unwrap();
        log.borrow_mut().clear();
        time::sleep(SECOND * 3).await;
        assert_exact(&log, 300, 1, |_| 1);
    });
}

#[test]
fn dropped_commands_leave_no_trace() {
    simulate(8, async || {
        let (device, limiter) = limited(ios(10));
        let (tasks, _) = alive();
        let read = |device: &SharedDevice| device.read(0, buf::try_alloc(512).unwrap());
        read(&device).await.unwrap();
        for round in 0..50 {
            let mut all: Vec<_> = (0..20).map(|_| spawn(read(&device)).abort_on_drop()).collect();
            task::yield_now().await;
            assert_eq!(limiter.status().waiting, 20);
            all.remove(round % 20);
            drop(all);
            task::yield_now().await;
        }
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(limiter.status().waiting, 0);
        let begun = time::now();
        read(&device).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(100), "dropped commands are not charged");
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(alive().0, tasks, "the timer has ended");
        // Calls that are never polled block no others.
        let unpolled: Vec<_> = (0..3).map(|_| read(&device)).collect();
        let begun = time::now();
        read(&device).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(401), "{:?}", begun.elapsed());
        drop(unpolled);
    });
}

#[test]
fn idle_time_saves_only_burst_credit() {
    simulate(9, async || {
        let count = async |device: &SharedDevice, span: Duration| {
            let until: Instant = time::now() + span;
            let mut count = 0;
            while time::now() < until {
                device.read(0, buf::try_alloc(512).unwrap()).await.unwrap();
                count += 1;
            }
            count
        };
        let (plain, _) = limited(ios(1000));
        time::sleep(SECOND * 100).await;
        let had = count(&plain, SECOND).await;
        assert!((1000..=1010).contains(&had), "{had}");
        let rate = Rate::new(1000).bursting(3000, 1);
        let burst =
            Limit { ios: Budget { total: Some(rate), ..Budget::default() }, ..Limit::default() };
        let (bursting, _) = limited(burst);
        for _ in 0..2 {
            time::sleep(SECOND * 100).await;
            let had = [count(&bursting, SECOND).await, count(&bursting, SECOND).await];
            assert!((3000..=3030).contains(&had[0]) && (985..=1030).contains(&had[1]), "{had:?}");
        }
    });
}

#[test]
fn flush_counts_as_one_io() {
    simulate(10, async || {
        let limit = Limit {
            ios: Budget::total(100),
            bytes: Budget::total(1_000_000),
            write_size: IoSize::Units { bytes: 4096 },
            ..Limit::default()
        };
        let (device, _) = limited(limit);
        let begun = time::now();
        for _ in 0..25 {
            device.flush().await.unwrap();
            device.discard(0, 1 << 30).await.unwrap();
            device.write_zeroes(0, 1 << 30, Default::default()).await.unwrap();
        }
        let took = begun.elapsed();
        assert!((730..=760).contains(&took.as_millis()), "{took:?}");
        // A write of 64 KiB counts as 16, and takes 66 ms of the bytes.
        for _ in 0..4 {
            device.write(0, buf::try_alloc(65536).unwrap().freeze(), true).await.unwrap();
        }
        let took = begun.elapsed() - took;
        assert!((480..=520).contains(&took.as_millis()), "{took:?}");
    });
}

/// Mean and order statistics of the latencies of a log, in µs.
fn latencies(log: &Log) -> (f64, f64, f64) {
    let mut all: Vec<f64> = log.borrow().iter().map(|one| one.2.as_secs_f64() * 1e6).collect();
    all.sort_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    (mean, all[all.len() / 2], all[all.len() * 99 / 100])
}

#[test]
fn disk_model_obeys_latency_limit_and_littles_law() {
    let time = ServiceTime { median: Duration::from_micros(800), p99: Duration::from_millis(3) };
    let mean_us = time.mean().as_secs_f64() * 1e6;
    for depth in [1, 4, 8, 16, 64, 256] {
        simulate(depth as u64, async || {
            let config = DiskModelConfig { read: Some(time), write: Some(time), seed: 42 };
            let disk: SharedDevice = Arc::new(DiskModelLayer::new(null(), config).unwrap());
            let limiter = Limiter::new(ios(15_000)).unwrap();
            let device: SharedDevice = Arc::new(RateLimitLayer::new(disk, limiter));
            let log = host(&device, depth, 4096, 70);
            time::sleep(SECOND * 10).await;
            let had = log.borrow().len() as f64 / 10.0;
            let wanted = (depth as f64 / mean_us * 1e6).min(15_000.0);
            assert!((had / wanted - 1.0).abs() < 0.02, "depth {depth}: {had}, not {wanted}");
            let (mean, median, p99) = latencies(&log);
            // Little's law, also above the limit.
            assert!((mean * had / 1e6 / depth as f64 - 1.0).abs() < 0.02, "{depth}: {mean} µs");
            if depth <= 8 {
                assert!((median / 800.0 - 1.0).abs() < 0.03, "depth {depth}: median {median} µs");
                assert!((p99 / 3000.0 - 1.0).abs() < 0.08, "depth {depth}: 99th {p99} µs");
            }
        });
    }
}

#[test]
fn disk_model_replays_and_includes_child_latency() {
    let run = |seed, child_us| {
        let sim = Simulation::new(1, sim::SimConfig::default());
        sim.block_on(async {
            let us = Duration::from_micros;
            let time = ServiceTime { median: us(500), p99: us(900) };
            let config = DiskModelConfig { read: Some(time), write: None, seed };
            let slow = flagstone_blockdev::DelayConfig {
                read: flagstone_blockdev::DelayTime::fixed(us(child_us)),
                ..Default::default()
            };
            let child = Arc::new(flagstone_blockdev::DelayLayer::new(null(), slow).unwrap());
            let device = DiskModelLayer::new(child, config).unwrap();
            let mut took = Vec::new();
            for _ in 0..200 {
                let begun = time::now();
                device.read(0, buf::try_alloc(512).unwrap()).await.unwrap();
                took.push(begun.elapsed().as_micros() / 10);
            }
            let write = device.write(0, buf::try_alloc(512).unwrap().freeze(), false);
            assert!(write.try_now().is_ok(), "writes have no latency here");
            took
        })
    };
    let differ =
        |a: &[u128], b: &[u128]| a.iter().zip(b).filter(|(a, b)| a.abs_diff(**b) > 1).count();
    let first = run(1, 0);
    assert_eq!(differ(&first, &run(1, 0)), 0);
    assert_eq!(differ(&first, &run(1, 100)), 0, "a faster child is not seen");
    assert!(differ(&first, &run(2, 0)) > 150);
    assert!(run(1, 5000).iter().all(|took| *took >= 500), "a slower one is");
}

#[test]
fn invalid_latencies_are_refused() {
    let us = Duration::from_micros;
    for (median, p99) in
        [(us(0), us(10)), (us(10), us(5)), (us(10), us(1001)), (SECOND * 61, SECOND * 61)]
    {
        let config =
            DiskModelConfig { read: Some(ServiceTime { median, p99 }), ..Default::default() };
        assert!(DiskModelLayer::new(null(), config).is_err(), "{median:?} {p99:?}");
    }
}
