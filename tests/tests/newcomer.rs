//! The newcomer's path: the commands of docs/guides/first-steps.md, run as written on two nodes of
//! this machine, each with a root directory of its own.
//!
//! Every command that a user types counts, on the host too, and `flagstone init` prints none that
//! the guide lacks. Left out: packages are not installed here (`package` does); systemd and ssh are
//! played by the test, so that the unit's restrictions and the drop-in have no effect; addresses
//! are of this machine; and the host is `flagstone load`, because the kernel's host needs root and
//! a module (`kernel_guest` has it, with `connect-all`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flagstone_lab::ports::free_ports;
use flagstone_tests::load::{Ended, Load};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, binary};
use flagstone_tests::service::{Service, unit_command_at};
use flagstone_tests::tools;
use rustix::process::{getegid, geteuid};

/// Most commands of the path.
const COMMANDS_MAX: usize = 10;

const SIZE_BYTES: u64 = 32 << 20;

/// Name of the host.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5f1a7e00-0000-4000-8000-000000000001";

/// Commands of the guide's blocks: the machine that each runs on, and its text.
fn guide() -> Vec<(String, String)> {
    let guide = fs::read_to_string(tools::workspace().join("docs/guides/first-steps.md"));
    let guide = guide.expect("the guide is there");
    guide.split("```").skip(1).step_by(2).flat_map(commands_of).collect()
}

/// Lines `MACHINE# COMMAND` of a text.
fn commands_of(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.trim().split_once("# "));
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
            // What an installed package leaves: the directory and the user, here the test's.
            for folder in ["etc/flagstone/conf.d", "dev"] {
                fs::create_dir_all(scratch.join(node).join(folder)).unwrap();
            }
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            let line = format!("flagstone:x:{user}:{group}::/var/lib/flagstone:\n");
            fs::write(scratch.join(node).join("etc/passwd"), line).unwrap();
            scratch.disk(&format!("{node}/dev/sdb"), SIZE_BYTES);
        }
        let [a, b] = free_ports().unwrap();
        let ports = BTreeMap::from([("node-a", a), ("node-b", b)]);
        Path { scratch, ports, services: BTreeMap::new() }
    }

    fn api(&self, node: &str) -> PathBuf {
        self.scratch.join(&format!("{node}/api"))
    }

    fn root(&self, node: &str) -> PathBuf {
        self.scratch.join(node)
    }

    /// A word of a command, with the addresses of this machine.
    fn word(&self, word: &str) -> String {
        word.replace("10.0.0.1", &format!("127.0.0.1:{}", self.ports["node-a"]))
            .replace("10.0.0.2", &format!("127.0.0.1:{}", self.ports["node-b"]))
            .replace("NQN", HOST)
    }

    fn flagstone(&self, node: &str, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.root(node)).args(words.iter().map(|word| self.word(word)));
        match words[0] {
            "init" => command.arg("--root").arg(self.root(node)),
            _ => command.arg("--api").arg(self.api(node)),
        };
        command.stdin(Stdio::null());
        command
    }

    /// Runs `command` to its end, and returns its output.
    fn run_to_end(&self, mut command: Command) -> String {
        let output = command.output().unwrap();
        let logs: Vec<_> = self.services.values().map(Service::log).collect();
        assert!(output.status.success(), "{command:?}: {output:?}\n{}", logs.concat());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Checks what `init` left on a node, and starts its service.
    fn serve(&mut self, node: &str) {
        let at = |path: &str| self.root(node).join(path);
        let drop_in = at("etc/systemd/system/flagstone.service.d/db.conf");
        assert_eq!(fs::read_to_string(drop_in).unwrap(), "[Service]\nDeviceAllow=/dev/sdb rw\n");
        let directory = at("served");
        fs::create_dir(&directory).unwrap();
        let text = fs::read_to_string(at("etc/flagstone/conf.d/db.toml")).unwrap();
        let text = ["/etc/flagstone", "/dev/sdb"]
            .iter()
            .fold(text, |text, path| text.replace(path, at(&path[1..]).to_str().unwrap()));
        fs::write(directory.join("db.toml"), text).unwrap();
        let mut command = unit_command_at(binary(), &directory);
        command.arg("--api").arg(self.api(node));
        self.services.insert(node.to_owned(), Service::start(command));
    }

    /// Commands that `init` prints for the addresses of the guide.
    fn printed(&self, words: &[&str]) -> Vec<(String, String)> {
        let mut init = Command::new(binary());
        init.current_dir(self.root("node-a"))
            .args(words.iter().map(|word| word.replace("NQN", HOST)));
        init.arg("--dry-run").arg("--root").arg(self.root("node-a")).stdin(Stdio::null());
        commands_of(&self.run_to_end(init))
    }

    fn run(&mut self, machine: &str, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match (machine, &words[..]) {
            ("node-a" | "node-b", ["apt", "install", "./flagstone_*.deb"])
            | ("host", ["apt", "install", "nvme-cli"] | ["modprobe", "nvme-tcp"]) => {}
            ("node-a", ["ssh", "root@10.0.0.2", "flagstone", words @ .., from]) => {
                let from = from.strip_prefix('<').expect("its standard input");
                let mut command = self.flagstone("node-b", words);
                let setup = self.root("node-a").join(from);
                command.stdin(File::options().read(true).open(setup).unwrap());
                self.run_to_end(command);
                self.serve("node-b");
            }
            ("node-a" | "node-b", ["flagstone", words @ ..]) => {
                if words[0] == "init" {
                    let guide = guide();
                    let printed = self.printed(words);
                    assert!(printed.len() > 4, "{printed:?}");
                    for line in printed {
                        assert!(guide.contains(&line), "{line:?} is not in the guide: {guide:#?}");
                    }
                }
                self.run_to_end(self.flagstone(machine, words));
                if words[0] == "init" {
                    self.serve(machine);
                }
            }
            ("host", ["nvme", "connect-all", ..]) => {
                for part in ["-t tcp -a 10.0.0.1 -s 4420", "cat /etc/flagstone/keys/host"] {
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
        let key = self.root("node-a").join("etc/flagstone/keys/host");
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
    // A line with several commands counts as that many.
    let typed = |(_, command): &(String, String)| command.split([';', '&', '|']).count();
    let count: usize = commands.iter().map(typed).sum();
    assert!((5..=COMMANDS_MAX).contains(&count), "{count}: {commands:#?}");
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
