//! Tests of the race: the table in the documentation, every (state, event), and every interleaving
//! of two nodes with a store that loses answers.

use super::*;
use crate::StoredVersion;
use crate::store::MemoryStore;

const A: ReplicaId = ReplicaId([1; 16]);
const B: ReplicaId = ReplicaId([2; 16]);
const C: ReplicaId = ReplicaId([3; 16]);
const VOLUME: ReplicaId = ReplicaId([9; 16]);

fn record(source: ReplicaId, in_sync: &[ReplicaId]) -> ArbiterRecord {
    let in_sync = in_sync.to_vec();
    let (epoch, revision, writer) = (5, 7, 1);
    ArbiterRecord { volume: VOLUME, epoch, revision, source, in_sync, maintenance: false, writer }
}

fn stored(record: &ArbiterRecord) -> Stored {
    Stored { version: StoredVersion::new("v").expect("short"), bytes: record.encode() }
}

fn ask(own: ReplicaId, goal: Goal) -> Ask {
    Ask {
        volume: VOLUME,
        own,
        seen_revision: 7,
        writer: 2,
        suspended: false,
        succeeds: false,
        goal,
    }
}

fn goals() -> Vec<Goal> {
    vec![
        Goal::Publish { peer: Some(B), epoch: 5, occasion: Occasion::Change },
        Goal::Publish { peer: None, epoch: 5, occasion: Occasion::Change },
        Goal::RunDegraded { epoch: 5 },
        Goal::StayDegraded { epoch: 5 },
        Goal::Watch,
        Goal::Reclaim { seen_epoch: 5, rank: 3 },
        Goal::TakeOver { seen_epoch: 5, rank: 3 },
        Goal::Insist { epoch: 5 },
        Goal::Maintenance { epoch: 5, on: true },
    ]
}

/// Records that A may find, with the revision that A has seen.
fn findings() -> Vec<(&'static str, u64, Option<ArbiterRecord>)> {
    let both = record(A, &[A, B]);
    let suspended = ArbiterRecord { maintenance: true, ..both.clone() };
    let foreign = ArbiterRecord { volume: C, ..both.clone() };
    vec![
        ("no record, and none seen", 0, None),
        ("no record, but one was seen", 7, None),
        ("both in sync", 7, Some(both.clone())),
        ("both in sync; the peer is the source", 7, Some(record(B, &[A, B]))),
        ("both in sync; never seen here", 0, Some(both.clone())),
        ("both in sync, suspended", 7, Some(suspended)),
        ("only this node", 7, Some(record(A, &[A]))),
        ("only this node, newer than seen", 6, Some(record(A, &[A]))),
        ("only the peer", 7, Some(record(B, &[B]))),
        ("only the peer, which has handed over since", 7, Some(record(B, &[B]))),
        ("only the peer, newer than it had handed over", 6, Some(record(B, &[B]))),
        ("both in sync, older than seen", 8, Some(both)),
        ("another volume", 7, Some(foreign)),
    ]
}

fn shown(decision: &Decision) -> String {
    match decision {
        Decision::Write(written) => {
            let who = if written.in_sync == [A] { "own" } else { "both" };
            let epoch = if written.epoch > 5 { ", new epoch" } else { "" };
            let suspended = if written.maintenance { ", suspended" } else { "" };
            format!("{who}{epoch}{suspended}")
        }
        Decision::Keep(_) => "kept".to_owned(),
        Decision::Deny(denial) => format!("*{}*", short(denial)),
    }
}

/// Word for the legend.
fn short(denial: &Denial) -> &'static str {
    match denial {
        Denial::Lost { .. } => "lost",
        Denial::Missing => "missing",
        Denial::Older { seen: 0, .. } => "unseen",
        Denial::Older { .. } => "older",
        Denial::Unreadable(_) => "unreadable",
        Denial::Foreign => "foreign",
        Denial::NotSole => "shared",
        Denial::Maintenance => "suspended",
        Denial::Silent(_) => "silent",
    }
}

fn decisions() -> String {
    let mut table = "|record|".to_owned();
    let names: Vec<String> = goals().iter().map(Goal::to_string).collect();
    table += &format!("{}|\n|---|{}\n", names.join("|"), "---|".repeat(names.len()));
    for (name, seen_revision, found) in findings() {
        let succeeds = name.contains("handed over");
        let cells = goals().into_iter().map(|goal| {
            let ask = Ask { seen_revision, succeeds, ..ask(A, goal) };
            shown(&decide(&ask, found.as_ref().map(stored).as_ref()))
        });
        table += &format!("|{name}|{}|\n", cells.collect::<Vec<_>>().join("|"));
    }
    table
}

fn events() -> Vec<(&'static str, RaceEvent)> {
    let silence = || NoAnswer("timed out".to_owned());
    let both = record(A, &[A, B]);
    let lost = record(B, &[B]);
    let own = ArbiterRecord { revision: 8, writer: 2, ..record(A, &[A]) };
    vec![
        ("read: may write", RaceEvent::Read(Ok(Some(stored(&both))))),
        ("read: own proposal, whose answer was lost", RaceEvent::Read(Ok(Some(stored(&own))))),
        ("read: the peer has won", RaceEvent::Read(Ok(Some(stored(&lost))))),
        ("read: no record", RaceEvent::Read(Ok(None))),
        ("read: no answer", RaceEvent::Read(Err(silence()))),
        ("written", RaceEvent::Written(Ok(Written::Yes))),
        ("conflict", RaceEvent::Written(Ok(Written::Conflict))),
        ("write: no answer", RaceEvent::Written(Err(silence()))),
        ("a write would be accepted", RaceEvent::WriteProbed(Ok(()))),
        ("a write would be refused", RaceEvent::WriteProbed(Err(silence()))),
        ("pause ended", RaceEvent::Paused),
    ]
}

fn states() -> Vec<(&'static str, RaceState)> {
    let ask = ask(A, Goal::RunDegraded { epoch: 5 });
    let attempt = |failed, unanswered| Attempt { ask: ask.clone(), failed, unanswered };
    let own = ArbiterRecord { revision: 8, writer: 2, ..record(A, &[A]) };
    let last = ATTEMPTS_MAX - 1;
    vec![
        ("reading", RaceState::Reading(attempt(0, vec![]))),
        ("reading back", RaceState::Reading(attempt(1, vec![own.clone()]))),
        ("reading, last attempt", RaceState::Reading(attempt(last, vec![]))),
        ("writing", RaceState::Writing { attempt: attempt(0, vec![]), record: own.clone() }),
        (
            "writing, last attempt",
            RaceState::Writing { attempt: attempt(last, vec![]), record: own.clone() },
        ),
        ("probing", RaceState::ProbingWrite { attempt: attempt(0, vec![]), record: own.clone() }),
        ("pausing", RaceState::Pausing(attempt(1, vec![]))),
        ("ended", RaceState::Ended(Ok(own))),
    ]
}

fn named(state: &RaceState) -> String {
    match state {
        RaceState::Reading(Attempt { unanswered, .. }) if !unanswered.is_empty() => {
            "reading back".into()
        }
        RaceState::Reading(_) => "reading".into(),
        RaceState::Writing { .. } => "writing".into(),
        RaceState::ProbingWrite { .. } => "probing".into(),
        RaceState::Pausing(_) => "pausing".into(),
        RaceState::Ended(Ok(_)) => "**granted**".into(),
        RaceState::Ended(Err(denial)) => format!("**{}**", short(denial)),
    }
}

fn transitions() -> String {
    let states = states();
    let names: Vec<&str> = states.iter().map(|(name, _)| *name).collect();
    let mut table = format!("|event|{}|\n|---|", names.join("|"));
    table += &format!("{}\n", "---|".repeat(names.len()));
    for (name, event) in events() {
        let cells = states.iter().map(|(_, state)| {
            let (after, _) = next(state.clone(), event.clone());
            if after == *state { String::new() } else { named(&after) }
        });
        table += &format!("|{name}|{}|\n", cells.collect::<Vec<_>>().join("|"));
    }
    table
}

#[test]
fn tables_match_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failover-race.md");
    let head = "# The race at the arbiter\n\nWhat one node does with the record of a volume, printed \
                from `crates/arbiter/src/race.rs` by its test. A node asks only if its own records allow \
                it: see [mirror-states.md](mirror-states.md).\n\n## Decision about a record\n\nA node tries to \
                write a record that lists itself as in sync (own), or its peer as well (both), or the \
                record is granted as it is (kept). Refused: the record is *missing*; *older* than this node has \
                seen; *unseen* by this node while in sync; *foreign*, of another volume; *lost* to the peer; \
                *shared*, not this node's alone; or failover is *suspended*.\n\n";
    let middle = "\n## Steps\n\nThe columns are states, here of a source that runs without its peer. \
                  An event that does not belong to a state changes nothing (empty). After a silence, a race \
                  reads before it writes again: the record says who won. *silent*: no answer.\n\n";
    let text = format!("{head}{}{middle}{}", decisions(), transitions());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).expect("the documentation is writable");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "run again with UPDATE_DOCS=1, and review docs/failover-race.md");
}

/// A node of the model, whose calls to the store take effect one at a time.
#[derive(Clone)]
struct Node {
    state: RaceState,
    action: Option<RaceAction>,
    /// A write that was abandoned and has not reached the store yet.
    delayed: Option<(Option<Stored>, ArbiterRecord)>,
}

impl Node {
    fn new(ask: Ask) -> Node {
        let (state, action) = start(ask);
        Node { state, action: Some(action), delayed: None }
    }

    fn granted(&self) -> bool {
        matches!(self.state, RaceState::Ended(Ok(_)))
    }

    fn event(&mut self, event: RaceEvent) {
        (self.state, self.action) = next(self.state.clone(), event);
    }
}

/// Effect of a call on the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Answered,
    AnswerLost,
    /// A write takes effect after its caller abandoned it; a read is lost.
    Delayed,
}

fn step(node: &mut Node, store: &mut MemoryStore, delivery: Delivery) {
    let silence = || NoAnswer("lost".to_owned());
    match node.action.take() {
        Some(RaceAction::Read) => {
            let found = store.read(VOLUME);
            let answered = delivery == Delivery::Answered;
            node.event(RaceEvent::Read(if answered { Ok(found) } else { Err(silence()) }));
        }
        Some(RaceAction::Write { expected, record }) => match delivery {
            Delivery::Delayed => {
                node.delayed = Some((expected, record));
                node.event(RaceEvent::Written(Err(silence())));
            }
            _ => {
                let written = store.write(VOLUME, expected.as_ref(), record.encode());
                let lost = delivery == Delivery::AnswerLost;
                node.event(RaceEvent::Written(if lost { Err(silence()) } else { Ok(written) }));
            }
        },
        Some(RaceAction::ProbeWrite(_)) => node.event(RaceEvent::WriteProbed(match delivery {
            Delivery::Answered => Ok(()),
            Delivery::AnswerLost | Delivery::Delayed => Err(silence()),
        })),
        Some(RaceAction::Pause(_)) => node.event(RaceEvent::Paused),
        None => {}
    }
}

fn arrive(node: &mut Node, store: &mut MemoryStore) {
    if let Some((expected, record)) = node.delayed.take() {
        store.write(VOLUME, expected.as_ref(), record.encode());
    }
}

/// Explores all orders of two nodes' calls, with up to `faults` lost or delayed ones.
fn explore(nodes: &[Node; 2], store: &MemoryStore, faults: u32, runs: &mut u64) {
    assert!(
        !nodes.iter().all(Node::granted),
        "both nodes win: {:?}",
        nodes.each_ref().map(|n| &n.state)
    );
    let mut moves = 0;
    for index in 0..2 {
        for delivery in [Delivery::Answered, Delivery::AnswerLost, Delivery::Delayed] {
            if nodes[index].action.is_none() || delivery != Delivery::Answered && faults == 0 {
                continue;
            }
            let (mut nodes, mut store) = (nodes.clone(), store.clone());
            step(&mut nodes[index], &mut store, delivery);
            moves += 1;
            explore(&nodes, &store, faults - u32::from(delivery != Delivery::Answered), runs);
        }
        if nodes[index].delayed.is_some() {
            let (mut nodes, mut store) = (nodes.clone(), store.clone());
            arrive(&mut nodes[index], &mut store);
            moves += 1;
            explore(&nodes, &store, faults, runs);
        }
    }
    if moves == 0 {
        *runs += 1;
        assert!(nodes.iter().any(Node::granted), "nobody wins at a store that answers again");
    }
}

#[test]
fn one_of_two_nodes_wins_in_every_order() {
    let mut store = MemoryStore::default();
    store.write(VOLUME, None, record(A, &[A, B]).encode());
    let rivals = |own: Goal| {
        let target = Ask { writer: 3, ..ask(B, Goal::TakeOver { seen_epoch: 5, rank: 4 }) };
        [Node::new(ask(A, own)), Node::new(target)]
    };
    let mut runs = 0;
    for goal in [Goal::RunDegraded { epoch: 5 }, Goal::TakeOver { seen_epoch: 5, rank: 3 }] {
        explore(&rivals(goal), &store, 2, &mut runs);
    }
    assert!(runs > 1000, "{runs} orders");
}

/// The store was restored from a backup in which both were in sync, after A ran degraded.
#[test]
fn record_older_than_seen_revision_is_refused() {
    let mut store = MemoryStore::default();
    store.write(VOLUME, None, record(A, &[A, B]).encode());
    let backup = store.clone();
    let mut source = Node::new(ask(A, Goal::RunDegraded { epoch: 5 }));
    while source.action.is_some() {
        step(&mut source, &mut store, Delivery::Answered);
    }
    let RaceState::Ended(Ok(won)) = &source.state else { panic!("{:?}", source.state) };
    assert_eq!((won.revision, &won.in_sync[..]), (8, &[A][..]));
    store.restore(&backup);
    let seen = Ask { seen_revision: 8, ..ask(A, Goal::TakeOver { seen_epoch: 5, rank: 3 }) };
    let denied = Decision::Deny(Denial::Older { found: 7, seen: 8 });
    assert_eq!(decide(&seen, store.read(VOLUME).as_ref()), denied);
    store.remove(VOLUME);
    assert_eq!(decide(&seen, None), Decision::Deny(Denial::Missing));
}

#[test]
fn silent_store_ends_race_within_its_attempts() {
    let mut node = Node::new(ask(A, Goal::RunDegraded { epoch: 5 }));
    let (mut calls, mut paused_ms) = (0, 0);
    while let Some(action) = node.action.clone() {
        match action {
            RaceAction::Pause(ms) => paused_ms += ms,
            _ => calls += 1,
        }
        step(&mut node, &mut MemoryStore::default(), Delivery::AnswerLost);
    }
    assert!(matches!(node.state, RaceState::Ended(Err(Denial::Silent(_)))));
    assert!(calls <= 2 * ATTEMPTS_MAX && paused_ms <= 5000, "{calls} calls, {paused_ms} ms");
}

/// Regression: a delayed write of the peer, from before it attached, replaced a record that was
/// kept without a write, and demoted the source.
#[test]
fn first_publish_defeats_delayed_write_of_peer() {
    let mut store = MemoryStore::default();
    store.write(VOLUME, None, record(A, &[A, B]).encode());
    let target = Ask { writer: 3, ..ask(B, Goal::TakeOver { seen_epoch: 5, rank: 4 }) };
    let mut target = Node::new(target);
    step(&mut target, &mut store, Delivery::Answered);
    step(&mut target, &mut store, Delivery::Delayed);
    let publish = Goal::Publish { peer: Some(B), epoch: 5, occasion: Occasion::NewSession };
    let mut source = Node::new(ask(A, publish));
    while source.action.is_some() {
        step(&mut source, &mut store, Delivery::Answered);
    }
    assert!(source.granted());
    arrive(&mut target, &mut store);
    let kept = ArbiterRecord::decode(&store.read(VOLUME).expect("a record").bytes).expect("valid");
    assert_eq!((kept.source, &kept.in_sync[..]), (A, &[A, B][..]));
}

/// The record equals the record of the source, but its peer does not find it: only a new
/// record shows whether both nodes use one store.
#[test]
fn source_rewrites_record_unseen_by_peer() {
    let publish = |occasion, found: &ArbiterRecord| {
        let goal = Goal::Publish { peer: Some(B), epoch: 5, occasion };
        decide(&ask(A, goal), Some(&stored(found)))
    };
    let both = record(A, &[A, B]);
    assert_eq!(publish(Occasion::Change, &both), Decision::Keep(both.clone()));
    let Decision::Write(written) = publish(Occasion::Unseen, &both) else { panic!("it is new") };
    assert_eq!((written.revision, written.in_sync), (both.revision + 1, both.in_sync));
    let won = ArbiterRecord { revision: 8, ..record(B, &[B]) };
    assert!(matches!(publish(Occasion::Unseen, &won), Decision::Deny(Denial::Lost { .. })));
}

/// Regression: a source whose machine was paused believed in its session. It replaced the record of
/// its peer, which had taken over and acknowledged writes.
#[test]
fn resumed_source_does_not_overwrite_takeover() {
    let publish = |seen_revision, is_first| {
        let occasion = if is_first { Occasion::NewSession } else { Occasion::Change };
        let goal = Goal::Publish { peer: Some(B), epoch: 5, occasion };
        decide(&Ask { seen_revision, ..ask(A, goal) }, Some(&stored(&record(B, &[B]))))
    };
    assert!(matches!(publish(6, false), Decision::Deny(Denial::Lost { .. })));
    // The peer has attached since, and so agrees.
    assert!(matches!(publish(6, true), Decision::Write(_)));
    // Restored from a backup.
    assert!(matches!(publish(8, false), Decision::Write(_)));
}

/// Regression: the store refused writes for lack of space, but answered reads, so the nodes
/// believed that one of them would serve.
#[test]
fn store_that_refuses_writes_is_noticed_by_watch() {
    let refused = || NoAnswer("no space".to_owned());
    let publish = Goal::Publish { peer: Some(B), epoch: 5, occasion: Occasion::Change };
    for goal in [Goal::Watch, publish] {
        let mut node = Node::new(ask(A, goal));
        let found = stored(&record(A, &[A, B]));
        while let Some(action) = node.action.take() {
            match action {
                RaceAction::Read => node.event(RaceEvent::Read(Ok(Some(found.clone())))),
                RaceAction::ProbeWrite(_) => node.event(RaceEvent::WriteProbed(Err(refused()))),
                RaceAction::Pause(_) => node.event(RaceEvent::Paused),
                RaceAction::Write { .. } => panic!("nothing is to be written"),
            }
        }
        assert_eq!(node.state, RaceState::Ended(Err(Denial::Silent(refused()))));
    }
}

/// A node with a handed-over role continues from exactly the record that the former source had
/// seen.
#[test]
fn successor_replaces_only_record_of_hand_over() {
    let goals = [Goal::RunDegraded { epoch: 9 }, Goal::TakeOver { seen_epoch: 9, rank: 3 }];
    for goal in goals {
        let granted = |seen_revision, succeeds, found: &ArbiterRecord| {
            let ask = Ask { seen_revision, succeeds, ..ask(A, goal.clone()) };
            matches!(decide(&ask, Some(&stored(found))), Decision::Write(_))
        };
        let alone = record(B, &[B]);
        assert!(granted(7, true, &alone));
        assert!(!granted(7, false, &alone));
        assert!(!granted(6, true, &alone), "the peer was granted the role again");
        assert!(!granted(8, true, &alone), "restored from a backup");
        assert!(!granted(7, true, &record(B, &[B, C])));
        assert!(!granted(7, true, &record(B, &[C])));
    }
    let maintenance = Goal::Maintenance { epoch: 5, on: true };
    let ask = Ask { succeeds: true, ..ask(A, maintenance) };
    let found = stored(&record(B, &[B]));
    assert!(matches!(decide(&ask, Some(&found)), Decision::Deny(Denial::Lost { .. })));
}

#[test]
fn unreadable_record_grants_nothing() {
    let version = StoredVersion::new("1").expect("short");
    for bytes in [vec![], b"flagstone-failover 9\n".to_vec(), vec![0xff; 4000]] {
        let found = Stored { version: version.clone(), bytes };
        for goal in goals() {
            let denied = decide(&ask(A, goal), Some(&found));
            assert!(matches!(denied, Decision::Deny(Denial::Unreadable(_))), "{denied:?}");
        }
    }
}

/// In a store whose versions are checksums of the content (entity tags of S3), a record with
/// earlier bytes would have an earlier version.
#[test]
fn record_never_repeats_its_bytes() {
    use crate::limits::RECORD_BYTES_MAX;
    let mut seen = std::collections::BTreeSet::new();
    let mut found: Option<Stored> = None;
    let mut revision = 0;
    // Sequences in which each goal follows each other goal, all with one writer number.
    for round in 0..goals().len() {
        for goal in goals().into_iter().cycle().skip(round).step_by(round + 1).take(30) {
            // The peer of these goals is B.
            let owns: &[ReplicaId] =
                if matches!(goal, Goal::Publish { .. }) { &[A] } else { &[A, B] };
            for own in owns.iter().copied() {
                let asked = Ask { seen_revision: revision, ..ask(own, goal.clone()) };
                let Decision::Write(record) = decide(&asked, found.as_ref()) else { continue };
                let bytes = record.encode();
                assert!(bytes.len() <= RECORD_BYTES_MAX && record.revision > revision);
                assert!(seen.insert(bytes), "{goal}: {record:?}");
                revision = record.revision;
                found = Some(stored(&record));
            }
        }
    }
    assert!(seen.len() > 100, "{} records", seen.len());
}
