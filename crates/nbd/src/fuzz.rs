//! The parts that read bytes from outside, as functions of those bytes: for fuzzing and for tests.
//!
//! Each runs the very code that connections run, without sockets, and asserts what it promises:
//! no panic, no range outside of the export, bounded answers, and always some progress.

use std::sync::Arc;

use flagstone_blockdev::Geometry;

use crate::client::negotiate::{self, Negotiation};
use crate::export::{Export, Exports};
use crate::handshake::{Handshake, Progress};
use crate::limits::{MAX_OPTION_BYTES, MAX_REQUEST_BYTES};
use crate::session::{Action, Session};
use crate::testing::NoData;
use crate::wire::link::LinkId;
use crate::wire::reply::{Header, MAX_HEADER_BYTES, put_data, put_error, put_simple};
use crate::wire::request::Request;

/// Exports of several shapes: `a` of 1 MiB in 512 B blocks, `b` of 16 EiB less a block in 4 KiB
/// blocks, `c` read-only and empty.
fn exports() -> Arc<Exports> {
    let shape = |size, block| NoData::shared(Geometry::new(size, block));
    let exports = [
        Export::new("a", shape(1 << 20, 512)).described("small"),
        Export::new("b", shape(u64::MAX - 4095, 4096)),
        Export::new("c", shape(0, 512)).read_only(true),
    ];
    Arc::new(Exports::new(exports).expect("the names are good and differ"))
}

/// What a whole server makes of a client's bytes: the bytes that it sends before it has seen the
/// end, with zeroes for data that it would read. Stops where the connection would be closed.
pub fn serve_bytes(mut input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports(), &mut out);
    loop {
        let before = out.len();
        let (taken, progress) = handshake.step(input, &mut out);
        input = &input[taken..];
        assert!(out.len() - before < 2 * MAX_OPTION_BYTES as usize, "answers are bounded");
        match progress {
            Progress::Again => assert!(taken > 0, "no progress"),
            Progress::Begin(session) => break transmit(&session, input, &mut out),
            Progress::More | Progress::Close(_) => break,
        }
    }
    out
}

fn transmit(session: &Session, mut input: &[u8], out: &mut Vec<u8>) {
    while let Ok(Some(request)) = Request::decode(input) {
        input = &input[Request::BYTES..];
        let verdict = session.admit(&request);
        if verdict == Ok(Action::Disconnect) {
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
                    Action::Read { offset, len } if session.structured => {
                        put_data(&mut header, request.cookie, offset, len)
                    }
                    _ => put_simple(&mut header, request.cookie, 0),
                }
            }
        };
        assert!(matches!(Header::decode(&header[..len]), Ok(Some(_))), "no reply was made");
        out.extend_from_slice(&header[..len]);
        if let Ok(Action::Read { len, .. }) = verdict
            && len <= 1 << 16
        {
            out.resize(out.len() + len as usize, 0);
        }
    }
}

/// What was admitted lies in the export, and is whole blocks if that was promised.
fn check_range(session: &Session, request: &Request, action: Action) {
    let geometry = session.geometry();
    let (Action::Read { offset, .. }
    | Action::Write { offset, .. }
    | Action::Trim { offset, .. }
    | Action::Zeroes { offset, .. }) = action
    else {
        return;
    };
    let len = u64::from(request.len);
    assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= geometry.size_bytes));
    assert!(!session.sized || session.is_aligned(offset, len));
    if matches!(action, Action::Read { .. } | Action::Write { .. }) {
        assert!(request.len <= MAX_REQUEST_BYTES);
    } else {
        assert!(!session.export.read_only);
    }
}

/// What a client makes of a server's bytes: what it sends before it gives up or begins.
pub fn negotiate_bytes(mut input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new("export", LinkId(7));
    while let Ok((taken, progress)) = negotiation.step(input, &mut out) {
        input = &input[taken..];
        match progress {
            negotiate::Progress::Again => assert!(taken > 0, "no progress"),
            negotiate::Progress::More => break,
            negotiate::Progress::Begin(info) => {
                assert!(info.block_sizes[0].is_power_of_two());
                while let Ok(Some(header)) = Header::decode(input) {
                    input = &input[header.bytes()..];
                }
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::option::{info, info_request, option, put_option};
    use crate::wire::request::{Cookie, command};
    use proptest::prelude::*;

    /// A client's bytes up to the transmission phase of export `name`.
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
        fn any_bytes_are_survived_by_the_server(bytes: Vec<u8>) {
            serve_bytes(&bytes);
        }

        #[test]
        fn any_bytes_after_the_flags_are_survived(bytes: Vec<u8>) {
            let mut input = 3_u32.to_be_bytes().to_vec();
            put_option(&mut input, 77, &[]);
            input.extend(bytes);
            serve_bytes(&input);
        }

        #[test]
        fn any_option_is_survived(
            options in prop::collection::vec((0_u32..14, any::<Vec<u8>>()), 0..20),
        ) {
            let mut input = 3_u32.to_be_bytes().to_vec();
            for (option, data) in options {
                put_option(&mut input, option, &data);
            }
            serve_bytes(&input);
        }

        #[test]
        fn any_requests_are_answered_or_end_the_connection(
            name in prop::sample::select(vec!["a", "b", "c"]),
            structured: bool,
            sized: bool,
            requests in prop::collection::vec(
                (0_u16..40, 0_u16..10, any::<u64>(), edge_offsets(), edge_lengths()), 0..20),
        ) {
            let mut input = hello(name, structured, sized);
            for (flags, command, cookie, offset, len) in requests {
                let request = Request { flags, command, cookie: Cookie(cookie), offset, len };
                input.extend(request.encode());
                if request.payload_bytes() <= 8192 {
                    input.resize(input.len() + request.payload_bytes() as usize, 1);
                }
            }
            serve_bytes(&input);
        }

        #[test]
        fn any_server_is_survived_by_the_client(bytes: Vec<u8>) {
            negotiate_bytes(&bytes);
        }

        /// The client's own words, answered by our server, then cut or changed anywhere.
        #[test]
        fn a_changed_server_is_survived_by_the_client(at: prop::sample::Index, value: u8) {
            let mut client = hello("a", true, true);
            client.extend(
                Request { flags: 0, command: command::READ, cookie: Cookie(1), offset: 0, len: 512 }
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
    fn a_client_cut_off_at_any_byte_is_survived() {
        let mut bytes = hello("a", true, true);
        let request =
            Request { flags: 1, command: command::WRITE, cookie: Cookie(9), offset: 0, len: 512 };
        bytes.extend(request.encode());
        bytes.resize(bytes.len() + 512, 7);
        let whole = serve_bytes(&bytes);
        for len in 0..bytes.len() {
            let part = serve_bytes(&bytes[..len]);
            assert!(whole.starts_with(&part) && part.len() < whole.len(), "{len}");
        }
    }
}
