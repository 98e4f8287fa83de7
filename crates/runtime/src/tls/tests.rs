use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::*;
use crate::buf::{self, Buf};
use crate::net::{Address, Listener, Stream};
use crate::vectored::{RecvList, SendList};
use crate::{block_on, spawn};

pub(super) fn psk(identity: &str, byte: u8, hash: PskHash) -> TlsPsk {
    let secret = Zeroizing::new(vec![byte; 32]);
    TlsPsk { identity: identity.as_bytes().to_vec(), secret, hash }
}

/// One known key, whatever is offered.
struct OneKey(TlsPsk);

impl PskServer for OneKey {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        assert_eq!(hello[0], 1);
        let length = u32::from_be_bytes([0, hello[1], hello[2], hello[3]]) as usize;
        assert_eq!(hello.len(), 4 + length);
        let identity = &self.0.identity;
        match hello.windows(identity.len()).any(|part| part == identity.as_slice()) {
            true => PskChoice::Use(self.0.clone()),
            false => PskChoice::Refuse(PskRefusal::UnknownIdentity(b"?".to_vec())),
        }
    }
}

fn server(psk: TlsPsk) -> TlsServer {
    TlsServer::with_psks(Arc::new(OneKey(psk))).unwrap()
}

async fn streams() -> (Stream, Stream) {
    let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listener = Listener::bind(&any).unwrap();
    let client = Stream::connect(listener.address()).await.unwrap();
    (client, listener.accept().await.unwrap())
}

async fn handshake(
    server: &TlsServer,
    client: &TlsClient,
) -> (Result<TlsStream, TlsFailure>, Result<TlsStream, TlsFailure>) {
    let (near, far) = streams().await;
    let server = server.clone();
    let accepting = spawn(async move { server.accept(far, &[]).await });
    let connected = client.connect(near, &[]).await;
    (accepting.await.unwrap(), connected)
}

async fn pair(hash: PskHash) -> (TlsStream, TlsStream) {
    let key = psk("NVMe0R01 host subsystem", 7, hash);
    let client = TlsClient::with_psks(vec![key.clone()]).unwrap();
    let (accepted, connected) = handshake(&server(key), &client).await;
    (accepted.unwrap(), connected.unwrap())
}

fn list(bytes: &[u8], piece: usize) -> SendList {
    let mut list = SendList::new();
    for part in bytes.chunks(piece) {
        list.push(Buf::copy_of(part).unwrap());
    }
    list
}

async fn send_all(stream: &TlsStream, mut list: SendList) {
    while !list.is_empty() {
        let (result, rest) = stream.send(list).await;
        assert!(result.unwrap() > 0);
        list = rest;
    }
}

#[test]
fn each_hash_selects_its_suite() {
    block_on(async {
        for (hash, suite) in [
            (PskHash::Sha256, "TLS_AES_128_GCM_SHA256"),
            (PskHash::Sha384, "TLS_AES_256_GCM_SHA384"),
        ] {
            let (server, client) = pair(hash).await;
            assert_eq!((server.suite().as_str(), client.suite().as_str()), (suite, suite));
            let identity = PeerIdentity::Psk(b"NVMe0R01 host subsystem".to_vec());
            assert_eq!((server.peer_identity(), client.peer_identity()), (&identity, &identity));
        }
    })
    .unwrap();
}

#[test]
fn data_arrives_intact_in_any_pieces() {
    block_on(async {
        let data: Vec<u8> = (0..1_000_003_u32).map(|n| (n % 251) as u8).collect();
        for (sent, received) in [(24, 8192), (4096, 512), (70_000, 70_000), (1_000_003, 4096)] {
            let (server, client) = pair(PskHash::Sha256).await;
            let out = data.clone();
            let sending = spawn(async move {
                send_all(&client, list(&out, sent)).await;
                client.close().await.unwrap();
                client
            });
            let mut back = Vec::new();
            loop {
                let mut places = RecvList::new();
                places.push(buf::try_alloc(received).unwrap());
                places.push(buf::try_alloc(100).unwrap());
                let (result, mut places) = server.recv_vectored(places).await;
                let mut count = result.unwrap();
                if count == 0 {
                    break;
                }
                for place in places.drain() {
                    let part = count.min(place.len());
                    back.extend_from_slice(&place[..part]);
                    count -= part;
                }
            }
            assert!(back == data, "{} of {}", back.len(), data.len());
            drop(sending.await.unwrap());
        }
    })
    .unwrap();
}

#[test]
fn both_directions_work_at_a_time() {
    block_on(async {
        let (server, client) = pair(PskHash::Sha384).await;
        let echo = spawn(async move {
            loop {
                let (result, place) = server.recv(buf::try_alloc(30_000).unwrap()).await;
                match result.unwrap() {
                    0 => return,
                    count => send_all(&server, list(&place[..count], 1000)).await,
                }
            }
        });
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 253) as u8).collect();
        let (out, sender) = (data.clone(), client.clone());
        let sending = spawn(async move { send_all(&sender, list(&out, 5000)).await });
        let mut back = Vec::new();
        while back.len() < data.len() {
            let (result, place) = client.recv(buf::try_alloc(65_536).unwrap()).await;
            back.extend_from_slice(&place[..result.unwrap()]);
        }
        assert!(back == data);
        sending.await.unwrap();
        client.close().await.unwrap();
        echo.await.unwrap();
    })
    .unwrap();
}

#[test]
fn wrong_keys_and_unknown_identities_are_refused() {
    block_on(async {
        let key = psk("host", 7, PskHash::Sha256);
        let wrong = TlsClient::with_psks(vec![psk("host", 8, PskHash::Sha256)]).unwrap();
        let (accepted, connected) = handshake(&server(key.clone()), &wrong).await;
        assert!(matches!(accepted, Err(TlsFailure::Protocol(_))), "{:?}", accepted.err());
        assert!(connected.is_err());
        let stranger = TlsClient::with_psks(vec![psk("other", 7, PskHash::Sha256)]).unwrap();
        let (accepted, connected) = handshake(&server(key.clone()), &stranger).await;
        let refusal = PskRefusal::UnknownIdentity(b"?".to_vec());
        assert!(matches!(accepted, Err(TlsFailure::Psk(reason)) if reason == refusal));
        assert!(matches!(connected, Err(TlsFailure::Alert(_) | TlsFailure::Closed)));
        // A client without a key.
        let (near, far) = streams().await;
        near.send_buf(Buf::copy_of(&[0; 128]).unwrap()).await.unwrap();
        let accepted = server(key).accept(far, &[]).await;
        assert!(matches!(accepted, Err(TlsFailure::Protocol(_))));
    })
    .unwrap();
}

#[test]
fn altered_record_ends_the_stream() {
    block_on(async {
        let (near, middle_near) = streams().await;
        let (middle_far, far) = streams().await;
        let key = psk("host", 7, PskHash::Sha256);
        let (server, client) = (server(key.clone()), TlsClient::with_psks(vec![key]).unwrap());
        let accepting = spawn(async move { server.accept(far, &[]).await });
        let relay = |from: Stream, to: Stream, alter: bool| {
            spawn(async move {
                let mut received = 0;
                loop {
                    let (result, mut place) = from.recv(buf::try_alloc(65_536).unwrap()).await;
                    let count = result.unwrap_or(0);
                    if count == 0 {
                        return to.shutdown_sending();
                    }
                    received += count;
                    // Within the data, after the handshake.
                    if alter && received > 4096 {
                        place[count - 1] ^= 1;
                    }
                    place.truncate(count);
                    to.send_buf(place.freeze()).await.unwrap();
                }
            })
        };
        relay(middle_near.clone(), middle_far.clone(), true);
        relay(middle_far, middle_near, false);
        let client = client.connect(near, &[]).await.unwrap();
        let server = accepting.await.unwrap().unwrap();
        send_all(&client, list(&[1; 100], 100)).await;
        let (result, _) = server.recv(buf::try_alloc(100).unwrap()).await;
        assert_eq!(result.unwrap(), 100);
        send_all(&client, list(&[2; 8000], 8000)).await;
        let (result, _) = server.recv(buf::try_alloc(8000).unwrap()).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        let (result, _) = server.recv(buf::try_alloc(8000).unwrap()).await;
        assert!(result.is_err());
    })
    .unwrap();
}

#[test]
fn steady_state_needs_no_new_memory() {
    block_on(async {
        let (server, client) = pair(PskHash::Sha256).await;
        let mut held = 0;
        for round in 0..50 {
            send_all(&client, list(&[3; 20_000], 20_000)).await;
            let mut left = 20_000;
            while left > 0 {
                let (result, _) = server.recv(buf::try_alloc(20_000).unwrap()).await;
                left -= result.unwrap();
            }
            if round == 10 {
                held = buf::memory_held();
            }
        }
        assert!(buf::memory_held() <= held, "{} {held}", buf::memory_held());
    })
    .unwrap();
}
