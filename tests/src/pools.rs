//! Server with pools, and the orders of an operator.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::http::get;
use crate::scratch::Scratch;
use crate::server::{Server, binary};

const LISTENERS: [&str; 2] = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];

/// A server with a state directory, and a volume `own` of its configuration.
pub struct Bed {
    /// The server.
    pub server: Server,
    /// Folder of its files.
    pub scratch: Scratch,
}

impl Bed {
    /// Starts the server.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> Bed {
        let scratch = Scratch::new();
        let state = scratch.join("state");
        Bed::with_state(scratch, &state)
    }

    /// Starts the server with this state directory.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with_state(scratch: Scratch, state: &Path) -> Bed {
        let own = format!("own={}", scratch.disk("own", 16 << 20).display());
        let arguments = ["--state", state.to_str().expect("temporary paths are UTF-8")];
        Bed { server: Server::start_with(&[&own], &LISTENERS, &arguments), scratch }
    }

    /// A sparse file of 1 GiB.
    pub fn device(&self, name: &str) -> PathBuf {
        self.scratch.disk(name, 1 << 30)
    }

    /// Runs a command against the server.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("flagstone runs")
    }

    /// Starts a command against the server, which may take long.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_order(&self, line: &str) -> Child {
        let mut command = self.command(line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("flagstone runs")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(line.split(' ')).arg("--api").arg(self.server.api()).stdin(Stdio::null());
        command
    }

    /// Standard output of a successful command.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Standard error of a refused command.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn refused(&self, line: &str) -> String {
        let output = self.output(line);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_ne!(output.status.code(), Some(0), "{line}: {printed}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Document of the pool.
    pub fn pool(&self) -> Value {
        get(&self.server.api(), "/v1/pools/fast")
    }

    /// Creates pool `fast` on a device of 1 GiB.
    pub fn with_pool() -> (Bed, PathBuf) {
        let bed = Bed::start();
        let device = bed.device("disk");
        bed.run(&format!("pool create fast {}", device.display()));
        (bed, device)
    }
}
