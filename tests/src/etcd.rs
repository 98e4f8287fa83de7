//! Real etcd as child processes on free ports: one member or a cluster of three, also encrypted.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use flagstone_lab::ports::free_ports;
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::environment::RunEnvironment;
use crate::http::post_port;
use crate::process::{stall_process, until};
use crate::scratch::Scratch;
use crate::tools;

/// Address on this machine.
const LOOPBACK: &str = "127.0.0.1";

/// A running etcd; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    place: RunEnvironment,
    address: String,
    encrypted: bool,
    quota_bytes: Option<u64>,
    scratch: Scratch,
}

#[derive(Debug)]
struct Member {
    child: Option<Child>,
    client_port: u16,
    peer_port: u16,
}

impl Etcd {
    /// Starts one member with an empty store. Skips `test` and returns `None` without the program.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start(test: &str) -> Option<Etcd> {
        Etcd::with(test, 1, RunEnvironment::default(), LOOPBACK, false)
    }

    /// As [`Etcd::start`], for a cluster of three.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn cluster(test: &str) -> Option<Etcd> {
        Etcd::with(test, 3, RunEnvironment::default(), LOOPBACK, false)
    }

    /// As [`Etcd::start`], for a member that speaks TLS and admits clients with certificates only.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn encrypted(test: &str) -> Option<Etcd> {
        Etcd::with(test, 1, RunEnvironment::default(), LOOPBACK, true)
    }

    /// As [`Etcd::start`], where `place` has this address.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn at(test: &str, place: &RunEnvironment, address: &str) -> Option<Etcd> {
        Etcd::with(test, 1, place.clone(), address, false)
    }

    fn with(
        test: &str,
        members: usize,
        place: RunEnvironment,
        address: &str,
        encrypted: bool,
    ) -> Option<Etcd> {
        let needed: &[&str] = if encrypted { &["etcd", "openssl"] } else { &["etcd"] };
        if !tools::have(test, needed) {
            return None;
        }
        let scratch = Scratch::new();
        if encrypted {
            let authority = Authority::new(&scratch);
            authority.issue("etcd", &format!("IP:{address}"));
            authority.issue("node", "DNS:node.example.com");
        }
        let members = (0..members).map(|_| {
            let [client_port, peer_port] = free_ports().expect("ports are free");
            Member { child: None, client_port, peer_port }
        });
        let address = address.to_owned();
        let mut etcd = Etcd {
            members: members.collect(),
            place,
            address,
            encrypted,
            quota_bytes: None,
            scratch,
        };
        etcd.run();
        Some(etcd)
    }

    /// Starts all members that do not run, on their data.
    ///
    /// # Panics
    /// If they do not answer.
    pub fn run(&mut self) {
        for member in 0..self.members.len() {
            if self.members[member].child.is_none() {
                self.members[member].child = Some(self.spawn(member));
            }
        }
        for member in 0..self.members.len() {
            let log = self.scratch.join(&format!("etcd-{member}.log"));
            let port = self.members[member].client_port.to_string();
            let place = &self.place;
            let answers = || match self.address == LOOPBACK {
                true => std::net::TcpStream::connect((LOOPBACK, self.members[member].client_port))
                    .is_ok(),
                // Another namespace: its sockets are listed there.
                false => place.run("ss", &["-Hltn", "sport", "=", &port]).contains(&port),
            };
            until("etcd answers", answers, || std::fs::read_to_string(&log).unwrap_or_default());
        }
    }

    fn spawn(&self, member: usize) -> Child {
        let file = |name: &str| self.scratch.join(name);
        let log = File::create(file(&format!("etcd-{member}.log"))).expect("a log can be made");
        let peer =
            |index: usize| format!("http://{}:{}", self.address, self.members[index].peer_port);
        let all: Vec<String> =
            (0..self.members.len()).map(|index| format!("m{index}={}", peer(index))).collect();
        let (client, own) = (self.url(member), peer(member));
        let mut command: Command =
            self.place.command(&tools::find("etcd").expect("it is installed"));
        command
            .arg("--data-dir")
            .arg(file(&format!("data-{member}")))
            .args(["--name", &format!("m{member}"), "--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client, "--listen-peer-urls", &own])
            .args(["--initial-advertise-peer-urls", &own])
            .args(["--initial-cluster", &all.join(",")]);
        if let Some(bytes) = self.quota_bytes {
            command.arg(format!("--quota-backend-bytes={bytes}"));
        }
        if self.encrypted {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem"));
            command.arg("--cert-file").arg(file("etcd.pem"));
            command.arg("--key-file").arg(file("etcd.key"));
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("etcd can be started")
    }

    fn url(&self, member: usize) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.address, self.members[member].client_port)
    }

    /// `[arbiter]` of a configuration.
    pub fn arbiter(&self) -> String {
        let urls: Vec<String> = (0..self.members.len()).map(|member| self.url(member)).collect();
        let mut text = format!("[arbiter]\netcd = {urls:?}\n");
        if self.encrypted {
            for (key, name) in
                [("ca_file", "ca.pem"), ("certificate_file", "node.pem"), ("key_file", "node.key")]
            {
                text += &format!("{key} = {:?}\n", self.scratch.join(name));
            }
        }
        text
    }

    /// Kills all members.
    pub fn kill(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill_member(member));
    }

    /// Kills one member.
    pub fn kill_member(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops all processes (SIGSTOP), or continues them.
    ///
    /// # Panics
    /// If one does not run.
    pub fn stall(&self, stalled: bool) {
        for member in &self.members {
            stall_process(member.child.as_ref().expect("it runs").id(), stalled);
        }
    }

    /// The member that leads the cluster.
    ///
    /// # Panics
    /// If none is elected.
    pub fn leader(&self) -> usize {
        let mut found = None;
        let elected = || {
            found = (0..self.members.len()).find(|member| {
                let status = self.post(*member, "/v3/maintenance/status", &json!({}));
                status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
            });
            found.is_some()
        };
        until("etcd elects a leader", elected, String::new);
        found.expect("it was waited for")
    }

    /// Sends a request of etcd's JSON API to a member that runs and is not encrypted.
    ///
    /// # Panics
    /// If the answer is not JSON.
    pub fn post(&self, member: usize, path: &str, body: &Value) -> Value {
        post_port(self.members[member].client_port, path, &body.to_string()).json()
    }

    /// Forgets the history of all keys.
    ///
    /// # Panics
    /// If it refuses.
    pub fn compact(&self) {
        let key = json!({ "key": "AA==", "range_end": "AA==", "count_only": true });
        let revision = self.post(0, "/v3/kv/range", &key)["header"]["revision"].clone();
        let request = json!({ "revision": revision, "physical": true });
        let compacted = self.post(0, "/v3/kv/compaction", &request);
        assert!(compacted["header"].is_object(), "{compacted}");
    }

    /// As [`Etcd::start`], for a member whose store may grow to this size.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn with_quota(test: &str, bytes: u64) -> Option<Etcd> {
        let mut etcd = Etcd::with(test, 1, RunEnvironment::default(), LOOPBACK, false)?;
        etcd.kill();
        etcd.quota_bytes = Some(bytes);
        etcd.run();
        Some(etcd)
    }

    /// Writes until the store has no space left: from now on it refuses writes.
    ///
    /// # Panics
    /// If it takes all writes.
    pub fn fill(&self) {
        // 64 KiB in base64, at another key.
        let body = json!({ "key": "ZmlsbA==", "value": "A".repeat(87_380) }).to_string();
        let port = self.members[0].client_port;
        let refused = |_| post_port(port, "/v3/kv/put", &body).status != 200;
        assert!((0..10_000).any(refused), "etcd has no quota");
    }

    /// Frees all that [`Etcd::fill`] wrote: writes are taken again.
    ///
    /// # Panics
    /// If it refuses.
    pub fn free(&self) {
        self.compact();
        let ask = |path: &str, body: Value| {
            let answer = self.post(0, &format!("/v3/maintenance/{path}"), &body);
            assert!(answer["error"].is_null(), "{path}: {answer}");
            answer
        };
        ask("defragment", json!({}));
        let found = ask("alarm", json!({ "action": "GET", "alarm": "NOSPACE" }));
        let member = &found["alarms"][0]["memberID"];
        assert!(member.is_string(), "no alarm is raised: {found}");
        let off = json!({ "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member });
        ask("alarm", off);
    }

    /// From now on user `flagstone` may only read, or also write, after [`Etcd::require_password`].
    ///
    /// # Panics
    /// If it refuses.
    pub fn permit(&self, kind: &str) {
        self.as_root("role/grant", &grant(kind));
    }

    fn as_root(&self, path: &str, body: &Value) {
        let login = json!({ "name": "root", "password": "r" });
        let token = self.post(0, "/v3/auth/authenticate", &login)["token"].clone();
        let header = format!("Authorization: {}\r\n", token.as_str().expect("a token"));
        let (port, path) = (self.members[0].client_port, format!("/v3/auth/{path}"));
        let answer = crate::http::post_with(port, &path, &header, &body.to_string()).json();
        assert!(answer["error"].is_null(), "{path}: {answer}");
    }

    /// Requires passwords from now on: that of user `flagstone` is `password`.
    ///
    /// # Panics
    /// If it refuses.
    pub fn require_password(&self, password: &str) {
        for (path, body) in [
            ("user/add", json!({ "name": "root", "password": "r" })),
            ("role/add", json!({ "name": "root" })),
            ("user/grant", json!({ "user": "root", "role": "root" })),
            ("user/add", json!({ "name": "flagstone", "password": password })),
            ("role/add", json!({ "name": "failover" })),
            ("role/grant", grant("READWRITE")),
            ("user/grant", json!({ "user": "flagstone", "role": "failover" })),
            ("enable", json!({})),
        ] {
            let answer = self.post(0, &format!("/v3/auth/{path}"), &body);
            assert!(answer["error"].is_null(), "{path}: {answer}");
        }
    }

    /// Changes the password of user `flagstone`.
    ///
    /// # Panics
    /// If it refuses.
    pub fn change_password(&self, password: &str) {
        self.as_root("user/changepw", &json!({ "name": "flagstone", "password": password }));
    }
}

/// All keys from `/flagstone/` up to `/flagstone0`, in base64.
fn grant(kind: &str) -> Value {
    let (key, range_end) = ("L2ZsYWdzdG9uZS8=", "L2ZsYWdzdG9uZTA=");
    let perm = json!({ "permType": kind, "key": key, "range_end": range_end });
    json!({ "name": "failover", "perm": perm })
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
