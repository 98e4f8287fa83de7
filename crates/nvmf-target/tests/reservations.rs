//! Reservations between two hosts: commands that they restrict, preempted writes in flight,
//! notifications, and restarts.

mod support;

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_nvme::command::admin::{GetLogPage, Identify};
use flagstone_nvme::command::reservation::{ReportHeader, ReportRegistrant};
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::identify::{Cns, IdentifyController, IdentifyNamespace};
use flagstone_nvme::log::{LogId, ReservationNotification};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{IoOpcode, Nqn, Sqe, Status, Wire};
use flagstone_nvmf_target::{
    NamespaceConfig, ReservationReplication, ReservationState, ReservationStore, TargetError,
};
use flagstone_runtime::{spawn, time};
use parking_lot::Mutex;

use support::client::{done, range};
use support::server::subsystem;
use support::{
    Client, Host, Options, Server, eventually, in_simulation, on_each_driver, on_each_real_driver,
    pattern,
};

const BLOCK: usize = 512;
const CONFLICT: Result<(), Status> = Err(Status::RESERVATION_CONFLICT.dnr());
const WRITE_EXCLUSIVE: u32 = 1 << 8;
const EXCLUSIVE_ACCESS: u32 = 2 << 8;
const PREEMPT: u32 = 1;
const UNREGISTER: u32 = 1;
const PERSIST: u32 = 3 << 30;
const PREEMPT_AND_ABORT: u32 = 2;

/// Server with reservations on namespace 1.
fn server_of(store: Option<Arc<dyn ReservationStore>>, record: Option<&[u8]>) -> Server {
    server_with(&ReservationState::open(store, record).unwrap())
}

fn server_with(reservations: &ReservationState) -> Server {
    let server = Server::new();
    let (target, nqn) = (&server.target, subsystem());
    target.remove_namespace(&nqn, 1).unwrap();
    target.add_reservable_namespace(&nqn, namespace(&server), reservations).unwrap();
    server
}

fn namespace(server: &Server) -> NamespaceConfig {
    let device = server.gate.clone();
    NamespaceConfig { nsid: Some(1), device, uuid: [0xcd; 16], read_only: false }
}

fn options(number: u8) -> Options {
    Options { host: Nqn::from_uuid([number; 16]), host_id: [number; 16], ..Options::default() }
}

async fn reserve(
    io: &mut Client,
    opcode: IoOpcode,
    options: u32,
    keys: [u64; 2],
) -> Result<(), Status> {
    let data = keys.map(u64::to_le_bytes).concat();
    let sgl = SglDescriptor::in_capsule(data.len() as u32);
    done(io.call_with(Sqe::reservation(opcode, 5, 1, options, sgl), &data).await)
}

async fn register(io: &mut Client, key: u64) {
    reserve(io, IoOpcode::RESERVATION_REGISTER, 0, [0, key]).await.unwrap();
}

async fn acquire(io: &mut Client, options: u32, keys: [u64; 2]) -> Result<(), Status> {
    reserve(io, IoOpcode::RESERVATION_ACQUIRE, options, keys).await
}

async fn report(io: &mut Client) -> (ReportHeader, Vec<ReportRegistrant>) {
    let data = io.ask(Sqe::reservation_report(6, 1, 4096)).await.unwrap();
    let header = *ReportHeader::view(&data).unwrap();
    let count = usize::from(header.registrants.get());
    let list = &ReportRegistrant::view_list(&data[ReportHeader::BYTES..])[..count];
    (header, list.to_vec())
}

/// Status of each command that reads, and of each that writes.
async fn access(io: &mut Client) -> (Vec<Result<(), Status>>, Vec<Result<(), Status>>) {
    let data = pattern(1, BLOCK);
    let blocks = range(8, BLOCK as u64, BLOCK);
    let reads = vec![
        io.read(1, 8, BLOCK as u64, BLOCK).await.map(drop),
        done(io.call(Sqe::verify(7, 1, blocks)).await),
    ];
    let writes = vec![
        io.write(1, 8, BLOCK as u64, &data).await,
        io.write_r2t(1, 8, BLOCK as u64, &data).await,
        done(io.call(Sqe::write_zeroes(7, 1, blocks, Default::default())).await),
        done(io.call(Sqe::flush(7, 1)).await),
        done(io.call(Sqe::flush(7, u32::MAX)).await),
    ];
    (reads, writes)
}

#[test]
fn reservation_conflict_for_other_hosts() {
    on_each_driver(async || {
        let server = server_of(None, None);
        let mut one = Host::attach(&server, &options(1)).await;
        let mut two = Host::attach(&server, &options(2)).await;
        register(&mut one.io, 10).await;
        register(&mut two.io, 20).await;
        for (kind, reads) in [(WRITE_EXCLUSIVE, Ok(())), (EXCLUSIVE_ACCESS, CONFLICT)] {
            acquire(&mut one.io, kind, [10, 0]).await.unwrap();
            assert_eq!(access(&mut one.io).await, (vec![Ok(()); 2], vec![Ok(()); 5]));
            assert_eq!(access(&mut two.io).await, (vec![reads; 2], vec![CONFLICT; 5]));
            assert_eq!(acquire(&mut two.io, kind, [20, 0]).await, CONFLICT);
            let (header, registrants) = report(&mut two.io).await;
            assert_eq!((u32::from(header.kind) << 8, registrants.len()), (kind, 2));
            assert_eq!((registrants[0].status, registrants[0].host_id), (1, [1; 16]));
            assert_eq!((registrants[1].status, registrants[1].key.get()), (0, 20));
            reserve(&mut one.io, IoOpcode::RESERVATION_RELEASE, kind, [10, 0]).await.unwrap();
        }
        drop((one, two));
        server.is_sound().await;
    });
}

#[test]
fn reservation_survives_reconnect() {
    on_each_driver(async || {
        let server = server_of(None, None);
        let mut one = Host::attach(&server, &options(1)).await;
        register(&mut one.io, 10).await;
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        drop(one);
        let mut two = Host::attach(&server, &options(2)).await;
        assert_eq!(two.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await, CONFLICT);
        let mut one = Host::attach(&server, &options(1)).await;
        one.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await.unwrap();
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, UNREGISTER, [10, 0]).await.unwrap();
        two.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await.unwrap();
        drop((one, two));
        server.is_sound().await;
    });
}

/// A write of the preempted host hangs in the device. The preemption completes after it, also if
/// its connection has ended, and in spite of further reads of the host.
async fn preempted_write_lands_first(action: u32, disconnects: bool) {
    let server = server_of(None, None);
    let mut one = Host::attach(&server, &options(1)).await;
    let mut two = Host::attach(&server, &options(2)).await;
    register(&mut one.io, 10).await;
    register(&mut two.io, 20).await;
    acquire(&mut two.io, WRITE_EXCLUSIVE, [20, 0]).await.unwrap();
    server.gate.close();
    let data = pattern(2, BLOCK);
    let sgl = SglDescriptor::in_capsule(BLOCK as u32);
    let write = Sqe::write(9, 1, range(8, BLOCK as u64, BLOCK), false, sgl);
    let pdu = two.io.capsule(&write, &data);
    two.io.send(&pdu).await;
    eventually("the write is in the device", || server.gate.inside() == 1).await;
    let mut two = Some(two);
    if disconnects {
        two = None;
    }
    let preempting = spawn(async move {
        let preempted = acquire(&mut one.io, action | WRITE_EXCLUSIVE, [10, 20]).await;
        (one, preempted)
    });
    time::sleep(Duration::from_millis(100)).await;
    assert!(!preempting.is_finished(), "preempted before the write ended");
    server.gate.open();
    let (mut one, preempted) = preempting.await.unwrap();
    preempted.unwrap();
    assert_eq!(server.gate.inside(), 0);
    assert_eq!(one.io.read(1, 8, BLOCK as u64, BLOCK).await.unwrap(), data);
    if let Some(two) = &mut two {
        assert!(two.io.response().await.status().is_success());
        assert_eq!(two.io.write(1, 8, BLOCK as u64, &data).await, CONFLICT);
    }
    reserve(&mut one.io, IoOpcode::RESERVATION_RELEASE, 1, [10, 0]).await.unwrap();
    drop((one, two));
    server.is_sound().await;
}

#[test]
fn preemption_waits_for_writes_in_flight() {
    for action in [PREEMPT, PREEMPT_AND_ABORT] {
        for disconnects in [false, true] {
            on_each_driver(async || preempted_write_lands_first(action, disconnects).await);
        }
    }
}

#[test]
fn hosts_that_preempt_each_other_do_not_hang() {
    in_simulation(1, async || {
        let server = server_of(None, None);
        let mut hosts = Vec::new();
        for number in 1..=4 {
            let mut host = Host::attach(&server, &options(number)).await;
            register(&mut host.io, number.into()).await;
            hosts.push(host);
        }
        let fights = hosts.into_iter().zip(1u64..).map(|(mut host, key)| {
            spawn(async move {
                for round in 0..50 {
                    let victim = (key + round % 3) % 4 + 1;
                    let _ = acquire(&mut host.io, PREEMPT | EXCLUSIVE_ACCESS, [key, victim]).await;
                    let _ = host.io.write(1, 8, BLOCK as u64, &pattern(round, BLOCK)).await;
                    let _ =
                        reserve(&mut host.io, IoOpcode::RESERVATION_REGISTER, 0, [0, key]).await;
                    let _ = acquire(&mut host.io, EXCLUSIVE_ACCESS, [key, 0]).await;
                }
                host
            })
        });
        let mut ended = Vec::new();
        for fight in fights.collect::<Vec<_>>() {
            ended.push(fight.await.unwrap());
        }
        for (host, key) in ended.iter_mut().zip(1..) {
            let _ = reserve(&mut host.io, IoOpcode::RESERVATION_RELEASE, 1, [key, 0]).await;
        }
        drop(ended);
        server.is_sound().await;
    });
}

#[test]
fn preempted_host_is_notified() {
    on_each_driver(async || {
        let server = server_of(None, None);
        let mut one = Host::attach(&server, &options(1)).await;
        let mut two = Host::attach(&server, &options(2)).await;
        register(&mut one.io, 10).await;
        register(&mut two.io, 20).await;
        two.admin.submit(Sqe::async_event_request(4)).await;
        acquire(&mut one.io, PREEMPT | WRITE_EXCLUSIVE, [10, 20]).await.unwrap();
        assert_eq!(two.admin.response().await.async_event(), AsyncEvent::RESERVATION);
        let get = GetLogPage::new(LogId::RESERVATION, 0, 0, 64);
        let page = two.admin.ask(get.command(5).unwrap()).await.unwrap();
        let notification = ReservationNotification::view(&page).unwrap();
        assert_eq!((notification.kind, notification.nsid.get()), (1, 1));
        drop((one, two));
        server.is_quiet().await;
    });
}

#[test]
fn reservations_are_announced_where_enabled() {
    for enabled in [false, true] {
        on_each_driver(async || {
            let server = if enabled { server_of(None, None) } else { Server::new() };
            let mut host = Host::attach(&server, &Options::default()).await;
            let data = host.admin.ask(Identify::new(Cns::CONTROLLER, 0).command(1)).await.unwrap();
            let controller = IdentifyController::view(&data).unwrap();
            assert_eq!(controller.optional_io.get() & 1 << 5 != 0, enabled);
            let data = host.admin.ask(Identify::new(Cns::NAMESPACE, 1).command(1)).await.unwrap();
            let namespace = IdentifyNamespace::view(&data).unwrap();
            let wanted = if enabled { 0xfe } else { 0 };
            assert_eq!(namespace.reservation_capabilities, wanted);
            if !enabled {
                let refused = host.io.ask(Sqe::reservation_report(6, 1, 64)).await;
                assert_eq!(refused.unwrap_err().code(), Status::INVALID_OPCODE);
            }
            drop(host);
            server.is_sound().await;
        });
    }
}

/// A fenced host attached again with the identifier of the host that had fenced it.
#[test]
fn claimed_identifier_of_a_registrant_admits_nothing() {
    on_each_driver(async || {
        let server = server_of(None, None);
        let claim = Options { host_id: [1; 16], ..options(2) };
        // Before the registration, it is not known whose identifier it is.
        let mut early = Host::attach(&server, &claim).await;
        let mut one = Host::attach(&server, &options(1)).await;
        register(&mut one.io, 10).await;
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        let data = pattern(1, BLOCK);
        assert_eq!(early.io.write(1, 8, BLOCK as u64, &data).await, CONFLICT);
        assert_eq!(acquire(&mut early.io, WRITE_EXCLUSIVE, [10, 0]).await, CONFLICT);
        one.io.write(1, 8, BLOCK as u64, &data).await.unwrap();
        drop(early);
        // Other namespaces may have no reservations: the claim attaches, and is excluded here.
        let mut late = Host::attach(&server, &claim).await;
        assert_eq!(late.io.write(1, 8, BLOCK as u64, &data).await, CONFLICT);
        let claimed = reserve(&mut late.io, IoOpcode::RESERVATION_REGISTER, UNREGISTER, [10, 0]);
        assert_eq!(claimed.await, CONFLICT);
        one.io.write(1, 8, BLOCK as u64, &data).await.unwrap();
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, UNREGISTER, [10, 0]).await.unwrap();
        late.io.write(1, 8, BLOCK as u64, &data).await.unwrap();
        drop((one, late));
        server.is_sound().await;
    });
}

/// Orders on a volume remove its namespace and add it again, perhaps in another subsystem.
#[test]
fn reservation_survives_removal_of_its_namespace() {
    on_each_driver(async || {
        let server = Server::new();
        let (target, nqn) = (&server.target, subsystem());
        let reservations = ReservationState::open(None, None).unwrap();
        let serve_again = || {
            target.remove_namespace(&nqn, 1).unwrap();
            target.add_reservable_namespace(&nqn, namespace(&server), &reservations).unwrap();
        };
        serve_again();
        let mut one = Host::attach(&server, &options(1)).await;
        register(&mut one.io, 10).await;
        acquire(&mut one.io, EXCLUSIVE_ACCESS, [10, 0]).await.unwrap();
        serve_again();
        let mut two = Host::attach(&server, &options(2)).await;
        assert_eq!(access(&mut two.io).await, (vec![CONFLICT; 2], vec![CONFLICT; 5]));
        assert_eq!(access(&mut one.io).await, (vec![Ok(()); 2], vec![Ok(()); 5]));
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, UNREGISTER, [10, 0]).await.unwrap();
        drop((one, two));
        server.is_sound().await;
    });
}

/// Storage that fails on demand.
#[derive(Default)]
struct Memory(Mutex<Stored>);

#[derive(Default)]
struct Stored {
    record: Option<Vec<u8>>,
    /// Of the next saves, the next one last.
    failures: Vec<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Nothing is stored.
    Full,
    /// The record is stored, perhaps not durably.
    AfterRename,
}

impl ReservationStore for Memory {
    fn save(&self, record: Option<&[u8]>) -> std::io::Result<()> {
        let mut stored = self.0.lock();
        let failure = stored.failures.pop();
        if failure != Some(Failure::Full) {
            stored.record = record.map(<[u8]>::to_vec);
        }
        match failure {
            Some(_) => Err(std::io::Error::other("failed")),
            None => Ok(()),
        }
    }
}

/// A change that had failed took effect after a restart.
#[test]
fn failed_change_leaves_the_former_record() {
    on_each_real_driver(async || {
        let store = Arc::new(Memory::default());
        let server = server_of(Some(store.clone()), None);
        let mut one = Host::attach(&server, &options(1)).await;
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, PERSIST, [0, 10]).await.unwrap();
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        let record = store.0.lock().record.clone();
        let release = |failures: &[Failure]| {
            store.0.lock().failures = failures.to_vec();
            async |one: &mut Host| {
                let opcode = IoOpcode::RESERVATION_RELEASE;
                reserve(&mut one.io, opcode, WRITE_EXCLUSIVE, [10, 0]).await
            }
        };
        let failed = release(&[Failure::AfterRename])(&mut one).await;
        assert_eq!(failed.unwrap_err().code(), Status::INTERNAL_ERROR);
        assert_eq!(store.0.lock().record, record, "the former record is restored");
        // Neither can be saved: the next command does it, although it changes nothing durable.
        let failed = release(&[Failure::Full, Failure::AfterRename])(&mut one).await;
        assert_eq!(failed.unwrap_err().code(), Status::INTERNAL_ERROR);
        assert_ne!(store.0.lock().record, record);
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        assert_eq!(store.0.lock().record, record);
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, UNREGISTER, [10, 0]).await.unwrap();
        drop(one);
        server.is_sound().await;
    });
}

#[test]
fn persistent_reservation_survives_restart() {
    on_each_real_driver(async || {
        let store = Arc::new(Memory::default());
        let first = server_of(Some(store.clone()), None);
        let mut one = Host::attach(&first, &options(1)).await;
        reserve(&mut one.io, IoOpcode::RESERVATION_REGISTER, PERSIST, [0, 10]).await.unwrap();
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        store.0.lock().failures = vec![Failure::Full; 2];
        let failed = reserve(&mut one.io, IoOpcode::RESERVATION_RELEASE, WRITE_EXCLUSIVE, [10, 0]);
        assert_eq!(failed.await.unwrap_err().code(), Status::INTERNAL_ERROR);
        store.0.lock().failures.clear();
        drop((one, first));
        let record = store.0.lock().record.clone().unwrap();
        let second = server_of(Some(store.clone()), Some(&record));
        let mut two = Host::attach(&second, &options(2)).await;
        assert_eq!(two.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await, CONFLICT);
        let mut one = Host::attach(&second, &options(1)).await;
        let (header, registrants) = report(&mut one.io).await;
        assert_eq!((header.persists, header.kind, registrants.len()), (1, 1, 1));
        reserve(&mut one.io, IoOpcode::RESERVATION_RELEASE, 1, [10, 0]).await.unwrap();
        assert_ne!(store.0.lock().record, Some(record.clone()));
        drop((one, two, second));
        let refused = ReservationState::open(None, Some(&record[1..]));
        assert!(matches!(refused, Err(TargetError::ReservationRecord(_))));
    });
}

/// A node of a mirror.
#[derive(Default)]
struct Node {
    stored: Mutex<Option<Vec<u8>>>,
    replicated: Mutex<Vec<Vec<u8>>>,
    failure: Mutex<Option<IoError>>,
    is_target: Mutex<bool>,
}

impl ReservationStore for Node {
    fn save(&self, record: Option<&[u8]>) -> std::io::Result<()> {
        *self.stored.lock() = record.map(<[u8]>::to_vec);
        Ok(())
    }

    fn replication(&self) -> Option<&dyn ReservationReplication> {
        Some(self)
    }
}

impl ReservationReplication for Node {
    fn check(&self) -> Result<(), Status> {
        if *self.is_target.lock() { Err(Status::INTERNAL_PATH_ERROR) } else { Ok(()) }
    }

    fn replicate(&self, record: &[u8]) -> IoFuture<()> {
        assert_eq!(self.stored.lock().as_deref(), Some(record), "it is stored here first");
        self.replicated.lock().push(record.to_vec());
        IoFuture::ready(self.failure.lock().map_or(Ok(()), Err))
    }
}

fn opened(node: &Arc<Node>) -> ReservationState {
    let store: Arc<dyn ReservationStore> = node.clone();
    ReservationState::open(Some(store), node.stored.lock().as_deref()).unwrap()
}

#[test]
fn change_that_is_not_replicated_fails() {
    on_each_driver(async || {
        let node = Arc::<Node>::default();
        let server = server_with(&opened(&node));
        let mut one = Host::attach(&server, &options(1)).await;
        register(&mut one.io, 10).await;
        let first = node.stored.lock().clone();
        assert_eq!(node.replicated.lock().last(), first.as_ref(), "also without PTPL");
        *node.failure.lock() = Some(IoError::Unreachable);
        let path_error = Err(Status::INTERNAL_PATH_ERROR);
        assert_eq!(acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await, path_error);
        assert_eq!((report(&mut one.io).await.0.kind, node.stored.lock().clone()), (0, first));
        assert_eq!(node.replicated.lock().len(), 2);
        // Also a command that changes nothing: another node may serve the namespace.
        assert_eq!(
            reserve(&mut one.io, IoOpcode::RESERVATION_RELEASE, WRITE_EXCLUSIVE, [10, 0]).await,
            path_error
        );
        *node.is_target.lock() = true;
        *node.failure.lock() = None;
        assert_eq!(acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await, path_error);
        let refused = one.io.ask(Sqe::reservation_report(6, 1, 4096)).await.unwrap_err();
        assert_eq!(refused, Status::INTERNAL_PATH_ERROR);
        drop(one);
        server.is_sound().await;
    });
}

#[test]
fn reservations_of_source_are_enforced() {
    on_each_driver(async || {
        let (source, target) = (Arc::<Node>::default(), Arc::<Node>::default());
        let (state, replica) = (opened(&source), opened(&target));
        let (server, other) = (server_with(&state), server_with(&replica));
        let mut one = Host::attach(&server, &options(1)).await;
        let mut two = Host::attach(&other, &options(2)).await;
        register(&mut one.io, 10).await;
        acquire(&mut one.io, WRITE_EXCLUSIVE, [10, 0]).await.unwrap();
        two.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await.unwrap();
        let record = state.replicated_record();
        other.target.replace_reservations(&replica, record.clone()).await.unwrap();
        assert_eq!(access(&mut two.io).await.1, vec![CONFLICT; 5]);
        assert_eq!(target.stored.lock().as_ref(), Some(&record));
        assert_eq!(report(&mut two.io).await.1[0].key.get(), 10);
        // As after a restart.
        assert_eq!(opened(&target).replicated_record(), record);
        let damaged = other.target.replace_reservations(&replica, vec![1]).await;
        assert_eq!(damaged.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(replica.replicated_record(), record);
        other.target.replace_reservations(&replica, Vec::new()).await.unwrap();
        two.io.write(1, 8, BLOCK as u64, &pattern(1, BLOCK)).await.unwrap();
        assert_eq!(*target.stored.lock(), None);
        drop((one, two));
    });
}
