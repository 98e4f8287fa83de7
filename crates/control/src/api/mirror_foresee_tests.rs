//! Every action in every state that matters to it.

use super::super::mirror_document::{MetDocument, NOT_CREATED, VerifyDocument};
use super::*;

fn source(state: &str) -> MirrorDocument {
    let peer = PeerDocument {
        name: "b".into(),
        state: state.into(),
        wish: match state {
            "paused" => "pause",
            "broken" => "break",
            _ => "mirror",
        }
        .into(),
        mode: "sync".into(),
        ..PeerDocument::default()
    };
    let replica = ReplicaDocument {
        role: "source".into(),
        active: true,
        generation: "0000000000000001".into(),
        ..ReplicaDocument::default()
    };
    MirrorDocument {
        volume: "db".into(),
        node: "a".into(),
        state: state.into(),
        peers: vec![peer],
        replica: Some(replica),
        ..MirrorDocument::default()
    }
}

fn target(change: impl FnOnce(&mut ReplicaDocument)) -> MirrorDocument {
    let mut now = source("target");
    let replica = now.replica.as_mut().unwrap();
    (replica.role, replica.active) = ("target".into(), false);
    change(replica);
    now
}

fn order(action: Action) -> Order {
    Order { action, peer: None, dry_run: false }
}

fn does(now: &MirrorDocument, action: Action) -> Foreseen {
    let found = foresee(now, &order(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(found.changed, found.deed.is_some(), "{found:?}");
    found
}

fn is_there(now: &MirrorDocument, action: Action) -> String {
    let found = foresee(now, &order(action)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert!(!found.changed && found.loses.is_none(), "{found:?}");
    found.said
}

fn refused(now: &MirrorDocument, action: Action) -> String {
    let problem = foresee(now, &order(action)).expect_err("it cannot be done");
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
fn without_a_replica_it_is_made_first() {
    let now = MirrorDocument { replica: None, state: NOT_CREATED.into(), ..source("mirroring") };
    for action in [Action::Pause, RESYNC, FAILOVER, VERIFY, SWITCH, Action::Demote] {
        assert!(refused(&now, action).contains("flagstone mirror create db --source"));
    }
    assert!(is_there(&now, DELETE).contains("no replica"));
}

#[test]
fn a_peer_is_found_by_its_name_or_as_the_only_one() {
    let mut now = source("mirroring");
    now.peers.push(PeerDocument {
        name: "c".into(),
        wish: "mirror".into(),
        ..now.peers[0].clone()
    });
    let problem = foresee(&now, &order(Action::Pause)).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (422, vec!["b".into(), "c".into()]));
    let named = |name: &str| Order { peer: Some(name.into()), ..order(Action::Pause) };
    let found = foresee(&now, &named("c")).unwrap();
    assert_eq!(found.deed, Some(Deed::Wish { leg: 1, wish: Wish::Pause }));
    assert_eq!(foresee(&now, &named("d")).unwrap_err().status, 404);
}

#[test]
fn wishes_are_safe_to_repeat() {
    for (action, state, wish) in [
        (Action::Pause, "paused", Wish::Pause),
        (Action::Break, "broken", Wish::Break),
        (Action::Continue, "mirroring", Wish::Mirror),
    ] {
        is_there(&source(state), action.clone());
        let other = if wish == Wish::Mirror { "paused" } else { "mirroring" };
        let found = does(&source(other), action);
        assert_eq!(found.deed, Some(Deed::Wish { leg: 0, wish }));
    }
    assert!(does(&source("broken"), Action::Continue).said.contains("everything"));
    assert!(refused(&target(|_| {}), Action::Pause).contains("ask on the node that serves it"));
    let mut met = target(|_| {});
    met.peers[0].met = Some(MetDocument { active: true, ..MetDocument::default() });
    assert!(refused(&met, Action::Break).contains("ask on b"));
}

#[test]
fn a_resync_goes_where_one_is_needed() {
    is_there(&source("mirroring"), RESYNC);
    is_there(&source("resynchronizing"), RESYNC);
    // Asked again at once, which is no change.
    let again = foresee(&source("resync-pending"), &order(RESYNC)).unwrap();
    let deed = Deed::Resync { leg: 0, full: false, compare: None };
    assert_eq!((again.changed, again.deed), (false, Some(deed)));
    assert!(does(&source("paused"), RESYNC).changed);
    let full = does(&source("mirroring"), FULL);
    assert!(full.said.contains("only whole copy"), "{}", full.said);
    let mut runs = source("resynchronizing");
    does(&runs, FULL);
    runs.peers[0].full_resync = true;
    is_there(&runs, FULL);
    let compare = Action::Resync { full: true, compare: Some(true) };
    assert!(does(&runs, compare).said.contains("checksums"));
    assert!(refused(&source("split-brain"), FULL).contains("--keep mine"));
    refused(&source("mismatch"), RESYNC);
    refused(&target(|_| {}), RESYNC);
}

#[test]
fn the_role_is_handed_over_to_who_is_in_sync() {
    assert!(is_there(&source("mirroring"), SWITCH).contains("--to b"));
    is_there(&source("mirroring"), to("a"));
    assert_eq!(does(&source("mirroring"), to("b")).deed, Some(Deed::Switchover { leg: 0 }));
    assert!(refused(&source("resynchronizing"), to("b")).contains("--watch"));
    assert!(refused(&source("split-brain"), to("b")).contains("resolve db"));
    refused(&source("paused"), to("b"));
    let problem = foresee(&source("mirroring"), &order(to("x"))).unwrap_err();
    assert_eq!((problem.status, problem.accepted), (404, vec!["b".into(), "a".into()]));
    // From the other side.
    let attached = target(|replica| replica.has_source = true);
    assert_eq!(does(&attached, SWITCH).deed, Some(Deed::Switchover { leg: 0 }));
    assert_eq!(does(&attached, to("a")).deed, Some(Deed::Switchover { leg: 0 }));
    is_there(&attached, to("b"));
    refused(&target(|replica| replica.inconsistent = true), SWITCH);
    let alone = refused(&target(|_| {}), SWITCH);
    assert!(alone.contains("b is not attached") && alone.contains("failover db"), "{alone}");
    // A source that does not serve, as it was not asked yet.
    let mut waits = source("disconnected");
    waits.replica.as_mut().unwrap().active = false;
    refused(&waits, to("b"));
}

/// A target of one of two peers, `b` and `c`.
fn target_of(source: Option<&str>) -> MirrorDocument {
    let mut now = target(|replica| {
        (replica.has_source, replica.source) = (true, source.map(str::to_owned));
    });
    now.peers.push(PeerDocument { name: "c".into(), ..now.peers[0].clone() });
    now
}

#[test]
fn of_two_peers_the_one_that_is_attached_is_the_source() {
    let mut now = target_of(Some("c"));
    // It was met before the role went to the other.
    now.peers[0].met = Some(MetDocument { active: true, ..MetDocument::default() });
    assert_eq!(does(&now, SWITCH).deed, Some(Deed::Switchover { leg: 1 }));
    is_there(&now, to("c"));
    assert!(refused(&now, to("b")).contains("ask on b"));
    let pause = Order { peer: Some("b".into()), ..order(Action::Pause) };
    assert!(foresee(&now, &pause).unwrap_err().detail.contains("ask on c"));
    // Its link has not met it yet: what was met is all that is known.
    now.replica.as_mut().unwrap().source = None;
    assert_eq!(does(&now, SWITCH).deed, Some(Deed::Switchover { leg: 0 }));
    assert!(refused(&target_of(None), SWITCH).contains("a peer is not attached"));
}

#[test]
fn a_peer_that_is_named_is_taken_at_its_word() {
    let with = |peer: &str, action: Action| Order { peer: Some(peer.into()), ..order(action) };
    let now = target_of(Some("c"));
    assert_eq!(foresee(&now, &with("c", SWITCH)).unwrap().deed, Some(Deed::Switchover { leg: 1 }));
    let other = foresee(&now, &with("b", SWITCH)).unwrap_err();
    assert!(other.detail.contains("c serves db, and not b"), "{}", other.detail);
    let two = foresee(&source("mirroring"), &with("x", SWITCH)).unwrap_err();
    assert_eq!(two.status, 404, "of one that serves already too");
    let mut serves = source("mirroring");
    serves.peers.push(PeerDocument { name: "c".into(), ..serves.peers[0].clone() });
    assert_eq!(foresee(&serves, &with("c", to("b"))).unwrap_err().status, 422);
    let found = foresee(&serves, &with("b", to("b"))).unwrap();
    assert_eq!(found.deed, Some(Deed::Switchover { leg: 0 }));
    // Of verifies the one with this peer is stopped.
    let verify = VerifyDocument { peer: "b".into(), running: true, ..VerifyDocument::default() };
    serves.verify = Some(verify);
    let stop = Action::Verify { repair: false, bytes_per_second: None, stop: true };
    let kept = foresee(&serves, &with("c", stop.clone())).unwrap();
    assert_eq!((kept.changed, kept.deed), (false, None), "{}", kept.said);
    assert_eq!(foresee(&serves, &with("x", stop.clone())).unwrap_err().status, 404);
    assert_eq!(foresee(&serves, &with("b", stop)).unwrap().deed, Some(Deed::StopVerify));
    // Not as fast as the one that runs.
    let slow = Action::Verify { repair: false, bytes_per_second: Some(9), stop: false };
    assert!(foresee(&serves, &with("b", slow)).unwrap_err().detail.contains("another verify"));
    // What can be typed as it stands there.
    serves.peers[0].state = "split-brain".into();
    let both = foresee(&serves, &with("b", to("b"))).unwrap_err().detail;
    assert!(both.contains("mirror resolve db --peer b --keep mine"), "{both}");
}

#[test]
fn a_failover_says_what_may_be_lost() {
    is_there(&source("mirroring"), FAILOVER);
    let lost = does(&target(|_| {}), FAILOVER).loses.unwrap();
    assert!(lost.contains("split brain") && lost.contains("what b completed"), "{lost}");
    let mut behind = target(|_| {});
    behind.peers[0].mode = "async".into();
    assert!(does(&behind, FAILOVER).loses.unwrap().contains("asynchronous"));
    let attached = target(|replica| replica.has_source = true);
    assert!(refused(&attached, FAILOVER).contains("switchover db"));
    let order = Order { action: FAILOVER, peer: None, dry_run: false };
    let accepted = foresee(&attached, &order).unwrap_err().accepted;
    let commands = ["flagstone mirror switchover db", "flagstone mirror failover db --force"];
    assert_eq!(accepted, commands, "what can be typed");
    assert_eq!(
        does(&attached, Action::Failover { force: true }).deed,
        Some(Deed::Failover { force: true })
    );
    refused(&target(|replica| replica.inconsistent = true), FAILOVER);
    refused(&target(|replica| replica.generation = "0000000000000000".into()), FAILOVER);
}

#[test]
fn a_verify_needs_two_that_are_in_sync() {
    let deed = Deed::Verify { leg: 0, repair: false, bytes_per_second: None };
    assert_eq!(does(&source("mirroring"), VERIFY).deed, Some(deed));
    refused(&source("resynchronizing"), VERIFY);
    refused(&target(|_| {}), VERIFY);
    let mut runs = source("mirroring");
    let verify = VerifyDocument { peer: "b".into(), running: true, ..VerifyDocument::default() };
    runs.verify = Some(verify);
    is_there(&runs, VERIFY);
    let repair = Action::Verify { repair: true, bytes_per_second: None, stop: false };
    assert!(refused(&runs, repair).contains("--stop"));
    let stop = Action::Verify { repair: false, bytes_per_second: None, stop: true };
    assert_eq!(does(&runs, stop.clone()).deed, Some(Deed::StopVerify));
    is_there(&source("mirroring"), stop);
}

#[test]
fn a_split_brain_is_resolved_by_name() {
    for keep_mine in [true, false] {
        is_there(&source("mirroring"), Action::Resolve { keep_mine });
        let found = does(&source("split-brain"), Action::Resolve { keep_mine });
        assert_eq!(found.deed, Some(Deed::Resolve { leg: 0, keep_mine }));
        let given_up = if keep_mine { "written on b" } else { "written on a" };
        assert!(found.loses.unwrap().contains(given_up));
    }
}

#[test]
fn roles_and_replicas_are_given_up() {
    assert!(does(&source("split-brain"), Action::Demote).said.contains("not served"));
    is_there(&target(|_| {}), Action::Demote);
    assert!(refused(&source("mirroring"), DELETE).contains("--to PEER"));
    let forced = does(&source("paused"), Action::Delete { force: true }).loses.unwrap();
    assert!(forced.contains("only current copy") && forced.contains("cut off"), "{forced}");
    let calm = does(&target(|_| {}), DELETE).loses.unwrap();
    assert!(calm.contains("Its data stays") && !calm.contains("only"), "{calm}");
}
