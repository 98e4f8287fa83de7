//! Mirror status: the document of a mirrored volume.

use std::time::Duration;

use flagstone_arbiter::race::Denial;
use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::session::bad_ranges::BadRange;
use flagstone_mirror::state::status::{MirrorPeerStatus, MirrorState, MirrorStatus};
use flagstone_mirror::wire::peer::ReplicaIdentity;
use flagstone_mirror::{FailoverStatus, Fencing, LinkVersions, Mirror};
use flagstone_runtime::time;

use super::mirror_advice::{log_missing_advice, missing_advice, next};
use super::mirror_document::{
    BadRangeDocument, FailoverDocument, FencingState, GroupDocument, HandshakeDocument,
    LinkDocument, MirrorDocument, PeerDocument, ReopeningDocument, ReplicaDocument, ReportedState,
    ResyncDocument, VerifyDocument,
};
use crate::mirrors::MirroredVolume;

/// The document of a mirror. `verify` is the running verify, or the last one.
pub(super) fn document(
    mirrored: &MirroredVolume,
    verify: Option<VerifyDocument>,
) -> MirrorDocument {
    let missing = mirrored.missing();
    let mut document = MirrorDocument {
        volume: mirrored.name.clone(),
        node: mirrored.node.clone(),
        state: match missing {
            Some(_) => ReportedState::NotFound,
            None => ReportedState::NotCreated,
        },
        group: mirrored.group().map(|group| group.status()).map(|group| GroupDocument {
            name: group.name,
            volumes: group.volumes,
            missing: group.missing,
            refused: group.refused,
            consistent: group.consistent,
        }),
        ..MirrorDocument::default()
    };
    if let Some(mirror) = mirrored.mirror() {
        let status = mirror.status();
        let names = mirrored.peers();
        let peers = names.iter().zip(&status.peers).enumerate();
        document.peers =
            peers.map(|(leg, (name, peer))| self::peer(&mirror, leg, name, peer)).collect();
        let is_state =
            |state: &ReportedState| document.peers.iter().any(|peer| peer.state == *state);
        document.state = ReportedState::ALL.into_iter().find(is_state).unwrap_or_default();
        document.replica = Some(replica(mirrored, &mirror, &status));
        document.verify = verify;
        let failover = mirror.failover_status();
        document.failover = failover.map(|failover| self::failover(status.serving, &failover));
        document.reopening = mirrored.reopening().map(|reopening| ReopeningDocument {
            reason: reopening.reason,
            attempts: reopening.attempts,
            next_seconds: reopening.next.map(|next| next.since(time::now()).as_secs_f64()),
            abandoned: reopening.abandoned,
        });
        document.reopens = mirrored.reopens();
    } else {
        let state = document.state;
        let peer = |name| PeerDocument { name, state, ..Default::default() };
        document.peers = mirrored.peers().into_iter().map(peer).collect();
    }
    document.next = match missing {
        Some(missing) if mirrored.is_without_log() => vec![log_missing_advice(&document, &missing)],
        Some(missing) => vec![missing_advice(&document, &missing)],
        None => next(&document),
    };
    document
}

fn replica(mirrored: &MirroredVolume, mirror: &Mirror, status: &MirrorStatus) -> ReplicaDocument {
    ReplicaDocument {
        role: status.role,
        serving: status.serving,
        has_source: mirror.has_source(),
        source: mirror.source().and_then(|leg| mirrored.peers().get(leg).cloned()),
        inconsistent: status.inconsistent,
        removed: status.removed,
        unverified: mirror.is_unverified(),
        local_device_failed: status.local_device_failed,
        flush_failed: mirrored.has_failed_flush(),
        role_epoch: status.role_epoch,
        generation: status.generation.to_string(),
        volume_uuid: status.volume.to_string(),
        replica_uuid: status.replica.to_string(),
        size_bytes: mirror.geometry().size_bytes,
        block_bytes: mirror.geometry().block_bytes,
        growing_to_bytes: mirrored.growing_to(),
        in_flight: status.in_flight,
        waiting_for_range_lock: status.waiting_for_range_lock,
        blocked: status.blocked,
        writes: status.writes,
        local_us: status.local_us,
        bad_ranges: status.bad_ranges.iter().map(bad_range).collect(),
        repairs: status.repairs,
        repaired_bytes: status.repaired_bytes,
        intent_log: mirror.log_statistics(),
        intent_log_device: mirrored.log_device_name(),
        intent_log_lost: mirror.log_lost().map(|lost| lost.to_string()),
    }
}

/// Who would win at the arbiter now, and why not.
fn failover(serving: bool, failover: &FailoverStatus) -> FailoverDocument {
    let peer_obstacle = failover.peer_obstacle.filter(|_| serving);
    FailoverDocument {
        would_win: failover.obstacle.is_none(),
        obstacle: failover.obstacle,
        obstacle_volume: failover.volume.clone(),
        peer_would_win: serving && peer_obstacle.is_none(),
        peer_obstacle,
        peer_obstacle_volume: failover.peer_volume.clone().filter(|_| serving),
        max_lag_ms: failover.max_lag.map(millis),
        lag_at_takeover_ms: failover.lag_at_takeover.map(millis),
        suspended: failover.is_suspended,
        revision: failover.mark.revision,
        denial: failover.denial.as_ref().map(Denial::to_string),
        fencing: failover.fencing.as_ref().map(|fencing| match fencing {
            Fencing::Idle => FencingState::Idle,
            Fencing::Running { .. } => FencingState::Running,
            Fencing::Succeeded => FencingState::Succeeded,
            Fencing::NotNeeded => FencingState::NotNeeded,
            Fencing::Failed(_) => FencingState::Failed,
        }),
        fencing_failure: failover
            .fencing
            .as_ref()
            .and_then(Fencing::failure)
            .map(ToString::to_string),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn bad_range(bad: &BadRange) -> BadRangeDocument {
    BadRangeDocument { offset: bad.offset, bytes: bad.len, cause: bad.cause }
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
        out_of_sync_bytes: status.out_of_sync_bytes,
        last_in_sync_seconds: match status.state {
            MirrorState::Mirroring => Some(time::wall_clock().as_secs()),
            _ => Some(status.last_in_sync_s).filter(|seconds| *seconds > 0),
        },
        lag_bytes: status.lag_bytes,
        lag_writes: status.lag_writes,
        lag_us: status.lag_us,
        copied_bytes: status.resync_done_bytes.saturating_sub(status.resync_skipped_bytes),
        resynced_bytes: status.resynced_bytes,
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
        node_refused: link.is_node_refused,
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
