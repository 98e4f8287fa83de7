//! Layout: size and granularities of a replica, and the position of its structures on its devices.

use crate::limits::{
    ACTIVE_REGIONS_DEFAULT, ACTIVE_REGIONS_MAX, ACTIVE_REGIONS_MIN, BIT_DEFAULT_BYTES,
    BIT_MAX_BYTES, BIT_MIN_BYTES, BITS_PER_PAGE, PAGE_BYTES, REGION_DEFAULT_BYTES, REGION_MAX_BITS,
    REGIONS_MAX,
};
use crate::ondisk::FormatError;

/// Size and granularities. Both replicas of a volume have the same size and `bit_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaGeometry {
    /// Size of the volume, in bytes; a multiple of 4 KiB.
    pub usable_bytes: u64,
    /// Bytes covered by one bit of the bitmap.
    pub bit_bytes: u32,
    /// Size of a region, in bytes: 1 to 512 bits, a power of two.
    pub region_bytes: u32,
    /// Maximum number of active regions.
    pub active_regions_max: u32,
}

impl ReplicaGeometry {
    /// Default granularities, coarser for volumes beyond 64 TiB.
    pub fn for_size(usable_bytes: u64) -> ReplicaGeometry {
        let mut geometry = ReplicaGeometry {
            usable_bytes,
            bit_bytes: BIT_DEFAULT_BYTES,
            region_bytes: REGION_DEFAULT_BYTES,
            active_regions_max: ACTIVE_REGIONS_DEFAULT,
        };
        while geometry.regions() > REGIONS_MAX && geometry.bit_bytes < BIT_MAX_BYTES {
            (geometry.bit_bytes, geometry.region_bytes) =
                (geometry.bit_bytes * 2, geometry.region_bytes * 2);
        }
        geometry
    }

    /// Number of bits.
    pub fn bits(&self) -> u64 {
        self.usable_bytes.div_ceil(u64::from(self.bit_bytes))
    }

    /// Number of regions.
    pub fn regions(&self) -> u64 {
        self.usable_bytes.div_ceil(u64::from(self.region_bytes))
    }

    /// Bits per region; the last region may have fewer.
    pub fn region_bits(&self) -> u32 {
        self.region_bytes / self.bit_bytes
    }

    /// Number of bitmap pages.
    pub fn pages(&self) -> u64 {
        self.bits().div_ceil(BITS_PER_PAGE)
    }

    /// Checks each field and their combination.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), FormatError> {
        let require = |holds: bool, field| {
            if holds { Ok(()) } else { Err(FormatError::Field(field)) }
        };
        let page = PAGE_BYTES as u64;
        let size = self.usable_bytes;
        require(size > 0 && size.is_multiple_of(page) && size < 1 << 62, "usable_bytes")?;
        let bit = self.bit_bytes;
        let bit_range = BIT_MIN_BYTES..=BIT_MAX_BYTES;
        require(bit.is_power_of_two() && bit_range.contains(&bit), "bit_bytes")?;
        let region = self.region_bytes;
        let bits = region / bit;
        let sound = region.is_power_of_two() && (1..=REGION_MAX_BITS).contains(&bits);
        require(sound && self.regions() <= REGIONS_MAX, "region_bytes")?;
        require(
            (ACTIVE_REGIONS_MIN..=ACTIVE_REGIONS_MAX).contains(&self.active_regions_max),
            "active_regions_max",
        )
    }

    /// 20 bytes: the fields in order, little-endian.
    pub fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.usable_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bit_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.region_bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.active_regions_max.to_le_bytes());
        bytes
    }

    /// Inverse of [`ReplicaGeometry::encode`].
    ///
    /// # Errors
    /// As [`ReplicaGeometry::check`].
    pub fn decode(bytes: &[u8; 20]) -> Result<ReplicaGeometry, FormatError> {
        let [size, rest @ ..] = bytes.as_chunks::<4>().0 else {
            return Err(FormatError::Field("geometry"));
        };
        let [size_high, bit, region, active] = rest else {
            return Err(FormatError::Field("geometry"));
        };
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let geometry = ReplicaGeometry {
            usable_bytes: u64::from(word(size_high)) << 32 | u64::from(word(size)),
            bit_bytes: word(bit),
            region_bytes: word(region),
            active_regions_max: word(active),
        };
        geometry.check()?;
        Ok(geometry)
    }
}

/// Positions of a log's parts, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// Two headers, one page each.
    pub headers: [u64; 2],
    /// Two activity records.
    pub records: [u64; 2],
    /// Space for one record, in bytes.
    pub record_bytes: u64,
    /// The bitmap pages.
    pub pages: u64,
    /// Total size, in bytes.
    pub total_bytes: u64,
}

/// Positions of a replica's parts on its data device, in bytes. Host data begins at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLayout {
    /// Space for host data.
    pub usable_bytes: u64,
    /// The log. The space is reserved even when the log has a device of its own.
    pub log: u64,
    /// Two superblocks: the last pages of the device.
    pub superblocks: [u64; 2],
}

/// Layout of a log for a volume of this geometry.
pub fn log_layout(geometry: &ReplicaGeometry) -> LogLayout {
    let page = PAGE_BYTES as u64;
    let record_bytes =
        crate::ondisk::activity_log::record_bytes(geometry.active_regions_max as usize) as u64;
    let records = [2 * page, 2 * page + record_bytes];
    let pages = records[1] + record_bytes;
    LogLayout {
        headers: [0, page],
        records,
        record_bytes,
        pages,
        total_bytes: pages + geometry.pages() * page,
    }
}

/// Layout of a data device of `device_bytes` for the granularities of `geometry`, whose size is
/// ignored. `None` when there would be no space for data.
pub fn layout(device_bytes: u64, geometry: &ReplicaGeometry) -> Option<ReplicaLayout> {
    let page = PAGE_BYTES as u64;
    let end = device_bytes / page * page;
    // A log for a volume as large as the device is no smaller than the log actually needed.
    let whole = ReplicaGeometry { usable_bytes: end, ..*geometry };
    let log_bytes = log_layout(&whole).total_bytes;
    let log = end.checked_sub(2 * page)?.checked_sub(log_bytes)?;
    (log > 0).then_some(ReplicaLayout {
        usable_bytes: log,
        log,
        superblocks: [end - 2 * page, end - page],
    })
}

impl ReplicaLayout {
    /// End of the part of the device that a replica uses, in bytes.
    pub fn end(&self) -> u64 {
        self.superblocks[1] + PAGE_BYTES as u64
    }
}

/// Layout after a device grew to `device_bytes`: the metadata moves from `end` to the new end if
/// the two places do not overlap; otherwise `None`.
pub fn follow(end: u64, device_bytes: u64, geometry: &ReplicaGeometry) -> Option<ReplicaLayout> {
    layout(device_bytes, geometry).filter(|new| new.log >= end)
}

/// The largest volume of these granularities, in bytes, whose log fits into `log_bytes`.
pub fn usable_with_log(log_bytes: u64, geometry: &ReplicaGeometry) -> u64 {
    let page = PAGE_BYTES as u64;
    let pages = log_bytes.saturating_sub(log_layout(geometry).pages) / page;
    pages.saturating_mul(BITS_PER_PAGE).saturating_mul(u64::from(geometry.bit_bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn any_shape()(
            pages in 1u64..1 << 24,
            bit in 12u32..=24,
            region in 0u32..=7,
            active_regions_max in ACTIVE_REGIONS_MIN..=ACTIVE_REGIONS_MAX,
        ) -> ReplicaGeometry {
            let (bit_bytes, region_bytes) = (1 << bit, 1u32 << (bit + region));
            ReplicaGeometry { usable_bytes: pages * 4096, bit_bytes, region_bytes, active_regions_max }
        }
    }

    proptest! {
        #[test]
        fn geometry_round_trips(geometry in any_shape()) {
            prop_assert_eq!(ReplicaGeometry::decode(&geometry.encode()), Ok(geometry));
        }

        #[test]
        fn hostile_geometry_is_refused_or_valid(bytes in any::<[u8; 20]>()) {
            if let Ok(geometry) = ReplicaGeometry::decode(&bytes) {
                prop_assert!(geometry.regions() <= REGIONS_MAX);
                prop_assert!(geometry.pages() <= geometry.bits());
                prop_assert!(log_layout(&geometry).total_bytes < u64::MAX / 2);
            }
        }

        /// The parts are in sequence and within the device, for any device size.
        #[test]
        fn structures_do_not_overlap(geometry in any_shape(), device_bytes in 0u64..1 << 50) {
            let geometry = ReplicaGeometry { active_regions_max: geometry.active_regions_max, ..ReplicaGeometry::for_size(1 << 50) };
            let Some(layout) = layout(device_bytes, &geometry) else {
                prop_assert!(device_bytes < 2 << 20);
                return Ok(());
            };
            let volume = ReplicaGeometry { usable_bytes: layout.usable_bytes, ..geometry };
            let log = log_layout(&volume);
            prop_assert!(layout.usable_bytes > 0 && layout.usable_bytes.is_multiple_of(4096));
            prop_assert!(layout.usable_bytes <= layout.log);
            prop_assert!(layout.log + log.total_bytes <= layout.superblocks[0]);
            prop_assert_eq!(layout.superblocks[0] + 4096, layout.superblocks[1]);
            prop_assert!(layout.superblocks[1] + 4096 <= device_bytes);
            prop_assert!(log.headers[1] + 4096 <= log.records[0]);
            prop_assert!(log.records[1] + log.record_bytes <= log.pages);
        }
    }

    proptest! {
        /// Moved metadata does not overlap the old data, and there is more space afterwards.
        #[test]
        fn grown_device_has_more_space(old in 1u64 << 21..1 << 44, more in 0u64..1 << 44) {
            let geometry = ReplicaGeometry::for_size(1 << 44);
            let Some(before) = layout(old, &geometry) else { return Ok(()) };
            if let Some(after) = follow(before.end(), old + more, &geometry) {
                prop_assert!(after.log >= before.end() && after.end() <= old + more);
                prop_assert!(after.usable_bytes >= before.end());
            } else {
                prop_assert!(more < (1 << 20) + (old + more) / 100_000);
            }
        }

        #[test]
        fn usable_with_log_matches_log_layout(geometry in any_shape(), log_bytes in 0u64..1 << 32) {
            let usable_bytes = usable_with_log(log_bytes, &geometry);
            let volume = ReplicaGeometry { usable_bytes, ..geometry };
            prop_assert!(usable_bytes == 0 || log_layout(&volume).total_bytes <= log_bytes);
            let larger = ReplicaGeometry { usable_bytes: usable_bytes + 1, ..geometry };
            prop_assert!(log_layout(&larger).total_bytes > log_bytes);
        }
    }

    #[test]
    fn metadata_of_1_tib_is_small() {
        let geometry = ReplicaGeometry::for_size(1 << 40);
        let layout = layout(1 << 40, &geometry).expect("room");
        assert!((1 << 40) - layout.usable_bytes < 3 << 20);
        assert_eq!(ReplicaGeometry::for_size(64 << 40).bit_bytes, BIT_DEFAULT_BYTES);
        assert_eq!(ReplicaGeometry::for_size(512 << 40).bit_bytes, 8 * BIT_DEFAULT_BYTES);
        assert_eq!(ReplicaGeometry::for_size(512 << 40).check(), Ok(()));
    }
}
