//! Clean shutdown of a server: acknowledged data is kept, clients see the end of their streams, and
//! waiting clients continue when the server is back.

use std::io::Read as _;

use rustix::process::Signal;

use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;
use flagstone_tests::wire;

const SIZE_BYTES: u64 = 32 << 20;

const SIGNALS: [Signal; 2] = [Signal::TERM, Signal::INT];

fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    (Server::start(&[&volume]), scratch)
}

/// Stops the server, which must exit cleanly without cutting off any client.
fn stop(server: &mut Server, signal: Signal) {
    let status = server.stop(signal);
    assert_eq!(status.code(), Some(0), "{signal:?}: {status}\n{}", server.output());
    let cut = server.output().contains("did not end in time");
    assert!(!cut, "{signal:?}: requests outlasted the drain\n{}", server.output());
}

#[test]
fn acknowledged_writes_survive_a_clean_stop() {
    for signal in SIGNALS {
        let (mut server, scratch) = serve();
        let parts = [(server.nvme_uri("db"), "0"), (server.nbd_uri("db"), "16MiB")];
        let mut loads: Vec<_> = parts
            .iter()
            .map(|(target, offset)| {
                // No flush: the shutdown itself makes all writes durable.
                let line = format!(
                    "--rw randwrite --bs 16k --depth 32 --time 1h --size 4MiB --offset {offset}"
                );
                let state = scratch.join(&format!("state-{offset}"));
                (Load::start_verified(target, &line, &state), state)
            })
            .collect();
        for (load, state) in &mut loads {
            load.wait_for_records(state, 2000);
        }
        stop(&mut server, signal);
        for (load, _) in &mut loads {
            load.kill();
        }
        server.restart();
        for ((_, state), (target, _)) in loads.iter().zip(&parts) {
            // No acknowledged write may be missing, flushed or not.
            let check = "--rw randread --depth 16 --bs 16k --after-crash client";
            let results = Load::start_verified(target, check, state).wait();
            assert_eq!(results.code, Some(0), "{signal:?}: {}\n{:#}", results.log, results.results);
            assert_eq!(results.results["verify"]["blocks_checked"], 1024, "{signal:?}");
        }
    }
}

/// With FUA: after a restart, a device with unflushed writes fails until it is reopened.
#[test]
fn loads_continue_after_stop_and_start() {
    let (mut server, scratch) = serve();
    let parts = [(server.nvme_uri("db"), "0"), (server.nbd_uri("db"), "16MiB")];
    let mut loads: Vec<_> = parts
        .iter()
        .map(|(target, offset)| {
            let line =
                format!("--rw randwrite --depth 16 --ios 8000 --size 4MiB --offset {offset} --fua");
            let state = scratch.join(&format!("state-{offset}"));
            (Load::start_verified(target, &line, &state), state)
        })
        .collect();
    // Every write with FUA leaves two records.
    for (round, signal) in [(1, Signal::TERM), (2, Signal::INT), (3, Signal::TERM)] {
        for (load, state) in &mut loads {
            load.wait_for_records(state, round * 1500);
        }
        stop(&mut server, signal);
        server.restart();
    }
    for (load, _) in loads {
        let results = load.wait().assert_complete();
        assert_eq!(results["total"]["ios"], 8000, "{results:#}");
    }
}

#[test]
fn idle_clients_see_the_end_of_their_streams() {
    for signal in SIGNALS {
        let (mut server, _scratch) = serve();
        let connect = |scheme| wire::connect(server.port(scheme));
        let mut clients = Vec::new();
        for scheme in ["nvme-tcp", "nbd"] {
            // Connections are accepted in order. When the second one is answered, the first, silent
            // one is served too.
            clients.push((scheme, "silent", connect(scheme)));
            let mut stream = connect(scheme);
            match scheme {
                "nbd" => wire::nbd_open(&mut stream, "db").unwrap(),
                _ => wire::nvme_open(&mut stream).unwrap(),
            }
            clients.push((scheme, "initialized", stream));
        }
        stop(&mut server, signal);
        for (scheme, client, mut stream) in clients {
            let mut rest = Vec::new();
            // A clean end is an end of file. A reset would be an error.
            if let Err(error) = stream.read_to_end(&mut rest) {
                panic!("{signal:?}, {client} client of {scheme}: {error}");
            }
        }
    }
}
