//! `flagstone bench` as its users and their scripts see it: with a fio of our own that does what is
//! asked, breaks or fails, and once with the real one over NBD.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use flagstone_bench::os::Interrupt;
use flagstone_bench::precondition::is_served_filled;

/// A fio that measures nothing: each measurement is 1 IOPS better than the one before, from what
/// `iops` beside it says. `fail-at` holds the number of the measurement that fails, `break-at` of
/// the one that prints broken JSON, `hang-at` of the one that does not end.
const FAKE_FIO: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$*" in
*--version*) cat "$here/version"; exit 0 ;;
*name=probe*|*name=fill*) exit 0 ;;
esac
count=$(($(cat "$here/count") + 1))
echo "$count" >"$here/count"
is_at() { [ -f "$here/$1" ] && [ "$(cat "$here/$1")" = "$count" ]; }
if is_at fail-at; then echo "fio: it went up in smoke" >&2; exit 1; fi
if is_at break-at; then echo '{"fio version": "fio-3.33", "jobs": [{"read": {'; echo "oh dear" >&2; exit 0; fi
if is_at hang-at; then echo >"$here/hanging"; exec sleep 1000; fi
iops=$(($(cat "$here/iops") + count))
side="{\"io_bytes\": $((iops * 4096)), \"total_ios\": $iops, \"iops\": $iops, \"bw_bytes\": $((iops * 4096)), \"runtime\": 1000,
\"lat_ns\": {\"min\": 100, \"max\": 90000, \"mean\": $((1000000000 / iops)), \"stddev\": 5, \"N\": $iops,
\"bins\": {\"1000\": $((iops - 1)), \"80000\": 1}}}"
echo "{\"fio version\": \"fio-3.33\", \"jobs\": [{\"jobname\": \"j\", \"error\": 0, \"read\": $side}]}"
"#;

/// A directory with the fake fio, in which commands are run.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let bench = Bench { directory };
        bench.say("fio", FAKE_FIO);
        fs::set_permissions(bench.path("fio"), fs::Permissions::from_mode(0o755)).expect("a mode");
        bench.say("version", "fio-3.33");
        bench.say("count", "0");
        bench.say("iops", "1000");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn say(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it can be written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
        command
            .arg("bench")
            .args(line.split_whitespace())
            .current_dir(self.directory.path())
            .env("FIO", self.path("fio"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the program runs")
    }

    /// Runs it and expects an exit code; gives what it printed.
    fn ends(&self, line: &str, code: i32) -> (String, String) {
        let output = self.run(line);
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{line}\n{out}\n{errors}");
        (out, errors)
    }

    fn results(&self, run: &str) -> Vec<serde_json::Value> {
        let lines = self.read(&format!("{run}/results.jsonl"));
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints text")
}

#[test]
fn a_run_a_list_a_comparison_and_a_report() {
    let bench = Bench::new();
    let (out, errors) = bench.ends("run quick a=./x b=./y --size 1m --results r", 0);
    assert!(out.contains("medians of n repetitions") && out.contains("randwrite-4k"), "{out}");
    assert!(!out.contains("IOPS by size"), "of a suite that measures it: {out}");
    assert!(errors.contains("results are in r"), "{errors}");
    let results = bench.results("r");
    assert_eq!(results.len(), 4 * 4 * 2);
    assert_eq!(results[0]["iops"], 1001.0);
    assert_eq!(results[0]["nature"].as_str().map(|n| n == "real" || n == "memory"), Some(true));
    for file in ["r/campaign.json", "r/environment.json", "r/raw/read-1m.1.3.json"] {
        assert!(bench.path(file).is_file(), "{file}");
    }

    let (listed, _) = bench.ends("list .", 0);
    assert!(listed.contains("provisioned-iops") && listed.contains("./r"), "{listed}");
    let (suite, _) = bench.ends("list --suite mirror", 0);
    assert!(suite.contains("name = \"mirror\""), "{suite}");
    bench.ends("list --suite none", 2);

    let (compared, _) = bench.ends("compare r --format markdown", 0);
    assert!(
        compared.contains("| job | ") && compared.contains("no difference shown (p = "),
        "{compared}"
    );
    assert!(compared.contains("% would be)"), "what it could have shown: {compared}");

    let (out, errors) = bench.ends("report r -o page.html --files files", 0);
    assert!(out.is_empty() && errors.contains("the report is page.html"), "{errors}");
    let html = bench.read("page.html");
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(html.contains("flagstone bench run quick a=./x b=./y --repetitions=4"));
    for file in ["summary.md", "summary.csv", "by-job-1.svg", "by-job-1.png", "latency-read-1m.svg"]
    {
        assert!(bench.path("files").join(file).is_file(), "{file}");
    }
    let (page, _) = bench.ends("report r -o -", 0);
    assert_eq!(page, html);
    let (_, errors) = bench.ends("report none", 1);
    assert!(errors.contains("none"), "{errors}");
}

#[test]
fn iops_by_size_are_told_at_the_end_of_a_run_and_by_a_comparison() {
    let bench = Bench::new();
    let line = "run provisioned-iops small=./s large=./l --size 20m --results r --repetitions 4";
    let (out, _) = bench.ends(line, 0);
    let title = "IOPS by size (0.75 IOPS a GB is a standard persistent disk's)\n";
    let (_, table) = out.split_once(title).unwrap_or_else(|| panic!("{out}"));
    let rows: Vec<Vec<&str>> =
        table.lines().take(3).map(|row| row.split_whitespace().collect()).collect();
    assert!(rows[0].starts_with(&["on", "job", "size,", "GB", "IOPS"]), "{table}");
    // The fake's figures go up from 1,001, and the two take turns: the medians differ.
    assert!(rows[1][0].starts_with("small") && rows[2][0].starts_with("large"), "{table}");
    assert!(rows[1..].iter().all(|row| row.contains(&"read-iops") && row.contains(&"0.02")));
    let (compared, _) = bench.ends("compare r", 0);
    assert_eq!(compared, out, "a comparison of the run says what the run said");
    let (csv, _) = bench.ends("compare r --format csv", 0);
    assert!(csv.contains("on,job,\"size, GB\",IOPS,IOPS a GB,"), "{csv}");
    bench.ends("report r -o page.html --files files", 0);
    let (markdown, _) = bench.ends("compare r --format markdown", 0);
    assert!(markdown.contains(&bench.read("files/by-size.md")), "the report's own: {markdown}");
}

#[test]
fn emulated_targets_are_marked_from_then_on() {
    let bench = Bench::new();
    let line = "run quick a=./x lab=./y --size 1m --results r --repetitions 1 --emulated";
    bench.ends(&format!("{line} none"), 2);
    assert!(!bench.path("r").exists(), "nothing was done");
    let (out, _) = bench.ends(&format!("{line} lab"), 0);
    assert!(out.contains("lab [EMULATED]"), "{out}");
    assert!(
        bench.results("r").iter().all(|r| (r["nature"] == "emulated") == (r["target"] == "lab"))
    );
    let (compared, _) = bench.ends("compare r --format csv", 0);
    assert!(compared.contains("lab [EMULATED]"), "{compared}");
    bench.ends("report r", 0);
    assert!(bench.read("report.html").contains("lab is EMULATED"));
    bench.say(
        "stack.toml",
        "[server]\nlisten = [\"nbd://127.0.0.1:0\"]\n[volume.v]\ndevice = \"x\"\n",
    );
    let (_, errors) = bench.ends("run quick ./x --stack stack.toml --dry-run", 2);
    assert!(errors.contains("no target is one of its volumes"), "{errors}");
    let (_, errors) = bench.ends("run quick ./x --stack broken.toml --dry-run", 1);
    assert!(errors.contains("broken.toml"), "{errors}");
}

#[test]
fn a_fio_that_fails_or_breaks_is_quoted_and_nothing_is_lost() {
    for (how, said) in [("fail-at", "it went up in smoke"), ("break-at", "oh dear")] {
        let bench = Bench::new();
        bench.say(how, "6");
        let (_, errors) = bench.ends("run quick ./x --size 1m --results r", 1);
        assert!(errors.contains(said) && errors.contains("fio --"), "with the command: {errors}");
        let go_on = "what was measured is in r; go on with: flagstone bench resume r\n";
        assert!(errors.contains(go_on), "{errors}");
        assert_eq!(bench.results("r").len(), 5);
        let (_, errors) = bench.ends("run quick ./x --size 1m --results r", 2);
        assert!(errors.contains("has results already"), "{errors}");
        // The next is the seventh.
        let (out, _) = bench.ends("resume r", 0);
        assert!(out.contains("randwrite-4k"), "{out}");
        assert_eq!(bench.results("r").len(), 16);
    }
}

#[test]
fn a_run_that_measured_nothing_leaves_nothing() {
    let bench = Bench::new();
    bench.say("fail-at", "1");
    let (_, errors) = bench.ends("run quick ./x --size 1m", 1);
    assert!(
        errors.contains("nothing was measured") && !errors.contains("bench-results"),
        "{errors}"
    );
    let runs = || fs::read_dir(bench.path("bench-results")).expect("it is there").count();
    assert_eq!(runs(), 0);
    let (_, errors) = bench.ends("run quick ./huge --size 1048576t", 2);
    assert!(errors.contains("./huge of ") && errors.contains("does not fit"), "{errors}");
    assert!(!bench.path("huge").exists() && !bench.path("huge.flagstone-bench").exists());
    assert_eq!(runs(), 0);
    // Many of them begin in the same second.
    for run in 1..=4 {
        bench.ends("run quick ./x --size 1m --repetitions 1", 0);
        assert_eq!(runs(), run);
    }
}

#[test]
fn a_fio_that_is_missing_or_old_says_what_to_install() {
    let bench = Bench::new();
    bench.say("version", "fio-2.16");
    let (_, errors) = bench.ends("run quick ./x --results r", 1);
    assert!(errors.contains("fio-2.16 is too old") && errors.contains("fio-3.12"), "{errors}");
    fs::remove_file(bench.path("fio")).expect("it was there");
    for line in ["run quick ./x --results r", "diskspd -r ./x"] {
        let (_, errors) = bench.ends(line, 1);
        assert!(errors.contains("apt install fio"), "{errors}");
    }
    assert!(!bench.path("r").exists() && !bench.path("x").exists(), "nothing was done");
}

#[test]
fn data_is_never_destroyed_by_surprise() {
    let bench = Bench::new();
    bench.say("precious", "data");
    for line in [
        "run quick ./precious --results r",
        "diskspd -r -w1 ./precious",
        "diskspd -c1M -r ./precious",
    ] {
        let (_, errors) = bench.ends(line, 2);
        assert!(
            errors.contains("bench did not make") && errors.contains("--destroy-data=./precious"),
            "{errors}"
        );
    }
    let (_, errors) = bench.ends("run quick ./precious --results r --destroy-data precious", 2);
    assert!(errors.contains("no target has this disk"), "the exact name: {errors}");
    assert_eq!(bench.read("precious"), "data");
    assert!(!bench.path("r").exists());
    bench.ends("run quick ./precious --results r --destroy-data ./precious --no-precondition", 0);
    // Consent is for one run.
    bench.say("r/results.jsonl", "");
    bench.say("precious", "more data");
    bench.ends("resume r", 2);
    bench.ends("resume r --destroy-data ./precious", 0);
}

#[test]
fn an_interrupted_run_goes_on() {
    let bench = Bench::new();
    bench.say("hang-at", "4");
    let mut command = bench.command("run quick ./x --size 1m --results r");
    let mut running =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for(&bench.path("hanging"), &mut running);
    signal(&running, "INT");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(4));
    let errors = text(&output.stderr);
    assert!(errors.contains("interrupted; go on with: flagstone bench resume r"), "{errors}");
    assert_eq!(bench.results("r").len(), 3);
    bench.ends("resume r", 0);
    assert_eq!(bench.results("r").len(), 16);
    let (_, errors) = bench.ends("resume none", 1);
    assert!(errors.contains("none/campaign.json"), "{errors}");
}

#[test]
fn slower_ends_with_its_own_code() {
    let bench = Bench::new();
    bench.ends("run quick t=./x --size 1m --results fast", 0);
    bench.say("iops", "500");
    bench.ends("run quick t=./x --size 1m --results slow", 0);
    let (out, errors) = bench.ends("compare fast slow --fail-if-slower 5%", 5);
    assert!(
        out.contains("differs (p = 0.029)") && errors.contains("flagstone: slower: IOPS of"),
        "{out}{errors}"
    );
    bench.ends("compare slow fast --fail-if-slower 5%", 0);
    bench.ends("compare fast slow --fail-if-slower 200%", 0);
    bench.ends("compare fast --fail-if-slower 5%", 2);
    bench.ends("report fast slow -o both.html", 0);
    assert!(bench.read("both.html").contains("fewer IOPS"));

    let (_, errors) =
        bench.ends("run quick a=./x b=./y --size 1m --results few --repetitions 3", 0);
    assert!(errors.contains("3 repetitions of each can never show"), "{errors}");
    let (_, errors) = bench.ends("compare few --fail-if-slower 5%", 1);
    assert!(errors.contains("too few repetitions") && errors.contains("4 of each"), "{errors}");
}

#[test]
fn results_that_are_broken_are_named_with_their_line() {
    let bench = Bench::new();
    bench.ends("run quick ./x --size 1m --results r --repetitions 1", 0);
    let lines = bench.read("r/results.jsonl");
    bench.say("r/results.jsonl", &lines.replacen("\"iops\":1002", "\"iops\":\"many\"", 1));
    for command in ["compare", "report"] {
        let (_, errors) = bench.ends(&format!("{command} r"), 1);
        assert!(errors.contains("r/results.jsonl:2: "), "{errors}");
    }
    bench.say("r/results.jsonl", "");
    let (_, errors) = bench.ends("report r", 2);
    assert!(errors.contains("has no results"), "{errors}");
}

#[test]
fn a_dry_run_does_nothing() {
    let bench = Bench::new();
    let (out, _) = bench.ends("run mirror a=./x b=nvme-tcp://h/n --dry-run", 0);
    assert!(
        out.contains("# 64k on a\n") && out.contains("[64k]\n") && out.contains("sync=dsync"),
        "{out}"
    );
    assert!(out.contains("flagstone load nvme-tcp://h/n"), "{out}");
    let (out, _) =
        bench.ends("diskspd --dry-run -c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat", 0);
    assert!(
        out.starts_with("# fio ") && out.contains("\nnumjobs=8\n") && out.contains("\nbs=65536\n"),
        "{out}"
    );
    assert!(!bench.path("x").exists() && !bench.path("data.dat").exists());
    assert_eq!(bench.read("count"), "0");
}

#[test]
fn diskspd_command_lines() {
    let bench = Bench::new();
    let line = "diskspd -c1M -d1 -W0 -r -o4 -b4K -L -C5 ./x";
    let (out, errors) = bench.ends(line, 0);
    assert!(out.contains("Command Line: diskspd -c1M -d1 -W0 -r -o4 -b4K -L -C5 ./x\n"), "{out}");
    assert!(
        out.contains("\nTotal IO\nthread |") && out.contains("Total latency distribution:"),
        "{out}"
    );
    assert!(errors.contains("warning: -C: fio has no cool-down"), "{errors}");
    let (out, _) = bench.ends("diskspd -c1M -d1 -W0 -r -Rxml ./x", 0);
    assert!(out.starts_with("<Results>") && out.contains("<ReadCount>1002</ReadCount>"), "{out}");
    // -h is diskspd's own, wherever it stands.
    let (out, _) = bench.ends("diskspd -h -Rp -r ./x", 0);
    assert!(out.contains("\t\tsoftware cache disabled\n"), "{out}");
    let (_, errors) = bench.ends("diskspd -h", 2);
    assert!(errors.contains("a target is missing") && errors.contains("--help"), "{errors}");
    assert!(bench.ends("diskspd --help", 0).0.contains("Usage: flagstone bench diskspd"));
    let (out, _) = bench.ends("diskspd -Rp -r -t8 ./x", 0);
    assert!(out.contains("threads per file: 8"), "{out}");
    for (line, part) in [
        ("diskspd -si ./x", "-si: threads that share"),
        ("diskspd -q ./x", "-q: diskspd has no such flag"),
        ("diskspd -r", "a target is missing"),
        ("diskspd -r ./none", "does not exist: -c<size> creates it"),
    ] {
        let (_, errors) = bench.ends(line, 2);
        assert!(errors.contains(part), "{line}: {errors}");
    }
    bench.say("fail-at", "3");
    let (out, errors) = bench.ends(line, 1);
    assert!(out.is_empty() && errors.contains("it went up in smoke"), "{errors}");
}

/// Until a file is there: something has happened in a process that is running.
#[allow(
    clippy::disallowed_methods,
    reason = "it waits for another process, outside of any executor"
)]
fn wait_for(path: &Path, running: &mut Child) {
    while !path.exists() {
        let ended = running.try_wait().expect("it can be looked at");
        assert!(ended.is_none(), "it ended before: {ended:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(killed.expect("kill runs").success());
}

/// A server that ends when it goes out of scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of four volumes of memory, `a` to `d`, and its addresses over NBD and NVMe/TCP.
/// Writes to the first 1 MiB alone.
const PART: &str = r#"name = "part"
title = "a part"
[defaults]
ramp = "0s"
runtime = "100ms"
size = "1m"
[[job]]
name = "write"
rw = "randwrite"
"#;

fn served() -> (Server, String, String) {
    served_with_api("none")
}

fn served_with_api(api: &str) -> (Server, String, String) {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    serve.args(["serve", "--cores", "1", "--api", api]);
    serve.args(["a", "b", "c", "d"].map(|name| format!("--volume={name}=memory:16MiB")));
    serve.args(["--listen", "nbd://127.0.0.1:0", "--listen", "nvme-tcp://127.0.0.1:0"]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let server = Server(child);
    let addresses: Vec<String> = lines
        .by_ref()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
        .take(2)
        .collect();
    let of = |scheme: &str| addresses.iter().find(|a| a.starts_with(scheme)).expect("it listens");
    let (nbd, nvme) = (of("nbd://").clone(), of("nvme-tcp://").clone());
    (server, nbd, nvme)
}

fn has_nbd() -> bool {
    let engine = Command::new("fio").arg("--enghelp=nbd").output();
    let has = engine.is_ok_and(|o| o.status.success() && text(&o.stdout).contains("uri"));
    if !has {
        eprintln!("SKIPPED: there is no fio here, or it has no nbd engine");
    }
    has
}

/// What a served volume is made of is asked of its server, where that is on this machine.
#[test]
fn a_server_is_asked_what_its_volumes_are() {
    let bench = Bench::new();
    bench.say("part.toml", PART);
    let socket = bench.directory.path().join("api");
    let (_server, _, nvme) = served_with_api(socket.to_str().expect("UTF-8"));
    let nvme = format!("{nvme}/nqn.2026-01.io.flagstone:a");
    let line = format!(
        "run ./part.toml t={nvme} --repetitions 1 --initiator flagstone --destroy-data {nvme} --api"
    );
    bench.ends(&format!("{line} {} --results r", socket.display()), 0);
    assert_eq!(bench.results("r")[0]["nature"], "memory");
    assert!(bench.read("r/campaign.json").contains("devices memory:16MiB"));
    let (_, said) = bench.ends(&format!("{line} {}x --results s", socket.display()), 2);
    assert!(said.contains("no server answers"), "{said}");
}

/// Every kind of job of every suite, short: what a job needs of a target, such as its size, is there
/// for served volumes too.
#[test]
fn every_suite_runs_over_nbd() {
    if !has_nbd() {
        return;
    }
    let bench = Bench::new();
    let (_server, nbd, _) = served();
    for suite in [
        "quick",
        "latency",
        "sweep",
        "mirror",
        "fabric",
        "provisioned-iops",
        "gcp-pd",
        "gcp-local-ssd",
    ] {
        // Fewer of what differs in a number alone.
        let (jobs, _) = bench.ends(&format!("list --suite {suite}"), 0);
        let jobs = jobs
            .replace("\"16k\", \"64k\", \"256k\", ", "")
            .replace("[1, 4, 16, 64]", "[1, 64]")
            .replace("[1, 32, 128]", "[128]")
            .replace("[1, 2, 3, 4]", "[1, 4]");
        bench.say("suite.toml", &jobs);
        let disks: Vec<String> = match suite {
            "fabric" => ["a", "b", "c", "d"].map(|name| format!("{nbd}/{name}")).into(),
            _ => vec![format!("{nbd}/a")],
        };
        let consent: String = disks.iter().map(|disk| format!(" --destroy-data {disk}")).collect();
        let line = format!(
            "run ./suite.toml t={} --ramp 0s --runtime 100ms --repetitions 1 --results {suite}{consent}",
            disks.join(",")
        );
        let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{suite}: {}", text(&output.stderr));
        let results = bench.results(suite);
        assert!(!results.is_empty());
        for result in &results {
            assert!(result["iops"].as_f64() > Some(0.0), "{suite}: {result}");
            let server = &result["measurement"]["server"];
            assert_eq!(server["program"], "flagstone", "{suite}: the server is on this machine");
        }
        let environment: serde_json::Value =
            serde_json::from_str(&bench.read(&format!("{suite}/environment.json"))).expect("JSON");
        assert_eq!(environment["disks"][&disks[0]]["size_bytes"], 16 << 20, "{suite}");
        assert!(text(&output.stdout).contains("server, of one CPU"), "{suite}");
        let warned = text(&output.stderr).contains("has no durable writes");
        assert_eq!(warned, matches!(suite, "mirror" | "latency"), "{suite}");
    }
}

#[test]
fn the_real_fio_over_nbd_and_our_generator_over_nvme_tcp() {
    if !has_nbd() {
        return;
    }
    let bench = Bench::new();
    let (_server, nbd, nvme) = served();
    let (nbd, nvme) = (format!("{nbd}/a"), format!("{nvme}/nqn.2026-01.io.flagstone:a"));
    bench.say(
        "stack.toml",
        "[server]\nlisten = [\"nbd://127.0.0.1:0\"]\n[volume.a]\ndevice = \"memory:16MiB\"\n",
    );
    let line = format!(
        "run quick nbd={nbd} nvme={nvme} --runtime 100ms --repetitions 1 --results r --stack stack.toml \
         --destroy-data {nbd} --destroy-data {nvme} --initiator flagstone"
    );
    let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results = bench.results("r");
    assert_eq!(results.len(), 8);
    for result in &results {
        assert!(result["iops"].as_f64() > Some(0.0), "{result}");
        assert!(result["latency_p99_us"].as_f64() > Some(0.0), "{result}");
        assert_eq!(result["nature"], "memory", "the stack says so");
        let tool = result["tool"].as_str().expect("text");
        assert_eq!(tool == "flagstone load", result["target"] == "nvme", "{tool}");
    }
    bench.ends("report r", 0);
    assert!(bench.read("report.html").contains("nbd [MEMORY]"));
    // All jobs of the page but its fill, also those whose threads begin at increments.
    let line = format!(
        "run gcp-pd nvme={nvme} --ramp 0s --runtime 100ms --repetitions 1 --results page \
         --destroy-data {nvme} --initiator flagstone"
    );
    bench.ends(&line, 0);
    assert_eq!(bench.results("page").len(), 8);
    // What holds nothing is filled before it is measured, through fio or our own generator, also
    // where what is measured does not reach.
    bench.say("part.toml", PART);
    for initiator in ["nbd", "nvme"] {
        let (_another, nbd, nvme) = served();
        let fresh = match initiator {
            "nbd" => format!("{nbd}/a"),
            _ => format!("{nvme}/nqn.2026-01.io.flagstone:a"),
        };
        let is_filled = || is_served_filled(&fresh, &Interrupt::never()).expect("it can be read");
        assert!(!is_filled(), "{fresh}");
        let line = format!(
            "run ./part.toml {initiator}={fresh} --repetitions 1 --results {initiator} \
             --destroy-data {fresh} --initiator flagstone"
        );
        let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(is_filled(), "{fresh}");
    }
}
