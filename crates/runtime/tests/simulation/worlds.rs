//! Simulated worlds as a whole: same history for the same seed, jumping time, deadlock detection,
//! and an end at any moment.

use super::*;

/// A client and a server that communicate, sleep and write; everything ends in the history.
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
fn same_seed_gives_same_history() {
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
#[should_panic(expected = "deadlock: nothing can happen")]
fn deadlock_is_detected() {
    let (sim, a, _) = two_nodes(19);
    let address = port(&sim, a, 1);
    let stuck = sim.spawn_on(a, async move {
        Listener::bind(&address).unwrap().accept().await.unwrap();
    });
    sim.block_on(stuck).unwrap();
}

#[test]
fn hang_is_reported_with_operations_in_flight() {
    let config = SimConfig { time_limit: 60 * SECOND, ..SimConfig::default() };
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
fn end_of_world_drops_everything() {
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

/// Shuts a stream down when dropped, as many destructors do.
struct Hangup(Stream);

impl Drop for Hangup {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Found by a failing test whose report was followed by a second panic. Operations that the end of
/// the world had cancelled were still queued at their connections, and ended once more when a
/// destructor shut the connection down.
#[test]
fn world_can_be_dropped_at_any_time() {
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
                // More than the buffers of the path hold: sends wait on both sides.
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

/// No event is scheduled for a connection whose peer answers.
#[test]
fn deadlock_is_detected_with_keep_alive() {
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
