//! Common parts of the `flagstone bench` tests: a directory with a fake fio.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

#[path = "../../../bench/tests/support/executable.rs"]
mod executable;

/// A fake fio that measures nothing. Each measurement reports 1 IOPS more than the one before,
/// starting from the file `iops`. `fail-at` holds the number of the measurement that fails,
/// `break-at` of the one printing broken JSON, `stop-at` of the one stopping itself until SIGCONT,
/// `hang-at` of the one never ending.
pub(crate) const FAKE_FIO: &str = r#"#!/bin/sh
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
if is_at stop-at; then echo $$ >"$here/pid"; mv "$here/pid" "$here/stopping"; kill -STOP $$; fi
if is_at hang-at; then echo >"$here/hanging"; exec sleep 1000; fi
iops=$(($(cat "$here/iops") + count))
side="{\"io_bytes\": $((iops * 4096)), \"total_ios\": $iops, \"iops\": $iops, \"bw_bytes\": $((iops * 4096)), \"runtime\": 1000,
\"lat_ns\": {\"min\": 100, \"max\": 90000, \"mean\": $((1000000000 / iops)), \"stddev\": 5, \"N\": $iops,
\"bins\": {\"1000\": $((iops - 1)), \"80000\": 1}}}"
echo "{\"fio version\": \"fio-3.33\", \"jobs\": [{\"jobname\": \"j\", \"error\": 0, \"read\": $side}]}"
"#;

/// A directory with the fake fio, in which commands run.
pub(crate) struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let bench = Bench { directory };
        executable::write_script(&bench.path("fio"), FAKE_FIO);
        bench.say("version", "fio-3.33");
        bench.say("count", "0");
        bench.say("iops", "1000");
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn say(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it can be written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
        command
            .arg("bench")
            .args(line.split_whitespace())
            .current_dir(self.directory.path())
            .env("FIO", self.path("fio"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the program runs")
    }

    /// Runs a command, checks its exit status and returns its output.
    pub(crate) fn ends(&self, line: &str, code: i32) -> (String, String) {
        let output = self.run(line);
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{line}\n{out}\n{errors}");
        (out, errors)
    }

    pub(crate) fn results(&self, run: &str) -> Vec<serde_json::Value> {
        let lines = self.read(&format!("{run}/results.jsonl"));
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints text")
}

/// Waits until a file exists while a process runs.
#[allow(
    clippy::disallowed_methods,
    reason = "it waits for another process, outside of any executor"
)]
pub(crate) fn wait_for(path: &Path, running: &mut Child) {
    while !path.exists() {
        let ended = running.try_wait().expect("it can be looked at");
        assert!(ended.is_none(), "it ended before: {ended:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Waits until a condition holds.
#[allow(
    clippy::disallowed_methods,
    reason = "it waits for another process, outside of any executor"
)]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Sends a signal to a process.
pub(crate) fn send(pid: &str, name: &str) {
    let killed = Command::new("kill").arg(format!("-{name}")).arg(pid).status();
    assert!(killed.expect("kill runs").success());
}
