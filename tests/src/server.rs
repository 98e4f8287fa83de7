//! `flagstone serve` as a child process: started on free ports, killed, restarted, stopped.
//!
//! The server tells the ports that it took, one line a listener on standard output:
//! `listening on nvme-tcp://127.0.0.1:41234`. What it logs on standard error is kept in a file
//! and shown when a test fails.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use flagstone_lab::ports::free_ports;
use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;
use crate::process::descriptors;
use crate::scratch::Scratch;
use crate::wire;

/// Longest wait for the server to print a line or to exit. A safety net: it takes milliseconds.
const SERVER_WAIT: Duration = Duration::from_secs(60);

/// Names the `flagstone` program to test, in place of one built from this workspace.
pub const BINARY: &str = "FLAGSTONE_BIN";

/// What a volume's NQN starts with when its configuration names none.
pub const NQN_PREFIX: &str = "nqn.2026-01.io.flagstone:";

/// The `flagstone` program: the one that [`BINARY`] names, else built from this workspace, once,
/// in the profile of this test. Building it here means that a test never runs a stale program.
///
/// # Panics
/// If the program cannot be built.
pub fn binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os(BINARY) {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", "flagstone", "--bin", "flagstone"])
        .args(["--profile", &profile(), "--message-format", "json-render-diagnostics"])
        .current_dir(crate::tools::workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "building flagstone: {}", output.status);
    // One JSON message a line; the program's path is in its compiler-artifact message.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "flagstone")
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .expect("cargo names the program that it built")
}

/// The profile of this test program, from where cargo put it: `target/PROFILE/deps/NAME`.
fn profile() -> String {
    let program = std::env::current_exe().expect("a program knows its path");
    let folder = program.ancestors().nth(2).and_then(Path::file_name);
    match folder.and_then(|name| name.to_str()) {
        Some("debug") | None => "dev".into(),
        Some(name) => name.into(),
    }
}

/// A running `flagstone serve`; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    printed: Vec<String>,
    volumes: Vec<String>,
    /// Where it listens, with the ports that it took, in the order asked for.
    listening: Vec<String>,
    /// Further arguments, such as `--cores 2`.
    arguments: Vec<String>,
    place: Place,
    scratch: Scratch,
}

impl Server {
    /// Starts a server of `volumes` (`NAME=DEVICE`) on NVMe/TCP and NBD, both on free ports of
    /// 127.0.0.1, and waits until it serves.
    ///
    /// # Panics
    /// If it does not come to serve, with what it printed.
    pub fn start(volumes: &[&str]) -> Self {
        Self::start_on(volumes, &["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"])
    }

    /// Like [`Server::start`], on the given listeners. Port 0 is a free one, kept for its restarts.
    ///
    /// # Panics
    /// If it does not come to serve, with what it printed.
    pub fn start_on(volumes: &[&str], listeners: &[&str]) -> Self {
        Self::start_with(volumes, listeners, &[])
    }

    /// Like [`Server::start_on`], with further arguments of `flagstone serve`.
    ///
    /// # Panics
    /// If it does not come to serve, with what it printed.
    pub fn start_with(volumes: &[&str], listeners: &[&str], arguments: &[&str]) -> Self {
        Self::start_at(&Place::default(), volumes, listeners, arguments)
    }

    /// Like [`Server::start_with`], at a place of its own.
    ///
    /// # Panics
    /// If it does not come to serve, with what it printed.
    pub fn start_at(
        place: &Place,
        volumes: &[&str],
        listeners: &[&str],
        arguments: &[&str],
    ) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let volumes = owned(volumes);
        let listening: Vec<_> = listeners.iter().map(|listener| on_kept_port(listener)).collect();
        let (arguments, scratch) = (owned(arguments), Scratch::new());
        let (child, lines) = spawn(place, &volumes, &listening, &arguments, &scratch);
        let (printed, place) = (Vec::new(), place.clone());
        let mut server =
            Self { child, lines, printed, volumes, listening, arguments, place, scratch };
        server.wait_until_serving();
        server
    }

    /// Collects the addresses until there is one for every listener asked for.
    fn wait_until_serving(&mut self) {
        let asked = std::mem::take(&mut self.listening);
        for listener in &asked {
            let address = loop {
                let line = match self.lines.recv_timeout(SERVER_WAIT) {
                    Ok(line) => line,
                    Err(error) => panic!(
                        "the server did not come to listen on {listener} ({error})\n{}",
                        self.output()
                    ),
                };
                self.printed.push(line.clone());
                if let Some(address) = line.strip_prefix("listening on ") {
                    break address.trim_end().to_owned();
                }
            };
            let scheme = |address: &str| address.split("://").next().map(str::to_owned);
            assert_eq!(scheme(&address), scheme(listener), "listeners come in the order asked");
            self.listening.push(address);
        }
    }

    /// The address of the first listener of `scheme` (`nvme-tcp`, `nbd`, `nbd+unix`), whole.
    ///
    /// # Panics
    /// If there is none.
    pub fn address(&self, scheme: &str) -> &str {
        self.listening
            .iter()
            .find(|address| address.split("://").next() == Some(scheme))
            .unwrap_or_else(|| panic!("no {scheme} among {:?}", self.listening))
    }

    /// The TCP port of the first listener of `scheme`.
    ///
    /// # Panics
    /// If there is none.
    pub fn port(&self, scheme: &str) -> u16 {
        let address = self.address(scheme);
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {address}"))
    }

    /// What an NBD client calls `export`, over TCP if the server listens there.
    pub fn nbd_uri(&self, export: &str) -> String {
        match self.listening.iter().find_map(|address| address.strip_prefix("nbd+unix://")) {
            Some(socket) => format!("nbd+unix:///{export}?socket={socket}"),
            None => format!("{}/{export}", self.address("nbd")),
        }
    }

    /// The socket of its API, unless `--api` was among the arguments.
    pub fn api(&self) -> PathBuf {
        api_path(&self.scratch)
    }

    /// Reads what it prints until a line begins with `prefix`, and gives the rest of that line.
    ///
    /// # Panics
    /// If no such line comes.
    pub fn printed_after(&mut self, prefix: &str) -> String {
        loop {
            let found = self.printed.iter().find_map(|line| line.strip_prefix(prefix));
            if let Some(rest) = found {
                return rest.to_owned();
            }
            match self.lines.recv_timeout(SERVER_WAIT) {
                Ok(line) => self.printed.push(line),
                Err(error) => panic!("no line {prefix} ({error})\n{}", self.output()),
            }
        }
    }

    /// The process, as `/proc` knows it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Descriptors that the server has open when nobody is connected. Counted while one host of
    /// NVMe/TCP is: some are made just after the addresses are printed, all before it is answered.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn idle_descriptors(&self) -> usize {
        let mut host = wire::connect(self.port("nvme-tcp"));
        wire::nvme_open(&mut host).expect("a host is answered");
        descriptors(self.pid()) - 1
    }

    /// Kills the server as `kill -9` does: it gets no chance to finish anything.
    pub fn kill(&mut self) {
        // Fails only for a process that has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the server if it runs, and starts it again with the same volumes on the same ports.
    ///
    /// # Panics
    /// If it does not come to serve again.
    pub fn restart(&mut self) {
        self.kill();
        let before = self.listening.clone();
        let (place, scratch) = (&self.place, &self.scratch);
        (self.child, self.lines) = spawn(place, &self.volumes, &before, &self.arguments, scratch);
        self.wait_until_serving();
        assert_eq!(self.listening, before, "the same addresses as before");
    }

    /// What an NVMe/TCP host calls the subsystem of `volume`.
    pub fn nvme_uri(&self, volume: &str) -> String {
        format!("{}/{NQN_PREFIX}{volume}", self.address("nvme-tcp"))
    }

    /// Asks the server to stop (SIGTERM), and waits until it has.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn terminate(&mut self) -> ExitStatus {
        self.stop(Signal::TERM)
    }

    /// Sends a signal that asks the server to stop, and waits until it has.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("a child that was not waited for can be signalled");
        // Its standard output ends when it exits: an event, and `wait` has no time limit.
        loop {
            match self.lines.recv_timeout(SERVER_WAIT) {
                Ok(line) => self.printed.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("the server did not stop\n{}", self.output())
                }
            }
        }
        self.child.wait().expect("a child can be waited for")
    }

    /// What the server has printed and logged so far, through all its restarts.
    pub fn output(&self) -> String {
        let log = fs::read_to_string(log_path(&self.scratch)).unwrap_or_default();
        format!("--- server's stdout\n{}\n--- server's log\n{log}", self.printed.join("\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("{}", self.output());
        }
    }
}

/// A listener with port 0, with a port that it still finds free when it starts again: one that the
/// kernel chose may by then be that of somebody's connection.
fn on_kept_port(listener: &str) -> String {
    match listener.strip_suffix(":0") {
        Some(address) => {
            let [port] = free_ports().expect("a port is free");
            format!("{address}:{port}")
        }
        None => listener.to_owned(),
    }
}

fn log_path(scratch: &Scratch) -> PathBuf {
    scratch.join("server.log")
}

fn api_path(scratch: &Scratch) -> PathBuf {
    scratch.join("api.sock")
}

/// Starts the program; its standard output comes line by line, its log is appended to a file of
/// `scratch`, where its API's socket is too.
fn spawn(
    place: &Place,
    volumes: &[String],
    listeners: &[String],
    arguments: &[String],
    scratch: &Scratch,
) -> (Child, Receiver<String>) {
    let log = log_path(scratch);
    let log = OpenOptions::new().create(true).append(true).open(log).expect("a log can be opened");
    let mut command = place.command(binary());
    command.arg("serve");
    for volume in volumes {
        command.args(["--volume", volume]);
    }
    for listener in listeners {
        command.args(["--listen", listener]);
    }
    command.args(arguments);
    // Not the place of a server that really serves on this machine.
    if !arguments.iter().any(|argument| argument == "--api") {
        command.arg("--api").arg(api_path(scratch));
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()));
    let output = child.stdout.take().expect("stdout is a pipe");
    let (sender, lines) = mpsc::channel();
    // Ends with the pipe, that is with the child.
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Reads on when nobody listens, so that the child never blocks on a full pipe.
            let _ = sender.send(line);
        }
    });
    (child, lines)
}
