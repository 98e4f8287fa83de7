//! `flagstone lab mirror`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_bench::units::format_seconds;
use flagstone_lab::mirror::{self, Options, tables::tables};
use flagstone_lab::{Error, extras};

use super::args::MirrorArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

/// As between two zones of a region, in µs.
const RTT_US: u64 = 300;

pub(super) fn run(args: &MirrorArgs) -> Result<Exit, Error> {
    if let Some(node_a) = &args.nodes.node_a {
        return super::real::mirror(args, node_a);
    }
    let by_length = |short, long| if args.short { short } else { long };
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.results.as_ref(), "mirror"),
        rtt_us: args.rtt.unwrap_or(RTT_US),
        machine: args.machine.clone(),
        ramp_ms: args.ramp.unwrap_or(by_length(1000, 2000)),
        runtime_ms: args.runtime.unwrap_or(by_length(2000, 10_000)),
        repetitions: args.repetitions.unwrap_or(if args.short { 1 } else { 4 }),
        only: &[],
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note(&format!(
        "disks and link are EMULATED on this machine; it takes about {}",
        format_seconds(options.seconds())
    ));
    let ended = mirror::run(&options, &mut watch, &interrupt);
    watch.clear();
    let outcome = ended.inspect_err(|_| super::tell_of_results(&options.results))?;
    let summary = &outcome.summary;
    if summary.cells.is_empty() {
        complain("flagstone: interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    }
    let shown = match args.json {
        true => super::json(summary),
        false => super::text(&tables(summary), &summary.doubts, args.format.into()),
    };
    let report = super::report(&options.results, &extras::mirror(summary))?;
    let exit = print(&shown, super::exit_of(outcome.ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}
