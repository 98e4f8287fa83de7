//! Shell completions: the registration script, and the volumes and nodes that a running server
//! knows.
//!
//! The script asks this program at each completion (`FLAGSTONE_COMPLETE` in the environment). The
//! server's answer is awaited for [`COMPLETION_TIMEOUT`] at most; without an answer, no names are
//! completed.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use flagstone_server::api::document::{VolumeDocument, VolumesDocument};

use crate::args::{self, CompletionsArgs};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::status::server::ApiClient;

/// Environment variable of the script: the shell whose completion is asked for.
const VARIABLE: &str = "FLAGSTONE_COMPLETE";

/// Longest wait for the server, well below what a user notices as a hang.
const COMPLETION_TIMEOUT: Duration = Duration::from_millis(500);

/// `flagstone completions SHELL`: the shell's completion script, on standard output.
pub(crate) fn run(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let shell = args.shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell);
    let completer = completer.ok_or_else(|| Failure::usage(format!("unknown shell {shell}")))?;
    let mut script = Vec::new();
    let (name, variable) = ("flagstone", VARIABLE);
    let written = completer.write_registration(variable, name, name, name, &mut script);
    written.map_err(Failure::failed)?;
    Ok(output::print(&String::from_utf8_lossy(&script), Exit::Success))
}

/// Answers a completion script and ends the process, if that is what the process was started for.
pub(crate) fn answer() {
    CompleteEnv::with_factory(args::command).var(VARIABLE).bin("flagstone").complete();
}

/// Completes a volume's name.
pub(crate) fn volumes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let named = |volume: VolumeDocument| {
            CompletionCandidate::new(volume.name).help(Some(volume.devices.join(", ").into()))
        };
        known().into_iter().map(named).collect()
    })
}

/// Completes the name of a peer.
pub(crate) fn peers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| nodes(false))
}

/// Completes the name of a peer or of this node.
pub(crate) fn all_nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| nodes(true))
}

fn nodes(with_own: bool) -> Vec<CompletionCandidate> {
    let mirrors = known().into_iter().filter_map(|volume| volume.mirror);
    let mut names: Vec<String> = mirrors
        .flat_map(|mirror| {
            let own = with_own.then_some(mirror.node);
            mirror.peers.into_iter().map(|peer| peer.name).chain(own)
        })
        .collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The volumes of the server that `--api` of the incomplete command names, or of the default one.
fn known() -> Vec<VolumeDocument> {
    let words: Vec<_> = std::env::args_os().collect();
    let api = words.iter().position(|word| word == "--api");
    let socket = api.and_then(|at| words.get(at + 1)).map(PathBuf::from);
    let (sender, answer) = mpsc::channel();
    // A server that hangs must not hang the shell: the process ends although this thread waits.
    #[expect(clippy::disallowed_methods, reason = "the command line is not simulated")]
    std::thread::spawn(move || {
        let asked = ApiClient::find(socket.as_ref());
        let volumes = asked.and_then(|mut server| server.get::<VolumesDocument>("/v1/volumes"));
        sender.send(volumes.map(|document| document.volumes).unwrap_or_default())
    });
    answer.recv_timeout(COMPLETION_TIMEOUT).unwrap_or_default()
}
