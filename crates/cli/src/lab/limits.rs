//! `flagstone lab limits`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::page::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::LimitsArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &LimitsArgs) -> Result<Exit, Error> {
    if let Some(disk) = &args.real.disk {
        return super::real::limits(args, disk);
    }
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.results.as_ref(), "limits"),
        ramp_ms: args.ramp.unwrap_or(if args.short { 500 } else { 1000 }),
        runtime_ms: args.runtime.unwrap_or(if args.short { 2000 } else { 5000 }),
        repetitions: args.repetitions,
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note("disks are EMULATED on this machine");
    let ended = page::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.cells.is_empty() {
        complain("flagstone: interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    }
    let shown = match args.json {
        true => super::json(summary),
        false => super::text(&[table(summary)], &summary.doubts, args.format.into()),
    };
    let report = super::report(&options.results, &extras::limits(summary))?;
    let exit = print(&shown, super::exit_of(outcome.ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}
