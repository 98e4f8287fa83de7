//! Check of both copies of a pool with redundancy. A read would use the copy that is right, and
//! hide the other one.

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use super::check::Check;
use super::{CHANGED, Damage, DamageKind, UNREADABLE};
use crate::error::PoolError;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::chunk::ChunkHeader;
use crate::ondisk::entry::MapEntry;
use crate::recover::superblocks::device_error;

impl Check<'_> {
    /// With redundancy: verifies each copy of consecutive entries, and reports those that are
    /// damaged with the name of their device. Returns their number.
    pub(super) async fn copies(
        &mut self,
        entries: &[MapEntry],
        kind: impl Fn(usize) -> DamageKind,
    ) -> Result<usize, PoolError> {
        let Some(pairs) = &self.storage.pairs else { return Ok(0) };
        if !entries.iter().all(|entry| self.storage.layout.holds(entry)) {
            return Ok(0);
        }
        let place = self.storage.layout.place(entries[0].block());
        let lens: Vec<usize> =
            entries.iter().map(|entry| entry.stored_blocks() * BLOCK_BYTES).collect();
        let error = |error| device_error(self.storage, entries[0].location, error);
        let len = lens.iter().sum();
        let whole = pairs.read_each(place.device, place.offset, len).await.map_err(error)?;
        let mut damages = Vec::new();
        for (leg, copy) in whole {
            let mut at = 0;
            for (index, (entry, len)) in entries.iter().zip(&lens).enumerate() {
                let offset = place.offset + at as u64;
                let cause = match &copy {
                    Some(bytes) => (!entry.matches(&bytes[at..at + len])).then_some(CHANGED),
                    // Only some of the blocks may be unreadable.
                    None => {
                        let memory = buf::acquire_more(*len).await;
                        match pairs.read_leg(place.device, leg, offset, memory).await {
                            Ok(bytes) => (!entry.matches(&bytes)).then_some(CHANGED),
                            Err(IoError::ReadFault) => Some(UNREADABLE),
                            Err(failure) => return Err(error(failure)),
                        }
                    }
                };
                at += len;
                if let Some(cause) = cause {
                    let device = pairs.name(place.device, leg);
                    let kind = kind(index);
                    damages.push(Damage { device, device_offset_bytes: offset, kind, cause });
                }
            }
        }
        let count = damages.len();
        damages.into_iter().for_each(|damage| self.report.add(damage));
        Ok(count)
    }

    /// Header of a chunk. With redundancy, reports copies that are damaged if a block of the chunk
    /// is live.
    pub(super) async fn header(
        &mut self,
        at: u64,
    ) -> Result<Result<ChunkHeader, &'static str>, PoolError> {
        let layout = &self.storage.layout;
        let error = |error| device_error(self.storage, at, error);
        let decode = |block: &[u8]| {
            let block = block.try_into().ok()?;
            ChunkHeader::decode(block, at, layout).ok()
        };
        let Some(pairs) = &self.storage.pairs else {
            return Ok(match self.storage.read_one(at).await {
                Ok(block) => decode(&block).ok_or(CHANGED),
                Err(IoError::ReadFault) => Err(UNREADABLE),
                Err(failure) => return Err(error(failure)),
            });
        };
        let place = layout.place(at);
        let read = pairs.read_each(place.device, place.offset, BLOCK_BYTES).await.map_err(error)?;
        let decoded = read.into_iter().map(|(leg, copy)| {
            let found = copy.map_or(Err(UNREADABLE), |block| decode(&block).ok_or(CHANGED));
            (leg, found)
        });
        let (mut headers, mut damages) = (Vec::new(), Vec::new());
        for (leg, found) in decoded {
            match found {
                Ok(found) => headers.push((leg, found)),
                Err(cause) => damages.push((leg, cause)),
            }
        }
        // A leg that lost a write has an older header.
        let newest = headers.iter().map(|(_, header)| header).max_by_key(|header| header.sequence);
        let Some(found) = newest.cloned() else {
            return Ok(Err(damages.first().map_or(CHANGED, |(_, cause)| *cause)));
        };
        let older = headers.into_iter().filter(|(_, header)| *header != found);
        damages.extend(older.map(|(leg, _)| (leg, CHANGED)));
        if (at..at + found.blocks()).any(|block| self.live.has(block)) {
            for (leg, cause) in damages {
                self.report.add(Damage {
                    device: pairs.name(place.device, leg),
                    device_offset_bytes: place.offset,
                    kind: DamageKind::Header,
                    cause,
                });
            }
        }
        Ok(Ok(found))
    }
}
