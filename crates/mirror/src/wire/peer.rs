//! Peer protocol as the mirror sees it: a remote disk, plus requests to the replica behind it.
//!
//! A [`PeerConnector`] makes connections to the other node, and a [`PeerSession`] is one
//! connection. A lost session stays lost. Every implementation (NVMe/TCP, or a simulated network)
//! has to guarantee:
//!
//! - a call that fails with [`IoError::Unreachable`] may have been executed, or may be executed
//!   later, but never after an [`PeerRequest::Attach`] of a later session was answered with
//!   [`PeerReply::Done`]. The target ensures this by ending the earlier session's calls first;
//! - once [`PeerSession::lost`] resolves, every call in flight fails, and every later call fails
//!   immediately;
//! - a peer that does not answer is given up after a timeout, so every call ends.
//!
//! Every request is idempotent.
//!
//! [`IoError::Unreachable`]: flagstone_blockdev::IoError::Unreachable

use std::sync::Arc;

pub use flagstone_arbiter::RecordStamp;
use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use crate::agree::decide::ReplicaView;
use crate::agree::generation::GenerationList;
use crate::agree::versions::{LinkVersion, LinkVersions, NoCommonVersion};
use crate::id::{Generation, MirrorId};
use crate::io::reorder::WriteOrder;
use crate::limits::HISTORY_LEN;
use crate::named;
use crate::ondisk::bitmap_page::WORDS;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::outlook::Obstacle;
use crate::wire::snapshot::{SnapshotId, SnapshotRequest};

/// Makes connections to the other node.
pub trait PeerConnector: Send + Sync + 'static {
    /// Makes one attempt to connect.
    fn connect(&self) -> IoFuture<Arc<dyn PeerSession>>;

    /// Status and counters of the link.
    fn link(&self) -> LinkStatus {
        LinkStatus::default()
    }
}

named! {
    /// Compression of the data on a link.
    #[derive(Default)]
    pub enum LinkCompression {
        /// Data is sent as it is.
        #[default]
        None = "none",
        /// LZ4 blocks.
        Lz4 = "lz4",
        /// Zstandard frames.
        Zstd = "zstd",
    }
}

/// Status of the link to a peer. Counters count since the connector was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Configured compression.
    pub compression: LinkCompression,
    /// The peer does not know that codec, so data is sent uncompressed.
    pub is_declined: bool,
    /// Bandwidth limit, in bytes per second. Several links may share it.
    pub max_bytes_per_s: Option<u64>,
    /// Payload of writes, in bytes. Writes of zeroes carry none.
    pub data_bytes: u64,
    /// Bytes sent for that payload; fewer when it is compressed.
    pub sent_bytes: u64,
    /// The peer is configured by name, and the last lookup found no address.
    pub is_name_unknown: bool,
    /// The peer refused the last connection, because it admits no node of this one's name.
    pub is_node_refused: bool,
}

/// A connector that several cores may share.
pub type SharedConnector = Arc<dyn PeerConnector>;
/// A session that several cores may share.
pub type SharedSession = Arc<dyn PeerSession>;

/// One connection to a peer, with the guarantees listed in this module.
pub trait PeerSession: Send + Sync + 'static {
    /// Sends a request to the peer's replica.
    fn ask(&self, request: PeerRequest) -> IoFuture<PeerAnswer>;

    /// Reads from the peer's leg.
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut>;

    /// Writes to the peer's leg, in the given order if there is one. An ordered write longer than
    /// [`PeerSession::transfer_bytes`] is split into parts of that size (the last may be shorter),
    /// each with a sequence number of its own.
    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<WriteOrder>) -> IoFuture<()>;

    /// Writes data of a resync to the peer's leg. It may be delayed in favor of host writes.
    fn copy(&self, offset: u64, data: Buf) -> IoFuture<()> {
        self.write(offset, data, false, None)
    }

    /// Writes zeroes to the peer's leg.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<WriteOrder>,
    ) -> IoFuture<()>;

    /// The largest payload of an ordered write that counts as one part, in bytes: at least one
    /// block, and constant for the session.
    fn transfer_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Flushes the peer's leg.
    fn flush(&self) -> IoFuture<()>;

    /// Resolves when the session is lost; never with an error.
    fn lost(&self) -> IoFuture<()>;

    /// Ends the session: it counts as lost from now on.
    fn close(&self);
}

/// What a source allows its attached peer when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPermission {
    /// Nothing: the arbiter's record does not list the peer as in sync yet.
    Unrecorded {
        /// See [`AttachRequest::asks`].
        asks: Option<u64>,
    },
    /// To ask the arbiter for the role.
    Recorded(
        /// The record that lists the peer as in sync.
        RecordStamp,
    ),
    /// Nothing: the operator has suspended automatic failover.
    Suspended,
    /// Nothing: the peer of an asynchronous mirror is further behind than
    /// [`max_lag`](crate::FailoverOptions::max_lag) allows.
    Behind,
}

/// A replica's answer to a request.
pub type PeerAnswer = Result<PeerReply, PeerRefusal>;

/// Requests to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// Asks for the replica's identity. Needs no attachment. Answered with [`PeerReply::Identity`].
    Identify {
        /// The replica that asks.
        asker: MirrorId,
    },
    /// Asks to be admitted as the source. Answered when no call of an earlier session is in
    /// progress and the epoch is durable.
    Attach(AttachRequest),
    /// The generation history of the source's data, and of the target's data once it is in sync.
    /// The target stores it, so that it can recognize a peer of both that was left behind with one
    /// of these generations, whichever replica is that peer's source by then.
    Ancestors {
        /// Newest first.
        generations: GenerationList<HISTORY_LEN>,
    },
    /// Asks for a page of the log's out-of-sync bitmap. Answer: [`PeerReply::BitmapPage`].
    BitmapPage {
        /// Page number, from 0.
        page: u64,
    },
    /// The ordered writes of this session are numbered together with the writes of other members of
    /// the group in this group session. Requires [`LinkVersion::JOINS_GROUPS`].
    JoinGroup {
        /// Random number; not 0.
        session: u64,
    },
    /// A resync begins: durably mark the data as inconsistent.
    BeginResync {
        /// Generation to adopt for a full resync, or none. The source's log covers all differences
        /// to it, so an interrupted resync can be resumed.
        base: Generation,
    },
    /// The resync has copied everything except for these ranges. Requires
    /// [`LinkVersion::REPORTS_BAD_RANGES`].
    BadRange(BadRangeReport),
    /// The resync has completed: flush, durably adopt this generation, then clear the log.
    EndResync {
        /// The source's current generation.
        generation: Generation,
    },
    /// The source started a new generation after losing another peer; a target in sync adopts it.
    NewGeneration {
        /// The source's current generation.
        generation: Generation,
    },
    /// The source's own leg has failed. Serve the volume without it: adopt this generation and
    /// record what the lost replica lacks.
    RunDegraded {
        /// A new generation.
        generation: Generation,
        /// The lost replica, which is the source's.
        lost: MirrorId,
    },
    /// Become the source, with at least this epoch. The asker has stepped down and drained.
    Promote {
        /// Higher than any epoch that either has seen.
        epoch: u64,
        /// With automatic failover: the highest revision of the arbiter's record that the asker has
        /// seen. A record of that revision may list the asker alone, although this replica has
        /// every acknowledged write. 0 without.
        revision: u64,
        /// The asker does not attach as a target at once: its device has failed, or its server
        /// stops.
        leaves: bool,
    },
    /// Asks the serving side to hand over its role. Answered when the asker may promote itself.
    HandOver,
    /// The asker's operator makes it the source: refuse hosts from now on, even if this replica
    /// serves them. Answered when the refusal is durable, or with [`PeerRefusal::Failed`] if it is
    /// in effect but not durable within [`REFUSAL_MS`](crate::limits::REFUSAL_MS). The asker must
    /// be a known peer; it need not be attached. Requires [`LinkVersion::DEPOSES`].
    Depose {
        /// The volume.
        volume: MirrorId,
        /// Higher than any epoch that the asker has seen.
        epoch: u64,
    },
    /// The asker is about to become the source by its operator's order. This replica agrees if it
    /// serves no hosts, and does not become the source by itself before it has met the asker.
    /// Answered when that is durable. The asker must be a known peer.
    Claim {
        /// The volume.
        volume: MirrorId,
        /// The asker's next epoch. A concurrent claim of another replica is refused if it is lower.
        epoch: u64,
    },
    /// The asker, a source, removes this replica from the mirror: record that, and serve no hosts
    /// before a source attaches or the operator insists. The asker must be a known peer. Requires
    /// [`LinkVersion::REMOVES`].
    Remove {
        /// The volume.
        volume: MirrorId,
        /// The asker's role epoch.
        epoch: u64,
    },
    /// The attached source renews its right to serve reads: this replica asks the arbiter no
    /// earlier than the longer `failover_after` of both nodes from its answer. Both are durable
    /// before the answer. Requires [`LinkVersion::RENEWS`].
    Renew {
        /// Whether this replica may ask the arbiter when it loses the source.
        offer: LossPermission,
        /// `failover_after` of the source, in milliseconds; not 0.
        failover_after_ms: u32,
        /// Age of the oldest completed write that the replica lacks, in milliseconds: at least 1 in
        /// asynchronous mode, 0 in synchronous mode.
        lag_ms: u32,
    },
    /// The operator discards the data here in favor of the asker's: return to generation `base`,
    /// but inconsistent. With [`Generation::NONE`] become blank.
    Discard {
        /// The generation from which both sides continued, if known.
        base: Generation,
        /// The generation that the operator saw; after a change the request is refused.
        expected: Generation,
    },
    /// The volume is about to grow: zero the space that it would gain at this size. Needs no
    /// attachment. Answered with [`PeerRefusal::NotNow`] until the zeroes are durable. Requires
    /// [`LinkVersion::ZEROES_NEW_SPACE`].
    ZeroNewSpace {
        /// A multiple of 4,096.
        usable_bytes: u64,
    },
    /// An order on a snapshot of the replica's device. Requires [`LinkVersion::SNAPSHOTS`].
    Snapshot(SnapshotRequest),
    /// Asks for the lowest identifiers above one, of the snapshots of the replica's device.
    /// Answered with [`PeerReply::SnapshotIds`]. Requires [`LinkVersion::SNAPSHOTS`].
    SnapshotIds {
        /// [`SnapshotId::NONE`] for the first ones.
        after: SnapshotId,
    },
    /// A page of the record of the volume's reservations. With the last one, the replica stores the
    /// record durably and answers. Requires [`ReplicaIdentity::keeps_reservations`].
    Reservations(ReservationPage),
    /// Asks for checksums of the replica's data. Answered with [`PeerReply::Checksums`].
    Checksums {
        /// Offset, in bytes.
        offset: u64,
        /// Length, in bytes; at most [`crate::limits::CHECK_BYTES`].
        len: u64,
        /// Bytes per checksum.
        unit_bytes: u32,
    },
}

/// Content of [`PeerRequest::Reservations`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationPage {
    /// From 0.
    pub number: u32,
    /// Length of the whole record, in bytes: at most
    /// [`RESERVATION_RECORD_MAX_BYTES`](crate::limits::RESERVATION_RECORD_MAX_BYTES).
    pub record_bytes: u32,
    /// [`RESERVATION_PAGE_BYTES`](crate::limits::RESERVATION_PAGE_BYTES), fewer in the last page.
    pub part: Vec<u8>,
}

/// Parameters of [`PeerRequest::Attach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The volume.
    pub volume: MirrorId,
    /// The source's replica.
    pub source: MirrorId,
    /// The source's role epoch.
    pub epoch: u64,
    /// The target's generation at the handshake.
    pub expected: Generation,
    /// The handshake found both in sync: forget old crashes and leftover base generations.
    pub in_sync: bool,
    /// Size of the volume at the source, in bytes; 0 when irrelevant. A target of another size
    /// adopts it, answering [`PeerRefusal::NotNow`] meanwhile, or [`PeerRefusal::Range`] without
    /// room.
    pub usable_bytes: u64,
    /// Version used in this session: the highest in common. Else [`PeerRefusal::Version`].
    pub version: LinkVersion,
    /// Tag of the consistency group, by its name and volumes; 0 without one. Else
    /// [`PeerRefusal::Group`].
    pub group: u16,
    /// The source runs degraded without the target only if the arbiter's record allows it: the
    /// highest revision of that record that the source has seen. Records up to it are superseded,
    /// also at a store that the target used before. Requires [`LinkVersion::RENEWS`].
    pub asks: Option<u64>,
}

/// One of the ranges in [`PeerRequest::BadRange`]. The list is sent in order; when the last range
/// has arrived, the target flushes, stores the list durably and answers. An earlier list is
/// replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRangeReport {
    /// Offset, in bytes: a multiple of 4,096.
    pub offset: u64,
    /// Length, in bytes: not 0, a multiple of 4,096.
    pub len: u64,
    /// Position in the list, from 0.
    pub index: u16,
    /// Length of the list: at most [`BAD_RANGES_MAX`](crate::limits::BAD_RANGES_MAX).
    pub count: u16,
}

/// Replies to requests.
#[expect(clippy::large_enum_variant, reason = "one at a time, some a session")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerReply {
    /// Done, durably.
    Done,
    /// Reply to [`PeerRequest::Identify`].
    Identity(ReplicaIdentity),
    /// Reply to [`PeerRequest::Identify`] from a peer whose versions of the link are all unknown
    /// here. Nothing else of its reply can be parsed.
    Incompatible(LinkVersions),
    /// Reply to [`PeerRequest::BitmapPage`].
    BitmapPage(Box<[u64; WORDS]>),
    /// Reply to [`PeerRequest::SnapshotIds`], in ascending order: at most
    /// [`SNAPSHOTS_PER_PAGE`](crate::limits::SNAPSHOTS_PER_PAGE), fewer if there are no more.
    SnapshotIds(Vec<SnapshotId>),
    /// Reply to [`PeerRequest::Checksums`]: a CRC-64/NVME for each unit.
    Checksums(Vec<u64>),
    /// Reply to [`PeerRequest::Renew`]: why this replica does not take over when the source is lost
    /// now; `None` if it does.
    Renewed(Option<Obstacle>),
}

/// A replica's report about itself and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    /// Input of the handshake decision.
    pub view: ReplicaView,
    /// Its role.
    pub role: ReplicaRole,
    /// It serves hosts at this moment.
    pub is_serving: bool,
    /// Its device may lose completed writes in a power failure until they are flushed.
    pub volatile_cache: bool,
    /// It discards its data to end a split brain, or is about to.
    pub is_discarding: bool,
    /// A source is attached to it, so it discards no data. False for releases that do not report
    /// it.
    pub has_source: bool,
    /// It keeps the volume's reservations. False for releases that do not report it.
    pub keeps_reservations: bool,
    /// Versions of the link that it speaks.
    pub versions: LinkVersions,
}

/// Why a replica refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum PeerRefusal {
    /// Another volume, or the asker's own replica.
    #[error("the peer holds another volume")]
    Unrelated,
    #[error("the peer serves hosts itself")]
    Serving,
    /// It has seen a higher epoch: the asker is a former source.
    #[error("the peer has seen epoch {0}, which is later")]
    Fenced(u64),
    #[error("the peer's generation changed since the handshake")]
    Changed,
    #[error("the session is not attached")]
    NotAttached,
    #[error("the peer's data is inconsistent: a resync to it has not completed")]
    Inconsistent,
    #[error("the peer refuses the range or size")]
    Range,
    #[error("the peer's device failed")]
    Failed,
    #[error("the peer is paused or cannot do this now")]
    NotNow,
    #[error("the volume belongs to another consistency group there, or to none")]
    Group,
    #[error("the peer's replica is not on a volume of a pool, which could have snapshots")]
    NoSnapshots,
    #[error("the peer has another snapshot of this name")]
    SnapshotExists,
    #[error("the peer has no such snapshot")]
    SnapshotMissing,
    #[error("the peer's snapshot has clones, or its successors need it")]
    SnapshotInUse,
    #[error("the peer's pool refused, as its log says")]
    SnapshotFailed,
    /// It was replaced by an older release, which does not speak the chosen link version.
    #[error("the peer does not speak the version of the replication link that this needs")]
    Version,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The replica refused.
    #[error(transparent)]
    Refused(#[from] PeerRefusal),
    /// The reply does not match the request.
    #[error("the peer sent an unexpected reply")]
    UnexpectedReply,
    /// A release without a version in common.
    #[error(transparent)]
    NoCommonVersion(#[from] NoCommonVersion),
}

/// Sends a request that has no reply data.
///
/// # Errors
/// See [`RequestError`].
pub async fn execute(session: &SharedSession, request: PeerRequest) -> Result<(), RequestError> {
    match session.ask(request).await?? {
        PeerReply::Done => Ok(()),
        _ => Err(RequestError::UnexpectedReply),
    }
}

/// Asks for the peer's identity. On success, it has a version in common with `versions`.
///
/// # Errors
/// See [`RequestError`].
pub async fn identify(
    session: &SharedSession,
    asker: MirrorId,
    versions: LinkVersions,
) -> Result<ReplicaIdentity, RequestError> {
    match session.ask(PeerRequest::Identify { asker }).await?? {
        PeerReply::Identity(identity) => {
            versions.highest_common(identity.versions)?;
            Ok(identity)
        }
        PeerReply::Incompatible(peers) => {
            // A version that this link does not speak is unknown, even if this program knows it.
            versions.highest_common(peers)?;
            Err(RequestError::UnexpectedReply)
        }
        _ => Err(RequestError::UnexpectedReply),
    }
}

/// Asks for a page of the peer's bitmap.
///
/// # Errors
/// See [`RequestError`].
pub async fn bitmap_page(
    session: &SharedSession,
    page: u64,
) -> Result<Box<[u64; WORDS]>, RequestError> {
    match session.ask(PeerRequest::BitmapPage { page }).await?? {
        PeerReply::BitmapPage(words) => Ok(words),
        _ => Err(RequestError::UnexpectedReply),
    }
}

/// Asks for checksums.
///
/// # Errors
/// See [`RequestError`]; also when the number of checksums does not match.
pub async fn checksums(
    session: &SharedSession,
    offset: u64,
    len: u64,
    unit_bytes: u32,
) -> Result<Vec<u64>, RequestError> {
    let request = PeerRequest::Checksums { offset, len, unit_bytes };
    match session.ask(request).await?? {
        PeerReply::Checksums(leg_checksums)
            if leg_checksums.len() as u64 == len.div_ceil(u64::from(unit_bytes)) =>
        {
            Ok(leg_checksums)
        }
        _ => Err(RequestError::UnexpectedReply),
    }
}
