//! `flagstone lab failover`.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use flagstone_bench::Error as BenchError;
use flagstone_bench::process::Interrupt;
use flagstone_bench::table::{Form, list_item};
use flagstone_lab::failover::automatic::{self, AutomaticDeath, AutomaticDrill};
use flagstone_lab::failover::{
    self, EmulatedFailover, FailoverBed, FailoverSummary, Follower, GivenFailover, NodeCommands,
    timeline,
};
use flagstone_lab::operator::wait_for_enter;
use flagstone_lab::{Error, sections};
use flagstone_units::grouped;
use indicatif::ProgressBar;

use super::args::{FailoverArgs, Lengths};
use super::experiments::{given, run_options, with_origins};
use crate::exit::Exit;
use crate::output::{complain, json, print, progress_bar};
use flagstone_units::columns::{self, Left, Right};

/// `failover_after` of the nodes of `--automatic`, as by default.
const FAILOVER_AFTER: Duration = Duration::from_secs(5);

pub(super) fn run(args: &FailoverArgs) -> Result<Exit, Error> {
    if args.automatic {
        return run_automatic(args);
    }
    let bed = match args.nodes.both() {
        None => FailoverBed::Emulated(EmulatedFailover {
            directory: args.dir.clone().unwrap_or_else(std::env::temp_dir),
            death: args.death,
            is_emulated: !args.no_emulation,
        }),
        Some((node_a, node_b)) => FailoverBed::Given(Box::new(given_nodes(args, node_a, node_b)?)),
    };
    let run = run_options("failover", args.to.results.as_ref(), Lengths(0, args.time, 1))?;
    let interrupt = Interrupt::catch()?;
    let mut steps = Steps::new(failover::STEPS);
    let ended = failover::run(
        &run,
        &bed,
        &mut Asking { steps: &mut steps, interrupt: &interrupt },
        &interrupt,
    );
    steps.clear();
    let summary = ended?;
    let directory = &run.results;
    super::write_summary(directory, &summary)?;
    let shown = match args.to.json {
        true => json(&summary),
        false => text(&summary, args),
    };
    let report = super::report(directory, &sections::failover(&summary))?;
    let exit = if summary.verified.is_right() { Exit::Success } else { Exit::VerifyFailed };
    let exit = print(&shown, exit);
    complain(&format!(
        "results and timeline.svg are in {}; the report is {}\n",
        directory.display(),
        report.display()
    ));
    Ok(exit)
}

fn run_automatic(args: &FailoverArgs) -> Result<Exit, Error> {
    let drill = AutomaticDrill {
        etcd: automatic::find_etcd()?,
        directory: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        deaths: AutomaticDeath::ALL.into(),
        repetitions: args.repetitions,
        failover_after: FAILOVER_AFTER,
    };
    let run = run_options("failover", args.to.results.as_ref(), Lengths(0, args.time, 1))?;
    let interrupt = Interrupt::catch()?;
    let mut steps = Steps::new(drill.steps());
    let ended = automatic::run(&run, &drill, &mut steps, &interrupt);
    steps.clear();
    let summary = ended?;
    super::write_summary(&run.results, &summary)?;
    let shown = match args.to.json {
        true => json(&summary),
        false => {
            let tables = automatic::tables(&summary);
            let tables: String =
                tables.iter().map(|table| table.write(Form::Text) + "\n").collect();
            let caveats = summary.caveats.iter().map(|caveat| list_item(caveat));
            format!("{}\n\n{tables}{}", summary.verified.verdict(), caveats.collect::<String>())
        }
    };
    let report = super::report(&run.results, &sections::automatic_failover(&summary))?;
    let exit = if summary.verified.is_right() { Exit::Success } else { Exit::VerifyFailed };
    let exit = print(&shown, exit);
    let directory = run.results.display();
    complain(&format!(
        "results and timeline.svg are in {directory}; the report is {}\n",
        report.display()
    ));
    Ok(exit)
}

fn given_nodes(args: &FailoverArgs, node_a: &str, node_b: &str) -> Result<GivenFailover, Error> {
    let nodes = &args.nodes;
    let mut bed = GivenFailover {
        targets: given(&nodes.targets, nodes.machine.as_ref()),
        node_a: node_a.to_owned(),
        node_b: node_b.to_owned(),
        volume: nodes.volume.clone(),
        commands: NodeCommands {
            kill: nodes.kill_command.clone(),
            failover: nodes.failover_command.clone(),
            come_back: nodes.return_command.clone(),
            switchover: nodes.switchover_command.clone(),
            status: nodes.status_command.clone(),
        },
    };
    let target = bed.target()?;
    bed.targets = with_origins(bed.targets, &nodes.targets, &[target])?;
    if bed.commands.need_operator() && !io::stdin().is_terminal() {
        return Err(BenchError::usage(
            "without a terminal the user cannot be asked to act on the nodes: use --kill-command, \
             --failover-command, --return-command, --switchover-command and --status-command",
        )
        .into());
    }
    Ok(bed)
}

struct Asking<'a> {
    steps: &'a mut Steps,
    interrupt: &'a Interrupt,
}

impl Follower for Asking<'_> {
    fn begin(&mut self, what: &str) {
        self.steps.begin(what);
    }

    fn end(&mut self, what: &str) {
        self.steps.end(what);
    }

    fn ask(&mut self, what: &str) -> Result<(), Error> {
        self.steps.line(&format!("NOW {what}: press Enter\n"));
        wait_for_enter(self.interrupt)
    }
}

/// Results for a terminal, the most important first.
fn text(summary: &FailoverSummary, args: &FailoverArgs) -> String {
    let Some((node_a, node_b)) = args.nodes.both() else {
        let disks = match summary.emulated {
            true => "disks are EMULATED",
            false => "the nodes' disks are files of this machine",
        };
        let nodes = format!("{disks}; host and nodes are processes of one machine");
        return numbers(summary, &nodes);
    };
    let suffix = summary.provenance.suffix();
    let nodes = format!("the volume{suffix} is of {node_a} and {node_b}; the host is this machine");
    let caveats: String = summary.caveats.iter().map(|caveat| format!("- {caveat}.\n")).collect();
    format!("{}\n{caveats}", numbers(summary, &nodes))
}

/// The figures and the timeline, with a description of the nodes between them.
fn numbers(summary: &FailoverSummary, nodes: &str) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let resynced = format!(
        "of {:.1}, in sync {} ms after the restart of the dead node",
        mib(summary.volume_bytes),
        grouped(summary.return_ms, 0),
    );
    let ms = |value| grouped(value, 0);
    let rows = [
        ["failover", &ms(summary.failover_ms), "ms", "from the death of the source"],
        ["longest wait", &ms(summary.longest_ms), "ms", "of one request of the host"],
        ["resync", &format!("{:.1}", mib(summary.resynced_bytes)), "MiB", &resynced],
        ["switchover", &ms(summary.switchover_ms), "ms", "back to the first node, planned"],
    ];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    let lines = columns::rows(&[Left, Right, Left, Left], &rows).join("\n");
    let (verdict, death) = (summary.verified.verdict(), summary.death_in_words());
    format!("{verdict}\n{death}\n{lines}\n{nodes}\n\n{}", timeline::text(summary))
}

/// Progress: a changing line on a terminal, lines elsewhere.
pub(super) struct Steps {
    bar: ProgressBar,
    done: usize,
    all: usize,
}

impl Steps {
    pub(super) fn new(all: usize) -> Steps {
        let bar = progress_bar(Some(all as u64), "{bar:20} {elapsed} {msg}");
        Steps { bar, done: 0, all }
    }

    pub(super) fn line(&self, text: &str) {
        self.bar.suspend(|| complain(text));
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Follower for Steps {
    fn steps(&mut self, count: usize) {
        self.all = count;
        self.bar.set_length(count as u64);
    }

    fn tick(&mut self) {
        self.bar.tick();
    }

    fn begin(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    fn end(&mut self, what: &str) {
        self.done += 1;
        self.line(&format!("[{}/{}] {what}\n", self.done, self.all));
        self.bar.inc(1);
    }
}
