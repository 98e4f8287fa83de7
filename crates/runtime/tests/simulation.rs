//! The simulated world behaves as the real one does at its worst, and does so again for the same
//! seed.
#![allow(missing_docs)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::fs::{File, OpenOptions, PunchMode};
use flagstone_runtime::net::{Address, KeepAlive, Listener, Stream};
use flagstone_runtime::sim::{
    Config, DiskConfig, DiskFaults, LinkConfig, NodeId, Simulation, World,
};
use flagstone_runtime::{Buf, RecvList, SendList, alive, buf, random_u64, spawn, task, time};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DISK: &str = "/dev/disk";

fn two_nodes(seed: u64) -> (Simulation, NodeId, NodeId) {
    let sim = Simulation::new(seed, Config::default());
    let (a, b) = (sim.add_node("a"), sim.add_node("b"));
    (sim, a, b)
}

fn port(world: &World, node: NodeId, port: u16) -> Address {
    Address::Tcp((world.ip(node), port).into())
}

async fn filled(len: usize, value: u8) -> Buf {
    let mut buf = buf::alloc(len).await;
    buf.fill(value);
    buf.freeze()
}

/// Sends back what comes, on every connection.
async fn echo_server(address: Address) {
    let listener = Listener::bind(&address).unwrap();
    while let Ok(stream) = listener.accept().await {
        task::spawn_detached(async move {
            loop {
                let (result, buf) = stream.recv(buf::alloc(65536).await).await;
                let Ok(count @ 1..) = result else { return };
                if stream.send_buf(buf.freeze().slice(0..count)).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Connects as soon as somebody listens.
async fn connect(address: &Address) -> Stream {
    loop {
        match Stream::connect(address).await {
            Ok(stream) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
    }
}

/// A pair of connected streams: (a's, b's).
async fn pair(world: &World, a: NodeId, b: NodeId) -> (Stream, Stream) {
    pair_at(world, a, b, 1).await
}

async fn pair_at(world: &World, a: NodeId, b: NodeId, number: u16) -> (Stream, Stream) {
    let address = port(world, b, number);
    let there = address.clone();
    let accepted = world.spawn_on(b, async move {
        let listener = Listener::bind(&there).unwrap();
        listener.accept().await.unwrap()
    });
    let connected = world.spawn_on(a, async move { connect(&address).await });
    (connected.await.unwrap(), accepted.await.unwrap())
}

async fn recv(stream: &Stream) -> std::io::Result<usize> {
    stream.recv(buf::alloc(65536).await).await.0
}

/// A client and a server that talk, sleep and write; everything ends in the history.
fn busy_history(seed: u64) -> (u64, u64, u64) {
    let (sim, a, b) = two_nodes(seed);
    let address = port(&sim, b, 7);
    sim.spawn_on(b, echo_server(address.clone()));
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let address = address.clone();
            sim.spawn_on(a, async move {
                let options = OpenOptions { exclusive: false, ..OpenOptions::default() };
                let disk = File::open(DISK, &options).unwrap();
                let stream = connect(&address).await;
                for round in 0..20_u64 {
                    let data = filled(4096, random_u64() as u8).await;
                    stream.send_buf(data.clone()).await.unwrap();
                    let (result, echoed) = stream.recv_exact(buf::alloc(4096).await).await;
                    result.unwrap();
                    assert!(echoed[..] == data[..]);
                    let offset = (client * 20 + round) * 4096;
                    disk.write_at(data, offset, round % 3 == 0).await.unwrap();
                }
                disk.sync().await.unwrap();
            })
        })
        .collect();
    sim.block_on(async {
        for client in clients {
            client.await.unwrap();
        }
    });
    sim.power_off(b);
    (sim.history_hash(), sim.events(), sim.now().as_nanos())
}

#[test]
fn the_same_seed_gives_the_same_history_bit_for_bit() {
    let histories: BTreeSet<_> = (0..10).map(busy_history).collect();
    assert_eq!(histories.len(), 10, "seeds differ");
    let again: BTreeSet<_> = (0..10).rev().map(busy_history).collect();
    assert_eq!(histories, again);
}

#[test]
fn time_jumps_and_timers_fire_in_order() {
    let (sim, a, b) = two_nodes(1);
    let order = Rc::new(RefCell::new(Vec::new()));
    for (node, hours) in [(a, 3_u32), (b, 1), (a, 2)] {
        let order = order.clone();
        sim.spawn_on(node, async move {
            time::sleep(3600 * SECOND * hours).await;
            order.borrow_mut().push(hours);
        });
    }
    let started = sim.now();
    sim.run_until(600 * SECOND, || order.borrow().len() == 3);
    assert_eq!(*order.borrow(), [1, 2, 3]);
    let passed = sim.now() - started;
    assert!(passed >= 3 * 3600 * SECOND && passed < 4 * 3600 * SECOND, "{passed:?}");
    sim.block_on(async {
        let late = time::timeout(SECOND, std::future::pending::<()>()).await;
        assert!(late.is_err());
    });
}

#[test]
fn ready_tasks_run_in_any_order() {
    let orders: BTreeSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let (sim, a, _) = two_nodes(seed);
            let order = Rc::new(RefCell::new(Vec::new()));
            for number in 0..3 {
                let order = order.clone();
                sim.spawn_on(a, async move { order.borrow_mut().push(number) });
            }
            sim.run_for(MS);
            order.take()
        })
        .collect();
    assert_eq!(orders.len(), 6);
}

#[test]
fn streams_carry_bytes_in_order_and_in_pieces() {
    let mut sizes = BTreeSet::new();
    for seed in 0..20 {
        let (sim, a, b) = two_nodes(seed);
        let world = sim.world();
        let got = sim.block_on(async {
            let (client, server) = pair(&world, a, b).await;
            let sending = world.spawn_on(a, async move {
                let mut list = SendList::new();
                for number in 0..300_u32 {
                    list.push(Buf::copy_of(&[number as u8; 1000]).unwrap());
                }
                client.send_all(list).await.0.unwrap();
            });
            let mut got = Vec::new();
            loop {
                let mut list = RecvList::new();
                list.push(buf::alloc(100).await);
                list.push(buf::alloc(50_000).await);
                let (count, mut list) = server.recv_vectored(list).await;
                let count = count.unwrap();
                sizes.insert(count);
                let bytes: Vec<u8> = list.drain().flat_map(|buf| buf.to_vec()).collect();
                got.extend_from_slice(&bytes[..count]);
                if count == 0 {
                    break;
                }
            }
            sending.await.unwrap();
            got
        });
        assert_eq!(got.len(), 300_000);
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8));
        sim.run_for(SECOND);
        assert_eq!(sim.connections(), 0, "both ends are closed");
    }
    assert!(sizes.len() > 20, "{sizes:?}");
}

#[test]
fn connections_overtake_each_other() {
    let firsts: BTreeSet<u8> = (0..30)
        .map(|seed| {
            let (sim, a, b) = two_nodes(seed);
            let world = sim.world();
            sim.block_on(async {
                let first = Rc::new(Cell::new(None));
                let (one, one_end) = pair(&world, a, b).await;
                let (two, two_end) = pair(&world, a, b).await;
                let ends = [(1_u8, one_end), (2, two_end)].map(|(number, end)| {
                    let first = first.clone();
                    world.spawn_on(b, async move {
                        recv(&end).await.unwrap();
                        first.set(first.get().or(Some(number)));
                    })
                });
                one.send_buf(filled(10, 1).await).await.unwrap();
                two.send_buf(filled(10, 2).await).await.unwrap();
                for end in ends {
                    end.await.unwrap();
                }
                first.get().unwrap()
            })
        })
        .collect();
    assert_eq!(firsts.len(), 2);
}

#[test]
fn a_receiver_that_does_not_read_pushes_back() {
    let (sim, a, b) = two_nodes(3);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        let sent = Rc::new(Cell::new(0_usize));
        let counter = sent.clone();
        let sending = world.spawn_on(a, async move {
            for _ in 0..100 {
                client.send_buf(filled(65536, 1).await).await.unwrap();
                counter.set(counter.get() + 65536);
            }
        });
        time::sleep(60 * SECOND).await;
        let stuck = sent.get();
        let link = LinkConfig::network();
        assert!(stuck <= link.send_buffer_bytes + link.receive_buffer_bytes, "{stuck}");
        assert!(stuck >= link.receive_buffer_bytes, "{stuck}");
        let mut total = 0;
        while let Ok(count @ 1..) = recv(&server).await {
            total += count;
        }
        assert_eq!(total, 100 * 65536);
        sending.await.unwrap();
    });
}

#[test]
fn bandwidth_is_shared_and_bounded() {
    let (sim, a, b) = two_nodes(4);
    sim.set_link(a, b, LinkConfig { bytes_per_second: 1_000_000, ..LinkConfig::network() });
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        let started = time::now();
        world.spawn_on(a, async move { client.send_buf(filled(500_000, 1).await).await });
        let mut total = 0;
        while let Ok(count @ 1..) = recv(&server).await {
            total += count;
        }
        assert_eq!(total, 500_000);
        let took = started.elapsed();
        assert!(took >= 500 * MS && took < 700 * MS, "{took:?}");
    });
}

#[test]
fn connecting_to_nobody_is_refused_and_to_nowhere_takes_time() {
    let (sim, a, b) = two_nodes(5);
    let address = port(&sim, b, 9);
    let nowhere = Address::Tcp("10.9.9.9:1".parse().unwrap());
    let attempt =
        |address: Address| sim.spawn_on(a, async move { Stream::connect(&address).await });
    sim.block_on(async {
        let refused = attempt(address.clone()).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let unreachable = attempt(nowhere).await.unwrap().unwrap_err();
        assert_eq!(unreachable.kind(), ErrorKind::HostUnreachable);
        sim.partition(a, b);
        let started = time::now();
        let late = attempt(address.clone()).await.unwrap().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert!(started.elapsed() > 60 * SECOND);
        sim.heal(a, b);
        sim.crash(b);
        let refused = attempt(address).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "the kernel answers for it");
    });
}

#[test]
fn addresses_are_taken_once_and_freed() {
    let (sim, a, b) = two_nodes(6);
    let (own, other) = (port(&sim, a, 5), port(&sim, b, 5));
    let task = sim.spawn_on(a, async move {
        let first = Listener::bind(&own).unwrap();
        assert_eq!(Listener::bind(&own).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(Listener::bind(&other).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        let any = Listener::bind(&Address::Tcp("0.0.0.0:0".parse().unwrap())).unwrap();
        let Address::Tcp(bound) = any.address() else { panic!("a TCP address") };
        assert_ne!(bound.port(), 0);
        let local = Address::Tcp(([127, 0, 0, 1], bound.port()).into());
        let client = Stream::connect(&local).await.unwrap();
        assert!(client.peer().starts_with("127.0.0.1:"));
        assert!(any.accept().await.unwrap().peer().starts_with("10.0.0.1:"));
        drop(first);
        Listener::bind(&own).unwrap();
    });
    sim.block_on(task).unwrap();
}

#[test]
fn unix_sockets_stay_on_their_node() {
    let (sim, a, b) = two_nodes(7);
    let address = Address::Unix("/run/echo.sock".into());
    sim.spawn_on(a, echo_server(address.clone()));
    sim.run_for(MS);
    let there = address.clone();
    let here = sim.spawn_on(a, async move {
        let stream = Stream::connect(&address).await.unwrap();
        stream.send_buf(filled(100, 3).await).await.unwrap();
        stream.recv_exact(buf::alloc(100).await).await.1[99]
    });
    let elsewhere = sim.spawn_on(b, async move { Stream::connect(&there).await.unwrap_err() });
    sim.block_on(async {
        assert_eq!(here.await.unwrap(), 3);
        assert_eq!(elsewhere.await.unwrap().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_partition_holds_data_back_until_it_heals() {
    for seed in 0..20 {
        let (sim, a, b) = two_nodes(seed);
        let world = sim.world();
        sim.block_on(async {
            let (client, server) = pair(&world, a, b).await;
            if seed % 2 == 0 {
                sim.partition(a, b)
            } else {
                sim.partition_one_way(a, b)
            }
            client.send_buf(filled(1000, 1).await).await.unwrap();
            let buf = buf::alloc(1000).await;
            let early = time::timeout(30 * SECOND, server.recv(buf)).await;
            assert!(early.is_err());
            sim.heal(a, b);
            let (result, data) = server.recv_exact(buf::alloc(1000).await).await;
            result.unwrap();
            assert_eq!(data[999], 1);
        });
    }
}

#[test]
fn a_partition_that_lasts_times_the_sender_out_and_leaves_the_receiver_waiting() {
    let (sim, a, b) = two_nodes(8);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        sim.partition(a, b);
        client.send_buf(filled(1000, 1).await).await.unwrap();
        let started = time::now();
        assert_eq!(recv(&client).await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(started.elapsed() >= 924 * SECOND);
        sim.heal(a, b);
        // Nobody tells the server until it says something itself.
        let buf = buf::alloc(10).await;
        assert!(time::timeout(3600 * SECOND, server.recv(buf)).await.is_err());
        server.send_buf(filled(10, 1).await).await.unwrap();
        assert_eq!(recv(&server).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn lost_acknowledgements_fill_the_sender_though_data_arrives() {
    let (sim, a, b) = two_nodes(9);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        sim.partition_one_way(b, a);
        let size = 2 * LinkConfig::network().send_buffer_bytes;
        let sending =
            world.spawn_on(a, async move { client.send_buf(filled(size, 1).await).await });
        let mut total = 0;
        while let Ok((Ok(count @ 1..), _)) =
            time::timeout(SECOND, server.recv(buf::alloc(65536).await)).await
        {
            total += count;
        }
        assert_eq!(total, LinkConfig::network().send_buffer_bytes);
        sim.heal(a, b);
        while let Ok(count @ 1..) = recv(&server).await {
            total += count;
        }
        assert_eq!(total, size);
        sending.await.unwrap().unwrap();
    });
}

#[test]
fn resets_reach_both_ends() {
    let (sim, a, b) = two_nodes(10);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        sim.reset_connections(b, a);
        assert_eq!(recv(&client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(recv(&server).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(client.send_buf(filled(10, 0).await).await.is_err());
    });
}

#[test]
fn a_closed_stream_ends_after_its_data_and_then_resets_who_still_sends() {
    let (sim, a, b) = two_nodes(11);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        client.send_buf(filled(5000, 9).await).await.unwrap();
        drop(client);
        let (result, data) = server.recv_exact(buf::alloc(5000).await).await;
        result.unwrap();
        assert_eq!(data[4999], 9);
        assert_eq!(recv(&server).await.unwrap(), 0, "then the end");
        server.send_buf(filled(10, 0).await).await.unwrap();
        time::sleep(SECOND).await;
        assert!(server.send_buf(filled(10, 0).await).await.is_err());
    });
}

#[test]
fn shutdown_ends_both_directions() {
    let (sim, a, b) = two_nodes(12);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        let waiting = client.clone();
        let waiting = spawn(async move { recv(&waiting).await });
        task::yield_now().await;
        client.shutdown();
        assert_eq!(waiting.await.unwrap().unwrap(), 0);
        assert_eq!(recv(&server).await.unwrap(), 0);
        let error = client.send_buf(filled(10, 0).await).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn the_receiving_direction_alone_ends_after_what_has_arrived() {
    let (sim, a, b) = two_nodes(22);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        client.send_buf(filled(1000, 4).await).await.unwrap();
        time::sleep(SECOND).await;
        server.shutdown_receiving();
        server.recv_exact(buf::alloc(1000).await).await.0.unwrap();
        assert_eq!(recv(&server).await.unwrap(), 0);
        server.send_buf(filled(1000, 5).await).await.unwrap();
        client.recv_exact(buf::alloc(1000).await).await.0.unwrap();
    });
}

#[test]
fn a_dropped_operation_is_cancelled_and_leaves_nothing() {
    let (sim, a, b) = two_nodes(13);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        let before = alive();
        let buf = buf::alloc(100).await;
        assert!(time::timeout(5 * MS, server.recv(buf)).await.is_err());
        let listener = Listener::bind(&port(&world, flagstone_runtime::sim::OBSERVER, 1)).unwrap();
        assert!(time::timeout(5 * MS, listener.accept()).await.is_err());
        time::sleep(MS).await;
        assert_eq!(alive(), before);
        client.send_buf(filled(1, 7).await).await.unwrap();
        assert_eq!(recv(&server).await.unwrap(), 1, "the cancelled receive took no bytes");
    });
}

#[test]
fn a_killed_process_ends_its_connections_and_frees_its_locks() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..20 {
        let (sim, a, b) = two_nodes(seed);
        let world = sim.world();
        let address = port(&sim, b, 7);
        sim.add_disk(b, DISK, DiskConfig::block_device(1 << 20));
        let serve = |sim: &Simulation| {
            let address = address.clone();
            sim.spawn_on(b, async move {
                let _disk = File::open(DISK, &OpenOptions::default()).unwrap();
                echo_server(address).await;
            })
        };
        let first = serve(&sim);
        sim.block_on(async {
            let stream = {
                let address = address.clone();
                world.spawn_on(a, async move { connect(&address).await }).await.unwrap()
            };
            stream.send_buf(filled(10, 0).await).await.unwrap();
            stream.recv_exact(buf::alloc(10).await).await.0.unwrap();
            sim.crash(b);
            assert!(first.await.is_err(), "its tasks are dropped");
            outcomes.insert(recv(&stream).await.map_err(|error| error.kind()));
        });
        assert!(!sim.is_up(b));
        sim.restart(b);
        let second = serve(&sim);
        sim.run_for(SECOND);
        assert!(!second.is_finished(), "the disk's lock and the port are free");
    }
    assert_eq!(outcomes, BTreeSet::from([Ok(0), Err(ErrorKind::ConnectionReset)]));
}

#[test]
fn a_connection_that_was_lost_before_its_process_died_is_forgotten() {
    let (sim, a, b) = two_nodes(24);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        // Each node holds its own end, so that it dies with the node.
        for (node, stream) in [(a, client), (b, server)] {
            world.spawn_on(node, async move {
                let _ = recv(&stream).await;
                std::future::pending::<()>().await;
            });
        }
        task::yield_now().await;
        sim.reset_connections(a, b);
        time::sleep(SECOND).await;
        sim.crash(a);
        sim.power_off(b);
    });
    assert_eq!(sim.connections(), 0);
}

#[test]
fn a_node_without_power_is_silent_and_resets_old_connections_when_back() {
    let (sim, a, b) = two_nodes(14);
    let world = sim.world();
    sim.block_on(async {
        let (client, _server) = pair(&world, a, b).await;
        sim.power_off(b);
        client.send_buf(filled(10, 0).await).await.unwrap();
        let buf = buf::alloc(10).await;
        assert!(time::timeout(100 * SECOND, client.recv(buf)).await.is_err());
        sim.restart(b);
        let waited = time::timeout(200 * SECOND, recv(&client)).await.unwrap();
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn destructors_of_a_dying_node_can_do_no_harm() {
    struct Noisy(File, Stream);
    impl Drop for Noisy {
        fn drop(&mut self) {
            self.1.shutdown();
            spawn(async { time::sleep(SECOND).await });
            assert!(File::open("/new", &OpenOptions::default()).is_err());
        }
    }
    let (sim, a, b) = two_nodes(15);
    sim.add_disk(b, DISK, DiskConfig::block_device(1 << 20));
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        world.spawn_on(b, async move {
            let noisy = Noisy(File::open(DISK, &OpenOptions::default()).unwrap(), server);
            noisy.0.write_at(filled(4096, 1).await, 0, false).await.unwrap();
            recv(&noisy.1).await.unwrap();
        });
        time::sleep(SECOND).await;
        sim.power_off(b);
        let buf = buf::alloc(10).await;
        assert!(time::timeout(SECOND, client.recv(buf)).await.is_err(), "no goodbye");
    });
    sim.run_for(MS);
    assert_eq!(sim.alive(), (0, 0));
}

#[test]
fn work_sent_to_a_core_belongs_to_the_node_that_sent_it() {
    thread_local!(static ALIVE: Cell<u32> = const { Cell::new(0) });
    struct Count;
    impl Drop for Count {
        fn drop(&mut self) {
            ALIVE.set(ALIVE.get() - 1);
            flagstone_runtime::cores()[0].spawn(std::future::pending);
        }
    }
    let (sim, a, _) = two_nodes(23);
    let serve = || async {
        for _ in 0..3 {
            flagstone_runtime::cores()[0].spawn(|| async {
                ALIVE.set(ALIVE.get() + 1);
                let _count = Count;
                std::future::pending::<()>().await;
            });
            task::yield_now().await;
        }
    };
    sim.spawn_on(a, serve());
    sim.run_for(MS);
    assert_eq!(ALIVE.get(), 3);
    sim.crash(a);
    assert_eq!(ALIVE.get(), 0);
    sim.restart(a);
    assert_eq!(sim.alive().0, 0);
}

/// Writes, flushes half, loses power; returns what is left of each half: (kept, lost, torn).
fn power_loss(seed: u64) -> [(usize, usize, usize); 2] {
    let (sim, a, _) = two_nodes(seed);
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let writer = sim.spawn_on(a, async {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        for block in 0..8 {
            disk.write_at(filled(4096, 1).await, block * 4096, false).await.unwrap();
        }
        disk.sync().await.unwrap();
        for block in 8..16 {
            disk.write_at(filled(4096, 1).await, block * 4096, false).await.unwrap();
        }
    });
    sim.block_on(writer).unwrap();
    assert!(sim.disk_stats(a, DISK).unflushed_writes >= 8);
    sim.power_off(a);
    [0, 8].map(|first| {
        let mut counts = (0, 0, 0);
        for block in first..first + 8 {
            match sim.peek(a, DISK, block * 4096, 4096).iter().filter(|byte| **byte == 1).count() {
                4096 => counts.0 += 1,
                0 => counts.1 += 1,
                some => {
                    assert_eq!(some % 512, 0, "a sector is kept or lost as a whole");
                    counts.2 += 1;
                }
            }
        }
        counts
    })
}

#[test]
fn a_power_loss_keeps_what_was_flushed_and_loses_or_tears_the_rest() {
    let outcomes: Vec<_> = (0..60).map(power_loss).collect();
    assert!(outcomes.iter().all(|[flushed, _]| *flushed == (8, 0, 0)));
    let seen = |wanted: fn(&(usize, usize, usize)) -> bool| {
        outcomes.iter().any(|[_, unflushed]| wanted(unflushed))
    };
    assert!(seen(|(kept, ..)| *kept == 8), "all kept");
    assert!(seen(|(_, lost, _)| *lost == 8), "all lost");
    assert!(seen(|(kept, lost, torn)| *kept > 0 && *lost > 0 && *torn == 0), "some of each");
    assert!(seen(|(.., torn)| *torn > 0), "torn");
}

#[test]
fn durable_writes_survive_and_a_crash_loses_nothing_completed() {
    for seed in 0..40 {
        let (sim, a, _) = two_nodes(seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let writer = sim.spawn_on(a, async {
            let disk = File::open(DISK, &OpenOptions::default()).unwrap();
            disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
            disk.write_at(filled(4096, 2).await, 0, true).await.unwrap();
            disk.write_at(filled(4096, 3).await, 4096, false).await.unwrap();
        });
        sim.block_on(writer).unwrap();
        sim.crash(a);
        assert_eq!(sim.peek(a, DISK, 4096, 4096), [3; 4096]);
        sim.power_off(a);
        assert_eq!(sim.peek(a, DISK, 0, 4096), [2; 4096], "an old write never comes back");
    }
}

#[test]
fn writes_in_flight_may_be_there_not_there_or_torn() {
    for power in [false, true] {
        let mut ones = BTreeSet::new();
        for seed in 0..60 {
            let (sim, a, _) = two_nodes(seed);
            sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
            sim.spawn_on(a, async {
                let disk = File::open(DISK, &OpenOptions::default()).unwrap();
                disk.write_at(filled(4096, 1).await, 0, true).await.unwrap();
            });
            sim.run_for(Duration::from_micros(5));
            if power {
                sim.power_off(a)
            } else {
                sim.crash(a)
            }
            assert_eq!(sim.disk_stats(a, DISK).writes, 0, "it had not completed");
            ones.insert(sim.peek(a, DISK, 0, 4096).iter().filter(|byte| **byte == 1).count());
        }
        assert!(ones.len() > 3 && ones.contains(&0) && ones.contains(&4096), "{ones:?}");
    }
}

#[test]
fn a_flush_covers_what_was_completed_before_it_began() {
    // The write completes while the flush is under way: the flush says nothing about it.
    let lost = (0..60).filter(|seed| {
        let (sim, a, _) = two_nodes(*seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let both = sim.spawn_on(a, async {
            let disk = Rc::new(File::open(DISK, &OpenOptions::default()).unwrap());
            let flusher = disk.clone();
            let flush = spawn(async move { flusher.sync().await });
            disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
            flush.await.unwrap().unwrap();
        });
        sim.block_on(both).unwrap();
        sim.power_off(a);
        sim.peek(a, DISK, 0, 4096) != [1; 4096]
    });
    assert!(lost.count() > 5);
}

#[test]
fn files_behave_as_files_do() {
    let (sim, a, b) = two_nodes(16);
    let work = async || {
        let missing = File::open("/disk", &OpenOptions::default()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
        let file = File::open("/disk", &options).unwrap();
        assert_eq!(file.info().size_bytes, 1 << 20);
        let locked = File::open("/disk", &OpenOptions::default()).unwrap_err();
        assert_eq!(locked.kind(), ErrorKind::ResourceBusy);
        let read_only = OpenOptions { read_only: true, exclusive: false, ..options };
        let reader = File::open("/disk", &read_only).unwrap();
        assert!(reader.write_at(filled(512, 1).await, 0, false).await.is_err());
        for (offset, len) in [(1, 512), (0, 100)] {
            let error = file.write_at(filled(len, 1).await, offset, false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "unaligned");
        }
        file.write_at(filled(8192, 5).await, 4096, false).await.unwrap();
        file.punch(4096, 4096, PunchMode::Deallocate).await.unwrap();
        for (offset, expected) in [(4096, 0), (8192, 5), (12288, 0)] {
            let (count, data) = reader.read_at(buf::alloc(4096).await, offset).await;
            assert_eq!((count.unwrap(), data[0], data[4095]), (4096, expected, expected));
        }
        let (count, _) = file.read_at(buf::alloc(4096).await, (1 << 20) - 512).await;
        assert_eq!(count.unwrap(), 512, "short at the end");
        file.write_at(filled(512, 1).await, 1 << 20, false).await.unwrap();
        drop((file, reader));
        let again = File::open("/disk", &options).unwrap();
        assert_eq!(again.info().size_bytes, (1 << 20) + 512, "it grew");
    };
    // Both nodes have a `/disk` of their own.
    let (first, second) = (sim.spawn_on(a, work()), sim.spawn_on(b, work()));
    sim.block_on(async { (first.await.unwrap(), second.await.unwrap()) });
}

#[test]
fn a_full_disk_and_the_end_of_a_device_refuse_writes() {
    let (sim, a, _) = two_nodes(17);
    sim.add_disk(a, DISK, DiskConfig { space_bytes: 8192, ..DiskConfig::block_device(1 << 20) });
    let writer = sim.spawn_on(a, async {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        let full = disk.write_at(filled(12288, 1).await, 0, false).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        disk.write_at(filled(4096, 2).await, 4096, false).await.unwrap();
        disk.punch(0, 4096, PunchMode::Deallocate).await.unwrap();
        disk.write_at(filled(4096, 3).await, 16384, false).await.unwrap();
        let end = disk.write_at(filled(4096, 1).await, 1 << 20, false).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::StorageFull);
    });
    sim.block_on(writer).unwrap();
    assert_eq!(sim.peek(a, DISK, 4096, 1), [2]);
}

#[test]
fn faults_fail_what_they_are_set_to_fail() {
    let (sim, a, _) = two_nodes(18);
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let world = sim.world();
    let work = sim.spawn_on(a, async move {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        let set = |faults| world.set_faults(a, DISK, faults);
        set(DiskFaults::default().unreadable_at(8192..8704));
        assert!(disk.read_at(buf::alloc(4096).await, 4096).await.0.is_ok());
        assert!(disk.read_at(buf::alloc(4096).await, 8192).await.0.is_err());
        assert!(disk.write_at(filled(4096, 1).await, 8192, false).await.is_ok());
        set(DiskFaults::default().unwritable_at(0..512));
        assert!(disk.write_at(filled(4096, 1).await, 0, false).await.is_err());
        assert!(disk.punch(0, 4096, PunchMode::Zero).await.is_err());
        set(DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
        assert!(disk.sync().await.is_err());
        assert!(disk.write_at(filled(4096, 1).await, 4096, true).await.is_err());
        set(DiskFaults { read_errors: 0.5, write_errors: 0.5, ..DiskFaults::default() });
        let mut failed = (0, 0);
        for _ in 0..40 {
            failed.0 += u32::from(disk.read_at(buf::alloc(512).await, 0).await.0.is_err());
            failed.1 += u32::from(disk.write_at(filled(512, 1).await, 0, false).await.is_err());
        }
        assert!((5..35).contains(&failed.0) && (5..35).contains(&failed.1), "{failed:?}");
        set(DiskFaults::default());
        world.poke(a, DISK, 0, &[7; 512]);
        assert_eq!(disk.read_at(buf::alloc(512).await, 0).await.1[511], 7);
        world.stall(a, DISK, 10 * SECOND);
        let started = time::now();
        disk.sync().await.unwrap();
        assert!(started.elapsed() >= 10 * SECOND);
    });
    sim.block_on(work).unwrap();
    assert!(sim.disk_stats(a, DISK).faults > 10);
}

#[test]
fn concurrent_reads_can_see_torn_writes() {
    let torn = (0..300).any(|seed| {
        let (sim, a, _) = two_nodes(seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let read = sim.spawn_on(a, async {
            let disk = Rc::new(File::open(DISK, &OpenOptions::default()).unwrap());
            let writer = disk.clone();
            spawn(async move { writer.write_at(filled(4096, 1).await, 0, false).await });
            disk.read_at(buf::alloc(4096).await, 0).await.1
        });
        let data = sim.block_on(read).unwrap();
        data.contains(&0) && data.contains(&1)
    });
    assert!(torn);
}

#[test]
#[should_panic(expected = "deadlock: nothing can happen")]
fn a_deadlock_is_found() {
    let (sim, a, _) = two_nodes(19);
    let address = port(&sim, a, 1);
    let stuck = sim.spawn_on(a, async move {
        Listener::bind(&address).unwrap().accept().await.unwrap();
    });
    sim.block_on(stuck).unwrap();
}

#[test]
fn a_hang_is_found_and_says_what_is_in_flight() {
    let config = Config { time_limit: 60 * SECOND, ..Config::default() };
    let sim = Simulation::new(20, config);
    let a = sim.add_node("storage");
    let address = port(&sim, a, 4420);
    sim.spawn_on(a, async {
        loop {
            time::sleep(MS).await;
        }
    });
    let stuck = sim.spawn_on(a, async move {
        Listener::bind(&address).unwrap().accept().await.unwrap();
    });
    let hung = std::panic::AssertUnwindSafe(|| sim.block_on(stuck));
    let panic = std::panic::catch_unwind(hung).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("the time limit is reached"), "{text}");
    assert!(text.contains("storage: accept 10.0.0.1:4420"), "{text}");
}

#[test]
fn the_end_of_a_world_drops_everything() {
    let token = Rc::new(());
    let (sim, a, b) = two_nodes(21);
    let address = port(&sim, b, 7);
    sim.spawn_on(b, echo_server(address.clone()));
    let held = token.clone();
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    sim.stall(a, DISK, 1_000_000 * SECOND);
    sim.spawn_on(a, async move {
        let stream = connect(&address).await;
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
        drop((held, stream));
    });
    sim.run_for(SECOND);
    assert_eq!(Rc::strong_count(&token), 2);
    drop(sim);
    assert_eq!(Rc::strong_count(&token), 1);
}

/// Shuts a stream down when it is dropped, as many a destructor does.
struct Hangup(Stream);

impl Drop for Hangup {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Found by a failing test whose report was followed by a second panic: operations that the end of
/// the world had cancelled were still queued at their connections, and ended once more when a
/// destructor shut the connection down.
#[test]
fn a_world_may_be_dropped_at_any_moment() {
    for seed in 0..200_u64 {
        let (sim, a, b) = two_nodes(seed);
        let address = port(&sim, b, 7);
        sim.spawn_on(b, echo_server(address.clone()));
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        for client in 0..4_u64 {
            let address = address.clone();
            sim.spawn_on(a, async move {
                let options = OpenOptions { exclusive: false, ..OpenOptions::default() };
                let disk = File::open(DISK, &options).unwrap();
                let stream = connect(&address).await;
                let _hangup = Hangup(stream.clone());
                // More than the buffers on the way hold: sends wait on both sides.
                let (sender, data) = (stream.clone(), filled(4 << 20, 1).await);
                task::spawn_detached(async move { drop(sender.send_buf(data).await) });
                loop {
                    let data = filled(4096, 1).await;
                    disk.write_at(data, client * 4096, false).await.unwrap();
                    stream.recv_exact(buf::alloc(4096).await).await.0.unwrap();
                }
            });
        }
        let span = sim.random_span(Duration::ZERO, 20 * MS);
        sim.run_for(span);
        drop(sim);
    }
}

#[test]
fn the_sending_direction_alone_ends_after_what_was_sent() {
    let (sim, a, b) = two_nodes(30);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        client.send_buf(filled(1000, 4).await).await.unwrap();
        client.shutdown_sending();
        let error = client.send_buf(filled(1, 4).await).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        server.recv_exact(buf::alloc(1000).await).await.0.unwrap();
        assert_eq!(recv(&server).await.unwrap(), 0);
        server.send_buf(filled(1000, 5).await).await.unwrap();
        client.recv_exact(buf::alloc(1000).await).await.0.unwrap();
        drop(server);
        assert_eq!(recv(&client).await.unwrap(), 0);
    });
}

#[test]
fn an_aborted_connection_resets_its_peer() {
    let (sim, a, b) = two_nodes(31);
    let world = sim.world();
    sim.block_on(async {
        let (client, server) = pair(&world, a, b).await;
        let (sender, data) = (client.clone(), filled(16 << 20, 1).await);
        let sending = spawn(async move { sender.send_buf(data).await });
        time::sleep(SECOND).await;
        client.abort();
        assert!(sending.await.unwrap().is_err());
        assert_eq!(recv(&client).await.unwrap(), 0);
        drop(client);
        time::sleep(SECOND).await;
        let error = loop {
            match recv(&server).await {
                Ok(count) => assert!(count > 0, "ended as if all had been sent"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn keep_alive_finds_a_peer_that_is_gone_and_spares_one_that_is_back() {
    let keep_alive = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };
    for seed in 0..20 {
        let (sim, a, b) = two_nodes(seed);
        let world = sim.world();
        sim.block_on(async {
            let (client, server) = pair(&world, a, b).await;
            client.set_keep_alive(keep_alive).unwrap();
            // A short partition is nothing to it, and neither is silence.
            world.partition(a, b);
            time::sleep(30 * SECOND).await;
            world.heal_all();
            time::sleep(3600 * SECOND).await;
            server.send_buf(filled(1, 1).await).await.unwrap();
            assert_eq!(recv(&client).await.unwrap(), 1);
            // A long one is.
            let began = time::now();
            world.partition_one_way(b, a);
            assert_eq!(recv(&client).await.unwrap_err().kind(), ErrorKind::TimedOut);
            let took = began.elapsed();
            assert!(60 * SECOND <= took && took <= 121 * SECOND, "{took:?}");
            world.heal_all();
            // A node that lost its power and is back knows nothing of the connection.
            let (client, _server) = pair_at(&world, a, b, 2).await;
            client.set_keep_alive(keep_alive).unwrap();
            world.power_off(b);
            time::sleep(SECOND).await;
            world.restart(b);
            let began = time::now();
            assert_eq!(recv(&client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(began.elapsed() <= 61 * SECOND);
        });
    }
}

/// Nothing is scheduled for a connection whose peer is there.
#[test]
fn a_deadlock_is_found_beside_keep_alive() {
    let hung = || {
        let (sim, a, b) = two_nodes(32);
        let world = sim.world();
        sim.block_on(async {
            let (client, _server) = pair(&world, a, b).await;
            client.set_keep_alive(KeepAlive { idle_s: 1, interval_s: 1, probes: 1 }).unwrap();
            recv(&client).await.unwrap();
        });
    };
    let panic = std::panic::catch_unwind(hung).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("deadlock"));
}
