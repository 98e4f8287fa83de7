//! Status texts, compared as printed.

use flagstone_server::api::mirror_document::{
    Ack, HandshakeDocument, IntentLogDocument, MirrorAction, ReplicaRole,
};

use super::*;

fn document(state: ReportedState) -> MirrorDocument {
    let peer = PeerDocument {
        name: "node-b".into(),
        state,
        mode: Some(Mode::Sync),
        ack: Some(Ack::Disk),
        out_of_sync_bytes: 3 << 20,
        last_in_sync_seconds: Some(1_000),
        added_us: 3_100,
        added_writes: 10,
        disconnects: 1,
        ..PeerDocument::default()
    };
    let intent_log =
        IntentLogDocument { activity_log_hits: 990, record_writes: 3, ..Default::default() };
    let replica = ReplicaDocument {
        role: ReplicaRole::Source,
        serving: true,
        role_epoch: 5,
        generation: "00000000000000ab".into(),
        volume_uuid: "V".into(),
        replica_uuid: "R".into(),
        size_bytes: 1 << 30,
        in_flight: 24,
        writes: 10,
        local_us: 2_000,
        intent_log,
        ..ReplicaDocument::default()
    };
    MirrorDocument {
        volume: "db".into(),
        node: "node-a".into(),
        state,
        peers: vec![peer],
        replica: Some(replica),
        ..MirrorDocument::default()
    }
}

fn shown(document: MirrorDocument) -> String {
    mirror(&MirrorSample { at: flagstone_runtime::time::now(), wall: 1_065, document }, None)
}

#[test]
fn healthy_mirror_status() {
    let expected = "\
db: mirroring; node-a is the source, serves hosts
  1 GiB

peer node-b: mirroring; in sync; sync, acknowledges from disk
  out of sync 3 MiB, disconnected once
  adds 310 µs to a write

10 writes, 200 µs on the local device
";
    assert_eq!(
        flagstone_runtime::block_on(async { shown(document(ReportedState::Mirroring)) }).unwrap(),
        expected
    );
}

#[test]
fn target_and_growing_volume_status() {
    let mut now = document(ReportedState::Target);
    let replica = now.replica.as_mut().unwrap();
    (replica.role, replica.serving) = (ReplicaRole::Target, false);
    (replica.source, replica.has_source) = (Some("node-c".into()), true);
    let text = flagstone_runtime::block_on(async { shown(now.clone()) }).unwrap();
    // The peer is not shown as a target of this node.
    let peer = format!("\npeer {}: another target; the source reports", now.peers[0].name);
    assert!(text.contains(&peer), "{text}");
    now.peers[0].name = "node-c".into();
    let text = flagstone_runtime::block_on(async { shown(now.clone()) }).unwrap();
    assert!(text.contains("\npeer node-c: the source; the source reports"), "{text}");
    let mut deposed = now.clone();
    deposed.replica.as_mut().unwrap().role = ReplicaRole::Deposed;
    let of_deposed = flagstone_runtime::block_on(async { shown(deposed) }).unwrap();
    assert!(of_deposed.contains("node-a is a deposed source"), "{of_deposed}");
    assert!(
        text.starts_with("db: target; node-a is the target of node-c, does not serve\n"),
        "{text}"
    );
    let mut now = document(ReportedState::Mirroring);
    now.replica.as_mut().unwrap().growing_to_bytes = Some(2 << 30);
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("\n  growing to 2 GiB: zeroing the new space"), "{text}");
}

#[test]
fn split_brain_status_shows_handshake_and_advice() {
    let mut now = document(ReportedState::SplitBrain);
    now.peers[0].last_handshake = Some(HandshakeDocument {
        role: ReplicaRole::Source,
        serving: true,
        role_epoch: 7,
        ..Default::default()
    });
    now.next = vec!["choose whose data is kept ".repeat(6).trim().to_owned()];
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("last handshake: source, served hosts\n"), "{text}");
    assert!(text.contains("split-brain; last in sync 1m 5s ago"), "{text}");
    assert!(text.contains("\nnext  choose whose data"), "{text}");
    assert!(text.contains("\n      "), "it goes on below: {text}");
}

/// The last handshake is stale once the peer is connected, and unlost peers show no count.
#[test]
fn connected_peer_hides_last_handshake() {
    for state in [ReportedState::Mirroring, ReportedState::Resynchronizing, ReportedState::Target] {
        let mut now = document(state);
        now.peers[0].last_handshake =
            Some(HandshakeDocument { inconsistent: true, ..Default::default() });
        (now.peers[0].disconnects, now.peers[0].last_in_sync_seconds) = (0, None);
        let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
        assert!(!text.contains("last handshake"), "{text}");
        assert!(text.contains("  out of sync 3 MiB\n"), "{text}");
    }
    let mut now = document(ReportedState::ResyncPending);
    (now.peers[0].disconnects, now.peers[0].last_in_sync_seconds) = (2, None);
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("disconnected 2 times"), "{text}");
    assert!(text.contains("not in sync since the server started"), "{text}");
}

#[test]
fn status_without_replica() {
    let now = MirrorDocument {
        replica: None,
        next: vec!["make it".into()],
        ..document(ReportedState::NotCreated)
    };
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert_eq!(text, "db: not-created on node-a, does not serve\n\nnext  make it\n");
}

#[test]
fn progress_bar_is_full_only_when_complete() {
    assert_eq!(bar(0, 0), format!("[{}] 0 %", ".".repeat(32)));
    assert_eq!(bar(999, 1000), format!("[{}.] 99 %", "#".repeat(31)));
    assert_eq!(bar(1000, 1000), format!("[{}] 100 %", "#".repeat(32)));
    assert_eq!(percent(u64::MAX / 2, u64::MAX), 49);
    assert_eq!(percent(7, 5), 100);
}

#[test]
fn resync_status_shows_rate_and_time_left() {
    let resync = ResyncDocument {
        full: true,
        done_bytes: 1 << 30,
        total_bytes: 4 << 30,
        skipped_bytes: 1 << 20,
        bytes_per_second: 210_000_000,
        remaining_seconds: Some(65),
    };
    let text = resync_text(&resync);
    let bar = format!("[{}{}] 25 %", "#".repeat(8), ".".repeat(24));
    let expected =
        format!("  full resync {bar}  1 GiB of 4 GiB, 210 MB/s, 1m 5s left, 1 MiB already equal\n");
    assert_eq!(text, expected);
    let still = ResyncDocument { remaining_seconds: None, ..resync };
    assert!(resync_text(&still).contains("stalled"));
}

#[test]
fn counters_are_per_interval() {
    let was = document(ReportedState::Mirroring).replica.unwrap();
    let mut now = was.clone();
    (now.writes, now.local_us) = (30, 2_000 + 20 * 150);
    let text = work(&now, Some((2.0, &was)));
    assert!(text.contains("10 writes a second, 150 µs on the local device"), "{text}");
    // A restarted server.
    now.writes = 4;
    assert!(work(&now, Some((2.0, &was))).contains("2.0 writes a second"), "since its start");
    (now.intent_log.failures, now.blocked) = (2, 3);
    let text = work(&now, None);
    assert!(text.contains("3 blocked; 2 writes to the intent log FAILED"), "{text}");
}

#[test]
fn verify_status_lists_differences() {
    let mut verify = VerifyDocument {
        peer: "node-b".into(),
        running: true,
        compared_bytes: 1 << 20,
        total_bytes: 2 << 20,
        ..VerifyDocument::default()
    };
    assert!(verify_text(&verify).contains("] 50 %  1 MiB of 2 MiB\n"));
    (verify.running, verify.compared_bytes) = (false, 2 << 20);
    assert!(verify_text(&verify).ends_with("; no difference\n"));
    (verify.differing_bytes, verify.differences, verify.unlisted) = (8192, vec![(65_536, 8192)], 2);
    let text = verify_text(&verify);
    assert!(text.contains("8 KiB DIFFER\n  8,192 bytes at 65,536\n  and 2 more ranges"), "{text}");
    verify.error = Some("the peer is not in sync".into());
    assert!(verify_text(&verify).contains("stopped early: the peer is not in sync"));
}

#[test]
fn action_text_for_real_and_dry_runs() {
    let answer = ActionDocument {
        volume: "db".into(),
        action: MirrorAction::Pause,
        changed: true,
        dry_run: false,
        outcome: "it is paused".into(),
        data_loss: Some("much".into()),
        mirror: MirrorDocument::default(),
    };
    assert_eq!(action(&answer), "db: it is paused\n");
    let again = ActionDocument { changed: false, ..answer.clone() };
    assert_eq!(action(&again), "db: no change: it is paused\n");
    let dry = ActionDocument { dry_run: true, ..answer };
    let expected = "db: dry run: it is paused\ndata loss: much\n";
    assert_eq!(action(&dry), expected);
}

#[test]
fn link_status_shows_compression_and_cap() {
    let of = |compression: LinkCompression, declined: bool, cap: Option<u64>| {
        link_text(&LinkDocument {
            compression,
            compression_declined: declined,
            max_bytes_per_second: cap,
            data_bytes: 4 << 20,
            sent_bytes: 1 << 20,
            ..LinkDocument::default()
        })
    };
    assert_eq!(of(LinkCompression::None, false, None), "");
    assert_eq!(of(LinkCompression::Lz4, false, None), "  link: lz4 compressed 4 MiB to 1 MiB\n");
    assert_eq!(
        of(LinkCompression::Zstd, true, Some(50_000_000)),
        "  link: zstd is not supported by the peer: not compressed; \
         at most 50.0 MB/s to the peer\n"
    );
}

#[test]
fn link_status_shows_older_version() {
    let of = |version, node_versions, peer_versions| {
        link_text(&LinkDocument { version, node_versions, peer_versions, ..Default::default() })
    };
    assert_eq!(of(None, (2, 3), None), "", "not met");
    assert_eq!(of(Some(3), (2, 3), Some((2, 3))), "");
    let peer = of(Some(2), (2, 3), Some((2, 2)));
    assert_eq!(peer, "  link: version 2: the peer supports no later one\n");
    let own = of(Some(3), (2, 3), Some((3, 5)));
    assert_eq!(own, "  link: version 3: this node supports no later one\n");
    // The advice of `next` covers peers without a common version.
    assert_eq!(of(None, (2, 3), Some((4, 5))), "");
}

#[test]
fn group_of_a_mirror_is_shown() {
    let volumes = vec!["db".to_owned(), "log".to_owned()];
    let group = GroupDocument { name: "app".into(), volumes, ..GroupDocument::default() };
    let line = |group: &GroupDocument| {
        let group = Some(group.clone());
        let now = MirrorDocument { group, ..document(ReportedState::Mirroring) };
        let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
        text.lines().nth(2).map(str::to_owned)
    };
    let consistent = GroupDocument { consistent: true, ..group.clone() };
    let missing = GroupDocument { missing: vec!["log".into()], ..group.clone() };
    let refused = GroupDocument { refused: vec!["log".into()], ..consistent.clone() };
    for (group, state) in [
        (consistent, "all volumes here are at one moment"),
        (group, "a resync here has not completed: no volume can take over"),
        (missing, "no replica here of log: none is mirrored"),
        (refused, "the peer has other volumes in it: none is mirrored"),
    ] {
        assert_eq!(line(&group), Some(format!("  group app: db, log; {state}")));
    }
}
