//! Chunk: a header of one block with records and the checksums of the payload blocks after it.

use super::copied_unit::{Run, SHORT_BYTES};
use super::entry::U48_MAX;
use super::layout::PoolLayout;
use super::page::{LEVEL_MAX, PagePlace};
use super::unit::{is_location, is_worthwhile};
use super::volume_table::{VolumeRecord, is_name};
use super::{Block, CRC_AT, Fields, FormatError, begin, open, put, seal};
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, CHUNK_PAYLOAD_BLOCKS, SNAPSHOT_GROUP_MAX, VOLUME_BLOCKS_MAX};

const MAGIC: &[u8; 8] = b"FSPOOLC\n";
const RECORDS_AT: usize = 64;

/// Bytes of a header for records and checksums.
pub const RECORD_SPACE_BYTES: usize = CRC_AT - RECORDS_AT;

/// Bytes of the checksum of a payload block.
pub const CHECKSUM_BYTES: usize = 4;

/// True for a whole header of this block.
pub(crate) fn is_header_of(bytes: &[u8], block: u64) -> bool {
    let header: Result<&Block, _> = bytes.try_into();
    header.is_ok_and(|header| open(header, MAGIC).is_ok_and(|fields| fields.u64(40) == block))
}

/// Length of an encoded [`ChunkRecord::Moved`], in bytes.
pub const MOVED_RECORD_BYTES: usize = 32;

/// Bytes of an encoded [`ChunkRecord::Snapshot`] without its volumes and name.
const SNAPSHOT_FIXED_BYTES: usize = 32;

/// Snapshots that are taken at one point of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// Common name of the snapshots.
    pub name: String,
    /// Volumes, each once. Their snapshots get consecutive identifiers.
    pub volumes: Vec<u32>,
    /// Common identifier of the snapshots.
    pub uuid: PoolId,
    /// Seconds since 1970.
    pub created_s: u64,
}

/// One change, or the owner of a payload block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkRecord {
    /// Blocks of a volume, in the payload.
    Data {
        /// Volume.
        volume: u32,
        /// First block.
        block: u64,
        /// Number of blocks.
        count: u16,
    },
    /// Blocks that read as zeroes.
    Zero {
        /// Volume.
        volume: u32,
        /// First block.
        block: u64,
        /// Number of blocks.
        count: u64,
    },
    /// The cleaner's copy of a block, in the payload.
    Moved {
        /// Volume.
        volume: u32,
        /// Block.
        block: u64,
        /// Old location. The copy takes effect only if the map still has it.
        old: u64,
        /// Birth of the content.
        birth: u64,
    },
    /// A compressed unit of consecutive blocks of a volume, in the payload.
    Unit {
        /// Volume.
        volume: u32,
        /// First block.
        block: u64,
        /// Blocks of the unit.
        count: u8,
        /// Blocks of the payload.
        stored: u8,
    },
    /// The cleaner's copies of 2 to 8 blocks, as one compressed unit in the payload.
    MovedUnit {
        /// Blocks of the payload.
        stored: u8,
        /// A [`ChunkRecord::Moved`], or a [`ChunkRecord::Page`] of level 0, for each block of the
        /// unit.
        parts: Vec<ChunkRecord>,
    },
    /// A map page, or with level 0 a metadata block or the cleaner's copy of a block of snapshots,
    /// in the payload. The checkpoint after it makes maps refer to it.
    Page {
        /// Volume that wrote it first, level and index.
        place: PagePlace,
        /// Birth of the content.
        birth: u64,
    },
    /// Creates or changes a volume.
    Volume(Box<VolumeRecord>),
    /// Deletes a volume or snapshot.
    Delete {
        /// Volume or snapshot.
        volume: u32,
    },
    /// Takes snapshots of volumes that contain the chunks before this one. The only record of its
    /// chunk.
    Snapshot(Box<SnapshotOrder>),
    /// Gives a volume the content and size of a snapshot.
    Rollback {
        /// Volume.
        volume: u32,
        /// Snapshot.
        snapshot: u32,
    },
    /// Makes a clone the owner of its ancestors.
    Promote {
        /// The clone.
        volume: u32,
    },
}

/// True for the records of checkpoints and the cleaner, false for changes of hosts and orders. No
/// chunk has both.
pub fn is_upkeep(records: &[ChunkRecord]) -> bool {
    matches!(
        records.first(),
        Some(ChunkRecord::Page { .. } | ChunkRecord::Moved { .. } | ChunkRecord::MovedUnit { .. })
    )
}

impl ChunkRecord {
    /// Length when encoded, in bytes.
    pub fn encoded_len(&self) -> usize {
        match self {
            ChunkRecord::Data { .. } | ChunkRecord::Unit { .. } | ChunkRecord::Rollback { .. } => {
                16
            }
            ChunkRecord::MovedUnit { parts, .. } => match Run::of(parts) {
                Some(_) => SHORT_BYTES,
                None => 4 + parts.iter().map(ChunkRecord::encoded_len).sum::<usize>(),
            },
            ChunkRecord::Zero { .. } | ChunkRecord::Page { .. } => 24,
            ChunkRecord::Moved { .. } => MOVED_RECORD_BYTES,
            ChunkRecord::Volume(volume) => 4 + volume.encoded_len(),
            ChunkRecord::Delete { .. } | ChunkRecord::Promote { .. } => 8,
            ChunkRecord::Snapshot(order) => {
                SNAPSHOT_FIXED_BYTES + 4 * order.volumes.len() + order.name.len()
            }
        }
    }

    /// Number of payload blocks of this record.
    pub fn payload_blocks(&self) -> usize {
        match self {
            ChunkRecord::Data { count, .. } => usize::from(*count),
            ChunkRecord::Unit { stored, .. } | ChunkRecord::MovedUnit { stored, .. } => {
                usize::from(*stored)
            }
            ChunkRecord::Moved { .. } | ChunkRecord::Page { .. } => 1,
            _ => 0,
        }
    }

    /// Header bytes of the record and of the checksums of its payload.
    pub fn header_bytes(&self) -> usize {
        self.encoded_len() + CHECKSUM_BYTES * self.payload_blocks()
    }

    fn encode(&self, bytes: &mut [u8]) {
        match self {
            ChunkRecord::Data { volume, block, count } => {
                bytes[0] = 1;
                put(bytes, 2, &count.to_le_bytes());
                put(bytes, 4, &volume.to_le_bytes());
                put(bytes, 8, &block.to_le_bytes());
            }
            ChunkRecord::Zero { volume, block, count } => {
                bytes[0] = 2;
                put(bytes, 4, &volume.to_le_bytes());
                put(bytes, 8, &block.to_le_bytes());
                put(bytes, 16, &count.to_le_bytes());
            }
            ChunkRecord::Moved { volume, block, old, birth } => {
                bytes[0] = 3;
                put(bytes, 4, &volume.to_le_bytes());
                put(bytes, 8, &block.to_le_bytes());
                put(bytes, 16, &old.to_le_bytes());
                put(bytes, 24, &birth.to_le_bytes());
            }
            ChunkRecord::Page { place, birth } => {
                bytes[0] = 4;
                bytes[1] = place.level;
                put(bytes, 4, &place.volume.to_le_bytes());
                put(bytes, 8, &place.index.to_le_bytes());
                put(bytes, 16, &birth.to_le_bytes());
            }
            ChunkRecord::Volume(volume) => {
                bytes[0] = 5;
                put(bytes, 2, &(volume.encoded_len() as u16).to_le_bytes());
                volume.encode(&mut bytes[4..]);
            }
            ChunkRecord::Delete { volume } => {
                bytes[0] = 6;
                put(bytes, 4, &volume.to_le_bytes());
            }
            ChunkRecord::Snapshot(order) => {
                bytes[0] = 7;
                bytes[1] = order.name.len() as u8;
                put(bytes, 2, &(order.volumes.len() as u16).to_le_bytes());
                put(bytes, 8, &order.created_s.to_le_bytes());
                put(bytes, 16, &order.uuid.0);
                let mut at = SNAPSHOT_FIXED_BYTES;
                for volume in &order.volumes {
                    put(bytes, at, &volume.to_le_bytes());
                    at += 4;
                }
                put(bytes, at, order.name.as_bytes());
            }
            ChunkRecord::Rollback { volume, snapshot } => {
                bytes[0] = 8;
                put(bytes, 4, &volume.to_le_bytes());
                put(bytes, 8, &snapshot.to_le_bytes());
            }
            ChunkRecord::Promote { volume } => {
                bytes[0] = 9;
                put(bytes, 4, &volume.to_le_bytes());
            }
            ChunkRecord::Unit { volume, block, count, stored } => {
                (bytes[0], bytes[1], bytes[2]) = (10, *stored, *count);
                put(bytes, 4, &volume.to_le_bytes());
                put(bytes, 8, &block.to_le_bytes());
            }
            ChunkRecord::MovedUnit { stored, parts } => {
                (bytes[0], bytes[1], bytes[2]) = (11, *stored, parts.len() as u8);
                if let Some(run) = Run::of(parts) {
                    bytes[0] = 12;
                    return run.encode(bytes);
                }
                let mut at = 4;
                for part in parts {
                    let len = part.encoded_len();
                    part.encode(&mut bytes[at..at + len]);
                    at += len;
                }
            }
        }
    }

    /// Decodes the first record of `bytes`; returns it with its length.
    fn decode(bytes: &[u8], layout: &PoolLayout) -> Result<(ChunkRecord, usize), FormatError> {
        let bad = FormatError::Field("record");
        let needs = |len: usize| bytes.get(..len).map(Fields).ok_or(bad);
        let range = |block: u64, count: u64| match block.checked_add(count) {
            Some(end) if count > 0 && end <= VOLUME_BLOCKS_MAX => Ok(()),
            _ => Err(bad),
        };
        let record = match bytes.first() {
            Some(1) => {
                let fields = needs(16)?;
                let (volume, block, count) = (fields.u32(4), fields.u64(8), fields.u16(2));
                range(block, u64::from(count))?;
                ChunkRecord::Data { volume, block, count }
            }
            Some(2) => {
                let fields = needs(24)?;
                let (volume, block, count) = (fields.u32(4), fields.u64(8), fields.u64(16));
                range(block, count)?;
                ChunkRecord::Zero { volume, block, count }
            }
            Some(3) => {
                let fields = needs(32)?;
                let (volume, block) = (fields.u32(4), fields.u64(8));
                let (old, birth) = (fields.u64(16), fields.u64(24));
                range(block, 1)?;
                if !is_location(old, layout.blocks()) || birth > U48_MAX {
                    return Err(bad);
                }
                ChunkRecord::Moved { volume, block, old, birth }
            }
            Some(4) => {
                let fields = needs(24)?;
                let place =
                    PagePlace { volume: fields.u32(4), level: bytes[1], index: fields.u64(8) };
                let birth = fields.u64(16);
                range(place.index, 1)?;
                if place.level > LEVEL_MAX || birth > U48_MAX {
                    return Err(bad);
                }
                ChunkRecord::Page { place, birth }
            }
            Some(5) => {
                let len = usize::from(needs(4)?.u16(2));
                let volume = needs(4 + len)?.0.get(4..).ok_or(bad)?;
                let (volume, used) = VolumeRecord::decode(volume, layout.blocks())?;
                if used != len {
                    return Err(bad);
                }
                ChunkRecord::Volume(Box::new(volume))
            }
            Some(6) => ChunkRecord::Delete { volume: needs(8)?.u32(4) },
            Some(7) => ChunkRecord::Snapshot(Box::new(SnapshotOrder::decode(bytes).ok_or(bad)?)),
            Some(8) => {
                let fields = needs(16)?;
                ChunkRecord::Rollback { volume: fields.u32(4), snapshot: fields.u32(8) }
            }
            Some(9) => ChunkRecord::Promote { volume: needs(8)?.u32(4) },
            Some(10) => {
                let fields = needs(16)?;
                let (stored, count) = (bytes[1], bytes[2]);
                let (volume, block) = (fields.u32(4), fields.u64(8));
                range(block, u64::from(count))?;
                if !is_worthwhile(count.into(), stored.into()) {
                    return Err(bad);
                }
                ChunkRecord::Unit { volume, block, count, stored }
            }
            Some(11) => {
                needs(4)?;
                let (stored, count) = (bytes[1], usize::from(bytes[2]));
                if !is_worthwhile(count, stored.into()) {
                    return Err(bad);
                }
                let mut parts = Vec::with_capacity(count);
                let mut at = 4;
                for _ in 0..count {
                    let rest = bytes.get(at..).ok_or(bad)?;
                    // No unit in a unit: the kind is looked at before the part is decoded.
                    if !matches!(rest.first(), Some(3 | 4)) {
                        return Err(bad);
                    }
                    let (part, len) = ChunkRecord::decode(rest, layout)?;
                    let is_block = match &part {
                        ChunkRecord::Page { place, .. } => place.level == 0 && place.volume != 0,
                        _ => true,
                    };
                    if !is_block {
                        return Err(bad);
                    }
                    parts.push(part);
                    at += len;
                }
                // Only the other form is short.
                if Run::of(&parts).is_some() {
                    return Err(bad);
                }
                ChunkRecord::MovedUnit { stored, parts }
            }
            Some(12) => {
                needs(SHORT_BYTES)?;
                let (stored, count) = (bytes[1], bytes[2]);
                if !is_worthwhile(count.into(), stored.into()) {
                    return Err(bad);
                }
                let parts = Run::decode(bytes, count, layout.blocks()).ok_or(bad)?;
                ChunkRecord::MovedUnit { stored, parts }
            }
            _ => return Err(bad),
        };
        if matches!(
            record,
            ChunkRecord::Data { volume: 0, .. }
                | ChunkRecord::Unit { volume: 0, .. }
                | ChunkRecord::Zero { volume: 0, .. }
                | ChunkRecord::Moved { volume: 0, .. }
                | ChunkRecord::Delete { volume: 0 }
        ) {
            return Err(bad);
        }
        let len = record.encoded_len();
        Ok((record, len))
    }
}

impl SnapshotOrder {
    /// Decodes the record at the beginning of `bytes`.
    fn decode(bytes: &[u8]) -> Option<SnapshotOrder> {
        let fixed = Fields(bytes.get(..SNAPSHOT_FIXED_BYTES)?);
        let name_at = SNAPSHOT_FIXED_BYTES + 4 * usize::from(fixed.u16(2));
        let volumes = bytes.get(SNAPSHOT_FIXED_BYTES..name_at)?.chunks(4);
        let volumes: Vec<u32> = volumes.map(|volume| Fields(volume).u32(0)).collect();
        let name = bytes.get(name_at..name_at + usize::from(bytes[1]))?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?.to_owned();
        let possible = (1..=SNAPSHOT_GROUP_MAX).contains(&volumes.len());
        let order =
            SnapshotOrder { name, volumes, uuid: PoolId(fixed.bytes(16)), created_s: fixed.u64(8) };
        possible.then_some(order)
    }
}

/// A header, decoded or to be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Number of the log.
    pub log: u64,
    /// Position in the log.
    pub sequence: u64,
    /// Every chunk before this sequence was durable when this header was written.
    pub durable: u64,
    /// Block of the header.
    pub block: u64,
    /// Segment that follows this one in the log.
    pub following: u32,
    /// Changes, in order.
    pub records: Vec<ChunkRecord>,
    /// Checksums of the payload blocks.
    pub checksums: Vec<u32>,
}

impl ChunkHeader {
    /// Encodes the header into a block.
    ///
    /// # Panics
    /// If records and checksums exceed [`RECORD_SPACE_BYTES`], or their numbers do not match.
    pub fn encode(&self, block: &mut Block) {
        let payload: usize = self.records.iter().map(ChunkRecord::payload_blocks).sum();
        assert_eq!(payload, self.checksums.len(), "each payload block has an owner");
        assert!(payload <= CHUNK_PAYLOAD_BLOCKS);
        block.fill(0);
        begin(block, MAGIC);
        let mut at = RECORDS_AT;
        for record in &self.records {
            let len = record.encoded_len();
            record.encode(&mut block[at..at + len]);
            at += len;
        }
        put(block, 10, &(payload as u16).to_le_bytes());
        put(block, 12, &(self.records.len() as u16).to_le_bytes());
        put(block, 14, &((at - RECORDS_AT) as u16).to_le_bytes());
        put(block, 16, &self.log.to_le_bytes());
        put(block, 24, &self.sequence.to_le_bytes());
        put(block, 32, &self.durable.to_le_bytes());
        put(block, 40, &self.block.to_le_bytes());
        put(block, 48, &self.following.to_le_bytes());
        for checksum in &self.checksums {
            put(&mut block[..CRC_AT], at, &checksum.to_le_bytes());
            at += CHECKSUM_BYTES;
        }
        seal(block);
    }

    /// Decodes the header at block `at` of a pool.
    ///
    /// # Errors
    /// [`FormatError`] for a header of another place, or impossible values.
    pub fn decode(block: &Block, at: u64, layout: &PoolLayout) -> Result<ChunkHeader, FormatError> {
        let fields = open(block, MAGIC)?;
        if fields.u64(40) != at {
            return Err(FormatError::Foreign);
        }
        let payload = usize::from(fields.u16(10));
        let record_bytes = usize::from(fields.u16(14));
        let room = u64::from(layout.segment_blocks()) - at % u64::from(layout.segment_blocks());
        if payload > CHUNK_PAYLOAD_BLOCKS
            || payload as u64 >= room
            || record_bytes + CHECKSUM_BYTES * payload > RECORD_SPACE_BYTES
        {
            return Err(FormatError::Field("length"));
        }
        let (sequence, durable, following) = (fields.u64(24), fields.u64(32), fields.u32(48));
        if sequence > U48_MAX || durable > sequence || following >= layout.segments() {
            return Err(FormatError::Field("sequence"));
        }
        let mut rest = &block[RECORDS_AT..RECORDS_AT + record_bytes];
        let mut records = Vec::new();
        for _ in 0..fields.u16(12) {
            let (record, used) = ChunkRecord::decode(rest, layout)?;
            records.push(record);
            rest = &rest[used..];
        }
        let owned: usize = records.iter().map(ChunkRecord::payload_blocks).sum();
        let orders = records.iter().filter(|record| matches!(record, ChunkRecord::Snapshot(_)));
        if !rest.is_empty() || owned != payload || (orders.count() > 0 && records.len() > 1) {
            return Err(FormatError::Field("record"));
        }
        let first = RECORDS_AT + record_bytes;
        let checksums =
            (0..payload).map(|index| fields.u32(first + index * CHECKSUM_BYTES)).collect();
        let log = fields.u64(16);
        Ok(ChunkHeader { log, sequence, durable, block: at, following, records, checksums })
    }

    /// Blocks of header and payload.
    pub fn blocks(&self) -> u64 {
        1 + self.checksums.len() as u64
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;

const _: () = assert!(BLOCK_BYTES == RECORDS_AT + RECORD_SPACE_BYTES + 4);
