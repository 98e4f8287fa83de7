//! Fuzz target for the NBD server, over its connections.
//!
//! Input: one byte of parameters (bit 0: structured replies; bit 1: the client respects block
//! sizes; bit 2: the input begins with the negotiation, otherwise the harness negotiates; bit 3:
//! blocks of 4,096 bytes; bits 7:4: seed of the network), then the client's bytes.
//!
//! In addition to the checks of `conversation`, every reply of the server must be well-formed and
//! answer a sent request.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::MemoryDevice;
use flagstone_nbd::wire::option::{info, info_request, option, put_option};
use flagstone_nbd::wire::reply::ReplyHeader;
use flagstone_nbd::wire::request::NbdRequest;
use flagstone_nbd::{Drain, Export, Exports, NbdServer, ServerOptions};

use crate::conversation::{self, Client};

/// Small, so that no request can be large.
const EXPORT_BYTES: u64 = 64 << 10;
/// Length of the server's greeting, in bytes.
const GREETING_BYTES: usize = 18;

/// Runs the conversation described by the input.
pub fn run(input: &[u8]) {
    let Some((&parameters, bytes)) = input.split_first() else { return };
    let bit = |n: u8| parameters >> n & 1 != 0;
    let device = MemoryDevice::new(EXPORT_BYTES, if bit(3) { 4096 } else { 512 });
    let export = Export::new("db", Arc::new(device.expect("a valid size")));
    let exports = Arc::new(Exports::new([export]).expect("one name"));
    let server = NbdServer::new(exports, ServerOptions::default(), Drain::new());
    let serve = move |stream| {
        let server = server.clone();
        async move { drop(server.serve(stream).await) }
    };
    conversation::run(u64::from(parameters >> 4), serve, async |address| {
        let client = Rc::new(Client::connect(&address).await);
        if bit(2) {
            client.send_beside(bytes.to_vec());
            client.settle(|_| ()).await;
            return;
        }
        client.send(&negotiation(bit(0), bit(1))).await;
        let begun = client.settle(<[u8]>::len).await;
        assert!(begun > GREETING_BYTES, "a valid negotiation succeeds");
        client.send_beside(bytes.to_vec());
        let whole = || !client.is_hung_up();
        client.settle(|received| replies(&received[begun..], bytes, whole())).await;
    });
}

fn negotiation(structured: bool, sized: bool) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    if structured {
        put_option(&mut bytes, option::STRUCTURED_REPLY, &[]);
    }
    let items: &[u16] = if sized { &[info::BLOCK_SIZE] } else { &[] };
    put_option(&mut bytes, option::GO, &info_request("db", items));
    bytes
}

/// The first reply can be checked without knowing its request; an error reply, or one without data,
/// is complete.
fn replies(received: &[u8], sent: &[u8], whole: bool) {
    if received.is_empty() {
        return;
    }
    assert!(sent.len() >= NbdRequest::BYTES, "a reply without a request");
    match ReplyHeader::decode(received) {
        Ok(Some(header)) => assert!(received.len() >= header.bytes()),
        Ok(None) => assert!(!whole, "a server truncates no reply"),
        Err(bad) => panic!("not a reply: {bad}"),
    }
}
