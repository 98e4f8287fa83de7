//! What metrics tell of mirrors.

use flagstone_api::{Exposition, Kind};

use super::mirror_document::{MirrorDocument, PeerDocument, ReplicaDocument};
use super::mirror_view::states;

type OfReplica = fn(&ReplicaDocument) -> f64;
type OfPeer = fn(&PeerDocument) -> f64;

const REPLICA: [(&str, Kind, &str, OfReplica); 10] = [
    ("flagstone_mirror_active", Kind::Gauge, "1 while this node serves the volume.", |replica| {
        flag(replica.active)
    }),
    (
        "flagstone_mirror_local_failed",
        Kind::Gauge,
        "1 once the local leg has failed and a peer carries the volume.",
        |replica| flag(replica.local_failed),
    ),
    (
        "flagstone_mirror_flush_failed",
        Kind::Gauge,
        "1 once a flush of the local leg or its log has failed, until that is opened again.",
        |replica| flag(replica.flush_failed),
    ),
    ("flagstone_mirror_epoch", Kind::Gauge, "Highest epoch seen.", |replica| replica.epoch as f64),
    (
        "flagstone_mirror_in_flight",
        Kind::Gauge,
        "Writes of hosts in progress, and reads that wait for one.",
        |replica| replica.in_flight as f64,
    ),
    (
        "flagstone_mirror_held",
        Kind::Gauge,
        "Writes that are held for the peer, or for a change of role.",
        |replica| replica.held as f64,
    ),
    ("flagstone_mirror_writes_total", Kind::Counter, "Writes of hosts.", |replica| {
        replica.writes as f64
    }),
    (
        "flagstone_mirror_local_seconds_total",
        Kind::Counter,
        "What the local leg took for writes, together.",
        |replica| replica.local_us as f64 / 1e6,
    ),
    (
        "flagstone_mirror_log_saved_total",
        Kind::Counter,
        "Writes that needed no write of metadata, as their regions were hot.",
        |replica| replica.log.saved_writes as f64,
    ),
    ("flagstone_mirror_log_hot_regions", Kind::Gauge, "Regions that are hot now.", |replica| {
        replica.log.hot_regions as f64
    }),
];

const PEER: [(&str, Kind, &str, OfPeer); 16] = [
    (
        "flagstone_mirror_out_of_date_bytes",
        Kind::Gauge,
        "What the peer lacks, at the bitmap's granularity.",
        |peer| peer.out_of_date_bytes as f64,
    ),
    (
        "flagstone_mirror_in_sync_timestamp_seconds",
        Kind::Gauge,
        "When the peer was last known to be in sync, since the Unix epoch; 0 for never since the \
         replica was opened.",
        |peer| peer.last_in_sync_seconds.unwrap_or_default() as f64,
    ),
    (
        "flagstone_mirror_lag_bytes",
        Kind::Gauge,
        "Asynchronous mode: what the peer has not acknowledged.",
        |peer| peer.lag_bytes as f64,
    ),
    (
        "flagstone_mirror_lag_seconds",
        Kind::Gauge,
        "Asynchronous mode: the age of the oldest write that the peer has not acknowledged.",
        |peer| peer.lag_us as f64 / 1e6,
    ),
    (
        "flagstone_mirror_resync_done_bytes",
        Kind::Gauge,
        "Of the resync that goes on: copied, or found to be equal.",
        |peer| peer.resync.map_or(0.0, |resync| resync.done_bytes as f64),
    ),
    (
        "flagstone_mirror_resync_total_bytes",
        Kind::Gauge,
        "Of the resync that goes on: how much there is to do; 0 without one.",
        |peer| peer.resync.map_or(0.0, |resync| resync.total_bytes as f64),
    ),
    (
        "flagstone_mirror_resync_bytes_per_second",
        Kind::Gauge,
        "How fast the resync goes on.",
        |peer| peer.resync.map_or(0.0, |resync| resync.bytes_per_second as f64),
    ),
    (
        "flagstone_mirror_added_seconds_total",
        Kind::Counter,
        "What writes waited for the peer beyond the local leg, together.",
        |peer| peer.added_us as f64 / 1e6,
    ),
    (
        "flagstone_mirror_added_writes_total",
        Kind::Counter,
        "Writes that went to the peer before they were complete.",
        |peer| peer.added_writes as f64,
    ),
    (
        "flagstone_mirror_losses_total",
        Kind::Counter,
        "Times that the peer was lost after it had been attached.",
        |peer| peer.losses as f64,
    ),
    (
        "flagstone_mirror_given_up_total",
        Kind::Counter,
        "Times that this side gave its data up in a split brain, as `split_brain` says.",
        |peer| peer.given_up as f64,
    ),
    (
        "flagstone_mirror_given_up_bytes_total",
        Kind::Counter,
        "What it had written without the peer then, at most.",
        |peer| peer.given_up_bytes as f64,
    ),
    (
        "flagstone_mirror_link_data_bytes_total",
        Kind::Counter,
        "Data that was written to the peer, of hosts and resyncs.",
        |peer| peer.link.data_bytes as f64,
    ),
    (
        "flagstone_mirror_link_sent_bytes_total",
        Kind::Counter,
        "What was sent for that data: less when it is compressed.",
        |peer| peer.link.sent_bytes as f64,
    ),
    (
        "flagstone_mirror_peer_name_unknown",
        Kind::Gauge,
        "1 while the peer's name has no address that is known.",
        |peer| flag(peer.link.name_unknown),
    ),
    (
        "flagstone_mirror_full_resync",
        Kind::Gauge,
        "1 while everything is copied to the peer, or is going to be.",
        |peer| flag(peer.full_resync),
    ),
];

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Writes the metrics of all mirrors.
pub(super) fn write(mirrors: &[MirrorDocument], out: &mut Exposition) {
    let help = "1 for the state that the mirror is in towards the peer, 0 for all others.";
    let mut family = out.family("flagstone_mirror_state", Kind::Gauge, help);
    let peers = || mirrors.iter().flat_map(|one| one.peers.iter().map(move |peer| (one, peer)));
    for (mirror, peer) in peers() {
        for state in states() {
            let labels = [("volume", &*mirror.volume), ("peer", &*peer.name), ("state", state)];
            family.count(&labels, u64::from(peer.state == state));
        }
    }
    let replicas =
        || mirrors.iter().filter_map(|one| one.replica.as_ref().map(|replica| (one, replica)));
    for (name, kind, help, number) in REPLICA {
        let mut family = out.family(name, kind, help);
        for (mirror, replica) in replicas() {
            family.value(&[("volume", &mirror.volume)], number(replica));
        }
    }
    let help = "Times that the devices of the replica were opened again as they had failed.";
    let mut family = out.family("flagstone_mirror_reopens_total", Kind::Counter, help);
    for mirror in mirrors {
        family.count(&[("volume", &mirror.volume)], mirror.reopens);
    }
    let help = "Writes and flushes for the write-intent log's sake: records of hot regions, bitmap \
                pages, flushes of the data device, and those that failed.";
    let mut family = out.family("flagstone_mirror_log_operations_total", Kind::Counter, help);
    for (mirror, ReplicaDocument { log, .. }) in replicas() {
        for (kind, count) in [
            ("record", log.record_writes),
            ("page", log.page_writes),
            ("flush", log.data_flushes),
            ("failed", log.failures),
        ] {
            family.count(&[("volume", &mirror.volume), ("kind", kind)], count);
        }
    }
    for (name, kind, help, number) in PEER {
        let mut family = out.family(name, kind, help);
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
    fn a_mirror_is_in_one_state() {
        let resync = ResyncDocument { done_bytes: 5, total_bytes: 10, ..ResyncDocument::default() };
        let peer = PeerDocument {
            name: "b".into(),
            state: "resynchronizing".into(),
            resync: Some(resync),
            added_us: 1_500_000,
            ..PeerDocument::default()
        };
        let mirror = MirrorDocument {
            volume: "db".into(),
            peers: vec![peer],
            replica: Some(ReplicaDocument { active: true, ..ReplicaDocument::default() }),
            ..MirrorDocument::default()
        };
        let mut out = Exposition::new();
        write(&[mirror], &mut out);
        let text = out.finish();
        let of = |line: &str| assert!(text.lines().any(|one| one == line), "{line} in:\n{text}");
        of(r#"flagstone_mirror_state{volume="db",peer="b",state="resynchronizing"} 1"#);
        of(r#"flagstone_mirror_state{volume="db",peer="b",state="split-brain"} 0"#);
        of(r#"flagstone_mirror_active{volume="db"} 1"#);
        of(r#"flagstone_mirror_resync_total_bytes{volume="db",peer="b"} 10"#);
        of(r#"flagstone_mirror_added_seconds_total{volume="db",peer="b"} 1.5"#);
        of(r#"flagstone_mirror_log_operations_total{volume="db",kind="page"} 0"#);
        let ones = text
            .lines()
            .filter(|line| line.starts_with("flagstone_mirror_state{") && line.ends_with(" 1"));
        assert_eq!(ones.count(), 1);
    }
}
