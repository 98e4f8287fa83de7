//! Previews of all actions in all states that they depend on.

use super::super::mirror_document::{HandshakeDocument, VerifyDocument};
use super::*;

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

fn request(action: Action) -> ActionRequest {
    ActionRequest { action, peer: None, dry_run: false }
}

fn applied(now: &MirrorDocument, action: Action) -> ActionPreview {
    let found = preview(now, &request(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(found.changed, found.effect.is_some(), "{found:?}");
    found
}

fn unchanged(now: &MirrorDocument, action: Action) -> String {
    let found = preview(now, &request(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert!(!found.changed && found.data_loss.is_none(), "{found:?}");
    found.outcome
}

fn refused(now: &MirrorDocument, action: Action) -> String {
    let problem = preview(now, &request(action)).expect_err("refused");
    assert_eq!(problem.status, 409);
    problem.detail
}

const RESYNC: Action = Action::Resync { full: false, compare: None };
const FULL: Action = Action::Resync { full: true, compare: None };
const FAILOVER: Action = Action::Failover { force: false };
const VERIFY: Action = Action::Verify { repair: false, bytes_per_second: None, stop: false };
const SWITCH: Action = Action::Switchover { to: None };
const DELETE: Action = Action::Delete { force: false };

fn to(node: &str) -> Action {
    Action::Switchover { to: Some(node.into()) }
}

#[test]
fn actions_without_replica_advise_create() {
    let now = MirrorDocument {
        replica: None,
        state: ReportedState::NotCreated,
        ..source(ReportedState::Mirroring)
    };
    for action in [Action::Pause, RESYNC, FAILOVER, VERIFY, SWITCH, Action::Demote] {
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
    let problem = preview(&now, &request(Action::Pause)).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (422, vec!["b".into(), "c".into()]));
    let named = |name: &str| ActionRequest { peer: Some(name.into()), ..request(Action::Pause) };
    let found = preview(&now, &named("c")).unwrap();
    assert_eq!(found.effect, Some(Effect::SetDesiredState { leg: 1, state: DesiredState::Paused }));
    assert_eq!(preview(&now, &named("d")).unwrap_err().status, 404);
}

#[test]
fn pause_break_and_continue_are_idempotent() {
    for (action, state, desired) in [
        (Action::Pause, ReportedState::Paused, DesiredState::Paused),
        (Action::Break, ReportedState::Broken, DesiredState::Detached),
        (Action::Continue, ReportedState::Mirroring, DesiredState::Connected),
    ] {
        unchanged(&source(state), action.clone());
        let other = if desired == DesiredState::Connected {
            ReportedState::Paused
        } else {
            ReportedState::Mirroring
        };
        let found = applied(&source(other), action);
        assert_eq!(found.effect, Some(Effect::SetDesiredState { leg: 0, state: desired }));
    }
    assert!(
        applied(&source(ReportedState::Broken), Action::Continue).outcome.contains("everything")
    );
    assert!(
        refused(&target(|_| {}), Action::Pause).contains("on the source, the node that serves it")
    );
    let mut handshaken = target(|_| {});
    handshaken.peers[0].last_handshake =
        Some(HandshakeDocument { serving: true, ..HandshakeDocument::default() });
    assert!(refused(&handshaken, Action::Break).contains("on the source, b"));
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
    let compare = Action::Resync { full: true, compare: Some(true) };
    assert!(applied(&runs, compare).outcome.contains("checksums"));
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
        Some(Effect::Switchover { leg: 0 })
    );
    assert!(refused(&source(ReportedState::Resynchronizing), to("b")).contains("--watch"));
    assert!(refused(&source(ReportedState::SplitBrain), to("b")).contains("resolve db"));
    refused(&source(ReportedState::Paused), to("b"));
    let problem = preview(&source(ReportedState::Mirroring), &request(to("x"))).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (404, vec!["b".into(), "a".into()]));
    // From the other side.
    let attached = target(|replica| replica.has_source = true);
    assert_eq!(applied(&attached, SWITCH).effect, Some(Effect::Switchover { leg: 0 }));
    assert_eq!(applied(&attached, to("a")).effect, Some(Effect::Switchover { leg: 0 }));
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
    assert_eq!(applied(&now, SWITCH).effect, Some(Effect::Switchover { leg: 1 }));
    unchanged(&now, to("c"));
    assert!(refused(&now, to("b")).contains("command on b"));
    let pause = ActionRequest { peer: Some("b".into()), ..request(Action::Pause) };
    assert!(preview(&now, &pause).unwrap_err().detail.contains("on the source, c"));
    // Without a handshake of its own link, the last one decides.
    now.replica.as_mut().unwrap().source = None;
    assert_eq!(applied(&now, SWITCH).effect, Some(Effect::Switchover { leg: 0 }));
    assert!(refused(&target_of(None), SWITCH).contains("a peer is not attached"));
}

#[test]
fn named_peer_is_respected() {
    let with =
        |peer: &str, action: Action| ActionRequest { peer: Some(peer.into()), ..request(action) };
    let now = target_of(Some("c"));
    assert_eq!(
        preview(&now, &with("c", SWITCH)).unwrap().effect,
        Some(Effect::Switchover { leg: 1 })
    );
    let other = preview(&now, &with("b", SWITCH)).unwrap_err();
    assert!(other.detail.contains("c serves db, not b"), "{}", other.detail);
    let two = preview(&source(ReportedState::Mirroring), &with("x", SWITCH)).unwrap_err();
    assert_eq!(two.status, 404, "even while serving");
    let mut serves = source(ReportedState::Mirroring);
    serves.peers.push(PeerDocument { name: "c".into(), ..serves.peers[0].clone() });
    assert_eq!(preview(&serves, &with("c", to("b"))).unwrap_err().status, 422);
    let found = preview(&serves, &with("b", to("b"))).unwrap();
    assert_eq!(found.effect, Some(Effect::Switchover { leg: 0 }));
    // Only a verify with the named peer is stopped.
    let verify = VerifyDocument { peer: "b".into(), running: true, ..VerifyDocument::default() };
    serves.verify = Some(verify);
    let stop = Action::Verify { repair: false, bytes_per_second: None, stop: true };
    let kept = preview(&serves, &with("c", stop.clone())).unwrap();
    assert_eq!((kept.changed, kept.effect), (false, None), "{}", kept.outcome);
    assert_eq!(preview(&serves, &with("x", stop.clone())).unwrap_err().status, 404);
    assert_eq!(preview(&serves, &with("b", stop)).unwrap().effect, Some(Effect::StopVerify));
    // Another rate than that of the running verify.
    let slow = Action::Verify { repair: false, bytes_per_second: Some(9), stop: false };
    assert!(preview(&serves, &with("b", slow)).unwrap_err().detail.contains("another verify"));
    // The advice can be typed as it is.
    serves.peers[0].state = ReportedState::SplitBrain;
    let both = preview(&serves, &with("b", to("b"))).unwrap_err().detail;
    assert!(both.contains("mirror resolve db --peer b --keep mine"), "{both}");
}

#[test]
fn failover_reports_possible_data_loss() {
    unchanged(&source(ReportedState::Mirroring), FAILOVER);
    let lost = applied(&target(|_| {}), FAILOVER).data_loss.unwrap();
    assert!(lost.contains("split brain") && lost.contains("writes that b completed"), "{lost}");
    let mut behind = target(|_| {});
    behind.peers[0].mode = Some(Mode::Async);
    assert!(applied(&behind, FAILOVER).data_loss.unwrap().contains("asynchronous"));
    let attached = target(|replica| replica.has_source = true);
    assert!(refused(&attached, FAILOVER).contains("switchover db"));
    let order = ActionRequest { action: FAILOVER, peer: None, dry_run: false };
    let accepted = preview(&attached, &order).unwrap_err().accepted;
    let commands = ["flagstone mirror switchover db", "flagstone mirror failover db --force"];
    assert_eq!(accepted, commands, "commands to type");
    assert_eq!(
        applied(&attached, Action::Failover { force: true }).effect,
        Some(Effect::Failover { force: true })
    );
    refused(&target(|replica| replica.inconsistent = true), FAILOVER);
    refused(&target(|replica| replica.generation = "0000000000000000".into()), FAILOVER);
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
    let repair = Action::Verify { repair: true, bytes_per_second: None, stop: false };
    assert!(refused(&runs, repair).contains("--stop"));
    let stop = Action::Verify { repair: false, bytes_per_second: None, stop: true };
    assert_eq!(applied(&runs, stop.clone()).effect, Some(Effect::StopVerify));
    unchanged(&source(ReportedState::Mirroring), stop);
}

#[test]
fn resolve_reports_discarded_side() {
    for keep in [ResolveKeep::Mine, ResolveKeep::Peer] {
        unchanged(&source(ReportedState::Mirroring), Action::Resolve { keep });
        let found = applied(&source(ReportedState::SplitBrain), Action::Resolve { keep });
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
        applied(&source(ReportedState::SplitBrain), Action::Demote)
            .outcome
            .contains("stops serving")
    );
    unchanged(&target(|_| {}), Action::Demote);
    assert!(refused(&source(ReportedState::Mirroring), DELETE).contains("--to PEER"));
    let forced =
        applied(&source(ReportedState::Paused), Action::Delete { force: true }).data_loss.unwrap();
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
