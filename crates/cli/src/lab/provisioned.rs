//! `flagstone lab provisioned`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::provisioned::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::ProvisionedArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

/// As published: `--ramp_time=2s`.
const RAMP_MS: u64 = 2000;

pub(super) fn run(args: &ProvisionedArgs) -> Result<Exit, Error> {
    if !args.real.disks.is_empty() {
        return super::real::provisioned(args);
    }
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.results.as_ref(), "provisioned"),
        ramp_ms: RAMP_MS,
        runtime_ms: args.runtime.unwrap_or(if args.short { 5000 } else { 60_000 }),
        repetitions: args.repetitions.unwrap_or(if args.short { 1 } else { 4 }),
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note("disks are EMULATED on this machine");
    let ended = provisioned::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.rows.iter().all(|row| row.measured.is_none()) {
        complain("flagstone: interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    }
    let shown = match args.json {
        true => super::json(summary),
        false => super::text(&[table(summary)], &summary.doubts, args.format.into()),
    };
    let report = super::report(&options.results, &extras::provisioned(summary))?;
    let exit = print(&shown, super::exit_of(outcome.ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}
