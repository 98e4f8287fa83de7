//! Emulated bed of the pool experiment: a raw disk and a pool on such a disk, in this process.
//!
//! The map of such a pool fits its cache; the map of 500 GB would not (`flagstone plan pool` has
//! the difference). Volumes are filled and overwritten before the limits apply.

use std::sync::Arc;

use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::environment;
use flagstone_bench::job::BenchJob;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultStore;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_load::results::LoadResults;
use flagstone_load::{AccessPattern, LoadJob, LoadProgress, Stop};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::{RuntimeConfig, run as run_cores};

use super::{MeasuredPool, PoolSide, RANDOM, SUITE, jobs};
use crate::Error;
use crate::bed::{BedTargets, RunOptions};
use crate::emulated_disk::{
    BUFFER_BYTES, EmulatedCampaign, EmulatedType, MEMORY_BYTES, SSD, STANDARD, VOLUME_BYTES,
    least_seconds, load_job, preparation,
};

/// Overwrites before the measurement: the free space twice.
const SETTLE_BYTES: u64 = 2 * (MEMORY_BYTES - VOLUME_BYTES);
/// Mean time to prepare a disk or a pool, in seconds.
const SETTLE_S: f64 = 2.0;

/// The disk types.
pub(crate) const TYPES: [EmulatedType; 2] = [STANDARD, SSD];

#[derive(Clone, Debug)]
pub struct EmulatedPool {
    /// Measures only random writes that may gather.
    pub only_random: bool,
}

pub(crate) fn target_name(of: &EmulatedType, side: PoolSide) -> String {
    format!("{} {}", of.name, side.name())
}

fn stack(of: &EmulatedType, side: PoolSide) -> String {
    of.stack(match side {
        PoolSide::Raw => "",
        PoolSide::Pool => "# a volume of a pool that is half full, on such a disk\n",
    })
}

/// A measurement, and what the cleaner copied per block written.
struct Measured {
    results: LoadResults,
    copied: Option<f64>,
}

impl EmulatedPool {
    /// Least duration, in seconds.
    pub fn seconds(&self, run: &RunOptions) -> f64 {
        let jobs = jobs(run, self.only_random).len();
        least_seconds(run, jobs * TYPES.len() * PoolSide::ALL.len(), SETTLE_S)
    }

    fn plan(&self, run: &RunOptions) -> CampaignPlan {
        let mut targets = Vec::new();
        let mut stacks = Vec::new();
        for of in &TYPES {
            for side in PoolSide::ALL {
                let name = target_name(of, side);
                // No file: the origin has the configuration.
                let path = format!("emulated-{}", name.replace(' ', "-"));
                stacks.push((path.clone(), stack(of, side)));
                targets.push(BenchTarget { name, disks: vec![DiskAddress::Path(path.into())] });
            }
        }
        let title = "Pool experiment on EMULATED disks: a pool against the disk below it";
        let bed = BedTargets::emulated(stacks);
        run.plan((SUITE, title), jobs(run, self.only_random), targets, &bed)
    }

    pub(super) fn measure(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<(CampaignPlan, MeasuredPool), Error> {
        let plan = self.plan(run);
        plan.check()?;
        let store = ResultStore::create(&run.results, &plan)?;
        store.environment(&environment::record(&[], None))?;
        let mut copied = Vec::new();
        let campaign =
            EmulatedCampaign { plan: &plan, store: &store, prepare_s: SETTLE_S, interrupt };
        let ended = campaign.run(watcher, &mut |job, target| {
            let (of, side) = TYPES
                .iter()
                .flat_map(|of| PoolSide::ALL.map(|side| (of, side)))
                .find(|(of, side)| target_name(of, *side) == target.name)
                .expect("each target is one of them");
            let measured = measure_one(of, side, job, interrupt)?;
            if let Some(per_block) = measured.copied {
                copied.push((job.name.clone(), target.name.clone(), per_block));
            }
            Ok(measured.results)
        });
        let end = match ended {
            Ok(()) => CampaignEnd::Complete,
            Err(error) if error.is_interruption() => CampaignEnd::Interrupted,
            Err(error) => return Err(error),
        };
        let records = store.records()?;
        Ok((plan, MeasuredPool { end, records, copied }))
    }
}

/// Overwrites that bring the cleaner through the log.
fn settling() -> [LoadJob; 2] {
    [
        preparation(512 << 10, AccessPattern::Write, VOLUME_BYTES),
        preparation(4096, AccessPattern::RandWrite, SETTLE_BYTES),
    ]
}

/// Measures one job on a new disk, on one core of this process.
fn measure_one(
    of: &EmulatedType,
    side: PoolSide,
    job: &BenchJob,
    interrupt: &Interrupt,
) -> Result<Measured, Error> {
    let what = format!("{} on {}", job.name, target_name(of, side));
    let unexpected = |detail: String| Error::unexpected(&what, detail);
    let runtime =
        RuntimeConfig { cores: 1, buffer_memory_bytes: BUFFER_BYTES, ..RuntimeConfig::default() };
    let load = LoadJob { size_bytes: Some(VOLUME_BYTES), ..load_job(job) };
    let ended = run_cores(&runtime, async || {
        let stop = Stop::new();
        let look = |_: &LoadProgress| {
            if interrupt.is_raised() {
                stop.stop();
            }
        };
        let memory = MemoryDevice::new(MEMORY_BYTES, 4096).map_err(|error| error.to_string())?;
        let memory: SharedDevice = Arc::new(memory);
        let settle = async |device: &SharedDevice, loads: &[LoadJob]| {
            for load in loads {
                let done = flagstone_load::run(device.clone(), load, &stop, look).await;
                done.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        };
        let [fill, overwrite] = settling();
        let named = |device: SharedDevice| NamedDevice { name: "emulated".to_owned(), device };
        match side {
            PoolSide::Raw => settle(&memory, &[fill]).await?,
            PoolSide::Pool => {
                let options = CreateOptions::new("lab");
                let pool = Pool::create(vec![named(memory.clone())], &options).await;
                let pool = pool.map_err(|error| error.to_string())?;
                let size = VolumeOptions { size_bytes: VOLUME_BYTES, ..VolumeOptions::default() };
                let volume = pool.create_volume("db", &size).await;
                let volume: SharedDevice = volume.map_err(|error| error.to_string())?;
                settle(&volume, &[fill, overwrite]).await?;
                pool.close().await.map_err(|error| error.to_string())?;
            }
        }
        let disk = of.over(memory, of.write_us(job))?;
        let (pool, device) = match side {
            PoolSide::Raw => (None, disk),
            PoolSide::Pool => {
                let pool =
                    Pool::open(vec![named(disk)]).await.map_err(|error| error.to_string())?;
                let volume = pool.open_volume("db").map_err(|error| error.to_string())?;
                let device: SharedDevice = volume;
                (Some(pool), device)
            }
        };
        let copied = || pool.as_ref().map(|pool| pool.status().copied_blocks);
        let before = copied();
        let results = flagstone_load::run(device, &load, &stop, look).await;
        let results = results.map_err(|error| error.to_string())?;
        let blocks = results.total.as_ref().map_or(0, |total| total.bytes) / 4096;
        let copied = copied().zip(before).map(|(after, before)| after - before);
        let copied = copied.map(|copied| copied as f64 / blocks.max(1) as f64);
        Ok::<Measured, String>(Measured { results, copied })
    });
    ended.map_err(|error| unexpected(error.to_string()))?.map_err(unexpected)
}

/// Name of the job and of the targets of a type: raw disk, then pool.
pub(crate) fn random_targets(of: &EmulatedType) -> (&'static str, [String; 2]) {
    (RANDOM, PoolSide::ALL.map(|side| target_name(of, side)))
}

#[cfg(test)]
mod tests {
    use flagstone_bench::provenance::Provenance;

    use super::*;
    use crate::bed::tests::run_options;

    #[test]
    fn plan_is_marked_as_emulated() {
        let run = run_options("r".into());
        let plan = EmulatedPool { only_random: false }.plan(&run);
        plan.check().unwrap();
        assert!(plan.title.contains("EMULATED"));
        assert_eq!((plan.targets.len(), plan.jobs.len()), (4, 4));
        for target in &plan.targets {
            let origin = &plan.origins[&target.address()];
            assert_eq!(origin.provenance, Provenance::Emulated);
            assert!(origin.stack.contains("disk_model = "), "{}", origin.stack);
        }
        let few = EmulatedPool { only_random: true };
        assert!(few.seconds(&run) < EmulatedPool { only_random: false }.seconds(&run) / 2.0);
    }
}
