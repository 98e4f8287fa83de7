//! Disks of a catalog's type, emulated in memory: its limits, and a latency.
//!
//! They are smaller than the disks whose limits they have, so that they fit the memory.

use std::sync::Arc;
use std::time::Duration;

use flagstone_bench::campaign::{CampaignPlan, Watcher};
use flagstone_bench::cpu::Snapshot;
use flagstone_bench::generator::LoadRun;
use flagstone_bench::job::BenchJob;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultStore;
use flagstone_bench::target::BenchTarget;
use flagstone_blockdev::SharedDevice;
use flagstone_cloud::{Catalog, DiskConfiguration};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, IoSize, Limit, Limiter, RateLimitLayer, ServiceTime,
};
use flagstone_load::job::BlockSize;
use flagstone_load::results::{LoadOutcome, LoadResults};
use flagstone_load::{AccessPattern, LoadJob};

use crate::Error;
use crate::bed::{RunOptions, emulated_record};
use crate::mirror::published::ROWS;
use crate::mirror::setup::{CATALOG, DISK_BYTES};

/// Machine whose limits do not bind before the disk's.
const MACHINE: &str = "n1-standard-16";
/// Bytes of an emulated disk, and of the volume in its pool.
pub(crate) const MEMORY_BYTES: u64 = 1 << 30;
pub(crate) const VOLUME_BYTES: u64 = MEMORY_BYTES / 2;
/// Buffers of the load and the pool.
pub(crate) const BUFFER_BYTES: usize = 256 << 20;
/// Largest transfer that counts as one I/O.
const COUNTED_BYTES: u32 = 256 << 10;

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

/// Standard disks; their latency is an assumption.
pub(crate) const STANDARD: EmulatedType =
    EmulatedType { name: "pd-standard", read_us: 10_000, write_us: Some(4_000) };

/// SSD disks.
pub(crate) const SSD: EmulatedType = EmulatedType { name: "pd-ssd", read_us: 800, write_us: None };

impl EmulatedType {
    /// Latency of the job's writes, in µs.
    pub(crate) fn write_us(&self, job: &BenchJob) -> u64 {
        let published =
            ROWS.iter().find(|row| row.block_bytes == job.block_bytes && row.size != "64K");
        let published = published.unwrap_or(&ROWS[2]).plain.latency_ms * 1e3;
        self.write_us.unwrap_or(published as u64)
    }

    /// The limits of [`DISK_BYTES`].
    pub(crate) fn limit(&self) -> Limit {
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

    /// Such a disk over a device, with this latency of writes.
    pub(crate) fn over(&self, device: SharedDevice, write_us: u64) -> Result<SharedDevice, String> {
        let time = |us| Some(ServiceTime::constant(Duration::from_micros(us)));
        let model = DiskModelConfig { read: time(self.read_us), write: time(write_us), seed: 1 };
        let disk = DiskModelLayer::new(device, model).map_err(|error| error.to_string())?;
        let limiter = Limiter::new(self.limit()).map_err(|error| error.to_string())?;
        Ok(Arc::new(RateLimitLayer::new(Arc::new(disk), limiter)))
    }

    /// Description of a target in the results, after comments about its pool.
    pub(crate) fn stack(&self, pool: &str) -> String {
        let limit = self.limit();
        let read = |budget: Budget| budget.read.map_or(0, |rate| rate.per_second);
        let write = |budget: Budget| budget.write.map_or(0, |rate| rate.per_second);
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

/// The load of a job, on the whole device.
pub(crate) fn load_job(job: &BenchJob) -> LoadJob {
    LoadJob {
        pattern: job.pattern,
        block_sizes: vec![BlockSize { bytes: job.block_bytes as usize, weight: 1 }],
        depth: job.depth as usize,
        time: Some(Duration::from_millis(job.runtime_ms)),
        warm_up: Duration::from_millis(job.ramp_ms),
        fua: job.sync,
        ..LoadJob::default()
    }
}

/// Writes of a volume before it is measured.
pub(crate) fn preparation(bytes: usize, pattern: AccessPattern, total: u64) -> LoadJob {
    LoadJob {
        pattern,
        block_sizes: vec![BlockSize { bytes, weight: 1 }],
        depth: 16,
        time: None,
        bytes: Some(total),
        size_bytes: Some(VOLUME_BYTES),
        ..LoadJob::default()
    }
}

/// A campaign on emulated disks.
pub(crate) struct EmulatedCampaign<'a> {
    pub(crate) plan: &'a CampaignPlan,
    pub(crate) store: &'a ResultStore,
    /// Time to prepare a disk, in seconds.
    pub(crate) prepare_s: f64,
    pub(crate) interrupt: &'a Interrupt,
}

impl EmulatedCampaign<'_> {
    /// Measures all steps, each on a new disk, and stores the results.
    ///
    /// # Errors
    /// The first failure, and the user's interruption.
    pub(crate) fn run(
        &self,
        watcher: &mut dyn Watcher,
        measure: &mut dyn FnMut(&BenchJob, &BenchTarget) -> Result<LoadResults, Error>,
    ) -> Result<(), Error> {
        let EmulatedCampaign { plan, store, .. } = *self;
        let steps = plan.steps();
        for (at, step) in steps.iter().enumerate() {
            self.interrupt.check()?;
            let left_s =
                steps[at..].iter().map(|step| plan.step_seconds(*step) + self.prepare_s).sum();
            let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
            let what = format!("{} on {}", job.name, target.name);
            watcher.begin(&what, left_s);
            let started_unix_s = unix_seconds();
            let before = Snapshot::take();
            let results = measure(job, target)?;
            self.interrupt.check()?;
            match results.outcome {
                LoadOutcome::Complete => {}
                other => return Err(Error::unexpected(&what, format!("it ended as {other:?}"))),
            }
            let command = format!("in this process, on {}", target.name);
            let run = LoadRun { results, command, paused_s: 0.0 };
            let record = emulated_record((plan, store), *step, (started_unix_s, &before), run)?;
            store.append(&record)?;
            watcher.done(&record);
        }
        Ok(())
    }
}

/// Least duration of steps that are prepared, in seconds.
pub(crate) fn least_seconds(run: &RunOptions, steps: usize, prepare_s: f64) -> f64 {
    let each = (run.ramp_ms + run.runtime_ms) as f64 / 1e3;
    f64::from(run.repetitions) * steps as f64 * (each + prepare_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_page() {
        let limits = [STANDARD, SSD].map(|of| of.limit());
        let rates = limits.map(|limit| {
            let of = |budget: Budget| budget.write.map_or(0, |rate| rate.per_second);
            (of(limit.ios), of(limit.bytes) / 1_000_000)
        });
        // 1.5 and 30 writes per second and GB; 0.12 and 0.48 MB/s of 1,024,000 bytes.
        assert_eq!(rates, [(750, 61), (15_000, 245)]);
    }
}
