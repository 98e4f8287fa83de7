//! `flagstone lab` on stand-ins for real disks and hosts: files, and nodes of this machine. No
//! assertion depends on the speed of the machine.

mod program;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use flagstone_lab::ports::free_ports;
use program::program;
use serde_json::Value;

/// Prefix of volume NQNs.
const NQN: &str = "nqn.2026-01.io.flagstone";

/// A directory for commands and the nodes' files.
struct NodesDirectory {
    directory: tempfile::TempDir,
}

impl NodesDirectory {
    fn new() -> NodesDirectory {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        NodesDirectory { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, line: &str) -> Output {
        let words = line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        self.run_words(&words)
    }

    fn run_words(&self, words: &[String]) -> Output {
        let mut command = Command::new(program());
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command.output().expect("it runs")
    }

    /// JSON output of a command that must succeed.
    fn json(&self, words: &[String]) -> Value {
        let output = self.run_words(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{errors}", output.status);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{errors}"))
    }

    /// Writes to a served volume, so that it has data.
    fn put_data(&self, target: &str) {
        let output = self.run(&format!("load {target} --rw write --bs 64k --ios 1"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Error output of a command that must be refused without side effects.
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
    /// Starts a node and waits until it serves.
    #[allow(clippy::disallowed_methods, reason = "a test waits for another program")]
    fn start(place: &NodesDirectory, name: &str, configuration: &str) -> Node {
        let (file, log) = (place.path(&format!("{name}.toml")), place.path(&format!("{name}.log")));
        fs::write(&file, configuration).expect("it can be written");
        let output = fs::File::create(&log).expect("it can be made");
        let errors = output.try_clone().expect("a descriptor");
        let mut command = Command::new(program());
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

/// Configuration of node `a` or `b`.
fn node(place: &NodesDirectory, name: &str, [own, other]: [u16; 2], volumes: &str) -> String {
    let peer = if name == "a" { "b" } else { "a" };
    let socket = place.path(&format!("{name}.sock"));
    format!(
        "[server]\nnode = \"node-{name}\"\nlisten = [\"nvme-tcp://127.0.0.1:{own}\"]\napi = \
         {socket:?}\ncores = 1\n[peer.node-{peer}]\naddress = \"127.0.0.1:{other}\"\ntimeout = \
         \"1s\"\n{volumes}"
    )
}

/// Two nodes with a mirrored volume in sync: in files that survive a node's death, or in memory,
/// where writes do not wait for a disk.
#[allow(clippy::disallowed_methods, reason = "a test waits for another program")]
fn mirrored(
    place: &NodesDirectory,
    (volume, in_files): (&str, bool),
    ports: [u16; 2],
    others: [&str; 2],
) -> [Node; 2] {
    let [a, b] = ports;
    let of = |own: &str, peer: &str, others: &str| {
        let (mut data, mut log) = ("memory:32MiB".into(), "memory:64MiB".into());
        if in_files {
            data = place.path(&format!("{own}.data"));
            let file = fs::File::create(&data).expect("it can be made");
            file.set_len(96 << 20).expect("it can be so large");
            log = place.path(&format!("{own}.intent"));
        }
        format!(
            "[volume.{volume}]\nmirror = {{ peer = \"node-{peer}\", intent_log = {log:?} }}\ndevice = \
             {data:?}\n{others}"
        )
    };
    let nodes = [
        Node::start(place, "a", &node(place, "a", [a, b], &of("a", "b", others[0]))),
        Node::start(place, "b", &node(place, "b", [b, a], &of("b", "a", others[1]))),
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
fn mirror_of_given_nodes_beside_published_figures() {
    let place = NodesDirectory::new();
    let ports = free_ports().expect("ports are free");
    let others =
        ["[volume.plain]\ndevice = \"memory:32MiB\"\n", "[volume.link]\ndevice = \"null:1GiB\"\n"];
    let _nodes = mirrored(&place, ("mirrored", false), ports, others);
    let [a, b] = ports;
    let line = format!(
        "lab mirror --node-a 127.0.0.1:{a} --node-b 127.0.0.1:{b} --initiator flagstone --ramp 0 \
         --runtime 100ms --repetitions 1 --machine n2-standard-8 --results results --json"
    );
    let plain = format!("nvme-tcp://127.0.0.1:{a}/{NQN}:plain");
    let both = format!("nvme-tcp://127.0.0.1:{a}/{NQN}:mirrored");
    place.put_data(&plain);
    place.put_data(&both);
    let refused = place.refused(&line);
    assert!(refused.contains(&format!("--destroy-data={plain}")), "{refused}");
    let line = format!("{line} --destroy-data {plain}");
    let refused = place.refused(&line);
    assert!(refused.contains(&format!("--destroy-data={both}")), "{refused}");
    let refused = place.refused(&format!("{line} --destroy-data /dev/sda"));
    assert!(refused.contains("no target has this disk"), "{refused}");

    let line = format!("{line} --destroy-data {both}");
    let summary = place.json(&words(&line));
    assert_eq!((&summary["emulated"], &summary["real_nodes"]), (&false.into(), &true.into()));
    assert_eq!(summary["link"]["is_measured"], true);
    for row in summary["table"].as_array().expect("rows") {
        for side in ["mirror", "plain"] {
            assert!(row[side]["mib_per_s"].is_number());
            assert_eq!(row[side]["provenance"], "served", "its provenance is unknown");
        }
        assert!(row["mirror"]["latency_overhead_percent"].is_number());
    }
    assert!(place.report().contains("SIOS DataKeeper") && place.report().contains("n2-standard-8"));
    let kept = fs::read_to_string(place.path("results/summary.json")).expect("a summary");
    assert_eq!(serde_json::from_str::<Value>(&kept).expect("JSON"), summary);

    // A given stack marks every table.
    let reported = line.replace("--results results --json", "--results reported --stack a.toml");
    let output = place.run(&reported);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" [MEMORY] "), "{text}");
    assert!(text.contains("here on n2-standard-8 in MEMORY"), "{text}");
}

/// A `flagstone` command line for a shell.
fn shell(arguments: &str) -> String {
    format!("{} {arguments}", program().display())
}

/// A node that a drill command started; a file holds its process ID.
struct Returned(PathBuf);

impl Drop for Returned {
    fn drop(&mut self) {
        let Ok(pid) = fs::read_to_string(&self.0) else { return };
        let killed = Command::new("kill").arg(pid.trim()).status().expect("kill runs");
        assert!(killed.success());
    }
}

#[test]
fn failover_of_given_nodes_loses_nothing() {
    let place = NodesDirectory::new();
    let ports = free_ports().expect("ports are free");
    let [node_a, _node_b] = mirrored(&place, ("db", true), ports, ["", ""]);
    let [a, b] = ports;
    let line = format!(
        "lab failover --node-a 127.0.0.1:{a} --node-b 127.0.0.1:{b} --time 10s --results results"
    );
    let target = format!("nvme-tcp://127.0.0.1:{a},127.0.0.1:{b}/{NQN}:db");
    place.put_data(&target);
    let consent = format!("{line} --destroy-data {target}");
    let refused = place.refused(&consent);
    assert!(refused.contains("--kill-command"), "there is no terminal: {refused}");

    let back = shell(
        "serve a.toml > back.log 2>&1 & echo $! > back.pid; until grep -q 'listening on' back.log; \
         do sleep 0.02; done",
    );
    let _returned = Returned(place.path("back.pid"));
    let commands = [
        ("--kill-command", format!("kill -9 {}", node_a.0.id())),
        ("--failover-command", shell("mirror failover db --force --yes --api b.sock")),
        ("--return-command", back),
        ("--switchover-command", shell("mirror switchover db --api a.sock")),
        ("--status-command", shell("mirror status db --json --api b.sock")),
    ];
    let with = |line: &str| {
        let mut all = words(line);
        for (option, command) in &commands {
            all.extend([(*option).to_owned(), command.clone()]);
        }
        all
    };
    let output = place.run_words(&with(&line));
    let refused = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{refused}");
    assert!(refused.contains(&format!("--destroy-data={target}")), "{refused}");

    let summary = place.json(&with(&format!("{consent} --json")));
    assert!(place.path("back.pid").exists(), "it came back");
    assert_eq!((&summary["wrong_blocks"], &summary["errors"]), (&0.into(), &0.into()));
    assert!(summary["blocks_checked"].as_u64().expect("a number") > 0);
    assert_eq!((&summary["real_nodes"], &summary["provenance"]), (&true.into(), &"served".into()));
    let happened: Vec<_> = summary["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["what"].as_str().expect("words"))
        .collect();
    let expected = [
        "node-a is killed",
        "node-b serves",
        "node-a returns",
        "both in sync",
        "switchover to node-a",
    ];
    assert_eq!(happened, expected);
    let picture = fs::read_to_string(place.path("results/timeline.svg")).expect("a picture");
    assert!(picture.contains("[served]") && picture.contains("nothing lost"));
}

/// A sparse file as large as the smallest cloud disk.
fn large_file(place: &NodesDirectory, name: &str) {
    let file = fs::File::create(place.path(name)).expect("it can be made");
    file.set_len(10_000_000_000).expect("it can be so large");
}

/// A file of `mib` MiB that bench created and may therefore overwrite.
fn made_by_bench(place: &NodesDirectory, name: &str, mib: u32) -> String {
    let line = format!(
        "bench run quick {name} --size {mib}m --runtime 50ms --ramp 0 --repetitions 1 --results made"
    );
    let output = place.run(&line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    fs::remove_dir_all(place.path("made")).expect("it was made");
    name.to_owned()
}

#[test]
fn given_ssds_locally_and_over_network() {
    let place = NodesDirectory::new();
    fs::write(place.path("precious"), vec![1; 1 << 20]).expect("it can be written");
    let refused = place.refused("lab fabric precious --results results");
    assert!(refused.contains("with data"), "{refused}");
    let refused = place.refused("lab fabric /dev/no-such-ssd --results results");
    assert!(refused.contains("no such device"), "{refused}");
    assert!(place.refused("lab fabric precious nvme-tcp://h/nqn.x:y").contains("not in one run"));

    let ssd = made_by_bench(&place, "ssd", 16);
    let short = "--ramp 0 --runtime 100ms --repetitions 1 --json";
    let local = place.json(&words(&format!("lab fabric {ssd} {short} --results local")));
    assert_eq!(local["rows"].as_array().expect("rows").len(), 2);
    assert!(local["rows"][0]["local"]["iops"].as_f64().expect("a number") > 0.0);
    assert!(local["rows"][0]["fabric"].is_null());

    let [port] = free_ports().expect("a port is free");
    let server = format!(
        "[server]\nlisten = [\"nvme-tcp://127.0.0.1:{port}\"]\napi = {:?}\ncores = \
         1\n[volume.x1]\ndevice = \"memory:16MiB\"\n[volume.x2]\ndevice = \"memory:32MiB\"\n",
        place.path("s.sock")
    );
    let _server = Node::start(&place, "s", &server);
    let [x1, x2] = ["x1", "x2"].map(|name| format!("nvme-tcp://127.0.0.1:{port}/{NQN}:{name}"));
    let line = format!(
        "lab fabric {x1} {x2} {short} --initiator flagstone --local-results local --results results"
    );
    place.put_data(&x1);
    assert!(place.refused(&line).contains(&format!("--destroy-data={x1}")));
    let line = format!("{line} --destroy-data {x1} --destroy-data {x2} --stack s.toml");
    let both = place.json(&words(&line));
    let rows = both["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), &both["emulated"]), (4, &true.into()), "memory is no disk");
    assert!(rows[0]["of_local_percent"].is_number() && rows[1]["of_local_percent"].is_null());
    for row in rows {
        assert_eq!(row["fabric"]["provenance"], "memory");
    }
    let report = place.report();
    assert!(report.contains("MayaScale") && report.contains("[MEMORY]"));
    // Counted by SSDs, as published.
    let kept = fs::read_to_string(place.path("results/results.jsonl")).expect("results");
    let counted: Vec<u64> = kept
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["disks"].as_u64())
        .map(|disks| disks.expect("a number"))
        .collect();
    assert_eq!(counted, [1, 1, 2, 2]);
}

#[test]
fn given_disks_are_judged_by_size() {
    let place = NodesDirectory::new();
    large_file(&place, "disk");
    let line = "lab provisioned disk --runtime 100ms --repetitions 1 --results results --json";
    let refused = place.refused(&format!("{line} --profile pd-none"));
    assert!(refused.contains("pd-none"), "{refused}");
    let output = place.run(&line.replace("disk", "none"));
    assert!(!output.status.success() && !place.path("none").exists(), "nothing is made");
    let summary = place.json(&words(line));
    let row = &summary["rows"][0];
    assert_eq!((&row["disk"], &row["size_bytes"]), (&"disk".into(), &10_000_000_000_u64.into()));
    assert_eq!(row["measured"]["verdict"], "above", "a file is no pd-standard of 7.5 IOPS");
    assert!(row["published"].is_null());
    let blocks = std::os::unix::fs::MetadataExt::blocks;
    assert_eq!(blocks(&fs::metadata(place.path("disk")).expect("it is there")), 0, "unwritten");
    assert!(!place.report().contains("EMULATED"));
}

#[test]
fn given_disk_is_compared_with_its_limits() {
    let place = NodesDirectory::new();
    fs::write(place.path("precious"), vec![1; 1 << 20]).expect("it can be written");
    let short = "--ramp 0 --runtime 100ms --results results --json";
    let profile = "--profile pd-ssd --machine n1-standard-16";
    let refused = place.refused(&format!("lab limits precious {short}"));
    assert!(refused.contains("--profile"), "{refused}");
    let refused = place.refused(&format!("lab limits precious {profile} {short}"));
    assert!(refused.contains("--destroy-data=precious"), "{refused}");
    let refused = place.refused(&format!("lab limits / {profile} {short} --destroy-data /"));
    assert!(refused.contains("neither a block device nor a regular file"), "{refused}");
    large_file(&place, "disk");
    let line = format!("lab limits disk {profile} {short} --no-precondition --destroy-data disk");
    let summary = place.json(&words(&line));
    let cells = summary["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 5);
    for cell in cells {
        assert!(cell["measured"].as_f64().expect("a number") > 0.0);
        assert!(cell["expected"].as_f64().expect("a number") > 0.0);
        assert!(cell["published"].is_null(), "the page has no such disk");
    }
    assert!(place.report().contains("n1-standard-16"));
}
