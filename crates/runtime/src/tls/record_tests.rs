//! Records that a hostile client forges with the keys of its own connection: messages after the
//! handshake, key updates and alerts that no library would send.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use parking_lot::Mutex;
use s2n_tls::config::Config;
use s2n_tls::security::Policy;

use super::tests::{handshake, list, psk, receive_all, send_all, server, streams};
use super::*;
use crate::buf::Buf;
use crate::{block_on, time};

const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const KEY_UPDATE: u8 = 24;

/// Lines of the library's key log for one connection.
type KeyLog = Mutex<String>;

unsafe extern "C" fn log_key<T>(
    log: *mut c_void,
    _: *mut T,
    line: *mut u8,
    length: usize,
) -> c_int {
    // SAFETY: the library passes the context of `Forger::connect`, which outlives the
    // configuration, and a line of `length` readable bytes.
    let (log, line) = unsafe { (&*log.cast::<KeyLog>(), std::slice::from_raw_parts(line, length)) };
    log.lock().push_str(&(String::from_utf8_lossy(line) + "\n"));
    0
}

/// HKDF-Expand-Label of one block without context (RFC 8446, section 7.1).
fn expand(secret: &[u8], label: &str, length: usize) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&[0, length as u8, label.len() as u8], label.as_bytes(), &[0, 1]].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, &info).as_ref()[..length].to_vec()
}

/// Client that encrypts records of its own making.
pub(super) struct Forger {
    pub(super) client: TlsStream,
    secret: Vec<u8>,
    sequence: u64,
}

impl Forger {
    /// A server, and a client that has sent nothing but its handshake.
    pub(super) async fn connect() -> (TlsStream, Forger) {
        // Lives as long as the process, as the configuration may.
        let log: &'static KeyLog = Box::leak(Box::default());
        let mut builder = Config::builder();
        builder.with_system_certs(false).unwrap();
        builder
            .set_security_policy(&Policy::from_version("AWS-CRT-SDK-TLSv1.3-2023").unwrap())
            .unwrap();
        let context = std::ptr::from_ref(log).cast_mut().cast();
        // SAFETY: `log_key` expects this context, which lives as long as the process.
        unsafe { builder.set_key_log_callback(Some(log_key), context) }.unwrap();
        let key = psk("host", 7, TlsPskHash::Sha256);
        let config = builder.build().unwrap();
        let client = TlsClient { config, psks: vec![key.clone()], server_name: None };
        let (accepted, connected) = handshake(&server(key), &client).await;
        let log = log.lock();
        let line = log.lines().find(|line| line.starts_with("CLIENT_TRAFFIC_SECRET_0 ")).unwrap();
        let digits = line.rsplit(' ').next().unwrap().as_bytes();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let secret = digits.chunks(2).map(byte).collect();
        (accepted.unwrap(), Forger { client: connected.unwrap(), secret, sequence: 0 })
    }

    /// Record with encrypted content of this type.
    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let key = UnboundKey::new(&AES_128_GCM, &expand(&self.secret, "key", 16)).unwrap();
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.sequence.to_be_bytes());
        for (byte, iv) in nonce.iter_mut().zip(expand(&self.secret, "iv", 12)) {
            *byte ^= iv;
        }
        self.sequence += 1;
        let mut inner = [content, &[kind]].concat();
        let length = (inner.len() + 16) as u16;
        let header = [&[DATA, 3, 3][..], &length.to_be_bytes()].concat();
        let (key, aad) = (LessSafeKey::new(key), Aad::from(&header));
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut inner).unwrap();
        [header, inner].concat()
    }

    /// KeyUpdate, after which records have the next keys.
    fn key_update(&mut self, request: u8) -> Vec<u8> {
        let record = self.record(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, request]);
        self.secret = expand(&self.secret, "traffic upd", 32);
        self.sequence = 0;
        record
    }

    async fn send(&self, records: &[u8]) {
        for part in records.chunks(4096) {
            self.client.stream().send_buf(Buf::copy_of(part).unwrap()).await.unwrap();
        }
    }
}

#[test]
fn forged_data_and_key_updates_are_understood() {
    block_on(async {
        let (server, mut forger) = Forger::connect().await;
        let by_kernel = server.record_layer() == TlsRecordLayer::Kernel;
        let mut records = forger.record(DATA, b"one");
        // Padding, and a record without data.
        records.extend(forger.record(DATA, b""));
        records.extend(forger.record(0, b"four\x17"));
        // The kernel's part takes fewer messages in a row.
        let updates = if by_kernel { 30 } else { 300 };
        for request in [0, 1].into_iter().cycle().take(updates) {
            records.extend(forger.key_update(request));
        }
        records.extend(forger.record(DATA, b"two"));
        let mut expected = b"onefourtwo".to_vec();
        if !by_kernel {
            // A half of the message in each record.
            records.extend(forger.record(HANDSHAKE, &[KEY_UPDATE, 0, 0]));
            records.extend(forger.record(HANDSHAKE, &[1, 0]));
            forger.secret = expand(&forger.secret, "traffic upd", 32);
            forger.sequence = 0;
            records.extend(forger.record(DATA, b"three"));
            expected.extend_from_slice(b"three");
        }
        forger.send(&records).await;
        forger.client.stream().shutdown_sending();
        let (received, end) = receive_all(&server).await;
        assert!(received == expected && end.is_ok(), "{received:?} {end:?}");
        // The server owes a KeyUpdate of its own, in front of its data.
        send_all(&server, list(&[5; 30_000], 30_000)).await;
        server.close().await.unwrap();
        let (received, end) = receive_all(&forger.client).await;
        assert!(received == [5; 30_000] && end.is_ok(), "{} {end:?}", received.len());
    })
    .unwrap();
}

#[test]
fn messages_after_the_handshake_end_the_stream() {
    block_on(async {
        let ticket = [&[4, 0, 0, 21][..], &[0; 9], &[0, 0], &[0, 8], &[7; 8]].concat();
        let hello =
            [&[1, 0, 0, 43][..], &[3, 3], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, 0]].concat();
        let finished = [&[20, 0, 0, 32][..], &[9; 32]].concat();
        let cases: [(&str, u8, &[u8]); 14] = [
            ("session ticket", HANDSHAKE, &ticket),
            ("renegotiation", HANDSHAKE, &hello),
            ("hello request", HANDSHAKE, &[0, 0, 0, 0]),
            ("certificate request", HANDSHAKE, &[13, 0, 0, 3, 0, 0, 0]),
            ("certificate", HANDSHAKE, &[11, 0, 0, 4, 0, 0, 0, 0]),
            ("finished", HANDSHAKE, &finished),
            ("end of early data", HANDSHAKE, &[5, 0, 0, 0]),
            ("unknown message", HANDSHAKE, &[99, 0, 0, 0]),
            ("key update with another request", HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2]),
            ("key update of another length", HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0]),
            ("huge message", HANDSHAKE, &[KEY_UPDATE, 255, 255, 255, 0]),
            ("unknown content", 25, &[1, 2, 3]),
            ("fatal alert", 21, &[2, 80]),
            ("nothing but padding", 0, &[0; 20]),
        ];
        for (what, kind, content) in cases {
            let (server, mut forger) = Forger::connect().await;
            let mut records = forger.record(DATA, b"before");
            records.extend(forger.record(kind, content));
            records.extend(forger.record(DATA, b"after"));
            forger.send(&records).await;
            forger.client.stream().shutdown_sending();
            let ended = time::timeout(Duration::from_secs(60), receive_all(&server)).await;
            let (received, end) = ended.unwrap_or_else(|_| panic!("{what}: it waits"));
            assert!(received.is_empty() || received == b"before", "{what}: {received:?}");
            assert!(end.is_err(), "{what}");
            // Nothing that comes later is delivered either.
            assert!(receive_all(&server).await.1.is_err(), "{what}");
        }
    })
    .unwrap();
}

/// Data within a message that is not complete, and after the closure.
#[test]
fn data_out_of_order_is_not_delivered() {
    block_on(async {
        let (server, mut forger) = Forger::connect().await;
        let mut records = forger.record(HANDSHAKE, &[KEY_UPDATE, 0, 0]);
        records.extend(forger.record(DATA, b"between"));
        forger.send(&records).await;
        forger.client.stream().shutdown_sending();
        let (received, end) = receive_all(&server).await;
        assert!(received.is_empty() && end.is_err(), "{received:?} {end:?}");
        let (server, mut forger) = Forger::connect().await;
        let mut records = forger.record(21, &[1, 0]);
        records.extend(forger.record(DATA, b"after"));
        forger.send(&records).await;
        let (received, end) = receive_all(&server).await;
        assert!(received.is_empty() && end.is_ok(), "{received:?} {end:?}");
        assert!(receive_all(&server).await.0.is_empty());
        // A record that is sent twice.
        let (server, mut forger) = Forger::connect().await;
        let record = forger.record(DATA, b"once");
        forger.send(&[&record[..], &record].concat()).await;
        forger.client.stream().shutdown_sending();
        let (received, end) = receive_all(&server).await;
        assert!((received.is_empty() || received == b"once") && end.is_err(), "{received:?}");
    })
    .unwrap();
}

/// The kernel, too, takes new keys.
#[test]
fn key_updates_of_the_peer_change_the_keys_of_receives() {
    block_on(async {
        let (server, mut forger) = Forger::connect().await;
        let mut records = forger.record(DATA, b"0");
        for round in 1..10_u8 {
            records.extend(forger.key_update(0));
            records.extend(forger.record(DATA, &[b'0' + round]));
        }
        records.extend(forger.record(21, &[1, 0]));
        forger.send(&records).await;
        let (received, end) = receive_all(&server).await;
        match end {
            Ok(()) => assert_eq!(received, b"0123456789"),
            Err(error) => {
                assert_eq!(server.record_layer(), TlsRecordLayer::Kernel);
                assert!(received == b"0" && error.to_string().contains("KeyUpdate"), "{error}");
            }
        }
    })
    .unwrap();
}

/// The library ignores a record without a message. The kernel forgets it, and its receive fails.
#[test]
fn empty_message_delivers_nothing_and_does_not_hang() {
    block_on(async {
        let (server, mut forger) = Forger::connect().await;
        let mut records = forger.record(HANDSHAKE, b"");
        records.extend(forger.record(DATA, b"after"));
        forger.send(&records).await;
        forger.client.stream().shutdown_sending();
        let (received, end) = receive_all(&server).await;
        match server.record_layer() {
            TlsRecordLayer::Library => assert!(received == b"after", "{received:?}"),
            TlsRecordLayer::Kernel => {
                assert!(received.is_empty(), "{received:?}");
                assert!(end.unwrap_err().to_string().contains("unexpected message"));
            }
        }
    })
    .unwrap();
}

/// The peer learns why the connection ends.
#[test]
fn broken_record_is_answered_with_its_alert() {
    block_on(async {
        let (server, mut forger) = Forger::connect().await;
        let mut record = forger.record(DATA, b"data");
        *record.last_mut().unwrap() ^= 1;
        forger.send(&record).await;
        assert!(receive_all(&server).await.1.is_err());
        server.close().await.unwrap();
        let (_, end) = receive_all(&forger.client).await;
        let end = end.map_err(|error| error.kind());
        if server.record_layer() == TlsRecordLayer::Kernel {
            assert_eq!(end, Err(std::io::ErrorKind::ConnectionAborted));
        }
    })
    .unwrap();
}

/// A peer that reads late gets everything before the closure, whatever waits in the kernel.
#[test]
fn late_reader_gets_everything_before_the_closure() {
    block_on(async {
        let (server, client) = small_pair().await;
        let sending = crate::spawn(async move {
            send_all(&client, list(&[5; 3_000_000], 70_000)).await;
            client.close().await.unwrap();
        });
        time::sleep(Duration::from_millis(100)).await;
        let (received, end) = receive_all(&server).await;
        assert!(received.len() == 3_000_000 && end.is_ok(), "{} {end:?}", received.len());
        sending.await.unwrap();
    })
    .unwrap();
}

/// Server and client whose socket sends little at a time.
async fn small_pair() -> (TlsStream, TlsStream) {
    let key = psk("host", 7, TlsPskHash::Sha256);
    let (near, far) = streams().await;
    let small = rustix::net::sockopt::set_socket_send_buffer_size;
    // SAFETY: the stream keeps it open.
    small(unsafe { std::os::fd::BorrowedFd::borrow_raw(near.descriptor()) }, 20_000).unwrap();
    let (server, client) = (server(key.clone()), TlsClient::with_psks(vec![key]).unwrap());
    let accepting = crate::spawn(async move { server.accept(far, &[]).await });
    let client = client.connect(near, &[]).await.unwrap();
    (accepting.await.unwrap().unwrap(), client)
}
