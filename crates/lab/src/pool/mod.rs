//! Pool experiment: a volume of a pool against the disk below it, at the parameters of the
//! published experiments.
//!
//! The emulated bed measures, in this process, the limits of 500 GB of standard and of SSD
//! persistent disk; the given bed measures a disk and a pool's volume of the user. The pool is half
//! full, and the cleaner has been through its log before the measurement.

mod emulated;
pub mod summary;

use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::target::BenchTarget;

pub use self::emulated::EmulatedPool;
use self::summary::PoolSummary;
use crate::Error;
use crate::bed::{BedTargets, ExperimentOutcome, RunOptions};
use crate::mirror::published::{IN_FLIGHT, ROWS};

const SUITE: &str = "pool";
/// Random writes in flight that may gather.
const DEPTH: u32 = 32;
/// The job of [`DEPTH`] writes.
pub(crate) const RANDOM: &str = "4k";

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolSide {
    /// The disk.
    Raw,
    /// A volume of a pool on such a disk.
    Pool,
}

impl PoolSide {
    /// Both, the one to compare with first.
    pub const ALL: [PoolSide; 2] = [PoolSide::Raw, PoolSide::Pool];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            PoolSide::Raw => "raw disk",
            PoolSide::Pool => "pool",
        }
    }
}

/// A disk and a volume of the user.
#[derive(Clone, Debug)]
pub struct GivenPool {
    pub targets: BedTargets,
    pub disk: BenchTarget,
    pub volume: BenchTarget,
}

#[derive(Clone, Debug)]
pub enum PoolBed {
    Emulated(EmulatedPool),
    Given(GivenPool),
}

/// Jobs of the experiment: [`RANDOM`], and the published durable writes.
fn jobs(run: &RunOptions, only_random: bool) -> Vec<BenchJob> {
    let random = BenchJob {
        block_bytes: 4096,
        depth: DEPTH,
        ..run.job(RANDOM.to_owned(), AccessPattern::RandWrite)
    };
    let durable = ROWS.iter().map(|row| BenchJob {
        block_bytes: row.block_bytes,
        depth: IN_FLIGHT,
        // As with diskspd -Sh.
        sync: true,
        ..run.job(format!("{}-durable", row.size.to_lowercase()), AccessPattern::RandWrite)
    });
    let mut all = vec![random];
    if !only_random {
        all.extend(durable);
    }
    all
}

/// Measurements of a bed.
struct MeasuredPool {
    end: CampaignEnd,
    records: Vec<ResultRecord>,
    /// Blocks that the cleaner copied per block written, by job and target.
    copied: Vec<(String, String, f64)>,
}

/// Runs the experiment.
///
/// # Errors
/// The first failure. The user's interruption during the measurements is a [`CampaignEnd`].
pub fn run(
    run: &RunOptions,
    bed: &PoolBed,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<PoolSummary>, Error> {
    crate::check_is_new(&run.results)?;
    let (plan, measured) = match bed {
        PoolBed::Emulated(bed) => bed.measure(run, watcher, interrupt)?,
        PoolBed::Given(bed) => given(run, bed, watcher, interrupt)?,
    };
    let summary = PoolSummary::new(bed, &plan, &measured);
    Ok(ExperimentOutcome { end: measured.end, summary })
}

fn given(
    run: &RunOptions,
    bed: &GivenPool,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<(CampaignPlan, MeasuredPool), Error> {
    let named = |side: PoolSide, target: &BenchTarget| BenchTarget {
        name: side.name().to_owned(),
        ..target.clone()
    };
    let targets = vec![named(PoolSide::Raw, &bed.disk), named(PoolSide::Pool, &bed.volume)];
    let title = "Pool experiment: a volume of a pool against a disk";
    let plan = run.plan((SUITE, title), jobs(run, false), targets, &bed.targets);
    let parts = (&plan, std::slice::from_ref(&plan));
    let (end, records) = run.campaign(parts, &bed.targets, None, watcher, interrupt)?;
    Ok((plan, MeasuredPool { end, records, copied: Vec::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::run_options;

    #[test]
    fn jobs_have_published_parameters() {
        let run = run_options("r".into());
        let all = jobs(&run, false);
        let named = |job: &BenchJob| (job.name.clone(), job.depth, job.block_bytes, job.sync);
        let found: Vec<_> = all.iter().map(named).collect();
        let expected = [
            ("4k", 32, 4096, false),
            ("64k-durable", 24, 65536, true),
            ("8k-durable", 24, 8192, true),
            ("4k-durable", 24, 4096, true),
        ];
        assert_eq!(found, expected.map(|(name, a, b, c)| (name.to_owned(), a, b, c)));
        assert_eq!(jobs(&run, true).len(), 1);
        for job in all {
            job.check().unwrap();
        }
    }
}
