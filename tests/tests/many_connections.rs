//! A thousand incomplete or invalid connections: the server releases all their resources and
//! continues to serve.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use flagstone_tests::load::Load;
use flagstone_tests::process::{descriptors, resident_bytes, until};
use flagstone_tests::rng::{self, Rng};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server};
use flagstone_tests::wire;

const SIZE_BYTES: u64 = 16 << 20;

/// Number of checked connections.
const CONNECTIONS: usize = 1000;

/// Number of earlier connections, after which the server has allocated everything that it allocates
/// only once.
const WARM_UP: usize = 300;

/// Maximum number of connections open at a time; fewer than either protocol admits.
const OPEN_AT_ONCE: usize = 64;

/// Allowed memory growth, in bytes: less than one page of 4 KiB per connection.
const GROWTH_BYTES: u64 = 3 << 20;

/// Progress of a connection before it is dropped.
#[derive(Debug, Clone, Copy)]
enum ClientBehavior {
    Silent,
    Garbage,
    /// Part of the host's or client's first message, or all of it.
    Cut,
    /// Complete handshake, answered.
    Initialized,
    /// Handshake, then a truncated command or request.
    InCommand,
    /// Handshake, then garbage.
    ThenGarbage,
}

const MANNERS: [ClientBehavior; 6] = [
    ClientBehavior::Silent,
    ClientBehavior::Garbage,
    ClientBehavior::Cut,
    ClientBehavior::Initialized,
    ClientBehavior::InCommand,
    ClientBehavior::ThenGarbage,
];

/// Connects and proceeds as far as `behavior` says. The server may hang up at any time, and then
/// the rest is not sent.
fn misbehave(server: &Server, scheme: &str, behavior: ClientBehavior, rng: &mut Rng) -> TcpStream {
    let mut stream = wire::connect(server.port(scheme));
    let garbage_bytes = rng.below(3000) as usize;
    let mut garbage = vec![0; garbage_bytes];
    rng.fill(&mut garbage);
    let (first, command) = match scheme {
        "nbd" => (wire::nbd_go("db"), wire::nbd_write(0, 1 << 20)),
        _ => (
            wire::nvme_initialize().to_vec(),
            wire::nvme_connect(&format!("{NQN_PREFIX}db"), 0, 32),
        ),
    };
    let mut cut = |bytes: &[u8]| bytes[..rng.below(bytes.len() as u64 + 1) as usize].to_vec();
    let said = match behavior {
        ClientBehavior::Silent => Vec::new(),
        ClientBehavior::Garbage => garbage,
        ClientBehavior::Cut => cut(&first),
        ClientBehavior::Initialized | ClientBehavior::InCommand | ClientBehavior::ThenGarbage => {
            match scheme {
                "nbd" => wire::nbd_open(&mut stream, "db").unwrap(),
                _ => wire::nvme_open(&mut stream).unwrap(),
            }
            match behavior {
                ClientBehavior::InCommand => cut(&[command, garbage].concat()),
                ClientBehavior::ThenGarbage => garbage,
                _ => Vec::new(),
            }
        }
    };
    // A refusal in the middle of the write is fine.
    let _ = stream.write_all(&said);
    stream
}

/// Opens `count` connections and closes them in another order, some cleanly and some by a reset.
fn come_and_go(server: &Server, count: usize, rng: &mut Rng) {
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        let scheme = ["nvme-tcp", "nbd"][rng.below(2) as usize];
        let behavior = MANNERS[rng.below(MANNERS.len() as u64) as usize];
        open.push(misbehave(server, scheme, behavior, rng));
        while open.len() > rng.below(OPEN_AT_ONCE as u64) as usize {
            let stream = open.swap_remove(rng.below(open.len() as u64) as usize);
            if rng.below(2) == 0 {
                set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
        }
    }
}

#[test]
fn thousand_malformed_connections_leak_nothing() {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let server = Server::start(&[&volume]);
    let pid = server.pid();
    let open = server.idle_descriptors();
    let mut rng = rng::from_env("FLAGSTONE_CONNECTIONS_SEED", 1000);
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
