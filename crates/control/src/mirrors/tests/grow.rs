//! Volumes that grow while they are served.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use flagstone_blockdev::{Fault, FaultConfig, FaultControl};
use flagstone_nvmf::target::TargetConfig;
use flagstone_runtime::block_on;

use super::*;
use crate::mirrors::grow::Grown;
use crate::stack::open_device;

/// Two nodes, of these versions of the link, whose volume has grown over what was not zero, and with
/// it how much of it was copied then, in bytes.
async fn two_that_grew(versions: [Versions; 2]) -> ([Node; 2], Grown, u64) {
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
    assert_eq!((grown.from_bytes, grown.goes_on), (before, false));
    assert!(grown.to_bytes > 240 << 20, "{grown:?}");
    nodes[0].is_in_sync().await;
    let sizes = nodes.each_ref().map(|node| node.mirrored.mirror().unwrap().usable_bytes());
    assert_eq!(sizes, [grown.to_bytes; 2]);
    let status = nodes[0].mirrored.mirror().unwrap().status().peers[0];
    assert_eq!(read(&host, 100 << 20).await, Some(0));
    write(&host, 110 << 20, 9).await.unwrap();
    (nodes, grown, status.resync_total_bytes)
}

/// The source dies, and what was written and what nobody wrote is at its target.
async fn source_dies(nodes: [Node; 2]) {
    // It is gone as one whose process has died: nothing of it goes on.
    nodes[0].mirrored.mirror().unwrap().close();
    let has_source = || nodes[1].mirrored.mirror().unwrap().has_source();
    eventually("its death is noticed", || !has_source()).await;
    nodes[1].mirrored.mirror().unwrap().failover().await.unwrap();
    let host = nodes[1].mirrored.device();
    for (offset, byte) in [(8192, 7), (100 << 20, 0), (110 << 20, 9)] {
        assert_eq!(read(&host, offset).await, Some(byte), "at {offset}");
    }
    nodes[1].mirrored.end().await;
}

/// What is new is zeroed on both nodes before the volume grows, so that nothing of it is copied, and
/// the target is whole at once.
#[test]
fn a_volume_grows_into_zeroes_and_its_target_takes_over() {
    block_on(async {
        let (nodes, grown, copied) = two_that_grew([Versions::SPOKEN; 2]).await;
        assert!(grown.copied_to.is_empty(), "{grown:?}");
        // Bits that the first resync has cleared need not have reached the log's device yet.
        assert!(copied <= 64 << 20, "{copied} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// A node of the version before cannot be asked to zero what is new: it is told to the operator, and
/// copied.
#[test]
fn what_a_volume_grows_over_is_copied_to_a_node_of_the_version_before() {
    block_on(async {
        let before = Versions::new(2, 2).unwrap();
        let (nodes, grown, copied) = two_that_grew([Versions::SPOKEN, before]).await;
        assert_eq!(grown.copied_to, ["node-b"]);
        let new = grown.to_bytes - grown.from_bytes;
        assert!(copied >= new, "{copied} of {new} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// The device fails in the midst of growing, after the one mirror and before the other: the volume
/// comes back by itself, as large as it was.
#[test]
fn a_device_that_fails_while_the_volume_grows_is_opened_again() {
    block_on(async {
        let file = file(64 << 20);
        let folder = tempfile::tempdir().unwrap();
        // A log in a file, which cannot be opened twice.
        let log = folder.path().join("log");
        let config = parsed(&configuration(A, 1, (path(&file), log.to_str())));
        let spec = path(&file).parse().unwrap();
        let device = open_device(&spec, &Default::default()).await.unwrap();
        let (fault, control) = Fault::new(device, FaultConfig::default()).unwrap();
        let leg: SharedDevice = Arc::new(fault);
        let mirrored = Rc::new(Mirrored::over(&config, 0, leg, None).await.unwrap());
        let target = Target::new(TargetConfig::default()).unwrap();
        export(&target, &mirrored, mirrored.device(), &config);
        mirrored.start(&target, &caps(&config)).await.unwrap();
        mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let access = || target.subsystem_status(&mirrored.nqn).unwrap().ana;
        let device = mirrored.device();
        eventually("it serves", || access() == AnaState::OPTIMIZED).await;
        write(&device, 4096, 7).await.unwrap();
        let size_bytes = device.geometry().size_bytes;

        cut(&file, 96 << 20);
        // The mirror that ends only writes there; the one that takes its place reads first.
        let faults: [fn(&FaultControl, u64); 2] = [
            |control, from| control.fail_writes(from..u64::MAX),
            |control, from| control.fail_reads(from..u64::MAX),
        ];
        for fault in faults {
            fault(&control, size_bytes);
            let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await;
            assert!(failed.is_err_and(|error| error.contains("tried again")));
            assert_eq!(access(), AnaState::INACCESSIBLE);
            assert_eq!(read(&device, 4096).await, None);
            time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(access(), AnaState::INACCESSIBLE, "its device fails still");
            control.heal();
            eventually("it serves again", || access() == AnaState::OPTIMIZED).await;
            assert_eq!(device.geometry().size_bytes, size_bytes);
            assert_eq!(read(&device, 4096).await, Some(7));
        }
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
