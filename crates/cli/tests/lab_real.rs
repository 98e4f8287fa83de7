//! `flagstone lab` on what stands for real disks and hosts: files, and nodes of this machine. What is
//! asserted never depends on how fast the machine is.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// What a volume's NQN begins with.
const NQN: &str = "nqn.2026-01.io.flagstone";

/// A directory in which commands are run and nodes have their files.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, line: &str) -> Output {
        let words = line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        self.run_words(&words)
    }

    fn run_words(&self, words: &[String]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command.output().expect("it runs")
    }

    /// What a command that has to succeed printed as JSON.
    fn json(&self, words: &[String]) -> Value {
        let output = self.run_words(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{errors}", output.status);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{errors}"))
    }

    /// What a command that has to be refused said; that it left nothing behind.
    fn refused(&self, line: &str) -> String {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(!self.path("results").exists(), "{line}");
        errors
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path("results/report.html")).expect("there is a report")
    }
}

/// A running node.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Node {
    /// Starts one, and waits until it serves.
    #[allow(clippy::disallowed_methods, reason = "a test waits for another program")]
    fn start(place: &Place, name: &str, configuration: &str) -> Node {
        let (file, log) = (place.path(&format!("{name}.toml")), place.path(&format!("{name}.log")));
        fs::write(&file, configuration).expect("it can be written");
        let output = fs::File::create(&log).expect("it can be made");
        let errors = output.try_clone().expect("a descriptor");
        let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut node = Node(command.spawn().expect("it starts"));
        loop {
            let said = fs::read_to_string(&log).expect("it can be read");
            if said.contains("listening on ") {
                return node;
            }
            assert!(node.0.try_wait().expect("it can be asked").is_none(), "it ended: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ports that nobody has.
fn free_ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    held.map(|listener| listener.local_addr().expect("an address").port())
}

/// The configuration of one of two nodes: `a` or `b`.
fn node(place: &Place, name: &str, [own, other]: [u16; 2], volumes: &str) -> String {
    let peer = if name == "a" { "b" } else { "a" };
    let socket = place.path(&format!("{name}.sock"));
    format!(
        "[server]\nnode = \"node-{name}\"\nlisten = [\"nvme-tcp://127.0.0.1:{own}\"]\napi = \
         {socket:?}\ncores = 1\n[peer.node-{peer}]\naddress = \"127.0.0.1:{other}\"\ntimeout = \
         \"1s\"\n{volumes}"
    )
}

/// Two nodes with a mirrored volume of this name, in sync.
#[allow(clippy::disallowed_methods, reason = "a test waits for another program")]
fn mirrored(place: &Place, volume: &str, ports: [u16; 2], others: [&str; 2]) -> [Node; 2] {
    let [a, b] = ports;
    let of = |peer: &str, log: &str, others: &str| {
        format!(
            "[volume.{volume}]\nmirror = {{ peer = \"node-{peer}\", bitmap = {:?} }}\ndevice = \
             \"memory:32MiB\"\n{others}",
            place.path(log)
        )
    };
    let nodes = [
        Node::start(place, "a", &node(place, "a", [a, b], &of("b", "a.intent", others[0]))),
        Node::start(place, "b", &node(place, "b", [b, a], &of("a", "b.intent", others[1]))),
    ];
    for (name, role) in [("a", "source"), ("b", "target")] {
        let line = format!("mirror create {volume} --{role} --api {name}.sock");
        let output = place.run(&line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    loop {
        let output = place.run(&format!("mirror status {volume} --json --api a.sock"));
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        if status["state"] == "mirroring" {
            return nodes;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_mirror_of_two_nodes_beside_the_published_one() {
    let place = Place::new();
    let ports = free_ports();
    let others =
        ["[volume.plain]\ndevice = \"memory:32MiB\"\n", "[volume.link]\ndevice = \"null:1GiB\"\n"];
    let _nodes = mirrored(&place, "mirrored", ports, others);
    let [a, b] = ports;
    let line = format!(
        "lab mirror --node-a 127.0.0.1:{a} --node-b 127.0.0.1:{b} --initiator flagstone --ramp 0 \
         --runtime 100ms --repetitions 1 --machine n2-standard-8 --results results --json"
    );
    let refused = place.refused(&line);
    let plain = format!("nvme-tcp://127.0.0.1:{a}/{NQN}:plain");
    assert!(refused.contains(&format!("--destroy-data={plain}")), "{refused}");
    let line = format!("{line} --destroy-data {plain}");
    let refused = place.refused(&line);
    let both = format!("nvme-tcp://127.0.0.1:{a}/{NQN}:mirrored");
    assert!(refused.contains(&format!("--destroy-data={both}")), "{refused}");
    let refused = place.refused(&format!("{line} --destroy-data /dev/sda"));
    assert!(refused.contains("no target has this disk"), "{refused}");

    let line = format!("{line} --destroy-data {both}");
    let summary = place.json(&words(&line));
    assert_eq!((&summary["emulated"], &summary["real_nodes"]), (&false.into(), &true.into()));
    assert_eq!(summary["link"]["is_measured"], true);
    for row in summary["table"].as_array().expect("rows") {
        for side in ["mirror", "plain"] {
            assert!(row[side]["mib_per_s"].as_f64().expect("a number") > 0.0);
            assert_eq!(row[side]["nature"], "served", "nobody told what it is");
        }
        assert!(row["latency_overhead_percent"].is_number());
    }
    assert!(place.report().contains("SIOS DataKeeper") && place.report().contains("n2-standard-8"));
    let kept = fs::read_to_string(place.path("results/summary.json")).expect("a summary");
    assert_eq!(serde_json::from_str::<Value>(&kept).expect("JSON"), summary);

    // Who tells what is behind it has it in every table.
    let told = line.replace("--results results --json", "--results told --stack a.toml");
    let output = place.run(&told);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("mirror [MEMORY]"), "{text}");
    assert!(text.contains("here on n2-standard-8 in MEMORY"), "{text}");
}
