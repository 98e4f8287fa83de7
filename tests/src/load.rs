//! `flagstone load` as a child process: observed, killed, or awaited with its results.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::environment::RunEnvironment;
use crate::process::{stall_process, until};
use crate::scratch::Scratch;
use crate::server::binary;

/// Longest wait for a load to end. A safety net: the loads of these tests take seconds.
const LOAD_WAIT: Duration = Duration::from_secs(300);

/// Header length of a verification state file (`flagstone_load::verify::journal`), in bytes.
pub(crate) const STATE_HEADER_BYTES: u64 = 64;

/// Length of one record of the file, in bytes.
pub const STATE_RECORD_BYTES: u64 = 16;

/// A running `flagstone load --json`; killed when dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    output: Receiver<String>,
    what: String,
    scratch: Scratch,
}

/// Result of a load.
#[derive(Debug)]
pub struct Ended {
    /// Exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Output parsed as JSON; null if it is not JSON.
    pub results: Value,
    /// Log, preceded by the command line.
    pub log: String,
}

impl Load {
    /// Starts a load of `target` with the space-separated arguments in `line`.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(target: &str, line: &str) -> Self {
        Self::start_at(&RunEnvironment::default(), target, line, None)
    }

    /// As [`Load::start`], verified, with the verification state in the file `state`.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start_verified(target: &str, line: &str, state: &Path) -> Self {
        Self::start_at(&RunEnvironment::default(), target, line, Some(state))
    }

    /// As [`Load::start`], in `place`; verified if `state` is given.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start_at(
        place: &RunEnvironment,
        target: &str,
        line: &str,
        state: Option<&Path>,
    ) -> Self {
        let scratch = Scratch::new();
        let log = File::create(scratch.join("load.log")).expect("a log can be made");
        let mut command = place.command(binary());
        command.args(["load", target, "--json"]).args(line.split_whitespace());
        // An earlier load may have filled it.
        command.args(["--destroy-data", target]);
        if let Some(state) = state {
            command.arg("--verify").arg("--verify-state").arg(state);
        }
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {what}: {error}"));
        let mut pipe = child.stdout.take().expect("stdout is a pipe");
        let (sender, output) = mpsc::channel();
        // Ends with the pipe, that is, with the child.
        thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Self { child, output, what, scratch }
    }

    /// Current number of records in the verification state file `state`.
    pub fn records_now(state: &Path) -> u64 {
        let bytes = fs::metadata(state).map_or(0, |file| file.len());
        bytes.saturating_sub(STATE_HEADER_BYTES) / STATE_RECORD_BYTES
    }

    /// Waits until the verification state file `state` has `records` records.
    ///
    /// # Panics
    ///
    /// If the load ends earlier.
    pub fn wait_for_records(&mut self, state: &Path, records: u64) {
        let bytes = STATE_HEADER_BYTES + records * STATE_RECORD_BYTES;
        let (child, scratch, what) = (&mut self.child, &self.scratch, &self.what);
        let mut ended = None;
        let came = || {
            ended = child.try_wait().expect("a child can be looked at");
            ended.is_some() || fs::metadata(state).is_ok_and(|file| file.len() >= bytes)
        };
        until(&format!("{records} records of {what}"), came, || log(scratch));
        if let Some(status) = ended {
            let printed = self.output.recv_timeout(LOAD_WAIT).unwrap_or_default();
            panic!("{what} ended early: {status}\n{printed}\n{}", log(scratch));
        }
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process (SIGSTOP), or continues it. Requests in flight complete meanwhile.
    ///
    /// # Panics
    ///
    /// If the load has ended.
    pub fn stall(&self, stalled: bool) {
        stall_process(self.child.id(), stalled);
    }

    /// Kills the load with SIGKILL.
    pub fn kill(&mut self) {
        // Fails only if the process was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the load exits.
    ///
    /// # Panics
    ///
    /// If it does not exit in time.
    pub fn wait(mut self) -> Ended {
        let Ok(printed) = self.output.recv_timeout(LOAD_WAIT) else {
            panic!("{} does not end\n{}", self.what, log(&self.scratch));
        };
        let status = self.child.wait().expect("a child can be waited for");
        Ended {
            code: status.code(),
            results: serde_json::from_str(&printed).unwrap_or(Value::Null),
            log: format!("{}: {status}\n{}", self.what, log(&self.scratch)),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ended {
    /// Panics unless the load completed without errors. Returns the results.
    ///
    /// # Panics
    ///
    /// On any error, with the command line, the log and the results.
    #[track_caller]
    pub fn assert_complete(self) -> Value {
        let Self { code, results, log } = self;
        assert_eq!(code, Some(0), "{log}\n{results:#}");
        assert_eq!(results["outcome"], "complete", "{log}\n{results:#}");
        assert_eq!(results["errors"], Value::Array(Vec::new()), "{log}\n{results:#}");
        assert_eq!(results["unfinished_ios"], 0, "{log}\n{results:#}");
        if results["job"]["verify"] == true {
            let verify = &results["verify"];
            assert_eq!(verify["violations"], 0, "{log}\n{results:#}");
            assert_eq!(verify["read_back"], true, "{log}\n{results:#}");
            let blocks = results["job"]["size_bytes"].as_u64().expect("a size")
                / results["device"]["block_bytes"].as_u64().expect("a block");
            let checked = verify["blocks_checked"].as_u64().expect("a count");
            assert!(checked >= blocks, "{checked} of {blocks} blocks were checked: {log}");
        }
        results
    }
}

/// Records of a verification state file.
///
/// # Panics
///
/// If there is no such file at `path`.
pub fn records(path: &Path) -> Vec<RecordKind> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let records = bytes.get(STATE_HEADER_BYTES as usize..).unwrap_or_default();
    let kinds = records.chunks_exact(STATE_RECORD_BYTES as usize).map(|record| {
        match u32::from_le_bytes([record[4], record[5], record[6], record[7]]) {
            1 => RecordKind::Completed,
            2 => RecordKind::Durable,
            3 => RecordKind::FlushBegan,
            4 => RecordKind::FlushCompleted,
            // Truncated record of a killed writer.
            _ => RecordKind::Unfinished,
        }
    });
    kinds.collect()
}

/// Kinds of records in a verification state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A write was acknowledged.
    Completed,
    /// A write was acknowledged as durable.
    Durable,
    /// A flush was sent.
    FlushBegan,
    /// A flush was acknowledged.
    FlushCompleted,
    /// Truncated by a kill.
    Unfinished,
}

fn log(scratch: &Scratch) -> String {
    let log: PathBuf = scratch.join("load.log");
    format!("--- load's log\n{}", fs::read_to_string(log).unwrap_or_default())
}
