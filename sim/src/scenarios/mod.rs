//! The scenarios, one a module.

pub mod disk;
pub mod echo;
#[cfg(test)]
mod liar;
pub mod mirror;
pub mod served;

use crate::Scenario;

/// All of them, in the order in which they are run.
pub const ALL: &[Scenario] = &[
    disk::SCENARIO,
    disk::FAULTY,
    echo::SCENARIO,
    served::NVME,
    served::NBD,
    mirror::SYNC,
    mirror::MEMORY,
    mirror::STRICT,
    mirror::ASYNC,
    mirror::FAULTY,
    mirror::BROKEN,
    mirror::GROW,
    mirror::UPGRADE,
    mirror::TWO,
];

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
