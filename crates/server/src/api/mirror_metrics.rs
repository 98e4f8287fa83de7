//! Metrics of mirrors.

use crate::http::Exposition;

use super::mirror_document::{MirrorDocument, PeerDocument, ReplicaDocument, ReportedState};

type ReplicaValue = fn(&ReplicaDocument) -> f64;
type PeerValue = fn(&PeerDocument) -> f64;

const REPLICA: [(&str, &str, ReplicaValue); 14] = [
    ("flagstone_mirror_serving", "1 while this node serves the volume.", |r| boolean(r.serving)),
    (
        "flagstone_mirror_local_device_failed",
        "1 while a peer serves the volume after a failure here.",
        |r| boolean(r.local_device_failed),
    ),
    (
        "flagstone_mirror_flush_failed",
        "1 after a failed flush, until the device is reopened.",
        |r| boolean(r.flush_failed),
    ),
    ("flagstone_mirror_role_epoch", "Highest role epoch seen.", |r| r.role_epoch as f64),
    ("flagstone_mirror_in_flight", "Host writes in progress, and reads that wait for one.", |r| {
        r.in_flight as f64
    }),
    (
        "flagstone_mirror_blocked_writes",
        "Writes blocked by a lost peer or a change of role.",
        |r| r.blocked as f64,
    ),
    ("flagstone_mirror_writes_total", "Host writes.", |r| r.writes as f64),
    ("flagstone_mirror_local_seconds_total", "Total time of writes to the local device.", |r| {
        r.local_us as f64 / 1e6
    }),
    (
        "flagstone_mirror_activity_log_hits_total",
        "Writes to active regions, which need no write of metadata.",
        |r| r.intent_log.activity_log_hits as f64,
    ),
    (
        "flagstone_mirror_activity_log_misses_total",
        "Writes that had to wait for a write of metadata.",
        |r| r.intent_log.activity_log_misses as f64,
    ),
    ("flagstone_mirror_bad_range_bytes", "Bytes that a resync could not copy.", |r| {
        r.bad_ranges.iter().map(|bad| bad.bytes).sum::<u64>() as f64
    }),
    (
        "flagstone_mirror_repairs_total",
        "Unreadable blocks rewritten with the other leg's data.",
        |r| r.repairs as f64,
    ),
    (
        "flagstone_mirror_repaired_bytes_total",
        "Unreadable bytes rewritten with the other leg's data.",
        |r| r.repaired_bytes as f64,
    ),
    ("flagstone_mirror_active_regions", "Active regions.", |r| r.intent_log.active_regions as f64),
];

const PEER: [(&str, &str, PeerValue); 16] = [
    (
        "flagstone_mirror_out_of_sync_bytes",
        "Data that the peer lacks, rounded up to the bitmap's granularity.",
        |p| p.out_of_sync_bytes as f64,
    ),
    (
        "flagstone_mirror_in_sync_timestamp_seconds",
        "When the peer was last in sync, since the Unix epoch, or 0.",
        |p| p.last_in_sync_seconds.unwrap_or_default() as f64,
    ),
    (
        "flagstone_mirror_lag_bytes",
        "Asynchronous mode: bytes not yet acknowledged by the peer.",
        |p| p.lag_bytes as f64,
    ),
    (
        "flagstone_mirror_lag_seconds",
        "Asynchronous mode: age of the oldest unacknowledged write.",
        |p| p.lag_us as f64 / 1e6,
    ),
    ("flagstone_mirror_resync_done_bytes", "Current resync: bytes copied or found equal.", |p| {
        p.resync.map_or(0.0, |resync| resync.done_bytes as f64)
    }),
    (
        "flagstone_mirror_resync_size_bytes",
        "Current resync: bytes to process in all; 0 without a resync.",
        |p| p.resync.map_or(0.0, |resync| resync.total_bytes as f64),
    ),
    ("flagstone_mirror_resynced_bytes_total", "Bytes that resyncs copied or found equal.", |p| {
        p.resynced_bytes as f64
    }),
    (
        "flagstone_mirror_added_seconds_total",
        "Time that writes waited for the peer after the local write.",
        |p| p.added_us as f64 / 1e6,
    ),
    (
        "flagstone_mirror_added_writes_total",
        "Writes sent to the peer before they completed.",
        |p| p.added_writes as f64,
    ),
    ("flagstone_mirror_disconnects_total", "Unexpected disconnects of the peer.", |p| {
        p.disconnects as f64
    }),
    (
        "flagstone_mirror_discards_total",
        "Times that this node discarded its data by `after_split_brain`.",
        |p| p.discards as f64,
    ),
    ("flagstone_mirror_discarded_bytes_total", "Upper bound of the data discarded.", |p| {
        p.discarded_bytes as f64
    }),
    (
        "flagstone_mirror_link_data_bytes_total",
        "Data written to the peer, by hosts and resyncs.",
        |p| p.link.data_bytes as f64,
    ),
    (
        "flagstone_mirror_link_sent_bytes_total",
        "Bytes sent for that data; fewer when it is compressed.",
        |p| p.link.sent_bytes as f64,
    ),
    ("flagstone_mirror_peer_name_unknown", "1 while the peer's name has no known address.", |p| {
        boolean(p.link.name_unknown)
    }),
    ("flagstone_mirror_full_resync", "1 while a full resync is running or due.", |p| {
        boolean(p.full_resync)
    }),
];

fn boolean(value: bool) -> f64 {
    f64::from(u8::from(value))
}

pub(super) fn write(mirrors: &[MirrorDocument], out: &mut Exposition) {
    let help = "1 for the state with the peer, 0 for others.";
    let mut family = out.family("flagstone_mirror_state", help);
    let peers = || mirrors.iter().flat_map(|one| one.peers.iter().map(move |peer| (one, peer)));
    for (mirror, peer) in peers() {
        for state in ReportedState::ALL {
            let labels =
                [("volume", &*mirror.volume), ("peer", &*peer.name), ("state", state.name())];
            family.count(&labels, u64::from(peer.state == state));
        }
    }
    let replicas =
        || mirrors.iter().filter_map(|one| one.replica.as_ref().map(|replica| (one, replica)));
    for (name, help, number) in REPLICA {
        let mut family = out.family(name, help);
        for (mirror, replica) in replicas() {
            family.value(&[("volume", &mirror.volume)], number(replica));
        }
    }
    let help = "Times that devices were reopened after a failure.";
    let mut family = out.family("flagstone_mirror_reopens_total", help);
    for mirror in mirrors {
        family.count(&[("volume", &mirror.volume)], mirror.reopens);
    }
    let help = "Operations of the intent log, by kind.";
    let mut family = out.family("flagstone_mirror_log_operations_total", help);
    for (mirror, ReplicaDocument { intent_log, .. }) in replicas() {
        for (kind, count) in [
            ("record", intent_log.record_writes),
            ("page", intent_log.page_writes),
            ("flush", intent_log.data_flushes),
            ("failed", intent_log.failures),
        ] {
            family.count(&[("volume", &mirror.volume), ("kind", kind)], count);
        }
    }
    for (name, help, number) in PEER {
        let mut family = out.family(name, help);
        for (mirror, peer) in peers().filter(|(mirror, _)| mirror.replica.is_some()) {
            family.value(&[("volume", &mirror.volume), ("peer", &peer.name)], number(peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mirror_document::ResyncDocument;
    use super::*;

    #[test]
    fn mirror_has_exactly_one_state() {
        let resync = ResyncDocument { done_bytes: 5, total_bytes: 10, ..ResyncDocument::default() };
        let peer = PeerDocument {
            name: "b".into(),
            state: ReportedState::Resynchronizing,
            resync: Some(resync),
            added_us: 1_500_000,
            ..PeerDocument::default()
        };
        let mirror = MirrorDocument {
            volume: "db".into(),
            peers: vec![peer],
            replica: Some(ReplicaDocument { serving: true, ..ReplicaDocument::default() }),
            ..MirrorDocument::default()
        };
        let mut out = Exposition::new();
        write(&[mirror], &mut out);
        let text = out.finish();
        let of = |line: &str| assert!(text.lines().any(|one| one == line), "{line} in:\n{text}");
        of(r#"flagstone_mirror_state{volume="db",peer="b",state="resynchronizing"} 1"#);
        of(r#"flagstone_mirror_state{volume="db",peer="b",state="split-brain"} 0"#);
        of(r#"flagstone_mirror_serving{volume="db"} 1"#);
        of(r#"flagstone_mirror_resync_size_bytes{volume="db",peer="b"} 10"#);
        of(r#"flagstone_mirror_added_seconds_total{volume="db",peer="b"} 1.5"#);
        of(r#"flagstone_mirror_log_operations_total{volume="db",kind="page"} 0"#);
        let ones = text
            .lines()
            .filter(|line| line.starts_with("flagstone_mirror_state{") && line.ends_with(" 1"));
        assert_eq!(ones.count(), 1);
    }
}
