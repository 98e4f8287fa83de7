//! Previews of all actions in all states that they depend on.

use super::super::mirror_document::{HandshakeDocument, VerifyDocument};
use super::*;
use flagstone_mirror::agree::plan::HandshakePlan;
use flagstone_mirror::state::machine::{
    DiskState, Event, Leg, MachineState, NodeRole, PeerDataState, RoleAnswer, next,
};
use flagstone_mirror::state::status::{HandshakeOutcome, LegPhase};

fn source(state: ReportedState) -> MirrorDocument {
    let peer = PeerDocument {
        name: "b".into(),
        state,
        desired_state: Some(match state {
            ReportedState::Paused => DesiredState::Paused,
            ReportedState::Broken => DesiredState::Detached,
            _ => DesiredState::Connected,
        }),
        mode: Some(Mode::Sync),
        ..PeerDocument::default()
    };
    let replica = ReplicaDocument {
        role: ReplicaRole::Source,
        serving: true,
        generation: "0000000000000001".into(),
        ..ReplicaDocument::default()
    };
    MirrorDocument {
        volume: "db".into(),
        node: "a".into(),
        state,
        peers: vec![peer],
        replica: Some(replica),
        ..MirrorDocument::default()
    }
}

fn target(change: impl FnOnce(&mut ReplicaDocument)) -> MirrorDocument {
    let mut now = source(ReportedState::Target);
    let replica = now.replica.as_mut().unwrap();
    (replica.role, replica.serving) = (ReplicaRole::Target, false);
    change(replica);
    now
}

/// The state of a mirror that has this document.
fn machine(now: &MirrorDocument) -> MachineState {
    let Some(replica) = &now.replica else { panic!("a replica") };
    let role = match (replica.serving, replica.role) {
        (true, _) => NodeRole::Serving { epoch: 1 },
        (false, ReplicaRole::Source) => NodeRole::Waiting { epoch: 1, handed_over: false },
        (false, ReplicaRole::Target) => NodeRole::Target { epoch: 1, attached: replica.has_source },
        (false, ReplicaRole::Deposed) => NodeRole::Deposed { by: 1 },
    };
    let disk = match (replica.inconsistent, replica.holds_nothing()) {
        (true, _) => DiskState::Inconsistent,
        (false, true) => DiskState::Blank,
        (false, false) => DiskState::Consistent,
    };
    let mut legs = [None; 2];
    for (place, peer) in legs.iter_mut().zip(&now.peers) {
        let phase = match peer.state {
            ReportedState::Mirroring => LegPhase::InSync,
            ReportedState::SplitBrain => LegPhase::Handshake(HandshakeOutcome::SplitBrain),
            _ => LegPhase::Disconnected,
        };
        let desired = peer.desired_state.unwrap_or_default();
        *place = Some(Leg { desired, phase });
    }
    let records = [PeerDataState::Current, PeerDataState::Unknown];
    MachineState { role, disk, legs, records, promised: 0, announced: 0, leader: None }
}

fn preview(now: &MirrorDocument, request: &ActionRequest) -> Previewed {
    preview_with(now, [Some(RoleAnswer::Silent); 2], request)
}

fn preview_with(now: &MirrorDocument, answers: Answers, request: &ActionRequest) -> Previewed {
    let decide = |order| next(&machine(now), Event::Order(order));
    super::preview(now, &Facts { decide: &decide, answers, wall_seconds: 1000 }, request)
}

fn request(action: ParsedAction) -> ActionRequest {
    ActionRequest { action, peer: None, dry_run: false }
}

fn applied(now: &MirrorDocument, action: ParsedAction) -> ActionPreview {
    let found = preview(now, &request(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(found.changed, found.effect.is_some(), "{found:?}");
    found
}

fn unchanged(now: &MirrorDocument, action: ParsedAction) -> String {
    let found = preview(now, &request(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert!(!found.changed && found.data_loss.is_none(), "{found:?}");
    found.outcome
}

fn refused(now: &MirrorDocument, action: ParsedAction) -> String {
    let problem = preview(now, &request(action)).expect_err("refused");
    assert_eq!(problem.status, 409);
    problem.detail
}

const RESYNC: ParsedAction = ParsedAction::Resync { full: false, compare: None };
const FULL: ParsedAction = ParsedAction::Resync { full: true, compare: None };
const FAILOVER: ParsedAction = ParsedAction::Failover { force: false };
const VERIFY: ParsedAction =
    ParsedAction::Verify { repair: false, bytes_per_second: None, stop: false };
const SWITCH: ParsedAction = ParsedAction::Switchover { to: None };
const DELETE: ParsedAction = ParsedAction::Delete { force: false };

fn to(node: &str) -> ParsedAction {
    ParsedAction::Switchover { to: Some(node.into()) }
}

#[test]
fn actions_without_replica_advise_create() {
    let now = MirrorDocument {
        replica: None,
        state: ReportedState::NotCreated,
        ..source(ReportedState::Mirroring)
    };
    for action in [ParsedAction::Pause, RESYNC, FAILOVER, VERIFY, SWITCH, ParsedAction::Demote] {
        assert!(refused(&now, action).contains("flagstone mirror create db --source"));
    }
    assert!(unchanged(&now, DELETE).contains("no replica"));
}

#[test]
fn peer_name_is_optional_with_one_peer() {
    let mut now = source(ReportedState::Mirroring);
    now.peers.push(PeerDocument {
        name: "c".into(),
        desired_state: Some(DesiredState::Connected),
        ..now.peers[0].clone()
    });
    let problem = preview(&now, &request(ParsedAction::Pause)).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (422, vec!["b".into(), "c".into()]));
    let named =
        |name: &str| ActionRequest { peer: Some(name.into()), ..request(ParsedAction::Pause) };
    let found = preview(&now, &named("c")).unwrap();
    assert_eq!(
        found.effect,
        Some(Effect::Order(OperatorOrder::SetDesired(1, DesiredState::Paused)))
    );
    assert_eq!(preview(&now, &named("d")).unwrap_err().status, 404);
}

#[test]
fn pause_break_and_continue_are_idempotent() {
    for (action, state, desired) in [
        (ParsedAction::Pause, ReportedState::Paused, DesiredState::Paused),
        (ParsedAction::Break, ReportedState::Broken, DesiredState::Detached),
        (ParsedAction::Continue, ReportedState::Mirroring, DesiredState::Connected),
    ] {
        unchanged(&source(state), action.clone());
        let other = if desired == DesiredState::Connected {
            ReportedState::Paused
        } else {
            ReportedState::Mirroring
        };
        let found = applied(&source(other), action);
        assert_eq!(found.effect, Some(Effect::Order(OperatorOrder::SetDesired(0, desired))));
    }
    assert!(
        applied(&source(ReportedState::Broken), ParsedAction::Continue)
            .outcome
            .contains("everything")
    );
    assert!(
        refused(&target(|_| {}), ParsedAction::Pause)
            .contains("on the source, the node that serves it")
    );
    let mut handshaken = target(|_| {});
    handshaken.peers[0].last_handshake =
        Some(HandshakeDocument { serving: true, ..HandshakeDocument::default() });
    assert!(refused(&handshaken, ParsedAction::Break).contains("on the source, b"));
}

#[test]
fn resync_previews_by_state() {
    unchanged(&source(ReportedState::Mirroring), RESYNC);
    unchanged(&source(ReportedState::Resynchronizing), RESYNC);
    // Reconnecting at once is no change.
    let again = preview(&source(ReportedState::ResyncPending), &request(RESYNC)).unwrap();
    let effect = Effect::Resync { leg: 0, full: false, compare: None };
    assert_eq!((again.changed, again.effect), (false, Some(effect)));
    assert!(applied(&source(ReportedState::Paused), RESYNC).changed);
    let full = applied(&source(ReportedState::Mirroring), FULL);
    assert!(full.outcome.contains("only consistent copy"), "{}", full.outcome);
    let mut runs = source(ReportedState::Resynchronizing);
    applied(&runs, FULL);
    runs.peers[0].full_resync = true;
    unchanged(&runs, FULL);
    let compare = ParsedAction::Resync { full: true, compare: Some(true) };
    let compared = applied(&runs, compare).outcome;
    assert!(!compared.contains("everything"), "{compared}");
    assert!(compared.starts_with("all blocks are compared by checksum, and those that differ"));
    assert!(refused(&source(ReportedState::SplitBrain), FULL).contains("--keep mine"));
    refused(&source(ReportedState::Mismatch), RESYNC);
    refused(&target(|_| {}), RESYNC);
}

#[test]
fn switchover_needs_peer_in_sync() {
    assert!(unchanged(&source(ReportedState::Mirroring), SWITCH).contains("--to b"));
    unchanged(&source(ReportedState::Mirroring), to("a"));
    assert_eq!(
        applied(&source(ReportedState::Mirroring), to("b")).effect,
        Some(Effect::Order(OperatorOrder::HandOver(0)))
    );
    assert!(refused(&source(ReportedState::Resynchronizing), to("b")).contains("--watch"));
    assert!(refused(&source(ReportedState::SplitBrain), to("b")).contains("resolve db"));
    refused(&source(ReportedState::Paused), to("b"));
    let problem = preview(&source(ReportedState::Mirroring), &request(to("x"))).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (404, vec!["b".into(), "a".into()]));
    // From the other side.
    let attached = target(|replica| replica.has_source = true);
    assert_eq!(applied(&attached, SWITCH).effect, Some(Effect::Order(OperatorOrder::TakeOver(0))));
    assert_eq!(applied(&attached, to("a")).effect, Some(Effect::Order(OperatorOrder::TakeOver(0))));
    unchanged(&attached, to("b"));
    refused(&target(|replica| replica.inconsistent = true), SWITCH);
    let alone = refused(&target(|_| {}), SWITCH);
    assert!(alone.contains("b is not attached") && alone.contains("failover db"), "{alone}");
    // A source that does not serve yet.
    let mut waits = source(ReportedState::Disconnected);
    waits.replica.as_mut().unwrap().serving = false;
    refused(&waits, to("b"));
}

/// A target with the peers `b` and `c`.
fn target_of(source: Option<&str>) -> MirrorDocument {
    let mut now = target(|replica| {
        (replica.has_source, replica.source) = (true, source.map(str::to_owned));
    });
    now.peers.push(PeerDocument { name: "c".into(), ..now.peers[0].clone() });
    now
}

#[test]
fn attached_peer_is_the_source() {
    let mut now = target_of(Some("c"));
    // A handshake from before the switchover.
    now.peers[0].last_handshake =
        Some(HandshakeDocument { serving: true, ..HandshakeDocument::default() });
    assert_eq!(applied(&now, SWITCH).effect, Some(Effect::Order(OperatorOrder::TakeOver(1))));
    unchanged(&now, to("c"));
    assert!(refused(&now, to("b")).contains("command on b"));
    let pause = ActionRequest { peer: Some("b".into()), ..request(ParsedAction::Pause) };
    assert!(preview(&now, &pause).unwrap_err().detail.contains("on the source, c"));
    // Without a handshake of its own link, the last one decides.
    now.replica.as_mut().unwrap().source = None;
    assert_eq!(applied(&now, SWITCH).effect, Some(Effect::Order(OperatorOrder::TakeOver(0))));
    assert!(refused(&target_of(None), SWITCH).contains("a peer is not attached"));
}

#[test]
fn named_peer_is_respected() {
    let with = |peer: &str, action: ParsedAction| ActionRequest {
        peer: Some(peer.into()),
        ..request(action)
    };
    let now = target_of(Some("c"));
    assert_eq!(
        preview(&now, &with("c", SWITCH)).unwrap().effect,
        Some(Effect::Order(OperatorOrder::TakeOver(1)))
    );
    let other = preview(&now, &with("b", SWITCH)).unwrap_err();
    assert!(other.detail.contains("c serves db, not b"), "{}", other.detail);
    let two = preview(&source(ReportedState::Mirroring), &with("x", SWITCH)).unwrap_err();
    assert_eq!(two.status, 404, "even while serving");
    let mut serves = source(ReportedState::Mirroring);
    serves.peers.push(PeerDocument { name: "c".into(), ..serves.peers[0].clone() });
    assert_eq!(preview(&serves, &with("c", to("b"))).unwrap_err().status, 422);
    let found = preview(&serves, &with("b", to("b"))).unwrap();
    assert_eq!(found.effect, Some(Effect::Order(OperatorOrder::HandOver(0))));
    // Only a verify with the named peer is stopped.
    let verify = VerifyDocument { peer: "b".into(), running: true, ..VerifyDocument::default() };
    serves.verify = Some(verify);
    let stop = ParsedAction::Verify { repair: false, bytes_per_second: None, stop: true };
    let kept = preview(&serves, &with("c", stop.clone())).unwrap();
    assert_eq!((kept.changed, kept.effect), (false, None), "{}", kept.outcome);
    assert_eq!(preview(&serves, &with("x", stop.clone())).unwrap_err().status, 404);
    assert_eq!(preview(&serves, &with("b", stop)).unwrap().effect, Some(Effect::StopVerify));
    // Another rate than that of the running verify.
    let slow = ParsedAction::Verify { repair: false, bytes_per_second: Some(9), stop: false };
    assert!(preview(&serves, &with("b", slow)).unwrap_err().detail.contains("another verify"));
    // The advice can be typed as it is.
    serves.peers[0].state = ReportedState::SplitBrain;
    let both = preview(&serves, &with("b", to("b"))).unwrap_err().detail;
    assert!(both.contains("mirror resolve db --peer b --keep mine"), "{both}");
}

const FORCE: ParsedAction = ParsedAction::Failover { force: true };

fn answered(serving: bool, plan: HandshakePlan) -> Answers {
    [Some(RoleAnswer::Known { serving, epoch: 1, plan, differs: false }), None]
}

#[test]
fn failover_without_force_needs_answers() {
    let order = request(FAILOVER);
    let idle = answered(false, HandshakePlan::Idle);
    let found = preview_with(&target(|_| {}), idle, &order).unwrap();
    assert_eq!(found.effect, Some(Effect::Order(OperatorOrder::Failover { answers: idle })));
    assert!(found.outcome.contains("b answered, and serves no hosts"), "{}", found.outcome);
    let silent = refused(&target(|_| {}), FAILOVER);
    assert!(
        silent.contains("does not answer") && silent.contains("failover db --force"),
        "{silent}"
    );
    let attached = target(|replica| replica.has_source = true);
    let serves = answered(true, HandshakePlan::Follow { step_down: false });
    let problem = preview_with(&attached, serves, &order).unwrap_err();
    assert!(problem.detail.contains("switchover db"), "{}", problem.detail);
    let commands = ["flagstone mirror switchover db", "flagstone mirror failover db --force"];
    assert_eq!(problem.accepted, commands, "commands to type");
    let newer = answered(false, HandshakePlan::Follow { step_down: false });
    let problem = preview_with(&target(|_| {}), newer, &order).unwrap_err();
    assert!(problem.detail.contains("newer data"), "{}", problem.detail);
}

/// The preview's conditions are decided when it is done.
#[test]
fn completed_forced_failover_is_not_told_as_a_preview() {
    let now = source(ReportedState::Disconnected);
    let text = failed_over(&now);
    assert!(text.starts_with(&format!("{} now serves {}; ", now.node, now.volume)), "{text}");
    assert!(!text.contains("has to stop") && text.contains(" is "), "{text}");
}

#[test]
fn failover_reports_possible_data_loss() {
    unchanged(&source(ReportedState::Mirroring), FAILOVER);
    let loss = |now: &MirrorDocument| applied(now, FORCE).data_loss.unwrap();
    let lost = loss(&target(|_| {}));
    assert!(lost.contains("split brain") && lost.contains("writes that b completed"), "{lost}");
    assert!(lost.contains("not in sync since"), "{lost}");
    let mut known = target(|_| {});
    known.peers[0].last_in_sync_seconds = Some(940);
    assert!(loss(&known).contains("since a was last in sync, 1m 0s ago"), "{}", loss(&known));
    known.peers[0].mode = Some(Mode::Async);
    assert!(loss(&known).contains("asynchronous"));
    let attached = target(|replica| replica.has_source = true);
    let order = OperatorOrder::ForceFailover { unverified: true };
    assert_eq!(applied(&attached, FORCE).effect, Some(Effect::Order(order)));
    assert!(loss(&target(|replica| replica.unverified = true)).contains("power loss"));
    for force in [FAILOVER, FORCE] {
        refused(&target(|replica| replica.inconsistent = true), force.clone());
        refused(&target(|replica| replica.generation = "0000000000000000".into()), force);
    }
}

#[test]
fn continue_in_split_brain_is_refused() {
    assert!(
        refused(&source(ReportedState::SplitBrain), ParsedAction::Continue).contains("--keep mine")
    );
}

#[test]
fn deposed_node_refuses_orders_of_a_source() {
    let deposed = target(|replica| replica.role = ReplicaRole::Deposed);
    for action in [ParsedAction::Pause, ParsedAction::Break, RESYNC] {
        assert!(refused(&deposed, action).contains("a is not the source"));
    }
    assert!(applied(&deposed, ParsedAction::Demote).outcome.contains("a is a target of db"));
}

#[test]
fn verify_needs_peer_in_sync() {
    let effect = Effect::Verify { leg: 0, repair: false, bytes_per_second: None };
    assert_eq!(applied(&source(ReportedState::Mirroring), VERIFY).effect, Some(effect));
    refused(&source(ReportedState::Resynchronizing), VERIFY);
    refused(&target(|_| {}), VERIFY);
    let mut runs = source(ReportedState::Mirroring);
    let verify = VerifyDocument { peer: "b".into(), running: true, ..VerifyDocument::default() };
    runs.verify = Some(verify);
    unchanged(&runs, VERIFY);
    let repair = ParsedAction::Verify { repair: true, bytes_per_second: None, stop: false };
    assert!(refused(&runs, repair).contains("--stop"));
    let stop = ParsedAction::Verify { repair: false, bytes_per_second: None, stop: true };
    assert_eq!(applied(&runs, stop.clone()).effect, Some(Effect::StopVerify));
    unchanged(&source(ReportedState::Mirroring), stop);
}

#[test]
fn resolve_reports_discarded_side() {
    for keep in [ResolveKeep::Mine, ResolveKeep::Peer] {
        unchanged(&source(ReportedState::Mirroring), ParsedAction::Resolve { keep });
        let found = applied(&source(ReportedState::SplitBrain), ParsedAction::Resolve { keep });
        assert_eq!(found.effect, Some(Effect::Resolve { leg: 0, keep }));
        let discarded = match keep {
            ResolveKeep::Mine => "writes on b",
            ResolveKeep::Peer => "writes on a",
        };
        assert!(found.data_loss.unwrap().contains(discarded));
    }
}

#[test]
fn demote_and_delete_previews() {
    assert!(
        applied(&source(ReportedState::SplitBrain), ParsedAction::Demote)
            .outcome
            .contains("stops serving")
    );
    unchanged(&target(|_| {}), ParsedAction::Demote);
    assert!(refused(&source(ReportedState::Mirroring), DELETE).contains("--to PEER"));
    let forced = applied(&source(ReportedState::Paused), ParsedAction::Delete { force: true })
        .data_loss
        .unwrap();
    assert!(
        forced.contains("only current copy") && forced.contains("hosts are disconnected"),
        "{forced}"
    );
    let target_only = applied(&target(|_| {}), DELETE).data_loss.unwrap();
    assert!(
        target_only.contains("Its data stays") && !target_only.contains("only"),
        "{target_only}"
    );
}
