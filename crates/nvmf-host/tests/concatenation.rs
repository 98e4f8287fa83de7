//! Secure channel concatenation between host and target over real connections.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{any_port, memory, on_cores, options};
use flagstone_auth::tls::TlsKey;
use flagstone_auth::{
    Explanation, Hash, HostFailure, KeyDemand, KeyPair, KeyRing, Secret, TlsRing,
};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice, RemoteTls};
use flagstone_nvmf_target::{
    self as target, HostTls, NamespaceConfig, SubsystemConfig, Target, TargetConfig,
    TlsFailureReason, TlsMode,
};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{buf, spawn, spawn_detached, time};

/// Subsystem without keys.
const OPEN: &str = "nqn.2026-01.io.flagstone:open";

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

/// What happens at the target between two connections.
#[derive(Clone, Copy)]
enum Event {
    /// The connection is closed.
    Close,
    Restart,
    /// The keys of host 1 are read again: a new one is accepted besides.
    Reload,
}

struct Listening {
    target: Rc<RefCell<Arc<Target>>>,
    address: Address,
    /// Number of connections before an event.
    event_after: Rc<Cell<Option<(u32, Event)>>>,
    _accept: AbortOnDrop<()>,
}

/// Target with keys of hosts 1 and 2.
fn target_with(rings: &[KeyRing; 2], address: &Address, mode: TlsMode) -> Arc<Target> {
    let target = Target::new(TargetConfig::default()).unwrap();
    let pairs = [1, 2].map(host).into_iter().zip(rings.iter().map(KeyPair::shared));
    let open = Nqn::new(OPEN).unwrap();
    for (nqn, serial, uuid, keys) in
        [(locked(), "1", [8; 16], pairs.collect()), (open, "2", [9; 16], BTreeMap::new())]
    {
        let serial = serial.to_owned();
        let subsystem = SubsystemConfig { nqn, serial, allow_hosts: None, keys };
        target.add_subsystem(subsystem).unwrap();
        let device = memory(1 << 20, 512);
        let namespace = NamespaceConfig { nsid: None, device, uuid, read_only: false };
        target.add_namespace(&nqn, namespace).unwrap();
    }
    target.add_tls_listener(address, mode).unwrap();
    target
}

fn listening(mode: TlsMode) -> Listening {
    let rings = [ring(1), ring(2)];
    let listener = Listener::bind(&any_port()).unwrap();
    let address = listener.address().clone();
    let target = Rc::new(RefCell::new(target_with(&rings, &address, mode)));
    let event_after = Rc::<Cell<Option<(u32, Event)>>>::default();
    let (current, after) = (target.clone(), event_after.clone());
    let (known, at) = (rings.clone(), address.clone());
    let accept = spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let due = after.take();
            after.set(due.and_then(|(more, event)| Some((more.checked_sub(1)?, event))));
            match due {
                Some((0, Event::Close)) => {
                    stream.shutdown();
                    continue;
                }
                Some((0, Event::Restart)) => {
                    let old = current.replace(target_with(&known, &at, mode));
                    old.disconnect_all();
                }
                Some((0, Event::Reload)) => {
                    assert!(
                        known[0].replace([1, 3].map(|byte| ring(byte).first().unwrap()).into())
                    );
                }
                _ => {}
            }
            spawn_detached(target::serve_listener(current.borrow().clone(), stream, mode));
        }
    });
    let _accept = accept.abort_on_drop();
    Listening { target, address, event_after, _accept }
}

impl Listening {
    fn target(&self) -> Arc<Target> {
        self.target.borrow().clone()
    }

    async fn connect(&self, name: u8, keys: KeyPair) -> Result<Arc<RemoteDevice>, HostError> {
        let (host_nqn, keys) = (Some(host(name)), Some(keys));
        let options = HostOptions { host_nqn, queues: 2, keys, concatenate: true, ..options() };
        RemoteDevice::connect(self.address.clone(), &locked(), options).await
    }

    /// Waits until no more controllers than these are left.
    async fn until_controllers(&self, left: u32) {
        while self.target().controllers() > left {
            time::sleep(Duration::from_millis(1)).await;
        }
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
            let target = listening.target();
            assert_eq!(target.authentication_totals().succeeded, connected);
            assert_eq!(target.tls_totals().succeeded, 3 * connected, "admin, and two for I/O");
            device.disconnect().await;
        }
        // The admin queue that authenticated, and the other controllers, are gone.
        listening.until_controllers(0).await;
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
fn refused_concatenation_reports_reason() {
    on_cores(1, async || {
        let off = listening(TlsMode::Off);
        let refused = off.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(refused, HostError::ConcatenationRefused), "{refused}");
        assert!(refused.to_string().contains("a listener with optional TLS"), "{refused}");
        assert!(!refused.may_pass());
        let required = listening(TlsMode::Required);
        let refused = required.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(refused, HostError::TlsRequired), "{refused}");
        assert!(!refused.may_pass());
        // A subsystem without keys has nothing to make a PSK of.
        let open = HostOptions { keys: Some(keys(1)), concatenate: true, ..options() };
        let address = off.address.clone();
        let refused = RemoteDevice::connect(address.clone(), &Nqn::new(OPEN).unwrap(), open).await;
        assert!(matches!(refused, Err(HostError::NoConcatenation)), "{refused:?}");
        for keys in
            [None, Some(KeyPair { host: ring(1), controller: None, demand: KeyDemand::Required })]
        {
            let unproven = HostOptions { keys, concatenate: true, ..options() };
            let refused = RemoteDevice::connect(address.clone(), &locked(), unproven).await;
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("a key of the controller"), "{refused}");
        }
    });
}

/// Regression: the host found out by a random key whether the target has TLS. The target took that
/// for a guess of the key that it has for this host, and delayed its address.
#[test]
fn probe_for_tls_is_no_guess_of_a_key() {
    on_cores(1, async || {
        let required = listening(TlsMode::Required);
        let key = || TlsRing::new(vec![TlsKey::new(&[5; 32], None).unwrap()]);
        let tls = HostTls { keys: key(), required: true };
        required.target().set_tls_keys(&locked(), BTreeMap::from([(host(1), tls)]));
        let refused = required.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(refused, HostError::TlsRequired), "{refused}");
        let failed = |reason| {
            let at = TlsFailureReason::ALL.iter().position(|known| *known == reason).unwrap();
            required.target().tls_totals().failed[at]
        };
        assert_eq!(failed(TlsFailureReason::WrongKey), 0, "only these delay an address");
        assert_eq!(failed(TlsFailureReason::UnknownIdentity), 1);
        // It comes back with its key, and one with another key is a guesser.
        let options = |keys| HostOptions {
            host_nqn: Some(host(1)),
            keys: Some(self::keys(1)),
            tls: Some(RemoteTls::required(keys)),
            ..options()
        };
        let address = required.address.clone();
        let device = RemoteDevice::connect(address.clone(), &locked(), options(key())).await;
        device.unwrap().disconnect().await;
        let other = TlsRing::new(vec![TlsKey::new(&[6; 32], None).unwrap()]);
        RemoteDevice::connect(address, &locked(), options(other)).await.unwrap_err();
        assert_eq!(failed(TlsFailureReason::WrongKey), 1);
    });
}

/// A target that closes a plain connection as it restarts does not count as requiring TLS.
#[test]
fn target_that_closes_once_is_tried_again() {
    on_cores(1, async || {
        let listening = listening(TlsMode::Allowed);
        listening.event_after.set(Some((0, Event::Close)));
        let closed = listening.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(closed, HostError::Closed | HostError::Broken(_)), "{closed}");
        assert!(closed.may_pass());
        listening.connect(1, keys(1)).await.unwrap().disconnect().await;
    });
}

/// It has forgotten the PSK. A restart is no mistake of an operator, so hosts try again.
#[test]
fn target_that_restarts_in_between_is_tried_again() {
    on_cores(1, async || {
        let listening = listening(TlsMode::Allowed);
        listening.event_after.set(Some((1, Event::Restart)));
        let forgotten = listening.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(forgotten, HostError::GeneratedPsk(_)), "{forgotten}");
        assert!(forgotten.may_pass() && forgotten.to_string().contains("generated"), "{forgotten}");
        // Between the admin queue and I/O queues.
        listening.event_after.set(Some((3, Event::Restart)));
        let forgotten = listening.connect(1, keys(1)).await.unwrap_err();
        assert!(forgotten.may_pass(), "{forgotten}");
        let device = listening.connect(1, keys(1)).await.unwrap();
        check_io(&device, 4).await;
        // While it is attached: the host authenticates again by itself.
        listening.event_after.set(Some((0, Event::Restart)));
        listening.target().disconnect_all();
        check_io(&device, 5).await;
        assert_eq!(listening.target().authentication_totals().succeeded, 1);
        device.disconnect().await;
    });
}

/// Between authentication and TLS, and while a host is attached.
#[test]
fn target_that_reloads_a_key_in_between_is_tried_again() {
    on_cores(1, async || {
        let listening = listening(TlsMode::Allowed);
        let other = listening.connect(2, keys(2)).await.unwrap();
        listening.event_after.set(Some((1, Event::Reload)));
        let replaced = listening.connect(1, keys(1)).await.unwrap_err();
        assert!(matches!(replaced, HostError::GeneratedPsk(_)), "{replaced}");
        for byte in [1, 3] {
            let pair = KeyPair {
                host: ring(byte),
                controller: Some(ring(1)),
                demand: KeyDemand::Required,
            };
            let device = listening.connect(1, pair).await.unwrap();
            check_io(&device, byte).await;
            device.disconnect().await;
        }
        check_io(&other, 4).await;
        listening.until_controllers(1).await;
        assert_eq!(listening.target().generated_psks(), 1, "that of the other host");
        other.disconnect().await;
        listening.until_controllers(0).await;
        assert_eq!(listening.target().generated_psks(), 0);
    });
}
