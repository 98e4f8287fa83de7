//! `flagstone serve` as its systemd unit starts it, with a notification socket that the test reads.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;
use crate::tools;

/// Longest wait for a message. A safety net: it takes milliseconds.
const MESSAGE_WAIT: Duration = Duration::from_secs(60);

/// Time limit of the watchdog. Only the number of its messages matters here.
const WATCHDOG_USEC: &str = "300000";

/// Words of `ExecStart` in the unit: the program and its arguments.
///
/// # Panics
/// If the unit has none.
pub fn unit_command() -> Vec<String> {
    let unit = fs::read_to_string(tools::workspace().join("packaging/flagstone.service"));
    let unit = unit.expect("the unit is there");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
    line.expect("it starts a program").split_whitespace().map(str::to_owned).collect()
}

/// A running service; killed when dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    socket: UnixDatagram,
    scratch: Scratch,
}

impl Service {
    /// Starts `command` and waits until it reports that it is ready.
    ///
    /// # Panics
    /// If it does not, with its output.
    pub fn start(mut command: Command) -> Service {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // An abstract socket is reached from a changed root, too.
        let name = format!("flagstone-service-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("the name is free");
        socket.set_read_timeout(Some(MESSAGE_WAIT)).expect("the wait is not zero");
        let scratch = Scratch::new();
        let log = File::create(scratch.join("log")).expect("a log can be made");
        let child = command
            .env("NOTIFY_SOCKET", format!("@{name}"))
            .env("WATCHDOG_USEC", WATCHDOG_USEC)
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let mut service = Service { child, socket, scratch };
        service.message("READY=1");
        service
    }

    /// Waits for the next message that has the line `first`, and returns it.
    ///
    /// # Panics
    /// If there is none.
    pub fn message(&mut self, first: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(error) => panic!("no message {first}: {error}\n{}", self.log()),
            };
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.lines().any(|line| line == first) {
                return text;
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("an unreaped child");
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// Its output and log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("log")).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails only if the process was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// The command of the unit with another program and another directory of configurations.
///
/// # Panics
/// If the unit does not serve its directory.
pub fn unit_command_at(program: &Path, directory: &Path) -> Command {
    let words = unit_command();
    let mut command = Command::new(program);
    let serves = words.iter().position(|word| word == "/etc/flagstone/conf.d");
    let at = serves.expect("the unit serves its directory");
    let argument = |(index, word): (usize, &String)| match index == at {
        true => PathBuf::from(directory),
        false => PathBuf::from(word),
    };
    let arguments = words.iter().enumerate().map(argument).skip(1);
    command.args(arguments.map(|argument| AsRef::<OsStr>::as_ref(&argument).to_owned()));
    command
}
