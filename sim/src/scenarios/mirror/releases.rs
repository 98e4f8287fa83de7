//! Releases of the program, which differ in the link versions that they speak.

use flagstone_mirror::LinkVersions;
use flagstone_runtime::sim::Simulation;

/// Lowest and highest link version of each release: the previous one (before version negotiation),
/// this one, the next, and a later one without support for this one's version.
const RELEASES: [(u16, u16); 4] = [(2, 2), (2, 3), (3, 4), (4, 4)];

fn release(index: usize) -> LinkVersions {
    let (lowest, highest) = RELEASES[index];
    LinkVersions::new(lowest, highest).expect("a range")
}

/// Picks any release.
pub(super) fn any(sim: &Simulation) -> LinkVersions {
    release(sim.random_between(0, RELEASES.len() as u64 - 1) as usize)
}

#[cfg(test)]
#[path = "releases_tests.rs"]
mod tests;
