//! Replicas that are made, and those that are not: beside a peer's, or of another size, other blocks or
//! other versions of the link than its source has.

use flagstone_runtime::block_on;

use super::*;

/// Of two that ask at a time one makes the replica, and the other finds it: it is made once.
#[test]
fn a_replica_is_made_once_though_two_ask_for_it_at_a_time() {
    block_on(async {
        let [a, b] = two_nodes().await;
        for (node, role) in [(&a, CreateRole::Source), (&b, CreateRole::Target)] {
            let ask = || {
                let mirrored = node.mirrored.clone();
                flagstone_runtime::spawn(async move { mirrored.create(role, false, false).await })
            };
            let (first, second) = (ask(), ask());
            let made = [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()];
            assert_eq!(made.map(|made| made.already), [false, true]);
            assert_eq!(made[0].replica, made[1].replica);
        }
        a.is_in_sync().await;
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// An empty device tells nothing, but a peer that has a replica does: what would be made beside it is
/// another volume.
#[test]
fn a_volume_that_a_peer_has_is_not_begun_anew() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(CreateRole::Source, false, false).await;
        let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("node-a has replica") && why.contains("--target"), "{why}");
        assert!(b.mirrored.mirror().is_none());
        b.mirrored.create(CreateRole::Source, true, false).await.unwrap();
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// Nothing is made of what a node says that speaks no version of the link that this one does, and the
/// operator is told which of the two is behind.
#[test]
fn a_target_of_versions_too_far_from_its_source_is_not_made() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.versions.set(Versions::new(4, 6).unwrap());
        a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(CreateRole::Target, false, false).await;
        let Err(CreateError::Refused(said)) = refused else { panic!("{refused:?}") };
        let part = "speaks versions 4 to 6 of the replication link, and this node versions 2 to 3: \
                    upgrade Flagstone on this node";
        assert!(said.contains(part), "{said}");
        assert!(b.mirrored.mirror().is_none());
        a.mirrored.end().await;
    })
    .unwrap();
}

/// Hosts would see another size by each path.
#[test]
fn a_target_of_another_size_is_refused() {
    block_on(async {
        let a = listener();
        let source_port = port(&a);
        let source = Node::on(A, a, 1, "memory:64MiB").await;
        source.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        for (size, said) in [("memory:65MiB", "one size"), ("memory:63MiB", "larger one")] {
            let target = Node::on(B, listener(), source_port, size).await;
            let refused = target.mirrored.create(CreateRole::Target, false, false).await;
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

/// Hosts would see other blocks by each path, and the target's device may not take what they write.
#[test]
fn a_target_of_other_blocks_is_refused() {
    block_on(async {
        for (ours, theirs) in [("4KiB", "512"), ("512", "4KiB")] {
            let a = listener();
            let source_port = port(&a);
            let text = |names: (&str, &str), port: u16, blocks: &str| {
                let volume = configuration(names, port, ("memory:64MiB", Some("memory:1MiB")));
                format!("{volume}block_size = \"{blocks}\"\n")
            };
            let source = Node::of(&text(A, 1, theirs), a).await;
            source.mirrored.create(CreateRole::Source, false, false).await.unwrap();
            let other = text(B, source_port, ours);
            let target = Node::of(&other, listener()).await;
            for dry_run in [true, false] {
                let refused = target.mirrored.create(CreateRole::Target, true, dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                for part in ["B on node-a", "B on node-b", "`block_size` in [volume.db]"] {
                    assert!(why.contains(part), "no `{part}`: {why}");
                }
            }
            assert!(target.mirrored.mirror().is_none());
            let same = text(B, source_port, theirs);
            let target = Node::of(&same, listener()).await;
            target.mirrored.create(CreateRole::Target, false, false).await.unwrap();
            target.mirrored.end().await;
            source.mirrored.end().await;
        }
    })
    .unwrap();
}
