//! Secure channel concatenation between host and target over real connections.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Server, any_port, memory, on_cores, options};
use flagstone_auth::{Explanation, Hash, HostFailure, KeyPair, KeyRing, Secret};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice};
use flagstone_nvmf_target::{self as target, NamespaceConfig, SubsystemConfig, TlsMode};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{buf, spawn, spawn_detached};

fn locked() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:locked").unwrap()
}

fn host(byte: u8) -> Nqn {
    Nqn::from_uuid([byte; 16])
}

fn ring(byte: u8) -> KeyRing {
    KeyRing::new(vec![Secret::new(&[byte; 48], Some(Hash::Sha384)).unwrap()])
}

fn keys(byte: u8) -> KeyPair {
    KeyPair::shared(&ring(byte))
}

struct Listening {
    server: Server,
    address: Address,
    _accept: AbortOnDrop<()>,
}

/// Target with keys of hosts 1 and 2, and a listener of `mode`.
fn listening(mode: TlsMode) -> Listening {
    let server = Server::start(memory(1 << 20, 512));
    let keys = BTreeMap::from([1, 2].map(|byte| (host(byte), keys(byte))));
    let (nqn, serial) = (locked(), "2".to_owned());
    let subsystem = SubsystemConfig { nqn, serial, allow_hosts: Vec::new(), keys };
    server.target.add_subsystem(subsystem).unwrap();
    let device = memory(1 << 20, 512);
    let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
    server.target.add_namespace(&locked(), namespace).unwrap();
    let listener = Listener::bind(&any_port()).unwrap();
    let address = listener.address().clone();
    server.target.add_tls_listener(&address, mode).unwrap();
    let accepts = server.target.clone();
    let accept = spawn(async move {
        while let Ok(stream) = listener.accept().await {
            spawn_detached(target::serve_listener(accepts.clone(), stream, mode));
        }
    });
    Listening { server, address, _accept: accept.abort_on_drop() }
}

impl Listening {
    async fn connect(&self, name: u8, keys: KeyPair) -> Result<Arc<RemoteDevice>, HostError> {
        let (host_nqn, keys) = (Some(host(name)), Some(keys));
        let options = HostOptions { host_nqn, queues: 2, keys, concatenate: true, ..options() };
        RemoteDevice::connect(self.address.clone(), &locked(), options).await
    }
}

async fn check_io(device: &RemoteDevice, byte: u8) {
    let mut data = buf::alloc(4096).await;
    data.fill(byte);
    device.write(4096, data.freeze(), false).await.unwrap();
    let read = device.read(4096, buf::alloc(4096).await).await.unwrap();
    assert!(read.iter().all(|one| *one == byte));
}

#[test]
fn all_queues_use_tls_after_one_authentication() {
    on_cores(1, async || {
        let listening = listening(TlsMode::Allowed);
        let mut connected = 0;
        for _ in 0..2 {
            let device = listening.connect(1, keys(1)).await.unwrap();
            check_io(&device, 3).await;
            connected += 1;
            let target = &listening.server.target;
            assert_eq!(target.authentication_totals().succeeded, connected);
            assert_eq!(target.tls_totals().succeeded, 3 * connected, "admin, and two for I/O");
            device.disconnect().await;
        }
        // The admin queue that authenticated, and the other controllers, are gone.
        listening.server.until_deserted().await;
    });
}

#[test]
fn two_hosts_have_psks_of_their_own() {
    on_cores(2, async || {
        let listening = listening(TlsMode::Allowed);
        let first = listening.connect(1, keys(1)).await.unwrap();
        let second = listening.connect(2, keys(2)).await.unwrap();
        check_io(&first, 1).await;
        check_io(&second, 2).await;
        let impostor = listening.connect(2, keys(1)).await.unwrap_err();
        let failed = HostFailure::Refused(Explanation::Failed);
        assert!(matches!(&impostor, HostError::Authentication(why) if *why == failed));
        first.disconnect().await;
        second.disconnect().await;
    });
}

#[test]
fn concatenation_without_its_conditions_says_why() {
    on_cores(1, async || {
        let off = listening(TlsMode::Off);
        let refused = off.connect(1, keys(1)).await.unwrap_err();
        assert!(refused.to_string().contains("a listener with optional TLS"), "{refused}");
        assert!(!refused.may_pass());
        let required = listening(TlsMode::Required);
        let refused = required.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(refused, HostError::Closed | HostError::Broken(_)), "{refused}");
        // A subsystem without keys has nothing to make a PSK of.
        let open = HostOptions { keys: Some(keys(1)), concatenate: true, ..options() };
        let address = off.server.address.clone();
        let refused = RemoteDevice::connect(address.clone(), &common::subnqn(), open).await;
        assert!(matches!(refused, Err(HostError::NoConcatenation)), "{refused:?}");
        for keys in [None, Some(KeyPair { host: ring(1), controller: None })] {
            let unproven = HostOptions { keys, concatenate: true, ..options() };
            let refused = RemoteDevice::connect(address.clone(), &locked(), unproven).await;
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("a key of the controller"), "{refused}");
        }
    });
}
