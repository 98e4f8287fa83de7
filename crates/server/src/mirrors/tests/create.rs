//! Tests of creating replicas: accepted, and refused because of a peer's replica, size, block size
//! or link version.

use flagstone_runtime::block_on;

use super::*;

/// Of two concurrent requests, one creates the replica and the other finds it.
#[test]
fn concurrent_creates_make_one_replica() {
    block_on(async {
        let [a, b] = two_nodes().await;
        for (node, role) in [(&a, ReplicaRole::Source), (&b, ReplicaRole::Target)] {
            let ask = || {
                let mirrored = node.mirrored.clone();
                flagstone_runtime::spawn(async move { mirrored.create(role, false, false).await })
            };
            let (first, second) = (ask(), ask());
            let made = [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()];
            assert_eq!(made.map(|made| made.already), [false, true]);
            assert_eq!(made[0].usable_bytes, made[1].usable_bytes);
        }
        a.is_in_sync().await;
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// An empty device has no traces, but a peer with a replica shows that this would be another
/// volume.
#[test]
fn create_source_is_refused_if_peer_has_replica() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(ReplicaRole::Source, false, false).await;
        let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("node-a has replica") && why.contains("--target"), "{why}");
        assert!(b.mirrored.mirror().is_none());
        b.mirrored.create(ReplicaRole::Source, true, false).await.unwrap();
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// The refusal names the node to upgrade.
#[test]
fn create_target_needs_common_link_version() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.versions.set(LinkVersions::new(5, 6).unwrap());
        a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(ReplicaRole::Target, false, false).await;
        let Err(CreateError::Refused(said)) = refused else { panic!("{refused:?}") };
        let part = "speaks versions 5 to 6 of the replication link, and this node versions 2 to 4: \
                    upgrade Flagstone on this node";
        assert!(said.contains(part), "{said}");
        assert!(b.mirrored.mirror().is_none());
        a.mirrored.end().await;
    })
    .unwrap();
}

/// Hosts would see different sizes on the two paths.
#[test]
fn create_target_refuses_other_size() {
    block_on(async {
        let a = listener();
        let source_port = port(&a);
        let source = Node::on(A, a, 1, "memory:64MiB").await;
        source.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        for (size, said) in [("memory:65MiB", "equal size"), ("memory:63MiB", "larger device")] {
            let target = Node::on(B, listener(), source_port, size).await;
            let refused = target.mirrored.create(ReplicaRole::Target, false, false).await;
            assert!(
                matches!(&refused, Err(CreateError::Refused(text)) if text.contains(said)),
                "{refused:?}"
            );
            assert!(target.mirrored.mirror().is_none());
        }
        source.mirrored.end().await;
    })
    .unwrap();
}

/// Hosts would see different block sizes on the two paths, and the target might reject their
/// writes.
#[test]
fn create_target_refuses_other_block_size() {
    block_on(async {
        for (ours, theirs) in [("4KiB", "512"), ("512", "4KiB")] {
            let a = listener();
            let source_port = port(&a);
            let text = |names: (&str, &str), port: u16, blocks: &str| {
                let volume = configuration(names, port, ("memory:64MiB", Some("memory:1MiB")));
                format!("{volume}block_size = \"{blocks}\"\n")
            };
            let source = Node::of(&text(A, 1, theirs), a).await;
            source.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
            let other = text(B, source_port, ours);
            let target = Node::of(&other, listener()).await;
            for dry_run in [true, false] {
                let refused = target.mirrored.create(ReplicaRole::Target, true, dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                for part in ["B on node-a", "B on node-b", "`block_size` in [volume.db]"] {
                    assert!(why.contains(part), "no `{part}`: {why}");
                }
            }
            assert!(target.mirrored.mirror().is_none());
            let same = text(B, source_port, theirs);
            let target = Node::of(&same, listener()).await;
            target.mirrored.create(ReplicaRole::Target, false, false).await.unwrap();
            target.mirrored.end().await;
            source.mirrored.end().await;
        }
    })
    .unwrap();
}

/// A target with another configured granularity is refused with the granularity that it needs.
#[test]
fn target_takes_granularity_of_source() {
    block_on(async {
        let (a, b) = (listener(), listener());
        let text = |name: &str, peer: &str, port: u16, granularity: &str| {
            format!(
                "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{port}\"\n\
                 [volume.db]\nmirror = {{ peer = \"{peer}\"{granularity} }}\n\
                 device = \"memory:64MiB\"\n"
            )
        };
        let fine = ", granularity = \"4KiB\"";
        let other = text("b", "a", port(&a), "");
        let texts = [text("a", "b", port(&b), fine), text("b", "a", port(&a), fine)];
        let [a, b] = [Node::of(&texts[0], a).await, Node::of(&texts[1], b).await];
        a.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        let coarse = Node::of(&other, listener()).await;
        let refused = coarse.mirrored.create(ReplicaRole::Target, false, false).await;
        let refused = refused.unwrap_err().to_string();
        for part in ["4KiB on the source and for 64KiB here", "granularity = \"4KiB\""] {
            assert!(refused.contains(part), "no `{part}`: {refused}");
        }
        coarse.mirrored.end().await;
        b.mirrored.create(ReplicaRole::Target, false, false).await.unwrap();
        a.is_in_sync().await;
        for node in [&a, &b] {
            let found = read_superblock(&node.mirrored.leg).await.unwrap();
            assert_eq!(found.geometry.bit_bytes, 4096);
        }
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// Devices that read as zeroes need no copy. A byte of data anywhere is found on either node, and a
/// source that was not checked has no such target.
#[test]
fn empty_devices_need_no_copy() {
    block_on(async {
        let (source, target) = (ReplicaRole::Source, ReplicaRole::Target);
        let [a, b] = two_nodes().await;
        let far = (40 << 20) + 5 * 4096;
        for (node, role) in [(&a, source), (&b, target)] {
            write(&node.mirrored.leg, far, 7).await.unwrap();
            let refused = node.mirrored.create_from(role, false, true, false).await;
            let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains(&format!("byte {far} is not zero")), "{why}");
            assert!(node.mirrored.mirror().is_none());
            write(&node.mirrored.leg, far, 0).await.unwrap();
            node.mirrored.create_from(role, false, true, false).await.unwrap();
        }
        a.is_in_sync().await;
        let status = a.mirrored.mirror().unwrap().status();
        assert_eq!(status.peers[0].resynced_bytes, 0);
        a.mirrored.end().await;
        b.mirrored.end().await;

        let [a, b] = two_nodes().await;
        a.mirrored.create(source, false, false).await.unwrap();
        let refused = b.mirrored.create_from(target, false, true, false).await;
        let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("was not created with --empty"), "{why}");
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}
