//! Server behavior while the device of an export cannot be reached: a request has no reply, its
//! connection ends, and later clients are refused until the device can be reached.

mod common;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::blocking_device::{BlockingDevice, Calls};
use common::peer::{Agreed, Peer, hello, request};
use common::{Running, any_port, in_simulation, memory, on_each_driver, until};
use flagstone_blockdev::{BlockDevice, FaultConfig, FaultControl, FaultLayer, SharedDevice};
use flagstone_nbd::limits::REACH_TIMEOUT;
use flagstone_nbd::wire::option::{OptionReplyHeader, option, put_option, reply_type};
use flagstone_nbd::wire::request::command;
use flagstone_nbd::{
    ClientOptions, ConnectError, Export, NbdDevice, NegotiationError, ServerOptions,
};
use flagstone_runtime::{Buf, buf, spawn, time};

const STRUCTURED: Agreed = Agreed { structured: true, sized: true };
const SIMPLE: Agreed = Agreed { structured: false, sized: true };

/// Device that can be made unreachable.
fn device() -> (SharedDevice, FaultControl) {
    let (device, faults) = FaultLayer::new(memory(64 << 20, 512), FaultConfig::default()).unwrap();
    (Arc::new(device), faults)
}

fn server() -> (Running, FaultControl) {
    let (device, faults) = device();
    (Running::with(device), faults)
}

/// Type of the last reply to a GO.
async fn answer_to_go(server: &Running) -> u32 {
    let peer = Peer::greeted(&server.address).await;
    peer.send(&hello("disk", SIMPLE)).await;
    loop {
        let bytes = peer.read(20).await.unwrap();
        let header = OptionReplyHeader::decode(&bytes).unwrap().unwrap();
        peer.read(header.len as usize).await.unwrap();
        if header.kind != reply_type::INFO {
            return header.kind;
        }
    }
}

#[test]
fn request_has_no_reply_and_its_connection_ends() {
    // In simulated time: the connections end at a limited rate.
    in_simulation(1, async || {
        let (server, device) = server();
        for (agreed, kind, len) in [
            (SIMPLE, command::READ, 512),
            (STRUCTURED, command::READ, 4 << 20),
            (SIMPLE, command::READ, 32 << 20),
            (SIMPLE, command::WRITE, 512),
            (STRUCTURED, command::WRITE, 4 << 20),
            (STRUCTURED, command::FLUSH, 0),
            (SIMPLE, command::TRIM, 4096),
            (STRUCTURED, command::WRITE_ZEROES, 4096),
        ] {
            device.heal();
            let peer = Rc::new(Peer::begun(&server.address, agreed).await);
            device.set_unreachable(true);
            peer.send(&request(kind, 0, 1, 0, len)).await;
            if kind == command::WRITE {
                let sender = peer.clone();
                // The server may end the connection before it has received all of it.
                spawn(async move { drop(sender.try_send(&vec![7; len as usize]).await) });
            }
            assert!(peer.sees_end().await, "{kind} of {len} bytes");
            // Otherwise the device would count as unreachable in part.
            time::sleep(Duration::from_secs(3600)).await;
        }
        server.stop().await;
    });
}

/// Regression: a client that reconnects sent such a request again for good, and lost its connection
/// each time, because the rest of the device could be reached.
#[test]
fn device_unreachable_in_part_fails_requests_in_the_end() {
    in_simulation(1, async || {
        let (server, device) = server();
        let mut ended = 0;
        let answer = loop {
            // The question in the negotiation is answered.
            device.set_unreachable(false);
            let peer = Peer::begun(&server.address, SIMPLE).await;
            device.set_unreachable(true);
            peer.send(&request(command::READ, 0, 1, 1 << 20, 512)).await;
            match peer.read(16).await {
                Some(reply) => break reply,
                None => ended += 1,
            }
            assert!(ended < 10, "it never ends");
        };
        assert_eq!(u32::from_be_bytes(answer[4..8].try_into().unwrap()), 5, "EIO");
        assert_eq!(ended, 3);
        server.stop().await;
    });
}

#[test]
fn clients_are_refused_until_device_can_be_reached() {
    on_each_driver(async || {
        let (server, device) = server();
        let peer = Peer::begun(&server.address, SIMPLE).await;
        device.set_unreachable(true);
        peer.send(&request(command::READ, 0, 1, 0, 512)).await;
        assert!(peer.sees_end().await);
        assert_eq!(answer_to_go(&server).await, reply_type::ERR_UNKNOWN);
        // Not listed: some clients ask about every export, and give up at the first refusal.
        let peer = Peer::greeted(&server.address).await;
        let mut list = 3_u32.to_be_bytes().to_vec();
        put_option(&mut list, option::LIST, &[]);
        peer.send(&list).await;
        let header = OptionReplyHeader::decode(&peer.read(20).await.unwrap()).unwrap().unwrap();
        assert_eq!((header.option, header.kind), (option::LIST, reply_type::ACK));
        // The option without error replies ends the connection.
        let peer = Peer::greeted(&server.address).await;
        let mut name = 3_u32.to_be_bytes().to_vec();
        put_option(&mut name, option::EXPORT_NAME, b"disk");
        peer.send(&name).await;
        assert!(peer.sees_end().await);
        let opened = NbdDevice::connect(server.address.clone(), "disk", ClientOptions::default());
        match opened.await {
            Err(error @ ConnectError::Negotiation(NegotiationError::NotYet(_))) => {
                assert!(error.may_pass());
            }
            other => panic!("{other:?}"),
        }
        let count = server.server.refusals().find(|(name, _)| *name == "unreachable");
        // Flagstone's client asks about its contexts first.
        assert_eq!(count, Some(("unreachable", 4)));
        device.set_unreachable(false);
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        server.stop().await;
    });
}

/// As a mirror that does not serve hosts yet. A device that does not answer is only slow.
#[test]
fn first_client_waits_for_device_that_is_asked_first() {
    in_simulation(1, async || {
        let (device, faults) = device();
        let (device, calls) = BlockingDevice::wrap(device);
        let exports = vec![Export::new("disk", device).asked_first()];
        let server = Running::start(&any_port(), exports, ServerOptions::default());
        calls.hold();
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        // One read asks, however many clients negotiate.
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        assert_eq!(calls.begun(), 1);
        faults.set_unreachable(true);
        calls.let_go();
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(answer_to_go(&server).await, reply_type::ERR_UNKNOWN);
        calls.hold();
        assert_eq!(answer_to_go(&server).await, reply_type::ERR_UNKNOWN);
        faults.set_unreachable(false);
        calls.let_go();
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        server.stop().await;
    });
}

/// Regression: the question took longer than the negotiation may, which ended without an answer.
#[test]
fn question_leaves_time_for_an_answer() {
    in_simulation(1, async || {
        let (device, calls) = BlockingDevice::wrap(device().0);
        let exports = vec![Export::new("disk", device).asked_first()];
        let handshake_timeout = REACH_TIMEOUT / 2;
        let options = ServerOptions { handshake_timeout, ..ServerOptions::default() };
        let server = Running::start(&any_port(), exports, options);
        calls.hold();
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        calls.let_go();
        server.stop().await;
    });
}

/// A client attaches, reads from a device that hangs, and vanishes.
async fn leave_a_hanging_read(server: &Running, calls: &Calls) {
    let client = Peer::begun(&server.address, SIMPLE).await;
    calls.hold();
    client.send(&request(command::READ, 0, 1, 0, 512)).await;
    until(|| calls.begun() == 1).await;
}

/// A client that reconnects for ever to a device that hangs left no trace.
#[test]
fn client_given_up_behind_its_previous_is_counted() {
    in_simulation(1, async || {
        let (device, calls) = BlockingDevice::wrap(device().0);
        let server = Running::with(device);
        leave_a_hanging_read(&server, &calls).await;
        let second = Peer::begun(&server.address, SIMPLE).await;
        assert!(second.sees_end().await);
        let count = server.server.refusals().find(|(name, _)| *name == "unfinished");
        assert_eq!(count, Some(("unfinished", 1)));
        calls.let_go();
        server.stop().await;
    });
}

/// Regression: a client attached after an operator's order had found none.
#[test]
fn suspended_export_attaches_no_client() {
    on_each_driver(async || {
        let (device, calls) = BlockingDevice::wrap(device().0);
        let server = Running::with(device);
        leave_a_hanging_read(&server, &calls).await;
        // It attaches when the request of the first has ended.
        let second = Peer::begun(&server.address, SIMPLE).await;
        server.exports.suspend("disk");
        assert_eq!(answer_to_go(&server).await, reply_type::ERR_UNKNOWN);
        calls.let_go();
        assert!(second.sees_end().await);
        until(|| server.server.attached().is_empty()).await;
        server.exports.resume("disk");
        assert_eq!(answer_to_go(&server).await, reply_type::ACK);
        server.stop().await;
    });
}

#[test]
fn drain_does_not_wait_for_lost_request() {
    in_simulation(1, async || {
        let (device, faults) = device();
        let (device, calls) = BlockingDevice::wrap(device);
        let server = Running::with(device);
        let peer = Peer::begun(&server.address, STRUCTURED).await;
        calls.hold();
        peer.send(&request(command::READ, 0, 1, 0, 512)).await;
        until(|| calls.begun() == 1).await;
        server.drain.begin();
        time::sleep(Duration::from_secs(1)).await;
        faults.set_unreachable(true);
        calls.let_go();
        let begun = time::now();
        assert!(peer.sees_end().await);
        assert!(begun.elapsed() < Duration::from_secs(1));
        server.stop().await;
    });
}

/// A client that connects again at once must not keep both sides busy with connections.
#[test]
fn useless_connections_end_at_a_limited_rate() {
    in_simulation(1, async || {
        let (server, device) = server();
        let begun = time::now();
        // Fewer than make it a device that is unreachable in part.
        for _ in 0..3 {
            device.set_unreachable(false);
            let peer = Peer::begun(&server.address, SIMPLE).await;
            device.set_unreachable(true);
            peer.send(&request(command::WRITE, 0, 1, 0, 512)).await;
            peer.send(&[7; 512]).await;
            assert!(peer.sees_end().await);
        }
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
        server.stop().await;
    });
}

/// The module documentation of the client describes what it resends.
#[test]
fn client_resends_until_device_can_be_reached() {
    in_simulation(1, async || {
        let (server, device) = server();
        let address = server.address.clone();
        let client = NbdDevice::connect(address, "disk", ClientOptions::default()).await.unwrap();
        device.set_unreachable(true);
        let writer = client.clone();
        let write =
            spawn(async move { writer.write(0, Buf::copy_of(&[9; 512]).unwrap(), true).await });
        time::sleep(Duration::from_secs(30)).await;
        assert!(!write.is_finished());
        device.set_unreachable(false);
        write.await.unwrap().unwrap();
        let data = client.read(0, buf::alloc(512).await).await.unwrap();
        assert_eq!(data[..], [9; 512]);
        drop(client);
        server.stop().await;
    });
}
