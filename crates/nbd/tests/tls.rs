//! STARTTLS between this crate's client and server, and what plain clients are refused.

mod common;

use std::rc::Rc;
use std::sync::Arc;

use common::{any_port, memory, on_each_real_driver};
use flagstone_blockdev::BlockDevice;
use flagstone_nbd::client::negotiate::NegotiationError;
use flagstone_nbd::{
    ClientOptions, ConnectError, Drain, Export, Exports, NbdDevice, NbdServer, NbdTls,
    NbdTlsClient, NbdTlsKeys, ServerOptions,
};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::tls::{
    PskChoice, PskRefusal, PskServer, TlsClient, TlsPsk, TlsPskHash, TlsServer,
};
use flagstone_runtime::{JoinHandle, buf, spawn, time};
use flagstone_transport::limits::FAILURE_DELAY;
use flagstone_transport::{Psk, PskChooser, PskHash, PskKeys};

fn psk(name: &str, byte: u8) -> TlsPsk {
    let (identity, secret) = (name.as_bytes().to_vec(), vec![byte; 32].into());
    TlsPsk { identity, secret, hash: TlsPskHash::Sha256 }
}

/// Keys of alice and bob.
struct TwoKeys;

impl PskServer for TwoKeys {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        let offers = |name: &str| hello.windows(name.len()).any(|part| part == name.as_bytes());
        match ["alice", "bob"].iter().position(|name| offers(name)) {
            Some(0) => PskChoice::Use(psk("alice", 1)),
            Some(_) => PskChoice::Use(psk("bob", 2)),
            None => PskChoice::Refuse(PskRefusal::UnknownIdentity(Vec::new())),
        }
    }
}

struct Secured {
    address: Address,
    drain: Drain,
    server: Arc<NbdServer>,
    tls: NbdTls,
    _task: Rc<JoinHandle<()>>,
}

impl Secured {
    fn start(required: bool) -> Secured {
        let tls = NbdTls::new(TlsServer::with_psks(Arc::new(TwoKeys)).unwrap());
        Secured::with(if required { tls.required() } else { tls })
    }

    fn with(tls: NbdTls) -> Secured {
        let export = Export::new("disk", memory(1 << 20, 512));
        let private = Export::new("private", memory(1 << 20, 512));
        let private = private.accessible_to(Some(vec!["alice".to_owned()]));
        let exports = Arc::new(Exports::new([export, private]).unwrap());
        let drain = Drain::new();
        let server = NbdServer::new(exports, ServerOptions::default(), drain.clone());
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        let task = Rc::new(spawn(server.clone().run_tls(listener, Some(tls.clone()))));
        Secured { address, drain, server, tls, _task: task }
    }

    async fn connect(
        &self,
        export: &str,
        key: Option<TlsPsk>,
    ) -> Result<Arc<NbdDevice>, ConnectError> {
        let (address, options) = (self.address.clone(), ClientOptions::default());
        match key {
            None => NbdDevice::connect(address, export, options).await,
            Some(key) => {
                let tls = NbdTlsClient::new(TlsClient::with_psks(vec![key]).unwrap());
                NbdDevice::connect_tls(address, export, options, tls).await
            }
        }
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.drain.begin();
    }
}

async fn check_io(device: &NbdDevice) {
    for (offset, bytes, byte) in [(0, 512, 1), (8192, 300 << 10, 2)] {
        let mut data = buf::alloc(bytes).await;
        data.fill(byte);
        device.write(offset, data.freeze(), true).await.unwrap();
        let read = device.read(offset, buf::alloc(bytes).await).await.unwrap();
        assert!(read.iter().all(|one| *one == byte));
    }
}

#[test]
fn client_and_server_use_tls() {
    on_each_real_driver(async || {
        for required in [true, false] {
            let secured = Secured::start(required);
            check_io(&secured.connect("disk", Some(psk("bob", 2))).await.unwrap()).await;
        }
    });
}

/// Keys by their names and bytes.
struct ListedKeys(&'static [(&'static str, u8)]);

impl PskKeys for ListedKeys {
    fn candidates(&self, identity: &[u8]) -> Vec<Psk> {
        let own = self.0.iter().filter(|(name, _)| name.as_bytes() == identity);
        own.map(|(_, byte)| {
            let (identity, secret) = (identity.to_vec(), vec![*byte; 32].into());
            Psk { identity, secret, hash: PskHash::Sha256 }
        })
        .collect()
    }
}

fn listed(keys: &'static [(&'static str, u8)]) -> NbdTlsKeys {
    let psks = Arc::new(ListedKeys(keys));
    let server = TlsServer::with_psks(Arc::new(PskChooser(psks.clone()))).unwrap();
    NbdTlsKeys { server, psks: Some(psks) }
}

#[test]
fn withdrawn_keys_end_their_connections() {
    on_each_real_driver(async || {
        let secured = Secured::with(NbdTls::new(listed(&[("alice", 1), ("bob", 2)])));
        let alice = secured.connect("disk", Some(psk("alice", 1))).await.unwrap();
        let bob = secured.connect("disk", Some(psk("bob", 2))).await.unwrap();
        let both = listed(&[("bob", 2), ("alice", 3), ("alice", 1)]);
        assert_eq!(secured.tls.replace(both), 0);
        let renewed = secured.connect("disk", Some(psk("alice", 3))).await.unwrap();
        let attached = async |count| {
            while secured.server.attached().len() != count {
                time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        attached(3).await;
        assert_eq!(secured.tls.replace(listed(&[("alice", 3), ("bob", 2)])), 1);
        attached(2).await;
        check_io(&bob).await;
        check_io(&renewed).await;
        drop(alice);
        secured.connect("disk", Some(psk("alice", 1))).await.unwrap_err();
        assert_eq!(secured.tls.replace(listed(&[("bob", 2)])), 1);
        attached(1).await;
    });
}

#[test]
fn plain_clients_are_refused_where_tls_is_required() {
    on_each_real_driver(async || {
        let secured = Secured::start(true);
        let refused = secured.connect("disk", None).await.unwrap_err();
        let expected = NegotiationError::TlsRequired;
        assert!(matches!(&refused, ConnectError::Negotiation(e) if *e == expected), "{refused}");
        let open = Secured::start(false);
        check_io(&open.connect("disk", None).await.unwrap()).await;
    });
}

#[test]
fn exports_admit_the_clients_on_their_list() {
    on_each_real_driver(async || {
        let secured = Secured::start(false);
        check_io(&secured.connect("private", Some(psk("alice", 1))).await.unwrap()).await;
        for (key, reason) in [(Some(psk("bob", 2)), "does not admit"), (None, "requires TLS")] {
            let refused = secured.connect("private", key).await.unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
            assert!(!refused.may_pass());
        }
    });
}

#[test]
fn wrong_and_unknown_keys_are_refused() {
    on_each_real_driver(async || {
        let secured = Secured::start(false);
        for key in [psk("alice", 3), psk("carol", 1)] {
            let refused = secured.connect("disk", Some(key)).await.unwrap_err();
            assert!(matches!(refused, ConnectError::Tls(_)), "{refused}");
        }
        // A server without TLS is not used without.
        let plain = common::Running::with(memory(1 << 20, 512));
        let tls = NbdTlsClient::new(TlsClient::with_psks(vec![psk("alice", 1)]).unwrap());
        let (address, options) = (plain.address.clone(), ClientOptions::default());
        let refused = NbdDevice::connect_tls(address, "disk", options, tls).await.unwrap_err();
        assert!(refused.to_string().contains("refuses TLS"), "{refused}");
        plain.stop().await;
    });
}

#[test]
fn wrong_keys_delay_their_source() {
    on_each_real_driver(async || {
        let secured = Secured::start(true);
        for _ in 0..3 {
            assert!(secured.connect("disk", Some(psk("alice", 3))).await.is_err());
        }
        let begun = time::now();
        check_io(&secured.connect("disk", Some(psk("alice", 1))).await.unwrap()).await;
        assert!(begun.elapsed() >= FAILURE_DELAY * 4, "{:?}", begun.elapsed());
    });
}
