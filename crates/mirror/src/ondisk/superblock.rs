//! Superblock: the identity of a replica, and its knowledge about its data and its peers.

use std::ops::Range;

use flagstone_arbiter::StoreId;

use crate::agree::generation::{GenerationHistory, GenerationList};
use crate::id::{Generation, MirrorId};
use crate::limits::{
    BAD_RANGES_MAX, BASES_LEN, HISTORY_LEN, LOG_PLACE_MAX, MEMBERS_MAX, PAGE_BYTES, PEERS_MAX,
    STORE_REVISIONS,
};
use crate::named;
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::member::{MEMBER_BYTES, Member};
use crate::ondisk::{FormatError, Page, begin, open, put, seal};
use crate::state::status::DesiredState;

const MAGIC: &[u8; 8] = b"FSMIRSB\n";
const SUCCESSOR_AT: usize = 81;
const DESIRED_STATES_AT: usize = 84;
const RENAMING_AT: usize = 86;
const UNVERIFIED_AT: usize = 87;
const VOLUME_TAG_AT: usize = 128;
const HISTORY_AT: usize = 136;
const PEERS_AT: usize = HISTORY_AT + 8 * HISTORY_LEN;
const PEER_BYTES: usize = 64;
const DEVICE_AT: usize = PEERS_AT + PEER_BYTES * PEERS_MAX;
/// End of the fields that every release writes. Later fields follow at the same stored length:
/// earlier releases can read them, and write zeroes there.
const END: usize = DEVICE_AT + 16;
const LOG_PROGRESS_AT: usize = END;
const NOT_RECEIVED_COUNT_AT: usize = LOG_PROGRESS_AT + 16;
const NOT_RECEIVED_AT: usize = 1024;
const REMOVED_AT: usize = NOT_RECEIVED_COUNT_AT + 2;
const ARBITER_REVISION_AT: usize = REMOVED_AT + 6;
const ARBITER_RIGHT_AT: usize = ARBITER_REVISION_AT + 8;
const ARBITER_SUSPENDED_AT: usize = ARBITER_RIGHT_AT + 1;
const ARBITER_SOURCE_ASKS_AT: usize = ARBITER_SUSPENDED_AT + 1;
const ARBITER_LEASE_AT: usize = ARBITER_RIGHT_AT + 4;
const ARBITER_STORE_AT: usize = ARBITER_LEASE_AT + 4;
const _: () = assert!(ARBITER_STORE_AT + 8 <= NOT_RECEIVED_AT);
const LOG_PLACE_AT: usize = NOT_RECEIVED_AT + 16 * BAD_RANGES_MAX;
const MEMBERS_AT: usize = 3080;
const _: () = assert!(MEMBERS_AT >= LOG_PLACE_AT + 2 + LOG_PLACE_MAX);
const _: () = assert!(MEMBERS_AT + MEMBERS_MAX * MEMBER_BYTES <= PAGE_BYTES - 4);

named! {
    /// Role of a replica.
    #[derive(Default)]
    pub enum ReplicaRole {
        /// Receives the source's writes.
        #[default]
        Target = "target",
        /// Serves hosts.
        Source = "source",
        /// A former source that another node replaced without its consent. It serves no hosts, and
        /// keeps its data until a source attaches or the operator decides.
        Deposed = "deposed",
    }
}

/// What this replica durably knows of the arbiter's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArbiterMark {
    /// Highest revision of the record that it has seen; 0 for none. With the epoch, the fencing
    /// token.
    pub revision: u64,
    /// What that revision means for this replica.
    pub serving_right: RecordedRight,
    /// The operator has suspended automatic failover. The source has the record say so.
    pub suspended: bool,
    /// `failover_after` of the source that has renewed here last, in milliseconds; 0 for none. A
    /// target asks no earlier, also after a restart.
    pub source_after_ms: u32,
    /// Of a target: the source that has attached last runs degraded without it only if the
    /// arbiter's record allows it. So a grant to this node that it has dropped is still valid if it
    /// is recorded.
    pub source_asks: bool,
    /// The store that the revision and the right to serve are about: a source has written to it, or
    /// a target has read from it. Not simply the one in the configuration, where this replica may
    /// have seen nothing yet.
    pub store: StoreId,
}

impl ArbiterMark {
    /// True if a revision was seen, and at another store than this one.
    pub fn is_of_other_store(&self, store: StoreId) -> bool {
        self.revision > 0 && self.store != StoreId::NONE && self.store != store
    }

    /// Revision above which this node's next record begins. At another store than before, it is
    /// above all of the former store, so that no reader there takes its record for this one.
    pub fn revision_at(&self, store: StoreId) -> u64 {
        match self.is_of_other_store(store) {
            true => self.revision.saturating_add(STORE_REVISIONS),
            false => self.revision,
        }
    }

    /// The mark of a replica that begins to use a store. A mark that another store has filled stays
    /// there, until this replica has been recorded here.
    pub fn at_first_store(self, store: StoreId) -> ArbiterMark {
        match self.is_of_other_store(store) {
            true => self,
            false => ArbiterMark { store, ..self },
        }
    }

    /// The mark of a target after its source has said whether it asks the arbiter, and the revision
    /// that it has seen. A record of this target with a lower one is superseded, wherever it is.
    pub fn asked_by(self, source: Option<u64>) -> ArbiterMark {
        let revision = match self.revision {
            // It never had a record.
            0 => 0,
            own => own.max(source.unwrap_or(0)),
        };
        ArbiterMark { revision, source_asks: source.is_some(), ..self }
    }
}

/// See [`ArbiterMark::serving_right`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordedRight {
    /// Nothing that this replica may rely on without asking.
    #[default]
    Unknown,
    /// A target: its source has recorded it as in sync, it has read so at the arbiter, and no other
    /// source has attached since.
    InSync,
    /// A source that may have acknowledged writes which its peers lack: the record excludes them.
    Alone,
    /// As `Alone`, by an order of the operator that the record does not say yet.
    Ordered,
    /// A source to which the former one has handed over, when it had seen this revision. A record
    /// of exactly this revision that lists only the former source is out of date: each grant since
    /// has a later one.
    Succeeded,
}

impl RecordedRight {
    const ALL: [RecordedRight; 5] = [
        RecordedRight::Unknown,
        RecordedRight::InSync,
        RecordedRight::Alone,
        RecordedRight::Ordered,
        RecordedRight::Succeeded,
    ];

    /// A source that may have acknowledged writes which its peers lack.
    pub fn is_alone(self) -> bool {
        matches!(self, RecordedRight::Alone | RecordedRight::Ordered)
    }

    /// It says nothing about a target.
    pub fn is_of_source(self) -> bool {
        self.is_alone() || self == RecordedRight::Succeeded
    }
}

/// Interrupted activities of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// In use as a source. If set when the replica is opened, it crashed.
    pub in_use: bool,
    /// It was a source that crashed, and has not met its peer since.
    pub crashed: bool,
    /// A resync to it has begun and not completed.
    pub inconsistent: bool,
    /// Brought up without its peer after a crash: hosts have read its data.
    pub served_alone: bool,
}

impl Flags {
    const KNOWN: u16 = 0b1111;

    fn bits(self) -> u16 {
        [self.in_use, self.crashed, self.inconsistent, self.served_alone]
            .iter()
            .zip(0..)
            .fold(0, |bits, (flag, shift)| bits | u16::from(*flag) << shift)
    }

    fn of(bits: u16) -> Result<Flags, FormatError> {
        if bits & !Flags::KNOWN != 0 {
            return Err(FormatError::Field("flags"));
        }
        let has = |shift: u16| bits >> shift & 1 == 1;
        Ok(Flags { in_use: has(0), crashed: has(1), inconsistent: has(2), served_alone: has(3) })
    }
}

/// A replica's record of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerRecord {
    /// The peer's replica; none for a free slot.
    pub replica: MirrorId,
    /// See [`GenerationHistory::bases`]. If any, the peer is out of date, unless `renaming`.
    pub bases: GenerationList<BASES_LEN>,
    /// The peer was in sync when the current generation was started because of another peer, and is
    /// being informed of it. No write that it lacks is acknowledged before that is done.
    pub renaming: bool,
}

impl PeerRecord {
    /// The peer lacks acknowledged writes.
    pub fn is_outdated(&self) -> bool {
        !self.bases.is_empty() && !self.renaming
    }
}

/// Progress of a log: two counters that only grow during its lifetime. Both are zero for a new log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogProgress {
    /// Sequence number of its latest activity record.
    pub record_sequence: u64,
    /// Writes of its bitmap pages, summed.
    pub page_writes: u64,
}

impl LogProgress {
    /// True when no progress up to `before` is missing.
    pub fn has_reached(self, before: LogProgress) -> bool {
        self.record_sequence >= before.record_sequence && self.page_writes >= before.page_writes
    }
}

/// A decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Incremented by each write. Its lowest bit selects the slot.
    pub sequence: u64,
    /// The volume.
    pub volume: MirrorId,
    /// This replica.
    pub replica: MirrorId,
    /// Size and granularities.
    pub geometry: ReplicaGeometry,
    /// Size of the data device at whose end this superblock lies, in whole pages. A superblock
    /// found elsewhere is not valid for its device.
    pub device_bytes: u64,
    /// Old end of metadata that moved to the end of a grown device, until zeroed; otherwise 0.
    pub moved_from: u64,
    /// Its role.
    pub role: ReplicaRole,
    /// Interrupted activities.
    pub flags: Flags,
    /// A flush of the data device failed, and the device was reopened since. Its contents may not
    /// be durable until a resync to it completes.
    pub unverified: bool,
    /// Slot of the peer that this former source asked to be the source; only it knows the outcome.
    pub designated_successor: Option<usize>,
    /// The highest epoch that this replica was promoted to, or has admitted as a target.
    pub epoch: u64,
    /// Generation of the local data.
    pub current: Generation,
    /// Earlier generations, newest first.
    pub history: GenerationList<HISTORY_LEN>,
    /// The log that belongs to it.
    pub log: MirrorId,
    /// How often that log was opened for use.
    pub incarnation: u64,
    /// Lower bound of that log's progress, durable when this superblock was written. Zero, which
    /// implies nothing, if an earlier release wrote it.
    pub log_progress: LogProgress,
    /// Eight bytes that the opener derives from the volume's name on this node; 0 when never set.
    /// They reveal a device that was swapped for another.
    pub volume_tag: u64,
    /// Desired state of each peer, by its position in the configuration.
    pub desired_states: [DesiredState; PEERS_MAX],
    /// Peers, in the order in which they were met.
    pub peers: [PeerRecord; PEERS_MAX],
    /// Byte ranges that the resync to this replica could not copy, ascending and in whole pages; at
    /// most [`BAD_RANGES_MAX`]. If any, the replica had everything else that the source had at that
    /// time.
    pub not_received: Vec<Range<u64>>,
    /// Where the log was moved to, for the operator; empty if it never was. At most
    /// [`LOG_PLACE_MAX`] bytes.
    pub log_place: String,
    /// The source removed this replica from the mirror. It serves no hosts unless the operator
    /// insists, and belongs to the mirror again when a source attaches.
    pub removed: bool,
    /// Changes of the peers at run time; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// The arbiter's record, as far as this replica knows it.
    pub arbiter: ArbiterMark,
}

impl Superblock {
    /// This volume began as zeroes, and no peer has been met: a peer that began as zeroes too has
    /// this generation, and the log names what it lacks.
    pub(crate) fn zeroes(&self) -> Option<Generation> {
        let zeroes = Generation::of_zeroes(self.volume);
        let unmet = |peer: &PeerRecord| peer.replica.is_none() && peer.bases.contains(zeroes);
        self.peers.iter().any(unmet).then_some(zeroes)
    }

    /// Forgets that the volume began as zeroes, except for the peer that has just got its slot. The
    /// log covers what that peer lacks, and from now on not what another one lacks.
    pub(crate) fn forget_unmet(&mut self) {
        let Some(zeroes) = self.zeroes() else { return };
        for peer in self.peers.iter_mut().filter(|peer| peer.replica.is_none()) {
            for base in std::mem::take(&mut peer.bases).iter() {
                self.history.remember(base);
            }
        }
        self.history.remember(zeroes);
    }

    /// Encodes the superblock for slot `sequence & 1`.
    pub fn encode(&self) -> Page {
        let mut page = begin(MAGIC);
        put(&mut page, 10, &(END as u16).to_le_bytes());
        put(&mut page, 16, &self.sequence.to_le_bytes());
        put(&mut page, 24, &self.volume.0);
        put(&mut page, 40, &self.replica.0);
        put(&mut page, 56, &self.geometry.encode());
        put(&mut page, 80, &[self.role as u8]);
        put(
            &mut page,
            SUCCESSOR_AT,
            &[self.designated_successor.map_or(0, |place| place as u8 + 1)],
        );
        put(&mut page, 82, &self.flags.bits().to_le_bytes());
        put(
            &mut page,
            DESIRED_STATES_AT,
            &self.desired_states.map(|desired_state| desired_state as u8),
        );
        let renaming = self.peers.iter().enumerate();
        let renaming =
            renaming.fold(0, |all, (place, peer)| all | u8::from(peer.renaming) << place);
        put(&mut page, RENAMING_AT, &[renaming]);
        put(&mut page, UNVERIFIED_AT, &[u8::from(self.unverified)]);
        put(&mut page, 88, &self.epoch.to_le_bytes());
        put(&mut page, 96, &self.current.0.to_le_bytes());
        put(&mut page, 104, &self.log.0);
        put(&mut page, 120, &self.incarnation.to_le_bytes());
        put(&mut page, VOLUME_TAG_AT, &self.volume_tag.to_le_bytes());
        put_list(&mut page, HISTORY_AT, &self.history);
        for (index, peer) in self.peers.iter().enumerate() {
            let at = PEERS_AT + index * PEER_BYTES;
            put(&mut page, at, &peer.replica.0);
            put_list(&mut page, at + 16, &peer.bases);
        }
        put(&mut page, DEVICE_AT, &self.device_bytes.to_le_bytes());
        put(&mut page, DEVICE_AT + 8, &self.moved_from.to_le_bytes());
        let LogProgress { record_sequence, page_writes } = self.log_progress;
        put(&mut page, LOG_PROGRESS_AT, &record_sequence.to_le_bytes());
        put(&mut page, LOG_PROGRESS_AT + 8, &page_writes.to_le_bytes());
        debug_assert!(self.not_received.len() <= BAD_RANGES_MAX, "the list fits");
        put(&mut page, NOT_RECEIVED_COUNT_AT, &(self.not_received.len() as u16).to_le_bytes());
        for (range, at) in self.not_received.iter().zip((NOT_RECEIVED_AT..).step_by(16)) {
            put(&mut page, at, &range.start.to_le_bytes());
            put(&mut page, at + 8, &range.end.to_le_bytes());
        }
        put(&mut page, LOG_PLACE_AT, &(self.log_place.len() as u16).to_le_bytes());
        put(&mut page, LOG_PLACE_AT + 2, self.log_place.as_bytes());
        put(&mut page, REMOVED_AT, &[u8::from(self.removed)]);
        put(&mut page, ARBITER_REVISION_AT, &self.arbiter.revision.to_le_bytes());
        put(&mut page, ARBITER_RIGHT_AT, &[self.arbiter.serving_right as u8]);
        put(&mut page, ARBITER_SUSPENDED_AT, &[u8::from(self.arbiter.suspended)]);
        put(&mut page, ARBITER_SOURCE_ASKS_AT, &[u8::from(self.arbiter.source_asks)]);
        put(&mut page, ARBITER_LEASE_AT, &self.arbiter.source_after_ms.to_le_bytes());
        put(&mut page, ARBITER_STORE_AT, &self.arbiter.store.0.to_le_bytes());
        debug_assert!(self.members.len() <= MEMBERS_MAX, "the members fit");
        let places = page[MEMBERS_AT..].chunks_exact_mut(MEMBER_BYTES);
        self.members.iter().zip(places).for_each(|(member, place)| member.encode(place));
        seal(&mut page);
        page
    }

    /// Decodes one slot.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(page: &Page) -> Result<Superblock, FormatError> {
        let fields = open(page, MAGIC)?;
        if usize::from(fields.u16(10)) != END {
            return Err(FormatError::Field("length"));
        }
        let role = match fields.bytes(80) {
            [0] => ReplicaRole::Target,
            [1] => ReplicaRole::Source,
            [2] => ReplicaRole::Deposed,
            _ => return Err(FormatError::Field("role")),
        };
        let designated_successor = match fields.bytes(SUCCESSOR_AT) {
            [0] => None,
            [number] if usize::from(number) <= PEERS_MAX => Some(usize::from(number) - 1),
            _ => return Err(FormatError::Field("designated_successor")),
        };
        let mut desired_states = [DesiredState::default(); PEERS_MAX];
        for (desired_state, number) in
            desired_states.iter_mut().zip(fields.bytes::<PEERS_MAX>(DESIRED_STATES_AT))
        {
            let known = DesiredState::ALL
                .get(usize::from(number))
                .ok_or(FormatError::Field("desired_states"))?;
            *desired_state = *known;
        }
        let list_at = |at: usize| {
            let mut list = GenerationList::default();
            for (index, slot) in list.0.iter_mut().enumerate() {
                *slot = fields.generation(at + 8 * index);
            }
            list
        };
        let [renaming] = fields.bytes(RENAMING_AT);
        if renaming >> PEERS_MAX != 0 {
            return Err(FormatError::Field("renaming"));
        }
        let unverified = match fields.bytes(UNVERIFIED_AT) {
            [0] => false,
            [1] => true,
            _ => return Err(FormatError::Field("unverified")),
        };
        let mut peers = [PeerRecord::default(); PEERS_MAX];
        for (index, peer) in peers.iter_mut().enumerate() {
            let at = PEERS_AT + index * PEER_BYTES;
            peer.replica = fields.uuid(at);
            peer.renaming = renaming >> index & 1 == 1;
            for (index, slot) in peer.bases.0.iter_mut().enumerate() {
                *slot = fields.generation(at + 16 + 8 * index);
            }
        }
        let not_received = usize::from(fields.u16(NOT_RECEIVED_COUNT_AT));
        if not_received > BAD_RANGES_MAX {
            return Err(FormatError::Field("not_received"));
        }
        let range_at = |at: usize| fields.u64(at)..fields.u64(at + 8);
        let not_received = (NOT_RECEIVED_AT..).step_by(16).take(not_received).map(range_at);
        let len = usize::from(fields.u16(LOG_PLACE_AT));
        let text = page[LOG_PLACE_AT + 2..].get(..len).filter(|_| len <= LOG_PLACE_MAX);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let text = text.filter(|text| !text.contains(char::is_control));
        let log_place = text.ok_or(FormatError::Field("log_place"))?.to_owned();
        let removed = match fields.bytes(REMOVED_AT) {
            [0] => false,
            [1] => true,
            _ => return Err(FormatError::Field("removed")),
        };
        let [serving_right] = fields.bytes(ARBITER_RIGHT_AT);
        let serving_right = RecordedRight::ALL.get(usize::from(serving_right)).copied();
        let arbiter = ArbiterMark {
            revision: fields.u64(ARBITER_REVISION_AT),
            serving_right: serving_right.ok_or(FormatError::Field("arbiter"))?,
            suspended: match fields.bytes(ARBITER_SUSPENDED_AT) {
                [0] => false,
                [1] => true,
                _ => return Err(FormatError::Field("arbiter suspended")),
            },
            source_after_ms: u32::from_le_bytes(fields.bytes(ARBITER_LEASE_AT)),
            source_asks: match fields.bytes(ARBITER_SOURCE_ASKS_AT) {
                [0] => false,
                [1] => true,
                _ => return Err(FormatError::Field("arbiter source_asks")),
            },
            store: StoreId(fields.u64(ARBITER_STORE_AT)),
        };
        let places = page[MEMBERS_AT..].chunks_exact(MEMBER_BYTES).take(MEMBERS_MAX);
        let members = places.map(Member::decode).filter_map(Result::transpose);
        let members = members.collect::<Result<_, _>>()?;
        let superblock = Superblock {
            log_place,
            removed,
            members,
            arbiter,
            sequence: fields.u64(16),
            volume: fields.uuid(24),
            replica: fields.uuid(40),
            geometry: ReplicaGeometry::decode(&fields.bytes(56))?,
            device_bytes: fields.u64(DEVICE_AT),
            moved_from: fields.u64(DEVICE_AT + 8),
            role,
            flags: Flags::of(fields.u16(82))?,
            unverified,
            designated_successor,
            epoch: fields.u64(88),
            current: fields.generation(96),
            history: list_at(HISTORY_AT),
            log: fields.uuid(104),
            incarnation: fields.u64(120),
            log_progress: LogProgress {
                record_sequence: fields.u64(LOG_PROGRESS_AT),
                page_writes: fields.u64(LOG_PROGRESS_AT + 8),
            },
            volume_tag: fields.u64(VOLUME_TAG_AT),
            desired_states,
            peers,
            not_received: not_received.collect(),
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), FormatError> {
        if self.volume.is_none() || self.replica.is_none() {
            return Err(FormatError::Field("identity"));
        }
        let page = crate::limits::PAGE_BYTES as u64;
        let sound = self.device_bytes.is_multiple_of(page) && self.moved_from.is_multiple_of(page);
        if !sound || self.moved_from >= self.device_bytes {
            return Err(FormatError::Field("device_bytes"));
        }
        let mut from = 0;
        for range in &self.not_received {
            let whole = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
            if !whole || range.start < from || range.start >= range.end {
                return Err(FormatError::Field("not_received"));
            }
            from = range.end;
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let twice = self.peers[..index].iter().any(|other| other.replica == peer.replica);
            if !peer.replica.is_none() && (twice || peer.replica == self.replica) {
                return Err(FormatError::Field("peers"));
            }
        }
        Ok(())
    }

    /// Generation history to report to the peer in this slot.
    pub fn generations(&self, peer: usize) -> GenerationHistory {
        let bases = self.peers[peer].bases;
        GenerationHistory { current: self.current, bases, history: self.history }
    }

    /// All generations that the local data descends from, for any peer, newest first.
    pub fn ancestors(&self) -> GenerationList<HISTORY_LEN> {
        let mut all = self.history;
        let bases = self.peers.iter().flat_map(|peer| peer.bases.iter());
        bases.for_each(|base| all.remember(base));
        all
    }

    /// Stores an updated generation history.
    pub fn set_generations(&mut self, peer: usize, generations: &GenerationHistory) {
        (self.current, self.history) = (generations.current, generations.history);
        self.peers[peer].bases = generations.bases;
    }
}

fn put_list<const N: usize>(page: &mut Page, at: usize, list: &GenerationList<N>) {
    for (index, generation) in list.0.iter().enumerate() {
        put(page, at + 8 * index, &generation.0.to_le_bytes());
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
pub(crate) mod tests;
