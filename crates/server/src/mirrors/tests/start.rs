//! Tests of starting mirrors: success, transient failures, and replicas of other volumes.

use flagstone_blockdev::{FaultConfig, FaultControl, FaultLayer, MemoryDevice};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{block_on, buf};

use super::*;
use crate::signals::Signals;

/// A replica that cannot be served to peers does not keep running.
#[test]
fn unservable_mirror_is_closed() {
    block_on(async {
        let [a, b] = two_nodes().await;
        let nqn = a.mirrored.replica_nqn;
        a.target.add_subsystem(subsystem(nqn)).unwrap();
        let held = Arc::strong_count(&a.mirrored.leg);
        let failed = a.mirrored.create(ReplicaRole::Source, false, false).await;
        assert!(matches!(failed, Err(CreateError::Failed(_))), "{failed:?}");
        assert!(a.mirrored.mirror().is_none());
        eventually("its tasks end", || Arc::strong_count(&a.mirrored.leg) == held).await;
        drop(b);
    })
    .unwrap();
}

/// After a failed start, the mirror can be started again when its devices answer. An unreachable
/// device is transient, and a log on it is not lost.
#[test]
fn failed_start_leaves_nothing_behind() {
    block_on(async {
        let places = ("memory:64MiB", Some("nbd://127.0.0.1:1/log"));
        let config = parsed(&configuration(A, 1, places));
        let faulty = |bytes| {
            let memory = Arc::new(MemoryDevice::new(bytes, 4096).unwrap());
            let (fault, control) = FaultLayer::new(memory, FaultConfig::default()).unwrap();
            (Arc::new(fault) as SharedDevice, control)
        };
        let ((leg, legs_faults), (log, logs_faults)) = (faulty(64 << 20), faulty(1 << 20));
        let target = Target::new(TargetConfig::default()).unwrap();
        let over = || MirroredVolume::over(&config, 0, leg.clone(), Some(log.clone()));
        let made = Rc::new(over().await.unwrap());
        target.add_subsystem(subsystem(made.nqn)).unwrap();
        made.start(&target, &mirror_shares(&config)).await.unwrap();
        made.create(ReplicaRole::Source, false, false).await.unwrap();
        write(&made.device(), 4096, 7).await.unwrap();
        let replica_nqn = made.replica_nqn;
        made.abandon().await;
        drop(made);

        type Inject = fn(&FaultControl);
        let faults: [(Inject, &FaultControl, bool); 4] = [
            (|control| control.set_unreachable(true), &legs_faults, true),
            (|control| control.set_unreachable(true), &logs_faults, true),
            (|control| control.fail_reads(0..u64::MAX), &legs_faults, false),
            // The replica opens, but its first write fails, after it was served to peers.
            (|control| control.fail_writes(0..u64::MAX), &legs_faults, false),
        ];
        for (fault, control, may_pass) in faults {
            let held = Arc::strong_count(&leg);
            let mirrored = Rc::new(over().await.unwrap());
            fault(control);
            let failed = mirrored.start(&target, &mirror_shares(&config)).await.unwrap_err();
            assert_eq!(failed.may_pass, may_pass, "{failed}");
            assert!(target.subsystem_status(&replica_nqn).is_err(), "{failed}");
            drop(mirrored);
            eventually("its tasks end", || Arc::strong_count(&leg) == held).await;
            control.heal();
        }
        let mirrored = Rc::new(over().await.unwrap());
        mirrored.start(&target, &mirror_shares(&config)).await.unwrap();
        let status = mirrored.mirror().unwrap().status();
        assert!(status.serving, "it was the source, and met nobody");
        assert_eq!(read(&mirrored.device(), 4096).await, Some(7));
        mirrored.abandon().await;
        drop(mirrored);
        let replica = Replica::open(leg.clone(), Some(log.clone())).await.unwrap();
        assert_eq!(replica.log_lost(), None);
        replica.retire().await;

        // A superblock of a later version does not count as a missing replica.
        let end = leg.geometry().size_bytes;
        for superblock in [end - 8192, end - 4096] {
            let mut page = leg.read(superblock, buf::acquire(4096).await.unwrap()).await.unwrap();
            page[8] += 1;
            leg.write(superblock, page.freeze(), true).await.unwrap();
        }
        let later = Rc::new(over().await.unwrap());
        let failed = later.start(&target, &mirror_shares(&config)).await.unwrap_err();
        assert!(failed.to_string().contains("later version"), "{failed}");
    })
    .unwrap();
}

/// A source whose peer's name cannot be resolved serves as with an unreachable peer.
#[test]
fn unresolved_peer_name_does_not_block_source() {
    block_on(async {
        // RFC 6761: a reserved name that never resolves.
        let text = "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"node-b.invalid\"\ninsecure = true\n\
                    [volume.db]\nmirror = { peer = \"node-b\", intent_log = \"memory:1MiB\" }\n\
                    device = \"memory:64MiB\"\n";
        let node = Node::of(text, listener()).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        write(&node.mirrored.device(), 4096, 1).await.unwrap();
        let unknown = || {
            let status = node.mirrored.mirror().unwrap().status();
            status.peers[0].link.is_name_unknown
        };
        eventually("the name was looked up", unknown).await;
        let refused = node.mirrored.delete(false, true).await;
        assert!(matches!(refused, Err(CreateError::Refused(_))), "it serves: {refused:?}");
        node.mirrored.end().await;
    })
    .unwrap();
}

/// After an exchange of two volumes' devices, hosts of one would find the data of the other.
#[test]
fn replica_of_another_volume_is_not_served() {
    block_on(async {
        let file = file(64 << 20);
        let text = |volume: &str| {
            let db = configuration(A, 1, (path(&file), None));
            db.replace("[volume.db]", &format!("[volume.{volume}]"))
        };
        let db = Node::of(&text("db"), listener()).await;
        db.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        db.serves().await;
        db.stop().await;
        let other = Node::of(&text("other"), listener()).await;
        let missing = other.mirrored.missing().expect("it is another's");
        assert!(missing.contains("of another volume") && missing.contains("by-id"), "{missing}");
        assert_eq!(other.access(), AnaState::INACCESSIBLE);
        let refused = other.mirrored.create(ReplicaRole::Source, false, false).await;
        assert!(matches!(&refused, Err(CreateError::Refused(why)) if why.contains(&*missing)));
        other.stop().await;
        let db = Node::of(&text("db"), listener()).await;
        db.serves().await;
        db.mirrored.end().await;
    })
    .unwrap();
}

/// A source that lost its peer asks it before it serves. A host without native multipath that was
/// admitted meanwhile would fail its I/O within milliseconds.
#[test]
fn hosts_are_admitted_when_peers_were_asked() {
    block_on(async {
        let (disk, far) = (file(64 << 20), file(64 << 20));
        let (a, b) = (listener(), listener());
        let text = configuration(A, port(&b), (path(&disk), None));
        let far = configuration(B, port(&a), (path(&far), None));
        let nodes = [Node::of(&text, a).await, Node::of(&far, b).await];
        mirror(&nodes).await;
        let [a, b] = nodes;
        // Writes continue without the peer, whose data is outdated then.
        b.mirrored.abandon().await;
        drop(b);
        write(&a.mirrored.device(), 4096, 1).await.unwrap();
        a.stop().await;

        let opened = crate::serve::open(parsed(&text), &Signals::catch().unwrap()).await;
        let server = opened.unwrap().expect("it was not stopped");
        let mirrored = server.mirror_of(0).unwrap();
        let status = || server.target.subsystem_status(&mirrored.nqn).unwrap();
        assert!(!mirrored.questions().is_empty(), "it asks its peer");
        assert!(status().is_suspended && status().ana == AnaState::INACCESSIBLE);
        mirrored.questions().answered().await;
        assert_eq!(status().ana, AnaState::OPTIMIZED);
        eventually("hosts are admitted", || !status().is_suspended).await;
        mirrored.end().await;
    })
    .unwrap();
}
