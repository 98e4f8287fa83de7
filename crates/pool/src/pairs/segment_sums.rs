//! Checksums of the blocks of a segment, for a rebuild: a block that is wrong on the source may be
//! right on the leg that is behind, which once had it.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_runtime::buf;

use super::Pairs;
use super::leg::LegDevice;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::checksum;
use crate::ondisk::chunk::ChunkHeader;
use crate::ondisk::layout::PoolLayout;

/// Checksums by offset on the device, in bytes. Without the blocks after the last chunk header that
/// can be read.
#[derive(Debug, Default)]
pub(super) struct SegmentSums(BTreeMap<u64, u32>);

/// True if `header` is the next one in a segment, whose chunks have consecutive sequences.
fn follows(header: &ChunkHeader, former: &ChunkHeader) -> bool {
    (header.log, header.sequence) == (former.log, former.sequence + 1)
}

/// Headers of a segment on both legs.
struct SegmentHeaders<'a> {
    pairs: &'a Pairs,
    layout: &'a PoolLayout,
    end: u64,
    /// The leg that is behind, and its device.
    target: (usize, &'a Arc<LegDevice>),
}

impl SegmentHeaders<'_> {
    fn decode(&self, block: &[u8], at: u64) -> Option<ChunkHeader> {
        ChunkHeader::decode(block.try_into().ok()?, at, self.layout).ok()
    }

    /// The header on the leg in sync.
    async fn on_source(&self, at: u64) -> Option<ChunkHeader> {
        let place = self.layout.place(at);
        let (memory, leg) = (buf::alloc_small(BLOCK_BYTES), 1 - self.target.0);
        let read = self.pairs.read_leg(place.device, leg, place.offset, memory).await;
        self.decode(&read.ok()?, at)
    }

    /// The header on the leg that is behind, and its checksum. It may be from an earlier use of the
    /// segment, unless it fits the headers around it.
    async fn on_target(&self, at: u64, former: Option<&ChunkHeader>) -> Option<(ChunkHeader, u32)> {
        let place = self.layout.place(at);
        let ((leg, device), memory) = (self.target, buf::alloc_small(BLOCK_BYTES));
        let pair = &self.pairs.pairs[place.device];
        let read = pair.limited(leg, device, device.read(place.offset, memory)).await.ok()?;
        let header = self.decode(&read, at)?;
        let fits = match former {
            Some(former) => follows(&header, former),
            None if at + header.blocks() < self.end => {
                let next = self.on_source(at + header.blocks()).await;
                next.is_some_and(|next| follows(&next, &header))
            }
            None => false,
        };
        fits.then(|| (header, checksum(&read)))
    }
}

impl SegmentSums {
    /// Checksums in the headers of the leg in sync; of a header that is damaged there, in the one
    /// of the leg that is behind. The segment may get further chunks meanwhile.
    pub(super) async fn read(
        pairs: &Pairs,
        target: (usize, &Arc<LegDevice>),
        layout: &PoolLayout,
        segment: u32,
    ) -> SegmentSums {
        let mut sums = BTreeMap::new();
        let (mut at, end) = (layout.first_block(segment), layout.first_block(segment + 1));
        let headers = SegmentHeaders { pairs, layout, end, target };
        let mut former: Option<ChunkHeader> = None;
        while at < end {
            let offset = layout.place(at).offset;
            let fits =
                |header: &ChunkHeader| former.as_ref().is_none_or(|former| follows(header, former));
            let header = match headers.on_source(at).await.filter(fits) {
                Some(header) => header,
                None => {
                    let found = headers.on_target(at, former.as_ref()).await;
                    let Some((header, sum)) = found else { break };
                    sums.insert(offset, sum);
                    header
                }
            };
            let payload = (offset..).step_by(BLOCK_BYTES).skip(1);
            sums.extend(payload.zip(header.checksums.iter().copied()));
            at += header.blocks();
            former = Some(header);
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
