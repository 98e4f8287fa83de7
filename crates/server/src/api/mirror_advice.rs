//! Mirror advice: commands and repairs for the operator, derived from a mirror's document.

use flagstone_mirror::{LinkVersions, NoCommonVersion};

use super::failover_advice;
use super::mirror_document::{
    LinkDocument, MirrorDocument, PeerDocument, ReopeningDocument, ReplicaDocument, ReportedState,
};
use super::mirror_status::peer_option;

pub(super) fn missing_advice(document: &MirrorDocument, missing: &str) -> String {
    let (volume, node) = (&document.volume, &document.node);
    format!(
        "{missing}. Then restart the server of {node}. Nothing was changed on the device. If the replica \
         is lost: `flagstone mirror create {volume} --target --destroy-data` copies the volume from a \
         peer and overwrites the device; `--source --new-volume` makes the device's contents a new volume, of \
         which the peers' replicas are not copies"
    )
}

pub(super) fn log_missing_advice(document: &MirrorDocument, missing: &str) -> String {
    format!(
        "{missing}. After a change of the configuration, restart the server of {}; a corrected device is \
         noticed without that. Until then it does not serve {}. Nothing was changed on the data device or \
         the log device",
        document.node, document.volume
    )
}

/// Advice for each problem of a mirror, the most urgent first; empty if none needs the operator.
pub(super) fn next(document: &MirrorDocument) -> Vec<String> {
    let volume = &document.volume;
    let Some(replica) = &document.replica else {
        return vec![create_advice(volume)];
    };
    let mut next: Vec<_> = device_advice(document, replica).into_iter().collect();
    if let Some(advice) = group_advice(document, replica) {
        next.push(advice);
        return next;
    }
    let failover = failover_advice::advice(document, replica);
    // Advice about a lost peer is to serve by force, or to wait for it.
    let is_decided = failover.is_some() && !replica.serving;
    next.extend(failover);
    let of_peer = |peer| match is_decided {
        true => decided_advice((document, replica, peer)),
        false => peer_advice((document, replica, peer)),
    };
    next.extend(document.peers.iter().filter_map(of_peer));
    next
}

/// Advice about a peer of a node that serves when the arbiter agrees.
fn decided_advice(open: OpenMirror<'_>) -> Option<String> {
    let (document, replica, peer) = open;
    let is_lost = matches!(
        peer.state,
        ReportedState::ResyncPending
            | ReportedState::Disconnected
            | ReportedState::Target
            | ReportedState::NoSource
    );
    match name_advice(open, false) {
        _ if replica.removed => None,
        None if !is_lost => peer_advice((document, replica, peer)),
        name => name,
    }
}

fn create_advice(volume: &str) -> String {
    format!(
        "create the replica: `flagstone mirror create {volume} --source` on the node whose data is kept, \
         then `--target` on the other"
    )
}

/// Why no volume of a group is mirrored although the peer may well be reachable.
fn group_advice(document: &MirrorDocument, replica: &ReplicaDocument) -> Option<String> {
    let (group, volume, node) = (document.group.as_ref()?, &document.volume, &document.node);
    let name = &group.name;
    let is_waiting = document.peers.iter().any(|peer| {
        !matches!(
            peer.state,
            ReportedState::SplitBrain | ReportedState::Paused | ReportedState::Broken
        )
    });
    if !is_waiting {
        return None;
    }
    if let Some(missing) = group.missing.first() {
        return Some(format!(
            "no volume of group {name} is mirrored, because {missing} has no open replica on {node}: see \
             `flagstone mirror status {missing}`"
        ));
    }
    let peers: Vec<&str> = document.peers.iter().map(|peer| peer.name.as_str()).collect();
    (replica.serving && !group.refused.is_empty()).then(|| {
        format!(
            "{} refuses {volume} in group {name}: its configuration has other volumes in that group. Set \
             the same `group` for {} there, and for no other volume, and restart its server",
            peers.join(", "),
            group.volumes.join(", ")
        )
    })
}

fn device_advice(document: &MirrorDocument, replica: &ReplicaDocument) -> Option<String> {
    let (volume, node) = (&document.volume, &document.node);
    match &document.reopening {
        Some(ReopeningDocument { reason, abandoned: true, attempts, .. }) => Some(format!(
            "{reason}: the device was reopened {attempts} times and failed each time; replace the device \
             of {node}, or restart the server there once it works"
        )),
        Some(ReopeningDocument { reason, .. }) => Some(format!(
            "the replica of {node} failed ({reason}): it is reopened automatically and then resynchronized \
             by its source"
        )),
        None if replica.removed => Some(format!(
            "the source has removed {node} from the mirror of {volume}: `flagstone mirror delete {volume}` \
             frees its device. To make it a member again: `flagstone mirror add-peer {volume} {node}` on \
             the source. If all other copies are lost: `flagstone mirror failover {volume} --force` serves \
             the data of the time of its removal"
        )),
        None if replica.local_device_failed => Some(format!(
            "the device of {node} has failed and the volume is served by the peer: move it there with \
             `flagstone mirror switchover {volume} --to PEER`; the device is then reopened automatically, \
             and resynchronized once it works and has room; if it is lost, replace it, restart the server \
             and create the replica again with `flagstone mirror create {volume} --target`"
        )),
        None if replica.flush_failed && replica.serving => Some(format!(
            "a flush of the data or log device of {node} failed, and no peer has the data: the volume takes \
             no writes, and writes since the last successful flush may be lost although they can still be \
             read. Copy the data you need; then run `flagstone mirror failover {volume} --force` on a peer whose \
             data is good enough, or restart the server here to continue with the data on the device"
        )),
        None => None,
    }
}

type OpenMirror<'a> = (&'a MirrorDocument, &'a ReplicaDocument, &'a PeerDocument);

fn peer_advice(open: OpenMirror<'_>) -> Option<String> {
    let (document, replica, peer) = open;
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    let option = peer_option(document, peer);
    if replica.removed {
        return None;
    }
    if let Some(advice) = name_advice(open, true) {
        return Some(advice);
    }
    let advice = match peer.state {
        ReportedState::SplitBrain => format!(
            "split brain: {node} and {name} were written independently, and nothing is copied until you \
             choose the data to keep. To keep the data of {node}: `flagstone mirror demote {volume}` on \
             {name}, then `flagstone mirror resolve {volume}{option} --keep mine` here. To keep the data \
             of {name}: `flagstone mirror resolve {volume}{option} --keep peer` here"
        ),
        ReportedState::Mismatch => mismatch_advice(open),
        ReportedState::NoSource => no_source_advice(open),
        ReportedState::Broken => format!(
            "the mirror with {name} is broken: `flagstone mirror continue {volume}{option}` copies \
             everything to it"
        ),
        ReportedState::Paused => format!(
            "the mirror with {name} is paused: `flagstone mirror continue {volume}{option}` copies its \
             out-of-sync blocks to it"
        ),
        ReportedState::ResyncPending | ReportedState::Disconnected if !replica.serving => format!(
            "{node} does not serve {volume} until it reaches {name}: check that flagstone runs there and \
             that its address is reachable; if {name} has failed for good, run `flagstone mirror failover \
             {volume} --force`"
        ),
        ReportedState::ResyncPending | ReportedState::Disconnected
            if peer.last_handshake.is_none() =>
        {
            format!(
                "{name} has not answered since this server started: if it has no replica yet, run \
                 `flagstone mirror create {volume} --target` there; otherwise check that flagstone runs \
                 there and that its address is reachable, and it is resynchronized automatically"
            )
        }
        ReportedState::ResyncPending | ReportedState::Disconnected => format!(
            "{name} is not attached; when it is, it is resynchronized automatically. If that does not happen \
             soon, check that flagstone runs there and that its address is reachable"
        ),
        ReportedState::Target if !replica.has_source => target_advice(open),
        _ => return None,
    };
    let waits = matches!(peer.state, ReportedState::ResyncPending | ReportedState::Disconnected);
    match document.group.as_ref().filter(|_| waits && replica.serving) {
        Some(group) => Some(format!(
            "{advice}. The volumes of group {name} are mirrored only together: see `flagstone mirror status \
             {name}`",
            name = group.name
        )),
        None => Some(advice),
    }
}

/// Advice about a wrong name, or an unknown address, of a peer. `forces` if the operator decides
/// whether this node serves.
fn name_advice((document, replica, peer): OpenMirror<'_>, forces: bool) -> Option<String> {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    let needed = match peer.state {
        ReportedState::ResyncPending | ReportedState::Disconnected => true,
        ReportedState::NoSource | ReportedState::Target => !replica.has_source,
        _ => false,
    };
    if peer.link.node_refused && needed {
        return Some(format!(
            "{name} refuses this node, which calls itself {node}: the configuration there expects another \
             name. Make `node` here and `[peer.{node}]` there agree; the log of {name} has the name that \
             it received"
        ));
    }
    let decide = match forces {
        true => format!(
            ". If {name} has failed for good, `flagstone mirror failover {volume} --force` serves the volume here"
        ),
        false => String::new(),
    };
    (peer.link.name_unknown && needed).then(|| {
        format!(
            "the address of {name} is unknown: check the name server, and `address` of [peer.{name}]. The \
             lookup is repeated until it succeeds{decide}"
        )
    })
}

fn mismatch_advice((document, replica, peer): OpenMirror<'_>) -> String {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    if let Some(none) = incompatible_versions(&peer.link) {
        let (ours, theirs) = (none.ours, none.peers);
        let older = if none.is_ours_older() { node } else { name };
        return format!(
            "no common version of the replication link: {name} supports {theirs}, and {node} {ours}. \
             Upgrade Flagstone on {older}; the mirror then continues automatically"
        );
    }
    if let Some((ours, theirs)) = differing_blocks(replica, peer) {
        return crate::mirrors::block_size_mismatch(volume, (node, ours), (name, theirs));
    }
    format!(
        "{name} has another volume, or one of another size: check it there; to make it a replica of this \
         volume, run `flagstone mirror delete {volume}` and `flagstone mirror create {volume} --target` \
         there"
    )
}

fn no_source_advice((document, replica, peer): OpenMirror<'_>) -> String {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    if replica.unverified && !replica.serving {
        return format!(
            "a flush of the device of {node} failed, so its contents may not survive a power loss: restore \
             a node whose data is intact; if there is none, `flagstone mirror failover {volume} --force` \
             here serves the data on the device"
        );
    }
    if replica.serving {
        return format!(
            "{name} has data that {node} lacks, but is inconsistent or unverified, so nothing is copied: to \
             keep that data, see `flagstone mirror status {volume}` there; to keep the data of {node}, run \
             `flagstone mirror delete {volume}` and `flagstone mirror create {volume} --target \
             --destroy-data` there"
        );
    }
    if replica.inconsistent && !replica.bad_ranges.is_empty() {
        return format!(
            "the source could not copy the bad ranges listed here to {node}: restore the node that was \
             the source; if it is gone for good, `flagstone mirror failover {volume} --force` here serves \
             older data in these ranges"
        );
    }
    if replica.inconsistent {
        return format!(
            "neither {node} nor {name} has consistent data: restore the node that was the source"
        );
    }
    format!(
        "no node serves {volume}: run `flagstone mirror failover {volume}` on the node that is to become \
         the source"
    )
}

fn target_advice((document, replica, peer): OpenMirror<'_>) -> String {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    if replica.inconsistent && !replica.bad_ranges.is_empty() {
        return format!(
            "{name} could not copy the bad ranges listed here to {node}: replace the failing device; if \
             {name} has failed for good, `flagstone mirror failover {volume} --force` here serves older \
             data in these ranges"
        );
    }
    if replica.inconsistent {
        return format!(
            "the data of {node} is inconsistent until the resync from {name} completes: check that \
             flagstone runs there"
        );
    }
    if replica.unverified {
        return format!(
            "a flush of the device of {node} failed, and its contents are unverified until the resync from \
             {name} completes: check that flagstone runs there; if {name} has failed for good, `flagstone \
             mirror failover {volume} --force` serves the data on the device"
        );
    }
    if replica.holds_nothing() {
        return format!(
            "{node} holds no data yet and waits for the node that serves {volume}; if that is {name}, \
             check that flagstone runs there and that its address is reachable"
        );
    }
    format!(
        "no source is attached: check that flagstone serves {volume} on {name}; if {name} has failed, \
         `flagstone mirror failover {volume} --force` serves the volume here"
    )
}

/// The link versions of both nodes, if none is common.
fn incompatible_versions(link: &LinkDocument) -> Option<NoCommonVersion> {
    let range = |(lowest, highest)| LinkVersions::new(lowest, highest);
    range(link.node_versions)?.highest_common(range(link.peer_versions?)?).err()
}

/// The logical block sizes of this node and the peer in bytes, if they differ.
fn differing_blocks(replica: &ReplicaDocument, peer: &PeerDocument) -> Option<(u32, u32)> {
    let blocks = (replica.block_bytes, peer.last_handshake.as_ref()?.block_bytes);
    (blocks.0 != blocks.1 && blocks.0 != 0 && blocks.1 != 0).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::super::mirror_document::{HandshakeDocument, MirrorAction};
    use super::*;

    fn with(state: ReportedState, replica: ReplicaDocument) -> MirrorDocument {
        let peer = PeerDocument { name: "node-b".into(), state, ..PeerDocument::default() };
        MirrorDocument {
            volume: "db".into(),
            node: "node-a".into(),
            state,
            peers: vec![peer],
            replica: Some(replica),
            ..MirrorDocument::default()
        }
    }

    #[test]
    fn api_page_documents_states_and_actions() {
        let doc = include_str!("../../../../docs/api.md");
        let documented = |word: &str| assert!(doc.contains(&format!("`{word}`")), "no `{word}`");
        ReportedState::ALL.into_iter().for_each(|state| documented(state.name()));
        for action in MirrorAction::ALL {
            documented(action.name());
            action.members().iter().for_each(|member| documented(member));
        }
    }

    #[test]
    fn healthy_mirror_needs_no_advice() {
        let replica = ReplicaDocument { serving: true, ..ReplicaDocument::default() };
        for state in [ReportedState::Mirroring, ReportedState::Resynchronizing] {
            assert!(next(&with(state, replica.clone())).is_empty(), "{state}");
        }
        let target = ReplicaDocument { has_source: true, ..ReplicaDocument::default() };
        assert!(next(&with(ReportedState::Target, target)).is_empty());
    }

    /// Suggested commands can be typed as they are.
    #[test]
    fn commands_name_the_peer_if_there_are_several() {
        let serving = ReplicaDocument { serving: true, ..ReplicaDocument::default() };
        for (state, command) in [
            (ReportedState::SplitBrain, "flagstone mirror resolve db --peer node-b --keep mine"),
            (ReportedState::SplitBrain, "flagstone mirror resolve db --peer node-b --keep peer"),
            (ReportedState::Broken, "flagstone mirror continue db --peer node-b"),
            (ReportedState::Paused, "flagstone mirror continue db --peer node-b"),
        ] {
            let mut now = with(state, serving.clone());
            let other = PeerDocument { name: "node-c".into(), ..PeerDocument::default() };
            now.peers.push(PeerDocument { state: ReportedState::Mirroring, ..other });
            let next = next(&now);
            assert!(next.len() == 1 && next[0].contains(command), "{state}: {next:?}");
        }
    }

    #[test]
    fn advice_names_the_command_for_each_state() {
        let serving = ReplicaDocument { serving: true, ..ReplicaDocument::default() };
        let inconsistent = ReplicaDocument { inconsistent: true, ..ReplicaDocument::default() };
        let waits = ReplicaDocument::default();
        let unverified = ReplicaDocument { unverified: true, ..ReplicaDocument::default() };
        for (state, replica, part) in [
            (ReportedState::SplitBrain, &serving, "flagstone mirror resolve db --keep mine"),
            (ReportedState::SplitBrain, &serving, "flagstone mirror demote db"),
            (ReportedState::Mismatch, &serving, "flagstone mirror create db --target"),
            (ReportedState::NoSource, &waits, "flagstone mirror failover db"),
            (ReportedState::NoSource, &inconsistent, "restore the node"),
            (ReportedState::NoSource, &unverified, "flagstone mirror failover db --force"),
            (ReportedState::NoSource, &serving, "to keep the data of node-a"),
            (ReportedState::Broken, &serving, "flagstone mirror continue db"),
            (ReportedState::Paused, &serving, "flagstone mirror continue db"),
            (ReportedState::ResyncPending, &serving, "resynchronized automatically"),
            (ReportedState::Disconnected, &waits, "flagstone mirror failover db"),
            (ReportedState::Target, &waits, "flagstone mirror failover db"),
            (ReportedState::Target, &inconsistent, "until the resync from node-b completes"),
            (ReportedState::Target, &unverified, "flagstone mirror failover db --force"),
        ] {
            let next = next(&with(state, replica.clone()));
            assert!(next.len() == 1 && next[0].contains(part), "{state}: {next:?}");
        }
        let mut met = with(ReportedState::Disconnected, serving.clone());
        assert!(next(&met)[0].contains("flagstone mirror create db --target"), "{:?}", next(&met));
        met.peers[0].last_handshake = Some(HandshakeDocument::default());
        assert!(next(&met)[0].contains("is not attached"), "{:?}", next(&met));
        let none =
            MirrorDocument { replica: None, ..with(ReportedState::NotCreated, waits.clone()) };
        assert!(next(&none)[0].contains("flagstone mirror create db --source"));
        let mut unknown = with(ReportedState::Disconnected, waits.clone());
        unknown.peers[0].link.name_unknown = true;
        assert!(next(&unknown)[0].contains("the address of node-b is unknown"));
        let mut refused = with(ReportedState::Disconnected, serving.clone());
        refused.peers[0].link.node_refused = true;
        assert!(next(&refused)[0].contains("refuses this node"), "{:?}", next(&refused));
        let blank = ReplicaDocument { generation: "0000000000000000".into(), ..waits };
        let advice = next(&with(ReportedState::Target, blank)).concat();
        assert!(advice.contains("holds no data yet") && !advice.contains("failover"), "{advice}");
    }

    #[test]
    fn group_advice_names_the_volume_that_is_missing() {
        use super::super::mirror_document::GroupDocument;

        let serving = ReplicaDocument { serving: true, ..ReplicaDocument::default() };
        let volumes = vec!["db".to_owned(), "log".to_owned()];
        let whole = GroupDocument { name: "app".into(), volumes, ..GroupDocument::default() };
        let missing = GroupDocument { missing: vec!["log".into()], ..whole.clone() };
        let refused = GroupDocument { refused: vec!["db".into()], ..whole.clone() };
        let of = |state, group: &GroupDocument| {
            let group = Some(group.clone());
            next(&MirrorDocument { group, ..with(state, serving.clone()) })
        };
        let pending = ReportedState::ResyncPending;
        assert!(of(pending, &missing)[0].contains("because log has no open replica on node-a"));
        assert!(
            of(ReportedState::Mismatch, &refused)[0].contains("node-b refuses db in group app")
        );
        // Other problems come first, and so does what the operator ordered.
        assert!(of(ReportedState::SplitBrain, &missing)[0].contains("split brain"));
        assert!(of(ReportedState::Paused, &missing)[0].contains("is paused"));
        assert!(of(pending, &whole)[0].contains("group app are mirrored only together"));
        assert_eq!(of(ReportedState::Mirroring, &whole), Vec::<String>::new());
    }

    #[test]
    fn mismatch_advice_names_the_difference() {
        let serving = ReplicaDocument { serving: true, ..ReplicaDocument::default() };
        let mut far = with(ReportedState::Mismatch, serving.clone());
        far.peers[0].link.node_versions = (2, 3);
        for (peers, older) in [((4, 6), "node-a"), ((1, 1), "node-b")] {
            far.peers[0].link.peer_versions = Some(peers);
            let part = format!("Upgrade Flagstone on {older}");
            assert!(next(&far)[0].contains(&part), "{:?}", next(&far));
        }
        assert!(next(&far)[0].contains("node-b supports version 1,"), "{:?}", next(&far));
        let small = ReplicaDocument { block_bytes: 512, ..serving };
        let mut blocks = with(ReportedState::Mismatch, small);
        let handshake =
            |block_bytes| Some(HandshakeDocument { block_bytes, ..HandshakeDocument::default() });
        blocks.peers[0].last_handshake = handshake(4096);
        let advice = next(&blocks).concat();
        for part in ["512 B on node-a", "4096 B on node-b", "`block_size`"] {
            assert!(advice.contains(part), "no `{part}`: {advice}");
        }
        for same in [0, 512] {
            blocks.peers[0].last_handshake = handshake(same);
            assert!(next(&blocks).concat().contains("has another volume"), "{same}");
        }
    }

    #[test]
    fn failed_device_advice_names_the_repair() {
        let failed = ReplicaDocument {
            serving: true,
            local_device_failed: true,
            ..ReplicaDocument::default()
        };
        let served = next(&with(ReportedState::Mirroring, failed)).remove(0);
        assert!(served.contains("the volume is served by the peer"), "{served}");
        let flush = ReplicaDocument { serving: true, flush_failed: true, ..Default::default() };
        let flush = next(&with(ReportedState::Mirroring, flush)).remove(0);
        assert!(flush.contains("may be lost"), "{flush}");
        for (abandoned, part) in [(false, "reopened automatically"), (true, "replace the device")] {
            let reopening = ReopeningDocument {
                reason: "a flush failed".into(),
                abandoned,
                ..ReopeningDocument::default()
            };
            let target = ReplicaDocument { has_source: true, ..ReplicaDocument::default() };
            let document = MirrorDocument {
                reopening: Some(reopening),
                ..with(ReportedState::Target, target)
            };
            let advice = next(&document).remove(0);
            assert!(advice.contains(part) && advice.contains("a flush failed"), "{advice}");
        }
    }
}
