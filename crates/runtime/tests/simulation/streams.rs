//! Simulated streams: order of data, back-pressure, start and end.

use super::*;

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
fn slow_receiver_causes_back_pressure() {
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
fn connect_is_refused_or_times_out() {
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
fn addresses_are_exclusive_and_freed() {
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
fn closed_stream_ends_then_resets_late_sender() {
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
fn shutdown_receiving_ends_after_arrived_data() {
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
fn shutdown_sending_ends_after_sent_data() {
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
fn aborted_connection_resets_peer() {
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
