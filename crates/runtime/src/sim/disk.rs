//! Simulated disk: the content that reads return, the content that a power loss would leave, and
//! the writes between them.
//!
//! Invariants: a read returns every completed write. After a power loss, each unit of a write that
//! was flushed or durable is present. Each unit of any other write, in flight or completed, is
//! present or not, in patterns from all over prefixes to random units to none. An older write never
//! replaces a newer durable one.

use std::collections::{BTreeSet, VecDeque};

use super::config::{DiskConfig, DiskFaults};
use super::store::{BLOCK_BYTES, Store, blocks_of};
use crate::limits::{SIM_CACHE_BYTES, SIM_CACHE_WRITES};
use crate::rng::Rng;

/// Content of a write.
#[derive(Clone, Debug)]
pub(crate) enum WrittenData {
    Data(Vec<u8>),
    Zero(u64),
}

impl WrittenData {
    pub(crate) fn len(&self) -> u64 {
        match self {
            WrittenData::Data(data) => data.len() as u64,
            WrittenData::Zero(len) => *len,
        }
    }

    pub(crate) fn truncate(&mut self, bytes: u64) {
        match self {
            WrittenData::Data(data) => data.truncate(usize::try_from(bytes).unwrap_or(usize::MAX)),
            WrittenData::Zero(len) => *len = (*len).min(bytes),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            WrittenData::Data(data) => data.len(),
            WrittenData::Zero(_) => 0,
        }
    }

    fn part(&self, from: u64, to: u64) -> WrittenData {
        match self {
            WrittenData::Data(data) => WrittenData::Data(data[from as usize..to as usize].to_vec()),
            WrittenData::Zero(_) => WrittenData::Zero(to - from),
        }
    }

    fn apply(&self, offset: u64, store: &mut Store) {
        match self {
            WrittenData::Data(data) => store.write(offset, data),
            WrittenData::Zero(len) => store.zero(offset, *len),
        }
    }
}

/// The units of a write that reach the medium.
#[derive(Clone, Copy, Debug)]
enum Keep {
    All,
    Nothing,
    Before(u64),
    From(u64),
    Coin,
}

impl Keep {
    /// Any outcome for a write of `units` units.
    fn any(rng: &mut Rng, units: u64) -> Keep {
        match rng.below(5) {
            0 => Keep::All,
            1 => Keep::Nothing,
            2 => Keep::Before(rng.between(0, units)),
            3 => Keep::From(rng.between(0, units)),
            _ => Keep::Coin,
        }
    }

    fn whole(rng: &mut Rng) -> Keep {
        if rng.chance(0.5) { Keep::All } else { Keep::Nothing }
    }

    fn unit(self, unit: u64, rng: &mut Rng) -> bool {
        match self {
            Keep::All => true,
            Keep::Nothing => false,
            Keep::Before(end) => unit < end,
            Keep::From(start) => unit >= start,
            Keep::Coin => rng.chance(0.5),
        }
    }
}

/// A completed write that may not be on the medium.
struct Cached {
    number: u64,
    offset: u64,
    extent: WrittenData,
    /// It is certainly on the medium, and waits here in order behind older writes.
    durable: bool,
}

/// Counters of a disk, for tests and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads served.
    pub reads: u64,
    /// Writes and punches served.
    pub writes: u64,
    /// Flushes served.
    pub flushes: u64,
    /// Operations that failed because of an injected fault.
    pub faults: u64,
    /// Completed writes that are not durable yet.
    pub unflushed_writes: u64,
    /// Bytes of blocks that hold data.
    pub allocated_bytes: u64,
}

pub(crate) struct Disk {
    pub(crate) config: DiskConfig,
    pub(crate) faults: DiskFaults,
    pub(crate) locked_by: Option<i32>,
    /// No operation completes before this time.
    pub(crate) stalled_until: u64,
    pub(crate) stats: DiskStats,
    size_bytes: u64,
    /// Per place of the queue, the time at which it is free.
    free_at: Vec<u64>,
    /// Content that reads return.
    current: Store,
    /// Content that is certainly on the medium.
    stable: Store,
    /// Blocks in which `current` and `stable` may differ.
    dirty: BTreeSet<u64>,
    cache: VecDeque<Cached>,
    cache_bytes: usize,
    next_number: u64,
}

impl Disk {
    pub(crate) fn new(config: DiskConfig) -> Disk {
        Disk {
            config,
            faults: DiskFaults::default(),
            locked_by: None,
            stalled_until: 0,
            stats: DiskStats::default(),
            size_bytes: config.size_bytes,
            free_at: vec![0; config.queue_depth.max(1)],
            current: Store::default(),
            stable: Store::default(),
            dirty: BTreeSet::new(),
            cache: VecDeque::new(),
            cache_bytes: 0,
            next_number: 0,
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// The content of the lost range is found again when the disk grows.
    pub(crate) fn shrink(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.min(size_bytes);
    }

    /// Books a place in the queue; returns the completion time.
    pub(crate) fn book(&mut self, now: u64, latency_ns: u64, bytes: u64) -> u64 {
        let transfer = bytes.saturating_mul(1_000_000_000) / self.config.bytes_per_second.max(1);
        let place = self.free_at.iter_mut().min().expect("a queue has places");
        *place = (*place).max(now).saturating_add(latency_ns).saturating_add(transfer);
        *place
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.current.read(offset, out);
    }

    /// First byte of the first `len` that reads differently on another disk.
    pub(crate) fn first_difference(&self, other: &Disk, len: u64) -> Option<u64> {
        self.current.first_difference(&other.current, len)
    }

    /// Differs from its earlier values if reads may return other content than then.
    pub(crate) fn version(&self) -> u64 {
        self.next_number
    }

    /// Number of the first `len` bytes at `offset` for which there is space, in whole blocks.
    pub(crate) fn space_for(&self, offset: u64, len: u64) -> u64 {
        let left = self.config.space_bytes.saturating_sub(self.current.allocated_bytes());
        if self.current.missing_bytes(offset, len) <= left {
            return len;
        }
        let mut fits = 0;
        for block in blocks_of(offset, len) {
            let end = ((block + 1) * BLOCK_BYTES).min(offset + len) - offset;
            if self.current.missing_bytes(offset, end) > left {
                break;
            }
            fits = end;
        }
        fits
    }

    /// Executes a write or punch.
    pub(crate) fn land(&mut self, offset: u64, extent: WrittenData, durable: bool) {
        extent.apply(offset, &mut self.current);
        self.grow(offset + extent.len());
        self.mark_dirty(offset, &extent);
        let durable = durable || !self.config.volatile_cache;
        self.cache_bytes += extent.memory_bytes();
        self.cache.push_back(Cached { number: self.next_number, offset, extent, durable });
        self.next_number += 1;
        while self.cache_bytes > SIM_CACHE_BYTES || self.cache.len() > SIM_CACHE_WRITES {
            // A full cache writes its oldest entry back.
            self.cache[0].durable = true;
            self.fold();
        }
        self.fold();
    }

    /// Executes any part of a write that failed or whose process was killed.
    pub(crate) fn land_some(&mut self, offset: u64, extent: &WrittenData, rng: &mut Rng) {
        let keep = Keep::any(rng, self.units(offset, extent));
        for (offset, piece) in self.pieces(offset, extent, keep, rng) {
            self.land(offset, piece, false);
        }
    }

    fn mark_dirty(&mut self, offset: u64, extent: &WrittenData) {
        let len = extent.len();
        match extent {
            WrittenData::Data(_) => self.dirty.extend(blocks_of(offset, len)),
            // Under zeroes, only content of the medium can reappear; cached content above it was
            // marked as dirty when it was written.
            WrittenData::Zero(_) => self.dirty.extend(self.stable.allocated(offset, len)),
        }
    }

    /// Watermark of a flush that starts now: it covers every write completed before.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.next_number
    }

    /// Makes every write below `mark` durable.
    pub(crate) fn flush(&mut self, mark: u64) {
        for cached in self.cache.iter_mut().take_while(|cached| cached.number < mark) {
            cached.durable = true;
        }
        self.fold();
    }

    /// A failed flush: each write that it covered may be on the medium, may get there by a later
    /// flush, or never will, even if later flushes succeed.
    pub(crate) fn fail_flush(&mut self, mark: u64, rng: &mut Rng) {
        let mut kept = VecDeque::with_capacity(self.cache.len());
        for mut cached in self.cache.drain(..) {
            if cached.number < mark && !cached.durable {
                match rng.below(3) {
                    0 => cached.durable = true,
                    1 => {}
                    _ => {
                        self.cache_bytes -= cached.extent.memory_bytes();
                        continue;
                    }
                }
            }
            kept.push_back(cached);
        }
        self.cache = kept;
        self.fold();
    }

    /// Moves durable writes to the medium, in the order of writing.
    fn fold(&mut self) {
        while let Some(first) = self.cache.front()
            && first.durable
            && let Some(first) = self.cache.pop_front()
        {
            self.cache_bytes -= first.extent.memory_bytes();
            first.extent.apply(first.offset, &mut self.stable);
        }
    }

    /// Power loss: decides the outcome of every unflushed write and of those `in_flight`.
    pub(crate) fn lose_power(&mut self, mut in_flight: Vec<(u64, WrittenData)>, rng: &mut Rng) {
        let pattern = rng.below(6);
        let cut = rng.below(self.cache.len() as u64 + 1);
        let cached = std::mem::take(&mut self.cache);
        for (index, write) in cached.into_iter().enumerate() {
            let units = self.units(write.offset, &write.extent);
            let keep = match pattern {
                _ if write.durable => Keep::All,
                0 => Keep::Nothing,
                1 => Keep::All,
                2 if (index as u64) < cut => Keep::All,
                2 if index as u64 == cut => Keep::Before(rng.between(0, units)),
                2 => Keep::Nothing,
                3 => Keep::whole(rng),
                4 => Keep::Coin,
                _ => Keep::any(rng, units),
            };
            self.settle(write.offset, &write.extent, keep, rng);
        }
        while !in_flight.is_empty() {
            let pick = rng.below(in_flight.len() as u64) as usize;
            let (offset, extent) = in_flight.swap_remove(pick);
            let keep = Keep::any(rng, self.units(offset, &extent));
            self.grow_to_kept(offset, &extent, keep);
            self.mark_dirty(offset, &extent);
            self.settle(offset, &extent, keep, rng);
        }
        self.cache_bytes = 0;
        self.next_number += 1;
        for block in std::mem::take(&mut self.dirty) {
            self.current.copy_block(block, &self.stable);
        }
        self.free_at.fill(0);
        self.stalled_until = 0;
        self.locked_by = None;
    }

    fn grow_to_kept(&mut self, offset: u64, extent: &WrittenData, keep: Keep) {
        if !matches!(keep, Keep::Nothing) && !self.config.block_device {
            self.grow(offset + extent.len());
        }
    }

    fn settle(&mut self, offset: u64, extent: &WrittenData, keep: Keep, rng: &mut Rng) {
        for (offset, piece) in self.pieces(offset, extent, keep, rng) {
            piece.apply(offset, &mut self.stable);
        }
    }

    /// Bytes of a unit that is kept or lost completely. Large punches use coarse units, so that a
    /// terabyte costs as much as a megabyte.
    fn unit_bytes(&self, extent: &WrittenData) -> u64 {
        let atomic = u64::from(self.config.atomic_bytes.max(1));
        match extent {
            WrittenData::Data(_) => atomic,
            WrittenData::Zero(len) => atomic.max((len / 64).next_multiple_of(atomic)),
        }
    }

    fn units(&self, offset: u64, extent: &WrittenData) -> u64 {
        let unit = self.unit_bytes(extent);
        (offset + extent.len()).div_ceil(unit) - offset / unit
    }

    /// The kept parts of a write: runs of units, aligned to the units of the disk.
    fn pieces(
        &self,
        offset: u64,
        extent: &WrittenData,
        keep: Keep,
        rng: &mut Rng,
    ) -> Vec<(u64, WrittenData)> {
        let (unit, len) = (self.unit_bytes(extent), extent.len());
        let mut pieces = Vec::new();
        let mut run: Option<u64> = None;
        let (mut at, mut index) = (0, 0);
        while at < len {
            if keep.unit(index, rng) {
                run.get_or_insert(at);
            } else if let Some(start) = run.take() {
                pieces.push((offset + start, extent.part(start, at)));
            }
            at += (unit - (offset + at) % unit).min(len - at);
            index += 1;
        }
        if let Some(start) = run {
            pieces.push((offset + start, extent.part(start, len)));
        }
        pieces
    }

    /// Changes the content of the medium, bypassing the cache and the node.
    pub(crate) fn overwrite(&mut self, offset: u64, data: &[u8]) {
        self.land(offset, WrittenData::Data(data.to_vec()), true);
        self.flush(self.flush_mark());
    }

    pub(crate) fn statistics(&self) -> DiskStats {
        let unflushed = self.cache.iter().filter(|cached| !cached.durable).count() as u64;
        let allocated_bytes = self.current.allocated_bytes();
        DiskStats { unflushed_writes: unflushed, allocated_bytes, ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64 << 10;

    fn disk() -> Disk {
        Disk::new(DiskConfig::block_device(SIZE))
    }

    fn read(disk: &Disk) -> Vec<u8> {
        let mut all = vec![0; SIZE as usize];
        disk.read(0, &mut all);
        all
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { sector: u64, sectors: u64, durable: bool },
        Punch { sector: u64, sectors: u64 },
        Flush,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0_u64..100, 1_u64..20);
        let step = prop_oneof![
            4 => (range(), any::<bool>())
                .prop_map(|((sector, sectors), durable)| Step::Write { sector, sectors, durable }),
            1 => range().prop_map(|(sector, sectors)| Step::Punch { sector, sectors }),
            1 => Just(Step::Flush),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        /// After a power loss each sector holds its last durable value or a value written since.
        #[test]
        fn power_loss_leaves_old_or_new_sectors(steps in steps(), seed in any::<u64>()) {
            let mut disk = disk();
            let mut rng = Rng::new(seed);
            // Possible values of each sector after a power loss; the last is the current one.
            let mut may_hold: Vec<Vec<u8>> = vec![vec![0]; (SIZE / 512) as usize];
            for (number, step) in steps.iter().enumerate() {
                let value = number as u8 + 1;
                match *step {
                    Step::Write { sector, sectors, durable } => {
                        let data = vec![value; (sectors * 512) as usize];
                        disk.land(sector * 512, WrittenData::Data(data), durable);
                        for held in &mut may_hold[sector as usize..(sector + sectors) as usize] {
                            if durable { *held = vec![value] } else { held.push(value) }
                        }
                    }
                    Step::Punch { sector, sectors } => {
                        disk.land(sector * 512, WrittenData::Zero(sectors * 512), false);
                        for held in &mut may_hold[sector as usize..(sector + sectors) as usize] {
                            held.push(0);
                        }
                    }
                    Step::Flush => {
                        disk.flush(disk.flush_mark());
                        for held in &mut may_hold {
                            *held = vec![*held.last().expect("never empty")];
                        }
                    }
                }
            }
            for (sector, bytes) in read(&disk).chunks(512).enumerate() {
                let now = *may_hold[sector].last().expect("never empty");
                prop_assert!(bytes.iter().all(|byte| *byte == now), "before the loss");
            }
            disk.lose_power(Vec::new(), &mut rng);
            for (sector, bytes) in read(&disk).chunks(512).enumerate() {
                prop_assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn sector");
                prop_assert!(may_hold[sector].contains(&bytes[0]), "sector {}", sector);
            }
            // The content after the power loss is stable.
            let after = read(&disk);
            disk.lose_power(Vec::new(), &mut rng);
            prop_assert!(after == read(&disk));
        }
    }

    #[test]
    fn failed_flush_can_lose_data_despite_later_flush() {
        let lost = (0..50).filter(|seed| {
            let (mut disk, mut rng) = (disk(), Rng::new(*seed));
            disk.land(0, WrittenData::Data(vec![1; 512]), false);
            disk.fail_flush(disk.flush_mark(), &mut rng);
            disk.flush(disk.flush_mark());
            assert_eq!(read(&disk)[0], 1, "reads still return it");
            disk.lose_power(Vec::new(), &mut rng);
            read(&disk)[0] == 0
        });
        let lost = lost.count();
        assert!((5..45).contains(&lost), "{lost} of 50");
    }

    #[test]
    fn large_punch_is_cheap() {
        let mut disk = Disk::new(DiskConfig::block_device(1 << 40));
        disk.land(1 << 39, WrittenData::Data(vec![5; 4096]), true);
        disk.land(0, WrittenData::Zero(1 << 40), false);
        disk.lose_power(vec![(0, WrittenData::Zero(1 << 40))], &mut Rng::new(3));
        let mut bytes = [9; 4096];
        disk.read(1 << 39, &mut bytes);
        assert!(bytes == [5; 4096] || bytes == [0; 4096]);
    }

    #[test]
    fn full_disk_accepts_whole_blocks_only() {
        let mut disk = disk();
        disk.config.space_bytes = 8192;
        assert_eq!(disk.space_for(2048, 8192), 4096 + 2048);
        disk.land(0, WrittenData::Data(vec![1; 8192]), false);
        assert_eq!(disk.space_for(0, 8192), 8192, "what is there can be overwritten");
        assert_eq!(disk.space_for(8192, 1), 0);
    }
}
