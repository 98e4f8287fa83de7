//! Tests of peers that are added and removed at run time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flagstone_blockdev::stats::CallKind;
use flagstone_blockdev::{IoFuture, Layer, MemoryDevice};
use flagstone_mirror::manage::replica::ReplicaError;
use flagstone_mirror::ondisk::member::{Member, MemberChange};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{block_on, spawn, time};
use flagstone_stack::open_device;

use super::*;
use crate::mirrors::peers::PeersChanged;

fn refusal(changed: Result<PeersChanged, CreateError>) -> String {
    match changed {
        Err(CreateError::Refused(why)) => why,
        other => panic!("it is not refused: {other:?}"),
    }
}

#[test]
fn unsuitable_peers_are_refused() {
    block_on(async {
        let a = Node::alone(("memory:64MiB", Some("memory:1MiB"))).await;
        let foreign = listener();
        let at = port(&foreign);
        let names = ("node-c", "node-a");
        let foreign = Node::of(&configuration(names, 1, ("memory:64MiB", None)), foreign).await;
        let add = |name: &'static str, address: Option<String>| {
            let mirrored = a.mirrored.clone();
            async move { mirrored.add_peer(name, address.as_deref(), |_| true, false).await }
        };
        assert!(refusal(add("node-c", None).await).contains("not open"));
        a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        foreign.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let reached = Some(format!("127.0.0.1:{at}"));
        for (name, address, why) in [
            ("node-c", None, "--address"),
            ("node-c", Some("a b".to_owned()), "peer `node-c`"),
            ("node-a", reached.clone(), "this node itself"),
            ("node-aa", reached.clone(), "sorts before node-b"),
            ("node-b", reached.clone(), "already"),
            ("node-c", reached, "another volume"),
        ] {
            let found = refusal(add(name, address).await);
            assert!(found.contains(why), "{name}: {found}");
        }
        assert!(refusal(a.mirrored.remove_peer("node-b", false).await).contains("the only peer"));
        assert!(!a.mirrored.remove_peer("node-x", false).await.unwrap().changed);
        let silent = || add("node-d", Some("127.0.0.1:1".to_owned()));
        assert!(silent().await.unwrap().changed, "it need not answer yet");
        assert!(!silent().await.unwrap().changed);
        assert_eq!(a.mirrored.peers(), ["node-b", "node-d"]);
        let third = add("node-e", Some("127.0.0.1:1".to_owned())).await;
        assert!(refusal(third).contains("the most"));
        for node in [a, foreign] {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}

/// A dead peer can be removed although hosts' writes wait for it.
#[test]
fn removal_releases_writes_that_wait_for_the_peer() {
    block_on(async {
        let (a, b) = (listener(), listener());
        let (port_a, port_b) = (port(&a), port(&b));
        let text = format!(
            "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"127.0.0.1:{port_b}\"\n\
             [peer.node-c]\naddress = \"127.0.0.1:1\"\n[volume.db]\ndevice = \"memory:64MiB\"\n\
             mirror = {{ peers = [\"node-b\", \"node-c\"], on_peer_loss = \"block\" }}\n"
        );
        let nodes = [Node::of(&text, a).await, Node::on(B, b, port_a, "memory:64MiB").await];
        mirror(&nodes).await;
        let device = nodes[0].mirrored.device();
        let waits = spawn(async move { write(&device, 4096, 7).await });
        let blocked = || nodes[0].mirrored.mirror().unwrap().status().blocked > 0;
        eventually("the write waits", blocked).await;
        let removed = nodes[0].mirrored.remove_peer("node-c", false).await.unwrap();
        assert!(removed.outcome.contains("node-c does not know"), "{}", removed.outcome);
        waits.await.unwrap().unwrap();
        nodes[0].is_in_sync().await;
        assert_eq!(nodes[0].mirrored.peers(), ["node-b"]);
        for node in nodes {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}

/// A record counts until the file agrees: it does not take effect again after another change of the
/// file.
#[test]
fn record_of_peer_is_forgotten_when_file_agrees() {
    block_on(async {
        let leg: SharedDevice = Arc::new(MemoryDevice::new(64 << 20, 4096).unwrap());
        let target = Target::new(TargetConfig::default()).unwrap();
        let config = parsed(&configuration(A, 1, ("memory:64MiB", None)));
        let over = || MirroredVolume::over(&config, 0, leg.clone(), None);
        let made = Rc::new(over().await.unwrap());
        target.add_subsystem(subsystem(made.nqn)).unwrap();
        made.start(&target, &mirror_shares(&config)).await.unwrap();
        made.create(ReplicaRole::Source, false, false).await.unwrap();
        made.abandon().await;
        let replica = Replica::open(leg.clone(), None).await.unwrap();
        let added = |name: &str| Member {
            name: name.into(),
            change: MemberChange::Added("127.0.0.1:1".into()),
        };
        let removed = Member { name: "node-x".into(), change: MemberChange::Removed };
        let members = vec![added("node-b"), removed, added("node-d")];
        replica.update(|superblock| superblock.members = members).await.unwrap();
        replica.retire().await;

        let again = Rc::new(over().await.unwrap());
        again.start(&target, &mirror_shares(&config)).await.unwrap();
        assert_eq!(again.peers(), ["node-b", "node-d"]);
        assert_eq!(again.mirror().unwrap().members(), [added("node-d")]);
        again.abandon().await;
    })
    .unwrap();
}

/// Log device whose calls wait while `hung` is set.
struct Hanging {
    device: SharedDevice,
    hung: Arc<AtomicBool>,
}

impl Layer for Hanging {
    fn child(&self) -> &SharedDevice {
        &self.device
    }

    fn pass<T: 'static>(
        &self,
        call: CallKind,
        _offset: u64,
        _len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let (device, hung) = (self.device.clone(), self.hung.clone());
        let changes = call != CallKind::Read;
        IoFuture::later(async move {
            while changes && hung.load(Ordering::SeqCst) {
                time::sleep(Duration::from_millis(1)).await;
            }
            make(&device).await
        })
    }
}

/// A move of the log was given up, and a write of it may still land: the replica is not opened by
/// another mirror, which would use the devices beside that write.
#[test]
fn late_writes_of_a_log_move_delay_other_changes() {
    block_on(async {
        let node = Node::alone(("memory:64MiB", None)).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let mirror = node.mirrored.mirror().unwrap();
        let hung = Arc::new(AtomicBool::new(true));
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, 4096).unwrap());
        let device: SharedDevice = Arc::new(Hanging { device, hung: hung.clone() });
        *node.mirrored.log_moves.borrow_mut() = mirror.log_moves();
        let (mover, to) = (mirror.clone(), Some(device.clone()));
        let moving = spawn(async move { mover.move_log(to, "elsewhere").await });
        let running = || node.mirrored.log_moves.borrow().are_running();
        eventually("the move runs", running).await;
        // The caller that moved the log may be gone; the move is not.
        assert!(!node.mirrored.moving_log.get());

        let busy = ReplicaError::LogBusy.to_string();
        let bytes = mirror.usable_bytes();
        let refused = node.mirrored.resize(&mirror, bytes).await.unwrap_err();
        assert!(refused.contains(&busy), "{refused}");
        let add = || node.mirrored.add_peer("node-d", Some("127.0.0.1:1"), |_| true, false);
        assert!(refusal(add().await).contains("is being changed"));
        let remove = node.mirrored.remove_peer("node-b", false).await;
        assert!(refusal(remove).contains("is being changed"));
        let again = node.mirrored.move_log(Some("/nowhere/log".parse().unwrap()), false).await;
        assert!(matches!(again, Err(CreateError::Refused(why)) if why.contains(&busy)));
        // Hosts are served meanwhile.
        write(&node.mirrored.device(), 4096, 7).await.unwrap();

        hung.store(false, Ordering::SeqCst);
        let _ = moving.await.unwrap();
        eventually("the move has ended", || !running()).await;
        node.mirrored.end().await;
    })
    .unwrap();
}

/// Regression: a move of the log began while the new peer was asked who it is. The peers changed
/// under it, and the replica was opened again with the old log.
#[test]
fn peers_do_not_change_when_another_change_has_begun() {
    block_on(async {
        let node = Node::alone(("memory:64MiB", Some("memory:1MiB"))).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let silent = listener();
        let (mirrored, at) = (node.mirrored.clone(), format!("127.0.0.1:{}", port(&silent)));
        let adding =
            spawn(async move { mirrored.add_peer("node-d", Some(&at), |_| true, false).await });
        let asked = silent.accept().await.unwrap();
        node.mirrored.moving_log.set(true);
        drop((asked, silent));
        assert!(refusal(adding.await.unwrap()).contains("is being changed"));
        node.mirrored.moving_log.set(false);
        assert_eq!(node.mirrored.peers(), ["node-b"]);
        node.mirrored.end().await;
    })
    .unwrap();
}

/// Regression: the source of a target asked it to grow while it was being deleted. The mirror that
/// replaced the old one was not deleted.
#[test]
fn deletion_keeps_other_changes_out() {
    block_on(async {
        let file = file(64 << 20);
        let node = Node::alone((path(&file), Some("memory:1MiB"))).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        let mirror = node.mirrored.mirror().unwrap();
        let hung = Arc::new(AtomicBool::new(false));
        node.mirrored.reopenable.close();
        let device = open_device(&path(&file).parse().unwrap(), &Default::default()).await;
        let device = device.unwrap();
        let device = Arc::new(Hanging { device, hung: hung.clone() });
        node.mirrored.reopenable.set(device).unwrap();
        hung.store(true, Ordering::SeqCst);
        let mirrored = node.mirrored.clone();
        let deleting = spawn(async move { mirrored.delete(true, false).await });
        eventually("the deletion runs", || node.mirrored.growing.get()).await;
        let refused = node.mirrored.resize(&mirror, mirror.usable_bytes()).await;
        assert!(refused.unwrap_err().contains("already"));
        hung.store(false, Ordering::SeqCst);
        deleting.await.unwrap().unwrap();
        assert!(node.mirrored.mirror().is_none() && !node.mirrored.growing.get());
    })
    .unwrap();
}
