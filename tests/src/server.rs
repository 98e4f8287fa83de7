//! `flagstone serve` as a child process: started on free ports, killed, restarted, stopped.
//!
//! The server prints its ports on standard output, one line per listener: `listening on
//! nvme-tcp://127.0.0.1:41234`. Its log on standard error goes to a file, which is shown when a
//! test fails.

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

use crate::environment::RunEnvironment;
use crate::process::descriptors;
use crate::scratch::Scratch;
use crate::wire;

/// Longest wait for the server to print a line or to exit. A safety net: it takes milliseconds.
const SERVER_WAIT: Duration = Duration::from_secs(60);

/// Environment variable with the `flagstone` program to test, instead of one built from this
/// workspace.
pub const BINARY: &str = "FLAGSTONE_BIN";

/// Prefix of a volume's NQN when its configuration has none.
pub const NQN_PREFIX: &str = "nqn.2026-01.io.flagstone:";

/// The `flagstone` program: [`BINARY`], or one built from this workspace, once, in the profile of
/// this test. Building it here ensures that no test runs a stale program.
///
/// # Panics
///
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
    // One JSON message per line; the compiler-artifact message has the program's path.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "flagstone")
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .expect("cargo names the program that it built")
}

/// Profile of this test program, from cargo's path `target/PROFILE/deps/NAME`.
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
    /// Addresses of its listeners, with the actual ports, in the order of the arguments.
    listening: Vec<String>,
    /// Additional arguments, such as `--cores 2`.
    arguments: Vec<String>,
    place: RunEnvironment,
    scratch: Scratch,
}

impl Server {
    /// Starts a server of `volumes` (`NAME=DEVICE`) on NVMe/TCP and NBD, both on free ports of
    /// 127.0.0.1, and waits until it serves.
    ///
    /// # Panics
    ///
    /// If it does not start to serve, with its output.
    pub fn start(volumes: &[&str]) -> Self {
        Self::start_on(volumes, &["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"])
    }

    /// As [`Server::start`], on the given listeners. Port 0 becomes a free port, which restarts
    /// keep.
    ///
    /// # Panics
    ///
    /// If it does not start to serve, with its output.
    pub fn start_on(volumes: &[&str], listeners: &[&str]) -> Self {
        Self::start_with(volumes, listeners, &[])
    }

    /// As [`Server::start_on`], with additional arguments of `flagstone serve`.
    ///
    /// # Panics
    ///
    /// If it does not start to serve, with its output.
    pub fn start_with(volumes: &[&str], listeners: &[&str], arguments: &[&str]) -> Self {
        Self::start_at(&RunEnvironment::default(), volumes, listeners, arguments)
    }

    /// As [`Server::start_with`], in `place`.
    ///
    /// # Panics
    ///
    /// If it does not start to serve, with its output.
    pub fn start_at(
        place: &RunEnvironment,
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

    /// Collects addresses until every requested listener has one.
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

    /// Complete address of the first listener of `scheme` (`nvme-tcp`, `nbd`, `nbd+unix`).
    ///
    /// # Panics
    ///
    /// If there is no such listener.
    pub fn address(&self, scheme: &str) -> &str {
        self.listening
            .iter()
            .find(|address| address.split("://").next() == Some(scheme))
            .unwrap_or_else(|| panic!("no {scheme} among {:?}", self.listening))
    }

    /// TCP port of the first listener of `scheme`.
    ///
    /// # Panics
    ///
    /// If there is no such listener.
    pub fn port(&self, scheme: &str) -> u16 {
        let address = without_query(self.address(scheme));
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {address}"))
    }

    /// NBD URI of `export`, over TCP if the server listens there.
    pub fn nbd_uri(&self, export: &str) -> String {
        match self.listening.iter().find_map(|address| address.strip_prefix("nbd+unix://")) {
            Some(socket) => format!("nbd+unix:///{export}?socket={socket}"),
            None => format!("{}/{export}", without_query(self.address("nbd"))),
        }
    }

    /// Socket of its API, unless the arguments include `--api`.
    pub fn api(&self) -> PathBuf {
        api_path(&self.scratch)
    }

    /// Port of the metrics.
    ///
    /// # Panics
    ///
    /// If the server has none.
    pub fn metrics_port(&mut self) -> u16 {
        let address = self.printed_after("metrics on http://");
        let port = address.strip_suffix("/metrics").and_then(|address| address.rsplit(':').next());
        port.and_then(|port| port.parse().ok()).expect(&address)
    }

    /// Reads its output until a line begins with `prefix`. Returns the rest of that line.
    ///
    /// # Panics
    ///
    /// If there is no such line.
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

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Number of open descriptors without connections. Counted while one NVMe/TCP host is
    /// connected: the server opens some descriptors just after it prints the addresses, and all of
    /// them before it answers.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn idle_descriptors(&self) -> usize {
        let mut host = wire::connect(self.port("nvme-tcp"));
        wire::nvme_open(&mut host).expect("a host is answered");
        descriptors(self.pid()) - 1
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        // Fails only if the process was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the server if it runs, and starts it again with the same volumes and ports.
    ///
    /// # Panics
    ///
    /// If it does not start to serve again.
    pub fn restart(&mut self) {
        self.kill();
        let before = self.listening.clone();
        let (place, scratch) = (&self.place, &self.scratch);
        (self.child, self.lines) = spawn(place, &self.volumes, &before, &self.arguments, scratch);
        self.wait_until_serving();
        assert_eq!(self.listening, before, "the same addresses as before");
    }

    /// NVMe/TCP URI of the subsystem of `volume`.
    pub fn nvme_uri(&self, volume: &str) -> String {
        format!("{}/{NQN_PREFIX}{volume}", without_query(self.address("nvme-tcp")))
    }

    /// Stops the server with SIGTERM and waits until it has exited.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn terminate(&mut self) -> ExitStatus {
        self.stop(Signal::TERM)
    }

    /// Sends a stop signal to the server and waits until it has exited.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("an unreaped child can be signaled");
        // Its standard output ends when it exits. That is an event, while `wait` has no timeout.
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

    /// Output and log of the server so far, through all its restarts.
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

/// The address of a listener without its options.
fn without_query(listener: &str) -> &str {
    listener.split('?').next().unwrap_or(listener)
}

/// Replaces port 0 of a listener by a port that is still free after a restart. A port that the
/// kernel chose may by then belong to an outgoing connection.
fn on_kept_port(listener: &str) -> String {
    let query = listener.find('?').unwrap_or(listener.len());
    let (listener, query) = listener.split_at(query);
    match listener.strip_suffix(":0") {
        Some(address) => {
            let [port] = free_ports().expect("a port is free");
            format!("{address}:{port}{query}")
        }
        None => format!("{listener}{query}"),
    }
}

fn log_path(scratch: &Scratch) -> PathBuf {
    scratch.join("server.log")
}

fn api_path(scratch: &Scratch) -> PathBuf {
    scratch.join("api.sock")
}

/// Starts the program. Its standard output arrives line by line; its log is appended to a file in
/// `scratch`, which also holds its API socket.
fn spawn(
    place: &RunEnvironment,
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
        let is_local = listener.contains("://127.") || listener.contains("+unix:");
        command.args([if is_local { "--listen" } else { "--listen-insecure" }, listener]);
    }
    command.args(arguments);
    // Not the default path, which belongs to a real server on this machine.
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
    // Ends with the pipe, that is, with the child.
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Continues to read without a receiver, so that the child never blocks on a full pipe.
            let _ = sender.send(line);
        }
    });
    (child, lines)
}
