//! `flagstone bench run` and `resume`.

use std::path::PathBuf;

use flagstone_bench::Error;
use flagstone_bench::attach::{Initiator, InitiatorChoice, connect_command};
use flagstone_bench::campaign::{Campaign, CampaignPlan, Watcher as _};
use flagstone_bench::fio::Fio;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::generator::{Generator, arguments};
use flagstone_bench::os::unix_seconds;
use flagstone_bench::process::Interrupt;
use flagstone_bench::report::Run;
use flagstone_bench::results::{ResultStore, free_directory, resume_command};
use flagstone_bench::stats::REPETITIONS_LEAST;
use flagstone_bench::suite;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_units::format_utc;

use super::args::{OutputArgs, ResumeArgs, RunArgs};
use super::exit_of;
use super::provenance;
use super::watch::CampaignProgress;
use crate::exit::Exit;
use crate::output::{complain, print};

/// Stands for the device that the kernel will create.
const KERNEL_DEVICE: &str = "/dev/nvmeXnY";

pub(super) fn run(args: &RunArgs) -> Result<Exit, Error> {
    let mut suite = suite::find(&args.suite)?;
    suite.notes.iter().for_each(|note| complain(&format!("flagstone: note: {note}\n")));
    if let Some(repetitions) = args.repetitions {
        suite.repetitions = repetitions;
    }
    if let Some(runtime_ms) = args.runtime {
        suite.jobs.iter_mut().for_each(|job| job.runtime_ms = runtime_ms);
    }
    if let Some(ramp_ms) = args.ramp {
        suite.jobs.iter_mut().for_each(|job| job.ramp_ms = ramp_ms);
    }
    let mut plan = CampaignPlan::new(&suite, args.targets.clone(), args.size);
    plan.steady_state |= args.steady_state;
    plan.precondition &= !args.no_precondition;
    plan.discard |= args.discard;
    plan.destroy.clone_from(&args.destroy_data);
    plan.initiator = args.initiator;
    plan.commands = args.step.iter().cloned().collect();
    let notes = plan.leave_out_jobs_without_step();
    notes.iter().for_each(|note| complain(&format!("flagstone: note: {note}\n")));
    plan.origins =
        provenance::of(&plan.targets, args.api.as_ref(), args.stack.as_deref(), &args.emulated)?;
    plan.check()?;
    let known: Vec<_> =
        plan.targets.iter().flat_map(|target| &target.disks).map(DiskAddress::to_string).collect();
    if let Some(other) = plan.destroy.iter().find(|name| !known.contains(name)) {
        return Err(Error::usage(format!("--destroy-data={other}: no target has this disk")));
    }
    let interrupt = Interrupt::catch()?;
    let fio = plan.fio(&interrupt)?;
    if args.dry_run {
        return dry_run(&plan, fio.as_ref());
    }
    // A refused target leaves no directory behind.
    for target in &plan.targets {
        flagstone_bench::guard::check(target, plan.destroys(), &plan.destroy)?;
    }
    let directory = args.results.clone().unwrap_or_else(|| {
        let name = format!("{}-{}", suite.name, format_utc(unix_seconds()));
        free_directory(&PathBuf::from("bench-results").join(name))
    });
    let store = ResultStore::create(&directory, &plan)?;
    let ended = measure(&plan, &store, fio.as_ref(), &interrupt, &args.output);
    if ended.is_err() && args.results.is_none() {
        store.discard();
    }
    ended
}

pub(super) fn resume(args: &ResumeArgs) -> Result<Exit, Error> {
    let (store, mut plan) = ResultStore::open(&args.run)?;
    if let Some(command) = &plan.command {
        return Err(Error::usage(format!(
            "{} was not created by bench run and its targets may be gone; run again: {command}",
            args.run.display()
        )));
    }
    plan.destroy.clone_from(&args.destroy_data);
    let interrupt = Interrupt::catch()?;
    let fio = plan.fio(&interrupt)?;
    measure(&plan, &store, fio.as_ref(), &interrupt, &args.output)
}

fn measure(
    plan: &CampaignPlan,
    store: &ResultStore,
    fio: Option<&Fio>,
    interrupt: &Interrupt,
    output: &OutputArgs,
) -> Result<Exit, Error> {
    let program = std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program", cause })?;
    let generator = Generator { program };
    let mut watch = CampaignProgress::new();
    if plan.targets.len() > 1 && !plan.steady_state && plan.repetitions < REPETITIONS_LEAST as u32 {
        watch.note(&format!(
            "{} repetitions of each can never show a difference between targets: use {REPETITIONS_LEAST} or more",
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
        false => {
            let directory = store.directory();
            let shown = output.shown(&[Run::read(directory)?], &[directory.to_owned()]);
            print(&shown, Exit::Success)
        }
    };
    let directory = store.directory().display().to_string();
    let resume = resume_command(store.directory());
    let exit = exit_of(ended.inspect_err(|_| {
        complain(&match is_empty {
            true => "nothing was measured\n".to_owned(),
            false => format!("results so far are in {directory}; continue with: {resume}\n"),
        });
    })?);
    complain(&match exit {
        Exit::Interrupted => format!("interrupted; continue with: {resume}\n"),
        _ => {
            let words = ["bench".to_owned(), "report".to_owned(), directory.clone()];
            let report = shell("flagstone", &words);
            format!("results are in {directory}; create a report: {report}\n")
        }
    });
    Ok(if exit == Exit::Success { shown } else { exit })
}

fn dry_run(plan: &CampaignPlan, fio: Option<&Fio>) -> Result<Exit, Error> {
    let mut out = String::new();
    for step in plan.steps().iter().filter(|step| step.repetition == 0) {
        let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
        out += &format!("# {} on {}\n", job.name, target.name);
        match (&target.disks[0], fio) {
            (DiskAddress::NvmeTcp(uri), fio) => {
                if let (Some(fio), Some(connect)) = (fio, connect_command(uri))
                    && plan.initiator != InitiatorChoice::Flagstone
                {
                    let device: BenchTarget = KERNEL_DEVICE.parse().map_err(Error::Usage)?;
                    out += &format!("# through the kernel, with any device name: {connect}\n");
                    out += &fio.options(job, &device)?.job_file();
                }
                if plan.initiator != InitiatorChoice::Kernel {
                    out += "# with the built-in generator\n";
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
