//! `flagstone lab demo`.

use flagstone_bench::process::Interrupt;
use flagstone_lab::Error;
use flagstone_lab::demo::{self, DemoOptions};

use super::args::DemoArgs;
use super::failover::Steps;
use crate::exit::Exit;
use crate::output::{complain, json, print};

pub(super) fn run(args: &DemoArgs) -> Result<Exit, Error> {
    let options = DemoOptions {
        program: super::program()?,
        command: super::typed(),
        directory: args.dir.clone(),
        size_bytes: args.size,
        runtime_ms: args.runtime,
        results: args.results.clone(),
    };
    let interrupt = Interrupt::catch()?;
    let mut steps = Steps::new(0);
    let ended = demo::run(&options, &mut steps, &interrupt);
    steps.clear();
    let (report, page) = ended?;
    super::write_summary(&options.results, &report)?;
    let shown = if args.json { json(&report) } else { format!("\n{}", report.text()) };
    let exit = if report.is_right() { Exit::Success } else { Exit::VerifyFailed };
    let exit = print(&shown, exit);
    complain(&format!("the report is {}\n", page.display()));
    Ok(exit)
}
