//! Volume table: the volumes and snapshots of a pool, with size, properties and the root of the
//! map.
//!
//! Invariants: identifiers are unique and below the next one; names are unique among present
//! volumes, and among the snapshots of one volume; a parent is a snapshot, older than its child.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{ENTRY_BYTES, MapEntry};
use super::unit::BLOCK_WEIGHT_U64;
use super::{Fields, FormatError, begin, begins, put};
use crate::crypt::key::{WRAPPED_BYTES, WrappedKey};
use crate::id::PoolId;
use crate::limits::{
    PROPERTIES_MAX, VOLUME_BLOCKS_MAX, VOLUME_NAME_MAX, VOLUME_TABLE_BYTES_MAX, VOLUMES_MAX,
};

/// Property of a volume whose content only a mirror has changed: the identifier of the volume.
pub const LEG_PROPERTY: &str = "leg";

/// Property of a leg that is being rolled back: see `manage::leg_rollback`.
pub const LEG_ROLLBACK_PROPERTY: &str = "leg-rollback";

/// Properties that only the use as a leg changes.
pub const LEG_PROPERTIES: [&str; 2] = [LEG_PROPERTY, LEG_ROLLBACK_PROPERTY];

const MAGIC: &[u8; 8] = b"FSPOOLV\n";
const VOLUMES_AT: usize = 32;
const FIXED_BYTES: usize = 120;

/// Presence of a volume or snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumePresence {
    /// It can be opened.
    #[default]
    Present,
    /// Its blocks are being freed.
    Deleting {
        /// Position of the freeing: earlier blocks, and map pages that cover only earlier blocks,
        /// are free.
        reaped: u64,
    },
}

/// A volume, or a snapshot of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeKind {
    /// It can be written.
    #[default]
    Volume,
    /// It never changes.
    Snapshot {
        /// Volume whose name the snapshot has. [`super::chunk::ChunkRecord::Promote`] changes it.
        owner: u32,
        /// Volume of which the snapshot was taken.
        source: u32,
        /// First chunk of the log that the snapshot does not contain.
        sequence: u64,
        /// Time of the snapshot, in seconds since 1970.
        created_s: u64,
    },
}

/// A volume, or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Identifier within the pool, from 1; never used again.
    pub id: u32,
    /// Present, or being deleted.
    pub state: VolumePresence,
    /// Volume or snapshot.
    pub kind: VolumeKind,
    /// Parent snapshot; 0 for none.
    pub parent: u32,
    /// True if it replaced a deleted snapshot of another source.
    pub adopted: bool,
    /// True if it lacks changes that were lost with the log device, and the operator has not
    /// accepted that.
    pub incomplete: bool,
    /// Its size is reserved.
    pub thick: bool,
    /// Name without `@`: unique among the present volumes, or among the snapshots of one owner.
    pub name: String,
    /// Identifier for hosts. Snapshots that were taken together have the same.
    pub uuid: PoolId,
    /// Size, in blocks.
    pub blocks: u64,
    /// Mapped blocks as of the last checkpoint.
    pub mapped: u64,
    /// Space of the mapped blocks, in parts of a block ([`super::unit::BLOCK_WEIGHT`]).
    pub weight: u64,
    /// Blocks shared with the parent, at most; 0 without a parent.
    pub shared: u64,
    /// Space of the shared blocks, in parts of a block, at most.
    pub shared_weight: u64,
    /// Root of the map as of the last checkpoint.
    pub root: MapEntry,
    /// Text that the operator or the layers above set.
    pub properties: BTreeMap<String, String>,
    /// Data key of an encrypted volume. Its snapshots have the same key, and none of their own.
    pub encryption: Option<WrappedKey>,
}

impl VolumeRecord {
    /// A thin volume without data or properties.
    pub fn new(id: u32, name: String, blocks: u64) -> VolumeRecord {
        VolumeRecord {
            id,
            state: VolumePresence::Present,
            kind: VolumeKind::Volume,
            parent: 0,
            adopted: false,
            incomplete: false,
            thick: false,
            name,
            uuid: PoolId::default(),
            blocks,
            mapped: 0,
            weight: 0,
            shared: 0,
            shared_weight: 0,
            root: MapEntry::HOLE,
            properties: BTreeMap::new(),
            encryption: None,
        }
    }

    /// Ends the use of the volume as a leg.
    pub fn release_leg(&mut self) {
        for key in LEG_PROPERTIES {
            self.properties.remove(key);
        }
    }

    fn properties_len(&self) -> usize {
        self.properties.iter().map(|(key, value)| 3 + key.len() + value.len()).sum()
    }

    /// Checks the lengths and the size.
    ///
    /// # Errors
    /// [`FormatError::Field`] names the field that is out of range.
    pub fn check(&self) -> Result<(), FormatError> {
        let long = |(key, value): (&String, &String)| {
            key.is_empty() || key.len() > usize::from(u8::MAX) || value.len() > PROPERTIES_MAX
        };
        if self.id == 0 {
            return Err(FormatError::Field("id"));
        }
        if !is_name(&self.name) {
            return Err(FormatError::Field("name"));
        }
        if !(1..=VOLUME_BLOCKS_MAX).contains(&self.blocks) {
            return Err(FormatError::Field("size"));
        }
        if self.mapped > self.blocks || self.shared > self.blocks {
            return Err(FormatError::Field("mapped blocks"));
        }
        let weight_max = self.blocks * BLOCK_WEIGHT_U64;
        if self.weight > weight_max || self.shared_weight > weight_max {
            return Err(FormatError::Field("weight"));
        }
        if self.root.unit().is_some() {
            return Err(FormatError::Field("root"));
        }
        if self.encryption.is_some() && self.kind != VolumeKind::Volume {
            return Err(FormatError::Field("kind"));
        }
        if self.properties_len() > PROPERTIES_MAX || self.properties.iter().any(long) {
            return Err(FormatError::Field("properties"));
        }
        Ok(())
    }

    /// Space of the blocks that the parent lacks, in parts of a block, at least.
    pub fn own_weight(&self) -> u64 {
        self.weight.saturating_sub(self.shared_weight)
    }

    /// Space of the mapped blocks, in blocks, rounded up.
    pub fn stored(&self) -> u64 {
        self.weight.div_ceil(BLOCK_WEIGHT_U64)
    }

    /// Length when encoded, in bytes.
    pub fn encoded_len(&self) -> usize {
        let key = self.encryption.map_or(0, |_| WRAPPED_BYTES);
        FIXED_BYTES + self.name.len() + self.properties_len() + key
    }

    /// Encodes the volume to [`VolumeRecord::encoded_len`] bytes.
    pub fn encode(&self, bytes: &mut [u8]) {
        bytes[..FIXED_BYTES].fill(0);
        put(bytes, 0, &self.id.to_le_bytes());
        if let VolumePresence::Deleting { reaped } = self.state {
            bytes[4] = 1;
            put(bytes, 64, &reaped.to_le_bytes());
        }
        bytes[5] = u8::from(self.thick);
        bytes[6] = self.name.len() as u8;
        if let VolumeKind::Snapshot { owner, source, sequence, created_s } = self.kind {
            bytes[7] = 1;
            put(bytes, 80, &owner.to_le_bytes());
            put(bytes, 84, &source.to_le_bytes());
            put(bytes, 88, &sequence.to_le_bytes());
            put(bytes, 96, &created_s.to_le_bytes());
        }
        if self.encryption.is_some() {
            bytes[7] = 2;
        }
        bytes[58] = u8::from(self.adopted);
        bytes[59] = u8::from(self.incomplete);
        put(bytes, 60, &self.parent.to_le_bytes());
        put(bytes, 72, &self.shared.to_le_bytes());
        put(bytes, 8, &self.uuid.0);
        put(bytes, 24, &self.blocks.to_le_bytes());
        put(bytes, 32, &self.mapped.to_le_bytes());
        put(bytes, 104, &self.weight.to_le_bytes());
        put(bytes, 112, &self.shared_weight.to_le_bytes());
        self.root.encode(&mut bytes[40..40 + ENTRY_BYTES]);
        put(bytes, 56, &(self.properties_len() as u16).to_le_bytes());
        put(bytes, FIXED_BYTES, self.name.as_bytes());
        let mut at = FIXED_BYTES + self.name.len();
        for (key, value) in &self.properties {
            bytes[at] = key.len() as u8;
            put(bytes, at + 1, key.as_bytes());
            at += 1 + key.len();
            put(bytes, at, &(value.len() as u16).to_le_bytes());
            put(bytes, at + 2, value.as_bytes());
            at += 2 + value.len();
        }
        if let Some(key) = &self.encryption {
            put(bytes, at, &key.0);
        }
    }

    /// Decodes the volume at the beginning of `bytes`, for a pool of `blocks`; returns it with its
    /// length.
    ///
    /// # Errors
    /// [`FormatError::Field`].
    pub fn decode(bytes: &[u8], blocks: u64) -> Result<(VolumeRecord, usize), FormatError> {
        let short = FormatError::Field("volume");
        let fixed = Fields(bytes.get(..FIXED_BYTES).ok_or(short)?);
        let name_end = FIXED_BYTES + usize::from(bytes[6]);
        let end = name_end + usize::from(fixed.u16(56));
        let name = bytes.get(FIXED_BYTES..name_end).ok_or(short)?;
        let mut rest = bytes.get(name_end..end).ok_or(short)?;
        let mut properties = BTreeMap::new();
        while !rest.is_empty() {
            let (key, after) = split_text(rest, 1)?;
            let (value, after) = split_text(after, 2)?;
            if properties.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(FormatError::Field("properties"));
            }
            properties.insert(key, value);
            rest = after;
        }
        let encryption = match bytes[7] {
            2 => {
                let key = bytes.get(end..end + WRAPPED_BYTES).ok_or(short)?;
                Some(WrappedKey(Fields(key).bytes(0)))
            }
            _ => None,
        };
        let end = end + encryption.map_or(0, |_| WRAPPED_BYTES);
        let volume = VolumeRecord {
            id: fixed.u32(0),
            state: match bytes[4] {
                0 => VolumePresence::Present,
                1 => VolumePresence::Deleting { reaped: fixed.u64(64) },
                _ => return Err(FormatError::Field("state")),
            },
            kind: match bytes[7] {
                0 | 2 => VolumeKind::Volume,
                1 => VolumeKind::Snapshot {
                    owner: fixed.u32(80),
                    source: fixed.u32(84),
                    sequence: fixed.u64(88),
                    created_s: fixed.u64(96),
                },
                _ => return Err(FormatError::Field("kind")),
            },
            parent: fixed.u32(60),
            adopted: truth(bytes[58], "adopted")?,
            incomplete: truth(bytes[59], "incomplete")?,
            thick: truth(bytes[5], "thick")?,
            name: text(name)?,
            uuid: PoolId(fixed.bytes(8)),
            blocks: fixed.u64(24),
            mapped: fixed.u64(32),
            weight: fixed.u64(104),
            shared: fixed.u64(72),
            shared_weight: fixed.u64(112),
            root: MapEntry::decode(&bytes[40..40 + ENTRY_BYTES], blocks)?,
            properties,
            encryption,
        };
        volume.check()?;
        Ok((volume, end))
    }
}

fn truth(byte: u8, field: &'static str) -> Result<bool, FormatError> {
    match byte {
        0 | 1 => Ok(byte == 1),
        _ => Err(FormatError::Field(field)),
    }
}

/// True for a possible name of a volume or snapshot.
pub fn is_name(name: &str) -> bool {
    (1..=VOLUME_NAME_MAX).contains(&name.len()) && !name.contains('@')
}

fn text(bytes: &[u8]) -> Result<String, FormatError> {
    let text = std::str::from_utf8(bytes).map_err(|_| FormatError::Field("text"))?;
    Ok(text.to_owned())
}

/// Splits off a text, whose length of `width` bytes comes first.
fn split_text(bytes: &[u8], width: usize) -> Result<(String, &[u8]), FormatError> {
    let short = FormatError::Field("properties");
    let prefix = bytes.get(..width).ok_or(short)?;
    let len = prefix.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
    let rest = &bytes[width..];
    let value = rest.get(..len).ok_or(short)?;
    Ok((text(value)?, &rest[len..]))
}

/// All volumes and snapshots of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTable {
    /// Identifier of the next volume or snapshot to be created.
    pub next_id: u32,
    /// Volumes and snapshots by identifier.
    pub volumes: BTreeMap<u32, VolumeRecord>,
}

impl Default for VolumeTable {
    fn default() -> VolumeTable {
        VolumeTable { next_id: 1, volumes: BTreeMap::new() }
    }
}

impl VolumeTable {
    /// The present volume of this name.
    pub fn by_name(&self, name: &str) -> Option<&VolumeRecord> {
        self.present().find(|volume| volume.name == name)
    }

    /// The present volume with this identifier for hosts.
    pub fn by_uuid(&self, uuid: PoolId) -> Option<&VolumeRecord> {
        self.present().find(|volume| volume.uuid == uuid)
    }

    /// Volumes that are not being deleted.
    pub fn present(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.values().filter(|volume| volume.is_present_volume())
    }

    /// True if a volume, or the owner of a snapshot, is encrypted.
    pub fn is_encrypted(&self, id: u32) -> bool {
        self.key_volume(id).is_some_and(|volume| volume.encryption.is_some())
    }

    /// Volume that has the data key of a volume or snapshot.
    pub fn key_volume(&self, id: u32) -> Option<&VolumeRecord> {
        let volume = self.volumes.get(&id)?;
        match volume.kind {
            VolumeKind::Volume => Some(volume),
            VolumeKind::Snapshot { owner, .. } => self.volumes.get(&owner),
        }
    }

    /// Applies a record of the log: creates a volume or clone, or changes all fields but map and
    /// ancestry.
    ///
    /// # Errors
    /// [`FormatError::Field`] if the volume is being deleted, or the result would break an
    /// invariant.
    pub fn upsert(&mut self, record: &VolumeRecord) -> Result<(), FormatError> {
        let conflict = FormatError::Field("volume");
        if self.by_name(&record.name).is_some_and(|other| other.id != record.id)
            || !record.is_present_volume()
        {
            return Err(conflict);
        }
        match self.volumes.get_mut(&record.id) {
            // Blocks are encrypted from the beginning or never.
            Some(volume)
                if volume.is_present_volume()
                    && record.blocks >= volume.blocks
                    && record.encryption.is_some() == volume.encryption.is_some() =>
            {
                let VolumeRecord { mapped, shared, root, parent, adopted, .. } = *volume;
                let VolumeRecord { weight, shared_weight, .. } = *volume;
                let changed =
                    VolumeRecord { mapped, shared, root, parent, adopted, ..record.clone() };
                *volume = VolumeRecord { weight, shared_weight, ..changed };
            }
            None if record.id == self.next_id => {
                let (mapped, weight, root) = match record.parent {
                    0 => (0, 0, MapEntry::HOLE),
                    parent => match self.present_snapshot(parent) {
                        // The clone reads blocks that its parent encrypted.
                        Some(parent)
                            if record.blocks >= parent.blocks
                                && record.encryption.is_some() == self.is_encrypted(parent.id) =>
                        {
                            (parent.mapped, parent.weight, parent.root)
                        }
                        _ => return Err(conflict),
                    },
                };
                let adopted = false;
                self.insert(VolumeRecord {
                    mapped,
                    weight,
                    shared: mapped,
                    shared_weight: weight,
                    root,
                    adopted,
                    ..record.clone()
                })?;
            }
            _ => return Err(conflict),
        }
        Ok(())
    }

    /// Adds a volume or snapshot, with the next identifier.
    pub(super) fn insert(&mut self, record: VolumeRecord) -> Result<(), FormatError> {
        let full = FormatError::Field("number of volumes");
        if self.volumes.len() >= VOLUMES_MAX {
            return Err(full);
        }
        self.next_id = self.next_id.checked_add(1).ok_or(full)?;
        self.volumes.insert(record.id, record);
        Ok(())
    }

    /// Length when encoded, in bytes.
    pub fn encoded_len(&self) -> usize {
        VOLUMES_AT + self.volumes.values().map(VolumeRecord::encoded_len).sum::<usize>()
    }

    /// Encodes the volume table.
    pub fn encode(&self) -> Vec<u8> {
        let len = self.encoded_len();
        let mut bytes = vec![0; len];
        begin(&mut bytes, MAGIC);
        put(&mut bytes, 12, &(self.volumes.len() as u32).to_le_bytes());
        put(&mut bytes, 16, &self.next_id.to_le_bytes());
        put(&mut bytes, 24, &(len as u64).to_le_bytes());
        let mut at = VOLUMES_AT;
        for volume in self.volumes.values() {
            let end = at + volume.encoded_len();
            volume.encode(&mut bytes[at..end]);
            at = end;
        }
        bytes
    }

    /// Length of the volume table that begins with these bytes.
    ///
    /// # Errors
    /// [`FormatError`] for anything but a volume table of possible length.
    pub fn decode_len(bytes: &[u8]) -> Result<usize, FormatError> {
        let fields = begins(bytes, MAGIC)?;
        if bytes.len() < VOLUMES_AT {
            return Err(FormatError::Absent);
        }
        usize::try_from(fields.u64(24))
            .ok()
            .filter(|len| (VOLUMES_AT..=VOLUME_TABLE_BYTES_MAX).contains(len))
            .ok_or(FormatError::Field("length"))
    }

    /// Decodes a volume table for a pool of `blocks`; bytes after it are ignored.
    ///
    /// # Errors
    /// [`FormatError`] if it breaks an invariant.
    pub fn decode(bytes: &[u8], blocks: u64) -> Result<VolumeTable, FormatError> {
        let len = VolumeTable::decode_len(bytes)?;
        let fields = Fields(bytes);
        let (count, next_id) = (fields.u32(12) as usize, fields.u32(16));
        let mut rest = bytes.get(VOLUMES_AT..len).ok_or(FormatError::Field("length"))?;
        let mut volume_table = VolumeTable { next_id, volumes: BTreeMap::new() };
        let mut names = BTreeSet::new();
        while !rest.is_empty() {
            let (volume, used) = VolumeRecord::decode(rest, blocks)?;
            let ascends =
                volume_table.volumes.last_key_value().is_none_or(|(id, _)| *id < volume.id);
            let present = volume.state == VolumePresence::Present;
            let owner = match volume.kind {
                VolumeKind::Volume => 0,
                VolumeKind::Snapshot { owner, .. } => owner,
            };
            let named = !present || names.insert((owner, volume.name.clone()));
            if !ascends || !named || volume.id >= next_id {
                return Err(FormatError::Field("volume"));
            }
            volume_table.volumes.insert(volume.id, volume);
            rest = &rest[used..];
        }
        if volume_table.volumes.len() != count || count > VOLUMES_MAX {
            return Err(FormatError::Field("number of volumes"));
        }
        volume_table.check_ancestry()?;
        Ok(volume_table)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 1 << 30;

    fn any_volume() -> impl Strategy<Value = VolumeRecord> {
        let properties = btree_map("[a-z]{1,10}", "[ -~]{0,30}", 0..5);
        (any::<(bool, bool)>(), 1..VOLUME_BLOCKS_MAX, 0..BLOCKS, properties).prop_map(
            |((deleting, thick), blocks, location, properties)| {
                let mut volume = VolumeRecord::new(1, String::new(), blocks);
                volume.thick = thick;
                volume.mapped = blocks / 3;
                volume.shared = blocks / 4;
                (volume.weight, volume.shared_weight) = (blocks * 200, blocks * 100);
                volume.properties = properties;
                if deleting {
                    volume.state = VolumePresence::Deleting { reaped: location };
                }
                if location > 0 {
                    volume.root = MapEntry { location, birth: 8, checksum: 9 };
                }
                volume
            },
        )
    }

    fn any_volume_table() -> impl Strategy<Value = VolumeTable> {
        vec(any_volume(), 0..20).prop_map(|volumes| {
            let mut volume_table = VolumeTable::default();
            // All, because they may be of one forest.
            let is_encrypted = volumes.first().is_some_and(|first| first.blocks % 3 == 0);
            for mut volume in volumes {
                volume.encryption = is_encrypted.then_some(WrappedKey([7; WRAPPED_BYTES]));
                volume.id = volume_table.next_id;
                volume.name = format!("v{}", volume.id);
                volume_table.next_id += 1 + volume.blocks as u32 % 3;
                let owners = volume_table.present().map(|owner| owner.id).collect::<Vec<_>>();
                if let Some(owner) = owners.last().filter(|_| volume.blocks.is_multiple_of(2)) {
                    volume.encryption = None;
                    volume.kind = VolumeKind::Snapshot {
                        owner: *owner,
                        source: volume.blocks as u32,
                        sequence: u64::from(volume.id),
                        created_s: volume.blocks,
                    };
                }
                let is_snapshot = |older: &&VolumeRecord| older.sequence().is_some();
                let parent = volume_table.volumes.values().rfind(is_snapshot);
                volume.parent = parent.map_or(0, |parent| parent.id);
                if volume.parent == 0 {
                    (volume.shared, volume.shared_weight) = (0, 0);
                }
                let midway = |other: &VolumeRecord| {
                    !matches!(
                        other.state,
                        VolumePresence::Present | VolumePresence::Deleting { reaped: 0 }
                    )
                };
                if midway(&volume) && volume_table.volumes.values().any(midway) {
                    volume.state = VolumePresence::Deleting { reaped: 0 };
                }
                volume_table.volumes.insert(volume.id, volume);
            }
            volume_table
        })
    }

    proptest! {
        #[test]
        fn volume_table_round_trips(volume_table in any_volume_table()) {
            let mut bytes = volume_table.encode();
            prop_assert_eq!(VolumeTable::decode_len(&bytes), Ok(bytes.len()));
            bytes.extend([0; 100]);
            prop_assert_eq!(VolumeTable::decode(&bytes, BLOCKS), Ok(volume_table));
        }

        #[test]
        fn damaged_volume_table_never_panics(
            volume_table in any_volume_table(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = volume_table.encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(found) = VolumeTable::decode(&bytes, BLOCKS) {
                prop_assert_eq!(VolumeTable::decode(&found.encode(), BLOCKS), Ok(found));
            }
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(VolumeTable::decode(&bytes, BLOCKS).is_err());
        }
    }

    #[test]
    fn encryption_never_begins_or_ends() {
        let mut volume_table = VolumeTable::default();
        let plain = VolumeRecord::new(1, "plain".to_owned(), 100);
        let key = |byte| Some(WrappedKey([byte; WRAPPED_BYTES]));
        let sealed = |id, parent| VolumeRecord {
            parent,
            encryption: key(1),
            ..VolumeRecord::new(id, format!("sealed{id}"), 100)
        };
        let conflict = Err(FormatError::Field("volume"));
        volume_table.upsert(&plain).unwrap();
        volume_table.upsert(&sealed(2, 0)).unwrap();
        let order = super::super::chunk::SnapshotOrder {
            name: "a".to_owned(),
            volumes: vec![1, 2],
            uuid: PoolId([1; 16]),
            created_s: 7,
        };
        volume_table.snapshot(&order, 10).unwrap();
        assert!(!volume_table.is_encrypted(3) && volume_table.is_encrypted(4));
        assert_eq!(volume_table.volumes[&4].encryption, None, "snapshots have no key of their own");
        assert_eq!(volume_table.upsert(&VolumeRecord { encryption: key(1), ..plain }), conflict);
        assert_eq!(
            volume_table.upsert(&VolumeRecord { encryption: None, ..sealed(2, 0) }),
            conflict
        );
        let other = VolumeRecord { encryption: key(2), ..sealed(2, 0) };
        volume_table.upsert(&other).unwrap();
        assert_eq!(volume_table.volumes[&2].encryption, key(2));
        assert_eq!(volume_table.upsert(&sealed(5, 3)), conflict);
        let bare = VolumeRecord { parent: 4, ..VolumeRecord::new(5, "bare".to_owned(), 100) };
        assert_eq!(volume_table.upsert(&bare), conflict);
        volume_table.upsert(&sealed(5, 4)).unwrap();
        assert_eq!(VolumeTable::decode(&volume_table.encode(), BLOCKS), Ok(volume_table));
    }

    #[test]
    fn volume_is_created_changed_and_deleted_once() {
        let mut volume_table = VolumeTable::default();
        let db = VolumeRecord::new(1, "db".to_owned(), 100);
        volume_table.upsert(&db).unwrap();
        let conflict = Err(FormatError::Field("volume"));
        assert_eq!(volume_table.upsert(&VolumeRecord::new(2, "db".to_owned(), 100)), conflict);
        assert_eq!(volume_table.upsert(&VolumeRecord::new(3, "log".to_owned(), 100)), conflict);
        assert_eq!(volume_table.upsert(&VolumeRecord { blocks: 99, ..db.clone() }), conflict);
        volume_table.volumes.get_mut(&1).unwrap().mapped = 7;
        volume_table
            .upsert(&VolumeRecord { blocks: 200, name: "dc".to_owned(), ..db.clone() })
            .unwrap();
        let changed = volume_table.by_name("dc").unwrap();
        assert_eq!((changed.blocks, changed.mapped), (200, 7));
        volume_table.delete(1).unwrap();
        assert_eq!(volume_table.delete(1), Err(FormatError::Field("deletion")));
        assert_eq!(volume_table.upsert(&db), conflict);
        volume_table.upsert(&VolumeRecord::new(2, "dc".to_owned(), 1)).unwrap();
        assert_eq!(volume_table.present().count(), 1);
    }
}
