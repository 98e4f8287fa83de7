//! Automatic failover of a pair under a verified load: its parts that do not depend on the arbiter.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::load::Load;
use crate::mirror::{Pair, Setup};
use crate::network::Network;
use crate::process::until;

const SIZE_BYTES: u64 = 32 << 20;
/// `failover_after` of the nodes.
pub const AFTER: Duration = Duration::from_secs(2);
/// Failover promised by the product: served again within this time after [`AFTER`].
pub const PROMISE: Duration = Duration::from_secs(1);
/// Writes that show that hosts are served.
pub const WRITES: u64 = 20;

/// A pair in sync that fails over by itself, with this section `[arbiter]`.
///
/// # Panics
/// If the nodes do not get in sync.
pub fn pair(arbiter: &str, network: Option<Network>, after: Duration) -> Pair {
    let options = format!("failover = \"automatic\", failover_after = \"{}s\"", after.as_secs());
    let (size_bytes, options, peer) = (SIZE_BYTES, options.as_str(), arbiter);
    Pair::set_up(Setup { size_bytes, options, peer, network, ..Setup::default() }).synchronized()
}

/// Kills the source, and waits until the other node has served hosts and both are in sync again.
///
/// # Panics
/// If the other node does not serve.
pub fn killed_and_replaced(pair: &mut Pair, load: &mut Load, state: &Path) -> Duration {
    let source = armed(pair);
    pair.kill(source);
    let took = served_again(load, state);
    pair.restart(source);
    assert_eq!(pair.source(), 1 - source, "the other node is the source now");
    took
}

/// Ends the load, and checks that nothing acknowledged is lost.
///
/// # Panics
/// If something is.
pub fn end(pair: Pair, mut load: Load) {
    load.kill();
    let source = pair.source();
    pair.assert_kept(source, "state");
    pair.end(source);
}

/// Waits until the status of a node says this.
///
/// # Panics
/// If it does not.
pub fn until_failover(pair: &Pair, node: usize, key: &str, value: &str) {
    let says = || pair.status(node)["failover"][key] == value;
    until(&format!("{key} is {value}"), says, || format!("{:#}", pair.status(node)));
}

/// Waits until the status of a node says that the arbiter is of no use, for this reason.
///
/// # Panics
/// If it does not.
pub fn until_denied(pair: &Pair, node: usize, reason: &str) {
    until_failover(pair, node, "obstacle", "arbiter-silent");
    let says = || pair.status(node)["failover"]["denial"].to_string().contains(reason);
    until(&format!("{reason} is reported"), says, || format!("{:#}", pair.status(node)));
}

/// Waits until the target may take over, and returns the source.
///
/// # Panics
/// If it may not.
pub fn armed(pair: &Pair) -> usize {
    let source = pair.source();
    let ready = || pair.status(1 - source)["failover"]["would_win"] == true;
    until("the target may take over", ready, || format!("{:#}", pair.status(1 - source)));
    source
}

/// Time from now until hosts have written again.
///
/// # Panics
/// If they do not.
pub fn served_again(load: &mut Load, state: &Path) -> Duration {
    let begun = Instant::now();
    let records = Load::records_now(state);
    load.wait_for_records(state, records + WRITES);
    begun.elapsed()
}

/// Waits twice as long as a target without an arbiter's grant could be expected to wait, and checks
/// that hosts were not served meanwhile: neither by the node's status, nor by the records of the
/// load.
///
/// # Panics
/// If they were.
pub fn denied_to_serve(pair: &Pair, target: usize, state: &Path) {
    let lost = || pair.status(target)["replica"]["has_source"] == false;
    until("the source is lost", lost, || format!("{:#}", pair.status(target)));
    // The last acknowledged write is then recorded.
    std::thread::sleep(AFTER / 2);
    let records = Load::records_now(state);
    std::thread::sleep(2 * AFTER);
    until_failover(pair, target, "obstacle", "arbiter-silent");
    let status = pair.status(target);
    assert_eq!(status["replica"]["serving"], false, "nothing is decided: {status:#}");
    assert_eq!(Load::records_now(state), records, "nothing is written without a decision");
}

/// A verified load over both paths, which has written.
///
/// # Panics
/// If it does not start.
pub fn start_load(pair: &Pair) -> (Load, PathBuf) {
    let state = pair.file("state");
    let line = "--rw randrw --depth 8 --size 16MiB --rate 2000 --ios 1000000000";
    let mut load = pair.load(&pair.both_paths(), line, &state);
    load.wait_for_records(&state, WRITES);
    (load, state)
}
