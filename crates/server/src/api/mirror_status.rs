//! Mirror status: builds a mirror's document from the open mirror and its configured names.

use std::rc::Rc;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::peer::ReplicaIdentity;
use flagstone_mirror::state::{MirrorPeerStatus, MirrorState, MirrorStatus};
use flagstone_mirror::{LinkVersions, Mirror};
use flagstone_runtime::time;

use super::mirror_advice::{log_missing_advice, missing_advice, next};
use super::mirror_document::{
    HandshakeDocument, IntentLogDocument, LinkDocument, MirrorDocument, PeerDocument,
    ReopeningDocument, ReplicaDocument, ReportedState, ResyncDocument, VerifyDocument,
};
use crate::mirrors::Reopening;

/// A mirror with its configured names.
#[derive(Clone)]
pub(super) struct NamedMirror {
    pub(super) volume: String,
    pub(super) node: String,
    pub(super) peers: Vec<String>,
    /// `None` without an open replica.
    pub(super) mirror: Option<Mirror>,
    /// Why there is no open replica, if there are traces of one.
    pub(super) missing: Option<Rc<str>>,
    /// The replica exists, but its log device is unusable.
    pub(super) without_log: bool,
    pub(super) reopening: Option<Reopening>,
    pub(super) reopens: u64,
    pub(super) flush_failed: bool,
}

/// The document of a mirror.
pub(super) fn document(named: &NamedMirror, verify: Option<VerifyDocument>) -> MirrorDocument {
    let mut document = match &named.mirror {
        None => without_replica(named),
        Some(mirror) => open_mirror(named, mirror, verify),
    };
    document.next = match &named.missing {
        Some(missing) if named.without_log => vec![log_missing_advice(&document, missing)],
        Some(missing) => vec![missing_advice(&document, missing)],
        None => next(&document),
    };
    document
}

fn without_replica(named: &NamedMirror) -> MirrorDocument {
    let state = match named.missing {
        Some(_) => ReportedState::NotFound,
        None => ReportedState::NotCreated,
    };
    let peer =
        |name: &String| PeerDocument { name: name.clone(), state, ..PeerDocument::default() };
    MirrorDocument {
        volume: named.volume.clone(),
        node: named.node.clone(),
        state,
        peers: named.peers.iter().map(peer).collect(),
        ..MirrorDocument::default()
    }
}

fn open_mirror(
    named: &NamedMirror,
    mirror: &Mirror,
    verify: Option<VerifyDocument>,
) -> MirrorDocument {
    let status = mirror.status();
    let peers = named.peers.iter().zip(&status.peers).enumerate();
    let peers: Vec<PeerDocument> =
        peers.map(|(leg, (name, status))| peer(mirror, leg, name, status)).collect();
    let worst =
        ReportedState::ALL.into_iter().find(|state| peers.iter().any(|peer| peer.state == *state));
    MirrorDocument {
        volume: named.volume.clone(),
        node: named.node.clone(),
        state: worst.unwrap_or_default(),
        next: Vec::new(),
        peers,
        replica: Some(replica(named, mirror, &status)),
        verify,
        reopening: named.reopening.as_ref().map(reopening),
        reopens: named.reopens,
    }
}

fn replica(named: &NamedMirror, mirror: &Mirror, status: &MirrorStatus) -> ReplicaDocument {
    let log = mirror.log_statistics();
    ReplicaDocument {
        role: status.role,
        serving: status.serving,
        has_source: mirror.has_source(),
        source: mirror.source().and_then(|leg| named.peers.get(leg).cloned()),
        inconsistent: status.inconsistent,
        unverified: mirror.is_unverified(),
        local_device_failed: status.local_device_failed,
        flush_failed: named.flush_failed,
        role_epoch: status.role_epoch,
        generation: status.generation.to_string(),
        volume_uuid: status.volume.to_string(),
        replica_uuid: status.replica.to_string(),
        size_bytes: mirror.geometry().size_bytes,
        block_bytes: mirror.geometry().block_bytes,
        growing_to_bytes: None,
        in_flight: status.in_flight,
        waiting_for_range_lock: status.waiting_for_range_lock,
        blocked: status.blocked,
        writes: status.writes,
        local_us: status.local_us,
        intent_log: IntentLogDocument {
            active_regions: log.active_regions,
            activity_log_hits: log.activity_log_hits,
            activity_log_misses: log.activity_log_misses,
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
        abandoned: reopening.abandoned,
    }
}

fn peer(mirror: &Mirror, leg: usize, name: &str, status: &MirrorPeerStatus) -> PeerDocument {
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
        state: status.state.into(),
        desired_state: Some(mirror.desired_state(leg)),
        mode: options.map(|options| options.mode),
        ack: options.map(|options| options.ack),
        on_peer_loss: options.map(|options| options.on_peer_loss),
        after_split_brain: options.map(|options| options.after_split_brain),
        compare: options.is_some_and(|options| options.compare),
        full_resync: resync.full,
        last_handshake: mirror.last_handshake(leg).as_ref().map(handshake),
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
        disconnects: status.disconnects,
        discards: status.discards,
        discarded_bytes: status.discarded_bytes,
        link: link(mirror.versions(), status),
    }
}

fn link(ours: LinkVersions, status: &MirrorPeerStatus) -> LinkDocument {
    let MirrorPeerStatus { link, versions, .. } = status;
    let range = |versions: LinkVersions| (versions.lowest().0, versions.highest().0);
    let common = versions.and_then(|peers| ours.highest_common(peers).ok());
    LinkDocument {
        compression: link.compression,
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

fn handshake(identity: &ReplicaIdentity) -> HandshakeDocument {
    HandshakeDocument {
        replica_uuid: identity.view.replica.to_string(),
        role: identity.role,
        serving: identity.is_serving,
        role_epoch: identity.view.epoch,
        generation: identity.view.generations.current.to_string(),
        inconsistent: identity.view.inconsistent,
        block_bytes: identity.view.block_bytes,
    }
}

/// The `--peer` option of a command about a peer; empty if the volume has one peer.
pub(super) fn peer_option(document: &MirrorDocument, peer: &PeerDocument) -> String {
    match document.peers.len() {
        0 | 1 => String::new(),
        _ => format!(" --peer {}", peer.name),
    }
}
