//! `flagstone lab` on real disks and hosts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::attach::Choice;
use flagstone_bench::campaign::Ending;
use flagstone_bench::nature::Origin;
use flagstone_bench::os::Interrupt;
use flagstone_bench::table::{Form, Table};
use flagstone_bench::target::Target;
use flagstone_lab::Error;
use flagstone_lab::real::{self, Common};
use serde::Serialize;

use super::args::MirrorArgs;
use super::real_args::TargetArgs;
use crate::bench::origin;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

/// How long things are measured and how often, if it is not said.
struct Lengths {
    ramp_ms: u64,
    runtime_ms: u64,
    repetitions: u32,
}

impl Lengths {
    fn of(short: bool) -> Lengths {
        match short {
            true => Lengths { ramp_ms: 1000, runtime_ms: 2000, repetitions: 1 },
            false => Lengths { ramp_ms: 5000, runtime_ms: 10_000, repetitions: 4 },
        }
    }
}

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
        initiator: Choice::Auto,
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
    })
}

/// What the user told of targets.
fn told(args: &TargetArgs, targets: &[Target]) -> Result<BTreeMap<String, Origin>, Error> {
    Ok(origin::of(targets, args.stack.as_deref(), &[])?)
}

/// Keeps the summary beside the results, makes the report, and prints.
fn show(
    common: &Common,
    summary: &impl Serialize,
    shown: &str,
    ending: Ending,
) -> Result<Exit, Error> {
    let path = common.results.join("summary.json");
    std::fs::write(&path, super::json(summary)).map_err(BenchError::file("cannot write", &path))?;
    let report = super::report(&common.results)?;
    let exit = print(shown, super::exit_of(ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}

fn form(
    summary: &impl Serialize,
    tables: &[Table],
    doubts: &[String],
    (is_json, form): (bool, Form),
) -> String {
    if is_json { super::json(summary) } else { super::text(tables, doubts, form) }
}

fn nothing_measured() -> Exit {
    complain("flagstone: interrupted before anything was measured\n");
    Exit::Interrupted
}

/// `flagstone lab mirror --node-a`.
pub(super) fn mirror(args: &MirrorArgs, node_a: &str) -> Result<Exit, Error> {
    let nodes = &args.nodes;
    let lengths = Lengths::of(args.short);
    let lengths = Lengths {
        ramp_ms: args.ramp.unwrap_or(lengths.ramp_ms),
        runtime_ms: args.runtime.unwrap_or(lengths.runtime_ms),
        repetitions: args.repetitions.unwrap_or(lengths.repetitions),
    };
    let mut options = real::mirror::Options {
        common: common("mirror", args.results.as_ref(), &nodes.targets, &lengths)?,
        node_a: node_a.to_owned(),
        node_b: nodes.node_b.clone(),
        mirrored: nodes.mirrored.clone(),
        plain: nodes.plain.clone(),
        link: nodes.link.clone(),
        rtt_us: args.rtt,
    };
    options.common.machine.clone_from(&args.machine);
    options.common.initiator = nodes.initiator.initiator.into();
    options.common.origins = told(&nodes.targets, &options.targets()?)?;
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    let ended = real::mirror::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.common.results))?;
    let summary = &outcome.summary;
    if summary.is_empty() {
        return Ok(nothing_measured());
    }
    let tables = real::mirror::tables(summary);
    let shown = form(summary, &tables, &summary.doubts, (args.json, args.format.into()));
    show(&options.common, summary, &shown, outcome.ending)
}
