//! A line for each mirror.

use std::fmt::Write as _;

use flagstone_control::api::mirror_document::MirrorDocument;

use super::show::percent;
use crate::columns::{Side, lines};
use crate::status::numbers::size;

/// All mirrors, a line for each peer.
pub(super) fn mirrors(mirrors: &[MirrorDocument]) -> String {
    if mirrors.is_empty() {
        return "no volume is mirrored: give one `mirror = { … }` in the configuration\n".into();
    }
    let head = [
        ("volume", Side::Left),
        ("role", Side::Left),
        ("serves", Side::Left),
        ("peer", Side::Left),
        ("state", Side::Left),
        ("out of date", Side::Right),
        ("resync", Side::Right),
        ("in flight", Side::Right),
    ];
    let mut rows = Vec::new();
    for mirror in mirrors {
        let replica = mirror.replica.as_ref();
        for peer in &mirror.peers {
            let resync = peer.resync.as_ref();
            rows.push(vec![
                mirror.volume.clone(),
                replica.map_or("-", |replica| &replica.role).to_owned(),
                replica.map_or("-", |replica| if replica.active { "yes" } else { "no" }).to_owned(),
                peer.name.clone(),
                peer.state.clone(),
                size(peer.out_of_date_bytes),
                resync.map_or("-".to_owned(), |resync| {
                    format!("{} %", percent(resync.done_bytes, resync.total_bytes))
                }),
                replica.map_or("-".to_owned(), |replica| replica.in_flight.to_string()),
            ]);
        }
    }
    let mut text = lines(&head, &rows).join("\n") + "\n";
    for mirror in mirrors {
        for next in &mirror.next {
            let _ = write!(text, "\n{}: {next}\n", mirror.volume);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use flagstone_control::api::mirror_document::{PeerDocument, ReplicaDocument, ResyncDocument};

    use super::*;

    #[test]
    fn each_peer_has_its_line() {
        let resync = ResyncDocument { done_bytes: 1, total_bytes: 4, ..ResyncDocument::default() };
        let peer = PeerDocument {
            name: "node-b".into(),
            state: "resynchronizing".into(),
            out_of_date_bytes: 3 << 20,
            resync: Some(resync),
            ..PeerDocument::default()
        };
        let replica =
            ReplicaDocument { role: "source".into(), active: true, ..ReplicaDocument::default() };
        let mirror = MirrorDocument {
            volume: "db".into(),
            peers: vec![peer],
            replica: Some(replica),
            next: vec!["do this".into()],
            ..MirrorDocument::default()
        };
        let expected = "\
volume  role    serves  peer    state            out of date  resync  in flight
------  ------  ------  ------  ---------------  -----------  ------  ---------
db      source  yes     node-b  resynchronizing     3.00 MiB    25 %          0

db: do this
";
        assert_eq!(mirrors(&[mirror]), expected);
        assert!(mirrors(&[]).contains("mirror = {"));
    }
}
