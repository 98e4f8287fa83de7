//! Host and target authenticate each other over real connections.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Server, any_port, memory, on_cores, options};
use flagstone_auth::{Hash, KeyDemand, KeyPair, KeyRing, Secret};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, TargetConfig};
use flagstone_runtime::buf;

fn locked() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:locked").unwrap()
}

fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn ring(byte: u8) -> KeyRing {
    KeyRing::new(vec![Secret::new(&[byte; 48], Some(Hash::Sha384)).unwrap()])
}

fn server(keys: KeyPair) -> Server {
    server_with(BTreeMap::from([(host(), keys)]))
}

fn open_server() -> Server {
    server_with(BTreeMap::new())
}

fn server_with(keys: BTreeMap<Nqn, KeyPair>) -> Server {
    server_of(TargetConfig::default(), keys)
}

fn server_of(config: TargetConfig, keys: BTreeMap<Nqn, KeyPair>) -> Server {
    let server = Server::start_with(memory(1 << 20, 512), config, &any_port());
    let (nqn, serial) = (locked(), "2".to_owned());
    let subsystem = SubsystemConfig { nqn, serial, allow_hosts: None, keys };
    server.target.add_subsystem(subsystem).unwrap();
    let device = memory(1 << 20, 512);
    let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
    server.target.add_namespace(&locked(), namespace).unwrap();
    server
}

async fn connect(server: &Server, keys: Option<KeyPair>) -> Result<Arc<RemoteDevice>, HostError> {
    let options = HostOptions { host_nqn: Some(host()), queues: 2, keys, ..options() };
    RemoteDevice::connect(server.address.clone(), &locked(), options).await
}

fn one_way(host: KeyRing) -> KeyPair {
    KeyPair { host, controller: None, demand: KeyDemand::Required }
}

#[test]
fn only_hosts_with_the_right_keys_connect() {
    on_cores(2, async || {
        let key = ring(1);
        let server = server(KeyPair::shared(&key));
        for keys in [one_way(key.clone()), KeyPair::shared(&key)] {
            let device = connect(&server, Some(keys)).await.unwrap();
            let data = buf::alloc(4096).await.freeze();
            device.write(0, data, false).await.unwrap();
            device.read(0, buf::alloc(4096).await).await.unwrap();
            device.disconnect().await;
        }
        assert_eq!(server.target.authentication_totals().succeeded, 2 * 3);
        let missing = connect(&server, None).await.unwrap_err();
        assert!(matches!(missing, HostError::KeyRequired), "{missing}");
        let wrong = connect(&server, Some(one_way(ring(2)))).await.unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "authentication failed: the controller refused: authentication failed"
        );
        let impostor =
            KeyPair { host: key, controller: Some(ring(2)), demand: KeyDemand::Required };
        let distrusted = connect(&server, Some(impostor)).await.unwrap_err();
        assert!(matches!(distrusted, HostError::Authentication(_)), "{distrusted}");
        assert!(![missing, wrong, distrusted].iter().any(HostError::may_pass));
    });
}

/// A target that asks for nothing may be an impostor that knows only the name.
#[test]
fn target_without_authentication_is_refused() {
    on_cores(1, async || {
        let server = Server::start(memory(1 << 20, 512));
        let connect = async |keys| {
            let options = HostOptions { keys: Some(keys), ..options() };
            RemoteDevice::connect(server.address.clone(), &common::subnqn(), options).await
        };
        connect(one_way(ring(1))).await.unwrap().disconnect().await;
        let refused = connect(KeyPair::shared(&ring(1))).await.unwrap_err();
        assert!(matches!(refused, HostError::NoProof), "{refused}");
    });
}

/// The nodes of a pair get keys one after the other.
#[test]
fn optional_keys_are_proven_to_those_who_have_them() {
    on_cores(1, async || {
        let required = || KeyPair::shared(&ring(1));
        let optional = || KeyPair { demand: KeyDemand::Optional, ..required() };
        // At the target, at the host, and how many queues authenticate.
        for (target, host, authenticated) in [
            (Some(optional()), None, 0),
            (Some(optional()), Some(optional()), 3),
            (Some(optional()), Some(required()), 3),
            (Some(required()), Some(optional()), 3),
            (None, Some(optional()), 0),
        ] {
            let server = match target {
                Some(keys) => server(keys),
                None => open_server(),
            };
            let device = connect(&server, host).await.unwrap();
            device.read(0, buf::alloc(512).await).await.unwrap();
            device.disconnect().await;
            assert_eq!(server.target.authentication_totals().succeeded, authenticated);
        }
        // Data of writes does not fit into a capsule, and that of authentication does.
        let config = TargetConfig { in_capsule_bytes: 0, ..TargetConfig::default() };
        for keys in [None, Some(optional()), Some(required())] {
            let keys = keys.map(|keys| (host(), keys)).into_iter().collect();
            let server = server_of(config.clone(), keys);
            let device = connect(&server, Some(optional())).await.unwrap();
            device.write(0, buf::zeroes(512), false).await.unwrap();
            device.disconnect().await;
        }
        // A wrong key is a mistake, not a missing one.
        let server = server(optional());
        let wrong = KeyPair { demand: KeyDemand::Optional, ..KeyPair::shared(&ring(2)) };
        let refused = connect(&server, Some(wrong)).await.unwrap_err();
        assert!(matches!(refused, HostError::Authentication(_)), "{refused}");
    });
}

#[test]
fn rotated_key_is_used_at_the_next_connection() {
    on_cores(1, async || {
        let (theirs, mine) = (ring(1), ring(1));
        let server = server(one_way(theirs.clone()));
        let device = connect(&server, Some(one_way(mine.clone()))).await.unwrap();
        let (old, new) = (ring(1).first().unwrap(), ring(2).first().unwrap());
        theirs.replace(vec![old, new.clone()]);
        mine.replace(vec![new.clone()]);
        device.read(0, buf::alloc(512).await).await.unwrap();
        theirs.replace(vec![new]);
        server.target.disconnect_all();
        let read = device.read(0, buf::alloc(512).await);
        let read = flagstone_runtime::time::timeout(Duration::from_secs(60), read).await;
        read.expect("reconnected").unwrap();
        device.disconnect().await;
    });
}
