//! Keys with real processes: hosts of this program, a mirrored pair, rotation by reload, and a
//! search for the secrets in everything that the server says.
//!
//! Left out: Linux's own host, whose kernel here has no DH-HMAC-CHAP. `access.rs` searches the
//! memory of the server.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use flagstone_tests::tools::{have, run};
use flagstone_tests::wire;
use rustix::process::{Pid, Signal, kill_process};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

/// Output of a command, and whether it succeeded.
fn flagstone(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).args(arguments).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn generate(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.join(name);
    let (made, text) = flagstone(&["key", "generate", path.to_str().expect("UTF-8")]);
    assert!(made, "{text}");
    path
}

fn write_key(path: &Path, text: &str) {
    fs::write(path, text).expect("the file can be written");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode can be set");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the key can be read")
}

/// Reads the volume as a host with this key; its output if that fails.
fn attach(server: &Server, key: Option<&Path>) -> Result<(), String> {
    let key = key.map_or(String::new(), |key| format!("&key-file={}", key.display()));
    let device = format!("{}?hostnqn={HOST}{key}", server.nvme_uri("db"));
    match flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]) {
        (true, _) => Ok(()),
        (false, text) => Err(text),
    }
}

/// The same with TLS by secure concatenation.
fn attach_concatenated(server: &Server, key: &Path) -> Result<(), String> {
    let key = key.display();
    let device = format!(
        "{}?hostnqn={HOST}&key-file={key}&controller-key-file={key}&concat",
        server.nvme_uri("db")
    );
    match flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]) {
        (true, _) => Ok(()),
        (false, text) => Err(text),
    }
}

fn reload(server: &Server) {
    let pid = Pid::from_raw(server.pid() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("it runs");
}

#[test]
fn hosts_attach_only_with_the_right_key() {
    let scratch = Scratch::new();
    let [key, other] = ["server.key", "other.key"].map(|name| generate(&scratch, name));
    let mine = scratch.join("mine.key");
    write_key(&mine, &read(&key));
    let file = scratch.join("flagstone.toml");
    let text = format!(
        "[host.db1]\nnqn = \"{HOST}\"\nkey_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("UTF-8");
    let (checked, text) = flagstone(&["check", file]);
    assert!(checked && !text.contains("warning"), "{text}");
    let server = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0"], &[file]);

    attach(&server, Some(&mine)).expect("the right key");
    let wrong = attach(&server, Some(&other)).expect_err("a wrong key");
    assert!(wrong.contains("authentication failed"), "{wrong}");
    let missing = attach(&server, None).expect_err("no key");
    assert!(missing.contains("requires authentication"), "{missing}");
    fs::set_permissions(&other, Permissions::from_mode(0o644)).expect("its mode can be set");
    let open = attach(&server, Some(&other)).expect_err("a key that others may read");
    assert!(open.contains("chmod 600"), "{open}");
    fs::set_permissions(&other, Permissions::from_mode(0o600)).expect("its mode can be set");

    // Rotation, while a host reads.
    let device = format!("{}?hostnqn={HOST}&key-file={}", server.nvme_uri("db"), mine.display());
    let mut busy = Load::start(&device, "--rw randread --time 1h");
    write_key(&key, &format!("{}{}", read(&key), read(&other)));
    reload(&server);
    let accepted = || attach(&server, Some(&other)).is_ok();
    until("the new key is accepted", accepted, || server.output());
    attach(&server, Some(&mine)).expect("the old key");
    let socket = server.api();
    let socket = socket.to_str().expect("UTF-8");
    let (shown, status) = flagstone(&["status", "db", "--api", socket]);
    assert!(shown && status.contains("authenticated"), "{status}");
    assert!(!server.output().contains("withdrawn"), "{}", server.output());
    write_key(&key, &read(&other));
    reload(&server);
    let refused = || attach(&server, Some(&mine)).is_err();
    until("the old key is refused", refused, || server.output());
    let said = "ending: the key that the host has proven was withdrawn";
    assert!(server.output().contains(said), "{}", server.output());
    busy.kill();

    // The host is removed from the configuration.
    let other_device =
        format!("{}?hostnqn={HOST}&key-file={}", server.nvme_uri("db"), other.display());
    let mut busy = Load::start(&other_device, "--rw randread --time 1h");
    let attached = || flagstone(&["status", "db", "--api", socket]).1.contains("authenticated");
    until("the host is attached", attached, || server.output());
    fs::write(file, "[volume.db]\ndevice = \"memory:16MiB\"\n").expect("it can be written");
    reload(&server);
    let ended = || server.output().matches(said).count() == 2;
    until("its controller ends", ended, || server.output());
    attach(&server, Some(&other)).expect_err("a host that was removed");
    busy.kill();

    // Nothing that the server or the client said has a secret in it.
    let archive = scratch.join("support.tar.gz");
    let archive = archive.to_str().expect("UTF-8");
    let (made, support) =
        flagstone(&["doctor", "--support", "--archive", archive, "--api", socket]);
    let unpacked = Command::new("tar").args(["-xzOf", archive]).output().expect("tar runs");
    let unpacked = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    assert!(made && !unpacked.is_empty(), "{support}");
    let (_, json) = flagstone(&["status", "--json", "--api", socket]);
    let (_, fingerprints) = flagstone(&["key", "check", mine.to_str().expect("UTF-8")]);
    let output = server.output();
    assert!(output.contains("the host has another key"), "{output}");
    for secret in [read(&mine), read(&other)] {
        let canary = secret.trim().split(':').nth(2).expect("base64").to_owned();
        for text in
            [&output, &status, &json, &support, &unpacked, &wrong, &missing, &open, &fingerprints]
        {
            assert!(!text.contains(&canary), "a secret is in: {text}");
        }
    }
}

#[test]
fn concatenation_gives_tls_to_a_host_without_a_tls_key() {
    let scratch = Scratch::new();
    let [key, other] = ["server.key", "other.key"].map(|name| generate(&scratch, name));
    let file = scratch.join("flagstone.toml");
    let text = format!(
        "[host.db1]\nnqn = \"{HOST}\"\nkey_file = {key:?}\ncontroller_key_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n"
    );
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0?tls=allowed"], &[file]);
    attach_concatenated(&server, &key).expect("the right key");
    let output = server.output();
    assert!(output.contains("TLS PSK generated"), "{output}");
    let metrics = flagstone_tests::http::ask(&server.api(), "GET", "/metrics").body;
    let handshakes =
        metrics.lines().find(|line| line.starts_with("flagstone_tls_handshakes_total"));
    assert!(handshakes.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    let wrong = attach_concatenated(&server, &other).expect_err("a wrong key");
    assert!(wrong.contains("authentication failed"), "{wrong}");
    drop(server);

    let plain = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0"], &[file]);
    let refused = attach_concatenated(&plain, &key).expect_err("a listener without TLS");
    assert!(refused.contains("a listener with optional TLS"), "{refused}");
    assert!(plain.output().contains("a listener with optional TLS"), "{}", plain.output());
}

#[test]
fn replica_is_reached_only_by_peer_with_key() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "pair.key");
    let peer = format!("key_file = {key:?}");
    let setup = Setup { size_bytes: 16 << 20, peer: &peer, patient: true, ..Setup::default() };
    let pair = Pair::set_up(setup).synchronized();
    for node in [0, 1] {
        let (address, port) = pair.host_address(node);
        let other = pair.name(1 - node);
        let device = format!(
            "nvme-tcp://{address}:{port}/{NQN_PREFIX}db:replica?hostnqn={NQN_PREFIX}node:{other}"
        );
        let (reached, text) = flagstone(&["load", &device, "--rw", "read", "--ios", "1"]);
        assert!(!reached && text.contains("requires authentication"), "{text}");
    }
    pair.end(0);
}

#[test]
fn generated_keys_are_those_of_nvme_cli() {
    for (arguments, beginning, characters) in [
        (&["key", "generate", "--hmac", "none"][..], "DHHC-1:00:", 48),
        (&["key", "generate"][..], "DHHC-1:01:", 48),
        (&["key", "generate", "--hmac", "sha384"][..], "DHHC-1:02:", 72),
        (&["key", "generate", "--hmac", "none", "--length", "64"][..], "DHHC-1:00:", 92),
    ] {
        let (made, text) = flagstone(arguments);
        assert!(made && text.starts_with(beginning), "{text}");
        assert_eq!(text.trim().len(), beginning.len() + characters + 1, "{text}");
        let Ok(checked) =
            Command::new("nvme").args(["check-dhchap-key", "--key", text.trim()]).output()
        else {
            eprintln!("skipped: nvme-cli is not installed");
            continue;
        };
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    for length in ["0", "33", "65", "128"] {
        let (made, text) = flagstone(&["key", "generate", "--length", length]);
        assert!(!made && text.contains(&format!("32, 48 or 64 bytes, not {length}")), "{text}");
    }
    for length in ["64", "1000"] {
        let (made, text) = flagstone(&["key", "generate", "--tls", "--length", length]);
        assert!(!made && text.contains(&format!("32 or 48 bytes, not {length}")), "{text}");
    }
}

#[test]
fn keys_of_nvme_cli_are_read() {
    if !have("keys of nvme-cli", &["nvme"]) {
        return;
    }
    let scratch = Scratch::new();
    for (hmac, bits) in [("0", 256), ("1", 256), ("2", 384), ("3", 512)] {
        let path = scratch.join(&format!("hmac-{hmac}"));
        let nqn = format!("--nqn={HOST}");
        write_key(&path, &run("nvme", &["gen-dhchap-key", &format!("--hmac={hmac}"), &nqn]));
        let key = read(&path);
        assert!(key.starts_with(&format!("DHHC-1:0{hmac}:")), "another hash than {hmac}");
        let (known, text) = flagstone(&["key", "check", path.to_str().expect("UTF-8")]);
        assert!(known && text.contains(&format!("{bits} bits")), "{text}");
        let (written, text) =
            flagstone(&["key", "convert", path.to_str().expect("UTF-8"), "--to", "auth"]);
        assert!(written && text.trim() == key.trim(), "the key of hash {hmac} changed");
    }
}

/// Exchanges that begin and stall. Without a shorter time limit in a crowd, the places would be
/// free after ten minutes.
#[test]
fn stalled_exchanges_do_not_block_new_hosts() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "server.key");
    let file = scratch.join("flagstone.toml");
    let text = format!(
        "[server.nvme]\nhandshake_timeout = \"10m\"\n\
         [host.db1]\nnqn = \"{HOST}\"\nkey_file = {key:?}\n\
         [host.other]\nnqn = \"{}\"\nkey_file = {key:?}\n\
         [volume.db]\ndevice = \"memory:16MiB\"\n",
        wire::NVME_HOST
    );
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0"], &[file]);
    let connect = wire::nvme_connect(&format!("{NQN_PREFIX}db"), 0, 32);
    let held: Vec<_> = (2..6)
        .flat_map(|last| [last; 32])
        .map(|last| {
            let mut stream = wire::connect_from([127, 0, 0, last], server.port("nvme-tcp"));
            wire::nvme_open(&mut stream).expect("the server answers");
            stream.write_all(&connect).expect("the server receives");
            stream
        })
        .collect();
    until("a host attaches", || attach(&server, Some(&key)).is_ok(), || server.output());
    drop(held);
}

/// A stranger could write thousands of lines a second, and so displace audit lines in the journal.
#[test]
fn strangers_do_not_fill_the_log() {
    let scratch = Scratch::new();
    let key = generate(&scratch, "server.key");
    let file = scratch.join("flagstone.toml");
    let text = format!(
        "[host.db1]\nnqn = \"{}\"\nkey_file = {key:?}\n[volume.db]\ndevice = \"memory:16MiB\"\n",
        wire::NVME_HOST
    );
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("UTF-8");
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    let server = Server::start_with(&[], &listeners, &[file]);
    let (nvme, nbd) = (server.port("nvme-tcp"), server.port("nbd"));
    let subsystems = [format!("{NQN_PREFIX}db"), "nqn.2014-08.org.nvmexpress.discovery".to_owned()];
    for round in 0..200 {
        let mut stream = wire::connect_from([127, 0, 0, 2], nvme);
        stream.write_all(&[0x55; 128]).expect("the server receives");
        // A TermReq; the server waits for a moment until its host closes.
        stream.read_exact(&mut [0; 24]).expect("an answer");
        let mut stream = wire::connect_from([127, 0, 0, 3], nbd);
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        if round % 20 == 0 {
            for subsystem in &subsystems {
                let mut stream = wire::connect_from([127, 0, 0, 4], nvme);
                wire::nvme_open(&mut stream).expect("the server answers");
                stream.write_all(&wire::nvme_connect(subsystem, 0, 32)).expect("it receives");
                stream.read_exact(&mut [0; 24]).expect("an answer");
            }
        }
    }
    let log = server.output();
    assert!(log.lines().count() < 40, "{log}");
    assert!(log.contains("NVMe/TCP connection ended: protocol violation"), "{log}");
}
