//! Target with a listener.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_blockdev::SharedDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_target as target;
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig, TlsMode};
use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{alive, spawn, spawn_detached};

use super::{BlockingDevice, Host, Options, eventually, pattern};

/// Subsystem of every server.
pub fn subsystem() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:db").unwrap()
}

/// Target with one subsystem, whose namespace 1 is a [`BlockingDevice`].
pub struct Server {
    pub target: Arc<Target>,
    pub gate: Arc<BlockingDevice>,
    pub address: Address,
    /// Target side of the most recently accepted connection, for tests that close it.
    pub last: Rc<RefCell<Option<Stream>>>,
    /// Keeps `last`, and thereby the connection, open.
    pub keeps_last: Rc<Cell<bool>>,
    /// Encryption of connections that are accepted later.
    pub tls: Rc<Cell<TlsMode>>,
    before: (usize, usize),
    _accepting: AbortOnDrop<()>,
}

impl Server {
    pub fn new() -> Server {
        Server::with(TargetConfig::default())
    }

    pub fn with(config: TargetConfig) -> Server {
        Server::of(config, BlockingDevice::memory())
    }

    pub fn of(config: TargetConfig, gate: Arc<BlockingDevice>) -> Server {
        let target = Target::new(config).unwrap();
        let serial = "SN-1".to_owned();
        let nqn = subsystem();
        target
            .add_subsystem(SubsystemConfig {
                nqn,
                serial,
                allow_hosts: None,
                keys: Default::default(),
            })
            .unwrap();
        let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = Listener::bind(&any).unwrap();
        let address = listener.address().clone();
        target.add_listener(&address).unwrap();
        let before = alive();
        let (last, keeps_last) = (Rc::<RefCell<Option<Stream>>>::default(), Rc::default());
        let (accepts, kept, keeps) = (target.clone(), last.clone(), Rc::clone(&keeps_last));
        let tls = Rc::new(Cell::new(TlsMode::Off));
        let mode = tls.clone();
        let accepting = spawn(async move {
            while let Ok(stream) = listener.accept().await {
                if Cell::get(&keeps) {
                    *kept.borrow_mut() = Some(stream.clone());
                }
                spawn_detached(target::serve_listener(accepts.clone(), stream, mode.get()));
            }
        });
        let accepting = accepting.abort_on_drop();
        let server = Server {
            target,
            gate: gate.clone(),
            address,
            last,
            keeps_last,
            tls,
            before,
            _accepting: accepting,
        };
        assert_eq!(server.add(gate), 1);
        server
    }

    /// Adds a namespace and returns its identifier.
    pub fn add(&self, device: SharedDevice) -> u32 {
        self.try_add(None, device, false)
    }

    pub fn try_add(&self, nsid: Option<u32>, device: SharedDevice, read_only: bool) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut uuid = [0xab; 16];
        uuid[..4].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let config = NamespaceConfig { nsid, device, uuid, read_only };
        self.target.add_namespace(&subsystem(), config).unwrap()
    }

    /// Waits until all connections have ended: no controller, and no task or operation except the
    /// listener's.
    pub async fn is_quiet(&self) {
        self.last.borrow_mut().take();
        eventually("no controller is left", || self.target.controllers() == 0).await;
        let (tasks, operations) = self.before;
        let alone = (tasks + 1, operations + 1);
        eventually("no connection is left", || alive() == alone).await;
        let status = self.target.subsystem_status(&subsystem()).unwrap();
        assert!(status.controllers.is_empty());
    }

    /// Checks that a conforming host is served.
    pub async fn still_serves(&self) {
        let mut host = Host::attach(self, &Options::default()).await;
        let block = u64::from(self.gate_block_bytes());
        let data = pattern(self.gate.writes() as u64, 2 * block as usize);
        host.io.write(1, 6, block, &data).await.unwrap();
        assert_eq!(host.io.read(1, 6, block, data.len()).await.unwrap(), data);
    }

    pub fn gate_block_bytes(&self) -> u32 {
        use flagstone_blockdev::BlockDevice;
        self.gate.geometry().block_bytes
    }

    /// Final check of every test.
    pub async fn is_sound(&self) {
        self.still_serves().await;
        self.is_quiet().await;
    }
}
