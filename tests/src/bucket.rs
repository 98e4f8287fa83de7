//! Real S3-compatible server (versitygw) as a child process on a free port, with one bucket.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use flagstone_lab::ports::free_ports;

use crate::authority::Authority;
use crate::process::{stall_process, until};
use crate::scratch::Scratch;
use crate::tools;

const PROGRAM: &str = "versitygw";
const KEY: &str = "flagstone-key";
const SECRET: &str = "flagstone-secret";

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Bucket {
    child: Option<Child>,
    port: u16,
    encrypted: bool,
    scratch: Scratch,
}

impl Bucket {
    /// Starts a server with an empty bucket. Skips `test` and returns `None` without the program.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start(test: &str) -> Option<Bucket> {
        can_run(test, &[PROGRAM]).then(|| Bucket::with(false))
    }

    /// As [`Bucket::start`], for a server that speaks TLS.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn encrypted(test: &str) -> Option<Bucket> {
        can_run(test, &[PROGRAM, "openssl"]).then(|| Bucket::with(true))
    }

    fn with(encrypted: bool) -> Bucket {
        let scratch = Scratch::new();
        if encrypted {
            Authority::new(&scratch).issue("server", "IP:127.0.0.1");
        }
        fs::create_dir_all(scratch.join("store/records")).expect("a bucket can be made");
        let [port] = free_ports().expect("ports are free");
        let mut bucket = Bucket { child: None, port, encrypted, scratch };
        bucket.set_secret(SECRET);
        bucket.run();
        bucket
    }

    /// Starts the server, on its data.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run(&mut self) {
        let log = File::create(self.scratch.join("server.log")).expect("a log can be made");
        let mut command =
            std::process::Command::new(tools::find(PROGRAM).expect("it is installed"));
        command.args(["--quiet", "--access", KEY, "--secret", SECRET, "--port"]);
        command.arg(format!("127.0.0.1:{}", self.port));
        if self.encrypted {
            command.arg("--cert").arg(self.scratch.join("server.pem"));
            command.arg("--key").arg(self.scratch.join("server.key"));
        }
        command.arg("posix").arg(self.scratch.join("store"));
        let out = log.try_clone().expect("a descriptor");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(log).spawn();
        self.child = Some(child.expect("the server can be started"));
        let log = self.scratch.join("server.log");
        let answers = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        until("the server answers", answers, || fs::read_to_string(&log).unwrap_or_default());
    }

    /// `[arbiter]` of a configuration.
    pub fn arbiter(&self) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        let mut text = format!(
            "[arbiter]\nobject_store = \"s3://records/zone\"\nendpoint = \"{scheme}://127.0.0.1:{}\"\n\
             credentials_file = {:?}\n",
            self.port,
            self.secret_file()
        );
        if self.encrypted {
            text += &format!("ca_file = {:?}\n", self.scratch.join("ca.pem"));
        }
        text
    }

    /// Options of a command on backups below a prefix of an unencrypted server.
    pub fn backup_options(&self, prefix: &str) -> String {
        let secret = self.secret_file();
        format!(
            "s3://records/{prefix} --endpoint http://127.0.0.1:{} --credentials-file {}",
            self.port,
            secret.display()
        )
    }

    /// Folder of the bucket's objects.
    pub fn folder(&self) -> PathBuf {
        self.scratch.join("store/records")
    }

    fn secret_file(&self) -> PathBuf {
        self.scratch.join("credentials")
    }

    /// Writes this secret key to the nodes' file.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn set_secret(&self, secret: &str) {
        let new = self.scratch.join("credentials.new");
        let text = format!("aws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
        fs::write(&new, text).expect("it can be written");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("own file");
        fs::rename(&new, self.secret_file()).expect("it can be replaced");
    }

    /// The secret key that the server accepts.
    pub fn right_secret(&self) -> &'static str {
        SECRET
    }

    /// Copies all objects, with their entity tags.
    pub fn back_up(&self) {
        self.copy("store", "backup");
    }

    /// Brings back the objects of the backup, while the server does not run.
    ///
    /// # Panics
    /// If they cannot be copied.
    pub fn restore(&self) {
        assert!(self.child.is_none(), "it runs");
        self.copy("backup", "store");
    }

    fn copy(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.scratch.join(name).display().to_string());
        let _ = fs::remove_dir_all(&to);
        tools::run("cp", &["-a", &from, &to]);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until a node asks the server, which does not run, and closes the connection.
    ///
    /// # Panics
    /// If none does.
    pub fn until_asked_in_vain(&self) {
        assert!(self.child.is_none(), "it runs");
        let trap = std::net::TcpListener::bind(("127.0.0.1", self.port)).expect("its port is free");
        trap.set_nonblocking(true).expect("a socket");
        until("a node asks the server", || trap.accept().is_ok(), || "no connection".to_owned());
    }

    /// Stops its process (SIGSTOP), or continues it.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stall(&self, stalled: bool) {
        stall_process(self.child.as_ref().expect("it runs").id(), stalled);
    }
}

/// As [`tools::have`], but without the server only if `scripts/test-servers.sh` could not build it.
fn can_run(test: &str, programs: &[&str]) -> bool {
    let is_missing = tools::workspace().join(".cache/tools/versitygw-missing").exists();
    if is_missing && tools::find(PROGRAM).is_none() {
        tools::unable(test, "versitygw cannot be built here");
        return false;
    }
    tools::have(test, programs)
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.kill();
    }
}
