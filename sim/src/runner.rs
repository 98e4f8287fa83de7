//! Seed runner: runs many seeds of many scenarios, one simulation per thread, and collects
//! failures.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{Outcome, Scenario};

/// One seed in `REPLAY_EVERY` runs twice and must produce the same history.
pub const REPLAY_EVERY: u64 = 50;

/// A seed that violated a guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The scenario.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// Panic message.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { scenario, seed, message } = self;
        writeln!(f, "{scenario}, seed {seed}: {message}")?;
        write!(
            f,
            "  replay: cargo run --profile simulation -p flagstone-sim -- --scenario {scenario} --seeds {seed}"
        )
    }
}

/// Totals over many seeds of one scenario.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of seeds.
    pub seeds: u64,
    /// Total simulated time in nanoseconds.
    pub simulated_ns: u128,
    /// Number of simulated events.
    pub events: u64,
    /// Number of checked answers.
    pub checks: u64,
    /// Number of survived faults.
    pub faults: u64,
    /// Failing seeds, in order.
    pub failures: Vec<Failure>,
}

impl Summary {
    /// Simulated time, in hours.
    pub fn simulated_hours(&self) -> f64 {
        self.simulated_ns as f64 / 3.6e12
    }

    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.simulated_ns += u128::from(outcome.simulated_ns);
        self.events += outcome.events;
        self.checks += outcome.checks;
        self.faults += outcome.faults;
    }
}

thread_local! {
    /// Location of this thread's last panic.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Silences the panic output of simulations, which report panics as failures. For programs that run
/// many seeds; call it once.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, ToString::to_string);
        PANICKED_AT.with(|at| *at.borrow_mut() = place);
    }));
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "a panic without words".to_owned());
    let place = PANICKED_AT.take();
    if place.is_empty() { text } else { format!("{text} ({place})") }
}

/// Runs one seed. With `twice`, runs it a second time and compares the histories.
///
/// # Errors
///
/// The violated guarantee, or a history that did not repeat.
pub fn run_seed(scenario: &Scenario, seed: u64, twice: bool) -> Result<Outcome, Failure> {
    let once = || {
        catch_unwind(AssertUnwindSafe(|| (scenario.run)(seed))).map_err(|panic| Failure {
            scenario: scenario.name,
            seed,
            message: words_of(&*panic),
        })
    };
    let outcome = once()?;
    if twice {
        let again = once()?;
        if again != outcome {
            let message = format!("the second run differs: {outcome:?}, then {again:?}");
            return Err(Failure { scenario: scenario.name, seed, message });
        }
    }
    Ok(outcome)
}

/// Runs all `seeds` on `threads` threads and calls `progress` after each.
pub fn run_seeds(
    scenario: &Scenario,
    seeds: Range<u64>,
    threads: usize,
    progress: impl Fn() + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let alone = seeds.end - seeds.start == 1;
            let result = run_seed(scenario, seed, alone || seed.is_multiple_of(REPLAY_EVERY));
            let mut summary = summary.lock();
            match result {
                Ok(outcome) => summary.add(&outcome),
                Err(failure) => {
                    summary.seeds += 1;
                    summary.failures.push(failure);
                }
            }
            drop(summary);
            progress();
        }
    };
    // Each simulation stays in one thread and shares no state with the others.
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(seed: u64) -> Outcome {
        Outcome { simulated_ns: 10, history_hash: seed, checks: 1, ..Outcome::default() }
    }

    fn fails_at_odd_seeds(seed: u64) -> Outcome {
        assert!(seed.is_multiple_of(2), "seed {seed} is odd");
        works(seed)
    }

    fn never_the_same(_: u64) -> Outcome {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        works(COUNT.fetch_add(1, Ordering::Relaxed))
    }

    const fn scenario(run: fn(u64) -> Outcome) -> Scenario {
        Scenario { name: "test", about: "", run }
    }

    #[test]
    fn failures_name_their_seeds_and_do_not_stop_the_others() {
        let done = AtomicU64::new(0);
        let summary = run_seeds(&scenario(fails_at_odd_seeds), 10..20, 3, || {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!((summary.seeds, summary.checks, done.into_inner()), (10, 5, 10));
        let seeds: Vec<u64> = summary.failures.iter().map(|failure| failure.seed).collect();
        assert_eq!(seeds, [11, 13, 15, 17, 19]);
        assert!(summary.failures[0].to_string().contains("seed 11 is odd"));
        assert!(summary.failures[0].to_string().contains("--scenario test --seeds 11"));
    }

    #[test]
    fn nondeterministic_history_is_a_failure() {
        let failure = run_seed(&scenario(never_the_same), 0, true).unwrap_err();
        assert!(failure.message.contains("the second run differs"), "{failure}");
        assert!(run_seed(&scenario(works), 0, true).is_ok());
    }
}
