//! Reservations on a mirrored volume: of hosts that use it through one node, then the other.
#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests use real processes, threads and clocks"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use flagstone_nvme::command::io::{BlockRange, IoOptions};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::Wire as _;
use flagstone_nvme::{IoOpcode, Sqe, Status};
use flagstone_tests::etcd::Etcd;
use flagstone_tests::failover::{self, AFTER, armed};
use flagstone_tests::mirror::{Pair, VOLUME};
use flagstone_tests::process::until;
use flagstone_tests::server::NQN_PREFIX;
use flagstone_tests::wire;

const SIZE_BYTES: u64 = 16 << 20;
const WRITE_EXCLUSIVE: u32 = 1 << 8;
const PREEMPT: u32 = 1;
const PERSIST: u32 = 3 << 30;

/// A host that is connected to one node.
struct Host {
    _admin: TcpStream,
    queue: TcpStream,
}

impl Host {
    /// Host `number`, at a node.
    fn attach(pair: &Pair, node: usize, number: usize) -> Host {
        let port = pair.host_address(node).1.parse().expect("a port");
        let subsystem = format!("{NQN_PREFIX}{VOLUME}");
        let [_admin, queue] =
            wire::nvme_attach([127, 0, 0, 1], port, &subsystem, number).expect("it is admitted");
        Host { _admin, queue }
    }

    /// Status code of a command with this data.
    fn call(&mut self, command: Sqe, data: &[u8]) -> u16 {
        const CAPSULE_BYTES: usize = 72;
        let mut pdu = vec![4, 0, CAPSULE_BYTES as u8, 0];
        // Only a capsule with data has an offset of the data.
        pdu[3] = if data.is_empty() { 0 } else { CAPSULE_BYTES as u8 };
        pdu.extend(((CAPSULE_BYTES + data.len()) as u32).to_le_bytes());
        pdu.extend(command.bytes());
        pdu.extend(data);
        self.queue.write_all(&pdu).expect("the server receives");
        let mut response = [0; 24];
        self.queue.read_exact(&mut response).expect("the server answers");
        assert_eq!(response[0], 5, "it is a response");
        // Without the phase tag and Do Not Retry.
        (u16::from_le_bytes([response[22], response[23]]) >> 1) & 0x7ff
    }

    fn reserve(&mut self, opcode: IoOpcode, options: u32, keys: [u64; 2]) -> u16 {
        let data = keys.map(u64::to_le_bytes).concat();
        let sgl = SglDescriptor::in_capsule(data.len() as u32);
        self.call(Sqe::reservation(opcode, 5, 1, options, sgl), &data)
    }

    fn register(&mut self, key: u64, options: u32) {
        assert_eq!(self.reserve(IoOpcode::RESERVATION_REGISTER, options, [0, key]), 0);
    }

    fn acquire(&mut self, options: u32, keys: [u64; 2]) -> u16 {
        self.reserve(IoOpcode::RESERVATION_ACQUIRE, options | WRITE_EXCLUSIVE, keys)
    }

    fn write(&mut self) -> u16 {
        let blocks = BlockRange::new(0, 8).expect("a range");
        self.call(Sqe::write_zeroes(6, 1, blocks, IoOptions::default()), &[])
    }
}

fn conflict() -> u16 {
    // Of the generic type, 0.
    Status::RESERVATION_CONFLICT.sc().into()
}

/// Host 2 preempts host 1, at a node.
fn preempt(pair: &Pair, node: usize) {
    let [mut one, mut two] = [1, 2].map(|number| Host::attach(pair, node, number));
    one.register(10, PERSIST);
    two.register(20, 0);
    assert_eq!(one.acquire(0, [10, 0]), 0);
    assert_eq!((one.write(), two.write()), (0, conflict()));
    assert_eq!(two.acquire(PREEMPT, [20, 10]), 0);
    assert_eq!((one.write(), two.write()), (conflict(), 0));
}

/// The preempted host is excluded at a node, and the other one is not.
fn assert_fenced(pair: &Pair, node: usize) {
    let [mut one, mut two] = [1, 2].map(|number| Host::attach(pair, node, number));
    assert_eq!((one.write(), two.write()), (conflict(), 0), "at node {node}");
    assert_eq!(one.acquire(0, [10, 0]), conflict(), "it is no longer registered");
}

#[test]
fn preempted_host_stays_fenced_at_both_nodes() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    preempt(&pair, 0);
    pair.order(1, "switchover", &[]);
    pair.wait_for(1, "mirroring");
    assert_fenced(&pair, 1);
    pair.kill(1);
    pair.fail_over_to(0);
    assert_fenced(&pair, 0);
    // The peer lacks this, until it is back.
    let mut two = Host::attach(&pair, 0, 2);
    assert_eq!(two.reserve(IoOpcode::RESERVATION_RELEASE, WRITE_EXCLUSIVE, [20, 0]), 0);
    pair.restart(1);
    pair.wait_for(0, "mirroring");
    pair.order(1, "switchover", &[]);
    pair.wait_for(1, "mirroring");
    let mut one = Host::attach(&pair, 1, 1);
    assert_eq!(one.write(), 0, "it was released");
    pair.restart(0);
    pair.restart(1);
    let source = pair.source();
    let mut two = Host::attach(&pair, source, 2);
    assert_eq!(two.acquire(0, [20, 0]), 0, "its registration outlives all restarts");
    pair.end(source);
}

#[test]
fn preempted_host_stays_fenced_without_operator() {
    let Some(etcd) = Etcd::start("reservations and automatic failover") else { return };
    let mut pair = failover::pair(&etcd.arbiter(), None, AFTER);
    let source = armed(&pair);
    preempt(&pair, source);
    pair.kill(source);
    let serves = || pair.status(1 - source)["replica"]["serving"] == true;
    until("the target takes over", serves, || format!("{:#}", pair.status(1 - source)));
    assert_fenced(&pair, 1 - source);
    pair.restart(source);
    let source = pair.source();
    pair.end(source);
}
