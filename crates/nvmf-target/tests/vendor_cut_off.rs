//! Vendor specific commands of arbitrary hosts, such as `nvme admin-passthru` of Linux, and
//! ordinary commands of a session whose device is unreachable.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_blockdev::{FaultConfig, FaultControl, FaultLayer, IoFuture, SharedDevice};
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::log::{CommandEffects, ErrorEntry, LogId};
use flagstone_nvme::property::{shutdown, shutdown_status};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{AdminOpcode, IoOpcode, Sqe, Status, Wire};
use flagstone_nvmf_target::{
    Charge, CommandReply, NamespaceConfig, VendorCommands, VendorHandler, VendorHost, VendorSession,
};
use flagstone_runtime::{Buf, BufMut};
use support::client::enabled;
use support::{BlockingDevice, Host, Options, Server, on_each_driver, subsystem};

const ADMIN: AdminOpcode = AdminOpcode(0xc8);
const IO: IoOpcode = IoOpcode(0x84);
const BLOCK: u64 = 4096;
/// Dwords 0 and 1 of the refusal.
const RESULT: u64 = 0x1_0000_0007;
const REFUSAL: Status = Status::new(7, 3).dnr();

/// Sessions with a separate device that may be cut off.
struct Handler {
    device: SharedDevice,
    cut_off: Arc<AtomicBool>,
}

impl VendorHandler for Handler {
    fn commands(&self) -> VendorCommands {
        VendorCommands { admin: &[ADMIN], io: &[IO] }
    }

    fn session(&self, _: &VendorHost) -> Arc<dyn VendorSession> {
        Arc::new(Session { device: self.device.clone(), cut_off: self.cut_off.clone() })
    }
}

struct Session {
    device: SharedDevice,
    cut_off: Arc<AtomicBool>,
}

impl VendorSession for Session {
    fn device(&self) -> SharedDevice {
        self.device.clone()
    }

    fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::SeqCst)
    }

    fn reply_bytes(&self, _: &Sqe) -> Result<usize, Status> {
        Ok(0)
    }

    fn admin(&self, _: &Sqe, _: &[u8], _: Option<BufMut>) -> IoFuture<CommandReply> {
        IoFuture::ready(Ok(CommandReply::failure(REFUSAL, RESULT)))
    }

    fn io(&self, _: &Sqe, _: Option<Buf>, _: Charge) -> IoFuture<CommandReply> {
        let flush = self.device.flush();
        IoFuture::later(async move { flush.await.map(|()| CommandReply::success(None)) })
    }
}

/// Namespace with a handler beside an ordinary one.
struct World {
    server: Server,
    nsid: u32,
    /// Devices of the namespace and of its sessions.
    devices: [Arc<BlockingDevice>; 2],
    control: FaultControl,
    cut_off: Arc<AtomicBool>,
}

fn world() -> World {
    let server = Server::new();
    let devices = [BlockingDevice::disk(), BlockingDevice::disk()];
    let (device, control) = FaultLayer::new(devices[1].clone(), FaultConfig::default()).unwrap();
    let cut_off = Arc::<AtomicBool>::default();
    let handler = Handler { device: Arc::new(device), cut_off: cut_off.clone() };
    let device: SharedDevice = devices[0].clone();
    let config = NamespaceConfig { nsid: None, device, uuid: [7; 16], read_only: false };
    let added = server.target.add_vendor_namespace(&subsystem(), config, Arc::new(handler));
    World { nsid: added.unwrap(), server, devices, control, cut_off }
}

fn vendor(opcode: u8, nsid: u32) -> Sqe {
    Sqe::new(opcode, 9, nsid, SglDescriptor::transport(0))
}

/// Linux retries path errors. With a single path it would resend such a command forever, beginning
/// with its partition scan.
#[test]
fn cut_off_host_gets_do_not_retry() {
    on_each_driver(async || {
        let World { server, nsid, control, cut_off, .. } = world();
        let mut host = Host::attach(&server, &Options::default()).await;
        host.io.write(nsid, 0, BLOCK, &[1; 4096]).await.unwrap();
        control.set_unreachable(true);
        for is_cut_off in [false, true] {
            cut_off.store(is_cut_off, Ordering::SeqCst);
            let path = Status::INTERNAL_PATH_ERROR;
            let expected = if is_cut_off { path.dnr() } else { path };
            assert_eq!(host.io.read(nsid, 0, BLOCK, 4096).await, Err(expected));
            assert_eq!(host.io.write(nsid, 0, BLOCK, &[2; 4096]).await, Err(expected));
            assert_eq!(host.io.write_r2t(nsid, 0, BLOCK, &[2; 65536]).await, Err(expected));
            assert_eq!(host.io.call(Sqe::flush(1, nsid)).await.status(), expected);
            assert_eq!(host.io.call(Sqe::flush(1, NAMESPACE_ID_ALL)).await.status(), expected);
            assert_eq!(host.io.call(vendor(IO.0, nsid)).await.status(), expected);
            // Other errors keep their status, and so does the ordinary namespace.
            let far = host.io.read(nsid, 1 << 40, BLOCK, 4096).await;
            assert_eq!(far, Err(Status::LBA_OUT_OF_RANGE.dnr()));
            host.io.write(1, 0, 512, &[3; 512]).await.unwrap();
        }
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn refusal_details_in_error_log() {
    on_each_driver(async || {
        let World { server, nsid, .. } = world();
        let mut host = Host::attach(&server, &Options::default()).await;
        let refused = host.admin.call(vendor(ADMIN.0, nsid)).await;
        assert_eq!((refused.status(), refused.result()), (REFUSAL.more(), RESULT));
        let log = GetLogPage::new(LogId::ERROR, 0, 0, 64).command(1).unwrap();
        let entry = host.admin.ask(log).await.unwrap();
        let entry = ErrorEntry::view(&entry).unwrap();
        assert_eq!((entry.status(), entry.command_specific.get()), (REFUSAL, RESULT));
        // A command without further information reports 0.
        host.admin.call(vendor(0xff, nsid)).await;
        let log = GetLogPage::new(LogId::ERROR, 0, 0, 64).command(1).unwrap();
        let entry = host.admin.ask(log).await.unwrap();
        let entry = ErrorEntry::view(&entry).unwrap();
        let invalid = (Status::INVALID_OPCODE.dnr(), 0);
        assert_eq!((entry.status(), entry.command_specific.get()), invalid);
        drop(host);
        server.is_sound().await;
    });
}

/// Linux checks this log before it passes a user's command through.
#[test]
fn vendor_commands_in_effects_log() {
    on_each_driver(async || {
        let World { server, .. } = world();
        let mut host = Host::attach(&server, &Options::default()).await;
        let log = GetLogPage::new(LogId::COMMAND_EFFECTS, 0, 0, 4096).command(1).unwrap();
        let effects = host.admin.ask(log).await.unwrap();
        let effects = CommandEffects::view(&effects).unwrap();
        let listed: Vec<usize> = (0xc0..0x100).filter(|at| effects.admin[*at].get() != 0).collect();
        assert_eq!(listed, [usize::from(ADMIN.0)]);
        // Supported, with namespace scope on the admin queue; the write command changes blocks.
        assert_eq!(effects.admin[usize::from(ADMIN.0)].get(), 1 | 1 << 20);
        assert_eq!(effects.io[usize::from(IO.0)].get(), 3);
        drop(host);
        server.is_sound().await;
    });
}

/// A shutdown flushes the device of the host's session, if it has one.
#[test]
fn shutdown_flushes_session_device() {
    for is_cut_off in [false, true] {
        on_each_driver(async || {
            let World { server, devices, cut_off, .. } = world();
            cut_off.store(is_cut_off, Ordering::SeqCst);
            let mut host = Host::attach(&server, &Options::default()).await;
            let stop = enabled().with_shutdown(shutdown::NORMAL);
            assert_eq!(host.admin.configure(stop).await, Status::SUCCESS);
            while host.admin.status().await.shutdown_status() != shutdown_status::COMPLETE {}
            let flushes = devices.each_ref().map(|device| device.flushes());
            assert_eq!(flushes, [0, usize::from(!is_cut_off)]);
            drop((host, devices));
            server.is_sound().await;
        });
    }
}
