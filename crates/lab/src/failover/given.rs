//! Drill on nodes of the user, whose commands act on them; the user is asked where there is none.
//!
//! The time of death is the start of the kill command, or the user's confirmation. The effect on
//! the host is measured.

use std::process::Command;

use flagstone_bench::Error as BenchError;
use flagstone_bench::os::Stopwatch;
use flagstone_bench::process::{self, Interrupt};
use flagstone_bench::provenance::Provenance;
use flagstone_bench::target::BenchTarget;

use super::load::LOAD_BYTES;
use super::{Death, DrillFacts, DrillLog, DrillNodes, Follower, Resynced, TARGET};
use crate::Error;
use crate::bed::{BedTargets, RunOptions, volume_at, warning};
use crate::limits::{OUTPUT_BYTES, STEP_S};
use crate::node::{ReportedMirror, ReportedState, retry};

/// Steps that may each take [`STEP_S`] during the load.
const SLOW_STEPS: f64 = 4.0;

#[derive(Clone, Debug)]
pub struct GivenFailover {
    /// Properties of the volume; the initiator is not used.
    pub targets: BedTargets,
    /// Address of the source, which dies.
    pub node_a: String,
    /// Address of the node that takes over.
    pub node_b: String,
    /// Mirrored volume on both nodes, by name or NQN.
    pub volume: String,
    pub commands: NodeCommands,
}

/// Commands for `sh -c`; without a command, the user is asked to act.
#[derive(Clone, Debug, Default)]
pub struct NodeCommands {
    /// Powers node A off, or kills its server.
    pub kill: Option<String>,
    /// Makes node B the source; repeated until it succeeds.
    pub failover: Option<String>,
    pub come_back: Option<String>,
    /// Makes node A the source again; repeated until it succeeds.
    pub switchover: Option<String>,
    /// Prints `flagstone mirror status --json` of node B.
    pub status: Option<String>,
}

impl NodeCommands {
    /// Whether the user has to be asked to do something.
    pub fn need_operator(&self) -> bool {
        [&self.kill, &self.failover, &self.come_back, &self.switchover, &self.status]
            .iter()
            .any(|command| command.is_none())
    }
}

impl GivenFailover {
    pub fn target(&self) -> Result<BenchTarget, Error> {
        let found = volume_at(&[&self.node_a, &self.node_b], &self.volume)?;
        Ok(BenchTarget { name: TARGET.to_owned(), ..found })
    }

    pub(super) fn nodes<'a>(
        &'a self,
        run: &'a RunOptions,
        interrupt: &'a Interrupt,
    ) -> GivenNodes<'a> {
        GivenNodes { bed: self, run, interrupt }
    }
}

pub(super) struct GivenNodes<'a> {
    bed: &'a GivenFailover,
    run: &'a RunOptions,
    interrupt: &'a Interrupt,
}

impl GivenNodes<'_> {
    fn once(&self, command: &str) -> Result<String, Error> {
        let mut program = Command::new("sh");
        program.args(["-c", command]);
        let ended = process::run(&mut program, OUTPUT_BYTES, self.interrupt, &mut || {})?;
        match ended.status.success() {
            true => Ok(ended.output),
            false => Err(Error::command(command, "this machine", &ended)),
        }
    }

    /// Runs a command until it succeeds, or asks for it: a node refuses to take over until it has
    /// noticed that the other one is dead.
    fn until_success(
        &self,
        command: Option<&String>,
        ask: &str,
        follower: &mut dyn Follower,
    ) -> Result<(), Error> {
        let Some(command) = command else { return follower.ask(ask) };
        self.repeat(|| self.once(command).map(Some)).map(drop)
    }

    fn repeat<T>(&self, what: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
        let late = format!("it was not done within {STEP_S:.0} s");
        let late = || Error::unexpected("a step of the drill", late);
        retry(STEP_S, self.interrupt, what, late)
    }

    fn status(&self, command: &str) -> Result<ReportedMirror, Error> {
        let text = self.once(command)?;
        serde_json::from_str(&text).map_err(|error| Error::unexpected(command, error))
    }

    /// Refuses a mirror that is out of sync: the drill would lose data, as it should.
    fn check_in_sync(&self) -> Result<(), Error> {
        let Some(command) = &self.bed.commands.status else { return Ok(()) };
        let status = self.status(command)?;
        match status.state {
            // A target reports the state of its source.
            ReportedState::Mirroring | ReportedState::Target => Ok(()),
            state => Err(BenchError::usage(format!(
                "the mirror is {state}: both nodes must be in sync before one is killed"
            ))
            .into()),
        }
    }
}

impl DrillNodes for GivenNodes<'_> {
    fn facts(&self) -> Result<DrillFacts, Error> {
        let target = self.bed.target()?;
        let origin = self.bed.targets.origins.get(&target.address());
        let provenance = origin.map_or(Provenance::Served, |origin| origin.provenance);
        Ok(DrillFacts {
            target,
            targets: self.bed.targets.clone(),
            provenance,
            death: Death::Operator,
            slack_s: SLOW_STEPS * STEP_S,
            caveats: self.caveats(provenance),
        })
    }

    fn prepare(&mut self, follower: &mut dyn Follower) -> Result<u64, Error> {
        let target = self.bed.target()?;
        self.bed.targets.guard(std::slice::from_ref(&target), true)?;
        follower.begin("checking the volume through both nodes");
        let bytes = self.run.generator().size_bytes(&target.address(), self.interrupt)?;
        if bytes < LOAD_BYTES {
            let text = format!("{} is smaller than the 64 MiB of the load", target.address());
            return Err(BenchError::usage(text).into());
        }
        self.check_in_sync()?;
        follower.end("the volume is served");
        Ok(bytes)
    }

    fn kill(
        &mut self,
        log: &mut DrillLog<'_>,
        follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error> {
        match &self.bed.commands.kill {
            Some(command) => {
                log.event("node-a is killed");
                let died = Stopwatch::start();
                self.once(command)?;
                Ok(died)
            }
            None => {
                follower.ask("power node A off, or kill its server; when it is done")?;
                log.event("node-a is killed");
                Ok(Stopwatch::start())
            }
        }
    }

    fn fail_over(&mut self, follower: &mut dyn Follower) -> Result<(), Error> {
        let ask = "on node B: flagstone mirror failover VOLUME; when it is done";
        self.until_success(self.bed.commands.failover.as_ref(), ask, follower)
    }

    fn bring_back(
        &mut self,
        log: &mut DrillLog<'_>,
        follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error> {
        let command = self.bed.commands.come_back.as_ref();
        if command.is_none() {
            follower.ask("press Enter, then start node A again")?;
        }
        log.event("node-a returns");
        let began = Stopwatch::start();
        if let Some(command) = command {
            self.once(command)?;
        }
        Ok(began)
    }

    fn wait_in_sync(&mut self, follower: &mut dyn Follower) -> Result<Resynced, Error> {
        let Some(command) = &self.bed.commands.status else {
            let ask = "wait until flagstone mirror status on node B says mirroring; when it does";
            return follower.ask(ask).map(|()| Resynced::default());
        };
        let status = self.repeat(|| {
            let status = self.status(command)?;
            Ok((status.state == ReportedState::Mirroring).then_some(status))
        })?;
        Ok(Resynced::of(&status))
    }

    fn switch_over(&mut self, follower: &mut dyn Follower) -> Result<(), Error> {
        let ask = "on node A: flagstone mirror switchover VOLUME; when it is done";
        self.until_success(self.bed.commands.switchover.as_ref(), ask, follower)
    }
}

impl GivenNodes<'_> {
    fn caveats(&self, provenance: Provenance) -> Vec<String> {
        let mut caveats: Vec<String> = warning(provenance).map(str::to_owned).into_iter().collect();
        if let Some(machine) = &self.bed.targets.machine {
            caveats
                .push(format!("the machine type {machine} was stated by the user, not detected"));
        }
        let death = match self.bed.commands.kill {
            Some(_) => {
                "the death is when its command began: the time that a cloud's command takes until the \
                 machine is dead is part of the failover"
            }
            None => "the death is when the operator said that it was done",
        };
        caveats.push(death.to_owned());
        if self.bed.commands.status.is_none() {
            caveats.push(
                "the copied bytes are unknown, and both nodes were in sync when the operator said so: \
                 --status-command measures it"
                    .to_owned(),
            );
        }
        caveats.push(
            "the host waits for a silent target, 30 s in flagstone load: the longest wait includes it"
                .to_owned(),
        );
        caveats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::{given, run_options};
    use crate::failover::{DrillTimes, steps};

    struct Recorder(Vec<String>);

    impl Follower for Recorder {
        fn begin(&mut self, _: &str) {}
        fn end(&mut self, what: &str) {
            self.0.push(what.to_owned());
        }
        fn ask(&mut self, what: &str) -> Result<(), Error> {
            self.0.push(what.to_owned());
            Ok(())
        }
    }

    fn bed(commands: NodeCommands) -> GivenFailover {
        GivenFailover {
            targets: given(),
            node_a: "10.0.0.1".to_owned(),
            node_b: "10.0.0.2:4421".to_owned(),
            volume: "db".to_owned(),
            commands,
        }
    }

    /// Runs the drill's steps; returns their result, the events and the messages to the follower.
    fn drilled(bed: &GivenFailover) -> (Result<DrillTimes, Error>, Vec<String>, Vec<String>) {
        let (mut recorder, never) = (Recorder(Vec::new()), Interrupt::never());
        let run = run_options("results".into());
        let mut nodes = bed.nodes(&run, &never);
        let mut log = DrillLog {
            seconds: 0.01,
            interrupt: &never,
            watch: Stopwatch::start(),
            events: Vec::new(),
        };
        let times = steps(&mut nodes, &mut log, &mut recorder);
        (times, log.events.into_iter().map(|event| event.what).collect(), recorder.0)
    }

    fn in_sync(bed: &GivenFailover) -> Result<(), Error> {
        let (run, never) = (run_options("results".into()), Interrupt::never());
        bed.nodes(&run, &never).check_in_sync()
    }

    const STATUS: &str =
        r#"{"state":"mirroring","peers":[{"copied_bytes":5}],"replica":{"size_bytes":9}}"#;

    #[test]
    fn operator_is_asked_where_no_command_is_given() {
        let bed = bed(NodeCommands::default());
        assert!(bed.commands.need_operator());
        let (times, events, said) = drilled(&bed);
        assert_eq!(times.unwrap().resynced, Resynced::default());
        assert_eq!(events.len(), 5);
        assert_eq!((&*events[0], &*events[4]), ("node-a is killed", "switchover to node-a"));
        for ask in ["power node A off", "mirror failover", "start node A", "says mirroring"] {
            assert!(said.iter().any(|line| line.contains(ask)), "{ask}: {said:?}");
        }
    }

    #[test]
    fn commands_are_repeated_until_they_succeed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tries");
        let bed = bed(NodeCommands {
            kill: Some("true".to_owned()),
            // Succeeds the second time.
            failover: Some(format!("echo x >> {0:?}; test $(wc -l < {0:?}) -ge 2", file)),
            come_back: Some("true".to_owned()),
            switchover: Some("true".to_owned()),
            status: Some(format!("echo '{STATUS}'")),
        });
        assert!(!bed.commands.need_operator());
        in_sync(&bed).unwrap();
        let (times, _, said) = drilled(&bed);
        assert_eq!(times.unwrap().resynced, Resynced { bytes: 5, volume_bytes: 9 });
        assert_eq!(said.len(), 3, "nobody was asked: {said:?}");
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 2);
    }

    #[test]
    fn failed_command_and_mirror_out_of_sync_are_reported() {
        let status = STATUS.replace("mirroring", "resyncing");
        let bed = bed(NodeCommands {
            kill: Some("echo no such machine >&2; exit 3".to_owned()),
            status: Some(format!("echo '{status}'")),
            ..NodeCommands::default()
        });
        let error = drilled(&bed).0.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("no such machine") && error.contains("exit 3"), "{error}");
        let error = in_sync(&bed).unwrap_err().to_string();
        assert!(error.contains("the mirror is resyncing"), "{error}");
    }

    #[test]
    fn volume_is_reached_through_both_nodes() {
        let bed = bed(NodeCommands::default());
        let address = bed.target().unwrap().address();
        assert!(address.starts_with("nvme-tcp://10.0.0.1,10.0.0.2:4421/nqn."), "{address}");
        let (run, never) = (run_options("results".into()), Interrupt::never());
        // An operator may be slow.
        assert!(bed.nodes(&run, &never).facts().unwrap().slack_s > 3000.0);
    }
}
