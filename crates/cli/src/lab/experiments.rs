//! `flagstone lab mirror`, `fabric`, `provisioned`, `pool`, `savings` and `limits`, on an emulated
//! or a given bed.

use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::InitiatorChoice;
use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::process::Interrupt;
use flagstone_bench::report::AdditionalSections;
use flagstone_bench::target::BenchTarget;
use flagstone_cloud::Catalog;
use flagstone_lab::bed::{BedTargets, ExperimentOutcome, RunOptions};
use flagstone_lab::disk_limits::{self, LimitsBed};
use flagstone_lab::fabric::{self, EmulatedFabric, FabricBed, GivenFabric};
use flagstone_lab::mirror::{self, EmulatedMirror, GivenMirror, MirrorBed};
use flagstone_lab::pool::{self, EmulatedPool, GivenPool, PoolBed};
use flagstone_lab::provisioned::{self, DiskProduct, ProvisionedBed};
use flagstone_lab::savings::{self, SavingsData};
use flagstone_lab::{Error, sections};
use flagstone_units::display::duration;
use serde::Serialize;

use super::args::{
    FabricArgs, LabMirrorArgs, LabPoolArgs, LabSavingsArgs, Lengths, LimitsArgs, MeasureArgs,
    OutputArgs, ProvisionedArgs,
};
use super::real_args::{KindArgs, MeasuredArgs, TargetArgs};
use crate::bench::watch::CampaignProgress;
use crate::bench::{exit_of, provenance};
use crate::exit::{Exit, Failure};
use crate::output::{complain, json, print};
use crate::sample;

/// Round trip between two zones of a region, in µs.
const RTT_US: u64 = 300;
/// Disk type and machine type of the published walk-through. It names no machine; none with 4 vCPUs
/// or more limits such a disk.
const WALK_THROUGH: (&str, &str) = ("pd-standard", "n1-standard-8");

pub(super) fn run_options(
    experiment: &str,
    results: Option<&PathBuf>,
    Lengths(ramp_ms, runtime_ms, repetitions): Lengths,
) -> Result<RunOptions, Error> {
    Ok(RunOptions {
        program: super::program()?,
        command: super::typed(),
        results: super::results(results, experiment),
        ramp_ms,
        runtime_ms,
        repetitions,
    })
}

pub(super) fn given(args: &TargetArgs, machine: Option<&String>) -> BedTargets {
    BedTargets {
        machine: machine.cloned(),
        destroy: args.destroy_data.clone(),
        origins: Default::default(),
        precondition: true,
        initiator: InitiatorChoice::Auto,
    }
}

fn measured(args: &MeasuredArgs, machine: Option<&String>) -> BedTargets {
    BedTargets {
        precondition: !args.no_precondition,
        initiator: args.initiator,
        ..given(&args.targets, machine)
    }
}

/// Adds the provenance of targets as stated by the user.
pub(super) fn with_origins(
    mut bed: BedTargets,
    args: &TargetArgs,
    targets: &[BenchTarget],
) -> Result<BedTargets, Error> {
    bed.origins = provenance::of(targets, None, args.stack.as_deref(), &[])?;
    Ok(bed)
}

impl MeasureArgs {
    /// Parameters of an experiment, whose lengths are others with `--short`.
    fn run_options(&self, name: &str, full: Lengths, short: Lengths) -> Result<RunOptions, Error> {
        run_options(name, self.output.to.results.as_ref(), self.lengths.or(full, short))
    }
}

/// Runs an experiment, then writes and prints its summary and the report. `sections` returns `None`
/// if nothing was measured.
fn run<S: Serialize>(
    options: &RunOptions,
    output: &OutputArgs,
    note: Option<&str>,
    measure: impl FnOnce(&mut CampaignProgress, &Interrupt) -> Result<ExperimentOutcome<S>, Error>,
    sections: impl FnOnce(&S) -> Option<AdditionalSections>,
) -> Result<Exit, Error> {
    let interrupt = Interrupt::catch()?;
    let mut watch = CampaignProgress::new();
    if let Some(note) = note {
        watch.note(note);
    }
    let ended = measure(&mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::print_results_directory(&options.results))?;
    let summary = &outcome.summary;
    let Some(sections) = sections(summary) else {
        complain("flagstone: interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    };
    super::write_summary(&options.results, summary)?;
    let text = match output.to.json {
        true => json(summary),
        false => super::text(&sections, output.format),
    };
    let report = super::report(&options.results, &sections)?;
    let exit = print(&text, exit_of(outcome.end));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}

pub(super) fn mirror(args: &LabMirrorArgs) -> Result<Exit, Error> {
    let nodes = &args.nodes;
    let bed = match &nodes.node_a {
        None => MirrorBed::Emulated(EmulatedMirror {
            rtt_us: args.rtt.unwrap_or(RTT_US),
            machine: args.machine.clone(),
            only: &[],
        }),
        Some(node_a) => {
            let mut bed = GivenMirror {
                targets: measured(&nodes.targets, args.machine.as_ref()),
                node_a: node_a.clone(),
                node_b: nodes.node_b.clone(),
                mirrored: nodes.mirrored.clone(),
                plain: nodes.plain.clone(),
                link: nodes.link.clone(),
                rtt_us: args.rtt,
            };
            let volumes = bed.volumes()?;
            bed.targets = with_origins(bed.targets, &nodes.targets.targets, &volumes)?;
            MirrorBed::Given(bed)
        }
    };
    let run_options =
        args.measure.run_options("mirror", Lengths(2000, 10_000, 4), Lengths(1000, 2000, 1))?;
    let note = bed.emulated_seconds(&run_options).map(|seconds| {
        let time = duration(seconds);
        format!("disks and link are EMULATED on this machine; it takes about {time}")
    });
    run(
        &run_options,
        &args.measure.output,
        note.as_deref(),
        |watch, interrupt| mirror::run(&run_options, &bed, watch, interrupt),
        |summary| (!summary.cells.is_empty()).then(|| sections::mirror(summary)),
    )
}

pub(super) fn fabric(args: &FabricArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let (bed, note) = match asked.disks.is_empty() {
        true => {
            let disks = (1..=fabric::DISKS).collect();
            let note = "disks and network are EMULATED on this machine";
            (FabricBed::Emulated(EmulatedFabric { scale: args.scale, disks }), Some(note))
        }
        false => {
            let mut bed = GivenFabric {
                targets: measured(&asked.targets, asked.machine.as_ref()),
                disks: asked.disks.clone(),
                local_results: asked.local_results.clone(),
            };
            let target = bed.target()?;
            bed.targets = with_origins(bed.targets, &asked.targets.targets, &[target])?;
            (FabricBed::Given(bed), None)
        }
    };
    let run_options =
        args.measure.run_options("fabric", Lengths(2000, 10_000, 4), Lengths(500, 2000, 1))?;
    run(
        &run_options,
        &args.measure.output,
        note,
        |watch, interrupt| fabric::run(&run_options, &bed, watch, interrupt),
        |summary| (!summary.rows.is_empty()).then(|| sections::fabric(summary)),
    )
}

fn catalog(args: &KindArgs) -> Result<Catalog, Error> {
    Ok(Catalog::open(&args.catalog).map_err(|error| BenchError::usage(error.to_string()))?)
}

fn product<'a>(args: &KindArgs, catalog: &'a Catalog) -> DiskProduct<'a> {
    let or = |asked: &Option<String>, own: &str| asked.clone().unwrap_or_else(|| own.to_owned());
    let (disk_type, machine) = WALK_THROUGH;
    DiskProduct {
        catalog,
        disk_type: or(&args.profile, disk_type),
        machine: or(&args.machine, machine),
    }
}

const EMULATED_DISKS: &str = "disks are EMULATED on this machine";

pub(super) fn provisioned(args: &ProvisionedArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let catalog = catalog(&asked.kind)?;
    let (bed, note) = match asked.disks.is_empty() {
        true => (ProvisionedBed::Emulated, Some(EMULATED_DISKS)),
        false => {
            let product = product(&asked.kind, &catalog);
            let args = TargetArgs { destroy_data: Vec::new(), stack: asked.stack.clone() };
            let targets =
                BedTargets { initiator: asked.initiator, ..given(&args, Some(&product.machine)) };
            let targets = with_origins(targets, &args, &asked.disks)?;
            (ProvisionedBed::Given { targets, disks: asked.disks.clone(), product }, None)
        }
    };
    let run_options = args.measure.run_options(
        "provisioned",
        Lengths(2000, 60_000, 4),
        Lengths(2000, 5000, 1),
    )?;
    run(
        &run_options,
        &args.measure.output,
        note,
        |watch, interrupt| provisioned::run(&run_options, &bed, watch, interrupt),
        |summary| (!summary.rows.is_empty()).then(|| sections::provisioned(summary)),
    )
}

pub(super) fn pool(args: &LabPoolArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let (bed, note) = match asked.disk.clone().zip(asked.pooled.clone()) {
        None => (PoolBed::Emulated(EmulatedPool { only_random: false }), Some(EMULATED_DISKS)),
        Some((disk, volume)) => {
            let targets = measured(&asked.targets, asked.machine.as_ref());
            let both = [disk.clone(), volume.clone()];
            let targets = with_origins(targets, &asked.targets.targets, &both)?;
            (PoolBed::Given(GivenPool { targets, disk, volume }), None)
        }
    };
    let run_options =
        args.measure.run_options("pool", Lengths(2000, 10_000, 4), Lengths(1000, 2000, 1))?;
    run(
        &run_options,
        &args.measure.output,
        note,
        |watch, interrupt| pool::run(&run_options, &bed, watch, interrupt),
        |summary| (!summary.rows.is_empty()).then(|| pool::summary::sections(summary)),
    )
}

/// Most files of `lab savings`: each takes as long as a kind of data that is always measured.
const DATA_FILES_MAX: usize = 8;

pub(super) fn savings(args: &LabSavingsArgs) -> Result<Exit, Failure> {
    let mut kinds = SavingsData::builtin().to_vec();
    if args.data.len() > DATA_FILES_MAX {
        return Err(Failure::usage(format!("--data: name at most {DATA_FILES_MAX} files")));
    }
    for path in &args.data {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if kinds.iter().any(|kind| kind.name == name) {
            let text = format!("--data={}: rename it, as {name} is measured too", path.display());
            return Err(Failure::usage(text));
        }
        kinds.push(SavingsData { name, data: sample::of_file(path)? });
    }
    let run_options =
        args.measure.run_options("savings", Lengths(2000, 10_000, 4), Lengths(1000, 2000, 1))?;
    Ok(run(
        &run_options,
        &args.measure.output,
        Some(EMULATED_DISKS),
        |watch, interrupt| savings::run(&run_options, &kinds, watch, interrupt),
        |summary| (!summary.rows.is_empty()).then(|| savings::summary::sections(summary)),
    )?)
}

pub(super) fn limits(args: &LimitsArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let catalog = catalog(&asked.kind)?;
    let (bed, note) = match &asked.disk {
        None => (LimitsBed::Emulated, Some(EMULATED_DISKS)),
        Some(disk) => {
            let product = product(&asked.kind, &catalog);
            let targets = measured(&asked.targets, Some(&product.machine));
            let targets =
                with_origins(targets, &asked.targets.targets, std::slice::from_ref(disk))?;
            (LimitsBed::Given { targets, disk: disk.clone(), product }, None)
        }
    };
    let run_options =
        args.measure.run_options("limits", Lengths(1000, 5000, 1), Lengths(500, 2000, 1))?;
    run(
        &run_options,
        &args.measure.output,
        note,
        |watch, interrupt| disk_limits::run(&run_options, &bed, watch, interrupt),
        |summary| (!summary.cells.is_empty()).then(|| sections::limits(summary)),
    )
}
