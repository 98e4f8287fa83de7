//! Clients that ask and do not read, announce data and do not send it, or say nothing: others are
//! served, over NBD, NVMe/TCP and HTTP.

use std::io::Write as _;
use std::net::TcpStream;

use flagstone_tests::http::{ask, ask_port, unix};
use flagstone_tests::load::Load;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;
use flagstone_tests::wire;

const SIZE_BYTES: u64 = 64 << 20;
const REQUEST_BYTES: u32 = 32 << 20;

/// Stalled clients; the server admits 256.
const STALLED: usize = 200;

/// A client that has asked for 4 × 32 MiB, or has sent 64 KiB of 32 MiB.
fn stall(server: &Server, reads: bool) -> TcpStream {
    let mut stream = wire::connect(server.port("nbd"));
    wire::nbd_open(&mut stream, "db").unwrap();
    let bytes = if reads {
        wire::nbd_read(0, REQUEST_BYTES).repeat(4)
    } else {
        [wire::nbd_write(0, REQUEST_BYTES), vec![7; 64 << 10]].concat()
    };
    stream.write_all(&bytes).unwrap();
    stream
}

/// A load has the time limit of any test; the stalled clients stay for all of it.
#[test]
fn stalled_clients_do_not_stop_others() {
    for memory in ["64MiB", "256MiB"] {
        let scratch = Scratch::new();
        let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
        let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
        let server = Server::start_with(&[&volume], &listeners, &["--buffer-memory", memory]);
        let stalled: Vec<_> = (0..STALLED).map(|one| stall(&server, one % 2 == 0)).collect();
        for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
            let line = "--rw randrw --bs 64k --depth 8 --ios 2000 --verify";
            Load::start(&target, line).wait().assert_complete();
        }
        drop(stalled);
        let log = server.output();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// More slow clients than the metrics' port and the API's socket serve at a time: silent ones, ones
/// in the middle of a request, and ones that do not read their answers.
#[test]
fn slow_http_clients_do_not_stop_others() {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let arguments = ["--metrics", "127.0.0.1:0"];
    let mut server = Server::start_with(&[&volume], &["nbd://127.0.0.1:0"], &arguments);
    let port = server.metrics_port();
    let whole = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut slow = (Vec::new(), Vec::new());
    for one in 0..STALLED {
        let begin = ["", "GET /metr", whole][one % 3].as_bytes();
        let mut tcp = wire::connect(port);
        let _ = tcp.write_all(begin);
        slow.0.push(tcp);
        let mut local = unix(&server.api());
        let _ = local.write_all(begin);
        slow.1.push(local);
        assert_eq!(ask_port(port, "GET", "/metrics").status, 200);
        assert_eq!(ask(&server.api(), "GET", "/v1/").status, 200);
    }
    drop(slow);
    let log = server.output();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn refused_api_requests_are_logged_once() {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let server = Server::start_with(&[&volume], &["nbd://127.0.0.1:0"], &[]);
    for _ in 0..3 {
        assert_eq!(ask(&server.api(), "GET", "/v1/volumes/dbx").status, 404);
    }
    // The log follows the answer.
    let line = "API request refused: 404 Not Found";
    until("it is logged", || server.output().contains(line), || server.output());
    assert_eq!(ask(&server.api(), "POST", "/v1/volumes").status, 405);
    until("it is logged", || server.output().contains("405 Method"), || server.output());
    let log = server.output();
    assert_eq!(log.matches(line).count(), 1, "{log}");
    let line = log.lines().find(|log| log.contains(line)).expect("it was found before");
    assert!(line.contains("GET /v1/volumes/dbx") && line.contains("peer=user "), "{line}");
}
