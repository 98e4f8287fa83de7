//! Prediction of a pool on a cloud disk: random writes and reads by fullness, against the raw disk
//! and against the next larger disk that does the same.
//!
//! [`cost`] has the model. What it leaves out is in [`PoolPrediction::notes`]: the CPU, and the
//! latency of a single writer that flushes, which a pool without a log device does not shorten.

pub mod cost;

use serde::Serialize;

use crate::caps::{Cap, QueueFigure};
use crate::catalog::{Catalog, LimitKind, ThroughputUnit};
use crate::input::{DiskConfiguration, PlanError, Workload};
use crate::mix::WorkloadMix;
use crate::placement::Placement;
use crate::prediction::{Cost, Dimension, PredictedLimit, Prediction, Rates, SourceUse};
use cost::{DeviceCost, PoolLoad, write_amplification};

/// Default memory of a pool's map cache, in bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Fullness for which the model holds, in percent.
pub const FULLNESS_PERCENT: std::ops::RangeInclusive<u32> = 1..=97;

/// Largest block of a host that a pool gathers, in bytes.
const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// Gain of writes from which a pool is worth recommending.
const WORTHWHILE: f64 = 1.2;

/// Fullness of a recommended pool, in percent.
const RECOMMENDED_PERCENT: u32 = 75;

/// Block of large I/O, for the limits by block size, in bytes.
const LARGE_BYTES: u64 = 256 << 10;

/// Times that a disk may be doubled while a sufficient one is sought.
const DOUBLINGS: u32 = 24;

/// A question about a pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolQuestion {
    /// Bytes of one I/O of hosts.
    pub block_bytes: u64,
    /// I/Os in flight; enough for every limit if `None`.
    pub depth: Option<u32>,
    /// Shares of the space that are in use, in percent.
    pub fullness_percent: Vec<u32>,
    /// Bytes over which hosts spread their I/O; everything that is in use if `None`.
    pub working_set_bytes: Option<u64>,
    /// Memory of the map cache.
    pub cache_bytes: u64,
}

impl Default for PoolQuestion {
    fn default() -> PoolQuestion {
        PoolQuestion {
            block_bytes: 4096,
            depth: None,
            fullness_percent: vec![50, 75, 90],
            working_set_bytes: None,
            cache_bytes: CACHE_BYTES_DEFAULT,
        }
    }
}

/// The disk without a pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RawDisk {
    pub writes: Rates,
    pub reads: Rates,
    /// The limit that binds random writes.
    pub binding: PredictedLimit,
    pub cost: Option<Cost>,
}

/// A rate of hosts through the pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolRate {
    #[serde(flatten)]
    pub rates: Rates,
    /// Divided by the raw disk's rate.
    pub ratio: f64,
    /// The limit of the disk or machine that binds.
    pub binding: LimitKind,
    pub dimension: Dimension,
    /// Cost of one I/O of a host.
    pub per_io: DeviceCost,
}

/// The smallest raw disk with at least the pool's writes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EqualDisk {
    pub configuration: DiskConfiguration,
    pub writes: Rates,
    pub cost: Option<Cost>,
}

/// A pool that is this full.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolRow {
    pub fullness_percent: u32,
    /// Block writes per block that hosts write, by the cleaner; without headers and map.
    pub write_amplification: f64,
    /// Share of map lookups that read the disk.
    pub map_miss_share: f64,
    pub writes: PoolRate,
    pub reads: PoolRate,
    /// `None` if no size of the type, on this machine, does the same.
    pub equal_disk: Option<EqualDisk>,
}

/// A pool on a disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolPrediction {
    pub catalog: String,
    pub configuration: DiskConfiguration,
    pub question: PoolQuestion,
    pub throughput_unit: ThroughputUnit,
    pub raw: RawDisk,
    pub rows: Vec<PoolRow>,
    /// Memory that the map of everything in use takes at the highest fullness, in bytes.
    pub whole_map_bytes: u64,
    pub sources: Vec<SourceUse>,
    pub not_known: Vec<String>,
    pub notes: Vec<String>,
}

impl PoolQuestion {
    fn check(&self) -> Result<(), PlanError> {
        if !(4096..=BLOCK_BYTES_MAX).contains(&self.block_bytes)
            || !self.block_bytes.is_multiple_of(4096)
        {
            let found = format!("a block of {} bytes", self.block_bytes);
            return Err(PlanError::input(found, "a pool has blocks of 4 KiB: write 4k to 1MiB"));
        }
        let wrong = self.fullness_percent.iter().find(|full| !FULLNESS_PERCENT.contains(full));
        if let Some(full) = wrong {
            let (low, high) = (FULLNESS_PERCENT.start(), FULLNESS_PERCENT.end());
            let accepted = format!("write percentages from {low} to {high}");
            return Err(PlanError::input(format!("a pool that is {full} % full"), accepted));
        }
        match self.working_set_bytes {
            Some(0) => Err(PlanError::input("a working set of 0 bytes", "write a size above 0")),
            _ => Ok(()),
        }
    }

    fn workload(&self, read_percent: u8) -> Workload {
        Workload { depth: self.depth, ..Workload::random(self.block_bytes, read_percent) }
    }

    fn load(&self, fullness_percent: u32, pool_bytes: f64) -> PoolLoad {
        let fullness = f64::from(fullness_percent) / 100.0;
        let live = pool_bytes * fullness;
        PoolLoad {
            blocks: self.block_bytes as f64 / 4096.0,
            in_flight: self.depth.map(f64::from),
            fullness,
            working_set_bytes: self.working_set_bytes.map_or(live, |set| live.min(set as f64)),
            cache_bytes: self.cache_bytes as f64,
        }
    }
}

/// Limits of a disk and of the workload.
struct Limits<'c, 'a> {
    catalog: &'c Catalog,
    placement: &'c Placement<'a>,
    hard: Vec<Cap<'a>>,
}

impl Limits<'_, '_> {
    /// Highest rate of hosts' I/Os at this cost of each, and the limit that binds. Each waits for
    /// this number of I/Os of the disk, one after the other.
    fn most(
        &self,
        cost: &DeviceCost,
        waits: f64,
        soft: &[Cap<'_>],
    ) -> Option<(f64, LimitKind, Dimension)> {
        let units = &self.catalog.units;
        let mix = WorkloadMix::of_reads(0.0, 4096, units, self.placement.sharing());
        let counts = WorkloadMix { read: cost.read_ios, write: cost.write_ios, ..mix };
        let bytes =
            WorkloadMix { read: cost.read_bytes / 4096.0, write: cost.write_bytes / 4096.0, ..mix };
        let one_io = WorkloadMix {
            read: if cost.write_ios == 0.0 { waits } else { 0.0 },
            write: if cost.write_ios > 0.0 { waits } else { 0.0 },
            ..mix
        };
        let under = |cap: &Cap<'_>| match cap.dimension {
            Dimension::Iops => counts.iops_under_one(cap),
            Dimension::Throughput => bytes.iops_under_one(cap),
        };
        let hard = self.hard.iter().map(|cap| (under(cap), cap.kind, cap.dimension));
        // The queue depth counts I/Os of hosts; the CPU rule counts I/Os of the disk.
        let soft = soft.iter().map(|cap| {
            let mix = if cap.kind == LimitKind::QueueDepth { &one_io } else { &counts };
            (mix.iops_under_one(cap), cap.kind, cap.dimension)
        });
        hard.chain(soft).filter(|(most, ..)| most.is_finite()).min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

impl Catalog {
    /// Predicts a pool on a configuration.
    ///
    /// # Errors
    /// Invalid or impossible input, or no known limit.
    pub fn predict_pool(
        &self,
        configuration: &DiskConfiguration,
        question: &PoolQuestion,
    ) -> Result<PoolPrediction, PlanError> {
        question.check()?;
        let raw = self.predict(configuration, &question.workload(0))?;
        let raw_reads = self.predict(configuration, &question.workload(100))?;
        let placement = Placement::of(self, configuration)?;
        let demand = placement.demand(configuration)?;
        let limits = Limits {
            catalog: self,
            placement: &placement,
            hard: placement.hard_caps(&demand, LARGE_BYTES),
        };
        let pool_bytes = demand.size * self.units.size_bytes as f64 * f64::from(demand.disks);
        if let Some(set) = question.working_set_bytes.filter(|set| *set as f64 > pool_bytes) {
            let found = format!("a working set of {}", flagstone_units::format_size(set));
            let accepted = format!(
                "the disk has {}: write at most that",
                flagstone_units::format_size(pool_bytes as u64)
            );
            return Err(PlanError::input(found, accepted));
        }
        let rate = |cost: DeviceCost, waits: f64, read_percent: u8, raw: &Rates| {
            let workload = question.workload(read_percent);
            let soft = placement.soft_caps(&workload, QueueFigure::Low);
            let most = limits.most(&cost, waits, &soft);
            let (iops, binding, dimension) = most.ok_or_else(|| placement.not_known())?;
            let rates = Rates::of_blocks(question.block_bytes, iops);
            Ok(PoolRate { ratio: iops / raw.iops, rates, binding, dimension, per_io: cost })
        };
        let mut rows = Vec::new();
        for fullness_percent in &question.fullness_percent {
            let load = question.load(*fullness_percent, pool_bytes);
            let writes = rate(load.of_write(), 1.0, 0, &raw.total)?;
            let wanted = writes.rates.iops;
            rows.push(PoolRow {
                fullness_percent: *fullness_percent,
                write_amplification: write_amplification(load.fullness),
                map_miss_share: load.miss_share(),
                // A read waits for the map before it reads the data.
                reads: rate(load.of_read(), 1.0 + load.miss_share(), 100, &raw_reads.total)?,
                equal_disk: (writes.ratio > 1.0)
                    .then(|| self.equal_disk(configuration, question, wanted))
                    .flatten(),
                writes,
            });
        }
        let fullest = question.fullness_percent.iter().max().copied().unwrap_or(0);
        let whole_map_bytes = pool_bytes * f64::from(fullest) / 100.0 / 252.0;
        Ok(PoolPrediction {
            catalog: self.name.clone(),
            configuration: configuration.clone(),
            question: question.clone(),
            throughput_unit: self.units.throughput,
            notes: notes(question, &rows, &raw, whole_map_bytes),
            rows,
            whole_map_bytes: whole_map_bytes as u64,
            sources: raw.sources.clone(),
            not_known: raw.not_known.clone(),
            raw: RawDisk {
                writes: raw.total,
                reads: raw_reads.total,
                binding: raw.binding,
                cost: raw.cost,
            },
        })
    }

    /// The smallest disk of the type that does as many random writes without a pool: a larger one,
    /// or one with more purchased IOPS.
    fn equal_disk(
        &self,
        configuration: &DiskConfiguration,
        question: &PoolQuestion,
        iops: f64,
    ) -> Option<EqualDisk> {
        let disk = self.types.get(&configuration.kind)?;
        let is_bought =
            disk.provisioned.as_ref().is_some_and(|part| part.iops_per_mb_per_s.is_none());
        let workload = question.workload(0);
        let at = |factor: f64| {
            let mut larger = configuration.clone();
            match is_bought {
                true => larger.provisioned_iops = Some((iops * factor).ceil()),
                false => {
                    let bytes = configuration.size_bytes as f64 * factor / 1e9;
                    larger.size_bytes = (bytes.ceil() * 1e9) as u64;
                }
            }
            let found = self.predict(&larger, &workload).ok()?;
            Some((larger, found)).filter(|(_, found)| found.allowed.iops >= iops * (1.0 - 1e-9))
        };
        let most = (0..DOUBLINGS).map(|power| f64::from(1u32 << power));
        let high = most.into_iter().find(|factor| at(*factor).is_some())?;
        let (mut low, mut high) = (if high > 1.0 { high / 2.0 } else { 1.0 }, high);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if at(middle).is_some() { high = middle } else { low = middle }
        }
        let (configuration, found) = at(high)?;
        Some(EqualDisk { configuration, writes: found.allowed, cost: found.cost })
    }

    /// Random writes of a pool on a configuration, if they are worthwhile: more than the limit of
    /// the raw disk allows. `reach_bytes` is the range that the job uses, if known.
    pub(crate) fn worthwhile_pool(
        &self,
        configuration: &DiskConfiguration,
        workload: &Workload,
        reach_bytes: Option<u64>,
    ) -> Option<(u32, f64)> {
        if workload.read_percent > 0 || workload.access != crate::AccessOrder::Random {
            return None;
        }
        let question = PoolQuestion {
            block_bytes: workload.block_bytes,
            depth: workload.in_flight().and_then(|depth| u32::try_from(depth).ok()),
            fullness_percent: vec![RECOMMENDED_PERCENT],
            working_set_bytes: reach_bytes,
            cache_bytes: CACHE_BYTES_DEFAULT,
        };
        let found = self.predict_pool(configuration, &question).ok()?;
        let row = found.rows.first()?;
        (row.writes.ratio >= WORTHWHILE).then_some((RECOMMENDED_PERCENT, row.writes.rates.iops))
    }
}

fn notes(
    question: &PoolQuestion,
    rows: &[PoolRow],
    raw: &Prediction,
    map_bytes: f64,
) -> Vec<String> {
    let mut notes = vec![
        "random I/O that is spread evenly over the working set; uneven overwrites cost the cleaner less"
            .to_owned(),
    ];
    if rows.iter().any(|row| row.map_miss_share > 0.0) {
        notes.push(format!(
            "the map does not fit the cache of {} MiB: most of a lookup is then a read of the disk. The \
             whole map takes {1:.0} MiB, which flagstone pool set NAME --map-cache {1:.0}MiB gives it; \
             --cache {1:.0}MiB computes that",
            question.cache_bytes >> 20,
            (map_bytes / f64::from(1 << 20)).ceil(),
        ));
    }
    let latency = |row: &PoolRow| row.writes.binding == LimitKind::QueueDepth;
    if raw.binding.kind == LimitKind::QueueDepth || rows.iter().any(latency) {
        notes.push(
            "latency binds, which gathering does not shorten: a log device on a local SSD does, or more \
             I/Os in flight"
                .to_owned(),
        );
    }
    notes.push(
        "the CPU is not part of the model; chunks count as one I/O per 256 KiB of a transfer"
            .to_owned(),
    );
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predicted(kind: &str, gb: u64, question: &PoolQuestion) -> PoolPrediction {
        let catalog = Catalog::builtin("gcp-2019").unwrap();
        let configuration =
            DiskConfiguration::new(catalog, kind, gb * 1_000_000_000, "n1-standard-8").unwrap();
        catalog.predict_pool(&configuration, question).unwrap()
    }

    fn near() -> PoolQuestion {
        PoolQuestion { working_set_bytes: Some(10_000_000_000), ..PoolQuestion::default() }
    }

    #[test]
    fn gathering_turns_iops_limit_into_throughput() {
        let standard = predicted("pd-standard", 500, &near());
        let half = &standard.rows[0];
        // Reads of the cleaner share the throughput, so it is less than the 8 without reads.
        assert!((7.0..8.0).contains(&half.writes.ratio), "{half:?}");
        assert_eq!(standard.raw.binding.dimension, Dimension::Iops);
        assert_eq!(half.writes.dimension, Dimension::Throughput);
        let ssd = predicted("pd-ssd", 500, &near());
        assert!(ssd.rows[0].writes.ratio > 2.0, "{:?}", ssd.rows[0]);
        for found in [&standard, &ssd] {
            let iops: Vec<_> = found.rows.iter().map(|row| row.writes.rates.iops).collect();
            assert!(iops.is_sorted_by(|a, b| a > b), "a fuller pool is slower: {iops:?}");
            assert!(found.rows.iter().all(|row| row.reads.ratio == 1.0));
        }
    }

    #[test]
    fn equal_disk_is_the_smallest_sufficient() {
        let found = predicted("pd-standard", 500, &near());
        let equal = found.rows[0].equal_disk.as_ref().unwrap();
        let wanted = found.rows[0].writes.rates.iops;
        assert!(equal.writes.iops >= wanted && equal.writes.iops < wanted * 1.01, "{equal:?}");
        let (small, large) = (found.raw.cost.as_ref().unwrap(), equal.cost.as_ref().unwrap());
        assert!(large.usd_per_month > 5.0 * small.usd_per_month);
    }

    #[test]
    fn map_beyond_the_cache_costs_reads() {
        let wide = predicted("pd-standard", 500, &PoolQuestion::default());
        assert!(wide.rows[0].map_miss_share > 0.9);
        assert!(wide.rows[0].writes.ratio < 1.0, "{:?}", wide.rows[0].writes);
        assert!(wide.rows[0].reads.ratio < 0.6);
        let is_advice = |note: &String| note.contains("pool set NAME --map-cache");
        assert!(wide.notes.iter().any(is_advice), "{:?}", wide.notes);
        let cached = PoolQuestion { cache_bytes: 4 << 30, ..PoolQuestion::default() };
        let cached = predicted("pd-standard", 500, &cached);
        assert!(cached.rows[0].writes.ratio > 4.0 && !cached.notes.iter().any(is_advice));
    }

    #[test]
    fn shallow_read_waits_for_the_map() {
        let found =
            predicted("pd-ssd", 500, &PoolQuestion { depth: Some(1), ..Default::default() });
        let row = &found.rows[0];
        assert_eq!(row.reads.binding, LimitKind::QueueDepth);
        let expected = 1.0 / (1.0 + row.map_miss_share);
        assert!((row.reads.ratio - expected).abs() < 1e-6 && expected < 0.6, "{row:?}");
    }

    #[test]
    fn working_set_beyond_the_disk_is_refused() {
        let catalog = Catalog::builtin("gcp-2019").unwrap();
        let disk = DiskConfiguration::new(catalog, "pd-ssd", 500_000_000_000, "n1-standard-8");
        let set = Some(501_000_000_000);
        let question = PoolQuestion { working_set_bytes: set, ..Default::default() };
        let refused = catalog.predict_pool(&disk.unwrap(), &question).unwrap_err().to_string();
        assert!(refused.contains("working set") && refused.contains("the disk has"), "{refused}");
    }

    #[test]
    fn shallow_queue_is_bound_by_latency() {
        let question = PoolQuestion { depth: Some(1), ..near() };
        let found = predicted("pd-ssd", 500, &question);
        assert_eq!(found.rows[0].writes.binding, LimitKind::QueueDepth);
        assert!((found.rows[0].writes.ratio - 1.0).abs() < 1e-9);
        assert!(found.rows[0].equal_disk.is_none());
        assert!(found.notes.iter().any(|note| note.contains("log device")));
    }

    #[test]
    fn impossible_questions_are_refused() {
        let catalog = Catalog::builtin("gcp-2019").unwrap();
        let place = DiskConfiguration::new(catalog, "pd-ssd", 1 << 40, "n1-standard-8").unwrap();
        for question in [
            PoolQuestion { block_bytes: 512, ..PoolQuestion::default() },
            PoolQuestion { block_bytes: 2 << 20, ..PoolQuestion::default() },
            PoolQuestion { fullness_percent: vec![100], ..PoolQuestion::default() },
            PoolQuestion { working_set_bytes: Some(0), ..PoolQuestion::default() },
        ] {
            let error = catalog.predict_pool(&place, &question).unwrap_err();
            assert!(matches!(error, PlanError::Input { .. }), "{question:?}");
        }
    }
}
