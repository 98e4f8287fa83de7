//! Re-authentication of a host at intervals: with keys that stay, that are replaced, and that are
//! withdrawn.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{Server, any_port, memory, options, subnqn};
use flagstone_auth::{Hash, KeyDemand, KeyPair, KeyRing, Secret};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, KeyReload, RemoteDevice, RemoteSession};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, TargetConfig};
use flagstone_runtime::{buf, spawn, time};
use support::{eventually, in_simulation, on_each_real_driver};

const INTERVAL: Duration = Duration::from_millis(500);

fn locked() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:locked").unwrap()
}

fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32], Some(Hash::Sha256)).unwrap()
}

fn ring(byte: u8) -> KeyRing {
    KeyRing::new(vec![secret(byte)])
}

fn pair(host: &KeyRing, controller: Option<&KeyRing>) -> KeyPair {
    KeyPair { host: host.clone(), controller: controller.cloned(), demand: KeyDemand::Required }
}

fn server(keys: KeyPair, in_capsule_bytes: u32) -> Server {
    let config = TargetConfig { in_capsule_bytes, ..TargetConfig::default() };
    let server = Server::start_with(memory(1 << 20, 512), config, &any_port());
    let keys = BTreeMap::from([(host(), keys)]);
    let (nqn, serial) = (locked(), "2".to_owned());
    let subsystem = SubsystemConfig { nqn, serial, allow_hosts: None, keys };
    server.target.add_subsystem(subsystem).unwrap();
    let device = memory(1 << 20, 512);
    let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
    server.target.add_namespace(&locked(), namespace).unwrap();
    server
}

fn with_keys(keys: KeyPair) -> HostOptions {
    HostOptions {
        host_nqn: Some(host()),
        keys: Some(keys),
        queues: 2,
        queue_depth: 1,
        reauthentication_interval: INTERVAL,
        ..options()
    }
}

/// A session ends with its first connection, so a lasting session has not reconnected.
async fn session(server: &Server, options: HostOptions) -> Arc<RemoteSession> {
    RemoteSession::connect(server.address.clone(), &locked(), options).await.unwrap()
}

fn succeeded(server: &Server) -> u64 {
    server.target.authentication_totals().succeeded
}

fn failed(server: &Server) -> u64 {
    server.target.authentication_totals().failed.iter().sum()
}

/// Every queue has one slot, which a call always holds.
#[test]
fn authentication_is_repeated_while_io_continues() {
    for (controller, in_capsule_bytes) in [(None, 0), (Some(2), 0), (Some(2), 64 << 10)] {
        in_simulation(1, async || {
            let (mine, controller) = (ring(1), controller.map(ring));
            let keys = pair(&mine, controller.as_ref());
            let server = server(keys.clone(), in_capsule_bytes);
            let session = session(&server, with_keys(keys)).await;
            let stop = Rc::new(Cell::new(false));
            let calls: Vec<_> = (0..6_u64)
                .map(|at| {
                    let (session, stop) = (session.clone(), stop.clone());
                    spawn(async move {
                        while !stop.get() {
                            session.write(at * 4096, buf::zeroes(4096), false).await.unwrap();
                            session.read(at * 4096, buf::alloc(512).await).await.unwrap();
                            time::sleep(Duration::from_millis(1)).await;
                        }
                    })
                })
                .collect();
            assert_eq!(succeeded(&server), 3);
            time::sleep(INTERVAL * 21 / 5).await;
            assert_eq!(succeeded(&server), 3 * 5, "4 repetitions on each of 3 queues");
            assert!(!session.is_lost() && failed(&server) == 0);
            stop.set(true);
            for call in calls {
                call.await.unwrap();
            }
            session.close();
        });
    }
}

#[test]
fn hosts_without_interval_or_keys_repeat_nothing() {
    in_simulation(2, async || {
        let server = server(KeyPair::shared(&ring(1)), 8192);
        let off = HostOptions {
            reauthentication_interval: Duration::ZERO,
            ..with_keys(KeyPair::shared(&ring(1)))
        };
        let session = session(&server, off).await;
        let none = HostOptions { keys: None, ..with_keys(KeyPair::shared(&ring(1))) };
        let open = RemoteSession::connect(server.address.clone(), &subnqn(), none).await.unwrap();
        time::sleep(INTERVAL * 4).await;
        assert_eq!((succeeded(&server), failed(&server)), (3, 0));
        assert!(!session.is_lost() && !open.is_lost());
        session.close();
        open.close();
    });
}

/// The rotation of the guide, at an established association.
#[test]
fn replaced_keys_are_used_without_a_new_connection() {
    in_simulation(3, async || {
        let (theirs, mine) = (ring(1), ring(1));
        let server = server(KeyPair::shared(&theirs), 8192);
        let session = session(&server, with_keys(KeyPair::shared(&mine))).await;
        theirs.replace(vec![secret(1), secret(2)]);
        time::sleep(INTERVAL).await;
        mine.replace(vec![secret(2), secret(1)]);
        time::sleep(INTERVAL).await;
        theirs.replace(vec![secret(2)]);
        mine.replace(vec![secret(2)]);
        time::sleep(INTERVAL * 2).await;
        assert!(!session.is_lost() && failed(&server) == 0);
        assert!(succeeded(&server) >= 3 * 4, "{}", succeeded(&server));
        session.close();
    });
}

#[test]
fn withdrawn_key_of_either_side_ends_the_association() {
    for controllers in [false, true] {
        in_simulation(4, async || {
            let (theirs, own) = (ring(1), ring(2));
            let server = server(pair(&theirs, Some(&own)), 8192);
            let keys = pair(&ring(1), Some(&ring(2)));
            let session = session(&server, with_keys(keys.clone())).await;
            let device =
                RemoteDevice::connect(server.address.clone(), &locked(), with_keys(keys)).await;
            let device = device.unwrap();
            let withdrawn = if controllers { &own } else { &theirs };
            withdrawn.replace(vec![secret(3)]);
            time::sleep(INTERVAL * 3 / 4).await;
            assert!(!session.is_lost(), "it notices at the next time");
            time::timeout(Duration::from_secs(30), session.lost()).await.unwrap().unwrap();
            assert!(failed(&server) > 0);
            // A device connects again when it may.
            withdrawn.replace(vec![secret(if controllers { 2 } else { 1 })]);
            device.read(0, buf::alloc(512).await).await.unwrap();
            device.disconnect().await;
        });
    }
}

#[test]
fn keys_are_read_again_before_each_use() {
    on_each_real_driver(async || {
        let (theirs, mine) = (ring(1), ring(9));
        let server = server(KeyPair::shared(&theirs), 8192);
        let (reloaded, reads) = (mine.clone(), Arc::new(parking_lot::Mutex::new(0)));
        let (counted, next) = (reads.clone(), theirs.clone());
        let reload = KeyReload::new(move || {
            *counted.lock() += 1;
            reloaded.replace(vec![next.first().unwrap()]);
        });
        let options = HostOptions {
            key_reload: Some(reload),
            reauthentication_interval: Duration::from_millis(20),
            ..with_keys(KeyPair::shared(&mine))
        };
        let session = session(&server, options).await;
        theirs.replace(vec![secret(2), secret(1)]);
        let (before, authenticated) = (*reads.lock(), succeeded(&server));
        eventually("the keys are read again", || *reads.lock() >= before + 2).await;
        eventually("they are used", || succeeded(&server) >= authenticated + 3).await;
        assert_eq!(mine.first(), Some(secret(2)));
        assert!(!session.is_lost() && failed(&server) == 0);
        session.close();
    });
}
