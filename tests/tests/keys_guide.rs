//! Guide to keys: the commands and configurations of docs/guides/keys.md, run as written on a
//! mirrored pair, from an open lab to keys and TLS for hosts, the peer, NBD and the API.
//!
//! Each node has a root directory and a loopback address of its own, with the guide's ports. The
//! test plays ssh, systemd, the user of the service and the operator who writes files. Left out:
//! `insecure`, which loopback addresses do not need, and certificates of NBD (`tls` has them). The
//! host is `flagstone load`; `kernel_guest` has Linux's own, with the guide's commands.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flagstone_tests::http::get;
use flagstone_tests::load::{Ended, Load};
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, binary};
use flagstone_tests::service::{Service, unit_command_at};
use flagstone_tests::tools;

const NODES: [&str; 2] = ["node-a", "node-b"];
const SIZE_BYTES: u64 = 32 << 20;

/// A section of the guide, without its title.
fn section(title: &str) -> String {
    let guide = fs::read_to_string(tools::workspace().join("docs/guides/keys.md"));
    let guide = guide.expect("the guide is there");
    let from = guide.split_once(&format!("\n{title}\n"));
    let (_, rest) = from.unwrap_or_else(|| panic!("the guide has no {title}"));
    rest.split("\n## ").next().expect("a text").split("\n### ").next().expect("a text").to_owned()
}

/// Blocks of a section: their language, and their lines.
fn blocks(section: &str, language: &str) -> Vec<Vec<String>> {
    let blocks = section.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.split_once('\n'));
    let of_language = blocks.filter(|(first, _)| *first == language);
    let lines =
        of_language.map(|(_, text)| text.lines().map(str::trim).filter(|line| !line.is_empty()));
    lines.map(|lines| lines.map(str::to_owned).collect()).collect()
}

/// Commands of a section: the machine of each, and its text. Without a prompt, it is node-a's.
fn commands(title: &str) -> Vec<(String, String)> {
    let machine = |line: &str| match line.split_once(['#', '$']) {
        Some((name, rest)) if rest.starts_with(' ') && !name.contains(' ') => {
            (name.to_owned(), rest.trim().to_owned())
        }
        _ => ("node-a".to_owned(), line.to_owned()),
    };
    let lines = blocks(&section(title), "").concat();
    assert!(!lines.is_empty(), "{title} has no commands");
    lines.iter().map(|line| machine(line)).collect()
}

/// The configuration of a section.
fn configuration(title: &str) -> Vec<String> {
    let mut blocks = blocks(&section(title), "toml");
    assert_eq!(blocks.len(), 1, "{title}");
    blocks.remove(0)
}

/// A configuration as an operator edits it: tables in order, each with its lines.
#[derive(Clone, Default)]
struct Configuration(Vec<(String, Vec<String>)>);

impl Configuration {
    fn table(&mut self, header: &str) -> &mut Vec<String> {
        let at = self.0.iter().position(|(name, _)| name == header).unwrap_or_else(|| {
            self.0.push((header.to_owned(), Vec::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Writes a line into a table, in place of the one with the same key. Addresses to listen on
    /// are replaced only by others of the same protocol.
    fn write(&mut self, header: &str, line: &str) {
        let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        let lines = self.table(header);
        let old = lines.iter().position(|other| key(other) == key(line));
        let old = old.map(|at| lines.remove(at));
        let is_nbd = |line: &str| line.contains("nbd://");
        lines.push(match old {
            Some(old) if key(line) == "listen" && is_nbd(line) != is_nbd(&old) => {
                format!(
                    "{}, {}",
                    old.trim_end_matches(']'),
                    line.split_once('[').expect("a list").1
                )
            }
            _ => line.to_owned(),
        });
    }

    fn merge(&mut self, lines: &[String]) {
        let mut header = String::new();
        for line in lines {
            match line.starts_with('[') {
                true => header.clone_from(line),
                false => self.write(&header, line),
            }
        }
    }

    fn remove(&mut self, line: &str) {
        self.0.iter_mut().for_each(|(_, lines)| lines.retain(|other| other != line));
    }

    fn text(&self) -> String {
        let table =
            |(header, lines): &(String, Vec<String>)| format!("{header}\n{}\n", lines.join("\n"));
        self.0.iter().map(table).collect()
    }
}

struct Lab {
    scratch: Scratch,
    addresses: [String; 2],
    files: BTreeMap<&'static str, Configuration>,
    services: BTreeMap<&'static str, Service>,
}

/// The host's NQN in the guide.
fn host_nqn() -> String {
    let lines = configuration("## One host");
    let nqn = lines.iter().find_map(|line| line.strip_prefix("nqn = "));
    nqn.expect("a host has an NQN").trim_matches('"').to_owned()
}

impl Lab {
    /// An open lab: a pair in sync, without keys.
    fn new() -> Lab {
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let address = |node: u8| format!("127.{}.{low}.{node}", high | 128);
        let mut lab = Lab {
            scratch: Scratch::new(),
            addresses: [address(1), address(2)],
            files: BTreeMap::new(),
            services: BTreeMap::new(),
        };
        for (index, node) in NODES.into_iter().enumerate() {
            fs::create_dir_all(lab.root(node).join("etc/flagstone/conf.d")).unwrap();
            lab.shims(node);
            let disk = lab.scratch.disk(&format!("{node}/disk"), SIZE_BYTES);
            let [own, peer] = [index, 1 - index].map(|node| lab.addresses[node].clone());
            let peer_name = NODES[1 - index];
            let text = format!(
                "[server]\nnode = \"{node}\"\nlisten = [\"nvme-tcp://{own}:4420\"]\n\
                 [peer.{peer_name}]\naddress = \"{peer}\"\n\
                 [volume.db]\nmirror = {{ peer = \"{peer_name}\" }}\ndevice = {disk:?}\n"
            );
            let mut file = Configuration::default();
            file.merge(&text.lines().map(str::to_owned).collect::<Vec<_>>());
            lab.files.insert(node, file);
            lab.restart(node);
        }
        for (node, role) in NODES.into_iter().zip(["--source", "--target"]) {
            lab.shell(node, &format!("flagstone mirror create db {role}"));
        }
        lab.wait_until_in_sync("node-a");
        lab
    }

    fn root(&self, node: &str) -> PathBuf {
        self.scratch.join(node)
    }

    fn api(&self, node: &str) -> PathBuf {
        self.root(node).join("api")
    }

    /// Programs that a node runs in place of a machine's programs: `flagstone` knows its server,
    /// and the user of the service is that of the test.
    fn shims(&self, node: &str) {
        let program = binary().display();
        let flagstone = format!(
            "case \"$*\" in *--api*) ;; mirror\\ *|status*) set -- \"$@\" --api {} ;; esac\n\
             exec {program} \"$@\"",
            self.api(node).display()
        );
        let chown = format!(
            "case \"$1 $2\" in '-R flagstone:') shift 2 ;; 'flagstone: '*) shift ;; *) exit 1 ;; esac\n\
             for path; do\n\
             case $path in /*) ;; *) path=$PWD/$path ;; esac\n\
             find \"$path\" -type f >>{}\n\
             done",
            self.owned(node).display()
        );
        fs::create_dir(self.root(node).join("bin")).unwrap();
        for (name, text) in [("flagstone", flagstone.as_str()), ("chown", chown.as_str())] {
            let path = self.root(node).join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// List of the files that belong to the user of the service.
    fn owned(&self, node: &str) -> PathBuf {
        self.root(node).join("owned")
    }

    /// The service can read the files that a configuration names: keys, tokens, certificates.
    fn assert_readable(&self, node: &str, text: &str) {
        let owned = fs::read_to_string(self.owned(node)).unwrap_or_default();
        let folder = self.here(node, "/etc/flagstone/");
        for path in text.split('"').filter(|word| word.starts_with(&folder)) {
            assert!(owned.lines().any(|line| line == path), "nobody gives {path} to the service");
        }
    }

    /// A text of the guide, with the addresses and files of a node here.
    fn here(&self, node: &str, text: &str) -> String {
        let folder = self.root(node).join("etc/flagstone");
        let text = text.replace("10.0.0.1", &self.addresses[0]);
        text.replace("10.0.0.2", &self.addresses[1])
            .replace("/etc/flagstone", folder.to_str().expect("temporary paths are UTF-8"))
    }

    /// Runs commands on a node, with the files of a user of its own. Returns the output.
    fn shell(&self, node: &str, text: &str) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}:/usr/sbin:/sbin", self.root(node).join("bin").display());
        let output = Command::new("sh")
            .args(["-ec", &self.here(node, text)])
            .current_dir(self.root(node))
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{node}: {text}: {output:?}\n{}", self.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn logs(&self) -> String {
        self.services.iter().map(|(node, service)| format!("{node}:\n{}", service.log())).collect()
    }

    /// Writes lines of the guide, which are node-a's, into the file of each node.
    fn write(&mut self, lines: &[String]) {
        for node in NODES {
            let lines: Vec<String> = match node {
                "node-a" => lines.to_vec(),
                _ => lines.iter().map(|line| exchanged(line)).collect(),
            };
            let own = NODES.iter().position(|name| *name == node).expect("a node");
            let local = |line: &String| line.replace("0.0.0.0", &self.addresses[own]);
            let lines: Vec<String> =
                lines.iter().map(|line| self.here(node, &local(line))).collect();
            self.files.get_mut(node).expect("a node").merge(&lines);
        }
    }

    fn remove(&mut self, line: &str) {
        self.files.values_mut().for_each(|file| file.remove(line));
    }

    fn restart(&mut self, node: &'static str) {
        let folder = self.root(node).join("etc/flagstone/conf.d");
        let text = self.files[node].text();
        self.assert_readable(node, &text);
        fs::write(folder.join("db.toml"), text).unwrap();
        self.shell(node, "flagstone check /etc/flagstone/conf.d");
        if let Some(mut service) = self.services.remove(node) {
            service.signal(rustix::process::Signal::TERM);
            assert!(service.wait().success(), "{}", service.log());
        }
        let mut command = unit_command_at(binary(), &folder);
        command.arg("--api").arg(self.api(node));
        self.services.insert(node, Service::start(command));
    }

    fn wait_until_in_sync(&self, node: &str) {
        let mirror = || get(&self.api(node), "/v1/volumes/db/mirror");
        let in_sync = || mirror()["state"] == "mirroring";
        until("the mirror is in sync", in_sync, || self.logs());
    }

    fn run(&mut self, machine: &str, command: &str) {
        let node = NODES.into_iter().find(|node| *node == machine);
        let words: Vec<&str> = command.split_whitespace().collect();
        match (node, &words[..]) {
            (Some(node), ["systemctl", "restart", "flagstone"]) => self.restart(node),
            (Some(node), ["flagstone", "mirror", "status", "db", "--watch", ..]) => {
                self.wait_until_in_sync(node);
            }
            (Some(node), ["scp", "-rp", from, to]) => {
                let to = to.strip_prefix("root@10.0.0.2:").expect("the other node");
                let (from, to) = (self.here(node, from), self.here("node-b", to));
                tools::run("cp", &["-rp", &from, &to]);
            }
            (Some(node), _) => drop(self.shell(node, command)),
            _ => panic!("the test does not know how to run on {machine}: {command}"),
        }
    }

    fn run_all(&mut self, commands: &[(String, String)]) {
        for (machine, command) in commands {
            self.run(machine, command);
        }
    }

    /// Device of the host, with files of its keys, which it got from node-a.
    fn device(&self, keys: &[(&str, &str)]) -> String {
        let keys = keys.iter().map(|(option, file)| {
            let host = self.scratch.join(file);
            let server = self.root("node-a").join("etc/flagstone/keys").join(file);
            fs::copy(server, &host).expect("node-a has the key");
            format!("&{option}={}", host.display())
        });
        let [a, b] = &self.addresses;
        let keys: String = keys.collect();
        format!("nvme-tcp://{a},{b}/{NQN_PREFIX}db?hostnqn={}{keys}", host_nqn())
    }

    fn state(&self) -> PathBuf {
        self.scratch.join("state")
    }

    /// Checks all blocks that earlier loads wrote.
    fn check(&self, device: &str) {
        let line = "--rw randread --depth 4 --bs 64k --size 4m --after-crash client";
        let Ended { code, results, log } = Load::start_verified(device, line, &self.state()).wait();
        let verify = &results["verify"];
        assert_eq!(code, Some(0), "{log}\n{results:#}\n{}", self.logs());
        assert_eq!((&verify["violations"], &verify["read_back"]), (&0.into(), &true.into()));
        assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
    }

    fn refused(&self, device: &str) {
        let load = Load::start(device, "--rw randread --ios 1").wait();
        assert_ne!(load.code, Some(0), "{device}: {}", load.log);
    }
}

/// A line of node-a's file, for node-b.
fn exchanged(line: &str) -> String {
    let [a, b] = NODES;
    let line = line.replace(a, "\n").replace(b, a).replace('\n', b);
    line.replace("10.0.0.1", "\n").replace("10.0.0.2", "10.0.0.1").replace('\n', "10.0.0.2")
}

/// A word of the guide, which it has.
fn word<'a>(title: &str, word: &'a str) -> &'a str {
    assert!(section(title).contains(&format!("`{word}`")), "{title} has no {word}");
    word
}

#[test]
fn open_lab_gets_keys_and_tls() {
    const PAIR: &str = "## A mirrored pair";
    const PAIR_TLS: &str = "### A mirrored pair with TLS";
    let mut lab = Lab::new();
    let open = lab.device(&[]);
    Load::start_verified(&open, "--rw randwrite --ios 500 --size 4m", &lab.state())
        .wait()
        .assert_complete();

    // Keys of the host and the pair, of both kinds.
    for title in ["## One host", "## TLS", PAIR_TLS] {
        let on_nodes = |(machine, _): &(String, String)| machine != "host";
        let made: Vec<_> = commands(title).into_iter().filter(on_nodes).collect();
        lab.run_all(&made);
    }
    let pair = commands(PAIR);
    let begin = pair.iter().position(|(_, command)| command.starts_with("systemctl"));
    let (copy, turns) = pair.split_at(begin.expect("nodes are restarted"));
    lab.run_all(copy);

    // Both kinds of connections are allowed while the nodes change in turn.
    let file = configuration(PAIR_TLS);
    lab.write(&configuration("## One host"));
    lab.write(&file);
    let allowed = [word(PAIR, "authentication = \"allowed\""), word(PAIR_TLS, "tls = \"allowed\"")];
    word(PAIR_TLS, "?tls=allowed");
    let peer = file.iter().find(|line| line.starts_with("[peer.")).expect("a peer").clone();
    let listen = file.iter().find(|line| line.starts_with("listen")).expect("an address");
    let server = ["[server]".to_owned(), listen.replace("required", "allowed")];
    lab.write(&server);
    lab.write(&[&[peer][..], &allowed.map(str::to_owned)].concat());
    lab.run_all(turns);

    // A host with the key works on, while the nodes begin to require it.
    let with_key = lab.device(&[("key-file", "db1")]);
    lab.check(&with_key);
    lab.refused(&open);
    let line = "--rw randrw --depth 4 --rate 500 --size 4m --time 1h";
    let both = lab.device(&[("key-file", "db1"), ("tls-key-file", "db1-tls")]);
    let mut busy = Load::start_verified(&both, line, &lab.state());
    busy.wait_for_records(&lab.state(), Load::records_now(&lab.state()) + 100);
    allowed.iter().for_each(|line| lab.remove(line));
    lab.write(&file);
    // The roles are exchanged: so are the turns.
    let turns: Vec<_> =
        turns.iter().map(|(node, command)| (exchanged(node), command.clone())).collect();
    lab.run_all(&turns);
    busy.wait_for_records(&lab.state(), Load::records_now(&lab.state()) + 100);
    busy.kill();
    lab.check(&both);
    for device in [&open, &with_key] {
        lab.refused(device);
    }
    let status = lab.shell("node-a", "flagstone mirror status db");
    assert!(status.contains("node-a is the source") && status.contains("; in sync;"), "{status}");
    let logs = lab.logs();
    assert!(!logs.contains("as is allowed"), "{logs}");
    nbd_and_operators(&mut lab);
}

/// The same volume by NBD, and the API, from another machine.
fn nbd_and_operators(lab: &mut Lab) {
    const OPERATORS: &str = "## Operators on other machines";
    if !tools::have("NBD and the API by the guide to keys", &["openssl", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let (here, away): (Vec<_>, Vec<_>) = [commands("### NBD"), commands(OPERATORS)]
        .concat()
        .into_iter()
        .partition(|(machine, _)| machine == "node-a");
    // One shell, as that of the operator.
    let typed: Vec<_> = here.iter().map(|(_, command)| command.as_str()).collect();
    lab.shell("node-a", &typed.join("\n"));
    for title in ["### NBD", OPERATORS] {
        let lines: Vec<_> =
            configuration(title).iter().map(|line| lab.here("node-a", line)).collect();
        lab.files.get_mut("node-a").expect("a node").merge(&lines);
    }
    lab.restart("node-a");
    lab.wait_until_in_sync("node-a");
    // Files that were moved to the client.
    let etc = lab.root("node-a").join("etc/flagstone");
    for file in ["nbd.psk", "api.pem", "alice.token"] {
        let to = lab.root("node-b").join(file);
        fs::copy(etc.join(file), &to).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    let outputs: Vec<_> = away.iter().map(|(_, command)| lab.shell("node-b", command)).collect();
    assert!(outputs.concat().contains("\ndb "), "{outputs:?}");
    same_start(&lab.root("node-b").join("disk.img"), &lab.root("node-a").join("disk"));
    let plain = format!("nbd://{}/db", lab.addresses[0]);
    tools::run_refused("nbdinfo", &[&plain]);
}

/// The copy has the data of the volume, which begins the disk.
fn same_start(copy: &Path, disk: &Path) {
    let [copy, disk] = [copy, disk].map(|path| fs::read(path).unwrap());
    assert!(copy.len() as u64 > SIZE_BYTES / 2 && copy.iter().any(|byte| *byte != 0));
    assert!(disk.starts_with(&copy), "other data was copied");
}
