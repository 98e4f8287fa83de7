//! Clients that ask and do not read, or announce data and do not send it: others are served, over
//! NBD and NVMe/TCP.

use std::io::Write as _;
use std::net::TcpStream;

use flagstone_tests::load::Load;
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

/// The time limit of a load is that of any test; the stalled clients stay for all of it.
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
