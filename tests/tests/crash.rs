//! kill -9 of the server, of the load, and of both, in the midst of verified loads, again and
//! again: nothing that was promised is lost.
//!
//! A kill comes when the load has recorded a random number of acknowledgements, never after a
//! time. `FLAGSTONE_CRASH_ROUNDS` sets how many kills, `FLAGSTONE_CRASH_SEED` where they come.

use std::path::Path;

use flagstone_tests::load::{Load, RecordKind, records};
use flagstone_tests::rng::Rng;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;

const SIZE_BYTES: u64 = 16 << 20;

/// Kills of one test.
fn rounds() -> u64 {
    let text = std::env::var("FLAGSTONE_CRASH_ROUNDS").unwrap_or_else(|_| "20".into());
    text.parse().expect("FLAGSTONE_CRASH_ROUNDS is a number")
}

fn rng() -> Rng {
    Rng::from_env("FLAGSTONE_CRASH_SEED", 20)
}

fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    (Server::start(&[&volume]), scratch)
}

/// Loads `target` while its server is killed and restarted; the load is to complete as if nothing
/// had happened.
fn outlives_kills(server: &mut Server, target: &str, line: &str, scratch: &Scratch) {
    /// Writes between two kills, on average.
    const WRITES: u64 = 1000;
    let (rounds, mut rng) = (rounds(), rng());
    let state = scratch.join("state");
    // Every write leaves a record or more, and the last kill comes before the last writes.
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
fn an_nvme_load_with_flushes_outlives_kills_of_the_server() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    outlives_kills(&mut server, &target, "--rw randwrite --depth 16 --flush-every 8", &scratch);
}

#[test]
fn an_nvme_load_over_several_queues_outlives_kills_of_the_server() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    let line = "--rw randwrite --depth 32 --queues 4 --fua";
    outlives_kills(&mut server, &target, line, &scratch);
}

#[test]
fn an_nbd_load_with_fua_outlives_kills_of_the_server() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    outlives_kills(&mut server, &target, "--rw randwrite --depth 16 --fua", &scratch);
}

/// Who is killed, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    Load,
    ServerThenLoad,
    LoadThenServer,
}

/// Kills the load of `target`, and the server with it or not, and looks for what was promised.
fn keeps_promises(server: &mut Server, target: &str, durability: &str, scratch: &Scratch) {
    /// Records before a kill: at least so many, and at most as many more.
    const RECORDS: u64 = 500;
    let mut rng = rng();
    for round in 0..rounds() {
        let state = scratch.join(&format!("state-{round}"));
        // A short range is written over and over: old generations lie there to be found.
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

/// The state tells of promises that count, and the volume keeps them.
fn assert_promises(target: &str, side: &str, state: &Path, what: &str) {
    let kinds = records(state);
    let promises = kinds
        .iter()
        .filter(|kind| matches!(kind, RecordKind::Durable | RecordKind::FlushCompleted));
    assert!(promises.count() > 0, "{what}: nothing durable was promised");
    let check = format!("--rw randread --depth 16 --bs 64k --after-crash {side}");
    let ended = Load::start_verified(target, &check, state).wait();
    assert_eq!(ended.code, Some(0), "{what}: {}\n{:#}", ended.log, ended.results);
    let verify = &ended.results["verify"];
    assert_eq!(verify["violations"], 0, "{what}: {verify:#}");
    assert_eq!(verify["read_back"], true, "{what}: {verify:#}");
    assert_eq!(verify["blocks_checked"], 512, "{what}: {verify:#}");
}

#[test]
fn what_an_nvme_host_flushed_outlives_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    keeps_promises(&mut server, &target, "--flush-every 8", &scratch);
}

#[test]
fn what_an_nvme_host_wrote_with_fua_outlives_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nvme_uri("db");
    keeps_promises(&mut server, &target, "--fua", &scratch);
}

#[test]
fn what_an_nbd_client_flushed_outlives_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    keeps_promises(&mut server, &target, "--flush-every 8", &scratch);
}

#[test]
fn what_an_nbd_client_wrote_with_fua_outlives_kills_of_all() {
    let (mut server, scratch) = serve();
    let target = server.nbd_uri("db");
    keeps_promises(&mut server, &target, "--fua", &scratch);
}

/// NBD does not tell a server that crashed from a network that failed. So a client whose unflushed
/// writes were acknowledged before must not be told that a later flush made them durable.
#[test]
fn an_nbd_load_learns_that_unflushed_writes_may_be_lost() {
    let (mut server, scratch) = serve();
    let (target, state) = (server.nbd_uri("db"), scratch.join("state"));
    let line = "--rw randwrite --depth 16 --time 1h --size 2MiB --flush-every 1000";
    let mut load = Load::start_verified(&target, line, &state);
    // Hundreds of acknowledged writes, and no flush yet.
    load.wait_for_records(&state, 500);
    server.restart();
    let ended = load.wait();
    assert_eq!(ended.code, Some(1), "{}\n{:#}", ended.log, ended.results);
    assert_eq!(ended.results["outcome"], "io_errors", "{:#}", ended.results);
    let errors = ended.results["errors"].as_array().expect("a list");
    assert!(
        errors.iter().any(|error| error["operation"] == "flush" && error["error"] == "poisoned"),
        "{errors:#?}"
    );
    assert_eq!(ended.results["verify"]["violations"], 0, "{:#}", ended.results);
}
