//! Stalled hosts, slow or failing devices, and reconnects: started work ends in order, and nothing
//! leaks.

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{FaultConfig, FaultLayer, MemoryDevice, SharedDevice};
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectData};
use flagstone_nvme::command::io::CopyRange;
use flagstone_nvme::pdu::{Digests, InitializeRequest};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{Sqe, Status, Wire};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::net::Stream;
use flagstone_runtime::{io_engine_name, spawn, time};

use support::client::range;
use support::{
    Client, Dice, Host, Options, Pdu, Server, eventually, in_simulation, memory_in_use,
    on_each_driver, on_each_real_driver, pattern, subsystem,
};

const BLOCK: u64 = 512;
const BIG: usize = 128 << 10;

fn short_timeouts() -> TargetConfig {
    TargetConfig { slow_peer_timeout: Duration::from_secs(1), ..TargetConfig::default() }
}

fn read(cid: u16, bytes: usize) -> Sqe {
    Sqe::read(cid, 1, range(0, BLOCK, bytes), bytes as u32)
}

fn write(cid: u16, block: u64, data: &[u8]) -> Sqe {
    let sgl = SglDescriptor::in_capsule(data.len() as u32);
    Sqe::write(cid, 1, range(block, BLOCK, data.len()), false, sgl)
}

fn big_write(cid: u16, start: u64) -> Sqe {
    let sgl = SglDescriptor::transport(BIG as u32);
    Sqe::write(cid, 1, range(start, BLOCK, BIG), false, sgl)
}

// Stalled hosts.

#[test]
fn host_never_reads_responses() {
    on_each_driver(async || {
        let server = Server::with(short_timeouts());
        let budget = server.target.config().connection_payload_bytes;
        let mut other = Host::attach(&server, &Options::default()).await;
        let before = memory_in_use();
        let mut host = Host::attach(&server, &Options::default()).await;
        let stuck = spawn(async move {
            // Until the target gives up on this host.
            for cid in 0..4000 {
                let pdu = host.io.capsule(&read(cid, BIG), &[]);
                host.io.send(&pdu).await;
            }
            host
        });
        let mut most = 0;
        while !server.target.subsystem_status(&subsystem()).unwrap().controllers[1]
            .queues
            .ends_with(&[0])
        {
            most = most.max(memory_in_use());
            other.io.write(1, 0, BLOCK, &pattern(1, 4096)).await.unwrap();
            time::sleep(Duration::from_millis(5)).await;
        }
        // Payload in flight, payload being received, and one command beyond each limit.
        assert!(most - before <= 2 * (budget + BIG) + (1 << 20), "{}", most - before);
        drop((stuck.await.unwrap(), other));
        server.is_sound().await;
    });
}

#[test]
fn half_closed_host_never_reads() {
    on_each_driver(async || {
        // Large enough that unread data is being sent rather than waiting for admission.
        let config = TargetConfig { connection_payload_bytes: 64 << 20, ..short_timeouts() };
        let server = Server::with(config);
        server.keeps_last.set(true);
        let mut host = Host::attach(&server, &Options::default()).await;
        let mut pdus = Vec::new();
        for cid in 0..120 {
            pdus.extend(host.io.capsule(&read(cid, BIG), &[]));
        }
        host.io.send(&pdus).await;
        eventually("nothing more can be sent", || memory_in_use() > 512 << 10).await;
        // The target sees a half-closed connection.
        server.last.borrow_mut().take().unwrap().shutdown_receiving();
        server.keeps_last.set(false);
        let queues =
            || server.target.subsystem_status(&subsystem()).unwrap().controllers[0].queues.len();
        eventually("the queue is given up", || queues() == 1).await;
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn host_never_sends_requested_data() {
    on_each_driver(async || {
        let server = Server::with(short_timeouts());
        let mut other = Host::attach(&server, &Options::default()).await;
        for sent in [0, 100, 4096] {
            let mut host = Host::attach(&server, &Options::default()).await;
            host.io.submit(big_write(5, 0)).await;
            let r2t = host.io.r2t().await;
            if sent > 0 {
                let tag = r2t.transfer_tag.get();
                let pdu = host.io.h2c_data(5, tag, 0, &vec![0; sent], false);
                host.io.send(&pdu[..pdu.len() - sent % 512]).await;
            }
            other.io.write(1, 9, BLOCK, &[1; 512]).await.unwrap();
            host.io.closed().await;
            other.io.write(1, 9, BLOCK, &[2; 512]).await.unwrap();
        }
        drop(other);
        server.is_sound().await;
    });
}

#[test]
fn host_stops_within_pdu() {
    on_each_driver(async || {
        let server = Server::with(short_timeouts());
        let mut clients = Vec::new();
        for cut in [1, 7, 8, 9, 127] {
            let mut client = Client::open(&server).await;
            let request = InitializeRequest::new(Digests::default(), 0, 1);
            client.send(&request.bytes()[..cut]).await;
            clients.push(client);
        }
        let host = Host::attach(&server, &Options::default()).await;
        for (number, cut) in [1, 8, 71, 72, 73, 72 + 32_767].into_iter().enumerate() {
            let mut queue = host.queue(&server, 2 + number as u16).await;
            let data = pattern(1, 32 << 10);
            let pdu = queue.capsule(&write(1, 0, &data), &data);
            queue.send(&pdu[..cut]).await;
            clients.push(queue);
        }
        for client in &mut clients {
            client.closed().await;
        }
        assert_eq!(server.gate.writes(), 0);
        drop((host, clients));
        server.is_sound().await;
    });
}

#[test]
fn host_never_connects_queue() {
    in_simulation(3, async || {
        let server = Server::new();
        let mut silent = Client::open(&server).await;
        let mut initialized = Client::initialized(&server, &Options::default()).await;
        silent.closed().await;
        initialized.closed().await;
        server.is_sound().await;
    });
}

#[test]
fn idle_host_stays_connected() {
    in_simulation(3, async || {
        let server = Server::with(short_timeouts());
        let mut host = Host::attach(&server, &Options::default()).await;
        time::sleep(Duration::from_secs(10_000)).await;
        host.io.write(1, 0, BLOCK, &[1; 512]).await.unwrap();
        assert_eq!(host.admin.call(Sqe::keep_alive(1)).await.status(), Status::SUCCESS);
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn transfers_beyond_connection_budget() {
    on_each_driver(async || {
        // Room for 8 transfers; the host starts 100 and sends their data as requested.
        let config = TargetConfig {
            connection_payload_bytes: 8 * BIG,
            mdts_bytes: 8 * BIG as u32,
            ..short_timeouts()
        };
        let server = Server::with(config);
        let mut host = Host::attach(&server, &Options::default()).await;
        let mut pdus = Vec::new();
        for cid in 0..100 {
            pdus.extend(host.io.capsule(&big_write(cid, u64::from(cid) * 256), &[]));
            // Writes with in-capsule data compete for the same room.
            let data = pattern(cid.into(), 4096);
            if cid < 20 {
                let start = (100 + u64::from(cid)) * 256;
                pdus.extend(host.io.capsule(&write(1000 + cid, start, &data), &data));
            }
        }
        host.io.send(&pdus).await;
        let (mut answered, mut most, before) = (0, 0, memory_in_use());
        while answered < 120 {
            match host.io.pdu().await {
                Pdu::R2t(r2t) => {
                    let data = pattern(r2t.cid.get().into(), BIG);
                    let pdus = host.io.data_for(&r2t, &data);
                    host.io.send(&pdus).await;
                    most = most.max(memory_in_use());
                }
                Pdu::Response(completion) => {
                    assert_eq!(completion.status(), Status::SUCCESS);
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(most - before <= 8 * BIG + (1 << 20), "{}", most - before);
        for cid in 0..100 {
            let start = cid * 256;
            assert_eq!(host.io.read(1, start, BLOCK, BIG).await.unwrap(), pattern(cid, BIG));
        }
        drop(host);
        server.is_sound().await;
    });
}

// Devices.

/// Regression: the host's data was behind a command that waited for the device, and the host was
/// disconnected for data that the target did not receive.
#[test]
fn slow_device_does_not_time_out_transfers() {
    on_each_driver(async || {
        let config = TargetConfig {
            connection_payload_bytes: 8 * BIG,
            mdts_bytes: 8 * BIG as u32,
            ..short_timeouts()
        };
        let server = Server::with(config);
        let mut host = Host::attach(&server, &Options::default()).await;
        let data = pattern(1, BIG);
        host.io.submit(big_write(5, 0)).await;
        let r2t = host.io.r2t().await;
        server.gate.close();
        // Reads that fill the budget, one more, and then the requested data.
        for cid in 10..20 {
            host.io.submit(read(cid, BIG)).await;
        }
        let pdus = host.io.data_for(&r2t, &data);
        host.io.send(&pdus).await;
        eventually("there is no more room", || server.gate.inside() >= 7).await;
        time::sleep(Duration::from_secs(3)).await;
        server.gate.open();
        let mut answered = 0_u32;
        while answered < 11 {
            match host.io.pdu().await {
                Pdu::Response(completion) => {
                    assert_eq!(completion.status(), Status::SUCCESS);
                    answered += 1;
                }
                Pdu::Data { header, .. } => answered += u32::from(header.data_flags().success),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(host.io.read(1, 0, BLOCK, BIG).await.unwrap(), data);
        drop(host);
        server.is_sound().await;
    });
}

/// Regression: an idle connection kept the namespaces of its last command open.
#[test]
fn idle_connection_releases_removed_device() {
    on_each_driver(async || {
        let server = Server::new();
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let nsid = server.add(device.clone());
        let mut host = Host::attach(&server, &Options::default()).await;
        host.io.write(nsid, 0, BLOCK, &[1; 512]).await.unwrap();
        drop(server.target.remove_namespace(&subsystem(), nsid).unwrap());
        let begin = time::now();
        eventually("the device is free", || Arc::strong_count(&device) == 1).await;
        assert!(begin.elapsed() < Duration::from_secs(10));
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn command_awaited_after_host_leaves() {
    on_each_driver(async || {
        let server = Server::new();
        let host = Host::attach(&server, &Options::default()).await;
        let mut queue = host.queue(&server, 2).await;
        server.gate.close();
        let data = pattern(1, 4096);
        let pdu = queue.capsule(&write(1, 0, &data), &data);
        queue.send(&pdu).await;
        queue.submit(read(2, BIG)).await;
        eventually("both are under way", || server.gate.inside() == 2).await;
        drop(queue);
        time::sleep(Duration::from_millis(50)).await;
        let queues =
            || server.target.subsystem_status(&subsystem()).unwrap().controllers[0].queues.clone();
        // The queue stays in use while its commands run.
        assert_eq!(queues(), [0, 1, 2]);
        let mut again = Client::initialized(&server, &Options::default()).await;
        let refused = again.connect(&Options::default(), 2, host.id).await;
        // After a while, and without Do Not Retry: it passes.
        assert_eq!(refused.status(), Status::COMMAND_SEQUENCE_ERROR);
        assert_eq!(server.gate.inside(), 2);
        // A Connect waits until the identifier is free.
        let connect = ConnectCommand::new(3, 2, 128, 0, false).unwrap().command();
        let Options { host: name, host_id, .. } = Options::default();
        let pdu = ConnectData::new(host_id, host.id, &subsystem(), &name);
        let pdu = again.capsule(&connect, pdu.bytes());
        again.send(&pdu).await;
        server.gate.open();
        assert_eq!(again.response().await.status(), Status::SUCCESS);
        assert_eq!(queues(), [0, 1, 2]);
        // Started commands took effect.
        assert_eq!(again.read(1, 0, BLOCK, 4096).await.unwrap(), data);
        drop((host, again));
        server.is_sound().await;
    });
}

#[test]
fn admin_connection_lost_with_io_in_flight() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        server.gate.close();
        host.io.submit(read(2, BIG)).await;
        eventually("it is under way", || server.gate.inside() == 1).await;
        drop(host.admin);
        // The I/O queue ends for its host, and its command is still awaited.
        host.io.closed_soon(&server).await;
        server.gate.open();
        server.is_sound().await;
    });
}

#[test]
fn drain_completes_commands_in_flight() {
    on_each_driver(async || {
        let server = Server::new();
        server.keeps_last.set(true);
        let mut host = Host::attach(&server, &Options::default()).await;
        server.gate.close();
        let data = pattern(3, 4096);
        for cid in 0..20 {
            let pdu = host.io.capsule(&write(cid, u64::from(cid) * 8, &data), &data);
            host.io.send(&pdu).await;
        }
        eventually("all are under way", || server.gate.inside() == 20).await;
        server.last.borrow_mut().take().unwrap().shutdown_receiving();
        server.keeps_last.set(false);
        time::sleep(Duration::from_millis(10)).await;
        server.gate.open();
        for _ in 0..20 {
            assert_eq!(host.io.response().await.status(), Status::SUCCESS);
        }
        host.io.closed().await;
        drop(host);
        server.is_sound().await;
    });
}

/// Regression: a controller ended with its idle admin queue, and its I/O queues with it, so that
/// their hosts repeated commands that had been executed. A repeated compare and write fails.
#[test]
fn drain_of_all_queues_completes_commands_in_flight() {
    on_each_driver(async || {
        let server = Server::new();
        server.keeps_last.set(true);
        let options = Options::default();
        let mut streams = Vec::new();
        let mut keep = || streams.push(server.last.borrow_mut().take().unwrap());
        let (mut admin, id) = Host::admin(&server, &options).await;
        keep();
        let mut queues = Vec::new();
        for qid in [1, 2] {
            let mut queue = Client::initialized(&server, &options).await;
            assert_eq!(queue.connect(&options, qid, id).await.status(), Status::SUCCESS);
            keep();
            queues.push(queue);
        }
        server.gate.close();
        let data = pattern(3, 4096);
        for cid in 0..20 {
            let pdu = queues[0].capsule(&write(cid, u64::from(cid) * 8, &data), &data);
            queues[0].send(&pdu).await;
        }
        eventually("all are under way", || server.gate.inside() == 20).await;
        server.target.drain();
        streams.iter().for_each(Stream::shutdown_receiving);
        time::sleep(Duration::from_millis(10)).await;
        assert_eq!(server.target.controllers(), 1);
        server.gate.open();
        for _ in 0..20 {
            assert_eq!(queues[0].response().await.status(), Status::SUCCESS);
        }
        for client in queues.iter_mut().chain([&mut admin]) {
            client.closed().await;
        }
        drop((streams, queues, admin));
        server.keeps_last.set(false);
        eventually("the controller has ended", || server.target.controllers() == 0).await;
    });
}

#[test]
fn device_errors_are_reported() {
    on_each_driver(async || {
        let server = Server::new();
        let child: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let (fault, control) = FaultLayer::new(child, FaultConfig::default()).unwrap();
        let nsid = server.add(Arc::new(fault));
        let mut host = Host::attach(&server, &Options::default()).await;
        let data = pattern(1, 4096);
        host.io.write(nsid, 0, BLOCK, &data).await.unwrap();
        control.fail_next_reads(1);
        let failed = host.io.read(nsid, 0, BLOCK, 4096).await;
        assert_eq!(failed, Err(Status::UNRECOVERED_READ_ERROR));
        // A Copy reports the range that failed, and has written nothing.
        let list: Vec<u8> = [CopyRange::new(0, 1), CopyRange::new(1, 1)]
            .iter()
            .flat_map(|one| one.bytes().to_vec())
            .collect();
        control.fail_reads(BLOCK..2 * BLOCK);
        let copy = Sqe::copy(1, nsid, 0, 2, false, SglDescriptor::in_capsule(64)).unwrap();
        let failed = host.io.call_with(copy, &list).await;
        assert_eq!(failed.status(), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(failed.dw0.get(), 1);
        control.heal();
        control.fail_next_writes(2);
        assert_eq!(host.io.write(nsid, 0, BLOCK, &[0; 512]).await, Err(Status::WRITE_FAULT));
        let failed = host.io.write_r2t(nsid, 0, BLOCK, &[0; 8192]).await;
        assert_eq!(failed, Err(Status::WRITE_FAULT));
        assert_eq!(host.io.read(nsid, 0, BLOCK, 4096).await.unwrap(), data);
        control.fail_next_flush();
        let status = host.io.call(Sqe::flush(1, nsid)).await.status();
        assert!(!status.is_success());
        // A failed flush is sticky.
        let status = host.io.call(Sqe::flush(1, nsid)).await.status();
        assert_eq!(status.code(), Status::INTERNAL_ERROR);
        assert!(host.io.write(nsid, 0, BLOCK, &[0; 512]).await.is_err());
        assert_eq!(host.io.read(nsid, 0, BLOCK, 4096).await.unwrap(), data);
        control.reopen();
        control.set_unreachable(true);
        let failed = host.io.read(nsid, 0, BLOCK, 512).await;
        assert_eq!(failed, Err(Status::INTERNAL_PATH_ERROR));
        // Another namespace on the same queue is unaffected.
        host.io.write(1, 0, BLOCK, &data).await.unwrap();
        drop(host);
        server.is_sound().await;
    });
}

// Reconnects.

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A full host session in order, cut after `steps` steps.
async fn part_of_a_life(server: &Server, dice: &mut Dice, steps: usize) {
    let steps = Cell::new(steps);
    let go_on = || {
        steps.set(steps.get().saturating_sub(1));
        steps.get() > 0
    };
    let options = Options {
        digests: Digests { header: dice.below(2) == 0, data: dice.below(2) == 0 },
        entries: 2 + dice.below(127) as u32,
        flow_control: dice.below(2) == 0,
        host_id: [1 + dice.below(200) as u8; 16],
        ..Options::default()
    };
    let mut client = Client::open(server).await;
    if !go_on() {
        return client.send(&pattern(1, dice.below(128))).await;
    }
    drop(client);
    client = Client::initialized(server, &options).await;
    if !go_on() {
        return;
    }
    drop(client);
    let mut host = Host::attach(server, &options).await;
    while go_on() {
        let data = pattern(steps.get() as u64, 512 * (1 + dice.below(16)));
        let start = dice.below(1000) as u64;
        match dice.below(6) {
            0 => host.io.write(1, start, BLOCK, &data).await.unwrap(),
            1 => assert_eq!(host.io.read(1, start, BLOCK, 4096).await.unwrap().len(), 4096),
            2 => host.io.write_r2t(1, start, BLOCK, &pattern(2, BIG)).await.unwrap(),
            // Responses that are never read.
            3 => {
                for cid in 0..dice.below(10) as u16 {
                    host.io.submit(read(cid, BIG)).await;
                }
                return;
            }
            4 => {
                host.io.submit(big_write(1, start)).await;
                let r2t = host.io.r2t().await;
                let pdus = host.io.data_for(&r2t, &pattern(2, BIG));
                return host.io.send(&pdus[..dice.below(pdus.len())]).await;
            }
            _ => {
                let pdu = host.io.capsule(&write(4, start, &data), &data);
                return host.io.send(&pdu[..dice.below(pdu.len())]).await;
            }
        }
    }
}

#[test]
fn thousand_connections_cut_at_random() {
    let lives = async || {
        let server = Server::new();
        let mut dice = Dice::new(2026);
        part_of_a_life(&server, &mut dice, 20).await;
        server.is_quiet().await;
        let (files, memory) = (descriptors(), memory_in_use());
        for _ in 0..1000 {
            let steps = 1 + dice.below(12);
            part_of_a_life(&server, &mut dice, steps).await;
        }
        server.is_quiet().await;
        assert_eq!(memory_in_use(), memory);
        if io_engine_name() != "simulation" {
            eventually("no descriptor is left", || descriptors() <= files).await;
        }
        server.is_sound().await;
    };
    on_each_real_driver(lives);
    in_simulation(4, lives);
}
