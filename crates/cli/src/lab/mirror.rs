//! `flagstone lab mirror`.

use flagstone_bench::campaign::Watcher as _;
use flagstone_bench::os::Interrupt;
use flagstone_bench::units::format_seconds;
use flagstone_lab::mirror::{self, Options, tables::tables};
use flagstone_lab::{Error, extras};

use super::args::MirrorArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;

/// As between two zones of a region, in µs.
const RTT_US: u64 = 300;

pub(super) fn run(args: &MirrorArgs) -> Result<Exit, Error> {
    if let Some(node_a) = &args.nodes.node_a {
        return super::real::mirror(args, node_a);
    }
    let lengths = args.lengths();
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        results: super::results(args.output.results.as_ref(), "mirror"),
        rtt_us: args.rtt.unwrap_or(RTT_US),
        machine: args.machine.clone(),
        ramp_ms: lengths.ramp_ms,
        runtime_ms: lengths.runtime_ms,
        repetitions: lengths.repetitions,
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
        return Ok(super::nothing_measured());
    }
    let shown = super::form(summary, &tables(summary), &summary.doubts, &args.output);
    super::finish(&options.results, &shown, (outcome.ending, extras::mirror(summary)))
}
