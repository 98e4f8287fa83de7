//! Vendor specific commands between a handler at the target and a session at the host, on both real
//! drivers and a simulated network.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Server, any_port, memory, options, subnqn};
use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_nvme::replica::{
    Attach, OrderedWrite, OrderedZeroes, ReplicaRefusal, ReplicaRequest, StateChange,
    WritePosition, admin, io,
};
use flagstone_nvme::{AdminOpcode, IoOpcode, Nqn, Sqe, Status};
use flagstone_nvmf_host::{
    AdminCompletion, CommandData, HostError, HostOptions, RemoteDevice, RemoteSession, discover,
};
use flagstone_nvmf_target::{
    Charge, CommandReply, NamespaceConfig, SubsystemConfig, TargetConfig, VendorCommands,
    VendorHandler, VendorHost, VendorSession,
};
use flagstone_runtime::{Buf, BufMut, buf, time};
use parking_lot::Mutex;
use support::{in_simulation, on_each_driver};

const SIZE_BYTES: u64 = 4 << 20;

fn replica_nqn() -> Nqn {
    Nqn::new("nqn.2024-01.example:volume:replica").unwrap()
}

fn peer() -> Nqn {
    Nqn::new("nqn.2024-01.example:node-a").unwrap()
}

/// Requests that a handler's sessions received.
#[derive(Default)]
struct Seen {
    open: AtomicU32,
    asked: Mutex<Vec<ReplicaRequest>>,
    orders: Mutex<Vec<WritePosition>>,
}

/// Answers from a device, and records the requests.
struct Handler {
    device: SharedDevice,
    seen: Arc<Seen>,
}

impl VendorHandler for Handler {
    fn commands(&self) -> VendorCommands {
        const ADMIN: [AdminOpcode; 5] =
            [admin::ATTACH, admin::IDENTIFY, admin::SET_STATE, admin::BITMAP, admin::PROMOTE];
        VendorCommands { admin: &ADMIN, io: &[io::WRITE, io::WRITE_ZEROES] }
    }

    fn session(&self, host: &VendorHost) -> Arc<dyn VendorSession> {
        assert_eq!(host.nqn, peer());
        self.seen.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Session { device: self.device.clone(), seen: self.seen.clone() })
    }
}

struct Session {
    device: SharedDevice,
    seen: Arc<Seen>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl VendorSession for Session {
    fn device(&self) -> SharedDevice {
        self.device.clone()
    }

    fn reply_bytes(&self, command: &Sqe) -> Result<usize, Status> {
        match AdminOpcode(command.opcode) {
            admin::ATTACH => Ok(0),
            _ => ReplicaRequest::parse(command, &[]).map(|request| request.reply_bytes()),
        }
    }

    fn admin(&self, command: &Sqe, data: &[u8], place: Option<BufMut>) -> IoFuture<CommandReply> {
        let request = match ReplicaRequest::parse(command, data) {
            Ok(request) => request,
            Err(status) => return IoFuture::ready(Ok(CommandReply::failure(status, 0))),
        };
        self.seen.asked.lock().push(request.clone());
        match request {
            ReplicaRequest::Identify { asker } => {
                let mut place = place.unwrap();
                place[..16].copy_from_slice(&asker);
                IoFuture::ready(Ok(CommandReply::success(Some(place))))
            }
            // Asynchronous, as if it waited for a disk.
            ReplicaRequest::Bitmap { page } => IoFuture::later(async move {
                time::sleep(std::time::Duration::from_millis(1)).await;
                let mut place = place.unwrap();
                place.fill(page as u8);
                Ok(CommandReply::success(Some(place)))
            }),
            ReplicaRequest::Promote { .. } => {
                let (status, result) = (ReplicaRefusal::FENCED.status(), u64::MAX - 1);
                IoFuture::ready(Ok(CommandReply::failure(status, result)))
            }
            ReplicaRequest::SetState { .. } => IoFuture::ready(Err(IoError::WriteFault)),
            _ => IoFuture::ready(Ok(CommandReply::success(None))),
        }
    }

    fn io(&self, command: &Sqe, data: Option<Buf>, _: Charge) -> IoFuture<CommandReply> {
        let (order, done) = match IoOpcode(command.opcode) {
            io::WRITE => {
                let write = OrderedWrite::parse(command).unwrap();
                let offset = write.range.start() * 512;
                (write.order, self.device.write(offset, data.unwrap(), write.fua))
            }
            _ => {
                let zeroes = OrderedZeroes::parse(command).unwrap();
                let flags = ZeroFlags {
                    fua: zeroes.fua,
                    may_deallocate: zeroes.deallocate,
                    fast_only: false,
                };
                let (offset, len) = (zeroes.start * 512, zeroes.blocks * 512);
                (zeroes.order, self.device.write_zeroes(offset, len, flags))
            }
        };
        self.seen.orders.lock().push(order);
        IoFuture::later(async move {
            done.await?;
            Ok(CommandReply::success(None))
        })
    }
}

/// Target with an ordinary volume and a hidden one with a handler.
fn start(config: TargetConfig) -> (Server, Arc<Seen>) {
    let server = Server::start_with(memory(1 << 20, 512), config, &any_port());
    let subsystem = SubsystemConfig {
        nqn: replica_nqn(),
        serial: "2".to_owned(),
        allow_hosts: Some(vec![peer()]),
        keys: Default::default(),
    };
    server.target.add_hidden_subsystem(subsystem).unwrap();
    let (device, seen) = (memory(SIZE_BYTES, 512), Arc::new(Seen::default()));
    let handler = Arc::new(Handler { device: device.clone(), seen: seen.clone() });
    let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
    server.target.add_vendor_namespace(&replica_nqn(), namespace, handler).unwrap();
    (server, seen)
}

fn as_peer() -> HostOptions {
    HostOptions { host_nqn: Some(peer()), ..options() }
}

async fn connect(server: &Server) -> Arc<RemoteSession> {
    RemoteSession::connect(server.address.clone(), &replica_nqn(), as_peer()).await.unwrap()
}

async fn ask(session: &RemoteSession, request: ReplicaRequest) -> Result<AdminCompletion, IoError> {
    let data = match (request.data(), request.reply_bytes()) {
        ([], 0) => CommandData::None,
        ([], bytes) => CommandData::In(buf::alloc_small(bytes)),
        (sent, _) => {
            let mut bytes = buf::alloc_small(sent.len());
            bytes.copy_from_slice(sent);
            CommandData::Out(bytes.freeze())
        }
    };
    session.admin(request.command(0, session.nsid()), data).await
}

fn pattern(byte: u8) -> Buf {
    let mut data = buf::alloc_small(4096);
    data.fill(byte);
    data.freeze()
}

async fn conversation() {
    let (server, seen) = start(TargetConfig::default());
    let session = connect(&server).await;
    let asker = [5; 16];
    let answer = ask(&session, ReplicaRequest::Identify { asker }).await.unwrap();
    assert!(answer.status.is_success());
    let data = answer.data.unwrap();
    assert_eq!((data.len(), &data[..16], data[16]), (512, &asker[..], 0));
    let attach = Attach::new([1; 16], asker, 3, 4, true);
    let attach = ReplicaRequest::Attach { attach, revision: 0 };
    assert!(ask(&session, attach.clone()).await.unwrap().status.is_success());
    let pages = (1..=60u8).map(|page| ask(&session, ReplicaRequest::Bitmap { page: page.into() }));
    for (page, answer) in (1..=60u8).zip(pages.collect::<Vec<_>>()) {
        assert!(answer.await.unwrap().data.unwrap().iter().all(|&byte| byte == page));
    }
    let fenced = ask(&session, ReplicaRequest::Promote { epoch: 9, revision: 0, leaves: false })
        .await
        .unwrap();
    let expected = ReplicaRefusal::FENCED.status().more();
    assert_eq!((fenced.status, fenced.result), (expected, u64::MAX - 1));
    let broken = ReplicaRequest::SetState { state: StateChange::EndResync, generation: 1 };
    assert_eq!(ask(&session, broken).await.unwrap().status.code(), Status::WRITE_FAULT);
    let asked = seen.asked.lock().clone();
    assert_eq!(asked[..2], [ReplicaRequest::Identify { asker }, attach]);

    // In the capsule, and requested with R2T.
    let first = WritePosition { number: 1, concurrent: 0 };
    session.write_ordered(8192, pattern(7), false, first).await.unwrap();
    let long = buf::zeroes(64 << 10);
    session.write_ordered(1 << 20, long.clone(), true, first).await.unwrap();
    let second = WritePosition { number: 3, concurrent: 1 << 127 };
    let flags = ZeroFlags::default();
    session.write_zeroes_ordered(0, SIZE_BYTES / 2, flags, second).await.unwrap();
    session.write_ordered(4096, pattern(9), true, second).await.unwrap();
    assert_eq!(*seen.orders.lock(), [first, first, second, second]);
    let read = session.read(0, buf::alloc(16 << 10).await).await.unwrap();
    assert!(read[..4096].iter().all(|&byte| byte == 0) && read[4096..8192] == pattern(9)[..]);
    assert!(read[8192..].iter().all(|&byte| byte == 0));
    session.write(0, pattern(1), false).await.unwrap();
    session.flush().await.unwrap();
    assert_eq!(seen.open.load(Ordering::Relaxed), 1);

    session.close();
    session.lost().await.unwrap();
    let after = ask(&session, ReplicaRequest::HandOver).await;
    assert!(matches!(after, Err(IoError::Unreachable)), "{after:?}");
    server.until_deserted().await;
    assert_eq!(seen.open.load(Ordering::Relaxed), 0, "the handler learns that the host is gone");
}

#[test]
fn session_admin_and_ordered_writes() {
    on_each_driver(conversation);
}

#[test]
fn session_ordered_writes_in_simulation() {
    for seed in 1..=4 {
        in_simulation(seed, conversation);
    }
}

/// A write larger than MDTS is several commands with consecutive numbers, concurrent with those
/// before it.
#[test]
fn long_ordered_write_is_split() {
    on_each_driver(async || {
        let config = TargetConfig {
            mdts_bytes: 8192,
            in_capsule_bytes: 4096,
            max_namespaces: 16,
            ..TargetConfig::default()
        };
        let (server, seen) = start(config);
        let session = connect(&server).await;
        assert_eq!(session.transfer_bytes(), 8192);
        // More parts than the window of an unordered call; the last is one block.
        let parts = 40;
        let mut data = buf::alloc((parts - 1) * 8192 + 512).await;
        for (index, part) in data.chunks_mut(8192).enumerate() {
            part.fill(index as u8 + 1);
        }
        let (data, order) = (data.freeze(), WritePosition { number: 5, concurrent: 0b100 });
        session.write_ordered(4096, data.clone(), true, order).await.unwrap();
        let numbered =
            |part| WritePosition { number: 5 + part, concurrent: (0b101u128 << part) - 1 };
        let expected: Vec<WritePosition> = (0..parts as u32).map(numbered).collect();
        // Over several queues they arrive in arbitrary order.
        let mut seen = seen.orders.lock().clone();
        seen.sort_by_key(|order| order.number);
        assert_eq!(seen, expected);
        let read = session.read(4096, buf::alloc(data.len()).await).await.unwrap();
        assert!(read[..] == data[..]);
        let beyond = session.write_ordered(SIZE_BYTES - 4096, data, false, order).await;
        assert_eq!(beyond, Err(IoError::OutOfRange));
        session.close();
        server.until_deserted().await;
    });
}

#[test]
fn unsupported_vendor_commands_are_refused() {
    on_each_driver(async || {
        let (server, seen) = start(TargetConfig::default());
        let session = connect(&server).await;
        // The handler does not support this command.
        let answer = ask(&session, ReplicaRequest::HandOver).await.unwrap();
        assert_eq!(answer.status.code(), Status::INVALID_OPCODE);
        // Too much data, in either direction, is refused before it is fetched or allocated.
        let command = ReplicaRequest::Attach { attach: Attach::default(), revision: 0 }
            .command(0, session.nsid());
        let long = CommandData::Out(buf::zeroes(64 << 10));
        let answer = session.admin(command, long).await.unwrap();
        assert_eq!(answer.status.code(), Status::INVALID_FIELD);
        assert!(seen.asked.lock().is_empty());
        session.close();
        // Namespace without a handler.
        let (at, name) = (server.address.clone(), subnqn());
        let plain = RemoteSession::connect(at, &name, options()).await.unwrap();
        let answer = ask(&plain, ReplicaRequest::Identify { asker: [1; 16] }).await.unwrap();
        assert_eq!(answer.status.code(), Status::INVALID_OPCODE);
        let order = WritePosition { number: 1, concurrent: 0 };
        let refused = plain.write_ordered(0, pattern(1), false, order).await;
        assert_eq!(refused, Err(IoError::Unsupported));
        plain.close();
        server.until_deserted().await;
    });
}

#[test]
fn hidden_subsystem_is_not_discovered() {
    on_each_driver(async || {
        let (server, _) = start(TargetConfig::default());
        let found = discover(server.address.clone(), &as_peer()).await.unwrap();
        assert_eq!(found.iter().map(|one| one.subnqn).collect::<Vec<_>>(), [subnqn()]);
        let unknown_host =
            RemoteDevice::connect(server.address.clone(), &replica_nqn(), options()).await;
        assert!(matches!(unknown_host, Err(HostError::FabricsRefused { .. })), "{unknown_host:?}");
        server.until_deserted().await;
    });
}

#[test]
fn session_requires_data_digests() {
    on_each_driver(async || {
        let config = TargetConfig { allow_data_digest: false, ..TargetConfig::default() };
        let (server, _) = start(config);
        let refused =
            RemoteSession::connect(server.address.clone(), &replica_nqn(), as_peer()).await;
        assert!(matches!(refused, Err(HostError::NoDigests)), "{refused:?}");
        server.until_deserted().await;
    });
}

/// A lost session stays lost, and the host is notified.
#[test]
fn lost_session_stays_lost() {
    on_each_driver(async || {
        let (server, seen) = start(TargetConfig::default());
        let session = connect(&server).await;
        ask(&session, ReplicaRequest::Identify { asker: [1; 16] }).await.unwrap();
        server.target.disconnect_all();
        session.lost().await.unwrap();
        let read = session.read(0, buf::alloc_small(512)).await;
        assert!(matches!(read, Err(IoError::Unreachable)));
        assert_eq!(seen.open.load(Ordering::Relaxed), 0);
        let again = connect(&server).await;
        again.read(0, buf::alloc_small(512)).await.unwrap();
        again.close();
        server.until_deserted().await;
    });
}
