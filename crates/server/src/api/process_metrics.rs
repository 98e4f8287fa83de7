//! Process metrics: the conventional `process_*` families, and the work of each executor, from
//! procfs.
//!
//! A value that the system does not tell is left out.

use std::fs::read_to_string;

use flagstone_runtime::{CoreWork, cores};

use crate::http::Exposition;

/// Unit of times in `/proc/PID/stat`, per second: USER_HZ, which is 100 on every architecture here.
const TICKS_PER_SECOND: f64 = 100.0;

/// Values of `/proc/self`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessValues {
    cpu_seconds: Option<f64>,
    /// Since the Unix epoch.
    start_seconds: Option<f64>,
    virtual_bytes: Option<u64>,
    resident_bytes: Option<u64>,
    max_files: Option<u64>,
    open_files: Option<u64>,
}

impl ProcessValues {
    fn now() -> ProcessValues {
        let text = |path: &str| read_to_string(path).unwrap_or_default();
        let open_files = std::fs::read_dir("/proc/self/fd").ok();
        ProcessValues {
            // The listing itself opens one.
            open_files: open_files.map(|files| (files.count() as u64).saturating_sub(1)),
            ..ProcessValues::parse(
                &text("/proc/self/stat"),
                &text("/proc/self/status"),
                &text("/proc/self/limits"),
                &text("/proc/stat"),
            )
        }
    }

    /// Reads the files of these names; proc(5) has their formats.
    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> ProcessValues {
        // The program's name, in parentheses, may contain anything.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().collect();
        // Numbers as in proc(5): `state` is field 3.
        let seconds = |field: usize| {
            let ticks: f64 = fields.get(field - 3)?.parse().ok()?;
            Some(ticks / TICKS_PER_SECOND)
        };
        let number = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let kib = |name: &str| number(status, name).map(|kib| kib << 10);
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        ProcessValues {
            cpu_seconds: sum(seconds(14), seconds(15)),
            start_seconds: sum(number(system, "btime ").map(|at| at as f64), seconds(22)),
            virtual_bytes: kib("VmSize:"),
            resident_bytes: kib("VmRSS:"),
            max_files: number(limits, "Max open files"),
            open_files: None,
        }
    }
}

type ProcessValue = fn(&ProcessValues) -> Option<f64>;

/// As Prometheus' client libraries define them.
const FAMILIES: [(&str, &str, ProcessValue); 6] = [
    ("process_cpu_seconds_total", "User and system CPU time of the process.", |p| p.cpu_seconds),
    ("process_start_time_seconds", "Start time of the process, since the Unix epoch.", |p| {
        p.start_seconds
    }),
    ("process_virtual_memory_bytes", "Virtual memory of the process.", |p| {
        p.virtual_bytes.map(|bytes| bytes as f64)
    }),
    ("process_resident_memory_bytes", "Resident memory of the process.", |p| {
        p.resident_bytes.map(|bytes| bytes as f64)
    }),
    ("process_open_fds", "Open file descriptors.", |p| p.open_files.map(|count| count as f64)),
    ("process_max_fds", "Limit of open file descriptors.", |p| {
        p.max_files.map(|count| count as f64)
    }),
];

pub(super) fn write(out: &mut Exposition) {
    let values = ProcessValues::now();
    for (name, help, value) in FAMILIES {
        let mut family = out.family(name, help);
        if let Some(value) = value(&values) {
            family.value(&[], value);
        }
    }
    write_cores(out);
}

/// CPU time of a thread and its wait for a CPU, in seconds, from `schedstat`.
fn thread_times(schedstat: &str) -> Option<(f64, f64)> {
    let mut nanos = schedstat.split_whitespace().map(|field| field.parse::<u64>().ok());
    let mut next = || Some(nanos.next()?? as f64 / 1e9);
    Some((next()?, next()?))
}

type CoreCount = fn(&CoreWork) -> u64;

const CORE_COUNTS: [(&str, &str, CoreCount); 3] = [
    ("flagstone_core_turns_total", "Turns: each runs tasks and drives I/O.", |work| work.turns),
    ("flagstone_core_polls_total", "Polls of tasks.", |work| work.polls),
    ("flagstone_core_tasks", "Tasks.", |work| work.tasks),
];

fn write_cores(out: &mut Exposition) {
    let cores: Vec<_> = (0..)
        .zip(cores())
        .map(|(index, core): (u32, _)| {
            let work = core.work();
            let path = format!("/proc/self/task/{}/schedstat", work.thread_id);
            let times = thread_times(&read_to_string(path).unwrap_or_default());
            (index.to_string(), work, times)
        })
        .collect();
    let mut family = out.family("flagstone_core_cpu_seconds_total", "CPU time.");
    for (core, _, times) in &cores {
        if let Some((cpu, _)) = times {
            family.value(&[("core", core)], *cpu);
        }
    }
    let help = "Time ready to run without a CPU.";
    let mut family = out.family("flagstone_core_cpu_wait_seconds_total", help);
    for (core, _, times) in &cores {
        if let Some((_, wait)) = times {
            family.value(&[("core", core)], *wait);
        }
    }
    for (name, help, count) in CORE_COUNTS {
        let mut family = out.family(name, help);
        for (core, work, _) in &cores {
            family.count(&[("core", core)], count(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procfs_values_are_read() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 150 250 0 0 20 0 3 0 12345 999 7";
        let status = "Name:\ta\nVmSize:\t    8 kB\nVmRSS:\t    4 kB\n";
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024  4096  files\n";
        let found = ProcessValues::parse(stat, status, limits, "cpu 1 2\nbtime 1000\n");
        let expected = ProcessValues {
            cpu_seconds: Some(4.0),
            start_seconds: Some(1123.45),
            virtual_bytes: Some(8192),
            resident_bytes: Some(4096),
            max_files: Some(1024),
            open_files: None,
        };
        assert_eq!(found, expected);
        assert_eq!(ProcessValues::parse("", "", "", ""), ProcessValues::default());
    }

    #[test]
    fn thread_times_are_read() {
        assert_eq!(thread_times("1500000000 500000000 7\n"), Some((1.5, 0.5)));
        assert_eq!(thread_times(""), None);
    }
}
