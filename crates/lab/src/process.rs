//! Processes that run in the background; `flagstone_bench::process::run` runs others to their end.
//!
//! Invariant: a process is killed when its handle is dropped.
#![allow(
    clippy::disallowed_methods,
    reason = "a lab starts other programs, outside of any executor and never in a simulation"
)]

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use flagstone_bench::os::read_text;
use flagstone_bench::process::{Interrupt, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::limits::{LOG_BYTES, OUTPUT_BYTES, PATIENCE_S, SAID_BYTES};

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct BackgroundProcess(Child);

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        // Fails only for a process that was already waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl BackgroundProcess {
    /// Starts a program with its output in a file. It has its own process group, so that Ctrl-C does
    /// not reach it directly.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<BackgroundProcess, Error> {
        let errors = File::create(log).map_err(Error::system("cannot create a log"))?;
        let output = errors.try_clone().map_err(Error::system("cannot copy a descriptor"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        command.spawn().map(BackgroundProcess).map_err(Error::system("cannot start a program"))
    }

    /// Exit status, if it has ended.
    ///
    /// # Errors
    /// The system call fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.0.try_wait().map_err(Error::system("cannot wait for a program"))
    }

    /// Process ID, valid as long as this value exists.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Kills the process and waits for it.
    pub fn kill(self) {
        drop(self);
    }

    /// Stops the process with SIGSTOP; its connections stay open.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn freeze(&self) -> Result<(), Error> {
        kill_process(self.pid(), Signal::STOP)
            .map_err(|cause| Error::System { what: "cannot freeze a node", cause: cause.into() })
    }

    /// Sends SIGTERM and waits; `None` if the process does not end within [`PATIENCE_S`].
    ///
    /// # Errors
    /// The user's interruption, which kills the process; a failed system call.
    pub fn stop(mut self, interrupt: &Interrupt) -> Result<Option<ExitStatus>, Error> {
        kill_process(self.pid(), Signal::TERM)
            .map_err(|cause| Error::System { what: "cannot stop a node", cause: cause.into() })?;
        let ended = wait_for(PATIENCE_S, interrupt, || self.ended().transpose())?;
        ended.transpose()
    }
}

/// A command that runs in the background until it ends by itself.
#[derive(Debug)]
pub struct BackgroundCommand {
    running: BackgroundProcess,
    output: tempfile::NamedTempFile,
    errors: tempfile::NamedTempFile,
}

/// Exit status and output of a command.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub output: String,
    /// The end of standard error.
    pub said: String,
}

impl BackgroundCommand {
    /// Starts a command. Its output goes to files, so that it never blocks on a pipe.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn begin(command: &mut Command) -> Result<BackgroundCommand, Error> {
        let keep = || {
            tempfile::NamedTempFile::new().map_err(Error::system("cannot create a temporary file"))
        };
        let (output, errors) = (keep()?, keep()?);
        let of = |file: &tempfile::NamedTempFile| {
            file.reopen().map_err(Error::system("cannot open a temporary file"))
        };
        command.stdin(Stdio::null()).stdout(of(&output)?).stderr(of(&errors)?).process_group(0);
        let child = command.spawn().map_err(Error::system("cannot start a program"))?;
        Ok(BackgroundCommand { running: BackgroundProcess(child), output, errors })
    }

    /// Sends SIGINT, like Ctrl-C.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn ask_to_end(&self) -> Result<(), Error> {
        kill_process(self.running.pid(), Signal::INT)
            .map_err(|cause| Error::System { what: "cannot stop a program", cause: cause.into() })
    }

    /// Waits at most `seconds_most` for the end; `None` if the command was killed after them.
    ///
    /// # Errors
    /// The user's interruption, which kills the command; a failed system call.
    pub fn end(
        mut self,
        seconds_most: f64,
        interrupt: &Interrupt,
    ) -> Result<Option<CommandOutput>, Error> {
        let ended = wait_for(seconds_most, interrupt, || self.running.ended().transpose())?;
        let Some(status) = ended.transpose()? else { return Ok(None) };
        let output = read_text(self.output.path(), OUTPUT_BYTES)
            .map_err(Error::system("cannot read a program's output"))?;
        Ok(Some(CommandOutput { status, output, said: said(self.errors.path()) }))
    }
}

/// Waits until the user presses Enter.
///
/// # Errors
/// The user's interruption; standard input has ended or cannot be read.
pub fn wait_for_enter(interrupt: &Interrupt) -> Result<(), Error> {
    let stdin = std::io::stdin();
    let cannot = "cannot read standard input";
    // A blocking read would not notice Ctrl-C.
    let ready = wait_for(f64::INFINITY, interrupt, || {
        let mut of = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut of, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(rustix::io::Errno::INTR) => None,
            Ok(_) => Some(Ok(())),
            Err(cause) => Some(Err(Error::System { what: cannot, cause: cause.into() })),
        }
    })?;
    ready.transpose()?;
    match stdin.read_line(&mut String::new()).map_err(Error::system(cannot))? {
        0 => Err(Error::System { what: cannot, cause: std::io::ErrorKind::UnexpectedEof.into() }),
        _ => Ok(()),
    }
}

/// The end of a log, at most [`SAID_BYTES`]; empty if there is no log.
pub fn said(log: &Path) -> String {
    let text = read_text(log, LOG_BYTES).unwrap_or_default();
    let text = text.trim_end();
    let from = text.len().saturating_sub(SAID_BYTES);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(from);
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_stops_on_signal_and_on_drop() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let script = "trap 'echo bye; exit 7' TERM; echo hello; while :; do sleep 0.01; done";
        let mut running =
            BackgroundProcess::start(Command::new("sh").args(["-c", script]), &log).unwrap();
        let never = Interrupt::never();
        let heard = wait_for(PATIENCE_S, &never, || said(&log).contains("hello").then_some(()));
        assert_eq!(heard.unwrap(), Some(()));
        assert!(running.ended().unwrap().is_none());
        let status = running.stop(&never).unwrap().expect("it stops");
        assert_eq!((status.code(), said(&log).as_str()), (Some(7), "hello\nbye"));
        let running = BackgroundProcess::start(Command::new("sleep").arg("1000"), &log).unwrap();
        let pid = running.pid();
        running.kill();
        assert!(kill_process(pid, Signal::CONT).is_err(), "the process is gone");
    }

    #[test]
    fn output_and_errors_are_kept_apart() {
        let begin = |script: &str| {
            BackgroundCommand::begin(Command::new("sh").args(["-c", script])).unwrap()
        };
        let never = Interrupt::never();
        let ended = begin("echo out; echo err >&2; exit 3").end(PATIENCE_S, &never).unwrap();
        let ended = ended.expect("it ends");
        assert_eq!((ended.status.code(), &*ended.output, &*ended.said), (Some(3), "out\n", "err"));
        assert!(begin("sleep 1000").end(0.0, &never).unwrap().is_none());
        // Tests that run in the background may ignore SIGINT, and a shell that inherits this cannot trap
        // it.
        let script = "trap 'echo out; exit 4' INT; echo ready; while :; do sleep 0.01; done";
        let mut endless = Command::new("env");
        let endless = endless.args(["--default-signal=INT", "sh", "-c", script]);
        let endless = BackgroundCommand::begin(endless).unwrap();
        let output = endless.output.path().to_owned();
        let is_ready = || read_text(&output, OUTPUT_BYTES).unwrap().contains("ready").then_some(());
        assert_eq!(wait_for(PATIENCE_S, &never, is_ready).unwrap(), Some(()));
        endless.ask_to_end().unwrap();
        let ended = endless.end(PATIENCE_S, &never).unwrap().expect("it ends");
        assert_eq!((ended.status.code(), &*ended.output), (Some(4), "ready\nout\n"));
    }
}
