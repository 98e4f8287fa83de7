//! What is told of a mirror: its document, and what to do next.

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::format::superblock::Role;
use flagstone_mirror::peer::{About, LinkStatus};
use flagstone_mirror::state::{MirrorState, PeerStatus, Wish};
use flagstone_mirror::{Ack, Mirror, Mode, WhenPeerLost, WhenSplit};
use flagstone_runtime::time;

use super::mirror_document::{
    LinkDocument, LogDocument, MetDocument, MirrorDocument, NOT_CREATED, PeerDocument,
    ReplicaDocument, ResyncDocument, VerifyDocument,
};

/// A mirror with the names that people know it by.
#[derive(Clone)]
pub(super) struct Named {
    pub(super) volume: String,
    pub(super) node: String,
    pub(super) peers: Vec<String>,
    /// None before its replica was made.
    pub(super) mirror: Option<Mirror>,
}

/// The states, the worst first: of several peers that of the worst is the mirror's.
const WORST_FIRST: [MirrorState; 10] = [
    MirrorState::SplitBrain,
    MirrorState::Mismatch,
    MirrorState::NoSource,
    MirrorState::Broken,
    MirrorState::Paused,
    MirrorState::ResyncPending,
    MirrorState::Disconnected,
    MirrorState::Resynchronizing,
    MirrorState::Target,
    MirrorState::Mirroring,
];

/// All words for a state.
pub(super) fn states() -> impl Iterator<Item = &'static str> + Clone {
    WORST_FIRST.iter().map(|state| state.name()).chain([NOT_CREATED])
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Target => "target",
    }
}

/// The word for what the operator wants.
pub(super) fn wish_name(wish: Wish) -> &'static str {
    match wish {
        Wish::Mirror => "mirror",
        Wish::Pause => "pause",
        Wish::Break => "break",
    }
}

/// All that is told of a mirror.
pub(super) fn document(named: &Named, verify: Option<VerifyDocument>) -> MirrorDocument {
    let (volume, node) = (named.volume.clone(), named.node.clone());
    let mut document = match &named.mirror {
        None => {
            let peer = |name: &String| PeerDocument {
                name: name.clone(),
                state: NOT_CREATED.into(),
                ..PeerDocument::default()
            };
            let peers = named.peers.iter().map(peer).collect();
            MirrorDocument { volume, node, state: NOT_CREATED.into(), peers, ..Default::default() }
        }
        Some(mirror) => {
            let status = mirror.status();
            let worst = WORST_FIRST
                .iter()
                .find(|state| status.peers.iter().any(|peer| peer.state == **state));
            let peers = named.peers.iter().zip(&status.peers).enumerate();
            MirrorDocument {
                volume,
                node,
                state: worst.map_or("", |state| state.name()).into(),
                next: Vec::new(),
                peers: peers.map(|(leg, (name, status))| peer(mirror, leg, name, status)).collect(),
                replica: Some(replica(named, mirror, &status)),
                verify,
            }
        }
    };
    document.next = next(&document);
    document
}

fn replica(
    named: &Named,
    mirror: &Mirror,
    status: &flagstone_mirror::state::Status,
) -> ReplicaDocument {
    let log = mirror.log_statistics();
    ReplicaDocument {
        role: role_name(status.role).into(),
        active: status.active,
        has_source: mirror.has_source(),
        source: mirror.source().and_then(|leg| named.peers.get(leg).cloned()),
        inconsistent: status.inconsistent,
        local_failed: status.local_failed,
        epoch: status.epoch,
        generation: status.generation.to_string(),
        volume_uuid: status.volume.to_string(),
        replica_uuid: status.replica.to_string(),
        size_bytes: mirror.geometry().size_bytes,
        growing_to_bytes: None,
        in_flight: status.in_flight,
        waiting_for_overlap: status.waiting_for_overlap,
        held: status.held,
        writes: status.writes,
        local_us: status.local_us,
        log: LogDocument {
            hot_regions: log.hot_regions,
            saved_writes: log.hot_calls,
            waited_writes: log.cold_calls,
            record_writes: log.record_writes,
            page_writes: log.page_writes,
            data_flushes: log.data_flushes,
            failures: log.failures,
        },
    }
}

fn peer(mirror: &Mirror, leg: usize, name: &str, status: &PeerStatus) -> PeerDocument {
    let options = mirror.options(leg);
    let options = options.as_ref();
    let resync = ResyncDocument {
        full: mirror.is_full_resync(leg),
        done_bytes: status.resync_done_bytes,
        total_bytes: status.resync_total_bytes,
        skipped_bytes: status.resync_skipped_bytes,
        bytes_per_second: status.resync_bytes_per_s,
        remaining_seconds: status.resync_remaining_s(),
    };
    PeerDocument {
        name: name.to_owned(),
        state: status.state.name().into(),
        wish: wish_name(mirror.wish(leg)).into(),
        mode: options.map_or("", |options| mode_name(options.mode)).into(),
        ack: options
            .map_or("", |options| match options.ack {
                Ack::Disk => "disk",
                Ack::Memory => "memory",
            })
            .into(),
        when_peer_lost: options
            .map_or("", |options| match options.when_lost {
                WhenPeerLost::Continue => "continue",
                WhenPeerLost::Strict => "strict",
            })
            .into(),
        split_brain: options
            .map_or("", |options| match options.when_split {
                WhenSplit::Ask => "ask",
                WhenSplit::KeepServing => "keep-serving",
            })
            .into(),
        compare: options.is_some_and(|options| options.compare),
        full_resync: resync.full,
        met: mirror.met(leg).as_ref().map(met),
        out_of_date_bytes: status.out_of_date_bytes,
        last_in_sync_seconds: match status.state {
            MirrorState::Mirroring => Some(time::wall_clock().as_secs()),
            _ => Some(status.last_in_sync_s).filter(|seconds| *seconds > 0),
        },
        lag_bytes: status.lag_bytes,
        lag_writes: status.lag_writes,
        lag_us: status.lag_us,
        copied_bytes: status.resync_done_bytes.saturating_sub(status.resync_skipped_bytes),
        resync: (status.state == MirrorState::Resynchronizing).then_some(resync),
        added_us: status.added_us,
        added_writes: status.added_writes,
        losses: status.losses,
        given_up: status.given_up,
        given_up_bytes: status.given_up_bytes,
        link: link(&status.link),
    }
}

fn link(status: &LinkStatus) -> LinkDocument {
    LinkDocument {
        compression: status.compression.into(),
        compression_declined: status.is_declined,
        max_bytes_per_second: status.max_bytes_per_s,
        data_bytes: status.data_bytes,
        sent_bytes: status.sent_bytes,
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Sync => "sync",
        Mode::Async => "async",
    }
}

fn met(about: &About) -> MetDocument {
    MetDocument {
        replica_uuid: about.view.replica.to_string(),
        role: role_name(about.role).into(),
        active: about.active,
        epoch: about.view.epoch,
        generation: about.view.lineage.current.to_string(),
        inconsistent: about.view.inconsistent,
    }
}

/// What a command about a peer has after the volume: the peer, when there are several.
pub(super) fn of_peer(document: &MirrorDocument, peer: &PeerDocument) -> String {
    match document.peers.len() {
        0 | 1 => String::new(),
        _ => format!(" --peer {}", peer.name),
    }
}

/// What to do next, most urgent first; nothing when all is well, or ends well by itself.
pub(super) fn next(document: &MirrorDocument) -> Vec<String> {
    let volume = &document.volume;
    let Some(replica) = &document.replica else {
        return vec![format!(
            "make this node's replica: `flagstone mirror create {volume} --source` on the node \
             whose data is kept, then `--target` on the other"
        )];
    };
    let mut next = Vec::new();
    if replica.local_failed {
        next.push(format!(
            "the device of {} has failed and the peer carries the volume: hand it over with \
             `flagstone mirror switchover {volume} --to PEER`; start the server again when the \
             device works or has room again, or replace it and make the replica anew with \
             `flagstone mirror create {volume} --target`",
            document.node
        ));
    }
    next.extend(document.peers.iter().filter_map(|peer| next_of(document, replica, peer)));
    next
}

fn next_of(
    document: &MirrorDocument,
    replica: &ReplicaDocument,
    peer: &PeerDocument,
) -> Option<String> {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    let of = of_peer(document, peer);
    let advice = match peer.state.as_str() {
        "split-brain" => format!(
            "{node} and {name} were both written without the other: nothing is copied until you \
             choose whose data is kept. To keep that of {node}: `flagstone mirror demote {volume}` \
             on {name}, then `flagstone mirror resolve {volume}{of} --keep mine` here. To keep that \
             of {name}: `flagstone mirror resolve {volume}{of} --keep peer` here"
        ),
        "mismatch" => format!(
            "{name} holds another volume, or one of another size: look at it there; to make it a \
             replica of this one, `flagstone mirror delete {volume}` and `flagstone mirror create \
             {volume} --target` there"
        ),
        "no-source" if replica.inconsistent => format!(
            "neither {node} nor {name} has whole data: bring back the node that was the source"
        ),
        "no-source" => format!(
            "nobody serves {volume}: `flagstone mirror failover {volume}` on the node that is to"
        ),
        "broken" => format!(
            "{name} was given up: `flagstone mirror continue {volume}{of}` copies everything to it"
        ),
        "paused" => {
            format!("`flagstone mirror continue {volume}{of}` copies to {name} what it lacks")
        }
        "resync-pending" | "disconnected" if !replica.active => format!(
            "{volume} is not served here until {name} was asked: see that flagstone serves there, \
             and that its address can be reached; if {name} is gone for good, `flagstone mirror \
             failover {volume}`"
        ),
        "resync-pending" | "disconnected" => format!(
            "{name} cannot be reached: see that flagstone serves there, and that its address can \
             be reached; it is brought up to date by itself then"
        ),
        "target" if !replica.has_source && replica.inconsistent => format!(
            "the data of {node} is of no moment in time until the resync from {name} has ended: \
             see that flagstone serves there"
        ),
        "target" if !replica.has_source && replica.holds_nothing() => format!(
            "{node} holds no data yet: it is copied here by the node that serves {volume}; if that \
             is {name}, see that flagstone serves there, and that its address can be reached"
        ),
        "target" if !replica.has_source => format!(
            "no source is attached: see that flagstone serves {volume} on {name}; if {name} is \
             gone, `flagstone mirror failover {volume}` serves it here"
        ),
        _ => return None,
    };
    Some(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(state: &str, replica: ReplicaDocument) -> MirrorDocument {
        let peer =
            PeerDocument { name: "node-b".into(), state: state.into(), ..PeerDocument::default() };
        MirrorDocument {
            volume: "db".into(),
            node: "node-a".into(),
            state: state.into(),
            peers: vec![peer],
            replica: Some(replica),
            ..MirrorDocument::default()
        }
    }

    #[test]
    fn every_state_is_ranked_once() {
        let mut names: Vec<_> = states().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WORST_FIRST.len() + 1);
        assert_eq!(WORST_FIRST[0], MirrorState::SplitBrain);
        assert_eq!(WORST_FIRST.last(), Some(&MirrorState::Mirroring));
    }

    #[test]
    fn the_documentation_tells_of_every_member_and_word() {
        let doc = include_str!("../../../../docs/api.md");
        let told = |what: &str| assert!(doc.contains(&format!("`{what}`")), "no `{what}`");
        let mut now = with("mirroring", ReplicaDocument::default());
        now.verify = Some(VerifyDocument::default());
        (now.peers[0].met, now.peers[0].resync) =
            (Some(Default::default()), Some(Default::default()));
        let mut left = vec![serde_json::to_value(now).unwrap()];
        while let Some(value) = left.pop() {
            match value {
                serde_json::Value::Object(members) => {
                    members.keys().for_each(|key| told(key));
                    left.extend(members.into_iter().map(|(_, value)| value));
                }
                serde_json::Value::Array(values) => left.extend(values),
                _ => {}
            }
        }
        states().for_each(told);
        for (action, members) in super::super::mirror_order::ACTIONS {
            told(action);
            members.iter().for_each(|member| told(member));
        }
    }

    #[test]
    fn what_is_well_needs_nothing() {
        let replica = ReplicaDocument { active: true, ..ReplicaDocument::default() };
        for state in ["mirroring", "resynchronizing"] {
            assert!(next(&with(state, replica.clone())).is_empty(), "{state}");
        }
        let target = ReplicaDocument { has_source: true, ..ReplicaDocument::default() };
        assert!(next(&with("target", target)).is_empty());
    }

    /// What can be typed as it stands there.
    #[test]
    fn of_several_peers_commands_name_theirs() {
        let active = ReplicaDocument { active: true, ..ReplicaDocument::default() };
        for (state, command) in [
            ("split-brain", "flagstone mirror resolve db --peer node-b --keep mine"),
            ("split-brain", "flagstone mirror resolve db --peer node-b --keep peer"),
            ("broken", "flagstone mirror continue db --peer node-b"),
            ("paused", "flagstone mirror continue db --peer node-b"),
        ] {
            let mut now = with(state, active.clone());
            let other = PeerDocument { name: "node-c".into(), ..PeerDocument::default() };
            now.peers.push(PeerDocument { state: "mirroring".into(), ..other });
            let next = next(&now);
            assert!(next.len() == 1 && next[0].contains(command), "{state}: {next:?}");
        }
    }

    #[test]
    fn what_is_not_says_which_command_helps() {
        let active = ReplicaDocument { active: true, ..ReplicaDocument::default() };
        let inconsistent = ReplicaDocument { inconsistent: true, ..ReplicaDocument::default() };
        let waits = ReplicaDocument::default();
        for (state, replica, part) in [
            ("split-brain", &active, "flagstone mirror resolve db --keep mine"),
            ("split-brain", &active, "flagstone mirror demote db"),
            ("mismatch", &active, "flagstone mirror create db --target"),
            ("no-source", &waits, "flagstone mirror failover db"),
            ("no-source", &inconsistent, "bring back the node"),
            ("broken", &active, "flagstone mirror continue db"),
            ("paused", &active, "flagstone mirror continue db"),
            ("resync-pending", &active, "brought up to date by itself"),
            ("disconnected", &waits, "flagstone mirror failover db"),
            ("target", &waits, "flagstone mirror failover db"),
            ("target", &inconsistent, "until the resync from node-b has ended"),
        ] {
            let next = next(&with(state, replica.clone()));
            assert!(next.len() == 1 && next[0].contains(part), "{state}: {next:?}");
        }
        let blank = ReplicaDocument { generation: "0000000000000000".into(), ..waits.clone() };
        let advice = next(&with("target", blank)).concat();
        assert!(advice.contains("holds no data yet") && !advice.contains("failover"), "{advice}");
        let failed = ReplicaDocument { local_failed: true, ..active };
        assert!(next(&with("mirroring", failed))[0].contains("the peer carries the volume"));
        let none =
            MirrorDocument { replica: None, ..with(NOT_CREATED, ReplicaDocument::default()) };
        assert!(next(&none)[0].contains("flagstone mirror create db --source"));
    }
}
