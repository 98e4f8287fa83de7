//! Deterministic simulator: whole clusters in one thread, reproduced from one seed.
//!
//! A [`Scenario`] builds a simulated world, runs the real code in it under faults, and checks the
//! guarantees of every completed command. Its `run` is a function of the seed only. The program
//! `simulate` runs many seeds in parallel and prints the failing ones. A failing seed replays bit
//! for bit and becomes a named regression test.
//!
//! Reading order: [`model`] (answers that a device may give), [`load`] (workload that checks them),
//! [`scenarios`], [`runner`].
//!
//! To add a scenario, add one module to [`scenarios`] and one line to [`scenarios::ALL`].

mod content;
pub mod load;
pub mod model;
pub mod runner;
pub mod scenarios;

/// A kind of simulated world and its invariants.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Runs one seed. A violated guarantee panics; the panic message describes the failure.
    pub run: fn(seed: u64) -> Outcome,
}

/// Statistics of a run without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Simulated time in nanoseconds.
    pub simulated_ns: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Hash of the event history: equal for equal histories.
    pub history_hash: u64,
    /// Reads, writes and messages that were checked.
    pub checks: u64,
    /// Crashes, power losses, partitions and other faults that the run survived.
    pub faults: u64,
}

impl Outcome {
    /// Outcome of a world after `checks` checks and `faults` faults.
    pub fn of(world: &flagstone_runtime::sim::World, checks: u64, faults: u64) -> Outcome {
        Outcome {
            simulated_ns: world.now().as_nanos(),
            events: world.events(),
            history_hash: world.history_hash(),
            checks,
            faults,
        }
    }

    /// Without the hash, for histories whose contents the seed does not determine: contents of TLS,
    /// whose library has its own random number generator. Events and times remain equal.
    #[must_use]
    pub fn with_random_contents(self) -> Outcome {
        Outcome { history_hash: 0, ..self }
    }
}
