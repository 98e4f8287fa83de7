//! Server behavior for conforming clients, checked byte by byte.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::blocking_device::BlockingDevice;
use common::peer::{Agreed, Peer, request};
use common::{Running, any_port, in_simulation, memory, on_each_driver, until};
use flagstone_blockdev::{FaultConfig, FaultLayer};
use flagstone_nbd::limits::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, PART_BYTES};
use flagstone_nbd::wire::Errno;
use flagstone_nbd::wire::request::{command, command_flag};
use flagstone_nbd::{Export, ServerOptions};
use flagstone_runtime::buf::BufferShares;
use flagstone_runtime::{buf, random_u64, spawn, time};

const STRUCTURED: Agreed = Agreed { structured: true, sized: true };
const SIMPLE: Agreed = Agreed { structured: false, sized: true };
const PLAIN: Agreed = Agreed { structured: false, sized: false };

async fn write(peer: &Peer, offset: u64, data: &[u8]) -> u32 {
    peer.send(&request(command::WRITE, 0, 1, offset, data.len() as u32)).await;
    peer.send(data).await;
    peer.reply(0).await.unwrap().error
}

async fn read(peer: &Peer, offset: u64, len: usize) -> Vec<u8> {
    peer.send(&request(command::READ, 0, 2, offset, len as u32)).await;
    let reply = peer.reply(len).await.unwrap();
    assert_eq!((reply.cookie, reply.error), (2, 0));
    reply.data
}

#[test]
fn pipelined_requests_are_all_answered() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        for agreed in [STRUCTURED, SIMPLE] {
            let peer = Rc::new(Peer::begun(&server.address, agreed).await);
            let mut words = Vec::new();
            for number in 0..1000_u64 {
                let offset = number % 256 * 4096;
                words.extend(request(command::WRITE, 0, number, offset, 4096));
                words.extend([number as u8; 4096]);
            }
            let sender = peer.clone();
            let sending = spawn(async move { sender.send(&words).await });
            let mut seen = [false; 1000];
            for _ in 0..1000 {
                let reply = peer.reply(0).await.unwrap();
                assert_eq!(reply.error, 0);
                assert!(!std::mem::replace(&mut seen[reply.cookie as usize], true));
            }
            sending.await.unwrap();
            for number in 744..1000_u64 {
                let data = read(&peer, number % 256 * 4096, 4096).await;
                assert!(data.iter().all(|byte| *byte == number as u8), "block {number}");
            }
        }
    });
}

#[test]
fn server_transfers_of_all_lengths() {
    on_each_driver(async || {
        let server = Running::with(memory(64 << 20, 512));
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        for shift in 9..=25 {
            let len = 1 << shift;
            let data: Vec<u8> = (0..len).map(|at| (at * 7 + at / 512) as u8).collect();
            assert_eq!(write(&peer, 512, &data).await, 0);
            assert!(read(&peer, 512, len).await == data, "{len} bytes");
        }
    });
}

#[test]
fn unsized_clients_access_any_range() {
    on_each_driver(async || {
        let size = 64 << 10;
        let server = Running::with(memory(size as u64, 4096));
        let peer = Peer::begun(&server.address, PLAIN).await;
        let mut model = vec![0_u8; size];
        for round in 0..300_usize {
            let from = random_u64() as usize % size;
            let len = random_u64() as usize % (size - from).min(10_000) + 1;
            let range = from..from + len;
            if round % 4 == 0 {
                let words = request(command::WRITE_ZEROES, 0, 1, from as u64, len as u32);
                peer.send(&words).await;
                assert_eq!(peer.reply(0).await.unwrap().error, 0);
                model[range].fill(0);
            } else {
                let data = vec![round as u8; len];
                assert_eq!(write(&peer, from as u64, &data).await, 0);
                model[range].fill(round as u8);
            }
            let from = random_u64() as usize % size;
            let len = random_u64() as usize % (size - from) + 1;
            assert!(read(&peer, from as u64, len).await == model[from..from + len]);
        }
    });
}

#[test]
fn concurrent_partial_block_writes_survive() {
    on_each_driver(async || {
        let (device, _) = BlockingDevice::wrap(memory(64 << 10, 4096));
        let server = Running::with(device);
        let mut tasks = Vec::new();
        // Each client owns an eighth of each block; whole-block writers own blocks 8 to 15.
        for part in 0..8_u64 {
            let address = server.address.clone();
            tasks.push(spawn(async move {
                let peer = Peer::begun(&address, PLAIN).await;
                for block in 0..8 {
                    let data = [part as u8 + 1; 512];
                    assert_eq!(write(&peer, block * 4096 + part * 512, &data).await, 0);
                    assert_eq!(write(&peer, (part + 8) * 4096, &[part as u8; 4096]).await, 0);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let peer = Peer::begun(&server.address, PLAIN).await;
        for block in 0..8_u8 {
            for part in 0..8_u8 {
                let at = u64::from(block) * 4096 + u64::from(part) * 512;
                assert_eq!(read(&peer, at, 512).await, [part + 1; 512], "block {block}");
            }
            assert_eq!(read(&peer, (u64::from(block) + 8) * 4096, 4096).await, [block; 4096]);
        }
    });
}

#[test]
fn trim_is_rounded_to_whole_blocks() {
    on_each_driver(async || {
        let server = Running::with(memory(64 << 10, 4096));
        let peer = Peer::begun(&server.address, PLAIN).await;
        assert_eq!(write(&peer, 0, &[7; 16384]).await, 0);
        for (offset, len) in [(100, 200), (4000, 10_000), (1, 4096)] {
            peer.send(&request(command::TRIM, command_flag::FUA, 3, offset, len)).await;
            assert_eq!(peer.reply(0).await.unwrap().error, 0);
        }
        assert_eq!(read(&peer, 0, 4096).await, [7; 4096]);
        assert_eq!(read(&peer, 12288, 4096).await, [7; 4096]);
    });
}

#[test]
fn device_errors_keep_connection() {
    on_each_driver(async || {
        let config = FaultConfig::default();
        let (device, faults) = FaultLayer::new(memory(1 << 20, 512), config).unwrap();
        faults.fail_reads(0..512);
        faults.fail_writes(0..512);
        let server = Running::with(Arc::new(device));
        for agreed in [STRUCTURED, SIMPLE] {
            let peer = Peer::begun(&server.address, agreed).await;
            peer.send(&request(command::READ, 0, 1, 0, 1024)).await;
            assert_eq!(Errno(peer.reply(1024).await.unwrap().error), Errno::IO);
            assert_eq!(Errno(write(&peer, 0, &[1; 512]).await), Errno::IO);
            assert_eq!(write(&peer, 512, &[1; 512]).await, 0);
            assert_eq!(read(&peer, 512, 512).await, [1; 512]);
        }
    });
}

#[test]
fn disconnect_waits_for_requests_in_flight() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, SIMPLE).await;
        calls.hold();
        let mut words = Vec::new();
        for cookie in 0..10 {
            words.extend(request(command::READ, 0, cookie, 0, 512));
        }
        words.extend(request(command::DISC, 0, 0, 0, 0));
        peer.send(&words).await;
        until(|| calls.begun() == 10).await;
        assert_eq!(server.server.connections(), 1);
        calls.let_go();
        for _ in 0..10 {
            assert_eq!(peer.reply(512).await.unwrap().error, 0);
        }
        assert!(peer.sees_end().await);
        server.quiet().await;
    });
}

#[test]
fn device_calls_finish_after_client_leaves() {
    on_each_driver(async || {
        let inner = memory(1 << 20, 512);
        let (device, calls) = BlockingDevice::wrap(inner.clone());
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, SIMPLE).await;
        calls.hold();
        peer.send(&request(command::WRITE, 0, 1, 0, 512)).await;
        peer.send(&[9; 512]).await;
        until(|| calls.begun() == 1).await;
        peer.stream.shutdown();
        drop(peer);
        calls.let_go();
        server.quiet().await;
        assert_eq!(calls.ended(), 1);
        let data = inner.read(0, buf::alloc(512).await).await.unwrap();
        assert_eq!(data[..], [9; 512]);
    });
}

/// A new connection waits for the calls of ended ones. A call that is blocked for as long as a peer
/// is away must not keep it waiting.
#[test]
fn blocked_calls_of_gone_client_give_up() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, SIMPLE).await;
        calls.hold_for_client();
        for cookie in 0..10 {
            peer.send(&request(command::WRITE, 0, cookie, 0, 512)).await;
            peer.send(&[9; 512]).await;
        }
        until(|| calls.begun() == 10).await;
        peer.stream.shutdown();
        drop(peer);
        server.quiet().await;
        assert_eq!(calls.ended(), 0, "no call reached the device");
        calls.let_go();
        let peer = Peer::begun(&server.address, SIMPLE).await;
        assert_eq!(read(&peer, 0, 512).await, [0; 512]);
    });
}

/// At the limit the server receives nothing, and does not see the end of the stream, behind which
/// further requests wait.
#[test]
fn end_of_client_is_seen_at_in_flight_limit() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, SIMPLE).await;
        calls.hold_for_client();
        for cookie in 0..2 * MAX_IN_FLIGHT as u64 {
            peer.send(&request(command::WRITE, 0, cookie, 0, 512)).await;
            peer.send(&[9; 512]).await;
        }
        until(|| calls.begun() == MAX_IN_FLIGHT).await;
        peer.stream.shutdown();
        drop(peer);
        server.quiet().await;
        assert_eq!(calls.ended(), 0, "no call reached the device");
    });
}

/// The client sends its writes again on the new connection: old ones, executing or unread, must not
/// land after them.
#[test]
fn new_connection_waits_for_one_ended_at_its_limit() {
    for seed in 1..=5 {
        in_simulation(seed, async || {
            let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
            let server = Running::with(device);
            let old = Peer::begun(&server.address, SIMPLE).await;
            calls.hold();
            for cookie in 0..2 * MAX_IN_FLIGHT as u64 {
                old.send(&request(command::WRITE, 0, cookie, 0, 512)).await;
                old.send(&[1; 512]).await;
            }
            until(|| calls.begun() == MAX_IN_FLIGHT).await;
            old.stream.shutdown();
            drop(old);
            let new = Rc::new(Peer::begun(&server.address, SIMPLE).await);
            let sender = new.clone();
            let sending = spawn(async move { write(&sender, 0, &[2; 512]).await });
            time::sleep(Duration::from_secs(2)).await;
            assert_eq!(calls.begun(), MAX_IN_FLIGHT, "the new write has begun");
            calls.let_go();
            assert_eq!(sending.await.unwrap(), 0);
            until(|| server.server.connections() == 1).await;
            assert_eq!(read(&new, 0, 512).await, [2; 512]);
        });
    }
}

/// Regression: requests that the kernel had received began after the end, those without payload
/// even without a limit.
#[test]
fn ended_connections_start_no_request() {
    for is_disconnected in [true, false] {
        in_simulation(1, async || {
            let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
            let server = Running::with(device);
            let peer = Peer::begun(&server.address, SIMPLE).await;
            calls.hold();
            for cookie in 0..3 * MAX_IN_FLIGHT as u64 {
                peer.send(&request(command::WRITE_ZEROES, 0, cookie, 0, 512)).await;
            }
            until(|| calls.begun() == MAX_IN_FLIGHT).await;
            match is_disconnected {
                true => server.server.disconnect("disk"),
                false => {
                    peer.stream.shutdown();
                    // The watchdog sees the end.
                    time::sleep(Duration::from_secs(2)).await;
                }
            }
            assert!(peer.sees_end().await);
            calls.let_go();
            server.quiet().await;
            assert_eq!(calls.begun(), MAX_IN_FLIGHT);
        });
    }
}

/// A part that ends without a reply makes room for the next one.
#[test]
fn write_beyond_in_flight_limit_ends() {
    const LEN: usize = 2 * MAX_IN_FLIGHT_BYTES;
    in_simulation(1, async || {
        let (device, calls) = BlockingDevice::wrap(memory(64 << 20, 512));
        calls.hold();
        let server = Running::with(device);
        // Memory enough for the limit of the protocol: waiting for memory has a timer of its own.
        server.server.share_buffers(BufferShares::new(1 << 30, 1));
        let peer = Rc::new(Peer::begun(&server.address, STRUCTURED).await);
        let sender = peer.clone();
        let sending = spawn(async move { write(&sender, 0, &vec![7; LEN]).await });
        // The receiver finds no room, and waits.
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(calls.begun(), MAX_IN_FLIGHT_BYTES / PART_BYTES);
        calls.let_go();
        let error = time::timeout(Duration::from_secs(5), sending).await;
        assert_eq!(error.expect("the write stalls").unwrap(), 0);
        assert!(calls.ended() >= LEN / PART_BYTES);
    });
}

/// An error reply is final for most clients, even SHUTDOWN: they fail the request to their users. A
/// request without a reply is sent again on the next connection.
#[test]
fn drain_finishes_in_flight_and_answers_no_new() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let idle = Peer::begun(&server.address, SIMPLE).await;
        let greeted = Peer::greeted(&server.address).await;
        let busy = Peer::begun(&server.address, SIMPLE).await;
        let leaving = Peer::begun(&server.address, SIMPLE).await;
        // As a write that a mirror blocks: it fails once its connection has ended.
        calls.hold_for_client();
        busy.send(&request(command::WRITE, 0, 1, 0, 512)).await;
        busy.send(&[9; 512]).await;
        leaving.send(&request(command::READ, 0, 1, 0, 512)).await;
        until(|| calls.begun() == 2).await;
        let stopped = Rc::new(Cell::new(false));
        let flag = stopped.clone();
        let stop = spawn(async move {
            server.stop().await;
            flag.set(true);
        });
        assert!(idle.sees_end().await);
        assert!(greeted.sees_end().await);
        for _ in 0..3 {
            busy.send(&request(command::READ, 0, 2, 0, 512)).await;
        }
        leaving.send(&request(command::DISC, 0, 2, 0, 0)).await;
        assert!(leaving.sees_end().await, "a call that gave up has no reply");
        // Time for the server to receive them.
        time::sleep(Duration::from_millis(20)).await;
        assert!(!stopped.get());
        calls.let_go();
        let served = busy.reply(0).await.unwrap();
        assert_eq!((served.cookie, served.error), (1, 0));
        assert!(busy.sees_end().await);
        stop.await.unwrap();
    });
}

/// The connection ends at its timeout, and the write that has not ended has no reply.
#[test]
fn blocked_write_is_not_answered_at_drain_timeout() {
    in_simulation(1, async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        calls.hold_for_client();
        peer.send(&request(command::WRITE, 0, 1, 0, 512)).await;
        peer.send(&[9; 512]).await;
        until(|| calls.begun() == 1).await;
        server.drain.begin();
        peer.send(&request(command::READ, 0, 2, 0, 512)).await;
        assert!(peer.sees_end().await);
        server.stop().await;
        assert_eq!(calls.ended(), 0);
    });
}

#[test]
fn drain_has_timeout() {
    common::in_simulation(1, async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, SIMPLE).await;
        calls.hold();
        peer.send(&request(command::READ, 0, 1, 0, 512)).await;
        until(|| calls.begun() == 1).await;
        server.drain.begin();
        let start = time::now();
        assert!(peer.sees_end().await);
        assert!(start.elapsed() <= flagstone_nbd::limits::DRAIN_TIMEOUT * 2);
        calls.let_go();
        server.stop().await;
    });
}

#[test]
fn stale_unix_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    common::on_each_real_driver(async || {
        let address = flagstone_runtime::net::Address::Unix(dir.path().join("nbd.sock"));
        for _ in 0..2 {
            let export = Export::new("disk", memory(1 << 20, 512));
            let server = Running::start(&address, vec![export], ServerOptions::default());
            let peer = Peer::begun(&address, STRUCTURED).await;
            assert_eq!(write(&peer, 0, &[3; 4096]).await, 0);
            assert_eq!(read(&peer, 0, 4096).await, [3; 4096]);
            server.stop().await;
        }
    });
}

#[test]
fn exports_are_separate_devices() {
    on_each_driver(async || {
        let exports = vec![
            Export::new("disk", memory(1 << 20, 512)),
            Export::new("other", memory(1 << 20, 512)),
        ];
        let other = exports[1].device.clone();
        let server = Running::start(&any_port(), exports, ServerOptions::default());
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        assert_eq!(write(&peer, 0, &[3; 512]).await, 0);
        let untouched = other.read(0, buf::alloc(512).await).await.unwrap();
        assert_eq!(untouched[..], [0; 512]);
    });
}

/// Its connection was not attached yet when the server disconnected the clients of the export.
#[test]
fn client_of_removed_export_is_disconnected() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let old = Peer::begun(&server.address, SIMPLE).await;
        calls.hold();
        old.send(&request(command::READ, 0, 1, 0, 512)).await;
        until(|| calls.begun() == 1).await;
        old.stream.shutdown();
        // It waits for the call of the old connection.
        let new = Peer::begun(&server.address, SIMPLE).await;
        new.send(&request(command::READ, 0, 2, 0, 512)).await;
        let removed = Arc::downgrade(&server.exports.remove("disk").unwrap());
        server.server.disconnect("disk");
        calls.let_go();
        assert!(new.sees_end().await);
        until(|| removed.strong_count() == 0).await;
        assert_eq!(calls.begun(), 1);
    });
}
