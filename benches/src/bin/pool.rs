//! Pool benchmark: a volume of a pool on a memory device against the device, and how a pool scales.
//!
//! `pool cpu [ROUNDS] [MILLISECONDS]`: 4 KiB random writes and reads, depth 32, in this process,
//! raw and pool in turns. `pool scale [SNAPSHOTS]`: snapshots, volumes, first writes of 1 TiB,
//! memory, and a restart.
#![allow(clippy::disallowed_methods, reason = "a program's edge: it starts the runtime")]

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::time;
use flagstone_runtime::{BufMut, RuntimeConfig, buf, run, spawn};

const BLOCK: usize = 4096;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const DEPTH: usize = 32;

/// CPU time of this process.
fn cpu() -> Duration {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// Calls per second, CPU µs of each, and latencies in µs, ascending.
struct Found {
    per_second: f64,
    cpu_us: f64,
    latencies_us: Vec<f64>,
}

impl Found {
    fn percentile(&self, percent: usize) -> f64 {
        let at = self.latencies_us.len() * percent / 100;
        self.latencies_us.get(at).copied().unwrap_or(0.0)
    }
}

/// A block with a different beginning at each offset.
fn block(offset: u64) -> BufMut {
    let mut data = buf::try_alloc(BLOCK).expect("memory");
    data[..8].copy_from_slice(&(offset | 1).to_le_bytes());
    data
}

/// Random calls until the span is over.
async fn calls(device: &SharedDevice, writes: bool, depth: usize, span: Duration) -> Found {
    let blocks = device.geometry().size_bytes / BLOCK as u64;
    let (begun, cpu_begun) = (time::now(), cpu());
    let lanes: Vec<_> = (0..depth as u64)
        .map(|lane| {
            let device = device.clone();
            spawn(async move {
                let mut rng = Rng::new(lane + 1);
                let mut latencies = Vec::with_capacity(1 << 16);
                // The clock is read once in a while, so that it costs little.
                'all: loop {
                    for turn in 0..16 {
                        let offset = rng.below(blocks) * BLOCK as u64;
                        let start = (turn == 0).then(time::now);
                        if writes {
                            device
                                .write(offset, block(offset).freeze(), false)
                                .await
                                .expect("write");
                        } else {
                            let memory = buf::try_alloc(BLOCK).expect("memory");
                            device.read(offset, memory).await.expect("read");
                        }
                        if let Some(start) = start {
                            let now = time::now();
                            latencies.push((now - start).as_secs_f64() * 1e6);
                            if now - begun >= span {
                                break 'all latencies;
                            }
                        }
                    }
                }
            })
        })
        .collect();
    let mut latencies_us = Vec::new();
    for lane in lanes {
        latencies_us.extend(lane.await.expect("a lane"));
    }
    let calls = latencies_us.len() as f64 * 16.0;
    let (seconds, used) = ((time::now() - begun).as_secs_f64(), cpu() - cpu_begun);
    latencies_us.sort_unstable_by(f64::total_cmp);
    Found { per_second: calls / seconds, cpu_us: used.as_secs_f64() * 1e6 / calls, latencies_us }
}

fn named(device: &Arc<MemoryDevice>) -> Vec<NamedDevice> {
    vec![NamedDevice { name: "memory".to_owned(), device: device.clone() }]
}

async fn pool_of(size_bytes: u64, volume_bytes: u64) -> (Arc<MemoryDevice>, Pool, SharedDevice) {
    let device = Arc::new(MemoryDevice::new(size_bytes, 4096).expect("a device"));
    let pool = Pool::create(named(&device), &CreateOptions::new("bench")).await.expect("a pool");
    let size = VolumeOptions { size_bytes: volume_bytes, ..VolumeOptions::default() };
    let volume: SharedDevice = pool.create_volume("db", &size).await.expect("a volume");
    (device, pool, volume)
}

async fn fill(device: &SharedDevice, bytes: u64) {
    for offset in (0..bytes).step_by(128 * BLOCK) {
        let mut data = buf::alloc(128 * BLOCK).await;
        data.fill(7);
        device.write(offset, data.freeze(), false).await.expect("write");
    }
}

fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    format!("{:.2}/{:.2}/{:.2}", at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

async fn cpu_mode(rounds: usize, span: Duration) {
    // Half full; the raw device is as large as the volume.
    let raw: SharedDevice = Arc::new(MemoryDevice::new(GIB, 4096).expect("a device"));
    fill(&raw, GIB).await;
    let (_device, pool, volume) = pool_of(2 * GIB, GIB).await;
    fill(&volume, GIB).await;
    println!("| 4 KiB, depth {DEPTH} | raw k/s | pool k/s | ratio | raw CPU µs | pool CPU µs |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for writes in [true, false] {
        let (mut rates, mut costs, mut ratios) = ([vec![], vec![]], [vec![], vec![]], vec![]);
        for _ in 0..rounds {
            for (at, device) in [&raw, &volume].into_iter().enumerate() {
                let found = calls(device, writes, DEPTH, span).await;
                rates[at].push(found.per_second / 1e3);
                costs[at].push(found.cpu_us);
            }
            ratios.push(rates[1][rates[1].len() - 1] / rates[0][rates[0].len() - 1]);
        }
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            if writes { "write" } else { "read" },
            spread(&rates[0]),
            spread(&rates[1]),
            spread(&ratios),
            spread(&costs[0]),
            spread(&costs[1])
        );
    }
    let status = pool.status();
    println!("\n{} checkpoints, {} blocks copied", status.checkpoints, status.copied_blocks);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

async fn scale_mode(snapshots: usize) {
    println!("| what | measured |");
    println!("| --- | --- |");
    snapshot_cost(snapshots).await;
    volumes_and_snapshots(1000, 10).await;
    let before = resident_kib();
    let (device, pool, volume) = pool_of(TIB, TIB).await;
    let grown = (resident_kib() - before) as f64 / 1024.0;
    println!("| memory of an open pool of 1 TiB, its table of changes included | {grown:.1} MiB |");
    let first = calls(&volume, true, 1, Duration::from_secs(1)).await;
    println!(
        "| first writes of a 1 TiB volume, depth 1 | {:.0}/s, p99 {:.0} µs |",
        first.per_second,
        first.percentile(99)
    );
    // As after a crash, with as much to replay as the log may have.
    calls(&volume, true, DEPTH, Duration::from_millis(800)).await;
    drop((volume, pool));
    time::sleep(Duration::from_millis(50)).await;
    let begun = time::now();
    let pool = Pool::open(named(&device)).await.expect("a pool");
    let ms = (time::now() - begun).as_secs_f64() * 1e3;
    println!("| restart of a pool of 1 TiB after a crash | {ms:.0} ms |");
    pool.close().await.expect("closed");
}

/// Snapshots: how long writes are blocked, and what they cost afterwards.
async fn snapshot_cost(count: usize) {
    let (_device, pool, volume) = pool_of(4 * GIB, GIB).await;
    fill(&volume, GIB).await;
    for number in 0..count {
        pool.create_snapshot(&["db"], &format!("s{number}")).await.expect("a snapshot");
    }
    let span = Duration::from_millis(500);
    let mut before = Vec::new();
    let mut after = Vec::new();
    let mut took = Vec::new();
    let mut longest = Vec::new();
    for round in 0..5 {
        before.push(calls(&volume, true, DEPTH, span).await.per_second);
        let writer = {
            let volume = volume.clone();
            spawn(async move { calls(&volume, true, 1, span).await })
        };
        time::sleep(span / 4).await;
        let begun = time::now();
        pool.create_snapshot(&["db"], &format!("r{round}")).await.expect("a snapshot");
        took.push((time::now() - begun).as_secs_f64() * 1e3);
        let found = writer.await.expect("a writer");
        longest.push(found.latencies_us.last().copied().unwrap_or(0.0) / 1e3);
        after.push(calls(&volume, true, DEPTH, span).await.per_second);
        pool.delete_snapshot(&format!("db@r{round}")).await.expect("deleted");
    }
    let ratios: Vec<f64> =
        before.iter().zip(&after).map(|(before, after)| after / before).collect();
    println!("| snapshot with {count} existing, ms | {} |", spread(&took));
    println!("| longest write around it (sampled), ms | {} |", spread(&longest));
    println!("| writes after it / before it | {} |", spread(&ratios));
}

async fn volumes_and_snapshots(volumes: usize, snapshots: usize) {
    let device = Arc::new(MemoryDevice::new(64 * GIB, 4096).expect("a device"));
    let pool = Pool::create(named(&device), &CreateOptions::new("many")).await.expect("a pool");
    let size = VolumeOptions { size_bytes: GIB, ..VolumeOptions::default() };
    let mut took = Vec::new();
    let mut names = Vec::new();
    for number in 0..volumes {
        let name = format!("v{number}");
        let begun = time::now();
        let volume = pool.create_volume(&name, &size).await.expect("a volume");
        took.push((time::now() - begun).as_secs_f64() * 1e3);
        volume.write(0, block(0).freeze(), false).await.expect("write");
        names.push(name);
    }
    println!("| creating one of {volumes} volumes, ms | {} |", spread(&took));
    let mut took = Vec::new();
    for number in 0..snapshots {
        for group in names.chunks(250) {
            let group: Vec<&str> = group.iter().map(String::as_str).collect();
            let begun = time::now();
            pool.create_snapshot(&group, &format!("s{number}")).await.expect("snapshots");
            took.push((time::now() - begun).as_secs_f64() * 1e3);
        }
    }
    let count = volumes * snapshots;
    println!("| snapshot of 250 volumes, up to {count} snapshots, ms | {} |", spread(&took));
    pool.checkpoint().await.expect("a checkpoint");
    let used = cpu();
    time::sleep(Duration::from_secs(2)).await;
    let used = (cpu() - used).as_secs_f64() * 1e3;
    println!("| CPU in 2 s, idle, with {volumes} volumes and {count} snapshots, ms | {used:.1} |");
    drop(pool);
    time::sleep(Duration::from_millis(50)).await;
    let begun = time::now();
    let pool = Pool::open(named(&device)).await.expect("a pool");
    let ms = (time::now() - begun).as_secs_f64() * 1e3;
    println!(
        "| restart with {volumes} volumes and {count} snapshots, after a crash | {ms:.0} ms |"
    );
    pool.close().await.expect("closed");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).and_then(|word| word.parse().ok()).unwrap_or(or);
    let config = RuntimeConfig { cores: 1, buffer_memory_bytes: 1 << 30, ..Default::default() };
    let done = run(&config, async || match args.first().map(String::as_str) {
        Some("cpu") => {
            cpu_mode(number(1, 5) as usize, Duration::from_millis(number(2, 500))).await;
        }
        Some("scale") => scale_mode(number(1, 1000) as usize).await,
        _ => eprintln!("pool cpu [ROUNDS] [MILLISECONDS] | pool scale [SNAPSHOTS]"),
    });
    done.unwrap_or_else(|error| panic!("{error}"));
}
