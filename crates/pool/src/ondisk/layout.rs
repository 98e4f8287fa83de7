//! Layout: the segments of a pool, numbered through its devices.

use super::FormatError;
use super::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};
use crate::limits::{BLOCK_BYTES, SEGMENT_BLOCKS, SEGMENTS_MAX, SEGMENTS_MIN};

/// Place of a block: device and byte offset on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Position in the device table.
    pub device: usize,
    /// Offset, in bytes.
    pub offset: u64,
}

/// Segments of all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    segment_blocks: u32,
    /// Per device the number of its first segment, and after the last the number of segments.
    first: Vec<u32>,
}

/// Whole segments that fit a device of this size.
pub fn segments_of(size_bytes: u64, segment_blocks: u32) -> u64 {
    let segment = u64::from(segment_blocks) * BLOCK_BYTES as u64;
    size_bytes.saturating_sub(SUPERBLOCK_AREA_BYTES) / segment
}

impl Layout {
    /// The layout of these devices.
    ///
    /// # Errors
    /// [`FormatError::Field`] for a segment size or counts out of range, or segments beyond the end
    /// of a device.
    pub fn new(segment_blocks: u32, devices: &[DeviceRecord]) -> Result<Layout, FormatError> {
        let sane = segment_blocks.is_power_of_two() && SEGMENT_BLOCKS.contains(&segment_blocks);
        if !sane {
            return Err(FormatError::Field("blocks per segment"));
        }
        let mut first = vec![0];
        let mut total = 0_u64;
        for device in devices {
            let segments = u64::from(device.segments);
            if segments == 0 || segments > segments_of(device.size_bytes, segment_blocks) {
                return Err(FormatError::Field("segments of a device"));
            }
            total += segments;
            first.push(u32::try_from(total).unwrap_or(u32::MAX));
        }
        if !(u64::from(SEGMENTS_MIN)..=u64::from(SEGMENTS_MAX)).contains(&total) {
            return Err(FormatError::Field("number of segments"));
        }
        Ok(Layout { segment_blocks, first })
    }

    /// Number of segments.
    pub fn segments(&self) -> u32 {
        *self.first.last().expect("it begins with zero")
    }

    /// Blocks per segment.
    pub fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// Blocks of all segments.
    pub fn blocks(&self) -> u64 {
        self.first_block(self.segments())
    }

    /// First block of a segment.
    pub fn first_block(&self, segment: u32) -> u64 {
        u64::from(segment) * u64::from(self.segment_blocks)
    }

    /// Segment of a block.
    ///
    /// # Panics
    /// Beyond the last segment.
    pub fn segment_of(&self, block: u64) -> u32 {
        let segment = block / u64::from(self.segment_blocks);
        assert!(segment < u64::from(self.segments()), "block {block} is beyond the pool");
        segment as u32
    }

    /// Place of a block.
    ///
    /// # Panics
    /// Beyond the last segment.
    pub fn place(&self, block: u64) -> BlockPlace {
        let segment = self.segment_of(block);
        let device = self.first.partition_point(|first| *first <= segment) - 1;
        let on_device = block - self.first_block(self.first[device]);
        BlockPlace { device, offset: SUPERBLOCK_AREA_BYTES + on_device * BLOCK_BYTES as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PoolId;

    fn device(segments: u32) -> DeviceRecord {
        let size_bytes = SUPERBLOCK_AREA_BYTES + u64::from(segments) * 16 * 4096 + 4095;
        DeviceRecord { id: PoolId::default(), size_bytes, segments }
    }

    #[test]
    fn blocks_are_numbered_through_the_devices() {
        let layout = Layout::new(16, &[device(20), device(30)]).unwrap();
        assert_eq!((layout.segments(), layout.blocks()), (50, 800));
        let at = |block| layout.place(block);
        assert_eq!(at(0), BlockPlace { device: 0, offset: SUPERBLOCK_AREA_BYTES });
        assert_eq!(at(319), BlockPlace { device: 0, offset: SUPERBLOCK_AREA_BYTES + 319 * 4096 });
        assert_eq!(at(320), BlockPlace { device: 1, offset: SUPERBLOCK_AREA_BYTES });
        assert_eq!(layout.segment_of(799), 49);
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let mut beyond = device(40);
        beyond.segments += 1;
        for (blocks, devices) in [
            (15, vec![device(40)]),
            (24, vec![device(40)]),
            (16384, vec![device(40)]),
            (16, vec![beyond]),
            (16, vec![device(31)]),
            (16, vec![device(0), device(40)]),
            (16, vec![]),
        ] {
            assert!(Layout::new(blocks, &devices).is_err(), "{blocks} {devices:?}");
        }
    }
}
