//! `simulate`: runs seeds of the scenarios. Exits with status 1 when a seed violates a guarantee.

use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use flagstone_sim::runner::{Summary, keep_panics_quiet, run_seeds};
use flagstone_sim::{Scenario, scenarios};

/// Failures of a scenario that are printed in full.
const FAILURES_SHOWN: usize = 10;

/// Run simulated clusters under faults, reproducibly from seeds.
#[derive(Debug, Parser)]
#[command(name = "simulate", version)]
struct Arguments {
    /// Seeds to run: a half-open range such as 0..1000, or one seed.
    #[arg(long, default_value = "0..1000", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Scenario to run (repeatable); by default all.
    #[arg(long)]
    scenario: Vec<String>,
    /// Number of threads; one per CPU by default.
    #[arg(long)]
    threads: Option<usize>,
    /// List the scenarios and exit.
    #[arg(long)]
    list: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| format!("`{text}` is no seed: use 17 or 0..1000"))
    };
    let seeds = match text.split_once("..") {
        Some((first, end)) => number(first)?..number(end)?,
        None => {
            let seed = number(text)?;
            seed..seed.checked_add(1).ok_or("the largest seed cannot be run")?
        }
    };
    if seeds.is_empty() { Err("the range is empty".to_owned()) } else { Ok(seeds) }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>, String> {
    if names.is_empty() {
        return Ok(scenarios::ALL.iter().collect());
    }
    let find = |name: &String| {
        scenarios::find(name).ok_or_else(|| format!("no scenario `{name}`; --list shows them"))
    };
    names.iter().map(find).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        scenarios::ALL
            .iter()
            .for_each(|scenario| println!("{:<22}{}", scenario.name, scenario.about));
        return ExitCode::SUCCESS;
    }
    let scenarios = match chosen(&arguments.scenario) {
        Ok(scenarios) => scenarios,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    // The memory limit is shared by all threads. Waiting for another simulation would break replay.
    flagstone_runtime::buf::set_memory_limit(usize::MAX);
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let writer = std::io::stderr;
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).without_time().init();
    }
    keep_panics_quiet();
    let threads =
        arguments.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let mut failed = 0;
    let mut hours = 0.0;
    for scenario in scenarios {
        let summary = run_one(scenario, &arguments.seeds, threads.unwrap_or(1));
        failed += summary.failures.len();
        hours += summary.simulated_hours();
    }
    println!("{hours:.1} simulated hours in all, {failed} failures");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_one(scenario: &Scenario, seeds: &Range<u64>, threads: usize) -> Summary {
    let total = seeds.end - seeds.start;
    let done = AtomicU64::new(0);
    let shown = std::io::stderr().is_terminal();
    let summary = run_seeds(scenario, seeds.clone(), threads, || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if shown && (done.is_multiple_of(16) || done == total) {
            eprint!("\r{}: {done} of {total} seeds", scenario.name);
            let _ = std::io::stderr().flush();
        }
    });
    if shown {
        eprint!("\r\x1b[K");
    }
    println!(
        "{:<22}{} seeds, {:.1} simulated hours, {} events, {} faults, {} answers checked, {} failures",
        scenario.name,
        summary.seeds,
        summary.simulated_hours(),
        summary.events,
        summary.faults,
        summary.checks,
        summary.failures.len()
    );
    for failure in summary.failures.iter().take(FAILURES_SHOWN) {
        println!("{failure}");
    }
    let others: Vec<u64> =
        summary.failures.iter().skip(FAILURES_SHOWN).map(|failure| failure.seed).collect();
    if !others.is_empty() {
        println!("{}, other failing seeds: {others:?}", scenario.name);
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_or_one() {
        assert_eq!(parse_seeds("3..10"), Ok(3..10));
        assert_eq!(parse_seeds("17"), Ok(17..18));
        for text in ["", "x", "5..5", "9..3", "1..", "18446744073709551615", "-1"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
