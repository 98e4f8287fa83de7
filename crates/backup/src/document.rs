//! Documents of a prefix: the head, which lists the backups, and the manifest of each backup.
//!
//! Invariants of a document that was read: its sizes, names and numbers are checked, so that users
//! of it need no checks of their own.

use flagstone_pool::PoolId;
use serde::{Deserialize, Serialize};

use crate::id::{Checksum, WriterId};
use crate::limits::{
    ATTEMPTS_MAX, BACKUPS_MAX, BLOCK_BYTES, INDEX_OBJECT_BYTES_MAX, MANIFEST_BYTES_MAX,
    NAME_BYTES_MAX, PACKS_MAX, RANGE_BYTES, RANGE_PACKS, UNFINISHED_MAX, VOLUME_BYTES_MAX,
};
use crate::seal::SealedKey;

/// Version of the format.
pub const FORMAT: u32 = 1;

/// Version of the head of an encrypted prefix: programs that know no encryption refuse it.
pub const ENCRYPTED_FORMAT: u32 = 2;

/// Identity of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotIdentity {
    /// Name of the volume.
    pub volume: String,
    /// UUID of the volume. One that is created anew under the name has another.
    pub volume_id: String,
    /// UUID of the volume's pool.
    pub pool_id: String,
    /// The volume was encrypted at rest.
    pub encrypted: bool,
    /// Name of the snapshot, without its volume.
    pub snapshot: String,
    /// UUID of the snapshot. Snapshots that were taken together have one.
    pub snapshot_id: String,
    /// Number that tells them apart: the first half is of the pool, the second of the snapshot. It
    /// is the source of the snapshot's stream without a base.
    pub source: u64,
    /// Size of the volume, in bytes.
    pub size_bytes: u64,
    /// Seconds since 1970 when the snapshot was taken.
    pub created_seconds: u64,
}

/// Space of a backup, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupSpace {
    /// Data of the volume that is not a hole.
    pub data_bytes: u64,
    /// Pieces and indexes that the backup needs, which other backups may need too.
    pub stored_bytes: u64,
    /// Pieces and indexes that were stored for this backup.
    pub new_bytes: u64,
}

/// Finished backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupEntry {
    /// Number of its writer, and name of its manifest.
    pub id: WriterId,
    /// Its snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotIdentity,
    /// Seconds since 1970 when the backup was complete.
    pub completed_seconds: u64,
    /// Space.
    #[serde(flatten)]
    pub space: BackupSpace,
    /// Length of the manifest.
    pub manifest_bytes: u64,
    /// Checksum of the manifest.
    pub manifest_sha256: Checksum,
    /// Message authentication code of the other members, with the key of an encrypted prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Checksum>,
}

/// Unfinished backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedBackup {
    /// Its snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotIdentity,
    /// Backup whose unchanged ranges it uses. It is kept even if a prune removes it from the list.
    pub base: Option<BackupEntry>,
    /// Writers that worked on it. Only the last one may commit.
    pub writers: Vec<WriterId>,
    /// Seconds since 1970 when the last one recorded that it works.
    pub renewed_seconds: u64,
}

/// Head of a prefix: the one object that is replaced, on condition that it is unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`], or [`ENCRYPTED_FORMAT`].
    pub format: u32,
    /// Key of an encrypted prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<SealedKey>,
    /// Number of times that it was replaced.
    pub epoch: u64,
    /// Number of the replacement, so that two heads are never equal.
    pub nonce: WriterId,
    /// Finished backups, in the order of completion.
    pub backups: Vec<BackupEntry>,
    /// Unfinished backups.
    pub unfinished: Vec<UnfinishedBackup>,
    /// Checksum of the JSON of the other members. A changed digit would otherwise be stored again
    /// by the next replacement.
    pub sha256: Checksum,
}

/// Packs of one writer: a run of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackRun(
    /// Place of the writer in [`Manifest::writers`].
    pub u32,
    /// First number.
    pub u32,
    /// Count.
    pub u32,
);

/// Range of a volume that has data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeEntry {
    /// Number of the range.
    pub range: u32,
    /// Place of the writer of the index in [`Manifest::writers`].
    pub writer: u32,
    /// Length of the index.
    pub index_bytes: u64,
    /// Checksum of the index.
    pub index_sha256: Checksum,
    /// Data of the range.
    pub data_bytes: u64,
    /// Pieces of the range.
    pub stored_bytes: u64,
    /// Packs that have the pieces, sorted.
    pub packs: Vec<PackRun>,
}

/// Manifest of a backup: all objects that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Number of the backup's writer.
    pub id: WriterId,
    /// Its snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotIdentity,
    /// Writers of indexes and packs.
    pub writers: Vec<WriterId>,
    /// Ranges with data, sorted.
    pub ranges: Vec<RangeEntry>,
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

impl SnapshotIdentity {
    /// `VOLUME@SNAPSHOT`
    pub fn full_name(&self) -> String {
        format!("{}@{}", self.volume, self.snapshot)
    }

    /// Number of ranges of the volume.
    pub fn ranges(&self) -> u32 {
        self.size_bytes.div_ceil(RANGE_BYTES) as u32
    }

    /// UUID of the snapshot.
    pub fn uuid(&self) -> PoolId {
        self.snapshot_id.parse().unwrap_or_default()
    }

    /// True if both are one snapshot, of one pool.
    pub fn is_same(&self, other: &SnapshotIdentity) -> bool {
        self.uuid() == other.uuid() && self.source == other.source
    }

    /// True if a backup of this snapshot can use unchanged ranges of a backup of `base`: none
    /// extends beyond the end of the volume.
    pub fn can_have_base(&self, base: &SnapshotIdentity) -> bool {
        self.is_of_same_volume(base) && base.size_bytes <= self.size_bytes
    }

    /// True if both are snapshots of one volume.
    pub fn is_of_same_volume(&self, other: &SnapshotIdentity) -> bool {
        (&self.volume, &self.volume_id, &self.pool_id)
            == (&other.volume, &other.volume_id, &other.pool_id)
    }

    /// Source of the snapshot's stream: its first half is of the pool and the base.
    pub fn stream_source(&self, base: Option<&SnapshotIdentity>) -> u64 {
        self.source ^ base.map_or(0, |base| base.source >> 32)
    }

    /// Checks a snapshot's names and its size.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check(&self) -> Result<(), &'static str> {
        if !is_name(&self.volume) || !is_name(&self.snapshot) {
            return Err("a name has characters other than letters, digits, `-`, `_`, `.` and `:`");
        }
        let ids = [&self.snapshot_id, &self.volume_id, &self.pool_id];
        if ids.iter().any(|id| id.parse::<PoolId>().is_err()) {
            return Err("the identifier of a snapshot, volume or pool is no UUID");
        }
        let possible = BLOCK_BYTES..=VOLUME_BYTES_MAX;
        match possible.contains(&self.size_bytes) && self.size_bytes.is_multiple_of(BLOCK_BYTES) {
            true => Ok(()),
            false => Err("the size of a volume is not possible: at most 64 TiB are"),
        }
    }
}

impl BackupEntry {
    /// Checks an entry.
    ///
    /// # Errors
    /// The contradiction.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        self.snapshot.check()?;
        match self.manifest_bytes <= MANIFEST_BYTES_MAX as u64 {
            true => Ok(()),
            false => Err("a manifest is too long"),
        }
    }
}

impl Head {
    /// The head of a prefix without backups.
    pub(crate) fn empty(encryption: Option<SealedKey>) -> Head {
        let format = if encryption.is_some() { ENCRYPTED_FORMAT } else { FORMAT };
        Head { format, encryption, ..Head::default() }
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// The contradiction.
    pub fn decode(bytes: &[u8]) -> Result<Head, String> {
        let mut head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let stored = std::mem::take(&mut head.sha256);
        if Checksum::of(&head.encode()) != stored {
            return Err("its checksum is wrong".to_owned());
        }
        head.check()?;
        Ok(head)
    }

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("documents are JSON")
    }

    /// Encodes a head, with its checksum.
    pub(crate) fn seal(mut self) -> Vec<u8> {
        self.sha256 = Checksum::default();
        self.sha256 = Checksum::of(&self.encode());
        self.encode()
    }

    /// Checks the limits, which a change may exceed.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check(&self) -> Result<(), &'static str> {
        match (self.format, &self.encryption) {
            (FORMAT, None) | (ENCRYPTED_FORMAT, Some(_)) => {}
            (FORMAT | ENCRYPTED_FORMAT, _) => {
                return Err("its format and its encryption contradict each other");
            }
            _ => return Err("this program does not know the version of its format"),
        }
        if self.backups.len() > BACKUPS_MAX || self.unfinished.len() > UNFINISHED_MAX {
            return Err("there are too many backups (10000) or unfinished ones (100): prune");
        }
        for unfinished in &self.unfinished {
            unfinished.snapshot.check()?;
            unfinished.base.as_ref().map_or(Ok(()), BackupEntry::check)?;
            if !(1..=ATTEMPTS_MAX).contains(&unfinished.writers.len()) {
                return Err("an unfinished backup has no writer, or too many");
            }
        }
        self.backups.iter().try_for_each(BackupEntry::check)
    }

    /// Backups whose objects are needed: listed ones, and bases of unfinished ones.
    pub fn needed(&self) -> Vec<&BackupEntry> {
        let bases = self.unfinished.iter().filter_map(|unfinished| unfinished.base.as_ref());
        let mut needed: Vec<&BackupEntry> = self.backups.iter().chain(bases).collect();
        needed.sort_by_key(|entry| entry.id);
        needed.dedup_by_key(|entry| entry.id);
        needed
    }
}

impl Manifest {
    /// Decodes the manifest of a backup.
    ///
    /// # Errors
    /// The contradiction.
    pub fn decode(entry: &BackupEntry, bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() as u64 != entry.manifest_bytes
            || Checksum::of(bytes) != entry.manifest_sha256
        {
            return Err("its length or its checksum is wrong".to_owned());
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        manifest.check()?;
        match manifest.id == entry.id && manifest.snapshot == entry.snapshot {
            true => Ok(manifest),
            false => Err("it is the manifest of another backup".to_owned()),
        }
    }

    /// Checks the manifest's numbers, which indexes of many pieces may exceed.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.format != FORMAT {
            return Err("this program does not know the version of its format");
        }
        self.snapshot.check()?;
        let runs = self.ranges.iter().flat_map(|entry| &entry.packs);
        if runs.map(|run| u64::from(run.2)).sum::<u64>() > PACKS_MAX {
            return Err("it has too many packs");
        }
        let mut next = 0;
        for entry in &self.ranges {
            if entry.range < next || entry.range >= self.snapshot.ranges() {
                return Err("ranges are not sorted, or leave the volume");
            }
            next = entry.range + 1;
            if self.writer(entry.writer).is_none()
                || entry.index_bytes > INDEX_OBJECT_BYTES_MAX as u64
            {
                return Err("a range has an impossible index");
            }
            if entry.data_bytes > RANGE_BYTES || entry.stored_bytes > RANGE_BYTES * 64 {
                return Err("a range has an impossible size");
            }
            entry.packs.iter().try_for_each(|run| self.check_packs(entry.range, run))?;
        }
        Ok(())
    }

    fn check_packs(&self, range: u32, run: &PackRun) -> Result<(), &'static str> {
        let PackRun(writer, first, count) = *run;
        let is_of_range = first / RANGE_PACKS == range
            && (1..=RANGE_PACKS).contains(&count)
            && (first + (count - 1)) / RANGE_PACKS == range;
        match is_of_range && self.writer(writer).is_some() {
            true => Ok(()),
            false => Err("a range has impossible packs"),
        }
    }

    /// Writer at a place of the list.
    pub fn writer(&self, place: u32) -> Option<WriterId> {
        self.writers.get(place as usize).copied()
    }

    /// Entry of a range, if it has data.
    pub fn range(&self, range: u32) -> Option<&RangeEntry> {
        let place = self.ranges.binary_search_by_key(&range, |entry| entry.range).ok()?;
        Some(&self.ranges[place])
    }
}

/// Object of a writer that a backup needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataObject {
    /// Index of a range.
    Index(u32),
    /// Pack of a number.
    Pack(u32),
}

impl Manifest {
    /// Indexes and packs that the backup needs, and the lengths of indexes.
    pub fn objects(&self) -> impl Iterator<Item = (WriterId, DataObject, Option<u64>)> {
        let writer = |place: u32| self.writer(place).expect("a manifest is checked");
        self.ranges.iter().flat_map(move |entry| {
            let index = DataObject::Index(entry.range);
            let index = (writer(entry.writer), index, Some(entry.index_bytes));
            let packs = entry.packs.iter().flat_map(move |PackRun(place, first, count)| {
                let packs = *first..*first + *count;
                packs.map(move |number| (writer(*place), DataObject::Pack(number), None))
            });
            std::iter::once(index).chain(packs)
        })
    }
}
