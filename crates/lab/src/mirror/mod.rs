//! Experiment A: a mirror against no mirror, beside the published table.
//!
//! Two nodes are two processes. Their disks are emulated ones of 500 GB of SSD persistent disk, whose
//! latency is calibrated on this machine so that what is not mirrored comes out as published; what
//! differs then is the mirror, the link and this machine. A repetition is the whole experiment: the
//! disks are calibrated, and for each size of write both nodes are started anew and all set-ups take
//! turns. So the noise between repetitions has all that differs from one run to the next.
//!
//! [`published`] is what came out then, [`setup`] what is set against what, [`summary`] what came out
//! now, [`tables`] both beside each other, [`customer`] what else was told then.

mod customer;
pub mod published;
pub mod setup;
pub mod summary;
pub mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::{Choice, Initiator};
use flagstone_bench::campaign::{Campaign, Ending, Plan, Watcher};
use flagstone_bench::environment;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::Interrupt;
use flagstone_bench::results::{SCHEMA_VERSION, Store};
use flagstone_bench::served;
use flagstone_bench::stats::median;
use flagstone_bench::target::{Place, Target};
use flagstone_cloud::{Catalogue, Configuration};

use self::published::{IN_FLIGHT, ROWS, Row};
use self::setup::{
    CATALOGUE, COLD_BYTES, DISK_BYTES, Disks, HOT_BYTES, LOOPBACK, PLAIN, SETUPS, Setup, TYPE,
};
use self::summary::{Calibrated, Summary};
use crate::Error;
use crate::follow::Follow;
use crate::limits::LATENCY_LEAST_US;
use crate::node::{Pair, device};

/// The suite that measures the same on real disks: the report then shows the published table.
const SUITE: &str = "mirror";
/// Warm-up and length of a measurement that calibrates, in ms.
const PROBE_MS: (u64, u64) = (300, 1000);
/// How often a disk is measured and its latency set anew, in each repetition.
const PROBES: usize = 3;

/// What a repetition's looks at the loopback and at the disks take, and a start of both nodes with a
/// first copy of all volumes, in seconds.
const CALIBRATION_S: f64 = 18.0;
/// See [`CALIBRATION_S`].
const START_S: f64 = 7.0;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `flagstone` program.
    pub program: PathBuf,
    /// What was typed, for whoever wants to do it again.
    pub command: String,
    /// Where the results go: a directory without results.
    pub results: PathBuf,
    /// The link's round trip, in µs.
    pub rtt_us: u64,
    /// A machine type whose limits hold in place of the published disk's.
    pub machine: Option<String>,
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Of each measurement.
    pub repetitions: u32,
    /// Names of the set-ups that are measured, [`PLAIN`] among them; all if there are none.
    pub only: &'static [&'static str],
}

impl Options {
    /// What is measured, with everything hot or not; nothing if only what it would be compared with
    /// is left.
    fn setups(&self, hot: bool) -> Vec<Setup> {
        let is_asked = |setup: &&Setup| self.only.is_empty() || self.only.contains(&setup.name);
        let all = SETUPS.iter().filter(is_asked).filter(|setup| setup.is_in(hot));
        let all: Vec<Setup> = all.copied().collect();
        if all.len() > 1 { all } else { Vec::new() }
    }

    /// All of both.
    fn all_setups(&self) -> Vec<Setup> {
        let is_cold = |setup: &Setup| !setup.is_in(true);
        let cold = self.setups(false).into_iter().filter(is_cold);
        self.setups(true).into_iter().chain(cold).collect()
    }

    /// That the catalogue has the machine that was named.
    fn check_machine(&self) -> Result<(), Error> {
        let Some(machine) = &self.machine else { return Ok(()) };
        let catalogue = Catalogue::builtin(CATALOGUE).expect("a catalogue of the program");
        Configuration::new(catalogue, TYPE, DISK_BYTES, machine)
            .map(drop)
            .map_err(|error| BenchError::usage(format!("--machine={machine}: {error}")).into())
    }

    /// How long it takes at least, in seconds.
    pub fn seconds(&self) -> f64 {
        f64::from(self.repetitions) * (CALIBRATION_S + self.rows_seconds(&ROWS))
    }

    /// How long some rows of one repetition take, in seconds.
    fn rows_seconds(&self, rows: &[Row]) -> f64 {
        rows.iter().map(|row| self.row_seconds(row)).sum()
    }

    /// The disks of a row, and what the target's has to add so that the link takes its round trip:
    /// the loopback's own part of it is there already.
    fn disks(&self, calibrated: &Calibrated) -> Disks {
        let rest_us = self.rtt_us as f64 - calibrated.loopback_us;
        Disks {
            write_latency_us: calibrated.write_latency_us,
            link_us: rest_us.round().max(0.0) as u64,
            machine: self.machine.clone(),
        }
    }

    /// How long a row of one repetition takes, in seconds.
    fn row_seconds(&self, row: &Row) -> f64 {
        let measured = |hot| {
            let each = (self.job(row, hot).ramp_ms + self.runtime_ms) as f64 / 1e3 + 0.3;
            self.setups(hot).len() as f64 * each
        };
        let filled: f64 = self.all_setups().iter().map(Setup::fill_seconds).sum();
        START_S + filled + measured(true) + measured(false)
    }

    /// With everything hot, and not, as far as it is asked.
    fn kinds(&self) -> impl Iterator<Item = bool> {
        [true, false].into_iter().filter(|hot| !self.setups(*hot).is_empty())
    }

    fn job(&self, row: &Row, hot: bool) -> Job {
        Job {
            name: job_name(row, hot),
            pattern: Pattern::RandWrite,
            block_bytes: row.block_bytes,
            // One thread keeps as much in flight as diskspd's eight did: ours does not block.
            depth: IN_FLIGHT,
            threads: 1,
            disks: 1,
            ramp_ms: self.ramp_ms,
            runtime_ms: self.runtime_ms,
            size_bytes: Some(if hot { HOT_BYTES } else { COLD_BYTES }),
            // -Sh: written through.
            sync: true,
            ..Job::default()
        }
    }

    /// As many writes a second as the row without a mirror has: seldom ones find the CPUs asleep,
    /// and take longer than those that a mirror sends.
    fn loopback_job(&self, row: &Row) -> Job {
        let (ramp_ms, runtime_ms) = PROBE_MS;
        let per_s = row.plain.mib_per_s * f64::from(1 << 20) / row.block_bytes as f64;
        Job { rate_iops: Some(per_s as u64), ramp_ms, runtime_ms, ..self.job(row, true) }
    }
}

/// What a job of a row is called.
fn job_name(row: &Row, hot: bool) -> String {
    row.size.to_lowercase() + if hot { "" } else { "-cold" }
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

/// Runs the experiment. What it measures is in the results' directory as soon as it is measured.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    crate::check_is_new(&options.results)?;
    options.check_machine()?;
    let scratch = crate::scratch()?;
    let mut lab = Lab::new(options, scratch.path(), interrupt)?;
    watcher.begin(CALIBRATING, options.seconds());
    let first = lab.calibrate()?;
    let whole = lab.whole(&first);
    whole.check()?;
    let store = Store::create(&options.results, &whole)?;
    let mut calibrations = vec![first];
    let ending = match lab.repetitions(&whole, &store, &mut calibrations, watcher) {
        Err(error) if error.is_interruption() => Ending::Interrupted,
        ended => ended?,
    };
    let machine = environment::record(&[], None);
    let summary = Summary::new(options, &calibrations, &machine, &store.records()?);
    Ok(Outcome { ending, summary })
}

/// What a watcher is told of it.
const CALIBRATING: &str = "calibrating the disks, and measuring this machine's own round trip";

/// The nodes, and what drives them.
struct Lab<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    generator: Generator,
    pair: Pair,
}

impl Lab<'_> {
    fn new<'a>(
        options: &'a Options,
        scratch: &Path,
        interrupt: &'a Interrupt,
    ) -> Result<Lab<'a>, Error> {
        let generator = Generator { program: options.program.clone() };
        let pair = Pair::new(&options.program, scratch)?;
        Ok(Lab { options, interrupt, generator, pair })
    }

    /// What a write of each row's size and its answer take from process to process on this machine,
    /// with no disk at all, in µs: medians, which a busy moment does not move.
    fn loopback(&mut self) -> Result<Vec<f64>, Error> {
        self.pair.b.configure(&setup::loopback_configuration(&self.pair))?;
        self.pair.b.start(self.interrupt)?;
        let uri = device(&self.pair.ports[1..], LOOPBACK);
        let mut found = Vec::new();
        for row in &ROWS {
            let job = self.options.loopback_job(row);
            let results = self.generator.measure(&job, &uri, self.interrupt, &mut || {})?.results;
            found.push(results.total.map_or(0.0, |total| total.latency_us.p50));
        }
        self.pair.b.stop(self.interrupt)?;
        Ok(found)
    }

    /// Measures the loopback and makes the disks of every row like the published ones.
    fn calibrate(&mut self) -> Result<Vec<Calibrated>, Error> {
        let loopback = self.loopback()?;
        let rows = ROWS.iter().zip(loopback);
        rows.map(|(row, loopback_us)| self.disk(row, loopback_us)).collect()
    }

    /// Finds the latency of the emulated disk with which what is not mirrored takes as long as
    /// published: what the way to the disk takes on this machine is part of it.
    fn disk(&mut self, row: &Row, loopback_us: f64) -> Result<Calibrated, Error> {
        let published_us = row.plain.latency_ms * 1e3;
        // Where the disk's throughput binds, its latency does not matter below what the queue
        // makes of it: that of the next smaller write that was published is taken.
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
        // The disk alone: a machine's limits would be taken for latency. The middle of some looks: one
        // may be of a moment in which this machine did something else.
        let mut job = self.options.job(row, true);
        (job.ramp_ms, job.runtime_ms) = PROBE_MS;
        let uri = device(&self.pair.ports[..1], SETUPS[0].volume);
        let mut ways_us = Vec::new();
        for _ in 0..PROBES {
            let disks =
                Disks { write_latency_us: found.write_latency_us, link_us: 0, machine: None };
            self.pair.a.configure(&disks.configuration(&self.pair, 0, &SETUPS[..1]))?;
            self.pair.a.start(self.interrupt)?;
            served::fill(&uri, HOT_BYTES, self.interrupt, &mut |_| {})?;
            let results = self.generator.measure(&job, &uri, self.interrupt, &mut || {})?.results;
            self.pair.a.stop(self.interrupt)?;
            let Some(total) = results.total else { continue };
            ways_us.push((total.latency_us.mean - found.write_latency_us as f64).max(0.0));
            found.way_us = median(&ways_us);
            let way_us = found.way_us.unwrap_or(0.0);
            found.write_latency_us = (wanted_us - way_us).max(LATENCY_LEAST_US) as u64;
        }
        Ok(found)
    }

    /// The whole experiment, as often as it was asked for: the first repetition's disks are
    /// calibrated, those of the others are here.
    fn repetitions(
        &mut self,
        whole: &Plan,
        store: &Store,
        calibrations: &mut Vec<Vec<Calibrated>>,
        watcher: &mut dyn Watcher,
    ) -> Result<Ending, Error> {
        let (all, each_s) =
            (self.options.repetitions, CALIBRATION_S + self.options.rows_seconds(&ROWS));
        for repetition in 1..=all {
            let later_s = f64::from(all - repetition) * each_s;
            if repetition > 1 {
                watcher.begin(CALIBRATING, later_s + each_s);
                calibrations.push(self.calibrate()?);
            }
            let calibrated = calibrations.last().expect("one of each repetition");
            for (at, row) in ROWS.iter().enumerate() {
                let later_s = later_s + self.options.rows_seconds(&ROWS[at + 1..]);
                let mut follow = Follow { inner: &mut *watcher, later_s };
                let what = format!("starting two nodes for {}, {repetition} of {all}", row.size);
                follow.begin(&what, self.options.row_seconds(row));
                self.configure(&calibrated[at])?;
                if self.row(row, repetition, whole, store, &mut follow)? == Ending::Interrupted {
                    return Ok(Ending::Interrupted);
                }
            }
        }
        Ok(Ending::Complete)
    }

    /// Gives both nodes the volumes of all set-ups, on such disks.
    fn configure(&self, calibrated: &Calibrated) -> Result<(), Error> {
        let disks = self.options.disks(calibrated);
        let setups = self.options.all_setups();
        self.pair.a.configure(&disks.configuration(&self.pair, 0, &setups))?;
        self.pair.b.configure(&disks.configuration(&self.pair, 1, &setups))
    }

    /// A row of one repetition, with nodes that have done nothing yet: what was measured before is in
    /// the store.
    fn row(
        &mut self,
        row: &Row,
        repetition: u32,
        whole: &Plan,
        store: &Store,
        watcher: &mut Follow<'_>,
    ) -> Result<Ending, Error> {
        let setups = self.options.all_setups();
        let mirrored = setups.iter().filter(|setup| setup.mirror.is_one());
        let volumes: Vec<_> = mirrored.map(|setup| setup.volume).collect();
        self.pair.start(&volumes, self.interrupt)?;
        for hot in self.options.kinds() {
            let job = self.options.job(row, hot);
            let plan = Plan { repetitions: repetition, ..part(whole, job, hot) };
            let campaign = Campaign {
                plan: &plan,
                store,
                fio: None,
                generator: &self.generator,
                initiator: &Initiator::of_machine(),
                interrupt: self.interrupt,
            };
            if campaign.run(watcher)? == Ending::Interrupted {
                return Ok(Ending::Interrupted);
            }
        }
        self.pair.stop(self.interrupt)?;
        Ok(Ending::Complete)
    }

    /// All that is to be done, as it is kept with the results.
    fn whole(&self, calibrated: &[Calibrated]) -> Plan {
        let address = |setup: &Setup| device(&self.pair.ports[..1], setup.volume);
        let setups = self.options.all_setups();
        let targets = setups.iter().map(|setup| Target {
            name: setup.name.to_owned(),
            disks: vec![Place::NvmeTcp(address(setup))],
        });
        let origins = setups.iter().map(|setup| {
            let stack = self.stack(setup, calibrated);
            (address(setup), Origin { nature: Nature::Emulated, stack })
        });
        let of = |row| self.options.kinds().map(move |hot| self.options.job(row, hot));
        let jobs = ROWS.iter().flat_map(of);
        Plan {
            schema_version: SCHEMA_VERSION,
            suite: SUITE.to_owned(),
            title: "Experiment A on EMULATED disks: a mirror against no mirror".to_owned(),
            jobs: jobs.collect(),
            targets: targets.collect(),
            repetitions: self.options.repetitions,
            steady_state: false,
            // Memory that was never written to costs what a disk does not: the system has to find it
            // first.
            precondition: true,
            // No file is made.
            file_bytes: HOT_BYTES,
            initiator: Choice::Flagstone,
            origins: origins.collect::<BTreeMap<_, _>>(),
            command: Some(self.options.command.clone()),
            destroy: setups.iter().map(address).collect(),
        }
    }

    /// How a set-up's volumes were configured in the first repetition, for each size of write.
    fn stack(&self, setup: &Setup, calibrated: &[Calibrated]) -> String {
        let mut text = match self.options.repetitions {
            0 | 1 => String::new(),
            _ => "# of the first repetition: each calibrates its disks anew\n".to_owned(),
        };
        for one in calibrated {
            let disks = self.options.disks(one);
            for (index, node) in crate::node::NAMES.iter().enumerate() {
                let volume = disks.volume(&self.pair, setup, index);
                if !volume.is_empty() {
                    text += &format!("# {}, on {node}\n{volume}", one.size);
                }
            }
        }
        text
    }
}

/// The part of the whole that is one job on the set-ups that it suits.
fn part(whole: &Plan, job: Job, hot: bool) -> Plan {
    let takes_part =
        |target: &&Target| SETUPS.iter().any(|s| s.name == target.name && s.is_in(hot));
    let targets = whole.targets.iter().filter(takes_part).cloned().collect();
    Plan { jobs: vec![job], targets, ..whole.clone() }
}

/// What is compared with what is not mirrored.
fn is_plain(target: &str) -> bool {
    target == PLAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results: "results".into(),
            rtt_us: 300,
            machine: None,
            ramp_ms: 1000,
            runtime_ms: 2000,
            repetitions: 4,
            only: &[],
        }
    }

    #[test]
    fn set_ups_can_be_left_out() {
        assert_eq!(options().all_setups(), SETUPS);
        assert_eq!(options().kinds().collect::<Vec<_>>(), [true, false]);
        let few = Options { only: &[PLAIN, setup::MIRROR], ..options() };
        let names: Vec<_> = few.all_setups().iter().map(|setup| setup.name).collect();
        assert_eq!(names, [PLAIN, setup::MIRROR]);
        assert_eq!(few.kinds().collect::<Vec<_>>(), [true]);
        assert!(few.seconds() < options().seconds() / 2.0);
    }

    #[test]
    fn what_is_kept_says_that_it_is_emulated() {
        let directory = tempfile::tempdir().unwrap();
        let (options, never) = (options(), Interrupt::never());
        let lab = Lab::new(&options, directory.path(), &never).unwrap();
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
        let whole = lab.whole(&calibrated);
        whole.check().unwrap();
        for target in &whole.targets {
            let origin = &whole.origins[&target.address()];
            assert_eq!(origin.nature, Nature::Emulated);
            assert!(origin.stack.contains("emulate = ") && origin.stack.contains("# 64K, on"));
            if target.name == setup::MIRROR {
                // 300 of the link, of which the loopback has 90.
                assert!(origin.stack.contains("write_latency = \"2010us\""), "{}", origin.stack);
            }
            assert!(origin.stack.len() < flagstone_bench::limits::STACK_BYTES);
        }
        assert!(whole.title.contains("EMULATED"));
    }

    #[test]
    fn the_loopback_is_a_part_of_the_link() {
        let mut calibrated = Calibrated {
            size: "8K",
            published_us: 1935.0,
            write_latency_us: 1800,
            way_us: Some(135.0),
            loopback_us: 89.6,
        };
        assert_eq!(options().disks(&calibrated).link_us, 210);
        calibrated.loopback_us = 400.0;
        assert_eq!(options().disks(&calibrated).link_us, 0, "it cannot be made shorter");
        let job = options().loopback_job(&ROWS[1]);
        assert_eq!((job.depth, job.rate_iops, job.block_bytes), (24, Some(12_390), 8192));
        job.check().unwrap();
    }

    #[test]
    fn parts_are_all_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let (options, never) = (options(), Interrupt::never());
        let lab = Lab::new(&options, directory.path(), &never).unwrap();
        let whole = lab.whole(&[]);
        let parts: Vec<_> =
            [true, false].map(|hot| part(&whole, options.job(&ROWS[1], hot), hot)).into();
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
