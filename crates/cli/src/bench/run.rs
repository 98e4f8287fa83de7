//! `flagstone bench run` and `resume`.

use std::path::PathBuf;

use flagstone_bench::Error;
use flagstone_bench::attach::{Choice, Initiator, connect_command};
use flagstone_bench::campaign::{Campaign, Plan, Watcher as _};
use flagstone_bench::fio::Fio;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::generator::{Generator, arguments};
use flagstone_bench::os::{Interrupt, unix_seconds};
use flagstone_bench::report::Run;
use flagstone_bench::results::{Store, free_directory, resume_command};
use flagstone_bench::stats::REPETITIONS_LEAST;
use flagstone_bench::suite;
use flagstone_bench::table::Form;
use flagstone_bench::target::{Place, Target};
use flagstone_bench::units::format_utc;

use super::args::{ResumeArgs, RunArgs};
use super::origin;
use super::watch::Watch;
use super::{exit_of, tables};
use crate::exit::Exit;
use crate::output::{complain, print};

/// Stands for the device that the kernel will make.
const KERNEL_DEVICE: &str = "/dev/nvmeXnY";

pub(super) fn run(args: &RunArgs) -> Result<Exit, Error> {
    let mut suite = suite::find(&args.suite)?;
    if let Some(repetitions) = args.repetitions {
        suite.repetitions = repetitions;
    }
    if let Some(runtime_ms) = args.runtime {
        suite.jobs.iter_mut().for_each(|job| job.runtime_ms = runtime_ms);
    }
    if let Some(ramp_ms) = args.ramp {
        suite.jobs.iter_mut().for_each(|job| job.ramp_ms = ramp_ms);
    }
    let mut plan = Plan::new(&suite, args.targets.clone(), args.size);
    plan.steady_state |= args.steady_state;
    plan.precondition &= !args.no_precondition;
    plan.destroy.clone_from(&args.destroy_data);
    plan.initiator = args.initiator.into();
    plan.origins = origin::told(&plan, args)?;
    plan.check()?;
    let known: Vec<_> =
        plan.targets.iter().flat_map(|target| &target.disks).map(Place::to_string).collect();
    if let Some(other) = plan.destroy.iter().find(|name| !known.contains(name)) {
        return Err(Error::usage(format!("--destroy-data={other}: no target has this disk")));
    }
    let interrupt = Interrupt::catch()?;
    let fio = fio_for(&plan, &interrupt)?;
    if args.dry_run {
        return dry_run(&plan, fio.as_ref());
    }
    // A target that is refused leaves no directory behind.
    for target in &plan.targets {
        flagstone_bench::guard::check(target, plan.writes(), &plan.destroy)?;
    }
    let directory = args.results.clone().unwrap_or_else(|| {
        let name = format!("{}-{}", suite.name, format_utc(unix_seconds()));
        free_directory(&PathBuf::from("bench-results").join(name))
    });
    let store = Store::create(&directory, &plan)?;
    let ended = measure(&plan, &store, fio.as_ref(), &interrupt, args.format.into());
    if ended.is_err() && args.results.is_none() {
        store.discard();
    }
    ended
}

pub(super) fn resume(args: &ResumeArgs) -> Result<Exit, Error> {
    let (store, mut plan) = Store::open(&args.run)?;
    if let Some(command) = &plan.command {
        return Err(Error::usage(format!(
            "{} was not made by bench run, and its targets may be there no more: run again: {command}",
            args.run.display()
        )));
    }
    plan.destroy.clone_from(&args.destroy_data);
    let interrupt = Interrupt::catch()?;
    let fio = fio_for(&plan, &interrupt)?;
    measure(&plan, &store, fio.as_ref(), &interrupt, args.format.into())
}

/// fio, if a target needs it, or if it is there for what the kernel may attach.
fn fio_for(plan: &Plan, interrupt: &Interrupt) -> Result<Option<Fio>, Error> {
    match plan.needs_fio() || plan.initiator == Choice::Kernel {
        true => Fio::find(interrupt).map(Some),
        false if plan.initiator == Choice::Flagstone => Ok(None),
        false => match Fio::find(interrupt) {
            Err(error) if error.is_lack_of_fio() => Ok(None),
            found => found.map(Some),
        },
    }
}

fn measure(
    plan: &Plan,
    store: &Store,
    fio: Option<&Fio>,
    interrupt: &Interrupt,
    form: Form,
) -> Result<Exit, Error> {
    let program = std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program", cause })?;
    let generator = Generator { program };
    let mut watch = Watch::new();
    if plan.targets.len() > 1 && !plan.steady_state && plan.repetitions < REPETITIONS_LEAST as u32 {
        watch.note(&format!(
            "{} repetitions of each can never show that two targets differ: {REPETITIONS_LEAST} or more can",
            plan.repetitions
        ));
    }
    plan.left_out().iter().for_each(|text| watch.note(text));
    let initiator = Initiator::of_machine();
    let campaign =
        Campaign { plan, store, fio, generator: &generator, initiator: &initiator, interrupt };
    let ended = campaign.run(&mut watch);
    watch.clear();
    let is_empty = store.records()?.is_empty();
    let shown = match is_empty {
        true => Exit::Success,
        false => print(&tables(&[Run::read(store.directory())?], form), Exit::Success),
    };
    let directory = store.directory().display().to_string();
    let resume = resume_command(store.directory());
    let exit = exit_of(ended.inspect_err(|_| {
        complain(&match is_empty {
            true => "nothing was measured\n".to_owned(),
            false => format!("what was measured is in {directory}; go on with: {resume}\n"),
        });
    })?);
    complain(&match exit {
        Exit::Interrupted => format!("interrupted; go on with: {resume}\n"),
        _ => {
            let words = ["bench".to_owned(), "report".to_owned(), directory.clone()];
            let report = shell("flagstone", &words);
            format!("results are in {directory}; to look at: {report}\n")
        }
    });
    Ok(if exit == Exit::Success { shown } else { exit })
}

fn dry_run(plan: &Plan, fio: Option<&Fio>) -> Result<Exit, Error> {
    let mut out = String::new();
    for step in plan.steps().iter().filter(|step| step.repetition == 0) {
        let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
        out += &format!("# {} on {}\n", job.name, target.name);
        match (&target.disks[0], fio) {
            (Place::NvmeTcp(uri), fio) => {
                if let (Some(fio), Some(connect)) = (fio, connect_command(uri))
                    && plan.initiator != Choice::Flagstone
                {
                    let device: Target = KERNEL_DEVICE.parse().map_err(Error::Usage)?;
                    out +=
                        &format!("# through the kernel, whatever it calls the device: {connect}\n");
                    out += &fio.options(job, &device)?.job_file();
                }
                if plan.initiator != Choice::Kernel {
                    out += "# with our own generator\n";
                    out += &format!("{}\n", shell("flagstone", &arguments(job, uri)?));
                }
            }
            (_, Some(fio)) => out += &fio.options(job, target)?.job_file(),
            (_, None) => return Err(Error::FioMissing),
        }
        out.push('\n');
    }
    Ok(print(&out, Exit::Success))
}
