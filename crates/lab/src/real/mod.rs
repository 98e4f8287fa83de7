//! The experiments on real disks and hosts: nothing is started, made or emulated here; what is
//! measured is what the user names.
//!
//! What it promises beyond a campaign's own promises:
//! - nothing is written to that the guard of `flagstone bench` refuses: what may be overwritten is
//!   named once more, and what is in use is never written to;
//! - each figure says what it is of ([`Nature`]): a disk of this machine, a served volume of which
//!   nobody told what is behind it, or one that is known to be emulated or in memory;
//! - what is told and not measured, as a machine's type, is called so.
//!
//! [`mirror`], [`failover`], [`fabric`], [`provisioned`] and [`limits`] are the experiments.

pub mod fabric;
pub mod failover;
pub mod limits;
pub mod mirror;
pub mod provisioned;

use std::collections::BTreeMap;
use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::{Choice, Initiator};
use flagstone_bench::campaign::{Campaign, Ending, Plan, Watcher};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::guard;
use flagstone_bench::job::Job;
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::Interrupt;
use flagstone_bench::results::{Record, SCHEMA_VERSION, Store};
use flagstone_bench::stats::{REPETITIONS_LEAST, median, noise_percent};
use flagstone_bench::target::{Place, Target};
use flagstone_control::device_spec::DeviceSpec;
use serde::Serialize;

use crate::Error;
use crate::node::NQN_PREFIX;

/// What every experiment on real targets is asked.
#[derive(Clone, Debug)]
pub struct Common {
    /// The `flagstone` program.
    pub program: PathBuf,
    /// What was typed, for whoever wants to do it again.
    pub command: String,
    /// Where the results go: a directory without results.
    pub results: PathBuf,
    /// Type of the machines, as it was told.
    pub machine: Option<String>,
    /// Disks that may be overwritten, exactly as they are written in a target.
    pub destroy: Vec<String>,
    /// What was told of disks that cannot be looked into.
    pub origins: BTreeMap<String, Origin>,
    /// Whether devices that have parts that were never written are filled before they are written to.
    pub precondition: bool,
    /// Who drives `nvme-tcp://`.
    pub initiator: Choice,
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Of each measurement.
    pub repetitions: u32,
}

/// What a campaign on real targets brought.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Whether it was done.
    pub ending: Ending,
    /// Of the part that was done.
    pub records: Vec<Record>,
}

impl Common {
    /// Judges what is to be written to before anything is done; also that each consent is of one of
    /// the targets.
    ///
    /// # Errors
    /// [`BenchError::Guarded`] with what was found; that there are results already.
    pub fn guard(&self, targets: &[Target], writes: bool) -> Result<(), Error> {
        crate::check_is_new(&self.results)?;
        let is_known =
            |name: &String| targets.iter().flat_map(|t| &t.disks).any(|d| d.to_string() == *name);
        if let Some(other) = self.destroy.iter().find(|name| !is_known(name)) {
            let text = format!("--destroy-data={other}: no target has this disk");
            return Err(BenchError::usage(text).into());
        }
        for target in targets {
            guard::check(target, writes, &self.destroy)?;
        }
        Ok(())
    }

    /// A plan of these jobs on these targets, whose title says what machines were told of.
    pub(crate) fn plan(
        &self,
        (suite, title): (&str, &str),
        jobs: Vec<Job>,
        targets: Vec<Target>,
    ) -> Plan {
        let machine = self.machine.as_ref().map(|name| format!(", on {name}"));
        Plan {
            schema_version: SCHEMA_VERSION,
            suite: suite.to_owned(),
            title: title.to_owned() + machine.as_deref().unwrap_or_default(),
            jobs,
            targets,
            repetitions: self.repetitions,
            steady_state: false,
            precondition: self.precondition,
            // Files that are not there are refused before.
            file_bytes: 1 << 20,
            initiator: self.initiator,
            origins: self.origins.clone(),
            command: Some(self.command.clone()),
            destroy: self.destroy.clone(),
        }
    }

    /// fio, if a target needs it, or if it is there for what the kernel may attach.
    fn fio(&self, plan: &Plan, interrupt: &Interrupt) -> Result<Option<Fio>, Error> {
        if plan.needs_fio() || plan.initiator == Choice::Kernel {
            return Ok(Some(Fio::find(interrupt)?));
        }
        if plan.initiator == Choice::Flagstone {
            return Ok(None);
        }
        match Fio::find(interrupt) {
            Err(error) if error.is_lack_of_fio() => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Guards, fills what was never written where the plan writes, and measures.
    ///
    /// # Errors
    /// What went wrong. The user's interruption is an [`Ending`].
    pub(crate) fn measure(
        &self,
        plan: &Plan,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<Measured, Error> {
        self.guard(&plan.targets, plan.writes())?;
        plan.check()?;
        let fio = self.fio(plan, interrupt)?;
        let store = Store::create(&self.results, plan)?;
        let ending = self.run(plan, &store, fio.as_ref(), watcher, interrupt)?;
        Ok(Measured { ending, records: store.records()? })
    }

    /// Runs a plan, or a part of one, into a store that is there.
    fn run(
        &self,
        plan: &Plan,
        store: &Store,
        fio: Option<&Fio>,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<Ending, Error> {
        let campaign = Campaign {
            plan,
            store,
            fio,
            generator: &Generator { program: self.program.clone() },
            initiator: &Initiator::of_machine(),
            interrupt,
        };
        Ok(campaign.run(watcher)?)
    }

    /// What every experiment's numbers do not say by themselves.
    pub(crate) fn doubts(&self, figures: &[&Figures]) -> Vec<String> {
        let mut doubts = Vec::new();
        let mut natures: Vec<Nature> = figures.iter().map(|figures| figures.nature).collect();
        natures.sort_unstable();
        natures.dedup();
        doubts.extend(natures.into_iter().filter_map(warning).map(str::to_owned));
        if let Some(machine) = &self.machine {
            doubts.push(format!("that the machine is {machine} was told, not found out"));
        }
        let fewest = figures.iter().map(|figures| figures.repetitions).min().unwrap_or(0);
        if fewest < REPETITIONS_LEAST {
            doubts.push(format!(
                "{fewest} repetitions of some: fewer than {REPETITIONS_LEAST} can never show that two \
                 things differ"
            ));
        }
        let busiest = figures.iter().filter_map(|f| f.cpu_percent).fold(0.0, f64::max);
        if busiest >= crate::limits::BUSY_PERCENT {
            doubts.push(format!(
                "the CPUs of this machine were up to {busiest:.0} % busy, and may be what was measured"
            ));
        }
        doubts
    }
}

/// A job on a target: medians of its repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// What it is of.
    pub nature: Nature,
    /// How often.
    pub repetitions: usize,
    /// 2^20 bytes a second.
    pub mib_per_s: f64,
    /// Requests a second.
    pub iops: f64,
    /// Mean latency, in ms.
    pub latency_ms: f64,
    /// 99th percentile, in ms.
    pub latency_p99_ms: Option<f64>,
    /// Standard deviation over mean of the throughput, in %.
    pub noise_percent: Option<f64>,
    /// How busy the CPUs of the machine with the load were, in %.
    pub cpu_percent: Option<f64>,
}

impl Figures {
    /// Of a job on a target; none if it was not measured.
    pub(crate) fn of(records: &[Record], job: &str, target: &str) -> Option<Figures> {
        let is = |record: &&Record| record.job == job && record.target == target;
        let of: Vec<&Record> = records.iter().filter(is).collect();
        let middle = |pick: &dyn Fn(&Record) -> Option<f64>| {
            median(&of.iter().filter_map(|record| pick(record)).collect::<Vec<_>>())
        };
        let mib = f64::from(1 << 20);
        let throughputs: Vec<f64> = of.iter().map(|record| record.mb_per_s * 1e6 / mib).collect();
        Some(Figures {
            nature: of.iter().map(|record| record.nature).max()?,
            repetitions: of.len(),
            mib_per_s: median(&throughputs)?,
            iops: middle(&|record| Some(record.iops))?,
            latency_ms: middle(&|record| Some(record.latency_mean_us / 1e3))?,
            latency_p99_ms: middle(&|record| Some(record.latency_p99_us? / 1e3)),
            noise_percent: noise_percent(&throughputs),
            cpu_percent: middle(&|record| Some(record.measurement.cpu.as_ref()?.busy_percent())),
        })
    }

    /// Whether they say nothing of a real disk.
    pub(crate) fn is_emulated(&self) -> bool {
        is_emulated(self.nature)
    }
}

/// What is to be known of what something is, with this command's own options.
fn warning(nature: Nature) -> Option<&'static str> {
    match nature {
        Nature::Served => Some(
            "what is behind the served volumes was not told (--stack), so it may be emulated or in \
             memory",
        ),
        other => other.warning(),
    }
}

/// Whether it says nothing of a real disk.
pub(crate) fn is_emulated(nature: Nature) -> bool {
    matches!(nature, Nature::Memory | Nature::Emulated)
}

/// What stands before the results of an experiment where one would look for a word about emulation.
pub(crate) fn here(figures: &[&Figures], machine: Option<&String>) -> String {
    let machine = machine.map_or_else(String::new, |name| format!(" on {name}"));
    match figures.iter().map(|figures| figures.nature).max() {
        Some(Nature::Emulated) => format!("here{machine} on EMULATED disks"),
        Some(Nature::Memory) => format!("here{machine} in MEMORY"),
        Some(Nature::Served) => format!("here{machine} on served volumes"),
        Some(Nature::Unknown) => format!("here{machine}, of what was not noted"),
        Some(Nature::Real) | None => format!("here{machine}"),
    }
}

/// A volume as hosts name it: by the addresses of its nodes, and by its name or its whole NQN.
///
/// # Errors
/// What of it cannot be understood.
pub fn volume_at(addresses: &[&str], volume: &str) -> Result<Target, Error> {
    let nqn = match volume.starts_with("nqn.") {
        true => volume.to_owned(),
        false => format!("{NQN_PREFIX}{volume}"),
    };
    let address = format!("nvme-tcp://{}/{nqn}", addresses.join(","));
    match address.parse::<DeviceSpec>() {
        Ok(DeviceSpec::NvmeTcp(_)) => {
            // A comma joins disks in a target as it is written; this one is one disk.
            Ok(Target { name: volume.to_owned(), disks: vec![Place::NvmeTcp(address)] })
        }
        Ok(_) => Err(BenchError::usage(format!("{address} is no NVMe/TCP volume")).into()),
        Err(error) => Err(BenchError::usage(format!("{address}: {error}")).into()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flagstone_bench::measurement::Measurement;

    pub(crate) fn common(results: PathBuf) -> Common {
        Common {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results,
            machine: Some("n2-standard-8".to_owned()),
            destroy: Vec::new(),
            origins: BTreeMap::new(),
            precondition: false,
            initiator: Choice::Flagstone,
            ramp_ms: 0,
            runtime_ms: 100,
            repetitions: 1,
        }
    }

    #[test]
    fn volumes_are_named_by_their_nodes() {
        let target = volume_at(&["10.0.0.1", "10.0.0.2:4421"], "db").unwrap();
        assert_eq!(
            target.disks[0].to_string(),
            "nvme-tcp://10.0.0.1,10.0.0.2:4421/nqn.2026-01.io.flagstone:db"
        );
        let target = volume_at(&["[::1]"], "nqn.2014-08.org.example:x").unwrap();
        assert_eq!(target.disks[0].to_string(), "nvme-tcp://[::1]/nqn.2014-08.org.example:x");
        for (address, volume) in [("", "db"), ("h:0", "db"), ("h:x", "db"), ("h/x", "nqn.")] {
            assert!(volume_at(&[address], volume).is_err(), "{address} {volume}");
        }
    }

    #[test]
    fn consent_is_of_a_target_and_exact() {
        let directory = tempfile::tempdir().unwrap();
        let mut common = common(directory.path().join("results"));
        let targets = [volume_at(&["h"], "db").unwrap()];
        assert!(common.guard(&targets, false).is_ok());
        let refused = common.guard(&targets, true).unwrap_err().to_string();
        assert!(refused.contains("--destroy-data=nvme-tcp://h/"), "{refused}");
        common.destroy = vec![targets[0].address()];
        assert!(common.guard(&targets, true).is_ok());
        common.destroy.push("/dev/sda".to_owned());
        let refused = common.guard(&targets, true).unwrap_err().to_string();
        assert!(refused.contains("no target has this disk"), "{refused}");
    }

    #[test]
    fn what_is_not_known_to_be_real_is_told() {
        let record = |nature| {
            let target = Target { name: "t".to_owned(), disks: vec![Place::Path("/x".into())] };
            let mut measurement = Measurement::default();
            measurement.total.iops = 10.0;
            let job = Job { name: "j".to_owned(), ..Job::default() };
            Record { nature, ..Record::new("s", &job, &target, measurement) }
        };
        let words = [
            (Nature::Real, "here"),
            (Nature::Served, "served"),
            (Nature::Emulated, "EMULATED"),
            (Nature::Memory, "MEMORY"),
            (Nature::Unknown, "not noted"),
        ];
        for (nature, word) in words {
            let figures = Figures::of(&[record(nature)], "j", "t").unwrap();
            assert!(here(&[&figures], None).contains(word));
            let doubts = common("r".into()).doubts(&[&figures]).join("\n");
            assert_eq!(
                doubts.contains("emulated"),
                nature != Nature::Real && nature != Nature::Memory && nature != Nature::Emulated,
                "{doubts}"
            );
            assert!(doubts.contains("n2-standard-8") && doubts.contains("1 repetitions"));
        }
        // The least real one of all counts.
        let mixed = Figures::of(&[record(Nature::Real), record(Nature::Memory)], "j", "t");
        assert!(mixed.unwrap().is_emulated());
        assert_eq!(Figures::of(&[], "j", "t"), None);
    }
}
