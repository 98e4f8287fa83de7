//! Processes: programs that are run to their end or in the background, and the user's interruption.
//!
//! Invariants: a process is killed with its group when its handle is dropped; Ctrl-C reaches only
//! this process; its output goes to files, so that it never blocks on us, and a bounded part of it
//! is read.
//!
//! A benchmark waits for programs outside of any executor and never in a simulation. So the
//! workspace's bans of the standard library's processes and sleep do not apply in this module.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flagstone_host::process::{POLL, ProcessGroup};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::Error;
use crate::os::Stopwatch;
use crate::pauses::Pauses;

/// Grace period of a program that was asked to end, before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Operation in the error of a program that cannot be started.
pub(crate) const CANNOT_START: &str = "cannot start a program";

#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// An interrupt that is not raised by signals.
    pub fn never() -> Interrupt {
        Interrupt::default()
    }

    /// Catches SIGINT, SIGTERM and SIGHUP.
    pub fn catch() -> Result<Interrupt, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(Error::system("cannot catch signals"))?;
        }
        Ok(Interrupt(flag))
    }

    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.is_raised() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[derive(Debug)]
pub struct ProcessOutput {
    pub status: ExitStatus,
    pub output: String,
    pub errors: String,
    /// Time in which it stood still, in seconds: stopped by a signal, or with the whole machine.
    pub paused_s: f64,
}

impl ProcessOutput {
    /// The last `bytes_max` of standard error, or of standard output if there are no errors,
    /// without control characters.
    pub fn message(&self, bytes_max: usize) -> String {
        let text = if self.errors.trim().is_empty() { &self.output } else { &self.errors };
        printable(tail(text.trim(), bytes_max))
    }
}

/// The last `bytes_max` bytes of a text, from a character on.
pub fn tail(text: &str, bytes_max: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes_max))..]
}

/// A text without control characters of terminals.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "?")
}

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    group: ProcessGroup,
    output: File,
    errors: File,
    pauses: Pauses,
}

impl Process {
    /// Starts a program with its output and errors in temporary files.
    pub fn start(command: &mut Command) -> Result<Process, Error> {
        let file = || tempfile::tempfile().map_err(Error::system("cannot create a temporary file"));
        Process::spawn(command, file()?, file()?)
    }

    /// Starts a program with its output and errors in one new file.
    pub fn start_with_log(command: &mut Command, log: &Path) -> Result<Process, Error> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(log);
        let file = file.map_err(Error::file("cannot create", log))?;
        Process::spawn(command, copy(&file)?, file)
    }

    fn spawn(command: &mut Command, output: File, errors: File) -> Result<Process, Error> {
        command.stdout(copy(&output)?).stderr(copy(&errors)?);
        let group = ProcessGroup::start(command).map_err(Error::system(CANNOT_START))?;
        Ok(Process { pauses: Pauses::begin(group.pid()), group, output, errors })
    }

    /// Process ID, valid as long as this value exists.
    pub fn pid(&self) -> Pid {
        self.group.pid()
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        kill_process(self.pid(), signal)
            .map_err(|cause| Error::system("cannot signal a program")(cause.into()))
    }

    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.group.try_wait().map_err(Error::system("cannot wait for a program"))
    }

    /// Waits for the end. `None` after `limit`; the process keeps running then.
    pub fn wait(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<ExitStatus>, Error> {
        let watch = Stopwatch::start();
        let is_late = |_: &Pauses| watch.seconds() > limit.as_secs_f64();
        self.wait_until(&is_late, interrupt, &mut || {})
    }

    /// Waits for the end as [`Process::wait`] does, and returns at most `bytes_max` of each output.
    /// `None` after `limit`; the process is killed then.
    pub fn finish(
        mut self,
        limit: Duration,
        bytes_max: u64,
        interrupt: &Interrupt,
    ) -> Result<Option<ProcessOutput>, Error> {
        let ended = self.wait(limit, interrupt)?;
        ended.map(|status| self.result(status, bytes_max)).transpose()
    }

    /// At most `bytes_max` of standard output so far.
    pub fn output_so_far(&self, bytes_max: u64) -> Result<String, Error> {
        read(&self.output, bytes_max)
    }

    fn result(&self, status: ExitStatus, bytes_max: u64) -> Result<ProcessOutput, Error> {
        let (output, errors) = (read(&self.output, bytes_max)?, read(&self.errors, bytes_max)?);
        Ok(ProcessOutput { status, output, errors, paused_s: self.pauses.seconds() })
    }

    fn wait_until(
        &mut self,
        is_late: &dyn Fn(&Pauses) -> bool,
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<Option<ExitStatus>, Error> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            interrupt.check()?;
            if is_late(&self.pauses) {
                return Ok(None);
            }
            tick();
            self.pauses.wait(POLL, std::thread::sleep);
        }
    }
}

/// Runs a program to its end; `tick` is called repeatedly meanwhile. At most `bytes_max` of each of
/// its outputs are read. A failure of the program is in [`ProcessOutput`].
///
/// # Errors
/// The program cannot be started, [`Error::Interrupted`] (it has ended then), and the system's.
pub fn run(
    command: &mut Command,
    bytes_max: u64,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<ProcessOutput, Error> {
    let ended = run_until(command, bytes_max, interrupt, &|_| false, tick)?;
    ended.ok_or(Error::Interrupted)
}

/// Like [`run`], with a time limit that excludes pauses. `None` if the program did not end in time;
/// it has been terminated then.
pub(crate) fn run_within(
    command: &mut Command,
    bytes_max: u64,
    interrupt: &Interrupt,
    limit: Duration,
) -> Result<Option<ProcessOutput>, Error> {
    let watch = Stopwatch::start();
    let is_late = |pauses: &Pauses| watch.seconds() - pauses.seconds() > limit.as_secs_f64();
    run_until(command, bytes_max, interrupt, &is_late, &mut || {})
}

fn run_until(
    command: &mut Command,
    bytes_max: u64,
    interrupt: &Interrupt,
    is_late: &dyn Fn(&Pauses) -> bool,
    tick: &mut dyn FnMut(),
) -> Result<Option<ProcessOutput>, Error> {
    let mut process = Process::start(command)?;
    let ended = process.wait_until(is_late, interrupt, tick);
    match ended {
        Ok(Some(status)) => process.result(status, bytes_max).map(Some),
        Ok(None) | Err(Error::Interrupted) => {
            // It may have ended just now.
            let _ = process.signal(Signal::INT);
            process.wait(GRACE, &Interrupt::never())?;
            ended.map(|_| None)
        }
        Err(error) => Err(error),
    }
}

fn copy(file: &File) -> Result<File, Error> {
    file.try_clone().map_err(Error::system("cannot copy a descriptor"))
}

/// Reads from the start without moving the offset, which the process shares.
fn read(file: &File, bytes_max: u64) -> Result<String, Error> {
    let cannot = "cannot read a program's output";
    let length = file.metadata().map_err(Error::system(cannot))?.len().min(bytes_max);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0).map_err(Error::system(cannot))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Polls until `look` returns a value, for at most `seconds_most`; `None` after that.
pub fn wait_for<T>(
    seconds_most: f64,
    interrupt: &Interrupt,
    mut look: impl FnMut() -> Option<T>,
) -> Result<Option<T>, Error> {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        interrupt.check()?;
        if watch.seconds() >= seconds_most {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_ends_running_program() {
        let interrupt = Interrupt::never();
        let ended = run(
            Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]),
            100,
            &interrupt,
            &mut || {},
        );
        let ended = ended.unwrap();
        assert_eq!((ended.status.code(), ended.output.as_str()), (Some(3), "a\n"));
        assert_eq!(ended.message(100), "b");
        let raised = interrupt.clone();
        let ended = run(Command::new("sleep").arg("1000"), 100, &interrupt, &mut || raised.raise());
        assert!(matches!(ended, Err(Error::Interrupted)));
    }

    /// The program is stopped until that is observed, continued, and ends after the next poll.
    #[test]
    fn stopped_program_reports_paused_time() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let script = "echo $$ >pid; kill -STOP $$; until [ -e end ]; do sleep 0.01; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(directory.path());
        let mut is_continued = false;
        let mut tick = || {
            let pid = std::fs::read_to_string(at("pid")).unwrap_or_default();
            let pid = pid.trim();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if is_continued {
                // It was polled between the last tick and this one.
                std::fs::write(at("end"), "").unwrap();
            } else if stat.contains(") T ") {
                let sent = Command::new("kill").args(["-CONT", pid]).status();
                is_continued = sent.unwrap().success();
            }
        };
        let ended = run(&mut command, 100, &Interrupt::never(), &mut tick).unwrap();
        assert!(ended.status.success() && ended.paused_s > 0.0, "{ended:?}");
    }

    /// A program that ignores the request to end is killed; an interruption is distinguished from
    /// the time limit.
    #[test]
    fn program_over_time_limit_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let never = Interrupt::never();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >new; mv new pid; exec sleep 100000"])
            .current_dir(directory.path());
        let short = Duration::from_millis(50);
        while !pid.exists() {
            let ended = run_within(&mut command, 100, &never, short).unwrap();
            assert!(ended.is_none(), "{ended:?}");
        }
        let pid = std::fs::read_to_string(&pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid} is there still");
        let raised = Interrupt::never();
        raised.raise();
        let ended = run_within(&mut command, 100, &raised, Duration::from_secs(100_000));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let long = Duration::from_secs(100_000);
        let ended = run_within(Command::new("echo").arg("1"), 100, &never, long).unwrap();
        assert_eq!(ended.unwrap().output, "1\n");
    }

    #[test]
    fn program_output_is_bounded() {
        let ended =
            run(Command::new("echo").arg("123456"), 3, &Interrupt::never(), &mut || {}).unwrap();
        assert_eq!(ended.output, "123");
        let missing =
            run(&mut Command::new("/no/such/program"), 3, &Interrupt::never(), &mut || {});
        assert!(matches!(missing, Err(Error::System { .. })));
    }

    #[test]
    fn background_process_ends_by_signal_or_drop() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        // Tests that run in the background may ignore SIGINT, and a shell that inherits this cannot
        // trap it.
        let script = "trap 'echo bye >&2; exit 7' INT; echo ready; while :; do sleep 0.01; done";
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "sh", "-c", script]);
        let never = Interrupt::never();
        let long = Duration::from_secs(1000);
        let stopped = |process: Process| {
            let is_ready = || process.output_so_far(100).unwrap().contains("ready").then_some(());
            assert_eq!(wait_for(1000.0, &never, is_ready).unwrap(), Some(()));
            process.signal(Signal::INT).unwrap();
            let ended = process.finish(long, 100, &never).unwrap().expect("it ends");
            assert_eq!(ended.status.code(), Some(7));
            ended
        };
        let apart = stopped(Process::start(&mut command).unwrap());
        assert_eq!((apart.output.as_str(), apart.errors.as_str()), ("ready\n", "bye\n"));
        let together = stopped(Process::start_with_log(&mut command, &log).unwrap());
        assert_eq!(together.output, "ready\nbye\n");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), together.output);
        let process = Process::start(Command::new("sleep").arg("1000")).unwrap();
        let pid = process.pid();
        assert!(process.finish(Duration::ZERO, 100, &never).unwrap().is_none());
        assert!(kill_process(pid, Signal::CONT).is_err(), "the process is gone");
    }
}
