//! Process state from `/proc`, and waits for a condition.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait of [`until`]. A safety net: the conditions become true within a second.
const STATE_WAIT: Duration = Duration::from_secs(120);

/// Interval between two checks of [`until`].
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Waits until `holds` returns true.
///
/// # Panics
///
/// If it does not become true, with the text of `explain`.
pub fn until(what: &str, mut holds: impl FnMut() -> bool, explain: impl FnOnce() -> String) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < STATE_WAIT, "timed out waiting until {what}\n{}", explain());
        thread::sleep(LOOK_PAUSE);
    }
}

/// Stops a process (SIGSTOP), or continues it.
///
/// # Panics
///
/// If there is no such process.
pub fn stall_process(pid: u32, stalled: bool) {
    let signal = if stalled { Signal::STOP } else { Signal::CONT };
    let pid = Pid::from_raw(pid as i32).expect("a process has a number");
    kill_process(pid, signal).expect("an unreaped child can be signaled");
}

/// Current resident memory of a process, in bytes.
///
/// # Panics
/// If there is no such process.
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// Peak resident memory of a process, in bytes.
///
/// # Panics
/// If there is no such process.
pub fn resident_peak_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:")
}

/// Resident memory backed by files, mainly the program itself, in bytes.
///
/// # Panics
/// If there is no such process.
pub fn resident_file_bytes(pid: u32) -> u64 {
    status_bytes(pid, "RssFile:")
}

fn status_bytes(pid: u32, field: &str) -> u64 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or_else(|| panic!("no {field} of process {pid} in:\n{status}")) << 10
}

/// CPU time used by a process, user and system, all threads, in clock ticks.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = read(pid, "stat");
    // proc(5): utime and stime are fields 14 and 15; the name, field 2, may contain any character.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: Vec<u64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    assert_eq!(ticks.len(), 2, "process {pid}: {stat}");
    ticks.iter().sum()
}

/// CPU time that a process uses during `span` (longer on a busy machine), in clock ticks.
///
/// # Panics
/// If there is no such process.
pub fn cpu_ticks_during(pid: u32, span: Duration) -> u64 {
    let before = cpu_ticks(pid);
    thread::sleep(span);
    cpu_ticks(pid) - before
}

/// Number of open file descriptors of a process.
///
/// # Panics
/// If there is no such process.
pub fn descriptors(pid: u32) -> usize {
    let folder = fs::read_dir(format!("/proc/{pid}/fd"));
    folder.unwrap_or_else(|error| panic!("descriptors of process {pid}: {error}")).count()
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .unwrap_or_else(|error| panic!("{file} of process {pid}: {error}"))
}
