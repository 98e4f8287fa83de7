//! What may happen to two nodes that mirror a volume while a host uses it.
//!
//! Nothing here waits for a time: what comes next comes when the load has recorded so many writes
//! more, or when a node says that it has noticed.

use std::path::Path;

use crate::load::Load;
use crate::mirror::Pair;
use crate::process::until;
use crate::rng::Rng;

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The source dies, the target is made the source, the dead one comes back.
    SourceDies,
    /// The target dies and comes back.
    TargetDies,
    /// Both die.
    BothDie,
    /// The role goes over, planned.
    Switchover,
    /// The target stands still, and goes on.
    TargetStalls,
    /// The source stands still until the target has given it up, and goes on.
    SourceStalls,
    /// The operator pauses the mirror, and has it go on.
    Pause,
    /// The target dies, comes back, and one side dies while it is brought up to date.
    ResyncDies,
    /// The role goes over, and the new source dies at once, and comes back.
    SwitchoverDies,
    /// What the source sends is dropped without a word, later it arrives again.
    CutFromSource,
    /// What the target sends is dropped.
    CutFromTarget,
    /// Both.
    Cut,
    /// The link's card goes down at the source.
    Unplugged,
    /// The link lets little through.
    Slow,
    /// The link comes and goes.
    Flaps,
    /// The link is cut, and the source dies and comes back before it is whole again.
    CutSourceRestarts,
    /// The link is cut, and the target dies and comes back before it is whole again.
    CutTargetRestarts,
    /// The role is asked for while the link is cut, in vain.
    CutSwitchover,
    /// The disk of one node runs full, whichever role that has, and has room again later.
    DiskFull,
}

/// Those that need no network of the nodes' own.
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

/// Those that a host of one node, which never dies, sees nothing of.
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

/// Those that lose nothing of an asynchronous mirror: nobody takes over from a source that is lost.
/// Nor does that one come back out of the target's sight: it may not have noticed that the link was
/// cut before it died, and then serves when it has asked the target.
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

/// Those of the link, which may be cut.
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

/// Those of a node whose disk is small ([`crate::mirror::Small`]).
pub const SMALL_EVENTS: [Event; 1] = [Event::DiskFull];

/// Time, as events know it: writes of the host.
pub struct Clock<'a>(Box<Wait<'a>>);

/// Waits for so many writes more.
type Wait<'a> = dyn FnMut(&Pair, u64) + 'a;

impl<'a> Clock<'a> {
    /// Of a load that writes all the time and keeps its verified state in `state`.
    pub fn of_load(load: &'a mut Load, state: &'a Path) -> Clock<'a> {
        Clock(Box::new(|_, writes| {
            load.wait_for_records(state, Load::records_now(state) + writes);
        }))
    }

    /// Of another host: `later` waits until it has done so many writes more.
    pub fn new(later: impl FnMut(&Pair, u64) + 'a) -> Clock<'a> {
        Clock(Box::new(later))
    }

    /// Waits until the host has done so many writes more.
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
    /// Who may serve after it, when `source` did before; none for either.
    pub fn source_after(self, source: usize) -> Option<usize> {
        match self {
            Event::SourceDies | Event::Switchover => Some(1 - source),
            // A source that dies in sync, and comes back: either.
            Event::BothDie | Event::ResyncDies | Event::SwitchoverDies => None,
            // The role is handed over if it was the source's disk.
            Event::DiskFull => None,
            _ => Some(source),
        }
    }

    /// Lets it happen; what is left of it is over when this returns, but for the resync.
    ///
    /// # Panics
    /// If a node does not do what it has to.
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

/// The small disk runs full under writes; when it has been found so, the role is where there is room,
/// and the disk has room again, which nobody tells the node.
fn fill_disk(pair: &Pair, source: usize, some: u64, clock: &mut Clock<'_>) {
    let target = 1 - source;
    let lost = |pair: &Pair| pair.status(source)["peers"][0]["losses"].as_u64();
    let before = lost(pair);
    pair.empty_part();
    pair.fill_small();
    pair.write_part();
    if pair.small_node() == source {
        let left = || pair.status(source)["replica"]["local_failed"] == true;
        until("the source has left its leg", left, || format!("{:#}", pair.status(source)));
        pair.order(source, "switchover", &["--to", pair.name(target)]);
    } else {
        let left = || lost(pair) > before;
        until("the target is left behind", left, || format!("{:#}", pair.status(source)));
    }
    clock.later(pair, some);
    pair.clear_small();
}

/// How many events a test lets happen: `FLAGSTONE_MIRROR_ROUNDS`, else each of so many once.
///
/// # Panics
/// If that is not a number.
pub fn rounds(kinds: usize) -> u64 {
    let set = std::env::var("FLAGSTONE_MIRROR_ROUNDS");
    set.map_or(kinds as u64, |text| text.parse().expect("FLAGSTONE_MIRROR_ROUNDS is a number"))
}

/// Waits until a node has noticed that its source is gone.
fn left(pair: &Pair, node: usize) {
    let gone = || pair.status(node)["replica"]["has_source"] == false;
    until("the target gives its source up", gone, || format!("{:#}", pair.status(node)));
}
