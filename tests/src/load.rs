//! `flagstone load` as a child process: watched, killed, or awaited with its results.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::place::Place;
use crate::process::until;
use crate::scratch::Scratch;
use crate::server::binary;

/// Longest wait for a load to end. A safety net: the loads of these tests take seconds.
const LOAD_WAIT: Duration = Duration::from_secs(300);

/// Bytes of the header of a verified state (`flagstone_load::verify::journal`).
const STATE_HEADER_BYTES: u64 = 64;

/// Bytes of one of its records.
pub const STATE_RECORD_BYTES: u64 = 16;

/// A running `flagstone load --json`; killed when dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    output: Receiver<String>,
    what: String,
    scratch: Scratch,
}

/// How a load ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed, as JSON; null if that is none.
    pub results: Value,
    /// Its log, and what it was.
    pub log: String,
}

impl Load {
    /// Starts a load of `target` with the arguments in `line`, which blanks part.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(target: &str, line: &str) -> Self {
        Self::start_at(&Place::default(), target, line, None)
    }

    /// Like [`Load::start`], verified, with the verified state kept in, or taken from, `state`.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start_verified(target: &str, line: &str, state: &Path) -> Self {
        Self::start_at(&Place::default(), target, line, Some(state))
    }

    /// Like [`Load::start`], at a place of its own; verified if there is a `state`.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start_at(place: &Place, target: &str, line: &str, state: Option<&Path>) -> Self {
        let scratch = Scratch::new();
        let log = File::create(scratch.join("load.log")).expect("a log can be made");
        let mut command = place.command(binary());
        command.args(["load", target, "--json"]).args(line.split_whitespace());
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
        // Ends with the pipe, that is with the child.
        thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Self { child, output, what, scratch }
    }

    /// Records in the verified state that the load keeps in `state`, so far.
    pub fn records_now(state: &Path) -> u64 {
        let bytes = fs::metadata(state).map_or(0, |file| file.len());
        bytes.saturating_sub(STATE_HEADER_BYTES) / STATE_RECORD_BYTES
    }

    /// Waits until the verified state that the load keeps in `state` has `records` records.
    ///
    /// # Panics
    /// If the load ends before.
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

    /// The process, as `/proc` knows it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the load as `kill -9` does.
    pub fn kill(&mut self) {
        // Fails only for a process that has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the load ends by itself.
    ///
    /// # Panics
    /// If it does not.
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
    /// Panics unless the load did all that it was asked, and found nothing wrong. Gives the
    /// results back.
    ///
    /// # Panics
    /// See above; with all that helps to see why.
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

/// What a verified state has recorded so far.
///
/// # Panics
/// If there is none at `path`.
pub fn records(path: &Path) -> Vec<RecordKind> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let records = bytes.get(STATE_HEADER_BYTES as usize..).unwrap_or_default();
    let kinds = records.chunks_exact(STATE_RECORD_BYTES as usize).map(|record| {
        match u32::from_le_bytes([record[4], record[5], record[6], record[7]]) {
            1 => RecordKind::Completed,
            2 => RecordKind::Durable,
            3 => RecordKind::FlushBegan,
            4 => RecordKind::FlushCompleted,
            // The end of a file whose writer was killed.
            _ => RecordKind::Unfinished,
        }
    });
    kinds.collect()
}

/// Kinds of records of a verified state.
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
    /// Cut off by a kill.
    Unfinished,
}

fn log(scratch: &Scratch) -> String {
    let log: PathBuf = scratch.join("load.log");
    format!("--- load's log\n{}", fs::read_to_string(log).unwrap_or_default())
}
