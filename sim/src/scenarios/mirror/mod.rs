//! Mirror scenarios: two nodes that mirror a volume, hosts that write and check, and all faults.
//!
//! The content that hosts may read is kept per data *line*. Both nodes share one line until a
//! failover without the other's knowledge makes it two. When both merge again, the discarded line
//! must hold no acknowledged write, unless the operator chose to discard it.
//!
//! The mirror, its log and its metadata are the real code. The simulated parts are the disks, the
//! clock and the link between the nodes; host protocols are left out.

#[cfg(test)]
mod blocked_flushes;
#[cfg(test)]
mod blocks;
#[cfg(test)]
mod broken;
mod cluster;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod degraded;
mod full_history;
mod group_failover;
mod group_history;
mod grouped;
#[cfg(test)]
mod growth;
mod history;
mod link;
#[cfg(test)]
mod marks;
#[cfg(test)]
mod members;
#[cfg(test)]
mod other_mirrors;
#[cfg_attr(not(test), expect(dead_code, reason = "most of it scripts tests"))]
mod pair;
#[cfg(test)]
mod reads;
mod releases;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod split;
mod steps;
#[cfg(test)]
mod transfers;
#[cfg(test)]
mod two_sources;
mod two_targets;
#[cfg(test)]
mod zeroes;

use crate::Scenario;
use flagstone_mirror::{Ack, Mode, OnPeerLoss};

/// Synchronous.
pub const SYNC: Scenario = Scenario {
    name: "mirror-sync",
    about: "a synchronous mirror through crashes, power losses, partitions and operators: nothing \
            acknowledged is lost, legs end up equal, split brain is detected and never \
            resolved automatically",
    run: |seed| steps::run(seed, &Kind { mode: Mode::Sync, ack: Ack::Disk, ..Kind::default() }),
};

/// Synchronous; the peer acknowledges from memory.
pub const MEMORY: Scenario = Scenario {
    name: "mirror-memory",
    about: "the same with a peer that acknowledges from memory: flushes are durable on both",
    run: |seed| steps::run(seed, &Kind { ack: Ack::Memory, ..Kind::default() }),
};

/// Synchronous; writes are blocked while the peer is lost.
pub const BLOCK_ON_PEER_LOSS: Scenario = Scenario {
    name: "mirror-block",
    about: "the same with writes blocked while the peer is lost",
    run: |seed| steps::run(seed, &Kind { on_peer_loss: OnPeerLoss::Block, ..Kind::default() }),
};

/// Asynchronous.
pub const ASYNC: Scenario = Scenario {
    name: "mirror-async",
    about: "an asynchronous mirror: legs end up equal, and the log covers what the peer lacks",
    run: |seed| steps::run(seed, &Kind { mode: Mode::Async, ..Kind::default() }),
};

/// Synchronous, with bad ranges on the disks and lost logs.
pub const FAULTY: Scenario = Scenario {
    name: "mirror-faulty",
    about: "a synchronous mirror on disks with parts that cannot be read or written, and logs that \
            are lost, replaced by a blank disk or put back from a copy of any moment, as a whole or \
            in part, while their node is down",
    run: |seed| steps::run(seed, &Kind { faults: true, ..Kind::default() }),
};

/// Synchronous, with volume growth.
pub const GROW: Scenario = Scenario {
    name: "mirror-grow",
    about: "a synchronous mirror whose devices are made larger, and which grows, at any moment",
    run: |seed| steps::run(seed, &Kind { grows: true, ..Kind::default() }),
};

/// Synchronous, with node upgrades.
pub const UPGRADE: Scenario = Scenario {
    name: "mirror-upgrade",
    about: "a synchronous mirror that grows, whose nodes are replaced by ones of newer and older \
            releases: the highest version of the link that both speak is used, and without one they \
            are apart",
    run: |seed| steps::run(seed, &Kind { grows: true, upgrades: true, ..Kind::default() }),
};

/// Synchronous, with logs that move.
pub const MOVE_LOG: Scenario = Scenario {
    name: "mirror-move-log",
    about: "a synchronous mirror whose logs move to other disks at any moment: wherever a node ends, \
            its log is found again and names what the peer lacks",
    run: |seed| steps::run(seed, &Kind { moves: true, ..Kind::default() }),
};

/// Any mode, on disks that fail at random.
pub const BROKEN: Scenario = Scenario {
    name: "mirror-broken",
    about: "a mirror of any mode on disks that fail reads, writes and flushes at random, or are \
            full, under data, superblocks and logs",
    run: |seed| steps::run(seed, &Kind::broken(seed)),
};

/// Synchronous, with two targets.
pub const TWO: Scenario = Scenario {
    name: "mirror-two",
    about: "a synchronous mirror with two targets through crashes, power losses, partitions and \
            switchovers: never two sources, all three legs end up equal",
    run: two_targets::run,
};

/// Asynchronous, compared with the source's history.
pub const HISTORY: Scenario = Scenario {
    name: "mirror-history",
    about: "an asynchronous mirror: whenever the target may be promoted, it shows the source at one \
            moment of its past",
    run: history::run,
};

/// A consistency group with an arbiter.
pub const GROUP_FAILOVER: Scenario = Scenario {
    name: "mirror-group-failover",
    about: "a consistency group of three volumes with an arbiter: nodes die, pause and part, also \
            between two superblocks; all volumes move or none, no read is stale and no acknowledged \
            write lost",
    run: group_failover::run,
};

/// A consistency group, compared with the history of its hosts across the volumes.
pub const GROUP: Scenario = Scenario {
    name: "mirror-group",
    about: "a consistency group of three volumes, synchronous or asynchronous: whenever the targets may \
            be promoted, they show all volumes of the source at one moment of its past, and the role \
            moves for all of them or for none",
    run: grouped::run,
};

/// All mirror scenarios.
pub const ALL: &[Scenario] = &[
    SYNC,
    MEMORY,
    BLOCK_ON_PEER_LOSS,
    ASYNC,
    HISTORY,
    GROUP,
    FAULTY,
    BROKEN,
    GROW,
    MOVE_LOG,
    UPGRADE,
    TWO,
];

/// Parameters of a scenario.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    mode: Mode,
    ack: Ack,
    on_peer_loss: OnPeerLoss,
    /// Disks have bad ranges, and logs are lost.
    faults: bool,
    /// Devices and the volume grow.
    grows: bool,
    /// Logs move to other disks.
    moves: bool,
    /// A restarted node may run another release.
    upgrades: bool,
    /// Disks fail at random.
    broken: bool,
}

impl Kind {
    fn broken(seed: u64) -> Kind {
        let kind = Kind { faults: true, broken: true, ..Kind::default() };
        match seed % 5 {
            0 | 1 => kind,
            2 => Kind { ack: Ack::Memory, ..kind },
            3 => Kind { on_peer_loss: OnPeerLoss::Block, ..kind },
            _ => Kind { mode: Mode::Async, ..kind },
        }
    }
}

/// Runs the seeds of one scenario, for tests.
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
    fn synchronous_mirror_keeps_guarantees_and_replays() {
        passes(&SYNC, 0..20);
    }

    #[test]
    fn resize_during_activity() {
        passes(&GROW, 0..20);
    }

    #[test]
    fn logs_move_during_activity() {
        passes(&MOVE_LOG, 0..20);
    }

    #[test]
    fn rolling_upgrade_keeps_guarantees() {
        passes(&UPGRADE, 0..20);
    }

    #[test]
    fn all_mirror_scenarios_keep_guarantees() {
        for scenario in ALL {
            passes(scenario, 0..3);
        }
    }
}
