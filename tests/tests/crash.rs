//! Repeated kill -9 of the server, of the load, and of both, during verified loads: no acknowledged
//! durable write is lost.
//!
//! A kill comes when the load has recorded a random number of acknowledgments, never after a fixed
//! time. `FLAGSTONE_CRASH_ROUNDS` sets the number of kills, `FLAGSTONE_CRASH_SEED` their positions.

use std::path::Path;

use flagstone_tests::load::{Load, RecordKind, records};
use flagstone_tests::rng::{self, Rng};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;

const SIZE_BYTES: u64 = 16 << 20;

/// Number of kills of one test.
fn rounds() -> u64 {
    let text = std::env::var("FLAGSTONE_CRASH_ROUNDS").unwrap_or_else(|_| "20".into());
    text.parse().expect("FLAGSTONE_CRASH_ROUNDS is a number")
}

fn rng() -> Rng {
    rng::from_env("FLAGSTONE_CRASH_SEED", 20)
}

fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    (Server::start(&[&volume]), scratch)
}

/// Loads `target` while its server is killed and restarted. The load must complete without errors.
fn outlives_kills(server: &mut Server, target: &str, line: &str, scratch: &Scratch) {
    /// Average number of writes between two kills.
    const WRITES: u64 = 1000;
    let (rounds, mut rng) = (rounds(), rng());
    let state = scratch.join("state");
    // Every write leaves at least one record, and the last kill comes before the last writes.
    let writes = (rounds + 1) * WRITES;
    let mut load = Load::start_verified(target, &format!("{line} --ios {writes}"), &state);
    for round in 0..rounds {
        load.wait_for_records(&state, round * WRITES + rng.below(WRITES));
        server.restart();
    }
    let results = load.wait().assert_complete();
    assert_eq!(results["total"]["ios"], writes, "{results:#}");
    assert_eq!(results["verify"]["blocks_written"], writes, "{results:#}");
}

#[test]
fn nvme_load_over_queues_survives_server_kills() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    let line = "--rw randwrite --depth 32 --queues 4 --fua";
    outlives_kills(&mut server, &target, line, &scratch);
}

#[test]
fn nbd_load_with_fua_survives_server_kills() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    outlives_kills(&mut server, &target, "--rw randwrite --depth 16 --fua", &scratch);
}

/// Processes to kill, and the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    Load,
    ServerThenLoad,
    LoadThenServer,
}

/// Kills the load of `target`, with or without the server, and checks that no guaranteed write is
/// lost.
fn keeps_promises(server: &mut Server, target: &str, durability: &str, scratch: &Scratch) {
    /// Records before a kill: at least this many, and at most twice as many.
    const RECORDS: u64 = 500;
    let mut rng = rng();
    for round in 0..rounds() {
        let state = scratch.join(&format!("state-{round}"));
        // Rewrites a short range repeatedly, so that stale versions would be found.
        let line = format!("--rw randrw --read-percent 20 --depth 16 --time 1h {durability}");
        let line = format!("{line} --size 2MiB --offset {}MiB --seed {round}", 2 * rng.below(8));
        let mut load = Load::start_verified(target, &line, &state);
        load.wait_for_records(&state, RECORDS + rng.below(RECORDS));
        let victims = [Victims::Load, Victims::ServerThenLoad, Victims::LoadThenServer]
            [rng.below(3) as usize];
        match victims {
            Victims::Load => load.kill(),
            Victims::ServerThenLoad => {
                server.kill();
                load.kill();
                server.restart();
            }
            Victims::LoadThenServer => {
                load.kill();
                server.restart();
            }
        }
        let side = if victims == Victims::Load { "client" } else { "server" };
        assert_promises(target, side, &state, &format!("round {round}, {victims:?}"));
    }
}

/// Checks that the state has durable writes, and that the volume holds them.
fn assert_promises(target: &str, side: &str, state: &Path, what: &str) {
    let kinds = records(state);
    let promises = kinds
        .iter()
        .filter(|kind| matches!(kind, RecordKind::Durable | RecordKind::FlushCompleted));
    assert!(promises.count() > 0, "{what}: no durable write was acknowledged");
    let check = format!("--rw randread --depth 16 --bs 64k --after-crash {side}");
    let ended = Load::start_verified(target, &check, state).wait();
    assert_eq!(ended.code, Some(0), "{what}: {}\n{:#}", ended.log, ended.results);
    let verify = &ended.results["verify"];
    assert_eq!(verify["violations"], 0, "{what}: {verify:#}");
    assert_eq!(verify["read_back"], true, "{what}: {verify:#}");
    assert_eq!(verify["blocks_checked"], 512, "{what}: {verify:#}");
}

#[test]
fn flushed_nvme_writes_survive_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    keeps_promises(&mut server, &target, "--flush-every 8", &scratch);
}

#[test]
fn nvme_fua_writes_survive_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    keeps_promises(&mut server, &target, "--fua", &scratch);
}

#[test]
fn flushed_nbd_writes_survive_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    keeps_promises(&mut server, &target, "--flush-every 8", &scratch);
}

#[test]
fn nbd_fua_writes_survive_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    keeps_promises(&mut server, &target, "--fua", &scratch);
}

/// A client with acknowledged but unflushed writes must not learn from a flush after a crash of the
/// server that they are durable. `operations` are the calls that may fail first.
fn reports_possible_loss(
    server: &mut Server,
    target: &str,
    operations: &[&str],
    scratch: &Scratch,
) {
    let state = scratch.join("state");
    let line = "--rw randwrite --depth 16 --time 1h --size 2MiB --flush-every 1000";
    let mut load = Load::start_verified(target, line, &state);
    // Hundreds of acknowledged writes, and no flush yet.
    load.wait_for_records(&state, 500);
    server.restart();
    let ended = load.wait();
    assert_eq!(ended.code, Some(1), "{}\n{:#}", ended.log, ended.results);
    assert_eq!(ended.results["outcome"], "io_errors", "{:#}", ended.results);
    let errors = ended.results["errors"].as_array().expect("a list");
    let failed = |error: &serde_json::Value| {
        error["error"] == "poisoned" && operations.iter().any(|name| error["operation"] == *name)
    };
    assert!(errors.iter().any(failed), "{errors:#?}");
    assert_eq!(ended.results["verify"]["violations"], 0, "{:#}", ended.results);
}

/// NBD cannot distinguish a crashed server from a failed network.
#[test]
fn nbd_load_reports_possible_loss_of_unflushed_writes() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    reports_possible_loss(&mut server, &target, &["flush"], &scratch);
}

/// Regression: the load went on, and its next flush succeeded.
#[test]
fn nvme_load_reports_possible_loss_of_unflushed_writes() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    reports_possible_loss(&mut server, &target, &["flush", "write"], &scratch);
}
