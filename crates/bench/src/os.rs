//! Operating system interface: other programs, clock, files.
//!
//! A benchmark waits for programs outside of any executor and never in a simulation. So the
//! workspace's bans of the standard library's clock, sleep and files do not apply in this module.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::Error;
use crate::pauses::Pauses;

/// Polling interval for a running program.
const LOOK: Duration = Duration::from_millis(20);
/// Grace period of a program that was asked to end, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Interruption by the user.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// An interruption that is never raised.
    pub fn never() -> Interrupt {
        Interrupt::default()
    }

    /// Catches SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system's.
    pub fn catch() -> Result<Interrupt, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(Error::system("cannot catch signals"))?;
        }
        Ok(Interrupt(flag))
    }

    /// Raises it, like a signal.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once it is raised.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn check(&self) -> Result<(), Error> {
        if self.is_raised() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Exit status and output of a program.
#[derive(Debug)]
pub struct ProcessOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
    /// Time in which it stood still, in seconds: stopped by a signal, or with the whole machine.
    pub paused_s: f64,
}

impl ProcessOutput {
    /// The last `most_bytes` of its messages, without control characters.
    pub fn said(&self, most_bytes: usize) -> String {
        let said = if self.errors.trim().is_empty() { &self.output } else { &self.errors };
        let said = said.trim();
        let from = said.len().saturating_sub(most_bytes);
        let from = (from..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(from);
        harmless(&said[from..])
    }
}

/// A text without control characters of terminals.
pub(crate) fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "?")
}

struct Running {
    child: Child,
    pauses: Pauses,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only for a program that has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn wait(
        &mut self,
        until: impl Fn(&Pauses) -> bool,
        tick: &mut dyn FnMut(),
    ) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if until(&self.pauses) {
                return Ok(None);
            }
            tick();
            self.pauses.wait(LOOK, std::thread::sleep);
        }
    }

    /// Sends SIGINT.
    fn ask_to_end(&self) {
        if let Some(pid) =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
    }
}

/// Runs a program to its end; `tick` is called repeatedly meanwhile. The program has its own
/// process group, so that Ctrl-C reaches only this process. Its output goes to files, so it never
/// blocks on us; at most `most_bytes` of it are read.
///
/// # Errors
/// The program cannot be started ([`CANNOT_START`]), [`Error::Interrupted`] (it has ended then),
/// and system errors. A failure of the program is in [`ProcessOutput`].
pub fn run(
    command: &mut Command,
    most_bytes: u64,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<ProcessOutput, Error> {
    let ended = run_until(command, most_bytes, interrupt, &|_| false, tick)?;
    ended.ok_or(Error::Interrupted)
}

/// Like [`run`], with a time limit that excludes pauses. `None` if the program did not end in time;
/// it has been terminated then.
///
/// # Errors
/// As [`run`].
pub fn run_within(
    command: &mut Command,
    most_bytes: u64,
    interrupt: &Interrupt,
    limit: Duration,
) -> Result<Option<ProcessOutput>, Error> {
    let watch = Stopwatch::start();
    let is_late = |pauses: &Pauses| watch.seconds() - pauses.seconds() > limit.as_secs_f64();
    let ended = run_until(command, most_bytes, interrupt, &is_late, &mut || {})?;
    if ended.is_none() {
        interrupt.check()?;
    }
    Ok(ended)
}

/// Operation in the error of a program that cannot be started.
pub(crate) const CANNOT_START: &str = "cannot start a program";

/// `None` if it was interrupted or late, and was terminated.
fn run_until(
    command: &mut Command,
    most_bytes: u64,
    interrupt: &Interrupt,
    is_late: &dyn Fn(&Pauses) -> bool,
    tick: &mut dyn FnMut(),
) -> Result<Option<ProcessOutput>, Error> {
    let keep = || tempfile::tempfile().map_err(Error::system("cannot make a temporary file"));
    let (mut output, mut errors) = (keep()?, keep()?);
    let copy = |file: &File| file.try_clone().map_err(Error::system("cannot copy a descriptor"));
    command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&errors)?).process_group(0);
    let child = command.spawn().map_err(Error::system(CANNOT_START))?;
    let mut running = Running { pauses: Pauses::begin(child.id()), child };
    let waits = "cannot wait for a program";
    let is_over = |pauses: &Pauses| interrupt.is_raised() || is_late(pauses);
    let ended = running.wait(is_over, tick).map_err(Error::system(waits))?;
    let Some(status) = ended else {
        running.ask_to_end();
        let asked = Instant::now();
        running.wait(|_| asked.elapsed() > GRACE, &mut || {}).map_err(Error::system(waits))?;
        return Ok(None);
    };
    let output = read(&mut output, most_bytes)?;
    let errors = read(&mut errors, most_bytes)?;
    Ok(Some(ProcessOutput { status, output, errors, paused_s: running.pauses.seconds() }))
}

fn read(file: &mut File, most_bytes: u64) -> Result<String, Error> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.take(most_bytes).read_to_end(&mut bytes))
        .map_err(Error::system("cannot read a program's output"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a text file of at most `most_bytes`.
///
/// # Errors
/// A system error; the file is larger, or is not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(most_bytes + 1).read_to_string(&mut text)?;
    if read as u64 > most_bytes {
        let text = format!("it is larger than {most_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(text)
}

/// Reads up to `length` bytes at an offset, fewer at the end of the file.
///
/// # Errors
/// The system's.
pub fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The size of a file or block device, in bytes.
///
/// # Errors
/// The system's.
pub fn size_of(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

/// Bytes written to a file or block device, as the kernel counts them: the allocated space of a
/// file, the total of a device since boot. `None` if unknown.
pub fn written_bytes(path: &Path) -> Option<u64> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return Some(metadata.blocks() * STAT_SECTOR_BYTES);
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let stat = read_text(Path::new(&format!("/sys/dev/block/{major}:{minor}/stat")), 4096).ok()?;
    let sectors: u64 = stat.split_whitespace().nth(STAT_SECTORS_WRITTEN)?.parse().ok()?;
    Some(sectors.saturating_mul(STAT_SECTOR_BYTES))
}

/// Unit of `st_blocks` and of sectors in sysfs, on every device.
const STAT_SECTOR_BYTES: u64 = 512;
/// Index of the sectors written in a device's `stat` (Documentation/block/stat.rst of the kernel).
const STAT_SECTORS_WRITTEN: usize = 6;

/// Polls until `look` returns a value, for at most `seconds_most`; `None` after that.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn wait_for<T>(
    seconds_most: f64,
    interrupt: &Interrupt,
    mut look: impl FnMut() -> Option<T>,
) -> Result<Option<T>, Error> {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        interrupt.check()?;
        if watch.seconds() >= seconds_most {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether an address belongs to this machine: the kernel binds only to own addresses.
pub fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Seconds since 1970.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// A running stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Elapsed seconds.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_when_the_user_wants_it() {
        let interrupt = Interrupt::never();
        let ended = run(
            Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]),
            100,
            &interrupt,
            &mut || {},
        );
        let ended = ended.unwrap();
        assert_eq!((ended.status.code(), ended.output.as_str()), (Some(3), "a\n"));
        assert_eq!(ended.said(100), "b");
        let raised = interrupt.clone();
        let ended = run(Command::new("sleep").arg("1000"), 100, &interrupt, &mut || raised.raise());
        assert!(matches!(ended, Err(Error::Interrupted)));
    }

    /// The program is stopped until that is observed, continued, and ends after the next poll.
    #[test]
    fn a_program_that_is_stopped_in_the_midst_is_found_out() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let script = "echo $$ >pid; kill -STOP $$; until [ -e end ]; do sleep 0.01; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(directory.path());
        let mut is_continued = false;
        let mut tick = || {
            let pid = std::fs::read_to_string(at("pid")).unwrap_or_default();
            let pid = pid.trim();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if is_continued {
                // It was polled between the last tick and this one.
                std::fs::write(at("end"), "").unwrap();
            } else if stat.contains(") T ") {
                let sent = Command::new("kill").args(["-CONT", pid]).status();
                is_continued = sent.unwrap().success();
            }
        };
        let ended = run(&mut command, 100, &Interrupt::never(), &mut tick).unwrap();
        assert!(ended.status.success() && ended.paused_s > 0.0, "{ended:?}");
    }

    /// A program that ignores the request to end is killed; an interruption is distinguished from
    /// the time limit.
    #[test]
    fn a_program_that_does_not_end_is_not_waited_for_beyond_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let never = Interrupt::never();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >new; mv new pid; exec sleep 100000"])
            .current_dir(directory.path());
        let short = Duration::from_millis(50);
        while !pid.exists() {
            let ended = run_within(&mut command, 100, &never, short).unwrap();
            assert!(ended.is_none(), "{ended:?}");
        }
        let pid = std::fs::read_to_string(&pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid} is there still");
        let raised = Interrupt::never();
        raised.raise();
        let ended = run_within(&mut command, 100, &raised, Duration::from_secs(100_000));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let long = Duration::from_secs(100_000);
        let ended = run_within(Command::new("echo").arg("1"), 100, &never, long).unwrap();
        assert_eq!(ended.unwrap().output, "1\n");
    }

    #[test]
    fn no_more_is_read_than_allowed() {
        let ended =
            run(Command::new("echo").arg("123456"), 3, &Interrupt::never(), &mut || {}).unwrap();
        assert_eq!(ended.output, "123");
        let missing =
            run(&mut Command::new("/no/such/program"), 3, &Interrupt::never(), &mut || {});
        assert!(matches!(missing, Err(Error::System { .. })));
    }
}
