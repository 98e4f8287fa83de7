//! Conversion between the mirror's requests and replies and the NVMe vendor commands. Input from
//! the wire is checked.

use flagstone_mirror::agree::decide::ReplicaView;
use flagstone_mirror::agree::generation::{GenerationHistory, GenerationList};
use flagstone_mirror::id::{Generation, MirrorId};
use flagstone_mirror::io::reorder::WriteOrder;
use flagstone_mirror::limits::{
    BASES_LEN, HISTORY_LEN, RESERVATION_PAGE_BYTES, RESERVATION_RECORD_MAX_BYTES,
    SNAPSHOT_NAME_BYTES, SNAPSHOTS_PER_PAGE,
};
use flagstone_mirror::ondisk::bitmap_page::WORDS;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::outlook::Obstacle;
use flagstone_mirror::wire::peer::{
    AttachRequest, BadRangeReport, LossPermission, PeerRefusal, PeerReply, PeerRequest,
    RecordStamp, ReplicaIdentity, ReservationPage,
};
use flagstone_mirror::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotName, SnapshotRequest};
use flagstone_mirror::{LinkVersion, LinkVersions};
use flagstone_nvme::replica as wire;
use flagstone_nvme::replica::StateChange;
use flagstone_nvme::wire::{U32, U64};
use flagstone_nvme::{Status, Wire};

// The wire structures have the same sizes as the mirror's.
const _: () = assert!(WORDS == wire::BITMAP_WORDS);
const _: () = assert!(BASES_LEN == wire::reply::BASES && HISTORY_LEN == wire::reply::HISTORY);
const _: () = assert!(flagstone_mirror::limits::CHECK_BYTES == wire::CHECK_BYTES);
const _: () = assert!(SNAPSHOT_NAME_BYTES == wire::SNAPSHOT_NAME_BYTES);
const _: () = assert!(SNAPSHOTS_PER_PAGE == wire::SNAPSHOTS_PER_PAGE);
const _: () = assert!(RESERVATION_PAGE_BYTES == wire::RESERVATION_PAGE_BYTES);
const _: () = assert!(RESERVATION_RECORD_MAX_BYTES == wire::RESERVATION_RECORD_MAX_BYTES);

/// Encodes a request as a command; `None` for a range that no command can express.
pub(crate) fn to_wire(request: &PeerRequest) -> Option<wire::ReplicaRequest> {
    Some(match *request {
        PeerRequest::Identify { asker } => wire::ReplicaRequest::Identify { asker: asker.0 },
        PeerRequest::Attach(attach) => {
            let who = (attach.volume.0, attach.source.0);
            let encoded =
                wire::Attach::new(who.0, who.1, attach.epoch, attach.expected.0, attach.in_sync);
            let encoded = encoded.of_size(attach.usable_bytes).of_version(attach.version.0);
            let attach_data = encoded.of_group(attach.group).asking(attach.asks.is_some());
            wire::ReplicaRequest::Attach { attach: attach_data, revision: attach.asks.unwrap_or(0) }
        }
        PeerRequest::Ancestors { generations } => {
            let encoded = generations.0.map(|generation| generation.0);
            wire::ReplicaRequest::Ancestors(wire::Ancestors::new(encoded))
        }
        PeerRequest::BitmapPage { page } => wire::ReplicaRequest::Bitmap { page },
        PeerRequest::JoinGroup { session } => wire::ReplicaRequest::JoinGroup { session },
        PeerRequest::BeginResync { base } => state(StateChange::BeginResync, base),
        PeerRequest::EndResync { generation } => state(StateChange::EndResync, generation),
        PeerRequest::NewGeneration { generation } => state(StateChange::NewGeneration, generation),
        PeerRequest::RunDegraded { generation, lost } => {
            wire::ReplicaRequest::RunDegraded { lost: lost.0, generation: generation.0 }
        }
        PeerRequest::Promote { epoch, revision, leaves } => {
            wire::ReplicaRequest::Promote { epoch, revision, leaves }
        }
        PeerRequest::HandOver => wire::ReplicaRequest::HandOver,
        PeerRequest::Depose { volume, epoch } => {
            wire::ReplicaRequest::Depose { volume: volume.0, epoch }
        }
        PeerRequest::Claim { volume, epoch } => {
            wire::ReplicaRequest::Claim { volume: volume.0, epoch }
        }
        PeerRequest::Remove { volume, epoch } => {
            wire::ReplicaRequest::Remove { volume: volume.0, epoch }
        }
        PeerRequest::ZeroNewSpace { usable_bytes } => {
            wire::ReplicaRequest::ZeroNewSpace { usable_bytes }
        }
        PeerRequest::Renew { offer, failover_after_ms, lag_ms } => {
            wire::ReplicaRequest::Renew { offer: offer_to_wire(offer), failover_after_ms, lag_ms }
        }
        PeerRequest::BadRange(BadRangeReport { offset, len, index, count }) => {
            wire::ReplicaRequest::BadRange { offset, len, index, count }
        }
        PeerRequest::Discard { base, expected } => {
            wire::ReplicaRequest::Discard { base: base.0, expected: expected.0 }
        }
        PeerRequest::Snapshot(SnapshotRequest { id, name, action, wait_ms }) => {
            let action = match action {
                SnapshotAction::Check => wire::SnapshotAction::Check,
                SnapshotAction::Take => wire::SnapshotAction::Take,
                SnapshotAction::Find => wire::SnapshotAction::Find,
                SnapshotAction::Delete => wire::SnapshotAction::Delete,
            };
            let command = wire::SnapshotCommand { action, wait_ms };
            let snapshot = wire::Snapshot::new(id.0, name.as_str())?;
            wire::ReplicaRequest::Snapshot { snapshot, command }
        }
        PeerRequest::SnapshotIds { after } => wire::ReplicaRequest::Snapshots { after: after.0 },
        PeerRequest::Reservations(ref page) => {
            let &ReservationPage { number, record_bytes, ref part } = page;
            wire::ReplicaRequest::Reservations(wire::ReservationPage::new(
                number,
                record_bytes,
                part,
            )?)
        }
        PeerRequest::Checksums { offset, len, unit_bytes } => {
            let len = u32::try_from(len).ok().filter(|len| u64::from(*len) <= wire::CHECK_BYTES)?;
            if unit_bytes < wire::CHECK_UNIT_MIN_BYTES {
                return None;
            }
            wire::ReplicaRequest::Checksum { offset, len, unit_bytes }
        }
    })
}

fn offer_to_wire(offer: LossPermission) -> wire::LossPermission {
    match offer {
        LossPermission::Unrecorded { asks } => wire::LossPermission::Unrecorded { asks },
        LossPermission::Recorded(RecordStamp { revision, writer }) => {
            wire::LossPermission::Recorded { revision, writer }
        }
        LossPermission::Suspended => wire::LossPermission::Suspended,
        LossPermission::Behind => wire::LossPermission::Behind,
    }
}

fn offer_from_wire(offer: wire::LossPermission) -> LossPermission {
    match offer {
        wire::LossPermission::Unrecorded { asks } => LossPermission::Unrecorded { asks },
        wire::LossPermission::Recorded { revision, writer } => {
            LossPermission::Recorded(RecordStamp { revision, writer })
        }
        wire::LossPermission::Suspended => LossPermission::Suspended,
        wire::LossPermission::Behind => LossPermission::Behind,
    }
}

/// Codes of the answer to Replica Renew. Others mean an unknown obstacle.
const OBSTACLES: [(u64, Option<Obstacle>); 9] = [
    (0, None),
    (1, Some(Obstacle::Manual)),
    (2, Some(Obstacle::NotInSync)),
    (3, Some(Obstacle::Suspended)),
    (4, Some(Obstacle::ArbiterSilent)),
    (5, Some(Obstacle::RecordUnusable)),
    (6, Some(Obstacle::Inconsistent)),
    (7, Some(Obstacle::Device)),
    (8, Some(Obstacle::Behind)),
];

fn readiness_to_wire(obstacle: Option<Obstacle>) -> u64 {
    OBSTACLES.iter().find(|(_, known)| *known == obstacle).map_or(u64::MAX, |(code, _)| *code)
}

fn readiness_from_wire(code: u64) -> Option<Obstacle> {
    let known = OBSTACLES.iter().find(|(known, _)| *known == code);
    known.map_or(Some(Obstacle::Unknown), |(_, obstacle)| *obstacle)
}

fn state(state: StateChange, generation: Generation) -> wire::ReplicaRequest {
    wire::ReplicaRequest::SetState { state, generation: generation.0 }
}

/// Decodes a command; `None` if a name in it is invalid, which its parser refuses.
pub(crate) fn from_wire(request: wire::ReplicaRequest) -> Option<PeerRequest> {
    Some(match request {
        wire::ReplicaRequest::Identify { asker } => {
            PeerRequest::Identify { asker: MirrorId(asker) }
        }
        wire::ReplicaRequest::Attach { attach, revision } => PeerRequest::Attach(AttachRequest {
            volume: MirrorId(attach.volume),
            source: MirrorId(attach.source),
            epoch: attach.epoch.get(),
            expected: Generation(attach.expected.get()),
            in_sync: attach.in_sync(),
            usable_bytes: attach.usable_bytes.get(),
            version: LinkVersion(attach.version()),
            group: attach.group.get(),
            asks: attach.asks().then_some(revision),
        }),
        wire::ReplicaRequest::Ancestors(encoded) => PeerRequest::Ancestors {
            generations: GenerationList(
                encoded.generations.map(|generation| Generation(generation.get())),
            ),
        },
        wire::ReplicaRequest::Bitmap { page } => PeerRequest::BitmapPage { page },
        wire::ReplicaRequest::SetState { state, generation } => {
            let generation = Generation(generation);
            match state {
                StateChange::BeginResync => PeerRequest::BeginResync { base: generation },
                StateChange::EndResync => PeerRequest::EndResync { generation },
                StateChange::NewGeneration => PeerRequest::NewGeneration { generation },
            }
        }
        wire::ReplicaRequest::RunDegraded { lost, generation } => {
            PeerRequest::RunDegraded { generation: Generation(generation), lost: MirrorId(lost) }
        }
        wire::ReplicaRequest::Promote { epoch, revision, leaves } => {
            PeerRequest::Promote { epoch, revision, leaves }
        }
        wire::ReplicaRequest::HandOver => PeerRequest::HandOver,
        wire::ReplicaRequest::Depose { volume, epoch } => {
            PeerRequest::Depose { volume: MirrorId(volume), epoch }
        }
        wire::ReplicaRequest::Claim { volume, epoch } => {
            PeerRequest::Claim { volume: MirrorId(volume), epoch }
        }
        wire::ReplicaRequest::Remove { volume, epoch } => {
            PeerRequest::Remove { volume: MirrorId(volume), epoch }
        }
        wire::ReplicaRequest::JoinGroup { session } => PeerRequest::JoinGroup { session },
        wire::ReplicaRequest::ZeroNewSpace { usable_bytes } => {
            PeerRequest::ZeroNewSpace { usable_bytes }
        }
        wire::ReplicaRequest::Renew { offer, failover_after_ms, lag_ms } => {
            PeerRequest::Renew { offer: offer_from_wire(offer), failover_after_ms, lag_ms }
        }
        wire::ReplicaRequest::BadRange { offset, len, index, count } => {
            PeerRequest::BadRange(BadRangeReport { offset, len, index, count })
        }
        wire::ReplicaRequest::Discard { base, expected } => {
            PeerRequest::Discard { base: Generation(base), expected: Generation(expected) }
        }
        wire::ReplicaRequest::Checksum { offset, len, unit_bytes } => {
            PeerRequest::Checksums { offset, len: len.into(), unit_bytes }
        }
        wire::ReplicaRequest::Snapshot { snapshot, command } => {
            let action = match command.action {
                wire::SnapshotAction::Check => SnapshotAction::Check,
                wire::SnapshotAction::Take => SnapshotAction::Take,
                wire::SnapshotAction::Find => SnapshotAction::Find,
                wire::SnapshotAction::Delete => SnapshotAction::Delete,
            };
            let (id, name) = (SnapshotId(snapshot.id), SnapshotName::new(snapshot.name())?);
            let wait_ms = command.wait_ms;
            PeerRequest::Snapshot(SnapshotRequest { id, name, action, wait_ms })
        }
        wire::ReplicaRequest::Snapshots { after } => {
            PeerRequest::SnapshotIds { after: SnapshotId(after) }
        }
        wire::ReplicaRequest::Reservations(page) => PeerRequest::Reservations(ReservationPage {
            number: page.number(),
            record_bytes: page.record_bytes(),
            part: page.part().to_vec(),
        }),
    })
}

pub(crate) fn order_to_wire(order: WriteOrder) -> wire::WritePosition {
    wire::WritePosition { number: order.number, concurrent: order.concurrent }
}

pub(crate) fn order_from_wire(order: wire::WritePosition) -> WriteOrder {
    WriteOrder { number: order.number, concurrent: order.concurrent }
}

/// Writes a reply into `buffer`, which has the size that the request specifies; false when it does
/// not fit.
pub(crate) fn put_reply(reply: &PeerReply, buffer: &mut [u8]) -> bool {
    match reply {
        PeerReply::Done => buffer.is_empty(),
        PeerReply::Identity(identity) => {
            identity_to_wire(identity).encode(buffer) == Some(buffer.len())
        }
        // Replicas never report this about themselves.
        PeerReply::Incompatible(_) => false,
        PeerReply::BitmapPage(words) => put_words(&words[..], buffer),
        PeerReply::Checksums(sums) => put_words(sums, buffer),
        PeerReply::SnapshotIds(ids) => put_ids(ids, buffer),
        PeerReply::Renewed(obstacle) => put_words(&[readiness_to_wire(*obstacle)], buffer),
    }
}

fn put_words(words: &[u64], buffer: &mut [u8]) -> bool {
    for (buffer, word) in buffer.chunks_exact_mut(8).zip(words) {
        buffer.copy_from_slice(&word.to_le_bytes());
    }
    buffer.len() == words.len() * 8
}

/// The rest is filled with 0.
fn put_ids(ids: &[SnapshotId], buffer: &mut [u8]) -> bool {
    let (pages, rest) = buffer.as_chunks_mut::<16>();
    let fits = rest.is_empty() && ids.len() <= pages.len();
    let ids = ids.iter().map(|id| id.0).chain(std::iter::repeat([0; 16]));
    pages.iter_mut().zip(ids).for_each(|(buffer, id)| *buffer = id);
    fits
}

/// Decodes the reply to `request`; `None` when it is invalid.
pub(crate) fn reply(request: &wire::ReplicaRequest, data: &[u8]) -> Option<PeerReply> {
    let words = || data.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    Some(match request {
        wire::ReplicaRequest::Identify { .. } => {
            identity_reply(wire::IdentifyReplica::view(data)?)?
        }
        wire::ReplicaRequest::Bitmap { .. } => {
            let mut page = Box::new([0; WORDS]);
            if words().len() != WORDS {
                return None;
            }
            page.iter_mut().zip(words()).for_each(|(buffer, word)| *buffer = word);
            PeerReply::BitmapPage(page)
        }
        wire::ReplicaRequest::Checksum { .. } => PeerReply::Checksums(words().collect()),
        wire::ReplicaRequest::Snapshots { .. } => {
            let ids = data.as_chunks::<16>().0.iter().take_while(|id| **id != [0; 16]);
            PeerReply::SnapshotIds(ids.map(|id| SnapshotId(*id)).collect())
        }
        wire::ReplicaRequest::Renew { .. } => {
            PeerReply::Renewed(readiness_from_wire(words().next()?))
        }
        _ => PeerReply::Done,
    })
}

/// The codecs that the replica supports, from the data of an identity reply.
pub(crate) fn codecs(reply: &PeerReply, data: &[u8]) -> Option<u8> {
    let known = matches!(reply, PeerReply::Identity(_));
    wire::IdentifyReplica::view(data).filter(|_| known).map(|encoded| encoded.codecs)
}

fn identity_to_wire(identity: &ReplicaIdentity) -> wire::IdentifyReplica {
    let ReplicaView {
        volume,
        replica,
        usable_bytes,
        room_bytes,
        bit_bytes,
        generations,
        epoch,
        ..
    } = identity.view;
    let role = match identity.role {
        ReplicaRole::Target | ReplicaRole::Deposed => wire::WireRole::Target,
        ReplicaRole::Source => wire::WireRole::Source,
    };
    let flags = [
        (identity.view.serving, wire::IdentifyReplica::SERVING),
        (identity.view.crashed, wire::IdentifyReplica::CRASHED),
        (identity.view.inconsistent, wire::IdentifyReplica::INCONSISTENT),
        (identity.view.dirty, wire::IdentifyReplica::DIRTY),
        (identity.is_serving, wire::IdentifyReplica::ACTIVE),
        (identity.volatile_cache, wire::IdentifyReplica::VOLATILE_CACHE),
    ];
    let versions = identity.versions.lowest().0..=identity.versions.highest().0;
    let mut encoded = wire::IdentifyReplica::new(role, versions);
    encoded.flags = flags.iter().filter(|(is, _)| *is).fold(0, |all, (_, flag)| all | flag);
    let resolution = [
        (identity.is_discarding, wire::IdentifyReplica::DISCARDS),
        (identity.has_source, wire::IdentifyReplica::HAS_SOURCE),
        (identity.keeps_reservations, wire::IdentifyReplica::KEEPS_RESERVATIONS),
    ];
    let set = resolution.iter().filter(|(is, _)| *is);
    encoded.resolution = set.fold(0, |all, (_, flag)| all | flag);
    encoded.bit_bytes = U32::new(bit_bytes);
    encoded.usable_bytes = U64::new(usable_bytes);
    encoded.room_bytes = U64::new(room_bytes);
    (encoded.volume, encoded.replica) = (volume.0, replica.0);
    encoded.epoch = U64::new(epoch);
    encoded.codecs = wire::Codec::ALL.iter().fold(0, |all, codec| all | codec.bit());
    encoded.current = U64::new(generations.current.0);
    encoded.bases = generations.bases.0.map(|generation| U64::new(generation.0));
    encoded.history = generations.history.0.map(|generation| U64::new(generation.0));
    encoded
}

/// Adds the block size of the replica's namespace, which is the logical block size of the volume
/// there and therefore not part of the reply.
pub(crate) fn with_blocks(reply: PeerReply, block_bytes: u32) -> PeerReply {
    match reply {
        PeerReply::Identity(identity) => PeerReply::Identity(ReplicaIdentity {
            view: ReplicaView { block_bytes, ..identity.view },
            ..identity
        }),
        other => other,
    }
}

/// Decodes a replica's identity; `None` when it is invalid.
fn identity_reply(encoded: &wire::IdentifyReplica) -> Option<PeerReply> {
    let warn = |error: wire::IdentifyError| tracing::warn!("{error}");
    let range = encoded.versions().map_err(warn).ok()?;
    let versions = LinkVersions::new(*range.start(), *range.end())?;
    if LinkVersions::SPOKEN.highest_common(versions).is_err() {
        return Some(PeerReply::Incompatible(versions));
    }
    let role = match encoded.check().map_err(warn).ok()? {
        wire::WireRole::Target => ReplicaRole::Target,
        wire::WireRole::Source => ReplicaRole::Source,
    };
    Some(PeerReply::Identity(identity_from_wire(encoded, role, versions)))
}

fn identity_from_wire(
    encoded: &wire::IdentifyReplica,
    role: ReplicaRole,
    versions: LinkVersions,
) -> ReplicaIdentity {
    let generation = |number: U64| Generation(number.get());
    let view = ReplicaView {
        volume: MirrorId(encoded.volume),
        replica: MirrorId(encoded.replica),
        usable_bytes: encoded.usable_bytes.get(),
        room_bytes: encoded.room_bytes.get().max(encoded.usable_bytes.get()),
        bit_bytes: encoded.bit_bytes.get(),
        // Set by [`with_blocks`].
        block_bytes: 0,
        generations: GenerationHistory {
            current: generation(encoded.current),
            bases: GenerationList(encoded.bases.map(generation)),
            history: GenerationList(encoded.history.map(generation)),
        },
        epoch: encoded.epoch.get(),
        serving: encoded.has(wire::IdentifyReplica::SERVING),
        crashed: encoded.has(wire::IdentifyReplica::CRASHED),
        inconsistent: encoded.has(wire::IdentifyReplica::INCONSISTENT),
        dirty: encoded.has(wire::IdentifyReplica::DIRTY),
    };
    let is_serving = encoded.has(wire::IdentifyReplica::ACTIVE);
    ReplicaIdentity {
        view,
        role,
        is_serving,
        volatile_cache: encoded.has(wire::IdentifyReplica::VOLATILE_CACHE),
        is_discarding: encoded.resolution & wire::IdentifyReplica::DISCARDS != 0,
        has_source: encoded.resolution & wire::IdentifyReplica::HAS_SOURCE != 0,
        keeps_reservations: encoded.resolution & wire::IdentifyReplica::KEEPS_RESERVATIONS != 0,
        versions,
    }
}

/// Encodes a refusal as the status and the result of a completion.
pub(crate) fn refusal_to_wire(refusal: PeerRefusal) -> (Status, u64) {
    let (code, result) = match refusal {
        PeerRefusal::Unrelated => (wire::ReplicaRefusal::UNRELATED, 0),
        PeerRefusal::Serving => (wire::ReplicaRefusal::SERVING, 0),
        PeerRefusal::Fenced(epoch) => (wire::ReplicaRefusal::FENCED, epoch),
        PeerRefusal::Changed => (wire::ReplicaRefusal::CHANGED, 0),
        PeerRefusal::NotAttached => (wire::ReplicaRefusal::NOT_ATTACHED, 0),
        PeerRefusal::Inconsistent => (wire::ReplicaRefusal::INCONSISTENT, 0),
        PeerRefusal::Range => (wire::ReplicaRefusal::RANGE, 0),
        PeerRefusal::Failed => (wire::ReplicaRefusal::FAILED, 0),
        PeerRefusal::NotNow => (wire::ReplicaRefusal::NOT_NOW, 0),
        PeerRefusal::Version => (wire::ReplicaRefusal::VERSION, 0),
        PeerRefusal::Group => (wire::ReplicaRefusal::GROUP, 0),
        PeerRefusal::NoSnapshots => (wire::ReplicaRefusal::NO_SNAPSHOTS, 0),
        PeerRefusal::SnapshotExists => (wire::ReplicaRefusal::SNAPSHOT_EXISTS, 0),
        PeerRefusal::SnapshotMissing => (wire::ReplicaRefusal::SNAPSHOT_MISSING, 0),
        PeerRefusal::SnapshotInUse => (wire::ReplicaRefusal::SNAPSHOT_IN_USE, 0),
        PeerRefusal::SnapshotFailed => (wire::ReplicaRefusal::SNAPSHOT_FAILED, 0),
    };
    (code.status(), result)
}

/// Decodes the refusal in a completion, if there is one.
pub(crate) fn refusal(status: Status, result: u64) -> Option<PeerRefusal> {
    use PeerRefusal::*;
    let all = [
        Unrelated,
        Serving,
        Fenced(result),
        Changed,
        NotAttached,
        Inconsistent,
        Range,
        Failed,
        NotNow,
        Version,
        Group,
        NoSnapshots,
        SnapshotExists,
        SnapshotMissing,
        SnapshotInUse,
        SnapshotFailed,
    ];
    all.into_iter().find(|refusal| refusal_to_wire(*refusal).0.code() == status.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes an answer to Replica Identify that announces these versions and is otherwise
    /// invalid.
    fn answered(lowest: u16, highest: u16) -> Option<PeerReply> {
        let mut data = [0xff; wire::IDENTIFY_BYTES];
        data[..2].copy_from_slice(&lowest.to_le_bytes());
        data[226..228].copy_from_slice(&highest.to_le_bytes());
        reply(&wire::ReplicaRequest::Identify { asker: [1; 16] }, &data)
    }

    #[test]
    fn only_versions_of_unknown_release_are_parsed() {
        for (lowest, highest) in [(1, 1), (5, 5), (5, u16::MAX), (u16::MAX, u16::MAX)] {
            let encoded = LinkVersions::new(lowest, highest).map(PeerReply::Incompatible);
            assert!(
                encoded.is_some() && answered(lowest, highest) == encoded,
                "{lowest} to {highest}"
            );
        }
        assert_eq!(answered(7, 0), LinkVersions::new(7, 7).map(PeerReply::Incompatible));
        // For a known version the whole answer has to be valid, and the range too.
        for (lowest, highest) in [(2, 3), (2, 0), (3, 9), (0, 0), (0, 3), (3, 2), (u16::MAX, 1)] {
            assert_eq!(answered(lowest, highest), None, "{lowest} to {highest}");
        }
    }

    #[test]
    fn readiness_round_trips() {
        for (code, obstacle) in OBSTACLES {
            assert_eq!(readiness_to_wire(obstacle), code);
            assert_eq!(readiness_from_wire(code), obstacle);
        }
        // Of a later release, or without a code of its own.
        assert_eq!(readiness_from_wire(99), Some(Obstacle::Unknown));
        assert_eq!(
            readiness_from_wire(readiness_to_wire(Some(Obstacle::Lost))),
            Some(Obstacle::Unknown)
        );
    }

    #[test]
    fn refusals_round_trip() {
        let all: Vec<_> = (0..=u8::MAX)
            .filter_map(|code| refusal(wire::ReplicaRefusal(code).status(), u64::MAX))
            .map(|refusal| (refusal, refusal_to_wire(refusal)))
            .collect();
        assert_eq!(all.len(), 16);
        for (expected, (status, result)) in all {
            assert!(status.is_dnr());
            assert_eq!(refusal(status, result), Some(expected));
        }
        assert_eq!(refusal(Status::INVALID_FIELD, 0), None);
    }
}
