//! Answers of the mirror commands to an operator, on two servers of this machine: each says what is
//! the case, and what to do next. The text is compared, because it is the answer.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use flagstone_lab::ports::free_ports;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};

const SIZE_BYTES: u64 = 16 << 20;

/// Output of a command, with the lines of a paragraph joined.
struct Said {
    succeeded: bool,
    text: String,
}

impl Said {
    #[track_caller]
    fn contains(&self, part: &str) {
        assert!(self.text.contains(part), "no `{part}` in: {}", self.text);
    }

    #[track_caller]
    fn lacks(&self, part: &str) {
        assert!(!self.text.contains(part), "`{part}` in: {}", self.text);
    }
}

struct Nodes {
    nodes: [Server; 2],
    logs: [PathBuf; 2],
    scratch: Scratch,
}

impl Nodes {
    /// Starts both nodes; `peers` are the names under which each knows the other.
    fn start(peers: [&str; 2]) -> Nodes {
        let scratch = Scratch::new();
        let ports: [u16; 2] = free_ports().expect("ports are free");
        let logs = ["a", "b"].map(|node| scratch.join(&format!("{node}.intent")));
        let nodes = [0, 1].map(|index| {
            let name = ["node-a", "node-b"][index];
            let disk = scratch.disk(&format!("{name}.disk"), SIZE_BYTES);
            let peer = peers[index];
            let text = format!(
                "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{}\"\ninsecure = true\n\
                 timeout = \"1s\"\n[volume.db]\nmirror = {{ peer = \"{peer}\", intent_log = {:?}, resync_max \
                 = \"4MiB/s\" }}\ndevice = {disk:?}\n",
                ports[1 - index], logs[index]
            );
            let file = scratch.join(&format!("{name}.toml"));
            std::fs::write(&file, text).expect("a configuration can be written");
            let listen = format!("nvme-tcp://127.0.0.1:{}", ports[index]);
            let file = file.to_str().expect("temporary paths are UTF-8");
            Server::start_at(&Default::default(), &[], &[&listen], &[file])
        });
        Nodes { nodes, logs, scratch }
    }

    fn in_sync() -> Nodes {
        let nodes = Nodes::start(["node-b", "node-a"]);
        nodes.done(0, "mirror create db --source");
        nodes.done(1, "mirror create db --target");
        nodes.wait_for(0, "db: mirroring");
        nodes
    }

    fn run(&self, node: usize, line: &str) -> Said {
        let mut command = Command::new(binary());
        command.args(line.split(' ')).arg("--api").arg(self.nodes[node].api());
        let output = command.stdin(Stdio::null()).output().expect("the program can be started");
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let text = text.concat().split_whitespace().collect::<Vec<_>>().join(" ");
        Said { succeeded: output.status.success(), text }
    }

    #[track_caller]
    fn done(&self, node: usize, line: &str) -> Said {
        let said = self.run(node, line);
        assert!(said.succeeded, "{line}: {}\n{}", said.text, self.nodes[node].output());
        said
    }

    #[track_caller]
    fn refused(&self, node: usize, line: &str) -> Said {
        let said = self.run(node, line);
        assert!(!said.succeeded, "{line}: {}", said.text);
        said
    }

    #[track_caller]
    fn wait_for(&self, node: usize, part: &str) {
        let shows = || self.run(node, "mirror status db").text.contains(part);
        until(part, shows, || self.run(node, "mirror status db").text);
    }

    /// Writes through a node.
    fn write(&self, node: usize, ios: u32) {
        let target = self.nodes[node].nvme_uri("db");
        let mut load = Command::new(binary());
        load.args(["load", &target, "--rw", "randwrite", "--bs", "64k", "--ios", &ios.to_string()]);
        load.arg(format!("--destroy-data={target}"));
        let output = load.output().expect("the program can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn created_replicas_are_described_as_they_are() {
    let nodes = Nodes::start(["node-b", "node-a"]);
    // Nothing is served before there is a replica, and every status says so.
    for line in ["status", "status db"] {
        let said = nodes.done(0, line);
        said.contains("not served here, because its mirror has no replica here");
        said.contains("`flagstone mirror status db`");
    }
    nodes.done(0, "status db").contains(" to be served on nvme-tcp");
    nodes.done(0, "mirror status db").contains("flagstone mirror create db --source");
    // The server there runs, but has no replica yet.
    let early = nodes.refused(1, "mirror create db --target");
    early.contains("no answer, or it has no replica of this volume");
    early.contains("`flagstone mirror create db --source`");

    nodes.done(0, "mirror create db --source");
    let status = nodes.done(0, "mirror status db");
    status.contains("if it has no replica yet, run `flagstone mirror create db --target` there");
    status.lacks("unreachable");
    nodes.done(1, "mirror create db --target");
    nodes.wait_for(0, "db: mirroring");

    // A replica has the role in which it was made, whatever the second order asks for.
    nodes.done(0, "mirror create db --source").contains("which is the source");
    nodes.done(1, "mirror create db --target").contains("which is the target");
    nodes.refused(1, "mirror create db --source").contains("it is a target");
    nodes.refused(0, "mirror create db --target").contains("it is the source");

    let served = nodes.done(0, "status db");
    served.contains(" served on nvme-tcp://");
    served.lacks("to be served on");
    let target = nodes.done(1, "mirror status db");
    target.contains("node-b is the target of node-a, does not serve");
    target.contains("peer node-a: the source; the source reports the sync state");
    nodes.done(1, "status").contains("because node-a is the source of its mirror");
    for internal in ["region", "page", "generation", "epoch"] {
        nodes.done(0, "mirror status db").lacks(internal);
    }
}

#[test]
fn peer_with_a_wrong_name_is_reported_by_both() {
    // The target knows the source under another name than it has.
    let nodes = Nodes::start(["node-b", "node-x"]);
    nodes.done(0, "mirror create db --source");
    nodes.done(1, "mirror create db --target");
    nodes.wait_for(0, "node-b refuses this node, which calls itself node-a");
    nodes.done(0, "mirror status db").contains("`[peer.node-a]` there agree");
    let heard = "Connect Invalid Host";
    let logged = || {
        let log = nodes.nodes[1].output();
        log.contains(heard) && log.contains("node:node-a")
    };
    until("the target logs the name that it heard", logged, || nodes.nodes[1].output());

    // The source knows the target under another name: the target is not made.
    let nodes = Nodes::start(["node-x", "node-a"]);
    nodes.done(0, "mirror create db --source");
    let said = nodes.refused(1, "mirror create db --target");
    said.contains("it refuses this node, which calls itself node-b");
    said.contains("[peer.node-b]");
}

#[test]
fn orders_say_what_happens_to_the_hosts() {
    let mut nodes = Nodes::in_sync();
    // The target is current, so it may take the role when the source gives it up.
    let demoted = nodes.done(0, "mirror demote db --dry-run");
    demoted.contains("node-a is a target of db: it stops serving hosts");
    demoted.contains("A peer with current data may become the source by itself");

    // A failover in a pause does not serve beside the source, and does not say that it does.
    nodes.done(0, "mirror pause db");
    nodes.write(0, 8);
    let said = nodes.refused(1, "mirror continue db");
    said.contains("node-b is not the source of `db`: repeat the command on the source, node-a");
    let said = nodes.refused(1, "mirror failover db");
    said.contains("node-a serves db and responds");
    nodes.done(1, "mirror status db").contains("node-b is the target");
    // The question names what would be lost: how old the data is.
    let asked = nodes.refused(1, "mirror failover db --force");
    asked.contains("since node-b was last in sync,");
    asked.contains("ago");
    asked.contains("would be done: ");
    asked.contains("to confirm, repeat this command with --yes");
    nodes.done(0, "mirror continue db");
    nodes.wait_for(0, "db: mirroring");

    // Split brain: the second one is promoted by force while the first is down, and the other way
    // round.
    nodes.nodes[0].kill();
    nodes.done(1, "mirror failover db --force --yes");
    nodes.write(1, 40);
    nodes.nodes[1].kill();
    nodes.nodes[0].restart();
    nodes.done(0, "mirror failover db --force --yes");
    nodes.write(0, 40);
    nodes.nodes[1].restart();
    nodes.wait_for(0, "db: split-brain");
    for node in [0, 1] {
        let said = nodes.refused(node, "mirror continue db");
        said.contains("first choose the data to keep");
        said.lacks("nothing to change");
    }
    nodes.done(1, "mirror demote db");
    // It shows the copying until that has ended.
    let said = nodes.done(0, "mirror resolve db --keep mine --yes --watch --interval 100ms");
    said.contains("node-b takes the data of node-a");
    let last = said.text.rfind("db: ").map(|at| &said.text[at..]);
    assert!(last.is_some_and(|last| last.starts_with("db: mirroring")), "{}", said.text);
}

#[test]
fn lost_log_explains_why_everything_is_copied() {
    let mut nodes = Nodes::in_sync();
    nodes.nodes[0].kill();
    std::fs::remove_file(&nodes.logs[0]).expect("it was there");
    nodes.nodes[0].restart();
    nodes.wait_for(0, "everything counts as out of sync: there is no log");
    // Moved in order, nothing is copied.
    let nodes = Nodes::in_sync();
    let to = nodes.scratch.join("moved.intent");
    let said = nodes.done(0, &format!("mirror move-log db --to {}", to.display()));
    said.contains("nothing has to be copied to the peers");
    nodes.done(0, "mirror status db").contains("db: mirroring");
}

/// A peer whose blocks have another size is corrected on its own: the source needs no restart.
#[test]
fn corrected_block_size_of_a_peer_is_noticed() {
    let mut nodes = Nodes::in_sync();
    let file = nodes.scratch.join("node-b.toml");
    let sound = std::fs::read_to_string(&file).expect("the node has one");
    let wrong = sound.replace("[volume.db]\n", "[volume.db]\nblock_size = 512\n");
    assert_ne!(wrong, sound);
    std::fs::write(&file, wrong).expect("it can be written");
    nodes.nodes[1].kill();
    nodes.nodes[1].restart();
    nodes.wait_for(0, "db: mismatch");
    let said = nodes.done(0, "mirror status db");
    said.contains("512 B on node-b");
    said.contains("`block_size`");
    nodes.write(0, 8);
    std::fs::write(&file, sound).expect("it can be written");
    nodes.nodes[1].kill();
    nodes.nodes[1].restart();
    nodes.wait_for(0, "db: mirroring");
}
