//! `flagstone lab provisioned`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_lab::provisioned::{self, Options, table};
use flagstone_lab::{Error, extras};

use super::args::ProvisionedArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;

pub(super) fn run(args: &ProvisionedArgs) -> Result<Exit, Error> {
    if !args.real.disks.is_empty() {
        return super::real::provisioned(args);
    }
    let lengths = args.lengths();
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.output.results.as_ref(), "provisioned"),
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note("disks are EMULATED on this machine");
    let ended = provisioned::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.rows.iter().all(|row| row.measured.is_none()) {
        return Ok(super::nothing_measured());
    }
    let shown = super::form(summary, &[table(summary)], &summary.doubts, &args.output);
    super::finish(&options.results, &shown, (outcome.ending, extras::provisioned(summary)))
}
