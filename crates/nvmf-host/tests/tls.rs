//! TLS between host and target over real connections.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Server, any_port, memory, on_cores, options, subnqn};
use flagstone_auth::tls::{Identity, Psk, PskHash, TlsKey, derived, offered};
use flagstone_auth::{KeyPair, KeyRing, Secret, TlsRing};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::command::fabrics::{CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData};
use flagstone_nvme::limits::ENCODED_HEADER_MAX_BYTES;
use flagstone_nvme::pdu::{Digests, Encoder, InitializeRequest};
use flagstone_nvme::{Nqn, Wire};
use flagstone_nvmf_host::{HostError, HostOptions, HostTls, RemoteDevice, discover};
use flagstone_nvmf_target::{
    self as target, FailureReason, NamespaceConfig, SubsystemConfig, TargetConfig,
    TlsFailureReason, TlsMode,
};
use flagstone_runtime::net::{Address, Listener, Socket, Stream};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::tls::{self, TlsClient, TlsPsk};
use flagstone_runtime::{Buf, buf, spawn, spawn_detached, time};

fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn key(byte: u8) -> TlsKey {
    TlsKey::new(&[byte; 32], Some(PskHash::Sha256)).unwrap()
}

/// Server with a listener for TLS beside its own without.
struct Secured {
    server: Server,
    address: Address,
    ring: TlsRing,
    _accept: AbortOnDrop<()>,
}

impl Secured {
    fn start(mode: TlsMode, keys: Vec<TlsKey>, required: bool) -> Secured {
        let config =
            TargetConfig { handshake_timeout: Duration::from_secs(5), ..TargetConfig::default() };
        let server = Server::start_with(memory(4 << 20, 512), config, &any_port());
        let ring = TlsRing::new(keys);
        let hosts = target::HostTls { keys: ring.clone(), required };
        server.target.set_tls_keys(&subnqn(), BTreeMap::from([(host(), hosts)]));
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        server.target.add_tls_listener(&address, mode).unwrap();
        let accepts = server.target.clone();
        let accept = spawn(async move {
            while let Ok(stream) = listener.accept().await {
                spawn_detached(target::serve_listener(accepts.clone(), stream, mode));
            }
        });
        Secured { server, address, ring, _accept: accept.abort_on_drop() }
    }

    async fn connect(&self, tls: Option<HostTls>) -> Result<Arc<RemoteDevice>, HostError> {
        let options = HostOptions { host_nqn: Some(host()), queues: 2, tls, ..options() };
        RemoteDevice::connect(self.address.clone(), &subnqn(), options).await
    }

    fn failures(&self, reason: TlsFailureReason) -> u64 {
        let at = TlsFailureReason::ALL.iter().position(|known| *known == reason).unwrap();
        self.server.target.tls_totals().failed[at]
    }

    /// Handshake with exactly these pre-shared keys.
    async fn handshake(&self, psks: Vec<Psk>) -> bool {
        let stream = Stream::connect(&self.address).await.unwrap();
        client(psks).connect(stream, &[]).await.is_ok()
    }
}

fn client(psks: Vec<Psk>) -> TlsClient {
    let psks = psks.into_iter().map(|psk| TlsPsk {
        identity: psk.identity,
        secret: psk.secret,
        hash: match psk.hash {
            PskHash::Sha256 => tls::PskHash::Sha256,
            PskHash::Sha384 => tls::PskHash::Sha384,
        },
    });
    TlsClient::with_psks(psks.collect()).unwrap()
}

fn with(key: TlsKey) -> Option<HostTls> {
    Some(HostTls { keys: TlsRing::new(vec![key]), allow_plain: false })
}

async fn check_io(device: &RemoteDevice) {
    for (offset, bytes, byte) in [(0, 512, 1), (4096, 4096, 2), (65_536, 400 << 10, 3)] {
        let mut data = buf::alloc(bytes).await;
        data.fill(byte);
        device.write(offset, data.freeze(), false).await.unwrap();
        let read = device.read(offset, buf::alloc(bytes).await).await.unwrap();
        assert!(read.iter().all(|one| *one == byte), "{bytes}");
    }
    device.flush().await.unwrap();
}

#[test]
fn each_kind_of_key_encrypts_io() {
    on_cores(2, async || {
        let kinds =
            [(32, None), (48, None), (32, Some(PskHash::Sha256)), (48, Some(PskHash::Sha384))];
        for (bytes, hash) in kinds {
            let key = TlsKey::new(&vec![5; bytes], hash).unwrap();
            let secured = Secured::start(TlsMode::Required, vec![key.clone()], true);
            let device = secured.connect(with(key)).await.unwrap();
            check_io(&device).await;
            device.disconnect().await;
            assert_eq!(secured.server.target.tls_totals().succeeded, 3, "a queue each");
        }
    });
}

#[test]
fn wrong_keys_hosts_and_plain_connections_are_refused() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let wrong = secured.connect(with(key(2))).await.unwrap_err();
        assert!(matches!(wrong, HostError::Tls(_)), "{wrong}");
        assert!(!wrong.may_pass());
        assert_eq!(secured.failures(TlsFailureReason::WrongKey), 1);
        let plain = secured.connect(None).await.unwrap_err();
        assert!(matches!(plain, HostError::Closed | HostError::Broken(_)), "{plain}");
        assert_eq!(secured.failures(TlsFailureReason::Plain), 1);
        let stranger = offered(&key(1), "nqn.2026-01.example:other", subnqn().as_str());
        assert!(!secured.handshake(stranger).await);
        assert_eq!(secured.failures(TlsFailureReason::UnknownIdentity), 1);
        let elsewhere = offered(&key(1), host().as_str(), "nqn.2026-01.example:elsewhere");
        assert!(!secured.handshake(elsewhere).await);
        assert!(!secured.handshake(Vec::new()).await);
        assert_eq!(secured.server.target.tls_totals().succeeded, 0);
        assert_eq!(secured.server.target.controllers(), 0);
    });
}

/// SPDK offers only version 0, and older hosts of Linux a derivation of their own.
#[test]
fn all_identities_of_either_key_are_accepted() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1), key(2)], true);
        let (host, subsystem) = (host(), subnqn());
        for known in [key(1), key(2)] {
            for psk in offered(&known, host.as_str(), subsystem.as_str()) {
                let identity = Identity::parse(&psk.identity).unwrap();
                for candidate in derived(&known, &identity) {
                    assert!(secured.handshake(vec![candidate.clone()]).await, "{candidate:?}");
                }
            }
        }
        let other = offered(&key(3), host.as_str(), subsystem.as_str());
        assert!(!secured.handshake(vec![other[1].clone()]).await);
        assert_eq!(secured.failures(TlsFailureReason::WrongKey), 1);
        // The rotation ends.
        secured.ring.replace(vec![key(2)]);
        let old = offered(&key(1), host.as_str(), subsystem.as_str());
        assert!(!secured.handshake(vec![old[1].clone()]).await);
        secured.connect(with(key(2))).await.unwrap().disconnect().await;
    });
}

#[test]
fn allowed_listener_takes_both_unless_the_host_needs_tls() {
    on_cores(1, async || {
        let open = Secured::start(TlsMode::Allowed, vec![key(1)], false);
        for tls in [None, with(key(1))] {
            let device = open.connect(tls).await.unwrap();
            check_io(&device).await;
            device.disconnect().await;
        }
        let strict = Secured::start(TlsMode::Allowed, vec![key(1)], true);
        let refused = strict.connect(None).await.unwrap_err();
        assert!(matches!(refused, HostError::FabricsRefused { what: "Connect", .. }), "{refused}");
        strict.connect(with(key(1))).await.unwrap().disconnect().await;
    });
}

async fn receive(socket: &Socket, bytes: usize) -> Vec<u8> {
    let mut received = Vec::new();
    while received.len() < bytes {
        let (result, place) = socket.recv(buf::alloc(bytes - received.len()).await).await;
        let count = result.unwrap();
        assert!(count > 0, "the target closed the connection");
        received.extend_from_slice(&place[..count]);
    }
    received
}

/// Relay between two hosts, and a host that proves its key for one subsystem and asks for another.
#[test]
fn connect_names_whom_tls_has_proven() {
    const INVALID_HOST: u16 = 0x184;
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let target = &secured.server.target;
        let open = Nqn::new("nqn.2026-01.example:open").unwrap();
        let (serial, keys) = ("2".to_owned(), BTreeMap::new());
        let subsystem = SubsystemConfig { nqn: open, serial, allow_hosts: Vec::new(), keys };
        target.add_subsystem(subsystem).unwrap();
        let psks = offered(&key(1), host().as_str(), subnqn().as_str());
        let other = Nqn::from_uuid([8; 16]);
        for (name, subsystem, status) in
            [(other, subnqn(), INVALID_HOST), (host(), open, INVALID_HOST), (host(), subnqn(), 0)]
        {
            let stream = Stream::connect(&secured.address).await.unwrap();
            let client = client(psks.clone());
            let socket = Socket::from(client.connect(stream, &[]).await.unwrap());
            let request = InitializeRequest::new(Digests::default(), 0, 1);
            socket.send_buf(Buf::copy_of(request.bytes()).unwrap()).await.unwrap();
            receive(&socket, 128).await;
            let command = ConnectCommand::new(1, 0, 32, 0, false).unwrap();
            let data = ConnectData::new([9; 16], CONTROLLER_ID_DYNAMIC, &subsystem, &name);
            let mut pdu = vec![0; ENCODED_HEADER_MAX_BYTES];
            let encoder = Encoder::new(Digests::default(), 0);
            let bytes = data.bytes().len() as u32;
            let header = encoder.capsule_cmd(&mut pdu, &command.command(), bytes).unwrap();
            pdu.truncate(header);
            pdu.extend_from_slice(data.bytes());
            socket.send_buf(Buf::copy_of(&pdu).unwrap()).await.unwrap();
            let response = receive(&socket, 24).await;
            let field = u16::from_le_bytes([response[22], response[23]]);
            assert_eq!(field >> 1 & 0x7ff, status, "{name} {subsystem}");
        }
        let totals = target.authentication_totals();
        let at = FailureReason::ALL.iter().position(|one| *one == FailureReason::OtherIdentity);
        assert_eq!(totals.failed[at.unwrap()], 2);
    });
}

/// A subsystem with keys for authentication of some hosts, and keys for TLS of others.
#[test]
fn tls_key_proves_a_host_that_has_no_other() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Allowed, vec![key(1)], false);
        let target = &secured.server.target;
        let nqn = Nqn::new("nqn.2026-01.example:mixed").unwrap();
        let secret = Secret::new(&[9; 32], None).unwrap();
        let other = Nqn::from_uuid([8; 16]);
        let pair = KeyPair { host: KeyRing::new(vec![secret]), controller: None };
        let (serial, keys) = ("2".to_owned(), BTreeMap::from([(other, pair.clone())]));
        let subsystem = SubsystemConfig { nqn, serial, allow_hosts: Vec::new(), keys };
        target.add_subsystem(subsystem).unwrap();
        let device = memory(1 << 20, 512);
        let namespace = NamespaceConfig { nsid: None, device, uuid: [9; 16], read_only: false };
        target.add_namespace(&nqn, namespace).unwrap();
        let tls = target::HostTls { keys: TlsRing::new(vec![key(2)]), required: false };
        target.set_tls_keys(&nqn, BTreeMap::from([(host(), tls.clone()), (other, tls)]));
        let connect = async |name, tls, keys| {
            let options = HostOptions { host_nqn: Some(name), queues: 1, tls, keys, ..options() };
            RemoteDevice::connect(secured.address.clone(), &nqn, options).await
        };
        connect(host(), with(key(2)), None).await.unwrap().disconnect().await;
        let plain = connect(host(), None, None).await.unwrap_err();
        assert!(matches!(plain, HostError::FabricsRefused { what: "Connect", .. }), "{plain}");
        // A host with both keys proves both.
        connect(other, with(key(2)), Some(pair)).await.unwrap().disconnect().await;
        let half = connect(other, with(key(2)), None).await.unwrap_err();
        assert!(!half.may_pass(), "{half}");
    });
}

#[test]
fn host_falls_back_to_plain_only_if_allowed() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Off, vec![key(1)], false);
        let refused = secured.connect(with(key(1))).await.unwrap_err();
        assert!(matches!(refused, HostError::Tls(_)), "{refused}");
        let tls = Some(HostTls { keys: TlsRing::new(vec![key(1)]), allow_plain: true });
        let device = secured.connect(tls.clone()).await.unwrap();
        check_io(&device).await;
        device.disconnect().await;
        // A target that speaks TLS with other hosts, and does not have the key yet.
        let secured = Secured::start(TlsMode::Allowed, vec![key(2)], false);
        secured.connect(tls.clone()).await.unwrap().disconnect().await;
        let strict = Secured::start(TlsMode::Required, vec![key(2)], false);
        let refused = strict.connect(tls).await.unwrap_err();
        assert!(!matches!(refused, HostError::Tls(_)), "{refused}");
    });
}

#[test]
fn discovery_needs_tls_too_and_announces_it() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let options = HostOptions { host_nqn: Some(host()), ..options() };
        let options = HostOptions { tls: with(key(1)), ..options };
        let found = discover(secured.address.clone(), &options).await.unwrap();
        let at = |address: &Address| found.iter().find(|one| one.address == *address).unwrap();
        assert!(at(&secured.address).requires_tls);
        assert!(!at(&secured.server.address).requires_tls);
    });
}

/// Every prefix of a handshake, then silence or the end: the target gives up and serves on.
#[test]
fn truncated_and_stalled_handshakes_end() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let mut held = Vec::new();
        for bytes in [&[0x16_u8][..], &[0x16, 3, 1], &[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]] {
            let ended = Stream::connect(&secured.address).await.unwrap();
            ended.send_buf(Buf::copy_of(bytes).unwrap()).await.unwrap();
            ended.shutdown_sending();
            let stalled = Stream::connect(&secured.address).await.unwrap();
            stalled.send_buf(Buf::copy_of(bytes).unwrap()).await.unwrap();
            held.push(stalled);
            let (result, _) = ended.recv(buf::alloc(100).await).await;
            assert!(result.unwrap_or(0) < 100);
        }
        secured.connect(with(key(1))).await.unwrap().disconnect().await;
        let all = async {
            while secured.failures(TlsFailureReason::Timeout) < 3 {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(Duration::from_secs(60), all).await.expect("stalled handshakes end");
        assert_eq!(secured.failures(TlsFailureReason::Closed), 3);
    });
}
