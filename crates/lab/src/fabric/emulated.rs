//! Emulated bed of the fabric experiment: striped SSDs in the generator's process, and behind a
//! server with a network limit.

use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::cpu::Snapshot;
use flagstone_bench::environment;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::generator::{LoadRun, arguments};
use flagstone_bench::job::BenchJob;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_config::Config;
use flagstone_load::results::{LoadOutcome, LoadResults};
use flagstone_load::{AccessPattern, Stop};
use flagstone_runtime::{RuntimeConfig, run as run_cores};
use flagstone_stack::open_volume;

use super::{DEPTH, DISKS, FABRIC, FabricBottleneck, FabricRow, LOCAL, SUITE};
use crate::Error;
use crate::bed::{BedTargets, MeasuredRecords, RunOptions, emulated_record};
use crate::emulated_disk::load_job;
use crate::figures::Figures;
use crate::limits::BUSY_PERCENT;
use crate::node::{LabNode, device};
use crate::ports::free_ports;

/// Published IOPS of one SSD: reads and writes of 4 KiB.
const DISK_IOPS: (u64, u64) = (180_000, 100_000);
/// Latency of one SSD, in µs. No source has it; 32 in flight at 180,000 per second are 178 µs.
const LATENCY_US: u64 = 100;
/// Network of n1-highcpu-16, in bytes per second: the 16 Gbit/s that the published rows need.
const NETWORK_BYTES_PER_S: u64 = 2_000_000_000;
/// Share of data in the bytes on the wire: 4,096 bytes and the headers of NVMe/TCP, TCP and IP.
const WIRE_SHARE: f64 = 4096.0 / 4190.0;
/// Buffer memory of the local generator, in bytes.
const MEMORY_BYTES: usize = 256 << 20;
/// Distance from the model's limit within which that limit counts as the bottleneck, in %.
const NEAR_PERCENT: f64 = 3.0;

#[derive(Clone, Debug)]
pub struct EmulatedFabric {
    /// Factor by which disks and network are slower than the published ones.
    pub scale: u32,
    /// Numbers of SSDs to measure, each from 1 to [`DISKS`].
    pub disks: Vec<u32>,
}

/// IOPS that disks and network allow, and which of them is the limit.
pub(super) fn model(
    scale: u32,
    rw: AccessPattern,
    disks: u32,
    is_remote: bool,
) -> (f64, FabricBottleneck) {
    let each = if rw.writes() { DISK_IOPS.1 } else { DISK_IOPS.0 };
    let of_disks = each as f64 * f64::from(disks);
    let of_network = NETWORK_BYTES_PER_S as f64 * WIRE_SHARE / 4096.0;
    let (allowed, bound) = match is_remote && of_network < of_disks {
        true => (of_network, FabricBottleneck::Network),
        false => (of_disks, FabricBottleneck::Disks),
    };
    (allowed / f64::from(scale), bound)
}

pub(super) fn bottleneck(
    figures: &Figures,
    model_iops: f64,
    by_model: FabricBottleneck,
    is_local: bool,
) -> FabricBottleneck {
    match figures.cpu_percent {
        _ if figures.iops >= model_iops * (1.0 - NEAR_PERCENT / 100.0) => by_model,
        // The generator of a local disk has one core, on any machine.
        _ if is_local => FabricBottleneck::Cpu,
        Some(percent) if percent >= BUSY_PERCENT => FabricBottleneck::Cpu,
        _ => FabricBottleneck::Latency,
    }
}

impl EmulatedFabric {
    fn volume_name(disks: u32) -> String {
        format!("ssd-x{disks}")
    }

    /// Configuration of SSDs as one volume, with the network's limit above remote ones.
    fn volume(&self, disks: u32, is_remote: bool) -> String {
        let scaled = |rate: u64| (rate / u64::from(self.scale)).max(1);
        let (reads, writes) = DISK_IOPS;
        let network = scaled((NETWORK_BYTES_PER_S as f64 * WIRE_SHARE) as u64);
        let network = match is_remote {
            true => {
                format!(", read_throughput = \"{network}B/s\", write_throughput = \"{network}B/s\"")
            }
            false => String::new(),
        };
        let backing = match disks {
            1 => "device = \"null:375GiB\"\n".to_owned(),
            _ => {
                let all = vec!["\"null:375GiB\""; disks as usize].join(", ");
                format!("stripe = {{ chunk = \"64KiB\", devices = [{all}] }}\n")
            }
        };
        format!(
            "[volume.{}]\nlimit = {{ read_iops = {}, write_iops = {}{network} }}\n\
             disk_model = {{ latency = \"{LATENCY_US}us\" }}\n{backing}\n",
            EmulatedFabric::volume_name(disks),
            scaled(reads) * u64::from(disks),
            scaled(writes) * u64::from(disks),
        )
    }

    fn volumes(&self, is_remote: bool) -> String {
        (1..=DISKS).map(|disks| self.volume(disks, is_remote)).collect()
    }

    /// The job on a number of SSDs; its depth is the sum over the SSDs, which are one volume.
    fn job(run: &RunOptions, pattern: AccessPattern, disks: u32) -> BenchJob {
        BenchJob { depth: DEPTH * disks, ..super::job(run, pattern, disks) }
    }

    fn jobs(&self, run: &RunOptions) -> Vec<BenchJob> {
        let of = |pattern| self.disks.iter().map(move |disks| Self::job(run, pattern, *disks));
        [AccessPattern::RandWrite, AccessPattern::RandRead].into_iter().flat_map(of).collect()
    }

    fn plan(&self, run: &RunOptions, port: u16) -> (CampaignPlan, BedTargets) {
        let addresses = |is_remote: bool| -> Vec<DiskAddress> {
            let address = |disks| match is_remote {
                true => DiskAddress::NvmeTcp(device(&[port], &Self::volume_name(disks))),
                // No file: the origin has the configuration.
                false => DiskAddress::Path(format!("emulated-{}", Self::volume_name(disks)).into()),
            };
            (1..=DISKS).map(address).collect()
        };
        let mut targets = Vec::new();
        let mut volumes = Vec::new();
        for (name, is_remote) in [(LOCAL, false), (FABRIC, true)] {
            let disks = addresses(is_remote);
            let stacks = (1..).map(|at| self.volume(at, is_remote));
            volumes.extend(disks.iter().map(ToString::to_string).zip(stacks));
            targets.push(BenchTarget { name: name.to_owned(), disks });
        }
        let bed = BedTargets::emulated(volumes);
        let title = "Experiment B on EMULATED disks: local SSDs against NVMe/TCP";
        (run.plan((SUITE, title), self.jobs(run), targets, &bed), bed)
    }

    pub(super) fn measure(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<MeasuredRecords, Error> {
        crate::check_is_new(&run.results)?;
        let scratch = crate::scratch()?;
        let [port] = free_ports()?;
        let mut server = LabNode::new(&run.program, scratch.path(), "lab");
        server.configure_alone(&[format!("nvme-tcp://127.0.0.1:{port}")], &self.volumes(true))?;
        let (plan, _) = self.plan(run, port);
        plan.check()?;
        let store = ResultStore::create(&run.results, &plan)?;
        store.environment(&environment::record(&[], None))?;
        server.start(interrupt)?;
        let bench = Bench { bed: self, run, plan: &plan, store: &store, interrupt };
        let end = match bench.measure_all(watcher) {
            Ok(()) => {
                server.stop(interrupt)?;
                CampaignEnd::Complete
            }
            Err(error) if error.is_interruption() => CampaignEnd::Interrupted,
            Err(error) => return Err(error),
        };
        Ok((end, store.records()?))
    }

    pub(super) fn caveats(&self, rows: &[FabricRow]) -> Vec<String> {
        let mut caveats = vec![
            "the network is emulated too; generator and server share the CPUs of this machine, where \
             the published server and client had 16 vCPUs each"
                .to_owned(),
        ];
        if self.scale > 1 {
            caveats.push(format!(
                "disks and network are {} times slower than the published ones: compare ratios, not \
                 IOPS",
                self.scale
            ));
        }
        let mut busy = Vec::new();
        for row in rows {
            for (name, side) in row.sides() {
                if side.bound == Some(FabricBottleneck::Cpu) {
                    busy.push(format!("{} x{} {name}", row.rw, row.disks));
                }
            }
        }
        if !busy.is_empty() {
            caveats.push(format!(
                "the CPU of this machine, not the model, limited: {}; --scale makes the model slower",
                busy.join("; ")
            ));
        }
        caveats
    }
}

struct Bench<'a> {
    bed: &'a EmulatedFabric,
    run: &'a RunOptions,
    plan: &'a CampaignPlan,
    store: &'a ResultStore,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn measure_all(&self, watcher: &mut dyn Watcher) -> Result<(), Error> {
        let steps = self.plan.steps();
        for (at, step) in steps.iter().enumerate() {
            self.interrupt.check()?;
            let left_s = steps[at..].iter().map(|step| self.plan.step_seconds(*step)).sum();
            let (job, target) = (&self.plan.jobs[step.job], &self.plan.targets[step.target]);
            watcher.begin(&format!("{} on {}", job.name, target.name), left_s);
            let started_unix_s = unix_seconds();
            let before = Snapshot::take();
            let run = match &target.disks[job.disks as usize - 1] {
                DiskAddress::NvmeTcp(uri) => {
                    let generator = self.run.generator();
                    generator.measure(job, uri, self.interrupt, &mut || watcher.tick())?
                }
                other => LoadRun {
                    results: self.local(job)?,
                    command: format!("in this process, on {other}"),
                    paused_s: 0.0,
                },
            };
            let campaign = (self.plan, self.store);
            let record = ResultRecord {
                // Per disk, as in the published table and its suite.
                depth: DEPTH,
                ..emulated_record(campaign, *step, (started_unix_s, &before), run)?
            };
            self.store.append(&record)?;
            watcher.done(&record);
        }
        Ok(())
    }

    /// Measures a local volume in this process, on one core, as a program uses a local disk.
    fn local(&self, job: &BenchJob) -> Result<LoadResults, Error> {
        let what = shell("flagstone", &arguments(job, "an emulated disk").unwrap_or_default());
        let unexpected = |detail: String| Error::unexpected(&what, detail);
        let text = self.bed.volumes(false);
        let config = Config::parse("lab", &text).map_err(|wrong| unexpected(wrong.to_string()))?;
        let load = load_job(job);
        let (stop, interrupt) = (Stop::new(), self.interrupt);
        let runtime = RuntimeConfig {
            cores: 1,
            buffer_memory_bytes: MEMORY_BYTES,
            ..RuntimeConfig::default()
        };
        let index = job.disks as usize - 1;
        let ended = run_cores(&runtime, || async {
            let opened = open_volume(&config, index, &[]).await;
            let device = opened.map_err(|error| error.to_string())?.device;
            let look = |_: &flagstone_load::LoadProgress| {
                if interrupt.is_raised() {
                    stop.stop();
                }
            };
            let results = flagstone_load::run(device, &load, &stop, look).await;
            results.map_err(|error| error.to_string())
        });
        let results = ended.map_err(|error| unexpected(error.to_string()))?.map_err(unexpected)?;
        self.interrupt.check()?;
        match results.outcome {
            LoadOutcome::Complete => Ok(results),
            other => Err(unexpected(format!("it ended as {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_bench::provenance::Provenance;
    use flagstone_config::LayerConfig;

    use super::*;
    use crate::bed::tests::run_options;

    fn bed(scale: u32) -> EmulatedFabric {
        EmulatedFabric { scale, disks: (1..=DISKS).collect() }
    }

    #[test]
    fn emulated_volumes_of_both_sides_are_valid() {
        for (scale, is_remote) in [(1, false), (1, true), (10, true)] {
            let text = bed(scale).volumes(is_remote);
            let config =
                Config::parse("lab", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
            assert_eq!(config.volumes.len(), DISKS as usize);
            for volume in &config.volumes {
                assert!(
                    volume.layers.iter().any(|layer| matches!(layer, LayerConfig::DiskModel(_)))
                );
            }
        }
        let run = RunOptions { repetitions: 2, ..run_options("results".into()) };
        let (plan, _) = bed(1).plan(&run, 1);
        plan.check().unwrap();
        assert_eq!(plan.steps().len(), 2 * 2 * 2 * DISKS as usize);
        for disk in plan.targets.iter().flat_map(|target| &target.disks) {
            assert_eq!(plan.origins[&disk.to_string()].provenance, Provenance::Emulated);
        }
    }

    #[test]
    fn local_disk_is_measured_in_this_process() {
        let (bed, never) = (bed(1000), Interrupt::never());
        let directory = tempfile::tempdir().unwrap();
        let run = RunOptions { runtime_ms: 50, ..run_options("results".into()) };
        let (plan, _) = bed.plan(&run, 1);
        let store = ResultStore::create(directory.path(), &plan).unwrap();
        let bench = Bench { bed: &bed, run: &run, plan: &plan, store: &store, interrupt: &never };
        let job = EmulatedFabric::job(&run, AccessPattern::RandRead, 4);
        let results = bench.local(&job).unwrap();
        assert!(results.total.is_some_and(|total| total.ios > 0));
    }
}
