//! TLS with real processes: NVMe/TCP between two of this program; NBD with nbdcopy, nbdinfo,
//! qemu-img and nbdkit; and a search for the keys in everything that the server says.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use flagstone_lab::ports::free_ports;
use flagstone_tests::http::{Answer, ask};
use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::process::{resident_bytes, until};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use flagstone_tests::tools::{have, run, run_refused};
use flagstone_tests::wire::{self, nvme_initialize};
use rustix::process::{Pid, Signal, kill_process};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
const PSK: &str = "8f1d2c3b4a5968778695a4b3c2d1e0ff8f1d2c3b4a5968778695a4b3c2d1e0ff";

fn flagstone(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).args(arguments).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn private(path: &Path, contents: &str) {
    fs::write(path, contents).expect("the file can be written");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode can be set");
}

fn generate(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.join(name);
    let (made, said) = flagstone(&["key", "generate", "--tls", text(&path)]);
    assert!(made, "{said}");
    path
}

fn serve(scratch: &Scratch, listener: &str, configuration: &str) -> Server {
    let file = scratch.join("flagstone.toml");
    fs::write(&file, configuration).expect("the configuration can be written");
    let (checked, said) = flagstone(&["check", text(&file)]);
    assert!(checked, "{said}");
    Server::start_with(&[], &[listener], &[text(&file)])
}

/// Reads the volume as a host with this TLS key; the output if that fails.
fn attach(server: &Server, key: Option<&Path>) -> Result<(), String> {
    let uri = server.nvme_uri("db");
    let key = key.map_or(String::new(), |key| format!("&tls-key-file={}", key.display()));
    let device = format!("{uri}?hostnqn={HOST}{key}");
    match flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]) {
        (true, _) => Ok(()),
        (false, said) => Err(said),
    }
}

#[test]
fn hosts_attach_over_tls_and_keys_rotate_unseen() {
    let scratch = Scratch::new();
    let [key, other] = ["server.key", "other.key"].map(|name| generate(&scratch, name));
    let (checked, said) = flagstone(&["key", "check", text(&key)]);
    assert!(checked && said.contains("for TLS"), "{said}");
    let configuration = format!(
        "[host.db1]\nnqn = \"{HOST}\"\ntls_key_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    let mut server = serve(&scratch, "nvme-tcp://127.0.0.1:0?tls=required", &configuration);
    let mine = scratch.join("mine.key");
    private(&mine, &fs::read_to_string(&key).expect("it can be read"));
    attach(&server, Some(&mine)).expect("the right key");
    let wrong = attach(&server, Some(&other)).expect_err("a wrong key");
    assert!(wrong.contains("TLS failed"), "{wrong}");
    attach(&server, None).expect_err("no TLS");
    let both = [&key, &other].map(|path| fs::read_to_string(path).expect("it can be read"));
    private(&key, &both.concat());
    let pid = Pid::from_raw(server.pid() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("it runs");
    until("the new key is accepted", || attach(&server, Some(&other)).is_ok(), || server.output());
    attach(&server, Some(&mine)).expect("the old key, until it is removed");
    let device =
        format!("{}?hostnqn={HOST}&tls-key-file={}", server.nvme_uri("db"), mine.display());
    let mut busy = Load::start(&device, "--rw randread --time 1h");
    let attached = || {
        let (shown, status) = flagstone(&["status", "db", "--api", text(&server.api())]);
        shown && status.contains("authenticated")
    };
    until("the host is shown", attached, || server.output());
    busy.kill();
    let metrics = ask(&server.api(), "GET", "/metrics").body;
    for name in ["flagstone_tls_handshakes_total", "reason=\"wrong-key\"", "reason=\"plain\""] {
        assert!(metrics.contains(name), "{name}");
    }
    server.terminate();
    let log = server.output();
    for key in both {
        let secret = key.trim().rsplit(':').nth(1).expect("three fields");
        assert!(![&log, &metrics, &said, &wrong].iter().any(|said| said.contains(secret)));
    }
}

/// Sends bytes to a port, and waits until the server ends the connection. Returns its answer.
fn answer_to(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = wire::connect(port);
    stream.write_all(bytes).expect("the server receives");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn failures(server: &Server, metric: &str, reason: &str) -> u64 {
    let metrics = ask(&server.api(), "GET", "/metrics").body;
    let series = format!("{metric}{{reason=\"{reason}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series}")).parse().expect("a count")
}

#[test]
fn refused_connections_end_and_are_logged() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "server.key");
    let psks = scratch.join("psk");
    private(&psks, &format!("alice:{PSK}\n"));
    let nbd = scratch.join("nbd.toml");
    let configuration = format!(
        "[server.nvme]\nhandshake_timeout = \"1s\"\n\
         [server.nbd]\ntls_psk_file = {psks:?}\nhandshake_timeout = \"1s\"\n\
         [host.db1]\nnqn = \"{HOST}\"\ntls_key_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    fs::write(&nbd, &configuration).expect("the configuration can be written");
    let listeners = ["nvme-tcp://127.0.0.1:0?tls=required", "nbd://127.0.0.1:0?tls=required"];
    let secured = Server::start_with(&[], &listeners, &[text(&nbd)]);
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    let plain = Server::start_with(&[], &listeners, &[text(&nbd)]);

    // Plain text to TLS, silence in the middle of a handshake, and nonsense.
    let nvme = secured.port("nvme-tcp");
    assert!(answer_to(nvme, &nvme_initialize()).is_empty());
    answer_to(nvme, &[0x16, 3, 1, 2, 0, 1]);
    answer_to(nvme, &[&[0x16, 3, 1, 0, 4], &[0xff; 4][..]].concat());
    let tls = "flagstone_tls_failures_total";
    for reason in ["plain", "timeout", "protocol"] {
        assert_eq!(failures(&secured, tls, reason), 1, "{reason}: {}", secured.output());
    }
    // The same to NBD: GO before TLS, then a stalled and a broken handshake.
    let flags = 3_u32.to_be_bytes();
    let option = |kind: u32, data: &[u8]| {
        let length = (data.len() as u32).to_be_bytes();
        [b"IHAVEOPT", &kind.to_be_bytes()[..], &length, data].concat()
    };
    let nbd = secured.port("nbd");
    answer_to(nbd, &[&flags[..], &option(1, b"db")].concat());
    let start_tls = [&flags[..], &option(5, &[])].concat();
    answer_to(nbd, &start_tls);
    answer_to(nbd, &[&start_tls, &[0x16, 3, 1][..]].concat());
    let nbd_refusals = "flagstone_nbd_refusals_total";
    for reason in ["tls-required", "timeout", "tls-failed"] {
        assert_eq!(failures(&secured, nbd_refusals, reason), 1, "{reason}: {}", secured.output());
    }
    let log = secured.output();
    for reason in [
        "which the host does not begin",
        "the host took too long",
        "the client does not begin TLS, which is required",
        "data arrived before the answer to STARTTLS",
    ] {
        assert!(log.contains(reason), "{reason} is not in {log}");
    }
    // TLS to listeners without.
    attach(&plain, Some(&key)).expect_err("the listener has no TLS");
    assert!(failures(&plain, tls, "off") >= 1);
    let uri = format!("nbds://alice@127.0.0.1:{}/db", plain.port("nbd"));
    let uri = format!("{uri}?tls-psk-file={}", psks.display());
    let (attached, said) = flagstone(&["load", &uri, "--rw", "randread", "--ios", "1"]);
    assert!(!attached && said.contains("refuses TLS"), "{said}");
    assert_eq!(failures(&plain, nbd_refusals, "tls"), 1);
    let log = plain.output();
    assert!(log.contains("the host begins TLS, which its listener does not have"), "{log}");
    attach(&plain, None).expect("a host without TLS");
}

#[test]
fn stalled_tls_handshakes_are_bounded() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "server.key");
    let configuration = format!(
        "[server.nvme]\nhandshake_timeout = \"2s\"\n\
         [host.db1]\nnqn = \"{HOST}\"\ntls_key_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    let server = serve(&scratch, "nvme-tcp://127.0.0.1:0?tls=required", &configuration);
    attach(&server, Some(&key)).expect("a host with the key");
    let before = resident_bytes(server.pid());
    let held: Vec<_> = (0..1000)
        .map(|_| {
            let mut stream = wire::connect(server.port("nvme-tcp"));
            stream.write_all(&[0x16, 3, 1, 2, 0]).expect("the server receives");
            stream
        })
        .collect();
    let tls = "flagstone_tls_failures_total";
    let ended = || {
        let count = |reason| failures(&server, tls, reason);
        count("busy") + count("timeout") + count("closed") >= 1000
    };
    until("all stalled handshakes end", ended, || server.output());
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    assert!(failures(&server, tls, "busy") > 0);
    attach(&server, Some(&key)).expect("a host with the key");
    drop(held);
    let lines = server.output().lines().count();
    assert!(lines < 500, "{lines} lines for 1000 refusals");
}

/// Without a shorter time limit in a crowd, the places would be free after ten minutes.
#[test]
fn stalled_tls_handshakes_do_not_block_new_hosts() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "server.key");
    let configuration = format!(
        "[server.nvme]\nhandshake_timeout = \"10m\"\n\
         [host.db1]\nnqn = \"{HOST}\"\ntls_key_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    let server = serve(&scratch, "nvme-tcp://127.0.0.1:0?tls=required", &configuration);
    let held: Vec<_> = (2..6)
        .flat_map(|last| [last; 32])
        .map(|last| {
            let mut stream = wire::connect_from([127, 0, 0, last], server.port("nvme-tcp"));
            stream.write_all(&[0x16]).expect("the server receives");
            stream
        })
        .collect();
    let attached = || attach(&server, Some(&key)).is_ok();
    until("a host attaches", attached, || server.output());
    let made_room = || failures(&server, "flagstone_tls_failures_total", "timeout") > 0;
    until("a stalled handshake has ended", made_room, || server.output());
    drop(held);
}

fn reload(server: &Server) -> Answer {
    ask(&server.api(), "POST", "/v1/reload")
}

/// A key that a file withdraws must not stay in use because of another file.
#[test]
fn reload_changes_nothing_while_a_key_file_is_unusable() {
    let scratch = Scratch::new();
    let [key, other] = ["server.key", "other.key"].map(|name| generate(&scratch, name));
    let psks = scratch.join("psk");
    private(&psks, &format!("alice:{PSK}\n"));
    let configuration = format!(
        "[server.nbd]\ntls_psk_file = {psks:?}\n\
         [host.db1]\nnqn = \"{HOST}\"\ntls_key_file = {key:?}\n\
         [volume.db]\nlimit.iops = 50000\ndevice = \"memory:16MiB\"\n"
    );
    let file = scratch.join("flagstone.toml");
    fs::write(&file, &configuration).expect("the configuration can be written");
    let listeners = ["nvme-tcp://127.0.0.1:0?tls=required", "nbd://127.0.0.1:0?tls=required"];
    let server = Server::start_with(&[], &listeners, &[text(&file)]);
    let mine = scratch.join("mine.key");
    private(&mine, &fs::read_to_string(&key).expect("it can be read"));
    attach(&server, Some(&mine)).expect("the key in use");
    // Another key, other limits, and a file that others may read.
    private(&key, &fs::read_to_string(&other).expect("it can be read"));
    fs::write(&file, configuration.replace("50000", "40000")).expect("it can be written");
    fs::set_permissions(&psks, Permissions::from_mode(0o644)).expect("its mode can be set");
    let refused = reload(&server);
    assert_eq!(refused.status, 422, "{refused:?}");
    let problem = refused.json();
    assert_eq!(problem["type"], "urn:flagstone:problem:key-files");
    let unusable = problem["unusable"].as_array().expect("a list");
    let named = |path: &Path| unusable.iter().any(|one| one.to_string().contains(text(path)));
    assert!(unusable.len() == 1 && named(&psks), "{problem:#}");
    attach(&server, Some(&mine)).expect("the key that stays in use");
    let (reloaded, said) = flagstone(&["reload", "--api", text(&server.api())]);
    assert!(!reloaded && said.contains(text(&psks)), "{said}");
    // Both files are named, of which no contents are.
    fs::write(&key, "NVMeTLSkey-1:01:canary:").expect("it can be written");
    let problem = reload(&server).json();
    let said = problem.to_string();
    assert_eq!(problem["unusable"].as_array().map(Vec::len), Some(2), "{problem:#}");
    assert!(said.contains(text(&key)) && !said.contains("canary"), "{said}");
    private(&key, &fs::read_to_string(&other).expect("it can be read"));
    private(&psks, &format!("alice:{PSK}\n"));
    let (reloaded, said) = flagstone(&["reload", "--api", text(&server.api())]);
    assert!(reloaded && said.contains("1 limit changed"), "{said}");
    attach(&server, Some(&mine)).expect_err("the key that was withdrawn");
    attach(&server, Some(&other)).expect("the new key");
}

/// A client that runs on, while its key is replaced at both sides.
#[test]
fn nbd_keys_rotate_at_a_running_client() {
    let scratch = Scratch::new();
    let [old, new] = [PSK.to_owned(), PSK.replace('8', "9")];
    let (psks, own) = (scratch.join("psk"), scratch.join("own"));
    let write = |path: &Path, keys: &[&str]| {
        let lines: String = keys.iter().map(|key| format!("alice:{key}\n")).collect();
        private(path, &lines);
    };
    write(&psks, &[&old]);
    write(&own, &[&old]);
    let configuration =
        format!("[server.nbd]\ntls_psk_file = {psks:?}\n[volume.db]\ndevice = \"memory:8MiB\"\n");
    let mut server = serve(&scratch, "nbd://127.0.0.1:0?tls=required", &configuration);
    let device =
        format!("nbds://alice@127.0.0.1:{}/db?tls-psk-file={}", server.port("nbd"), own.display());
    let file = scratch.join("client.toml");
    fs::write(&file, format!("[volume.far]\ndevice = {device:?}\n")).expect("it can be written");
    let client = Server::start_with(&[], &["nbd://127.0.0.1:0"], &[text(&file)]);
    let reads = || {
        let uri = client.nbd_uri("far");
        flagstone(&["load", &uri, "--rw", "randread", "--ios", "10"]).0
    };
    until("the client serves", &reads, || client.output());
    // Both keys at the server, the new one at the client, then the new one alone at the server.
    write(&psks, &[&new, &old]);
    assert_eq!(reload(&server).status, 200);
    write(&own, &[&new]);
    assert_eq!(reload(&client).status, 200);
    write(&psks, &[&new]);
    assert_eq!(reload(&server).status, 200);
    server.kill();
    server.restart();
    until("the client is connected with its new key", &reads, || client.output());
    // A third key of one name.
    write(&psks, &[&old, &new, &old]);
    let refused = reload(&server);
    assert!(refused.status == 422 && refused.body.contains("line 3"), "{refused:?}");
    assert!(![&server, &client].iter().any(|one| one.output().contains(&new)));
}

#[test]
fn mirror_runs_only_over_tls() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "pair.key");
    let other = generate(&scratch, "other.key");
    let peer = format!("tls_key_file = {key:?}");
    let listen = "?tls=allowed";
    let setup =
        Setup { size_bytes: 16 << 20, peer: &peer, patient: true, listen, ..Setup::default() };
    let mut pair = Pair::set_up(setup).synchronized();
    for node in [0, 1] {
        let (address, port) = pair.host_address(node);
        let from = pair.name(1 - node);
        let device = format!(
            "nvme-tcp://{address}:{port}/{NQN_PREFIX}db:replica?hostnqn={NQN_PREFIX}node:{from}"
        );
        let reach = |device: &str| flagstone(&["load", device, "--rw", "read", "--ios", "1"]);
        let (reached, said) = reach(&device);
        assert!(!reached, "{said}");
        let (reached, said) = reach(&format!("{device}&tls-key-file={}", other.display()));
        assert!(!reached && said.contains("TLS failed"), "{said}");
    }
    for node in [0, 1] {
        let server = pair.node(node);
        let log = server.output();
        assert!(log.contains("the host has to use TLS"), "{log}");
        assert!(failures(server, "flagstone_tls_failures_total", "wrong-key") >= 1);
        let metrics = ask(&server.api(), "GET", "/metrics").body;
        let succeeded = metrics.lines().find_map(|line| {
            line.strip_prefix("flagstone_tls_handshakes_total ")?.parse::<u64>().ok()
        });
        assert!(succeeded > Some(0), "the link of node {node} has TLS");
        let secret = fs::read_to_string(&key).expect("it can be read");
        assert!(!log.contains(secret.trim().rsplit(':').nth(1).expect("three fields")));
    }
    pair.end(0);
}

/// The guide's way for a running pair: one node at a time, first with TLS allowed, then required.
#[test]
fn running_pair_gets_keys_and_tls() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "pair.key");
    let secret = scratch.join("pair.secret");
    let (made, said) = flagstone(&["key", "generate", text(&secret)]);
    assert!(made, "{said}");
    let setup = Setup { size_bytes: 16 << 20, listen: "?tls=allowed", ..Setup::default() };
    let mut pair = Pair::set_up(setup).synchronized();
    let change = |pair: &mut Pair, node: usize, (from, to): (&str, &str)| {
        let path = pair.file(&format!("{}.toml", pair.name(node)));
        let before = fs::read_to_string(&path).expect("it can be read");
        assert!(before.contains(from), "{before}");
        fs::write(&path, before.replace(from, to)).expect("it can be written");
        pair.restart(node);
        assert_eq!(pair.source(), 1 - node, "the other node serves on");
    };
    let demand = "tls = \"allowed\"\nauthentication = \"allowed\"\ninsecure = true\n";
    let allowed = format!("tls_key_file = {key:?}\nkey_file = {secret:?}\n{demand}");
    for step in [("insecure = true\n", &allowed[..]), (demand, "")] {
        let source = pair.source();
        change(&mut pair, 1 - source, step);
        pair.order(1 - source, "switchover", &[]);
        assert_eq!(pair.source(), 1 - source);
        change(&mut pair, source, step);
    }
    let logs = [0, 1].map(|node| pair.node(node).output());
    for part in ["TLS", "authentication"] {
        let warned = format!("connecting without {part}, as is allowed");
        assert!(logs.iter().any(|log| log.contains(&warned)), "{warned}");
    }
    assert!(logs.iter().all(|log| log.contains("insecure: anyone who takes the name")));
    let source = pair.source();
    let (address, port) = pair.host_address(1 - source);
    let from = pair.name(source);
    let device = format!(
        "nvme-tcp://{address}:{port}/{NQN_PREFIX}db:replica?hostnqn={NQN_PREFIX}node:{from}"
    );
    let reach = |query: &str| {
        flagstone(&["load", &format!("{device}{query}"), "--rw", "read", "--ios", "1"])
    };
    let (reached, said) = reach("");
    assert!(!reached, "{said}");
    let (reached, said) = reach(&format!("&tls-key-file={}", key.display()));
    assert!(!reached && said.contains("requires authentication"), "{said}");
    pair.end(source);
}

#[test]
fn tls_keys_are_those_of_nvme_cli() {
    let scratch = Scratch::new();
    let checked = |key: &str| {
        let checked = Command::new("nvme").args(["check-tls-key", "--key", key]).output();
        let output = checked.expect("nvme runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let has_nvme = have("TLS keys of nvme-cli", &["nvme"]);
    for (hmac, beginning, characters) in
        [("sha256", "NVMeTLSkey-1:01:", 48), ("sha384", "NVMeTLSkey-1:02:", 72)]
    {
        let (made, said) = flagstone(&["key", "generate", "--tls", "--hmac", hmac]);
        assert!(made && said.starts_with(beginning), "{said}");
        assert_eq!(said.trim().len(), beginning.len() + characters + 1, "{said}");
        if has_nvme {
            checked(said.trim());
        }
    }
    if has_nvme {
        for hmac in ["1", "2"] {
            let made = run("nvme", &["gen-tls-key", "--hmac", hmac]);
            let path = scratch.join(&format!("nvme-{hmac}.key"));
            private(&path, &made);
            let (known, said) = flagstone(&["key", "check", text(&path)]);
            assert!(known && said.contains("for TLS"), "{said}");
        }
    }
}

#[test]
fn keys_are_converted_between_their_forms() {
    let scratch = Scratch::new();
    let hex = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";
    // From libnvme's tests (test/psk.c).
    let tls = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let source = scratch.join("source");
    private(&source, &format!("{tls}\n"));
    let convert = |from: &Path, to: &str, more: &[&str]| {
        let (made, said) = flagstone(&[&["key", "convert", text(from), "--to", to], more].concat());
        assert!(made, "{said}");
        said.trim().to_owned()
    };
    let digits = convert(&source, "hex", &[]);
    assert_eq!(digits, hex);
    let auth = convert(&source, "auth", &[]);
    assert!(auth.starts_with("DHHC-1:01:"), "{auth}");
    // Each form leads back to the same key.
    let (of_hex, of_auth) = (scratch.join("hex"), scratch.join("auth"));
    private(&of_hex, &digits);
    private(&of_auth, &auth);
    assert_eq!(convert(&of_hex, "tls", &["--hmac", "sha256"]), tls);
    assert_eq!(convert(&of_auth, "tls", &[]), tls);
    assert_eq!(convert(&of_hex, "auth", &["--hmac", "sha256"]), auth);
    if have("keys from hexadecimal digits", &["nvme"]) {
        let secret = format!("--secret={digits}");
        let made = run("nvme", &["gen-dhchap-key", "--hmac=0", "--key-length=32", &secret]);
        assert_eq!(made.trim(), convert(&of_hex, "auth", &[]));
    }
    let out = scratch.join("out.key");
    let (made, said) = flagstone(&["key", "convert", text(&of_hex), text(&out), "--to", "tls"]);
    assert!(made, "{said}");
    assert_eq!(fs::metadata(&out).expect("a file").permissions().mode() & 0o777, 0o600);
    // A key that does not fit the form, and a file with two keys.
    let (long, two) = (scratch.join("long"), scratch.join("two"));
    private(&long, &"ab".repeat(64));
    private(&two, &format!("{tls}\n{tls}\n"));
    for (path, part) in [(&long, "32 bytes"), (&two, "holds 2 keys")] {
        let (made, said) = flagstone(&["key", "convert", text(path), "--to", "tls"]);
        assert!(!made && said.contains(part), "{said}");
    }
}

#[test]
fn identities_name_host_subsystem_and_key() {
    let scratch = Scratch::new();
    let path = scratch.join("key");
    private(&path, "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n");
    let (host, subsystem) = (HOST, "nqn.2026-01.example:db");
    let names = ["--host", host, "--subsystem", subsystem];
    let (shown, said) = flagstone(&[&["key", "identity", text(&path)], &names[..]].concat());
    let lines: Vec<&str> = said.lines().collect();
    assert!(shown && lines.len() == 3, "{said}");
    for (version, line) in ["NVMe1R01", "NVMe0R01", "NVMe1R01"].iter().zip(&lines) {
        assert!(line.starts_with(&format!("{version} {host} {subsystem}")), "{said}");
    }
    assert_ne!(lines[0], lines[2], "the derivation of libnvme before 1.14");
}

/// Certificates of an authority, a server `localhost` and a client `client-1`, as nbdcopy wants
/// them.
fn certificates(scratch: &Scratch) -> PathBuf {
    let folder = scratch.join("pki");
    fs::create_dir(&folder).expect("a new folder");
    let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let ca = ["req", "-x509", "-subj", "/CN=test authority"];
    let files = ["-keyout", &at("ca-key.pem"), "-out", &at("ca-cert.pem")];
    run("openssl", &[&ca[..], &curve, &files].concat());
    for (role, name) in [("server", "localhost"), ("client", "client-1")] {
        let subject = format!("/CN={name}");
        let alternative = format!("subjectAltName=DNS:{name}");
        let usage = format!("extendedKeyUsage={role}Auth");
        let (key, out) = (at(&format!("{role}-key.pem")), at(&format!("{role}-cert.pem")));
        let ca = ["-CA", &at("ca-cert.pem"), "-CAkey", &at("ca-key.pem")];
        let made = ["req", "-x509", "-subj", &subject, "-addext", &alternative, "-addext", &usage];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let files = ["-keyout", &key, "-out", &out];
        run("openssl", &[&made[..], &curve, &leaf, &ca, &files].concat());
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("its mode can be set");
    }
    folder
}

#[test]
fn nbd_clients_use_pre_shared_keys() {
    if !have("NBD with keys", &["nbdinfo", "nbdcopy"]) {
        return;
    }
    let scratch = Scratch::new();
    let psks = scratch.join("psk");
    private(&psks, &format!("alice:{PSK}\nbob:{}\n", PSK.replace('8', "9")));
    let configuration = format!(
        "[server.nbd]\ntls_psk_file = {psks:?}\n\
         [volume.db]\ndevice = \"memory:8MiB\"\n\
         [volume.private]\ndevice = \"memory:8MiB\"\nnbd_clients = [\"alice\"]\n"
    );
    let mut server = serve(&scratch, "nbd://127.0.0.1:0?tls=required", &configuration);
    let port = server.port("nbd");
    let uri = |user: &str, export: &str| {
        format!("nbds://{user}@127.0.0.1:{port}/{export}?tls-psk-file={}", psks.display())
    };
    let image = scratch.join("image");
    fs::write(&image, vec![7; 8 << 20]).expect("the image can be written");
    run("nbdcopy", &[text(&image), &uri("alice", "private")]);
    let back = scratch.join("back");
    run("nbdcopy", &[&uri("alice", "private"), text(&back)]);
    assert!(fs::read(&back).expect("a copy") == fs::read(&image).expect("an image"));
    run("nbdinfo", &[&uri("bob", "db")]);
    run_refused("nbdinfo", &[&uri("bob", "private")]);
    if have("qemu-img with pre-shared keys", &["qemu-img"]) {
        // QEMU wants a folder with a file of this name.
        let folder = scratch.join("qemu");
        fs::create_dir(&folder).expect("a new folder");
        fs::copy(&psks, folder.join("keys.psk")).expect("it can be copied");
        let dir = folder.display();
        let object =
            |user| format!("tls-creds-psk,id=tls0,endpoint=client,username={user},dir={dir}");
        let image = |export: &str| {
            let place = format!("driver=nbd,host=127.0.0.1,port={port},export={export}");
            format!("{place},tls-creds=tls0")
        };
        qemu_transfers(&scratch, &object("alice"), &image("private"));
        let refused = ["info", "--object", &object("bob"), "--image-opts", &image("private")];
        run_refused("qemu-img", &refused);
    }
    run_refused("nbdinfo", &[&format!("nbd://127.0.0.1:{port}/db")]);
    // This program as the client.
    let load =
        |user, export| flagstone(&["load", &uri(user, export), "--rw", "randread", "--ios", "50"]);
    assert!(load("alice", "private").0);
    let (attached, said) = load("bob", "private");
    assert!(!attached && said.contains("does not admit"), "{said}");
    server.terminate();
    assert!(!server.output().contains(PSK));
}

/// Writes data without repetitions to a volume of 8 MiB with qemu-img, and reads it back.
fn qemu_transfers(scratch: &Scratch, object: &str, image: &str) {
    let (from, back) = (scratch.join("qemu-from"), scratch.join("qemu-back"));
    let words = (0..2u32 << 20).map(|word| word.wrapping_mul(0x9e37_79b1));
    let data: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    fs::write(&from, &data).expect("it can be written");
    let convert = ["convert", "--object", object];
    let to_volume = ["-f", "raw", "-n", "--target-image-opts", text(&from), image];
    run("qemu-img", &[&convert[..], &to_volume].concat());
    run("qemu-img", &[&convert[..], &["-O", "raw", "--image-opts", image, text(&back)]].concat());
    assert!(fs::read(&back).expect("a copy") == data, "other data came back");
}

#[test]
fn nbd_clients_use_certificates() {
    if !have("NBD with certificates", &["nbdinfo", "nbdcopy", "qemu-img", "openssl"]) {
        return;
    }
    let scratch = Scratch::new();
    let folder = certificates(&scratch);
    let configuration = format!(
        "[server.nbd]\ntls_certificates = {folder:?}\ntls_verify_clients = true\n\
         [volume.db]\ndevice = \"memory:8MiB\"\nnbd_clients = [\"client-1\"]\n\
         [volume.other]\ndevice = \"memory:8MiB\"\nnbd_clients = [\"client-2\"]\n"
    );
    let broken = scratch.join("broken.toml");
    let listen = "[server]\nlisten = [\"nbd://127.0.0.1:0?tls=required\"]\n";
    fs::write(&broken, listen.to_owned() + &configuration.replace("/pki", "/nothing"))
        .expect("the configuration can be written");
    let (_, said) = flagstone(&["check", text(&broken)]);
    assert!(said.contains("warning") && said.contains("/nothing/server-key.pem"), "{said}");
    let server = serve(&scratch, "nbd://127.0.0.1:0?tls=required", &configuration);
    let port = server.port("nbd");
    let uri = |export: &str| {
        format!("nbds://localhost:{port}/{export}?tls-certificates={}", folder.display())
    };
    run("nbdinfo", &[&uri("db")]);
    run_refused("nbdinfo", &[&uri("other")]);
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", folder.display());
    let image = format!("driver=nbd,host=localhost,port={port},export=db,tls-creds=tls0");
    run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
    qemu_transfers(&scratch, &object, &image);
    let load = |export| flagstone(&["load", &uri(export), "--rw", "randread", "--ios", "50"]);
    let (attached, said) = load("db");
    assert!(attached, "{said}");
    assert!(!load("other").0);
}

struct Nbdkit(Child);

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn client_uses_an_nbdkit_with_tls() {
    if !have("nbdkit with TLS", &["nbdkit", "openssl"]) {
        return;
    }
    let scratch = Scratch::new();
    let folder = certificates(&scratch);
    let psks = scratch.join("psk");
    private(&psks, &format!("alice:{PSK}\n"));
    let by_psk = format!("--tls-psk={}", psks.display());
    let by_certificate = format!("--tls-certificates={}", folder.display());
    for (option, user, query) in [
        (by_psk, "alice@", format!("tls-psk-file={}", psks.display())),
        (by_certificate, "", format!("tls-certificates={}", folder.display())),
    ] {
        let [port]: [u16; 1] = free_ports().expect("a free port");
        let child = Command::new("nbdkit")
            .args(["-f", "--tls=require", &option, "-i", "localhost", "-p", &port.to_string()])
            .args(["memory", "8M"])
            .spawn()
            .expect("nbdkit starts");
        let _nbdkit = Nbdkit(child);
        let uri = format!("nbds://{user}localhost:{port}/?{query}");
        let attach = || {
            let (attached, output) = flagstone(&["load", &uri, "--rw", "randread", "--ios", "50"]);
            assert!(!output.contains(PSK));
            attached
        };
        until("nbdkit answers", attach, || "it does not".to_owned());
    }
}
