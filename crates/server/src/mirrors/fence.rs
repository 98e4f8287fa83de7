//! Fencing: runs `fence_command` of a peer, which stops the peer's machine before this node serves
//! in its place.
//!
//! The command runs in a process group of its own, on a thread that ends with it: never on an
//! executor. At its time limit, or when it is abandoned, the whole group is killed. A program that
//! cannot be killed, such as one on a dead NFS server, does not delay the result. Its output goes
//! to the daemon's standard error.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flagstone_config::Peer;
use flagstone_host::process::{ProcessGroup, Waited};
use flagstone_mirror::{Fence, FenceError, FenceFuture};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::oneshot;

/// Time for the end of a killed command.
const KILL_TIME: Duration = Duration::from_secs(1);

/// The command of one peer for one volume.
pub(crate) struct FenceCommand {
    words: Vec<String>,
    limit: Duration,
    variables: Vec<(&'static str, String)>,
    /// One run at a time: an earlier one may still be ending.
    is_running: Arc<AtomicBool>,
}

impl FenceCommand {
    /// `None` if the configuration has no command for this peer. Commands that share `is_running`
    /// do not overlap.
    pub(crate) fn new(
        peer: &Peer,
        (node, volume): (&str, &str),
        is_running: &Arc<AtomicBool>,
    ) -> Option<FenceCommand> {
        let words = peer.fence_command.clone();
        let variables = vec![
            ("FLAGSTONE_PEER", peer.name.clone()),
            ("FLAGSTONE_PEER_ADDRESS", peer.address.to_string()),
            ("FLAGSTONE_VOLUME", volume.to_owned()),
            ("FLAGSTONE_NODE", node.to_owned()),
        ];
        let limit = peer.fence_timeout;
        let is_running = is_running.clone();
        let command = FenceCommand { words, limit, variables, is_running };
        (!command.words.is_empty()).then_some(command)
    }

    /// The command with its variables, as a shell would read it.
    pub(crate) fn shown(&self) -> String {
        let quoted = |text: &String| format!("'{}'", text.replace('\'', "'\\''"));
        let variables =
            self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = self.words.iter().map(quoted);
        variables.chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Time limit of the command.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the program is a file that this process may execute. Runs nothing.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let program = &self.words[0];
        let found = std::fs::metadata(program).map_err(|error| format!("{program}: {error}"))?;
        if !found.is_file() {
            return Err(format!("{program} is no file"));
        }
        // A mode that lets another user execute it does not suffice.
        accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(|error| format!("the service's user cannot execute {program}: {error}"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.variables.iter().cloned());
        command.stdout(io::stderr()).stderr(Stdio::inherit());
        command
    }
}

impl Fence for FenceCommand {
    fn fence(&self) -> FenceFuture {
        let Some(running) = Running::begin(&self.is_running) else {
            let busy = FenceError("its last run has not ended".to_owned());
            return Box::pin(async move { Err(busy) });
        };
        let (command, limit) = (self.command(), self.limit);
        let (done, ended) = oneshot::channel();
        let wanted = Arc::new(());
        let still_wanted = Arc::downgrade(&wanted);
        let started = thread(move || {
            use_all_cores();
            let work = move || run(command, limit, &|| still_wanted.strong_count() > 0);
            drop(done.send(within(limit + KILL_TIME, running, work)));
        });
        if let Err(failed) = started {
            return Box::pin(async move { Err(failed) });
        }
        Box::pin(async move {
            let _wanted = wanted;
            ended.await.unwrap_or_else(|_| Err(FenceError("its thread ended".to_owned())))
        })
    }
}

/// A run that has not ended.
struct Running(Arc<AtomicBool>);

impl Running {
    /// Begins a run; `None` if another one has not ended.
    fn begin(is_running: &Arc<AtomicBool>) -> Option<Running> {
        (!is_running.swap(true, Ordering::AcqRel)).then(|| Running(is_running.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> Result<(), FenceError> {
    let thread = std::thread::Builder::new().name("flagstone-fence".to_owned());
    let started = thread.spawn(work).map(drop);
    started.map_err(|error| FenceError(format!("no thread for it: {error}")))
}

/// Result of `work`, or a failure at this limit, although `work` continues.
fn within(
    limit: Duration,
    running: Running,
    work: impl FnOnce() -> Result<(), FenceError> + Send + 'static,
) -> Result<(), FenceError> {
    let (finish, finished) = mpsc::channel();
    thread(move || {
        let result = work();
        drop(running);
        drop(finish.send(result));
    })?;
    let late = |_| Err(FenceError("it was killed, and has not ended".to_owned()));
    finished.recv_timeout(limit).unwrap_or_else(late)
}

/// Executors are bound to their cores, and their threads and children would be.
fn use_all_cores() {
    let mut cores = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    if let Err(error) = sched_setaffinity(None, &cores) {
        tracing::debug!("the fencing command stays on one core: {error}");
    }
}

fn run(
    mut command: Command,
    limit: Duration,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(), FenceError> {
    let cannot = |error| FenceError(format!("it cannot be started: {error}"));
    let mut group = ProcessGroup::start(&mut command).map_err(cannot)?;
    Err(FenceError(match group.wait(limit, is_wanted) {
        Ok(Waited::Ended(status)) if status.success() => return Ok(()),
        Ok(Waited::Ended(status)) => ended_with(status),
        Ok(Waited::Abandoned) => "it was abandoned".to_owned(),
        Ok(Waited::TimedOut) => format!("it was killed after {} s", limit.as_secs()),
        Err(error) => format!("its end is not known: {error}"),
    }))
}

fn ended_with(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended without a status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> FenceCommand {
        let mut peer = Peer::at("b", "10.0.0.2").expect("a sound address");
        peer.fence_command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        peer.fence_timeout = limit;
        FenceCommand::new(&peer, ("a", "db"), &Arc::default()).expect("it has a command")
    }

    fn fenced(script: &str, limit: Duration) -> Result<(), FenceError> {
        let command = shell(script, limit);
        flagstone_runtime::block_on(async move { command.fence().await }).expect("a runtime")
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn fence_command_gets_peer_and_volume() {
        let all = "$FLAGSTONE_PEER $FLAGSTONE_PEER_ADDRESS $FLAGSTONE_VOLUME $FLAGSTONE_NODE";
        let test = format!("[ \"{all}\" = 'b 10.0.0.2:4420 db a' ]");
        assert_eq!(fenced(&test, LONG), Ok(()));
        assert_eq!(shell("x", LONG).check(), Ok(()));
        let shown = shell("echo 'x'", LONG).shown();
        assert!(shown.ends_with("'/bin/sh' '-c' 'echo '\\''x'\\'''"), "{shown}");
    }

    #[test]
    fn failed_fence_command_says_why() {
        let failed = |script, limit| fenced(script, limit).expect_err("a failure").to_string();
        assert!(failed("exit 7", LONG).contains("status 7"));
        assert!(failed("kill -9 $$", LONG).contains("signal 9"));
        // The child of the shell keeps its output open.
        assert!(failed("sleep 60 & wait", Duration::from_millis(50)).contains("killed after"));
        let mut peer = Peer::at("b", "10.0.0.2").expect("a sound address");
        peer.fence_command = vec!["/nonexistent".to_owned()];
        let command =
            FenceCommand::new(&peer, ("a", "db"), &Arc::default()).expect("it has a command");
        assert!(command.check().is_err());
        peer.fence_command = vec!["/etc/passwd".to_owned()];
        let command =
            FenceCommand::new(&peer, ("a", "db"), &Arc::default()).expect("it has a command");
        let refused = command.check().expect_err("not executable");
        assert!(refused.contains("cannot execute /etc/passwd"), "{refused}");
    }

    #[test]
    fn fence_command_that_cannot_be_killed_has_failed() {
        let is_running = Arc::default();
        let (end, ended) = mpsc::channel();
        let running = Running::begin(&is_running).expect("the first run");
        let stuck = move || ended.recv().map_err(|_| FenceError("its test ended".to_owned()));
        let failed = within(Duration::from_millis(20), running, stuck).expect_err("it goes on");
        assert!(failed.to_string().contains("has not ended"), "{failed}");
        assert!(Running::begin(&is_running).is_none(), "no second run beside it");
        end.send(()).expect("it waits");
        while is_running.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn abandoned_fence_command_is_killed() {
        let command = shell("sleep 60 & wait", LONG);
        drop(command.fence());
        while command.is_running.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(fenced("exit 0", LONG), Ok(()));
    }
}
