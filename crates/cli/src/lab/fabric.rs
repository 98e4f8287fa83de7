//! `flagstone lab fabric`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::fabric::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::FabricArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;

pub(super) fn run(args: &FabricArgs) -> Result<Exit, Error> {
    if !args.real.disks.is_empty() {
        return super::real::fabric(args);
    }
    let lengths = args.lengths();
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.output.results.as_ref(), "fabric"),
        scale: args.scale,
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
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
        return Ok(super::nothing_measured());
    }
    let mut tables = outcome.tables.clone();
    tables.push(table(summary));
    let shown = super::form(summary, &tables, &summary.doubts, &args.output);
    super::finish(&options.results, &shown, (outcome.ending, extras::fabric(&outcome)))
}
