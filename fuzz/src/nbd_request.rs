//! Fuzz target for NBD requests as a session admits them, and replies as a client parses them.
//!
//! Input: one byte of parameters (bit 0: structured replies; bit 1: the client respects block
//! sizes; bit 2: read-only; bit 3: blocks of 4,096 bytes; bit 4: a memory device; bit 5: a context
//! for block status), then consecutive requests.

use std::sync::Arc;

use flagstone_blockdev::{MemoryDevice, NullDevice, SharedDevice};
use flagstone_nbd::Export;
use flagstone_nbd::limits::MAX_REQUEST_BYTES;
use flagstone_nbd::session::{NbdSession, RequestAction};
use flagstone_nbd::wire::reply::{MAX_HEADER_BYTES, ReplyHeader, put_error};
use flagstone_nbd::wire::request::{NbdRequest, command_flag};

const SIZE_BYTES: u64 = 1 << 30;

/// Parses the requests and admits or refuses each.
pub fn run(input: &[u8]) {
    let Some((parameters, stream)) = input.split_first() else { return };
    let bit = |n: u8| parameters >> n & 1 != 0;
    let block_bytes = if bit(3) { 4096 } else { 512 };
    // The null device cannot discard, the memory device can.
    let device: SharedDevice = if bit(4) {
        Arc::new(MemoryDevice::new(SIZE_BYTES, block_bytes).expect("a size that is allowed"))
    } else {
        Arc::new(NullDevice::new(SIZE_BYTES, block_bytes).expect("a size that is allowed"))
    };
    let export = Arc::new(Export::new("db", device).read_only(bit(2)));
    let mut session = NbdSession::new(export, bit(0), bit(1));
    session.reports_allocation = bit(5);
    let mut rest = stream;
    while let Ok(Some(request)) = NbdRequest::decode(rest) {
        assert_eq!(request.encode(), rest[..NbdRequest::BYTES]);
        assert!(admitted(&session, &request), "{request:?} was admitted and must not be");
        rest = &rest[NbdRequest::BYTES..];
        // A payload may announce any length. A server reads it in pieces; here it is the rest of
        // the input.
        let payload = usize::try_from(request.payload_bytes()).unwrap_or(usize::MAX);
        rest = &rest[payload.min(rest.len())..];
    }
    replies(stream);
}

/// True if an admitted request may be carried out. Checks that every refusal can be sent.
fn admitted(session: &NbdSession, request: &NbdRequest) -> bool {
    let read_only = session.export.read_only;
    let within = |offset: u64, len: u32| {
        let end = offset.checked_add(u64::from(len));
        let whole = !session.sized || session.is_aligned(offset, u64::from(len));
        len > 0 && end.is_some_and(|end| end <= SIZE_BYTES) && whole
    };
    let fua_asked = request.has(command_flag::FUA);
    match session.admit(request) {
        Ok(RequestAction::Read { offset, len }) => within(offset, len) && len <= MAX_REQUEST_BYTES,
        Ok(RequestAction::Write { offset, fua }) => {
            let len = request.payload_bytes();
            let kept = fua == fua_asked && len <= MAX_REQUEST_BYTES;
            kept && within(offset, len) && !read_only
        }
        Ok(RequestAction::Trim { offset, len, fua }) => {
            fua == fua_asked && within(offset, len) && !read_only
        }
        Ok(RequestAction::Zeroes { offset, len, flags }) => {
            flags.fua == fua_asked && within(offset, len) && !read_only
        }
        Ok(RequestAction::Status { offset, len, one }) => {
            let asked = one == request.has(command_flag::REQ_ONE);
            session.reports_allocation && asked && within(offset, len)
        }
        Ok(RequestAction::Flush | RequestAction::Nothing | RequestAction::Disconnect) => true,
        Err(error) => {
            let mut out = [0; MAX_HEADER_BYTES];
            let len = put_error(&mut out, request.cookie, error);
            matches!(ReplyHeader::decode(&out[..len]), Ok(Some(_)))
        }
    }
}

fn replies(stream: &[u8]) {
    let mut rest = stream;
    while let Ok(Some(header)) = ReplyHeader::decode(rest) {
        rest = &rest[header.bytes()..];
    }
}
