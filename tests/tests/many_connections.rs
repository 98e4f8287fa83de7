//! A thousand connections that say half of something, or nonsense, and go: the server has nothing
//! left of them, and serves on.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use flagstone_tests::load::Load;
use flagstone_tests::process::{descriptors, resident_bytes, until};
use flagstone_tests::rng::Rng;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server};
use flagstone_tests::wire;

const SIZE_BYTES: u64 = 16 << 20;

/// Connections whose traces are looked for.
const CONNECTIONS: usize = 1000;

/// Connections before them, after which the server has made what it makes once.
const WARM_UP: usize = 300;

/// Connections that are open at the same time, at most; fewer than either protocol admits.
const OPEN_AT_ONCE: usize = 64;

/// What memory may have grown by: less than 4 KiB, one page, for each of the connections.
const GROWTH_BYTES: u64 = 3 << 20;

/// How far a connection gets before it is dropped.
#[derive(Debug, Clone, Copy)]
enum Manners {
    Silent,
    Garbage,
    /// A part of what a host or client says first, up to all of it.
    Cut,
    /// All of it, answered.
    Initialized,
    /// And a command or request, cut somewhere.
    InCommand,
    /// And nonsense.
    ThenGarbage,
}

const MANNERS: [Manners; 6] = [
    Manners::Silent,
    Manners::Garbage,
    Manners::Cut,
    Manners::Initialized,
    Manners::InCommand,
    Manners::ThenGarbage,
];

/// Connects and gets as far as `manners` say. The server may hang up whenever it likes; then the
/// rest is not said.
fn misbehave(server: &Server, scheme: &str, manners: Manners, rng: &mut Rng) -> TcpStream {
    let mut stream = wire::connect(server.port(scheme));
    let garbage_bytes = rng.below(3000) as usize;
    let garbage = rng.bytes(garbage_bytes);
    let (first, command) = match scheme {
        "nbd" => (wire::nbd_go("db"), wire::nbd_write(0, 1 << 20)),
        _ => (
            wire::nvme_initialize().to_vec(),
            wire::nvme_connect(&format!("{NQN_PREFIX}db"), 0, 32),
        ),
    };
    let mut cut = |bytes: &[u8]| bytes[..rng.below(bytes.len() as u64 + 1) as usize].to_vec();
    let said = match manners {
        Manners::Silent => Vec::new(),
        Manners::Garbage => garbage,
        Manners::Cut => cut(&first),
        Manners::Initialized | Manners::InCommand | Manners::ThenGarbage => {
            match scheme {
                "nbd" => wire::nbd_open(&mut stream, "db").unwrap(),
                _ => wire::nvme_open(&mut stream).unwrap(),
            }
            match manners {
                Manners::InCommand => cut(&[command, garbage].concat()),
                Manners::ThenGarbage => garbage,
                _ => Vec::new(),
            }
        }
    };
    // Refused half-way is as good.
    let _ = stream.write_all(&said);
    stream
}

/// Makes `count` connections and drops them in another order, some in order and some by a reset.
fn come_and_go(server: &Server, count: usize, rng: &mut Rng) {
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        let scheme = ["nvme-tcp", "nbd"][rng.below(2) as usize];
        let manners = MANNERS[rng.below(MANNERS.len() as u64) as usize];
        open.push(misbehave(server, scheme, manners, rng));
        while open.len() > rng.below(OPEN_AT_ONCE as u64) as usize {
            let stream = open.swap_remove(rng.below(open.len() as u64) as usize);
            if rng.below(2) == 0 {
                set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
        }
    }
}

#[test]
fn a_thousand_rude_connections_leave_nothing_behind() {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let server = Server::start(&[&volume]);
    let pid = server.pid();
    let open = server.idle_descriptors();
    let mut rng = Rng::from_env("FLAGSTONE_CONNECTIONS_SEED", 1000);
    let settle = || {
        let explain = || format!("{} descriptors, not {open}", descriptors(pid));
        until("the connections end", || descriptors(pid) == open, explain);
    };

    come_and_go(&server, WARM_UP, &mut rng);
    settle();
    let before = resident_bytes(pid);
    come_and_go(&server, CONNECTIONS, &mut rng);
    settle();
    let after = resident_bytes(pid);
    println!("resident: {} KiB before, {} KiB after", before >> 10, after >> 10);
    assert!(
        after <= before + GROWTH_BYTES,
        "{CONNECTIONS} connections left {} B",
        after.saturating_sub(before)
    );

    for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
        let line = "--rw randrw --depth 16 --ios 2000 --verify";
        Load::start(&target, line).wait().assert_complete();
    }
    settle();
    let log = server.output();
    assert!(!log.contains("panicked"), "{log}");
}
