//! TLS between host and target over real connections.

mod common;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Server, any_port, memory, on_cores, options, subnqn};
use flagstone_auth::tls::{Identity, Psk, PskHash, TlsKey, derived, offered};
use flagstone_auth::{KeyDemand, KeyPair, KeyRing, Secret, TlsRing};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::command::fabrics::{CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData};
use flagstone_nvme::limits::ENCODED_HEADER_MAX_BYTES;
use flagstone_nvme::pdu::{Digests, Encoder, InitializeRequest};
use flagstone_nvme::{FabricsType, Nqn, Wire};
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice, RemoteTls, discover};
use flagstone_nvmf_target::{
    self as target, FailureReason, NamespaceConfig, SubsystemConfig, TargetConfig,
    TlsFailureReason, TlsMode,
};
use flagstone_runtime::net::{Address, Listener, Socket, Stream};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::tls::{self, TlsClient, TlsPsk};
use flagstone_runtime::{Buf, buf, spawn, spawn_blocking, spawn_detached, time};
use rustix::io::ioctl_fionread;

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

    async fn connect(&self, tls: Option<RemoteTls>) -> Result<Arc<RemoteDevice>, HostError> {
        let options = HostOptions { host_nqn: Some(host()), queues: 2, tls, ..options() };
        RemoteDevice::connect(self.address.clone(), &subnqn(), options).await
    }

    fn failures(&self, reason: TlsFailureReason) -> u64 {
        let at = TlsFailureReason::ALL.iter().position(|known| *known == reason).unwrap();
        self.server.target.tls_totals().failed[at]
    }

    /// Waits for the count of these failures: the host has its answer before the target counts.
    async fn wait_for_failures(&self, reason: TlsFailureReason, count: u64) {
        let counted = async {
            while self.failures(reason) < count {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        let counted = time::timeout(Duration::from_secs(60), counted).await;
        counted.unwrap_or_else(|_| panic!("{reason:?}: {}", self.failures(reason)));
        assert_eq!(self.failures(reason), count, "{reason:?}");
    }

    async fn wait_for_no_controller(&self) {
        let gone = async {
            while self.server.target.controllers() > 0 {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(Duration::from_secs(60), gone).await.expect("the controllers end");
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
            PskHash::Sha256 => tls::TlsPskHash::Sha256,
            PskHash::Sha384 => tls::TlsPskHash::Sha384,
        },
    });
    TlsClient::with_psks(psks.collect()).unwrap()
}

fn with(key: TlsKey) -> Option<RemoteTls> {
    Some(RemoteTls::required(TlsRing::new(vec![key])))
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
        secured.wait_for_failures(TlsFailureReason::WrongKey, 1).await;
        let plain = secured.connect(None).await.unwrap_err();
        assert!(matches!(plain, HostError::Closed | HostError::Broken(_)), "{plain}");
        secured.wait_for_failures(TlsFailureReason::Plain, 1).await;
        let unknown_host = offered(&key(1), "nqn.2026-01.example:other", subnqn().as_str());
        assert!(!secured.handshake(unknown_host).await);
        secured.wait_for_failures(TlsFailureReason::UnknownIdentity, 1).await;
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
        secured.wait_for_failures(TlsFailureReason::WrongKey, 1).await;
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
        assert!(
            matches!(refused, HostError::FabricsRefused { command: FabricsType::CONNECT, .. }),
            "{refused}"
        );
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

fn connect_pdu(subsystem: &Nqn, host: &Nqn) -> Vec<u8> {
    let command = ConnectCommand::new(1, 0, 32, 0, false).unwrap();
    let data = ConnectData::new([9; 16], CONTROLLER_ID_DYNAMIC, subsystem, host);
    let mut pdu = vec![0; ENCODED_HEADER_MAX_BYTES];
    let encoder = Encoder::new(Digests::default(), 0);
    let bytes = data.bytes().len() as u32;
    let header = encoder.capsule_cmd(&mut pdu, &command.command(), bytes).unwrap();
    pdu.truncate(header);
    pdu.extend_from_slice(data.bytes());
    pdu
}

/// Property Get of the controller's status.
fn property_get_pdu() -> Vec<u8> {
    const PROPERTY_GET: u8 = 4;
    const CSTS: u8 = 0x1c;
    let mut pdu = vec![0; 72];
    (pdu[0], pdu[2], pdu[4]) = (4, 72, 72);
    (pdu[8], pdu[9], pdu[12], pdu[8 + 44]) = (0x7f, 0x40, PROPERTY_GET, CSTS);
    pdu
}

/// OpenSSL's client, of which input letters at the beginning of a write are commands.
struct OpenSsl {
    child: Child,
    seen: Vec<u8>,
}

impl OpenSsl {
    fn connect(port: u16, psk: &Psk) -> OpenSsl {
        let secret: String = psk.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let child = Command::new("openssl")
            .args(["s_client", "-tls1_3", "-connect", &format!("127.0.0.1:{port}")])
            .args(["-ciphersuites", "TLS_AES_128_GCM_SHA256", "-psk", &secret, "-psk_identity"])
            .arg(String::from_utf8(psk.identity.clone()).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        OpenSsl { child: child.unwrap(), seen: Vec::new() }
    }

    /// Sends, and waits until the client has read it, because a command begins a read.
    fn send(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        while ioctl_fionread(&*stdin).unwrap() > 0 {
            std::thread::yield_now();
        }
    }

    /// Updates the keys of the client: `K` asks for new keys of the server too, `k` does not.
    fn update_keys(&mut self, command: u8) {
        self.send(&[command]);
        let mut said = Vec::new();
        while !said.ends_with(b"KEYUPDATE\n") {
            let mut byte = [0];
            self.child.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
    }

    /// Receives up to the end of a PDU of this type and length, past what the client prints.
    fn receive(&mut self, kind: u8, length: u8) {
        let begin = |at: &[u8]| at[0] == kind && at[2..] == [length, 0, length, 0, 0, 0];
        loop {
            if let Some(at) = self.seen.windows(8).position(begin)
                && self.seen.len() >= at + usize::from(length)
            {
                self.seen.drain(..at + usize::from(length));
                return;
            }
            let mut part = [0; 4096];
            let count = self.child.stdout.as_mut().unwrap().read(&mut part).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&self.seen));
            self.seen.extend_from_slice(&part[..count]);
        }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// KeyUpdate between PDUs and within one, with and without a request for the target's keys.
#[test]
fn openssl_updates_keys_while_it_is_served() {
    const INITIALIZE_RESPONSE: u8 = 1;
    const CAPSULE_RESPONSE: u8 = 5;
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: openssl is not installed");
        return;
    }
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let Address::Tcp(address) = secured.address else { panic!("not TCP") };
        let psk = offered(&key(1), host().as_str(), subnqn().as_str()).remove(0);
        let work = move || {
            let mut client = OpenSsl::connect(address.port(), &psk);
            client.send(InitializeRequest::new(Digests::default(), 0, 1).bytes());
            client.receive(INITIALIZE_RESPONSE, 128);
            client.update_keys(b'K');
            let connect = connect_pdu(&subnqn(), &host());
            client.send(&connect[..700]);
            client.update_keys(b'K');
            client.send(&connect[700..]);
            client.receive(CAPSULE_RESPONSE, 24);
            for command in [b'k', b'K', b'k', b'k', b'K'] {
                client.update_keys(command);
                client.send(&property_get_pdu());
                client.receive(CAPSULE_RESPONSE, 24);
            }
            client
        };
        let client = spawn_blocking("openssl", work).await.unwrap();
        assert_eq!(secured.server.target.controllers(), 1);
        drop(client);
        secured.wait_for_no_controller().await;
    });
}

/// A closure alert within a PDU, and one within a PDU after others.
#[test]
fn closure_within_a_pdu_ends_the_connection() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let psks = offered(&key(1), host().as_str(), subnqn().as_str());
        let initialize = InitializeRequest::new(Digests::default(), 0, 1).bytes().to_vec();
        let connect = connect_pdu(&subnqn(), &host());
        let complete = [&initialize[..], &connect].concat();
        let started = [&complete[..], &property_get_pdu()[..20]].concat();
        for bytes in [&[][..], &initialize[..5], &initialize[..100], &complete[..700], &started] {
            let stream = Stream::connect(&secured.address).await.unwrap();
            let stream = client(psks.clone()).connect(stream, &[]).await.unwrap();
            let socket = Socket::from(stream.clone());
            if !bytes.is_empty() {
                socket.send_buf(Buf::copy_of(bytes).unwrap()).await.unwrap();
            }
            stream.close().await.unwrap();
            let end = async {
                loop {
                    match socket.recv(buf::alloc(4096).await).await.0 {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
            };
            let ended = time::timeout(Duration::from_secs(60), end).await;
            ended.unwrap_or_else(|_| panic!("open after {} bytes", bytes.len()));
        }
        secured.connect(with(key(1))).await.unwrap().disconnect().await;
        secured.wait_for_no_controller().await;
    });
}

/// Relay between two hosts, and a host that proves its key for one subsystem and asks for another.
#[test]
fn connect_must_name_the_tls_identity() {
    const INVALID_HOST: u16 = 0x184;
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Required, vec![key(1)], true);
        let target = &secured.server.target;
        let open = Nqn::new("nqn.2026-01.example:open").unwrap();
        let (serial, keys) = ("2".to_owned(), BTreeMap::new());
        let subsystem = SubsystemConfig { nqn: open, serial, allow_hosts: None, keys };
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
            let pdu = connect_pdu(&subsystem, &name);
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
fn tls_key_alone_authenticates_host() {
    on_cores(1, async || {
        let secured = Secured::start(TlsMode::Allowed, vec![key(1)], false);
        let target = &secured.server.target;
        let nqn = Nqn::new("nqn.2026-01.example:mixed").unwrap();
        let secret = Secret::new(&[9; 32], None).unwrap();
        let other = Nqn::from_uuid([8; 16]);
        let pair = KeyPair {
            host: KeyRing::new(vec![secret]),
            controller: None,
            demand: KeyDemand::Required,
        };
        let (serial, keys) = ("2".to_owned(), BTreeMap::from([(other, pair.clone())]));
        let subsystem = SubsystemConfig { nqn, serial, allow_hosts: None, keys };
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
        assert!(
            matches!(plain, HostError::FabricsRefused { command: FabricsType::CONNECT, .. }),
            "{plain}"
        );
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
        let tls = Some(RemoteTls {
            allow_plain: true,
            ..RemoteTls::required(TlsRing::new(vec![key(1)]))
        });
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
        secured.wait_for_failures(TlsFailureReason::Timeout, 3).await;
        secured.wait_for_failures(TlsFailureReason::Closed, 3).await;
    });
}
