//! A mirrored volume under a verifying load: one node dies, the other takes over, the first comes
//! back, and gets its role back. The load goes by both nodes, and must not see an error.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::load;
use crate::process::{self, Interrupt, Running};
use crate::progress::Progress;

/// The volume's name.
const VOLUME: &str = "demo";
/// Size of each node's file.
const NODE_BYTES: u64 = 256 << 20;
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks at it.
const LOOK: Duration = Duration::from_millis(20);
/// Seconds of load, and between its events.
const LOAD_SECONDS: f64 = 8.0;
const STEP: Duration = Duration::from_millis(1500);

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Longest time that a request took, in µs: the take-over, or the switchover.
    pub longest_us: f64,
    /// From the death of the source to the end of the command that made the other one the source,
    /// in ms.
    pub failover_ms: f64,
    /// What was copied to the node that had been dead, of `volume_bytes`.
    pub resynced_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// From its start until it was in sync, in ms.
    pub return_ms: f64,
    /// The planned switchover back, in ms.
    pub switchover_ms: f64,
}

impl Survived {
    /// Nothing was lost, and no host saw an error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }
}

/// Steps of progress that [`run`] makes.
pub const STEPS: usize = 4;

/// Goes through all of it in a directory that is there, and leaves files in it alone.
///
/// # Errors
/// What went wrong.
pub(crate) fn run(
    flagstone: &Path,
    directory: &Path,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<Survived, Error> {
    progress.begin("mirroring a volume to a second node");
    let ports = [free_port()?, free_port()?];
    let [mut a, b] = [0, 1].map(|index| Node::new(flagstone, directory, index, ports));
    a.prepare()?;
    b.prepare()?;
    let mut first = a.start()?;
    let mut second = b.start()?;
    a.mirror(&["create", VOLUME, "--source"], interrupt)?;
    b.mirror(&["create", VOLUME, "--target"], interrupt)?;
    a.wait("mirroring", interrupt)?;
    progress.end("mirrored a volume to a second node, synchronously");

    progress.begin("killing the source under a verifying load");
    let addresses = format!("127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
    let target = format!("nvme-tcp://{addresses}/nqn.2026-01.io.flagstone:{VOLUME}");
    let load = load::begin_verify(flagstone, &target, NODE_BYTES / 4, LOAD_SECONDS)?;
    pause(STEP, interrupt)?;
    let died = Instant::now();
    first.0.kill().map_err(Error::io("cannot kill a node"))?;
    b.fail_over(interrupt)?;
    let failover_ms = ms(died);
    progress
        .end(&format!("the source was killed; the target serves since {failover_ms:.0} ms after"));

    progress.begin("bringing the dead node back");
    pause(STEP, interrupt)?;
    drop(first);
    let began = Instant::now();
    a = a.again();
    first = a.start()?;
    let status = b.wait("mirroring", interrupt)?;
    let return_ms = ms(began);
    let resynced_bytes = status.peers.first().map_or(0, |peer| peer.copied_bytes);
    let volume_bytes = status.replica.as_ref().map_or(0, |replica| replica.size_bytes);
    progress.end(&format!(
        "the dead node came back: {:.1} MiB copied, in sync after {return_ms:.0} ms",
        resynced_bytes as f64 / f64::from(1 << 20)
    ));

    progress.begin("switching over, and reading everything back");
    pause(STEP / 2, interrupt)?;
    let began = Instant::now();
    a.mirror(&["switchover", VOLUME], interrupt)?;
    let switchover_ms = ms(began);
    let ended = load.end(interrupt)?;
    stop(&mut second, interrupt)?;
    stop(&mut first, interrupt)?;
    progress.end("switched over to it, and read everything back");
    Ok(Survived {
        blocks_written: ended.verified.blocks_written,
        blocks_checked: ended.verified.blocks_checked,
        wrong_blocks: ended.verified.violations,
        errors: ended.errors,
        longest_us: ended.longest_us,
        failover_ms,
        resynced_bytes,
        volume_bytes,
        return_ms,
        switchover_ms,
    })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn pause(time: Duration, interrupt: &Interrupt) -> Result<(), Error> {
    let began = Instant::now();
    while began.elapsed() < time {
        interrupt.check()?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// A port that nobody has at this moment.
fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(listener.map_err(Error::io("there is no free port"))?.port())
}

fn stop(server: &mut Running, interrupt: &Interrupt) -> Result<(), Error> {
    kill_process(Pid::from_child(&server.0), Signal::TERM).map_err(|cause| Error::Io {
        what: "cannot stop flagstone serve".to_owned(),
        cause: cause.into(),
    })?;
    let status = server.wait(interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(Error::unexpected("flagstone serve, told to stop,", status))
}

/// What is read of `flagstone mirror status --json`.
#[derive(Deserialize)]
struct Status {
    state: String,
    peers: Vec<PeerStatus>,
    replica: Option<ReplicaStatus>,
}

#[derive(Deserialize)]
struct PeerStatus {
    copied_bytes: u64,
}

#[derive(Deserialize)]
struct ReplicaStatus {
    size_bytes: u64,
}

/// One of the two nodes.
struct Node {
    flagstone: PathBuf,
    directory: PathBuf,
    index: usize,
    ports: [u16; 2],
    starts: u32,
}

const NAMES: [&str; 2] = ["node-a", "node-b"];

impl Node {
    fn new(flagstone: &Path, directory: &Path, index: usize, ports: [u16; 2]) -> Node {
        let (flagstone, directory) = (flagstone.to_owned(), directory.to_owned());
        Node { flagstone, directory, index, ports, starts: 0 }
    }

    /// The same, with a log of its own for the next start.
    fn again(self) -> Node {
        Node { starts: self.starts + 1, ..self }
    }

    fn file(&self, what: &str) -> PathBuf {
        self.directory.join(format!("{}.{what}", NAMES[self.index]))
    }

    /// Writes its configuration, and makes its file.
    fn prepare(&self) -> Result<(), Error> {
        let (node, peer) = (NAMES[self.index], NAMES[1 - self.index]);
        let (own, others) = (self.ports[self.index], self.ports[1 - self.index]);
        let (socket, log, data) = (self.file("sock"), self.file("intent"), self.file("data"));
        let text = format!(
            "[server]\nnode = \"{node}\"\nlisten = [\"nvme-tcp://127.0.0.1:{own}\"]\n\
             api = {socket:?}\n\n[peer.{peer}]\naddress = \"127.0.0.1:{others}\"\n\
             timeout = \"2s\"\n\n[volume.{VOLUME}]\nmirror = {{ peer = \"{peer}\", bitmap = {log:?} }}\n\
             device = {data:?}\n"
        );
        std::fs::write(self.file("toml"), text)
            .and_then(|()| std::fs::File::create(data)?.set_len(NODE_BYTES))
            .map_err(Error::io("cannot make a node's files"))
    }

    /// Starts it, and waits until it answers.
    fn start(&self) -> Result<Running, Error> {
        let log = self.file(&format!("{}.log", self.starts));
        let said = std::fs::File::create(&log).map_err(Error::io("cannot make a log"))?;
        let output = said.try_clone().map_err(Error::io("cannot copy a descriptor"))?;
        let mut serve = Command::new(&self.flagstone);
        serve.arg("serve").arg(self.file("toml"));
        serve.stdin(Stdio::null()).stdout(output).stderr(said);
        let mut running = Running::start(&mut serve)?;
        let began = Instant::now();
        while self.serves(&log, &mut running.0)? {
            if began.elapsed() > PATIENCE {
                return Err(self.failed(&log, "it does not come to serve"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(running)
    }

    /// False once it serves.
    fn serves(&self, log: &Path, child: &mut Child) -> Result<bool, Error> {
        if child.try_wait().map_err(Error::io("cannot wait for a node"))?.is_some() {
            return Err(self.failed(log, "it ended"));
        }
        let said = std::fs::read_to_string(log).unwrap_or_default();
        Ok(!said.contains("listening on "))
    }

    fn failed(&self, log: &Path, status: &str) -> Error {
        Error::Failed {
            what: format!("starting flagstone serve of {}", NAMES[self.index]),
            status: status.to_owned(),
            said: std::fs::read_to_string(log).unwrap_or_default(),
        }
    }

    /// Runs `flagstone mirror` on this node.
    fn mirror(&self, arguments: &[&str], interrupt: &Interrupt) -> Result<String, Error> {
        let mut mirror = Command::new(&self.flagstone);
        mirror.arg("mirror").args(arguments).arg("--api").arg(self.file("sock"));
        let ended = process::run(&mut mirror, interrupt)?;
        match ended.status.success() {
            true => Ok(ended.output),
            false => Err(ended.failure(&format!("flagstone mirror {}", arguments.join(" ")))),
        }
    }

    /// Makes this node the source: refused while it has not noticed that the other one is dead.
    fn fail_over(&self, interrupt: &Interrupt) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            match self.mirror(&["failover", VOLUME, "--yes"], interrupt) {
                Err(Error::Failed { .. }) if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
                done => return done.map(drop),
            }
        }
    }

    /// Waits until the mirror is in this state.
    fn wait(&self, state: &str, interrupt: &Interrupt) -> Result<Status, Error> {
        let began = Instant::now();
        loop {
            let said = self.mirror(&["status", VOLUME, "--json"], interrupt)?;
            let status: Status = serde_json::from_str(&said)
                .map_err(|error| Error::unexpected("flagstone mirror status", error))?;
            if status.state == state {
                return Ok(status);
            }
            if began.elapsed() > PATIENCE {
                let found = format!("`{}` where `{state}` was awaited", status.state);
                return Err(Error::unexpected("flagstone mirror status", found));
            }
            std::thread::sleep(LOOK);
        }
    }
}
