//! Resource use of an idle server and of a connection, and the memory ceiling under a flood. The
//! bounds exceed the measured values enough to allow for another allocator or kernel. The tests
//! print the measured values.

use std::fs;
use std::time::Duration;

use flagstone_tests::load::Load;
use flagstone_tests::process::{
    cpu_ticks_during, descriptors, resident_bytes, resident_file_bytes, resident_peak_bytes, until,
};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 256 * MIB;

/// Resident memory of a new idle server with one volume, without the pages of the program, which
/// differ by its build.
const IDLE_BYTES: u64 = 32 * MIB;

/// Resident memory of an idle server after loads, including the buffers that it keeps for the next
/// ones.
const IDLE_AFTER_LOADS_BYTES: u64 = 64 * MIB;

/// Memory of an idle connection with queues for 128 requests.
const IDLE_CONNECTION_BYTES: u64 = MIB;

/// Memory of an I/O connection with 128 requests in progress on a file, without their payloads.
const BUSY_CONNECTION_BYTES: u64 = MIB;

fn serve(arguments: &[&str]) -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    (Server::start_with(&[&volume], &listeners, arguments), scratch)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// Waits until all connections made since the count `before` are closed.
fn wait_for_descriptors(server: &Server, before: usize) {
    let pid = server.pid();
    let explain = || format!("{} descriptors, not {before}\n{}", descriptors(pid), server.output());
    until("connections end", || descriptors(pid) <= before, explain);
}

#[test]
fn idle_server_is_small_and_uses_no_cpu() {
    let (server, _scratch) = serve(&["--cores", "1"]);
    let pid = server.pid();
    let own_bytes = || resident_bytes(pid) - resident_file_bytes(pid);
    let (fresh, open) = (own_bytes(), server.idle_descriptors());
    println!("resident, fresh: {:.1} MiB", mib(fresh));
    assert!(fresh <= IDLE_BYTES, "{fresh} B resident");

    for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
        for line in [
            "--rw randrw --depth 128 --bs 4k --ios 20000 --size 64MiB --verify",
            "--rw randrw --depth 16 --bs 1m --ios 400",
        ] {
            Load::start(&target, line).wait().assert_complete();
        }
    }
    wait_for_descriptors(&server, open);
    let loaded = own_bytes();
    println!("resident, after loads: {:.1} MiB", mib(loaded));
    assert!(loaded <= IDLE_AFTER_LOADS_BYTES, "{loaded} B resident after loads");

    // Two idle seconds. On a busy machine the span is longer, but an idle server uses no CPU either
    // way.
    let used = cpu_ticks_during(pid, Duration::from_secs(2));
    assert!(used <= 2, "an idle server used {used} clock ticks");
}

#[test]
fn idle_connection_uses_little_memory() {
    const CONNECTIONS: u16 = 100;
    let (server, _scratch) = serve(&["--cores", "1"]);
    let pid = server.pid();
    // The first load makes the server allocate everything that it allocates only once.
    Load::start(&server.nvme_uri("db"), "--rw randread --ios 1000").wait().assert_complete();
    let (before, open) = (resident_bytes(pid), server.idle_descriptors());

    // One read per hour after the first: the queues exist and are idle.
    let queues = format!("--rw randread --depth 128 --queues {CONNECTIONS} --rate 1 --time 1h");
    let load = Load::start(&server.nvme_uri("db"), &queues);
    let all = open + usize::from(CONNECTIONS) + 1;
    until("all queues connect", || descriptors(pid) >= all, || server.output());
    let each = resident_bytes(pid).saturating_sub(before) / u64::from(CONNECTIONS + 1);
    println!("an idle NVMe/TCP connection: {:.1} KiB", each as f64 / 1024.0);
    assert!(each <= IDLE_CONNECTION_BYTES, "{each} B a connection");

    let used = cpu_ticks_during(pid, Duration::from_secs(2));
    println!("100 idle connections for 2 s: {used} clock ticks");
    drop(load);
    wait_for_descriptors(&server, open);
}

#[test]
fn busy_connection_uses_little_beyond_payloads() {
    const CONNECTIONS: u64 = 16;
    const DEPTH: u64 = 128;
    let (server, _scratch) = serve(&["--cores", "1"]);
    let pid = server.pid();
    let before = resident_bytes(pid);
    // Each thread has its own association: an admin queue and one I/O queue.
    let line = format!("--rw randrw --threads {CONNECTIONS} --depth {DEPTH} --ios 40000");
    Load::start(&server.nvme_uri("db"), &line).wait().assert_complete();
    let grown = resident_peak_bytes(pid) - before;
    let payloads = CONNECTIONS * DEPTH * 4096;
    println!(
        "{CONNECTIONS} connections with {DEPTH} requests of 4 KiB each: {:.1} MiB at most, {:.1} of them payload",
        mib(grown),
        mib(payloads)
    );
    assert!(grown <= payloads + CONNECTIONS * BUSY_CONNECTION_BYTES, "{grown} B");
}

#[test]
fn memory_ceiling_holds_under_a_flood_of_reads() {
    flood("randread");
}

#[test]
fn memory_ceiling_holds_under_a_flood_of_writes() {
    flood("randrw --verify");
}

/// Requests far more buffer memory than the server may use.
fn flood(rw: &str) {
    const CEILING_BYTES: u64 = 64 * MIB;
    /// Memory outside the ceiling, in addition to the pages of the program and its libraries:
    /// stacks, rings, and the state of 16 + 4 + 4 connections and their requests without buffers.
    const FIXED_BYTES: u64 = 6 * MIB;
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    let disk = scratch.disk("disk", SIZE_BYTES);
    let text = format!(
        "[server]\nbuffer_memory = \"64MiB\"\n[volume.db]\ndevice = \"{}\"\n",
        disk.display()
    );
    fs::write(&file, text).unwrap();
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    let server = Server::start_with(&[], &listeners, &[file.to_str().unwrap()]);
    let pid = server.pid();

    // 4 × 64 × 1 MiB and 4 × 16 × 4 MiB: hosts request 512 MiB at once.
    let (nvme, nbd) = (server.nvme_uri("db"), server.nbd_uri("db"));
    let loads: Vec<_> = (0..8)
        .map(|number| {
            let (target, line) = match number % 2 {
                0 => (&nvme, "--bs 1m --depth 64 --queues 4 --ios 300"),
                _ => (&nbd, "--bs 4m --depth 16 --ios 80"),
            };
            // Each load has its own part, so that each can be verified.
            let line = format!("--rw {rw} {line} --size 32MiB --offset {}MiB", number * 32);
            Load::start(target, &line)
        })
        .collect();
    for load in loads {
        load.wait().assert_complete();
    }
    // The program's own pages stay resident, so all of them are in the peak by now.
    let (peak, program) = (resident_peak_bytes(pid), resident_file_bytes(pid));
    let peak = peak - program;
    println!(
        "peak under the flood, with a ceiling of 64 MiB: {:.1} MiB beside {:.1} MiB of program",
        mib(peak),
        mib(program)
    );
    assert!(peak <= CEILING_BYTES + FIXED_BYTES, "{peak} B resident at the peak");
}
