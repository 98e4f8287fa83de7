//! Ordered writes with retries: each waits at the target for its predecessors. Progress therefore
//! requires that a retried write is resent, whatever the others hold.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use common::{Server, any_port, memory, options};
use flagstone_blockdev::{IoError, IoFuture, SharedDevice};
use flagstone_nvme::replica::{OrderedWrite, WritePosition, io};
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_nvmf_host::{HostOptions, RemoteSession};
use flagstone_nvmf_target::{
    Charge, CommandReply, NamespaceConfig, SubsystemConfig, TargetConfig, VendorCommands,
    VendorHandler, VendorHost, VendorSession,
};
use flagstone_runtime::{Buf, BufMut, buf, spawn, time};
use parking_lot::Mutex;
use support::{Dice, in_simulation, memory_in_use};

const SIZE_BYTES: u64 = 1 << 20;
/// Writes per test, to disjoint ranges.
const WRITES: u32 = 64;
/// Time after which the connection is given up; a stalled write fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);

fn replica_nqn() -> Nqn {
    Nqn::new("nqn.2024-01.example:volume:replica").unwrap()
}

/// Retry status and its repetitions, by sequence number.
type Refusals = BTreeMap<u32, (u32, Status)>;

/// State at the target.
#[derive(Default)]
struct There {
    /// Sequence numbers from 1 that have completed.
    done: u32,
    waiting: BTreeMap<u32, Waker>,
    refusals: Refusals,
    /// Writes that were refused parking.
    refused: u32,
}

struct Handler {
    device: SharedDevice,
    there: Arc<Mutex<There>>,
}

impl VendorHandler for Handler {
    fn commands(&self) -> VendorCommands {
        VendorCommands { admin: &[], io: &[io::WRITE] }
    }

    fn session(&self, _: &VendorHost) -> Arc<dyn VendorSession> {
        Arc::new(Handler { device: self.device.clone(), there: self.there.clone() })
    }
}

impl VendorSession for Handler {
    fn device(&self) -> SharedDevice {
        self.device.clone()
    }

    fn reply_bytes(&self, _: &Sqe) -> Result<usize, Status> {
        Err(Status::INVALID_OPCODE.dnr())
    }

    fn admin(&self, _: &Sqe, _: &[u8], _: Option<BufMut>) -> IoFuture<CommandReply> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    /// A write starts when its predecessor has completed.
    fn io(&self, command: &Sqe, data: Option<Buf>, charge: Charge) -> IoFuture<CommandReply> {
        let write = OrderedWrite::parse(command).unwrap();
        let number = write.order.number;
        let refusal = {
            let mut there = self.there.lock();
            there.refusals.get_mut(&number).filter(|refusal| refusal.0 > 0).map(|refusal| {
                refusal.0 -= 1;
                refusal.1
            })
        };
        if let Some(status) = refusal {
            return IoFuture::ready(Ok(CommandReply::failure(status, 0)));
        }
        let (device, there) = (self.device.clone(), self.there.clone());
        IoFuture::later(async move {
            let early = there.lock().done + 1 < number;
            if early {
                let Some(_waiting) = charge.queue() else {
                    there.lock().refused += 1;
                    return Err(IoError::NoMemory);
                };
                poll_fn(|cx| {
                    let mut there = there.lock();
                    if there.done + 1 == number {
                        return Poll::Ready(());
                    }
                    there.waiting.insert(number, cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            device.write(write.range.start() * 512, data.unwrap(), write.fua).await?;
            let mut there = there.lock();
            there.done = number;
            if let Some(next) = there.waiting.remove(&(number + 1)) {
                next.wake();
            }
            Ok(CommandReply::success(None))
        })
    }
}

/// Target with a volume of ordered writes.
fn start(config: TargetConfig, refusals: Refusals) -> (Server, Arc<Mutex<There>>) {
    let server = Server::start_with(memory(SIZE_BYTES, 512), config, &any_port());
    let subsystem = SubsystemConfig {
        nqn: replica_nqn(),
        serial: "2".to_owned(),
        allow_hosts: None,
        keys: Default::default(),
    };
    server.target.add_hidden_subsystem(subsystem).unwrap();
    let device = memory(SIZE_BYTES, 512);
    let there = Arc::new(Mutex::new(There { refusals, ..There::default() }));
    let handler = Arc::new(Handler { device: device.clone(), there: there.clone() });
    let namespace = NamespaceConfig { nsid: None, device, uuid: [8; 16], read_only: false };
    server.target.add_vendor_namespace(&replica_nqn(), namespace, handler).unwrap();
    (server, there)
}

async fn connect(server: &Server, options: HostOptions) -> Arc<RemoteSession> {
    RemoteSession::connect(server.address.clone(), &replica_nqn(), options).await.unwrap()
}

/// Writes `len` bytes each, called in order, with retries according to `refusals`. Returns the
/// number of writes that were refused parking.
async fn write_all(
    config: TargetConfig,
    options: HostOptions,
    len: usize,
    refusals: Refusals,
) -> u32 {
    let (server, there) = start(config, refusals);
    let session = connect(&server, options).await;
    let began = time::now();
    let mut writes = Vec::new();
    for number in 1..=WRITES {
        let mut data = buf::alloc_small(len);
        data.fill(number as u8);
        let order = WritePosition { number, concurrent: 0 };
        let offset = u64::from(number - 1) * len as u64;
        let mut write = session.write_ordered(offset, data.freeze(), false, order);
        // Poll here: tasks would start in arbitrary order.
        let begun = poll_fn(|cx| Poll::Ready(Pin::new(&mut write).poll(cx))).await;
        assert!(begun.is_pending());
        writes.push(spawn(write));
    }
    for (number, write) in (1..).zip(writes) {
        assert_eq!(write.await.unwrap(), Ok(()), "number {number}");
    }
    let took = began.elapsed();
    assert!(took < TIMEOUT / 2, "they stood still: {took:?}");
    let refused = {
        let there = there.lock();
        assert_eq!(there.done, WRITES);
        there.refused
    };
    let read = session.read(0, buf::alloc(WRITES as usize * len).await).await.unwrap();
    for (number, part) in (1..).zip(read.chunks(len)) {
        assert!(part.iter().all(|byte| *byte == number), "part of number {number}");
    }
    drop(read);
    session.close();
    server.until_deserted().await;
    refused
}

fn host(queues: u16, queue_depth: u16) -> HostOptions {
    HostOptions { queues, queue_depth, command_timeout: TIMEOUT, ..options() }
}

/// Given in-capsule size, and the smallest connection budget.
fn narrow(in_capsule_bytes: u32) -> TargetConfig {
    TargetConfig {
        mdts_bytes: 8192,
        in_capsule_bytes,
        connection_payload_bytes: 8192,
        max_namespaces: 16,
        ..TargetConfig::default()
    }
}

/// Statuses that ask for a retry.
const FOR_NOW: [Status; 4] = [
    Status::COMMAND_INTERRUPTED,
    Status::NAMESPACE_NOT_READY,
    Status::TRANSIENT_TRANSPORT_ERROR,
    Status::INTERNAL_PATH_ERROR,
];

/// The first write is refused, and there are more writes than slots. The writes behind it all wait
/// for it, so they must not take its slot.
#[test]
fn refused_ordered_write_keeps_slot() {
    for status in FOR_NOW {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (1, status))]);
            write_all(TargetConfig::default(), host(1, 4), 4096, refusals).await;
        });
    }
}

/// A write that failed at the target is resent in its slot, and its successors follow. A permanent
/// failure affects only its own write.
#[test]
fn retried_ordered_write_keeps_order() {
    for status in [Status::INTERNAL_ERROR, Status::WRITE_FAULT] {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (5, status)), (7, (2, status))]);
            write_all(TargetConfig::default(), host(1, 4), 4096, refusals).await;
        });
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (6, status))]);
            let (server, there) = start(TargetConfig::default(), refusals);
            let session = connect(&server, host(1, 1)).await;
            let (data, order) = (buf::zeroes(4096), WritePosition { number: 1, concurrent: 0 });
            let failed = session.write_ordered(0, data.clone(), false, order).await;
            assert_eq!(failed, Err(IoError::WriteFault), "{status}");
            assert_eq!(there.lock().refusals[&1].0, 0, "sent six times");
            assert_eq!(session.write(0, data, false).await, Ok(()), "its slot is free again");
            session.close();
            server.until_deserted().await;
        });
    }
}

/// Later writes must not keep the target from receiving the refused one, even with more data than
/// the connection's budget, in capsules or by R2T.
#[test]
fn retried_write_finds_room_at_target() {
    for in_capsule_bytes in [0, 4096] {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (1, Status::TRANSIENT_TRANSPORT_ERROR))]);
            write_all(narrow(in_capsule_bytes), host(1, 32), 4096, refusals).await;
        });
    }
}

/// Random retries with random slots and budgets.
#[test]
fn random_retries_all_complete() {
    for seed in 1..=60 {
        in_simulation(seed, async || {
            let mut dice = Dice::new(seed);
            let config = match dice.below(3) {
                0 => TargetConfig::default(),
                1 => narrow(0),
                _ => narrow(4096),
            };
            let (queues, depth) = (1 + dice.below(3) as u16, 1 + dice.below(20) as u16);
            let refusals = (0..1 + dice.below(WRITES as usize)).map(|_| {
                let number = 1 + dice.below(WRITES as usize) as u32;
                (number, (1 + dice.below(3) as u32, FOR_NOW[dice.below(FOR_NOW.len())]))
            });
            let refusals = refusals.collect();
            write_all(config, host(queues, depth), 4096, refusals).await;
        });
    }
}

/// Waiting writes may hold only a part of all memory, so that the awaited one gets some.
#[test]
fn waiting_writes_leave_memory_for_awaited() {
    in_simulation(1, async || {
        let limit = buf::memory_limit();
        // Both ends run in one process: the source's data, and a little more.
        buf::set_memory_limit(memory_in_use() + (1 << 20));
        let refusals = BTreeMap::from([(1, (3, Status::TRANSIENT_TRANSPORT_ERROR))]);
        let refused = write_all(narrow(0), host(2, 32), 4096, refusals).await;
        assert!(refused > 0, "there was memory for all of them");
        buf::set_memory_limit(limit);
    });
}

/// No write holds its slot forever: a write refused for too long fails, and others continue.
#[test]
fn long_refused_write_fails() {
    in_simulation(1, async || {
        let refusals = BTreeMap::from([(1, (u32::MAX, Status::NAMESPACE_NOT_READY))]);
        let (server, _) = start(TargetConfig::default(), refusals);
        let options = HostOptions { loss_timeout: Duration::from_secs(1), ..host(1, 1) };
        let session = connect(&server, options).await;
        let (data, order) = (buf::zeroes(4096), WritePosition { number: 1, concurrent: 0 });
        let refused = session.write_ordered(0, data.clone(), false, order).await;
        assert_eq!(refused, Err(IoError::Unreachable));
        assert_eq!(session.write(0, data, false).await, Ok(()), "its slot is free again");
        session.close();
        server.until_deserted().await;
    });
}
