//! Tests with random input: the code that parses peer input, as functions of bytes.
//!
//! Each test runs the code of real connections without sockets, and asserts its invariants: no
//! panic, no range outside the export, bounded output, and progress on every step.

use std::sync::Arc;

use flagstone_blockdev::Geometry;

use crate::client::negotiate::{self, Negotiation};
use crate::export::{Export, Exports};
use crate::handshake::{Handshake, HandshakeStep};
use crate::limits::{MAX_OPTION_BYTES, MAX_REQUEST_BYTES};
use crate::session::{NbdSession, RequestAction};
use crate::tests::device::NoData;
use crate::wire::link::LinkId;
use crate::wire::reply::{MAX_HEADER_BYTES, ReplyHeader, put_data, put_error, put_simple};

use crate::wire::option::{info, info_request, option, put_option};
use crate::wire::request::{Cookie, NbdRequest, command};
use proptest::prelude::*;

/// Exports of several geometries: `a` of 1 MiB in 512 B blocks, `b` of 16 EiB minus one block in 4
/// KiB blocks, `c` read-only and empty.
fn exports() -> Arc<Exports> {
    let shape = |size, block| NoData::shared(Geometry::new(size, block));
    let exports = [
        Export::new("a", shape(1 << 20, 512)).described("small"),
        Export::new("b", shape(u64::MAX - 4095, 4096)),
        Export::new("c", shape(0, 512)).read_only(true),
    ];
    Arc::new(Exports::new(exports).expect("the names are good and differ"))
}

/// Server output for a client's bytes up to the end of input, with zeroes for read data. Stops
/// where the connection would be closed.
fn serve_bytes(mut input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports(), &mut out);
    loop {
        let before = out.len();
        let (taken, progress) = handshake.step(input, &mut out);
        input = &input[taken..];
        assert!(out.len() - before < 2 * MAX_OPTION_BYTES as usize, "answers are bounded");
        match progress {
            HandshakeStep::Again => assert!(taken > 0, "no progress"),
            HandshakeStep::Begin(session) => break transmit(&session, input, &mut out),
            HandshakeStep::Check(_) => {}
            HandshakeStep::More | HandshakeStep::Close(_) | HandshakeStep::StartTls => break,
        }
    }
    out
}

fn transmit(session: &NbdSession, mut input: &[u8], out: &mut Vec<u8>) {
    while let Ok(Some(request)) = NbdRequest::decode(input) {
        input = &input[NbdRequest::BYTES..];
        let verdict = session.admit(&request);
        if verdict == Ok(RequestAction::Disconnect) {
            return;
        }
        let payload = request.payload_bytes() as usize;
        let Some(rest) = input.get(payload..) else { return };
        input = rest;
        let mut header = [0; MAX_HEADER_BYTES];
        let len = match verdict {
            Err(error) if session.structured => put_error(&mut header, request.cookie, error),
            Err(error) => put_simple(&mut header, request.cookie, error.0),
            Ok(action) => {
                check_range(session, &request, action);
                match action {
                    RequestAction::Read { offset, len } if session.structured => {
                        put_data(&mut header, request.cookie, offset, len, true)
                    }
                    _ => put_simple(&mut header, request.cookie, 0),
                }
            }
        };
        assert!(matches!(ReplyHeader::decode(&header[..len]), Ok(Some(_))), "no reply was made");
        out.extend_from_slice(&header[..len]);
        if let Ok(RequestAction::Read { len, .. }) = verdict
            && len <= 1 << 16
        {
            out.resize(out.len() + len as usize, 0);
        }
    }
}

/// Asserts that an admitted request lies in the export, in whole blocks if negotiated.
fn check_range(session: &NbdSession, request: &NbdRequest, action: RequestAction) {
    let geometry = session.geometry();
    let (RequestAction::Read { offset, .. }
    | RequestAction::Write { offset, .. }
    | RequestAction::Trim { offset, .. }
    | RequestAction::Zeroes { offset, .. }) = action
    else {
        return;
    };
    let len = u64::from(request.len);
    assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= geometry.size_bytes));
    assert!(!session.sized || session.is_aligned(offset, len));
    if matches!(action, RequestAction::Read { .. } | RequestAction::Write { .. }) {
        assert!(request.len <= MAX_REQUEST_BYTES);
    } else {
        assert!(!session.export.read_only);
    }
}

/// Gives a server's bytes to a client without and with TLS.
fn negotiate_bytes(input: &[u8]) {
    negotiate_with(Negotiation::new("export", LinkId(7)), input);
    negotiate_with(Negotiation::new("export", LinkId(7)).with_tls(), input);
}

/// Gives a server's bytes to a client, until it fails or begins the transmission phase.
fn negotiate_with(mut negotiation: Negotiation, mut input: &[u8]) {
    let mut out = Vec::new();
    while let Ok((taken, progress)) = negotiation.step(input, &mut out) {
        input = &input[taken..];
        match progress {
            negotiate::NegotiationStep::Again => assert!(taken > 0, "no progress"),
            negotiate::NegotiationStep::More => break,
            negotiate::NegotiationStep::StartTls => negotiation.secured(&mut out),
            negotiate::NegotiationStep::Begin(info) => {
                assert!(info.block_sizes[0].is_power_of_two());
                while let Ok(Some(header)) = ReplyHeader::decode(input) {
                    input = &input[header.bytes()..];
                }
                break;
            }
        }
    }
}

/// Client bytes up to the transmission phase of export `name`.
fn hello(name: &str, structured: bool, sized: bool) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    if structured {
        put_option(&mut bytes, option::STRUCTURED_REPLY, &[]);
    }
    let items: &[u16] = if sized { &[info::BLOCK_SIZE] } else { &[] };
    put_option(&mut bytes, option::GO, &info_request(name, items));
    bytes
}

proptest! {
    #[test]
    fn server_survives_random_bytes(bytes: Vec<u8>) {
        serve_bytes(&bytes);
    }

    #[test]
    fn server_survives_random_bytes_after_flags(bytes: Vec<u8>) {
        let mut input = 3_u32.to_be_bytes().to_vec();
        put_option(&mut input, 77, &[]);
        input.extend(bytes);
        serve_bytes(&input);
    }

    #[test]
    fn server_survives_random_options(
        options in prop::collection::vec((0_u32..14, any::<Vec<u8>>()), 0..20),
    ) {
        let mut input = 3_u32.to_be_bytes().to_vec();
        for (option, data) in options {
            put_option(&mut input, option, &data);
        }
        serve_bytes(&input);
    }

    #[test]
    fn server_answers_random_requests(
        name in prop::sample::select(vec!["a", "b", "c"]),
        structured: bool,
        sized: bool,
        requests in prop::collection::vec(
            (0_u16..40, 0_u16..10, any::<u64>(), edge_offsets(), edge_lengths()), 0..20),
    ) {
        let mut input = hello(name, structured, sized);
        for (flags, command, cookie, offset, len) in requests {
            let request = NbdRequest { flags, command, cookie: Cookie(cookie), offset, len };
            input.extend(request.encode());
            if request.payload_bytes() <= 8192 {
                input.resize(input.len() + request.payload_bytes() as usize, 1);
            }
        }
        serve_bytes(&input);
    }

    #[test]
    fn client_survives_random_server(bytes: Vec<u8>) {
        negotiate_bytes(&bytes);
    }

    /// The client's own messages, answered by the server, then cut or altered at random.
    #[test]
    fn client_survives_altered_server(at: prop::sample::Index, value: u8) {
        let mut client = hello("a", true, true);
        client.extend(
            NbdRequest { flags: 0, command: command::READ, cookie: Cookie(1), offset: 0, len: 512 }
                .encode(),
        );
        let mut server = serve_bytes(&client);
        let at = at.index(server.len());
        server[at] = value;
        negotiate_bytes(&server);
    }
}

fn edge_offsets() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 511, 512, 4096, (1 << 20) - 512, 1 << 20, u64::MAX - 4096])
}

fn edge_lengths() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 1, 512, 4096, 1 << 20, 32 << 20, (32 << 20) + 512, u32::MAX])
}

#[test]
fn server_survives_client_cut_at_any_byte() {
    let mut bytes = hello("a", true, true);
    let request =
        NbdRequest { flags: 1, command: command::WRITE, cookie: Cookie(9), offset: 0, len: 512 };
    bytes.extend(request.encode());
    bytes.resize(bytes.len() + 512, 7);
    let whole = serve_bytes(&bytes);
    for len in 0..bytes.len() {
        let part = serve_bytes(&bytes[..len]);
        assert!(whole.starts_with(&part) && part.len() < whole.len(), "{len}");
    }
}
