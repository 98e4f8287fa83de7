//! Events that hit two mirroring nodes while a host uses the volume.
//!
//! Nothing here waits for a fixed time. The next step comes when the load has recorded a number of
//! further writes, or when a node reports that it has noticed the event.

use std::path::Path;

use crate::load::Load;
use crate::mirror::Pair;
use crate::process::{stall_process, until};
use crate::rng::Rng;

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The source dies, the target becomes the source, the dead node comes back.
    SourceDies,
    /// The target dies and comes back.
    TargetDies,
    /// Both die.
    BothDie,
    /// Planned switchover.
    Switchover,
    /// The target stalls and continues.
    TargetStalls,
    /// The source stalls until the target considers it lost, and continues.
    SourceStalls,
    /// The operator pauses the mirror and resumes it.
    Pause,
    /// The target dies and comes back, and one side dies during the resync.
    ResyncDies,
    /// Switchover; the new source dies at once and comes back.
    SwitchoverDies,
    /// Messages from the source are dropped silently, and later arrive again.
    CutFromSource,
    /// Messages from the target are dropped silently.
    CutFromTarget,
    /// Messages in both directions are dropped silently.
    Cut,
    /// The source's network interface goes down.
    Unplugged,
    /// The link is slow.
    Slow,
    /// The link goes down and up repeatedly.
    Flaps,
    /// The link is cut, and the source restarts before the link is restored.
    CutSourceRestarts,
    /// The link is cut, and the target restarts before the link is restored.
    CutTargetRestarts,
    /// A switchover is requested while the link is cut, and fails.
    CutSwitchover,
    /// The disk of one node, source or target, runs full and later has space again.
    DiskFull,
    /// A forced failover while the source lives and the link works.
    FailoverFromLive,
    /// A forced failover while the link is cut and hosts do not write.
    FailoverWhileCut,
    /// The target's disk hangs until the source has given the target up, and longer.
    TargetDiskHangs,
    /// The source's disk hangs for longer than any time limit.
    SourceDiskHangs,
}

/// Events that need no separate network.
pub const EVENTS: [Event; 10] = [
    Event::SourceDies,
    Event::TargetDies,
    Event::Switchover,
    Event::TargetStalls,
    Event::BothDie,
    Event::Pause,
    Event::SourceStalls,
    Event::ResyncDies,
    Event::SwitchoverDies,
    Event::FailoverFromLive,
];

/// Events that a host attached to only one node, which never dies, does not notice.
pub const TARGET_EVENTS: [Event; 11] = [
    Event::TargetDies,
    Event::TargetStalls,
    Event::Pause,
    Event::Cut,
    Event::CutFromSource,
    Event::CutFromTarget,
    Event::Unplugged,
    Event::Slow,
    Event::Flaps,
    Event::CutTargetRestarts,
    Event::CutSwitchover,
];

/// Events that lose no data of an asynchronous mirror: there is no failover from a lost source. Nor
/// does the source restart while it cannot reach the target: it may have died before it noticed the
/// cut, and then serves only after asking the target.
pub const LOSSLESS_EVENTS: [Event; 12] = [
    Event::Cut,
    Event::CutFromSource,
    Event::CutFromTarget,
    Event::Unplugged,
    Event::Slow,
    Event::Flaps,
    Event::CutTargetRestarts,
    Event::CutSwitchover,
    Event::TargetDies,
    Event::TargetStalls,
    Event::Switchover,
    Event::Pause,
];

/// Events of a link that can be cut.
pub const LINK_EVENTS: [Event; 10] = [
    Event::Cut,
    Event::CutFromSource,
    Event::CutFromTarget,
    Event::Unplugged,
    Event::Slow,
    Event::Flaps,
    Event::CutSourceRestarts,
    Event::CutTargetRestarts,
    Event::CutSwitchover,
    Event::FailoverWhileCut,
];

/// Events of a node with a small disk ([`crate::mirror::Small`]).
pub const SMALL_EVENTS: [Event; 1] = [Event::DiskFull];

/// Events of volatile disks ([`crate::volatile_disk`]). Each death may be a power loss, too.
pub const VOLATILE_EVENTS: [Event; 2] = [Event::TargetDiskHangs, Event::SourceDiskHangs];

/// A host that writes without end. Its writes are the clock of the events.
pub trait Host {
    /// Waits until the host has completed `writes` further writes.
    fn later(&mut self, pair: &Pair, writes: u64);

    /// Process of the host, which is stopped while it must not write.
    fn pid(&self) -> u32;

    /// Does `work` while the host is stopped.
    fn hold(&self, work: &mut dyn FnMut()) {
        stall_process(self.pid(), true);
        work();
        stall_process(self.pid(), false);
    }
}

/// A verified load with its state file.
#[derive(Debug)]
pub struct LoadHost<'a> {
    /// The load, which does not end by itself.
    pub load: &'a mut Load,
    /// Its state file.
    pub state: &'a Path,
}

impl Host for LoadHost<'_> {
    fn later(&mut self, _: &Pair, writes: u64) {
        self.load.wait_for_records(self.state, Load::records_now(self.state) + writes);
    }

    fn pid(&self) -> u32 {
        self.load.pid()
    }
}

impl Event {
    /// Serving node after the event, when `source` served before; `None` if either may serve.
    pub fn source_after(self, source: usize) -> Option<usize> {
        match self {
            Event::SourceDies
            | Event::Switchover
            | Event::FailoverFromLive
            | Event::SourceDiskHangs => Some(1 - source),
            // A source that dies in sync and comes back: either node may serve.
            Event::BothDie | Event::ResyncDies | Event::SwitchoverDies => None,
            // The role is transferred if the source's disk ran full. After a cut, the node that has
            // more data leads, unless both wrote.
            Event::DiskFull | Event::FailoverWhileCut => None,
            _ => Some(source),
        }
    }

    /// Performs the event. Its effects are over when this returns, except for the resync.
    ///
    /// # Panics
    ///
    /// If a node does not behave as required.
    pub fn happen(self, pair: &mut Pair, source: usize, rng: &mut Rng, host: &mut dyn Host) {
        let target = 1 - source;
        let some = 100 + rng.below(200);
        match self {
            Event::SourceDies => {
                die(pair, source, rng);
                pair.fail_over_to(target);
                let status = pair.status(target);
                assert!(status["peers"][0]["last_in_sync_seconds"].is_u64(), "{status:#}");
                host.later(pair, some);
                pair.node(source).restart();
            }
            Event::TargetDies => {
                die(pair, target, rng);
                host.later(pair, some);
                pair.node(target).restart();
            }
            Event::BothDie => {
                // The source keeps its unflushed writes: a host does not repeat them.
                if rng.below(2) == 0 {
                    pair.kill(source);
                    die(pair, target, rng);
                } else {
                    die(pair, target, rng);
                    pair.kill(source);
                }
                let first = rng.below(2) as usize;
                pair.node(first).restart();
                pair.node(1 - first).restart();
            }
            Event::Switchover => {
                pair.order(target, "switchover", &[]);
            }
            Event::TargetStalls => {
                pair.stall(target, true);
                host.later(pair, some);
                pair.stall(target, false);
            }
            Event::SourceStalls => {
                pair.stall(source, true);
                left(pair, target);
                pair.stall(source, false);
            }
            Event::Pause => {
                pair.order(source, "pause", &[]);
                host.later(pair, some);
                pair.order(source, "continue", &[]);
            }
            Event::ResyncDies => {
                die(pair, target, rng);
                host.later(pair, some);
                pair.node(target).restart();
                host.later(pair, rng.below(20));
                if rng.below(2) == 0 {
                    pair.restart(source);
                } else {
                    die(pair, target, rng);
                    pair.node(target).restart();
                }
            }
            Event::SwitchoverDies => {
                pair.order(target, "switchover", &[]);
                host.later(pair, rng.below(20));
                pair.restart(target);
            }
            Event::DiskFull => fill_disk(pair, source, some, host),
            Event::FailoverFromLive => pair.fail_over_to(target),
            Event::TargetDiskHangs => {
                let before = disconnects(pair, source);
                pair.hang_disk(target, true);
                let lost = || disconnects(pair, source) > before;
                until("the target is given up", lost, || format!("{:#}", pair.status(source)));
                host.later(pair, some);
                pair.hang_disk(target, false);
            }
            Event::SourceDiskHangs => {
                pair.hang_disk(source, true);
                let failed = || pair.status(source)["replica"]["local_device_failed"] == true;
                until("its disk counts as failed", failed, || format!("{:#}", pair.status(source)));
                host.later(pair, some);
                pair.order(source, "switchover", &["--to", pair.name(target)]);
                host.later(pair, rng.below(20));
                pair.hang_disk(source, false);
            }
            _ => self.happen_to_link(pair, source, rng, host),
        }
    }

    fn happen_to_link(self, pair: &mut Pair, source: usize, rng: &mut Rng, host: &mut dyn Host) {
        let target = 1 - source;
        let some = 100 + rng.below(200);
        if self == Event::FailoverWhileCut {
            return host.hold(&mut || {
                // No write is acknowledged by one node alone: no data is given up.
                pair.assert_equal_legs(source);
                [0, 1].iter().for_each(|node| pair.network().cut(*node));
                pair.fail_over_to(target);
                pair.network().heal();
            });
        }
        match self {
            Event::CutFromSource => pair.network().cut(source),
            Event::CutFromTarget => pair.network().cut(target),
            Event::Unplugged => pair.network().unplug(source),
            Event::Slow => pair.network().slow(20_000_000),
            _ => [0, 1].iter().for_each(|node| pair.network().cut(*node)),
        }
        host.later(pair, some);
        match self {
            Event::Flaps => {
                for _ in 0..2 + rng.below(6) {
                    pair.network().heal();
                    host.later(pair, rng.below(some));
                    pair.network().cut(rng.below(2) as usize);
                    host.later(pair, rng.below(some));
                }
            }
            Event::CutSourceRestarts => {
                pair.restart(source);
                host.later(pair, some);
            }
            Event::CutTargetRestarts => {
                pair.restart(target);
                host.later(pair, some);
            }
            Event::CutSwitchover => {
                let refused = pair.try_order(target, "switchover", &[]);
                assert!(refused.is_err(), "{refused:?}");
                let refused = pair.try_order(source, "switchover", &["--to", pair.name(target)]);
                assert!(refused.is_err(), "{refused:?}");
            }
            _ => {}
        }
        pair.network().heal();
    }
}

/// Fills the small disk under writes. Once the nodes have noticed, the role is on the node with
/// space. Then the disk has space again, without any notice to its node.
fn fill_disk(pair: &Pair, source: usize, some: u64, host: &mut dyn Host) {
    let target = 1 - source;
    let before = disconnects(pair, source);
    pair.empty_part();
    pair.fill_small();
    pair.write_part();
    if pair.small_node() == source {
        let left = || pair.status(source)["replica"]["local_device_failed"] == true;
        until("the source has left its leg", left, || format!("{:#}", pair.status(source)));
        pair.order(source, "switchover", &["--to", pair.name(target)]);
    } else {
        let left = || disconnects(pair, source) > before;
        until("the target is left behind", left, || format!("{:#}", pair.status(source)));
    }
    host.later(pair, some);
    pair.clear_small();
}

fn disconnects(pair: &Pair, node: usize) -> u64 {
    let status = pair.status(node);
    status["peers"][0]["disconnects"].as_u64().unwrap_or_else(|| panic!("{status:#}"))
}

/// A node dies: half of the deaths of a node with a volatile disk are power losses.
fn die(pair: &mut Pair, node: usize, rng: &mut Rng) {
    // No draw for other pairs, so that recorded seeds keep their events.
    if pair.is_volatile() && rng.below(2) == 0 {
        pair.cut_power(node, rng);
    } else {
        pair.kill(node);
    }
}

/// Environment variable with the number of events of a test.
pub const ROUNDS: &str = "FLAGSTONE_MIRROR_ROUNDS";

/// Number of events of a test: [`ROUNDS`], or one of each of the `kinds`.
///
/// # Panics
///
/// If the variable is not a number.
pub fn rounds(kinds: usize) -> u64 {
    let set = std::env::var(ROUNDS);
    set.map_or(kinds as u64, |text| text.parse().expect("it is a number"))
}

/// Waits until a node has noticed that its source is lost.
fn left(pair: &Pair, node: usize) {
    let gone = || pair.status(node)["replica"]["has_source"] == false;
    until("the target gives its source up", gone, || format!("{:#}", pair.status(node)));
}
