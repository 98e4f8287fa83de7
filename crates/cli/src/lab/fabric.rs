//! `flagstone lab fabric`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::fabric::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::FabricArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &FabricArgs) -> Result<Exit, Error> {
    if !args.real.disks.is_empty() {
        return super::real::fabric(args);
    }
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.results.as_ref(), "fabric"),
        scale: args.scale,
        ramp_ms: args.ramp.unwrap_or(if args.short { 500 } else { 2000 }),
        runtime_ms: args.runtime.unwrap_or(if args.short { 2000 } else { 10_000 }),
        repetitions: args.repetitions.unwrap_or(if args.short { 1 } else { 4 }),
        disks: (1..=fabric::DISKS).collect(),
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note("disks and network are EMULATED on this machine");
    let ended = fabric::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.cells.is_empty() {
        complain("flagstone: interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    }
    let shown = match args.json {
        true => super::json(summary),
        false => {
            let mut tables = outcome.tables.clone();
            tables.push(table(summary));
            super::text(&tables, &summary.doubts, args.format.into())
        }
    };
    let report = super::report(&options.results, &extras::fabric(&outcome))?;
    let exit = print(&shown, super::exit_of(outcome.ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}
