//! Running other programs: to their end, unless interrupted; and never left behind.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub use flagstone_bench::os::Interrupt;

use crate::Error;

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How much of what a failed program said is shown, in bytes.
const SAID_BYTES: usize = 2000;

/// A program that is killed when this is dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only for a process that has already been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// [`Error::CannotStart`].
    pub fn start(command: &mut Command) -> Result<Running, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|cause| Error::CannotStart { program, cause })?;
        Ok(Running(child))
    }

    /// Waits until it ends, or the user wants to stop.
    ///
    /// # Errors
    /// [`Error::Interrupted`], and the system's.
    pub fn wait(&mut self, interrupt: &Interrupt) -> Result<ExitStatus, Error> {
        loop {
            interrupt.check()?;
            match self.0.try_wait().map_err(Error::io("cannot wait for a program"))? {
                Some(status) => return Ok(status),
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// On standard output.
    pub output: String,
    /// On standard error.
    pub errors: String,
}

impl Ended {
    /// The failure to do `what` that this is.
    pub fn failure(&self, what: &str) -> Error {
        let said = if self.errors.trim().is_empty() { &self.output } else { &self.errors };
        let from = said.len().saturating_sub(SAID_BYTES);
        let from = (from..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
        Error::Failed {
            what: what.to_owned(),
            status: self.status.to_string(),
            said: said[from..].trim_end().to_owned(),
        }
    }
}

/// A program that runs. What it prints goes to files: it never waits for us to read.
#[derive(Debug)]
pub struct Begun {
    running: Running,
    output: File,
    errors: File,
}

/// Starts a program.
///
/// # Errors
/// That it cannot be started, and the system's.
pub fn begin(command: &mut Command) -> Result<Begun, Error> {
    let keep = || tempfile::tempfile().map_err(Error::io("cannot make a temporary file"));
    let (output, errors) = (keep()?, keep()?);
    let copy = |file: &File| file.try_clone().map_err(Error::io("cannot copy a descriptor"));
    command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&errors)?);
    Ok(Begun { running: Running::start(command)?, output, errors })
}

impl Begun {
    /// Waits for its end.
    ///
    /// # Errors
    /// The user's interruption, and the system's. That it failed is in [`Ended`].
    pub fn end(mut self, interrupt: &Interrupt) -> Result<Ended, Error> {
        let status = self.running.wait(interrupt)?;
        // Ctrl-C reaches the program too: its failure is then no failure.
        interrupt.check()?;
        Ok(Ended { status, output: read(&mut self.output)?, errors: read(&mut self.errors)? })
    }
}

/// Runs a program to its end.
///
/// # Errors
/// As [`begin`] and [`Begun::end`].
pub fn run(command: &mut Command, interrupt: &Interrupt) -> Result<Ended, Error> {
    begin(command)?.end(interrupt)
}

fn read(file: &mut File) -> Result<String, Error> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(Error::io("cannot read a program's output"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
