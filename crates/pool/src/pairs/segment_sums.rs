//! Checksums of the blocks of a segment, for a rebuild: a block that is wrong on the source may be
//! right on the leg that is behind, which once had it.

use std::collections::BTreeMap;

use flagstone_runtime::buf;

use super::Pairs;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::checksum;
use crate::ondisk::chunk::ChunkHeader;
use crate::ondisk::layout::PoolLayout;

/// Checksums by offset on the device, in bytes. Without the blocks after the last chunk header that
/// can be read.
#[derive(Debug, Default)]
pub(super) struct SegmentSums(BTreeMap<u64, u32>);

impl SegmentSums {
    /// Checksums in the headers of a leg in sync. The segment may get further chunks meanwhile.
    pub(super) async fn read(
        pairs: &Pairs,
        leg: usize,
        layout: &PoolLayout,
        segment: u32,
    ) -> SegmentSums {
        let mut sums = BTreeMap::new();
        let (mut at, end) = (layout.first_block(segment), layout.first_block(segment + 1));
        while at < end {
            let place = layout.place(at);
            let memory = buf::alloc_small(BLOCK_BYTES);
            let read = pairs.read_leg(place.device, leg, place.offset, memory).await;
            let Ok(block) = read else { break };
            let Ok(block) = block[..].try_into() else { break };
            let Ok(header) = ChunkHeader::decode(block, at, layout) else { break };
            let payload = (place.offset..).step_by(BLOCK_BYTES).skip(1);
            sums.extend(payload.zip(header.checksums.iter().copied()));
            at += header.blocks();
        }
        SegmentSums(sums)
    }

    /// True if the block at this offset has a checksum, and not this content.
    pub(super) fn is_wrong(&self, offset: u64, block: &[u8]) -> bool {
        self.0.get(&offset).is_some_and(|sum| *sum != checksum(block))
    }

    /// True if the block at this offset has a checksum, and this content.
    pub(super) fn is_right(&self, offset: u64, block: &[u8]) -> bool {
        self.0.get(&offset).is_some_and(|sum| *sum == checksum(block))
    }
}
