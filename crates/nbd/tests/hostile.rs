//! Invalid clients: the server survives them.

mod common;

use std::time::Duration;

use common::blocking_device::BlockingDevice;
use common::peer::{Agreed, Peer, hello, request};
use common::{Running, any_port, in_simulation, leaves_nothing, memory, on_each_driver};
use flagstone_nbd::limits::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, MAX_REQUEST_BYTES, PEER_TIMEOUT};
use flagstone_nbd::wire::Errno;
use flagstone_nbd::wire::option::{option, put_option};
use flagstone_nbd::wire::request::{command, command_flag};
use flagstone_nbd::{Export, ServerOptions};
use flagstone_runtime::{buf, time};

const STRUCTURED: Agreed = Agreed { structured: true, sized: true };
const SIMPLE: Agreed = Agreed { structured: false, sized: true };

#[test]
fn bad_request_magic_closes_connection() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        peer.send(&[0x55; 28]).await;
        assert!(peer.sees_end().await);
        server.quiet().await;
    });
}

#[test]
fn invalid_negotiation_closes_connection() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let mut long_option = 3_u32.to_be_bytes().to_vec();
        long_option.extend(b"IHAVEOPT");
        long_option.extend([0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]);
        let mut bad_magic = 3_u32.to_be_bytes().to_vec();
        bad_magic.extend([9; 16]);
        for words in [long_option, bad_magic, u32::MAX.to_be_bytes().to_vec()] {
            let peer = Peer::greeted(&server.address).await;
            peer.send(&words).await;
            assert!(peer.sees_end().await);
        }
        server.quiet().await;
    });
}

#[test]
fn invalid_requests_keep_connection() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let end = 1 << 20;
        for agreed in [STRUCTURED, SIMPLE] {
            let peer = Peer::begun(&server.address, agreed).await;
            for (kind, flags, offset, len, error) in [
                (command::READ, 0, end, 512, Errno::INVAL),
                (command::READ, 0, u64::MAX - 511, 1024, Errno::INVAL),
                (command::READ, 0, 0, 0, Errno::INVAL),
                (command::READ, 0, 1, 512, Errno::INVAL),
                (command::READ, command_flag::NO_HOLE, 0, 512, Errno::INVAL),
                (command::TRIM, 0, end - 512, 1024, Errno::INVAL),
                (command::WRITE_ZEROES, 0, u64::MAX - 511, 512, Errno::NOSPC),
                (command::FLUSH, 0, 0, 512, Errno::INVAL),
                (command::BLOCK_STATUS, 0, 0, 512, Errno::INVAL),
                (77, 0, 0, 512, Errno::INVAL),
                (command::CACHE, 0x8000, 0, 512, Errno::INVAL),
            ] {
                peer.send(&request(kind, flags, 5, offset, len)).await;
                let reply = peer.reply(0).await.unwrap();
                assert_eq!((reply.cookie, Errno(reply.error)), (5, error), "{kind} {offset} {len}");
            }
            peer.send(&request(command::READ, 0, 6, 0, 512)).await;
            assert_eq!(peer.reply(512).await.unwrap().data, [0; 512]);
        }
    });
}

#[test]
fn refused_write_data_is_discarded() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        for (offset, len, error) in [
            (0, MAX_REQUEST_BYTES + 512, Errno::INVAL),
            (1 << 20, 512, Errno::NOSPC),
            (3, 1024, Errno::INVAL),
            (u64::MAX - 511, 1024, Errno::NOSPC),
        ] {
            peer.send(&request(command::WRITE, 0, 7, offset, len)).await;
            peer.send(&vec![0xee; len as usize]).await;
            assert_eq!(Errno(peer.reply(0).await.unwrap().error), error);
        }
        peer.send(&request(command::READ, 0, 8, 0, 1 << 20)).await;
        let reply = peer.reply(1 << 20).await.unwrap();
        assert!(reply.data.iter().all(|byte| *byte == 0), "nothing was written");
    });
}

#[test]
fn client_disconnects_at_any_byte() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let mut words = hello("disk", STRUCTURED);
        words.extend(request(command::WRITE, 0, 1, 0, 600 - 600 % 512));
        words.extend([1; 512]);
        words.extend(request(command::READ, 0, 2, 0, 65536));
        leaves_nothing(async || {
            for len in 0..=words.len() {
                let peer = Peer::greeted(&server.address).await;
                peer.send(&words[..len]).await;
                peer.stream.shutdown();
            }
            server.quiet().await;
        })
        .await;
    });
}

#[test]
fn client_that_never_reads_is_closed() {
    in_simulation(3, async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let before = buf::memory_held();
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        let mut words = Vec::new();
        for cookie in 0..10_000 {
            words.extend(request(command::READ, 0, cookie, 0, 256 << 10));
        }
        let start = time::now();
        // The server stops receiving and eventually closes; then the send fails.
        let _ = peer.try_send(&words).await;
        server.quiet().await;
        assert!(start.elapsed() >= PEER_TIMEOUT);
        assert!(start.elapsed() < PEER_TIMEOUT * 3);
        assert!(buf::memory_held() - before < 64 << 20);
        // Requests received before the close were not started without a client.
        assert!(calls.begun() < 2 * MAX_IN_FLIGHT_BYTES / (256 << 10), "{}", calls.begun());
    });
}

/// Replies that a client does not read must not stay in the kernel after the close.
#[test]
fn unsent_data_of_stalled_client_is_dropped() {
    in_simulation(4, async || {
        let server = Running::with(memory(1 << 20, 512));
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        // All of them are received, because unread data would reset the connection anyway.
        for cookie in 0..100 {
            peer.send(&request(command::READ, 0, cookie, 0, 256 << 10)).await;
        }
        server.quiet().await;
        let error = loop {
            match peer.stream.recv(buf::alloc(1 << 20).await).await.0 {
                Ok(count) => assert!(count > 0, "ended as if all had been sent"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn requests_in_flight_are_bounded() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        calls.hold();
        let many = 3 * MAX_IN_FLIGHT;
        let mut words = Vec::new();
        for cookie in 0..many as u64 {
            words.extend(request(command::READ, 0, cookie, 0, 512));
        }
        peer.send(&words).await;
        common::until(|| calls.begun() >= MAX_IN_FLIGHT).await;
        time::sleep(Duration::from_millis(20)).await;
        assert_eq!(calls.begun(), MAX_IN_FLIGHT);
        calls.let_go();
        let mut seen = vec![false; many];
        for _ in 0..many {
            let reply = peer.reply(512).await.unwrap();
            assert!(!std::mem::replace(&mut seen[reply.cookie as usize], true), "answered twice");
        }
    });
}

#[test]
fn stalled_requests_time_out_idle_clients_stay() {
    in_simulation(5, async || {
        let server = Running::with(memory(1 << 20, 512));
        // Nothing, half of a negotiation, half of a request, half of its data.
        let silent = Peer::greeted(&server.address).await;
        let half_hello = Peer::greeted(&server.address).await;
        half_hello.send(&hello("disk", STRUCTURED)[..12]).await;
        let half_request = Peer::begun(&server.address, STRUCTURED).await;
        half_request.send(&request(command::READ, 0, 1, 0, 512)[..27]).await;
        let half_data = Peer::begun(&server.address, STRUCTURED).await;
        half_data.send(&request(command::WRITE, 0, 1, 0, 1 << 20)).await;
        half_data.send(&[1; 5000]).await;
        let idle = Peer::begun(&server.address, STRUCTURED).await;
        for peer in [silent, half_hello, half_request, half_data] {
            assert!(peer.sees_end().await);
        }
        time::sleep(PEER_TIMEOUT * 100).await;
        idle.send(&request(command::FLUSH, 0, 4, 0, 0)).await;
        assert_eq!(idle.reply(0).await.unwrap().error, 0);
    });
}

#[test]
fn slow_client_is_served() {
    in_simulation(6, async || {
        let server = Running::with(memory(1 << 20, 512));
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        let mut words = request(command::WRITE, 0, 1, 0, 512);
        words.extend([1; 512]);
        for byte in words {
            time::sleep(PEER_TIMEOUT / 2).await;
            peer.send(&[byte]).await;
        }
        assert_eq!(peer.reply(0).await.unwrap().error, 0);
    });
}

#[test]
fn too_many_connections_are_closed() {
    on_each_driver(async || {
        let options = ServerOptions { max_connections: 3, ..ServerOptions::default() };
        let export = Export::new("disk", memory(1 << 20, 512));
        let server = Running::start(&any_port(), vec![export], options);
        let mut peers = Vec::new();
        for _ in 0..3 {
            peers.push(Peer::begun(&server.address, SIMPLE).await);
        }
        let stream = flagstone_runtime::net::Stream::connect(&server.address).await.unwrap();
        let more = Peer { stream, agreed: SIMPLE };
        assert!(more.sees_end().await);
        peers.pop().unwrap().stream.shutdown();
        common::until(|| server.server.connections() < 3).await;
        Peer::begun(&server.address, SIMPLE).await;
    });
}

#[test]
fn thousand_dropped_connections_leak_nothing() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let mut words = hello("disk", STRUCTURED);
        for cookie in 0..20 {
            words.extend(request(command::READ, 0, cookie, 0, 4096));
        }
        leaves_nothing(async || {
            for number in 0..1000 {
                let peer = Peer::greeted(&server.address).await;
                peer.send(&words[..number * 7 % words.len()]).await;
            }
            server.quiet().await;
        })
        .await;
    });
}

/// Every step of a client is in time, and all of them together take a minute.
#[test]
fn slow_negotiation_of_honest_client_is_served() {
    in_simulation(1, async || {
        let handshake_timeout = Duration::from_secs(10);
        let options = ServerOptions { handshake_timeout, ..ServerOptions::default() };
        let exports = vec![Export::new("disk", memory(1 << 20, 512))];
        let server = Running::start(&any_port(), exports, options);
        let client = Peer::greeted(&server.address).await;
        client.send(&3_u32.to_be_bytes()).await;
        for _ in 0..10 {
            time::sleep(Duration::from_secs(6)).await;
            client.send(&option_bytes()).await;
            assert!(client.read(20).await.is_some());
        }
        // A client that sends nothing more is closed after one step.
        let begun = time::now();
        assert!(client.sees_end().await);
        let took = begun.elapsed();
        assert!(took <= handshake_timeout + Duration::from_secs(1), "{took:?}");
    });
}

/// libnbd 1.14 takes 200 ms for each export that it lists.
#[test]
fn listing_of_thousand_exports_is_served() {
    in_simulation(1, async || {
        let export = |number: usize| Export::new(format!("v{number}"), memory(1 << 20, 512));
        let exports = (0..1000).map(export).collect();
        let server = Running::start(&any_port(), exports, ServerOptions::default());
        let client = Peer::greeted(&server.address).await;
        client.send(&3_u32.to_be_bytes()).await;
        for number in 0..1000 {
            time::sleep(Duration::from_millis(200)).await;
            client.send(&option_bytes()).await;
            assert!(client.read(20).await.is_some(), "closed after {number} options");
        }
    });
}

/// One slow client is harmless, but slow clients must not keep others out for minutes.
#[test]
fn many_slow_negotiations_share_time_of_one_step() {
    in_simulation(1, async || {
        let handshake_timeout = Duration::from_secs(10);
        let options =
            ServerOptions { handshake_timeout, max_connections: 8, ..ServerOptions::default() };
        let exports = vec![Export::new("disk", memory(1 << 20, 512))];
        let server = Running::start(&any_port(), exports, options);
        let mut clients = Vec::new();
        for _ in 0..8 {
            let client = Peer::greeted(&server.address).await;
            client.send(&3_u32.to_be_bytes()).await;
            clients.push(client);
        }
        for _ in 0..2 {
            time::sleep(Duration::from_secs(6)).await;
            for client in &clients {
                let _ = client.try_send(&option_bytes()).await;
            }
        }
        time::sleep(Duration::from_secs(1)).await;
        assert!(server.server.connections() <= 4, "{}", server.server.connections());
        drop(clients);
    });
}

/// An option that is answered with one reply without data.
fn option_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    put_option(&mut bytes, option::STRUCTURED_REPLY, &[]);
    bytes
}
