//! Fixtures of the unit tests: a device, a target, and a host that calls it directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult, PropertyCommand,
};
use flagstone_nvme::property::{Configuration, Property, PropertySize};
use flagstone_nvme::{Nqn, Status};
use flagstone_runtime::{Buf, BufMut};

use crate::connect::ConnectRefusal;
use crate::queue::Hangup;
use crate::tls::ChannelProof;
use crate::*;

/// Device without contents.
struct Null {
    geometry: Geometry,
    flushes: Arc<AtomicU32>,
}

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn read(&self, _: u64, buf: BufMut) -> IoFuture<BufMut> {
        IoFuture::ready(Ok(buf))
    }
    fn write(&self, _: u64, _: Buf, _: bool) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }
    fn flush(&self) -> IoFuture<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        IoFuture::ready(Ok(()))
    }
    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }
    fn write_zeroes(&self, _: u64, _: u64, _: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }
}

pub(crate) fn null_device(geometry: Geometry) -> SharedDevice {
    Arc::new(Null { geometry, flushes: Arc::default() })
}

/// Device with a volatile write cache, and its flush count.
pub(crate) fn cached_device() -> (SharedDevice, Arc<AtomicU32>) {
    let flushes = Arc::new(AtomicU32::new(0));
    let geometry = Geometry { volatile_cache: true, ..Geometry::new(1 << 20, 512) };
    (Arc::new(Null { geometry, flushes: flushes.clone() }), flushes)
}

/// Counts calls of `hang_up`.
#[derive(Clone, Default)]
pub(crate) struct HangupCounter(Arc<AtomicU32>);

impl Hangup for HangupCounter {
    fn hang_up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl HangupCounter {
    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

pub(crate) fn volume() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:db").unwrap()
}

pub(crate) fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

pub(crate) const HOST_ID: [u8; 16] = [9; 16];

/// A target with one subsystem, [`volume`], with namespace 1 of 256 blocks of 4 KiB.
pub(crate) fn target() -> Arc<Target> {
    target_of(TargetConfig::default())
}

pub(crate) fn target_of(config: TargetConfig) -> Arc<Target> {
    let target = Target::new(config).unwrap();
    add_subsystem(&target, volume(), None);
    add_namespace(&target, Some(1)).unwrap();
    target
}

pub(crate) fn add_subsystem(target: &Target, nqn: Nqn, allow_hosts: Option<Vec<Nqn>>) {
    let config =
        SubsystemConfig { nqn, serial: "SN-1".to_owned(), allow_hosts, keys: Default::default() };
    target.add_subsystem(config).unwrap();
}

/// Adds a namespace of 1 MiB with a unique UUID.
pub(crate) fn add_namespace(target: &Target, nsid: Option<u32>) -> Result<u32, TargetError> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let mut uuid = [0xab; 16];
    uuid[..4].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    let device = null_device(Geometry::new(1 << 20, 4096));
    target.add_namespace(&volume(), NamespaceConfig { nsid, device, uuid, read_only: false })
}

/// Connect command that a test may alter before sending it.
pub(crate) struct Attempt {
    pub(crate) command: ConnectCommand,
    pub(crate) data: ConnectData,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) line: HangupCounter,
}

impl Attempt {
    /// Connect of the admin queue to `subnqn`.
    pub(crate) fn admin(subnqn: &Nqn) -> Attempt {
        Attempt {
            command: ConnectCommand::new(1, 0, 32, 15_000, false).unwrap(),
            data: ConnectData::new(HOST_ID, CONTROLLER_ID_DYNAMIC, subnqn, &host()),
            local: Some("192.0.2.1:4420".parse().unwrap()),
            line: HangupCounter::default(),
        }
    }

    /// Connect of I/O queue `qid` of controller `id` of [`volume`].
    pub(crate) fn io(id: u16, qid: u16) -> Attempt {
        Attempt {
            command: ConnectCommand::new(1, qid, 128, 0, true).unwrap(),
            data: ConnectData::new(HOST_ID, id, &volume(), &host()),
            ..Attempt::admin(&volume())
        }
    }

    pub(crate) fn send(&self, target: &Arc<Target>) -> Result<Connected, ConnectRefusal> {
        let line = Box::new(self.line.clone());
        connect(target, &self.command, &self.data, (self.local, None), ChannelProof::Plain, line)
    }
}

/// Connected and enabled controller.
pub(crate) struct TestHost {
    pub(crate) connected: Connected,
    pub(crate) line: HangupCounter,
}

impl TestHost {
    pub(crate) fn connect(target: &Arc<Target>, subnqn: &Nqn) -> TestHost {
        let attempt = Attempt::admin(subnqn);
        let connected = attempt.send(target).unwrap();
        let host = TestHost { connected, line: attempt.line };
        host.enable();
        assert!(host.controller().is_ready());
        host
    }

    pub(crate) fn controller(&self) -> &Arc<Controller> {
        &self.connected.controller
    }

    pub(crate) fn id(&self) -> u16 {
        ConnectResult::from_dw0(self.connected.result).controller_id
    }

    pub(crate) fn enable(&self) {
        self.set_cc(enabled());
    }

    pub(crate) fn set_cc(&self, configuration: Configuration) {
        let value = u64::from(configuration.0);
        let set = PropertyCommand::set(1, Property::CC, PropertySize::FOUR, value);
        let reply = self.controller().fabrics(&self.connected.queue, &set.command());
        assert_eq!(reply.status, Status::SUCCESS);
    }

    pub(crate) fn property(&self, property: Property) -> u64 {
        let size = if property == Property::CAP { PropertySize::EIGHT } else { PropertySize::FOUR };
        let get = PropertyCommand::get(1, property, size);
        let reply = self.controller().fabrics(&self.connected.queue, &get.command());
        assert_eq!(reply.status, Status::SUCCESS);
        reply.result
    }

    /// Result and data of a command, or its status with More cleared.
    pub(crate) fn send(&self, command: &Sqe, data: &[u8]) -> Result<(u64, Vec<u8>), Status> {
        let reply = self.controller().admin(command, data).expect("a reply");
        let CommandReply { status, result, data } = reply;
        if status.is_success() {
            return Ok((result, data.map_or(Vec::new(), |data| data.to_vec())));
        }
        assert!(data.is_none() && status.is_more(), "{status}");
        Err(if status.is_dnr() { status.code().dnr() } else { status.code() })
    }

    /// Sends an Asynchronous Event Request.
    pub(crate) fn wait_for_event(&self, cid: u16) {
        let reply = self.controller().admin(&Sqe::async_event_request(cid), &[]);
        assert!(reply.is_none(), "{reply:?}");
    }
}

/// CC value with which Linux enables a controller.
pub(crate) fn enabled() -> Configuration {
    Configuration::default().with_enable(1).with_sqe_exponent(6).with_cqe_exponent(4)
}
