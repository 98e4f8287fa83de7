//! Events that hit two mirroring nodes while a host uses the volume.
//!
//! Nothing here waits for a fixed time. The next step comes when the load has recorded a number of
//! further writes, or when a node reports that it has noticed the event.

use std::path::Path;

use crate::load::Load;
use crate::mirror::Pair;
use crate::process::until;
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
}

/// Events that need no separate network.
pub const EVENTS: [Event; 9] = [
    Event::SourceDies,
    Event::TargetDies,
    Event::Switchover,
    Event::TargetStalls,
    Event::BothDie,
    Event::Pause,
    Event::SourceStalls,
    Event::ResyncDies,
    Event::SwitchoverDies,
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
pub const LINK_EVENTS: [Event; 9] = [
    Event::Cut,
    Event::CutFromSource,
    Event::CutFromTarget,
    Event::Unplugged,
    Event::Slow,
    Event::Flaps,
    Event::CutSourceRestarts,
    Event::CutTargetRestarts,
    Event::CutSwitchover,
];

/// Events of a node with a small disk ([`crate::mirror::Small`]).
pub const SMALL_EVENTS: [Event; 1] = [Event::DiskFull];

/// Clock of events, which counts the host's writes.
pub struct Clock<'a>(Box<Wait<'a>>);

/// Waits for a number of further writes.
type Wait<'a> = dyn FnMut(&Pair, u64) + 'a;

impl<'a> Clock<'a> {
    /// Clock of a continuously writing load whose verification state file is `state`.
    pub fn of_load(load: &'a mut Load, state: &'a Path) -> Clock<'a> {
        Clock(Box::new(|_, writes| {
            load.wait_for_records(state, Load::records_now(state) + writes);
        }))
    }

    /// Clock of another host: `later` waits for a number of further writes.
    pub fn new(later: impl FnMut(&Pair, u64) + 'a) -> Clock<'a> {
        Clock(Box::new(later))
    }

    /// Waits until the host has completed `writes` further writes.
    pub fn later(&mut self, pair: &Pair, writes: u64) {
        (self.0)(pair, writes);
    }
}

impl std::fmt::Debug for Clock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Event {
    /// Serving node after the event, when `source` served before; `None` if either may serve.
    pub fn source_after(self, source: usize) -> Option<usize> {
        match self {
            Event::SourceDies | Event::Switchover => Some(1 - source),
            // A source that dies in sync and comes back: either node may serve.
            Event::BothDie | Event::ResyncDies | Event::SwitchoverDies => None,
            // The role is transferred if the source's disk ran full.
            Event::DiskFull => None,
            _ => Some(source),
        }
    }

    /// Performs the event. Its effects are over when this returns, except for the resync.
    ///
    /// # Panics
    ///
    /// If a node does not behave as required.
    pub fn happen(self, pair: &mut Pair, source: usize, rng: &mut Rng, clock: &mut Clock<'_>) {
        let target = 1 - source;
        let some = 100 + rng.below(200);
        match self {
            Event::SourceDies => {
                pair.node(source).kill();
                pair.fail_over_to(target);
                let status = pair.status(target);
                assert!(status["peers"][0]["last_in_sync_seconds"].is_u64(), "{status:#}");
                clock.later(pair, some);
                pair.node(source).restart();
            }
            Event::TargetDies => {
                pair.node(target).kill();
                clock.later(pair, some);
                pair.node(target).restart();
            }
            Event::BothDie => {
                let first = rng.below(2) as usize;
                pair.node(first).kill();
                pair.node(1 - first).kill();
                let first = rng.below(2) as usize;
                pair.node(first).restart();
                pair.node(1 - first).restart();
            }
            Event::Switchover => {
                pair.order(target, "switchover", &[]);
            }
            Event::TargetStalls => {
                pair.stall(target, true);
                clock.later(pair, some);
                pair.stall(target, false);
            }
            Event::SourceStalls => {
                pair.stall(source, true);
                left(pair, target);
                pair.stall(source, false);
            }
            Event::Pause => {
                pair.order(source, "pause", &[]);
                clock.later(pair, some);
                pair.order(source, "continue", &[]);
            }
            Event::ResyncDies => {
                pair.node(target).kill();
                clock.later(pair, some);
                pair.node(target).restart();
                clock.later(pair, rng.below(20));
                let one = rng.below(2) as usize;
                pair.node(one).restart();
            }
            Event::SwitchoverDies => {
                pair.order(target, "switchover", &[]);
                clock.later(pair, rng.below(20));
                pair.node(target).restart();
            }
            Event::DiskFull => fill_disk(pair, source, some, clock),
            _ => self.happen_to_link(pair, source, rng, clock),
        }
    }

    fn happen_to_link(self, pair: &mut Pair, source: usize, rng: &mut Rng, clock: &mut Clock<'_>) {
        let target = 1 - source;
        let some = 100 + rng.below(200);
        match self {
            Event::CutFromSource => pair.network().cut(source),
            Event::CutFromTarget => pair.network().cut(target),
            Event::Unplugged => pair.network().unplug(source),
            Event::Slow => pair.network().slow(20_000_000),
            _ => [0, 1].iter().for_each(|node| pair.network().cut(*node)),
        }
        clock.later(pair, some);
        match self {
            Event::Flaps => {
                for _ in 0..2 + rng.below(6) {
                    pair.network().heal();
                    clock.later(pair, rng.below(some));
                    pair.network().cut(rng.below(2) as usize);
                    clock.later(pair, rng.below(some));
                }
            }
            Event::CutSourceRestarts => {
                pair.node(source).restart();
                clock.later(pair, some);
            }
            Event::CutTargetRestarts => {
                pair.node(target).restart();
                clock.later(pair, some);
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
fn fill_disk(pair: &Pair, source: usize, some: u64, clock: &mut Clock<'_>) {
    let target = 1 - source;
    let lost = |pair: &Pair| pair.status(source)["peers"][0]["disconnects"].as_u64();
    let before = lost(pair);
    pair.empty_part();
    pair.fill_small();
    pair.write_part();
    if pair.small_node() == source {
        let left = || pair.status(source)["replica"]["local_device_failed"] == true;
        until("the source has left its leg", left, || format!("{:#}", pair.status(source)));
        pair.order(source, "switchover", &["--to", pair.name(target)]);
    } else {
        let left = || lost(pair) > before;
        until("the target is left behind", left, || format!("{:#}", pair.status(source)));
    }
    clock.later(pair, some);
    pair.clear_small();
}

/// Number of events of a test: `FLAGSTONE_MIRROR_ROUNDS`, or one of each of the `kinds`.
///
/// # Panics
///
/// If the variable is not a number.
pub fn rounds(kinds: usize) -> u64 {
    let set = std::env::var("FLAGSTONE_MIRROR_ROUNDS");
    set.map_or(kinds as u64, |text| text.parse().expect("FLAGSTONE_MIRROR_ROUNDS is a number"))
}

/// Waits until a node has noticed that its source is lost.
fn left(pair: &Pair, node: usize) {
    let gone = || pair.status(node)["replica"]["has_source"] == false;
    until("the target gives its source up", gone, || format!("{:#}", pair.status(node)));
}
