//! Savings experiment (E): what compression saves, and what it costs in throughput, latency and CPU
//! time, for kinds of data, on an emulated disk whose throughput is limited.
//!
//! Each measurement has a new pool, whose volume is filled with the data; before random I/Os it is
//! overwritten, too, so that the cleaner has been through its log.

pub mod summary;

use std::sync::Arc;

use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::environment;
use flagstone_bench::job::{AccessPattern as BenchPattern, BenchJob};
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_load::results::LoadResults;
use flagstone_load::{AccessPattern, LoadJob, LoadProgress, Stop, WriteData};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, CreateOptions, NamedDevice, Pool, VolumeOptions,
};
use flagstone_runtime::{RuntimeConfig, run as run_cores};

use self::summary::SavingsSummary;
use crate::Error;
use crate::bed::{BedTargets, ExperimentOutcome, RunOptions};
use crate::emulated_disk::{
    BUFFER_BYTES, EmulatedCampaign, MEMORY_BYTES, SSD, VOLUME_BYTES, least_seconds, load_job,
    preparation,
};

const SUITE: &str = "savings";
/// Overwrites before random I/Os: the free space twice.
const SETTLE_BYTES: u64 = 2 * (MEMORY_BYTES - VOLUME_BYTES);
/// Mean time to prepare a volume, in seconds.
const PREPARE_S: f64 = 4.0;

/// The job of large sequential writes.
pub(crate) const LARGE: &str = "128k-writes";
/// The job of small random reads.
pub(crate) const READS: &str = "4k-reads";
/// The job of small random writes.
pub(crate) const SMALL: &str = "4k-writes";

/// Data to write, with its name in tables.
#[derive(Clone, Debug)]
pub struct SavingsData {
    pub name: String,
    pub data: WriteData,
}

impl SavingsData {
    /// The kinds that are always measured.
    pub fn builtin() -> [SavingsData; 2] {
        let of = |name: &str, data| SavingsData { name: name.to_owned(), data };
        [of("incompressible", WriteData::Random), of("2:1", WriteData::Compressible(50))]
    }
}

/// Space of a volume after its preparation, as a share of its data.
struct StoredShare {
    job: String,
    target: String,
    share: f64,
}

/// Measurements of the experiment.
struct MeasuredSavings {
    records: Vec<ResultRecord>,
    stored: Vec<StoredShare>,
}

pub(crate) fn target_name(data: &SavingsData, compression: Compression) -> String {
    format!("{} {}", data.name, compression.name())
}

fn jobs(run: &RunOptions) -> [BenchJob; 3] {
    let job = |name: &str, pattern, block_bytes, depth| BenchJob {
        block_bytes,
        depth,
        ..run.job(name.to_owned(), pattern)
    };
    [
        job(LARGE, BenchPattern::Write, 128 << 10, 16),
        job(READS, BenchPattern::RandRead, 4096, 1),
        job(SMALL, BenchPattern::RandWrite, 4096, 32),
    ]
}

/// Least duration, in seconds.
pub fn seconds(run: &RunOptions, kinds: usize) -> f64 {
    least_seconds(run, jobs(run).len() * kinds * Compression::ALL.len(), PREPARE_S)
}

fn plan(run: &RunOptions, kinds: &[SavingsData]) -> CampaignPlan {
    let mut targets = Vec::new();
    let mut stacks = Vec::new();
    for (at, data) in kinds.iter().enumerate() {
        for compression in Compression::ALL {
            let name = target_name(data, compression);
            // No file: the origin has the configuration.
            let path = format!("emulated-data{at}-{}", compression.name());
            let pool = format!(
                "# a volume with compression {} and {} data, of a pool that is half full, on such a \
                 disk\n",
                compression.name(),
                data.name,
            );
            stacks.push((path.clone(), SSD.stack(&pool)));
            targets.push(BenchTarget { name, disks: vec![DiskAddress::Path(path.into())] });
        }
    }
    let title = "Savings experiment on an EMULATED disk: compression by kind of data";
    run.plan((SUITE, title), jobs(run).into(), targets, &BedTargets::emulated(stacks))
}

/// Runs the experiment on these kinds of data, whose names differ.
///
/// # Errors
/// The first failure. The user's interruption during the measurements is a [`CampaignEnd`].
pub fn run(
    run: &RunOptions,
    kinds: &[SavingsData],
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<SavingsSummary>, Error> {
    crate::check_is_new(&run.results)?;
    let plan = plan(run, kinds);
    plan.check()?;
    let store = ResultStore::create(&run.results, &plan)?;
    store.environment(&environment::record(&[], None))?;
    let mut stored = Vec::new();
    let campaign = EmulatedCampaign { plan: &plan, store: &store, prepare_s: PREPARE_S, interrupt };
    let ended = campaign.run(watcher, &mut |job, target| {
        let (data, compression) = kinds
            .iter()
            .flat_map(|data| Compression::ALL.map(|compression| (data, compression)))
            .find(|(data, compression)| target_name(data, *compression) == target.name)
            .expect("each target is one of them");
        let (results, share) = measure_one(data, compression, job, interrupt)?;
        stored.push(StoredShare { job: job.name.clone(), target: target.name.clone(), share });
        Ok(results)
    });
    let end = match ended {
        Ok(()) => CampaignEnd::Complete,
        Err(error) if error.is_interruption() => CampaignEnd::Interrupted,
        Err(error) => return Err(error),
    };
    let measured = MeasuredSavings { records: store.records()?, stored };
    Ok(ExperimentOutcome { end, summary: SavingsSummary::new(kinds, &measured) })
}

/// Measures one job on a new pool, on one core of this process; also returns the share of the data
/// that its space was before.
fn measure_one(
    data: &SavingsData,
    compression: Compression,
    job: &BenchJob,
    interrupt: &Interrupt,
) -> Result<(LoadResults, f64), Error> {
    let what = format!("{} on {}", job.name, target_name(data, compression));
    let unexpected = |detail: String| Error::unexpected(&what, detail);
    let runtime =
        RuntimeConfig { cores: 1, buffer_memory_bytes: BUFFER_BYTES, ..RuntimeConfig::default() };
    let of_data = |load: LoadJob| match load.pattern.writes() {
        true => LoadJob { data: data.data.clone(), ..load },
        false => load,
    };
    let load = of_data(LoadJob { size_bytes: Some(VOLUME_BYTES), ..load_job(job) });
    let mut steps = vec![preparation(512 << 10, AccessPattern::Write, VOLUME_BYTES)];
    if job.pattern.is_random() {
        steps.push(preparation(4096, AccessPattern::RandWrite, SETTLE_BYTES));
    }
    let ended = run_cores(&runtime, async || {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let stop = Stop::new();
        let look = |_: &LoadProgress| {
            if interrupt.is_raised() {
                stop.stop();
            }
        };
        let named = |device: SharedDevice| vec![NamedDevice { name: "emulated".into(), device }];
        let memory = MemoryDevice::new(MEMORY_BYTES, 4096).map_err(|error| text(&error))?;
        let memory: SharedDevice = Arc::new(memory);
        let options = CreateOptions::new("lab");
        let pool = Pool::create(named(memory.clone()), &options).await;
        let pool = pool.map_err(|error| text(&error))?;
        let properties = [(COMPRESSION_PROPERTY.to_owned(), compression.name().to_owned())];
        let options = VolumeOptions {
            size_bytes: VOLUME_BYTES,
            properties: properties.into(),
            ..VolumeOptions::default()
        };
        let volume = pool.create_volume("db", &options).await.map_err(|error| text(&error))?;
        let volume: SharedDevice = volume;
        for step in steps {
            let done = flagstone_load::run(volume.clone(), &of_data(step), &stop, look).await;
            done.map_err(|error| text(&error))?;
        }
        drop(volume);
        pool.close().await.map_err(|error| text(&error))?;
        let disk = SSD.over(memory, SSD.write_us(job))?;
        let pool = Pool::open(named(disk)).await.map_err(|error| text(&error))?;
        let status = pool.status();
        let share = status.stored_bytes as f64 / status.data_bytes.max(1) as f64;
        let volume = pool.open_volume("db").map_err(|error| text(&error))?;
        let results = flagstone_load::run(volume, &load, &stop, look).await;
        Ok::<_, String>((results.map_err(|error| text(&error))?, share))
    });
    ended.map_err(|error| unexpected(error.to_string()))?.map_err(unexpected)
}

#[cfg(test)]
mod tests {
    use flagstone_bench::provenance::Provenance;

    use super::*;
    use crate::bed::tests::run_options;

    #[test]
    fn savings_plan_is_marked_as_emulated() {
        let run = run_options("r".into());
        let plan = plan(&run, &SavingsData::builtin());
        plan.check().unwrap();
        assert!(plan.title.contains("EMULATED"));
        assert_eq!((plan.targets.len(), plan.jobs.len()), (8, 3));
        for target in &plan.targets {
            let origin = &plan.origins[&target.address()];
            assert_eq!(origin.provenance, Provenance::Emulated);
            assert!(origin.stack.contains("compression"), "{}", origin.stack);
        }
    }

    #[test]
    fn compressible_data_takes_half_the_space() {
        let [_, half] = SavingsData::builtin();
        let run = run_options("r".into());
        let [large, ..] = jobs(&run);
        let interrupt = Interrupt::never();
        let share = |compression| {
            let (results, share) = measure_one(&half, compression, &large, &interrupt).unwrap();
            assert!(results.total.unwrap().ios > 0);
            share
        };
        assert!(share(Compression::Off) > 0.99);
        let lz4 = share(Compression::Lz4);
        assert!((0.4..0.7).contains(&lz4), "{lz4}");
    }
}
