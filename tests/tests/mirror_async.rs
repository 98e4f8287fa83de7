//! Asynchronous mirror whose source dies, loses power or is deposed: the promoted target shows one
//! moment of the past of each host, and nothing is lost where nothing may be.
//!
//! Hosts write one block after the other, so each write depends on all earlier ones. The disks are
//! read by the test itself. `FLAGSTONE_MIRROR_ROUNDS` sets the number of events,
//! `FLAGSTONE_MIRROR_SEED` their choice.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::mirror_events::rounds;
use flagstone_tests::point_in_time::{assert_moment, content};
use flagstone_tests::process::until;
use flagstone_tests::rng::{self, Rng};

const SIZE_BYTES: u64 = 32 << 20;
const HOSTS: u64 = 3;
/// Range of each host, in bytes: some of its blocks are written again in each round.
const RANGE_BYTES: u64 = 128 << 10;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The source dies.
    SourceDies,
    /// The source dies while the target has not received everything.
    SourceDiesWithQueue,
    /// The source dies during a resync.
    SourceDiesInResync,
    /// The target dies, comes back, and the source dies at once.
    TargetThenSource,
    /// Both lose power, and only the target comes back.
    BothDie,
    /// Failover while the source lives.
    FailoverFromLive,
    /// The source is stopped by its administrator: it delivers its queue.
    SourceStops,
    /// A planned switchover.
    Switchover,
}

const EVENTS: [Event; 8] = [
    Event::SourceDies,
    Event::SourceDiesWithQueue,
    Event::SourceDiesInResync,
    Event::TargetThenSource,
    Event::BothDie,
    Event::FailoverFromLive,
    Event::SourceStops,
    Event::Switchover,
];

impl Event {
    /// Ends with a source that is dead, or no source any more. Returns true if the target has to
    /// have every completed write.
    fn happen(self, pair: &mut Pair, source: usize, rng: &mut Rng, hosts: &mut Hosts) -> bool {
        let target = 1 - source;
        match self {
            Event::SourceDies => {}
            Event::SourceDiesWithQueue => {
                pair.stall(target, true);
                hosts.write(10 + rng.below(200));
                pair.stall(target, false);
                // Part of the queue arrives.
                (0..rng.below(4)).for_each(|_| drop(pair.status(target)));
            }
            Event::SourceDiesInResync => {
                pair.order(source, "pause", &[]);
                hosts.write(10 + rng.below(100));
                pair.order(source, "continue", &[]);
                hosts.write(rng.below(20));
            }
            Event::TargetThenSource => {
                die(pair, target, rng);
                hosts.write(10 + rng.below(100));
                pair.restart(target);
                hosts.write(rng.below(20));
            }
            Event::BothDie => die(pair, target, rng),
            Event::FailoverFromLive => {
                pair.stall(target, true);
                hosts.write(rng.below(200));
                pair.stall(target, false);
                // Later writes to the new source would follow lost ones.
                hosts.stop();
                pair.fail_over_to(target);
                return false;
            }
            Event::SourceStops => {
                let status = pair.node(source).terminate();
                // It reports the writes that it could not deliver within the link's timeout.
                let undelivered = "stopped without delivering all queued writes";
                let reported = pair.node(source).output().contains(undelivered);
                assert!(status.success() || reported, "{status}");
                return status.success();
            }
            Event::Switchover => {
                // Refused while the target is behind, after a lost link.
                let order = || pair.try_order(source, "switchover", &["--to", pair.name(target)]);
                until("the switchover succeeds", || order().is_ok(), || pair.state(source));
                return true;
            }
        }
        die(pair, source, rng);
        false
    }
}

fn die(pair: &mut Pair, node: usize, rng: &mut Rng) {
    match rng.below(2) {
        0 => pair.kill(node),
        _ => pair.cut_power(node, rng),
    }
}

/// Hosts of one round.
struct Hosts {
    loads: Vec<Load>,
    states: Vec<std::path::PathBuf>,
    before: Vec<Vec<u8>>,
}

impl Hosts {
    /// Starts them on a mirror whose legs are equal and that no host writes.
    fn start(pair: &Pair, source: usize, round: u64) -> Hosts {
        let mut hosts = Hosts { loads: Vec::new(), states: Vec::new(), before: Vec::new() };
        for host in 0..HOSTS {
            let at = host * RANGE_BYTES;
            hosts.before.push(content(pair.disk(source), at, RANGE_BYTES));
            let state = pair.file(&format!("host-{round}-{host}"));
            let line = format!(
                "--rw randwrite --bs 512 --depth 1 --offset {at} --size {RANGE_BYTES} --seed {round} \
                 --ios 1000000000"
            );
            hosts.loads.push(pair.load(&pair.both_paths(), &line, &state));
            hosts.states.push(state);
        }
        hosts
    }

    /// Waits until each has completed `writes` further writes.
    fn write(&mut self, writes: u64) {
        for (load, state) in self.loads.iter_mut().zip(&self.states) {
            load.wait_for_records(state, Load::records_now(state) + writes);
        }
    }

    fn stop(&mut self) {
        self.loads.iter_mut().for_each(Load::kill);
    }

    /// Kills them. The disk of a node that serves must show a moment of the past of each, or, with
    /// `all`, every completed write.
    fn check(mut self, what: &str, pair: &Pair, node: usize, all: bool) {
        self.stop();
        let ended = || pair.status(node)["replica"]["in_flight"] == 0;
        until("no write is in flight", ended, || format!("{:#}", pair.status(node)));
        for (host, (state, before)) in self.states.iter().zip(&self.before).enumerate() {
            let shown = content(pair.disk(node), host as u64 * RANGE_BYTES, RANGE_BYTES);
            let what = format!("{what}, host {host}");
            let (present, completed) = assert_moment(&what, state, &shown, before);
            eprintln!("  {what}: {present} of {completed} writes");
            assert!(!all || present >= completed, "{what}: {present} of {completed} writes");
            std::fs::remove_file(state).expect("the host wrote it");
        }
    }
}

/// Waits until both are in sync, and makes the data of `serving` count in a split brain: the other
/// may have written alone. Returns the source: `serving`, or the other if it has all data of that
/// node, for which no host has written since, and more.
fn settle(pair: &Pair, serving: usize) -> usize {
    let mut split = false;
    let mut found = None;
    let settled = || {
        let states = [0, 1].map(|node| pair.status(node));
        if !split && states.iter().any(|status| status["state"] == "split-brain") {
            eprintln!("  split brain");
            split = true;
            pair.order(1 - serving, "demote", &[]);
            pair.order(serving, "resolve", &["--keep", "mine", "--yes"]);
        }
        found = states.iter().position(|status| {
            status["state"] == "mirroring" && status["replica"]["serving"] == true
        });
        found.is_some()
    };
    until("both are in sync", settled, || format!("{:#}", pair.status(serving)));
    found.expect("it was waited for")
}

#[test]
fn asynchronous_mirror_survives_deaths_of_its_source() {
    // Slow enough that the target lags, and stays behind in a resync.
    let slow = "disk_model = { write_latency = \"300us\", read_latency = \"100us\" }";
    let setup = Setup {
        size_bytes: SIZE_BYTES,
        options: "mode = \"async\", queue = \"32MiB\"",
        volume: ["", slow],
        volatile: true,
        ..Setup::default()
    };
    let mut pair = Pair::set_up(setup).synchronized();
    let mut rng = rng::from_env("FLAGSTONE_MIRROR_SEED", 8);
    let mut source = 0;
    for round in 0..rounds(EVENTS.len()) {
        let event = EVENTS.get(round as usize).copied();
        let event = event.unwrap_or_else(|| EVENTS[rng.below(EVENTS.len() as u64) as usize]);
        eprintln!("round {round}: {event:?}, source {source}");
        pair.assert_equal_legs(source);
        let mut hosts = Hosts::start(&pair, source, round);
        hosts.write(50 + rng.below(200));
        let all = event.happen(&mut pair, source, &mut rng, &mut hosts);
        let (what, target) = (format!("round {round}, {event:?}"), 1 - source);
        if matches!(event, Event::BothDie) {
            pair.node(target).restart();
        }
        if matches!(event, Event::Switchover | Event::FailoverFromLive) {
            hosts.check(&what, &pair, target, all);
            source = settle(&pair, target);
            assert_eq!(source, target, "{what}");
            continue;
        }
        hosts.stop();
        match pair.try_order(target, "failover", &["--force", "--yes"]) {
            Ok(_) => {
                hosts.check(&what, &pair, target, all);
                pair.restart(source);
                source = settle(&pair, target);
            }
            // A resync was under way.
            Err(said) => {
                let inconsistent = pair.status(target)["replica"]["inconsistent"] == true;
                assert!(inconsistent && !all, "{what}: {said}");
                pair.restart(source);
                assert_eq!(pair.source(), source, "{what}");
            }
        }
    }
    pair.assert_equal_legs(source);
    pair.end(source);
}
