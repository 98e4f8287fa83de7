//! Pool on emulated cloud disks, in simulated time: random writes by fullness, flushed writes, and
//! latency while the cleaner works, as ratios to the raw disk.
//!
//! `cargo run --release -p flagstone-pool --example emulated -- [GIB] [SECONDS]`: the size of the
//! emulated disks, with the limits of 500 GB (8), and the length of a measurement (20).

mod disk;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use disk::{Disk, Profile, SSD, STANDARD, filler};
use flagstone_blockdev::SharedDevice;
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, spawn, time};

const BLOCK: u64 = 4096;
const GIB: u64 = 1 << 30;

/// Writes of hosts.
#[derive(Clone, Copy)]
struct Load {
    depth: u64,
    blocks: u64,
    /// Each write is followed by a flush.
    flushed: bool,
}

const DEEP: Load = Load { depth: 32, blocks: 1, flushed: false };
const DEEPER: Load = Load { depth: 128, ..DEEP };

/// Result of a run.
#[derive(Clone, Debug, Default)]
struct Found {
    iops: f64,
    mean_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

/// Random writes until `enough` returns true.
async fn write(device: &SharedDevice, load: Load, enough: impl Fn(u64) -> bool) -> Found {
    let begun = time::now();
    let latencies = Rc::new(RefCell::new(Vec::<u64>::new()));
    let stop = Rc::new(Cell::new(false));
    let range = device.geometry().size_bytes / BLOCK / load.blocks;
    let data = Buf::copy_of(&filler().repeat(load.blocks as usize)).expect("memory");
    let lanes: Vec<_> = (0..load.depth)
        .map(|lane| {
            let (device, data) = (device.clone(), data.clone());
            let (latencies, stop) = (latencies.clone(), stop.clone());
            let mut rng = Rng::new(begun.as_nanos() ^ lane);
            spawn(async move {
                while !stop.get() {
                    let begun = time::now();
                    let offset = rng.below(range) * load.blocks * BLOCK;
                    device.write(offset, data.clone(), false).await.expect("a write");
                    if load.flushed {
                        device.flush().await.expect("a flush");
                    }
                    latencies.borrow_mut().push((time::now() - begun).as_nanos() as u64);
                }
            })
        })
        .collect();
    while !enough(latencies.borrow().len() as u64) {
        time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = (time::now() - begun).as_secs_f64();
    let mut all = latencies.borrow().clone();
    stop.set(true);
    for lane in lanes {
        lane.await.expect("a lane");
    }
    all.sort_unstable();
    let ms = |ns: u64| ns as f64 / 1e6;
    Found {
        iops: all.len() as f64 / seconds,
        mean_ms: ms(all.iter().sum::<u64>() / all.len().max(1) as u64),
        p99_ms: all.get(all.len() * 99 / 100).copied().map_or(0.0, ms),
        longest_ms: all.last().copied().map_or(0.0, ms),
    }
}

async fn for_span(device: &SharedDevice, load: Load, span: Duration) -> Found {
    let begun = time::now();
    write(device, load, |_| time::now() - begun >= span).await
}

async fn fill(device: &SharedDevice) {
    let size = device.geometry().size_bytes;
    let piece = 255 * BLOCK;
    let data = Buf::copy_of(&filler().repeat(255)).expect("memory");
    let mut offset = 0;
    while offset < size {
        let len = piece.min(size - offset);
        device.write(offset, data.slice(0..len as usize), false).await.expect("a write");
        offset += len;
    }
}

struct Bed {
    disk: Disk,
    pool: Pool,
    volume: SharedDevice,
}

/// A pool with a filled volume that uses `percent` of its capacity.
async fn pool(profile: Profile, size_bytes: u64, percent: u64) -> Bed {
    let disk = Disk::new(profile, size_bytes);
    let devices = vec![NamedDevice { name: "disk".to_owned(), device: disk.device.clone() }];
    let pool = Pool::create(devices, &CreateOptions::new("fast")).await.expect("a pool");
    let capacity = pool.status().capacity_bytes;
    let size = VolumeOptions {
        size_bytes: capacity / 100 * percent / BLOCK * BLOCK,
        ..VolumeOptions::default()
    };
    let volume: SharedDevice = pool.create_volume("db", &size).await.expect("a volume");
    fill(&volume).await;
    pool.checkpoint().await.expect("a checkpoint");
    Bed { disk, pool, volume }
}

impl Bed {
    /// Overwrites until the cleaner has been through the log.
    async fn settle(&self, size_bytes: u64) {
        let free = size_bytes - self.volume.geometry().size_bytes;
        let writes = 2 * free / BLOCK;
        write(&self.volume, DEEP, |done| done >= writes).await;
    }
}

fn simulate<T: 'static>(test: impl AsyncFnOnce() -> T) -> T {
    Simulation::new(1, SimConfig::default()).block_on(test())
}

fn raw(profile: Profile, load: Load, span: Duration) -> Found {
    simulate(async || {
        let disk = Disk::new(profile, GIB);
        disk.limit();
        for_span(&disk.device, load, span).await
    })
}

fn by_fullness(profile: Profile, size_bytes: u64, span: Duration) {
    println!("\n## {}: 4 KiB random writes\n", profile.name);
    println!(
        "| | depth | writes/s | of raw | mean ms | p99 ms | longest ms | copied per written block |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for load in [DEEP, DEEPER] {
        let plain = raw(profile, load, span);
        let row = |name: &str, found: &Found, copied: &str| {
            let Found { iops, mean_ms, p99_ms, longest_ms } = found;
            let ratio = iops / plain.iops;
            println!(
                "| {name} | {} | {iops:.0} | {ratio:.2} | {mean_ms:.1} | {p99_ms:.1} | {longest_ms:.1} | {copied} |",
                load.depth
            );
        };
        row("raw", &plain, "-");
        let empty = simulate(async || {
            let bed = pool(profile, size_bytes, 10).await;
            bed.disk.limit();
            for_span(&bed.volume, load, span.min(Duration::from_secs(5))).await
        });
        row("pool, without cleaning", &empty, "0");
        for percent in [50, 75, 90] {
            let (found, copied) = simulate(async || {
                let bed = pool(profile, size_bytes, percent).await;
                bed.settle(size_bytes).await;
                bed.disk.limit();
                // Skip the transition after the change of limits.
                for_span(&bed.volume, load, span / 2).await;
                let before = bed.pool.status().copied_blocks;
                let found = for_span(&bed.volume, load, span).await;
                let copied = bed.pool.status().copied_blocks - before;
                let writes = found.iops * span.as_secs_f64();
                (found, copied as f64 / writes)
            });
            row(&format!("pool, {percent} % full"), &found, &format!("{copied:.2}"));
        }
    }
}

fn flushed(profile: Profile, size_bytes: u64, span: Duration) {
    println!("\n## {}: 24 writes in flight, each flushed, no log device\n", profile.name);
    println!("| write | raw writes/s | pool writes/s | ratio | raw mean ms | pool mean ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for blocks in [16, 2, 1] {
        let load = Load { depth: 24, blocks, flushed: true };
        let plain = raw(profile, load, span);
        let pooled = simulate(async || {
            let bed = pool(profile, size_bytes, 50).await;
            bed.disk.limit();
            for_span(&bed.volume, load, span).await
        });
        println!(
            "| {} KiB | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |",
            blocks * 4,
            plain.iops,
            pooled.iops,
            pooled.iops / plain.iops,
            plain.mean_ms,
            pooled.mean_ms
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let size_bytes = args.next().unwrap_or(8) * GIB;
    let span = Duration::from_secs(args.next().unwrap_or(20));
    println!(
        "emulated disks of {} GiB with the limits of 500 GB, simulated time",
        size_bytes / GIB
    );
    for profile in [STANDARD, SSD] {
        by_fullness(profile, size_bytes, span);
    }
    flushed(SSD, size_bytes, span);
}
