//! One limiter on several cores. These are real threads, so only the bounds that the limiter
//! guarantees are checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::{NullDevice, SharedDevice};
use flagstone_limit::{Budget, Limit, Limiter, RateLimitLayer};
use flagstone_runtime::{CoreHandle, IoEngine, RuntimeConfig, buf, cores, run, task, time};

const CORES: usize = 3;

fn on_each_driver(test: impl AsyncFn(Vec<CoreHandle>)) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let config = RuntimeConfig { cores: CORES, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, async || test(cores()).await) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn cores_share_a_limit_exactly_and_fairly() {
    on_each_driver(async |cores| {
        const RATE: u64 = 20_000;
        const EACH: u64 = 1000;
        let limiter = Limiter::new(Limit { ios: Budget::total(RATE), ..Limit::default() }).unwrap();
        let null = Arc::new(NullDevice::new(1 << 30, 512).unwrap());
        let device: SharedDevice = Arc::new(RateLimitLayer::new(null, limiter.clone()));
        // Each core has a connection with 16 commands in flight until it has had its share.
        let ended = Arc::new(AtomicU64::new(0));
        let begun = time::now();
        for core in &cores {
            let (device, ended) = (device.clone(), ended.clone());
            core.spawn(move || async move {
                task::begin_flow();
                for _ in 0..16 {
                    let (device, ended) = (device.clone(), ended.clone());
                    task::spawn_detached(async move {
                        for _ in 0..EACH / 16 {
                            device.read(0, buf::alloc(512).await).await.unwrap();
                            ended.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            });
        }
        let all = EACH / 16 * 16 * CORES as u64;
        while ended.load(Ordering::SeqCst) < all {
            time::sleep(Duration::from_millis(1)).await;
        }
        // Never faster than the rate and the tolerance.
        let took = begun.elapsed();
        let most = (took + Duration::from_millis(5)).as_secs_f64() * RATE as f64 + 1.0;
        assert!(all as f64 <= most, "{all} in {took:?}");
        let status = limiter.status();
        assert_eq!((status.waiting, status.immediate + status.delayed), (0, all), "{status:?}");
    });
}

#[test]
fn dropped_commands_of_one_core_do_not_block_others() {
    on_each_driver(async |cores| {
        let limiter = Limiter::new(Limit { ios: Budget::total(2000), ..Limit::default() }).unwrap();
        let null = Arc::new(NullDevice::new(1 << 30, 512).unwrap());
        let device: SharedDevice = Arc::new(RateLimitLayer::new(null, limiter.clone()));
        let stop = Arc::new(AtomicBool::new(false));
        // Another core keeps starting and dropping commands, so the timer task is often on it.
        let running = Arc::new(AtomicU64::new(1));
        {
            let (device, stop, running) = (device.clone(), stop.clone(), running.clone());
            cores[1].spawn(move || async move {
                task::begin_flow();
                while !stop.load(Ordering::SeqCst) {
                    let reads: Vec<_> = (0..8)
                        .map(|_| task::spawn(device.read(0, buf::try_alloc(512).unwrap())))
                        .map(task::JoinHandle::abort_on_drop)
                        .collect();
                    time::sleep(Duration::from_micros(300)).await;
                    drop(reads);
                }
                running.store(0, Ordering::SeqCst);
            });
        }
        task::begin_flow();
        for _ in 0..200 {
            device.read(0, buf::alloc(512).await).await.unwrap();
            device.flush().await.unwrap();
        }
        limiter.set(Limit { ios: Budget::total(100_000), ..Limit::default() }).unwrap();
        for _ in 0..200 {
            device.read(0, buf::alloc(512).await).await.unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        while running.load(Ordering::SeqCst) != 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(limiter.status().waiting, 0);
    });
}
