//! Activity record: a snapshot of all regions that may be written now.
//!
//! Two slots are written alternately, one write in flight at a time. A write to a region is
//! submitted only after a record that names the region is durable. So a record torn by a crash
//! covers no write of its own, and the record before it stands. A region that is being evicted is
//! still in the record before.

use crate::id::MirrorId;
use crate::limits::{ACTIVE_REGIONS_MAX, PAGE_BYTES};
use crate::ondisk::{FormatError, VERSION};

pub(super) const MAGIC: &[u8; 8] = b"FSMIRHT\n";
/// Size of the fields before the region numbers. The last is the checksum of everything else.
const HEADER_BYTES: usize = 64;
const CRC_AT: usize = 60;

/// Space on disk for a record of `regions` regions, in bytes: whole pages.
pub const fn record_bytes(regions: usize) -> usize {
    (HEADER_BYTES + 4 * regions).next_multiple_of(PAGE_BYTES)
}

/// A decoded activity record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityRecord {
    /// Incremented by each write. Its lowest bit selects the slot.
    pub sequence: u64,
    /// The log that the record belongs to.
    pub log: MirrorId,
    /// Region numbers, ascending.
    pub regions: Vec<u32>,
}

/// Encodes a record of `regions`, in ascending order, into `out`, and zeroes the rest. Does not
/// allocate.
///
/// # Panics
/// When the length of `out` is not [`record_bytes`] of the number of regions.
pub fn encode_into(sequence: u64, log: MirrorId, regions: &[u32], out: &mut [u8]) {
    assert_eq!(out.len(), record_bytes(regions.len()), "a record fills whole pages");
    debug_assert!(regions.is_sorted_by(|a, b| a < b));
    let (header, body) = out.split_at_mut(HEADER_BYTES);
    header.fill(0);
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(regions.len() as u32).to_le_bytes());
    header[16..24].copy_from_slice(&sequence.to_le_bytes());
    header[24..40].copy_from_slice(&log.0);
    let (numbers, rest) = body.split_at_mut(4 * regions.len());
    for (place, region) in numbers.chunks_exact_mut(4).zip(regions) {
        place.copy_from_slice(&region.to_le_bytes());
    }
    rest.fill(0);
    let crc = checksum(header, numbers);
    header[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(header: &[u8], numbers: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&header[..CRC_AT]);
    digest.update(numbers);
    digest.finalize() as u32
}

impl ActivityRecord {
    /// Decodes one slot of the log `log` of a volume with `volume_regions` regions.
    ///
    /// # Errors
    /// See [`FormatError`]; `Foreign` for a record that another log left in this space.
    pub fn decode(
        bytes: &[u8],
        log: MirrorId,
        volume_regions: u64,
    ) -> Result<ActivityRecord, FormatError> {
        let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(FormatError::Absent);
        };
        if header[..8] != *MAGIC {
            return Err(FormatError::Absent);
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|index| header[at + index]));
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let count = word(12);
        if count > ACTIVE_REGIONS_MAX {
            return Err(FormatError::Field("count"));
        }
        let numbers = body.get(..4 * count as usize).ok_or(FormatError::Field("count"))?;
        if checksum(header, numbers) != word(CRC_AT) {
            return Err(FormatError::Checksum);
        }
        if header[24..40] != log.0 {
            return Err(FormatError::Foreign);
        }
        let regions: Vec<u32> =
            numbers.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let ascending = regions.is_sorted_by(|a, b| a < b);
        if !ascending || regions.last().is_some_and(|last| u64::from(*last) >= volume_regions) {
            return Err(FormatError::Field("regions"));
        }
        let sequence = u64::from(word(20)) << 32 | u64::from(word(16));
        Ok(ActivityRecord { sequence, log, regions })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ondisk::newest;

    const LOG: MirrorId = MirrorId([7; 16]);

    fn encode(sequence: u64, regions: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0xEE; record_bytes(regions.len())];
        encode_into(sequence, LOG, regions, &mut bytes);
        bytes
    }

    fn any_regions() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::btree_set(0u32..5000, 0..2500).prop_map(|set| set.into_iter().collect())
    }

    proptest! {
        #[test]
        fn record_round_trips(sequence in any::<u64>(), regions in any_regions()) {
            let bytes = encode(sequence, &regions);
            let expected = ActivityRecord { sequence, log: LOG, regions };
            prop_assert_eq!(ActivityRecord::decode(&bytes, LOG, 5000), Ok(expected));
            prop_assert_eq!(ActivityRecord::decode(&bytes, MirrorId([8; 16]), 5000), Err(FormatError::Foreign));
        }

        /// Any mix of sectors of the new record and the old one leaves the previous record valid.
        #[test]
        fn torn_record_leaves_previous_record_valid(
            old in any_regions(),
            before in any_regions(),
            new in any_regions(),
            kept in any::<u64>(),
        ) {
            let (mut slot, other, new_bytes) = (encode(4, &old), encode(5, &before), encode(6, &new));
            slot.resize(slot.len().max(new_bytes.len()), 0);
            for (index, sector) in new_bytes.chunks(512).enumerate() {
                if kept >> (index % 64) & 1 == 1 {
                    slot[index * 512..][..sector.len()].copy_from_slice(sector);
                }
            }
            let slots = [&slot, &other].map(|bytes| ActivityRecord::decode(bytes, LOG, 5000));
            let (_, found) = newest(slots, |record| record.sequence).expect("one is whole");
            prop_assert!(found.regions == before && found.sequence == 5
                || found.regions == new && found.sequence == 6);
        }

        #[test]
        fn hostile_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if bytes.len() > 16 {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(ActivityRecord::decode(&bytes, LOG, 5000).is_err());
        }
    }

    #[test]
    fn region_beyond_volume_is_refused() {
        let bytes = encode(1, &[1, 2, 3]);
        assert!(ActivityRecord::decode(&bytes, LOG, 4).is_ok());
        assert_eq!(ActivityRecord::decode(&bytes, LOG, 3), Err(FormatError::Field("regions")));
    }
}
