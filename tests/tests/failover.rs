//! Automatic failover with real processes and a real etcd: sources die and stall under a verified
//! load over both paths, without an operator.
#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests use real processes, threads and clocks"
)]

#[path = "../../crates/bench/tests/support/executable.rs"]
mod executable;

use std::time::Duration;

use flagstone_tests::etcd::Etcd;
use flagstone_tests::failover::{
    self, AFTER, PROMISE, WRITES, armed, end, killed_and_replaced, served_again, start_load,
    until_denied, until_failover,
};
use flagstone_tests::load::Load;
use flagstone_tests::mirror::Pair;
use flagstone_tests::network::{Network, SERVICES};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::tools;

/// A pair with an arbiter, in sync, with the arbiter's record made.
fn automatic(test: &str) -> Option<(Etcd, Pair)> {
    let etcd = Etcd::start(test)?;
    let pair = pair_with(&etcd, "", None);
    Some((etcd, pair))
}

/// A pair in sync with this etcd, with further lines of `[arbiter]`.
fn pair_with(etcd: &Etcd, more: &str, network: Option<Network>) -> Pair {
    failover::pair(&(etcd.arbiter() + more), network, AFTER)
}

fn pair_fenced(etcd: &Etcd, lines: &str) -> Pair {
    failover::pair(&format!("{lines}{}", etcd.arbiter()), None, AFTER)
}

#[test]
fn killed_source_is_replaced_without_operator() {
    let Some((_etcd, mut pair)) = automatic("automatic failover") else { return };
    let (mut load, state) = start_load(&pair);
    for round in 0..4 {
        let took = killed_and_replaced(&mut pair, &mut load, &state);
        eprintln!("round {round}: served again after {took:?}");
        // The bound is generous, because the machine is shared; the figure is printed.
        assert!(took < 3 * (AFTER + PROMISE), "{took:?}");
    }
    end(pair, load);
}

/// The leader of a cluster of three dies together with the source, and its history is compacted.
#[test]
fn etcd_cluster_without_leader_decides() {
    let test = "failover with a cluster of three";
    let Some(mut etcd) = Etcd::cluster(test) else { return };
    let mut pair = pair_with(&etcd, "", None);
    let (mut load, state) = start_load(&pair);
    etcd.compact();
    for _ in 0..2 {
        let leader = etcd.leader();
        armed(&pair);
        etcd.kill_member(leader);
        let took = killed_and_replaced(&mut pair, &mut load, &state);
        eprintln!("served again after {took:?}, with an election");
        etcd.run();
    }
    end(pair, load);
}

#[test]
fn encrypted_etcd_decides() {
    let Some(etcd) = Etcd::encrypted("failover with an encrypted etcd") else { return };
    let mut pair = pair_with(&etcd, "", None);
    let (mut load, state) = start_load(&pair);
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// A wrong password is reported, hosts are served meanwhile, and the right one is used without a
/// restart.
#[test]
fn wrong_password_is_reported_and_corrected() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(etcd) = Etcd::start("failover with a password") else { return };
    etcd.require_password("right");
    let scratch = Scratch::new();
    let file = scratch.join("password");
    std::fs::write(&file, "right\n").expect("it can be written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("own file");
    let mut pair =
        pair_with(&etcd, &format!("user = \"flagstone\"\npassword_file = {file:?}\n"), None);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    // Tokens become invalid with the password.
    etcd.change_password("other");
    until_failover(&pair, source, "obstacle", "arbiter-silent");
    // On a busy machine, an answer may come too late before.
    let refused = || {
        let next = pair.status(source)["next"].to_string();
        next.contains("etcd refuses") && next.contains("hosts are served")
    };
    until("the refusal is reported", refused, || format!("{:#}", pair.status(source)));
    let records = Load::records_now(&state);
    load.wait_for_records(&state, records + WRITES);
    std::fs::write(&file, "other\n").expect("it can be written");
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// Space of etcd was used up: reads succeeded, so that both nodes promised a failover that could
/// not be recorded.
#[test]
fn etcd_without_space_is_reported() {
    let test = "an etcd without space";
    let Some(etcd) = Etcd::with_quota(test, 4 << 20) else { return };
    let mut pair = pair_with(&etcd, "", None);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    etcd.fill();
    for node in [source, 1 - source] {
        until_denied(&pair, node, "space exceeded");
    }
    until_failover(&pair, source, "peer_obstacle", "arbiter-silent");
    served_again(&mut load, &state);
    etcd.free();
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// A user of etcd who may only read was not noticed before the nodes parted.
#[test]
fn etcd_user_without_write_permission_is_reported() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(etcd) = Etcd::start("an etcd user without write permission") else { return };
    etcd.require_password("right");
    let scratch = Scratch::new();
    let file = scratch.join("password");
    std::fs::write(&file, "right\n").expect("it can be written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("own file");
    let user = format!("user = \"flagstone\"\npassword_file = {file:?}\n");
    let mut pair = pair_with(&etcd, &user, None);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    etcd.permit("READ");
    for node in [source, 1 - source] {
        until_denied(&pair, node, "permission denied");
    }
    served_again(&mut load, &state);
    etcd.permit("READWRITE");
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// While failover is suspended, no node takes over; afterwards the same death is handled.
#[test]
fn suspended_failover_waits_for_operator() {
    let Some((_etcd, mut pair)) = automatic("suspended failover") else { return };
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    let refused = pair.try_order(1 - source, "maintenance", &["on"]).expect_err("not the source");
    assert!(refused.contains("not the source"), "{refused}");
    pair.order(source, "maintenance", &["on"]);
    until_failover(&pair, 1 - source, "obstacle", "suspended");
    pair.kill(source);
    let idle = || {
        let status = pair.status(1 - source);
        status["replica"]["has_source"] == false
            && status["next"].to_string().contains("maintenance db off")
    };
    until("the target says what to decide", idle, || format!("{:#}", pair.status(1 - source)));
    std::thread::sleep(AFTER + PROMISE);
    assert_eq!(pair.status(1 - source)["replica"]["serving"], false, "nothing is decided");
    pair.restart(source);
    // They meet, agree, and still know that failover is suspended.
    let source = pair.source();
    let suspended = || pair.status(source)["failover"]["suspended"] == true;
    until("the source knows", suspended, || format!("{:#}", pair.status(source)));
    pair.order(source, "maintenance", &["off"]);
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// Stops a node in order, and returns its log.
fn stop(pair: &mut Pair, node: usize) -> String {
    let status = pair.node(node).terminate();
    let log = pair.node(node).output();
    assert!(status.success(), "{status}\n{log}");
    log
}

/// Hosts waited for the whole `failover_after` when their source was stopped on purpose.
#[test]
fn stopped_source_hands_over_first() {
    let after = Duration::from_secs(20);
    let Some(etcd) = Etcd::start("a planned stop") else { return };
    let mut pair = failover::pair(&etcd.arbiter(), None, after);
    let (mut load, state) = start_load(&pair);
    for _ in 0..2 {
        let source = armed(&pair);
        stop(&mut pair, source);
        let took = served_again(&mut load, &state);
        eprintln!("served {took:?} after the source had stopped");
        assert!(took < after / 2, "{took:?}");
        pair.restart(source);
        assert_eq!(pair.source(), 1 - source, "it comes back as the target");
    }
    end(pair, load);
}

/// The peer hangs: the source stops all the same, and says why it has not handed over.
#[test]
fn failed_hand_over_is_logged_and_stops() {
    let Some((_etcd, mut pair)) = automatic("a planned stop without a peer") else { return };
    let source = armed(&pair);
    pair.stall(1 - source, true);
    let log = stop(&mut pair, source);
    assert!(log.contains("not handed over before the stop"), "{log}");
    pair.stall(1 - source, false);
    pair.restart(source);
    let source = pair.source();
    pair.end(source);
}

/// A script that fences: it notes its call, and ends as the file `mode` says.
struct FenceScript {
    scratch: Scratch,
}

impl FenceScript {
    fn new() -> FenceScript {
        let scratch = Scratch::new();
        let (calls, mode) = (scratch.join("calls"), scratch.join("mode"));
        let text = format!(
            "#!/bin/sh\necho \"$1 $FLAGSTONE_PEER $FLAGSTONE_VOLUME\" >> {calls:?}\n. {mode:?}\n"
        );
        let script = scratch.join("fence");
        executable::write_script(&script, &text);
        let fence = FenceScript { scratch };
        fence.end_with("exit 0");
        fence
    }

    fn end_with(&self, line: &str) {
        std::fs::write(self.scratch.join("mode"), line).expect("it can be written");
    }

    /// Lines of `[peer.NAME]`.
    fn lines(&self) -> String {
        let script = self.scratch.join("fence");
        format!("fence_command = [{script:?}, \"vm-1\"]\nfence_timeout = \"1s\"\n")
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.scratch.join("calls")).unwrap_or_default()
    }
}

/// The winner runs the command first, and serves hosts only when it has succeeded.
#[test]
fn winner_serves_after_fence_command_succeeds() {
    let Some(etcd) = Etcd::start("fencing") else { return };
    let fence = FenceScript::new();
    let mut pair = pair_fenced(&etcd, &fence.lines());
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    let dry = pair.order(source, "fence", &["--dry-run"]);
    assert!(dry["outcome"].to_string().contains("'vm-1'"), "{dry:#}");
    assert_eq!(fence.calls(), "", "a dry run runs nothing");
    let name = pair.name(source);
    for (mode, failure) in [("exit 3", "status 3"), ("sleep 60", "killed after 1 s")] {
        fence.end_with(mode);
        let (source, target) = (armed(&pair), 1 - armed(&pair));
        pair.kill(source);
        let failed = || {
            let status = pair.status(target);
            status["failover"]["fencing_failure"].to_string().contains(failure)
        };
        until("fencing fails", failed, || format!("{:#}", pair.status(target)));
        let status = pair.status(target);
        assert_eq!(status["failover"]["obstacle"], "unfenced", "{status:#}");
        assert_eq!(status["replica"]["serving"], false, "{status:#}");
        assert!(status["next"].to_string().contains("fence_command has failed"), "{status:#}");
        fence.end_with("exit 0");
        served_again(&mut load, &state);
        assert_eq!(pair.status(target)["failover"]["fencing"], "succeeded");
        pair.restart(source);
        assert_eq!(pair.source(), target);
    }
    let first = fence.calls().lines().next().map(str::to_owned);
    assert_eq!(first, Some(format!("vm-1 {name} db")));
    end(pair, load);
}

/// A second peer would be out of the arbiter's sight: each of two targets could take over.
#[test]
fn automatic_mirror_refuses_second_peer() {
    let Some((_etcd, pair)) = automatic("a second peer of an automatic mirror") else { return };
    let source = armed(&pair);
    for node in [source, 1 - source] {
        let line = ["c", "--address", "127.0.0.9:4420", "--insecure"];
        let refused = pair.try_order(node, "add-peer", &line).expect_err("a second peer");
        assert!(refused.contains("fails over by itself"), "{refused}");
    }
    pair.end(source);
}

/// The source is cut off from its peer and the arbiter, while hosts still reach it: it stops
/// serving, and the other node serves. No host reads overwritten data.
#[test]
fn source_without_peer_and_arbiter_stops() {
    let test = "failover from a source that is cut off";
    let network = match Network::make() {
        Ok(network) => network,
        Err(reason) => {
            return tools::unable(test, &format!("networks cannot be made here: {reason}"));
        }
    };
    let Some(etcd) = Etcd::at(test, network.host(), SERVICES) else { return };
    let pair = pair_with(&etcd, "", Some(network));
    let (mut load, state) = start_load(&pair);
    for _ in 0..2 {
        let source = armed(&pair);
        pair.network().cut_services(source);
        pair.network().cut(source);
        pair.network().cut(1 - source);
        let serves = |node: usize| pair.status(node)["replica"]["serving"] == true;
        until(
            "the other node serves",
            || serves(1 - source),
            || format!("{:#}", pair.status(1 - source)),
        );
        // Its reads have waited since its lease ended, and its writes need the peer.
        until(
            "the source refuses hosts",
            || !serves(source),
            || format!("{:#}", pair.status(source)),
        );
        served_again(&mut load, &state);
        pair.network().heal();
        assert_eq!(pair.source(), 1 - source, "it comes back as the target");
    }
    // Only the arbiter is lost: nothing changes, but the status says so.
    let source = armed(&pair);
    pair.network().cut_services(source);
    until_failover(&pair, source, "obstacle", "arbiter-silent");
    served_again(&mut load, &state);
    assert_eq!(pair.source(), source);
    pair.network().heal();
    end(pair, load);
}

#[test]
fn stalled_source_returns_as_target() {
    let Some((_etcd, pair)) = automatic("failover from a stalled source") else { return };
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    pair.stall(source, true);
    let other = || pair.status(1 - source)["replica"]["serving"] == true;
    until("the target serves", other, || format!("{:#}", pair.status(1 - source)));
    let records = Load::records_now(&state);
    pair.stall(source, false);
    load.wait_for_records(&state, records + WRITES);
    assert_eq!(pair.source(), 1 - source);
    load.kill();
    pair.assert_kept(1 - source, "state");
    pair.end(1 - source);
}

#[test]
fn killed_target_does_not_stop_hosts() {
    let Some((_etcd, mut pair)) = automatic("the death of a target") else { return };
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    pair.kill(1 - source);
    let took = served_again(&mut load, &state);
    assert!(took < 3 * (AFTER + PROMISE), "{took:?}");
    pair.restart(1 - source);
    assert_eq!(pair.source(), source);
    load.kill();
    pair.assert_kept(source, "state");
    pair.end(source);
}

/// While the nodes see each other, they need no arbiter. Without both, nothing is acknowledged
/// until one of them is back.
#[test]
fn arbiter_is_needed_only_when_nodes_part() {
    let Some((mut etcd, mut pair)) = automatic("an arbiter that is down") else { return };
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    etcd.kill();
    let took = served_again(&mut load, &state);
    assert!(took < AFTER, "hosts go on: {took:?}");
    pair.kill(source);
    let waits = || {
        let status = pair.status(1 - source);
        status["failover"]["denial"].is_string() && status["replica"]["serving"] == false
    };
    until("the target asks in vain", waits, || format!("{:#}", pair.status(1 - source)));
    etcd.run();
    let took = served_again(&mut load, &state);
    eprintln!("served {took:?} after the arbiter came back");
    pair.restart(source);
    assert_eq!(pair.source(), 1 - source);
    load.kill();
    pair.assert_kept(1 - source, "state");
    pair.end(1 - source);
}

/// etcd hangs (SIGSTOP) while the source dies, and answers later.
#[test]
fn hung_arbiter_delays_takeover_only() {
    let Some((etcd, mut pair)) = automatic("an arbiter that hangs") else { return };
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    etcd.stall(true);
    pair.kill(source);
    let asked = || pair.status(1 - source)["failover"]["denial"].is_string();
    until("the target asks in vain", asked, || format!("{:#}", pair.status(1 - source)));
    etcd.stall(false);
    served_again(&mut load, &state);
    pair.restart(source);
    assert_eq!(pair.source(), 1 - source);
    load.kill();
    pair.assert_kept(1 - source, "state");
    pair.end(1 - source);
}
