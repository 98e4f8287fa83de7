//! Simulated network failures: partitions, resets, and lost peers.

use super::*;

#[test]
fn partition_holds_data_back_until_healed() {
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
fn long_partition_times_out_sender_only() {
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
        // The server gets no notice until it sends.
        let buf = buf::alloc(10).await;
        assert!(time::timeout(3600 * SECOND, server.recv(buf)).await.is_err());
        server.send_buf(filled(10, 1).await).await.unwrap();
        assert_eq!(recv(&server).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn lost_acknowledgements_fill_sender() {
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
fn keep_alive_detects_lost_peer_only() {
    let keep_alive = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };
    for seed in 0..20 {
        let (sim, a, b) = two_nodes(seed);
        let world = sim.world();
        sim.block_on(async {
            let (client, server) = pair(&world, a, b).await;
            client.set_keep_alive(keep_alive).unwrap();
            // A short partition does not break the connection, and neither does silence.
            world.partition(a, b);
            time::sleep(30 * SECOND).await;
            world.heal_all();
            time::sleep(3600 * SECOND).await;
            server.send_buf(filled(1, 1).await).await.unwrap();
            assert_eq!(recv(&client).await.unwrap(), 1);
            // A long one breaks it.
            let began = time::now();
            world.partition_one_way(b, a);
            assert_eq!(recv(&client).await.unwrap_err().kind(), ErrorKind::TimedOut);
            let took = began.elapsed();
            assert!(60 * SECOND <= took && took <= 121 * SECOND, "{took:?}");
            world.heal_all();
            // After a power loss and restart, a node does not know the connection.
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
