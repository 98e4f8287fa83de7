//! Simulated nodes: process death, power loss, and work sent between cores.

use super::*;

#[test]
fn dropped_operation_is_cancelled() {
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
fn paused_process_continues_where_it_was() {
    let (sim, a, b) = two_nodes(7);
    let steps = Rc::new(Cell::new(0));
    let (counted, address, there) = (steps.clone(), port(&sim, a, 1), port(&sim, a, 1));
    sim.spawn_on(a, async move {
        task::spawn_detached(echo_server(there));
        loop {
            time::sleep(10 * MS).await;
            counted.set(counted.get() + 1);
        }
    });
    sim.run_for(105 * MS);
    sim.pause(a);
    let before = steps.get();
    assert_eq!(before, 10);
    // Its kernel accepts connections and takes data, which no program reads.
    let echoed = sim.spawn_on(b, async move {
        let stream = connect(&address).await;
        stream.send_buf(filled(10, 7).await).await.unwrap();
        recv(&stream).await.unwrap()
    });
    sim.run_for(SECOND);
    assert_eq!(steps.get(), before);
    assert!(!echoed.is_finished());
    sim.resume(a);
    sim.run_for(105 * MS);
    assert!((10..=11).contains(&(steps.get() - before)), "{}", steps.get());
    assert_eq!(sim.block_on(echoed).unwrap(), 10);
}

#[test]
fn paused_process_can_be_killed() {
    let (sim, a, _) = two_nodes(8);
    let start = || {
        sim.spawn_on(a, async {
            loop {
                time::sleep(MS).await;
            }
        })
    };
    let first = start();
    sim.run_for(5 * MS);
    sim.pause(a);
    sim.run_for(5 * MS);
    sim.crash(a);
    assert!(sim.block_on(first).is_err());
    sim.restart(a);
    let second = sim.spawn_on(a, async { time::sleep(MS).await });
    assert!(sim.block_on(second).is_ok(), "it is not paused any more");
}

#[test]
fn killed_process_ends_connections_and_frees_locks() {
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
fn lost_connection_of_dead_process_is_removed() {
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
fn powerless_node_is_silent_then_resets_connections() {
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
fn destructors_of_dying_node_are_harmless() {
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
fn work_sent_to_core_keeps_sender_node() {
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
