//! The newcomer's path: the commands of docs/guides/first-steps.md, run as written on two nodes of
//! this machine.
//!
//! The commands that `flagstone init` prints are run as printed too. What differs from the guide:
//! packages are not installed here (`package` does), systemd and ssh are played by the test,
//! addresses and paths are of this machine, and the host is `flagstone load`, because the kernel's
//! host needs root and a module (`kernel_guest` has it).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flagstone_lab::ports::free_ports;
use flagstone_tests::load::{Ended, Load};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, binary};
use flagstone_tests::service::{Service, unit_command_at};
use flagstone_tests::tools;

/// Most commands of the path.
const COMMANDS_MAX: usize = 10;

const SIZE_BYTES: u64 = 32 << 20;

/// Name of the host.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5f1a7e00-0000-4000-8000-000000000001";

/// Commands of the guide's blocks: the machine that each runs on, and its text.
fn guide() -> Vec<(String, String)> {
    let guide = fs::read_to_string(tools::workspace().join("docs/guides/first-steps.md"));
    let guide = guide.expect("the guide is there");
    let blocks = guide.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).filter_map(|line| line.split_once("# "));
    let is_machine = |name: &str| ["node-a", "node-b", "host"].contains(&name);
    let commands = lines.filter(|(machine, _)| is_machine(machine));
    commands.map(|(machine, command)| (machine.to_owned(), command.to_owned())).collect()
}

struct Path {
    scratch: Scratch,
    /// Port of each node, by its name.
    ports: BTreeMap<&'static str, u16>,
    services: BTreeMap<String, Service>,
}

impl Path {
    fn new() -> Path {
        let scratch = Scratch::new();
        for node in ["node-a", "node-b"] {
            fs::create_dir_all(scratch.join(node).join("conf.d")).unwrap();
            scratch.disk(&format!("{node}/disk"), SIZE_BYTES);
        }
        let [a, b] = free_ports().unwrap();
        let ports = BTreeMap::from([("node-a", a), ("node-b", b)]);
        Path { scratch, ports, services: BTreeMap::new() }
    }

    fn api(&self, node: &str) -> PathBuf {
        self.scratch.join(&format!("{node}/api"))
    }

    /// A word of a command on `node`, with addresses and paths of this machine. Each server runs in
    /// its own directory, so the device has the same name on both, as in the guide.
    fn word(&self, node: &str, word: &str) -> String {
        let directory = self.scratch.join(node);
        let directory = directory.to_str().unwrap();
        word.replace("/etc/flagstone", directory)
            .replace("/root", directory)
            .replace("/dev/sdb", "./disk")
            .replace("10.0.0.1", &format!("127.0.0.1:{}", self.ports["node-a"]))
            .replace("10.0.0.2", &format!("127.0.0.1:{}", self.ports["node-b"]))
            .replace("NQN", HOST)
    }

    /// Runs a command that `flagstone init` printed on node-a.
    fn run_printed(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match &words[..] {
            ["mkdir", "-p", "-m", "700", keys] => {
                fs::create_dir_all(self.word("node-a", keys)).unwrap();
            }
            ["flagstone", "key", "generate", key] => {
                let made = Command::new(binary())
                    .args(["key", "generate", &self.word("node-a", key)])
                    .output()
                    .unwrap();
                assert!(made.status.success(), "{command}: {made:?}");
            }
            ["scp", "-rp", "/etc/flagstone/keys", _] => {
                fs::create_dir_all(self.scratch.join("node-b/keys")).unwrap();
                for key in ["host", "pair"] {
                    let [from, to] = ["node-a", "node-b"]
                        .map(|node| self.scratch.join(&format!("{node}/keys/{key}")));
                    fs::copy(from, to).unwrap();
                }
            }
            ["scp", file, target] => {
                let (_, path) = target.split_once(':').expect("a machine and a path");
                fs::copy(file, path.replace("/node-a/", "/node-b/")).unwrap();
            }
            ["flagstone", "serve", ..] => {
                for node in ["node-a", "node-b"] {
                    self.serve(node);
                }
            }
            // The guide has these.
            ["flagstone", "mirror", "create", ..] => {}
            _ => panic!("the test does not know how to run: {command}"),
        }
    }

    /// Starts the service of a node, whose keys are in its directory.
    fn serve(&mut self, node: &str) {
        let directory = self.scratch.join(node).join("conf.d");
        let file = directory.join("db.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("/etc/flagstone", self.scratch.join(node).to_str().unwrap()))
            .unwrap();
        let mut command = unit_command_at(binary(), &directory);
        command.current_dir(self.scratch.join(node)).arg("--api").arg(self.api(node));
        self.services.insert(node.to_owned(), Service::start(command));
    }

    fn run(&mut self, machine: &str, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match (machine, &words[..]) {
            ("node-a" | "node-b", ["apt", "install", "./flagstone_*.deb"]) => {}
            ("node-a" | "node-b", ["flagstone", arguments @ ..]) => {
                let arguments = arguments.iter().map(|word| self.word(machine, word));
                let mut flagstone = Command::new(binary());
                flagstone.current_dir(self.scratch.join(machine)).args(arguments);
                if words[1] == "mirror" {
                    flagstone.arg("--api").arg(self.api(machine));
                }
                let output = flagstone.stdin(Stdio::null()).output().unwrap();
                let services: Vec<_> = self.services.values().map(Service::log).collect();
                assert!(output.status.success(), "{command}: {output:?}\n{}", services.concat());
                if words[1] == "init" {
                    let printed = String::from_utf8(output.stdout).unwrap();
                    let next = printed.split_once("# next:\n").expect("the next commands").1;
                    for line in next.lines() {
                        let line = line.trim_start_matches('#').trim();
                        self.run_printed(line.split("   #").next().unwrap());
                    }
                }
            }
            ("host", _) => {
                for part in ["10.0.0.1 10.0.0.2", "nvme connect -t tcp", "-s 4420", NQN_PREFIX] {
                    assert!(command.contains(part), "{command}");
                }
                self.load("--rw randwrite --ios 2000 --depth 8 --bs 16k").assert_complete();
            }
            _ => panic!("the test does not know how to run: {command}"),
        }
    }

    /// A verified load of a host that is attached to both nodes.
    fn load(&self, line: &str) -> Ended {
        let [a, b] = ["node-a", "node-b"].map(|node| self.ports[node]);
        let key = self.scratch.join("node-a/keys/host");
        let target = format!(
            "nvme-tcp://127.0.0.1:{a},127.0.0.1:{b}/{NQN_PREFIX}db?hostnqn={HOST}&key-file={}",
            key.display()
        );
        Load::start_verified(&target, line, &self.scratch.join("state")).wait()
    }

    /// Waits until the mirror of `db` is in sync, as the guide's `--watch` shows.
    fn wait_until_in_sync(&self, node: &str) {
        let mut status = Command::new(binary());
        status.args(["mirror", "status", "db", "--api"]).arg(self.api(node));
        let in_sync = || {
            let output = status.stdin(Stdio::null()).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains("; in sync;")
        };
        until("the mirror is in sync", in_sync, String::new);
    }
}

#[test]
fn first_steps_lead_to_a_failover() {
    let commands = guide();
    assert!((5..=COMMANDS_MAX).contains(&commands.len()), "{commands:#?}");
    let mut path = Path::new();
    for (machine, command) in &commands {
        if command.contains("mirror failover") {
            path.wait_until_in_sync("node-a");
            drop(path.services.remove("node-a"));
        }
        path.run(machine, command);
    }
    // Nothing that the host wrote before is lost.
    let ended = path.load("--rw randread --depth 4 --bs 64k --after-crash client");
    let verify = &ended.results["verify"];
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    assert_eq!((&verify["violations"], &verify["read_back"]), (&0.into(), &true.into()));
    assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
}
