//! `flagstone bench diskspd`.

use std::path::Path;

use flagstone_bench::Error;
use flagstone_bench::diskspd::profile::{DiskspdFormat, Profile};
use flagstone_bench::diskspd::report::System;
use flagstone_bench::diskspd::translate::{Translation, translate};
use flagstone_bench::diskspd::{DiskspdReport, parse, text, xml};
use flagstone_bench::fio::Fio;
use flagstone_bench::guard::{self, GuardVerdict};
use flagstone_bench::os;
use flagstone_bench::own_file::{self, OwnFiles};
use flagstone_bench::precondition;
use flagstone_bench::process::Interrupt;
use flagstone_bench::target::{BenchTarget, DiskAddress};

use super::args::DiskspdArgs;
use crate::exit::Exit;
use crate::output::{complain, print};

/// Upper bound of the kernel's file.
const STATUS_BYTES: u64 = 1 << 20;
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

pub(super) fn run(args: &DiskspdArgs) -> Result<Exit, Error> {
    let parsed = parse(&args.arguments).map_err(Error::Usage)?;
    let profile = &parsed.profile;
    let translation = translate(profile, &cpus())?;
    for warning in parsed.warnings.iter().chain(&translation.warnings) {
        complain(&format!("flagstone: warning: {warning}\n"));
    }
    if profile.profile_only {
        let text = match profile.format {
            DiskspdFormat::Text => text::profile(profile),
            DiskspdFormat::Xml => xml::profile(profile),
        };
        return Ok(print(&text, Exit::Success));
    }
    let interrupt = Interrupt::catch()?;
    let fio = Fio::find(&interrupt)?;
    let options = fio.options(&translation.job, &translation.target)?;
    if args.dry_run {
        let text = format!("# {}\n\n{}", options.command(), options.job_file());
        return Ok(print(&text, Exit::Success));
    }
    prepare(args, profile, &translation, &fio, &interrupt)?;
    let sizes: Result<Vec<_>, Error> = profile
        .targets
        .iter()
        .map(|path| os::size_of(Path::new(path)).map_err(Error::file("cannot open", path)))
        .collect();
    let system = System {
        computer: read(HOSTNAME),
        started_unix_s: os::unix_seconds(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        power_scheme: read(GOVERNOR),
    };
    let files = translation.target.disks.iter().filter_map(DiskAddress::path);
    let own_files = OwnFiles::before(files, translation.job.writes());
    let run = fio.measure(&translation.job, &translation.target, &interrupt, &mut || {});
    own_files.settle();
    let run = run?;
    if run.paused_s > 0.0 {
        complain(&format!(
            "flagstone: warning: fio was suspended for {:.1} s, by a signal or with the machine: measure again\n",
            run.paused_s
        ));
    }
    let report = DiskspdReport::new(profile, system, &run, &sizes?)?;
    let text = match profile.format {
        DiskspdFormat::Text => report.text(),
        DiskspdFormat::Xml => report.xml(),
    };
    Ok(print(&text, Exit::Success))
}

/// Guards the targets and creates the files that `-c` asks for. Files are written completely,
/// because reads of unwritten ranges never reach the disk; diskspd without its volume privilege
/// does the same.
fn prepare(
    args: &DiskspdArgs,
    profile: &Profile,
    translation: &Translation,
    fio: &Fio,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let destroys = translation.job.writes() || profile.create_bytes.is_some();
    let verdicts = guard::check(&translation.target, destroys, &args.destroy_data)?;
    for (disk, verdict) in translation.target.disks.iter().zip(verdicts) {
        let Some(path) = disk.path() else { continue };
        let Some(bytes) = profile.create_bytes else {
            if verdict == GuardVerdict::Absent {
                let missing = format!("{disk} does not exist: -c<size> creates it");
                return Err(Error::Usage(missing));
            }
            continue;
        };
        if verdict == GuardVerdict::Free && !path.is_file() {
            // As in diskspd, -c applies only to files.
            continue;
        }
        let is_made = os::size_of(path).ok() == Some(bytes) && own_file::is_ours(path);
        if is_made && precondition::is_filled(path, bytes) {
            continue;
        }
        complain(&format!("flagstone: creating {disk} for -c\n"));
        precondition::make(path, bytes)?;
        let one = BenchTarget { name: disk.to_string(), disks: vec![disk.clone()] };
        let filled = fio.fill(&one, Some(bytes), interrupt, &mut || {});
        own_file::settle(path);
        filled?;
    }
    Ok(())
}

/// CPUs that this process may use, in the kernel's list format.
fn cpus() -> String {
    let status = os::read_text(Path::new("/proc/self/status"), STATUS_BYTES).unwrap_or_default();
    let listed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    listed.map_or_else(|| "0".to_owned(), |list| list.trim().to_owned())
}

/// The text of a kernel file; empty if the file is missing.
fn read(path: &str) -> String {
    let text = os::read_text(Path::new(path), STATUS_BYTES);
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}
