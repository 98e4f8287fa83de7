//! Hosts that ask and do not read, or announce data and do not send it, beside a good host, in
//! simulated time.
//!
//! Left out: the kernel's socket buffers beyond a few KiB, and the speed of the disk.

mod support;

use std::time::Duration;

use flagstone_nvme::Sqe;
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::sim::{SimConfig, SimLatency, Simulation};
use flagstone_runtime::{buf, spawn, time};
use parking_lot::Mutex;

use support::client::range;
use support::{BlockingDevice, Client, Host, Options, Server};

/// The memory limit is process-wide.
static ALONE: Mutex<()> = Mutex::new(());

const BLOCK: u64 = 4096;
const LEN: usize = 64 << 10;
const MIB: usize = 1 << 20;
const ROUNDS: u64 = 300;
/// Hosts with an admin queue and an I/O queue each.
const HOSTS_MAX: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Stalled {
    /// 31 reads of 1 MiB, unread.
    Reader,
    /// Eight writes of 1 MiB, whose requested data is never sent.
    Writer,
    /// A part of a write with 64 KiB in its capsule.
    CapsuleWriter,
}

/// Makes a host stall on its I/O queue.
async fn stall(io: &mut Client, kind: Stalled) {
    let bytes = match kind {
        Stalled::Reader => (0..31)
            .flat_map(|cid| io.capsule(&Sqe::read(cid, 1, range(0, BLOCK, MIB), MIB as u32), &[]))
            .collect(),
        Stalled::Writer => (0..8)
            .flat_map(|cid| {
                let sgl = SglDescriptor::transport(MIB as u32);
                io.capsule(&Sqe::write(cid, 1, range(0, BLOCK, MIB), false, sgl), &[])
            })
            .collect::<Vec<u8>>(),
        Stalled::CapsuleWriter => {
            let sgl = SglDescriptor::in_capsule(LEN as u32);
            let command = Sqe::write(1, 1, range(0, BLOCK, LEN), false, sgl);
            io.capsule(&command, &[7; LEN])[..20 << 10].to_vec()
        }
    };
    // Hosts of this test must not need the memory that they exhaust.
    let mut place = buf::alloc_small(4096);
    for part in bytes.chunks(4096) {
        place = io.send_through(place, part).await;
    }
}

#[derive(Clone, Copy, Debug)]
struct Latency {
    p99: Duration,
    longest: Duration,
}

/// Latency of a good host that reads and writes 64 KiB, and writes 128 KiB with R2Ts.
async fn measure(mut queues: Vec<Client>) -> (Latency, Vec<Client>) {
    let tasks: Vec<_> = queues
        .drain(..)
        .enumerate()
        .map(|(number, mut io)| {
            spawn(async move {
                let mut all = Vec::new();
                for round in 0..ROUNDS {
                    let start = (number as u64 * ROUNDS + round) % 200 * 32;
                    let begun = time::now();
                    match round % 3 {
                        0 => drop(io.read(1, start, BLOCK, LEN).await.unwrap()),
                        1 => io.write(1, start, BLOCK, &[1; LEN]).await.unwrap(),
                        _ => io.write_r2t(1, start, BLOCK, &[2; 2 * LEN]).await.unwrap(),
                    }
                    all.push(begun.elapsed());
                }
                (all, io)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        let (more, io) = task.await.unwrap();
        all.extend(more);
        queues.push(io);
    }
    all.sort_unstable();
    (Latency { p99: all[all.len() * 99 / 100], longest: all[all.len() - 1] }, queues)
}

async fn good_host(server: &Server) -> (Host, Vec<Client>) {
    let host = Host::attach(server, &Options::default()).await;
    let mut queues = Vec::new();
    for qid in 2..6 {
        let mut queue = host.queue(server, qid).await;
        queue.set_memory_aside().await;
        queues.push(queue);
    }
    (host, queues)
}

async fn stalled_hosts(server: &Server, count: usize, kind: Stalled) -> Vec<Host> {
    let mut hosts = Vec::new();
    for _ in 0..count {
        hosts.push(Host::attach(server, &Options::default()).await);
    }
    for host in &mut hosts {
        stall(&mut host.io, kind).await;
    }
    time::sleep(Duration::from_millis(500)).await;
    hosts
}

fn world(buffer_memory: usize) -> (Simulation, TargetConfig) {
    buf::set_memory_limit(buffer_memory);
    let mut config = SimConfig::default();
    config.loopback.latency = SimLatency::between_us(30, 60);
    config.loopback.send_buffer_bytes = 32 << 10;
    config.loopback.receive_buffer_bytes = 32 << 10;
    (Simulation::new(1, config), TargetConfig::default())
}

fn with_each_count(kind: Stalled) {
    let _alone = ALONE.lock();
    for buffer_memory in [64 << 20, 256 << 20] {
        for count in [4, 32, HOSTS_MAX] {
            let (sim, config) = world(buffer_memory);
            sim.block_on(async {
                let server = Server::of(config, BlockingDevice::disk());
                let (host, queues) = good_host(&server).await;
                let (quiet, queues) = measure(queues).await;
                let stalled = stalled_hosts(&server, count, kind).await;
                let (beside, _queues) = measure(queues).await;
                let fits = beside.p99 <= quiet.p99 * 3 && beside.longest <= quiet.longest * 3;
                assert!(
                    fits,
                    "{kind:?} × {count}, {buffer_memory}: {beside:?} instead of {quiet:?}"
                );
                drop((stalled, host));
            });
        }
    }
}

#[test]
fn hosts_that_do_not_read_slow_nobody() {
    with_each_count(Stalled::Reader);
}

#[test]
fn hosts_that_do_not_send_slow_nobody() {
    with_each_count(Stalled::Writer);
}

#[test]
fn hosts_with_unfinished_capsules_slow_nobody() {
    with_each_count(Stalled::CapsuleWriter);
}

#[test]
fn late_host_is_served_beside_stalled_ones() {
    let _alone = ALONE.lock();
    for kind in [Stalled::Reader, Stalled::Writer, Stalled::CapsuleWriter] {
        let (sim, config) = world(64 << 20);
        sim.block_on(async {
            let server = Server::of(config, BlockingDevice::disk());
            let stalled = stalled_hosts(&server, HOSTS_MAX, kind).await;
            let begun = time::now();
            let (host, queues) = good_host(&server).await;
            drop(measure(queues).await);
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(10), "{kind:?}: {took:?}");
            drop((stalled, host));
        });
    }
}
