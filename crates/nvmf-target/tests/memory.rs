//! Pooled memory of connections, and service at the memory ceiling.

mod support;

use std::sync::Arc;

use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::identify::Cns;
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{Sqe, Status};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{buf, time};

use support::client::range;
use support::{
    BlockingDevice, Client, Host, Options, Server, eventually, memory_in_use, on_each_driver,
    pattern,
};

const BLOCK: u64 = 4096;
const DEPTH: usize = 128;
const IDLE_BYTES: usize = 64 << 10;
const BUSY_BYTES: usize = 1 << 20;

fn writes(io: &Client, count: usize, bytes: usize) -> Vec<u8> {
    let mut pdus = Vec::new();
    for cid in 0..count {
        let sgl = SglDescriptor::in_capsule(bytes as u32);
        let start = (cid * bytes) as u64 / BLOCK;
        let command = Sqe::write(cid as u16, 1, range(start, BLOCK, bytes), false, sgl);
        pdus.extend(io.capsule(&command, &pattern(cid as u64, bytes)));
    }
    pdus
}

async fn answered(io: &mut Client, count: usize) {
    for _ in 0..count {
        assert_eq!(io.response().await.status(), Status::SUCCESS);
    }
}

/// Checks the memory of 16 connections that are idle after some traffic.
fn idle_connections_hold_little(gate: fn() -> Arc<BlockingDevice>) {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), gate());
        let host = Host::attach(&server, &Options::default()).await;
        let block = u64::from(server.gate_block_bytes());
        let before = memory_in_use();
        let mut queues = Vec::new();
        for qid in 2..18 {
            queues.push(host.queue(&server, qid).await);
        }
        for queue in &mut queues {
            queue.write(1, 0, block, &[1; 4096]).await.unwrap();
            queue.read(1, 0, block, 4096).await.unwrap();
        }
        let held = memory_in_use() - before;
        assert!(held <= 16 * IDLE_BYTES, "{held} for 16");
        drop((queues, host));
        server.is_sound().await;
    });
}

#[test]
fn idle_connection_memory() {
    idle_connections_hold_little(BlockingDevice::memory);
}

#[test]
fn idle_disk_connection_memory() {
    idle_connections_hold_little(BlockingDevice::disk);
}

#[test]
fn busy_connection_memory() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let mut host = Host::attach(&server, &Options::default()).await;
        let before = memory_in_use();
        for _ in 0..20 {
            server.gate.close();
            let pdus = writes(&host.io, DEPTH - 1, 4096);
            host.io.send(&pdus).await;
            eventually("all are under way", || server.gate.inside() == DEPTH - 1).await;
            let held = memory_in_use() - before;
            assert!(held <= DEPTH * 4096 + BUSY_BYTES, "{held}");
            server.gate.open();
            answered(&mut host.io, DEPTH - 1).await;
        }
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn commands_complete_without_memory() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        // More responses than one header block holds.
        let options = Options { entries: 600, flow_control: true, ..Options::default() };
        let mut host = Host::attach(&server, &options).await;
        server.gate.close();
        let mut pdus = writes(&host.io, 250, 4096);
        for cid in 250..500 {
            let command = Sqe::read(cid, 1, range(u64::from(cid), BLOCK, 4096), 4096);
            pdus.extend(host.io.capsule(&command, &[]));
        }
        host.io.send(&pdus).await;
        eventually("all are under way", || server.gate.inside() == 500).await;
        let limit = buf::memory_limit();
        buf::set_memory_limit(0);
        server.gate.open();
        eventually("all have ended", || server.gate.inside() == 0).await;
        time::sleep(std::time::Duration::from_millis(20)).await;
        buf::set_memory_limit(limit);
        let (mut data, mut ended) = (0, 0);
        while ended < 500 {
            match host.io.pdu().await {
                support::Pdu::Data { .. } => data += 1,
                support::Pdu::Response(completion) => {
                    assert_eq!(completion.status(), Status::SUCCESS);
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(data, 250);
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn connections_share_exhausted_memory() {
    on_each_driver(async || {
        let config = TargetConfig {
            slow_peer_timeout: std::time::Duration::from_secs(5),
            ..TargetConfig::default()
        };
        let server = Server::of(config, BlockingDevice::disk());
        let host = Host::attach(&server, &Options::default()).await;
        let (mut queues, mut places) = (Vec::new(), Vec::new());
        for qid in 2..8 {
            let mut queue = host.queue(&server, qid).await;
            // Traffic that grows the receive buffer.
            for _ in 0..20 {
                let pdus = writes(&queue, 120, 8192);
                queue.send(&pdus).await;
                answered(&mut queue, 120).await;
            }
            queue.set_memory_aside().await;
            queues.push(queue);
            places.push(buf::alloc(8 << 10).await);
        }
        let limit = buf::memory_limit();
        // Each requests a write of 4 MiB; all of them share 2 MiB.
        buf::set_memory_limit(memory_in_use() + (2 << 20));
        let bytes = 256 << 10;
        let mut set_aside = Vec::new();
        for ((number, queue), place) in queues.iter_mut().enumerate().zip(places) {
            let mut pdus = Vec::new();
            for cid in 0..16 {
                let sgl = SglDescriptor::transport(bytes as u32);
                let start = (number * 16 + cid) as u64 * 64;
                let command = Sqe::write(cid as u16, 1, range(start, BLOCK, bytes), false, sgl);
                pdus.extend(queue.capsule(&command, &[]));
            }
            set_aside.push(queue.send_through(place, &pdus).await);
        }
        let mut tasks = Vec::new();
        for (mut queue, mut place) in queues.into_iter().zip(set_aside) {
            tasks.push(flagstone_runtime::spawn(async move {
                let mut ended = 0;
                while ended < 16 {
                    match queue.pdu().await {
                        support::Pdu::R2t(r2t) => {
                            let data = pattern(r2t.cid.get().into(), bytes);
                            let pdus = queue.data_for(&r2t, &data);
                            place = queue.send_through(place, &pdus).await;
                        }
                        support::Pdu::Response(completion) => {
                            assert_eq!(completion.status(), Status::SUCCESS);
                            ended += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        buf::set_memory_limit(limit);
        drop(host);
        server.is_sound().await;
    });
}

/// A host takes all memory, has the data of some writes requested, and sends that data behind reads
/// that exhaust the connection's budget and writes with in-capsule data.
#[test]
fn requested_data_behind_other_commands() {
    const BYTES: usize = 256 << 10;
    const TRANSFERS: u16 = 16;
    const READS: u16 = 64;
    const WRITES: u16 = 24;
    on_each_driver(async || {
        let config = TargetConfig {
            slow_peer_timeout: std::time::Duration::from_secs(5),
            ..TargetConfig::default()
        };
        let server = Server::of(config, BlockingDevice::disk());
        let host = Host::attach(&server, &Options::default()).await;
        let mut queue = host.queue(&server, 2).await;
        queue.set_memory_aside().await;
        let mut place = buf::alloc(8 << 10).await;
        let limit = buf::memory_limit();
        buf::set_memory_limit(memory_in_use() + (2 << 20));
        let blocks = |cid: u16| range(u64::from(cid) * 64, BLOCK, BYTES);
        let mut pdus = Vec::new();
        for cid in 0..TRANSFERS {
            let sgl = SglDescriptor::transport(BYTES as u32);
            pdus.extend(queue.capsule(&Sqe::write(cid, 1, blocks(cid), false, sgl), &[]));
        }
        place = queue.send_through(place, &pdus).await;
        let support::Pdu::R2t(first) = queue.pdu().await else { panic!("no R2T") };
        let mut pdus = Vec::new();
        for cid in 100..100 + READS {
            let command = Sqe::read(cid, 1, blocks(cid), BYTES as u32);
            pdus.extend(queue.capsule(&command, &[]));
        }
        for cid in 200..200 + WRITES {
            let sgl = SglDescriptor::in_capsule(32 << 10);
            let command = Sqe::write(cid, 1, range(0, BLOCK, 32 << 10), false, sgl);
            pdus.extend(queue.capsule(&command, &pattern(1, 32 << 10)));
        }
        pdus.extend(queue.data_for(&first, &pattern(0, BYTES)));
        place = queue.send_through(place, &pdus).await;
        let mut ended = 0;
        while ended < TRANSFERS + READS + WRITES {
            match queue.pdu().await {
                support::Pdu::R2t(r2t) => {
                    let pdus = queue.data_for(&r2t, &pattern(0, BYTES));
                    place = queue.send_through(place, &pdus).await;
                }
                // The data PDU reports success of a read.
                support::Pdu::Data { .. } => ended += 1,
                support::Pdu::Response(completion) => {
                    assert_eq!(completion.status(), Status::SUCCESS);
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        buf::set_memory_limit(limit);
        drop((queue, host, place));
        server.is_sound().await;
    });
}

/// Compare holds its data and must not wait for the same amount again.
#[test]
fn compare_and_verify_without_memory() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let mut host = Host::attach(&server, &Options::default()).await;
        let data = pattern(3, 64 << 10);
        host.io.write(1, 0, BLOCK, &data).await.unwrap();
        host.io.set_memory_aside().await;
        let mut place = buf::alloc(8 << 10).await;
        server.gate.close();
        let limit = buf::memory_limit();
        let mut compare =
            Sqe::write(1, 1, range(0, BLOCK, 64 << 10), false, SglDescriptor::in_capsule(64 << 10));
        compare.opcode = flagstone_nvme::IoOpcode::COMPARE.0;
        let mut verify = Sqe::read(2, 1, range(0, BLOCK, 64 << 10), 0);
        verify.opcode = flagstone_nvme::IoOpcode::VERIFY.0;
        let mut pdus = host.io.capsule(&compare, &data);
        pdus.extend(host.io.capsule(&verify, &[]));
        place = host.io.send_through(place, &pdus).await;
        eventually("both have begun", || server.gate.inside() == 2).await;
        buf::set_memory_limit(0);
        server.gate.open();
        for _ in 0..2 {
            assert_eq!(host.io.response().await.status(), Status::SUCCESS);
        }
        // Starts without memory.
        place = host.io.send_through(place, &host.io.capsule(&verify, &[])).await;
        assert_eq!(host.io.response().await.status(), Status::SUCCESS);
        buf::set_memory_limit(limit);
        drop((host, place));
        server.is_sound().await;
    });
}

#[test]
fn command_larger_than_ceiling_is_refused() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let host = Host::attach(&server, &Options::default()).await;
        let mut queue = host.queue(&server, 2).await;
        queue.set_memory_aside().await;
        let mut place = buf::alloc(8 << 10).await;
        let limit = buf::memory_limit();
        buf::set_memory_limit(64 << 10);
        let blocks = range(0, BLOCK, 1 << 20);
        let mut pdus = queue.capsule(&Sqe::read(1, 1, blocks, 1 << 20), &[]);
        let sgl = SglDescriptor::transport(1 << 20);
        pdus.extend(queue.capsule(&Sqe::write(2, 1, blocks, false, sgl), &[]));
        let sgl = SglDescriptor::in_capsule(60 << 10);
        let command = Sqe::write(3, 1, range(0, BLOCK, 60 << 10), false, sgl);
        pdus.extend(queue.capsule(&command, &pattern(1, 60 << 10)));
        place = queue.send_through(place, &pdus).await;
        for _ in 0..3 {
            assert_eq!(queue.response().await.status(), Status::INTERNAL_ERROR.dnr());
        }
        buf::set_memory_limit(limit);
        drop((queue, host, place));
        server.is_sound().await;
    });
}

/// A host must be able to connect when all memory is in use; otherwise a full pool would be an
/// outage.
#[test]
fn host_connects_without_memory() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let mut host = Host::attach(&server, &Options::default()).await;
        host.admin.set_memory_aside().await;
        let mut place = buf::alloc(8 << 10).await;
        let limit = buf::memory_limit();
        buf::set_memory_limit(0);
        assert!(buf::try_alloc(1 << 20).is_none(), "nor is any idle");
        for _ in 0..40 {
            let identify = Identify::new(Cns::CONTROLLER, 0).command(5);
            place = host.admin.send_through(place, &host.admin.capsule(&identify, &[])).await;
            let support::Pdu::Data { .. } = host.admin.pdu().await else { panic!("no data") };
        }
        buf::set_memory_limit(limit);
        drop((host, place));
        server.is_sound().await;
    });
}

/// Requested data cannot arrive behind more commands than the queue has entries. A host that sent
/// more is disconnected instead of holding memory.
#[test]
fn overfilled_queue_before_data_disconnects() {
    on_each_driver(async || {
        let config = TargetConfig {
            slow_peer_timeout: std::time::Duration::from_secs(1),
            ..TargetConfig::default()
        };
        let server = Server::of(config, BlockingDevice::disk());
        let options = Options { entries: 32, ..Options::default() };
        let mut greedy = Host::attach(&server, &options).await;
        let mut pdus = Vec::new();
        for cid in 0..40 {
            let sgl = SglDescriptor::transport(256 << 10);
            let blocks = range(0, BLOCK, 256 << 10);
            pdus.extend(greedy.io.capsule(&Sqe::write(cid, 1, blocks, false, sgl), &[]));
        }
        greedy.io.send(&pdus).await;
        while let support::Pdu::R2t(_) = greedy.io.pdu().await {}
        drop(greedy);
        server.is_sound().await;
    });
}
