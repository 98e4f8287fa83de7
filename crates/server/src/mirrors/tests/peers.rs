//! Tests of peers that are added and removed at run time.

use flagstone_blockdev::MemoryDevice;
use flagstone_mirror::ondisk::superblock::{Member, MemberChange};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{block_on, spawn};

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
            async move { mirrored.add_peer(name, address.as_deref(), false).await }
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
        assert!(removed.outcome.contains("node-c was not told"), "{}", removed.outcome);
        waits.await.unwrap().unwrap();
        nodes[0].is_in_sync().await;
        assert_eq!(nodes[0].mirrored.peers(), ["node-b"]);
        for node in nodes {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}

/// A record counts until the file agrees: it does not take effect again after another change of the file.
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
