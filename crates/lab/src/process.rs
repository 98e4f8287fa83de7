//! The edge of this crate: processes that go on while others measure them.
//!
//! Programs that are run to their end are `flagstone_bench::os::run`'s.
#![allow(
    clippy::disallowed_methods,
    reason = "a lab starts other programs, outside of any executor and never in a simulation"
)]

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use flagstone_bench::os::{Interrupt, read_text, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::limits::{LOG_BYTES, OUTPUT_BYTES, PATIENCE_S, SAID_BYTES};

/// A program that goes on; killed when this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only for a program that has already been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts it, with what it prints in a file. It is in a process group of its own, so that
    /// Ctrl-C reaches it through us alone.
    ///
    /// # Errors
    /// That it cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Running, Error> {
        let errors = File::create(log).map_err(Error::system("cannot make a log"))?;
        let output = errors.try_clone().map_err(Error::system("cannot copy a descriptor"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        command.spawn().map(Running).map_err(Error::system("cannot start a program"))
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// The system's.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.0.try_wait().map_err(Error::system("cannot wait for a program"))
    }

    /// Its process, for as long as this is held.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Kills it, as the loss of its machine's power would.
    pub fn kill(self) {
        drop(self);
    }

    /// Stops it where it is: it does nothing any more, but its connections stay.
    ///
    /// # Errors
    /// The system's.
    pub fn freeze(&self) -> Result<(), Error> {
        kill_process(self.pid(), Signal::STOP)
            .map_err(|cause| Error::System { what: "cannot freeze a node", cause: cause.into() })
    }

    /// Asks it to stop, and waits until it has; `None` if it does not.
    ///
    /// # Errors
    /// The user's interruption (it is killed then), and the system's.
    pub fn stop(mut self, interrupt: &Interrupt) -> Result<Option<ExitStatus>, Error> {
        kill_process(self.pid(), Signal::TERM)
            .map_err(|cause| Error::System { what: "cannot stop a node", cause: cause.into() })?;
        let ended = wait_for(PATIENCE_S, interrupt, || self.ended().transpose())?;
        ended.transpose()
    }
}

/// A program that runs to its own end while other things happen.
#[derive(Debug)]
pub struct Begun {
    running: Running,
    output: tempfile::NamedTempFile,
    errors: tempfile::NamedTempFile,
}

/// How a program ended and what it printed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// On standard output.
    pub output: String,
    /// The end of what it said on standard error.
    pub said: String,
}

impl Begun {
    /// Starts it. What it prints goes to files: it never waits for us to read.
    ///
    /// # Errors
    /// That it cannot be started.
    pub fn begin(command: &mut Command) -> Result<Begun, Error> {
        let keep = || {
            tempfile::NamedTempFile::new().map_err(Error::system("cannot make a temporary file"))
        };
        let (output, errors) = (keep()?, keep()?);
        let of = |file: &tempfile::NamedTempFile| {
            file.reopen().map_err(Error::system("cannot open a temporary file"))
        };
        command.stdin(Stdio::null()).stdout(of(&output)?).stderr(of(&errors)?).process_group(0);
        let child = command.spawn().map_err(Error::system("cannot start a program"))?;
        Ok(Begun { running: Running(child), output, errors })
    }

    /// Asks it to come to its end, as Ctrl-C would.
    ///
    /// # Errors
    /// The system's.
    pub fn ask_to_end(&self) -> Result<(), Error> {
        kill_process(self.running.pid(), Signal::INT)
            .map_err(|cause| Error::System { what: "cannot stop a program", cause: cause.into() })
    }

    /// Waits for its end, for `seconds_most`; `None` after them, and it is killed.
    ///
    /// # Errors
    /// The user's interruption (it is killed then), and the system's.
    pub fn end(mut self, seconds_most: f64, interrupt: &Interrupt) -> Result<Option<Ended>, Error> {
        let ended = wait_for(seconds_most, interrupt, || self.running.ended().transpose())?;
        let Some(status) = ended.transpose()? else { return Ok(None) };
        let output = read_text(self.output.path(), OUTPUT_BYTES)
            .map_err(Error::system("cannot read a program's output"))?;
        Ok(Some(Ended { status, output, said: said(self.errors.path()) }))
    }
}

/// Waits until somebody presses Enter.
///
/// # Errors
/// The user's interruption, and that standard input has ended or cannot be read.
pub fn wait_for_enter(interrupt: &Interrupt) -> Result<(), Error> {
    let stdin = std::io::stdin();
    let cannot = "cannot read standard input";
    // A read that waits would not see the user's Ctrl-C.
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

/// The end of what a program wrote to its log; empty if there is none.
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
    fn programs_stop_when_asked_and_end_when_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let script = "trap 'echo bye; exit 7' TERM; echo hello; while :; do sleep 0.01; done";
        let mut running = Running::start(Command::new("sh").args(["-c", script]), &log).unwrap();
        let never = Interrupt::never();
        let heard = wait_for(PATIENCE_S, &never, || said(&log).contains("hello").then_some(()));
        assert_eq!(heard.unwrap(), Some(()));
        assert!(running.ended().unwrap().is_none());
        let status = running.stop(&never).unwrap().expect("it stops");
        assert_eq!((status.code(), said(&log).as_str()), (Some(7), "hello\nbye"));
        let running = Running::start(Command::new("sleep").arg("1000"), &log).unwrap();
        let pid = running.pid();
        running.kill();
        assert!(kill_process(pid, Signal::CONT).is_err(), "nobody has that number any more");
    }

    #[test]
    fn what_a_program_says_is_kept_apart() {
        let begin = |script: &str| Begun::begin(Command::new("sh").args(["-c", script])).unwrap();
        let never = Interrupt::never();
        let ended = begin("echo out; echo err >&2; exit 3").end(PATIENCE_S, &never).unwrap();
        let ended = ended.expect("it ends");
        assert_eq!((ended.status.code(), &*ended.output, &*ended.said), (Some(3), "out\n", "err"));
        assert!(begin("sleep 1000").end(0.0, &never).unwrap().is_none());
        // Whoever runs the tests in a background may ignore the signal, and a shell that was started so
        // cannot trap it. One that has not come to its trap ends by it.
        let script = "trap 'echo out; exit 4' INT; while :; do sleep 0.01; done";
        let mut endless = Command::new("env");
        let endless = endless.args(["--default-signal=INT", "sh", "-c", script]);
        let endless = Begun::begin(endless).unwrap();
        endless.ask_to_end().unwrap();
        let ended = endless.end(PATIENCE_S, &never).unwrap().expect("it ends");
        assert!(!ended.status.success());
    }
}
