//! Emulated bed: two nodes as processes, with disks and a link that are emulated.
//!
//! The disks have the limits of 500 GB of SSD persistent disk, and a latency that is calibrated on
//! this machine so that the volume without a mirror has its published latency. What differs then is
//! the mirror, the link and this machine. Each repetition is the whole experiment: it calibrates
//! the disks, restarts both nodes for each write size, and measures all setups in turn. So the
//! variation between repetitions includes everything that differs between runs.

use std::path::Path;

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::job::BenchJob;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultStore;
use flagstone_bench::served;
use flagstone_bench::stats::median;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_cloud::{Catalog, DiskConfiguration};

use super::published::{PublishedRow, ROWS};
use super::setup::{
    self, CATALOG, COLD_BYTES, DISK_BYTES, EmulatedDisks, HOT_BYTES, LOOPBACK, MirrorSetup, SETUPS,
    TYPE,
};
use super::summary::Calibrated;
use super::{MeasuredMirror, MirrorLink, SUITE, job_name};
use crate::Error;
use crate::bed::{BedTargets, RunOptions};
use crate::follow::Follow;
use crate::limits::LATENCY_LEAST_US;
use crate::node::{NODE_NAMES, NodePair, device};

/// Warm-up and length of a calibrating measurement, in ms.
const PROBE_MS: (u64, u64) = (300, 1000);
/// Number of times that a disk is measured and adjusted in each repetition.
const PROBES: usize = 3;

/// Duration of the calibration in a repetition, in seconds.
const CALIBRATION_S: f64 = 18.0;
/// Duration of a start of both nodes with the first resync of all volumes, in seconds.
const START_S: f64 = 7.0;

#[derive(Clone, Debug)]
pub struct EmulatedMirror {
    /// Round trip of the link, in µs.
    pub rtt_us: u64,
    /// Machine type whose limits replace the published disk's.
    pub machine: Option<String>,
    /// Names of the setups to measure, [`setup::PLAIN`] among them; all if empty.
    pub only: &'static [&'static str],
}

impl EmulatedMirror {
    pub(super) fn seconds(&self, run: &RunOptions) -> f64 {
        Parameters { run, bed: self }.seconds()
    }

    pub(super) fn measure(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<MeasuredMirror, Error> {
        crate::check_is_new(&run.results)?;
        let parameters = Parameters { run, bed: self };
        parameters.check_machine()?;
        let scratch = crate::scratch()?;
        let mut lab = Lab::new(parameters, scratch.path(), interrupt)?;
        watcher.begin(CALIBRATING, parameters.seconds());
        let first = lab.calibrate()?;
        let targets = lab.targets(&first);
        let whole = lab.whole(&targets);
        let store = run.store(&whole, &targets)?;
        let mut calibrations = vec![first];
        let end = match lab.repetitions(&whole, &store, &mut calibrations, watcher) {
            Err(error) if error.is_interruption() => CampaignEnd::Interrupted,
            ended => ended?,
        };
        let link = MirrorLink { is_measured: false, round_trip_us: self.rtt_us as f64 };
        Ok(MeasuredMirror {
            end,
            records: store.records()?,
            link: Some(link),
            range_bytes: HOT_BYTES,
            disks: Calibrated::medians(&calibrations),
        })
    }
}

#[derive(Clone, Copy)]
struct Parameters<'a> {
    run: &'a RunOptions,
    bed: &'a EmulatedMirror,
}

impl Parameters<'_> {
    fn setups(&self, hot: bool) -> Vec<MirrorSetup> {
        let is_asked =
            |setup: &&MirrorSetup| self.bed.only.is_empty() || self.bed.only.contains(&setup.name);
        let all = SETUPS.iter().filter(is_asked).filter(|setup| setup.is_in(hot));
        let all: Vec<MirrorSetup> = all.copied().collect();
        if all.len() > 1 { all } else { Vec::new() }
    }

    fn all_setups(&self) -> Vec<MirrorSetup> {
        let is_cold = |setup: &MirrorSetup| !setup.is_in(true);
        let cold = self.setups(false).into_iter().filter(is_cold);
        self.setups(true).into_iter().chain(cold).collect()
    }

    fn check_machine(&self) -> Result<(), Error> {
        let Some(machine) = &self.bed.machine else { return Ok(()) };
        let catalog = Catalog::builtin(CATALOG).expect("a catalog of the program");
        DiskConfiguration::new(catalog, TYPE, DISK_BYTES, machine)
            .map(drop)
            .map_err(|error| BenchError::usage(format!("--machine={machine}: {error}")).into())
    }

    fn seconds(&self) -> f64 {
        f64::from(self.run.repetitions) * (CALIBRATION_S + self.rows_seconds(&ROWS))
    }

    fn rows_seconds(&self, rows: &[PublishedRow]) -> f64 {
        rows.iter().map(|row| self.row_seconds(row)).sum()
    }

    /// Disks of a row. The target's disk adds the round trip of the link, except for the loopback's
    /// part.
    fn disks(&self, calibrated: &Calibrated) -> EmulatedDisks {
        let rest_us = self.bed.rtt_us as f64 - calibrated.loopback_us;
        EmulatedDisks {
            write_latency_us: calibrated.write_latency_us,
            link_us: rest_us.round().max(0.0) as u64,
            machine: self.bed.machine.clone(),
        }
    }

    fn row_seconds(&self, row: &PublishedRow) -> f64 {
        let measured = |hot| {
            let each = (self.job(row, hot).ramp_ms + self.run.runtime_ms) as f64 / 1e3 + 0.3;
            self.setups(hot).len() as f64 * each
        };
        let filled: f64 = self.all_setups().iter().map(MirrorSetup::fill_seconds).sum();
        START_S + filled + measured(true) + measured(false)
    }

    fn kinds(&self) -> impl Iterator<Item = bool> {
        [true, false].into_iter().filter(|hot| !self.setups(*hot).is_empty())
    }

    fn job(&self, row: &PublishedRow, hot: bool) -> BenchJob {
        let name = job_name(row, hot);
        super::job(self.run, row, name, if hot { HOT_BYTES } else { COLD_BYTES })
    }

    /// Job that measures the loopback, with the write rate of the row without a mirror: rarer
    /// writes would take longer because the CPUs sleep between them.
    fn loopback_job(&self, row: &PublishedRow) -> BenchJob {
        let (ramp_ms, runtime_ms) = PROBE_MS;
        let per_s = row.plain.mib_per_s * f64::from(1 << 20) / row.block_bytes as f64;
        BenchJob { rate_iops: Some(per_s as u64), ramp_ms, runtime_ms, ..self.job(row, true) }
    }
}

const CALIBRATING: &str = "calibrating the disks and measuring the loopback";

struct Lab<'a> {
    parameters: Parameters<'a>,
    interrupt: &'a Interrupt,
    pair: NodePair,
}

impl Lab<'_> {
    fn new<'a>(
        parameters: Parameters<'a>,
        scratch: &Path,
        interrupt: &'a Interrupt,
    ) -> Result<Lab<'a>, Error> {
        let pair = NodePair::new(&parameters.run.program, scratch)?;
        Ok(Lab { parameters, interrupt, pair })
    }

    /// Median round trips of writes of each row's size to a volume without a disk, in µs.
    fn loopback(&mut self) -> Result<Vec<f64>, Error> {
        self.pair.b.configure(&setup::loopback_configuration(&self.pair))?;
        self.pair.b.start(self.interrupt)?;
        let uri = device(&self.pair.ports[1..], LOOPBACK);
        let generator = self.parameters.run.generator();
        let mut found = Vec::new();
        for row in &ROWS {
            let job = self.parameters.loopback_job(row);
            let results = generator.measure(&job, &uri, self.interrupt, &mut || {})?.results;
            found.push(results.total.map_or(0.0, |total| total.latency_us.p50));
        }
        self.pair.b.stop(self.interrupt)?;
        Ok(found)
    }

    fn calibrate(&mut self) -> Result<Vec<Calibrated>, Error> {
        let loopback = self.loopback()?;
        let rows = ROWS.iter().zip(loopback);
        rows.map(|(row, loopback_us)| self.disk(row, loopback_us)).collect()
    }

    /// Finds the latency of the emulated disk with which the volume without a mirror has its
    /// published latency, including the path to the disk on this machine.
    fn disk(&mut self, row: &PublishedRow, loopback_us: f64) -> Result<Calibrated, Error> {
        let published_us = row.plain.latency_ms * 1e3;
        // Where the throughput limit binds, the latency of the disk is unknown: the published one
        // at 4K is used.
        let bound_by_latency = row.block_bytes < 64 << 10;
        let wanted_us =
            if bound_by_latency { published_us } else { ROWS[2].plain.latency_ms * 1e3 };
        let mut found = Calibrated {
            size: row.size,
            published_us,
            write_latency_us: wanted_us as u64,
            way_us: None,
            loopback_us,
        };
        if !bound_by_latency {
            return Ok(found);
        }
        // Without a machine type, whose limits would look like latency. The median of several
        // probes is robust against other load on this machine.
        let mut job = self.parameters.job(row, true);
        (job.ramp_ms, job.runtime_ms) = PROBE_MS;
        let uri = device(&self.pair.ports[..1], SETUPS[0].volume);
        let generator = self.parameters.run.generator();
        let mut ways_us = Vec::new();
        for _ in 0..PROBES {
            let disks = EmulatedDisks {
                write_latency_us: found.write_latency_us,
                link_us: 0,
                machine: None,
            };
            self.pair.a.configure(&disks.configuration(&self.pair, 0, &SETUPS[..1]))?;
            self.pair.a.start(self.interrupt)?;
            served::fill(&uri, HOT_BYTES, self.interrupt, &mut |_| {})?;
            let results = generator.measure(&job, &uri, self.interrupt, &mut || {})?.results;
            self.pair.a.stop(self.interrupt)?;
            let Some(total) = results.total else { continue };
            ways_us.push((total.latency_us.mean - found.write_latency_us as f64).max(0.0));
            found.way_us = median(&ways_us);
            let way_us = found.way_us.unwrap_or(0.0);
            found.write_latency_us = (wanted_us - way_us).max(LATENCY_LEAST_US) as u64;
        }
        Ok(found)
    }

    /// Runs all repetitions. The first one is calibrated already.
    fn repetitions(
        &mut self,
        whole: &CampaignPlan,
        store: &ResultStore,
        calibrations: &mut Vec<Vec<Calibrated>>,
        watcher: &mut dyn Watcher,
    ) -> Result<CampaignEnd, Error> {
        let (all, each_s) =
            (self.parameters.run.repetitions, CALIBRATION_S + self.parameters.rows_seconds(&ROWS));
        for repetition in 1..=all {
            let later_s = f64::from(all - repetition) * each_s;
            if repetition > 1 {
                watcher.begin(CALIBRATING, later_s + each_s);
                calibrations.push(self.calibrate()?);
            }
            let calibrated = calibrations.last().expect("one per repetition");
            for (at, row) in ROWS.iter().enumerate() {
                let later_s = later_s + self.parameters.rows_seconds(&ROWS[at + 1..]);
                let mut follow = Follow { inner: &mut *watcher, later_s, hides_notes: true };
                let what = format!("starting two nodes for {}, {repetition} of {all}", row.size);
                follow.begin(&what, self.parameters.row_seconds(row));
                self.configure(&calibrated[at])?;
                if self.row(row, repetition, whole, store, &mut follow)? == CampaignEnd::Interrupted
                {
                    return Ok(CampaignEnd::Interrupted);
                }
            }
        }
        Ok(CampaignEnd::Complete)
    }

    fn configure(&self, calibrated: &Calibrated) -> Result<(), Error> {
        let disks = self.parameters.disks(calibrated);
        let setups = self.parameters.all_setups();
        self.pair.a.configure(&disks.configuration(&self.pair, 0, &setups))?;
        self.pair.b.configure(&disks.configuration(&self.pair, 1, &setups))
    }

    /// Measures a row of one repetition with newly started nodes. The store has the earlier
    /// results.
    fn row(
        &mut self,
        row: &PublishedRow,
        repetition: u32,
        whole: &CampaignPlan,
        store: &ResultStore,
        watcher: &mut Follow<'_>,
    ) -> Result<CampaignEnd, Error> {
        let setups = self.parameters.all_setups();
        let mirrored = setups.iter().filter(|setup| setup.mirror.is_one());
        let volumes: Vec<_> = mirrored.map(|setup| setup.volume).collect();
        self.pair.start(&volumes, self.interrupt)?;
        for hot in self.parameters.kinds() {
            let job = self.parameters.job(row, hot);
            let plan = CampaignPlan { repetitions: repetition, ..part(whole, job, hot) };
            let end = self.parameters.run.measure(&plan, store, None, watcher, self.interrupt)?;
            if end == CampaignEnd::Interrupted {
                return Ok(CampaignEnd::Interrupted);
            }
        }
        self.pair.stop(self.interrupt)?;
        Ok(CampaignEnd::Complete)
    }

    fn address(&self, setup: &MirrorSetup) -> String {
        device(&self.pair.ports[..1], setup.volume)
    }

    fn targets(&self, calibrated: &[Calibrated]) -> BedTargets {
        let setups = self.parameters.all_setups();
        let volumes = setups.iter().map(|one| (self.address(one), self.stack(one, calibrated)));
        // Memory that was never written is slower than a disk: the kernel has to allocate it first.
        BedTargets { precondition: true, ..BedTargets::emulated(volumes) }
    }

    fn whole(&self, targets: &BedTargets) -> CampaignPlan {
        let setups = self.parameters.all_setups();
        let volumes = setups.iter().map(|setup| BenchTarget {
            name: setup.name.to_owned(),
            disks: vec![DiskAddress::NvmeTcp(self.address(setup))],
        });
        let of = |row| self.parameters.kinds().map(move |hot| self.parameters.job(row, hot));
        let jobs = ROWS.iter().flat_map(of).collect();
        let title = "Experiment A on EMULATED disks: a mirror against no mirror";
        self.parameters.run.plan((SUITE, title), jobs, volumes.collect(), targets)
    }

    /// Configuration of a setup's volumes in the first repetition, for each write size.
    fn stack(&self, setup: &MirrorSetup, calibrated: &[Calibrated]) -> String {
        let mut text = match self.parameters.run.repetitions {
            0 | 1 => String::new(),
            _ => "# in the first repetition; each calibrates its disks again\n".to_owned(),
        };
        for one in calibrated {
            let disks = self.parameters.disks(one);
            for (index, node) in NODE_NAMES.iter().enumerate() {
                let volume = disks.volume(&self.pair, setup, index);
                if !volume.is_empty() {
                    text += &format!("# {}, on {node}\n{volume}", one.size);
                }
            }
        }
        text
    }
}

fn part(whole: &CampaignPlan, job: BenchJob, hot: bool) -> CampaignPlan {
    let takes_part =
        |target: &&BenchTarget| SETUPS.iter().any(|s| s.name == target.name && s.is_in(hot));
    let targets = whole.targets.iter().filter(takes_part).cloned().collect();
    CampaignPlan { jobs: vec![job], targets, ..whole.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::run_options;
    use crate::mirror::is_plain;
    use crate::mirror::setup::PLAIN;
    use flagstone_bench::provenance::Provenance;

    const BED: EmulatedMirror = EmulatedMirror { rtt_us: 300, machine: None, only: &[] };

    fn options() -> RunOptions {
        RunOptions { ramp_ms: 1000, runtime_ms: 2000, repetitions: 4, ..run_options("r".into()) }
    }

    #[test]
    fn setups_can_be_left_out() {
        let run = options();
        let all = Parameters { run: &run, bed: &BED };
        assert_eq!(all.all_setups(), SETUPS);
        assert_eq!(all.kinds().collect::<Vec<_>>(), [true, false]);
        let bed = EmulatedMirror { only: &[PLAIN, setup::MIRROR], ..BED };
        let few = Parameters { run: &run, bed: &bed };
        let names: Vec<_> = few.all_setups().iter().map(|setup| setup.name).collect();
        assert_eq!(names, [PLAIN, setup::MIRROR]);
        assert_eq!(few.kinds().collect::<Vec<_>>(), [true]);
        assert!(few.seconds() < all.seconds() / 2.0);
    }

    #[test]
    fn plan_is_marked_as_emulated() {
        let directory = tempfile::tempdir().unwrap();
        let (run, never) = (options(), Interrupt::never());
        let parameters = Parameters { run: &run, bed: &BED };
        let lab = Lab::new(parameters, directory.path(), &never).unwrap();
        let calibrated: Vec<_> = ROWS
            .iter()
            .map(|row| Calibrated {
                size: row.size,
                published_us: 2000.0,
                write_latency_us: 1800,
                way_us: Some(200.0),
                loopback_us: 90.0,
            })
            .collect();
        let whole = lab.whole(&lab.targets(&calibrated));
        whole.check().unwrap();
        for target in &whole.targets {
            let origin = &whole.origins[&target.address()];
            assert_eq!(origin.provenance, Provenance::Emulated);
            assert!(origin.stack.contains("disk_model = ") && origin.stack.contains("# 64K, on"));
            if target.name == setup::MIRROR {
                // The loopback takes 90 of the link's 300.
                assert!(origin.stack.contains("write_latency = \"2010us\""), "{}", origin.stack);
            }
            assert!(origin.stack.len() < flagstone_bench::limits::STACK_BYTES);
        }
        assert!(whole.title.contains("EMULATED"));
    }

    #[test]
    fn loopback_is_part_of_the_link() {
        let run = options();
        let parameters = Parameters { run: &run, bed: &BED };
        let mut calibrated = Calibrated {
            size: "8K",
            published_us: 1935.0,
            write_latency_us: 1800,
            way_us: Some(135.0),
            loopback_us: 89.6,
        };
        assert_eq!(parameters.disks(&calibrated).link_us, 210);
        calibrated.loopback_us = 400.0;
        assert_eq!(parameters.disks(&calibrated).link_us, 0, "it cannot be shorter");
        let job = parameters.loopback_job(&ROWS[1]);
        assert_eq!((job.depth, job.rate_iops, job.block_bytes), (24, Some(12_390), 8192));
        job.check().unwrap();
    }

    #[test]
    fn parts_cover_every_setup() {
        let directory = tempfile::tempdir().unwrap();
        let (run, never) = (options(), Interrupt::never());
        let parameters = Parameters { run: &run, bed: &BED };
        let lab = Lab::new(parameters, directory.path(), &never).unwrap();
        let whole = lab.whole(&lab.targets(&[]));
        let parts: Vec<_> =
            [true, false].map(|hot| part(&whole, parameters.job(&ROWS[1], hot), hot)).into();
        for plan in &parts {
            plan.check().unwrap();
            assert!(is_plain(&plan.targets[0].name), "the others are compared with the first");
        }
        assert_eq!(parts[0].targets.len() + parts[1].targets.len(), SETUPS.len() + 1);
        assert_eq!(
            (parts[0].jobs[0].name.as_str(), parts[1].jobs[0].name.as_str()),
            ("8k", "8k-cold")
        );
    }
}
