//! Two executor cores: connections of several hosts on both cores, with verified data.

use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;

const SIZE_BYTES: u64 = 64 << 20;

fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    (Server::start_with(&[&volume], &listeners, &["--cores", "2"]), scratch)
}

#[test]
fn one_load_over_two_connections_on_two_cores() {
    let (server, _scratch) = serve();
    for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
        // Two threads, each with its own connection to the server.
        let line = "--rw randrw --threads 2 --depth 16 --ios 20000 --verify --flush-every 16";
        let results = Load::start(&target, line).wait().assert_complete();
        assert_eq!(results["total"]["ios"], 20000, "{target}: {results:#}");
        assert_eq!(results["job"]["cores"], 2, "{target}: {results:#}");
    }
}

#[test]
fn loads_over_both_protocols_survive_a_server_kill() {
    let (mut server, scratch) = serve();
    let (nvme, nbd) = (server.nvme_uri("db"), server.nbd_uri("db"));
    let targets = [(&nvme, "--queues 2"), (&nbd, ""), (&nvme, "--queues 2"), (&nbd, "")];
    let mut loads: Vec<_> = (0..)
        .zip(targets)
        .map(|(number, (target, queues))| {
            let state = scratch.join(&format!("state-{number}"));
            let line = "--rw randwrite --depth 16 --ios 6000 --fua --size 8MiB";
            let line = format!("{line} {queues} --offset {}MiB", number * 16);
            (Load::start_verified(target, &line, &state), state)
        })
        .collect();
    for records in [1000, 3000] {
        for (load, state) in &mut loads {
            load.wait_for_records(state, records);
        }
        server.restart();
    }
    for (load, _) in loads {
        let results = load.wait().assert_complete();
        assert_eq!(results["total"]["ios"], 6000, "{results:#}");
    }
}
