//! fio on this machine: discovery, version check, execution.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cpu::{CpuUse, Snapshot};
use crate::error::Error;
use crate::fio::arguments::{self, FioJobOptions, Logs, shell};
use crate::fio::output::{self, Output, shown};
use crate::fio::series::{self, Series};
use crate::job::BenchJob;
use crate::limits::{FIO_ANSWER, FIO_OUTPUT_BYTES, FIO_SAID_BYTES};
use crate::os::Stopwatch;
use crate::process::{self, Interrupt, ProcessOutput};
use crate::target::BenchTarget;

/// Oldest fio with all options that are used: Debian's of 2019.
const OLDEST: (u32, u32) = (3, 12);
const OLDEST_NAME: &str = "fio-3.12";
const INSTALL: &str = "apt install fio, dnf install fio, zypper install fio";
/// Target number of points of a time series.
const SERIES_AIM: u64 = 200;
/// Shortest interval of a time series, in ms.
const INTERVAL_LEAST_MS: u64 = 100;

#[derive(Clone, Debug)]
pub struct Fio {
    program: PathBuf,
    version: String,
    engine: String,
}

#[derive(Clone, Debug)]
pub struct FioRun {
    pub output: Output,
    pub raw: String,
    /// IOPS over time: of all threads if they are reported together, else of each.
    pub series: Vec<Series>,
    /// Usage of each CPU of this machine during the measurement.
    pub cpus: Vec<CpuUse>,
    pub threads: u32,
    /// Time in which fio stood still, in seconds: see [`process::ProcessOutput::paused_s`].
    pub paused_s: f64,
    pub command: String,
}

impl Fio {
    /// The fio named by the environment variable `FIO`, or found on the path.
    ///
    /// # Errors
    /// [`Error::FioMissing`], [`Error::FioUnusable`], or that it fails.
    pub fn find(interrupt: &Interrupt) -> Result<Fio, Error> {
        let program = std::env::var_os("FIO").filter(|name| !name.is_empty());
        Fio::at(program.map_or_else(|| PathBuf::from("fio"), PathBuf::from), interrupt)
    }

    pub fn at(program: PathBuf, interrupt: &Interrupt) -> Result<Fio, Error> {
        Fio::answering(program, FIO_ANSWER, interrupt)
    }

    /// The fio at this path, with a time limit for each answer.
    fn answering(program: PathBuf, limit: Duration, interrupt: &Interrupt) -> Result<Fio, Error> {
        let mut fio = Fio { program, version: String::new(), engine: String::new() };
        let answer = fio.answer(&["--version".to_owned()], limit, interrupt);
        let answer = answer.map_err(|error| match error {
            Error::System { what: process::CANNOT_START, cause } => fio.not_run(&cause),
            other => other,
        })?;
        let Some(ended) = answer else {
            let (name, limit_s) = (fio.name(), limit.as_secs_f64());
            return Err(Error::FioUnusable(format!(
                "{name} did not say its version within {limit_s} s, and was ended: it is not fio, or \
                 cannot work here; see what `{name} --version` waits for, or name another with \
                 FIO=/path/to/fio"
            )));
        };
        if !ended.status.success() {
            return Err(fio.failed(&ended, shell(&fio.name(), &["--version".to_owned()])));
        }
        fio.version = shown(ended.output.trim());
        match version(&fio.version) {
            None => {
                let printed = first_line(&[&ended.output, &ended.errors]);
                return Err(Error::FioUnusable(format!(
                    "{} is not fio: asked for its version it printed {printed}; install fio \
                     ({INSTALL}), or name the program with FIO=/path/to/fio",
                    fio.name()
                )));
            }
            Some(found) if found < OLDEST => {
                return Err(Error::FioUnusable(format!(
                    "{} is too old: {OLDEST_NAME} or newer is needed; install a newer fio, or name \
                     one with FIO=/path/to/fio",
                    fio.version
                )));
            }
            Some(_) => {}
        }
        fio.engine = fio.best_engine(limit, interrupt)?;
        Ok(fio)
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// I/O engine for jobs that name none: the first of [`ENGINES`] that works, or
    /// [`ONE_AT_A_TIME`].
    pub fn engine(&self) -> &str {
        &self.engine
    }

    fn name(&self) -> String {
        shown(&self.program.display().to_string())
    }

    /// Why the program cannot be started. fio counts as missing only if no file of that name
    /// exists.
    fn not_run(&self, cause: &io::Error) -> Error {
        let program = &self.program;
        let is_there = program.exists();
        let cause = match cause.kind() {
            io::ErrorKind::NotFound if !is_there => return Error::FioMissing,
            io::ErrorKind::NotFound => {
                format!("the interpreter that it names in its first line is not there ({cause})")
            }
            io::ErrorKind::PermissionDenied if program.is_dir() => "it is a directory".to_owned(),
            io::ErrorKind::PermissionDenied if is_there => {
                format!("it is not executable ({cause}); chmod +x makes it so")
            }
            _ => cause.to_string(),
        };
        Error::FioUnusable(format!(
            "{} cannot be run as fio: {cause}; name another with FIO=/path/to/fio, or install fio \
             ({INSTALL}) and unset FIO",
            self.name()
        ))
    }

    /// An engine whose probe does not end in time counts as broken.
    fn best_engine(&self, limit: Duration, interrupt: &Interrupt) -> Result<String, Error> {
        for engine in ENGINES {
            let options = ["name=probe", "filename=/dev/zero", "rw=read", "bs=4k", "size=4k"];
            let mut arguments: Vec<String> = options.iter().map(|o| format!("--{o}")).collect();
            arguments.push(format!("--ioengine={engine}"));
            let ended = self.answer(&arguments, limit, interrupt)?;
            if ended.is_some_and(|ended| ended.status.success()) {
                return Ok(engine.to_owned());
            }
        }
        Ok(ONE_AT_A_TIME.to_owned())
    }

    fn answer(
        &self,
        arguments: &[String],
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<ProcessOutput>, Error> {
        let mut command = Command::new(&self.program);
        process::run_within(command.args(arguments), FIO_OUTPUT_BYTES, interrupt, limit)
    }

    fn ended(
        &self,
        arguments: &[String],
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<ProcessOutput, Error> {
        process::run(Command::new(&self.program).args(arguments), FIO_OUTPUT_BYTES, interrupt, tick)
    }

    fn failed(&self, ended: &ProcessOutput, command: String) -> Error {
        let mut said = ended.message(FIO_SAID_BYTES);
        if said.contains("Invalid argument") && command.contains("--direct=1") {
            said += "\n(the file system may have no direct I/O, or not for such small blocks)";
        }
        Error::ToolFailed { tool: "fio", status: ended.status.to_string(), command, said }
    }

    pub fn options(&self, job: &BenchJob, target: &BenchTarget) -> Result<FioJobOptions, Error> {
        let is_served = target.disks.iter().any(|disk| disk.path().is_none());
        if job.depth > 1 && job.engine.is_none() && !is_served && self.engine == ONE_AT_A_TIME {
            return Err(Error::Usage(format!(
                "{}: a depth of {} is not possible: {} has none of the I/O engines {} that works \
                 here, and {ONE_AT_A_TIME} keeps one request in flight; allow one of them (a \
                 container may forbid io_uring), or install a fio that has it",
                job.name,
                job.depth,
                self.version,
                ENGINES.join(", ")
            )));
        }
        arguments::options(job, target, &self.engine, None)
    }

    /// Measures one job.
    ///
    /// # Errors
    /// fio's failure with its own words, [`Error::FioOutput`], [`Error::Interrupted`].
    pub fn measure(
        &self,
        job: &BenchJob,
        target: &BenchTarget,
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<FioRun, Error> {
        let logs =
            tempfile::tempdir().map_err(Error::system("cannot make a directory for logs"))?;
        let prefix = logs.path().join("log");
        let suited = (job.runtime_ms / SERIES_AIM).max(INTERVAL_LEAST_MS);
        let interval_ms = job.interval_ms.unwrap_or(suited);
        let wanted = Logs { prefix: &prefix, interval_ms };
        let options = arguments::options(job, target, &self.engine, Some(wanted))?;
        let command = arguments::options(job, target, &self.engine, None)?.command();
        let watch = Stopwatch::start();
        let ramp_s = job.ramp_ms as f64 / 1e3;
        let mut begun = (job.ramp_ms == 0).then(Snapshot::take);
        let ended = self.ended(&options.arguments(), interrupt, &mut || {
            if begun.is_none() && watch.seconds() >= ramp_s {
                begun = Some(Snapshot::take());
            }
            tick();
        })?;
        let cpus = begun.map(|begun| Snapshot::take().since(&begun)).unwrap_or_default();
        if !ended.status.success() {
            return Err(self.failed(&ended, command));
        }
        let said =
            process::printable(&ended.errors.chars().take(FIO_SAID_BYTES).collect::<String>());
        let output = match output::parse(&ended.output) {
            Ok(output) => output,
            Err(detail) => return Err(Error::FioOutput { detail, command, said }),
        };
        if let Some(job) = output.jobs.iter().find(|job| job.error != 0) {
            let detail = format!("job {} ended with error {}", job.name, job.error);
            return Err(Error::FioOutput { detail, command, said });
        }
        let series = self.series(job, &output, logs.path(), interval_ms);
        let threads = job.threads.saturating_mul(options.sections.len() as u32);
        let (raw, paused_s) = (ended.output, ended.paused_s);
        Ok(FioRun { output, raw, series, cpus, threads, paused_s, command })
    }

    fn series(
        &self,
        job: &BenchJob,
        output: &Output,
        logs: &Path,
        interval_ms: u64,
    ) -> Vec<Series> {
        let read = |name: String| series::read(&logs.join(name), interval_ms, job.runtime_ms);
        if job.per_thread {
            (1..=output.jobs.len()).map(|n| read(format!("log_iops.{n}.log"))).collect()
        } else {
            vec![read("log_iops.log".to_owned())]
        }
    }

    /// Whether this fio has an I/O engine, by its name.
    ///
    /// # Errors
    /// fio cannot be run; [`Error::Interrupted`].
    pub fn has_engine(&self, engine: &str, interrupt: &Interrupt) -> Result<bool, Error> {
        let ended = self.ended(&["--enghelp".to_owned()], interrupt, &mut || {})?;
        Ok(ended.output.lines().any(|line| line.trim() == engine))
    }

    /// Writes `size_bytes` in random order with a checksum in each 4 KiB block, then reads and
    /// checks all of them. Returns the number of blocks written and checked.
    ///
    /// # Errors
    /// As [`Fio::measure`]. A wrong checksum is a failure of fio.
    pub fn verify(
        &self,
        target: &BenchTarget,
        size_bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<(u64, u64), Error> {
        let job = BenchJob {
            name: "verify".to_owned(),
            pattern: crate::job::AccessPattern::RandWrite,
            depth: 32,
            size_bytes: Some(size_bytes),
            random_map: true,
            ..BenchJob::default()
        };
        let mut options = arguments::options(&job, target, &self.engine, None)?;
        once(&mut options);
        for (key, value) in [
            ("verify", "crc32c"),
            ("do_verify", "1"),
            ("verify_fatal", "1"),
            ("verify_state_save", "0"),
        ] {
            options.global.push((key.to_owned(), value.to_owned()));
        }
        let command = options.command();
        let ended = self.ended(&options.arguments(), interrupt, &mut || {})?;
        if !ended.status.success() {
            return Err(self.failed(&ended, command));
        }
        match output::parse(&ended.output) {
            Ok(output) => {
                let sum = |side: fn(&output::JobOutput) -> u64| output.jobs.iter().map(side).sum();
                Ok((sum(|job| job.write.total_ios), sum(|job| job.read.total_ios)))
            }
            Err(detail) => {
                Err(Error::FioOutput { detail, command, said: ended.message(FIO_SAID_BYTES) })
            }
        }
    }

    /// Writes the first `size_bytes` of a target, or all of it, with incompressible data. Returns
    /// the command line.
    pub fn fill(
        &self,
        target: &BenchTarget,
        size_bytes: Option<u64>,
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<String, Error> {
        let mut job = BenchJob { name: "fill".to_owned(), ..BenchJob::default() };
        job.pattern = crate::job::AccessPattern::Write;
        job.block_bytes = FILL_BLOCK_BYTES;
        job.depth = 8;
        job.buffers = crate::job::Buffers::Random;
        job.size_bytes = size_bytes;
        job.direct = false;
        job.extra = vec![("end_fsync".to_owned(), "1".to_owned())];
        let mut options = arguments::options(&job, target, &self.engine, None)?;
        once(&mut options);
        let command = options.command();
        let ended = self.ended(&options.arguments(), interrupt, tick)?;
        if ended.status.success() { Ok(command) } else { Err(self.failed(&ended, command)) }
    }
}

/// Removes the time limit: the range is processed once, however long that takes.
fn once(options: &mut FioJobOptions) {
    let timed = ["time_based", "runtime", "ramp_time"];
    options.global.retain(|(key, _)| !timed.contains(&key.as_str()));
}

/// I/O engines with deep queues, the best first.
const ENGINES: [&str; 3] = ["io_uring", "libaio", "posixaio"];
/// Fallback engine: synchronous, whatever depth is asked for.
const ONE_AT_A_TIME: &str = "psync";

const FILL_BLOCK_BYTES: u64 = 1 << 20;

fn first_line(texts: &[&str]) -> String {
    let lines = texts.iter().flat_map(|text| text.lines());
    let said = lines.map(str::trim).find(|line| !line.is_empty());
    said.map_or_else(|| "nothing".to_owned(), |line| format!("`{}`", shown(line)))
}

/// Major and minor version: `fio-3.33-12-gabcd` is (3, 33).
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("fio-")?.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().map_or(Some(0), |part| part.parse().ok())?;
    Some((major, minor))
}

#[cfg(test)]
#[path = "../../tests/support/executable.rs"]
mod executable;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::executable::write_script;
    use super::*;

    #[test]
    fn fio_versions_are_parsed() {
        assert_eq!(version("fio-3.33"), Some((3, 33)));
        assert_eq!(version("fio-3.41-12-gabcd"), Some((3, 41)));
        assert_eq!(version("fio-2.2.10"), Some((2, 2)));
        assert_eq!(version("bash: fio"), None);
        assert!(version("fio-3.9").unwrap() < OLDEST);
    }

    fn fake(script: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fio");
        write_script(&path, &format!("#!/bin/sh\n{script}\n"));
        (directory, path)
    }

    #[test]
    fn missing_or_old_fio_names_the_package() {
        let never = Interrupt::never();
        let missing = Fio::at("/no/such/fio".into(), &never).unwrap_err().to_string();
        assert!(missing.contains("apt install fio"), "{missing}");
        let (_directory, path) = fake("echo fio-2.16");
        let old = Fio::at(path, &never).unwrap_err().to_string();
        assert!(old.contains("fio-2.16 is too old: fio-3.12"), "{old}");
    }

    #[test]
    fn output_of_a_wrong_program_is_sanitized() {
        for (script, printed) in [
            ("echo 'ls (GNU coreutils) 9.1'; echo more", "`ls (GNU coreutils) 9.1`"),
            ("echo; printf '\\033[2Jbell\\007\\n'", "`?[2Jbell?`"),
            ("echo 'no such option' >&2", "`no such option`"),
            ("exit 0", "nothing"),
        ] {
            let (_directory, path) = fake(script);
            let name = path.display().to_string();
            let error = Fio::at(path, &Interrupt::never()).unwrap_err().to_string();
            let begin =
                format!("{} is not fio: asked for its version it printed {printed};", shown(&name));
            assert!(error.starts_with(&begin) && error.contains("apt install fio"), "{error:?}");
        }
        let (_directory, path) = fake("head -c 100000 /dev/zero | tr '\\0' x");
        let error = Fio::at(path, &Interrupt::never()).unwrap_err().to_string();
        assert!(error.len() < 500 && error.contains("xxx"), "{error:.600}");
        let (_directory, path) = fake("printf 'not for you\\033[2J\\n' >&2; exit 1");
        let error = Fio::at(path, &Interrupt::never()).unwrap_err().to_string();
        assert!(error.ends_with("--version\nnot for you?[2J"), "{error:?}");
    }

    /// A fio that exists but cannot be run is not reported as missing.
    #[test]
    fn unrunnable_fio_reports_the_cause() {
        let (directory, path) = fake("echo fio-3.33");
        let refused = |path: &Path, part: &str| {
            let error = Fio::at(path.to_owned(), &Interrupt::never()).unwrap_err();
            let said = error.to_string();
            let begin = format!("{} cannot be run as fio: ", path.display());
            assert!(said.starts_with(&begin) && said.contains(part), "no `{part}`: {said}");
            assert!(error.is_lack_of_fio() && !said.contains("there is no fio"), "{said}");
        };
        refused(directory.path(), "it is a directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        refused(&path, "it is not executable (Permission denied");
        write_script(&path, "#!/no/such/interpreter\n");
        refused(&path, "the interpreter that it names");
        // Not a program for any machine.
        write_script(&path, "\x7fELF and then nothing");
        refused(&path, "Exec format error");
        refused(&path.join("below"), "Not a directory");
    }

    /// It is terminated, and an engine whose probe hangs is not used.
    #[test]
    fn unresponsive_fio_times_out() {
        let never = Interrupt::never();
        let (_directory, program) = fake("exec sleep 100000");
        let short = Duration::from_millis(50);
        let error = Fio::answering(program.clone(), short, &never).unwrap_err();
        assert!(matches!(error, Error::FioUnusable(_)) && error.is_lack_of_fio(), "{error}");
        let said = error.to_string();
        assert!(said.contains("did not say its version within 0.05 s"), "{said}");
        let fio = Fio { program, version: String::new(), engine: String::new() };
        assert_eq!(fio.best_engine(short, &never).unwrap(), ONE_AT_A_TIME);
    }

    #[test]
    fn depth_needs_an_asynchronous_engine() {
        let never = Interrupt::never();
        let body = r#"case "$*" in *--version*) echo fio-3.33;; *) exit 1;; esac"#;
        let (_directory, path) = fake(body);
        let fio = Fio::at(path, &never).unwrap();
        assert_eq!(fio.engine(), "psync");
        let target: BenchTarget = "/x".parse().unwrap();
        assert!(
            fio.options(&BenchJob::default(), &target).is_ok(),
            "one at a time is what it does"
        );
        let deep = BenchJob { name: "deep".to_owned(), depth: 32, ..BenchJob::default() };
        let refused = fio.options(&deep, &target).unwrap_err().to_string();
        assert!(refused.starts_with("deep: a depth of 32 is not possible: fio-3.33 "), "{refused}");
        let named = BenchJob { engine: Some("libaio".to_owned()), ..deep.clone() };
        assert!(fio.options(&named, &target).is_ok(), "the user's choice");
        assert!(fio.options(&deep, &"nbd://host/x".parse().unwrap()).is_ok(), "another engine");
    }

    #[test]
    fn fio_failure_includes_its_messages() {
        let never = Interrupt::never();
        let body = r#"case "$*" in *--version*) echo fio-3.33;; *probe*) exit 0;;
            *name=bad*) echo '{"fio version": "x", "jobs": ['; echo oh dear >&2;;
            *) echo fio: no space >&2; exit 1;; esac"#;
        let (_directory, path) = fake(body);
        let fio = Fio::at(path, &never).unwrap();
        assert_eq!((fio.version(), fio.engine()), ("fio-3.33", "io_uring"));
        let target: BenchTarget = "/x".parse().unwrap();
        let failed = fio.measure(&BenchJob::default(), &target, &never, &mut || {}).unwrap_err();
        assert!(failed.to_string().contains("fio: no space"), "{failed}");
        let bad = BenchJob { name: "bad".to_owned(), ..BenchJob::default() };
        let broken = fio.measure(&bad, &target, &never, &mut || {}).unwrap_err().to_string();
        assert!(broken.contains("ends in the middle") && broken.contains("oh dear"), "{broken}");
    }
}
