//! Real etcd, one member, as a child process on free ports.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use flagstone_lab::ports::free_ports;

use crate::process::{stall_process, until};
use crate::scratch::Scratch;
use crate::tools;

/// A running etcd; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    child: Option<Child>,
    ports: [u16; 2],
    scratch: Scratch,
}

impl Etcd {
    /// Starts a member with an empty store. Skips `test` and returns `None` without the program.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start(test: &str) -> Option<Etcd> {
        if !tools::have(test, &["etcd"]) {
            return None;
        }
        let ports = free_ports().expect("ports are free");
        let mut etcd = Etcd { child: None, ports, scratch: Scratch::new() };
        etcd.run();
        Some(etcd)
    }

    /// Starts the process again, on its data.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run(&mut self) {
        let log = File::create(self.scratch.join("etcd.log")).expect("a log can be made");
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.ports[1]));
        let child = Command::new(tools::find("etcd").expect("it is installed"))
            .arg("--data-dir")
            .arg(self.scratch.join("data"))
            .args(["--name", "one", "--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd can be started");
        self.child = Some(child);
        let answers = || std::net::TcpStream::connect(("127.0.0.1", self.ports[0])).is_ok();
        let log = self.scratch.join("etcd.log");
        until("etcd answers", answers, || std::fs::read_to_string(&log).unwrap_or_default());
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process (SIGSTOP), or continues it.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stall(&self, stalled: bool) {
        stall_process(self.child.as_ref().expect("it runs").id(), stalled);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
