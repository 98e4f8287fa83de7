//! Superblock: identity of a pool and its devices, and its last checkpoint.
//!
//! An update is written to copies 0 and 1 of every device, then to copies 2 and 3. Invariants:
//! - after a crash, at least two copies of each device are whole, with this update or the one
//!   before;
//! - a successful update is on at least three copies of each device, so one of any two whole copies
//!   has it.
//!
//! The log device is not in the device table: no block of the pool stays on it.

use std::collections::BTreeSet;

use super::entry::{ENTRY_BYTES, MapEntry, U48_MAX};
use super::layout::{PoolLayout, segments_of};
use super::legs::{self, LEGS, LegRecord, Pair};
use super::{
    Block, ENCRYPTION_VERSION, Fields, FormatError, REDUNDANCY_VERSION, VERSION, begin,
    open_versions, put, seal,
};
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, DEVICES_MAX, LOG_SLOTS, POOL_NAME_MAX, TAIL_VOLUMES_MAX};

const MAGIC: &[u8; 8] = b"FSPOOLS\n";
const VERSIONS: [u16; 3] = [VERSION, ENCRYPTION_VERSION, REDUNDANCY_VERSION];
const DEVICES_AT: usize = 512;
const DEVICE_BYTES: usize = 32;
const LOG_DEVICE_AT: usize = 192;
const TAIL_AT: usize = 1024;
/// Mark of encryption in the version for redundancy.
const ENCRYPTION_AT: usize = 496;
/// Numbers left out before the update, in the version for redundancy.
const SKIPPED_AT: usize = 498;

/// Device index of the log device.
pub const LOG_INDEX: u16 = u16::MAX;

/// Copies on each device.
pub const COPIES: usize = 4;

/// Fewest whole copies of a device that can be opened.
pub const COPIES_MIN: usize = 2;

/// Bytes at the beginning of a device before its segments.
pub const SUPERBLOCK_AREA_BYTES: u64 = 1 << 20;

/// Offset of a copy on its device, in bytes.
pub fn copy_offset(copy: usize) -> u64 {
    copy as u64 * (SUPERBLOCK_AREA_BYTES / COPIES as u64)
}

/// A device in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Identifier of the device.
    pub id: PoolId,
    /// Size in bytes; 0 if the device was removed. Its segments keep their numbers then.
    pub size_bytes: u64,
    /// Number of segments.
    pub segments: u32,
}

impl DeviceRecord {
    /// True if the device was removed from the pool.
    pub fn is_removed(&self) -> bool {
        self.size_bytes == 0
    }
}

/// Place in the log where a replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStart {
    /// Sequence of the first chunk to replay.
    pub sequence: u64,
    /// Block where this chunk begins, or would begin.
    pub block: u64,
    /// Segment that follows the segment of `block`.
    pub following: u32,
    /// Slot of the segment of `block`; 0 without a log device.
    pub slot: u32,
}

/// Volumes with changes that may be on the log device only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TailVolumes {
    /// At most 700 volumes. An empty list: the devices of the table have everything.
    Listed(BTreeSet<u32>),
    /// All volumes.
    All,
}

impl Default for TailVolumes {
    fn default() -> TailVolumes {
        TailVolumes::Listed(BTreeSet::new())
    }
}

impl TailVolumes {
    /// Lists these volumes, or stands for all if they are too many.
    pub fn of(volumes: BTreeSet<u32>) -> TailVolumes {
        match volumes.len() <= TAIL_VOLUMES_MAX {
            true => TailVolumes::Listed(volumes),
            false => TailVolumes::All,
        }
    }

    /// True if the log device has nothing that the devices of the table lack.
    pub fn is_empty(&self) -> bool {
        *self == TailVolumes::default()
    }

    /// Whether changes of a volume may be on the log device only.
    pub fn has(&self, volume: u32) -> bool {
        match self {
            TailVolumes::Listed(volumes) => volumes.contains(&volume),
            TailVolumes::All => true,
        }
    }

    /// Number of listed volumes with this identifier or a higher one. With the volume table's next
    /// identifier: volumes newer than the volume table.
    pub fn made_since(&self, next_id: u32) -> usize {
        match self {
            TailVolumes::Listed(volumes) => volumes.range(next_id..).count(),
            TailVolumes::All => 0,
        }
    }

    /// Volumes of either set.
    pub fn union(&self, others: &BTreeSet<u32>) -> TailVolumes {
        match self {
            TailVolumes::Listed(volumes) => TailVolumes::of(volumes | others),
            TailVolumes::All => TailVolumes::All,
        }
    }

    /// Volumes of both sets.
    pub fn intersection(&self, other: &TailVolumes) -> TailVolumes {
        match (self, other) {
            (TailVolumes::Listed(own), TailVolumes::Listed(other)) => {
                TailVolumes::Listed(own & other)
            }
            (TailVolumes::All, other) => other.clone(),
            (own, TailVolumes::All) => own.clone(),
        }
    }
}

/// A decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of the update, which increases by one.
    pub update: u64,
    /// Identifier of the pool.
    pub pool: PoolId,
    /// Name of the pool.
    pub name: String,
    /// Position of this device or leg in the table; [`LOG_INDEX`] on the log device.
    pub device: u16,
    /// All devices. With redundancy, the identifier and size of a device are its legs'.
    pub devices: Vec<DeviceRecord>,
    /// Legs of each device; empty without redundancy.
    pub pairs: Vec<Pair>,
    /// Blocks per segment.
    pub segment_blocks: u32,
    /// Number of the log: random, new at each opening.
    pub log: u64,
    /// First chunk after the checkpoint.
    pub start: LogStart,
    /// Root of the metadata map.
    pub root: MapEntry,
    /// The log device, whose segments are slots.
    pub log_device: Option<DeviceRecord>,
    /// Volumes with changes that may be on the log device only.
    pub tail: TailVolumes,
    /// Every chunk before this sequence was durable on the log device; 0 without a log device.
    pub reached: u64,
    /// The pool may have encrypted volumes, so programs that cannot decrypt must refuse it.
    pub encryption: bool,
    /// Numbers left out before this update, 0 or 1: an absent leg may have an update with the
    /// number that was left out.
    pub skipped: u64,
}

fn put_device(block: &mut Block, at: usize, device: &DeviceRecord) {
    put(block, at, &device.id.0);
    put(block, at + 16, &device.size_bytes.to_le_bytes());
    put(block, at + 24, &device.segments.to_le_bytes());
}

fn device_record(fields: Fields<'_>, at: usize) -> DeviceRecord {
    DeviceRecord {
        id: PoolId(fields.bytes(at)),
        size_bytes: fields.u64(at + 16),
        segments: fields.u32(at + 24),
    }
}

/// Decodes the log device of a superblock, and the volumes of its tail.
fn log_fields(
    fields: Fields<'_>,
    segment_blocks: u32,
) -> Result<(Option<DeviceRecord>, TailVolumes), FormatError> {
    let device = device_record(fields, LOG_DEVICE_AT);
    let bad = FormatError::Field("log device");
    let device = match device.id == PoolId::default() {
        true if device.segments == 0 => None,
        true => return Err(bad),
        false => Some(device),
    };
    let fits = |device: &DeviceRecord| {
        LOG_SLOTS.contains(&device.segments)
            && u64::from(device.segments) <= segments_of(device.size_bytes, segment_blocks)
    };
    if device.as_ref().is_some_and(|device| !fits(device)) {
        return Err(bad);
    }
    let count = usize::from(fields.u16(226));
    let tail = match (fields.u16(224), count <= TAIL_VOLUMES_MAX) {
        (0, true) => {
            let ids: BTreeSet<u32> = (0..count).map(|id| fields.u32(TAIL_AT + 4 * id)).collect();
            match ids.len() == count {
                true => TailVolumes::Listed(ids),
                false => return Err(FormatError::Field("tail")),
            }
        }
        (1, _) if count == 0 => TailVolumes::All,
        _ => return Err(FormatError::Field("tail")),
    };
    match device {
        None if !tail.is_empty() => Err(FormatError::Field("tail")),
        device => Ok((device, tail)),
    }
}

impl Superblock {
    /// Encodes one copy.
    ///
    /// # Panics
    /// With more than 16 devices, a name longer than 63 bytes, or a tail without a log device:
    /// readers refuse these.
    pub fn encode(&self, copy: usize) -> Block {
        assert!(self.table().len() <= DEVICES_MAX && self.name.len() <= POOL_NAME_MAX);
        assert!(self.log_device.is_some() || self.tail.is_empty(), "a tail without a log device");
        let mut block = [0; BLOCK_BYTES];
        begin(&mut block, MAGIC);
        if self.has_redundancy() {
            put(&mut block, 8, &REDUNDANCY_VERSION.to_le_bytes());
            put(&mut block, ENCRYPTION_AT, &u16::from(self.encryption).to_le_bytes());
            put(&mut block, SKIPPED_AT, &(self.skipped as u16).to_le_bytes());
            for (index, leg) in self.pairs.iter().flatten().enumerate() {
                legs::encode(&mut block, index, leg);
            }
        } else if self.encryption {
            put(&mut block, 8, &ENCRYPTION_VERSION.to_le_bytes());
        }
        put(&mut block, 10, &self.device.to_le_bytes());
        let table = self.table();
        put(&mut block, 12, &(table.len() as u16).to_le_bytes());
        put(&mut block, 14, &(copy as u16).to_le_bytes());
        put(&mut block, 16, &self.update.to_le_bytes());
        put(&mut block, 24, &self.pool.0);
        put(&mut block, 40, &[self.name.len() as u8]);
        put(&mut block, 41, self.name.as_bytes());
        put(&mut block, 104, &self.segment_blocks.to_le_bytes());
        put(&mut block, 112, &self.log.to_le_bytes());
        put(&mut block, 120, &self.start.sequence.to_le_bytes());
        put(&mut block, 128, &self.start.block.to_le_bytes());
        put(&mut block, 136, &self.start.following.to_le_bytes());
        self.root.encode(&mut block[144..144 + ENTRY_BYTES]);
        for (index, device) in table.iter().enumerate() {
            let at = DEVICES_AT + index * DEVICE_BYTES;
            put_device(&mut block, at, device);
        }
        if let Some(device) = &self.log_device {
            put_device(&mut block, LOG_DEVICE_AT, device);
        }
        match &self.tail {
            TailVolumes::All => put(&mut block, 224, &1_u16.to_le_bytes()),
            TailVolumes::Listed(volumes) => {
                assert!(volumes.len() <= TAIL_VOLUMES_MAX);
                put(&mut block, 226, &(volumes.len() as u16).to_le_bytes());
                for (index, volume) in volumes.iter().enumerate() {
                    put(&mut block, TAIL_AT + 4 * index, &volume.to_le_bytes());
                }
            }
        }
        put(&mut block, 228, &self.start.slot.to_le_bytes());
        put(&mut block, 232, &self.reached.to_le_bytes());
        seal(&mut block);
        block
    }

    /// Decodes the copy with this number.
    ///
    /// # Errors
    /// [`FormatError`] for another structure, or impossible values.
    pub fn decode(block: &Block, copy: usize) -> Result<Superblock, FormatError> {
        let fields = open_versions(block, MAGIC, &VERSIONS)?;
        let has_redundancy = fields.u16(8) == REDUNDANCY_VERSION;
        if usize::from(fields.u16(14)) != copy {
            return Err(FormatError::Foreign);
        }
        let count = usize::from(fields.u16(12));
        let device = fields.u16(10);
        if !(1..=DEVICES_MAX).contains(&count)
            || device != LOG_INDEX && usize::from(device) >= count
        {
            return Err(FormatError::Field("devices"));
        }
        let devices: Vec<DeviceRecord> = (0..count)
            .map(|index| DEVICES_AT + index * DEVICE_BYTES)
            .map(|at| device_record(fields, at))
            .collect();
        // A removed device gets no more updates.
        if devices.get(usize::from(device)).is_some_and(DeviceRecord::is_removed) {
            return Err(FormatError::Field("devices"));
        }
        let distinct = (1..count)
            .all(|index| devices[..index].iter().all(|other| other.id != devices[index].id));
        if !distinct {
            return Err(FormatError::Field("devices"));
        }
        let (devices, pairs) = match has_redundancy {
            true => legs::pairs(fields, &devices)?,
            false => (devices, Vec::new()),
        };
        let encryption = match (has_redundancy, fields.u16(ENCRYPTION_AT)) {
            (false, _) => fields.u16(8) == ENCRYPTION_VERSION,
            (true, mark @ (0 | 1)) => mark == 1,
            (true, _) => return Err(FormatError::Field("encryption")),
        };
        let skipped = match (has_redundancy, fields.u16(SKIPPED_AT)) {
            (false, _) => 0,
            (true, skipped @ (0 | 1)) => skipped.into(),
            (true, _) => return Err(FormatError::Field("update")),
        };
        let segment_blocks = fields.u32(104);
        let layout = PoolLayout::new(segment_blocks, &devices)?;
        let (log_device, tail) = log_fields(fields, segment_blocks)?;
        if has_redundancy && log_device.is_some() {
            return Err(FormatError::Field("log device"));
        }
        let is_twin = |log: &DeviceRecord| devices.iter().any(|device| device.id == log.id);
        if device == LOG_INDEX && log_device.is_none() || log_device.as_ref().is_some_and(is_twin) {
            return Err(FormatError::Field("log device"));
        }
        let len = usize::from(block[40]);
        if !(1..=POOL_NAME_MAX).contains(&len) {
            return Err(FormatError::Field("name"));
        }
        let name = std::str::from_utf8(&block[41..41 + len]);
        let start = LogStart {
            sequence: fields.u64(120),
            block: fields.u64(128),
            following: fields.u32(136),
            slot: fields.u32(228),
        };
        let slots = log_device.map_or(1, |device| device.segments);
        if start.sequence > U48_MAX
            || start.block >= layout.blocks()
            || start.following >= layout.segments()
            || start.slot >= slots
        {
            return Err(FormatError::Field("start of the log"));
        }
        let update = fields.u64(16);
        if update > U48_MAX {
            return Err(FormatError::Field("update"));
        }
        let reached = fields.u64(232);
        if reached > U48_MAX {
            return Err(FormatError::Field("reached"));
        }
        Ok(Superblock {
            update,
            pool: PoolId(fields.bytes(24)),
            name: name.map_err(|_| FormatError::Field("name"))?.to_owned(),
            device,
            devices,
            pairs,
            segment_blocks,
            log: fields.u64(112),
            start,
            root: MapEntry::decode(&block[144..144 + ENTRY_BYTES], layout.blocks())?,
            log_device,
            tail,
            reached,
            encryption,
            skipped,
        })
    }
}

/// Chooses the superblock of a device from its copies; an unreadable copy counts as damaged.
///
/// # Errors
/// [`FormatError::Version`] of two copies or more; the most specific error with fewer than two
/// whole copies; [`FormatError::Field`] for whole copies that contradict each other.
pub fn choose(copies: &[Result<Superblock, FormatError>]) -> Result<Superblock, FormatError> {
    let later = copies.iter().find_map(|copy| match copy {
        Err(error @ FormatError::Version(_)) => Some(*error),
        _ => None,
    });
    let whole = || copies.iter().flatten();
    // A complete update by a later program is on three copies at least. A single copy of another
    // version is damaged, or of an update that did not complete.
    if let Some(error) = later.filter(|_| whole().count() + 1 < COPIES) {
        return Err(error);
    }
    if whole().count() < COPIES_MIN {
        let errors = copies.iter().filter_map(|copy| copy.as_ref().err());
        let specific = errors.copied().find(|error| *error != FormatError::Absent);
        return Err(specific.unwrap_or(if whole().count() == 0 {
            FormatError::Absent
        } else {
            FormatError::Checksum
        }));
    }
    let newest = whole().max_by_key(|copy| copy.update).expect("two copies at least");
    let agrees = |copy: &Superblock| match copy.update == newest.update {
        true => copy == newest,
        false => {
            copy.pool == newest.pool
                && copy.device_id() == newest.device_id()
                // A leg may have missed updates. Any of two whole copies has the newest one of it.
                && (newest.has_redundancy() || copy.update == newest.previous())
        }
    };
    // One copy may be older than the others, if its writes failed.
    if whole().filter(|copy| agrees(copy)).count() + 1 < whole().count() {
        return Err(FormatError::Field("update"));
    }
    if whole().any(|copy| copy.update == newest.update && copy != newest) {
        return Err(FormatError::Field("update"));
    }
    Ok(newest.clone())
}

impl Superblock {
    /// True if `other` is the superblock of a device that this pool no longer has: removed from the
    /// table, or a former log device.
    pub(crate) fn is_former(&self, other: &Superblock) -> bool {
        let id = other.device_id();
        let is_removed = |record: &DeviceRecord| record.id == id && record.is_removed();
        match other.device {
            LOG_INDEX => self.log_device.is_none_or(|log| log.id != id),
            _ => self.devices.iter().any(is_removed),
        }
    }

    /// Number of the update before this one.
    pub(crate) fn previous(&self) -> u64 {
        self.update.saturating_sub(1 + self.skipped)
    }

    /// True if two devices hold each segment.
    pub fn has_redundancy(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Device table as recorded: with redundancy, all legs.
    pub fn table(&self) -> Vec<DeviceRecord> {
        if !self.has_redundancy() {
            return self.devices.clone();
        }
        let legs = |(device, pair): (&DeviceRecord, &Pair)| {
            let segments = device.segments;
            pair.map(|LegRecord { id, size_bytes, .. }| DeviceRecord { id, size_bytes, segments })
        };
        self.devices.iter().zip(&self.pairs).flat_map(legs).collect()
    }

    /// A leg by its position in the device table.
    pub fn leg(&self, index: usize) -> Option<&LegRecord> {
        self.pairs.get(index / LEGS).map(|pair| &pair[index % LEGS])
    }

    /// Identifier of the device that holds this superblock.
    pub fn device_id(&self) -> PoolId {
        match (self.device, &self.log_device) {
            (LOG_INDEX, Some(log)) => log.id,
            (index, _) if self.has_redundancy() => {
                self.leg(index.into()).expect("it is in the table").id
            }
            _ => self.devices[usize::from(self.device)].id,
        }
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
