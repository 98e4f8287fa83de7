//! The superblock: who a replica is, and what it knows of its data and its peers.

use crate::format::{FormatError, Page, begin, open, put, seal};
use crate::generation::{Lineage, List};
use crate::id::{Generation, Uuid};
use crate::limits::{BASES_LEN, HISTORY_LEN, PEERS_MAX};
use crate::shape::Shape;
use crate::state::Wish;

const MAGIC: &[u8; 8] = b"FSMIRSB\n";
const HEIR_AT: usize = 81;
const WISHES_AT: usize = 84;
const RENAMING_AT: usize = 86;
const DOUBTFUL_AT: usize = 87;
const CALLED_AT: usize = 128;
const HISTORY_AT: usize = 136;
const PEERS_AT: usize = HISTORY_AT + 8 * HISTORY_LEN;
const PEER_BYTES: usize = 64;
const DEVICE_AT: usize = PEERS_AT + PEER_BYTES * PEERS_MAX;
/// End of what every release writes. A later one's fields follow, and its superblock says this length
/// too, so that earlier ones go on to read it: they leave zeroes behind where they write.
const END: usize = DEVICE_AT + 16;
const LOG_PROGRESS_AT: usize = END;

/// Who writes to the volume by this replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Takes the source's writes.
    #[default]
    Target,
    /// Serves hosts.
    Source,
}

/// What a replica was in the middle of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Open as a source. Found set when it is opened: it crashed.
    pub in_use: bool,
    /// It was a source that crashed, and has not met its peer since.
    pub crashed: bool,
    /// A resync to it has begun and not ended.
    pub inconsistent: bool,
    /// Brought up alone after a crash: hosts have read what is here.
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

/// What a replica knows of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerRecord {
    /// The peer's replica; none for a free place.
    pub replica: Uuid,
    /// See [`Lineage::bases`]; not empty means that the peer is out of date, unless it is being
    /// renamed.
    pub bases: List<BASES_LEN>,
    /// The peer was in sync when the current generation was minted, because of another peer: it is
    /// being told the name, and until that is done no write is acknowledged that it lacks.
    pub renaming: bool,
}

impl PeerRecord {
    /// The peer lacks what hosts were told is written.
    pub fn is_outdated(&self) -> bool {
        !self.bases.is_empty() && !self.renaming
    }
}

/// How far a log has come: two counters that only grow while it is the same log. Zero of both is where
/// every log begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Sequence of its latest hot record.
    pub record_sequence: u64,
    /// Writes of its bitmap pages, all together.
    pub page_writes: u64,
}

impl Progress {
    /// True when nothing is missing that had been written up to `before`.
    pub fn has_reached(self, before: Progress) -> bool {
        self.record_sequence >= before.record_sequence && self.page_writes >= before.page_writes
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Each write has the next; the slot is its lowest bit.
    pub sequence: u64,
    /// The volume.
    pub volume: Uuid,
    /// This replica.
    pub replica: Uuid,
    /// Size and granularities.
    pub shape: Shape,
    /// Size of the data device at whose end this lies, in whole pages. A superblock that is found
    /// elsewhere is no superblock of that device.
    pub device_bytes: u64,
    /// Where the metadata ended before it moved to the end of a device that had grown, until that
    /// place is zeroed; else 0.
    pub moved_from: u64,
    /// Role.
    pub role: Role,
    /// Flags.
    pub flags: Flags,
    /// A flush of the data device has failed, and it was opened again since: what it shows may not be
    /// there durably, until a resync to it has ended.
    pub doubtful: bool,
    /// The place of the peer that this source, which serves nobody, has asked to be the source in
    /// its stead: whether it is, it alone can tell.
    pub heir: Option<usize>,
    /// The highest epoch that it was promoted to, or has admitted writes of.
    pub epoch: u64,
    /// The generation of the data here.
    pub current: Generation,
    /// Earlier ones, the newest first.
    pub history: List<HISTORY_LEN>,
    /// The log that belongs to it.
    pub log: Uuid,
    /// How often that log was opened for use.
    pub incarnation: u64,
    /// How far that log had come, durably, when this was written: it has come at least as far. Zero
    /// where an earlier release wrote this, which says nothing.
    pub log_progress: Progress,
    /// What the volume is called where this replica is, in eight bytes that whoever opens it makes of
    /// its name; 0 when nobody has said. By it a device that was exchanged for another is told.
    pub called: u64,
    /// What the operator wants of the peers, by their place in the configuration: it holds for one
    /// that was never met too.
    pub wishes: [Wish; PEERS_MAX],
    /// Peers, in the order in which they were met.
    pub peers: [PeerRecord; PEERS_MAX],
}

impl Superblock {
    /// As it is written to slot `sequence & 1`.
    pub fn encode(&self) -> Page {
        let mut page = begin(MAGIC);
        put(&mut page, 10, &(END as u16).to_le_bytes());
        put(&mut page, 16, &self.sequence.to_le_bytes());
        put(&mut page, 24, &self.volume.0);
        put(&mut page, 40, &self.replica.0);
        put(&mut page, 56, &self.shape.encode());
        put(&mut page, 80, &[u8::from(self.role == Role::Source)]);
        put(&mut page, HEIR_AT, &[self.heir.map_or(0, |place| place as u8 + 1)]);
        put(&mut page, 82, &self.flags.bits().to_le_bytes());
        put(&mut page, WISHES_AT, &self.wishes.map(|wish| wish as u8));
        let renaming = self.peers.iter().enumerate();
        let renaming =
            renaming.fold(0, |all, (place, peer)| all | u8::from(peer.renaming) << place);
        put(&mut page, RENAMING_AT, &[renaming]);
        put(&mut page, DOUBTFUL_AT, &[u8::from(self.doubtful)]);
        put(&mut page, 88, &self.epoch.to_le_bytes());
        put(&mut page, 96, &self.current.0.to_le_bytes());
        put(&mut page, 104, &self.log.0);
        put(&mut page, 120, &self.incarnation.to_le_bytes());
        put(&mut page, CALLED_AT, &self.called.to_le_bytes());
        put_list(&mut page, HISTORY_AT, &self.history);
        for (index, peer) in self.peers.iter().enumerate() {
            let at = PEERS_AT + index * PEER_BYTES;
            put(&mut page, at, &peer.replica.0);
            put_list(&mut page, at + 16, &peer.bases);
        }
        put(&mut page, DEVICE_AT, &self.device_bytes.to_le_bytes());
        put(&mut page, DEVICE_AT + 8, &self.moved_from.to_le_bytes());
        let Progress { record_sequence, page_writes } = self.log_progress;
        put(&mut page, LOG_PROGRESS_AT, &record_sequence.to_le_bytes());
        put(&mut page, LOG_PROGRESS_AT + 8, &page_writes.to_le_bytes());
        seal(&mut page);
        page
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(page: &Page) -> Result<Superblock, FormatError> {
        let fields = open(page, MAGIC)?;
        if usize::from(fields.u16(10)) != END {
            return Err(FormatError::Field("length"));
        }
        let role = match fields.bytes(80) {
            [0] => Role::Target,
            [1] => Role::Source,
            _ => return Err(FormatError::Field("role")),
        };
        let heir = match fields.bytes(HEIR_AT) {
            [0] => None,
            [number] if usize::from(number) <= PEERS_MAX => Some(usize::from(number) - 1),
            _ => return Err(FormatError::Field("heir")),
        };
        let mut wishes = [Wish::default(); PEERS_MAX];
        for (wish, number) in wishes.iter_mut().zip(fields.bytes::<PEERS_MAX>(WISHES_AT)) {
            let known = Wish::ALL.get(usize::from(number)).ok_or(FormatError::Field("wishes"))?;
            *wish = *known;
        }
        let list_at = |at: usize| {
            let mut list = List::default();
            for (index, slot) in list.0.iter_mut().enumerate() {
                *slot = fields.generation(at + 8 * index);
            }
            list
        };
        let [renaming] = fields.bytes(RENAMING_AT);
        if renaming >> PEERS_MAX != 0 {
            return Err(FormatError::Field("renaming"));
        }
        let doubtful = match fields.bytes(DOUBTFUL_AT) {
            [0] => false,
            [1] => true,
            _ => return Err(FormatError::Field("doubtful")),
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
        let superblock = Superblock {
            sequence: fields.u64(16),
            volume: fields.uuid(24),
            replica: fields.uuid(40),
            shape: Shape::decode(&fields.bytes(56))?,
            device_bytes: fields.u64(DEVICE_AT),
            moved_from: fields.u64(DEVICE_AT + 8),
            role,
            flags: Flags::of(fields.u16(82))?,
            doubtful,
            heir,
            epoch: fields.u64(88),
            current: fields.generation(96),
            history: list_at(HISTORY_AT),
            log: fields.uuid(104),
            incarnation: fields.u64(120),
            log_progress: Progress {
                record_sequence: fields.u64(LOG_PROGRESS_AT),
                page_writes: fields.u64(LOG_PROGRESS_AT + 8),
            },
            called: fields.u64(CALLED_AT),
            wishes,
            peers,
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
        for (index, peer) in self.peers.iter().enumerate() {
            let twice = self.peers[..index].iter().any(|other| other.replica == peer.replica);
            if !peer.replica.is_none() && (twice || peer.replica == self.replica) {
                return Err(FormatError::Field("peers"));
            }
        }
        Ok(())
    }

    /// The lineage as the peer in this place has to see it.
    pub fn lineage(&self, peer: usize) -> Lineage {
        let bases = self.peers[peer].bases;
        Lineage { current: self.current, bases, history: self.history }
    }

    /// What the data here comes from, whoever may hold it still: the newest first.
    pub fn ancestors(&self) -> List<HISTORY_LEN> {
        let mut all = self.history;
        let bases = self.peers.iter().flat_map(|peer| peer.bases.iter());
        bases.for_each(|base| all.remember(base));
        all
    }

    /// Takes a lineage that moved on over.
    pub fn set_lineage(&mut self, peer: usize, lineage: &Lineage) {
        (self.current, self.history) = (lineage.current, lineage.history);
        self.peers[peer].bases = lineage.bases;
    }
}

fn put_list<const N: usize>(page: &mut Page, at: usize, list: &List<N>) {
    for (index, generation) in list.0.iter().enumerate() {
        put(page, at + 8 * index, &generation.0.to_le_bytes());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape::tests::any_shape;

    fn any_list<const N: usize>() -> impl Strategy<Value = List<N>> {
        prop::array::uniform::<_, N>(any::<u64>()).prop_map(|items| List(items.map(Generation)))
    }

    prop_compose! {
        pub(crate) fn any_superblock()(
            numbers in any::<[u64; 7]>(),
            names in prop::array::uniform5(prop::array::uniform16(1u8..)),
            shape in any_shape(),
            source in any::<bool>(),
            flags in 0u16..16,
            heir in prop::option::of(0..PEERS_MAX),
            device_pages in (1u64..1 << 40, 0.0..1.0),
            history in any_list(),
            bases in (any_list(), any_list()),
            renaming in any::<[bool; 2]>(),
            doubtful in any::<bool>(),
            wishes in prop::array::uniform2(prop::sample::select(&Wish::ALL[..])),
        ) -> Superblock {
            let [volume, replica, log, first, second] = names.map(Uuid);
            Superblock {
                sequence: numbers[0],
                volume,
                replica,
                shape,
                device_bytes: device_pages.0 * 4096,
                moved_from: (device_pages.0 as f64 * device_pages.1) as u64 * 4096,
                role: if source { Role::Source } else { Role::Target },
                flags: Flags::of(flags).expect("known flags"),
                doubtful,
                heir,
                epoch: numbers[1],
                current: Generation(numbers[2]),
                history,
                log,
                incarnation: numbers[3],
                log_progress: Progress { record_sequence: numbers[5], page_writes: numbers[6] },
                called: numbers[4],
                wishes,
                peers: [
                    PeerRecord { replica: first, bases: bases.0, renaming: renaming[0] },
                    PeerRecord { replica: second, bases: bases.1, renaming: renaming[1] },
                ],
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(superblock in any_superblock()) {
            prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }

        #[test]
        fn a_changed_byte_is_noticed(
            superblock in any_superblock(),
            at in 0usize..4096,
            change in 1u8..,
        ) {
            let mut page = superblock.encode();
            page[at] ^= change;
            prop_assert!(Superblock::decode(&page).is_err());
        }

        /// Hostile bytes with a right checksum are refused or make a sensible superblock.
        #[test]
        fn forged_fields_do_no_harm(
            superblock in any_superblock(),
            at in 10usize..432,
            value in any::<u8>(),
        ) {
            let mut page = superblock.encode();
            page[at] = value;
            seal(&mut page);
            if let Ok(forged) = Superblock::decode(&page) {
                prop_assert_eq!(forged.shape.check(), Ok(()));
                prop_assert_eq!(Superblock::decode(&forged.encode()), Ok(forged));
            }
        }
    }

    /// What `docs/mirror-format.md` says of places: by it others read what we wrote.
    #[test]
    fn fields_lie_where_the_document_says() {
        let document = include_str!("../../../../docs/mirror-format.md");
        let peers = format!("| {PEERS_AT} | {PEERS_MAX} × {PEER_BYTES} | peers");
        let rows = [
            format!("| 10 | 2 | length up to the last field of the first release, {END} |"),
            format!("| {LOG_PROGRESS_AT} | 8 | how far the log had come: sequence"),
            format!("| {} | 8 | the same: writes", LOG_PROGRESS_AT + 8),
            format!("| {HEIR_AT} | 1 | heir"),
            format!("| {WISHES_AT} | {PEERS_MAX} | wishes"),
            format!("| {DEVICE_AT} | 8 | size of the device"),
            format!("| {} | 8 | where the metadata ended", DEVICE_AT + 8),
            format!("| {RENAMING_AT} | 1 | renaming"),
            format!("| {DOUBTFUL_AT} | 1 | doubtful"),
            format!("| {CALLED_AT} | 8 | what the volume is called"),
            format!("| {HISTORY_AT} | {} | history: {HISTORY_LEN} generations", 8 * HISTORY_LEN),
            peers,
        ];
        for row in rows {
            assert!(document.contains(&row), "the document does not say: {row}");
        }
        let names = ["`FSMIRSB\\n`", "`FSMIRLG\\n`", "`FSMIRHT\\n`", "`FSMIRBM\\n`"];
        assert!(names.iter().all(|name| document.contains(name)));
    }

    /// An earlier release writes zeroes where the log's progress is, and reads what has others there.
    #[test]
    fn what_an_earlier_release_wrote_says_nothing_of_the_log() {
        proptest!(|(superblock in any_superblock())| {
            let mut page = superblock.encode();
            prop_assert_eq!(&page[10..12], &408_u16.to_le_bytes(), "the only length that it reads");
            page[408..4092].fill(0);
            seal(&mut page);
            let read = Superblock::decode(&page).expect("it is whole");
            prop_assert_eq!(read.log_progress, Progress::default());
            prop_assert!(Progress::default().has_reached(read.log_progress));
        });
    }

    #[test]
    fn zeroes_and_later_versions_are_told_apart() {
        assert_eq!(Superblock::decode(&[0; 4096]), Err(FormatError::Absent));
        let mut page = begin(MAGIC);
        page[8] = 2;
        assert_eq!(Superblock::decode(&page), Err(FormatError::Version(2)));
    }
}
