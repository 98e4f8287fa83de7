//! Test bed of an experiment: emulated on this machine, or given, that is, disks and nodes that the
//! user names. Each experiment is written once; a bed supplies its targets.
//!
//! Invariants:
//! - nothing is written to a given disk that the guard of `flagstone bench` refuses: data that may
//!   be destroyed is named explicitly, and a disk in use is never written to;
//! - each figure carries its [`Provenance`], so that results of emulated disks are marked
//!   everywhere;
//! - statements of the user that were not measured, such as a machine type, are reported as such.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::{Initiator, InitiatorChoice};
use flagstone_bench::campaign::{Campaign, CampaignEnd, CampaignPlan, CampaignStep, Watcher};
use flagstone_bench::cpu::{CpuUse, Snapshot};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::{Generator, LoadRun};
use flagstone_bench::guard;
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::process::Interrupt;
use flagstone_bench::provenance::{Origin, Provenance};
use flagstone_bench::results::{self, ResultRecord, ResultStore};
use flagstone_bench::stats::REPETITIONS_LEAST;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_config::device_spec::DeviceSpec;

use crate::Error;
use crate::figures::Figures;
use crate::follow::Follow;
use crate::limits::BUSY_PERCENT;
use crate::node::{LabNode, NQN_PREFIX};

/// Version of the JSON form of all summaries; rises when a member changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Size in a plan whose targets exist already: no file is created.
pub(crate) const NO_FILE_BYTES: u64 = 1 << 20;

pub(crate) type MeasuredRecords = (CampaignEnd, Vec<ResultRecord>);

/// Stores the output of a run of the built-in generator on an emulated disk, which began at
/// `started_unix_s` and `before`, and returns its record, which is not stored yet.
pub(crate) fn emulated_record(
    (plan, store): (&CampaignPlan, &ResultStore),
    step: CampaignStep,
    (started_unix_s, before): (f64, &Snapshot),
    run: LoadRun,
) -> Result<ResultRecord, Error> {
    let cpus = Snapshot::take().since(before);
    let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
    let mut measurement = run.measurement();
    measurement.cpu = (!cpus.is_empty()).then(|| CpuUse::mean(&cpus));
    let raw = serde_json::to_string(&run.results).expect("results are always JSON");
    let raw = store.raw(&job.name, step.target, step.repetition, &raw)?;
    Ok(ResultRecord {
        provenance: Provenance::Emulated,
        repetition: step.repetition,
        started_unix_s,
        tool: "flagstone load".to_owned(),
        command: run.command,
        raw: Some(raw),
        ..ResultRecord::new(&plan.suite, job, target, measurement)
    })
}

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub program: PathBuf,
    pub command: String,
    /// Directory of the results; it must not have any yet.
    pub results: PathBuf,
    pub ramp_ms: u64,
    pub runtime_ms: u64,
    /// Number of measurements of each job on each target.
    pub repetitions: u32,
}

#[derive(Clone, Debug)]
pub struct BedTargets {
    /// Machine type as stated by the user.
    pub machine: Option<String>,
    /// Disks whose data may be destroyed, exactly as written in a target.
    pub destroy: Vec<String>,
    /// Provenance of disks that cannot be inspected, by address.
    pub origins: BTreeMap<String, Origin>,
    /// Whether unwritten parts are filled before they are written to.
    pub precondition: bool,
    pub initiator: InitiatorChoice,
}

impl BedTargets {
    /// Emulated volumes by address, with the configuration of each.
    pub(crate) fn emulated(volumes: impl IntoIterator<Item = (String, String)>) -> BedTargets {
        let origin = |(address, stack): (String, String)| {
            (address, Origin { provenance: Provenance::Emulated, stack })
        };
        let origins: BTreeMap<String, Origin> = volumes.into_iter().map(origin).collect();
        BedTargets {
            machine: None,
            destroy: origins.keys().cloned().collect(),
            origins,
            precondition: false,
            initiator: InitiatorChoice::Flagstone,
        }
    }

    /// Checks the targets before anything is done, and that each consent names one of them.
    pub(crate) fn guard(&self, targets: &[BenchTarget], writes: bool) -> Result<(), Error> {
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
}

impl RunOptions {
    pub(crate) fn plan(
        &self,
        (suite, title): (&str, &str),
        jobs: Vec<BenchJob>,
        targets: Vec<BenchTarget>,
        bed: &BedTargets,
    ) -> CampaignPlan {
        let machine = bed.machine.as_ref().map(|name| format!(", on {name}"));
        CampaignPlan {
            schema_version: results::SCHEMA_VERSION,
            suite: suite.to_owned(),
            title: title.to_owned() + machine.as_deref().unwrap_or_default(),
            jobs,
            targets,
            repetitions: self.repetitions,
            steady_state: false,
            precondition: bed.precondition,
            discard: false,
            file_bytes: NO_FILE_BYTES,
            initiator: bed.initiator,
            origins: bed.origins.clone(),
            commands: BTreeMap::new(),
            command: Some(self.command.clone()),
            destroy: bed.destroy.clone(),
        }
    }

    pub(crate) fn generator(&self) -> Generator {
        Generator { program: self.program.clone() }
    }

    /// Validates a plan, refuses existing results, checks the targets, and creates the results
    /// directory.
    pub(crate) fn store(
        &self,
        plan: &CampaignPlan,
        bed: &BedTargets,
    ) -> Result<ResultStore, Error> {
        crate::check_is_new(&self.results)?;
        plan.check()?;
        bed.guard(&plan.targets, plan.destroys())?;
        Ok(ResultStore::create(&self.results, plan)?)
    }

    pub(crate) fn job(&self, name: String, pattern: AccessPattern) -> BenchJob {
        let RunOptions { ramp_ms, runtime_ms, .. } = *self;
        BenchJob { name, pattern, disks: 1, ramp_ms, runtime_ms, ..BenchJob::default() }
    }

    pub(crate) fn campaign(
        &self,
        (plan, parts): (&CampaignPlan, &[CampaignPlan]),
        bed: &BedTargets,
        mut server: Option<LabNode>,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<MeasuredRecords, Error> {
        let store = self.store(plan, bed)?;
        let fio = plan.fio(interrupt)?;
        if let Some(server) = &mut server {
            server.start(interrupt)?;
        }
        let mut end = CampaignEnd::Complete;
        for (at, part) in parts.iter().enumerate() {
            let later_s = parts[at + 1..].iter().map(seconds).sum();
            let mut follow =
                Follow { inner: &mut *watcher, later_s, hides_notes: server.is_some() };
            end = self.measure(part, &store, fio.as_ref(), &mut follow, interrupt)?;
            if end == CampaignEnd::Interrupted {
                break;
            }
        }
        if let (Some(server), CampaignEnd::Complete) = (&mut server, end) {
            server.stop(interrupt)?;
        }
        Ok((end, store.records()?))
    }

    pub(crate) fn measure(
        &self,
        plan: &CampaignPlan,
        store: &ResultStore,
        fio: Option<&Fio>,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<CampaignEnd, Error> {
        let campaign = Campaign {
            plan,
            store,
            fio,
            generator: &self.generator(),
            initiator: &Initiator::of_machine(),
            interrupt,
        };
        Ok(campaign.run(watcher)?)
    }
}

pub(crate) fn seconds(plan: &CampaignPlan) -> f64 {
    plan.steps().into_iter().map(|step| plan.step_seconds(step)).sum()
}

pub(crate) fn caveats(machine: Option<&String>, figures: &[&Figures]) -> Vec<String> {
    let mut provenances: Vec<Provenance> = figures.iter().map(|f| f.provenance).collect();
    provenances.sort_unstable();
    provenances.dedup();
    let mut caveats: Vec<String> =
        provenances.into_iter().filter_map(warning).map(str::to_owned).collect();
    if let Some(machine) = machine {
        caveats.push(format!("the machine type {machine} was stated by the user, not detected"));
    }
    let fewest = figures.iter().map(|figures| figures.repetitions).min().unwrap_or(0);
    caveats.extend(repetitions_caveat(fewest));
    let busiest = figures.iter().filter_map(|f| f.cpu_percent).fold(0.0, f64::max);
    if busiest >= BUSY_PERCENT {
        caveats.push(format!(
            "the CPUs of this machine were up to {busiest:.0} % busy and may have limited the results"
        ));
    }
    caveats
}

pub(crate) fn repetitions_caveat(fewest: usize) -> Option<String> {
    (fewest < REPETITIONS_LEAST).then(|| {
        format!(
            "{fewest} repetitions of some: fewer than {REPETITIONS_LEAST} can never show a difference"
        )
    })
}

/// Warning for a provenance, with the options of `flagstone lab`.
pub(crate) fn warning(provenance: Provenance) -> Option<&'static str> {
    match provenance {
        Provenance::Served => Some(
            "the devices behind the served volumes are unknown (--stack), so they may be emulated or \
             in memory",
        ),
        Provenance::Emulated => {
            Some("disks are EMULATED: nothing here is a measurement of a cloud")
        }
        other => other.warning(),
    }
}

/// Whether results of this provenance say nothing about a real disk.
pub(crate) fn is_emulated(provenance: Provenance) -> bool {
    matches!(provenance, Provenance::Memory | Provenance::Emulated)
}

/// Mark of the least real of some figures, after a heading.
pub(crate) fn suffix<'a>(figures: impl IntoIterator<Item = &'a Figures>) -> &'static str {
    figures.into_iter().map(|f| f.provenance).max().map_or("", Provenance::suffix)
}

/// Location of the results in a title, with the kind of disks.
pub(crate) fn here(figures: &[&Figures], machine: Option<&String>) -> String {
    let machine = machine.map_or_else(String::new, |name| format!(" on {name}"));
    match figures.iter().map(|figures| figures.provenance).max() {
        Some(Provenance::Emulated) => format!("here{machine} on EMULATED disks"),
        Some(Provenance::Memory) => format!("here{machine} in MEMORY"),
        Some(Provenance::Served) => format!("here{machine} on served volumes"),
        Some(Provenance::Unknown) => format!("here{machine}, of unknown origin"),
        Some(Provenance::Real) | None => format!("here{machine}"),
    }
}

/// A volume at the addresses of its nodes, by its name or its full NQN.
pub(crate) fn volume_at(addresses: &[&str], volume: &str) -> Result<BenchTarget, Error> {
    let nqn = match volume.starts_with("nqn.") {
        true => volume.to_owned(),
        false => format!("{NQN_PREFIX}{volume}"),
    };
    let address = format!("nvme-tcp://{}/{nqn}", addresses.join(","));
    match address.parse::<DeviceSpec>() {
        Ok(DeviceSpec::NvmeTcp(_)) => {
            // A comma separates disks in a target's text; this is one disk with several addresses.
            let disks = vec![DiskAddress::NvmeTcp(address)];
            Ok(BenchTarget { name: volume.to_owned(), disks })
        }
        Ok(_) => Err(BenchError::usage(format!("{address} is no NVMe/TCP volume")).into()),
        Err(error) => Err(BenchError::usage(format!("{address}: {error}")).into()),
    }
}

#[derive(Clone, Debug)]
pub struct ExperimentOutcome<S> {
    pub end: CampaignEnd,
    pub summary: S,
}

#[cfg(test)]
pub(crate) mod tests {
    use flagstone_bench::measurement::Measurement;

    use super::*;

    pub(crate) fn run_options(results: PathBuf) -> RunOptions {
        RunOptions {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results,
            ramp_ms: 0,
            runtime_ms: 100,
            repetitions: 1,
        }
    }

    pub(crate) fn given() -> BedTargets {
        BedTargets {
            machine: Some("n2-standard-8".to_owned()),
            destroy: Vec::new(),
            origins: BTreeMap::new(),
            precondition: false,
            initiator: InitiatorChoice::Flagstone,
        }
    }

    #[test]
    fn volume_address_lists_all_nodes() {
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
    fn destroy_consent_must_name_a_target_exactly() {
        let mut bed = given();
        let targets = [volume_at(&["h"], "db").unwrap()];
        assert!(bed.guard(&targets, false).is_ok());
        let refused = bed.guard(&targets, true).unwrap_err().to_string();
        assert!(refused.contains("--destroy-data=nvme-tcp://h/"), "{refused}");
        bed.destroy = vec![targets[0].address()];
        assert!(bed.guard(&targets, true).is_ok());
        bed.destroy.push("/dev/sda".to_owned());
        let refused = bed.guard(&targets, true).unwrap_err().to_string();
        assert!(refused.contains("no target has this disk"), "{refused}");
    }

    #[test]
    fn provenance_is_marked_and_warned_about() {
        let record = |provenance| {
            let disks = vec![DiskAddress::Path("/x".into())];
            let target = BenchTarget { name: "t".to_owned(), disks };
            let mut measurement = Measurement::default();
            measurement.total.iops = 10.0;
            let job = BenchJob { name: "j".to_owned(), ..BenchJob::default() };
            ResultRecord { provenance, ..ResultRecord::new("s", &job, &target, measurement) }
        };
        let machine = "n2-standard-8".to_owned();
        for (provenance, word, is_warned) in [
            (Provenance::Real, "here", false),
            (Provenance::Served, "served", true),
            (Provenance::Emulated, "EMULATED", true),
            (Provenance::Memory, "MEMORY", true),
            (Provenance::Unknown, "unknown", true),
        ] {
            let figures = Figures::of(&[record(provenance)], "j", "t").unwrap();
            assert!(here(&[&figures], None).contains(word));
            let caveats = caveats(Some(&machine), &[&figures]);
            assert_eq!(caveats.len(), 2 + usize::from(is_warned), "{caveats:?}");
            let text = caveats.join("\n");
            assert!(text.contains("n2-standard-8") && text.contains("1 repetitions"));
        }
        // The least real record determines the provenance.
        let mixed = [record(Provenance::Real), record(Provenance::Memory)];
        assert!(is_emulated(Figures::of(&mixed, "j", "t").unwrap().provenance));
        assert_eq!(Figures::of(&[], "j", "t"), None);
    }
}
