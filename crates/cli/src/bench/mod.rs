//! `flagstone bench`: measures with fio, stores the results and compares them.

pub(crate) mod args;
mod compare;
mod diskspd;
mod list;
mod local_server;
pub(crate) mod provenance;
mod report;
mod run;
pub(crate) mod watch;

use flagstone_bench::campaign::CampaignEnd;
use flagstone_bench::caveats::caveats;
use flagstone_bench::compare::ComparedMetric;
use flagstone_bench::published::by_disks;
use flagstone_bench::report::{Run, by_size, comparison};
use flagstone_bench::table::{Form, Table, list_item, write_all};

use self::args::{BenchArgs, BenchCommand};
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &BenchArgs) -> Result<Exit, Failure> {
    let ended = match &args.command {
        BenchCommand::Run(args) => run::run(args),
        BenchCommand::Resume(args) => run::resume(args),
        BenchCommand::Diskspd(args) => diskspd::run(args),
        BenchCommand::Compare(args) => compare::run(args),
        BenchCommand::Report(args) => report::run(args),
        BenchCommand::List(args) => list::run(args),
    };
    Ok(ended?)
}

pub(crate) fn exit_of(ending: CampaignEnd) -> Exit {
    match ending {
        CampaignEnd::Complete => Exit::Success,
        CampaignEnd::Interrupted => Exit::Interrupted,
    }
}

fn tables(runs: &[Run], form: Form) -> String {
    let comparison = &comparison(runs);
    let mut all: Vec<Table> = vec![comparison.summary()];
    if comparison.names().len() > 1 {
        all.extend(ComparedMetric::ALL.map(|figure| comparison.figure(figure)));
        all.extend((1..comparison.names().len()).filter_map(|other| comparison.overhead(other)));
        all.extend((1..comparison.names().len()).flat_map(|other| by_disks(comparison, other)));
    }
    all.extend(by_size(runs, comparison));
    all.extend(comparison.cpu());
    let mut text = write_all(&all, form);
    // A CSV reader expects only tables.
    if form != Form::Csv {
        let caveats = caveats(comparison);
        text += if caveats.is_empty() { "" } else { "\n" };
        text.extend(caveats.iter().map(|caveat| list_item(caveat)));
    }
    text
}
