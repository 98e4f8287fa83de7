//! Linux guest under QEMU in which a script runs as root. It tests against the kernel's own
//! NVMe/TCP host without touching the kernel that runs the tests.
//!
//! `scripts/guest/build.sh` builds the [`Image`]. [`run`] boots it with a folder shared over 9p,
//! which holds the scripts of `tests/guest/` and receives their logs. It talks to the script over a
//! dedicated serial port (`tests/guest/lib.sh` defines the messages). The guest reaches this
//! machine's 127.0.0.1 as [`HOST_ADDRESS`].
//!
//! KVM is not needed, because the processor is emulated. QEMU is killed when a run ends in any way.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::environment::RunEnvironment;
use crate::scratch::Scratch;
use crate::tools;

/// This machine's 127.0.0.1, as seen by the guest (QEMU's user-mode network).
pub const HOST_ADDRESS: &str = "10.0.2.2";

/// Maximum lifetime of a guest. A safety net: a run takes one or two minutes on two idle cores, and
/// much longer on busy ones.
const GUEST_WAIT: Duration = Duration::from_secs(1200);

/// Memory of the guest in MiB. The initramfs takes 100; the page cache of the scripts takes most of
/// the rest.
const MEMORY_MIB: u32 = 1500;

/// Lines of a log shown on failure.
const LOG_LINES_SHOWN: usize = 60;

/// Exit status of `build.sh` when an image cannot be built on this machine.
const UNAVAILABLE: i32 = 77;

/// A kernel and its initramfs.
#[derive(Debug)]
pub struct Image {
    kernel: PathBuf,
    initramfs: PathBuf,
    modules: PathBuf,
}

impl Image {
    /// Builds the image, or reuses the existing one.
    ///
    /// # Errors
    ///
    /// Reason why the image cannot be built on this machine (no QEMU, no kernel package, a missing
    /// tool).
    ///
    /// # Panics
    ///
    /// If the build itself fails.
    pub fn build() -> Result<Self, String> {
        if tools::find("qemu-system-x86_64").is_none() {
            return Err("qemu-system-x86_64 not installed; scripts/setup.sh installs it".into());
        }
        let output = Command::new(tools::workspace().join("scripts/guest/build.sh"))
            .stdin(Stdio::null())
            .output()
            .expect("the build script runs");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(UNAVAILABLE) {
            return Err(said.lines().last().unwrap_or("no reason given").to_owned());
        }
        assert!(output.status.success(), "building the guest: {}\n{said}", output.status);
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
        let [kernel, initramfs, modules] =
            ["vmlinuz", "initramfs", "modules"].map(|name| folder.join(name));
        Ok(Self { kernel, initramfs, modules })
    }

    /// True if the guest loads this module of its kernel, a name without the suffix.
    ///
    /// # Panics
    ///
    /// If the image's list of modules cannot be read.
    pub fn has_module(&self, name: &str) -> bool {
        let modules =
            fs::read_to_string(&self.modules).expect("an image has a list of its modules");
        modules.lines().any(|line| line.strip_suffix(".ko") == Some(name))
    }
}

/// Script that runs in the guest.
#[derive(Debug, Default)]
pub struct Script<'a> {
    /// Files of `tests/guest/`, read in this order by one shell, after `lib.sh`.
    pub files: &'a [&'a str],
    /// Shell variables passed to the script.
    pub variables: &'a [(&'a str, &'a str)],
    /// Arguments added to the kernel's command line.
    pub kernel_arguments: &'a str,
    /// Program to bring into the guest: a file on the share, beside the folder `lib` with its
    /// shared libraries.
    pub program: Option<&'a Path>,
}

/// Result of a step of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Passed,
    /// A command in it failed.
    Failed,
    /// The guest ended during the step.
    Unfinished,
}

/// A step of a script.
#[derive(Debug)]
pub struct Step {
    /// Name of the step and of its log.
    pub name: String,
    /// Result.
    pub outcome: Outcome,
    began: Instant,
    took: Duration,
}

/// Report of a guest run.
#[derive(Debug)]
pub struct Report {
    /// Steps, in the order in which they began.
    pub steps: Vec<Step>,
    /// Release of the guest's kernel and its seconds since boot; `None` if it did not boot.
    pub booted: Option<String>,
    /// Exit status of the script and message of init; `None` if the guest ended earlier.
    pub exit: Option<String>,
    /// Requests of the script that the host refused.
    pub refusals: Vec<String>,
    /// The guest was still running at its time limit.
    pub overdue: bool,
    boot_took: Duration,
    share: PathBuf,
    console: PathBuf,
    _scratch: Scratch,
}

impl Report {
    /// True if the script completed with at least one step, and every step passed.
    pub fn passed(&self) -> bool {
        self.exit.as_deref() == Some("0")
            && !self.steps.is_empty()
            && self.steps.iter().all(|step| step.outcome == Outcome::Passed)
    }

    /// One line per step, with times.
    pub fn summary(&self) -> String {
        let mut text = match &self.booted {
            Some(booted) => {
                format!("guest {booted} booted in {:.1} s\n", self.boot_took.as_secs_f64())
            }
            None => "the guest did not boot\n".to_owned(),
        };
        for step in &self.steps {
            let took = step.took.as_secs_f64();
            let _ = writeln!(text, "  {:<20} {:?} {took:.1} s", step.name, step.outcome);
        }
        text
    }

    /// Panics unless [`Report::passed`], with the summary and the logs.
    pub fn assert_passed(&self) {
        assert!(self.passed(), "{}", self.explain());
    }

    fn explain(&self) -> String {
        let mut text = self.summary();
        let _ = writeln!(text, "overdue: {}; exit: {:?}", self.overdue, self.exit);
        for refusal in &self.refusals {
            let _ = writeln!(text, "refused: {refusal}");
        }
        let failed = self.steps.iter().filter(|step| step.outcome != Outcome::Passed);
        for step in failed {
            for log in ["log", "dmesg.log", "state.log"] {
                show(&mut text, &self.share.join(format!("{}.{log}", step.name)));
            }
        }
        show(&mut text, &self.share.join("run.log"));
        show(&mut text, &self.console);
        text
    }
}

/// Appends the last lines of a log, if it exists.
fn show(text: &mut String, log: &Path) {
    let Ok(bytes) = fs::read(log) else { return };
    let content = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = content.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    let name = log.file_name().unwrap_or_default().display();
    let _ = writeln!(text, "--- {name}, last lines\n{}", shown.join("\n"));
}

/// Boots `image`, runs `script` in it, and calls `answer` for each request of the script. `Ok`
/// means done, `Err` has the reason for a refusal.
///
/// # Panics
/// If QEMU cannot be started.
pub fn run(
    image: &Image,
    script: &Script<'_>,
    answer: impl FnMut(&str) -> Result<(), String>,
) -> Report {
    run_at(&RunEnvironment::default(), image, script, answer)
}

/// As [`run`], for a guest that uses the network of `place`.
///
/// # Panics
/// If QEMU cannot be started.
pub fn run_at(
    place: &RunEnvironment,
    image: &Image,
    script: &Script<'_>,
    mut answer: impl FnMut(&str) -> Result<(), String>,
) -> Report {
    let started = Instant::now();
    let scratch = Scratch::new();
    let share = scratch.join("share");
    let console = scratch.join("console.log");
    fill_share(&share, script);
    let mut machine = Machine::start(place, image, script, &share, &console);
    let mut report = Report {
        steps: Vec::new(),
        booted: None,
        exit: None,
        refusals: Vec::new(),
        overdue: false,
        boot_took: Duration::ZERO,
        share,
        console,
        _scratch: scratch,
    };
    loop {
        let left = GUEST_WAIT.saturating_sub(started.elapsed());
        match machine.lines.recv_timeout(left) {
            Ok(line) => report.heard(&line, started, &mut machine, &mut answer),
            Err(RecvTimeoutError::Disconnected) => return report,
            Err(RecvTimeoutError::Timeout) => {
                report.overdue = true;
                return report;
            }
        }
    }
}

impl Report {
    /// Handles one message of the guest. `tests/guest/lib.sh` and `scripts/guest/init` send them.
    fn heard(
        &mut self,
        line: &str,
        started: Instant,
        machine: &mut Machine,
        answer: &mut impl FnMut(&str) -> Result<(), String>,
    ) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "BOOTED" => {
                self.booted = Some(rest.to_owned());
                self.boot_took = started.elapsed();
            }
            "STEP" => self.steps.push(Step {
                name: rest.to_owned(),
                outcome: Outcome::Unfinished,
                began: Instant::now(),
                took: Duration::ZERO,
            }),
            "PASS" => self.ended(rest, Outcome::Passed),
            "FAIL" => self.ended(rest, Outcome::Failed),
            "ASK" => {
                let reply = match answer(rest) {
                    Ok(()) => "OK".to_owned(),
                    Err(reason) => {
                        self.refusals.push(format!("{rest}: {reason}"));
                        // Each message is one line.
                        format!("NO {}", reason.replace('\n', " "))
                    }
                };
                machine.say(&reply);
            }
            "EXIT" => self.exit = Some(rest.to_owned()),
            _ => self.refusals.push(format!("not a message: {line:?}")),
        }
    }

    fn ended(&mut self, name: &str, outcome: Outcome) {
        match self.steps.last_mut() {
            Some(step) if step.name == name => {
                step.outcome = outcome;
                step.took = step.began.elapsed();
            }
            _ => self.refusals.push(format!("{name} ended and had not begun")),
        }
    }
}

/// Writes the scripts where the guest's init looks for `run.sh`.
fn fill_share(share: &Path, script: &Script<'_>) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    fs::create_dir(share).expect("a folder can be made in a fresh one");
    let mut main = String::new();
    for (name, value) in script.variables {
        assert!(!value.contains('\''), "{name} has a quote, which would end the shell's string");
        let _ = writeln!(main, "{name}='{value}'");
    }
    for file in ["lib.sh"].iter().chain(script.files) {
        fs::copy(sources.join(file), share.join(file))
            .unwrap_or_else(|error| panic!("copying {file}: {error}"));
        let _ = writeln!(main, ". ./{file}");
    }
    fs::write(share.join("run.sh"), main).expect("a file can be written in a fresh folder");
    if let Some(program) = script.program {
        bring(program, share);
    }
}

/// Copies a program and its shared libraries to the share. The guest reads slowly, so the copy has
/// no symbols.
fn bring(program: &Path, share: &Path) {
    let name = program.file_name().expect("a program has a name");
    let copy = share.join(name);
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, &copy).expect("a program can be copied");
    }
    let libraries = share.join("lib");
    fs::create_dir(&libraries).expect("a folder can be made in a fresh one");
    let listed = Command::new("ldd").arg(program).output().expect("ldd runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for line in listed.lines().filter_map(|line| line.split_once("=> ")) {
        let library = Path::new(line.1.split(" (").next().unwrap_or_default());
        let name = library.file_name().expect("a library has a name");
        fs::copy(library, libraries.join(name)).expect("a library can be copied");
    }
}

/// A running QEMU; killed when dropped.
struct Machine {
    child: Child,
    control: ChildStdin,
    lines: Receiver<String>,
}

impl Machine {
    fn start(
        place: &RunEnvironment,
        image: &Image,
        script: &Script<'_>,
        share: &Path,
        console: &Path,
    ) -> Self {
        let errors = File::create(share.with_file_name("qemu.log")).expect("a log can be made");
        let program = tools::find("qemu-system-x86_64").expect("Image::build found it");
        let mut child = qemu(place.command(&program), image, script, share, console)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("starting QEMU: {error}"));
        let control = child.stdin.take().expect("stdin is a pipe");
        let output = child.stdout.take().expect("stdout is a pipe");
        let (sender, lines) = mpsc::channel();
        // Ends with the pipe (with QEMU), or when the receiver is gone.
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { child, control, lines }
    }

    /// Sends a line to the script. If the guest has ended, the reader notices.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.control, "{line}").and_then(|()| self.control.flush());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU command line: two emulated cores, the network, the share, the console in a file (ttyS0),
/// and the control line on QEMU's standard input and output (ttyS1).
fn qemu(
    mut command: Command,
    image: &Image,
    script: &Script<'_>,
    share: &Path,
    console: &Path,
) -> Command {
    command
        .args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-display", "none", "-no-reboot"])
        // No boot ROM, which would try to boot from the network.
        .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="])
        .arg("-fsdev")
        .arg(format!("local,id=share,security_model=none,path={}", share.display()))
        .args(["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .args(["-chardev", "stdio,id=control,signal=off", "-serial", "chardev:control"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs)
        // A kernel fault ends the run at once.
        .args([
            "-append",
            &format!("console=ttyS0 oops=panic panic=-1 {}", script.kernel_arguments),
        ]);
    command
}
