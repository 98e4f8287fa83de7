//! Table of all mirrors.

use std::fmt::Write as _;

use flagstone_server::api::mirror_document::MirrorDocument;
use flagstone_units::display::size;

use super::show::{group, percent};
use flagstone_units::columns::{Left, Right, lines};

pub(super) fn mirrors(mirrors: &[MirrorDocument]) -> String {
    if mirrors.is_empty() {
        return "no volume has a mirror: add `mirror = { … }` to a volume in the configuration\n"
            .into();
    }
    let head = [
        ("volume", Left),
        ("role", Left),
        ("serves", Left),
        ("peer", Left),
        ("state", Left),
        ("out of sync", Right),
        ("resync", Right),
        ("in flight", Right),
    ];
    let mut rows = Vec::new();
    for mirror in mirrors {
        let replica = mirror.replica.as_ref();
        for peer in &mirror.peers {
            let resync = peer.resync.as_ref();
            rows.push(vec![
                mirror.volume.clone(),
                replica.map_or("-", |replica| replica.role.name()).to_owned(),
                replica
                    .map_or("-", |replica| if replica.serving { "yes" } else { "no" })
                    .to_owned(),
                peer.name.clone(),
                peer.state.to_string(),
                size(peer.out_of_sync_bytes),
                resync.map_or("-".to_owned(), |resync| {
                    format!("{} %", percent(resync.done_bytes, resync.total_bytes))
                }),
                replica.map_or("-".to_owned(), |replica| replica.in_flight.to_string()),
            ]);
        }
    }
    let mut text = lines(&head, &rows).join("\n") + "\n";
    let mut groups: Vec<_> = mirrors.iter().filter_map(|mirror| mirror.group.as_ref()).collect();
    groups.sort_by_key(|group| &group.name);
    groups.dedup();
    groups.into_iter().for_each(|found| text.push_str(&group(found)));
    for mirror in mirrors {
        for next in &mirror.next {
            let _ = write!(text, "\n{}: {next}\n", mirror.volume);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use flagstone_server::api::mirror_document::{
        PeerDocument, ReplicaDocument, ReplicaRole, ReportedState, ResyncDocument,
    };

    use super::*;

    #[test]
    fn status_table_has_line_per_peer() {
        let resync = ResyncDocument { done_bytes: 1, total_bytes: 4, ..ResyncDocument::default() };
        let peer = PeerDocument {
            name: "node-b".into(),
            state: ReportedState::Resynchronizing,
            out_of_sync_bytes: 3 << 20,
            resync: Some(resync),
            ..PeerDocument::default()
        };
        let replica = ReplicaDocument {
            role: ReplicaRole::Source,
            serving: true,
            ..ReplicaDocument::default()
        };
        let mirror = MirrorDocument {
            volume: "db".into(),
            peers: vec![peer],
            replica: Some(replica),
            next: vec!["do this".into()],
            ..MirrorDocument::default()
        };
        let expected = "\
volume  role    serves  peer    state            out of sync  resync  in flight
db      source  yes     node-b  resynchronizing        3 MiB    25 %          0

db: do this
";
        assert_eq!(mirrors(&[mirror]), expected);
        assert!(mirrors(&[]).contains("mirror = {"));
    }
}
