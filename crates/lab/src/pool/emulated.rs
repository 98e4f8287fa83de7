//! Emulated bed of the pool experiment: a raw disk and a pool on such a disk, in this process.
//!
//! The disks are memory with the limits that the catalog's formulas give 500 GB, and the latency of
//! the published report. They are smaller than that, so that they fit the memory: the map of such a
//! pool fits its cache; the map of 500 GB would not (`flagstone plan pool` has the difference).
//! Volumes are filled and overwritten before the limits apply.

use std::sync::Arc;
use std::time::Duration;

use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::cpu::Snapshot;
use flagstone_bench::environment;
use flagstone_bench::generator::LoadRun;
use flagstone_bench::job::BenchJob;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultStore;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_cloud::{Catalog, DiskConfiguration};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, IoSize, Limit, Limiter, RateLimitLayer, ServiceTime,
};
use flagstone_load::job::BlockSize;
use flagstone_load::results::{LoadOutcome, LoadResults};
use flagstone_load::{AccessPattern, LoadJob, LoadProgress, Stop};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::{RuntimeConfig, run as run_cores};

use super::{MeasuredPool, PoolSide, RANDOM, SUITE, jobs};
use crate::Error;
use crate::bed::{BedTargets, RunOptions, emulated_record};
use crate::mirror::published::ROWS;
use crate::mirror::setup::{CATALOG, DISK_BYTES};

/// Machine whose limits do not bind before the disk's.
const MACHINE: &str = "n1-standard-16";
/// Bytes of an emulated disk, and of the volume in its pool.
const MEMORY_BYTES: u64 = 1 << 30;
const VOLUME_BYTES: u64 = MEMORY_BYTES / 2;
/// Overwrites before the measurement: the free space twice.
const SETTLE_BYTES: u64 = 2 * (MEMORY_BYTES - VOLUME_BYTES);
/// Buffers of the load and the pool.
const BUFFER_BYTES: usize = 256 << 20;
/// Largest transfer that counts as one I/O.
const COUNTED_BYTES: u32 = 256 << 10;
/// Time to fill and overwrite a volume, in seconds.
const SETTLE_S: f64 = 4.0;

/// A disk type to emulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EmulatedType {
    /// Its name in the catalog.
    pub(crate) name: &'static str,
    /// Latency of reads, in µs.
    read_us: u64,
    /// Latency of writes, in µs; the published row's if `None`.
    write_us: Option<u64>,
}

/// The types. The latency of standard disks is an assumption.
pub(crate) const TYPES: [EmulatedType; 2] = [
    EmulatedType { name: "pd-standard", read_us: 10_000, write_us: Some(4_000) },
    EmulatedType { name: "pd-ssd", read_us: 800, write_us: None },
];

#[derive(Clone, Debug)]
pub struct EmulatedPool {
    /// Measures only random writes that may gather.
    pub only_random: bool,
}

pub(crate) fn target_name(of: &EmulatedType, side: PoolSide) -> String {
    format!("{} {}", of.name, side.name())
}

impl EmulatedType {
    fn write_us(&self, job: &BenchJob) -> u64 {
        let published =
            ROWS.iter().find(|row| row.block_bytes == job.block_bytes && row.size != "64K");
        let published = published.unwrap_or(&ROWS[2]).plain.latency_ms * 1e3;
        self.write_us.unwrap_or(published as u64)
    }

    /// The limits of [`DISK_BYTES`].
    fn limit(&self) -> Limit {
        let catalog = Catalog::builtin(CATALOG).expect("a catalog of the program");
        let disk = DiskConfiguration::new(catalog, self.name, DISK_BYTES, MACHINE);
        let found = disk.and_then(|disk| catalog.ceilings(&disk)).expect("a type of the catalog");
        let rate = |value: Option<f64>| value.expect("it is known") as u64;
        let size = IoSize::Units { bytes: COUNTED_BYTES };
        Limit {
            ios: Budget::shared(rate(found.read_iops), rate(found.write_iops)),
            bytes: Budget::shared(rate(found.read_bytes_per_s), rate(found.write_bytes_per_s)),
            read_size: size,
            write_size: size,
        }
    }

    /// Description of a target in the results.
    fn stack(&self, side: PoolSide) -> String {
        let limit = self.limit();
        let read = |budget: Budget| budget.read.map_or(0, |rate| rate.per_second);
        let write = |budget: Budget| budget.write.map_or(0, |rate| rate.per_second);
        let pool = match side {
            PoolSide::Raw => "",
            PoolSide::Pool => "# a volume of a pool that is half full, on such a disk\n",
        };
        format!(
            "{pool}# {} of {} GB, catalog {CATALOG}\n\
             limit = {{ read_iops = {}, write_iops = {}, read_throughput = \"{}B/s\", \
             write_throughput = \"{}B/s\", mix = \"shared\" }}\n\
             disk_model = {{ read_latency = \"{}us\", write_latency = \"{}us\" }}\n\
             device = \"memory:{}MiB\"\n",
            self.name,
            DISK_BYTES / 1_000_000_000,
            read(limit.ios),
            write(limit.ios),
            read(limit.bytes),
            write(limit.bytes),
            self.read_us,
            self.write_us.unwrap_or((ROWS[2].plain.latency_ms * 1e3) as u64),
            MEMORY_BYTES >> 20,
        )
    }
}

/// A measurement, and what the cleaner copied per block written.
struct Measured {
    results: LoadResults,
    copied: Option<f64>,
}

impl EmulatedPool {
    /// Least duration, in seconds.
    pub fn seconds(&self, run: &RunOptions) -> f64 {
        let each = (run.ramp_ms + run.runtime_ms) as f64 / 1e3;
        let measured = jobs(run, self.only_random).len() * TYPES.len();
        f64::from(run.repetitions) * measured as f64 * (2.0 * each + SETTLE_S)
    }

    fn plan(&self, run: &RunOptions) -> CampaignPlan {
        let mut targets = Vec::new();
        let mut stacks = Vec::new();
        for of in &TYPES {
            for side in PoolSide::ALL {
                let name = target_name(of, side);
                // No file: the origin has the configuration.
                let path = format!("emulated-{}", name.replace(' ', "-"));
                stacks.push((path.clone(), of.stack(side)));
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
        let ended = measure_all(&plan, &store, watcher, interrupt, &mut copied);
        let end = match ended {
            Ok(()) => CampaignEnd::Complete,
            Err(error) if error.is_interruption() => CampaignEnd::Interrupted,
            Err(error) => return Err(error),
        };
        let records = store.records()?;
        Ok((plan, MeasuredPool { end, records, copied }))
    }
}

fn measure_all(
    plan: &CampaignPlan,
    store: &ResultStore,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
    copied: &mut Vec<(String, String, f64)>,
) -> Result<(), Error> {
    let steps = plan.steps();
    for (at, step) in steps.iter().enumerate() {
        interrupt.check()?;
        let left_s = steps[at..].iter().map(|step| plan.step_seconds(*step) + SETTLE_S / 2.0).sum();
        let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
        watcher.begin(&format!("{} on {}", job.name, target.name), left_s);
        let (of, side) = TYPES
            .iter()
            .flat_map(|of| PoolSide::ALL.map(|side| (of, side)))
            .find(|(of, side)| target_name(of, *side) == target.name)
            .expect("each target is one of them");
        let started_unix_s = unix_seconds();
        let before = Snapshot::take();
        let measured = measure_one(of, side, job, interrupt)?;
        if let Some(per_block) = measured.copied {
            copied.push((job.name.clone(), target.name.clone(), per_block));
        }
        let command = format!("in this process, on {}", target.name);
        let run = LoadRun { results: measured.results, command, paused_s: 0.0 };
        let record = emulated_record((plan, store), *step, (started_unix_s, &before), run)?;
        store.append(&record)?;
        watcher.done(&record);
    }
    Ok(())
}

fn load_job(job: &BenchJob) -> LoadJob {
    LoadJob {
        pattern: job.pattern,
        block_sizes: vec![BlockSize { bytes: job.block_bytes as usize, weight: 1 }],
        depth: job.depth as usize,
        time: Some(Duration::from_millis(job.runtime_ms)),
        warm_up: Duration::from_millis(job.ramp_ms),
        fua: job.sync,
        size_bytes: Some(VOLUME_BYTES),
        ..LoadJob::default()
    }
}

/// Overwrites that bring the cleaner through the log.
fn settling() -> [LoadJob; 2] {
    let whole = |bytes: usize, pattern, total| LoadJob {
        pattern,
        block_sizes: vec![BlockSize { bytes, weight: 1 }],
        depth: 16,
        time: None,
        bytes: Some(total),
        size_bytes: Some(VOLUME_BYTES),
        ..LoadJob::default()
    };
    let fill = whole(512 << 10, AccessPattern::Write, VOLUME_BYTES);
    [fill, whole(4096, AccessPattern::RandWrite, SETTLE_BYTES)]
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
    let load = load_job(job);
    let (limit, write_us) = (of.limit(), of.write_us(job));
    let read_us = of.read_us;
    let ended = run_cores(&runtime, async || {
        let (stop, time) =
            (Stop::new(), |us| Some(ServiceTime::constant(Duration::from_micros(us))));
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
        let model = DiskModelConfig { read: time(read_us), write: time(write_us), seed: 1 };
        let disk = DiskModelLayer::new(memory, model).map_err(|error| error.to_string())?;
        let limiter = Limiter::new(limit).map_err(|error| error.to_string())?;
        let disk: SharedDevice = Arc::new(RateLimitLayer::new(Arc::new(disk), limiter));
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
    let measured = ended.map_err(|error| unexpected(error.to_string()))?.map_err(unexpected)?;
    interrupt.check()?;
    match measured.results.outcome {
        LoadOutcome::Complete => Ok(measured),
        other => Err(unexpected(format!("it ended as {other:?}"))),
    }
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
    fn limits_are_those_of_the_page() {
        let limits = TYPES.map(|of| of.limit());
        let rates = limits.map(|limit| {
            let of = |budget: Budget| budget.write.map_or(0, |rate| rate.per_second);
            (of(limit.ios), of(limit.bytes) / 1_000_000)
        });
        // 1.5 and 30 writes per second and GB; 0.12 and 0.48 MB/s of 1,024,000 bytes.
        assert_eq!(rates, [(750, 61), (15_000, 245)]);
    }

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
