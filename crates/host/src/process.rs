//! Process groups: a program and the processes that it starts, which end together.
//!
//! Invariants: a group whose program runs is killed when its handle is dropped, and reaped if it
//! ends within [`REAP_MAX`]. A signal of the terminal does not reach it.
//!
//! Programs are run outside of any executor and never in a simulation. So the workspace's bans of
//! the standard library's clock and sleep do not apply in this module.
#![allow(clippy::disallowed_methods)]

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// Pause between two looks at a running program.
pub const POLL: Duration = Duration::from_millis(20);

/// Time in which a killed program is expected to end.
const REAP_MAX: Duration = Duration::from_secs(1);

/// How the wait for a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Ended(ExitStatus),
    /// The time limit passed.
    TimedOut,
    /// The caller no longer wants the program.
    Abandoned,
}

/// A program with the processes that it starts.
#[derive(Debug)]
pub struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The ID of a program that was reaped may belong to another.
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            // A program in an uninterruptible call of the kernel ends later, and is reaped when
            // this process ends.
            let _ = self.wait(REAP_MAX, &|| true);
        }
    }
}

impl ProcessGroup {
    /// Starts a program without standard input.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> io::Result<ProcessGroup> {
        command.stdin(Stdio::null()).process_group(0).spawn().map(ProcessGroup)
    }

    /// Process ID of the program, valid as long as this value exists.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Status of a program that has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Waits for the end of the program, for at most `limit` and while `is_wanted`.
    pub fn wait(&mut self, limit: Duration, is_wanted: &dyn Fn() -> bool) -> io::Result<Waited> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Waited::Ended(status));
            }
            if !is_wanted() {
                return Ok(Waited::Abandoned);
            }
            if begun.elapsed() >= limit {
                return Ok(Waited::TimedOut);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Runs a program for at most `limit`, without its standard error. Returns its standard output.
///
/// # Errors
/// The program cannot be started, fails, or was killed: with `TimedOut` at its time limit, with
/// `FileTooLarge` for an output of more than `bytes_max`.
pub fn output(command: &mut Command, limit: Duration, bytes_max: u64) -> io::Result<Vec<u8>> {
    let begun = Instant::now();
    let left = || limit.saturating_sub(begun.elapsed());
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("it was killed after {limit:?}"));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut group = ProcessGroup::start(command)?;
    let mut stdout = group.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut output = Vec::new();
    loop {
        let wait = left().try_into().map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&wait)) {
            Ok(0) => return Err(late()),
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let mut part = [0; 4096];
        match stdout.read(&mut part) {
            Ok(0) => break,
            Ok(length) => output.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if output.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    match group.wait(left(), &|| true)? {
        Waited::Ended(status) if status.success() => Ok(output),
        Waited::Ended(status) => Err(io::Error::other(format!("it ended with {status}"))),
        Waited::TimedOut | Waited::Abandoned => Err(late()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn shell(script: &str, limit: Duration) -> io::Result<Vec<u8>> {
        output(Command::new("sh").args(["-c", script]), limit, 6)
    }

    #[test]
    fn output_of_a_program_is_bounded() {
        assert_eq!(shell("echo 12345; echo error >&2", LONG).unwrap(), b"12345\n");
        let kind = |script| shell(script, LONG).unwrap_err().kind();
        assert_eq!(kind("yes; sleep 1000"), io::ErrorKind::FileTooLarge);
        let failed = shell("exit 3", LONG).unwrap_err();
        assert!(failed.to_string().contains("exit status: 3"), "{failed}");
        let missing = output(&mut Command::new("/no/such/program"), LONG, 6).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    /// One program keeps its output open, the other closes it.
    #[test]
    fn program_over_time_limit_is_killed() {
        for script in ["sleep 1000 & wait", "exec >&-; sleep 1000 & wait"] {
            let late = shell(script, Duration::from_millis(50)).unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut);
            assert!(late.to_string().contains("killed after 50ms"), "{late}");
        }
    }

    /// The pipe ends when no process of the group holds it.
    #[test]
    fn dropped_group_ends_with_all_its_processes() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo; wait"]).stdout(Stdio::piped());
        let mut group = ProcessGroup::start(&mut command).unwrap();
        let mut stdout = group.0.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        assert_eq!(group.wait(LONG, &|| false).unwrap(), Waited::Abandoned);
        drop(group);
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0);
    }
}
