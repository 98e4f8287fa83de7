//! The printed table of transitions, and properties that hold in every state.

use std::fmt::Write as _;

use super::*;
use crate::agree::decide::ResyncAmount;
use crate::agree::plan::HandshakePlan;
use crate::limits::PEERS_MAX;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::{DesiredState, HandshakeOutcome, LegPhase};

const EPOCH: u64 = 5;

fn roles() -> [(&'static str, NodeRole); 7] {
    [
        ("serving", NodeRole::Serving { epoch: EPOCH }),
        ("waiting", NodeRole::Waiting { epoch: EPOCH, handed_over: false }),
        ("handing over", NodeRole::Waiting { epoch: EPOCH, handed_over: true }),
        ("target", NodeRole::Target { epoch: EPOCH, attached: false }),
        ("attached target", NodeRole::Target { epoch: EPOCH, attached: true }),
        ("deposed", NodeRole::Deposed { by: EPOCH }),
        ("closed", NodeRole::Closed),
    ]
}

fn state(role: NodeRole) -> MachineState {
    let leg = Leg { desired: DesiredState::Connected, phase: LegPhase::InSync };
    let records = [PeerDataState::Outdated, PeerDataState::Unknown];
    let (promised, announced) = (0, 0);
    let (disk, legs, leader) = (DiskState::Consistent, [Some(leg), None], None);
    MachineState { role, disk, legs, records, promised, announced, leader }
}

fn with_leg(role: NodeRole, change: impl Fn(&mut Leg)) -> MachineState {
    let mut state = state(role);
    state.legs.iter_mut().flatten().for_each(change);
    state
}

const SPLIT: LegPhase = LegPhase::Handshake(HandshakeOutcome::SplitBrain);

const LEAD: HandshakePlan =
    HandshakePlan::Lead { amount: Some(ResyncAmount::Partial), promote: true };

fn known(serving: bool, epoch: u64, plan: HandshakePlan) -> Answers {
    [Some(RoleAnswer::Known { serving, epoch, plan, differs: false }), None]
}

/// Answer of a peer that leads under the same epoch, with newer data or the same.
fn leads(differs: bool) -> Answers {
    let plan = HandshakePlan::Follow { step_down: false };
    [Some(RoleAnswer::Known { serving: false, epoch: EPOCH, plan, differs }), None]
}

const SILENT: Answers = [Some(RoleAnswer::Silent), None];

type Row = (&'static str, Box<dyn Fn(NodeRole) -> MachineState>, Event);

/// The rows of the table, one per event and the condition that it depends on.
fn rows() -> Vec<Row> {
    let row = |name, event| -> Row { (name, Box::new(state), event) };
    let leg = |name, change: fn(&mut Leg), event| -> Row {
        (name, Box::new(move |role| with_leg(role, change)), event)
    };
    let disk = |name, disk, event| -> Row {
        (name, Box::new(move |role| MachineState { disk, ..state(role) }), event)
    };
    let record = |name, record, event| -> Row {
        let change =
            move |role| MachineState { records: [record, PeerDataState::Unknown], ..state(role) };
        (name, Box::new(change), event)
    };
    let promised = |name, event| -> Row {
        (name, Box::new(move |role| MachineState { promised: 8, ..state(role) }), event)
    };
    let several = |name, event| -> Row {
        let two = |role| {
            let before = state(role);
            MachineState { legs: [before.legs[0]; PEERS_MAX], ..before }
        };
        (name, Box::new(two), event)
    };
    let announced = |epoch, forced| Event::Announced { epoch, forced };
    let by = |successor, epoch| AdmittedBy {
        successor,
        epoch,
        overtaken: epoch > EPOCH,
        unusable: false,
    };
    let admitted = |successor, epoch| Event::Admitted(by(successor, epoch));
    let unusable = Event::Admitted(AdmittedBy { unusable: true, ..by(true, EPOCH) });
    let follows = |name, leader| -> Row {
        let change = move |role| MachineState { leader: Some(leader), ..state(role) };
        (name, Box::new(change), Event::Admitted(by(true, EPOCH)))
    };
    let order = Event::Order;
    let failover = |answers| order(OperatorOrder::Failover { answers });
    let force = order(OperatorOrder::ForceFailover { unverified: true });
    let desired = |desired| order(OperatorOrder::SetDesired(0, desired));
    let handshake = |plan, prevailing| Event::HandshakeDone { plan, prevailing };
    let yields = HandshakePlan::Follow { step_down: true };
    vec![
        record("start; no peer met yet", PeerDataState::Unknown, Event::Opened),
        row("start; every peer recorded as out of date", Event::Opened),
        record("start; a peer may be current", PeerDataState::Current, Event::Opened),
        disk("start; data not consistent", DiskState::Inconsistent, Event::Opened),
        row("asked at start: no answer", Event::Asked(SILENT)),
        row("asked at start: a peer serves", Event::Asked(known(true, 1, LEAD))),
        row(
            "asked at start: promoted later, stopped",
            Event::Asked(known(false, 9, HandshakePlan::SplitBrain)),
        ),
        row("asked at start: out of date", Event::Asked(known(false, 1, LEAD))),
        row("asked at start: has newer data", Event::Asked(leads(true))),
        row("asked at start: equal, and prefers itself", Event::Asked(leads(false))),
        row("failover; all answer, none serves", failover(known(false, 1, LEAD))),
        row("failover; a peer serves", failover(known(true, 9, yields))),
        row("failover; no answer", failover(SILENT)),
        row("failover; a peer has newer data", failover(known(false, 9, yields))),
        row("failover --force", force),
        promised("failover; another node takes the role", force),
        disk("failover --force; unverified data", DiskState::Unverified, force),
        disk("failover --force; bad ranges", DiskState::Incomplete, force),
        disk(
            "failover; removed by its source",
            DiskState::Removed,
            failover(known(false, 1, LEAD)),
        ),
        disk("failover --force; removed by its source", DiskState::Removed, force),
        disk("failover --force; inconsistent data", DiskState::Inconsistent, force),
        disk("failover --force; no data", DiskState::Blank, force),
        row("a peer announces that it is forced", announced(9, true)),
        row("a peer announces a failover", announced(9, false)),
        row("a peer announces an earlier epoch", announced(1, true)),
        promised("a peer announces a lower epoch than another", announced(7, true)),
        row("deposed", Event::Deposed { epoch: 9 }),
        several("deposed, of three nodes", Event::Deposed { epoch: 9 }),
        row("deposed, and promoted later", Event::Deposed { epoch: 1 }),
        row("claimed by a failover", Event::Claimed { by: 0, epoch: 9 }),
        several("claimed by a failover, of three nodes", Event::Claimed { by: 0, epoch: 9 }),
        row("removed by its source", Event::Removed { epoch: 9 }),
        row("removed by a source of an earlier epoch", Event::Removed { epoch: 1 }),
        row("a source attaches", Event::Attached { epoch: 9 }),
        row("a source of an earlier epoch attaches", Event::Attached { epoch: 1 }),
        row("handshake; the peer admits this node", admitted(true, EPOCH)),
        row("handshake; a peer with discarded data admits", unusable),
        several("handshake of three nodes; admits", admitted(false, EPOCH)),
        several("handshake of three nodes; its successor admits", admitted(true, EPOCH)),
        several("handshake of three nodes; that was promoted", admitted(true, 9)),
        several("handshake of three nodes; another was promoted", admitted(false, 9)),
        promised("handshake; admits, another node takes the role", admitted(true, EPOCH)),
        follows("handshake; the leader of the group serves", Leader::Serves),
        follows("handshake; the leader of the group waits", Leader::Waits),
        follows("handshake; the leader of the group is elsewhere", Leader::Elsewhere),
        row("the source promotes this node", Event::Promoted),
        promised("promotes, another node takes the role", Event::Promoted),
        row("the successor accepts", Event::HandedOver(Handover::Accepted)),
        row("the successor declines", Event::HandedOver(Handover::Declined)),
        promised("declines, another node takes the role", Event::HandedOver(Handover::Declined)),
        disk(
            "declines; local leg failed",
            DiskState::Failed,
            Event::HandedOver(Handover::Declined),
        ),
        row("the successor does not answer", Event::HandedOver(Handover::Unknown)),
        row("the data is discarded", Event::Discarded),
        row("moved to another mirror of this node", Event::Transferred),
        row("granted by the arbiter", Event::Granted),
        promised("granted by the arbiter; another node takes the role", Event::Granted),
        disk("granted by the arbiter; inconsistent data", DiskState::Inconsistent, Event::Granted),
        row("outvoted at the arbiter", Event::Outvoted { epoch: 9 }),
        row("neither peer nor arbiter answers", Event::LeaseEnded),
        row("handshake; the peer has all data, and serves", handshake(yields, Some(9))),
        row(
            "handshake; split brain, the peer serves later",
            handshake(HandshakePlan::SplitBrain, Some(9)),
        ),
        row(
            "handshake; split brain, this node prevails",
            handshake(HandshakePlan::SplitBrain, None),
        ),
        row("switchover to a peer in sync", order(OperatorOrder::HandOver(0))),
        leg(
            "switchover to another peer",
            |leg| leg.phase = LegPhase::Disconnected,
            order(OperatorOrder::HandOver(0)),
        ),
        row("switchover to this node", order(OperatorOrder::TakeOver(0))),
        leg("switchover; split brain", |leg| leg.phase = SPLIT, order(OperatorOrder::TakeOver(0))),
        row("stop", order(OperatorOrder::Stop)),
        row("demote", order(OperatorOrder::Demote)),
        row("pause", desired(DesiredState::Paused)),
        row("break", desired(DesiredState::Detached)),
        row("continue; connected", desired(DesiredState::Connected)),
        leg(
            "continue; paused",
            |leg| leg.desired = DesiredState::Paused,
            desired(DesiredState::Connected),
        ),
        leg(
            "continue; broken",
            |leg| leg.desired = DesiredState::Detached,
            desired(DesiredState::Connected),
        ),
        leg("continue; split brain", |leg| leg.phase = SPLIT, desired(DesiredState::Connected)),
    ]
}

fn role_name(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Closed => "closed",
        NodeRole::Serving { .. } => "serving",
        NodeRole::Waiting { .. } => "waiting",
        NodeRole::Target { .. } => "target",
        NodeRole::Deposed { .. } => "deposed",
    }
}

/// Names for actions, sequences of actions and refusals, which the table explains once.
const NAMED: [(&str, &str); 18] = [
    ("*take the role*", "**record the role and a new epoch**, serve hosts"),
    ("*retire*", "flush, **record the role and that it is unused**"),
    ("*drain*", "block and drain host calls; deliver the queues"),
    ("*step down*", "**record the role**; end the sessions; wait for calls in flight; *retire*"),
    ("*reconnect*", "**record the desired state**, end an unwanted session; repeat the handshakes"),
    ("*detach*", "end the source's session"),
    ("*depose*", "depose the peers that answer; *detach*"),
    ("*withdraw*", "end the sessions; wait for calls in flight; *retire*"),
    ("`no mandate`", "refused: this node may not take the role by itself"),
    ("`contention`", "refused: another node takes the role at the same time"),
    ("`not the source`", "refused: this node is not the source"),
    ("`serves`", "refused: this node serves hosts"),
    ("`peer serves`", "refused: a peer serves hosts"),
    ("`stale`", "refused: this node has seen a later epoch"),
    ("`silent`", "refused: a peer does not answer, and may serve hosts"),
    ("`unconfirmed`", "refused: a peer answers, and has not confirmed that it serves no hosts"),
    ("`inconsistent`", "refused: the local data is inconsistent: a resync to it has not completed"),
    ("`split brain`", "refused: split brain: first choose the data to keep"),
];

/// Replaces actions and refusals by their names.
fn named(text: String) -> String {
    NAMED.iter().fold(text, |text, (name, meaning)| match meaning.starts_with("refused") {
        // Replace whole texts only: another refusal may begin with the same words.
        true if text == *meaning => (*name).to_owned(),
        true => text,
        false => text.replace(meaning, name),
    })
}

/// Effect of a transition, after the name of the role; `None` without an effect.
fn result_text(before: &MachineState, transition: Transition) -> Option<String> {
    match transition {
        Err(refusal) => Some(format!(": {}", named(format!("refused: {refusal}")))),
        Ok((_, actions)) if actions.is_empty() => None,
        Ok((after, actions)) => {
            let list: Vec<String> = actions.iter().map(|action| action.to_string()).collect();
            let (old, new) = (role_name(before.role), role_name(after.role));
            let role = if old == new { String::new() } else { format!(" → {new}") };
            Some(format!("{role}: {}", named(list.join("; "))))
        }
    }
}

/// Effect of an event in each role; empty without an effect in any.
fn results(state: &dyn Fn(NodeRole) -> MachineState, event: Event) -> String {
    let mut groups: Vec<(Option<String>, Vec<&str>)> = Vec::new();
    for (role_name, role) in roles().into_iter().filter(|(_, role)| *role != NodeRole::Closed) {
        let before = state(role);
        let result = result_text(&before, next(&before, event));
        match groups.iter_mut().find(|(known, _)| *known == result) {
            Some((_, names)) => names.push(role_name),
            None => groups.push((result, vec![role_name])),
        }
    }
    let rest = (0..groups.len()).max_by_key(|at| groups[*at].1.len());
    let line = |(at, (result, names)): (usize, &(Option<String>, Vec<&str>))| {
        let names = match groups.len() {
            1 => "any".to_owned(),
            _ if Some(at) == rest && names.len() > 2 => "other".to_owned(),
            _ => names.join(", "),
        };
        result.as_ref().map(|result| format!("{names}{result}"))
    };
    groups.iter().enumerate().filter_map(line).collect::<Vec<_>>().join("<br>")
}

fn table() -> String {
    let mut text = String::from(
        "# Mirror states\n\nRoles, events and orders of a mirror, printed from \
         `crates/mirror/src/state/machine.rs` by its test. [mirror-handshake.md](mirror-handshake.md) \
         gives the reasons. Actions in bold are durable before the next one begins.\n\n\
         - *Serving*: the source. *Waiting*: the last source, until a peer or the operator was \
         asked. *Handing over*: waiting for the successor's answer. *Deposed*: a former source that was replaced without its consent; its data is kept.\n\
         - A *later* claim has the higher role epoch, or the greater UUID.\n\
         - A closed mirror refuses every event. `a → b`: role *a* becomes *b*. Roles that are left \
         out ignore the event.\n",
    );
    for (name, meaning) in NAMED {
        writeln!(text, "- {name}: {meaning}.").unwrap();
    }
    let mut lines: Vec<(Vec<&str>, String)> = Vec::new();
    for (name, state, event) in rows() {
        let result = results(&*state, event);
        match lines.iter_mut().find(|(_, known)| *known == result) {
            Some((names, _)) => names.push(name),
            None => lines.push((vec![name], result)),
        }
    }
    text.push_str("\n## Events\n\nEach event, in bold, with its actions by role:\n\n");
    for (names, result) in lines {
        let result = if result.is_empty() { "any: nothing" } else { &result };
        writeln!(text, "- **{}**<br>{result}", names.join("**, **")).unwrap();
    }
    text.push_str(&consent_table());
    text
}

/// Table: whether this node begins to serve after each answer to its announcement.
fn consent_table() -> String {
    let mut text = String::from(
        "\n## Announcement of a failover\n\nBefore it serves, the node announces its epoch to every peer \
         that can be reached, and continues only if all answers allow it. Until a peer has acted on the \
         announcement, it does not begin to serve (`contention`).\n\n\
         Answers of a peer, and what follows:\n\n",
    );
    let consents = [
        ("none: no connection", PeerConsent::Unreachable),
        ("it serves no hosts, durably", PeerConsent::Yields),
        ("it refuses hosts, and cannot record it", PeerConsent::RefusesHosts),
        ("it serves hosts", PeerConsent::Serves),
        ("it promised a later epoch", PeerConsent::Later),
        ("none, or another refusal", PeerConsent::Unknown),
        ("its release does not know this; it serves", PeerConsent::TooOld { serving: true }),
        (
            "its release does not know this; it does not serve",
            PeerConsent::TooOld { serving: false },
        ),
    ];
    for (name, consent) in consents {
        let [plain, forced] = [false, true].map(|forced| match consented(&[consent], forced) {
            Ok(()) => "this node serves".to_owned(),
            Err(refusal) => named(format!("refused: {refusal}")),
        });
        match plain == forced {
            true => writeln!(text, "- {name}: {plain}").unwrap(),
            false => writeln!(text, "- {name}: {plain}; with `--force`: {forced}").unwrap(),
        }
    }
    text
}

#[test]
fn transitions_match_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mirror-states.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, table()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == table(), "docs/mirror-states.md differs: run this test with UPDATE_DOCS=1");
}

/// Every combination of states and events.
fn all(mut check: impl FnMut(&MachineState, Event)) {
    let phases = [LegPhase::Disconnected, LegPhase::InSync, SPLIT];
    let records = [PeerDataState::Unknown, PeerDataState::Current, PeerDataState::Outdated];
    let disks = [
        DiskState::Consistent,
        DiskState::Blank,
        DiskState::Inconsistent,
        DiskState::Incomplete,
        DiskState::Unverified,
        DiskState::Removed,
        DiskState::Failed,
    ];
    let desired = [DesiredState::Connected, DesiredState::Paused, DesiredState::Detached];
    let mut events: Vec<Event> = rows().into_iter().map(|(_, _, event)| event).collect();
    events.push(Event::Order(OperatorOrder::ForceFailover { unverified: false }));
    events.push(Event::Asked(known(true, 1, HandshakePlan::SplitBrain)));
    for (_, role) in roles() {
        for (phase, record) in phases.iter().flat_map(|one| records.map(|record| (*one, record))) {
            for (disk, desired) in disks.iter().flat_map(|one| desired.map(|two| (*one, two))) {
                let leg = Leg { desired, phase };
                let records = [record, PeerDataState::Unknown];
                for promised in [0, 8] {
                    let legs = [Some(leg), None];
                    let state = MachineState {
                        role,
                        disk,
                        legs,
                        records,
                        promised,
                        announced: 0,
                        leader: None,
                    };
                    events.iter().for_each(|event| check(&state, *event));
                }
            }
        }
    }
}

fn position(actions: Actions, found: fn(Action) -> bool) -> Option<usize> {
    actions.iter().position(found)
}

#[test]
fn roles_begin_and_end_with_their_actions() {
    all(|state, event| {
        let Ok((after, actions)) = next(state, event) else { return };
        let serves = |role: NodeRole| matches!(role, NodeRole::Serving { .. });
        let begins = position(actions, |action| {
            matches!(action, Action::Serve(_) | Action::ServeThroughPeer)
        });
        let refuses = position(actions, |action| action == Action::RefuseHosts);
        let hands_over = position(actions, |action| matches!(action, Action::HandOver(_)));
        let context = || format!("{state:?} {event:?} {actions:?}");
        assert_eq!(begins.is_some(), !serves(state.role) && serves(after.role), "{}", context());
        let ends = serves(state.role) && !serves(after.role);
        assert_eq!(refuses.is_some() || hands_over.is_some(), ends, "{}", context());
        // Recorded values must equal the values of the state.
        for action in actions.iter() {
            if let Action::Record(role) | Action::PutAway(role) = action {
                // A source that moves to another mirror of its node stays one.
                let stored = match event {
                    Event::Transferred => ReplicaRole::Source,
                    _ => after.role.stored(),
                };
                assert_eq!(role, stored, "{}", context());
            }
        }
        let closed = after.role == NodeRole::Closed;
        assert!(closed || after.role.epoch() >= state.role.epoch(), "{}", context());
    });
}

/// From the announcement of a peer until this node has acted on it, no event makes this node serve.
/// The promise ends with the event that acts on it.
#[test]
fn promised_role_is_not_taken() {
    all(|state, event| {
        let Ok((after, _)) = next(state, event) else { return };
        let serves = |role: NodeRole| matches!(role, NodeRole::Serving { .. });
        if state.promised > 0 {
            assert!(!serves(after.role) || serves(state.role), "{state:?} {event:?}");
        }
        let ends = matches!(event, Event::Deposed { .. } | Event::Claimed { .. });
        let began = matches!(event, Event::Announced { .. });
        assert!(ends || began || after.promised == state.promised, "{state:?} {event:?}");
        assert!(!ends || after.promised == 0 && !serves(after.role));
    });
}

/// If two nodes announce that they take the role, and hear of each other, the node with the later
/// epoch serves, whatever the order of the announcements.
#[test]
fn later_announcement_prevails() {
    for role in
        [NodeRole::Target { epoch: EPOCH, attached: false }, NodeRole::Deposed { by: EPOCH }]
    {
        let announcing = MachineState { announced: 8, ..state(role) };
        for forced in [false, true] {
            let lower = next(&announcing, Event::Announced { epoch: 7, forced });
            assert_eq!(lower.expect_err("its own is later"), OrderRefusal::Fenced);
            let (after, _) =
                next(&announcing, Event::Announced { epoch: 9, forced }).expect("later");
            assert_eq!(after.promised, 9);
            // Announcements with an earlier and with a later epoch.
            assert!(next(&after, Event::Announced { epoch: 8, forced }).is_err());
            assert!(next(&after, Event::Announced { epoch: 10, forced }).is_ok());
            assert!(next(&after, Event::Promoted).is_err());
        }
    }
}

#[test]
fn only_unreachable_peers_are_overridden() {
    use PeerConsent::*;
    let rule = |consents: &[PeerConsent]| [false, true].map(|forced| consented(consents, forced));
    let refused = |refusal| [Err(refusal); 2];
    assert_eq!(rule(&[]), [Ok(()); 2]);
    assert_eq!(rule(&[Yields, Yields]), [Ok(()); 2]);
    assert_eq!(rule(&[Yields, Unreachable]), [Err(OrderRefusal::PeerSilent), Ok(())]);
    assert_eq!(rule(&[RefusesHosts]), [Err(OrderRefusal::Unconfirmed), Ok(())]);
    assert_eq!(rule(&[Unreachable, Unknown]), refused(OrderRefusal::Unconfirmed));
    assert_eq!(rule(&[Unknown, Serves]), refused(OrderRefusal::PeerServes));
    assert_eq!(rule(&[Serves, Later]), refused(OrderRefusal::Overtaken));
    assert_eq!(rule(&[TooOld { serving: true }]), refused(OrderRefusal::PeerTooOld));
}

#[test]
fn deposed_source_refuses_before_it_waits() {
    all(|state, event| {
        let Ok((after, actions)) = next(state, event) else { return };
        let refuses = position(actions, |action| action == Action::RefuseHosts);
        let waits =
            position(actions, |action| matches!(action, Action::Drain | Action::AwaitCalls));
        let by_consent = matches!(event, Event::Order(_) | Event::Transferred);
        if let (Some(refuses), Some(waits)) = (refuses, waits) {
            assert_eq!(refuses < waits, !by_consent, "{state:?} {event:?}");
        }
        let durable = position(actions, |action| matches!(action, Action::Record(_)));
        if matches!((state.role, after.role), (NodeRole::Serving { .. }, NodeRole::Deposed { .. }))
        {
            assert!(durable < waits, "a disk that hangs must not delay the record");
        }
    });
}

#[test]
fn only_force_serves_beside_a_serving_peer() {
    all(|state, event| {
        let Ok((_, actions)) = next(state, event) else { return };
        let Some(Action::Serve(claim)) =
            actions.iter().find(|action| matches!(action, Action::Serve(_)))
        else {
            return;
        };
        let answers = match event {
            Event::Asked(answers) | Event::Order(OperatorOrder::Failover { answers }) => answers,
            _ => return,
        };
        let serves =
            |answer: &RoleAnswer| matches!(answer, RoleAnswer::Known { serving: true, .. });
        assert_ne!(claim, ServeClaim::Forced);
        // At a start without a record of a peer, there is no peer to ask.
        let knows_peer = state.records.iter().any(|record| *record != PeerDataState::Unknown);
        assert!(!knows_peer || !answers.iter().flatten().any(serves), "{state:?} {event:?}");
        assert!(!matches!(state.role, NodeRole::Deposed { .. }) || event != Event::Asked(answers));
    });
}

#[test]
fn only_consistent_or_accepted_data_is_served() {
    all(|state, event| {
        let Ok((_, actions)) = next(state, event) else { return };
        if position(actions, |action| matches!(action, Action::Serve(_))).is_none() {
            return;
        }
        let trusted = actions.iter().any(|action| action == Action::TrustData(state.disk));
        let is_forced = matches!(
            state.disk,
            DiskState::Unverified | DiskState::Incomplete | DiskState::Removed
        );
        let sound = state.disk == DiskState::Consistent || is_forced && trusted;
        assert!(sound, "{state:?} {event:?}");
    });
}

#[test]
fn repeated_order_changes_nothing() {
    all(|state, event| {
        let Event::Order(order) = event else { return };
        let Ok((after, actions)) = next(state, event) else { return };
        if matches!(order, OperatorOrder::HandOver(_) | OperatorOrder::TakeOver(_))
            || actions.is_empty()
        {
            return;
        }
        let again = next(&after, event);
        let split = again == Err(OrderRefusal::SplitBrain);
        assert!(split || again.is_ok_and(|(_, again)| again.is_empty()), "{state:?} {event:?}");
    });
}

/// A source that was restored from an older copy has an outdated record, which says that its peer
/// is out of date. The peer leads with newer data, under the same epoch.
#[test]
fn restarted_source_stays_if_peer_has_newer_data() {
    let waiting = state(NodeRole::Waiting { epoch: EPOCH, handed_over: false });
    for (differs, serves) in [(true, false), (false, true)] {
        let (after, _) = next(&waiting, Event::Asked(leads(differs))).expect("it is not refused");
        assert_eq!(matches!(after.role, NodeRole::Serving { .. }), serves, "differs: {differs}");
    }
}

/// The record of a replaced peer stays beside that of its replacement, and may be current.
#[test]
fn record_without_leg_counts_at_start() {
    let waiting = state(NodeRole::Waiting { epoch: EPOCH, handed_over: false });
    for records in [
        [PeerDataState::Outdated, PeerDataState::Current],
        [PeerDataState::Current, PeerDataState::Outdated],
    ] {
        let before = MachineState { records, ..waiting };
        for event in [Event::Opened, Event::Asked(SILENT)] {
            let (after, actions) = next(&before, event).expect("it is not refused");
            assert_eq!((after, actions.is_empty()), (before, true), "{event:?}");
        }
    }
}

/// A member of a group follows its leader in two cases, and never takes the role before the leader.
#[test]
fn group_member_follows_its_leader() {
    let leaders = [Leader::Serves, Leader::Waits, Leader::Elsewhere, Leader::Absent];
    for (name, role) in roles() {
        for leader in leaders {
            let member = MachineState { leader: Some(leader), ..state(role) };
            let expected = match (leader, role) {
                (Leader::Serves, NodeRole::Target { attached: false, .. }) => {
                    Some(Following::TakeRole)
                }
                (Leader::Follows, NodeRole::Waiting { .. })
                | (Leader::Elsewhere, NodeRole::Waiting { handed_over: true, .. }) => {
                    Some(Following::StepBack)
                }
                _ => None,
            };
            assert_eq!(following(&member), expected, "{name}, {leader:?}");
            let by =
                AdmittedBy { successor: true, epoch: EPOCH, overtaken: false, unusable: false };
            let takes = next(&member, Event::Admitted(by)).is_ok();
            let serves = matches!(role, NodeRole::Serving { .. });
            assert!(!takes || serves || leader == Leader::Serves, "{name}, {leader:?}");
        }
        let unsound = MachineState {
            leader: Some(Leader::Serves),
            disk: DiskState::Inconsistent,
            ..state(role)
        };
        assert_eq!(following(&unsound), None, "{name}");
        assert_eq!(following(&state(role)), None, "{name}: no group, or its leader");
    }
}
