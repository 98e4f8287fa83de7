//! Releases of the program that differ in the versions of the link that they speak.

use flagstone_mirror::Versions;
use flagstone_runtime::sim::Simulation;

/// Lowest and highest version of the link: the release before versions were agreed on, this one, the
/// next, and one that has given up what this one speaks.
const RELEASES: [(u16, u16); 4] = [(2, 2), (2, 3), (3, 4), (4, 4)];

fn release(index: usize) -> Versions {
    let (lowest, highest) = RELEASES[index];
    Versions::new(lowest, highest).expect("a range")
}

/// Any of them.
pub(super) fn any(sim: &Simulation) -> Versions {
    release(sim.random_between(0, RELEASES.len() as u64 - 1) as usize)
}

#[cfg(test)]
#[path = "releases_tests.rs"]
mod tests;
