//! The host of the drill: a load by both nodes that compares what it reads with what it wrote, ends
//! when it is told to, and whose every block is then read back by another process.
//!
//! What was acknowledged is recorded as it happens, outside of the volume: so the load need not know
//! how long the drill takes, and what it was promised is checked by somebody who was not there.

use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_bench::fio::arguments::shell;
use flagstone_bench::os::{self, Interrupt};
use flagstone_load::results::Results;

use crate::Error;
use crate::limits::{OUTPUT_BYTES, PATIENCE_S, SAID_BYTES};
use crate::process::Begun;

/// Bytes of the volume that the load uses: less is written more often, and read back sooner.
pub(crate) const LOAD_BYTES: u64 = 64 << 20;
/// Requests in flight.
pub(crate) const DEPTH: u32 = 8;
/// Steps of a drill that may each take [`PATIENCE_S`], while the load goes on.
const STEPS: f64 = 8.0;

/// What both found, and what they printed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Of the load.
    pub(crate) load: Results,
    /// Of the reading back.
    pub(crate) read_back: Results,
    /// The documents of both.
    pub(crate) raw: [String; 2],
}

/// A load that goes on.
#[derive(Debug)]
pub(crate) struct Host<'a> {
    program: &'a Path,
    target: String,
    state: PathBuf,
    running: Begun,
}

/// What the load is told; `state` is where it records what was acknowledged.
pub(crate) fn arguments(target: &str, state: &str, seconds: f64) -> Vec<String> {
    let (depth, size) = (DEPTH.to_string(), LOAD_BYTES.to_string());
    // It is stopped; if nobody does, it is not there for ever.
    let time = format!("{}s", (seconds + STEPS * PATIENCE_S) as u64);
    ["load", target, "--json", "--rw", "randrw", "--bs", "4k", "--depth", &depth, "--size", &size]
        .into_iter()
        .chain(["--time", &time, "--verify", "--verify-state", state])
        .map(str::to_owned)
        .collect()
}

impl<'a> Host<'a> {
    /// Begins it. It records what was acknowledged in a file `acknowledged` of `directory`.
    pub(crate) fn begin(
        program: &'a Path,
        target: String,
        directory: &Path,
        seconds: f64,
    ) -> Result<Host<'a>, Error> {
        let state = directory.join("acknowledged");
        let words = arguments(&target, &state.to_string_lossy(), seconds);
        let running = Begun::begin(Command::new(program).args(words))?;
        Ok(Host { program, target, state, running })
    }

    /// Ends the load, and reads everything back.
    pub(crate) fn end(self, interrupt: &Interrupt) -> Result<Found, Error> {
        let what = "flagstone load";
        self.running.ask_to_end()?;
        let ended = self.running.end(PATIENCE_S, interrupt)?;
        let ended = ended.ok_or_else(|| Error::Unexpected {
            what: what.to_owned(),
            detail: "told to stop, it goes on".to_owned(),
        })?;
        let load = parse(what, &ended.output, ended.status, &ended.said)?;
        let mut words: Vec<String> =
            ["load", &self.target, "--json", "--rw", "read", "--bs", "64k", "--verify"]
                .map(str::to_owned)
                .into();
        let state = self.state.to_string_lossy().into_owned();
        words.extend(["--verify-state", &state, "--after-crash", "client"].map(str::to_owned));
        let mut command = Command::new(self.program);
        let back = os::run(command.args(&words), OUTPUT_BYTES, interrupt, &mut || {})?;
        let what = shell("flagstone", &words);
        let read_back = parse(&what, &back.output, back.status, &back.said(SAID_BYTES))?;
        Ok(Found { load, read_back, raw: [ended.output, back.output] })
    }
}

/// There are results of a load that was stopped or found something wrong, too.
fn parse(
    what: &str,
    output: &str,
    status: std::process::ExitStatus,
    said: &str,
) -> Result<Results, Error> {
    serde_json::from_str(output).map_err(|error| match status.success() {
        true => Error::Unexpected { what: what.to_owned(), detail: error.to_string() },
        false => Error::Command {
            command: what.to_owned(),
            node: "the host".to_owned(),
            status: status.to_string(),
            said: said.to_owned(),
        },
    })
}
