//! Access with real processes: listeners without keys, the API over TCP, audit lines, privileges of
//! the process, and a search for secrets in everything that it writes and in its memory.

mod raw_host;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead as _, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_tests::authority::Authority;
use flagstone_tests::http::{ask, exchange, get, unix};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use flagstone_tests::{tools, wire};
use rustix::process::{Pid, Signal, kill_process};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

/// Exit status of a command, and its output.
fn flagstone(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(binary()).args(arguments).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn write_private(path: &Path, content: &str) {
    fs::write(path, content).expect("the file can be written");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode can be set");
}

#[test]
fn open_listener_does_not_start() {
    let volume = ["serve", "--volume", "db=memory:1MiB", "--api", "none"];
    let serve = |option, url| flagstone(&[&volume[..], &[option, url]].concat());
    for url in ["nvme-tcp://0.0.0.0:0", "nbd://0.0.0.0:0", "nvme-tcp://[::]:0"] {
        let (code, said) = serve("--listen", url);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("anyone who reaches"), "{said}");
        assert!(said.contains(&format!("--listen-insecure {url}")), "{said}");
    }
}

#[test]
fn check_explains_what_needs_no_key() {
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    let config = format!(
        "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420\", \
         {{ url = \"nbd://0.0.0.0:1\", insecure = true }}]\n\
         metrics = \"0.0.0.0:9469\"\n[host.h]\nnqn = \"{HOST}\"\nkey_file = \"/no/key\"\n\
         [peer.b]\naddress = \"10.0.0.2\"\ninsecure = true\n\
         [volume.db]\nmirror.peer = \"b\"\ndevice = \"/no/disk\"\n"
    );
    fs::write(&file, config).expect("it can be written");
    let (code, said) = flagstone(&["check", text(&file)]);
    assert_eq!(code, Some(0), "{said}");
    let (_, json) = flagstone(&["check", "--json", text(&file)]);
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let warnings = report["warnings"].as_array().expect("a list");
    for part in [
        "key file /no/key: ",
        "insecure: anyone who reaches nbd://0.0.0.0:1 can use all volumes",
        "insecure: anyone who reaches the metrics (0.0.0.0:9469) can read names",
        "insecure: anyone who takes the name or address of peer b (10.0.0.2",
    ] {
        assert!(said.contains(part), "{part}: {said}");
        let is_there = |one: &serde_json::Value| {
            one["severity"] == "warning"
                && one["message"].as_str().is_some_and(|one| one.contains(part))
        };
        assert_eq!(warnings.iter().filter(|one| is_there(one)).count(), 1, "{part}: {json}");
    }
}

#[test]
fn insecure_listener_is_announced() {
    let listeners = ["nbd://127.0.0.1:0", "nvme-tcp://0.0.0.0:0"];
    let [port] = flagstone_lab::ports::free_ports().expect("a port is free");
    let open = format!("0.0.0.0:{port}");
    let server = Server::start_with(&["db=memory:1MiB"], &listeners, &["--metrics", &open]);
    let socket = server.api();
    let listener = server.address("nvme-tcp");
    let consequence = format!("anyone who reaches {listener} can use volume `db`");
    assert!(server.output().contains(&format!("insecure: {consequence}")), "{}", server.output());
    let (_, status) = flagstone(&["status", "--api", text(&socket)]);
    assert!(status.contains(&format!("insecure: {consequence}")), "{status}");
    let document = get(&socket, "/v1/");
    assert_eq!(document["insecure"].as_array().map(Vec::len), Some(2), "{document}");
    assert_eq!(document["insecure"][1]["kind"], "metrics", "{document}");
    assert!(server.output().contains("insecure: anyone who reaches the metrics"));
    let metrics = ask(&socket, "GET", "/metrics").body;
    for (kind, name, value) in
        [("listener", listener, 1), ("listener", server.address("nbd"), 0), ("metrics", &open, 1)]
    {
        let line = format!("flagstone_insecure{{kind=\"{kind}\",name=\"{name}\"}} {value}");
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
}

/// Makes the token `name.token`, and the file `name.hash` for the server.
fn token(scratch: &Scratch, name: &str) -> (PathBuf, PathBuf) {
    let token = scratch.join(&format!("{name}.token"));
    let hash = scratch.join(&format!("{name}.hash"));
    let (code, line) = flagstone(&["key", "token", text(&token)]);
    assert_eq!(code, Some(0), "{line}");
    write_private(&hash, &line);
    (token, hash)
}

/// A server with the API over TCP: an operator and a reader with tokens, and one with a
/// certificate.
struct Api {
    scratch: Scratch,
    server: Server,
    url: String,
    ca: PathBuf,
}

impl Api {
    fn start(more: &str) -> Api {
        Api::listening(&["nvme-tcp://127.0.0.1:0?tls=allowed"], more)
    }

    fn listening(listen: &[&str], more: &str) -> Api {
        let scratch = Scratch::new();
        let authority = Authority::new(&scratch);
        let (certificate, key) = authority.issue("api", "IP:127.0.0.1");
        authority.issue("carol", "DNS:carol.example.com");
        authority.issue("mallory", "DNS:mallory.example.com");
        let (_, operator) = token(&scratch, "alice");
        let (_, reader) = token(&scratch, "bob");
        token(&scratch, "stranger");
        let ca = authority.ca();
        let file = scratch.join("flagstone.toml");
        let config = format!(
            "[server.api_tls]\nlisten = \"127.0.0.1:0\"\ncertificate_file = {certificate:?}\n\
             key_file = {key:?}\nclient_ca_file = {ca:?}\n\
             [api_user.alice]\nrole = \"operator\"\ntoken_file = {operator:?}\n\
             [api_user.bob]\ntoken_file = {reader:?}\n\
             [api_user.carol]\nrole = \"operator\"\ncertificate_name = \"carol.example.com\"\n\
             [volume.db]\nlimit.iops = 100\ndevice = \"memory:8MiB\"\n{more}"
        );
        fs::write(&file, config).expect("it can be written");
        let mut server = Server::start_with(&[], listen, &[text(&file)]);
        let url = format!("https://{}", server.printed_after("API on https://"));
        Api { scratch, server, url, ca }
    }

    /// Runs a command as the user of a token.
    fn with_token(&self, command: &[&str], user: &str) -> (Option<i32>, String) {
        let token = self.scratch.join(&format!("{user}.token"));
        self.run(command, &["--token-file", text(&token)])
    }

    /// Runs a command as the user of a certificate.
    fn with_certificate(&self, command: &[&str], user: &str) -> (Option<i32>, String) {
        let file = |end: &str| self.scratch.join(&format!("{user}.{end}"));
        let [certificate, key] = ["pem", "key"].map(file);
        let own = ["--certificate-file", text(&certificate), "--certificate-key-file", text(&key)];
        self.run(command, &own)
    }

    fn run(&self, command: &[&str], own: &[&str]) -> (Option<i32>, String) {
        let server = ["--api", &self.url, "--ca-file", text(&self.ca)];
        flagstone(&[command, &server, own].concat())
    }

    fn reload(&self) {
        let pid = Pid::from_raw(self.server.pid() as i32).expect("a process");
        kill_process(pid, Signal::HUP).expect("it runs");
    }
}

const STATUS: [&str; 2] = ["status", "db"];

/// An order that changes nothing here.
const ORDER: [&str; 4] = ["mirror", "pause", "none", "--dry-run"];

#[test]
fn api_over_tcp_admits_users_by_role() {
    if !tools::have("api_over_tcp_admits_users_by_role", &["openssl"]) {
        return;
    }
    let api = Api::start("");
    for (user, order) in [("alice", "there is no volume"), ("bob", "needs `operator`")] {
        let (code, said) = api.with_token(&STATUS, user);
        assert!(code == Some(0) && said.contains("volume db"), "{user}: {said}");
        let (code, said) = api.with_token(&ORDER, user);
        assert!(code == Some(1) && said.contains(order), "{user}: {said}");
    }
    let (code, said) = api.with_certificate(&STATUS, "carol");
    assert!(code == Some(0) && said.contains("volume db"), "{said}");
    for (refused, part) in [
        (api.run(&STATUS, &[]), "send a token"),
        (api.with_token(&STATUS, "stranger"), "no user has this token"),
        (api.with_certificate(&STATUS, "mallory"), "no user has a name of this certificate"),
        // The certificate of another authority than the client trusts.
        (flagstone(&["status", "--api", &api.url]), "certificate"),
        (flagstone(&["status", "--token-file", "/x", "--api", "/y"]), "needs no token"),
    ] {
        let (code, said) = refused;
        assert!(code != Some(0) && said.contains(part), "{part}: {said}");
    }
    let metrics = ask(&api.server.api(), "GET", "/metrics").body;
    for (reason, count) in [("no-proof", 1), ("token", 1), ("certificate", 1), ("role", 1)] {
        let line = format!("flagstone_api_refusals_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // Bytes other than TLS get no answer.
    let address = api.url.strip_prefix("https://").expect("TLS");
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
    let request = b"GET /v1/ HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = exchange(wire::connect(port.expect("a port")), request);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn reload_replaces_users_of_the_api() {
    if !tools::have("reload_replaces_users_of_the_api", &["openssl"]) {
        return;
    }
    let api = Api::start("");
    let [alice, new] = ["alice.hash", "stranger.hash"].map(|name| api.scratch.join(name));
    let lines = [&alice, &new].map(|path| fs::read_to_string(path).expect("it is there")).concat();
    let is_admitted = |user: &str| api.with_token(&STATUS, user).0 == Some(0);
    write_private(&alice, &lines);
    api.reload();
    until("the new token is accepted", || is_admitted("stranger"), || api.server.output());
    assert!(is_admitted("alice"), "the old one is, too");
    fs::copy(&new, &alice).expect("it can be written");
    api.reload();
    until("the old token is refused", || !is_admitted("alice"), || api.server.output());
    // Nothing changes if a file cannot be used.
    fs::set_permissions(&alice, Permissions::from_mode(0o644)).expect("its mode can be set");
    api.reload();
    let said = || api.server.output().contains("nothing was changed: token file");
    until("the file is refused", said, || api.server.output());
    assert!(is_admitted("stranger"));
}

#[test]
fn orders_leave_audit_lines() {
    if !tools::have("orders_leave_audit_lines", &["openssl"]) {
        return;
    }
    let api = Api::start("");
    let socket = api.server.api();
    api.with_token(&ORDER, "alice");
    api.with_token(&ORDER, "bob");
    api.with_certificate(&STATUS, "carol");
    flagstone(&[&ORDER[..], &["--api", text(&socket)]].concat());
    let log = api.server.output();
    let lines = log.lines().filter(|line| line.contains(" audit: ") && !line.contains("bob"));
    let (begun, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(": begun "));
    assert_eq!(begun.len(), lines.len(), "{log}");
    let uid = format!("who=\"uid {} gid", rustix::process::getuid().as_raw());
    let expected = [("who=\"alice (operator)\"", "from=\"127.0.0.1:"), (&uid, "from=\"user ")];
    assert_eq!(lines.len(), expected.len(), "{log}");
    for (line, (who, from)) in lines.iter().zip(expected) {
        for part in
            [who, from, "POST /v1/volumes/none/mirror/pause: Not found", "dry_run", "status=404"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

/// Lines of refused orders are limited for each user, so that none is lost here.
#[test]
fn refused_orders_leave_audit_lines() {
    if !tools::have("refused_orders_leave_audit_lines", &["openssl"]) {
        return;
    }
    let api = Api::start("");
    for _ in 0..13 {
        api.with_token(&ORDER, "bob");
    }
    api.with_token(&["reload"], "stranger");
    let post = |path: &str, length: u32| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        let head = format!("{head}Content-Length: {length}\r\n\r\n");
        let answer = exchange(unix(&api.server.api()), head.as_bytes());
        String::from_utf8_lossy(&answer).get(9..12).map(str::to_owned)
    };
    let (missing, large) = (post("/v1/nothing", 0), post("/v1/volumes", 2 << 20));
    assert_eq!((missing.as_deref(), large.as_deref()), (Some("404"), Some("413")));
    let log = api.server.output();
    let uid = format!("uid {} gid", rustix::process::getuid().as_raw());
    let pause = "POST /v1/volumes/none/mirror/pause";
    for (who, from, what, status, count) in [
        ("bob (read-only)", "127.0.0.1:", &format!("{pause}: The caller may not do this"), 403, 13),
        ("unknown", "127.0.0.1:", &"POST /v1/reload: The caller is not known".to_owned(), 401, 1),
        (&uid, "user ", &"POST /v1/nothing: Not found".to_owned(), 404, 1),
        (&uid, "user ", &"POST /v1/volumes: The body is too large".to_owned(), 413, 1),
    ] {
        let parts = [
            format!("who=\"{who}"),
            format!("from=\"{from}"),
            format!(" audit: {what}"),
            format!("status={status}"),
        ];
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        let found = log.lines().filter(has_all).count();
        assert_eq!(found, count, "{parts:?}: {log}");
    }
}

/// The field of `/proc/PID/status`.
fn status_field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = status.lines().find_map(|line| line.strip_prefix(name));
    field.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

#[test]
fn server_drops_privileges() {
    let server = Server::start(&["db=memory:1MiB"]);
    let pid = server.pid();
    // CAP_DAC_OVERRIDE is number 1, CAP_NET_BIND_SERVICE number 10.
    let is_root = rustix::process::geteuid().is_root();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let threads: Vec<String> =
        threads.map(|one| one.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(threads.len() > 1, "{threads:?}");
    for thread in threads {
        let thread: u32 = thread.parse().expect("a number");
        let capabilities =
            |name: &str| u64::from_str_radix(&status_field(thread, name), 16).expect("a number");
        assert_eq!(status_field(thread, "NoNewPrivs:"), "1");
        for set in ["CapEff:", "CapPrm:"] {
            let held = capabilities(set);
            assert_eq!(held & !0x402, 0, "{set} {held:x}");
            assert_eq!(held != 0, is_root, "{set} {held:x}");
        }
        assert_eq!((capabilities("CapInh:"), capabilities("CapAmb:")), (0, 0));
        if is_root {
            assert_eq!(capabilities("CapBnd:") & !0x402, 0);
        }
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let cores = limits.lines().find(|line| line.starts_with("Max core file size"));
    let cores = cores.expect("a limit").split_whitespace().collect::<Vec<_>>();
    assert_eq!(cores[4..6], ["0", "0"], "{limits}");
}

#[test]
fn core_dumps_are_off_unless_asked() {
    let test = "core_dumps_are_off_unless_asked";
    if !rustix::process::geteuid().is_root() || tools::find("setpriv").is_none() {
        return tools::unable(test, "only root with setpriv starts a process of another user");
    }
    // The kernel gives the files of a process that is not dumpable to root.
    const OTHER_USER: u32 = 65534;
    let program = Scratch::new();
    let copy = program.join("flagstone");
    // Another process writes it: a fork of a test beside this one could inherit a file that is open
    // for writing, and Linux does not execute such a file.
    let copied = Command::new("cp").arg(binary()).arg(&copy).status().expect("cp runs");
    assert!(copied.success(), "the program can be copied");
    let folder = program.join("cores");
    fs::create_dir(&folder).expect("a new folder");
    for (path, mode) in [(program.path(), 0o755), (&copy, 0o755), (&folder, 0o777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode can be set");
    }
    for (options, owner) in [(&[][..], 0), (&["--core-dumps"], OTHER_USER)] {
        let [port] = flagstone_lab::ports::free_ports().expect("a port is free");
        let listen = format!("nbd://127.0.0.1:{port}");
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh", "setpriv"])
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .current_dir(&folder)
            .args(["serve", "--volume", "db=memory:1MiB", "--api", "none", "--listen", &listen])
            .args(options)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("setpriv runs");
        let mut line = [0; 12];
        let read = child.stdout.as_mut().expect("a pipe").read_exact(&mut line);
        let entry = fs::metadata(format!("/proc/{}/mem", child.id())).map(|entry| entry.uid());
        // A real attempt. Not SIGSEGV, which Rust's handler takes once.
        let pid = Pid::from_raw(child.id() as i32).expect("a process");
        kill_process(pid, Signal::ABORT).expect("it runs");
        let ended = child.wait().expect("it ends");
        read.expect("it serves");
        assert_eq!(entry.expect("it runs"), owner, "{options:?}");
        assert_eq!(ended.signal(), Some(6), "{ended}");
        if options.is_empty() {
            let files = fs::read_dir(&folder).expect("it is there").count();
            assert!(!ended.core_dumped() && files == 0, "{ended}, {files} files");
        } else if !ended.core_dumped() {
            tools::unable(test, "this machine dumps no core at all");
        }
    }
}

/// True if `bytes` has `pattern`. The library's search for a byte is compiled with optimization,
/// and `windows` is not.
fn has(bytes: &[u8], pattern: &[u8]) -> bool {
    let mut at = 0;
    loop {
        let skipped = (&bytes[at..]).skip_until(pattern[0]).expect("memory can be read");
        if skipped == 0 {
            return false;
        }
        at += skipped;
        if bytes[at - 1..].starts_with(pattern) {
            return true;
        }
    }
}

/// Returns true if the writable memory of a process has `pattern`; `None` if it cannot be read.
fn memory_has(pid: u32, pattern: &[u8]) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut memory = OpenOptions::new().read(true).open(format!("/proc/{pid}/mem")).ok()?;
    let mut is_read = false;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let (start, end) = (start.ok()?, end.ok()?);
        let mut bytes = vec![0; (end - start) as usize];
        memory.seek(SeekFrom::Start(start)).ok()?;
        if memory.read_exact(&mut bytes).is_ok() {
            is_read = true;
            if has(&bytes, pattern) {
                return Some(true);
            }
        }
    }
    is_read.then_some(false)
}

const NBD_PSK: &str = "8f1d2c3b4a5968778695a4b3c2d1e0ff8f1d2c3b4a5968778695a4b3c2d1e0ff";

#[test]
fn secrets_stay_out_of_every_output() {
    if !tools::have("secrets_stay_out_of_every_output", &["openssl", "tar"]) {
        return;
    }
    let keys = Scratch::new();
    let [right, wrong, pair] = ["right.key", "wrong.key", "pair.key"].map(|name| {
        let path = keys.join(name);
        let (code, said) = flagstone(&["key", "generate", text(&path)]);
        assert_eq!(code, Some(0), "{said}");
        path
    });
    let for_tls = keys.join("tls.key");
    let (code, made) = flagstone(&["key", "generate", "--tls", text(&for_tls)]);
    assert_eq!(code, Some(0), "{made}");
    let psks = keys.join("nbd.psk");
    write_private(&psks, &format!("alice:{NBD_PSK}\n"));
    let disk = keys.disk("mirrored.disk", 8 << 20);
    let listen = ["nvme-tcp://127.0.0.1:0?tls=allowed", "nbd://127.0.0.1:0?tls=allowed"];
    let more = format!(
        "[server.nbd]\ntls_psk_file = {psks:?}\n[server]\nnode = \"a\"\n\
         [peer.b]\naddress = \"127.0.0.1:1\"\nkey_file = {pair:?}\n\
         [volume.mirrored]\nmirror.peer = \"b\"\ndevice = {disk:?}\n\
         [host.h]\nnqn = \"{HOST}\"\nkey_file = {right:?}\ntls_key_file = {for_tls:?}\n\
         [host.without_tls_key]\nnqn = \"nqn.2026-01.test:keyless\"\nkey_file = {right:?}\n\
         controller_key_file = {right:?}\n\
         [host.by_hand]\nnqn = \"{}\"\nkey_file = {right:?}\ncontroller_key_file = {right:?}\n",
        wire::NVME_HOST
    );
    let api = Api::listening(&listen, &more);
    let socket = api.server.api();
    let nbd = api.server.port("nbd");
    let mut said = String::new();
    for key in [&right, &wrong] {
        let uri = api.server.nvme_uri("db");
        let device = format!("{uri}?hostnqn={HOST}&key-file={}", key.display());
        said += &flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]).1;
    }
    let device =
        format!("{}?hostnqn={HOST}&tls-key-file={}", api.server.nvme_uri("db"), for_tls.display());
    said += &flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]).1;
    let device = format!("nbds://alice@127.0.0.1:{nbd}/db?tls-psk-file={}", psks.display());
    let (code, read) = flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]);
    assert_eq!(code, Some(0), "{read}");
    said += &read;
    // A host whose TLS key is generated.
    let device = format!(
        "{}?hostnqn=nqn.2026-01.test:keyless&key-file={key}&controller-key-file={key}&concat",
        api.server.nvme_uri("db"),
        key = right.display()
    );
    let (code, concatenated) = flagstone(&["load", &device, "--rw", "randread", "--ios", "50"]);
    assert_eq!(code, Some(0), "{concatenated}");
    said += &concatenated;
    let right_key = fs::read_to_string(&right).unwrap();
    let port = api.server.port("nvme-tcp");
    let psk = raw_host::generate_psk(port, &format!("{NQN_PREFIX}db"), &right_key);
    for user in ["alice", "stranger"] {
        said += &api.with_token(&["status", "db", "--json"], user).1;
        said += &api.with_token(&ORDER, user).1;
    }
    for path in ["/v1/", "/v1/volumes", "/metrics", "/v1/openapi.json"] {
        said += &ask(&socket, "GET", path).body;
    }
    let file = api.scratch.join("flagstone.toml");
    said += &flagstone(&["check", text(&file)]).1;
    said += &flagstone(&["check", "--json", text(&file)]).1;
    said += &flagstone(&["key", "check", text(&right), text(&for_tls)]).1;
    // A key and a token in the wrong place.
    let canaries =
        [&right, &wrong, &for_tls, &pair].map(|path| fs::read_to_string(path).unwrap()).to_vec();
    let tokens = ["alice", "stranger"]
        .map(|user| fs::read_to_string(api.scratch.join(&format!("{user}.token"))).unwrap());
    for canary in canaries.iter().chain(&tokens) {
        let broken = api.scratch.join("broken.toml");
        let line = canary.trim();
        let config =
            format!("[host.h]\nkey_file = \"{line}\"\n[api_user.u]\ntoken_file = \"{line}\"\n");
        fs::write(&broken, config).unwrap();
        said += &flagstone(&["check", text(&broken)]).1;
        write_private(&broken, &format!("{line}x"));
        said += &flagstone(&["key", "check", text(&broken)]).1;
        said += &flagstone(&["key", "check", line]).1;
        said += &flagstone(&["load", &format!("nvme-tcp://h/n?key-file={line}")]).1;
        said += &flagstone(&["status", "--api", "https://127.0.0.1:1", "--token-file", line]).1;
    }
    let archive = api.scratch.join("support.tar.gz");
    let support = ["doctor", "--support", "--archive", text(&archive), "--config", text(&file)];
    said += &flagstone(&[&support[..], &["--api", text(&socket)]].concat()).1;
    let unpacked = Command::new("tar").args(["-xzOf", text(&archive)]).output().expect("tar runs");
    assert!(unpacked.stdout.len() > 1000, "{unpacked:?}");
    said += &String::from_utf8_lossy(&unpacked.stdout);
    said += &api.server.output();
    for canary in canaries.iter().chain(&tokens) {
        // The prefix is no secret; the rest is not even there in parts.
        let secret = canary.trim().trim_end_matches(':').rsplit([':', '-']).next().unwrap();
        for part in [&secret[..16], &secret[secret.len() - 16..]] {
            let line = said.lines().find(|line| line.contains(part));
            assert!(line.is_none(), "{}", line.unwrap_or_default());
        }
    }
    // The bytes of keys, in every form, and other secrets that the server read.
    let private_key = fs::read_to_string(api.scratch.join("api.key")).unwrap();
    let line = private_key.lines().nth(1).expect("PEM");
    assert!(!said.contains(line));
    let converted = [&right, &wrong, &for_tls, &pair]
        .map(|path| flagstone(&["key", "convert", text(path), "--to", "hex"]).1);
    for digits in converted.iter().map(|digits| digits.trim()).chain([NBD_PSK]) {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let forms = raw_host::forms(&bytes);
        for written in [said.as_bytes(), &unpacked.stdout] {
            let leak = raw_host::leaked(written, &forms);
            assert!(leak.is_none(), "the bytes of a key were written: {leak:?}");
        }
    }
    let forms = raw_host::forms(&psk.secret);
    for written in [said.as_bytes(), &unpacked.stdout, &fs::read(&archive).unwrap()] {
        let leak = raw_host::leaked(written, &forms);
        assert!(leak.is_none(), "a generated PSK was written: {leak:?}");
    }
    // This is the server's PSK: it has it in memory, as long as it is valid, and nowhere as text.
    assert_ne!(memory_has(api.server.pid(), &psk.secret), Some(false), "another PSK");
    for text in forms.iter().filter(|form| form.is_ascii()) {
        assert_ne!(memory_has(api.server.pid(), text), Some(true), "a PSK is in memory as text");
    }
    // A core has what memory has: the text of a key is erased after it was read.
    let of_key = |key: usize| canaries[key].trim().rsplit(':').nth(1).unwrap();
    for secret in [of_key(0), of_key(2), of_key(3), NBD_PSK, line] {
        match memory_has(api.server.pid(), secret.as_bytes()) {
            None => tools::unable("secrets in memory", "another process's memory cannot be read"),
            Some(found) => assert!(!found, "the text of a key is in memory"),
        }
    }
    let control = memory_has(api.server.pid(), HOST.as_bytes());
    assert_ne!(control, Some(false), "the search finds what is in memory");
}
