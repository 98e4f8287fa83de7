//! Space: what a pool can hold, and whether a write may begin. Pure.

use crate::limits::{
    BLOCK_BYTES, CHUNK_PAYLOAD_BLOCKS, MERGES_WAITED, PASSES_WAITED, RECENT_MAX,
    RESERVED_PASSES_WAITED, VOLUME_TABLE_BYTES_MAX,
};
use crate::log::position::BEGINNING_SEGMENTS;
use crate::ondisk::layout::Layout;

/// Entries of [`crate::limits`] that one block of the usage table has.
pub(crate) const USAGE_PER_BLOCK: usize = BLOCK_BYTES / 4;

/// Sizes that follow from the layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Recent changes between two checkpoints.
    pub(crate) recent: usize,
    /// Copies of the cleaner between two checkpoints beside these, as far as memory is bounded.
    pub(crate) copies: usize,
    /// Map pages that one checkpoint copies for the cleaner.
    pub(crate) moving: usize,
    /// Segments that only checkpoints, deletions and the cleaner may take.
    pub(crate) reserve: usize,
    /// Blocks that volumes and their maps may have.
    pub(crate) capacity: u64,
    /// Payload of a segment of full chunks, in blocks.
    pub(crate) payload: u64,
    /// Longest volume table, in bytes.
    pub(crate) volume_table: usize,
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
    /// the second, at half of the density, because pages of many small maps have a chunk each. For
    /// the recent changes alone that is 6.5 blocks each, so it also holds one checkpoint of changes
    /// so sparse that each has a page on all six levels. The log has the segment that it writes to
    /// and the following one. Headers of chunks take a part of the rest, and a sixteenth is slack
    /// for the cleaner.
    pub(crate) fn of(layout: &Layout) -> Sizes {
        Sizes::with(layout, layout.usable_segments(), RECENT_MAX as u64)
    }

    /// Sizes with other usable segments, because devices were added or are evacuated. The tables of
    /// recent changes stay as large as they are.
    pub(crate) fn within(&self, layout: &Layout, segments: u32) -> Sizes {
        Sizes::with(layout, segments, self.recent as u64)
    }

    /// Free segments that writes of reserved blocks leave: a part of the reserve is for them. They
    /// may overwrite blocks while other volumes take all the rest, and what dies of theirs lets the
    /// cleaner gain then.
    pub(crate) fn reserved_floor(&self) -> usize {
        self.reserve * 3 / 4
    }

    /// Free segments that orders and writes of zeroes leave for a checkpoint, which needs half of
    /// the reserve. Below what writes of reserved blocks leave, so that these cannot keep the
    /// others out.
    pub(crate) fn order_floor(&self) -> usize {
        (self.reserve * 5 / 8).min(self.reserved_floor().saturating_sub(1)).max(self.reserve / 2)
    }

    /// Entries of the table of recent changes.
    pub(crate) fn table(&self) -> usize {
        self.recent + self.copies
    }

    fn with(layout: &Layout, segments: u32, recent_max: u64) -> Sizes {
        let segment_blocks = u64::from(layout.segment_blocks());
        let blocks = u64::from(segments) * segment_blocks;
        let recent = (blocks / 32).clamp(32, recent_max);
        let usage = u64::from(layout.segments()).div_ceil(USAGE_PER_BLOCK as u64);
        // A block of a few snapshots of a small pool has as many pages.
        let moving = (recent / 4).max(32);
        // A deleted volume moves all that follow it in the volume table, so a checkpoint may write
        // all.
        let volume_table = (blocks / 64).min((VOLUME_TABLE_BYTES_MAX / BLOCK_BYTES) as u64);
        let checkpoint = recent + recent / 2 + recent / 8 + moving + volume_table + 2 * usage + 8;
        let reserve = 4 + (2 * checkpoint).div_ceil(segment_blocks / 2);
        let reserve = reserve.min(u64::from(segments) / 4);
        let log = BEGINNING_SEGMENTS as u64;
        let rest = (u64::from(segments) - reserve - log) * segment_blocks;
        let chunk = chunk_blocks(layout);
        let payload = rest / (chunk + 1) * chunk;
        Sizes {
            recent: recent as usize,
            copies: (2 * recent).min(RECENT_MAX as u64 - recent) as usize,
            moving: moving as usize,
            reserve: reserve as usize,
            capacity: payload - payload / 16,
            payload: segment_blocks / (chunk + 1) * chunk,
            volume_table: volume_table as usize * BLOCK_BYTES,
            // A checkpoint ends when the tail that it found is written out; the changes that hosts
            // make meanwhile fit the next table.
            tail: (recent / 2).max(4 * u64::from(layout.segment_blocks())),
        }
    }
}

/// What decides whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteCost {
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
pub(crate) struct SpaceState {
    /// Live blocks of the maps, their pages included.
    pub(crate) live: u64,
    /// Blocks reserved for thick volumes beyond what they have.
    pub(crate) reserved: u64,
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
    /// The cleaner found nothing to free since the last checkpoint.
    pub(crate) nothing_to_clean: bool,
    /// The cleaner found no segment since the last checkpoint whose cleaning frees anything.
    pub(crate) cleaner_gains_nothing: bool,
}

impl SpaceState {
    /// Blocks in use or reserved; overwritten and deleted ones count until a checkpoint
    /// finds them.
    pub(crate) fn used(&self) -> u64 {
        self.live + self.reserved + self.entries as u64
    }

    /// Free segments that are left for checkpoints, the cleaner, what is reserved, and `more`
    /// reserved blocks. What is reserved must not depend on the cleaner: at the density of a full
    /// pool it may gain little.
    pub(crate) fn left_free(&self, sizes: &Sizes, more: u64) -> usize {
        let segments = self.reserved.saturating_add(more).div_ceil(sizes.payload);
        sizes.reserve.saturating_add(usize::try_from(segments).unwrap_or(usize::MAX))
    }

    /// True if so many more blocks can be reserved, as far as free segments are concerned.
    pub(crate) fn is_backed(&self, sizes: &Sizes, more: u64) -> bool {
        self.free > self.left_free(sizes, more)
    }

    /// Whether less may be in use after the next checkpoint. Others may change blocks all the time,
    /// so the changes that were recent at first are merged after some.
    pub(crate) fn may_shrink(&self, checkpoints_waited: u64) -> bool {
        self.reaping || self.unmerged && checkpoints_waited < MERGES_WAITED
    }
}

/// Whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceDecision {
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
pub(crate) fn admit(
    sizes: &Sizes,
    supply: &SpaceState,
    demand: &WriteCost,
    waited: u64,
) -> SpaceDecision {
    let entries = supply.entries + demand.entries;
    let ranges = supply.ranges + demand.ranges;
    if supply.entries > 0 && entries > sizes.recent
        || supply.ranges > 0 && ranges > crate::limits::RANGES_MAX
    {
        return SpaceDecision::AfterCheckpoint;
    }
    if demand.blocks > 0 && !demand.reserved && supply.used() + demand.blocks > sizes.capacity {
        return match supply.may_shrink(waited) {
            true => SpaceDecision::AfterCheckpoint,
            false => SpaceDecision::Full,
        };
    }
    // Zeroes free space, so they may use a part of the reserve. Their chunks take segments until a
    // checkpoint. Below the floor, one write of zeroes is admitted after each checkpoint, even if
    // that freed nothing, so that a full pool can be emptied.
    if demand.blocks == 0 && supply.free <= sizes.order_floor() && supply.unmerged {
        return match supply.nothing_to_clean {
            false => SpaceDecision::AfterCleaning,
            true => SpaceDecision::AfterCheckpoint,
        };
    }
    // Others are refused when the cleaner gains nothing for a while. Reserved blocks are not.
    let (floor, passes, is_over) = match demand.reserved {
        true => (sizes.reserved_floor(), RESERVED_PASSES_WAITED, supply.cleaner_gains_nothing),
        false => (supply.left_free(sizes, 0), PASSES_WAITED, supply.nothing_to_clean),
    };
    if demand.blocks > 0 && supply.free <= floor {
        return match is_over {
            _ if waited >= passes => SpaceDecision::Full,
            false => SpaceDecision::AfterCleaning,
            true if supply.may_shrink(waited) => SpaceDecision::AfterCheckpoint,
            true => SpaceDecision::Full,
        };
    }
    SpaceDecision::Now
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
    supply: &SpaceState,
    kind: OrderKind,
    waited: u64,
) -> SpaceDecision {
    // A checkpoint needs half of the reserve.
    let floor = match kind {
        OrderKind::Deletion => sizes.reserve / 2,
        OrderKind::Other => sizes.order_floor(),
    };
    match (supply.free > floor, supply.nothing_to_clean || waited >= PASSES_WAITED, kind) {
        (true, _, _) => SpaceDecision::Now,
        (false, false, _) => SpaceDecision::AfterCleaning,
        // The checkpoint after it frees its block again.
        (false, true, OrderKind::Deletion) => SpaceDecision::Now,
        (false, true, OrderKind::Other) => SpaceDecision::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        recent: 100,
        copies: 50,
        moving: 25,
        reserve: 4,
        capacity: 1000,
        payload: 14,
        volume_table: 4096,
        tail: 64,
    };
    const SUPPLY: SpaceState = SpaceState {
        live: 500,
        reserved: 100,
        entries: 10,
        ranges: 0,
        free: 20,
        unmerged: true,
        reaping: false,
        nothing_to_clean: false,
        cleaner_gains_nothing: false,
    };
    const WRITE: WriteCost = WriteCost { entries: 8, ranges: 0, blocks: 8, reserved: false };

    #[test]
    fn writes_are_admitted_by_space_and_segments() {
        let decide = |supply: SpaceState, demand: WriteCost| admit(&SIZES, &supply, &demand, 0);
        assert_eq!(decide(SUPPLY, WRITE), SpaceDecision::Now);
        let crowded = SpaceState { entries: 95, ..SUPPLY };
        assert_eq!(decide(crowded, WRITE), SpaceDecision::AfterCheckpoint);
        let full = SpaceState { live: 890, ..SUPPLY };
        assert_eq!(decide(full, WRITE), SpaceDecision::AfterCheckpoint);
        assert_eq!(admit(&SIZES, &full, &WRITE, MERGES_WAITED), SpaceDecision::Full);
        let reaping = SpaceState { reaping: true, ..full };
        assert_eq!(admit(&SIZES, &reaping, &WRITE, 1000), SpaceDecision::AfterCheckpoint);
        let full = SpaceState { unmerged: false, ..full };
        assert_eq!(decide(full, WRITE), SpaceDecision::Full);
        assert_eq!(decide(full, WriteCost { reserved: true, ..WRITE }), SpaceDecision::Now);
        assert_eq!(decide(full, WriteCost { blocks: 0, ..WRITE }), SpaceDecision::Now);
        let dirty = SpaceState { free: 4, ..SUPPLY };
        assert_eq!(decide(dirty, WRITE), SpaceDecision::AfterCleaning);
        assert_eq!(admit(&SIZES, &dirty, &WRITE, PASSES_WAITED), SpaceDecision::Full);
        assert_eq!(decide(dirty, WriteCost { blocks: 0, ..WRITE }), SpaceDecision::Now);
        let zeroes = WriteCost { blocks: 0, ..WRITE };
        let low = SpaceState { free: SIZES.order_floor(), ..SUPPLY };
        assert_eq!(admit(&SIZES, &low, &zeroes, 1000), SpaceDecision::AfterCleaning);
        let low = SpaceState { clean: true, ..low };
        assert_eq!(admit(&SIZES, &low, &zeroes, 1000), SpaceDecision::AfterCheckpoint);
        assert_eq!(decide(SpaceState { unmerged: false, ..low }, zeroes), SpaceDecision::Now);
        assert_eq!(
            decide(SpaceState { clean: true, ..dirty }, WRITE),
            SpaceDecision::AfterCheckpoint
        );
        let stuck = SpaceState { clean: true, unmerged: false, ..dirty };
        assert_eq!(decide(stuck, WRITE), SpaceDecision::Full);
    }
    #[test]
    fn free_segments_back_what_is_reserved() {
        let decide = |supply: SpaceState, demand: WriteCost| admit(&SIZES, &supply, &demand, 0);
        let reserved = WriteCost { reserved: true, ..WRITE };
        // A hundred blocks take eight segments of 14, beside the reserve of four.
        let low = SpaceState { free: 12, ..SUPPLY };
        assert_eq!(decide(low, WRITE), SpaceDecision::AfterCleaning);
        assert_eq!(
            decide(SpaceState { clean: true, unmerged: false, ..low }, WRITE),
            SpaceDecision::Full
        );
        assert_eq!(decide(SpaceState { free: 13, ..SUPPLY }, WRITE), SpaceDecision::Now);
        assert_eq!(decide(low, reserved), SpaceDecision::Now);
        let is_backed = |free, more| SpaceState { free, ..SUPPLY }.is_backed(&SIZES, more);
        assert!(is_backed(13, 12) && !is_backed(13, 13) && is_backed(14, 13));
        // The volume overwrites, and others have taken the rest.
        let written = SpaceState { reserved: 0, clean: true, unmerged: false, ..SUPPLY };
        assert_eq!(decide(SpaceState { free: 4, ..written }, reserved), SpaceDecision::Now);
        let lowest = SpaceState { free: 3, ..written };
        assert_eq!(
            decide(lowest, reserved),
            SpaceDecision::AfterCleaning,
            "it gained nothing before"
        );
        assert_eq!(admit(&SIZES, &lowest, &reserved, PASSES_WAITED), SpaceDecision::AfterCleaning);
        assert_eq!(admit(&SIZES, &lowest, &reserved, RESERVED_PASSES_WAITED), SpaceDecision::Full);
        assert_eq!(decide(SpaceState { spent: true, ..lowest }, reserved), SpaceDecision::Full);
        let unmerged = SpaceState { spent: true, unmerged: true, ..lowest };
        assert_eq!(decide(unmerged, reserved), SpaceDecision::AfterCheckpoint);
    }

    /// A full pool whose thick volumes have been overwritten took no orders any more, and discards
    /// only after a checkpoint each.
    #[test]
    fn thick_writes_leave_room_for_orders_and_discards() {
        for reserve in 4..1000 {
            let sizes = Sizes { reserve, ..SIZES };
            let supply = SpaceState { free: sizes.reserved_floor(), clean: true, ..SUPPLY };
            assert_eq!(admit_order(&sizes, &supply, OrderKind::Other, 0), SpaceDecision::Now);
            let zeroes = WriteCost { entries: 0, ranges: 1, blocks: 0, reserved: false };
            assert_eq!(admit(&sizes, &supply, &zeroes, 0), SpaceDecision::Now, "{reserve}");
            assert!(sizes.order_floor() >= reserve / 2, "a checkpoint has room");
        }
    }

    #[test]
    fn orders_leave_room_for_a_checkpoint() {
        let sizes = Sizes { reserve: 8, ..SIZES };
        let decide =
            |free, clean, kind| admit_order(&sizes, &SpaceState { free, clean, ..SUPPLY }, kind, 0);
        assert_eq!(decide(6, false, OrderKind::Other), SpaceDecision::Now);
        assert_eq!(decide(5, false, OrderKind::Other), SpaceDecision::AfterCleaning);
        assert_eq!(decide(5, true, OrderKind::Other), SpaceDecision::Full);
        assert_eq!(decide(5, false, OrderKind::Deletion), SpaceDecision::Now);
        assert_eq!(decide(4, false, OrderKind::Deletion), SpaceDecision::AfterCleaning);
        assert_eq!(decide(4, true, OrderKind::Deletion), SpaceDecision::Now);
    }
}
