//! Layout: the segments of a pool, numbered through its devices.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::FormatError;
use super::entry::MapEntry;
use super::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};
use super::unit::block_of;
use crate::limits::{BLOCK_BYTES, DEVICES_MAX, SEGMENT_BLOCKS, SEGMENTS_MAX, SEGMENTS_MIN};

/// Place of a block: device and byte offset on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Position in the device table.
    pub device: usize,
    /// Offset, in bytes.
    pub offset: u64,
}

/// Segments of all devices. If a device is added to an open pool, its segments follow the others.
#[derive(Debug)]
pub struct PoolLayout {
    segment_blocks: u32,
    /// Number of the first segment of each device, then the number of all segments.
    first: [AtomicU32; DEVICES_MAX + 1],
    /// Devices, including removed ones.
    devices: AtomicUsize,
    /// Bit set of removed devices, whose segments keep their numbers.
    removed: AtomicU32,
}

/// Whole segments that fit a device of this size.
pub fn segments_of(size_bytes: u64, segment_blocks: u32) -> u64 {
    let segment = u64::from(segment_blocks) * BLOCK_BYTES as u64;
    size_bytes.saturating_sub(SUPERBLOCK_AREA_BYTES) / segment
}

impl PoolLayout {
    /// Layout of these devices.
    ///
    /// # Errors
    /// [`FormatError::Field`] for a segment size or count out of range, or segments beyond the end
    /// of a device.
    pub fn new(segment_blocks: u32, devices: &[DeviceRecord]) -> Result<PoolLayout, FormatError> {
        let sane = segment_blocks.is_power_of_two() && SEGMENT_BLOCKS.contains(&segment_blocks);
        if !sane {
            return Err(FormatError::Field("blocks per segment"));
        }
        let layout = PoolLayout {
            segment_blocks,
            first: Default::default(),
            devices: AtomicUsize::new(0),
            removed: AtomicU32::new(0),
        };
        for device in devices {
            layout.push(device)?;
        }
        match layout.usable_segments() >= SEGMENTS_MIN {
            true => Ok(layout),
            false => Err(FormatError::Field("number of segments")),
        }
    }

    /// Adds a device after the others. Only one task at a time changes a layout.
    ///
    /// # Errors
    /// [`FormatError::Field`] for too many devices or segments, or segments beyond the end of the
    /// device.
    pub(crate) fn push(&self, device: &DeviceRecord) -> Result<(), FormatError> {
        let count = self.devices.load(Ordering::Acquire);
        let segments = u64::from(device.segments);
        let fits = segments <= segments_of(device.size_bytes, self.segment_blocks);
        if segments == 0 || !fits && !device.is_removed() || count == DEVICES_MAX {
            return Err(FormatError::Field("segments of a device"));
        }
        let total = u64::from(self.segments()) + segments;
        if total > u64::from(SEGMENTS_MAX) {
            return Err(FormatError::Field("number of segments"));
        }
        if device.is_removed() {
            self.remove(count);
        }
        self.first[count + 1].store(total as u32, Ordering::Release);
        self.devices.store(count + 1, Ordering::Release);
        Ok(())
    }

    /// Marks a device as removed.
    pub(crate) fn remove(&self, device: usize) {
        self.removed.fetch_or(1 << device, Ordering::AcqRel);
    }

    /// Gives the segments of a removed device to another one.
    pub(crate) fn restore(&self, device: usize) {
        self.removed.fetch_and(!(1 << device), Ordering::AcqRel);
    }

    /// Number of devices, including removed ones.
    pub fn devices(&self) -> usize {
        self.devices.load(Ordering::Acquire)
    }

    /// Segments of a device.
    pub fn segments_on(&self, device: usize) -> Range<u32> {
        self.first(device)..self.first(device + 1)
    }

    /// Segments of the devices that were removed.
    pub fn removed_segments(&self) -> impl Iterator<Item = Range<u32>> {
        let removed = self.removed.load(Ordering::Acquire);
        let is_removed = move |device: &usize| removed & 1 << device != 0;
        (0..self.devices()).filter(is_removed).map(|device| self.segments_on(device))
    }

    /// Segments of the devices that were not removed.
    pub fn usable_segments(&self) -> u32 {
        self.segments() - self.removed_segments().map(|range| range.len() as u32).sum::<u32>()
    }

    fn first(&self, device: usize) -> u32 {
        self.first[device].load(Ordering::Acquire)
    }

    /// Number of segments.
    pub fn segments(&self) -> u32 {
        self.first(self.devices())
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

    /// Segment of a block, or of a location.
    ///
    /// # Panics
    /// Beyond the last segment.
    pub fn segment_of(&self, block: u64) -> u32 {
        let block = block_of(block);
        let segment = block / u64::from(self.segment_blocks);
        assert!(segment < u64::from(self.segments()), "block {block} is beyond the pool");
        segment as u32
    }

    /// True if the blocks of an entry lie in one segment, as those of every unit that was written.
    pub fn holds(&self, entry: &MapEntry) -> bool {
        let last = entry.block() + entry.stored_blocks() as u64 - 1;
        last < self.blocks() && self.segment_of(last) == self.segment_of(entry.block())
    }

    /// Place of a block, or of the first block of a location.
    ///
    /// # Panics
    /// Beyond the last segment.
    pub fn place(&self, block: u64) -> BlockPlace {
        let segment = self.segment_of(block);
        let mut device = 0;
        while self.first(device + 1) <= segment {
            device += 1;
        }
        let on_device = block_of(block) - self.first_block(self.first(device));
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
        let layout = PoolLayout::new(16, &[device(20), device(30)]).unwrap();
        assert_eq!((layout.segments(), layout.blocks()), (50, 800));
        let at = |block| layout.place(block);
        assert_eq!(at(0), BlockPlace { device: 0, offset: SUPERBLOCK_AREA_BYTES });
        assert_eq!(at(319), BlockPlace { device: 0, offset: SUPERBLOCK_AREA_BYTES + 319 * 4096 });
        assert_eq!(at(320), BlockPlace { device: 1, offset: SUPERBLOCK_AREA_BYTES });
        assert_eq!(layout.segment_of(799), 49);
    }

    #[test]
    fn devices_are_added_and_removed() {
        let layout = PoolLayout::new(16, &[device(20), device(30)]).unwrap();
        layout.push(&device(7)).unwrap();
        assert_eq!((layout.segments(), layout.segments_on(2)), (57, 50..57));
        assert_eq!(layout.place(800), BlockPlace { device: 2, offset: SUPERBLOCK_AREA_BYTES });
        layout.remove(0);
        assert_eq!((layout.segments(), layout.usable_segments()), (57, 37));
        let removed = DeviceRecord { size_bytes: 0, ..device(20) };
        let again = PoolLayout::new(16, &[removed, device(30), device(7)]).unwrap();
        assert_eq!(again.removed_segments().next(), Some(0..20));
        assert_eq!(again.removed_segments().count(), 1);
        assert_eq!(again.place(320).device, 1);
        for _ in 3..DEVICES_MAX {
            layout.push(&device(1)).unwrap();
        }
        assert!(layout.push(&device(1)).is_err());
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
            assert!(PoolLayout::new(blocks, &devices).is_err(), "{blocks} {devices:?}");
        }
    }
}
