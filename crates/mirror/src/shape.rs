//! Size and granularities of a replica, fixed when it is created; and where everything lies.

use crate::format::FormatError;
use crate::limits::{
    BIT_DEFAULT_BYTES, BIT_MAX_BYTES, BIT_MIN_BYTES, BITS_PER_PAGE, HOT_DEFAULT, HOT_MAX, HOT_MIN,
    PAGE_BYTES, REGION_DEFAULT_BYTES, REGION_MAX_BITS, REGIONS_MAX,
};

/// Size and granularities. Both replicas of a volume agree on the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Size of the volume, in bytes; a multiple of 4 KiB.
    pub usable_bytes: u64,
    /// What a bit of the bitmap stands for, in bytes.
    pub bit_bytes: u32,
    /// A region, in bytes: 1 to 512 bits, a power of two.
    pub region_bytes: u32,
    /// Most regions that are hot at a time.
    pub hot_regions: u32,
}

impl Shape {
    /// The default granularities, made coarser for a volume beyond 64 TiB.
    pub fn for_size(usable_bytes: u64) -> Shape {
        let mut shape = Shape {
            usable_bytes,
            bit_bytes: BIT_DEFAULT_BYTES,
            region_bytes: REGION_DEFAULT_BYTES,
            hot_regions: HOT_DEFAULT,
        };
        while shape.regions() > REGIONS_MAX && shape.bit_bytes < BIT_MAX_BYTES {
            (shape.bit_bytes, shape.region_bytes) = (shape.bit_bytes * 2, shape.region_bytes * 2);
        }
        shape
    }

    /// Number of bits.
    pub fn bits(&self) -> u64 {
        self.usable_bytes.div_ceil(u64::from(self.bit_bytes))
    }

    /// Number of regions.
    pub fn regions(&self) -> u64 {
        self.usable_bytes.div_ceil(u64::from(self.region_bytes))
    }

    /// Bits of a region; the last region may have fewer.
    pub fn region_bits(&self) -> u32 {
        self.region_bytes / self.bit_bytes
    }

    /// Pages of the bitmap.
    pub fn pages(&self) -> u64 {
        self.bits().div_ceil(BITS_PER_PAGE)
    }

    /// Checks all fields, each alone and against the others.
    ///
    /// # Errors
    /// Names the first that is not possible.
    pub fn check(&self) -> Result<(), FormatError> {
        let require =
            |holds: bool, field| if holds { Ok(()) } else { Err(FormatError::Field(field)) };
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
        require((HOT_MIN..=HOT_MAX).contains(&self.hot_regions), "hot_regions")
    }

    /// 20 bytes: the fields in order, little-endian.
    pub fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.usable_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bit_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.region_bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.hot_regions.to_le_bytes());
        bytes
    }

    /// Reads what [`Shape::encode`] wrote.
    ///
    /// # Errors
    /// As [`Shape::check`].
    pub fn decode(bytes: &[u8; 20]) -> Result<Shape, FormatError> {
        let [size, rest @ ..] = bytes.as_chunks::<4>().0 else {
            return Err(FormatError::Field("shape"));
        };
        let [size_high, bit, region, hot] = rest else { return Err(FormatError::Field("shape")) };
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let shape = Shape {
            usable_bytes: u64::from(word(size_high)) << 32 | u64::from(word(size)),
            bit_bytes: word(bit),
            region_bytes: word(region),
            hot_regions: word(hot),
        };
        shape.check()?;
        Ok(shape)
    }
}

/// Where the parts of a log lie, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// Two headers, at 0 and one page on.
    pub headers: [u64; 2],
    /// Two hot records.
    pub records: [u64; 2],
    /// Space of each, in bytes.
    pub record_bytes: u64,
    /// The bitmap's pages.
    pub pages: u64,
    /// All of it, in bytes.
    pub total_bytes: u64,
}

/// Where the parts of a replica lie on its data device, in bytes. Hosts' data begins at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Room for hosts' data.
    pub usable_bytes: u64,
    /// The log, for which there is room also when it is elsewhere.
    pub log: u64,
    /// Two superblocks: the last pages of the device.
    pub superblocks: [u64; 2],
}

/// Where the parts of a log lie for a volume of this shape.
pub fn log_layout(shape: &Shape) -> LogLayout {
    let page = PAGE_BYTES as u64;
    let record_bytes = crate::format::hot_record::record_bytes(shape.hot_regions as usize) as u64;
    let records = [2 * page, 2 * page + record_bytes];
    let pages = records[1] + record_bytes;
    LogLayout {
        headers: [0, page],
        records,
        record_bytes,
        pages,
        total_bytes: pages + shape.pages() * page,
    }
}

/// Where everything lies on a data device of `device_bytes`, for granularities as in `shape` (its
/// size is not looked at). `None` when nothing would be left for data.
pub fn layout(device_bytes: u64, shape: &Shape) -> Option<Layout> {
    let page = PAGE_BYTES as u64;
    let end = device_bytes / page * page;
    // The log of a volume as large as the device is no smaller than that of the volume.
    let whole = Shape { usable_bytes: end, ..*shape };
    let log_bytes = log_layout(&whole).total_bytes;
    let log = end.checked_sub(2 * page)?.checked_sub(log_bytes)?;
    (log > 0).then_some(Layout {
        usable_bytes: log,
        log,
        superblocks: [end - 2 * page, end - page],
    })
}

impl Layout {
    /// The end of the part of the device that a replica uses, in bytes.
    pub fn end(&self) -> u64 {
        self.superblocks[1] + PAGE_BYTES as u64
    }
}

/// Where everything lies once a replica that ends at `end` has followed its device, which has
/// `device_bytes` now: at the new end, if nothing there touches what is at the old one. `None` when
/// it stays where it is.
pub fn follow(end: u64, device_bytes: u64, shape: &Shape) -> Option<Layout> {
    layout(device_bytes, shape).filter(|new| new.log >= end)
}

/// The largest volume of these granularities for whose log so many bytes are enough.
pub fn usable_with_log(log_bytes: u64, shape: &Shape) -> u64 {
    let page = PAGE_BYTES as u64;
    let pages = log_bytes.saturating_sub(log_layout(shape).pages) / page;
    pages.saturating_mul(BITS_PER_PAGE).saturating_mul(u64::from(shape.bit_bytes))
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
            hot_regions in HOT_MIN..=HOT_MAX,
        ) -> Shape {
            let (bit_bytes, region_bytes) = (1 << bit, 1u32 << (bit + region));
            Shape { usable_bytes: pages * 4096, bit_bytes, region_bytes, hot_regions }
        }
    }

    proptest! {
        #[test]
        fn shapes_round_trip(shape in any_shape()) {
            prop_assert_eq!(Shape::decode(&shape.encode()), Ok(shape));
        }

        #[test]
        fn hostile_shapes_are_refused_or_sound(bytes in any::<[u8; 20]>()) {
            if let Ok(shape) = Shape::decode(&bytes) {
                prop_assert!(shape.regions() <= REGIONS_MAX);
                prop_assert!(shape.pages() <= shape.bits());
                prop_assert!(log_layout(&shape).total_bytes < u64::MAX / 2);
            }
        }

        /// Parts follow each other and stay on the device, whatever its size.
        #[test]
        fn nothing_overlaps(shape in any_shape(), device_bytes in 0u64..1 << 50) {
            let shape = Shape { hot_regions: shape.hot_regions, ..Shape::for_size(1 << 50) };
            let Some(layout) = layout(device_bytes, &shape) else {
                prop_assert!(device_bytes < 2 << 20);
                return Ok(());
            };
            let volume = Shape { usable_bytes: layout.usable_bytes, ..shape };
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
        /// What moves touches nothing of what was there, and there is more room afterwards.
        #[test]
        fn a_grown_device_has_more_room(old in 1u64 << 21..1 << 44, more in 0u64..1 << 44) {
            let shape = Shape::for_size(1 << 44);
            let Some(before) = layout(old, &shape) else { return Ok(()) };
            if let Some(after) = follow(before.end(), old + more, &shape) {
                prop_assert!(after.log >= before.end() && after.end() <= old + more);
                prop_assert!(after.usable_bytes >= before.end());
            } else {
                prop_assert!(more < (1 << 20) + (old + more) / 100_000);
            }
        }

        #[test]
        fn a_log_has_room_for_what_it_says(shape in any_shape(), log_bytes in 0u64..1 << 32) {
            let usable_bytes = usable_with_log(log_bytes, &shape);
            let volume = Shape { usable_bytes, ..shape };
            prop_assert!(usable_bytes == 0 || log_layout(&volume).total_bytes <= log_bytes);
            let larger = Shape { usable_bytes: usable_bytes + 1, ..shape };
            prop_assert!(log_layout(&larger).total_bytes > log_bytes);
        }
    }

    #[test]
    fn a_tebibyte_costs_little() {
        let shape = Shape::for_size(1 << 40);
        let layout = layout(1 << 40, &shape).expect("room");
        assert!((1 << 40) - layout.usable_bytes < 3 << 20);
        assert_eq!(Shape::for_size(64 << 40).bit_bytes, BIT_DEFAULT_BYTES);
        assert_eq!(Shape::for_size(512 << 40).bit_bytes, 8 * BIT_DEFAULT_BYTES);
        assert_eq!(Shape::for_size(512 << 40).check(), Ok(()));
    }
}
