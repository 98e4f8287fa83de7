//! Fuzz target for NBD negotiation: client bytes before the first request.
//!
//! Input: one byte of parameters (bit 0: several exports; bits 2:1: TLS off, offered, required;
//! bits 7:3: where to split the stream), then the client's bytes. The stream is parsed as a whole,
//! and again in two parts: the answers are equal. Bytes after STARTTLS are taken as decrypted ones.
//! Where TLS is required, no client begins without it.

use std::sync::{Arc, OnceLock};

use flagstone_blockdev::NullDevice;
use flagstone_nbd::handshake::{Handshake, HandshakeStep, Security};
use flagstone_nbd::limits::{MAX_OPTION_BYTES, MAX_OPTIONS, MAX_STRING_BYTES};
use flagstone_nbd::wire::option::{
    InfoRequest, MetaRequest, OPTION_HEADER_BYTES, OptionHeader, OptionReplyHeader,
};
use flagstone_nbd::{Export, Exports};

fn exports(several: bool) -> &'static Arc<Exports> {
    static ONE: OnceLock<Arc<Exports>> = OnceLock::new();
    static SEVERAL: OnceLock<Arc<Exports>> = OnceLock::new();
    let export = |name: &str| {
        let device = NullDevice::new(1 << 30, 512).expect("a size that is allowed");
        let clients = (name == "logs").then(|| vec!["alice".to_owned()]);
        Export::new(name, Arc::new(device)).accessible_to(clients)
    };
    if several {
        SEVERAL.get_or_init(|| {
            let all = [export("db").described("the database"), export("logs").read_only(true)];
            Arc::new(Exports::new(all).expect("two names"))
        })
    } else {
        ONE.get_or_init(|| Arc::new(Exports::new([export("db")]).expect("one name")))
    }
}

/// Result of a negotiation.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Waits,
    Begins { structured: bool, sized: bool },
    Closes(String),
}

/// Negotiates with the client's bytes, as a whole and in two parts.
pub fn run(input: &[u8]) {
    let Some((parameters, stream)) = input.split_first() else { return };
    let exports = exports(parameters & 1 != 0);
    let security = match parameters >> 1 & 3 {
        1 => Security::Offered,
        2 => Security::Required,
        _ => Security::Off,
    };
    let whole = negotiate(exports, &security, &[stream]);
    let cut = (usize::from(parameters >> 3) * stream.len()) >> 5;
    let (head, tail) = stream.split_at(cut);
    assert_eq!(negotiate(exports, &security, &[head, tail]), whole, "cut at {cut}");
    codecs(stream);
}

/// Returns the result, the number of consumed bytes, and all answers.
fn negotiate(
    exports: &Arc<Exports>,
    security: &Security,
    parts: &[&[u8]],
) -> (End, usize, Vec<u8>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports.clone(), &mut out).with_security(security.clone());
    let mut secured = false;
    let mut pending: Vec<u8> = Vec::new();
    let mut taken = 0;
    for part in parts {
        pending.extend_from_slice(part);
        loop {
            let before = out.len();
            let (used, progress) = handshake.step(&pending, &mut out);
            assert!(used <= pending.len());
            // At most two exports with their descriptions, or all items of one.
            assert!(out.len() - before <= 8 * MAX_STRING_BYTES);
            taken += used;
            pending.drain(..used);
            match progress {
                HandshakeStep::Again => assert!(used > 0, "no endless loop"),
                HandshakeStep::Check(_) => {}
                HandshakeStep::More => {
                    assert!(pending.len() < OPTION_HEADER_BYTES + MAX_OPTION_BYTES as usize);
                    break;
                }
                HandshakeStep::StartTls => {
                    assert!(!secured && *security != Security::Off);
                    secured = true;
                    handshake.secured(vec!["alice".to_owned()]);
                }
                HandshakeStep::Begin(session) => {
                    assert!(secured || *security != Security::Required);
                    let (structured, sized) = (session.structured, session.sized);
                    return (End::Begins { structured, sized }, taken, out);
                }
                HandshakeStep::Close(refusal) => {
                    return (End::Closes(refusal.to_string()), taken, out);
                }
            }
        }
    }
    assert!(out.len() <= MAX_OPTIONS as usize * 8 * MAX_STRING_BYTES);
    (End::Waits, taken, out)
}

/// The codecs on their own, and the replies as read by a client.
fn codecs(stream: &[u8]) {
    let _ = (OptionHeader::decode(stream), OptionReplyHeader::decode(stream));
    if let Ok(request) = InfoRequest::decode(stream) {
        assert!(request.name.len() <= MAX_STRING_BYTES);
    }
    let _ = MetaRequest::decode(stream, "x-");
}
