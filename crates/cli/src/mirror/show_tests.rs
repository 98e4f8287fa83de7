//! The texts, as people see them.

use flagstone_control::api::mirror_document::{LogDocument, MetDocument, NOT_CREATED};

use super::*;

fn document(state: &str) -> MirrorDocument {
    let peer = PeerDocument {
        name: "node-b".into(),
        state: state.into(),
        mode: "sync".into(),
        ack: "disk".into(),
        out_of_date_bytes: 3 << 20,
        last_in_sync_seconds: Some(1_000),
        added_us: 3_100,
        added_writes: 10,
        losses: 1,
        ..PeerDocument::default()
    };
    let log = LogDocument { saved_writes: 990, record_writes: 3, ..LogDocument::default() };
    let replica = ReplicaDocument {
        role: "source".into(),
        active: true,
        epoch: 5,
        generation: "00000000000000ab".into(),
        volume_uuid: "V".into(),
        replica_uuid: "R".into(),
        size_bytes: 1 << 30,
        in_flight: 24,
        writes: 10,
        local_us: 2_000,
        log,
        ..ReplicaDocument::default()
    };
    MirrorDocument {
        volume: "db".into(),
        node: "node-a".into(),
        state: state.into(),
        peers: vec![peer],
        replica: Some(replica),
        ..MirrorDocument::default()
    }
}

fn shown(document: MirrorDocument) -> String {
    mirror(&Look { at: flagstone_runtime::time::now(), wall: 1_065, document }, None)
}

#[test]
fn a_mirror_that_is_well() {
    let expected = "\
db: mirroring; node-a is the source, serves hosts
  1.00 GiB, epoch 5, generation 00000000000000ab
  volume V, replica R

peer node-b: mirroring; in sync; sync, acknowledges from disk
  out of date 3.00 MiB, lost once
  adds 310.0 µs to a write

queue depth 24, of which 0 wait for one that overlaps; 0 held
10 writes, 200.0 µs on the local leg
log: 990 metadata writes saved, 3 records and 0 bitmap pages written, 0 flushes, 0 writes waited; 0 \
regions hot
";
    assert_eq!(
        flagstone_runtime::block_on(async { shown(document("mirroring")) }).unwrap(),
        expected
    );
}

#[test]
fn a_target_tells_whose_it_is_and_a_volume_that_it_grows() {
    let mut now = document("target");
    let replica = now.replica.as_mut().unwrap();
    (replica.role, replica.active) = ("target".into(), false);
    replica.source = Some("node-c".into());
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(
        text.starts_with("db: target; node-a is the target of node-c, serves nobody\n"),
        "{text}"
    );
    let mut now = document("mirroring");
    now.replica.as_mut().unwrap().growing_to_bytes = Some(2 << 30);
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("\n  grows to 2.00 GiB: what is new is being zeroed"), "{text}");
}

#[test]
fn what_was_met_and_what_to_do_in_a_split_brain() {
    let mut now = document("split-brain");
    let met = MetDocument { role: "source".into(), active: true, epoch: 7, ..Default::default() };
    now.peers[0].met = Some(met);
    now.next = vec!["choose whose data is kept ".repeat(6).trim().to_owned()];
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("as it was met last: source, served hosts, epoch 7"), "{text}");
    assert!(text.contains("split-brain; last in sync 1m 5s ago"), "{text}");
    assert!(text.contains("\nnext  choose whose data"), "{text}");
    assert!(text.contains("\n      "), "it goes on below: {text}");
}

/// What was met is of the past where the state is of now; and nothing was lost that was not.
#[test]
fn a_peer_that_is_connected_is_not_shown_as_it_was_before() {
    for state in ["mirroring", "resynchronizing", "target"] {
        let mut now = document(state);
        now.peers[0].met = Some(MetDocument { inconsistent: true, ..Default::default() });
        (now.peers[0].losses, now.peers[0].last_in_sync_seconds) = (0, None);
        let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
        assert!(!text.contains("met last"), "{text}");
        assert!(text.contains("  out of date 3.00 MiB\n"), "{text}");
    }
    let mut now = document("resync-pending");
    (now.peers[0].losses, now.peers[0].last_in_sync_seconds) = (2, None);
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert!(text.contains("lost 2 times"), "{text}");
    assert!(text.contains("never in sync while this server ran"), "{text}");
}

#[test]
fn before_there_is_a_replica() {
    let now =
        MirrorDocument { replica: None, next: vec!["make it".into()], ..document(NOT_CREATED) };
    let text = flagstone_runtime::block_on(async { shown(now) }).unwrap();
    assert_eq!(text, "db: not-created on node-a\n\nnext  make it\n");
}

#[test]
fn a_bar_is_full_when_all_is_done_and_not_before() {
    assert_eq!(bar(0, 0), format!("[{}] 0 %", ".".repeat(32)));
    assert_eq!(bar(999, 1000), format!("[{}.] 99 %", "#".repeat(31)));
    assert_eq!(bar(1000, 1000), format!("[{}] 100 %", "#".repeat(32)));
    assert_eq!(percent(u64::MAX / 2, u64::MAX), 49);
    assert_eq!(percent(7, 5), 100);
}

#[test]
fn a_resync_tells_its_rate_and_the_time_that_is_left() {
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
    let expected = format!(
        "  full resync {bar}  1.00 GiB of 4.00 GiB, 210 MB/s, 1m 5s left, 1.00 MiB were equal\n"
    );
    assert_eq!(text, expected);
    let still = ResyncDocument { remaining_seconds: None, ..resync };
    assert!(resync_text(&still).contains("it stands still"));
}

#[test]
fn numbers_are_of_the_time_between_two_looks() {
    let was = document("mirroring").replica.unwrap();
    let mut now = was.clone();
    (now.writes, now.local_us, now.log.saved_writes) = (30, 2_000 + 20 * 150, 1_010);
    let text = work(&now, Some((2.0, &was)));
    assert!(text.contains("10 writes a second, 150.0 µs on the local leg"), "{text}");
    assert!(text.contains("20 metadata writes saved, 0 records"), "{text}");
    // A server that began anew.
    now.writes = 4;
    assert!(work(&now, Some((2.0, &was))).contains("2.0 writes a second"), "since its start");
    now.log.failures = 2;
    assert!(work(&now, None).contains("2 of its writes FAILED"));
}

#[test]
fn a_verify_lists_what_differs() {
    let mut verify = VerifyDocument {
        peer: "node-b".into(),
        running: true,
        compared_bytes: 1 << 20,
        total_bytes: 2 << 20,
        ..VerifyDocument::default()
    };
    assert!(verify_text(&verify).contains("] 50 %  1.00 MiB of 2.00 MiB\n"));
    (verify.running, verify.compared_bytes) = (false, 2 << 20);
    assert!(verify_text(&verify).ends_with("; no difference\n"));
    (verify.differing_bytes, verify.differences, verify.unlisted) = (8192, vec![(65_536, 8192)], 2);
    let text = verify_text(&verify);
    assert!(
        text.contains("8.00 KiB DIFFER\n  8,192 bytes at 65,536\n  and 2 ranges more"),
        "{text}"
    );
    verify.error = Some("the peer is not in sync".into());
    assert!(verify_text(&verify).contains("it ended early: the peer is not in sync"));
}

#[test]
fn actions_say_what_they_did_or_would_do() {
    let answer = ActionDocument {
        volume: "db".into(),
        said: "it is paused".into(),
        changed: true,
        loses: Some("much".into()),
        ..ActionDocument::default()
    };
    assert_eq!(action(&answer), "db: it is paused\n");
    let again = ActionDocument { changed: false, ..answer.clone() };
    assert_eq!(action(&again), "db: nothing to change: it is paused\n");
    let dry = ActionDocument { dry_run: true, ..answer };
    let expected = "db: nothing was done; it would be so: it is paused\nthis loses: much\n";
    assert_eq!(action(&dry), expected);
}

#[test]
fn a_link_that_compresses_or_is_capped_says_so() {
    let of = |compression: &str, declined: bool, cap: Option<u64>| {
        link_text(&LinkDocument {
            compression: compression.into(),
            compression_declined: declined,
            max_bytes_per_second: cap,
            data_bytes: 4 << 20,
            sent_bytes: 1 << 20,
            ..LinkDocument::default()
        })
    };
    assert_eq!(of("none", false, None), "");
    assert_eq!(of("lz4", false, None), "  link: lz4 made 1.00 MiB of 4.00 MiB\n");
    assert_eq!(
        of("zstd", true, Some(50_000_000)),
        "  link: zstd is wanted, which the peer does not know: not compressed; \
         at most 50.0 MB/s to the peer\n"
    );
}

#[test]
fn a_link_of_an_older_version_says_who_holds_it_there() {
    let of = |version, node_versions, peer_versions| {
        let compression = "none".to_owned();
        let link = LinkDocument { version, node_versions, peer_versions, ..Default::default() };
        link_text(&LinkDocument { compression, ..link })
    };
    assert_eq!(of(None, (2, 3), None), "", "not met");
    assert_eq!(of(Some(3), (2, 3), Some((2, 3))), "");
    let peer = of(Some(2), (2, 3), Some((2, 2)));
    assert_eq!(peer, "  link: version 2, as the peer speaks no later one\n");
    let own = of(Some(3), (2, 3), Some((3, 5)));
    assert_eq!(own, "  link: version 3, as this node speaks no later one\n");
    // What to do about none in common is told as advice.
    assert_eq!(of(None, (2, 3), Some((4, 5))), "");
}
