//! Environment in which a program runs: this machine as it is, or separate network and mount
//! namespaces.
//!
//! Namespaces need root. Each is held by a process that reads a pipe of the test. However the test
//! ends, the pipe closes, that process ends, and the namespaces disappear with their last program.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::tools;

/// Environment in which a program runs.
#[derive(Clone, Debug, Default)]
pub struct RunEnvironment(Vec<String>);

impl RunEnvironment {
    /// Command that runs `program` here. The spawned process is the program itself, so its process
    /// ID and signals are its own.
    pub fn command(&self, program: &Path) -> Command {
        let Some((first, rest)) = self.0.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }

    /// Runs a tool here to its end. Returns its output.
    ///
    /// # Errors
    ///
    /// The command line and the error output.
    pub fn try_run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let path = tools::find(program).ok_or_else(|| format!("{program} is not installed"))?;
        let output = self.command(&path).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("running {program}: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{program} {}: {}", arguments.join(" "), said.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`RunEnvironment::try_run`], for a tool that must succeed.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.try_run(program, arguments).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A process that holds namespaces, for the lifetime of this value.
#[derive(Debug)]
pub struct Namespaces {
    holder: Child,
    place: RunEnvironment,
}

impl Namespaces {
    /// Creates a network namespace with only the loopback, and a mount namespace that starts as a
    /// copy of this machine's.
    ///
    /// # Errors
    ///
    /// The missing prerequisite.
    pub fn make() -> Result<Namespaces, String> {
        let [unshare, nsenter] = ["unshare", "nsenter"]
            .map(|tool| tools::find(tool).ok_or_else(|| format!("{tool} is not installed")));
        let (unshare, nsenter): (PathBuf, PathBuf) = (unshare?, nsenter?);
        let mut holder = Command::new(unshare)
            .args(["--net", "--mount", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("running unshare: {error}"))?;
        let mut line = String::new();
        let read = BufReader::new(holder.stdout.take().expect("it is a pipe")).read_line(&mut line);
        if read.is_err() || line != "ready\n" {
            let output = holder.wait_with_output().map_err(|error| error.to_string())?;
            return Err(format!(
                "no namespaces: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let folder = format!("/proc/{}/ns", holder.id());
        let words = [
            nsenter.display().to_string(),
            format!("--net={folder}/net"),
            format!("--mount={folder}/mnt"),
        ];
        let made = Namespaces { holder, place: RunEnvironment(words.into()) };
        made.place.try_run("ip", &["link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Where programs run in these namespaces.
    pub fn place(&self) -> &RunEnvironment {
        &self.place
    }

    /// Process that holds the namespaces.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
