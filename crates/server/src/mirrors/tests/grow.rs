//! Tests of online growth.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use flagstone_blockdev::{FaultConfig, FaultLayer};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::task::yield_now;
use flagstone_runtime::{block_on, spawn, time};

use super::*;
use crate::mirrors::grow::Grown;
use flagstone_stack::open_device;

/// Two nodes with these link versions whose volume has grown over nonzero data, the outcome, and
/// the bytes copied for it.
async fn two_that_grew(versions: [LinkVersions; 2]) -> ([Node; 2], Grown, u64) {
    const NEW: u64 = 256 << 20;
    let files = [(); 2].map(|()| file(64 << 20));
    let nodes = two_nodes_on(files.each_ref().map(path)).await;
    nodes.iter().zip(versions).for_each(|(node, versions)| node.mirrored.versions.set(versions));
    mirror(&nodes).await;
    let host = nodes[0].mirrored.device();
    write(&host, 8192, 7).await.unwrap();
    let before = host.geometry().size_bytes;
    for (file, rest) in files.iter().zip([0xaa, 0xbb]) {
        cut(file, NEW);
        file.as_file().write_all_at(&vec![rest; 1 << 20], 100 << 20).unwrap();
    }
    let foreseen = nodes[0].mirrored.grow(None, true).await.unwrap();
    let grown = nodes[0].mirrored.grow(None, false).await.unwrap();
    assert_eq!(grown, foreseen);
    assert_eq!((grown.from_bytes, grown.in_progress), (before, false));
    assert!(grown.to_bytes > 240 << 20, "{grown:?}");
    nodes[0].is_in_sync().await;
    let sizes = nodes.each_ref().map(|node| node.mirrored.mirror().unwrap().usable_bytes());
    assert_eq!(sizes, [grown.to_bytes; 2]);
    let status = nodes[0].mirrored.mirror().unwrap().status().peers[0];
    assert_eq!(read(&host, 100 << 20).await, Some(0));
    write(&host, 110 << 20, 9).await.unwrap();
    (nodes, grown, status.resync_total_bytes)
}

/// After the death of the source, its target has all written data, and zeroes elsewhere.
async fn source_dies(nodes: [Node; 2]) {
    // Like the death of its process: nothing continues, and nothing answers.
    nodes[0].mirrored.mirror().unwrap().close();
    nodes[0].target.drain();
    nodes[0].target.disconnect_all();
    let has_source = || nodes[1].mirrored.mirror().unwrap().has_source();
    eventually("its death is noticed", || !has_source()).await;
    nodes[1].mirrored.mirror().unwrap().failover().await.unwrap();
    let host = nodes[1].mirrored.device();
    for (offset, byte) in [(8192, 7), (100 << 20, 0), (110 << 20, 9)] {
        assert_eq!(read(&host, offset).await, Some(byte), "at {offset}");
    }
    nodes[1].mirrored.end().await;
}

/// Both nodes zero the new space before the volume grows, so that nothing is copied and the target
/// is consistent at once.
#[test]
fn growth_zeroes_new_space_and_target_can_take_over() {
    block_on(async {
        let (nodes, grown, copied) = two_that_grew([LinkVersions::SPOKEN; 2]).await;
        assert!(grown.copied_to.is_empty(), "{grown:?}");
        // The log device may not have the bits cleared by the first resync yet.
        assert!(copied <= 64 << 20, "{copied} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// A node of the previous version cannot zero the new space: it is copied, and the outcome names
/// it.
#[test]
fn growth_copies_new_space_to_older_version() {
    block_on(async {
        let before = LinkVersions::new(2, 2).unwrap();
        let (nodes, grown, copied) = two_that_grew([LinkVersions::SPOKEN, before]).await;
        assert_eq!(grown.copied_to, ["node-b"]);
        let new = grown.to_bytes - grown.from_bytes;
        assert!(copied >= new, "{copied} of {new} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// The device fails between the old and the new mirror: the volume returns automatically with its
/// old size.
#[test]
fn device_failure_during_growth_keeps_old_size() {
    block_on(async {
        let file = file(64 << 20);
        let folder = tempfile::tempdir().unwrap();
        // A log file, which cannot be opened twice.
        let log = folder.path().join("log");
        let config = parsed(&configuration(A, 1, (path(&file), log.to_str())));
        let spec = path(&file).parse().unwrap();
        let device = open_device(&spec, &Default::default()).await.unwrap();
        let (fault, control) = FaultLayer::new(device, FaultConfig::default()).unwrap();
        let leg: SharedDevice = Arc::new(fault);
        let mirrored = Rc::new(MirroredVolume::over(&config, 0, leg, None).await.unwrap());
        let target = Target::new(TargetConfig::default()).unwrap();
        export(&target, &mirrored, mirrored.device(), &config);
        mirrored.start(&target, &mirror_shares(&config)).await.unwrap();
        mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let access = || target.subsystem_status(&mirrored.nqn).unwrap().ana;
        let device = mirrored.device();
        eventually("it serves", || access() == AnaState::OPTIMIZED).await;
        write(&device, 4096, 7).await.unwrap();
        let size_bytes = device.geometry().size_bytes;

        cut(&file, 96 << 20);
        // The old mirror writes there before it ends: then nothing changes.
        control.fail_writes(size_bytes..u64::MAX);
        let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await;
        assert!(failed.is_err_and(|error| error.contains("write fault")));
        control.heal();
        eventually("it serves", || access() == AnaState::OPTIMIZED).await;
        assert_eq!(read(&device, 4096).await, Some(7));
        // The new mirror reads there first.
        control.fail_reads(size_bytes..u64::MAX);
        let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await;
        assert!(failed.is_err_and(|error| error.contains("is retried")));
        assert_eq!(access(), AnaState::INACCESSIBLE);
        assert_eq!(read(&device, 4096).await, None);
        time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(access(), AnaState::INACCESSIBLE, "its device fails still");
        control.heal();
        eventually("it serves again", || access() == AnaState::OPTIMIZED).await;
        assert_eq!(device.geometry().size_bytes, size_bytes);
        assert_eq!(read(&device, 4096).await, Some(7));
        mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await.unwrap();
        assert_eq!(read(&device, 4096).await, Some(7));
        assert_eq!(device.geometry().size_bytes, size_bytes + (1 << 20));

        control.fail_reads(size_bytes..u64::MAX);
        let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (2 << 20)).await;
        assert!(failed.is_err());
        mirrored.end().await;
        control.heal();
        time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(access(), AnaState::INACCESSIBLE, "it has ended, and is not opened again");
    })
    .unwrap();
}

/// The device of the target was enlarged, and made smaller again before the volume grew. Its space
/// counts as it is, without a restart.
#[test]
fn space_that_is_gone_is_not_announced() {
    block_on(async {
        let files = [(); 2].map(|()| file(64 << 20));
        let nodes = two_nodes_on(files.each_ref().map(path)).await;
        mirror(&nodes).await;
        let size = nodes[0].mirrored.mirror().unwrap().usable_bytes();
        let room = async || nodes[0].mirrored.grow(None, true).await.unwrap();
        for (enlarged, other) in [(0, 1), (1, 0)] {
            cut(&files[other], 512 << 20);
            cut(&files[enlarged], 256 << 20);
            let foreseen = room().await;
            assert!(foreseen.to_bytes > 240 << 20, "{foreseen:?}");
            cut(&files[enlarged], 64 << 20);
            let foreseen = room().await;
            let smallest = ["node-a", "node-b"][enlarged];
            assert_eq!((foreseen.to_bytes, foreseen.smallest.as_str()), (size, smallest));
            let refused = nodes[0].mirrored.grow(Some(200 << 20), false).await;
            assert!(matches!(refused, Err(CreateError::Refused(why)) if why.contains(smallest)));
            assert_eq!(files[enlarged].as_file().metadata().unwrap().len(), 64 << 20);
        }
        files.iter().for_each(|file| cut(file, 128 << 20));
        let grown = nodes[0].mirrored.grow(None, false).await.unwrap();
        assert!((120 << 20..128 << 20).contains(&grown.to_bytes), "{grown:?}");
        nodes[0].is_in_sync().await;
        for node in nodes {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}

/// The log has a device of its own that is too small for more. It is enlarged while the volume is
/// served.
#[test]
fn enlarged_log_device_is_noticed() {
    block_on(async {
        let data = file(64 << 20);
        let node = Node::alone((path(&data), Some("memory:1MiB"))).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let mirror = node.mirrored.mirror().unwrap();
        cut(&data, 128 << 20);
        let room = mirror.room_bytes();
        assert!(room > 120 << 20, "{room}");
        // As if the device had been smaller at the start.
        mirror.set_log_room(mirror.usable_bytes());
        assert_eq!(mirror.room_bytes(), mirror.usable_bytes());
        eventually("its present size is asked for", || mirror.room_bytes() == room).await;
        node.mirrored.end().await;
    })
    .unwrap();
}

/// A server that stops while the mirror is being replaced closed the old mirror, and the new one
/// served on.
#[test]
fn stop_during_growth_ends_the_new_mirror() {
    block_on(async {
        let (mut grew, mut kept) = (0, 0);
        for turns in 0..80 {
            let data = file(64 << 20);
            let node = Node::alone((path(&data), Some("memory:1MiB"))).await;
            let mirrored = node.mirrored.clone();
            mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
            let device = mirrored.device();
            eventually("it serves", || node.access() == AnaState::OPTIMIZED).await;
            let size_bytes = device.geometry().size_bytes;
            cut(&data, 66 << 20);
            let (own, wanted) = (mirrored.clone(), size_bytes + (1 << 20));
            let mirror = mirrored.mirror().unwrap();
            let grows = spawn(async move { own.resize(&mirror, wanted).await });
            for _ in 0..turns {
                yield_now().await;
            }
            mirrored.end().await;
            match grows.await.unwrap() {
                Ok(()) => grew += 1,
                Err(_) => kept += 1,
            }
            assert!(mirrored.has_ended(), "after {turns} turns");
            assert_eq!(read(&device, 0).await, None, "after {turns} turns");
            mirrored.abandon().await;
        }
        println!("{grew} {kept}");
    })
    .unwrap();
}
