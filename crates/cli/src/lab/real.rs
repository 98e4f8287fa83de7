//! `flagstone lab` on real disks and hosts.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::Choice;
use flagstone_bench::campaign::Ending;
use flagstone_bench::nature::Origin;
use flagstone_bench::os::Interrupt;
use flagstone_bench::report::Extras;
use flagstone_bench::target::Target;
use flagstone_cloud::Catalogue;
use flagstone_lab::Error;
use flagstone_lab::failover::Follower;
use flagstone_lab::process::wait_for_enter;
use flagstone_lab::real::failover::{Commands, Operator};
use flagstone_lab::real::provisioned::Kind;
use flagstone_lab::real::{self, Common};
use serde::Serialize;

use super::args::{FabricArgs, FailoverArgs, Lengths, LimitsArgs, MirrorArgs, ProvisionedArgs};
use super::failover::{Steps, numbers, shown_with_report};
use super::real_args::{KindArgs, TargetArgs};
use crate::bench::origin;
use crate::bench::watch::Watch;
use crate::exit::Exit;

fn common(
    experiment: &str,
    results: Option<&PathBuf>,
    targets: &TargetArgs,
    lengths: &Lengths,
) -> Result<Common, Error> {
    Ok(Common {
        program: super::program()?,
        command: super::typed(),
        results: super::results(results, experiment),
        machine: None,
        destroy: targets.destroy_data.clone(),
        origins: BTreeMap::new(),
        precondition: true,
        initiator: Choice::Auto,
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
    })
}

/// What the user told of targets.
fn told(args: &TargetArgs, targets: &[Target]) -> Result<BTreeMap<String, Origin>, Error> {
    Ok(origin::of(targets, None, args.stack.as_deref(), &[])?)
}

/// Keeps the summary beside the results, makes the report, and prints.
fn show(
    common: &Common,
    summary: &impl Serialize,
    shown: &str,
    (ending, extras): (Ending, Extras),
) -> Result<Exit, Error> {
    let path = common.results.join("summary.json");
    std::fs::write(&path, super::json(summary)).map_err(BenchError::file("cannot write", &path))?;
    super::finish(&common.results, shown, (ending, extras))
}

/// `flagstone lab mirror --node-a`.
pub(super) fn mirror(args: &MirrorArgs, node_a: &str) -> Result<Exit, Error> {
    let nodes = &args.nodes;
    let lengths = args.lengths();
    let mut options = real::mirror::Options {
        common: common("mirror", args.output.results.as_ref(), &nodes.targets, &lengths)?,
        node_a: node_a.to_owned(),
        node_b: nodes.node_b.clone(),
        mirrored: nodes.mirrored.clone(),
        plain: nodes.plain.clone(),
        link: nodes.link.clone(),
        rtt_us: args.rtt,
    };
    options.common.machine.clone_from(&args.machine);
    options.common.precondition = !nodes.fill.no_precondition;
    options.common.initiator = nodes.initiator.initiator.into();
    options.common.origins = told(&nodes.targets, &options.targets()?)?;
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    let ended = real::mirror::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.common.results))?;
    let summary = &outcome.summary;
    if summary.is_empty() {
        return Ok(super::nothing_measured());
    }
    let tables = real::mirror::tables(summary);
    let shown = super::form(summary, &tables, &summary.doubts, &args.output);
    let extras = Extras::new("What a mirror costs, on real nodes")
        .with_tables("mirror", tables)
        .with_doubts(&summary.doubts);
    show(&options.common, summary, &shown, (outcome.ending, extras))
}

/// Asks whoever sits at the terminal.
struct Person<'a> {
    steps: Steps,
    interrupt: &'a Interrupt,
}

impl Follower for Person<'_> {
    fn begin(&mut self, what: &str) {
        self.steps.begin(what);
    }

    fn end(&mut self, what: &str) {
        self.steps.end(what);
    }
}

impl Operator for Person<'_> {
    fn ask(&mut self, what: &str) -> Result<(), Error> {
        self.steps.line(&format!("NOW {what}: press Enter\n"));
        wait_for_enter(self.interrupt)
    }
}

/// `flagstone lab failover --node-a`.
pub(super) fn failover(args: &FailoverArgs, node_a: &str, node_b: &str) -> Result<Exit, Error> {
    let nodes = &args.nodes;
    let mut options = real::failover::Options {
        common: common(
            "failover",
            args.results.as_ref(),
            &nodes.targets,
            &Lengths { ramp_ms: 0, runtime_ms: args.time, repetitions: 1 },
        )?,
        node_a: node_a.to_owned(),
        node_b: node_b.to_owned(),
        volume: nodes.volume.clone(),
        seconds: args.time as f64 / 1e3,
        commands: Commands {
            kill: nodes.kill_command.clone(),
            failover: nodes.failover_command.clone(),
            come_back: nodes.return_command.clone(),
            switchover: nodes.switchover_command.clone(),
            status: nodes.status_command.clone(),
        },
    };
    options.common.machine.clone_from(&nodes.machine);
    options.common.origins = told(&nodes.targets, &[options.target()?])?;
    if options.commands.need_somebody() && !io::stdin().is_terminal() {
        return Err(BenchError::usage(
            "without a terminal nobody can be asked to act on the nodes: give --kill-command, \
             --failover-command, --return-command, --switchover-command and --status-command",
        )
        .into());
    }
    let interrupt = Interrupt::catch()?;
    let mut person = Person { steps: Steps::new(real::failover::STEPS), interrupt: &interrupt };
    let ended = real::failover::run(&options, &mut person, &interrupt);
    person.steps.clear();
    let outcome = ended?;
    outcome.drilled.keep(&options.common.results)?;
    let (summary, drill) = (&outcome.summary, &outcome.summary.drill);
    let path = options.common.results.join("summary.json");
    std::fs::write(&path, super::json(summary)).map_err(BenchError::file("cannot write", &path))?;
    let shown = match args.json {
        true => super::json(summary),
        false => {
            let suffix = summary.nature.suffix();
            let which = format!("the volume{suffix} is of {node_a} and {node_b}; the host is here");
            let doubts: String =
                summary.doubts.iter().map(|doubt| format!("- {doubt}.\n")).collect();
            format!("{}\n{doubts}", numbers(drill, &which))
        }
    };
    shown_with_report(&options.common.results, drill, &shown, &real::failover::extras(summary))
}

/// `flagstone lab fabric DISK…`.
pub(super) fn fabric(args: &FabricArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let lengths = args.lengths();
    let mut options = real::fabric::Options {
        common: common("fabric", args.output.results.as_ref(), &asked.targets, &lengths)?,
        disks: asked.disks.clone(),
        local: asked.local_results.clone(),
    };
    options.common.machine.clone_from(&asked.machine);
    options.common.initiator = asked.initiator.initiator.into();
    options.common.precondition = !asked.fill.no_precondition;
    options.common.origins = told(&asked.targets, &[options.target()?])?;
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    let ended = real::fabric::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.common.results))?;
    let summary = &outcome.summary;
    if summary.rows.is_empty() {
        return Ok(super::nothing_measured());
    }
    let tables = real::fabric::tables(summary);
    let shown = super::form(summary, &tables, &summary.doubts, &args.output);
    let extras = Extras::new("What NVMe/TCP costs, on real machines")
        .with_tables("fabric", tables)
        .with_doubts(&summary.doubts);
    show(&options.common, summary, &shown, (outcome.ending, extras))
}

/// The walk-through names no machine; none of 4 vCPUs or more limits such a disk.
const WALK_THROUGH: (&str, &str) = ("pd-standard", "n1-standard-8");

/// The catalogue that was named.
fn catalogue(args: &KindArgs) -> Result<Catalogue, Error> {
    Ok(Catalogue::open(&args.catalogue).map_err(|error| BenchError::usage(error.to_string()))?)
}

fn kind<'a>(args: &KindArgs, catalogue: &'a Catalogue) -> Kind<'a> {
    let or = |told: &Option<String>, own: &str| told.clone().unwrap_or_else(|| own.to_owned());
    let (kind, machine) = WALK_THROUGH;
    Kind { catalogue, kind: or(&args.like, kind), machine: or(&args.machine, machine) }
}

/// `flagstone lab provisioned DISK…`.
pub(super) fn provisioned(args: &ProvisionedArgs) -> Result<Exit, Error> {
    let asked = &args.real;
    let lengths = args.lengths();
    let targets = TargetArgs { destroy_data: Vec::new(), stack: asked.stack.clone() };
    let catalogue = catalogue(&asked.kind)?;
    let mut options = real::provisioned::Options {
        common: common("provisioned", args.output.results.as_ref(), &targets, &lengths)?,
        disks: asked.disks.clone(),
        kind: kind(&asked.kind, &catalogue),
    };
    options.common.machine = Some(options.kind.machine.clone());
    options.common.initiator = asked.initiator.initiator.into();
    options.common.origins = told(&targets, &options.disks)?;
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    let ended = real::provisioned::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.common.results))?;
    let summary = &outcome.summary;
    if summary.rows.is_empty() {
        return Ok(super::nothing_measured());
    }
    let tables = [real::provisioned::table(summary)];
    let shown = super::form(summary, &tables, &summary.doubts, &args.output);
    let extras = Extras::new("What a larger disk brings, on real disks")
        .with_tables("provisioned", tables.into())
        .with_doubts(&summary.doubts);
    show(&options.common, summary, &shown, (outcome.ending, extras))
}

/// `flagstone lab limits DISK`.
pub(super) fn limits(args: &LimitsArgs, disk: &Target) -> Result<Exit, Error> {
    let asked = &args.real;
    let lengths = args.lengths();
    let catalogue = catalogue(&asked.kind)?;
    let mut options = real::limits::Options {
        common: common("limits", args.output.results.as_ref(), &asked.targets, &lengths)?,
        disk: disk.clone(),
        kind: kind(&asked.kind, &catalogue),
    };
    options.common.machine = Some(options.kind.machine.clone());
    options.common.initiator = asked.initiator.initiator.into();
    options.common.precondition = !asked.fill.no_precondition;
    options.common.origins = told(&asked.targets, std::slice::from_ref(disk))?;
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    let ended = real::limits::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.common.results))?;
    let summary = &outcome.summary;
    if summary.cells.is_empty() {
        return Ok(super::nothing_measured());
    }
    let tables = [real::limits::table(summary)];
    let shown = super::form(summary, &tables, &summary.doubts, &args.output);
    let extras = Extras::new("What a real disk is sold as")
        .with_tables("limits", tables.into())
        .with_doubts(&summary.doubts);
    show(&options.common, summary, &shown, (outcome.ending, extras))
}
