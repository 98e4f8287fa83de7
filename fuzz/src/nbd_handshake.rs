//! NBD negotiation: what a client may send before requests.
//!
//! Input: one byte of parameters (bit 0: several exports; bits 7:1: where to cut the stream), then
//! the client's bytes. The stream is read whole, and again in two parts: the answers are the same.

use std::sync::{Arc, OnceLock};

use flagstone_blockdev::NullDevice;
use flagstone_nbd::handshake::{Handshake, Progress};
use flagstone_nbd::limits::{MAX_OPTION_BYTES, MAX_OPTIONS, MAX_STRING_BYTES};
use flagstone_nbd::wire::option::{
    InfoRequest, OPTION_HEADER_BYTES, OptionHeader, ReplyHeader, decode_meta_context,
};
use flagstone_nbd::{Export, Exports};

fn exports(several: bool) -> &'static Arc<Exports> {
    static ONE: OnceLock<Arc<Exports>> = OnceLock::new();
    static SEVERAL: OnceLock<Arc<Exports>> = OnceLock::new();
    let export = |name: &str| {
        let device = NullDevice::new(1 << 30, 512).expect("a size that is allowed");
        Export::new(name, Arc::new(device))
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

/// How a negotiation ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Waits,
    Begins { structured: bool, sized: bool },
    Closes(String),
}

/// Negotiates with the client's bytes, whole and in two parts.
pub fn run(input: &[u8]) {
    let Some((parameters, stream)) = input.split_first() else { return };
    let exports = exports(parameters & 1 != 0);
    let whole = negotiate(exports, &[stream]);
    let cut = (usize::from(parameters >> 1) * stream.len()) >> 7;
    let (head, tail) = stream.split_at(cut);
    assert_eq!(negotiate(exports, &[head, tail]), whole, "cut at {cut}");
    codecs(stream);
}

/// The end, how many bytes were taken, and all that was answered.
fn negotiate(exports: &Arc<Exports>, parts: &[&[u8]]) -> (End, usize, Vec<u8>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports.clone(), &mut out);
    let mut pending: Vec<u8> = Vec::new();
    let mut taken = 0;
    for part in parts {
        pending.extend_from_slice(part);
        loop {
            let before = out.len();
            let (used, progress) = handshake.step(&pending, &mut out);
            assert!(used <= pending.len());
            // Two exports with their descriptions, or all items of one: never more.
            assert!(out.len() - before <= 8 * MAX_STRING_BYTES);
            taken += used;
            pending.drain(..used);
            match progress {
                Progress::Again => assert!(used > 0, "no endless loop"),
                Progress::More => {
                    assert!(pending.len() < OPTION_HEADER_BYTES + MAX_OPTION_BYTES as usize);
                    break;
                }
                Progress::Begin(session) => {
                    let (structured, sized) = (session.structured, session.sized);
                    return (End::Begins { structured, sized }, taken, out);
                }
                Progress::Close(refusal) => {
                    return (End::Closes(refusal.to_string()), taken, out);
                }
            }
        }
    }
    assert!(out.len() <= MAX_OPTIONS as usize * 8 * MAX_STRING_BYTES);
    (End::Waits, taken, out)
}

/// The codecs by themselves, and the replies that a client reads.
fn codecs(stream: &[u8]) {
    let _ = (OptionHeader::decode(stream), ReplyHeader::decode(stream));
    if let Ok(request) = InfoRequest::decode(stream) {
        assert!(request.name.len() <= MAX_STRING_BYTES);
    }
    let _ = decode_meta_context(stream);
}
