//! Command line of the program: arguments, output and exit statuses.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::{Command, Output, Stdio};

use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};
use flagstone_tests::tools;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SIZE_BYTES: u64 = 8 << 20;

fn flagstone(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("running {command:?}: {error}"))
}

/// Runs the program, which must exit with `code`. Returns its standard output and error.
#[track_caller]
fn expect(code: i32, arguments: &[&str]) -> (String, String) {
    let output = flagstone(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{printed}\n{said}");
    (printed, said)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}

#[test]
fn version_names_the_commit() {
    let (printed, _) = expect(0, &["--version"]);
    let rest = printed.trim_end().strip_prefix("flagstone ").expect(&printed);
    let (version, commit) = rest.split_once(' ').expect(&printed);
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let commit = commit.strip_prefix('(').and_then(|commit| commit.strip_suffix(')'));
    let commit = commit.expect(&printed);
    let hex = commit.trim_end_matches("-dirty");
    let is_commit = hex.len() >= 7 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{printed}");
    if tools::workspace().join(".git").exists() && tools::find("git").is_some() {
        assert!(is_commit, "built in a checkout, and does not know of which commit: {printed}");
    }
}

#[test]
fn completions_are_valid_shell_scripts() {
    for (shell, marks) in [
        ("bash", ["-F _clap_complete_flagstone", "FLAGSTONE_COMPLETE=\"bash\""]),
        ("zsh", ["#compdef flagstone", "FLAGSTONE_COMPLETE=\"zsh\""]),
        ("fish", ["complete --keep-order", "FLAGSTONE_COMPLETE=fish"]),
    ] {
        let (printed, _) = expect(0, &["completions", shell]);
        for mark in marks {
            assert!(printed.contains(mark), "{shell}: no {mark} in:\n{printed}");
        }
        // The shell itself checks the script, if installed.
        if tools::find(shell).is_some() {
            let scratch = Scratch::new();
            let script = scratch.join("script");
            fs::write(&script, &printed).unwrap();
            tools::run(shell, &["-n", script.to_str().unwrap()]);
        }
    }
    expect(2, &["completions", "tcsh-of-old"]);
}

/// Completions of fish for a command line whose last word is incomplete.
fn completed(words: &[&str]) -> Vec<String> {
    let mut command = Command::new(binary());
    command.env("FLAGSTONE_COMPLETE", "fish").args(["--", "flagstone"]).args(words);
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn completions_know_options_volumes_and_nodes() {
    let scratch = Scratch::new();
    let [a, b] = ["a", "b"].map(|name| scratch.disk(name, SIZE_BYTES));
    let text = format!(
        "[server]\nnode = \"north\"\n[peer.south]\naddress = \"127.0.0.1:1\"\n\
         [volume.data]\nmirror = {{ peer = \"south\" }}\ndevice = {a:?}\n\
         [volume.logs]\ndevice = {b:?}\n"
    );
    let file = scratch.join("config.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let server = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0"], &[file]);
    let api = server.api();
    let api = api.to_str().unwrap();
    assert_eq!(completed(&["load", "--after-c"]), ["--after-crash"]);
    assert_eq!(completed(&["mirror", "pause", "--api", api, ""])[..2], ["data", "logs"]);
    assert_eq!(completed(&["status", "--api", api, "lo"]), ["logs"]);
    assert_eq!(completed(&["mirror", "pause", "--api", api, "--peer", ""]), ["south"]);
    assert_eq!(completed(&["mirror", "switchover", "--api", api, "--to", ""]), ["north", "south"]);
    let nowhere = scratch.join("none.sock");
    let without = completed(&["mirror", "pause", "--api", nowhere.to_str().unwrap(), "lo"]);
    assert!(without.is_empty(), "{without:?}");
}

/// A server that accepts and never answers must not hang the shell.
#[test]
fn completion_does_not_wait_for_a_hanging_server() {
    let scratch = Scratch::new();
    let socket = scratch.join("api.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(completed(&["status", "--api", socket.to_str().unwrap(), "d"]).is_empty());
}

#[test]
fn support_archive_includes_the_running_server() {
    let server = Server::start(&["db=memory:1MiB"]);
    let (scratch, api) = (Scratch::new(), server.api());
    let archive = scratch.join("a.tar.gz");
    let [archive, api] = [&archive, &api].map(|path| path.to_str().unwrap());
    let (printed, _) =
        expect(0, &["doctor", "--support", "--archive", archive, "--api", api, "--json"]);
    let files = json(&printed)["files"].as_array().unwrap().clone();
    let listing = tools::run("tar", &["-tzf", archive]);
    for name in ["server/server.json", "server/volumes.json", "server/metrics.txt"] {
        assert!(files.iter().any(|file| file["name"] == name), "{name}: {printed}");
        assert!(listing.lines().any(|line| line.ends_with(name)), "{name}: {listing}");
    }
    let volumes = tools::run("tar", &["-xzOf", archive, "--wildcards", "*/server/volumes.json"]);
    assert_eq!(json(&volumes)["volumes"][0]["name"], "db");
}

/// Runs the program on a terminal on which `answers` are typed, and returns its exit status and
/// what the terminal shows.
fn on_terminal(arguments: &[&str], answers: &str) -> (Option<i32>, String) {
    let line = [&[binary().to_str().unwrap()], arguments].concat().join(" ");
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--echo", "never", "--command", &line, "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), answers.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn init_asks_on_a_terminal() {
    if !tools::have("init_asks_on_a_terminal", &["script"]) {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.join("db.toml");
    let path = file.to_str().unwrap();
    let answers = "/dev/sdb\nnode-b=10.0.0.2\nnode-a=10.0.0.1\npd-ssd 500GB n2-standard-8\n\
                   nqn.2026-01.io.example:h\n";
    let (code, shown) = on_terminal(&["init", path], answers);
    assert_eq!(code, Some(0), "{shown}");
    let text = fs::read_to_string(&file).unwrap();
    for part in
        ["device = \"/dev/sdb\"", "[peer.node-b]", "[host.host]", "node = \"node-a\"", "\"pd-ssd\""]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // No consent by default.
    for (answer, code) in [("n\n", 2), ("\n", 2), ("y\n", 0)] {
        let arguments = ["init", path, "--device", "/dev/sdc"];
        let (ended, shown) = on_terminal(&arguments, answer);
        assert_eq!(ended, Some(code), "{answer:?}: {shown}");
        assert!(shown.contains("replace it? [y/N]"), "{shown}");
        assert_eq!(fs::read_to_string(&file).unwrap() == text, code == 2, "{answer:?}");
    }
}

#[test]
fn invalid_command_lines_exit_with_2() {
    let scratch = Scratch::new();
    let disk = scratch.pattern("disk", SIZE_BYTES);
    let before = fs::read(&disk).unwrap();
    let disk = disk.to_str().unwrap();
    for arguments in [
        &["serve"][..],
        &["sreve"],
        &[],
        &["serve", "--volume", "db"],
        &["serve", "--volume", &format!("db={disk}"), "--listen", "nvme-tcp://nowhere"],
        &["serve", "--volume", &format!("db={disk}"), "--buffer-memory", "1MiB"],
        &["load", disk],
        &["load", disk, "--rw", "randwrite", "--bs", "1000"],
        &["load", disk, "--rw", "randwrite", "--after-crash", "server"],
        &["load", disk, "--rw", "randwrite", "--verify", "--size", "16MiB"],
        &["check"],
    ] {
        let (printed, said) = expect(2, arguments);
        assert_eq!(printed, "", "{arguments:?}");
        assert!(!said.is_empty(), "{arguments:?} says why");
    }
    assert!(fs::read(disk).unwrap() == before, "the disk was written to");
}

#[test]
fn failures_exit_with_1() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing");
    let missing = missing.to_str().unwrap();
    let (_, said) = expect(1, &["load", missing, "--rw", "randread", "--ios", "1"]);
    assert!(said.contains(missing), "{said}");
    let volume = format!("db={missing}");
    let (_, said) = expect(1, &["serve", "--volume", &volume, "--listen", "nbd://127.0.0.1:0"]);
    assert!(said.contains(missing), "{said}");
    // Address of a stopped server, whose port is not in use.
    let mut server = Server::start(&["db=memory:8MiB"]);
    let targets = [server.nvme_uri("db"), server.nbd_uri("db")];
    let unknown = [server.nvme_uri("dbx"), server.nbd_uri("dbx")];
    for target in &unknown {
        let (_, said) = expect(1, &["load", target, "--rw", "randread", "--ios", "1"]);
        assert!(!said.is_empty(), "{target}");
    }
    server.kill();
    for target in &targets {
        let (_, said) = expect(1, &["load", target, "--rw", "randread", "--ios", "1"]);
        assert!(!said.is_empty(), "{target}");
    }
}

#[test]
fn configuration_file_is_checked_and_served() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", SIZE_BYTES);
    let file = scratch.join("flagstone.toml");
    let text = format!(
        "[server]\nlisten = [\"nvme-tcp://127.0.0.1:0\", \"nbd://127.0.0.1:0\"]\ncores = 1\n\
         [volume.db]\ndevice = \"{}\"\nblock_size = 512\n\
         [volume.scratch]\ndevice = \"memory:16MiB\"\nread_only = true\n\
         [subsystem.both]\nnamespaces = [\"db\", \"scratch\"]\n",
        disk.display()
    );
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (printed, _) = expect(0, &["check", file]);
    assert!(printed.contains("ok: 2 volumes, 1 subsystem, 2 addresses"), "{printed}");
    let report = json(&expect(0, &["check", file, "--json"]).0);
    assert_eq!(report["ok"], true, "{report:#}");

    // A volume of the command line in addition to the file's volumes.
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    let server = Server::start_with(&["extra=memory:8MiB"], &listeners, &[file]);
    for (target, blocks) in [
        (format!("{}?nsid=1", server.nvme_uri("both")), 512),
        (server.nbd_uri("db"), 512),
        (server.nvme_uri("extra"), 4096),
        (server.nbd_uri("extra"), 4096),
    ] {
        let line = "--rw randrw --ios 500 --depth 8 --verify";
        let results = Load::start(&target, line).wait().assert_complete();
        assert_eq!(results["device"]["size_bytes"], SIZE_BYTES, "{target}: {results:#}");
        assert_eq!(results["device"]["block_bytes"], blocks, "{target}: {results:#}");
    }
    // Which of two namespaces is meant has to be said.
    let ended = Load::start(&server.nvme_uri("both"), "--rw randread --ios 1").wait();
    assert!(ended.log.contains("several namespaces: add nsid=N"), "{}", ended.log);
    // A read-only volume.
    let target = server.nbd_uri("scratch");
    Load::start(&target, "--rw randread --ios 100").wait().assert_complete();
    let ended = Load::start(&target, "--rw randwrite --ios 100").wait();
    assert!(matches!(ended.code, Some(1 | 2)), "{}\n{:#}", ended.log, ended.results);
}

#[test]
fn invalid_configuration_is_explained() {
    let scratch = Scratch::new();
    let file = scratch.join("wrong.toml");
    fs::write(&file, "[server]\nlisen = []\ncores = 0\n[volume.db]\ndevice = \"nul:1GiB\"\n")
        .unwrap();
    let file = file.to_str().unwrap();
    let (printed, said) = expect(2, &["check", file]);
    assert_eq!(printed, "");
    for part in ["wrong.toml:2:1", "did you mean `listen`?", "wrong.toml:3:9", "wrong.toml:5:10"] {
        assert!(said.contains(part), "no {part} in:\n{said}");
    }
    let report = json(&expect(2, &["check", file, "--json"]).0);
    assert_eq!(report["ok"], false, "{report:#}");
    assert_eq!(report["mistakes"].as_array().map(Vec::len), Some(3), "{report:#}");
    // `serve` reports the same.
    assert_eq!(expect(2, &["serve", file]).1, said);
    expect(2, &["check", scratch.join("missing.toml").to_str().unwrap()]);
}

#[test]
fn load_of_a_file_reports_text_and_json() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", SIZE_BYTES);
    let disk = disk.to_str().unwrap();
    let line = ["load", disk, "--rw", "randrw", "--ios", "1000", "--depth", "4", "--seed", "7"];
    let (printed, _) = expect(0, &line);
    for part in ["complete", "IOPS", "p99", "read", "write"] {
        assert!(printed.contains(part), "no {part} in:\n{printed}");
    }
    // The first load wrote to the file.
    let (_, refused) = expect(2, &line);
    let found = format!("{disk} is not written to: a file of ");
    assert!(refused.contains(&found) && refused.contains("--destroy-data="), "{refused}");
    let again = [&line[..], &["--json", "--destroy-data", disk]].concat();
    let results = json(&expect(0, &again).0);
    assert_eq!(results["schema_version"], 1, "{results:#}");
    assert_eq!(results["outcome"], "complete", "{results:#}");
    assert_eq!(results["total"]["ios"], 1000, "{results:#}");
    assert_eq!(results["total"]["bytes"], 1000 * 4096, "{results:#}");
    assert_eq!(results["device"]["size_bytes"], SIZE_BYTES, "{results:#}");
    assert_eq!(results["job"]["seed"], 7, "{results:#}");
    let by_kind = results["operations"].as_array().expect("a list").iter();
    let sum: u64 = by_kind.map(|kind| kind["ios"].as_u64().expect("a count")).sum();
    assert_eq!(sum, 1000, "{results:#}");
}

#[test]
fn load_with_trim_frees_file_space() {
    let scratch = Scratch::new();
    let disk = scratch.pattern("disk", SIZE_BYTES);
    let path = disk.to_str().unwrap();
    let count = (SIZE_BYTES >> 21).to_string();
    let line = ["load", path, "--rw", "trim", "--bs", "1m", "--ios", &count, "--json"];
    let before = fs::read(&disk).unwrap();
    expect(2, &line);
    expect(2, &[&line[..], &["--destroy-data", "/another"]].concat());
    assert!(fs::read(&disk).unwrap() == before, "a file with data is not written to");
    let (printed, _) = expect(0, &[&line[..], &["--destroy-data", path]].concat());
    let operations = json(&printed)["operations"].clone();
    assert_eq!(operations[0]["operation"], "trim", "{operations:#}");
    assert_eq!(operations[0]["bytes"], SIZE_BYTES / 2, "{operations:#}");
    let (bytes, half) = (fs::read(&disk).unwrap(), SIZE_BYTES as usize / 2);
    assert!(bytes[..half].iter().all(|byte| *byte == 0) && bytes[half..] != vec![0; half]);
    let held = fs::metadata(&disk).unwrap().blocks() * 512;
    assert!(held <= SIZE_BYTES / 2 + (1 << 20), "{held}");
    expect(2, &["load", path, "--rw", "trim", "--verify", "--ios", "1", "--destroy-data", path]);
}

#[test]
fn interrupted_load_exits_with_4_and_reports() {
    let scratch = Scratch::new();
    let (disk, state) = (scratch.disk("disk", SIZE_BYTES), scratch.join("state"));
    let line = "--rw randwrite --time 1h --depth 4";
    let mut load = Load::start_verified(disk.to_str().unwrap(), line, &state);
    load.wait_for_records(&state, 100);
    let pid = Pid::from_raw(load.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = load.wait();
    assert_eq!(ended.code, Some(4), "{}\n{:#}", ended.log, ended.results);
    assert_eq!(ended.results["outcome"], "stopped", "{:#}", ended.results);
    assert!(ended.results["total"]["ios"].as_u64() >= Some(100), "{:#}", ended.results);
}

/// Purpose of a check after a crash: it detects a block that differs from the flushed content, over
/// every path to it.
#[test]
fn corruption_before_the_check_exits_with_3() {
    const BLOCK_BYTES: usize = 4096;
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", SIZE_BYTES);
    let (path, state) = (disk.to_str().unwrap(), scratch.join("state"));
    // Writes all blocks twice, in order, so the flushed content of each is its last write.
    let line = "--rw write --ios 4096 --depth 16 --flush-every 64";
    Load::start_verified(path, line, &state).wait().assert_complete();
    let check = |target: &str, side: &str| {
        let line = format!("--rw read --depth 8 --after-crash {side}");
        Load::start_verified(target, &line, &state).wait()
    };
    for side in ["client", "server"] {
        assert_eq!(check(path, side).assert_complete()["verify"]["blocks_checked"], 2048);
    }

    let file = File::options().read(true).write(true).open(&disk).unwrap();
    let original = fs::read(&disk).unwrap();
    let block = |number: usize| &original[number * BLOCK_BYTES..][..BLOCK_BYTES];
    let mut torn = block(9).to_vec();
    torn[512..1024].fill(0x5A);
    for (kind, number, damaged) in [
        ("lost", 3, vec![0; BLOCK_BYTES]),
        ("misplaced", 5, block(6).to_vec()),
        ("corrupt", 7, vec![0x5A; BLOCK_BYTES]),
        ("torn", 9, torn),
    ] {
        let offset = number * BLOCK_BYTES;
        file.write_all_at(&damaged, offset as u64).unwrap();
        file.sync_all().unwrap();
        let server = Server::start(&[&format!("db={path}")]);
        let targets = [server.nvme_uri("db"), server.nbd_uri("db")];
        let mut ended: Vec<_> = targets.iter().map(|target| check(target, "server")).collect();
        drop(server);
        ended.push(check(path, "client"));
        for ended in ended {
            let verify = &ended.results["verify"];
            assert_eq!(ended.code, Some(3), "{kind}: {}\n{verify:#}", ended.log);
            assert_eq!(ended.results["outcome"], "verify_failed", "{kind}: {verify:#}");
            assert_eq!(verify["violations"], 1, "{kind}: {verify:#}");
            assert_eq!(verify["first"][0]["offset_bytes"], offset, "{kind}: {verify:#}");
            assert_eq!(verify["first"][0]["kind"], kind, "{verify:#}");
        }
        file.write_all_at(block(number), offset as u64).unwrap();
        file.sync_all().unwrap();
    }
    check(path, "server").assert_complete();
}

/// A remote volume is judged by its contents, as a device is.
#[test]
fn load_guards_remote_volumes_with_data() {
    let server = Server::start(&["db=memory:4MiB"]);
    for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
        let line = ["load", &target, "--rw", "write", "--bs", "64k", "--ios", "64"];
        if target == server.nvme_uri("db") {
            expect(0, &line);
        }
        let (_, said) = expect(2, &line);
        assert!(said.contains("it is not zero") && said.contains("--destroy-data="), "{said}");
        expect(0, &["load", &target, "--rw", "read", "--ios", "1"]);
        expect(2, &[&line[..], &["--destroy-data", "other"]].concat());
        expect(0, &[&line[..], &["--destroy-data", &target]].concat());
    }
}

/// Data is found wherever it lies: the server knows which parts of the file were written.
#[test]
fn load_and_bench_find_data_far_from_the_start() {
    let scratch = Scratch::new();
    let path = scratch.disk("far", 1 << 30);
    let server = Server::start(&[&format!("far={}", path.display())]);
    let nbd = server.nbd_uri("far");
    expect(0, &["load", &nbd, "--rw", "write", "--bs", "4k", "--ios", "1", "--offset", "500m"]);
    for line in [
        &["load", &nbd, "--rw", "write", "--bs", "2m", "--ios", "300"][..],
        &["bench", "run", "quick", &nbd][..],
    ] {
        let (_, said) = expect(2, line);
        let names_it = said.contains(&format!("--destroy-data={nbd}"));
        assert!(names_it && said.contains("byte 524288"), "{said}");
    }
}
