//! Seeds of NBD input: negotiations and requests.

use std::io;

use flagstone_nbd::wire::handshake_flag;
use flagstone_nbd::wire::option::{info, info_request, option, put_option};
use flagstone_nbd::wire::reply::{put_data, put_simple};
use flagstone_nbd::wire::request::{Cookie, NbdRequest, command, command_flag};

use super::Corpus;

/// Client flags followed by options.
fn client(parameters: u8, flags: u16, options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![parameters];
    bytes.extend(u32::from(flags).to_be_bytes());
    for (option, data) in options {
        put_option(&mut bytes, *option, data);
    }
    bytes
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
fn meta_context(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// `nbd_handshake` and `nbd_server` from its start: negotiations of libnbd, QEMU, nbd-client and
/// fio.
pub(crate) fn handshakes(corpus: &Corpus) -> io::Result<()> {
    let both = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let go = info_request("db", &[info::EXPORT, info::BLOCK_SIZE]);
    let all = info_request("", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE]);
    let unknown = info_request("nothing", &[]);
    let meta = meta_context("db", &["base:allocation", "qemu:"]);
    // Several exports, cut in the middle.
    let several = 1 | 64 << 1;
    let seeds: &[(&str, Vec<u8>)] = &[
        ("go", client(64 << 1, both, &[(option::STRUCTURED_REPLY, &[]), (option::GO, &go)])),
        (
            "meta-go",
            client(
                30 << 1,
                both,
                &[
                    (option::STRUCTURED_REPLY, &[]),
                    (option::LIST_META_CONTEXT, &meta),
                    (option::SET_META_CONTEXT, &meta),
                    (option::GO, &go),
                ],
            ),
        ),
        (
            "list-info-abort",
            client(
                several,
                both,
                &[
                    (option::LIST, &[]),
                    (option::INFO, &all),
                    (option::INFO, &go),
                    (option::ABORT, &[]),
                ],
            ),
        ),
        ("unknown-export", client(several, both, &[(option::GO, &unknown), (option::GO, &go)])),
        ("export-name", client(2, 1, &[(option::EXPORT_NAME, b"db")])),
        ("export-name-default", client(0, both, &[(option::EXPORT_NAME, b"")])),
        ("export-name-none", client(several, both, &[(option::EXPORT_NAME, b"")])),
        (
            "starttls-extended",
            client(
                90 << 1,
                both,
                &[
                    (option::STARTTLS, &[]),
                    (option::EXTENDED_HEADERS, &[]),
                    (99, b"?"),
                    (option::GO, &go),
                ],
            ),
        ),
        ("unknown-flags", client(0, 0x8000, &[])),
        (
            "mistakes",
            client(
                100 << 1,
                both,
                &[(option::LIST, b"x"), (option::GO, &go[..5]), (option::SET_META_CONTEXT, &meta)],
            ),
        ),
    ];
    for (name, bytes) in seeds {
        corpus.put("nbd_handshake", name, bytes)?;
        corpus.put("nbd_server", &format!("start-{name}"), &[&[0b100], &bytes[1..]].concat())?;
    }
    let mut long = client(0, both, &[]);
    put_option(&mut long, option::GO, &[]);
    let at = long.len() - 4;
    long[at..].copy_from_slice(&u32::MAX.to_be_bytes());
    corpus.put("nbd_handshake", "endless-option", &long)
}

/// `nbd_request` and `nbd_server`: each command with each session parameter.
pub(crate) fn requests(corpus: &Corpus) -> io::Result<()> {
    let request = |command, flags, offset, len| NbdRequest {
        flags,
        command,
        cookie: Cookie(0x1122_3344),
        offset,
        len,
    };
    let end = 1 << 30;
    let commands = [
        ("read", request(command::READ, 0, 4096, 4096)),
        ("read-df", request(command::READ, command_flag::DF, 1, 511)),
        ("read-end", request(command::READ, 0, end - 512, 1024)),
        ("read-wrap", request(command::READ, 0, u64::MAX, 4096)),
        ("read-long", request(command::READ, 0, 0, (32 << 20) + 1)),
        ("write", request(command::WRITE, command_flag::FUA, 512, 8)),
        ("flush", request(command::FLUSH, 0, 0, 0)),
        ("flush-range", request(command::FLUSH, 0, 1, 1)),
        ("trim", request(command::TRIM, command_flag::FUA, 0, 1 << 20)),
        ("cache", request(command::CACHE, 0, 0, 4096)),
        ("zeroes", request(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 1 << 30)),
        ("zeroes-fast", request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 8192, 4096)),
        ("block-status", request(command::BLOCK_STATUS, command_flag::REQ_ONE, 0, 4096)),
        ("unknown", request(77, 0xff, 0, 1)),
    ];
    for parameters in [0b00000, 0b00001, 0b00011, 0b00100, 0b01011, 0b10000, 0b11011] {
        let mut bytes = vec![parameters];
        for (_, request) in &commands {
            bytes.extend(request.encode());
            if request.command == command::WRITE {
                bytes.extend(vec![0x5a; request.len as usize]);
            }
        }
        bytes.extend(request(command::DISC, 0, 0, 0).encode());
        corpus.put("nbd_request", &format!("all-{parameters:05b}"), &bytes)?;
        bytes[0] &= 0b11;
        corpus.put("nbd_server", &format!("all-{parameters:05b}"), &bytes)?;
    }
    for (name, request) in &commands {
        corpus.put("nbd_request", name, &[&[0b10011], &request.encode()[..]].concat())?;
    }
    Ok(())
}

/// `nbd_client`: possible server messages in place of the server's own, and between them.
pub(crate) fn tampered(corpus: &Corpus) -> io::Result<()> {
    let mut simple = [0; 16];
    put_simple(&mut simple, Cookie(1), 5);
    let mut data = [0; 28];
    put_data(&mut data, Cookie(1), 0, 512, true);
    let words: [(&str, &[u8]); 4] =
        [("simple", &simple), ("data", &data), ("ones", &[0xff; 8]), ("zeroes", &[0; 24])];
    // The greeting; the answer to structured replies; the size in the answer to GO; the first
    // replies.
    for (at, pass_bytes) in [0_u16, 18, 38, 58, 60, 100, 130, 200].into_iter().enumerate() {
        for (index, (name, bytes)) in words.iter().enumerate() {
            let (how, connection) = ((index + at) as u8 % 4, u8::from(at == 7));
            let [low, high] = pass_bytes.to_le_bytes();
            let input = [&[1, how | connection << 2, low, high], *bytes].concat();
            corpus.put("nbd_client", &format!("{name}-{at}"), &input)?;
        }
    }
    corpus.put("nbd_client", "untouched", &[0, 0, 0, 0])
}
