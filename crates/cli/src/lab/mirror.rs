//! `flagstone lab mirror`.

use flagstone_bench::campaign::{Ending, Watcher as _};
use flagstone_bench::os::Interrupt;
use flagstone_bench::table::Form;
use flagstone_bench::units::format_seconds;
use flagstone_lab::Error;
use flagstone_lab::mirror::summary::Summary;
use flagstone_lab::mirror::{self, Options, tables::tables};

use super::args::MirrorArgs;
use crate::bench::watch::Watch;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &MirrorArgs) -> Result<Exit, Error> {
    let short = |short, long| if args.short { short } else { long };
    let options = Options {
        program: super::program()?,
        results: super::results(args.results.as_ref(), "mirror"),
        rtt_us: args.rtt,
        machine: args.machine.clone(),
        ramp_ms: args.ramp.unwrap_or(short(1000, 2000)),
        runtime_ms: args.runtime.unwrap_or(short(2000, 10_000)),
        repetitions: args.repetitions.unwrap_or(short(1, 4)),
    };
    let interrupt = Interrupt::catch()?;
    let mut watch = Watch::new();
    watch.note(&format!(
        "disks and link are EMULATED on this machine; it takes about {}",
        format_seconds(options.seconds())
    ));
    let ended = mirror::run(&options, &mut watch, &interrupt);
    watch.clear();
    let directory = options.results.display();
    let outcome = ended.inspect_err(|_| {
        if options.results.exists() {
            complain(&format!("what was measured is in {directory}\n"));
        }
    })?;
    if outcome.summary.cells.is_empty() {
        complain("interrupted before anything was measured\n");
        return Ok(Exit::Interrupted);
    }
    let shown = match args.json {
        true => {
            let text = serde_json::to_string_pretty(&outcome.summary);
            text.expect("a summary is always JSON") + "\n"
        }
        false => text(&outcome.summary, args.format.into()),
    };
    let report = super::report(&options.results)?;
    let exit = match outcome.ending {
        Ending::Complete => Exit::Success,
        Ending::Interrupted => Exit::Interrupted,
    };
    let exit = print(&shown, exit);
    complain(&format!("results are in {directory}; the report is {}\n", report.display()));
    Ok(exit)
}

/// The tables, and what they do not say by themselves.
fn text(summary: &Summary, form: Form) -> String {
    let mut all: Vec<String> = tables(summary).iter().map(|table| table.write(form)).collect();
    if form != Form::Csv {
        let doubts: Vec<String> =
            summary.doubts.iter().map(|doubt| format!("- {doubt}.\n")).collect();
        all.push(doubts.concat());
    }
    all.join("\n")
}
