//! Space: what a pool can hold, and whether a write may begin. Pure.

use crate::limits::{
    BLOCK_BYTES, CATALOG_BYTES_MAX, CHUNK_PAYLOAD_BLOCKS, MERGES_WAITED, PASSES_WAITED, RECENT_MAX,
};
use crate::ondisk::layout::Layout;

/// Entries of [`crate::limits`] that one block of the usage table has.
pub(crate) const USAGE_PER_BLOCK: usize = BLOCK_BYTES / 4;

/// Sizes that follow from the layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Recent changes between two checkpoints.
    pub(crate) recent: usize,
    /// Map pages that one checkpoint copies for the cleaner.
    pub(crate) moving: usize,
    /// Segments that only checkpoints, deletions and the cleaner may take.
    pub(crate) reserve: usize,
    /// Free segments that the cleaner leaves for a checkpoint. The reserve of a small pool is less than
    /// two checkpoints may take, which they do not.
    pub(crate) floor: usize,
    /// Blocks that volumes and their maps may have.
    pub(crate) capacity: u64,
    /// Payload of a segment of full chunks, in blocks.
    pub(crate) payload: u64,
    /// Longest catalog, in bytes.
    pub(crate) catalog: usize,
    /// Blocks on a log device near which hosts slow down.
    pub(crate) tail: u64,
}

/// Most payload blocks of a chunk. Chunks of that size fill segments without a rest.
pub(crate) fn chunk_blocks(layout: &Layout) -> u64 {
    let segment = u64::from(layout.segment_blocks());
    (CHUNK_PAYLOAD_BLOCKS as u64).min((segment / 8).max(8) - 1)
}

impl Sizes {
    /// Sizes of a pool. A checkpoint writes at most one leaf per recent change, the levels above
    /// it, and the metadata, after the cleaner copied half as many blocks and chose a quarter as
    /// many pages. The reserve holds two of both, because the space of the first is free only after
    /// the second, at half of the density, because pages of many small maps have a chunk each. For the
    /// recent changes alone that is 6.5 blocks each, so it also holds one checkpoint of changes so
    /// sparse that each has a page on all six levels. Headers of chunks take a part of the rest, and a
    /// sixteenth is slack for the cleaner.
    pub(crate) fn of(layout: &Layout) -> Sizes {
        Sizes::with(layout, layout.usable_segments(), RECENT_MAX as u64)
    }

    /// Sizes with other usable segments, because devices were added or are evacuated. The tables of
    /// recent changes stay as large as they are.
    pub(crate) fn within(&self, layout: &Layout, segments: u32) -> Sizes {
        Sizes::with(layout, segments, self.recent as u64)
    }

    fn with(layout: &Layout, segments: u32, recent_max: u64) -> Sizes {
        let segment_blocks = u64::from(layout.segment_blocks());
        let blocks = u64::from(segments) * segment_blocks;
        let recent = (blocks / 32).clamp(32, recent_max);
        let usage = u64::from(layout.segments()).div_ceil(USAGE_PER_BLOCK as u64);
        // A block of a few snapshots of a small pool has as many pages.
        let moving = (recent / 4).max(32);
        // A deleted volume moves all that follow it in the catalog, so a checkpoint may write all.
        let catalog = (blocks / 64).min((CATALOG_BYTES_MAX / BLOCK_BYTES) as u64);
        let checkpoint = recent + recent / 2 + recent / 8 + moving + catalog + 4 * usage + 10;
        let reserve = 4 + (2 * checkpoint).div_ceil(segment_blocks / 2);
        let most = u64::from(segments) / 4;
        let floor = if reserve > most { 2 } else { reserve / 2 };
        let reserve = reserve.min(most);
        let rest = (u64::from(segments) - reserve) * segment_blocks;
        let chunk = chunk_blocks(layout);
        let payload = rest / (chunk + 1) * chunk;
        Sizes {
            recent: recent as usize,
            moving: moving as usize,
            reserve: reserve as usize,
            floor: floor as usize,
            capacity: payload - payload / 16,
            payload: segment_blocks / (chunk + 1) * chunk,
            catalog: catalog as usize * BLOCK_BYTES,
            // A checkpoint ends when the tail that it found is written out; the changes that hosts
            // make meanwhile fit the next table.
            tail: (recent / 2).max(4 * u64::from(layout.segment_blocks())),
        }
    }
}

/// What decides whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// New entries among the recent changes.
    pub(crate) entries: usize,
    /// New ranges of zeroes.
    pub(crate) ranges: usize,
    /// Blocks of data.
    pub(crate) blocks: u64,
    /// The space is reserved: a thick volume, or an order.
    pub(crate) reserved: bool,
}

/// The state of a pool, as far as space is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supply {
    /// Live blocks of the maps, their pages included.
    pub(crate) live: u64,
    /// Blocks reserved for thick volumes beyond what they have.
    pub(crate) reserved: u64,
    /// Blocks that the live parts of units may take beyond what they count, because other parts of
    /// their units are dead.
    pub(crate) held: u64,
    /// There are thick volumes.
    pub(crate) has_thick: bool,
    /// Recent changes, admitted ones included.
    pub(crate) entries: usize,
    /// Recent ranges, admitted ones included.
    pub(crate) ranges: usize,
    /// Free segments.
    pub(crate) free: usize,
    /// A checkpoint may find dead blocks: there are recent changes.
    pub(crate) unmerged: bool,
    /// Deleted volumes or snapshots still have blocks.
    pub(crate) reaping: bool,
    /// The log has chunks of hosts or orders that no checkpoint contains: the next one may free
    /// their segments.
    pub(crate) logged: bool,
    /// The cleaner found nothing to free since the last checkpoint.
    pub(crate) clean: bool,
}

impl Supply {
    /// Blocks in use or reserved; overwritten and deleted ones count until a checkpoint
    /// finds them.
    pub(crate) fn used(&self) -> u64 {
        self.live + self.reserved + self.entries as u64
    }

    /// The same, with the space that dead parts of units may hold whatever the cleaner does.
    pub(crate) fn needed(&self) -> u64 {
        self.used().saturating_add(self.held)
    }

    /// True if free segments may be too few for what is reserved and `more`, because dead parts of units
    /// hold space that is not counted. Otherwise all of it fits the capacity after cleaning, or what
    /// is in use leaves as much free as the capacity does: its slack lets the cleaner work.
    pub(crate) fn is_overdrawn(&self, sizes: &Sizes, more: u64) -> bool {
        let free = self.free.saturating_sub(sizes.reserve) as u64 * sizes.payload;
        let slack = sizes.capacity / 15;
        self.needed().saturating_add(more) > sizes.capacity
            && free < self.reserved.saturating_add(more).saturating_add(slack)
    }

    /// Whether less may be in use after the next checkpoint. Others may change blocks all the time,
    /// so the changes that were recent at first are merged after some.
    pub(crate) fn may_shrink(&self, checkpoints_waited: u64) -> bool {
        self.reaping || self.unmerged && checkpoints_waited < MERGES_WAITED
    }

    /// Whether the next checkpoint may free segments, although the cleaner finds none to empty.
    fn may_free(&self, checkpoints_waited: u64) -> bool {
        self.may_shrink(checkpoints_waited) || self.logged && checkpoints_waited < MERGES_WAITED
    }
}

/// Whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Now.
    Now,
    /// After a checkpoint.
    AfterCheckpoint,
    /// After the cleaner has freed segments.
    AfterCleaning,
    /// The pool is full.
    Full,
}

/// Decides whether a write may begin that has waited for so many checkpoints.
pub(crate) fn admit(sizes: &Sizes, supply: &Supply, demand: &Demand, waited: u64) -> Admission {
    let entries = supply.entries + demand.entries;
    let ranges = supply.ranges + demand.ranges;
    if supply.entries > 0 && entries > sizes.recent
        || supply.ranges > 0 && ranges > crate::limits::RANGES_MAX
    {
        return Admission::AfterCheckpoint;
    }
    if demand.blocks > 0 && !demand.reserved && supply.used() + demand.blocks > sizes.capacity {
        return match supply.may_shrink(waited) {
            true => Admission::AfterCheckpoint,
            false => Admission::Full,
        };
    }
    // Zeroes free space, so they may use a part of the reserve. Their chunks take segments until a
    // checkpoint, which needs half of the reserve. Below three quarters of it, one write of zeroes is
    // admitted after each checkpoint, even if that freed nothing, so that a full pool can be emptied.
    if demand.blocks == 0 && supply.free <= sizes.reserve * 3 / 4 && supply.unmerged {
        return match supply.clean {
            false => Admission::AfterCleaning,
            true => Admission::AfterCheckpoint,
        };
    }
    let is_overdrawn =
        !demand.reserved && supply.has_thick && supply.is_overdrawn(sizes, demand.blocks);
    if demand.blocks > 0 && (supply.free <= sizes.reserve || is_overdrawn) {
        return match supply.clean {
            _ if waited >= PASSES_WAITED => Admission::Full,
            false => Admission::AfterCleaning,
            true if supply.may_free(waited) => Admission::AfterCheckpoint,
            true => Admission::Full,
        };
    }
    Admission::Now
}

/// What an order does to the space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    /// It frees space, at least after the next checkpoint.
    Deletion,
    /// Any other.
    Other,
}

/// Decides whether an order may begin. Its chunk takes a block of the log, and no entry among the
/// recent changes that would limit the chunks until the next checkpoint.
pub(crate) fn admit_order(
    sizes: &Sizes,
    supply: &Supply,
    kind: OrderKind,
    waited: u64,
) -> Admission {
    // A checkpoint needs half of the reserve.
    let floor = match kind {
        OrderKind::Deletion => sizes.reserve / 2,
        OrderKind::Other => sizes.reserve * 3 / 4,
    };
    match (supply.free > floor, supply.clean || waited >= PASSES_WAITED, kind) {
        (true, _, _) => Admission::Now,
        (false, false, _) => Admission::AfterCleaning,
        // The checkpoint after it frees its block again.
        (false, true, OrderKind::Deletion) => Admission::Now,
        // Chunks of orders are dead once a checkpoint contains them.
        (false, true, OrderKind::Other) if supply.may_free(waited) => Admission::AfterCheckpoint,
        (false, true, OrderKind::Other) => Admission::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        recent: 100,
        moving: 25,
        reserve: 4,
        floor: 1,
        capacity: 1000,
        payload: 14,
        catalog: 4096,
        tail: 64,
    };
    const SUPPLY: Supply = Supply {
        live: 500,
        reserved: 100,
        held: 0,
        has_thick: true,
        entries: 10,
        ranges: 0,
        free: 20,
        unmerged: true,
        reaping: false,
        logged: false,
        clean: false,
    };
    const WRITE: Demand = Demand { entries: 8, ranges: 0, blocks: 8, reserved: false };

    #[test]
    fn writes_are_admitted_by_space_and_segments() {
        let decide = |supply: Supply, demand: Demand| admit(&SIZES, &supply, &demand, 0);
        assert_eq!(decide(SUPPLY, WRITE), Admission::Now);
        let crowded = Supply { entries: 95, ..SUPPLY };
        assert_eq!(decide(crowded, WRITE), Admission::AfterCheckpoint);
        let full = Supply { live: 890, ..SUPPLY };
        assert_eq!(decide(full, WRITE), Admission::AfterCheckpoint);
        assert_eq!(admit(&SIZES, &full, &WRITE, MERGES_WAITED), Admission::Full);
        let reaping = Supply { reaping: true, ..full };
        assert_eq!(admit(&SIZES, &reaping, &WRITE, 1000), Admission::AfterCheckpoint);
        let full = Supply { unmerged: false, ..full };
        assert_eq!(decide(full, WRITE), Admission::Full);
        assert_eq!(decide(full, Demand { reserved: true, ..WRITE }), Admission::Now);
        assert_eq!(decide(full, Demand { blocks: 0, ..WRITE }), Admission::Now);
        let dirty = Supply { free: 4, ..SUPPLY };
        assert_eq!(decide(dirty, WRITE), Admission::AfterCleaning);
        assert_eq!(admit(&SIZES, &dirty, &WRITE, PASSES_WAITED), Admission::Full);
        assert_eq!(decide(dirty, Demand { blocks: 0, ..WRITE }), Admission::Now);
        let zeroes = Demand { blocks: 0, ..WRITE };
        let low = Supply { free: 3, ..SUPPLY };
        assert_eq!(admit(&SIZES, &low, &zeroes, 1000), Admission::AfterCleaning);
        let low = Supply { clean: true, ..low };
        assert_eq!(admit(&SIZES, &low, &zeroes, 1000), Admission::AfterCheckpoint);
        assert_eq!(decide(Supply { unmerged: false, ..low }, zeroes), Admission::Now);
        assert_eq!(decide(Supply { clean: true, ..dirty }, WRITE), Admission::AfterCheckpoint);
        let stuck = Supply { clean: true, unmerged: false, ..dirty };
        assert_eq!(decide(stuck, WRITE), Admission::Full);
        let logged = Supply { logged: true, ..stuck };
        assert_eq!(decide(logged, WRITE), Admission::AfterCheckpoint);
    }

    #[test]
    fn dead_parts_of_units_leave_reserved_space() {
        let decide = |supply: Supply, reserved| {
            admit(&SIZES, &supply, &Demand { reserved, ..WRITE }, PASSES_WAITED - 1)
        };
        let holding = Supply { held: 400, free: 16, ..SUPPLY };
        assert_eq!(decide(holding, false), Admission::AfterCleaning, "168 blocks for 174");
        assert_eq!(decide(Supply { clean: true, ..holding }, false), Admission::Full);
        assert_eq!(decide(holding, true), Admission::Now, "it is for them");
        assert_eq!(decide(Supply { free: 17, ..holding }, false), Admission::Now);
        assert_eq!(decide(Supply { held: 382, ..holding }, false), Admission::Now);
        let written = Supply { reserved: 0, live: 600, free: 9, ..holding };
        assert_eq!(decide(written, false), Admission::AfterCleaning, "70 blocks of slack and 8");
        assert_eq!(decide(Supply { has_thick: false, ..written }, false), Admission::Now);
    }

    #[test]
    fn orders_leave_room_for_a_checkpoint() {
        let decide =
            |free, clean, kind| admit_order(&SIZES, &Supply { free, clean, ..SUPPLY }, kind, 0);
        assert_eq!(decide(4, false, OrderKind::Other), Admission::Now);
        assert_eq!(decide(3, false, OrderKind::Other), Admission::AfterCleaning);
        assert_eq!(decide(3, true, OrderKind::Other), Admission::AfterCheckpoint);
        assert_eq!(decide(3, false, OrderKind::Deletion), Admission::Now);
        assert_eq!(decide(2, false, OrderKind::Deletion), Admission::AfterCleaning);
        assert_eq!(decide(2, true, OrderKind::Deletion), Admission::Now);
        let other = |supply: Supply, waited| {
            let supply = Supply { free: 3, clean: true, unmerged: false, ..supply };
            admit_order(&SIZES, &supply, OrderKind::Other, waited)
        };
        assert_eq!(other(SUPPLY, 0), Admission::Full);
        let logged = Supply { logged: true, ..SUPPLY };
        assert_eq!(other(logged, 0), Admission::AfterCheckpoint, "it frees the log");
        assert_eq!(other(logged, MERGES_WAITED), Admission::Full);
    }
}
