//! Scenarios, one per module.

pub mod chain;
pub mod disk;
pub mod echo;
#[cfg(test)]
mod lying_device;
pub mod mirror;
pub mod pool;
pub mod served;

use crate::Scenario;

/// All scenarios, in the order in which they run.
pub const ALL: &[Scenario] = &[
    disk::SCENARIO,
    disk::FAULTY,
    echo::SCENARIO,
    served::NVME,
    served::NBD,
    served::NVME_TLS,
    served::NBD_TLS,
    mirror::SYNC,
    mirror::MEMORY,
    mirror::BLOCK_ON_PEER_LOSS,
    mirror::ASYNC,
    mirror::HISTORY,
    mirror::GROUP,
    mirror::GROUP_FAILOVER,
    mirror::FAULTY,
    mirror::BROKEN,
    mirror::GROW,
    mirror::UPGRADE,
    mirror::TWO,
    pool::POOL,
    pool::POOL_FULL,
    pool::POOL_LOG,
    pool::POOL_FAULTY,
    chain::CHAIN,
    chain::CHAIN_ASYNC,
    chain::CHAIN_ALL,
    chain::CHAIN_ASYNC_ALL,
    chain::CHAIN_KEYS,
    chain::CHAIN_POOL,
    chain::FAILOVER,
    chain::FAILOVER_ASYNC,
];

/// Finds a scenario by name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
