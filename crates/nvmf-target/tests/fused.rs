//! Fused Compare and Write: status of both halves, atomicity, and hosts that break the rules or
//! leave.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, MemoryDevice, SharedDevice, StatsLayer};
use flagstone_nbd::ServerOptions as NbdOptions;
use flagstone_nbd::{ClientOptions, Drain, Export, Exports, NbdDevice, NbdServer};
use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::identify::{Cns, IdentifyController};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{IoOpcode, Sqe, Status, Wire};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{Buf, buf, spawn, spawn_detached, time};

use support::client::range;
use support::{
    BlockingDevice, Client, Host, Options, Pdu, Server, eventually, in_simulation, on_each_driver,
    pattern,
};

const BLOCK: usize = 512;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// A volume as the server makes them.
fn volume(server: &Server) -> u32 {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, BLOCK as u32).unwrap());
    server.add(Arc::new(StatsLayer::new(memory).0))
}

/// A half at block `start`, with data in the capsule or after an R2T.
fn half(opcode: IoOpcode, fuse: u8, cid: u16, nsid: u32, start: u64, in_capsule: bool) -> Sqe {
    half_of(BLOCK, opcode, fuse, cid, nsid, start, in_capsule)
}

fn half_of(
    len: usize,
    opcode: IoOpcode,
    fuse: u8,
    cid: u16,
    nsid: u32,
    start: u64,
    in_capsule: bool,
) -> Sqe {
    let bytes = len as u32;
    let sgl = match in_capsule {
        true => SglDescriptor::in_capsule(bytes),
        false => SglDescriptor::transport(bytes),
    };
    let mut command = Sqe::write(cid, nsid, range(start, BLOCK as u64, len), false, sgl);
    command.opcode = opcode.0;
    command.flags |= fuse;
    command
}

/// Sends both halves, and their data as it is requested. Returns the status of each.
async fn swap(io: &mut Client, nsid: u32, in_capsule: [bool; 2], data: [&[u8]; 2]) -> [Status; 2] {
    let halves = [(IoOpcode::COMPARE, FIRST, 1), (IoOpcode::WRITE, SECOND, 2)];
    let mut sent = Vec::new();
    for (((opcode, fuse, cid), in_capsule), data) in halves.into_iter().zip(in_capsule).zip(data) {
        let command = half(opcode, fuse, cid, nsid, 8, in_capsule);
        sent.extend(io.capsule(&command, if in_capsule { data } else { &[] }));
    }
    io.send(&sent).await;
    let mut statuses = [None; 2];
    while statuses.iter().any(Option::is_none) {
        match io.pdu().await {
            Pdu::R2t(r2t) => {
                let pdus = io.data_for(&r2t, data[usize::from(r2t.cid.get()) - 1]);
                io.send(&pdus).await;
            }
            Pdu::Response(completion) => {
                let place = usize::from(completion.cid.get()) - 1;
                assert!(statuses[place].replace(completion.status()).is_none());
            }
            other => panic!("no answer: {other:?}"),
        }
    }
    statuses.map(Option::unwrap)
}

async fn statuses(io: &mut Client, count: usize) -> Vec<(u16, Status)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let completion = io.response().await;
        all.push((completion.cid.get(), completion.status()));
    }
    all
}

#[test]
fn compare_and_write_swaps_or_fails_both() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = volume(&server);
        let mut host = Host::attach(&server, &Options::default()).await;
        let identify = Identify::new(Cns::CONTROLLER, 0);
        let data = host.admin.ask(identify.command(7)).await.unwrap();
        assert_eq!(IdentifyController::view(&data).unwrap().fused.get(), 1);
        let contents = [vec![0; BLOCK], pattern(1, BLOCK), pattern(2, BLOCK), pattern(3, BLOCK)];
        for (round, in_capsule) in [[true; 2], [false; 2]].into_iter().cycle().take(8).enumerate() {
            let now: &[u8] = &contents[round % 4];
            let next: &[u8] = &contents[(round + 1) % 4];
            let wrong: &[u8] = &contents[(round + 2) % 4];
            let failed = swap(&mut host.io, nsid, in_capsule, [wrong, wrong]).await;
            assert_eq!(failed, [Status::COMPARE_FAILURE.dnr(), Status::FAILED_FUSED_COMMAND]);
            assert_eq!(host.io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap(), now);
            let done = swap(&mut host.io, nsid, in_capsule, [now, next]).await;
            assert_eq!(done, [Status::SUCCESS; 2], "{in_capsule:?}");
            assert_eq!(host.io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap(), next);
        }
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn half_without_partner_is_missing() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = volume(&server);
        let mut host = Host::attach(&server, &Options::default()).await;
        let (io, data) = (&mut host.io, pattern(1, BLOCK));
        let missing = Status::MISSING_FUSED_COMMAND;
        let first = half(IoOpcode::COMPARE, FIRST, 1, nsid, 8, true);
        let second = half(IoOpcode::WRITE, SECOND, 2, nsid, 8, true);
        let plain = half(IoOpcode::WRITE, 0, 3, nsid, 8, true);
        let sent = [io.capsule(&first, &data), io.capsule(&plain, &data)].concat();
        io.send(&sent).await;
        assert_eq!(statuses(io, 2).await, [(1, missing), (3, Status::SUCCESS)]);
        let lone = io.capsule(&second, &data);
        io.send(&lone).await;
        assert_eq!(statuses(io, 1).await, [(2, missing)]);
        // A first half after a first half.
        let again = half(IoOpcode::COMPARE, FIRST, 4, nsid, 8, true);
        let sent = [&first, &again, &second].map(|half| io.capsule(half, &data)).concat();
        io.send(&sent).await;
        let expected = [(1, missing), (4, Status::SUCCESS), (2, Status::SUCCESS)];
        assert_eq!(statuses(io, 3).await, expected);
        // The data of a first half that is given up is not requested.
        let empty = half(IoOpcode::COMPARE, FIRST, 5, nsid, 8, false);
        let sent = [io.capsule(&empty, &[]), io.capsule(&plain, &data)].concat();
        io.send(&sent).await;
        assert_eq!(statuses(io, 2).await, [(5, missing), (3, Status::SUCCESS)]);
        // The connection ends between two halves.
        let sent = io.capsule(&first, &data);
        io.send(&sent).await;
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn unsupported_fused_operations_are_refused() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = volume(&server);
        let mut host = Host::attach(&server, &Options::default()).await;
        let (io, data) = (&mut host.io, vec![0; BLOCK]);
        let invalid = Status::INVALID_FIELD.dnr();
        let failed = Status::FAILED_FUSED_COMMAND;
        let compare = half(IoOpcode::COMPARE, FIRST, 1, nsid, 8, true);
        let write = half(IoOpcode::WRITE, SECOND, 2, nsid, 8, true);
        let elsewhere = half(IoOpcode::WRITE, SECOND, 2, nsid, 9, true);
        let other = half(IoOpcode::WRITE, SECOND, 2, 1, 8, true);
        let beyond = half(IoOpcode::COMPARE, FIRST, 1, nsid, 1 << 40, true);
        let twice = half(IoOpcode::WRITE, FIRST, 1, nsid, 8, true);
        let nowhere = half(IoOpcode::COMPARE, FIRST, 1, 99, 8, true);
        let mixed = half(IoOpcode::WRITE, SECOND, 2, nsid, 8, false);
        let mut short = compare;
        short.data = SglDescriptor::in_capsule(8);
        let nothing = half(IoOpcode::WRITE, SECOND, 2, 99, 8, true);
        let out_of_range = [Status::LBA_OUT_OF_RANGE.dnr(), failed];
        let unknown = [Status::INVALID_NAMESPACE.dnr(), failed];
        let length = Status::DATA_SGL_LENGTH_INVALID.dnr();
        // Halves, the data in the second capsule, and the statuses.
        let cases: [(_, &[u8], _); 9] = [
            ([compare, elsewhere], &data, [invalid, invalid]),
            ([compare, other], &data, [invalid, invalid]),
            ([twice, write], &data, [invalid, invalid]),
            ([compare, mixed], &[], [invalid, invalid]),
            ([short, write], &data, [length, failed]),
            ([compare, write], &[], [failed, length]),
            ([beyond, write], &data, out_of_range),
            ([nowhere, nothing], &data, unknown),
            ([compare, write], &data, [Status::SUCCESS; 2]),
        ];
        for (halves, second, expected) in cases {
            let sent = [io.capsule(&halves[0], &data), io.capsule(&halves[1], second)].concat();
            io.send(&sent).await;
            let mut answers = statuses(io, 2).await;
            answers.sort_by_key(|(cid, _)| *cid);
            assert_eq!(answers, [(1, expected[0]), (2, expected[1])]);
        }
        // A device that cannot exclude other writes: that of namespace 1.
        let halves = [(IoOpcode::COMPARE, FIRST, 1), (IoOpcode::WRITE, SECOND, 2)];
        let halves = halves.map(|(opcode, fuse, cid)| half(opcode, fuse, cid, 1, 8, true));
        let sent = halves.map(|half| io.capsule(&half, &data)).concat();
        io.send(&sent).await;
        let expected = [(1, Status::INVALID_OPCODE.dnr()), (2, failed)];
        assert_eq!(statuses(io, 2).await, expected);
        let mut reserved = write;
        reserved.flags |= 3;
        let sent = io.capsule(&reserved, &data);
        io.send(&sent).await;
        assert_eq!(statuses(io, 1).await, [(2, invalid)]);
        drop(host);
        server.is_sound().await;
    });
}

/// Halves that wait for their partners, more of them than the payload budget: the target still
/// receives, answers those whose partners never come, and ends with its host. An earlier version
/// counted a waiting half as payload in flight, so it stopped receiving what the half waited for.
#[test]
fn halves_never_hold_the_connection() {
    const PAIRS: u16 = 14;
    let config = || TargetConfig {
        mdts_bytes: 8 << 10,
        in_capsule_bytes: 4 << 10,
        connection_payload_bytes: 8 << 10,
        ..TargetConfig::default()
    };
    on_each_driver(async || {
        let server = Server::with(config());
        let nsid = volume(&server);
        for in_capsule in [[true, true], [true, false], [false, true], [false, false]] {
            for answered in [true, false] {
                let mut host = Host::attach(&server, &Options::default()).await;
                let (io, data) = (&mut host.io, vec![0; 8 * BLOCK]);
                let mut sent = Vec::new();
                for cid in 0..2 * PAIRS {
                    let (opcode, fuse) = match cid % 2 {
                        0 => (IoOpcode::COMPARE, FIRST),
                        _ => (IoOpcode::WRITE, SECOND),
                    };
                    let place = usize::from(cid % 2);
                    let len = data.len();
                    let command = half_of(len, opcode, fuse, cid, nsid, 8, in_capsule[place]);
                    let data: &[u8] = if in_capsule[place] { &data } else { &[] };
                    sent.extend(io.capsule(&command, data));
                }
                io.send(&sent).await;
                let mut left = if answered { 2 * PAIRS } else { 0 };
                while left > 0 {
                    match io.pdu().await {
                        Pdu::R2t(r2t) => {
                            let pdus = io.data_for(&r2t, &data);
                            io.send(&pdus).await;
                        }
                        Pdu::Response(_) => left -= 1,
                        other => panic!("no answer: {other:?}"),
                    }
                }
                drop(host);
                server.is_sound().await;
            }
        }
    });
}

/// A client of an NBD export of the same volume. It ends with `drain`.
async fn over_nbd(volume: SharedDevice, drain: &Drain) -> Arc<NbdDevice> {
    let exports = Exports::new([Export::new("db", volume)]).unwrap();
    let listener =
        Listener::bind(&Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    let address = listener.address().clone();
    let nbd = NbdServer::new(Arc::new(exports), NbdOptions::default(), drain.clone());
    spawn_detached(async move {
        let stream = listener.accept().await.unwrap();
        nbd.serve(stream).await;
    });
    NbdDevice::connect(address, "db", ClientOptions::default()).await.unwrap()
}

async fn block(fill: u8) -> Buf {
    let mut block = buf::alloc(BLOCK).await;
    block.fill(fill);
    block.freeze()
}

/// A write of an NBD client between the two halves makes the comparison fail. A write during
/// the execution takes effect after it.
#[test]
fn nbd_write_is_never_between_compare_and_write() {
    on_each_driver(async || {
        let server = Server::new();
        let gate = BlockingDevice::memory();
        let volume: SharedDevice = Arc::new(StatsLayer::new(gate.clone()).0);
        let nsid = server.add(volume.clone());
        let mut host = Host::attach(&server, &Options::default()).await;
        let drain = Drain::new();
        let nbd = over_nbd(volume, &drain).await;
        let io = &mut host.io;

        let first = half(IoOpcode::COMPARE, FIRST, 1, nsid, 8, true);
        let second = half(IoOpcode::WRITE, SECOND, 2, nsid, 8, true);
        let sent = io.capsule(&first, &[0; BLOCK]);
        io.send(&sent).await;
        nbd.write(8 * BLOCK as u64, block(7).await, false).await.unwrap();
        let sent = io.capsule(&second, &[9; BLOCK]);
        io.send(&sent).await;
        let failed = [(1, Status::COMPARE_FAILURE.dnr()), (2, Status::FAILED_FUSED_COMMAND)];
        assert_eq!(statuses(io, 2).await, failed);
        assert_eq!(io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap(), [7; BLOCK]);

        gate.close();
        let sent = [io.capsule(&first, &[7; BLOCK]), io.capsule(&second, &[9; BLOCK])].concat();
        io.send(&sent).await;
        eventually("the comparison reads", || gate.inside() == 1).await;
        let writer = nbd.clone();
        let written = spawn(async move {
            writer.write(8 * BLOCK as u64, block(8).await, false).await.unwrap();
        });
        time::sleep(Duration::from_millis(20)).await;
        assert_eq!(gate.inside(), 1, "the NBD write waits");
        gate.open();
        assert_eq!(statuses(io, 2).await, [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
        written.await.unwrap();
        assert_eq!(io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap(), [8; BLOCK]);
        drop(nbd);
        drain.begin();
        drop(host);
        server.is_sound().await;
    });
}

/// Several hosts increment one number, each by reading it and swapping it. Leaves out other devices
/// than memory; the layer's own tests have slow ones.
#[test]
fn concurrent_hosts_lose_no_update() {
    const HOSTS: usize = 4;
    const EACH: usize = 10;
    for seed in 0..20 {
        in_simulation(seed, async || {
            let server = Server::new();
            // The hosts send nothing on their admin queues, for as long as it takes.
            let options = Options { keep_alive_ms: 0, ..Options::default() };
            let nsid = volume(&server);
            let mut tasks = Vec::new();
            for _ in 0..HOSTS {
                let host = Host::attach(&server, &options).await;
                tasks.push(flagstone_runtime::spawn(async move {
                    // All of it: without its admin queue the controller ends.
                    let mut host = host;
                    let mut done = 0;
                    while done < EACH {
                        let now = host.io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap();
                        let next = vec![now[0] + 1; BLOCK];
                        let answers = swap(&mut host.io, nsid, [true; 2], [&now, &next]).await;
                        done += usize::from(answers == [Status::SUCCESS; 2]);
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let mut host = Host::attach(&server, &options).await;
            let end = host.io.read(nsid, 8, BLOCK as u64, BLOCK).await.unwrap();
            assert_eq!(end, vec![(HOSTS * EACH) as u8; BLOCK]);
            drop(host);
            server.is_sound().await;
        });
    }
}
