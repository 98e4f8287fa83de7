//! Legs: the two devices that hold the same segments in a pool with redundancy, and their recorded
//! states.
//!
//! Invariant: a leg that lacks an acknowledged write is recorded as missing on its other leg, so it
//! is never read as current.

use super::entry::U48_MAX;
use super::superblock::DeviceRecord;
use super::{Block, Fields, FormatError, put};
use crate::id::PoolId;

/// Offset of the states in the superblock.
const LEGS_AT: usize = 240;
const LEG_BYTES: usize = 16;

/// Legs of a device.
pub const LEGS: usize = 2;

/// Recorded content of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// It has every acknowledged write.
    InSync,
    /// It lacks writes, and gets none.
    Missing,
    /// It gets all writes, and has every acknowledged one in its first segments.
    Behind {
        /// Number of these segments.
        copied: u32,
    },
}

/// A leg in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegRecord {
    /// Identifier of the leg.
    pub id: PoolId,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Its content.
    pub state: LegState,
    /// Update that set the state or the identifier.
    pub since: u64,
}

/// Legs of one device.
pub type Pair = [LegRecord; LEGS];

/// Writes the state of the leg with this position in the device table.
pub(super) fn encode(block: &mut Block, index: usize, leg: &LegRecord) {
    let at = LEGS_AT + index * LEG_BYTES;
    let (kind, copied) = match leg.state {
        LegState::InSync => (0, 0),
        LegState::Missing => (1, 0),
        LegState::Behind { copied } => (2, copied),
    };
    put(block, at, &[kind]);
    put(block, at + 4, &u32::to_le_bytes(copied));
    put(block, at + 8, &leg.since.to_le_bytes());
}

/// Reads the state of the leg with this position in the device table.
fn decode(
    fields: Fields<'_>,
    index: usize,
    record: &DeviceRecord,
) -> Result<LegRecord, FormatError> {
    let at = LEGS_AT + index * LEG_BYTES;
    let bad = FormatError::Field("state of a device");
    let state = match (fields.0[at], fields.u32(at + 4)) {
        (0, 0) => LegState::InSync,
        (1, 0) => LegState::Missing,
        (2, copied) if copied <= record.segments => LegState::Behind { copied },
        _ => return Err(bad),
    };
    let since = fields.u64(at + 8);
    match since <= U48_MAX {
        true => Ok(LegRecord { id: record.id, size_bytes: record.size_bytes, state, since }),
        false => Err(bad),
    }
}

/// Pairs of a device table in which both legs of each device have a record.
///
/// # Errors
/// [`FormatError::Field`] for an odd number of records, legs of different lengths, removed ones, or
/// a device without a leg in sync.
pub(super) fn pairs(
    fields: Fields<'_>,
    records: &[DeviceRecord],
) -> Result<(Vec<DeviceRecord>, Vec<Pair>), FormatError> {
    let bad = FormatError::Field("devices");
    let (mut devices, mut pairs) = (Vec::new(), Vec::new());
    for (index, two) in records.chunks(LEGS).enumerate() {
        let [one, other] = two else { return Err(bad) };
        if one.segments != other.segments || one.is_removed() || other.is_removed() {
            return Err(bad);
        }
        let pair = [decode(fields, LEGS * index, one)?, decode(fields, LEGS * index + 1, other)?];
        if pair.iter().all(|leg| leg.state != LegState::InSync) {
            return Err(FormatError::Field("state of a device"));
        }
        devices.push(device_of(&pair, one.segments));
        pairs.push(pair);
    }
    Ok((devices, pairs))
}

/// The device that two legs are for the pool: the smaller size.
pub fn device_of(pair: &Pair, segments: u32) -> DeviceRecord {
    let size_bytes = pair[0].size_bytes.min(pair[1].size_bytes);
    DeviceRecord { id: pair[0].id, size_bytes, segments }
}
