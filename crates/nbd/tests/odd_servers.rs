//! Client against old, minimal, unusual or broken servers.

mod common;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{any_port, in_simulation, leaves_nothing, on_each_driver, on_each_real_driver, until};
use flagstone_blockdev::{BlockDevice, IoError, SharedDevice, ZeroFlags};
use flagstone_conformance::{self as conformance, Options};
use flagstone_nbd::client::negotiate::NegotiationError;
use flagstone_nbd::wire::expected::EXPECTED_CONTEXT;
use flagstone_nbd::wire::option::{info, option, put_info, put_reply, reply_type};
use flagstone_nbd::wire::request::{NbdRequest, command};
use flagstone_nbd::wire::{INIT_MAGIC, OPTION_MAGIC, transmission_flag as flag};
use flagstone_nbd::{ClientOptions, ConnectError, NbdDevice};
use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::{Buf, buf, spawn_detached, time};

const SIZE_BYTES: u64 = 1 << 20;

/// Response to a request, given the requested data.
type Answer = fn(&NbdRequest, &[u8]) -> Vec<u8>;

/// Server that handles one request at a time.
#[derive(Clone, Copy)]
struct Odd {
    flags: u16,
    structured: bool,
    /// Supports GO; otherwise only EXPORT_NAME.
    go: bool,
    maximum: u32,
    answer: Answer,
    /// Has no export, and lists a metadata context of this name.
    nothing: Option<&'static str>,
}

const PLAIN: Odd = Odd {
    flags: flag::HAS_FLAGS,
    structured: false,
    go: true,
    maximum: 32 << 20,
    answer: simple,
    nothing: None,
};

fn simple(request: &NbdRequest, data: &[u8]) -> Vec<u8> {
    let mut out = 0x6744_6698_u32.to_be_bytes().to_vec();
    out.extend([0; 4]);
    out.extend(request.cookie.0.to_be_bytes());
    out.extend(data);
    out
}

fn chunk(request: &NbdRequest, done: bool, kind: u16, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut out = 0x668e_33ef_u32.to_be_bytes().to_vec();
    out.extend(u16::from(done).to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(request.cookie.0.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
    out
}

fn data(request: &NbdRequest, done: bool, from: usize, part: &[u8]) -> Vec<u8> {
    chunk(request, done, 1, &[&(request.offset + from as u64).to_be_bytes(), part])
}

async fn read(stream: &Stream, len: usize) -> Option<Vec<u8>> {
    let (result, buf) = stream.recv_exact(buf::alloc(len).await).await;
    result.ok().map(|()| buf.to_vec())
}

async fn send(stream: &Stream, bytes: &[u8]) {
    for part in bytes.chunks(1 << 20) {
        let _ = stream.send_buf(Buf::copy_of(part).unwrap()).await;
    }
}

impl Odd {
    /// Serves one connection after the other from the same memory, until a client sends DISC.
    fn start(self) -> Address {
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        spawn_detached(async move {
            let mut disk = vec![0_u8; SIZE_BYTES as usize];
            while let Ok(stream) = listener.accept().await {
                if self.serve(&stream, &mut disk).await.is_some() {
                    return;
                }
            }
        });
        address
    }

    /// `Some` after a DISC.
    async fn serve(&self, stream: &Stream, disk: &mut [u8]) -> Option<()> {
        let mut greeting = INIT_MAGIC.to_be_bytes().to_vec();
        greeting.extend(OPTION_MAGIC.to_be_bytes());
        greeting.extend([0, 1]);
        send(stream, &greeting).await;
        read(stream, 4).await?;
        while !self.option(stream).await? {}
        loop {
            let request = NbdRequest::decode(&read(stream, 28).await?).ok()??;
            let range = request.offset as usize..request.offset as usize + request.len as usize;
            let mut read_data = Vec::new();
            match request.command {
                command::READ => read_data = disk[range].to_vec(),
                command::WRITE => {
                    assert!(request.len <= self.maximum, "longer than announced to the client");
                    disk[range].copy_from_slice(&read(stream, request.len as usize).await?);
                }
                command::WRITE_ZEROES | command::TRIM => disk[range].fill(0),
                command::DISC => return Some(()),
                _ => {}
            }
            let reply = if request.command == command::READ {
                (self.answer)(&request, &read_data)
            } else {
                simple(&request, &[])
            };
            send(stream, &reply).await;
        }
    }

    /// Answers one option; true when the transmission phase begins.
    async fn option(&self, stream: &Stream) -> Option<bool> {
        let header = read(stream, 16).await?;
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let (kind, len) = (number(8), number(12));
        read(stream, len as usize).await?;
        let (size, flags) = (SIZE_BYTES.to_be_bytes(), self.flags.to_be_bytes());
        let mut out = Vec::new();
        let mut begins = false;
        match kind {
            option::STRUCTURED_REPLY if self.structured => {
                put_reply(&mut out, kind, reply_type::ACK, &[]);
            }
            option::GO if self.nothing.is_some() => {
                put_reply(&mut out, kind, reply_type::ERR_UNKNOWN, b"there is none");
            }
            option::LIST_META_CONTEXT if self.nothing.is_some_and(|name| !name.is_empty()) => {
                let name = self.nothing.unwrap_or_default();
                let context = [&[0; 4], name.as_bytes()].concat();
                put_reply(&mut out, kind, reply_type::META_CONTEXT, &context);
                put_reply(&mut out, kind, reply_type::ACK, &[]);
            }
            option::GO if self.go => {
                put_info(&mut out, kind, info::EXPORT, &[&size, &flags]);
                let sizes = [1, 4096, self.maximum].map(u32::to_be_bytes);
                put_info(&mut out, kind, info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
                put_reply(&mut out, kind, reply_type::ACK, &[]);
                begins = true;
            }
            option::EXPORT_NAME => {
                out.extend(size);
                out.extend(flags);
                out.extend([0; 124]);
                begins = true;
            }
            _ => put_reply(&mut out, kind, reply_type::ERR_UNSUP, b"what?"),
        }
        send(stream, &out).await;
        Some(begins)
    }

    async fn connect(self) -> Arc<NbdDevice> {
        let address = self.start();
        NbdDevice::connect(address, "disk", ClientOptions::default()).await.unwrap()
    }
}

/// Data in reverse order, in three chunks, the last of them empty.
fn backwards(request: &NbdRequest, bytes: &[u8]) -> Vec<u8> {
    let middle = bytes.len() / 2;
    let mut out = data(request, false, middle, &bytes[middle..]);
    out.extend(data(request, false, 0, &bytes[..middle]));
    out.extend(chunk(request, true, 0, &[]));
    out
}

/// Holes for zeroes, sector by sector.
fn sparse(request: &NbdRequest, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, part) in bytes.chunks(512).enumerate() {
        let from = number * 512;
        if part.iter().all(|byte| *byte == 0) {
            let (at, len) = (request.offset + from as u64, part.len() as u32);
            out.extend(chunk(request, false, 2, &[&at.to_be_bytes(), &len.to_be_bytes()]));
        } else {
            out.extend(data(request, false, from, part));
        }
    }
    out.extend(chunk(request, true, 0, &[]));
    out
}

#[test]
fn unusual_servers_make_conforming_devices() {
    on_each_driver(async || {
        let chunked = Odd { structured: true, ..PLAIN };
        let zeroes = flag::SEND_WRITE_ZEROES | flag::SEND_TRIM;
        for odd in [
            PLAIN,
            Odd { go: false, ..PLAIN },
            Odd { flags: flag::HAS_FLAGS | flag::SEND_FLUSH, ..PLAIN },
            Odd { flags: flag::HAS_FLAGS | zeroes, maximum: 4096 + 1024, ..PLAIN },
            Odd { answer: backwards, ..chunked },
            Odd { answer: sparse, ..chunked },
        ] {
            leaves_nothing(async || {
                let make = async || odd.connect().await as SharedDevice;
                conformance::run(make, Options::quick(7)).await;
            })
            .await;
        }
    });
}

/// An unknown export on another server is an error, whatever its answer to the query for expected
/// exports.
#[test]
fn missing_export_is_expected_only_if_listed() {
    on_each_driver(async || {
        let expected = NegotiationError::NotYet("disk".to_owned());
        let unknown = NegotiationError::UnknownExport("disk".to_owned());
        for (structured, context, error) in [
            (true, EXPECTED_CONTEXT, &expected),
            (true, "x-flagstone:expected-not", &unknown),
            (true, "base:allocation", &unknown),
            // The query is not supported.
            (true, "", &unknown),
            (false, EXPECTED_CONTEXT, &unknown),
        ] {
            let address = Odd { structured, nothing: Some(context), ..PLAIN }.start();
            let options = ClientOptions::default();
            let refused = NbdDevice::connect(address, "disk", options).await.unwrap_err();
            assert_eq!(refused.may_pass(), *error == expected, "{context}");
            assert!(matches!(refused, ConnectError::Negotiation(found) if found == *error));
        }
    });
}

#[test]
fn single_connection_server_gets_one() {
    on_each_real_driver(async || {
        // This server would not accept the next connection before the end of the first.
        let device = PLAIN.connect().await;
        let there = device.clone();
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        flagstone_runtime::cores()[1].spawn(move || async move {
            let data = Buf::copy_of(&[5; 512]).unwrap();
            there.write(512, data, true).await.unwrap();
            let read = there.read(512, buf::alloc(512).await).await.unwrap();
            assert_eq!(read[..], [5; 512]);
            there.write_zeroes(0, 512, ZeroFlags::default()).await.unwrap();
            there.flush().await.unwrap();
            flag.store(true, Ordering::SeqCst);
        });
        until(|| done.load(Ordering::SeqCst)).await;
        let read = device.read(512, buf::alloc(512).await).await.unwrap();
        assert_eq!(read[..], [5; 512]);
    });
}

#[test]
fn protocol_violations_end_connection() {
    let wrong_cookie: Answer = |request, bytes| {
        let cookie = flagstone_nbd::wire::request::Cookie(request.cookie.0 ^ 1);
        data(&NbdRequest { cookie, ..*request }, true, 0, bytes)
    };
    let answers: [Answer; 11] = [
        wrong_cookie,
        |_, _| vec![0x55; 20],
        // A simple reply where chunks were negotiated.
        simple,
        // Only half of the data.
        |request, bytes| data(request, true, 0, &bytes[..bytes.len() / 2]),
        // No data.
        |request, _| chunk(request, true, 0, &[]),
        // The same data twice.
        |request, bytes| [data(request, false, 0, bytes), data(request, true, 0, bytes)].concat(),
        // Outside the request, on either side.
        |request, bytes| data(request, true, 512, bytes),
        |request, bytes| {
            let before = (request.offset.wrapping_sub(512)).to_be_bytes();
            chunk(request, true, 1, &[&before, bytes])
        },
        // A hole of 4 GiB.
        |request, _| {
            chunk(request, true, 2, &[&request.offset.to_be_bytes(), &u32::MAX.to_be_bytes()])
        },
        // An error message longer than its chunk.
        |request, _| chunk(request, true, 0x8001, &[&5_u32.to_be_bytes(), &[0xff, 0xff]]),
        // A chunk of unknown type.
        |request, _| chunk(request, true, 77, &[&[0; 8]]),
    ];
    for answer in answers {
        in_simulation(1, async || {
            let device = Odd { structured: true, answer, ..PLAIN }.connect().await;
            let read = device.read(512, buf::alloc(4096).await).await;
            assert_eq!(read.unwrap_err(), IoError::Unreachable);
        });
    }
}

#[test]
fn error_chunk_fails_only_its_request() {
    on_each_driver(async || {
        let answer: Answer = |request, bytes| match request.offset {
            0 => {
                let error = [&5_u32.to_be_bytes()[..], &[0, 2], b"no", &[0; 8]];
                let mut out = data(request, false, 0, &bytes[..512]);
                out.extend(chunk(request, false, 0x8002, &error));
                out.extend(chunk(request, true, 0, &[]));
                out
            }
            _ => data(request, true, 0, bytes),
        };
        let device = Odd { structured: true, answer, ..PLAIN }.connect().await;
        let failed = device.read(0, buf::alloc(4096).await).await;
        assert_eq!(failed.unwrap_err(), IoError::ReadFault);
        device.read(4096, buf::alloc(4096).await).await.unwrap();
    });
}

#[test]
fn non_nbd_server_is_reported() {
    on_each_driver(async || {
        for (words, expected) in [
            (&b"HTTP/1.1 400 Bad Request"[..], NegotiationError::NotNbd(0x4854_5450_2f31_2e31)),
            (b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0\0\0\0\0\0\0", NegotiationError::TooOld),
        ] {
            let listener = Listener::bind(&any_port()).unwrap();
            let address = listener.address().clone();
            spawn_detached(async move {
                let stream = listener.accept().await.unwrap();
                send(&stream, words).await;
                time::sleep(Duration::from_secs(60)).await;
            });
            let options = ClientOptions::default();
            let error = NbdDevice::connect(address, "disk", options).await.unwrap_err();
            assert!(matches!(error, ConnectError::Negotiation(error) if error == expected));
        }
    });
}

#[test]
fn silent_server_times_out() {
    in_simulation(1, async || {
        let listener = Rc::new(Listener::bind(&any_port()).unwrap());
        let address = listener.address().clone();
        let kept = listener.clone();
        spawn_detached(async move {
            let _stream = kept.accept().await.unwrap();
            time::sleep(Duration::from_secs(3600)).await;
        });
        let options = ClientOptions::default();
        let error = NbdDevice::connect(address, "disk", options).await.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut));
    });
}
