//! Host of the drill: a verifying load on both nodes. When it has been stopped, another process
//! reads all blocks back.
//!
//! Acknowledged writes are recorded in a file outside of the volume, so the load does not have to
//! know how long the drill takes, and its promises are checked by a process without its state.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagstone_bench::fio::arguments::shell;
use flagstone_bench::process::{self, Interrupt, Process, ProcessOutput};
use flagstone_load::results::LoadResults;
use rustix::process::Signal;

use crate::Error;
use crate::limits::{OUTPUT_BYTES, STEP_TIMEOUT_S};

/// Bytes of the volume that the load uses: a smaller range is overwritten more often and read back
/// faster.
pub(crate) const LOAD_BYTES: u64 = 64 << 20;
pub(crate) const DEPTH: u32 = 8;
/// Steps of a drill that may each take [`STEP_TIMEOUT_S`] during the load.
const STEPS: f64 = 8.0;

#[derive(Clone, Debug)]
pub(crate) struct HostResults {
    pub(crate) load: LoadResults,
    pub(crate) read_back: LoadResults,
    pub(crate) raw: [String; 2],
}

#[derive(Debug)]
pub(crate) struct DrillHost<'a> {
    program: &'a Path,
    target: String,
    state: PathBuf,
    running: Process,
}

/// Arguments of the load. It records acknowledged writes in the file `state`.
pub(crate) fn arguments(target: &str, state: &str, seconds: f64) -> Vec<String> {
    let (depth, size) = (DEPTH.to_string(), LOAD_BYTES.to_string());
    // The drill stops it; otherwise it ends by itself.
    let time = format!("{}s", (seconds + STEPS * STEP_TIMEOUT_S) as u64);
    ["load", target, "--json", "--rw", "randrw", "--bs", "4k", "--depth", &depth, "--size", &size]
        .into_iter()
        .chain(["--time", &time, "--verify", "--verify-state", state, "--destroy-data", target])
        .map(str::to_owned)
        .collect()
}

impl<'a> DrillHost<'a> {
    /// Starts the load. It records acknowledged writes in the file `acknowledged` of `directory`.
    pub(crate) fn begin(
        program: &'a Path,
        target: String,
        directory: &Path,
        seconds: f64,
    ) -> Result<DrillHost<'a>, Error> {
        let state = directory.join("acknowledged");
        let words = arguments(&target, &state.to_string_lossy(), seconds);
        let running = Process::start(Command::new(program).args(words))?;
        Ok(DrillHost { program, target, state, running })
    }

    pub(crate) fn end(self, interrupt: &Interrupt) -> Result<HostResults, Error> {
        let what = "flagstone load";
        self.running.signal(Signal::INT)?;
        let limit = Duration::from_secs_f64(STEP_TIMEOUT_S);
        let ended = self.running.finish(limit, OUTPUT_BYTES, interrupt)?;
        let ended = ended.ok_or_else(|| Error::unexpected(what, "it does not stop"))?;
        let load = results(what, &ended)?;
        let mut words: Vec<String> =
            ["load", &self.target, "--json", "--rw", "read", "--bs", "64k", "--verify"]
                .map(str::to_owned)
                .into();
        let state = self.state.to_string_lossy().into_owned();
        words.extend(["--verify-state", &state, "--after-crash", "client"].map(str::to_owned));
        let mut command = Command::new(self.program);
        let back = process::run(command.args(&words), OUTPUT_BYTES, interrupt, &mut || {})?;
        let what = shell("flagstone", &words);
        let read_back = results(&what, &back)?;
        Ok(HostResults { load, read_back, raw: [ended.output, back.output] })
    }
}

/// Results of a `flagstone load` that has ended, also if it found wrong data.
pub(crate) fn results(what: &str, ended: &ProcessOutput) -> Result<LoadResults, Error> {
    serde_json::from_str(&ended.output).map_err(|error| match ended.status.success() {
        true => Error::unexpected(what, error),
        false => Error::command(what, "the host", ended),
    })
}
