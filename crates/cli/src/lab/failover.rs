//! `flagstone lab failover`.

use std::io::{self, IsTerminal};
use std::path::Path;

use flagstone_bench::os::Interrupt;
use flagstone_bench::report::Extras;
use flagstone_bench::units::format_number;
use flagstone_lab::failover::{self, Death, Follower, Options, Summary, timeline};
use flagstone_lab::{Error, extras};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{DeathKind, FailoverArgs};
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &FailoverArgs) -> Result<Exit, Error> {
    if let Some((node_a, node_b)) = args.nodes.both() {
        return super::real::failover(args, node_a, node_b);
    }
    let options = Options {
        program: super::program()?,
        command: super::typed(),
        scratch: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        seconds: args.time as f64 / 1e3,
        death: match args.death {
            DeathKind::Silent => Death::Silent,
            DeathKind::Kill => Death::Kill,
        },
        emulate: !args.no_emulation,
    };
    let directory = super::results(args.results.as_ref(), "failover");
    flagstone_lab::check_is_new(&directory)?;
    let interrupt = Interrupt::catch()?;
    let mut steps = Steps::new(failover::STEPS);
    let ended = failover::run(&options, &mut steps, &interrupt);
    steps.clear();
    let outcome = ended?;
    outcome.keep(&directory)?;
    let summary = &outcome.summary;
    let shown = match args.json {
        true => super::json(summary),
        false => text(summary),
    };
    shown_with_report(&directory, summary, &shown, &extras::failover(summary))
}

/// Makes the report, and prints; the exit says whether anything was lost.
pub(super) fn shown_with_report(
    directory: &Path,
    summary: &Summary,
    shown: &str,
    extras: &Extras,
) -> Result<Exit, Error> {
    let report = super::report(directory, extras)?;
    let exit = if summary.is_right() { Exit::Success } else { Exit::VerifyFailed };
    let exit = print(shown, exit);
    complain(&format!(
        "results and timeline.svg are in {}; the report is {}\n",
        directory.display(),
        report.display()
    ));
    Ok(exit)
}

/// The most important first.
fn text(summary: &Summary) -> String {
    let disks = match summary.emulated {
        true => "disks are EMULATED",
        false => "the nodes' disks are files of this machine",
    };
    let which = format!("{disks}; host and nodes are processes of one machine");
    numbers(summary, &which)
}

/// The most important first, with a word on what the nodes are before the timeline.
pub(super) fn numbers(summary: &Summary, which: &str) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "{}\n\
         {}\n\
         took over        {:>8} ms   from the death of the source to the end of the failover\n\
         longest wait     {:>8} ms   of a request of the host\n\
         resynced         {:>8.1} MiB  of {:.1}, in sync {} ms after the dead node's start\n\
         switched back    {:>8} ms   planned\n\
         {which}\n\n{}",
        summary.verdict(),
        summary.death_in_words(),
        format_number(summary.failover_ms, 0),
        format_number(summary.longest_ms, 0),
        mib(summary.resynced_bytes),
        mib(summary.volume_bytes),
        format_number(summary.return_ms, 0),
        format_number(summary.switchover_ms, 0),
        timeline::text(summary),
    )
}

/// Progress: a line that changes on a terminal, lines elsewhere.
pub(super) struct Steps {
    bar: Option<ProgressBar>,
    done: usize,
    all: usize,
}

impl Steps {
    pub(super) fn new(all: usize) -> Steps {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(all as u64);
            bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Steps { bar, done: 0, all }
    }

    /// Says something that stays.
    pub(super) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| complain(text)),
            None => complain(text),
        }
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Follower for Steps {
    fn begin(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
            bar.tick();
        }
    }

    fn end(&mut self, what: &str) {
        self.done += 1;
        self.line(&format!("[{}/{}] {what}\n", self.done, self.all));
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}
