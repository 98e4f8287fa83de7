//! Disturbance of measurements: CPU time that other processes and the hypervisor took meanwhile.
//!
//! The time of a process and its descendants, running or ended, is subtracted from the
//! machine's. Interrupts are left out, because the kernel charges them to no process and our own
//! I/O causes most of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::os::read_text;

/// Utilization of the CPUs, in %, from which on the CPUs limit the figures.
const DISTURBED_PERCENT: f64 = 15.0;
/// Bytes of a file in `/proc`; `/proc/stat` has 10 kB for each thousand interrupts.
const FILE_BYTES: u64 = 16 << 20;

/// Shares of all CPUs during a measurement, in %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Disturbance {
    /// Taken by processes that are not ours.
    pub others_percent: f64,
    /// Taken by the hypervisor for other machines.
    pub steal_percent: f64,
}

impl Disturbance {
    /// True if the machine was too busy for valid figures.
    pub fn is_too_much(self) -> bool {
        self.others_percent + self.steal_percent >= DISTURBED_PERCENT
    }
}

#[derive(Debug)]
pub struct DisturbanceMeter(Option<Reading>);

impl DisturbanceMeter {
    pub fn start() -> DisturbanceMeter {
        DisturbanceMeter(Reading::take())
    }

    /// Disturbance since the start; none where `/proc` cannot be read.
    pub fn end(self) -> Disturbance {
        let found = self.0.zip(Reading::take());
        found.map(|(before, after)| after.since(before)).unwrap_or_default()
    }
}

/// Sums of all CPUs, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    /// Used by processes.
    used: u64,
    steal: u64,
    all: u64,
    /// Used by this process and its descendants.
    own: u64,
}

impl Reading {
    fn take() -> Option<Reading> {
        let machine = read_text(Path::new("/proc/stat"), FILE_BYTES).ok()?;
        let mut processes = Vec::new();
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            // A process may end meanwhile.
            let stat = read_text(&entry.path().join("stat"), FILE_BYTES);
            processes.extend(stat.ok().and_then(|text| Process::parse(&text)));
        }
        Reading::parse(&machine, own_ticks(std::process::id(), &processes))
    }

    fn parse(stat: &str, own: u64) -> Option<Reading> {
        let mut numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // user nice system idle iowait irq softirq steal
        let ticks: [u64; 8] =
            std::array::from_fn(|_| numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0));
        let sum = |ticks: &[u64]| ticks.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        Some(Reading { used: sum(&ticks[..3]), steal: ticks[7], all: sum(&ticks), own })
    }

    fn since(self, before: Reading) -> Disturbance {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let own = self.own.saturating_sub(before.own);
        let others = self.used.saturating_sub(before.used).saturating_sub(own);
        Disturbance {
            others_percent: 100.0 * others as f64 / all,
            steal_percent: 100.0 * self.steal.saturating_sub(before.steal) as f64 / all,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    /// CPU ticks of the process and its ended children.
    ticks: u64,
}

impl Process {
    /// From `/proc/PID/stat` (proc(5)); the name in parentheses may contain any characters.
    fn parse(stat: &str) -> Option<Process> {
        let (id, rest) = stat.split_once(" (")?;
        let fields: Vec<&str> = rest.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0));
        Some(Process {
            id: id.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            ticks: ticks.fold(0, u64::saturating_add),
        })
    }
}

fn own_ticks(root: u32, processes: &[Process]) -> u64 {
    let mut children: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut ticks = processes.iter().find(|p| p.id == root).map_or(0, |process| process.ticks);
    // Process ids may be reused between two reads.
    let (mut seen, mut open) = (BTreeSet::from([root]), vec![root]);
    while let Some(id) = open.pop() {
        for child in children.get(&id).into_iter().flatten().filter(|child| seen.insert(child.id)) {
            ticks = ticks.saturating_add(child.ticks);
            open.push(child.id);
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_processes_and_steal_are_disturbance() {
        let before = Reading::parse("cpu  100 0 100 1000 0 50 50 10 0 0\ncpu0", 150).unwrap();
        let after = Reading::parse("cpu  130 10 120 1090 10 60 60 30 0 0\ncpu0", 190).unwrap();
        let found = after.since(before);
        // 60 ticks of processes, of them 40 our own, 20 stolen, of 200.
        assert_eq!(found, Disturbance { others_percent: 10.0, steal_percent: 10.0 });
        assert!(found.is_too_much() && !Disturbance::default().is_too_much());
        assert!(!Disturbance { steal_percent: 0.0, ..found }.is_too_much());
        assert_eq!(Reading::parse("intr 5", 0), None);
    }

    #[test]
    fn own_ticks_include_descendants() {
        let stat =
            |id: u32, parent: u32| format!("{id} (a) b) S {parent} 0 0 0 0 0 0 0 0 0 1 2 3 4 20 0");
        let all = [stat(1, 0), stat(7, 1), stat(8, 7), stat(9, 8), stat(10, 1), stat(8, 9)];
        let all: Vec<Process> = all.iter().filter_map(|text| Process::parse(text)).collect();
        assert_eq!(all[1], Process { id: 7, parent: 1, ticks: 10 });
        assert_eq!(own_ticks(7, &all), 30);
        assert_eq!(Process::parse("7 (x) S"), None);
        assert!(Reading::take().is_some_and(|reading| reading.all > 0));
    }
}
