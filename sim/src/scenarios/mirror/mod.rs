//! Two nodes that mirror a volume, hosts that write and check, and everything that can fail.
//!
//! What hosts may read is kept for each *line* of data: both nodes share one until a failover out
//! of the other's sight makes it two. When both are one again, the line that was given up must have
//! nothing that a host was promised, unless the operator gave it up.

#[cfg(test)]
mod blocks;
#[cfg(test)]
mod broken;
mod cluster;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod growth;
mod link;
#[cfg(test)]
mod others;
#[cfg(test)]
mod pair;
mod past;
#[cfg(test)]
mod reads;
mod releases;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod split;
mod steps;
mod two;

use crate::Scenario;
use flagstone_mirror::{Ack, Mode, WhenPeerLost};

/// Synchronous.
pub const SYNC: Scenario = Scenario {
    name: "mirror-sync",
    about: "a synchronous mirror through crashes, power losses, partitions and operators: nothing \
            acknowledged is lost, legs end up equal, split brain is seen and never resolved alone",
    run: |seed| steps::run(seed, &Kind { mode: Mode::Sync, ack: Ack::Disk, ..Kind::default() }),
};

/// Synchronous, and the peer acknowledges from memory.
pub const MEMORY: Scenario = Scenario {
    name: "mirror-memory",
    about: "the same with a peer that acknowledges from memory: flushes are durable on both",
    run: |seed| steps::run(seed, &Kind { ack: Ack::Memory, ..Kind::default() }),
};

/// Synchronous, and writes are held while the peer is lost.
pub const STRICT: Scenario = Scenario {
    name: "mirror-strict",
    about: "the same with writes held while the peer is lost",
    run: |seed| steps::run(seed, &Kind { when_lost: WhenPeerLost::Strict, ..Kind::default() }),
};

/// Asynchronous.
pub const ASYNC: Scenario = Scenario {
    name: "mirror-async",
    about: "an asynchronous mirror: legs end up equal, and the log covers what the peer lacks",
    run: |seed| steps::run(seed, &Kind { mode: Mode::Async, ..Kind::default() }),
};

/// Synchronous, on disks that fail.
pub const FAULTY: Scenario = Scenario {
    name: "mirror-faulty",
    about: "a synchronous mirror on disks with parts that cannot be read or written, and logs that \
            are lost, replaced by a blank disk or put back from a copy of any moment, as a whole or \
            in part, while their node is down",
    run: |seed| steps::run(seed, &Kind { faults: true, ..Kind::default() }),
};

/// Synchronous, and the volume grows.
pub const GROW: Scenario = Scenario {
    name: "mirror-grow",
    about: "a synchronous mirror whose devices are made larger, and which grows, at any moment",
    run: |seed| steps::run(seed, &Kind { grows: true, ..Kind::default() }),
};

/// Synchronous, and nodes are upgraded.
pub const UPGRADE: Scenario = Scenario {
    name: "mirror-upgrade",
    about: "a synchronous mirror that grows, whose nodes are replaced by ones of newer and older \
            releases: the highest version of the link that both speak is used, and without one they \
            are apart",
    run: |seed| steps::run(seed, &Kind { grows: true, upgrades: true, ..Kind::default() }),
};

/// On disks that fail at random.
pub const BROKEN: Scenario = Scenario {
    name: "mirror-broken",
    about: "a mirror of any mode on disks that fail reads, writes and flushes at random, or are \
            full, under data, superblocks and logs",
    run: |seed| steps::run(seed, &Kind::broken(seed)),
};

/// With two targets.
pub const TWO: Scenario = Scenario {
    name: "mirror-two",
    about: "a synchronous mirror with two targets through crashes, power losses, partitions and \
            switchovers: never two sources, all three legs end up equal",
    run: two::run,
};

/// All of them.
pub const ALL: &[Scenario] = &[SYNC, MEMORY, STRICT, ASYNC, FAULTY, BROKEN, GROW, UPGRADE, TWO];

/// What is run.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    mode: Mode,
    ack: Ack,
    when_lost: WhenPeerLost,
    /// Disks fail too, and logs are lost.
    faults: bool,
    /// Devices are made larger, and the volume with them.
    grows: bool,
    /// A node that is started again may be of another release.
    upgrades: bool,
    /// They fail at random, all over.
    broken: bool,
}

impl Kind {
    fn broken(seed: u64) -> Kind {
        let kind = Kind { faults: true, broken: true, ..Kind::default() };
        match seed % 5 {
            0 | 1 => kind,
            2 => Kind { ack: Ack::Memory, ..kind },
            3 => Kind { when_lost: WhenPeerLost::Strict, ..kind },
            _ => Kind { mode: Mode::Async, ..kind },
        }
    }
}

/// Outcome of the seeds of one kind, for tests.
#[cfg(test)]
fn passes(scenario: &Scenario, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let result = crate::runner::run_seed(scenario, seed, seed % 10 == 0);
        let _: crate::Outcome = result.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synchronous_mirror_keeps_its_promises_and_replays() {
        passes(&SYNC, 0..20);
    }

    #[test]
    fn resize_during_activity() {
        passes(&GROW, 0..20);
    }

    #[test]
    fn nodes_are_upgraded_one_after_the_other() {
        passes(&UPGRADE, 0..20);
    }

    #[test]
    fn so_do_the_others() {
        for scenario in ALL {
            passes(scenario, 0..3);
        }
    }
}
