//! Tests of roles: hosts find the volume at its source, and follow a switchover.

use std::cell::Cell;
use std::time::Duration;

use flagstone_mirror::state::status::MirrorState;
use flagstone_nvmf_host::MultipathDevice;
use flagstone_runtime::block_on;

use super::*;

#[test]
fn create_mirror_and_switch_over() {
    block_on(async {
        let [a, b] = two_nodes().await;
        let hosts = [a.mirrored.device(), b.mirrored.device()];
        // Without replicas hosts are rejected, and a target finds no peer to ask.
        assert_eq!([a.access(), b.access()], [AnaState::INACCESSIBLE; 2]);
        assert!(write(&hosts[0], 0, 1).await.is_err());
        let refused = b.mirrored.create(ReplicaRole::Target, false, false).await;
        assert!(matches!(refused, Err(CreateError::Refused(text)) if text.contains("node-a")));

        let planned = a.mirrored.create(ReplicaRole::Source, false, true).await.unwrap();
        assert!(a.mirrored.mirror().is_none());
        let made = a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        assert_eq!((made.usable_bytes, made.already), (planned.usable_bytes, false));
        assert_eq!(hosts[0].geometry().size_bytes, made.usable_bytes);
        eventually("the source serves", || a.access() == AnaState::OPTIMIZED).await;
        write(&hosts[0], 8192, 1).await.unwrap();
        assert!(a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap().already);

        let target = b.mirrored.create(ReplicaRole::Target, false, false).await.unwrap();
        let volume = |node: &Node| node.mirrored.mirror().unwrap().status().volume;
        assert_eq!((volume(&b), target.usable_bytes), (volume(&a), made.usable_bytes));
        a.is_in_sync().await;
        write(&hosts[0], 4096, 2).await.unwrap();
        assert_eq!(b.access(), AnaState::INACCESSIBLE);
        assert!(write(&hosts[1], 0, 9).await.is_err());

        b.mirrored.mirror().unwrap().switchover(0).await.unwrap();
        eventually("the other serves", || b.access() == AnaState::OPTIMIZED).await;
        eventually("this one does not", || a.access() == AnaState::INACCESSIBLE).await;
        assert_eq!(read(&hosts[1], 8192).await, Some(1));
        assert_eq!(read(&hosts[1], 4096).await, Some(2));
        eventually("in sync again", || b.state() == MirrorState::Mirroring).await;
        write(&hosts[1], 4096, 3).await.unwrap();
        assert!(write(&hosts[0], 0, 9).await.is_err());

        // A target with data is not overwritten without confirmation.
        a.mirrored.delete(false, false).await.unwrap();
        assert!(a.mirrored.mirror().is_none());
        let refused = a.mirrored.create(ReplicaRole::Target, false, false).await;
        assert!(matches!(refused, Err(CreateError::Refused(text)) if text.contains("not empty")));
        a.mirrored.create(ReplicaRole::Target, true, false).await.unwrap();
        write(&hosts[1], 0, 5).await.unwrap();
        eventually("the new replica is in sync", || b.state() == MirrorState::Mirroring).await;
        b.mirrored.end().await;
        a.mirrored.end().await;
    })
    .unwrap();
}

/// A host with both paths writes and reads while the role moves back and forth: it waits without
/// errors.
#[test]
fn switchover_causes_no_host_errors() {
    block_on(async {
        let nodes = two_nodes().await;
        mirror(&nodes).await;
        let addresses = nodes.iter().map(|node| node.address.clone()).collect();
        let options =
            HostOptions { loss_timeout: Duration::from_secs(60), ..HostOptions::default() };
        let host =
            MultipathDevice::connect(addresses, &nodes[0].mirrored.nqn, options).await.unwrap();
        let (done, rounds) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)));
        let (ended, counted, device): (_, _, SharedDevice) = (done.clone(), rounds.clone(), host);
        let writer = flagstone_runtime::spawn(async move {
            while !ended.get() {
                let round = counted.get() + 1;
                for block in 0..8 {
                    write(&device, block * 4096, round as u8).await.unwrap();
                }
                for block in 0..8 {
                    assert_eq!(read(&device, block * 4096).await, Some(round as u8));
                }
                device.flush().await.unwrap();
                counted.set(round);
            }
        });
        for turn in 0..6 {
            let (from, to) = (&nodes[turn % 2], &nodes[(turn + 1) % 2]);
            let before = rounds.get();
            eventually("some rounds", || rounds.get() > before + 2).await;
            from.is_in_sync().await;
            from.mirrored.mirror().unwrap().switchover(0).await.unwrap();
            eventually("it has gone over", || to.access() == AnaState::OPTIMIZED).await;
        }
        let before = rounds.get();
        eventually("some rounds", || rounds.get() > before + 2).await;
        done.set(true);
        writer.await.unwrap();
        for node in &nodes {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}
