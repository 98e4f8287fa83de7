//! Compression of a pool's volume: throughput on emulated cloud disks, in simulated time, and the CPU
//! that it takes on a memory device, the cleaner included.
//!
//! `cargo run --release -p flagstone-pool --example compression -- [ROUNDS]`: rounds of the memory
//! device, of which the median counts (5).
#![allow(missing_docs)]

#[path = "../emulated/disk.rs"]
mod disk;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, Profile, SSD, STANDARD};
use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, NamedDevice, Pool, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, spawn, time};

const BLOCK: usize = 4096;
/// Length of the large calls.
const LARGE: usize = 32 << 10;
const SPAN: Duration = Duration::from_secs(10);
const VOLUME_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = 2 << 30;

/// Blocks of which this share, in eighths, is noise.
fn data(noise: usize, bytes: usize, rng: &mut Rng) -> Vec<u8> {
    let mut data = vec![0x33; bytes];
    for block in data.chunks_mut(BLOCK) {
        for word in block[..BLOCK / 8 * noise].chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
    data
}

async fn volume(pool: &Pool, name: &str, compression: Compression) -> SharedDevice {
    let setting = (COMPRESSION_PROPERTY.to_owned(), compression.name().to_owned());
    let properties = BTreeMap::from([setting]);
    let options =
        VolumeOptions { size_bytes: VOLUME_BYTES, properties, ..VolumeOptions::default() };
    pool.create_volume(name, &options).await.expect("a volume")
}

async fn fill(device: &SharedDevice, noise: usize) {
    let mut rng = Rng::new(5);
    for offset in (0..VOLUME_BYTES).step_by(1 << 19) {
        let data = Buf::copy_of(&data(noise, 1 << 19, &mut rng)).expect("memory");
        device.write(offset, data, false).await.expect("a write");
    }
}

/// One of the calls that are measured.
#[derive(Clone, Copy)]
enum Call {
    Write,
    Read,
}

/// Random calls by this many lanes for a span; returns bytes, and seconds.
async fn load(
    device: &SharedDevice,
    call: Call,
    (lanes, bytes): (u64, usize),
    noise: usize,
    span: Duration,
) -> (f64, f64) {
    let begun = time::now();
    let done = Rc::new(Cell::new(0_u64));
    let tasks: Vec<_> = (0..lanes)
        .map(|lane| {
            let (device, done) = (device.clone(), done.clone());
            let mut rng = Rng::new(lane + 1);
            let own: Vec<Buf> = (0..4)
                .map(|_| Buf::copy_of(&data(noise, bytes, &mut rng)).expect("memory"))
                .collect();
            spawn(async move {
                while time::now() - begun < span {
                    let offset = rng.below(VOLUME_BYTES / bytes as u64) * bytes as u64;
                    match call {
                        Call::Write => {
                            let data = own[rng.below(4) as usize].clone();
                            device.write(offset, data, false).await.expect("a write");
                        }
                        Call::Read => {
                            let memory = buf::alloc(bytes).await;
                            drop(device.read(offset, memory).await.expect("a read"));
                        }
                    }
                    done.set(done.get() + bytes as u64);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a lane");
    }
    (done.get() as f64, (time::now() - begun).as_secs_f64())
}

/// Throughput of a raw disk, or of a volume on it, in MB/s.
fn emulated(profile: Profile, compression: Option<Compression>, call: Call, bytes: usize) -> f64 {
    let test = async move || {
        let disk = Disk::new(profile, DISK_BYTES);
        let device = match compression {
            None => disk.device.clone(),
            Some(compression) => {
                let name = "disk".to_owned();
                let devices = vec![NamedDevice { name, device: disk.device.clone() }];
                let options = CreateOptions::new("fast");
                let pool = Pool::create(devices, &options).await.expect("a pool");
                volume(&pool, "db", compression).await
            }
        };
        fill(&device, 4).await;
        disk.limit();
        load(&device, call, (64, bytes), 4, SPAN).await
    };
    let (bytes, seconds) = Simulation::new(1, SimConfig::default()).block_on(test());
    bytes / seconds / 1e6
}

fn on_disks() {
    println!("| disk, 64 in flight | raw MB/s | off | lz4 | zstd | lz4 / off |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for profile in [STANDARD, SSD] {
        for (what, call, bytes) in [
            ("writes of 32 KiB", Call::Write, LARGE),
            ("reads of 32 KiB", Call::Read, LARGE),
            ("reads of 4 KiB", Call::Read, BLOCK),
        ] {
            let of = |compression| emulated(profile, compression, call, bytes);
            let (raw, off) = (of(None), of(Some(Compression::Off)));
            let (lz4, zstd) = (of(Some(Compression::Lz4)), of(Some(Compression::Zstd)));
            println!(
                "| {}, {what} | {raw:.1} | {off:.1} | {lz4:.1} | {zstd:.1} | {:.2} |",
                profile.name,
                lz4 / off
            );
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU time of this thread, in µs.
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e3
}

/// CPU time of a call, with and without compression: medians of alternating rounds.
async fn compared(rounds: usize, compression: Compression, call: Call, bytes: usize, noise: usize) {
    let mut volumes = Vec::new();
    for setting in [Compression::Off, compression] {
        let device = Arc::new(MemoryDevice::new(DISK_BYTES, BLOCK as u32).expect("a device"));
        let devices = vec![NamedDevice { name: "memory".to_owned(), device }];
        let pool = Pool::create(devices, &CreateOptions::new("fast")).await.expect("a pool");
        let volume = volume(&pool, "db", setting).await;
        fill(&volume, noise).await;
        pool.checkpoint().await.expect("a checkpoint");
        volumes.push(volume);
    }
    let (mut ratios, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        for (times, volume) in times.iter_mut().zip(&volumes) {
            let begun = cpu_us();
            let (done, _) = load(volume, call, (8, bytes), noise, Duration::from_millis(500)).await;
            times.push((cpu_us() - begun) / (done / bytes as f64));
        }
        let [off, on] = &times;
        ratios.push(off[off.len() - 1] / on[on.len() - 1]);
    }
    let [off, on] = times.map(median);
    let what = match call {
        Call::Write => "write",
        Call::Read => "read",
    };
    println!(
        "| {what} of {} KiB, {} | {} | {off:.1} | {on:.1} | {:.2} |",
        bytes >> 10,
        if noise == 8 { "noise" } else { "2:1" },
        compression.name(),
        median(ratios)
    );
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(5, |word| word.parse().expect("a number"));
    println!("data that compresses 2:1 on emulated disks with the limits of 500 GB\n");
    on_disks();
    println!("\nmemory device, 8 in flight on one core, medians of {rounds} alternating rounds\n");
    println!("| call | setting | CPU off: µs | CPU on: µs | off / on |");
    println!("| --- | --- | --- | --- | --- |");
    block_on(async move {
        for setting in [Compression::Lz4, Compression::Zstd] {
            for (call, bytes, noise) in [
                (Call::Write, LARGE, 8),
                (Call::Write, 128 << 10, 8),
                (Call::Write, BLOCK, 8),
                (Call::Write, LARGE, 4),
                (Call::Read, LARGE, 4),
                (Call::Read, BLOCK, 4),
            ] {
                compared(rounds, setting, call, bytes, noise).await;
            }
        }
    })
    .expect("it runs");
}
