//! Space: capacity of a pool, and admission of writes. Pure.

use crate::limits::{
    BLOCK_BYTES, CHUNK_PAYLOAD_BLOCKS, EVACUATION_STEPS, FRUITLESS_PASSES, MERGES_WAITED,
    PASSES_WAITED, RANGES_MAX, RECENT_MAX, UNIT_BLOCKS, VOLUME_TABLE_BYTES_MAX, ZEROED_LEAVES_MAX,
};
use crate::log::position::BEGINNING_SEGMENTS;
use crate::ondisk::layout::PoolLayout;

/// Segments counted in one block of the usage table.
pub(crate) const USAGE_PER_BLOCK: usize = BLOCK_BYTES / 4;

/// Sizes derived from the layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Most recent changes between two checkpoints.
    pub(crate) recent: usize,
    /// Blocks that the cleaner may copy between two checkpoints beyond `recent`, as memory allows.
    pub(crate) copies: usize,
    /// Map pages that one checkpoint copies for the cleaner.
    pub(crate) moving: usize,
    /// Segments that only checkpoints, deletions and the cleaner may take.
    pub(crate) reserve: usize,
    /// Most blocks of volumes and their maps.
    pub(crate) capacity: u64,
    /// Payload blocks of a segment that is filled with the largest chunks.
    pub(crate) payload: u64,
    /// Longest volume table, in bytes.
    pub(crate) volume_table: usize,
    /// Limit of the tail of a log device, in blocks and in recent changes. Hosts are slowed down
    /// near it.
    pub(crate) tail: u64,
}

/// Most payload blocks of a chunk. Chunks of this size fill segments exactly.
pub(crate) fn chunk_blocks(segment_blocks: u32) -> u64 {
    let segment = u64::from(segment_blocks);
    (CHUNK_PAYLOAD_BLOCKS as u64).min((segment / 8).max(8) - 1)
}

/// True if a pool with such segments may have compressed units. They would leave too much of short
/// chunks empty for the capacity.
pub(crate) fn has_units(segment_blocks: u32) -> bool {
    chunk_blocks(segment_blocks) > UNIT_BLOCKS as u64
}

/// Most copies of the cleaner in addition to `recent` changes. In a small pool, they are those of a
/// segment of units of one stored block each.
fn copies(recent: u64, segment_blocks: u64) -> u64 {
    (2 * recent).max(UNIT_BLOCKS as u64 * segment_blocks).min(RECENT_MAX as u64 - recent)
}

impl Sizes {
    /// Sizes of a pool:
    /// - One checkpoint writes at most one leaf per recent change, the levels above it, and the
    ///   metadata. Before it, the cleaner copies half as many blocks, and chooses a quarter as many
    ///   pages.
    /// - The reserve has room for two of these, because the space of the first is free only after
    ///   the second; and this twice, because the chunks of many small maps have one page each. That
    ///   is 6.5 blocks per recent change, so it also covers one checkpoint of changes so sparse
    ///   that each rewrites a page on all six levels.
    /// - The log holds its present segment and the following one.
    /// - The rest is for volumes, minus the headers of chunks, and a sixteenth as slack for the
    ///   cleaner.
    pub(crate) fn of(layout: &PoolLayout) -> Sizes {
        Sizes::with(layout, layout.usable_segments())
    }

    /// Sizes with other usable segments, after devices were added or while one is evacuated. They
    /// are those of the next opening, which must have room for every accepted reservation. Only the
    /// tables of recent changes keep their size.
    pub(crate) fn within(&self, layout: &PoolLayout, segments: u32) -> Sizes {
        let opened = Sizes::with(layout, segments);
        let recent = opened.recent.min(self.recent);
        let copies = copies(recent as u64, layout.segment_blocks().into()) as usize;
        Sizes { recent, copies, ..opened }
    }

    /// Segments that writes of reserved blocks leave free: they may use a part of the reserve. If
    /// other volumes fill the rest, the overwritten blocks give the cleaner something to free.
    pub(crate) fn reserved_floor(&self) -> usize {
        self.reserve * 3 / 4
    }

    /// Segments that orders and writes of zeroes leave free for a checkpoint, which needs half of
    /// the reserve. Lower than [`Sizes::reserved_floor`], so that writes of reserved blocks cannot
    /// starve them.
    pub(crate) fn order_floor(&self) -> usize {
        (self.reserve * 5 / 8).min(self.reserved_floor().saturating_sub(1)).max(self.reserve / 2)
    }

    /// Entries in a table of recent changes.
    pub(crate) fn table(&self) -> usize {
        self.recent + self.copies
    }

    fn with(layout: &PoolLayout, segments: u32) -> Sizes {
        let segment_blocks = u64::from(layout.segment_blocks());
        let blocks = u64::from(segments) * segment_blocks;
        let recent = (blocks / 32).clamp(32, RECENT_MAX as u64);
        let usage = u64::from(layout.segments()).div_ceil(USAGE_PER_BLOCK as u64);
        // In a small pool, one block shared by a few snapshots already has this many pages.
        let moving = (recent / 4).max(32);
        // Deleting a volume moves all later ones in the volume table, so a checkpoint may rewrite
        // the whole volume table.
        let volume_table = (blocks / 64).min((VOLUME_TABLE_BYTES_MAX / BLOCK_BYTES) as u64);
        let checkpoint = recent + recent / 2 + recent / 8 + moving + volume_table + 4 * usage + 10;
        let reserve = 4 + (2 * checkpoint).div_ceil(segment_blocks / 2);
        let reserve = reserve.min(u64::from(segments) / 4);
        let log = BEGINNING_SEGMENTS as u64;
        let rest = (u64::from(segments) - reserve - log) * segment_blocks;
        let chunk = chunk_blocks(layout.segment_blocks());
        let payload = rest / (chunk + 1) * chunk;
        Sizes {
            recent: recent as usize,
            copies: copies(recent, segment_blocks) as usize,
            moving: moving as usize,
            reserve: reserve as usize,
            capacity: payload - payload / 16,
            payload: segment_blocks / (chunk + 1) * chunk,
            volume_table: volume_table as usize * BLOCK_BYTES,
            // A checkpoint waits until the tail at its start is written out. Changes that hosts
            // make meanwhile must fit the next table.
            tail: (recent / 2).max(4 * u64::from(layout.segment_blocks())),
        }
    }
}

/// Space that a write needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteCost {
    /// New entries in the table of recent changes.
    pub(crate) entries: usize,
    /// New ranges of zeroes.
    pub(crate) ranges: usize,
    /// Map leaves in these ranges, as of the last checkpoint.
    pub(crate) leaves: u64,
    /// Data blocks.
    pub(crate) blocks: u64,
    /// True if the space is reserved: for a thick volume or an order.
    pub(crate) reserved: bool,
}

/// State of the space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceState {
    /// Live blocks of the maps, including map pages.
    pub(crate) live: u64,
    /// Blocks reserved for thick volumes that they have not written yet.
    pub(crate) reserved: u64,
    /// Blocks that dead blocks of compressed units hold besides `live`, at most. Packing the live
    /// ones frees them.
    pub(crate) held: u64,
    /// Recent changes, including admitted ones.
    pub(crate) entries: usize,
    /// Recent ranges, including admitted ones.
    pub(crate) ranges: usize,
    /// Map leaves in ranges admitted since changes were sealed.
    pub(crate) leaves: u64,
    /// Free segments.
    pub(crate) free: usize,
    /// Segments of the log since the last checkpoint.
    pub(crate) log: usize,
    /// True if there are recent changes: a checkpoint may find dead blocks.
    pub(crate) unmerged: bool,
    /// True while deleted volumes or snapshots still have blocks.
    pub(crate) reaping: bool,
    /// True if cleaning has gained nothing since the last checkpoint.
    pub(crate) nothing_to_clean: bool,
    /// True if no segment was worth cleaning since the last checkpoint.
    pub(crate) cleaner_gains_nothing: bool,
}

impl SpaceState {
    /// Blocks in use or reserved. Overwritten and deleted blocks count until a checkpoint frees
    /// them.
    pub(crate) fn used(&self) -> u64 {
        self.live + self.reserved + self.entries as u64
    }

    /// The same, with what dead blocks of compressed units may hold.
    pub(crate) fn needed(&self) -> u64 {
        self.used().saturating_add(self.held)
    }

    /// Free segments left for checkpoints, the cleaner, reserved blocks, and `more` of these.
    /// Reserved blocks must not depend on the cleaner, which may gain little at the density of a
    /// full pool.
    pub(crate) fn left_free(&self, sizes: &Sizes, more: u64) -> usize {
        let segments = self.reserved.saturating_add(more).div_ceil(sizes.payload);
        sizes.reserve.saturating_add(usize::try_from(segments).unwrap_or(usize::MAX))
    }

    /// Free segments that an evacuation leaves: half of the reserve for a checkpoint, and those
    /// that back reservations.
    pub(crate) fn kept_by_evacuation(&self, sizes: &Sizes) -> usize {
        self.left_free(sizes, 0) - sizes.reserve.div_ceil(2)
    }

    /// Additional blocks that free segments back.
    pub(crate) fn left_backed(&self, sizes: &Sizes) -> u64 {
        let segments = self.free.saturating_sub(sizes.reserve + 1) as u64;
        (segments * sizes.payload).saturating_sub(self.reserved)
    }

    /// True if free segments back `more` additional reserved blocks.
    pub(crate) fn is_backed(&self, sizes: &Sizes, more: u64) -> bool {
        self.free > self.left_free(sizes, more)
    }

    /// True if the next checkpoint may reduce the blocks in use. Hosts keep adding recent changes,
    /// so changes from before the wait are merged after [`MERGES_WAITED`] checkpoints.
    pub(crate) fn may_shrink(&self, checkpoints_waited: u64) -> bool {
        self.reaping || self.unmerged && checkpoints_waited < MERGES_WAITED
    }
}

/// Decision about a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceDecision {
    /// Now.
    Now,
    /// It waits for a checkpoint.
    AfterCheckpoint,
    /// It waits for the cleaner to free segments.
    AfterCleaning,
    /// It waits for the cleaner to pack compressed units of which blocks are dead.
    AfterPacking,
    /// It fails: the pool is full.
    Full,
}

/// Work of the maintenance task since a change began to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitedWork {
    /// Checkpoints, also those that free nothing: of discards or a deletion.
    pub(crate) checkpoints: u64,
    /// Passes of the cleaner.
    pub(crate) passes: u64,
}

/// Decides about a write that has waited for `waited`.
pub(crate) fn admit(
    sizes: &Sizes,
    supply: &SpaceState,
    demand: &WriteCost,
    waited: WaitedWork,
) -> SpaceDecision {
    let entries = supply.entries + demand.entries;
    let ranges = supply.ranges + demand.ranges;
    if supply.entries > 0 && entries > sizes.recent
        || supply.ranges > 0 && ranges > RANGES_MAX
        || demand.leaves > 0 && supply.leaves >= ZEROED_LEAVES_MAX
    {
        return SpaceDecision::AfterCheckpoint;
    }
    if demand.blocks > 0 && !demand.reserved && supply.used() + demand.blocks > sizes.capacity {
        return match supply.may_shrink(waited.checkpoints) {
            true => SpaceDecision::AfterCheckpoint,
            false => SpaceDecision::Full,
        };
    }
    // What dead blocks of units hold would be missing when reserved blocks are written.
    if demand.blocks > 0 && !demand.reserved && supply.needed() + demand.blocks > sizes.capacity {
        return match supply.nothing_to_clean || waited.passes >= PASSES_WAITED {
            false => SpaceDecision::AfterPacking,
            true if supply.may_shrink(waited.checkpoints) => SpaceDecision::AfterCheckpoint,
            true => SpaceDecision::Full,
        };
    }
    // Zeroes free space, so they may use a part of the reserve. Their chunks occupy segments until
    // a checkpoint. Below the floor, one write of zeroes is admitted after each checkpoint, even
    // one that freed nothing, so that a full pool can be emptied.
    if demand.blocks == 0 && supply.free <= sizes.order_floor() && supply.unmerged {
        return match supply.nothing_to_clean {
            false => SpaceDecision::AfterCleaning,
            true => SpaceDecision::AfterCheckpoint,
        };
    }
    // Until a checkpoint, zeroes may take some of the free segments that back reservations: as many
    // as orders may take of the reserve.
    let lent = sizes.reserve - sizes.order_floor();
    if demand.blocks == 0 && supply.unmerged {
        let is_low = supply.free <= supply.left_free(sizes, 0) - lent;
        if is_low && supply.log > lent.max(BEGINNING_SEGMENTS) && waited.checkpoints < MERGES_WAITED
        {
            return SpaceDecision::AfterCheckpoint;
        }
    }
    // A write gives up when the cleaner has gained nothing for a while. A write to reserved space
    // counts only passes that began after it, because earlier ones had other blocks to clean. Gains
    // are not counted during an evacuation, which the write may wait for.
    let was_fruitless = supply.nothing_to_clean && waited.passes >= FRUITLESS_PASSES.into();
    let is_long = waited.passes >= EVACUATION_STEPS.into();
    let (floor, is_over) = match demand.reserved {
        true => (sizes.reserved_floor(), supply.cleaner_gains_nothing || was_fruitless || is_long),
        false => {
            (supply.left_free(sizes, 0), supply.nothing_to_clean || waited.passes >= PASSES_WAITED)
        }
    };
    if demand.blocks > 0 && supply.free <= floor {
        return match is_over {
            false => SpaceDecision::AfterCleaning,
            _ if waited.passes >= PASSES_WAITED => SpaceDecision::Full,
            true if supply.may_shrink(waited.checkpoints) => SpaceDecision::AfterCheckpoint,
            true => SpaceDecision::Full,
        };
    }
    SpaceDecision::Now
}

/// Effect of an order on the space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    /// It frees space, at the latest after the next checkpoint.
    Deletion,
    /// It does not free space.
    Other,
}

/// Decides about an order. Its chunk takes one block of the log, and no entry of the recent
/// changes, which otherwise limit the chunks until the next checkpoint.
pub(crate) fn admit_order(
    sizes: &Sizes,
    supply: &SpaceState,
    kind: OrderKind,
    waited: WaitedWork,
) -> SpaceDecision {
    // A checkpoint needs half of the reserve.
    let floor = match kind {
        OrderKind::Deletion => sizes.reserve / 2,
        OrderKind::Other => sizes.order_floor(),
    };
    let is_over = supply.nothing_to_clean || waited.passes >= PASSES_WAITED;
    match (supply.free > floor, is_over, kind) {
        (true, _, _) => SpaceDecision::Now,
        (false, false, _) => SpaceDecision::AfterCleaning,
        // The next checkpoint frees the block of the order.
        (false, true, OrderKind::Deletion) => SpaceDecision::Now,
        (false, true, OrderKind::Other) => SpaceDecision::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PoolId;
    use crate::ondisk::superblock::DeviceRecord;

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
        held: 0,
        entries: 10,
        ranges: 0,
        leaves: 0,
        free: 20,
        log: 2,
        unmerged: true,
        reaping: false,
        nothing_to_clean: false,
        cleaner_gains_nothing: false,
    };
    /// Each checkpoint was one of a pass of the cleaner.
    fn after(passes: u64) -> WaitedWork {
        WaitedWork { checkpoints: passes, passes }
    }

    const WRITE: WriteCost =
        WriteCost { entries: 8, ranges: 0, leaves: 0, blocks: 8, reserved: false };

    /// A grown pool kept the reserve of its former size until it was opened again. Then the reserve
    /// took space that reservations had got meanwhile.
    #[test]
    fn changed_pool_has_the_space_of_its_next_opening() {
        let device = |segments: u32| DeviceRecord {
            id: PoolId::default(),
            size_bytes: u64::from(segments + 1) * (8 << 20),
            segments,
        };
        for (first, second) in [(64, 64), (1024, 3072), (1024, 20_000), (20_000, 1024)] {
            let layout = PoolLayout::new(2048, &[device(first)]).unwrap();
            let before = Sizes::of(&layout);
            layout.push(&device(second)).unwrap();
            let (grown, opened) = (before.within(&layout, first + second), Sizes::of(&layout));
            assert_eq!(Sizes { recent: opened.recent, copies: opened.copies, ..grown }, opened);
            assert!(grown.table() <= before.table());
            layout.remove(0);
            let (removed, opened) = (opened.within(&layout, second), Sizes::of(&layout));
            assert_eq!(removed, opened, "{first} {second}");
        }
    }

    #[test]
    fn writes_are_admitted_by_space_and_segments() {
        let decide =
            |supply: SpaceState, demand: WriteCost| admit(&SIZES, &supply, &demand, after(0));
        assert_eq!(decide(SUPPLY, WRITE), SpaceDecision::Now);
        let crowded = SpaceState { entries: 95, ..SUPPLY };
        assert_eq!(decide(crowded, WRITE), SpaceDecision::AfterCheckpoint);
        let full = SpaceState { live: 890, ..SUPPLY };
        assert_eq!(decide(full, WRITE), SpaceDecision::AfterCheckpoint);
        assert_eq!(admit(&SIZES, &full, &WRITE, after(MERGES_WAITED)), SpaceDecision::Full);
        let reaping = SpaceState { reaping: true, ..full };
        assert_eq!(admit(&SIZES, &reaping, &WRITE, after(1000)), SpaceDecision::AfterCheckpoint);
        let full = SpaceState { unmerged: false, ..full };
        assert_eq!(decide(full, WRITE), SpaceDecision::Full);
        assert_eq!(decide(full, WriteCost { reserved: true, ..WRITE }), SpaceDecision::Now);
        assert_eq!(decide(full, WriteCost { blocks: 0, ..WRITE }), SpaceDecision::Now);
        let merging = SpaceState { leaves: ZEROED_LEAVES_MAX, ..SUPPLY };
        let discard = WriteCost { entries: 0, ranges: 1, leaves: 1, blocks: 0, reserved: true };
        assert_eq!(decide(merging, discard), SpaceDecision::AfterCheckpoint);
        assert_eq!(decide(merging, WriteCost { leaves: 0, ..discard }), SpaceDecision::Now);
        assert_eq!(decide(merging, WRITE), SpaceDecision::Now);
        let merging = SpaceState { leaves: ZEROED_LEAVES_MAX - 1, ..SUPPLY };
        assert_eq!(decide(merging, WriteCost { leaves: 1024, ..discard }), SpaceDecision::Now);
        let dirty = SpaceState { free: 4, ..SUPPLY };
        assert_eq!(decide(dirty, WRITE), SpaceDecision::AfterCleaning);
        assert_eq!(admit(&SIZES, &dirty, &WRITE, after(PASSES_WAITED)), SpaceDecision::Full);
        assert_eq!(decide(dirty, WriteCost { blocks: 0, ..WRITE }), SpaceDecision::Now);
        let zeroes = WriteCost { blocks: 0, ..WRITE };
        let low = SpaceState { free: SIZES.order_floor(), ..SUPPLY };
        assert_eq!(admit(&SIZES, &low, &zeroes, after(1000)), SpaceDecision::AfterCleaning);
        let low = SpaceState { nothing_to_clean: true, ..low };
        assert_eq!(admit(&SIZES, &low, &zeroes, after(1000)), SpaceDecision::AfterCheckpoint);
        assert_eq!(decide(SpaceState { unmerged: false, ..low }, zeroes), SpaceDecision::Now);
        assert_eq!(
            decide(SpaceState { nothing_to_clean: true, ..dirty }, WRITE),
            SpaceDecision::AfterCheckpoint
        );
        let discards = WaitedWork { checkpoints: 1000, passes: 1 };
        assert_eq!(admit(&SIZES, &dirty, &WRITE, discards), SpaceDecision::AfterCleaning);
        let stuck = SpaceState { nothing_to_clean: true, unmerged: false, ..dirty };
        assert_eq!(decide(stuck, WRITE), SpaceDecision::Full);
    }

    #[test]
    fn dead_blocks_of_units_are_packed_before_the_pool_is_full() {
        let decide =
            |supply: SpaceState, demand, waited| admit(&SIZES, &supply, &demand, after(waited));
        let holding = SpaceState { held: 383, ..SUPPLY };
        assert_eq!(decide(SpaceState { held: 382, ..SUPPLY }, WRITE, 0), SpaceDecision::Now);
        assert_eq!(decide(holding, WRITE, 0), SpaceDecision::AfterPacking);
        let packed = SpaceState { nothing_to_clean: true, ..holding };
        assert_eq!(decide(packed, WRITE, 0), SpaceDecision::AfterCheckpoint);
        assert_eq!(decide(packed, WRITE, MERGES_WAITED), SpaceDecision::Full);
        assert_eq!(decide(holding, WRITE, PASSES_WAITED), SpaceDecision::Full);
        let reserved = WriteCost { reserved: true, ..WRITE };
        assert_eq!(decide(holding, reserved, 0), SpaceDecision::Now);
    }

    #[test]
    fn reservations_are_backed_by_free_segments() {
        let decide =
            |supply: SpaceState, demand: WriteCost| admit(&SIZES, &supply, &demand, after(0));
        let reserved = WriteCost { reserved: true, ..WRITE };
        // A hundred reserved blocks take eight segments of 14 blocks, besides the reserve of four.
        let low = SpaceState { free: 12, ..SUPPLY };
        assert_eq!(decide(low, WRITE), SpaceDecision::AfterCleaning);
        assert_eq!(
            decide(SpaceState { nothing_to_clean: true, unmerged: false, ..low }, WRITE),
            SpaceDecision::Full
        );
        assert_eq!(decide(SpaceState { free: 13, ..SUPPLY }, WRITE), SpaceDecision::Now);
        assert_eq!(decide(low, reserved), SpaceDecision::Now);
        let is_backed = |free, more| SpaceState { free, ..SUPPLY }.is_backed(&SIZES, more);
        assert!(is_backed(13, 12) && !is_backed(13, 13) && is_backed(14, 13));
        // The volume overwrites its blocks, and others have filled the rest of the pool.
        let written = SpaceState { reserved: 0, nothing_to_clean: true, unmerged: false, ..SUPPLY };
        assert_eq!(decide(SpaceState { free: 4, ..written }, reserved), SpaceDecision::Now);
        let lowest = SpaceState { free: 3, ..written };
        assert_eq!(
            decide(lowest, reserved),
            SpaceDecision::AfterCleaning,
            "it gained nothing before"
        );
        let fruitless = u64::from(FRUITLESS_PASSES);
        assert_eq!(admit(&SIZES, &lowest, &reserved, after(fruitless)), SpaceDecision::Full);
        let gaining = SpaceState { nothing_to_clean: false, ..lowest };
        assert_eq!(admit(&SIZES, &gaining, &reserved, after(900)), SpaceDecision::AfterCleaning);
        assert_eq!(
            decide(SpaceState { cleaner_gains_nothing: true, ..lowest }, reserved),
            SpaceDecision::Full
        );
        let unmerged = SpaceState { cleaner_gains_nothing: true, unmerged: true, ..lowest };
        assert_eq!(decide(unmerged, reserved), SpaceDecision::AfterCheckpoint);
    }

    /// Regression: a full pool whose thick volumes were overwritten refused orders, and admitted
    /// only one discard per checkpoint.
    #[test]
    fn thick_writes_leave_room_for_orders_and_discards() {
        for reserve in 4..1000 {
            let sizes = Sizes { reserve, ..SIZES };
            let supply =
                SpaceState { free: sizes.reserved_floor(), nothing_to_clean: true, ..SUPPLY };
            assert_eq!(
                admit_order(&sizes, &supply, OrderKind::Other, after(0)),
                SpaceDecision::Now
            );
            let zeroes = WriteCost { entries: 0, ranges: 1, blocks: 0, ..WRITE };
            assert_eq!(admit(&sizes, &supply, &zeroes, after(0)), SpaceDecision::Now, "{reserve}");
            assert!(sizes.order_floor() >= reserve / 2, "a checkpoint has room");
        }
    }

    /// Until the next checkpoint, discards could take all free segments above the floor of orders.
    #[test]
    fn discards_take_little_of_what_backs_reservations() {
        let zeroes = WriteCost { entries: 1, blocks: 0, reserved: true, ..WRITE };
        let sizes = Sizes { reserve: 16, ..SIZES };
        // Eight segments back a hundred blocks.
        let decide = |free, log, unmerged| {
            let supply = SpaceState { free, log, unmerged, nothing_to_clean: true, ..SUPPLY };
            admit(&sizes, &supply, &zeroes, after(0))
        };
        assert_eq!(decide(20, 2, true), SpaceDecision::Now);
        assert_eq!(decide(19, 8, true), SpaceDecision::Now);
        assert_eq!(decide(18, 8, true), SpaceDecision::AfterCheckpoint);
        assert_eq!(
            decide(18, 2, true),
            SpaceDecision::Now,
            "the checkpoint has returned what it can"
        );
        assert_eq!(decide(18, 8, false), SpaceDecision::Now);
    }

    #[test]
    fn orders_leave_room_for_a_checkpoint() {
        let sizes = Sizes { reserve: 8, ..SIZES };
        let decide = |free, clean, kind| {
            admit_order(
                &sizes,
                &SpaceState { free, nothing_to_clean: clean, ..SUPPLY },
                kind,
                after(0),
            )
        };
        assert_eq!(decide(6, false, OrderKind::Other), SpaceDecision::Now);
        assert_eq!(decide(5, false, OrderKind::Other), SpaceDecision::AfterCleaning);
        assert_eq!(decide(5, true, OrderKind::Other), SpaceDecision::Full);
        assert_eq!(decide(5, false, OrderKind::Deletion), SpaceDecision::Now);
        assert_eq!(decide(4, false, OrderKind::Deletion), SpaceDecision::AfterCleaning);
        assert_eq!(decide(4, true, OrderKind::Deletion), SpaceDecision::Now);
    }
}
