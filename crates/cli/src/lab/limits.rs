//! `flagstone lab limits`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::page::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::LimitsArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;

pub(super) fn run(args: &LimitsArgs) -> Result<Exit, Error> {
    if let Some(disk) = &args.real.disk {
        return super::real::limits(args, disk);
    }
    let lengths = args.lengths();
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.output.results.as_ref(), "limits"),
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note("disks are EMULATED on this machine");
    let ended = page::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.cells.is_empty() {
        return Ok(super::nothing_measured());
    }
    let shown = super::form(summary, &[table(summary)], &summary.doubts, &args.output);
    super::finish(&options.results, &shown, (outcome.ending, extras::limits(summary)))
}
