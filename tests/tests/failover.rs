//! Automatic failover with real processes and a real etcd: sources die and stall under a verified
//! load over both paths, and nobody intervenes.

use std::time::{Duration, Instant};

use flagstone_tests::etcd::Etcd;
use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::process::until;

const SIZE_BYTES: u64 = 32 << 20;
/// `failover_after` of the nodes.
const AFTER: Duration = Duration::from_secs(2);
/// Failover promised by the product: served again within this time after [`AFTER`].
const PROMISE: Duration = Duration::from_secs(1);
/// Writes that show that hosts are served.
const WRITES: u64 = 20;

/// A pair with an arbiter, in sync, with the arbiter's record made.
fn automatic(test: &str) -> Option<(Etcd, Pair)> {
    let etcd = Etcd::start(test)?;
    let arbiter = format!("[arbiter]\netcd = [\"{}\"]", etcd.url());
    let options = format!("failover = \"automatic\", failover_after = \"{}s\"", AFTER.as_secs());
    let setup =
        Setup { size_bytes: SIZE_BYTES, options: &options, peer: &arbiter, ..Setup::default() };
    let pair = Pair::set_up(setup).synchronized();
    Some((etcd, pair))
}

/// Waits until the target may take over.
fn armed(pair: &Pair) -> usize {
    let source = pair.source();
    let ready = || pair.status(1 - source)["failover"]["would_win"] == true;
    until("the target may take over", ready, || format!("{:#}", pair.status(1 - source)));
    source
}

/// Time from now until hosts have written again.
fn served_again(load: &mut Load, state: &std::path::Path) -> Duration {
    let begun = Instant::now();
    let records = Load::records_now(state);
    load.wait_for_records(state, records + WRITES);
    begun.elapsed()
}

fn start_load(pair: &Pair) -> (Load, std::path::PathBuf) {
    let state = pair.file("state");
    let line = "--rw randwrite --depth 8 --size 16MiB --rate 2000 --ios 1000000000";
    let mut load = pair.load(&pair.both_paths(), line, &state);
    load.wait_for_records(&state, WRITES);
    (load, state)
}

#[test]
fn killed_source_is_replaced_without_operator() {
    let Some((_etcd, mut pair)) = automatic("automatic failover") else { return };
    let (mut load, state) = start_load(&pair);
    for round in 0..4 {
        let source = armed(&pair);
        pair.kill(source);
        let took = served_again(&mut load, &state);
        eprintln!("round {round}: served again after {took:?}");
        // The bound is generous, because the machine is shared; the figure is printed.
        assert!(took < 3 * (AFTER + PROMISE), "{took:?}");
        pair.restart(source);
        assert_eq!(pair.source(), 1 - source, "the other node is the source now");
    }
    load.kill();
    pair.assert_kept(pair.source(), "state");
    let source = pair.source();
    pair.end(source);
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

/// While the nodes see each other, they need no arbiter. Without both, nothing is acknowledged until
/// one of them is back.
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
