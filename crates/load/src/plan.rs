//! Plan: kind, offset and size of the next I/O, from the seed.

use flagstone_blockdev::Geometry;
use serde::{Deserialize, Serialize};

use crate::job::{AccessPattern, BlockSize, JobRange, LoadJob};
use flagstone_runtime::rng::{Rng, split_mix64};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    Read,
    Write,
    Trim,
    /// Flush; not counted in IOPS.
    Flush,
}

impl OpKind {
    /// All kinds, in the order of their indices.
    pub const ALL: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Trim, OpKind::Flush];

    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Trim => "trim",
            OpKind::Flush => "flush",
        }
    }
}

/// One I/O. Offset and length in bytes; zero for flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedIo {
    pub(crate) kind: OpKind,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

impl PlannedIo {
    pub(crate) const FLUSH: PlannedIo = PlannedIo { kind: OpKind::Flush, offset: 0, len: 0 };
}

/// A percentage as a share of 2^32, so that a single comparison decides.
fn share(percent: u8) -> u64 {
    (u64::from(percent) << 32) / 100
}

/// The I/Os of one core, endless unless it is a scan.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: Rng,
    random: bool,
    trims: bool,
    /// Probability of a read, as a share of 2^32.
    read_share: u64,
    sizes: Vec<(usize, u64)>,
    weights: u64,
    /// Random offsets are multiples of this from the start of the range.
    align: u64,
    range: JobRange,
    cursor: u64,
    flush_every: u64,
    writes_since_flush: u64,
    /// Ends after one pass.
    once: bool,
}

impl Plan {
    /// The I/Os of core `core` of `job` over its part `range`.
    pub(crate) fn new(job: &LoadJob, core: usize, range: JobRange) -> Plan {
        let mut seed = job.seed;
        let base = split_mix64(&mut seed);
        let mut weights = 0;
        let sizes = job.block_sizes.iter().map(|size| {
            weights += u64::from(size.weight);
            (size.bytes, weights)
        });
        let sizes = sizes.collect();
        let read_share = match (job.pattern.reads(), job.pattern.writes()) {
            (true, true) => share(job.read_percent),
            (reads, _) => share(if reads { 100 } else { 0 }),
        };
        let align = job.block_sizes.iter().map(|size| size.bytes as u64).min().unwrap_or(1);
        Plan {
            rng: Rng::new(base ^ core as u64),
            random: job.pattern.is_random(),
            trims: job.pattern.trims(),
            read_share,
            sizes,
            weights,
            align,
            range,
            cursor: 0,
            flush_every: job.flush_every.map_or(u64::MAX, u64::from),
            writes_since_flush: 0,
            once: false,
        }
    }

    /// Reads all of `range` once, in order, in I/Os of `io_bytes`.
    pub(crate) fn scan(range: JobRange, io_bytes: usize) -> Plan {
        let block_sizes = vec![BlockSize { bytes: io_bytes, weight: 1 }];
        let pattern = AccessPattern::Read;
        let job = LoadJob { pattern, block_sizes, ..LoadJob::default() };
        Plan { once: true, ..Plan::new(&job, 0, range) }
    }

    /// The next I/O; `None` at the end of a scan.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<PlannedIo> {
        if self.writes_since_flush >= self.flush_every {
            self.writes_since_flush = 0;
            return Some(PlannedIo::FLUSH);
        }
        let len = self.size();
        let (offset, len) = if self.random { self.place(len) } else { self.step(len)? };
        let kind = self.kind();
        if kind == OpKind::Write {
            self.writes_since_flush += 1;
        }
        Some(PlannedIo { kind, offset: self.range.offset_bytes + offset, len })
    }

    fn kind(&mut self) -> OpKind {
        if self.trims {
            return OpKind::Trim;
        }
        let reads = match self.read_share {
            0 => false,
            share if share == 1 << 32 => true,
            share => self.rng.next_u64() >> 32 < share,
        };
        if reads { OpKind::Read } else { OpKind::Write }
    }

    fn size(&mut self) -> usize {
        if self.sizes.len() == 1 {
            return self.sizes[0].0;
        }
        let draw = self.rng.below(self.weights);
        let chosen = self.sizes.iter().find(|(_, end)| draw < *end);
        chosen.expect("draws are below the sum of the weights").0
    }

    fn place(&mut self, len: usize) -> (u64, usize) {
        let places = (self.range.size_bytes - len as u64) / self.align + 1;
        (self.rng.below(places) * self.align, len)
    }

    fn step(&mut self, len: usize) -> Option<(u64, usize)> {
        let rest = self.range.size_bytes - self.cursor;
        if rest >= len as u64 {
            self.cursor += len as u64;
            return Some((self.cursor - len as u64, len));
        }
        if self.once {
            self.cursor = self.range.size_bytes;
            return (rest > 0).then(|| (self.range.size_bytes - rest, rest as usize));
        }
        self.cursor = len as u64;
        Some((0, len))
    }
}

/// The part of `range` for `core` of `cores`, in whole blocks. The last part gets the remainder.
pub(crate) fn part(geometry: &Geometry, range: JobRange, core: usize, cores: usize) -> JobRange {
    let block = u64::from(geometry.block_bytes);
    let each = range.size_bytes / block / cores as u64 * block;
    let offset_bytes = range.offset_bytes + each * core as u64;
    let last = core + 1 == cores;
    let size_bytes = if last { range.offset_bytes + range.size_bytes - offset_bytes } else { each };
    JobRange { offset_bytes, size_bytes }
}

/// The share of `total` for a core: the first cores get the remainder.
pub(crate) fn split(total: u64, core: usize, cores: usize) -> u64 {
    let (core, cores) = (core as u64, cores as u64);
    total / cores + u64::from(core < total % cores)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::{AccessPattern, BlockSize};

    fn job(pattern: AccessPattern, sizes: &[(usize, u32)]) -> LoadJob {
        let block_sizes =
            sizes.iter().map(|(bytes, weight)| BlockSize { bytes: *bytes, weight: *weight });
        LoadJob { pattern, block_sizes: block_sizes.collect(), ..LoadJob::default() }
    }

    fn take(plan: &mut Plan, count: usize) -> Vec<PlannedIo> {
        (0..count).map(|_| plan.next().unwrap()).collect()
    }

    const RANGE: JobRange = JobRange { offset_bytes: 8192, size_bytes: 40960 };

    #[test]
    fn sequential_offsets_wrap_within_range() {
        let mut plan = Plan::new(&job(AccessPattern::Write, &[(16384, 1)]), 0, RANGE);
        let offsets: Vec<u64> = take(&mut plan, 4).iter().map(|op| op.offset).collect();
        assert_eq!(offsets, [8192, 24576, 8192, 24576]);
    }

    #[test]
    fn scan_ends_with_short_io() {
        let mut plan = Plan::scan(RANGE, 16384);
        let lengths: Vec<usize> = std::iter::from_fn(|| plan.next()).map(|op| op.len).collect();
        assert_eq!(lengths, [16384, 16384, 8192]);
        assert!(plan.next().is_none());
    }

    #[test]
    fn mixes_keep_their_shares() {
        let mut mixed = job(AccessPattern::RandRw, &[(4096, 3), (8192, 1)]);
        mixed.read_percent = 70;
        let ops = take(&mut Plan::new(&mixed, 0, RANGE), 20_000);
        let reads = ops.iter().filter(|op| op.kind == OpKind::Read).count();
        let large = ops.iter().filter(|op| op.len == 8192).count();
        assert!((13_600..14_400).contains(&reads), "{reads}");
        assert!((4_600..5_400).contains(&large), "{large}");
    }

    #[test]
    fn pure_read_and_write_mixes_are_exact() {
        for (percent, kind) in [(0, OpKind::Write), (100, OpKind::Read)] {
            let mut mixed = job(AccessPattern::RandRw, &[(4096, 1)]);
            mixed.read_percent = percent;
            let ops = take(&mut Plan::new(&mixed, 0, RANGE), 1000);
            assert!(ops.iter().all(|op| op.kind == kind));
        }
    }

    #[test]
    fn flushes_follow_configured_number_of_writes() {
        let mut writes = job(AccessPattern::RandWrite, &[(4096, 1)]);
        writes.flush_every = Some(3);
        let ops = take(&mut Plan::new(&writes, 0, RANGE), 8);
        let flushes: Vec<usize> = (0..8).filter(|at| ops[*at].kind == OpKind::Flush).collect();
        assert_eq!(flushes, [3, 7]);
    }

    #[test]
    fn cores_differ_and_seeds_replay() {
        let random = job(AccessPattern::RandRead, &[(4096, 1)]);
        let draw = |core| take(&mut Plan::new(&random, core, RANGE), 20);
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    proptest! {
        #[test]
        fn every_io_lies_in_the_range(
            seed: u64, blocks in 8_u64..200, offset in 0_u64..100, random: bool,
            sizes in prop::collection::vec((1_usize..=8, 1_u32..5), 1..4),
        ) {
            let sizes: Vec<_> = sizes.iter().map(|(blocks, weight)| (blocks * 512, *weight)).collect();
            let pattern = if random { AccessPattern::RandRw } else { AccessPattern::Rw };
            let job = LoadJob { seed, ..job(pattern, &sizes) };
            let range = JobRange { offset_bytes: offset * 512, size_bytes: blocks * 512 };
            let mut plan = Plan::new(&job, 0, range);
            for op in take(&mut plan, 300) {
                prop_assert!(op.offset >= range.offset_bytes && op.offset % 512 == 0);
                prop_assert!(op.offset + op.len as u64 <= range.offset_bytes + range.size_bytes);
            }
        }

        #[test]
        fn parts_tile_the_range(blocks in 8_u64..1000, offset in 0_u64..9, cores in 1_usize..8) {
            let geometry = Geometry::new(1 << 20, 512);
            let range = JobRange { offset_bytes: offset * 512, size_bytes: blocks * 512 };
            let mut at = range.offset_bytes;
            for core in 0..cores {
                let part = part(&geometry, range, core, cores);
                prop_assert_eq!(part.offset_bytes, at);
                prop_assert!(part.size_bytes > 0 && part.size_bytes.is_multiple_of(512));
                at += part.size_bytes;
            }
            prop_assert_eq!(at, range.offset_bytes + range.size_bytes);
            let total: u64 = (0..cores).map(|core| split(blocks, core, cores)).sum();
            prop_assert_eq!(total, blocks);
        }
    }
}
