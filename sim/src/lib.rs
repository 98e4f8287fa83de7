//! Whole clusters in one thread from one seed.
//!
//! A [`Scenario`] builds a simulated world, lets the real code run in it under faults, and checks
//! what a completed command promises: that is its `run`, a function of the seed alone. The program
//! `simulate` runs many seeds in parallel and prints those that fail; a failing seed replays bit
//! for bit, and becomes a named regression test.
//!
//! Read in this order: [`model`] (what a device may answer), [`load`] (a load that checks it),
//! [`scenarios`], and last [`runner`].
//!
//! A new scenario is one module in [`scenarios`] and one line in [`scenarios::ALL`].

mod content;
pub mod load;
pub mod model;
pub mod runner;
pub mod scenarios;

/// A kind of world and what must hold in it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// How it is asked for.
    pub name: &'static str,
    /// What it does and checks, in one line.
    pub about: &'static str,
    /// Runs one seed. A broken promise is a panic; what it says is the failure.
    pub run: fn(seed: u64) -> Outcome,
}

/// What a run that kept all promises was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Time that passed in the world, in nanoseconds.
    pub simulated_ns: u64,
    /// Things that happened in it.
    pub events: u64,
    /// Equal for equal histories.
    pub history_hash: u64,
    /// Reads, writes, messages that were checked.
    pub checks: u64,
    /// Crashes, power losses, partitions and the like that were survived.
    pub faults: u64,
}

impl Outcome {
    /// The outcome of a world in which `checks` were made and `faults` survived.
    pub fn of(world: &flagstone_runtime::sim::World, checks: u64, faults: u64) -> Outcome {
        Outcome {
            simulated_ns: world.now().as_nanos(),
            events: world.events(),
            history_hash: world.history_hash(),
            checks,
            faults,
        }
    }
}
