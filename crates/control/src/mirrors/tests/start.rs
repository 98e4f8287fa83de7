//! Mirrors that a server starts, those that it cannot start yet, and replicas that are not the
//! volume's.

use flagstone_blockdev::{Fault, FaultConfig, FaultControl, MemoryDevice};
use flagstone_nvmf::target::TargetConfig;
use flagstone_runtime::{block_on, buf};

use super::*;

/// A replica that cannot be served to peers is not left running, unseen.
#[test]
fn a_mirror_that_cannot_be_served_is_closed() {
    block_on(async {
        let [a, b] = two_nodes().await;
        let nqn = a.mirrored.replica_nqn;
        a.target.add_subsystem(subsystem(nqn)).unwrap();
        let held = Arc::strong_count(&a.mirrored.leg);
        let failed = a.mirrored.create(CreateRole::Source, false, false).await;
        assert!(matches!(failed, Err(CreateError::Failed(_))), "{failed:?}");
        assert!(a.mirrored.mirror().is_none());
        eventually("its tasks end", || Arc::strong_count(&a.mirrored.leg) == held).await;
        drop(b);
    })
    .unwrap();
}

/// A mirror that could not be started has left nothing behind, so another is started over its devices
/// as soon as they answer. What cannot be reached may pass, and a log there is not lost.
#[test]
fn a_mirror_that_does_not_start_is_started_anew() {
    block_on(async {
        let places = ("memory:64MiB", Some("nbd://127.0.0.1:1/log"));
        let config = parsed(&configuration(A, 1, places));
        let faulty = |bytes| {
            let memory = Arc::new(MemoryDevice::new(bytes, 4096).unwrap());
            let (fault, control) = Fault::new(memory, FaultConfig::default()).unwrap();
            (Arc::new(fault) as SharedDevice, control)
        };
        let ((leg, legs_faults), (log, logs_faults)) = (faulty(64 << 20), faulty(1 << 20));
        let target = Target::new(TargetConfig::default()).unwrap();
        let over = || Mirrored::over(&config, 0, leg.clone(), Some(log.clone()));
        let made = Rc::new(over().await.unwrap());
        target.add_subsystem(subsystem(made.nqn)).unwrap();
        made.start(&target, &caps(&config)).await.unwrap();
        made.create(CreateRole::Source, false, false).await.unwrap();
        write(&made.device(), 4096, 7).await.unwrap();
        let replica_nqn = made.replica_nqn;
        made.give_up().await;
        drop(made);

        type Inject = fn(&FaultControl);
        let faults: [(Inject, &FaultControl, bool); 4] = [
            (|control| control.set_unreachable(true), &legs_faults, true),
            (|control| control.set_unreachable(true), &logs_faults, true),
            (|control| control.fail_reads(0..u64::MAX), &legs_faults, false),
            // Opened, and not to be begun with: it serves its peers by then.
            (|control| control.fail_writes(0..u64::MAX), &legs_faults, false),
        ];
        for (fault, control, may_pass) in faults {
            let held = Arc::strong_count(&leg);
            let mirrored = Rc::new(over().await.unwrap());
            fault(control);
            let failed = mirrored.start(&target, &caps(&config)).await.unwrap_err();
            assert_eq!(failed.may_pass, may_pass, "{failed}");
            assert!(target.subsystem_status(&replica_nqn).is_err(), "{failed}");
            drop(mirrored);
            eventually("its tasks end", || Arc::strong_count(&leg) == held).await;
            control.heal();
        }
        let mirrored = Rc::new(over().await.unwrap());
        mirrored.start(&target, &caps(&config)).await.unwrap();
        let status = mirrored.mirror().unwrap().status();
        assert!(status.active, "it was the source, and met nobody");
        assert_eq!(read(&mirrored.device(), 4096).await, Some(7));
        mirrored.give_up().await;
        drop(mirrored);
        let replica = Replica::open(leg.clone(), Some(log.clone())).await.unwrap();
        assert_eq!(replica.lost(), None);
        replica.retire().await;

        // One that this version does not know is not taken for none, over which another is made.
        let end = leg.geometry().size_bytes;
        for superblock in [end - 8192, end - 4096] {
            let mut page = leg.read(superblock, buf::acquire(4096).await.unwrap()).await.unwrap();
            page[8] += 1;
            leg.write(superblock, page.freeze(), true).await.unwrap();
        }
        let later = Rc::new(over().await.unwrap());
        let failed = later.start(&target, &caps(&config)).await.unwrap_err();
        assert!(failed.to_string().contains("later version"), "{failed}");
    })
    .unwrap();
}

/// A name server that is not up yet is no reason not to serve: a source whose peer's name nobody knows
/// is one whose peer cannot be reached.
#[test]
fn a_peer_whose_name_nobody_knows_is_waited_for() {
    block_on(async {
        // RFC 6761: never a name of anything.
        let text = "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"node-b.invalid\"\n\
                    [volume.db]\nmirror = { peer = \"node-b\", bitmap = \"memory:1MiB\" }\n\
                    device = \"memory:64MiB\"\n";
        let node = Node::of(text, listener()).await;
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
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

/// Two volumes of a server whose devices were exchanged for each other: hosts of the one would find
/// the data of the other.
#[test]
fn the_replica_of_another_volume_is_not_served() {
    block_on(async {
        let file = file(64 << 20);
        let text = |volume: &str| {
            let db = configuration(A, 1, (path(&file), None));
            db.replace("[volume.db]", &format!("[volume.{volume}]"))
        };
        let db = Node::of(&text("db"), listener()).await;
        db.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        db.serves().await;
        db.stop().await;
        let other = Node::of(&text("other"), listener()).await;
        let missing = other.mirrored.missing().expect("it is another's");
        assert!(missing.contains("of another volume") && missing.contains("by-id"), "{missing}");
        assert_eq!(other.access(), AnaState::INACCESSIBLE);
        let refused = other.mirrored.create(CreateRole::Source, false, false).await;
        assert!(matches!(&refused, Err(CreateError::Refused(why)) if why.contains(&*missing)));
        other.stop().await;
        let db = Node::of(&text("db"), listener()).await;
        db.serves().await;
        db.mirrored.end().await;
    })
    .unwrap();
}
