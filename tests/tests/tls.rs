//! TLS with real processes: NVMe/TCP between two of this program; NBD with nbdcopy, nbdinfo, qemu-img
//! and nbdkit; and a search for the keys in everything that the server says.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};
use flagstone_tests::tools::{have, run, run_refused};
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

fn port_of(server: &Server) -> u16 {
    let address = server.address("nbd").split('?').next().expect("a part");
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
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
    let uri = server.nvme_uri("db").replace("?tls=required", "");
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
    let metrics = flagstone_tests::http::ask(&server.api(), "GET", "/metrics").body;
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

/// Certificates of an authority, a server `localhost` and a client `client-1`, as nbdcopy wants them.
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
    let port = port_of(&server);
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
    let server = serve(&scratch, "nbd://127.0.0.1:0?tls=required", &configuration);
    let port = port_of(&server);
    let uri = |export: &str| {
        format!("nbds://localhost:{port}/{export}?tls-certificates={}", folder.display())
    };
    run("nbdinfo", &[&uri("db")]);
    run_refused("nbdinfo", &[&uri("other")]);
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", folder.display());
    let image = format!("driver=nbd,host=localhost,port={port},export=db,tls-creds=tls0");
    run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
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
