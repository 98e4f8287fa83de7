//! What is told of a mirror: its document, and what to do next.

use std::rc::Rc;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::format::superblock::Role;
use flagstone_mirror::peer::About;
use flagstone_mirror::state::{MirrorState, PeerStatus, Wish};
use flagstone_mirror::{Ack, Mirror, Mode, NoCommonVersion, Versions, WhenPeerLost, WhenSplit};
use flagstone_runtime::time;

use super::mirror_document::{
    LinkDocument, LogDocument, MetDocument, MirrorDocument, NOT_CREATED, NOT_FOUND, PeerDocument,
    ReopeningDocument, ReplicaDocument, ResyncDocument, VerifyDocument,
};
use crate::mirrors::Reopening;

/// A mirror with the names that people know it by.
#[derive(Clone)]
pub(super) struct Named {
    pub(super) volume: String,
    pub(super) node: String,
    pub(super) peers: Vec<String>,
    /// None before its replica was made.
    pub(super) mirror: Option<Mirror>,
    /// Why there is none, where something tells that there was a replica.
    pub(super) missing: Option<Rc<str>>,
    /// It is not the replica that is missing, but its log.
    pub(super) without_log: bool,
    pub(super) reopening: Option<Reopening>,
    pub(super) reopens: u64,
    pub(super) flush_failed: bool,
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
    WORST_FIRST.iter().map(|state| state.name()).chain([NOT_CREATED, NOT_FOUND])
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
            let state = if named.missing.is_some() { NOT_FOUND } else { NOT_CREATED };
            let peer = |name: &String| PeerDocument {
                name: name.clone(),
                state: state.into(),
                ..PeerDocument::default()
            };
            let peers = named.peers.iter().map(peer).collect();
            MirrorDocument { volume, node, state: state.into(), peers, ..Default::default() }
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
                replica: Some(ReplicaDocument {
                    flush_failed: named.flush_failed,
                    ..replica(named, mirror, &status)
                }),
                verify,
                reopening: named.reopening.as_ref().map(reopening),
                reopens: named.reopens,
            }
        }
    };
    document.next = match &named.missing {
        Some(missing) if named.without_log => vec![format!(
            "{missing}. Then start the server of {} again: until then it does not serve {}. Nothing was \
             changed on the device, nor where the log was looked for",
            document.node, document.volume
        )],
        Some(missing) => vec![missing_advice(&document, missing)],
        None => next(&document),
    };
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
        doubtful: mirror.is_doubtful(),
        local_failed: status.local_failed,
        flush_failed: false,
        epoch: status.epoch,
        generation: status.generation.to_string(),
        volume_uuid: status.volume.to_string(),
        replica_uuid: status.replica.to_string(),
        size_bytes: mirror.geometry().size_bytes,
        block_bytes: mirror.geometry().block_bytes,
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

fn reopening(reopening: &Reopening) -> ReopeningDocument {
    let next = reopening.next.map(|next| next.since(time::now()).as_secs_f64());
    ReopeningDocument {
        reason: reopening.reason.clone(),
        attempts: reopening.attempts,
        next_seconds: next,
        given_up: reopening.given_up,
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
        link: link(mirror.versions(), status),
    }
}

fn link(ours: Versions, status: &PeerStatus) -> LinkDocument {
    let PeerStatus { link, versions, .. } = status;
    let range = |versions: Versions| (versions.lowest().0, versions.highest().0);
    let common = versions.and_then(|peers| ours.highest_common(peers).ok());
    LinkDocument {
        compression: link.compression.into(),
        compression_declined: link.is_declined,
        max_bytes_per_second: link.max_bytes_per_s,
        data_bytes: link.data_bytes,
        sent_bytes: link.sent_bytes,
        version: common.map(|version| version.0),
        node_versions: range(ours),
        peer_versions: versions.map(range),
        name_unknown: link.is_name_unknown,
    }
}

/// The versions of the link, where the peer speaks none that this node does.
fn other_release(link: &LinkDocument) -> Option<NoCommonVersion> {
    let range = |(lowest, highest)| Versions::new(lowest, highest);
    range(link.node_versions)?.highest_common(range(link.peer_versions?)?).err()
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
        block_bytes: about.view.block_bytes,
    }
}

/// The logical blocks of the volume here and at the peer, where they differ, in bytes.
fn other_blocks(replica: &ReplicaDocument, peer: &PeerDocument) -> Option<(u32, u32)> {
    let blocks = (replica.block_bytes, peer.met.as_ref()?.block_bytes);
    (blocks.0 != blocks.1 && blocks.0 != 0 && blocks.1 != 0).then_some(blocks)
}

/// What to do about a replica that is not found, though something tells of it.
fn missing_advice(document: &MirrorDocument, missing: &str) -> String {
    let (volume, node) = (&document.volume, &document.node);
    format!(
        "{missing}. Then start the server of {node} again. Nothing was changed on the device. If the \
         replica is gone for good: `flagstone mirror create {volume} --target --destroy-data` copies \
         the volume from a peer, over all that is on the device; `--source --anew` makes what is on the \
         device a new volume, to which the peers' replicas are no copies"
    )
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
    let mut next: Vec<String> = device_advice(document, replica).into_iter().collect();
    next.extend(document.peers.iter().filter_map(|peer| next_of(document, replica, peer)));
    next
}

/// What to do about a device of the replica that failed.
fn device_advice(document: &MirrorDocument, replica: &ReplicaDocument) -> Option<String> {
    let (volume, node) = (&document.volume, &document.node);
    match &document.reopening {
        Some(ReopeningDocument { reason, given_up: true, attempts, .. }) => Some(format!(
            "{reason}: it was opened again {attempts} times and failed each time; replace the device of \
             {node}, or start the server there again when it works"
        )),
        Some(ReopeningDocument { reason, .. }) => Some(format!(
            "the replica of {node} is opened again by itself as soon as that can be done ({reason}), \
             and brought up to date by its source then"
        )),
        None if replica.local_failed => Some(format!(
            "the device of {node} has failed and the peer carries the volume: hand it over with \
             `flagstone mirror switchover {volume} --to PEER`; the device is opened again by itself \
             then, and brought up to date as soon as it works or has room again; if it is gone for good, \
             replace it, start the server again and make the replica anew with `flagstone mirror create \
             {volume} --target`"
        )),
        None if replica.flush_failed && replica.active => Some(format!(
            "a flush of the device of {node}, or of its log's, failed, and no peer carries the volume: \
             nothing more is written, and what hosts wrote since the last flush that succeeded may be \
             lost though it is read still. Copy what is needed; then either `flagstone mirror failover \
             {volume}` on a peer whose data is good enough, or start the server here again, which goes \
             on with what the device kept"
        )),
        None => None,
    }
}

fn next_of(
    document: &MirrorDocument,
    replica: &ReplicaDocument,
    peer: &PeerDocument,
) -> Option<String> {
    let (volume, node, name) = (&document.volume, &document.node, &peer.name);
    let of = of_peer(document, peer);
    let lost = ["resync-pending", "disconnected"].contains(&peer.state.as_str());
    let alone = ["no-source", "target"].contains(&peer.state.as_str()) && !replica.has_source;
    if peer.link.name_unknown && (lost || alone) {
        return Some(format!(
            "the address of {name} is not known: see that a name server answers, and that `address` of \
             [peer.{name}] is right; it is looked up again and again, and {name} is reached as soon as \
             it is known. If {name} is gone for good, `flagstone mirror failover {volume}` serves it \
             here"
        ));
    }
    let advice = match peer.state.as_str() {
        "split-brain" => format!(
            "{node} and {name} were both written without the other: nothing is copied until you \
             choose whose data is kept. To keep that of {node}: `flagstone mirror demote {volume}` \
             on {name}, then `flagstone mirror resolve {volume}{of} --keep mine` here. To keep that \
             of {name}: `flagstone mirror resolve {volume}{of} --keep peer` here"
        ),
        "mismatch" => match other_release(&peer.link) {
            Some(none) => {
                let (ours, theirs) = (none.ours, none.peers);
                let older = if none.is_ours_older() { node } else { name };
                format!(
                    "{name} speaks {theirs} of the replication link, and {node} {ours}: upgrade \
                     Flagstone on {older}; both go on by themselves then"
                )
            }
            None if let Some((ours, theirs)) = other_blocks(replica, peer) => {
                crate::mirrors::other_blocks(volume, (node, ours), (name, theirs))
            }
            None => format!(
                "{name} holds another volume, or one of another size: look at it there; to make it \
                 a replica of this one, `flagstone mirror delete {volume}` and `flagstone mirror \
                 create {volume} --target` there"
            ),
        },
        "no-source" if replica.doubtful && !replica.active => format!(
            "a flush of the disk of {node} failed, and what it shows may be lost with its power: \
             bring back a node whose data is whole; if there is none, `flagstone mirror failover \
             {volume} --force` here serves what it shows"
        ),
        "no-source" if replica.active => format!(
            "{name} has what {node} lacks, and is not whole or in doubt, so nothing is copied: to \
             keep that, see `flagstone mirror status {volume}` there; to keep that of {node}, \
             `flagstone mirror delete {volume}` and `flagstone mirror create {volume} --target \
             --destroy-data` there"
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
        "target" if !replica.has_source && replica.doubtful => format!(
            "a flush of the disk of {node} failed, and what it shows is in doubt until the resync \
             from {name} has ended: see that flagstone serves there; if {name} is gone for good, \
             `flagstone mirror failover {volume} --force` serves here what the disk shows"
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
        assert_eq!(names.len(), WORST_FIRST.len() + 2);
        assert_eq!(WORST_FIRST[0], MirrorState::SplitBrain);
        assert_eq!(WORST_FIRST.last(), Some(&MirrorState::Mirroring));
    }

    #[test]
    fn the_documentation_tells_of_every_member_and_word() {
        let doc = include_str!("../../../../docs/api.md");
        let told = |what: &str| assert!(doc.contains(&format!("`{what}`")), "no `{what}`");
        let mut now = with("mirroring", ReplicaDocument::default());
        now.verify = Some(VerifyDocument::default());
        now.reopening = Some(ReopeningDocument::default());
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
        let doubtful = ReplicaDocument { doubtful: true, ..ReplicaDocument::default() };
        for (state, replica, part) in [
            ("split-brain", &active, "flagstone mirror resolve db --keep mine"),
            ("split-brain", &active, "flagstone mirror demote db"),
            ("mismatch", &active, "flagstone mirror create db --target"),
            ("no-source", &waits, "flagstone mirror failover db"),
            ("no-source", &inconsistent, "bring back the node"),
            ("no-source", &doubtful, "flagstone mirror failover db --force"),
            ("no-source", &active, "to keep that of node-a"),
            ("broken", &active, "flagstone mirror continue db"),
            ("paused", &active, "flagstone mirror continue db"),
            ("resync-pending", &active, "brought up to date by itself"),
            ("disconnected", &waits, "flagstone mirror failover db"),
            ("target", &waits, "flagstone mirror failover db"),
            ("target", &inconsistent, "until the resync from node-b has ended"),
            ("target", &doubtful, "flagstone mirror failover db --force"),
        ] {
            let next = next(&with(state, replica.clone()));
            assert!(next.len() == 1 && next[0].contains(part), "{state}: {next:?}");
        }
        let mut far = with("mismatch", active.clone());
        far.peers[0].link.node_versions = (2, 3);
        for (peers, older) in [((4, 6), "node-a"), ((1, 1), "node-b")] {
            far.peers[0].link.peer_versions = Some(peers);
            let part = format!("upgrade Flagstone on {older}");
            assert!(next(&far)[0].contains(&part), "{:?}", next(&far));
        }
        assert!(next(&far)[0].contains("node-b speaks version 1 of"), "{:?}", next(&far));
        let mut blocks = with("mismatch", ReplicaDocument { block_bytes: 512, ..active.clone() });
        let met = |block_bytes| Some(MetDocument { block_bytes, ..MetDocument::default() });
        blocks.peers[0].met = met(4096);
        let advice = next(&blocks).concat();
        for part in ["512 B on node-a", "4096 B on node-b", "`block_size`"] {
            assert!(advice.contains(part), "no `{part}`: {advice}");
        }
        for same in [0, 512] {
            blocks.peers[0].met = met(same);
            assert!(next(&blocks).concat().contains("holds another volume"), "{same}");
        }
        let mut unknown = with("disconnected", ReplicaDocument::default());
        unknown.peers[0].link.name_unknown = true;
        assert!(next(&unknown)[0].contains("the address of node-b is not known"));
        let blank = ReplicaDocument { generation: "0000000000000000".into(), ..waits.clone() };
        let advice = next(&with("target", blank)).concat();
        assert!(advice.contains("holds no data yet") && !advice.contains("failover"), "{advice}");
        let failed = ReplicaDocument { local_failed: true, ..active };
        let carried = next(&with("mirroring", failed)).remove(0);
        assert!(carried.contains("the peer carries the volume"), "{carried}");
        let alone = ReplicaDocument { active: true, flush_failed: true, ..Default::default() };
        let alone = next(&with("mirroring", alone)).remove(0);
        assert!(alone.contains("may be lost"), "{alone}");
        for (given_up, part) in [(false, "opened again by itself"), (true, "replace the device")] {
            let reopening = ReopeningDocument {
                reason: "a flush failed".into(),
                given_up,
                ..ReopeningDocument::default()
            };
            let target = ReplicaDocument { has_source: true, ..ReplicaDocument::default() };
            let document = MirrorDocument { reopening: Some(reopening), ..with("target", target) };
            let said = next(&document).remove(0);
            assert!(said.contains(part) && said.contains("a flush failed"), "{said}");
        }
        let none =
            MirrorDocument { replica: None, ..with(NOT_CREATED, ReplicaDocument::default()) };
        assert!(next(&none)[0].contains("flagstone mirror create db --source"));
    }
}
