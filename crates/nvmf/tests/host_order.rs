//! Ordered writes to a target that turns some away for now: each waits at the target for those before
//! it, so that nothing moves unless what was turned away comes again, whatever others hold meanwhile.
#![allow(missing_docs)]

mod host_common;
mod support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture, SharedDevice};
use flagstone_nvme::replica::{Order, OrderedWrite, io};
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_nvmf::host::{HostOptions, RemoteSession};
use flagstone_nvmf::target::{
    Charge, NamespaceConfig, SubsystemConfig, TargetConfig, VendorCommands, VendorHandler,
    VendorHost, VendorReply, VendorSession,
};
use flagstone_runtime::{Buf, BufMut, buf, spawn, time};
use host_common::{Server, any_port, memory, options};
use support::{Dice, in_simulation, memory_in_use};

const SIZE_BYTES: u64 = 1 << 20;
/// Writes of a test, each of a part of its own.
const WRITES: u32 = 64;
/// Beyond it the connection is given up: who stands still until then has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

fn replica_nqn() -> Nqn {
    Nqn::new("nqn.2024-01.example:volume:replica").unwrap()
}

/// How often a number is turned away, and with what.
type Refusals = BTreeMap<u32, (u32, Status)>;

/// What is at the target.
#[derive(Default)]
struct There {
    /// Numbers from 1 that have completed.
    done: u32,
    waiting: BTreeMap<u32, Waker>,
    refusals: Refusals,
    /// Writes that were not let wait.
    unparked: u32,
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

    fn admin(&self, _: &Sqe, _: &[u8], _: Option<BufMut>) -> IoFuture<VendorReply> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    /// A write starts when that of the number before it has completed.
    fn io(&self, command: &Sqe, data: Option<Buf>, charge: Charge) -> IoFuture<VendorReply> {
        let write = OrderedWrite::parse(command).unwrap();
        let number = write.order.number;
        let refusal = {
            let mut there = self.there.lock().unwrap();
            there.refusals.get_mut(&number).filter(|refusal| refusal.0 > 0).map(|refusal| {
                refusal.0 -= 1;
                refusal.1
            })
        };
        if let Some(status) = refusal {
            return IoFuture::ready(Ok(VendorReply::failure(status, 0)));
        }
        let (device, there) = (self.device.clone(), self.there.clone());
        IoFuture::later(async move {
            let early = there.lock().unwrap().done + 1 < number;
            if early {
                let Some(_parked) = charge.park() else {
                    there.lock().unwrap().unparked += 1;
                    return Err(IoError::NoMemory);
                };
                poll_fn(|cx| {
                    let mut there = there.lock().unwrap();
                    if there.done + 1 == number {
                        return Poll::Ready(());
                    }
                    there.waiting.insert(number, cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            device.write(write.range.start() * 512, data.unwrap(), write.fua).await?;
            let mut there = there.lock().unwrap();
            there.done = number;
            if let Some(next) = there.waiting.remove(&(number + 1)) {
                next.wake();
            }
            Ok(VendorReply::success(None))
        })
    }
}

/// A target with a volume on which writes keep an order.
fn start(config: TargetConfig, refusals: Refusals) -> (Server, Arc<Mutex<There>>) {
    let server = Server::start_with(memory(SIZE_BYTES, 512), config, &any_port());
    let subsystem =
        SubsystemConfig { nqn: replica_nqn(), serial: "2".to_owned(), allow_hosts: Vec::new() };
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

/// Writes all of `len` bytes each, called in their order, to a target that turns away as `refusals`
/// say. Gives how many it did not let wait.
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
        let order = Order { number, beside: 0 };
        let offset = u64::from(number - 1) * len as u64;
        let mut write = session.write_ordered(offset, data.freeze(), false, order);
        // Tasks would begin in any order.
        let begun = poll_fn(|cx| Poll::Ready(Pin::new(&mut write).poll(cx))).await;
        assert!(begun.is_pending());
        writes.push(spawn(write));
    }
    for (number, write) in (1..).zip(writes) {
        assert_eq!(write.await.unwrap(), Ok(()), "number {number}");
    }
    let took = began.elapsed();
    assert!(took < TIMEOUT / 2, "they stood still: {took:?}");
    let unparked = {
        let there = there.lock().unwrap();
        assert_eq!(there.done, WRITES);
        there.unparked
    };
    let read = session.read(0, buf::alloc(WRITES as usize * len).await).await.unwrap();
    for (number, part) in (1..).zip(read.chunks(len)) {
        assert!(part.iter().all(|byte| *byte == number), "part of number {number}");
    }
    drop(read);
    session.close();
    server.until_deserted().await;
    unparked
}

fn host(queues: u16, queue_depth: u16) -> HostOptions {
    HostOptions { queues, queue_depth, command_timeout: TIMEOUT, ..options() }
}

/// Takes so much in a capsule, and has as little room in a connection as may be.
fn narrow(in_capsule_bytes: u32) -> TargetConfig {
    TargetConfig {
        mdts_bytes: 8192,
        in_capsule_bytes,
        connection_payload_bytes: 8192,
        max_namespaces: 16,
        ..TargetConfig::default()
    }
}

/// What a target says that wants a command again a little later.
const FOR_NOW: [Status; 4] = [
    Status::COMMAND_INTERRUPTED,
    Status::NAMESPACE_NOT_READY,
    Status::TRANSIENT_TRANSPORT_ERROR,
    Status::INTERNAL_PATH_ERROR,
];

/// The first is turned away when there are more writes than slots: those behind it must not take its
/// slot, as all of them wait for it.
#[test]
fn a_write_that_is_turned_away_keeps_its_slot() {
    for status in FOR_NOW {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (1, status))]);
            write_all(TargetConfig::default(), host(1, 4), 4096, refusals).await;
        });
    }
}

/// One that failed at the target is sent again in the slot that it kept, and those that wait for it are
/// carried out after it; one that fails for good fails, and keeps nobody's slot.
#[test]
fn a_write_that_failed_and_may_be_retried_keeps_its_place() {
    for status in [Status::INTERNAL_ERROR, Status::WRITE_FAULT] {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (5, status)), (7, (2, status))]);
            write_all(TargetConfig::default(), host(1, 4), 4096, refusals).await;
        });
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (6, status))]);
            let (server, there) = start(TargetConfig::default(), refusals);
            let session = connect(&server, host(1, 1)).await;
            let (data, order) = (buf::zeroes(4096), Order { number: 1, beside: 0 });
            let failed = session.write_ordered(0, data.clone(), false, order).await;
            assert_eq!(failed, Err(IoError::WriteFault), "{status}");
            assert_eq!(there.lock().unwrap().refusals[&1].0, 0, "sent six times");
            assert_eq!(session.write(0, data, false).await, Ok(()), "its slot is free again");
            session.close();
            server.until_deserted().await;
        });
    }
}

/// Nor must those behind it keep the target from receiving it: they have more data than the target
/// takes in hand of a connection, in capsules or asked for.
#[test]
fn a_write_that_is_turned_away_finds_room_at_the_target() {
    for in_capsule_bytes in [0, 4096] {
        in_simulation(1, async || {
            let refusals = BTreeMap::from([(1, (1, Status::TRANSIENT_TRANSPORT_ERROR))]);
            write_all(narrow(in_capsule_bytes), host(1, 32), 4096, refusals).await;
        });
    }
}

/// Whoever is turned away, however often, with whatever slots and room.
#[test]
fn whoever_is_turned_away_all_come_to_their_end() {
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

/// Those that wait have a part of all memory at most: what they wait for is given some.
#[test]
fn writes_that_wait_leave_memory_for_what_they_wait_for() {
    in_simulation(1, async || {
        let limit = buf::memory_limit();
        // Both ends are in one process: the source's data, and a little more.
        buf::set_memory_limit(memory_in_use() + (1 << 20));
        let refusals = BTreeMap::from([(1, (3, Status::TRANSIENT_TRANSPORT_ERROR))]);
        let unparked = write_all(narrow(0), host(2, 32), 4096, refusals).await;
        assert!(unparked > 0, "there was memory for all of them");
        buf::set_memory_limit(limit);
    });
}

/// Nothing holds its slot for ever: what is turned away for too long fails, and others go on.
#[test]
fn a_write_that_is_turned_away_for_too_long_fails() {
    in_simulation(1, async || {
        let refusals = BTreeMap::from([(1, (u32::MAX, Status::NAMESPACE_NOT_READY))]);
        let (server, _) = start(TargetConfig::default(), refusals);
        let options = HostOptions { loss_timeout: Duration::from_secs(1), ..host(1, 1) };
        let session = connect(&server, options).await;
        let (data, order) = (buf::zeroes(4096), Order { number: 1, beside: 0 });
        let refused = session.write_ordered(0, data.clone(), false, order).await;
        assert_eq!(refused, Err(IoError::Unreachable));
        assert_eq!(session.write(0, data, false).await, Ok(()), "its slot is free again");
        session.close();
        server.until_deserted().await;
    });
}
