//! Mirror commands of an operator and their results: nothing unintended is done, and exit statuses
//! inform scripts.

use std::process::{Child, Command, Output, Stdio};

use flagstone_tests::http::ask;
use flagstone_tests::mirror::{Pair, VOLUME};
use flagstone_tests::process::until;
use flagstone_tests::server::binary;

const SIZE_BYTES: u64 = 32 << 20;

fn command(pair: &mut Pair, node: usize, line: &str) -> Command {
    let (action, more) = line.split_once(' ').unwrap_or((line, ""));
    let mut command = Command::new(binary());
    command.args(["mirror", action, VOLUME, "--api"]).arg(pair.node(node).api());
    command.args(more.split_whitespace());
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Starts a watched verify, at the configured speed.
fn watched(pair: &mut Pair, line: &str) -> Child {
    let verify = command(pair, 0, line).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let verify = verify.expect("the program can be started");
    let runs = || pair.status(0)["verify"]["running"] == true;
    until("the verify runs", runs, String::new);
    verify
}

/// A mistyped log device may be any disk.
#[test]
fn log_is_not_created_over_other_content() {
    let pair = Pair::start(SIZE_BYTES, "");
    let log = pair.file("node-a.intent");
    let precious = vec![b'x'; 1 << 20];
    std::fs::write(&log, &precious).expect("there is room");
    for dry in [&["--source", "--dry-run"][..], &["--source"]] {
        let said = pair.try_order(0, "create", dry).expect_err("something is there");
        assert!(said.contains("node-a.intent would overwrite"), "{said}");
        assert!(std::fs::read(&log).expect("it exists") == precious, "it was overwritten");
    }
    std::fs::remove_file(&log).expect("it exists");
    pair.order(0, "create", &["--source", "--dry-run"]);
    assert!(!log.exists(), "nothing should be done");
    pair.order(0, "create", &["--source"]);
    pair.order(1, "create", &["--target"]);
    pair.wait_for(0, "mirroring");
    // An old log is no obstacle.
    pair.order(1, "delete", &["--yes"]);
    pair.order(1, "create", &["--target", "--destroy-data", "--yes"]);
    pair.wait_for(0, "mirroring");
    pair.end(0);
}

/// A watched verify succeeds when it has compared everything and found no difference.
#[test]
fn unfinished_verify_is_not_a_success() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let all = command(&mut pair, 0, "verify --watch --interval 100ms").output();
    let all = all.expect("the program can be started");
    assert_eq!(code(&all), Some(0), "{}", String::from_utf8_lossy(&all.stdout));
    let slow = "verify --max-rate 1MB/s --watch --interval 100ms";
    let mut stopped = watched(&mut pair, slow);
    pair.order(0, "verify", &["--stop"]);
    assert_eq!(stopped.wait().expect("a child").code(), Some(1));
    let mut left = watched(&mut pair, slow);
    pair.node(1).kill();
    assert_eq!(left.wait().expect("a child").code(), Some(1));
    // Showing its progress does not start a verify.
    let status = command(&mut pair, 0, "status").output().expect("the program can be started");
    assert_eq!(code(&status), Some(0));
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(text.contains("stopped early"), "{text}");
}

/// Query parameters would be ignored and the action carried out, so they are refused.
#[test]
fn dry_run_in_the_query_string_is_refused() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let api = pair.node(0).api();
    let path = format!("/v1/volumes/{VOLUME}/mirror/pause?dry_run=true");
    let answer = ask(&api, "POST", &path);
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.body.contains("`dry_run` is in the query"), "{}", answer.body);
    assert_eq!(pair.state(0), "mirroring");
}

/// A dry run predicts the command's result: the discarding side does not serve hosts.
#[test]
fn dry_run_predicts_the_split_brain_choice() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let line = "--rw randwrite --depth 4 --ios 50";
    // Each serves while the other is down; the second one by force.
    pair.node(0).kill();
    pair.fail_over_to(1);
    pair.load(&pair.path(1), line, &pair.file("one")).wait().assert_complete();
    pair.node(1).kill();
    pair.node(0).restart();
    pair.fail_over_to(0);
    pair.load(&pair.path(0), line, &pair.file("other")).wait().assert_complete();
    pair.node(1).restart();
    pair.wait_for(0, "split-brain");
    // The node that restarted finds that its peer serves, and keeps its data for the operator.
    pair.wait_for(1, "split-brain");
    assert_eq!(pair.status(1)["replica"]["serving"], false);
    pair.order(1, "demote", &[]);
    pair.order(0, "resolve", &["--keep", "mine", "--dry-run"]);
    assert_eq!(pair.state(0), "split-brain", "nothing was done");
    pair.order(0, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(0, "mirroring");
    pair.assert_kept(0, "other");
    pair.end(0);
}

/// A server starts even if a log file was truncated or replaced by something else.
#[test]
fn log_without_space_does_not_fail_the_server_start() {
    let mut pair = Pair::start(SIZE_BYTES, "");
    pair.order(0, "create", &["--source"]);
    let log = pair.file("node-a.intent");
    let large = std::fs::metadata(&log).expect("it was made").len();
    let active = |pair: &Pair| pair.status(0)["replica"]["serving"] == true;
    pair.node(0).kill();
    let file = std::fs::OpenOptions::new().write(true).open(&log).expect("it exists");
    file.set_len(9000).expect("it can be cut off");
    pair.node(0).restart();
    until("it serves", || active(&pair), || pair.status(0).to_string());
    let status = pair.status(0);
    let out_of_sync = status["peers"][0]["out_of_sync_bytes"].as_u64();
    assert!(out_of_sync >= status["replica"]["size_bytes"].as_u64(), "{status:#}");
    assert_eq!(file.metadata().expect("it exists").len(), large);
    pair.node(0).kill();
    let precious = b"/dev/sda1 / ext4 defaults 0 1\n";
    std::fs::write(&log, precious).expect("there is room");
    pair.node(0).restart();
    pair.node(0).printed_after("  not served: its replica, or space for its log, was not found");
    let status = pair.status(0);
    assert_eq!(status["state"], "not-found", "{status:#}");
    assert!(status["next"][0].as_str().is_some_and(|next| next.contains("is no log")));
    assert_eq!(std::fs::read(&log).expect("it exists"), precious, "it was overwritten");
    pair.node(0).kill();
    std::fs::remove_file(&log).expect("it exists");
    pair.node(0).restart();
    until("it serves", || active(&pair), || pair.status(0).to_string());
}
