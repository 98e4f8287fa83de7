//! A real node dies under a verifying load: what happens to the nodes is done by the user's commands,
//! or by the user who is asked for it; what the host sees of it is measured.
//!
//! No figure is taken on trust: when a node dies is when its command began or its user said so, and
//! the load's own timeline says what the host had of it.

use std::process::Command;

use flagstone_bench::Error as BenchError;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::measurement::Measurement;
use flagstone_bench::nature::Nature;
use flagstone_bench::os::{self, Interrupt, Stopwatch, unix_seconds, wait_for};
use flagstone_bench::report::Extras;
use flagstone_bench::results::Record;
use flagstone_bench::target::Target;
use serde::Serialize;

use super::{Common, is_emulated, volume_at};
use crate::Error;
use crate::failover::load::{self, DEPTH, Host, LOAD_BYTES};
use crate::failover::timeline::{self, Event};
use crate::failover::{
    AFTER_S, DEATH, Death, Follower, Outcome as Drilled, RETURN, SWITCHOVER, Summary as Drill,
    TARGET, tables,
};
use crate::limits::{OUTPUT_BYTES, SAID_BYTES, STEP_S};
use crate::node::Status;

/// Steps that may each take [`STEP_S`] while the load goes on.
const SLOW_STEPS: f64 = 4.0;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// As of every experiment; its lengths and its initiator are not used.
    pub common: Common,
    /// Address of the node that is the source, and dies.
    pub node_a: String,
    /// Address of the node that takes over.
    pub node_b: String,
    /// The mirrored volume, on both.
    pub volume: String,
    /// How long the drill takes at least, in seconds, before all is read back.
    pub seconds: f64,
    /// What does it.
    pub commands: Commands,
}

/// What does each step, for `sh -c`; where there is none, the user is asked to do it.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// Takes node A's power, or kills its server.
    pub kill: Option<String>,
    /// Makes node B the source; run again until it succeeds.
    pub failover: Option<String>,
    /// Brings node A back.
    pub come_back: Option<String>,
    /// Makes node A the source again; run again until it succeeds.
    pub switchover: Option<String>,
    /// Prints `flagstone mirror status --json` of node B.
    pub status: Option<String>,
}

impl Commands {
    /// Whether somebody has to be asked to do something.
    pub fn need_somebody(&self) -> bool {
        [&self.kill, &self.failover, &self.come_back, &self.switchover, &self.status]
            .iter()
            .any(|command| command.is_none())
    }
}

/// Who does what no command does.
pub trait Operator: Follower {
    /// Asks for something, and returns when it is done.
    ///
    /// # Errors
    /// That nobody does it, and the user's interruption.
    fn ask(&mut self, what: &str) -> Result<(), Error>;
}

impl Options {
    /// The volume by both nodes.
    ///
    /// # Errors
    /// What of the addresses cannot be understood.
    pub fn target(&self) -> Result<Target, Error> {
        let found = volume_at(&[&self.node_a, &self.node_b], &self.volume)?;
        Ok(Target { name: TARGET.to_owned(), ..found })
    }

    /// How long the load goes on if nobody stops it, in seconds.
    fn load_seconds(&self) -> f64 {
        self.seconds + SLOW_STEPS * STEP_S
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// As of nodes of this machine.
    #[serde(flatten)]
    pub drill: Drill,
    /// Always true: the nodes are the user's.
    pub real_nodes: bool,
    /// What the volume is.
    pub nature: Nature,
    /// Type of the machines, as it was told.
    pub machine: Option<String>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The numbers.
    pub summary: Summary,
    /// What makes a report of it.
    pub drilled: Drilled,
}

/// Goes through all of it.
///
/// # Errors
/// What went wrong, and the user's interruption. That data is wrong is a result.
pub fn run(
    options: &Options,
    operator: &mut dyn Operator,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let target = options.target()?;
    options.common.guard(std::slice::from_ref(&target), true)?;
    operator.begin("looking at the volume by both nodes");
    let generator = Generator { program: options.common.program.clone() };
    let volume_bytes = generator.size_bytes(&target.address(), interrupt)?;
    if volume_bytes < LOAD_BYTES {
        let text = format!("{} is smaller than the 64 MiB of the load", target.address());
        return Err(BenchError::Usage(text).into());
    }
    let mut steps = Steps {
        options,
        operator,
        interrupt,
        watch: Stopwatch::start(),
        events: Vec::new(),
        volume_bytes,
    };
    steps.check_in_sync()?;
    steps.operator.end("the volume is there");
    let started_unix_s = unix_seconds();
    steps.watch = Stopwatch::start();
    let scratch =
        tempfile::tempdir().map_err(Error::system("cannot make a temporary directory"))?;
    let program = &options.common.program;
    let seconds = options.load_seconds();
    let host = Host::begin(program, target.address(), scratch.path(), seconds)?;
    let times = steps.all()?;
    steps.operator.begin("reading everything back");
    let found = host.end(interrupt)?;
    steps.operator.end("read everything back");

    let nature = nature(options, &target);
    let drill = Drill {
        failover_ms: times.failover_ms,
        resynced_bytes: times.resynced_bytes,
        volume_bytes: steps.volume_bytes,
        return_ms: times.return_ms,
        switchover_ms: times.switchover_ms,
        emulated: is_emulated(nature),
        death: Death::Told,
        events: std::mem::take(&mut steps.events),
        ..Drill::of_host(&found.load, &found.read_back)
    };
    let doubts = doubts(options, nature);
    let job = Job {
        name: "failover".to_owned(),
        pattern: Pattern::RandRw,
        depth: DEPTH,
        disks: 1,
        ramp_ms: 0,
        runtime_ms: (options.seconds * 1e3) as u64,
        size_bytes: Some(LOAD_BYTES),
        ..Job::default()
    };
    let title = format!("A real source dies under a verifying load{}", nature.suffix());
    let record = Record {
        nature,
        started_unix_s,
        tool: "flagstone load".to_owned(),
        command: shell("flagstone", &load::arguments(&target.address(), "FILE", seconds)),
        ..Record::new("failover", &job, &target, Measurement::of_load(&found.load))
    };
    let mut plan = options.common.plan(("failover", &title), vec![job], vec![target]);
    plan.repetitions = 1;
    let summary = Summary {
        drill: drill.clone(),
        real_nodes: true,
        nature,
        machine: options.common.machine.clone(),
        doubts,
    };
    Ok(Outcome { summary, drilled: Drilled { summary: drill, plan, record, raw: found.raw } })
}

/// How many times [`run`] tells its operator that something has ended.
pub const STEPS: usize = 5;

fn nature(options: &Options, target: &Target) -> Nature {
    options.common.origins.get(&target.address()).map_or(Nature::Served, |told| told.nature)
}

/// What the steps took.
struct Times {
    failover_ms: f64,
    resynced_bytes: u64,
    return_ms: f64,
    switchover_ms: f64,
}

/// What is done to the nodes while the load runs.
struct Steps<'a> {
    options: &'a Options,
    operator: &'a mut dyn Operator,
    interrupt: &'a Interrupt,
    /// Since the load began.
    watch: Stopwatch,
    events: Vec<Event>,
    volume_bytes: u64,
}

impl Steps<'_> {
    fn all(&mut self) -> Result<Times, Error> {
        let commands = self.options.commands.clone();
        self.until(DEATH)?;
        self.operator.begin("killing node A under a verifying load");
        let died = match &commands.kill {
            Some(command) => {
                self.event("node-a is killed");
                let died = Stopwatch::start();
                self.once(command)?;
                died
            }
            None => {
                self.operator.ask("power node A off, or kill its server; when it is done")?;
                self.event("node-a is killed");
                Stopwatch::start()
            }
        };
        let ask = "on node B: flagstone mirror failover VOLUME; when it is done";
        self.again(commands.failover.as_ref(), ask)?;
        let failover_ms = died.seconds() * 1e3;
        self.event("node-b serves");
        self.operator
            .end(&format!("node A was killed; node B serves since {failover_ms:.0} ms after"));

        self.until(RETURN)?;
        self.operator.begin("bringing node A back");
        if commands.come_back.is_none() {
            self.operator.ask("press Enter, then start node A again")?;
        }
        self.event("node-a returns");
        let began = Stopwatch::start();
        if let Some(command) = &commands.come_back {
            self.once(command)?;
        }
        let resynced_bytes = self.in_sync(commands.status.as_ref())?;
        let return_ms = began.seconds() * 1e3;
        self.event("both in sync");
        self.operator.end(&format!("node A came back: in sync after {return_ms:.0} ms"));

        self.until(SWITCHOVER)?;
        self.operator.begin("switching over to node A");
        let began = Stopwatch::start();
        self.event("switchover to node-a");
        let ask = "on node A: flagstone mirror switchover VOLUME; when it is done";
        self.again(commands.switchover.as_ref(), ask)?;
        let switchover_ms = began.seconds() * 1e3;
        self.operator.end(&format!("node A serves again after {switchover_ms:.0} ms"));
        wait_for(AFTER_S, self.interrupt, || None::<()>)?;
        self.until(1.0)?;
        Ok(Times { failover_ms, resynced_bytes, return_ms, switchover_ms })
    }

    fn event(&mut self, what: &str) {
        self.events.push(Event { at_s: self.watch.seconds(), what: what.to_owned() });
    }

    /// Waits until this part of the load's time has passed.
    fn until(&self, part: f64) -> Result<(), Error> {
        let left_s = part * self.options.seconds - self.watch.seconds();
        wait_for(left_s, self.interrupt, || None::<()>)?;
        Ok(())
    }

    /// Runs a command; gives what it printed.
    fn once(&self, command: &str) -> Result<String, Error> {
        let mut program = Command::new("sh");
        program.args(["-c", command]);
        let ended = os::run(&mut program, OUTPUT_BYTES, self.interrupt, &mut || {})?;
        match ended.status.success() {
            true => Ok(ended.output),
            false => Err(Error::Command {
                command: command.to_owned(),
                node: "this machine".to_owned(),
                status: ended.status.to_string(),
                said: ended.said(SAID_BYTES),
            }),
        }
    }

    /// Runs a command until it succeeds: a node refuses to take over until it has noticed that the
    /// other one is dead. Asks for it if there is none.
    fn again(&mut self, command: Option<&String>, ask: &str) -> Result<(), Error> {
        let Some(command) = command else { return self.operator.ask(ask) };
        self.repeat(|steps| steps.once(command).map(Some)).map(drop)
    }

    fn repeat<T>(
        &self,
        mut what: impl FnMut(&Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut last = None;
        let done = wait_for(STEP_S, self.interrupt, || match what(self) {
            Ok(found) => found.map(Ok),
            Err(error @ Error::Command { .. }) => {
                last = Some(error);
                None
            }
            Err(error) => Some(Err(error)),
        })?;
        done.unwrap_or_else(|| {
            Err(last.unwrap_or_else(|| Error::Unexpected {
                what: "what was waited for".to_owned(),
                detail: format!("it did not come in {STEP_S:.0} s"),
            }))
        })
    }

    fn status(&self, command: &str) -> Result<Status, Error> {
        let text = self.once(command)?;
        serde_json::from_str(&text).map_err(|error| Error::Unexpected {
            what: command.to_owned(),
            detail: error.to_string(),
        })
    }

    /// Waits until both are in sync; gives what was copied for it, 0 where nobody tells.
    fn in_sync(&mut self, command: Option<&String>) -> Result<u64, Error> {
        let Some(command) = command else {
            let ask = "wait until flagstone mirror status on node B says mirroring; when it does";
            return self.operator.ask(ask).map(|()| 0);
        };
        let status = self.repeat(|steps| {
            let status = steps.status(command)?;
            Ok((status.state == "mirroring").then_some(status))
        })?;
        if let Some(replica) = &status.replica {
            self.volume_bytes = replica.size_bytes;
        }
        Ok(status.peers.first().map_or(0, |peer| peer.copied_bytes))
    }

    /// A drill with a target that is out of date would lose data, as it should.
    fn check_in_sync(&self) -> Result<(), Error> {
        let Some(command) = &self.options.commands.status else { return Ok(()) };
        let status = self.status(command)?;
        match status.state.as_str() {
            // A target's state is its source's.
            "mirroring" | "target" => Ok(()),
            state => Err(BenchError::Usage(format!(
                "the mirror is {state}: both nodes have to be in sync before one is killed"
            ))
            .into()),
        }
    }
}

fn doubts(options: &Options, nature: Nature) -> Vec<String> {
    let mut doubts: Vec<String> = super::warning(nature).map(str::to_owned).into_iter().collect();
    if let Some(machine) = &options.common.machine {
        doubts.push(format!("that the machines are {machine} was told, not found out"));
    }
    doubts.push(match options.commands.kill {
        Some(_) => {
            "the death is when its command began: what a cloud's own command takes before the \
                    machine is dead is in the time of the failover"
                .to_owned()
        }
        None => "the death is when its operator said that it was done".to_owned(),
    });
    if options.commands.status.is_none() {
        doubts.push(
            "what was copied is not known, and both were in sync when their operator said so: \
             --status-command finds it out"
                .to_owned(),
        );
    }
    doubts.push(
        "a target that falls silent is waited for by its host, 30 s by `flagstone load`: the longest \
         wait has it in it"
            .to_owned(),
    );
    doubts
}

/// What it adds to the report of its measurements.
pub fn extras(summary: &Summary) -> Extras {
    Extras::new("A real source dies under a verifying load")
        .with_picture(timeline::drawing(&summary.drill))
        .with_tables("failover", tables(&summary.drill))
        .with_doubts(&summary.doubts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::tests::common;

    struct Nobody(Vec<String>);

    impl Follower for Nobody {
        fn begin(&mut self, _: &str) {}
        fn end(&mut self, what: &str) {
            self.0.push(what.to_owned());
        }
    }

    impl Operator for Nobody {
        fn ask(&mut self, what: &str) -> Result<(), Error> {
            self.0.push(what.to_owned());
            Ok(())
        }
    }

    fn options(commands: Commands) -> Options {
        Options {
            common: common("results".into()),
            node_a: "10.0.0.1".to_owned(),
            node_b: "10.0.0.2:4421".to_owned(),
            volume: "db".to_owned(),
            seconds: 0.01,
            commands,
        }
    }

    fn steps(options: &Options, look: impl FnOnce(&mut Steps<'_>)) -> Vec<String> {
        let (mut nobody, never) = (Nobody(Vec::new()), Interrupt::never());
        look(&mut Steps {
            options,
            operator: &mut nobody,
            interrupt: &never,
            watch: Stopwatch::start(),
            events: Vec::new(),
            volume_bytes: 1,
        });
        nobody.0
    }

    const STATUS: &str =
        r#"{"state":"mirroring","peers":[{"copied_bytes":5}],"replica":{"size_bytes":9}}"#;

    #[test]
    fn what_no_command_does_is_asked_for() {
        let options = options(Commands::default());
        assert!(options.commands.need_somebody());
        let told = steps(&options, |steps| {
            let times = steps.all().unwrap();
            assert_eq!(times.resynced_bytes, 0);
            let happened: Vec<_> = steps.events.iter().map(|event| event.what.as_str()).collect();
            assert_eq!(happened.len(), 5);
            assert_eq!((happened[0], happened[4]), ("node-a is killed", "switchover to node-a"));
        });
        for ask in ["power node A off", "mirror failover", "start node A", "says mirroring"] {
            assert!(told.iter().any(|line| line.contains(ask)), "{ask}: {told:?}");
        }
    }

    #[test]
    fn commands_do_it_and_are_run_until_they_succeed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tries");
        let options = options(Commands {
            kill: Some("true".to_owned()),
            // The second time.
            failover: Some(format!("echo x >> {0:?}; test $(wc -l < {0:?}) -ge 2", file)),
            come_back: Some("true".to_owned()),
            switchover: Some("true".to_owned()),
            status: Some(format!("echo '{STATUS}'")),
        });
        assert!(!options.commands.need_somebody());
        let told = steps(&options, |steps| {
            steps.check_in_sync().unwrap();
            let times = steps.all().unwrap();
            assert_eq!((times.resynced_bytes, steps.volume_bytes), (5, 9));
        });
        assert_eq!(told.len(), 3, "nobody was asked: {told:?}");
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_command_that_fails_and_a_mirror_out_of_sync_are_told() {
        let status = STATUS.replace("mirroring", "resyncing");
        let options = options(Commands {
            kill: Some("echo no such machine >&2; exit 3".to_owned()),
            status: Some(format!("echo '{status}'")),
            ..Commands::default()
        });
        steps(&options, |steps| {
            let error = steps.all().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("no such machine") && error.contains("exit 3"), "{error}");
            let error = steps.check_in_sync().unwrap_err().to_string();
            assert!(error.contains("the mirror is resyncing"), "{error}");
        });
    }

    #[test]
    fn the_volume_is_reached_by_both() {
        let options = options(Commands::default());
        let address = options.target().unwrap().address();
        assert!(address.starts_with("nvme-tcp://10.0.0.1,10.0.0.2:4421/nqn."), "{address}");
        // Whoever has to be asked may be slow.
        assert!(options.load_seconds() > 3000.0);
    }
}
